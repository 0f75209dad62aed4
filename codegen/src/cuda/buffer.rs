//! Device memory, for tests and measurements; models bring libtorch's.

use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::driver::check;
use crate::error::Result;

/// Memory of a device.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Device>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Memory of `bytes` bytes (at least one is allocated), with no particular contents.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Buffer> {
        let mut address = 0;
        // SAFETY: writes one address.
        device.with(|| check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) }))?;
        Ok(Buffer { device: device.clone(), address, bytes })
    }

    /// Memory with the given contents.
    pub fn from_bytes(device: &Arc<Device>, contents: &[u8]) -> Result<Buffer> {
        let buffer = Buffer::new(device, contents.len())?;
        buffer.write(contents)?;
        Ok(buffer)
    }

    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Overwrites the beginning; what does not fit is left out.
    pub fn write(&self, contents: &[u8]) -> Result<()> {
        let bytes = contents.len().min(self.bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both sides have that many bytes.
        let copy = || unsafe { sys::cuMemcpyHtoD_v2(self.address, contents.as_ptr().cast(), bytes) };
        self.device.with(|| check("cuMemcpyHtoD", copy()))
    }

    /// The contents, after all work on the default stream.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut contents = vec![0; self.bytes];
        if !contents.is_empty() {
            let to = contents.as_mut_ptr().cast();
            // SAFETY: the vector has room for the whole buffer.
            let copy = || unsafe { sys::cuMemcpyDtoH_v2(to, self.address, self.bytes) };
            self.device.with(|| check("cuMemcpyDtoH", copy()))?;
        }
        Ok(contents)
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) -> Result<()> {
        // SAFETY: the buffer has that many bytes.
        self.device
            .with(|| check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(self.address, byte, self.bytes) }))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by this value alone. What fails here has been reported by an earlier call.
        let _ = self.device.with(|| check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) }));
    }
}
