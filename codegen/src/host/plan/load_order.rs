//! Loads that must not move.

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{MemoryOrder, Op, OpKind, Value};

use super::build::Builder;
use super::{Def, SinkId, SinkKind};

impl Builder<'_> {
    /// Loads that must happen at their place in the program, because what they read may be overwritten.
    pub(super) fn unsafe_loads(&self) -> FxHashSet<Value> {
        let plan = &self.plan;
        let mut stores: FxHashMap<usize, Vec<SinkId>> = FxHashMap::default();
        for (id, sink) in plan.sinks.iter().enumerate() {
            if let SinkKind::Store(op) | SinkKind::Atomic(op) = sink.kind
                && let Ok(param) = self.pointer(op)
            {
                stores.entry(param).or_default().push(id);
            }
        }
        let mut out = FxHashSet::default();
        if stores.is_empty() {
            return out;
        }
        let ordered = plan.sinks.iter().any(|s| matches!(s.kind, SinkKind::Atomic(op) if orders(op)));
        for (index, def) in plan.defs.iter().enumerate() {
            let Def::Op(op) = *def else { continue };
            if !matches!(op.kind, OpKind::Load { .. }) {
                continue;
            }
            let value = Value(index as u32);
            let written = self.pointer(op).ok().and_then(|param| stores.get(&param));
            if written.is_some_and(|stores| ordered || !self.may_move(value, op, stores)) {
                out.insert(value);
            }
        }
        out
    }

    /// Whether a load may be done wherever its value is needed although its buffer is written: all stores come
    /// after all uses, in the same list of operations, and touch at each position the element that is read there.
    fn may_move(&self, value: Value, load: &Op, stores: &[SinkId]) -> bool {
        let plan = &self.plan;
        let block = plan.home[value.index()];
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
