//! Loading of relocatable objects that LLVM made.
//!
//! Sections that occupy memory are laid out one after the other in pages of our own, followed by a table of addresses
//! and jumps for symbols from outside; relocations are applied, and the pages become executable and unwritable. `image`
//! lays objects out, and `machine` knows what the families of processors have of their own.

mod image;
mod machine;

use rustc_hash::FxHashMap;

use super::family::Family;
use super::symbols;
use crate::Result;
use image::bad;

pub(super) use image::Image;

/// Code in executable memory.
pub(super) struct Code {
    memory: Memory,
    symbols: FxHashMap<String, usize>,
}

impl Code {
    /// Loads an object for this machine.
    pub(super) fn load(object: &[u8]) -> Result<Code> {
        let image = Image::read(object)?;
        if Family::NATIVE != Some(image.family()) {
            return Err(bad("it is for another family of processors"));
        }
        let mut memory = Memory::new(image.size())?;
        let base = memory.address() as u64;
        image.write(memory.bytes(), base, &|name| symbols::address(name).map(|address| address as u64))?;
        memory.seal()?;
        let symbols = image.defined().map(|(name, place)| (name.to_owned(), place)).collect();
        Ok(Code { memory, symbols })
    }

    /// Where it lies in memory.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        let start = self.memory.address() as usize;
        start..start + self.memory.size
    }

    /// The address of a symbol that the object defines.
    pub(super) fn symbol(&self, name: &str) -> Result<*const u8> {
        let place = self.symbols.get(name).ok_or_else(|| bad("its entry is missing"))?;
        Ok(self.memory.address().wrapping_add(*place))
    }
}

/// Pages of our own, writable until they are sealed and executable from then on.
struct Memory {
    address: *mut u8,
    size: usize,
}

// SAFETY: after `seal` nobody writes the pages, and they stay mapped until the value is dropped.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(size: usize) -> Result<Memory> {
        let size = size.max(1).next_multiple_of(4096);
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the system's choice touches nothing else.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(bad("there is no memory for it"));
        }
        Ok(Memory { address: address.cast(), size })
    }

    fn address(&self) -> *const u8 {
        self.address
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is our mapping, which is writable until `seal` takes it, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.size) }
    }

    fn seal(&self) -> Result<()> {
        fetch_anew(self.address, self.size);
        // SAFETY: the range is our mapping, and no slice of it is alive.
        let status =
            unsafe { libc::mprotect(self.address.cast(), self.size, libc::PROT_READ | libc::PROT_EXEC) };
        if status == 0 { Ok(()) } else { Err(bad("the system does not let memory become executable")) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe {
            libc::munmap(self.address.cast(), self.size);
        }
    }
}

/// Lets the processor fetch instructions from memory that has been written: those of AArch64 keep what they have fetched
/// and do not look at what is written meanwhile.
#[cfg(target_arch = "aarch64")]
fn fetch_anew(address: *const u8, size: usize) {
    use std::arch::asm;
    let types: usize;
    // SAFETY: the register says how long the lines of caches are; reading it changes nothing.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags)) };
    let lines = |log: usize| (0..size).step_by(4 << log).map(move |at| address.wrapping_add(at));
    for line in lines(types >> 16 & 15) {
        // SAFETY: the line is of our mapping; its content stays as it is.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in lines(types & 15) {
        // SAFETY: as above; instructions of it are fetched from memory again.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

#[cfg(not(target_arch = "aarch64"))]
fn fetch_anew(_: *const u8, _: usize) {}
