//! Shorthands for building programs of 32-bit offsets.

use tilefuse_block::{Builder, CacheHint, Elem, Literal, ScalarFn as F, TypeError, Value};

pub(super) type Made<T> = Result<T, TypeError>;

/// An integer of the kind of another value, repeated over its shape.
pub(super) fn like(b: &mut Builder, other: Value, value: i64) -> Value {
    let ty = b.ty(other);
    let (elem, shape) = (ty.elem().unwrap_or(Elem::I32), ty.shape.clone());
    b.constant(Literal::int(elem, value), &shape)
}

/// An integer.
pub(super) fn int(b: &mut Builder, value: u64) -> Value {
    b.constant(Literal::int(Elem::I32, value as i64), &[])
}

pub(super) fn add(b: &mut Builder, x: Value, y: Value) -> Made<Value> {
    b.map(F::Add, &[x, y])
}

/// `x + y`, a number.
pub(super) fn plus(b: &mut Builder, x: Value, y: i64) -> Made<Value> {
    if y == 0 {
        return Ok(x);
    }
    let y = like(b, x, y);
    b.map(F::Add, &[x, y])
}

/// `x * y`, a number.
pub(super) fn times(b: &mut Builder, x: Value, y: u64) -> Made<Value> {
    if y == 1 {
        return Ok(x);
    }
    let y = like(b, x, y as i64);
    b.map(F::Mul, &[x, y])
}

/// `x / y` and `x % y` of a natural number.
pub(super) fn split(b: &mut Builder, x: Value, y: u64) -> Made<(Value, Value)> {
    if y == 1 {
        return Ok((x, like(b, x, 0)));
    }
    let y = like(b, x, y as i64);
    Ok((b.map(F::DivTrunc, &[x, y])?, b.map(F::RemTrunc, &[x, y])?))
}

/// `x < y`, a number.
pub(super) fn below(b: &mut Builder, x: Value, y: u64) -> Made<Value> {
    let y = like(b, x, y as i64);
    b.map(F::Lt, &[x, y])
}

/// Both masks, where there are two.
pub(super) fn both(b: &mut Builder, x: Option<Value>, y: Option<Value>) -> Made<Option<Value>> {
    match (x, y) {
        (Some(x), Some(y)) => b.map(F::And, &[x, y]).map(Some),
        (one, other) => Ok(one.or(other)),
    }
}

/// A scalar repeated over a shape, added to a tile of that shape.
pub(super) fn shift(b: &mut Builder, tile: Value, scalar: Value) -> Made<Value> {
    let shape = b.ty(tile).shape.clone();
    let scalar = b.splat(scalar, &shape)?;
    b.map(F::Add, &[scalar, tile])
}

/// A tile along axis `axis` of a larger one of rank 2.
pub(super) fn along(b: &mut Builder, tile: Value, axis: u8, shape: &[u32]) -> Made<Value> {
    let tile = b.expand_dims(tile, 1 - axis)?;
    b.broadcast(tile, shape)
}

/// A mask along an axis, if there is one.
pub(super) fn mask_along(
    b: &mut Builder,
    mask: Option<Value>,
    axis: u8,
    shape: &[u32],
) -> Made<Option<Value>> {
    mask.map(|m| along(b, m, axis, shape)).transpose()
}

/// The same number in 64 bits. Sums of these fold into addresses.
pub(super) fn wide(b: &mut Builder, x: Value) -> Made<Value> {
    b.cast(x, Elem::I64)
}

/// What lies at offsets, in the kind of the sum.
pub(super) fn read(
    b: &mut Builder,
    ptr: Value,
    offsets: Value,
    mask: Option<Value>,
    sum: Elem,
) -> Made<Value> {
    let loaded = b.load(ptr, offsets, mask, None, CacheHint::Default)?;
    if b.ty(loaded).elem() == Some(sum) { Ok(loaded) } else { b.cast(loaded, sum) }
}

/// `x w + sum` where the mask holds.
pub(super) fn multiply_add(
    b: &mut Builder,
    x: Value,
    w: Value,
    sum: Value,
    mask: Option<Value>,
) -> Made<Value> {
    let next = b.map(F::Fma, &[x, w, sum])?;
    match mask {
        Some(mask) => b.map(F::Select, &[mask, next, sum]),
        None => Ok(next),
    }
}

/// The fewest products of a transposed convolution that are summed by themselves before they are added to others: those of all
/// channels at a tap, or of all taps at a channel. One long sum errs more than libtorch, which adds up products of matrices.
pub(super) const PART: u64 = 8;

/// The most products that such a sum has: beyond that libtorch's products of matrices are summed in parts as well.
pub(super) const LONGEST_PART: u64 = 128;

/// Sums with those that `part` makes of each stretch of so many channels, of at most `longest`, given where it begins and ends.
pub(super) fn in_parts(
    b: &mut Builder,
    (channels, longest): (u64, u64),
    sums: &[Value],
    part: impl Fn(&mut Builder, (Value, Value)) -> Made<Vec<Value>>,
) -> Made<Vec<Value>> {
    let (zero, end) = (int(b, 0), int(b, channels));
    if channels <= longest {
        let parts = part(b, (zero, end))?;
        return added(b, sums, &parts);
    }
    let by = int(b, longest);
    b.for_loop((zero, end, by), sums, |b, first, sums| {
        let behind = plus(b, first, longest as i64)?;
        let behind = b.map(F::Min, &[behind, end])?;
        let parts = part(b, (first, behind))?;
        added(b, sums, &parts)
    })
}

/// Sums with what further products add up to.
pub(super) fn added(b: &mut Builder, sums: &[Value], parts: &[Value]) -> Made<Vec<Value>> {
    sums.iter().zip(parts).map(|(&sum, &part)| b.map(F::Add, &[sum, part])).collect()
}

/// The one value that a loop carries.
pub(super) fn one(values: &[Value]) -> Made<Value> {
    let missing = || TypeError::Attribute { op: "for", message: "carries nothing".to_owned() };
    values.first().copied().ok_or_else(missing)
}

/// Writes a sum.
pub(super) fn write(
    b: &mut Builder,
    ptr: Value,
    offsets: Value,
    value: Value,
    mask: Option<Value>,
    elem: Elem,
) -> Made<()> {
    let value = if b.ty(value).elem() == Some(elem) { value } else { b.cast(value, elem)? };
    b.store(ptr, offsets, value, mask, CacheHint::Default)
}
