//! Plans for a GPU that is not there: what a run on the host would be on it, planned by its typical figures.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use tch::Tensor;
use tilefuse_block::Program;
use tilefuse_codegen::ptx::{Ptx, PtxOptions, Target as PtxTarget, compile_ptx};
use tilefuse_fusion::pipeline::{Context, Stage};
use tilefuse_fusion::plan::Plan;
use tilefuse_fusion::{Device, Products, Profile, pipeline};

use super::attention_masks::Masks;
use super::compile::{fits, fitting, recorded};
use super::eager_cost::{EagerCost, eager_cost};
use super::kernels::{CompileReport, StageClock, millis};
use super::operator_flow::OperatorFlow;
use super::tolerance::ToleranceReport;
use crate::Error;
use crate::hints::{Tolerated, UnmatchedPattern, tolerances};
use crate::torch::{CallSite, SourceLines};

/// A plan that cannot run here.
pub(crate) struct AbsentPlan {
    pub(crate) plan: Plan,
    /// The typical figures.
    pub(crate) profile: Profile,
    pub(crate) params: Vec<Tensor>,
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
    /// Whether an assembler was there, which has assembled all kernels.
    pub(crate) assembled: bool,
}

/// The name of a card with a target, and its typical figures.
pub(crate) fn typical(target: PtxTarget) -> (&'static str, Profile) {
    let (name, profile) = match target {
        PtxTarget::Sm80 => ("A100", Profile::gpu(108, 1500.0)),
        PtxTarget::Sm90a => ("H200", Profile::gpu(132, 4200.0)),
        PtxTarget::Sm100a => ("B200", Profile::gpu(148, 7000.0)),
    };
    let profile = if target.has_clusters() { profile.with_clusters() } else { profile };
    (name, if target.has_warpgroups() { profile.with_warpgroups() } else { profile })
}

/// What a model's run would be on a GPU with this target. Nothing is measured: products are chosen by the cost model.
pub(crate) fn absent_plan(
    inputs: &[Tensor],
    names: &[(String, Tensor)],
    forward: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
    target: PtxTarget,
    options: &crate::Options,
) -> Result<AbsentPlan, Error> {
    let (start, mut clock) = (Instant::now(), StageClock::start());
    let mut report = CompileReport::default();
    let lines = options.source_lines.then(SourceLines::keep);
    let (_, converted, mut functional) = recorded(inputs, names, forward)?;
    drop(lines);
    report.capture_ms = clock.lap();
    functional.move_to(Device::Cuda(0));
    let eager = eager_cost(&converted.recording);
    let modules = super::module_paths::module_paths(&converted);
    let unmatched = crate::hints::unmatched(options, &functional, &modules);
    crate::hints::warn(&unmatched);
    let hints = crate::hints::apply(&options.hints, &mut functional, &modules);
    let tolerances = not_compared(tolerances(&options.hints, &functional, &modules));
    let (_, profile) = typical(target);
    let mut masks = Masks::new(&converted.params, &converted.consts);
    let mut cx = Context { hints, facts: Box::new(&mut masks), ..Context::new(&profile) };
    cx.most_bytes = eager.peak_bytes.saturating_add(options.workspace_bytes);
    cx.selection.products = match options.products {
        Products::Measured => Products::Predicted,
        asked => asked,
    };
    let graph = pipeline::lowered(functional, Stage::Primitive..=Stage::Primitive, &mut cx)?;
    report.lower_ms = clock.lap();
    let graph = pipeline::lowered(graph, Stage::Kernels..=Stage::Kernels, &mut cx)?;
    report.select_ms = clock.lap();
    let plan = pipeline::planned(graph.clone(), &mut cx)?;
    report.add_planning(clock.lap(), plan.scheduling, Duration::ZERO);
    let ptx = |program: &Program| Ok(compile_ptx(program, target, &PtxOptions::default())?);
    let mut compile =
        |programs: &[Program]| programs.par_iter().map(ptx).collect::<Result<Vec<Ptx>, Error>>();
    let (mut plan, kernels) = fitting(graph, plan, &mut cx, &mut compile)?;
    report.codegen_ms = clock.lap();
    report.kernels = kernels.len();
    plan.limit_memory(cx.most_bytes);
    let rewrites = (cx.rewrites.made(), cx.rewrites.last());
    let pass_times = std::mem::take(&mut cx.times).into_iter().collect();
    let profile = cx.profile;
    drop(cx);
    let assembler = tilefuse_codegen::cuda::ptxas();
    if let Some(assembler) = assembler {
        kernels.par_iter().try_for_each(|kernel| assemble(assembler, kernel))?;
    }
    report.codegen_ms += clock.lap();
    report.total_ms = millis(start.elapsed());
    Ok(AbsentPlan {
        profile,
        ops_captured: converted.recording.calls.len(),
        params: converted.params,
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
            "the hint `tolerance` for {of} asks for {relative:.1e} of {part}, and nothing is compared on a GPU that is not here"
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
