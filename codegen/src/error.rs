//! What can go wrong while generating, loading or running code.

use thiserror::Error;

/// Why code could not be generated, loaded or run.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The block program uses something that this target does not have; the program's author can avoid it.
    #[error("{target}: {message}")]
    Unsupported {
        /// The target.
        target: String,
        /// What it lacks.
        message: String,
    },
    /// The program is not well formed.
    #[error("block program {program}: {message}")]
    Invalid {
        /// The program's name.
        program: String,
        /// What is wrong.
        message: String,
    },
    /// A tile does not fit in the registers or the shared memory of a block; smaller tiles or more warps help.
    #[error("block program {program} needs about {needed} {resource}, the target has {limit}")]
    TileTooLarge {
        /// The program's name.
        program: String,
        /// What runs out: "registers a thread" or "bytes of shared memory".
        resource: &'static str,
        /// How much it needs.
        needed: u64,
        /// How much there is.
        limit: u64,
    },
    /// A file of [`Stages`](crate::stages::Stages) could not be written, read or parsed.
    #[error("{file}: {message}")]
    Stage {
        /// Its name.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// LLVM refused the generated code; a defect of this crate.
    #[error("LLVM: {0}")]
    Llvm(String),
    /// A compiled host kernel could not be loaded.
    #[error("compiled kernel: {0}")]
    Object(String),
    /// There is no usable CUDA device, for the reason given.
    #[error("no CUDA device: {0}")]
    NoDevice(String),
    /// An assertion of the program does not hold.
    #[error(
        "assertion failed in instance {instance:?} of {program} (element {element} of the tile): {message}"
    )]
    Assertion {
        /// The program's name.
        program: String,
        /// What the assertion says.
        message: String,
        /// The instance.
        instance: [u32; 3],
        /// Position in the tile, row-major.
        element: usize,
    },
    /// A call of the CUDA driver failed.
    #[error("{call}: {message}")]
    Cuda {
        /// The driver function.
        call: &'static str,
        /// The driver's numeric code.
        code: u32,
        /// What the driver says.
        message: String,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
