//! The blocks of products on a GPU whose multiprocessors multiply by warpgroups (`wgmma`).
//!
//! An instance holds the sums of a block in the registers of its warps, and copies both operands to shared memory some steps
//! ahead. Larger blocks read less for each product; smaller ones leave fewer multiprocessors without work.
//!
//! Where four warps compute an instance, one group of them multiplies while another one stores its results (ping-pong): of an instance
//! the loop or the rest is hidden, whichever is shorter.
//!
//! Sums are divided where there are too few blocks for all of them (`split_k.rs`).
//!
//! ```text
//! [8192,768] x [768,3072]     1536 blocks of 128 x 128 on 132 multiprocessors: 12 rounds, of which 97 % are work
//! [1024,3072] x [3072,768]    24 of these would be one round with work for 18 %: 96 of 64 x 128
//! [64,3072] x [3072,768]      6 blocks of 64 x 128: 96 of 16 parts of the sum
//! ```

use tilefuse_block::Elem;

use super::blocks::{Blocks, Form, Grid, blocks_of};
use super::declined::Declined;
use super::likeliest::Priced;
use super::operand;
use super::product::{Access, Product};
use super::schedule::{Reading, Schedule};
use super::windows::Windows;
use crate::graph::{Graph, NodeId};
use crate::machine::Profile;

/// Blocks that are tried. What is measured is of an H100.
const SHAPES: [Shape; 8] = [
    Shape { rows: 128, columns: 256, warps: 8, stages: 4, groups: 1, rate: 1.0, filling: 320 },
    Shape { rows: 128, columns: 128, warps: 8, stages: 6, groups: 1, rate: 0.88, filling: 400 },
    Shape { rows: 128, columns: 128, warps: 4, stages: 6, groups: 2, rate: 0.95, filling: 560 },
    Shape { rows: 128, columns: 64, warps: 8, stages: 4, groups: 1, rate: 0.5, filling: 240 },
    Shape { rows: 256, columns: 64, warps: 4, stages: 4, groups: 2, rate: 0.6, filling: 300 },
    Shape { rows: 64, columns: 64, warps: 4, stages: 4, groups: 1, rate: 0.4, filling: 160 },
    // So deep that one instance has a multiprocessor for itself.
    Shape { rows: 64, columns: 128, warps: 4, stages: 8, groups: 2, rate: 0.6, filling: 240 },
    Shape { rows: 64, columns: 64, warps: 4, stages: 8, groups: 2, rate: 0.41, filling: 500 },
];

/// A block, and who computes it.
#[derive(Clone, Copy)]
struct Shape {
    rows: u32,
    columns: u32,
    warps: u32,
    stages: u32,
    /// Groups of so many warps of which one multiplies while the other one stores.
    groups: u32,
    /// Share of the rate of libtorch's products that multiprocessors full of such blocks reach.
    rate: f64,
    /// What filling the stages and storing the sums takes, in steps of the sum.
    filling: i64,
}

impl Shape {
    /// Elements of a block.
    fn elements(&self) -> f64 {
        f64::from(self.rows * self.columns)
    }

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
pub(super) const DEPTH: u32 = 64;

/// Blocks of rows that instances at work take together, so that they read few blocks of either operand.
const GROUP: u32 = 8;

/// The least columns and depth: what one copy moves.
const MIN_EXTENT: i64 = COPIED;

/// Elements that one copy to shared memory moves.
const COPIED: i64 = 8;

/// What filling and storing takes of each block where one is stored while the next one is multiplied for, as in libtorch's products.
const OVERLAPPED_FILLING: f64 = 160.0;

/// Blocks that are expected to take this much longer than the best may be the quickest.
const MAX_PREDICTED_SLOWDOWN: f64 = 1.25;

/// The most parts of a sum: the kernel that adds them reads all in one go.
const MAX_PARTS: u32 = 16;

/// The schedules of a product on a GPU of so many multiprocessors, with partial sums of at most so many bytes. Of the vectors that the
/// epilogue reads, each instance holds its columns' elements.
pub(super) fn schedules(
    product: &Product,
    (profile, processors): (&Profile, u32),
    vectors: u32,
    most_bytes: u64,
) -> Result<Vec<Priced<Schedule>>, Declined> {
    if !matches!(product.elem, Elem::F16 | Elem::Bf16) {
        return Err(Declined::ElementTypes);
    }
    let Product { n, k, .. } = *product;
    if n.min(k) < MIN_EXTENT {
        return Err(Declined::Sizes);
    }
    if !is_copied(&product.a, product.windows.as_ref()) || !is_copied(&product.b, None) {
        return Err(Declined::Strides);
    }
    let model = Model::of(product, profile, processors);
    let parts = parts(product);
    let all = || SHAPES.iter().flat_map(|shape| parts.iter().map(move |&parts| (shape, parts)));
    let library = all().map(|(shape, parts)| model.library(shape, parts)).fold(f64::INFINITY, f64::min);
    // The sums of parts are stored as they are.
    let fits = |&(shape, parts): &(&Shape, u32)| match parts {
        1 => shape.registers(vectors) <= REGISTERS,
        _ => shape.registers(0) <= REGISTERS && model.partial_bytes(parts) <= most_bytes as f64,
    };
    let priced = |(shape, parts): (&Shape, u32)| {
        let grid = Grid { warps: shape.warps, stages: shape.stages, group: GROUP };
        let (rows, columns) = (shape.rows, shape.columns);
        let blocks = Blocks { form: Form::Dots, rows, columns, depth: DEPTH, grid: Some(grid) };
        let shares = [model.work / model.products(shape, parts), model.work / library];
        Priced {
            schedule: Schedule { reading: Reading::InPlace, blocks, parts, shares },
            us: model.ours(shape, parts),
            arithmetic_us: model.products(shape, parts),
            slowdown: MAX_PREDICTED_SLOWDOWN,
            bytes: if parts == 1 { 0.0 } else { model.partial_bytes(parts) },
        }
    };
    let (whole, divided): (Vec<_>, Vec<_>) = all().filter(fits).partition(|&(_, parts)| parts == 1);
    // One divided schedule: those in other numbers of parts take about as long.
    let divided = divided.into_iter().map(priced).min_by(|a, b| a.us.total_cmp(&b.us));
    Ok(whole.into_iter().map(priced).chain(divided).collect())
}

/// The numbers of parts of one length into which the sum of a product may be divided.
fn parts(product: &Product) -> Vec<u32> {
    // A part of a filter does not begin where a part of the sum does.
    let is_filled = product.windows.as_ref().is_some_and(|windows| windows.channels < windows.filled);
    let whole = |parts: &u32| *parts == 1 || (product.k % i64::from(parts * DEPTH) == 0 && !is_filled);
    (1..=MAX_PARTS).filter(whole).collect()
}

/// What multiprocessors take for a product, in elements of a block at the full rate by steps of the sum.
struct Model<'p> {
    product: &'p Product,
    members: i64,
    processors: u32,
    /// What the whole product takes at the full rate.
    work: f64,
    /// Bytes that are moved meanwhile, for each of these.
    bandwidth: f64,
    /// What a kernel's start takes.
    launch: f64,
}

impl Model<'_> {
    fn of<'p>(product: &'p Product, profile: &Profile, processors: u32) -> Model<'p> {
        let members: i64 = product.batch.iter().product();
        let processors = processors.max(1);
        let us = profile.products.generated / 2.0 / f64::from(processors) * 1000.0;
        let elements = members as f64 * product.m as f64 * product.n as f64;
        Model {
            product,
            members,
            processors,
            work: elements * product.k as f64 / f64::from(processors),
            bandwidth: profile.bandwidth * 1000.0 / us,
            launch: profile.launch_us * us,
        }
    }

    /// Blocks that a multiprocessor computes one after another, where the sum has so many parts.
    fn rounds(&self, shape: &Shape, parts: u32) -> i64 {
        let (down, across) =
            (blocks_of(self.product.m, shape.rows), blocks_of(self.product.n, shape.columns));
        let blocks = down.saturating_mul(across).saturating_mul(self.members);
        blocks_of(blocks.saturating_mul(parts.into()), self.processors)
    }

    /// Steps of the sum.
    fn steps(&self, parts: u32) -> f64 {
        (self.product.k / i64::from(parts)) as f64
    }

    /// What blocks of ours take.
    fn products(&self, shape: &Shape, parts: u32) -> f64 {
        let latency = 4.0 * LATENCY / f64::from(shape.stages);
        let step = |rounds: i64| (rounds as f64 * shape.elements() / shape.rate).max(latency);
        let (rounds, steps, filling) = (self.rounds(shape, parts), self.steps(parts), shape.filling as f64);
        let of_group = step(blocks_of(rounds, shape.groups)) * (steps + filling);
        if shape.groups == 1 {
            return of_group;
        }
        // One group multiplies at a time, and the last one stores behind that.
        let in_turn = step(rounds) * (steps + OVERLAPPED_FILLING) + step(1) * (filling - OVERLAPPED_FILLING);
        of_group.max(in_turn)
    }

    /// What they take, and a second kernel that adds up parts.
    fn ours(&self, shape: &Shape, parts: u32) -> f64 {
        let launch = if parts == 1 { 0.0 } else { self.launch };
        self.products(shape, parts) + self.moved(parts) + launch
    }

    /// What libtorch's product takes in such blocks.
    fn library(&self, shape: &Shape, parts: u32) -> f64 {
        let elements = self.rounds(shape, parts) as f64 * shape.elements();
        elements * (self.steps(parts) + OVERLAPPED_FILLING) + self.moved(parts)
    }

    /// What writing and reading the sums of parts takes.
    fn moved(&self, parts: u32) -> f64 {
        let bytes = if parts == 1 { 0.0 } else { self.partial_bytes(parts) };
        2.0 * bytes / self.bandwidth
    }

    /// Bytes of the sums of so many parts.
    fn partial_bytes(&self, parts: u32) -> f64 {
        let Product { m, n, .. } = *self.product;
        let elements = f64::from(parts) * self.members as f64 * m as f64 * n as f64;
        elements * f64::from(self.product.sum().bytes())
    }
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
