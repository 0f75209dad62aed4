//! Tiles near those that [`choose`](super::choose) takes, between which only a measurement decides: the cost model counts
//! bytes, operations and instances, and sees neither registers nor how loads overlap.
//!
//! ```text
//! 64 x 64   ->   32 x 64, 128 x 64, 64 x 32, 64 x 128, 32 x 128, 128 x 32, 128 x 128; on a GPU also with half and twice the warps
//! ```

use smallvec::SmallVec;

use super::tiles::{Axis, Tiling, Walk};
use crate::index::Var;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::taken::taken;

/// Elements of a tile, least and most.
fn sizes(machine: Machine) -> (u64, u64) {
    if machine.is_gpu() { (32, 16_384) } else { (64, 65_536) }
}

/// Other tiles for a kernel: extents and warps halved and doubled, and rows taken together. A reduced variable that the
/// tile spans stays spanned, and rows that begin anywhere keep their tiles.
pub fn variants(kernel: &Kernel, base: &Tiling, machine: Machine) -> Vec<Tiling> {
    let mut found: Vec<Tiling> = Vec::new();
    let mut add = |tiling: Tiling| {
        if tiling != *base && !found.contains(&tiling) && is_sound(kernel, base, &tiling, machine) {
            found.push(tiling);
        }
    };
    let free: Vec<usize> = (0..base.axes.len()).filter(|&axis| is_free(kernel, base, axis)).collect();
    let scaled = |factors: &[(usize, f64)]| {
        let mut tiling = base.clone();
        for &(axis, factor) in factors {
            let extent = f64::from(base.axes[axis].extent) * factor;
            tiling.axes[axis].extent = extent.max(1.0) as u32;
        }
        tiling.warps = warps_of(base, &tiling);
        tiling
    };
    for &axis in &free {
        [2.0, 0.5].into_iter().for_each(|factor| add(scaled(&[(axis, factor)])));
    }
    if let [outer, inner] = free[..] {
        [2.0, 0.5].into_iter().for_each(|factor| add(scaled(&[(outer, factor), (inner, 1.0 / factor)])));
        add(scaled(&[(outer, 2.0), (inner, 2.0)]));
    }
    if machine.is_gpu() {
        let with = |warps: u32| Tiling { warps, ..base.clone() };
        [base.warps * 2, base.warps / 2].into_iter().for_each(|warps| add(with(warps)));
    }
    if let Some(rows) = rows_alone(kernel, base) {
        for together in [2, 4] {
            let mut tiling = base.clone();
            tiling.axes.insert(0, Axis { var: rows, extent: together });
            tiling.warps = warps_of(base, &tiling);
            taken!("rows taken together");
            add(tiling);
        }
    }
    for &axis in free.iter().filter(|_| !machine.is_gpu()) {
        [4.0, 0.25].into_iter().for_each(|factor| add(scaled(&[(axis, factor)])));
    }
    found
}

/// Whether the extent of an axis may be another.
fn is_free(kernel: &Kernel, base: &Tiling, axis: usize) -> bool {
    let var = base.axes[axis].var;
    let reduced = kernel.reduced.get(var.0 as usize) == Some(&true);
    // What is reduced over the rows of a tile needs them all.
    let mix_order = kernel.mix_order == Some(var) && base.walk != Walk::Rows;
    base.peel.is_none() && (base.is_walked() || !reduced) && !mix_order
}

/// The parallel variable of which a tile that spans one row could take several.
fn rows_alone(kernel: &Kernel, base: &Tiling) -> Option<Var> {
    let [only] = base.axes[..] else { return None };
    let reduced = kernel.reduced.get(only.var.0 as usize) == Some(&true);
    let rows = (0..kernel.reduced.len()).rev().find(|&v| !kernel.reduced[v]);
    rows.filter(|_| reduced && !base.is_walked() && base.peel.is_none()).map(|v| Var(v as u32))
}

fn elements(tiling: &Tiling) -> u64 {
    tiling.axes.iter().map(|axis| u64::from(axis.extent)).product()
}

/// As many warps for each element as before.
fn warps_of(base: &Tiling, other: &Tiling) -> u32 {
    let warps = u64::from(base.warps) * elements(other) / elements(base).max(1);
    warps.next_power_of_two().clamp(1, 32) as u32
}

/// Whether a tile is no larger than what it is a tile of, nor larger or smaller than a machine can make use of.
fn is_sound(kernel: &Kernel, base: &Tiling, tiling: &Tiling, machine: Machine) -> bool {
    let (least, most) = sizes(machine);
    let size = elements(tiling);
    let extents = kernel.indices.extents();
    let covers = |axis: &Axis| match extents.get(axis.var.0 as usize) {
        Some(&n) if kernel.mix_order == Some(axis.var) && tiling.walk == Walk::Rows => {
            n % i64::from(axis.extent) == 0
        }
        Some(&n) => u64::from(axis.extent) <= (n.max(1) as u64).next_power_of_two(),
        None => false,
    };
    let in_size = size >= least.min(elements(base)) && size <= most.max(elements(base));
    let warps = (1..=32).contains(&tiling.warps) && u64::from(tiling.warps) * 32 <= size.max(32);
    let axes: SmallVec<[Var; 2]> = tiling.axes.iter().map(|axis| axis.var).collect();
    let distinct = axes.len() < 2 || axes[0] != axes[1];
    in_size && distinct && tiling.axes.iter().all(covers) && (!machine.is_gpu() || warps)
}
