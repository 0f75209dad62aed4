#![allow(clippy::unwrap_used, reason = "tests")]
use tilefuse_block::parse_valid;

use crate::ptx::{PtxOptions, Target, compile_ptx};

/// The first example of the documentation.
fn example() -> String {
    let source = include_str!("../rotate.rs");
    let example =
        source.split("//! ```text\n").nth(1).and_then(|rest| rest.split("//! ```\n").next()).unwrap();
    example.lines().map(|line| format!("{}\n", line.trim_start_matches("//!"))).collect()
}

/// It, changed.
fn compiled(changes: &[(&str, &str)]) -> String {
    changed(example(), changes)
}

fn changed(text: String, changes: &[(&str, &str)]) -> String {
    let text = changes.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    let ptx = compile_ptx(&parse_valid(&text).unwrap(), Target::Sm90a, &PtxOptions::default()).unwrap();
    // A producer loads, rotated or not.
    assert_eq!(ptx.threads, 384);
    ptx.text
}

/// The products of an iteration, in order, and what waits for them.
fn order(text: &str) -> Vec<&'static str> {
    let instructions = text.lines().map(str::trim).filter_map(|line| {
        let found = [
            "wgmma.mma_async.sync.aligned.m64n128",
            "wgmma.mma_async.sync.aligned.m64n64",
            "wgmma.wait_group.sync.aligned",
        ]
        .into_iter()
        .zip(["scores", "sums", "wait"])
        .find(|(start, _)| line.starts_with(start));
        let (_, what) = found?;
        Some(if what == "wait" {
            if line.contains('1') { "wait for all but one" } else { "wait" }
        } else {
            what
        })
    });
    let mut all: Vec<&'static str> = instructions.collect();
    all.dedup();
    all
}

#[test]
fn the_second_product_runs_beside_the_next_first_one() {
    let mut all = order(&compiled(&[]));
    // LLVM may place the last product before the loop.
    let peeled = ["scores", "wait"];
    let in_loop = ["scores", "sums", "wait for all but one", "wait"];
    let behind = ["sums", "wait"];
    for part in [&in_loop[..], &peeled, &behind] {
        let at = all
            .windows(part.len())
            .position(|window| window == part)
            .unwrap_or_else(|| panic!("{part:?} in {all:?}"));
        all.drain(at..at + part.len());
    }
    assert!(all.is_empty(), "{all:?}");
}

/// Where a block computes one instance after another: the first iteration and the others begin with a turn.
#[test]
fn two_warpgroups_alternate() {
    let turns =
        |text: &str| ["bar.sync", "barrier.cta.arrive", "bar.arrive"].map(|name| text.matches(name).count());
    let [waits, long, short] = turns(&compiled(&[]));
    assert_eq!(long + short, 3);
    let uneven = [("in %none..%end", "in %none..%first")];
    let [fewer, long, short] = turns(&compiled(&uneven));
    assert_eq!((waits - fewer, long + short), (2, 0));
    // Of heads of 128.
    let [_, long, short] = turns(&changed(example().replace("64", "128"), &uneven));
    assert_eq!(long + short, 3);
}

#[test]
fn what_needs_the_sums_keeps_the_loop_as_it_is() {
    let in_order = ["scores", "wait", "sums", "wait"];
    // The sums of exponentials, or the scores, follow from those of values.
    let sums =
        ("yield %top, %next", "%all = reduce sum %acc axis 1  %odd = map add %next, %all  yield %top, %odd");
    let scores = (
        "%here = reduce",
        "%largest = reduce max %acc axis 1  %u = expand_dims %largest axis 1  %w = broadcast %u [128, 128]
         %scores2 = map add %scores, %w  %here = reduce",
    );
    assert_eq!(order(&compiled(&[sums])), in_order);
    assert_eq!(order(&compiled(&[scores, ("max %scores axis", "max %scores2 axis")])), in_order);
    // What is carried on is not what the product leaves.
    let twice = ("yield %top, %next, %new", "%more = map add %new, %acc  yield %top, %next, %more");
    assert_eq!(order(&compiled(&[twice])), in_order);
}
