//! The file of one entry: a header with the key and a digest, then the contents.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Key, Kind};

const MAGIC: &[u8; 8] = b"tilefuse";
const FORMAT: u32 = 1;

/// Magic, format, kind, key, length and digest of the contents.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 8 + 32 + 8 + 32;

/// The largest entry that is read.
const MAX_BYTES: u64 = 1 << 30;

pub(super) enum Found {
    Contents(Vec<u8>),
    Nothing,
    Bad,
}

/// The header of an entry.
pub(super) fn header(kind: Kind, key: &Key, contents: &[u8]) -> Vec<u8> {
    let mut name = [0; 8];
    name[..kind.name().len()].copy_from_slice(kind.name().as_bytes());
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT.to_le_bytes());
    header.extend_from_slice(&name);
    header.extend_from_slice(&key.0);
    header.extend_from_slice(&(contents.len() as u64).to_le_bytes());
    header.extend_from_slice(blake3::hash(contents).as_bytes());
    header
}

/// Reads and verifies an entry.
pub(super) fn read(path: &Path, kind: Kind, key: &Key) -> Found {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Found::Nothing,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Found::Nothing,
        Err(_) => return Found::Bad,
    };
    let fits = file.metadata().is_ok_and(|m| m.is_file() && m.len() <= MAX_BYTES);
    let mut bytes = Vec::new();
    if !fits || file.take(MAX_BYTES).read_to_end(&mut bytes).is_err() || bytes.len() < HEADER_BYTES {
        return Found::Bad;
    }
    let contents = bytes.split_off(HEADER_BYTES);
    if bytes == header(kind, key, &contents) { Found::Contents(contents) } else { Found::Bad }
}
