//! Pointers, blocks of tensors, loads and stores.

use std::ops;

use super::operand::{common, spread};
use super::{Number, Operand, Tile, arange, both, div_rem, full, make, make_masked, scalar, with};
use crate::program::{AtomicFn, CacheHint, MemoryOrder, MemoryScope};
use crate::types::Elem;

/// The address of elements: a pointer parameter and offsets in elements, of which there are none to begin with. Adding a
/// tile of offsets makes a tile of addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ptr {
    param: Tile,
    /// `i32` or `i64`.
    offsets: Option<Tile>,
    /// The kind of offsets, where that is settled.
    index: Option<Elem>,
    hint: CacheHint,
}

impl Ptr {
    pub(super) fn new(param: Tile) -> Ptr {
        Ptr { param, offsets: None, index: None, hint: CacheHint::Default }
    }

    /// The parameter.
    pub fn param(self) -> Tile {
        self.param
    }

    /// The kind of the elements.
    pub fn elem(self) -> Elem {
        let elem = with(|state| state.value(self.param).ok().and_then(|v| state.builder.ty(v).pointee()));
        elem.flatten().unwrap_or(Elem::F32)
    }

    /// The same with a hint about caches for its accesses.
    pub fn hinted(self, hint: CacheHint) -> Ptr {
        Ptr { hint, ..self }
    }

    /// The same with offsets of a kind, which holds the sum of all that are added. Where nothing is said, one summand may be
    /// `i32`, and what is added to it makes it `i64`.
    pub fn indexed(self, index: Elem) -> Ptr {
        Ptr { index: Some(index), ..self }
    }

    /// The offsets, if there are any.
    pub fn offsets(self) -> Option<Tile> {
        self.offsets
    }

    /// The offsets; without any the number 0.
    #[track_caller]
    pub fn offset(self) -> Tile {
        self.offsets.unwrap_or_else(|| scalar(self.index.unwrap_or(Elem::I32), 0))
    }

    /// The offsets in the kind that sums of them have.
    #[track_caller]
    pub(super) fn wide_offset(self) -> Tile {
        self.offset().cast(self.index.unwrap_or(Elem::I64))
    }

    /// The same parameter at other offsets.
    pub fn at(self, offsets: Tile) -> Ptr {
        Ptr { offsets: Some(offsets), ..self }
    }

    /// The same so many elements on, where a number is given.
    #[track_caller]
    pub fn skip(self, elements: impl Into<Option<Tile>>) -> Ptr {
        elements.into().map_or(self, |elements| self + elements)
    }

    /// Reads all elements.
    #[track_caller]
    pub fn load(self) -> Tile {
        load(self, None, None)
    }

    /// Writes all elements.
    #[track_caller]
    pub fn store(self, value: Tile) {
        store(self, value, None);
    }

    /// The block of a tensor that these axes span, at strides in elements; the tensor begins at this pointer.
    #[track_caller]
    pub fn block<S: Copy + Into<Operand>>(self, axes: &[(Axis, S)]) -> Block {
        let shape: Vec<u32> = axes.iter().map(|(axis, _)| axis.extent).collect();
        let mut offsets = self.offsets.map(|first| first.broadcast_to(&shape));
        let mut mask = None;
        for (position, &(axis, stride)) in axes.iter().enumerate() {
            let part = (axis.index * stride).along(position, &shape);
            offsets = Some(offsets.map_or(part, |offsets| offsets + part));
            mask = both(mask, axis.mask.map(|inside| inside.along(position, &shape)));
        }
        Block { ptr: Ptr { offsets, ..self }, mask }
    }
}

impl<O: Into<Operand>> ops::Add<O> for Ptr {
    type Output = Ptr;

    #[track_caller]
    fn add(self, by: O) -> Ptr {
        let by = by.into();
        let kind = match by {
            Operand::Tile(tile) => tile.elem().unwrap_or(Elem::I64),
            Operand::Number(_) => Elem::I64,
        };
        let small = [Elem::I8, Elem::I16, Elem::I32, Elem::U8, Elem::U16].contains(&kind);
        let index = match (self.index, self.offsets) {
            (Some(index), _) => index,
            (None, None) if small => Elem::I32,
            // A sum of what fits `i32` need not fit.
            (None, _) => Elem::I64,
        };
        match (self.offsets, by) {
            (Some(offsets), Operand::Tile(tile)) => self.at(offsets.cast(index) + tile.cast(index)),
            (Some(offsets), number @ Operand::Number(_)) => self.at(offsets.cast(index) + number),
            (None, by) => self.at(by.tile(index)),
        }
    }
}

/// Reads elements where the mask is true; the others are `other`, or 0, and are not touched.
#[track_caller]
pub fn load(ptr: Ptr, mask: Option<Tile>, other: Option<Tile>) -> Tile {
    let offsets = ptr.offset();
    match (mask, other) {
        (None, _) => make([ptr.param, offsets], |b, [param, at]| b.load(param, at, None, None, ptr.hint)),
        (Some(mask), None) => make([ptr.param, offsets, mask], |b, [param, at, mask]| {
            let shape = common(b, &[at, mask]);
            let (at, mask) = (spread(b, at, &shape)?, spread(b, mask, &shape)?);
            b.load(param, at, Some(mask), None, ptr.hint)
        }),
        (Some(mask), Some(other)) => {
            make([ptr.param, offsets, mask, other], |b, [param, offsets, mask, other]| {
                let shape = common(b, &[offsets, mask, other]);
                let offsets = spread(b, offsets, &shape)?;
                let (mask, other) = (spread(b, mask, &shape)?, spread(b, other, &shape)?);
                b.load(param, offsets, Some(mask), Some(other), ptr.hint)
            })
        }
    }
}

/// Writes elements where the mask is true. The pointer's shape is the one written: values and mask are repeated to it,
/// and larger ones are an error.
#[track_caller]
pub fn store(ptr: Ptr, value: Tile, mask: Option<Tile>) {
    make_masked([ptr.param, ptr.offset(), value], mask, |b, [param, offsets, value], mask| {
        let shape = b.ty(offsets).shape.clone();
        let value = spread(b, value, &shape)?;
        let mask = mask.map(|m| spread(b, m, &shape)).transpose()?;
        b.store(param, offsets, value, mask, ptr.hint)?;
        Ok(value)
    });
}

/// Indices along one axis of a tensor, and which of them it has. Triton's `offs_m` and its comparison with `M`.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// `[extent]`: the indices.
    pub index: Tile,
    /// How many there are, a power of two.
    pub extent: u32,
    /// Which of them count; all where there is none.
    pub mask: Option<Tile>,
}

/// The indices `first, first + 1, ...`, of the kind of `first`, of which there are `extent`.
#[track_caller]
pub fn axis(first: Tile, extent: u32) -> Axis {
    let range = arange(0, extent.into()).cast(first.elem().unwrap_or(Elem::I32));
    Axis { index: first + range, extent, mask: None }
}

/// Block number `block` of an axis that is divided into blocks of `extent`; the last is masked where they do not divide it.
#[track_caller]
pub fn blocked(block: Tile, extent: u32, end: i64) -> Axis {
    let all = axis(block * i64::from(extent), extent);
    if end % i64::from(extent) == 0 { all } else { all.below(end) }
}

impl Axis {
    /// Those of the indices that are below `end` count.
    #[track_caller]
    pub fn below(self, end: impl Into<Operand>) -> Axis {
        self.masked(self.index.lt(end))
    }

    /// Those of the indices that are not below `first` count.
    #[track_caller]
    pub fn from(self, first: impl Into<Operand>) -> Axis {
        self.masked(self.index.ge(first))
    }

    /// Those count that a mask holds for.
    #[track_caller]
    pub fn masked(self, mask: Tile) -> Axis {
        Axis { mask: both(self.mask, Some(mask)), ..self }
    }
}

/// The indices along axes of these extents that a row-major number stands for; the first is not cut off. NumPy's
/// `unravel_index`.
#[track_caller]
pub fn unravel<E: Copy + Into<Number>>(number: Tile, extents: &[E]) -> Vec<Tile> {
    let mut rest = number;
    let mut indices: Vec<Tile> = Vec::new();
    for &extent in extents.iter().skip(1).rev() {
        let (above, index) = div_rem(rest, extent);
        indices.push(index);
        rest = above;
    }
    indices.extend(extents.first().map(|_| rest));
    indices.reverse();
    indices
}

/// `first` and indices times strides, of a kind: the offset of an element; `None` where that is 0.
#[track_caller]
pub fn offset(elem: Elem, first: i64, indices: &[Tile], strides: &[i64]) -> Option<Tile> {
    let first = (first != 0).then(|| scalar(elem, first));
    let parts = indices.iter().zip(strides).filter(|(_, stride)| **stride != 0);
    parts.fold(first, |sum, (&index, &stride)| {
        let part = index * stride;
        Some(sum.map_or(part, |sum| sum + part))
    })
}

/// A block of a tensor in memory: addresses, and which of them it has. Triton's block pointer.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The addresses.
    pub ptr: Ptr,
    /// Which of them the tensor has; all where there is none.
    pub mask: Option<Tile>,
}

impl Block {
    /// The elements, 0 where the tensor has none.
    #[track_caller]
    pub fn load(self) -> Tile {
        load(self.ptr, self.mask, None)
    }

    /// The elements, and a number where the tensor has none.
    #[track_caller]
    pub fn load_or(self, other: impl Into<Number>) -> Tile {
        let other = self.mask.map(|mask| full(self.ptr.elem(), mask.shape(), other));
        load(self.ptr, self.mask, other)
    }

    /// Writes the elements that the tensor has.
    #[track_caller]
    pub fn store(self, value: Tile) {
        store(self.ptr, value, self.mask);
    }
}

/// The order and scope of atomic operations: all accesses of an instance, seen by every instance on the device. Triton's
/// defaults.
const ORDER: (MemoryOrder, MemoryScope) = (MemoryOrder::AcqRel, MemoryScope::Device);

/// Changes elements of memory, each at once, where the mask is true, and gives what was there before. The pointer's shape is
/// that of the operation.
#[track_caller]
pub fn atomic(function: AtomicFn, ptr: Ptr, value: Tile, mask: Option<Tile>) -> Tile {
    make_masked([ptr.param, ptr.offset(), value], mask, |b, [param, offsets, value], mask| {
        let shape = b.ty(offsets).shape.clone();
        let value = spread(b, value, &shape)?;
        let mask = mask.map(|m| spread(b, m, &shape)).transpose()?;
        b.atomic(function, (param, offsets, value), mask, ORDER)
    })
}

/// Replaces elements of memory that are `expected`, each at once, and gives what was there before.
#[track_caller]
pub fn atomic_cas(ptr: Ptr, expected: Tile, value: Tile) -> Tile {
    make([ptr.param, ptr.offset(), expected, value], |b, [param, offsets, expected, value]| {
        let shape = b.ty(offsets).shape.clone();
        let (expected, value) = (spread(b, expected, &shape)?, spread(b, value, &shape)?);
        b.atomic_cas((param, offsets), (expected, value), ORDER)
    })
}
