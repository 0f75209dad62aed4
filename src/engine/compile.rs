//! From a trace to a plan that can run.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use tch::Tensor;
use tilefuse_block::{Elem, Program};
use tilefuse_codegen::host::HostOptions;
use tilefuse_fusion::pipeline::{Context, Form, Selection, Stage};
use tilefuse_fusion::plan::{Plan, StepKind, Tuner};
use tilefuse_fusion::{
    Alignments, Declined, Device, Graph, MaybeKernel, NodeId, Op, Profile, Recording, Rewrites, TensorType,
    pipeline,
};

use super::attention_masks::Masks;
use super::convert::{Converted, convert};
use super::cuda_graph::Graphs;
use super::eager_cost::EagerCost;
use super::guard::{Contents, Signature};
use super::kernels::{CompileReport, Kernel, StageClock, Target, kernels, millis};
use super::nvtx::StepRanges;
use super::operator_flow::OperatorFlow;
use super::prepack::{PrepackCache, PrepackedWeights};
use super::schedules::Schedules;
use super::slots::{Slot, Slots, TensorSource};
use super::steps::{Run, Runs};
use super::tolerance::{ToleranceReport, Tolerances};
use super::workspaces::Pool;
use crate::Error;
use crate::faults::Planting;
use crate::hints::UnmatchedPattern;
use crate::torch::{Call, CallSite, DeviceId, Expect, KeepsMemory, Meta, Trace};

/// Tensors that several threads may read.
#[derive(Debug, Default)]
pub(crate) struct Tensors(pub(crate) Vec<Tensor>);

// SAFETY: a handle is never changed here; libtorch counts references atomically and allows concurrent reads.
unsafe impl Sync for Tensors {}

impl std::ops::Deref for Tensors {
    type Target = [Tensor];

    fn deref(&self) -> &[Tensor] {
        &self.0
    }
}

/// A plan with its kernels, ready to run.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) plan: Plan,
    pub(crate) target: Target,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) runs: Vec<Run>,
    /// Devices on which calls draw random numbers.
    pub(crate) draws_on: Vec<DeviceId>,
    pub(crate) slots: Slots,
    pub(crate) outputs: Vec<TensorSource>,
    /// Types of the outputs that are copied into memory of their own.
    pub(crate) copied: Vec<Option<TensorType>>,
    /// Which outputs are a tensor that is there already.
    pub(crate) same: Vec<Option<super::alias::Same>>,
    /// Which outputs a call gives away; see [`super::alias::handed`].
    pub(crate) handed: Vec<bool>,
    pub(crate) updates: Vec<(Slot, TensorSource)>,
    pub(crate) params: Tensors,
    pub(crate) param_expects: Vec<Expect>,
    /// Tensors of the model that the recorded call read, and the plan does not: their types and values were compiled in.
    pub(crate) observed: Tensors,
    pub(crate) observed_expects: Vec<Expect>,
    /// How many handles of each parameter and observed tensor the plans of its model and their names hold together.
    pub(crate) own_handles: RwLock<Vec<i64>>,
    pub(crate) consts: Tensors,
    /// Weights that lie in constants in another order.
    pub(crate) packs: PrepackedWeights,
    /// Constants that the model made in the recorded call and keeps.
    pub(crate) cached: Tensors,
    /// Tensors of the model whose values were compiled in, and their versions then.
    pub(crate) assumed: Tensors,
    pub(crate) assumed_versions: Vec<i64>,
    /// Their contents then, but those of masks on a GPU: a write that no version counts shows in them.
    pub(crate) assumed_contents: Vec<Contents>,
    pub(crate) report: CompileReport,
    /// Operators that the capture saw, constants left out.
    pub(crate) ops_captured: usize,
    /// What eager does in the recorded run.
    pub(crate) eager: EagerCost,
    /// Rewrites that the passes made, and the pass that made the last one.
    pub(crate) rewrites: (u64, Option<String>),
    /// What each pass took.
    pub(crate) pass_times: Vec<(&'static str, Duration)>,
    /// The module that each captured call belongs to.
    pub(crate) modules: Vec<String>,
    /// What goes from one captured call to another.
    pub(crate) flow: OperatorFlow,
    /// Where each captured call was made, if that was asked for.
    pub(crate) sites: Vec<CallSite>,
    /// What became of the parts that have a tolerance.
    pub(crate) tolerances: Vec<ToleranceReport>,
    /// Hints and patterns that no operator is meant by.
    pub(crate) unmatched: Vec<UnmatchedPattern>,
    /// Memory of intermediates, which the plans of a model share.
    pub(crate) workspaces: Arc<Pool>,
    /// Memory of large results is kept for the next call.
    pub(crate) _keeps: KeepsMemory,
    /// The ranges of the steps, where they are asked for.
    pub(crate) ranges: Option<StepRanges>,
    /// CUDA graphs of the steps.
    pub(crate) graphs: Graphs,
    /// Calls that launched one.
    pub(crate) graph_calls: std::sync::atomic::AtomicU64,
}

impl Compiled {
    /// Bytes of the results that the caller gets copies of.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied.iter().flatten().map(TensorType::bytes).sum()
    }

    /// Returns these last outputs, which the model does not, no longer.
    pub(super) fn forget_last_outputs(&mut self, count: usize) {
        let left = self.outputs.len().saturating_sub(count);
        self.outputs.truncate(left);
        self.copied.truncate(left);
        self.handed.truncate(left);
        let buffers = &mut self.plan.graph.buffers;
        buffers.truncate(buffers.len().saturating_sub(count));
    }

    /// The tensors of the model that it holds handles of.
    fn held(&self) -> impl Iterator<Item = &Tensor> {
        let own = self.params.iter().chain(self.consts.iter()).chain(self.cached.iter());
        own.chain(self.observed.iter()).chain(self.assumed.iter()).chain(self.packs.weights())
    }

    /// Tells the plans of one model how many handles of their parameters they and `named` hold together. A parameter
    /// with no other handle is no longer the model's.
    pub(crate) fn count_handles<'a>(plans: impl Iterator<Item = &'a Compiled> + Clone, named: &'a [Tensor]) {
        let identity = |t: &Tensor| Meta::of(t).map_or(0, |m| m.tensor_impl);
        let mut handles: FxHashMap<usize, i64> = FxHashMap::default();
        for tensor in plans.clone().flat_map(Compiled::held).chain(named) {
            *handles.entry(identity(tensor)).or_default() += 1;
        }
        for plan in plans {
            let read = plan.params.iter().chain(plan.observed.iter());
            let own = read.map(|t| handles.get(&identity(t)).copied().unwrap_or(0)).collect();
            *plan.own_handles.write().unwrap_or_else(PoisonError::into_inner) = own;
        }
    }
}

/// Compiles a trace without refusals for calls of its signature. The prepacked weights of its model are in the store.
pub(crate) fn compile(
    mut trace: Trace,
    signature: &mut Signature,
    options: &crate::Options,
    store: &Arc<PrepackCache>,
    workspaces: &Arc<Pool>,
    mut report: CompileReport,
) -> Result<Compiled, Error> {
    let start = Instant::now();
    let calls: Vec<Arc<Call>> = std::mem::take(&mut trace.calls).into_iter().map(Arc::new).collect();
    let mut tolerances = Tolerances::default();
    loop {
        let recorded = (&trace, &calls[..]);
        let memory = (store, workspaces);
        let mut compiled = attempt(recorded, signature, options, memory, &mut tolerances, report)?;
        if tolerances.are_met(&mut compiled, &trace)? {
            crate::hints::warn(&compiled.unmatched);
            compiled.report.total_ms = compiled.report.capture_ms + millis(start.elapsed());
            return Ok(compiled);
        }
        report = compiled.report;
    }
}

/// Compiles a trace, with what attempts before have found out.
fn attempt(
    (trace, calls): (&Trace, &[Arc<Call>]),
    signature: &mut Signature,
    options: &crate::Options,
    (store, workspaces): (&Arc<PrepackCache>, &Arc<Pool>),
    tolerances: &mut Tolerances,
    mut report: CompileReport,
) -> Result<Compiled, Error> {
    let _span = tracing::info_span!("compile", operators = trace.events.len()).entered();
    let mut clock = StageClock::start();
    let mut converted = convert(trace)?;
    let mut functional = tilefuse_fusion::functionalize(&converted.recording)?;
    let target = target_of(&functional)?;
    let profile = profile(target)?;
    if let Some(planting) = options.fault {
        plant(planting, &mut converted, &mut functional, &profile)?;
    }
    let eager = super::eager_cost::eager_cost(&converted.recording);
    let modules = super::module_paths::module_paths(&converted);
    let unmatched = crate::hints::unmatched(options, &functional, &modules);
    let flow = OperatorFlow::of(&converted.recording);
    let hints = crate::hints::apply(&options.hints, &mut functional, &modules);
    tolerances.prepare(&options.hints, &mut functional, &modules, (trace, &converted, calls))?;
    let mut found = Found::new(target, &converted, options);
    let known = Context { hints, ..Context::new(&profile) };
    let mut cx = found.context(known, &eager, (trace, &converted), options)?;
    let most_bytes = cx.most_bytes;
    let graph = tracing::info_span!("lower")
        .in_scope(|| pipeline::lowered(functional, Stage::Primitive..=Stage::Primitive, &mut cx))?;
    report.lower_ms += clock.lap();
    let graph = tracing::info_span!("select-kernels")
        .in_scope(|| pipeline::lowered(graph, Stage::Kernels..=Stage::Kernels, &mut cx))?;
    report.select_ms += clock.lap();
    let (packs, panels) =
        PrepackedWeights::new(&cx.selection.packed, &converted.params, store, options.prepack_weights)?;
    report.prepack_ms += clock.lap();
    let plan = tracing::info_span!("plan").in_scope(|| pipeline::planned(graph.clone(), &mut cx))?;
    let plant = |plan: &mut Plan| options.fault.map_or(Ok(()), |planting| planting.in_plan(plan));
    if options.fault.is_some() {
        // Before kernels are compiled for nothing.
        plant(&mut plan.clone())?;
    }
    let before = report.codegen_ms;
    let mut compile = |programs: &[Program]| {
        let programs =
            options.fault.map_or(Ok(programs.into()), |planting| planting.in_programs(programs))?;
        tracing::info_span!("codegen", kernels = programs.len())
            .in_scope(|| kernels(&programs, target, &mut report))
    };
    let (mut plan, kernels) = fitting(graph, plan, &mut cx, &mut compile)?;
    let planning_ms = clock.lap() - (report.codegen_ms - before);
    let rewrites = (cx.rewrites.made(), cx.rewrites.last());
    let pass_times = std::mem::take(&mut cx.times).into_iter().collect();
    drop(cx);
    let masks = found.masks.assumed(&converted.params);
    let tuning = found.schedules.as_ref().map_or(Duration::ZERO, Schedules::spent);
    report.add_planning(planning_ms, plan.scheduling, tuning);
    drop(found.schedules);
    converted.consts.extend(panels);
    plan.limit_memory(most_bytes);
    plant(&mut plan)?;
    let slots = Slots::of(&plan);
    let device = plan.graph.kernel_device();
    let runs = Runs { plan: &plan, slots: &slots, kernels: &kernels, calls, device }.all()?;
    let outputs = plan.outputs.iter().map(|p| slots.source(&plan, p)).collect::<Result<Vec<_>, _>>()?;
    let updates = plan
        .updates
        .iter()
        .map(|(target, place)| Ok((slots.get((*target).into())?, slots.source(&plan, place)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let assumed = trace.assumed.iter().filter_map(|(t, v)| Some((trace.tensor(*t)?.shallow_clone(), *v)));
    let cached: Vec<Tensor> =
        trace.cached.iter().filter_map(|&t| trace.tensor(t)).map(Tensor::shallow_clone).collect();
    // The model may write what it keeps, while a plan has made constants of it.
    let read = masks.iter().chain(&cached).map(|t| Ok((t.shallow_clone(), Meta::of(t)?.version)));
    let assumed = assumed.map(Ok).chain(read).collect::<Result<Vec<_>, Error>>()?;
    let (assumed, assumed_versions): (Vec<Tensor>, Vec<i64>) = assumed.into_iter().unzip();
    let contents = |(at, t): (usize, &Tensor)| match at < trace.assumed.len() {
        true => Contents::of(t),
        false => Contents::on_host(t),
    };
    let assumed_contents: Vec<Contents> = assumed.iter().enumerate().map(contents).collect();
    let metas = converted.params.iter().map(Meta::of).collect::<Result<Vec<_>, _>>()?;
    let mut param_expects: Vec<Expect> =
        metas.iter().map(|m| Expect::like(m, super::guard::alignment(m.data))).collect();
    for &node in &plan.graph.offsets {
        match plan.graph.node(node).op {
            Op::Param(i) => {
                param_expects[i as usize] = param_expects[i as usize].at_offset(metas[i as usize].offset)
            }
            Op::Input(i) => {
                let input = trace.inputs.get(i as usize).and_then(|&id| trace.tensor(id));
                let missing = || Error::Internal(String::from("an input of the trace is gone"));
                signature.set_offset_of(i as usize, input.ok_or_else(missing)?)?;
            }
            _ => {}
        }
    }
    let is_read: FxHashSet<usize> = metas.iter().map(|m| m.tensor_impl).collect();
    let mut observed = Vec::new();
    let mut observed_expects = Vec::new();
    for tensor in trace.params.iter().filter_map(|&(t, _)| trace.tensor(t)) {
        let meta = Meta::of(tensor)?;
        if !is_read.contains(&meta.tensor_impl) {
            observed.push(tensor.shallow_clone());
            observed_expects.push(Expect::like(&meta, 1));
        }
    }
    let copied = copied(&plan.graph, &outputs, &converted.recording);
    Ok(Compiled {
        cached: Tensors(cached),
        eager,
        rewrites,
        pass_times,
        ops_captured: converted.recording.calls.len(),
        target,
        kernels,
        runs,
        draws_on: draws_on(&plan),
        same: super::alias::same(trace),
        handed: super::alias::handed(&outputs, &copied, &updates),
        copied,
        outputs,
        updates,
        slots,
        param_expects,
        own_handles: RwLock::new(vec![0; converted.params.len() + observed.len()]),
        observed: Tensors(observed),
        observed_expects,
        params: Tensors(converted.params),
        consts: Tensors(converted.consts),
        packs,
        assumed_contents,
        assumed: Tensors(assumed),
        assumed_versions,
        report,
        tolerances: Vec::new(),
        unmatched,
        ranges: ranges(&plan, target, (&modules, &converted.recording), options),
        graphs: Graphs::new(options.cuda_graphs, &plan, target),
        graph_calls: std::sync::atomic::AtomicU64::new(0),
        plan,
        modules,
        flow,
        sites: std::mem::take(&mut converted.sites),
        workspaces: Arc::clone(workspaces),
        _keeps: KeepsMemory::new(),
    })
}

/// What passes find out of a recorded run.
struct Found<'t> {
    target: Target,
    masks: Masks<'t>,
    schedules: Option<Schedules>,
}

impl<'t> Found<'t> {
    fn new(target: Target, converted: &'t Converted, options: &crate::Options) -> Found<'t> {
        Found {
            target,
            masks: Masks::new(&converted.params, &converted.consts),
            schedules: options.tune.then(|| Schedules::new(target)),
        }
    }

    /// What is known, with what passes find out and how they are to choose.
    fn context<'a>(
        &'a mut self,
        known: Context<'a>,
        eager: &EagerCost,
        (trace, converted): (&Trace, &Converted),
        options: &crate::Options,
    ) -> Result<Context<'a>, Error> {
        let Found { masks, schedules, target } = self;
        let prepack = super::prepack::may_pack(options.prepack_weights, &converted.params, *target)?;
        let most_bytes = eager.peak_bytes.saturating_add(options.workspace_bytes);
        Ok(Context {
            facts: Box::new(masks),
            selection: Selection {
                products: options.products,
                constants: prepack.then_some(converted.consts.len() as u32),
                measure: Box::new(super::products::Measuring::within(prepack, most_bytes)),
                packed: Vec::new(),
            },
            alignments: alignments(trace, converted)?,
            most_bytes,
            tuner: schedules
                .as_mut()
                .map(|schedules| -> Box<Tuner<'a>> { Box::new(|tunable| schedules.choose(tunable)) }),
            rewrites: Rewrites::at_most(options.max_rewrites),
            ..known
        })
    }
}

/// Plants a fault of capture or functionalization.
fn plant(
    planting: Planting,
    converted: &mut Converted,
    functional: &mut Graph,
    profile: &Profile,
) -> Result<(), Error> {
    let mut recording = converted.recording.clone();
    let lowered = |graph| {
        let mut masks = Masks::new(&converted.params, &converted.consts);
        let mut cx = Context { facts: Box::new(&mut masks), ..Context::new(profile) };
        Ok(pipeline::lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx)?)
    };
    planting.in_graph(&mut recording, functional, &lowered)?;
    converted.recording = recording;
    Ok(())
}

/// How the tensors that a plan finds lie in memory; the guards hold them to it.
pub(super) fn alignments(trace: &Trace, converted: &Converted) -> Result<Alignments, Error> {
    let align = |t: &Tensor| Ok(super::guard::alignment(Meta::of(t)?.data) as u32);
    let missing = || Error::Internal(String::from("an input of the trace is gone"));
    let input = |&id| trace.tensor(id).ok_or_else(missing).and_then(align);
    Ok(Alignments {
        inputs: trace.inputs.iter().map(input).collect::<Result<_, Error>>()?,
        params: converted.params.iter().map(align).collect::<Result<_, Error>>()?,
        consts: converted.consts.iter().map(align).collect::<Result<_, Error>>()?,
    })
}

/// What `compile` makes of the programs of a plan. Where a tile does not fit in the registers, those of a plan with
/// smaller tiles; where it is one of an operator with a kernel of its own, of a plan in which that has no neighbours, and
/// then of one in which the operator is called as it is.
pub(super) fn fitting<K>(
    mut graph: Graph,
    mut plan: Plan,
    cx: &mut Context<'_>,
    compile: &mut dyn FnMut(&[Program]) -> Result<K, Error>,
) -> Result<(Plan, K), Error> {
    loop {
        let error = match compile(&plan.programs) {
            Err(Error::Codegen(error)) => error,
            other => return Ok((plan, other?)),
        };
        let tilefuse_codegen::Error::TileTooLarge { program, .. } = &error else {
            return Err(Error::Codegen(error));
        };
        match owner(&plan, program).and_then(|node| graph.node_mut(node).kernel.as_mut()) {
            Some(kernel) => leave_out_neighbours(kernel, &error),
            None => cx.profile = cx.profile.with_smaller_tiles().ok_or(Error::Codegen(error))?,
        }
        plan = pipeline::planned(graph.clone(), cx)?;
    }
}

/// The node with a kernel of its own that a program of a plan is for, or a part of it.
fn owner(plan: &Plan, program: &str) -> Option<NodeId> {
    plan.steps.iter().find_map(|step| {
        let StepKind::Kernel(kernel) = &step.kind else { return None };
        let parts = kernel.parts.iter().any(|part| part.kind.has_own_blocks());
        let own = parts || kernel.kind.has_own_blocks();
        let own = own && plan.programs.get(kernel.program)?.name == program;
        kernel.nodes.iter().copied().filter(|_| own).find(|&node| plan.graph.node(node).kernel.is_some())
    })
}

/// Leaves a kernel without neighbours, or a call without its kernel if that has none already.
fn leave_out_neighbours(kernel: &mut MaybeKernel, error: &tilefuse_codegen::Error) {
    match kernel {
        Ok(custom) if !custom.neighbours_do_not_fit => {
            std::sync::Arc::make_mut(custom).neighbours_do_not_fit = true;
        }
        _ => *kernel = Err(Declined::new(error.to_string(), "a kernel that code can be generated for")),
    }
}

/// The types of the outputs that are copied: those found in memory of the caller, of the model or of another output
/// though eager's are not, and those that do not have the strides of eager's.
fn copied(graph: &Graph, outputs: &[TensorSource], recording: &Recording) -> Vec<Option<TensorType>> {
    let eager = recording.outputs.iter().filter_map(|t| recording.tensors.get(t.0 as usize));
    let types: Vec<&TensorType> = eager.map(|info| &info.ty).chain(&graph.buffers).collect();
    let aliased = |at: usize| graph.aliases.get(at).is_some_and(Option::is_some);
    let copy = |(at, &ty): (usize, &&TensorType)| {
        let source = outputs.get(at).filter(|_| !aliased(at))?;
        let foreign = matches!(source.slot, Slot::Input(_) | Slot::Param(_) | Slot::Const(_));
        let shared = |other: usize| !aliased(other) && outputs[other].slot == source.slot;
        let strides = source.view.as_ref().map_or(&source.ty.strides, |v| &v.1);
        let other_strides =
            ty.numel() > 0 && (0..ty.rank()).any(|d| ty.shape[d] != 1 && ty.strides[d] != strides[d]);
        (foreign || other_strides || (0..at).any(shared)).then(|| ty.clone())
    };
    types.iter().enumerate().map(copy).collect()
}

/// The ranges of a plan's steps, where they are asked for and can be shown.
fn ranges(
    plan: &Plan,
    target: Target,
    (modules, recording): (&[String], &Recording),
    options: &crate::Options,
) -> Option<StepRanges> {
    if !options.nvtx || target == Target::Host {
        return None;
    }
    if !crate::torch::has_ranges() {
        tracing::warn!("this libtorch has no NVTX: there are no ranges");
        return None;
    }
    Some(StepRanges::of(plan, modules, &super::module_paths::param_names(recording)))
}

/// The devices on which the calls of a plan draw random numbers.
fn draws_on(plan: &Plan) -> Vec<DeviceId> {
    let mut devices = Vec::new();
    for step in &plan.steps {
        let StepKind::Extern(step) = &step.kind else { continue };
        let node = plan.graph.node(step.node);
        if !matches!(&node.op, Op::Aten(call) if call.random) {
            continue;
        }
        for device in node.outs.iter().map(|ty| super::exec::device_id(ty.device)) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
    }
    devices
}

/// The one device that kernels of a graph run on.
fn target_of(graph: &Graph) -> Result<Target, Error> {
    let Device::Cuda(ordinal) = graph.kernel_device() else { return Ok(Target::Host) };
    let mut types = graph.ids().flat_map(|id| &graph.node(id).outs);
    if types.any(|ty| matches!(ty.device, Device::Cuda(other) if other != ordinal)) {
        return Err(Error::Unsupported(String::from("tensors on several CUDA devices")));
    }
    Ok(Target::Cuda(ordinal))
}

/// What a target can do, as it was measured, or by typical figures.
pub(crate) fn profile(target: Target) -> Result<Profile, Error> {
    let device = match target {
        Target::Host => tch::Device::Cpu,
        Target::Cuda(ordinal) => tch::Device::Cuda(ordinal as usize),
    };
    let typical = typical_profile(target)?;
    Ok(super::profile::kept(device).map_or(typical, |measured| measured.in_profile(typical)))
}

fn typical_profile(target: Target) -> Result<Profile, Error> {
    match target {
        Target::Host => {
            let options = HostOptions::default();
            let rates = [Elem::Bf16, Elem::I8].map(|elem| options.grouped_products(elem));
            let profile = Profile::host(tch::get_num_threads().max(1) as u32).with_vnni(rates);
            let profile = profile.with_vectors(options.vector_bits(), options.vector_registers());
            Ok(profile.with_cache(own_cache()))
        }
        Target::Cuda(ordinal) => {
            let device = tilefuse_codegen::cuda::Device::get(ordinal as usize)?;
            let properties = device.properties();
            let profile = Profile::gpu(properties.multiprocessors, device_bandwidth(properties));
            let target = device.target()?;
            let profile = if target.has_clusters() { profile.with_clusters() } else { profile };
            Ok(if target.has_warpgroups() { profile.with_warpgroups() } else { profile })
        }
    }
}

/// Bytes of the cache that a thread has for itself, as Linux says; 1 MiB where it does not.
fn own_cache() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    let read = |file: &str| {
        let text =
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index2/{file}")).ok()?;
        Some(text.trim().to_owned())
    };
    *BYTES.get_or_init(|| {
        let bytes = read("size").and_then(|size| Some(size.strip_suffix('K')?.parse::<u64>().ok()? << 10));
        bytes.filter(|&bytes| bytes > 0).unwrap_or(1 << 20)
    })
}

/// Typical copy bandwidth in GB/s, by what the driver says of a device; the driver does not say this itself.
fn device_bandwidth(properties: &tilefuse_codegen::cuda::Properties) -> f64 {
    match properties.capability {
        (10.., _) => 7000.0,
        (9, _) if properties.memory_bytes > 100_000_000_000 => 4200.0,
        (9, _) => 2900.0,
        _ => 1500.0,
    }
}

/// A model's run after passes of these names, as text; no passes run behind `last`.
pub(crate) fn forms_after(
    inputs: &[Tensor],
    forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
    passes: &[String],
    last: Option<&str>,
    options: &crate::Options,
) -> Result<String, Error> {
    let device = inputs.first().map_or(tch::Device::Cpu, Tensor::device);
    let target = match device {
        tch::Device::Cuda(ordinal) => Target::Cuda(ordinal as u32),
        _ => Target::Host,
    };
    let profile = profile(target)?;
    let mut text = String::new();
    let mut after = |name: &'static str, form: &Form| {
        if passes.iter().any(|pass| pass == name) || last == Some(name) {
            text.push_str(&format!("// after {name}\n{form}"));
        }
        last != Some(name)
    };
    let (trace, converted, mut functional) = recorded(inputs, &[], forward)?;
    let modules = super::module_paths::module_paths(&converted);
    let hints = crate::hints::apply(&options.hints, &mut functional, &modules);
    let eager = super::eager_cost::eager_cost(&converted.recording);
    let mut found = Found::new(target, &converted, options);
    let known = Context { hints, ..Context::new(&profile) };
    let mut cx = found.context(known, &eager, (&trace, &converted), options)?;
    pipeline::run(Form::Graph(functional), Stage::Primitive..=Stage::Plan, &mut cx, &mut after)?;
    cx.forms.iter().for_each(|forms| text.push_str(&format!("// {forms}\n")));
    let (made, last) = (cx.rewrites.made(), cx.rewrites.last());
    text.push_str(&format!("// {made} rewrites, the last one by {}\n", last.as_deref().unwrap_or("no pass")));
    Ok(text)
}

/// The primitive graph of a model's run.
#[cfg(test)]
pub(super) fn graph_of(
    inputs: &[Tensor],
    forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
    profile: &Profile,
) -> Result<Graph, Error> {
    let (_, converted, functional) = recorded(inputs, &[], forward)?;
    let mut masks = Masks::new(&converted.params, &converted.consts);
    let mut cx = Context { facts: Box::new(&mut masks), ..Context::new(profile) };
    Ok(pipeline::lowered(functional, Stage::Primitive..=Stage::Primitive, &mut cx)?)
}

/// A model's run, with these names of its parameters, and its functional graph.
pub(super) fn recorded(
    inputs: &[Tensor],
    names: &[(String, Tensor)],
    forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
) -> Result<(Trace, Converted, Graph), Error> {
    let copy = |outputs: &Vec<Tensor>| outputs.iter().map(Tensor::shallow_clone).collect();
    let (_, trace) = crate::torch::capture(inputs, names, || forward(inputs), copy)?;
    if let Some(refusal) = trace.refusals.first() {
        return Err(Error::RunsEager(refusal.to_string()));
    }
    let converted = convert(&trace)?;
    let functional = tilefuse_fusion::functionalize(&converted.recording)?;
    Ok((trace, converted, functional))
}

pub(super) fn fits(program: &tilefuse_block::Program) -> tilefuse_codegen::Result<()> {
    use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx};
    compile_ptx(program, Target::Sm90a, &PtxOptions::default()).map(|_| ())
}
