//! What the user of a model asks of the planner about some of its operators.

use rustc_hash::FxHashMap;

/// Which operators are to be in one kernel, or not, by the captured calls that they come from: positions among a graph's
/// origins.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    separate: FxHashMap<u32, u32>,
    /// By region of what is to be separate: the pattern of the hint that asks for it.
    patterns: FxHashMap<u32, String>,
    together: FxHashMap<u32, u32>,
}

impl Hints {
    /// Asks that what comes from a call be in no kernel with what does not come from calls of the same region, because of a hint of this
    /// pattern.
    pub fn keep_separate(&mut self, origin: u32, region: u32, pattern: &str) {
        self.separate.entry(origin).or_insert(region);
        self.patterns.entry(region).or_insert_with(|| pattern.to_owned());
    }

    /// Asks that what comes from a call be in one kernel with what comes from calls of the same region wherever that can be
    /// built, whatever it costs.
    pub fn keep_together(&mut self, origin: u32, region: u32) {
        self.together.entry(origin).or_insert(region);
    }

    /// Gives what passes made of calls of these origins, as an operator of its own, the regions that all of them have.
    pub(crate) fn derive(&mut self, origin: u32, from: &[Option<u32>]) {
        for regions in [&mut self.separate, &mut self.together] {
            let mut of = from.iter().map(|from| regions.get(&(*from)?).copied());
            let region = of.next().flatten().filter(|&first| of.all(|other| other == Some(first)));
            regions.extend(region.map(|region| (origin, region)));
        }
    }

    /// Whether nothing is asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.separate.is_empty() && self.together.is_empty()
    }

    /// The patterns of the hints by which two operators of these origins may not be in one kernel.
    pub(crate) fn separating(&self, a: Option<u32>, b: Option<u32>) -> Option<String> {
        if self.allow(a, b) {
            return None;
        }
        let regions = [a, b].map(|origin| self.separate.get(&origin?));
        let mut patterns: Vec<&str> = regions
            .into_iter()
            .flatten()
            .filter_map(|of| self.patterns.get(of))
            .map(String::as_str)
            .collect();
        patterns.dedup();
        Some(patterns.join(" and "))
    }

    /// Whether two operators of these origins may be in one kernel.
    pub(crate) fn allow(&self, a: Option<u32>, b: Option<u32>) -> bool {
        let region = |origin: Option<u32>| self.separate.get(&origin?);
        region(a) == region(b)
    }

    /// Whether two operators of these origins are to be in one kernel at any price.
    pub(crate) fn demand(&self, a: Option<u32>, b: Option<u32>) -> bool {
        let region = |origin: Option<u32>| self.together.get(&origin?);
        region(a).is_some() && region(a) == region(b)
    }
}

#[cfg(test)]
mod tests {
    use super::Hints;
    use crate::block_kernel::Declined;
    use crate::graph::{Graph, Op};
    use crate::machine::Profile;
    use crate::parse_graph;
    use crate::pipeline::{Context, Stage, lowered, planned};
    use crate::plan::{HorizontalRefusal, Plan, StepKind, Verdict};
    use crate::types::Device;

    const MODEL: &str = "graph {
      %0 = input 0 : f32[64,64]
      %1 = aten::exp(self=%0) : f32[64,64]
      %2 = aten::sin(self=%1) : f32[64,64]
      %3 = aten::cos(self=%2) : f32[64,64]
      outputs %3
    }";

    /// The graph with each call's name as its origin.
    fn model(text: &str) -> Graph {
        let mut graph = parse_graph(text).unwrap();
        for id in graph.topological().unwrap() {
            if let Op::Aten(call) = &graph.node(id).op {
                let name = call.op.clone();
                graph.node_mut(id).origin = Some(graph.origins.len() as u32);
                graph.origins.push(name);
            }
        }
        graph
    }

    fn plan_of(text: &str, hints: Hints) -> Plan {
        let profile = Profile::host(2);
        let mut cx = Context { hints, ..Context::new(&profile) };
        let graph = lowered(model(text), Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
        planned(graph, &mut cx).unwrap()
    }

    #[test]
    fn operators_are_kept_separate() {
        assert_eq!(plan_of(MODEL, Hints::default()).kernel_count(), 1);
        let mut hints = Hints::default();
        hints.keep_separate(1, 0, "sin");
        let plan = plan_of(MODEL, hints);
        assert_eq!(plan.kernel_count(), 3);
        let verdict = Verdict::Hint(String::from("sin"));
        assert!(plan.decisions.iter().all(|decision| decision.verdict == verdict));
        assert_eq!(verdict.to_string(), "cut: the hint `separate` for sin keeps them in separate kernels");
        assert_eq!(verdict.remedy().unwrap(), "without the hint `separate` for sin they may be fused");
        // Of one region, what is in it is fused.
        let mut hints = Hints::default();
        hints.keep_separate(1, 0, "sin");
        hints.keep_separate(2, 0, "sin");
        assert_eq!(plan_of(MODEL, hints).kernel_count(), 2);
        // Each of a region of its own.
        let mut hints = Hints::default();
        (0..3).for_each(|origin| hints.keep_separate(origin, origin, "*"));
        assert_eq!(plan_of(MODEL, hints).kernel_count(), 3);
    }

    #[test]
    fn operators_that_are_kept_separate_share_no_launch() {
        let text = "graph {
          %0 = input 0 : f32[64]
          %1 = aten::exp(self=%0) : f32[64]
          %2 = input 1 : f32[48]
          %3 = aten::sin(self=%2) : f32[48]
          outputs %1, %3
        }";
        let kernels = |hints: Hints| {
            let profile = Profile::gpu(132, 4200.0);
            let mut cx = Context { hints, ..Context::new(&profile) };
            let mut graph = model(text);
            graph.move_to(Device::Cuda(0));
            let graph = lowered(graph, Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
            planned(graph, &mut cx).unwrap()
        };
        assert_eq!(kernels(Hints::default()).kernel_count(), 1);
        let mut hints = Hints::default();
        hints.keep_separate(1, 0, "sin");
        let plan = kernels(hints);
        assert_eq!(plan.kernel_count(), 2);
        let StepKind::Kernel(second) = &plan.steps[1].kind else { panic!("a kernel") };
        assert_eq!(second.horizontal_refusal, Some(HorizontalRefusal::Hint));
    }

    #[test]
    fn attention_is_not_made_of_operators_that_are_kept_separate() {
        let text = "graph {
          %0 = input 0 : f32[2,64,32]
          %1 = input 1 : f32[2,32,64]{2048,1,32}
          %2 = input 2 : f32[2,64,32]
          %3 = aten::matmul(self=%0, other=%1) : f32[2,64,64]
          %4 = aten::softmax.int(self=%3, dim=2, dtype=None) : f32[2,64,64]
          %5 = aten::matmul(self=%4, other=%2) : f32[2,64,32]
          outputs %5
        }";
        let attention = |separate: &[u32]| {
            let mut hints = Hints::default();
            separate.iter().for_each(|&origin| hints.keep_separate(origin, 0, "*"));
            let profile = Profile::host(2);
            let mut cx = Context { hints, ..Context::new(&profile) };
            let graph = lowered(model(text), Stage::Primitive..=Stage::Primitive, &mut cx).unwrap();
            let origin = graph.origins.iter().position(|origin| origin.starts_with("attention"));
            origin.map(|origin| cx.hints.allow(Some(origin as u32), Some(0)))
        };
        assert_eq!(attention(&[]), Some(true));
        assert_eq!(attention(&[1]), None);
        // Of one region, what it is made of is too.
        assert_eq!(attention(&[0, 1, 2]), Some(true));
    }

    #[test]
    fn a_call_that_is_kept_is_not_lowered() {
        let mut graph = model(MODEL);
        let sin = graph.ids().find(|&id| graph.node(id).origin == Some(1)).unwrap();
        graph.keep_call(sin, Declined::new("kept by a hint", "without the hint"));
        let profile = Profile::host(2);
        let mut cx = Context::new(&profile);
        let graph = lowered(graph, Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
        let plan = planned(graph, &mut cx).unwrap();
        assert_eq!((plan.kernel_count(), plan.extern_count()), (2, 1));
        let verdict = &plan.decisions[0].verdict;
        assert_eq!(verdict.to_string(), "cut: aten::sin runs through libtorch: kept by a hint");
        assert_eq!(verdict.remedy().as_deref(), Some("without the hint"));
    }
}
