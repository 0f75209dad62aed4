//! What is decided about a program before any instruction is written: tables by value and by operation, each filled by
//! one pass.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Param, Program, Region, Shape, Value};

use super::assign_layouts::Origin;
use super::axis::{self, Axis};
use super::propagate::Link;
use super::software_pipeline::Pipeline;
use super::vectorize::Move;
use super::{Target, uniform};
use crate::disjoint::Origins;
use crate::layout::{LANE_BITS, Layout, LogShape};

/// Branches, each with the number of one of its regions.
type Arms = SmallVec<[(*const Op, usize); 2]>;

/// The layouts of a program for a number of warps, and what follows from them.
pub(crate) struct Assignment<'a> {
    pub(crate) program: &'a Program,
    pub(crate) facts: Vec<Axis>,
    /// The operation that defines each value, if one does.
    pub(crate) defs: Vec<Option<&'a Op>>,
    /// What is known of offsets.
    pub(crate) origins: Origins<'a>,
    /// By value: whether it is computed where it is used.
    pub(crate) free: Vec<bool>,
    /// By value: whether it comes from a load, which threads may have done at different times.
    pub(crate) loaded: Vec<bool>,
    /// Values that are loaded to shared memory ahead of their use, and held nowhere.
    pub(crate) ahead: FxHashSet<Value>,
    /// By value: whether an operation takes it.
    pub(crate) used: Vec<bool>,
    /// By value: its layout, if one was assigned, and where that comes from.
    pub(super) homes: Vec<Option<(Layout, Origin)>>,
    /// Layouts of the loads and stores that are not done in the home of the value.
    pub(super) access: FxHashMap<*const Op, Layout>,
    /// By load and store: the branches around it, outermost first, each with the region of the branch that it is in.
    arms: FxHashMap<*const Op, Arms>,
    /// How loads and stores move their elements.
    pub(super) moves: FxHashMap<*const Op, Move>,
    pub(crate) target: Target,
    /// Number of warps, as a power of two.
    pub(crate) warps: u32,
    /// Number of blocks that these warps are divided among, as a power of two.
    pub(crate) cluster: u32,
    /// By value: values that have its layout, and how that follows.
    pub(super) links: Vec<Vec<(Value, Link)>>,
    /// By value: whether its layout follows from that of an operand of a product.
    pub(super) operands: Vec<bool>,
}

/// The extents of a tile as powers of two.
pub(crate) fn log_shape(shape: &Shape) -> LogShape {
    shape.iter().map(|d| d.trailing_zeros()).collect()
}

impl<'a> Assignment<'a> {
    /// Decides for `1 << warps` warps in a cluster of `1 << cluster` blocks.
    pub(crate) fn new(program: &'a Program, target: Target, warps: u32, cluster: u32) -> Assignment<'a> {
        let n = program.values.len();
        let mut out = Assignment {
            program,
            facts: axis::analyze(program),
            defs: vec![None; n],
            origins: Origins::new(program),
            free: vec![false; n],
            loaded: uniform::loaded(program),
            ahead: FxHashSet::default(),
            used: vec![false; n],
            homes: vec![None; n],
            access: FxHashMap::default(),
            target,
            arms: FxHashMap::default(),
            moves: FxHashMap::default(),
            warps,
            cluster,
            links: vec![Vec::new(); n],
            operands: vec![false; n],
        };
        let mut ops = Vec::new();
        program.walk(&mut |op| ops.push(op));
        for &op in &ops {
            out.define(op);
        }
        out.enter(&program.body, &mut Arms::new());
        out.assign_layouts(&ops);
        out.coalesce(&ops);
        out.vectorize(&ops);
        let loops = ops.into_iter().filter_map(|op| Pipeline::of(&out, op));
        out.ahead = loops.flat_map(|pipeline| pipeline.loaded().collect::<Vec<Value>>()).collect();
        out
    }

    /// The layout of a value.
    pub(crate) fn home(&self, value: Value) -> Layout {
        match &self.homes[value.index()] {
            Some((layout, _)) => layout.clone(),
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

    /// [`align`] of the program.
    pub(crate) fn align(&self, ptr: Value) -> u64 {
        align(self.program, ptr)
    }

    /// Bits of the thread's number within its block; those above are the block's rank in its cluster.
    pub(crate) fn block_bits(&self) -> usize {
        LANE_BITS + (self.warps - self.cluster) as usize
    }

    /// Whether two loads or stores are in different regions of one branch, of which only one runs.
    pub(super) fn excludes(&self, a: &Op, b: &Op) -> bool {
        let arms = |op: &Op| self.arms.get(&std::ptr::from_ref(op)).map_or(&[][..], |arms| arms);
        arms(a).iter().zip(arms(b)).any(|(a, b)| a.0 == b.0 && a.1 != b.1)
    }

    /// Notes the branches around the loads and stores of a region.
    fn enter(&mut self, region: &'a Region, arms: &mut Arms) {
        for op in &region.ops {
            if let OpKind::Load { .. } | OpKind::Store { .. } = op.kind {
                self.arms.insert(std::ptr::from_ref(op), arms.clone());
            }
            for (index, inner) in op.regions.iter().enumerate() {
                let outer = arms.len();
                arms.extend((op.kind == OpKind::If).then_some((std::ptr::from_ref(op), index)));
                self.enter(inner, arms);
                arms.truncate(outer);
            }
        }
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
}

/// The alignment in bytes of what a pointer points to.
pub(super) fn align(program: &Program, ptr: Value) -> u64 {
    let param = program.params.iter().find(|p: &&Param| p.value == ptr);
    let elem = program.ty(ptr).pointee().map_or(1, |e| e.bytes());
    u64::from(param.map_or(elem, |p| p.align.max(elem)))
}

/// The loads and stores of tiles among operations.
pub(crate) fn accesses<'a>(ops: &[&'a Op], program: &Program) -> Vec<&'a Op> {
    let moves = |op: &&&Op| matches!(op.kind, OpKind::Load { .. } | OpKind::Store { .. });
    let tiles = |op: &&&Op| program.ty(op.args[1]).rank() > 0;
    ops.iter().filter(moves).filter(tiles).copied().collect()
}

/// The tile that an access moves.
pub(crate) fn accessed(op: &Op) -> Value {
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
