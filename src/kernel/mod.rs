//! Kernels that are written by hand, as text or with [`Builder`](tilefuse_block::Builder), and launched on tensors.
//!
//! ```no_run
//! use tch::{Device, Kind, Tensor};
//! use tilefuse::{Kernel, args};
//!
//! let double = Kernel::parse(
//!     "kernel @double(%x: ptr<f32>, %y: ptr<f32>, %n: i32) {
//!        %id = program_id 0
//!        %block = const 256 : i32
//!        %first = map mul %id, %block
//!        %start = splat %first [256]
//!        %lanes = range 0 256
//!        %offsets = map add %start, %lanes
//!        %end = splat %n [256]
//!        %inside = map lt %offsets, %end
//!        %v = load %x, %offsets, mask %inside
//!        %twice = map add %v, %v
//!        store %y, %offsets, %twice, mask %inside
//!      }",
//! )?;
//! let x = Tensor::randn([1000], (Kind::Float, Device::Cpu));
//! let y = x.empty_like();
//! // SAFETY: 4 instances touch the first 1000 elements of both tensors, each element in one instance.
//! unsafe { double.launch(4, &args![&x, &y, 1000i32])? };
//! # Ok::<(), tilefuse::Error>(())
//! ```

mod arg;
mod grid;
mod interpret;

use std::sync::{PoisonError, RwLock};

use smallvec::SmallVec;
use tilefuse_block::passes::optimize;
use tilefuse_block::{Op, OpKind, Program, parse_valid, verify};

pub(crate) use arg::name;
pub use arg::{Arg, LaunchError};
pub use grid::Grid;

use crate::Error;
use crate::engine::{self, Stream, Target};
use crate::torch::{self, GlobalState, bump_version};
use arg::Bound;

/// A block program that can be launched on tensors.
///
/// It is compiled for a device at the first launch there, through the kernel cache on disk, and can be shared by
/// threads.
#[derive(Debug)]
pub struct Kernel {
    program: Program,
    /// For each parameter whether something is stored through it.
    written: Vec<bool>,
    compiled: RwLock<SmallVec<[(Target, engine::Kernel); 1]>>,
}

impl Kernel {
    /// The kernel of a text (`tilefuse_block::parse` has the grammar), verified and optimised.
    ///
    /// # Errors
    /// [`Error::Parse`] with line and column.
    pub fn parse(text: &str) -> Result<Kernel, Error> {
        Kernel::optimised(parse_valid(text)?)
    }

    /// The kernel of a program, verified and optimised.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the program breaks an invariant.
    pub fn from_program(program: Program) -> Result<Kernel, Error> {
        verify(&program)?;
        Kernel::optimised(program)
    }

    fn optimised(mut program: Program) -> Result<Kernel, Error> {
        optimize(&mut program).map_err(|e| Error::Internal(e.to_string()))?;
        Ok(Kernel::as_is(program))
    }

    /// The kernel of a valid program, without further passes.
    pub(crate) fn as_is(program: Program) -> Kernel {
        let mut written = vec![false; program.params.len()];
        program.walk(&mut |op| mark_written(&program, op, &mut written));
        Kernel { program, written, compiled: RwLock::default() }
    }

    /// The program after the passes.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether something is stored through the parameter at this position.
    pub(crate) fn writes(&self, param: usize) -> bool {
        self.written.get(param) == Some(&true)
    }

    /// Compiles for a device, unless that was done already. A launch does this by itself.
    ///
    /// # Errors
    /// [`Error::Codegen`] where the target cannot run the program, [`Error::Launch`] for a device that is neither the
    /// CPU nor CUDA.
    pub fn compile(&self, device: tch::Device) -> Result<(), Error> {
        let target = match device {
            tch::Device::Cpu => Target::Host,
            tch::Device::Cuda(ordinal) => Target::Cuda(ordinal as u32),
            other => return Err(self.refuse(LaunchError::NoTarget { device: format!("{other:?}") })),
        };
        self.on(target).map(|_| ())
    }

    /// Runs the instances of a grid on the device of the arguments: on libtorch's threads, to the end, or queued on
    /// the current CUDA stream. Without tensors among the arguments it runs on the CPU. An empty grid does nothing.
    ///
    /// # Errors
    /// [`Error::Launch`] where arguments do not fit the parameters, see [`LaunchError`]; [`Error::Codegen`] where
    /// compiling or launching fails; [`Error::NoCuda`].
    ///
    /// # Safety
    /// What the program reads and writes through a parameter, masked-off elements apart, lies within the tensor that
    /// is given for it. No instance reads or writes what another one writes, and no other thread uses what is written
    /// until the call returns. Where one tensor is given twice and written, every instance reads each of its elements
    /// before it writes it, at the same offset. [`Kernel::interpret`] checks all but the last.
    pub unsafe fn launch(&self, grid: impl Into<Grid>, args: &[Arg<'_>]) -> Result<(), Error> {
        let grid = grid.into().extents().map_err(|problem| self.refuse(problem))?;
        let state = GlobalState::now()?;
        let bound = self.bind(args, state)?;
        let target = bound.target().map_err(|problem| self.refuse(problem))?;
        let kernel = self.on(target)?;
        if grid.contains(&0) {
            return Ok(());
        }
        let raw = match target {
            Target::Host => std::ptr::null_mut(),
            Target::Cuda(ordinal) => torch::cuda_stream(ordinal as i8)?,
        };
        // SAFETY: the arguments were compared with the parameters; the caller vouches for what is addressed.
        unsafe { kernel.launch_grid(&bound.words, grid, Stream { raw, threads: state.threads() })? };
        self.count_writes(args)
    }

    fn bind(&self, args: &[Arg<'_>], state: GlobalState) -> Result<Bound, Error> {
        arg::bind(&self.program, &self.written, args, state.grad())?.map_err(|problem| self.refuse(problem))
    }

    /// Tells autograd which tensors were written, and a capture that they were.
    fn count_writes(&self, args: &[Arg<'_>]) -> Result<(), Error> {
        torch::note_launch();
        for (arg, _) in args.iter().zip(&self.written).filter(|(_, written)| **written) {
            if let Arg::Tensor(tensor) = arg
                && !torch::Meta::of(tensor)?.flags.contains(torch::Flags::INFERENCE)
            {
                bump_version(tensor)?;
            }
        }
        Ok(())
    }

    /// The kernel for a target, compiled if it has not been.
    fn on(&self, target: Target) -> Result<engine::Kernel, Error> {
        let find =
            |list: &[(Target, engine::Kernel)]| list.iter().find(|k| k.0 == target).map(|k| k.1.clone());
        if let Some(kernel) = find(&self.compiled.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(kernel);
        }
        let (kernel, _) = engine::kernel(&self.program, target)?;
        let mut list = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        if find(&list).is_none() {
            list.push((target, kernel.clone()));
        }
        Ok(kernel)
    }

    fn refuse(&self, problem: LaunchError) -> Error {
        Error::Launch { kernel: self.program.name.clone(), problem: Box::new(problem) }
    }
}

fn mark_written(program: &Program, op: &Op, written: &mut [bool]) {
    if !matches!(op.kind, OpKind::Store { .. }) {
        return;
    }
    let Some(&pointer) = op.args.first() else { return };
    for (param, written) in program.params.iter().zip(written) {
        *written |= param.value == pointer;
    }
}
