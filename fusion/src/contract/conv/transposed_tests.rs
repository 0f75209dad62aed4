//! Transposed convolutions in the interpreter, compared with sums in `f64`.

use tilefuse_block::Elem;

use super::geometry::Conv;
use super::packed_tests::{Order, computed};
use super::tests::{conv, numbers};
use crate::contract::Products;
use crate::contract::tests::{memory, packed, planned, run_packed};
use crate::contract::window_axis::WindowAxis;
use crate::graph::Op;
use crate::lower::NotLowered;
use crate::plan::StepKind;

/// An axis of a transposed convolution with so many more pixels than taps reach.
pub(super) fn axis(image: u64, kernel: u64, [stride, padding, more, dilation]: [u64; 4]) -> WindowAxis {
    let out = (image - 1) * stride + dilation * (kernel - 1) + 1 + more - 2 * padding;
    let axis = WindowAxis { image, kernel, stride, padding, dilation, out, transposed: true };
    assert!(axis.is_reached(), "{axis:?}");
    axis
}

/// The numbers of an element along axes of these extents.
fn index(number: u64, extents: impl DoubleEndedIterator<Item = u64>) -> Vec<u64> {
    let mut rest = number;
    let mut out = Vec::new();
    for extent in extents.rev() {
        out.insert(0, rest % extent);
        rest /= extent;
    }
    out
}

/// The transposed convolution by its definition: each pixel of an image is brought to the result by each tap.
pub(super) fn expected(conv: &Conv, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    let (filters, depth) = (conv.filters_of_group(), conv.depth());
    let start = |i: u64| bias.get((i / conv.pixels() % conv.filters) as usize).copied().unwrap_or(0.0);
    let mut y: Vec<f64> = (0..conv.lengths()[3]).map(start).collect();
    for (number, &x) in (0u64..).zip(x) {
        let (pixel, rest) = (number % conv.image(), number / conv.image());
        let (channel, image) = (rest % conv.channels, rest / conv.channels);
        let from = index(pixel, conv.axes.iter().map(|a| a.image));
        for tap in 0..conv.taps() {
            let taps = index(tap, conv.axes.iter().map(|a| a.kernel));
            let mut to = Some(0);
            for ((a, i), k) in conv.axes.iter().zip(&from).zip(&taps) {
                let place = (i * a.stride + k * a.dilation).checked_sub(a.padding).filter(|&o| o < a.out);
                to = to.zip(place).map(|(to, place)| to * a.out + place);
            }
            let Some(to) = to else { continue };
            for f in 0..filters {
                let filter = channel / depth * filters + f;
                let weight = w[((channel * filters + f) * conv.taps() + tap) as usize];
                y[((image * conv.filters + filter) * conv.pixels() + to) as usize] += x * weight;
            }
        }
    }
    y
}

/// The weights of a transposed convolution as `[filters, channels / groups, taps]`.
fn by_filter(conv: &Conv, w: &[f64]) -> Vec<f64> {
    let (filters, depth) = (conv.filters_of_group(), conv.depth());
    let element = |i: u64| {
        let (tap, rest) = (i % conv.taps(), i / conv.taps());
        let (channel, filter) = (rest % depth, rest / depth);
        let channel = filter / filters * depth + channel;
        w[((channel * filters + filter % filters) * conv.taps() + tap) as usize]
    };
    (0..conv.lengths()[1]).map(element).collect()
}

pub(super) fn close(found: &[f64], wanted: &[f64], most: f64, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (at, (a, b)) in found.iter().zip(wanted).enumerate() {
        let fits = (a - b).abs() <= most * b.abs().max(1.0) || (a.is_nan() && b.is_nan()) || a == b;
        assert!(fits, "element {at}: {a} for {b} in {what}");
    }
}

/// Compares a transposed convolution in all orders.
fn compare(conv: &Conv) {
    conv.check().unwrap();
    let lengths = conv.lengths();
    let (x, w) = (numbers(conv.elem, lengths[0], 1), numbers(conv.elem, lengths[1], 2));
    let bias = numbers(conv.elem, lengths[2], 3);
    let wanted = expected(conv, &x, &w, &bias);
    let w = by_filter(conv, &w);
    for order in [Order::RowMajor, Order::Last, Order::Gaps] {
        if conv.is_depthwise() && order == Order::RowMajor {
            continue;
        }
        for last in [true, false] {
            let found = computed(conv, order, None, last, [&x, &w, &bias]);
            let most = if conv.elem == Elem::F64 { 1e-12 } else { 1e-4 };
            close(&found, &wanted, most, &format!("{conv:?} {order:?} {last}"));
        }
    }
}

#[test]
fn kernels_strides_and_paddings() {
    for (image, kernel, attributes) in [
        (5, 2, [2, 0, 0, 1]),
        (4, 4, [2, 1, 0, 1]),
        (7, 3, [2, 1, 1, 1]),
        (7, 3, [2, 0, 0, 1]),
        (9, 3, [1, 1, 0, 1]),
        (1, 1, [1, 0, 0, 1]),
        (1, 3, [2, 1, 0, 1]),
        (6, 5, [3, 2, 1, 1]),
        (6, 2, [3, 0, 2, 1]),
        (5, 1, [3, 0, 0, 1]),
        (17, 4, [2, 1, 1, 1]),
        (3, 8, [8, 0, 0, 1]),
        (2, 16, [16, 0, 0, 1]),
    ] {
        for (channels, filters) in [(3, 5), (5, 1), (2, 40)] {
            compare(&conv(channels, filters, &[axis(image, kernel, attributes); 2]));
        }
    }
}

#[test]
fn dilations_that_share_a_divisor_with_the_stride_or_do_not() {
    for attributes in [[2, 0, 0, 2], [2, 1, 1, 3], [3, 1, 2, 2], [4, 0, 3, 6], [6, 1, 1, 4], [1, 1, 1, 2]] {
        for kernel in [2, 3, 4] {
            compare(&conv(3, 5, &[axis(6, kernel, attributes); 2]));
        }
    }
}

#[test]
fn one_and_three_axes_and_different_ones() {
    compare(&conv(3, 4, &[axis(33, 5, [3, 2, 1, 1])]));
    compare(&conv(3, 4, &[axis(9, 4, [2, 0, 0, 2])]));
    compare(&conv(2, 3, &[axis(7, 1, [1, 0, 0, 1]), axis(5, 3, [2, 1, 1, 1])]));
    compare(&conv(2, 3, &[axis(5, 3, [3, 1, 0, 1]), axis(6, 2, [1, 0, 0, 1])]));
    compare(&conv(2, 3, &[axis(2, 3, [2, 1, 1, 1]), axis(3, 2, [2, 0, 0, 1]), axis(4, 3, [1, 1, 0, 1])]));
}

#[test]
fn groups_batches_bias_and_doubles() {
    for (channels, filters, groups) in [(6, 32, 2), (5, 5, 5), (18, 18, 18), (4, 7, 1)] {
        for (kernel, attributes) in [(2, [2, 0, 0, 1]), (3, [2, 1, 1, 1]), (3, [3, 0, 1, 2])] {
            let conv = conv(channels, filters, &[axis(5, kernel, attributes); 2]);
            compare(&Conv { batch: 2, groups, bias: true, ..conv.clone() });
            compare(&Conv { groups, elem: Elem::F64, ..conv });
        }
    }
}

/// A pixel that no tap reaches is the bias, and what is not finite reaches no more pixels than by the definition.
#[test]
fn what_is_not_finite_reaches_its_neighbours_alone() {
    let conv = conv(2, 3, &[axis(9, 3, [2, 1, 1, 1]), axis(9, 2, [3, 0, 0, 1])]);
    let lengths = conv.lengths();
    let mut x = vec![0.0; lengths[0] as usize];
    (x[0], x[40], x[80]) = (f64::INFINITY, f64::NAN, f64::NEG_INFINITY);
    let mut w = vec![1.0; lengths[1] as usize];
    (w[0], w[7]) = (f64::INFINITY, f64::NAN);
    let wanted = expected(&conv, &x, &w, &[]);
    let found = computed(&conv, Order::Last, None, true, [&x, &by_filter(&conv, &w), &[]]);
    close(&found, &wanted, 0.0, "infinities");
}

struct Network {
    channels: i64,
    filters: i64,
    groups: i64,
    size: i64,
}

impl Network {
    /// A transposed convolution that doubles an image, an activation and a residual.
    fn text(&self) -> String {
        let Network { channels, filters, groups, size } = self;
        let (of, twice) = (filters / groups, 2 * size);
        let large = format!("f32[2,{filters},{twice},{twice}]");
        format!(
            "graph {{
               %0 = input 0 : f32[2,{channels},{size},{size}]
               %1 = param 0 : f32[{channels},{of},4,4]
               %2 = param 1 : f32[{filters}]
               %3 = input 1 : {large}
               %4 = aten::conv_transpose2d.input(input=%0, weight=%1, bias=%2, stride=[2, 2], padding=[1, 1], output_padding=[0, 0], groups={groups}, dilation=[1, 1]) : {large}
               %5 = aten::relu(self=%4) : {large}
               %6 = aten::add(self=%5, other=%3, alpha=1) : {large}
               outputs %6
             }}"
        )
    }

    fn conv(&self) -> Conv {
        let [channels, filters, groups, size] =
            [self.channels, self.filters, self.groups, self.size].map(|n| n as u64);
        let axes = [axis(size, 4, [2, 1, 0, 1]); 2];
        Conv { batch: 2, groups, bias: true, ..conv(channels, filters, &axes) }
    }
}

/// The bias, an activation and a residual lie in the store, for filters of one group, of several, and for one a channel.
#[test]
fn neighbours_lie_in_the_store() {
    for (channels, filters, groups) in [(3, 5, 1), (6, 40, 1), (6, 32, 2), (8, 64, 4)] {
        let network = Network { channels, filters, groups, size: 5 };
        let text = network.text();
        let convolution = text
            .replace("conv_transpose2d.input", "convolution")
            .replace("output_padding", "transposed=true, output_padding");
        for text in [text, convolution] {
            let (plan, packed) = packed(&text, 2, Products::Generated);
            assert_eq!((plan.kernel_count(), plan.extern_count(), packed.len()), (1, 0, 1), "{text}");
            let input = |op: Op| {
                let id = plan.graph.ids().find(|&id| plan.graph.node(id).op == op).unwrap();
                let (Op::Input(slot) | Op::Param(slot)) = op else { panic!() };
                memory(slot, plan.graph.ty(id.into()))
            };
            let [x, w, bias] = [Op::Input(0), Op::Param(0), Op::Param(1)].map(&input);
            let mut wanted = expected(&network.conv(), &x, &w, &bias);
            wanted.iter_mut().zip(input(Op::Input(1))).for_each(|(v, rest)| *v = v.max(0.0) + rest);
            close(&run_packed(&plan, &packed)[0], &wanted, 1e-4, &text);
        }
    }
}

/// Filters that are no weights are packed by a kernel before the convolution.
#[test]
fn filters_that_are_no_weights_are_packed() {
    for (channels, filters, groups) in [(3, 5, 1), (40, 70, 1), (6, 32, 2), (8, 64, 4)] {
        let network = Network { channels, filters, groups, size: 5 };
        let text = network.text().replace("param 0", "input 2");
        let (plan, packed) = packed(&text, 2, Products::Generated);
        assert_eq!((plan.kernel_count(), plan.extern_count(), packed.len()), (2, 0, 0), "{text}");
        let input = |op: Op| {
            let id = plan.graph.ids().find(|&id| plan.graph.node(id).op == op).unwrap();
            let (Op::Input(slot) | Op::Param(slot)) = op else { panic!() };
            memory(slot, plan.graph.ty(id.into()))
        };
        let [x, w, bias] = [Op::Input(0), Op::Input(2), Op::Param(1)].map(&input);
        let mut wanted = expected(&network.conv(), &x, &w, &bias);
        wanted.iter_mut().zip(input(Op::Input(1))).for_each(|(v, rest)| *v = v.max(0.0) + rest);
        close(&run_packed(&plan, &packed)[0], &wanted, 1e-4, &text);
    }
}

/// Sizes that no such convolution has are no contractions; elements that are no floats and more of them than 32 bits number are
/// without kernel.
#[test]
fn others_stay_and_contractions_have_a_reason() {
    let reason = |text: &str| {
        let plan = planned(text, 2, Products::Generated);
        plan.steps.iter().find_map(|step| match &step.kind {
            StepKind::Extern(call) => call.reason.clone(),
            _ => None,
        })
    };
    let text = Network { channels: 6, filters: 16, groups: 1, size: 5 }.text();
    let stays = "no kernel takes so large sizes";
    let packed = |text: &str| packed(text, 2, Products::Generated).1.len();
    assert_eq!(packed(&text), 1);
    let large = text.replace("[2,16,10,10]", "[2,16,14,14]");
    let none = NotLowered::Arguments.to_string();
    assert_eq!((packed(&large), reason(&large)), (0, Some(none)), "{large}");
    let integers = text.replace("f32", "i64");
    let typed = "no kernel takes its element types";
    assert_eq!((packed(&integers), reason(&integers).as_deref()), (0, Some(typed)), "{integers}");
    let images = text.replace(",5,5]", ",20000,20000]").replace(",10,10]", ",40000,40000]");
    assert_eq!((packed(&images), reason(&images).as_deref()), (0, Some(stays)), "{images}");
}
