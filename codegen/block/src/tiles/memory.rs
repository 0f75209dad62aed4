//! Pointers, loads and stores.

use std::marker::PhantomData;

use super::kinds::number;
use super::ops::missing;
use super::{Handle, Int, Number, Operand, Tile, common, make, range, record, spread, tile};
use crate::data::Element;
use crate::program::{AtomicFn, CacheHint, MemoryOrder, MemoryScope, Value};
use crate::types::Elem;

/// The address of elements of type `T`: a pointer parameter and offsets in elements, of which there are none to begin
/// with. Adding a tile of offsets makes a tile of addresses.
pub struct Ptr<T> {
    pub(super) param: Handle,
    /// `i32` or `i64`.
    pub(super) offsets: Option<Handle>,
    hint: CacheHint,
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
        write!(f, "Ptr(%{})", self.param.value.0)
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
    let other: Tile<T> = other.operand();
    let Some(mask) = mask.mask() else { return ptr.load() };
    let offsets = ptr.offset();
    make(&[ptr.param, offsets, mask.handle, other.handle], |b, args| {
        let &[param, offsets, mask, other] = args else { return Err(missing("load")) };
        let shape = common(b, &[offsets, mask, other]);
        let offsets = spread(b, offsets, &shape)?;
        let (mask, other) = (spread(b, mask, &shape)?, spread(b, other, &shape)?);
        b.load(param, offsets, Some(mask), Some(other), ptr.hint)
    })
}

/// Writes elements where the mask is true. The pointer's shape is the one written: values and mask are repeated to it,
/// and larger ones are an error.
#[track_caller]
pub fn store<T: Element>(ptr: Ptr<T>, value: impl Operand<T, Out = T>, mask: impl Mask) {
    let value: Tile<T> = value.operand();
    let mask = mask.mask().map(|m| m.handle);
    let args: Vec<Handle> = [ptr.param, ptr.offset(), value.handle].into_iter().chain(mask).collect();
    record(&args, |b, args| {
        let [param, offsets, value, mask @ ..] = args else { return Err(missing("store")) };
        let shape = b.ty(*offsets).shape.clone();
        let value = spread(b, *value, &shape)?;
        let mask = mask.first().map(|&m| spread(b, m, &shape)).transpose()?;
        b.store(*param, *offsets, value, mask, ptr.hint)?;
        Ok(value)
    });
}

impl<T: Element> Ptr<T> {
    pub(super) fn new(param: Handle) -> Ptr<T> {
        Ptr { param, offsets: None, hint: CacheHint::Default, elem: PhantomData }
    }

    /// The parameter in the program.
    pub fn value(self) -> Value {
        self.param.value
    }

    /// Accesses through this pointer use data once. Triton's `eviction_policy="evict_first"`.
    pub fn streaming(self) -> Self {
        Ptr { hint: CacheHint::Streaming, ..self }
    }

    /// Accesses through this pointer use data that other instances use again. Triton's `eviction_policy="evict_last"`.
    pub fn keep(self) -> Self {
        Ptr { hint: CacheHint::Keep, ..self }
    }

    /// Reads all elements.
    #[track_caller]
    pub fn load(self) -> Tile<T> {
        make(&[self.param, self.offset()], |b, args| match args {
            &[param, offsets] => b.load(param, offsets, None, None, self.hint),
            _ => Err(missing("load")),
        })
    }

    /// Writes all elements.
    #[track_caller]
    pub fn store(self, value: impl Operand<T, Out = T>)
    where
        T: Element,
    {
        store(self, value, true);
    }

    /// Offsets of more than one summand are `i64`: a sum of what fits `i32` need not fit.
    #[track_caller]
    pub(super) fn shifted<U: Int>(self, by: Tile<U>) -> Self {
        let small = matches!(U::ELEM, Elem::I8 | Elem::I16 | Elem::I32 | Elem::U8 | Elem::U16);
        let offsets = match self.offsets {
            None if small => by.cast::<i32>().handle,
            None => by.cast::<i64>().handle,
            Some(offsets) => {
                let before: Tile<i64> = tile::<i64>(offsets).cast();
                (before + by.cast::<i64>()).handle
            }
        };
        Ptr { offsets: Some(offsets), ..self }
    }

    /// The offsets; without any the number 0.
    #[track_caller]
    pub(super) fn offset(self) -> Handle {
        self.offsets.unwrap_or_else(|| number::<i32>(0).handle)
    }

    /// The offsets as `i64`.
    #[track_caller]
    pub(super) fn wide_offset(self) -> Handle {
        tile::<i64>(self.offset()).cast::<i64>().handle
    }

    /// The same parameter at other offsets.
    pub(super) fn at(self, offsets: Handle) -> Self {
        Ptr { offsets: Some(offsets), ..self }
    }

    /// The extents of the offsets; empty for one address.
    pub fn shape(self) -> Vec<usize> {
        self.offsets.map_or_else(Vec::new, |offsets| tile::<i64>(offsets).shape())
    }
}

/// The order and scope of atomic operations: all accesses of an instance, seen by every instance on the device. Triton's
/// defaults.
const ORDER: (MemoryOrder, MemoryScope) = (MemoryOrder::AcqRel, MemoryScope::Device);

#[track_caller]
fn atomic<T: Element>(
    function: AtomicFn,
    ptr: Ptr<T>,
    value: impl Operand<T, Out = T>,
    mask: impl Mask,
) -> Tile<T> {
    let value: Tile<T> = value.operand();
    let mask = mask.mask().map(|m| m.handle);
    let args: Vec<Handle> = [ptr.param, ptr.offset(), value.handle].into_iter().chain(mask).collect();
    make(&args, |b, args| {
        let [param, offsets, value, mask @ ..] = args else { return Err(missing("atomic")) };
        let shape = b.ty(*offsets).shape.clone();
        let value = spread(b, *value, &shape)?;
        let mask = mask.first().map(|&m| spread(b, m, &shape)).transpose()?;
        b.atomic(function, (*param, *offsets, value), mask, ORDER)
    })
}

macro_rules! atomics {
    ($($name:ident $bound:ident $function:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        /// What was there before is the result; 0 where the mask is false. The pointer's shape is that of the operation.
        #[track_caller]
        pub fn $name<T: $bound>(ptr: Ptr<T>, value: impl Operand<T, Out = T>, mask: impl Mask) -> Tile<T> {
            atomic(AtomicFn::$function, ptr, value, mask)
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
    let (expected, value): (Tile<T>, Tile<T>) = (expected.operand(), value.operand());
    make(&[ptr.param, ptr.offset(), expected.handle, value.handle], |b, args| {
        let &[param, offsets, expected, value] = args else { return Err(missing("atomic_cas")) };
        let shape = b.ty(offsets).shape.clone();
        let (expected, value) = (spread(b, expected, &shape)?, spread(b, value, &shape)?);
        b.atomic_cas((param, offsets), (expected, value), ORDER)
    })
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
                [$($name.operand()),*]
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
    pub fn block(self, at: impl Dims<R>) -> (Ptr<T>, Tile<bool>) {
        let at = at.dims();
        let (mut ptr, mut inside) = (self.ptr, None);
        for (axis, &first) in at.iter().enumerate() {
            let extent = |list: &[usize; R]| list.get(axis).copied().unwrap_or(1);
            let mut line = [1; R];
            if let Some(own) = line.get_mut(axis) {
                *own = extent(&self.block);
            }
            let (Some(&stride), Some(&size)) = (self.strides.get(axis), self.shape.get(axis)) else {
                continue;
            };
            let index = first + range(0, extent(&self.block)).reshape(line);
            let within = index.ge(0) & index.lt(size);
            inside = Some(inside.map_or(within, |before: Tile<bool>| before & within));
            ptr += index * stride;
        }
        let inside = inside.unwrap_or_else(|| number(true));
        (ptr, inside.broadcast_to(self.block))
    }

    /// The block that begins at these indices.
    #[track_caller]
    pub fn load(self, at: impl Dims<R>) -> Tile<T> {
        let (ptr, inside) = self.block(at);
        make(&[ptr.param, ptr.offset(), inside.handle], |b, args| {
            let &[param, offsets, inside] = args else { return Err(missing("load")) };
            let shape = b.ty(inside).shape.clone();
            let offsets = spread(b, offsets, &shape)?;
            b.load(param, offsets, Some(inside), None, ptr.hint)
        })
    }

    /// Writes the block that begins at these indices.
    #[track_caller]
    pub fn store(self, at: impl Dims<R>, value: impl Operand<T, Out = T>) {
        let (ptr, inside) = self.block(at);
        store(ptr, value, inside);
    }
}
