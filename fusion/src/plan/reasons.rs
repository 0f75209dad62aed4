//! Why edges were cut, kernels have launches of their own or begin no outer loop, and updates are copied.

use crate::block_kernel::Declined;
use crate::graph::NodeId;
use crate::kernel::Refusal;
use crate::machine::Profile;

/// Whether an edge was fused, and why not.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Producer and consumer are in one kernel; the value is not read from memory.
    Fused,
    /// The same, and the consumer is computed where the producer's kernel, of blocks of its own, stores its results.
    Epilogue,
    /// The same, and the producer is computed where the consumer's kernel, of blocks of its own, loads its operands.
    Prologue,
    /// They are in one kernel because the user wants that, though it is predicted to be slower, in microseconds.
    Together {
        /// How they are fused.
        fused: Box<Verdict>,
        /// In two kernels.
        separate_us: f64,
        /// Merged.
        merged_us: f64,
    },
    /// Merging is impossible.
    Illegal(Refusal),
    /// Merging would make a kernel wait for itself through another step: the operators of that.
    Cycle(String),
    /// One end runs through libtorch.
    Library(String),
    /// One end is an operator that might have a kernel of its own, and has none for this reason.
    Operator(String, Declined),
    /// Merging is possible but predicted to be slower, in microseconds.
    Slower {
        /// In two kernels.
        separate_us: f64,
        /// Merged.
        merged_us: f64,
    },
    /// What the producer computes of its reductions could be the consumer's prologue: predicted to be slower, in microseconds.
    SlowerPrologue {
        /// As it is computed now.
        separate_us: f64,
        /// The reductions in a kernel, and what is behind them in the loads of the consumer's.
        merged_us: f64,
    },
    /// The producer is computed before the consumer can be, because what it reads would stay live until then.
    Memory,
    /// As many rewrites were made as may be.
    Limit,
    /// The user wants separate kernels, by the hint of this pattern.
    Hint(String),
}

impl Verdict {
    /// Whether producer and consumer are in one kernel.
    pub fn is_fused(&self) -> bool {
        match self {
            Verdict::Fused | Verdict::Epilogue | Verdict::Prologue => true,
            Verdict::Together { fused, .. } => fused.is_fused(),
            _ => false,
        }
    }

    /// Microseconds that a cut costs at most, by the cost model: what the producer gives, of so many bytes, is written to memory and read
    /// from it again, and one kernel more is launched. 0 of an edge that is fused or would be slower so.
    pub fn cost_us(&self, bytes: u64, profile: &Profile) -> f64 {
        match self {
            _ if self.is_fused() => 0.0,
            Verdict::Slower { .. } | Verdict::SlowerPrologue { .. } => 0.0,
            _ => 2.0 * bytes as f64 / profile.bandwidth / 1000.0 + profile.launch_us,
        }
    }

    /// Whether it is what a hint asks for, where the cost model would do otherwise.
    pub fn is_hinted(&self) -> bool {
        matches!(self, Verdict::Together { .. } | Verdict::Hint(_))
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Fused => f.write_str("fused"),
            Verdict::Epilogue => f.write_str("fused as an epilogue"),
            Verdict::Prologue => f.write_str("fused as a prologue"),
            Verdict::Together { fused, separate_us, merged_us } => write!(
                f,
                "{fused}: a hint keeps them together, predicted {merged_us:.1} us so, {separate_us:.1} us in separate kernels"
            ),
            Verdict::Illegal(refusal) => write!(f, "cut: {refusal}"),
            Verdict::Cycle(between) => {
                write!(f, "cut: {between}, a step between them, needs the first and feeds the second")
            }
            Verdict::Library(op) => write!(f, "cut: {op} runs through libtorch"),
            Verdict::Operator(op, reason) => write!(f, "cut: {op} runs through libtorch: {reason}"),
            Verdict::Slower { separate_us, merged_us } => {
                write!(f, "cut: predicted {merged_us:.1} us in one kernel, {separate_us:.1} us in two")
            }
            Verdict::SlowerPrologue { separate_us, merged_us } => write!(
                f,
                "cut: predicted {merged_us:.1} us with the reductions in one kernel and a prologue behind them in the other, {separate_us:.1} us without the prologue"
            ),
            Verdict::Memory => f.write_str("cut: what the producer reads would stay live for longer"),
            Verdict::Limit => f.write_str("cut: the number of rewrites is limited"),
            Verdict::Hint(of) => {
                write!(f, "cut: the hint `separate` for {of} keeps them in separate kernels")
            }
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
    /// Whether a hint asks for one kernel.
    pub demanded: bool,
}

/// Why a kernel has a launch of its own, or why two do not share one.
#[derive(Clone, Debug, PartialEq)]
pub enum HorizontalRefusal {
    /// It is a block kernel, whose block sizes and warps suit it alone.
    OwnBlocks,
    /// Its grid has several axes, or it asks for the grid's size.
    Grid,
    /// It checks indices: where one is out of range, its launch fails as a whole.
    Checks,
    /// On a GPU its tile may need a cluster of blocks, which all parts would then get.
    Cluster {
        /// Elements of the tile.
        elements: u64,
    },
    /// A launch is a small part of its time.
    Large {
        /// Predicted time without the launch, in microseconds.
        us: f64,
        /// Most that is worth joining.
        most_us: f64,
    },
    /// On the host it runs on the thread that calls, which costs next to nothing.
    Inline {
        /// Predicted time of one thread, in microseconds.
        us: f64,
    },
    /// No other small kernel can run at the same place of the plan.
    Only,
    /// The kernels run on different devices.
    Devices,
    /// One takes many more warps than another.
    Warps {
        /// The least of one.
        least: u32,
        /// The most of another.
        most: u32,
    },
    /// Loops are pipelined in different numbers of stages.
    Stages,
    /// The launch would have too many pointers.
    Pointers {
        /// The limit.
        limit: usize,
    },
    /// The program would have too many operations.
    Operations {
        /// The limit.
        limit: usize,
    },
    /// The launch would have more instances than a grid can have.
    Instances,
    /// The kernels are too far from each other in the plan: values between them would need more memory.
    Far {
        /// Steps between them.
        steps: usize,
    },
    /// With its neighbours in one launch, a call would hold more memory.
    Memory {
        /// Bytes in one launch.
        bytes: u64,
        /// Bytes in separate launches.
        most: u64,
    },
    /// Together they are predicted to be slower.
    Slower {
        /// In separate launches, in microseconds.
        separate_us: f64,
        /// In one launch.
        fused_us: f64,
    },
    /// As many rewrites were made as may be.
    Limit,
    /// A hint keeps the operators of one separate.
    Hint,
}

impl std::fmt::Display for HorizontalRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HorizontalRefusal::Limit => f.write_str("the number of rewrites is limited"),
            HorizontalRefusal::Hint => f.write_str("a hint keeps them in separate kernels"),
            HorizontalRefusal::OwnBlocks => f.write_str("its program has block sizes of its own"),
            HorizontalRefusal::Grid => {
                f.write_str("its grid has several axes, or it asks for the grid's size")
            }
            HorizontalRefusal::Checks => f.write_str("it checks indices"),
            HorizontalRefusal::Cluster { elements } => {
                write!(f, "its tile of {elements} elements may need a cluster of blocks")
            }
            HorizontalRefusal::Large { us, most_us } => {
                write!(f, "it takes {us:.1} us without the launch, more than {most_us:.1} us")
            }
            HorizontalRefusal::Inline { us } => write!(f, "its {us:.1} us run on the thread that calls"),
            HorizontalRefusal::Only => f.write_str("no other small kernel can run at the same place"),
            HorizontalRefusal::Devices => f.write_str("the other runs on another device"),
            HorizontalRefusal::Warps { least, most } => write!(f, "one takes {least} warps, another {most}"),
            HorizontalRefusal::Stages => {
                f.write_str("their loops are pipelined in different numbers of stages")
            }
            HorizontalRefusal::Pointers { limit } => {
                write!(f, "the launch would have more than {limit} pointers")
            }
            HorizontalRefusal::Operations { limit } => {
                write!(f, "the program would have more than {limit} operations")
            }
            HorizontalRefusal::Instances => f.write_str("the grid would have too many instances"),
            HorizontalRefusal::Far { steps } => {
                write!(f, "{steps} steps lie between them, and memory is short")
            }
            HorizontalRefusal::Memory { bytes, most } => {
                write!(f, "with others in one launch a call would hold {bytes} bytes, more than {most}")
            }
            HorizontalRefusal::Slower { separate_us, fused_us } => {
                write!(f, "predicted {fused_us:.1} us in one launch, {separate_us:.1} us in two")
            }
        }
    }
}

/// Why kernels of which one reads much of what the other writes are no outer loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OuterLoopRefusal {
    /// Blocks of rows of one need rows of other blocks of the other.
    Rows,
    /// No block of rows is small enough for a thread's cache.
    Large {
        /// Bytes of what is held of the smallest block.
        bytes: u64,
    },
    /// It would hold more memory at a time than the graph may.
    Memory,
    /// Threads would wait for each other longer than the outer loop saves.
    Few {
        /// What would be saved, in microseconds.
        saved_us: f64,
        /// What threads would wait, in microseconds.
        lost_us: f64,
    },
    /// As many rewrites were made as may be.
    Limit,
}

impl std::fmt::Display for OuterLoopRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OuterLoopRefusal::Rows => f.write_str("the next kernel needs other rows"),
            OuterLoopRefusal::Large { bytes } => write!(f, "the smallest block of rows has {bytes} bytes"),
            OuterLoopRefusal::Memory => f.write_str("more memory would be held at a time"),
            OuterLoopRefusal::Limit => f.write_str("the number of rewrites is limited"),
            OuterLoopRefusal::Few { saved_us, lost_us } => write!(
                f,
                "predicted to save {saved_us:.0} us, while threads wait {lost_us:.0} us, with so few blocks"
            ),
        }
    }
}

/// Why the new value of a tensor of the caller is copied there, instead of being written there by its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// A kernel of the plan checks indices.
    Checks,
    /// Inputs of a GPU may be copies of the caller's.
    Input,
    /// The new value is a view of another value.
    View,
    /// A block kernel or a libtorch call computes the new value.
    NotGenerated,
    /// A step from there on may fail.
    MayFail,
    /// The kernel would write with other strides, of another type or on another device.
    Layout,
    /// The tensor does not lie at a multiple of 16 bytes.
    Unaligned,
    /// The new value is returned as well, in memory of its own.
    Returned,
    /// The new value is written over another tensor.
    Taken,
    /// The kernel reads the tensor elsewhere than it writes, or for a value that it stores later.
    Across,
    /// The old value is needed later.
    Needed,
    /// As many rewrites were made as may be.
    Limit,
}

impl std::fmt::Display for Copied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Copied::Checks => "a kernel checks indices",
            Copied::Input => "inputs of a GPU may be copies of the caller's",
            Copied::View => "the new value is a view of another",
            Copied::NotGenerated => "a block kernel or libtorch computes the new value",
            Copied::MayFail => "a later step may fail",
            Copied::Layout => "the kernel writes another layout",
            Copied::Unaligned => "the tensor does not lie at a multiple of 16 bytes",
            Copied::Returned => "the new value is returned as well",
            Copied::Taken => "the new value is written over another tensor",
            Copied::Across => "the kernel reads the tensor elsewhere or later than it writes",
            Copied::Needed => "the old value is needed later",
            Copied::Limit => "the number of rewrites is limited",
        })
    }
}
