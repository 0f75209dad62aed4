//! Which layout each tile of a program has.
//!
//! Loads and stores are the anchors, the largest tiles first: each gets a blocked layout that follows its contiguous
//! axis, and the layout spreads from it through the operations that relate elements one to one, and into the operands
//! of broadcasts and the results of reductions as a slice. Tiles that nothing reaches get a blocked layout of their
//! own. Tiles that are computed from indices and scalars alone are not held anywhere: each use computes them in the
//! layout that it wants.

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{Op, OpKind, Param, Program, Region, Shape, Value};

use super::axis::{self, Axis};
use super::pipeline::Pipeline;
use super::{Target, dot, uniform};
use crate::layout::{Accumulator, Blocked, LANE_BITS, Layout, LogShape};

/// The layouts of a program for a number of warps.
pub(crate) struct Assignment<'a> {
    pub(crate) program: &'a Program,
    pub(crate) facts: Vec<Axis>,
    /// The operation that defines each value, if one does.
    pub(crate) defs: Vec<Option<&'a Op>>,
    /// By value: whether it is computed where it is used.
    pub(crate) free: Vec<bool>,
    /// By value: whether it comes from a load, which threads may have done at different times.
    pub(crate) loaded: Vec<bool>,
    /// Values that are loaded to shared memory ahead of their use, and held nowhere.
    pub(crate) ahead: FxHashSet<Value>,
    /// By value: whether an operation takes it.
    pub(crate) used: Vec<bool>,
    homes: Vec<Option<Layout>>,
    /// Layouts of the loads and stores that are not done in the home of the value.
    access: FxHashMap<*const Op, Layout>,
    pub(crate) target: Target,
    /// Number of warps, as a power of two.
    pub(crate) warps: u32,
    /// Number of blocks that these warps are divided among, as a power of two.
    pub(crate) cluster: u32,
    /// By value: values that have its layout, and how that follows.
    links: Vec<Vec<(Value, Link)>>,
}

/// How a layout carries over to a neighbour.
#[derive(Clone)]
enum Link {
    /// The same elements in the same order, perhaps in another shape.
    Same,
    /// From a permutation's operand to its result.
    Permute(Vec<u8>),
    /// From a permutation's result to its operand.
    Unpermute(Vec<u8>),
    /// From a broadcast's result to its operand.
    Unbroadcast,
    /// From a reduction's operand to its result.
    Slice(usize),
    /// From an operand of a join to its result.
    Join,
}

/// The extents of a tile as powers of two.
pub(crate) fn log_shape(shape: &Shape) -> LogShape {
    shape.iter().map(|d| d.trailing_zeros()).collect()
}

impl<'a> Assignment<'a> {
    /// Assigns layouts for `1 << warps` warps in a cluster of `1 << cluster` blocks.
    pub(crate) fn new(program: &'a Program, target: Target, warps: u32, cluster: u32) -> Assignment<'a> {
        let n = program.values.len();
        let mut out = Assignment {
            program,
            facts: axis::analyze(program),
            defs: vec![None; n],
            free: vec![false; n],
            loaded: uniform::loaded(program),
            ahead: FxHashSet::default(),
            used: vec![false; n],
            homes: vec![None; n],
            access: FxHashMap::default(),
            target,
            warps,
            cluster,
            links: vec![Vec::new(); n],
        };
        let mut ops = Vec::new();
        program.walk(&mut |op| ops.push(op));
        for &op in &ops {
            out.define(op);
        }
        out.link_region(&program.body, None);
        out.spread_products(&ops);
        out.spread_anchors(&ops);
        out.spread_rest(&ops);
        let loops = ops.into_iter().filter_map(|op| Pipeline::of(&out, op));
        out.ahead = loops.flat_map(|pipeline| pipeline.loaded().collect::<Vec<Value>>()).collect();
        out
    }

    /// The layout of a value.
    pub(crate) fn home(&self, value: Value) -> Layout {
        match &self.homes[value.index()] {
            Some(layout) => layout.clone(),
            None => self.fallback(value),
        }
    }

    /// The layout in which a load or store accesses memory.
    pub(crate) fn access(&self, op: &Op) -> Layout {
        match self.access.get(&std::ptr::from_ref(op)) {
            Some(layout) => layout.clone(),
            None => self.home(accessed(op)),
        }
    }

    /// The alignment in bytes of what a pointer points to.
    pub(crate) fn align(&self, ptr: Value) -> u64 {
        let param = self.program.params.iter().find(|p: &&Param| p.value == ptr);
        let elem = self.program.ty(ptr).pointee().map_or(1, |e| e.bytes());
        u64::from(param.map_or(elem, |p| p.align.max(elem)))
    }

    /// Bits of the thread's number within its block; those above are the block's rank in its cluster.
    pub(crate) fn block_bits(&self) -> usize {
        LANE_BITS + (self.warps - self.cluster) as usize
    }

    fn define(&mut self, op: &'a Op) {
        let free = |v: &Value| self.program.ty(*v).rank() == 0 || self.free[v.index()];
        let is_free = match op.kind {
            OpKind::Const(_) | OpKind::ProgramId(_) | OpKind::NumPrograms(_) => true,
            OpKind::Range { .. } | OpKind::Splat(_) => true,
            OpKind::ExpandDims(_) | OpKind::Broadcast(_) | OpKind::Reshape(_) | OpKind::Permute(_) => {
                free(&op.args[0])
            }
            OpKind::Join | OpKind::Split | OpKind::Assume(_) => op.args.iter().all(free),
            OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_) => op.args.iter().all(free),
            _ => false,
        };
        op.args.iter().for_each(|arg| self.used[arg.index()] = true);
        for result in &op.results {
            self.defs[result.index()] = Some(op);
            self.free[result.index()] = is_free;
        }
    }

    fn link(&mut self, a: Value, b: Value, forward: Link, back: Option<Link>) {
        self.links[a.index()].push((b, forward));
        if let Some(back) = back {
            self.links[b.index()].push((a, back));
        }
    }

    fn link_region(&mut self, region: &'a Region, owner: Option<&'a Op>) {
        for op in &region.ops {
            self.link_op(op);
            for inner in &op.regions {
                self.link_region(inner, Some(op));
            }
            if let (OpKind::Yield, Some(owner)) = (&op.kind, owner) {
                self.link_yield(op, region, owner);
            }
        }
    }

    fn link_yield(&mut self, op: &'a Op, region: &'a Region, owner: &'a Op) {
        for (i, &next) in op.args.iter().enumerate() {
            let others = match owner.kind {
                OpKind::For => vec![owner.args.get(i + 3), region.args.get(i + 1), owner.results.get(i)],
                OpKind::If => vec![owner.results.get(i)],
                // The first region of a loop yields its condition.
                OpKind::While if owner.regions.len() == 2 && std::ptr::eq(region, &owner.regions[1]) => {
                    let first = owner.regions[0].args.get(i);
                    vec![owner.args.get(i), first, region.args.get(i), owner.results.get(i)]
                }
                _ => Vec::new(),
            };
            for &other in others.into_iter().flatten() {
                self.link(next, other, Link::Same, Some(Link::Same));
            }
        }
    }

    fn link_op(&mut self, op: &'a Op) {
        let result = op.results.first().copied();
        match (&op.kind, result) {
            (OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_), Some(r)) => self.link_all(r, &op.args),
            (OpKind::ExpandDims(_) | OpKind::Reshape(_), Some(r)) => self.link_all(r, &op.args),
            (OpKind::Load { .. }, Some(r)) => self.link_all(r, &op.args[1..]),
            (OpKind::Store { .. }, _) => self.link_all(op.args[1], &op.args[2..]),
            (OpKind::Permute(perm), Some(r)) => {
                let perm = perm.to_vec();
                self.link(op.args[0], r, Link::Permute(perm.clone()), Some(Link::Unpermute(perm)));
            }
            (OpKind::ReduceWith { axis }, Some(r)) => {
                self.link_all(op.args[0], &op.args[1..]);
                self.link_all(r, &op.results[1..]);
                self.link(op.args[0], r, Link::Slice(usize::from(*axis)), None);
            }
            (OpKind::Scan { .. }, Some(r)) => {
                self.link_all(r, &op.args);
                self.link_all(r, &op.results[1..]);
            }
            (OpKind::Gather { .. }, Some(r)) => self.link_all(r, &op.args[1..]),
            (OpKind::Histogram { .. }, _) => self.link_all(op.args[0], &op.args[1..]),
            (OpKind::Atomic { .. } | OpKind::AtomicCas { .. }, Some(r)) => self.link_all(r, &op.args[1..]),
            (OpKind::Assert { .. }, _) => self.link_all(op.args[0], &op.args[1..]),
            (OpKind::Dot { .. }, Some(r)) => self.link_all(r, &op.args[2..]),
            (OpKind::Assume(_), Some(r)) => self.link_all(r, &op.args),
            (OpKind::Join, Some(r)) => {
                let axis = self.program.ty(r).rank() - 1;
                for &arg in &op.args {
                    self.link(r, arg, Link::Slice(axis), Some(Link::Join));
                }
            }
            (OpKind::Split, Some(_)) => {
                let axis = self.program.ty(op.args[0]).rank() - 1;
                for &half in &op.results {
                    self.link(op.args[0], half, Link::Slice(axis), Some(Link::Join));
                }
            }
            (OpKind::Broadcast(_), Some(r)) => self.link(r, op.args[0], Link::Unbroadcast, None),
            (OpKind::Reduce { axis, .. }, Some(r)) => {
                self.link_all(op.args[0], &op.args[1..]);
                self.link(op.args[0], r, Link::Slice(usize::from(*axis)), None);
            }
            _ => {}
        }
    }

    fn link_all(&mut self, a: Value, others: &[Value]) {
        for &b in others {
            self.link(a, b, Link::Same, Some(Link::Same));
        }
    }

    /// Products that the matrix unit computes have its layout.
    fn spread_products(&mut self, ops: &[&'a Op]) {
        for &op in ops {
            if let Some(unit) = dot::unit(self.program, op)
                && self.homes[op.results[0].index()].is_none()
            {
                let layout = self.accumulator(op, unit);
                self.spread(op.results[0], layout);
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
        let mut anchors: Vec<&Op> = ops
            .iter()
            .copied()
            .filter(|op| matches!(op.kind, OpKind::Load { .. } | OpKind::Store { .. }))
            .filter(|op| self.program.ty(op.args[1]).rank() > 0)
            .collect();
        anchors.sort_by_key(|op| std::cmp::Reverse(self.program.ty(op.args[1]).numel()));
        for op in anchors.clone() {
            let fast = self.fast_axis(op);
            let own = || self.blocked(op, fast, &anchors);
            let value = accessed(op);
            match &self.homes[value.index()] {
                None => {
                    let layout = own();
                    self.spread(value, layout);
                }
                Some(home) if self.mismatch(op, home, fast) => {
                    let layout = own();
                    self.access.insert(std::ptr::from_ref(op), layout);
                }
                Some(_) => {}
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
                    self.spread(value, layout);
                }
            }
        }
    }

    /// A blocked layout for a tile that no access shapes.
    fn fallback(&self, value: Value) -> Layout {
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

    fn blocked(&self, op: &Op, fast: usize, anchors: &[&Op]) -> Layout {
        let shape = &self.program.ty(op.args[1]).shape;
        let alike = anchors.iter().filter(|o| self.program.ty(o.args[1]).shape == *shape);
        let vector = alike.clone().map(|o| self.width(o, fast)).max().unwrap_or(0);
        // Neighbours that alignment keeps apart are read by neighbouring lanes.
        let least = alike.filter_map(|o| self.unaligned_width(o, fast)).min();
        let vector = least.map_or(vector, |least| vector.min(least));
        let shape_log = log_shape(shape);
        let vector = vector.min(self.per_thread(&shape_log));
        let how = Blocked { fast, vector, reduced: self.reduced(shape), warps: self.warps };
        Layout::blocked(&shape_log, &how)
    }

    /// Elements that each thread holds, as a power of two.
    fn per_thread(&self, shape: &LogShape) -> u32 {
        shape.iter().sum::<u32>().saturating_sub(5 + self.warps)
    }

    /// The axes along which some tile of this shape is reduced, as a bit set.
    fn reduced(&self, shape: &Shape) -> u32 {
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

    /// The axis along which the addresses of an access are contiguous; the last where none is.
    fn fast_axis(&self, op: &Op) -> usize {
        let run = &self.facts[op.args[1].index()].run;
        let last = run.len().saturating_sub(1);
        (0..run.len()).rev().max_by_key(|&a| (run[a], a == last)).unwrap_or(0)
    }

    fn mismatch(&self, op: &Op, home: &Layout, fast: usize) -> bool {
        let run = &self.facts[op.args[1].index()].run;
        let used = home.lanes().iter().chain(home.regs()).find(|b| **b != 0);
        let along = used.and_then(|b| (0..run.len()).find(|&a| home.axis_mask(a) & b != 0));
        run[fast] > 1 && along.is_some_and(|a| a != fast && run[a] == 1)
    }

    /// Elements that one instruction moves, and whether the mask is the same for all of them.
    pub(crate) fn group(&self, op: &Op, layout: &Layout) -> (usize, bool) {
        let along = |a: usize| layout.vector(a).min(self.width(op, a));
        let Some(axis) = (0..layout.shape().len()).max_by_key(|&a| along(a)) else { return (1, true) };
        let group = 1usize << along(axis);
        let same = mask_of(op).map_or(u64::MAX, |mask| self.facts[mask.index()].same[axis]);
        (group, group as u64 <= same)
    }

    /// How many elements one instruction of an access may move along an axis, as a power of two. Where a mask keeps
    /// only some of them, a load reads all: they share aligned bytes of memory that is there.
    pub(crate) fn width(&self, op: &Op, axis: usize) -> u32 {
        let elem = self.program.ty(op.args[0]).pointee().map_or(1, |e| u64::from(e.bytes()));
        let offsets = &self.facts[op.args[1].index()];
        let mut group = offsets.run[axis].min(16 / elem);
        while group > 1 {
            let mut starts = vec![1; offsets.run.len()];
            starts[axis] = group;
            if (offsets.div_at(&starts) * elem).min(self.align(op.args[0])) >= group * elem {
                break;
            }
            group /= 2;
        }
        group.trailing_zeros()
    }

    /// [`Assignment::width`] of an access to neighbours, if they are not aligned for wider instructions.
    fn unaligned_width(&self, op: &Op, axis: usize) -> Option<u32> {
        let elem = self.program.ty(op.args[0]).pointee().map_or(1, |e| u64::from(e.bytes()));
        let aligned = self.facts[op.args[1].index()].run[axis].min(16 / elem).trailing_zeros();
        let width = self.width(op, axis);
        (width < aligned).then_some(width)
    }

    /// Gives `layout` to `value`, and what follows from it to all that are linked and have none yet.
    fn spread(&mut self, value: Value, layout: Layout) {
        self.homes[value.index()] = Some(layout);
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            let Some(layout) = self.homes[value.index()].clone() else { continue };
            for (other, link) in self.links[value.index()].clone() {
                let ty = self.program.ty(other);
                // Each use of a free value computes it in a layout of its own.
                if self.homes[other.index()].is_some() || ty.rank() == 0 || self.free[other.index()] {
                    continue;
                }
                let shape = log_shape(&ty.shape);
                self.homes[other.index()] = Some(match link {
                    Link::Same => layout.reshape(&shape),
                    Link::Permute(perm) => layout.permute(&perm),
                    Link::Unpermute(perm) => layout.unpermute(&perm),
                    Link::Unbroadcast => layout.unbroadcast(&shape),
                    Link::Slice(axis) => layout.slice(axis),
                    Link::Join => layout.join(),
                });
                work.push(other);
            }
        }
    }
}

/// The tile that an access moves.
fn accessed(op: &Op) -> Value {
    match op.kind {
        OpKind::Store { .. } => op.args[2],
        _ => op.results[0],
    }
}

/// The mask of a load or store.
pub(crate) fn mask_of(op: &Op) -> Option<Value> {
    match op.kind {
        OpKind::Load { masked: true, .. } => op.args.get(2).copied(),
        OpKind::Store { masked: true, .. } => op.args.get(3).copied(),
        _ => None,
    }
}
