//! Memory that libtorch's operators take while a CUDA graph is captured.

use std::ffi::c_void;

use super::ffi::{self, RawPool, check};
use crate::Error;

/// A pool that is open on this thread: a stream of the caller's is the current one, and what libtorch's operators allocate on it
/// comes from the pool. It closes when this value is dropped.
#[derive(Debug)]
pub(crate) struct OpenPool(RawOwned);

/// The memory of a graph. Tensors in it may outlive it.
#[derive(Debug)]
pub(crate) struct GraphPool {
    /// Owned for its drop.
    _raw: RawOwned,
}

#[derive(Debug)]
struct RawOwned(*mut RawPool);

// SAFETY: a pool is bound to a thread only while it is open, and then not sent.
unsafe impl Send for GraphPool {}

impl Drop for RawOwned {
    fn drop(&mut self) {
        // SAFETY: made by the shim, owned by this value alone. An open pool closes on its own thread.
        unsafe { ffi::tf_pool_drop(self.0) }
    }
}

impl OpenPool {
    /// Opens a new pool. An error where libtorch is of a version whose allocator is not known under its name here.
    ///
    /// # Safety
    /// `stream` is a live `CUstream` of the device, that no other thread uses meanwhile.
    pub(crate) unsafe fn new(device: i8, stream: *mut c_void) -> Result<Self, Error> {
        let mut out = std::ptr::null_mut();
        // SAFETY: `out` is written on success; the caller vouches for the stream.
        check(unsafe { ffi::tf_pool_open(device, stream, &raw mut out) })?;
        Ok(Self(RawOwned(out)))
    }

    /// Closes it; what was allocated stays.
    pub(crate) fn close(self) -> Result<GraphPool, Error> {
        // SAFETY: the pool is open, and closes on the thread that opened it: this value cannot be sent.
        check(unsafe { ffi::tf_pool_close(self.0.0) })?;
        Ok(GraphPool { _raw: self.0 })
    }
}

/// What libtorch's allocator has of a CUDA device, in bytes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaMemory {
    /// What tensors have.
    pub allocated: i64,
    /// The most that they have had since the peak was started anew.
    pub peak: i64,
    /// What they have, and what is kept for others.
    pub reserved: i64,
}

/// The same of a device now; `restart` starts the peak anew behind it. CUDA must be available.
#[doc(hidden)]
pub fn cuda_memory(device: i8, restart: bool) -> Result<CudaMemory, Error> {
    let CudaMemory { mut allocated, mut peak, mut reserved } = CudaMemory::default();
    // SAFETY: the three places have room for the answer.
    check(unsafe {
        ffi::tf_cuda_memory(device, restart, &raw mut allocated, &raw mut peak, &raw mut reserved)
    })?;
    Ok(CudaMemory { allocated, peak, reserved })
}

/// Gives memory of GPUs that libtorch keeps, and that no tensor has, back to the driver, if libtorch's CUDA part is loaded.
pub(crate) fn empty_cuda_cache() {
    // SAFETY: it frees what nothing uses. An error says that there is no such memory.
    let _ = check(unsafe { ffi::tf_empty_cache() });
}
