//! Loops that load operands of products ahead of their use.
//!
//! While an iteration multiplies, the operands of later ones are on their way from global to shared memory, each iteration's to
//! a stage of its own: by `cp.async`, in which every thread copies a part, or by the tensor memory accelerator
//! (`tensor_map.rs`). A load takes part if a product of the same body is all that uses it, nothing
//! in the body writes memory, and its addresses follow from the induction variable alone, so that they can be computed
//! for an iteration that is not there yet. Operands that the loop does not change are written to shared memory once.
//!
//! Where a body only adds one product to sums, the product of an iteration runs on into the next one: its stage is free
//! again one iteration later, and the loop's end waits for the last.
//!
//! ```text
//! kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16), %n: i32) warps(4) {
//!   %none = const 0 : i32
//!   %step = const 2048 : i32
//!   %i = range 0 2048
//!   %left = reshape %i [64, 32]
//!   %right = reshape %i [32, 64]
//!   %zero = const 0.0 : tile<64x64xf32>
//!   %sum = for %k in %none..%n step %step with (%acc = %zero) {
//!     %kx = splat %k [64, 32]
//!     %at_x = map add %left, %kx
//!     %ky = splat %k [32, 64]
//!     %at_y = map add %right, %ky
//!     %u = load %x, %at_x
//!     %v = load %y, %at_y
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %j = range 0 4096
//!   %at = reshape %j [64, 64]
//!   store %z, %at, %sum
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 64 registers a thread
//! kernel @matmul(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16), %n: i32) warps(4) {
//!   %none = const 0 : i32
//!   %step = const 2048 : i32
//!   %i = range 0 2048
//!   %left = reshape %i [64, 32]
//!   %right = reshape %i [32, 64]
//!   %zero = const 0.0 : tile<64x64xf32>
//!   %sum = for %k in %none..%n step %step with (%acc = %zero) {  // pipeline: 4 stages of 9728 bytes: %u 5120 bytes at 0, %v 4608 bytes at 5120
//!     %kx = splat %k [64, 32]
//!     %at_x = map add %left, %kx
//!     %ky = splat %k [32, 64]
//!     %at_y = map add %right, %ky
//!     %u = load %x, %at_x                                        // pipeline: runs ahead, to shared memory
//!     %v = load %y, %at_y                                        // pipeline: runs ahead, to shared memory
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %j = range 0 4096
//!   %at = reshape %j [64, 64]
//!   store %z, %at, %sum
//! }
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{Op, OpKind, Program, Region, Value};

use super::Target;
use super::assign::Assignment;
use super::barrier::BarrierReason;
use super::dot::{self, Side, Staged};
use super::ir::Val;
use super::lower::{Loading, Lower};
use super::passes::Seen;
use super::rotate;
use super::tensor_map::{self, Boxes};
use super::vectorize::Move;
use super::warp_specialize;
use crate::error::Result;
use crate::layout::Layout;

/// The most stages: the iterations that are under way together.
pub(super) const MAX_STAGES: u64 = 4;

/// One load that runs ahead.
pub(crate) struct Copy<'a> {
    load: &'a Op,
    product: &'a Op,
    side: Side,
    layout: Layout,
    /// The layout of the product's operand, register by register the load's.
    operand: Layout,
    /// Elements that one instruction moves.
    group: usize,
    /// Where the operand lies within a stage.
    pub(crate) staged: Staged,
    /// The axis of the load along which neighbours are adjacent there.
    inner: usize,
}

/// An operand that the loop does not change, for products that read it from shared memory alone: it is written there
/// once.
struct Resident<'a> {
    product: &'a Op,
    side: Side,
    staged: Staged,
}

/// The loads of one loop that run ahead.
pub(crate) struct Pipeline<'a> {
    copies: Vec<Copy<'a>>,
    /// The products that they are for, in order. Where a producer warpgroup loads, the operands of each arrive by themselves, and
    /// are overwritten when that product has read them.
    pub(super) products: Vec<&'a Op>,
    /// The same as boxes that one thread starts to copy, where all are.
    pub(super) boxes: Vec<Boxes>,
    residents: Vec<Resident<'a>>,
    /// The product that runs into the next iteration, whose operands must stay until then.
    pub(super) overlapping: Option<&'a Op>,
    /// Scalars of the body that addresses need, in order.
    pub(super) scalars: Vec<&'a Op>,
    /// Bytes of one stage.
    pub(super) stage: u64,
    /// Elements of the products together.
    sums: u64,
    /// The number of stages that the program asks for.
    pub(super) wanted: Option<u32>,
}

/// An operand of a product that is in shared memory already: how it lies there, and where its stage begins.
#[derive(Clone)]
pub(crate) struct Placed {
    pub(crate) staged: Staged,
    pub(crate) stage: Val,
}

/// By product and operand.
pub(crate) type Operands = FxHashMap<(*const Op, usize), Placed>;

/// Shared memory for the stages of a block whose sums take so many registers: it leaves room for what else a block
/// needs, and for a second block where the registers do.
fn budget(target: Target, sums: u64) -> u64 {
    match target {
        Target::Sm80 => 80 << 10,
        _ if sums >= REGISTERS / 2 => MAX_BUDGET,
        _ => 108 << 10,
    }
}

/// Shared memory for the stages of a block that has a multiprocessor for itself.
const MAX_BUDGET: u64 = 200 << 10;

/// Registers of a multiprocessor.
const REGISTERS: u64 = 65536;

impl<'a> Pipeline<'a> {
    /// The loads of a loop that can run ahead, if there are any.
    pub(crate) fn of(plan: &Assignment<'a>, op: &'a Op) -> Option<Pipeline<'a>> {
        let body = op.regions.first().filter(|_| op.kind == OpKind::For)?;
        if writes(body) || has_loop(body) {
            return None;
        }
        let mut slice = Slice::new(plan.program, body);
        let mut copies: Vec<Copy<'a>> = Vec::new();
        let mut stage = 0;
        for product in body.ops.iter().filter(|op| dot::unit(plan.program, op).is_some()) {
            for side in [Side::Left, Side::Right] {
                let mut copy = slice.copy(plan, product, side);
                if let Some(copy) = &mut copy {
                    copy.staged.base = stage;
                    stage += copy.staged.size;
                }
                copies.extend(copy);
            }
        }
        let overlapping = overlapping(plan, body, &copies);
        let residents = residents(plan, &slice, &copies);
        let mut products: Vec<&Op> = copies.iter().map(|copy| copy.product).collect();
        products.dedup_by(|a, b| std::ptr::eq(*a, *b));
        // All sums of a block, a register each.
        let sums = products.iter().map(|product| plan.program.ty(product.results[0]).numel()).sum();
        let (scalars, wanted) = (slice.scalars(), plan.program.stages);
        // What an iteration takes beside products is not known of others.
        let boxes = boxes(plan, op, &copies, overlapping.map_or(0, |_| sums));
        let pipeline =
            Pipeline { copies, products, boxes, residents, overlapping, scalars, stage, sums, wanted };
        // A loop of boxes that does nothing but add products is worth a multiprocessor for itself.
        let alone = pipeline.overlapping.is_some() && !pipeline.boxes.is_empty();
        let budget = if alone { MAX_BUDGET } else { budget(plan.target, pipeline.sums) };
        let fits = pipeline.least_stages() * stage + pipeline.resident() <= budget;
        (!pipeline.copies.is_empty() && fits).then_some(pipeline)
    }

    /// The values that need no registers: each goes to shared memory as it is loaded.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = Value> {
        self.copies.iter().map(|copy| copy.load.results[0])
    }

    /// The number of stages, where the threads that compute start the loads.
    pub(super) fn stages(&self, target: Target) -> u64 {
        // What a program asks for may take the room of a second block; an eighth is for changes of layout.
        let (budget, most) = match self.wanted {
            Some(wanted) => (target.max_shared() * 7 / 8, wanted.into()),
            None => (budget(target, self.sums), MAX_STAGES),
        };
        let fitting = budget.saturating_sub(self.resident()) / self.stage;
        fitting.min(most).max(self.least_stages())
    }

    /// The number of a product among those of the loop, if its operands run ahead.
    pub(super) fn number(&self, product: &Op) -> Option<u64> {
        self.products.iter().position(|other| std::ptr::eq(*other, product)).map(|at| at as u64)
    }

    /// Whether the stages of two loops are the same memory, divided likewise.
    pub(super) fn shares_stages(&self, other: &Pipeline<'_>) -> bool {
        let bytes = |pipeline: &Pipeline<'_>| {
            let copies = pipeline.copies.iter().zip(&pipeline.boxes);
            let all = copies.map(|(copy, boxes)| {
                (pipeline.number(copy.product), copy.staged.base, copy.staged.size, boxes.all_bytes())
            });
            all.collect::<Vec<_>>()
        };
        self.stage == other.stage && bytes(self) == bytes(other)
    }

    /// The boxes of an iteration, or of one of its products, each with its place in the stage that begins at a byte.
    pub(super) fn placed<'b>(
        &'b self,
        lower: &mut Lower<'_>,
        stage: &Val,
        product: Option<&Op>,
    ) -> Vec<(&'b Boxes, Val)> {
        let wanted = |copy: &Copy<'_>| product.is_none_or(|product| std::ptr::eq(copy.product, product));
        let boxes = self.copies.iter().zip(&self.boxes).filter(|(copy, _)| wanted(copy));
        let place = |copy: &Copy<'_>, lower: &mut Lower<'_>| {
            lower.ir.def(format_args!("add i32 {stage}, {}", copy.staged.base))
        };
        boxes.map(|(copy, boxes)| (boxes, place(copy, lower))).collect()
    }

    /// Bytes of the operands that stay.
    pub(super) fn resident(&self) -> u64 {
        self.residents.iter().map(|resident| resident.staged.size).sum()
    }

    fn least_stages(&self) -> u64 {
        2 + u64::from(self.overlapping.is_some())
    }

    /// Iterations between the load of an operand and its use.
    fn distance(&self, target: Target) -> u64 {
        self.stages(target) - 1 - u64::from(self.overlapping.is_some())
    }
}

/// Iterations of a loop of few instances, for which the accelerator is expected to take longer to start than it saves: an estimate, in
/// no run compared with another number.
const MIN_BOX_ITERATIONS: i64 = 16;

/// The same for large blocks, whose iterations are longer: elements of the product in all iterations.
const MIN_BOX_SUMS: i64 = 16 * 64 * 128;

/// Whether a loop that adds to so many sums has few iterations.
fn is_short(plan: &Assignment, op: &Op, sums: u64) -> bool {
    let constant = |at: usize| plan.facts[op.args[at].index()].constant;
    let (Some(lo), Some(hi), Some(step)) = (constant(0), constant(1), constant(2)) else { return false };
    let iterations = hi.saturating_sub(lo) / step.max(1);
    iterations < MIN_BOX_ITERATIONS && iterations.saturating_mul(sums as i64) < MIN_BOX_SUMS
}

/// The loads of a loop as boxes, if all of them are: of one that runs once at most, whose mbarriers begin anew nowhere. Programs that may
/// start early have few instances, which wait for their first operands.
fn boxes<'a>(plan: &Assignment<'a>, op: &'a Op, copies: &[Copy<'a>], sums: u64) -> Vec<Boxes> {
    let waits = plan.program.early && is_short(plan, op, sums);
    if writes_before(&plan.program.body, op).is_none() || waits || !plan.target.has_tensor_maps() {
        return Vec::new();
    }
    let all = copies.iter().map(|copy| tensor_map::boxes(plan, copy.load, &copy.staged, copy.inner));
    all.collect::<Option<Vec<Boxes>>>().unwrap_or_default()
}

/// What products of warpgroups take from before the loop, each where the one before ends.
fn residents<'a>(plan: &Assignment<'a>, slice: &Slice<'a>, copies: &[Copy<'a>]) -> Vec<Resident<'a>> {
    let mut out: Vec<Resident> = Vec::new();
    let mut base = 0;
    for product in slice.body.ops.iter().filter(|op| plan.is_grouped(op)) {
        for side in [Side::Left, Side::Right] {
            let value = product.args[side.index()];
            let copied = copies.iter().any(|c| std::ptr::eq(c.product, product) && c.side == side);
            if copied || slice.inside.contains(&value) {
                continue;
            }
            let Some(mut staged) = dot::staged(plan, product, side, &plan.home(value)) else { continue };
            staged.base = base;
            base += staged.size;
            out.push(Resident { product, side, staged });
        }
    }
    out
}

/// The one product of a body that only adds to sums, by warpgroups, of operands that are loaded ahead.
fn overlapping<'a>(plan: &Assignment<'a>, body: &Region, copies: &[Copy<'a>]) -> Option<&'a Op> {
    let product = copies.first()?.product;
    let alone = body.ops.iter().filter(|op| matches!(op.kind, OpKind::Dot { .. })).count() == 1;
    let adds = plan.is_grouped(product) && dot::only_adds(plan.program, body, product);
    (alone && copies.len() == 2 && adds).then_some(product)
}

/// Whether memory is written before an operation that runs once at most: one of a region, or of the branches in it. `None` of others.
fn writes_before(region: &Region, op: &Op) -> Option<bool> {
    let mut written = false;
    for other in &region.ops {
        if std::ptr::eq(other, op) {
            return Some(written);
        }
        let branches = other.regions.iter().filter(|_| other.kind == OpKind::If);
        if let Some(in_branch) = branches.into_iter().find_map(|branch| writes_before(branch, op)) {
            return Some(written || in_branch);
        }
        written |= other.kind.writes() || other.regions.iter().any(writes);
    }
    None
}

fn writes(region: &Region) -> bool {
    region.ops.iter().any(|op| op.kind.writes() || op.regions.iter().any(writes))
}

/// Only the innermost of nested loops runs ahead.
fn has_loop(region: &Region) -> bool {
    let is_loop = |op: &Op| matches!(op.kind, OpKind::For | OpKind::While);
    region.ops.iter().any(|op| is_loop(op) || op.regions.iter().any(has_loop))
}

/// Shared memory for the stages of a program's loops, which follow one another.
pub(crate) fn room(plan: &Assignment, target: Target) -> u64 {
    let mut most = 0;
    plan.program.walk(&mut |op| {
        if let Some(pipeline) = Pipeline::of(plan, op) {
            most = most.max(pipeline.stages(target) * pipeline.stage + pipeline.resident());
        }
    });
    most
}

/// What can be computed for any iteration.
struct Slice<'a> {
    body: &'a Region,
    /// What the body defines.
    inside: FxHashSet<Value>,
    uses: Vec<u32>,
    needed: FxHashSet<Value>,
}

impl<'a> Slice<'a> {
    fn new(program: &Program, body: &'a Region) -> Slice<'a> {
        let inside =
            body.args.iter().copied().chain(body.ops.iter().flat_map(|op| op.results.iter().copied()));
        Slice { body, inside: inside.collect(), uses: program.uses(), needed: FxHashSet::default() }
    }

    fn scalars(self) -> Vec<&'a Op> {
        let needed = |op: &&Op| op.results.iter().any(|r| self.needed.contains(r));
        self.body.ops.iter().filter(needed).collect()
    }

    fn copy(&mut self, plan: &Assignment<'a>, product: &'a Op, side: Side) -> Option<Copy<'a>> {
        let only = |uses: &[u32], value: Value| uses[value.index()] == 1;
        let mut value = product.args[side.index()];
        let mut permutation = None;
        if !only(&self.uses, value) {
            return None;
        }
        let mut load = plan.defs[value.index()]?;
        if let OpKind::Permute(perm) = &load.kind {
            permutation = Some(perm);
            value = load.args[0];
            load = plan.defs[value.index()]?;
        }
        let OpKind::Load { masked, other: false, .. } = load.kind else { return None };
        let here = self.body.ops.iter().any(|op| std::ptr::eq(op, load));
        let layout = plan.access(load);
        let Move { group, uniform, shifted } = plan.moves(load);
        let elem = plan.program.ty(value).elem()?;
        let wide = matches!(group as u64 * u64::from(elem.bytes()), 4 | 8 | 16);
        if !here || !only(&self.uses, value) || !uniform || shifted || !wide {
            return None;
        }
        let mut operands = vec![load.args[1]];
        operands.extend(load.args.get(2).filter(|_| masked));
        if !operands.iter().all(|&v| self.follows(plan, v)) {
            return None;
        }
        let operand = permutation.map_or_else(|| layout.clone(), |perm| layout.permute(perm));
        let staged = dot::staged(plan, product, side, &operand)?;
        let along = staged.inner_axis(side, &operand);
        let inner = permutation.map_or(along, |permutation| usize::from(permutation[along]));
        // One instruction's elements lie together in shared memory as well.
        (1 << operand.vector(along) >= group).then_some(Copy {
            inner,
            load,
            product,
            side,
            layout,
            operand,
            group,
            staged,
        })
    }

    /// Whether a value can be computed for any iteration, from the induction variable and what does not change.
    fn follows(&mut self, plan: &Assignment<'a>, value: Value) -> bool {
        if !self.inside.contains(&value) || self.body.args.first() == Some(&value) {
            return true;
        }
        let Some(op) = plan.defs[value.index()] else { return false };
        let scalar = plan.program.ty(value).rank() == 0;
        let computed =
            matches!(op.kind, OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_) | OpKind::Assume(_));
        if scalar && !computed && !plan.free[value.index()] || !scalar && !plan.free[value.index()] {
            return false;
        }
        if scalar {
            self.needed.insert(value);
        }
        op.args.iter().all(|&arg| self.follows(plan, arg))
    }
}

/// A loop that runs ahead, while it is lowered.
pub(crate) struct Running<'a> {
    pub(super) pipeline: Pipeline<'a>,
    pub(super) stages: u64,
    pub(super) induction: Value,
    /// Bounds, as 64-bit integers.
    pub(super) lo: Val,
    pub(super) hi: Val,
    pub(super) step: Val,
    /// Where the stage of the present iteration begins, and the next one's.
    read: Val,
    next: Val,
    /// Where the barriers of the stages begin, and the parity of the present round through them, and the next one's.
    barriers: u64,
    parity: Val,
    next_parity: Val,
    /// The stage of the first iteration, and the parity of its phase.
    pub(super) first: [Val; 2],
}

impl Running<'_> {
    /// Whether one thread starts the copies of an iteration.
    fn has_boxes(&self) -> bool {
        !self.pipeline.boxes.is_empty()
    }
}

impl<'a> Lower<'a> {
    /// Starts the loads of the first iterations of a loop that can run ahead.
    pub(crate) fn start_pipeline(
        &mut self,
        op: &'a Op,
        [lo, hi, step]: [&Val; 3],
    ) -> Result<Option<Running<'a>>> {
        if !self.runs_ahead {
            return Ok(None);
        }
        let Some(pipeline) = Pipeline::of(self.plan, op) else { return Ok(None) };
        let induction = op.regions[0].args[0];
        let (lo, hi, step) = (lo.clone(), hi.clone(), step.clone());
        let [read, next, parity, next_parity] = [(); 4].map(|()| self.ir.fresh());
        let (stages, barriers) = match &self.roles {
            Some(roles) => (roles.stages, roles.full),
            None => (pipeline.stages(self.target), 0),
        };
        let first = self.first_stage(&pipeline, [&lo, &hi, &step]);
        let mut running = Running {
            pipeline,
            stages,
            induction,
            lo,
            hi,
            step,
            read,
            next,
            barriers,
            parity,
            next_parity,
            first,
        };
        if self.roles.is_some() {
            self.await_turn();
            self.residents_of_instance(&running)?;
            return Ok(Some(running));
        }
        if running.has_boxes() {
            running.barriers = self.shared.for_barriers(stages);
            let first = self.first_thread();
            self.init_mbarriers(&first, &[(running.barriers, stages, 1)]);
            if writes_before(&self.program().body, op) == Some(true) {
                self.fence_global_writes();
            }
        }
        // The stages may have been those of another loop, or of this one before.
        self.barrier(BarrierReason::Reused);
        self.shared.enter_stages();
        self.write_residents(&running)?;
        let mut index = running.lo.clone();
        for stage in 0..running.pipeline.distance(self.target) {
            if stage > 0 {
                index = self.ir.def(format_args!("add nsw i64 {index}, {}", running.step));
            }
            let place = (stage * running.pipeline.stage).to_string().into();
            self.load_ahead(&running, &index, &place)?;
        }
        Ok(Some(running))
    }

    /// Has the operands that stay in shared memory, behind the stages: another loop of the instance may have written the same there.
    fn residents_of_instance(&mut self, running: &Running<'a>) -> Result<()> {
        let residents = running.pipeline.residents.iter();
        let all: Vec<(Value, Staged)> = residents
            .map(|resident| (resident.product.args[resident.side.index()], resident.staged))
            .collect();
        let Some(roles) = self.roles.as_mut().filter(|_| !all.is_empty()) else { return Ok(()) };
        if roles.residents == all {
            self.place_residents(running);
            return Ok(());
        }
        roles.residents = all;
        self.barrier(BarrierReason::Reused);
        self.write_residents(running)?;
        self.barrier(BarrierReason::Filled);
        Ok(())
    }

    /// The byte behind the stages, and products that read there.
    fn place_residents(&mut self, running: &Running<'a>) -> Val {
        let start: Val = (running.stages * running.pipeline.stage).to_string().into();
        for resident in &running.pipeline.residents {
            let key = (std::ptr::from_ref(resident.product), resident.side.index());
            self.placed.insert(key, Placed { staged: resident.staged, stage: start.clone() });
        }
        start
    }

    /// Writes the operands that stay, after the stages.
    fn write_residents(&mut self, running: &Running<'a>) -> Result<()> {
        let start = self.place_residents(running);
        for resident in &running.pipeline.residents {
            self.write_resident(resident.product, resident.side, &resident.staged, &start)?;
        }
        if !running.pipeline.residents.is_empty() {
            self.fence_async_proxy();
        }
        Ok(())
    }

    /// Waits for the operands of an iteration, and starts to load those of a later one.
    pub(crate) fn advance_pipeline(&mut self, running: &Running<'a>, index: &Val) -> Result<()> {
        let (stage, stages) = (running.pipeline.stage, running.stages);
        if self.roles.is_some() {
            // Each product waits for its operands.
        } else if running.has_boxes() {
            let barrier = self.stage_barrier(&running.pipeline, running.barriers, &running.read);
            self.wait_for_phase(&barrier, &running.parity);
        } else {
            self.wait_for_copies(running.pipeline.distance(self.target) - 1);
            if running.pipeline.copies.iter().any(|copy| copy.staged.has_panels()) {
                self.fence_async_proxy();
            }
        }
        // The phase of an mbarrier tells each thread by itself.
        if self.roles.is_none() {
            self.barrier(BarrierReason::Arrived);
        }
        self.in_flight.extend(running.pipeline.overlapping.map(|op| op.results[0]));
        if running.pipeline.overlapping.is_none() && self.roles.is_none() {
            self.load_later(running, index)?;
        }
        let read = &running.read;
        let wraps = self.next_stage((stage, stages), read, &running.next);
        if running.has_boxes() {
            self.next_parity(&wraps, &running.parity, &running.next_parity);
        }
        for product in &running.pipeline.products {
            self.place_operands(&running.pipeline, product, read);
        }
        Ok(())
    }

    /// The operands of a product that are loaded ahead are in the stage that begins at a byte.
    pub(super) fn place_operands(&mut self, pipeline: &Pipeline<'a>, product: &Op, stage: &Val) {
        for copy in pipeline.copies.iter().filter(|copy| std::ptr::eq(copy.product, product)) {
            let key = (std::ptr::from_ref(product), copy.side.index());
            self.placed.insert(key, Placed { staged: copy.staged, stage: stage.clone() });
        }
    }

    /// Waits for the operands of a product, where a producer warpgroup loads them.
    pub(crate) fn await_operands(&mut self, running: &Running<'a>, op: &Op) {
        if let Some(number) = running.pipeline.number(op).filter(|_| self.roles.is_some()) {
            self.wait_for_stage((&running.pipeline, number), &running.read, &running.parity);
        }
    }

    /// Tells it that they have been read, if they have.
    pub(crate) fn release_operands(&mut self, running: &Running<'a>, op: &Op) {
        let number = running.pipeline.number(op).filter(|_| running.pipeline.overlapping.is_none());
        if let Some(number) = number {
            self.release_stage((&running.pipeline, number), &running.read, None);
        }
    }

    /// Starts the loads of a later iteration where the matrix unit is busy with the present one, and waits for the
    /// iteration before, whose operands the next iteration's loads may overwrite.
    ///
    /// Where a producer warpgroup loads, it is told which stage is free.
    pub(crate) fn finish_iteration(&mut self, running: &Running<'a>, index: &Val) -> Result<()> {
        let overlaps = running.pipeline.overlapping.is_some();
        if overlaps && self.roles.is_none() {
            self.load_later(running, index)?;
        }
        if overlaps {
            self.wait_for_products(1);
        }
        if self.roles.is_some() && overlaps {
            let second = self.ir.def(format_args!("icmp sgt i64 {index}, {}", running.lo));
            self.release_before(running, &second);
        }
        Ok(())
    }

    /// The stage before that of the present iteration is free where a condition holds.
    fn release_before(&mut self, running: &Running<'a>, condition: &Val) {
        let (read, stage) = (&running.read, running.pipeline.stage);
        let first = self.ir.def(format_args!("icmp eq i32 {read}, 0"));
        let back = (running.stages - 1) * stage;
        let turn = self.ir.def(format_args!("select i1 {first}, i32 {back}, i32 -{stage}"));
        let before = self.ir.def(format_args!("add i32 {read}, {turn}"));
        self.release_stage((&running.pipeline, 0), &before, Some(condition));
    }

    /// Names the stage behind another of so many bytes and stages; whether it is the first one.
    pub(super) fn next_stage(&mut self, (stage, stages): (u64, u64), read: &Val, next: &Val) -> Val {
        let after = self.ir.def(format_args!("add i32 {read}, {stage}"));
        let wraps = self.ir.def(format_args!("icmp eq i32 {after}, {}", stages * stage));
        self.ir.raw(format_args!("{next} = select i1 {wraps}, i32 0, i32 {after}"));
        wraps
    }

    /// Names the parity of that stage's phase.
    pub(super) fn next_parity(&mut self, wraps: &Val, parity: &Val, next: &Val) {
        let wraps = self.ir.def(format_args!("zext i1 {wraps} to i32"));
        self.ir.raw(format_args!("{next} = xor i32 {parity}, {wraps}"));
    }

    fn load_later(&mut self, running: &Running<'a>, index: &Val) -> Result<()> {
        let (stage, stages) = (running.pipeline.stage, running.stages);
        let distance = running.pipeline.distance(self.target);
        let read = &running.read;
        // The stage that is `distance` further, in a circle.
        let back = (stages - distance) * stage;
        let low = self.ir.def(format_args!("icmp ult i32 {read}, {back}"));
        let turn =
            self.ir.def(format_args!("select i1 {low}, i32 {}, i32 {}", distance * stage, -(back as i64)));
        let write = self.ir.def(format_args!("add i32 {read}, {turn}"));
        let ahead = self.ir.def(format_args!("mul nsw i64 {}, {distance}", running.step));
        let later = self.ir.def(format_args!("add nsw i64 {index}, {ahead}"));
        self.load_ahead(running, &later, &write)
    }

    /// What carries the stage of a loop that runs ahead from one iteration to the next.
    pub(crate) fn pipeline_phis(&self, running: &Running<'a>, before: &str, last: &str) -> Vec<String> {
        let [stage, parity] = &running.first;
        let carried = |now: &Val, first: &Val, next: &Val| {
            format!("{now} = phi i32 [ {first}, %{before} ], [ {next}, %{last} ]")
        };
        let parity = running.has_boxes().then(|| carried(&running.parity, parity, &running.next_parity));
        [carried(&running.read, stage, &running.next)].into_iter().chain(parity).collect()
    }

    /// The barrier of the stage that begins at a byte, of those that begin at another.
    pub(super) fn stage_barrier(&mut self, pipeline: &Pipeline<'_>, barriers: u64, stage: &Val) -> Val {
        let number = self.ir.def(format_args!("udiv exact i32 {stage}, {}", pipeline.stage));
        let byte = self.ir.def(format_args!("mul i32 {number}, 8"));
        self.ir.def(format_args!("add i32 {byte}, {barriers}"))
    }

    /// Waits for the loads that nothing will use, and for the last products, whose sums are `carried`.
    pub(crate) fn end_pipeline(&mut self, op: &Op, running: &Running<'a>, carried: &mut [Vec<Val>]) {
        if !running.has_boxes() {
            self.wait_for_copies(0);
        }
        if self.roles.is_none() {
            self.shared.leave_stages();
        }
        self.pass_turn();
        if let Some(product) = running.pipeline.overlapping {
            self.wait_for_products(0);
            let own = op.regions[0].args.iter().skip(1).position(|arg| *arg == product.args[2]);
            if let Some(sums) = own.and_then(|index| carried.get_mut(index)) {
                *sums = self.pinned(sums);
            }
            if self.roles.is_some() {
                let any = self.ir.def(format_args!("icmp sgt i64 {}, {}", running.hi, running.lo));
                self.release_before(running, &any);
            }
        }
        if let Some(roles) = &mut self.roles {
            (roles.stage, roles.parity) = (running.read.clone(), running.parity.clone());
        }
        // Each thread has waited until the copies had read what they copy.
        if self.roles.is_none() {
            let copies = running.pipeline.copies.iter();
            copies.for_each(|copy| self.hazards.read(copy.load, &copy.layout));
        }
    }

    /// Whether a load runs ahead, so that it is not done where it stands.
    pub(crate) fn is_ahead(&self, running: Option<&Running<'a>>, op: &Op) -> bool {
        running.is_some_and(|r| r.pipeline.copies.iter().any(|copy| std::ptr::eq(copy.load, op)))
    }

    /// Starts the loads of an iteration, if there is one, as one group.
    fn load_ahead(&mut self, running: &Running<'a>, index: &Val, stage: &Val) -> Result<()> {
        let runs = self.ir.def(format_args!("icmp slt i64 {index}, {}", running.hi));
        let narrow = self.ir.def(format_args!("trunc i64 {index} to i32"));
        self.copies.push(FxHashMap::default());
        self.hold(running.induction, Layout::scalar(self.plan.warps), vec![narrow]);
        running.pipeline.scalars.iter().try_for_each(|op| self.op(op))?;
        if running.has_boxes() {
            let barrier = self.stage_barrier(&running.pipeline, running.barriers, stage);
            let loads = running.pipeline.placed(self, stage, None);
            self.copy_boxes_if(&loads, &barrier, &runs)?;
            self.copies.pop();
            return Ok(());
        }
        for copy in &running.pipeline.copies {
            self.copy_ahead(copy, &runs, stage)?;
        }
        self.copies.pop();
        self.ir.declare("void @llvm.nvvm.cp.async.commit.group()");
        self.ir.raw("call void @llvm.nvvm.cp.async.commit.group()");
        Ok(())
    }

    fn copy_ahead(&mut self, copy: &Copy<'a>, runs: &Val, stage: &Val) -> Result<()> {
        let elem = self.pointee(copy.load)?;
        let bytes = copy.group * elem.bytes() as usize;
        let mask = self.mask(copy.load, &copy.layout)?;
        let addresses = self.addresses(copy.load, &copy.layout, copy.group)?;
        let start = self.staged_start(&copy.staged, copy.side, &copy.operand);
        let cache = if bytes == 16 { "cg" } else { "ca" };
        for (i, address) in addresses.iter().enumerate() {
            let first = i * copy.group;
            let wanted = match &mask {
                Some(mask) => self.ir.def(format_args!("and i1 {runs}, {}", mask[first])),
                None => runs.clone(),
            };
            let size = self.ir.def(format_args!("select i1 {wanted}, i32 {bytes}, i32 0"));
            let (byte, offset) = self.staged_at(&copy.staged, copy.side, &copy.operand, (&start, first));
            let byte = self.ir.def(format_args!("add i32 {byte}, {stage}"));
            let place = self.shared_at(&byte, offset);
            self.ir.raw(format_args!(
                "call void asm sideeffect \"cp.async.{cache}.shared.global [$0], [$1], {bytes}, $2;\", \
                 \"l,l,r,~{{memory}}\"(ptr addrspace(3) {place}, ptr addrspace(1) {address}, i32 {size}) nounwind"
            ));
        }
        Ok(())
    }

    fn wait_for_copies(&mut self, groups: u64) {
        self.ir.declare("void @llvm.nvvm.cp.async.wait.group(i32)");
        self.ir.raw(format_args!("call void @llvm.nvvm.cp.async.wait.group(i32 {groups})"));
    }
}

/// Of a loop, how many iterations' loads are under way together; of a load, that it is one of them.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let loading = seen.lowered.as_ref().map_or(Loading::InOrder, |lowered| lowered.loading);
    let runs_ahead = loading != Loading::InOrder;
    let Some(pipeline) = Pipeline::of(seen.plan, op) else {
        let ahead = runs_ahead && op.results.iter().any(|result| seen.plan.ahead.contains(result));
        return if ahead {
            vec!["runs ahead, to shared memory".to_owned()]
        } else {
            warp_specialize::notes(seen, op)
        };
    };
    if !runs_ahead {
        return vec!["nothing runs ahead, shared memory is too small".to_owned()];
    }
    let stages = if let Loading::Specialized(division) = loading {
        division.stages
    } else {
        pipeline.stages(seen.target)
    };
    let copies = pipeline.copies.iter().map(|copy| {
        let (name, bytes) = (seen.name(copy.load.results[0]), copy.staged.size);
        format!("%{name} {bytes} bytes at {}", copy.staged.base)
    });
    let copies: Vec<String> = copies.collect();
    let by = if pipeline.boxes.is_empty() { "" } else { ", copied by the tensor memory accelerator" };
    let mut out = vec![format!("{stages} stages of {} bytes: {}{by}", pipeline.stage, copies.join(", "))];
    for Resident { product, side, staged } in &pipeline.residents {
        let name = seen.name(product.args[side.index()]);
        out.push(format!(
            "%{name} is written once, {} bytes at {} behind the stages",
            staged.size, staged.base
        ));
    }
    let running = pipeline.overlapping.and_then(|product| product.results.first());
    out.extend(running.map(|&sums| format!("%{} runs on into the next iteration", seen.name(sums))));
    out.extend(rotate::note(seen, op, &pipeline).filter(|_| matches!(loading, Loading::Specialized(_))));
    out.extend(warp_specialize::notes(seen, op));
    out
}
