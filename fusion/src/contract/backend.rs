//! The backend of products: kernels of ours or libtorch, and how it is chosen.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Which products of matrices are kernels of ours, and which are libtorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Products {
    /// Whichever takes less time on this machine, measured once for each shape.
    #[default]
    Measured,
    /// Whichever takes less time by the cost model.
    Predicted,
    /// Always ours, where there is one.
    Generated,
    /// Always libtorch's. Its attention, in the place of what a model writes out, gives 0 where no score of a row is finite.
    Library,
}

impl FromStr for Products {
    type Err = String;

    fn from_str(text: &str) -> Result<Products, String> {
        match text {
            "measured" => Ok(Products::Measured),
            "predicted" => Ok(Products::Predicted),
            "generated" => Ok(Products::Generated),
            "library" => Ok(Products::Library),
            other => Err(format!("`{other}` is none of measured, predicted, generated and library")),
        }
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Products::Measured => "measured",
            Products::Predicted => "predicted",
            Products::Generated => "generated",
            Products::Library => "library",
        })
    }
}
