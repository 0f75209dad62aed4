//! NVTX ranges of a plan's steps within those of the modules that they belong to, so that NVIDIA's profilers show a call as the model is
//! written.
//!
//! ```text
//! h.0
//!   h.0.ln                     h.0.mlp
//!     fused_layer_norm           h.0.mlp.c_fc                h.0.mlp.c_proj
//!                                  fused_linear_gelu           aten::linear #7
//! ```

use std::ffi::CString;

use rustc_hash::FxHashMap;
use tilefuse_fusion::Op;
use tilefuse_fusion::plan::{Plan, StepKind};

use super::exec::Watch;
use super::kernels::Stream;
use super::module_paths::{common_path, step_modules};
use super::step_times::units;
use crate::Error;
use crate::torch::{pop_range, push_range};

/// The ranges of each step, or of those that run together, from the outermost to that of the step itself.
#[derive(Debug)]
pub(crate) struct StepRanges(Vec<Vec<CString>>);

impl StepRanges {
    /// Of a plan, with the modules that captured calls belong to, and the names of parameters by their positions.
    pub(super) fn of(plan: &Plan, of_calls: &[String], params: &FxHashMap<u32, &str>) -> StepRanges {
        let modules = step_modules(plan, of_calls, |node| match plan.graph.node(node).op {
            Op::Param(position) => params.get(&position).copied(),
            _ => None,
        });
        let of = |at: usize| {
            let mut paths = modules[at].iter();
            let first = paths.next().cloned().unwrap_or_default();
            let module = paths.fold(first, |all, path| common_path(&all, path));
            let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
            let around = ends.filter(|&end| end > 0).map(|end| &module[..end]);
            let name = match &plan.steps[at].kind {
                StepKind::Kernel(kernel) => plan.programs[kernel.program].name.as_str(),
                StepKind::Extern(call) => plan.graph.origin(call.node).unwrap_or("libtorch"),
            };
            // A name with a NUL in it is shown as none.
            around.chain([name]).map(|name| CString::new(name).unwrap_or_default()).collect()
        };
        StepRanges(units(plan).into_iter().map(of).collect())
    }

    /// Someone who watches a run, and begins and ends the ranges.
    pub(super) fn open(&self) -> OpenRanges<'_> {
        OpenRanges { steps: &self.0, next: 0, open: &[] }
    }
}

/// Ranges of one run; those that are open are ended when this is dropped.
pub(super) struct OpenRanges<'a> {
    steps: &'a [Vec<CString>],
    next: usize,
    open: &'a [CString],
}

impl OpenRanges<'_> {
    /// Ends all ranges but the outermost ones.
    fn end(&mut self, outermost: usize) -> Result<(), Error> {
        while self.open.len() > outermost {
            self.open = &self.open[..self.open.len() - 1];
            pop_range()?;
        }
        Ok(())
    }
}

impl Watch for OpenRanges<'_> {
    fn step(&mut self, _: Stream) -> Result<(), Error> {
        let next = self.steps.get(self.next).map_or(&[][..], Vec::as_slice);
        self.next += 1;
        let shared = shared(self.open, next);
        self.end(shared)?;
        for (at, name) in next.iter().enumerate().skip(shared) {
            push_range(name)?;
            self.open = &next[..=at];
        }
        Ok(())
    }
}

impl Drop for OpenRanges<'_> {
    fn drop(&mut self) {
        // A profile without the end of a range is no reason to fail.
        let _ = self.end(0);
    }
}

/// How many ranges around a step are around the next one as well: not its own.
fn shared(open: &[CString], next: &[CString]) -> usize {
    let around = |ranges: &[CString]| ranges.len().saturating_sub(1);
    let most = around(open).min(around(next));
    open.iter().zip(next).take(most).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::pipeline::plan;
    use tilefuse_fusion::{Profile, parse_graph};

    use super::*;

    #[test]
    fn steps_are_within_their_modules() {
        let text = "graph {
          origin 0 \"aten::exp #0\"
          origin 1 \"aten::sin #1\"
          %0 = input 0 : f32[64,96]
          %1 = aten::exp(self=%0) : f32[64,96] @0
          %2 = aten::sin(self=%1) : f32[64,96] @1
          outputs %2
        }";
        let plan = plan(&parse_graph(text).unwrap(), &Profile::host(2)).unwrap();
        let modules = ["h.0.mlp", "h.0.ln"].map(String::from);
        let ranges = StepRanges::of(&plan, &modules, &FxHashMap::default());
        let names = |at: usize| -> Vec<&str> { ranges.0[at].iter().map(|n| n.to_str().unwrap()).collect() };
        assert_eq!(names(0), ["h", "h.0", "h.0.mlp", "aten::exp #0"]);
        assert_eq!(names(1), ["h", "h.0", "h.0.ln", "aten::sin #1"]);
        assert_eq!(shared(&ranges.0[0], &ranges.0[1]), 2);
        // The same call again is a range of its own.
        assert_eq!(shared(&ranges.0[0], &ranges.0[0]), 3);
        assert_eq!(shared(&[], &ranges.0[0]), 0);
    }
}
