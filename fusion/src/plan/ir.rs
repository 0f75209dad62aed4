//! Plans: steps in order, where their values lie, and what was decided on the way.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tilefuse_block::Program;

use super::memory::Memory;
use super::reasons::{Copied, Decision, HorizontalRefusal, OuterLoopRefusal};
use super::tuner::Tuned;
use crate::block_kernel::BlockKernelKind;
use crate::graph::{Graph, NodeId, ValueRef};
use crate::kernel::Refusal;
use crate::place::Place;
use crate::schedule::{ScheduleError, Tiling};

/// Bytes of a line of the cache: a block lies in a thread's memory as it would in the whole value.
pub(super) const LINE: u64 = 64;

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
    /// How a block kernel computes its result: see [`BlockKernel::schedule`](crate::block_kernel::BlockKernel::schedule).
    pub schedule: String,
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

/// Consecutive kernels that run over blocks of rows, each block through all of them on one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterLoop {
    /// Positions of the kernels in [`Plan::steps`].
    pub steps: Range<usize>,
    /// For each kernel the instances of each block.
    pub parts: Vec<Vec<Range<u64>>>,
    /// What is held a block at a time.
    pub local_buffers: Vec<LocalBuffer>,
    /// Bytes in which a thread holds these.
    pub thread_bytes: u64,
    /// How many threads that is for.
    pub threads: u64,
    /// Where the first thread's bytes begin in the arena; those of the others follow.
    pub at: u64,
    /// Predicted microseconds that it takes less.
    pub saved_us: f64,
}

/// A value of which each thread holds a block at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalBuffer {
    /// The value.
    pub value: ValueRef,
    /// Where it begins in a thread's memory, in bytes.
    pub offset: u64,
    /// For each block the byte of the value that is the first to be there.
    pub firsts: Vec<u64>,
}

impl LocalBuffer {
    /// For each block what is added to the address of a thread's memory for that from which its instances address the value,
    /// modulo 2^64: each byte lies to lines of the cache as it would in the whole.
    pub fn shifts(&self) -> Vec<u64> {
        self.firsts.iter().map(|first| (self.offset + first % LINE).wrapping_sub(*first)).collect()
    }
}

impl OuterLoop {
    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.parts.first().map_or(0, Vec::len)
    }

    /// Bytes in the arena.
    pub fn bytes(&self) -> u64 {
        self.thread_bytes * self.threads
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
    pub(super) fn predicted_us(&self) -> f64 {
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
    #[error("internal: the graph has a cycle")]
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
    /// An invariant of plans does not hold, see [`verify()`](super::verify()).
    #[error("internal: {place} {what}")]
    Invalid {
        /// The step, or the results.
        place: String,
        /// The invariant that does not hold.
        what: String,
    },
}
