//! The planner: a primitive graph to an ordered list of kernels and libtorch calls.
//!
//! Groups grow along edges, operands before users. A merge must be legal (the merged kernel builds, no cycle arises)
//! and must pay by the cost model; every edge keeps a [`Decision`]. Small kernels that do not need each other then share
//! launches. Planning is deterministic.

mod aliased_outputs;
mod block_kernels;
mod built_block;
mod cost;
mod demand;
mod divide;
mod early;
mod empty;
mod gather;
mod group;
mod horizontal;
mod in_place;
mod ir;
mod late;
mod liveness;
mod memory;
mod memory_limit;
mod mix_order;
mod non_temporal;
mod outer_loop;
mod reasons;
mod reinplace;
mod remedy;
mod split;
mod steps;
#[cfg(test)]
mod tests;
mod tuned;
mod tuner;
mod unit_order;
mod verify;

pub(crate) use aliased_outputs::drop_aliased_outputs;
pub(crate) use divide::divide_reductions;
pub(crate) use empty::drop_empty;
pub(crate) use gather::store_sources;
pub(crate) use horizontal::join;
pub use ir::{
    ExternStep, KernelKind, KernelStep, LocalBuffer, OuterLoop, Part, Plan, PlanError, Step, StepKind,
};
pub use memory::{ALIGNMENT, Memory};
pub(crate) use memory_limit::group_within;
pub(crate) use non_temporal::mark_non_temporal;
pub(crate) use outer_loop::fuse_outer_loops;
pub use reasons::{Copied, Decision, HorizontalRefusal, OuterLoopRefusal, Verdict};
pub(crate) use reinplace::reinplace;
pub use split::split_reductions;
pub use tuner::{Tunable, TunableBuffer, Tuned, Tuner};
pub use verify::verify;
