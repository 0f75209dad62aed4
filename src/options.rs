//! How a fused model compiles and runs.

pub use tilefuse_fusion::Products;

use crate::engine::{Audit, CudaGraphs};

/// How a fused model compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most signatures (shapes, types, strides of the inputs, and libtorch's modes) that are kept; for further ones, the
    /// least recently used are dropped.
    pub max_signatures: usize,
    /// How often calls are recorded again, to find out whether the model does what it did when it was captured: see
    /// [`Fused`](crate::Fused) for what a plan stands for. By itself as the variable `TILEFUSE_AUDIT` says (`never`,
    /// `exponential`, or a number of calls), else exponentially.
    pub audit: Audit,
    /// Which products on the host are kernels of ours: by itself as the variable `TILEFUSE_PRODUCTS` says (`measured`,
    /// `predicted`, `generated` or `library`), and those that measure faster where it says nothing of these.
    pub products: Products,
    /// Whether plans are launched as CUDA graphs.
    pub cuda_graphs: CudaGraphs,
    /// Whether weights of products and convolutions on the host are prepacked: kept a second time, in the order in which
    /// kernels read them. That makes products of several rows faster and takes as much memory again, once for all
    /// signatures. By itself as the variable `TILEFUSE_PREPACK` says (`tracked`, `always` or `never`), else where every
    /// write to them is seen.
    pub prepack_weights: Prepack,
    /// Whether the schedules of a plan's kernels are measured where the cost model cannot decide between them: by itself
    /// where the variable `TILEFUSE_TUNE` is `1`. What was measured is kept on disk; compiling a plan for the first time takes
    /// some seconds longer.
    pub tune: bool,
    /// Bytes of intermediates that a plan may hold beyond what eager holds at its peak, where that makes it faster: parts of
    /// sums of columns, for a kernel that reads a tensor once for its rows and its columns. By itself as the variable
    /// `TILEFUSE_WORKSPACE` says, in bytes, else 0. Without it such a tensor is read twice where eager holds nothing else.
    pub workspace_bytes: u64,
    /// A defect to be planted in every plan, to measure what tests find.
    #[doc(hidden)]
    pub fault: Option<crate::random::Fault>,
}

/// Whether weights of products and convolutions on the host are prepacked. Those that were written since are packed again
/// before they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepack {
    /// Where the system reports which pages of memory were written (`userfaultfd` and `PAGEMAP_SCAN` of Linux 6.7 and newer,
    /// which a container may forbid) and no file and no other process has the weights' pages: every write of the program
    /// shows in the next call then, one through a raw pointer too.
    #[default]
    Tracked,
    /// Everywhere. This is a promise where writes cannot be tracked: weights are written only by operators on the parameters
    /// themselves or their views, as `copy_` or a load does, whose writes the parameters' versions count, or as a whole, as
    /// an optimiser's step does, which shows in the few elements that each call compares. A write of a few elements
    /// through a raw pointer or through `Tensor::data` may be missed.
    Always,
    /// Nowhere.
    Never,
}

impl Prepack {
    /// Whether any weight may be prepacked here.
    pub(crate) fn is_possible(self) -> bool {
        match self {
            Prepack::Tracked => crate::engine::tracks_writes(),
            Prepack::Always => true,
            Prepack::Never => false,
        }
    }
}

impl std::str::FromStr for Prepack {
    type Err = String;

    fn from_str(text: &str) -> Result<Prepack, String> {
        match text {
            "tracked" => Ok(Prepack::Tracked),
            "always" => Ok(Prepack::Always),
            "never" => Ok(Prepack::Never),
            other => Err(format!("`{other}` is none of tracked, always and never")),
        }
    }
}

impl std::fmt::Display for Prepack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Prepack::Tracked => "tracked",
            Prepack::Always => "always",
            Prepack::Never => "never",
        })
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_signatures: 64,
            audit: audit(),
            products: products(),
            cuda_graphs: CudaGraphs::from_env(),
            prepack_weights: prepack_weights(),
            tune: tune(),
            workspace_bytes: workspace_bytes(),
            fault: None,
        }
    }
}

/// What the environment says of audits.
fn audit() -> Audit {
    let text = std::env::var("TILEFUSE_AUDIT").unwrap_or_default();
    if text.is_empty() {
        return Audit::default();
    }
    text.parse().unwrap_or_else(|error| {
        tracing::warn!("TILEFUSE_AUDIT: {error}");
        Audit::default()
    })
}

/// What the environment says of prepacked weights.
fn prepack_weights() -> Prepack {
    let text = std::env::var("TILEFUSE_PREPACK").unwrap_or_default();
    if text.is_empty() {
        return Prepack::default();
    }
    text.parse().unwrap_or_else(|error| {
        tracing::warn!("TILEFUSE_PREPACK: {error}");
        Prepack::default()
    })
}

/// What the environment says of measuring schedules.
fn tune() -> bool {
    let text = std::env::var("TILEFUSE_TUNE").unwrap_or_default();
    match text.as_str() {
        "1" => true,
        "" | "0" => false,
        other => {
            tracing::warn!("TILEFUSE_TUNE: {other:?} is neither 0 nor 1");
            false
        }
    }
}

/// What the environment says of memory beyond eager's.
fn workspace_bytes() -> u64 {
    let text = std::env::var("TILEFUSE_WORKSPACE").unwrap_or_default();
    if text.is_empty() {
        return 0;
    }
    text.parse().unwrap_or_else(|error| {
        tracing::warn!("TILEFUSE_WORKSPACE: {text:?} is no number of bytes: {error}");
        0
    })
}

/// What the environment says of products.
fn products() -> Products {
    let text = std::env::var("TILEFUSE_PRODUCTS").unwrap_or_default();
    text.parse().unwrap_or_else(|error| {
        if !text.is_empty() {
            tracing::warn!("TILEFUSE_PRODUCTS: {error}");
        }
        Products::Measured
    })
}
