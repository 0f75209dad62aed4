//! The blocks of products on a GPU whose multiprocessors multiply by warpgroups (`wgmma`).
//!
//! An instance holds the sums of a block in the registers of its warps, and copies both operands to shared memory some steps
//! ahead. Larger blocks read less for each product; smaller ones leave fewer multiprocessors without work.
//!
//! ```text
//! [8192,768] x [768,3072]     768 blocks of 128 x 256 on 132 multiprocessors: 6 rounds, of which 97 % are work
//! [1024,3072] x [3072,768]    24 of these would be one round with work for 18 %: 96 of 64 x 128
//! ```

use tilefuse_block::Elem;

use super::blocks::{Blocks, Form, Grid, blocks_of};
use super::declined::Declined;
use super::operand;
use super::product::{Access, Product};
use super::windows::Windows;
use crate::graph::{Graph, NodeId};

/// Blocks that are tried. What is measured is of an H100.
const SHAPES: [Shape; 7] = [
    Shape { rows: 128, columns: 256, warps: 8, stages: 4, rate: 1.0, filling: 320 },
    Shape { rows: 128, columns: 128, warps: 8, stages: 6, rate: 0.88, filling: 400 },
    Shape { rows: 64, columns: 128, warps: 4, stages: 4, rate: 0.64, filling: 240 },
    Shape { rows: 128, columns: 64, warps: 8, stages: 4, rate: 0.5, filling: 240 },
    Shape { rows: 64, columns: 64, warps: 4, stages: 4, rate: 0.4, filling: 160 },
    // So deep that one instance has a multiprocessor for itself.
    Shape { rows: 64, columns: 128, warps: 4, stages: 8, rate: 0.6, filling: 240 },
    Shape { rows: 64, columns: 64, warps: 4, stages: 8, rate: 0.41, filling: 500 },
];

/// A block, and who computes it.
#[derive(Clone, Copy)]
struct Shape {
    rows: u32,
    columns: u32,
    warps: u32,
    stages: u32,
    /// Share of the rate of libtorch's products that multiprocessors full of such blocks reach.
    rate: f64,
    /// What filling the stages and storing the sums takes, in steps of the sum.
    filling: i64,
}

impl Shape {
    /// Registers of a thread: its sums, and of the vectors along the columns, of which it has a quarter of the elements, what is
    /// computed before it is used.
    fn registers(&self, vectors: u32) -> u32 {
        self.rows * self.columns / (32 * self.warps) + vectors * self.columns / 4 * 3 / 4
    }
}

/// The most registers that sums and vectors may take.
const REGISTERS: u32 = 239;

/// What a step of the sum takes at least where four of them are under way, until its operands are there, in elements of a block at
/// the full rate; less where more are.
const LATENCY: f64 = 20_000.0;

/// What is summed over at a time: a line of 128 bytes.
const DEPTH: u32 = 64;

/// Blocks of rows that instances at work take together, so that they read few blocks of either operand.
const GROUP: u32 = 8;

/// The least columns and depth: what one copy moves.
const MIN_EXTENT: i64 = COPIED;

/// Elements that one copy to shared memory moves.
const COPIED: i64 = 8;

/// What filling and storing takes libtorch's products, which store one block while they multiply for the next.
const LIBRARY_FILLING: i64 = 160;

/// Blocks that are expected to take this much longer than the best may be the quickest.
const MAX_PREDICTED_SLOWDOWN: f64 = 1.25;

/// The most that are tried.
const MAX_CANDIDATES: usize = 2;

/// The blocks of a product on so many multiprocessors, the likeliest first, each with the shares of the rate of large products that
/// it and libtorch's product reach.
/// Of the vectors that the epilogue reads, each instance holds its columns' elements.
pub(super) fn blocks(
    product: &Product,
    processors: u32,
    vectors: u32,
) -> Result<Vec<(Blocks, [f64; 2])>, Declined> {
    if !matches!(product.elem, Elem::F16 | Elem::Bf16) {
        return Err(Declined::ElementTypes);
    }
    let Product { m, n, k, .. } = *product;
    if n.min(k) < MIN_EXTENT {
        return Err(Declined::Sizes);
    }
    if !is_copied(&product.a, product.windows.as_ref()) || !is_copied(&product.b, None) {
        return Err(Declined::Strides);
    }
    if product.windows.as_ref().is_some_and(|windows| windows.channels % i64::from(DEPTH) != 0) {
        return Err(Declined::Sizes);
    }
    let batch: i64 = product.batch.iter().product();
    // What a multiprocessor takes, in elements of a block by steps of the sum.
    let elements = |shape: &Shape| {
        let (down, across) = (blocks_of(m, shape.rows), blocks_of(n, shape.columns));
        let rounds = blocks_of(down.saturating_mul(across).saturating_mul(batch), processors.max(1));
        rounds as f64 * f64::from(shape.rows * shape.columns)
    };
    let cost = |shape: &Shape| {
        let step = (elements(shape) / shape.rate).max(4.0 * LATENCY / f64::from(shape.stages));
        step * k.saturating_add(shape.filling) as f64
    };
    let library = SHAPES.iter().map(elements).fold(f64::INFINITY, f64::min);
    let library = library * k.saturating_add(LIBRARY_FILLING) as f64;
    let fitting = SHAPES.iter().filter(|shape| shape.registers(vectors) <= REGISTERS);
    let mut costs: Vec<(f64, &Shape)> = fitting.map(|shape| (cost(shape), shape)).collect();
    if costs.is_empty() {
        return Err(Declined::Sizes);
    }
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = costs.first().map_or(0.0, |best| best.0);
    let work = batch as f64 * m as f64 * n as f64 * k as f64 / f64::from(processors.max(1));
    let near = costs
        .into_iter()
        .take_while(|(cost, _)| *cost <= MAX_PREDICTED_SLOWDOWN * least)
        .take(MAX_CANDIDATES);
    let blocks = near.map(|(cost, shape)| {
        let grid = Grid { warps: shape.warps, stages: shape.stages, group: GROUP };
        let (rows, columns) = (shape.rows, shape.columns);
        (
            Blocks { form: Form::Dots, rows, columns, depth: DEPTH, grid: Some(grid) },
            [work / cost, work / library],
        )
    });
    Ok(blocks.collect())
}

/// Whether rows or columns of an operand are copied to shared memory in pieces of 16 bytes.
pub(super) fn is_copied(access: &Access, windows: Option<&Windows>) -> bool {
    let whole = |stride: &i64| stride % COPIED == 0;
    let lines = match (windows, access.matrix) {
        (Some(windows), _) => windows.is_multiple_of(COPIED),
        (None, [1, other] | [other, 1]) => whole(&other),
        _ => false,
    };
    lines && access.batch.iter().all(whole) && whole(&access.source.offset)
}

/// A product whose operands are read from memory: what neighbours compute could not be copied to shared memory ahead.
pub(super) fn in_memory(graph: &Graph, node: NodeId, mut product: Product) -> Product {
    let operands = graph.operands(node);
    for access in [&mut product.a, &mut product.b] {
        if let Some(&value) = operands.get(usize::from(access.source.position)) {
            let held = operand::in_memory(graph, value, access.source.position);
            (access.source.layout, access.source.span) = (held.layout, held.span);
        }
    }
    product
}
