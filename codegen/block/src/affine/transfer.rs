//! The facts of a result from those of the operands.

use num_integer::gcd;
use smallvec::SmallVec;

use super::interval::{Interval, power_of_two_part};
use super::{Base, Cx, Facts, Prefix};
use crate::eval;
use crate::program::{Assumption, Op, OpKind, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Type};

/// What a promise adds to what is known.
fn assume(assumption: Assumption, known: &Facts, ty: &Type) -> Facts {
    let mut facts = known.clone();
    match assumption {
        Assumption::MultipleOf(n) => {
            let known = facts.divisible_by;
            let common = known / gcd(known, n.into()).max(1);
            facts.divisible_by = common.checked_mul(n.into()).unwrap_or(known);
        }
        Assumption::Contiguous(n) => {
            if let (Some(last), true) = (facts.strides.last_mut(), ty.shape.last() <= Some(&n)) {
                *last = last.or(Some(1));
            }
        }
        Assumption::Between(low, high) => {
            let lo = facts.interval.lo.max(low.into());
            let hi = facts.interval.hi.min(high.into());
            // A promise that cannot hold says nothing.
            if lo <= hi {
                facts.interval = Interval { lo, hi };
            }
        }
    }
    facts
}

type Strides = SmallVec<[Option<i64>; 4]>;

impl Cx<'_> {
    pub(super) fn transfer(&self, op: &Op, result: Value, elem: Elem) -> Option<Facts> {
        let ty = self.program.ty(result);
        let unknown = Facts::unknown(result, ty, elem);
        let first = || self.get(*op.args.first()?);
        match &op.kind {
            OpKind::Const(literal) => {
                let value =
                    if elem == Elem::U64 { i128::from(literal.bits) } else { literal.as_i64()?.into() };
                let strides = ty.shape.iter().map(|_| Some(0)).collect();
                Some(Facts { interval: Interval::point(value), strides, ..unknown })
            }
            OpKind::ProgramId(axis) => {
                let part = self.part.get(usize::from(*axis)).cloned().unwrap_or(0..u32::MAX);
                let end = part.end.min(1 << 31);
                let first = part.start.min(end.saturating_sub(1));
                let hi = i128::from(end.max(1)) - 1;
                Some(Facts { interval: Interval { lo: first.into(), hi }, ..unknown })
            }
            OpKind::Range { start, len } => range(*start, *len, unknown),
            OpKind::Splat(shape) => Some(Facts {
                strides: shape.iter().map(|_| Some(0)).collect(),
                prefixes: SmallVec::new(),
                ..first()?.clone()
            }),
            OpKind::ExpandDims(axis) => {
                let mut facts = first()?.clone();
                facts.strides.insert(usize::from(*axis), Some(0));
                for prefix in facts.prefixes.iter_mut().filter(|p| p.axis >= usize::from(*axis)) {
                    prefix.axis += 1;
                }
                Some(facts)
            }
            OpKind::Broadcast(shape) => {
                let from = &self.program.ty(*op.args.first()?).shape;
                let facts = first()?;
                let repeated = from.iter().zip(shape).map(|(&a, &b)| a == 1 && b != 1);
                let repeated: SmallVec<[bool; 4]> = repeated.collect();
                let strides = facts.strides.iter().zip(&repeated).map(|(&s, &r)| if r { Some(0) } else { s });
                let kept = !facts.prefixes.iter().any(|p| repeated.get(p.axis) == Some(&true));
                let prefixes = if kept { facts.prefixes.clone() } else { SmallVec::new() };
                Some(Facts { strides: strides.collect(), prefixes, ..facts.clone() })
            }
            OpKind::Permute(perm) => {
                let facts = first()?.clone();
                let stride = |&axis: &u8| facts.strides.get(usize::from(axis)).copied().flatten();
                let strides = perm.iter().map(stride).collect();
                let place = |axis: usize| perm.iter().position(|&p| usize::from(p) == axis);
                let moved = |p: &Prefix| Some(Prefix { axis: place(p.axis)?, ..p.clone() });
                let prefixes = facts.prefixes.iter().map(moved).collect::<Option<_>>()?;
                Some(Facts { strides, prefixes, ..facts })
            }
            OpKind::Reshape(_) => Some(self.reshape(op, first()?, unknown)),
            OpKind::Map(function) => self.map(*function, op, unknown),
            OpKind::Cast(to) => {
                let from = first()?;
                let facts = cast(self.elem(*op.args.first()?)?, from, *to, unknown);
                Some(uniform_where_operands_are(facts, &[from]))
            }
            OpKind::Reduce { combine, axis, masked } => self.reduce(op, (*combine, *axis, *masked), unknown),
            OpKind::NumPrograms(axis) => {
                let most = i64::from(*self.grid.get(usize::from(*axis))?);
                let least = if self.launched { most } else { 0 };
                Some(Facts { interval: Interval { lo: least.into(), hi: most.into() }, ..unknown })
            }
            OpKind::Assume(_) if self.launched => first().cloned(),
            OpKind::Assume(assumption) => Some(assume(*assumption, first()?, ty)),
            OpKind::Histogram { .. } => {
                let elements = self.program.ty(*op.args.first()?).numel();
                Some(Facts { interval: Interval { lo: 0, hi: elements.into() }, ..unknown })
            }
            _ => Some(unknown),
        }
    }

    /// Equal elements stay equal; rows of the last axis stay rows.
    fn reshape(&self, op: &Op, from: &Facts, unknown: Facts) -> Facts {
        let shape = |v: Option<&Value>| v.map(|&v| self.program.ty(v).shape.clone()).unwrap_or_default();
        let (old, new) = (shape(op.args.first()), shape(op.results.first()));
        let strides = match (from.is_uniform(), from.strides.as_slice()) {
            (true, _) => new.iter().map(|_| Some(0)).collect(),
            // One axis splits into several: each covers as many elements as the later ones hold.
            (false, &[Some(stride)]) => split(stride, &new),
            _ => rejoin(&old, &from.strides, &new).unwrap_or(unknown.strides),
        };
        let known = strides.iter().all(Option::is_some);
        let base = if known { from.base.clone() } else { None };
        Facts { strides, base, prefixes: SmallVec::new(), ..from.clone() }
    }

    fn map(&self, function: ScalarFn, op: &Op, unknown: Facts) -> Option<Facts> {
        let args: SmallVec<[&Facts; 3]> = op.args.iter().map(|&a| self.get(a)).collect::<Option<_>>()?;
        let elem = self.elem(*op.results.first()?)?;
        let kind = Interval::of(elem);
        if let Some(interval) = self.computed(function, op, &args, elem) {
            return Some(Facts { interval, ..unknown });
        }
        let facts = match (function, args.as_slice()) {
            (ScalarFn::Add, &[a, b]) => linear(a, b, 1, kind),
            (ScalarFn::Sub, &[a, b]) => linear(a, b, -1, kind),
            (ScalarFn::Neg, &[a]) => scaled(a, -1, kind),
            (ScalarFn::Mul, &[a, b]) => match (a.constant(), b.constant()) {
                (_, Some(c)) => scaled(a, c, kind),
                (Some(c), _) => scaled(b, c, kind),
                _ => product(a, b, kind),
            },
            (ScalarFn::Shl, &[a, b]) => match b.constant() {
                Some(amount) if (0..i64::from(elem.bits().min(63))).contains(&amount) => {
                    scaled(a, 1 << amount, kind)
                }
                _ => None,
            },
            (f, &[a, b]) if f.rule() == crate::scalar_fn::TypeRule::Compare => {
                Some(comparison(f, a, b, &unknown))
            }
            (ScalarFn::Select, &[c, a, b]) => Some(selection(c, a, b, &unknown)),
            (ScalarFn::And, &[a, b]) if elem == Elem::Bool => Some(conjunction(a, b, &unknown)),
            _ => None,
        };
        let facts = facts.unwrap_or_else(|| other(function, &args, elem, &unknown));
        Some(uniform_where_operands_are(facts, &args))
    }

    /// The one value of a function of operands that have one value each.
    fn computed(&self, function: ScalarFn, op: &Op, args: &[&Facts], to: Elem) -> Option<Interval> {
        let mut literals: SmallVec<[Literal; 3]> = SmallVec::new();
        for (facts, &arg) in args.iter().zip(&op.args) {
            literals.push(Literal::int(self.elem(arg)?, facts.constant()?));
        }
        let result = eval::map_literals(function, &literals)?;
        let value = if to == Elem::U64 { result.bits.into() } else { result.as_i64()?.into() };
        Some(Interval::point(value))
    }

    fn reduce(
        &self,
        op: &Op,
        (combine, axis, masked): (ReduceFn, u8, bool),
        unknown: Facts,
    ) -> Option<Facts> {
        let from = self.get(*op.args.first()?)?;
        let elem = self.elem(*op.results.first()?)?;
        let extent = *self.program.ty(*op.args.first()?).shape.get(usize::from(axis))?;
        let neutral = combine.neutral(elem);
        let neutral = if elem == Elem::U64 { neutral.bits.into() } else { neutral.as_i64()?.into() };
        let interval = match combine {
            ReduceFn::Max | ReduceFn::Min if masked => from.interval.hull(Interval::point(neutral)),
            ReduceFn::Max | ReduceFn::Min => from.interval,
            ReduceFn::Sum => from.interval.hull(Interval::point(0)).mul(Interval::point(extent.into())),
            _ => return Some(unknown),
        };
        let fits = Interval::of(elem).covers(interval);
        Some(if fits { Facts { interval, ..unknown } } else { unknown })
    }
}

fn range(start: i32, len: u32, unknown: Facts) -> Option<Facts> {
    let last = i128::from(start) + i128::from(len) - 1;
    let exact = last <= i128::from(i32::MAX);
    let interval = if exact { Interval { lo: start.into(), hi: last } } else { unknown.interval };
    Some(Facts {
        strides: SmallVec::from_slice(&[Some(1)]),
        base: Some(Base::constant(start.into())),
        exact,
        interval,
        divisible_by: start.unsigned_abs().into(),
        prefixes: SmallVec::new(),
    })
}

/// Strides of `new` that are one axis of `stride` in row-major order.
fn split(stride: i64, new: &[u32]) -> Strides {
    let mut below = Some(stride);
    let mut strides: Strides = SmallVec::new();
    for &extent in new.iter().rev() {
        strides.push(if extent == 1 { Some(0) } else { below });
        below = below.and_then(|b| b.checked_mul(extent.into()));
    }
    strides.reverse();
    strides
}

/// Strides of `new` where it has the axes of `old` but for extents of 1, or where `old` is one row-major axis.
fn rejoin(old: &[u32], strides: &[Option<i64>], new: &[u32]) -> Option<Strides> {
    let real: SmallVec<[(u32, Option<i64>); 4]> =
        old.iter().copied().zip(strides.iter().copied()).filter(|(d, _)| *d != 1).collect();
    let mut kept = real.iter();
    let same = new.iter().filter(|&&d| d != 1).copied().eq(real.iter().map(|r| r.0));
    if same {
        return new.iter().map(|&d| if d == 1 { Some(Some(0)) } else { kept.next().map(|r| r.1) }).collect();
    }
    let innermost = real.last()?.1?;
    let mut expected = Some(innermost);
    for &(extent, stride) in real.iter().rev() {
        if stride != expected {
            return None;
        }
        expected = expected.and_then(|e| e.checked_mul(extent.into()));
    }
    Some(split(innermost, new))
}

/// `a + factor * b`, where `factor` is 1 or -1.
fn linear(a: &Facts, b: &Facts, factor: i64, kind: Interval) -> Option<Facts> {
    let stride = |(x, y): (&Option<i64>, &Option<i64>)| (*x)?.checked_add((*y)?.checked_mul(factor)?);
    let other = if factor < 0 { b.interval.neg() } else { b.interval };
    let base = a.base.as_ref().zip(b.base.as_ref()).and_then(|(x, y)| x.plus(y, factor));
    let facts = Facts {
        strides: a.strides.iter().zip(&b.strides).map(stride).collect(),
        base,
        exact: a.exact && b.exact,
        interval: a.interval.add(other),
        divisible_by: gcd(a.divisible_by, b.divisible_by),
        prefixes: SmallVec::new(),
    };
    Some(wrapped(facts, kind))
}

fn scaled(a: &Facts, factor: i64, kind: Interval) -> Option<Facts> {
    let facts = Facts {
        strides: a.strides.iter().map(|s| (*s)?.checked_mul(factor)).collect(),
        base: a.base.as_ref().and_then(|b| Base::default().plus(b, factor)),
        exact: a.exact,
        interval: a.interval.mul(Interval::point(factor.into())),
        divisible_by: times(a.divisible_by, factor.unsigned_abs()),
        prefixes: SmallVec::new(),
    };
    Some(wrapped(facts, kind))
}

/// A product that divides what the true product divides.
fn times(a: u64, b: u64) -> u64 {
    a.checked_mul(b).unwrap_or_else(|| {
        let (a, b) = (power_of_two_part(a), power_of_two_part(b));
        a.checked_mul(b).unwrap_or(1 << 63)
    })
}

fn product(a: &Facts, b: &Facts, kind: Interval) -> Option<Facts> {
    let facts = Facts {
        strides: SmallVec::from_elem(None, a.strides.len()),
        base: None,
        exact: true,
        interval: a.interval.mul(b.interval),
        divisible_by: times(a.divisible_by, b.divisible_by),
        prefixes: SmallVec::new(),
    };
    Some(wrapped(facts, kind))
}

/// Facts of a result that wraps: where it may leave the kind, the range is the kind's, and of what divides it only
/// the power of two is left.
fn wrapped(mut facts: Facts, kind: Interval) -> Facts {
    if !kind.covers(facts.interval) {
        facts.interval = kind;
        facts.exact = false;
        facts.divisible_by = power_of_two_part(facts.divisible_by);
    }
    facts
}

fn cast(from: Elem, facts: &Facts, to: Elem, unknown: Facts) -> Facts {
    let fits = Interval::of(to).covers(facts.interval);
    if to == Elem::Bool && from != Elem::Bool {
        let nonzero = !facts.interval.contains(0);
        return if nonzero { Facts { interval: Interval::point(1), ..unknown } } else { unknown };
    }
    let wider = to.bits() > from.bits();
    if (wider || to == Elem::Bool) && !(fits && facts.exact) {
        // The form holds modulo the old width alone; what is equal stays equal.
        let strides = facts.strides.iter().map(|s| s.filter(|&s| s == 0)).collect();
        let interval = if fits { facts.interval } else { unknown.interval };
        let divisible_by = if fits { facts.divisible_by } else { power_of_two_part(facts.divisible_by) };
        return Facts { strides, interval, divisible_by, ..unknown };
    }
    let interval = if fits { facts.interval } else { unknown.interval };
    let divisible_by = if fits { facts.divisible_by } else { power_of_two_part(facts.divisible_by) };
    Facts { interval, divisible_by, exact: facts.exact && fits, prefixes: SmallVec::new(), ..facts.clone() }
}

/// Comparisons that the ranges decide, and `a < b` with a growing `a` and a `b` that is the same along that axis.
fn comparison(function: ScalarFn, a: &Facts, b: &Facts, unknown: &Facts) -> Facts {
    let (x, y) = (a.interval, b.interval);
    let apart = x.hi < y.lo || y.hi < x.lo;
    let known = match function {
        ScalarFn::Eq | ScalarFn::Ne if apart => Some(function == ScalarFn::Ne),
        ScalarFn::Eq | ScalarFn::Ne => {
            x.single().zip(y.single()).map(|(x, y)| (x == y) == (function == ScalarFn::Eq))
        }
        ScalarFn::Lt => decided(x.hi < y.lo, x.lo >= y.hi),
        ScalarFn::Le => decided(x.hi <= y.lo, x.lo > y.hi),
        ScalarFn::Gt => decided(y.hi < x.lo, y.lo >= x.hi),
        ScalarFn::Ge => decided(y.hi <= x.lo, y.lo > x.hi),
        _ => None,
    };
    let mut facts = unknown.clone();
    if let Some(known) = known {
        facts.interval = Interval::point(known.into());
    }
    let prefix = match function {
        ScalarFn::Lt => prefix(a, b, 0),
        ScalarFn::Le => prefix(a, b, 1),
        ScalarFn::Gt => prefix(b, a, 0),
        ScalarFn::Ge => prefix(b, a, 1),
        _ => None,
    };
    facts.prefixes.extend(prefix);
    facts
}

fn decided(yes: bool, no: bool) -> Option<bool> {
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// `a < b + extra` as a condition on the index along the one axis on which the difference depends.
fn prefix(a: &Facts, b: &Facts, extra: i64) -> Option<Prefix> {
    if !(a.exact && b.exact) {
        return None;
    }
    let limit = b.base.as_ref()?.plus(a.base.as_ref()?, -1)?.plus(&Base::constant(extra), 1)?;
    let mut growing = None;
    for (axis, (x, y)) in a.strides.iter().zip(&b.strides).enumerate() {
        let stride = (*x)?.checked_sub((*y)?)?;
        if stride != 0 && growing.replace((axis, stride)).is_some() {
            return None;
        }
    }
    let (axis, stride) = growing.filter(|&(_, stride)| stride > 0)?;
    Some(Prefix { axis, stride, limit })
}

fn selection(c: &Facts, a: &Facts, b: &Facts, unknown: &Facts) -> Facts {
    match c.constant() {
        Some(0) => b.clone(),
        Some(_) => a.clone(),
        None => Facts {
            interval: a.interval.hull(b.interval),
            divisible_by: gcd(a.divisible_by, b.divisible_by),
            ..unknown.clone()
        },
    }
}

fn conjunction(a: &Facts, b: &Facts, unknown: &Facts) -> Facts {
    match (a.constant(), b.constant()) {
        (Some(0), _) | (_, Some(0)) => Facts { interval: Interval::point(0), ..unknown.clone() },
        (Some(_), _) => b.clone(),
        (_, Some(_)) => a.clone(),
        _ if a.prefixes.is_empty() || b.prefixes.is_empty() => unknown.clone(),
        _ => Facts { prefixes: a.prefixes.iter().chain(&b.prefixes).cloned().collect(), ..unknown.clone() },
    }
}

/// Functions of which only the range, and what divides the result, follows.
fn other(function: ScalarFn, args: &[&Facts], elem: Elem, unknown: &Facts) -> Facts {
    let kind = Interval::of(elem);
    let interval = match args {
        [a] => match function {
            ScalarFn::Abs => Some(a.interval.abs()),
            ScalarFn::Not if elem == Elem::Bool => {
                Some(Interval { lo: 1 - a.interval.hi, hi: 1 - a.interval.lo })
            }
            _ => None,
        },
        [a, b] => range_of_two(function, a, b),
        _ => None,
    };
    let common = matches!(function, ScalarFn::Max | ScalarFn::Min);
    let divisible_by = match args {
        [a, b] if common => gcd(a.divisible_by, b.divisible_by),
        [a, b] if function == ScalarFn::And && elem != Elem::Bool => {
            power_of_two_part(a.divisible_by).max(power_of_two_part(b.divisible_by)).max(1)
        }
        _ => 1,
    };
    let interval = interval.filter(|&i| kind.covers(i)).unwrap_or(kind);
    Facts { interval, divisible_by, ..unknown.clone() }
}

fn range_of_two(function: ScalarFn, a: &Facts, b: &Facts) -> Option<Interval> {
    let (x, y) = (a.interval, b.interval);
    let divisor = y.single().filter(|&d| d > 0);
    Some(match function {
        ScalarFn::Max => x.max(y),
        ScalarFn::Min => x.min(y),
        ScalarFn::DivTrunc => {
            let d = divisor?;
            x.map(|v| v / d)
        }
        ScalarFn::DivFloor => {
            let d = divisor?;
            x.map(|v| v.div_euclid(d))
        }
        ScalarFn::RemFloor => match divisor? {
            d if x.lo >= 0 && x.hi < d => x,
            d => Interval { lo: 0, hi: d - 1 },
        },
        ScalarFn::RemTrunc => match divisor? {
            d if x.lo > -d && x.hi < d => x,
            d => Interval { lo: if x.lo < 0 { 1 - d } else { 0 }, hi: if x.hi > 0 { d - 1 } else { 0 } },
        },
        ScalarFn::And if x.lo >= 0 || y.lo >= 0 => {
            let bound = |i: Interval| if i.lo >= 0 { i.hi } else { i128::MAX };
            Interval { lo: 0, hi: bound(x).min(bound(y)) }
        }
        ScalarFn::Or | ScalarFn::Xor if x.lo >= 0 && y.lo >= 0 => {
            let bits = 128 - x.hi.max(y.hi).leading_zeros();
            Interval { lo: 0, hi: (1i128 << bits) - 1 }
        }
        ScalarFn::Shr => {
            let amount = y.single().filter(|amount| (0..64).contains(amount))?;
            x.map(|v| v >> amount)
        }
        _ => return None,
    })
}

/// A function of operands that are the same along an axis is the same along it.
fn uniform_where_operands_are(mut facts: Facts, args: &[&Facts]) -> Facts {
    for (axis, stride) in facts.strides.iter_mut().enumerate() {
        let same = args.iter().all(|a| a.strides.get(axis) == Some(&Some(0)));
        if same && stride.is_none() {
            *stride = Some(0);
        }
    }
    facts
}
