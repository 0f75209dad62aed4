//! Products whose right operand is in VNNI layout, with groups of neighbours along the common axis that fill 32 bits: two
//! `bf16` (VNNI-2) or four 8-bit integers (VNNI-4). An instruction multiplies groups of both operands and adds all products
//! to sums of 32 bits.
//!
//! ```text
//! rows of the right operand   b00 b01 b02 ..        as it lies   b00 b10 b01 b11 b02 b12 ..
//!                             b10 b11 b12 ..
//! ```
//!
//! Vectors hold 16 such groups, of 16 columns. The matrix unit has tiles of 16 rows of 64 bytes: sums of 16 rows and
//! columns, 16 rows of the left operand as they lie, and 16 rows of groups of the right one.
//!
//! Of `bf16`, both take numbers below the least normal `f32` as 0 and make such sums 0; sums are rounded to nearest.

use inkwell::types::BasicTypeEnum;
use inkwell::values::{InstructionOpcode as Op, IntValue, PointerValue};
use tilefuse_block::{Elem, Op as BlockOp};

use super::Emitter;
use super::dot::{Band, blocks};
use super::ir::{V, llvm, widen};
use super::whole::Tile;
use crate::Result;
use crate::host::target::Unit;

/// The operands.
struct Groups<'c> {
    left: Tile<'c>,
    /// Elements between rows of the left operand.
    pitch: u64,
    right: Tile<'c>,
    start: Tile<'c>,
    result: Tile<'c>,
    rows: u64,
    depth: u64,
    columns: u64,
    /// Elements of a group.
    group: u64,
}

/// Sums of a vector, and rows and columns of sums of a tile.
const LANES: u64 = 16;
/// Bytes of a group, and of a sum.
const WORD: u64 = 4;
/// Bytes of a row of a tile.
const ROW: u64 = 64;

/// Numbers of the tiles of sums, of the left operand and of the right one.
const SUMS: u64 = 0;
const LEFT: u64 = 4;
const RIGHT: u64 = 6;
/// Tiles in all.
const TILES: usize = 8;

/// Steps that are written out one after the other.
const UNROLL: u64 = 4;

impl Groups<'_> {
    fn elem(&self) -> Elem {
        self.right.elem
    }

    /// Elements of a row of a tile of the left operand.
    fn step(&self) -> u64 {
        ROW / u64::from(self.elem().bytes())
    }

    /// Rows of a tile, if the product is one of whole tiles.
    fn tile_rows(&self) -> Option<u64> {
        let whole = self.depth.is_multiple_of(self.step()) && self.columns.is_multiple_of(LANES);
        whole.then_some(self.rows.min(LANES))
    }
}

impl<'c> Emitter<'c, '_> {
    /// A product whose right operand lies in groups.
    pub(super) fn grouped_dot(&mut self, op: &BlockOp) -> Result<()> {
        let ([a, b, c], Some(&result)) = (op.args.as_slice(), op.results.first()) else {
            return Err(llvm("a product without operands"));
        };
        let shape = |value| <[u32; 2]>::try_from(&self.plan.program.ty(value).shape[..]);
        let (Ok([rows, depth]), Ok([_, columns])) = (shape(*a), shape(*b)) else {
            return Err(llvm("groups of a batch"));
        };
        let group = self.plan.direct.get(b).map_or(1, |direct| u64::from(direct.group));
        let (left, strides) = self.operand(*a, depth)?;
        let (right, _) = self.operand(*b, columns)?;
        let product = Groups {
            left,
            pitch: strides[0] as u64,
            right,
            start: self.tile(*c)?,
            result: self.tile(result)?,
            rows: rows.into(),
            depth: depth.into(),
            columns: columns.into(),
            group,
        };
        let tiles = self.target.unit(product.elem()) == Some(Unit::Tiles);
        match product.tile_rows().filter(|_| tiles) {
            Some(rows) if self.have_tiles(rows)? => self.tiles_of(&product, rows),
            _ => self.vectors_of(&product),
        }
    }

    /// The address of an element.
    fn element_of(&self, tile: Tile<'c>, at: IntValue<'c>) -> Result<PointerValue<'c>> {
        self.ir.element(self.ir.memory_type(tile.elem), tile.memory, at)
    }

    /// By vectors: blocks of sums in registers.
    fn vectors_of(&mut self, p: &Groups<'c>) -> Result<()> {
        let (vectors, bands) = blocks(p.rows, p.columns / LANES, self.plan.registers);
        self.each(p.columns / (LANES * vectors), |this, column| {
            bands.iter().try_for_each(|&Band { first, blocks, rows, .. }| {
                this.each(blocks, |this, block| {
                    let row = this.linear(block, rows, this.ir.i64(first as i64))?;
                    let column = this.linear(column, LANES * vectors, this.ir.i64(0))?;
                    this.block_of(p, [row, column], [rows, vectors])
                })
            })
        })
    }

    fn block_of(
        &mut self,
        p: &Groups<'c>,
        [row, column]: [IntValue<'c>; 2],
        [rows, vectors]: [u64; 2],
    ) -> Result<()> {
        let (zero, one) = (self.ir.i64(0), self.ir.i64(1));
        let none = self.ir.splat(self.ir.elem_type(p.result.elem).const_zero(), LANES as u32);
        // Behind the sums those that every row of 8-bit integers has too many.
        let surplus = if p.elem() == Elem::I8 { vectors } else { 0 };
        let mut sums = Vec::new();
        for _ in 0..rows * vectors + surplus {
            sums.push(self.variable(none)?);
        }
        let steps = p.depth / p.group;
        let unroll = if steps.is_multiple_of(UNROLL) { UNROLL } else { 1 };
        let (left, right) = (self.linear(row, p.pitch, zero)?, self.linear(column, p.group, zero)?);
        self.each(steps / unroll, |this, k| {
            for n in 0..unroll {
                let k = this.linear(k, unroll, this.ir.i64(n as i64))?;
                let (left, right) =
                    (this.linear(k, p.group, left)?, this.linear(k, p.group * p.columns, right)?);
                let mut weights = Vec::new();
                for v in 0..vectors {
                    let at = this.linear(one, v * LANES * p.group, right)?;
                    weights.push(this.words(p.right, at, LANES as u32)?);
                }
                for r in 0..rows {
                    let at = this.linear(one, r * p.pitch, left)?;
                    let x = this.left_word(p, at)?;
                    for (v, &w) in weights.iter().enumerate() {
                        this.add_products(p, sums[r as usize * weights.len() + v], x, w)?;
                    }
                }
                if surplus > 0 {
                    let offset = this.ir.int_of(this.ir.int_type(32).into(), LANES as u32, OFFSETS);
                    for (v, &w) in weights.iter().enumerate() {
                        this.add_products(p, sums[(rows * vectors) as usize + v], offset, w)?;
                    }
                }
            }
            Ok(())
        })?;
        let corner = self.linear(row, p.columns, column)?;
        for (index, &sum) in sums.iter().take((rows * vectors) as usize).enumerate() {
            let (r, v) = (index as u64 / vectors, index as u64 % vectors);
            let at = self.linear(one, r * p.columns + v * LANES, corner)?;
            let load = |this: &Self, sum| this.ir.b.build_load(none.get_type(), sum, "").map_err(llvm);
            let mut total = load(self, sum)?;
            if surplus > 0 {
                let more = load(self, sums[(rows * vectors + v) as usize])?;
                total = self.ir.bin(Op::Sub, total, more)?;
            }
            let add = if p.result.elem.is_float() { Op::FAdd } else { Op::Add };
            let total = self.ir.bin(add, self.get(p.start, at, LANES as u32)?, total)?;
            self.put(p.result, at, total)?;
        }
        Ok(())
    }

    /// So many groups from an element on, as words.
    fn words(&self, tile: Tile<'c>, at: IntValue<'c>, n: u32) -> Result<V<'c>> {
        let ty: BasicTypeEnum<'c> = self.ir.int_type(32).into();
        self.ir.load(widen(ty, n), self.element_of(tile, at)?, tile.elem.bytes())
    }

    /// A group of the left operand for every lane. The instruction takes 8-bit integers without a sign on this side, so that
    /// these are made larger by 128.
    fn left_word(&self, p: &Groups<'c>, at: IntValue<'c>) -> Result<V<'c>> {
        let word = self.words(p.left, at, 0)?;
        let word = match p.elem() {
            Elem::I8 => self.ir.bin(Op::Xor, word, self.ir.int_like(word, OFFSETS))?,
            _ => word,
        };
        Ok(self.ir.splat(word, LANES as u32))
    }

    /// Adds the products of groups to sums.
    fn add_products(&self, p: &Groups<'c>, sum: PointerValue<'c>, x: V<'c>, w: V<'c>) -> Result<()> {
        let ty = widen(self.ir.elem_type(p.result.elem), LANES as u32);
        let old = self.ir.b.build_load(ty, sum, "").map_err(llvm)?;
        let (name, lane) = match p.elem() {
            Elem::I8 => ("llvm.x86.avx512.vpdpbusd.512", self.ir.int_type(8).vec_type(4 * LANES as u32)),
            _ => ("llvm.x86.avx512bf16.dpbf16ps.512", self.ir.cx.bf16_type().vec_type(2 * LANES as u32)),
        };
        let lanes = |v: V<'c>| self.ir.b.build_bit_cast(v, lane, "").map_err(llvm);
        let new = self.ir.call(name, &[], &[old, lanes(x)?, lanes(w)?])?;
        self.ir.b.build_store(sum, new).map_err(llvm)?;
        Ok(())
    }

    /// By the matrix unit: blocks of up to 2 by 2 tiles of sums.
    fn tiles_of(&mut self, p: &Groups<'c>, high: u64) -> Result<()> {
        let down = (p.rows / high).min(2);
        let across = (p.columns / LANES).min(2);
        let blocks = p.rows / (high * down);
        self.each(p.columns / (LANES * across), |this, column| {
            let first = this.linear(column, LANES * across, this.ir.i64(0))?;
            this.each(blocks, |this, row| {
                let number = this.linear(column, blocks, row)?;
                let row = this.linear(row, high * down, this.ir.i64(0))?;
                this.tile_block(p, [row, first, number], [down, across], high)
            })
        })
    }

    fn tile_block(
        &mut self,
        p: &Groups<'c>,
        [row, column, number]: [IntValue<'c>; 3],
        [down, across]: [u64; 2],
        high: u64,
    ) -> Result<()> {
        let (zero, one) = (self.ir.i64(0), self.ir.i64(1));
        let corner = self.linear(row, p.columns, column)?;
        let bytes = u64::from(p.elem().bytes());
        let sums = |this: &Self, name: &str, tile: Tile<'c>| -> Result<()> {
            for (r, c) in (0..down).flat_map(|r| (0..across).map(move |c| (r, c))) {
                let at = this.linear(one, r * high * p.columns + c * LANES, corner)?;
                let place = this.element_of(tile, at)?;
                this.tile_memory(name, SUMS + r * across + c, place, p.columns * WORD)?;
            }
            Ok(())
        };
        sums(self, LOAD, p.start)?;
        let (left, right) = (self.linear(row, p.pitch, zero)?, self.linear(column, p.group, zero)?);
        let blocks = p.rows / (high * down) * (p.columns / (LANES * across));
        let steps = p.depth / p.step();
        // All blocks and steps together ask for what lies behind the right operand, as much as that: what the next product
        // of a loop reads.
        let lines = (p.step() * p.columns * bytes).div_ceil(ROW * blocks);
        self.each(steps, |this, k| {
            let ahead = this.linear(number, steps, k)?;
            let ahead = this.linear(ahead, lines * ROW / bytes, this.ir.i64((p.depth * p.columns) as i64))?;
            for line in 0..lines {
                let at = this.linear(one, line * ROW / bytes, ahead)?;
                this.prefetch(this.element_of(p.right, at)?)?;
            }
            let (left, right) =
                (this.linear(k, p.step(), left)?, this.linear(k, p.step() * p.columns, right)?);
            for c in 0..across {
                let at = this.linear(one, c * LANES * p.group, right)?;
                this.tile_memory(LOAD, RIGHT + c, this.element_of(p.right, at)?, p.columns * WORD)?;
            }
            for r in 0..down {
                let at = this.linear(one, r * high * p.pitch, left)?;
                this.tile_memory(LOAD, LEFT + r, this.element_of(p.left, at)?, p.pitch * bytes)?;
            }
            let name = if p.elem() == Elem::I8 { "llvm.x86.tdpbssd" } else { "llvm.x86.tdpbf16ps" };
            for (r, c) in (0..down).flat_map(|r| (0..across).map(move |c| (r, c))) {
                let args = [SUMS + r * across + c, LEFT + r, RIGHT + c].map(|tile| this.tile_number(tile));
                this.ir.call_any(name, &[], &args)?;
            }
            Ok(())
        })?;
        sums(self, STORE, p.result)
    }

    fn tile_number(&self, tile: u64) -> V<'c> {
        self.ir.int_type(8).const_int(tile, false).into()
    }

    /// Loads or stores a tile whose rows are so many bytes apart.
    fn tile_memory(&self, name: &str, tile: u64, place: PointerValue<'c>, pitch: u64) -> Result<()> {
        let args = [self.tile_number(tile), place.into(), self.ir.i64(pitch as i64).into()];
        self.ir.call_any(name, &[], &args)?;
        Ok(())
    }

    /// Whether tiles of sums and of the left operand have so many rows. The first product that asks settles it, where the
    /// function begins.
    fn have_tiles(&mut self, rows: u64) -> Result<bool> {
        if let Some(known) = self.tile_rows {
            return Ok(known == rows);
        }
        self.tile_rows = Some(rows);
        let top = self.top();
        let mut words = [0u64; 8];
        let mut bytes = [0u8; 64];
        bytes[0] = 1;
        for tile in 0..TILES {
            bytes[16 + 2 * tile] = ROW as u8;
            bytes[48 + tile] = if tile as u64 >= RIGHT { LANES as u8 } else { rows as u8 };
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
        }
        self.at(0);
        let ty = self.ir.int_type(64);
        let memory = self.ir.b.build_alloca(ty.array_type(8), "").map_err(llvm)?;
        for (at, &word) in words.iter().enumerate() {
            let place = self.ir.element(ty.into(), memory, self.ir.i64(at as i64))?;
            self.ir.store(ty.const_int(word, false).into(), place, 8)?;
        }
        self.ir.call_any("llvm.x86.ldtilecfg", &[], &[memory.into()])?;
        self.at(top);
        Ok(true)
    }

    /// Gives the tiles back at the end of the function, which is where code goes.
    pub(super) fn release_tiles(&self) -> Result<()> {
        if self.tile_rows.is_some() {
            self.ir.call_any("llvm.x86.tilerelease", &[], &[])?;
        }
        Ok(())
    }
}

/// 128 four times, as a word: with a carry of neither byte, `x ^ 128` is `x + 128`.
const OFFSETS: i64 = 0x8080_8080;

const LOAD: &str = "llvm.x86.tileloadd64";
const STORE: &str = "llvm.x86.tilestored64";
