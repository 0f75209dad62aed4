//! Cheap access to tensors: what they look like, checks of many at once, and new tensors without an operator call.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ops::BitOr;

use smallvec::SmallVec;
use tch::Tensor;

use super::ffi::{self, MAX_RANK, RawExpect, RawTensor, check, make_tensor, raw};
use super::large_pages;
use crate::Error;

/// A device as libtorch numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct DeviceId {
    /// `c10::DeviceType`.
    pub kind: i8,
    /// Which of the kind; −1 for the CPU, or for the current device.
    pub index: i8,
}

impl DeviceId {
    /// The host.
    pub const CPU: Self = Self { kind: 0, index: -1 };

    /// The CUDA device of this index.
    pub const fn cuda(index: i8) -> Self {
        Self { kind: 1, index }
    }

    /// Whether this is the host.
    pub fn is_cpu(self) -> bool {
        self.kind == 0
    }

    /// Whether this is a CUDA device.
    pub fn is_cuda(self) -> bool {
        self.kind == 1
    }
}

/// A set of facts about a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Flags(pub u32);

impl Flags {
    /// Takes part in differentiation.
    pub const REQUIRES_GRAD: Self = Self(1);
    /// Has sizes, strides and a dense storage.
    pub const STRIDED: Self = Self(2);
    /// Is a complex conjugate that was not carried out.
    pub const CONJ: Self = Self(4);
    /// Is a negation that was not carried out.
    pub const NEG: Self = Self(8);
    /// Is row-major without gaps.
    pub const CONTIGUOUS: Self = Self(16);
    /// Has no data.
    pub const META: Self = Self(32);
    /// Is anything but dense memory that operators take as it is: what the other flags name, a wrapper of functorch, a
    /// subclass, or copied on write.
    pub const ODD: Self = Self(64);
    /// Was made in inference mode.
    pub const INFERENCE: Self = Self(128);
    /// Has a storage.
    pub const HAS_STORAGE: Self = Self(256);
    /// Is a view to autograd. Only [`Meta::of`] tells.
    pub const VIEW: Self = Self(512);
    /// Is sparse.
    pub const SPARSE: Self = Self(1024);
    /// Is quantised.
    pub const QUANTIZED: Self = Self(2048);
    /// Is a nested tensor.
    pub const NESTED: Self = Self(4096);
    /// Has more than [`MAX_RANK`] dimensions, of which a [`Meta`] holds the first.
    pub const HIGH_RANK: Self = Self(8192);
    /// The bits that hold the layout of tensors that are not plain, as `c10::Layout`.
    pub const LAYOUT: Self = Self(0xff << 24);
    /// Is a number that became a tensor, and promotes types as a number does.
    pub const WRAPPED_NUMBER: Self = Self(16384);
    /// Is strided memory of at most [`MAX_RANK`] dimensions that holds each element as it is, or has no elements. Kernels
    /// address no other tensor.
    pub const PLAIN: Self = Self(32768);

    /// Has memory that is copied at the first write to it.
    pub const COPY_ON_WRITE: Self = Self(65536);

    /// Whether all of `other` hold.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the tensor is [plain](Self::PLAIN).
    pub fn is_plain(self) -> bool {
        self.contains(Self::PLAIN)
    }
}

impl Flags {
    /// What is out of the ordinary.
    pub(crate) fn describe(self) -> String {
        let named = [
            (Self::CONJ, "conjugated"),
            (Self::NEG, "negated"),
            (Self::META, "without data"),
            (Self::SPARSE, "sparse"),
            (Self::QUANTIZED, "quantised"),
            (Self::NESTED, "nested"),
            (Self::HIGH_RANK, "of high rank"),
            (Self::COPY_ON_WRITE, "copied on write"),
            (Self::ODD, "wrapped, or a subclass"),
        ];
        let held: Vec<&str> =
            named.iter().filter(|(flag, _)| self.contains(*flag)).map(|&(_, name)| name).collect();
        match held[..] {
            [] if self.contains(Self::STRIDED) => String::from("strided"),
            [] => format!("layout {:#x}", self.0),
            _ => held.join(", "),
        }
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a tensor looks like at one moment: the shim's `TfMeta`, which it fills.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Meta {
    sizes: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
    /// Offset into the storage, in elements.
    pub offset: i64,
    /// Number of elements.
    pub numel: i64,
    /// Size of the storage in bytes.
    pub nbytes: i64,
    /// How many handles the tensor has.
    pub use_count: i64,
    /// How many tensors (and others) share the storage.
    pub storage_use_count: i64,
    /// How often it was written, as far as autograd noticed; −1 for an inference tensor.
    pub version: i64,
    /// Address of the first element; 0 where there is none.
    pub data: usize,
    /// Identity of the tensor.
    pub tensor_impl: usize,
    /// Identity of the storage.
    pub storage: usize,
    /// Address of the storage's first byte.
    pub storage_data: usize,
    /// What holds of it.
    pub flags: Flags,
    /// `c10::ScalarType`.
    pub dtype: i8,
    /// Where its data is.
    pub device: DeviceId,
    rank: u8,
}

// As the shim asserts of `TfMeta`.
const _: () = assert!(
    size_of::<Meta>() == 216
        && offset_of!(Meta, sizes) == 0
        && offset_of!(Meta, strides) == 64
        && offset_of!(Meta, offset) == 128
        && offset_of!(Meta, numel) == 136
        && offset_of!(Meta, nbytes) == 144
        && offset_of!(Meta, use_count) == 152
        && offset_of!(Meta, storage_use_count) == 160
        && offset_of!(Meta, version) == 168
        && offset_of!(Meta, data) == 176
        && offset_of!(Meta, tensor_impl) == 184
        && offset_of!(Meta, storage) == 192
        && offset_of!(Meta, storage_data) == 200
        && offset_of!(Meta, flags) == 208
        && offset_of!(Meta, dtype) == 212
        && offset_of!(Meta, device.kind) == 213
        && offset_of!(Meta, device.index) == 214
        && offset_of!(Meta, rank) == 215
);

/// Type, sizes and device, `f32[4, 8] on cuda:0`; the host is not named.
impl std::fmt::Display for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", tilefuse_fusion::DType::from_scalar_type(self.dtype), self.sizes())?;
        match self.device {
            device if device.is_cpu() => Ok(()),
            device if device.is_cuda() => write!(f, " on cuda:{}", device.index),
            device => write!(f, " on a device of libtorch's type {}", device.kind),
        }
    }
}

impl Meta {
    /// Looks at a tensor.
    pub fn of(t: &Tensor) -> Result<Self, Error> {
        let mut m = std::mem::MaybeUninit::<Meta>::zeroed();
        // SAFETY: `t` is a live tensor and `m` has room for the answer.
        check(unsafe { ffi::tf_meta(raw(t), m.as_mut_ptr()) })?;
        // SAFETY: all bits zero is a value of this plain structure, and the shim has filled it.
        Ok(unsafe { m.assume_init() })
    }

    /// Sizes by dimension; the first [`MAX_RANK`].
    pub fn sizes(&self) -> &[i64] {
        self.sizes.get(..usize::from(self.rank)).unwrap_or(&[])
    }

    /// Strides by dimension, in elements.
    pub fn strides(&self) -> &[i64] {
        self.strides.get(..usize::from(self.rank)).unwrap_or(&[])
    }

    /// As [`address_of`] the tensor.
    pub fn address(&self) -> Result<usize, Error> {
        self.flags.is_plain().then_some(self.data).ok_or_else(no_address)
    }

    /// The smallest range of byte addresses that holds all elements; empty where there is none.
    pub fn extent(&self) -> std::ops::Range<usize> {
        if self.numel == 0 || self.data == 0 {
            return 0..0;
        }
        let last: i64 = self.sizes().iter().zip(self.strides()).map(|(n, s)| (n - 1) * s).sum();
        self.data..self.data + (last as usize + 1) * element_size(self.dtype)
    }
}

/// The `c10::ScalarType`s that this crate treats specially.
pub(super) mod dtype {
    pub(crate) const UINT8: i8 = 0;
    pub(crate) const BOOL: i8 = 11;
}

/// Bytes of an element of a `c10::ScalarType`; 0 for one that kernels do not know.
pub fn element_size(dtype: i8) -> usize {
    tilefuse_fusion::DType::from_scalar_type(dtype).bytes() as usize
}

/// What a tensor must look like for a compiled plan to take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Expect(RawExpect);

impl Expect {
    /// What `m` looks like. The data must lie at a multiple of `align` bytes, a power of two; one that is none is
    /// taken as the next.
    pub fn like(m: &Meta, align: usize) -> Self {
        Self(RawExpect {
            sizes: m.sizes,
            strides: m.strides,
            offset: -1,
            align: align.next_power_of_two() as u64,
            flags: m.flags.0,
            dtype: m.dtype,
            device_type: m.device.kind,
            device_index: m.device.index,
            rank: m.rank,
        })
    }

    /// The same, at this offset into its storage.
    pub fn at_offset(mut self, offset: i64) -> Self {
        self.0.offset = offset;
        self
    }

    /// The first thing in which a tensor is another than expected, as [`check_metas`] compares with [`GUARDED`], and last of all whether it
    /// requires gradients: what it is, what was expected, and what was found.
    pub fn difference(&self, m: &Meta) -> Option<(String, String, String)> {
        let e = &self.0;
        let differs = |what: &str, expected: String, found: String| {
            (expected != found).then(|| (what.to_owned(), expected, found))
        };
        let dtype = |dtype: i8| tilefuse_fusion::DType::from_scalar_type(dtype).to_string();
        let device = |kind: i8, index: i8| match kind {
            0 => String::from("cpu"),
            1 => format!("cuda:{index}"),
            _ => format!("device type {kind}, index {index}"),
        };
        let flags = |bits: u32| Flags(bits & GUARDED.0).describe();
        let dims = usize::from(e.rank).min(MAX_RANK);
        let each = |what: &str, expected: &[i64; MAX_RANK], found: &[i64; MAX_RANK]| {
            let at = (0..dims).find(|&at| expected[at] != found[at])?;
            Some((format!("{what} {at}"), expected[at].to_string(), found[at].to_string()))
        };
        let strided = e.flags & Flags::STRIDED.0 != 0;
        differs("layout", flags(e.flags), flags(m.flags.0))
            .or_else(|| differs("dtype", dtype(e.dtype), dtype(m.dtype)))
            .or_else(|| differs("rank", e.rank.to_string(), m.rank.to_string()))
            .or_else(|| {
                let found = device(m.device.kind, m.device.index);
                differs("device", device(e.device_type, e.device_index), found)
            })
            .or_else(|| each("size", &e.sizes, &m.sizes))
            .or_else(|| if strided { each("stride", &e.strides, &m.strides) } else { None })
            .or_else(|| {
                let expected = if e.offset >= 0 { e.offset } else { m.offset };
                differs("storage offset", expected.to_string(), m.offset.to_string())
            })
            .or_else(|| {
                let found = if m.data == 0 { e.align } else { 1 << m.data.trailing_zeros() };
                let at_least = |bytes: u64| format!("a multiple of {} bytes", bytes.min(e.align));
                differs("address", at_least(e.align), at_least(found))
            })
            .or_else(|| {
                let requires = |flags: u32| (flags & Flags::REQUIRES_GRAD.0 != 0).to_string();
                differs("requires_grad", requires(e.flags), requires(m.flags.0))
            })
    }
}

/// The flags that [`check_metas`] compares for an inference call: all that change the meaning of data.
pub const GUARDED: Flags = Flags(
    Flags::PLAIN.0
        | Flags::STRIDED.0
        | Flags::HAS_STORAGE.0
        | Flags::CONJ.0
        | Flags::NEG.0
        | Flags::META.0
        | Flags::ODD.0
        | Flags::SPARSE.0
        | Flags::QUANTIZED.0
        | Flags::NESTED.0
        | Flags::HIGH_RANK.0
        | Flags::LAYOUT.0,
);

/// The flags that [`check_metas`] compares of the inputs of a call: a model sees which of them require gradients.
pub const GUARDED_OF_INPUTS: Flags = Flags(GUARDED.0 | Flags::REQUIRES_GRAD.0);

/// Compares tensors with what is expected of them (dtype, device, sizes, strides, alignment, and the flags in
/// `mask`) in one crossing to C++, and stores the addresses of their data (null where they have none). The error
/// is the index of the first that differs.
pub fn check_metas<'a>(
    tensors: impl IntoIterator<Item = &'a Tensor>,
    expected: &[Expect],
    mask: Flags,
    data: &mut [*mut c_void],
) -> Result<(), usize> {
    let mut tensors = tensors.into_iter();
    let n = expected.len().min(data.len());
    if expected.is_empty() && data.is_empty() {
        return tensors.next().map_or(Ok(()), |_| Err(0));
    }
    let raw: SmallVec<[RawTensor; 16]> = tensors.map(raw).collect();
    if raw.len() != n || expected.len() != data.len() {
        return Err(raw.len().min(n));
    }
    let mut bad = 0;
    // SAFETY: the three arrays have `n` entries, `Expect` is `RawExpect`, and the tensors are live.
    let message = unsafe {
        ffi::tf_check(raw.as_ptr(), expected.as_ptr().cast(), n, mask.0, data.as_mut_ptr(), &raw mut bad)
    };
    match check(message) {
        Ok(()) if bad == n => Ok(()),
        _ => Err(bad),
    }
}

/// Where kernels find the elements of a tensor; 0 where there are none.
///
/// # Errors
/// Where the tensor is no plain strided memory: then its elements are not what lies at any address.
pub fn address_of(t: &Tensor) -> Result<usize, Error> {
    let mut data = std::ptr::null_mut();
    match addresses(&[raw(t)], std::slice::from_mut(&mut data))? {
        true => Ok(data as usize),
        false => Err(no_address()),
    }
}

/// The addresses of tensors as [`address_of`] each, in one crossing to C++; null for one that has none.
pub fn addresses_of(tensors: &[Tensor]) -> Result<SmallVec<[*mut c_void; 8]>, Error> {
    let mut data = SmallVec::new();
    if !tensors.is_empty() {
        let raw: SmallVec<[RawTensor; 16]> = tensors.iter().map(raw).collect();
        data.resize(raw.len(), std::ptr::null_mut());
        addresses(&raw, &mut data)?;
    }
    Ok(data)
}

/// Whether all tensors have an address; `data` is as long.
fn addresses(tensors: &[RawTensor], data: &mut [*mut c_void]) -> Result<bool, Error> {
    let (mut all, n) = (false, tensors.len().min(data.len()));
    // SAFETY: both arrays have `n` entries, and the tensors are live.
    check(unsafe { ffi::tf_addresses(tensors.as_ptr(), n, data.as_mut_ptr(), &raw mut all) })?;
    Ok(all)
}

fn no_address() -> Error {
    Error::Internal(String::from("a kernel would address a tensor that is no plain strided memory"))
}

/// [`Meta::version`] and [`Meta::data`] of many tensors in one crossing to C++.
pub fn states_of(tensors: &[Tensor]) -> Result<SmallVec<[(i64, usize); 16]>, Error> {
    let raw: SmallVec<[RawTensor; 16]> = tensors.iter().map(raw).collect();
    let mut versions: SmallVec<[i64; 16]> = SmallVec::from_elem(0, raw.len());
    let mut data: SmallVec<[*mut c_void; 16]> = SmallVec::from_elem(std::ptr::null_mut(), raw.len());
    // SAFETY: the three arrays have as many entries, and the tensors are live.
    check(unsafe { ffi::tf_states(raw.as_ptr(), raw.len(), versions.as_mut_ptr(), data.as_mut_ptr()) })?;
    Ok(versions.into_iter().zip(data.into_iter().map(|data| data as usize)).collect())
}

/// Whether each tensor has this version: nobody has written it since [`Meta::version`] was this number.
pub fn check_versions<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, versions: &[i64]) -> bool {
    let mut tensors = tensors.into_iter();
    if versions.is_empty() {
        return tensors.next().is_none();
    }
    let raw: SmallVec<[RawTensor; 16]> = tensors.map(raw).collect();
    let mut same = false;
    // SAFETY: both arrays have `versions.len()` entries where it is called, and the tensors are live.
    raw.len() == versions.len()
        && check(unsafe { ffi::tf_versions(raw.as_ptr(), versions.as_ptr(), raw.len(), &raw mut same) })
            .is_ok()
        && same
}

/// Whether somebody holds each tensor besides its `own` handles.
pub fn check_held<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, own: &[i64]) -> bool {
    let raw: SmallVec<[RawTensor; 16]> = tensors.into_iter().map(raw).collect();
    let mut held = false;
    // SAFETY: both arrays have `own.len()` entries where it is called, and the tensors are live.
    raw.len() == own.len()
        && check(unsafe { ffi::tf_held(raw.as_ptr(), own.as_ptr(), raw.len(), &raw mut held) }).is_ok()
        && held
}

/// A new tensor with uninitialised memory: from libtorch's allocator, or where it is large and on the host from what
/// earlier ones have given back.
pub fn empty_strided(sizes: &[i64], strides: &[i64], dtype: i8, device: DeviceId) -> Result<Tensor, Error> {
    same_rank(sizes, strides)?;
    let (n, s) = (sizes.as_ptr(), strides.as_ptr());
    let elements = sizes.iter().try_fold(1i64, |product, &size| product.checked_mul(size)).unwrap_or(0);
    let bytes = usize::try_from(elements).unwrap_or(0).saturating_mul(element_size(dtype));
    if device == DeviceId::CPU && bytes >= large_pages::MIN_BYTES {
        let (take, give) = (large_pages::take, large_pages::give);
        // SAFETY: both arrays have `sizes.len()` entries; memory of `take` is as large as asked for and nobody else's
        // until it is given to `give`.
        return make_tensor(|out| unsafe { ffi::tf_empty_kept(n, s, sizes.len(), dtype, take, give, out) });
    }
    // SAFETY: both arrays have `sizes.len()` entries.
    make_tensor(|out| unsafe {
        ffi::tf_empty_strided(n, s, sizes.len(), dtype, device.kind, device.index, out)
    })
}

/// A tensor on the storage of `base`, at `byte_offset` from its start, of any dtype. Bounds are checked.
pub fn view_of(
    base: &Tensor,
    byte_offset: i64,
    dtype: i8,
    sizes: &[i64],
    strides: &[i64],
) -> Result<Tensor, Error> {
    same_rank(sizes, strides)?;
    let (n, s) = (sizes.as_ptr(), strides.as_ptr());
    // SAFETY: both arrays have `sizes.len()` entries, and `base` is live.
    make_tensor(|out| unsafe { ffi::tf_view_of(raw(base), byte_offset, dtype, n, s, sizes.len(), out) })
}

/// A tensor of the same dtype on the storage of `t`, at `offset` elements from the storage's start.
pub fn as_strided_of(t: &Tensor, sizes: &[i64], strides: &[i64], offset: i64) -> Result<Tensor, Error> {
    let m = Meta::of(t)?;
    view_of(t, offset.saturating_mul(element_size(m.dtype) as i64), m.dtype, sizes, strides)
}

/// Tells autograd that `t` was written by something that it cannot see.
pub fn bump_version(t: &Tensor) -> Result<(), Error> {
    // SAFETY: `t` is live.
    check(unsafe { ffi::tf_bump_version(raw(t)) })
}

fn same_rank(sizes: &[i64], strides: &[i64]) -> Result<(), Error> {
    if sizes.len() == strides.len() {
        return Ok(());
    }
    Err(Error::Torch(format!("{} sizes with {} strides", sizes.len(), strides.len())))
}
