//! Compiled plans: from a captured run to kernels, and running them in the model's place.

mod alias;
mod attention;
mod audit;
mod compile;
mod convert;
mod dirty;
mod exec;
mod graph;
mod guard;
mod kernels;
mod memory;
mod prepack;
mod products;
mod profile;
mod schedules;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod unaligned;
mod workspaces;

pub use audit::Audit;
pub(crate) use audit::{Audits, reason as audit_reason};
pub(crate) use compile::{Compiled, Tensors, compile, forms_after, gpu_programs};
pub(crate) use dirty::is_available as tracks_writes;
pub(crate) use exec::Stop;
pub use graph::CudaGraphs;
pub(crate) use guard::{Signature, grad_needed};
pub use kernels::{CompileReport, Target};
pub(crate) use kernels::{Kernel, Stream, cache, cache_state, device_name, forget_dropped, kernel};
pub(crate) use prepack::Store as PackStore;
pub(crate) use profile::{Measured, kept as kept_profile, measure as measure_profile, nothing};
pub(crate) use table::{Entry, Outcome, Table};
pub(crate) use workspaces::Pool as WorkspacePool;
