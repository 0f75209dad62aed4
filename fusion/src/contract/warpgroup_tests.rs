//! Products on a GPU: what is one kernel, and what it computes, in the interpreter.

use super::tests::{evaluate, packed, packed_for, points, position, run, run_packed};
use super::{MatchFailure, Products, choose_products};
use crate::machine::{AttentionShape, ProductShape, Profile};
use crate::parse_graph;
use crate::pipeline::primitive;
use crate::plan::{Plan, StepKind};

pub(super) fn gpu() -> Profile {
    Profile::gpu(132, 4200.0).with_clusters().with_warpgroups()
}

pub(super) fn planned(text: &str, products: Products) -> Plan {
    packed_for(text, &gpu(), products).0
}

/// Checks results, and returns the number of kernels.
pub(super) fn check(text: &str) -> usize {
    let plan = planned(text, Products::Generated);
    assert_eq!(plan.extern_count(), 0, "{text}");
    for (found, exact) in run(&plan).iter().zip(evaluate(&parse_graph(text).unwrap())) {
        assert_eq!(found.len(), exact.data.len());
        for (found, exact) in found.iter().zip(&exact.data) {
            assert!((found - exact).abs() <= 1e-2 * exact.abs().max(1.0), "{found} for {exact}: {text}");
        }
    }
    plan.kernel_count()
}

pub(super) fn linear(dtype: &str, [m, n, k]: [i64; 3], behind: &str, out: u32) -> String {
    format!(
        "graph {{
           %0 = input 0 : {dtype}[{m},{k}]@cuda:0
           %1 = input 1 : {dtype}[{n},{k}]@cuda:0
           %2 = input 2 : {dtype}[{n}]@cuda:0
           %3 = input 3 : {dtype}[{m},{n}]@cuda:0
           %4 = aten::linear(input=%0, weight=%1, bias=%2) : {dtype}[{m},{n}]@cuda:0
           {behind}
           outputs %{out}
         }}"
    )
}

/// Products of two batches of matrices of these types.
pub(super) fn bmm(left: &str, right: &str, out: &str) -> String {
    format!(
        "graph {{
           %0 = input 0 : bf16{left}@cuda:0
           %1 = input 1 : bf16{right}@cuda:0
           %2 = aten::bmm(self=%0, mat2=%1) : bf16{out}@cuda:0
           outputs %2
         }}"
    )
}

/// An activation and a residual behind a product.
pub(super) fn with_epilogue(dtype: &str, [m, n, k]: [i64; 3]) -> String {
    let behind = format!(
        "%5 = aten::relu(self=%4) : {dtype}[{m},{n}]@cuda:0
         %6 = aten::add.Tensor(self=%5, other=%3, alpha=1) : {dtype}[{m},{n}]@cuda:0"
    );
    linear(dtype, [m, n, k], &behind, 6)
}

#[test]
fn linear_layers_of_odd_sizes_are_one_kernel_with_their_epilogue() {
    for sizes in [[64, 32, 64], [65, 40, 72], [130, 264, 200], [700, 72, 64], [1, 8, 8], [3, 65, 24]] {
        assert_eq!(check(&linear("bf16", sizes, "", 4)), 1);
        assert_eq!(check(&with_epilogue("f16", sizes)), 1);
    }
}

#[test]
fn operands_lie_in_every_order_and_in_batches() {
    for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
        let strides = |rows: i64, columns: i64, transposed: bool| match transposed {
            true => format!("[3,{rows},{columns}]{{{},1,{rows}}}", rows * columns),
            false => format!("[3,{rows},{columns}]"),
        };
        let text = bmm(&strides(72, 64, left), &strides(64, 40, right), "[3,72,40]");
        assert_eq!(check(&text), 1);
    }
    let few = bmm("[7,9,8]", "[7,8,16]", "[7,9,16]");
    assert_eq!(check(&few), 1);
}

/// libtorch's library takes a slow kernel for rows that begin at no multiples of 16 bytes.
#[test]
fn rows_of_odd_lengths_are_generated() {
    for (sizes, generated) in [([8192, 50_257, 768], 1), ([8192, 50_264, 768], 0)] {
        let plan = planned(&linear("bf16", sizes, "", 4), Products::Predicted);
        assert_eq!((plan.kernel_count(), plan.extern_count()), (generated, 1 - generated), "{sizes:?}");
    }
}

/// A loop that copies its operands to shared memory computes none of them.
#[test]
fn computed_operands_are_stored_first() {
    let text = "graph {
      %0 = input 0 : bf16[64,64]@cuda:0
      %1 = input 1 : bf16[64,64]@cuda:0
      %2 = aten::relu(self=%0) : bf16[64,64]@cuda:0
      %3 = aten::mm(self=%2, mat2=%1) : bf16[64,64]@cuda:0
      outputs %3
    }";
    assert_eq!(check(text), 2);
}

/// As kernels of a processor compute it.
#[test]
fn convolutions_of_one_tap_over_channels_last_are_products_with_their_epilogue() {
    for (batch, channels, filters, size) in [(2, 16, 24, 5), (3, 72, 64, 7), (1, 64, 136, 9)] {
        for bias in [true, false] {
            let last = |c: i64| {
                format!("bf16[{batch},{c},{size},{size}]{{{},1,{},{c}}}@cuda:0", size * size * c, size * c)
            };
            let (image, out) = (last(channels), last(filters));
            let bias = if bias { "%2" } else { "None" };
            let text = format!(
                "graph {{
                   %0 = input 0 : {image}
                   %1 = param 0 : bf16[{filters},{channels},1,1]@cuda:0
                   %2 = param 1 : bf16[{filters}]@cuda:0
                   %3 = input 1 : {out}
                   %4 = aten::conv2d(input=%0, weight=%1, bias={bias}, stride=[1,1], padding=[0,0], dilation=[1,1], groups=1) : {out}
                   %5 = aten::add.Tensor(self=%4, other=%3, alpha=1) : {out}
                   %6 = aten::relu(self=%5) : {out}
                   outputs %6
                 }}"
            );
            let plan = planned(&text, Products::Generated);
            assert_eq!((plan.kernel_count(), plan.extern_count()), (1, 0), "{plan}");
            let (host, packed) = packed(&text.replace("@cuda:0", ""), 1, Products::Generated);
            let (found, expected) = (run(&plan), run_packed(&host, &packed));
            assert_eq!(found[0].len(), expected[0].len());
            for (found, expected) in found[0].iter().zip(&expected[0]) {
                assert!((found - expected).abs() <= 1e-2 * expected.abs().max(1.0), "{found} for {expected}");
            }
        }
    }
}

/// A convolution in channels-last: its sizes are those of images, channels, filters, an image and taps.
struct Windowed {
    sizes: [i64; 3],
    image: [i64; 2],
    taps: [i64; 2],
    stride: [i64; 2],
    padding: [i64; 2],
    dilation: [i64; 2],
}

impl Windowed {
    const PLAIN: Windowed = Windowed {
        sizes: [2, 64, 24],
        image: [7, 6],
        taps: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        dilation: [1, 1],
    };

    /// With a bias, an activation and a residual.
    fn text(&self) -> (String, Vec<i64>, Vec<i64>) {
        let [batch, channels, filters] = self.sizes;
        let out = [0, 1].map(|d| {
            let span = (self.taps[d] - 1) * self.dilation[d] + 1;
            (self.image[d] + 2 * self.padding[d] - span) / self.stride[d] + 1
        });
        let last = |n: i64, c: i64, [h, w]: [i64; 2]| {
            (
                format!("bf16[{n},{c},{h},{w}]{{{},1,{},{c}}}@cuda:0", h * w * c, w * c),
                [h * w * c, 1, w * c, c],
            )
        };
        let (image, _) = last(batch, channels, self.image);
        let (weight, _) = last(filters, channels, self.taps);
        let (ty, strides) = last(batch, filters, out);
        let Windowed { stride: [s, t], padding: [p, q], dilation: [d, e], .. } = self;
        let text = format!(
            "graph {{
               %0 = input 0 : {image}
               %1 = param 0 : {weight}
               %2 = param 1 : bf16[{filters}]@cuda:0
               %3 = input 1 : {ty}
               %4 = aten::conv2d(input=%0, weight=%1, bias=%2, stride=[{s},{t}], padding=[{p},{q}], dilation=[{d},{e}], groups=1) : {ty}
               %5 = aten::add(self=%4, other=%3, alpha=1) : {ty}
               %6 = aten::relu(self=%5) : {ty}
               outputs %6
             }}"
        );
        (text, vec![batch, filters, out[0], out[1]], strides.to_vec())
    }
}

#[test]
fn convolutions_over_channels_last_are_products_of_windows_with_their_epilogue() {
    for windowed in [
        Windowed { stride: [2, 2], ..Windowed::PLAIN },
        Windowed { sizes: [1, 128, 72], padding: [0, 2], ..Windowed::PLAIN },
        Windowed { sizes: [3, 64, 136], taps: [1, 1], padding: [0, 0], stride: [2, 2], ..Windowed::PLAIN },
        Windowed { taps: [2, 5], padding: [1, 3], dilation: [3, 1], stride: [1, 3], ..Windowed::PLAIN },
        Windowed { sizes: [9, 64, 8], image: [5, 4], padding: [2, 1], dilation: [2, 1], ..Windowed::PLAIN },
        // Zeros behind the channels of a tap.
        Windowed { sizes: [2, 40, 24], ..Windowed::PLAIN },
        Windowed { sizes: [2, 72, 16], ..Windowed::PLAIN },
        // Taps of a row as one run.
        Windowed { sizes: [2, 8, 16], image: [9, 8], taps: [3, 7], padding: [0, 0], ..Windowed::PLAIN },
        Windowed::PLAIN,
    ] {
        let (text, shape, strides) = windowed.text();
        let plan = planned(&text, Products::Generated);
        // Long sums are divided.
        let [_, channels, _] = windowed.sizes;
        let divided = channels % 64 == 0 && channels * windowed.taps[0] * windowed.taps[1] > 1024;
        let kernels = if divided { 2 } else { 1 };
        assert_eq!((plan.kernel_count(), plan.extern_count()), (kernels, 0), "{plan}");
        let (found, exact) = (run(&plan), evaluate(&parse_graph(&text).unwrap()));
        for point in points(&shape) {
            let (found, exact) = (found[0][position(&point, &strides)], exact[0].at(&point));
            assert!((found - exact).abs() <= 1e-2 * exact.abs().max(1.0), "{found} for {exact}: {text}");
        }
    }
}

/// Of images of few channels, the taps of a row are one step.
#[test]
fn convolutions_of_images_read_rows_of_taps() {
    let text = "graph {
      %0 = input 0 : bf16[2,3,18,20]@cuda:0
      %1 = param 0 : bf16[16,3,7,7]@cuda:0
      %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[2,2], padding=[3,3], dilation=[1,1], groups=1) : bf16[2,16,9,10]{1440,1,160,16}@cuda:0
      %3 = aten::relu(self=%2) : bf16[2,16,9,10]{1440,1,160,16}@cuda:0
      outputs %3
    }";
    let plan = planned(text, Products::Generated);
    // Images and filters are filled up in one launch.
    assert_eq!((plan.kernel_count(), plan.extern_count()), (2, 0), "{plan}");
    let (found, exact) = (run(&plan), evaluate(&parse_graph(text).unwrap()));
    for point in points(&[2, 16, 9, 10]) {
        let (found, exact) = (found[0][position(&point, &[1440, 1, 160, 16])], exact[0].at(&point));
        assert!((found - exact).abs() <= 1e-2 * exact.abs().max(1.0), "{found} for {exact}");
    }
}

/// What one step of the sum reads of an image is of one tap, and contiguous.
#[test]
fn windows_that_are_not_copied_line_by_line_are_libtorchs() {
    let (fits, ..) = Windowed::PLAIN.text();
    let rows = "bf16[24,64,3,3]{576,9,3,1}";
    let row_major = fits.replace("bf16[24,64,3,3]{576,1,192,64}", rows);
    assert!(row_major.contains(rows));
    let (odd, ..) = Windowed { sizes: [2, 36, 24], ..Windowed::PLAIN }.text();
    for (text, declined) in [odd, row_major].map(|text| (text, MatchFailure::ImageStrides)) {
        let plan = planned(&text, Products::Generated);
        let call = plan.steps.iter().find_map(|step| match &step.kind {
            StepKind::Extern(call) => Some(call),
            _ => None,
        });
        let reason = call.unwrap().reason.clone().unwrap();
        assert!(reason.contains(&declined.to_string()), "{reason}");
    }
}

#[test]
fn programs_say_how_a_gpu_runs_them() {
    for (sizes, grid, warps, stages) in [
        ([8192, 3072, 768], 24 * 64, 4, 6),
        ([8192, 768, 3072], 6 * 64, 4, 6),
        ([4096, 4096, 4096], 16 * 32, 8, 4),
        ([1024, 768, 3072], 6 * 16, 4, 8),
        ([512, 1024, 1024], 16 * 8, 4, 8),
    ] {
        let plan = planned(&linear("bf16", sizes, "", 4), Products::Generated);
        let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("a library call") };
        let program = &plan.programs[kernel.program];
        assert_eq!(kernel.grid, [grid, 1, 1], "{program}");
        assert_eq!((program.warps, program.stages), (warps, Some(stages)), "{program}");
        // So many instances end while the next kernel starts.
        assert_eq!(program.early, grid <= 8 * 132);
    }
}

/// There may be 65,535 instances along the other axes of a grid.
#[test]
fn instances_are_numbered_along_one_axis() {
    let text = bmm("[70000,64,8]", "[70000,8,64]", "[70000,64,64]");
    let plan = planned(&text, Products::Generated);
    let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("a library call") };
    assert_eq!(kernel.grid, [70_000, 1, 1]);
    assert!(!plan.programs[kernel.program].early);
}

/// A vector for each column of a block takes registers beside the sums.
#[test]
fn blocks_leave_registers_for_the_vectors_of_an_epilogue() {
    let scaled = |count: usize| {
        let mut text = String::new();
        for at in 0..count {
            let (of, to) = (4 + at, 5 + at);
            text.push_str(&format!(
                "%{} = param {at} : bf16[4096]@cuda:0\n%{to} = aten::mul.Tensor(self=%{of}, other=%{}) : bf16[4096,4096]@cuda:0\n",
                50 + at,
                50 + at
            ));
        }
        linear("bf16", [4096; 3], &text, 4 + count as u32)
    };
    let columns = |count: usize| {
        let plan = planned(&scaled(count), Products::Generated);
        assert_eq!((plan.kernel_count(), plan.extern_count()), (1, 0), "{plan}");
        let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("a library call") };
        4096 * (4096 / 128) / kernel.grid[0]
    };
    // With that of the layer itself.
    assert_eq!([0, 1, 2, 3, 4].map(columns), [256, 256, 128, 128, 128]);
}

/// libtorch's product is as quick: what decides is whether a kernel behind its call is saved.
#[test]
fn a_product_is_a_kernel_where_it_has_an_epilogue() {
    let kernels = |text: &str| {
        let plan = planned(text, Products::Predicted);
        (plan.kernel_count(), plan.extern_count())
    };
    let sizes = [8192, 3072, 768];
    assert_eq!(kernels(&linear("bf16", sizes, "", 4)), (0, 1));
    assert_eq!(kernels(&with_epilogue("bf16", sizes)), (1, 0));
    // A reduction's kernel computes what is before it.
    let behind = "%5 = aten::add.Tensor(self=%4, other=%3, alpha=1) : bf16[8192,3072]@cuda:0
                  %6 = aten::sum.dim_IntList(self=%5, dim=[1], keepdim=false) : bf16[8192]@cuda:0";
    assert_eq!(kernels(&linear("bf16", sizes, behind, 6)), (1, 1));
    // So does that of a gate, whose other side is a later product's; that one has the gate as its epilogue, if it costs little.
    let gated = |activation: &str| {
        format!(
            "graph {{
               %0 = input 0 : bf16[8192,768]@cuda:0
               %1 = input 1 : bf16[3072,768]@cuda:0
               %2 = input 2 : bf16[3072,768]@cuda:0
               %3 = aten::linear(input=%0, weight=%1, bias=None) : bf16[8192,3072]@cuda:0
               %4 = aten::{activation}(self=%3) : bf16[8192,3072]@cuda:0
               %5 = aten::linear(input=%0, weight=%2, bias=None) : bf16[8192,3072]@cuda:0
               %6 = aten::mul.Tensor(self=%4, other=%5) : bf16[8192,3072]@cuda:0
               outputs %6
             }}"
        )
    };
    assert_eq!(kernels(&gated("relu")), (1, 1));
    assert_eq!(kernels(&gated("silu")), (1, 2));
    // What is a result itself is stored by any means.
    let stored = with_epilogue("bf16", sizes).replace("outputs %6", "outputs %4, %6");
    assert_eq!(kernels(&stored), (1, 1));
}

#[test]
fn others_say_why_they_are_libtorchs() {
    for (text, declined) in [
        (linear("f32", [128, 128, 128], "", 4), MatchFailure::HalfTypes),
        (linear("bf16", [8, 4, 128], "", 4), MatchFailure::Small),
        (linear("bf16", [128, 128, 100], "", 4), MatchFailure::Strides),
    ] {
        let plan = planned(&text, Products::Generated);
        let StepKind::Extern(call) = &plan.steps[0].kind else { panic!("{text}") };
        assert_eq!(call.reason.as_deref(), Some(&*declined.to_string()), "{text}");
    }
}

/// A convolution of 64 images of so many channels and pixels along each side with 3 x 3 filters, in channels-last, and relu behind it.
fn convolution([channels, size, filters, stride]: [i64; 4]) -> String {
    let result = size / stride;
    let last = |shape: [i64; 4]| {
        let [_, c, h, w] = shape;
        format!("bf16[{},{c},{h},{w}]{{{},1,{},{c}}}@cuda:0", shape[0], c * h * w, w * c)
    };
    let ty = last([64, filters, result, result]);
    format!(
        "graph {{
           %0 = input 0 : {}
           %1 = param 0 : {}
           %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[{stride},{stride}], padding=[1,1], dilation=[1,1], groups=1) : {ty}
           %3 = aten::relu(self=%2) : {ty}
           outputs %3
         }}",
        last([64, channels, size, size]),
        last([filters, channels, 3, 3]),
    )
}

/// As measured on an H200: libtorch's convolutions take at least as long, with relu behind them.
#[test]
fn convolutions_of_resnets_are_kernels() {
    let calls = |sizes| planned(&convolution(sizes), Products::Predicted).extern_count();
    assert_eq!([[64, 56, 128, 2], [128, 28, 128, 1], [64, 56, 64, 1]].map(calls), [0, 0, 0]);
}

/// The schedules that are compared for a graph.
fn compared(text: &str) -> Vec<String> {
    let mut graph = primitive(text, &gpu());
    let mut all = Vec::new();
    choose_products(&mut graph, &gpu(), Products::Measured, None, u64::MAX, &mut |candidate| {
        all.push(candidate.template.kernel.schedule.clone());
        None
    });
    all
}

/// A block that is compared for no product or attention is none that a machine needs.
#[test]
fn every_block_of_the_machine_is_compared() {
    let units = gpu().warpgroups().unwrap();
    let mut all = Vec::new();
    for m in [64, 256, 1024, 4096, 16384] {
        for n in [64, 128, 768, 3072] {
            for k in [64, 768, 4096] {
                all.extend(compared(&linear("bf16", [m, n, k], "", 4)));
            }
        }
    }
    for channels in [64, 128, 256] {
        all.extend(compared(&convolution([channels, 56, channels, 1])));
    }
    for shape in units.products {
        let ProductShape { rows, columns, warps, stages, .. } = shape;
        let text =
            format!("blocks of {rows} x {columns}, 64 of the sum at a time, {warps} warps, {stages} stages");
        assert!(all.iter().any(|schedule| schedule.ends_with(&text)), "{text}");
    }
    for (heads, queries, keys) in [(12, 1024, 1024), (256, 128, 64), (12, 197, 197), (12, 64, 77), (12, 4, 4)]
    {
        let rows = |n: i64| format!("bf16[1,{heads},{n},64]@cuda:0");
        all.extend(compared(&format!(
            "graph {{
               %0 = input 0 : {q}
               %1 = input 1 : {k}
               %2 = input 2 : {k}
               %3 = aten::scaled_dot_product_attention(query=%0, key=%1, value=%2, attn_mask=None, dropout_p=0.0, \
               is_causal=false, scale=None, enable_gqa=false) : {q}
               outputs %3
             }}",
            q = rows(queries),
            k = rows(keys)
        )));
    }
    for AttentionShape { queries, keys, warps } in units.attention {
        let text = format!("blocks of {queries} x {keys} keys, {warps} warps");
        assert!(all.iter().any(|schedule| schedule.ends_with(&text)), "{text}");
    }
}
