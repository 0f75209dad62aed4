//! Convolutions over packed filters in the interpreter, compared with sums in `f64`.

use tilefuse_block::Elem;
use tilefuse_block::interp::{self, Arg};

use super::geometry::{Conv, Image};
use super::packed::{check, flat, matrix, program};
use super::tests::{conv, data, expected, numbers, square};
use super::tile::Extents;
use super::transposed_tests::close;
use crate::contract::target::Vectors;
use crate::contract::tests::{memory, packed, run_packed};
use crate::contract::window_axis::WindowAxis;
use crate::contract::{Products, Times, choose_products};
use crate::graph::{NodeId, Op};
use crate::machine::Profile;
use crate::pipeline::{plan, primitive};

/// In which order an image lies, with elements between rows and channels that nobody reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    RowMajor,
    Last,
    Gaps,
}

pub(super) fn image(conv: &Conv, order: Order) -> Image {
    let mut axes = vec![0; conv.axes.len()];
    let gap = if order == Order::Gaps { 3 } else { 0 };
    let mut pitch = if order == Order::RowMajor { 1 } else { conv.channels as i64 + gap };
    for (stride, axis) in axes.iter_mut().zip(&conv.axes).rev() {
        *stride = pitch;
        pitch = pitch * axis.image as i64 + gap;
    }
    let (channel, batch) = match order {
        Order::RowMajor => (pitch, pitch * conv.channels as i64),
        _ => (1, pitch),
    };
    let offset = 2 * gap;
    Image { batch, channel, axes, offset, span: offset + batch * conv.batch as i64 }
}

/// Where each element of a row-major image lies.
pub(super) fn places(conv: &Conv, image: &Image) -> Vec<usize> {
    let mut out = Vec::new();
    for n in 0..conv.batch {
        for c in 0..conv.channels {
            for pixel in 0..conv.image() {
                let mut rest = pixel;
                let mut at = image.offset + n as i64 * image.batch + c as i64 * image.channel;
                for (axis, stride) in conv.axes.iter().zip(&image.axes).rev() {
                    at += (rest % axis.image) as i64 * stride;
                    rest /= axis.image;
                }
                out.push(at as usize);
            }
        }
    }
    out
}

fn panels(conv: &Conv, tile: &Extents, w: &[f64]) -> Vec<f64> {
    let [rows, columns] = matrix(conv).map(|n| n as usize);
    let width = tile.width() as usize;
    let mut out = vec![0.0; rows * columns.next_multiple_of(width)];
    for f in 0..columns {
        for row in 0..rows {
            let (tap, channel) = (row / conv.depth() as usize, row % conv.depth() as usize);
            let from = (f * conv.depth() as usize + channel) * conv.taps() as usize + tap;
            out[(f / width * rows + row) * width + f % width] = w[from];
        }
    }
    out
}

/// The result, row-major.
pub(super) fn computed(
    conv: &Conv,
    order: Order,
    tile: Option<Extents>,
    last: bool,
    [x, w, bias]: [&[f64]; 3],
) -> Vec<f64> {
    let place = image(conv, order);
    let mut memory = vec![f64::NAN; place.span as usize];
    for (&at, &v) in places(conv, &place).iter().zip(x) {
        memory[at] = v;
    }
    let (one, place) = flat(conv, &place);
    let tile = tile.unwrap_or_else(|| Extents::of(&one, WIDE));
    check(&one, &place, &tile).unwrap();
    let made = program(&one, &place, &tile, last).unwrap();
    tilefuse_block::verify(&made.program).unwrap();
    let nothing = vec![f64::NAN; conv.lengths()[3] as usize];
    let mut args: Vec<Arg> =
        [memory, panels(&one, &tile, w)].iter().map(|v| Arg::buffer(data(conv.elem, v))).collect();
    args.extend(conv.bias.then(|| Arg::buffer(data(conv.elem, bias))));
    args.push(Arg::buffer(data(conv.elem, &nothing)));
    interp::run(&made.program, &mut args, [made.instances, 1, 1]).unwrap_or_else(|e| panic!("{e}: {conv:?}"));
    let found: Vec<f64> =
        args.last().unwrap().data().unwrap().literals().iter().map(|l| l.as_f64()).collect();
    let (filters, pixels) = (conv.filters as usize, conv.pixels() as usize);
    let at = |i: usize| match last {
        true => (i / (filters * pixels) * pixels + i % pixels) * filters + i / pixels % filters,
        false => i,
    };
    (0..found.len()).map(|i| found[at(i)]).collect()
}

const WIDE: Vectors = Vectors { bits: 512, registers: 32 };

/// Compares a convolution in a tile, or in the tile that is chosen for it, in all orders.
fn compare(conv: &Conv, tile: Option<Extents>) {
    conv.check().unwrap();
    let lengths = conv.lengths();
    let (x, w) = (numbers(conv.elem, lengths[0], 1), numbers(conv.elem, lengths[1], 2));
    let bias = numbers(conv.elem, lengths[2], 3);
    let wanted = expected(conv, &x, &w, &bias);
    for order in [Order::RowMajor, Order::Last, Order::Gaps] {
        if conv.is_depthwise() && order == Order::RowMajor {
            continue;
        }
        for last in [true, false] {
            let found = computed(conv, order, tile, last, [&x, &w, &bias]);
            let most = if conv.elem == tilefuse_block::Elem::F64 { 1e-12 } else { 1e-4 };
            for (at, (a, b)) in found.iter().zip(&wanted).enumerate() {
                let close = (a - b).abs() <= most * b.abs().max(1.0);
                assert!(close, "element {at}: {a} for {b} in {conv:?} {tile:?} {order:?} {last}");
            }
        }
    }
}

#[test]
fn kernels_strides_and_paddings() {
    for (image, kernel, stride, padding) in [
        (1, 1, 1, 0),
        (1, 1, 1, 3),
        (5, 3, 1, 1),
        (2, 3, 1, 1),
        (7, 3, 2, 1),
        (9, 5, 2, 3),
        (7, 7, 2, 3),
        (8, 1, 2, 0),
        (11, 3, 3, 0),
        (31, 3, 1, 1),
        (33, 3, 2, 1),
        (35, 3, 1, 1),
    ] {
        for (channels, filters) in [(3, 5), (5, 1), (6, 40)] {
            compare(&conv(channels, filters, &square(image, kernel, stride, padding)), None);
        }
    }
}

#[test]
fn taps_are_taken_together_where_channels_lie_far_apart() {
    let loops = |extent, order| {
        let conv = conv(64, 64, &square(extent, 3, 1, 1));
        let tile = Extents::of(&conv, WIDE);
        let text = program(&conv, &image(&conv, order), &tile, true).unwrap().program.to_string();
        text.matches(" = for ").count()
    };
    // Over the taps of a column, and in it over channels: for each tap of a row, or for all of them.
    assert_eq!(loops(28, Order::RowMajor), 4);
    assert_eq!(loops(56, Order::RowMajor), 2);
    assert_eq!(loops(56, Order::Last), 4);
}

#[test]
fn one_and_three_axes_and_different_ones() {
    let axis = |image, kernel, stride, padding, dilation| {
        WindowAxis::new(image, kernel, stride, padding, dilation).unwrap()
    };
    compare(&conv(3, 4, &[axis(33, 5, 1, 2, 1)]), None);
    compare(&conv(3, 4, &[axis(33, 4, 3, 0, 2)]), None);
    compare(&conv(2, 3, &[axis(17, 1, 1, 0, 1), axis(23, 3, 1, 1, 1)]), None);
    compare(&conv(2, 3, &[axis(9, 3, 2, 2, 2), axis(6, 1, 1, 2, 1)]), None);
    compare(&conv(2, 3, &[axis(4, 3, 1, 1, 1), axis(5, 3, 1, 1, 1), axis(6, 3, 1, 1, 1)]), None);
    compare(&conv(2, 3, &[axis(4, 2, 2, 0, 1), axis(5, 3, 1, 0, 1), axis(6, 3, 2, 1, 1)]), None);
}

#[test]
fn dilation_and_more_zeros_behind() {
    let axis = WindowAxis::new(10, 3, 1, 2, 2).unwrap();
    compare(&conv(3, 5, &[axis; 2]), None);
    compare(&Conv { groups: 3, ..conv(3, 3, &[axis; 2]) }, None);
    compare(&conv(3, 5, &[WindowAxis::new(9, 3, 2, 5, 3).unwrap(); 2]), None);
    let axis =
        WindowAxis { image: 9, kernel: 4, stride: 1, padding: 1, dilation: 1, out: 9, transposed: false };
    compare(&conv(2, 3, &[axis; 2]), None);
}

#[test]
fn groups_batches_and_bias() {
    for (channels, filters, groups) in [(6, 32, 2), (5, 5, 5), (18, 18, 18), (4, 7, 1)] {
        for batch in [1, 2] {
            for (kernel, stride) in [(1, 1), (3, 1), (3, 2)] {
                let axes = square(6, kernel, stride, kernel / 2);
                compare(&Conv { batch, groups, bias: true, ..conv(channels, filters, &axes) }, None);
            }
        }
    }
}

#[test]
fn every_tile() {
    let axes = square(7, 3, 1, 1);
    for (lanes, vectors) in [(16, 1), (8, 2), (4, 3), (2, 1)] {
        for (pixels, unroll) in [(1, 8), (3, 1), (5, 2), (7, 4)] {
            for filters_first in [true, false] {
                let tile = Extents { lanes, vectors, pixels, unroll, filters_first };
                compare(&conv(8, 21, &axes), Some(tile));
            }
        }
    }
}

#[test]
fn doubles() {
    let elem = tilefuse_block::Elem::F64;
    compare(&Conv { elem, bias: true, ..conv(3, 21, &square(7, 3, 1, 1)) }, None);
    compare(&Conv { elem, groups: 9, ..conv(9, 9, &square(7, 3, 2, 1)) }, None);
}

/// What a filter would multiply by a zero around the image is left out, as are infinite weights there.
#[test]
fn what_is_not_finite_reaches_its_neighbours_alone() {
    for groups in [1, 2] {
        let conv = Conv { groups, ..conv(2, 2, &square(31, 3, 1, 1)) };
        let lengths = conv.lengths();
        let mut x = vec![0.0; lengths[0] as usize];
        (x[0], x[40], x[31 * 31 + 30]) = (f64::INFINITY, f64::NAN, f64::NEG_INFINITY);
        let mut w = vec![1.0; lengths[1] as usize];
        (w[0], w[5]) = (f64::INFINITY, f64::NAN);
        let wanted = expected(&conv, &x, &w, &[]);
        let found = computed(&conv, Order::Last, None, true, [&x, &w, &[]]);
        for (at, (a, b)) in found.iter().zip(&wanted).enumerate() {
            assert!(a == b || (a.is_nan() && b.is_nan()), "{at}: {a} for {b}");
        }
    }
}

#[test]
fn tiles_by_shape() {
    let of = |c, f, axes: &[WindowAxis]| {
        let conv = conv(c, f, axes);
        let lie = image(&conv, Order::Last);
        let tile = Extents::of(&flat(&conv, &lie).0, WIDE);
        let first = if tile.filters_first { "filters" } else { "pixels" };
        format!("{} pixels by {} x {}, {first} first", tile.pixels, tile.vectors, tile.lanes)
    };
    let wide = "14 pixels by 2 x 16, filters first";
    let single = "6 pixels by 4 x 16, filters first";
    assert_eq!(of(64, 64, &square(56, 3, 1, 1)), wide);
    assert_eq!(of(256, 64, &square(56, 1, 1, 0)), single);
    assert_eq!(of(256, 1024, &square(14, 1, 1, 0)), "6 pixels by 4 x 16, pixels first");
    assert_eq!(of(512, 1024, &square(28, 1, 2, 0)), "7 pixels by 3 x 16, pixels first");
    assert_eq!(of(128, 128, &square(56, 3, 2, 1)), wide);
    assert_eq!(of(256, 256, &square(14, 3, 1, 1)), "14 pixels by 2 x 16, pixels first");
    assert_eq!(of(512, 2048, &square(7, 1, 1, 0)), "7 pixels by 3 x 16, pixels first");
    assert_eq!(of(512, 512, &square(7, 3, 1, 1)), "7 pixels by 3 x 16, pixels first");
    assert_eq!(of(3, 64, &square(224, 7, 2, 3)), wide);
    assert_eq!(of(144, 24, &square(56, 1, 1, 0)), "13 pixels by 2 x 16, filters first");
    assert_eq!(of(24, 144, &square(56, 1, 1, 0)), "9 pixels by 3 x 16, filters first");
    assert_eq!(of(1024, 256, &square(14, 1, 1, 0)), "6 pixels by 4 x 16, pixels first");
}

/// Processors with shorter vectors and half as many registers take fewer pixels; those with as many, which 64-bit Arm
/// processors have, do not.
#[test]
fn tiles_of_shorter_vectors() {
    let of = |[bits, registers]: [u32; 2], elem| {
        let conv = Conv { elem, ..conv(64, 64, &square(56, 3, 1, 1)) };
        let tile = Extents::of(&conv, Vectors { bits, registers });
        compare(&Conv { axes: square(13, 3, 1, 1), channels: 5, ..conv }, Some(tile));
        format!("{} pixels by {} x {}", tile.pixels, tile.vectors, tile.lanes)
    };
    assert_eq!(of([256, 16], Elem::F32), "6 pixels by 2 x 8");
    assert_eq!(of([128, 16], Elem::F32), "6 pixels by 2 x 4");
    assert_eq!(of([256, 16], Elem::F64), "6 pixels by 2 x 4");
    assert_eq!(of([128, 32], Elem::F32), "14 pixels by 2 x 4");
}

/// Two convolutions of weights, a residual around them, and an average of all pixels, or the result as it is.
fn network(channels: i64, filters: i64, size: i64, averages: bool) -> String {
    let (small, large) =
        (format!("f32[1,{channels},{size},{size}]"), format!("f32[1,{filters},{size},{size}]"));
    let attributes = "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1";
    let end = match averages {
        true => {
            format!("%7 = aten::amax(self=%6, dim=[2, 3], keepdim=false) : f32[1,{channels}]\n outputs %7")
        }
        false => "outputs %6".to_owned(),
    };
    format!(
        "graph {{
           %0 = input 0 : {small}
           %1 = param 0 : f32[{filters},{channels},3,3]
           %2 = param 1 : f32[{channels},{filters},3,3]
           %3 = aten::conv2d(input=%0, weight=%1, bias=None, {attributes}) : {large}
           %4 = aten::relu(self=%3) : {large}
           %5 = aten::conv2d(input=%4, weight=%2, bias=None, {attributes}) : {small}
           %6 = aten::add(self=%5, other=%0, alpha=1) : {small}
           {end}
         }}"
    )
}

/// Results lie with the filters innermost where convolutions and reductions read them, and row-major where the caller does.
#[test]
fn what_only_kernels_read_lies_in_their_order() {
    for (channels, filters, size) in [(3, 5, 4), (17, 20, 15)] {
        for averages in [true, false] {
            let text = network(channels, filters, size, averages);
            let (plan, packed) = packed(&text, 2, Products::Generated);
            assert_eq!(packed.len(), 2, "{text}");
            assert_eq!(plan.kernel_count(), if averages { 3 } else { 2 }, "{text}");
            let is_channels_last = |id: NodeId| {
                let shape = &plan.graph.ty(id.into()).shape;
                matches!(plan.graph.node(id).op, Op::Aten(_)) && shape.last() != Some(&size)
            };
            assert_eq!(
                plan.graph.ids().filter(|&id| is_channels_last(id)).count(),
                if averages { 2 } else { 1 }
            );
            let input = |op: Op| {
                let id = plan.graph.ids().find(|&id| plan.graph.node(id).op == op).unwrap();
                let (Op::Input(slot) | Op::Param(slot)) = op else { panic!() };
                memory(slot, plan.graph.ty(id.into()))
            };
            let axes = square(size as u64, 3, 1, 1);
            let x = input(Op::Input(0));
            let first = conv(channels as u64, filters as u64, &axes);
            let y = expected(&first, &x, &input(Op::Param(0)), &[]);
            let y: Vec<f64> = y.iter().map(|v| v.max(0.0)).collect();
            let second = conv(filters as u64, channels as u64, &axes);
            let mut wanted = expected(&second, &y, &input(Op::Param(1)), &[]);
            wanted.iter_mut().zip(&x).for_each(|(v, x)| *v += x);
            if averages {
                let most = |pixels: &[f64]| pixels.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                wanted = wanted.chunks((size * size) as usize).map(most).collect();
            }
            let found = run_packed(&plan, &packed).remove(0);
            assert_eq!(found.len(), wanted.len());
            for (a, b) in found.iter().zip(&wanted) {
                assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} for {b}: {text}");
            }
        }
    }
}

/// A weight that the graph writes is not packed, and a call of what is no weight is not, either.
#[test]
fn other_filters_are_not_packed() {
    let text = network(3, 5, 4, true);
    assert!(packed(&text.replace("param 0", "input 1"), 2, Products::Generated).1.len() < 2);
    let written =
        text.replace("outputs %7", "%8 = aten::neg(self=%1) : f32[5,3,3,3]\n outputs %7\n update %1 <- %8");
    assert_eq!(packed(&written, 2, Products::Generated).1.len(), 1);
}

/// Where the result stays as eager's, images and filters are also read as they lie: whichever takes less is taken.
#[test]
fn kernels_over_packed_filters_and_over_these_as_they_lie_are_candidates() {
    let conv = |input: &str, weight: &str| {
        format!(
            "aten::conv2d(input={input}, weight={weight}, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1)"
        )
    };
    let one = format!(
        "graph {{
           %0 = input 0 : f32[1,8,9,9]
           %1 = param 0 : f32[32,8,3,3]
           %2 = {} : f32[1,32,9,9]
           outputs %2
         }}",
        conv("%0", "%1")
    );
    // The first result is only read by a convolution, which takes it with the filters innermost.
    let two = format!(
        "graph {{
           %0 = input 0 : f32[1,8,9,9]
           %1 = param 0 : f32[32,8,3,3]
           %2 = param 1 : f32[8,32,3,3]
           %3 = {} : f32[1,32,9,9]
           %4 = {} : f32[1,8,9,9]
           outputs %4
         }}",
        conv("%0", "%1"),
        conv("%3", "%2")
    );
    let chosen = |text: &str, us: [f64; 2]| {
        let profile = Profile::host(2);
        let mut graph = primitive(text, &profile);
        let mut seen = Vec::new();
        let packed =
            choose_products(&mut graph, &profile, Products::Measured, Some(0), u64::MAX, &mut |candidate| {
                let packs = candidate.template.panels.is_some();
                seen.push(packs);
                Some(Times { generated_us: us[usize::from(packs)], library_us: 9.0, measured: true })
            });
        let plan = plan(&graph, &profile).unwrap();
        let values = if plan.extern_count() == 0 { run_packed(&plan, &packed).remove(0) } else { Vec::new() };
        (seen, [packed.len(), plan.extern_count()], values)
    };
    let (seen, counts, lying) = chosen(&one, [5.0, 6.0]);
    assert_eq!((seen, counts), (vec![false, true], [0, 0]));
    let (seen, counts, packed) = chosen(&one, [6.0, 5.0]);
    assert_eq!((seen, counts), (vec![false, true], [1, 0]));
    close(&lying, &packed, 1e-5, &one);
    assert_eq!(chosen(&one, [10.0, 11.0]).1, [0, 1]);
    let (seen, counts, _) = chosen(&two, [5.0, 6.0]);
    assert_eq!((seen, counts), (vec![true, true], [2, 0]));
}
