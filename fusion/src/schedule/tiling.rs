//! Choice of tiles: which variables a tile spans, how far, and what is looped over.

use smallvec::SmallVec;

use super::accumulate::merges;
use super::mix_order;
use super::persistent::{along, persistent, shares};
use super::tiles::{Axis, Peel, Tiling, WIDEST_BLOCK, Walk, extent, power_up_to, reads_once, walk};
use crate::combiner::Combiner;
use crate::index::{Atom, Expr, Var};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::taken::taken;

/// Chooses tiles for a kernel on a machine.
pub fn choose(kernel: &Kernel, machine: Machine) -> Tiling {
    let weights = contiguous_weights(kernel);
    if let Some(rows) = kernel.mix_order {
        return mix_order::tiling(kernel, machine, rows, &weights);
    }
    let best = |reduced: bool| {
        (0..kernel.reduced.len())
            .filter(|&v| kernel.reduced[v] == reduced)
            .max_by_key(|&v| (weights[v], v))
            .map(|v| Var(v as u32))
    };
    match (best(false), best(true)) {
        (None, None) => {
            taken!("single elements");
            Tiling { axes: SmallVec::new(), walk: Walk::Spanned, warps: 1, peel: None }
        }
        (Some(inner), None) => pointwise(kernel, machine, inner, &weights),
        (rows, Some(cols)) => {
            let row_weight = rows.map_or(0, |r| weights[r.0 as usize]);
            match rows {
                Some(rows) if row_weight > weights[cols.0 as usize] => columns(kernel, machine, cols, rows),
                _ => row_reduction(kernel, machine, cols),
            }
        }
    }
}

/// Bytes of accesses that are contiguous along each variable.
fn contiguous_weights(kernel: &Kernel) -> Vec<u64> {
    let mut weights = vec![0; kernel.reduced.len()];
    for (expr, bytes) in kernel.accesses() {
        let moved = u64::from(bytes) * kernel.points_of(kernel.indices.vars(expr));
        for (v, weight) in weights.iter_mut().enumerate() {
            if kernel.indices.coefficient(expr, Var(v as u32)).abs() == 1 {
                *weight += moved;
            }
        }
    }
    weights
}

fn pointwise(kernel: &Kernel, machine: Machine, inner: Var, weights: &[u64]) -> Tiling {
    let parallel: Vec<Var> =
        (0..kernel.reduced.len()).filter(|&v| !kernel.reduced[v]).map(|v| Var(v as u32)).collect();
    // What is small stays in the cache and may be read with strides.
    let least = if machine.is_gpu() { 0 } else { weights[inner.0 as usize] / 16 };
    let transposed = parallel.iter().copied().filter(|&v| v != inner && weights[v.0 as usize] > least);
    let transposed = transposed.max_by_key(|v| weights[v.0 as usize]);
    // On a GPU three colours apart are written in parts of what memory moves at a time: of 64 images of 3 x 224 x 224 98 us, not 12.
    let least = if machine.is_gpu() { 3 } else { 8 };
    if let Some(other) = transposed.filter(|&o| extent(kernel, o) >= least) {
        return two_way(kernel, machine, other, inner);
    }
    taken!("element by element");
    let target = pointwise_target(kernel, machine, inner);
    let across = power_up_to(extent(kernel, inner), target);
    let mut axes = SmallVec::new();
    let next = parallel.iter().copied().rfind(|&v| v != inner);
    if let Some(next) = next.filter(|_| across < target) {
        axes.push(Axis { var: next, extent: power_up_to(extent(kernel, next), target / across) });
    }
    axes.push(Axis { var: inner, extent: across });
    let size: u32 = axes.iter().map(|a: &Axis| a.extent).product();
    let warps = match machine {
        Machine::Gpu { processors, .. } => (size / (32 * elements_of_thread(kernel, processors))).clamp(1, 8),
        Machine::Host { .. } => (size / 512).clamp(1, 4),
    };
    Tiling { axes, walk: Walk::Spanned, warps, peel: None }
}

/// Elements of a pointwise tile: large enough to amortise an instance, small enough to occupy the machine.
fn pointwise_target(kernel: &Kernel, machine: Machine, inner: Var) -> u32 {
    let points = kernel.parallel_points().max(1) as u64;
    match machine {
        Machine::Host { threads } => {
            let share = (points / (u64::from(threads) * 8)).next_power_of_two();
            share.clamp(256, 8192) as u32
        }
        Machine::Gpu { processors, shrink, .. } => {
            let share = (points / (u64::from(processors) * 8)).next_power_of_two();
            let most = if along(kernel, inner).0 <= 2 { 2048 } else { 1024 };
            (share.clamp(128, most) as u32 >> shrink).max(32)
        }
    }
}

/// Elements of a pointwise tile that a thread of a GPU takes: one while there are threads enough, for what is small costs
/// the time until the first element is there, and at most eight. Measured on an H200: 2^20 sums of f32 take 7.4 us with
/// eight and 7.7 with 16; a chain of 12 operators on 4096 elements takes 4.1 with one and 4.5 with four.
fn elements_of_thread(kernel: &Kernel, processors: u32) -> u32 {
    let points = kernel.parallel_points().max(1) as u64;
    (points / (u64::from(processors) * 1024)).next_power_of_two().clamp(1, 8) as u32
}

/// A tile that is contiguous along one axis for some accesses and along the other one for others.
fn two_way(kernel: &Kernel, machine: Machine, outer: Var, inner: Var) -> Tiling {
    taken!("transposed tiles");
    let points = kernel.parallel_points().max(1) as u64;
    let (rows, cols) = match machine {
        // Runs of 256 bytes along one axis, where 16-bit elements would make them 128.
        Machine::Gpu { shrink, .. } if along(kernel, inner).0 <= 2 => (64 >> shrink, 128 >> shrink),
        Machine::Gpu { shrink, .. } => (64 >> shrink, 64 >> shrink),
        Machine::Host { threads } if points >= u64::from(threads) << 18 => (128, 128),
        Machine::Host { .. } => (64, 64),
    };
    let [mut down, mut across] =
        [(outer, rows), (inner, cols)].map(|(var, most)| power_up_to(extent(kernel, var), most));
    if let Machine::Gpu { processors, .. } = machine {
        // Where one axis is short, as the taps of a filter are, a tile spans more of the other one while there are instances enough.
        let share = (points / (u64::from(processors) * 8)).next_power_of_two();
        let area = share.max(1024).min(u64::from(rows * cols)) as u32;
        let [wide, high] = [across.max(area / down), down.max(area / across)];
        (down, across) = (power_up_to(extent(kernel, outer), high), power_up_to(extent(kernel, inner), wide));
    }
    let axes =
        SmallVec::from_slice(&[Axis { var: outer, extent: down }, Axis { var: inner, extent: across }]);
    let size: u32 = axes.iter().map(|a: &Axis| a.extent).product();
    let warps = if machine.is_gpu() && size > 64 * 64 { 8 } else { 4 };
    Tiling { axes, walk: Walk::Spanned, warps, peel: None }
}

/// Columns that a tile can span without a loop.
fn widest(machine: Machine) -> u32 {
    match machine {
        Machine::Gpu { shrink, clusters: true, .. } => (65536 >> shrink).max(1024),
        Machine::Gpu { shrink, .. } => (16384 >> shrink).max(1024),
        Machine::Host { .. } => 65536,
    }
}

/// The most elements next to each other in memory of which a tile takes several runs.
const SHORT_RUN: i64 = 256;

/// A tile of two reduced axes, for a GPU, where elements that lie next to each other are few: the channels of a group, of a group norm in
/// channels-last. A block holds such a row, or walks along it.
fn rows_of_two_axes(kernel: &Kernel, machine: Machine, cols: Var) -> Option<Tiling> {
    let Machine::Gpu { shrink, .. } = machine else { return None };
    let mut others = (0..kernel.reduced.len()).filter(|&v| kernel.reduced[v] && v != cols.0 as usize);
    let (outer, None) = (Var(others.next()? as u32), others.next()) else { return None };
    let [down, across] = [outer, cols].map(|var| power_up_to(extent(kernel, var), u32::MAX >> 1));
    let size = u64::from(down) * u64::from(across);
    // Of windows and other short rows a tile takes several.
    if size < 128 || extent(kernel, cols) >= SHORT_RUN {
        return None;
    }
    let held = size <= (WIDEST_BLOCK as u64) >> shrink.min(3);
    let down = if held {
        taken!("rows of two axes");
        down
    } else {
        taken!("walk along rows of two axes");
        (8192 >> shrink.min(3)) / across
    };
    let axes = SmallVec::from_slice(&[Axis { var: outer, extent: down }, Axis { var: cols, extent: across }]);
    let warps = (down * across / 512).next_power_of_two().clamp(1, 16);
    Some(Tiling { axes, walk: walk(!held), warps, peel: None })
}

fn row_reduction(kernel: &Kernel, machine: Machine, cols: Var) -> Tiling {
    if let Some(tiling) = rows_of_two_axes(kernel, machine, cols) {
        return tiling;
    }
    let others = kernel.reduced.iter().filter(|&&r| r).count() > 1;
    let width = extent(kernel, cols);
    let long = machine.is_gpu() && width > WIDEST_BLOCK;
    if let Some(tiling) = persistent(kernel, machine, cols, peel(kernel, machine, cols)) {
        return tiling;
    }
    // Tiles that one block holds are masked, element by element, more cheaply than they are shifted.
    let peel = if long { peel(kernel, machine, cols) } else { None };
    // What a cluster holds of a row that is no power of two is masked, element by element; loops mask the ends.
    let ragged = long && width & (width - 1) != 0;
    let wide = width > i64::from(widest(machine));
    // Rows that are read again are better held by a cluster.
    let read_once = reads_once(kernel, cols);
    let at_once = long && !others && merges(kernel, 1);
    // A walk that combines moments has more to compute than registers that hold the row.
    let moments = kernel.tuples.iter().any(|tuple| tuple.combine == Combiner::Moments);
    let looped = others || wide || ragged || at_once && read_once && !moments;
    if let Machine::Gpu { shrink, .. } = machine
        && at_once
        && looped
    {
        taken!("rows that are read once");
        // The ends of rows that do not divide are masked, element by element: small steps.
        let (warps, each) = match (read_once, peel.is_some()) {
            (true, _) => (4, 1024),
            (false, false) => (8, 1024),
            // Few registers a thread, for the ends of rows take more, and few rows at a time.
            (false, true) => (16, 512),
        };
        let across = (warps * each) >> shrink.min(3);
        let axes = SmallVec::from_slice(&[Axis { var: cols, extent: across }]);
        return Tiling { axes, walk: Walk::Loops, warps, peel };
    }
    taken!("rows");
    let across = match (looped, machine.is_gpu()) {
        (false, _) => power_up_to(width, widest(machine)),
        (true, true) => power_up_to(width, if peel.is_some() { 4096 } else { 8192 }),
        (true, false) => power_up_to(width, 8192),
    };
    let rows = (0..kernel.reduced.len()).rev().find(|&v| !kernel.reduced[v]).map(|v| Var(v as u32));
    let mut axes = SmallVec::new();
    let sums = is_product(kernel, machine, cols);
    let wanted = rows_of_tile(kernel, machine, across, sums);
    let together = rows.filter(|_| wanted > 1);
    if let Some(var) = together {
        axes.push(Axis { var, extent: power_up_to(extent(kernel, var), wanted) });
    }
    axes.push(Axis { var: cols, extent: across });
    // Each instance of one row begins where that does, if its tile has room for what comes before.
    let room = |l: &Peel| looped || width + i64::from(l.group) - 1 <= i64::from(across);
    let peel = peel.filter(|l| together.is_none() && room(l));
    let size: u32 = axes.iter().map(|a: &Axis| a.extent).product();
    let once = kernel.reduces.iter().all(|r| r.level <= 1);
    let warps = match looped {
        false if size >= 4096 && !sums && machine.is_gpu() => (size * along(kernel, cols).0 / 1024).min(16),
        false => (size / 1024).min(16),
        true if once || peel.is_some() => size / 512,
        // Rows that are read several times stay in the cache only if few are under way: large blocks.
        true => size / 256,
    };
    Tiling { axes, walk: walk(looped), warps: warps.next_power_of_two().clamp(1, 32), peel }
}

/// The address of the accesses to a row along `cols`, if all are one and rows begin at no multiples of 16 bytes. What
/// has no row, as weights do, need not be aligned.
fn peel(kernel: &Kernel, machine: Machine, cols: Var) -> Option<Peel> {
    if !machine.is_gpu() || kernel.reduced.iter().filter(|&&r| r).count() > 1 {
        return None;
    }
    let touches =
        |&(addr, bytes): &(Expr, u32)| bytes > 0 && kernel.indices.vars(addr) & 1 << cols.0.min(63) != 0;
    let along = |atom: &Atom| *atom == Atom::Var(cols);
    let of_row = |&(addr, _): &(Expr, u32)| !kernel.indices.linear(addr).terms.iter().all(|(a, _)| along(a));
    let mut accesses: Vec<(Expr, u32)> = kernel.accesses().into_iter().filter(touches).collect();
    if accesses.iter().any(of_row) {
        accesses.retain(of_row);
    }
    let &(addr, _) = accesses.first()?;
    let linear = kernel.indices.linear(addr);
    let plain = linear.terms.iter().all(|(atom, _)| matches!(atom, Atom::Var(_)));
    let one = accesses.iter().all(|&(other, _)| other == addr);
    if !plain || kernel.indices.coefficient(addr, cols) != 1 || !one {
        return None;
    }
    let least = accesses.iter().map(|&(_, bytes)| bytes).min()?;
    let group = 16 / least.min(16);
    let starts = linear.terms.iter().filter(|(atom, _)| !along(atom)).map(|&(_, c)| c);
    let aligned = starts.chain([linear.constant]).all(|c| c % i64::from(group) == 0);
    (!aligned).then_some(Peel { var: cols, addr, group })
}

/// Whether a kernel on a GPU sums products of rows with one vector, as a product with a matrix of one row does: it reads
/// something along `cols` that is the same for all rows, and stores nothing along it.
fn is_product(kernel: &Kernel, machine: Machine, cols: Var) -> bool {
    let along = |addr: Expr| kernel.indices.vars(addr) & 1 << cols.0.min(63) != 0;
    machine.is_gpu() && shares(kernel, cols) && !kernel.stores.iter().any(|s| along(s.addr))
}

/// Rows of a tile that is `across` wide: short rows are taken together, and `sums` of products where there are many, so
/// that the vector is read once for several rows. Measured on an H200: 50257 rows of 768 take 34 us one by one and 21
/// in fours, 3072 rows are quickest one by one.
fn rows_of_tile(kernel: &Kernel, machine: Machine, across: u32, sums: bool) -> u32 {
    let rows = kernel.parallel_points().max(1) as u64;
    let (size, workers) = match machine {
        Machine::Host { threads } => (256, u64::from(threads) * 2),
        Machine::Gpu { processors, shrink, .. } if sums => {
            (4096 >> shrink.min(3), u64::from(processors) * 64)
        }
        Machine::Gpu { processors, shrink, .. } => (1024 >> shrink.min(3), u64::from(processors) * 8),
    };
    let enough = (rows / workers).max(1);
    let enough = if enough.is_power_of_two() { enough } else { enough.next_power_of_two() / 2 };
    u64::from((size / across).max(1)).min(enough) as u32
}

/// A reduction along a variable that is not contiguous, for many contiguous parallel elements.
fn columns(kernel: &Kernel, machine: Machine, reduced: Var, inner: Var) -> Tiling {
    taken!("columns");
    let (deep, wide) = match machine {
        Machine::Gpu { shrink, processors, .. } => {
            let wide = wide_columns(kernel, processors);
            (((16384 / wide) >> shrink).max(4), wide)
        }
        Machine::Host { .. } => (64, 256),
    };
    let single = kernel.reduced.iter().filter(|&&r| r).count() == 1;
    let across = power_up_to(extent(kernel, inner), wide);
    let down = power_up_to(extent(kernel, reduced), deep * (wide / across));
    let looped = !single || extent(kernel, reduced) > i64::from(down);
    let axes =
        SmallVec::from_slice(&[Axis { var: reduced, extent: down }, Axis { var: inner, extent: across }]);
    let warps = (down * across / if machine.is_gpu() { 2048 } else { 512 }).next_power_of_two().clamp(1, 8);
    Tiling { axes, walk: walk(looped), warps, peel: None }
}

/// Columns of a tile: so many that threads keep to columns of their own, if enough instances are left.
fn wide_columns(kernel: &Kernel, processors: u32) -> u32 {
    let mut wide = 2048;
    while wide > 64 && kernel.parallel_points() < i64::from(wide) * i64::from(processors) {
        wide /= 2;
    }
    wide
}
