//! Pointers, blocks of tensors, loads and stores.

use std::ops;

use super::operand::{common, spread};
use super::{Number, Operand, Tile, arange, both, full, make, make_masked, scalar, with};
use crate::program::{AtomicFn, CacheHint, MemoryOrder, MemoryScope};
use crate::types::Elem;

/// The address of elements: a pointer parameter and offsets in elements, of which there are none to begin with. Adding a
/// tile of offsets makes a tile of addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ptr {
    param: Tile,
    /// `i32` or `i64`.
    offsets: Option<Tile>,
    hint: CacheHint,
}

impl Ptr {
    pub(super) fn new(param: Tile) -> Ptr {
        Ptr { param, offsets: None, hint: CacheHint::Default }
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

    /// The offsets, if there are any.
    pub fn offsets(self) -> Option<Tile> {
        self.offsets
    }

    /// The offsets; without any the number 0.
    #[track_caller]
    fn offset(self) -> Tile {
        self.offsets.unwrap_or_else(|| scalar(Elem::I32, 0))
    }

    /// The offsets as `i64`.
    #[track_caller]
    pub(super) fn wide_offset(self) -> Tile {
        self.offset().cast(Elem::I64)
    }

    /// The same parameter at other offsets.
    pub(super) fn at(self, offsets: Tile) -> Ptr {
        Ptr { offsets: Some(offsets), ..self }
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

/// Offsets of more than one summand are `i64`: a sum of what fits `i32` need not fit.
impl<O: Into<Operand>> ops::Add<O> for Ptr {
    type Output = Ptr;

    #[track_caller]
    fn add(self, by: O) -> Ptr {
        let by = match by.into() {
            Operand::Tile(tile) => tile,
            number @ Operand::Number(_) => number.tile(Elem::I64),
        };
        let small = [Elem::I8, Elem::I16, Elem::I32, Elem::U8, Elem::U16].map(Some).contains(&by.elem());
        let offsets = match self.offsets {
            None if small => by.cast(Elem::I32),
            None => by.cast(Elem::I64),
            Some(offsets) => offsets.cast(Elem::I64) + by.cast(Elem::I64),
        };
        self.at(offsets)
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
