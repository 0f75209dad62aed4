//! The assembler `ptxas` as a program of its own: several run at a time, where the driver's compiler takes one kernel after
//! the other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ptx::Ptx;

/// Set where the assembler's code was of no use: it is older than the PTX or newer than the driver.
static UNFIT: AtomicBool = AtomicBool::new(false);

/// The machine code of a kernel for exactly its target; `None` where there is no assembler, or none that can.
pub(super) fn assemble(ptx: &Ptx) -> Option<Vec<u8>> {
    let program = program().filter(|_| !UNFIT.load(Ordering::Relaxed))?;
    match run(program, ptx) {
        Ok(code) => Some(code),
        Err(why) => {
            tracing::debug!("{} is not used: {why}", program.display());
            give_up();
            None
        }
    }
}

/// Leaves machine code to the driver from now on.
pub(super) fn give_up() {
    UNFIT.store(true, Ordering::Relaxed);
}

/// The assembler: what `TILEFUSE_PTXAS` names (`off` for none), else the one that comes with libtorch or CUDA, or one in
/// the path.
pub fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(find).as_deref()
}

fn find() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match set("TILEFUSE_PTXAS") {
        Some(value) if value == "off" => return None,
        Some(value) => return Some(PathBuf::from(value)),
        None => {}
    }
    let homes = ["LIBTORCH", "CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set);
    let homes = homes.map(|home| PathBuf::from(home).join("bin"));
    let path = set("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let usual = PathBuf::from("/usr/local/cuda/bin");
    let all = homes.chain(path).chain([usual]).map(|folder| folder.join("ptxas"));
    all.filter(|program| program.is_absolute()).find(|program| program.is_file())
}

fn run(program: &Path, ptx: &Ptx) -> std::io::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let (source, code) = (folder.path().join("kernel.ptx"), folder.path().join("kernel.cubin"));
    std::fs::write(&source, &ptx.text)?;
    let mut command = Command::new(program);
    command.arg(format!("-arch={}", ptx.target.name())).arg("-o").arg(&code).arg(&source);
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(std::io::Error::other(text));
    }
    std::fs::read(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::{PtxOptions, Target, compile_ptx};

    #[test]
    fn kernels_are_assembled_where_there_is_an_assembler() {
        let Some(program) = program() else { return };
        let text = "kernel @copy(%x: ptr<f32>, %y: ptr<f32>) warps(1) {
  %i = range 0 128
  %v = load %x, %i
  store %y, %i, %v
}
";
        let copy = tilefuse_block::parse_valid(text).unwrap();
        let ptx = compile_ptx(&copy, Target::Sm90a, &PtxOptions::default()).unwrap();
        let code = run(program, &ptx).unwrap();
        assert!(code.starts_with(b"\x7fELF"));
        let wrong = Ptx { text: ptx.text.replace("ld.", "lld."), ..ptx };
        assert!(run(program, &wrong).is_err());
    }
}
