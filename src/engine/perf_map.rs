//! Names of kernels for `perf`: where the variable `TILEFUSE_PERF` is `1`, each kernel that is loaded on the host is a line of
//! `/tmp/perf-PID.map`, by which `perf report` names code that is in no file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The file, where it is asked for and can be written.
fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let asked = std::env::var("TILEFUSE_PERF").is_ok_and(|value| value == "1");
        let path = format!("/tmp/perf-{}.map", std::process::id());
        // What another process of this number left there names other code; and nobody else chooses where we write.
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
        let file = asked.then(|| options.open(&path))?;
        file.map_err(|error| tracing::warn!("{path}: {error}")).ok().map(Mutex::new)
    };
    FILE.get_or_init(open).as_ref()
}

/// Says where the code of a kernel lies.
pub(super) fn note(name: &str, code: &Range<usize>) {
    let Some(file) = file() else { return };
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    // A profile without a name is no reason to fail.
    let _ = file.write_all(line(name, code).as_bytes());
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
