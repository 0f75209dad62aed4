//! Running a compiled plan.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use tch::Tensor;
use tilefuse_codegen::cuda;
use tilefuse_fusion::Device;

use super::alias::{copy_as, copy_of, failed};
use super::compile::Compiled;
use super::cuda_graph::{self, Chosen, GraphInputs, PlanGraph, ResultCopy, Way};
use super::guard::ALIGN;
use super::kernels::{OuterLoop, Stream, Target};
use super::slots::{Slot, TensorSource};
use super::steps::{LibraryResult, Run};
use super::workspaces::Workspace;
use crate::Error;
use crate::torch::{
    self, DeviceId, GUARDED, GeneratorState, Meta, check_held, check_metas, check_versions, empty_strided,
    view_of,
};

/// The memory of a call but for its inputs: the arena, and tensors that were allocated on the way.
#[derive(Debug)]
pub(crate) struct Memory {
    own: SmallVec<[Option<Tensor>; 2]>,
    externs: Vec<Option<Tensor>>,
    workspace: Workspace,
}

/// What a call has at hand.
pub(super) struct Frame<'a> {
    pub(super) compiled: &'a Compiled,
    pub(super) inputs: &'a [Tensor],
    input_data: &'a [*mut c_void],
    param_data: &'a [*mut c_void],
    const_data: SmallVec<[*mut c_void; 8]>,
    own_data: SmallVec<[*mut c_void; 2]>,
    memory: Memory,
    stream: Stream,
    /// Where the memory belongs to a graph, whose next launch writes over it: results that it has copied, by position.
    from_graph: Option<Vec<(usize, Tensor)>>,
    /// Where kernels on the host report an index that is out of range.
    status: AtomicI32,
    /// Whether a kernel of the plan was launched.
    has_launched: bool,
    /// Results of libtorch calls that lie in the memory of an operand, by their position in [`Memory`].
    pub(super) views: SmallVec<[usize; 4]>,
}

/// Is told of each step of a plan that has run or is queued.
pub(super) trait Watch {
    /// A step is done, or on its way on this stream.
    fn step(&mut self, stream: Stream) -> Result<(), Error>;
}

/// Nobody.
impl Watch for () {
    fn step(&mut self, _: Stream) -> Result<(), Error> {
        Ok(())
    }
}

/// What a call brings: inputs, their addresses, and those of the parameters.
pub(super) struct Call<'a> {
    inputs: &'a [Tensor],
    data: &'a [*mut c_void],
    param_data: &'a [*mut c_void],
}

impl Memory {
    fn none() -> Memory {
        Memory { own: SmallVec::new(), externs: Vec::new(), workspace: Workspace::none() }
    }
}

/// Why a plan did not run.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A tensor of the model changed its type, shape or place: the plan is of no use any more.
    Stale(Cow<'static, str>),
    /// The plan does not stand for the model in this call.
    Unfit(Cow<'static, str>),
    /// An operator failed, as it would have in eager.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Compiled {
    /// Runs the plan on inputs of its signature, whose data addresses are `data`.
    pub(crate) fn run(
        &self,
        inputs: &[Tensor],
        data: &[*mut c_void],
        threads: usize,
    ) -> Result<Vec<Tensor>, Stop> {
        let _span = tracing::trace_span!("run", kernels = self.kernels.len()).entered();
        self.guarded(inputs, data, |call| self.run_unguarded(call, threads))
    }

    /// Does something with what the guards have checked, and sets random numbers back where that fails.
    pub(super) fn guarded<T>(
        &self,
        inputs: &[Tensor],
        data: &[*mut c_void],
        run: impl FnOnce(&Call<'_>) -> Result<T, Error>,
    ) -> Result<T, Stop> {
        let param_data = self.guard(inputs)?;
        if let Some(reason) = self.packs.given_up() {
            return Err(Stop::Stale(reason.into()));
        }
        let Some(_packed) = self.packs.hold()? else {
            return Err(match self.packs.given_up() {
                Some(reason) => Stop::Stale(reason.into()),
                None => Stop::Unfit(
                    "prepacked weights are written while the call waits for them: write them between calls"
                        .into(),
                ),
            });
        };
        let call = Call { inputs, data, param_data: &param_data };
        let mut generators = SmallVec::<[GeneratorState; 1]>::new();
        for &device in &self.draws_on {
            generators.push(GeneratorState::of(device)?);
        }
        run(&call).map_err(|error| {
            // Nothing of the caller's is written before the last step that may fail, so this undoes the call.
            match generators.iter().try_for_each(GeneratorState::restore).err().unwrap_or(error) {
                error @ Error::OtherResult => Stop::Unfit(error.to_string().into()),
                error => Stop::Failed(error),
            }
        })
    }

    /// Runs the plan on what the guards have checked.
    fn run_unguarded(&self, call: &Call<'_>, threads: usize) -> Result<Vec<Tensor>, Error> {
        let (ordinal, raw) = match self.target {
            Target::Host => return self.steps(call, Stream { raw: std::ptr::null_mut(), threads }),
            Target::Cuda(ordinal) => (ordinal, torch::cuda_stream(ordinal as i8)?),
        };
        let stream = Stream { raw, threads };
        let device = cuda::Device::get(ordinal as usize)?;
        // SAFETY: `raw` is the stream that libtorch uses now on this thread and device.
        match unsafe { self.graphs.way(&device, raw) }? {
            Way::Steps => self.steps(call, stream),
            Way::Timed(start) => {
                // SAFETY: as above.
                unsafe { start.record_raw(raw) }?;
                let launching = Instant::now();
                let results = self.steps(call, stream)?;
                // SAFETY: as above.
                unsafe { self.graphs.timed(&device, start, launching, raw) }?;
                Ok(results)
            }
            Way::Graph(graphs) => self.by_graph(call, stream, &device, graphs),
        }
    }

    /// That the parameter at a position is another than the recorded one, and in what.
    fn replaced(&self, at: usize) -> String {
        let meta = self.params.get(at).and_then(|param| Meta::of(param).ok());
        let differs =
            self.param_expects.get(at).zip(meta).and_then(|(expect, meta)| expect.difference(&meta));
        match differs {
            Some((what, expected, found)) => {
                format!("a parameter was replaced, moved or reshaped: its {what} is {found}, not {expected}")
            }
            None => String::from("a parameter was replaced, moved or reshaped"),
        }
    }

    /// Whether the plan stands for the model in this call, as far as parameters and written inputs say; the addresses of
    /// the parameters.
    fn guard(&self, inputs: &[Tensor]) -> Result<SmallVec<[*mut c_void; 32]>, Stop> {
        let mut param_data: SmallVec<[*mut c_void; 32]> =
            SmallVec::from_elem(std::ptr::null_mut(), self.params.len());
        check_metas(self.params.iter(), &self.param_expects, GUARDED, &mut param_data)
            .map_err(|at| Stop::Stale(self.replaced(at).into()))?;
        if !self.observed.is_empty() {
            let mut data: SmallVec<[*mut c_void; 8]> =
                SmallVec::from_elem(std::ptr::null_mut(), self.observed.len());
            check_metas(self.observed.iter(), &self.observed_expects, GUARDED, &mut data).map_err(|_| {
                Stop::Stale("a tensor of the model whose type or shape was compiled in is another now".into())
            })?;
        }
        if !self.params.is_empty() || !self.observed.is_empty() {
            let own = self.own_handles.read().unwrap_or_else(PoisonError::into_inner);
            if !check_held(self.params.iter().chain(self.observed.iter()), &own) {
                return Err(Stop::Stale("the model let go of a parameter".into()));
            }
        }
        if !check_versions(self.assumed.iter(), &self.assumed_versions)
            || !self.assumed.iter().zip(&self.assumed_contents).all(|(t, contents)| contents.is_of(t))
        {
            return Err(Stop::Stale("a tensor whose value was compiled in was written".into()));
        }
        if self.writes_shared(inputs)? {
            return Err(Stop::Unfit(
                "an input that is written shares memory with another input or a parameter: pass a copy"
                    .into(),
            ));
        }
        Ok(param_data)
    }

    /// Whether a call can be compared with the recorded one: the plan stands for it.
    pub(crate) fn can_audit(&self, inputs: &[Tensor]) -> bool {
        self.guard(inputs).is_ok()
    }

    /// Whether a trace takes a constant as a parameter that the recorded call made: the model has kept it since.
    pub(crate) fn has_cached(&self, trace: &torch::Trace) -> bool {
        let identity = |t: &Tensor| Meta::of(t).map_or(0, |m| m.tensor_impl);
        let cached: Vec<usize> = self.cached.iter().map(identity).collect();
        let mut params = trace.params.iter().filter_map(|(t, _)| trace.info(*t));
        params.any(|info| cached.contains(&info.meta.tensor_impl))
    }

    /// Runs the steps one by one.
    pub(super) fn steps(&self, call: &Call<'_>, stream: Stream) -> Result<Vec<Tensor>, Error> {
        let mut frame = self.frame(call, stream, self.memory(stream.raw as usize)?)?;
        let done = match &self.ranges {
            None => frame.work(),
            Some(ranges) => {
                let mut ranges = ranges.open();
                ranges.step(stream).and_then(|()| frame.watched(&mut ranges))
            }
        };
        let result = done.and_then(|()| frame.check()).and_then(|()| frame.results());
        let workspace = frame.memory.workspace;
        self.workspaces.give(workspace);
        result
    }

    /// Runs the steps one by one for someone who watches, and returns nothing.
    pub(super) fn watch(&self, call: &Call<'_>, stream: Stream, watch: &mut impl Watch) -> Result<(), Error> {
        let mut frame = self.frame(call, stream, self.memory(stream.raw as usize)?)?;
        let result = watch.step(stream).and_then(|()| frame.watched(watch)).and_then(|()| frame.check());
        let workspace = frame.memory.workspace;
        self.workspaces.give(workspace);
        result
    }

    /// Launches a graph, which is captured first where there is none that fits.
    fn by_graph(
        &self,
        call: &Call<'_>,
        stream: Stream,
        device: &Arc<cuda::Device>,
        mut graphs: Chosen<'_>,
    ) -> Result<Vec<Tensor>, Error> {
        if graphs.find(stream.raw, call.param_data, call.data).is_none() {
            if !graphs.has_room() {
                drop(graphs);
                return self.steps(call, stream);
            }
            match self.capture(call, stream, device) {
                Ok(Some(graph)) => graphs.add(graph),
                Ok(None) => {
                    drop(graphs);
                    return self.steps(call, stream);
                }
                Err(error) => {
                    graphs.give_up(format!("the capture failed: {error}"));
                    drop(graphs);
                    return self.steps(call, stream);
                }
            };
        }
        let missing = || Error::Internal(String::from("a CUDA graph is gone"));
        let graph = graphs.find(stream.raw, call.param_data, call.data).ok_or_else(missing)?;
        // SAFETY: the graph fits the stream and the addresses, and the guards have checked the inputs.
        let copied = unsafe { graph.launch(call.data, stream.raw) }?;
        self.graph_calls.fetch_add(1, Ordering::Relaxed);
        let memory = std::mem::replace(&mut graph.memory, Memory::none());
        let mut frame = self.frame(call, stream, memory)?;
        frame.from_graph = Some(copied);
        let results = frame.results();
        graph.memory = frame.memory;
        results
    }

    /// Captures the steps as a graph; `None` where that is not possible for this stream.
    fn capture(
        &self,
        call: &Call<'_>,
        stream: Stream,
        device: &Arc<cuda::Device>,
    ) -> Result<Option<PlanGraph>, Error> {
        for tensor in call.inputs.iter().chain(self.params.iter()) {
            let meta = Meta::of(tensor)?;
            if !meta.flags.is_plain() {
                // A copy of its memory is not the tensor, and what holds its elements may move while nothing shows it.
                let what = meta.flags.describe();
                return Err(Error::Unsupported(format!("an input or parameter is no plain memory: {what}")));
            }
        }
        let mut inputs = GraphInputs::of(call.inputs)?;
        let (tensors, data) = (std::mem::take(&mut inputs.tensors), std::mem::take(&mut inputs.data));
        let staged = Call { inputs: &tensors, data: &data, param_data: call.param_data };
        let bytes = self.plan.memory.bytes;
        let workspace = self.workspaces.take_exactly(bytes, self.device(), stream.raw as usize)?;
        let captured = cuda_graph::capture(device, stream.raw, |raw| {
            // SAFETY: `raw` is the stream that is being captured.
            unsafe { inputs.stage(device, call.data, raw) }?;
            let memory = self.memory_with(workspace.share());
            let mut frame = self.frame(&staged, Stream { raw, threads: stream.threads }, memory)?;
            frame.work()?;
            let results = frame.keep_results(device)?;
            Ok((frame.memory, results))
        })?;
        let fitting =
            |(graph, (memory, results))| inputs.graph(graph, stream.raw, call.param_data, memory, results);
        Ok(captured.map(fitting))
    }

    fn frame<'a>(&'a self, call: &Call<'a>, stream: Stream, memory: Memory) -> Result<Frame<'a>, Error> {
        Ok(Frame {
            compiled: self,
            inputs: call.inputs,
            input_data: call.data,
            param_data: call.param_data,
            // One that libtorch alone handles has no address; `Runs::buffer` gives none of these to a kernel.
            const_data: torch::addresses_of(&self.consts)?,
            own_data: SmallVec::from_elem(std::ptr::null_mut(), self.slots.own.len()),
            memory,
            stream,
            from_graph: None,
            status: AtomicI32::new(0),
            has_launched: false,
            views: SmallVec::new(),
        })
    }

    /// Memory with nothing in it yet, for a call on this stream.
    fn memory(&self, stream: usize) -> Result<Memory, Error> {
        let workspace = self.workspaces.take(self.plan.memory.bytes, self.device(), stream)?;
        Ok(self.memory_with(workspace))
    }

    fn memory_with(&self, workspace: Workspace) -> Memory {
        let own = self.slots.own.iter().map(|_| None).collect();
        Memory { own, externs: (0..self.slots.externs).map(|_| None).collect(), workspace }
    }

    /// Whether a tensor that the plan writes lies in the memory of another one. A capture with such tensors makes no
    /// plan, so the plan was made for separate ones.
    fn writes_shared(&self, inputs: &[Tensor]) -> Result<bool, Error> {
        if self.updates.is_empty() {
            return Ok(false);
        }
        let slots = (0..inputs.len()).map(Slot::Input).chain((0..self.params.len()).map(Slot::Param));
        let extents = inputs.iter().chain(self.params.iter()).map(|t| Ok(Meta::of(t)?.extent()));
        let all: Vec<_> = slots.zip(extents.collect::<Result<Vec<_>, Error>>()?).collect();
        let overlap = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
        let shared = |(target, own): &(Slot, Range<usize>)| {
            self.updates.iter().any(|(t, _)| t == target)
                && all.iter().any(|(slot, other)| slot != target && overlap(own, other))
        };
        Ok(all.iter().any(shared))
    }

    /// Where its kernels run.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// Whether its kernels run on a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        matches!(self.target, Target::Cuda(_))
    }

    fn device(&self) -> DeviceId {
        match self.target {
            Target::Host => DeviceId::CPU,
            Target::Cuda(ordinal) => DeviceId::cuda(ordinal as i8),
        }
    }
}

impl Frame<'_> {
    fn allocate(&mut self, positions: &[usize]) -> Result<(), Error> {
        for &at in positions {
            let ty = &self.compiled.slots.own[at];
            let tensor = empty_strided(&ty.shape, &ty.strides, ty.dtype.scalar_type(), device_id(ty.device))?;
            self.own_data[at] = torch::address_of(&tensor)? as *mut c_void;
            self.memory.own[at] = Some(tensor);
        }
        Ok(())
    }

    fn free(&mut self, slots: &[Slot]) {
        for slot in slots {
            match *slot {
                Slot::Own(at) => {
                    self.memory.own[at] = None;
                    self.own_data[at] = std::ptr::null_mut();
                }
                Slot::Extern(at) => self.memory.externs[at] = None,
                _ => {}
            }
        }
    }

    /// Queues or does the steps.
    fn work(&mut self) -> Result<(), Error> {
        self.watched(&mut ())
    }

    /// Runs the steps; of each, one or several that run together are told once.
    fn watched(&mut self, watch: &mut impl Watch) -> Result<(), Error> {
        self.allocate(&self.compiled.slots.hollow)?;
        for run in &self.compiled.runs {
            match run {
                Run::Kernel { kernel, grid, args } => self.kernel(*kernel, *grid, args)?,
                Run::OuterLoop { outer_loop, args, at } => self.outer_loop(outer_loop, args, *at)?,
                Run::Extern { call, operands, written, reused, granule, results, name } => {
                    self.call(call, (operands, *granule), (written, reused), results, name)?;
                }
                Run::Take(positions) => {
                    self.allocate(positions)?;
                    continue;
                }
                Run::Free(slots) => {
                    self.free(slots);
                    continue;
                }
            }
            watch.step(self.stream)?;
        }
        Ok(())
    }

    /// Whether all indices were in range. Nothing of the caller has been written yet.
    fn check(&self) -> Result<(), Error> {
        if self.status.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Error::IndexOutOfRange) }
    }

    fn kernel(&mut self, kernel: usize, grid: [u64; 3], args: &[Slot]) -> Result<(), Error> {
        let mut addresses: SmallVec<[u64; 16]> = SmallVec::new();
        for &slot in args {
            addresses.push(self.address(slot)? as u64);
        }
        let kernel = &self.compiled.kernels[kernel];
        // What others queued before this call may write the parameters, which later kernels of the plan read ahead.
        let first = !self.has_launched;
        self.has_launched |= !grid.contains(&0);
        // SAFETY: every address is that of a live tensor whose type the guards have checked, or lies in the arena
        // within the static memory plan; the program addresses nothing outside the span of its buffers.
        unsafe {
            match first {
                true => kernel.launch_in_order(&addresses, grid, self.stream),
                false => kernel.launch(&addresses, grid, self.stream),
            }
        }
    }

    fn outer_loop(&mut self, outer_loop: &OuterLoop, args: &[Vec<Slot>], at: u64) -> Result<(), Error> {
        let addresses = |slots: &Vec<Slot>| {
            slots.iter().map(|&slot| Ok(self.address(slot)? as u64)).collect::<Result<SmallVec<_>, Error>>()
        };
        let args = args.iter().map(addresses).collect::<Result<Vec<_>, _>>()?;
        let memory = self.memory.workspace.base as u64 + at;
        // SAFETY: as for a kernel alone; the plan has found what each block reaches, and given the threads memory for that
        // in the arena.
        unsafe { outer_loop.run(&args, memory, self.stream.threads) }
    }

    fn address(&self, slot: Slot) -> Result<usize, Error> {
        let found = match slot {
            Slot::Input(i) => self.input_data.get(i).map(|&p| p as usize),
            Slot::Param(i) => self.param_data.get(i).map(|&p| p as usize),
            Slot::Const(i) => self.const_data.get(i).map(|&p| p as usize),
            Slot::Arena(offset) => Some(self.memory.workspace.base + offset as usize),
            Slot::Own(i) if self.memory.own.get(i).is_some_and(Option::is_some) => {
                Some(self.own_data[i] as usize)
            }
            Slot::Own(_) => None,
            Slot::Extern(i) => match self.memory.externs.get(i).and_then(Option::as_ref) {
                Some(tensor) => Some(torch::address_of(tensor)?),
                None => None,
            },
            // No device memory has address 0: an index that is out of range ends the kernel with an error that the
            // next synchronisation reports, as the assertion of eager's kernel does.
            Slot::Status if matches!(self.compiled.target, Target::Cuda(_)) => Some(0),
            Slot::Status => Some(self.status.as_ptr() as usize),
        };
        found.ok_or_else(|| Error::Internal(format!("{slot:?} has no memory")))
    }

    fn call(
        &mut self,
        call: &torch::Call,
        (operands, granule): (&[TensorSource], i64),
        (written, reused): (&[usize], &[usize]),
        results: &[LibraryResult],
        name: &str,
    ) -> Result<(), Error> {
        let mut tensors: SmallVec<[Tensor; 8]> = SmallVec::new();
        for operand in operands {
            tensors.push(self.tensor(operand)?);
        }
        if granule > 1
            && let Some(tensor) = tensors.first_mut()
            && Meta::of(tensor)?.offset % granule != 0
        {
            // It stands for a copy that was left out.
            *tensor = copy_of(tensor, &tensor.size(), &tensor.stride())?;
        }
        let copies = results.get(results.len().saturating_sub(written.len())..).unwrap_or_default();
        for (&at, copy) in written.iter().zip(copies) {
            tensors[at] = copy_as(&tensors[at], &copy.ty)?;
        }
        let refs: SmallVec<[&Tensor; 8]> = tensors.iter().collect();
        let mut outs = call.run(&refs)?;
        outs.extend(written.iter().map(|&at| tensors[at].shallow_clone()));
        if outs.len() != results.len() {
            let message = format!("{name} returned {} tensors instead of {}", outs.len(), results.len());
            return Err(Error::Internal(message));
        }
        for (tensor, result) in outs.into_iter().zip(results).filter(|(t, _)| t.defined()) {
            let meta = Meta::of(&tensor)?;
            let shared = self.find_shared(&meta, &tensors, reused, result)?;
            self.memory.externs[result.position] = Some(self.as_recorded(tensor, &meta, result, shared)?);
        }
        Ok(())
    }

    /// A result as the plan expects it: with the recorded strides, with memory that outlives the arena's use, and
    /// with memory that nothing else refers to where a kernel writes over it.
    fn as_recorded(
        &self,
        tensor: Tensor,
        meta: &Meta,
        result: &LibraryResult,
        shared: bool,
    ) -> Result<Tensor, Error> {
        let ty = &result.ty;
        if meta.sizes() != &ty.shape[..] || meta.dtype != ty.dtype.scalar_type() {
            return Err(Error::OtherResult);
        }
        let in_arena =
            self.memory.workspace.arena.is_some() && meta.storage_data == self.memory.workspace.base;
        let ordinary = ty.dtype.elem().is_some();
        if ordinary {
            meta.address()?;
        }
        let shared = shared || (result.overwritten && (meta.use_count > 1 || meta.storage_use_count > 1));
        let strided = meta.flags.is_plain() && !same_strides(meta, &ty.strides);
        if shared || in_arena || strided || (ordinary && !meta.data.is_multiple_of(ALIGN)) {
            return copy_as(&tensor, ty);
        }
        Ok(tensor)
    }

    /// The tensor of a source, as a new handle.
    fn tensor(&self, source: &TensorSource) -> Result<Tensor, Error> {
        let missing = || Error::Internal(format!("{:?} has no tensor", source.slot));
        let element = i64::from(source.ty.dtype.elem().map_or(0, |e| e.bytes()));
        if let Slot::Arena(offset) = source.slot {
            let arena = self.memory.workspace.arena.as_ref().ok_or_else(missing)?;
            let (shape, strides, inner) = match &source.view {
                Some((shape, strides, inner)) => (shape, strides, *inner),
                None => (&source.ty.shape, &source.ty.strides, 0),
            };
            let at = offset as i64 + inner * element;
            return view_of(arena, at, source.ty.dtype.scalar_type(), shape, strides);
        }
        let base = match source.slot {
            Slot::Input(i) => self.inputs.get(i),
            Slot::Param(i) => self.compiled.params.get(i),
            Slot::Const(i) => self.compiled.consts.get(i),
            Slot::Own(i) => self.memory.own.get(i).and_then(Option::as_ref),
            Slot::Extern(i) => self.memory.externs.get(i).and_then(Option::as_ref),
            Slot::Arena(_) | Slot::Status => None,
        };
        let base = base.ok_or_else(missing)?;
        match &source.view {
            None => Ok(base.shallow_clone()),
            Some((shape, strides, offset)) => {
                let start = Meta::of(base)?.offset + offset;
                torch::as_strided_of(base, shape, strides, start)
            }
        }
    }

    fn results(&mut self) -> Result<Vec<Tensor>, Error> {
        let mut outputs = Vec::with_capacity(self.compiled.outputs.len());
        let mut from_graph = self.from_graph.take();
        for (at, (source, copied)) in self.compiled.outputs.iter().zip(&self.compiled.copied).enumerate() {
            let ready = from_graph.as_mut().and_then(|made| {
                let found = made.iter().position(|&(output, _)| output == at)?;
                Some(made.swap_remove(found).1)
            });
            if let Some(tensor) = ready {
                outputs.push(tensor);
                continue;
            }
            // A graph's memory is not the call's.
            if from_graph.is_none() && self.compiled.handed.get(at) == Some(&true) {
                outputs.push(self.hand_over(source)?);
                continue;
            }
            let tensor = self.tensor(source)?;
            outputs.push(match copied {
                Some(ty) => copy_as(&tensor, ty)?,
                None if from_graph.is_some() && lies_in_plan(source) => copy_as(&tensor, &type_of(source))?,
                None => tensor,
            });
        }
        self.separate(&mut outputs)?;
        self.write_back()?;
        self.alias(&mut outputs)?;
        outputs.truncate(outputs.len() - self.compiled.plan.graph.buffers.len());
        Ok(outputs)
    }

    /// The tensor of a source that nothing reads after this; an error where something had taken it already.
    fn hand_over(&mut self, source: &TensorSource) -> Result<Tensor, Error> {
        let taken = match source.slot {
            Slot::Own(at) => self.memory.own.get_mut(at).and_then(Option::take),
            Slot::Extern(at) => self.memory.externs.get_mut(at).and_then(Option::take),
            _ => None,
        };
        taken.ok_or_else(|| Error::Internal(format!("{:?} has no tensor", source.slot)))
    }

    /// Queues copies of the results, which lie in memory of the graph that is being captured.
    fn keep_results(&self, device: &Arc<cuda::Device>) -> Result<Vec<ResultCopy>, Error> {
        let mut kept = Vec::new();
        for (at, (source, copied)) in self.compiled.outputs.iter().zip(&self.compiled.copied).enumerate() {
            if copied.is_none() && lies_in_plan(source) {
                let tensor = self.tensor(source)?;
                // SAFETY: the stream is the one that is being captured.
                kept.extend(unsafe { ResultCopy::queue(device, at, &tensor, self.stream.raw) }?);
            }
        }
        Ok(kept)
    }

    /// Gives inputs and parameters the values that eager leaves in them. A value that lies in one of them is copied before
    /// any is written, unless it is the tensor itself: a kernel has written over it, which autograd is told.
    fn write_back(&self) -> Result<(), Error> {
        let mut values: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
        for (target, source) in &self.compiled.updates {
            let itself = source.slot == *target && source.view.is_none();
            let value = self.tensor(source)?;
            let foreign = match source.slot {
                Slot::Input(_) | Slot::Param(_) => true,
                Slot::Extern(at) => self.views.contains(&at),
                _ => false,
            };
            values.push((!itself).then(|| if foreign { value.copy() } else { value }));
        }
        for ((target, _), value) in self.compiled.updates.iter().zip(&values) {
            let owner = self.owner(*target)?;
            match value {
                Some(value) => failed(tch::no_grad(|| owner.shallow_clone().f_copy_(value)))?,
                None => torch::bump_version(owner)?,
            }
        }
        Ok(())
    }

    pub(super) fn owner(&self, slot: Slot) -> Result<&Tensor, Error> {
        let found = match slot {
            Slot::Input(i) => self.inputs.get(i),
            Slot::Param(i) => self.compiled.params.get(i),
            _ => None,
        };
        found.ok_or_else(|| Error::Internal(format!("{slot:?} is no tensor of the caller")))
    }
}

/// Whether a value lies in memory of the plan's, not of the caller's or the model's.
fn lies_in_plan(source: &TensorSource) -> bool {
    matches!(source.slot, Slot::Arena(_) | Slot::Own(_) | Slot::Extern(_))
}

/// The type of the tensor of a source.
pub(super) fn type_of(source: &TensorSource) -> tilefuse_fusion::TensorType {
    let mut ty = source.ty.clone();
    if let Some((shape, strides, _)) = &source.view {
        (ty.shape, ty.strides) = (shape.clone(), strides.clone());
    }
    ty
}

fn same_strides(meta: &Meta, strides: &[i64]) -> bool {
    let sizes = meta.sizes();
    meta.numel == 0 || (0..sizes.len()).all(|d| sizes[d] == 1 || meta.strides()[d] == strides[d])
}

pub(crate) fn device_id(device: Device) -> DeviceId {
    match device {
        Device::Cuda(ordinal) => DeviceId::cuda(ordinal as i8),
        _ => DeviceId::CPU,
    }
}
