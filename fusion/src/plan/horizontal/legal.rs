//! When kernels may be parts of one launch. Each rule is a function; what it refuses is a value of [`HorizontalRefusal`].
//!
//! Kernels that are joined need each other neither directly nor through others: they are of one level, see
//! [`super::depends`].

use rustc_hash::FxHashSet;
use tilefuse_block::{OpKind, Program};

use super::super::ir::{KernelKind, KernelStep, Plan};
use super::super::reasons::HorizontalRefusal;
use crate::block_kernel::BlockKernelKind;
use crate::graph::ValueRef;
use crate::machine::Machine;
use crate::types::{Device, fits_i32};

/// Most pointers of a launch. CUDA takes 4096 bytes of parameters, twice as many.
pub(super) const MAX_POINTERS: usize = 256;

/// Most operations of a joined program: compiling one takes about as long as compiling its parts.
pub(super) const MAX_OPERATIONS: usize = 1 << 12;

/// Most elements of a tile of which one block surely holds several, so that no cluster is needed.
const MAX_BLOCK_TILE: u64 = 8192;

/// How many times the warps of one part another may have: a part gets the most that any has.
const MAX_WARP_RATIO: u32 = 4;

/// The kernel is one of the planner's own, or computes a product on a GPU: there as few blocks leave multiprocessors idle.
pub(super) fn joinable(kernel: &KernelStep, machine: Machine) -> Result<(), HorizontalRefusal> {
    let is_product = is_product(kernel) && machine.is_gpu();
    if kernel.kind.has_own_blocks() && !is_product { Err(HorizontalRefusal::OwnBlocks) } else { Ok(()) }
}

/// Whether the kernel computes a product, whose blocks are for its own number of warps.
pub(super) fn is_product(kernel: &KernelStep) -> bool {
    kernel.kind == KernelKind::Block(BlockKernelKind::Contraction)
}

/// Products share launches with products alone.
pub(super) fn alike_kinds(a: bool, b: bool) -> Result<(), HorizontalRefusal> {
    if a == b { Ok(()) } else { Err(HorizontalRefusal::OwnBlocks) }
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

/// Parts can have the most warps that any of them has; products have their own.
pub(super) fn alike_warps(least: u32, most: u32, products: bool) -> Result<(), HorizontalRefusal> {
    let ratio = if products { 1 } else { MAX_WARP_RATIO };
    if most <= least.saturating_mul(ratio) { Ok(()) } else { Err(HorizontalRefusal::Warps { least, most }) }
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
    if fits_i32(instances) { Ok(()) } else { Err(HorizontalRefusal::Instances) }
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
