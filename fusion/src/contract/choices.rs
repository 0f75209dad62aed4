//! The templates of a call: which kernels may compute it on a machine, and over operands that lie where they do.

use super::call_kernels::Template;
use super::declined::Declined;
use super::epilogue::column_vectors;
use super::host::Host;
use super::likeliest::likeliest;
use super::schedule::Schedule;
use super::{attention, conv, product, schedule, shared_launch, warpgroup};
use crate::block_kernel::BlockKernel;
use crate::graph::{Graph, NodeId};
use crate::library_form::{ContractionForm, LibraryForm};
use crate::machine::{Machine, Profile};
use crate::taken::taken;

/// The kernels of a contraction or of attention, the most likely one first, or why there are none; for a GPU where there is no
/// host. Those of products pack operands in at most so many bytes, and where they are `measured`, others are among them that may be
/// as quick.
pub(super) fn templates(
    graph: &Graph,
    node: NodeId,
    form: &LibraryForm,
    (profile, host): (&Profile, Option<Host>),
    limits: (bool, u64),
) -> Result<Vec<Template>, Declined> {
    let Some(host) = host else { return on_gpu(graph, node, form, (profile, limits.1)) };
    match form {
        LibraryForm::Contraction(form) if form.window.is_some() => {
            conv::on_host(graph, node, form, (profile, host), limits)
        }
        LibraryForm::Contraction(form) => {
            let product = product::of(graph, node, form)?;
            schedule::on_host(graph, node, &product, (profile, host), limits)
        }
        LibraryForm::Attention(form) => attention::on_host(graph, node, form, (profile, host), limits),
    }
}

/// The kernels of a contraction or of attention on a GPU, which start before their predecessors have ended where they have few
/// instances.
fn on_gpu(
    graph: &Graph,
    node: NodeId,
    form: &LibraryForm,
    (profile, most_bytes): (&Profile, u64),
) -> Result<Vec<Template>, Declined> {
    let mut all = by_warpgroups(graph, node, form, (profile, most_bytes))?;
    let kernels = all.iter_mut().flat_map(|Template { kernel, operand_kernels, .. }| {
        operand_kernels.iter_mut().map(|own| &mut own.kernel).chain([kernel])
    });
    for BlockKernel { program, grid, .. } in kernels {
        program.early = profile.machine.starts_early(grid.iter().map(|&n| u64::from(n)).product());
    }
    Ok(all)
}

/// The kernels of a contraction or of attention on a GPU that multiplies by warpgroups.
fn by_warpgroups(
    graph: &Graph,
    node: NodeId,
    form: &LibraryForm,
    (profile, most_bytes): (&Profile, u64),
) -> Result<Vec<Template>, Declined> {
    let Machine::Gpu { processors, .. } = profile.machine else { return Err(Declined::Device) };
    if profile.products.generated <= 0.0 {
        return Err(Declined::Device);
    }
    let form = match form {
        LibraryForm::Attention(form) => {
            return attention::on_gpu(graph, node, form, (profile, processors), (true, most_bytes));
        }
        LibraryForm::Contraction(form) => form,
    };
    let (product, result_layout) = match form.window {
        Some(_) => conv::as_product(graph, node, form).map(|(product, layout)| (product, Some(layout)))?,
        None => (product::of(graph, node, form)?, None),
    };
    let product = warpgroup::in_memory(graph, node, product);
    let vectors = column_vectors(graph, node, product.n);
    let unaligned = has_unaligned_rows(graph, node, form);
    let slow = profile.products.unaligned / profile.products.aligned;
    let all = warpgroup::schedules(&product, (profile, processors), vectors, most_bytes)?;
    let columns = shared_launch::columns(graph, node, &product);
    let shared = (!columns.is_empty() && !unaligned)
        .then(|| warpgroup::shared_launch(&product, &columns, (profile, processors), vectors))
        .flatten();
    if let Some((schedule, left)) = shared {
        taken!("shared launch");
        // The same blocks for all of them, whichever is measured to be quicker alone.
        let template = schedule.template(graph, node, &product).ok_or(Declined::Sizes)?;
        return Ok(vec![Template { shared_launch: left, ..template }]);
    }
    // Two are built though none is measured: what an epilogue saves is not in the price of a schedule.
    likeliest(all, (true, most_bytes), |mut schedule: Schedule| {
        if unaligned {
            schedule.shares[1] = schedule.shares[1].min(slow);
        }
        let template = schedule.template(graph, node, &product)?;
        Some(Template { result_layout: result_layout.clone(), ..template })
    })
}

/// Whether rows of a product begin at no multiples of 16 bytes: libtorch's library takes a kernel several times slower for them on
/// a GPU.
pub(super) fn has_unaligned_rows(graph: &Graph, node: NodeId, form: &ContractionForm) -> bool {
    let ty = graph.ty(node.into());
    let bytes = ty.dtype.elem().map_or(0, |elem| i64::from(elem.bytes()));
    form.window.is_none() && ty.shape.last().is_some_and(|columns| columns * bytes % 16 != 0)
}
