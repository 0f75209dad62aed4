//! Memory of large tensors on the host, in large pages where the system has them: a kernel that goes through some
//! megabytes touches more small pages than the processor can look up at once. The C library also maps anew what is larger
//! than 32 MiB, and the first touch of each of its pages takes longer than most kernels. What results give back is kept here
//! for the next ones of about their size.
//!
//! It is bounded: where nothing that is kept fits, it goes back to the system before new memory is mapped, but for [`MAX_IDLE_BYTES`]
//! bytes, so that no more is held than results hold at a time, but for these and [`MAX_WASTE`]. What lies unused through [`MAX_AGE`]
//! others goes back as well, and all of it when a plan is dropped and by [`release_memory`]. Without a plan nothing is kept.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;

/// Bytes from which on tensors get memory from here: a few large pages.
pub(super) const MIN_BYTES: usize = 4 << 20;
/// Kept memory serves for what needs this fraction less.
const MAX_WASTE: usize = 8;
/// Bytes that stay where nothing that is kept fits: results of several sizes take turns.
const MAX_IDLE_BYTES: usize = 32 << 20;
/// Of how many others kept memory is not what they need before it goes back.
const MAX_AGE: u64 = 64;
/// Bytes of a large page.
const PAGE: usize = 2 << 20;

/// Memory that the system has mapped for this process alone.
#[derive(Debug)]
struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    /// New memory of at least one byte, in large pages where the system gives them; `None` where it has no more.
    fn new(bytes: usize) -> Option<Mapping> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let all = bytes.checked_add(PAGE)?;
        // SAFETY: a mapping at an address of the system's choice touches nothing that is there.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), all, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        // Large pages begin at multiples of their size.
        let start = mapped.expose_provenance();
        let address = start.next_multiple_of(PAGE);
        for (from, to) in [(start, address), (address + bytes, start + all)] {
            if to > from {
                // SAFETY: this part of the mapping was made just now, and nobody uses it.
                let _ = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(from), to - from) };
            }
        }
        // SAFETY: advice about memory that was mapped just now. A system that does not take it loses only speed.
        #[cfg(target_os = "linux")]
        let _ = unsafe {
            libc::madvise(std::ptr::with_exposed_provenance_mut(address), bytes, libc::MADV_HUGEPAGE)
        };
        Some(Mapping { address, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped as a whole, and whoever has given it back does not use it any more.
        let _ = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.address), self.bytes) };
    }
}

/// Mappings in use by address, and those that are kept.
#[derive(Debug, Default)]
struct Reserve {
    used: FxHashMap<usize, Mapping>,
    /// With the number of takes when it was given back.
    kept: Vec<(u64, Mapping)>,
    takes: u64,
    plans: usize,
}

impl Reserve {
    /// The address of that much memory.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        self.takes += 1;
        let fits = |(_, m): &(u64, Mapping)| (bytes..=bytes + bytes / MAX_WASTE).contains(&m.bytes);
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
        let best = fitting.min_by_key(|(_, (_, mapping))| mapping.bytes).map(|(at, _)| at);
        let mapping = match best {
            Some(at) => self.kept.remove(at).1,
            None => {
                self.trim();
                Mapping::new(bytes)?
            }
        };
        let takes = self.takes;
        self.kept.retain(|(then, _)| takes - then < MAX_AGE);
        let address = mapping.address;
        self.used.insert(address, mapping);
        Some(address)
    }

    /// Gives back what was kept longest until no more than [`MAX_IDLE_BYTES`] is left.
    fn trim(&mut self) {
        let mut left: usize = self.kept.iter().map(|(_, mapping)| mapping.bytes).sum();
        self.kept.retain(|(_, mapping)| {
            let goes = left > MAX_IDLE_BYTES;
            left -= if goes { mapping.bytes } else { 0 };
            !goes
        });
    }

    /// Keeps what is not in use any more, where there are plans.
    fn give(&mut self, address: usize) {
        let takes = self.takes;
        let given = self.used.remove(&address).filter(|_| self.plans > 0);
        self.kept.extend(given.map(|mapping| (takes, mapping)));
    }

    /// Gives back what is kept; how many bytes that are.
    fn release(&mut self) -> usize {
        self.kept.drain(..).map(|(_, mapping)| mapping.bytes).sum()
    }
}

static RESERVE: Mutex<Option<Reserve>> = Mutex::new(None);

fn with_reserve<T>(f: impl FnOnce(&mut Reserve) -> T) -> T {
    f(RESERVE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Gives memory that is kept for the next large results of fused calls back to the system; how many bytes that are.
/// Tensors that are alive keep theirs.
pub fn release_memory() -> usize {
    with_reserve(Reserve::release)
}

/// Gives memory that nobody uses back to the system, that of the C library's allocator too.
pub(crate) fn trim_memory() {
    release_memory();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it touches only memory that is free.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// As long as one lives, memory is kept; what is kept then goes back with each.
#[derive(Debug)]
pub(crate) struct KeepsMemory(());

impl KeepsMemory {
    pub(crate) fn new() -> KeepsMemory {
        with_reserve(|reserve| reserve.plans += 1);
        KeepsMemory(())
    }
}

impl Drop for KeepsMemory {
    fn drop(&mut self) {
        with_reserve(|reserve| {
            reserve.plans -= 1;
            reserve.release();
        });
    }
}

pub(super) extern "C" fn take(bytes: usize) -> *mut c_void {
    with_reserve(|reserve| reserve.take(bytes))
        .map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

pub(super) extern "C" fn give(address: *mut c_void) {
    with_reserve(|reserve| reserve.give(address.expose_provenance()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 40 << 20;

    fn reserve() -> Reserve {
        Reserve { plans: 1, ..Reserve::default() }
    }

    #[test]
    fn memory_of_about_the_size_is_taken_again() {
        let mut reserve = reserve();
        let first = reserve.take(SIZE).unwrap();
        let second = reserve.take(SIZE).unwrap();
        assert_ne!(first, second);
        reserve.give(first);
        assert_eq!(reserve.take(SIZE - SIZE / 16), Some(first));
        reserve.give(second);
        reserve.give(first);
        // The smallest that fits.
        let mut larger = self::reserve();
        let (small, large) = (larger.take(SIZE).unwrap(), larger.take(SIZE + 2 * PAGE).unwrap());
        larger.give(large);
        larger.give(small);
        assert_eq!(larger.take(SIZE), Some(small));
        assert_eq!(reserve.release(), 2 * SIZE);
    }

    #[test]
    fn what_does_not_fit_goes_back_before_more_is_mapped() {
        let mut reserve = reserve();
        let first = reserve.take(SIZE).unwrap();
        reserve.give(first);
        assert_eq!(reserve.kept.len(), 1);
        let larger = reserve.take(2 * SIZE).unwrap();
        assert!(reserve.kept.is_empty());
        reserve.give(larger);
        // Too large for this.
        let small = reserve.take(SIZE).unwrap();
        assert!(reserve.kept.is_empty());
        reserve.give(small);
        assert_eq!(reserve.release(), SIZE);
    }

    #[test]
    fn results_of_several_sizes_take_turns() {
        let mut reserve = reserve();
        let sizes = [4 * PAGE, 8 * PAGE];
        let first = sizes.map(|size| {
            let address = reserve.take(size).unwrap();
            assert_eq!(address % PAGE, 0);
            reserve.give(address);
            address
        });
        for (size, address) in sizes.into_iter().zip(first) {
            assert_eq!(reserve.take(size), Some(address));
            reserve.give(address);
        }
        // What was kept longest goes first.
        let large = reserve.take(16 * PAGE).unwrap();
        reserve.give(large);
        let larger = reserve.take(32 * PAGE).unwrap();
        assert_eq!(reserve.kept.iter().map(|(_, m)| m.address).collect::<Vec<_>>(), [large]);
        reserve.give(larger);
        assert_eq!(reserve.release(), 48 * PAGE);
    }

    #[test]
    fn what_is_not_used_goes_back() {
        let mut reserve = reserve();
        let (odd, usual) = (reserve.take(2 * SIZE).unwrap(), reserve.take(SIZE).unwrap());
        reserve.give(odd);
        reserve.give(usual);
        for _ in 0..MAX_AGE {
            let again = reserve.take(SIZE).unwrap();
            assert_eq!(again, usual);
            reserve.give(again);
        }
        assert_eq!(reserve.kept.len(), 1);
        // What was never handed out is not taken.
        reserve.give(1);
        assert_eq!(reserve.release(), SIZE);
        assert_eq!(reserve.take(usize::MAX), None);
        reserve.plans = 0;
        let last = reserve.take(SIZE).unwrap();
        reserve.give(last);
        assert_eq!(reserve.release(), 0);
    }
}
