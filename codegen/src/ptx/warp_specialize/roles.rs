//! The code of both roles: the thread that starts copies, and those that compute.

use tilefuse_block::{Op, Value};

use super::ping_pong::Turns;
use super::{Division, INSTANCES, PRODUCERS, Specialized};
use crate::error::Result;
use crate::layout::Layout;
use crate::ptx::dot::Staged;
use crate::ptx::ir::Val;
use crate::ptx::lower::Lower;
use crate::ptx::pressure;
use crate::ptx::software_pipeline::Pipeline;

/// Registers of a thread: of the producer's, and of each of 256 others.
const REGISTERS: [u32; 2] = [24, 240];
/// So many registers may tiles need where each of 384 threads keeps the 168 that it begins with.
const MAX_UNCHANGED: u64 = 128;
/// The named barrier of those that compute, or of their first group.
pub(super) const BARRIER: u32 = 1;

/// What the threads of a specialised program share while it is lowered.
pub(crate) struct Roles {
    pub(in crate::ptx) stages: u64,
    /// Where the mbarriers of stages begin that have been filled, and of those that have been read.
    pub(in crate::ptx) full: u64,
    empty: u64,
    /// Of several groups of threads that compute: what they take turns by.
    pub(super) turns: Option<Turns>,
    /// The number of the instance, where a block computes one after another.
    pub(in crate::ptx) instance: Option<Val>,
    /// Whether two warpgroups start their products alternately.
    pub(in crate::ptx) alternating: bool,
    /// How many instances of the block come before it.
    pub(super) before: Val,
    /// Operands that the instance has written behind the stages.
    pub(in crate::ptx) residents: Vec<(Value, Staged)>,
    /// The stage that comes next, and the parity of its phase, where one group computes.
    pub(in crate::ptx) stage: Val,
    pub(in crate::ptx) parity: Val,
}

/// The instances of a block that some of its threads take.
struct Share {
    /// How many of the block come before the first one.
    first: Val,
    /// Of so many, one is taken.
    step: u32,
}

impl<'a> Lower<'a> {
    /// The code of a specialised program.
    pub(in crate::ptx) fn specialized_program(
        &mut self,
        specialized: &Specialized<'a>,
        Division { stages, groups }: Division,
    ) -> Result<()> {
        let of_group = 1u32 << self.plan.block_bits();
        let threads = groups * of_group;
        let count = stages * specialized.products;
        let [full, empty] = [(); 2].map(|()| self.shared.for_barriers(count));
        let turns = (groups > 1).then(|| self.shared.for_barriers(groups.into()));
        self.shared.enter_stages();
        self.shared.enter_loop();
        self.ir.declare("i32 @llvm.nvvm.read.ptx.sreg.tid.x()");
        let thread = self.ir.def(thread_index(threads + PRODUCERS));
        let first = self.ir.def(format_args!("icmp eq i32 {thread}, 0"));
        let turn = turns.map(|turns| (turns, groups.into(), of_group));
        let barriers: Vec<_> =
            [(full, count, 1), (empty, count, of_group / 32)].into_iter().chain(turn).collect();
        self.init_mbarriers(&first, &barriers);
        self.fence_async_proxy();
        self.block_barrier();
        // Both roles read memory of the work before: the producer from its first copy on.
        self.wait_before(None);
        let of_block = specialized.persistent.then(|| self.instances_of_block());
        let of_block = of_block.as_ref();
        let produces = self.ir.def(format_args!("icmp uge i32 {thread}, {threads}"));
        self.ir.raw(format_args!("br i1 {produces}, label %producer, label %consumer"));

        self.ir.begin("producer");
        self.set_registers("dec", REGISTERS[0]);
        let one = self.ir.def(format_args!("icmp eq i32 {thread}, {threads}"));
        self.ir.raw(format_args!("br i1 {one}, label %copies, label %idle"));
        self.ir.begin("idle");
        self.ir.raw("ret void");
        self.ir.begin("copies");
        let zero: Val = "0".into();
        let roles = Roles {
            stages,
            full,
            empty,
            turns: None,
            instance: None,
            alternating: false,
            before: zero.clone(),
            residents: Vec::new(),
            stage: zero.clone(),
            parity: zero.clone(),
        };
        self.roles = Some(roles);
        let all = Share { first: zero.clone(), step: 1 };
        self.isolated(|lower| {
            lower.over_instances("copied", of_block, &all, |lower| lower.produce(specialized))
        })?;

        self.ir.begin("consumer");
        self.set_registers("inc", REGISTERS[1]);
        self.begin_alternating(&specialized.loops, &thread);
        let turns = turns.map(|barriers| self.divide(barriers, &thread));
        let first = turns.as_ref().map_or(zero, |turns| turns.group.clone());
        let after = self.ir.mark();
        if let Some(roles) = &mut self.roles {
            roles.turns = turns;
            (roles.stage, roles.parity) = ("0".into(), "0".into());
        }
        self.over_instances("computed", of_block, &Share { first, step: groups }, |lower| {
            lower.declare_thread_of_group(threads);
            lower.ir.enter();
            lower.compute_instance(specialized)
        })?;
        self.place_memory_of_group(after);
        Ok(())
    }

    /// Defines `%tid`, the thread's number among those that compute an instance.
    fn declare_thread_of_group(&mut self, threads: u32) {
        let of_group = 1u32 << self.plan.block_bits();
        if of_group == threads {
            return self.ir.raw(format_args!("%tid = {}", thread_index(threads)));
        }
        let thread = self.ir.def(thread_index(threads));
        self.ir.raw(format_args!("%tid = and i32 {thread}, {}", of_group - 1));
    }

    /// The number of the block's first instance, the distance to its next one, and how many there are.
    fn instances_of_block(&mut self) -> [Val; 3] {
        let block = self.ir.intrinsic("llvm.nvvm.read.ptx.sreg.ctaid.x", "i32", &[]);
        let blocks = self.ir.intrinsic("llvm.nvvm.read.ptx.sreg.nctaid.x", "i32", &[]);
        let [x, y, z] = INSTANCES;
        let area = self.ir.def(format_args!("mul i32 {x}, {y}"));
        let all = self.ir.def(format_args!("mul i32 {area}, {z}"));
        [block, blocks, all]
    }

    /// Along an axis, the number of an instance, given as its number among all, of which those along the first axis follow each other.
    pub(in crate::ptx) fn instance_along(&mut self, axis: u8, number: &Val) -> Val {
        let [x, y, _] = INSTANCES;
        match axis {
            0 => self.ir.def(format_args!("urem i32 {number}, {x}")),
            _ => {
                let rest = self.ir.def(format_args!("udiv i32 {number}, {x}"));
                let how = if axis == 1 { "urem" } else { "udiv" };
                self.ir.def(format_args!("{how} i32 {rest}, {y}"))
            }
        }
    }

    /// Computes an instance.
    fn compute_instance(&mut self, specialized: &Specialized<'a>) -> Result<()> {
        let is_ahead = |op: &Op| specialized.ahead.iter().any(|other| std::ptr::eq(*other, op));
        for op in &self.plan.program.body.ops {
            if specialized.loops.last().is_some_and(|(last, _)| std::ptr::eq(*last, op)) {
                specialized.ahead.iter().try_for_each(|op| self.op(op))?;
            }
            if !is_ahead(op) {
                self.op(op)?;
            }
        }
        Ok(())
    }

    /// Changes the number of registers of the threads of a warpgroup, where those of a block could not all have as many as code may use.
    fn set_registers(&mut self, how: &str, count: u32) {
        let few = self.shared.groups << self.plan.block_bits() < 256;
        if few || self.shared.groups > 1 && pressure::registers(self.plan) <= MAX_UNCHANGED {
            return;
        }
        self.ir
            .declare(&format!("void @llvm.nvvm.setmaxnreg.{how}.sync.aligned.u32(i32) convergent nounwind"));
        self.ir.raw(format_args!("call void @llvm.nvvm.setmaxnreg.{how}.sync.aligned.u32(i32 {count})"));
    }

    /// Code for each instance of a share of those of the block, one after another, or for the only one; then the thread ends.
    fn over_instances(
        &mut self,
        label: &str,
        of_block: Option<&[Val; 3]>,
        Share { first, step }: &Share,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some([block, blocks, all]) = of_block else {
            body(self)?;
            self.ir.raw("ret void");
            return Ok(());
        };
        let skipped = self.ir.def(format_args!("mul i32 {first}, {blocks}"));
        let start = self.ir.def(format_args!("add i32 {block}, {skipped}"));
        let stride = self.ir.def(format_args!("mul i32 {blocks}, {step}"));
        let entry = self.ir.block().to_owned();
        let [instance, before, stage, parity] = [(); 4].map(|()| self.ir.fresh());
        self.ir.raw(format_args!("br label %all_{label}"));
        self.ir.begin(&format!("all_{label}"));
        let marker = self.ir.mark();
        let more = self.ir.def(format_args!("icmp ult i32 {instance}, {all}"));
        self.ir.raw(format_args!("br i1 {more}, label %one_{label}, label %end_{label}"));
        self.ir.begin(&format!("one_{label}"));
        if let Some(roles) = &mut self.roles {
            (roles.instance, roles.before) = (Some(instance.clone()), before.clone());
            (roles.stage, roles.parity) = (stage.clone(), parity.clone());
        }
        body(self)?;
        let next = self.ir.def(format_args!("add i32 {instance}, {stride}"));
        let next_before = self.ir.def(format_args!("add i32 {before}, {step}"));
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %all_{label}, !llvm.loop !0"));
        let phi = |name: &Val, from: &Val, next: &Val| {
            format!("{name} = phi i32 [ {from}, %{entry} ], [ {next}, %{last} ]")
        };
        let roles = self.roles.as_ref().map(|roles| (roles.stage.clone(), roles.parity.clone()));
        let (next_stage, next_parity) = roles.unwrap_or_default();
        let zero: Val = "0".into();
        let phis = [
            phi(&instance, &start, &next),
            phi(&before, first, &next_before),
            phi(&stage, &zero, &next_stage),
            phi(&parity, &zero, &next_parity),
        ];
        self.ir.insert(marker, &phis);
        self.ir.begin(&format!("end_{label}"));
        self.ir.raw("ret void");
        Ok(())
    }

    /// Starts the copies of an instance's loops.
    fn produce(&mut self, specialized: &Specialized<'a>) -> Result<()> {
        specialized.scalars.iter().try_for_each(|op| self.op(op))?;
        specialized.loops.iter().try_for_each(|(op, pipeline)| self.produce_loop(op, pipeline))
    }

    /// Starts the copies of a loop, those of each iteration's products where their stage is free.
    fn produce_loop(&mut self, op: &'a Op, pipeline: &Pipeline<'a>) -> Result<()> {
        let [lo, hi, step] = [self.scalar(op.args[0])?, self.scalar(op.args[1])?, self.scalar(op.args[2])?];
        let [lo, hi, step] = [lo, hi, step].map(|v| self.ir.def(format_args!("sext i32 {v} to i64")));
        let [index, stage, parity, next_stage, next_parity] = [(); 5].map(|()| self.ir.fresh());
        let Some(&Roles { stages, full, empty, .. }) = self.roles.as_ref() else { return Ok(()) };
        let [first_stage, first_parity] = self.first_stage(pipeline, [&lo, &hi, &step]);
        let n = self.ir.label();
        let before = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %head_of_copies{n}"));
        self.ir.begin(&format!("head_of_copies{n}"));
        let marker = self.ir.mark();
        let runs = self.ir.def(format_args!("icmp slt i64 {index}, {hi}"));
        self.ir.raw(format_args!("br i1 {runs}, label %copy{n}, label %all_started{n}"));
        self.ir.begin(&format!("copy{n}"));
        let narrow = self.ir.def(format_args!("trunc i64 {index} to i32"));
        self.hold(op.regions[0].args[0], Layout::scalar(self.plan.warps), vec![narrow]);
        pipeline.scalars.iter().try_for_each(|op| self.op(op))?;
        // The first round finds every stage free: what has not begun counts as the end of the phase before.
        let ended = self.ir.def(format_args!("xor i32 {parity}, 1"));
        for (number, product) in (0..).zip(&pipeline.products) {
            let barrier = self.stage_barrier(pipeline, empty + 8 * stages * number, &stage);
            self.wait_for_phase(&barrier, &ended);
            let barrier = self.stage_barrier(pipeline, full + 8 * stages * number, &stage);
            let loads = pipeline.placed(self, &stage, Some(product));
            self.copy_boxes(&loads, &barrier)?;
        }
        let wraps = self.next_stage((pipeline.stage, stages), &stage, &next_stage);
        self.next_parity(&wraps, &parity, &next_parity);
        let next = self.ir.def(format_args!("add nsw i64 {index}, {step}"));
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %head_of_copies{n}, !llvm.loop !0"));
        let phi = |name: &Val, ty: &str, from: &Val, next: &Val| {
            format!("{name} = phi {ty} [ {from}, %{before} ], [ {next}, %{last} ]")
        };
        let phis = [
            phi(&index, "i64", &lo, &next),
            phi(&stage, "i32", &first_stage, &next_stage),
            phi(&parity, "i32", &first_parity, &next_parity),
        ];
        if let Some(roles) = &mut self.roles {
            (roles.stage, roles.parity) = (stage, parity);
        }
        self.ir.insert(marker, &phis);
        self.ir.begin(&format!("all_started{n}"));
        Ok(())
    }

    /// The stage that a loop begins with, and the parity of its phase: the one behind that of the loop before.
    ///
    /// Of several groups that compute, none sees the loops of the others, which have bounds that are the same in all instances: the
    /// block's loops before have filled all stages some times and have then come to this one.
    pub(in crate::ptx) fn first_stage(
        &mut self,
        pipeline: &Pipeline<'_>,
        [lo, hi, step]: [&Val; 3],
    ) -> [Val; 2] {
        let Some(Roles { stages, before, turns, stage, parity, .. }) = &self.roles else {
            return [(); 2].map(|()| "0".into());
        };
        if turns.is_none() {
            return [stage.clone(), parity.clone()];
        }
        let (stages, before) = (*stages, before.clone());
        // Twice as many, after which parities are the same again.
        let around = 2 * stages;
        let end = self.ir.intrinsic("llvm.smax.i64", "i64", &[lo, hi]);
        let step = self.ir.intrinsic("llvm.smax.i64", "i64", &[step, &"1".into()]);
        let length = self.ir.def(format_args!("sub i64 {end}, {lo}"));
        let whole = self.ir.def(format_args!("add i64 {length}, {step}"));
        let whole = self.ir.def(format_args!("sub i64 {whole}, 1"));
        let iterations = self.ir.def(format_args!("udiv i64 {whole}, {step}"));
        let iterations = self.ir.def(format_args!("urem i64 {iterations}, {around}"));
        let iterations = self.ir.def(format_args!("trunc i64 {iterations} to i32"));
        let before = self.ir.def(format_args!("urem i32 {before}, {around}"));
        let filled = self.ir.def(format_args!("mul i32 {before}, {iterations}"));
        let filled = self.ir.def(format_args!("urem i32 {filled}, {around}"));
        let number = self.ir.def(format_args!("urem i32 {filled}, {stages}"));
        let stage = self.ir.def(format_args!("mul i32 {number}, {}", pipeline.stage));
        let parity = self.ir.def(format_args!("udiv i32 {filled}, {stages}"));
        [stage, parity]
    }

    /// Waits until the operands of a product have arrived in a stage, whose phase has a parity.
    pub(in crate::ptx) fn wait_for_stage(
        &mut self,
        (pipeline, number): (&Pipeline<'_>, u64),
        stage: &Val,
        parity: &Val,
    ) {
        let Some(&Roles { stages, full, .. }) = self.roles.as_ref() else { return };
        let barrier = self.stage_barrier(pipeline, full + 8 * stages * number, stage);
        self.wait_for_phase(&barrier, parity);
    }

    /// Tells the producer that the warps of this thread have read the operands of a product in a stage, where a condition holds.
    pub(in crate::ptx) fn release_stage(
        &mut self,
        (pipeline, number): (&Pipeline<'_>, u64),
        stage: &Val,
        condition: Option<&Val>,
    ) {
        let Some(&Roles { stages, empty, .. }) = self.roles.as_ref() else { return };
        let lane = self.threads_zero(31);
        let arrives = match condition {
            Some(condition) => self.ir.def(format_args!("and i1 {lane}, {condition}")),
            None => lane,
        };
        let barrier = self.stage_barrier(pipeline, empty + 8 * stages * number, stage);
        self.arrive(&barrier, &arrives);
    }

    /// Waits for all threads that compute the instance.
    pub(in crate::ptx) fn consumer_barrier(&mut self) {
        let threads = 1u32 << self.plan.block_bits();
        let barrier = self.barrier_of_group();
        self.ir.declare("void @llvm.nvvm.barrier.cta.sync.aligned.count(i32, i32) convergent nounwind");
        self.ir.raw(format_args!(
            "call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {barrier}, i32 {threads})"
        ));
    }
}

/// The thread's number in its block, of so many.
fn thread_index(threads: u32) -> String {
    format!("call range(i32 0, {threads}) i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
}
