//! Times a candidate and the call that it replaces in turn, on scratch tensors of the same types.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tch::Tensor;
use tilefuse_block::Elem;
use tilefuse_fusion::contract::{Candidate, Times};
use tilefuse_fusion::pipeline::{PipelineError, plan};
use tilefuse_fusion::plan::{Plan, StepKind};
use tilefuse_fusion::{AtenCall, DType, Device, Graph, NodeId, Op, Profile, TensorType, ValueRef};

use super::exec::device_id;
use super::kernels::{Kernel, Target, kernel};
use super::measure::{Progress, Timer, in_turns};
use super::run_delay::Waiting;
use super::steps::new_call;
use crate::Error;
use crate::torch::{Call, DeviceId, Meta, address_of, as_strided_of, empty_strided};

/// The most time that each side of one product takes, about.
pub(super) const MAX_SIDE_TIME: Duration = Duration::from_millis(10);
/// What a side takes at most where it runs twice behind the other one.
const MAX_SETTLED_TIME: Duration = Duration::from_millis(2);
/// The most rounds, each with a run of either side, and the least of products that take less than a side's time.
const MAX_ROUNDS: usize = 15;
const MIN_ROUNDS: usize = 4;
/// The most rounds on a GPU, where events time a run alone, whatever the host's threads do.
pub(super) const MAX_GPU_ROUNDS: usize = 9;

/// How much the middle half of the rounds may differ in how long one side takes in the time of the other.
const MAX_SPREAD: f64 = 1.3;

/// How long the threads of a run may wait for a processor, all together, in the time of the run: a slice of the scheduler's takes
/// milliseconds.
const MAX_WAITING: f64 = 0.25;

/// A candidate and its call by themselves, to be measured.
pub(super) struct Request {
    /// The call, computed by the candidate's kernel.
    graph: Graph,
    node: NodeId,
    /// The types of what libtorch's call takes.
    operands: Vec<TensorType>,
    pub(super) predicted: Times,
}

impl Request {
    pub(super) fn new(candidate: &Candidate<'_>, profile: &Profile) -> Request {
        let (graph, node) = candidate.computed();
        let operands = candidate.graph.operands(candidate.node).into_iter();
        let operands = operands.take(candidate.call.operand_count());
        let operands = operands.map(|value| candidate.graph.ty(value).clone()).collect();
        Request { graph, node, operands, predicted: candidate.predicted(profile) }
    }

    fn call(&self) -> Result<&AtenCall, Error> {
        match &self.graph.node(self.node).op {
            Op::Aten(call) => Ok(call),
            _ => Err(missing("call")),
        }
    }

    pub(super) fn planned(self, profile: &Profile) -> Planned {
        let plan = plan(&self.graph, profile);
        Planned { request: self, plan }
    }
}

/// The same with its plan.
pub(super) struct Planned {
    pub(super) request: Request,
    plan: Result<Plan, PipelineError>,
}

impl Planned {
    /// Its kernels, but for those that cannot be compiled.
    pub(super) fn kernels(&self) -> Vec<Kernel> {
        let target = target_of(&self.request.graph);
        let programs = self.plan.iter().flat_map(|plan| &plan.programs);
        programs.filter_map(|program| Some(kernel(program, target).ok()?.0)).collect()
    }
}

fn missing(what: &str) -> Error {
    Error::Internal(format!("a product to be measured has no {what}"))
}

/// A product in two forms, with tensors to run it on.
struct Product {
    /// Operands, what is made of them, and the result.
    tensors: Vec<Tensor>,
    /// What the call takes.
    own: Vec<Tensor>,
    call: Call,
    /// In order: what packs operands, and the product.
    kernels: Vec<Launch>,
    timer: Timer,
    /// On a GPU, what is filled before each run: operands come from memory then, and what is timed is queued when that ends.
    cold: Option<Tensor>,
}

/// Bytes of [`Product::cold`]: more than a GPU's cache.
const COLD_BYTES: i64 = 64 << 20;

/// What filling it, and queueing a run behind that, takes about.
pub(super) const COLD_TIME: Duration = Duration::from_micros(60);

/// Where a graph's tensors are.
pub(super) fn target_of(graph: &Graph) -> Target {
    let devices = graph.ids().flat_map(|id| graph.node(id).outs.iter().map(|ty| ty.device));
    devices.fold(Target::Host, |target, device| match device {
        Device::Cuda(ordinal) => Target::Cuda(ordinal),
        Device::Cpu | Device::Other(_) => target,
    })
}

/// A kernel with what it is given.
struct Launch {
    kernel: Kernel,
    grid: [u64; 3],
    /// Positions among the tensors.
    args: Vec<usize>,
    /// Those that it writes, which a call allocates: that takes long where the memory comes from the system.
    written: Vec<usize>,
}

impl Product {
    fn new(request: &Request, plan: &Plan) -> Result<Product, Error> {
        let Request { graph, node, .. } = request;
        let node = *node;
        let target = target_of(graph);
        let mut tensors: Vec<(ValueRef, Tensor)> = Vec::new();
        let known = |tensors: &[(ValueRef, Tensor)], value| tensors.iter().any(|(v, _)| *v == value);
        let call_operands = graph.operands(node);
        for &value in &call_operands {
            if !known(&tensors, value) {
                tensors.push((value, scratch(graph.ty(value))?));
            }
        }
        let mut kernels = Vec::new();
        for step in &plan.steps {
            let StepKind::Kernel(step) = &step.kind else { return Err(missing("kernel")) };
            let program = plan.programs.get(step.program).ok_or_else(|| missing("program"))?;
            let (mut args, mut written) = (Vec::new(), Vec::new());
            for &(value, writes) in &step.buffers {
                if !known(&tensors, value) {
                    let ty = graph.ty(value);
                    let (dtype, device) = (ty.dtype.scalar_type(), device_id(ty.device));
                    let tensor = match graph.node(value.node).op {
                        // Memory that was never written would be one page of zeros, in a cache.
                        Op::Input(_) | Op::Param(_) | Op::Const(_) => scratch(ty)?,
                        _ => empty_strided(&ty.shape, &ty.strides, dtype, device)?,
                    };
                    tensors.push((value, tensor));
                }
                let at = tensors.iter().position(|(v, _)| *v == value);
                let at = at.ok_or_else(|| missing("such buffer"))?;
                args.push(at);
                written.extend(writes.then_some(at));
            }
            let (kernel, _) = kernel(program, target)?;
            kernels.push(Launch { kernel, grid: step.grid, args, written });
        }
        if !known(&tensors, node.into()) {
            return Err(missing("result"));
        }
        let cold = match target {
            Target::Host => None,
            Target::Cuda(ordinal) => {
                Some(filled(COLD_BYTES, DType::Elem(Elem::U8), device_id(Device::Cuda(ordinal)))?)
            }
        };
        let operand =
            |value: &ValueRef| tensors.iter().find(|(v, _)| v == value).map(|(_, t)| t.shallow_clone());
        let operands: Vec<Tensor> = call_operands.iter().filter_map(operand).collect();
        Ok(Product {
            own: library(request, &operands)?,
            call: new_call(request.call()?)?,
            kernels,
            tensors: tensors.into_iter().map(|(_, tensor)| tensor).collect(),
            timer: Timer::new(target)?,
            cold,
        })
    }

    /// How long a run takes, on a GPU with operands in memory.
    fn timed(&self, run: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
        if let Some(cold) = &self.cold {
            drop(cold.shallow_clone().f_zero_().map_err(|error| Error::Torch(error.to_string()))?);
        }
        self.timer.time(run)
    }

    fn generated(&self) -> Result<Duration, Error> {
        self.timed(|| self.launch())
    }

    fn launch(&self) -> Result<(), Error> {
        let mut made: Vec<(usize, Tensor)> = Vec::new();
        for Launch { kernel, grid, args, written } in &self.kernels {
            for &at in written {
                let tensor = self.tensors.get(at).map(alike).transpose()?;
                made.extend(tensor.map(|tensor| (at, tensor)));
            }
            let address = |at: &usize| {
                let own = made.iter().find(|(made, _)| made == at).map(|(_, tensor)| tensor);
                own.or_else(|| self.tensors.get(*at))
                    .map_or(Ok(0), |tensor| address_of(tensor).map(|a| a as u64))
            };
            let args = args.iter().map(address).collect::<Result<Vec<u64>, Error>>()?;
            // SAFETY: the addresses are those of `tensors` and of others like them, whose types are those that the plan was
            // made for, and nobody else has them.
            unsafe { kernel.launch(&args, *grid, self.timer.stream())? };
        }
        Ok(())
    }

    fn library(&self) -> Result<Duration, Error> {
        let tensors: Vec<&Tensor> = self.own.iter().collect();
        self.timed(|| self.call.run(&tensors).map(drop))
    }
}

/// What libtorch's call would get: the kernel's operands, but for those that the kernel reads in another form.
fn library(request: &Request, operands: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let values = request.graph.operands(request.node);
    let own = operands.iter().zip(values).zip(&request.operands);
    own.map(|((tensor, ours), theirs)| match theirs {
        ty if *ty == *request.graph.ty(ours) => Ok(tensor.shallow_clone()),
        ty => scratch(ty),
    })
    .collect()
}

/// A tensor in memory of its own, like another.
fn alike(tensor: &Tensor) -> Result<Tensor, Error> {
    let meta = Meta::of(tensor)?;
    empty_strided(meta.sizes(), meta.strides(), meta.dtype, meta.device)
}

/// A tensor of a type with some finite values.
fn scratch(ty: &TensorType) -> Result<Tensor, Error> {
    let span: i64 = 1 + ty.shape.iter().zip(&ty.strides).map(|(&n, &s)| (n - 1).max(0) * s).sum::<i64>();
    let memory = filled(span, ty.dtype, device_id(ty.device))?;
    as_strided_of(&memory, &ty.shape, &ty.strides, 0)
}

/// A row of elements with some finite values; libtorch's random numbers are the model's.
pub(super) fn filled(span: i64, dtype: DType, device: DeviceId) -> Result<Tensor, Error> {
    let memory = empty_strided(&[span], &[1], dtype.scalar_type(), device)?;
    let first = span.min(1024);
    let values = Tensor::arange(first, (tch::Kind::Float, tch::Device::Cpu)) * 7.0;
    memory.narrow(0, 0, first).copy_(&(values.fmod(17.0) / 8.0 - 1.0));
    let mut filled = first;
    while filled < span {
        let more = filled.min(span - filled);
        memory.narrow(0, filled, more).copy_(&memory.narrow(0, 0, more));
        filled += more;
    }
    Ok(memory)
}

/// Times both sides in turn; returns how long that took, too. There are no times where the machine was too busy for them to
/// say which side is quicker.
pub(super) fn measure(Planned { request, plan }: &Planned) -> Result<(Option<Times>, Duration), Error> {
    let _span = tracing::info_span!("measure", operator = request.call()?.op).entered();
    let _no_grad = tch::no_grad_guard();
    let product = Product::new(request, plan.as_ref().map_err(Clone::clone)?)?;
    let begin = Instant::now();
    let sides: [&dyn Fn() -> Result<Duration, Error>; 2] = [&|| product.library(), &|| product.generated()];
    // Threads of libtorch's teams wait for more work for a while, and hold cores that the next side's threads are to run on:
    // what takes shorter than that runs twice, and the shorter run counts. Events on a GPU time none of that.
    let on_host = product.cold.is_none();
    let latest = [Cell::new(Duration::ZERO), Cell::new(Duration::ZERO)];
    let undisturbed = RefCell::new(Vec::new());
    let once = |side: usize| -> Result<(bool, Duration), Error> {
        let waiting = on_host.then(Waiting::begin);
        let time = sides[side]()?;
        let part = waiting.and_then(|waiting| waiting.part());
        Ok((part.is_some_and(|part| part > MAX_WAITING), time))
    };
    let time = |side: usize| {
        let mut run = once(side)?;
        if on_host && latest[side].get() < MAX_SETTLED_TIME && run.1 < MAX_SIDE_TIME {
            // One that waited comes behind one that did not.
            run = run.min(once(side)?);
        }
        let (waited, time) = run;
        latest[side].set(time);
        undisturbed.borrow_mut().push(!waited);
        Ok(time.as_secs_f64() * 1e6)
    };
    let most = if on_host { MAX_ROUNDS } else { MAX_GPU_ROUNDS };
    let times = in_turns(sides.len(), time, |progress| {
        let Progress { rounds, elapsed, shortest } = *progress;
        rounds == 0
            || (rounds < most && elapsed + shortest < 2 * MAX_SIDE_TIME)
            || (rounds < MIN_ROUNDS && shortest < 2 * MAX_SIDE_TIME)
    })?;
    debug_assert!(product.tensors.iter().all(|tensor| tensor.numel() > 0));
    // The first two are of the warm-up.
    let undisturbed = undisturbed.into_inner();
    let undisturbed = undisturbed.chunks_exact(2).skip(1).map(|sides| sides.iter().all(|&side| side));
    let rounds = times[1].iter().zip(&times[0]).map(|(&ours, &theirs)| [ours, theirs]);
    let rounds: Vec<_> =
        rounds.zip(undisturbed).filter_map(|(round, counts)| counts.then_some(round)).collect();
    Ok((judged(&rounds), begin.elapsed()))
}

/// The times of rounds of both sides, ours first, if these agree. Whatever else the machine does makes a run longer, at
/// times as long as a slice of its scheduler's, so that the least times count; that either side's least is of a quieter
/// moment than the other's shows in rounds that say something else.
fn judged(rounds: &[[f64; 2]]) -> Option<Times> {
    let least = |side: usize| {
        let least = rounds.iter().map(|round| round[side]).fold(f64::INFINITY, f64::min);
        (least * 1e3).round() / 1e3
    };
    let times = Times { generated_us: least(0), library_us: least(1), measured: true };
    let mut ratios: Vec<f64> =
        rounds.iter().map(|[ours, theirs]| ours.max(1e-3) / theirs.max(1e-3)).collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (*ratios.get(ratios.len() / 4)?, *ratios.get(ratios.len() * 3 / 4)?);
    let ratio = times.generated_us / times.library_us;
    if rounds.len() < MIN_ROUNDS {
        // So few rounds do not show whether they agree.
        return (ratio.max(1.0 / ratio) > MAX_SPREAD).then_some(times);
    }
    let agree = (low > 1.0 && ratio > 1.0) || (high < 1.0 && ratio < 1.0);
    (agree || high < MAX_SPREAD * low).then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_do_not_agree_decide_nothing() {
        let of = |rounds: &[[u64; 2]]| {
            let rounds: Vec<_> = rounds.iter().map(|round| round.map(|us| us as f64)).collect();
            judged(&rounds).map(|times| (times.generated_us, times.library_us))
        };
        // A slice of the scheduler's falls into single runs.
        assert_eq!(of(&[[90, 100], [91, 101], [4090, 100], [92, 100], [90, 4100]]), Some((90.0, 100.0)));
        // The machine is slower for some rounds, and for both sides.
        assert_eq!(of(&[[90, 100], [91, 101], [180, 200], [182, 204]]), Some((90.0, 100.0)));
        // One side had a quiet moment.
        assert_eq!(of(&[[90, 100], [200, 102], [95, 190], [205, 110], [96, 180]]), None);
        // Of a single round, a clear difference.
        assert_eq!(of(&[[90, 100]]), None);
        assert_eq!(of(&[[60, 100]]), Some((60.0, 100.0)));
        // How much differs, but not which side is quicker.
        assert_eq!(of(&[[50, 100], [80, 100], [60, 180], [85, 110], [45, 180]]), Some((45.0, 100.0)));
    }
}
