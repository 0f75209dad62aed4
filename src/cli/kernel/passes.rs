//! Watching the passes that a block program goes through, and stopping behind one: those of the block IR, then those of
//! the target.

use tilefuse_block::Program;
use tilefuse_block::passes::{PASSES, PassOptions, run_passes};
use tilefuse_codegen::host::{self, HostOptions};
use tilefuse_codegen::ptx;

use super::{Args, Stage, Target};
use crate::cli::{Failure, report};

/// The names of a target's own passes.
fn of_target(target: Target) -> Vec<&'static str> {
    match target {
        Target::Interpret => Vec::new(),
        Target::Host => host::Pass::ALL.into_iter().map(host::Pass::name).collect(),
        Target::Sm80 | Target::Sm90a | Target::Sm100a => {
            ptx::Pass::ALL.into_iter().map(ptx::Pass::name).collect()
        }
    }
}

/// All passes on the way to a target, by name.
fn names(target: Target) -> Vec<&'static str> {
    PASSES.iter().map(|pass| pass.0).chain(of_target(target)).collect()
}

/// The names for the help.
pub(super) fn known() -> String {
    let names = |target| of_target(target).join(", ");
    let block: Vec<&str> = PASSES.iter().map(|pass| pass.0).collect();
    let (host, gpu) = (names(Target::Host), names(Target::Sm90a));
    format!("{}; then, for the host, {host}; for GPUs, {gpu}", block.join(", "))
}

/// Runs the passes that are asked for, and prints the program after those that are watched. The program, unless
/// `--stop-after` names a pass of the target: then what there is to see has been printed.
pub(super) fn run(mut program: Program, args: &Args) -> Result<Option<Program>, Failure> {
    check(args)?;
    let is_watched = |pass: &str| args.print_after.iter().any(|name| name == pass || name == "all");
    let mut observe = |pass: &'static str, program: &Program| {
        if is_watched(pass) {
            eprint!("// after {pass}\n{program}");
        }
    };
    let mut options = PassOptions { stop_after: args.stop_after.as_deref(), ..PassOptions::default() };
    options.observe = Some(&mut observe);
    run_passes(&mut program, PASSES, &mut options).map_err(|e| Failure::usage(e.to_string()))?;
    let of_target = of_target(args.target);
    let last = args.stop_after.as_deref();
    if last.is_some_and(|last| !of_target.contains(&last)) {
        return Ok(Some(program));
    }
    for pass in of_target {
        if is_watched(pass) {
            eprint!("// after {pass}\n{}", after(&program, args.target, pass)?);
        }
        if last == Some(pass) {
            report::print(&after(&program, args.target, pass)?);
            return Ok(None);
        }
    }
    Ok(Some(program))
}

/// Whether all passes that are named are there, and nothing is asked for that comes after the last one.
fn check(args: &Args) -> Result<(), Failure> {
    let names = names(args.target);
    let watched = args.print_after.iter().filter(|name| *name != "all");
    if let Some(unknown) = watched.chain(&args.stop_after).find(|name| !names.contains(&name.as_str())) {
        let (target, names) = (args.target.name(), names.join(", "));
        return Err(Failure::usage(format!("target {target} has no pass {unknown:?}; there are {names}")));
    }
    let beyond = args.run || args.emit.is_some_and(|stage| stage != Stage::Block);
    match args.stop_after.as_deref().filter(|last| of_target(args.target).contains(last)) {
        Some(last) if beyond => Err(Failure::usage(format!(
            "--stop-after {last}: it is a pass of the target, behind it there is nothing to emit or run"
        ))),
        _ => Ok(()),
    }
}

/// The program after a pass of the target.
fn after(program: &Program, target: Target, pass: &str) -> Result<String, Failure> {
    let (on_host, on_gpu) = (host::Pass::from_name(pass), ptx::Pass::from_name(pass));
    let shown = match (target, target.ptx(), on_host, on_gpu) {
        (Target::Host, _, Some(pass), _) => host::after(program, &HostOptions::default(), pass),
        (_, Some(gpu), _, Some(pass)) => ptx::after(program, gpu, pass),
        _ => Ok(program.to_string()),
    };
    shown.map_err(|e| Failure::from(crate::Error::from(e)))
}
