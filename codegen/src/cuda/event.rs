//! Streams and events.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};

use super::device::Device;
use super::driver::check;
use crate::error::{Error, Result};

/// A stream of its own.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    stream: usize,
}

impl Stream {
    /// A new stream.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        Stream::with_flags(device, CUstream_flags::CU_STREAM_DEFAULT)
    }

    /// A new stream that the device's default stream does not wait for, nor it for that one.
    pub fn detached(device: &Arc<Device>) -> Result<Stream> {
        Stream::with_flags(device, CUstream_flags::CU_STREAM_NON_BLOCKING)
    }

    fn with_flags(device: &Arc<Device>, flags: CUstream_flags) -> Result<Stream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one handle.
        device.with(|| check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags as u32) }))?;
        Ok(Stream { device: device.clone(), stream: stream as usize })
    }

    /// The driver's handle.
    pub fn raw(&self) -> *mut c_void {
        self.stream as *mut c_void
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Waits until all work on the stream has ended.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        let wait = || unsafe { sys::cuStreamSynchronize(self.stream as CUstream) };
        self.device.with(|| check("cuStreamSynchronize", wait()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was made by this value alone.
        let destroy = || unsafe { sys::cuStreamDestroy_v2(self.stream as CUstream) };
        let _ = self.device.with(|| check("cuStreamDestroy", destroy()));
    }
}

/// A point in a stream's work, with its time.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    event: usize,
}

impl Event {
    /// A new event.
    pub fn new(device: &Arc<Device>) -> Result<Event> {
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: writes one handle.
        device.with(|| check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) }))?;
        Ok(Event { device: device.clone(), event: event as usize })
    }

    /// Marks the present end of the stream's work.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        let record = || unsafe { sys::cuEventRecord(self.event as CUevent, stream.stream as CUstream) };
        self.device.with(|| check("cuEventRecord", record()))
    }

    /// Marks the present end of the work of a stream that somebody else owns.
    ///
    /// # Safety
    /// `stream` is a live `CUstream` of this device, or null for its default stream.
    pub unsafe fn record_raw(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the event is alive; the caller vouches for the stream.
        let record = || unsafe { sys::cuEventRecord(self.event as CUevent, stream as CUstream) };
        self.device.with(|| check("cuEventRecord", record()))
    }

    /// Whether the work before the point has ended.
    pub fn has_passed(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        let query = || unsafe { sys::cuEventQuery(self.event as CUevent) };
        self.device.with(|| match query() {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check("cuEventQuery", other).map(|()| true),
        })
    }

    /// Microseconds between two recorded events; waits for the later one. Needs a driver of CUDA 12.8 or later.
    pub fn micros_since(&self, start: &Event) -> Result<f64> {
        if self.device.properties().driver_version < 12080 {
            let message = "timing needs a driver of CUDA 12.8 or later".to_owned();
            return Err(Error::Unsupported { target: self.device.properties().name.clone(), message });
        }
        let mut millis = 0.0;
        self.device.with(|| {
            // SAFETY: the event is alive.
            check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event as CUevent) })?;
            let (from, to) = (start.event as CUevent, self.event as CUevent);
            // SAFETY: both events are alive and recorded; writes one number.
            check("cuEventElapsedTime", unsafe { sys::cuEventElapsedTime_v2(&mut millis, from, to) })
        })?;
        Ok(f64::from(millis) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was made by this value alone.
        let destroy = || unsafe { sys::cuEventDestroy_v2(self.event as CUevent) };
        let _ = self.device.with(|| check("cuEventDestroy", destroy()));
    }
}
