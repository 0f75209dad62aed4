//! Loop rotation: the second of two products runs beside the first one of the next iteration and what lies between them.
//!
//! In attention the sums of values need the exponentials of scores, which need the product of queries and keys; each waits for the one
//! before, and the matrix unit for the exponentials. Where a producer warpgroup loads the operands (`warp_specialize.rs`), the
//! first product of an iteration is started, then the second one of the iteration before, and all that does not need the sums is
//! computed while that runs.
//!
//! ```text
//! kernel @attention(%q: ptr<bf16> align(16), %k: ptr<bf16> align(16), %v: ptr<bf16> align(16), %z: ptr<bf16> align(16)) warps(8) {
//!   %none = const 0 : i32
//!   %end = const 4096 : i32
//!   %step = const 128 : i32
//!   %id = program_id 0
//!   %first = map mul %id, %step
//!   %r = range 0 128
//!   %firsts = splat %first [128]
//!   %row = map add %firsts, %r
//!   %pitch = const 64 : tile<128xi32>
//!   %down = map mul %row, %pitch
//!   %downs = expand_dims %down axis 1
//!   %a = broadcast %downs [128, 64]
//!   %c = range 0 64
//!   %cols = expand_dims %c axis 0
//!   %b = broadcast %cols [128, 64]
//!   %at = map add %a, %b
//!   %queries = load %q, %at
//!   %low = const -inf : tile<128xf32>
//!   %zero = const 0.0 : tile<128xf32>
//!   %zeros = const 0.0 : tile<128x64xf32>
//!   %blank = const 0.0 : tile<128x128xf32>
//!   %most, %sum, %out = for %j in %none..%end step %step with (%m = %low, %l = %zero, %acc = %zeros) {
//!     %js = splat %j [128]
//!     %key = map add %js, %r
//!     %begin = map mul %key, %pitch
//!     %begins = expand_dims %begin axis 1
//!     %d = broadcast %begins [128, 64]
//!     %place = map add %d, %b
//!     %keys = load %k, %place
//!     %turned = permute %keys [1, 0]
//!     %scores = dot %queries, %turned, %blank
//!     %here = reduce max %scores axis 1
//!     %top = map max %m, %here
//!     %tops = expand_dims %top axis 1
//!     %e = broadcast %tops [128, 128]
//!     %less = map sub %scores, %e
//!     %weights = map exp2 %less
//!     %lost = map sub %m, %top
//!     %factor = map exp2 %lost
//!     %total = reduce sum %weights axis 1
//!     %next = map fma %l, %factor, %total
//!     %rounded = cast %weights bf16
//!     %factors = expand_dims %factor axis 1
//!     %f = broadcast %factors [128, 64]
//!     %before = map mul %acc, %f
//!     %values = load %v, %place
//!     %new = dot %rounded, %values, %before
//!     yield %top, %next, %new
//!   }
//!   %sums = expand_dims %sum axis 1
//!   %g = broadcast %sums [128, 64]
//!   %mean = map div %out, %g
//!   %result = cast %mean bf16
//!   store %z, %at, %result
//! }
//! ```
//!
//! ```text
//! // sm_90a: 8 warps, about 136 registers a thread
//! kernel @attention(%q: ptr<bf16> align(16), %k: ptr<bf16> align(16), %v: ptr<bf16> align(16), %z: ptr<bf16> align(16)) warps(8) {
//!   %none = const 0 : i32
//!   %end = const 4096 : i32
//!   %step = const 128 : i32
//!   %id = program_id 0
//!   %first = map mul %id, %step
//!   %r = range 0 128
//!   %firsts = splat %first [128]
//!   %row = map add %firsts, %r
//!   %pitch = const 64 : tile<128xi32>
//!   %down = map mul %row, %pitch
//!   %downs = expand_dims %down axis 1
//!   %a = broadcast %downs [128, 64]
//!   %c = range 0 64
//!   %cols = expand_dims %c axis 0
//!   %b = broadcast %cols [128, 64]
//!   %at = map add %a, %b
//!   %queries = load %q, %at
//!   %low = const -inf : tile<128xf32>
//!   %zero = const 0.0 : tile<128xf32>
//!   %zeros = const 0.0 : tile<128x64xf32>
//!   %blank = const 0.0 : tile<128x128xf32>
//!   %0 = const 64 : i32
//!   %1 = map mul %r, %pitch
//!   %most, %sum, %out = for %j in %none..%end step %step with (%m = %low, %l = %zero, %acc = %zeros) {
//!                                // pipeline: 4 stages of 32768 bytes: %keys 16384 bytes at 0, %values 16384 bytes at 16384, copied by the tensor memory accelerator
//!                                // pipeline: %queries is written once, 16384 bytes at 0 behind the stages
//!                                // pipeline: %new runs beside %scores of the next iteration and what follows from that
//!                                // pipeline: a producer warpgroup starts the copies, and those of the block's next instance
//!     %2 = map mul %j, %0
//!     %3 = splat %2 [128]
//!     %begin = map add %3, %1
//!     %begins = expand_dims %begin axis 1
//!     %d = broadcast %begins [128, 64]
//!     %place = map add %d, %b
//!     %keys = load %k, %place    // pipeline: runs ahead, to shared memory
//!     %turned = permute %keys [1, 0]
//!     %scores = dot %queries, %turned, %blank
//!     %here = reduce max %scores axis 1
//!     %top = map max %m, %here
//!     %tops = expand_dims %top axis 1
//!     %e = broadcast %tops [128, 128]
//!     %less = map sub %scores, %e
//!     %weights = map exp2_approx %less
//!     %lost = map sub %m, %top
//!     %factor = map exp2_approx %lost
//!     %total = reduce sum %weights axis 1
//!     %next = map fma %l, %factor, %total
//!     %rounded = cast %weights bf16
//!     %factors = expand_dims %factor axis 1
//!     %f = broadcast %factors [128, 64]
//!     %before = map mul %acc, %f
//!     %values = load %v, %place  // pipeline: runs ahead, to shared memory
//!     %new = dot %rounded, %values, %before
//!     yield %top, %next, %new
//!   }
//!   %4 = map abs %sum
//!   %5 = const 5.421011e-20 : tile<128xf32>
//!   %6 = map lt %4, %5
//!   %7 = const 1.8446744e19 : tile<128xf32>
//!   %8 = const 1.0 : tile<128xf32>
//!   %9 = map select %6, %7, %8
//!   %10 = expand_dims %9 axis 1
//!   %11 = map mul %sum, %9
//!   %12 = map div %8, %11
//!   %13 = expand_dims %12 axis 1
//!   %14 = broadcast %10 [128, 64]
//!   %15 = broadcast %13 [128, 64]
//!   %16 = map mul %out, %14
//!   %mean = map mul %16, %15
//!   %result = cast %mean bf16
//!   store %z, %at, %result
//! }
//! ```
//!
//! Two warpgroups take turns: one starts its products while the other computes exponentials, for which the processor has one unit as
//! well. What comes before the first loop here is its first iteration, and the last product comes behind it:
//!
//! ```txt
//! %scores = dot %queries, %turned, %blank
//! %weights, %factor, ... = ...
//! %rounded, %before = ...
//! for %j, from the second iteration on:
//!   start %scores = dot %queries, %turned, %blank
//!   start %acc = dot %rounded, %values, %before      of the iteration before
//!   wait for %scores
//!   %weights, %factor, ... = ...
//!   wait for %acc
//!   %rounded, %before = ...
//! %out = dot %rounded, %values, %before
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{Op, OpKind, Region, Value};

use super::assign::Assignment;
use super::dot::{self, Prepared};
use super::ir::Val;
use super::lower::{Lower, Regs};
use super::passes::Seen;
use super::pressure;
use super::software_pipeline::{Pipeline, Running};
use crate::error::Result;
use crate::layout::Layout;

/// The named barriers at which two warpgroups wait for their turn, the first one's before the second one's.
const TURNS: u32 = 2;

/// Multiplications for each exponential from which on products take most of an iteration: attention of heads of 128.
const MIN_MULTIPLIED: u32 = 256;

/// So many registers the tiles of a rotated loop may need.
const MAX_REGISTERS: u64 = 224;

/// How a loop is rotated.
pub(crate) struct Rotation<'a> {
    /// The products of an iteration.
    first: &'a Op,
    second: &'a Op,
    /// Which of the carried values the second one makes.
    sums: usize,
    /// What comes after the second product of the iteration before, in order.
    late: Vec<&'a Op>,
}

impl<'a> Rotation<'a> {
    /// Multiplications of both products for each element of the first one.
    fn multiplied(&self, plan: &Assignment<'a>) -> u32 {
        let inner = |value: Value| plan.program.ty(value).shape.last().copied().unwrap_or(1);
        inner(self.first.args[0]) + inner(self.second.results[0])
    }

    /// How a loop can be rotated whose stages a producer warpgroup fills.
    pub(super) fn of(plan: &Assignment<'a>, op: &'a Op, pipeline: &Pipeline<'a>) -> Option<Rotation<'a>> {
        let body = op.regions.first()?;
        let dots = body.ops.iter().filter(|op| matches!(op.kind, OpKind::Dot { .. })).count();
        let &[first, second] = &pipeline.products[..] else { return None };
        if dots != 2 || ![first, second].iter().all(|op| plan.is_grouped(op)) {
            return None;
        }
        let made = second.results[0];
        let last = body.ops.last().filter(|op| op.kind == OpKind::Yield)?;
        let sums = last.args.iter().position(|&arg| arg == made)?;
        let carried = *body.args.get(sums + 1)?;
        let layout = plan.accumulator(second, dot::unit(plan.program, second)?);
        let alone = plan.program.uses()[made.index()] == 1;
        if !alone || plan.home(carried) != layout || !dot::takes_registers(plan, second) {
            return None;
        }
        let late = late(plan, body, (first, second), carried)?;
        // Of the iteration before, the left operand is held beside what this one makes.
        let words = plan.home(second.args[0]).num_regs() as u64 / 2;
        let fits = pressure::registers(plan) + words <= MAX_REGISTERS;
        fits.then_some(Rotation { first, second, sums, late })
    }
}

/// The operations that need the sums of the iteration before, if only the second product needs them in turn, and the rounding of that
/// product's left operand, which would be held twice otherwise.
fn late<'a>(
    plan: &Assignment<'a>,
    body: &'a Region,
    (first, second): (&'a Op, &'a Op),
    carried: Value,
) -> Option<Vec<&'a Op>> {
    let mut needs: FxHashSet<Value> = [carried].into_iter().collect();
    let mut late = Vec::new();
    let uses = plan.program.uses();
    for op in &body.ops {
        let rounds = matches!(op.kind, OpKind::Cast(_)) && op.results[0] == second.args[0];
        let alone = rounds && uses[op.results[0].index()] == 1;
        if std::ptr::eq(op, second) || !(alone || op.args.iter().any(|arg| needs.contains(arg))) {
            continue;
        }
        if !op.kind.is_pure() || !op.regions.is_empty() || op.kind == OpKind::Yield || std::ptr::eq(op, first)
        {
            return None;
        }
        if !alone {
            needs.extend(&op.results);
        }
        late.push(op);
    }
    (!needs.contains(&second.args[0])).then_some(late)
}

/// A stage, as the byte where it begins and the parity of its phase.
#[derive(Clone)]
struct Stage {
    at: Val,
    parity: Val,
}

/// What the second product of an iteration takes when the next one has begun.
struct Deferred {
    words: Vec<Val>,
    sums: Vec<Val>,
    stage: Stage,
}

/// What an iteration leaves for the next one.
struct Left {
    /// All carried values but the sums.
    carried: Vec<Option<Regs>>,
    words: Vec<Val>,
    sums: Vec<Val>,
}

impl<'a> Lower<'a> {
    /// How a loop is rotated, if it is.
    pub(super) fn rotation(&self, op: &'a Op, running: &Running<'a>) -> Option<Rotation<'a>> {
        self.roles.as_ref()?;
        Rotation::of(self.plan, op, &running.pipeline)
    }

    /// A loop that is rotated, with its first values; what it leaves of each.
    pub(super) fn rotated_loop(
        &mut self,
        op: &'a Op,
        (running, rotation): (&Running<'a>, &Rotation<'a>),
        (layouts, init): (&[Layout], &[Regs]),
    ) -> Result<Vec<Vec<Val>>> {
        let args = &op.regions[0].args[1..];
        let n = self.ir.label();
        let [first, head, body, last, exit] =
            ["first", "head", "body", "last", "exit"].map(|name| format!("{name}{n}"));
        let [at, parity] = running.first.clone();
        let entered = Stage { at, parity };
        let Running { lo, hi, step, .. } = running;
        let before = self.ir.block().to_owned();
        let any = self.ir.def(format_args!("icmp slt i64 {lo}, {hi}"));
        self.ir.raw(format_args!("br i1 {any}, label %{first}, label %{exit}"));

        self.ir.begin(&first);
        self.hold_carried(args, layouts, init, None);
        let from_first =
            self.rotated_iteration(op, (running, rotation), (lo, &entered), Err(&init[rotation.sums]))?;
        let second_stage = self.stage_behind(running, &entered);
        let second_index = self.ir.def(format_args!("add nsw i64 {lo}, {step}"));
        let first = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}"));

        self.ir.begin(&head);
        let fresh =
            |lower: &mut Self, count: usize| (0..count).map(|_| lower.ir.fresh()).collect::<Vec<Val>>();
        let [index, at, parity, at_before, parity_before] = [(); 5].map(|()| self.ir.fresh());
        let carried: Vec<Regs> = init.iter().map(|regs| fresh(self, regs.len()).into()).collect();
        let stage = Stage { at, parity };
        let deferred = Deferred {
            words: fresh(self, from_first.words.len()),
            sums: fresh(self, from_first.sums.len()),
            stage: Stage { at: at_before, parity: parity_before },
        };
        let marker = self.ir.mark();
        self.ir.raw(format_args!("br i1 %c{n}, label %{body}, label %{last}"));

        self.ir.begin(&body);
        self.hold_carried(args, layouts, &carried, Some(rotation.sums));
        let from_body = self.rotated_iteration(op, (running, rotation), (&index, &stage), Ok(&deferred))?;
        let next_stage = self.stage_behind(running, &stage);
        let next_index = self.ir.def(format_args!("add nsw i64 {index}, {step}"));
        let body = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}, !llvm.loop !0"));
        let phi = |name: &Val, ty: &str, one: &Val, two: &Val| {
            format!("{name} = phi {ty} [ {one}, %{first} ], [ {two}, %{body} ]")
        };
        let mut phis = vec![
            phi(&index, "i64", &second_index, &next_index),
            phi(&stage.at, "i32", &second_stage.at, &next_stage.at),
            phi(&stage.parity, "i32", &second_stage.parity, &next_stage.parity),
            phi(&deferred.stage.at, "i32", &entered.at, &stage.at),
            phi(&deferred.stage.parity, "i32", &entered.parity, &stage.parity),
        ];
        let mut all = |ty: &str, names: &[Val], one: &[Val], two: &[Val]| {
            phis.extend(
                names.iter().zip(one.iter().zip(two)).map(|(name, (one, two))| phi(name, ty, one, two)),
            );
        };
        all("i32", &deferred.words, &from_first.words, &from_body.words);
        all("float", &deferred.sums, &from_first.sums, &from_body.sums);
        for (i, names) in carried.iter().enumerate() {
            if let (Some(one), Some(two)) = (&from_first.carried[i], &from_body.carried[i]) {
                all(self.register_ty(args[i]), names, one, two);
            }
        }
        phis.push(format!("%c{n} = icmp slt i64 {index}, {hi}"));
        self.ir.insert(marker, &phis);

        self.ir.begin(&last);
        let mut product = self.deferred_product((running, rotation), &deferred)?;
        self.start_deferred(running, &mut product, &deferred.stage);
        let sums = self.finish_deferred(running, &product, &deferred.stage);
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{exit}"));

        self.ir.begin(&exit);
        let join = |lower: &mut Self, ty: &str, one: &Val, two: &Val| {
            lower.ir.def(format_args!("phi {ty} [ {one}, %{before} ], [ {two}, %{last} ]"))
        };
        let at = join(self, "i32", &entered.at, &stage.at);
        let parity = join(self, "i32", &entered.parity, &stage.parity);
        let mut results = Vec::new();
        for (i, (init, names)) in init.iter().zip(&carried).enumerate() {
            let (ty, names) =
                (self.register_ty(args[i]), if i == rotation.sums { &sums } else { &names[..] });
            results.push(init.iter().zip(names).map(|(one, two)| join(self, ty, one, two)).collect());
        }
        if let Some(roles) = &mut self.roles {
            (roles.stage, roles.parity) = (at, parity);
        }
        Ok(results)
    }

    /// An iteration without its second product, beside that of the iteration before; the first one has the sums that the loop
    /// begins with.
    fn rotated_iteration(
        &mut self,
        op: &'a Op,
        (running, rotation): (&Running<'a>, &Rotation<'a>),
        (index, stage): (&Val, &Stage),
        before: std::result::Result<&Deferred, &Regs>,
    ) -> Result<Left> {
        let body = &op.regions[0];
        self.copies.push(FxHashMap::default());
        let number = self.ir.def(format_args!("trunc i64 {index} to i32"));
        self.hold(running.induction, Layout::scalar(self.plan.warps), vec![number]);
        let is = |op: &Op, other: &Op| std::ptr::eq(op, other);
        let waits = |op: &Op| is(op, rotation.second) || rotation.late.iter().any(|late| is(late, op));
        let mut deferred = None;
        for op in body.ops.iter().filter(|op| !waits(op)) {
            if is(op, rotation.first) {
                deferred = self.start_both((running, rotation), stage, before.ok())?;
            } else if !self.is_ahead(Some(running), op) {
                self.op(op)?;
            }
        }
        let sums = match (before, &deferred) {
            (Ok(before), Some(product)) => self.finish_deferred(running, product, &before.stage),
            (Err(init), _) => init.to_vec(),
            (Ok(_), None) => return Err(self.invalid("a rotated loop without its first product")),
        };
        let carried = body.args[rotation.sums + 1];
        self.hold(carried, self.plan.home(carried), sums);
        rotation.late.iter().try_for_each(|op| self.op(op))?;
        let left = self.left(body, rotation)?;
        self.copies.pop();
        Ok(left)
    }

    /// What an iteration leaves.
    fn left(&mut self, body: &'a Region, rotation: &Rotation<'a>) -> Result<Left> {
        let yielded = body.ops.last().ok_or_else(|| self.invalid("a region without yield"))?;
        let mut carried = Vec::new();
        for (i, (&value, &arg)) in yielded.args.iter().zip(&body.args[1..]).enumerate() {
            let layout = self.plan.home(arg);
            carried.push(if i == rotation.sums { None } else { Some(self.get(value, &layout)?) });
        }
        let words = self.left_words(rotation.second)?;
        let layout = self.plan.home(body.args[rotation.sums + 1]);
        let sums = self.get(rotation.second.args[2], &layout)?.to_vec();
        Ok(Left { carried, words, sums })
    }

    /// Starts the first product of an iteration, then the second one of the iteration before, if there is one, and waits for the first.
    fn start_both(
        &mut self,
        (running, rotation): (&Running<'a>, &Rotation<'a>),
        stage: &Stage,
        before: Option<&Deferred>,
    ) -> Result<Option<Prepared<'a>>> {
        // Nothing that makes registers of either product may come after the fence.
        let mut deferred =
            before.map(|before| self.deferred_product((running, rotation), before)).transpose()?;
        self.place_operands(&running.pipeline, rotation.first, &stage.at);
        let loc = self.ir.set_loc(rotation.first.loc);
        let held = self.left_in_registers(rotation.first)?;
        let mut first = self.prepared(rotation.first, held, None)?;
        self.wait_for_stage((&running.pipeline, 0), &stage.at, &stage.parity);
        self.await_other();
        self.start_product(&mut first);
        if let (Some(product), Some(before)) = (&mut deferred, before) {
            self.start_deferred(running, product, &before.stage);
        }
        self.let_other();
        self.wait_for_products(u64::from(deferred.is_some()));
        let sums = self.pinned(&first.sums);
        self.hold(rotation.first.results[0], first.layout, sums);
        self.release_stage((&running.pipeline, 0), &stage.at, None);
        self.ir.set_loc(loc);
        Ok(deferred)
    }

    /// Whether two warpgroups alternate. Those of a block that computes one instance, of few iterations at times, would wait for longer
    /// than they gain, unless products take most of an iteration: measured on an H200.
    fn alternates(&self) -> bool {
        self.roles.as_ref().is_some_and(|roles| roles.alternating)
    }

    /// Lets the first of two warpgroups begin, where loops are rotated and they alternate; `thread` is the thread's number.
    pub(super) fn begin_alternating(&mut self, loops: &[(&'a Op, Pipeline<'a>)], thread: &Val) {
        let rotations = loops.iter().filter_map(|(op, pipeline)| Rotation::of(self.plan, op, pipeline));
        let multiplied = rotations.map(|rotation| rotation.multiplied(self.plan)).min();
        let two = self.plan.block_bits() == 8;
        if let Some(roles) = &mut self.roles {
            let persistent = roles.instance.is_some();
            roles.alternating = two && multiplied.is_some_and(|n| persistent || n >= MIN_MULTIPLIED);
        }
        if self.alternates() {
            let second = self.ir.def(format_args!("icmp uge i32 {thread}, 128"));
            self.behind_branch(&second, |lower| lower.meet("arrive", &TURNS.to_string().into()));
        }
    }

    /// Waits until the other warpgroup has started its products.
    fn await_other(&mut self) {
        if self.alternates() {
            let own = self.ir.entry_def("lshr i32 %tid, 7");
            let barrier = self.ir.def(format_args!("add i32 {own}, {TURNS}"));
            self.meet("sync", &barrier);
        }
    }

    /// Lets the other warpgroup start its products.
    fn let_other(&mut self) {
        if self.alternates() {
            let own = self.ir.entry_def("lshr i32 %tid, 7");
            let barrier = self.ir.def(format_args!("sub i32 {}, {own}", TURNS + 1));
            self.meet("arrive", &barrier);
        }
    }

    /// Arrives at a named barrier of both warpgroups, and waits there if that is how.
    fn meet(&mut self, how: &str, barrier: &Val) {
        let name = format!("void @llvm.nvvm.barrier.cta.{how}.aligned.count");
        self.ir.declare(&format!("{name}(i32, i32) convergent nounwind"));
        self.ir.raw(format_args!("call {name}(i32 {barrier}, i32 {})", 1u32 << self.plan.block_bits()));
    }

    /// The second product of the iteration before, ready to start.
    fn deferred_product(
        &mut self,
        (running, rotation): (&Running<'a>, &Rotation<'a>),
        Deferred { words, sums, stage }: &Deferred,
    ) -> Result<Prepared<'a>> {
        self.place_operands(&running.pipeline, rotation.second, &stage.at);
        let (words, sums) = (self.pinned_words(words), self.pinned(sums));
        self.prepared(rotation.second, Some(words), Some(sums))
    }

    fn start_deferred(&mut self, running: &Running<'a>, product: &mut Prepared<'a>, stage: &Stage) {
        self.wait_for_stage((&running.pipeline, 1), &stage.at, &stage.parity);
        self.start_product(product);
    }

    /// Waits for it; its sums.
    fn finish_deferred(&mut self, running: &Running<'a>, product: &Prepared<'a>, stage: &Stage) -> Vec<Val> {
        self.wait_for_products(0);
        let sums = self.pinned(&product.sums);
        self.release_stage((&running.pipeline, 1), &stage.at, None);
        sums
    }

    /// Holds what an iteration carries, but one value.
    fn hold_carried(&mut self, args: &[Value], layouts: &[Layout], regs: &[Regs], but: Option<usize>) {
        for (i, (&arg, (layout, regs))) in args.iter().zip(layouts.iter().zip(regs)).enumerate() {
            if but != Some(i) {
                self.hold(arg, layout.clone(), regs.to_vec());
            }
        }
    }

    fn stage_behind(&mut self, running: &Running<'a>, stage: &Stage) -> Stage {
        let [at, parity] = [(); 2].map(|()| self.ir.fresh());
        let wraps = self.next_stage((running.pipeline.stage, running.stages), &stage.at, &at);
        self.next_parity(&wraps, &stage.parity, &parity);
        Stage { at, parity }
    }
}

/// Of a loop whose stages a producer warpgroup fills, which product runs on.
pub(super) fn note(seen: &Seen<'_>, op: &Op, pipeline: &Pipeline<'_>) -> Option<String> {
    let Rotation { first, second, .. } = Rotation::of(seen.plan, op, pipeline)?;
    let [first, second] = [first, second].map(|op| seen.name(op.results[0]));
    Some(format!("%{second} runs beside %{first} of the next iteration and what follows from that"))
}

#[cfg(test)]
mod tests;
