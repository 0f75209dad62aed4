//! Integers of a program that are linear in the indices of their tile, in scalars, and in places that a row's number stands for.
//!
//! ```text
//! %row = map add %first, %lane          first + lane
//! %x = map rem_trunc %row, 28           (first + lane) % 28
//! %above = map div_trunc %row, 28
//! %y = map rem_trunc %above, 28         ((first + lane) / 28) % 28
//! ```

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{Assumption, Elem, Op, OpKind, ScalarFn, Shape, Value};

use super::NO_END;
use crate::ptx::assign::Assignment;

/// A sum of scalars, each times a factor, and a constant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) terms: SmallVec<[(Value, i64); 4]>,
    pub(super) constant: i64,
}

impl Sum {
    pub(super) fn add(&mut self, other: &Sum, factor: i64) -> Option<()> {
        for &(value, by) in &other.terms {
            let by = by.checked_mul(factor)?;
            match self.terms.iter_mut().find(|term| term.0 == value) {
                Some(term) => term.1 = term.1.checked_add(by)?,
                None => self.terms.push((value, by)),
            }
        }
        self.terms.retain(|term| term.1 != 0);
        self.constant = self.constant.checked_add(other.constant.checked_mul(factor)?)?;
        Some(())
    }

    /// The scalars that it is a sum of.
    pub(super) fn scalars(&self) -> impl Iterator<Item = Value> {
        self.terms.iter().map(|term| term.0)
    }
}

/// One of the places that a number stands for: `(number / below) % count`, without a remainder where there is no count. The number is
/// `first` and the index along an axis of the tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) axis: usize,
    pub(super) first: Sum,
    pub(super) below: i64,
    pub(super) count: Option<i64>,
}

/// An integer tile that is linear in its indices and in places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Linear {
    /// What an index along each axis adds.
    pub(super) slopes: SmallVec<[i64; 4]>,
    /// Places, each times a factor.
    pub(super) places: SmallVec<[(Place, i64); 2]>,
    pub(super) start: Sum,
    /// What parameters multiply, each with a factor of its own.
    pub(super) rows: SmallVec<[Rows; 1]>,
}

/// Rows at a distance that is known when the kernel is launched: a number of them times a parameter and a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The distance.
    pub(super) pitch: Pitch,
    /// The number of rows: what an index along each axis adds, and the rest.
    pub(super) slopes: SmallVec<[i64; 4]>,
    pub(super) start: Sum,
}

/// A parameter, times a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pitch {
    /// The parameter's position: an `i64`.
    pub(super) param: usize,
    /// Positive.
    pub(super) factor: i64,
    /// What divides the parameter.
    pub(super) divisor: u64,
}

impl Rows {
    fn add(&mut self, other: &Rows, factor: i64) -> Option<()> {
        add_slopes(&mut self.slopes, &other.slopes, factor)?;
        self.start.add(&other.start, factor)
    }
}

fn add_slopes(slopes: &mut [i64], others: &[i64], factor: i64) -> Option<()> {
    for (slope, other) in slopes.iter_mut().zip(others) {
        *slope = slope.checked_add(other.checked_mul(factor)?)?;
    }
    Some(())
}

impl Linear {
    fn flat(rank: usize, start: Sum) -> Linear {
        let slopes = SmallVec::from_elem(0, rank);
        Linear { slopes, places: SmallVec::new(), start, rows: SmallVec::new() }
    }

    fn add(mut self, other: &Linear, factor: i64) -> Option<Linear> {
        add_slopes(&mut self.slopes, &other.slopes, factor)?;
        for rows in other.rows.iter().filter(|_| factor != 0) {
            let factor_of_pitch = rows.pitch.factor.checked_mul(factor.checked_abs()?)?;
            let pitch = Pitch { factor: factor_of_pitch, ..rows.pitch };
            match self.rows.iter_mut().find(|own| own.pitch == pitch) {
                Some(own) => own.add(rows, factor.signum())?,
                None => {
                    let slopes = SmallVec::from_elem(0, rows.slopes.len());
                    let mut own = Rows { pitch, slopes, start: Sum::default() };
                    own.add(rows, factor.signum())?;
                    self.rows.push(own);
                }
            }
        }
        for (place, by) in &other.places {
            let by = by.checked_mul(factor)?;
            match self.places.iter_mut().find(|known| known.0 == *place) {
                Some(known) => known.1 = known.1.checked_add(by)?,
                None => self.places.push((place.clone(), by)),
            }
        }
        self.places.retain(|place| place.1 != 0);
        self.start.add(&other.start, factor)?;
        Some(self)
    }

    pub(super) fn constant(&self) -> Option<i64> {
        let flat =
            self.rows.is_empty() && self.places.is_empty() && self.slopes.iter().all(|&slope| slope == 0);
        (flat && self.start.terms.is_empty()).then_some(self.start.constant)
    }

    /// The same behind an operation that adds an axis, or repeats along axes.
    fn reshape(&mut self, kind: &OpKind, from: &Shape, to: &Shape) -> Option<()> {
        let rows = self.rows.iter_mut().map(|rows| &mut rows.slopes);
        if let OpKind::ExpandDims(axis) = kind {
            let axis = usize::from(*axis);
            rows.chain([&mut self.slopes]).for_each(|slopes| slopes.insert(axis, 0));
            self.places
                .iter_mut()
                .filter(|(place, _)| place.axis >= axis)
                .for_each(|(place, _)| place.axis += 1);
            return Some(());
        }
        let repeated = |axis: usize| from.get(axis) != to.get(axis);
        for slopes in rows.chain([&mut self.slopes]) {
            (0..slopes.len()).filter(|&axis| repeated(axis)).for_each(|axis| slopes[axis] = 0);
        }
        (!self.places.iter().any(|(place, _)| repeated(place.axis))).then_some(())
    }

    /// The number that it is, along the one axis along which it counts up, as a place.
    fn number(&self) -> Option<Place> {
        if !self.rows.is_empty() {
            return None;
        }
        if let ([(place, 1)], true) = (&self.places[..], self.slopes.iter().all(|&slope| slope == 0)) {
            let alone = self.start == Sum::default() && place.count.is_none();
            return alone.then(|| place.clone());
        }
        let axis = self.slopes.iter().position(|&slope| slope == 1)?;
        let other = self.slopes.iter().enumerate().any(|(at, &slope)| at != axis && slope != 0);
        let first = self.start.clone();
        (!other && self.places.is_empty()).then_some(Place { axis, first, below: 1, count: None })
    }
}

/// What an index must be below: a number, or the parameter at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Number(i64),
    Param(usize),
}

/// A comparison of an index.
pub(super) struct Condition {
    pub(super) index: Linear,
    /// What it must be below, or else it must not be negative.
    pub(super) bound: Option<Bound>,
    /// Whether it is known not to be negative.
    pub(super) positive: bool,
}

/// What is known of the integers of a program.
pub(super) struct Analysis<'p, 'a> {
    plan: &'p Assignment<'a>,
    known: FxHashMap<Value, Option<Linear>>,
}

impl<'p, 'a> Analysis<'p, 'a> {
    pub(super) fn new(plan: &'p Assignment<'a>) -> Analysis<'p, 'a> {
        Analysis { plan, known: FxHashMap::default() }
    }

    /// The linear form of an integer.
    pub(super) fn linear(&mut self, value: Value) -> Option<Linear> {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        let found = self.find(value);
        self.known.insert(value, found.clone());
        found
    }

    fn find(&mut self, value: Value) -> Option<Linear> {
        let plan = self.plan;
        let ty = plan.program.ty(value);
        if !matches!(ty.elem()?, Elem::I32 | Elem::I64 | Elem::U32) {
            return None;
        }
        if let Some(constant) = plan.facts[value.index()].constant {
            return Some(Linear::flat(ty.rank(), Sum { constant, ..Sum::default() }));
        }
        let Some(op) = plan.defs[value.index()] else { return self.scalar(value) };
        let mut operand = |at: usize| self.linear(*op.args.get(at)?);
        match &op.kind {
            OpKind::Range { start, .. } => {
                let start = Sum { constant: i64::from(*start), ..Sum::default() };
                Some(Linear { slopes: SmallVec::from_slice(&[1]), ..Linear::flat(1, start) })
            }
            OpKind::Splat(_) => {
                let mut out = operand(0)?;
                let slopes = out.rows.iter_mut().map(|rows| &mut rows.slopes);
                slopes.chain([&mut out.slopes]).for_each(|slopes| slopes.resize(ty.rank(), 0));
                Some(out)
            }
            OpKind::ExpandDims(_) | OpKind::Broadcast(_) => {
                let mut out = operand(0)?;
                out.reshape(&op.kind, &plan.program.ty(*op.args.first()?).shape, &ty.shape)?;
                Some(out)
            }
            OpKind::Map(ScalarFn::Add) => operand(0)?.add(&operand(1)?, 1),
            OpKind::Map(ScalarFn::Sub) => operand(0)?.add(&operand(1)?, -1),
            OpKind::Map(ScalarFn::Mul) => {
                if let Some(rows) = self.rows(op) {
                    let rows = SmallVec::from_iter([rows]);
                    return Some(Linear { rows, ..Linear::flat(ty.rank(), Sum::default()) });
                }
                let mut operand = |at: usize| self.linear(*op.args.get(at)?);
                let (a, b) = (operand(0)?, operand(1)?);
                let (of, factor) = match (a.constant(), b.constant()) {
                    (_, Some(factor)) => (a, factor),
                    (Some(factor), None) => (b, factor),
                    (None, None) => return self.scalar(value),
                };
                Linear::flat(ty.rank(), Sum::default()).add(&of, factor)
            }
            OpKind::Map(ScalarFn::DivTrunc | ScalarFn::RemTrunc) if ty.rank() > 0 => self.place(op),
            OpKind::Cast(_) if plan.program.ty(*op.args.first()?).elem() == Some(Elem::I32) => operand(0),
            OpKind::Assume(_) if ty.rank() > 0 => operand(0),
            _ => self.scalar(value),
        }
    }

    /// A number of rows times a parameter.
    fn rows(&mut self, op: &Op) -> Option<Rows> {
        let &[a, b] = &op.args[..] else { return None };
        let (of, pitch) = match (self.parameter(a), self.parameter(b)) {
            (_, Some(_)) => (a, b),
            (Some(_), None) => (b, a),
            (None, None) => return None,
        };
        let param = self.parameter(pitch)?;
        let number = self.linear(of).filter(|of| of.rows.is_empty() && of.places.is_empty())?;
        let pitch = Pitch { param, factor: 1, divisor: self.plan.facts[pitch.index()].div };
        Some(Rows { pitch, slopes: number.slopes, start: number.start })
    }

    /// The position of the parameter, an `i64`, that an integer or all elements of a tile are, where it is promised to be a size
    /// or a stride that maps take: neither 0, which they refuse, nor more than coordinates reach.
    fn parameter(&self, mut value: Value) -> Option<usize> {
        let program = self.plan.program;
        let mut fits = false;
        while let Some(op) = self.plan.defs[value.index()] {
            match op.kind {
                OpKind::Assume(Assumption::Between(low, high)) => fits |= low >= 1 && high <= NO_END as i64,
                OpKind::Assume(_) | OpKind::Splat(_) | OpKind::ExpandDims(_) | OpKind::Broadcast(_) => {}
                _ => return None,
            }
            value = *op.args.first()?;
        }
        let is_wide = program.ty(value).elem() == Some(Elem::I64) && program.ty(value).rank() == 0;
        program.params.iter().position(|param| param.value == value).filter(|_| fits && is_wide)
    }

    /// A quotient or remainder of a number that is not negative.
    fn place(&mut self, op: &Op) -> Option<Linear> {
        let &[number, by] = &op.args[..] else { return None };
        let by = self.linear(by)?.constant().filter(|&by| by > 0)?;
        let rank = self.plan.program.ty(number).rank();
        let mut place =
            self.linear(number)?.number().filter(|_| self.plan.facts[number.index()].is_nonnegative())?;
        match op.kind {
            OpKind::Map(ScalarFn::DivTrunc) => place.below = place.below.checked_mul(by)?,
            _ => place.count = Some(by),
        }
        let places = SmallVec::from_iter([(place, 1)]);
        Some(Linear { places, ..Linear::flat(rank, Sum::default()) })
    }

    /// A scalar of 32 bits as itself: coordinates have so many.
    fn scalar(&self, value: Value) -> Option<Linear> {
        let ty = self.plan.program.ty(value);
        let start = Sum { terms: SmallVec::from_slice(&[(value, 1)]), constant: 0 };
        let is_narrow = ty.elem().is_some_and(|elem| elem.bytes() == 4);
        (ty.rank() == 0 && is_narrow).then(|| Linear::flat(0, start))
    }

    /// The conditions that a mask is the conjunction of.
    pub(super) fn conditions(&mut self, mask: Value, out: &mut Vec<Condition>) -> Option<()> {
        let plan = self.plan;
        if plan.facts[mask.index()].constant == Some(1) {
            return Some(());
        }
        let op = plan.defs[mask.index()]?;
        match &op.kind {
            OpKind::Map(ScalarFn::And) => op.args.iter().try_for_each(|&arg| self.conditions(arg, out)),
            OpKind::Map(function @ (ScalarFn::Lt | ScalarFn::Ge)) => {
                let [index, bound] = op.args[..] else { return None };
                let unsigned = plan.program.ty(index).elem() == Some(Elem::U32);
                let positive = unsigned || plan.facts[index.index()].is_nonnegative();
                let bound = match self.parameter(bound) {
                    Some(param) => Bound::Param(param),
                    None => Bound::Number(self.linear(bound)?.constant()?),
                };
                let bound = match (function, bound) {
                    (ScalarFn::Lt, Bound::Number(below)) => (below > 0).then_some(Some(bound))?,
                    (ScalarFn::Lt, Bound::Param(_)) => Some(bound),
                    _ => (bound == Bound::Number(0) && !unsigned).then_some(None)?,
                };
                out.push(Condition { index: self.linear(index)?, bound, positive });
                Some(())
            }
            OpKind::ExpandDims(_) | OpKind::Broadcast(_) => {
                let (first, from) = (out.len(), *op.args.first()?);
                self.conditions(from, out)?;
                let (from, to) = (&plan.program.ty(from).shape, &plan.program.ty(mask).shape);
                out[first..].iter_mut().try_for_each(|condition| condition.index.reshape(&op.kind, from, to))
            }
            _ => None,
        }
    }

    /// Whether a sum is never negative.
    pub(super) fn is_nonnegative(&self, sum: &Sum) -> bool {
        let term = |&(value, by): &(Value, i64)| by > 0 && self.plan.facts[value.index()].is_nonnegative();
        sum.constant >= 0 && sum.terms.iter().all(term)
    }

    /// The largest number that a sum of scalars that are never negative may be, where that is known.
    pub(super) fn most(&self, sum: &Sum) -> Option<i64> {
        let known = self.is_nonnegative(&Sum { constant: 0, ..sum.clone() });
        let parts = sum.terms.iter().map(|&(value, by)| self.most_of(value)?.checked_mul(by));
        parts.map(|part| part.filter(|_| known)).try_fold(sum.constant, |sum, part| sum.checked_add(part?))
    }

    /// The same of a scalar.
    fn most_of(&self, value: Value) -> Option<i64> {
        if let Some(constant) = self.plan.facts[value.index()].constant {
            return Some(constant);
        }
        let Some(op) = self.plan.defs[value.index()] else { return self.last_of_loop(value) };
        let constant = |at: usize| self.plan.facts[op.args.get(at)?.index()].constant;
        let first = *op.args.first()?;
        let positive = self.plan.facts[first.index()].is_nonnegative();
        match op.kind {
            OpKind::Map(ScalarFn::RemTrunc) if positive => Some(constant(1).filter(|&by| by > 0)? - 1),
            OpKind::Map(ScalarFn::DivTrunc) if positive => {
                let by = constant(1).filter(|&by| by > 0)?;
                Some(self.most_of(first)? / by)
            }
            _ => None,
        }
    }

    /// The largest number that a loop counts to with an induction variable.
    fn last_of_loop(&self, value: Value) -> Option<i64> {
        let mut end = None;
        self.plan.program.walk(&mut |op| {
            let induction = op.regions.first().and_then(|body| body.args.first());
            if op.kind == OpKind::For && induction == Some(&value) {
                end = op.args.get(1).and_then(|end| self.plan.facts[end.index()].constant);
            }
        });
        end.map(|end| end - 1)
    }
}
