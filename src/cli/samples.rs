//! `tilefuse samples`: recorded calls of libtorch's operators, fused against eager.
//!
//! A folder has a file of programs for each element type; `benches/samples/opinfo.py` writes one. Programs run in child
//! processes, so that one that ends its process or does not end is a result as any other.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tch::Device;

use super::{Failure, one_line, report};
use crate::random::{Outcome, Program, general, keep_panics, panicked, run_given, run_given_eager, works};

/// Options of `tilefuse samples`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder of programs, or one file.
    path: PathBuf,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Child processes at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Only samples whose name has this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Seconds that one sample may take.
    #[arg(long, default_value_t = 120)]
    limit: u64,
    /// Write the samples' results to this file as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Run the samples from this one, in this process, and print each result as JSON.
    #[arg(long, value_name = "FIRST..END", hide = true)]
    worker: Option<String>,
    /// Run the worker's samples eager only.
    #[arg(long, hide = true)]
    eager: bool,
}

/// What became of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fate {
    /// A plan ran, and did what eager does.
    Right,
    /// It ran eager, for a reason.
    Eager,
    /// Eager rejects it, and so does the fused model.
    BothFail,
    /// Another result than eager's.
    Wrong,
    /// A result whose rounding errors are larger than eager's.
    Rounding,
    /// A result that is not close to eager's, of random numbers, so that no run in `f64` judges it.
    Unjudged,
    /// An error or a panic where eager works, or a plan that could not be compiled.
    Failed,
    /// The process ended, or went on beyond the limit.
    Crashed,
    /// The text is no program.
    Unread,
}

/// One line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    at: usize,
    name: String,
    fate: Fate,
    /// The reason or the difference.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    detail: String,
    kernels: usize,
    externs: usize,
}

struct Sample {
    name: String,
    text: String,
}

/// Runs the command; a sample that is wrong, fails or crashes ends it with status 1.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let device = super::args::device(&args.device)?;
    let samples = read(args)?;
    if let Some(range) = &args.worker {
        return work(&samples, range, device, args.eager);
    }
    let lines = all(args, samples.len())?;
    show(&lines);
    let bad = lines.iter().any(|l| matches!(l.fate, Fate::Wrong | Fate::Failed | Fate::Crashed));
    if bad { Err(Failure { message: String::new(), status: 1 }) } else { Ok(()) }
}

/// The samples of all files, in the order of the files' names.
fn read(args: &Args) -> Result<Vec<Sample>, Failure> {
    let bad = |path: &Path, e: std::io::Error| Failure::usage(format!("cannot read {}: {e}", path.display()));
    let mut files = vec![args.path.clone()];
    if args.path.is_dir() {
        let entries = std::fs::read_dir(&args.path).map_err(|e| bad(&args.path, e))?;
        files = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        let list = |p: &PathBuf| p.extension().is_some_and(|e| e == "txt") && !p.ends_with("not-carried.txt");
        files.retain(list);
        files.sort();
    }
    let device = if args.device == "cuda" { "cuda:0" } else { &args.device };
    let mut samples = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).map_err(|e| bad(&path, e))?;
        for part in format!("\n{text}").split("\nsample ").skip(1) {
            let (name, program) = part.split_once('\n').unwrap_or((part, ""));
            if name.contains(&args.only) {
                let text = program.replace("@device", device);
                samples.push(Sample { name: name.to_owned(), text });
            }
        }
    }
    Ok(samples)
}

/// Runs a range of the samples, and prints a line before and after each.
fn work(samples: &[Sample], range: &str, device: Device, eager: bool) -> Result<(), Failure> {
    let bounds = range.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    let range: std::ops::Range<usize> =
        bounds.ok_or_else(|| Failure::usage(format!("{range:?} is no range")))?;
    keep_panics();
    tch::set_num_threads(1);
    for at in range {
        let Some(sample) = samples.get(at) else { break };
        println!("{at}");
        let line = one(at, sample, device, eager);
        println!("{}", serde_json::to_string(&line).map_err(|e| Failure::usage(e.to_string()))?);
        if device.is_cuda() && !works(device) {
            // After a fault in a kernel, only another process can use the device.
            break;
        }
    }
    Ok(())
}

fn one(at: usize, sample: &Sample, device: Device, eager: bool) -> Line {
    let mut line = Line {
        at,
        name: sample.name.clone(),
        fate: Fate::Unread,
        detail: String::new(),
        kernels: 0,
        externs: 0,
    };
    let program: Program = match sample.text.parse() {
        Ok(program) => program,
        Err(error) => return Line { detail: error.to_string(), ..line },
    };
    if eager {
        let _ = catch_unwind(AssertUnwindSafe(|| run_given_eager(&program, device)));
        return Line { fate: Fate::Eager, ..line };
    }
    let ran = match catch_unwind(AssertUnwindSafe(|| run_given(&program, device))) {
        Ok(Ok(ran)) => ran,
        Ok(Err(error)) => return Line { fate: Fate::Failed, detail: format!("not run: {error}"), ..line },
        Err(panic) => return Line { fate: Fate::Failed, detail: panicked(panic.as_ref()), ..line },
    };
    (line.kernels, line.externs) = (ran.kernels, ran.externs);
    (line.fate, line.detail) = match ran.outcome {
        Outcome::BothFail => (Fate::BothFail, String::from("eager rejects it")),
        Outcome::Different(text) if text.contains("failed: ") => (Fate::Failed, text),
        Outcome::Different(text) => (Fate::Wrong, text),
        Outcome::Rounding(rounding) => (Fate::Rounding, rounding.to_string()),
        Outcome::Unjudged(place) => (Fate::Unjudged, place),
        Outcome::Same { .. } => ran.eager.map_or((Fate::Right, String::new()), |r| (Fate::Eager, r)),
    };
    line
}

/// Runs all samples in child processes of a few hundred each.
fn all(args: &Args, count: usize) -> Result<Vec<Line>, Failure> {
    const SHARD: usize = 100;
    let create = |path: &PathBuf| {
        let bad = |e| Failure::usage(format!("cannot write {}: {e}", path.display()));
        std::fs::File::create(path).map_err(bad)
    };
    let results = args.results.as_ref().map(create).transpose()?.map(Mutex::new);
    let progress = report::bar(count as u64);
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let mut from = next.fetch_add(SHARD, Ordering::Relaxed);
                    let end = (from + SHARD).min(count);
                    if from >= count {
                        break;
                    }
                    while from < end {
                        match shard(args, from, end, &progress) {
                            Ok((done, reached)) => {
                                if let Some(results) = &results {
                                    write(&mut results.lock().unwrap_or_else(PoisonError::into_inner), &done);
                                }
                                lines.lock().unwrap_or_else(PoisonError::into_inner).extend(done);
                                from = reached;
                            }
                            Err(error) => {
                                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                                return;
                            }
                        }
                    }
                }
            });
        }
    });
    progress.finish_and_clear();
    if let Some(failure) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(failure);
    }
    let mut lines: Vec<Line> = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
    lines.sort_by_key(|l| l.at);
    Ok(lines)
}

/// Appends results to a file; one that cannot be written to ends up short, and the table still has them.
fn write(file: &mut std::fs::File, lines: &[Line]) {
    let text: String = lines.iter().filter_map(|l| Some(serde_json::to_string(l).ok()? + "\n")).collect();
    if let Err(error) = file.write_all(text.as_bytes()) {
        report::print(&format!("cannot write results: {error}"));
    }
}

/// Runs samples in one child process until one ends it; returns the results and the first sample that is left.
fn shard(
    args: &Args,
    from: usize,
    end: usize,
    progress: &indicatif::ProgressBar,
) -> Result<(Vec<Line>, usize), Failure> {
    let mut child = spawn(args, from, end, false)?;
    let (send, receive) = mpsc::channel();
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        for line in out.into_iter().flat_map(|o| BufReader::new(o).lines().map_while(Result::ok)) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let (mut lines, mut begun) = (Vec::new(), None);
    let timed_out = loop {
        match receive.recv_timeout(Duration::from_secs(args.limit)) {
            Ok(text) => match serde_json::from_str::<Line>(&text) {
                Ok(line) => {
                    begun = None;
                    progress.inc(1);
                    lines.push(line);
                }
                Err(_) => begun = text.parse::<usize>().ok().or(begun),
            },
            Err(mpsc::RecvTimeoutError::Timeout) => break true,
            Err(mpsc::RecvTimeoutError::Disconnected) => break false,
        }
    };
    let _ = child.kill();
    let status = child.wait();
    let ended = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
    let _ = reader.join();
    let reached = lines.last().map_or(from, |l: &Line| l.at + 1);
    if begun.is_none() && reached > from && (reached == end || ended) {
        return Ok((lines, reached));
    }
    let at = begun.unwrap_or(reached);
    let detail = if timed_out { format!("took more than {} s", args.limit) } else { status };
    let name = read(args)?.get(at).map_or_else(String::new, |s| s.name.clone());
    let alone = spawn(args, at, at + 1, true)?.wait_with_output();
    let eager_ends = alone.is_ok_and(|o| !o.status.success());
    let (fate, detail) = match eager_ends && !timed_out {
        true => (Fate::BothFail, format!("eager ends the process: {detail}")),
        false => (Fate::Crashed, detail),
    };
    lines.push(Line { at, name, fate, detail, kernels: 0, externs: 0 });
    Ok((lines, at + 1))
}

fn spawn(args: &Args, from: usize, end: usize, eager: bool) -> Result<Child, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::usage(format!("the program's own path: {e}")))?;
    let range = format!("{from}..{end}");
    Command::new(program)
        .arg("samples")
        .arg(&args.path)
        .args(["--device", &args.device, "--only", &args.only, "--worker", &range])
        .args(eager.then_some("--eager"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| Failure::usage(format!("cannot start a child process: {e}")))
}

/// Prints what differs, reasons by how many samples they have, and a table by element type.
fn show(lines: &[Line]) {
    let mut table: BTreeMap<String, [usize; COLUMNS.len()]> = BTreeMap::new();
    let mut reasons: BTreeMap<(u8, String), (usize, &str)> = BTreeMap::new();
    for line in lines {
        let dtype = line.name.split_whitespace().nth(1).unwrap_or("?").to_owned();
        for row in [dtype, String::from("all")] {
            table.entry(row).or_default()[line.fate.clone() as usize] += 1;
        }
        if !line.detail.is_empty() {
            let key = (line.fate.clone() as u8, general(&one_line(&line.detail)));
            reasons.entry(key).or_insert((0, &line.name)).0 += 1;
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|((fate, _), (count, _))| (*fate, std::cmp::Reverse(*count)));
    for ((fate, reason), (count, name)) in reasons {
        let word = COLUMNS.get(usize::from(fate)).copied().unwrap_or("?");
        report::print(&format!("{word} {count}: {reason} ({name})"));
    }
    report::print(&format!("{:<10}{}", "", COLUMNS.map(|c| format!("{c:>11}")).concat()));
    for (dtype, counts) in &table {
        report::print(&format!("{dtype:<10}{}", counts.map(|c| format!("{c:>11}")).concat()));
    }
}

/// The fates in their order.
const COLUMNS: [&str; 9] =
    ["right", "eager", "both fail", "wrong", "rounding", "unjudged", "failed", "crashed", "unread"];
