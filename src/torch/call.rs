//! Operator calls that are stored and made again with other tensors.

use std::ffi::{CString, c_void};
use std::fmt;

use smallvec::SmallVec;
use tch::Tensor;

use super::ffi::{self, RawCall, RawTensor, check, raw};
use super::wire::{Reader, write_arg};
use super::{Arg, Schema};
use crate::Error;

/// The results of a call.
pub type Results = SmallVec<[Tensor; 2]>;

/// An operator with all its arguments but the tensors, whose places are holes. Immutable, so threads may share it.
pub struct Call(*mut RawCall);

// SAFETY: a stored call is never changed after it was made, and libtorch counts the references to its values
// atomically.
unsafe impl Send for Call {}
// SAFETY: as above; running a call copies its arguments.
unsafe impl Sync for Call {}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and was made by the shim.
        unsafe { ffi::tf_call_drop(self.0) }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.schema() {
            Ok(s) => write!(f, "Call({}.{})", s.op, s.overload),
            Err(_) => f.write_str("Call(?)"),
        }
    }
}

impl Call {
    /// Takes over a call that the shim made.
    pub(super) fn from_raw(call: *mut RawCall) -> Self {
        Self(call)
    }

    /// Makes a call of `op` (`aten::add`) in `overload` (`Tensor`, or empty) from the leading arguments of its
    /// schema; those left out take the schema's defaults. Tensors in `args` only mark where holes are.
    pub fn new<T>(op: &str, overload: &str, args: &[Arg<T>]) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        args.iter().for_each(|a| write_arg(&mut bytes, a));
        let text = |s: &str| CString::new(s).map_err(|e| Error::Torch(format!("operator name: {e}")));
        let (op, overload) = (text(op)?, text(overload)?);
        let mut out = std::ptr::null_mut();
        // SAFETY: the strings and bytes outlive the call, and `out` is written on success.
        check(unsafe {
            ffi::tf_call_new(op.as_ptr(), overload.as_ptr(), bytes.as_ptr(), bytes.len(), &raw mut out)
        })?;
        Ok(Self(out))
    }

    /// Whether tensors hide where there is no hole for them.
    pub(super) fn is_opaque(&self) -> bool {
        // SAFETY: the pointer is owned.
        unsafe { ffi::tf_call_opaque(self.0) }
    }

    /// The operator's schema.
    pub fn schema(&self) -> Result<Schema, Error> {
        unsafe extern "C" fn sink(ctx: *mut c_void, bytes: *const u8, len: usize) {
            // SAFETY: `ctx` is the `Option<Schema>` below, and the bytes live for this call.
            let (out, bytes) =
                unsafe { (&mut *ctx.cast::<Option<Schema>>(), std::slice::from_raw_parts(bytes, len)) };
            *out = Some(Reader(bytes).schema());
        }
        let mut out: Option<Schema> = None;
        // SAFETY: the sink is called with `out`, at most once, before the function returns.
        check(unsafe { ffi::tf_call_schema(self.0, (&raw mut out).cast(), sink) })?;
        out.ok_or_else(|| Error::Torch("an operator without a schema".into()))
    }

    /// The out-of-place form of an in-place operator (`aten::add_` → `aten::add`), where libtorch has one with the
    /// same arguments. Its result is converted to the dtype of its first tensor, as the in-place form's is.
    pub fn functional_variant(&self) -> Option<Self> {
        let mut out = std::ptr::null_mut();
        // SAFETY: `out` is written on success.
        check(unsafe { ffi::tf_call_functional(self.0, &raw mut out) }).ok()?;
        (!out.is_null()).then(|| Self(out))
    }

    /// Runs the call on `tensors`, which fill the holes in argument order (list elements in turn, absent ones left
    /// out). Runs below autograd: no gradient is recorded, and results are ordinary tensors. A result that is no
    /// tensor is an undefined one.
    pub fn run(&self, tensors: &[&Tensor]) -> Result<Results, Error> {
        let raw: SmallVec<[RawTensor; 8]> = tensors.iter().map(|t| raw(t)).collect();
        let (mut out, mut n_out) = (std::ptr::null_mut(), 0);
        // SAFETY: all handles are live tensors for the time of the call.
        check(unsafe { ffi::tf_call_run(self.0, raw.as_ptr(), raw.len(), &raw mut out, &raw mut n_out) })?;
        // SAFETY: `out` holds `n_out` new tensors that we own, and stays valid until this thread's next call.
        Ok((0..n_out).map(|i| unsafe { Tensor::from_ptr((*out.add(i)).cast()) }).collect())
    }
}
