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
//! One query alone (`decode`) fills no lanes. It is multiplied by each key as a row, and the products are added up. Where
//! several heads share keys, an instance has one query of each of them, so that keys and values are read once, and those that a
//! model repeats for that are read as they were before (`repeated_heads`).
//!
//! Where there are instructions for products of blocks, queries are rows and nothing is transposed (`rows`): of `bf16` on
//! processors that multiply pairs of numbers, whose keys and values are packed first (`vnni`), and on GPUs.
//!
//! Where there are few queries and heads, ranges of keys have instances of their own (`kv_splits`, `split_kv`).
//!
//! All of these are schedules (`contract/search_space.rs`), of which the cost model takes the likeliest; `template` has their kernels.
//!
//! Where a query sees only keys up to its own number, blocks beyond it are left out, and only the blocks on the diagonal
//! are masked. A query that sees no key gives 0, as libtorch's does.

mod blocks;
mod call;
mod decode;
#[cfg(test)]
mod gpu_tests;
mod kv_splits;
mod online;
mod program;
mod rows;
#[cfg(test)]
mod schedule_tests;
mod split_kv;
mod template;
#[cfg(test)]
mod tests;
mod vnni;
mod walk;

use tilefuse_block::Program;

use crate::block_kernel::{BlockKernel, BlockKernelKind, Coordinates, Tied};
use crate::contract::call_kernels::{OperandKernel, Template};
use crate::contract::price::Work;

pub(super) use blocks::{QueryBlocks, QueryMapping, Span, spans, tail};
pub(super) use call::{Attention, read};
pub(super) use kv_splits::written_bytes;
pub(super) use template::template;
pub(super) use vnni::{bytes as packed_bytes, is_valid as packs_kv};

/// The kernel of a program that computes the result of operands where they lie.
fn kernel(
    attention: &Attention,
    (program, coordinates): (Program, Vec<Coordinates>),
    grid: [u32; 3],
    schedule: String,
) -> BlockKernel {
    let operands = || attention.positions();
    let tied = operands().map(|source| Tied::Operand(source.position)).chain([Tied::Result(0)]).collect();
    BlockKernel {
        kind: BlockKernelKind::Attention,
        program,
        grid,
        tied,
        checks: false,
        neighbours_do_not_fit: false,
        coordinates,
        layouts: operands().map(|source| (source.position, source.layout.clone())).collect(),
        schedule,
        note: None,
        expected_us: 0.0,
    }
}

/// The template of a kernel, before which others run.
fn with(attention: &Attention, kernel: BlockKernel, operand_kernels: Vec<OperandKernel>) -> Template {
    let Work { flops, bytes, .. } = Work::of_attention(attention);
    Template {
        kernel,
        flops,
        bytes,
        shares: [1.0; 2],
        panels: None,
        operand_kernels,
        result_layout: None,
        repeated_heads: attention.repeated.clone(),
        shared_launch: 1.0,
    }
}

impl Work {
    /// That of attention whose operands are read as they lie.
    pub(super) fn of_attention(attention: &Attention) -> Work {
        let elements = attention.width as f64 + attention.depth as f64;
        let rows = attention.queries as f64 + attention.keys as f64;
        let members = attention.members().unwrap_or(1) as f64;
        let bytes = members * rows * elements * f64::from(attention.elem.bytes());
        Work::new(2.0 * attention.pairs() * elements, bytes)
    }
}
