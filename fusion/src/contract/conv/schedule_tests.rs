//! Schedules of convolutions on a host: which are candidates, and which is chosen by the model.

use expect_test::{Expect, expect};

use crate::contract::{Candidate, Products, Template, choose_products};
use crate::graph::Op;
use crate::machine::Profile;
use crate::pipeline::primitive;

/// A convolution: its images and filters, stride, padding and groups, and whether it is transposed.
struct Case {
    images: &'static [i64],
    filters: &'static [i64],
    window: [i64; 3],
    transposed: bool,
}

const fn conv(images: &'static [i64], filters: &'static [i64], window: [i64; 3]) -> Case {
    Case { images, filters, window, transposed: false }
}

const fn transposed(images: &'static [i64], filters: &'static [i64], window: [i64; 3]) -> Case {
    Case { images, filters, window, transposed: true }
}

/// Where operands lie, and who reads the result.
#[derive(Clone, Copy)]
struct Around {
    /// Whether images are in channels-last.
    images_last: bool,
    /// `param` or `input`.
    filters: &'static str,
    /// Whether a reduction of pixels reads the result, and else the caller.
    is_reduced: bool,
}

const IN_ROWS: Around = Around { images_last: false, filters: "param", is_reduced: false };

fn text(case: &Case, around: Around) -> String {
    let Case { images, filters, window: [stride, padding, groups], transposed } = *case;
    let axes = images.len() - 2;
    let list = |n: i64| format!("{:?}", vec![n; axes]);
    let extent = |d: usize| match transposed {
        true => (images[d] - 1) * stride + filters[d] - 2 * padding,
        false => (images[d] + 2 * padding - filters[d]) / stride + 1,
    };
    let made = if transposed { filters[1] * groups } else { filters[0] };
    let result: Vec<i64> = [images[0], made].into_iter().chain((2..axes + 2).map(extent)).collect();
    let mut strides = String::new();
    if around.images_last {
        let pixels: i64 = images[2..].iter().product();
        let along = (2..axes + 2).map(|d| images[1] * images[d + 1..].iter().product::<i64>());
        let all: Vec<String> =
            [images[1] * pixels, 1].into_iter().chain(along).map(|n| n.to_string()).collect();
        strides = format!("{{{}}}", all.join(","));
    }
    let shape = |sizes: &[i64]| format!("f32{sizes:?}").replace(' ', "");
    let call = match transposed {
        true => format!(
            "aten::conv_transpose{axes}d.input(input=%0, weight=%1, bias=None, stride={}, padding={}, \
             output_padding={}, groups={groups}, dilation={})",
            list(stride),
            list(padding),
            list(0),
            list(1)
        )
        .replace("1d.input", "1d"),
        false => format!(
            "aten::conv{axes}d(input=%0, weight=%1, bias=None, stride={}, padding={}, dilation={}, groups={groups})",
            list(stride),
            list(padding),
            list(1)
        ),
    };
    let end = match around.is_reduced {
        true => format!(
            "%3 = aten::amax(self=%2, dim={:?}, keepdim=false) : {}\n outputs %3",
            (2..axes + 2).collect::<Vec<_>>(),
            shape(&result[..2])
        ),
        false => "outputs %2".to_owned(),
    };
    format!(
        "graph {{
           %0 = input 0 : {}{strides}
           %1 = {} 1 : {}
           %2 = {call} : {}
           {end}
         }}",
        shape(images),
        around.filters,
        shape(filters),
        shape(&result)
    )
}

fn described(template: &Template) -> String {
    let kernel = &template.kernel;
    let mut text = format!("{} of {}", kernel.program.name, kernel.grid[0]);
    text.push_str(if template.panels.is_some() { " prepacked" } else { "" });
    text.push_str(if template.operand_kernels.is_empty() { "" } else { " packed" });
    text.push_str(if template.result_layout.is_some() { " last" } else { "" });
    text
}

/// What is measured, and what is chosen where nothing is.
fn shown(case: &Case, around: Around, profile: &Profile) -> String {
    let text = text(case, around);
    let graph = primitive(&text, profile);
    let mut seen = Vec::new();
    let mut measure = |candidate: &Candidate<'_>| {
        seen.push(described(&candidate.template));
        None
    };
    choose_products(&mut graph.clone(), profile, Products::Measured, Some(0), u64::MAX, &mut measure);
    let mut chosen = graph.clone();
    choose_products(&mut chosen, profile, Products::Predicted, Some(0), u64::MAX, &mut |_| None);
    let chosen = chosen.ids().find_map(|id| match (&chosen.node(id).op, &chosen.node(id).kernel) {
        (Op::Aten(call), Some(kernel)) if call.op.contains("conv") => Some(match kernel {
            Ok(kernel) => format!("{} of {}", kernel.program.name, kernel.grid[0]),
            Err(_) => "libtorch".to_owned(),
        }),
        _ => None,
    });
    format!("[{}] -> {}", seen.join("; "), chosen.unwrap_or_else(|| "none".to_owned()))
}

fn check(around: Around, all: &[Case], expected: Expect) {
    let mut table = String::new();
    for case in all {
        let Case { images, filters, window: [stride, padding, groups], .. } = case;
        let call = format!("{images:?} * {filters:?} /{stride} +{padding} g{groups}").replace(", ", ",");
        table.push_str(&format!("{call}: {}\n", shown(case, around, &Profile::host(2))));
    }
    expected.assert_eq(&table);
}

const RESNET: &[Case] = &[
    conv(&[1, 3, 224, 224], &[64, 3, 7, 7], [2, 3, 1]),
    conv(&[1, 64, 56, 56], &[64, 64, 1, 1], [1, 0, 1]),
    conv(&[1, 64, 56, 56], &[64, 64, 3, 3], [1, 1, 1]),
    conv(&[1, 64, 56, 56], &[256, 64, 1, 1], [1, 0, 1]),
    conv(&[1, 128, 56, 56], &[128, 128, 3, 3], [2, 1, 1]),
    conv(&[1, 256, 56, 56], &[512, 256, 1, 1], [2, 0, 1]),
    conv(&[1, 256, 14, 14], &[256, 256, 3, 3], [1, 1, 1]),
    conv(&[1, 1024, 14, 14], &[256, 1024, 1, 1], [1, 0, 1]),
    conv(&[1, 512, 7, 7], &[512, 512, 3, 3], [1, 1, 1]),
    conv(&[1, 2048, 7, 7], &[512, 2048, 1, 1], [1, 0, 1]),
    conv(&[8, 64, 56, 56], &[64, 64, 3, 3], [1, 1, 1]),
];

const MOBILE: &[Case] = &[
    conv(&[1, 3, 224, 224], &[32, 3, 3, 3], [2, 1, 1]),
    conv(&[1, 32, 112, 112], &[32, 1, 3, 3], [1, 1, 32]),
    conv(&[1, 96, 112, 112], &[96, 1, 3, 3], [2, 1, 96]),
    conv(&[1, 16, 112, 112], &[96, 16, 1, 1], [1, 0, 1]),
    conv(&[1, 960, 7, 7], &[160, 960, 1, 1], [1, 0, 1]),
    // EfficientNet: five taps, and one pixel.
    conv(&[1, 672, 14, 14], &[672, 1, 5, 5], [2, 2, 672]),
    conv(&[1, 1152, 1, 1], &[48, 1152, 1, 1], [1, 0, 1]),
    // ConvNeXt: patches, and seven taps.
    conv(&[1, 3, 224, 224], &[96, 3, 4, 4], [4, 0, 1]),
    conv(&[1, 96, 56, 56], &[96, 1, 7, 7], [1, 3, 96]),
    conv(&[1, 96, 56, 56], &[192, 96, 2, 2], [2, 0, 1]),
];

const OTHERS: &[Case] = &[
    // U-Net.
    conv(&[1, 64, 128, 128], &[64, 64, 3, 3], [1, 1, 1]),
    conv(&[1, 512, 16, 16], &[512, 512, 3, 3], [1, 1, 1]),
    conv(&[1, 64, 128, 128], &[2, 64, 1, 1], [1, 0, 1]),
    // Groups that fill vectors, and others.
    conv(&[1, 128, 28, 28], &[128, 32, 3, 3], [1, 1, 4]),
    conv(&[1, 128, 28, 28], &[128, 4, 3, 3], [1, 1, 32]),
    // One axis, and three.
    conv(&[1, 80, 3000], &[384, 80, 3], [1, 1, 1]),
    conv(&[1, 384, 3000], &[384, 384, 3], [2, 1, 1]),
    conv(&[1, 512, 400], &[512, 1, 31], [1, 15, 512]),
    conv(&[1, 1, 8000], &[512, 1, 10], [5, 0, 1]),
    conv(&[1, 3, 8, 56, 56], &[64, 3, 3, 3, 3], [1, 1, 1]),
    conv(&[1, 64, 4, 14, 14], &[64, 64, 3, 3, 3], [1, 1, 1]),
];

const TRANSPOSED: &[Case] = &[
    transposed(&[1, 512, 16, 16], &[512, 256, 2, 2], [2, 0, 1]),
    transposed(&[1, 128, 64, 64], &[128, 64, 2, 2], [2, 0, 1]),
    transposed(&[1, 100, 1, 1], &[100, 512, 4, 4], [1, 0, 1]),
    transposed(&[1, 256, 8, 8], &[256, 128, 4, 4], [2, 1, 1]),
    transposed(&[1, 64, 32, 32], &[64, 3, 4, 4], [2, 1, 1]),
    transposed(&[1, 64, 32, 32], &[64, 1, 4, 4], [2, 1, 64]),
    transposed(&[1, 64, 100], &[64, 32, 16], [8, 4, 1]),
];

#[test]
fn schedules_say_what_they_are() {
    let cases = [
        conv(&[1, 64, 56, 56], &[64, 64, 3, 3], [1, 1, 1]),
        conv(&[1, 32, 112, 112], &[32, 1, 3, 3], [1, 1, 32]),
        transposed(&[1, 64, 32, 32], &[64, 3, 4, 4], [2, 1, 1]),
    ];
    let mut seen = String::new();
    for case in &cases {
        let mut graph = primitive(&text(case, IN_ROWS), &Profile::host(2));
        let mut measure = |candidate: &Candidate<'_>| {
            seen.push_str(&format!("{}\n", candidate.template.kernel.schedule));
            None
        };
        choose_products(&mut graph, &Profile::host(2), Products::Measured, Some(0), u64::MAX, &mut measure);
    }
    expect![[r#"
        direct convolution, blocks of 32 pixels x 8 filters
        direct convolution, blocks of 14 pixels x 32 filters, filters in panels, prepacked
        depthwise convolution, blocks of 256 pixels x 32 filters
        transposed convolution, blocks of 16 pixels x 4 filters, by phases of the stride
        transposed convolution, blocks of 22 pixels x 16 filters, filters in panels, prepacked
    "#]]
    .assert_eq(&seen);
}

#[test]
fn results_that_the_caller_reads() {
    let around = IN_ROWS;
    check(
        around,
        RESNET,
        expect![[r#"
        [1,3,224,224] * [64,3,7,7] /2 +3 g1: [conv_packed of 1792 prepacked; conv of 3136] -> conv_packed of 1792
        [1,64,56,56] * [64,64,1,1] /1 +0 g1: [conv of 784; conv_packed of 523 prepacked] -> conv of 784
        [1,64,56,56] * [64,64,3,3] /1 +1 g1: [conv of 784; conv_packed of 448 prepacked] -> conv of 784
        [1,64,56,56] * [256,64,1,1] /1 +0 g1: [conv of 3136; conv_packed of 2092 prepacked] -> conv of 3136
        [1,128,56,56] * [128,128,3,3] /2 +1 g1: [conv_packed of 224 prepacked; conv of 448] -> conv_packed of 224
        [1,256,56,56] * [512,256,1,1] /2 +0 g1: [conv_packed of 896 prepacked; conv of 1792] -> conv_packed of 896
        [1,256,14,14] * [256,256,3,3] /1 +1 g1: [conv_packed of 112 prepacked; conv of 224] -> conv_packed of 112
        [1,1024,14,14] * [256,1024,1,1] /1 +0 g1: [conv_packed of 132 prepacked; conv of 224] -> conv_packed of 132
        [1,512,7,7] * [512,512,3,3] /1 +1 g1: [conv_packed of 77 prepacked; conv of 128] -> conv_packed of 77
        [1,2048,7,7] * [512,2048,1,1] /1 +0 g1: [conv_packed of 80 prepacked; conv of 128] -> conv_packed of 80
        [8,64,56,56] * [64,64,3,3] /1 +1 g1: [conv of 6272; conv_packed of 3584 prepacked] -> conv of 6272
    "#]],
    );
    check(
        around,
        MOBILE,
        expect![[r#"
        [1,3,224,224] * [32,3,3,3] /2 +1 g1: [conv of 1568; conv_packed of 896 prepacked] -> conv of 1568
        [1,32,112,112] * [32,1,3,3] /1 +1 g32: [conv_depthwise of 49] -> conv_depthwise of 49
        [1,96,112,112] * [96,1,3,3] /2 +1 g96: [conv_depthwise of 168] -> conv_depthwise of 168
        [1,16,112,112] * [96,16,1,1] /1 +0 g1: [conv of 4704] -> conv of 4704
        [1,960,7,7] * [160,960,1,1] /1 +0 g1: [conv_packed of 25 prepacked; conv of 40] -> conv_packed of 25
        [1,672,14,14] * [672,1,5,5] /2 +2 g672: [conv_depthwise of 42] -> conv_depthwise of 42
        [1,1152,1,1] * [48,1152,1,1] /1 +0 g1: [conv_packed of 1 prepacked last] -> libtorch
        [1,3,224,224] * [96,3,4,4] /4 +0 g1: [conv_packed of 784 prepacked; conv of 1344] -> conv_packed of 784
        [1,96,56,56] * [96,1,7,7] /1 +3 g96: [conv_depthwise of 39] -> conv_depthwise of 39
        [1,96,56,56] * [192,96,2,2] /2 +0 g1: [conv_packed of 336 prepacked; conv of 672] -> conv_packed of 336
    "#]],
    );
    check(
        around,
        OTHERS,
        expect![[r#"
        [1,64,128,128] * [64,64,3,3] /1 +1 g1: [conv of 4096; conv_packed of 2560 prepacked] -> conv of 4096
        [1,512,16,16] * [512,512,3,3] /1 +1 g1: [conv_packed of 352 prepacked; conv of 512] -> conv_packed of 352
        [1,64,128,128] * [2,64,1,1] /1 +0 g1: [conv of 256; conv_packed of 586 prepacked] -> conv of 256
        [1,128,28,28] * [128,32,3,3] /1 +1 g4: [conv of 400; conv_packed of 224 prepacked] -> conv of 400
        [1,128,28,28] * [128,4,3,3] /1 +1 g32: [conv of 416] -> conv of 416
        [1,80,3000] * [384,80,3] /1 +1 g1: [conv of 4512; conv_packed of 2772 prepacked] -> conv of 4512
        [1,384,3000] * [384,384,3] /2 +1 g1: [conv_packed of 1504 prepacked; conv of 2256] -> conv_packed of 1504
        [1,512,400] * [512,1,31] /1 +15 g512: [conv_depthwise of 32] -> conv_depthwise of 32
        [1,1,8000] * [512,1,10] /5 +0 g1: [conv_depthwise of 112] -> conv_depthwise of 112
        [1,3,8,56,56] * [64,3,3,3,3] /1 +1 g1: [conv of 6272; conv_packed of 3584 prepacked] -> conv of 6272
        [1,64,4,14,14] * [64,64,3,3,3] /1 +1 g1: [conv_packed of 112 prepacked; conv of 200] -> conv_packed of 112
    "#]],
    );
    check(
        around,
        TRANSPOSED,
        expect![[r#"
        [1,512,16,16] * [512,256,2,2] /2 +0 g1: [conv_packed of 1024 prepacked] -> conv_packed of 1024
        [1,128,64,64] * [128,64,2,2] /2 +0 g1: [conv_packed of 2816 prepacked] -> conv_packed of 2816
        [1,100,1,1] * [100,512,4,4] /1 +0 g1: [conv_packed of 32 prepacked] -> conv_packed of 32
        [1,256,8,8] * [256,128,4,4] /2 +1 g1: [conv_packed of 128 prepacked] -> conv_packed of 128
        [1,64,32,32] * [64,3,4,4] /2 +1 g1: [conv_transposed of 16; conv_packed of 192 prepacked] -> conv_transposed of 16
        [1,64,32,32] * [64,1,4,4] /2 +1 g64: [conv_transposed_depthwise of 64] -> conv_transposed_depthwise of 64
        [1,64,100] * [64,32,16] /8 +4 g1: [conv_packed of 68 prepacked] -> conv_packed of 68
    "#]],
    );
}

#[test]
fn results_that_kernels_read() {
    let around = Around { is_reduced: true, ..IN_ROWS };
    check(
        around,
        RESNET,
        expect![[r#"
        [1,3,224,224] * [64,3,7,7] /2 +3 g1: [conv_packed of 1792 prepacked last] -> conv_packed of 1792
        [1,64,56,56] * [64,64,1,1] /1 +0 g1: [conv_packed of 523 prepacked last] -> conv_packed of 523
        [1,64,56,56] * [64,64,3,3] /1 +1 g1: [conv_packed of 448 prepacked last] -> conv_packed of 448
        [1,64,56,56] * [256,64,1,1] /1 +0 g1: [conv_packed of 2092 prepacked last] -> conv_packed of 2092
        [1,128,56,56] * [128,128,3,3] /2 +1 g1: [conv_packed of 224 prepacked last] -> conv_packed of 224
        [1,256,56,56] * [512,256,1,1] /2 +0 g1: [conv_packed of 896 prepacked last] -> conv_packed of 896
        [1,256,14,14] * [256,256,3,3] /1 +1 g1: [conv_packed of 112 prepacked last] -> conv_packed of 112
        [1,1024,14,14] * [256,1024,1,1] /1 +0 g1: [conv_packed of 132 prepacked last] -> conv_packed of 132
        [1,512,7,7] * [512,512,3,3] /1 +1 g1: [conv_packed of 77 prepacked last] -> conv_packed of 77
        [1,2048,7,7] * [512,2048,1,1] /1 +0 g1: [conv_packed of 80 prepacked last] -> conv_packed of 80
        [8,64,56,56] * [64,64,3,3] /1 +1 g1: [conv_packed of 3584 prepacked last] -> conv_packed of 3584
    "#]],
    );
    check(
        around,
        MOBILE,
        expect![[r#"
        [1,3,224,224] * [32,3,3,3] /2 +1 g1: [conv_packed of 896 prepacked last] -> conv_packed of 896
        [1,32,112,112] * [32,1,3,3] /1 +1 g32: [conv_depthwise of 49] -> conv_depthwise of 49
        [1,96,112,112] * [96,1,3,3] /2 +1 g96: [conv_depthwise of 168] -> conv_depthwise of 168
        [1,16,112,112] * [96,16,1,1] /1 +0 g1: [conv_packed of 2788 prepacked last] -> conv_packed of 2788
        [1,960,7,7] * [160,960,1,1] /1 +0 g1: [conv_packed of 25 prepacked last] -> conv_packed of 25
        [1,672,14,14] * [672,1,5,5] /2 +2 g672: [conv_depthwise of 42] -> conv_depthwise of 42
        [1,1152,1,1] * [48,1152,1,1] /1 +0 g1: [conv_packed of 1 prepacked last] -> libtorch
        [1,3,224,224] * [96,3,4,4] /4 +0 g1: [conv_packed of 784 prepacked last] -> conv_packed of 784
        [1,96,56,56] * [96,1,7,7] /1 +3 g96: [conv_depthwise of 39] -> conv_depthwise of 39
        [1,96,56,56] * [192,96,2,2] /2 +0 g1: [conv_packed of 336 prepacked last] -> conv_packed of 336
    "#]],
    );
    check(
        around,
        OTHERS,
        expect![[r#"
        [1,64,128,128] * [64,64,3,3] /1 +1 g1: [conv_packed of 2560 prepacked last] -> conv_packed of 2560
        [1,512,16,16] * [512,512,3,3] /1 +1 g1: [conv_packed of 352 prepacked last] -> conv_packed of 352
        [1,64,128,128] * [2,64,1,1] /1 +0 g1: [conv_packed of 586 prepacked last] -> conv_packed of 586
        [1,128,28,28] * [128,32,3,3] /1 +1 g4: [conv_packed of 224 prepacked last] -> conv_packed of 224
        [1,128,28,28] * [128,4,3,3] /1 +1 g32: [conv of 416] -> conv of 416
        [1,80,3000] * [384,80,3] /1 +1 g1: [conv_packed of 2772 prepacked last] -> conv_packed of 2772
        [1,384,3000] * [384,384,3] /2 +1 g1: [conv_packed of 1504 prepacked last] -> conv_packed of 1504
        [1,512,400] * [512,1,31] /1 +15 g512: [conv_depthwise of 32] -> conv_depthwise of 32
        [1,1,8000] * [512,1,10] /5 +0 g1: [conv_depthwise of 112] -> conv_depthwise of 112
        [1,3,8,56,56] * [64,3,3,3,3] /1 +1 g1: [conv_packed of 3584 prepacked last] -> conv_packed of 3584
        [1,64,4,14,14] * [64,64,3,3,3] /1 +1 g1: [conv_packed of 112 prepacked last] -> conv_packed of 112
    "#]],
    );
    check(
        around,
        TRANSPOSED,
        expect![[r#"
        [1,512,16,16] * [512,256,2,2] /2 +0 g1: [conv_packed of 1024 prepacked last] -> conv_packed of 1024
        [1,128,64,64] * [128,64,2,2] /2 +0 g1: [conv_packed of 2816 prepacked last] -> conv_packed of 2816
        [1,100,1,1] * [100,512,4,4] /1 +0 g1: [conv_packed of 32 prepacked last] -> conv_packed of 32
        [1,256,8,8] * [256,128,4,4] /2 +1 g1: [conv_packed of 128 prepacked last] -> conv_packed of 128
        [1,64,32,32] * [64,3,4,4] /2 +1 g1: [conv_packed of 192 prepacked last] -> conv_packed of 192
        [1,64,32,32] * [64,1,4,4] /2 +1 g64: [conv_transposed_depthwise of 64] -> conv_transposed_depthwise of 64
        [1,64,100] * [64,32,16] /8 +4 g1: [conv_packed of 68 prepacked last] -> conv_packed of 68
    "#]],
    );
}

#[test]
fn images_in_channels_last() {
    let around = Around { images_last: true, ..IN_ROWS };
    check(
        around,
        RESNET,
        expect![[r#"
        [1,3,224,224] * [64,3,7,7] /2 +3 g1: [conv_packed of 1792 prepacked] -> conv_packed of 1792
        [1,64,56,56] * [64,64,1,1] /1 +0 g1: [conv_packed of 523 prepacked] -> conv_packed of 523
        [1,64,56,56] * [64,64,3,3] /1 +1 g1: [conv_packed of 448 prepacked] -> conv_packed of 448
        [1,64,56,56] * [256,64,1,1] /1 +0 g1: [conv_packed of 2092 prepacked] -> conv_packed of 2092
        [1,128,56,56] * [128,128,3,3] /2 +1 g1: [conv_packed of 224 prepacked] -> conv_packed of 224
        [1,256,56,56] * [512,256,1,1] /2 +0 g1: [conv_packed of 896 prepacked] -> conv_packed of 896
        [1,256,14,14] * [256,256,3,3] /1 +1 g1: [conv_packed of 112 prepacked] -> conv_packed of 112
        [1,1024,14,14] * [256,1024,1,1] /1 +0 g1: [conv_packed of 132 prepacked] -> conv_packed of 132
        [1,512,7,7] * [512,512,3,3] /1 +1 g1: [conv_packed of 77 prepacked] -> conv_packed of 77
        [1,2048,7,7] * [512,2048,1,1] /1 +0 g1: [conv_packed of 80 prepacked] -> conv_packed of 80
        [8,64,56,56] * [64,64,3,3] /1 +1 g1: [conv_packed of 3584 prepacked] -> conv_packed of 3584
    "#]],
    );
    check(
        around,
        MOBILE,
        expect![[r#"
        [1,3,224,224] * [32,3,3,3] /2 +1 g1: [conv_packed of 896 prepacked] -> conv_packed of 896
        [1,32,112,112] * [32,1,3,3] /1 +1 g32: [] -> libtorch
        [1,96,112,112] * [96,1,3,3] /2 +1 g96: [] -> libtorch
        [1,16,112,112] * [96,16,1,1] /1 +0 g1: [conv_packed of 2788 prepacked] -> conv_packed of 2788
        [1,960,7,7] * [160,960,1,1] /1 +0 g1: [conv_packed of 25 prepacked] -> conv_packed of 25
        [1,672,14,14] * [672,1,5,5] /2 +2 g672: [] -> libtorch
        [1,1152,1,1] * [48,1152,1,1] /1 +0 g1: [conv_packed of 1 prepacked last] -> libtorch
        [1,3,224,224] * [96,3,4,4] /4 +0 g1: [conv_packed of 784 prepacked] -> conv_packed of 784
        [1,96,56,56] * [96,1,7,7] /1 +3 g96: [] -> libtorch
        [1,96,56,56] * [192,96,2,2] /2 +0 g1: [conv_packed of 336 prepacked] -> conv_packed of 336
    "#]],
    );
    check(
        Around { is_reduced: true, ..around },
        MOBILE,
        expect![[r#"
        [1,3,224,224] * [32,3,3,3] /2 +1 g1: [conv_packed of 896 prepacked last] -> conv_packed of 896
        [1,32,112,112] * [32,1,3,3] /1 +1 g32: [conv_depthwise of 1568 prepacked last] -> conv_depthwise of 1568
        [1,96,112,112] * [96,1,3,3] /2 +1 g96: [conv_depthwise of 1344 prepacked last] -> conv_depthwise of 1344
        [1,16,112,112] * [96,16,1,1] /1 +0 g1: [conv_packed of 2788 prepacked last] -> conv_packed of 2788
        [1,960,7,7] * [160,960,1,1] /1 +0 g1: [conv_packed of 25 prepacked last] -> conv_packed of 25
        [1,672,14,14] * [672,1,5,5] /2 +2 g672: [conv_depthwise of 294 prepacked last] -> conv_depthwise of 294
        [1,1152,1,1] * [48,1152,1,1] /1 +0 g1: [conv_packed of 1 prepacked last] -> libtorch
        [1,3,224,224] * [96,3,4,4] /4 +0 g1: [conv_packed of 784 prepacked last] -> conv_packed of 784
        [1,96,56,56] * [96,1,7,7] /1 +3 g96: [conv_depthwise of 1344 prepacked last] -> conv_depthwise of 1344
        [1,96,56,56] * [192,96,2,2] /2 +0 g1: [conv_packed of 336 prepacked last] -> conv_packed of 336
    "#]],
    );
    check(
        around,
        OTHERS,
        expect![[r#"
        [1,64,128,128] * [64,64,3,3] /1 +1 g1: [conv_packed of 2560 prepacked] -> conv_packed of 2560
        [1,512,16,16] * [512,512,3,3] /1 +1 g1: [conv_packed of 352 prepacked] -> conv_packed of 352
        [1,64,128,128] * [2,64,1,1] /1 +0 g1: [conv_packed of 586 prepacked] -> conv_packed of 586
        [1,128,28,28] * [128,32,3,3] /1 +1 g4: [conv_packed of 224 prepacked] -> conv_packed of 224
        [1,128,28,28] * [128,4,3,3] /1 +1 g32: [] -> libtorch
        [1,80,3000] * [384,80,3] /1 +1 g1: [conv_packed of 2772 prepacked] -> conv_packed of 2772
        [1,384,3000] * [384,384,3] /2 +1 g1: [conv_packed of 1504 prepacked] -> conv_packed of 1504
        [1,512,400] * [512,1,31] /1 +15 g512: [] -> libtorch
        [1,1,8000] * [512,1,10] /5 +0 g1: [conv_depthwise of 112] -> conv_depthwise of 112
        [1,3,8,56,56] * [64,3,3,3,3] /1 +1 g1: [conv_packed of 3584 prepacked] -> conv_packed of 3584
        [1,64,4,14,14] * [64,64,3,3,3] /1 +1 g1: [conv_packed of 112 prepacked] -> conv_packed of 112
    "#]],
    );
    check(
        around,
        TRANSPOSED,
        expect![[r#"
        [1,512,16,16] * [512,256,2,2] /2 +0 g1: [conv_packed of 1024 prepacked] -> conv_packed of 1024
        [1,128,64,64] * [128,64,2,2] /2 +0 g1: [conv_packed of 2816 prepacked] -> conv_packed of 2816
        [1,100,1,1] * [100,512,4,4] /1 +0 g1: [conv_packed of 32 prepacked] -> conv_packed of 32
        [1,256,8,8] * [256,128,4,4] /2 +1 g1: [conv_packed of 128 prepacked] -> conv_packed of 128
        [1,64,32,32] * [64,3,4,4] /2 +1 g1: [conv_packed of 192 prepacked] -> conv_packed of 192
        [1,64,32,32] * [64,1,4,4] /2 +1 g64: [conv_depthwise of 1024 prepacked] -> conv_depthwise of 1024
        [1,64,100] * [64,32,16] /8 +4 g1: [conv_packed of 68 prepacked] -> conv_packed of 68
    "#]],
    );
}

#[test]
fn filters_that_are_no_weights() {
    let around = Around { filters: "input", ..IN_ROWS };
    check(
        around,
        RESNET,
        expect![[r#"
        [1,3,224,224] * [64,3,7,7] /2 +3 g1: [conv of 3136] -> conv of 3136
        [1,64,56,56] * [64,64,1,1] /1 +0 g1: [conv of 784] -> conv of 784
        [1,64,56,56] * [64,64,3,3] /1 +1 g1: [conv of 784] -> conv of 784
        [1,64,56,56] * [256,64,1,1] /1 +0 g1: [conv of 3136] -> conv of 3136
        [1,128,56,56] * [128,128,3,3] /2 +1 g1: [conv of 448] -> conv of 448
        [1,256,56,56] * [512,256,1,1] /2 +0 g1: [conv of 1792] -> conv of 1792
        [1,256,14,14] * [256,256,3,3] /1 +1 g1: [conv of 224] -> conv of 224
        [1,1024,14,14] * [256,1024,1,1] /1 +0 g1: [conv of 224] -> conv of 224
        [1,512,7,7] * [512,512,3,3] /1 +1 g1: [conv of 128] -> conv of 128
        [1,2048,7,7] * [512,2048,1,1] /1 +0 g1: [conv of 128] -> conv of 128
        [8,64,56,56] * [64,64,3,3] /1 +1 g1: [conv of 6272] -> conv of 6272
    "#]],
    );
    check(
        around,
        TRANSPOSED,
        expect![[r#"
        [1,512,16,16] * [512,256,2,2] /2 +0 g1: [conv_packed of 1024 packed] -> conv_packed of 1024
        [1,128,64,64] * [128,64,2,2] /2 +0 g1: [conv_packed of 2816 packed] -> conv_packed of 2816
        [1,100,1,1] * [100,512,4,4] /1 +0 g1: [conv_packed of 32 packed] -> libtorch
        [1,256,8,8] * [256,128,4,4] /2 +1 g1: [conv_packed of 128 packed] -> conv_packed of 128
        [1,64,32,32] * [64,3,4,4] /2 +1 g1: [conv_transposed of 16; conv_packed of 192 packed] -> conv_transposed of 16
        [1,64,32,32] * [64,1,4,4] /2 +1 g64: [conv_transposed_depthwise of 64] -> conv_transposed_depthwise of 64
        [1,64,100] * [64,32,16] /8 +4 g1: [conv_packed of 68 packed] -> conv_packed of 68
    "#]],
    );
}
