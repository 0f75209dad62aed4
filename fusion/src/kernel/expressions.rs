//! Expressions of kernels as operations of a block program.

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ScalarFn, Value};

use super::{Dynamic, KExpr, KNode, Kernel};
use crate::index::{Atom, Expr, Linear, Var};
use crate::types::fits_i32;

/// What computes the expressions of a kernel at the points of a tile. It says what variables are there, how memory is read, and
/// what has been computed; operands of different shapes are broadcast where they meet.
pub(crate) trait Expressions<'k> {
    /// Why an operation is not emitted.
    type Error;

    /// The kernel.
    fn kernel(&self) -> &'k Kernel;

    /// An expression, computed once where it is valid.
    fn value(&mut self, expr: KExpr) -> Result<Value, Self::Error>;

    /// The index of a variable, as the sum of values of a kind.
    fn variable(&mut self, var: Var, elem: Elem) -> Result<SmallVec<[Value; 2]>, Self::Error>;

    /// More than any index of a variable, of elements that are masked off too.
    fn end(&self, var: Var) -> u64;

    /// The element of a buffer.
    fn load(
        &mut self,
        buffer: u32,
        addr: Expr,
        dynamic: Option<Dynamic>,
        mask: Option<KExpr>,
    ) -> Result<Value, Self::Error>;

    /// The result of a reduction.
    fn reduce(&mut self, position: u32) -> Result<Value, Self::Error>;

    /// A literal, which may be of fewer elements than what it meets.
    fn literal(&mut self, literal: Literal) -> Value;

    /// A scalar function.
    fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value, Self::Error>;

    /// A value as one of a kind.
    fn cast(&mut self, value: Value, elem: Elem) -> Result<Value, Self::Error>;

    /// The kind of a value.
    fn elem(&self, value: Value) -> Elem;

    /// Whether a value is a single element.
    fn is_scalar(&self, value: Value) -> bool;

    /// An index that was computed as this kind.
    fn known_index(&self, expr: Expr, elem: Elem) -> Option<Value>;

    /// Says that an index was computed.
    fn remember_index(&mut self, expr: Expr, elem: Elem, value: Value);

    /// What has been computed of an index's terms in another way, which are taken from it.
    fn take_row(&mut self, _: &mut Linear, _: Elem) -> Result<Option<Value>, Self::Error> {
        Ok(None)
    }

    /// An expression from those that it is made of.
    fn compute(&mut self, expr: KExpr) -> Result<Value, Self::Error> {
        match self.kernel().node(expr) {
            KNode::Const(literal) => Ok(self.literal(*literal)),
            KNode::Index(index, elem) => {
                let value = self.index(*index)?;
                self.cast(value, *elem)
            }
            KNode::InRange(index, low, high) => self.in_range(*index, *low, *high),
            KNode::Load { buffer, addr, dynamic, mask } => self.load(*buffer, *addr, *dynamic, *mask),
            KNode::Map(function, args) => {
                let mut values: SmallVec<[Value; 3]> = SmallVec::new();
                for &arg in args {
                    values.push(self.value(arg)?);
                }
                self.map(*function, &values)
            }
            KNode::Cast(inner, elem) => {
                let value = self.value(*inner)?;
                self.cast(value, *elem)
            }
            KNode::Reduce(position) => self.reduce(*position),
        }
    }

    /// Whether an index is in a range, of which only those ends are tested that it may be past.
    fn in_range(&mut self, expr: Expr, low: i64, high: i64) -> Result<Value, Self::Error> {
        let (least, most) = self.kernel().indices.range(expr);
        let value = self.index(expr)?;
        let elem = self.elem(value);
        let mut test = None;
        for (function, bound, needed) in
            [(ScalarFn::Ge, low, least < low), (ScalarFn::Lt, high, most >= high)]
        {
            if needed {
                let bound = self.literal(Literal::int(elem, bound));
                let part = self.map(function, &[value, bound])?;
                test = Some(match test {
                    Some(other) => self.map(ScalarFn::And, &[other, part])?,
                    None => part,
                });
            }
        }
        Ok(test.unwrap_or_else(|| self.literal(Literal::int(Elem::Bool, 1))))
    }

    /// An index expression as a value: `i32` where every partial result fits, else `i64`.
    fn index(&mut self, expr: Expr) -> Result<Value, Self::Error> {
        let elem = if self.fits_i32(expr) { Elem::I32 } else { Elem::I64 };
        self.index_as(expr, elem)
    }

    /// Whether every partial result of an index fits 32 bits.
    fn fits_i32(&self, expr: Expr) -> bool {
        let indices = &self.kernel().indices;
        let linear = indices.linear(expr);
        let largest = |expr: Expr| {
            let (low, high) = indices.range(expr);
            low.unsigned_abs().max(high.unsigned_abs())
        };
        let bound = linear.terms.iter().fold(linear.constant.unsigned_abs(), |sum, &(atom, c)| {
            let past_end = match atom {
                Atom::Var(v) => self.end(v),
                Atom::Div(e, d) => largest(e) / d.unsigned_abs() + 1,
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

    /// An index expression as a value of a kind.
    fn index_as(&mut self, expr: Expr, elem: Elem) -> Result<Value, Self::Error> {
        if let Some(known) = self.known_index(expr, elem) {
            return Ok(known);
        }
        let mut linear = self.kernel().indices.linear(expr).clone();
        // The sums of scalars and of tiles: scalars are added where there is one of each.
        let mut sums = [self.take_row(&mut linear, elem)?, None];
        for &(atom, c) in &linear.terms {
            for part in self.atom_parts(atom, elem)? {
                let scaled = self.times(part, c, elem)?;
                self.add(&mut sums, scaled)?;
            }
        }
        if linear.constant != 0 {
            let constant = self.literal(Literal::int(elem, linear.constant));
            self.add(&mut sums, constant)?;
        }
        let value = match sums {
            [Some(scalar), Some(tile)] => self.map(ScalarFn::Add, &[scalar, tile])?,
            [Some(one), None] | [None, Some(one)] => one,
            [None, None] => self.literal(Literal::int(elem, 0)),
        };
        self.remember_index(expr, elem, value);
        Ok(value)
    }

    /// Adds a value to the sum of scalars or to that of tiles.
    fn add(&mut self, sums: &mut [Option<Value>; 2], part: Value) -> Result<(), Self::Error> {
        let so_far = sums[usize::from(!self.is_scalar(part))].take();
        let next = match so_far {
            Some(other) => self.map(ScalarFn::Add, &[other, part])?,
            None => part,
        };
        sums[usize::from(!self.is_scalar(next))] = Some(next);
        Ok(())
    }

    /// A value times a factor.
    fn times(&mut self, value: Value, factor: i64, elem: Elem) -> Result<Value, Self::Error> {
        if factor == 1 {
            return Ok(value);
        }
        let factor = self.literal(Literal::int(elem, factor));
        self.map(ScalarFn::Mul, &[value, factor])
    }

    /// An atom as the sum of values of a kind.
    fn atom_parts(&mut self, atom: Atom, elem: Elem) -> Result<SmallVec<[Value; 2]>, Self::Error> {
        let (inner, divisor, functions) = match atom {
            Atom::Var(var) => return self.variable(var, elem),
            Atom::Div(inner, d) => (inner, d, [ScalarFn::DivTrunc, ScalarFn::DivFloor]),
            Atom::Mod(inner, d) => (inner, d, [ScalarFn::RemTrunc, ScalarFn::RemFloor]),
        };
        let negative = self.kernel().indices.range(inner).0 < 0;
        let value = self.index_as(inner, elem)?;
        let divisor = self.literal(Literal::int(elem, divisor));
        let quotient = self.map(functions[usize::from(negative)], &[value, divisor])?;
        Ok(SmallVec::from_slice(&[quotient]))
    }
}
