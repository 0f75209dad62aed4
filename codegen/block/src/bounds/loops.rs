//! Values of loops: carried ones that advance evenly, and counters that are compared before the loop.

use super::{Cx, Path, whole};
use crate::affine::Interval;
use crate::program::{Op, OpKind, Value};
use crate::scalar_fn::ScalarFn;

/// The values that a loop carries: initial, in its body, next, and after it.
struct Carried {
    init: Value,
    inside: Value,
    next: Value,
    after: Value,
}

fn carried(op: &Op) -> impl Iterator<Item = Carried> {
    let region = op.regions.first();
    let inside = region.and_then(|r| r.args.get(1..)).unwrap_or_default();
    let next = region.and_then(|r| r.ops.last()).map_or(&[][..], |last| last.args.as_slice());
    let init = op.args.get(3..).unwrap_or_default();
    init.iter().zip(inside).zip(next).zip(&op.results).map(|(((&init, &inside), &next), &after)| Carried {
        init,
        inside,
        next,
        after,
    })
}

impl<'a> Cx<'a> {
    /// What holds of carried values in the body of a loop.
    pub(super) fn enter_loop(&mut self, op: &'a Op) {
        if let Some(&induction) = op.regions.first().and_then(|r| r.args.first()) {
            self.inductions.insert(induction, op);
        }
        let Some(iterations) = self.iterations(op) else { return };
        for value in carried(op) {
            if let Some(interval) = self.advanced(&value, iterations - 1) {
                self.assert(value.inside, None, interval);
            }
        }
    }

    /// What holds of carried values after a loop.
    pub(super) fn leave_loop(&mut self, op: &'a Op) {
        let Some(iterations) = self.iterations(op) else { return };
        for value in carried(op) {
            if let Some(interval) = self.advanced(&value, iterations) {
                self.assert(value.after, None, interval);
            }
        }
    }

    /// The most iterations of a loop, at least one.
    fn iterations(&self, op: &Op) -> Option<i128> {
        let bound = |index: usize| Some(self.affine.get(*op.args.get(index)?)?.interval);
        let (lo, hi, step) = (bound(0)?, bound(1)?, bound(2)?);
        let span = hi.hi - lo.lo;
        (step.lo > 0).then(|| ((span + step.lo - 1) / step.lo).max(1))
    }

    /// The interval of a carried value over so many steps from its first value, where each adds to it.
    fn advanced(&mut self, value: &Carried, steps: i128) -> Option<Interval> {
        let path = |v: Value| whole(&self.program.ty(v).shape);
        let (first, at) = (path(value.init), path(value.inside));
        let first = self.bounds(value.init, &first)?;
        let kind = Interval::of(self.elem(value.inside)?);
        let step = self.advance(value, &at)?;
        let over = Interval { lo: (step.lo * steps).min(0), hi: (step.hi * steps).max(0) };
        let interval = first.add(over);
        kind.covers(interval).then_some(interval)
    }

    /// What an iteration adds to a carried value.
    fn advance(&self, value: &Carried, path: &Path) -> Option<Interval> {
        if value.next == value.inside {
            return Some(Interval::point(0));
        }
        let op = self.definition(value.next)?;
        let (OpKind::Map(function @ (ScalarFn::Add | ScalarFn::Sub)), &[a, b]) =
            (&op.kind, op.args.as_slice())
        else {
            return None;
        };
        debug_assert_eq!(path.len(), self.program.ty(value.next).rank());
        let interval = |v: Value| Some(self.affine.get(v)?.interval);
        match function {
            ScalarFn::Add if a == value.inside => interval(b),
            ScalarFn::Add if b == value.inside => interval(a),
            ScalarFn::Sub if a == value.inside => Some(interval(b)?.neg()),
            _ => None,
        }
    }

    /// For `first + i * step`, where `i` counts to the quotient of `end - first` and `step`, rounded up: it is below
    /// `end`.
    pub(super) fn counted(&mut self, value: Value, path: &Path) -> Option<Interval> {
        if !path.is_empty() || self.inductions.is_empty() {
            return None;
        }
        let op = self.definition(value)?;
        let &[a, b] = op.args.as_slice() else { return None };
        let (first, (counter, step)) = match op.kind {
            OpKind::Map(ScalarFn::Add) => match (self.multiple(a), self.multiple(b)) {
                (Some(multiple), _) => (Some(b), multiple),
                (_, Some(multiple)) => (Some(a), multiple),
                _ => return None,
            },
            OpKind::Map(ScalarFn::Mul) => (None, self.multiple(value)?),
            _ => return None,
        };
        let (span, by) = self.quotient(*counter.args.get(1)?)?;
        if by != step {
            return None;
        }
        let span = match self.map(span, ScalarFn::Max) {
            Some([span, least]) if self.is(least, 0) => span,
            // A quotient of a negative number is rounded up to 1 where there is a remainder.
            _ => Some(span).filter(|&v| self.affine.get(v).is_some_and(|f| f.interval.lo >= 0))?,
        };
        let end = match (first, self.map(span, ScalarFn::Sub)) {
            (None, _) => span,
            (Some(first), Some([end, from])) if from == first => {
                let (x, y) = (self.bounds(end, path)?, self.bounds(first, path)?);
                Interval::of(self.elem(span)?).covers(x.add(y.neg())).then_some(end)?
            }
            _ => return None,
        };
        let (kind, end) = (Interval::of(self.elem(value)?), self.bounds(end, path)?);
        Some(Interval { lo: kind.lo, hi: end.hi - 1 })
    }

    /// The loop whose counter a value is a multiple of, and the positive factor.
    fn multiple(&self, value: Value) -> Option<(&'a Op, i128)> {
        let [counter, factor] = self.map(value, ScalarFn::Mul)?;
        let factor = self.affine.get(factor)?.interval.single().filter(|&f| f > 0)?;
        let counts = |op: &&Op| {
            let from = |index: usize, n| op.args.get(index).is_some_and(|&v| self.is(v, n));
            from(0, 0) && from(2, 1)
        };
        let counter = self.inductions.get(&self.uncast(counter)).copied().filter(counts)?;
        Some((counter, factor))
    }

    /// The operands of a quotient that is rounded up, behind limits from above.
    fn quotient(&self, value: Value) -> Option<(Value, i128)> {
        let mut value = self.uncast(value);
        while let Some([a, b]) = self.map(value, ScalarFn::Min).or_else(|| self.map(value, ScalarFn::Max)) {
            let limit = self.affine.get(b)?.interval.single()?;
            let lower = self.map(value, ScalarFn::Max).is_some();
            if lower && limit > 0 {
                return None;
            }
            value = self.uncast(a);
        }
        let [quotient, more] = self.map(value, ScalarFn::Add)?;
        let (quotient, more) = match self.map(quotient, ScalarFn::DivTrunc) {
            Some(operands) => (operands, more),
            None => (self.map(more, ScalarFn::DivTrunc)?, quotient),
        };
        let [rest, zero] = self.map(self.uncast(more), ScalarFn::Ne)?;
        let same = self.map(rest, ScalarFn::RemTrunc)? == quotient && self.is(zero, 0);
        let by = self.affine.get(quotient[1])?.interval.single().filter(|&by| same && by > 0)?;
        Some((quotient[0], by))
    }

    fn map(&self, value: Value, function: ScalarFn) -> Option<[Value; 2]> {
        let op = self.definition(value).filter(|op| op.kind == OpKind::Map(function))?;
        match op.args.as_slice() {
            &[a, b] => Some([a, b]),
            _ => None,
        }
    }

    fn is(&self, value: Value, number: i128) -> bool {
        self.affine.get(value).and_then(|f| f.interval.single()) == Some(number)
    }

    /// The integer that a value is converted from without being changed, through any number of conversions.
    fn uncast(&self, mut value: Value) -> Value {
        while let Some(op) = self.definition(value).filter(|op| matches!(op.kind, OpKind::Cast(_))) {
            let (Some(&from), Some(to)) = (op.args.first(), self.elem(value)) else { break };
            let Some(facts) = self.affine.get(from) else { break };
            if !Interval::of(to).covers(facts.interval) {
                break;
            }
            value = from;
        }
        value
    }
}
