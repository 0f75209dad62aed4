//! Which lines of the caches are fetched before they are needed.
//!
//! A store to memory that is not in a cache waits until its line has come from memory, and few stores can wait at a time.
//! What a program writes to large tensors is therefore fetched ahead: where a reduction runs over a tile of the same
//! shape in an earlier loop, in that loop, with what the next instance reads at the same offsets; else some lines ahead
//! in the loop of the store, or some rows where a tile's rows are short and lie apart. Where blocks are transposed, what
//! is read is fetched some blocks ahead as well: the processor sees no order in which their rows follow each other. For
//! non-temporal stores nothing is fetched, but what is read beside them.

use tilefuse_block::affine::Affine;
use tilefuse_block::{CacheHint, Op, OpKind, Value};

use super::{Plan, RegionId, SinkId, SinkKind};

/// Bytes from which on a tensor is not taken to be in a cache.
const MIN_UNCACHED_BYTES: u64 = 1 << 20;
/// Bytes of a tile up to which its lines stay in a cache until they are written.
const MAX_CACHED_TILE_BYTES: u64 = 256 << 10;

/// A store whose lines are fetched ahead.
#[derive(Clone, Debug)]
pub(crate) struct Prefetch {
    /// The pointer and the offsets of the store.
    pub(crate) store: (Value, Value),
    /// Whether it is non-temporal where it can be: nothing is fetched for it then.
    pub(crate) streams: bool,
    /// The reduction in whose loop that is done; the store's own loop where there is none.
    pub(crate) beside: Option<SinkId>,
    /// Pointers that are read at the same offsets beside the reduction, and how many elements further the next instance
    /// reads.
    pub(crate) next: Vec<(Value, i64)>,
}

impl<'p> Plan<'p> {
    /// What is fetched ahead.
    pub(crate) fn ahead(&self) -> Vec<Prefetch> {
        let mut affine = None;
        let mut out = Vec::new();
        for (id, sink) in self.sinks.iter().enumerate() {
            let SinkKind::Store(op) = sink.kind else { continue };
            let &[ptr, offsets, ..] = op.args.as_slice() else { continue };
            if !self.is_large(ptr) || self.is_dead(id) {
                continue;
            }
            let beside = (0..id).rev().find(|&other| self.runs_before(other, id, offsets));
            let mut next = Vec::new();
            if let Some(reduction) = beside {
                let affine = affine.get_or_insert_with(|| Affine::new(self.program));
                let step = self.step_of_instances(affine, offsets);
                let loads = self.loads_at(reduction, offsets).filter(|&ptr| self.is_large(ptr));
                next.extend(loads.filter_map(|ptr| Some((ptr, step?))));
            }
            let streams = matches!(op.kind, OpKind::Store { hint: CacheHint::Streaming, .. });
            out.push(Prefetch { store: (ptr, offsets), streams, beside, next });
        }
        out
    }

    /// Whether a pointer is to so much memory that it is not taken to be in a cache.
    pub(crate) fn is_large(&self, ptr: Value) -> bool {
        let elem = self.program.ty(ptr).pointee().map_or(1, |e| u64::from(e.bytes()));
        let param = self.program.params.iter().find(|p| p.value == ptr);
        param.and_then(|p| p.len).is_some_and(|len| len.saturating_mul(elem) >= MIN_UNCACHED_BYTES)
    }

    /// Whether a sink is a reduction over the tile that another one stores, in an earlier loop which reads at the same
    /// offsets.
    fn runs_before(&self, reduction: SinkId, store: SinkId, offsets: Value) -> bool {
        let (sink, other) = (&self.sinks[reduction], &self.sinks[store]);
        let elements: u64 = sink.shape.iter().map(|&d| u64::from(d)).product();
        matches!(sink.kind, SinkKind::Reduce(_))
            && !self.is_dead(reduction)
            && sink.block == other.block
            && sink.shape == other.shape
            && elements.saturating_mul(4) <= MAX_CACHED_TILE_BYTES
            && self.region_of(reduction) != self.region_of(store)
            && self.loads_at(reduction, offsets).next().is_some()
    }

    fn region_of(&self, sink: SinkId) -> Option<RegionId> {
        self.regions.iter().position(|region| region.sinks.contains(&sink))
    }

    /// Pointers that are read at offsets in the loop of a sink, each at the sink's own position.
    fn loads_at(&self, sink: SinkId, offsets: Value) -> impl Iterator<Item = Value> {
        let mut found = Vec::new();
        let bits = &self.sinks[sink].bits;
        let region = self.region_of(sink).map(|id| &self.regions[id]);
        for &other in region.into_iter().flat_map(|region| &region.sinks) {
            self.walk_sink(other, &mut |value, map| {
                let load = self.pure_op(value).filter(|op: &&Op| matches!(op.kind, OpKind::Load { .. }));
                if let Some(&[ptr, at, ..]) = load.map(|op| op.args.as_slice())
                    && at == offsets
                    && map == bits
                    && !found.contains(&ptr)
                {
                    found.push(ptr);
                }
            });
        }
        found.into_iter()
    }

    /// How much further the offsets of the next instance are, where that is the same for all.
    fn step_of_instances(&self, affine: &Affine, offsets: Value) -> Option<i64> {
        let base = affine.get(offsets)?.base.as_ref()?;
        let &[(scalar, step)] = base.terms.as_slice() else { return None };
        let is_instance = self.pure_op(scalar).is_some_and(|op| op.kind == OpKind::ProgramId(0));
        is_instance.then_some(step)
    }
}
