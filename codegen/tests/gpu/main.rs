//! Kernels on the device against the interpreter. Takes no files. Where there is no device, most cases run on emulated
//! threads, and the number of the others is printed.
//!
//! Arguments: words, to run the cases whose names contain one, or with `--exact` are one; `--list`, to print the names;
//! `--assemble`, to interpret, compile and assemble every case instead, which needs `ptxas` and no device; `--emulate`, to
//! run every case on emulated threads; `--seeds=FROM..TO`, for other random programs; `--seconds=N`, to begin no case after
//! that time, which then are ignored. The last line is as that of other test programs.

#![allow(clippy::unwrap_used)]

mod assembler;
mod atomics;
mod attention;
mod combiners;
mod debugging;
mod emulate;
mod flow;
mod functions;
mod gather;
#[path = "../support/kernels.rs"]
mod kernels;
mod partial_access;
mod persistent;
mod products;
#[path = "../support/ptxas.rs"]
mod ptxas;
mod random;
mod reductions;
mod run;
mod shapes;
mod values;
mod whole;
mod windows;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::prelude::*;
use run::Case;
use tilefuse_codegen::Error;
use tilefuse_codegen::cuda::Device;

fn cases(seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut all = functions::cases();
    all.extend(reductions::cases());
    all.extend(shapes::cases());
    all.extend(whole::cases());
    all.extend(partial_access::cases());
    all.extend(combiners::cases());
    all.extend(gather::cases());
    all.extend(products::cases());
    all.extend(persistent::cases());
    all.extend(windows::cases());
    all.extend(attention::cases());
    all.extend(assembler::cases());
    all.extend(atomics::cases());
    all.extend(debugging::cases());
    all.extend(random::language_cases(seeds.clone()));
    all.extend(flow::cases());
    all.extend(random::cases(seeds));
    all
}

/// Random programs that run where nothing else is asked for.
const RANDOM: u64 = 200;

/// A range of numbers, `FROM..TO`.
fn parse_seeds(text: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

/// What the arguments ask for.
struct Options {
    args: Vec<String>,
    seconds: f64,
}

impl Options {
    fn has(&self, name: &str) -> bool {
        self.args.iter().any(|arg| arg == name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.args.iter().find_map(|arg| arg.strip_prefix(name))
    }

    fn chooses(&self, name: &str) -> bool {
        let mut words = self.args.iter().filter(|arg| !arg.starts_with('-')).peekable();
        let exact = self.has("--exact");
        words.peek().is_none() || words.any(|word| if exact { name == word } else { name.contains(word) })
    }
}

fn main() -> ExitCode {
    let mut options = Options { args: std::env::args().skip(1).collect(), seconds: f64::INFINITY };
    options.seconds = options.value("--seconds=").and_then(|n| n.parse().ok()).unwrap_or(options.seconds);
    let seeds = options.value("--seeds=").and_then(parse_seeds).unwrap_or(0..RANDOM);
    let cases: Vec<Case> = cases(seeds).into_iter().filter(|case| options.chooses(&case.name)).collect();
    if options.has("--list") {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    if options.has("--print") {
        cases.iter().for_each(|case| println!("{}", case.program));
        return ExitCode::SUCCESS;
    }
    if options.has("--assemble") {
        return report(&cases, &options, run::assemble);
    }
    if options.has("--emulate") {
        return report(&cases, &options, run::emulate);
    }
    match Device::get(0) {
        Ok(device) => {
            println!("{:?}", device.properties());
            report(&cases, &options, |case| run::run(&device, case))
        }
        Err(Error::NoDevice(why)) => {
            // The functions are the bulk, and have no layout of their own: a few stand for all.
            let (kept, rest): (Vec<_>, Vec<_>) =
                cases.into_iter().enumerate().partition(|(i, case)| !case.is_function || i % 16 == 0);
            println!("{} GPU cases skipped, no device: {why}; on emulated threads:", rest.len());
            let kept: Vec<Case> = kept.into_iter().map(|(_, case)| case).collect();
            report(&kept, &options, run::emulate)
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The numbers below `n` in an order in which the first ones are spread over all.
fn spread(n: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    all.sort_by_key(|&i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    all
}

fn report(cases: &[Case], options: &Options, run: impl Fn(&Case) -> Result<(), String> + Sync) -> ExitCode {
    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    let (order, next) = (spread(cases.len()), AtomicUsize::new(0));
    let outcome = |_| {
        let case = &cases[order[next.fetch_add(1, Ordering::Relaxed)]];
        if options.has("--names") {
            eprintln!("begins {}", case.name);
        }
        let outcome =
            (seconds() <= options.seconds).then(|| run(case).map_err(|why| format!("{}: {why}", case.name)));
        if options.has("--names") {
            eprintln!("ends {}", case.name);
        }
        outcome
    };
    let outcomes: Vec<Option<Result<(), String>>> = (0..cases.len()).into_par_iter().map(outcome).collect();
    let failures: Vec<&String> = outcomes.iter().flatten().filter_map(|o| o.as_ref().err()).collect();
    for failure in failures.iter().take(60) {
        println!("FAILED {failure}");
    }
    let (ran, failed) = (outcomes.iter().flatten().count(), failures.len());
    let (word, ignored) = (if failed == 0 { "ok" } else { "FAILED" }, cases.len() - ran);
    println!(
        "test result: {word}. {} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        ran - failed,
        seconds()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
