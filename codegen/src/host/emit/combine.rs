//! Reductions and scans with a combiner of their own: vectors where the axis is not the innermost, elements else.

use inkwell::values::{IntValue, PointerValue};
use tilefuse_block::Op as BlockOp;

use super::Emitter;
use super::ir::{V, llvm};
use super::whole::{Tile, int};
use crate::Result;
use crate::scalar;

impl<'c> Emitter<'c, '_> {
    /// A reduction, or a scan, backwards or not.
    pub(super) fn combine_along(&mut self, op: &BlockOp, axis: usize, scan: Option<bool>) -> Result<()> {
        let &first = op.args.first().ok_or_else(|| llvm("no operands"))?;
        let shape = &self.plan.program.ty(first).shape;
        let extent = |dims: &[u32]| dims.iter().map(|&d| u64::from(d)).product::<u64>();
        let (outer, along, inner) =
            (extent(&shape[..axis]), u64::from(shape[axis]), extent(&shape[axis + 1..]));
        let (from, to) = (self.tiles(&op.args)?, self.tiles(&op.results)?);
        let n = self.lanes_for(inner);
        let step = u64::from(n.max(1));
        self.each(outer, |this, o| {
            this.each(inner / step, |this, chunk| {
                let column = this.linear(chunk, step, this.ir.i64(0))?;
                let start = this.linear(o, along * inner, column)?;
                let line = Line { start, along, stride: inner, backwards: scan == Some(true), lanes: n };
                let variables = this.combine_line(op, &from, &to, &line, scan.is_some())?;
                if scan.is_none() {
                    let at = this.linear(o, inner, column)?;
                    for (&tile, (variable, ty)) in to.iter().zip(variables) {
                        let v = this.ir.b.build_load(ty, variable, "").map_err(llvm)?;
                        this.put(tile, at, v)?;
                    }
                }
                Ok(())
            })
        })
    }

    /// Combines a line into variables, which it returns; every step is written where `all`.
    fn combine_line(
        &mut self,
        op: &BlockOp,
        from: &[Tile<'c>],
        to: &[Tile<'c>],
        line: &Line<'c>,
        all: bool,
    ) -> Result<Vec<(PointerValue<'c>, inkwell::types::BasicTypeEnum<'c>)>> {
        let region = op.regions.first().ok_or_else(|| llvm("no combiner"))?;
        let place = self.place(line, self.ir.i64(0))?;
        let mut variables = Vec::new();
        for (&tile, &target) in from.iter().zip(to) {
            let v = self.get(tile, place, line.lanes)?;
            variables.push((self.variable(v)?, v.get_type()));
            if all {
                self.put(target, place, v)?;
            }
        }
        if line.along == 1 {
            return Ok(variables);
        }
        self.each(line.along - 1, |this, step| {
            let step = this.linear(step, 1, this.ir.i64(1))?;
            let place = this.place(line, step)?;
            let mut args: Vec<V<'c>> = Vec::new();
            for &(variable, ty) in &variables {
                args.push(this.ir.b.build_load(ty, variable, "").map_err(llvm)?);
            }
            for &tile in from {
                args.push(this.get(tile, place, line.lanes)?);
            }
            let combined = scalar::region(this, this.plan.program, region, &args)?;
            for ((&(variable, _), v), &target) in variables.iter().zip(combined).zip(to) {
                let v = this.ir.splat(v, line.lanes);
                this.ir.b.build_store(variable, v).map_err(llvm)?;
                if all {
                    this.put(target, place, v)?;
                }
            }
            Ok(())
        })?;
        Ok(variables)
    }

    /// The position of a step along a line.
    fn place(&self, line: &Line<'c>, step: IntValue<'c>) -> Result<IntValue<'c>> {
        if !line.backwards {
            return self.linear(step, line.stride, line.start);
        }
        let last = self.ir.i64(line.along as i64 - 1);
        let back = int(self.ir.bin(inkwell::values::InstructionOpcode::Sub, last.into(), step.into())?)?;
        self.linear(back, line.stride, line.start)
    }
}

/// The elements that are combined.
struct Line<'c> {
    start: IntValue<'c>,
    along: u64,
    stride: u64,
    backwards: bool,
    lanes: u32,
}
