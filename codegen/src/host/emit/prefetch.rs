//! Lines of the caches that are fetched before they are needed.

use tilefuse_block::{Elem, Value};

use super::ir::V;
use super::memory::Index;
use super::{Bound, Emitter};
use crate::Result;
use crate::host::plan::{Bit, ONE, Prefetch, Region, SinkKind};

/// Bytes of a line.
pub(super) const LINE: i64 = 64;
/// How many bytes ahead of a store its line is fetched in the store's own loop, counted in what the loop writes.
const DISTANCE: i64 = 1024;
/// How many square blocks ahead lines are fetched where blocks are transposed: each touches as many lines as it has rows.
const BLOCKS: i64 = 3;

impl<'c> Emitter<'c, '_> {
    /// What later loops write at the current position of the reductions of a region, and what the next instance reads
    /// there.
    pub(super) fn fetch_for_later(&mut self, region: &Region) -> Result<()> {
        for ahead in self.ahead.clone() {
            let Some(reduction) = ahead.beside.filter(|sink| region.sinks.contains(sink)) else { continue };
            let bits = self.plan.sinks[reduction].bits.clone();
            if !ahead.streams || !self.goes_past(ahead.store, &bits) {
                self.fetch_lines(ahead.store, &bits, 0, true)?;
            }
            for &(ptr, step) in &ahead.next {
                let bytes = self.plan.program.ty(ptr).pointee().map_or(0, |e| i64::from(e.bytes()));
                self.fetch_lines((ptr, ahead.store.1), &bits, step.saturating_mul(bytes), false)?;
            }
        }
        Ok(())
    }

    /// The line that a store reaches some steps later, where no earlier loop has fetched it.
    pub(super) fn fetch_for_store(&mut self, store: (Value, Value), map: &[Bit]) -> Result<()> {
        let own = self.ahead.iter().any(|ahead| ahead.store == store && ahead.beside.is_none());
        match own {
            true if self.in_blocks() => self.fetch_block(store, map, true),
            true => {
                let further = self.rows_further(store, map).unwrap_or(DISTANCE);
                self.fetch_lines(store, map, further, true)
            }
            false => Ok(()),
        }
    }

    /// The lines that a load reads some steps later: of a later block where blocks are transposed, and beside stores past
    /// the caches. Where much is computed between these, the processor itself fetches too late.
    pub(super) fn fetch_for_load(&mut self, load: (Value, Value), map: &[Bit]) -> Result<()> {
        match self.plan.is_large(load.0) {
            true if self.in_blocks() => self.fetch_block(load, map, false),
            true if self.streams => self.fetch_lines(load, map, DISTANCE, false),
            _ => Ok(()),
        }
    }

    /// Whether a store of a region is non-temporal, of what no earlier loop has read.
    pub(super) fn streams_in(&self, region: &Region) -> bool {
        region.sinks.iter().any(|&id| {
            let sink = &self.plan.sinks[id];
            let SinkKind::Store(op) = sink.kind else { return false };
            let &[ptr, offsets, ..] = op.args.as_slice() else { return false };
            let first =
                |ahead: &Prefetch| ahead.store == (ptr, offsets) && ahead.streams && ahead.beside.is_none();
            self.ahead.iter().any(first) && self.goes_past((ptr, offsets), &sink.bits)
        })
    }

    /// How many bytes further in memory a store is that follows some rows later, where a tile's rows are shorter than the
    /// distance and do not follow each other without a gap.
    fn rows_further(&self, (ptr, offsets): (Value, Value), map: &[Bit]) -> Option<i64> {
        let bytes = self.plan.program.ty(ptr).pointee().map_or(0, |e| i64::from(e.bytes()));
        let affine = self.plan.affine(offsets, map);
        let steps = map.iter().filter(|&&bit| bit > ONE).map(|&bit| affine.stride(bit));
        let mut steps = steps.collect::<Option<Vec<i64>>>()?;
        steps.retain(|&step| step != 0);
        steps.sort_unstable();
        let mut row = 1;
        let pitch = steps.into_iter().find(|&step| {
            let follows = step == row;
            row += if follows { row } else { 0 };
            !follows
        })?;
        let own = row.checked_mul(bytes).filter(|own| (LINE..DISTANCE).contains(own))?;
        (pitch > row).then(|| pitch.saturating_mul(bytes).saturating_mul(DISTANCE / own))
    }

    /// Whether the region at hand unrolls whole blocks.
    fn in_blocks(&self) -> bool {
        !self.lanes.is_empty() && self.forced.len() >= self.lanes.len()
    }

    /// The lines of the block that the innermost loop reaches some steps later.
    fn fetch_block(&mut self, access: (Value, Value), map: &[Bit], write: bool) -> Result<()> {
        let step = Bound::Loop(self.top() as u16, 0);
        let Some(&bit) = map.iter().find(|&&bit| self.bound[usize::from(bit)] == step) else { return Ok(()) };
        let step = self.plan.affine(access.1, map).stride(bit).unwrap_or(0);
        let bytes = self.plan.program.ty(access.0).pointee().map_or(0, |e| i64::from(e.bytes()));
        match step.saturating_mul(bytes).saturating_mul(BLOCKS) {
            0 => Ok(()),
            further => self.fetch_lines(access, map, further, write),
        }
    }

    /// The lines that the lanes at a map touch, so many bytes further, where the lanes are neighbours in memory: of vectors that
    /// are unrolled in one line, the first one fetches it. No access is made: the address may be of nothing.
    fn fetch_lines(
        &mut self,
        (ptr, offsets): (Value, Value),
        map: &[Bit],
        further: i64,
        write: bool,
    ) -> Result<()> {
        let elem = self.plan.program.ty(ptr).pointee().unwrap_or(Elem::F32);
        let index = Index::Offsets(offsets, self.value(ptr, &[])?.v.into_pointer_value());
        if self.lanes.is_empty() || self.contiguous(index, map) < self.lanes.len() {
            return Ok(());
        }
        let bytes = i64::from(elem.bytes()) << self.lanes.len();
        if self.continues_line(offsets, map, bytes) {
            return Ok(());
        }
        let (top, ty) = (self.top(), self.ir.memory_type(elem));
        let first = self.address(index, &self.at_part(map, 0, 0), ty, top)?.v.into_pointer_value();
        self.at(top);
        for line in (0..bytes).step_by(LINE as usize) {
            let at = self.ir.element(self.ir.int_type(8).into(), first, self.ir.i64(line + further))?;
            let number = |n: u64| V::from(self.ir.cx.i32_type().const_int(n, false));
            // For writing or reading, to the nearest cache, of data.
            let args = [at.into(), number(u64::from(write)), number(3), number(1)];
            self.ir.call_any("llvm.prefetch", &[at.get_type().into()], &args)?;
        }
        Ok(())
    }

    /// Whether lanes of so many bytes go on in memory, within a line, where an earlier vector ends that is unrolled before them.
    fn continues_line(&self, offsets: Value, map: &[Bit], bytes: i64) -> bool {
        let affine = self.plan.affine(offsets, map);
        let lanes = self.lanes.len();
        let follow = self.unrolled.iter().enumerate();
        follow
            .take_while(|&(at, &bit)| bytes << at < LINE && affine.stride(bit) == Some(1 << (lanes + at)))
            .any(|(_, &bit)| self.bound[usize::from(bit)] == Bound::Known(true))
    }
}
