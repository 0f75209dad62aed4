//! `tilefuse random`: random tensor programs, fused against eager.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tch::Device;

use super::{Failure, report};
use crate::random::{
    Fault, Found, Outcome, Plantings, Program, Tally, find, generate, keep_panics, plan_of, run_fused,
};

/// Options of `tilefuse random`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many programs.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Start no further program after so many seconds.
    #[arg(long, value_name = "TIME")]
    seconds: Option<u64>,
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
    /// Plant each known fault of capture, functionalization and memory planning this many times with other seeds, and count
    /// how often programs find it.
    #[arg(long, value_name = "TIMES", conflicts_with = "replay")]
    faults: Option<u64>,
    /// Most programs to find one planted fault.
    #[arg(long, default_value_t = 4, requires = "faults")]
    within: usize,
    /// Plant only this one.
    #[arg(long, value_name = "NAME", requires = "faults")]
    fault: Option<String>,
    /// Plant the fault of `--fault` once, in this process, and print as JSON what became of it.
    #[arg(long, requires = "fault", hide = true)]
    worker: bool,
    /// Say each seed before it runs.
    #[arg(long)]
    trace: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command; differences end it with status 1, and a rounding, or what is not judged, that `--replay` finds.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // oneDNN's convolutions of bf16 by AMX read memory that nobody wrote, so that eager differs from eager. SAFETY: no other thread
    // runs yet.
    unsafe { std::env::set_var("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16") };
    // Before the driver, which may start threads, is asked for devices.
    if args.device.starts_with("cuda") {
        // cuDNN rounds the operands of one call to TF32 and of the next one, with the same operands, not: the errors of eager and
        // fused could not be compared. SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NVIDIA_TF32_OVERRIDE", "0") };
    }
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
        report::json(&tally)?;
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
        for unjudged in &tally.unjudged {
            report::print(&format!(
                "seed {} is not judged: {}\n{}",
                unjudged.seed, unjudged.difference, unjudged.program
            ));
        }
        for (reason, (count, seed)) in &tally.eager {
            report::print(&format!("eager {count}: {reason} (seed {seed})"));
        }
        report::print(&tally.summary());
    }
    if tally.failed.is_empty() { Ok(()) } else { Err(Failure { message: String::new(), status: 1 }) }
}

/// Plants faults, each in a child process, whose memory it may destroy, and fails where fewer than 95 of 100 of a kind are found.
fn faults(args: &Args, times: u64, device: Device) -> Result<(), Failure> {
    let named = |kind: &Fault| args.fault.as_ref().is_none_or(|name| *name == kind.to_string());
    let kinds: Vec<Fault> = Fault::ALL.iter().copied().filter(named).collect();
    if args.worker {
        let &[kind] = &kinds[..] else {
            return Err(Failure::usage(String::from("no fault has the name of --fault")));
        };
        return report::json(&find(kind, args.seed, args.within, device));
    }
    let progress = report::bar(times * kinds.len() as u64);
    let mut all = Vec::new();
    for kind in kinds {
        let next = AtomicU64::new(0);
        let counts = Mutex::new(Ok(Plantings::new(kind)));
        in_threads(args.jobs, || {
            loop {
                let time = next.fetch_add(1, Ordering::Relaxed);
                if time >= times {
                    break;
                }
                let found = in_child(args, kind, args.seed.wrapping_add(time));
                let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                match (&mut *counts, found) {
                    (Ok(counts), Ok(found)) => counts.add(found),
                    (Ok(_), Err(failure)) => *counts = Err(failure),
                    (Err(_), _) => break,
                }
                progress.inc(1);
            }
        });
        let counts = counts.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        if !args.json {
            progress.suspend(|| report::print(&counts.to_string()));
        }
        all.push(counts);
    }
    progress.finish_and_clear();
    if args.json {
        report::json(&all)?;
    }
    if all.iter().all(Plantings::suffices) {
        Ok(())
    } else {
        Err(Failure { message: String::new(), status: 1 })
    }
}

/// What became of a fault that a child process planted.
fn in_child(args: &Args, kind: Fault, seed: u64) -> Result<Found, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::usage(format!("the program's own path: {e}")))?;
    let ended = Command::new(program)
        .args(["random", "--faults", "1", "--worker", "--fault", &kind.to_string()])
        .args(["--seed", &seed.to_string(), "--within", &args.within.to_string(), "--device", &args.device])
        .stderr(Stdio::null())
        .output()
        .map_err(|e| Failure::usage(format!("cannot start a child process: {e}")))?;
    // Also where it ends itself after its answer: destroyed memory shows then, too.
    if ended.status.code().is_none() {
        return Ok(Found::ByCrash);
    }
    serde_json::from_slice(&ended.stdout)
        .map_err(|e| Failure::usage(format!("a child process with {kind} at seed {seed}: {e}")))
}

/// Runs the same on some threads.
fn in_threads(count: usize, run: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..count.max(1) {
            scope.spawn(&run);
        }
    });
}

fn all(args: &Args, device: Device) -> Result<Tally, Failure> {
    let progress = report::bar(args.count);
    let next = AtomicU64::new(0);
    let lost = AtomicBool::new(false);
    let tally = Mutex::new(Tally::default());
    let start = Instant::now();
    let is_late = || args.seconds.is_some_and(|most| start.elapsed() >= Duration::from_secs(most));
    in_threads(args.jobs, || {
        let mut own = Tally::default();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= args.count || is_late() || lost.load(Ordering::Relaxed) {
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
        tally.lock().unwrap_or_else(PoisonError::into_inner).add(own);
    });
    progress.finish_and_clear();
    Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The program of a file.
pub(super) fn read(path: &std::path::Path) -> Result<Program, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))?;
    text.parse().map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

fn replay(path: &std::path::Path, seed: u64, device: Device, show: bool) -> Result<(), Failure> {
    let program = read(path)?;
    let ran = run_fused(&program, seed, device)?;
    report::print(&format!("{ran:?}"));
    if show {
        report::print(&plan_of(&program, seed, device)?.text(true));
    }
    match ran.outcome {
        Outcome::Different(text) => Err(Failure { message: text, status: 1 }),
        Outcome::Rounding(rounding) => Err(Failure { message: rounding.to_string(), status: 1 }),
        Outcome::Unjudged(place) => Err(Failure { message: place, status: 1 }),
        _ => Ok(()),
    }
}
