//! All that Tilefuse asks of libtorch beyond tch: recording a run of a model, making recorded calls again, cheap
//! access to tensors, and libtorch's global state.
//!
//! - [`capture`] runs a model once and returns, with its results, a [`Trace`]: every operator call as data, with the
//!   constants told apart and the reasons, if any, why the trace must not be compiled.
//! - [`Call`] is an operator call that can be made again with other tensors.
//! - `register` makes an operator of a Rust function.
//! - [`Meta`], [`check_metas`], [`empty_strided`], [`view_of`] are what a compiled plan needs at every call.
//! - [`release_memory`] gives back what is kept for large results on the host.
//! - `shim/` is the only C++: a boxed fallback on one dispatch key, by which [`capture`] listens, calls by schema, cheap
//!   access to tensors, and the allocator's pools for CUDA graphs.
//! - [`GlobalState`], [`GeneratorState`], [`cuda_available`], [`cuda_stream`], [`TorchPool`] and [`pin_threads`] are about the process.

mod analyse;
mod call;
mod ffi;
mod global_state;
mod graph_pool;
mod handle;
mod large_pages;
mod operator;
mod ops;
mod pin;
mod ranges;
mod record;
mod replay;
mod script;
mod source_lines;
mod tensor;
#[cfg(test)]
mod tests;
mod thread_pool;
mod trace;
mod wire;

pub use call::{Call, Results};
pub use ffi::MAX_RANK;
pub(crate) use global_state::libtorch;
pub use global_state::{GeneratorState, GlobalState, cuda_available, cuda_devices, cuda_stream};
pub use graph_pool::{CudaMemory, cuda_memory};
pub(crate) use graph_pool::{GraphPool, OpenPool, empty_cuda_cache};
pub(crate) use handle::Weak;
pub use large_pages::release_memory;
pub(crate) use large_pages::{KeepsMemory, trim_memory};
pub(crate) use operator::{in_operator, register};
pub use pin::{PinnedThreads, pin_threads};
pub(crate) use ranges::{has_ranges, pop_range, push_range};
pub(crate) use record::{CallClock, capture_timed, note_launch};
pub use record::{capture, is_capturing};
pub(crate) use replay::leaves_f64;
pub use replay::run_in_f64;
pub(crate) use script::script_converted;
pub(crate) use source_lines::{CallSite, Lines, SourceLines};
use tensor::dtype;
pub use tensor::{
    DeviceId, Expect, Flags, GUARDED, GUARDED_OF_INPUTS, Meta, address_of, addresses_of, as_strided_of,
    bump_version, check_held, check_metas, check_versions, element_size, empty_strided, states_of, view_of,
};
pub use thread_pool::TorchPool;
pub use trace::{
    Arg, CallId, Event, Origin, OutArg, Refusal, RefusalKind, Schema, SchemaArg, StorageId, StorageInfo,
    TensorId, TensorInfo, Trace,
};
