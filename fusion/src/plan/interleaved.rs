//! Reductions of groups of channels in channels-last, as a group norm's statistics are, in two steps: what is next to each other in memory
//! belongs to other groups after a few channels.
//!
//! ```text
//! %1 = view permute[0,3,1,2] %0 : f32[8,128,64,64]          with %0 : f32[8,64,64,128]
//! %2 = view reshape %1 : f32[8,32,4,4096]
//! %3 = reduce sum %2 [2,3] : f32[8,32]
//! ```
//! becomes
//! ```text
//! %1 = view reshape %0 : f32[8,32,128,128]
//! %2 = reduce sum %1 [2] : f32[8,32,128]                    128 positions of each channel
//! %3 = view reshape %2 : f32[8,32,32,4]
//! %4 = reduce sum %3 [1,3] : f32[8,32]
//! ```
//! What is computed of the statistics for each element is a kernel of its own then, as the first step is, which both read whole lines.

use smallvec::smallvec;

use super::split::{Steps, in_steps};
use crate::combiner::Members;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::machine::Profile;
use crate::rewrite::channels_last::ResultLayout;
use crate::rewrite::simplify::known;
use crate::types::Dims;

/// Bytes of a group's channels from which on one kernel for all reads memory at its speed. Measured on an H200 with what is read before
/// and stored behind: 45 us for groups of 8 bytes in 8 x 128 x 64 x 64, where 25 MB take 8, and 22 us for 16 in 8 x 256 x 32 x 32.
const MAX_RUN: i64 = 64;

/// The least elements: below, two more launches take longer.
const MIN_ELEMENTS: i64 = 1 << 20;

/// Elements of an instance of the first step, which its block holds.
const INSTANCE: i64 = 16384;

/// Splits a reduction of groups of channels, if it is one of short runs in memory.
pub(super) fn split(graph: &mut Graph, id: NodeId, dims: &[u8], profile: &Profile) -> Option<()> {
    let elements = graph.ty(*graph.operands(id).first()?).numel();
    if profile.machine.is_gpu() && elements >= MIN_ELEMENTS {
        by_channels(graph, id, dims, profile)
    } else {
        None
    }
}

fn by_channels(graph: &mut Graph, id: NodeId, dims: &[u8], profile: &Profile) -> Option<()> {
    let operands = graph.operands(id);
    let &[images, groups, each, positions] = &graph.ty(*operands.first()?).shape[..] else { return None };
    if dims != [2, 3] {
        return None;
    }
    let sources = operands.iter().map(|&operand| match known(graph, operand) {
        Some(_) => Some(operand),
        None => in_memory(graph, operand, (images, groups * each)),
    });
    let sources = sources.collect::<Option<Members<ValueRef>>>()?;
    let run = sources.iter().zip(&operands).filter(|(source, operand)| source != operand);
    let run = run.map(|(&source, _)| each * element_bytes(graph, source)).max()?;
    if run >= MAX_RUN {
        return None;
    }
    let channels = groups * each;
    let all = images * positions * channels;
    let most = (all / profile.workers.max(1) as i64).clamp(1024, INSTANCE);
    let parts =
        (2..=positions).find(|parts| positions % parts == 0 && positions / parts * channels <= most)?;
    let shape = [images, parts, positions / parts, channels];
    let steps = Steps {
        shape: &shape,
        inner: smallvec![2],
        parts: Dims::from_slice(&[images, parts, groups, each]),
        outer: smallvec![1, 3],
    };
    in_steps(graph, id, &sources, steps)
}

/// The value in channels-last of which another one is the groups of so many images of so many channels in all.
fn in_memory(graph: &Graph, value: ValueRef, (count, channels): (i64, i64)) -> Option<ValueRef> {
    let operand = |value: ValueRef| graph.operands(value.node).first().copied();
    let Op::View(View::Reshape) = &graph.node(value.node).op else { return None };
    let images = operand(value)?;
    let Op::View(View::Permute(order)) = &graph.node(images.node).op else { return None };
    let layout = ResultLayout::channels_last(&graph.ty(images).shape, true)?;
    let memory = operand(images).filter(|_| *order == layout.permutation)?;
    let shape = &graph.ty(memory).shape;
    let whole = shape.first() == Some(&count) && shape.last() == Some(&channels);
    (whole && graph.ty(memory).is_contiguous()).then_some(memory)
}

/// Bytes of an element of a value in memory: of what it was widened from, if it was.
fn element_bytes(graph: &Graph, value: ValueRef) -> i64 {
    let operand = graph.operands(value.node).first().copied();
    let widened = operand.filter(|_| graph.node(value.node).op == Op::Cast);
    let elem = graph.ty(widened.unwrap_or(value)).dtype.elem();
    elem.map_or(8, |elem| i64::from(elem.bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use expect_test::expect;

    use super::by_channels;
    use crate::graph::{Graph, Op};
    use crate::machine::Profile;
    use crate::pipeline::{self, Context, Stage};
    use crate::plan::StepKind;
    use crate::plan::tests::check;
    use crate::{Products, parse_graph};

    fn gpu() -> Profile {
        Profile::gpu(132, 4200.0).with_clusters().with_warpgroups()
    }

    /// Statistics of groups of images that lie in channels-last, as `(value - mean)^2` by group, with the reduction split.
    fn split([images, channels, height, width]: [i64; 4], groups: i64) -> Graph {
        let (each, positions) = (channels / groups, height * width);
        let grouped = format!("f32[{images},{groups},{each},{positions}]");
        let rows = format!("f32[{images},{groups}]");
        let text = format!(
            "graph {{
               %0 = input 0 : f32[{images},{height},{width},{channels}]
               %1 = view permute[0,3,1,2](%0) : f32[{images},{channels},{height},{width}]
               %2 = view reshape(%1) : {grouped}
               %3 = scalar 1.0 : f32[]
               %4 = view reshape(%3) : f32[1,1,1,1]
               %5 = view expand(%4) : {grouped}
               %6 = scalar 0.0 : f32[]
               %7 = view reshape(%6) : f32[1,1,1,1]
               %8 = view expand(%7) : {grouped}
               %9, %10, %11 = reduce moments[2,3](%5, %2, %8) : {rows}, {rows}, {rows}
               %12 = view reshape(%10) : f32[{images},{groups},1,1]
               %13 = view expand(%12) : {grouped}
               %14 = map sub(%2, %13) : {grouped}
               outputs %14, %11
             }}"
        );
        let mut graph = parse_graph(&text).unwrap();
        let reduction = graph.ids().find(|&id| matches!(graph.node(id).op, Op::Reduce { .. })).unwrap();
        by_channels(&mut graph, reduction, &[2, 3], &gpu()).unwrap();
        crate::verify(&graph).unwrap();
        graph
    }

    #[test]
    fn statistics_of_groups_are_those_of_channels_first() {
        for shape in [[2, 12, 7, 5], [1, 36, 6, 6], [3, 8, 16, 12]] {
            let plan = pipeline::plan(&split(shape, 4), &gpu()).unwrap();
            assert_eq!(plan.kernel_count(), 3, "{plan}");
            check(&plan);
        }
    }

    /// Groups through which images are one, or are several, are not channels of an image.
    #[test]
    fn groups_of_other_images_are_not_split() {
        for [images, groups, each, positions] in [[1, 8, 3, 70], [4, 2, 12, 35]] {
            let grouped = format!("f32[{images},{groups},{each},{positions}]");
            let text = format!(
                "graph {{
                   %0 = input 0 : f32[2,7,5,{0}]
                   %1 = view permute[0,3,1,2](%0) : f32[2,{0},7,5]
                   %2 = view reshape(%1) : {grouped}
                   %3 = reduce sum[2,3](%2) : f32[{images},{groups}]
                   outputs %3
                 }}",
                images * groups * each * positions / 70
            );
            let mut graph = parse_graph(&text).unwrap();
            let reduction = graph.ids().find(|&id| matches!(graph.node(id).op, Op::Reduce { .. })).unwrap();
            assert!(by_channels(&mut graph, reduction, &[2, 3], &gpu()).is_none(), "{text}");
        }
    }

    /// A convolution of images before the norm, and one behind it.
    #[test]
    fn a_norm_reads_and_stores_whole_lines() {
        let conv = |of: u32| {
            format!(
                "aten::conv2d(input=%{of}, weight=%1, bias=None, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) : bf16[8,128,64,64]@cuda:0"
            )
        };
        let text = format!(
            "graph {{
               %0 = input 0 : bf16[8,128,64,64]@cuda:0
               %1 = param 0 : bf16[128,128,3,3]@cuda:0
               %2 = input 1 : bf16[8,128,1,1]@cuda:0
               %3 = {}
               %4 = aten::add.Tensor(self=%3, other=%2, alpha=1) : bf16[8,128,64,64]@cuda:0
               %5 = aten::group_norm(input=%4, num_groups=32, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : bf16[8,128,64,64]@cuda:0
               %6 = aten::silu(self=%5) : bf16[8,128,64,64]@cuda:0
               %7 = {}
               %8 = aten::mean.dim(self=%7, dim=[2,3], keepdim=false, dtype=None) : bf16[8,128]@cuda:0
               outputs %8
             }}",
            conv(0),
            conv(6)
        );
        let mut cx = Context::new(&gpu());
        cx.selection.products = Products::Library;
        let graph =
            pipeline::lowered(parse_graph(&text).unwrap(), Stage::Primitive..=Stage::Kernels, &mut cx)
                .unwrap();
        let plan = pipeline::planned(graph, &mut cx).unwrap();
        let shapes = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Kernel(kernel) => Some(format!("{} {:?}\n", kernel.tiling.as_ref()?, kernel.grid)),
            StepKind::Extern(_) => Some("libtorch\n".to_owned()),
        });
        expect![[r#"
            libtorch
            64 x 128, warps 4 [512, 1, 1]
            64 x 4, warps 1 [256, 1, 1]
            8 x 128, warps 4 [4096, 1, 1]
            libtorch
            256 x 64 in loops, warps 8 [16, 1, 1]
        "#]]
        .assert_eq(&shapes.collect::<String>());
    }
}
