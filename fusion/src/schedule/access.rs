//! Loads and stores: their addresses, the masks of elements that are not there, and checks of indices that are data.

use smallvec::SmallVec;
use tilefuse_block::{CacheHint, Elem, Literal, ScalarFn, Value};

use super::emit::Emitter;
use super::error::Result;
use crate::index::Expr;
use crate::kernel::{Dynamic, Expressions, KExpr};

impl Emitter<'_> {
    pub(super) fn load(
        &mut self,
        buffer: u32,
        addr: Expr,
        dynamic: Option<Dynamic>,
        mask: Option<KExpr>,
    ) -> Result<Value> {
        let mut offsets = self.index(addr)?;
        let mut mask = match mask {
            Some(mask) => Some(self.value(mask)?),
            None => None,
        };
        if let Some(d) = dynamic {
            let (further, inside) = self.dynamic(d)?;
            self.check(inside, mask)?;
            let wide = self.b.cast(offsets, Elem::I64)?;
            offsets = self.map(ScalarFn::Add, &[wide, further])?;
            mask = self.and(mask, Some(inside))?;
        }
        let parts: SmallVec<[Value; 2]> = [offsets].into_iter().chain(mask).collect();
        let shape = self.union(&parts);
        let tail = self.tail_mask(&shape)?;
        let mask = self.and(mask, tail)?;
        let parts: SmallVec<[Value; 2]> = [offsets].into_iter().chain(mask).collect();
        let shape = self.union(&parts);
        let offsets = self.lift(offsets, &shape)?;
        let mask = match mask {
            Some(mask) => Some(self.lift(mask, &shape)?),
            None => None,
        };
        let early = self.machine.starts_early(self.tiling.grid(self.kernel));
        let hint = match early && self.kernel.buffers[buffer as usize].fixed {
            true => CacheHint::Ahead,
            false => CacheHint::Default,
        };
        Ok(self.b.load(self.pointers[buffer as usize], offsets, mask, None, hint)?)
    }

    pub(super) fn store(&mut self, position: usize) -> Result<()> {
        let loc = self.kernel.info(self.kernel.stores[position].value).loc;
        self.at(loc, |this| this.store_here(position))
    }

    fn store_here(&mut self, position: usize) -> Result<()> {
        let store = &self.kernel.stores[position];
        let (buffer, addr, expr) = (store.buffer, store.addr, store.value);
        let elem = self.kernel.buffers[buffer as usize].elem;
        let value = self.value(expr)?;
        let offsets = self.index(addr)?;
        let shape = self.union(&[value, offsets]);
        let mask = self.tail_mask(&shape)?;
        let value = self.b.cast(value, elem)?;
        let value = self.lift(value, &shape)?;
        let offsets = self.lift(offsets, &shape)?;
        let mask = match mask {
            Some(mask) => Some(self.lift(mask, &shape)?),
            None => None,
        };
        Ok(self.b.store(self.pointers[buffer as usize], offsets, value, mask, CacheHint::Default)?)
    }

    /// Reports elements that are read and whose index is out of range.
    fn check(&mut self, inside: Value, mask: Option<Value>) -> Result<()> {
        let Some(status) = self.status.filter(|_| self.checked.insert((inside, mask))) else { return Ok(()) };
        let outside = self.map(ScalarFn::Not, &[inside])?;
        let wrong = self.and(Some(outside), mask)?.unwrap_or(outside);
        let shape = self.b.ty(wrong).shape.clone();
        let tail = self.tail_mask(&shape)?;
        let wrong = self.and(Some(wrong), tail)?.unwrap_or(wrong);
        let shape = self.b.ty(wrong).shape.clone();
        let (first, one) = (Literal::int(Elem::I32, 0), Literal::int(Elem::I32, 1));
        let (first, one) = (self.b.constant(first, &shape), self.b.constant(one, &shape));
        Ok(self.b.store(status, first, one, Some(wrong), CacheHint::Default)?)
    }

    /// The data-dependent part of an address, and where it is inside its bounds.
    fn dynamic(&mut self, dynamic: Dynamic) -> Result<(Value, Value)> {
        let index = self.value(dynamic.index)?;
        let index = self.b.cast(index, Elem::I64)?;
        let zero = self.b.constant(Literal::int(Elem::I64, 0), &[]);
        let bound = self.b.constant(Literal::int(Elem::I64, dynamic.bound), &[]);
        let above = self.map(ScalarFn::Ge, &[index, zero])?;
        let below = self.map(ScalarFn::Lt, &[index, bound])?;
        let inside = self.map(ScalarFn::And, &[above, below])?;
        let stride = self.b.constant(Literal::int(Elem::I64, dynamic.stride), &[]);
        Ok((self.map(ScalarFn::Mul, &[index, stride])?, inside))
    }

    /// The mask of elements past the end of a variable, for a value of this shape.
    pub(super) fn tail_mask(&mut self, shape: &[u32]) -> Result<Option<Value>> {
        let mut mask = None;
        for (axis, &extent) in shape.iter().enumerate() {
            if extent > 1 {
                let part = self.axis_mask(axis)?;
                mask = self.and(mask, part)?;
            }
        }
        Ok(mask)
    }

    /// Whether an axis of the tile may reach outside of its variable.
    pub(super) fn may_mask(&self, axis: usize) -> bool {
        let a = self.tiling.axes[axis];
        let extent = self.kernel.indices.extents()[a.var.0 as usize];
        self.tiling.peel.is_some_and(|l| l.var == a.var) || extent % i64::from(a.extent) != 0
    }

    /// Where an axis of the tile is inside its variable; `None` where it always is.
    pub(super) fn axis_mask(&mut self, axis: usize) -> Result<Option<Value>> {
        let a = self.tiling.axes[axis];
        let extent = self.kernel.indices.extents()[a.var.0 as usize];
        let peel = self.tiling.peel.is_some_and(|l| l.var == a.var);
        if !self.may_mask(axis) || (self.whole && self.walked_axis() == Some(axis)) {
            return Ok(None);
        }
        let inner = self.in_loop && self.kernel.reduced[a.var.0 as usize];
        let memo = if inner { &self.inner } else { &self.outer };
        if let Some(&known) = memo.masks.get(&axis) {
            return Ok(Some(known));
        }
        let mut index = self.var_value(a.var)?;
        // What lies before the first element is far beyond the last one as an unsigned number.
        let elem = if peel { Elem::U32 } else { Elem::I32 };
        index = self.b.cast(index, elem)?;
        let bound = self.b.constant(Literal::int(elem, extent), &[]);
        let mask = self.map(ScalarFn::Lt, &[index, bound])?;
        if inner {
            self.inner.masks.insert(axis, mask);
        } else if !self.in_loop {
            self.outer.masks.insert(axis, mask);
        }
        Ok(Some(mask))
    }

    fn and(&mut self, a: Option<Value>, b: Option<Value>) -> Result<Option<Value>> {
        let (Some(x), Some(y)) = (a, b) else { return Ok(a.or(b)) };
        if x == y {
            return Ok(a);
        }
        Ok(Some(self.map(ScalarFn::And, &[x, y])?))
    }
}
