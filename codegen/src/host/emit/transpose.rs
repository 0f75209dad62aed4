//! Loads whose lanes are strided, but which are contiguous along bits that the region unrolls: a square block is read
//! along those bits and transposed in registers.

use smallvec::SmallVec;
use tilefuse_block::{Op as BlockOp, Value};

use super::ir::{V, lanes_of};
use super::{At, Bound, Emitter};
use crate::Result;
use crate::host::plan::Map;

impl<'c> Emitter<'c, '_> {
    /// The elements of a load at a map, if it is one of those; the other copies of the unrolled bits are remembered.
    pub(super) fn load_transposed(
        &mut self,
        op: &BlockOp,
        value: Value,
        map: &Map,
    ) -> Result<Option<At<'c>>> {
        let Some(cross) = self.cross_bits(op, map) else { return Ok(None) };
        let lanes = self.lanes.clone();
        let saved: SmallVec<[Bound; 12]> = self.resolve(&lanes);
        let copies: SmallVec<[Bound; 12]> = self.resolve(&cross);
        self.bind_lanes(&cross);
        self.transposing = true;
        let mut rows = Vec::new();
        let mut level = 0;
        for row in 0..1usize << lanes.len() {
            self.bind_known(&lanes, row);
            let at = self.load_tile(op, value, map)?;
            level = level.max(at.level);
            rows.push(at.v);
        }
        self.transposing = false;
        for (&bit, &bound) in lanes.iter().zip(&saved) {
            self.bind(bit, bound);
        }
        self.lanes = lanes;
        self.at(level);
        let columns = self.transposed(rows)?;
        let mut found = None;
        for (copy, &v) in columns.iter().enumerate() {
            self.bind_known(&cross, copy);
            let at = At { v, level };
            if self.resolve(&cross) == copies {
                found = Some(at);
            }
            let key = (value, self.resolve(map));
            self.remember(key, at);
        }
        for (&bit, &bound) in cross.iter().zip(&copies) {
            self.bind(bit, bound);
        }
        Ok(found)
    }

    /// As many unrolled bits as there are lanes, along which a load is contiguous, where its lanes are strided.
    fn cross_bits(&self, op: &BlockOp, map: &Map) -> Option<Map> {
        let (&offsets, &lane) = (op.args.get(1)?, self.lanes.first()?);
        if self.transposing || self.forced.len() < self.lanes.len() {
            return None;
        }
        let affine = self.plan.affine(offsets, map);
        if matches!(affine.stride(lane), Some(0 | 1)) {
            return None;
        }
        let along = |k: usize| self.forced.iter().copied().find(|&b| affine.stride(b) == Some(1i64 << k));
        (0..self.lanes.len()).map(along).collect()
    }

    /// Exchanges the number of a vector with the number of a lane, one bit after the other.
    fn transposed(&self, mut rows: Vec<V<'c>>) -> Result<Vec<V<'c>>> {
        let n = rows.len();
        for row in &mut rows {
            *row = self.ir.splat(*row, n as u32);
        }
        let lanes = i64::from(rows.first().map_or(0, |&v| lanes_of(v)));
        let mut distance = 1usize;
        while distance < n {
            let d = distance as i64;
            let low: Vec<i64> = (0..lanes).map(|l| if l & d == 0 { l } else { lanes + l - d }).collect();
            let high: Vec<i64> = (0..lanes).map(|l| if l & d == 0 { l + d } else { lanes + l }).collect();
            for i in (0..n).filter(|i| i & distance == 0) {
                let (a, b) = (rows[i], rows[i | distance]);
                rows[i] = self.ir.shuffle(a, b, &low)?;
                rows[i | distance] = self.ir.shuffle(a, b, &high)?;
            }
            distance *= 2;
        }
        Ok(rows)
    }
}
