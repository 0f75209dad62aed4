//! The share of a processor's rate that a schedule reaches by vectors: how quick its blocks are, and how much of what they compute counts.
//!
//! The number of threads that have work is left out, since results must not depend on it, but for what parts of a sum bring to so many.

use tilefuse_block::Elem;

use super::Priced;
use crate::contract::attention::{Attention, QueryBlocks, QueryMapping, tail};
use crate::contract::blocks::{self, Blocks, Form};
use crate::contract::conv::Conv;
use crate::contract::problem::{Problem, Task};
use crate::contract::product::Product;
use crate::contract::schedule::{Blocking, Schedule};
use crate::machine::HOST_PARTS;

/// The rate of sums of rows of products, in that of products of blocks, where they do not wait for the right operand.
const SUMS_RATE: f64 = 0.31;

/// What a row takes as a pixel of a convolution, in rows of blocks.
const PIXEL: f64 = 1.04;

/// The rates of vectors of pixels that follow each other, in that of vectors of filters, and of those of a phase.
const IN_PLACE_RATE: f64 = 0.9;
const PHASES_RATE: f64 = 0.4;

/// The rate of vectors of pixels that do not follow each other, in that of those that do, times the elements between them.
const STRIDED_RATE: f64 = 1.3;

/// What storing a sum takes beside which none of the vector is stored, in multiplications and additions.
const STORED_ALONE: f64 = 150.0;

/// Threads that blocks of queries are chosen for. Not the machine's: a plan must not depend on how many there are.
const THREADS: i64 = 4;

/// What an instance takes beside its queries, in queries: bringing them into place and storing the result.
const INSTANCE: f64 = 6.0;

/// What a step takes beside its keys, in keys: rescaling what was summed.
const STEP: f64 = 8.0;

/// What a query by itself takes, in vectors of queries: its products are added up across lanes.
const EACH: f64 = 0.28;

/// What queries take where they fill no two vectors: the sums of a row fill no registers.
const NARROW: f64 = 1.25;

/// Operations for each score beside its products, of queries as lanes and as rows, whose maxima and sums go across lanes: with rows, keys
/// and values of 256 elements together take as long as with lanes.
const LANES_SCORE: f64 = 20.0;
const ROWS_SCORE: f64 = 155.0;

/// A schedule with what it is expected to take; `None` of one that has no rate.
pub(super) fn priced(schedule: Schedule, task: &Task<'_>) -> Option<Priced> {
    let rate = match (&task.problem, &schedule.blocking) {
        (Problem::Product(product), Blocking::Product(blocks)) => of_blocks(product, blocks),
        (Problem::Product(product), Blocking::UnalignedGemm(rows)) => {
            blocks::rows_computed(product) as f64 / (PIXEL * rows.rows_computed() as f64)
        }
        (Problem::Convolution(call), Blocking::FilterVectors(vectors)) => {
            of_convolution(&call.conv, (1.0, vectors.useful()), !vectors.last)
        }
        (Problem::Convolution(call), Blocking::PixelVectors(block)) => {
            let stride = call.conv.axes.last().map_or(1, |axis| axis.stride);
            let rate = IN_PLACE_RATE * of_pixels(stride);
            of_convolution(&call.conv, (rate, block.useful(&call.conv)), false)
        }
        (Problem::Convolution(call), Blocking::Phases(phases)) => {
            let rate = PHASES_RATE * of_pixels(phases.stride());
            of_convolution(&call.conv, (rate, phases.useful(&call.conv)), true)
        }
        (Problem::Attention(attention), Blocking::Queries(blocks)) => {
            of_attention(attention, blocks, schedule.parts())
        }
        _ => return None,
    };
    // That less is computed for nothing ranks schedules; the rate of what is computed is the same. That of sums of rows is another one.
    let computed = if matches!(task.problem, Problem::Product(_)) { rate.min(1.0) } else { 1.0 };
    Some(Priced::by_rate(schedule, task, (rate, [computed, 1.0])))
}

/// Operations of a schedule beside its products, where these are not hidden behind them.
pub(super) fn ops(schedule: &Schedule, task: &Task<'_>) -> f64 {
    match (&task.problem, &schedule.blocking) {
        (Problem::Attention(attention), Blocking::Queries(blocks)) if blocks.warps.is_none() => {
            let score = if blocks.mapping == QueryMapping::Rows { ROWS_SCORE } else { LANES_SCORE };
            score * attention.pairs()
        }
        _ => 0.0,
    }
}

/// The rate of blocks of a product, in that of products of blocks.
fn of_blocks(product: &Product, blocks: &Blocks) -> f64 {
    if blocks.form == Form::Sums && !blocks::are_few(product.m) { SUMS_RATE } else { 1.0 }
}

/// The rate of a convolution, in that of vectors of filters all of which count and are stored together: by the rate of what it computes,
/// how much of that is in the result, and whether elements of that are stored one by one.
fn of_convolution(conv: &Conv, (rate, useful): (f64, f64), alone: bool) -> f64 {
    let [.., result] = conv.lengths();
    let storing = if alone { STORED_ALONE * result as f64 } else { 0.0 };
    let flops = conv.work().flops;
    flops / (flops / (rate * useful) + storing)
}

/// The rate of vectors of pixels so many elements apart, in that of those that follow each other.
fn of_pixels(stride: u64) -> f64 {
    if stride <= 1 { 1.0 } else { STRIDED_RATE / stride as f64 }
}

/// The rate of attention: of the pairs of a query and a key that all threads compute, those that count. Others are of lanes without a
/// query, of keys that a query does not see, and what queries, steps and instances take besides.
fn of_attention(attention: &Attention, blocks: &QueryBlocks, parts: u32) -> f64 {
    let threads = if parts > 1 { HOST_PARTS } else { THREADS };
    let members = attention.members().unwrap_or(i64::MAX);
    let down = blocks.mapping.blocks_of(attention, blocks.queries);
    let instances = down.saturating_mul(members).saturating_mul(parts.into());
    let rounds = (instances as f64 / threads as f64).ceil();
    let queries = queries_computed(attention, blocks) + INSTANCE;
    let keys = keys_computed(attention, blocks) / f64::from(parts);
    attention.pairs() / (threads as f64 * rounds * queries * keys)
}

/// What the queries of an instance take.
fn queries_computed(attention: &Attention, blocks: &QueryBlocks) -> f64 {
    let vector = if attention.elem == Elem::F64 { 8 } else { 16 };
    let all = f64::from(blocks.queries);
    match blocks.mapping {
        QueryMapping::Each => EACH * all * f64::from(vector),
        QueryMapping::Lanes if blocks.queries < 2 * vector => NARROW * all.max(vector.into()),
        QueryMapping::Lanes | QueryMapping::Rows => all,
    }
}

/// What an instance's keys take, of all parts together.
fn keys_computed(attention: &Attention, blocks: &QueryBlocks) -> f64 {
    let step = f64::from(blocks.keys) + STEP;
    if attention.causal {
        return blocks.causal_steps(attention) * step;
    }
    let (whole, rest) = (attention.keys / i64::from(blocks.keys), attention.keys % i64::from(blocks.keys));
    let rest = match blocks.mapping {
        _ if rest == 0 => 0.0,
        // Panels are filled up to whole ones.
        QueryMapping::Rows => step,
        QueryMapping::Each | QueryMapping::Lanes => f64::from(tail(rest)) + 2.0 * STEP,
    };
    whole as f64 * step + rest
}
