//! Which accesses of one launch stay within the tensors that are given: intervals of integers, from the launch's numbers
//! and its grid, narrowed by masks and conditions.
//!
//! ```text
//! %n = 1000, %x of 1000 elements, a grid of 4
//!
//! %id = program_id 0                 0..=3
//! %first = map mul %id, %block       0..=768
//! %at = map add %start, %lanes       0..=1023
//! %inside = map lt %at, %end         where it holds, %at is in 0..=999
//! %v = load %x, %at, mask %inside    stays within %x
//! ```
//!
//! Integers that wrap have the interval of their kind, so that an access that is said to stay inside does so for all
//! instances, whatever numbers were given. What a program reads from memory has any value.

mod loops;
mod slice;

use std::ops::Range;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::affine::{Affine, Interval};
use crate::program::{Assumption, Op, OpKind, Program, Region, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal, Shape};

/// What is given for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Given {
    /// A number.
    Number(Literal),
    /// A tensor of so many elements.
    Elements(u64),
}

/// What holds for a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Proof {
    /// For each access through a pointer, in the order of [`Program::walk`], whether it stays within its tensor.
    accesses: Vec<bool>,
    /// For each promise whether it holds.
    promises: Vec<bool>,
}

impl Proof {
    /// Nothing holds.
    pub fn nothing() -> Proof {
        Proof::default()
    }

    /// Whether the access at this position among accesses stays within its tensor.
    pub fn has_access(&self, position: usize) -> bool {
        self.accesses.get(position) == Some(&true)
    }

    /// Whether the promise at this position among promises holds.
    pub fn has_promise(&self, position: usize) -> bool {
        self.promises.get(position) == Some(&true)
    }

    /// Whether everything of the program that it is about holds.
    pub fn is_complete(&self) -> bool {
        self.accesses.iter().chain(&self.promises).all(|&holds| holds)
    }
}

/// What holds when a valid program is launched with these arguments.
pub fn prove(program: &Program, grid: [u32; 3], args: &[Given]) -> Proof {
    examine(program, grid, grid.map(|extent| 0..extent), args).0
}

/// Elements of a tensor, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None.
    Nothing,
    /// None outside of these, both included.
    Between(i128, i128),
    /// Any.
    Anything,
}

impl Reach {
    /// What reaches either.
    #[must_use]
    pub fn hull(self, other: Reach) -> Reach {
        match (self, other) {
            (Reach::Nothing, one) | (one, Reach::Nothing) => one,
            (Reach::Between(a, b), Reach::Between(c, d)) => Reach::Between(a.min(c), b.max(d)),
            _ => Reach::Anything,
        }
    }
}

/// The accesses of a program through some of its parameters, and what decides where they lie.
#[derive(Clone, Debug)]
pub struct Accesses {
    program: Program,
    asked: Vec<bool>,
}

impl Accesses {
    /// Those of a valid program through the parameters that `asked` says.
    pub fn of(program: &Program, asked: Vec<bool>) -> Accesses {
        let param = |op: &Op| program.params.iter().position(|p| Some(&p.value) == op.args.first());
        let wanted = |op: &Op| param(op).is_none_or(|param| asked.get(param) == Some(&true));
        Accesses { program: slice::cut(program, &wanted), asked }
    }

    /// For each parameter the elements that the instances of a launch whose numbers along each axis are in `part` read or
    /// write, where all accesses stay within their tensors; [`Reach::Anything`] for those that were not asked for.
    pub fn reach(&self, grid: [u32; 3], part: [Range<u32>; 3], args: &[Given]) -> Vec<Reach> {
        let mut reached = examine(&self.program, grid, part, args).1;
        for (param, reach) in reached.iter_mut().enumerate() {
            let elements = args.get(param).and_then(|given| match given {
                Given::Elements(elements) => Some(i128::from(*elements)),
                Given::Number(_) => None,
            });
            *reach = match (*reach, elements) {
                _ if self.asked.get(param) != Some(&true) => Reach::Anything,
                (Reach::Between(lo, hi), Some(n)) if lo >= n || hi < 0 => Reach::Nothing,
                (Reach::Between(lo, hi), Some(n)) => Reach::Between(lo.max(0), hi.min(n - 1)),
                (reach, _) => reach,
            };
        }
        reached
    }
}

fn examine(program: &Program, grid: [u32; 3], part: [Range<u32>; 3], args: &[Given]) -> (Proof, Vec<Reach>) {
    let numbers: Vec<Option<Literal>> = args
        .iter()
        .map(|given| match given {
            Given::Number(literal) => Some(*literal),
            Given::Elements(_) => None,
        })
        .collect();
    let affine = Affine::for_part(program, grid, part, &numbers);
    let mut definitions = vec![None; program.values.len()];
    program.walk(&mut |op| {
        for &result in &op.results {
            if let Some(slot) = definitions.get_mut(result.index()) {
                *slot = Some(op);
            }
        }
    });
    let mut cx = Cx {
        program,
        args,
        affine,
        definitions,
        inductions: FxHashMap::default(),
        facts: Vec::new(),
        known: FxHashMap::default(),
        proof: Proof::default(),
        reaches: vec![Reach::Nothing; program.params.len()],
        depth: 0,
    };
    cx.region(&program.body);
    (cx.proof, cx.reaches)
}

/// For each parameter of a valid program whether a [`Proof`] depends on the number that is given for it.
pub fn decisive(program: &Program) -> Vec<bool> {
    let mut needed = vec![false; program.values.len()];
    program.walk(&mut |op| {
        let roots = match op.kind {
            OpKind::Load { masked: true, .. } => &op.args[1..3],
            OpKind::Store { masked: true, .. } | OpKind::Atomic { masked: true, .. } => &op.args[1..4],
            _ if op.kind.is_access() => &op.args[1..2],
            OpKind::For => &op.args[..3],
            OpKind::If | OpKind::Assume(_) => &op.args[..1],
            _ => return,
        };
        roots.iter().for_each(|v| needed[v.index()] = true);
    });
    while spread(&program.body, &mut needed) {}
    program.params.iter().map(|p| needed[p.value.index()]).collect()
}

/// Marks what the operations of a region that give something needed are made of; whether anything was not marked.
fn spread(region: &Region, needed: &mut [bool]) -> bool {
    let mut changed = false;
    for op in region.ops.iter().rev() {
        let inside = op.regions.iter().flat_map(|r| &r.args);
        if op.results.iter().chain(inside).any(|v| needed[v.index()]) {
            let yields = op.regions.iter().filter_map(|r| r.ops.last()).flat_map(|last| &last.args);
            for value in op.args.iter().chain(yields) {
                changed |= !std::mem::replace(&mut needed[value.index()], true);
            }
        }
        for inner in &op.regions {
            changed |= spread(inner, needed);
        }
    }
    changed
}

/// For each axis of a value, the axis of the access that indexes it, counted from 1; 0 for an extent of 1.
type Path = SmallVec<[u8; 5]>;

/// What is known of a value where an access happens: of each element, or of those that the path leads to.
struct Fact {
    value: Value,
    path: Option<Path>,
    interval: Interval,
}

struct Cx<'a> {
    program: &'a Program,
    args: &'a [Given],
    affine: Affine,
    definitions: Vec<Option<&'a Op>>,
    /// The loops that induction variables belong to.
    inductions: FxHashMap<Value, &'a Op>,
    /// What holds here.
    facts: Vec<Fact>,
    /// What was found out since the last fact came or went.
    known: FxHashMap<(Value, Path), Interval>,
    proof: Proof,
    /// Of the parameters.
    reaches: Vec<Reach>,
    /// The operations that are being followed, from an access to what its offsets are made of.
    depth: usize,
}

/// A remainder among terms, and the term that is its quotient: together they are a multiple of what was divided, less a
/// number.
struct Divided {
    quotient: Option<usize>,
    remainder: usize,
    of: Value,
    less: i128,
}

/// How many operations are followed from an access.
const MAX_CHAIN: usize = 200;

/// How deep a condition is followed.
const MAX_DEPTH: usize = 24;

fn intersect(a: Interval, b: Interval) -> Interval {
    Interval { lo: a.lo.max(b.lo), hi: a.hi.min(b.hi) }
}

fn whole(shape: &Shape) -> Path {
    shape.iter().enumerate().map(|(axis, &extent)| if extent == 1 { 0 } else { axis as u8 + 1 }).collect()
}

impl<'a> Cx<'a> {
    fn region(&mut self, region: &'a Region) {
        for op in &region.ops {
            match op.kind {
                OpKind::Assume(assumption) => {
                    let holds = self.promise(op, assumption);
                    self.proof.promises.push(holds);
                }
                _ if op.kind.is_access() => {
                    let holds = self.access(op) == Some(true);
                    self.proof.accesses.push(holds);
                }
                _ => {}
            }
            if op.kind == OpKind::For {
                self.enter_loop(op);
            }
            for (index, inner) in op.regions.iter().enumerate() {
                let facts = self.facts.len();
                if let (OpKind::If, Some(&condition)) = (&op.kind, op.args.first()) {
                    self.learn(condition, &Path::new(), index == 0, 0);
                }
                self.region(inner);
                self.forget(facts);
            }
            if op.kind == OpKind::For {
                self.leave_loop(op);
            }
        }
    }

    fn forget(&mut self, facts: usize) {
        if facts < self.facts.len() {
            self.facts.truncate(facts);
            self.known.clear();
        }
    }

    fn assert(&mut self, value: Value, path: Option<Path>, interval: Interval) {
        self.facts.push(Fact { value, path, interval });
        self.known.clear();
    }

    /// Whether a promise holds.
    fn promise(&mut self, op: &Op, assumption: Assumption) -> bool {
        let Some(&value) = op.args.first() else { return false };
        let path = whole(&self.program.ty(value).shape);
        let interval = self.bounds(value, &path);
        let Some(facts) = self.affine.get(value) else { return false };
        match assumption {
            Assumption::MultipleOf(n) => {
                let rows = facts.strides.split_last().map_or(&[][..], |(_, rows)| rows);
                let even = |stride: &Option<i64>| stride.is_some_and(|s| s % i64::from(n.max(1)) == 0);
                let steady = rows.iter().all(even) && (facts.exact || n.is_power_of_two());
                facts.divisible_by % u64::from(n.max(1)) == 0 && (rows.is_empty() || steady)
            }
            Assumption::Contiguous(_) => facts.strides.last() == Some(&Some(1)) && facts.exact,
            Assumption::Between(lo, hi) => {
                interval.is_some_and(|i| i128::from(lo) <= i.lo && i.hi <= i128::from(hi))
            }
        }
    }

    /// Whether an access stays within its tensor.
    fn access(&mut self, op: &Op) -> Option<bool> {
        let param = self.program.params.iter().position(|p| Some(&p.value) == op.args.first());
        let bounds = self.offsets(op);
        let reach = match bounds {
            None => Reach::Anything,
            Some(Interval { lo, hi }) if lo > hi => Reach::Nothing,
            Some(Interval { lo, hi }) => Reach::Between(lo, hi),
        };
        let Some(param) = param else {
            self.reaches.fill(Reach::Anything);
            return None;
        };
        self.reaches[param] = self.reaches[param].hull(reach);
        let Given::Elements(elements) = *self.args.get(param)? else { return None };
        let Interval { lo, hi } = bounds?;
        Some(lo > hi || lo >= 0 && hi < i128::from(elements))
    }

    /// What the offsets of an access lie between, where it happens.
    fn offsets(&mut self, op: &Op) -> Option<Interval> {
        let &offsets = op.args.get(1)?;
        let mask = match op.kind {
            OpKind::Load { masked: true, .. } => Some(2),
            OpKind::Store { masked: true, .. } | OpKind::Atomic { masked: true, .. } => Some(3),
            _ => None,
        };
        let path = whole(&self.program.ty(offsets).shape);
        let facts = self.facts.len();
        if let Some(mask) = mask {
            self.learn(*op.args.get(mask)?, &path, true, 0);
        }
        let bounds = self.bounds(offsets, &path);
        self.forget(facts);
        bounds
    }

    fn definition(&self, value: Value) -> Option<&'a Op> {
        self.definitions.get(value.index()).copied().flatten()
    }

    fn elem(&self, value: Value) -> Option<Elem> {
        self.program.ty(value).elem().filter(|e| !e.is_float())
    }

    /// What an integer lies between, where an access happens.
    fn bounds(&mut self, value: Value, path: &Path) -> Option<Interval> {
        let mut interval = self.affine.get(value)?.interval;
        let key = (value, path.clone());
        if let Some(&known) = self.known.get(&key) {
            return Some(known);
        }
        if self.depth >= MAX_CHAIN {
            return Some(interval);
        }
        self.depth += 1;
        for fact in self.facts.iter().filter(|f| f.value == value) {
            if fact.path.as_ref().is_none_or(|p| p == path) {
                interval = intersect(interval, fact.interval);
            }
        }
        if let Some(op) = self.definition(value).filter(|op| op.regions.is_empty())
            && let Some(computed) = self.computed(op, value, path)
        {
            interval = intersect(interval, computed);
        }
        if let Some(counted) = self.counted(value, path) {
            interval = intersect(interval, counted);
        }
        if let Some(combined) = self.combined(value) {
            interval = intersect(interval, combined);
        }
        self.known.insert(key, interval);
        self.depth -= 1;
        Some(interval)
    }

    /// The bounds of a result from those of the operands; nothing where it may wrap.
    fn computed(&mut self, op: &Op, result: Value, path: &Path) -> Option<Interval> {
        let kind = Interval::of(self.elem(result)?);
        let mut args: SmallVec<[Interval; 3]> = SmallVec::new();
        let moves = match op.kind {
            OpKind::Map(ScalarFn::Select) => 1..3,
            OpKind::Map(_) | OpKind::Cast(_) => 0..op.args.len(),
            _ => 0..1,
        };
        for &arg in op.args.get(moves)? {
            let path = self.path(op, arg, path)?;
            args.push(self.bounds(arg, &path)?);
        }
        if args.iter().any(|i| i.lo > i.hi) {
            return Some(Interval { lo: 0, hi: -1 });
        }
        let interval = match (&op.kind, args.as_slice()) {
            (OpKind::Map(ScalarFn::Add), &[a, b]) => a.add(b),
            (OpKind::Map(ScalarFn::Sub), &[a, b]) => a.add(b.neg()),
            (OpKind::Map(ScalarFn::Mul), &[a, b]) => a.mul(b),
            (OpKind::Map(ScalarFn::Neg), &[a]) => a.neg(),
            (OpKind::Map(ScalarFn::Min), &[a, b]) => a.min(b),
            (OpKind::Map(ScalarFn::Max), &[a, b]) => a.max(b),
            (OpKind::Map(ScalarFn::Select), &[a, b]) => a.hull(b),
            (OpKind::Map(ScalarFn::DivTrunc), &[a, b]) if b.lo > 0 => {
                Interval { lo: (a.lo / b.lo).min(a.lo / b.hi), hi: (a.hi / b.lo).max(a.hi / b.hi) }
            }
            (OpKind::Map(_), _) => return None,
            (_, &[a]) => a,
            _ => return None,
        };
        kind.covers(interval).then_some(interval)
    }

    /// The bounds of a linear form in which quotients and remainders by one number are multiples of each other, so that
    /// together they are one of what was divided: `8 * (x / 4) + 2 * (x % 4)` is `2 * x`.
    fn combined(&self, value: Value) -> Option<Interval> {
        let facts = self.affine.get(value).filter(|facts| facts.exact)?;
        let base = facts.base.as_ref()?;
        let mut terms = base.terms.clone();
        let mut constant = i128::from(base.constant);
        let mut found = false;
        while let Some(Divided { quotient, remainder, of, less }) = self.divided(&terms) {
            let factor = terms.get(remainder)?.1;
            let whole = self.affine.get(of).filter(|facts| facts.exact)?.base.as_ref()?;
            terms.remove(remainder.max(quotient.unwrap_or(0)));
            if let Some(quotient) = quotient {
                terms.remove(remainder.min(quotient));
            }
            constant += (i128::from(whole.constant) - less) * i128::from(factor);
            for &(part, times) in &whole.terms {
                let times = times.checked_mul(factor)?;
                match terms.iter_mut().find(|term| term.0 == part) {
                    Some(term) => term.1 = term.1.checked_add(times)?,
                    None => terms.push((part, times)),
                }
            }
            found = true;
        }
        if !found {
            return None;
        }
        let mut sum = Interval::point(constant);
        for &(part, times) in &terms {
            sum = sum.add(self.affine.get(part)?.interval.mul(Interval::point(times.into())));
        }
        for (stride, &extent) in facts.strides.iter().zip(&self.program.ty(value).shape) {
            let last = i128::from((*stride)?) * i128::from(extent.saturating_sub(1));
            sum = sum.add(Interval { lo: last.min(0), hi: last.max(0) });
        }
        Some(sum)
    }

    /// A term that is the remainder of a value by a number, with the quotient, whose factor is so many times as large, or
    /// where that is known.
    fn divided(&self, terms: &[(Value, i64)]) -> Option<Divided> {
        let by = |value: Value| {
            let op = self.definition(value)?;
            let (&[divided, divisor], OpKind::Map(function)) = (op.args.as_slice(), &op.kind) else {
                return None;
            };
            let divisor = self.affine.get(divisor)?.constant().filter(|&n| n > 0)?;
            Some((*function, divided, divisor))
        };
        for (remainder, &(value, factor)) in terms.iter().enumerate() {
            let (divides, of, divisor) = match by(value) {
                Some((ScalarFn::RemTrunc, of, divisor)) => (ScalarFn::DivTrunc, of, divisor),
                Some((ScalarFn::RemFloor, of, divisor)) => (ScalarFn::DivFloor, of, divisor),
                _ => continue,
            };
            let Interval { lo, hi } = self.affine.get(of)?.interval;
            let multiple = lo.div_euclid(divisor.into());
            if lo >= 0 && multiple == hi.div_euclid(divisor.into()) {
                return Some(Divided { quotient: None, remainder, of, less: multiple * i128::from(divisor) });
            }
            let is_quotient = |&(value, times): &(Value, i64)| {
                by(value) == Some((divides, of, divisor)) && factor.checked_mul(divisor) == Some(times)
            };
            if let Some(quotient) = terms.iter().position(is_quotient) {
                return Some(Divided { quotient: Some(quotient), remainder, of, less: 0 });
            }
        }
        None
    }

    /// Where an operand is read when the result is read along a path; nothing for operations that compute.
    fn path(&self, op: &Op, arg: Value, path: &Path) -> Option<Path> {
        let from = &self.program.ty(arg).shape;
        let fixed = |p: Path| -> Path {
            p.iter().zip(from).map(|(&axis, &extent)| if extent == 1 { 0 } else { axis }).collect()
        };
        match &op.kind {
            OpKind::Map(_) | OpKind::Cast(_) | OpKind::Assume(_) => Some(path.clone()),
            OpKind::Splat(_) => Some(Path::new()),
            OpKind::Broadcast(_) => Some(fixed(path.clone())),
            OpKind::ExpandDims(axis) => {
                let mut path = path.clone();
                (usize::from(*axis) < path.len()).then(|| path.remove(usize::from(*axis)))?;
                Some(path)
            }
            OpKind::Permute(perm) => {
                let mut moved = Path::from_elem(0, from.len());
                for (&to, &axis) in perm.iter().zip(path) {
                    *moved.get_mut(usize::from(to))? = axis;
                }
                Some(moved)
            }
            OpKind::Reshape(to) => {
                let real = |shape: &Shape| shape.iter().copied().filter(|&d| d != 1).collect::<Shape>();
                let mut kept = to.iter().zip(path).filter(|(d, _)| **d != 1).map(|(_, &axis)| axis);
                let same = real(from) == real(to);
                same.then(|| {
                    from.iter().map(|&d| if d == 1 { 0 } else { kept.next().unwrap_or(0) }).collect()
                })
            }
            _ => None,
        }
    }

    /// Learns that a condition is true, or false, where it is read along a path.
    fn learn(&mut self, condition: Value, path: &Path, truth: bool, depth: usize) -> Option<()> {
        let op = self.definition(condition).filter(|op| op.regions.is_empty() && depth < MAX_DEPTH)?;
        let depth = depth + 1;
        let &first = op.args.first()?;
        let inner = self.path(op, first, path)?;
        if self.elem(first)? != Elem::Bool {
            let (OpKind::Map(function), &[a, b]) = (&op.kind, op.args.as_slice()) else { return None };
            return self.compare(*function, [a, b], path, truth);
        }
        match (&op.kind, op.args.as_slice()) {
            (OpKind::Map(ScalarFn::And), &[a, b]) if truth => {
                self.learn(a, path, true, depth);
                self.learn(b, path, true, depth)
            }
            (OpKind::Map(ScalarFn::Or), &[a, b]) if !truth => {
                self.learn(a, path, false, depth);
                self.learn(b, path, false, depth)
            }
            (OpKind::Map(ScalarFn::Not), &[a]) => self.learn(a, path, !truth, depth),
            (OpKind::Map(_) | OpKind::Cast(_), _) => None,
            (_, &[a]) => self.learn(a, &inner, truth, depth),
            _ => None,
        }
    }

    fn compare(&mut self, function: ScalarFn, [a, b]: [Value; 2], path: &Path, truth: bool) -> Option<()> {
        use ScalarFn::{Eq, Ge, Gt, Le, Lt, Ne};
        let (lesser, greater, apart) = match (function, truth) {
            (Lt, true) | (Ge, false) => (a, b, 1),
            (Le, true) | (Gt, false) => (a, b, 0),
            (Gt, true) | (Le, false) => (b, a, 1),
            (Ge, true) | (Lt, false) => (b, a, 0),
            (Eq, true) | (Ne, false) => {
                self.order(a, b, 0, path)?;
                return self.order(b, a, 0, path);
            }
            _ => return None,
        };
        self.order(lesser, greater, apart, path)
    }

    /// Learns that one value is less than another by so much at least.
    fn order(&mut self, lesser: Value, greater: Value, apart: i128, path: &Path) -> Option<()> {
        let (low, high) = (self.bounds(lesser, path)?, self.bounds(greater, path)?);
        self.narrow(lesser, path, Interval { lo: low.lo, hi: high.hi - apart }, 0);
        self.narrow(greater, path, Interval { lo: low.lo + apart, hi: high.hi }, 0);
        Some(())
    }

    /// Learns that a value lies in an interval, and what that says of the values that it is made of.
    fn narrow(&mut self, value: Value, path: &Path, interval: Interval, depth: usize) -> Option<()> {
        let before = self.bounds(value, path)?;
        if intersect(before, interval) == before || depth > MAX_DEPTH {
            return None;
        }
        self.assert(value, Some(path.clone()), interval);
        let op = self.definition(value).filter(|op| op.regions.is_empty())?;
        let kind = Interval::of(self.elem(value)?);
        let depth = depth + 1;
        match (&op.kind, op.args.as_slice()) {
            (OpKind::Map(ScalarFn::Add), &[a, b]) => {
                let (x, y) = (self.bounds(a, path)?, self.bounds(b, path)?);
                if kind.covers(x.add(y)) {
                    self.narrow(a, path, Interval { lo: interval.lo - y.hi, hi: interval.hi - y.lo }, depth);
                    self.narrow(b, path, Interval { lo: interval.lo - x.hi, hi: interval.hi - x.lo }, depth);
                }
                Some(())
            }
            (OpKind::Map(_), _) => None,
            (_, &[a]) => {
                let inner = self.path(op, a, path)?;
                // A conversion that changes no value.
                kind.covers(self.bounds(a, &inner)?).then(|| self.narrow(a, &inner, interval, depth))?
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
