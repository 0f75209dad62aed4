//! Names of kernels for `perf`: where the variable `TILEFUSE_PERF` is `1`, each kernel that is loaded on the host is a line of
//! `/tmp/perf-PID.map`, by which `perf report` names code that is in no file; where it is `jitdump`, a record of a
//! [jitdump](super::jitdump), which has the code as well.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use tilefuse_codegen::host::HostKernel;

use super::jitdump::JitDump;

/// Where kernels are told.
enum Symbols {
    Map(File),
    Dump(JitDump),
}

/// The file, where it is asked for and can be written.
fn symbols() -> Option<&'static Mutex<Symbols>> {
    static SYMBOLS: OnceLock<Option<Mutex<Symbols>>> = OnceLock::new();
    let open = || {
        let asked = std::env::var("TILEFUSE_PERF").unwrap_or_default();
        let opened = match asked.as_str() {
            "1" => map().map(Symbols::Map),
            "jitdump" => JitDump::create(&folder()).map(Symbols::Dump),
            "" | "0" => return None,
            other => {
                tracing::warn!("TILEFUSE_PERF is {other:?}, not 0, 1 or jitdump; taken as 0");
                return None;
            }
        };
        opened.map_err(|error| tracing::warn!("no names for perf: {error}")).ok().map(Mutex::new)
    };
    SYMBOLS.get_or_init(open).as_ref()
}

fn map() -> std::io::Result<File> {
    // What another process of this number left there names other code; and nobody else chooses where we write.
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
    options.open(format!("/tmp/perf-{}.map", std::process::id()))
}

/// The folder of the jitdump.
fn folder() -> PathBuf {
    std::env::var_os("JITDUMPDIR")
        .filter(|folder| !folder.is_empty())
        .map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// Says where the code of a kernel lies.
pub(super) fn note(name: &str, kernel: &HostKernel) {
    let Some(symbols) = symbols() else { return };
    let code = kernel.code_range();
    // A profile without a name is no reason to fail.
    let _ = match &mut *symbols.lock().unwrap_or_else(PoisonError::into_inner) {
        Symbols::Map(file) => file.write_all(line(name, &code).as_bytes()),
        // SAFETY: the kernel is alive, and its code readable as long as it is.
        Symbols::Dump(dump) => unsafe { dump.load(&format!("tilefuse::{name}"), &code) },
    };
}

fn line(name: &str, code: &Range<usize>) -> String {
    format!("{:x} {:x} tilefuse::{name}\n", code.start, code.len())
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_kernel_is_a_line() {
        assert_eq!(line("fused_add", &(0x1000..0x1240)), "1000 240 tilefuse::fused_add\n");
    }
}
