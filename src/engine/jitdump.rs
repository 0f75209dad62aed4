//! Kernels for `perf`, with their code: where the variable `TILEFUSE_PERF` is `jitdump`, each kernel that is loaded on the host is a
//! record of `jit-PID.dump` in the folder that `JITDUMPDIR` names, else in the current one. `perf record -k mono` notes that the file
//! was mapped, and `perf inject --jit` makes objects of it, which `perf annotate` shows.
//!
//! The format is that of `tools/perf/Documentation/jitdump-specification.txt` of Linux: a header, and records, each with its size.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// "JiTD", as a number.
const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
const HEADER_BYTES: u32 = 40;
/// The kind of a record that says that code was loaded.
const CODE_LOAD: u32 = 0;
/// Bytes of such a record without the name and the code.
const CODE_LOAD_BYTES: usize = 56;

/// The number of the processor's family in ELF files.
const MACHINE: u32 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// A file of kernels that were loaded.
pub(super) struct JitDump {
    file: File,
    kernels: u64,
}

impl JitDump {
    /// Begins the file of this process in a folder, and maps a page of it as code, which is how `perf` finds it.
    pub(super) fn create(folder: &Path) -> io::Result<JitDump> {
        let path = folder.join(format!("jit-{}.dump", std::process::id()));
        let mut options = OpenOptions::new();
        options.create(true).read(true).write(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(path)?;
        let mut header = Vec::new();
        for word in [MAGIC, VERSION, HEADER_BYTES, MACHINE, 0, std::process::id()] {
            header.extend(word.to_ne_bytes());
        }
        for word in [now(), 0] {
            header.extend(word.to_ne_bytes());
        }
        file.write_all(&header)?;
        map(&file)?;
        Ok(JitDump { file, kernels: 0 })
    }

    /// Says that code was loaded.
    ///
    /// # Safety
    /// The addresses must be those of memory that may be read until this returns.
    pub(super) unsafe fn load(&mut self, name: &str, code: &Range<usize>) -> io::Result<()> {
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(code.start as *const u8, code.len()) };
        let size = CODE_LOAD_BYTES + name.len() + 1 + bytes.len();
        let size = u32::try_from(size).map_err(|_| io::Error::other("a kernel is too large for a record"))?;
        // SAFETY: asks for a number.
        let thread = unsafe { libc::gettid() } as u32;
        let mut record = Vec::with_capacity(size as usize);
        for word in [CODE_LOAD, size] {
            record.extend(word.to_ne_bytes());
        }
        record.extend(now().to_ne_bytes());
        for word in [std::process::id(), thread] {
            record.extend(word.to_ne_bytes());
        }
        for word in [code.start as u64, code.start as u64, code.len() as u64, self.kernels] {
            record.extend(word.to_ne_bytes());
        }
        record.extend(name.as_bytes());
        record.push(0);
        record.extend(bytes);
        self.kernels += 1;
        self.file.write_all(&record)
    }
}

/// Nanoseconds by the clock that `perf record -k mono` takes.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Maps the file's first page for as long as the process lives. Nobody reads it.
fn map(file: &File) -> io::Result<()> {
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a mapping at an address of the system's choice touches nothing else.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut::<c_void>(), 4096, rights, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    if page == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a file from a place on.
    struct Reader<'a>(&'a [u8]);

    impl<'a> Reader<'a> {
        fn bytes(&mut self, count: usize) -> &'a [u8] {
            let (bytes, rest) = self.0.split_at(count);
            self.0 = rest;
            bytes
        }

        fn u32(&mut self) -> u32 {
            u32::from_ne_bytes(self.bytes(4).try_into().unwrap())
        }

        fn u64(&mut self) -> u64 {
            u64::from_ne_bytes(self.bytes(8).try_into().unwrap())
        }
    }

    #[test]
    fn records_are_as_the_specification_says() {
        let folder = tempfile::tempdir().unwrap();
        let mut dump = JitDump::create(folder.path()).unwrap();
        let codes = [&b"\x90\x90\xc3"[..], &b"\xc3"[..]];
        for (name, code) in ["fused_add", "fused_exp"].into_iter().zip(codes) {
            let at = code.as_ptr() as usize;
            // SAFETY: the bytes live as long as the program.
            unsafe { dump.load(name, &(at..at + code.len())) }.unwrap();
        }
        let path = folder.path().join(format!("jit-{}.dump", std::process::id()));
        let bytes = std::fs::read(&path).unwrap();
        let mut file = Reader(&bytes);
        // On a machine whose bytes have the other order, `perf` would find this number turned around.
        assert_eq!((file.u32(), file.u32(), file.u32()), (0x4A69_5444, 1, 40));
        assert_eq!((file.u32(), file.u32(), file.u32()), (MACHINE, 0, std::process::id()));
        let mut last = file.u64();
        assert!(last > 0);
        assert_eq!(file.u64(), 0, "no flags");
        for (index, (name, code)) in ["fused_add", "fused_exp"].into_iter().zip(codes).enumerate() {
            let left = file.0.len();
            let (kind, size, time) = (file.u32(), file.u32() as usize, file.u64());
            assert!(kind == 0 && time >= last);
            last = time;
            assert_eq!(file.u32(), std::process::id());
            assert!(file.u32() > 0, "a thread");
            let at = code.as_ptr() as u64;
            assert_eq!(
                (file.u64(), file.u64(), file.u64(), file.u64()),
                (at, at, code.len() as u64, index as u64)
            );
            assert_eq!(file.bytes(name.len() + 1), [name.as_bytes(), b"\0"].concat());
            assert_eq!(file.bytes(code.len()), code);
            assert_eq!(left - file.0.len(), size);
        }
        assert!(file.0.is_empty());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().find(|line| line.ends_with(path.to_str().unwrap()));
        assert!(mapped.is_some_and(|line| line.contains(" r-xp ")), "{maps}");
    }
}
