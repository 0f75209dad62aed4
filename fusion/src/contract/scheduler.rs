//! The scheduler of contractions: which kernels may compute a call on a machine.
//!
//! ```text
//! library form -> task (problem.rs, target.rs) -> valid schedules (search_space.rs) -> prices (price.rs) -> templates (pruning.rs)
//! ```

use super::call_kernels::Template;
use super::match_failure::MatchFailure;
use super::price::{self, Priced};
use super::problem::Task;
use super::pruning::prune;
use super::search_space;
use super::target::Target;
use crate::block_kernel::BlockKernel;
use crate::graph::{Graph, NodeId};
use crate::library_form::LibraryForm;

/// The kernels of a contraction or of attention, the most likely one first, or why there are none. Those of products pack operands in
/// at most so many bytes, and where they are `measured`, others are among them that may be as quick.
pub(super) fn templates(
    graph: &Graph,
    node: NodeId,
    form: &LibraryForm,
    target: Target<'_>,
    (measured, most_bytes): (bool, u64),
) -> Result<Vec<Template>, MatchFailure> {
    let task = Task::of(graph, node, form, target)?;
    let all = price::priced(search_space::valid(&task, most_bytes)?, &task);
    // Two are built on a GPU though none is measured: what an epilogue saves is not in the price of a schedule.
    let measured = measured || task.target.warpgroups.is_some();
    let built = prune(all, (measured, most_bytes), |priced: Priced| priced.template(&task));
    let mut all = built.map_err(|why| match why {
        MatchFailure::NoTemplate => task.problem.without_template(),
        why => why,
    })?;
    let kernels = all.iter_mut().flat_map(|Template { kernel, operand_kernels, .. }| {
        operand_kernels.iter_mut().map(|own| &mut own.kernel).chain([kernel])
    });
    for BlockKernel { program, grid, .. } in kernels {
        let instances = grid.iter().map(|&n| u64::from(n)).product();
        program.early = task.target.profile.machine.starts_early(instances);
    }
    Ok(all)
}
