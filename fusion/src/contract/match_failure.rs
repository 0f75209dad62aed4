//! Why no kernel computes what a call of libtorch does.

use std::fmt;

/// What of a contraction or attention no template takes, or that none is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchFailure {
    /// Elements of other types, or of several.
    ElementTypes,
    /// Elements of other types than the halves that a GPU multiplies.
    HalfTypes,
    /// An operand or a result that is a vector.
    Vector,
    /// Tensors that lie at no fixed strides, or at others than templates are for.
    Strides,
    /// The same of a convolution's images, filters or result.
    ImageStrides,
    /// Sizes, of which some are too large.
    Sizes,
    /// No schedule of what it computes has a program, of sizes, strides or arguments that templates do not know.
    NoTemplate,
    /// Fewer columns, or fewer elements to a sum, than a kernel moves at a time.
    Small,
    /// Packed operands and partial sums that take at least so many bytes, of at most so many.
    Memory { least: u64, most: u64 },
    /// It is on a device that no kernels for it are generated for.
    Device,
    /// [`Products::Library`](super::Products::Library) is asked for.
    Library,
}

impl MatchFailure {
    /// What would have to change for a kernel to compute it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            MatchFailure::ElementTypes => "operands and results of one floating-point type",
            MatchFailure::HalfTypes => {
                "operands and results of f16 or bf16: a model of one of these, as `--dtype bf16` makes it"
            }
            MatchFailure::Vector => "a matrix of one row or column in the place of the vector",
            MatchFailure::Strides => {
                "operands whose rows or columns are contiguous, on a GPU a multiple of 8 elements apart"
            }
            MatchFailure::ImageStrides => {
                "on a GPU images, filters and result in channels-last, of a multiple of 8 channels; on a CPU contiguous ones"
            }
            MatchFailure::Sizes => "smaller tensors, or a product of several parts",
            MatchFailure::NoTemplate => "contiguous tensors, of other sizes or with other arguments",
            MatchFailure::Small => {
                "nothing: kernels take at least 8 columns and 8 elements to a sum on a GPU, and no empty tensors"
            }
            MatchFailure::Memory { .. } => {
                "a larger `Options::workspace_bytes` (`--workspace-bytes`), or fewer rows at a time"
            }
            MatchFailure::Device => {
                "a CPU, or on a GPU with `wgmma` (compute capability 9.0) an operator other than a convolution of groups or a transposed one"
            }
            MatchFailure::Library => {
                "another choice of products than `library` (`Options::products`, `--products`)"
            }
        }
    }
}

impl fmt::Display for MatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            MatchFailure::Memory { least, most } => {
                return write!(
                    f,
                    "its packed operands and partial sums would take {least} bytes, of at most {most}"
                );
            }
            MatchFailure::ElementTypes => "no kernel takes its element types",
            MatchFailure::HalfTypes => "on a GPU kernels for it are generated of f16 and bf16 alone",
            MatchFailure::Vector => "no kernel computes products of a vector",
            MatchFailure::Strides => "no kernel takes the strides at which its tensors lie",
            MatchFailure::ImageStrides => "no kernel takes the strides at which its images and filters lie",
            MatchFailure::Sizes => "no kernel takes so large sizes",
            MatchFailure::NoTemplate => "no template of a kernel fits its sizes, strides and arguments",
            MatchFailure::Small => "no kernel takes so small sizes",
            MatchFailure::Device => "no kernel for it is generated for its device",
            MatchFailure::Library => "the option for products leaves it to libtorch",
        };
        f.write_str(reason)
    }
}
