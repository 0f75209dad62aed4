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
//! double.launch(4, &args![&x, &y, 1000i32])?;
//! # Ok::<(), tilefuse::Error>(())
//! ```

mod arg;
mod checks;
mod grid;
mod interpret;
pub mod jit;
pub mod tune;

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{PoisonError, RwLock};

use smallvec::SmallVec;
use tilefuse_block::bounds::Given;
use tilefuse_block::passes::optimize;
use tilefuse_block::{Op, Program, parse_valid, verify};

pub(crate) use arg::name;
pub use arg::{Arg, LaunchError};
pub use grid::Grid;

use crate::Error;
use crate::engine::{self, Stream, Target};
use crate::operator;
use crate::torch::{self, GlobalState, bump_version};
use arg::{Bound, Seen};
use checks::Checks;

/// A block program that can be launched on tensors.
///
/// It is compiled for a device at the first launch there, through the kernel cache on disk, and can be shared by
/// threads.
#[derive(Debug)]
pub struct Kernel {
    program: Program,
    /// For each parameter whether something is stored through it.
    written: Vec<bool>,
    plain: Compiled,
    checks: Checks,
}

/// What a program was compiled to, by target.
#[derive(Debug, Default)]
struct Compiled(RwLock<SmallVec<[(Target, engine::Kernel); 1]>>);

impl Compiled {
    /// The kernel for a target, compiled if it has not been.
    fn on(&self, program: &Program, target: Target) -> Result<engine::Kernel, Error> {
        let find =
            |list: &[(Target, engine::Kernel)]| list.iter().find(|k| k.0 == target).map(|k| k.1.clone());
        if let Some(kernel) = find(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(kernel);
        }
        let (kernel, _) = engine::kernel(program, target)?;
        let mut list = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if find(&list).is_none() {
            list.push((target, kernel.clone()));
        }
        Ok(kernel)
    }
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
        Kernel { program, written, plain: Compiled::default(), checks: Checks::default() }
    }

    /// The program after the passes.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether something is stored through the parameter at this position.
    pub(crate) fn writes(&self, param: usize) -> bool {
        self.written.get(param) == Some(&true)
    }

    /// Compiles for a device, unless that was done already. A launch does this by itself, and again with checks where
    /// nothing proves what it accesses.
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
        self.plain.on(&self.program, target).map(|_| ())
    }

    /// Runs the instances of a grid on the device of the arguments: on libtorch's threads, to the end, or queued on
    /// the current CUDA stream. Without tensors among the arguments it runs on the CPU. An empty grid does nothing.
    ///
    /// Each access is checked against the tensor that it goes to, where the grid and the arguments do not prove it
    /// beforehand: elements outside are not touched, and are an error. What instances write to one place, or read where another one writes, is one of the
    /// values that the order of instances allows; [`Kernel::interpret`] finds such places.
    ///
    /// # Errors
    /// [`Error::Launch`] where arguments do not fit the parameters, or an access is out of bounds, see [`LaunchError`];
    /// [`Error::Codegen`] where compiling or launching fails; [`Error::NoCuda`].
    pub fn launch(&self, grid: impl Into<Grid>, args: &[Arg<'_>]) -> Result<(), Error> {
        self.launch_seen(grid.into(), &seen(args)?)
    }

    /// [`Kernel::launch`] without checks of accesses.
    ///
    /// # Errors
    /// As for [`Kernel::launch`], but for accesses.
    ///
    /// # Safety
    /// What the program reads and writes through a parameter, masked-off elements apart, lies within the tensor that
    /// is given for it, and what the program promises holds; one that was specialised promises what its arguments' form
    /// says. [`Kernel::interpret`] checks that.
    pub unsafe fn launch_unchecked(&self, grid: impl Into<Grid>, args: &[Arg<'_>]) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.launch_seen_unchecked(grid.into(), &seen(args)?) }
    }

    fn launch_seen(&self, grid: Grid, args: &[Seen<'_>]) -> Result<(), Error> {
        if operator::collecting() {
            return self.note(grid, args, true);
        }
        let grid = grid.extents().map_err(|problem| self.refuse(problem))?;
        let state = GlobalState::now()?;
        let bound = self.bind(args, state)?;
        let guarded = self.checks.of(&self.program, grid, given(args, &bound))?;
        let (program, compiled, lengths) = match &guarded {
            None => (&self.program, &self.plain, &[][..]),
            Some(guarded) => (&guarded.program, &guarded.compiled, &guarded.lengths[..]),
        };
        let Some(mut launch) = self.prepare(grid, bound, state, (program, compiled))? else {
            return Ok(());
        };
        let status = AtomicI32::new(0);
        for &param in lengths {
            launch.bound.words.push(launch.bound.elements(param));
        }
        if !lengths.is_empty() {
            // No device memory has address 0: an access out of bounds ends the kernel with an error that the next
            // synchronisation reports, as the assertion of eager's kernels does.
            let host = launch.target == Target::Host;
            launch.bound.words.push(if host { status.as_ptr() as u64 } else { 0 });
        }
        // SAFETY: the arguments were compared with the parameters. Every access of the program is proven to stay within
        // the tensors, or the guarded program touches nothing outside of the lengths that it is given. Where it writes the status word on the host, that lives until it is done.
        unsafe { launch.run()? };
        self.count_writes(args)?;
        match usize::try_from(status.load(Ordering::Relaxed)) {
            Ok(code) if code > 0 => {
                Err(self.refuse(LaunchError::OutOfBounds { param: arg::name(&self.program, code - 1) }))
            }
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As for [`Kernel::launch_unchecked`].
    unsafe fn launch_seen_unchecked(&self, grid: Grid, args: &[Seen<'_>]) -> Result<(), Error> {
        if operator::collecting() {
            return self.note(grid, args, false);
        }
        let grid = grid.extents().map_err(|problem| self.refuse(problem))?;
        let state = GlobalState::now()?;
        let bound = self.bind(args, state)?;
        let plain = (&self.program, &self.plain);
        let Some(launch) = self.prepare(grid, bound, state, plain)? else { return Ok(()) };
        // SAFETY: the arguments were compared with the parameters; the caller vouches for what is addressed.
        unsafe { launch.run()? };
        self.count_writes(args)
    }

    /// Tells an operator that is being observed of a launch, which nothing runs.
    fn note(&self, grid: Grid, args: &[Seen<'_>], checked: bool) -> Result<(), Error> {
        let grid = grid.extents().map_err(|problem| self.refuse(problem))?;
        self.bind(args, GlobalState::now()?)?;
        let given = |seen: &Seen<'_>| match seen {
            Seen::Tensor(_, memory) => operator::Given::Data(memory.data),
            Seen::Scalar(literal) => operator::Given::Scalar(*literal),
        };
        let args = args.iter().map(given).collect();
        operator::note(operator::Launched { program: self.program.clone(), grid, args, checked });
        Ok(())
    }

    /// What a launch needs; `None` for an empty grid.
    fn prepare(
        &self,
        grid: [u32; 3],
        bound: Bound,
        state: GlobalState,
        (program, compiled): (&Program, &Compiled),
    ) -> Result<Option<Launch>, Error> {
        let target = bound.target().map_err(|problem| self.refuse(problem))?;
        let kernel = compiled.on(program, target)?;
        if grid.contains(&0) {
            return Ok(None);
        }
        let raw = match target {
            Target::Host => std::ptr::null_mut(),
            Target::Cuda(ordinal) => torch::cuda_stream(ordinal as i8)?,
        };
        Ok(Some(Launch { kernel, target, bound, grid, stream: Stream { raw, threads: state.threads() } }))
    }

    fn bind(&self, args: &[Seen<'_>], state: GlobalState) -> Result<Bound, Error> {
        arg::bind(&self.program, &self.written, args, state.grad()).map_err(|problem| self.refuse(problem))
    }

    /// Tells autograd which tensors were written, and a capture that they were.
    fn count_writes(&self, args: &[Seen<'_>]) -> Result<(), Error> {
        torch::note_launch();
        for (arg, _) in args.iter().zip(&self.written).filter(|(_, written)| **written) {
            if let Seen::Tensor(tensor, memory) = arg
                && !memory.flags.contains(torch::Flags::INFERENCE)
            {
                bump_version(tensor)?;
            }
        }
        Ok(())
    }

    fn refuse(&self, problem: LaunchError) -> Error {
        Error::Launch { kernel: self.program.name.clone(), problem: Box::new(problem) }
    }
}

/// A launch that is ready.
struct Launch {
    kernel: engine::Kernel,
    target: Target,
    bound: Bound,
    grid: [u32; 3],
    stream: Stream,
}

impl Launch {
    /// # Safety
    /// As for [`engine::Kernel::launch_grid`].
    unsafe fn run(&self) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.kernel.launch_grid(&self.bound.words, self.grid, self.stream) }
    }
}

fn seen<'a>(args: &[Arg<'a>]) -> Result<SmallVec<[Seen<'a>; 8]>, Error> {
    args.iter().map(|&arg| Seen::of(arg)).collect()
}

/// What a launch says of each parameter.
fn given(args: &[Seen<'_>], bound: &Bound) -> SmallVec<[Given; 16]> {
    let given = |(index, seen): (usize, &Seen<'_>)| match seen {
        Seen::Scalar(literal) => Given::Number(*literal),
        Seen::Tensor(..) => Given::Elements(bound.elements(index)),
    };
    args.iter().enumerate().map(given).collect()
}

fn mark_written(program: &Program, op: &Op, written: &mut [bool]) {
    if !op.kind.writes() {
        return;
    }
    let Some(&pointer) = op.args.first() else { return };
    for (param, written) in program.params.iter().zip(written) {
        *written |= param.value == pointer;
    }
}
