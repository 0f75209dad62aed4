//! The cost model: microseconds of a kernel from its bytes, its operations and how much of the machine it occupies.

use rustc_hash::FxHashSet;

use crate::index::Expr;
use crate::kernel::{KNode, Kernel};
use crate::machine::{CACHED, Profile};
use crate::schedule::{Tiling, Walk};

/// What a kernel costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) flops: u64,
    pub(crate) us: f64,
}

/// Prices a kernel with its tiles.
pub(crate) fn price(kernel: &Kernel, tiling: &Tiling, profile: &Profile) -> Cost {
    let levels = kernel.reduces.iter().map(|r| u64::from(r.level)).max().unwrap_or(0);
    let passes = if tiling.walk == Walk::Loops { levels.max(1) } else { 1 };
    let mut read = vec![0u64; kernel.buffers.len()];
    let mut seen = FxHashSet::default();
    let mut strided = 0;
    for (position, node) in kernel.exprs.iter().enumerate() {
        let points = kernel.points_of(kernel.info[position].vars);
        match node {
            KNode::Load { buffer, addr, dynamic, .. } => {
                let b = &kernel.buffers[*buffer as usize];
                let touched = kernel.points_of(kernel.indices.vars(*addr));
                let touched = if dynamic.is_some() { points } else { touched.min(b.span as u64) };
                let bytes = touched * u64::from(b.elem.bytes());
                strided += bytes * waste(kernel, tiling, *addr, b.elem.bytes(), profile);
                if !seen.insert((*buffer, *addr)) {
                    continue;
                }
                // Other elements of the tensor, as those of a window's other positions, or the same ones where all are read.
                let so_far = &mut read[*buffer as usize];
                let all = b.span as u64 * u64::from(b.elem.bytes());
                *so_far = (*so_far + bytes).min(all.max(*so_far).max(bytes));
            }
            KNode::Map(..) | KNode::Cast(..) | KNode::InRange(..) | KNode::Index(..) => {}
            KNode::Const(_) | KNode::Reduce(_) => {}
        }
    }
    let flops = operations(kernel);
    let bytes_written: u64 = kernel
        .stores
        .iter()
        .map(|s| {
            kernel.points_of(kernel.indices.vars(s.addr))
                * u64::from(kernel.buffers[s.buffer as usize].elem.bytes())
        })
        .sum();
    let bytes_read: u64 = read.iter().sum();
    let busy = (tiling.grid(kernel) as f64 / profile.workers as f64).min(1.0);
    let passes_read = if rereads_cached(profile, bytes_read, tiling.grid(kernel)) {
        1.0 + reread_cost(profile) * (passes - 1) as f64
    } else {
        passes as f64
    };
    let traffic = (bytes_read + strided / 4) as f64 * passes_read + bytes_written as f64;
    let traffic = traffic / profile.bandwidth / 1000.0;
    let arithmetic = (flops * passes) as f64 / profile.ops_per_ns / 1000.0;
    Cost { bytes_read, bytes_written, flops, us: traffic.max(arithmetic) / busy + profile.launch_us }
}

/// Whether what the instances at work read is still in the cache when they read it again.
fn rereads_cached(profile: &Profile, bytes_read: u64, instances: u64) -> bool {
    let working = bytes_read / instances.max(1) * instances.min(profile.workers);
    working <= if profile.machine.is_gpu() { 32 << 20 } else { 1 << 20 }
}

/// What reading from the cache costs beside reading from memory.
fn reread_cost(profile: &Profile) -> f64 {
    if profile.machine.is_gpu() { 0.4 } else { CACHED }
}

/// Operations of a kernel that walks over its points once.
pub(super) fn operations(kernel: &Kernel) -> u64 {
    let of = |(position, node): (usize, &KNode)| {
        let points = kernel.points_of(kernel.info[position].vars);
        match node {
            KNode::Load { .. } => points / 4,
            KNode::Map(function, _) => points * u64::from(function.cost()),
            KNode::Cast(..) | KNode::InRange(..) => points,
            KNode::Index(e, _) => points * u64::from(1 + 8 * u32::from(kernel.indices.nested_vars(*e) != 0)),
            KNode::Const(_) | KNode::Reduce(_) => 0,
        }
    };
    let each: u64 = kernel.exprs.iter().enumerate().map(of).sum();
    each + kernel.reduces.len() as u64 * kernel.points_of(u64::MAX)
}

/// How many quarters of its bytes an access moves in vain because neighbours in the tile are not neighbours in memory.
fn waste(kernel: &Kernel, tiling: &Tiling, addr: Expr, bytes: u32, profile: &Profile) -> u64 {
    let step = |axis: usize| kernel.indices.coefficient(addr, tiling.axes[axis].var).unsigned_abs();
    let Some(last) = tiling.axes.len().checked_sub(1) else { return 0 };
    if step(last) <= 1 {
        return 0;
    }
    let across = (0..last).any(|axis| step(axis) == 1 && tiling.axes[axis].extent >= 8);
    let sector = if profile.machine.is_gpu() { 32 } else { 64 };
    if across { 1 } else { 4 * (step(last).min(u64::from(sector / bytes)) - 1).min(7) }
}
