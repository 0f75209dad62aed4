//! Tiles from nothing, and tiles in other shapes.

use super::operand::spread;
use super::ops::axis_of;
use super::{Number, Operand, Tile, make};
use crate::infer::TypeError;
use crate::types::{Elem, Literal};

/// The instance's index along a grid axis: 0, 1 or 2.
#[track_caller]
pub fn program_id(axis: usize) -> Tile {
    make([], |b, []| b.program_id(u8::try_from(axis).unwrap_or(u8::MAX)))
}

/// The number of instances along a grid axis: 0, 1 or 2.
#[track_caller]
pub fn num_programs(axis: usize) -> Tile {
    make([], |b, []| b.num_programs(u8::try_from(axis).unwrap_or(u8::MAX)))
}

/// `start, start + 1, ..., end - 1` as `i32`, of which there are a power of two.
#[track_caller]
pub fn arange(start: i64, end: i64) -> Tile {
    make([], |b, []| {
        let len = end.checked_sub(start).and_then(|n| u32::try_from(n).ok());
        let refuse =
            || TypeError::Attribute { op: "range", message: format!("{start} to {end} is no range of i32") };
        match (i32::try_from(start), i32::try_from(end), len) {
            (Ok(first), Ok(_), Some(len)) => b.range(first, len),
            _ => Err(refuse()),
        }
    })
}

/// A number of a kind as a scalar.
#[track_caller]
pub fn scalar(elem: Elem, value: impl Into<Number>) -> Tile {
    Operand::Number(value.into()).tile(elem)
}

/// A number of a kind, repeated over a shape.
#[track_caller]
pub fn full(elem: Elem, shape: impl AsRef<[u32]>, value: impl Into<Number>) -> Tile {
    let (shape, value) = (shape.as_ref(), value.into());
    make([], |b, []| {
        crate::infer::check_shape("full", &shape.into())?;
        value.constant(b, elem, shape)
    })
}

/// Zeros of a kind (`false` for truth values).
#[track_caller]
pub fn zeros(elem: Elem, shape: impl AsRef<[u32]>) -> Tile {
    let shape = shape.as_ref();
    make([], |b, []| {
        crate::infer::check_shape("zeros", &shape.into())?;
        Ok(b.constant(Literal::of(elem, 0.0), shape))
    })
}

impl Tile {
    /// Conversion to another kind, as [`OpKind::Cast`](crate::OpKind::Cast) says. Triton's `to`.
    #[track_caller]
    pub fn cast(self, elem: Elem) -> Tile {
        make([self], |b, [x]| b.cast(x, elem))
    }

    /// The same bits as another kind of the same width.
    #[track_caller]
    pub fn bitcast(self, elem: Elem) -> Tile {
        make([self], |b, [x]| b.bitcast(x, elem))
    }

    /// Inserts an extent of 1 at an axis.
    #[track_caller]
    pub fn expand_dims(self, axis: usize) -> Tile {
        make([self], |b, [x]| b.expand_dims(x, u8::try_from(axis).unwrap_or(u8::MAX)))
    }

    /// A list as a column: an extent of 1 behind the others. Triton's `x[:, None]`.
    #[track_caller]
    pub fn col(self) -> Tile {
        self.expand_dims(self.shape().len())
    }

    /// A list as a row: an extent of 1 before the others. Triton's `x[None, :]`.
    #[track_caller]
    pub fn row(self) -> Tile {
        self.expand_dims(0)
    }

    /// The elements repeated to a shape: extents of 1 in front, and extents of 1 repeated.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl AsRef<[u32]>) -> Tile {
        make([self], |b, [x]| spread(b, x, shape.as_ref()))
    }

    /// A list along one axis of a shape, repeated along the others.
    #[track_caller]
    pub fn along(self, axis: usize, shape: impl AsRef<[u32]>) -> Tile {
        let shape = shape.as_ref();
        let other = (0..shape.len()).filter(|&other| other != axis);
        other.fold(self, Tile::expand_dims).broadcast_to(shape)
    }

    /// The same elements in row-major order in another shape. Triton's `view` and `reshape`.
    #[track_caller]
    pub fn reshape(self, shape: impl AsRef<[u32]>) -> Tile {
        make([self], |b, [x]| b.reshape(x, shape.as_ref()))
    }

    /// Permutes axes: axis `i` of the result is axis `axes[i]`.
    #[track_caller]
    pub fn permute(self, axes: impl AsRef<[usize]>) -> Tile {
        let axes: Vec<u8> = axes.as_ref().iter().map(|&a| u8::try_from(a).unwrap_or(u8::MAX)).collect();
        make([self], |b, [x]| b.permute(x, &axes))
    }

    /// The last two axes exchanged. Triton's `trans`, and `T`.
    #[track_caller]
    pub fn trans(self) -> Tile {
        let rank = self.shape().len();
        if rank < 2 {
            return self.refuse("trans", String::from("there are no two axes to exchange"));
        }
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        self.permute(axes)
    }
}

/// Two tiles of one type as one with a new last axis of extent 2.
#[track_caller]
pub fn join(first: Tile, second: Tile) -> Tile {
    make([first, second], |b, [first, second]| b.join(first, second))
}

/// The halves of a tile along its last axis, which has extent 2 and disappears.
#[track_caller]
pub fn split(x: Tile) -> (Tile, Tile) {
    let mut second = None;
    let first = make([x], |b, [x]| {
        let (first, other) = b.split(x)?;
        second = Some(other);
        Ok(first)
    });
    (first, second.map_or(first, |value| first.beside(value)))
}

/// Picks elements along an axis: result `[i, j, k]` for axis 1 is `x` at `[i, index[i, j, k], k]`. An index counts modulo
/// the extent along the axis.
#[track_caller]
pub fn gather(x: Tile, index: Tile, axis: usize) -> Tile {
    make([x, index], |b, [x, index]| b.gather(x, index, axis_of("gather", axis)?))
}

/// How often each number from 0 to `bins - 1` occurs in a list.
#[track_caller]
pub fn histogram(x: Tile, bins: u32) -> Tile {
    make([x], |b, [x]| b.histogram(x, bins, None))
}
