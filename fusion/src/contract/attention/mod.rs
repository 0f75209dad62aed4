//! Attention as block programs.
//!
//! An instance has a block of queries of one head. It goes through blocks of keys with the maximum of the scores so far,
//! the sum of their exponentials below it, and the sum of values that these weigh; where the maximum grows, both sums
//! are scaled down (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
//! "FlashAttention", 2022). Scores are never in memory, and the result is divided by the sum once, at the end.
//!
//! ```text
//! for %j in 0..KEYS step BLOCK with (%max = -inf, %sum = 0, %out = 0) {
//!   %s = dot %k[j..], %qt, 0                 [BLOCK, QUERIES]: keys are left operands and read where they lie
//!   %new = max(%max, max of %s along keys)   [QUERIES]
//!   %p = exp(%s - %new)
//!   %scale = exp(%max - %new)
//!   yield %new, %sum * %scale + sum of %p along keys, dot %v[j..]ᵀ, %p, %out * %scale
//! }
//! store %y, (%out / %sum)ᵀ
//! ```
//!
//! Everything is transposed: queries are the lanes of vectors, so that the maximum and the sum of scores need no
//! combination of lanes, the queries are brought into place once for an instance, and keys and values, the left operands,
//! never.
//!
//! One query alone (`single`) fills no lanes. It is multiplied by each key as a row, and the products are added up. Where
//! several heads share keys, an instance has one query of each of them, so that keys and values are read once; `grouped`
//! finds keys and values that a model repeats for that.
//!
//! Where there are few queries and heads, ranges of keys have instances of their own (`ranges`).
//!
//! Where a query sees only keys up to its own number, blocks beyond it are left out, and only the blocks on the diagonal
//! are masked. A query that sees no key gives 0, as libtorch's does.

mod blocks;
mod call;
mod grouped;
mod make;
mod program;
mod ranges;
mod single;
#[cfg(test)]
mod tests;

use crate::contract::{Laid, Template};
use crate::custom::{CustomKernel, Tied};
use crate::graph::{AtenCall, Graph, NodeId};

use blocks::{Blocks, blocks_of};
pub(super) use grouped::group;

/// The template of a call of attention on so many threads.
pub(super) fn template(graph: &Graph, node: NodeId, call: &AtenCall, threads: u32) -> Option<Template> {
    let attention = call::read(graph, node, call)?;
    let blocks = Blocks::of(&attention, threads)?;
    let members = u32::try_from(attention.members()?).ok()?;
    let instances = u32::try_from(blocks_of(attention.queries, blocks.queries)).ok()?;
    let program = match blocks.alone {
        true => single::write(&attention, &blocks),
        false => program::write(&attention, &blocks),
    };
    let program = program.ok()?;
    let (width, depth) = (attention.width as f64, attention.depth as f64);
    let rows = attention.queries as f64 + attention.keys as f64;
    let template = |kernel: CustomKernel, laid: Vec<Laid>| Template {
        kernel,
        flops: 2.0 * attention.pairs() * (width + depth),
        bytes: f64::from(members) * rows * (width + depth) * f64::from(attention.elem.bytes()),
        panels: None,
        laid,
        turned: None,
    };
    if let Some(ranges) = blocks.ranges {
        let grid = [ranges.count, instances, members];
        let parts = ranges::parts(&attention, ranges, (program, grid), graph.ty(node.into()).device)?;
        let position = u16::try_from(graph.operands(node).len()).ok()?;
        return Some(template(ranges::combining(&attention, &blocks, ranges, position)?, vec![parts]));
    }
    let operands = || attention.positions();
    let tied = operands().map(|source| Tied::Operand(source.position)).chain([Tied::Result(0)]).collect();
    let kernel = CustomKernel {
        program,
        grid: [instances, members, 1],
        tied,
        checks: false,
        // Its operands are read once for each block of queries, and its result is not row-major.
        alone: true,
        coordinates: Vec::new(),
        layouts: operands().map(|source| (source.position, source.layout.clone())).collect(),
        note: None,
    };
    Some(template(kernel, Vec::new()))
}
