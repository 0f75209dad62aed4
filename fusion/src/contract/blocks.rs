//! The blocks of a product: what one instance computes.

use tilefuse_block::Elem;

use super::product::Product;

/// How a product is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// How an instance computes its block.
    pub(super) form: Form,
    /// Rows of a block, a power of two as the other extents are.
    pub(super) rows: u32,
    /// Columns of a block.
    pub(super) columns: u32,
    /// What is summed over at a time.
    pub(super) depth: u32,
    /// How instances run on a GPU.
    pub(super) grid: Option<Grid>,
}

/// How instances run on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Warps of an instance.
    pub(super) warps: u32,
    /// Steps of the sum whose operands are under way together.
    pub(super) stages: u32,
    /// Blocks of rows that instances run down before they go on to the next columns.
    pub(super) group: u32,
}

/// How an instance computes its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Each element as the sum of a row of products: the right operand is read once, from memory.
    Sums,
    /// By products of blocks, of operands that were brought next to each other.
    Dots,
}

/// What is summed over at a time on a GPU: a line of 128 bytes.
pub(super) const LINE_DEPTH: u32 = 64;

/// The most rows for which the right operand is streamed: reading it is then what takes time.
const MAX_STREAMED_ROWS: i64 = 2;

/// What bringing a part of the right operand into place takes, in rows of the product; it is in place in panels.
const PACKING_ROWS: f64 = 12.0;

/// The time of blocks half as wide as registers allow, in the time of those, for each element.
const NARROW: f64 = 1.05;

/// Rows of a block whose sums stay in the first cache beside what they are made of; where the right operand is to be
/// brought into place, more rows are worth more.
const PANEL_ROWS: u32 = 128;

/// Rows of a block that reads a panel often enough.
const SMALL: u32 = 32;

/// What an instance takes besides, in rows of the product.
const INSTANCE_ROWS: f64 = 4.0;

/// What starting a block of the sum takes, in elements of the sum.
const STARTING: f64 = 8.0;

/// Instances per thread that even out differences between threads.
const SHARES: i64 = 3;

/// Whether so few rows wait for the right operand, however they are computed.
pub(super) fn are_few(rows: i64) -> bool {
    rows <= MAX_STREAMED_ROWS
}

/// Rows that blocks over panels compute, those behind the last one too: of blocks of so many rows, whatever the number of
/// threads makes of them, since what decides on it settles the order of sums.
pub(super) fn rows_computed(product: &Product) -> i64 {
    blocks_of(product.m, SMALL) * i64::from(SMALL)
}

/// Whether several rows of the right operand are read at a time.
pub(super) fn streams(product: &Product) -> bool {
    are_few(product.m) && product.b.matrix[0] == 1
}

/// Columns of a block of many rows: as many as a block of registers is wide, or half of that where fewer are then
/// computed for nothing.
pub(super) fn columns(product: &Product) -> u32 {
    let widest = if product.elem == Elem::F64 { 32 } else { 64 };
    let time = |width: u32| {
        let factor = if width == widest { 1.0 } else { NARROW };
        blocks_of(product.n, width) as f64 * f64::from(width) * factor
    };
    let narrower = if time(widest / 2) < time(widest) { widest / 2 } else { widest };
    narrower.min(covering(product.n))
}

/// The least power of two that is not less.
pub(super) fn covering(n: i64) -> u32 {
    u32::try_from(n.max(1)).ok().and_then(u32::checked_next_power_of_two).unwrap_or(1 << 31)
}

/// How many blocks cover an extent.
pub(super) fn blocks_of(extent: i64, block: u32) -> i64 {
    extent.div_euclid(i64::from(block)) + i64::from(extent.rem_euclid(i64::from(block)) != 0)
}

/// The blocks of a product on so many threads as sums of rows: wide enough to read long pieces of memory, narrow enough for every thread
/// to have some.
pub(super) fn sums(product: &Product, threads: u32) -> Blocks {
    let batch: i64 = product.batch.iter().product();
    let along_depth = product.b.matrix[0] == 1;
    let enough = i64::from(threads) * SHARES;
    let (least, most) = if along_depth { (1, 64) } else { (64, 256) };
    let mut columns = most.min(covering(product.n));
    while columns > least && blocks_of(product.n, columns) * batch < enough {
        columns /= 2;
    }
    let rows = covering(product.m);
    // The order of sums does not depend on the threads.
    let widest = most.min(covering(product.n));
    let depth = covering(product.k).min((1 << 20) / (rows * widest).max(1)).min(1 << 14);
    Blocks { form: Form::Sums, rows, columns, depth, grid: None }
}

/// The blocks of a product on so many threads as products of blocks; `panels` says whether the right operand lies in panels of its
/// columns.
pub(super) fn dots(product: &Product, threads: u32, panels: bool) -> Blocks {
    let wide = if product.elem == Elem::F64 { 2 } else { 1 };
    let columns = columns(product);
    let most = if panels { PANEL_ROWS } else { 256 };
    let before = if panels { INSTANCE_ROWS } else { PACKING_ROWS };
    let batch: i64 = product.batch.iter().product();
    let across = blocks_of(product.n, columns) * batch;
    let time = |rows: u32| {
        let down = blocks_of(product.m, rows);
        let rounds = blocks_of(down * across, threads) as f64;
        rounds * (f64::from(rows) + before)
    };
    let candidates = [4, 8, 16, 32, 64, 128, 256].into_iter().filter(|&r| r <= covering(product.m).min(most));
    let rows = candidates.min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(4);
    let time = |depth: u32| blocks_of(product.k, depth) as f64 * (f64::from(depth) + STARTING);
    let candidates =
        [8, 16, 32, 64, 128].into_iter().filter(|&d| d <= 128 / wide && d <= covering(product.k));
    let depth = candidates.min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(8);
    Blocks { form: Form::Dots, rows, columns, depth, grid: None }
}

/// The grid: columns, rows, members of the batch. On a GPU all of them are numbered along the first axis, the only one along which
/// there may be more than 65,535.
pub(super) fn grid(product: &Product, blocks: &Blocks) -> Option<[u32; 3]> {
    let size = |n: i64| i32::try_from(n).ok().map(i32::unsigned_abs);
    let batch = product.batch.iter().try_fold(1i64, |all, &n| all.checked_mul(n))?;
    let (columns, rows) = (blocks_of(product.n, blocks.columns), blocks_of(product.m, blocks.rows));
    if blocks.grid.is_some() {
        return Some([size(columns.checked_mul(rows)?.checked_mul(batch)?)?, 1, 1]);
    }
    Some([size(columns)?, size(rows)?, size(batch)?])
}
