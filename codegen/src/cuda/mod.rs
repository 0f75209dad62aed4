//! The CUDA driver: devices, modules, launches, graphs, timing. The driver is loaded when it is first asked for; a machine
//! without one gets [`Error::NoDevice`](crate::Error::NoDevice).

mod buffer;
mod cubin;
mod device;
mod driver;
mod event;
mod graph;
mod kernel;
mod ptxas;

pub use buffer::Buffer;
pub use cubin::Cubin;
pub use device::{Device, Properties};
pub use event::{Event, Stream};
pub use graph::{Capture, Graph, is_capturing};
pub use kernel::{Kernel, Node};
pub use ptxas::program as ptxas;
