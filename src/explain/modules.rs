//! The modules of a model that steps of a plan belong to, from the names of the parameters that they read.

use tch::Tensor;
use tilefuse_fusion::plan::{Plan, StepKind};
use tilefuse_fusion::{NodeId, Op};

use crate::engine::Compiled;
use crate::torch::Meta;

/// The names of a model's parameters, by their positions in a compiled plan.
pub(super) struct Parameters<'a> {
    compiled: &'a Compiled,
    names: Vec<Option<&'a str>>,
    /// Of constants that hold prepacked parameters, from the last ones of all: which.
    packed: Vec<u32>,
}

impl<'a> Parameters<'a> {
    pub(super) fn of(compiled: &'a Compiled, names: &'a [(String, Tensor)]) -> Parameters<'a> {
        let names = compiled.params.iter().map(|param| name_of(param, names)).collect();
        Parameters { compiled, names, packed: compiled.packs.params().collect() }
    }

    /// The name of the parameter that a node is, or that lies in it prepacked.
    pub(super) fn name(&self, node: NodeId) -> Option<&'a str> {
        let position = match self.compiled.plan.graph.node(node).op {
            Op::Param(position) => position,
            Op::Const(position) => {
                let first = self.compiled.consts.len() - self.packed.len();
                *self.packed.get((position as usize).checked_sub(first)?)?
            }
            _ => return None,
        };
        self.names.get(position as usize).copied().flatten()
    }
}

/// By step: the modules of the parameters that it reads, in order. A step that reads none is of the innermost module that
/// surrounds the steps before and behind it.
pub(super) fn modules(plan: &Plan, params: &Parameters<'_>) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = (0..plan.steps.len())
        .map(|at| {
            let mut modules: Vec<String> = Vec::new();
            for name in read_by(plan, at).into_iter().filter_map(|node| params.name(node)) {
                let module = name.rsplit_once('.').map_or("", |(module, _)| module);
                if !module.is_empty() && !modules.iter().any(|known| known == module) {
                    modules.push(String::from(module));
                }
            }
            modules
        })
        .collect();
    let known: Vec<usize> = (0..found.len()).filter(|&at| !found[at].is_empty()).collect();
    for at in 0..found.len() {
        let behind = known.partition_point(|&known| known < at);
        let around = (behind.checked_sub(1).and_then(|i| known.get(i)), known.get(behind));
        if let (Some(&before), Some(&behind)) = around
            && behind != at
            && let (Some(before), Some(behind)) = (found[before].last(), found[behind].first())
            && let common = common_path(before, behind)
            && !common.is_empty()
        {
            found[at] = vec![common];
        }
    }
    found
}

/// The name of a parameter.
fn name_of<'n>(param: &Tensor, names: &'n [(String, Tensor)]) -> Option<&'n str> {
    let identity = |t: &Tensor| Meta::of(t).ok().map(|meta| (meta.tensor_impl, meta.data));
    let own = identity(param)?;
    let named = |(_, t): &&(String, Tensor)| {
        identity(t).is_some_and(|n| n.0 == own.0 || (own.1 != 0 && n.1 == own.1))
    };
    names.iter().find(named).map(|(name, _)| name.as_str())
}

/// The nodes that a step reads.
fn read_by(plan: &Plan, at: usize) -> Vec<NodeId> {
    match &plan.steps[at].kind {
        StepKind::Kernel(kernel) => {
            kernel.buffers.iter().filter(|(_, written)| !written).map(|(value, _)| value.node).collect()
        }
        StepKind::Extern(call) => call.operands.iter().map(|place| place.base().node).collect(),
    }
}

/// The path that two paths begin with.
fn common_path(a: &str, b: &str) -> String {
    let parts = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b);
    parts.map(|(part, _)| part).collect::<Vec<_>>().join(".")
}

/// One path for several that have the same number of parts: `*` where these differ.
pub(super) fn pattern<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let mut paths = paths.into_iter().map(|path| path.split('.').collect::<Vec<_>>());
    let Some(mut all) = paths.next() else { return String::new() };
    for path in paths {
        if path.len() != all.len() {
            return String::from("*");
        }
        for (part, other) in all.iter_mut().zip(path) {
            if *part != other {
                *part = "*";
            }
        }
    }
    all.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_part_by_part() {
        assert_eq!(common_path("h.0.attn.c_attn", "h.0.attn.c_proj"), "h.0.attn");
        assert_eq!(common_path("h.1", "h.10"), "h");
        assert_eq!(common_path("a", "b"), "");
        assert_eq!(pattern(["h.0.mlp", "h.1.mlp", "h.10.mlp"]), "h.*.mlp");
        assert_eq!(pattern(["a.b", "a"]), "*");
        assert_eq!(pattern(["ln_f"]), "ln_f");
    }
}
