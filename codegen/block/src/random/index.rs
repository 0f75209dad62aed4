//! Random index arithmetic.

use super::generate::Result;
use super::{Case, Choices};
use crate::builder::Builder;
use crate::interp::{Arg, Buffer};
use crate::program::{CacheHint, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal, Shape};

/// Functions that offsets and masks are made of; the first ones more often.
const FUNCTIONS: [ScalarFn; 17] = [
    ScalarFn::Add,
    ScalarFn::Add,
    ScalarFn::Mul,
    ScalarFn::Sub,
    ScalarFn::DivFloor,
    ScalarFn::RemFloor,
    ScalarFn::DivTrunc,
    ScalarFn::RemTrunc,
    ScalarFn::Neg,
    ScalarFn::Abs,
    ScalarFn::Max,
    ScalarFn::Min,
    ScalarFn::Shl,
    ScalarFn::Shr,
    ScalarFn::And,
    ScalarFn::Or,
    ScalarFn::Xor,
];

const COMPARISONS: [ScalarFn; 6] =
    [ScalarFn::Lt, ScalarFn::Lt, ScalarFn::Le, ScalarFn::Gt, ScalarFn::Ge, ScalarFn::Eq];

pub(super) fn case(choices: &mut Choices<'_>) -> Result<Case> {
    let mut b = Builder::new("indices");
    let grid = [1 + choices.below(5) as u32, 1, 1];
    let shape = choices.of::<&[u32], 5>([&[8], &[4, 8], &[16, 2], &[2, 4, 4], &[]]);
    let shape = Shape::from_slice(shape);
    let parameter = b.scalar_param("n", Elem::I32);
    let n = choices.of([7, 0, 100, 1 << 20, -5, i64::from(i32::MAX)]);
    let id = b.program_id(0)?;
    let mut pool = [Vec::new(), Vec::new(), Vec::new()];
    for scalar in [parameter, id] {
        let value = if shape.is_empty() { scalar } else { b.splat(scalar, &shape)? };
        pool[0].push(value);
    }
    for axis in 0..shape.len() {
        let start = choices.of([0, 0, 1, -3, 64, i32::MAX - 3]);
        pool[0].push(along(&mut b, &shape, axis, start)?);
    }
    for _ in 0..4 + choices.below(16) {
        step(choices, &mut b, &shape, &mut pool)?;
    }
    let pointers = [("x", Elem::I32), ("y", Elem::I64), ("z", Elem::Bool)];
    let mut args = vec![Arg::int(Elem::I32, n)];
    let (at, len) = places(&mut b, &shape, id)?;
    for ((name, elem), values) in pointers.into_iter().zip(&pool) {
        let pointer = b.ptr_param(name, elem, elem.bytes(), None);
        args.push(Arg::Buffer(Buffer::zeros(elem, len * grid[0] as usize)));
        if let Some(&value) = values.last() {
            b.store(pointer, at, value, pool[2].last().copied(), CacheHint::Default)?;
        }
    }
    Ok(Case { program: b.finish(), args, grid })
}

/// A place for each element of a tile of each instance, and how many an instance has.
fn places(b: &mut Builder, shape: &Shape, id: Value) -> Result<(Value, usize)> {
    let numel: u32 = shape.iter().product();
    let len = b.constant(Literal::int(Elem::I32, i64::from(numel)), &[]);
    let base = b.map(ScalarFn::Mul, &[id, len])?;
    if shape.is_empty() {
        return Ok((base, 1));
    }
    let base = b.splat(base, shape)?;
    let index = b.range(0, numel)?;
    let index = b.reshape(index, shape)?;
    Ok((b.map(ScalarFn::Add, &[base, index])?, numel as usize))
}

/// `start + index along axis` as a tile of `shape`.
fn along(b: &mut Builder, shape: &Shape, axis: usize, start: i32) -> Result<Value> {
    let mut index = b.range(start, shape[axis])?;
    for other in 0..shape.len() {
        if other != axis {
            index = b.expand_dims(index, other as u8)?;
        }
    }
    b.broadcast(index, shape)
}

/// Appends an operation; `pool` holds `i32`, `i64` and boolean tiles of the shape.
fn step(choices: &mut Choices<'_>, b: &mut Builder, shape: &Shape, pool: &mut [Vec<Value>; 3]) -> Result<()> {
    let wide = usize::from(choices.chance(30) && !pool[1].is_empty());
    let elem = [Elem::I32, Elem::I64][wide];
    let operand = |choices: &mut Choices<'_>, b: &mut Builder, constants: usize| {
        let drawn = choices.pick(&pool[wide]);
        match drawn {
            Some(value) if !choices.chance(constants) => value,
            _ => {
                let value = choices.of([1, 2, 0, 3, 8, 16, 1000, -1, -4, 1 << 20, 1 << 30]);
                b.constant(Literal::int(elem, value), shape)
            }
        }
    };
    let a = operand(choices, b, 5);
    match choices.below(10) {
        0 => {
            let to = [Elem::I64, Elem::I32][wide];
            let value = b.cast(a, to)?;
            pool[1 - wide].push(value);
        }
        1..=3 => {
            let c = operand(choices, b, 60);
            let mask = b.map(choices.of(COMPARISONS), &[a, c])?;
            let mask = match choices.pick(&pool[2]) {
                Some(other) if choices.chance(40) => b.map(ScalarFn::And, &[mask, other])?,
                _ => mask,
            };
            pool[2].push(mask);
        }
        4 if !pool[2].is_empty() => {
            let c = operand(choices, b, 30);
            let mask = choices.pick(&pool[2]).unwrap_or(a);
            let value = b.map(ScalarFn::Select, &[mask, a, c])?;
            pool[wide].push(value);
        }
        _ => {
            let function = choices.of(FUNCTIONS);
            let c = operand(choices, b, 70);
            let args = [a, c];
            let value = b.map(function, &args[..function.arity()])?;
            pool[wide].push(value);
        }
    }
    Ok(())
}
