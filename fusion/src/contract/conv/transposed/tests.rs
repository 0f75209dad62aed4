//! Transposed convolutions over filters as they lie in the interpreter, compared with sums in `f64`.

use tilefuse_block::Elem;
use tilefuse_block::interp::{self, Arg};

use super::block::PhaseBlock;
use super::operands::PhaseOperands;
use super::program;
use crate::contract::Products;
use crate::contract::conv::geometry::Conv;
use crate::contract::conv::packed_tests::{Order, image, places};
use crate::contract::conv::tests::{conv, data, numbers};
use crate::contract::conv::transposed_tests::{axis, close, expected};
use crate::contract::tests::{memory, packed, run_packed};
use crate::contract::window_axis::WindowAxis;
use crate::graph::Op;
use crate::plan::Plan;

/// Where images and filters lie; filters row-major, or with their taps outermost and gaps.
fn operands(conv: &Conv, order: Order, spread: bool, last: bool) -> PhaseOperands {
    let mut taps = vec![0; conv.axes.len()];
    let of = conv.filters_of_group() as i64;
    let mut pitch = if spread { of * conv.channels as i64 + 2 } else { 1 };
    for (stride, axis) in taps.iter_mut().zip(&conv.axes).rev() {
        *stride = pitch;
        pitch *= axis.kernel as i64;
    }
    let (channel, filter) = if spread { (1, conv.channels as i64) } else { (of * pitch, pitch) };
    let offset = if spread { 5 } else { 0 };
    let span = if spread { offset + pitch } else { conv.lengths()[1] as i64 };
    PhaseOperands { image: image(conv, order), channel, filter, taps, offset, span, last }
}

/// Filters where they lie.
fn spread(conv: &Conv, operands: &PhaseOperands, w: &[f64]) -> Vec<f64> {
    let mut memory = vec![f64::NAN; operands.span as usize];
    for (number, &w) in (0u64..).zip(w) {
        let (mut tap, rest) = (number % conv.taps(), number / conv.taps());
        let (filter, channel) = (rest % conv.filters_of_group(), rest / conv.filters_of_group());
        let mut at = operands.offset + channel as i64 * operands.channel + filter as i64 * operands.filter;
        for (axis, stride) in conv.axes.iter().zip(&operands.taps).rev() {
            at += (tap % axis.kernel) as i64 * stride;
            tap /= axis.kernel;
        }
        memory[at as usize] = w;
    }
    memory
}

/// The result, row-major.
fn computed(conv: &Conv, operands: &PhaseOperands, tile: &PhaseBlock, [x, w, bias]: [&[f64]; 3]) -> Vec<f64> {
    operands.check(conv, tile).unwrap();
    let made = program(conv, operands, tile).unwrap();
    tilefuse_block::verify(&made.program).unwrap();
    let mut images = vec![f64::NAN; operands.image.span as usize];
    for (&at, &v) in places(conv, &operands.image).iter().zip(x) {
        images[at] = v;
    }
    let nothing = vec![f64::NAN; conv.lengths()[3] as usize];
    let mut args: Vec<Arg> =
        [images, spread(conv, operands, w)].iter().map(|v| Arg::buffer(data(conv.elem, v))).collect();
    args.extend(conv.bias.then(|| Arg::buffer(data(conv.elem, bias))));
    args.push(Arg::buffer(data(conv.elem, &nothing)));
    interp::run(&made.program, &mut args, [made.instances, 1, 1]).unwrap_or_else(|e| panic!("{e}: {conv:?}"));
    let found: Vec<f64> =
        args.last().unwrap().data().unwrap().literals().iter().map(|l| l.as_f64()).collect();
    let (filters, pixels) = (conv.filters as usize, conv.pixels() as usize);
    let at = |i: usize| match operands.last {
        true => (i / (filters * pixels) * pixels + i % pixels) * filters + i / pixels % filters,
        false => i,
    };
    (0..found.len()).map(|i| found[at(i)]).collect()
}

/// Compares a convolution in its tile and the other way of computing phases, or in a tile that is given.
fn compare(conv: &Conv, tile: Option<PhaseBlock>) {
    conv.check().unwrap();
    let lengths = conv.lengths();
    let (x, w) = (numbers(conv.elem, lengths[0], 1), numbers(conv.elem, lengths[1], 2));
    let bias = numbers(conv.elem, lengths[2], 3);
    let wanted = expected(conv, &x, &w, &bias);
    let most = match conv.elem {
        Elem::F64 => 1e-12,
        Elem::F32 => 1e-4,
        Elem::F16 => 2e-3,
        _ => 1e-2,
    };
    let chosen = PhaseBlock::of(conv, 2);
    let looped = PhaseBlock { unrolled: false, spots: 1, ..chosen };
    let whole = [(Order::RowMajor, false, false), (Order::Gaps, true, true)];
    let parts = [(Order::RowMajor, true, false), (Order::Last, false, true)];
    for (tile, lies) in tile.map_or(vec![(chosen, whole), (looped, parts)], |tile| vec![(tile, whole)]) {
        for (order, spread, last) in lies {
            let operands = operands(conv, order, spread, last);
            let found = computed(conv, &operands, &tile, [&x, &w, &bias]);
            close(&found, &wanted, most, &format!("{conv:?} {tile:?} {operands:?}"));
        }
    }
}

/// Channels, filters and groups: a filter for each channel, several for one, several channels for a filter or several, and
/// one group.
const GROUPS: [[u64; 3]; 6] = [[3, 3, 3], [2, 10, 2], [12, 20, 4], [6, 2, 2], [3, 5, 1], [7, 7, 7]];

fn compare_all(axes: &[WindowAxis]) {
    for [channels, filters, groups] in GROUPS {
        compare(&Conv { groups, ..conv(channels, filters, axes) }, None);
    }
}

#[test]
fn kernels_strides_and_paddings() {
    for (image, kernel, attributes) in [
        (5, 2, [2, 0, 0, 1]),
        (4, 4, [2, 1, 0, 1]),
        (7, 3, [2, 1, 1, 1]),
        (9, 3, [1, 1, 0, 1]),
        (1, 1, [1, 0, 0, 1]),
        (1, 3, [2, 1, 0, 1]),
        (6, 5, [3, 2, 1, 1]),
        (6, 2, [3, 0, 2, 1]),
        (5, 1, [3, 0, 0, 1]),
        (3, 8, [4, 2, 0, 1]),
        (2, 9, [5, 1, 3, 1]),
        (1, 2, [4, 0, 1, 1]),
    ] {
        compare_all(&[axis(image, kernel, attributes); 2]);
    }
}

#[test]
fn rows_of_several_vectors() {
    for (image, kernel, attributes) in [(70, 4, [2, 1, 0, 1]), (35, 3, [1, 1, 0, 1]), (33, 5, [3, 1, 2, 1])] {
        for [channels, filters, groups] in [[4, 4, 4], [6, 9, 3]] {
            let axes = [axis(2, 3, [2, 1, 1, 1]), axis(image, kernel, attributes)];
            compare(&Conv { groups, ..conv(channels, filters, &axes) }, None);
        }
    }
}

#[test]
fn dilations_that_share_a_divisor_with_the_stride_or_do_not() {
    for attributes in [[2, 0, 0, 2], [2, 1, 1, 3], [3, 1, 2, 2], [4, 0, 3, 6], [6, 1, 1, 4], [1, 1, 1, 2]] {
        for kernel in [2, 3, 4] {
            for [channels, filters, groups] in [[3, 3, 3], [4, 6, 2]] {
                let axes = [axis(5, kernel, attributes); 2];
                compare(&Conv { groups, ..conv(channels, filters, &axes) }, None);
            }
        }
    }
}

#[test]
fn one_and_three_axes_and_different_ones() {
    compare_all(&[axis(37, 12, [2, 5, 0, 1])]);
    compare_all(&[axis(9, 4, [2, 0, 0, 2])]);
    compare_all(&[axis(7, 1, [1, 0, 0, 1]), axis(5, 3, [2, 1, 1, 1])]);
    compare_all(&[axis(5, 3, [3, 1, 0, 1]), axis(6, 2, [1, 0, 0, 1])]);
    compare_all(&[axis(2, 3, [2, 1, 1, 1]), axis(3, 2, [2, 0, 0, 1]), axis(4, 3, [1, 1, 0, 1])]);
}

#[test]
fn large_strides_and_kernels() {
    compare(&Conv { groups: 2, ..conv(2, 2, &[axis(3, 16, [8, 4, 0, 1]); 2]) }, None);
    compare(&Conv { groups: 2, bias: true, ..conv(4, 6, &[axis(2, 9, [7, 3, 2, 1]); 2]) }, None);
    compare(&Conv { groups: 3, ..conv(3, 3, &[axis(20, 64, [32, 16, 0, 1])]) }, None);
}

#[test]
fn batches_bias_and_kinds_of_floats() {
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::Bf16] {
        for [channels, filters, groups] in GROUPS {
            let conv = conv(channels, filters, &[axis(5, 3, [2, 1, 1, 1]); 2]);
            compare(&Conv { batch: 2, groups, bias: true, elem, ..conv }, None);
        }
    }
}

#[test]
fn every_tile() {
    for filters in [1, 2, 8] {
        for (cells, spots) in [(1, 1), (2, 2), (16, 1), (32, 1)] {
            for unrolled in [true, false] {
                let tile = PhaseBlock { filters, cells, spots: if unrolled { spots } else { 1 }, unrolled };
                let conv = conv(4, 10, &[axis(5, 4, [2, 1, 1, 1]); 2]);
                compare(&Conv { groups: 2, bias: true, ..conv }, Some(tile));
            }
        }
    }
}

/// A pixel that no tap reaches is the bias, and what is not finite reaches no more pixels than by the definition.
#[test]
fn what_is_not_finite_reaches_its_neighbours_alone() {
    let conv = Conv { groups: 2, ..conv(2, 2, &[axis(9, 3, [2, 1, 1, 1]), axis(9, 2, [3, 0, 0, 1])]) };
    let lengths = conv.lengths();
    let mut x = vec![0.0; lengths[0] as usize];
    (x[0], x[40], x[80], x[100]) = (f64::INFINITY, f64::NAN, f64::NEG_INFINITY, f64::INFINITY);
    let mut w = vec![1.0; lengths[1] as usize];
    (w[0], w[7]) = (f64::INFINITY, f64::NAN);
    let wanted = expected(&conv, &x, &w, &[]);
    let chosen = PhaseBlock::of(&conv, 2);
    for tile in [chosen, PhaseBlock { unrolled: false, spots: 1, ..chosen }] {
        let found = computed(&conv, &operands(&conv, Order::RowMajor, false, false), &tile, [&x, &w, &[]]);
        close(&found, &wanted, 0.0, "infinities");
    }
}

#[test]
fn tiles_by_shape() {
    let of = |[channels, filters, groups]: [u64; 3], axes: &[WindowAxis]| {
        let conv = Conv { groups, ..conv(channels, filters, axes) };
        let PhaseBlock { filters, cells, spots, unrolled } = PhaseBlock::of(&conv, 2);
        let how = if unrolled { "unrolled" } else { "looped" };
        format!("{filters} filters at {cells} cells {how}, {spots} times")
    };
    let twice = |image| [axis(image, 4, [2, 1, 0, 1]); 2];
    assert_eq!(of([64; 3], &twice(64)), "1 filters at 64 cells unrolled, 32 times");
    assert_eq!(of([64; 3], &twice(8)), "1 filters at 8 cells unrolled, 8 times");
    assert_eq!(of([64; 3], &[axis(32, 8, [4, 2, 0, 1]); 2]), "1 filters at 16 cells unrolled, 32 times");
    assert_eq!(of([64; 3], &[axis(56, 3, [1, 1, 0, 1]); 2]), "1 filters at 64 cells unrolled, 32 times");
    assert_eq!(of([21; 3], &[axis(16, 64, [32, 16, 0, 1]); 2]), "1 filters at 16 cells looped, 1 times");
    assert_eq!(of([12, 20, 4], &twice(32)), "4 filters at 16 cells unrolled, 32 times");
    assert_eq!(of([40, 40, 4], &[axis(56, 3, [1, 1, 0, 1]); 2]), "4 filters at 32 cells unrolled, 32 times");
}

#[test]
fn what_has_no_program() {
    let conv = Conv { groups: 3, ..conv(3, 3, &[axis(5, 4, [2, 1, 0, 1]); 2]) };
    let tile = PhaseBlock::of(&conv, 2);
    let fine = operands(&conv, Order::RowMajor, false, false);
    assert_eq!(fine.check(&conv, &tile), Ok(()));
    let backwards = PhaseOperands { filter: -16, ..fine.clone() };
    assert_eq!(backwards.check(&conv, &tile), Err("its tensors lie backwards"));
    let looped = PhaseOperands { span: 1 << 31, ..fine };
    assert_eq!(looped.check(&conv, &tile), Err("its tensors have too many elements"));
    let axis = WindowAxis { stride: 1 << 16, out: 1 << 16, ..axis(1, 1, [2, 0, 0, 1]) };
    let far = Conv { groups: 3, axes: vec![axis], ..conv };
    assert_eq!(far.check().unwrap_err(), "its stride is too large");
}

/// A transposed convolution of four taps that doubles rows, an activation and a residual.
fn network([channels, filters, groups]: [u64; 3], images: &str, weights: &str) -> String {
    let of = filters / groups;
    format!(
        "graph {{
           {images}
           {weights}
           %2 = param 1 : f32[{filters}]
           %3 = input 1 : f32[2,{filters},3,10]
           %4 = aten::conv_transpose2d.input(input=%0, weight=%1, bias=%2, stride=[1, 2], padding=[1, 1], output_padding=[0, 0], groups={groups}, dilation=[1, 1]) : f32[2,{filters},3,10]
           %5 = aten::relu(self=%4) : f32[2,{filters},3,10]
           %6 = aten::add(self=%5, other=%3, alpha=1) : f32[2,{filters},3,10]
           outputs %6
         }}"
    )
    .replace("CHANNELS", &channels.to_string())
    .replace("OF", &of.to_string())
}

const IMAGES: &str = "%0 = input 0 : f32[2,CHANNELS,3,5]";
const WEIGHTS: &str = "%1 = input 2 : f32[CHANNELS,OF,3,4]";

/// The convolution of `network`.
fn computed_by_network([channels, filters, groups]: [u64; 3]) -> Conv {
    let axes = [axis(3, 3, [1, 1, 0, 1]), axis(5, 4, [2, 1, 0, 1])];
    Conv { batch: 2, groups, bias: true, ..conv(channels, filters, &axes) }
}

/// What an input or a parameter of a plan holds.
fn input(plan: &Plan, op: &Op) -> Vec<f64> {
    let id = plan.graph.ids().find(|&id| plan.graph.node(id).op == *op).unwrap();
    let (Op::Input(slot) | Op::Param(slot)) = *op else { panic!() };
    memory(slot, plan.graph.ty(id.into()))
}

/// Compares a plan of one kernel, without packed filters, with sums of these images and filters in `f64`.
fn compare_plan(text: &str, conv: &Conv, values: impl Fn(&Plan) -> [Vec<f64>; 2]) {
    let (plan, packed) = packed(text, 2, Products::Generated);
    assert_eq!((plan.kernel_count(), plan.extern_count(), packed.len()), (1, 0, 0), "{text}");
    let [x, w] = values(&plan);
    let mut wanted = expected(conv, &x, &w, &input(&plan, &Op::Param(1)));
    let rest = input(&plan, &Op::Input(1));
    wanted.iter_mut().zip(rest).for_each(|(v, rest)| *v = v.max(0.0) + rest);
    close(&run_packed(&plan, &packed)[0], &wanted, 1e-4, text);
}

/// The bias, an activation and a residual lie in the store of a kernel that reads filters as they lie, whether these are
/// weights or not.
#[test]
fn filters_that_fill_no_vectors_are_read_as_they_lie() {
    for sizes in GROUPS.into_iter().filter(|sizes| sizes[2] > 1) {
        let conv = computed_by_network(sizes);
        let text = network(sizes, IMAGES, WEIGHTS);
        let of = |filters: Op| move |plan: &Plan| [input(plan, &Op::Input(0)), input(plan, &filters)];
        compare_plan(&text, &conv, of(Op::Input(2)));
        let weights = text.replace("input 2", "param 0");
        compare_plan(&weights, &conv, of(Op::Param(0)));
        if sizes == [7; 3] {
            let one = text.replace("[2,", "[");
            compare_plan(&one, &Conv { batch: 1, ..conv }, of(Op::Input(2)));
        }
    }
    // Filters of one group are prepacked, or packed.
    let text = network([3, 5, 1], IMAGES, WEIGHTS);
    assert_eq!(packed(&text, 2, Products::Generated).0.kernel_count(), 2);
    assert_eq!(packed(&text.replace("input 2", "param 0"), 2, Products::Generated).1.len(), 1);
}

/// One filter for all channels, as a view whose channels lie in one place, and images whose channels are innermost.
#[test]
fn views_are_read_where_they_lie() {
    let weights = "%7 = input 2 : f32[1,1,3,4]
           %1 = aten::expand(self=%7, size=[7, 1, 3, 4], implicit=false) : f32[7,1,3,4]{0,12,4,1}";
    let text = network([7; 3], IMAGES, weights);
    let values = |plan: &Plan| [input(plan, &Op::Input(0)), input(plan, &Op::Input(2)).repeat(7)];
    compare_plan(&text, &computed_by_network([7; 3]), values);
    let sizes = [12, 20, 4];
    let images = "%7 = input 0 : f32[2,3,5,CHANNELS]
           %0 = aten::permute(self=%7, dims=[0, 3, 1, 2]) : f32[2,CHANNELS,3,5]{180,1,60,12}";
    let turned = |x: &[f64]| (0..360).map(|i| x[i / 180 * 180 + i % 15 * 12 + i / 15 % 12]).collect();
    let values = |plan: &Plan| [turned(&input(plan, &Op::Input(0))), input(plan, &Op::Input(2))];
    compare_plan(&network(sizes, images, WEIGHTS), &computed_by_network(sizes), values);
}

/// A result that eager has with the channels innermost lies so.
#[test]
fn results_lie_as_those_of_eager() {
    for sizes in [[7, 7, 7], [12, 20, 4]] {
        let conv = computed_by_network(sizes);
        let (filters, pixels) = (conv.filters, conv.pixels());
        let text = network(sizes, IMAGES, WEIGHTS);
        let (before, _) = text.split_once("%5").unwrap();
        let result = format!("f32[2,{filters},3,10]{{{},1,{},{filters}}}\n", filters * pixels, filters * 10);
        let before = before.trim_end().strip_suffix(&format!("f32[2,{filters},3,10]")).unwrap();
        let text = format!("{before}{result} outputs %4 }}");
        let (plan, packed) = packed(&text, 2, Products::Generated);
        assert_eq!((plan.kernel_count(), plan.extern_count()), (1, 0), "{text}");
        let [x, w, bias] = [Op::Input(0), Op::Input(2), Op::Param(1)].map(|op| input(&plan, &op));
        let wanted = expected(&conv, &x, &w, &bias);
        let found = run_packed(&plan, &packed).remove(0);
        let at = |i: u64| (i / (filters * pixels) * pixels + i % pixels) * filters + i / pixels % filters;
        let found: Vec<f64> = (0..found.len() as u64).map(|i| found[at(i) as usize]).collect();
        close(&found, &wanted, 1e-4, &text);
    }
}
