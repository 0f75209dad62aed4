//! Relocatable objects: which sections and symbols they have, where these lie once loaded, and the bytes of that.

use super::machine::{Relocation, STUB};
use crate::host::family::Family;
use crate::{Error, Result};

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: u64 = 2;

pub(super) fn bad(what: &str) -> Error {
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

/// An object, and where its sections and symbols lie once loaded.
pub(in crate::host) struct Object<'a> {
    bytes: Bytes<'a>,
    family: Family,
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
    /// Where stubs begin, behind all sections.
    stubs: usize,
}

impl<'a> Object<'a> {
    /// Reads an object.
    pub(in crate::host) fn read(object: &'a [u8]) -> Result<Object<'a>> {
        let bytes = Bytes(object);
        if bytes.range(0, 20)?.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err(bad("it is no 64-bit ELF object"));
        }
        let family = Family::of(bytes.number(18, 2)?)?;
        let mut sections = read_sections(bytes)?;
        let stubs = lay_out(&mut sections)?;
        let symbols = read_symbols(bytes, &sections)?;
        Ok(Object { bytes, family, sections, symbols, stubs })
    }

    /// The processors that it is for.
    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// Bytes that it takes once loaded.
    pub(in crate::host) fn size(&self) -> usize {
        self.stubs + self.symbols.len() * STUB
    }

    /// The names that it defines, and where they lie once loaded.
    pub(in crate::host) fn defined(&self) -> impl Iterator<Item = (&str, usize)> {
        self.symbols.iter().filter_map(|s| s.place.map(|place| (s.name.as_str(), place)))
    }

    /// Writes into zeroed memory what stands at `base` and behind once it is loaded there; `outer` knows the addresses of
    /// what it does not define itself.
    pub(in crate::host) fn write(
        &self,
        memory: &mut [u8],
        base: u64,
        outer: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<()> {
        for section in &self.sections {
            if let Some(place) = section.place.filter(|_| section.kind != SHT_NOBITS) {
                let content = self.bytes.range(section.offset, section.size)?;
                slice(memory, place, content.len())?.copy_from_slice(content);
            }
        }
        for (index, symbol) in self.symbols.iter().enumerate() {
            if symbol.place.is_none()
                && !symbol.name.is_empty()
                && let Some(address) = outer(&symbol.name)
            {
                let stub = self.family.stub(address);
                slice(memory, self.stubs + index * STUB, STUB)?.copy_from_slice(&stub);
            }
        }
        for section in self.sections.iter().filter(|s| s.kind == SHT_RELA) {
            let target = self.sections.get(section.info as usize).and_then(|s| s.place);
            if let Some(target) = target {
                self.relocate(section, target, memory, base, outer)?;
            }
        }
        Ok(())
    }

    fn relocate(
        &self,
        section: &Section,
        target: usize,
        memory: &mut [u8],
        base: u64,
        outer: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<()> {
        for index in 0..section.size / 24 {
            let at = section.offset + index * 24;
            let place = target.wrapping_add(self.bytes.u64(at)? as usize);
            let (kind, number) = (self.bytes.u32(at + 8)?, self.bytes.u32(at + 12)? as usize);
            let symbol = self.symbols.get(number).ok_or_else(|| bad("a relocation has no symbol"))?;
            if symbol.place.is_none() && outer(&symbol.name).is_none() {
                return Err(bad(&format!("the symbol {} is unknown", symbol.name)));
            }
            let stub = self.stubs + number * STUB;
            let relocation = Relocation {
                kind,
                place,
                symbol: symbol.place.unwrap_or(stub + 8),
                entry: symbol.place.is_none().then_some(stub),
                addend: self.bytes.u64(at + 16)? as i64,
                base,
            };
            self.family.relocate(memory, &relocation)?;
        }
        Ok(())
    }
}

/// A range of the memory.
pub(super) fn slice(memory: &mut [u8], at: usize, len: usize) -> Result<&mut [u8]> {
    let range = at.checked_add(len).map(|end| at..end);
    range.and_then(|range| memory.get_mut(range)).ok_or_else(|| bad("it writes outside its memory"))
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
