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
//! `online.rs` has that step, and `walk.rs` the loops, which all programs share.
//!
//! Everything is transposed: queries are the lanes of vectors, so that the maximum and the sum of scores need no
//! combination of lanes, the queries are brought into place once for an instance, and keys and values, the left operands,
//! never.
//!
//! One query alone (`single`) fills no lanes. It is multiplied by each key as a row, and the products are added up. Where
//! several heads share keys, an instance has one query of each of them, so that keys and values are read once, and those that a
//! model repeats for that are read as they were before (`repeated_heads`).
//!
//! Where there are instructions for products of blocks, queries are rows and nothing is transposed (`rows`): of `bf16` on
//! processors that multiply pairs of numbers, whose keys and values are packed first (`vnni`), and on GPUs (`warpgroup`).
//!
//! Where there are few queries and heads, ranges of keys have instances of their own (`ranges`, `split_kv`).
//!
//! Where a query sees only keys up to its own number, blocks beyond it are left out, and only the blocks on the diagonal
//! are masked. A query that sees no key gives 0, as libtorch's does.

mod blocks;
mod call;
mod decode;
mod online;
mod program;
mod ranges;
mod rows;
#[cfg(test)]
mod schedule_tests;
mod split_kv;
#[cfg(test)]
mod tests;
mod vnni;
mod walk;
mod warpgroup;

use tilefuse_block::Program;

use crate::block_kernel::{Alone, BlockKernel, BlockKernelKind, Tied};
use crate::contract::blocks::blocks_of;
use crate::contract::call_kernels::{OperandKernel, Template};
use crate::contract::declined::Declined;
use crate::contract::host::Host;
use crate::graph::{Graph, NodeId};
use crate::library_form::AttentionForm;

use blocks::Blocks;
use call::Attention;

/// Threads that blocks of queries are chosen for. Not the machine's: sums in other blocks may be rounded otherwise.
const THREADS: u32 = 4;

/// The templates of attention.
pub(super) fn templates(
    graph: &Graph,
    node: NodeId,
    form: &AttentionForm,
    host: Host,
) -> Result<Vec<Template>, Declined> {
    let attention = call::read(graph, node, form)?;
    let as_it_lies = template(graph, node, &attention, THREADS);
    let ranged = as_it_lies.as_ref().is_some_and(|template| !template.operand_kernels.is_empty());
    let paired = if host.pairs && !ranged { in_pairs(graph, node, &attention, THREADS) } else { None };
    Ok(as_it_lies.into_iter().chain(paired).collect())
}

/// The templates of attention on a GPU of so many multiprocessors that multiply by warpgroups.
pub(super) fn on_gpu(
    graph: &Graph,
    node: NodeId,
    form: &AttentionForm,
    processors: u32,
) -> Result<Vec<Template>, Declined> {
    let attention = call::read(graph, node, form)?;
    let members = attention.members().and_then(|members| u32::try_from(members).ok());
    let members = members.filter(|&members| members <= MAX_MEMBERS).ok_or(Declined::Sizes)?;
    let all = warpgroup::blocks(&attention, processors)?.into_iter().filter_map(|of| {
        let instances = u32::try_from(blocks_of(attention.queries, of.blocks.queries)).ok()?;
        let mut program = rows::write(&attention, &of.blocks, None).ok()?;
        program.warps = of.warps;
        let schedule = format!("{}, {} warps", of.blocks.schedule(&attention), of.warps);
        let kernel = kernel(&attention, program, [instances, members, 1], schedule);
        Some(Template { shares: of.shares, ..with(&attention, kernel, Vec::new()) })
    });
    Ok(all.collect())
}

/// The most instances along the second axis of a GPU's grid.
const MAX_MEMBERS: u32 = 65_535;

/// The template that reads keys and values where they lie.
fn template(graph: &Graph, node: NodeId, attention: &Attention, threads: u32) -> Option<Template> {
    let blocks = Blocks::of(attention, threads)?;
    let members = u32::try_from(attention.members()?).ok()?;
    let instances = u32::try_from(blocks_of(attention.queries, blocks.queries)).ok()?;
    let program = match blocks.alone {
        true => decode::write(attention, &blocks),
        false => program::write(attention, &blocks),
    };
    let program = program.ok()?;
    let Some(ranges) = blocks.ranges else {
        let schedule = blocks.schedule(attention);
        let kernel = kernel(attention, program, [instances, members, 1], schedule);
        return Some(with(attention, kernel, Vec::new()));
    };
    let grid = [ranges.count, instances, members];
    let schedule = format!("split-KV in {} parts, {}", ranges.count, blocks.schedule(attention));
    let parts = split_kv::parts(attention, ranges, (program, grid), graph.ty(node.into()).device, schedule)?;
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    Some(with(attention, split_kv::combining(attention, &blocks, ranges, position)?, vec![parts]))
}

/// The template that packs keys and values in pairs.
fn in_pairs(graph: &Graph, node: NodeId, attention: &Attention, threads: u32) -> Option<Template> {
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    let paired = vnni::of(attention, position, graph.ty(node.into()).device, threads)?;
    let members = u32::try_from(attention.members()?).ok()?;
    let schedule = "online softmax, keys and values in VNNI-2 layout".to_owned();
    let mut kernel = kernel(&paired.attention, paired.program, [paired.instances, members, 1], schedule);
    // What was packed stays where it lies.
    let unread = [&attention.k.source, &attention.v.source];
    kernel.layouts.extend(unread.map(|source| (source.position, source.layout.clone())));
    Some(with(attention, kernel, Vec::from(paired.operand_kernels)))
}

/// The kernel of a program that computes the result of operands where they lie.
fn kernel(attention: &Attention, program: Program, grid: [u32; 3], schedule: String) -> BlockKernel {
    let operands = || attention.positions();
    let tied = operands().map(|source| Tied::Operand(source.position)).chain([Tied::Result(0)]).collect();
    BlockKernel {
        kind: BlockKernelKind::Attention,
        program,
        grid,
        tied,
        checks: false,
        alone: Some(Alone::Attention),
        coordinates: Vec::new(),
        layouts: operands().map(|source| (source.position, source.layout.clone())).collect(),
        schedule,
        note: None,
        expected_us: 0.0,
    }
}

/// The template of a kernel, before which others run.
fn with(attention: &Attention, kernel: BlockKernel, operand_kernels: Vec<OperandKernel>) -> Template {
    let (width, depth) = (attention.width as f64, attention.depth as f64);
    let rows = attention.queries as f64 + attention.keys as f64;
    let members = attention.members().unwrap_or(1) as f64;
    Template {
        kernel,
        flops: 2.0 * attention.pairs() * (width + depth),
        bytes: members * rows * (width + depth) * f64::from(attention.elem.bytes()),
        shares: [1.0; 2],
        panels: None,
        operand_kernels,
        result_layout: None,
        repeated_heads: attention.repeated.clone(),
    }
}
