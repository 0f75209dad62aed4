//! Schedules of products on a host: which are candidates, and that all compute the same.

use expect_test::{Expect, expect};

use super::tests::{evaluate, run_packed};
use super::{Prepacked, Products, Times, choose_products};
use crate::machine::Profile;
use crate::parse_graph;
use crate::pipeline::{plan, primitive};
use crate::plan::{Plan, Step, StepKind};

/// A product whose right operand is a parameter or an input.
fn product(right: &str, elem: &str, [m, n, k]: [i64; 3]) -> String {
    format!(
        "graph {{
           %0 = input 0 : {elem}[{m},{k}]
           %1 = {right} 1 : {elem}[{k},{n}]
           %2 = aten::mm(self=%0, mat2=%1) : {elem}[{m},{n}]
           outputs %2
         }}"
    )
}

/// The schedules of the kernels that are measured for a graph, and the plan if that with this number is the quickest.
fn measured(text: &str, profile: &Profile, quickest: usize) -> (Vec<String>, Plan, Vec<Prepacked>) {
    let mut graph = primitive(text, profile);
    let mut all = Vec::new();
    let mut measure = |candidate: &super::Candidate<'_>| {
        let generated_us = if all.len() == quickest { 1.0 } else { 2.0 };
        let packs = candidate.template.operand_kernels.len();
        let packs = if packs > 0 { format!(", {packs} packed") } else { String::new() };
        all.push(format!("{}{packs}", candidate.template.kernel.schedule));
        Some(Times { generated_us, library_us: 9.0, measured: true })
    };
    let packed = choose_products(&mut graph, profile, Products::Measured, Some(0), u64::MAX, &mut measure);
    (all, plan(&graph, profile).unwrap(), packed)
}

fn check(profile: &Profile, all: &[(&str, &str, [i64; 3])], expected: Expect) {
    let shown = all.iter().map(|&(right, elem, sizes)| {
        let (schedules, ..) = measured(&product(right, elem, sizes), profile, 0);
        format!("{right} {elem} {sizes:?}: {}\n", schedules.join("; "))
    });
    expected.assert_eq(&shown.collect::<String>());
}

#[test]
fn schedules_that_come_near_the_best_are_measured() {
    check(
        &Profile::host(2),
        &[
            ("param", "f32", [1, 1024, 1024]),
            ("param", "f32", [3, 1024, 1024]),
            ("param", "f32", [16, 1024, 1024]),
            ("param", "f32", [64, 1024, 1024]),
            ("param", "f32", [197, 768, 3072]),
            ("input", "f32", [1, 1024, 1024]),
            ("input", "f32", [16, 1024, 1024]),
            ("input", "f32", [64, 1024, 1024]),
            ("input", "f32", [1024, 1024, 1024]),
            ("input", "f32", [32, 32, 65536]),
            ("input", "f32", [256, 64, 6144]),
            ("input", "f32", [1, 16, 65536]),
            ("input", "f32", [4, 1024, 65536]),
            ("input", "f32", [32, 32, 1536]),
        ],
        expect![[r#"
            param f32 [1, 1024, 1024]: few rows (GEMV), 128 columns at a time
            param f32 [3, 1024, 1024]: blocks of 4 x 64, 128 of the sum at a time, right operand in panels, prepacked; few rows (GEMV), 128 columns at a time
            param f32 [16, 1024, 1024]: blocks of 16 x 64, 128 of the sum at a time, right operand in panels, prepacked
            param f32 [64, 1024, 1024]: blocks of 64 x 64, 128 of the sum at a time, right operand in panels, prepacked
            param f32 [197, 768, 3072]: unaligned GEMM, blocks of 6 x 64, right operand in panels, prepacked
            input f32 [1, 1024, 1024]: few rows (GEMV), 128 columns at a time
            input f32 [16, 1024, 1024]: blocks of 16 x 64, 128 of the sum at a time
            input f32 [64, 1024, 1024]: blocks of 64 x 64, 128 of the sum at a time; blocks of 64 x 64, 128 of the sum at a time, right operand in panels, 2 packed
            input f32 [1024, 1024, 1024]: blocks of 128 x 64, 128 of the sum at a time, right operand in panels, 2 packed
            input f32 [32, 32, 65536]: split-K: adds 16 parts, 1 packed
            input f32 [256, 64, 6144]: blocks of 128 x 64, 128 of the sum at a time, right operand in panels, 1 packed; blocks of 128 x 64, 128 of the sum at a time
            input f32 [1, 16, 65536]: split-K: adds 16 parts, 1 packed
            input f32 [4, 1024, 65536]: blocks of 4 x 64, 128 of the sum at a time; few rows (GEMV), 128 columns at a time
            input f32 [32, 32, 1536]: blocks of 16 x 32, 128 of the sum at a time; blocks of 16 x 32, 128 of the sum at a time, right operand in panels, 1 packed
        "#]],
    );
    check(
        &Profile::host(2).with_vnni([800.0, 1500.0]),
        &[
            ("param", "bf16", [2, 1024, 1024]),
            ("param", "bf16", [4, 1024, 1024]),
            ("param", "bf16", [64, 1024, 1024]),
            ("input", "bf16", [64, 1024, 1024]),
        ],
        expect![[r#"
            param bf16 [2, 1024, 1024]: few rows (GEMV), 128 columns at a time
            param bf16 [4, 1024, 1024]: blocks of 4 x 32, 256 of the sum at a time, VNNI-2 layout, prepacked; blocks of 4 x 64, 128 of the sum at a time, right operand in panels, prepacked
            param bf16 [64, 1024, 1024]: blocks of 64 x 32, 256 of the sum at a time, VNNI-2 layout, prepacked
            input bf16 [64, 1024, 1024]: blocks of 64 x 32, 256 of the sum at a time, VNNI-2 layout, 1 packed
        "#]],
    );
}

#[test]
fn the_reason_of_a_kernel_has_the_times_of_those_that_lost() {
    let (_, plan, _) = measured(&product("param", "f32", [3, 1024, 1024]), &Profile::host(2), 0);
    let note = |step: &Step| match &step.kind {
        StepKind::Kernel(kernel) => kernel.note.clone(),
        StepKind::Extern(call) => call.reason.clone(),
    };
    let notes: Vec<String> = plan.steps.iter().filter_map(note).collect();
    let expected =
        "measured: 1.0 us generated, 9.0 us in libtorch; 2.0 us with few rows (GEMV), 128 columns at a time";
    assert_eq!(notes, [expected]);
}

#[test]
fn a_node_has_all_that_it_was_compared_with() {
    let text = product("param", "f32", [3, 1024, 1024]);
    let compared = |products: Products, quickest: f64| {
        let mut graph = primitive(&text, &Profile::host(2));
        let mut measure = |candidate: &super::Candidate<'_>| {
            let generated_us =
                if candidate.template.kernel.schedule.contains("GEMV") { quickest } else { 2.0 };
            Some(Times { generated_us, library_us: 1.5, measured: true })
        };
        choose_products(&mut graph, &Profile::host(2), products, Some(0), u64::MAX, &mut measure);
        let of = |id| graph.node(id).compared.clone();
        let shown = graph.ids().flat_map(of).map(|other| {
            let schedule = other.schedule.as_deref().map_or("libtorch", |text| &text[..8]);
            let chosen = if other.chosen { "chosen" } else { "lost" };
            assert!(other.predicted_us > 0.0);
            format!("{schedule}, {:?}, {chosen}", other.measured_us)
        });
        shown.collect::<Vec<_>>()
    };
    let rows = |gemv: &str, library: &str| {
        [
            String::from("blocks o, Some(2.0), lost"),
            format!("few rows, {gemv}"),
            format!("libtorch, Some(1.5), {library}"),
        ]
    };
    assert_eq!(compared(Products::Measured, 1.0), rows("Some(1.0), chosen", "lost"));
    assert_eq!(compared(Products::Measured, 3.0), rows("Some(3.0), lost", "chosen"));
    // Nothing is compared where there is no choice.
    assert_eq!(compared(Products::Library, 1.0), [""; 0]);
    // What is not measured has one kernel, that which is likeliest.
    assert_eq!(compared(Products::Predicted, 1.0), ["blocks o, None, chosen", "libtorch, None, lost"]);
    assert_eq!(compared(Products::Generated, 1.0), ["blocks o, None, chosen"]);
}

/// Sizes for which each is among those that are measured.
#[test]
fn every_schedule_agrees() {
    let profile = Profile { launch_us: 0.0, ..Profile::host(2) };
    for (right, sizes) in [
        ("param", [3, 40, 33]),
        ("param", [4, 70, 16]),
        ("input", [5, 33, 70]),
        ("input", [24, 40, 50]),
        ("input", [2, 7, 3072]),
        ("input", [11, 5, 4096]),
    ] {
        let text = product(right, "f32", sizes);
        let exact = evaluate(&parse_graph(&text).unwrap());
        let count = measured(&text, &profile, 0).0.len();
        for quickest in 0..count {
            let (schedules, plan, packed) = measured(&text, &profile, quickest);
            for (found, exact) in run_packed(&plan, &packed)[0].iter().zip(&exact[0].data) {
                let close = (found - exact).abs() <= 1e-5 * exact.abs().max(1.0);
                assert!(close, "{found} for {exact}: {text}{}", schedules[quickest]);
            }
        }
    }
}
