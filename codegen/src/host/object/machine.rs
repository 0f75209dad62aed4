//! What objects for one family of processors or another ask of a loader: jumps to outer symbols, and relocations.

use object::elf;
use object::elf::RelocationType;

use super::image::{bad, slice};
use crate::Result;
use crate::host::family::Family;

/// Bytes of the address of an outer symbol, and of a jump there.
pub(super) const STUB: usize = 16;

/// A place in the code that depends on where something lies. All places are offsets from `base`.
pub(super) struct Relocation {
    pub(super) kind: RelocationType,
    /// What is changed.
    pub(super) place: usize,
    /// The symbol, or the jump there for an outer one.
    pub(super) symbol: usize,
    /// The address of an outer symbol.
    pub(super) entry: Option<usize>,
    pub(super) addend: i64,
    /// The address of the code.
    pub(super) base: u64,
}

impl Relocation {
    /// From the place to the symbol.
    fn distance(&self) -> i64 {
        self.to(self.symbol)
    }

    fn to(&self, symbol: usize) -> i64 {
        (symbol as i64).wrapping_add(self.addend).wrapping_sub(self.place as i64)
    }

    /// The address of the symbol.
    fn address(&self) -> u64 {
        self.at(self.symbol)
    }

    fn at(&self, symbol: usize) -> u64 {
        self.base.wrapping_add(symbol as u64).wrapping_add_signed(self.addend)
    }

    /// Pages of 4 KiB from that of the place to that of an address.
    fn pages(&self, address: u64) -> i64 {
        let page = |address: u64| (address >> 12) as i64;
        page(address) - page(self.base.wrapping_add(self.place as u64))
    }

    fn unknown(&self) -> crate::Error {
        bad(&format!("relocation {} is unknown", self.kind))
    }
}

impl Family {
    /// An address, and a jump there at the eighth byte.
    pub(super) fn stub(self, address: u64) -> [u8; STUB] {
        let jump: [u8; 8] = match self {
            // jmp *[rip - 14]: the address just before.
            Family::X86 => [0xff, 0x25, 0xf2, 0xff, 0xff, 0xff, 0, 0],
            // ldr x16, [pc - 8]; br x16.
            Family::Aarch64 => [0xd0, 0xff, 0xff, 0x58, 0x00, 0x02, 0x1f, 0xd6],
        };
        let mut stub = [0; STUB];
        stub[..8].copy_from_slice(&address.to_le_bytes());
        stub[8..].copy_from_slice(&jump);
        stub
    }

    /// Applies a relocation.
    pub(super) fn relocate(self, memory: &mut [u8], relocation: &Relocation) -> Result<()> {
        match self {
            Family::X86 => relocate_x86(memory, relocation),
            Family::Aarch64 => relocate_aarch64(memory, relocation),
        }
    }
}

fn relocate_x86(memory: &mut [u8], r: &Relocation) -> Result<()> {
    use elf::*;
    match (r.kind, r.entry) {
        (R_X86_64_64, _) => write(memory, r.place, r.address().to_le_bytes()),
        (R_X86_64_PC32 | R_X86_64_PLT32, _) => write_i32(memory, r.place, r.distance()),
        (R_X86_64_GOTPCREL | R_X86_64_GOTPCRELX | R_X86_64_REX_GOTPCRELX, Some(entry)) => {
            write_i32(memory, r.place, r.to(entry))
        }
        (R_X86_64_PC64, _) => write(memory, r.place, r.distance().to_le_bytes()),
        _ => Err(r.unknown()),
    }
}

fn relocate_aarch64(memory: &mut [u8], r: &Relocation) -> Result<()> {
    use elf::*;
    match (r.kind, r.entry) {
        (R_AARCH64_ABS64, _) => write(memory, r.place, r.address().to_le_bytes()),
        (R_AARCH64_PREL64, _) => write(memory, r.place, r.distance().to_le_bytes()),
        (R_AARCH64_PREL32, _) => write_i32(memory, r.place, r.distance()),
        (R_AARCH64_ADR_PREL_PG_HI21, _) => adrp(memory, r.place, r.pages(r.address())),
        (R_AARCH64_ADR_GOT_PAGE, Some(entry)) => adrp(memory, r.place, r.pages(r.at(entry))),
        (R_AARCH64_ADD_ABS_LO12_NC | R_AARCH64_LDST8_ABS_LO12_NC, _) => {
            offset(memory, r.place, r.address(), 0)
        }
        (R_AARCH64_LDST16_ABS_LO12_NC, _) => offset(memory, r.place, r.address(), 1),
        (R_AARCH64_LDST32_ABS_LO12_NC, _) => offset(memory, r.place, r.address(), 2),
        (R_AARCH64_LDST64_ABS_LO12_NC, _) => offset(memory, r.place, r.address(), 3),
        (R_AARCH64_LDST128_ABS_LO12_NC, _) => offset(memory, r.place, r.address(), 4),
        (R_AARCH64_LD64_GOT_LO12_NC, Some(entry)) => offset(memory, r.place, r.at(entry), 3),
        (R_AARCH64_JUMP26 | R_AARCH64_CALL26, _) => {
            let distance = r.distance();
            in_range(distance % 4 == 0 && (-1 << 27..1 << 27).contains(&distance))?;
            change(memory, r.place, 0x03ff_ffff, (distance >> 2) as u32)
        }
        _ => Err(r.unknown()),
    }
}

/// `adrp`: the two lowest bits of a number of pages lie above the others.
fn adrp(memory: &mut [u8], place: usize, pages: i64) -> Result<()> {
    in_range((-1 << 20..1 << 20).contains(&pages))?;
    let pages = pages as u32;
    change(memory, place, 0x60ff_ffe0, (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5)
}

/// The offset within a page of `add`, or of an access to `1 << scale` bytes.
fn offset(memory: &mut [u8], place: usize, address: u64, scale: u32) -> Result<()> {
    let within = (address & 0xfff) as u32;
    in_range(within.is_multiple_of(1 << scale))?;
    change(memory, place, 0x003f_fc00, within >> scale << 10)
}

/// Puts the bits of a field into an instruction.
fn change(memory: &mut [u8], place: usize, field: u32, bits: u32) -> Result<()> {
    let word = slice(memory, place, 4)?;
    let old = word.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
    word.copy_from_slice(&((old & !field) | (bits & field)).to_le_bytes());
    Ok(())
}

fn in_range(holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(bad("a relocation is out of range")) }
}

fn write_i32(memory: &mut [u8], place: usize, value: i64) -> Result<()> {
    let value = i32::try_from(value).map_err(|_| bad("a relocation is out of range"))?;
    write(memory, place, value.to_le_bytes())
}

fn write<const N: usize>(memory: &mut [u8], place: usize, bytes: [u8; N]) -> Result<()> {
    slice(memory, place, N)?.copy_from_slice(&bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instruction after a relocation.
    fn relocated(instruction: u32, kind: RelocationType, place: usize, symbol: usize) -> Result<u32> {
        let mut memory = vec![0; 0x3000];
        memory[place..place + 4].copy_from_slice(&instruction.to_le_bytes());
        let r = Relocation { kind, place, symbol, entry: None, addend: 0, base: 0x7000_1000 };
        Family::Aarch64.relocate(&mut memory, &r)?;
        Ok(u32::from_le_bytes(memory[place..place + 4].try_into().unwrap()))
    }

    /// The words are those of an assembler.
    #[test]
    fn fields_of_instructions_are_filled_in() {
        // adrp x0, two pages on, and one back; add x0, x0, #0x128; ldr q1, [x0, #0x120]; bl .+0x100; b .-8.
        assert_eq!(
            relocated(0x9000_0000, elf::R_AARCH64_ADR_PREL_PG_HI21, 0x40, 0x2128).unwrap(),
            0xd000_0000
        );
        assert_eq!(
            relocated(0x9000_0000, elf::R_AARCH64_ADR_PREL_PG_HI21, 0x1040, 0x128).unwrap(),
            0xf0ff_ffe0
        );
        assert_eq!(
            relocated(0x9100_0000, elf::R_AARCH64_ADD_ABS_LO12_NC, 0x44, 0x2128).unwrap(),
            0x9104_a000
        );
        assert_eq!(
            relocated(0x3dc0_0001, elf::R_AARCH64_LDST128_ABS_LO12_NC, 0x44, 0x2120).unwrap(),
            0x3dc0_4801
        );
        assert_eq!(relocated(0x9400_0000, elf::R_AARCH64_CALL26, 0x100, 0x200).unwrap(), 0x9400_0040);
        assert_eq!(relocated(0x1400_0000, elf::R_AARCH64_JUMP26, 0x100, 0xf8).unwrap(), 0x17ff_fffe);
    }

    #[test]
    fn what_no_field_holds_is_an_error() {
        assert!(
            relocated(0x3dc0_0001, elf::R_AARCH64_LDST128_ABS_LO12_NC, 0x44, 0x2128).is_err(),
            "an address of 16 bytes that is none"
        );
        assert!(relocated(0x9400_0000, elf::R_AARCH64_CALL26, 0x100, 1 << 28).is_err(), "too far");
        assert!(relocated(0x9400_0000, elf::R_X86_64_64, 0x100, 0).is_err(), "a number of other processors");
    }

    #[test]
    fn stubs_hold_the_address_and_a_jump() {
        for (machine, jump) in [(Family::X86, 0xffff_fff2_25ff_u64), (Family::Aarch64, 0xd61f_0200_58ff_ffd0)]
        {
            let stub = machine.stub(0x1234_5678_9abc_def0);
            assert_eq!(u64::from_le_bytes(stub[..8].try_into().unwrap()), 0x1234_5678_9abc_def0);
            assert_eq!(u64::from_le_bytes(stub[8..].try_into().unwrap()), jump);
        }
    }
}
