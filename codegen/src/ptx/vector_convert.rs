//! Changes of layout through shared memory where threads have, or want, neighbours along the last axis: these move
//! together.

use rustc_hash::FxHashSet;
use tilefuse_block::Elem;

use super::barrier::BarrierReason;
use super::ir::Val;
use super::lower::Lower;
use crate::layout::Layout;

/// Banks of shared memory, each of words of 4 bytes.
const BANKS: u64 = 32;

/// A tile in shared memory, row-major, with free bytes after each run so that threads wait little for banks.
#[derive(Clone, Copy)]
struct Rows {
    bytes: u64,
    /// Elements of a run, as a power of two.
    run: u32,
    /// Free bytes after each.
    free: u64,
}

impl Rows {
    fn at(self, number: u32) -> u64 {
        u64::from(number) * self.bytes + u64::from(number >> self.run) * self.free
    }

    /// For a tile that one layout writes and another one reads, so many neighbours at a time.
    fn of(bytes: u32, (from, to): (&Layout, &Layout), Vectors { have, want }: Vectors) -> Rows {
        let run = from.shape().last().copied().unwrap_or(0).max((128 / bytes).trailing_zeros());
        let unit = (have.max(want) as u64 * u64::from(bytes)).max(4);
        let with = |free: u64| Rows { bytes: bytes.into(), run, free };
        let passes = |rows: &Rows| rows.passes(from, have) + rows.passes(to, want);
        let choices = (0..3).map(|log| with(unit << log));
        choices.min_by_key(passes).unwrap_or(with(unit))
    }

    /// How often a warp's accesses go through the banks, where each lane accesses so many neighbours at a time: in a pass, a
    /// bank serves one word.
    fn passes(&self, layout: &Layout, each: usize) -> u64 {
        let width = each as u64 * self.bytes;
        let together = (BANKS * 4 / width.max(4)) as u32;
        let lane_offset = |lane: u32| {
            let bases = layout.lanes().iter().enumerate();
            bases.filter(|(bit, _)| lane >> bit & 1 == 1).fold(0, |number, (_, basis)| number ^ basis)
        };
        let mut passes = 0;
        for first in (0..1 << layout.lanes().len()).step_by(together as usize) {
            let words = (first..first + together).flat_map(|lane| {
                let byte = self.at(lane_offset(lane));
                byte / 4..(byte + width).div_ceil(4)
            });
            let words: FxHashSet<u64> = words.collect();
            let of_bank = |bank: u64| words.iter().filter(|&word| word % BANKS == bank).count() as u64;
            passes += (0..BANKS).map(of_bank).max().unwrap_or(0);
        }
        passes * (layout.num_regs() / each) as u64
    }
}

/// How many neighbours move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vectors {
    /// To shared memory.
    pub(crate) have: usize,
    /// From shared memory.
    pub(crate) want: usize,
}

/// How many neighbours move together from one layout to another; none where only single ones would.
pub(crate) fn between(from: &Layout, to: &Layout, elem: Elem) -> Option<Vectors> {
    let last = from.shape().len().checked_sub(1)?;
    let width = |layout: &Layout| (1usize << layout.vector(last)).min(16 / elem.bytes() as usize);
    let (have, want) = (width(from), width(to));
    let alone = have.max(want) == 1 || elem == Elem::Bool || from.replicated_threads() != 0;
    (!alone).then_some(Vectors { have, want })
}

impl Lower<'_> {
    /// The elements that `from` holds in `regs`, in the layout `to`.
    pub(crate) fn by_vectors(
        &mut self,
        Vectors { have, want }: Vectors,
        (from, regs): (&Layout, &[Val]),
        to: &Layout,
        elem: Elem,
    ) -> Vec<Val> {
        let total: u32 = from.shape().iter().sum();
        let rows = Rows::of(elem.bytes(), (from, to), Vectors { have, want });
        let size = rows.at(1 << total.max(rows.run));
        self.reserve(size);
        let start = self.rows_start(rows, from);
        for first in (0..from.num_regs()).step_by(have) {
            let address = self.rows_at(&start, rows.at(from.reg_offset(first)));
            self.shared_store_group(&address, elem, &regs[first..first + have]);
        }
        self.barrier(BarrierReason::Filled);
        let start = self.rows_start(rows, to);
        let mut out = Vec::with_capacity(to.num_regs());
        for first in (0..to.num_regs()).step_by(want) {
            let address = self.rows_at(&start, rows.at(to.reg_offset(first)));
            out.extend(self.shared_load_group(&address, elem, want));
        }
        out
    }

    /// Where the first element of a thread lies.
    fn rows_start(&mut self, rows: Rows, layout: &Layout) -> Val {
        let thread = self.thread_part(layout);
        let place = self.ir.def(format_args!("mul nuw nsw i32 {thread}, {}", rows.bytes));
        let run = self.ir.def(format_args!("lshr i32 {thread}, {}", rows.run));
        let free = self.ir.def(format_args!("mul nuw nsw i32 {run}, {}", rows.free));
        let place = self.ir.def(format_args!("add nuw nsw i32 {place}, {free}"));
        self.scratch(&place)
    }

    fn rows_at(&mut self, start: &Val, distance: u64) -> Val {
        match distance {
            0 => start.clone(),
            _ => self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) {start}, i64 {distance}")),
        }
    }
}
