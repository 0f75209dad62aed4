//! What block kernels are predicted to take in a model, beside what they take by themselves.

use std::fmt::Display;

use expect_test::{Expect, expect};

use crate::contract::{Candidate, Products, Times, choose_products};
use crate::machine::Profile;
use crate::pipeline::{plan, primitive};
use crate::plan::StepKind;

/// The predicted times of the kernels of a graph whose calls were measured at this time, by themselves.
fn predicted(text: &str, alone_us: f64, profile: &Profile) -> Vec<i64> {
    let mut graph = primitive(text, profile);
    let mut measure =
        |_: &Candidate<'_>| Some(Times { generated_us: alone_us, library_us: 9e9, measured: true });
    choose_products(&mut graph, profile, Products::Measured, Some(0), u64::MAX, &mut measure);
    let plan = plan(&graph, profile).unwrap();
    let kernels = plan.steps.iter().filter_map(|step| match &step.kind {
        StepKind::Kernel(kernel) => Some(kernel.predicted_us.round() as i64),
        StepKind::Extern(_) => None,
    });
    kernels.collect()
}

/// A convolution behind a relu, with so many of the operators that follow it.
fn conv([channels, size, filters, kernel]: [i64; 4], behind: usize) -> String {
    let (image, result) =
        (format!("f32[1,{channels},{size},{size}]"), format!("f32[1,{filters},{size},{size}]"));
    let pad = kernel / 2;
    let text = format!(
        "graph {{
           %0 = input 0 : {image}
           %1 = param 1 : f32[{filters},{channels},{kernel},{kernel}]
           %2 = param 2 : f32[{filters}]
           %3 = param 3 : f32[{filters}]
           %4 = input 4 : {result}
           %5 = aten::relu(self=%0) : {image}
           %6 = aten::conv2d(input=%5, weight=%1, bias=None, stride=[1,1], padding=[{pad},{pad}], dilation=[1,1], groups=1) : {result}
           %7 = aten::batch_norm(input=%6, weight=%2, bias=%3, running_mean=%2, running_var=%3, training=false, momentum=0.1, eps=1e-5, cudnn_enabled=true) : {result}
           %8 = aten::relu(self=%7) : {result}
           %9 = aten::add.Tensor(self=%8, other=%4, alpha=1) : {result}
         "
    );
    let last = [6, 8, 9][behind];
    format!("{text}  outputs %{last}\n}}")
}

fn check(rows: &[(impl Display, String)], expected: Expect) {
    let profile = Profile::host(1).with_cache(2 << 20);
    let shown = rows.iter().map(|(name, text)| {
        let all = predicted(text, 1000.0, &profile);
        format!("{name:<40} {:5} us\n", all.last().unwrap())
    });
    expected.assert_eq(&shown.collect::<String>());
}

/// All of these compute as much, and take as long in a loop.
#[test]
fn few_rows_of_pixels_wait_for_their_weights() {
    let name = |n: &[i64; 4]| format!("{} x {} x {}, {} x {}", n[0], n[1], n[1], n[3], n[3]);
    let all = [[64, 56, 64, 3], [128, 28, 128, 3], [256, 14, 256, 3], [512, 7, 512, 3], [2048, 7, 512, 1]];
    let rows: Vec<_> = all.iter().map(|n| (name(n), conv(*n, 0))).collect();
    check(
        &rows,
        expect![[r#"
        64 x 56 x 56, 3 x 3                       1002 us
        128 x 28 x 28, 3 x 3                      1031 us
        256 x 14 x 14, 3 x 3                      1126 us
        512 x 7 x 7, 3 x 3                        1669 us
        2048 x 7 x 7, 1 x 1                       1250 us
    "#]],
    );
}

/// A product reads its weights from memory while it computes with those that are there.
#[test]
fn rows_in_one_block_read_weights_once() {
    let product = |rows: i64| {
        format!(
            "graph {{
               %0 = input 0 : f32[{rows},3072]
               %1 = param 1 : f32[768,3072]
               %2 = aten::relu(self=%0) : f32[{rows},3072]
               %3 = aten::linear(input=%2, weight=%1, bias=None) : f32[{rows},768]
               outputs %3
             }}"
        )
    };
    check(
        &[("1 row", product(1)), ("128 rows", product(128))],
        expect![[r#"
        1 row                                     1038 us
        128 rows                                  1000 us
    "#]],
    );
}

/// The factors of a batch norm are computed once for all pixels of an instance, and what is added to its result is in the caches.
#[test]
fn neighbours_take_little_of_a_convolution() {
    let [alone, normed, added] = [0, 1, 2].map(|behind| conv([64, 28, 256, 1], behind));
    check(
        &[("convolution", alone), ("batch norm, relu", normed), ("batch norm, relu, sum", added)],
        expect![[r#"
            convolution                               1000 us
            batch norm, relu                          1021 us
            batch norm, relu, sum                     1042 us
        "#]],
    );
}
