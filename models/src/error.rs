use std::path::PathBuf;

use tch::TchError;

/// What can go wrong when a model is looked up, called or given weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The weights file cannot be read; the file system says why.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the file system answered.
        source: std::io::Error,
    },
    /// The weights file is truncated or not a safetensors file.
    #[error("{} is not a valid safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What the parser found.
        source: safetensors::SafeTensorError,
    },
    /// A folder of weights that holds no safetensors file.
    #[error("{} holds no .safetensors file", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
    },
    /// The model has a parameter that the file lacks.
    #[error("{} lacks the tensor `{name}`", path.display())]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The parameter's name in the model.
        name: String,
    },
    /// The file has a tensor that the model has no place for: most likely the configuration is another one.
    #[error("{} holds the tensor `{name}`, for which the model has no place", path.display())]
    UnexpectedTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
    },
    /// Two entries of the file, or of two files of one folder, mean the same parameter.
    #[error("{} holds the tensor `{name}` twice", path.display())]
    DuplicateTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name in the model.
        name: String,
    },
    /// A tensor of the file has not the parameter's shape.
    #[error("tensor `{name}` has shape {found:?}, the model expects {expected:?}")]
    Shape {
        /// The tensor's name in the model.
        name: String,
        /// The shape in the model, in the file's order of dimensions.
        expected: Vec<i64>,
        /// The shape in the file.
        found: Vec<i64>,
    },
    /// A model was called with a number of inputs that it does not take.
    #[error("the model takes {}, got {got}", count(*least, *most))]
    InputCount {
        /// The fewest inputs that it takes.
        least: usize,
        /// The most inputs that it takes.
        most: usize,
        /// How many it was given.
        got: usize,
    },
    /// libtorch refused an operation on a tensor.
    #[error(transparent)]
    Torch(#[from] TchError),
}

fn count(least: usize, most: usize) -> String {
    match (least, most) {
        (1, 1) => "1 input".to_string(),
        _ if least == most => format!("{least} inputs"),
        _ => format!("{least} to {most} inputs"),
    }
}
