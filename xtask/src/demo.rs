//! `cargo xtask demo`: from nothing to a fused model.

use std::process::Command;

use anyhow::Result;
use tilefuse_setup::process::run;

use crate::setup::setup;
use crate::workspace::Workspace;

/// Sets up, builds with optimisation, compares the model with eager and explains its plan. `arguments` are
/// those of `tilefuse compare` and `explain`, the model first.
pub(crate) fn demo(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    setup(workspace)?;
    run(workspace.cargo().args(["build", "--release", "--package", "tilefuse", "--bin", "tilefuse"]))?;
    let program = workspace.target.join("release/tilefuse");
    for task in ["compare", "explain"] {
        println!("\n$ tilefuse {task} {}\n", arguments.join(" "));
        run(Command::new(&program).arg(task).args(arguments))?;
    }
    Ok(())
}
