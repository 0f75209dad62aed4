//! Products as block programs, with pointwise neighbours in their loads and stores.
//!
//! A contraction or attention stands in the graph in its library form, a call with what it computes. Kernels are made from that,
//! whatever the call's name is. Where it is worth it, [`choose_products`] gives the call a [`BlockKernel`](crate::BlockKernel): the
//! planner then merges bias, activation and residual into its epilogue.
//!
//! ```text
//! %3 = aten::linear(input=%0, weight=%1, bias=%2)      kernel: for k in 0..K step BK { sum = dot(x, wᵀ, sum) }
//! %4 = map tanh %3                                             store tanh(sum + bias)
//! ```
//!
//! One scheduler (`scheduler.rs`) makes kernels for products, convolutions and attention on all machines:
//!
//! ```text
//! problem.rs, target.rs     what a call computes; what a machine has: threads and vectors, VNNI, or multiprocessors and warpgroups
//! search_space.rs           the valid schedules (schedule.rs): in place, prepacked or packed in each call, GEMV, unaligned GEMM,
//!                           vectors of pixels or filters, split-K, split-KV, channels-last
//! price.rs                  what each is expected to take
//! pruning.rs                the likeliest, of which programs are written
//! ```
//!
//! On a GPU `forms.rs` gives contractions that of their equivalent forms which is expected to take least: before they are calls products of
//! patches, padded channels and padded sums, and calls of convolutions channels-last.
//!
//! `product.rs` reads contractions as batches of `alpha a b + beta c`, of which `windows.rs` says where rows that are windows of images
//! lie; `operand.rs` says where operands lie, so that a transposed or strided one is read as it is; `prepack.rs` lays out weights in the
//! order in which they are read, once, as `prepacked_filters.rs` does for those of convolutions on a GPU, and `pack.rs` writes kernels that
//! lay out other operands before each product. `blocks.rs` chooses the blocks of products on a host, `vnni.rs` those of `bf16` and 8-bit
//! integers where processors have instructions for these, and `split_k.rs` divides long sums. `template.rs` writes the programs, in the
//! kernel language ([`tilefuse_block::dynamic`]), and `accesses.rs` keeps along which axes they access operands. `conv/` writes those of
//! convolutions, and `attention/` those of attention. `shared_launch.rs` finds products that a GPU may compute in one launch.
//! `rewrite/channels_last.rs`, beside this folder, lets results lie in another order than eager's where only kernels read them.
//!
//! `call_kernels.rs` has what a template gives a call, and `match_failure.rs` the reasons for which a call has no kernel at all.
//!
//! A further kernel is a further `Blocking` or `Reading` of a `Schedule`. The kernels of a call are its `candidates.rs`. Which of these and
//! libtorch's call is used is decided in `choice.rs`, in the same way for all, by what is measured or what `price.rs` predicts; `apply.rs`
//! then gives a call its kernel.

mod accesses;
mod apply;
mod attention;
mod backend;
mod blocks;
mod call_kernels;
mod candidates;
mod choice;
mod conv;
mod epilogue;
#[cfg(test)]
mod epilogue_tests;
mod forms;
mod match_failure;
mod operand;
#[cfg(test)]
mod outer_loop_tests;
mod pack;
#[cfg(test)]
mod pack_tests;
mod partial_sums;
mod prepack;
mod prepacked_filters;
mod price;
mod problem;
mod product;
mod pruning;
mod repeated_heads;
#[cfg(test)]
mod rewritten_tests;
#[cfg(test)]
mod row_tests;
mod schedule;
#[cfg(test)]
mod schedule_tests;
mod scheduler;
mod search_space;
mod shared_launch;
#[cfg(test)]
mod shared_launch_tests;
#[cfg(test)]
mod sibling_tests;
mod split_k;
#[cfg(test)]
mod split_k_tests;
mod target;
mod template;
#[cfg(test)]
pub(crate) mod tests;
mod vnni;
#[cfg(test)]
mod warpgroup_tests;
mod window_axis;
mod windows;

use self::apply::Applied;
pub use self::backend::Products;
pub use self::call_kernels::{OperandKernel, Template};
pub use self::candidates::{Candidate, Times};
use self::choice::Choice;
pub use self::forms::ComparedForms;
pub(crate) use self::forms::{call_layouts, contraction_forms};
pub(crate) use self::match_failure::MatchFailure;
pub use self::prepack::{Panels, Prepacked};
pub(crate) use self::prepacked_filters::prepack_filters;
pub(crate) use self::price::Prices;
pub use self::repeated_heads::RepeatedHeads;
use self::target::Target;
use crate::block_kernel::Declined;
use crate::graph::{Graph, NodeId, Op};
use crate::machine::Profile;
use crate::rewrite::channels_last;
use crate::rewrite_limit::{REMEDY, Rewrites};

/// Gives calls of a primitive graph kernels of ours, where these are preferred. `measure` times a candidate and its call
/// where they are to be measured; what it cannot measure is predicted.
///
/// Where `constants` says how many constants there are, weights may be packed: the constants that hold them are returned,
/// numbered from there on. They must hold them whenever the plan runs.
///
/// Operands are packed, and partial sums held, in at most `most_bytes`. A call that stays libtorch's
/// though it could be a kernel keeps the reason.
pub fn choose_products(
    graph: &mut Graph,
    profile: &Profile,
    products: Products,
    constants: Option<u32>,
    most_bytes: u64,
    measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>,
) -> Vec<Prepacked> {
    choose_counted(graph, profile, products, (constants, most_bytes), &Rewrites::default(), measure)
}

/// [`choose_products`] with no more kernels than rewrites may be made.
pub(crate) fn choose_counted(
    graph: &mut Graph,
    profile: &Profile,
    products: Products,
    (constants, most_bytes): (Option<u32>, u64),
    rewrites: &Rewrites,
    measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>,
) -> Vec<Prepacked> {
    let mut applied = Applied::starting(constants.unwrap_or(0));
    if products == Products::Library {
        return decline_all(graph, MatchFailure::Library);
    }
    let target = Target::of(profile, constants);
    for node in graph.topological().unwrap_or_default() {
        if !graph.contains(node) {
            continue;
        }
        let strided = target.prepacks.and_then(|_| channels_last::read_at_strides(graph, node));
        let mut chosen = choice::choose(graph, node, target, (products, most_bytes), measure);
        let has_kernel =
            |chosen: &Option<Choice>| chosen.as_ref().is_some_and(|choice| choice.template.is_some());
        if has_kernel(&chosen) && !rewrites.allow("select-kernels") {
            chosen = Some(Choice::library(Declined::new("the number of rewrites is limited", REMEDY)));
        }
        if !has_kernel(&chosen) {
            strided.into_iter().for_each(|strided| strided.undo(graph));
        }
        let Some(Choice { template, reason, remedy, compared }) = chosen else { continue };
        match template {
            Some(template) => applied.apply(graph, node, template, reason),
            None => {
                let reason = channels_last::described(graph, node, reason.unwrap_or_default());
                graph.node_mut(node).kernel = Some(Err(Declined { reason, remedy }));
            }
        }
        graph.node_mut(node).compared = compared;
    }
    applied.prepacked()
}

/// Whether a kernel of ours may compute a call, by what [`choose_counted`] is given.
pub(crate) fn has_kernel(
    graph: &Graph,
    node: NodeId,
    profile: &Profile,
    (constants, most_bytes): (Option<u32>, u64),
) -> bool {
    let target = Target::of(profile, constants);
    // The likeliest one alone is built.
    let all = candidates::kernels(graph, node, target, (Products::Predicted, most_bytes));
    matches!(all, Some(Ok(all)) if !all.is_empty())
}

/// Leaves every contraction and attention to libtorch, for one reason.
fn decline_all(graph: &mut Graph, why: MatchFailure) -> Vec<Prepacked> {
    for id in graph.topological().unwrap_or_default() {
        let node = graph.node(id);
        let has_form = matches!(&node.op, Op::Aten(call) if call.form.is_some());
        if has_form && node.kernel.is_none() {
            let reason = channels_last::described(graph, id, why.to_string());
            graph.node_mut(id).kernel = Some(Err(Declined::new(reason, why.remedy())));
        }
    }
    Vec::new()
}
