//! Accesses that must not move.

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{MemoryOrder, Op, OpKind, Value};

use super::build::Builder;
use super::{BlockId, Def, Loop, SinkId, SinkKind};
use crate::disjoint::{Accessed, Iterations, Origins};

/// What must happen at its place in the program.
#[derive(Clone, Default)]
pub(super) struct InOrder {
    /// Loads of what may be overwritten.
    pub(super) loads: FxHashSet<Value>,
    /// The parameters whose stores and atomic operations meet each other or such a load.
    pub(super) params: FxHashSet<usize>,
}

impl Builder<'_> {
    /// The accesses that must happen at their place in the program, because they meet others in memory.
    pub(super) fn accesses_in_order(&self) -> InOrder {
        let plan = &self.plan;
        let mut stores: FxHashMap<usize, Vec<SinkId>> = FxHashMap::default();
        for (id, sink) in plan.sinks.iter().enumerate() {
            if let SinkKind::Store(op) | SinkKind::Atomic(op) = sink.kind
                && let Ok(param) = self.pointer(op)
            {
                stores.entry(param).or_default().push(id);
            }
        }
        let mut out = InOrder::default();
        if stores.is_empty() {
            return out;
        }
        let origins = Origins::new(plan.program);
        let ordered = plan.sinks.iter().any(|s| matches!(s.kind, SinkKind::Atomic(op) if orders(op)));
        for (index, def) in plan.defs.iter().enumerate() {
            let Def::Op(op) = *def else { continue };
            if !matches!(op.kind, OpKind::Load { .. }) {
                continue;
            }
            let value = Value(index as u32);
            let Ok(param) = self.pointer(op) else { continue };
            let written = stores.get(&param);
            if written.is_some_and(|stores| ordered || !self.may_move(&origins, value, op, stores)) {
                out.loads.insert(value);
                out.params.insert(param);
            }
        }
        out.params
            .extend(stores.iter().filter(|(_, stores)| self.meet(&origins, stores)).map(|(&param, _)| param));
        out
    }

    /// Whether stores to one parameter may write an element one after the other, other than at one position of their tiles.
    fn meet(&self, origins: &Origins<'_>, stores: &[SinkId]) -> bool {
        let store = |&id: &SinkId| match self.plan.sinks[id].kind {
            SinkKind::Store(op) => Some(op),
            _ => None,
        };
        let value = |id: &SinkId| store(id).and_then(|op| origins.constant(*op.args.get(2)?));
        let first = stores.first().and_then(value);
        if stores.iter().all(|id| store(id).is_none())
            || (first.is_some() && stores.iter().all(|id| value(id) == first))
        {
            // In whatever order, the same is left.
            return false;
        }
        let access = |id: &SinkId| Some((self.plan.sinks[*id].block, Accessed::by(store(id)?)?));
        let Some(places) = stores.iter().map(access).collect::<Option<Vec<_>>>() else { return true };
        let alone = places.len() == 1;
        places.iter().enumerate().any(|(at, &(block, access))| {
            let repeats = !alone && !origins.are_distinct(access.offsets);
            let meets = |&(other, others): &(BlockId, Accessed)| {
                (block, access.offsets) != (other, others.offsets)
                    && !origins.are_disjoint(access, others, Iterations::Any)
            };
            repeats
                || (self.iterates(block) && !origins.stays_in_place(access))
                || places[..at].iter().any(meets)
        })
    }

    /// Whether a load may be done wherever its value is needed although its buffer is written: all stores come
    /// after all uses, in the same list of operations, and touch at each position the element that is read there.
    fn may_move(&self, origins: &Origins<'_>, value: Value, load: &Op, stores: &[SinkId]) -> bool {
        let plan = &self.plan;
        let block = plan.home[value.index()];
        let once = Accessed::by(load).is_some_and(|read| {
            origins.are_distinct(read.offsets) && (!self.iterates(block) || origins.stays_in_place(read))
        });
        if !once {
            return false;
        }
        let same_place = |&s: &SinkId| {
            let SinkKind::Store(store) = plan.sinks[s].kind else { return false };
            plan.sinks[s].block == block && store.args.get(1) == load.args.get(1)
        };
        let Some(&first) = stores.iter().min() else { return true };
        if !stores.iter().all(same_place) || self.precedes(first, load) {
            return false;
        }
        let target = &plan.sinks[first].bits;
        (0..plan.sinks.len()).all(|sink| {
            let mut fine = true;
            plan.walk_sink(sink, &mut |v, map| {
                let here = plan.sinks[sink].block == block && plan.classes.canonical(map) == *target;
                fine &= v != value || (here && (sink <= first || plan.sinks[sink].bits == *target));
            });
            fine && (sink <= first || !self.demands(sink, value))
        })
    }

    /// Whether a list of operations may run several times.
    fn iterates(&self, block: BlockId) -> bool {
        let is_loop = |l: &Loop<'_>| !matches!(l.op.kind, OpKind::If);
        (0..self.plan.loops.len()).any(|l| self.plan.encloses(l + 1, block) && is_loop(&self.plan.loops[l]))
    }

    fn demands(&self, sink: SinkId, value: Value) -> bool {
        let mut found = false;
        self.plan.walk_sink(sink, &mut |v, _| found |= v == value);
        found
    }

    /// Whether a store comes before a load in their list of operations.
    fn precedes(&self, store: SinkId, load: &Op) -> bool {
        let SinkKind::Store(store) = self.plan.sinks[store].kind else { return true };
        let mut order = Vec::new();
        self.plan.program.walk(&mut |op| {
            if std::ptr::eq(op, store) || std::ptr::eq(op, load) {
                order.push(std::ptr::eq(op, store));
            }
        });
        order.first().copied().unwrap_or(true)
    }
}

/// Whether an atomic operation orders other accesses.
fn orders(op: &Op) -> bool {
    match op.kind {
        OpKind::Atomic { order, .. } | OpKind::AtomicCas { order, .. } => order != MemoryOrder::Relaxed,
        _ => false,
    }
}
