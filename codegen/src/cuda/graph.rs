//! Capturing work on streams as graphs.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::device::Device;
use super::driver::check;
use super::event::Stream;
use crate::error::Result;

/// Work that was captured and can be launched as one.
#[derive(Debug)]
pub struct Graph {
    device: Arc<Device>,
    /// Kept beside what is made of it, so that its nodes can be named.
    graph: usize,
    exec: usize,
}

impl Graph {
    /// The driver's handle of what is launched.
    pub fn exec(&self) -> *mut c_void {
        self.exec as *mut c_void
    }

    /// Queues it.
    ///
    /// # Safety
    /// `stream` is a live `CUstream` of the device, or null for its default stream. The memory that the graph uses is live and in
    /// no other use until it has ended.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: the graph is alive; the caller vouches for the stream and the memory.
        let launch = || unsafe { sys::cuGraphLaunch(self.exec as CUgraphExec, stream as CUstream) };
        self.device.with(|| check("cuGraphLaunch", launch()))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by this value alone; the driver waits for launches that are under way.
        let exec = || unsafe { sys::cuGraphExecDestroy(self.exec as CUgraphExec) };
        // SAFETY: as above.
        let graph = || unsafe { sys::cuGraphDestroy(self.graph as CUgraph) };
        let _ = self.device.with(|| {
            if self.exec != 0 {
                check("cuGraphExecDestroy", exec())?;
            }
            check("cuGraphDestroy", graph())
        });
    }
}

/// A capture that goes on: what is queued on its stream does not run.
#[derive(Debug)]
pub struct Capture {
    stream: Arc<Stream>,
    open: bool,
}

impl Capture {
    /// Begins to capture what is queued on a stream that nobody else uses meanwhile. Other threads' calls of the driver
    /// do not disturb it.
    pub fn begin(stream: &Arc<Stream>) -> Result<Capture> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let begin = || unsafe { sys::cuStreamBeginCapture_v2(stream.raw() as CUstream, mode) };
        stream.device().with(|| check("cuStreamBeginCapture", begin()))?;
        Ok(Capture { stream: stream.clone(), open: true })
    }

    /// Ends the capture, on the thread that began it; an error where something in it cannot be part of a graph.
    pub fn end(mut self) -> Result<Graph> {
        let device = self.stream.device().clone();
        let mut graph = Graph { device, graph: self.close()? as usize, exec: 0 };
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was just made; writes one handle.
        let mut make = || unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph.graph as CUgraph, 0) };
        graph.device.with(|| check("cuGraphInstantiate", make()))?;
        graph.exec = exec as usize;
        Ok(graph)
    }

    fn close(&mut self) -> Result<CUgraph> {
        self.open = false;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive; writes one handle.
        let mut end = || unsafe { sys::cuStreamEndCapture(self.stream.raw() as CUstream, &mut graph) };
        self.stream.device().with(|| check("cuStreamEndCapture", end()))?;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open
            && let Ok(graph) = self.close()
        {
            // SAFETY: the graph was just made, and nothing of it.
            let destroy = || unsafe { sys::cuGraphDestroy(graph) };
            let _ = self.stream.device().with(|| check("cuGraphDestroy", destroy()));
        }
    }
}

/// Whether what is queued on a stream becomes part of a graph instead of running.
///
/// # Safety
/// `stream` is a live `CUstream` of the device, or null for its default stream.
pub unsafe fn is_capturing(device: &Device, stream: *mut c_void) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller vouches for the stream; writes one number.
    let mut query = || unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    device.with(|| check("cuStreamIsCapturing", query()))?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}
