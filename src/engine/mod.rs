//! Compiled plans: from a captured run to kernels, and running them in the model's place.

mod alias;
mod attention;
mod by_rows;
mod compile;
mod convert;
mod exec;
mod graph;
mod guard;
mod kernels;
mod memory;
mod packs;
mod products;
mod profile;
mod schedules;
mod slots;
#[cfg(test)]
mod tests;

pub(crate) use compile::{Compiled, Tensors, compile, gpu_programs};
pub(crate) use exec::Stop;
pub use graph::CudaGraphs;
pub(crate) use guard::{Signature, grad_needed};
pub use kernels::{CompileReport, Target};
pub(crate) use kernels::{Kernel, Stream, cache, cache_state, device_name, kernel};
pub(crate) use packs::Store as PackStore;
pub(crate) use profile::{Measured, kept as kept_profile, measure as measure_profile, nothing};
