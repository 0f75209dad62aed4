//! Tiles from nothing, and tiles in other shapes.

use super::kinds::extents;
use super::{Extent, Int, Operand, Tile, typed};
use crate::data::Element;
use crate::dynamic;
use crate::types::Elem;

/// The instance's index along a grid axis: 0, 1 or 2.
#[track_caller]
pub fn program_id(axis: usize) -> Tile<i32> {
    typed(dynamic::program_id(axis))
}

/// The number of instances along a grid axis: 0, 1 or 2.
#[track_caller]
pub fn num_programs(axis: usize) -> Tile<i32> {
    typed(dynamic::num_programs(axis))
}

/// `start, start + 1, ..., end - 1`, of which there are a power of two. Triton's `arange`.
#[track_caller]
pub fn range(start: impl Extent, end: impl Extent) -> Tile<i32> {
    typed(dynamic::arange(start.get(), end.get()))
}

/// [`range`] under Triton's name.
#[track_caller]
pub fn arange(start: impl Extent, end: impl Extent) -> Tile<i32> {
    range(start, end)
}

/// A number as a scalar tile.
#[track_caller]
pub fn scalar<T: Element>(value: impl Operand<T, Out = T>) -> Tile<T> {
    value.tile()
}

/// A number, repeated over a shape.
#[track_caller]
pub fn full<T: Element>(shape: impl AsRef<[usize]>, value: impl Operand<T, Out = T>) -> Tile<T> {
    value.tile::<T>().broadcast_to(shape)
}

/// Zeros (`false` for truth values).
#[track_caller]
pub fn zeros<T: Element>(shape: impl AsRef<[usize]>) -> Tile<T> {
    typed(dynamic::zeros(T::ELEM, extents(shape.as_ref())))
}

/// Zeros of a tile's shape and kind.
#[track_caller]
pub fn zeros_like<T: Element>(x: Tile<T>) -> Tile<T> {
    zeros(x.shape())
}

/// `x` divided by `by`, rounded up; for a number that is not negative, divided by a positive one.
#[track_caller]
pub fn cdiv<A: CeilDiv<B>, B>(x: A, by: B) -> A::Out {
    x.cdiv(by)
}

/// Integers, as tiles or as Rust numbers, that [`cdiv`] divides.
#[diagnostic::on_unimplemented(message = "`cdiv` does not divide `{Self}` by `{B}`")]
pub trait CeilDiv<B> {
    /// The quotient.
    type Out;

    /// The quotient, rounded up.
    #[track_caller]
    fn cdiv(self, by: B) -> Self::Out;
}

impl<T: Int, B: Operand<T, Out: Int>> CeilDiv<B> for Tile<T> {
    type Out = Tile<B::Out>;

    /// Without the overflow of `(x + by - 1) / by`.
    #[track_caller]
    fn cdiv(self, by: B) -> Tile<B::Out> {
        let elem = B::Out::ELEM;
        let (x, by) = (self.tile.cast(elem), by.operand().tile(elem));
        let rest = (x % by).ne(0).cast(elem);
        typed(x / by + rest)
    }
}

macro_rules! ceil_div {
    ($($t:ty)*) => {$(
        impl CeilDiv<$t> for $t {
            type Out = $t;

            fn cdiv(self, by: $t) -> $t {
                let (quotient, rest) = (self.checked_div(by), self.checked_rem(by));
                quotient.unwrap_or(0) + <$t>::from(rest.unwrap_or(0) != 0)
            }
        }
    )*};
}

ceil_div!(i32 i64 u32 usize);

impl<T: Element> Tile<T> {
    /// Conversion to another kind, as [`OpKind::Cast`](crate::OpKind::Cast) says. Triton's `to`.
    #[track_caller]
    pub fn cast<R: Element>(self) -> Tile<R> {
        typed(self.tile.cast(R::ELEM))
    }

    /// The same bits as another kind of the same width.
    #[track_caller]
    pub fn bitcast<R: Element>(self) -> Tile<R> {
        typed(self.tile.bitcast(R::ELEM))
    }

    /// Inserts an extent of 1 at an axis.
    #[track_caller]
    pub fn expand_dims(self, axis: usize) -> Self {
        typed(self.tile.expand_dims(axis))
    }

    /// A list as a column: an extent of 1 behind the others. Triton's `x[:, None]`.
    #[track_caller]
    pub fn col(self) -> Self {
        self.expand_dims(self.shape().len())
    }

    /// A list as a row: an extent of 1 before the others. Triton's `x[None, :]`.
    #[track_caller]
    pub fn row(self) -> Self {
        self.expand_dims(0)
    }

    /// The elements repeated to a shape: extents of 1 in front, and extents of 1 repeated.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl AsRef<[usize]>) -> Self {
        typed(self.tile.broadcast_to(extents(shape.as_ref())))
    }

    /// The same elements in row-major order in another shape. Triton's `view` and `reshape`.
    #[track_caller]
    pub fn reshape(self, shape: impl AsRef<[usize]>) -> Self {
        typed(self.tile.reshape(extents(shape.as_ref())))
    }

    /// Permutes axes: axis `i` of the result is axis `axes[i]`.
    #[track_caller]
    pub fn permute(self, axes: impl AsRef<[usize]>) -> Self {
        typed(self.tile.permute(axes))
    }

    /// The last two axes exchanged. Triton's `trans`, and `T`.
    #[track_caller]
    pub fn trans(self) -> Self {
        typed(self.tile.trans())
    }

    /// All elements in row-major order along one axis.
    #[track_caller]
    pub fn ravel(self) -> Self {
        let elements = self.shape().iter().product();
        self.reshape([elements])
    }
}

/// Two tiles, repeated to the shape that they take together.
#[track_caller]
pub fn broadcast<T: Element, U: Element>(a: Tile<T>, b: Tile<U>) -> (Tile<T>, Tile<U>) {
    let (mut shape, other) = (a.shape(), b.shape());
    while shape.len() < other.len() {
        shape.insert(0, 1);
    }
    for (own, &theirs) in shape.iter_mut().rev().zip(other.iter().rev()) {
        *own = (*own).max(theirs);
    }
    (a.broadcast_to(&shape), b.broadcast_to(&shape))
}

/// [`Tile::trans`].
#[track_caller]
pub fn trans<T: Element>(x: Tile<T>) -> Tile<T> {
    x.trans()
}

/// [`Tile::ravel`].
#[track_caller]
pub fn ravel<T: Element>(x: Tile<T>) -> Tile<T> {
    x.ravel()
}

/// [`Tile::reshape`].
#[track_caller]
pub fn reshape<T: Element>(x: Tile<T>, shape: impl AsRef<[usize]>) -> Tile<T> {
    x.reshape(shape)
}

/// [`Tile::permute`].
#[track_caller]
pub fn permute<T: Element>(x: Tile<T>, axes: impl AsRef<[usize]>) -> Tile<T> {
    x.permute(axes)
}

/// [`Tile::expand_dims`].
#[track_caller]
pub fn expand_dims<T: Element>(x: Tile<T>, axis: usize) -> Tile<T> {
    x.expand_dims(axis)
}

/// [`Tile::broadcast_to`].
#[track_caller]
pub fn broadcast_to<T: Element>(x: Tile<T>, shape: impl AsRef<[usize]>) -> Tile<T> {
    x.broadcast_to(shape)
}

/// For each element of a tile its index along an axis.
#[track_caller]
pub fn indices<T: Element>(x: Tile<T>, axis: usize) -> Tile<i32> {
    let shape = x.shape();
    let Some(&extent) = shape.get(axis) else {
        x.refuse("indices", format!("axis {axis} is out of range for {} axes", shape.len()));
        return zeros(shape);
    };
    let mut line = vec![1; shape.len()];
    if let Some(own) = line.get_mut(axis) {
        *own = extent;
    }
    range(0, extent).reshape(line).broadcast_to(shape)
}

/// Two tiles of one type as one with a new last axis of extent 2.
#[track_caller]
pub fn join<T: Element>(first: Tile<T>, second: Tile<T>) -> Tile<T> {
    let (first, second) = broadcast(first, second);
    typed(dynamic::join(first.tile, second.tile))
}

/// The halves of a tile along its last axis, which has extent 2 and disappears.
#[track_caller]
pub fn split<T: Element>(x: Tile<T>) -> (Tile<T>, Tile<T>) {
    let (first, second) = dynamic::split(x.tile);
    (typed(first), typed(second))
}

/// Picks elements along an axis: result `[i, j, k]` for axis 1 is `x` at `[i, index[i, j, k], k]`. An index counts modulo
/// the extent along the axis.
#[track_caller]
pub fn gather<T: Element, I: Int>(x: Tile<T>, index: Tile<I>, axis: usize) -> Tile<T> {
    let index = index.tile.cast(if I::ELEM.bytes() < 8 { Elem::I32 } else { Elem::I64 });
    typed(dynamic::gather(x.tile, index, axis))
}

/// How often each number from 0 to `bins - 1` occurs in a list.
#[track_caller]
pub fn histogram<T: Int>(x: Tile<T>, bins: usize) -> Tile<i32> {
    typed(dynamic::histogram(x.tile, u32::try_from(bins).unwrap_or(0)))
}
