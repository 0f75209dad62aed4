//! Sinks, slots and iteration classes of a program, in program order.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Program, Region as Body, Type, Value};

use super::{
    BlockId, Classes, Def, Item, Loop, LoopId, Map, Place, Plan, Sink, SinkId, SinkKind, Slot, SlotId,
    axis_ranges, operands, shape_bits,
};
use crate::{Error, Result};

impl<'p> Plan<'p> {
    /// The plan of `program` for vectors of `2^width` lanes.
    pub(crate) fn new(program: &'p Program, width: u32) -> Result<Plan<'p>> {
        let none = FxHashSet::default();
        let mut plan = Builder::run(program, width, &none)?;
        let pins = plan.unsafe_loads();
        if !pins.is_empty() {
            plan = Builder::run(program, width, &pins)?;
        }
        let Builder { mut plan, items, .. } = plan;
        plan.form_groups(&items);
        plan.choose_kept();
        plan.find_guards();
        plan.choose_lanes();
        plan.lay_out();
        Ok(plan)
    }
}

/// A plan under construction, and the entries of each list of operations.
struct Builder<'p> {
    plan: Plan<'p>,
    items: Vec<Vec<Item>>,
    pins: FxHashSet<Value>,
}

impl<'p> Builder<'p> {
    fn run(program: &'p Program, width: u32, pins: &FxHashSet<Value>) -> Result<Builder<'p>> {
        let count = program.values.len();
        let plan = Plan {
            program,
            defs: vec![Def::None; count],
            home: vec![0; count],
            deps: vec![u32::MAX; count],
            sinks: Vec::new(),
            loops: Vec::new(),
            slots: Vec::new(),
            slot_of: FxHashMap::default(),
            regions: Vec::new(),
            body: Vec::new(),
            classes: Classes::new(),
            parents: Vec::new(),
            scratch: 0,
            width,
        };
        let mut builder = Builder { plan, items: vec![Vec::new()], pins: pins.clone() };
        for (index, param) in program.params.iter().enumerate() {
            builder.plan.defs[param.value.index()] = Def::Param(index);
        }
        builder.region(&program.body, 0)?;
        builder.plan.join_classes(&builder.items);
        builder.protect_yields();
        for sink in &mut builder.plan.sinks {
            sink.bits = builder.plan.classes.canonical(&sink.bits);
            sink.reduced = sink.reduced.iter().map(|&b| builder.plan.classes.find(b)).collect();
        }
        for slot in &mut builder.plan.slots {
            slot.bits = builder.plan.classes.canonical(&slot.bits);
        }
        Ok(builder)
    }

    fn region(&mut self, body: &'p Body, block: BlockId) -> Result<()> {
        for op in &body.ops {
            for &value in &op.results {
                self.plan.defs[value.index()] = Def::Op(op);
                self.plan.home[value.index()] = block;
                self.plan.deps[value.index()] = self.dependence(op, value);
            }
            match &op.kind {
                OpKind::Load { .. } => self.load(op, block)?,
                OpKind::Store { .. } => self.store(op, block)?,
                OpKind::Reduce { axis, .. } => self.reduce(op, *axis, block),
                OpKind::For => self.for_loop(op, block)?,
                OpKind::Const(_)
                | OpKind::ProgramId(_)
                | OpKind::Range { .. }
                | OpKind::Splat(_)
                | OpKind::ExpandDims(_)
                | OpKind::Broadcast(_)
                | OpKind::Reshape(_)
                | OpKind::Permute(_)
                | OpKind::Map(_)
                | OpKind::Cast(_)
                | OpKind::Bitcast(_)
                | OpKind::Yield => {}
                _ => {
                    return Err(Error::Unsupported {
                        target: "host".to_owned(),
                        message: format!("the operation {} is not implemented", op.kind.name()),
                    });
                }
            }
        }
        Ok(())
    }

    /// The position bits of the result that the result depends on.
    fn dependence(&self, op: &Op, result: Value) -> u32 {
        let bits = shape_bits(&self.plan.program.ty(result).shape);
        match op.kind {
            OpKind::Const(_) | OpKind::Splat(_) | OpKind::ProgramId(_) => return 0,
            OpKind::Range { .. } | OpKind::Reduce { .. } | OpKind::For => return mask(bits),
            _ => {}
        }
        let positions: Map = (0..bits as u16).collect();
        let mut deps = 0;
        for (arg, map) in operands(self.plan.program, op, &positions) {
            for (position, &bit) in map.iter().enumerate() {
                deps |= (self.plan.deps[arg.index()] >> position & 1) << bit;
            }
        }
        deps
    }

    fn sink(
        &mut self,
        kind: SinkKind<'p>,
        roots: SmallVec<[Value; 3]>,
        shaped: Value,
        block: BlockId,
    ) -> SinkId {
        let shape = self.plan.program.ty(shaped).shape.clone();
        let bits = self.plan.classes.fresh_map(shape_bits(&shape));
        self.plan.sinks.push(Sink {
            kind,
            roots,
            bits,
            shape,
            block,
            slot: None,
            barrier: false,
            reduced: SmallVec::new(),
            guard: None,
            needed: None,
        });
        self.items[block].push(Item::Sink(self.plan.sinks.len() - 1));
        self.plan.sinks.len() - 1
    }

    fn slot(&mut self, ty: &Type, bits: Map) -> Result<SlotId> {
        let Some(elem) = ty.elem() else {
            return Err(self.unsupported("a carried pointer"));
        };
        self.plan.slots.push(Slot { elem, bits, weights: SmallVec::new(), place: Place::Local(0) });
        Ok(self.plan.slots.len() - 1)
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported {
            target: "host".to_owned(),
            message: format!("{what} in {}", self.plan.program.name),
        }
    }

    /// A slot for `value` that a new sink fills.
    fn keep(&mut self, value: Value, block: BlockId) -> Result<SinkId> {
        let sink = self.sink(SinkKind::Keep, SmallVec::from_slice(&[value]), value, block);
        let slot = self.slot(self.plan.program.ty(value), self.plan.sinks[sink].bits.clone())?;
        self.plan.sinks[sink].slot = Some(slot);
        Ok(sink)
    }

    fn load(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        self.pointer(op)?;
        let Some(&result) = op.results.first() else { return Ok(()) };
        if self.pins.contains(&result) {
            let sink = self.keep(result, block)?;
            self.plan.sinks[sink].barrier = true;
            // The sink computes the load itself; everybody else reads the slot.
            if let Some(slot) = self.plan.sinks[sink].slot {
                self.plan.slot_of.insert(result, slot);
            }
        }
        Ok(())
    }

    fn pointer(&self, op: &Op) -> Result<usize> {
        match op.args.first().map(|p| self.plan.defs[p.index()]) {
            Some(Def::Param(index)) => Ok(index),
            _ => Err(self.unsupported("a pointer that is no parameter")),
        }
    }

    fn store(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        let param = self.pointer(op)?;
        let [_, offsets, value, mask @ ..] = op.args.as_slice() else { return Ok(()) };
        let roots = [*value, *offsets].into_iter().chain(mask.iter().copied()).collect();
        let sink = self.sink(SinkKind::Store(op), roots, *offsets, block);
        let pinned = |&v: &Value| match self.plan.defs[v.index()] {
            Def::Op(load) => self.pointer(load).is_ok_and(|p| p == param),
            _ => true,
        };
        self.plan.sinks[sink].barrier = self.pins.iter().any(pinned);
        Ok(())
    }

    fn reduce(&mut self, op: &'p Op, axis: u8, block: BlockId) {
        let (Some(&operand), Some(&result)) = (op.args.first(), op.results.first()) else { return };
        if self.plan.program.ty(operand).shape[usize::from(axis)] == 1 {
            // Nothing is combined: element by element.
            return;
        }
        let sink = self.sink(SinkKind::Reduce(op), op.args.iter().copied().collect(), operand, block);
        let range = axis_ranges(&self.plan.sinks[sink].shape)[usize::from(axis)].clone();
        let bits = &self.plan.sinks[sink].bits;
        let reduced = SmallVec::from_slice(&bits[range.clone()]);
        let kept: Map =
            bits.iter().enumerate().filter(|(i, _)| !range.contains(i)).map(|(_, &b)| b).collect();
        let elem = self.plan.program.ty(result).elem().unwrap_or(tilefuse_block::Elem::F32);
        self.plan.slots.push(Slot { elem, bits: kept, weights: SmallVec::new(), place: Place::Local(0) });
        let slot = self.plan.slots.len() - 1;
        self.plan.sinks[sink].slot = Some(slot);
        self.plan.sinks[sink].reduced = reduced;
        self.plan.slot_of.insert(result, slot);
    }

    fn for_loop(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        let Some(body) = op.regions.first() else { return Ok(()) };
        let id: LoopId = self.plan.loops.len();
        self.plan.loops.push(Loop { op, body: Vec::new(), sinks: Vec::new() });
        self.plan.parents.push(block);
        self.items.push(Vec::new());
        let inner = id + 1;
        let mut slots = Vec::new();
        for (k, &init) in op.args.iter().skip(3).enumerate() {
            let sink = self.keep(init, block)?;
            let slot = self.plan.sinks[sink].slot.unwrap_or_default();
            slots.push(slot);
            for (value, home) in [(body.args.get(k + 1), inner), (op.results.get(k), block)] {
                if let Some(&value) = value {
                    self.plan.defs[value.index()] = Def::Carried;
                    self.plan.home[value.index()] = home;
                    self.plan.slot_of.insert(value, slot);
                }
            }
        }
        self.items[block].push(Item::Loop(id));
        if let Some(&counter) = body.args.first() {
            self.plan.defs[counter.index()] = Def::Induction(id);
            self.plan.home[counter.index()] = inner;
        }
        let first = self.plan.sinks.len();
        self.region(body, inner)?;
        self.yields(body, &slots, inner);
        self.plan.loops[id].sinks = (first..self.plan.sinks.len()).collect();
        Ok(())
    }

    /// Tiles first: their elements may depend on carried scalars, which must not change before.
    fn yields(&mut self, body: &'p Body, slots: &[SlotId], block: BlockId) {
        let Some(op) = body.ops.last().filter(|op| op.kind == OpKind::Yield) else { return };
        let pairs: Vec<(Value, SlotId)> = op.args.iter().copied().zip(slots.iter().copied()).collect();
        for tiles in [true, false] {
            for &(value, slot) in &pairs {
                if (self.plan.program.ty(value).rank() > 0) == tiles {
                    let sink = self.sink(SinkKind::Keep, SmallVec::from_slice(&[value]), value, block);
                    self.plan.sinks[sink].slot = Some(slot);
                }
            }
        }
    }

    /// Where the next values of a loop's tiles cannot be written in place, computes all of them first.
    fn protect_yields(&mut self) {
        for id in 0..self.plan.loops.len() {
            let yields = self.tile_yields(id);
            if self.plan.in_place(&yields) {
                continue;
            }
            for &sink in &yields {
                self.copy_through(sink);
            }
        }
    }

    /// The sinks that write the carried tiles at the end of a loop's body.
    fn tile_yields(&self, id: LoopId) -> Vec<SinkId> {
        let carried: FxHashSet<SlotId> =
            self.plan.loops[id].op.results.iter().filter_map(|v| self.plan.slot_of.get(v).copied()).collect();
        let is_yield = |item: &Item| match item {
            Item::Sink(s) if self.plan.sinks[*s].slot.is_some_and(|slot| carried.contains(&slot)) => Some(*s),
            _ => None,
        };
        let yields = self.items[id + 1].iter().filter_map(is_yield);
        yields.filter(|&s| !self.plan.sinks[s].shape.is_empty()).collect()
    }

    /// Makes a yield write a slot of its own, which a new sink copies to the carried slot after all yields.
    fn copy_through(&mut self, sink: SinkId) {
        let Some(target) = self.plan.sinks[sink].slot else { return };
        let Some(&value) = self.plan.sinks[sink].roots.first() else { return };
        let block = self.plan.sinks[sink].block;
        let bits = self.plan.sinks[sink].bits.clone();
        let elem = self.plan.slots[target].elem;
        let temporary = self.plan.slots.len();
        let slot = Slot { elem, bits: bits.clone(), weights: SmallVec::new(), place: Place::Local(0) };
        self.plan.slots.push(slot);
        self.plan.sinks[sink].slot = Some(temporary);
        let copy = self.sink(SinkKind::Copy(temporary), SmallVec::new(), value, block);
        self.plan.sinks[copy].bits = bits;
        self.plan.sinks[copy].slot = Some(target);
        for id in 0..self.plan.loops.len() {
            if self.plan.encloses(id + 1, block) {
                self.plan.loops[id].sinks.push(copy);
            }
        }
    }

    /// Loads that must happen at their place in the program, because what they read may be overwritten.
    fn unsafe_loads(&self) -> FxHashSet<Value> {
        let plan = &self.plan;
        let mut stores: FxHashMap<usize, Vec<SinkId>> = FxHashMap::default();
        for (id, sink) in plan.sinks.iter().enumerate() {
            if let SinkKind::Store(op) = sink.kind
                && let Ok(param) = self.pointer(op)
            {
                stores.entry(param).or_default().push(id);
            }
        }
        let mut out = FxHashSet::default();
        if stores.is_empty() {
            return out;
        }
        for (index, def) in plan.defs.iter().enumerate() {
            let Def::Op(op) = *def else { continue };
            if !matches!(op.kind, OpKind::Load { .. }) {
                continue;
            }
            let value = Value(index as u32);
            let written = self.pointer(op).ok().and_then(|param| stores.get(&param));
            if written.is_some_and(|stores| !self.may_move(value, op, stores)) {
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

/// A mask of the lowest `bits` bits.
fn mask(bits: usize) -> u32 {
    ((1u64 << bits) - 1) as u32
}

impl Plan<'_> {
    /// Joins the bits that must or should run together: producers with consumers, and sinks of one shape.
    fn join_classes(&mut self, items: &[Vec<Item>]) {
        for sink in 0..self.sinks.len() {
            if let Some(slot) = self.sinks[sink].slot {
                let (own, other) = (self.sinks[sink].bits.clone(), self.slots[slot].bits.clone());
                if own.len() == other.len() {
                    self.join_maps(&own, &other);
                }
            }
            for (slot, map) in self.slot_uses(sink) {
                let bits = self.slots[slot].bits.clone();
                self.join_maps(&map, &bits);
            }
        }
        for list in items {
            self.join_shapes(list);
        }
    }

    fn join_shapes(&mut self, list: &[Item]) {
        let sinks: Vec<SinkId> =
            list.iter().filter_map(|item| if let Item::Sink(s) = item { Some(*s) } else { None }).collect();
        for (index, &sink) in sinks.iter().enumerate() {
            let shape = &self.sinks[sink].shape;
            if let Some(&other) = sinks[..index].iter().rev().find(|&&o| self.sinks[o].shape == *shape) {
                let (a, b) = (self.sinks[sink].bits.clone(), self.sinks[other].bits.clone());
                self.join_maps(&a, &b);
            }
        }
    }

    /// Joins corresponding bits, except where a sink would then run over one bit twice.
    fn join_maps(&mut self, a: &[super::Bit], b: &[super::Bit]) {
        for (&x, &y) in a.iter().zip(b) {
            let (x, y) = (self.classes.find(x), self.classes.find(y));
            let has = |sink: &Sink, bit| sink.bits.iter().any(|&b| self.classes.find(b) == bit);
            if x != y && !self.sinks.iter().any(|s| has(s, x) && has(s, y)) {
                self.classes.join(x, y);
            }
        }
    }

    /// Whether these sinks may write the carried tiles while others of them still read them.
    fn in_place(&self, yields: &[SinkId]) -> bool {
        let Some(&first) = yields.first() else { return true };
        let bits = self.classes.canonical(&self.sinks[first].bits);
        let targets: FxHashSet<SlotId> = yields.iter().filter_map(|&s| self.sinks[s].slot).collect();
        yields.iter().all(|&sink| {
            self.classes.canonical(&self.sinks[sink].bits) == bits
                && self.slot_uses(sink).iter().all(|(slot, map)| !targets.contains(slot) || *map == bits)
        })
    }
}
