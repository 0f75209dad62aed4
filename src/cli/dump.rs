//! `tilefuse dump-ptx`: the PTX of every kernel of the zoo, or of random or given programs, for checking it without a GPU.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use tch::{Device, Kind};
use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx};

use super::model::{Loaded, Which, quietly, with_prefix};
use super::{Failure, report};
use crate::explain::counted;
use crate::random;

/// What the kernels are of.
pub(crate) enum Source<'a> {
    /// The zoo's models with this prefix, in `f32` and `bf16`.
    Zoo(&'a str),
    /// The random programs of these seeds.
    Random(Range<u64>),
    /// The program of this file.
    Program(&'a Path),
}

/// Block programs by their text, each with the name of a model that has it.
type Programs = BTreeMap<String, (String, tilefuse_block::Program)>;

/// Writes PTX and block program of each distinct kernel.
pub(crate) fn run(target: &str, out: &Path, source: Source<'_>) -> Result<(), Failure> {
    let target = Target::from_name(target)
        .ok_or_else(|| Failure::usage(format!("--target {target:?} is none of sm_80, sm_90a, sm_100a")))?;
    std::fs::create_dir_all(out)
        .map_err(|e| Failure::usage(format!("cannot make {}: {e}", out.display())))?;
    let programs = match source {
        Source::Zoo(prefix) => of_zoo(prefix, target)?,
        Source::Random(seeds) => of_random(seeds, target),
        Source::Program(path) => of_file(path, target)?,
    };
    for (position, (model, program)) in programs.values().enumerate() {
        let failed = |e: String| Failure::usage(format!("{}: {e}", program.name));
        let ptx = compile_ptx(program, target, &PtxOptions::default()).map_err(|e| failed(e.to_string()))?;
        let model = model.replace(':', "_");
        let stem = out.join(format!("{position:04}_{model}_{}", program.name));
        std::fs::write(stem.with_extension("ptx"), ptx.text).map_err(|e| failed(e.to_string()))?;
        std::fs::write(stem.with_extension("tile"), program.to_string())
            .map_err(|e| failed(e.to_string()))?;
    }
    report::print(&counted(programs.len() as u64, "kernel"));
    Ok(())
}

/// Those of random programs. One that eager rejects, or of which no plan can be made, has none; defects of this project that
/// are met on the way are printed.
fn of_random(seeds: Range<u64>, target: Target) -> Programs {
    random::keep_panics();
    let progress = report::bar(seeds.end - seeds.start);
    let mut programs = Programs::new();
    for seed in seeds {
        let found = random::gpu_programs_of(&random::generate(seed), seed, target);
        if let Err(error) = &found
            && error.to_string().contains("internal")
        {
            progress.suspend(|| report::print(&format!("seed {seed}: {error}")));
        }
        for program in found.into_iter().flatten() {
            programs.entry(program.to_string()).or_insert((format!("random_{seed}"), program));
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    programs
}

fn of_file(path: &Path, target: Target) -> Result<Programs, Failure> {
    let program = super::random::read(path)?;
    let name = path.file_stem().map_or_else(|| String::from("program"), |n| n.to_string_lossy().into_owned());
    let found = random::gpu_programs_of(&program, 0, target)?;
    Ok(found.into_iter().map(|program| (program.to_string(), (name.clone(), program))).collect())
}

fn of_zoo(prefix: &str, target: Target) -> Result<Programs, Failure> {
    let entries: Vec<_> = with_prefix(prefix)?.into_iter().filter(|entry| is_dumped(entry.name)).collect();
    let progress = report::bar(entries.len() as u64);
    let mut programs = Programs::new();
    for entry in entries {
        progress.set_message(entry.name);
        let kinds: &[Kind] = if entry.f32_only { &[Kind::Float] } else { &[Kind::Float, Kind::BFloat16] };
        for &kind in kinds {
            for program in quietly(|| gpu_programs(&Which::Zoo(entry), kind, target))? {
                programs.entry(program.to_string()).or_insert((entry.name.to_owned(), program));
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(programs)
}

/// Models of this crate; those of `tch` repeat their kernels, and the largest takes minutes on a processor.
fn is_dumped(name: &str) -> bool {
    !name.starts_with("vision:") && name != "llama1b"
}

fn gpu_programs(which: &Which, kind: Kind, target: Target) -> Result<Vec<tilefuse_block::Program>, Failure> {
    let _no_grad = tch::no_grad_guard();
    let model = Loaded::load(which, Device::Cpu, Some(kind))?;
    let inputs = which.default_inputs(kind, false)?.for_capture(Device::Cpu);
    Ok(crate::engine::gpu_programs(&inputs, &|x| model.forward(x), target)?)
}
