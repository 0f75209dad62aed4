//! Coalescing: neighbouring lanes access neighbouring memory.
//!
//! A load or store is done in the layout of its tile, unless the tile's first lanes and registers lie along another axis
//! than the one along which addresses are contiguous, or its lanes access pieces of memory that are shorter than a sector, as
//! those of a product of 16-bit floats do. Then it has a layout of its own, and the tile changes layout: by exchanges within
//! warps where an instruction can access more, else, for a store, as where rows begin at odd elements, through shared memory.
//!
//! ```text
//! kernel @transpose(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %r = range 0 32
//!   %rows = expand_dims %r axis 1
//!   %cols = expand_dims %r axis 0
//!   %long = const 32 : tile<32x1xi32>
//!   %wide = const 32 : tile<1x32xi32>
//!   %down = map mul %rows, %long
//!   %right = map mul %cols, %wide
//!   %a = broadcast %down [32, 32]
//!   %b = broadcast %cols [32, 32]
//!   %from = map add %a, %b
//!   %v = load %x, %from
//!   %c = broadcast %rows [32, 32]
//!   %d = broadcast %right [32, 32]
//!   %to = map add %c, %d
//!   store %y, %to, %v
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 24 registers a thread
//! kernel @transpose(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %r = range 0 32
//!   %rows = expand_dims %r axis 1
//!   %cols = expand_dims %r axis 0
//!   %0 = const 32 : tile<32xi32>
//!   %1 = map mul %r, %0
//!   %down = expand_dims %1 axis 1
//!   %right = expand_dims %1 axis 0
//!   %a = broadcast %down [32, 32]
//!   %b = broadcast %cols [32, 32]
//!   %from = map add %a, %b
//!   %v = load %x, %from  // coalesce: runs of 32 along axis 1, in the layout of %v
//!   %c = broadcast %rows [32, 32]
//!   %d = broadcast %right [32, 32]
//!   %to = map add %c, %d
//!   store %y, %to, %v    // coalesce: runs of 32 along axis 0, through [4 regs, 8 lanes] x [4 lanes, 4 warps, 2 regs]
//! }
//! ```

use tilefuse_block::{Op, OpKind};

use super::assign::{Assignment, accessed, accesses, log_shape};
use super::convert_layout::Way;
use super::passes::Seen;
use crate::layout::{Blocked, Layout, axis_bits};

/// Bytes of memory that are moved together.
const SECTOR: u64 = 32;

/// Elements of a thread for which a change of layout through shared memory takes less than stores of pieces of sectors.
const MIN_STORES: usize = 8;

impl<'a> Assignment<'a> {
    /// Gives layouts of their own to the accesses that would be scattered in those of their tiles.
    pub(crate) fn coalesce(&mut self, ops: &[&'a Op]) {
        let all = accesses(ops, self.program);
        for &op in &all {
            let home = self.home(accessed(op));
            let layout = if self.scatters(op, &home) {
                Some(self.coalesced(op, &all))
            } else if self.piece(op, &home) < SECTOR {
                self.widened(op, &home).or_else(|| self.gathered(op, &home, &all))
            } else {
                None
            };
            if let Some(layout) = layout {
                self.access.insert(std::ptr::from_ref(op), layout);
            }
        }
    }

    /// The layout that suits an access, which is one of `all`, and those of its shape that may run beside it.
    pub(crate) fn coalesced(&self, op: &Op, all: &[&Op]) -> Layout {
        let fast = self.fast_axis(op);
        let shape = &self.program.ty(op.args[1]).shape;
        let is_operand = |op: &Op| self.operands[accessed(op).index()];
        let alike = all.iter().filter(|o| self.program.ty(o.args[1]).shape == *shape);
        let alike = alike.filter(|o| is_operand(o) == is_operand(op) && !self.excludes(o, op));
        let vector = alike.clone().map(|o| self.width(o, fast)).max().unwrap_or(0);
        // Neighbours that alignment keeps apart go to neighbouring lanes, but for loads that can shift them.
        let apart = alike.filter(|o| self.shifted_width(o, fast).is_none());
        let least = apart.filter_map(|o| self.unaligned_width(o, fast)).min();
        let vector = least.map_or(vector, |least| vector.min(least));
        let shape_log = log_shape(shape);
        let vector = vector.min(self.per_thread(&shape_log));
        let how = Blocked { fast, vector, reduced: self.reduced(shape), warps: self.warps };
        Layout::blocked(&shape_log, &how)
    }

    /// Bytes of contiguous memory that neighbouring lanes of a layout access together.
    fn piece(&self, op: &Op, layout: &Layout) -> u64 {
        let fast = self.fast_axis(op);
        let vector = layout.vector(fast);
        let start = axis_bits(layout.shape(), fast).start + vector;
        let lanes = layout.lanes().iter().zip(start..).take_while(|(basis, bit)| **basis == 1 << bit).count();
        self.element_bytes(op) << (vector as usize + lanes)
    }

    fn element_bytes(&self, op: &Op) -> u64 {
        self.program.ty(op.args[0]).pointee().map_or(1, |e| u64::from(e.bytes()))
    }

    /// The layout in which each lane accesses as much as an instruction can, of what its neighbours access too.
    fn widened(&self, op: &Op, home: &Layout) -> Option<Layout> {
        let fast = self.fast_axis(op);
        let (have, want) = (home.vector(fast), self.width(op, fast));
        if want <= have || self.element_bytes(op) << want > self.piece(op, home) {
            return None;
        }
        let elem = self.program.ty(accessed(op)).elem()?;
        let wide = home.widened(fast, want)?;
        matches!(Way::of(home, &wide, elem), Way::Shuffles(_)).then_some(wide)
    }

    /// The layout for a store of many elements of a thread in which neighbouring lanes access more, if they do. What a load reads
    /// of a sector is cached.
    fn gathered(&self, op: &Op, home: &Layout, all: &[&Op]) -> Option<Layout> {
        let OpKind::Store { .. } = op.kind else { return None };
        let elem = self.program.ty(accessed(op)).elem()?;
        let layout = self.coalesced(op, all);
        let more = self.piece(op, &layout) > self.piece(op, home);
        let bytes = self.program.ty(op.args[1]).numel() * self.element_bytes(op);
        let fits = self.cluster == 0 && bytes <= self.target.max_shared() / 2;
        let pays = home.num_regs() >= MIN_STORES && matches!(Way::of(home, &layout, elem), Way::Vectors(_));
        (more && fits && pays).then_some(layout)
    }

    /// The axis along which the addresses of an access are contiguous; the last where none is.
    fn fast_axis(&self, op: &Op) -> usize {
        let run = &self.facts[op.args[1].index()].run;
        let last = run.len().saturating_sub(1);
        (0..run.len()).rev().max_by_key(|&a| (run[a], a == last)).unwrap_or(0)
    }

    /// Whether neighbouring lanes access memory that is not adjacent, though some of it is.
    fn scatters(&self, op: &Op, home: &Layout) -> bool {
        let (run, fast) = (&self.facts[op.args[1].index()].run, self.fast_axis(op));
        let used = home.lanes().iter().chain(home.regs()).find(|b| **b != 0);
        let along = used.and_then(|b| (0..run.len()).find(|&a| home.axis_mask(a) & b != 0));
        run[fast] > 1 && along.is_some_and(|a| a != fast && run[a] == 1)
    }
}

/// Along which axis an access is contiguous, and in which layout it is done.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let plan = seen.plan;
    let is_access = matches!(op.kind, OpKind::Load { .. } | OpKind::Store { .. });
    if !is_access || plan.program.ty(op.args[1]).rank() == 0 {
        return Vec::new();
    }
    let fast = plan.fast_axis(op);
    let memory = match plan.facts[op.args[1].index()].run.get(fast) {
        Some(1) | None => "not contiguous".to_owned(),
        Some(run) => format!("runs of {run} along axis {fast}"),
    };
    let through = match plan.access.contains_key(&std::ptr::from_ref(op)) {
        true => format!("through {}", plan.access(op)),
        false => format!("in the layout of %{}", seen.name(accessed(op))),
    };
    vec![format!("{memory}, {through}")]
}
