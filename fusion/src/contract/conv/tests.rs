//! Convolutions in the interpreter, compared with sums in `f64`.

use tilefuse_block::interp::{self, Arg};
use tilefuse_block::{Data, Elem, Literal};

use super::block::Block;
use super::geometry::Conv;
use crate::contract::Products;
use crate::contract::tests::{memory, planned, run};
use crate::contract::window_axis::WindowAxis;
use crate::graph::Op;

/// Numbers between -1 and 1, of few digits.
pub(super) fn numbers(elem: Elem, len: u64, seed: u64) -> Vec<f64> {
    let number = |i: u64| ((i * 37 + seed * 101 + i * i % 19) % 129) as f64 / 64.0 - 1.0;
    (0..len).map(|i| Literal::float(elem, number(i)).as_f64()).collect()
}

pub(super) fn data(elem: Elem, values: &[f64]) -> Data {
    Data::from_literals(elem, values.iter().map(|&v| Literal::float(elem, v)))
}

/// The convolution by its definition.
pub(super) fn expected(conv: &Conv, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    let index = |number: u64, extents: &dyn Fn(&WindowAxis) -> u64| -> Vec<u64> {
        let mut rest = number;
        let mut out: Vec<u64> = Vec::new();
        for axis in conv.axes.iter().rev() {
            out.insert(0, rest % extents(axis));
            rest /= extents(axis);
        }
        out
    };
    let element = |number: u64| {
        let (pixel, rest) = (number % conv.pixels(), number / conv.pixels());
        let (filter, image) = (rest % conv.filters, rest / conv.filters);
        let group = filter / conv.filters_of_group();
        let place = index(pixel, &|a| a.out);
        let mut sum = bias.get(filter as usize).copied().unwrap_or(0.0);
        for channel in 0..conv.depth() {
            for tap in 0..conv.taps() {
                let taps = index(tap, &|a| a.kernel);
                let mut at = Some(image * conv.channels + group * conv.depth() + channel);
                for ((axis, place), tap) in conv.axes.iter().zip(&place).zip(&taps) {
                    let here = (place * axis.stride + tap * axis.dilation).checked_sub(axis.padding);
                    let here = here.filter(|&h| h < axis.image);
                    at = at.zip(here).map(|(at, here)| at * axis.image + here);
                }
                let weight = (filter * conv.depth() + channel) * conv.taps() + tap;
                sum += at.map_or(0.0, |at| x[at as usize] * w[weight as usize]);
            }
        }
        sum
    };
    (0..conv.lengths()[3]).map(element).collect()
}

fn computed(conv: &Conv, block: &Block, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    let made = conv.program(block).unwrap();
    tilefuse_block::verify(&made.program).unwrap();
    let nothing = vec![f64::NAN; conv.lengths()[3] as usize];
    let mut args: Vec<Arg> = [x, w].iter().map(|v| Arg::buffer(data(conv.elem, v))).collect();
    args.extend(conv.bias.then(|| Arg::buffer(data(conv.elem, bias))));
    args.push(Arg::buffer(data(conv.elem, &nothing)));
    interp::run(&made.program, &mut args, [made.instances, 1, 1]).unwrap_or_else(|e| panic!("{e}: {conv:?}"));
    args.last().unwrap().data().unwrap().literals().iter().map(|l| l.as_f64()).collect()
}

/// Compares a convolution in a block, or in the block that is chosen for it.
fn check(conv: &Conv, block: Option<Block>) {
    conv.check().unwrap();
    let lengths = conv.lengths();
    let (x, w) = (numbers(conv.elem, lengths[0], 1), numbers(conv.elem, lengths[1], 2));
    let bias = numbers(conv.elem, lengths[2], 3);
    let block = block.unwrap_or_else(|| Block::of(conv, 2));
    let (ours, wanted) = (computed(conv, &block, &x, &w, &bias), expected(conv, &x, &w, &bias));
    let error = match conv.elem {
        Elem::F64 => 1e-12,
        Elem::F32 => 1e-4,
        Elem::F16 => 2e-3,
        _ => 1e-2,
    };
    for (at, (a, b)) in ours.iter().zip(&wanted).enumerate() {
        assert!((a - b).abs() <= error * b.abs().max(1.0), "element {at}: {a} for {b} in {conv:?} {block:?}");
    }
}

pub(super) fn conv(channels: u64, filters: u64, axes: &[WindowAxis]) -> Conv {
    Conv { elem: Elem::F32, batch: 1, channels, filters, groups: 1, axes: axes.to_vec(), bias: false }
}

pub(super) fn square(image: u64, kernel: u64, stride: u64, padding: u64) -> Vec<WindowAxis> {
    vec![WindowAxis::new(image, kernel, stride, padding, 1).unwrap(); 2]
}

#[test]
fn kernels_strides_and_paddings() {
    for (image, kernel, stride, padding) in [
        (1, 1, 1, 0),
        (1, 1, 1, 3),
        (5, 3, 1, 1),
        (7, 3, 2, 1),
        (9, 5, 2, 3),
        (7, 7, 2, 3),
        (8, 1, 2, 0),
        (11, 3, 3, 0),
    ] {
        for (channels, filters) in [(3, 5), (5, 1), (2, 17)] {
            check(&conv(channels, filters, &square(image, kernel, stride, padding)), None);
        }
    }
}

#[test]
fn one_and_three_axes_and_different_ones() {
    let axis = |image, kernel, stride, padding, dilation| {
        WindowAxis::new(image, kernel, stride, padding, dilation).unwrap()
    };
    check(&conv(3, 4, &[axis(33, 5, 1, 2, 1)]), None);
    check(&conv(3, 4, &[axis(33, 4, 3, 0, 2)]), None);
    check(&conv(2, 3, &[axis(17, 1, 1, 0, 1), axis(23, 3, 1, 1, 1)]), None);
    check(&conv(2, 3, &[axis(9, 3, 2, 2, 2), axis(6, 1, 1, 2, 1)]), None);
    check(&conv(2, 3, &[axis(4, 3, 1, 1, 1), axis(5, 3, 1, 1, 1), axis(6, 3, 1, 1, 1)]), None);
    check(&conv(2, 3, &[axis(4, 2, 2, 0, 1), axis(5, 3, 1, 0, 1), axis(6, 3, 2, 1, 1)]), None);
}

#[test]
fn dilation() {
    let axis = WindowAxis::new(10, 3, 1, 2, 2).unwrap();
    check(&conv(3, 5, &[axis; 2]), None);
    check(&Conv { groups: 3, ..conv(3, 3, &[axis; 2]) }, None);
}

#[test]
fn even_kernels_with_more_zeros_behind() {
    // What `padding='same'` makes of a kernel of 4.
    let axis =
        WindowAxis { image: 9, kernel: 4, stride: 1, padding: 1, dilation: 1, out: 9, transposed: false };
    check(&conv(2, 3, &[axis; 2]), None);
}

#[test]
fn groups_batches_and_bias() {
    for (channels, filters, groups) in [(6, 4, 2), (5, 5, 5), (3, 6, 3), (8, 8, 8)] {
        for batch in [1, 2] {
            for (kernel, stride) in [(1, 1), (3, 1), (3, 2)] {
                let axes = square(6, kernel, stride, kernel / 2);
                check(&Conv { batch, groups, bias: true, ..conv(channels, filters, &axes) }, None);
            }
        }
    }
}

#[test]
fn blocks_of_channels_and_every_block() {
    let axes = square(6, 3, 1, 1);
    for rows in [0, 1, 2, 4] {
        for (filters, pixels, channels, unroll) in [(1, 16, 2, 1), (4, 8, 4, 2), (8, 16, 8, 4), (2, 64, 3, 3)]
        {
            for filters_first in [true, false] {
                let block = Block { filters, rows, pixels, channels, unroll, filters_first };
                check(&conv(8, 6, &axes), Some(block));
                check(&Conv { groups: 8, ..conv(8, 8, &axes) }, Some(block));
            }
        }
    }
}

#[test]
fn other_kinds_of_floats() {
    for elem in [Elem::F64, Elem::F16, Elem::Bf16] {
        check(&Conv { elem, bias: true, ..conv(3, 5, &square(7, 3, 1, 1)) }, None);
        check(&Conv { elem, groups: 4, ..conv(4, 4, &square(7, 3, 2, 1)) }, None);
    }
}

#[test]
fn what_is_not_finite_reaches_its_neighbours_alone() {
    let conv = conv(2, 1, &square(5, 3, 1, 1));
    let mut x = vec![0.0; 50];
    (x[12], x[30]) = (f64::INFINITY, f64::NAN);
    let w = vec![1.0; 18];
    let y = computed(&conv, &Block::of(&conv, 2), &x, &w, &[]);
    let wanted = expected(&conv, &x, &w, &[]);
    for (a, b) in y.iter().zip(&wanted) {
        assert!(a == b || (a.is_nan() && b.is_nan()), "{y:?} {wanted:?}");
    }
}

#[test]
fn what_has_no_program() {
    let fine = conv(4, 4, &square(5, 3, 1, 1));
    assert_eq!(fine.check(), Ok(()));
    let refused = |conv: Conv| conv.check().unwrap_err();
    assert_eq!(
        refused(Conv { elem: Elem::I32, ..fine.clone() }),
        "its elements are no floats of 16, 32 or 64 bits"
    );
    assert_eq!(refused(Conv { groups: 3, ..fine.clone() }), "its groups do not divide its channels");
    assert_eq!(refused(Conv { batch: 0, ..fine.clone() }), "it is empty");
    let huge = conv(1 << 12, 1 << 12, &square(1 << 10, 1, 1, 0));
    assert_eq!(refused(huge), "its tensors have too many elements");
}

#[test]
fn blocks_by_shape() {
    let of = |c, f, axes: &[WindowAxis], groups| {
        let b = Block::of(&Conv { groups, ..conv(c, f, axes) }, 2);
        format!("{} filters, {} rows, {} pixels, {} channels", b.filters, b.rows, b.pixels, b.channels)
    };
    assert_eq!(of(64, 64, &square(56, 3, 1, 1), 1), "8 filters, 0 rows, 32 pixels, 64 channels");
    assert_eq!(of(256, 64, &square(56, 1, 1, 0), 1), "8 filters, 0 rows, 32 pixels, 64 channels");
    assert_eq!(of(512, 2048, &square(7, 1, 1, 0), 1), "4 filters, 0 rows, 64 pixels, 64 channels");
    assert_eq!(of(128, 128, &square(56, 3, 2, 1), 1), "16 filters, 1 rows, 16 pixels, 64 channels");
    assert_eq!(of(96, 96, &square(112, 3, 1, 1), 96), "32 filters, 0 rows, 256 pixels, 1 channels");
    assert_eq!(of(96, 96, &square(112, 3, 2, 1), 96), "32 filters, 1 rows, 64 pixels, 1 channels");
}

/// A convolution, a factor and a number for each filter, and a residual.
fn network(batch: i64, filters: i64, image: i64, groups: i64, channels: i64) -> String {
    let of_filters = format!("[{batch},{filters},{image},{image}]");
    let depth = channels / groups;
    format!(
        "graph {{
           %0 = input 0 : f32[{batch},{channels},{image},{image}]
           %1 = input 1 : f32[{filters},{depth},3,3]
           %2 = input 2 : f32[{filters},1,1]
           %3 = input 3 : f32[{filters},1,1]
           %4 = input 4 : f32{of_filters}
           %5 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups={groups}) : f32{of_filters}
           %6 = aten::mul(self=%5, other=%2) : f32{of_filters}
           %7 = aten::add(self=%6, other=%3, alpha=1) : f32{of_filters}
           %8 = aten::relu(self=%7) : f32{of_filters}
           %9 = aten::add(self=%8, other=%4, alpha=1) : f32{of_filters}
           outputs %9
         }}"
    )
}

#[test]
fn neighbours_lie_in_the_store() {
    for (batch, channels, filters, image, groups) in
        [(1, 5, 6, 7, 1), (2, 3, 8, 6, 1), (2, 4, 4, 6, 4), (2, 2, 3, 1, 1)]
    {
        let text = network(batch, filters, image, groups, channels);
        let plan = planned(&text, 2, Products::Generated);
        assert_eq!((plan.kernel_count(), plan.extern_count()), (1, 0), "{text}");
        let input = |slot: u32| {
            let graph = &plan.graph;
            let found = graph.ids().find(|&id| matches!(graph.node(id).op, Op::Input(s) if s == slot));
            memory(slot, graph.ty(found.unwrap().into()))
        };
        let axes = square(image as u64, 3, 1, 1);
        let conv = Conv {
            batch: batch as u64,
            groups: groups as u64,
            ..conv(channels as u64, filters as u64, &axes)
        };
        let mut wanted = expected(&conv, &input(0), &input(1), &[]);
        let (scale, shift, rest) = (input(2), input(3), input(4));
        for (at, v) in wanted.iter_mut().enumerate() {
            let filter = at / conv.pixels() as usize % filters as usize;
            *v = (*v * scale[filter] + shift[filter]).max(0.0) + rest[at];
        }
        for (a, b) in run(&plan)[0].iter().zip(&wanted) {
            assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} for {b}: {text}");
        }
    }
}

/// What there is for each filter is read by its number, with no division of offsets and no mask of pixels.
#[test]
pub(super) fn numbers_for_each_filter_are_read_once_for_all_pixels() {
    let plan = planned(&network(2, 6, 7, 1, 5), 2, Products::Generated);
    let text = plan.programs[0].to_string();
    let (_, after) = text.rsplit_once("yield").unwrap();
    assert!(!after.contains("div_trunc") && !after.contains("rem_trunc"), "{text}");
    let loads: Vec<&str> = after.lines().filter(|line| line.contains("= load")).collect();
    assert_eq!(loads.len(), 3, "{text}");
    assert_eq!(loads.iter().filter(|line| line.contains("mask")).count(), 1, "the residual: {text}");
}

#[test]
fn calls_that_are_not_known_stay() {
    let text = network(1, 6, 7, 1, 5);
    let count = |text: &str, products| planned(text, 2, products).extern_count();
    assert_eq!(count(&text, Products::Library), 1);
    let transposed = text.replace("aten::conv2d", "aten::conv_transpose2d");
    assert_eq!(count(&transposed, Products::Generated), 1);
    let same =
        text.replace("aten::conv2d(", "aten::conv2d.padding(").replace("padding=[1, 1]", "padding=\"same\"");
    assert_eq!(count(&same, Products::Generated), 0);
    let reflected = same.replace("\"same\"", "\"reflect\"");
    assert_eq!(count(&reflected, Products::Generated), 1);
}
