//! Rows that begin at any address, and loops whose ends alone are masked.
//!
//! Where a row's first element is at no multiple of 16 bytes, the instance begins its walk at the last multiple
//! before it. All accesses of the row are aligned then, and what they touch outside of it is masked off:
//!
//! ```text
//! %start = map mul %row, %stride
//! %group = map div_trunc %start, %eight
//! %aligned = map mul %group, %eight          the multiple of 8 elements before the row
//! %peel = map sub %start, %aligned           elements between it and the row
//! ```

use tilefuse_block::{Elem, Literal, ScalarFn, Value};

use super::accumulate::Accumulator;
use super::emit::{Emitter, Start};
use super::error::Result;
use crate::index::{Atom, Linear, Var};
use crate::kernel::Expressions;
use crate::taken::taken;

impl Emitter<'_> {
    /// Finds where the row begins, if the tiling peels.
    pub(super) fn place_row(&mut self) -> Result<()> {
        let Some(peel) = self.tiling.peel else { return Ok(()) };
        taken!("peeled rows");
        let elem = if self.fits_i32(peel.addr) { Elem::I32 } else { Elem::I64 };
        let mut row = self.kernel.indices.linear(peel.addr).clone();
        row.terms.retain(|(atom, _)| *atom != Atom::Var(peel.var));
        let mut start = self.b.constant(Literal::int(elem, row.constant), &[]);
        for &(atom, factor) in &row.terms {
            for part in self.atom_parts(atom, elem)? {
                let scaled = self.times(part, factor, elem)?;
                start = self.map(ScalarFn::Add, &[start, scaled])?;
            }
        }
        let group = self.b.constant(Literal::int(elem, i64::from(peel.group)), &[]);
        // A row that begins with padding starts before its first element in memory.
        let nonnegative = self.kernel.indices.range_of(&row).0 >= 0;
        let function = if nonnegative { ScalarFn::DivTrunc } else { ScalarFn::DivFloor };
        let groups = self.map(function, &[start, group])?;
        let aligned = self.map(ScalarFn::Mul, &[groups, group])?;
        let first = self.map(ScalarFn::Sub, &[aligned, start])?;
        let first = self.b.cast(first, Elem::I32)?;
        self.start = Some(Start { var: peel.var, row, elem, aligned, first });
        Ok(())
    }

    /// The first index of a variable in this instance or iteration; `None` is 0.
    pub(super) fn first(&mut self, var: Var) -> Result<Option<Value>> {
        let base = self.bases[var.0 as usize];
        match (&self.start, base) {
            (Some(start), base) if start.var == var => {
                let first = start.first;
                match base {
                    Some(base) => Ok(Some(self.map(ScalarFn::Add, &[base, first])?)),
                    None => Ok(Some(first)),
                }
            }
            _ => Ok(base),
        }
    }

    /// Takes the terms of an address in the row out of it, and returns the aligned start that stands for them.
    pub(super) fn take_row(&mut self, linear: &mut Linear, elem: Elem) -> Result<Option<Value>> {
        let Some(start) = self.start.clone().filter(|s| s.elem == elem) else { return Ok(None) };
        let own = |&(atom, c): &(Atom, i64)| atom == Atom::Var(start.var) && c == 1;
        let rest = linear.terms.iter().filter(|t| !own(t));
        let same = linear.terms.iter().any(own)
            && linear.constant == start.row.constant
            && rest.eq(start.row.terms.iter());
        if !same {
            return Ok(None);
        }
        *linear = Linear { terms: smallvec::SmallVec::new(), constant: 0 };
        let mut scalar = start.aligned;
        if let Some(base) = self.bases[start.var.0 as usize] {
            let base = self.b.cast(base, elem)?;
            scalar = self.map(ScalarFn::Add, &[scalar, base])?;
        }
        match self.range_of(start.var)? {
            Some(range) => {
                let range = self.b.cast(range, elem)?;
                Ok(Some(self.map(ScalarFn::Add, &[scalar, range])?))
            }
            None => Ok(Some(scalar)),
        }
    }

    /// Walks a variable in steps of its axis; only steps that may reach outside of the variable are masked.
    pub(super) fn walk(
        &mut self,
        var: Var,
        axis: usize,
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        let [first, last, end, step] = self.bounds(var, axis);
        if last - first < 2 * step {
            let carried = match self.may_mask(axis) {
                true => self.widened(reduces, carried)?,
                false => carried.to_vec(),
            };
            return self.steps(var, [0, end, step], reduces, stores, &carried);
        }
        self.whole = true;
        let inside = self.steps(var, [first, last, step], reduces, stores, carried);
        self.whole = false;
        let mut carried = inside?;
        if first > 0 || last < end {
            carried = self.widened(reduces, &carried)?;
        }
        self.ends(var, axis, reduces, stores, carried)
    }

    /// The steps of a walk that may reach outside of the variable: where there are two in a block of many threads, in a
    /// loop of their own, so that they do not share its few registers.
    pub(super) fn ends(
        &mut self,
        var: Var,
        axis: usize,
        reduces: &[Accumulator],
        stores: &[usize],
        mut carried: Vec<Value>,
    ) -> Result<Vec<Value>> {
        let [first, last, end, step] = self.bounds(var, axis);
        if first == step && last >= step && end - last <= step && self.tiling.warps > 8 {
            return self.steps(var, [0, last + 1, last], reduces, stores, &carried);
        }
        let last = last.max(first);
        for base in (0..first).step_by(step as usize).chain((last..end).step_by(step as usize)) {
            carried = self.one_step(var, base, reduces, stores, &carried)?;
        }
        Ok(carried)
    }

    /// Where the steps of a walk along an axis that are inside of the variable begin and end, where all end, and how
    /// long they are.
    pub(super) fn bounds(&self, var: Var, axis: usize) -> [i64; 4] {
        let extent = self.kernel.indices.extents()[var.0 as usize];
        let step = i64::from(self.tiling.axes[axis].extent);
        let before = self.tiling.peel.filter(|l| l.var == var).map_or(0, |l| i64::from(l.group) - 1);
        [if before > 0 { step } else { 0 }, extent / step * step, extent + before, step]
    }

    /// A loop over the first indices of steps, given as the first, the end and the distance.
    pub(super) fn steps(
        &mut self,
        var: Var,
        bounds: [i64; 3],
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        self.accumulating(bounds, reduces, carried, |this, index, carried| {
            this.step(var, index, &[], reduces, stores, carried)
        })
    }

    /// One step of a walk, outside of a loop.
    pub(super) fn one_step(
        &mut self,
        var: Var,
        base: i64,
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        let first = self.b.constant(Literal::int(Elem::I32, base), &[]);
        self.step(var, first, &[], reduces, stores, carried)
    }
}
