//! Block programs as LLVM IR for one thread.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{Elem, Kind, Op, OpKind, Program, Region, Value};

use super::Target;
use super::assign::{Assignment, log_shape};
use super::barrier::{BarrierReason, Hazards};
use super::decisions::Decisions;
use super::dot::Staged;
use super::ir::{Ir, Val, literal, ty};
use super::pairs;
use super::shared::Shared;
use super::software_pipeline::{self, Operands};
use super::tensor_map::TensorMap;
use super::warp_specialize::{Division, INSTANCES, Roles, Specialized};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::scalar;

/// The elements of a tile that a thread holds, by register.
pub(crate) type Regs = Rc<Vec<Val>>;

/// The state of lowering one program.
pub(crate) struct Lower<'a> {
    pub(crate) plan: &'a Assignment<'a>,
    pub(crate) target: Target,
    pub(crate) ir: Ir,
    /// Where each value that is held is held.
    held: FxHashMap<Value, (Layout, Regs)>,
    /// Values in other layouts, by open region.
    pub(crate) copies: Vec<FxHashMap<(Value, Layout), Regs>>,
    /// What the thread's number adds to that of an element, by the bases of its bits.
    threads: FxHashMap<Vec<u32>, Val>,
    pub(crate) shared: Shared,
    /// Maps that the code reads as parameters behind those of the program.
    pub(super) tensor_maps: Vec<TensorMap>,
    /// Whether loops may load operands ahead of their use.
    pub(crate) runs_ahead: bool,
    /// What threads share of which some start copies and the others compute.
    pub(super) roles: Option<Roles>,
    /// Operands of products that are in shared memory already.
    pub(crate) placed: Operands,
    /// Results of products that go on while the next iteration runs.
    pub(crate) in_flight: FxHashSet<Value>,
    pub(crate) hazards: Hazards,
    /// What is decided on the way.
    pub(crate) decisions: Decisions,
    /// Whether the code has waited for all blocks of the cluster to run.
    pub(crate) started: bool,
    /// Whether the code has waited for the work before it on its stream, or need not.
    pub(super) waited: bool,
}

/// The function's body, what belongs outside it, and the shared memory that it needs.
pub(crate) struct Lowered {
    pub(crate) body: String,
    pub(crate) outside: String,
    /// Of a listing: the lines that instructions name.
    pub(crate) lines: std::collections::BTreeSet<u32>,
    pub(crate) shared: Shared,
    pub(crate) tensor_maps: Vec<TensorMap>,
    /// How loops load operands where they can.
    pub(crate) loading: Loading,
    /// Whether a block computes one instance after another.
    pub(crate) persistent: bool,
    pub(crate) decisions: Decisions,
}

/// How loops load operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    /// Where they are used.
    InOrder,
    /// Ahead of their use.
    Ahead,
    /// Ahead of their use, by a producer warpgroup.
    Specialized(Division),
}

impl Loading {
    /// Groups of threads that compute, each an instance.
    pub(crate) fn groups(self) -> u32 {
        if let Loading::Specialized(division) = self { division.groups } else { 1 }
    }
}

/// Lowers the body of a program, which is `specialized` where a producer warpgroup loads.
///
/// For a `listing`, instructions say which operation they are of.
pub(super) fn lower<'a>(
    plan: &'a Assignment<'a>,
    target: Target,
    (loading, specialized): (Loading, Option<&Specialized<'a>>),
    listing: bool,
) -> Result<Lowered> {
    let stages = match (loading, specialized) {
        (Loading::InOrder, _) => 0,
        (Loading::Specialized(division), Some(specialized)) => specialized.room(division.stages),
        _ => software_pipeline::room(plan, target).next_multiple_of(Staged::PANEL_ALIGN),
    };
    let mut lower = Lower {
        plan,
        target,
        ir: Ir::new(listing),
        held: FxHashMap::default(),
        copies: vec![FxHashMap::default()],
        threads: FxHashMap::default(),
        shared: Shared::with_stages(stages, loading.groups().into()),
        tensor_maps: Vec::new(),
        runs_ahead: loading != Loading::InOrder,
        roles: None,
        placed: Operands::default(),
        in_flight: FxHashSet::default(),
        hazards: Hazards::default(),
        decisions: Decisions::default(),
        started: false,
        waited: !(plan.program.early && target.has_programmatic_launch()),
    };
    if specialized.is_none() {
        lower.declare_thread_number();
    }
    for (index, param) in plan.program.params.iter().enumerate() {
        let name: Val = match plan.program.ty(param.value).elem() {
            Some(Elem::Bool) => lower.ir.def(format_args!("trunc i8 %p{index} to i1")),
            _ => format!("%p{index}").into(),
        };
        lower.hold(param.value, Layout::scalar(plan.warps), vec![name]);
    }
    match (loading, specialized) {
        (Loading::Specialized(division), Some(specialized)) => {
            lower.specialized_program(specialized, division)?
        }
        _ => {
            lower.region(&plan.program.body)?;
            lower.wait_before(None);
            lower.ir.raw("ret void");
        }
    }
    let (body, outside, lines) = lower.ir.finish();
    let Lower { shared, tensor_maps, decisions, .. } = lower;
    let persistent = specialized.is_some_and(|specialized| specialized.persistent);
    Ok(Lowered { body, outside, lines, shared, tensor_maps, loading, persistent, decisions })
}

impl<'a> Lower<'a> {
    pub(crate) fn program(&self) -> &'a Program {
        self.plan.program
    }

    pub(crate) fn elem(&self, value: Value) -> Result<Elem> {
        self.program().ty(value).elem().ok_or_else(|| self.invalid("a pointer where a number is expected"))
    }

    pub(crate) fn invalid(&self, message: &str) -> Error {
        Error::Invalid { program: self.program().name.clone(), message: message.to_owned() }
    }

    /// Records where the elements of a value are.
    pub(crate) fn hold(&mut self, value: Value, layout: Layout, regs: Vec<Val>) {
        self.held.insert(value, (layout, Rc::new(regs)));
    }

    /// The register of a scalar.
    pub(crate) fn scalar(&mut self, value: Value) -> Result<Val> {
        let regs = self.get(value, &Layout::scalar(self.plan.warps))?;
        regs.first().cloned().ok_or_else(|| self.invalid("a scalar without a value"))
    }

    /// The elements of a value in a layout of its shape.
    pub(crate) fn get(&mut self, value: Value, layout: &Layout) -> Result<Regs> {
        if let Some((home, regs)) = self.held.get(&value)
            && home == layout
        {
            return Ok(regs.clone());
        }
        let key = (value, layout.clone());
        if let Some(regs) = self.copies.iter().rev().find_map(|scope| scope.get(&key)) {
            return Ok(regs.clone());
        }
        let regs = match (self.held.get(&value).cloned(), self.plan.defs[value.index()]) {
            (Some((home, regs)), _) => Rc::new(self.convert(value, (&home, &regs), layout)?),
            (None, Some(op)) => {
                let loc = self.ir.set_loc(op.loc);
                let regs = self.compute(op, value, layout);
                self.ir.set_loc(loc);
                regs?
            }
            (None, None) => return Err(self.invalid("a value is used before it is defined")),
        };
        if let Some(scope) = self.copies.last_mut() {
            scope.insert(key, regs.clone());
        }
        Ok(regs)
    }

    /// Computes a value that is not held, in the layout that is asked for.
    fn compute(&mut self, op: &'a Op, value: Value, layout: &Layout) -> Result<Regs> {
        let arg_shape = op.args.first().map(|&a| log_shape(&self.program().ty(a).shape)).unwrap_or_default();
        match &op.kind {
            OpKind::Const(l) => Ok(Rc::new(vec![literal(*l); layout.num_regs()])),
            OpKind::Splat(_) => Ok(Rc::new(vec![self.scalar(op.args[0])?; layout.num_regs()])),
            OpKind::Range { start, .. } => Ok(Rc::new(self.range(*start, layout))),
            OpKind::ExpandDims(_) | OpKind::Reshape(_) => self.get(op.args[0], &layout.reshape(&arg_shape)),
            OpKind::Permute(perm) => self.get(op.args[0], &layout.unpermute(perm)),
            OpKind::Broadcast(_) => {
                let from = layout.unbroadcast(&arg_shape);
                let regs = self.get(op.args[0], &from)?;
                Ok(Rc::new(repeat(layout, &from, &arg_shape, &regs)))
            }
            OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_) => self.pointwise(op, value, layout),
            OpKind::Assume(_) => self.get(op.args[0], layout),
            OpKind::Join => self.join_tiles(op, layout),
            OpKind::Split => self.half_of_tile(op, value, layout),
            _ => Err(self.invalid("a value is used before it is defined")),
        }
    }

    fn range(&mut self, start: i32, layout: &Layout) -> Vec<Val> {
        let thread = self.thread_part(layout);
        let last = i64::from(start) + (1i64 << layout.shape().iter().sum::<u32>()) - 1;
        let add = if last <= i64::from(i32::MAX) { "add nsw" } else { "add" };
        let base = self.ir.def(format_args!("{add} i32 {thread}, {start}"));
        (0..layout.num_regs())
            .map(|r| match layout.reg_offset(r) {
                0 => base.clone(),
                offset => self.ir.def(format_args!("{add} i32 {base}, {offset}")),
            })
            .collect()
    }

    /// The part of an element's number that the thread gives.
    pub(crate) fn thread_part(&mut self, layout: &Layout) -> Val {
        let bases = layout.threads();
        if let Some(known) = self.threads.get(bases.as_slice()) {
            return known.clone();
        }
        let mut sum: Option<Val> = None;
        let mut bit = 0;
        while bit < bases.len() {
            let run = run_length(&bases, bit);
            if bases[bit] != 0 {
                let part = self.bit_field(bit, run, bases[bit]);
                sum = Some(match sum {
                    Some(sum) => self.ir.entry_def(format_args!("or disjoint i32 {sum}, {part}")),
                    None => part,
                });
            }
            bit += run;
        }
        let sum = sum.unwrap_or_else(|| "0".into());
        self.threads.insert(bases.to_vec(), sum.clone());
        sum
    }

    /// Bits `bit..bit + len` of the thread's number, moved so that the lowest has the value `basis`.
    fn bit_field(&mut self, bit: usize, len: usize, basis: u32) -> Val {
        let mask = ((1u64 << len) - 1) << bit;
        let bits = self.ir.entry_def(format_args!("and i32 %tid, {mask}"));
        let to = basis.trailing_zeros() as usize;
        match to.cmp(&bit) {
            std::cmp::Ordering::Equal => bits,
            std::cmp::Ordering::Greater => {
                self.ir.entry_def(format_args!("shl nuw nsw i32 {bits}, {}", to - bit))
            }
            std::cmp::Ordering::Less => self.ir.entry_def(format_args!("lshr i32 {bits}, {}", bit - to)),
        }
    }

    /// True where the bits of `mask` in the thread's number are all zero.
    pub(crate) fn threads_zero(&mut self, mask: u32) -> Val {
        let bits = self.ir.entry_def(format_args!("and i32 %tid, {mask}"));
        self.ir.entry_def(format_args!("icmp eq i32 {bits}, 0"))
    }

    /// Code of other threads, of whose values none is there behind it.
    pub(super) fn isolated(&mut self, code: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let held = self.held.clone();
        self.copies.push(FxHashMap::default());
        code(self)?;
        self.copies.pop();
        self.held = held;
        Ok(())
    }

    pub(crate) fn region(&mut self, region: &'a Region) -> Result<()> {
        region.ops.iter().try_for_each(|op| self.op(op))
    }

    pub(crate) fn op(&mut self, op: &'a Op) -> Result<()> {
        self.wait_before(Some(op));
        let (around, loc) = (self.decisions.enter(op), self.ir.set_loc(op.loc));
        let done = self.code_of(op);
        self.decisions.enter(around);
        self.ir.set_loc(loc);
        done
    }

    fn code_of(&mut self, op: &'a Op) -> Result<()> {
        match &op.kind {
            OpKind::Load { .. } => self.load(op),
            OpKind::Store { .. } => self.store(op),
            OpKind::Reduce { combine, axis, .. } => self.reduce(op, *combine, usize::from(*axis)),
            OpKind::ReduceWith { axis } => self.reduce_with(op, usize::from(*axis)),
            OpKind::Scan { axis, reverse } => self.scan(op, usize::from(*axis), *reverse),
            OpKind::Gather { axis } => self.gather(op, usize::from(*axis)),
            OpKind::Histogram { bins, .. } => self.histogram(op, *bins),
            OpKind::Dot { .. } => self.dot(op),
            OpKind::Atomic { function, order, scope, .. } => self.atomic(op, *function, (*order, *scope)),
            OpKind::AtomicCas { order, scope } => self.atomic_cas(op, (*order, *scope)),
            OpKind::Print { prefix, hex } => self.print(op, prefix, *hex),
            OpKind::Assert { message, .. } => self.assert(op, message),
            OpKind::For => self.for_loop(op),
            OpKind::While => self.while_loop(op),
            OpKind::If => self.branch(op),
            OpKind::ProgramId(axis) => self.instance(op, *axis, ["ctaid", "clusterid"]),
            OpKind::NumPrograms(axis) => self.instance(op, *axis, ["nctaid", "nclusterid"]),
            OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_) => self.eager(op),
            OpKind::Const(_)
            | OpKind::Range { .. }
            | OpKind::Splat(_)
            | OpKind::ExpandDims(_)
            | OpKind::Broadcast(_)
            | OpKind::Reshape(_)
            | OpKind::Permute(_)
            | OpKind::Join
            | OpKind::Split
            | OpKind::Assume(_)
            | OpKind::Yield => Ok(()),
            OpKind::Philox { .. } => Err(self.invalid("random bits that are not expanded")),
        }
    }

    /// Reads the special register along an axis that is named first, or second in a cluster; a block that computes one instance after
    /// another counts them.
    fn instance(&mut self, op: &Op, axis: u8, registers: [&str; 2]) -> Result<()> {
        if let Some(number) = self.roles.as_ref().and_then(|roles| roles.instance.clone()) {
            let value = match op.kind {
                OpKind::ProgramId(_) => self.instance_along(axis, &number),
                _ => INSTANCES[usize::from(axis % 3)].into(),
            };
            self.hold(op.results[0], Layout::scalar(self.plan.warps), vec![value]);
            return Ok(());
        }
        let register = registers[usize::from(self.plan.cluster > 0)];
        let axis = ["x", "y", "z"][usize::from(axis % 3)];
        let id = self.ir.intrinsic(&format!("llvm.nvvm.read.ptx.sreg.{register}.{axis}"), "i32", &[]);
        self.hold(op.results[0], Layout::scalar(self.plan.warps), vec![id]);
        Ok(())
    }

    /// Computes a pointwise operation where it stands, unless each use does.
    fn eager(&mut self, op: &'a Op) -> Result<()> {
        let result = op.results[0];
        if self.plan.free[result.index()] && self.program().ty(result).rank() > 0 {
            return Ok(());
        }
        let layout = self.plan.home(result);
        let regs = self.pointwise(op, result, &layout)?;
        self.held.insert(result, (layout, regs));
        Ok(())
    }

    fn pointwise(&mut self, op: &'a Op, result: Value, layout: &Layout) -> Result<Regs> {
        let args = op.args.iter().map(|&a| self.get(a, layout)).collect::<Result<Vec<Regs>>>()?;
        let from = self.elem(op.args[0])?;
        let to = self.elem(result)?;
        if let (OpKind::Cast(_), Elem::F32, Elem::F16 | Elem::Bf16) = (&op.kind, from, to) {
            return Ok(Rc::new(self.narrow_pairs(to, &args[0])));
        }
        let distinct = self.distinct(result, layout);
        if let OpKind::Map(function) = &op.kind
            && pairs::takes(*function, to)
            && distinct + 1 == layout.num_regs()
        {
            return Ok(Rc::new(pairs::map(&mut self.ir, *function, to, &args[0], &args[1])));
        }
        let mut out: Vec<Val> = Vec::with_capacity(layout.num_regs());
        for r in 0..layout.num_regs() {
            if r & distinct != r {
                out.push(out[r & distinct].clone());
                continue;
            }
            let operands: Vec<Val> = args.iter().map(|a| a[r].clone()).collect();
            out.push(scalar::operation(&mut self.ir, self.plan.program, op, &operands)?);
        }
        Ok(Rc::new(out))
    }

    /// The register bits that matter: the others lie within groups of elements that are known to be equal.
    fn distinct(&self, value: Value, layout: &Layout) -> usize {
        let same = &self.plan.facts[value.index()].same;
        let matters = |basis: u32| {
            let axis = (0..same.len()).find(|&a| layout.axis_mask(a) & basis != 0);
            axis.is_none_or(|a| u64::from(basis >> layout.axis_mask(a).trailing_zeros()) >= same[a])
        };
        layout.regs().iter().enumerate().filter(|(_, b)| matters(**b)).fold(0, |m, (bit, _)| m | 1 << bit)
    }

    /// Rounds to 16 bits two at a time, for which there is one instruction.
    fn narrow_pairs(&mut self, to: Elem, regs: &[Val]) -> Vec<Val> {
        let t = ty(to);
        if regs.len() < 2 {
            return regs.iter().map(|a| self.ir.def(format_args!("fptrunc float {a} to {t}"))).collect();
        }
        let mut out = Vec::with_capacity(regs.len());
        for pair in regs.chunks_exact(2) {
            let one = self.ir.def(format_args!("insertelement <2 x float> poison, float {}, i32 0", pair[0]));
            let two = self.ir.def(format_args!("insertelement <2 x float> {one}, float {}, i32 1", pair[1]));
            let narrow = self.ir.def(format_args!("fptrunc <2 x float> {two} to <2 x {t}>"));
            for i in 0..2 {
                out.push(self.ir.def(format_args!("extractelement <2 x {t}> {narrow}, i32 {i}")));
            }
        }
        out
    }

    /// The type of a value in registers.
    pub(crate) fn register_ty(&self, value: Value) -> &'static str {
        match self.program().ty(value).kind {
            Kind::Elem(e) => ty(e),
            Kind::Ptr(_) => "ptr addrspace(1)",
        }
    }

    /// Waits for all threads of the instance, and makes their writes visible to each other.
    pub(crate) fn barrier(&mut self, why: BarrierReason) {
        self.decisions.wait(why);
        match self.plan.cluster {
            0 => self.block_barrier(),
            _ => self.cluster_barrier(),
        }
        self.hazards.clear();
    }

    /// Scratch memory of so many bytes, free to be written.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        let allocation = self.shared.for_scratch(bytes);
        self.decisions.allocate(allocation);
        if allocation.waits {
            self.barrier(BarrierReason::Reused);
        }
    }

    /// Waits for all threads of the block that compute the instance, and makes their writes to shared memory visible to each other.
    pub(crate) fn block_barrier(&mut self) {
        if self.roles.is_some() {
            return self.consumer_barrier();
        }
        self.ir.declare("void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent nounwind");
        self.ir.raw("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)");
    }
}

/// How many bits from `bit` on are the neighbours of one another in the element's number too.
fn run_length(bases: &[u32], bit: usize) -> usize {
    let same = |i: usize| match bases[bit] {
        0 => bases[i] == 0,
        first => u64::from(bases[i]) == u64::from(first) << (i - bit),
    };
    (bit..bases.len()).take_while(|&i| same(i)).count()
}

/// The registers of a broadcast's result from those of its operand.
fn repeat(to: &Layout, from: &Layout, shape: &crate::layout::LogShape, regs: &[Val]) -> Vec<Val> {
    let kept: Vec<bool> = to
        .regs()
        .iter()
        .map(|&basis| (0..shape.len()).any(|a| to.axis_mask(a) & basis != 0 && shape[a] == to.shape()[a]))
        .collect();
    debug_assert_eq!(kept.iter().filter(|k| **k).count(), from.regs().len());
    (0..to.num_regs()).map(|r| regs[gather_bits(r, &kept)].clone()).collect()
}

/// The bits of `x` that are kept, moved together.
pub(crate) fn gather_bits(x: usize, kept: &[bool]) -> usize {
    let bits = kept.iter().enumerate().filter(|(_, kept)| **kept);
    bits.enumerate().fold(0, |sum, (to, (from, _))| sum | (x >> from & 1) << to)
}
