use std::collections::BTreeSet;

use super::*;
use crate::interp::{Arg, Options, run_with};
use crate::program::Program;

fn program(operation: &Operation) -> Program {
    let text = format!(
        "kernel @example(%x: ptr<f32>, %y: ptr<f32>, %p: ptr<i32>, %n: i32) {{ {} }}",
        operation.example
    );
    crate::parse_valid(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", operation.name))
}

#[test]
fn names_are_unique_and_every_column_is_filled() {
    let names: BTreeSet<&str> = OPERATIONS.iter().map(|o| o.name).collect();
    assert_eq!(names.len(), OPERATIONS.len());
    for o in OPERATIONS {
        let columns = [o.name, o.syntax, o.operands, o.results, o.doc, o.example];
        assert!(columns.iter().all(|c| !c.is_empty()), "{}", o.name);
        assert!(o.syntax.contains(o.name) && o.example.contains(o.name), "{}", o.name);
    }
    assert!(Family::ALL.iter().all(|f| OPERATIONS.iter().any(|o| o.family == *f)));
}

#[test]
fn examples_hold_their_operation_and_are_read_back() {
    for operation in OPERATIONS {
        let program = program(operation);
        let mut found = false;
        program.walk(&mut |op| found |= op.kind.name() == operation.name);
        assert!(found, "{}", operation.name);
        let text = program.to_string();
        assert_eq!(text.parse::<Program>().unwrap().to_string(), text);
    }
}

#[test]
fn examples_run() {
    for operation in OPERATIONS {
        let mut args = vec![
            Arg::buffer((0..256).map(|i| i as f32 / 256.0).collect::<Vec<f32>>()),
            Arg::buffer(vec![0f32; 256]),
            Arg::buffer(vec![0i32; 256]),
            Arg::int(crate::Elem::I32, 7),
        ];
        let options = Options { print: |_| (), ..Options::default() };
        run_with(&program(operation), &mut args, [1, 1, 1], &options)
            .unwrap_or_else(|error| panic!("{}: {error}", operation.name));
    }
}
