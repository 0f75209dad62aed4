//! The mean of a row and the sum of squared deviations from it, in one walk along the row.
//!
//! Each thread keeps the mean and the squares of what it has seen, and merges a few elements at a time (Chan, Golub and
//! LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979), so that no large squares
//! cancel. Steps inside the row come first: all lanes have seen equally many elements then, and the weights are scalars.
//!
//! ```text
//! %m = the mean of four elements of the step, %q = the sum of their squared deviations
//! %delta = %m - %mean
//! %mean' = %mean + %delta * 4 / (n + 4)
//! %squares' = %squares + %q + %delta^2 * n * 4 / (n + 4)
//! ```
//!
//! At the end, the lanes' squares are moved to the mean of all: `squares + n * (lane's mean - mean)^2`.

use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn, Value};

use super::ScheduleError;
use super::cascade::Block;
use super::emit::{Emitter, Result};
use crate::kernel::{KExpr, KNode, Kernel};

/// The two reductions of a kernel that one walk can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moments {
    /// The position of the sum in [`Kernel::reduces`].
    sum: u32,
    /// The position of the sum of squared deviations.
    squares: u32,
    /// What is summed.
    value: KExpr,
    /// The mean that the deviations are from.
    mean: KExpr,
}

/// The sum and the sum of squared deviations from the mean, where these are all of a kernel's reductions of the first
/// two levels, over one variable, and all that is read has 16 bits: sums of 32 bits see nothing of their rounding then.
pub(super) fn moments(kernel: &Kernel) -> Option<Moments> {
    let at = |level: u32| {
        let mut found = (0..kernel.reduces.len()).filter(move |&r| kernel.reduces[r].level == level);
        let one = found.next();
        one.filter(|_| found.next().is_none())
    };
    let (sum, squares) = (at(1)?, at(2)?);
    let (all, off) = (&kernel.reduces[sum], &kernel.reduces[squares]);
    let f32s = [all.value, off.value].iter().all(|&e| kernel.info(e).elem == Elem::F32);
    let read = kernel.buffers.iter().filter(|b| !b.written && b.elem.is_float());
    let short = read.clone().all(|b| b.elem.bits() == 16);
    let sums = all.combine == ReduceFn::Sum && off.combine == ReduceFn::Sum;
    let reduced: Vec<usize> = (0..kernel.reduced.len()).filter(|&v| kernel.reduced[v]).collect();
    let &[var] = &reduced[..] else { return None };
    let count = kernel.indices.extents()[var];
    let KNode::Map(ScalarFn::Mul, factors) = kernel.node(off.value) else { return None };
    let &[deviation, same] = &factors[..] else { return None };
    let KNode::Map(ScalarFn::Sub, terms) = kernel.node(deviation) else { return None };
    let &[value, mean] = &terms[..] else { return None };
    let fits = deviation == same && value == all.value && is_mean(kernel, mean, sum as u32, count);
    let found = Moments { sum: sum as u32, squares: squares as u32, value, mean };
    (fits && f32s && short && sums).then_some(found)
}

/// Whether an expression is a reduction's result divided by a count.
fn is_mean(kernel: &Kernel, expr: KExpr, sum: u32, count: i64) -> bool {
    let number = |e: KExpr| match kernel.node(e) {
        KNode::Const(literal) => Some(literal.as_f64()),
        _ => None,
    };
    let is_sum = |e: KExpr| *kernel.node(e) == KNode::Reduce(sum);
    let near = |x: f64| (x - 1.0).abs() < 1e-6;
    match kernel.node(expr) {
        KNode::Map(ScalarFn::Div, args) => {
            let by = args.get(1).copied().and_then(number);
            args.first().is_some_and(|&a| is_sum(a)) && by.is_some_and(|n| near(n / count as f64))
        }
        KNode::Map(ScalarFn::Mul, args) => {
            let other = args.iter().copied().find_map(number);
            args.iter().any(|&a| is_sum(a)) && other.is_some_and(|f| near(f * count as f64))
        }
        _ => false,
    }
}

impl Emitter<'_> {
    /// The two reductions that this kernel's first walk makes at once, if it is looped along one axis.
    pub(super) fn moments_stage(&self, reduced: u64) -> Option<Moments> {
        let one = self.tiling.axes.len() == 1 && self.kernel.reduced[self.tiling.axes[0].var.0 as usize];
        let stores = (0..self.kernel.stores.len()).any(|s| matches!(self.stage_of(s, reduced), Some(1 | 2)));
        moments(self.kernel).filter(|_| self.machine.is_gpu() && one && !stores)
    }

    /// Makes both reductions in one walk.
    pub(super) fn stage_moments(&mut self, moments: Moments, reduced: u64) -> Result<()> {
        self.hoist(&[moments.value], reduced)?;
        let [axis] = self.tiling.axes[..] else {
            return Err(ScheduleError::Internal("a walk along a tile of several axes"));
        };
        let lanes = [axis.extent / self.together()];
        let zero = self.b.constant(Literal::float(Elem::F32, 0.0), &lanes);
        let [first, last, _, step] = self.bounds(axis.var, 0);
        self.moments = Some(moments);
        let mut state = vec![zero, zero];
        let whole = (last - first).max(0) / step;
        if whole > 0 {
            self.whole = true;
            let inside = self.steps(axis.var, [first, last, step], &[], &[], &state);
            self.whole = false;
            state = inside?;
        }
        let seen = (whole * i64::from(self.together())) as f64;
        state.push(self.b.constant(Literal::float(Elem::F32, seen), &lanes));
        let state = self.ends(axis.var, 0, &[], &[], state)?;
        self.moments = None;
        self.finish_moments(moments, &state)
    }

    /// The sums of all lanes.
    fn finish_moments(&mut self, moments: Moments, state: &[Value]) -> Result<()> {
        let &[mean, squares, count] = state else {
            return Err(ScheduleError::Internal("a walk that carries three values"));
        };
        let sums = self.map(ScalarFn::Mul, &[mean, count])?;
        let sum = self.b.reduce(ReduceFn::Sum, sums, 0, None)?;
        let expr = self.reduce_expr(moments.sum)?;
        self.outer.values.insert(expr, sum);
        let of_all = self.value(moments.mean)?;
        let off = self.map(ScalarFn::Sub, &[mean, of_all])?;
        let square = self.map(ScalarFn::Mul, &[off, off])?;
        let moved = self.map(ScalarFn::Mul, &[square, count])?;
        let squares = self.map(ScalarFn::Add, &[squares, moved])?;
        let squares = self.b.reduce(ReduceFn::Sum, squares, 0, None)?;
        let expr = self.reduce_expr(moments.squares)?;
        self.outer.values.insert(expr, squares);
        Ok(())
    }

    /// One step of the walk; outside of the row's inside, elements are masked and lanes count what they have seen.
    pub(super) fn accumulate_moments(&mut self, moments: Moments, state: &[Value]) -> Result<Vec<Value>> {
        let axis = self.tiling.axes[0];
        let value = self.value(moments.value)?;
        let value = self.lift(value, &[axis.extent])?;
        match (self.axis_mask(0)?, state) {
            (None, &[mean, squares]) => self.merge_whole(value, mean, squares),
            (Some(mask), &[mean, squares, count]) => self.merge_masked(value, mask, [mean, squares, count]),
            _ => Err(ScheduleError::Internal("a walk that carries what its masks do not want")),
        }
    }

    fn merge_whole(&mut self, value: Value, mean: Value, squares: Value) -> Result<Vec<Value>> {
        let groups = self.grouped(value)?;
        let together = self.float(f64::from(self.together()));
        let inverse = self.float(1.0 / f64::from(self.together()));
        let sum = self.b.reduce(ReduceFn::Sum, groups, self.grouped_axis(), None)?;
        let middle = self.map(ScalarFn::Mul, &[sum, inverse])?;
        let own = self.squares(groups, middle, None)?;
        // 1 / (steps so far + 1), and what has been seen so far times 4 / (that + 4).
        let steps = self.steps_so_far()?;
        let one = self.float(1.0);
        let next = self.map(ScalarFn::Add, &[steps, one])?;
        let part = self.map(ScalarFn::Div, &[one, next])?;
        let seen = self.map(ScalarFn::Mul, &[steps, together])?;
        let weight = self.map(ScalarFn::Mul, &[seen, part])?;
        self.merge([mean, squares], [middle, own], [part, weight])
    }

    /// Means and squares of the steps before a block and of those in it.
    pub(super) fn merge_block(
        &mut self,
        carried: &[Value],
        parts: &[Value],
        block: Block,
    ) -> Result<Vec<Value>> {
        let (&[mean, squares], &[middle, own]) = (carried, parts) else {
            return Err(ScheduleError::Internal("a block that carries two values"));
        };
        let [first, _, _, step] = self.bounds(self.tiling.axes[0].var, 0);
        let first = self.b.constant(Literal::int(Elem::I32, first), &[]);
        let before = self.steps_between(first, block.first, step)?;
        let within = self.steps_between(block.first, block.end, step)?;
        let both = self.map(ScalarFn::Add, &[before, within])?;
        let part = self.map(ScalarFn::Div, &[within, both])?;
        let together = self.float(f64::from(self.together()));
        let seen = self.map(ScalarFn::Mul, &[before, together])?;
        let weight = self.map(ScalarFn::Mul, &[seen, part])?;
        self.merge([mean, squares], [middle, own], [part, weight])
    }

    fn merge_masked(&mut self, value: Value, mask: Value, state: [Value; 3]) -> Result<Vec<Value>> {
        let [mean, squares, count] = state;
        let (zero, one) = (self.float(0.0), self.float(1.0));
        let value = self.map(ScalarFn::Select, &[mask, value, zero])?;
        let (groups, mask) = (self.grouped(value)?, self.grouped(mask)?);
        let ones = self.map(ScalarFn::Select, &[mask, one, zero])?;
        let new = self.b.reduce(ReduceFn::Sum, ones, self.grouped_axis(), None)?;
        let sum = self.b.reduce(ReduceFn::Sum, groups, self.grouped_axis(), None)?;
        let some = self.map(ScalarFn::Max, &[new, one])?;
        let middle = self.map(ScalarFn::Div, &[sum, some])?;
        let own = self.squares(groups, middle, Some(mask))?;
        let total = self.map(ScalarFn::Add, &[count, new])?;
        let some = self.map(ScalarFn::Max, &[total, one])?;
        let part = self.map(ScalarFn::Div, &[new, some])?;
        let weight = self.map(ScalarFn::Mul, &[count, part])?;
        let mut next = self.merge([mean, squares], [middle, own], [part, weight])?;
        next.push(total);
        Ok(next)
    }

    /// Means and squares of both, where the second has `part` of the elements of both, and `weight` is that times the
    /// elements of the first.
    fn merge(
        &mut self,
        [mean, squares]: [Value; 2],
        [middle, own]: [Value; 2],
        [part, weight]: [Value; 2],
    ) -> Result<Vec<Value>> {
        let delta = self.map(ScalarFn::Sub, &[middle, mean])?;
        let moved = self.map(ScalarFn::Mul, &[delta, part])?;
        let mean = self.map(ScalarFn::Add, &[mean, moved])?;
        // In this order 0 elements weigh nothing, however large the distance is.
        let far = self.map(ScalarFn::Mul, &[delta, weight])?;
        let between = self.map(ScalarFn::Mul, &[far, delta])?;
        let both = self.map(ScalarFn::Add, &[squares, own])?;
        Ok(vec![mean, self.map(ScalarFn::Add, &[both, between])?])
    }

    /// The sum of squared deviations of each group from its mean.
    fn squares(&mut self, groups: Value, middle: Value, mask: Option<Value>) -> Result<Value> {
        let middle = self.b.expand_dims(middle, self.grouped_axis())?;
        let off = self.map(ScalarFn::Sub, &[groups, middle])?;
        let off = match mask {
            Some(mask) => {
                let zero = self.float(0.0);
                self.map(ScalarFn::Select, &[mask, off, zero])?
            }
            None => off,
        };
        let square = self.map(ScalarFn::Mul, &[off, off])?;
        Ok(self.b.reduce(ReduceFn::Sum, square, self.grouped_axis(), None)?)
    }

    /// How many steps inside the row come before the one at hand in the accumulators, `f32`.
    fn steps_so_far(&mut self) -> Result<Value> {
        let axis = self.tiling.axes[0];
        let [first, _, _, step] = self.bounds(axis.var, 0);
        let base =
            self.bases[axis.var.0 as usize].ok_or(ScheduleError::Internal("a step outside of a walk"))?;
        let first = match self.block {
            Some(block) => block.first,
            None => self.b.constant(Literal::int(Elem::I32, first), &[]),
        };
        self.steps_between(first, base, step)
    }

    /// How many steps lie between two indices, `f32`.
    fn steps_between(&mut self, from: Value, to: Value, step: i64) -> Result<Value> {
        let step = self.b.constant(Literal::int(Elem::I32, step), &[]);
        let distance = self.map(ScalarFn::Sub, &[to, from])?;
        let steps = self.map(ScalarFn::DivTrunc, &[distance, step])?;
        Ok(self.b.cast(steps, Elem::F32)?)
    }

    fn float(&mut self, value: f64) -> Value {
        self.b.constant(Literal::float(Elem::F32, value), &[])
    }
}
