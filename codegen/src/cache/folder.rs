//! The folder of a cache.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{Key, Kind};

/// How the names of files that are being written begin.
pub(super) const TEMPORARY: &str = ".new-";

/// A file that is still being written after this time was left behind.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Uses that lie closer together count as one.
const TOUCH: Duration = Duration::from_secs(60);

/// A folder that belongs to the user alone.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

struct CachedFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Folder {
    /// Makes the folder if it is not there, and makes sure that it is private and can be written.
    pub(super) fn open(path: &Path) -> Result<Folder, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let metadata = fs::metadata(path).map_err(failed)?;
        // SAFETY: takes and changes nothing.
        let user = unsafe { libc::geteuid() };
        if metadata.uid() != user {
            return Err(format!("{} belongs to another user", path.display()));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed)?;
        }
        tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(path).map_err(failed)?;
        Ok(Folder { path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where an entry lies.
    pub(super) fn entry(&self, kind: Kind, key: Key) -> PathBuf {
        self.path.join(format!("{}-{}", kind.name(), key.to_hex()))
    }

    /// The bytes of all files; files that were left behind by writers are deleted.
    pub(super) fn size(&self) -> u64 {
        self.files().iter().map(|file| file.bytes).sum()
    }

    /// Deletes the entries that were used longest ago until at most `limit` bytes are left; returns how many are.
    pub(super) fn shrink(&self, limit: u64) -> u64 {
        let mut files = self.files();
        files.sort_by_key(|file| file.used);
        let mut size: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if size <= limit {
                break;
            }
            remove(&file.path);
            size -= file.bytes;
        }
        size
    }

    fn files(&self) -> Vec<CachedFile> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let describe = |path: PathBuf| {
            let metadata = fs::symlink_metadata(&path).ok()?;
            let used = metadata.modified().ok()?;
            if is_abandoned(&path, &metadata) {
                remove(&path);
                return None;
            }
            Some(CachedFile { path, bytes: metadata.len(), used })
        };
        entries.flatten().filter_map(|entry| describe(entry.path())).collect()
    }
}

fn is_abandoned(path: &Path, metadata: &Metadata) -> bool {
    let temporary = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY));
    let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
    temporary && age.is_some_and(|age| age > ABANDONED)
}

/// Notes that an entry was used.
pub(super) fn touch(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age > TOUCH) {
        // A time that cannot be set makes the entry go sooner, no more.
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Deletes whatever is at a path in the folder; a link is deleted, not followed.
pub(super) fn remove(path: &Path) {
    if fs::remove_file(path).is_err() {
        // Where this fails too, the entry stays a miss.
        let _ = fs::remove_dir_all(path);
    }
}
