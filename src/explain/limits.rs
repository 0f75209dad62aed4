//! What kinds of steps there are, and what the machine's limits ask of them.

use indexmap::IndexMap;
use tilefuse_fusion::BlockKernelKind;
use tilefuse_fusion::plan::KernelKind;

use super::{Explanation, MachineReport, StepReport, TimeSource};

/// The kind of what runs in libtorch.
const CALLS: &str = "libtorch";

/// The kind of a step, by which it is coloured.
pub(super) fn class(step: &StepReport) -> &'static str {
    let StepReport::Kernel { shape, .. } = step else { return CALLS };
    match shape {
        KernelKind::Pointwise => "pointwise",
        KernelKind::RowReduction | KernelKind::ColumnReduction => "reduction",
        KernelKind::Horizontal => "horizontal",
        KernelKind::Block(BlockKernelKind::Attention) => "attention",
        KernelKind::Block(BlockKernelKind::Contraction | BlockKernelKind::Convolution) => "contraction",
        KernelKind::Block(BlockKernelKind::Pack | BlockKernelKind::Custom) => "other",
    }
}

/// The least microseconds that the machine's memory and arithmetic ask for.
fn limit_us(machine: &MachineReport, step: &StepReport) -> Option<f64> {
    let StepReport::Kernel { flops, bytes_read, bytes_written, .. } = step else { return None };
    let memory = (bytes_read + bytes_written) as f64 / machine.gigabytes_per_s / 1e3;
    Some(memory.max(*flops as f64 / peak(machine, step) / 1e3))
}

/// Operations per nanosecond of kernels like this one.
fn peak(machine: &MachineReport, step: &StepReport) -> f64 {
    match class(step) {
        "contraction" | "attention" => machine.product_gigaops_per_s,
        _ => machine.gigaops_per_s,
    }
}

/// How much of a kernel's time the machine's limits ask for: more than all of it where operands come from a cache, or the machine
/// does better than its typical figures say.
pub(super) fn of_limit(plan: &Explanation, step: &StepReport) -> Option<f64> {
    let limit = limit_us(plan.machine.as_ref()?, step)?;
    step.us().filter(|&us| us > 0.0).map(|us| limit / us)
}

/// Of so much, what is said: `~` where the limits are typical figures, and no number beyond the limit.
pub(super) fn limit_text(plan: &Explanation, part: f64) -> String {
    let about = if is_typical(plan) { "~" } else { "" };
    if is_beyond(part) { String::from(">100 %") } else { format!("{about}{:.0} %", 100.0 * part) }
}

fn is_typical(plan: &Explanation) -> bool {
    plan.machine.as_ref().is_some_and(|machine| !machine.measured)
}

/// Whether a part is more than the whole when it is rounded.
fn is_beyond(part: f64) -> bool {
    part >= 1.005
}

/// What the limits are where that must be said: typical figures, or a limit that a kernel is beyond; else empty.
pub(super) fn limits_text(plan: &Explanation) -> String {
    let has = |is: fn(f64) -> bool| plan.steps.iter().any(|step| of_limit(plan, step).is_some_and(is));
    match (has(|_| true) && is_typical(plan), has(is_beyond)) {
        (true, beyond) => format!(
            "limits: ~ by typical figures{}; `tilefuse doctor --profile` measures this machine's",
            if beyond { ", >100 % where the machine or its caches exceed them" } else { "" }
        ),
        (false, true) => {
            String::from("limits: >100 % where operands come from a cache, sooner than memory gives them")
        }
        (false, false) => String::new(),
    }
}

/// Steps of one kind.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) steps: usize,
    pub(super) us: f64,
    /// How much of this time the machine's limits ask for, where they are known.
    pub(super) of_limit: Option<f64>,
}

/// The kinds of steps of a plan, those that take most time first.
pub(super) fn kinds(plan: &Explanation) -> Vec<Kind> {
    let mut found: IndexMap<&'static str, (usize, f64, Option<f64>)> = IndexMap::new();
    for step in &plan.steps {
        let (steps, us, limit) = found.entry(class(step)).or_insert((0, 0.0, Some(0.0)));
        (*steps, *us) = (*steps + 1, *us + step.us().unwrap_or(0.0));
        // Typical figures are no limit of this machine.
        let machine = plan.machine.as_ref().filter(|machine| machine.measured);
        let asked = machine.and_then(|machine| limit_us(machine, step));
        *limit = limit.zip(asked).map(|(sum, asked)| sum + asked);
    }
    let kind = |(name, (steps, us, limit)): (_, (usize, f64, Option<f64>))| {
        let of_limit = limit.filter(|_| us > 0.0).map(|limit| limit / us);
        Kind { name, steps, us, of_limit }
    };
    let mut kinds: Vec<Kind> = found.into_iter().map(kind).collect();
    kinds.sort_by(|a, b| b.us.total_cmp(&a.us));
    kinds
}

/// Where the time of a call goes, in a line.
pub(super) fn where_time_goes(plan: &Explanation) -> String {
    let kinds = kinds(plan);
    let all = kinds.iter().map(|kind| kind.us).sum::<f64>().max(f64::MIN_POSITIVE);
    let part = |kind: &Kind| {
        let limit =
            kind.of_limit.map_or_else(String::new, |part| format!(" at {part:.2} of the machine's limit"));
        let steps = if kind.steps == 1 { "step" } else { "steps" };
        let sources = if kind.name == CALLS { sources(plan) } else { String::new() };
        format!("{} {:.1} % in {} {steps}{limit}{sources}", kind.name, 100.0 * kind.us / all, kind.steps)
    };
    let is_shown = |kind: &&Kind| kind.us > 0.0 || kind.name == CALLS;
    kinds.iter().filter(is_shown).map(part).collect::<Vec<_>>().join(", ")
}

/// How the times of libtorch's calls are known, where they were not profiled: of how many in which way.
fn sources(plan: &Explanation) -> String {
    let calls: Vec<Option<TimeSource>> = plan
        .steps
        .iter()
        .filter(|step| step.is_extern())
        .map(|step| step.time().map(|(_, source)| source))
        .collect();
    let known = [TimeSource::Comparison, TimeSource::CostModel, TimeSource::Bytes].map(Some);
    let of = |source: Option<TimeSource>| {
        let count = calls.iter().filter(|&&call| call == source).count();
        (count > 0).then(|| format!("{count} {}", source.map_or("not known", TimeSource::text)))
    };
    let all: Vec<String> = known.into_iter().chain([None]).filter_map(of).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::page::tests::layers_of_two;

    /// 256 B at 20 GB/s are 0.0128 us.
    #[test]
    fn limits_are_exceeded_for_a_reason_alone() {
        let mut plan = layers_of_two();
        let text = |plan: &Explanation| limit_text(plan, of_limit(plan, &plan.steps[0]).unwrap());
        assert_eq!((text(&plan), limits_text(&plan)), (String::from("1 %"), String::new()));
        let us = |plan: &mut Explanation, us: f64| {
            if let StepReport::Kernel { predicted_us, .. } = &mut plan.steps[0] {
                *predicted_us = us;
            }
        };
        us(&mut plan, 0.01);
        assert_eq!(text(&plan), ">100 %");
        let reason = "limits: >100 % where operands come from a cache, sooner than memory gives them";
        assert!(limits_text(&plan) == reason && plan.summary().contains(reason));
        plan.machine.as_mut().unwrap().measured = false;
        assert_eq!(text(&plan), ">100 %");
        let reason = "limits: ~ by typical figures, >100 % where the machine or its caches exceed them; `tilefuse doctor --profile` \
                      measures this machine's";
        assert_eq!(limits_text(&plan), reason);
        us(&mut plan, 0.02);
        assert_eq!(text(&plan), "~64 %");
        assert!(
            limits_text(&plan).starts_with("limits: ~ by typical figures;")
                && plan.html("x").contains(">~64 %<")
        );
        plan.machine = None;
        assert_eq!(limits_text(&plan), "");
    }
}
