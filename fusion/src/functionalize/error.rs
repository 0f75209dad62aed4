//! Why a recording has no functional graph.

/// Why a recording cannot be made functional. Calls are named with their position, `aten::resize_ #12`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FunctionalizeError {
    /// The recording contradicts itself.
    #[error("the recording is inconsistent at {place}: {what}")]
    Malformed {
        /// The call or output.
        place: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A tensor's sizes, strides or storage are changed in place in a way that no value expresses.
    #[error("{call}: changes metadata in place")]
    Metadata {
        /// The call.
        call: String,
    },
    /// A write to elements that share memory with each other, which libtorch refuses too.
    #[error("{call}: writes a tensor whose elements overlap")]
    OverlappingWrite {
        /// The call.
        call: String,
    },
    /// A write to elements that the call reads as another argument: what it reads depends on the order in which libtorch writes.
    #[error("{call}: reads elements that it writes as another argument")]
    ReadsWritten {
        /// The call.
        call: String,
    },
    /// A write to running statistics on a GPU that are not contiguous: one of libtorch's kernels writes to a copy of them, which is
    /// dropped, another one to them.
    #[error(
        "{call}: writes running statistics on a GPU that are not contiguous, which libtorch may leave as they are"
    )]
    StridedStatistics {
        /// The call.
        call: String,
    },
    /// A write through a view that cannot be undone into what it is a view of.
    #[error("{call}: writes through a view that repeats elements or reads them as another type")]
    OpaqueView {
        /// The call.
        call: String,
    },
    /// A write to a tensor that is no plain strided memory (sparse, quantised, lazily conjugated, ...), or to what may
    /// be a part of one.
    #[error("{call}: writes a tensor that is not plain strided memory, or may be a part of one")]
    Opaque {
        /// The call.
        call: String,
    },
    /// A write to memory that another tensor shares in a way that the recording does not show.
    #[error("{call}: writes memory that another input or parameter shares")]
    SharedMemory {
        /// The call.
        call: String,
    },
    /// A view of memory outside the tensor that it is taken of.
    #[error("{call}: addresses memory outside its tensor")]
    OutOfBounds {
        /// The call.
        call: String,
    },
    /// An output shares memory with an input or another output in a way that strides do not express.
    #[error("output {index} shares memory with another tensor in a way that strides do not express")]
    OutputAliasesInput {
        /// Which output.
        index: usize,
    },
}
