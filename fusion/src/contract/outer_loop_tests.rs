//! Outer loops of kernels over blocks of rows: which there are, and what they compute, in the interpreter.

use super::Products;
use super::choose_products;
use super::prepack::Prepacked;
use super::tests::run_packed;
use crate::enum_variants::{Variants, variants};
use crate::graph::{NodeId, Op};
use crate::machine::Profile;
use crate::pipeline::{self, Context, Stage, lowered, primitive};
use crate::plan::{OuterLoopRefusal, Plan, StepKind, verify};
use crate::rewrite_limit::Rewrites;
use crate::text::parse_graph;

/// A linear layer, gelu, a layer norm and another linear layer.
fn perceptron(rows: i64, width: i64, hidden: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[{rows},{width}]
           %1 = param 1 : f32[{hidden},{width}]
           %2 = param 2 : f32[{hidden}]
           %3 = param 3 : f32[{width},{hidden}]
           %4 = aten::linear(input=%0, weight=%1, bias=%2) : f32[{rows},{hidden}]
           %5 = aten::gelu(self=%4) : f32[{rows},{hidden}]
           %6 = aten::layer_norm(input=%5, normalized_shape=[{hidden}]) : f32[{rows},{hidden}]
           %7 = aten::linear(input=%6, weight=%3) : f32[{rows},{width}]
           outputs %7
         }}"
    )
}

/// A machine with small caches and slow memory.
fn machine(threads: u32, cache: u64) -> Profile {
    let mut profile = Profile::host(threads).with_cache(cache);
    profile.bandwidth = 0.01;
    profile
}

/// The plan, in which a norm is no part of the kernels beside it.
fn packed_for(text: &str, profile: &Profile) -> (Plan, Vec<Prepacked>) {
    let mut graph = parse_graph(text).unwrap();
    let mut cx = Context::new(profile);
    (cx.selection.products, cx.selection.constants) = (Products::Generated, Some(0));
    let is_norm =
        |id: &NodeId| matches!(&graph.node(*id).op, Op::Aten(call) if call.op == "aten::layer_norm");
    for id in graph.ids().filter(is_norm).collect::<Vec<_>>() {
        let origin = graph.add_origin(String::from("layer_norm"));
        graph.node_mut(id).origin = Some(origin);
        cx.hints.keep_separate(origin, 0, "layer_norm");
    }
    let graph = lowered(graph, Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
    (pipeline::planned(graph, &mut cx).unwrap(), std::mem::take(&mut cx.selection.packed))
}

fn planned(text: &str, profile: &Profile) -> Plan {
    packed_for(text, profile).0
}

fn results(text: &str, profile: &Profile) -> Vec<Vec<f64>> {
    let (plan, packed) = packed_for(text, profile);
    run_packed(&plan, &packed)
}

#[test]
fn rows_go_through_a_perceptron_block_by_block() {
    let text = perceptron(1024, 32, 72);
    for threads in [1, 2, 3] {
        let plan = planned(&text, &machine(threads, 128 << 10));
        let [outer_loop] = plan.outer_loops.as_slice() else { panic!("{:?}", plan.outer_loop_refusals) };
        assert_eq!(outer_loop.steps, 0..plan.steps.len());
        assert!(outer_loop.blocks() >= 8, "{outer_loop:?}");
        // Two values of 1024 rows, of which a thread holds a block each.
        assert_eq!(outer_loop.local_buffers.len(), 2);
        assert!(outer_loop.thread_bytes * 2 < 1024 * 72 * 4, "{outer_loop:?}");
        assert!(outer_loop.thread_bytes <= 96 << 10, "{outer_loop:?}");
        assert_eq!(plan.memory.bytes, outer_loop.bytes());
        assert!(plan.outer_loop_refusals.is_empty());
    }
}

#[test]
fn blocks_compute_what_whole_kernels_do() {
    for (rows, width, hidden) in [(1024, 32, 48), (777, 33, 40), (131, 8, 64), (64, 16, 16)] {
        let text = perceptron(rows, width, hidden);
        for threads in [1, 2, 4] {
            let whole = machine(threads, 1 << 30);
            assert!(planned(&text, &whole).outer_loops.is_empty());
            let blocks = machine(threads, 64 << 10);
            assert_eq!(results(&text, &blocks), results(&text, &whole), "{rows} x {width} x {hidden}");
        }
    }
    assert_eq!(planned(&perceptron(777, 33, 40), &machine(2, 64 << 10)).outer_loops.len(), 1);
}

#[test]
fn rows_that_others_need_are_no_blocks() {
    let text = "graph {
      %0 = input 0 : f32[256,64]
      %1 = param 1 : f32[64,64]
      %2 = aten::linear(input=%0, weight=%1) : f32[256,64]
      %3 = aten::linear(input=%2, weight=%1) : f32[256,64]
      %4 = aten::sum(self=%3, dim=[0], keepdim=true) : f32[1,64]
      %5 = aten::sub(self=%3, other=%4) : f32[256,64]
      outputs %5
    }";
    let profile = machine(2, 128 << 10);
    let plan = planned(text, &profile);
    let [outer_loop] = plan.outer_loops.as_slice() else { panic!("{:?}", plan.outer_loop_refusals) };
    assert_eq!((outer_loop.steps.clone(), plan.outer_loop_refusals.as_slice()), (0..2, &[][..]));
    assert_eq!(results(text, &profile), results(text, &machine(2, 1 << 30)));
    // Sums of columns of what the only product makes.
    let text = &text.replace("input=%2, weight", "input=%0, weight");
    let plan = planned(text, &profile);
    assert!(plan.outer_loops.is_empty());
    assert_eq!(plan.outer_loop_refusals, [(0, OuterLoopRefusal::Rows)]);
}

#[test]
fn chains_pay_by_what_they_save() {
    let text = perceptron(1024, 32, 72);
    // What fits the caches is no reason.
    let plan = planned(&text, &machine(2, 1 << 20));
    assert!(plan.outer_loops.is_empty() && plan.outer_loop_refusals.is_empty());
    // Memory as fast as can be.
    let mut fast = machine(2, 64 << 10);
    (fast.bandwidth, fast.launch_us) = (1e9, 0.0);
    let plan = planned(&text, &fast);
    assert!(plan.outer_loops.is_empty());
    assert!(
        matches!(plan.outer_loop_refusals[0], (0, OuterLoopRefusal::Few { .. })),
        "{:?}",
        plan.outer_loop_refusals
    );
    // Rows that are too long.
    let plan = planned(&perceptron(256, 16, 4096), &machine(2, 32 << 10));
    assert!(plan.outer_loops.is_empty());
    assert!(
        matches!(plan.outer_loop_refusals[0], (0, OuterLoopRefusal::Large { .. })),
        "{:?}",
        plan.outer_loop_refusals
    );
    // Fewer blocks than threads.
    let plan = planned(&perceptron(256, 32, 48), &machine(64, 1 << 10));
    assert!(plan.outer_loops.is_empty(), "{:?}", plan.outer_loops);
}

#[test]
fn what_is_returned_is_held_whole() {
    let text = perceptron(1024, 32, 72).replace("outputs %7", "outputs %5, %7");
    let plan = planned(&text, &machine(2, 128 << 10));
    let [outer_loop] = plan.outer_loops.as_slice() else { panic!("{:?}", plan.outer_loop_refusals) };
    assert_eq!(outer_loop.local_buffers.len(), 1);
    assert_eq!(results(&text, &machine(2, 128 << 10)), results(&text, &machine(2, 1 << 30)));
}

#[test]
fn broken_chains_are_found() {
    let good = planned(&perceptron(1024, 32, 72), &machine(2, 128 << 10));
    assert!(verify(&good).is_ok());
    let broken = |edit: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        edit(&mut plan);
        assert!(verify(&plan).is_err());
    };
    broken(&|plan| plan.outer_loops[0].parts[1][1].start += 1);
    broken(&|plan| plan.outer_loops[0].parts[2].last_mut().unwrap().end -= 1);
    broken(&|plan| plan.outer_loops[0].parts.truncate(2));
    broken(&|plan| plan.outer_loops[0].thread_bytes -= 1024);
    broken(&|plan| plan.outer_loops[0].local_buffers[0].firsts[2] += 64);
    broken(&|plan| plan.outer_loops[0].at += 512);
    broken(&|plan| plan.outer_loops[0].steps = 1..9);
    broken(&|plan| plan.outer_loops[0].local_buffers.clear());
    broken(&|plan| plan.outer_loops[0].steps.end -= 1);
    // The second product with all columns of its operand for rows.
    broken(&|plan| {
        let StepKind::Kernel(kernel) = &mut plan.steps[2].kind else { panic!() };
        kernel.grid.swap(0, 1);
    });
}

/// A convolution of 3 x 3, a ReLU, a maximum over windows, and another convolution, so that filters are innermost.
fn pooled([batch, channels, height, width]: [i64; 4], filters: i64, pool: [i64; 3]) -> String {
    let [kernel, stride, padding] = pool;
    let out = |n: i64| (n + 2 * padding - kernel) / stride + 1;
    let (rows, columns) = (out(height), out(width));
    let conv =
        |pad: i64| format!("bias=None, stride=[1, 1], padding=[{pad}, {pad}], dilation=[1, 1], groups=1");
    let window = format!(
        "kernel_size=[{kernel}, {kernel}], stride=[{stride}, {stride}], padding=[{padding}, {padding}]"
    );
    let (first, second) = (conv(1), conv(0));
    format!(
        "graph {{
           %0 = input 0 : f32[{batch},{channels},{height},{width}]
           %1 = param 1 : f32[{filters},{channels},3,3]
           %2 = param 2 : f32[16,{filters},1,1]
           %3 = aten::conv2d(input=%0, weight=%1, {first}) : f32[{batch},{filters},{height},{width}]
           %4 = aten::relu(self=%3) : f32[{batch},{filters},{height},{width}]
           %5 = aten::max_pool2d(self=%4, {window}, dilation=[1, 1], ceil_mode=false) : f32[{batch},{filters},{rows},{columns}]
           %6 = aten::conv2d(input=%5, weight=%2, {second}) : f32[{batch},16,{rows},{columns}]
           outputs %6
         }}"
    )
}

#[test]
fn rows_go_from_a_convolution_to_pooling_block_by_block() {
    for (shape, filters, pool) in [
        ([1, 3, 32, 28], 16, [3, 2, 1]),
        ([2, 4, 24, 16], 32, [3, 2, 1]),
        ([1, 4, 32, 16], 16, [2, 2, 0]),
        ([1, 4, 19, 21], 32, [3, 1, 1]),
        ([3, 2, 17, 13], 16, [2, 3, 1]),
    ] {
        let text = pooled(shape, filters, pool);
        for threads in [1, 2] {
            let blocks = machine(threads, 12 << 10);
            let plan = planned(&text, &blocks);
            let why = || format!("{shape:?} {pool:?}: {:?}", plan.outer_loop_refusals);
            let [outer_loop] = plan.outer_loops.as_slice() else { panic!("{}", why()) };
            assert_eq!((outer_loop.steps.clone(), outer_loop.local_buffers.len()), (0..2, 1), "{}", why());
            let repeats = outer_loop.parts[0].windows(2).any(|two| two[0].end > two[1].start);
            assert!(repeats || pool[0] <= pool[1], "{:?}", outer_loop.parts);
            assert!(!repeats || pool[2] > 0, "{:?}", outer_loop.parts);
            let whole = machine(threads, 1 << 30);
            assert!(planned(&text, &whole).outer_loops.is_empty());
            assert_eq!(results(&text, &blocks), results(&text, &whole), "{text}");
        }
    }
    // What fits the threads' caches is not worth computing rows twice.
    let plan = planned(&pooled([1, 3, 32, 28], 16, [3, 2, 1]), &machine(2, 32 << 10));
    assert_eq!(plan.outer_loop_refusals, [(0, OuterLoopRefusal::Rows)]);
}

#[test]
fn blocks_that_leave_out_what_they_read_are_found() {
    let good = planned(&pooled([1, 3, 32, 28], 16, [3, 2, 1]), &machine(2, 12 << 10));
    assert!(verify(&good).is_ok());
    let parts = &good.outer_loops[0].parts[0];
    for block in 0..parts.len() {
        for (first, end) in [(0, 1), (1, 0)] {
            let mut plan = good.clone();
            let part = &mut plan.outer_loops[0].parts[0][block];
            let row = (part.end - part.start).div_ceil(4).max(2);
            (part.start, part.end) = (part.start + first * row, part.end - end * row);
            assert!(verify(&plan).is_err(), "{block} {:?}", plan.outer_loops[0].parts);
        }
    }
    // More than that does not harm.
    let mut plan = good.clone();
    plan.outer_loops[0].parts[0][1].start = 0;
    plan.outer_loops[0].thread_bytes *= 4;
    plan.outer_loops[0].at = plan.memory.bytes;
    plan.memory.bytes += plan.outer_loops[0].bytes();
    plan.outer_loops[0].local_buffers[0].firsts[1] = 0;
    assert!(verify(&plan).is_ok(), "{:?}", verify(&plan));
    // A value that others need is not computed twice.
    let mut plan = good;
    plan.outer_loops[0].local_buffers.clear();
    assert!(verify(&plan).is_err());
}

/// A plan that may hold so many bytes, of so many rewrites.
fn planned_within(text: &str, profile: &Profile, most_bytes: u64, rewrites: Option<u64>) -> Plan {
    let mut graph = primitive(text, profile);
    choose_products(&mut graph, profile, Products::Generated, Some(0), u64::MAX, &mut |_| None);
    let rewrites = Rewrites::at_most(rewrites);
    crate::pipeline::planned(graph, &mut Context { most_bytes, rewrites, ..Context::new(profile) }).unwrap()
}

#[test]
fn chains_that_memory_or_a_limit_forbids() {
    let (text, profile) = (perceptron(1024, 32, 48), machine(2, 128 << 10));
    let limited = |limit: u64| {
        let plan = planned_within(&text, &profile, u64::MAX, Some(limit));
        plan.outer_loop_refusals.iter().any(|(_, reason)| *reason == OuterLoopRefusal::Limit)
    };
    assert!((0..40).any(limited));
    // Each of two threads holds about as much as the whole has.
    let (text, most) = (perceptron(256, 32, 48), 81_920);
    assert_eq!(planned(&text, &machine(2, 1 << 30)).peak_bytes(), most);
    let profile = machine(2, 64 << 10);
    assert_eq!(planned(&text, &profile).outer_loops.len(), 1);
    let plan = planned_within(&text, &profile, most, None);
    assert_eq!(plan.outer_loop_refusals, [(0, OuterLoopRefusal::Memory)], "{:?}", plan.outer_loops);
}

variants!(OuterLoopRefusal: Rows, Large, Memory, Few, Limit);

/// The texts of what the tests above make appear.
#[test]
fn reasons_of_kernels_without_chains() {
    let all = [
        OuterLoopRefusal::Rows,
        OuterLoopRefusal::Large { bytes: 4096 },
        OuterLoopRefusal::Memory,
        OuterLoopRefusal::Few { saved_us: 12.0, lost_us: 34.0 },
        OuterLoopRefusal::Limit,
    ];
    assert_eq!(all.map(|reason| reason.name()), OuterLoopRefusal::NAMES);
    expect_test::expect![[r#"
        the next kernel needs other rows
        the smallest block of rows has 4096 bytes
        more memory would be held at a time
        predicted to save 12 us, while threads wait 34 us, with so few blocks
        the number of rewrites is limited"#]]
    .assert_eq(&all.map(|reason| reason.to_string()).join("\n"));
}
