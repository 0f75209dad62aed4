//! The error type of this crate.

/// What can go wrong in capturing, compiling or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch refused an operation; its message.
    #[error("libtorch: {0}")]
    Torch(String),
    /// A capture was started on a thread that captures already.
    #[error("this thread is capturing a model already")]
    NestedCapture,
    /// CUDA cannot be used; what is missing.
    #[error("CUDA is not available: {0}")]
    NoCuda(String),
}
