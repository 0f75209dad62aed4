//! Random programs.

use tilefuse_block::interp;
use tilefuse_block::random::{Case, Choices, Options, case, compare_args};

use super::*;

/// The case of a seed; every other one with the operations of hand-written kernels.
fn made(seed: u64) -> Case {
    let options = Options { language: seed % 2 == 1, ..Options::default() };
    case(&mut Choices::from_seed(seed), &options)
}

/// The arguments after the interpreter has run a case.
fn interpreted(case: &Case) -> Result<Vec<Arg>, String> {
    let mut expected = case.args.clone();
    let quiet = interp::Options { print: |_| {}, ..interp::Options::default() };
    interp::run_with(&case.program, &mut expected, case.grid, &quiet).map_err(|e| e.to_string())?;
    Ok(expected)
}

/// Runs the case of a seed, on one instruction set or another.
fn run_seed(seed: u64) -> Result<(), String> {
    let case = made(seed);
    let expected = interpreted(&case)?;
    let options = HostOptions { isa: ISAS[(seed % 8).min(2) as usize] };
    let options = if seed % 8 > 2 { HostOptions::default() } else { options };
    let kernel =
        HostKernel::compile(&case.program, &options).map_err(|e| format!("{e}\n{}", case.program))?;
    let data = run_kernel(&kernel, &case.args, case.grid, &Serial);
    compare(&case, &expected, data).map_err(|e| format!("{e}, {options:?}"))
}

/// What buffers should hold after a run beside what they hold.
fn compare(case: &Case, expected: &[Arg], data: Vec<Data>) -> Result<(), String> {
    let mut data = data.into_iter();
    let found: Vec<Arg> = case
        .args
        .iter()
        .map(|a| match a {
            Arg::Buffer(_) => Arg::buffer(data.next().unwrap()),
            scalar => scalar.clone(),
        })
        .collect();
    compare_args(expected, &found, 0.0).map_err(|e| format!("{e}, {:?}\n{}", case.grid, case.program))
}

fn run_seeds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        run_seed(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// `TILEFUSE_SEEDS=FIRST..LAST` runs those seeds and shows all that fail.
#[test]
fn agrees_with_the_interpreter() {
    let range = std::env::var("TILEFUSE_SEEDS").ok();
    let parsed = range.as_deref().and_then(|r| r.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    let Some((Ok(first), Ok(last))) = parsed else { return run_seeds(0..600) };
    let failures: Vec<(u64, String)> =
        (first..last).filter_map(|seed| run_seed(seed).err().map(|e| (seed, e))).collect();
    for (seed, error) in &failures {
        println!("seed {seed}: {error}");
        if std::env::var_os("TILEFUSE_IR").is_some() {
            let case = made(*seed);
            let options = HostOptions { isa: ISAS[(seed % 8).min(2) as usize] };
            println!("{:?}\n{}", case.args, HostKernel::llvm_ir(&case.program, &options).unwrap());
        }
    }
    assert!(failures.is_empty(), "{} of {} failed", failures.len(), last - first);
}

/// Other seeds, on an emulated processor of another family.
#[test]
fn agrees_with_the_interpreter_on_another_family() {
    for seed in 1000..1300 {
        let case = made(seed);
        let expected = interpreted(&case).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let Some(data) = emulator::run(&case.program, &case.args, case.grid) else { return };
        compare(&case, &expected, data).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
