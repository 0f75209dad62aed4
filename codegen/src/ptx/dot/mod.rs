//! Matrix products.
//!
//! Both operands go to shared memory as they lie in registers, and come back in the form that the product wants: for
//! the matrix unit (`mma.sync`) its fragments, each of 8 rows or columns by 16 bytes along the common axis; for four
//! warps together (`wgmma`) not at all, they read shared memory themselves; where no instruction fits, single elements for multiplications and additions of numbers. The accumulators stay in registers.

mod fma;
mod mma;
mod stage;
mod warpgroup;

use tilefuse_block::{DotPrecision, Elem, Op, OpKind, Program, Shape};

use super::lower::Lower;
use crate::error::Result;
pub(crate) use mma::{Unit, fragment_registers, staged, unit};
pub(crate) use stage::{Runs, Side, Staged};
pub(crate) use warpgroup::{Prepared, is_grouped, only_adds, takes_registers};

/// The extents of a product as powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    batch: u32,
    rows: u32,
    cols: u32,
    common: u32,
}

impl Extents {
    pub(crate) fn of(program: &Program, op: &Op) -> Option<Extents> {
        let shape = |index: usize| op.args.get(index).map(|&v| &program.ty(v).shape);
        let log = |shape: &Shape, back: usize| {
            shape.len().checked_sub(back).and_then(|at| shape.get(at)).map(|d| d.trailing_zeros())
        };
        let (a, b) = (shape(0)?, shape(1)?);
        Some(Extents {
            batch: log(a, 3).unwrap_or(0),
            rows: log(a, 2)?,
            cols: log(b, 1)?,
            common: log(a, 1)?,
        })
    }
}

/// The kind of a product's operands, and how exact it is.
pub(crate) fn operands(program: &Program, op: &Op) -> Option<(Elem, DotPrecision)> {
    let OpKind::Dot { precision } = op.kind else { return None };
    Some((program.ty(*op.args.first()?).elem()?, precision))
}

impl<'a> Lower<'a> {
    pub(crate) fn dot(&mut self, op: &'a Op) -> Result<()> {
        let extents =
            Extents::of(self.program(), op).ok_or_else(|| self.invalid("a product without extents"))?;
        match unit(self.program(), op) {
            Some(_) if self.plan.is_grouped(op) => self.dot_of_warpgroups(op),
            Some(unit) => self.dot_of_fragments(op, extents, unit),
            None => self.dot_of_elements(op, extents),
        }
    }
}
