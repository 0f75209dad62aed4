//! Whether accesses have elements in common, within an iteration of the loops around them and between iterations.
//!
//! Offsets are the sum of a constant, of scalars of which nothing is known, and of multiples of positions and of the counters of
//! loops:
//!
//! ```text
//! for %k in %zero..%n step %two {       %k     = 2 * [0..)
//!   %row = map mul %k, %c1024           %row   = 2048 * [0..)
//!   %first = map add %base, %row        %first = %base + 2048 * [0..)
//!   %i = range 0 64
//!   %s = splat %first [64]
//!   %at = map add %s, %i                %at    = %base + 2048 * [0..) + 1 * [0..64)
//! }
//! ```
//!
//! Where all smaller summands together stay below it, a multiple is a digit: two offsets are the same only if it is.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Op, OpKind, Program, ScalarFn, Shape, Value};

/// A multiple of the numbers from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Multiple {
    by: i64,
    /// Of how many numbers; `None` where a loop's bounds are not known.
    count: Option<i64>,
    /// The tile that holds the numbers, or the counter.
    of: Value,
    /// The axis along which they run, if that is known and they are no counter's.
    axis: Option<u8>,
    /// Whether they count the iterations of a loop.
    counter: bool,
}

/// The elements that an operation reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Accessed {
    pub(crate) offsets: Value,
    mask: Option<Value>,
}

impl Accessed {
    /// Those of a load, a store or an atomic operation.
    pub(crate) fn by(op: &Op) -> Option<Accessed> {
        let mask = if matches!(op.kind, OpKind::Load { .. }) { 2 } else { 3 };
        Some(Accessed { offsets: *op.args.get(1)?, mask: op.args.get(mask).copied() })
    }
}

/// Offsets as a sum.
#[derive(Clone, Default, Debug)]
struct Offsets {
    /// Scalars of which nothing is known, with their factors.
    scalars: BTreeMap<u32, i64>,
    constant: i64,
    multiples: SmallVec<[Multiple; 4]>,
}

/// Where values of a program come from.
pub(crate) struct Origins<'p> {
    program: &'p Program,
    /// By value: the operation whose result it is.
    ops: Vec<Option<&'p Op>>,
    /// By value: the loop whose counter it is.
    counters: Vec<Option<&'p Op>>,
    /// By value: whether it may differ between iterations of a loop.
    varies: Vec<bool>,
    /// Sums that are known.
    sums: RefCell<FxHashMap<(Value, Iterations), Option<Offsets>>>,
}

/// Stands for what is counted from the other end.
const BACKWARD: Value = Value(u32::MAX);

/// Sums below are those of 32 bits.
const NEAR: i64 = 1 << 30;

/// More summands than these are not looked at.
const MOST: usize = 24;

/// What is known of the iterations in which two accesses happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Iterations {
    /// They are the same.
    Same,
    /// They may be any.
    Any,
}

impl<'p> Origins<'p> {
    pub(crate) fn new(program: &'p Program) -> Origins<'p> {
        let count = program.values.len();
        let mut origins = Origins {
            program,
            ops: vec![None; count],
            counters: vec![None; count],
            varies: vec![false; count],
            sums: RefCell::default(),
        };
        origins.region(&program.body.ops, false);
        origins
    }

    fn region(&mut self, ops: &'p [Op], repeated: bool) {
        for op in ops {
            for result in &op.results {
                self.ops[result.index()] = Some(op);
                self.varies[result.index()] = repeated;
            }
            let inside = repeated || matches!(op.kind, OpKind::For | OpKind::While);
            for region in &op.regions {
                region.args.iter().for_each(|arg| self.varies[arg.index()] = inside);
                if let (OpKind::For, Some(counter)) = (&op.kind, region.args.first()) {
                    self.counters[counter.index()] = Some(op);
                }
                self.region(&region.ops, inside);
            }
        }
    }

    /// Whether two accesses are known to have no element in common.
    pub(crate) fn are_apart(&self, a: Accessed, b: Accessed, iterations: Iterations) -> bool {
        let (Some(a), Some(b)) = (self.accessed(a, iterations), self.accessed(b, iterations)) else {
            return false;
        };
        a.scalars == b.scalars && apart(a, b)
    }

    /// Whether an element of an access is known to be at the same position of its tile in whatever iterations of the loops
    /// around it, where no element of the tile is at two positions.
    pub(crate) fn stays_in_place(&self, access: Accessed) -> bool {
        self.accessed(access, Iterations::Any).is_some_and(|mut offsets| {
            offsets.multiples.sort_unstable_by_key(|m| m.by);
            while offsets.multiples.iter().any(|m| !m.counter) {
                let Some(last) = offsets.multiples.pop() else { break };
                if offsets.span().is_none_or(|(low, high)| high - low >= last.by) {
                    return false;
                }
            }
            true
        })
    }

    /// The number or truth value that every element of a value is known to be.
    pub(crate) fn constant(&self, value: Value) -> Option<Literal> {
        let op = self.ops[value.index()]?;
        match op.kind {
            OpKind::Const(literal) => Some(literal),
            OpKind::Splat(_) => self.constant(*op.args.first()?),
            _ => None,
        }
    }

    /// The offsets that are not masked off; `None` where they may wrap around.
    fn accessed(&self, access: Accessed, iterations: Iterations) -> Option<Offsets> {
        let mut offsets = self.offsets(access.offsets, iterations)?;
        for limit in access.mask.map(|mask| self.limits(mask)).unwrap_or_default() {
            let same = |m: &&mut Multiple| {
                m.of == limit.of && m.axis == limit.axis && (m.counter || m.axis.is_some())
            };
            for multiple in offsets.multiples.iter_mut().filter(same) {
                multiple.count = multiple.count.into_iter().chain(limit.count).min();
            }
        }
        offsets.multiples.retain(|m| m.count != Some(1));
        offsets.is_near().then_some(offsets)
    }

    /// Of how many numbers a condition holds at most, each as what is counted.
    fn limits(&self, condition: Value) -> SmallVec<[Multiple; 4]> {
        let Some(op) = self.ops[condition.index()] else { return SmallVec::new() };
        let of = |at: usize| op.args.get(at).map(|&arg| self.limits(arg)).unwrap_or_default();
        match op.kind {
            OpKind::Map(ScalarFn::And) => of(0).into_iter().chain(of(1)).collect(),
            OpKind::Map(ScalarFn::Lt) => self.limit(op).into_iter().collect(),
            _ if self.is_view(op) => {
                let mut limits = of(0);
                limits.iter_mut().for_each(|m| m.axis = self.axis_after(op, m.axis));
                limits
            }
            _ => SmallVec::new(),
        }
    }

    /// Of how many numbers of a range a comparison holds.
    fn limit(&self, comparison: &Op) -> Option<Multiple> {
        let of = |at: usize| self.offsets(*comparison.args.get(at)?, Iterations::Any);
        let (small, limit) = (of(0)?, of(1)?.number()?);
        let &[only] = &small.multiples[..] else { return None };
        let counts = only.by == 1 && only.of != BACKWARD && small.scalars.is_empty() && small.is_near();
        counts.then(|| Multiple { count: Some(limit.saturating_sub(small.constant).max(0)), ..only })
    }

    /// Whether an operation gives the elements of its operand at other positions, or several times.
    fn is_view(&self, op: &Op) -> bool {
        use OpKind::{Broadcast, ExpandDims, Permute, Reshape, Splat};
        matches!(op.kind, Splat(_) | ExpandDims(_) | Broadcast(_) | Reshape(_) | Permute(_))
    }

    /// The axis of a view's result that is this one of its operand.
    fn axis_after(&self, op: &Op, axis: Option<u8>) -> Option<u8> {
        let axis = axis?;
        match &op.kind {
            OpKind::ExpandDims(at) => Some(if axis >= *at { axis + 1 } else { axis }),
            OpKind::Broadcast(_) => Some(axis),
            OpKind::Permute(perm) => perm.iter().position(|&from| from == axis).map(|to| to as u8),
            OpKind::Reshape(_) => {
                // The same where axes of one element alone come or go.
                let shape = |v: Value| &self.program.ty(v).shape;
                let (old, new) = (shape(*op.args.first()?), shape(*op.results.first()?));
                let long = |shape: &Shape| {
                    let axes = shape.iter().enumerate().filter(|&(_, &extent)| extent > 1);
                    axes.map(|(at, &extent)| (at as u8, extent)).collect::<SmallVec<[(u8, u32); 5]>>()
                };
                let (old, new) = (long(old), long(new));
                let same = old.iter().map(|a| a.1).eq(new.iter().map(|a| a.1));
                let at = old.iter().position(|a| a.0 == axis).filter(|_| same)?;
                Some(new[at].0)
            }
            _ => None,
        }
    }

    /// Whether a tile of offsets is known to have each element once.
    pub(crate) fn are_distinct(&self, tile: Value) -> bool {
        let Some(mut offsets) = self.offsets(tile, Iterations::Same).filter(Offsets::is_near) else {
            return false;
        };
        let shape = &self.program.ty(tile).shape;
        let elements: i64 = shape.iter().map(|&extent| i64::from(extent)).product();
        let whole = |m: &Multiple| m.count == Some(elements);
        let along = |axis: usize, extent: u32| {
            let covers = |m: &Multiple| m.axis == Some(axis as u8) && m.count == Some(extent.into());
            extent == 1 || offsets.multiples.iter().any(covers)
        };
        let covered = shape.iter().enumerate().all(|(axis, &extent)| along(axis, extent))
            || (offsets.multiples.len() == 1 && offsets.multiples.iter().all(whole));
        offsets.multiples.sort_unstable_by_key(|m| m.by);
        while let Some(last) = offsets.multiples.pop() {
            if offsets.span().is_none_or(|(low, high)| high - low >= last.by) {
                return false;
            }
        }
        covered
    }

    /// A value as a sum; `None` where it is a tile of which too little is known, or changes with more than a counter.
    fn offsets(&self, value: Value, iterations: Iterations) -> Option<Offsets> {
        if let Some(known) = self.sums.borrow().get(&(value, iterations)) {
            return known.clone();
        }
        let sum = self.sum(value, iterations);
        self.sums.borrow_mut().insert((value, iterations), sum.clone());
        sum
    }

    fn sum(&self, value: Value, iterations: Iterations) -> Option<Offsets> {
        let scalar = || {
            let fixed = iterations == Iterations::Same || !self.varies[value.index()];
            let scalars = BTreeMap::from([(value.0, 1)]);
            (fixed && self.program.ty(value).rank() == 0).then(|| Offsets { scalars, ..Offsets::default() })
        };
        if let Some(op) = self.counters[value.index()].filter(|_| iterations == Iterations::Any) {
            return self.counter(op, value);
        }
        let Some(op) = self.ops[value.index()] else { return scalar() };
        let of = |at: usize| op.args.get(at).and_then(|&arg| self.offsets(arg, iterations));
        let known = match op.kind {
            OpKind::Const(literal) if literal.elem.is_int() => Some(Offsets::constant(literal.bits as i64)),
            OpKind::Range { start, len } => {
                let multiple =
                    Multiple { by: 1, count: Some(i64::from(len)), of: value, axis: Some(0), counter: false };
                Some(Offsets {
                    multiples: SmallVec::from_slice(&[multiple]),
                    ..Offsets::constant(start.into())
                })
            }
            OpKind::Assume(_) => of(0),
            _ if self.is_view(op) => of(0).map(|mut sum| {
                sum.multiples.iter_mut().for_each(|m| m.axis = self.axis_after(op, m.axis));
                sum
            }),
            OpKind::Cast(Elem::I64) if self.program.ty(op.args[0]).elem() == Some(Elem::I32) => of(0),
            OpKind::Map(ScalarFn::Add) => of(0).zip(of(1)).and_then(|(a, b)| a.plus(&b)),
            OpKind::Map(ScalarFn::Sub) => of(0).zip(of(1)).and_then(|(a, b)| a.plus(&b.times(-1)?)),
            OpKind::Map(ScalarFn::Mul) => {
                of(0).zip(of(1)).and_then(|(a, b)| match (a.number(), b.number()) {
                    (_, Some(factor)) => a.times(factor),
                    (Some(factor), _) => b.times(factor),
                    _ => None,
                })
            }
            _ => None,
        };
        known.or_else(scalar)
    }

    /// The counter of a loop.
    fn counter(&self, op: &Op, counter: Value) -> Option<Offsets> {
        let of = |at: usize| op.args.get(at).and_then(|&arg| self.offsets(arg, Iterations::Any));
        let (first, step) = (of(0)?, of(2)?.number().filter(|&step| step > 0)?);
        let to = of(1).and_then(|to| to.number()).zip(first.number());
        let count = to.map(|(to, from)| to.saturating_sub(from).max(0).saturating_add(step - 1) / step);
        let multiple = Multiple { by: step, count, of: counter, axis: None, counter: true };
        first.plus(&Offsets { multiples: SmallVec::from_slice(&[multiple]), ..Offsets::default() })
    }
}

impl Offsets {
    fn constant(constant: i64) -> Offsets {
        Offsets { constant, ..Offsets::default() }
    }

    fn number(&self) -> Option<i64> {
        (self.scalars.is_empty() && self.multiples.is_empty()).then_some(self.constant)
    }

    fn plus(mut self, other: &Offsets) -> Option<Offsets> {
        self.constant = self.constant.checked_add(other.constant)?;
        for (&scalar, &factor) in &other.scalars {
            let sum = self.scalars.entry(scalar).or_default();
            *sum = sum.checked_add(factor)?;
        }
        self.scalars.retain(|_, factor| *factor != 0);
        self.multiples.extend(other.multiples.iter().copied());
        (self.multiples.len() + self.scalars.len() <= MOST).then_some(self)
    }

    fn times(mut self, factor: i64) -> Option<Offsets> {
        if factor == 0 {
            return Some(Offsets::default());
        }
        self.constant = self.constant.checked_mul(factor)?;
        for scaled in self.scalars.values_mut().chain(self.multiples.iter_mut().map(|m| &mut m.by)) {
            *scaled = scaled.checked_mul(factor)?;
        }
        // Counted from the other end.
        for multiple in self.multiples.iter_mut().filter(|m| m.by < 0) {
            let last = multiple.by.checked_mul(multiple.count? - 1)?;
            self.constant = self.constant.checked_add(last)?;
            (multiple.by, multiple.of) = (-multiple.by, BACKWARD);
        }
        Some(self)
    }

    /// Whether none of what is known of it is so large that 32 bits might not hold the sum. Loops of unknown bounds are taken not to
    /// go that far.
    fn is_near(&self) -> bool {
        let near = |n: i64| n.abs() < NEAR;
        let far =
            |sum: i64, m: &Multiple| m.by.checked_mul(m.count.map_or(1, |count| count - 1))?.checked_add(sum);
        self.multiples.iter().all(|m| near(m.by))
            && near(self.constant)
            && self.multiples.iter().try_fold(self.constant, far).is_some_and(near)
    }

    /// The smallest and the largest of the numbers, without the scalars; `None` where there is no largest.
    fn span(&self) -> Option<(i64, i64)> {
        let far = |sum: i64, m: &Multiple| m.by.checked_mul(m.count? - 1)?.checked_add(sum);
        let high = self.multiples.iter().try_fold(self.constant, far)?;
        Some((self.constant, high))
    }

    /// Takes the multiple of `by` away, if there is one.
    fn take(&mut self, by: i64) {
        if let Some(at) = self.multiples.iter().position(|m| m.by == by) {
            self.multiples.remove(at);
        }
        self.constant = self.constant.rem_euclid(by);
    }
}

/// Whether two sums over the same scalars are never equal.
fn apart(mut a: Offsets, mut b: Offsets) -> bool {
    if a.multiples.iter().chain(&b.multiples).any(|m| m.count == Some(0)) {
        return true;
    }
    loop {
        if let (Some(one), Some(other)) = (a.span(), b.span())
            && (one.1 < other.0 || other.1 < one.0)
        {
            return true;
        }
        let all: SmallVec<[i64; 8]> = a.multiples.iter().chain(&b.multiples).map(|m| m.by).collect();
        let Some(&largest) = all.iter().max() else { return false };
        let common = all.iter().fold(0, |all, by| all | by).trailing_zeros();
        if (a.constant - b.constant).trailing_zeros() < common {
            return true;
        }
        a.take(largest);
        b.take(largest);
        let (Some(one), Some(other)) = (a.span(), b.span()) else { return false };
        if one.1.max(other.1) - one.0.min(other.0) >= largest {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tilefuse_block::Op;

    use super::{Accessed, Iterations, Origins};
    use crate::ptx::{PtxOptions, Target, compile_ptx};

    /// Calls `f` with the stores of a program.
    fn with_stores<T>(text: &str, f: impl FnOnce(&Origins<'_>, &[Accessed]) -> T) -> T {
        let program = tilefuse_block::parse_valid(text).unwrap();
        let mut stores = Vec::new();
        let is_store = |op: &Op| matches!(op.kind, tilefuse_block::OpKind::Store { .. });
        program.walk(&mut |op| stores.extend(Accessed::by(op).filter(|_| is_store(op))));
        f(&Origins::new(&program), &stores)
    }

    /// Two stores of tiles of 4 rows and 32 of 64 columns: rows so many apart, from two columns, the second of `width` columns.
    fn apart(rows: i32, columns: i32, width: i32) -> bool {
        let text = format!(
            "kernel @rows(%y: ptr<f32>, %n: i32) {{
               %pitch = const 64 : i32
               %first = map mul %n, %pitch
               %more = const {rows} : i32
               %next = map add %n, %more
               %second = map mul %next, %pitch
               %r = range 0 4
               %c = range 0 32
               %sixty_four = splat %pitch [4]
               %rs = map mul %r, %sixty_four
               %re = expand_dims %rs axis 1
               %ce = expand_dims %c axis 0
               %rb = broadcast %re [4, 32]
               %cb = broadcast %ce [4, 32]
               %t = map add %rb, %cb
               %a = splat %first [4, 32]
               %at = map add %a, %t
               %from = const {columns} : i32
               %start = map add %second, %from
               %b = splat %start [4, 32]
               %bt = map add %b, %t
               %width = const {width} : tile<4x32xi32>
               %m = map lt %cb, %width
               %v = const 1.0 : tile<4x32xf32>
               store %y, %at, %v
               store %y, %bt, %v, mask %m
             }}"
        );
        with_stores(&text, |origins, stores| origins.are_apart(stores[0], stores[1], Iterations::Any))
    }

    #[test]
    fn tiles_of_rows_and_columns() {
        assert_eq!(
            [(0, 32), (0, 31), (4, 0), (-4, 0), (3, 0), (1, 32)].map(|(r, c)| apart(r, c, 32)),
            [true, false, true, true, false, true]
        );
        // The last columns would be the first of the next row.
        assert_eq!([31, 16, 0].map(|width| apart(0, 48, width)), [false, true, true]);
    }

    /// What a mask says of columns is nothing about rows of the same numbers.
    #[test]
    fn a_range_along_two_axes() {
        let text = "
kernel @rows(%y: ptr<f32>) {
  %r = range 0 32
  %re = expand_dims %r axis 1
  %ce = expand_dims %r axis 0
  %rb = broadcast %re [32, 32]
  %cb = broadcast %ce [32, 32]
  %p = const 32 : tile<32x32xi32>
  %rs = map mul %rb, %p
  %at = map add %rs, %cb
  %one = const 1 : tile<32x32xi32>
  %m = map lt %cb, %one
  %v = const 1.0 : tile<32x32xf32>
  store %y, %at, %v, mask %m
  %b = map add %at, %p
  store %y, %b, %v
  %two = const 2 : tile<32x32xi32>
  %few = map lt %rb, %two
  store %y, %at, %v, mask %few
  %far = const 64 : tile<32x32xi32>
  %behind = map add %at, %far
  store %y, %behind, %v
}";
        let apart = |a: usize, b: usize| {
            with_stores(text, |origins, stores| origins.are_apart(stores[a], stores[b], Iterations::Any))
        };
        assert_eq!([(0, 1), (0, 3), (2, 1), (2, 3)].map(|(a, b)| apart(a, b)), [false, false, false, true]);
    }

    /// Constants of 32 bits wrap around.
    #[test]
    fn far_offsets() {
        let text = "
kernel @far(%y: ptr<f32>, %n: i32) {
  %c = const 65536 : i32
  %m = map add %n, %c
  %a0 = map mul %m, %c
  %b0 = map mul %n, %c
  %r = range 0 256
  %three = const 3 : tile<256xi32>
  %r3 = map mul %r, %three
  %as = splat %a0 [256]
  %bs = splat %b0 [256]
  %a = map add %as, %r3
  %b = map add %bs, %r3
  %v = const 1.0 : tile<256xf32>
  store %y, %a, %v
  store %y, %b, %v
}";
        assert!(!with_stores(text, |origins, stores| origins.are_apart(
            stores[0],
            stores[1],
            Iterations::Any
        )));
    }

    #[test]
    fn elements_that_repeat() {
        let text = "
kernel @repeat(%y: ptr<f32>) {
  %i = range 0 64
  %v = const 1.0 : tile<64xf32>
  store %y, %i, %v
  %z = const 0 : tile<64xi32>
  store %y, %z, %v
  %n = const 8 : tile<64xi32>
  %m = map rem_floor %i, %n
  store %y, %m, %v
  %sq = reshape %i [8, 8]
  %w = const 1.0 : tile<8x8xf32>
  store %y, %sq, %w
  %r = range 0 8
  %re = expand_dims %r axis 1
  %rb = broadcast %re [8, 8]
  store %y, %rb, %w
  %ten = const 10 : tile<8x8xi32>
  %rs = map mul %rb, %ten
  %both = map add %rs, %rb
  store %y, %both, %w
  %ce = expand_dims %r axis 0
  %cb = broadcast %ce [8, 8]
  %at = map add %rs, %cb
  store %y, %at, %w
}";
        let distinct: Vec<bool> = with_stores(text, |origins, stores| {
            stores.iter().map(|store| origins.are_distinct(store.offsets)).collect()
        });
        assert_eq!(distinct, [true, false, false, true, false, false, true]);
    }

    /// Whether 64 elements from `by * k` on, in iterations `k`, do not change places.
    fn stays(by: i32, bound: &str) -> bool {
        let text = format!(
            "kernel @steps(%y: ptr<f32>, %n: i32) {{
               %zero = const 0 : i32
               %one = const 1 : i32
               %ten = const 10 : i32
               for %k in %zero..{bound} step %one {{
                 %by = const {by} : i32
                 %first = map mul %k, %by
                 %s = splat %first [64]
                 %i = range 0 64
                 %at = map add %s, %i
                 %v = const 1.0 : tile<64xf32>
                 store %y, %at, %v
                 yield
               }}
             }}"
        );
        with_stores(&text, |origins, stores| origins.stays_in_place(stores[0]))
    }

    #[test]
    fn iterations_meet_where_they_overlap() {
        assert_eq!(
            [0, 1, 63, 64, 100, -64].map(|by| stays(by, "%ten")),
            [true, false, false, true, true, true]
        );
        assert_eq!([0, 1, 64].map(|by| stays(by, "%n")), [true, false, true]);
    }

    /// Barriers in a kernel that stores 256 elements twice, so many apart.
    fn barriers(distance: i32) -> usize {
        let text = format!(
            "kernel @twice(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(2) {{
               %row = program_id 0
               %width = const 1024 : i32
               %start = map mul %row, %width
               %far = const {distance} : i32
               %next = map add %start, %far
               %lanes = range 0 256
               %a = splat %start [256]
               %b = splat %next [256]
               %i = map add %a, %lanes
               %j = map add %b, %lanes
               %v = load %x, %i
               %w = load %x, %j
               store %y, %i, %w
               store %y, %j, %v
             }}"
        );
        let program = tilefuse_block::parse_valid(&text).unwrap();
        let ptx = compile_ptx(&program, Target::Sm80, &PtxOptions::default()).unwrap();
        ptx.text.matches("bar.sync").count()
    }

    #[test]
    fn stores_wait_where_runs_meet() {
        assert_eq!([256, 512, -256, 255, 128, -255].map(barriers), [0, 0, 0, 1, 1, 1]);
    }

    /// Where an element is at several positions of a tile, other threads write it, or read it.
    #[test]
    fn threads_wait_where_offsets_repeat() {
        let barriers = |offsets: &str, ops: &str| {
            let text = format!(
                "kernel @repeat(%x: ptr<i32> align(16), %y: ptr<i32> align(16)) warps(4) {{
                   %i = range 0 128
                   %n = const 32 : tile<128xi32>
                   %one = const 1 : tile<128xi32>
                   %at = map {offsets}
                   {ops}
                   store %y, %i, %v
                 }}"
            );
            let program = tilefuse_block::parse_valid(&text).unwrap();
            let ptx = compile_ptx(&program, Target::Sm80, &PtxOptions::default()).unwrap();
            ptx.text.matches("bar.sync").count()
        };
        let in_place = "%v = load %x, %at\n%w = map add %v, %one\nstore %x, %at, %w";
        let written = "%m = map lt %i, %n\nstore %x, %at, %i, mask %m\n%v = load %x, %at";
        let counted = "%old = atomic add %x, %at, %one order relaxed\n%v = load %x, %at";
        let count = |offsets: &str| [in_place, written, counted].map(|ops| barriers(offsets, ops));
        assert_eq!(count("rem_floor %i, %n"), [1, 1, 1]);
        assert_eq!(count("mul %i, %n"), [0, 0, 0]);
    }
}
