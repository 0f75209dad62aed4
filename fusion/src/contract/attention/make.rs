//! Shorthands for building programs whose offsets are of one kind.

use tilefuse_block::{Builder, CacheHint, Elem, Literal, ScalarFn as F, TypeError, Value};

use super::call::MaskForm;

pub(super) type Made<T> = Result<T, TypeError>;

/// An axis of a tile.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    /// `[extent]`: its indices, of the kind of offsets.
    pub(super) at: Value,
    /// How many there are.
    pub(super) extent: u32,
    /// Which of them count, where not all do.
    pub(super) inside: Option<Value>,
}

/// A pointer, and the first element of a member of the batch.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) ptr: Value,
    pub(super) start: Value,
}

/// The kinds of numbers.
#[derive(Clone, Copy)]
pub(super) struct Kinds {
    /// Of offsets.
    pub(super) index: Elem,
    /// Of sums.
    pub(super) sum: Elem,
}

/// A tile of one axis, repeated along the other one of two.
pub(super) fn along(b: &mut Builder, tile: Value, axis: usize, shape: &[u32]) -> Made<Value> {
    let tile = b.expand_dims(tile, 1 - axis as u8)?;
    b.broadcast(tile, shape)
}

/// Both masks, where there are two.
pub(super) fn both(b: &mut Builder, x: Option<Value>, y: Option<Value>) -> Made<Option<Value>> {
    match (x, y) {
        (Some(x), Some(y)) => b.map(F::And, &[x, y]).map(Some),
        (one, other) => Ok(one.or(other)),
    }
}

impl Kinds {
    /// Scores with the caller's mask, and what else excludes some of them. libtorch's operator adds -inf where a mask of truth
    /// values is false: a score that is NaN or +inf makes NaN of its row there, too.
    pub(super) fn masked(
        self,
        b: &mut Builder,
        scores: Value,
        (mask, form): (Value, MaskForm),
        kept: Option<Value>,
    ) -> Made<(Value, Option<Value>)> {
        let added = match form {
            MaskForm::Keeps => return Ok((scores, both(b, kept, Some(mask))?)),
            MaskForm::Opens => {
                let shape = b.ty(scores).shape.clone();
                let [zero, none] = [0.0, f64::NEG_INFINITY].map(|value| self.float(b, value, &shape));
                b.map(F::Select, &[mask, zero, none])?
            }
            MaskForm::Added(_) => self.wide(b, mask)?,
        };
        Ok((b.map(F::Add, &[scores, added])?, kept))
    }

    pub(super) fn int(self, b: &mut Builder, value: i64) -> Value {
        b.constant(Literal::int(self.index, value), &[])
    }

    pub(super) fn float(self, b: &mut Builder, value: f64, shape: &[u32]) -> Value {
        b.constant(Literal::float(self.sum, value), shape)
    }

    pub(super) fn times(self, b: &mut Builder, scalar: Value, factor: i64) -> Made<Value> {
        if factor == 1 {
            return Ok(scalar);
        }
        let factor = self.int(b, factor);
        b.map(F::Mul, &[scalar, factor])
    }

    /// `start..start + extent`, of which those below `end` count where one is given.
    pub(super) fn axis(self, b: &mut Builder, start: Value, extent: u32, end: Option<i64>) -> Made<Axis> {
        let lanes = b.range(0, extent)?;
        let lanes = b.cast(lanes, self.index)?;
        let start = b.splat(start, &[extent])?;
        let at = b.map(F::Add, &[start, lanes])?;
        let inside = match end {
            Some(end) => {
                let end = b.constant(Literal::int(self.index, end), &[extent]);
                Some(b.map(F::Lt, &[at, end])?)
            }
            None => None,
        };
        Ok(Axis { at, extent, inside })
    }

    /// The digits of `id` in the extents of a batch.
    pub(super) fn members(self, b: &mut Builder, id: Value, sizes: &[i64]) -> Made<Vec<Value>> {
        let mut members = Vec::new();
        let mut rest = b.cast(id, self.index)?;
        for &size in sizes.iter().skip(1).rev() {
            let size = self.int(b, size);
            members.push(b.map(F::RemTrunc, &[rest, size])?);
            rest = b.map(F::DivTrunc, &[rest, size])?;
        }
        members.push(rest);
        members.reverse();
        members.truncate(sizes.len());
        Ok(members)
    }

    /// The first element of a member, at these strides.
    pub(super) fn base(
        self,
        b: &mut Builder,
        offset: i64,
        members: &[Value],
        strides: &[i64],
    ) -> Made<Value> {
        let mut sum = self.int(b, offset);
        for (&member, &stride) in members.iter().zip(strides).filter(|(_, s)| **s != 0) {
            let part = self.times(b, member, stride)?;
            sum = b.map(F::Add, &[sum, part])?;
        }
        Ok(sum)
    }

    /// The offsets of a tile over two axes at these strides, and which of them count.
    pub(super) fn offsets(
        self,
        b: &mut Builder,
        axes: [(Axis, i64); 2],
        start: Value,
    ) -> Made<(Value, Option<Value>)> {
        let shape = axes.map(|(axis, _)| axis.extent);
        let mut sum = b.splat(start, &shape)?;
        let mut mask = None;
        for (position, (axis, stride)) in axes.into_iter().enumerate() {
            let stride = b.constant(Literal::int(self.index, stride), &[axis.extent]);
            let scaled = b.map(F::Mul, &[axis.at, stride])?;
            let part = along(b, scaled, position, &shape)?;
            sum = b.map(F::Add, &[sum, part])?;
            let inside = axis.inside.map(|inside| along(b, inside, position, &shape)).transpose()?;
            mask = both(b, mask, inside)?;
        }
        Ok((sum, mask))
    }

    /// The offsets of one axis at a stride.
    pub(super) fn row(self, b: &mut Builder, axis: Axis, stride: i64, start: Value) -> Made<Value> {
        let start = b.splat(start, &[axis.extent])?;
        let stride = b.constant(Literal::int(self.index, stride), &[axis.extent]);
        let scaled = b.map(F::Mul, &[axis.at, stride])?;
        b.map(F::Add, &[start, scaled])
    }

    /// A number in the kind of sums.
    pub(super) fn wide(self, b: &mut Builder, tile: Value) -> Made<Value> {
        if b.ty(tile).elem() == Some(self.sum) { Ok(tile) } else { b.cast(tile, self.sum) }
    }

    /// What lies there, in the kind that it has.
    pub(super) fn load(self, b: &mut Builder, place: Place, axes: [(Axis, i64); 2]) -> Made<Value> {
        let (offsets, mask) = self.offsets(b, axes, place.start)?;
        b.load(place.ptr, offsets, mask, None, CacheHint::Default)
    }

    /// What lies there, in the kind of sums.
    pub(super) fn read(self, b: &mut Builder, place: Place, axes: [(Axis, i64); 2]) -> Made<Value> {
        let loaded = self.load(b, place, axes)?;
        self.wide(b, loaded)
    }
}
