//! The planner: a primitive graph to an ordered list of kernels and libtorch calls.
//!
//! Groups grow along edges, operands before users. A merge must be legal (the merged kernel builds, no cycle arises)
//! and must pay by the cost model; every edge keeps a [`Decision`]. Small kernels that do not need each other then share
//! launches. Planning is deterministic.

mod aliased_outputs;
mod block_kernels;
mod cost;
mod demand;
mod divide;
mod early;
mod empty;
mod gather;
mod group;
mod horizontal;
mod in_place;
mod late;
mod liveness;
mod memory;
mod memory_limit;
mod mix_order;
mod non_temporal;
mod outer_loop;
mod reinplace;
mod remedy;
mod split;
mod steps;
#[cfg(test)]
mod tests;
mod tuned;
mod unit_order;
mod verify;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tilefuse_block::Program;

use crate::block_kernel::BlockKernelKind;
use crate::graph::{Graph, NodeId, ValueRef};
use crate::kernel::Refusal;
use crate::place::Place;
use crate::schedule::{ScheduleError, Tiling};

pub(crate) use aliased_outputs::drop_aliased_outputs;
pub(crate) use divide::divide_reductions;
pub(crate) use empty::drop_empty;
pub(crate) use gather::store_sources;
pub use horizontal::HorizontalRefusal;
pub(crate) use horizontal::join;
pub use memory::{ALIGNMENT, Memory};
pub(crate) use memory_limit::group_within;
pub(crate) use non_temporal::mark_non_temporal;
pub(crate) use outer_loop::fuse_outer_loops;
pub use outer_loop::{LocalBuffer, OuterLoop, OuterLoopRefusal};
pub use reinplace::Copied;
pub(crate) use reinplace::reinplace;
pub use split::split_reductions;
pub use tuned::{Buffer as TunableBuffer, Tunable, Tuned, Tuner};
pub use verify::verify;

/// Whether an edge was fused, and why not.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Producer and consumer are in one kernel; the value is not read from memory.
    Fused,
    /// The same, and the consumer is computed where the producer's kernel, of blocks of its own, stores its results.
    Epilogue,
    /// The same, and the producer is computed where the consumer's kernel, of blocks of its own, loads its operands.
    Prologue,
    /// Merging is impossible.
    Illegal(Refusal),
    /// Merging would make a kernel wait for itself through another step.
    Cycle,
    /// One end runs through libtorch.
    Library(String),
    /// One end is an operator with a kernel of its own, which the plan cannot launch itself, for this reason.
    Operator(String, String),
    /// Merging is possible but predicted to be slower, in microseconds.
    Slower {
        /// In two kernels.
        separate_us: f64,
        /// Merged.
        merged_us: f64,
    },
    /// The producer is computed before the consumer can be, because what it reads would stay live until then.
    Memory,
    /// As many rewrites were made as may be.
    Limit,
    /// The user wants separate kernels.
    Hint,
}

impl Verdict {
    /// Whether producer and consumer are in one kernel.
    pub fn is_fused(&self) -> bool {
        matches!(self, Verdict::Fused | Verdict::Epilogue | Verdict::Prologue)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Fused => f.write_str("fused"),
            Verdict::Epilogue => f.write_str("fused as an epilogue"),
            Verdict::Prologue => f.write_str("fused as a prologue"),
            Verdict::Illegal(refusal) => write!(f, "cut: {refusal}"),
            Verdict::Cycle => f.write_str("cut: a step between them needs the first and feeds the second"),
            Verdict::Library(op) => write!(f, "cut: {op} runs through libtorch"),
            Verdict::Operator(op, reason) => write!(f, "cut: {op} runs through libtorch: {reason}"),
            Verdict::Slower { separate_us, merged_us } => {
                write!(f, "cut: predicted {merged_us:.1} us in one kernel, {separate_us:.1} us in two")
            }
            Verdict::Memory => f.write_str("cut: what the producer reads would stay live for longer"),
            Verdict::Limit => f.write_str("cut: the number of rewrites is limited"),
            Verdict::Hint => f.write_str("cut: a hint keeps them in separate kernels"),
        }
    }
}

/// What became of the edge from a producer to a consumer; views between them are looked through.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The producing node.
    pub producer: NodeId,
    /// The consuming node.
    pub consumer: NodeId,
    /// Fused or cut, with the reason.
    pub verdict: Verdict,
}

/// Kinds of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelKind {
    /// No reduction.
    Pointwise,
    /// A reduction along contiguous elements.
    RowReduction,
    /// A reduction along elements that are not contiguous.
    ColumnReduction,
    /// Several kernels that do not need each other, in one launch.
    Horizontal,
    /// A block kernel, with its prologue and epilogue.
    #[serde(untagged)]
    Block(BlockKernelKind),
}

impl KernelKind {
    /// Whether its program comes with block sizes and a grid, which the planner did not choose.
    pub fn has_own_blocks(self) -> bool {
        matches!(self, KernelKind::Block(_))
    }
}

impl std::fmt::Display for KernelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            KernelKind::Pointwise => "pointwise",
            KernelKind::RowReduction => "row-reduction",
            KernelKind::ColumnReduction => "column-reduction",
            KernelKind::Block(BlockKernelKind::Contraction) => "contraction",
            KernelKind::Block(BlockKernelKind::Convolution) => "convolution",
            KernelKind::Block(BlockKernelKind::Attention) => "attention",
            KernelKind::Block(BlockKernelKind::Pack) => "pack",
            KernelKind::Block(BlockKernelKind::Custom) => "custom",
            KernelKind::Horizontal => "horizontal",
        })
    }
}

/// A kernel that shares its launch with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its compute nodes.
    pub nodes: Vec<NodeId>,
    /// Its kind.
    pub kind: KernelKind,
    /// The first of its instances.
    pub first: u64,
    /// How many there are.
    pub instances: u64,
    /// Positions of its buffers in [`KernelStep::buffers`].
    pub buffers: Vec<usize>,
}

/// A step that runs a generated kernel.
#[derive(Clone, Debug)]
pub struct KernelStep {
    /// Position in [`Plan::programs`].
    pub program: usize,
    /// Number of program instances along each axis.
    pub grid: [u64; 3],
    /// Buffers in parameter order, and whether each is written.
    pub buffers: Vec<(ValueRef, bool)>,
    /// Whether a status word follows as last parameter: an `i32` that is set when an index is out of range.
    pub checks: bool,
    /// A value that is read and one that is written, where each element of the first is read for the last time before
    /// the same element of the second is written: they may be the same memory.
    pub in_place: Vec<(ValueRef, ValueRef)>,
    /// Compute nodes of the kernel.
    pub nodes: Vec<NodeId>,
    /// The kind.
    pub kind: KernelKind,
    /// The tiles, where the planner chose them.
    pub tiling: Option<Tiling>,
    /// How they were chosen, where by measuring several.
    pub tuned: Option<Tuned>,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Arithmetic operations.
    pub flops: u64,
    /// Predicted time.
    pub predicted_us: f64,
    /// Why it is a kernel, where a libtorch call might do.
    pub note: Option<String>,
    /// The kernels of a launch of several, in the order of their instances; none for a kernel alone.
    pub parts: Vec<Part>,
    /// Why it has a launch of its own.
    pub horizontal_refusal: Option<HorizontalRefusal>,
}

/// A step that calls libtorch.
#[derive(Clone, Debug)]
pub struct ExternStep {
    /// The node, an `Op::Aten`.
    pub node: NodeId,
    /// Its operands.
    pub operands: Vec<Place>,
    /// Why it is no kernel.
    pub reason: Option<String>,
}

/// One step of a plan.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "plans are short, and most of their steps are kernels")]
pub enum StepKind {
    /// A generated kernel.
    Kernel(KernelStep),
    /// A libtorch call.
    Extern(ExternStep),
}

/// One step, with the tensors that begin and end with it.
#[derive(Clone, Debug)]
pub struct Step {
    /// What runs.
    pub kind: StepKind,
    /// Values of [`Memory::own`] whose tensors it is the first to write.
    pub takes: SmallVec<[ValueRef; 2]>,
    /// Values of [`Memory::own`] and results of libtorch calls whose memory no later step needs.
    pub frees: SmallVec<[ValueRef; 2]>,
}

impl From<StepKind> for Step {
    fn from(kind: StepKind) -> Step {
        Step { kind, takes: SmallVec::new(), frees: SmallVec::new() }
    }
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The graph that the plan refers to (reductions may have been split, so it differs from the planner's input).
    pub graph: Graph,
    /// Distinct block programs.
    pub programs: Vec<Program>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// The graph's outputs.
    pub outputs: Vec<Place>,
    /// Write-backs: target node, new value.
    pub updates: Vec<(NodeId, Place)>,
    /// For each of them, why the value is copied to the target; `None` where its kernel writes it there.
    pub copied: Vec<Option<Copied>>,
    /// Where intermediates of kernels live.
    pub memory: Memory,
    /// Kernels that run over blocks of rows, in the order of the steps.
    pub outer_loops: Vec<OuterLoop>,
    /// Why kernels that write much of what the next one reads begin no outer loop, by step.
    pub outer_loop_refusals: Vec<(usize, OuterLoopRefusal)>,
    /// One record for every edge.
    pub decisions: Vec<Decision>,
    /// What of the planning was scheduling: from groups to block programs.
    pub scheduling: Duration,
}

impl Plan {
    /// Number of kernel launches.
    pub fn kernel_count(&self) -> usize {
        self.steps.iter().filter(|s| matches!(s.kind, StepKind::Kernel(_))).count()
    }

    /// Predicted time of all kernels, without libtorch's calls.
    fn predicted_us(&self) -> f64 {
        let of = |step: &Step| match &step.kind {
            StepKind::Kernel(kernel) => kernel.predicted_us,
            StepKind::Extern(_) => 0.0,
        };
        self.steps.iter().map(of).sum()
    }

    /// Number of libtorch calls.
    pub fn extern_count(&self) -> usize {
        self.steps.len() - self.kernel_count()
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "plan {{")?;
        for (at, step) in self.steps.iter().enumerate() {
            self.fmt_step(f, at, step)?;
        }
        for outer_loop in &self.outer_loops {
            writeln!(
                f,
                "  loop over blocks of rows: steps {:?}, {} blocks",
                outer_loop.steps,
                outer_loop.blocks()
            )?;
        }
        for (target, place) in &self.updates {
            writeln!(f, "  update %{} <- {place:?}", target.index())?;
        }
        writeln!(f, "}}\n{}", self.graph)?;
        self.programs.iter().try_for_each(|program| writeln!(f, "{program}"))
    }
}

impl Plan {
    fn fmt_step(&self, f: &mut std::fmt::Formatter<'_>, at: usize, step: &Step) -> std::fmt::Result {
        let kernel = match &step.kind {
            StepKind::Kernel(kernel) => kernel,
            StepKind::Extern(step) => return writeln!(f, "  {at}: libtorch %{}", step.node.index()),
        };
        let name = self.programs.get(kernel.program).map_or("?", |program| &program.name);
        let nodes = kernel.nodes.iter().map(|n| format!("%{}", n.index())).collect::<Vec<_>>().join(", ");
        let (kind, program) = (kernel.kind, kernel.program);
        writeln!(f, "  {at}: kernel {name} ({kind}, program {program}), grid {:?}: {nodes}", kernel.grid)
    }
}

/// Why a graph could not be planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The graph has a cycle.
    #[error("the graph has a cycle")]
    Cycle,
    /// A node cannot be computed even alone.
    #[error("{node}: {refusal}")]
    Alone {
        /// The node and its operator.
        node: String,
        /// Why.
        refusal: Refusal,
    },
    /// A kernel could not be scheduled.
    #[error("{node}: {error}")]
    Schedule {
        /// A node of the kernel and its operator.
        node: String,
        /// Why.
        error: ScheduleError,
    },
    /// An invariant of plans does not hold, see [`verify()`].
    #[error("{place} {what}")]
    Invalid {
        /// The step, or the results.
        place: String,
        /// The invariant that does not hold.
        what: String,
    },
}
