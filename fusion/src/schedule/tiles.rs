//! The tiles of a kernel: which variables they span, how far, and how they cover what is reduced.

use smallvec::SmallVec;

use crate::index::{Expr, Var};
use crate::kernel::Kernel;

/// One axis of the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// The variable it runs along.
    pub var: Var,
    /// Extent of the tile, a power of two.
    pub extent: u32,
}

/// The tiles of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Axes, outermost first; at most two. The last is the one along which most accesses are contiguous.
    pub axes: SmallVec<[Axis; 2]>,
    /// How the tile covers the reduced variables.
    pub walk: Walk,
    /// Warps of an instance on a GPU.
    pub warps: u32,
    /// Where rows begin at addresses that are not aligned: see [`Peel`].
    pub peel: Option<Peel>,
}

/// How a tile covers the reduced variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walk {
    /// It spans them all.
    Spanned,
    /// They are walked in loops; each level of reductions reads what it needs again.
    Loops,
    /// One of them is walked in a few steps, which are written one after another; what they read stays in registers for
    /// the levels that follow.
    Persistent,
    /// It spans them all, and some of the rows of an instance, which are walked in a loop: see [`Kernel::mix_order`].
    Rows,
}

impl std::fmt::Display for Tiling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let extents: Vec<String> = self.axes.iter().map(|axis| axis.extent.to_string()).collect();
        let tile = if extents.is_empty() { String::from("single elements") } else { extents.join(" x ") };
        let walk = match self.walk {
            Walk::Spanned => "",
            Walk::Loops => " in loops",
            Walk::Persistent => " in persistent steps",
            Walk::Rows => " in loops over rows",
        };
        write!(f, "{tile}{walk}, warps {}", self.warps)
    }
}

/// A reduced variable is walked from up to `group - 1` elements before its first, so that an access whose rows
/// begin anywhere moves aligned groups of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peel {
    /// The variable.
    pub var: Var,
    /// The address that becomes aligned where the tile begins.
    pub addr: Expr,
    /// Elements of a group, a power of two.
    pub group: u32,
}

impl Tiling {
    /// Whether the reduced variables are walked, in loops or in steps.
    pub fn is_walked(&self) -> bool {
        matches!(self.walk, Walk::Loops | Walk::Persistent)
    }

    /// The axis of a variable.
    pub fn axis_of(&self, var: Var) -> Option<usize> {
        self.axes.iter().position(|a| a.var == var)
    }

    /// Number of program instances.
    pub fn grid(&self, kernel: &Kernel) -> u64 {
        self.grid_extents(kernel).iter().map(|&(_, n)| n as u64).product()
    }

    /// Parallel variables with the number of instances along each, outermost first.
    pub fn grid_extents(&self, kernel: &Kernel) -> Vec<(Var, i64)> {
        let extents = kernel.indices.extents();
        (0..kernel.reduced.len())
            .filter(|&v| !kernel.reduced[v] && kernel.mix_order != Some(Var(v as u32)))
            .map(|v| {
                let var = Var(v as u32);
                let step = self.axis_of(var).map_or(1, |a| i64::from(self.axes[a].extent));
                (var, (extents[v] + step - 1) / step)
            })
            .collect()
    }
}

/// Columns that one block of a GPU can hold in registers.
pub(super) const WIDEST_BLOCK: i64 = 16384;

/// The extent of a variable.
pub(super) fn extent(kernel: &Kernel, var: Var) -> i64 {
    kernel.indices.extents()[var.0 as usize]
}

/// The least power of two that is not below `n`, at most `limit`.
pub(super) fn power_up_to(n: i64, limit: u32) -> u32 {
    (n.max(1) as u64).next_power_of_two().min(u64::from(limit)) as u32
}

/// How a tile covers reduced variables that it does not keep.
pub(super) fn walk(looped: bool) -> Walk {
    if looped { Walk::Loops } else { Walk::Spanned }
}

/// Whether rows along a variable are walked once for their reductions, which a kernel's other stages do not need again.
pub(super) fn reads_once(kernel: &Kernel, cols: Var) -> bool {
    let bit = 1u64 << cols.0.min(63);
    kernel.stores.iter().all(|s| (kernel.info(s.value).vars | kernel.indices.vars(s.addr)) & bit == 0)
}
