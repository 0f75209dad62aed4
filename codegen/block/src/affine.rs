//! What is known of integer values without running a program: a linear form, a range, divisibility.
//!
//! A tile has a *linear form* where
//!
//! ```text
//! value[i, j, ...] = sum of coefficient_k * scalar_k + constant + stride_0 * i + stride_1 * j + ...
//! ```
//!
//! modulo two to the width of its kind, and as integers where the form is [`exact`](Facts::exact): where ranges
//! prove that nothing wraps. Strides may be known along some axes only; then there is no base.
//!
//! ```text
//! %row = program_id 0                    range 0..=2147483647
//! %n = const 1000 : i32                  constant 1000
//! %base = map mul %row, %n               1000 * %row, divisible by 8 (it may wrap)
//! %cols = range 0 1024                   stride 1, range 0..=1023
//! %b = splat %base [1024]                1000 * %row, stride 0
//! %offs = map add %b, %cols              1000 * %row, stride 1
//! %limit = const 1000 : tile<1024xi32>
//! %m = map lt %cols, %limit              prefix of length 1000 along axis 0
//! ```

mod interval;
mod transfer;

use std::ops::Range;

use smallvec::SmallVec;

use crate::program::{Op, OpKind, Program, Region, Value};
use crate::types::{Elem, Literal, Type};

pub use interval::Interval;

/// A linear combination of scalar values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Scalars, each once, with coefficients that are not 0; in the order of the values.
    pub terms: SmallVec<[(Value, i64); 4]>,
    /// What is added to them.
    pub constant: i64,
}

/// What is known of an integer or boolean value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// For each axis the difference between neighbours along it, where that is the same everywhere.
    pub strides: SmallVec<[Option<i64>; 4]>,
    /// The value of the first element; all strides are known where this is.
    pub base: Option<Base>,
    /// Whether the linear form holds for integers and not just modulo two to the width.
    pub exact: bool,
    /// A range that no element leaves.
    pub interval: Interval,
    /// What divides the first element; 0 where that is 0, 1 where nothing is known.
    pub divisible_by: u64,
    /// For booleans: conditions that together are the value. Empty where nothing is known.
    pub prefixes: SmallVec<[Prefix; 2]>,
}

/// A mask that is set where `stride * index < limit`, for the index along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The axis.
    pub axis: usize,
    /// How much the compared value grows along the axis; positive.
    pub stride: i64,
    /// What `stride * index` is below, as an integer of any size.
    pub limit: Base,
}

impl Prefix {
    /// The number of set elements along the axis of `extent` elements, where the limit is a constant.
    pub fn len(&self, extent: u32) -> Option<u32> {
        if !self.limit.terms.is_empty() {
            return None;
        }
        let below =
            (i128::from(self.limit.constant) + i128::from(self.stride) - 1).div_euclid(self.stride.into());
        u32::try_from(below.clamp(0, extent.into())).ok()
    }
}

impl Base {
    fn constant(constant: i64) -> Base {
        Base { terms: SmallVec::new(), constant }
    }

    fn scalar(value: Value) -> Base {
        Base { terms: SmallVec::from_slice(&[(value, 1)]), constant: 0 }
    }

    /// `self + factor * other`, or `None` where a coefficient leaves `i64`.
    pub fn plus(&self, other: &Base, factor: i64) -> Option<Base> {
        let constant = self.constant.checked_add(other.constant.checked_mul(factor)?)?;
        let mut terms = self.terms.clone();
        for &(value, coefficient) in &other.terms {
            let scaled = coefficient.checked_mul(factor)?;
            match terms.iter_mut().find(|t| t.0 == value) {
                Some(term) => term.1 = term.1.checked_add(scaled)?,
                None => terms.push((value, scaled)),
            }
        }
        terms.retain(|t| t.1 != 0);
        terms.sort_unstable();
        Some(Base { terms, constant })
    }
}

impl Facts {
    /// Nothing but the kind's range: a scalar is itself, a tile is unknown.
    fn unknown(value: Value, ty: &Type, elem: Elem) -> Facts {
        Facts {
            strides: ty.shape.iter().map(|&d| (d == 1).then_some(0)).collect(),
            base: (ty.rank() == 0).then(|| Base::scalar(value)),
            exact: true,
            interval: Interval::of(elem),
            divisible_by: 1,
            prefixes: SmallVec::new(),
        }
    }

    /// The number that every element is.
    pub fn constant(&self) -> Option<i64> {
        i64::try_from(self.interval.single()?).ok()
    }

    /// With all that follows where every element is one number.
    fn settled(mut self) -> Facts {
        if let Some(constant) = self.constant() {
            self.base = Some(Base::constant(constant));
            self.strides.iter_mut().for_each(|s| *s = Some(0));
            self.exact = true;
            self.divisible_by = constant.unsigned_abs();
        }
        self
    }

    /// Whether all elements are equal.
    pub fn is_uniform(&self) -> bool {
        self.strides.iter().all(|&s| s == Some(0))
    }
}

/// The facts of a program's integer and boolean values.
pub struct Affine {
    facts: Vec<Option<Facts>>,
}

impl Affine {
    /// Analyses a valid program for any grid.
    pub fn new(program: &Program) -> Affine {
        Affine::for_grid(program, [1 << 31; 3])
    }

    /// Analyses a valid program for grids of at most these extents.
    pub fn for_grid(program: &Program, grid: [u32; 3]) -> Affine {
        Affine::analyse(program, grid, grid.map(|extent| 0..extent), None)
    }

    /// Analyses a valid program for one launch: a grid of exactly these extents, of which it analyses the instances alone whose numbers
    /// along each axis are in `part`, and for each parameter the number that is given for it, if it is one. No promise of the program is
    /// relied on.
    pub fn for_part(
        program: &Program,
        grid: [u32; 3],
        part: [Range<u32>; 3],
        args: &[Option<Literal>],
    ) -> Affine {
        Affine::analyse(program, grid, part, Some(args))
    }

    fn analyse(
        program: &Program,
        grid: [u32; 3],
        part: [Range<u32>; 3],
        launch: Option<&[Option<Literal>]>,
    ) -> Affine {
        let launched = launch.is_some();
        let mut cx = Cx { program, grid, part, launched, facts: vec![None; program.values.len()] };
        let args = launch.unwrap_or_default();
        for (index, param) in program.params.iter().enumerate() {
            cx.set_unknown(param.value);
            if let Some(literal) = args.get(index).copied().flatten() {
                cx.set_known(param.value, literal);
            }
        }
        cx.region(&program.body);
        Affine { facts: cx.facts }
    }

    /// What is known of a value; `None` for floats, pointers and values that nothing defines.
    pub fn get(&self, value: Value) -> Option<&Facts> {
        self.facts.get(value.index())?.as_ref()
    }
}

struct Cx<'a> {
    program: &'a Program,
    grid: [u32; 3],
    /// The instances that are looked at.
    part: [Range<u32>; 3],
    /// Whether this is one launch, of which the grid is known and nothing is promised.
    launched: bool,
    facts: Vec<Option<Facts>>,
}

impl<'a> Cx<'a> {
    fn get(&self, value: Value) -> Option<&Facts> {
        self.facts.get(value.index())?.as_ref()
    }

    fn elem(&self, value: Value) -> Option<Elem> {
        self.program.ty(value).elem().filter(|e| !e.is_float())
    }

    fn set(&mut self, value: Value, facts: Option<Facts>) {
        if let Some(slot) = self.facts.get_mut(value.index()) {
            *slot = facts;
        }
    }

    fn set_unknown(&mut self, value: Value) {
        let ty = self.program.ty(value);
        let facts = self.elem(value).map(|elem| Facts::unknown(value, ty, elem));
        self.set(value, facts);
    }

    fn set_known(&mut self, value: Value, literal: Literal) {
        let Some(elem) = self.elem(value).filter(|&e| e == literal.elem) else { return };
        let facts = Facts::unknown(value, self.program.ty(value), elem);
        let known = if elem == Elem::U64 { literal.bits.into() } else { i128::from(literal.bits as i64) };
        self.set(value, Some(Facts { interval: Interval::point(known), ..facts }.settled()));
    }

    fn region(&mut self, region: &'a Region) {
        for op in &region.ops {
            for inner in &op.regions {
                inner.args.iter().for_each(|&v| self.set_unknown(v));
                if op.kind == OpKind::For {
                    self.induction(op, inner);
                }
                self.region(inner);
            }
            for &result in &op.results {
                self.set_unknown(result);
            }
            if let (Some(&result), true) = (op.results.first(), op.regions.is_empty()) {
                self.result(op, result);
            }
        }
    }

    /// The induction variable lies between the bounds, and starts and steps by multiples of what divides both.
    fn induction(&mut self, op: &Op, region: &Region) {
        let facts = |index: usize| op.args.get(index).and_then(|&v| self.get(v));
        let (Some(lo), Some(hi), Some(step)) = (facts(0), facts(1), facts(2)) else { return };
        let mut interval = lo.interval.up_to(&hi.interval);
        // The last value below the end is as many steps from the first as fit.
        if let (Some(first), Some(by)) = (lo.interval.single(), step.interval.single())
            && by > 0
            && interval.hi > first
        {
            interval.hi = first + (interval.hi - first) / by * by;
        }
        let divisible_by = num_integer::gcd(lo.divisible_by, step.divisible_by);
        let Some(&value) = region.args.first() else { return };
        if let Some(Some(facts)) = self.facts.get_mut(value.index()) {
            facts.interval = interval;
            facts.divisible_by = divisible_by;
        }
    }

    fn result(&mut self, op: &Op, result: Value) {
        let Some(elem) = self.elem(result) else { return };
        let Some(mut facts) = self.transfer(op, result, elem) else { return };
        if facts.is_uniform() && facts.base.is_none() && facts.strides.is_empty() {
            facts.base = Some(Base::scalar(result));
            facts.exact = true;
        }
        self.set(result, Some(facts.settled()));
    }
}

#[cfg(test)]
mod tests;
