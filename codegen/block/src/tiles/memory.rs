//! Pointers, loads and stores.

use std::marker::PhantomData;

use super::kinds::number;
use super::{Int, Number, Operand, Tile, typed};
use crate::data::Element;
use crate::dynamic::{self, Axis, Block};
use crate::program::{AtomicFn, CacheHint, Value};

/// The address of elements of type `T`: a pointer parameter and offsets in elements, of which there are none to begin
/// with. Adding a tile of offsets makes a tile of addresses.
pub struct Ptr<T> {
    pub(super) ptr: dynamic::Ptr,
    elem: PhantomData<T>,
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> std::fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ptr(%{})", self.ptr.param().value().0)
    }
}

/// Which elements an access touches: those where a tile is true, or with `true` all of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no mask",
    label = "a mask is a tile of truth values, or `true` for no mask"
)]
pub trait Mask {
    /// The mask; `None` where there is no need for one.
    #[track_caller]
    fn mask(self) -> Option<Tile<bool>>;
}

impl Mask for Tile<bool> {
    fn mask(self) -> Option<Tile<bool>> {
        Some(self)
    }
}

impl Mask for bool {
    #[track_caller]
    fn mask(self) -> Option<Tile<bool>> {
        (!self).then(|| number(false))
    }
}

/// Reads elements where the mask is true; the others are `other` and are not touched.
#[track_caller]
pub fn load<T: Element>(ptr: Ptr<T>, mask: impl Mask, other: impl Operand<T, Out = T>) -> Tile<T> {
    let Some(mask) = mask.mask() else { return ptr.load() };
    typed(dynamic::load(ptr.ptr, Some(mask.tile), Some(other.tile::<T>().tile)))
}

/// Writes elements where the mask is true. The pointer's shape is the one written: values and mask are repeated to it,
/// and larger ones are an error.
#[track_caller]
pub fn store<T: Element>(ptr: Ptr<T>, value: impl Operand<T, Out = T>, mask: impl Mask) {
    dynamic::store(ptr.ptr, value.tile::<T>().tile, mask.mask().map(|mask| mask.tile));
}

impl<T: Element> Ptr<T> {
    pub(super) fn of(ptr: dynamic::Ptr) -> Ptr<T> {
        Ptr { ptr, elem: PhantomData }
    }

    /// The parameter in the program.
    pub fn value(self) -> Value {
        self.ptr.param().value()
    }

    /// Accesses through this pointer use data once. Triton's `eviction_policy="evict_first"`.
    pub fn streaming(self) -> Self {
        Ptr::of(self.ptr.hinted(CacheHint::Streaming))
    }

    /// Accesses through this pointer use data that other instances use again. Triton's `eviction_policy="evict_last"`.
    pub fn keep(self) -> Self {
        Ptr::of(self.ptr.hinted(CacheHint::Keep))
    }

    /// Reads all elements.
    #[track_caller]
    pub fn load(self) -> Tile<T> {
        typed(self.ptr.load())
    }

    /// Writes all elements.
    #[track_caller]
    pub fn store(self, value: impl Operand<T, Out = T>)
    where
        T: Element,
    {
        store(self, value, true);
    }

    /// The extents of the offsets; empty for one address.
    pub fn shape(self) -> Vec<usize> {
        self.ptr.offsets().map_or_else(Vec::new, |offsets| typed::<i64>(offsets).shape())
    }
}

macro_rules! atomics {
    ($($name:ident $bound:ident $function:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        /// What was there before is the result; 0 where the mask is false. The pointer's shape is that of the operation.
        #[track_caller]
        pub fn $name<T: $bound>(ptr: Ptr<T>, value: impl Operand<T, Out = T>, mask: impl Mask) -> Tile<T> {
            let mask = mask.mask().map(|mask| mask.tile);
            typed(dynamic::atomic(AtomicFn::$function, ptr.ptr, value.tile::<T>().tile, mask))
        }
    )*};
}

atomics! {
    atomic_add Number Add "Adds to elements of memory, each at once.";
    atomic_max Number Max "Makes elements of memory the larger of them and a value, each at once.";
    atomic_min Number Min "Makes elements of memory the smaller of them and a value, each at once.";
    atomic_and Int And "Combines elements of memory with a value by bitwise and, each at once.";
    atomic_or Int Or "Combines elements of memory with a value by bitwise or, each at once.";
    atomic_xor Int Xor "Combines elements of memory with a value by bitwise exclusive or, each at once.";
    atomic_xchg Number Exchange "Replaces elements of memory, each at once.";
}

/// Replaces elements of memory that are `expected`, each at once, and gives what was there before.
#[track_caller]
pub fn atomic_cas<T: Number>(
    ptr: Ptr<T>,
    expected: impl Operand<T, Out = T>,
    value: impl Operand<T, Out = T>,
) -> Tile<T> {
    typed(dynamic::atomic_cas(ptr.ptr, expected.tile::<T>().tile, value.tile::<T>().tile))
}

/// As many whole numbers as a tensor has axes: a tuple of tiles and Rust numbers.
#[diagnostic::on_unimplemented(message = "`{Self}` does not give {R} whole numbers")]
pub trait Dims<const R: usize> {
    /// The numbers.
    #[track_caller]
    fn dims(self) -> [Tile<i64>; R];
}

macro_rules! dims {
    ($rank:literal $($name:ident)*) => {
        impl<$($name: Operand<i64, Out = i64>),*> Dims<$rank> for ($($name,)*) {
            #[track_caller]
            #[allow(non_snake_case)]
            fn dims(self) -> [Tile<i64>; $rank] {
                let ($($name,)*) = self;
                [$($name.tile()),*]
            }
        }
    };
}

dims!(1 A);
dims!(2 A B);
dims!(3 A B C);
dims!(4 A B C D);
dims!(5 A B C D E);

/// A tensor in memory, read and written in blocks of one shape. Elements of a block outside of the tensor are 0, and are
/// not written.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<T, const R: usize> {
    ptr: Ptr<T>,
    shape: [Tile<i64>; R],
    strides: [Tile<i64>; R],
    block: [usize; R],
}

/// The tensor of a shape and strides in elements that begins at a pointer. Triton's `make_tensor_descriptor`.
///
/// ```
/// # use tilefuse_block::tiles::*;
/// # program("f", |k| {
/// # let (x, m, n) = (k.ptr::<f32>("x"), k.scalar::<i64>("m"), k.scalar::<i64>("n"));
/// let x = make_descriptor(x, (m, n), (n, 1), [32, 64]);
/// let block = x.load((program_id(0) * 32, 0));
/// x.store((program_id(0) * 32, 0), block * 2.0);
/// # }).unwrap();
/// ```
#[track_caller]
pub fn make_descriptor<T: Element, const R: usize>(
    ptr: Ptr<T>,
    shape: impl Dims<R>,
    strides: impl Dims<R>,
    block: [usize; R],
) -> Descriptor<T, R> {
    Descriptor { ptr, shape: shape.dims(), strides: strides.dims(), block }
}

impl<T: Element, const R: usize> Descriptor<T, R> {
    /// The addresses of the block that begins at these indices, and which of its elements the tensor has.
    #[track_caller]
    fn at(self, at: impl Dims<R>) -> Block {
        let mut axes = Vec::new();
        for (((first, size), stride), extent) in
            at.dims().into_iter().zip(self.shape).zip(self.strides).zip(self.block)
        {
            let axis: Axis = dynamic::axis(first.tile, u32::try_from(extent).unwrap_or(0));
            axes.push((axis.from(0).below(size.tile), stride.tile));
        }
        self.ptr.ptr.block(&axes)
    }

    /// The addresses of the block that begins at these indices, and which of its elements the tensor has.
    #[track_caller]
    pub fn block(self, at: impl Dims<R>) -> (Ptr<T>, Tile<bool>) {
        let Block { ptr, mask } = self.at(at);
        (Ptr::of(ptr), mask.map_or_else(|| number(true), typed))
    }

    /// The block that begins at these indices.
    #[track_caller]
    pub fn load(self, at: impl Dims<R>) -> Tile<T> {
        typed(self.at(at).load())
    }

    /// Writes the block that begins at these indices.
    #[track_caller]
    pub fn store(self, at: impl Dims<R>, value: impl Operand<T, Out = T>) {
        let value = value.tile::<T>();
        self.at(at).store(value.tile);
    }
}
