//! Calls of the driver and their errors.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

use crate::error::{Error, Result};

/// The error of a driver call, if there is one.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Cuda { call, code: result as u32, message: describe(result) })
}

/// What the driver says of a code.
pub(crate) fn describe(result: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes the address of a static string, or leaves null for a code that it does not know.
    let known =
        unsafe { sys::cuGetErrorString(result, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    if !known {
        return format!("error {}", result as u32);
    }
    // SAFETY: on success `text` is a NUL-terminated string that is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Loads and starts the driver.
pub(crate) fn start() -> Result<()> {
    // SAFETY: loading the driver's library runs its own initialisers only.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDevice("the driver's library, libcuda, is not installed".to_owned()));
    }
    // SAFETY: the library is present; 0 is the only flag value that is allowed.
    let result = unsafe { sys::cuInit(0) };
    if result != CUresult::CUDA_SUCCESS {
        return Err(Error::NoDevice(describe(result)));
    }
    Ok(())
}

/// The CUDA version that the driver supports, 13000 for 13.0.
pub(crate) fn version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: writes one integer.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(version.unsigned_abs())
}
