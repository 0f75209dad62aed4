//! What loops a block program becomes on the host: a plan without any LLVM in it.
//!
//! Tile values are not stored; they are computed element by element where they are needed, inside the loops of the
//! operations that need them. These are the *sinks*: stores, reductions, atomic operations, values carried around a
//! loop, and values that are worth keeping. Each sink runs through the elements of its tile. Sinks with the same
//! elements share one loop nest, a *region*; consecutive regions share their outer, *parallel* loops, a *group*. What
//! a sink produces lies in a *slot*: registers or scratch memory. Operations whose elements do not follow position
//! bits (products, scans and others) are sinks without elements, which take whole tiles from slots and leave whole
//! tiles in slots; they, branches, loops with conditions and what has to stay in order with them are in no group with
//! anything else.

mod access_order;
pub(crate) mod bit_affine;
mod bits;
mod build;
mod control;
pub(super) mod demanded;
pub(super) mod lanes;
pub(super) mod loop_groups;
pub(super) mod materialize;
mod prefetch;
mod product;
mod register_blocks;
pub(super) mod slot_layout;
mod whole;
mod work;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Elem, Op, Program, Shape, Value};

pub(crate) use bits::{Bit, Classes, Map, ONE, ZERO, axis_ranges, operands, shape_bits};
pub(crate) use demanded::Atom;
pub(crate) use prefetch::Prefetch;
pub(crate) use product::Direct;

/// Index of a sink in [`Plan::sinks`].
pub(crate) type SinkId = usize;
/// Index of a loop in [`Plan::loops`].
pub(crate) type LoopId = usize;
/// Index of a list of operations: 0 is the program's body, `l + 1` the body of loop `l`.
pub(crate) type BlockId = usize;
/// Index of a slot in [`Plan::slots`].
pub(crate) type SlotId = usize;
/// Index of a region in [`Plan::regions`].
pub(crate) type RegionId = usize;

/// Where a value comes from.
#[derive(Clone, Copy)]
pub(crate) enum Def<'p> {
    /// Nothing defines it.
    None,
    /// The parameter at this position.
    Param(usize),
    /// An operation with one result.
    Op(&'p Op),
    /// The counter of a loop.
    Induction(LoopId),
    /// A value that a loop carries, inside or after it.
    Carried,
}

/// What a sink does with the elements.
#[derive(Clone, Copy)]
pub(crate) enum SinkKind<'p> {
    /// Stores them.
    Store(&'p Op),
    /// Combines them along an axis.
    Reduce(&'p Op),
    /// Writes them to a slot.
    Materialize,
    /// Copies them from another slot.
    Copy(SlotId),
    /// Changes memory at once, element by element, and writes what was there before to a slot.
    Atomic(&'p Op),
    /// Runs an operation on whole tiles that lie in slots, row-major. It has no iteration bits.
    Whole(&'p Op),
}

/// An operation that demands elements.
pub(crate) struct Sink<'p> {
    pub(crate) kind: SinkKind<'p>,
    /// The values that it needs at each position, the written or combined one first.
    pub(crate) roots: SmallVec<[Value; 3]>,
    /// The iteration bit of each position bit.
    pub(crate) bits: Map,
    pub(crate) shape: Shape,
    pub(crate) block: BlockId,
    /// The slot that it writes, if any.
    pub(crate) slot: Option<SlotId>,
    /// The slots that a [`SinkKind::Whole`] writes.
    pub(crate) outs: SmallVec<[SlotId; 2]>,
    /// Runs alone, in program order with respect to memory.
    pub(crate) barrier: bool,
    /// Iteration bits that are combined.
    pub(crate) reduced: SmallVec<[Bit; 8]>,
    /// What must hold for an element to matter; `None` where no element matters.
    pub(crate) guard: Option<Vec<Atom>>,
    /// As `guard`, of the elements that it writes.
    pub(crate) needed: Option<Vec<Atom>>,
}

/// What a plan asks of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    /// Logarithm of the number of lanes of a full vector.
    pub(crate) width: u32,
    /// How many registers hold vectors.
    pub(crate) count: u32,
    /// Whether there are instructions that add up products of two neighbouring `bf16`.
    pub(crate) vnni2: bool,
    /// The same of four 8-bit integers.
    pub(crate) vnni4: bool,
}

impl Registers {
    /// Whether there are enough to compute with four vectors at once, or with a block of 24.
    pub(crate) fn are_many(self) -> bool {
        self.count >= 32
    }
}

/// Those of x86 processors, by their width.
impl From<u32> for Registers {
    fn from(width: u32) -> Registers {
        let count = if width > 3 { 32 } else { 16 };
        Registers { width, count, vnni2: false, vnni4: false }
    }
}

/// Where the elements of a value lie between regions.
pub(crate) struct Slot {
    pub(crate) elem: Elem,
    /// Whether elements lie as in memory where that is narrower than in registers.
    pub(crate) narrow: bool,
    /// The iteration bit of each position bit, as the producer has them.
    pub(crate) bits: Map,
    /// For each position bit its weight in the storage index, as a power of two; `None` where the bit belongs to a
    /// loop around producer and consumers.
    pub(crate) weights: SmallVec<[Option<u8>; 12]>,
    /// Whether the elements lie in the order of their positions.
    pub(crate) row_major: bool,
    /// Where it lies.
    pub(crate) place: Place,
}

impl<'p> Sink<'p> {
    fn new(
        kind: SinkKind<'p>,
        roots: SmallVec<[Value; 3]>,
        bits: Map,
        shape: Shape,
        block: BlockId,
    ) -> Sink<'p> {
        Sink {
            kind,
            roots,
            bits,
            shape,
            block,
            slot: None,
            outs: SmallVec::new(),
            barrier: false,
            reduced: SmallVec::new(),
            guard: None,
            needed: None,
        }
    }

    /// The slots that it writes.
    pub(crate) fn made(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.slot.into_iter().chain(self.outs.iter().copied())
    }
}

impl Slot {
    fn new(elem: Elem, bits: Map) -> Slot {
        let (weights, place) = (SmallVec::new(), Place::Local(0));
        Slot { elem, narrow: false, bits, weights, row_major: false, place }
    }
}

/// Storage of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A variable of the function, of so many elements.
    Local(u32),
    /// At this offset in the thread's scratch memory.
    Scratch(u64),
}

/// What a [`Loop`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The body of a counted loop.
    For,
    /// The test of a loop whose body is this one.
    While(LoopId),
    /// What runs where a condition holds; else this one does.
    If(LoopId),
    /// The second region of one of those. It directly follows the first, whose code contains its code.
    Second,
}

/// A region of an operation that has some: of a loop or branch.
pub(crate) struct Loop<'p> {
    pub(crate) op: &'p Op,
    pub(crate) role: Role,
    /// Whether it runs for whole tiles, outside of parallel loops.
    pub(crate) whole: bool,
    pub(crate) body: Vec<Group>,
    /// All sinks in its body, those of inner loops too.
    pub(crate) sinks: Vec<SinkId>,
}

/// An entry of a list of operations.
#[derive(Clone, Copy)]
pub(crate) enum Item {
    Sink(SinkId),
    Loop(LoopId),
}

/// Consecutive regions and loops inside common parallel loops.
#[derive(Default)]
pub(crate) struct Group {
    /// The bits of the parallel loops, without those that regions unroll.
    pub(crate) nest: Nest,
    pub(crate) parts: Vec<Part>,
    /// What must hold for anything inside to matter.
    pub(crate) guard: Vec<Atom>,
}

/// An entry of a group.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Region(RegionId),
    Loop(LoopId),
}

/// Loops over iteration bits.
#[derive(Clone, Default, Debug)]
pub(crate) struct Nest {
    /// Loops, outermost first; the bits of each lowest first. The vector axis, if it has a loop, is the last.
    pub(crate) loops: Vec<Map>,
    /// Whether the last loop continues the unrolled bits and lanes.
    pub(crate) vector_loop: bool,
    /// Bits that are unrolled, lowest first.
    pub(crate) unroll: Map,
    /// Bits that are vector lanes, lowest first.
    pub(crate) lanes: Map,
}

/// Sinks that share one loop nest inside a group.
pub(crate) struct Region {
    pub(crate) sinks: Vec<SinkId>,
    pub(crate) block: BlockId,
    /// Iteration bits without those of the groups around it, lowest first, by axis, outermost first.
    pub(crate) axes: Vec<Map>,
    /// The loops that are not combined, then those that are; lanes and unrolled bits in either.
    pub(crate) nest: Nest,
    /// How many of the nest's loops are not combined.
    pub(crate) free_loops: usize,
    /// How many of the loops after these run over blocks, for each of which accumulators start anew.
    pub(crate) block_loops: usize,
    /// Bits of the groups around it that it unrolls.
    pub(crate) forced: Map,
    /// What must hold for an element to matter.
    pub(crate) guard: Vec<Atom>,
    /// The parallel bits of the groups around it, with the group that each belongs to.
    pub(crate) context: Vec<(usize, Bit)>,
}

/// The plan of a program.
pub(crate) struct Plan<'p> {
    pub(crate) program: &'p Program,
    /// By value.
    pub(crate) defs: Vec<Def<'p>>,
    /// By value: the list of operations that defines it.
    pub(crate) home: Vec<BlockId>,
    /// By value: the position bits that it depends on.
    pub(crate) deps: Vec<u32>,
    pub(crate) sinks: Vec<Sink<'p>>,
    pub(crate) loops: Vec<Loop<'p>>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) slot_of: FxHashMap<Value, SlotId>,
    /// Values that also lie row-major in a slot, for operations on whole tiles.
    pub(crate) rows: FxHashMap<Value, SlotId>,
    /// Operands of products that are read where they lie.
    pub(crate) direct: FxHashMap<Value, Direct>,
    pub(crate) regions: Vec<Region>,
    pub(crate) body: Vec<Group>,
    pub(crate) classes: Classes,
    /// By loop: the list of operations that it stands in.
    pub(crate) parents: Vec<BlockId>,
    /// Bytes of scratch memory that a thread needs.
    pub(crate) scratch: u64,
    /// Logarithm of the number of lanes of a full vector.
    pub(crate) width: u32,
    /// What else there is besides.
    pub(crate) registers: Registers,
}

impl<'p> Plan<'p> {
    /// The operation that defines a value element by element; `None` where it lies in a slot or is no operation's.
    pub(crate) fn pure_op(&self, value: Value) -> Option<&'p Op> {
        match self.defs[value.index()] {
            Def::Op(op) if !self.slot_of.contains_key(&value) => Some(op),
            _ => None,
        }
    }

    /// Visits what is needed to compute `value` at `map`, each value once for each map. Does not look behind slots.
    pub(crate) fn walk(&self, value: Value, map: &[Bit], visit: &mut dyn FnMut(Value, &Map)) {
        let mut seen = FxHashSet::default();
        self.walk_new(value, Map::from_slice(map), &mut seen, &mut |value, map| {
            visit(value, map);
            true
        });
    }

    /// [`Plan::walk`] to what is not in `seen`, for as long as `visit` says. Whether it always did.
    fn walk_new(
        &self,
        value: Value,
        map: Map,
        seen: &mut FxHashSet<(Value, Map)>,
        visit: &mut dyn FnMut(Value, &Map) -> bool,
    ) -> bool {
        let mut open = vec![(value, map)];
        while let Some((value, map)) = open.pop() {
            if !seen.insert((value, map.clone())) {
                continue;
            }
            if !visit(value, &map) {
                return false;
            }
            if let Some(op) = self.pure_op(value) {
                open.extend(operands(self.program, op, value, &map));
            }
        }
        true
    }

    /// What a sink computes, at which maps: of a value that it makes for others what that is made of.
    fn demands(&self, sink: SinkId) -> SmallVec<[(Value, Map); 3]> {
        let sink = &self.sinks[sink];
        match (self.own_op(sink), sink.roots.first()) {
            (Some(op), Some(&root)) => operands(self.program, op, root, &sink.bits),
            _ => sink.roots.iter().map(|&root| (root, sink.bits.clone())).collect(),
        }
    }

    /// Whether it matters where an instance stands along the second or third axis of the grid.
    pub(crate) fn uses_outer_axes(&self) -> bool {
        use tilefuse_block::OpKind;
        let mut outer = false;
        self.program.walk(&mut |op| {
            outer |= match op.kind {
                OpKind::ProgramId(axis) => axis > 0,
                OpKind::Print { .. } | OpKind::Assert { .. } => true,
                _ => false,
            };
        });
        outer
    }

    /// The operation whose result a sink computes for everybody else, if it is such a sink.
    pub(crate) fn own_op(&self, sink: &Sink<'p>) -> Option<&'p Op> {
        let root = *sink.roots.first()?;
        match (sink.kind, self.defs[root.index()]) {
            (SinkKind::Materialize, Def::Op(op))
                if sink.slot.is_some() && self.slot_of.get(&root) == sink.slot.as_ref() =>
            {
                Some(op)
            }
            _ => None,
        }
    }

    /// The values that a region computes element by element and keeps.
    pub(crate) fn materialized_by(&self, region: &Region) -> impl Iterator<Item = Value> {
        let sinks = region.sinks.iter().map(|&sink| &self.sinks[sink]);
        sinks.filter(|sink| self.own_op(sink).is_some()).filter_map(|sink| sink.roots.first().copied())
    }

    /// Visits what a sink needs, the value that it makes for others first.
    pub(crate) fn walk_sink(&self, sink: SinkId, visit: &mut dyn FnMut(Value, &Map)) {
        let own = &self.sinks[sink];
        if let (Some(_), Some(&root)) = (self.own_op(own), own.roots.first()) {
            visit(root, &own.bits);
        }
        for (root, map) in self.demands(sink) {
            self.walk(root, &map, visit);
        }
    }

    /// The slots that a sink reads, and at which maps.
    pub(crate) fn slot_uses(&self, sink: SinkId) -> Vec<(SlotId, Map)> {
        let mut out = Vec::new();
        if let SinkKind::Copy(from) = self.sinks[sink].kind {
            out.push((from, self.classes.canonical(&self.sinks[sink].bits)));
        }
        if let SinkKind::Whole(op) = self.sinks[sink].kind {
            let slots = op.args.iter().filter_map(|arg| self.rows.get(arg));
            out.extend(slots.map(|&s| (s, self.classes.canonical(&self.slots[s].bits))));
        }
        let own = self.own_op(&self.sinks[sink]).and(self.sinks[sink].slot);
        self.walk_sink(sink, &mut |value, map| {
            if let Some(&slot) = self.slot_of.get(&value)
                && Some(slot) != own
            {
                out.push((slot, self.classes.canonical(map)));
            } else if let Some(slot) = self.gathered(value) {
                // Any element of it, at every position.
                out.push((slot, Map::from_elem(ZERO, self.slots[slot].bits.len())));
            }
        });
        out
    }

    /// The slot from which a value is gathered, if it is.
    pub(crate) fn gathered(&self, value: Value) -> Option<SlotId> {
        match self.defs[value.index()] {
            Def::Op(op) if matches!(op.kind, tilefuse_block::OpKind::Gather { .. }) => {
                self.rows.get(op.args.first()?).copied()
            }
            _ => None,
        }
    }

    /// The slots that are read where a value is computed, apart from its operands'.
    pub(crate) fn reads(&self, value: Value) -> impl Iterator<Item = SlotId> {
        self.slot_of.get(&value).copied().into_iter().chain(self.gathered(value))
    }

    /// Whether list `outer` is `inner` or contains it.
    pub(crate) fn encloses(&self, outer: BlockId, mut inner: BlockId) -> bool {
        while inner != outer {
            match inner.checked_sub(1) {
                Some(l) => inner = self.parents[l],
                None => return false,
            }
        }
        true
    }
}
