//! Kernels on the device against the interpreter. Takes no files; where there is no device, says how much it skipped.
//!
//! Arguments: a word, to run the cases whose names contain it; `--list`, to print the names; `--assemble`, to interpret,
//! compile and assemble every case instead, which needs `ptxas` and no device.

#![allow(clippy::unwrap_used)]

mod functions;
#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/ptxas.rs"]
mod ptxas;
mod reductions;
mod run;
mod shapes;
mod values;
mod whole;

use rayon::prelude::*;
use run::Case;
use tilefuse_codegen::Error;
use tilefuse_codegen::cuda::Device;

fn cases() -> Vec<Case> {
    let mut all = functions::cases();
    all.extend(reductions::cases());
    all.extend(shapes::cases());
    all.extend(whole::cases());
    all
}

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let filter = args.iter().find(|a| !a.starts_with('-'));
    let cases: Vec<Case> =
        cases().into_iter().filter(|c| filter.is_none_or(|f| c.name.contains(f))).collect();
    if args.iter().any(|a| a == "--list") {
        cases.iter().for_each(|c| println!("{}", c.name));
        return std::process::ExitCode::SUCCESS;
    }
    if args.iter().any(|a| a == "--assemble") {
        return report(&cases, run::assemble);
    }
    let device = match Device::get(0) {
        Ok(device) => device,
        Err(Error::NoDevice(why)) => {
            println!("{} GPU cases skipped, no device: {why}", cases.len());
            return std::process::ExitCode::SUCCESS;
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
    for failure in failures.iter().take(40) {
        println!("FAILED {failure}");
    }
    println!("{} GPU cases passed, {} failed", cases.len() - failures.len(), failures.len());
    if failures.is_empty() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
