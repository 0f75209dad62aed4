//! Persistent reductions: rows in a few steps that stay in registers.
//!
//! A tile that spans a row has a power of two of elements, of which a row of any length leaves up to half idle, and
//! all of which are masked. A walk in loops reads the row once for each level of reductions. Where a row is a few
//! steps long, these are written one after another instead: only the first and the last one are masked, and
//! what one level of reductions has read, and computed of it, is there for the next.
//!
//! ```text
//! a row of 5003 elements in steps of 1024, which begins 3 elements after an aligned address:
//! | ...xxxxx | xxxxxxxx | xxxxxxxx | xxxxxxxx | xxxxxxx. |      masked: the first and the last
//! ```

use smallvec::smallvec;
use tilefuse_block::{Elem, Literal, Value};

use super::accumulate::Accumulator;
use super::emit::Emitter;
use super::error::Result;
use super::tiles::{Axis, Peel, Tiling, WIDEST_BLOCK, Walk, reads_once};
use crate::index::Var;
use crate::kernel::{KNode, Kernel};
use crate::machine::Machine;
use crate::taken::taken;

/// The most steps of a row, in a block and in a cluster of two.
const MAX_STEPS: [i64; 2] = [16, 32];

/// Elements of a row up to which a tile that spans it is as good, whatever its length.
const MAX_SPANNED: i64 = 1024;

/// Elements of a step, the widest first.
const STEP_WIDTHS: [i64; 4] = [4096, 2048, 1024, 512];

/// Tiles for rows along `cols` in persistent steps, where that is better than a tile that spans them. Measured on an
/// H200: threads with 64 or 128 bytes of a row each do better than more threads with fewer.
pub(super) fn persistent(kernel: &Kernel, machine: Machine, cols: Var, peel: Option<Peel>) -> Option<Tiling> {
    let Machine::Gpu { shrink: 0, clusters, .. } = machine else { return None };
    let width = kernel.indices.extents()[cols.0 as usize];
    let one = kernel.reduced.iter().filter(|&&r| r).count() == 1;
    let long = width > WIDEST_BLOCK;
    let (bytes, reads) = along(kernel, cols);
    let once = reads_once(kernel, cols);
    // The registers of two blocks hold a longer row of 32 bits; what has 16 takes as many, for half as much.
    let pair = clusters && bytes >= 4 && width <= 65536 && !(width as u64).is_power_of_two();
    if !one || width <= MAX_SPANNED || long && (!pair || once) {
        return None;
    }
    let peel =
        peel.map(|l| if shares(kernel, cols) && (bytes <= 2 || long) { Peel { group: 2, ..l } } else { l });
    let covered = width + peel.map_or(0, |l| i64::from(l.group) - 1);
    let spanned = |step: i64| (covered + step - 1) / step * step;
    if long {
        let (step, warps) = if reads > 1 { (4096, 16) } else { (2048, 8) };
        let few = spanned(step) / step <= MAX_STEPS[1];
        return few.then(|| tiling(cols, step, warps, peel));
    }
    let few = |step: &i64| spanned(*step) / step <= MAX_STEPS[0];
    let step = STEP_WIDTHS.into_iter().filter(few).min_by_key(|&step| spanned(step))?;
    let saved = (width as u64).next_power_of_two() as i64 - spanned(step);
    // Rows of one step are what a tile spans; of more, they need fewer registers at a time.
    if width <= STEP_WIDTHS[0] && saved * 8 < width {
        return None;
    }
    let row_bytes = bytes_of_rows(kernel, cols);
    let most = if row_bytes > 2 { 16 } else { 8 };
    let warps = (spanned(step) * row_bytes / 1024).min(step * i64::from(bytes) / 512).clamp(1, most) as u64;
    Some(tiling(cols, step, warps.next_power_of_two() as u32, peel))
}

fn tiling(cols: Var, step: i64, warps: u32, peel: Option<Peel>) -> Tiling {
    let axes = smallvec![Axis { var: cols, extent: step as u32 }];
    Tiling { axes, walk: Walk::Persistent, warps, peel }
}

/// The bytes of the largest element that is read along a variable, and how many reads there are along it.
pub(super) fn along(kernel: &Kernel, var: Var) -> (u32, usize) {
    let bit = 1u64 << var.0.min(63);
    let reads = kernel.exprs.iter().filter_map(|node| match node {
        KNode::Load { buffer, addr, .. } if kernel.indices.vars(*addr) & bit != 0 => Some(*buffer),
        _ => None,
    });
    let bytes = reads.clone().filter_map(|b| kernel.buffers.get(b as usize)).map(|b| b.elem.bytes()).max();
    (bytes.unwrap_or(1), reads.count())
}

/// Whether something is read along a variable that is the same for all rows, as weights are. Where rows begin anywhere,
/// it is not aligned with them and is read element by element: threads with few adjacent elements then touch few
/// lines of the cache at a time. Measured on an H200: layer norm over rows of 5003 halves 163, 156 and 136 us for 8, 4
/// and 2 elements a thread.
pub(super) fn shares(kernel: &Kernel, cols: Var) -> bool {
    let bit = 1u64 << cols.0.min(63);
    let shared = |node: &KNode| matches!(node, KNode::Load { addr, .. } if kernel.indices.vars(*addr) == bit);
    kernel.exprs.iter().any(shared)
}

/// Bytes that are read for each element of a row: of what is another for each row.
pub(super) fn bytes_of_rows(kernel: &Kernel, cols: Var) -> i64 {
    let bit = 1u64 << cols.0.min(63);
    let of_row = |node: &KNode| match node {
        KNode::Load { buffer, addr, .. } => {
            let vars = kernel.indices.vars(*addr);
            let bytes = kernel.buffers.get(*buffer as usize).map_or(0, |b| i64::from(b.elem.bytes()));
            if vars & bit != 0 && vars != bit { bytes } else { 0 }
        }
        _ => 0,
    };
    kernel.exprs.iter().map(of_row).sum::<i64>().max(1)
}

impl Emitter<'_> {
    /// Walks a variable in steps that are written one after another, and keeps what each has computed.
    pub(super) fn persistent_walk(
        &mut self,
        var: Var,
        axis: usize,
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        taken!("persistent steps");
        let [first, last, end, step] = self.bounds(var, axis);
        let mut carried = carried.to_vec();
        for base in (0..end).step_by(step as usize) {
            self.whole = base >= first && base < last;
            let next = self.persistent_step(var, base, reduces, stores, &carried);
            self.whole = false;
            carried = next?;
        }
        Ok(carried)
    }

    fn persistent_step(
        &mut self,
        var: Var,
        base: i64,
        reduces: &[Accumulator],
        stores: &[usize],
        carried: &[Value],
    ) -> Result<Vec<Value>> {
        let outside = std::mem::replace(&mut self.in_loop, true);
        self.bases[var.0 as usize] = Some(self.b.constant(Literal::int(Elem::I32, base), &[]));
        self.inner = self.persistent.steps.remove(&base).unwrap_or_default();
        let next = self.body(reduces, stores, carried);
        self.persistent.steps.insert(base, std::mem::take(&mut self.inner));
        self.bases[var.0 as usize] = None;
        self.in_loop = outside;
        next
    }
}
