//! The templates of a call: which kernels may compute it on a machine, and over operands that lie where they do.

use super::call_kernels::Template;
use super::epilogue::column_vectors;
use super::host::Host;
use super::match_failure::MatchFailure;
use super::pruning::prune;
use super::schedule::Schedule;
use super::warpgroup::Gpu;
use super::{attention, conv, product, schedule, shared_launch, warpgroup};
use crate::block_kernel::BlockKernel;
use crate::graph::{Graph, NodeId};
use crate::library_form::{AttentionForm, ContractionForm, LibraryForm};
use crate::machine::{Machine, Profile};
use crate::taken::taken;

/// A call that is asked for kernels.
#[derive(Clone, Copy)]
struct Request<'a> {
    graph: &'a Graph,
    node: NodeId,
    profile: &'a Profile,
    host: Option<Host>,
    /// Whether candidates are measured, and the most bytes of packed operands and partial sums.
    limits: (bool, u64),
}

/// Kernels for calls of a kind; none on a machine that does not have what computes them.
type Templates<F> = fn(Request<'_>, &F) -> Option<Result<Vec<Template>, MatchFailure>>;

/// The kernels of contractions.
const CONTRACTIONS: [Templates<ContractionForm>; 3] = [
    |request, form| {
        let host = request.host.filter(|_| form.window.is_none())?;
        Some(product::of(request.graph, request.node, form).and_then(|product| {
            let Request { graph, node, profile, limits, .. } = request;
            schedule::on_host(graph, node, &product, (profile, host), limits)
        }))
    },
    |Request { graph, node, profile, host, limits }, form| {
        let host = host.filter(|_| form.window.is_some())?;
        Some(conv::on_host(graph, node, form, (profile, host), limits))
    },
    |request, form| Some(by_warpgroups(request, form, gpu(request.profile)?)),
];

/// The kernels of attention.
const ATTENTION: [Templates<AttentionForm>; 2] = [
    |Request { graph, node, profile, host, limits }, form| {
        Some(attention::on_host(graph, node, form, (profile, host?), limits))
    },
    |Request { graph, node, profile, limits: (_, most_bytes), .. }, form| {
        Some(attention::on_gpu(graph, node, form, gpu(profile)?, (true, most_bytes)))
    },
];

/// The multiprocessors of a machine, where they multiply by warpgroups.
fn gpu(profile: &Profile) -> Option<Gpu<'_>> {
    let Machine::Gpu { processors, .. } = profile.machine else { return None };
    Some((profile, processors, profile.warpgroups()?))
}

/// The kernels of a contraction or of attention, the most likely one first, or why there are none. Those of products pack operands in
/// at most so many bytes, and where they are `measured`, others are among them that may be as quick.
pub(super) fn templates(
    graph: &Graph,
    node: NodeId,
    form: &LibraryForm,
    (profile, host): (&Profile, Option<Host>),
    limits: (bool, u64),
) -> Result<Vec<Template>, MatchFailure> {
    let request = Request { graph, node, profile, host, limits };
    let found = match form {
        LibraryForm::Contraction(form) => CONTRACTIONS.iter().find_map(|templates| templates(request, form)),
        LibraryForm::Attention(form) => ATTENTION.iter().find_map(|templates| templates(request, form)),
    };
    let mut all = found.unwrap_or(Err(MatchFailure::Device))?;
    let kernels = all.iter_mut().flat_map(|Template { kernel, operand_kernels, .. }| {
        operand_kernels.iter_mut().map(|own| &mut own.kernel).chain([kernel])
    });
    for BlockKernel { program, grid, .. } in kernels {
        program.early = profile.machine.starts_early(grid.iter().map(|&n| u64::from(n)).product());
    }
    Ok(all)
}

/// The kernels of a contraction on a GPU that multiplies by warpgroups.
fn by_warpgroups(
    Request { graph, node, profile, limits: (_, most_bytes), .. }: Request<'_>,
    form: &ContractionForm,
    gpu: Gpu<'_>,
) -> Result<Vec<Template>, MatchFailure> {
    warpgroup::check_type(graph, node)?;
    let (product, result_layout) = match form.window {
        Some(_) => conv::as_product(graph, node, form).map(|(product, layout)| (product, Some(layout)))?,
        None => (product::of(graph, node, form)?, None),
    };
    let product = warpgroup::in_memory(graph, node, product);
    let vectors = column_vectors(graph, node, product.n);
    let unaligned = has_unaligned_rows(graph, node, form);
    let slow = profile.products.unaligned / profile.products.aligned;
    let all = warpgroup::schedules(&product, gpu, vectors, most_bytes).map_err(|why| match why {
        MatchFailure::Strides if form.window.is_some() => MatchFailure::ImageStrides,
        why => why,
    })?;
    let columns = shared_launch::columns(graph, node, &product);
    let shared = (!columns.is_empty() && !unaligned)
        .then(|| warpgroup::shared_launch(&product, &columns, gpu, vectors))
        .flatten();
    if let Some((schedule, left)) = shared {
        taken!("shared launch");
        // The same blocks for all of them, whichever is measured to be quicker alone.
        let template = schedule.template(graph, node, &product).ok_or(MatchFailure::NoTemplate)?;
        return Ok(vec![Template { shared_launch: left, ..template }]);
    }
    // Two are built though none is measured: what an epilogue saves is not in the price of a schedule.
    prune(all, (true, most_bytes), |mut schedule: Schedule| {
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
