//! Index expressions as values.

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ScalarFn, Value};

use super::emit::Emitter;
use super::error::{Result, ScheduleError};
use crate::index::{Atom, Expr};
use crate::types::fits_i32;

impl Emitter<'_> {
    /// An index expression as a value: `i32` where every partial result fits, else `i64`.
    pub(super) fn index(&mut self, expr: Expr) -> Result<Value> {
        let elem = if self.fits_i32(expr) { Elem::I32 } else { Elem::I64 };
        self.index_as(expr, elem)
    }

    pub(super) fn fits_i32(&self, expr: Expr) -> bool {
        let linear = self.kernel.indices.linear(expr);
        let bound = linear.terms.iter().fold(linear.constant.unsigned_abs(), |sum, &(atom, c)| {
            let past_end = match atom {
                Atom::Var(v) => {
                    let step = self.tiling.axis_of(v).map_or(1, |a| u64::from(self.tiling.axes[a].extent));
                    self.kernel.indices.extents()[v.0 as usize] as u64 + step
                }
                Atom::Div(e, d) => self.largest(e) / d.unsigned_abs() + 1,
                Atom::Mod(_, d) => d.unsigned_abs(),
            };
            sum.saturating_add(c.unsigned_abs().saturating_mul(past_end))
        });
        let inner = linear.terms.iter().all(|&(atom, _)| match atom {
            Atom::Var(_) => true,
            Atom::Div(e, _) | Atom::Mod(e, _) => self.fits_i32(e),
        });
        inner && fits_i32(bound)
    }

    fn largest(&self, expr: Expr) -> u64 {
        let (low, high) = self.kernel.indices.range(expr);
        low.unsigned_abs().max(high.unsigned_abs())
    }

    pub(super) fn index_as(&mut self, expr: Expr, elem: Elem) -> Result<Value> {
        let key = (expr, elem);
        if let Some(&known) = self.outer.indices.get(&key).or_else(|| self.inner.indices.get(&key)) {
            return Ok(known);
        }
        let mut linear = self.kernel.indices.linear(expr).clone();
        let mut tile: Option<Value> = None;
        let mut scalar: Option<Value> = self.take_row(&mut linear, elem)?;
        for &(atom, c) in &linear.terms {
            for part in self.atom_parts(atom, elem)? {
                let scaled = self.times(part, c, elem)?;
                let sum = if self.b.ty(scaled).rank() == 0 { &mut scalar } else { &mut tile };
                let so_far = sum.take();
                let next = match so_far {
                    Some(other) => self.map(ScalarFn::Add, &[other, scaled])?,
                    None => scaled,
                };
                if self.b.ty(next).rank() == 0 { scalar = Some(next) } else { tile = Some(next) }
            }
        }
        if linear.constant != 0 || (scalar.is_none() && tile.is_none()) {
            let constant = self.b.constant(Literal::int(elem, linear.constant), &[]);
            scalar = Some(match scalar {
                Some(other) => self.map(ScalarFn::Add, &[other, constant])?,
                None => constant,
            });
        }
        let value = match (scalar, tile) {
            (Some(s), Some(t)) => self.map(ScalarFn::Add, &[s, t])?,
            (one, other) => one.or(other).ok_or(ScheduleError::Internal("an empty index"))?,
        };
        let memo = if self.in_loop { &mut self.inner } else { &mut self.outer };
        memo.indices.insert(key, value);
        Ok(value)
    }

    pub(super) fn times(&mut self, value: Value, factor: i64, elem: Elem) -> Result<Value> {
        if factor == 1 {
            return Ok(value);
        }
        let factor = self.b.constant(Literal::int(elem, factor), &[]);
        self.map(ScalarFn::Mul, &[value, factor])
    }

    /// An atom as a sum of a scalar and a tile, of kind `elem`.
    pub(super) fn atom_parts(&mut self, atom: Atom, elem: Elem) -> Result<SmallVec<[Value; 2]>> {
        let mut parts = SmallVec::new();
        match atom {
            Atom::Var(var) => {
                let range = self.range_of(var)?;
                for part in self.first(var)?.into_iter().chain(range) {
                    parts.push(self.b.cast(part, elem)?);
                }
            }
            Atom::Div(inner, d) => parts.push(self.quotient(inner, d, elem, true)?),
            Atom::Mod(inner, d) => parts.push(self.quotient(inner, d, elem, false)?),
        }
        Ok(parts)
    }

    fn quotient(&mut self, inner: Expr, divisor: i64, elem: Elem, whole: bool) -> Result<Value> {
        let nonnegative = self.kernel.indices.range(inner).0 >= 0;
        let value = self.index_as(inner, elem)?;
        let divisor = self.b.constant(Literal::int(elem, divisor), &[]);
        let function = match (whole, nonnegative) {
            (true, true) => ScalarFn::DivTrunc,
            (true, false) => ScalarFn::DivFloor,
            (false, true) => ScalarFn::RemTrunc,
            (false, false) => ScalarFn::RemFloor,
        };
        self.map(function, &[value, divisor])
    }
}
