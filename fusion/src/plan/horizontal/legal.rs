//! When kernels may be parts of one launch. Each rule is a function; what it refuses is a value of [`HorizontalRefusal`].
//!
//! Kernels that are joined need each other neither directly nor through others: they are of one level, see
//! [`super::depends`].

use rustc_hash::FxHashSet;
use tilefuse_block::{OpKind, Program};

use super::super::{KernelStep, Plan};
use crate::graph::ValueRef;
use crate::machine::Machine;
use crate::types::Device;

/// Most pointers of a launch. CUDA takes 4096 bytes of parameters, twice as many.
pub(super) const MAX_POINTERS: usize = 256;

/// Most operations of a joined program: compiling one takes about as long as compiling its parts.
pub(super) const MAX_OPERATIONS: usize = 1 << 12;

/// Most elements of a tile of which one block surely holds several, so that no cluster is needed.
const MAX_BLOCK_TILE: u64 = 8192;

/// How many times the warps of one part another may have: a part gets the most that any has.
const MAX_WARP_RATIO: u32 = 4;

/// Why a kernel has a launch of its own, or why two do not share one.
#[derive(Clone, Debug, PartialEq)]
pub enum HorizontalRefusal {
    /// It is a block kernel, whose block sizes and warps suit it alone.
    OwnBlocks,
    /// Its grid has several axes, or it asks for the grid's size.
    Grid,
    /// It checks indices: where one is out of range, its launch fails as a whole.
    Checks,
    /// On a GPU its tile may need a cluster of blocks, which all parts would then get.
    Cluster {
        /// Elements of the tile.
        elements: u64,
    },
    /// A launch is a small part of its time.
    Large {
        /// Predicted time without the launch, in microseconds.
        us: f64,
        /// Most that is worth joining.
        most_us: f64,
    },
    /// On the host it runs on the thread that calls, which costs next to nothing.
    Inline {
        /// Predicted time of one thread, in microseconds.
        us: f64,
    },
    /// No other small kernel can run at the same place of the plan.
    Only,
    /// The kernels run on different devices.
    Devices,
    /// One takes many more warps than another.
    Warps {
        /// The least of one.
        least: u32,
        /// The most of another.
        most: u32,
    },
    /// Loops are pipelined in different numbers of stages.
    Stages,
    /// The launch would have too many pointers.
    Pointers {
        /// The limit.
        limit: usize,
    },
    /// The program would have too many operations.
    Operations {
        /// The limit.
        limit: usize,
    },
    /// The launch would have more instances than a grid can have.
    Instances,
    /// The kernels are too far from each other in the plan: values between them would need more memory.
    Far {
        /// Steps between them.
        steps: usize,
    },
    /// With its neighbours in one launch, a call would hold more memory.
    Memory {
        /// Bytes in one launch.
        bytes: u64,
        /// Bytes in separate launches.
        most: u64,
    },
    /// Together they are predicted to be slower.
    Slower {
        /// HorizontalRefusal, in microseconds.
        separate_us: f64,
        /// In one launch.
        fused_us: f64,
    },
    /// As many rewrites were made as may be.
    Limit,
}

impl std::fmt::Display for HorizontalRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HorizontalRefusal::Limit => f.write_str("the number of rewrites is limited"),
            HorizontalRefusal::OwnBlocks => f.write_str("its program has block sizes of its own"),
            HorizontalRefusal::Grid => {
                f.write_str("its grid has several axes, or it asks for the grid's size")
            }
            HorizontalRefusal::Checks => f.write_str("it checks indices"),
            HorizontalRefusal::Cluster { elements } => {
                write!(f, "its tile of {elements} elements may need a cluster of blocks")
            }
            HorizontalRefusal::Large { us, most_us } => {
                write!(f, "it takes {us:.1} us without the launch, more than {most_us:.1} us")
            }
            HorizontalRefusal::Inline { us } => write!(f, "its {us:.1} us run on the thread that calls"),
            HorizontalRefusal::Only => f.write_str("no other small kernel can run at the same place"),
            HorizontalRefusal::Devices => f.write_str("the other runs on another device"),
            HorizontalRefusal::Warps { least, most } => write!(f, "one takes {least} warps, another {most}"),
            HorizontalRefusal::Stages => {
                f.write_str("their loops are pipelined in different numbers of stages")
            }
            HorizontalRefusal::Pointers { limit } => {
                write!(f, "the launch would have more than {limit} pointers")
            }
            HorizontalRefusal::Operations { limit } => {
                write!(f, "the program would have more than {limit} operations")
            }
            HorizontalRefusal::Instances => f.write_str("the grid would have too many instances"),
            HorizontalRefusal::Far { steps } => {
                write!(f, "{steps} steps lie between them, and memory is short")
            }
            HorizontalRefusal::Memory { bytes, most } => {
                write!(f, "with others in one launch a call would hold {bytes} bytes, more than {most}")
            }
            HorizontalRefusal::Slower { separate_us, fused_us } => {
                write!(f, "predicted {fused_us:.1} us in one launch, {separate_us:.1} us in two")
            }
        }
    }
}

/// The kernel is one of the planner's own.
pub(super) fn generated(kernel: &KernelStep) -> Result<(), HorizontalRefusal> {
    if kernel.kind.has_own_blocks() { Err(HorizontalRefusal::OwnBlocks) } else { Ok(()) }
}

/// Instances are told apart by their number along axis 0 alone, and do not ask how many there are.
pub(super) fn one_axis(kernel: &KernelStep, program: &Program) -> Result<(), HorizontalRefusal> {
    let mut asks = kernel.grid[1] != 1 || kernel.grid[2] != 1;
    program.walk(&mut |op| asks |= matches!(op.kind, OpKind::NumPrograms(_) | OpKind::ProgramId(1..)));
    if asks { Err(HorizontalRefusal::Grid) } else { Ok(()) }
}

/// There is no status word to share.
pub(super) fn unchecked(kernel: &KernelStep) -> Result<(), HorizontalRefusal> {
    if kernel.checks { Err(HorizontalRefusal::Checks) } else { Ok(()) }
}

/// One block holds an instance's tiles.
pub(super) fn one_block(kernel: &KernelStep, machine: Machine) -> Result<(), HorizontalRefusal> {
    let axes = kernel.tiling.iter().flat_map(|t| &t.axes);
    let elements = axes.map(|axis| u64::from(axis.extent)).product();
    let clusters = matches!(machine, Machine::Gpu { clusters: true, .. });
    if clusters && elements > MAX_BLOCK_TILE { Err(HorizontalRefusal::Cluster { elements }) } else { Ok(()) }
}

/// All parts run on one device.
pub(super) fn one_device(a: Device, b: Device) -> Result<(), HorizontalRefusal> {
    if a == b { Ok(()) } else { Err(HorizontalRefusal::Devices) }
}

/// Parts can have the most warps that any of them has.
pub(super) fn alike_warps(least: u32, most: u32) -> Result<(), HorizontalRefusal> {
    if most <= least.saturating_mul(MAX_WARP_RATIO) {
        Ok(())
    } else {
        Err(HorizontalRefusal::Warps { least, most })
    }
}

/// Loops of all parts load ahead alike.
pub(super) fn same_stages(a: Option<u32>, b: Option<u32>) -> Result<(), HorizontalRefusal> {
    if a == b { Ok(()) } else { Err(HorizontalRefusal::Stages) }
}

/// The parameters fit.
pub(super) fn few_pointers(pointers: usize) -> Result<(), HorizontalRefusal> {
    if pointers <= MAX_POINTERS { Ok(()) } else { Err(HorizontalRefusal::Pointers { limit: MAX_POINTERS }) }
}

/// The program is not too large.
pub(super) fn few_operations(operations: usize) -> Result<(), HorizontalRefusal> {
    if operations <= MAX_OPERATIONS {
        Ok(())
    } else {
        Err(HorizontalRefusal::Operations { limit: MAX_OPERATIONS })
    }
}

/// The grid is one.
pub(super) fn one_grid(instances: u64) -> Result<(), HorizontalRefusal> {
    if instances <= i32::MAX as u64 { Ok(()) } else { Err(HorizontalRefusal::Instances) }
}

/// Parts are at most so many steps from each other.
pub(super) fn near(steps: usize, reach: usize) -> Result<(), HorizontalRefusal> {
    if steps <= reach { Ok(()) } else { Err(HorizontalRefusal::Far { steps }) }
}

/// The parts of a launch are independent of each other, which [`verify`](super::super::verify()) checks of plans: each
/// buffer is one part's where it is written, or is read by all that have it; what is written in place of it is written by
/// the one part that reads it; the parts share out the grid.
pub(in super::super) fn parts_are_independent(plan: &Plan, kernel: &KernelStep) -> Result<(), String> {
    let mut instances = 0;
    let mut owners = vec![0usize; kernel.buffers.len()];
    for part in &kernel.parts {
        if part.first != instances || part.instances == 0 {
            return Err(format!("has a part that begins at instance {}", part.first));
        }
        instances += part.instances;
        for &at in &part.buffers {
            *owners.get_mut(at).ok_or("has a part with a buffer that is not there")? += 1;
        }
    }
    if kernel.grid != [instances, 1, 1] || kernel.checks {
        return Err(String::from("has parts that do not share out its grid"));
    }
    let name = |value: ValueRef| format!("%{}.{}", value.node.index(), value.out);
    for (&(value, written), &owners) in kernel.buffers.iter().zip(&owners) {
        if owners == 0 || owners > 1 && written {
            return Err(format!("has {owners} parts that have {}", name(value)));
        }
    }
    let mut seen = FxHashSet::default();
    if let Some((value, _)) = kernel.buffers.iter().find(|(value, _)| !seen.insert(*value)) {
        return Err(format!("has {} twice", name(*value)));
    }
    let part_of = |value: ValueRef| {
        let at = kernel.buffers.iter().position(|b| b.0 == value)?;
        (owners[at] == 1).then(|| kernel.parts.iter().position(|p| p.buffers.contains(&at)))?
    };
    for &(read, written) in &kernel.in_place {
        if part_of(read).is_none() || part_of(read) != part_of(written) {
            return Err(format!("writes over {}, which another part reads", name(read)));
        }
    }
    let node = |part: &super::super::Part| part.nodes.first().map(|&n| plan.graph.ty(n.into()).device);
    let mut devices = kernel.parts.iter().filter_map(node);
    let first = devices.next();
    if devices.any(|device| Some(device) != first) {
        return Err(String::from("has parts on different devices"));
    }
    Ok(())
}
