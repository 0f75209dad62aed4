//! Which values are written by non-temporal stores.

use crate::machine::Profile;
use crate::pipeline::{Context, plan, planned};
use crate::plan::{Plan, StepKind, verify};
use crate::rewrite_limit::Rewrites;
use crate::text::parse_graph;

/// The bytes that each kernel of a graph writes by non-temporal stores, in MiB, on the host; none on a GPU.
fn non_temporal(text: &str) -> Vec<u64> {
    let graph = parse_graph(text).unwrap();
    let on_gpu = plan(&graph, &Profile::gpu(132, 4200.0)).unwrap();
    assert!(mebibytes(&on_gpu).iter().all(|&bytes| bytes == 0));
    let mut plan = plan(&graph, &Profile::host(2)).unwrap();
    let found = mebibytes(&plan);
    // Wherever the values lie.
    plan.limit_memory(0);
    assert_eq!(verify(&plan), Ok(()));
    assert_eq!(mebibytes(&plan), found);
    for program in &plan.programs {
        tilefuse_block::verify(program).unwrap();
        let text = program.to_string();
        assert_eq!(text.contains("hint streaming"), text.contains("align(64)"), "{text}");
    }
    found
}

fn mebibytes(plan: &Plan) -> Vec<u64> {
    let kernel = |step: &crate::plan::Step| match &step.kind {
        StepKind::Kernel(kernel) => Some(plan.non_temporal_bytes(kernel) >> 20),
        StepKind::Extern(_) => None,
    };
    plan.steps.iter().filter_map(kernel).collect()
}

/// A graph of `f32` matrices with so many rows of 1024.
fn graph(rows: u32, lines: &str, outputs: &str) -> String {
    let head = "  %0 = input 0 : F\n  %1 = input 1 : F\n";
    format!("graph {{\n{head}{lines}  outputs {outputs}\n}}\n").replace('F', &format!("f32[{rows},1024]"))
}

#[test]
fn large_results_are_written_past_the_caches() {
    let add = "  %2 = map add(%0, %1) : F\n";
    assert_eq!(non_temporal(&graph(8192, add, "%2")), [32]);
    assert_eq!(non_temporal(&graph(8191, add, "%2")), [0]);
    let two = "  %2 = map add(%0, %1) : F\n  %3 = map exp(%2) : F\n";
    assert_eq!(non_temporal(&graph(8192, two, "%2, %3")), [64]);
}

/// Each value is a rewrite.
#[test]
fn values_stop_at_a_limit() {
    let text = graph(8192, "  %2 = map add(%0, %1) : F\n  %3 = map exp(%2) : F\n", "%2, %3");
    let profile = Profile::host(2);
    let limited = |limit: Option<u64>| {
        let mut cx = Context { rewrites: Rewrites::at_most(limit), ..Context::new(&profile) };
        let plan = planned(parse_graph(&text).unwrap(), &mut cx).unwrap();
        (mebibytes(&plan).iter().sum::<u64>(), cx.rewrites.made())
    };
    let (all, made) = limited(None);
    assert_eq!(all, 64);
    for fewer in 0..=2 {
        assert_eq!(limited(Some(made - fewer)), (64 - 32 * fewer, made - fewer));
    }
}

#[test]
fn rows_are_written_past_the_caches_and_what_is_reduced_is_not() {
    let lines = "  %2 = reduce max[1](%0) : f32[8192]
  %3 = view reshape(%2) : f32[8192,1]
  %4 = view expand(%3) : F
  %5 = map sub(%0, %4) : F
";
    assert_eq!(non_temporal(&graph(8192, lines, "%5, %2")), [32]);
    assert_eq!(non_temporal(&graph(8192, lines, "%2")), [0]);
}

#[test]
fn what_lies_in_place_of_something_that_is_read_is_written_plainly() {
    let lines = "  %2 = aten::relu(self=%0) : F\n  %3 = map exp(%2) : F\n";
    assert_eq!(non_temporal(&graph(32768, lines, "%3")), [0]);
    // In place of an intermediate, in the arena.
    let lines = "  %2 = map exp(%0) : F
  %3 = aten::relu(self=%2) : F
  %4 = map add(%2, %3) : F
  %5 = aten::relu(self=%4) : F
";
    assert_eq!(non_temporal(&graph(32768, lines, "%5")), [128, 0]);
    let update = graph(32768, "  %2 = map sub(%0, %1) : F\n", "%1\n  update %0 <- %2");
    assert_eq!(non_temporal(&update), [0]);
}

#[test]
fn what_the_next_step_reads_is_written_past_the_caches_where_it_fits_in_none() {
    let lines = "  %2 = map add(%0, %1) : F\n  %3 = aten::relu(self=%2) : F\n";
    assert_eq!(non_temporal(&graph(8192, lines, "%3")), [0]);
    assert_eq!(non_temporal(&graph(16384, lines, "%3")), [64]);
    // What a later one reads.
    let later = "  %2 = map add(%0, %1) : F
  %3 = aten::relu(self=%0) : F
  %4 = aten::add(self=%2, other=%3) : F
";
    assert_eq!(non_temporal(&graph(8192, later, "%4")), [32]);
}

/// Layers alike share a program where they stream alike.
#[test]
fn programs_are_shared_by_steps_that_stream_alike() {
    let text = "graph {
  %0 = input 0 : f32[8192,1024]
  %1 = map exp(%0) : f32[8192,1024]
  %2 = aten::relu(self=%1) : f32[8192,1024]
  %3 = aten::cumsum(self=%0) : f32[8192,1024]
  %4 = aten::cumsum(self=%3) : f32[8192,1024]
  %5 = view permute[1,0](%3) : f32[1024,8192]
  %6 = map exp(%3) : f32[8192,1024]
  %7 = map exp(%4) : f32[8192,1024]
  outputs %2, %3, %4, %6, %7
}
";
    let found = plan(&parse_graph(text).unwrap(), &Profile::host(2)).unwrap();
    let bytes = mebibytes(&found);
    assert_eq!((bytes.len(), bytes.iter().filter(|&&b| b == 32).count()), (3, 2), "{bytes:?}");
    assert_eq!(found.programs.len(), 2);
}
