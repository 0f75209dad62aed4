//! NVTX ranges of the calling thread, which Nsight Systems shows with what was launched in them.

use std::ffi::CStr;

use super::ffi::{self, check};
use crate::Error;

/// Whether ranges can be shown: libtorch's CUDA library has NVTX in it, and is loaded.
pub(crate) fn has_ranges() -> bool {
    // SAFETY: reads a pointer that libtorch set when its CUDA library was loaded.
    unsafe { ffi::tf_ranges() }
}

/// Begins a range within those that are open. Where nothing profiles the process, that does nothing.
pub(crate) fn push_range(name: &CStr) -> Result<(), Error> {
    // SAFETY: the name is a NUL-terminated text, which is copied.
    check(unsafe { ffi::tf_range_push(name.as_ptr()) })
}

/// Ends the range that was begun last.
pub(crate) fn pop_range() -> Result<(), Error> {
    // SAFETY: takes nothing; without an open range it does nothing.
    check(unsafe { ffi::tf_range_pop() })
}
