//! Drawing loads, stores and atomic operations of a few buffers at places that overlap, repeat or wrap, in loops too.
//!
//! Where one store has an element at several positions of its tile, or at others in other iterations, the language does not define
//! which value is left. There, the value is a function of the element, or of what it was.

use super::generate::{Generator, Result};
use super::memory::{along_axis, in_bounds};
use crate::builder::Builder;
use crate::interp::Arg;
use crate::program::{AtomicFn, CacheHint, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Shape, Type};

/// What is done at a place.
#[derive(Clone, Copy)]
enum Way {
    Load,
    /// A load and a store of what becomes of it.
    Update,
    Store,
    Atomic,
}

/// Ways of access that occur together. Loads keep what is around them in order, so that stores are also drawn without.
const WAYS: [&[Way]; 4] = [
    &[Way::Store, Way::Load, Way::Update, Way::Store, Way::Load, Way::Atomic],
    &[Way::Store],
    &[Way::Update],
    &[Way::Atomic, Way::Load],
];

/// Buffers of which each instance has a part.
struct Parts {
    pointers: Vec<(Value, Elem)>,
    /// Where the part begins, an `i32` scalar.
    base: Value,
    /// The elements of a part.
    len: i64,
    /// How they are accessed.
    ways: &'static [Way],
}

/// Elements of a part.
#[derive(Clone, Copy)]
struct Place {
    /// Offsets from where the part begins.
    local: Value,
    offsets: Value,
    mask: Value,
    /// Whether no element is at two positions of the tile.
    distinct: bool,
    /// Whether, besides, none is at different positions in different iterations.
    fixed: bool,
}

/// The sum of multiples of the positions of a tile.
struct Sum {
    /// None for a scalar.
    value: Option<Value>,
    /// The multiples with the extents.
    strides: Vec<(i64, i64)>,
    /// Whether others than positions are among what is multiplied, or products wrap.
    repeats: bool,
}

/// A loop around accesses.
#[derive(Clone, Copy)]
struct Counter {
    value: Value,
    step: i64,
    trips: i64,
}

impl Generator<'_, '_> {
    /// Accesses of one or two buffers of their own.
    pub(super) fn overlap(&mut self, b: &mut Builder) -> Result<()> {
        let len = self.choices.of([64, 16, 100, 300, 1025]);
        let instances = self.grid.iter().product::<u32>() as usize;
        let mut pointers = Vec::new();
        for _ in 0..self.choices.of([1, 1, 2]) {
            let elem = if self.choices.chance(50) { Elem::I32 } else { self.choices.elem() };
            pointers.push((self.buffer(b, "m", elem, len as usize * instances), elem));
        }
        let part = self.int(b, len);
        let base = match self.instance {
            Some(instance) => b.map(ScalarFn::Mul, &[instance, part])?,
            None => self.int(b, 0),
        };
        let ways = self.choices.of([WAYS[0], WAYS[0], WAYS[1], WAYS[2], WAYS[3]]);
        let parts = Parts { pointers, base, len, ways };
        let mut places = Vec::new();
        for _ in 0..2 + self.choices.below(5) {
            if self.choices.is_exhausted() {
                break;
            }
            if self.choices.chance(30) {
                self.loop_of_accesses(b, &parts, &mut places)?;
            } else if let Some(loaded) = self.access(b, &parts, &mut places, None)? {
                self.pool.push(loaded);
            }
            if self.choices.chance(20) {
                let value = if self.choices.chance(50) { self.reduction(b)? } else { self.function(b)? };
                self.pool.push(value);
            }
        }
        Ok(())
    }

    /// A loop that hands out a digest of what it loads.
    fn loop_of_accesses(&mut self, b: &mut Builder, parts: &Parts, places: &mut Vec<Place>) -> Result<()> {
        let (first, trips) = (self.choices.of([0, 1, -2, 5]), self.choices.of([2, 3, 8, 1, 0]));
        let step = 1 + self.choices.below(3) as i64;
        let bounds = [first, first + trips * step - trips.min(1), step].map(|n| self.number(b, Elem::I32, n));
        let [first, end, by] = bounds;
        let digest = self.int(b, 0);
        let results = b.for_loop((first, end, by), &[digest], |b, value, carried| {
            let (outside, known) = (self.pool.len(), places.len());
            self.pool.push(value);
            self.depth += 1;
            let mut digest = carried[0];
            for _ in 0..1 + self.choices.below(4) {
                let Some(loaded) = self.access(b, parts, places, Some(Counter { value, step, trips }))?
                else {
                    continue;
                };
                self.pool.push(loaded);
                digest = add_digest(b, digest, loaded)?;
            }
            self.depth -= 1;
            self.pool.truncate(outside);
            places.truncate(known);
            Ok(vec![digest])
        })?;
        self.pool.extend(results);
        Ok(())
    }

    /// One access, or a load and a store in place; what it loads.
    fn access(
        &mut self,
        b: &mut Builder,
        parts: &Parts,
        places: &mut Vec<Place>,
        counter: Option<Counter>,
    ) -> Result<Option<Value>> {
        let place = match (self.choices.below(3), self.choices.pick(places)) {
            (0, Some(known)) => known,
            (1, Some(known)) => self.shifted(b, parts, known)?,
            _ => self.place_in_part(b, parts, counter)?,
        };
        places.push(place);
        let (pointer, elem) = self.choices.pick(&parts.pointers).unwrap_or(parts.pointers[0]);
        let ty = b.ty(place.offsets).with_elem(elem);
        match self.choices.pick(parts.ways).unwrap_or(Way::Store) {
            Way::Load => self.load_at(b, pointer, place).map(Some),
            Way::Update => {
                let loaded = self.load_at(b, pointer, place)?;
                let function = if elem == Elem::Bool { ScalarFn::Xor } else { ScalarFn::Add };
                let other = if place.distinct { self.get(b, &ty)? } else { self.of_element(b, place, elem)? };
                let value = b.map(function, &[loaded, other])?;
                b.store(pointer, place.offsets, value, Some(place.mask), CacheHint::Default)?;
                Ok(Some(loaded))
            }
            Way::Atomic if elem.is_int() && elem.bytes() >= 4 => {
                let functions = [AtomicFn::Add, AtomicFn::Max, AtomicFn::And, AtomicFn::Xor];
                let (function, order) = (self.choices.of(functions), self.order());
                let value = self.get(b, &ty)?;
                let old = b.atomic(function, (pointer, place.offsets, value), Some(place.mask), order)?;
                Ok((place.fixed && self.depth == 0).then_some(old))
            }
            Way::Store | Way::Atomic => {
                let value = if place.fixed { self.get(b, &ty)? } else { self.of_element(b, place, elem)? };
                b.store(pointer, place.offsets, value, Some(place.mask), CacheHint::Default)?;
                Ok(None)
            }
        }
    }

    /// The elements before or behind others.
    fn shifted(&mut self, b: &mut Builder, parts: &Parts, place: Place) -> Result<Place> {
        let ty = b.ty(place.local).clone();
        let by = self.choices.of([1, -1, 2, 8, 0, 32, -64]);
        let by = self.number(b, ty.elem().unwrap_or(Elem::I32), by);
        let by = if ty.rank() == 0 { by } else { b.splat(by, &ty.shape)? };
        let local = b.map(ScalarFn::Add, &[place.local, by])?;
        let offsets = b.map(ScalarFn::Add, &[place.offsets, by])?;
        let mask = in_bounds(b, local, &ty, parts.len as usize)?;
        Ok(Place { local, offsets, mask, ..place })
    }

    fn load_at(&mut self, b: &mut Builder, pointer: Value, place: Place) -> Result<Value> {
        b.load(pointer, place.offsets, Some(place.mask), None, CacheHint::Default)
    }

    /// A value that is the same wherever an element occurs.
    fn of_element(&mut self, b: &mut Builder, place: Place, elem: Elem) -> Result<Value> {
        let ty = b.ty(place.local).clone();
        if self.choices.chance(30) {
            let literal = self.choices.literal(elem);
            return Ok(b.constant(literal, &ty.shape));
        }
        let factor = self.choices.of([1, 3, -7]);
        let factor = b.constant(Literal::int(ty.elem().unwrap_or(Elem::I32), factor), &ty.shape);
        let value = b.map(ScalarFn::Mul, &[place.local, factor])?;
        b.cast(value, elem)
    }

    /// A number as a constant or as the argument of a parameter.
    fn number(&mut self, b: &mut Builder, elem: Elem, value: i64) -> Value {
        let literal = Literal::int(elem, value);
        if self.choices.chance(25) {
            let name = format!("n{}", self.args.len());
            self.args.push(Arg::Scalar(literal));
            return b.scalar_param(&name, elem);
        }
        b.constant(literal, &[])
    }

    /// Multiples of positions and of a counter, summed up in some kind of integers and brought into a part.
    fn place_in_part(&mut self, b: &mut Builder, parts: &Parts, counter: Option<Counter>) -> Result<Place> {
        let kinds = [Elem::I32, Elem::I32, Elem::I32, Elem::I64, Elem::U32, Elem::U8, Elem::U16, Elem::U64];
        let kind = self.choices.of(kinds);
        let shape = self.familiar_shape(b);
        let Sum { value: sum, strides, repeats } = self.sum_of_positions(b, kind, &shape)?;
        let numel = shape.iter().product::<u32>();
        let start = self.choices.of([0, 0, 1, 5, -3, i64::from(numel / 2), parts.len / 2]);
        let low: i64 = strides.iter().map(|&(stride, count)| (stride * (count - 1)).min(0)).sum();
        let mut scalar = self.number(b, kind, start - low);
        let mut moves = (0, 1);
        if let Some(counter) = counter {
            let by = self.choices.of([1, 0, i64::from(numel), -1, i64::from(shape.last().map_or(1, |&n| n))]);
            moves = (by * counter.step, counter.trips);
            let (by, value) = (self.number(b, kind, by), b.cast(counter.value, kind)?);
            let term = b.map(ScalarFn::Mul, &[value, by])?;
            scalar = b.map(ScalarFn::Add, &[scalar, term])?;
        }
        if !shape.is_empty() {
            scalar = b.splat(scalar, &shape)?;
        }
        let mut local = match sum {
            Some(sum) => b.map(ScalarFn::Add, &[sum, scalar])?,
            None => scalar,
        };
        let to = if kind == Elem::I64 || self.choices.chance(40) { Elem::I64 } else { Elem::I32 };
        let early = self.choices.chance(50);
        if !early {
            local = b.cast(local, to)?;
        }
        let ty = b.ty(local).clone();
        let wraps = self.choices.chance(20);
        if wraps {
            let len = b.constant(Literal::int(ty.elem().unwrap_or(to), parts.len), &ty.shape);
            local = b.map(ScalarFn::RemFloor, &[local, len])?;
        }
        let mut mask = in_bounds(b, local, &ty, parts.len as usize)?;
        if self.choices.chance(30) {
            let extra = self.get(b, &ty.with_elem(Elem::Bool))?;
            mask = b.map(ScalarFn::And, &[mask, extra])?;
        }
        local = b.cast(local, to)?;
        let mut base = b.cast(parts.base, to)?;
        if !shape.is_empty() {
            base = b.splat(base, &shape)?;
        }
        let offsets = b.map(ScalarFn::Add, &[local, base])?;
        let distinct = !wraps && !repeats && kind.bits() >= 32 && are_distinct(&strides, &[]);
        let fixed = distinct && (moves.0 == 0 || are_distinct(&strides, &[moves]));
        Ok(Place { local, offsets, mask, distinct, fixed })
    }

    fn sum_of_positions(&mut self, b: &mut Builder, kind: Elem, shape: &Shape) -> Result<Sum> {
        let ty = Type::tile(kind, shape);
        let (mut sum, mut strides, mut repeats) = (None, Vec::new(), false);
        let mut dense = 1;
        for axis in (0..ty.rank()).rev() {
            let extent = i64::from(shape[axis]);
            let pitches = [dense, dense, dense, dense + 1, 2 * dense, dense / 2, 1, 0, -dense, WRAPS];
            let stride = self.choices.of(pitches);
            repeats |= stride == WRAPS;
            let index = b.range(0, shape[axis])?;
            let mut index = b.cast(index, kind)?;
            if self.choices.chance(15) {
                let unit = self.choices.of([8, 4, 2, 3]);
                let unit = self.number(b, kind, unit);
                let unit = b.splat(unit, &[shape[axis]])?;
                let digit = self.choices.of([ScalarFn::RemFloor, ScalarFn::DivFloor]);
                index = b.map(digit, &[index, unit])?;
                repeats = true;
            }
            let by = self.number(b, kind, stride);
            let by = b.splat(by, &[shape[axis]])?;
            let term = along_axis(b, &ty, axis, (index, by))?;
            sum = Some(match sum {
                Some(sum) => b.map(ScalarFn::Add, &[sum, term])?,
                None => term,
            });
            strides.push((stride, extent));
            dense = if stride == WRAPS { dense } else { (stride.abs() * extent).max(1) };
        }
        Ok(Sum { value: sum, strides, repeats })
    }
}

/// A stride at which multiples in 32 bits wrap around to small numbers.
const WRAPS: i64 = (1 << 28) + 1;

/// Whether sums of one of so many multiples of each number are all different.
fn are_distinct(strides: &[(i64, i64)], more: &[(i64, i64)]) -> bool {
    let mut all: Vec<(i64, i64)> =
        strides.iter().chain(more).map(|&(by, count)| (by.abs(), count)).filter(|&(_, n)| n > 1).collect();
    all.sort_unstable();
    let mut span = 0;
    all.into_iter().all(|(by, count)| {
        let apart = by > span;
        span += by * (count - 1);
        apart
    })
}

/// A number that depends on the digest, on a value's elements and on the order of the two.
fn add_digest(b: &mut Builder, digest: Value, value: Value) -> Result<Value> {
    let numel = b.ty(value).numel() as u32;
    let mut word = b.cast(value, Elem::I32)?;
    if b.ty(word).rank() > 0 {
        word = b.reshape(word, &[numel])?;
        word = b.reduce(ReduceFn::Xor, word, 0, None)?;
    }
    let factor = b.constant(Literal::int(Elem::I32, 31), &[]);
    let digest = b.map(ScalarFn::Mul, &[digest, factor])?;
    b.map(ScalarFn::Add, &[digest, word])
}
