//! Reads of every second element: contiguous reads of twice as many, of which the lanes are taken, in the place of
//! gathers. The elements between are masked off, so that nothing is touched that no lane reads.

use inkwell::types::BasicTypeEnum;

use super::ir::{V, lanes_of};
use super::memory::{Index, Mask};
use super::{At, Emitter};
use crate::Result;
use crate::host::plan::Bit;

/// Most parts that a vector is put together from.
const MAX_PARTS: u32 = 4;

impl<'c> Emitter<'c, '_> {
    /// How many of the lowest lane bits walk an index in steps of two, if these are enough to read parts of a vector.
    pub(super) fn every_second(&self, index: Index<'c>, map: &[Bit]) -> Option<usize> {
        let lanes = self.lanes.iter().enumerate();
        let low = lanes.take_while(|&(j, &bit)| self.stride(index, map, bit) == Some(2i64 << j)).count();
        (low > 1 && 1u32 << (self.lanes.len() - low) <= MAX_PARTS).then_some(low)
    }

    /// Reads every second element, in parts of `2^low` lanes.
    pub(super) fn read_second(
        &mut self,
        index: Index<'c>,
        map: &[Bit],
        ty: BasicTypeEnum<'c>,
        (cond, floor): Mask<'c>,
        low: usize,
    ) -> Result<At<'c>> {
        let n = 1u32 << low;
        let (mut level, mut parts) = (floor, Vec::new());
        for part in 0..1u32 << (self.lanes.len() - low) {
            let at = self.address(index, &self.at_part(map, low, part), ty, floor)?;
            level = level.max(at.level);
            parts.push(at.v);
        }
        self.at(floor);
        let mut masks = Vec::new();
        for part in 0..parts.len() as u32 {
            masks.push(self.spread(cond, part, n)?);
        }
        self.at(level);
        let even: Vec<i64> = (0..i64::from(n)).map(|lane| 2 * lane).collect();
        let mut values = Vec::new();
        for (&address, &mask) in parts.iter().zip(&masks) {
            let read = self.masked_load(ty, address.into_pointer_value(), mask)?;
            values.push(self.ir.shuffle(read, read, &even)?);
        }
        Ok(At { v: self.join(values)?, level })
    }

    /// The mask of a part's lanes at every second of twice as many.
    fn spread(&self, cond: Option<V<'c>>, part: u32, n: u32) -> Result<V<'c>> {
        let truth = self.ir.int_type(1);
        let all: V<'c> = truth.const_all_ones().into();
        let mask = match cond {
            Some(cond) => self.part_of(cond, part, n)?,
            None => self.ir.splat(all, n),
        };
        debug_assert_eq!(lanes_of(mask), n, "a mask of a part");
        let none = self.ir.splat(truth.const_zero().into(), n);
        let indices: Vec<i64> =
            (0..2 * i64::from(n)).map(|at| if at % 2 == 0 { at / 2 } else { i64::from(n) }).collect();
        self.ir.shuffle(mask, none, &indices)
    }
}
