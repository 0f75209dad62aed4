//! From a plan to an LLVM function.
//!
//! A *level* is an open loop or branch and the block at which its code currently ends. A value is built at the
//! outermost level where everything that it depends on is known, so that nothing has to be hoisted later; code can
//! be added to an outer level while inner ones are open, because their entry is built when they are closed.

mod atomic;
mod combine;
mod control;
mod debug;
mod dot;
mod extremum;
mod formula;
mod half;
mod instructions;
pub(super) mod ir;
mod lanes;
mod memory;
mod nest;
mod non_temporal;
mod prefetch;
mod reduce;
mod strided;
mod transpose;
mod value;
mod view;
mod vnni;
mod whole;

use inkwell::IntPredicate;
use inkwell::basic_block::BasicBlock;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::values::{FunctionValue, InstructionOpcode, IntValue, PhiValue, PointerValue};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Loc, Value};

use super::plan::{Atom, Bit, LoopId, Map, Place, Plan, Prefetch, SlotId};
use super::target::Target;
use crate::Result;
use ir::{Ir, V, llvm};

/// What an iteration bit is at the place where code is built.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bound {
    /// Nothing yet.
    Free,
    /// A bit of the counter of the loop at a level.
    Loop(u16, u8),
    /// A bit of the lane's number, and which choice of lanes is meant.
    Lane(u8, u32),
    /// A known bit.
    Known(bool),
}

type Key = (Value, SmallVec<[Bound; 12]>);

/// A value and the level where it is built.
#[derive(Clone, Copy)]
struct At<'c> {
    v: V<'c>,
    level: usize,
}

/// A loop or branch that is still open.
enum Open<'c> {
    /// The function itself.
    Function,
    Branch {
        cond: IntValue<'c>,
        body: BasicBlock<'c>,
    },
    Loop {
        start: IntValue<'c>,
        end: IntValue<'c>,
        counter: PhiValue<'c>,
        body: BasicBlock<'c>,
    },
    /// A loop that goes on where a condition, built inside it, holds.
    While {
        cond: Option<IntValue<'c>>,
        body: BasicBlock<'c>,
    },
}

struct Level<'c> {
    open: Open<'c>,
    /// Where code of this level goes.
    block: BasicBlock<'c>,
    /// The counter of a loop.
    counter: Option<IntValue<'c>>,
    /// Number of iteration bits that the counter has.
    bits: u8,
    /// Values built here.
    keys: Vec<Key>,
}

pub(super) struct Emitter<'c, 'p> {
    ir: Ir<'c>,
    plan: &'p Plan<'p>,
    target: &'p Target,
    function: FunctionValue<'c>,
    levels: Vec<Level<'c>>,
    /// By iteration bit.
    bound: Vec<Bound>,
    /// The iteration bits that are lanes.
    lanes: Map,
    /// Number of choices of lanes so far.
    lane_choices: u32,
    /// The bits that the region at hand unrolls for other reasons than its vector axis.
    forced: Map,
    /// Whether a block is being read to be transposed.
    transposing: bool,
    memo: FxHashMap<Key, At<'c>>,
    /// Conjuncts of masks that hold at a level and inside.
    known: Vec<(Atom, usize)>,
    /// By list of operations: its level.
    block_levels: Vec<usize>,
    /// By loop.
    induction: FxHashMap<LoopId, At<'c>>,
    /// By slot: its memory, and the level where it is complete.
    slots: Vec<Option<PointerValue<'c>>>,
    ready: Vec<usize>,
    /// Values that regions keep in slots, and have not kept yet where building is: they are computed again for whoever needs other
    /// elements than the ones at hand, such as the first one of a part of a vector.
    unwritten: FxHashSet<Value>,
    /// Memory for accesses that are masked off.
    nowhere: Option<PointerValue<'c>>,
    /// By value: how many operations of the program take it.
    uses: Vec<u32>,
    /// What is fetched ahead.
    ahead: Vec<Prefetch>,
    /// The bits that the vectors at hand are unrolled along, one after the other.
    unrolled: Map,
    /// Whether stores may be non-temporal, and whether one is.
    may_stream: bool,
    stores_non_temporal: bool,
    /// Whether a store of the region at hand does, of what no earlier loop has read.
    streams: bool,
    /// Lines that non-temporal stores write when they are complete.
    lines: Vec<non_temporal::Line<'c>>,
    /// Rows of the tiles of the matrix unit, where the kernel uses them.
    tile_rows: Option<u64>,
}

/// The level of an instance.
const INSTANCE: usize = 1;

/// Name of the entry: `extern "C" fn(args: *const u64, begin: i64, end: i64, scratch: *mut u8)`.
pub(super) const ENTRY: &str = "tilefuse_kernel";

/// Builds the module of a planned program; for a `listing`, instructions say which operation they are of.
pub(super) fn emit<'c>(
    cx: &'c Context,
    plan: &Plan<'_>,
    target: &Target,
    listing: bool,
) -> Result<Module<'c>> {
    let module = cx.create_module("kernel");
    let ptr = cx.ptr_type(inkwell::AddressSpace::default());
    let index = cx.i64_type();
    let ty = cx.void_type().fn_type(&[ptr.into(), index.into(), index.into(), ptr.into()], false);
    let function = module.add_function(ENTRY, ty, None);
    target.mark(cx, function);
    let locations = listing.then(|| ir::Locations::new(&module, function));
    let ir = Ir { cx, module, b: cx.create_builder(), locations };
    ir.set_loc(Loc::UNKNOWN);
    let entry = cx.append_basic_block(function, "");
    let level = Level { open: Open::Function, block: entry, counter: None, bits: 0, keys: Vec::new() };
    let mut emitter = Emitter {
        ir,
        plan,
        target,
        function,
        levels: vec![level],
        bound: vec![Bound::Free; plan.classes.len()],
        lanes: Map::new(),
        lane_choices: 0,
        forced: Map::new(),
        transposing: false,
        memo: FxHashMap::default(),
        known: Vec::new(),
        block_levels: vec![INSTANCE; plan.loops.len() + 1],
        induction: FxHashMap::default(),
        slots: vec![None; plan.slots.len()],
        ready: vec![INSTANCE; plan.slots.len()],
        unwritten: FxHashSet::default(),
        nowhere: None,
        uses: plan.program.uses(),
        ahead: plan.ahead(),
        unrolled: Map::new(),
        may_stream: target.has_avx512() && !non_temporal::tells_others(plan.program),
        stores_non_temporal: false,
        streams: false,
        lines: Vec::new(),
        tile_rows: None,
    };
    emitter.bound[usize::from(super::plan::ZERO)] = Bound::Known(false);
    emitter.bound[usize::from(super::plan::ONE)] = Bound::Known(true);
    emitter.kernel()?;
    if let Some(locations) = &emitter.ir.locations {
        locations.finish();
    }
    Ok(emitter.ir.module)
}

impl<'c> Emitter<'c, '_> {
    fn kernel(&mut self) -> Result<()> {
        let (begin, end) = (self.parameter(1)?.into_int_value(), self.parameter(2)?.into_int_value());
        self.open_loop(begin, end, 0);
        let plan = self.plan;
        self.groups(&plan.body)?;
        self.close_to(1)?;
        self.at(0);
        self.release_tiles()?;
        self.finish_stream()?;
        self.ir.b.build_return(None).map_err(llvm)?;
        Ok(())
    }

    fn parameter(&self, index: u32) -> Result<V<'c>> {
        self.function.get_nth_param(index).ok_or_else(|| llvm("missing parameter"))
    }

    /// The innermost level.
    fn top(&self) -> usize {
        self.levels.len() - 1
    }

    /// Puts what is built next at a level.
    fn at(&self, level: usize) {
        self.ir.b.position_at_end(self.levels[level].block);
    }

    /// Opens a loop whose counter runs from `start` to `end`, which must be built at the top level or outside.
    fn open_loop(&mut self, start: IntValue<'c>, end: IntValue<'c>, bits: u8) {
        let body = self.ir.cx.append_basic_block(self.function, "");
        self.ir.b.position_at_end(body);
        // A phi can be built where a block has been chosen, as here.
        let Ok(counter) = self.ir.b.build_phi(self.ir.cx.i64_type(), "") else { return };
        let open = Open::Loop { start, end, counter, body };
        let number = counter.as_basic_value().into_int_value();
        self.levels.push(Level { open, block: body, counter: Some(number), bits, keys: Vec::new() });
    }

    /// Opens a branch that is taken where `cond`, built at the top level or outside, holds.
    fn open_branch(&mut self, cond: IntValue<'c>) {
        let body = self.ir.cx.append_basic_block(self.function, "");
        let open = Open::Branch { cond, body };
        self.levels.push(Level { open, block: body, counter: None, bits: 0, keys: Vec::new() });
    }

    /// Closes levels until so many are left.
    fn close_to(&mut self, depth: usize) -> Result<()> {
        while self.levels.len() > depth {
            let Some(level) = self.levels.pop() else { break };
            for key in &level.keys {
                self.memo.remove(key);
            }
            self.close(level)?;
        }
        self.known.retain(|(_, level)| *level < depth);
        let top = self.top();
        for ready in &mut self.ready {
            *ready = (*ready).min(top);
        }
        Ok(())
    }

    fn close(&mut self, level: Level<'c>) -> Result<()> {
        let top = self.top();
        let exit = self.ir.cx.append_basic_block(self.function, "");
        match level.open {
            Open::Function => return Ok(()),
            Open::Branch { cond, body } => {
                self.ir.b.position_at_end(level.block);
                self.ir.b.build_unconditional_branch(exit).map_err(llvm)?;
                self.at(top);
                self.ir.b.build_conditional_branch(cond, body, exit).map_err(llvm)?;
            }
            Open::While { cond, body } => {
                let cond = cond.ok_or_else(|| llvm("a loop without a condition"))?;
                self.ir.b.position_at_end(level.block);
                self.ir.b.build_conditional_branch(cond, body, exit).map_err(llvm)?;
                self.at(top);
                self.ir.b.build_unconditional_branch(body).map_err(llvm)?;
            }
            Open::Loop { start, end, counter, body } => {
                self.ir.b.position_at_end(level.block);
                let number = counter.as_basic_value();
                let next = self.ir.bin(InstructionOpcode::Add, number, self.ir.i64(1).into())?;
                let more = self.ir.icmp(IntPredicate::SLT, next, end.into())?.into_int_value();
                self.ir.b.build_conditional_branch(more, body, exit).map_err(llvm)?;
                self.at(top);
                let any = self.ir.icmp(IntPredicate::SLT, start.into(), end.into())?.into_int_value();
                self.ir.b.build_conditional_branch(any, body, exit).map_err(llvm)?;
                counter.add_incoming(&[(&start, self.levels[top].block), (&next, level.block)]);
            }
        }
        self.levels[top].block = exit;
        Ok(())
    }

    /// Remembers a value.
    fn remember(&mut self, key: Key, at: At<'c>) -> At<'c> {
        self.levels[at.level].keys.push(key.clone());
        self.memo.insert(key, at);
        at
    }

    /// What each bit of a map is here.
    fn resolve(&self, map: &[Bit]) -> SmallVec<[Bound; 12]> {
        map.iter().map(|&bit| self.bound[usize::from(bit)]).collect()
    }

    /// The map with the bits replaced that the value does not depend on.
    fn dependent(&self, value: Value, map: &[Bit]) -> Map {
        let deps = self.plan.deps[value.index()];
        let bit = |(i, &bit): (usize, &Bit)| if deps >> i & 1 == 1 { bit } else { super::plan::ZERO };
        map.iter().enumerate().map(bit).collect()
    }

    fn bind(&mut self, bit: Bit, to: Bound) {
        self.bound[usize::from(bit)] = to;
    }

    /// Makes bits those of the top level's counter.
    fn bind_loop(&mut self, bits: &[Bit]) {
        let level = self.top() as u16;
        for (shift, &bit) in bits.iter().enumerate() {
            self.bind(bit, Bound::Loop(level, shift as u8));
        }
    }

    fn bind_lanes(&mut self, lanes: &[Bit]) {
        self.lane_choices += 1;
        for (lane, &bit) in lanes.iter().enumerate() {
            self.bind(bit, Bound::Lane(lane as u8, self.lane_choices));
        }
        self.lanes = Map::from_slice(lanes);
    }

    /// The memory of a slot.
    fn slot_memory(&mut self, slot: SlotId) -> Result<PointerValue<'c>> {
        if let Some(ptr) = self.slots[slot] {
            return Ok(ptr);
        }
        let info = &self.plan.slots[slot];
        self.at(0);
        let ptr = match info.place {
            Place::Local(count) => {
                let elem = self.slot_type(slot);
                let ty = inkwell::types::BasicType::array_type(&elem, count);
                let ptr = self.ir.b.build_alloca(ty, "").map_err(llvm)?;
                if let Some(instruction) = ptr.as_instruction() {
                    instruction.set_alignment(64).map_err(llvm)?;
                }
                ptr
            }
            Place::Scratch(offset) => {
                let scratch = self.parameter(3)?.into_pointer_value();
                self.ir.element(self.ir.int_type(8).into(), scratch, self.ir.i64(offset as i64))?
            }
        };
        self.slots[slot] = Some(ptr);
        Ok(ptr)
    }

    /// A parameter's value, decoded from its 64-bit word.
    fn argument(&mut self, index: usize, value: Value) -> Result<At<'c>> {
        self.at(0);
        let args = self.parameter(0)?.into_pointer_value();
        let word = self.ir.i64(index as i64);
        let place = self.ir.element(self.ir.int_type(64).into(), args, word)?;
        let ty = self.plan.program.ty(value);
        let v = match ty.elem() {
            None => self.ir.load(self.ir.cx.ptr_type(inkwell::AddressSpace::default()).into(), place, 8)?,
            Some(elem) => {
                let raw = self.ir.load(self.ir.memory_type(elem), place, 8)?;
                self.widened(raw, elem)?
            }
        };
        Ok(At { v, level: 0 })
    }

    /// The instance's index along a grid axis. The words after the arguments hold the grid's extents.
    fn program_id(&mut self, axis: u8) -> Result<At<'c>> {
        let linear: V<'c> = match self.levels[INSTANCE].counter {
            Some(counter) => counter.into(),
            None => return Err(llvm("no instance loop")),
        };
        let uses_more = self.plan.uses_outer_axes();
        let id = match axis {
            0 if !uses_more => linear,
            0 => {
                let x = self.word(0)?;
                self.at(INSTANCE);
                self.ir.bin(InstructionOpcode::URem, linear, x)?
            }
            _ => {
                let (x, y) = (self.word(0)?, self.word(1)?);
                self.at(INSTANCE);
                let rest = self.ir.bin(InstructionOpcode::UDiv, linear, x)?;
                let op = if axis == 1 { InstructionOpcode::URem } else { InstructionOpcode::UDiv };
                self.ir.bin(op, rest, y)?
            }
        };
        self.at(INSTANCE);
        let v = self.ir.cast(InstructionOpcode::Trunc, id, self.ir.int_type(32).into())?;
        Ok(At { v, level: INSTANCE })
    }

    /// A word after the arguments: the grid's extents, then the address of what belongs to the launch.
    fn word(&mut self, index: usize) -> Result<V<'c>> {
        self.at(0);
        let args = self.parameter(0)?.into_pointer_value();
        let word = self.ir.i64((self.plan.program.params.len() + index) as i64);
        let place = self.ir.element(self.ir.int_type(64).into(), args, word)?;
        self.ir.load(self.ir.int_type(64).into(), place, 8)
    }

    fn num_programs(&mut self, axis: u8) -> Result<At<'c>> {
        let extent = self.word(usize::from(axis))?;
        let v = self.ir.cast(InstructionOpcode::Trunc, extent, self.ir.int_type(32).into())?;
        Ok(At { v, level: 0 })
    }
}
