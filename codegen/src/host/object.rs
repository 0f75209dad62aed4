//! Loading of relocatable objects that LLVM made.
//!
//! Sections that occupy memory are laid out one after the other in pages of our own, followed by a table of addresses
//! and jumps for symbols from outside; relocations are applied, and the pages become executable and unwritable.

use rustc_hash::FxHashMap;

use super::symbols;
use crate::{Error, Result};

/// Code in executable memory.
pub(super) struct Code {
    memory: Memory,
    symbols: FxHashMap<String, usize>,
}

/// Bytes of a jump to an outer symbol, and of the address that it reads.
const STUB: usize = 16;

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: u64 = 2;

fn bad(what: &str) -> Error {
    Error::Object(what.to_owned())
}

/// Little-endian numbers at offsets, checked.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn range(self, at: u64, len: u64) -> Result<&'a [u8]> {
        let end = at.checked_add(len).ok_or_else(|| bad("an offset overflows"))?;
        let range = usize::try_from(at).ok().zip(usize::try_from(end).ok()).map(|(a, b)| a..b);
        range.and_then(|r| self.0.get(r)).ok_or_else(|| bad("it is truncated"))
    }

    fn number(self, at: u64, len: u64) -> Result<u64> {
        Ok(self.range(at, len)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    fn u32(self, at: u64) -> Result<u32> {
        Ok(self.number(at, 4)? as u32)
    }

    fn u64(self, at: u64) -> Result<u64> {
        self.number(at, 8)
    }

    fn name(self, table: u64, at: u64) -> Result<String> {
        let start = table.checked_add(at).ok_or_else(|| bad("an offset overflows"))?;
        let rest = usize::try_from(start)
            .ok()
            .and_then(|s| self.0.get(s..))
            .ok_or_else(|| bad("it is truncated"))?;
        let text = rest.split(|&b| b == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

struct Section {
    name: String,
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    /// Offset in the memory of the loaded code, if it is there.
    place: Option<usize>,
}

struct Symbol {
    name: String,
    /// Offset in the memory of the loaded code, or nothing for an outer symbol.
    place: Option<usize>,
}

impl Code {
    /// Loads an object.
    pub(super) fn load(object: &[u8]) -> Result<Code> {
        let bytes = Bytes(object);
        if bytes.range(0, 20)?.get(..6) != Some(b"\x7fELF\x02\x01") || bytes.number(18, 2)? != 62 {
            return Err(bad("it is no 64-bit x86 ELF object"));
        }
        let mut sections = read_sections(bytes)?;
        let code_size = lay_out(&mut sections)?;
        let symbols = read_symbols(bytes, &sections)?;
        let size = code_size + symbols.len() * STUB;
        let mut memory = Memory::new(size)?;
        for section in &sections {
            if let Some(place) = section.place.filter(|_| section.kind != SHT_NOBITS) {
                let content = bytes.range(section.offset, section.size)?;
                memory.bytes(place, content.len())?.copy_from_slice(content);
            }
        }
        write_stubs(&mut memory, &symbols, code_size)?;
        for section in sections.iter().filter(|s| s.kind == SHT_RELA) {
            let target = sections.get(section.info as usize).and_then(|s| s.place);
            if let Some(target) = target {
                relocate(bytes, section, target, &symbols, &mut memory, code_size)?;
            }
        }
        memory.seal()?;
        let places = symbols.into_iter().filter_map(|s| s.place.map(|p| (s.name, p))).collect();
        Ok(Code { memory, symbols: places })
    }

    /// The address of a symbol that the object defines.
    pub(super) fn symbol(&self, name: &str) -> Result<*const u8> {
        let place = self.symbols.get(name).ok_or_else(|| bad("its entry is missing"))?;
        Ok(self.memory.address().wrapping_add(*place))
    }
}

fn read_sections(bytes: Bytes<'_>) -> Result<Vec<Section>> {
    let (table, entry) = (bytes.u64(40)?, bytes.number(58, 2)?);
    let (count, names) = (bytes.number(60, 2)?, bytes.number(62, 2)?);
    let names_at = bytes.u64(table.saturating_add(names * entry).saturating_add(24))?;
    (0..count)
        .map(|index| {
            let at = table.saturating_add(index * entry);
            Ok(Section {
                name: bytes.name(names_at, u64::from(bytes.u32(at)?))?,
                kind: bytes.u32(at + 4)?,
                flags: bytes.u64(at + 8)?,
                offset: bytes.u64(at + 24)?,
                size: bytes.u64(at + 32)?,
                link: bytes.u32(at + 40)?,
                info: bytes.u32(at + 44)?,
                align: bytes.u64(at + 48)?.clamp(1, 4096),
                place: None,
            })
        })
        .collect()
}

/// Gives every section that occupies memory its place; returns the size of all.
fn lay_out(sections: &mut [Section]) -> Result<usize> {
    let mut end = 0u64;
    for section in sections.iter_mut().filter(|s| s.flags & SHF_ALLOC != 0 && s.name != ".eh_frame") {
        end = end.next_multiple_of(section.align);
        section.place = Some(end as usize);
        end = end.checked_add(section.size).filter(|&e| e < 1 << 30).ok_or_else(|| bad("it is too large"))?;
    }
    Ok((end as usize).next_multiple_of(STUB))
}

fn read_symbols(bytes: Bytes<'_>, sections: &[Section]) -> Result<Vec<Symbol>> {
    let table = sections.iter().find(|s| s.kind == SHT_SYMTAB).ok_or_else(|| bad("it has no symbols"))?;
    let names = sections.get(table.link as usize).ok_or_else(|| bad("its symbols have no names"))?.offset;
    (0..table.size / 24)
        .map(|index| {
            let at = table.offset + index * 24;
            let section = sections.get(bytes.number(at + 6, 2)? as usize);
            let value = bytes.u64(at + 8)? as usize;
            let place = section.and_then(|s| s.place).map(|p| p.wrapping_add(value));
            Ok(Symbol { name: bytes.name(names, u64::from(bytes.u32(at)?))?, place })
        })
        .collect()
}

/// One stub for each symbol from outside: its address, and a jump there.
fn write_stubs(memory: &mut Memory, symbols: &[Symbol], first: usize) -> Result<()> {
    for (index, symbol) in symbols.iter().enumerate() {
        if symbol.place.is_some() || symbol.name.is_empty() {
            continue;
        }
        let Some(address) = symbols::address(&symbol.name) else { continue };
        let stub = memory.bytes(first + index * STUB, STUB)?;
        stub[..8].copy_from_slice(&(address as u64).to_le_bytes());
        // jmp *[rip - 14]: the address just before.
        stub[8..14].copy_from_slice(&[0xff, 0x25, 0xf2, 0xff, 0xff, 0xff]);
    }
    Ok(())
}

fn relocate(
    bytes: Bytes<'_>,
    section: &Section,
    target: usize,
    symbols: &[Symbol],
    memory: &mut Memory,
    stubs: usize,
) -> Result<()> {
    let base = memory.address() as i64;
    for index in 0..section.size / 24 {
        let at = section.offset + index * 24;
        let place = target.wrapping_add(bytes.u64(at)? as usize);
        let (kind, number) = (bytes.u32(at + 8)?, bytes.u32(at + 12)? as usize);
        let addend = bytes.u64(at + 16)? as i64;
        let symbol = symbols.get(number).ok_or_else(|| bad("a relocation has no symbol"))?;
        if symbol.place.is_none() && symbols::address(&symbol.name).is_none() {
            return Err(bad(&format!("the symbol {} is unknown", symbol.name)));
        }
        let stub = stubs + number * STUB;
        // Offsets from the start of the memory.
        let (direct, by_table) = (symbol.place.unwrap_or(stub + 8) as i64, stub as i64);
        let relative = |to: i64| to.wrapping_add(addend).wrapping_sub(place as i64);
        match kind {
            // R_X86_64_64
            1 => memory.bytes(place, 8)?.copy_from_slice(&(base + direct + addend).to_le_bytes()),
            // R_X86_64_PC32, R_X86_64_PLT32
            2 | 4 => write_i32(memory, place, relative(direct))?,
            // R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX
            9 | 41 | 42 if symbol.place.is_none() => write_i32(memory, place, relative(by_table))?,
            // R_X86_64_PC64
            24 => memory.bytes(place, 8)?.copy_from_slice(&relative(direct).to_le_bytes()),
            other => return Err(bad(&format!("relocation {other} is unknown"))),
        }
    }
    Ok(())
}

fn write_i32(memory: &mut Memory, place: usize, value: i64) -> Result<()> {
    let value = i32::try_from(value).map_err(|_| bad("a relocation is out of range"))?;
    memory.bytes(place, 4)?.copy_from_slice(&value.to_le_bytes());
    Ok(())
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

    fn bytes(&mut self, at: usize, len: usize) -> Result<&mut [u8]> {
        if at.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(bad("it writes outside its memory"));
        }
        // SAFETY: the range lies in our mapping, which is writable until `seal` takes it, and `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.add(at), len) })
    }

    fn seal(&self) -> Result<()> {
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
