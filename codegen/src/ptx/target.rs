//! GPU generations that code is made for.

use std::fmt;

use crate::error::{Error, Result};

/// A version of the PTX language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PtxVersion {
    /// The number before the point.
    pub major: u32,
    /// The number after the point.
    pub minor: u32,
}

impl PtxVersion {
    /// Version `major.minor`.
    pub const fn new(major: u32, minor: u32) -> PtxVersion {
        PtxVersion { major, minor }
    }

    /// The newest version that a driver takes, from the number that `cuDriverGetVersion` gives (13000 for 13.0).
    pub fn of_driver(version: u32) -> PtxVersion {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        match (major, minor) {
            (0..=10, _) => PtxVersion::new(6, 3),
            (11, m) => PtxVersion::new(7, m.min(8)),
            // 12.6 came without a new version.
            (12, m) => PtxVersion::new(8, if m >= 6 { (m - 1).min(8) } else { m }),
            _ => PtxVersion::new(9, minor),
        }
    }
}

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A GPU generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Ampere and everything later.
    Sm80,
    /// Hopper.
    Sm90a,
    /// Blackwell for data centres.
    Sm100a,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 3] = [Target::Sm80, Target::Sm90a, Target::Sm100a];

    /// The spelling, `sm_90a` for Hopper.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
        }
    }

    /// The target that is spelled `name`.
    pub fn from_name(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The best target for a device of this compute capability; `None` if there is none.
    pub fn of_capability(major: u32, minor: u32) -> Option<Target> {
        match (major, minor) {
            (9, 0) => Some(Target::Sm90a),
            (10, 0) => Some(Target::Sm100a),
            (8.., _) => Some(Target::Sm80),
            _ => None,
        }
    }

    /// The PTX version to write for a driver that takes versions up to `driver`.
    pub fn ptx_version(self, driver: Option<PtxVersion>) -> Result<PtxVersion> {
        let needed = match self {
            Target::Sm80 => PtxVersion::new(7, 8),
            Target::Sm90a => PtxVersion::new(8, 3),
            Target::Sm100a => PtxVersion::new(8, 6),
        };
        match driver {
            Some(found) if found < needed => Err(Error::Unsupported {
                target: self.name().to_owned(),
                message: format!("the CUDA driver takes PTX up to {found}, {needed} is needed"),
            }),
            _ => Ok(needed),
        }
    }

    /// Whether a kernel can be started before its predecessor has ended, and wait for it itself.
    pub const fn has_programmatic_launch(self) -> bool {
        matches!(self, Target::Sm90a | Target::Sm100a)
    }

    /// Whether blocks can form clusters.
    pub const fn has_clusters(self) -> bool {
        matches!(self, Target::Sm90a | Target::Sm100a)
    }

    /// Whether operands of products of warpgroups are copied by the tensor memory accelerator (TMA).
    pub const fn has_tensor_maps(self) -> bool {
        matches!(self, Target::Sm90a)
    }

    /// Whether four warps can multiply together (`wgmma`).
    pub const fn has_warpgroups(self) -> bool {
        matches!(self, Target::Sm90a)
    }

    /// The shared memory that a block may have, in bytes.
    pub const fn max_shared(self) -> u64 {
        match self {
            // The least of the devices of compute capability 8 and 12.
            Target::Sm80 => 99 * 1024,
            Target::Sm90a | Target::Sm100a => 227 * 1024,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
