//! How the recorder holds on to tensors.
//!
//! Identities must not be used again while a capture goes on, yet keeping every activation alive would cost far more
//! memory than the model needs. So what may be asked for later is kept, and of the rest the identity alone.

use tch::Tensor;

use super::ffi::{self, RawWeak, check, raw};
use crate::Error;

/// The identity of a tensor and of its storage, without their memory.
#[derive(Debug)]
pub(crate) struct Weak(*mut RawWeak);

// SAFETY: libtorch counts weak references atomically, and what they refer to may be read from several threads.
unsafe impl Send for Weak {}
// SAFETY: as above.
unsafe impl Sync for Weak {}

impl Weak {
    pub(crate) fn new(t: &Tensor) -> Result<Self, Error> {
        let mut out = std::ptr::null_mut();
        // SAFETY: `t` is live, and `out` is written on success.
        check(unsafe { ffi::tf_weak_new(raw(t), &raw mut out) })?;
        Ok(Self(out))
    }

    /// The tensor, if somebody still has it.
    fn get(&self) -> Option<Tensor> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the pointer is owned, and `out` is written on success.
        check(unsafe { ffi::tf_weak_lock(self.0, &raw mut out) }).ok()?;
        // SAFETY: where it is not null, it is a new `at::Tensor` that nobody else owns.
        (!out.is_null()).then(|| unsafe { Tensor::from_ptr(out.cast()) })
    }

    /// How many tensors hold the storage; 0 where it is gone.
    pub(super) fn storage_holders(&self) -> i64 {
        // SAFETY: the pointer is owned.
        unsafe { ffi::tf_weak_storage_holders(self.0) }
    }

    /// Turns on or off the report of accesses to the storage's memory from outside operators.
    pub(super) fn watch(&self, on: bool) -> Result<(), Error> {
        // SAFETY: the pointer is owned; a storage that is gone is left alone.
        check(unsafe { ffi::tf_watch(self.0, on) })
    }
}

impl Drop for Weak {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and was made by the shim.
        unsafe { ffi::tf_weak_drop(self.0) }
    }
}

/// A reference to a tensor.
pub(super) enum Handle {
    /// Keeps it alive.
    Strong(Tensor),
    /// Does not.
    Weak(Weak),
}

impl Handle {
    /// The tensor, if it is alive.
    pub(super) fn get(&self) -> Option<Tensor> {
        match self {
            Handle::Strong(t) => Some(t.shallow_clone()),
            Handle::Weak(weak) => weak.get(),
        }
    }

    /// How many references to the tensor there are while [`Handle::get`]'s answer lives, without anybody else's.
    pub(super) fn own_references(&self) -> i64 {
        // `shallow_clone` makes a second reference.
        if let Handle::Strong(_) = self { 2 } else { 1 }
    }

    /// Stops keeping the tensor.
    pub(super) fn forget(&mut self) -> Result<(), Error> {
        if let Handle::Strong(t) = self {
            *self = Handle::Weak(Weak::new(t)?);
        }
        Ok(())
    }

    /// The tensor, if it was kept.
    pub(super) fn into_strong(self) -> Option<Tensor> {
        if let Handle::Strong(t) = self { Some(t) } else { None }
    }
}
