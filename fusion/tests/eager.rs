//! Every lowered operator against what libtorch computes on the CPU, recorded in `eager/cases.txt`.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{data, difference};
use tilefuse_block::{Data, ScalarFn};
use tilefuse_fusion::eval::{Precision, Sources, eval};
use tilefuse_fusion::{Graph, Op, lower, lowered_operators, parse_graph, simplify, verify};

struct Case {
    name: String,
    graph: Graph,
    inputs: Vec<Data>,
    outputs: Vec<Data>,
}

fn cases() -> Vec<Case> {
    include_str!("eager/cases.txt").split("case ").skip(1).map(case).collect()
}

fn case(text: &str) -> Case {
    let (name, rest) = text.split_once('\n').unwrap();
    let (graph, data_lines) = rest.split_once("\n}\n").unwrap();
    let lines = |prefix: &str| data_lines.lines().filter_map(|l| l.strip_prefix(prefix)).map(data).collect();
    Case {
        name: name.to_string(),
        graph: parse_graph(&format!("{graph}\n}}")).unwrap_or_else(|e| panic!("{name}: {e}")),
        inputs: lines("in "),
        outputs: lines("out "),
    }
}

fn problem(case: &Case, precision: Precision) -> Option<String> {
    if let Err(error) = verify(&case.graph) {
        return Some(error.to_string());
    }
    let mut graph = lower(&case.graph).unwrap();
    if graph.ids().any(|id| matches!(graph.node(id).op, Op::Aten(_))) {
        return Some("stays in libtorch".to_string());
    }
    if let Err(error) = verify(&graph) {
        return Some(format!("{error}\n{graph}"));
    }
    simplify(&mut graph);
    if let Err(error) = verify(&graph) {
        return Some(format!("simplified: {error}\n{graph}"));
    }
    let sources = Sources { inputs: &case.inputs, ..Sources::default() };
    match eval(&graph, sources, precision) {
        Ok(found) => found.outputs.iter().zip(&case.outputs).find_map(|(a, b)| difference(a, b)),
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn lowered_calls_equal_eager() {
    let mut failures = Vec::new();
    let cases = cases();
    for case in &cases {
        for precision in [Precision::Typed, Precision::Exact] {
            if let Some(problem) = problem(case, precision) {
                failures.push(format!("{} ({precision:?}): {problem}", case.name));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn every_lowered_operator_has_a_case() {
    let mut seen = BTreeMap::new();
    for case in cases() {
        for id in case.graph.ids() {
            if let Op::Aten(call) = &case.graph.node(id).op {
                *seen.entry(call.op.trim_start_matches("aten::").to_string()).or_insert(0) += 1;
            }
        }
    }
    let missing: Vec<&str> = lowered_operators()
        .into_iter()
        .flat_map(|(_, operators)| operators)
        .filter(|op| !seen.contains_key(*op))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Scalar functions that no operator of libtorch lowers to, and why.
const WITHOUT_OPERATOR: &[(ScalarFn, &str)] = &[
    (ScalarFn::MulHi, "divisions of integers by constants are made of it"),
    (ScalarFn::Exp2Approx, "the pass `approximate` of block programs makes it"),
    (ScalarFn::Exp2ApproxFtz, "exponentials of an online softmax are made of it"),
    (ScalarFn::RecipApprox, "the pass `approximate` of block programs makes it"),
    (ScalarFn::RsqrtApprox, "the pass `approximate` of block programs makes it"),
];

#[test]
fn every_scalar_function_is_lowered_to() {
    let mut made = BTreeSet::new();
    for case in cases() {
        let graph = lower(&case.graph).unwrap();
        made.extend(graph.ids().filter_map(|id| match graph.node(id).op {
            Op::Map(function) => Some(function.name()),
            _ => None,
        }));
    }
    let listed = |function: ScalarFn| WITHOUT_OPERATOR.iter().any(|(other, _)| *other == function);
    let wrong = ScalarFn::ALL.iter().filter(|f| made.contains(f.name()) == listed(**f));
    assert_eq!(wrong.map(|f| f.name()).collect::<Vec<_>>(), Vec::<&str>::new());
}
