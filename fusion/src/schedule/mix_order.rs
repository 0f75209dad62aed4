//! Rows that are reduced together with columns. A tile has all rows of an instance, whole or as far as it reaches, where it
//! walks along them; the columns of a tile end with it. On a GPU an instance walks its rows a few at a time, each whole in
//! registers, and carries one sum for each column and row of a step:
//!
//! ```text
//! for first in 0..rows step 4, with the rows that are there and the columns' sums so far:
//!   begin to load the next four rows
//!   reduce along each of the four, store what is stored for rows
//!   add them to the columns' sums
//! add the four sums of each column, store them
//! ```

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ScalarFn, Shape, Value};

use super::accumulate::Accumulator;
use super::emit::{Emitter, Memo, parts};
use super::error::{Result, ScheduleError};
use super::persistent::bytes_of_rows;
use super::tiles::{Axis, Tiling, Walk, extent, power_up_to, walk};
use crate::index::Var;
use crate::kernel::{KExpr, KNode, Kernel};
use crate::machine::Machine;
use crate::taken::taken;

/// Rows that are reduced together with columns: all rows of an instance in a tile, which holds them whole or walks along them.
pub(super) fn tiling(kernel: &Kernel, machine: Machine, rows: Var, weights: &[u64]) -> Tiling {
    let down = power_up_to(extent(kernel, rows), u32::MAX >> 1);
    let reduced: Vec<usize> = (0..kernel.reduced.len()).filter(|&v| kernel.reduced[v]).collect();
    let cols = reduced.iter().copied().max_by_key(|&v| (weights[v], v));
    let mut axes = SmallVec::from_slice(&[Axis { var: rows, extent: down }]);
    if let (Machine::Gpu { shrink, .. }, &[cols]) = (machine, &reduced[..])
        && let Some(tiling) = rows_walk(kernel, rows, Var(cols as u32), shrink)
    {
        return tiling;
    }
    let shrink = if let Machine::Gpu { shrink, .. } = machine { shrink.min(3) } else { 0 };
    let mut looped = reduced.len() > 1;
    if let Some(cols) = cols.map(|v| Var(v as u32)) {
        let whole = u64::from(down) * (extent(kernel, cols) as u64).next_power_of_two() <= 16384 >> shrink;
        let size = if whole { 16384 } else { 8192 } >> shrink;
        let across = power_up_to(extent(kernel, cols), (size / down).max(16));
        looped |= i64::from(across) < extent(kernel, cols);
        axes.push(Axis { var: cols, extent: across });
    }
    let size: u32 = axes.iter().map(|a: &Axis| a.extent).product();
    Tiling { axes, walk: walk(looped), warps: (size / 1024).next_power_of_two().clamp(1, 16), peel: None }
}

/// Whole rows in the registers of one block, a few in a step.
fn rows_walk(kernel: &Kernel, rows: Var, cols: Var, shrink: u32) -> Option<Tiling> {
    if !ends_with_columns(kernel, rows) {
        return None;
    }
    let across = (extent(kernel, cols) as u64).next_power_of_two();
    // Beside what is loaded, threads hold the columns' sums and what is loaded for the next step.
    let mix_order = kernel.reduces.iter().filter(|r| r.mix_order).count() as i64;
    let held = bytes_of_rows(kernel, cols) + 4 * mix_order;
    let each = if held <= 8 { 16u64 } else { 8 } >> shrink;
    if each < 2 || across > 1024 * each {
        return None;
    }
    let mut down = (512 * each / across).max(1);
    while extent(kernel, rows) % down as i64 != 0 {
        down /= 2;
    }
    let axes = SmallVec::from_slice(&[
        Axis { var: rows, extent: down as u32 },
        Axis { var: cols, extent: across as u32 },
    ]);
    let warps = (down * across / (32 * each)).next_power_of_two().clamp(1, 32) as u32;
    Some(Tiling { axes, walk: Walk::Rows, warps, peel: None })
}

/// Whether an expression needs a mix-order reduction, whose result is known after the walk.
fn needs_columns(kernel: &Kernel, expr: KExpr) -> bool {
    let mut stack = vec![expr];
    let mut seen = FxHashSet::default();
    while let Some(expr) = stack.pop() {
        if !seen.insert(expr) {
            continue;
        }
        match kernel.node(expr) {
            KNode::Reduce(position) if kernel.reduces[*position as usize].mix_order => return true,
            KNode::Reduce(position) => stack.push(kernel.reduces[*position as usize].value),
            _ => stack.extend(parts(kernel, expr)),
        }
    }
    false
}

/// Whether no reduction needs a mix-order one, and what is stored of these needs nothing of a single row: all that needs them
/// can be computed after the walk.
fn ends_with_columns(kernel: &Kernel, rows: Var) -> bool {
    let of_rows = |store: usize| {
        let store = &kernel.stores[store];
        (kernel.info(store.value).vars | kernel.indices.vars(store.addr)) & 1 << rows.0.min(63) != 0
    };
    let is_mix_order = |store: usize| needs_columns(kernel, kernel.stores[store].value);
    // A member of a tuple needs another one, beside which it is carried.
    let carried = |r: usize| match kernel.tuples.iter().find(|tuple| tuple.reduces.contains(&(r as u32))) {
        Some(tuple) => tuple.elements.iter().all(|&element| !needs_columns(kernel, element)),
        None => !needs_columns(kernel, kernel.reduces[r].value),
    };
    (0..kernel.reduces.len()).all(carried)
        && (0..kernel.stores.len()).all(|store| !is_mix_order(store) || !of_rows(store))
}

impl Emitter<'_> {
    /// Walks the rows of an instance.
    pub(super) fn rows_walk(&mut self) -> Result<()> {
        taken!("walk along rows");
        let kernel = self.kernel;
        let var = kernel.mix_order.ok_or(ScheduleError::Internal("a walk along rows without rows"))?;
        let axis = self.tiling.axis_of(var).ok_or(ScheduleError::Internal("rows without an axis"))?;
        let (extent, step) =
            (kernel.indices.extents()[var.0 as usize], i64::from(self.tiling.axes[axis].extent));
        if extent % step != 0 {
            return Err(ScheduleError::Internal("steps of rows that do not divide them"));
        }
        let columns = self.mix_order_accumulators();
        let (after, within): (Vec<usize>, Vec<usize>) =
            (0..kernel.stores.len()).partition(|&store| needs_columns(kernel, kernel.stores[store].value));
        let mut needed: Vec<KExpr> = columns.iter().flat_map(|&r| self.elements_of(r)).collect();
        needed.extend(within.iter().map(|&s| kernel.stores[s].value));
        self.hoist(&needed, 1 << var.0.min(63))?;

        let ahead = self.loads_of_rows(&needed, var);
        let mut carried = self.load_rows(var, None, &ahead)?;
        let shape = self.shape_of_rows();
        for neutral in columns.iter().flat_map(|&r| self.neutral(r)).collect::<Vec<Literal>>() {
            carried.push(self.b.constant(neutral, &shape));
        }
        let bounds = [0, extent, step].map(|n| self.b.constant(Literal::int(Elem::I32, n), &[]));
        let [lo, hi, by] = bounds;
        let results = self.counted((lo, hi, by), &carried, |this, first, carried| {
            let (loaded, sums) = carried.split_at(ahead.len());
            let last = this.b.constant(Literal::int(Elem::I32, extent - step), &[]);
            let next = this.map(ScalarFn::Add, &[first, by])?;
            let next = this.map(ScalarFn::Min, &[next, last])?;
            let mut results = this.load_rows(var, Some(next), &ahead)?;
            this.in_loop = true;
            this.bases[var.0 as usize] = Some(first);
            this.inner = Memo::default();
            this.inner.values.extend(ahead.iter().copied().zip(loaded.iter().copied()));
            for (reduce, sums) in this.parts_of(&columns, sums) {
                results.extend(this.add_rows(reduce, sums)?);
            }
            for &store in &within {
                this.store(store)?;
            }
            this.leave_rows(var);
            Ok(results)
        })?;
        for (reduce, sums) in self.parts_of(&columns, &results[ahead.len()..]) {
            match reduce {
                Accumulator::One(r) => {
                    let total = self.reduce_tile(kernel.reduces[r as usize].combine, sums[0], axis, None)?;
                    let expr = self.reduce_expr(r)?;
                    self.outer.values.insert(expr, total);
                }
                Accumulator::Tuple(t) => self.finish_tuple(t, sums, Some(axis as u8), step, extent)?,
            }
        }
        after.into_iter().try_for_each(|store| self.store(store))
    }

    /// The loads that a step begins for the next one: whose addresses follow from the rows alone.
    fn loads_of_rows(&self, needed: &[KExpr], var: Var) -> Vec<KExpr> {
        let reached = self.reached(needed);
        let ahead = |expr: &KExpr| {
            let plain = matches!(self.kernel.node(*expr), KNode::Load { dynamic: None, mask: None, .. });
            plain && reached.contains(expr) && self.kernel.info(*expr).vars & 1 << var.0.min(63) != 0
        };
        (0..self.kernel.exprs.len() as u32).map(KExpr).filter(ahead).collect()
    }

    /// Loads of the rows that begin at `first`.
    fn load_rows(&mut self, var: Var, first: Option<Value>, loads: &[KExpr]) -> Result<Vec<Value>> {
        self.in_loop = true;
        self.bases[var.0 as usize] = first;
        self.inner = Memo::default();
        let loaded = loads.iter().map(|&load| self.value(load)).collect();
        self.leave_rows(var);
        loaded
    }

    fn leave_rows(&mut self, var: Var) {
        self.inner = Memo::default();
        self.bases[var.0 as usize] = None;
        self.in_loop = false;
    }

    /// The columns' sums with the rows at hand.
    fn add_rows(&mut self, reduce: Accumulator, sums: &[Value]) -> Result<Vec<Value>> {
        let shape = self.shape_of_rows();
        let mut values = Vec::new();
        for element in self.elements_of(reduce) {
            let value = self.value(element)?;
            values.push(self.lift(value, &shape)?);
        }
        self.combined(reduce, sums, &values)
    }

    /// The shape of the columns' sums: that of the tile.
    fn shape_of_rows(&self) -> Shape {
        self.tiling.axes.iter().map(|a| a.extent).collect()
    }

    /// A reduction over the rows of the tile.
    pub(super) fn reduce_mix_order(&mut self, position: u32) -> Result<Value> {
        taken!("rows and columns of a tile");
        let reduction = &self.kernel.reduces[position as usize];
        let (combine, operand) = (reduction.combine, reduction.value);
        let axis = self.kernel.mix_order.and_then(|var| self.tiling.axis_of(var));
        let axis = axis.ok_or(ScheduleError::Internal("a tile without the rows that it combines"))?;
        let rows = self.tiling.axes[axis];
        if i64::from(rows.extent) < extent(self.kernel, rows.var) {
            return Err(ScheduleError::Internal("a tile with some of the rows that it combines"));
        }
        let value = self.value(operand)?;
        let mut shape = self.b.ty(value).shape.clone();
        if shape.is_empty() {
            shape = Shape::from_elem(1, self.tiling.axes.len());
        }
        shape[axis] = self.tiling.axes[axis].extent;
        let value = self.lift(value, &shape)?;
        let mask = self.axis_mask(axis)?;
        self.reduce_tile(combine, value, axis, mask)
    }

    /// What these expressions are made of, themselves among it, through reductions.
    fn reached(&self, from: &[KExpr]) -> FxHashSet<KExpr> {
        let mut stack: Vec<KExpr> = from.to_vec();
        let mut seen = FxHashSet::default();
        while let Some(expr) = stack.pop() {
            if !seen.insert(expr) {
                continue;
            }
            match self.kernel.node(expr) {
                KNode::Reduce(position) => stack.push(self.kernel.reduces[*position as usize].value),
                _ => stack.extend(parts(self.kernel, expr)),
            }
        }
        seen
    }
}
