//! Sinks, slots and iteration classes of a program, in program order.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Program, Region as Body, Type, Value};

use super::access_order::InOrder;
use super::{
    BlockId, Classes, Def, Item, Map, ONE, Plan, Registers, Sink, SinkId, SinkKind, Slot, SlotId,
    axis_ranges, operands,
    product::{Sums, left_operands, loaded_operands, running_sums},
    shape_bits,
    whole::whole_operands,
};
use crate::host::Pass;
use crate::{Error, Result};

impl<'p> Plan<'p> {
    /// The plan of `program` for a processor, or for vectors of so many lanes, as a logarithm.
    pub(crate) fn new(program: &'p Program, registers: impl Into<Registers>) -> Result<Plan<'p>> {
        Plan::until(program, registers.into(), Pass::Slots)
    }

    /// The plan as the passes up to `last` leave it.
    pub(crate) fn until(program: &'p Program, registers: Registers, last: Pass) -> Result<Plan<'p>> {
        let mut plan = Builder::run(program, registers, InOrder::default())?;
        let in_order = plan.accesses_in_order();
        if !in_order.params.is_empty() {
            plan = Builder::run(program, registers, in_order)?;
        }
        let Builder { mut plan, items, .. } = plan;
        for pass in Pass::ALL.into_iter().filter(|pass| *pass <= last) {
            match pass {
                Pass::Expand | Pass::Accumulate => {}
                Pass::Groups => plan.form_groups(&items),
                Pass::Materialize => plan.choose_materialized(),
                Pass::Guards => plan.find_guards(),
                Pass::Lanes => plan.choose_lanes(),
                Pass::Slots => plan.lay_out(),
            }
        }
        Ok(plan)
    }
}

/// A plan under construction, and the entries of each list of operations.
pub(super) struct Builder<'p> {
    pub(super) plan: Plan<'p>,
    pub(super) items: Vec<Vec<Item>>,
    pub(super) in_order: InOrder,
    /// Values that operations on whole tiles take.
    wanted: FxHashSet<Value>,
    /// Loads that products take as left operands and as right ones.
    pub(super) loaded: [FxHashSet<Value>; 2],
    /// Values that products take as left operands.
    pub(super) lefts: FxHashSet<Value>,
    /// Products that are added to what a loop carries.
    pub(super) sums: Sums,
}

impl<'p> Builder<'p> {
    fn run(program: &'p Program, registers: Registers, in_order: InOrder) -> Result<Builder<'p>> {
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
            rows: FxHashMap::default(),
            direct: FxHashMap::default(),
            regions: Vec::new(),
            body: Vec::new(),
            classes: Classes::new(),
            parents: Vec::new(),
            scratch: 0,
            width: registers.width,
            registers,
        };
        let wanted = whole_operands(program);
        let (loaded, sums) = (loaded_operands(program), running_sums(program));
        let lefts = left_operands(program);
        let mut builder = Builder { plan, items: vec![Vec::new()], in_order, wanted, loaded, lefts, sums };
        for (index, param) in program.params.iter().enumerate() {
            builder.plan.defs[param.value.index()] = Def::Param(index);
            builder.row(param.value, 0)?;
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

    pub(super) fn region(&mut self, body: &'p Body, block: BlockId) -> Result<()> {
        for &value in &body.args {
            self.row(value, block)?;
        }
        for op in &body.ops {
            for &value in &op.results {
                self.plan.defs[value.index()] = Def::Op(op);
                self.plan.home[value.index()] = block;
                self.plan.deps[value.index()] = self.dependence(op, value);
            }
            self.operation(op, block)?;
            for &value in &op.results {
                self.row(value, block)?;
            }
        }
        Ok(())
    }

    fn operation(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        match &op.kind {
            OpKind::Load { .. } => self.load(op, block),
            OpKind::Store { .. } => self.store(op, block),
            OpKind::Reduce { axis, .. } => {
                self.reduce(op, *axis, block);
                Ok(())
            }
            OpKind::Atomic { .. } | OpKind::AtomicCas { .. } => self.atomic(op, block),
            OpKind::ReduceWith { .. }
            | OpKind::Scan { .. }
            | OpKind::Histogram { .. }
            | OpKind::Dot { .. }
            | OpKind::Print { .. }
            | OpKind::Assert { .. } => self.whole(op, block),
            OpKind::For => self.for_loop(op, block),
            OpKind::While => self.while_loop(op, block),
            OpKind::If => self.branch(op, block),
            OpKind::Const(_)
            | OpKind::ProgramId(_)
            | OpKind::NumPrograms(_)
            | OpKind::Range { .. }
            | OpKind::Splat(_)
            | OpKind::ExpandDims(_)
            | OpKind::Broadcast(_)
            | OpKind::Reshape(_)
            | OpKind::Permute(_)
            | OpKind::Join
            | OpKind::Split
            | OpKind::Gather { .. }
            | OpKind::Map(_)
            | OpKind::Cast(_)
            | OpKind::Bitcast(_)
            | OpKind::Assume(_)
            | OpKind::Yield => Ok(()),
            OpKind::Philox { .. } => Err(self.unsupported("random bits that have not been expanded")),
        }
    }

    /// The position bits of the result that the result depends on.
    fn dependence(&self, op: &Op, result: Value) -> u32 {
        let bits = shape_bits(&self.plan.program.ty(result).shape);
        match op.kind {
            OpKind::Const(_) | OpKind::Splat(_) | OpKind::ProgramId(_) | OpKind::NumPrograms(_) => return 0,
            OpKind::Split => {
                return op.args.first().map_or(0, |a| self.plan.deps[a.index()] >> 1) & mask(bits);
            }
            OpKind::ExpandDims(_)
            | OpKind::Broadcast(_)
            | OpKind::Reshape(_)
            | OpKind::Permute(_)
            | OpKind::Join
            | OpKind::Map(_)
            | OpKind::Cast(_)
            | OpKind::Bitcast(_)
            | OpKind::Assume(_)
            | OpKind::Load { .. } => {}
            _ => return mask(bits),
        }
        let positions: Map = (0..bits as u16).collect();
        let mut deps = u32::from(op.kind == OpKind::Join);
        for (arg, map) in operands(self.plan.program, op, result, &positions) {
            for (position, &bit) in map.iter().enumerate() {
                deps |= (self.plan.deps[arg.index()] >> position & 1) << bit;
            }
        }
        deps
    }

    pub(super) fn sink(
        &mut self,
        kind: SinkKind<'p>,
        roots: SmallVec<[Value; 3]>,
        shaped: Value,
        block: BlockId,
    ) -> SinkId {
        let shape = self.plan.program.ty(shaped).shape.clone();
        let bits = self.plan.classes.fresh_map(shape_bits(&shape));
        self.add(Sink::new(kind, roots, bits, shape, block))
    }

    pub(super) fn add(&mut self, sink: Sink<'p>) -> SinkId {
        let id = self.plan.sinks.len();
        self.items[sink.block].push(Item::Sink(id));
        self.plan.sinks.push(sink);
        id
    }

    pub(super) fn slot(&mut self, ty: &Type, bits: Map) -> Result<SlotId> {
        let Some(elem) = ty.elem() else {
            return Err(self.unsupported("a carried pointer"));
        };
        self.plan.slots.push(Slot::new(elem, bits));
        Ok(self.plan.slots.len() - 1)
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported {
            target: "host".to_owned(),
            message: format!("{what} in {}", self.plan.program.name),
        }
    }

    /// A slot for `value` that a new sink fills: the one of what the value takes the place of, if it takes any.
    fn keep_row(&mut self, value: Value, block: BlockId) -> Result<SinkId> {
        let carried =
            self.sums.starts.get(&value).and_then(|carried| self.plan.slot_of.get(carried)).copied();
        let Some(slot) = carried else { return self.keep(value, block) };
        let sink = self.sink(SinkKind::Materialize, SmallVec::from_slice(&[value]), value, block);
        self.plan.sinks[sink].slot = Some(slot);
        Ok(sink)
    }

    /// A slot for `value` that a new sink fills.
    pub(super) fn keep(&mut self, value: Value, block: BlockId) -> Result<SinkId> {
        let sink = self.sink(SinkKind::Materialize, SmallVec::from_slice(&[value]), value, block);
        let slot = self.slot(self.plan.program.ty(value), self.plan.sinks[sink].bits.clone())?;
        self.plan.sinks[sink].slot = Some(slot);
        Ok(sink)
    }

    /// Has a value lie row-major in a slot, if operations on whole tiles take it.
    fn row(&mut self, value: Value, block: BlockId) -> Result<()> {
        if !self.wanted.contains(&value) {
            return Ok(());
        }
        if let Some(direct) = self.direct(value) {
            self.plan.direct.insert(value, direct);
            return Ok(());
        }
        let slot = match self.plan.slot_of.get(&value) {
            Some(&slot) => slot,
            None => {
                let sink = self.keep_row(value, block)?;
                let slot = self.plan.sinks[sink].slot.unwrap_or_default();
                if self.is_dear(value) {
                    self.plan.slot_of.insert(value, slot);
                }
                slot
            }
        };
        self.plan.slots[slot].row_major = true;
        self.plan.slots[slot].narrow = self.is_narrow(value);
        self.plan.rows.insert(value, slot);
        Ok(())
    }

    /// Whether a value is better read from a slot than computed again. Of integers that are computed more is known
    /// than of those that are read.
    fn is_dear(&self, value: Value) -> bool {
        let Def::Op(op) = self.plan.defs[value.index()] else { return false };
        let float = self.plan.program.ty(value).elem().is_some_and(|e| e.is_float());
        let varies = self.plan.deps[value.index()] != 0;
        varies && (float || matches!(op.kind, OpKind::Load { .. } | OpKind::Gather { .. }))
    }

    fn load(&mut self, op: &'p Op, block: BlockId) -> Result<()> {
        self.pointer(op)?;
        let Some(&result) = op.results.first() else { return Ok(()) };
        if self.in_order.loads.contains(&result) {
            let sink = self.keep(result, block)?;
            self.plan.sinks[sink].barrier = true;
            // The sink computes the load itself; everybody else reads the slot.
            if let Some(slot) = self.plan.sinks[sink].slot {
                self.plan.slot_of.insert(result, slot);
            }
        }
        Ok(())
    }

    pub(super) fn pointer(&self, op: &Op) -> Result<usize> {
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
        self.plan.sinks[sink].barrier = self.in_order.params.contains(&param);
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
        self.plan.slots.push(Slot::new(elem, kept));
        let slot = self.plan.slots.len() - 1;
        self.plan.sinks[sink].slot = Some(slot);
        self.plan.sinks[sink].reduced = reduced;
        self.plan.slot_of.insert(result, slot);
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
            let fixed = x.min(y) <= ONE;
            if x != y && !fixed && !self.sinks.iter().any(|s| has(s, x) && has(s, y)) {
                self.classes.join(x, y);
            }
        }
    }
}
