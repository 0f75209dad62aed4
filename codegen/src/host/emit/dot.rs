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
use crate::host::plan::{Direct, Map, Registers, ZERO, shape_bits};
use crate::scalar;

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
    /// Vectors of a block.
    vectors: u64,
    /// How rows are divided into blocks.
    bands: Vec<Band>,
    /// Steps of the common axis that are written out one after the other.
    unroll: u64,
    /// Whether the right operand is read where it lies, so that what lies behind it is read next.
    streams: bool,
}

/// Blocks of equally many rows, one below the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    /// The first row.
    pub(super) first: u64,
    /// The number of the first block.
    number: u64,
    /// How many blocks there are.
    pub(super) blocks: u64,
    /// Rows of each.
    pub(super) rows: u64,
}

/// Where a block is.
#[derive(Clone, Copy)]
struct Place<'c> {
    /// The member of the batch.
    batch: IntValue<'c>,
    /// The first row, within the member.
    row: IntValue<'c>,
    /// How many rows it has.
    rows: u64,
    /// Which of the blocks' columns it is in.
    column: IntValue<'c>,
    /// The number among the blocks of a member.
    number: IntValue<'c>,
}

/// Bytes of a line of the caches.
const LINE: u64 = 64;

impl Product<'_> {
    /// Blocks one below the other.
    fn blocks_down(&self) -> u64 {
        self.bands.iter().map(|band| band.blocks).sum()
    }
}

/// Vectors of a block, and how rows are divided into blocks: as many sums as registers hold beside the operands of a step,
/// and as few operands for each sum as that allows.
///
/// ```text
/// 64 rows of 4 vectors of 16 lanes, 32 registers      10 blocks of 6 rows, 1 block of 4
/// ```
pub(super) fn blocks(rows: u64, vectors: u64, registers: Registers) -> (u64, Vec<Band>) {
    let (vectors, most) = match (registers.are_many(), registers.width) {
        (true, _) if vectors.is_multiple_of(4) => (4, 6),
        (true, _) => (vectors.min(2), 8),
        (false, 3) => (vectors.min(2), 6),
        (false, _) => (vectors.min(2), 4),
    };
    // Beyond the first two, powers of two are one or two fours and a multiple of six.
    let fours = if most == 6 && rows > 4 {
        (1..3).find(|n| (rows - 4 * n).is_multiple_of(6)).unwrap_or(0)
    } else {
        0
    };
    let most = most.min(rows).max(1);
    let many = (rows - 4 * fours) / most;
    let bands = [(0, 0, many, most), (many * most, many, fours, 4)];
    let bands = bands.map(|(first, number, blocks, rows)| Band { first, number, blocks, rows });
    (vectors.max(1), bands.into_iter().filter(|band| band.blocks > 0).collect())
}

impl<'c> Emitter<'c, '_> {
    pub(super) fn dot(&mut self, op: &BlockOp) -> Result<()> {
        let ([a, b, c], Some(&result)) = (op.args.as_slice(), op.results.first()) else {
            return Err(llvm("a product without operands"));
        };
        let program = self.plan.program;
        if self.plan.direct.get(b).is_some_and(|direct| direct.group > 1) {
            return self.grouped_dot(op);
        }
        let (left, right) = (&program.ty(*a).shape, &program.ty(*b).shape);
        let (batch, &[rows, depth]) = match left.split_last_chunk::<2>() {
            Some((batch, last)) => (batch.iter().product::<u32>(), last),
            None => return Err(llvm("a product of vectors")),
        };
        let columns = u64::from(right.last().copied().unwrap_or(1));
        let wide = program.ty(result).elem() == Some(Elem::F64);
        let lanes = self.lanes_for(columns).min((1 << self.plan.width) >> u32::from(wide));
        let vectors = columns / u64::from(lanes.max(1));
        let (vectors_of, bands) = blocks(u64::from(rows), vectors, self.plan.registers);
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
            vectors: vectors_of,
            bands,
            unroll: [4, 2].into_iter().find(|n| u64::from(depth).is_multiple_of(*n)).unwrap_or(1),
            streams: self.plan.direct.contains_key(b),
        };
        self.each(batch.into(), |this, batch| {
            this.each(vectors / product.vectors, |this, column| {
                product.bands.iter().try_for_each(|&band| {
                    this.each(band.blocks, |this, block| {
                        let row = this.linear(block, band.rows, this.ir.i64(band.first as i64))?;
                        let number = this.linear(column, product.blocks_down(), block)?;
                        let number = this.linear(this.ir.i64(1), band.number, number)?;
                        this.block(&product, Place { batch, row, rows: band.rows, column, number })
                    })
                })
            })
        })
    }

    /// An operand of a product, where it lies, and its strides, which are those of rows of this length for a tile.
    pub(super) fn operand(&mut self, value: Value, row: u32) -> Result<(Tile<'c>, [i64; 2])> {
        let Some(&Direct { pointer, offsets, strides, .. }) = self.plan.direct.get(&value) else {
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
        Ok((Tile { memory, elem, narrow: elem == Elem::Bf16 }, strides))
    }

    /// One block of the result.
    fn block(&mut self, p: &Product<'c>, at: Place<'c>) -> Result<()> {
        let Place { batch, row, rows, column, number } = at;
        let step = u64::from(p.lanes.max(1));
        let zero = self.ir.i64(0);
        let column = self.linear(column, p.vectors * step, zero)?;
        let row = self.linear(batch, p.rows, row)?;
        let corner = self.linear(row, p.columns, column)?;
        let place = |this: &Self, k: u64| {
            let (row, vector) = (k / p.vectors, k % p.vectors);
            this.linear(this.ir.i64(1), row * p.columns + vector * step, corner)
        };
        let mut sums: Vec<(PointerValue<'c>, V<'c>)> = Vec::new();
        for k in 0..rows * p.vectors {
            let mut start = self.get(p.start, place(self, k)?, p.lanes)?;
            if p.result.elem.is_float() {
                start = self.ir.float_like(start, 0.0);
            }
            sums.push((self.variable(start)?, start));
        }
        self.each(p.depth / p.unroll, |this, steps| {
            let k = this.linear(steps, p.unroll, zero)?;
            let right = this.linear(batch, p.depth, k)?;
            let right = this.linear(right, p.columns, column)?;
            let left = this.linear(k, p.left_strides[1] as u64, zero)?;
            let left = this.linear(row, p.left_strides[0] as u64, left)?;
            if p.streams {
                this.fetch(p, number, steps)?;
            }
            let one = this.ir.i64(1);
            (0..p.unroll).try_for_each(|n| {
                let left = this.linear(one, n * p.left_strides[1] as u64, left)?;
                let right = this.linear(one, n * p.columns, right)?;
                this.rank_one(p, left, right, &sums)
            })
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
    fn fetch(&self, p: &Product<'c>, number: IntValue<'c>, step: IntValue<'c>) -> Result<()> {
        let blocks = (p.columns / (p.vectors * u64::from(p.lanes.max(1)))) * p.blocks_down();
        let share = (p.columns * p.unroll).div_ceil(blocks.max(1));
        let steps = self.linear(number, p.depth / p.unroll, step)?;
        let first = self.linear(steps, share, self.ir.i64((p.depth * p.columns) as i64))?;
        let line = LINE / u64::from(p.right.elem.bytes());
        for at in (0..share).step_by(line as usize) {
            let at = self.linear(self.ir.i64(1), at, first)?;
            let place = self.ir.element(self.ir.storage_type(p.right.elem), p.right.memory, at)?;
            self.prefetch(place)?;
        }
        Ok(())
    }

    /// Asks for a line of data, to be read, into the second cache.
    pub(super) fn prefetch(&self, place: PointerValue<'c>) -> Result<()> {
        let [read, second, data] = [0, 2, 1].map(|n| self.ir.cx.i32_type().const_int(n, false).into());
        let types = [place.get_type().into()];
        self.ir.call_any("llvm.prefetch", &types, &[place.into(), read, second, data])?;
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
        for vector in 0..p.vectors {
            let at = self.linear(self.ir.i64(1), vector * step, right)?;
            let y = self.get(p.right, at, p.lanes)?;
            vectors.push(self.factor(y, p)?);
        }
        for (index, &(sum, like)) in sums.iter().enumerate() {
            let (row, vector) = (index as u64 / p.vectors, index % p.vectors as usize);
            let at = self.linear(self.ir.i64(1), row * p.left_strides[0] as u64, left)?;
            let x = self.get(p.left, at, 0)?;
            let x = self.factor(x, p)?;
            let x = self.ir.splat(x, lanes_of(like));
            let old = self.ir.b.build_load(like.get_type(), sum, "").map_err(llvm)?;
            let new = self.multiply_add(x, vectors[vector], old, p)?;
            self.ir.b.build_store(sum, new).map_err(llvm)?;
        }
        Ok(())
    }

    /// A factor in the kind of the sum.
    fn factor(&mut self, v: V<'c>, p: &Product<'c>) -> Result<V<'c>> {
        scalar::cast(self, p.left.elem, p.result.elem, &v)
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

#[cfg(test)]
mod tests {
    use super::{Band, Registers, blocks};

    #[test]
    fn sums_fill_the_registers() {
        let shown = |rows, vectors, width: u32| {
            let (vectors, bands) = blocks(rows, vectors, width.into());
            (vectors, bands.iter().map(|band| (band.blocks, band.rows)).collect::<Vec<_>>())
        };
        assert_eq!(shown(64, 4, 4), (4, vec![(10, 6), (1, 4)]));
        assert_eq!(shown(8, 8, 4), (4, vec![(2, 4)]));
        assert_eq!(shown(32, 2, 4), (2, vec![(4, 8)]));
        assert_eq!(shown(32, 8, 3), (2, vec![(4, 6), (2, 4)]));
        assert_eq!(shown(32, 16, 2), (2, vec![(8, 4)]));
        assert_eq!(shown(2, 1, 4), (1, vec![(1, 2)]));
        // Short vectors, and many of them.
        let neon = Registers { count: 32, ..2.into() };
        let (vectors, bands) = blocks(64, 16, neon);
        assert_eq!((vectors, bands.iter().map(|b| (b.blocks, b.rows)).collect()), (4, vec![(10, 6), (1, 4)]));
    }

    #[test]
    fn every_row_is_in_one_block() {
        for rows in (0..12).map(|n| 1 << n) {
            for (vectors, width) in [(1, 4), (2, 4), (4, 4), (2, 3), (2, 2)] {
                let (mut row, mut number) = (0, 0);
                for Band { first, number: start, blocks, rows } in blocks(rows, vectors, width.into()).1 {
                    assert_eq!((first, start), (row, number));
                    row += blocks * rows;
                    number += blocks;
                }
                assert_eq!(row, rows, "of {vectors} vectors");
            }
        }
    }
}
