//! What computes a call: the least of one list of alternatives, kernels of ours and libtorch's call.
//!
//! An alternative counts with all that it takes and others do not, as a part of the time of libtorch's call:
//!
//! ```text
//!                    its own time                       layout conversions          the call's epilogue
//! a kernel           x what a shared launch leaves      none: it reads and writes   within it; else in a kernel behind it
//!                                                       tensors as they lie
//! libtorch's call    x a margin for whichever is        of images, keys, values     in a kernel behind it
//!                      expected to be the quicker       and the result
//!
//! kernel over images and filters as they lie     0.71 x 1.00 +  0   + 0.04  =  0.75    chosen
//! kernel over filters that are packed            0.93 x 1.00 +  0   + 0.04  =  0.97
//! libtorch's call                                1.00 x 1.05 + 0.10 + 0.13  =  1.28
//! ```
//!
//! What all alternatives take counts for none, as an epilogue that no kernel merges. Times are parts of the call's because each kernel is
//! timed in turn with the call: a machine that is slower for a moment is so for both. The margin is what a measurement misses.

use super::backend::Products;
use super::call_kernels::Template;
use super::candidates::{Candidate, Times, is_sure, kernels};
use super::epilogue::has_epilogue;
use super::target::{Target, Vectors};
use super::{blocks, conv, product};
use crate::block_kernel::{Compared, Declined};
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::library_form::LibraryForm;
use crate::machine::Profile;
use crate::rewrite::channels_last;

/// What computes a call, and what it was compared with.
pub(super) struct Choice {
    /// The kernel; none for libtorch's call.
    pub(super) template: Option<Template>,
    /// Why.
    pub(super) reason: Option<String>,
    /// What would have to change for a kernel to take the place of libtorch's call.
    pub(super) remedy: String,
    /// All that were compared; none where there is no kernel.
    pub(super) compared: Vec<Compared>,
}

impl Choice {
    /// Libtorch's call, without another one.
    pub(super) fn library(why: Declined) -> Choice {
        Choice { template: None, reason: Some(why.reason), remedy: why.remedy, compared: Vec::new() }
    }
}

/// What would change the choice of libtorch's call for a product that was measured.
const MEASURED: &str = "nothing that was measured: libtorch's call takes less time; `generated` products (`Options::products`, `--products`) take a kernel nevertheless";

/// The same for one that was not.
const PREDICTED: &str = "nothing that the cost model knows: libtorch's call is predicted to take less time; on the machine itself, `measured` products (`Options::products`, `--products`) are timed";

/// What computes a node; nothing for a node without kernels.
pub(super) fn choose(
    graph: &Graph,
    node: NodeId,
    target: Target<'_>,
    (products, most_bytes): (Products, u64),
    measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>,
) -> Option<Choice> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let templates = match kernels(graph, node, target, (products, most_bytes))? {
        Ok(templates) => templates,
        Err(declined) => {
            return Some(Choice::library(Declined::new(declined.to_string(), declined.remedy())));
        }
    };
    let profile = target.profile;
    let candidate = |template| Candidate { graph, node, call, template };
    let candidates: Vec<Candidate<'_>> = templates.into_iter().map(candidate).collect();
    let measures = products == Products::Measured && !is_sure(&candidates, profile);
    let timed = candidates.into_iter().map(|candidate| {
        let measured = if measures { measure(&candidate) } else { None };
        let times = measured.unwrap_or_else(|| candidate.predicted(profile));
        (candidate, times)
    });
    let timed: Vec<(Candidate<'_>, Times)> = timed.collect();

    let comparison = Comparison::of(&timed, profile);
    let kernels = timed.into_iter().map(|(candidate, times)| comparison.kernel(candidate, times));
    let mut all: Vec<Alternative<'_>> = kernels.collect();
    let (best, cost) = least(&all)?;
    let mut reason = None;
    if products != Products::Generated && is_callable(call) {
        let library = comparison.library(all.get(best)?.kernel.as_ref()?, cost);
        reason = Some(comparison.reason(&cost, &library.cost?, &all));
        all.push(library);
    }

    let (chosen, cost) = least(&all)?;
    if let Some(chosen) = all.get_mut(chosen) {
        chosen.row.chosen = true;
    }
    let compared = all.iter().map(|alternative| alternative.row.clone()).collect();
    let template = all.swap_remove(chosen).kernel.map(|kernel| expecting(kernel.template, cost.own_us));
    let remedy = if measures { MEASURED } else { PREDICTED };
    Some(Choice { template, reason, remedy: remedy.to_owned(), compared })
}

/// Whether libtorch's call computes the same as the kernels. Its attention gives 0 where no score of a row is finite, for which what a
/// model writes out is NaN.
fn is_callable(call: &AtenCall) -> bool {
    !matches!(&call.form, Some(LibraryForm::Attention(form)) if !form.safe)
}

/// A way to compute a call.
struct Alternative<'g> {
    /// The kernel; none of libtorch's call.
    kernel: Option<Candidate<'g>>,
    /// What it takes; none of a kernel that is predicted where others were measured: these do not compare.
    cost: Option<Cost>,
    /// What the plan says of it.
    row: Compared,
}

/// What an alternative takes, in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    /// Kernel or call by itself,
    own_us: f64,
    /// how many times as much that counts: what a shared launch leaves of a kernel, or the margin of the call,
    factor: f64,
    /// layout conversions around it,
    conversions_us: f64,
    /// the call's epilogue where the kernel computes it,
    merged_us: f64,
    /// and where a kernel behind it does.
    behind_us: f64,
    /// What the call takes, timed beside the kernel or predicted.
    call_us: f64,
}

impl Cost {
    /// All of it, in the time of the call.
    fn price(&self) -> f64 {
        let around_us = self.conversions_us + self.merged_us + self.behind_us;
        self.own_us / self.call_us * self.factor + around_us / self.call_us
    }
}

/// The position of the alternative that takes least, and what it takes: the first one of several, and a kernel rather than the call.
fn least(all: &[Alternative<'_>]) -> Option<(usize, Cost)> {
    let costs = all.iter().enumerate().filter_map(|(at, alternative)| Some((at, alternative.cost?)));
    costs.min_by(|(_, a), (_, b)| a.price().total_cmp(&b.price()))
}

/// What is the same for all alternatives of a call.
struct Comparison<'p> {
    profile: &'p Profile,
    /// Whether kernels were measured: these alone say then which of them is the quickest.
    measured: bool,
    /// What the call is predicted to take, which does not depend on the kernel.
    call_us: f64,
    /// What a kernel behind another one takes for the call's epilogue; 0 where no kernel merges it.
    epilogue_us: f64,
}

impl<'p> Comparison<'p> {
    /// Of these kernels.
    fn of(timed: &[(Candidate<'_>, Times)], profile: &'p Profile) -> Comparison<'p> {
        let measured = timed.iter().any(|(_, times)| times.measured);
        let call_us = timed.iter().map(|(_, times)| times.library_us).fold(f64::INFINITY, f64::min);
        let compares = timed.iter().filter(|(_, times)| times.measured == measured);
        let mut merging = compares.filter(|(candidate, _)| merges_epilogue(candidate, profile));
        let epilogue_us = merging.next().map_or(0.0, |(candidate, _)| behind_us(candidate, profile));
        Comparison { profile, measured, call_us, epilogue_us }
    }

    /// A kernel.
    fn kernel<'g>(&self, candidate: Candidate<'g>, times: Times) -> Alternative<'g> {
        let merges = merges_epilogue(&candidate, self.profile);
        let cost = Cost {
            own_us: times.generated_us,
            factor: candidate.template.shared_launch,
            conversions_us: 0.0,
            merged_us: if merges { merged_us(&candidate, self.profile, self.epilogue_us) } else { 0.0 },
            behind_us: if merges { 0.0 } else { self.epilogue_us },
            call_us: if self.measured { times.library_us } else { self.call_us },
        };
        let predicted = if times.measured { candidate.predicted(self.profile) } else { times };
        let row = Compared {
            schedule: Some(candidate.template.kernel.schedule.clone()),
            predicted_us: predicted.generated_us,
            measured_us: times.measured.then_some(times.generated_us),
            chosen: false,
        };
        let compares = times.measured == self.measured;
        Alternative { kernel: Some(candidate), cost: compares.then_some(cost), row }
    }

    /// Libtorch's call, as it was timed beside the best kernel, which says how tensors around the call lie.
    fn library<'g>(&self, best: &Candidate<'_>, Cost { call_us, .. }: Cost) -> Alternative<'g> {
        let predicted = best.predicted(self.profile);
        let cost = Cost {
            own_us: call_us,
            factor: margin(best, predicted),
            conversions_us: conversions_us(best, self.profile),
            merged_us: 0.0,
            behind_us: self.epilogue_us,
            call_us,
        };
        let row = Compared {
            schedule: None,
            predicted_us: if self.measured { predicted.library_us } else { call_us },
            measured_us: self.measured.then_some(call_us),
            chosen: false,
        };
        Alternative { kernel: None, cost: Some(cost), row }
    }

    /// What the best kernel and libtorch's call take, and other kernels that take longer.
    fn reason(&self, kernel: &Cost, call: &Cost, kernels: &[Alternative<'_>]) -> String {
        let how = if self.measured { "measured" } else { "predicted" };
        let mut why = format!("{how}: {:.1} us generated, {:.1} us in libtorch", kernel.own_us, call.own_us);
        if call.conversions_us > 0.0 {
            why.push_str(&format!(" and {:.1} us for layout conversions", call.conversions_us));
        }
        if kernel.factor < 1.0 {
            let us = kernel.own_us * kernel.factor;
            why.push_str(&format!(", {us:.1} us in one launch with products of the same operand"));
        }
        if call.behind_us > 0.0 {
            let us = call.behind_us;
            why.push_str(&format!(" and {us:.1} us for a kernel with what is an epilogue of ours"));
        }
        if kernel.merged_us > 0.0 {
            why.push_str(&format!(", where it takes {:.1} us", kernel.merged_us));
        }
        let slower = |other: &Alternative<'_>| {
            let cost = other.cost.filter(|cost| cost.price() > kernel.price())?;
            Some((cost.own_us, other.row.schedule.clone()?))
        };
        let mut slower: Vec<(f64, String)> = kernels.iter().filter_map(slower).collect();
        slower.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        why.extend(slower.iter().map(|(us, schedule)| format!("; {us:.1} us with {schedule}")));
        why
    }
}

/// A template whose kernel, or another one that does most of its work, is expected to take so long.
fn expecting(mut template: Template, us: f64) -> Template {
    let packs = template.packs_operands();
    let Template { kernel, operand_kernels, .. } = &mut template;
    let computing = operand_kernels.iter_mut().find(|own| own.computes);
    let kernel = computing.map_or(kernel, |own| &mut own.kernel);
    if !packs {
        kernel.expected_us = us;
    }
    template
}

/// Whether a kernel computes an epilogue for which another one would run behind libtorch's call.
fn merges_epilogue(candidate: &Candidate<'_>, profile: &Profile) -> bool {
    !candidate.template.kernel.neighbours_do_not_fit
        && has_epilogue(candidate.graph, candidate.node, &candidate.template, profile.machine)
}

/// What a kernel behind a call takes that computes its epilogue: it reads the result, and writes as much.
fn behind_us(candidate: &Candidate<'_>, profile: &Profile) -> f64 {
    let bytes = candidate.graph.ty(candidate.node.into()).bytes();
    let moved = 2.0 * bytes as f64 * profile.left_distance(bytes);
    moved / profile.bandwidth / 1000.0 + profile.launch_us
}

/// What the epilogue of a convolution takes in a kernel of ours, of what a kernel behind libtorch's call does. Measured on an H200: 8.8
/// of 13.5 us for a batch norm and relu behind 64 filters of 3 x 3, 3.4 of 8.9 where one group of warps multiplies while another one
/// computes it. Those of products are hidden, and a thread of a processor computes as much in either kernel.
fn merged_us(candidate: &Candidate<'_>, profile: &Profile, behind_us: f64) -> f64 {
    // A kernel that adds partial sums waits for memory.
    let adds = candidate.template.operand_kernels.iter().any(|own| own.computes);
    let share = match candidate.template.kernel.program.warps {
        _ if adds || !candidate.is_convolution() || !profile.machine.is_gpu() => 0.0,
        4 => 0.35,
        _ => 0.65,
    };
    share * behind_us
}

/// What libtorch's call takes besides where tensors around it lie in another order than it wants or leaves them: images
/// that are copied before it, keys and values that are repeated for it, and a result that whoever reads it next reads at
/// strides.
fn conversions_us(candidate: &Candidate<'_>, profile: &Profile) -> f64 {
    let bytes = |value: ValueRef| candidate.graph.ty(value).bytes() as f64;
    // On a GPU the call reads and writes them as they lie.
    let is_conv = candidate.is_convolution() && !profile.machine.is_gpu();
    let images = candidate.graph.operands(candidate.node).first().copied().filter(|_| is_conv);
    let images = images.filter(|&v| channels_last::is_read_at_strides(candidate.graph, v)).map_or(0.0, bytes);
    let vectors = Vectors::of(profile);
    let may_convert = || conv::may_be_channels_last(candidate.graph, candidate.node, vectors);
    let result = is_conv && candidate.template.result_layout.is_some() && may_convert();
    let result = if result { bytes(candidate.node.into()) } else { 0.0 };
    let operands = candidate.graph.operands(candidate.node);
    let repeated = candidate.template.repeated_heads.as_ref().map_or(0.0, |heads| {
        let rows = heads.positions.iter().filter_map(|&at| operands.get(usize::from(at)).copied());
        rows.map(bytes).sum::<f64>() * (1.0 + 1.0 / heads.shared as f64)
    });
    let moved = 2.0 * (images + result) + repeated;
    moved / profile.bandwidth / 1000.0
}

/// How much less time the one that is not expected to be quicker must take: what saves less is within what a measurement
/// misses, and would be chosen in one process and not in the next.
const MARGIN: f64 = 1.05;

/// The same of products of so few rows that they wait for their weight: a measurement reads it from the caches, where it
/// takes as long whoever reads it, and a model from memory, where kernels read several rows at a time.
const STREAMED: f64 = 1.1;

/// How many times the call's time a kernel may take, beside what is around both. `predicted` says which of them is expected to be quicker.
fn margin(kernel: &Candidate<'_>, predicted: Times) -> f64 {
    let form = kernel.call.contraction();
    let form = form.filter(|form| form.window.is_none());
    match form.and_then(|form| product::of(kernel.graph, kernel.node, form).ok()) {
        // libtorch's library does the same; neither is expected to be quicker.
        _ if kernel.template.packs_operands() => 1.0,
        Some(product)
            if blocks::streams(&product) && kernel.is_weight(usize::from(product.b.source.position)) =>
        {
            STREAMED
        }
        _ if predicted.generated_us <= predicted.library_us => MARGIN,
        _ => 1.0 / MARGIN,
    }
}
