//! Kernels on the device against the interpreter. Takes no files. Where there is no device, most cases run on emulated
//! threads, and the number of the others is printed.
//!
//! Arguments: a word, to run the cases whose names contain it; `--list`, to print the names; `--assemble`, to interpret,
//! compile and assemble every case instead, which needs `ptxas` and no device; `--emulate`, to run every case
//! on emulated threads; `--seeds=FROM..TO`, for other random programs.

#![allow(clippy::unwrap_used)]

mod atomics;
mod combiners;
mod debugging;
mod emulate;
mod flow;
mod functions;
#[path = "../support/kernels.rs"]
mod kernels;
mod partly;
mod picks;
mod products;
#[path = "../support/ptxas.rs"]
mod ptxas;
mod random;
mod reductions;
mod run;
mod shapes;
mod values;
mod whole;

use rayon::prelude::*;
use run::Case;
use tilefuse_codegen::Error;
use tilefuse_codegen::cuda::Device;

fn cases(seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut all = functions::cases();
    all.extend(reductions::cases());
    all.extend(shapes::cases());
    all.extend(whole::cases());
    all.extend(partly::cases());
    all.extend(combiners::cases());
    all.extend(picks::cases());
    all.extend(products::cases());
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

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let filter = args.iter().find(|a| !a.starts_with('-'));
    let seeds = args.iter().find_map(|a| parse_seeds(a.strip_prefix("--seeds=")?)).unwrap_or(0..RANDOM);
    let cases: Vec<Case> =
        cases(seeds).into_iter().filter(|c| filter.is_none_or(|f| c.name.contains(f))).collect();
    if args.iter().any(|a| a == "--list") {
        cases.iter().for_each(|c| println!("{}", c.name));
        return std::process::ExitCode::SUCCESS;
    }
    if args.iter().any(|a| a == "--assemble") {
        return report(&cases, run::assemble);
    }
    if args.iter().any(|a| a == "--emulate") {
        return report(&cases, run::emulate);
    }
    let device = match Device::get(0) {
        Ok(device) => device,
        Err(Error::NoDevice(why)) => {
            // The functions are the bulk, and have no layout of their own: a few stand for all.
            let (kept, rest): (Vec<_>, Vec<_>) =
                cases.into_iter().enumerate().partition(|(i, case)| !case.is_function || i % 16 == 0);
            println!("{} GPU cases skipped, no device: {why}; on emulated threads:", rest.len());
            let kept: Vec<Case> = kept.into_iter().map(|(_, case)| case).collect();
            return report(&kept, run::emulate);
        }
        Err(error) => {
            println!("{error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    println!("{:?}", device.properties());
    report(&cases, |case| run::run(&device, case))
}

fn report(cases: &[Case], run: impl Fn(&Case) -> Result<(), String> + Sync) -> std::process::ExitCode {
    let failures: Vec<String> = cases
        .par_iter()
        .filter_map(|case| run(case).err().map(|why| format!("{}: {why}", case.name)))
        .collect();
    for failure in failures.iter().take(60) {
        println!("FAILED {failure}");
    }
    println!("{} cases passed, {} failed", cases.len() - failures.len(), failures.len());
    if failures.is_empty() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
