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

/// The code of the README, which is compiled with that of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// What the attribute macros write names this crate.
extern crate self as tilefuse;

pub mod cli;
mod engine;
mod error;
mod explain;
mod faults;
mod fused;
mod hints;
#[doc(hidden)]
pub mod judge;
mod kernel;
mod operator;
mod options;
mod paths;
#[doc(hidden)]
pub mod random;
mod rng;
mod scope;
pub mod torch;
pub mod values;

pub use engine::{CompileReport, GuardMiss, Target, ToleranceReport};
pub use error::Error;
pub use explain::{
    CandidateReport, ChoiceChange, CodeReport, CutChange, EagerReport, EdgeReport, Explanation, LineReport,
    MachineReport, MemoryReport, OneSided, OperatorReport, PassReport, PlanDiff, Prediction, REPORT_VERSION,
    ScheduleReport, StepChange, StepReport, TensorReport, TimeSource, TotalChange, Totals, UpdateReport,
};
pub use fused::forward::{Forward, FusedT, Kind, Locked, OfFunction, OfLocked, OfModule};
pub use fused::{Fused, Stats, fuse, fuse_with};
pub use hints::{Hint, PatternOption, UnmatchedPattern};
#[doc(hidden)]
pub use kernel::jit;
pub use kernel::tune;
pub use kernel::{Arg, Grid, Kernel, LaunchError};
pub use operator::{Operator, TensorSpec};
pub use options::{Audit, CudaGraphs, Options, Prepack, Products, Strict};
pub use scope::{Scope, scope};
#[doc(hidden)]
pub use tch::Tensor;
/// The block IR: programs, their text form, their builder and their interpreter.
pub use tilefuse_block as block;
/// The kernel language: tiles, and what is written with them.
pub use tilefuse_block::tiles as lang;
/// Makes loops and branches of a function that kernels call depend on tiles, as they do in a kernel. A function without
/// them needs no attribute: it is an ordinary one over [`Tile`](lang::Tile)s.
///
/// ```
/// use tilefuse::lang::*;
///
/// #[tilefuse::function]
/// fn power(x: Tile<f32>, n: Tile<i32>) -> Tile<f32> {
///     let mut product = zeros_like(x) + 1.0;
///     for _ in 0..n {
///         product = product * x;
///     }
///     product
/// }
/// ```
pub use tilefuse_macros::function;
/// Makes a kernel of a function over tiles.
///
/// ```no_run
/// use tch::{Device, Kind, Tensor};
/// use tilefuse::grid;
///
/// /// `y = x + x`.
/// #[tilefuse::kernel]
/// fn double(x: Ptr<f32>, y: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
///     let at = program_id(0) * BLOCK + range(0, BLOCK);
///     let v = load(x + at, at.lt(n), 0);
///     store(y + at, v + v, at.lt(n));
/// }
///
/// let x = Tensor::randn([1000], (Kind::Float, Device::Cpu));
/// let y = x.empty_like();
/// double.launch(grid![4], (&x, &y, 1000, 256))?;
/// # Ok::<(), tilefuse::Error>(())
/// ```
///
/// The name becomes a value with the methods `launch`, `launch_unchecked`, `interpret`, `specialize` and `candidate` (for a
/// [`Tuner`](tune::Tuner)). Each takes the arguments as a tuple, in which rustc checks them:
///
/// | parameter | in the kernel | argument |
/// |---|---|---|
/// | `x: Ptr<f32>` | [`Ptr<f32>`](lang::Ptr) | `&Tensor` |
/// | `x: Option<Ptr<f32>>` | `Option<Ptr<f32>>`, a Rust value | `Option<&Tensor>` |
/// | `n: i64` | [`Tile<i64>`](lang::Tile), a scalar | `i64` |
/// | `#[constant] BLOCK: usize` | `usize`, a Rust value | `usize` |
///
/// A constant is of any type that is a [`Constant`](jit::Constant): numbers, `bool`, functions, and what implements it.
/// A type parameter is an element kind, told by the tensors, and bounded by [`Float`](lang::Float), [`Int`](lang::Int),
/// [`Number`](lang::Number), [`Bits`](lang::Bits) or `Element`. `#[tilefuse::kernel(warps = 8, stages = 3)]` sets the
/// warps of an instance, and how many iterations of a loop a GPU has under way together, by expressions that may use the
/// constants.
///
/// All names of [`lang`] are in scope in the body. The body runs once for each form of arguments and writes the kernel
/// down: constants, element kinds, which tensors are there and aligned to 16 bytes, which integers are 1 or divisible by
/// 4, 8 or 16. What it computes with Rust values is computed then.
///
/// # Loops and branches
///
/// `for i in lo..hi`, also with `.step_by(..)`, `while` and `if` look at the types of their bounds and conditions. Over
/// Rust numbers and truth values they are Rust's, so that such a loop writes its body down as often as it runs. Over
/// scalar tiles they become a loop or branch of the kernel. Variables that such a body assigns go in and come out; they
/// are tiles or pointers, and keep their kinds and shapes:
///
/// ```
/// # #[tilefuse::kernel]
/// # fn f(x: Ptr<f32>, y: Ptr<f32>, n: i64, #[constant] BLOCK: usize) {
/// let mut total = zeros::<f32>([BLOCK]);
/// for k in 0..cdiv(n, BLOCK) {
///     let at = k * BLOCK + range(0, BLOCK);
///     total += load(x + at, at.lt(n), 0);
/// }
/// # y.store(sum(total, 0));
/// # }
/// ```
///
/// There is no `break`, `continue` or `return` out of a loop or branch over tiles. Code that has one, that compares with
/// Rust's operators, or whose bounds are constants is plain Rust from the start; `#[constant]` before a loop or `if` makes
/// any other so.
pub use tilefuse_macros::kernel;
pub use torch::{PinnedThreads, pin_threads, release_memory};
pub use values::Values;
