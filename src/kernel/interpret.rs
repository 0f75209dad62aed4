//! Kernels in the interpreter, on tensors.

use tilefuse_block::interp::{self, Buffer};
use tilefuse_block::{Elem, Kind};

use super::arg::{Memory, Seen};
use super::{Arg, Grid, Kernel, LaunchError};
use crate::Error;
use crate::torch::GlobalState;

impl Kernel {
    /// Runs the instances of a grid one after the other in the interpreter, which checks addresses and races between
    /// instances; slow. The tensors are on the CPU. They are written where all went well, and stay as they were
    /// otherwise.
    ///
    /// # Errors
    /// [`Error::Interpret`] with the operation and the indices where the program addresses what no tensor has, or
    /// depends on the order of instances; [`Error::Launch`] as for [`Kernel::launch`], and for tensors that are not on
    /// the CPU or that are given twice and written.
    pub fn interpret(&self, grid: impl Into<Grid>, args: &[Arg<'_>]) -> Result<(), Error> {
        self.interpret_seen(grid.into(), &super::seen(args)?)
    }

    /// [`Kernel::interpret`] with options of the interpreter: what it checks, how much work it may do, and where it
    /// prints to.
    ///
    /// # Errors
    /// As for [`Kernel::interpret`].
    pub fn interpret_with(
        &self,
        grid: impl Into<Grid>,
        args: &[Arg<'_>],
        options: &interp::Options,
    ) -> Result<(), Error> {
        self.interpreted(grid.into(), &super::seen(args)?, options)
    }

    pub(super) fn interpret_seen(&self, grid: Grid, args: &[Seen<'_>]) -> Result<(), Error> {
        self.interpreted(grid, args, &interp::Options::default())
    }

    fn interpreted(&self, grid: Grid, args: &[Seen<'_>], options: &interp::Options) -> Result<(), Error> {
        let grid = grid.extents().map_err(|problem| self.refuse(problem))?;
        let bound = self.bind(args, GlobalState::now()?)?;
        if let Some(problem) = bound.overlap(&self.program, &self.written, true) {
            return Err(self.refuse(problem));
        }
        if bound.target().ok() != Some(crate::Target::Host) {
            let device = String::from("other devices than the CPU in the interpreter");
            return Err(self.refuse(LaunchError::NoTarget { device }));
        }
        let mut copies = Vec::with_capacity(args.len());
        for (arg, param) in args.iter().zip(&self.program.params) {
            copies.push(match (arg, self.program.ty(param.value).kind) {
                (Seen::Scalar(literal), _) => interp::Arg::Scalar(*literal),
                (Seen::Tensor(_, memory), Kind::Ptr(elem) | Kind::Elem(elem)) => {
                    interp::Arg::Buffer(copy(memory, elem))
                }
            });
        }
        interp::run_with(&self.program, &mut copies, grid, options)?;
        for ((arg, copy), _) in args.iter().zip(&copies).zip(&self.written).filter(|(_, written)| **written) {
            if let (Seen::Tensor(_, memory), interp::Arg::Buffer(buffer)) = (arg, copy) {
                write_back(memory, buffer)?;
            }
        }
        self.count_writes(args)
    }
}

/// The elements from a tensor's first to its last.
fn copy(memory: &Memory, elem: Elem) -> Buffer {
    let extent = memory.extent();
    let bytes = match extent.len() {
        0 => Vec::new(),
        // SAFETY: the tensor is alive and on the host, and its elements span this memory.
        len => unsafe { std::slice::from_raw_parts(extent.start as *const u8, len) }.to_vec(),
    };
    Buffer { elem, bytes, written: None }
}

fn write_back(memory: &Memory, buffer: &Buffer) -> Result<(), Error> {
    let extent = memory.extent();
    if extent.len() != buffer.bytes.len() {
        return Err(Error::Internal(String::from("a tensor changed while a kernel was interpreted")));
    }
    if !extent.is_empty() {
        // SAFETY: as for the copy; libtorch allows writing to a tensor through any handle.
        unsafe {
            std::ptr::copy_nonoverlapping(buffer.bytes.as_ptr(), extent.start as *mut u8, extent.len());
        }
    }
    Ok(())
}
