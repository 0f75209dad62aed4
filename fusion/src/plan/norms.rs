//! What a norm in front of a product would take in the product's loads.
//!
//! ```text
//! %1 = layer_norm(%0) : bf16[8192,768]                a kernel for the norm, and one for the product:     9.5 + 47.1 us
//! %2 = linear(%1) : bf16[8192,3072]                   each block of 256 columns normalises its rows:             61.7 us
//! ```
//!
//! Statistics of rows count for nothing: what is before the norm might leave them. Each load of a row's elements computes what the norm makes
//! of these then, and there are as many loads of an element as blocks of columns. On a GPU it is the least that it would take, for
//! operands in registers are not copied ahead by the accelerator.

use rustc_hash::FxHashSet;

use super::built_block::BuiltBlock;
use super::groups::{Built, Groups};
use super::reasons::Verdict;
use crate::epilogue::uses;
use crate::graph::NodeId;
use crate::kernel::{KExpr, KNode, Kernel};
use crate::machine::Profile;

impl Groups {
    /// Why a norm is no prologue of a product, where that is for its price.
    pub(super) fn norm_in_loads(
        &self,
        norm: &Built,
        product: &BuiltBlock,
        profile: &Profile,
    ) -> Option<Verdict> {
        let made = |node: NodeId| norm.group.nodes.contains(&node);
        let instances: u64 = product.grid().iter().map(|&n| u64::from(n)).product();
        let read =
            product.buffers.iter().zip(uses(&product.program)).filter(|((value, _), _)| made(value.node));
        let loads: u64 = read.map(|(_, uses)| uses.loaded.saturating_mul(instances)).sum();
        let computing = loads.saturating_mul(of_element(&norm.kernel)) as f64 / profile.ops_per_ns / 1000.0;
        let leaves = |value| {
            self.graph.outputs.contains(&value)
                || self.graph.updates.iter().any(|update| update.value == value)
        };
        let others =
            |value| leaves(value) || self.readers(value).any(|reader| !product.calls.contains(&reader));
        let stored =
            norm.kernel.buffers.iter().filter(|buffer| buffer.written).any(|buffer| others(buffer.value));
        // What others read is computed as before.
        let kept = if stored { norm.cost.us } else { 0.0 };
        let (separate_us, merged_us) = (norm.cost.us + product.cost.us, product.cost.us + computing + kept);
        (merged_us > separate_us).then_some(Verdict::Norm { separate_us, merged_us })
    }
}

/// Operations of what a kernel stores for each element, behind its reductions.
fn of_element(kernel: &Kernel) -> u64 {
    let reduced =
        (0..kernel.reduced.len()).filter(|&v| kernel.reduced[v]).fold(0, |set, v| set | 1u64 << v.min(63));
    let mut open: Vec<KExpr> = kernel.stores.iter().map(|store| store.value).collect();
    let (mut seen, mut operations) = (FxHashSet::default(), 0);
    while let Some(expr) = open.pop() {
        if kernel.info(expr).vars & reduced == 0 || !seen.insert(expr) {
            continue;
        }
        match kernel.node(expr) {
            KNode::Map(function, args) => {
                operations += u64::from(function.cost());
                open.extend(args.iter().copied());
            }
            KNode::Cast(inner, _) => {
                operations += 1;
                open.push(*inner);
            }
            _ => {}
        }
    }
    operations
}

#[cfg(test)]
mod tests {
    use crate::machine::Profile;
    use crate::pipeline::{self, Context, Stage};
    use crate::{Products, parse_graph};

    /// What becomes of the edge from a norm of so many rows to a linear.
    fn verdict(rows: i64, profile: &Profile) -> String {
        let text = format!(
            "graph {{
               %0 = input 0 : bf16[{rows},768]@cuda:0
               %1 = param 0 : bf16[768]@cuda:0
               %2 = param 1 : bf16[3072,768]@cuda:0
               %3 = param 2 : bf16[3072]@cuda:0
               %4 = aten::layer_norm(input=%0, normalized_shape=[768], weight=%1, bias=%1, eps=1e-05, cudnn_enable=true) : bf16[{rows},768]@cuda:0
               %5 = aten::linear(input=%4, weight=%2, bias=%3) : bf16[{rows},3072]@cuda:0
               %6 = aten::relu(self=%5) : bf16[{rows},3072]@cuda:0
               outputs %6
             }}"
        );
        let mut cx = Context::new(profile);
        cx.selection.products = Products::Generated;
        let graph = parse_graph(&text).unwrap();
        let graph = pipeline::lowered(graph, Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
        let plan = pipeline::planned(graph, &mut cx).unwrap();
        let cut = plan.decisions.iter().map(|decision| decision.verdict.to_string());
        cut.filter(|text| text.starts_with("cut")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn many_rows_are_normalised_once() {
        let gpu = Profile::gpu(132, 4200.0).with_clusters().with_warpgroups();
        let found = [8192, 512, 64].map(|rows| verdict(rows, &gpu)).join("\n");
        expect_test::expect![[r#"
            cut: predicted 150.5 us with rows normalised in the loads of the product, for which no kernel is generated, 120.4 us in two kernels
            cut: a reduction is no prologue of a block program
            cut: a reduction is no prologue of a block program"#]]
        .assert_eq(&found);
    }
}
