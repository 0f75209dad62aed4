//! How a fused model compiles and runs.

pub use tilefuse_fusion::Products;

use crate::hints::Hint;

/// How a fused model compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most signatures (shapes, types, strides of the inputs, and libtorch's modes) that are kept; for further ones, the
    /// least recently used are dropped. Where so many come in turn that plans are dropped before they were used, most calls of new
    /// ones run eager.
    pub max_signatures: usize,
    /// How often calls are recorded again, to find out whether the model does what it did when it was captured: see
    /// [`Fused`](crate::Fused) for what a plan stands for. By itself as the variable `TILEFUSE_AUDIT` says (`never`,
    /// `exponential`, or a number of calls), else exponentially.
    pub audit: Audit,
    /// Which products, on the host and of 16-bit floats on GPUs with `wgmma`, are kernels of ours: by itself as the variable
    /// `TILEFUSE_PRODUCTS` says (`measured`, `predicted`, `generated` or `library`), and those that measure faster where it says
    /// nothing of these.
    pub products: Products,
    /// Whether plans are launched as CUDA graphs.
    pub cuda_graphs: CudaGraphs,
    /// Whether weights of products and convolutions on the host, and on a GPU filters of convolutions in channels-last, are
    /// prepacked: kept a second time, in the order in which kernels read them. That makes products of several rows faster, saves
    /// copies in each call on a GPU, and takes as much memory again, once for all signatures and beside
    /// [`workspace_bytes`](Options::workspace_bytes). By itself as the variable `TILEFUSE_PREPACK` says (`tracked`, `always` or
    /// `never`), else where every write to them is seen, which is nowhere on a GPU.
    pub prepack_weights: Prepack,
    /// Whether the schedules of a plan's kernels are measured where the cost model cannot decide between them: by itself
    /// where the variable `TILEFUSE_TUNE` is `1`. What was measured is kept on disk; compiling a plan for the first time takes
    /// some seconds longer.
    pub tune: bool,
    /// Bytes of intermediates that a plan may hold beyond what eager holds at its peak, where that makes it faster: parts of
    /// sums of columns, for a kernel that reads a tensor once for its rows and its columns. By itself as the variable
    /// `TILEFUSE_WORKSPACE` says, in bytes, else 0: such a tensor is read twice where eager holds nothing else.
    pub workspace_bytes: u64,
    /// Whether steps of plans on a GPU, and the modules that they belong to, are NVTX ranges, which Nsight Systems shows: by itself
    /// where the variable `TILEFUSE_NVTX` is `1`. A call that launches a CUDA graph has none.
    pub nvtx: bool,
    /// Whether captures keep the lines of the model's source at which operators are called, for the steps of
    /// [`explain`](crate::Fused::explain): of Rust where the program has line tables, which `debug = "line-tables-only"` makes in a
    /// release build, and of what a TorchScript file was made of. A capture takes some 50 microseconds longer for each call. By itself
    /// where the variable `TILEFUSE_SOURCE_LINES` is `1`.
    pub source_lines: bool,
    /// The most rewrites that the passes may make, to find one that is wrong by bisecting (`tilefuse compare --max-rewrites N`);
    /// `None` where all are made.
    pub max_rewrites: Option<u64>,
    /// What is asked of the compiler about parts of the model. Where two hints of one kind cover an operator, the first counts; of
    /// tolerances each does.
    pub hints: Vec<Hint>,
    /// What has to be fused: where it is not, calls return an error.
    pub strict: Strict,
    /// A defect to be planted in every plan, to measure what tests find.
    #[doc(hidden)]
    pub fault: Option<crate::faults::Planting>,
}

/// What has to be fused, for those who would rather have an error than a slow model. Captures and audits run the model itself
/// whatever is asked for. [`nn::Module::forward`](tch::nn::Module::forward), which cannot return an error, runs the model itself
/// and says so once: use [`Fused::call`](crate::Fused::call).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Strict {
    /// Nothing: what cannot be fused runs in libtorch, and what cannot be compiled runs eager.
    #[default]
    Off,
    /// Every call runs a plan; one that would run eager is [`Error::RunsEager`](crate::Error::RunsEager).
    Plan,
    /// The same, and operators of these modules or names, as [`Hint`]s name them, are computed by generated kernels: where one
    /// of them is left to libtorch, calls are [`Error::Unfused`](crate::Error::Unfused), also where a hint keeps it there. `"*"`
    /// stands for all.
    Kernels(Vec<String>),
}

/// How often calls are recorded again, to compare what the model does with what it did at first.
///
/// A call that is recorded runs the model itself, and its results are those of an eager call. Where the recording differs
/// from the first one, calls of that signature run the model itself from then on, and [`Stats`](crate::Stats) has the first
/// difference as the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audit {
    /// Never: the model reads nothing that changes but its inputs and its parameters, and no input of a first call is one of these.
    Never,
    /// The 2nd, 4th, 8th, 16th call and so on of each signature.
    #[default]
    Exponential,
    /// Every n-th call of each signature; 0 is never.
    Every(u64),
}

impl std::str::FromStr for Audit {
    type Err = String;

    fn from_str(text: &str) -> Result<Audit, String> {
        match text {
            "never" => Ok(Audit::Never),
            "exponential" => Ok(Audit::Exponential),
            number => number
                .parse()
                .map(Audit::Every)
                .map_err(|_| format!("{text:?} is none of never, exponential, or a number of calls")),
        }
    }
}

/// Whether calls on CUDA launch their plan as a CUDA graph, where that is possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CudaGraphs {
    /// Where launching the steps one by one takes the host most of a call's time, which is measured in the second call that runs
    /// the plan. A graph keeps the memory of its intermediates.
    #[default]
    Auto,
    /// Never.
    Off,
    /// From the second call that runs the plan on.
    Always,
}

impl CudaGraphs {
    /// By the name that command lines and the variable `TILEFUSE_CUDA_GRAPHS` use: `auto`, `off` or `always`.
    pub fn named(name: &str) -> Option<CudaGraphs> {
        match name {
            "auto" => Some(CudaGraphs::Auto),
            "off" => Some(CudaGraphs::Off),
            "always" => Some(CudaGraphs::Always),
            _ => None,
        }
    }

    /// What the variable `TILEFUSE_CUDA_GRAPHS` says, else [`CudaGraphs::Auto`].
    pub fn from_env() -> CudaGraphs {
        let Ok(name) = std::env::var("TILEFUSE_CUDA_GRAPHS") else { return CudaGraphs::Auto };
        CudaGraphs::named(&name).unwrap_or_else(|| {
            tracing::warn!("TILEFUSE_CUDA_GRAPHS is {name:?}, not auto, off or always; taken as auto");
            CudaGraphs::Auto
        })
    }
}

/// Whether weights of products and convolutions are prepacked. Those that were written since are packed again before they are
/// used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepack {
    /// Where the system reports which pages of memory were written (`userfaultfd` and `PAGEMAP_SCAN` of Linux 6.7 and newer,
    /// which a container may forbid) and no file and no other process has the weights' pages: every write of the program
    /// shows in the next call then, one through a raw pointer too. No system reports it of a GPU's memory.
    #[default]
    Tracked,
    /// Everywhere. This is a promise where writes cannot be tracked: weights are written only by operators on the parameters
    /// themselves or their views, as `copy_` or a load does, whose writes the parameters' versions count, or as a whole, as
    /// an optimiser's step does, which shows in the few elements that each call compares. A write of a few elements
    /// through a raw pointer or through `Tensor::data` may be missed. On a GPU no elements are compared: every write through
    /// these is missed, an optimiser's step too.
    Always,
    /// Nowhere.
    Never,
}

/// The values, as the environment and the command line name them.
const PREPACKS: [(&str, Prepack); 3] =
    [("tracked", Prepack::Tracked), ("always", Prepack::Always), ("never", Prepack::Never)];

impl std::str::FromStr for Prepack {
    type Err = String;

    fn from_str(text: &str) -> Result<Prepack, String> {
        let known = PREPACKS.iter().find(|(name, _)| *name == text);
        known.map(|(_, value)| *value).ok_or_else(|| format!("`{text}` is none of tracked, always and never"))
    }
}

impl std::fmt::Display for Prepack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        PREPACKS.iter().filter(|(_, value)| value == self).try_for_each(|(name, _)| f.write_str(name))
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_signatures: 64,
            audit: from_env("TILEFUSE_AUDIT", Audit::default()),
            products: from_env("TILEFUSE_PRODUCTS", Products::Measured),
            cuda_graphs: CudaGraphs::from_env(),
            prepack_weights: from_env("TILEFUSE_PREPACK", Prepack::default()),
            tune: from_env("TILEFUSE_TUNE", 0_u8) != 0,
            workspace_bytes: from_env("TILEFUSE_WORKSPACE", 0),
            nvtx: from_env("TILEFUSE_NVTX", 0_u8) != 0,
            source_lines: from_env("TILEFUSE_SOURCE_LINES", 0_u8) != 0,
            max_rewrites: None,
            hints: Vec::new(),
            strict: Strict::Off,
            fault: None,
        }
    }
}

/// What a variable of the environment says, or the default where it is empty or says nothing that is known.
fn from_env<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, default: T) -> T {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() {
        return default;
    }
    text.parse().unwrap_or_else(|error| {
        tracing::warn!("{name}: `{text}`: {error}");
        default
    })
}
