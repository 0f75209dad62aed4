//! `tilefuse random`: random tensor programs, fused against eager.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tch::Device;

use super::{Failure, report};
use crate::random::{Fault, Outcome, Program, Tally, finds, generate, keep_panics, plan_of, run_fused};

/// Options of `tilefuse random`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many programs.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// The first seed; the others follow.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads that run programs.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Most runs to shrink one failing program.
    #[arg(long, default_value_t = 300)]
    tries: usize,
    /// Run the program of this file instead.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Show the plan of the program of `--replay`, with its block programs.
    #[arg(long)]
    show: bool,
    /// Print the programs instead of running them.
    #[arg(long, conflicts_with = "replay")]
    print: bool,
    /// Plant each known fault of capture, functionalization and memory planning in every program, this many times with other
    /// seeds, and count how often at most `--count` programs find it.
    #[arg(long, value_name = "TIMES", conflicts_with = "replay")]
    faults: Option<u64>,
    /// Say each seed before it runs.
    #[arg(long)]
    trace: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command; differences end it with status 1, and a rounding that `--replay` finds.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let device = super::args::device(&args.device)?;
    keep_panics();
    if let Some(path) = &args.replay {
        return replay(path, args.seed, device, args.show);
    }
    if args.print {
        for seed in (0..args.count).map(|at| args.seed.wrapping_add(at)) {
            report::print(&format!("# seed {seed}\n{}", generate(seed)));
        }
        return Ok(());
    }
    if let Some(times) = args.faults {
        return faults(args, times, device);
    }
    let tally = all(args, device)?;
    if args.json {
        let text = serde_json::to_string(&tally).map_err(|e| Failure::usage(e.to_string()))?;
        report::print(&text);
    } else {
        for failed in &tally.failed {
            report::print(&format!("seed {}: {}\n{}", failed.seed, failed.difference, failed.program));
        }
        for rounded in &tally.rounded {
            report::print(&format!(
                "seed {} rounds: {}\n{}",
                rounded.seed, rounded.difference, rounded.program
            ));
        }
        for (reason, (count, seed)) in &tally.eager {
            report::print(&format!("eager {count}: {reason} (seed {seed})"));
        }
        report::print(&tally.summary());
    }
    if tally.failed.is_empty() { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

/// Plants faults, and fails where fewer than 95 of 100 are found.
fn faults(args: &Args, times: u64, device: Device) -> Result<(), Failure> {
    let progress = report::bar(times * Fault::ALL.len() as u64);
    let (mut found, mut planted) = (0, 0);
    for &fault in Fault::ALL {
        let mut programs = Vec::new();
        for time in 0..times {
            let first = args.seed.wrapping_add(time.wrapping_mul(args.count));
            programs
                .push(finds(fault, first..first.wrapping_add(args.count), device).map(|at| at - first + 1));
            progress.inc(1);
        }
        planted += times;
        found += programs.iter().flatten().count() as u64;
        let words = programs.iter().map(|p| p.map_or_else(|| String::from("not found"), |n| n.to_string()));
        let line = format!("{fault}: {}", words.collect::<Vec<_>>().join(", "));
        progress.suspend(|| report::print(&line));
    }
    progress.finish_and_clear();
    report::print(&format!(
        "{found} of {planted} planted faults found, each by at most {} programs",
        args.count
    ));
    if found * 100 >= planted * 95 { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

fn all(args: &Args, device: Device) -> Result<Tally, Failure> {
    let progress = report::bar(args.count);
    let next = AtomicU64::new(0);
    let lost = AtomicBool::new(false);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                let mut own = Tally::default();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= args.count || lost.load(Ordering::Relaxed) {
                        break;
                    }
                    let seed = args.seed.wrapping_add(at);
                    if args.trace {
                        eprintln!("seed {seed}");
                    }
                    let known = own.failed.len();
                    if let Err(error) = own.run(seed, device, args.tries) {
                        own.count_eager(&format!("not run: {error}"), 1, seed);
                    }
                    for failed in own.failed.iter().skip(known) {
                        progress.suspend(|| eprintln!("seed {}: {}", failed.seed, failed.difference));
                    }
                    lost.fetch_or(own.device_lost, Ordering::Relaxed);
                    progress.inc(1);
                }
                tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(own);
            });
        }
    });
    progress.finish_and_clear();
    Ok(tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn replay(path: &std::path::Path, seed: u64, device: Device, show: bool) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    let program: Program = text.parse().map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    let ran = run_fused(&program, seed, device)?;
    report::print(&format!("{ran:?}"));
    if show {
        report::print(&plan_of(&program, seed, device)?.text(true));
    }
    match ran.outcome {
        Outcome::Different(text) => Err(Failure { message: text, status: 1 }),
        Outcome::Rounding(rounding) => Err(Failure { message: rounding.to_string(), status: 1 }),
        _ => Ok(()),
    }
}
