//! Devices and their properties.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute};

use super::driver::{self, check};
use crate::error::{Error, Result};
use crate::ptx::{PtxOptions, PtxVersion, Target};

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The name, as the driver gives it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Size of the second-level cache in bytes.
    pub l2_bytes: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Shared memory that one block may have, in bytes.
    pub shared_per_block: u32,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_per_multiprocessor: u32,
    /// Threads that a multiprocessor holds at a time.
    pub threads_per_multiprocessor: u32,
    /// The CUDA version of the driver, 13000 for 13.0.
    pub driver_version: u32,
}

/// A device and its primary context, which libtorch uses too. Alive until the process ends.
#[derive(Debug)]
pub struct Device {
    ordinal: usize,
    context: usize,
    properties: Properties,
}

static DEVICES: Mutex<Vec<Option<Arc<Device>>>> = Mutex::new(Vec::new());

impl Device {
    /// Number of devices; an error where there is no usable driver.
    pub fn count() -> Result<usize> {
        driver::start()?;
        let mut count = 0;
        // SAFETY: writes one integer.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(count.unsigned_abs() as usize)
    }

    /// The device of an ordinal; the same one at every call.
    pub fn get(ordinal: usize) -> Result<Arc<Device>> {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(device)) = devices.get(ordinal) {
            return Ok(device.clone());
        }
        let device = Arc::new(open(ordinal)?);
        if devices.len() <= ordinal {
            devices.resize(ordinal + 1, None);
        }
        devices[ordinal] = Some(device.clone());
        Ok(device)
    }

    /// The ordinal.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The properties.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// What to compile for.
    pub fn target(&self) -> Result<Target> {
        let (major, minor) = self.properties.capability;
        Target::of_capability(major, minor).ok_or_else(|| Error::Unsupported {
            target: self.properties.name.clone(),
            message: format!("compute capability {major}.{minor}, at least 8.0 is needed"),
        })
    }

    /// How to compile for this machine's driver.
    pub fn ptx_options(&self) -> PtxOptions {
        PtxOptions { driver: Some(PtxVersion::of_driver(self.properties.driver_version)) }
    }

    /// Runs `f` with this device's context current on this thread. The context that was current is so again
    /// afterwards; a thread that had none keeps this one.
    pub(crate) fn with<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = self.context as CUcontext;
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == own {
            return f();
        }
        // SAFETY: the context was retained and is never released.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(own) })?;
        let result = f();
        if !current.is_null() {
            // SAFETY: the context was current before.
            check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(current) })?;
        }
        result
    }

    /// Waits until all work on the device has ended; reports what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: takes no arguments.
        self.with(|| check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() }))
    }

    /// Free and total memory in bytes.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        self.with(|| check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }))?;
        Ok((free as u64, total as u64))
    }
}

fn open(ordinal: usize) -> Result<Device> {
    let count = Device::count()?;
    if ordinal >= count {
        return Err(Error::NoDevice(format!("device {ordinal} was asked for, {count} visible")));
    }
    let mut device = 0;
    // SAFETY: writes one integer.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
    let properties = properties(device)?;
    let mut context = std::ptr::null_mut();
    // SAFETY: writes one pointer; the context is retained until the process ends.
    check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
    Ok(Device { ordinal, context: context as usize, properties })
}

fn properties(device: CUdevice) -> Result<Properties> {
    use CUdevice_attribute as A;
    let get = |attribute| {
        let mut value = 0;
        // SAFETY: writes one integer.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
        Ok::<u32, Error>(value.unsigned_abs())
    };
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most 256 bytes.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 256, device) })?;
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let mut memory = 0;
    // SAFETY: writes one integer.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    Ok(Properties {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        capability: (
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: u64::from(get(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        memory_bytes: memory as u64,
        shared_per_block: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_multiprocessor: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        threads_per_multiprocessor: get(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        driver_version: driver::version()?,
    })
}
