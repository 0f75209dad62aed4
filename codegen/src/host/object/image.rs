//! A relocatable object as it is once loaded: where its sections and symbols lie, and the bytes of that.

use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64, Rela64, SHF_ALLOC, SHT_NOBITS, SHT_SYMTAB};
use object::read::elf::{FileHeader, Rela, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, SectionIndex, SymbolIndex};

use super::machine::{Relocation, STUB};
use crate::host::family::Family;
use crate::{Error, Result};

type Elf = FileHeader64<LittleEndian>;

pub(super) fn bad(what: &str) -> Error {
    Error::Object(what.to_owned())
}

/// An error of the crate that reads objects as ours.
fn unreadable(error: object::read::Error) -> Error {
    Error::Object(error.to_string())
}

struct Symbol<'a> {
    name: &'a str,
    /// Offset in the memory of the loaded code, or nothing for an outer symbol.
    place: Option<usize>,
}

/// An object, and where its sections and symbols lie once loaded.
pub(in crate::host) struct Image<'a> {
    bytes: &'a [u8],
    family: Family,
    sections: SectionTable<'a, Elf>,
    /// By section: offset in the memory of the loaded code, if it is there.
    places: Vec<Option<usize>>,
    symbols: Vec<Symbol<'a>>,
    /// Where stubs begin, behind all sections.
    stubs: usize,
}

impl<'a> Image<'a> {
    /// Reads an object and lays it out.
    pub(in crate::host) fn read(bytes: &'a [u8]) -> Result<Image<'a>> {
        let header = Elf::parse(bytes).map_err(unreadable)?;
        let family = match header.e_machine(LittleEndian) {
            EM_X86_64 => Family::X86,
            EM_AARCH64 => Family::Aarch64,
            _ => return Err(bad("it is for processors of a family without a loader")),
        };
        let endian = header.endian().map_err(unreadable)?;
        let sections = header.sections(endian, bytes).map_err(unreadable)?;
        let (places, stubs) = lay_out(&sections)?;
        let symbols = read_symbols(bytes, &sections, &places)?;
        Ok(Image { bytes, family, sections, places, symbols, stubs })
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
        self.symbols.iter().filter_map(|s| s.place.map(|place| (s.name, place)))
    }

    /// Writes into zeroed memory what stands at `base` and behind once it is loaded there; `outer` knows the addresses of
    /// what it does not define itself.
    pub(in crate::host) fn write(
        &self,
        memory: &mut [u8],
        base: u64,
        outer: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<()> {
        for (section, place) in self.sections.iter().zip(&self.places) {
            if let Some(place) = *place
                && section.sh_type(LittleEndian) != SHT_NOBITS
            {
                let content = section.data(LittleEndian, self.bytes).map_err(unreadable)?;
                slice(memory, place, content.len())?.copy_from_slice(content);
            }
        }
        for (index, symbol) in self.symbols.iter().enumerate() {
            if symbol.place.is_none()
                && !symbol.name.is_empty()
                && let Some(address) = outer(symbol.name)
            {
                let stub = self.family.stub(address);
                slice(memory, self.stubs + index * STUB, STUB)?.copy_from_slice(&stub);
            }
        }
        for section in self.sections.iter() {
            let relocations = section.rela(LittleEndian, self.bytes).map_err(unreadable)?;
            let target = self.places.get(section.info_link(LittleEndian).0).copied().flatten();
            if let (Some((relocations, _)), Some(target)) = (relocations, target) {
                for relocation in relocations {
                    self.relocate(relocation, target, memory, base, outer)?;
                }
            }
        }
        Ok(())
    }

    fn relocate(
        &self,
        rela: &Rela64<LittleEndian>,
        target: usize,
        memory: &mut [u8],
        base: u64,
        outer: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<()> {
        let number = rela.r_sym(LittleEndian, false) as usize;
        let symbol = self.symbols.get(number).ok_or_else(|| bad("a relocation has no symbol"))?;
        if symbol.place.is_none() && outer(symbol.name).is_none() {
            return Err(bad(&format!("the symbol {} is unknown", symbol.name)));
        }
        let stub = self.stubs + number * STUB;
        let relocation = Relocation {
            kind: rela.r_type(LittleEndian, false),
            place: target.wrapping_add(rela.r_offset(LittleEndian) as usize),
            symbol: symbol.place.unwrap_or(stub + 8),
            entry: symbol.place.is_none().then_some(stub),
            addend: rela.r_addend(LittleEndian),
            base,
        };
        self.family.relocate(memory, &relocation)
    }
}

/// A range of the memory.
pub(super) fn slice(memory: &mut [u8], at: usize, len: usize) -> Result<&mut [u8]> {
    let range = at.checked_add(len).map(|end| at..end);
    range.and_then(|range| memory.get_mut(range)).ok_or_else(|| bad("it writes outside its memory"))
}

/// The place of every section that occupies memory, and the size of all.
fn lay_out(sections: &SectionTable<'_, Elf>) -> Result<(Vec<Option<usize>>, usize)> {
    let mut places = Vec::with_capacity(sections.len());
    let mut end = 0u64;
    for section in sections.iter() {
        let name = sections.section_name(LittleEndian, section).map_err(unreadable)?;
        if section.sh_flags(LittleEndian).0 & SHF_ALLOC.0 == 0 || name == b".eh_frame" {
            places.push(None);
            continue;
        }
        end = end.next_multiple_of(section.sh_addralign(LittleEndian).clamp(1, 4096));
        places.push(Some(end as usize));
        let size = section.sh_size(LittleEndian);
        end = end.checked_add(size).filter(|&e| e < 1 << 30).ok_or_else(|| bad("it is too large"))?;
    }
    Ok((places, (end as usize).next_multiple_of(STUB)))
}

fn read_symbols<'a>(
    bytes: &'a [u8],
    sections: &SectionTable<'a, Elf>,
    places: &[Option<usize>],
) -> Result<Vec<Symbol<'a>>> {
    let table = sections.symbols(LittleEndian, bytes, SHT_SYMTAB).map_err(unreadable)?;
    let place_of = |SectionIndex(index)| places.get(index).copied().flatten();
    let one = |(index, symbol): (usize, &'a object::elf::Sym64<LittleEndian>)| {
        let name = table.symbol_name(LittleEndian, symbol).map_err(unreadable)?;
        let name = std::str::from_utf8(name).map_err(|_| bad("a symbol's name is not UTF-8"))?;
        let section = table.symbol_section(LittleEndian, symbol, SymbolIndex(index)).map_err(unreadable)?;
        let value = symbol.st_value(LittleEndian) as usize;
        Ok(Symbol { name, place: section.and_then(place_of).map(|place| place.wrapping_add(value)) })
    };
    table.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel's object, for either family.
    fn object(target: &crate::host::target::Target) -> Vec<u8> {
        let text =
            "kernel @f(%p: ptr<f32>) { %i = range 0 8 %x = load %p, %i %y = map exp %x store %p, %i, %y }";
        let program = text.parse().unwrap();
        crate::host::generate(&program, target, inkwell::targets::FileType::Object).unwrap().0
    }

    #[test]
    fn objects_of_both_families_are_laid_out() {
        use crate::host::target::Target;
        for (target, family) in [(Target::wide(), Family::X86), (Target::neon(), Family::Aarch64)] {
            let bytes = object(&target);
            // An address that is not a multiple of a number's size.
            let moved: Vec<u8> = std::iter::once(0).chain(bytes).collect();
            let image = Image::read(&moved[1..]).unwrap();
            assert_eq!(image.family(), family);
            assert!(image.defined().any(|(name, _)| name == crate::host::emit::ENTRY));
            let mut memory = vec![0; image.size()];
            image.write(&mut memory, 0x7000_0000, &|_| None).unwrap();
        }
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let bytes = object(&crate::host::target::Target::neon());
        for len in (0..bytes.len()).step_by(7) {
            let Ok(image) = Image::read(&bytes[..len]) else { continue };
            let mut memory = vec![0; image.size()];
            assert!(image.write(&mut memory, 0, &|_| None).is_err(), "{len} of {} bytes", bytes.len());
        }
    }
}
