//! The processor that templates are made for.

use crate::machine::{Machine, Profile};

/// What templates need to know of a processor.
#[derive(Clone, Copy)]
pub(super) struct Host {
    pub(super) threads: u32,
    /// The vectors that weights may be packed for; `None` where they may not.
    pub(super) packs: Option<Vectors>,
    /// Whether there are instructions for pairs of `bf16`.
    pub(super) vnni2: bool,
    /// Whether there are instructions for four 8-bit integers.
    pub(super) vnni4: bool,
}

impl Host {
    /// The machine of a profile, where it is no GPU; weights may be packed where there may be more constants.
    pub(super) fn of(profile: &Profile, constants: Option<u32>) -> Option<Host> {
        let Machine::Host { threads } = profile.machine else { return None };
        let packs = constants.map(|_| Vectors::of(profile));
        let rates = profile.products;
        Some(Host { threads, packs, vnni2: rates.vnni2 > 0.0, vnni4: rates.vnni4 > 0.0 })
    }
}

/// The vectors that a processor computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vectors {
    /// Bits of one.
    pub(super) bits: u32,
    /// Registers: for sums, weights and a pixel.
    pub(super) registers: u32,
}

impl Vectors {
    /// Those of a machine.
    pub(super) fn of(profile: &Profile) -> Vectors {
        Vectors { bits: profile.vector_bits, registers: profile.vector_registers }
    }
}
