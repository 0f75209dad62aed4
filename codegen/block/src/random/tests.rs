use std::collections::BTreeSet;

use super::{
    Case, Choices, Options, almost_program, almost_text, any_program, any_text, case, compare_args,
    index_case, random_case,
};
use crate::interp::{Arg, run};
use crate::math::expand_math;
use crate::passes::{PASSES, optimize, optimize_for_grid};
use crate::program::{OpKind, Program};
use crate::scalar_fn::ScalarFn;

/// Number of seeds; each test takes seconds.
const SEEDS: u64 = 400;

fn run_case(program: &Program, case: &Case) -> Vec<Arg> {
    let mut args = case.args.clone();
    run(program, &mut args, case.grid).unwrap_or_else(|error| panic!("{error}\n{program}"));
    args
}

/// Compares a changed program with the original, and shows both where they differ.
fn same(case: &Case, changed: &Program, what: &str) {
    let expected = run_case(&case.program, case);
    if let Err(difference) = compare_args(&expected, &run_case(changed, case), 0.0) {
        panic!("{what}: {difference}\nbefore\n{}\nafter\n{changed}", case.program);
    }
}

#[test]
fn cases_are_valid_and_read_back() {
    for seed in 0..SEEDS {
        let case = random_case(seed);
        run_case(&case.program, &case);
        let text = case.program.to_string();
        let parsed: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(parsed.to_string(), text);
        assert_eq!(random_case(seed).program, case.program);
    }
}

#[test]
fn cases_cover_functions_and_operations() {
    let mut functions = BTreeSet::new();
    let mut operations = BTreeSet::new();
    for seed in 0..SEEDS {
        random_case(seed).program.walk(&mut |op| {
            operations.insert(op.kind.name());
            if let OpKind::Map(function) = op.kind {
                functions.insert(function);
            }
        });
    }
    let base: BTreeSet<ScalarFn> = ScalarFn::ALL.iter().copied().filter(|f| !f.is_math()).collect();
    assert_eq!(functions, base);
    assert_eq!(operations.len(), 17, "{operations:?}");
}

const LANGUAGE: Options =
    Options { math: false, language: true, reread: true, overlap: true, max_ops: 24, max_tile: 1024 };

fn language_case(seed: u64) -> Case {
    case(&mut Choices::from_seed(seed), &LANGUAGE)
}

#[test]
fn cases_of_the_language_are_valid_and_cover_it() {
    let mut operations = BTreeSet::new();
    for seed in 0..SEEDS {
        let case = language_case(seed);
        run_case(&case.program, &case);
        let text = case.program.to_string();
        let parsed: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(parsed.to_string(), text);
        case.program.walk(&mut |op| {
            operations.insert(op.kind.name());
        });
    }
    let missing: Vec<&str> =
        crate::OPERATIONS.iter().map(|o| o.name).filter(|name| !operations.contains(name)).collect();
    assert_eq!(missing, ["print"], "only printing is not drawn");
}

#[test]
fn passes_keep_meaning_of_the_language() {
    for seed in 0..SEEDS {
        let case = language_case(seed);
        for (name, pass) in PASSES {
            let mut program = case.program.clone();
            pass(&mut program, case.grid);
            crate::verify(&program).unwrap_or_else(|e| panic!("{name}: {e}\n{program}"));
            same(&case, &program, name);
        }
        let mut program = case.program.clone();
        optimize_for_grid(&mut program, case.grid).unwrap();
        same(&case, &program, "optimize");
    }
}

#[test]
fn expansion_keeps_meaning() {
    for seed in 0..SEEDS {
        let case = language_case(seed);
        let mut program = case.program.clone();
        crate::expand_operations(&mut program).unwrap();
        same(&case, &program, "expand");
    }
}

#[test]
fn bytes_decode_to_cases() {
    for len in [0usize, 1, 7, 60, 300, 1000] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * i * 31 + 7 * i + len) as u8).collect();
        let case = case(&mut Choices::from_bytes(&bytes), &Options::default());
        run_case(&case.program, &case);
    }
}

#[test]
fn passes_keep_meaning() {
    for seed in 0..SEEDS {
        let case = random_case(seed);
        for (name, pass) in PASSES {
            let mut program = case.program.clone();
            pass(&mut program, case.grid);
            same(&case, &program, name);
        }
        let mut program = case.program.clone();
        optimize_for_grid(&mut program, case.grid).unwrap();
        same(&case, &program, "optimize");
    }
}

#[test]
fn passes_keep_meaning_of_indices() {
    for seed in 0..SEEDS {
        let case = index_case(&mut Choices::from_seed(seed));
        let mut program = case.program.clone();
        optimize_for_grid(&mut program, case.grid).unwrap();
        same(&case, &program, "optimize");
    }
}

#[test]
fn passes_keep_meaning_of_mathematical_functions() {
    let options = Options { math: true, ..Options::default() };
    for seed in 0..SEEDS / 4 {
        let mut case = case(&mut Choices::from_seed(seed), &options);
        expand_math(&mut case.program).unwrap();
        let mut program = case.program.clone();
        optimize_for_grid(&mut program, case.grid).unwrap();
        same(&case, &program, "optimize");
    }
}

#[test]
fn optimising_twice_changes_nothing_more() {
    for options in [Options::default(), LANGUAGE] {
        // A constant that several loops have in common may be hoisted twice.
        let options = Options { overlap: false, ..options };
        for seed in 0..SEEDS {
            let mut program = case(&mut Choices::from_seed(seed), &options).program;
            optimize(&mut program).unwrap();
            let once = program.to_string();
            optimize(&mut program).unwrap();
            assert_eq!(program.to_string(), once);
        }
    }
}

/// `TILEFUSE_HOSTILE=N` tries more.
fn hostile() -> u64 {
    std::env::var("TILEFUSE_HOSTILE").ok().and_then(|n| n.parse().ok()).unwrap_or(3000)
}

#[test]
fn no_text_panics() {
    for seed in 0..hostile() {
        any_text(&almost_text(&mut Choices::from_seed(seed)));
    }
}

#[test]
fn no_program_panics() {
    for seed in 0..hostile() {
        any_program(&almost_program(&mut Choices::from_seed(seed)));
    }
}
