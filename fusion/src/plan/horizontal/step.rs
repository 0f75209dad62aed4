//! The step of several kernels in one launch.

use rustc_hash::FxHashMap;
use tilefuse_block::Program;

use super::super::ir::{KernelKind, KernelStep, Part};
use super::program::{PartProgram, join};
use crate::graph::ValueRef;

/// The step that runs these kernels at once, in `us` microseconds. Its program is that at `program`.
///
/// Buffers that several read are passed once. A value is written in place of one that a part reads where no other part
/// has that: the parts' instances run in any order.
pub(super) fn joined(kernels: &[&KernelStep], program: usize, us: f64) -> KernelStep {
    let mut buffers: Vec<(ValueRef, bool)> = Vec::new();
    let mut at: FxHashMap<ValueRef, usize> = FxHashMap::default();
    let mut users: Vec<usize> = Vec::new();
    let mut parts = Vec::new();
    let mut first = 0;
    for kernel in kernels {
        let mut own = Vec::new();
        for &(value, written) in &kernel.buffers {
            let position = *at.entry(value).or_insert(buffers.len());
            if position == buffers.len() {
                buffers.push((value, written));
                users.push(0);
            }
            users[position] += 1;
            own.push(position);
        }
        let (nodes, kind, instances) = (kernel.nodes.clone(), kernel.kind, kernel.grid[0]);
        parts.push(Part { nodes, kind, first, instances, buffers: own });
        first += instances;
    }
    let pairs = kernels.iter().flat_map(|k| k.in_place.iter().copied());
    let in_place = pairs.filter(|(read, _)| at.get(read).is_some_and(|&p| users[p] == 1)).collect();
    let sum = |count: fn(&KernelStep) -> u64| kernels.iter().map(|k| count(k)).sum();
    KernelStep {
        program,
        grid: [first, 1, 1],
        buffers,
        checks: false,
        in_place,
        nodes: kernels.iter().flat_map(|k| k.nodes.iter().copied()).collect(),
        kind: KernelKind::Horizontal,
        tiling: None,
        schedule: String::new(),
        tuned: None,
        bytes_read: sum(|k| k.bytes_read),
        bytes_written: sum(|k| k.bytes_written),
        flops: sum(|k| k.flops),
        predicted_us: us,
        note: None,
        parts,
        horizontal_refusal: None,
    }
}

/// The program of a step that [`joined`] made of these kernels.
pub(super) fn program(step: &KernelStep, kernels: &[&KernelStep], programs: &[Program]) -> Option<Program> {
    let parts: Option<Vec<PartProgram<'_>>> = kernels
        .iter()
        .zip(&step.parts)
        .map(|(kernel, part)| {
            let program = programs.get(kernel.program)?;
            Some(PartProgram { program, instances: part.instances, params: part.buffers.clone() })
        })
        .collect();
    let parts = parts?;
    Some(join(name(&parts), &parts))
}

/// `horizontal_3_fused_add` where all parts have one name, and the first with the number of others else.
fn name(parts: &[PartProgram<'_>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in parts.iter().map(|p| p.program.name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let others = names.len().saturating_sub(1);
    let first = names.first().copied().unwrap_or_default();
    match others {
        0 => format!("horizontal_{}_{first}", parts.len()),
        _ => format!("horizontal_{}_{first}_and_{others}_more", parts.len()),
    }
}
