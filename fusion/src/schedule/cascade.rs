//! Cascade summation: a long loop that accumulates is cut into blocks with accumulators of their own. The error of a sum
//! grows with the steps that one accumulator takes, and so does with their square root at most.
//!
//! ```text
//! for first in 0..1000 step 64, with the sum so far:
//!   for i in first..min(first + 64, 1000), with a sum that begins at 0:
//!     add element i
//!   add that sum to the sum so far
//! ```
//!
//! Of loops in loops, the inner ones have accumulators of their own: on a processor always, and on a GPU, where each takes
//! registers, where an accumulator would take more than [`MAX_CHAIN`] steps.

use tilefuse_block::{Elem, Literal, ScalarFn, Value};

use super::accumulate::Accumulator;
use super::emit::Emitter;
use super::error::Result;
use crate::index::Var;
use crate::taken::taken;

/// Most steps that one accumulator takes, where the square root of all is not more.
pub(super) const MAX_CHAIN: i64 = 64;

impl Emitter<'_> {
    /// A loop that accumulates, given as the first index, the end and the distance: in blocks where it is long.
    pub(super) fn accumulating(
        &mut self,
        [lo, hi, by]: [i64; 3],
        reduces: &[Accumulator],
        carried: &[Value],
        body: impl FnOnce(&mut Self, Value, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let steps = steps_of_block(trips(hi - lo, by)).filter(|_| !reduces.is_empty());
        let ragged = steps.is_some_and(|steps| (hi - lo) % (by * steps) != 0);
        let [lo, hi, step] = [lo, hi, by].map(|n| self.number(n));
        let Some(steps) = steps else { return self.counted((lo, hi, step), carried, body) };
        taken!("cascade");
        let size = self.number(by * steps);
        self.counted((lo, hi, size), carried, |this, first, carried| {
            let start = this.fresh_like(reduces, carried)?;
            let mut end = this.map(ScalarFn::Add, &[first, size])?;
            if ragged {
                end = this.map(ScalarFn::Min, &[end, hi])?;
            }
            let parts = this.counted((first, end, step), &start, body)?;
            this.all_combined(reduces, carried, &parts)
        })
    }

    /// What `part` accumulates: starting anew, to be combined with what is carried, where that is `alone`.
    pub(super) fn accumulate_partially(
        &mut self,
        reduces: &[Accumulator],
        carried: &[Value],
        alone: bool,
        part: impl FnOnce(&mut Self, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        if !alone {
            return part(self, carried);
        }
        taken!("accumulators of an inner loop");
        let start = self.fresh_like(reduces, carried)?;
        let parts = part(self, &start)?;
        self.all_combined(reduces, carried, &parts)
    }

    /// Whether the loops `rest` have accumulators of their own in each iteration of the loop over `var`.
    pub(super) fn starts_anew(&self, var: Var, rest: &[Var]) -> bool {
        let each = self.chain(rest);
        !rest.is_empty() && (!self.machine.is_gpu() || each > 1 && each * self.trips_of(var) > MAX_CHAIN)
    }

    /// The steps that one accumulator takes in a nest of loops, after those that have accumulators of their own.
    fn chain(&self, loops: &[Var]) -> i64 {
        let Some((&var, rest)) = loops.split_first() else { return 1 };
        let trips = self.trips_of(var);
        match steps_of_block(trips) {
            Some(steps) => (trips + steps - 1) / steps,
            None if self.starts_anew(var, rest) => trips,
            None => trips * self.chain(rest),
        }
    }

    fn trips_of(&self, var: Var) -> i64 {
        let step = self.tiling.axis_of(var).map_or(1, |a| i64::from(self.tiling.axes[a].extent));
        trips(self.kernel.indices.extents()[var.0 as usize], step)
    }

    /// Nothing combined yet, in the shapes of what is carried: members that differ by lanes there do so here.
    fn fresh_like(&mut self, reduces: &[Accumulator], carried: &[Value]) -> Result<Vec<Value>> {
        let start = self.fresh(reduces)?;
        let alike = start.iter().zip(carried).all(|(&a, &b)| self.b.ty(a) == self.b.ty(b));
        if alike { Ok(start) } else { self.widened(reduces, &start) }
    }

    /// What is carried, combined with what a part accumulated.
    fn all_combined(
        &mut self,
        reduces: &[Accumulator],
        carried: &[Value],
        parts: &[Value],
    ) -> Result<Vec<Value>> {
        let pairs = self.parts_of(reduces, carried).into_iter().zip(self.parts_of(reduces, parts));
        let mut next = Vec::with_capacity(carried.len());
        for ((reduce, so_far), (_, part)) in pairs {
            next.extend(self.combined(reduce, so_far, part)?);
        }
        Ok(next)
    }

    fn number(&mut self, n: i64) -> Value {
        self.b.constant(Literal::int(Elem::I32, n), &[])
    }
}

fn trips(extent: i64, step: i64) -> i64 {
    (extent + step - 1) / step
}

/// How many steps of a long loop are a block: about as many as there are blocks then.
fn steps_of_block(trips: i64) -> Option<i64> {
    let root = (trips as f64).sqrt() as u64;
    (trips > MAX_CHAIN).then(|| MAX_CHAIN.max(root.next_power_of_two() as i64))
}
