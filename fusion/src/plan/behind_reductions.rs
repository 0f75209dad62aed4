//! What is computed of reductions as the prologue of a block program: a norm in front of a product.
//!
//! ```text
//! 0: kernel: %1 = moments %0, %2 = (%0 - %1) * ...; stores %2        0: kernel: %1; stores %1
//! 1: contraction kernel: %3 = linear(%2); stores %3            ->    1: contraction kernel: %2, %3; stores %3
//! ```
//!
//! No block program reduces where it loads. Reductions stay a kernel, which stores a few numbers for each row, and each load computes what
//! was behind them: there are as many loads of an element as blocks of columns, but the elements are neither stored nor read again.

use rustc_hash::FxHashSet;

use super::built_block::BuiltBlock;
use super::groups::{Built, Groups, Rules, Unit, UnitKernel};
use super::reasons::Verdict;
use crate::graph::{NodeId, Op, ValueRef};
use crate::kernel::{BlockRefusal, Refusal, Space};

/// The kernels of a unit that is divided behind its reductions.
pub(super) struct Divided {
    /// Its reductions, what they are of, and what something else needs.
    reductions: (Vec<NodeId>, Built),
    /// The block program, with the rest in its loads.
    block: (Vec<NodeId>, BuiltBlock),
}

impl Groups {
    /// Moves what unit `a` computes of its reductions into the loads of the block program of unit `b`, if that is legal and pays.
    pub(super) fn merge_behind_reductions(
        &mut self,
        (a, b): (usize, usize),
        divided: Result<Divided, Refusal>,
        (separate_us, demanded): (f64, bool),
        rules: Rules<'_>,
    ) -> Verdict {
        let Divided { reductions, block: merged } = match divided {
            Ok(divided) => divided,
            Err(refusal) => return Verdict::Illegal(refusal),
        };
        let merged_us = reductions.1.cost.us + merged.1.cost.us;
        let is_slower = merged_us > separate_us;
        if is_slower && !demanded {
            return Verdict::SlowerPrologue { separate_us, merged_us };
        }
        if !rules.rewrites.allow("prologue") {
            return Verdict::Limit;
        }
        for &node in &merged.0 {
            self.unit_of.insert(node, b);
        }
        let units = [
            (a, reductions.0, UnitKernel::Generated(Box::new(reductions.1))),
            (b, merged.0, UnitKernel::Block(Box::new(merged.1))),
        ];
        self.merges += 1;
        for (unit, nodes, kernel) in units {
            self.units[unit] = Some(Unit { nodes, kernel: Some(kernel), version: self.merges });
        }
        // These were in one kernel.
        for at in 0..self.decisions.len() {
            let ends = [self.decisions[at].producer, self.decisions[at].consumer];
            if self.decisions[at].verdict.is_fused()
                && ends.map(|end| self.unit_of.get(&end)) == [Some(&a), Some(&b)]
            {
                self.decisions[at].verdict = Verdict::Illegal(BlockRefusal::PrologueReduction.into());
            }
        }
        match is_slower {
            false => Verdict::Prologue,
            true => Verdict::Together { fused: Box::new(Verdict::Prologue), separate_us, merged_us },
        }
    }

    /// The kernels of units `a` and `b` with what is behind the reductions of `a` in the loads of `b`, or why there are none.
    pub(super) fn divided(
        &self,
        (a, b): (usize, usize),
        (norm, block): (&Built, &BuiltBlock),
        rules: Rules<'_>,
    ) -> Result<Divided, Refusal> {
        let nodes = |unit: usize| self.units[unit].iter().flat_map(|unit| &unit.nodes).copied();
        let left = self.left_with_reductions(norm, [a, b]);
        let (mut first, mut second): (Vec<NodeId>, Vec<NodeId>) =
            nodes(a).partition(|node| left.contains(node));
        if second.is_empty() {
            // Others read what the reductions are of, or what is behind them, as well.
            let rows = rows_of(&norm.group.space);
            let of_elements = |&operand: &ValueRef| {
                let base = self.place(operand).map_or(operand, |place| place.base());
                left.contains(&base.node) && self.graph.ty(base).numel() > rows
            };
            let stored = self.operands_of(&block.calls).iter().any(of_elements);
            let refusal = if stored { BlockRefusal::PrologueStored } else { BlockRefusal::PrologueReduction };
            return Err(refusal.into());
        }
        second.extend(nodes(b));
        for nodes in [&mut first, &mut second] {
            nodes.sort_unstable_by_key(|node| self.rank[node]);
        }
        let merged = self.build_around(block, &second, rules)?;
        let reductions = self.build(&first, norm.group.space.clone(), rules)?;
        Ok(Divided { reductions: (first, reductions), block: (second, merged) })
    }

    /// The nodes of unit `a` that stay with its reductions: these, numbers of rows, what something but `b` reads, and what all of these are
    /// computed of.
    fn left_with_reductions(&self, norm: &Built, [a, b]: [usize; 2]) -> FxHashSet<NodeId> {
        let rows = rows_of(&norm.group.space);
        let units = [a, b].into_iter().filter_map(|unit| self.units[unit].as_ref());
        let both: FxHashSet<NodeId> = units.flat_map(|unit| &unit.nodes).copied().collect();
        let inside = &norm.group.nodes;
        let stays = |&node: &NodeId| {
            matches!(self.graph.node(node).op, Op::Reduce { .. })
                || self.graph.ty(node.into()).numel() <= rows
                || self.graph.results(node).any(|value| self.is_stored(value, &both))
        };
        let mut stack: Vec<NodeId> = inside.iter().copied().filter(stays).collect();
        let mut seen = FxHashSet::default();
        while let Some(node) = stack.pop() {
            if seen.insert(node) {
                let operands = self.graph.operands(node).into_iter().map(|operand| operand.node);
                stack
                    .extend(operands.filter(|node| inside.contains(node) || self.transparent.contains(node)));
            }
        }
        seen
    }
}

/// Elements of the results of reductions over a space.
fn rows_of(space: &Space) -> i64 {
    let sizes = space.shape.iter().zip(&space.reduced);
    sizes.filter(|(_, reduced)| !**reduced).map(|(size, _)| size).product()
}

#[cfg(test)]
mod tests {
    use crate::machine::Profile;
    use crate::pipeline::{self, Context, Stage};
    use crate::plan::StepKind;
    use crate::{Products, parse_graph};

    const RMS: &str = "%3 = aten::rms_norm(input=%0, normalized_shape=[768], weight=%1, eps=1e-05)";
    const LAYER: &str = "%3 = aten::layer_norm(input=%0, normalized_shape=[768], weight=%1, bias=%1, eps=1e-05, cudnn_enable=true)";

    /// The kernels, and why edges are cut, of a norm of 512 rows and a linear to so many columns.
    fn planned(columns: i64, norm: &str, profile: &Profile) -> String {
        let [dtype, device] = if profile.machine.is_gpu() { ["bf16", "@cuda:0"] } else { ["f32", ""] };
        planned_of(
            &format!(
                "graph {{
                   %0 = input 0 : {dtype}[512,768]{device}
                   %1 = param 0 : {dtype}[768]{device}
                   %2 = param 1 : {dtype}[{columns},768]{device}
                   {norm} : {dtype}[512,768]{device}
                   %4 = aten::linear(input=%3, weight=%2) : {dtype}[512,{columns}]{device}
                   outputs %4
                 }}"
            ),
            profile,
        )
    }

    fn planned_of(text: &str, profile: &Profile) -> String {
        let mut cx = Context::new(profile);
        cx.selection.products = Products::Generated;
        let graph = parse_graph(text).unwrap();
        let graph = pipeline::lowered(graph, Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
        let plan = pipeline::planned(graph, &mut cx).unwrap();
        let kernels = plan.steps.iter().map(|step| match &step.kind {
            StepKind::Kernel(kernel) => {
                let values = |written: bool| {
                    let of = kernel.buffers.iter().filter(|buffer| buffer.1 == written);
                    of.map(|&(value, _)| format!("{:?}", plan.graph.ty(value).shape))
                        .collect::<Vec<_>>()
                        .join(" ")
                };
                format!("{}: {} -> {}\n", kernel.kind, values(false), values(true))
            }
            StepKind::Extern(_) => String::from("libtorch\n"),
        });
        let cuts = plan.decisions.iter().map(|decision| decision.verdict.to_string());
        let verdicts = cuts.filter(|text| text != "fused").map(|text| format!("  {text}\n"));
        kernels.chain(verdicts).collect()
    }

    #[test]
    fn a_norm_is_a_prologue_of_few_columns() {
        let host = Profile::host(2);
        expect_test::expect![[r#"
            row-reduction: [512, 768] -> [512, 1]
            pack: [64, 768] -> [1, 1, 12, 4096]
            contraction: [1, 1, 12, 4096] [512, 768] [512, 1] [768] -> [512, 64]
              cut: a reduction is no prologue of a block program
              fused as a prologue
              cut: both are products, convolutions, attention or operators with kernels of their own, of which a kernel computes one
        "#]].assert_eq(&planned(64, RMS, &host));
        expect_test::expect![[r#"
            pack: [64, 768] -> [1, 1, 12, 4096]
            row-reduction: [512, 768] -> [512] [512, 1] [512, 1]
            contraction: [1, 1, 12, 4096] [512, 768] [512] [512, 1] [512, 1] [768] -> [512, 64]
              cut: a reduction is no prologue of a block program
              cut: a reduction is no prologue of a block program
              cut: a reduction is no prologue of a block program
              fused as a prologue
              cut: both are products, convolutions, attention or operators with kernels of their own, of which a kernel computes one
        "#]].assert_eq(&planned(64, LAYER, &host));
    }

    #[test]
    fn many_blocks_of_columns_read_what_is_normalised_once() {
        expect_test::expect![[r#"
            row-reduction: [512, 768] [768] -> [512, 768]
            pack: [3072, 768] -> [1, 48, 12, 4096]
            contraction: [512, 768] [1, 48, 12, 4096] -> [512, 3072]
              cut: both are products, convolutions, attention or operators with kernels of their own, of which a kernel computes one
              cut: predicted 1118.2 us with the reductions in one kernel and a prologue behind them in the other, 806.9 us without the prologue
        "#]].assert_eq(&planned(3072, RMS, &Profile::host(2)));
    }

    #[test]
    fn a_product_on_a_gpu_has_no_prologue() {
        let gpu = Profile::gpu(132, 4200.0).with_clusters().with_warpgroups();
        expect_test::expect![[r#"
            row-reduction: [512, 768] [768] -> [512, 768]
            contraction: [512, 768] [16384, 768] -> [512, 16384]
              cut: the block program copies the operand from memory to shared memory, and a prologue leaves nothing in memory
        "#]].assert_eq(&planned(16384, LAYER, &gpu));
    }

    #[test]
    fn what_others_read_is_stored() {
        let text = format!(
            "graph {{
               %0 = input 0 : f32[512,768]
               %1 = param 0 : f32[768]
               %2 = param 1 : f32[64,768]
               {RMS} : f32[512,768]
               %4 = aten::linear(input=%3, weight=%2) : f32[512,64]
               outputs %3, %4
             }}"
        );
        expect_test::expect![[r#"
            row-reduction: [512, 768] [768] -> [512, 768]
            pack: [64, 768] -> [1, 1, 12, 4096]
            contraction: [512, 768] [1, 1, 12, 4096] -> [512, 64]
              cut: the prologue's value is needed in memory as well
              cut: both are products, convolutions, attention or operators with kernels of their own, of which a kernel computes one
        "#]].assert_eq(&planned_of(&text, &Profile::host(2)));
    }
}
