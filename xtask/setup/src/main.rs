//! `tilefuse-setup`: makes a cargo project ready to build with Tilefuse.

use std::process::ExitCode;

use anyhow::{Context, Result};
use tilefuse_setup::project::{Config, overriding_variable};
use tilefuse_setup::{NeedsUser, Request, cache_folder, find, find_or_install};

const USAGE: &str = "\
usage: tilefuse-setup [--check]

  Finds libtorch 2.11, LLVM 22 and a C++20 compiler, installs what is missing, and writes where they are into
  .cargo/config.toml of the project in this folder, so that cargo finds them with nothing to export.

  --check   only says what there is and what is missing; ends with status 2 where something is missing
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [] => set_up(),
        ["--check"] => check(),
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(NeedsUser(USAGE.to_owned()).into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tilefuse-setup: {error:#}");
            ExitCode::from(if error.is::<NeedsUser>() { 2 } else { 1 })
        }
    }
}

fn config() -> Result<Config> {
    Config::of(&std::env::current_dir().context("there is no current folder")?)
}

fn request(config: Option<&Config>) -> Result<Request> {
    Ok(Request {
        libtorch: config.and_then(Config::libtorch),
        llvm: config.and_then(Config::llvm),
        ptxas: false,
        browser: false,
        cache: cache_folder()?,
        command: "tilefuse-setup",
    })
}

fn set_up() -> Result<()> {
    let mut config = config()?;
    let found = find_or_install(&request(Some(&config))?)?;
    let (libtorch, llvm) = found.libtorch().zip(found.llvm()).context("libtorch or LLVM is missing")?;
    let changed = config.write(libtorch, llvm)?;
    print!("{}", found.summary());
    let place = config.path().display();
    match changed {
        true => println!(
            "wrote {place}\nIt names folders of this machine: others run `tilefuse-setup` themselves."
        ),
        false => println!("{place} says so already"),
    }
    if let Some(variable) = overriding_variable() {
        eprintln!(
            "{variable} is set: cargo then reads no rustflags from files, and programs may not find libtorch"
        );
    }
    Ok(())
}

/// Says what there is, for the project in this folder if there is one.
fn check() -> Result<()> {
    let found = find(&request(config().ok().as_ref())?)?;
    print!("{}", found.summary());
    if found.is_complete() {
        return Ok(());
    }
    Err(NeedsUser(format!("missing:\n{}`tilefuse-setup` in a project's folder installs it", found.missing()))
        .into())
}
