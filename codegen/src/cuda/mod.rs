//! The CUDA driver: devices, modules, launches, graphs, timing. The driver is loaded when it is first asked for; a machine
//! without one gets [`Error::NoDevice`](crate::Error::NoDevice).

mod buffer;
mod device;
mod driver;
mod event;
mod graph;
mod kernel;

pub use buffer::Buffer;
pub use device::{Device, Properties};
pub use event::{Event, Stream};
pub use graph::{Capture, Graph, is_capturing};
pub use kernel::{Kernel, Node};
