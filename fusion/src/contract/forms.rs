//! Equivalent forms of contractions on a GPU, of which the one is taken that is expected to take least.
//!
//! ```text
//! contractions, before they are calls (FORMS)
//!   as it is          libtorch's call copies its operands to where matrix units read them, or reads elements one by one
//!   space-to-depth    windows that do not overlap -> a product over a view of the images
//!   pad-channels      few channels of windows     -> as many as are copied at a time: kernels of ours read runs of pixels
//!   align-sums        rows at no multiple of 16 B -> padded with zeros along the sum
//! calls (LAYOUTS)
//!   as it is          libtorch's call copies its operands to where matrix units read them, and its result back
//!   channels-last     convolutions of halves      -> over images, filters and a result with the channels innermost
//! ```
//!
//! A form says whether it is legal for a contraction, what it computes, moves and copies, which `price/forms.rs` prices by the machine's
//! rates, and applies itself. What it makes is a contraction again, whose forms are listed in turn: patches may have rows to pad. Each form
//! removes what it is legal for.
//!
//! A further form is a file with a [`Form`], and a line in [`FORMS`] or [`LAYOUTS`].

mod align_sums;
mod channels_last;
mod few_channels;
mod pad_channels;
mod space_to_depth;

use std::fmt;

use self::few_channels::FewChannels;
use super::price::{FormWork, Prices};
use crate::graph::{Graph, NodeId, Op};
use crate::rewrite_limit::Rewrites;

/// An equivalent form of a contraction.
trait Form {
    /// Its name, under which it counts as a rewrite.
    fn name(&self) -> &'static str;

    /// What the contraction computes, moves and copies in this form.
    fn work(&self, graph: &Graph) -> FormWork;

    /// Gives the contraction this form.
    fn apply(self: Box<Self>, graph: &mut Graph);
}

/// The form of a contraction, where it is legal.
type Legal = fn(&Graph, NodeId) -> Option<Box<dyn Form>>;

/// A list of forms that are tried beside that which a contraction has; of those that take as long the first one is taken.
struct Forms {
    /// The forms, each where it is legal.
    legal: &'static [Legal],
    /// What is computed in the form that a contraction has.
    as_it_is: fn(&Graph, NodeId) -> Option<FormWork>,
}

/// Those of contractions.
const FORMS: Forms = Forms {
    legal: &[space_to_depth::legal, pad_channels::legal, align_sums::legal],
    as_it_is: contraction_as_it_is,
};

/// Those of calls, whose operands and results may lie in another order.
const LAYOUTS: Forms = Forms { legal: &[channels_last::legal], as_it_is: channels_last::as_it_is };

/// A contraction as it is, beside its forms.
const AS_IT_IS: &str = "as it is";

/// The forms of a contraction, as they were compared.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedForms {
    /// What the contraction comes from, where that is known.
    pub origin: Option<String>,
    /// Each form with the microseconds that it is expected to take, the one that the contraction has at first.
    pub forms: Vec<(&'static str, f64)>,
    /// The form that was taken.
    pub chosen: &'static str,
}

impl fmt::Display for ComparedForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin.as_deref().unwrap_or("a contraction"), self.chosen)?;
        for (at, (name, us)) in self.forms.iter().enumerate() {
            write!(f, "{} {name} {us:.1} us", if at == 0 { ", predicted:" } else { "," })?;
        }
        Ok(())
    }
}

/// Gives contractions the forms that are expected to take least; returns what was compared.
pub(crate) fn contraction_forms(
    graph: &mut Graph,
    prices: Prices<'_>,
    rewrites: &Rewrites,
) -> Vec<ComparedForms> {
    FORMS.choose(graph, prices, rewrites)
}

/// Gives calls the layouts with which they are expected to take least; returns what was compared.
pub(crate) fn call_layouts(graph: &mut Graph, prices: Prices<'_>, rewrites: &Rewrites) -> Vec<ComparedForms> {
    LAYOUTS.choose(graph, prices, rewrites)
}

impl Forms {
    /// Gives nodes the forms that are expected to take least.
    fn choose(&self, graph: &mut Graph, prices: Prices<'_>, rewrites: &Rewrites) -> Vec<ComparedForms> {
        let mut compared = Vec::new();
        // Kernels on a host read windows and rows as they lie, and have layouts of their own.
        if !prices.profile.machine.is_gpu() {
            return compared;
        }
        for node in graph.topological().unwrap_or_default() {
            // Operators behind a call that was changed are other nodes.
            while graph.contains(node)
                && let Some((mut forms, cheapest)) = self.compare(graph, node, prices)
            {
                let cheapest = cheapest.filter(|form| rewrites.allow(form.name()));
                forms.chosen = cheapest.as_ref().map_or(AS_IT_IS, |form| form.name());
                compared.push(forms);
                let Some(form) = cheapest else { break };
                form.apply(graph);
            }
        }
        if compared.iter().any(|forms| forms.chosen != AS_IT_IS) {
            graph.remove_unused();
        }
        compared
    }

    /// The forms of a node, and that which takes less than the one that it has; `None` where there is no other.
    fn compare(
        &self,
        graph: &Graph,
        node: NodeId,
        prices: Prices<'_>,
    ) -> Option<(ComparedForms, Option<Box<dyn Form>>)> {
        let legal = self.legal.iter().filter_map(|legal| legal(graph, node));
        let priced: Vec<(f64, Box<dyn Form>)> =
            legal.filter_map(|form| Some((form.work(graph).us(prices)?, form))).collect();
        if priced.is_empty() {
            return None;
        }
        let as_it_is = (self.as_it_is)(graph, node)?.us(prices)?;
        let all = priced.iter().map(|(us, form)| (form.name(), *us));
        let forms = ComparedForms {
            origin: graph.origin(node).map(str::to_owned),
            forms: [(AS_IT_IS, as_it_is)].into_iter().chain(all).collect(),
            chosen: AS_IT_IS,
        };
        let cheapest = priced.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
        let cheapest = cheapest.filter(|(us, _)| *us < as_it_is).map(|(_, form)| form);
        Some((forms, cheapest))
    }
}

/// What a contraction computes and moves that libtorch's call reads element by element, or copies: others have no other form.
fn contraction_as_it_is(graph: &Graph, node: NodeId) -> Option<FormWork> {
    if let Some(few) = FewChannels::of(graph, node) {
        return Some(few.as_it_is(graph));
    }
    let Op::Contract(contraction) = &graph.node(node).op else { return None };
    let &[left, right] = graph.operands(node).as_slice() else { return None };
    let (out, operands) = (graph.ty(node.into()), [graph.ty(left), graph.ty(right)]);
    let depth: i64 = contraction.sum.iter().map(|&(dim, _)| operands[0].shape[usize::from(dim)]).product();
    Some(FormWork::of_call(out, operands, depth))
}

/// The graph of a text with each contraction in the form that takes least, and how many rewrites made it.
#[cfg(test)]
fn rewritten(text: &str, profile: &crate::machine::Profile, products: super::Products) -> (usize, Graph) {
    #![allow(clippy::unwrap_used, reason = "tests")]
    let mut graph = crate::parse_graph(text).unwrap();
    let rewrites = Rewrites::default();
    let compared = contraction_forms(&mut graph, Prices { profile, products, prepacks: false }, &rewrites);
    crate::verify(&graph).unwrap();
    let made = compared.iter().filter(|forms| forms.chosen != AS_IT_IS).count();
    assert_eq!(made as u64, rewrites.made());
    (made, graph)
}

#[cfg(test)]
mod tests;
