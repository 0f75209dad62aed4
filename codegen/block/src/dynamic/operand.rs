//! What stands beside a tile, and the kind and shape that operands meet in.

use half::{bf16, f16};

use super::{Result, Tile, make};
use crate::builder::Builder;
use crate::infer::TypeError;
use crate::program::Value;
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal};

/// A number, which takes the kind and the shape of the tile beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Int(i128),
    /// A number for floats.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

/// What stands beside a tile: another one, or a number.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// A tile.
    Tile(Tile),
    /// A number.
    Number(Number),
}

macro_rules! numbers {
    ($($variant:ident: $($t:ty)*;)*) => {$($(
        impl From<$t> for Number {
            fn from(value: $t) -> Number {
                Number::$variant(value.into())
            }
        }

        impl From<$t> for Operand {
            fn from(value: $t) -> Operand {
                Operand::Number(value.into())
            }
        }
    )*)*};
}

numbers! {
    Int: i8 i16 i32 i64 u8 u16 u32 u64;
    Float: f16 bf16 f32 f64;
    Bool: bool;
}

macro_rules! sizes {
    ($($t:ty)*) => {$(
        impl From<$t> for Number {
            fn from(value: $t) -> Number {
                Number::Int(value as i128)
            }
        }

        impl From<$t> for Operand {
            fn from(value: $t) -> Operand {
                Operand::Number(value.into())
            }
        }
    )*};
}

sizes!(isize usize);

impl From<Tile> for Operand {
    fn from(tile: Tile) -> Operand {
        Operand::Tile(tile)
    }
}

impl From<Number> for Operand {
    fn from(number: Number) -> Operand {
        Operand::Number(number)
    }
}

impl Number {
    /// The number as an element of a kind, rounded where that is a float; `None` where the kind does not hold it.
    pub fn of_kind(self, elem: Elem) -> Option<Literal> {
        match self {
            Number::Int(value) if elem.is_float() => Some(Literal::float(elem, value as f64)),
            Number::Int(value) => {
                let literal = Literal::int(elem, value as i64);
                let unsigned = elem == Elem::U64;
                let back = if unsigned { i128::from(literal.bits) } else { i128::from(literal.bits as i64) };
                (back == value).then_some(literal)
            }
            Number::Float(value) => elem.is_float().then(|| Literal::float(elem, value)),
            Number::Bool(value) => (elem == Elem::Bool).then(|| Literal::int(elem, value.into())),
        }
    }

    /// The number repeated over a shape.
    pub(super) fn constant(self, b: &mut Builder, elem: Elem, shape: &[u32]) -> Result<Value> {
        let message = || format!("the number is no {elem}");
        let literal =
            self.of_kind(elem).ok_or_else(|| TypeError::Attribute { op: "const", message: message() })?;
        Ok(b.constant(literal, shape))
    }

    fn is(self, value: i8) -> bool {
        match self {
            Number::Int(own) => own == value.into(),
            Number::Float(own) => own == value.into(),
            Number::Bool(_) => false,
        }
    }
}

impl Operand {
    /// The operand as a tile of a kind; a number as a scalar.
    #[track_caller]
    pub fn tile(self, elem: Elem) -> Tile {
        match self {
            Operand::Tile(tile) => tile.cast(elem),
            Operand::Number(number) => make([], |b, []| number.constant(b, elem, &[])),
        }
    }
}

/// The kind that tiles of two kinds meet in, by the table of [`crate::tiles`]; `None` where they do not.
pub fn promote(a: Elem, b: Elem) -> Option<Elem> {
    let wide = if a.bytes() >= b.bytes() { a } else { b };
    let storage = |e: Elem| matches!(e, Elem::F8E4M3 | Elem::F8E5M2);
    let unsigned = |e: Elem| matches!(e, Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64);
    match (a, b) {
        _ if a == b => Some(a),
        _ if storage(a) || storage(b) => None,
        (Elem::Bool, other) | (other, Elem::Bool) => Some(other),
        _ if a.is_float() && b.is_float() => Some(if a.bytes() == b.bytes() { Elem::F32 } else { wide }),
        _ if a.is_float() => Some(a),
        _ if b.is_float() => Some(b),
        _ if a.bytes() == b.bytes() => Some(if unsigned(a) { a } else { b }),
        _ => Some(wide),
    }
}

/// Repeats a value over a shape: extents of 1 in front, then repetition of extents of 1.
pub(super) fn spread(b: &mut Builder, value: Value, shape: &[u32]) -> Result<Value> {
    if b.ty(value).shape[..] == *shape {
        return Ok(value);
    }
    if b.ty(value).rank() == 0 {
        return b.splat(value, shape);
    }
    let mut value = value;
    while b.ty(value).rank() < shape.len() {
        value = b.expand_dims(value, 0)?;
    }
    if b.ty(value).shape[..] == *shape { Ok(value) } else { b.broadcast(value, shape) }
}

/// The shape that values take together: the longest, with the larger of two extents.
pub(super) fn common(b: &Builder, values: &[Value]) -> Vec<u32> {
    let rank = values.iter().map(|&v| b.ty(v).rank()).max().unwrap_or(0);
    let extent = |axis: usize| {
        let of = |&v: &Value| {
            let own = (axis + b.ty(v).rank()).checked_sub(rank);
            own.and_then(|at| b.ty(v).shape.get(at).copied()).unwrap_or(1)
        };
        values.iter().map(of).max().unwrap_or(1)
    };
    (0..rank).map(extent).collect()
}

/// A scalar function of operands that are brought to one kind and one shape, behind a condition where there is one.
#[track_caller]
pub(super) fn apply<const N: usize>(
    function: impl FnOnce(Elem) -> ScalarFn,
    condition: Option<Tile>,
    args: [Operand; N],
) -> Tile {
    let tiles = args.map(|arg| match arg {
        Operand::Tile(tile) => Some(tile),
        Operand::Number(_) => None,
    });
    let Some(first) = tiles.iter().flatten().next().copied().or(condition) else {
        return make([], |_, []| {
            Err(TypeError::Attribute { op: "map", message: String::from("no operand is a tile") })
        });
    };
    // A number's place is taken by any tile, to be replaced.
    super::make_masked(tiles.map(|tile| tile.unwrap_or(first)), condition, |b, values, condition| {
        let elem = kind(b, &values)?;
        let mut known: Vec<Value> = condition.into_iter().collect();
        let mut operands = [Value(0); N];
        for ((to, &from), tile) in operands.iter_mut().zip(&values).zip(&tiles) {
            if tile.is_some() {
                *to = b.cast(from, elem)?;
                known.push(*to);
            }
        }
        let shape = common(b, &known);
        let mut all = condition.map(|c| spread(b, c, &shape)).transpose()?.into_iter().collect::<Vec<_>>();
        for (value, arg) in operands.into_iter().zip(args) {
            all.push(match arg {
                Operand::Tile(_) => spread(b, value, &shape)?,
                Operand::Number(number) => number.constant(b, elem, &shape)?,
            });
        }
        b.map(function(elem), &all)
    })
}

/// The kind that values meet in.
fn kind(b: &Builder, values: &[Value]) -> Result<Elem> {
    let none = || TypeError::Attribute { op: "map", message: String::from("a pointer is no operand") };
    let mut kinds = values.iter().map(|&v| b.ty(v).elem().ok_or_else(none));
    let first = kinds.next().unwrap_or_else(|| Err(none()))?;
    kinds.try_fold(first, |all, next| {
        let next = next?;
        promote(all, next).ok_or_else(|| TypeError::Attribute {
            op: "map",
            message: format!("tiles of {all} and {next} have no common kind"),
        })
    })
}

/// The operand that an operator leaves as it is because the other one is a number that changes nothing.
pub(super) fn unchanged(function: ScalarFn, [a, b]: [Operand; 2]) -> Option<Tile> {
    let (tile, number, is_second) = match (a, b) {
        (Operand::Tile(tile), Operand::Number(number)) => (tile, number, true),
        (Operand::Number(number), Operand::Tile(tile)) => (tile, number, false),
        _ => return None,
    };
    let elem = tile.elem().filter(|&elem| elem != Elem::Bool)?;
    let whole = !elem.is_float();
    let neutral = match function {
        ScalarFn::Mul => number.is(1),
        ScalarFn::Add => whole && number.is(0),
        ScalarFn::Sub => whole && is_second && number.is(0),
        ScalarFn::DivTrunc => is_second && number.is(1),
        _ => false,
    };
    neutral.then_some(tile)
}
