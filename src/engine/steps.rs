//! The steps of a plan with what they need in a call: slots, kernels, and libtorch's calls.

use std::sync::Arc;

use tilefuse_fusion::plan::{self as plan, KernelStep, Plan, Step, StepKind};
use tilefuse_fusion::{Device, NodeId, Op, Place, TensorType, ValueRef};

use super::kernels::{Kernel, LoopKernel, OuterLoop};
use super::slots::{Slot, Slots, TensorSource};
use crate::Error;
use crate::torch::Call;

/// A step of a plan, resolved to slots.
#[derive(Debug)]
pub(crate) enum Run {
    /// A kernel.
    Kernel {
        /// Position in [`Compiled::kernels`](super::compile::Compiled::kernels).
        kernel: usize,
        grid: [u64; 3],
        args: Vec<Slot>,
    },
    /// Kernels that run block by block.
    OuterLoop {
        outer_loop: OuterLoop,
        /// Of each kernel; [`Slot::Status`] for what is held a block at a time.
        args: Vec<Vec<Slot>>,
        /// Where the threads' memory begins in the arena.
        at: u64,
    },
    /// A libtorch call.
    Extern {
        call: Arc<Call>,
        operands: Vec<TensorSource>,
        /// The operands that the call writes: it gets copies, which are its last results.
        written: Vec<usize>,
        /// Operands whose memory is written over later: no result may share it.
        reused: Vec<usize>,
        /// Elements at a multiple of which the first operand must begin: those that are read as one of another type.
        granule: i64,
        results: Vec<LibraryResult>,
        name: String,
    },
    /// Allocates these of [`Slots::own`].
    Take(Vec<usize>),
    /// Gives back memory that is no longer needed, of slots [`Slot::Own`] and [`Slot::Extern`].
    Free(Vec<Slot>),
}

/// Where a result of a libtorch call goes, and what it must look like.
#[derive(Debug)]
pub(crate) struct LibraryResult {
    pub(crate) position: usize,
    pub(crate) ty: TensorType,
    /// Whether a kernel writes over it, so that nothing else may refer to its memory.
    pub(crate) overwritten: bool,
}

/// What the steps of a plan are resolved with.
pub(super) struct Runs<'a> {
    pub(super) plan: &'a Plan,
    pub(super) slots: &'a Slots,
    pub(super) kernels: &'a [Kernel],
    /// Those that were recorded.
    pub(super) calls: &'a [Arc<Call>],
    /// Where kernels run.
    pub(super) device: Device,
}

impl Runs<'_> {
    pub(super) fn all(self) -> Result<Vec<Run>, Error> {
        let mut runs = Vec::new();
        let plan = self.plan;
        for (at, step) in plan.steps.iter().enumerate() {
            runs.extend(self.takes(step)?);
            if let Some(outer_loop) =
                plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at))
            {
                if at + 1 == outer_loop.steps.end {
                    runs.push(self.outer_loop(outer_loop)?);
                }
                runs.extend(self.frees(step)?);
                continue;
            }
            runs.push(match &step.kind {
                StepKind::Kernel(k) => {
                    Run::Kernel { kernel: k.program, grid: k.grid, args: self.arguments(k)? }
                }
                StepKind::Extern(e) => self.call(e.node, &e.operands)?,
            });
            runs.extend(self.frees(step)?);
        }
        Ok(runs)
    }

    fn outer_loop(&self, outer_loop: &plan::OuterLoop) -> Result<Run, Error> {
        let (mut kernels, mut all_args) = (Vec::new(), Vec::new());
        let missing = || Error::Internal(String::from("an outer loop has no such kernel"));
        for (at, parts) in outer_loop.steps.clone().zip(&outer_loop.parts) {
            let StepKind::Kernel(step) = &self.plan.steps.get(at).ok_or_else(missing)?.kind else {
                return Err(missing());
            };
            let (mut args, mut held) = (Vec::new(), Vec::new());
            for (position, &(value, _)) in step.buffers.iter().enumerate() {
                let own = outer_loop.local_buffers.iter().find(|own| own.value == value);
                held.extend(own.map(|own| (position, own.shifts())));
                args.push(if own.is_some() { Slot::Status } else { self.buffer(value)? });
            }
            args.extend(step.checks.then_some(Slot::Status));
            let kernel = self.kernels.get(step.program).ok_or_else(missing)?.clone();
            kernels.push(LoopKernel { kernel, grid: step.grid, parts: parts.clone(), held });
            all_args.push(args);
        }
        let (thread_bytes, threads) = (outer_loop.thread_bytes as usize, outer_loop.threads as usize);
        let made = OuterLoop { kernels, blocks: outer_loop.blocks(), thread_bytes, threads };
        Ok(Run::OuterLoop { outer_loop: made, args: all_args, at: outer_loop.at })
    }

    fn arguments(&self, kernel: &KernelStep) -> Result<Vec<Slot>, Error> {
        let mut args = kernel.buffers.iter().map(|&(v, _)| self.buffer(v)).collect::<Result<Vec<_>, _>>()?;
        args.extend(kernel.checks.then_some(Slot::Status));
        Ok(args)
    }

    /// The slot of a value that a kernel addresses. Only plain strided memory has an element type that kernels know; the
    /// guards keep inputs and parameters plain, and [`Meta::address`](crate::torch::Meta::address) all others.
    fn buffer(&self, value: ValueRef) -> Result<Slot, Error> {
        let ty = self.plan.graph.ty(value);
        if ty.dtype.elem().is_none() {
            return Err(Error::Internal(String::from("a kernel would address what libtorch alone handles")));
        }
        if ty.device != self.device {
            return Err(Error::Internal(format!(
                "a kernel on {} would address memory of {}",
                self.device, ty.device
            )));
        }
        self.slots.get(value)
    }

    fn takes(&self, step: &Step) -> Result<Option<Run>, Error> {
        let mut taken = Vec::new();
        for &value in &step.takes {
            if let Slot::Own(position) = self.slots.get(value)? {
                taken.push(position);
            }
        }
        Ok((!taken.is_empty()).then_some(Run::Take(taken)))
    }

    fn frees(&self, step: &Step) -> Result<Option<Run>, Error> {
        let freed = step.frees.iter().map(|&value| self.slots.get(value)).collect::<Result<Vec<_>, _>>()?;
        Ok((!freed.is_empty()).then_some(Run::Free(freed)))
    }

    fn call(&self, node: NodeId, operands: &[Place]) -> Result<Run, Error> {
        let graph = &self.plan.graph;
        let Op::Aten(aten) = &graph.node(node).op else {
            return Err(Error::Internal(String::from("a step calls a node that is no operator")));
        };
        if matches!(aten.op.as_str(), "aten::as_strided" | "aten::as_strided_scatter") {
            // What lies around a tensor in memory differs from one call to the next.
            return Err(Error::Unsupported(format!("{} of elements that kernels cannot take", aten.op)));
        }
        let call = call_of(aten, self.calls)?;
        let reused = (0..operands.len()).filter(|&at| self.is_reused(&operands[at])).collect();
        let operands = operands.iter().map(|p| self.slots.source(self.plan, p)).collect::<Result<_, _>>()?;
        let mut results = Vec::new();
        for (out, ty) in graph.node(node).outs.iter().enumerate() {
            let value = ValueRef { node, out: out as u16 };
            if let Slot::Extern(position) = self.slots.get(value)? {
                let overwritten = self.plan.memory.over.values().any(|&root| root == value);
                results.push(LibraryResult { position, ty: ty.clone(), overwritten });
            }
        }
        let written = aten.writes.iter().filter_map(|&w| aten.args.get(usize::from(w)));
        let written = written.flat_map(|(_, arg)| arg.tensors()).map(usize::from).collect();
        let granule = self.granule(node);
        Ok(Run::Extern { call, operands, written, reused, granule, results, name: aten.full_name() })
    }

    /// Elements of a call's first operand that it reads as one element of another type.
    fn granule(&self, node: NodeId) -> i64 {
        let graph = &self.plan.graph;
        let Op::Aten(aten) = &graph.node(node).op else { return 1 };
        let reads_bits =
            (aten.op == "aten::view" && aten.overload == "dtype") || aten.op == "aten::view_as_complex";
        let bytes = |ty: Option<&TensorType>| ty.map_or(0, |ty| ty.dtype.bytes());
        let from = bytes(graph.operands(node).first().map(|&v| graph.ty(v)));
        let to = bytes(graph.node(node).outs.first());
        if reads_bits && from > 0 { (to / from).max(1) as i64 } else { 1 }
    }

    /// Whether several values lie in the memory of a value one after the other.
    fn is_reused(&self, place: &Place) -> bool {
        let root = self.plan.memory.root(place.base());
        let of_plan = matches!(self.slots.get(root), Ok(Slot::Own(_) | Slot::Extern(_)));
        of_plan && self.plan.memory.over.values().any(|&over| over == root)
    }
}

/// The recorded call, if an operator is one, else a new call of it.
pub(super) fn call_of(aten: &tilefuse_fusion::AtenCall, recorded: &[Arc<Call>]) -> Result<Arc<Call>, Error> {
    let recorded = aten.replay.and_then(|replay| recorded.get(replay as usize));
    match recorded {
        Some(call) if call.schema().is_ok_and(|s| s.op == aten.op && s.overload == aten.overload) => {
            Ok(Arc::clone(call))
        }
        _ => Ok(Arc::new(new_call(aten)?)),
    }
}

/// A call of an operator, to be run with tensors for its operands.
pub(crate) fn new_call(aten: &tilefuse_fusion::AtenCall) -> Result<Call, Error> {
    let args: Vec<crate::torch::Arg<u16>> = aten.args.iter().map(|(_, a)| arg(a)).collect();
    Call::new(&aten.op, &aten.overload, &args)
}

fn arg(arg: &tilefuse_fusion::Arg<u16>) -> crate::torch::Arg<u16> {
    use crate::torch::Arg as To;
    use tilefuse_fusion::Arg as From;
    match arg {
        From::None => To::None,
        From::Tensor(t) => To::Tensor(*t),
        From::Tensors(list) => To::Tensors(list.clone()),
        From::Bool(b) => To::Bool(*b),
        From::Int(i) => To::Int(*i),
        From::Float(x) => To::Float(*x),
        From::Str(s) => To::Str(s.clone()),
        From::Ints(list) => To::Ints(list.clone()),
        From::Floats(list) => To::Floats(list.clone()),
        From::Bools(list) => To::Bools(list.clone()),
        From::DType(d) => To::DType(d.scalar_type()),
        From::Device(Device::Cpu) => To::Device { kind: 0, index: -1 },
        From::Device(Device::Cuda(n)) => To::Device { kind: 1, index: *n as i8 },
        From::Device(Device::Other(kind)) => To::Device { kind: *kind, index: -1 },
        From::Other(what) => To::Other(what.clone()),
    }
}
