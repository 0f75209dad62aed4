//! The machine that schedules are made for: how many units it has, and what these multiply by.

use crate::machine::{Machine, Profile, Warpgroups};

/// What schedules need to know of a machine.
#[derive(Clone, Copy)]
pub(super) struct Target<'p> {
    /// How fast it is.
    pub(super) profile: &'p Profile,
    /// Threads of a processor, or multiprocessors of a GPU.
    pub(super) processors: u32,
    /// The vectors that weights may be prepacked for; `None` where they may not, as on a GPU.
    pub(super) prepacks: Option<Vectors>,
    /// Whether there are instructions for pairs of `bf16`.
    pub(super) vnni2: bool,
    /// Whether there are instructions for four 8-bit integers.
    pub(super) vnni4: bool,
    /// What warpgroups multiply, on a GPU that has them; `None` on others, for which no kernels of contractions are made, and on a host,
    /// where threads multiply by vectors.
    pub(super) warpgroups: Option<&'static Warpgroups>,
}

impl Target<'_> {
    /// The machine of a profile. Weights may be prepacked on a host where there may be more constants.
    pub(super) fn of(profile: &Profile, constants: Option<u32>) -> Target<'_> {
        let (processors, warpgroups) = match profile.machine {
            Machine::Host { threads } => (threads, None),
            Machine::Gpu { processors, .. } => (processors.max(1), profile.warpgroups()),
        };
        let prepacks = constants.filter(|_| !profile.machine.is_gpu()).map(|_| Vectors::of(profile));
        let (vnni2, vnni4) = (profile.products.vnni2 > 0.0, profile.products.vnni4 > 0.0);
        Target { profile, processors, prepacks, vnni2, vnni4, warpgroups }
    }

    /// Whether kernels of contractions are made for it.
    pub(super) fn has_kernels(&self) -> bool {
        self.warpgroups.is_some() || !self.profile.machine.is_gpu()
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
