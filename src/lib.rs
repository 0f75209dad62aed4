//! Tilefuse wraps a [`tch`] model and runs it faster: it watches one call, fuses chains of operators into tile kernels,
//! and runs them in the model's place.
//!
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn, nn::Module};
//!
//! let vs = nn::VarStore::new(Device::Cpu);
//! let net = nn::linear(vs.root(), 64, 64, Default::default());
//! let fused = tilefuse::fuse(net).named(&vs);
//! let x = Tensor::randn([8, 64], (Kind::Float, Device::Cpu));
//! let y = tch::no_grad(|| fused.forward(&x));
//! println!("{:?}", fused.stats());
//! # let _ = y;
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
mod engine;
mod error;
mod explain;
mod fused;
#[doc(hidden)]
pub mod judge;
mod kernel;
#[doc(hidden)]
pub mod random;
pub mod torch;

pub use engine::{CompileReport, Target};
pub use error::Error;
pub use explain::{EdgeReport, Explanation, StepReport};
pub use fused::{Fused, Options, Stats, fuse, fuse_with};
pub use kernel::{Arg, Grid, Kernel, LaunchError};
/// The block IR: programs, their text form, their builder and their interpreter.
pub use tilefuse_block as block;
