//! Products of matrices: blocks of a few rows and vectors are summed in registers along the common axis.
//!
//! Sums of floats begin at 0 and are added to what the product starts from: where a loop adds product after product, its
//! rounding errors then grow with the number of products and not with that of all elements.

use inkwell::values::{InstructionOpcode as Op, IntValue, PointerValue};
use tilefuse_block::{Elem, Op as BlockOp, Value};

use super::Emitter;
use super::ir::{V, lanes_of, llvm};
use super::whole::{Tile, int};
use crate::Result;
use crate::host::plan::{Direct, Map, ZERO, shape_bits};

/// The operands and how they are divided.
struct Product<'c> {
    left: Tile<'c>,
    /// Elements between neighbours along the left operand's rows and columns.
    left_strides: [i64; 2],
    right: Tile<'c>,
    start: Tile<'c>,
    result: Tile<'c>,
    rows: u64,
    depth: u64,
    columns: u64,
    /// Lanes of a vector, 0 for scalars.
    lanes: u32,
    /// Rows and vectors of a block.
    block: (u64, u64),
    /// Whether the right operand is read where it lies, so that what lies behind it is read next.
    streams: bool,
}

/// Bytes of a line of the caches.
const LINE: u64 = 64;

impl<'c> Emitter<'c, '_> {
    pub(super) fn dot(&mut self, op: &BlockOp) -> Result<()> {
        let ([a, b, c], Some(&result)) = (op.args.as_slice(), op.results.first()) else {
            return Err(llvm("a product without operands"));
        };
        let program = self.plan.program;
        let (left, right) = (&program.ty(*a).shape, &program.ty(*b).shape);
        let (batch, &[rows, depth]) = match left.split_last_chunk::<2>() {
            Some((batch, last)) => (batch.iter().product::<u32>(), last),
            None => return Err(llvm("a product of vectors")),
        };
        let columns = u64::from(right.last().copied().unwrap_or(1));
        let wide = program.ty(result).elem() == Some(Elem::F64);
        let lanes = self.lanes_for(columns).min((1 << self.plan.width) >> u32::from(wide));
        let vectors = columns / u64::from(lanes.max(1));
        let most = if self.plan.width > 3 { 8 } else { 4 };
        let block = (u64::from(rows).min(most), vectors.min(2));
        let (left, left_strides) = self.operand(*a, depth)?;
        let (right, _) = self.operand(*b, columns as u32)?;
        let product = Product {
            left,
            left_strides,
            right,
            start: self.tile(*c)?,
            result: self.tile(result)?,
            rows: rows.into(),
            depth: depth.into(),
            columns,
            lanes,
            block,
            streams: self.plan.direct.contains_key(b),
        };
        self.each(batch.into(), |this, batch| {
            this.each(vectors / block.1, |this, column| {
                this.each(product.rows / block.0, |this, row| this.block(&product, batch, row, column))
            })
        })
    }

    /// An operand of a product, where it lies, and its strides, which are those of rows of this length for a tile.
    fn operand(&mut self, value: Value, row: u32) -> Result<(Tile<'c>, [i64; 2])> {
        let Some(&Direct { pointer, offsets, strides }) = self.plan.direct.get(&value) else {
            return Ok((self.tile(value)?, [row.into(), 1]));
        };
        let program = self.plan.program;
        let elem = program.ty(value).elem().unwrap_or(Elem::F32);
        let corner = Map::from_elem(ZERO, shape_bits(&program.ty(value).shape));
        let pointer = self.value(pointer, &[])?.v.into_pointer_value();
        let offset = int(self.value(offsets, &corner)?.v)?;
        let top = self.top();
        self.at(top);
        let memory = self.ir.element(self.ir.memory_type(elem), pointer, offset)?;
        Ok((Tile { memory, elem }, strides))
    }

    /// One block of the result.
    fn block(
        &mut self,
        p: &Product<'c>,
        batch: IntValue<'c>,
        row: IntValue<'c>,
        column: IntValue<'c>,
    ) -> Result<()> {
        let step = u64::from(p.lanes.max(1));
        let zero = self.ir.i64(0);
        let number = self.linear(column, p.rows / p.block.0, row)?;
        let column = self.linear(column, p.block.1 * step, zero)?;
        let row = self.linear(row, p.block.0, zero)?;
        let row = self.linear(batch, p.rows, row)?;
        let corner = self.linear(row, p.columns, column)?;
        let place = |this: &Self, k: u64| {
            let (row, vector) = (k / p.block.1, k % p.block.1);
            this.linear(this.ir.i64(1), row * p.columns + vector * step, corner)
        };
        let mut sums: Vec<(PointerValue<'c>, V<'c>)> = Vec::new();
        for k in 0..p.block.0 * p.block.1 {
            let mut start = self.get(p.start, place(self, k)?, p.lanes)?;
            if p.result.elem.is_float() {
                start = self.ir.float_like(start, 0.0);
            }
            sums.push((self.variable(start)?, start));
        }
        self.each(p.depth, |this, k| {
            let right = this.linear(batch, p.depth, k)?;
            let right = this.linear(right, p.columns, column)?;
            let left = this.linear(k, p.left_strides[1] as u64, this.ir.i64(0))?;
            let left = this.linear(row, p.left_strides[0] as u64, left)?;
            if p.streams {
                this.fetch(p, number, k)?;
            }
            this.rank_one(p, left, right, &sums)
        })?;
        for (k, &(sum, like)) in sums.iter().enumerate() {
            let at = place(self, k as u64)?;
            let mut v = self.ir.b.build_load(like.get_type(), sum, "").map_err(llvm)?;
            if p.result.elem.is_float() {
                v = self.ir.bin(Op::FAdd, self.get(p.start, at, p.lanes)?, v)?;
            }
            self.put(p.result, at, v)?;
        }
        Ok(())
    }

    /// Asks for a share of what lies behind the right operand, as large as that: what the next product of a loop reads.
    /// All blocks and steps together ask for all of it.
    fn fetch(&self, p: &Product<'c>, number: IntValue<'c>, k: IntValue<'c>) -> Result<()> {
        let blocks = (p.columns / (p.block.1 * u64::from(p.lanes.max(1)))) * (p.rows / p.block.0);
        let share = p.columns.div_ceil(blocks.max(1));
        let steps = self.linear(number, p.depth, k)?;
        let first = self.linear(steps, share, self.ir.i64((p.depth * p.columns) as i64))?;
        let line = LINE / u64::from(p.right.elem.bytes());
        for at in (0..share).step_by(line as usize) {
            let at = self.linear(self.ir.i64(1), at, first)?;
            let place = self.ir.element(self.ir.storage_type(p.right.elem), p.right.memory, at)?;
            // Of data, to be read, into the second cache.
            let [read, second, data] = [0, 2, 1].map(|n| self.ir.cx.i32_type().const_int(n, false).into());
            self.ir.call_any(
                "llvm.prefetch",
                &[place.get_type().into()],
                &[place.into(), read, second, data],
            )?;
        }
        Ok(())
    }

    /// Adds the products of a column of the left operand and a row of the right one.
    fn rank_one(
        &mut self,
        p: &Product<'c>,
        left: IntValue<'c>,
        right: IntValue<'c>,
        sums: &[(PointerValue<'c>, V<'c>)],
    ) -> Result<()> {
        let step = u64::from(p.lanes.max(1));
        let mut vectors = Vec::new();
        for vector in 0..p.block.1 {
            let at = self.linear(self.ir.i64(1), vector * step, right)?;
            vectors.push(self.factor(self.get(p.right, at, p.lanes)?, p)?);
        }
        for (index, &(sum, like)) in sums.iter().enumerate() {
            let (row, vector) = (index as u64 / p.block.1, index % p.block.1 as usize);
            let at = self.linear(self.ir.i64(1), row * p.left_strides[0] as u64, left)?;
            let x = self.ir.splat(self.factor(self.get(p.left, at, 0)?, p)?, lanes_of(like));
            let old = self.ir.b.build_load(like.get_type(), sum, "").map_err(llvm)?;
            let new = self.multiply_add(x, vectors[vector], old, p)?;
            self.ir.b.build_store(sum, new).map_err(llvm)?;
        }
        Ok(())
    }

    /// A factor in the kind of the sum.
    fn factor(&self, v: V<'c>, p: &Product<'c>) -> Result<V<'c>> {
        self.cast(v, p.left.elem, p.result.elem)
    }

    fn multiply_add(&self, x: V<'c>, y: V<'c>, sum: V<'c>, p: &Product<'c>) -> Result<V<'c>> {
        if !p.result.elem.is_float() {
            return self.ir.bin(Op::Add, self.ir.bin(Op::Mul, x, y)?, sum);
        }
        if self.target.fma {
            return self.ir.call_same("llvm.fma", &[x, y, sum]);
        }
        self.ir.bin(Op::FAdd, self.ir.bin(Op::FMul, x, y)?, sum)
    }
}
