//! The planner: a primitive graph to an ordered list of kernels and libtorch calls.
//!
//! Each node begins as a group of its own ([`Groups`]), and groups grow along edges, operands before users. A merge must be legal
//! (the merged kernel builds, no cycle arises) and must pay by the cost model; every edge keeps a [`Decision`]. Each group
//! becomes a step of a [`Plan`]. Small kernels that do not need each other then share launches. Planning is deterministic.

mod aliased_outputs;
mod axes;
mod behind_reductions;
mod block_cost;
mod block_kernels;
mod block_siblings;
mod built_block;
mod cost;
mod demand;
mod divide;
mod early;
mod empty;
mod gather;
mod group;
mod groups;
mod horizontal;
mod in_place;
mod interleaved;
mod ir;
mod liveness;
mod memory;
mod memory_limit;
mod merge;
mod mix_order;
mod non_temporal;
mod other_elements;
mod outer_loop;
mod reasons;
mod reinplace;
mod rematerialize;
mod remedy;
mod siblings;
mod sink;
mod split;
mod steps;
#[cfg(test)]
mod tests;
mod tune;
mod tuner;
mod unit_order;
mod verify;
mod verify_groups;
mod vertical;

pub(crate) use aliased_outputs::drop_aliased_outputs;
pub(crate) use divide::divide_reductions;
pub(crate) use early::Early;
pub(crate) use empty::drop_empty;
pub(crate) use gather::store_sources;
pub(crate) use group::group;
pub use groups::Groups;
pub(crate) use groups::Rules;
pub(crate) use horizontal::join;
pub use ir::{
    ExternStep, KernelKind, KernelStep, LocalBuffer, OuterLoop, Part, Plan, PlanError, Step, StepKind,
};
pub use memory::{ALIGNMENT, Memory};
pub(crate) use memory_limit::{Schedules, limit_memory};
pub(crate) use non_temporal::mark_non_temporal;
pub(crate) use outer_loop::fuse_outer_loops;
pub use reasons::{Copied, Decision, HorizontalRefusal, OuterLoopRefusal, Verdict};
pub(crate) use reinplace::reinplace;
pub(crate) use rematerialize::rematerialize;
pub(crate) use siblings::sibling_fusion;
pub(crate) use sink::sink;
pub(crate) use split::split_counted;
pub use split::split_reductions;
pub(crate) use steps::schedule;
pub(crate) use tune::tune;
pub use tuner::{Tunable, TunableBuffer, Tuned, Tuner};
pub use verify::verify;
pub use verify_groups::verify_groups;
pub(crate) use vertical::{retry_epilogues, vertical_fusion};
