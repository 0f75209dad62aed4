//! What a call computes, as schedules are made for it.

use tilefuse_block::Elem;

use super::attention::{self, Attention};
use super::conv::{self, ConvCall};
use super::match_failure::MatchFailure;
use super::price::Work;
use super::product::{self, Product};
use super::target::Target;
use crate::graph::{Graph, NodeId};
use crate::library_form::LibraryForm;

/// What a call computes.
pub(super) enum Problem {
    /// A batch of products of matrices. On a GPU convolutions are products, too (implicit GEMM).
    Product(Product),
    /// A convolution.
    Convolution(ConvCall),
    /// Attention.
    Attention(Attention),
}

/// A call that kernels are made for.
pub(super) struct Task<'g> {
    pub(super) graph: &'g Graph,
    pub(super) node: NodeId,
    pub(super) form: &'g LibraryForm,
    /// What it computes.
    pub(super) problem: Problem,
    /// What it is computed on.
    pub(super) target: Target<'g>,
}

impl<'g> Task<'g> {
    /// The task of a node's library form.
    ///
    /// # Errors
    /// Where no schedule is for such a call or machine, whatever its sizes are.
    pub(super) fn of(
        graph: &'g Graph,
        node: NodeId,
        form: &'g LibraryForm,
        target: Target<'g>,
    ) -> Result<Task<'g>, MatchFailure> {
        if !target.has_kernels() {
            return Err(MatchFailure::Device);
        }
        let by_warpgroups = target.warpgroups.is_some();
        if by_warpgroups {
            check_type(graph, node)?;
        }
        let problem = match form {
            LibraryForm::Attention(form) => Problem::Attention(attention::read(graph, node, form)?),
            LibraryForm::Contraction(form) if form.window.is_some() && !by_warpgroups => {
                Problem::Convolution(conv::read(graph, node, form)?)
            }
            LibraryForm::Contraction(form) => {
                let product = match form.window {
                    Some(_) => conv::as_product(graph, node, form)?,
                    None => product::of(graph, node, form)?,
                };
                Problem::Product(if by_warpgroups { product.in_memory(graph, node) } else { product })
            }
        };
        Ok(Task { graph, node, form, problem, target })
    }

    /// Whether rows of a product begin at no multiples of 16 bytes; see [`product::has_unaligned_rows`].
    pub(super) fn has_unaligned_rows(&self) -> bool {
        let LibraryForm::Contraction(form) = self.form else { return false };
        product::has_unaligned_rows(self.graph, self.node, form)
    }
}

/// Whether multiprocessors multiply elements of a call's type: of others, neither sizes nor strides are why there is no kernel.
fn check_type(graph: &Graph, node: NodeId) -> Result<(), MatchFailure> {
    match graph.ty(node.into()).dtype.elem() {
        Some(Elem::F16 | Elem::Bf16) => Ok(()),
        _ => Err(MatchFailure::HalfTypes),
    }
}

impl Problem {
    /// What it computes and moves, over operands as they lie.
    pub(super) fn work(&self) -> Work {
        match self {
            Problem::Product(product) => Work::of_product(product),
            Problem::Convolution(call) => call.conv.work(),
            Problem::Attention(attention) => Work::of_attention(attention),
        }
    }

    /// Why there is none of a problem's schedules that has a program.
    pub(super) fn without_template(&self) -> MatchFailure {
        match self {
            Problem::Convolution(call) if !call.row_major => MatchFailure::ImageStrides,
            _ => MatchFailure::NoTemplate,
        }
    }
}
