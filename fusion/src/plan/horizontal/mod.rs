//! Horizontal fusion: small kernels that do not need each other, in one launch.
//!
//! ```text
//! %3 = aten::linear(%0, %1)     kernel: %3 + bias                                     libtorch, libtorch, libtorch
//! %4 = aten::linear(%0, %2)     kernel: %4 + bias        one after the other   ->     one kernel of three parts
//! %5 = aten::linear(%0, %6)     kernel: %5 + bias
//! ```
//!
//! A kernel is put into one launch with others of its level where its own launch costs: on a GPU if it takes little longer
//! than that or cannot fill the machine, on the host if it is worth handing to threads and takes little longer than that
//! does. The level is the number of steps that come before it, each of which needs the one before. Levels are counted from
//! the start of the plan, and then from its end, where updates of a model's tensors meet. Products on a GPU are joined with
//! products; `contract/shared_launch.rs` chooses their kernels with that in view. The joined program branches on
//! the instance's number, see [`program`]; what may be joined is in [`legal`], and what pays in [`profit`].
//!
//! Steps move for it, and with them the lives of values. Where that takes more memory than the plan did, parts must be
//! nearer to each other; where it still does, the launches for which values are held least longer are as many as there is room for.

mod depends;
mod legal;
mod profit;
mod program;
mod step;
#[cfg(test)]
mod tests;

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::Program;

use super::ir::{KernelStep, Plan, Step, StepKind};
use super::liveness;
use super::reasons::HorizontalRefusal;
use crate::graph::ValueRef;
use crate::hints::Hints;
use crate::machine::Profile;
use crate::rewrite_limit::Rewrites;
use crate::types::Device;

use depends::{Depends, Units};
pub(super) use legal::parts_are_independent;
use profit::Together;

/// How far parts of a launch may be from each other, in steps: the first that needs no more memory is taken.
const MAX_DISTANCES: [usize; 3] = [usize::MAX, 64, 8];

/// Bytes that a call may always hold.
const FREE_BYTES: u64 = 1 << 20;

/// Launches of a level that another part may still join.
const MAX_OPEN_LAUNCHES: usize = 4;

/// The pass `horizontal-fusion`: joins small kernels of a plan whose values have their places, and which is to hold at most so many bytes.
/// Kernels of operators that hints keep separate share no launch.
pub(crate) fn join(
    mut plan: Plan,
    profile: &Profile,
    most_bytes: u64,
    (rewrites, hints): (&Rewrites, &Hints),
) -> Plan {
    let limited = |plan: &Plan| {
        let mut plan = plan.clone();
        plan.limit_memory(most_bytes);
        plan.peak_bytes()
    };
    let peak = plan.peak_bytes().min(most_bytes).max(limited(&plan)).max(FREE_BYTES);
    let depends = Depends::of(&plan);
    let mut found = Found::of(&plan, profile);
    // The plan of units in their order, and what it holds.
    let tried = |units: &Units, found: &Found| {
        let order: Vec<Vec<usize>> = units.order().into_iter().map(|list| found.by_program(list)).collect();
        let steps = arranged(&plan.steps, &order, found, profile);
        let joined = liveness::finish(Plan { steps, ..plan.clone() });
        let held = limited(&joined);
        (joined, order, held)
    };
    let mut nearest = Vec::new();
    let mut taken = None;
    for reach in MAX_DISTANCES {
        let units = found.units(&depends, (profile, hints), reach, rewrites.left());
        nearest = units.joined();
        if nearest.is_empty() {
            break;
        }
        let (joined, order, held) = tried(&units, &found);
        if held <= peak {
            taken = Some((joined, order));
            break;
        }
        found.refuse(&order, HorizontalRefusal::Memory { bytes: held, most: peak });
    }
    if taken.is_none() {
        nearest.sort_by_key(|list| held_longer(&plan, list));
        // So many are known to fit, and so many not to.
        let (mut fits, mut too_many) = (0, nearest.len());
        while fits + 1 < too_many {
            let count = usize::midpoint(fits, too_many);
            let mut units = Units::new(&depends);
            units.join(&nearest[..count]);
            let (joined, order, held) = tried(&units, &found);
            if held <= peak {
                (fits, taken) = (count, Some((joined, order)));
            } else {
                too_many = count;
            }
        }
    }
    let Some((joined, order)) = taken else {
        note(&mut plan.steps, found.refusals);
        return liveness::finish(plan);
    };
    (order.len()..plan.steps.len()).for_each(|_| {
        rewrites.allow("horizontal-fusion");
    });
    with_programs(joined, &plan.steps, &order, found)
}

/// Bytes of what the later steps of a launch write, by the steps that they are held longer.
fn held_longer(plan: &Plan, list: &[usize]) -> u64 {
    let first = list.first().copied().unwrap_or(0);
    let written = |at: usize| match &plan.steps[at].kind {
        StepKind::Kernel(kernel) => kernel.bytes_written,
        StepKind::Extern(_) => 0,
    };
    list.iter().map(|&at| written(at).saturating_mul((at - first) as u64)).sum()
}

/// What is known of the kernels of a plan.
struct Found {
    /// By step: what may be joined.
    candidates: Vec<Option<Launch>>,
    /// By step: why it has a launch of its own.
    refusals: Vec<Option<HorizontalRefusal>>,
}

/// A launch to be, of one kernel or several.
#[derive(Clone, Debug)]
struct Launch {
    /// First and last step.
    span: (usize, usize),
    device: Device,
    /// Least and most warps of a part.
    warps: (u32, u32),
    stages: Option<u32>,
    values: FxHashSet<ValueRef>,
    operations: usize,
    program: usize,
    /// Whether it computes products.
    product: bool,
    cost: Together,
    /// The captured call of its first operator; hints allow all others of a kernel beside that.
    origin: Option<u32>,
}

impl Launch {
    /// A kernel alone, if it may be joined at all.
    fn of(
        plan: &Plan,
        at: usize,
        kernel: &KernelStep,
        profile: &Profile,
    ) -> Result<Launch, HorizontalRefusal> {
        let program = plan.programs.get(kernel.program).ok_or(HorizontalRefusal::Only)?;
        let node = *kernel.nodes.first().ok_or(HorizontalRefusal::Only)?;
        legal::joinable(kernel, profile.machine)?;
        legal::one_axis(kernel, program)?;
        legal::unchecked(kernel)?;
        legal::one_block(kernel, profile.machine)?;
        profit::small(kernel, profile)?;
        let mut operations = 0;
        program.walk(&mut |_| operations += 1);
        Ok(Launch {
            span: (at, at),
            device: plan.graph.ty(node.into()).device,
            warps: (program.warps, program.warps),
            stages: program.stages,
            values: kernel.buffers.iter().map(|b| b.0).collect(),
            operations,
            program: kernel.program,
            product: legal::is_product(kernel),
            cost: Together::of(kernel, profile),
            origin: plan.graph.node(node).origin,
        })
    }

    /// Both in one launch, if that is legal and pays.
    fn with(&self, other: &Launch, profile: &Profile, reach: usize) -> Result<Launch, HorizontalRefusal> {
        let span = (self.span.0.min(other.span.0), self.span.1.max(other.span.1));
        let warps = (self.warps.0.min(other.warps.0), self.warps.1.max(other.warps.1));
        let operations = self.operations + other.operations;
        let pointers = self.values.len() + other.values.iter().filter(|v| !self.values.contains(v)).count();
        legal::one_device(self.device, other.device)?;
        legal::alike_kinds(self.product, other.product)?;
        legal::alike_warps(warps.0, warps.1, self.product)?;
        legal::same_stages(self.stages, other.stages)?;
        legal::few_pointers(pointers)?;
        legal::few_operations(operations)?;
        legal::one_grid(self.cost.instances + other.cost.instances)?;
        legal::near(span.1 - span.0, reach)?;
        let cost = profit::pays(self.cost, other.cost, self.program == other.program, profile)?;
        let values = self.values.union(&other.values).copied().collect();
        Ok(Launch { span, warps, values, operations, cost, ..*self })
    }
}

impl Found {
    fn of(plan: &Plan, profile: &Profile) -> Found {
        let (mut candidates, mut refusals) = (Vec::new(), Vec::new());
        for (at, step) in plan.steps.iter().enumerate() {
            let launch = match &step.kind {
                StepKind::Kernel(kernel) => Some(Launch::of(plan, at, kernel, profile)),
                StepKind::Extern(_) => None,
            };
            refusals
                .push(launch.as_ref().map(|l| l.as_ref().err().cloned().unwrap_or(HorizontalRefusal::Only)));
            candidates.push(launch.and_then(Result::ok));
        }
        Found { candidates, refusals }
    }

    /// The steps of the plan in units, of which those with several steps are launches; so many steps at most join others.
    fn units(
        &mut self,
        depends: &Depends,
        (profile, hints): (&Profile, &Hints),
        reach: usize,
        mut left: u64,
    ) -> Units {
        let mut units = Units::new(depends);
        let mut launches = self.candidates.clone();
        for from_end in [false, true] {
            let levels = units.levels(from_end);
            let mut of_level: Vec<Vec<usize>> = vec![Vec::new(); levels.len()];
            for unit in (0..launches.len()).filter(|&u| launches[u].is_some()) {
                of_level[levels[unit]].push(unit);
            }
            let mut with = |a: &Launch, b: &Launch| {
                if !hints.allow(a.origin, b.origin) {
                    return Err(HorizontalRefusal::Hint);
                }
                let both = a.with(b, profile, reach)?;
                left = left.checked_sub(1).ok_or(HorizontalRefusal::Limit)?;
                Ok(both)
            };
            let lists: Vec<Vec<usize>> =
                of_level.iter().flat_map(|level| self.shared(level, &mut launches, &mut with)).collect();
            units.join(&lists);
        }
        units
    }

    /// Lists of units of a level that share launches.
    fn shared(
        &mut self,
        level: &[usize],
        launches: &mut [Option<Launch>],
        with: &mut dyn FnMut(&Launch, &Launch) -> Result<Launch, HorizontalRefusal>,
    ) -> Vec<Vec<usize>> {
        let mut open: Vec<(Launch, Vec<usize>)> = Vec::new();
        let mut done: Vec<Vec<usize>> = Vec::new();
        for &unit in level {
            let Some(own) = launches[unit].take() else { continue };
            let mut taken = false;
            for (launch, list) in open.iter_mut().rev() {
                match with(launch, &own) {
                    Ok(both) => {
                        (*launch, taken) = (both, true);
                        list.push(unit);
                        break;
                    }
                    Err(reason) => self.refusals[unit] = Some(reason),
                }
            }
            if !taken {
                open.push((own, vec![unit]));
            }
            if open.len() > MAX_OPEN_LAUNCHES {
                let (launch, list) = open.remove(0);
                launches[list[0]] = Some(launch);
                done.push(list);
            }
        }
        for (launch, list) in open {
            launches[list[0]] = Some(launch);
            done.push(list);
        }
        done.retain(|list| list.len() > 1);
        done
    }

    /// Says of all kernels that would share launches why they do not.
    fn refuse(&mut self, order: &[Vec<usize>], reason: HorizontalRefusal) {
        for &at in order.iter().filter(|list| list.len() > 1).flatten() {
            self.refusals[at] = Some(reason.clone());
        }
    }

    /// The steps of a launch in the order of its parts: those of one program beside each other, whatever order the steps of a
    /// plan have, so that launches of the same kernels have the same program.
    fn by_program(&self, steps: &[usize]) -> Vec<usize> {
        let mut steps = steps.to_vec();
        steps.sort_by_key(|&at| (self.candidates[at].as_ref().map(|launch| launch.program), at));
        steps
    }

    /// Predicted microseconds of one launch of these steps.
    fn us(&self, steps: &[usize], profile: &Profile) -> f64 {
        let mut launches = steps.iter().filter_map(|&at| self.candidates[at].as_ref());
        let Some(first) = launches.next() else { return 0.0 };
        let all = launches.fold(first.cost, |cost, l| cost.with(l.cost, l.program == first.program));
        all.us(profile)
    }
}

/// The kernels of a list of steps.
fn kernels<'p>(steps: &'p [Step], list: &[usize]) -> Vec<&'p KernelStep> {
    let kernel = |&at: &usize| match &steps[at].kind {
        StepKind::Kernel(kernel) => Some(kernel),
        StepKind::Extern(_) => None,
    };
    list.iter().filter_map(kernel).collect()
}

/// The steps in a new order, with those of one list as one.
fn arranged(steps: &[Step], order: &[Vec<usize>], found: &Found, profile: &Profile) -> Vec<Step> {
    let step = |list: &Vec<usize>| match list.as_slice() {
        &[at] => Step::from(steps[at].kind.clone()),
        list => {
            let us = found.us(list, profile);
            Step::from(StepKind::Kernel(step::joined(&kernels(steps, list), usize::MAX, us)))
        }
    };
    order.iter().map(step).collect()
}

/// The plan with the programs of its launches, and none that it does not run.
fn with_programs(mut plan: Plan, before: &[Step], order: &[Vec<usize>], mut found: Found) -> Plan {
    let old = std::mem::take(&mut plan.programs);
    let mut kept: FxHashMap<usize, usize> = FxHashMap::default();
    let mut known: FxHashMap<Program, usize> = FxHashMap::default();
    let mut programs: Vec<Program> = Vec::new();
    for (step, list) in plan.steps.iter_mut().zip(order) {
        let StepKind::Kernel(kernel) = &mut step.kind else { continue };
        let parts = kernels(before, list);
        match parts.as_slice() {
            [_] => {
                kernel.program = *kept.entry(kernel.program).or_insert_with(|| {
                    programs.extend(old.get(kernel.program).cloned());
                    programs.len() - 1
                });
                kernel.horizontal_refusal = list.first().and_then(|&at| found.refusals[at].take());
            }
            _ => {
                let Some(program) = step::program(kernel, &parts, &old) else { continue };
                kernel.program = *known.entry(program).or_insert_with_key(|program| {
                    programs.push(program.clone());
                    programs.len() - 1
                });
            }
        }
    }
    plan.programs = programs;
    plan
}

/// Says of each kernel why it has a launch of its own.
fn note(steps: &mut [Step], reasons: Vec<Option<HorizontalRefusal>>) {
    for (step, reason) in steps.iter_mut().zip(reasons) {
        if let StepKind::Kernel(kernel) = &mut step.kind {
            kernel.horizontal_refusal = reason;
        }
    }
}
