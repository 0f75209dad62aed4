//! Set-up and checks of the Tilefuse workspace: `cargo xtask setup|demo|test|ptxas|bundle|benchmarks`.
//!
//! This program builds with neither libtorch nor LLVM, because finding or installing them is its first task.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arguments;
mod benchmarks;
mod bundle;
mod demo;
mod gpu_tests;
#[cfg(test)]
mod layers;
mod links;
#[cfg(test)]
mod map;
#[cfg(test)]
mod packages;
mod ptxas;
mod setup;
mod suite;
mod workspace;

use std::process::ExitCode;

use arguments::Task;
use workspace::Workspace;

fn main() -> ExitCode {
    match arguments::parse(std::env::args().skip(1)).map_err(Into::into).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(status(&error))
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = Workspace::locate()?;
    match task {
        Task::Help => print!("{}", arguments::USAGE),
        Task::Setup => setup::setup(&workspace)?,
        Task::Demo(arguments) => demo::demo(&workspace, &arguments)?,
        Task::Test(arguments) => suite::test(&workspace, &arguments)?,
        Task::Ptxas(options) => ptxas::ptxas(&workspace, &options)?,
        Task::Bundle(profile) => bundle::bundle(&workspace, profile)?,
        Task::Benchmarks { check } => benchmarks::benchmarks(&workspace.root, check)?,
    }
    Ok(())
}

/// 2 where the user has to act (arguments, packages to install), 1 where something failed.
fn status(error: &anyhow::Error) -> u8 {
    let needs_user = error.is::<arguments::UsageError>() || error.is::<tilefuse_setup::NeedsUser>();
    if needs_user { 2 } else { 1 }
}
