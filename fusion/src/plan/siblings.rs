//! Sibling fusion: kernels that read the same large value and do not depend on each other, in one that reads it once.
//!
//! ```text
//! 0: kernel: %1 = reduce sum[1](%0); stores %1
//! 1: kernel: %2 = reduce max[1](%0); stores %2       ->     0: kernel: %1, %2; stores %1, %2
//! ```

use indexmap::IndexMap;

use super::cost::Cost;
use super::groups::{Groups, Rules, Unit};
use crate::graph::ValueRef;
use crate::kernel::Kernel;

/// The pass `sibling-fusion`: merges kernels that read the same large value and do not depend on each other.
pub(crate) fn sibling_fusion(groups: &mut Groups, rules: Rules<'_>) {
    let mut readers: IndexMap<ValueRef, Vec<usize>> = IndexMap::new();
    for (position, unit) in groups.units.iter().enumerate() {
        let Some(built) = unit.as_ref().and_then(Unit::generated) else { continue };
        for buffer in built.kernel.buffers.iter().filter(|b| !b.written) {
            readers.entry(buffer.value).or_default().push(position);
        }
    }
    for (value, units) in readers {
        let bytes = groups.graph.ty(value).bytes();
        for pair in units.windows(2) {
            let early = pair.iter().any(|&unit| is_early(groups, unit));
            if !early && is_worth_sharing(groups, bytes, pair[0], pair[1]) {
                groups.try_merge(pair[0], pair[1], rules);
            }
        }
    }
}

/// Whether a unit runs as soon as it can.
fn is_early(groups: &Groups, unit: usize) -> bool {
    groups.units[unit].iter().flat_map(|u| &u.nodes).any(|node| groups.early.nodes.contains(node))
}

/// Whether the shared bytes are a good part of what both kernels move, over domains of one size.
fn is_worth_sharing(groups: &Groups, bytes: u64, a: usize, b: usize) -> bool {
    let built = |u: usize| groups.units[u].as_ref().and_then(Unit::generated);
    let (Some(x), Some(y)) = (built(a), built(b)) else { return false };
    let moved = |c: &Cost| c.bytes_read + c.bytes_written;
    let points = |k: &Kernel| (k.parallel_points(), k.reduced_points());
    let alike = points(&x.kernel) == points(&y.kernel)
        || points(&x.kernel).0 * points(&x.kernel).1 == points(&y.kernel).0 * points(&y.kernel).1;
    alike && bytes * 4 >= moved(&x.cost).max(moved(&y.cost))
}
