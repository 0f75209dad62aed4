//! Random tensor programs.

use std::collections::{BTreeMap, HashMap, HashSet};

use tch::{Device, Tensor};
use tilefuse::random::{Mode, Outcome, Program, Subject, check, copies, generate, shrink};

/// A model that runs as it is.
struct Plain(tilefuse::random::Model);

impl Subject for Plain {
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.0)(inputs)))
            .map_err(|_| String::from("panic"))
    }
}

#[test]
fn programs_print_and_parse() {
    for seed in 0..300 {
        let program = generate(seed);
        let text = program.to_string();
        assert_eq!(text.parse::<Program>().unwrap(), program, "{text}");
        assert_eq!(generate(seed), program);
    }
}

#[test]
fn eager_agrees_with_itself() {
    let mut failed = 0;
    for seed in 0..300 {
        let program = generate(seed);
        let (outcome, _) = check(&program, seed, Device::Cpu, Plain).unwrap();
        if outcome != (Outcome::Same { noisy: false }) {
            failed += 1;
            eprintln!("seed {seed}: {outcome:?}\n{program}");
        }
    }
    assert_eq!(failed, 0);
}

#[test]
fn the_generator_covers_what_it_promises() {
    let mut ops: BTreeMap<String, usize> = BTreeMap::new();
    let (mut ranks, mut kinds) = (HashSet::new(), HashMap::new());
    let (mut empty, mut strided, mut writes, mut large) = (0, 0, 0, 0);
    let programs = 2000;
    for seed in 0..programs {
        let program = generate(seed);
        for op in &program.ops {
            *ops.entry(op.name.clone()).or_default() += 1;
        }
        for input in &program.inputs {
            ranks.insert(input.sizes.len());
            *kinds.entry(format!("{:?}", program.storages[input.storage].kind)).or_insert(0) += 1;
        }
        empty += usize::from(program.inputs.iter().any(|i| i.sizes.contains(&0)));
        let dense = |i: &tilefuse::random::Input| {
            i.strides
                .iter()
                .rev()
                .zip(i.sizes.iter().rev())
                .try_fold(1, |n, (&s, &d)| (s == n || d == 1).then_some(n * d))
                .is_some()
        };
        strided += usize::from(program.inputs.iter().any(|i| !dense(i)));
        writes += usize::from(program.ops.iter().any(|o| o.in_place()));
        large += usize::from(program.inputs.iter().any(|i| i.sizes.iter().product::<i64>() >= 1_000_000));
    }
    println!("{ops:?}\n{kinds:?} empty {empty} strided {strided} writes {writes} large {large}");
    println!("{} operators, {} distinct", ops.values().sum::<usize>(), ops.len());
    assert_eq!(ranks.len(), 6);
    assert!(ops.len() > 120, "{}", ops.len());
}

#[test]
fn shrinking_finds_the_operator_at_fault() {
    let mut found = 0;
    for seed in 0..400 {
        let program = generate(seed);
        let guilty = |p: &Program| p.ops.iter().any(|o| o.name == "gelu") && runs(p);
        if found < 5 && guilty(&program) {
            let small = shrink(&program, 2000, &mut { guilty });
            assert_eq!(small.ops.len(), 1, "{program}\n{small}");
            assert!(small.inputs.iter().all(|i| i.sizes.iter().product::<i64>() <= 1), "{small}");
            found += 1;
        }
    }
    assert!(found > 0);
}

fn runs(program: &Program) -> bool {
    let storages = copies(&program.draw(7, Device::Cpu), Mode::Native);
    program.views(&storages).is_ok_and(|views| tch::no_grad(|| program.run(&views, Mode::Native)).is_ok())
}

#[test]
fn fused_programs_agree_with_eager() {
    let _no_grad = tch::no_grad_guard();
    let mut tally = tilefuse::random::Tally::default();
    // A program that eager itself rejects before it is fused does not count; they are rare.
    let not_run = (0..1000).filter(|&seed| tally.run(seed, Device::Cpu, 60).is_err()).count();
    assert!(not_run <= 20, "{not_run} programs did not run");
    println!("{}", tally.summary());
    // Rounding depends on how the processor's own libtorch rounds: a few programs may exceed eager's error.
    let rounds = |f: &&tilefuse::random::Failed| f.difference.contains("error against f64");
    let report = |f: &tilefuse::random::Failed| format!("seed {}: {}\n{}", f.seed, f.difference, f.program);
    let (rounding, wrong): (Vec<_>, Vec<_>) = tally.failed.iter().partition(rounds);
    rounding.iter().for_each(|f| println!("{}", report(f)));
    assert!(wrong.is_empty(), "{}", wrong.into_iter().map(report).collect::<Vec<_>>().join("\n"));
    assert!(rounding.len() * 200 <= tally.programs, "{}", tally.summary());
    assert!(tally.fused * 100 >= tally.programs * 95, "{}", tally.summary());
}
