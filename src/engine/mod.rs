//! Compiled plans: from a captured run to kernels, and running them in the model's place.
//!
//! Compiling goes through `convert` (a trace to the planner's recording), `products` with `benchmark`, `schedules` and
//! `profile` (what is measured, by `measure`),
//! `kernels` (programs to code), and `compile`, which calls these. A call goes through `guard` (whether a plan's signature is
//! that of the `call`, and the plan still stands for the model), `exec` with `slots`, `workspaces` and `cuda_graph`, and `alias`; `audit` compares
//! later recordings of the model with the one that the plan was made of.

mod absent;
mod alias;
mod attention_masks;
mod audit;
mod benchmark;
mod call;
mod call_times;
mod compile;
mod convert;
mod cuda_graph;
mod dirty;
mod eager_cost;
mod evaluate;
mod exec;
mod guard;
mod jitdump;
mod kernels;
mod measure;
mod module_paths;
mod nvtx;
mod operator_flow;
mod perf_map;
mod prepack;
mod products;
mod profile;
mod run_delay;
mod schedules;
mod script_modules;
mod slots;
mod step_times;
mod steps;
#[cfg(test)]
mod tests;
mod tolerance;
mod workspaces;

pub(crate) use absent::{AbsentPlan, AbsentTarget, absent_plan, gpu_programs};
pub(crate) use audit::{Audits, OwnTensor, reason as audit_reason};
pub(crate) use call::{Call, Returned, Structure};
pub(crate) use call_times::CallTimes;
pub(crate) use compile::{Compiled, Tensors, compile, forms_after, profile};
pub(crate) use eager_cost::EagerCost;
pub(crate) use exec::Stop;
pub use guard::GuardMiss;
pub(crate) use guard::{Addresses, Signature, grad_needed};
pub use kernels::{CompileReport, Target};
pub(crate) use kernels::{Kernel, Stream, cache_state, device_name, forget_dropped, kernel, listing};
pub(crate) use measure::{Remembered, calls_in, in_turns, median, per_call};
pub(crate) use module_paths::{common_path, module_of, nodes_of, numbers, step_modules};
pub(crate) use operator_flow::OperatorFlow;
pub(crate) use prepack::PrepackCache;
pub(crate) use profile::{Measured, kept as kept_profile, measure as measure_profile, nothing};
pub(crate) use run_delay::Waiting;
pub(crate) use step_times::{StepTimes, units};
pub use tolerance::ToleranceReport;
pub(crate) use workspaces::Pool as WorkspacePool;
