//! Plans for a GPU or a processor that is not there: what a run on the host would be on it, planned by its typical figures.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use tch::Tensor;
use tilefuse_block::Program;
use tilefuse_codegen::host::{HostKernel, HostOptions, Isa};
use tilefuse_codegen::ptx::{Ptx, PtxOptions, Target as PtxTarget, compile_ptx};
use tilefuse_fusion::contract::Prepacked;
use tilefuse_fusion::pipeline::{Context, Stage};
use tilefuse_fusion::plan::Plan;
use tilefuse_fusion::{Device, Products, Profile, pipeline};

use super::attention_masks::Masks;
use super::compile::{alignments, fits, fitting, recorded};
use super::eager_cost::{EagerCost, eager_cost};
use super::kernels::{CompileReport, StageClock, millis};
use super::operator_flow::OperatorFlow;
use super::tolerance::ToleranceReport;
use crate::hints::{Tolerated, UnmatchedPattern, tolerances};
use crate::torch::{CallSite, SourceLines};
use crate::{Error, Prepack};

/// What a plan is made for, whether or not it is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbsentTarget {
    /// A GPU.
    Gpu(PtxTarget),
    /// A processor of a level, with as many threads as libtorch has here.
    Host(Isa),
}

impl AbsentTarget {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = AbsentTarget> {
        let hosts = Isa::NAMED.iter().map(|&(_, isa)| AbsentTarget::Host(isa));
        PtxTarget::ALL.into_iter().map(AbsentTarget::Gpu).chain(hosts)
    }

    /// Its name: that of a CUDA architecture, or LLVM's of a processor.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AbsentTarget::Gpu(target) => target.name(),
            AbsentTarget::Host(isa) => isa.name(),
        }
    }

    /// The machine that has the typical figures, and these.
    pub(crate) fn typical(self) -> (String, Profile) {
        match self {
            AbsentTarget::Gpu(target) => {
                let (name, profile) = typical_gpu(target);
                (format!("an {name}"), profile)
            }
            AbsentTarget::Host(isa) => {
                let (threads, options) = (tch::get_num_threads().max(1) as u32, HostOptions { isa });
                let profile =
                    Profile::host(threads).with_vectors(options.vector_bits(), options.vector_registers());
                let plural = if threads == 1 { "" } else { "s" };
                (format!("a processor with {threads} thread{plural}"), profile)
            }
        }
    }

    /// Compiles a program; there is PTX for an assembler where it is one for a GPU.
    fn compile(self, program: &Program) -> Result<Option<Ptx>, Error> {
        match self {
            AbsentTarget::Gpu(target) => Ok(Some(compile_ptx(program, target, &PtxOptions::default())?)),
            AbsentTarget::Host(isa) => {
                HostKernel::assembly(program, &HostOptions { isa })?;
                Ok(None)
            }
        }
    }
}

/// A plan that cannot run here.
pub(crate) struct AbsentPlan {
    pub(crate) plan: Plan,
    /// The typical figures.
    pub(crate) profile: Profile,
    pub(crate) params: Vec<Tensor>,
    /// How many constants there are, of which the last ones hold prepacked weights, and these.
    pub(crate) consts: usize,
    pub(crate) packed: Vec<Prepacked>,
    pub(crate) modules: Vec<String>,
    pub(crate) flow: OperatorFlow,
    pub(crate) sites: Vec<CallSite>,
    pub(crate) ops_captured: usize,
    pub(crate) eager: EagerCost,
    pub(crate) rewrites: (u64, Option<String>),
    pub(crate) pass_times: Vec<(&'static str, Duration)>,
    pub(crate) report: CompileReport,
    pub(crate) tolerances: Vec<ToleranceReport>,
    /// Hints and patterns that no operator is meant by.
    pub(crate) unmatched: Vec<UnmatchedPattern>,
    /// Whether an assembler of PTX was there, which has assembled all kernels.
    pub(crate) assembled: bool,
}

/// The name of a card with a target, and its typical figures.
fn typical_gpu(target: PtxTarget) -> (&'static str, Profile) {
    let (name, profile) = match target {
        PtxTarget::Sm80 => ("A100", Profile::gpu(108, 1500.0)),
        PtxTarget::Sm90a => ("H200", Profile::gpu(132, 4200.0)),
        PtxTarget::Sm100a => ("B200", Profile::gpu(148, 7000.0)),
    };
    let profile = if target.has_clusters() { profile.with_clusters() } else { profile };
    (name, if target.has_warpgroups() { profile.with_warpgroups() } else { profile })
}

/// What a model's run would be on this target. Nothing is measured: products are chosen by the cost model.
pub(crate) fn absent_plan(
    inputs: &[Tensor],
    names: &[(String, Tensor)],
    forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
    target: AbsentTarget,
    options: &crate::Options,
) -> Result<AbsentPlan, Error> {
    let (start, mut clock) = (Instant::now(), StageClock::start());
    let mut report = CompileReport::default();
    let lines = options.source_lines.then(SourceLines::keep);
    let (trace, converted, mut functional) = recorded(inputs, names, forward)?;
    drop(lines);
    report.capture_ms = clock.lap();
    if matches!(target, AbsentTarget::Gpu(_)) {
        functional.move_to(Device::Cuda(0));
    }
    let eager = eager_cost(&converted.recording);
    let modules = super::module_paths::module_paths(&converted);
    let unmatched = crate::hints::unmatched(options, &functional, &modules);
    crate::hints::warn(&unmatched);
    let hints = crate::hints::apply(&options.hints, &mut functional, &modules);
    let tolerances = not_compared(tolerances(&options.hints, &functional, &modules));
    let (_, profile) = target.typical();
    let mut masks = Masks::new(&converted.params, &converted.consts);
    let mut cx = Context { hints, facts: Box::new(&mut masks), ..Context::new(&profile) };
    cx.most_bytes = eager.peak_bytes.saturating_add(options.workspace_bytes);
    cx.selection.products = match options.products {
        Products::Measured => Products::Predicted,
        asked => asked,
    };
    if matches!(target, AbsentTarget::Host(_)) {
        cx.alignments = alignments(&trace, &converted)?;
        // The machine is taken for one that shows writes to weights.
        let prepacks = options.prepack_weights != Prepack::Never;
        cx.selection.constants = prepacks.then_some(converted.consts.len() as u32);
    }
    let graph = pipeline::lowered(functional, Stage::Primitive..=Stage::Primitive, &mut cx)?;
    report.lower_ms = clock.lap();
    let graph = pipeline::lowered(graph, Stage::Kernels..=Stage::Kernels, &mut cx)?;
    report.select_ms = clock.lap();
    let plan = pipeline::planned(graph.clone(), &mut cx)?;
    report.add_planning(clock.lap(), plan.scheduling, Duration::ZERO);
    let one = |program: &Program| target.compile(program);
    let mut compile = |programs: &[Program]| programs.par_iter().map(one).collect::<Result<Vec<_>, Error>>();
    let (mut plan, kernels) = fitting(graph, plan, &mut cx, &mut compile)?;
    report.codegen_ms = clock.lap();
    report.kernels = kernels.len();
    plan.limit_memory(cx.most_bytes);
    let rewrites = (cx.rewrites.made(), cx.rewrites.last());
    let pass_times = std::mem::take(&mut cx.times).into_iter().collect();
    let (profile, packed) = (cx.profile, std::mem::take(&mut cx.selection.packed));
    drop(cx);
    let assembler = tilefuse_codegen::cuda::ptxas();
    if let Some(assembler) = assembler {
        kernels.par_iter().flatten().try_for_each(|kernel| assemble(assembler, kernel))?;
    }
    report.codegen_ms += clock.lap();
    report.total_ms = millis(start.elapsed());
    Ok(AbsentPlan {
        profile,
        ops_captured: converted.recording.calls.len(),
        params: converted.params,
        consts: converted.consts.len() + packed.len(),
        packed,
        modules,
        flow: OperatorFlow::of(&converted.recording),
        sites: converted.sites,
        eager,
        rewrites,
        pass_times,
        report,
        tolerances,
        unmatched,
        assembled: assembler.is_some(),
        plan,
    })
}

/// The block programs that a model's run would have on a GPU of the H200's size that runs code for a target, planned without
/// one, with every product that may be a kernel.
pub(crate) fn gpu_programs(
    inputs: &[Tensor],
    forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
    target: PtxTarget,
) -> Result<Vec<Program>, Error> {
    let mut profile = Profile::gpu(132, 4200.0).with_clusters();
    if target.has_warpgroups() {
        profile = profile.with_warpgroups();
    }
    let (_, converted, mut functional) = recorded(inputs, &[], forward)?;
    functional.move_to(Device::Cuda(0));
    let mut masks = Masks::new(&converted.params, &converted.consts);
    let mut cx = Context { facts: Box::new(&mut masks), ..Context::new(&profile) };
    cx.selection.products = Products::Generated;
    let graph = pipeline::lowered(functional, Stage::Primitive..=Stage::Kernels, &mut cx)?;
    loop {
        let programs = pipeline::plan(&graph, &profile)?.programs;
        let too_large = |p| matches!(fits(p), Err(tilefuse_codegen::Error::TileTooLarge { .. }));
        match profile.with_smaller_tiles() {
            Some(smaller) if programs.iter().any(too_large) => profile = smaller,
            _ => return Ok(programs),
        }
    }
}

/// What is said of parts that have a tolerance.
fn not_compared(parts: Vec<Tolerated>) -> Vec<ToleranceReport> {
    let report = |Tolerated { of, part, relative, .. }: Tolerated| {
        let reason = format!(
            "the hint `tolerance` for {of} asks for {relative:.1e} of {part}, and nothing is compared in a plan for `--target`"
        );
        ToleranceReport { part, relative, difference: None, reason }
    };
    parts.into_iter().map(report).collect()
}

/// Assembles a kernel, for the assembler's judgement alone.
fn assemble(assembler: &Path, ptx: &Ptx) -> Result<(), Error> {
    let failed = |what: String| Error::Internal(format!("{}: {what}", assembler.display()));
    let folder = tempfile::tempdir().map_err(|error| failed(error.to_string()))?;
    let source = folder.path().join("kernel.ptx");
    std::fs::write(&source, &ptx.text).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(assembler);
    command.arg(format!("-arch={}", ptx.target.name())).arg("-o").arg(folder.path().join("kernel.cubin"));
    let output = command.arg(&source).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
