//! Compiled kernels on disk, found by content.
//!
//! The folder belongs to the user alone. An entry is written to a temporary file and renamed, so that readers see all
//! of it or nothing; it carries its key and a digest of its contents, and what does not verify is deleted and
//! counts as absent. Several processes may use one folder. A cache that cannot be used is one that finds nothing.

mod entry;
mod folder;
#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use folder::Folder;

/// The version of the compiler: of this crate, of its source, and of LLVM.
pub const COMPILER_VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), "-", env!("TILEFUSE_SOURCE_HASH"), "-llvm22");

/// The size limit where none is given.
const DEFAULT_MAX_BYTES: u64 = 1 << 30;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Object code for the host.
    HostObject,
    /// PTX.
    Ptx,
    /// Machine code of a GPU.
    Cubin,
    /// Measurements that choose between kernels.
    Tuning,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::HostObject => "host",
            Kind::Ptx => "ptx",
            Kind::Cubin => "cubin",
            Kind::Tuning => "tuning",
        }
    }
}

/// The name of an entry: a digest of everything that its contents depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of what this version of the compiler makes of a program's text for a target with flags.
    pub fn new(program: &str, target: &str, flags: &str) -> Key {
        let mut hasher = blake3::Hasher::new();
        for part in [COMPILER_VERSION, program, target, flags] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Key(*hasher.finalize().as_bytes())
    }

    /// A digest of a value, the same in every process of one build.
    pub fn of(value: &impl Hash) -> Key {
        let mut hasher = Blake3::default();
        value.hash(&mut hasher);
        Key(*hasher.finalize().as_bytes())
    }

    /// The key in hexadecimal.
    pub fn to_hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

/// BLAKE3 as a hasher of values, whose few bytes at a time are taken together.
#[derive(Default)]
struct Blake3 {
    hasher: blake3::Hasher,
    pending: Vec<u8>,
}

impl Blake3 {
    /// Bytes that are hashed together.
    const BLOCK: usize = 1 << 14;

    fn flush(&mut self) {
        self.hasher.update(&self.pending);
        self.pending.clear();
    }

    fn finalize(mut self) -> blake3::Hash {
        self.flush();
        self.hasher.finalize()
    }
}

impl Hasher for Blake3 {
    fn write(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= Blake3::BLOCK {
            self.flush();
        }
    }

    /// The first bytes of what [`Key::of`] gives.
    fn finish(&self) -> u64 {
        let mut hasher = self.hasher.clone();
        hasher.update(&self.pending);
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Where the cache is and how large it may grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The folder; `None` uses no cache.
    pub folder: Option<PathBuf>,
    /// The limit of its size in bytes; the entries that were used longest ago go first.
    pub max_bytes: u64,
}

impl CacheOptions {
    /// A cache in a folder.
    pub fn in_folder(folder: impl Into<PathBuf>) -> CacheOptions {
        CacheOptions { folder: Some(folder.into()), max_bytes: DEFAULT_MAX_BYTES }
    }

    /// No cache.
    pub fn off() -> CacheOptions {
        CacheOptions { folder: None, max_bytes: 0 }
    }

    /// The user's cache: the folder that the variable `TILEFUSE_CACHE` names (`off` for none), else
    /// `tilefuse/kernels` in the user's cache folder.
    pub fn from_env() -> CacheOptions {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        match set("TILEFUSE_CACHE") {
            Some(value) if value == "off" => return CacheOptions::off(),
            Some(folder) => return CacheOptions::in_folder(folder),
            None => {}
        }
        let base = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
        match base {
            Some(base) => CacheOptions::in_folder(base.join("tilefuse/kernels")),
            None => CacheOptions::off(),
        }
    }
}

/// A kernel cache. It never fails: what goes wrong is a miss, and is said once in [`Cache::warning`] and the log.
#[derive(Debug)]
pub struct Cache {
    folder: Option<Folder>,
    max_bytes: u64,
    warning: Option<String>,
    /// Bytes in the folder as far as known; `u64::MAX` before the first count.
    size: AtomicU64,
}

impl Cache {
    /// Opens or makes the cache.
    pub fn open(options: &CacheOptions) -> Cache {
        let (folder, warning) = match options.folder.as_deref().map(Folder::open) {
            None => (None, None),
            Some(Ok(folder)) => (Some(folder), None),
            Some(Err(why)) => (None, Some(format!("the kernel cache is not used: {why}"))),
        };
        if let Some(warning) = &warning {
            tracing::warn!("{warning}");
        }
        Cache { folder, max_bytes: options.max_bytes, warning, size: AtomicU64::new(u64::MAX) }
    }

    /// Why the folder that was asked for is not used, in one line.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The folder in use.
    pub fn path(&self) -> Option<&Path> {
        self.folder.as_ref().map(Folder::path)
    }

    /// The contents of an entry, if it is there and verifies.
    pub fn get(&self, kind: Kind, key: Key) -> Option<Vec<u8>> {
        let folder = self.folder.as_ref()?;
        let path = folder.entry(kind, key);
        match entry::read(&path, kind, &key) {
            entry::Found::Contents(contents) => {
                folder::touch(&path);
                Some(contents)
            }
            entry::Found::Nothing => None,
            entry::Found::Bad => {
                folder::remove(&path);
                None
            }
        }
    }

    /// Stores an entry; one that is there already is replaced. Where that fails, nothing is stored.
    pub fn put(&self, kind: Kind, key: Key, contents: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let bytes = entry::HEADER_BYTES as u64 + contents.len() as u64;
        if bytes > self.max_bytes {
            return;
        }
        match self.write(folder, kind, key, contents) {
            Ok(()) => self.grow(folder, bytes),
            Err(error) => tracing::debug!("a kernel was not cached: {error}"),
        }
    }

    fn write(&self, folder: &Folder, kind: Kind, key: Key, contents: &[u8]) -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(folder::TEMPORARY).tempfile_in(folder.path())?;
        file.write_all(&entry::header(kind, &key, contents))?;
        file.write_all(contents)?;
        let path = folder.entry(kind, key);
        match file.persist(&path) {
            Ok(_) => Ok(()),
            // Something that is no file is in the way.
            Err(error) => {
                folder::remove(&path);
                error.file.persist(&path).map(|_| ()).map_err(|error| error.error)
            }
        }
    }

    /// Counts new bytes, and makes room where there are too many.
    fn grow(&self, folder: &Folder, bytes: u64) {
        let known = self.size.load(Ordering::Relaxed);
        let size = if known == u64::MAX { folder.size() } else { known.saturating_add(bytes) };
        let size = if size > self.max_bytes { folder.shrink(self.max_bytes / 4 * 3) } else { size };
        self.size.store(size, Ordering::Relaxed);
    }
}
