//! A block kernel as a part of a plan that is being made.

use std::sync::Arc;

use smallvec::SmallVec;
use tilefuse_block::Program;
use tilefuse_block::passes::{PassError, optimize_for_grid};

use super::cost::Cost;
use super::ir::{KernelKind, KernelStep, PlanError};
use crate::block_kernel::BlockKernel;
use crate::epilogue::Rewrite;
use crate::graph::{NodeId, ValueRef};

/// A block kernel with what was merged into it.
#[derive(Clone, Debug)]
pub(super) struct BuiltBlock {
    /// The calls that it computes: its operands and results are theirs, one call's after the other's.
    pub(super) calls: SmallVec<[NodeId; 1]>,
    /// The kernel and what was merged into it.
    pub(super) parts: Arc<Rewrite>,
    pub(super) buffers: Vec<(ValueRef, bool)>,
    pub(super) cost: Cost,
}

impl BuiltBlock {
    /// The step, whose program is at `program`.
    pub(super) fn step(&self, program: usize, nodes: &[NodeId]) -> KernelStep {
        KernelStep {
            program,
            grid: self.grid().map(u64::from),
            buffers: self.buffers.clone(),
            checks: self.kernel().checks,
            in_place: Vec::new(),
            nodes: nodes.to_vec(),
            kind: KernelKind::Block(self.kernel().kind),
            tiling: None,
            schedule: self.kernel().schedule.clone(),
            tuned: None,
            bytes_read: self.cost.bytes_read,
            bytes_written: self.cost.bytes_written,
            flops: self.cost.flops,
            predicted_us: self.cost.us,
            note: self.kernel().note.clone(),
            parts: Vec::new(),
            horizontal_refusal: None,
        }
    }

    /// The values that must be in memory because it reads them at strides.
    pub(super) fn strided(&self) -> impl Iterator<Item = ValueRef> + '_ {
        self.parts.bases.iter().copied().flatten()
    }

    /// Its grid.
    pub(super) fn grid(&self) -> [u32; 3] {
        self.kernel().grid
    }

    /// The kernel, without what was merged into it.
    pub(super) fn kernel(&self) -> &BlockKernel {
        &self.parts.kernel
    }

    /// What a program becomes for the grid.
    pub(super) fn optimized(&self, mut program: Program) -> Result<Program, PlanError> {
        let name = program.name.clone();
        let invalid = |error: PassError| PlanError::Invalid { place: name, what: error.to_string() };
        optimize_for_grid(&mut program, self.grid()).map_err(invalid)?;
        Ok(program)
    }
}
