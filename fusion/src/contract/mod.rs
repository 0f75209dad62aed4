//! Products on the host as block programs, with pointwise neighbours in their loads and stores.
//!
//! A contraction stands in the graph in its library form, a call with the [`ContractionForm`] that it computes. Kernels are made
//! from that, whatever the call's name is. Where it is worth it, [`choose_products`] gives the call a [`BlockKernel`]: the
//! planner then merges bias, activation and residual into its epilogue.
//!
//! ```text
//! %3 = aten::linear(input=%0, weight=%1, bias=%2)      kernel: for k in 0..K step BK { sum = dot(x, wᵀ, sum) }
//! %4 = map tanh %3                                             store tanh(sum + bias)
//! ```
//!
//! `product.rs` reads contractions as batches of `alpha a b + beta c`; `operand.rs` says where operands lie, so that a
//! transposed or strided one is read as it is; `prepack.rs` lays out weights in the order in which they are read, once, and
//! `pack.rs` writes kernels that lay out other operands before each product; `blocks.rs` chooses the blocks, `vnni.rs` those of
//! `bf16` and 8-bit integers where processors have instructions for these, and `template.rs` writes the programs, in the kernel
//! language ([`tilefuse_block::dynamic`]). `conv/` has the same for convolutions, and `attention/` for attention.
//! `channels_last.rs` lets results lie in another order than eager's where only kernels read them.
//!
//! A further template is an arm of `templates`: it gives a `Template` with the kernel, several where it is not clear which is
//! quicker, or none for calls that it does not know. Which of kernels and call is used is decided here, in the same way for
//! all.

mod attention;
mod blocks;
mod channels_last;
mod conv;
mod operand;
#[cfg(test)]
mod outer_loop_tests;
mod pack;
#[cfg(test)]
mod pack_tests;
mod prepack;
mod product;
#[cfg(test)]
mod row_tests;
mod template;
#[cfg(test)]
mod tests;
mod vnni;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use self::conv::Vectors;
pub use self::pack::OperandKernel;
pub use self::prepack::{Panels, Prepacked};
use self::product::Product;
use crate::args::Args;
use crate::block_kernel::BlockKernel;
use crate::graph::{AtenCall, ContractionForm, Graph, NodeId, Op, ValueRef};
use crate::plan::{Profile, operand_place};
use crate::recording::Arg;
use crate::schedule::Machine;
use crate::types::{Device, Dims, row_major};

/// Which products of matrices on the host are kernels of ours, and which are libtorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Products {
    /// Whichever takes less time on this machine, measured once for each shape.
    #[default]
    Measured,
    /// Whichever takes less time by the cost model.
    Predicted,
    /// Always ours, where there is one.
    Generated,
    /// Always libtorch's.
    Library,
}

impl FromStr for Products {
    type Err = String;

    fn from_str(text: &str) -> Result<Products, String> {
        match text {
            "measured" => Ok(Products::Measured),
            "predicted" => Ok(Products::Predicted),
            "generated" => Ok(Products::Generated),
            "library" => Ok(Products::Library),
            other => Err(format!("`{other}` is none of measured, predicted, generated and library")),
        }
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Products::Measured => "measured",
            Products::Predicted => "predicted",
            Products::Generated => "generated",
            Products::Library => "library",
        })
    }
}

/// A kernel for a call, and what it is expected to take.
#[derive(Clone, Debug)]
pub struct Template {
    /// The kernel, without neighbours.
    pub kernel: BlockKernel,
    /// Multiplications and additions of the call.
    pub flops: f64,
    /// Bytes that it must move.
    pub bytes: f64,
    /// What a further operand of the call, which the kernel takes, holds.
    pub panels: Option<Panels>,
    /// What makes further operands before each call.
    pub operand_kernels: Vec<OperandKernel>,
    /// The order in which the kernel writes the result, where that is not row-major.
    pub result_layout: Option<ResultLayout>,
}

impl Template {
    /// Bytes of operands that are packed in each call.
    fn packed_bytes(&self) -> u64 {
        self.operand_kernels.iter().filter(|own| !own.computes).map(|own| own.ty.bytes()).sum()
    }

    /// Whether operands are packed first.
    fn packs_operands(&self) -> bool {
        self.operand_kernels.iter().any(|own| !own.computes)
    }

    /// Rows of the right operand that lie side by side.
    fn group(&self) -> i64 {
        let packed = self.operand_kernels.iter().map(|own| own.group).max().unwrap_or(1);
        self.panels.as_ref().map_or(packed, |panels| panels.group)
    }
}

/// A result that is row-major with its dimensions in another order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultLayout {
    /// Sizes in the order in memory.
    pub shape: Dims,
    /// By dimension of the result: which dimension in memory it is.
    pub permutation: SmallVec<[u8; 6]>,
    /// By dimension in memory: which dimension of the result it is.
    pub inverse: SmallVec<[u8; 6]>,
}

impl ResultLayout {
    /// Strides of the result.
    pub fn strides(&self) -> Dims {
        let strides = row_major(&self.shape);
        self.permutation.iter().map(|&d| strides[usize::from(d)]).collect()
    }

    /// Whether a tensor of these strides and sizes lies in this order.
    fn is_order_of(&self, strides: &[i64], shape: &[i64]) -> bool {
        let own = self.strides();
        strides.len() == own.len() && (0..own.len()).all(|d| shape[d] == 1 || strides[d] == own[d])
    }
}

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
    /// How many times libtorch's call would have each head of keys and values repeated; 1 but for attention whose heads the
    /// kernel reads where they lie.
    pub repeats: i64,
}

impl Candidate<'_> {
    /// Whether the operand at a position lies in a parameter, which need not be read as it lies.
    pub fn is_weight(&self, position: usize) -> bool {
        let value = self.graph.operands(self.node).get(position).copied();
        let place = value.and_then(|value| operand_place(self.graph, value));
        place.is_some_and(|place| matches!(self.graph.node(place.base.node).op, Op::Param(_)))
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

/// What templates are made for.
#[derive(Clone, Copy)]
struct Host {
    threads: u32,
    /// The vectors that weights may be packed for; `None` where they may not.
    packs: Option<Vectors>,
    /// Whether there are instructions for pairs of `bf16`.
    pairs: bool,
    /// Whether there are instructions for four 8-bit integers.
    quads: bool,
}

/// The kernels of a contraction or of attention on the host, if there is a template for it, the most likely one first.
fn templates(graph: &Graph, node: NodeId, call: &AtenCall, host: Host) -> Vec<Template> {
    if let Some(form) = &call.contraction {
        return match product::of(graph, node, form) {
            Some(product) => over(graph, node, &product, host),
            None => of_windows(graph, node, form, host).into_iter().collect(),
        };
    }
    match call.op.as_str() {
        "aten::scaled_dot_product_attention" => attention::templates(graph, node, call, host),
        _ => Vec::new(),
    }
}

/// The kernel of a contraction of windows.
fn of_windows(graph: &Graph, node: NodeId, form: &ContractionForm, host: Host) -> Option<Template> {
    let packed = host.packs.and_then(|vectors| {
        let turn = channels_last::may_be_channels_last(graph, node, vectors);
        conv::packed(graph, node, form, turn, vectors)
    });
    packed.or_else(|| conv::template(graph, node, form, host.threads))
}

/// The kernels of a product.
fn over(graph: &Graph, node: NodeId, product: &Product, host: Host) -> Vec<Template> {
    match over_weight(graph, node, product, host) {
        Some(template) => vec![template],
        None => over_operand(graph, node, product, host),
    }
}

/// The kernel of a product over a weight that is packed.
fn over_weight(graph: &Graph, node: NodeId, product: &Product, host: Host) -> Option<Template> {
    let vectors = host.packs?;
    if let Some(panels) = in_groups(graph, node, product, host) {
        return in_panels(graph, node, product.clone(), panels, host.threads);
    }
    in_rows(graph, node, product, vectors).or_else(|| {
        let panels = prepack::panels(graph, node, product, blocks::panel_width(product)?)?;
        in_panels(graph, node, product.clone(), panels, host.threads)
    })
}

/// The kernels of a product whose right operand lies anywhere.
fn over_operand(graph: &Graph, node: NodeId, product: &Product, host: Host) -> Vec<Template> {
    let packed = pack::product(graph, node, product.clone(), host);
    let clear = packed.as_ref().is_some_and(|packed| pack::is_clear(product, packed));
    let as_it_lies = if clear { None } else { template::of(product, host.threads, None) };
    as_it_lies.into_iter().chain(packed).collect()
}

/// The panels of a product's right operand with rows side by side, where there are instructions for these.
fn in_groups(graph: &Graph, node: NodeId, product: &Product, host: Host) -> Option<Panels> {
    let group = vnni::group(product, host).filter(|_| host.packs.is_some())?;
    let panels = prepack::panels(graph, node, product, vnni::width(product))?;
    Some(panels.in_groups(group, vnni::depth(product).into()))
}

/// The kernel of a product over a weight that is computed as a convolution.
fn in_rows(graph: &Graph, node: NodeId, product: &Product, vectors: Vectors) -> Option<Template> {
    let rows = conv::Rows::of(product, vectors)?;
    let panels = prepack::panels(graph, node, product, rows.width())?;
    rows.template(graph, node, product, panels)
}

/// The kernel of a product whose right operand lies in panels, which are an operand behind those of the call.
fn in_panels(
    graph: &Graph,
    node: NodeId,
    mut product: Product,
    panels: Panels,
    threads: u32,
) -> Option<Template> {
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    let weight = std::mem::replace(&mut product.b, prepack::access(&panels, position)).source;
    let mut template = template::of(&product, threads, Some(&panels))?;
    // The kernel does not read it: it stays where it lies.
    template.kernel.layouts.push((weight.position, weight.layout));
    Some(Template { panels: Some(panels), ..template })
}

/// Bytes of operands that may be packed always: libtorch's products take as much for their own.
const FREE_BYTES: u64 = 1 << 20;

/// Gives calls of a primitive graph kernels of ours, where these are preferred. `measure` times a candidate and its call
/// where they are to be measured; what it cannot measure is predicted.
///
/// Where `constants` says how many constants there are, weights may be packed: the constants that hold them are returned,
/// numbered from there on. They must hold them whenever the plan runs.
///
/// A call for which operands would be packed in more than `most_bytes` has no such kernel. One that stays libtorch's
/// though it could be a kernel keeps the reason.
pub fn choose_products(
    graph: &mut Graph,
    profile: &Profile,
    products: Products,
    constants: Option<u32>,
    most_bytes: u64,
    measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>,
) -> Vec<Prepacked> {
    let mut packed: Vec<(Prepacked, NodeId)> = Vec::new();
    let mut known: Vec<Known> = Vec::new();
    let Machine::Host { threads } = profile.machine else { return Vec::new() };
    if products == Products::Library {
        return Vec::new();
    }
    let rates = profile.products;
    let packs = constants.map(|_| Vectors::of(profile));
    let host = Host { threads, packs, pairs: rates.pairs > 0.0, quads: rates.quads > 0.0 };
    for node in graph.topological().unwrap_or_default() {
        if !graph.contains(node) {
            continue;
        }
        let strided = packs.and_then(|_| channels_last::read_at_strides(graph, node));
        let grouped = attention::group(graph, node);
        let repeats = grouped.as_ref().map_or(1, |grouped| grouped.shared);
        let chosen = choose(graph, node, profile, host, (products, repeats, most_bytes), measure);
        if !matches!(chosen, Some((Some(_), _))) {
            strided.into_iter().for_each(|strided| strided.undo(graph));
            grouped.into_iter().for_each(|grouped| grouped.undo(graph));
        }
        let Some((template, reason)) = chosen else { continue };
        let entry = match template {
            Some(Template { kernel, panels, operand_kernels: own, result_layout, .. }) => {
                if let Some(result_layout) = result_layout {
                    channels_last::apply(graph, node, &result_layout);
                }
                if let Some(panels) = panels {
                    let constant = constant(graph, node, panels, constants.unwrap_or(0), &mut packed);
                    graph.add_operand(node, constant.into());
                }
                for own in own {
                    let made = made(graph, node, own, &mut known);
                    graph.add_operand(node, made.into());
                }
                Ok(Arc::new(BlockKernel { note: reason, ..kernel }))
            }
            None => Err(reason.unwrap_or_default()),
        };
        graph.node_mut(node).kernel = Some(entry);
    }
    packed.into_iter().map(|(packed, _)| packed).collect()
}

/// The constant that holds the panels of a weight of a node, a new one where there is none yet.
fn constant(
    graph: &mut Graph,
    node: NodeId,
    panels: Panels,
    first: u32,
    packed: &mut Vec<(Prepacked, NodeId)>,
) -> NodeId {
    if let Some((_, known)) = packed.iter().find(|(known, _)| known.panels == panels) {
        return *known;
    }
    // Of the operands' kind, which is not that of every result.
    let like = graph.operands(node).first().copied().unwrap_or_else(|| node.into());
    let ty = panels.ty(graph.ty(like));
    let constant = first + packed.len() as u32;
    let id = graph.add(Op::Const(constant), &[], [ty.clone()], None);
    packed.push((Prepacked { constant, ty, panels }, id));
    id
}

/// What a kernel made of some values before a call.
type Known = (Vec<ValueRef>, OperandKernel, NodeId);

/// The node that makes what a kernel reads of operands of a node, a new one where there is none yet.
fn made(graph: &mut Graph, node: NodeId, own: OperandKernel, known: &mut Vec<Known>) -> NodeId {
    let operands = graph.operands(node);
    let values: Vec<ValueRef> = own.positions.iter().map(|&at| operands[usize::from(at)]).collect();
    let alike = |(of, known, _): &&Known| *of == values && known.kernel == own.kernel;
    if let Some((.., found)) = known.iter().find(alike) {
        return *found;
    }
    let names = ["self", "key", "value", "attn_mask"].into_iter().zip(0..).take(values.len());
    let call = AtenCall::new(own.op, "", names.map(|(name, at)| (name, Arg::Tensor(at))));
    let origin = graph.node(node).origin;
    let id = graph.add(Op::Aten(Box::new(call)), &values, [own.ty.clone()], origin);
    graph.node_mut(id).kernel = Some(Ok(Arc::new(own.kernel.clone())));
    known.push((values, own, id));
    id
}

/// The template for a node, or none where libtorch is quicker, and the reason; nothing for a node without template.
fn choose(
    graph: &Graph,
    node: NodeId,
    profile: &Profile,
    host: Host,
    (products, repeats, most_bytes): (Products, i64, u64),
    measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>,
) -> Option<(Option<Template>, Option<String>)> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    let here = graph.node(node).outs.iter().all(|ty| ty.device == Device::Cpu);
    if !here || graph.node(node).kernel.is_some() || !call.writes.is_empty() || call.random {
        return None;
    }
    let all_templates = templates(graph, node, call, host);
    if all_templates.is_empty() {
        let why = conv::refusal(call.contraction.as_ref()?)?;
        return Some((None, Some(why.to_owned())));
    }
    let most_bytes = most_bytes.max(FREE_BYTES);
    let (all_templates, large): (Vec<Template>, Vec<Template>) =
        all_templates.into_iter().partition(|template| template.packed_bytes() <= most_bytes);
    if let (true, Some(bytes)) = (all_templates.is_empty(), large.iter().map(Template::packed_bytes).min()) {
        let why = format!("its packed operands would take {bytes} bytes, of at most {most_bytes}");
        return Some((None, Some(why)));
    }
    let mut all: Vec<(Candidate<'_>, Times)> = Vec::new();
    for template in all_templates {
        let candidate = Candidate { graph, node, call, template, repeats };
        let measured = if products == Products::Measured { measure(&candidate) } else { None };
        let times = measured.unwrap_or_else(|| predict(&candidate.template, profile));
        all.push((candidate, times));
    }
    let (mut candidate, times) = best(all)?;
    if !candidate.template.packs_operands() {
        candidate.template.kernel.expected_us = times.generated_us;
    }
    if products == Products::Generated {
        return Some((Some(candidate.template), None));
    }
    let moving = moving_us(&candidate, profile);
    let mut reason = times.to_string();
    if moving > 0.0 {
        reason.push_str(&format!(" and {moving:.1} us for layout conversions"));
    }
    let predicted = predict(&candidate.template, profile);
    let template = (times.generated_us <= margin(&candidate, predicted) * times.library_us + moving)
        .then_some(candidate.template);
    Some((template, Some(reason)))
}

/// The best of several kernels of a call, and its times: of those that were measured, if any were, the one that takes least in
/// the time of the call beside it.
fn best<'g>(all: Vec<(Candidate<'g>, Times)>) -> Option<(Candidate<'g>, Times)> {
    let measured = all.iter().any(|(_, times)| times.measured);
    let library_us = all.iter().map(|(_, times)| times.library_us).fold(f64::INFINITY, f64::min);
    let rated = |times: &Times| match times.measured {
        true => times.generated_us / times.library_us,
        false => times.generated_us,
    };
    let counted = all.into_iter().filter(|(_, times)| times.measured == measured);
    let (candidate, times) = counted.min_by(|(_, a), (_, b)| rated(a).total_cmp(&rated(b)))?;
    // What is expected of the call does not depend on the kernel.
    let library_us = if measured { times.library_us } else { library_us };
    Some((candidate, Times { library_us, ..times }))
}

/// What libtorch's call takes besides where tensors around it lie in another order than it wants or leaves them: images
/// that are copied before it, keys and values that are repeated for it, and a result that whoever reads it next reads at
/// strides.
fn moving_us(candidate: &Candidate<'_>, profile: &Profile) -> f64 {
    let bytes = |value: ValueRef| candidate.graph.ty(value).bytes() as f64;
    let images = candidate.graph.operands(candidate.node).first().copied();
    let images = images.filter(|&v| channels_last::is_read_at_strides(candidate.graph, v)).map_or(0.0, bytes);
    let vectors = Vectors::of(profile);
    let may_convert = || channels_last::may_be_channels_last(candidate.graph, candidate.node, vectors);
    let result = candidate.template.result_layout.is_some() && may_convert();
    let result = if result { bytes(candidate.node.into()) } else { 0.0 };
    let rows = ["key", "value"].into_iter().filter_map(|name| Args(&candidate.call.args).tensor(name));
    let operands = candidate.graph.operands(candidate.node);
    let rows = rows.filter_map(|at| operands.get(usize::from(at)).copied()).map(bytes);
    let repeated: f64 = if candidate.repeats > 1 { rows.sum() } else { 0.0 };
    let moved = 2.0 * (images + result) + repeated * (1.0 + candidate.repeats as f64);
    moved / profile.bandwidth / 1000.0
}

/// How much less time the one that is not expected to be quicker must take: what saves less is within what a measurement
/// misses, and would be chosen in one process and not in the next.
const MARGIN: f64 = 1.05;

/// The same of products of so few rows that they wait for their weight: a measurement reads it from the caches, where it
/// takes as long whoever reads it, and a model from memory, where kernels read several rows side by side.
const STREAMED: f64 = 1.1;

/// The most that a kernel may take, in the time of the library's call.
fn margin(candidate: &Candidate<'_>, predicted: Times) -> f64 {
    let form = candidate.call.contraction.as_ref();
    match form.and_then(|form| product::of(candidate.graph, candidate.node, form)) {
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

/// What a kernel and its call take by typical figures.
fn predict(template: &Template, profile: &Profile) -> Times {
    let moving = |bytes: f64| bytes / profile.bandwidth / 1000.0;
    let us = |rate: f64| (template.flops / rate / 1000.0).max(moving(template.bytes));
    let working = template.operand_kernels.iter().find(|own| own.computes).map(|own| &own.kernel);
    let instances: f64 = working.unwrap_or(&template.kernel).grid.iter().map(|&n| f64::from(n)).product();
    let busy = (instances / profile.workers as f64).min(1.0);
    let rates = profile.products;
    let packed = template.packs_operands();
    let pack_us = |own: &OperandKernel| moving(2.0 * own.ty.bytes() as f64) + profile.launch_us;
    let packing_us: f64 = template.operand_kernels.iter().map(pack_us).sum();
    // libtorch's library has the same instructions, and packs weights at every call.
    let in_groups = |rate: f64| (if packed { PACKED_VNNI_RATE * rate } else { rate }, 0.5 * rate);
    let (ours, theirs) = match template.group() {
        vnni::PAIR => in_groups(rates.pairs),
        vnni::QUAD => in_groups(rates.quads),
        _ if packed => (PACKED_RATE * rates.generated, rates.aligned),
        _ => (rates.generated, rates.aligned),
    };
    Times {
        generated_us: us(ours) / busy + packing_us + profile.launch_us,
        library_us: us(theirs) + 2.0 * profile.launch_us,
        measured: false,
    }
}

/// The rate of products over operands that were packed, in that over those as they lie.
const PACKED_RATE: f64 = 1.4;

/// The same in groups, in the rate over packed weights.
const PACKED_VNNI_RATE: f64 = 0.45;
