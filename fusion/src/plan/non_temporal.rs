//! Which kernels of a processor write past its caches.
//!
//! A store to a line that is not in a cache reads it from memory first, and puts something else out of the cache. For
//! results that do not fit in the caches both are in vain:
//!
//! ```text
//! %1 = map exp(%0) : f32[4096,4096]       store %out1, %at, %value, hint streaming
//! ```
//!
//! That is for values of [`MIN_BYTES`] bytes and more that a kernel of the planner's stores and does not read, in memory that
//! nothing it reads lies in. What the next step reads is found in the caches up to [`MIN_BYTES_READ_NEXT`] bytes.

use rustc_hash::FxHashMap;
use tilefuse_block::{CacheHint, Op, OpKind, Program, Value};

use super::ir::{KernelKind, KernelStep, Plan, Step, StepKind};
use super::memory::Memory;
use crate::graph::ValueRef;
use crate::machine::Machine;
use crate::place::Place;
use crate::rewrite_limit::Rewrites;

/// Bytes of a value from which on it is written by non-temporal stores. Measured with sums, `tanh`, softmax and transposes on two
/// threads with 2 MiB of cache each and far more that other programs share: a kernel with 4 MiB takes 1.5 times as long as
/// by plain stores, with 16 MiB 0.9 to 1.0 times, with 32 MiB 0.8 times and with 64 MiB and more 0.6 to 0.8 times.
const MIN_BYTES: u64 = 32 << 20;
/// Bytes from which on that holds for a value too that the next step reads. Reading it takes a tenth longer after such
/// stores of 16 MiB, and a fiftieth after those of 64 MiB.
const MIN_BYTES_READ_NEXT: u64 = 64 << 20;
/// Alignment in bytes of the memory that a plan gives its values: libtorch's is at multiples of this, and
/// [`ALIGNMENT`](super::ALIGNMENT) is one.
const ARENA_ALIGN: u32 = 64;

/// The pass `non-temporal-stores`: gives the stores of such values the hint [`CacheHint::Streaming`]. Moving values between
/// the arena and tensors of their own changes nothing about them.
pub(crate) fn mark_non_temporal(mut plan: Plan, machine: Machine, rewrites: &Rewrites) -> Plan {
    if machine.is_gpu() {
        return plan;
    }
    let marks: Vec<Vec<usize>> = (0..plan.steps.len()).map(|at| non_temporal(&plan, at, rewrites)).collect();
    if marks.iter().all(Vec::is_empty) {
        return plan;
    }
    // Steps with one program may differ in what they stream, and a program that no step has any more goes.
    let old = std::mem::take(&mut plan.programs);
    let mut made: FxHashMap<(usize, Vec<usize>), usize> = FxHashMap::default();
    for (step, marks) in plan.steps.iter_mut().zip(marks) {
        let StepKind::Kernel(kernel) = &mut step.kind else { continue };
        let Some(program) = old.get(kernel.program) else { continue };
        kernel.program = *made.entry((kernel.program, marks)).or_insert_with_key(|(_, marks)| {
            plan.programs.push(with_hints(program.clone(), marks));
            plan.programs.len() - 1
        });
    }
    plan
}

impl Plan {
    /// The bytes that a kernel of the plan writes by non-temporal stores, where its code can.
    pub fn non_temporal_bytes(&self, kernel: &KernelStep) -> u64 {
        let Some(program) = self.programs.get(kernel.program) else { return 0 };
        let streams =
            |ptr: Value| accesses(program, ptr).iter().any(|op| hint(op) == Some(CacheHint::Streaming));
        let own = program.params.iter().zip(&kernel.buffers).filter(|(param, b)| b.1 && streams(param.value));
        own.map(|(_, &(value, _))| self.graph.ty(value).bytes()).sum()
    }
}

/// The positions of the buffers that a step writes by non-temporal stores.
fn non_temporal(plan: &Plan, at: usize, rewrites: &Rewrites) -> Vec<usize> {
    let generated =
        |kind| matches!(kind, KernelKind::Pointwise | KernelKind::RowReduction | KernelKind::ColumnReduction);
    let StepKind::Kernel(kernel) = &plan.steps[at].kind else { return Vec::new() };
    let Some(program) = plan.programs.get(kernel.program).filter(|_| generated(kernel.kind)) else {
        return Vec::new();
    };
    let streams = |&(position, &(value, written)): &(usize, &(ValueRef, bool))| {
        let bytes = plan.graph.ty(value).bytes();
        let read_next = || plan.steps.get(at + 1).is_some_and(|next| reads(next, value));
        written
            && bytes >= MIN_BYTES
            && has_memory(&plan.memory, kernel, value)
            && program.params.get(position).is_some_and(|param| is_only_stored(program, param.value))
            && (bytes >= MIN_BYTES_READ_NEXT || !read_next())
            && !is_read_in_outer_loop(plan, at, value)
            && rewrites.allow("non-temporal-stores")
    };
    kernel.buffers.iter().enumerate().filter(streams).map(|(position, _)| position).collect()
}

/// Whether a thread reads blocks of a value soon after it has written them.
fn is_read_in_outer_loop(plan: &Plan, at: usize, value: ValueRef) -> bool {
    let outer_loop = plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at));
    let steps =
        outer_loop.and_then(|outer_loop| plan.steps.get(at + 1..outer_loop.steps.end)).unwrap_or_default();
    steps.iter().any(|step| reads(step, value))
}

/// Whether a value that a kernel writes has memory of the plan's in which nothing lies that the kernel reads.
fn has_memory(memory: &Memory, kernel: &KernelStep, value: ValueRef) -> bool {
    match memory.offsets.get(&value) {
        Some(offset) => {
            let mut pairs = kernel.in_place.iter().filter(|pair| pair.1 == value);
            !pairs.any(|(read, _)| memory.offsets.get(read) == Some(offset))
        }
        None => memory.own.contains(&value),
    }
}

fn reads(step: &Step, value: ValueRef) -> bool {
    match &step.kind {
        StepKind::Kernel(kernel) => kernel.buffers.contains(&(value, false)),
        StepKind::Extern(call) => call.operands.iter().map(Place::base).any(|base| base == value),
    }
}

/// The operations that read or write through a pointer.
fn accesses(program: &Program, ptr: Value) -> Vec<&Op> {
    let mut found = Vec::new();
    program.walk(&mut |op| {
        if op.kind.is_access() && op.args.first() == Some(&ptr) {
            found.push(op);
        }
    });
    found
}

fn hint(op: &Op) -> Option<CacheHint> {
    if let OpKind::Store { hint, .. } = op.kind { Some(hint) } else { None }
}

fn is_only_stored(program: &Program, ptr: Value) -> bool {
    accesses(program, ptr).iter().all(|op| hint(op) == Some(CacheHint::Default))
}

/// A program whose stores are non-temporal through the pointers at some positions.
fn with_hints(mut program: Program, positions: &[usize]) -> Program {
    let mut pointers: Vec<Value> = Vec::new();
    for &position in positions {
        let param = &mut program.params[position];
        param.align = param.align.max(ARENA_ALIGN);
        pointers.push(param.value);
    }
    set_hints(&mut program.body.ops, &pointers);
    program
}

fn set_hints(ops: &mut [Op], pointers: &[Value]) {
    for op in ops {
        if let (OpKind::Store { hint, .. }, Some(ptr)) = (&mut op.kind, op.args.first())
            && pointers.contains(ptr)
        {
            *hint = CacheHint::Streaming;
        }
        op.regions.iter_mut().for_each(|region| set_hints(&mut region.ops, pointers));
    }
}
