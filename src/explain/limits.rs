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

/// What bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bound {
    /// The bytes that it moves.
    Memory,
    /// Operations outside of products.
    Operations,
    /// Those of products.
    Products,
}

impl Bound {
    const ALL: [Bound; 3] = [Bound::Memory, Bound::Operations, Bound::Products];

    /// What it is called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory bandwidth",
            Bound::Operations => "the throughput of simple operations",
            Bound::Products => "the throughput of products",
        }
    }

    /// The same in a column.
    pub(super) fn short(self) -> &'static str {
        match self {
            Bound::Memory => "mem",
            Bound::Operations | Bound::Products => "ops",
        }
    }

    /// Why kernels may be beyond it on a machine that was measured.
    fn why_exceeded(self) -> &'static str {
        match self {
            Bound::Memory => "operands come from a cache, sooner than memory gives them",
            Bound::Operations => {
                "the figure is a typical one, which `tilefuse doctor --profile` does not measure"
            }
            Bound::Products => {
                "the figure is of libtorch's product of square matrices, or a typical one of kernels"
            }
        }
    }
}

/// How much of a kernel's time one of the machine's limits asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OfLimit {
    pub(super) part: f64,
    /// The limit that asks for most.
    pub(super) bound: Bound,
}

/// The least microseconds that the machine's memory and arithmetic ask for, and which of the two does.
fn limit_us(machine: &MachineReport, step: &StepReport) -> Option<(f64, Bound)> {
    let StepReport::Kernel { flops, bytes_read, bytes_written, .. } = step else { return None };
    let memory = (bytes_read + bytes_written) as f64 / machine.gigabytes_per_s / 1e3;
    let (rate, bound) = match class(step) {
        "contraction" | "attention" => (machine.product_gigaops_per_s, Bound::Products),
        _ => (machine.gigaops_per_s, Bound::Operations),
    };
    let arithmetic = *flops as f64 / rate / 1e3;
    Some(if arithmetic > memory { (arithmetic, bound) } else { (memory, Bound::Memory) })
}

/// How much of a kernel's time the machine's limits ask for: more than all of it where operands come from a cache, or the machine
/// does better than its figures say. None of products on a machine that was not measured, whose typical figures real ones exceed several
/// times.
pub(super) fn of_limit(plan: &Explanation, step: &StepReport) -> Option<OfLimit> {
    of_limit_in(plan, step, step.us()?)
}

/// [`of_limit`] where the step takes so many microseconds.
pub(super) fn of_limit_in(plan: &Explanation, step: &StepReport, us: f64) -> Option<OfLimit> {
    let (limit, bound) = limit_us(plan.machine.as_ref()?, step)?;
    if bound == Bound::Products && !is_measured(plan) {
        return None;
    }
    (us > 0.0).then(|| OfLimit { part: limit / us, bound })
}

/// Of so much, what is said: `~` where the limit is a typical figure, and no number beyond the limit.
pub(super) fn limit_text(plan: &Explanation, of: OfLimit) -> String {
    let about = if is_typical(plan, of.bound) { "~" } else { "" };
    if is_beyond(of) { String::from(">100 %") } else { format!("{about}{:.0} %", 100.0 * of.part) }
}

/// The same as a sentence, with the limit that it is of.
pub(super) fn limit_sentence(plan: &Explanation, of: OfLimit) -> String {
    let (text, name) = (limit_text(plan, of), of.bound.name());
    match (is_beyond(of), is_measured(plan)) {
        (false, _) => format!("{text} of the time is what {name} asks for"),
        (true, false) => format!("{text}: {name} by typical figures asks for more than the time"),
        (true, true) => {
            format!("{text}: {name} asks for more than the time, for {}", of.bound.why_exceeded())
        }
    }
}

/// Whether the machine was measured, as far as it is.
fn is_measured(plan: &Explanation) -> bool {
    plan.machine.as_ref().is_none_or(|machine| machine.measured)
}

/// Whether a limit is a typical figure, which was not measured.
fn is_typical(plan: &Explanation, bound: Bound) -> bool {
    let is_of = |machine: &MachineReport| match bound {
        Bound::Memory => !machine.measured,
        Bound::Operations => true,
        Bound::Products => !machine.measured || machine.product_is_typical,
    };
    plan.machine.as_ref().is_some_and(is_of)
}

/// Whether a part is more than the whole when it is rounded.
fn is_beyond(of: OfLimit) -> bool {
    of.part >= 1.005
}

/// What the limits are where that must be said: typical figures, or limits that kernels are beyond, and why; else empty.
pub(super) fn limits_text(plan: &Explanation) -> String {
    let limits: Vec<OfLimit> = plan.steps.iter().filter_map(|step| of_limit(plan, step)).collect();
    let beyond = |bound: Bound| limits.iter().filter(|of| of.bound == bound && is_beyond(**of)).count();
    let is_any_beyond = limits.iter().any(|&of| is_beyond(of));
    let is_product = |step: &StepReport| {
        let limit = plan.machine.as_ref().and_then(|machine| limit_us(machine, step));
        limit.is_some_and(|(_, bound)| bound == Bound::Products)
    };
    let has_products = plan.steps.iter().any(is_product);
    if !is_measured(plan) && (has_products || !limits.is_empty()) {
        return format!(
            "limits: ~ by typical figures{}{}; `tilefuse doctor --profile` measures this machine's",
            if is_any_beyond { ", >100 % where the machine or its caches exceed them" } else { "" },
            if has_products { ", none of products, for which these are too rough" } else { "" }
        );
    }
    let is_about = |bound: &Bound| {
        is_typical(plan, *bound) && limits.iter().any(|of| of.bound == *bound && !is_beyond(*of))
    };
    let about: Vec<&str> = Bound::ALL.into_iter().filter(is_about).map(Bound::name).collect();
    let about = (!about.is_empty()).then(|| {
        let names = about.join(" and ");
        format!("~ of {names} by typical figures, which `tilefuse doctor --profile` does not measure")
    });
    let exceeded = Bound::ALL.into_iter().filter_map(|bound| {
        let kernels = match beyond(bound) {
            0 => return None,
            1 => String::from("1 kernel"),
            count => format!("{count} kernels"),
        };
        Some(format!("of {} in {kernels}, where {}", bound.name(), bound.why_exceeded()))
    });
    let exceeded: Vec<String> = exceeded.collect();
    let exceeded = (!exceeded.is_empty()).then(|| format!(">100 % {}", exceeded.join("; ")));
    let said: Vec<String> = about.into_iter().chain(exceeded).collect();
    if said.is_empty() { String::new() } else { format!("limits: {}", said.join("; ")) }
}

/// Steps of one kind.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) steps: usize,
    pub(super) us: f64,
    /// How much of this time the machine's limits ask for, where they are known.
    pub(super) of_limit: Option<f64>,
    /// Whether a typical figure is among these limits.
    is_typical: bool,
}

/// The kinds of steps of a plan, those that take most time first.
pub(super) fn kinds(plan: &Explanation) -> Vec<Kind> {
    let mut found: IndexMap<&'static str, (usize, f64, Option<f64>, bool)> = IndexMap::new();
    for step in &plan.steps {
        let (steps, us, limit, typical) = found.entry(class(step)).or_insert((0, 0.0, Some(0.0), false));
        (*steps, *us) = (*steps + 1, *us + step.us().unwrap_or(0.0));
        // Typical figures are no limit of this machine.
        let machine = plan.machine.as_ref().filter(|machine| machine.measured);
        let asked = machine.and_then(|machine| limit_us(machine, step));
        *limit = limit.zip(asked).map(|(sum, (asked, _))| sum + asked);
        *typical |= asked.is_some_and(|(_, bound)| is_typical(plan, bound));
    }
    let kind = |(name, (steps, us, limit, is_typical)): (_, (usize, f64, Option<f64>, bool))| {
        let of_limit = limit.filter(|_| us > 0.0).map(|limit| limit / us);
        Kind { name, steps, us, of_limit, is_typical }
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
        let about = if kind.is_typical { "~" } else { "" };
        let limit = kind.of_limit.map_or_else(String::new, |part| match part > 1.0 {
            true => String::from(" beyond the machine's limit"),
            false => format!(" at {about}{part:.2} of the machine's limit"),
        });
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
        let reason = "limits: >100 % of memory bandwidth in 1 kernel, where operands come from a cache, sooner than memory gives them";
        assert_eq!(limits_text(&plan), reason);
        let said = |plan: &Explanation| limit_sentence(plan, of_limit(plan, &plan.steps[0]).unwrap());
        let sentence = ">100 %: memory bandwidth asks for more than the time, for operands come from a cache, sooner than memory gives them";
        assert_eq!(said(&plan), sentence);
        // 5,000 operations at 50 Gop/s are 0.1 us, and at 100 Gop/s of products 0.05 us.
        let arithmetic = |plan: &mut Explanation, at: usize, kind: KernelKind| {
            if let StepReport::Kernel { predicted_us, flops, shape, .. } = &mut plan.steps[at] {
                (*predicted_us, *flops, *shape) = (0.04, 5000, kind);
            }
        };
        let mut computing = plan.clone();
        arithmetic(&mut computing, 1, KernelKind::Pointwise);
        arithmetic(&mut computing, 2, KernelKind::Block(BlockKernelKind::Contraction));
        arithmetic(&mut computing, 3, KernelKind::Block(BlockKernelKind::Contraction));
        let all = format!(
            "{reason}; of the throughput of simple operations in 1 kernel, where the figure is a typical one, which `tilefuse doctor \
             --profile` does not measure; of the throughput of products in 2 kernels, where the figure is of libtorch's product of \
             square matrices, or a typical one of kernels"
        );
        assert_eq!(limits_text(&computing), all);
        assert!(computing.summary().replace("\n      ", " ").contains(&all), "{}", computing.summary());
        let page = computing.html("x");
        assert!(
            page.contains("<td title=\"of the throughput of products\" data-value=\"1.25\">&#62;100 %</td>"),
            "{page}"
        );
        plan.machine.as_mut().unwrap().measured = false;
        assert_eq!(text(&plan), ">100 %");
        let reason = "limits: ~ by typical figures, >100 % where the machine or its caches exceed them; `tilefuse doctor --profile` \
                      measures this machine's";
        assert_eq!(limits_text(&plan), reason);
        us(&mut plan, 0.02);
        assert_eq!(text(&plan), "~64 %");
        assert_eq!(said(&plan), "~64 % of the time is what memory bandwidth asks for");
        assert!(
            limits_text(&plan).starts_with("limits: ~ by typical figures;")
                && plan.html("x").contains(">~64 %<")
        );
        computing.machine.as_mut().unwrap().measured = false;
        assert!([2, 3].iter().all(|&at| of_limit(&computing, &computing.steps[at]).is_none()));
        let reason = "limits: ~ by typical figures, >100 % where the machine or its caches exceed them, none of products, for which these \
                      are too rough; `tilefuse doctor --profile` measures this machine's";
        assert_eq!(limits_text(&computing), reason);
        plan.machine = None;
        assert_eq!(limits_text(&plan), "");
    }

    /// On a machine that was measured, some figures are typical ones nevertheless.
    #[test]
    fn shares_of_typical_figures_are_marked() {
        let mut plan = layers_of_two();
        // 6,000 operations at 50 Gop/s are 0.12 us of 2, and at 100 Gop/s of products 0.06 us.
        let mut arithmetic = |at: usize, kind: KernelKind| {
            if let StepReport::Kernel { flops, shape, .. } = &mut plan.steps[at] {
                (*flops, *shape) = (6000, kind);
            }
        };
        arithmetic(1, KernelKind::Pointwise);
        arithmetic(2, KernelKind::Block(BlockKernelKind::Contraction));
        let texts = |plan: &Explanation| {
            [0, 1, 2].map(|at: usize| limit_text(plan, of_limit(plan, &plan.steps[at]).unwrap()))
        };
        assert_eq!(texts(&plan), ["1 %", "~6 %", "3 %"]);
        let legend = "limits: ~ of the throughput of simple operations by typical figures, which `tilefuse doctor --profile` does not \
                      measure";
        assert_eq!(limits_text(&plan), legend);
        let time = where_time_goes(&plan);
        assert!(time.contains("contraction 12.5 % in 1 step at 0.03 of the machine's limit"), "{time}");
        plan.machine.as_mut().unwrap().product_is_typical = true;
        assert_eq!(texts(&plan), ["1 %", "~6 %", "~3 %"]);
        let legend = "limits: ~ of the throughput of simple operations and the throughput of products by typical figures, which \
                      `tilefuse doctor --profile` does not measure";
        assert_eq!(limits_text(&plan), legend);
        let time = where_time_goes(&plan);
        assert!(time.contains("contraction 12.5 % in 1 step at ~0.03 of the machine's limit"), "{time}");
        let summary = plan.summary();
        assert!(summary.contains(" ~3 % ops ") && summary.contains("\nlimits: ~ of "), "{summary}");
        assert!(
            plan.text(false).contains("; ~3 % of the time is what the throughput of products asks for\n")
        );
        let page = plan.html("x");
        assert!(
            page.contains(">~3 %</td>") && page.contains("~ of the throughput of simple operations and"),
            "{page}"
        );
    }
}
