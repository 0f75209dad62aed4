//! `cargo xtask ptxas`: assembles every kernel of the model zoo, and reports registers and spills.
//!
//! `tilefuse dump-ptx --target TARGET --out DIR` writes the kernels, one `.ptx` file each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use tilefuse_setup::process::run;
use tilefuse_setup::progress;

use crate::arguments::PtxasOptions;
use crate::setup::setup;
use crate::workspace::Workspace;

const TARGETS: [&str; 2] = ["sm_80", "sm_90a"];

/// How many kernels of a target are listed where none spills.
const LISTED: usize = 8;

/// What the assembler says of one kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    kernel: String,
    registers: u32,
    /// Bytes of registers that went to memory and came back.
    spilled: u32,
    stack: u32,
    shared: u32,
}

/// The outcome of one file: its kernels, or the assembler's complaint.
struct Outcome {
    file: PathBuf,
    result: Result<Vec<Usage>, String>,
}

/// Assembles for each target; fails where a kernel spills, or does not assemble.
pub(crate) fn ptxas(workspace: &Workspace, options: &PtxasOptions) -> Result<()> {
    setup(workspace)?;
    let mut faults = 0;
    for target in TARGETS {
        let folder = match &options.from {
            Some(folder) => folder.clone(),
            None => dump(workspace, &program(workspace, options)?, target)?,
        };
        faults += check(workspace, &folder, target, options.all)?;
    }
    ensure!(faults == 0, "{faults} kernels spill registers or do not assemble");
    Ok(())
}

/// The program that writes the kernels: the one that was named, else one that is built now.
fn program(workspace: &Workspace, options: &PtxasOptions) -> Result<PathBuf> {
    if let Some(program) = &options.program {
        return program.canonicalize().with_context(|| format!("there is no {}", program.display()));
    }
    run(workspace.cargo().args(["build", "--package", "tilefuse", "--bin", "tilefuse"]))?;
    Ok(workspace.target.join("debug/tilefuse"))
}

/// Writes the zoo's kernels for the target into a fresh folder.
fn dump(workspace: &Workspace, program: &Path, target: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("ptxas").join(target);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    run(Command::new(program).args(["dump-ptx", "--target", target, "--out"]).arg(&folder))?;
    Ok(folder)
}

/// Assembles and reports the kernels of one folder; returns how many have a fault.
fn check(workspace: &Workspace, folder: &Path, target: &str, all: bool) -> Result<usize> {
    let files = ptx_files(folder)?;
    ensure!(!files.is_empty(), "{} holds no .ptx file", folder.display());
    let outcomes = assemble_all(&workspace.deps().join("ptxas"), &files, target);
    let (mut usages, mut faults) = (Vec::new(), 0);
    for outcome in outcomes {
        match outcome.result {
            Ok(found) => usages.extend(found),
            Err(complaint) => {
                faults += 1;
                println!("{}: {complaint}", outcome.file.display());
            }
        }
    }
    if usages.is_empty() && faults == 0 {
        bail!("the kernels in {} define no entry function", folder.display());
    }
    print!("{}", report(target, &mut usages, all));
    Ok(faults + usages.iter().filter(|usage| usage.spilled > 0).count())
}

fn ptx_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "ptx"));
    files.sort();
    Ok(files)
}

/// Runs one assembler for each core.
fn assemble_all(ptxas: &Path, files: &[PathBuf], target: &str) -> Vec<Outcome> {
    let bar = progress::counter(&format!("ptxas {target}"), files.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            outcomes.push(Outcome { file: file.clone(), result: assemble(ptxas, file, target) });
            bar.inc(1);
        }
        outcomes
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    bar.finish_and_clear();
    outcomes
}

fn assemble(ptxas: &Path, file: &Path, target: &str) -> Result<Vec<Usage>, String> {
    let mut command = Command::new(ptxas);
    command.arg(format!("-arch={target}")).args(["-v", "-o", "/dev/null"]).arg(file);
    let output = command.output().map_err(|error| format!("cannot start {}: {error}", ptxas.display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(usages(&text)) } else { Err(text.trim().to_owned()) }
}

/// Reads what `ptxas -v` prints of each entry function.
fn usages(text: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in text.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            let kernel = name.split('\'').next().unwrap_or(name).to_owned();
            usages.push(Usage { kernel, ..Usage::default() });
        } else if let Some(usage) = usages.last_mut() {
            read_usage(line, usage);
        }
    }
    usages
}

fn read_usage(line: &str, usage: &mut Usage) {
    if line.contains("bytes spill stores") {
        usage.stack = number_before(line, " bytes stack frame");
        usage.spilled =
            number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    } else if line.contains("Used ") {
        usage.registers = number_before(line, " registers");
        usage.shared = number_before(line, " bytes smem");
    }
}

/// The number that ends where `label` begins; 0 where the line has no such label.
fn number_before(line: &str, label: &str) -> u32 {
    let Some((before, _)) = line.split_once(label) else { return 0 };
    before.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// A table of the kernels that spill and of those that use most registers, or of all.
fn report(target: &str, usages: &mut [Usage], all: bool) -> String {
    usages.sort_by(|a, b| (b.spilled, b.registers, &a.kernel).cmp(&(a.spilled, a.registers, &b.kernel)));
    let spilling = usages.iter().filter(|usage| usage.spilled > 0).count();
    let listed = if all { usages.len() } else { spilling.max(LISTED).min(usages.len()) };
    let most = usages.iter().map(|usage| usage.registers).max().unwrap_or(0);
    let mut text =
        format!("\n{target}: {} kernels, at most {most} registers, {spilling} spill\n", usages.len());
    text += "registers  spilled  stack  shared  kernel\n";
    for usage in &usages[..listed] {
        let Usage { kernel, registers, spilled, stack, shared } = usage;
        text += &format!("{registers:>9}  {spilled:>7}  {stack:>5}  {shared:>6}  {kernel}\n");
    }
    if listed < usages.len() {
        text += &format!("{:>9}  {} more, which use no more registers\n", "...", usages.len() - listed);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax' for 'sm_90a'
ptxas info    : Function properties for softmax
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'add' for 'sm_90a'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers
ptxas info    : Compile time = 3.5 ms
";

    #[test]
    fn usage_is_read_for_each_kernel() {
        let softmax = Usage { kernel: "softmax".into(), registers: 255, spilled: 16, stack: 8, shared: 1024 };
        let add = Usage { kernel: "add".into(), registers: 16, ..Usage::default() };
        assert_eq!(usages(OUTPUT), [softmax, add]);
    }

    #[test]
    fn the_table_puts_spills_first() {
        let mut usages = usages(OUTPUT);
        usages.reverse();
        let table = report("sm_90a", &mut usages, false);
        assert!(table.contains("2 kernels, at most 255 registers, 1 spill"), "{table}");
        assert!(table.find("softmax") < table.find("add"), "{table}");
    }

    #[test]
    fn what_is_not_listed_is_counted() {
        let kernel = |n: u32| Usage { kernel: format!("k{n}"), registers: n, ..Usage::default() };
        let mut usages: Vec<Usage> = (0..20).map(kernel).collect();
        let table = report("sm_80", &mut usages, false);
        assert!(table.contains("k19") && !table.contains("k11\n") && table.contains("12 more"), "{table}");
        assert!(report("sm_80", &mut usages, true).contains("k11\n"));
    }
}
