//! Whether accesses have elements in common, within an iteration of the loops around them and between iterations.
//!
//! Offsets are the sum of a constant, of scalars of which nothing is known, and of multiples of positions and of the counters of
//! loops, as [`Affine`] says:
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

use std::collections::BTreeMap;

use num_integer::gcd;
use smallvec::SmallVec;
use tilefuse_block::affine::{Affine, Base, Facts, Prefix};
use tilefuse_block::{Literal, Op, OpKind, Program, ScalarFn, Value};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counted {
    /// Positions along an axis of the tile.
    Axis(usize),
    /// The iterations of the loop with this counter.
    Loop(Value),
    /// Several of these together, or one from its last to its first.
    Other,
}

/// A multiple of the numbers from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Multiple {
    by: i64,
    /// Of how many numbers; `None` where a loop's bounds are not known.
    count: Option<i64>,
    of: Counted,
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

/// Offsets, of 32 or 64 bits, as a sum modulo 2^32.
#[derive(Clone, Default, Debug)]
struct Offsets {
    /// Scalars of which nothing is known, with their factors.
    scalars: BTreeMap<u32, i64>,
    constant: i64,
    multiples: SmallVec<[Multiple; 4]>,
}

/// Sums below are those of 32 bits.
const NEAR: u64 = 1 << 30;

/// Where values of a program come from.
pub(crate) struct Origins<'p> {
    program: &'p Program,
    facts: Affine,
    /// By value: the operation whose result it is.
    ops: Vec<Option<&'p Op>>,
    /// By value: the loop whose counter it is.
    counters: Vec<Option<&'p Op>>,
    /// By value: whether it may differ between iterations of a loop.
    varies: Vec<bool>,
}

/// What is known of the iterations in which two accesses happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
            facts: Affine::new(program),
            ops: vec![None; count],
            counters: vec![None; count],
            varies: vec![false; count],
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
    pub(crate) fn are_disjoint(&self, a: Accessed, b: Accessed, iterations: Iterations) -> bool {
        let known = |iterations| {
            let of = |access| self.accessed(access, iterations, true);
            of(a).zip(of(b)).is_some_and(|(a, b)| a.scalars == b.scalars && disjoint(a, b))
        };
        known(Iterations::Any) || (iterations == Iterations::Same && known(Iterations::Same))
    }

    /// Whether an element of an access is known to be at the same position of its tile in whatever iterations of the loops
    /// around it, where no element of the tile is at two positions.
    pub(crate) fn stays_in_place(&self, access: Accessed) -> bool {
        let position = |m: &Multiple| !matches!(m.of, Counted::Loop(_));
        self.accessed(access, Iterations::Any, false).is_some_and(|offsets| offsets.are_digits(position))
    }

    /// Whether a tile of offsets is known to have each element once.
    pub(crate) fn are_distinct(&self, tile: Value) -> bool {
        let Some(facts) = self.facts.get(tile) else { return false };
        let Some(offsets) = self.along_axes(tile, facts).and_then(Offsets::normalised) else { return false };
        offsets.multiples.iter().all(|m| m.by != 0) && offsets.are_digits(|_| true)
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

    /// The offsets that are not masked off; `None` where too little is known of them. With `joined`, numbers of which a mask limits
    /// the sum are one.
    fn accessed(&self, access: Accessed, iterations: Iterations, joined: bool) -> Option<Offsets> {
        let mut offsets = self.offsets(access.offsets, iterations)?;
        for limit in access.mask.map(|mask| self.limits(mask)).unwrap_or_default() {
            if joined || limit.limit.terms.is_empty() {
                self.confine(&mut offsets, limit);
            }
        }
        offsets.multiples.retain(|m| m.by != 0 && m.count != Some(1));
        offsets.normalised()
    }

    /// Conditions that hold wherever a mask is set.
    fn limits(&self, mask: Value) -> SmallVec<[&Prefix; 2]> {
        let prefixes: SmallVec<[&Prefix; 2]> =
            self.facts.get(mask).iter().flat_map(|f| &f.prefixes).collect();
        match self.ops[mask.index()] {
            Some(op) if prefixes.is_empty() && op.kind == OpKind::Map(ScalarFn::And) => {
                op.args.iter().flat_map(|&arg| self.limits(arg)).collect()
            }
            _ => prefixes,
        }
    }

    /// Narrows offsets to where a condition on a sum of positions and counters holds.
    fn confine(&self, offsets: &mut Offsets, limit: &Prefix) -> Option<()> {
        let mut sum = Offsets::default();
        sum.multiples.push(Multiple { by: limit.stride, count: None, of: Counted::Axis(limit.axis) });
        for &(scalar, factor) in &limit.limit.terms {
            self.add_counter(&mut sum, scalar, factor.checked_neg()?)?;
        }
        let below = limit.limit.constant.checked_sub(sum.constant)?;
        if !sum.scalars.is_empty() || sum.multiples.iter().any(|m| m.by <= 0) {
            return None;
        }
        // The sum is a multiple of this.
        let unit = sum.multiples.iter().fold(0, |all, m| gcd(all, m.by));
        let count = below.checked_add(unit - 1)?.div_euclid(unit).max(0);
        // Where the same sum is a part of the offsets, as the multiple of one number.
        let place = |m: &Multiple| offsets.multiples.iter().position(|o| o.of == m.of);
        let places: SmallVec<[usize; 4]> = sum.multiples.iter().map(place).collect::<Option<_>>()?;
        let of = |at: usize| offsets.multiples[places[at]];
        let (first, by) = (sum.multiples[0].by, of(0).by);
        let same = |(at, m): (usize, &Multiple)| of(at).by.checked_mul(first) == by.checked_mul(m.by);
        if !sum.multiples.iter().enumerate().all(same) {
            return None;
        }
        if let &[only] = &places[..] {
            let known = &mut offsets.multiples[only].count;
            *known = Some(known.map_or(count, |known| known.min(count)));
            return Some(());
        }
        let reach =
            |sum: i64, (at, m): (usize, &Multiple)| m.by.checked_mul(of(at).count? - 1)?.checked_add(sum);
        if sum.multiples.iter().enumerate().try_fold(0, reach).is_some_and(|last| last < below) {
            return None;
        }
        let joined = Multiple { by: by.checked_mul(unit)? / first, count: Some(count), of: Counted::Other };
        let parts: SmallVec<[Counted; 4]> = sum.multiples.iter().map(|m| m.of).collect();
        offsets.multiples.retain(|m| !parts.contains(&m.of));
        offsets.multiples.push(joined);
        Some(())
    }

    /// Differences along the axes of a tile.
    fn along_axes(&self, tile: Value, facts: &Facts) -> Option<Offsets> {
        let ty = self.program.ty(tile);
        let mut offsets = Offsets::default();
        for (axis, (&stride, &extent)) in facts.strides.iter().zip(&ty.shape).enumerate() {
            if extent != 1 {
                let of = Counted::Axis(axis);
                offsets.multiples.push(Multiple { by: stride?, count: Some(extent.into()), of });
            }
        }
        Some(offsets)
    }

    /// Offsets as a sum; `None` where too little is known of a tile, or it changes with more than counters.
    fn offsets(&self, tile: Value, iterations: Iterations) -> Option<Offsets> {
        let facts = self.facts.get(tile)?;
        let mut offsets = self.along_axes(tile, facts)?;
        self.add(&mut offsets, facts.base.as_ref()?, 1, iterations)?;
        Some(offsets)
    }

    /// Adds the multiple of a linear combination.
    fn add(&self, offsets: &mut Offsets, base: &Base, by: i64, iterations: Iterations) -> Option<()> {
        offsets.constant = base.constant.checked_mul(by)?.checked_add(offsets.constant)?;
        for &(scalar, factor) in &base.terms {
            let factor = factor.checked_mul(by)?;
            match iterations {
                Iterations::Any => self.add_counter(offsets, scalar, factor)?,
                Iterations::Same => offsets.add_scalar(scalar, factor)?,
            }
        }
        Some(())
    }

    /// Adds the multiple of a scalar in whatever iteration.
    fn add_counter(&self, offsets: &mut Offsets, scalar: Value, by: i64) -> Option<()> {
        let Some(op) = self.counters[scalar.index()] else {
            return if self.varies[scalar.index()] { None } else { offsets.add_scalar(scalar, by) };
        };
        let facts = |at: usize| self.facts.get(*op.args.get(at)?);
        let (first, end) = (facts(0)?.base.as_ref()?, facts(1)?.base.as_ref());
        // Steps are positive; of one that is not known, every number may be the next.
        let step = facts(2)?.constant().unwrap_or(1).max(1);
        let exact = facts(0)?.exact && facts(1)?.exact;
        let range = end.and_then(|end| end.plus(first, -1)).filter(|r| exact && r.terms.is_empty());
        let count = range.map(|r| r.constant.max(0).saturating_add(step - 1) / step);
        self.add(offsets, first, by, Iterations::Any)?;
        offsets.add_multiple(Multiple { by: by.checked_mul(step)?, count, of: Counted::Loop(scalar) })
    }
}

impl Offsets {
    fn add_scalar(&mut self, scalar: Value, by: i64) -> Option<()> {
        let factor = self.scalars.entry(scalar.0).or_default();
        *factor = factor.checked_add(by)?;
        if *factor == 0 {
            self.scalars.remove(&scalar.0);
        }
        Some(())
    }

    fn add_multiple(&mut self, multiple: Multiple) -> Option<()> {
        match self.multiples.iter_mut().find(|m| m.of == multiple.of) {
            Some(known) => known.by = known.by.checked_add(multiple.by)?,
            None => self.multiples.push(multiple),
        }
        Some(())
    }

    /// With factors that are not negative, in their order; `None` where the sum may wrap around.
    fn normalised(mut self) -> Option<Offsets> {
        for multiple in self.multiples.iter_mut().filter(|m| m.by < 0) {
            let last = multiple.by.checked_mul((multiple.count? - 1).max(0))?;
            self.constant = self.constant.checked_add(last)?;
            *multiple = Multiple { by: multiple.by.checked_neg()?, of: reversed(multiple.of), ..*multiple };
        }
        self.multiples.sort_unstable_by_key(|m| m.by);
        self.is_near().then_some(self)
    }

    /// Whether none of what is known of it is so large that 32 bits might not hold the sum. Loops of unknown bounds are taken not
    /// to go that far.
    fn is_near(&self) -> bool {
        let near = |n: i64| n.unsigned_abs() < NEAR;
        let far =
            |sum: i64, m: &Multiple| m.by.checked_mul(m.count.map_or(1, |count| count - 1))?.checked_add(sum);
        self.multiples.iter().all(|m| near(m.by))
            && near(self.constant)
            && self.multiples.iter().try_fold(self.constant, far).is_some_and(near)
    }

    /// Whether offsets are the same only where each of these multiples is.
    fn are_digits(mut self, of: impl Fn(&Multiple) -> bool) -> bool {
        while self.multiples.iter().any(&of) {
            let Some(last) = self.multiples.pop() else { break };
            if self.span().is_none_or(|(low, high)| high - low >= last.by) {
                return false;
            }
        }
        true
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

/// What is counted from the other end: a loop stays one, its first iteration is only another.
fn reversed(of: Counted) -> Counted {
    match of {
        Counted::Loop(_) => of,
        Counted::Axis(_) | Counted::Other => Counted::Other,
    }
}

/// Whether two sums over the same scalars are never equal.
fn disjoint(mut a: Offsets, mut b: Offsets) -> bool {
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
        with_stores(&text, |origins, stores| origins.are_disjoint(stores[0], stores[1], Iterations::Any))
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
            with_stores(text, |origins, stores| origins.are_disjoint(stores[a], stores[b], Iterations::Any))
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
        assert!(!with_stores(text, |origins, stores| origins.are_disjoint(
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

    /// Whether rows of 16 elements that a mask keeps below `rows`, of blocks of 8, are apart from what begins `behind` the first
    /// row.
    fn below(rows: i32, behind: i32) -> bool {
        let text = format!(
            "kernel @rows(%y: ptr<f32>, %n: i32) {{
               %zero = const 0 : i32
               %eight = const 8 : i32
               %end = const 20 : i32
               %pitch = const 16 : tile<8x16xi32>
               %l = range 0 8
               %le = expand_dims %l axis 1
               %lb = broadcast %le [8, 16]
               %c = range 0 16
               %ce = expand_dims %c axis 0
               %cb = broadcast %ce [8, 16]
               %v = const 1.0 : tile<8x16xf32>
               %far = const {behind} : i32
               for %k in %zero..%end step %eight {{
                 %s = splat %k [8, 16]
                 %row = map add %s, %lb
                 %first = map mul %row, %pitch
                 %at = map add %first, %cb
                 %rows = const {rows} : tile<8x16xi32>
                 %m = map lt %row, %rows
                 store %y, %at, %v, mask %m
                 %f = splat %far [8, 16]
                 %next = map add %f, %cb
                 store %y, %next, %v
                 yield
               }}
             }}"
        );
        with_stores(&text, |origins, stores| origins.are_disjoint(stores[0], stores[1], Iterations::Any))
    }

    #[test]
    fn masks_limit_sums() {
        assert_eq!([319, 320, 384].map(|behind| below(20, behind)), [false, true, true]);
        assert_eq!([319, 320, 384].map(|behind| below(24, behind)), [false, false, true]);
        assert_eq!([143, 144].map(|behind| below(9, behind)), [false, true]);
    }

    /// Numbers of 8 bits are the same 256 elements further on, also where they are cast to offsets.
    #[test]
    fn narrow_offsets() {
        let text = "
kernel @narrow(%y: ptr<f32>, %n: u8) {
  %i = range 0 64
  %u = cast %i u8
  %s = splat %n [64]
  %at = map add %u, %s
  %by = const 64 : tile<64xu8>
  %next = map add %at, %by
  %far = map add %next, %by
  %wide = cast %at i32
  %behind = cast %far i32
  %v = const 1.0 : tile<64xf32>
  store %y, %wide, %v
  store %y, %behind, %v
}";
        assert!(!with_stores(text, |origins, stores| origins.are_disjoint(
            stores[0],
            stores[1],
            Iterations::Any
        )));
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
