//! Filters that convolutions on a GPU read in channels-last, prepacked.
//!
//! ```text
//! %1 = view permute[0,1,2,3](%0) : bf16[F,C,3,3]{9C,1,3C,C}     of a parameter: a kernel copies it in each call
//! ->
//! %1 = const 4 : bf16[F,3,3,C]                                  what it would copy
//! %2 = view permute[0,3,1,2](%1) : bf16[F,C,3,3]{9C,1,3C,C}
//! ```
//!
//! Kernels of ours and libtorch's calls read the same filters, so that this comes after the choice between them.

use super::prepack::{Panels, Prepacked, unwritten_param};
use crate::graph::{Graph, NodeId, Op, View};
use crate::place::{operand_place, strides_in_base};
use crate::rewrite::channels_last::ResultLayout;
use crate::rewrite_limit::Rewrites;
use crate::types::{Device, TensorType};

/// Lets filters that lie in parameters and are stored in channels-last in each call lie in constants, numbered from `first` on behind
/// those that hold prepacked weights already.
pub(crate) fn prepack_filters(
    graph: &mut Graph,
    first: u32,
    packed: &mut Vec<Prepacked>,
    rewrites: &Rewrites,
) {
    let mut known: Vec<(Panels, NodeId)> = Vec::new();
    for node in graph.topological().unwrap_or_default() {
        let Some((panels, layout)) = copied(graph, node) else { continue };
        if !rewrites.allow("prepack-filters") {
            continue;
        }
        let ty = graph.ty(node.into()).clone();
        let found = known.iter().find(|(other, _)| *other == panels).map(|(_, constant)| *constant);
        let constant = found.unwrap_or_else(|| {
            let constant = first + packed.len() as u32;
            let ty = TensorType::contiguous(ty.dtype, &layout.shape, ty.device);
            let id = graph.add(Op::Const(constant), &[], [ty.clone()], None);
            packed.push(Prepacked { constant, ty, panels: panels.clone() });
            known.push((panels, id));
            id
        });
        let origin = graph.node(node).origin;
        let view = graph.add(Op::View(View::Permute(layout.permutation)), &[constant.into()], [ty], origin);
        graph.replace_uses(node.into(), view.into());
        graph.remove(node);
    }
}

/// The filters that a node copies from a parameter into channels-last, as panels of a column each, and the order of the copy.
fn copied(graph: &Graph, node: NodeId) -> Option<(Panels, ResultLayout)> {
    let Op::View(View::Permute(_)) = &graph.node(node).op else { return None };
    let leaves = graph.outputs.iter().any(|output| output.node == node)
        || graph.updates.iter().any(|update| update.value.node == node);
    let ty = graph.ty(node.into());
    if leaves || !matches!(ty.device, Device::Cuda(_)) || operand_place(graph, node.into()).base.node != node
    {
        return None;
    }
    let layout = ResultLayout::channels_last(&ty.shape, true)?;
    if !layout.is_order_of(&ty.strides, &ty.shape) {
        return None;
    }
    let (param, offset) = unwritten_param(graph, *graph.operands(node).first()?)?;
    let strides = strides_in_base(graph, node.into())?;
    let (&[filters, channels, ref taps @ ..], &[across, down, ref steps @ ..]) =
        (&ty.shape[..], &strides[..])
    else {
        return None;
    };
    let (mut count, mut runs) = (1, None);
    for (&size, &step) in taps.iter().zip(steps).rev().filter(|&(&size, _)| size != 1) {
        // Taps follow each other at one distance.
        if step != *runs.get_or_insert(step) * count {
            return None;
        }
        count *= size;
    }
    let rows = channels * count;
    let panels = Panels {
        param,
        rows,
        run: channels,
        columns: filters,
        block: filters,
        width: 1,
        group: 1,
        filled: rows,
        strides: [runs.unwrap_or(0), down, across, 0],
        offset,
    };
    Some((panels, layout))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run, run_packed};
    use super::super::warpgroup_tests::gpu;
    use super::*;
    use crate::pipeline::{Context, Stage, lowered, planned};
    use crate::plan::Plan;
    use crate::{Products, parse_graph};

    /// A graph of parameters and calls over images, one a line, of which the last one is the result.
    fn convolutions(params: &str, calls: &[&str]) -> String {
        let calls: String = calls.iter().map(|call| format!("{call}\n")).collect();
        let last = calls.lines().last().and_then(|line| line.split_whitespace().next()).unwrap();
        format!("graph {{\n%0 = input 0 : bf16[2,64,8,8]@cuda:0\n{params}\n{calls}outputs {last}\n}}")
    }

    fn conv(result: u32, images: u32, filters: u32) -> String {
        format!(
            "%{result} = aten::conv2d(input=%{images}, weight=%{filters}, bias=None, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) : bf16[2,64,8,8]@cuda:0"
        )
    }

    const MEAN: &str =
        "%9 = aten::mean.dim(self=%8, dim=[2,3], keepdim=false, dtype=None) : bf16[2,64]@cuda:0";

    /// A plan with weights prepacked, or without.
    fn plan_of(text: &str, products: Products, constants: Option<u32>) -> (Plan, Vec<Prepacked>) {
        let profile = gpu();
        let mut cx = Context::new(&profile);
        cx.selection.products = products;
        cx.selection.constants = constants;
        let graph = lowered(parse_graph(text).unwrap(), Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
        let plan = planned(graph, &mut cx).unwrap();
        (plan, cx.selection.packed)
    }

    #[test]
    fn filters_of_kernels_and_calls_are_prepacked() {
        let params = "%1 = param 0 : bf16[64,64,3,3]@cuda:0\n%2 = param 1 : bf16[64,64,3,3]@cuda:0";
        let text = convolutions(params, &[&conv(7, 0, 1), &conv(8, 7, 2), MEAN]);
        for products in [Products::Library, Products::Generated] {
            let (without, _) = plan_of(&text, products, None);
            let (plan, packed) = plan_of(&text, products, Some(3));
            assert_eq!(packed.iter().map(|p| p.constant).collect::<Vec<_>>(), [3, 4]);
            assert!(packed.iter().all(|p| p.ty.shape[..] == [64, 3, 3, 64]));
            let mut params: Vec<_> = packed.iter().map(|p| p.panels.param).collect();
            params.sort_unstable();
            assert_eq!(params, [0, 1]);
            // The images alone are brought into channels-last in the call.
            let copies = |plan: &Plan| {
                plan.programs.iter().map(|p| p.to_string().matches("store").count()).sum::<usize>()
            };
            assert!(copies(&plan) < copies(&without), "{plan}");
            assert_eq!(plan.extern_count(), without.extern_count());
        }
    }

    #[test]
    fn kernels_over_prepacked_filters_compute_the_same() {
        let params =
            "%1 = param 0 : bf16[64,64,3,3]@cuda:0\n%2 = param 1 : bf16[64,64,3,3]{576,1,192,64}@cuda:0";
        // The second filters lie in channels-last already, and the first ones are read twice.
        let text = convolutions(params, &[&conv(6, 0, 1), &conv(7, 6, 2), &conv(8, 7, 1), MEAN]);
        let (plan, packed) = plan_of(&text, Products::Generated, Some(0));
        assert_eq!(packed.iter().map(|p| p.panels.param).collect::<Vec<_>>(), [0]);
        assert_eq!(plan.extern_count(), 0, "{plan}");
        let (without, _) = plan_of(&text, Products::Generated, None);
        assert_eq!(run_packed(&plan, &packed), run(&without));
    }

    #[test]
    fn filters_that_are_written_or_given_are_not_prepacked() {
        let given = "%1 = input 1 : bf16[64,64,3,3]@cuda:0\n%2 = input 2 : bf16[64,64,3,3]@cuda:0";
        let text = convolutions(given, &[&conv(7, 0, 1), &conv(8, 7, 2), MEAN]);
        assert_eq!(plan_of(&text, Products::Library, Some(0)).1, []);
        let params = "%1 = param 0 : bf16[64,64,3,3]@cuda:0\n%2 = param 1 : bf16[64,64,3,3]@cuda:0\n%3 = aten::relu(self=%1) : bf16[64,64,3,3]@cuda:0";
        let text = convolutions(params, &[&conv(7, 0, 1), &conv(8, 7, 2), MEAN]);
        let text = text.replace("outputs %9", "outputs %9\nupdate %1 <- %3");
        let packed = plan_of(&text, Products::Library, Some(0)).1;
        assert_eq!(packed.iter().map(|p| p.panels.param).collect::<Vec<_>>(), [1]);
    }
}
