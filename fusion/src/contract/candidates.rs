//! The candidates for a contraction: kernels of ours, and libtorch's call.
//!
//! ```text
//! 1.00  libtorch's call, and what it takes besides for other layouts
//! 0.93  kernel over filters that are packed                             measured in turn with the call, or predicted
//! 0.71  kernel over images and filters as they lie                  ->  the least price is taken
//! ```

use std::fmt;

use super::apply::Applied;
use super::backend::Products;
use super::call_kernels::Template;
use super::epilogue::has_epilogue;
use super::match_failure::MatchFailure;
use super::price::predict;
use super::product::has_unaligned_rows;
use super::scheduler::templates;
use super::target::{Target, Vectors};
use super::{blocks, conv, product};
use crate::block_kernel::{Compared, Declined};
use crate::channels_last;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::library_form::LibraryForm;
use crate::machine::Profile;
use crate::place::operand_place;
use crate::types::{Device, TensorType};

/// A call that may be a kernel of ours.
#[derive(Clone, Debug)]
pub struct Candidate<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// The node of the call.
    pub node: NodeId,
    /// The call.
    pub call: &'g AtenCall,
    /// The kernel.
    pub template: Template,
}

impl Candidate<'_> {
    /// Whether the operand at a position lies in a parameter, which need not be read as it lies.
    pub fn is_weight(&self, position: usize) -> bool {
        let value = self.graph.operands(self.node).get(position).copied();
        let place = value.map(|value| operand_place(self.graph, value));
        place.is_some_and(|place| matches!(self.graph.node(place.base.node).op, Op::Param(_)))
    }

    /// A graph of the call alone, and its node. Operands are inputs as they lie here, weights that are packed parameters, and the
    /// result lies in the order in which the kernel writes it.
    pub fn alone(&self) -> (Graph, NodeId) {
        let (mut graph, from) = (Graph::new(), self.graph);
        let mut operands = Vec::new();
        for (slot, value) in from.operands(self.node).into_iter().enumerate() {
            let weight = self.template.panels.is_some() && self.is_weight(slot);
            let heads = self.template.repeated_heads.as_ref();
            let heads = heads.filter(|heads| heads.positions.iter().any(|&at| usize::from(at) == slot));
            let slot = slot as u32;
            let repeated = heads.and_then(|heads| heads.input(from, value, &mut graph, slot));
            operands.push(repeated.unwrap_or_else(|| {
                let op = if weight { Op::Param(slot) } else { Op::Input(slot) };
                graph.add(op, &[], [from.ty(value).clone()], None).into()
            }));
        }
        let mut outs = from.node(self.node).outs.clone();
        if let (Some(out), Some(layout)) = (outs.first_mut(), &self.template.result_layout) {
            out.strides = layout.strides();
        }
        let node = graph.add(Op::Aten(Box::new(self.call.clone())), &operands, outs, None);
        graph.outputs = vec![node.into()];
        (graph, node)
    }

    /// [`Candidate::alone`] with the kernel as the node's.
    pub fn computed(&self) -> (Graph, NodeId) {
        let (mut graph, node) = self.alone();
        Applied::default().apply(&mut graph, node, self.template.clone(), None);
        (graph, node)
    }

    /// The kernel, which is expected to take so long, or another one that does most of its work.
    fn expecting(mut self, times: Times) -> Template {
        let packs = self.template.packs_operands();
        let Template { kernel, operand_kernels, .. } = &mut self.template;
        let computing = operand_kernels.iter_mut().find(|own| own.computes);
        let kernel = computing.map_or(kernel, |own| &mut own.kernel);
        if !packs {
            kernel.expected_us = times.generated_us;
        }
        self.template
    }

    /// Whether a measurement may change what is chosen: on a GPU libtorch's product is as quick, and a kernel pays where it saves
    /// another one, or where rows begin at no multiples of 16 bytes. Its convolutions take 1.0 to 1.6 times as long as their products
    /// would, measured on an H200. What a shared launch saves is not seen of one product.
    pub fn is_open(&self, profile: &Profile) -> bool {
        if self.template.shared_launch < 1.0 {
            return false;
        }
        let Some(form) = self.call.contraction().filter(|_| profile.machine.is_gpu()) else { return true };
        form.window.is_some()
            || has_unaligned_rows(self.graph, self.node, form)
            || has_epilogue(self.graph, self.node, &self.template)
    }

    /// What kernel and call take by the cost model.
    pub fn predicted(&self, profile: &Profile) -> Times {
        predict(&self.template, profile)
    }
}

/// How long a call takes, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Of our kernel, without its neighbours.
    pub generated_us: f64,
    /// Of libtorch's call.
    pub library_us: f64,
    /// Whether this was measured.
    pub measured: bool,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.measured { "measured" } else { "predicted" };
        write!(f, "{how}: {:.1} us generated, {:.1} us in libtorch", self.generated_us, self.library_us)
    }
}

impl Times {
    /// What the kernel takes, in the time of the call.
    fn price(&self) -> f64 {
        self.generated_us / self.library_us
    }
}

/// A kernel, to be compared with others and with libtorch's call.
fn compared_kernel(candidate: &Candidate<'_>, times: Times, profile: &Profile) -> Compared {
    let predicted = if times.measured { candidate.predicted(profile) } else { times };
    Compared {
        schedule: Some(candidate.template.kernel.schedule.clone()),
        predicted_us: predicted.generated_us,
        measured_us: times.measured.then_some(times.generated_us),
        chosen: false,
    }
}

/// Libtorch's call beside the best kernel.
fn compared_library(best: &Candidate<'_>, times: Times, profile: &Profile) -> Compared {
    let predicted = if times.measured { best.predicted(profile) } else { times };
    Compared {
        schedule: None,
        predicted_us: predicted.library_us,
        measured_us: times.measured.then_some(times.library_us),
        chosen: false,
    }
}

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

/// Bytes of operands that may be packed always: libtorch's products take as much for their own.
const FREE_BYTES: u64 = 1 << 20;

/// The kernels that may compute a call, or why there are none; nothing for a node that is no call of the machine's.
pub(super) fn kernels(
    graph: &Graph,
    node: NodeId,
    target: Target<'_>,
    (products, most_bytes): (Products, u64),
) -> Option<Result<Vec<Template>, MatchFailure>> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let here = |ty: &TensorType| (ty.device != Device::Cpu) == target.profile.machine.is_gpu();
    let here = graph.node(node).outs.iter().all(here);
    if !here || graph.node(node).kernel.is_some() || !call.writes.is_empty() || call.random {
        return None;
    }
    let most_bytes = most_bytes.max(FREE_BYTES);
    let limits = (products == Products::Measured, most_bytes);
    let all = templates(graph, node, call.form.as_ref()?, target, limits);
    Some(all.and_then(|all| within(all, most_bytes)))
}

/// Whether libtorch's call computes the same as the kernels. Its attention gives 0 where no score of a row is finite, for which what a
/// model writes out is NaN.
fn is_callable(call: &AtenCall) -> bool {
    !matches!(&call.form, Some(LibraryForm::Attention(form)) if !form.safe)
}

/// What computes a node; nothing for a node without kernels.
pub(super) fn choose(
    graph: &Graph,
    node: NodeId,
    target: Target<'_>,
    (products, most_bytes): (Products, u64),
    measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>,
) -> Option<Choice> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let profile = target.profile;
    let all = match kernels(graph, node, target, (products, most_bytes))? {
        Ok(all) => all,
        Err(declined) => {
            return Some(Choice::library(Declined::new(declined.to_string(), declined.remedy())));
        }
    };
    let all: Vec<Candidate<'_>> =
        all.into_iter().map(|template| Candidate { graph, node, call, template }).collect();
    let measures = products == Products::Measured && !is_sure(&all, profile);
    let mut timed: Vec<(Candidate<'_>, Times)> = Vec::new();
    for candidate in all {
        let measured = if measures { measure(&candidate) } else { None };
        let times = measured.unwrap_or_else(|| candidate.predicted(profile));
        timed.push((candidate, times));
    }
    let all = timed;
    let mut compared: Vec<Compared> =
        all.iter().map(|(candidate, times)| compared_kernel(candidate, *times, profile)).collect();
    let kernels = comparable(all);
    let saved: Vec<f64> = kernels.iter().map(|kernel| epilogue_us(&kernel.candidate, profile)).collect();
    let merged = saved.iter().copied().fold(0.0, f64::max);
    let priced = kernels.into_iter().zip(saved).map(|(kernel, saved)| {
        let shared = kernel.times.price() * kernel.candidate.template.shared_launch;
        let others = merged - saved + within_us(&kernel.candidate, saved);
        (shared + others / kernel.times.library_us, kernel)
    });
    let kernels: Vec<(f64, Timed<'_>)> = priced.collect();
    let (best_price, best) = kernels.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let (library, mut why) = library(&best.candidate, best.times, merged, profile);
    let others = kernels.iter().filter(|(price, _)| price > best_price).map(|(_, kernel)| kernel);
    why.push_str(&slower(others.map(|kernel| (&kernel.candidate, kernel.times.generated_us)).collect()));
    let is_open = products != Products::Generated && is_callable(call);
    if is_open {
        compared.push(compared_library(&best.candidate, best.times, profile));
    }
    let library = is_open.then_some((library, None));
    let kernels = kernels.into_iter().map(|(price, kernel)| (price, Some(kernel)));
    let (_, kernel) = kernels.chain(library).min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let last = compared.len().saturating_sub(1);
    if let Some(chosen) = compared.get_mut(kernel.as_ref().map_or(last, |kernel| kernel.at)) {
        chosen.chosen = true;
    }
    let template = kernel.map(|kernel| kernel.candidate.expecting(kernel.times));
    let remedy = if measures { MEASURED } else { PREDICTED };
    Some(Choice { template, reason: is_open.then_some(why), remedy: remedy.to_owned(), compared })
}

/// What kernels of a convolution on a GPU are predicted to take of the call's time, at most, where no measurement is needed: on an H200 none
/// of a U-Net's and ResNet-50's takes longer than libtorch's call where 0.75 of that is predicted.
const SURE: f64 = 0.75;

/// Whether a convolution's kernels are surely quicker than libtorch's call.
fn is_sure(all: &[Candidate<'_>], profile: &Profile) -> bool {
    let windows =
        |candidate: &Candidate<'_>| candidate.call.contraction().is_some_and(|form| form.window.is_some());
    let least = |us: fn(&Times) -> f64| {
        let times = all.iter().map(|candidate| us(&candidate.predicted(profile)));
        times.fold(f64::INFINITY, f64::min)
    };
    profile.machine.is_gpu()
        && all.iter().all(windows)
        && least(|times| times.generated_us) < SURE * least(|times| times.library_us)
}

/// A candidate with its times, and its position among all.
struct Timed<'g> {
    at: usize,
    candidate: Candidate<'g>,
    times: Times,
}

/// The kernels for which others make operands of at most so many bytes, or why there is none.
fn within(all: Vec<Template>, most_bytes: u64) -> Result<Vec<Template>, MatchFailure> {
    let least = all.iter().map(Template::operand_bytes).min().unwrap_or(0);
    if least > most_bytes {
        return Err(MatchFailure::Memory { least, most: most_bytes });
    }
    Ok(all.into_iter().filter(|template| template.operand_bytes() <= most_bytes).collect())
}

/// The kernels whose times say which of them is quickest: those that were measured, if any were. What is predicted of the call
/// does not depend on the kernel.
fn comparable<'g>(all: Vec<(Candidate<'g>, Times)>) -> Vec<Timed<'g>> {
    let measured = all.iter().any(|(_, times)| times.measured);
    let least = all.iter().map(|(_, times)| times.library_us).fold(f64::INFINITY, f64::min);
    let all = all.into_iter().enumerate().filter(|(_, (_, times))| times.measured == measured);
    all.map(|(at, (candidate, times))| {
        let library_us = if measured { times.library_us } else { least };
        Timed { at, candidate, times: Times { library_us, ..times } }
    })
    .collect()
}

/// The price of libtorch's call beside the best kernel, and the times of both as a reason; `behind` is what a kernel with the epilogue
/// takes.
fn library(best: &Candidate<'_>, times: Times, behind: f64, profile: &Profile) -> (f64, String) {
    let moving = moving_us(best, profile);
    let mut why = times.to_string();
    if moving > 0.0 {
        why.push_str(&format!(" and {moving:.1} us for layout conversions"));
    }
    if best.template.shared_launch < 1.0 {
        let us = times.generated_us * best.template.shared_launch;
        why.push_str(&format!(", {us:.1} us in one launch with products of the same operand"));
    }
    if behind > 0.0 {
        let within = within_us(best, epilogue_us(best, profile));
        why.push_str(&format!(" and {behind:.1} us for a kernel with what is an epilogue of ours"));
        if within > 0.0 {
            why.push_str(&format!(", where it takes {within:.1} us"));
        }
    }
    (margin(best, best.predicted(profile)) + (moving + behind) / times.library_us, why)
}

/// The kernels that take longer than the best one, as a part of a reason.
fn slower(mut others: Vec<(&Candidate<'_>, f64)>) -> String {
    others.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let other = |(candidate, us): (&Candidate<'_>, f64)| {
        format!("; {us:.1} us with {}", candidate.template.kernel.schedule)
    };
    others.into_iter().map(other).collect()
}

/// What a kernel behind libtorch's call takes on a GPU that computes the call's epilogue: it reads the result from memory. On a
/// host a result is in a cache then.
fn epilogue_us(candidate: &Candidate<'_>, profile: &Profile) -> f64 {
    let merges = profile.machine.is_gpu() && !candidate.template.kernel.neighbours_do_not_fit;
    if !merges || !has_epilogue(candidate.graph, candidate.node, &candidate.template) {
        return 0.0;
    }
    2.0 * candidate.graph.ty(candidate.node.into()).bytes() as f64 / profile.bandwidth / 1000.0
        + profile.launch_us
}

/// What the epilogue of a convolution takes in a kernel of ours, of what a kernel behind libtorch's call does. Measured on an H200: 8.8
/// of 13.5 us for a batch norm and relu behind 64 filters of 3 x 3, 3.4 of 8.9 where one group of warps multiplies while another one
/// computes it. Those of products are hidden.
fn within_us(candidate: &Candidate<'_>, behind_us: f64) -> f64 {
    let is_conv = candidate.call.contraction().is_some_and(|form| form.window.is_some());
    // A kernel that adds partial sums waits for memory.
    let adds = candidate.template.operand_kernels.iter().any(|own| own.computes);
    let share = match candidate.template.kernel.program.warps {
        _ if adds || !is_conv => 0.0,
        4 => 0.35,
        _ => 0.65,
    };
    share * behind_us
}

/// What libtorch's call takes besides where tensors around it lie in another order than it wants or leaves them: images
/// that are copied before it, keys and values that are repeated for it, and a result that whoever reads it next reads at
/// strides.
fn moving_us(candidate: &Candidate<'_>, profile: &Profile) -> f64 {
    let bytes = |value: ValueRef| candidate.graph.ty(value).bytes() as f64;
    // On a GPU the call reads and writes them as they lie.
    let is_conv = candidate.call.contraction().is_some_and(|form| form.window.is_some());
    let is_conv = is_conv && !profile.machine.is_gpu();
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

/// The most that a kernel may take, in the time of the library's call.
fn margin(candidate: &Candidate<'_>, predicted: Times) -> f64 {
    let form = candidate.call.contraction();
    let form = form.filter(|form| form.window.is_none());
    match form.and_then(|form| product::of(candidate.graph, candidate.node, form).ok()) {
        // libtorch's library does the same; neither is expected to be quicker.
        _ if candidate.template.packs_operands() => 1.0,
        Some(product)
            if blocks::streams(&product) && candidate.is_weight(usize::from(product.b.source.position)) =>
        {
            STREAMED
        }
        _ if predicted.generated_us <= predicted.library_us => MARGIN,
        _ => 1.0 / MARGIN,
    }
}
