//! Blocks of products whose right operand lies in panels with interleaved rows, for the instructions of processors that
//! multiply neighbours along the common axis and add them up.
//!
//! A kernel reads both operands straight from memory where its blocks are whole: the panels are filled up with zeros, and the
//! last block of rows begins earlier. What is summed over is masked in the left operand alone, where it does not divide.

use tilefuse_block::Elem;

use super::blocks::{Blocks, Form, blocks_of};
use super::prepack::Panels;
use super::product::Product;
use super::target::Target;

/// Interleaved rows of `bf16`, and of 8-bit integers.
pub(super) const VNNI2: i64 = 2;
pub(super) const VNNI4: i64 = 4;

/// The fewest rows: fewer are sums over the weight as it lies.
const MIN_ROWS: i64 = 3;
/// Columns of the least block: those of a tile or of a vector of sums.
const LANES: u32 = 16;
/// Columns of other blocks, two tiles: the lines of a panel then follow each other in the order in which they are read.
const COLUMNS: i64 = 32;
/// Bytes of a row of a tile.
const ROW: u32 = 64;
/// The most steps of tiles in a block of the sum: the right operand of a block stays in the first cache.
const MAX_STEPS: u32 = 8;
/// What starting a block of the sum takes, in elements of the sum.
const STARTING: f64 = 64.0;
/// What an element of the sum takes where the left operand is masked and therefore copied, in the time of one that is not.
const COPIED: f64 = 2.0;
/// The most rows of a block: the sums stay in the second cache.
const MAX_ROWS: u32 = 256;
/// What an instance takes besides, in rows: reading its panel into the caches.
const INSTANCE_ROWS: f64 = 48.0;

/// Rows that are interleaved in panels for a product, where there are instructions for these.
pub(super) fn group(product: &Product, target: &Target<'_>) -> Option<i64> {
    let group = match product.elem {
        Elem::Bf16 if target.vnni2 => VNNI2,
        Elem::I8 if target.vnni4 => VNNI4,
        _ => return None,
    };
    (product.m >= MIN_ROWS).then_some(group)
}

/// Columns of a panel.
pub(super) fn width(product: &Product) -> i64 {
    if product.n > i64::from(LANES) { COLUMNS } else { LANES.into() }
}

/// What is summed over at a time. It settles the order of sums, and depends on nothing but the size of the sum.
pub(super) fn depth(product: &Product) -> u32 {
    let step = ROW / product.elem.bytes();
    let time = |depth: u32| {
        let copied = if product.k % i64::from(depth) == 0 { 1.0 } else { COPIED };
        blocks_of(product.k, depth) as f64 * (f64::from(depth) * copied + STARTING)
    };
    let candidates = (0..=MAX_STEPS.ilog2()).map(|n| step << n);
    candidates.min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(step)
}

/// The blocks of a product over panels, on so many threads.
pub(super) fn choose(product: &Product, threads: u32, panels: &Panels) -> Blocks {
    let columns = u32::try_from(panels.width).unwrap_or(LANES);
    let batch: i64 = product.batch.iter().product();
    let across = blocks_of(product.n, columns) * batch;
    let time = |rows: u32| {
        let down = blocks_of(product.m, rows);
        blocks_of(down * across, threads) as f64 * (f64::from(rows.max(LANES)) + INSTANCE_ROWS)
    };
    let fits = |rows: &u32| i64::from(*rows) <= product.m;
    let candidates = (1..=MAX_ROWS.ilog2()).map(|n| 1 << n).filter(fits);
    let rows = candidates.min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(2);
    Blocks { form: Form::Dots, rows, columns, depth: depth(product), grid: None }
}
