//! Random programs with views and in-place operators against what eager leaves behind, recorded in
//! `eager/programs.txt`: outputs, and the inputs after the call.

#![allow(clippy::unwrap_used)]

mod common;

use common::{data, difference};
use tilefuse_block::Data;
use tilefuse_fusion::eval::{Precision, Sources, eval};
use tilefuse_fusion::{
    FunctionalizeError, Op, Recording, functionalize, lower, parse_graph, parse_recording, simplify, verify,
};

struct Case {
    name: String,
    recording: Recording,
    inputs: Vec<Data>,
    outputs: Vec<Data>,
    after: Vec<Data>,
}

fn case(text: &str) -> Case {
    let (name, rest) = text.split_once('\n').unwrap();
    let (recording, data_lines) = rest.split_once("\n}\n").unwrap();
    let text = format!("{recording}\n}}\n");
    let recording = parse_recording(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(parse_recording(&recording.to_string()).unwrap(), recording, "{name}");
    let lines = |prefix: &str| data_lines.lines().filter_map(|l| l.strip_prefix(prefix)).map(data).collect();
    Case {
        name: name.to_string(),
        recording,
        inputs: lines("in "),
        outputs: lines("out "),
        after: lines("after "),
    }
}

/// `Ok(false)` where the program is refused for a reason that it may be.
fn check(case: &Case) -> Result<bool, String> {
    let functional = match functionalize(&case.recording) {
        Ok(graph) => graph,
        Err(
            FunctionalizeError::OpaqueView { .. }
            | FunctionalizeError::OverlappingWrite { .. }
            | FunctionalizeError::ReadsWritten { .. },
        ) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let valid = |graph: &_| verify(graph).map_err(|error| format!("{error}\n{functional}"));
    valid(&functional)?;
    assert_eq!(parse_graph(&functional.to_string()).unwrap().to_string(), functional.to_string());
    let mut graph = lower(&functional).map_err(|error| error.to_string())?;
    valid(&graph)?;
    simplify(&mut graph);
    valid(&graph)?;
    let sources = Sources { inputs: &case.inputs, ..Sources::default() };
    let found = eval(&graph, sources, Precision::Typed).map_err(|error| error.to_string())?;
    let mut after = case.inputs.clone();
    for (update, value) in graph.updates.iter().zip(found.updates) {
        if let Op::Input(n) = graph.node(update.target).op {
            after[n as usize] = value;
        }
    }
    let pairs = found.outputs.iter().zip(&case.outputs).chain(after.iter().zip(&case.after));
    match pairs
        .enumerate()
        .find_map(|(i, (a, b))| difference(a, b).map(|d| format!("value {i}: {d}\n{functional}")))
    {
        Some(difference) => Err(difference),
        None => Ok(true),
    }
}

#[test]
fn programs_leave_behind_what_eager_does() {
    let cases: Vec<Case> = include_str!("eager/programs.txt").split("case ").skip(1).map(case).collect();
    let (mut failures, mut refused) = (Vec::new(), 0);
    for case in &cases {
        match check(case) {
            Ok(true) => {}
            Ok(false) => refused += 1,
            Err(problem) => failures.push(format!("{}: {problem}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(refused * 20 < cases.len(), "{refused} of {} programs were refused", cases.len());
}
