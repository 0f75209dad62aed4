//! `tilefuse dump-ptx`: the PTX of every kernel of the zoo, for checking it without a GPU.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Device, Kind};
use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx};

use super::model::{Loaded, Which, quietly};
use super::{Failure, report};

/// Writes PTX and block program of each distinct kernel of the zoo's models with this prefix, in `f32` and `bf16`.
pub(crate) fn run(target: &str, out: &Path, prefix: &str) -> Result<(), Failure> {
    let target = Target::from_name(target)
        .ok_or_else(|| Failure::usage(format!("--target {target:?} is none of sm_80, sm_90a, sm_100a")))?;
    std::fs::create_dir_all(out)
        .map_err(|e| Failure::usage(format!("cannot make {}: {e}", out.display())))?;
    let entries: Vec<_> =
        tilefuse_models::zoo().iter().filter(|e| is_dumped(e.name) && e.name.starts_with(prefix)).collect();
    let progress = report::bar(entries.len() as u64);
    let mut programs = BTreeMap::new();
    for entry in entries {
        progress.set_message(entry.name);
        let kinds: &[Kind] = if entry.f32_only { &[Kind::Float] } else { &[Kind::Float, Kind::BFloat16] };
        for &kind in kinds {
            for program in quietly(|| gpu_programs(&Which::Zoo(entry), kind))? {
                programs.entry(program.to_string()).or_insert((entry.name, program));
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    for (position, (model, program)) in programs.values().enumerate() {
        let failed = |e: String| Failure::usage(format!("{}: {e}", program.name));
        let ptx = compile_ptx(program, target, &PtxOptions::default()).map_err(|e| failed(e.to_string()))?;
        let model = model.replace(':', "_");
        let stem = out.join(format!("{position:04}_{model}_{}", program.name));
        std::fs::write(stem.with_extension("ptx"), ptx.text).map_err(|e| failed(e.to_string()))?;
        std::fs::write(stem.with_extension("tile"), program.to_string())
            .map_err(|e| failed(e.to_string()))?;
    }
    report::print(&format!("{} kernels", programs.len()));
    Ok(())
}

/// Models of this crate; those of `tch` repeat their kernels, and the largest takes minutes on a processor.
fn is_dumped(name: &str) -> bool {
    !name.starts_with("vision:") && name != "llama1b"
}

fn gpu_programs(which: &Which, kind: Kind) -> Result<Vec<tilefuse_block::Program>, Failure> {
    let _no_grad = tch::no_grad_guard();
    let model = Loaded::load(which, Device::Cpu, Some(kind))?;
    let inputs = which.default_inputs(kind, false)?.for_capture(Device::Cpu);
    Ok(crate::engine::gpu_programs(&inputs, &|x| model.forward(x))?)
}
