//! The report of a plan: what it is, as data.

use std::time::Duration;

use rustc_hash::FxHashSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tilefuse_fusion::plan::{KernelKind, KernelStep, Plan, StepKind, Verdict};
use tilefuse_fusion::{NodeId, Op, Profile};

use super::candidates::CandidateReport;
use super::code::{CodeReport, CodeTarget, Source};
use super::flow::{Flow, TensorReport};
use super::lines::step_lines;
use super::modules::Parameters;
use super::operators::{OperatorReport, operators};
use super::text::bytes;
use super::times::predicted_call_us;
use super::work;
use crate::engine::{
    CompileReport, Compiled, EagerCost, OperatorFlow, StepTimes, Target, ToleranceReport, kept_profile,
    profile, step_modules, units,
};
use crate::hints::UnmatchedPattern;
use crate::torch::CallSite;

/// The version of the data that reports are written as. It grows where a field goes, or means something else; new fields may
/// come without that.
pub const REPORT_VERSION: u32 = 1;

/// One step of a plan.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StepReport {
    /// A generated kernel.
    Kernel {
        /// Its name.
        name: String,
        /// Its kind.
        #[schemars(with = "String")]
        shape: KernelKind,
        /// The captured operators that it computes, in order.
        operators: Vec<String>,
        /// The modules of the model that it computes a part of, by the names of parameters (see [`Fused::named`](crate::Fused::named)).
        modules: Vec<String>,
        /// The lines of the model's source at which these operators are called, `src/model.rs:42`, where
        /// [`Options::source_lines`](crate::Options::source_lines) asks for them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lines: Vec<String>,
        /// Program instances.
        grid: u64,
        /// The tensors that it reads.
        reads: Vec<TensorReport>,
        /// The tensors that it writes.
        writes: Vec<TensorReport>,
        /// Arithmetic operations, a multiplication and an addition being two.
        flops: u64,
        /// Bytes read.
        bytes_read: u64,
        /// Bytes written.
        bytes_written: u64,
        /// Bytes of these that are written by non-temporal stores, where the code can.
        bytes_non_temporal: u64,
        /// Predicted time in microseconds, by the cost model, with all that is computed in the kernel and operands where a call finds
        /// them. It follows from the measured time of a product, a convolution or attention in it where one of the `candidates` that
        /// were chosen has such a time, which is of the operator alone.
        predicted_us: f64,
        /// Measured time in microseconds, where the plan was profiled: of all steps of an outer loop at the first of them.
        measured_us: Option<f64>,
        /// Position of the program among the plan's distinct ones.
        program: usize,
        /// Why it is a kernel, where a libtorch call might do.
        reason: Option<String>,
        /// Kernels that share the launch, 1 for a kernel alone.
        parts: usize,
        /// Why it shares its launch with no other.
        horizontal_refusal: Option<String>,
        /// How it runs block by block with other kernels, or why it does not where much is handed to the next one.
        outer_loop: Option<String>,
        /// Its tiles, and whether they were predicted or measured; none of a block kernel or of several in one launch.
        schedule: Option<ScheduleReport>,
        /// What a product, a convolution or attention in it was compared with: kernels, and libtorch's call.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        candidates: Vec<CandidateReport>,
    },
    /// A libtorch call.
    Extern {
        /// The captured operator.
        operator: String,
        /// The modules of the model that it is of.
        modules: Vec<String>,
        /// The lines of the model's source at which it is called, where they are asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lines: Vec<String>,
        /// The tensors that it reads.
        reads: Vec<TensorReport>,
        /// The tensors that it writes.
        writes: Vec<TensorReport>,
        /// Multiplications and additions, where it is a product, a convolution or attention, else 0.
        flops: u64,
        /// Predicted time in microseconds, of what is no product from the bytes of its operands and results, for which it is the least, and of
        /// what makes views alone that of a launch; none where nothing is known.
        #[serde(default)]
        predicted_us: Option<f64>,
        /// Measured time in microseconds, where the plan was profiled.
        measured_us: Option<f64>,
        /// Type of its first result.
        result: String,
        /// Whether it makes views alone: what it gives lies in the memory of its operands.
        #[serde(default)]
        view: bool,
        /// Why it is no kernel.
        reason: Option<String>,
        /// What a product, a convolution or attention was compared with: kernels, and libtorch's call.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        candidates: Vec<CandidateReport>,
    },
}

impl StepReport {
    fn set_measured_us(&mut self, us: f64) {
        match self {
            StepReport::Kernel { measured_us, .. } | StepReport::Extern { measured_us, .. } => {
                *measured_us = Some(us)
            }
        }
    }
}

/// An operator of the model, as eager runs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EagerReport {
    /// The captured operator.
    pub operator: String,
    /// The module that it is of; empty where nothing says so.
    pub module: String,
    /// Measured microseconds: that the host is in it, or on a GPU, of the work that it queues there.
    pub us: f64,
}

/// How the schedule of a kernel was chosen.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleReport {
    /// Extents of the tile, and warps of an instance on a GPU; empty of the kernel of a contraction or of attention.
    pub tiles: String,
    /// How a contraction or attention is computed: its blocks, stages and layouts. Empty of other kernels.
    #[serde(default)]
    pub blocks: String,
    /// Whether schedules were measured.
    pub measured: bool,
    /// Whether that was in an earlier compilation.
    pub remembered: bool,
    /// The position of the schedule among those that were tried; 0 is the predicted one.
    pub choice: usize,
    /// Microseconds of each that was tried; none of one that could not be compiled or computed something else.
    pub us: Vec<Option<f64>>,
}

impl ScheduleReport {
    fn of(kernel: &KernelStep) -> Option<ScheduleReport> {
        let tuned = kernel.tuned.as_ref();
        if kernel.tiling.is_none() && kernel.schedule.is_empty() {
            return None;
        }
        Some(ScheduleReport {
            tiles: kernel.tiling.as_ref().map(ToString::to_string).unwrap_or_default(),
            blocks: kernel.schedule.clone(),
            measured: tuned.is_some(),
            remembered: tuned.is_some_and(|t| t.remembered),
            choice: tuned.map_or(0, |t| t.choice),
            us: tuned.map_or_else(Vec::new, |t| t.us.clone()),
        })
    }

    pub(super) fn text(&self) -> String {
        if !self.blocks.is_empty() {
            return self.blocks.clone();
        }
        let us = |at: usize| self.us.get(at).copied().flatten().unwrap_or_default();
        let how = match (self.measured, self.choice) {
            (false, _) => String::from("as predicted"),
            (true, 0) => format!("as predicted, {:.1} us measured, the best of {}", us(0), self.us.len()),
            (true, choice) => format!(
                "measured, {:.1} us instead of {:.1} us as predicted, of {} that were tried",
                us(choice),
                us(0),
                self.us.len()
            ),
        };
        format!("tiles {}: {how}", self.tiles)
    }
}

/// An edge that was not fused.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EdgeReport {
    /// The producing operator.
    pub producer: String,
    /// The consuming operator.
    pub consumer: String,
    /// The position of the step that computes the producer.
    pub producer_step: Option<usize>,
    /// The position of the step that computes the consumer.
    pub consumer_step: Option<usize>,
    /// What became of the edge, with the reason.
    pub verdict: String,
    /// What would have to change for the edge to be fused; none of one that is.
    pub remedy: Option<String>,
    /// Whether producer and consumer are in one kernel.
    pub fused: bool,
    /// Whether a hint decides that, against the cost model.
    #[serde(default)]
    pub hinted: bool,
    /// Whether the hint `together` asks for one kernel that there is not.
    #[serde(default)]
    pub unmet: bool,
    /// Bytes of what the producer gives; 0 of views that a libtorch call makes, for which nothing is moved.
    pub bytes: u64,
    /// Predicted microseconds that a cut costs at most: these bytes are written and read again, and one kernel more is launched. 0 where
    /// one kernel is predicted to be slower; none where nothing is known of the machine.
    #[serde(default)]
    pub cost_us: Option<f64>,
}

/// A tensor of the caller or of the model that a call writes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UpdateReport {
    /// The tensor: an input or one of the model's own, by position.
    pub target: String,
    /// Why the new value is copied there; `None` where a kernel writes it there.
    pub copied: Option<String>,
}

/// What a pass over the graph or the plan took while it was compiled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PassReport {
    /// Its name, as `tilefuse explain --print-after` takes it.
    pub name: String,
    /// Milliseconds of all of its runs, with what it measured.
    pub ms: f64,
}

/// What the machine can do, as it was measured, or by typical figures: what predicted times are derived from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MachineReport {
    /// Whether memory, launches and libtorch's products were measured; other figures are typical ones.
    pub measured: bool,
    /// Gigabytes of memory per second, read and written together.
    pub gigabytes_per_s: f64,
    /// Simple operations per nanosecond, a typical figure: shares of it are marked with `~`.
    pub gigaops_per_s: f64,
    /// Operations of products per nanosecond, in the fastest type.
    pub product_gigaops_per_s: f64,
    /// Whether that is a typical figure of generated kernels, higher than what libtorch's products reach: shares of it are marked with `~`.
    #[serde(default)]
    pub product_is_typical: bool,
    /// Microseconds that starting a kernel takes.
    pub launch_us: f64,
}

impl MachineReport {
    fn new(profile: &Profile, measured: bool) -> MachineReport {
        let rates = profile.products;
        let generated = rates.generated.max(rates.vnni2).max(rates.vnni4);
        MachineReport {
            measured,
            gigabytes_per_s: profile.bandwidth,
            gigaops_per_s: profile.ops_per_ns,
            product_gigaops_per_s: rates.aligned.max(generated),
            product_is_typical: !measured || generated > rates.aligned,
            launch_us: profile.launch_us,
        }
    }
}

/// Bytes of intermediates and results that a call holds, over its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReport {
    /// While each step of the plan runs, with the arena, which is held from the first to the last.
    pub fused: Vec<u64>,
    /// While each captured call of the model runs in eager, where a tensor is freed after its last use.
    pub eager: Vec<u64>,
}

/// The report of one compiled plan.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// Why calls like the one that was asked about run the model itself, where they do: the plan is what they would run
    /// otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The GPU or the processor that it is a plan for, where that need not be here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_for: Option<String>,
    /// Operators that the capture saw.
    pub ops_captured: usize,
    /// Generated kernels that a call runs.
    pub kernels_fused: usize,
    /// What the host starts in a call: kernels, those of an outer loop as one, and libtorch calls, which may launch several kernels each; 1
    /// where all of them are a CUDA graph.
    #[serde(default)]
    pub launches_fused: usize,
    /// Distinct kernels.
    pub distinct_kernels: usize,
    /// libtorch calls of a call.
    pub extern_ops: usize,
    /// Operators that eager runs as kernels: those captured, without views.
    pub kernels_eager: usize,
    /// Bytes of intermediates and results that eager holds at most at a time.
    pub peak_bytes_eager: u64,
    /// The same for the plan: the arena, results, and results of libtorch calls.
    pub peak_bytes_fused: u64,
    /// Bytes of the arena of intermediates; 0 where there are none, or all have tensors of their own.
    pub arena_bytes: u64,
    /// Bytes of prepacked weights, see [`Options::prepack_weights`](crate::Options::prepack_weights).
    pub packed_bytes: u64,
    /// On CUDA, how many CUDA graphs of the plan there are, or why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_graph: Option<String>,
    /// What the machine can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineReport>,
    /// Rewrites that the passes made, see [`Options::max_rewrites`](crate::Options::max_rewrites).
    pub rewrites: u64,
    /// The pass that made the last one, and behind a slash which of its rewrites that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rewrite: Option<String>,
    /// Time of compiling.
    pub compile: CompileReport,
    /// The parts of it that are passes over the graph and the plan, in order.
    #[serde(default)]
    pub passes: Vec<PassReport>,
    /// The operators that the capture saw, in the order of their numbers.
    #[serde(default)]
    pub operators: Vec<OperatorReport>,
    /// Steps in order.
    pub steps: Vec<StepReport>,
    /// Microseconds of a whole call, with its guards and results, where the plan was profiled; on a GPU, of its kernels launched one by
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_us: Option<f64>,
    /// On a CPU, how long threads waited for processors that others had while the plan was profiled, all threads together, in the time that
    /// this took: 2 where two threads waited all the time. None where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f64>,
    /// The operators as eager runs them, where the plan was profiled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eager: Vec<EagerReport>,
    /// The tensors of the caller and of the model that a call writes.
    pub updates: Vec<UpdateReport>,
    /// The parts of the model that have a tolerance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerances: Vec<ToleranceReport>,
    /// Hints, and patterns of [`Options::strict`](crate::Options::strict), that no operator of the call is meant by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<UnmatchedPattern>,
    /// Every edge.
    pub edges: Vec<EdgeReport>,
    /// Text of each distinct block program.
    pub programs: Vec<String>,
    /// What a call holds over time.
    #[serde(default)]
    pub memory: MemoryReport,
    /// The code of each distinct kernel, where it was asked for (see [`Explanation::with_code`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<CodeReport>,
    /// What the code is made of.
    #[serde(skip)]
    pub(super) source: Option<Source>,
}

/// What a plan's report is made of.
pub(super) struct Planned<'a> {
    pub(super) plan: &'a Plan,
    pub(super) params: Parameters<'a>,
    /// Of the captured calls.
    pub(super) modules: &'a [String],
    pub(super) operators: &'a OperatorFlow,
    /// Where captured calls were made.
    pub(super) sites: &'a [CallSite],
    pub(super) ops_captured: usize,
    pub(super) eager: &'a EagerCost,
    pub(super) rewrites: &'a (u64, Option<String>),
    pub(super) pass_times: &'a [(&'static str, Duration)],
    pub(super) compile: CompileReport,
    /// What the machine can do, and whether that was measured.
    pub(super) profile: Option<(Profile, bool)>,
    pub(super) target: CodeTarget,
}

impl Explanation {
    pub(crate) fn of(compiled: &Compiled, names: &[(String, Tensor)]) -> Explanation {
        let planned = Explanation::planned(&Planned {
            plan: &compiled.plan,
            params: Parameters::of(compiled, names),
            modules: &compiled.modules,
            operators: &compiled.flow,
            sites: &compiled.sites,
            ops_captured: compiled.ops_captured,
            eager: &compiled.eager,
            rewrites: &compiled.rewrites,
            pass_times: &compiled.pass_times,
            compile: compiled.report,
            profile: profile_of(compiled.target),
            target: CodeTarget::Here(compiled.target),
        });
        Explanation {
            peak_bytes_fused: compiled.plan.peak_bytes_with_copies(compiled.copied_bytes()),
            packed_bytes: compiled.packs.bytes(),
            launches_fused: launches(&compiled.plan, compiled.graphs.are_captured()),
            cuda_graph: matches!(compiled.target, Target::Cuda(_)).then(|| compiled.graphs.describe()),
            tolerances: compiled.tolerances.clone(),
            unmatched: compiled.unmatched.clone(),
            ..planned
        }
    }

    /// The report of a plan, without what only one that can run has.
    pub(super) fn planned(planned: &Planned<'_>) -> Explanation {
        let plan = planned.plan;
        let modules = step_modules(plan, planned.modules, |node| planned.params.name(node));
        let mut lines = step_lines(plan, planned.sites);
        let flow = Flow::of(plan, &planned.params);
        let profile = planned.profile.as_ref().map(|(profile, _)| profile);
        let origin = |id| flow.operator(id);
        let is_view = |id: NodeId| {
            let node = plan.graph.node(id);
            let call = node.origin.filter(|_| matches!(node.op, Op::Aten(_)));
            call.is_some_and(|call| planned.operators.is_view(call as usize))
        };
        let steps = plan.steps.iter().enumerate().map(|(at, step)| match &step.kind {
            StepKind::Kernel(k) => {
                let mut operators: Vec<String> = Vec::new();
                for name in k.nodes.iter().map(|&n| origin(n)) {
                    if !operators.contains(&name) {
                        operators.push(name);
                    }
                }
                StepReport::Kernel {
                    name: plan.programs[k.program].name.clone(),
                    shape: k.kind,
                    operators,
                    modules: modules[at].clone(),
                    lines: std::mem::take(&mut lines[at]),
                    grid: k.grid.iter().product(),
                    reads: flow.reads(at),
                    writes: flow.writes(at),
                    flops: work::flops(plan, &step.kind),
                    bytes_read: k.bytes_read,
                    bytes_written: k.bytes_written,
                    bytes_non_temporal: plan.non_temporal_bytes(k),
                    predicted_us: k.predicted_us,
                    measured_us: None,
                    program: k.program,
                    reason: k.note.clone(),
                    parts: k.parts.len().max(1),
                    horizontal_refusal: k.horizontal_refusal.as_ref().map(ToString::to_string),
                    outer_loop: outer_loop_text(plan, at),
                    schedule: ScheduleReport::of(k),
                    candidates: CandidateReport::all(plan, &k.nodes),
                }
            }
            StepKind::Extern(e) => {
                let (reads, writes) = (flow.reads(at), flow.writes(at));
                let moved = reads.iter().chain(&writes).map(|tensor| tensor.bytes).sum();
                let flops = work::flops(plan, &step.kind);
                let candidates = CandidateReport::all(plan, &[e.node]);
                let view = is_view(e.node);
                StepReport::Extern {
                    operator: origin(e.node),
                    modules: modules[at].clone(),
                    lines: std::mem::take(&mut lines[at]),
                    reads,
                    writes,
                    flops,
                    predicted_us: predicted_call_us(&candidates, (flops, moved), view, profile),
                    measured_us: None,
                    result: plan
                        .graph
                        .node(e.node)
                        .outs
                        .first()
                        .map_or_else(String::new, ToString::to_string),
                    view,
                    reason: e.reason.clone(),
                    candidates,
                }
            }
        });
        let mut edges: Vec<EdgeReport> = Vec::new();
        // What an operator reads several times, itself or in several parts of its computation, is handed over once.
        let mut seen = FxHashSet::default();
        for d in &plan.decisions {
            let (producer_step, consumer_step) = flow.ends(d);
            // Kernels that could not be merged over this edge may have become one over others.
            let together = producer_step.is_some() && producer_step == consumer_step;
            let verdict = if together && !d.verdict.is_fused() { &Verdict::Fused } else { &d.verdict };
            let (consumer, text) = (origin(d.consumer), verdict.to_string());
            if !seen.insert((d.producer, consumer.clone(), consumer_step, text.clone())) {
                continue;
            }
            // That a part of an operator lies between says nothing where another of its edges says why.
            if let Verdict::Cycle(between) = verdict
                && [&consumer, &origin(d.producer)].contains(&between)
                && plan.decisions.iter().any(|other| {
                    let is_cut = !other.verdict.is_fused() && !matches!(other.verdict, Verdict::Cycle(_));
                    other.producer == d.producer && is_cut && origin(other.consumer) == consumer
                })
            {
                continue;
            }
            let given = plan.graph.node(d.producer).outs.iter().map(tilefuse_fusion::TensorType::bytes).sum();
            let bytes = if is_view(d.producer) { 0 } else { given };
            edges.push(EdgeReport {
                producer: origin(d.producer),
                consumer,
                producer_step,
                consumer_step,
                verdict: text,
                remedy: verdict.remedy(),
                fused: verdict.is_fused(),
                hinted: verdict.is_hinted(),
                unmet: d.demanded && !verdict.is_fused(),
                bytes,
                cost_us: profile.map(|profile| verdict.cost_us(bytes, profile)),
            });
        }
        let updates = plan.updates.iter().zip(&plan.copied).map(|((target, _), copied)| UpdateReport {
            target: match plan.graph.node(*target).op {
                Op::Input(position) => format!("input {position}"),
                Op::Param(position) => format!("parameter {position}"),
                _ => format!("%{}", target.index()),
            },
            copied: copied.map(|reason| reason.to_string()),
        });
        Explanation {
            version: REPORT_VERSION,
            note: None,
            planned_for: None,
            ops_captured: planned.ops_captured,
            kernels_fused: plan.kernel_count(),
            launches_fused: launches(plan, false),
            distinct_kernels: plan.programs.len(),
            extern_ops: plan.extern_count(),
            kernels_eager: planned.eager.kernels,
            peak_bytes_eager: planned.eager.peak_bytes,
            peak_bytes_fused: plan.peak_bytes_with_copies(0),
            arena_bytes: plan.memory.bytes,
            packed_bytes: 0,
            cuda_graph: None,
            machine: planned
                .profile
                .as_ref()
                .map(|(profile, measured)| MachineReport::new(profile, *measured)),
            rewrites: planned.rewrites.0,
            last_rewrite: planned.rewrites.1.clone(),
            compile: planned.compile,
            passes: planned
                .pass_times
                .iter()
                .map(|(name, time)| PassReport { name: (*name).to_owned(), ms: time.as_secs_f64() * 1e3 })
                .collect(),
            operators: operators(plan, planned.modules, planned.operators),
            steps: steps.collect(),
            call_us: None,
            waiting: None,
            eager: Vec::new(),
            updates: updates.collect(),
            tolerances: Vec::new(),
            unmatched: Vec::new(),
            edges,
            programs: plan.programs.iter().map(ToString::to_string).collect(),
            memory: MemoryReport { fused: plan.held_bytes(), eager: planned.eager.held_bytes.clone() },
            code: Vec::new(),
            source: Some(Source::of(plan, planned.target)),
        }
    }
}

impl Explanation {
    /// Whether its steps were measured.
    pub fn is_measured(&self) -> bool {
        self.steps.iter().any(|step| step.measured_us().is_some())
    }

    /// The same with what a profile has measured: of steps, or of several that run together at the first of them, and of eager's
    /// operators by their numbers.
    pub(crate) fn with_profile(
        mut self,
        StepTimes { steps, call_us }: &StepTimes,
        eager: &[f64],
    ) -> Explanation {
        self.call_us = Some(*call_us);
        for (at, us) in steps {
            if let Some(step) = self.steps.get_mut(*at) {
                step.set_measured_us(*us);
            }
        }
        // Of an outer loop, the first step has the time of all.
        if !steps.is_empty() {
            self.steps
                .iter_mut()
                .filter(|step| step.measured_us().is_none())
                .for_each(|step| step.set_measured_us(0.0));
        }
        let report = |(at, &us): (usize, &f64)| match self.operators.get(at) {
            Some(OperatorReport { operator, module, .. }) => {
                EagerReport { operator: operator.clone(), module: module.clone(), us }
            }
            None => EagerReport { operator: format!("#{at}"), module: String::new(), us },
        };
        self.eager = eager.iter().enumerate().map(report).collect();
        self
    }

    /// The JSON Schema of reports, `docs/plan.schema.json`.
    pub fn schema() -> String {
        let schema = schemars::schema_for!(Explanation);
        // A schema is a value of JSON.
        serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
    }
}

/// What the host starts in a call of a plan, of which a CUDA graph is one.
fn launches(plan: &Plan, is_graph: bool) -> usize {
    let units = units(plan).len();
    if is_graph { units.min(1) } else { units }
}

/// What predicted times are derived from, and whether it was measured.
fn profile_of(target: Target) -> Option<(Profile, bool)> {
    let device = match target {
        Target::Host => tch::Device::Cpu,
        Target::Cuda(ordinal) => tch::Device::Cuda(ordinal as usize),
    };
    Some((profile(target).ok()?, kept_profile(device).is_some()))
}

/// How a kernel of a plan runs block by block with others, or why it does not.
fn outer_loop_text(plan: &Plan, at: usize) -> Option<String> {
    if let Some((_, reason)) = plan.outer_loop_refusals.iter().find(|(step, _)| *step == at) {
        return Some(format!("no outer-loop fusion with the next kernel: {reason}"));
    }
    let outer_loop = plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at))?;
    if at > outer_loop.steps.start {
        return Some(format!("in the fused outer loop of step {}", outer_loop.steps.start));
    }
    let held: u64 = outer_loop.local_buffers.iter().map(|local| plan.graph.ty(local.value).bytes()).sum();
    Some(format!(
        "outer-loop fusion of steps {at} to {}: {} blocks of rows, each on one thread; of {} between them, a thread holds {} in its cache; saves {:.0} us",
        outer_loop.steps.end - 1,
        outer_loop.blocks(),
        bytes(held),
        bytes(outer_loop.thread_bytes),
        outer_loop.saved_us
    ))
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::pipeline::plan;
    use tilefuse_fusion::plan::OuterLoop;
    use tilefuse_fusion::{Profile, parse_graph};

    use super::*;

    /// A sum that libtorch computes needs what is added to it: said of one operator, its other edge says why already.
    #[test]
    fn a_part_of_an_operator_between_its_parts_is_no_reason_beside_others() {
        let edges = |sum: &str| {
            let text = format!(
                r#"graph {{
                  origin 0 "aten::tanh #0"
                  origin 1 "aten::add #1"
                  origin 2 "aten::cumsum #2"
                  %0 = input 0 : f32[300]
                  %1 = map tanh(%0) : f32[300] @0
                  %2 = aten::cumsum(self=%1) : f32[300] @{sum}
                  %3 = map add(%1, %2) : f32[300] @1
                  outputs %3
                }}"#
            );
            let plan = plan(&parse_graph(&text).unwrap(), &Profile::host(2)).unwrap();
            assert!(plan.decisions.iter().any(|decision| matches!(decision.verdict, Verdict::Cycle(_))));
            let report = Explanation::planned(&Planned {
                plan: &plan,
                params: Parameters::new(&plan.graph, &[], &[], (0, Vec::new())),
                modules: &[],
                operators: &OperatorFlow::default(),
                sites: &[],
                ops_captured: 3,
                eager: &EagerCost::default(),
                rewrites: &(0, None),
                pass_times: &[],
                compile: CompileReport::default(),
                profile: None,
                target: CodeTarget::Here(Target::Host),
            });
            let edges = report.edges.into_iter().filter(|edge| edge.producer == "aten::tanh #0");
            edges.map(|edge| (edge.consumer, edge.verdict)).collect::<Vec<_>>()
        };
        let edge = |consumer: &str, verdict: &str| (consumer.to_owned(), verdict.to_owned());
        let library = "cut: aten::cumsum runs through libtorch";
        assert_eq!(edges("1"), [edge("aten::add #1", library)]);
        let between = "cut: aten::cumsum #2, a step between them, needs the first and feeds the second";
        assert_eq!(edges("2"), [edge("aten::cumsum #2", library), edge("aten::add #1", between)]);
    }

    /// Sums of columns of what the kernel before them writes row by row, with caches that hold none of it.
    #[test]
    fn kernels_without_an_outer_loop_say_why() {
        let text = "graph {
          %0 = input 0 : f32[64,96]
          %1 = reduce sum [1](%0) : f32[64]
          %2 = view reshape(%1) : f32[64,1]
          %3 = view expand(%2) : f32[64,96]
          %4 = map div(%0, %3) : f32[64,96]
          %5 = reduce sum [0](%4) : f32[96]
          outputs %4, %5
        }";
        let profile = Profile { cache: 1 << 10, ..Profile::host(2) };
        let plan = plan(&parse_graph(text).unwrap(), &profile).unwrap();
        let notes: Vec<Option<String>> = (0..plan.steps.len()).map(|at| outer_loop_text(&plan, at)).collect();
        let why = "no outer-loop fusion with the next kernel: the next kernel needs other rows";
        assert_eq!(notes[0].as_deref(), Some(why));
        assert!(notes[1..].iter().all(Option::is_none), "{notes:?}");
        assert_eq!([false, true].map(|is_graph| launches(&plan, is_graph)), [2, 1]);
        let (parts, local_buffers) = (Vec::new(), Vec::new());
        let outer_loop = OuterLoop {
            steps: 0..2,
            parts,
            local_buffers,
            thread_bytes: 0,
            threads: 2,
            at: 0,
            saved_us: 0.0,
        };
        let plan = Plan { outer_loops: vec![outer_loop], ..plan };
        assert_eq!((plan.kernel_count(), launches(&plan, false)), (2, 1));
    }
}
