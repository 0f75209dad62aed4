//! Layout assignment: which thread holds which elements of each tile.
//!
//! Products of the matrix unit have its layout. Then loads and stores are the anchors, the largest tiles first: each
//! gets a blocked layout that follows its contiguous axis, and the layout spreads from it through the operations that
//! relate elements one to one, and into the operands of broadcasts and the results of reductions as a slice. Tiles that
//! nothing reaches get a blocked layout of their own. Tiles that are computed from indices and scalars alone are not
//! held anywhere: each use computes them in the layout that it wants; a reduction, in that of a tile beside it.
//!
//! A layout is written as what makes up each axis, neighbours first: `[4 regs, 32 lanes]` are 4 neighbours in a thread,
//! and 32 such groups side by side in the lanes of a warp.
//!
//! ```text
//! kernel @row_sums(%x: ptr<bf16> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %r = range 0 16
//!   %rows = expand_dims %r axis 1
//!   %c = range 0 128
//!   %cols = expand_dims %c axis 0
//!   %width = const 128 : tile<16x1xi32>
//!   %begin = map mul %rows, %width
//!   %a = broadcast %begin [16, 128]
//!   %b = broadcast %cols [16, 128]
//!   %at = map add %a, %b
//!   %v = load %x, %at
//!   %w = cast %v f32
//!   %s = reduce sum %w axis 1
//!   store %y, %r, %s
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 32 registers a thread
//! kernel @row_sums(%x: ptr<bf16> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %r = range 0 16                  // layout: computed at each use
//!   %c = range 0 128                 // layout: computed at each use
//!   %cols = expand_dims %c axis 0    // layout: computed at each use
//!   %0 = const 128 : tile<16xi32>
//!   %1 = map mul %r, %0              // layout: computed at each use
//!   %begin = expand_dims %1 axis 1   // layout: computed at each use
//!   %a = broadcast %begin [16, 128]  // layout: computed at each use
//!   %b = broadcast %cols [16, 128]   // layout: computed at each use
//!   %at = map add %a, %b             // layout: computed at each use
//!   %v = load %x, %at                // layout: [2 lanes, 4 warps, 2 regs] x [8 regs, 16 lanes], anchor
//!   %w = cast %v f32                 // layout: [2 lanes, 4 warps, 2 regs] x [8 regs, 16 lanes], as %v
//!   %s = reduce sum %w axis 1        // layout: [2 lanes, 4 warps, 2 regs] in 16 lanes, as %w
//!   store %y, %r, %s
//! }
//! ```

use tilefuse_block::{Op, OpKind, Shape, Value};

use super::assign::{Assignment, accessed, accesses, log_shape};
use super::dot;
use super::passes::{Seen, unique};
use super::propagate::Link;
use crate::layout::{Accumulator, Blocked, Layout, LogShape};

/// Why a value has its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is what the matrix unit leaves.
    Product,
    /// A load or store is fast in it.
    Anchor,
    /// It is as good as any.
    Default,
    /// It follows from this neighbour's.
    Follows(Value),
}

impl<'a> Assignment<'a> {
    /// Assigns the layouts of all tiles.
    pub(crate) fn assign_layouts(&mut self, ops: &[&'a Op]) {
        self.link_region(&self.program.body, None);
        self.find_operands(ops);
        self.spread_products(ops);
        self.spread_anchors(ops);
        self.spread_rest(ops);
        self.place_reduced(ops);
    }

    fn spread_products(&mut self, ops: &[&'a Op]) {
        for &op in ops {
            if let Some(unit) = dot::unit(self.program, op)
                && self.homes[op.results[0].index()].is_none()
            {
                let layout = self.accumulator(op, unit);
                self.spread(op.results[0], layout, Origin::Product);
            }
        }
    }

    /// The layout of the sums of a product that the matrix unit computes.
    pub(crate) fn accumulator(&self, op: &Op, unit: dot::Unit) -> Layout {
        let shape = &self.program.ty(op.results[0]).shape;
        let (by_rows, grouped) = (self.reduces_products(), self.is_grouped(op));
        let how = Accumulator { rows: unit.rows(), warps: self.warps, by_rows, grouped };
        Layout::accumulator(&log_shape(shape), &how)
    }

    /// Whether four warps compute a product together.
    pub(crate) fn is_grouped(&self, op: &Op) -> bool {
        dot::is_grouped(self.program, op, self.target, self.warps - self.cluster)
    }

    /// What the beginning of shared memory for operands must be a multiple of, in bytes.
    pub(crate) fn shared_align(&self) -> u64 {
        let mut grouped = false;
        self.program.walk(&mut |op| grouped |= self.is_grouped(op));
        if grouped { dot::Staged::PANEL_ALIGN } else { 16 }
    }

    /// Whether rows of a product are reduced: then rows of all lie in one warp each, as those of products of products
    /// must.
    pub(crate) fn reduces_products(&self) -> bool {
        let mut found = false;
        self.program.walk(&mut |op| {
            if dot::unit(self.program, op).is_some() {
                let shape = &self.program.ty(op.results[0]).shape;
                found |= self.reduced(shape) >> (shape.len() - 1) & 1 == 1;
            }
        });
        found
    }

    fn spread_anchors(&mut self, ops: &[&'a Op]) {
        let mut anchors = accesses(ops, self.program);
        anchors.sort_by_key(|op| std::cmp::Reverse(self.program.ty(op.args[1]).numel()));
        for &op in &anchors {
            let value = accessed(op);
            if self.homes[value.index()].is_none() {
                let layout = self.coalesced(op, &anchors);
                self.spread(value, layout, Origin::Anchor);
            }
        }
    }

    fn spread_rest(&mut self, ops: &[&'a Op]) {
        for &op in ops {
            let values = op.results.iter().chain(op.args.iter());
            let tiles: Vec<Value> = values.copied().filter(|&v| self.program.ty(v).rank() > 0).collect();
            for value in tiles {
                if self.homes[value.index()].is_none() && !self.free[value.index()] {
                    let layout = self.fallback(value);
                    self.spread(value, layout, Origin::Default);
                }
            }
        }
    }

    /// Tiles that are reduced and held nowhere are computed in the layout of a tile that is: of one that, reduced likewise,
    /// is laid out as their result.
    fn place_reduced(&mut self, ops: &[&'a Op]) {
        for op in ops {
            let (OpKind::Reduce { axis, .. }, [operand, ..]) = (&op.kind, &op.args[..]) else { continue };
            let Some((result, _)) = &self.homes[op.results[0].index()] else { continue };
            if !self.free[operand.index()] || self.homes[operand.index()].is_some() {
                continue;
            }
            let shape = &self.program.ty(*operand).shape;
            let like = self.homes.iter().zip(&self.program.values).position(|(home, value)| {
                let layout = home.as_ref().filter(|_| value.ty.shape == *shape).map(|(layout, _)| layout);
                layout.is_some_and(|layout| layout.slice(usize::from(*axis)) == *result)
            });
            if let Some(like) = like {
                let layout = self.homes[like].as_ref().map(|(layout, _)| layout.clone());
                self.homes[operand.index()] =
                    layout.map(|layout| (layout, Origin::Follows(Value(like as u32))));
            }
        }
    }

    /// A blocked layout for a tile that no access shapes.
    pub(crate) fn fallback(&self, value: Value) -> Layout {
        let shape = &self.program.ty(value).shape;
        if shape.is_empty() {
            return Layout::scalar(self.warps);
        }
        let shape = log_shape(shape);
        let how = Blocked {
            fast: shape.len() - 1,
            vector: self.per_thread(&shape).min(2),
            reduced: self.reduced(&self.program.ty(value).shape),
            warps: self.warps,
        };
        Layout::blocked(&shape, &how)
    }

    /// Elements that each thread holds, as a power of two.
    pub(crate) fn per_thread(&self, shape: &LogShape) -> u32 {
        shape.iter().sum::<u32>().saturating_sub(5 + self.warps)
    }

    /// The axes along which some tile of this shape is reduced, as a bit set.
    pub(crate) fn reduced(&self, shape: &Shape) -> u32 {
        let mut axes = 0;
        self.program.walk(&mut |op| {
            let axis = match op.kind {
                OpKind::Reduce { axis, .. } | OpKind::ReduceWith { axis } | OpKind::Scan { axis, .. } => {
                    Some(axis)
                }
                _ => None,
            };
            if let Some(axis) = axis
                && self.program.ty(op.args[0]).shape == *shape
            {
                axes |= 1 << axis;
            }
        });
        axes
    }

    /// Gives `layout` to `value`, and what follows from it to all that are linked and have none yet.
    fn spread(&mut self, value: Value, layout: Layout, origin: Origin) {
        self.homes[value.index()] = Some((layout, origin));
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            let Some((layout, _)) = self.homes[value.index()].clone() else { continue };
            for (other, link) in self.links[value.index()].clone() {
                let ty = self.program.ty(other);
                // Each use of a free value computes it in a layout of its own.
                if self.homes[other.index()].is_some() || ty.rank() == 0 || self.free[other.index()] {
                    continue;
                }
                let shape = log_shape(&ty.shape);
                let layout = match link {
                    Link::Same => layout.reshape(&shape),
                    Link::Permute(perm) => layout.permute(&perm),
                    Link::Unpermute(perm) => layout.unpermute(&perm),
                    Link::Unbroadcast => layout.unbroadcast(&shape),
                    Link::Slice(axis) => layout.slice(axis),
                    Link::Join => layout.join(),
                };
                self.homes[other.index()] = Some((layout, Origin::Follows(value)));
                work.push(other);
            }
        }
    }
}

/// What was decided about the tiles that an operation defines.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    if let OpKind::Const(_) = op.kind {
        return Vec::new();
    }
    let inside = op.regions.iter().flat_map(|region| &region.args);
    let is_tile = |v: &&Value| seen.plan.program.ty(**v).rank() > 0;
    let tiles: Vec<Value> = op.results.iter().chain(inside).filter(is_tile).copied().collect();
    let all = tiles.iter().map(|&value| (value, note(seen, value))).collect();
    unique(seen, all, op.results.len() == 1 && op.regions.is_empty())
}

fn note(seen: &Seen<'_>, value: Value) -> String {
    let plan = seen.plan;
    if plan.free[value.index()] {
        return "computed at each use".to_owned();
    }
    let origin = match plan.homes[value.index()] {
        Some((_, Origin::Product)) => "of the matrix unit".to_owned(),
        Some((_, Origin::Anchor)) => "anchor".to_owned(),
        Some((_, Origin::Follows(from))) => format!("as %{}", seen.name(from)),
        Some((_, Origin::Default)) | None => "nothing shapes it".to_owned(),
    };
    format!("{}, {origin}", plan.home(value))
}
