//! The blocks of products on a GPU whose multiprocessors multiply by warpgroups (`wgmma`).
//!
//! An instance holds the sums of a block in the registers of its warps, and copies both operands to shared memory some steps
//! ahead. Larger blocks read less for each product; smaller ones leave fewer multiprocessors without work.
//!
//! Where four warps compute an instance, one group of them multiplies while another one stores its results (ping-pong): of an instance
//! the loop or the rest is hidden, whichever is shorter.
//!
//! Sums are divided where there are too few blocks for all of them (`split_k.rs`), or several products share a launch
//! (`shared_launch.rs`).
//!
//! ```text
//! [8192,768] x [768,3072]     1536 blocks of 128 x 128 on 132 multiprocessors: 12 rounds, of which 97 % are work
//! [1024,3072] x [3072,768]    24 of these would be one round with work for 18 %: 96 of 64 x 128
//! [64,3072] x [3072,768]      6 blocks of 64 x 128: 96 of 16 parts of the sum
//! ```

use tilefuse_block::Elem;

use super::blocks::{Blocks, Form, Grid, blocks_of};
use super::match_failure::MatchFailure;
use super::operand;
use super::product::{Access, Product};
use super::pruning::Priced;
use super::schedule::{Reading, Schedule};
use super::windows::Windows;
use crate::graph::{Graph, NodeId};
use crate::machine::{ProductShape, Profile, Warpgroups};

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

/// The rate of libtorch's convolutions that take steps of several pixels, in that of others: measured on an H200, the convolutions of
/// ResNet-18 at 64 images take 1.2 to 2 times as long for what they compute, and those of one tap seven times.
const STRIDED_RATE: f64 = 0.75;

/// The rate of products of windows, in that of libtorch's products of halves by typical figures: measured on an H200, those of a U-Net and
/// of ResNet-50 take 0.54 to 0.65 of what others are priced at, which read more for what they compute.
const WINDOWS_RATE: f64 = 1.7;

/// Blocks that are expected to take this much longer than the best may be the quickest.
const MAX_PREDICTED_SLOWDOWN: f64 = 1.25;

/// The most parts of a sum: the kernel that adds them reads all in one go.
const MAX_PARTS: u32 = 16;

/// What a product is computed on: so many multiprocessors of a machine.
pub(super) type Gpu<'a> = (&'a Profile, u32, &'static Warpgroups);

/// Whether multiprocessors multiply elements of a call's type: of others, neither sizes nor strides are why there is no kernel.
///
/// # Errors
/// Where they do not.
pub(super) fn check_type(graph: &Graph, node: NodeId) -> Result<(), MatchFailure> {
    match graph.ty(node.into()).dtype.elem() {
        Some(Elem::F16 | Elem::Bf16) => Ok(()),
        _ => Err(MatchFailure::HalfTypes),
    }
}

/// The schedules of a product of halves on a GPU of so many multiprocessors, with partial sums of at most so many bytes. Of the vectors
/// that the epilogue reads, each instance holds its columns' elements.
pub(super) fn schedules(
    product: &Product,
    gpu: Gpu<'_>,
    vectors: u32,
    most_bytes: u64,
) -> Result<Vec<Priced<Schedule>>, MatchFailure> {
    let Product { n, k, .. } = *product;
    if n.min(k) < MIN_EXTENT {
        return Err(MatchFailure::Small);
    }
    if !is_copied(&product.a, product.windows.as_ref()) || !is_copied(&product.b, None) {
        return Err(MatchFailure::Strides);
    }
    let (.., units) = gpu;
    let model = Model::of(product, gpu);
    let all = all(product, units);
    let strided = |windows: &Windows| windows.axes.iter().any(|axis| axis.stride > 1);
    let library_rate = if product.windows.as_ref().is_some_and(strided) { STRIDED_RATE } else { 1.0 };
    let library = model.least(|shape, parts| model.library(shape, parts)) / library_rate;
    // The sums of parts are stored as they are.
    let fits = |&(shape, parts): &(&ProductShape, u32)| match parts {
        1 => shape.registers(vectors) <= units.product_registers,
        _ => shape.registers(0) <= units.product_registers && model.partial_bytes(parts) <= most_bytes as f64,
    };
    let priced = |(shape, parts): (&ProductShape, u32)| Priced {
        schedule: shape.schedule(&model, parts, library),
        us: model.ours(shape, parts),
        arithmetic_us: model.products(shape, parts),
        slowdown: MAX_PREDICTED_SLOWDOWN,
        bytes: if parts == 1 { 0.0 } else { model.partial_bytes(parts) },
    };
    let (whole, divided): (Vec<_>, Vec<_>) = all.into_iter().filter(fits).partition(|&(_, parts)| parts == 1);
    // One divided schedule: those in other numbers of parts take about as long.
    let divided = divided.into_iter().map(priced).min_by(|a, b| a.us.total_cmp(&b.us));
    Ok(whole.into_iter().map(priced).chain(divided).collect())
}

/// The schedule of a product whose kernel shares its launch with those of others, of so many columns each, and the part of its time
/// that is left so. `None` where some fill the multiprocessors alone, or where each by itself takes no longer.
pub(super) fn shared_launch(
    product: &Product,
    columns: &[i64],
    gpu: Gpu<'_>,
    vectors: u32,
) -> Option<(Schedule, f64)> {
    let (_, processors, units) = gpu;
    let others: Vec<Product> = columns.iter().map(|&n| Product { n, ..product.clone() }).collect();
    let alone: Vec<Model<'_>> = others.iter().map(|other| Model::of(other, gpu)).collect();
    let own = Model::of(product, gpu);
    let time = |model: &Model<'_>, shape: &ProductShape| model.products(shape, 1) + model.launch;
    let priced = |shape: &ProductShape| {
        // In branches, no other group multiplies meanwhile.
        let shape = &ProductShape { groups: 1, ..*shape };
        let separate: f64 = alone.iter().map(|model| time(model, shape)).sum();
        let blocks = alone.iter().map(|model| model.blocks(shape, 1));
        let small = blocks.clone().all(|blocks| blocks < i64::from(processors));
        let rounds = blocks_of(blocks.sum(), processors);
        let together = own.of_rounds(shape, rounds, 1) + own.launch;
        small.then_some((together, together / separate))
    };
    let fits = |shape: &&ProductShape| shape.registers(vectors) <= units.product_registers;
    let all = units.products.iter().filter(fits).filter_map(|shape| Some((shape, priced(shape)?)));
    let (shape, (together, left)) = all.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0))?;
    let least = |model: &Model<'_>| model.least(|shape, parts| model.ours(shape, parts)) + model.launch;
    let pays = together < alone.iter().map(least).sum();
    let library = own.least(|shape, parts| own.library(shape, parts));
    pays.then(|| (shape.schedule(&own, 1, library), left))
}

/// The blocks that a product may be computed in, and the numbers of parts of one length into which its sum may be divided.
fn all(product: &Product, units: &'static Warpgroups) -> Vec<(&'static ProductShape, u32)> {
    // A part of a filter does not begin where a part of the sum does.
    let is_filled = product.windows.as_ref().is_some_and(|windows| windows.channels < windows.filled);
    let whole = |parts: &u32| *parts == 1 || (product.k % i64::from(parts * DEPTH) == 0 && !is_filled);
    let parts: Vec<u32> = (1..=MAX_PARTS).filter(whole).collect();
    units.products.iter().flat_map(|shape| parts.iter().map(move |&parts| (shape, parts))).collect()
}

impl ProductShape {
    /// Elements of a block.
    fn elements(&self) -> f64 {
        f64::from(self.rows * self.columns)
    }

    /// A product of so many parts in such blocks, of which libtorch's takes so long.
    fn schedule(&self, model: &Model<'_>, parts: u32, library: f64) -> Schedule {
        let grid = Grid { warps: self.warps, stages: self.stages, group: GROUP };
        let (rows, columns) = (self.rows, self.columns);
        let blocks = Blocks { form: Form::Dots, rows, columns, depth: DEPTH, grid: Some(grid) };
        let shares = [model.work / model.products(self, parts), model.work / library];
        Schedule { reading: Reading::InPlace, blocks, parts, shares }
    }

    /// Registers of a thread: its sums, and of the vectors along the columns, of which it has a quarter of the elements, what is
    /// computed before it is used.
    fn registers(&self, vectors: u32) -> u32 {
        self.rows * self.columns / (32 * self.warps) + vectors * self.columns / 4 * 3 / 4
    }
}

/// What multiprocessors take for a product, in elements of a block at the full rate by steps of the sum.
struct Model<'p> {
    product: &'p Product,
    units: &'static Warpgroups,
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
    fn of<'p>(product: &'p Product, (profile, processors, units): Gpu<'_>) -> Model<'p> {
        let members: i64 = product.batch.iter().product();
        let processors = processors.max(1);
        let us = profile.products.generated / 2.0 / f64::from(processors) * 1000.0;
        let elements = members as f64 * product.m as f64 * product.n as f64;
        Model {
            product,
            units,
            members,
            processors,
            work: elements * product.k as f64 / f64::from(processors),
            bandwidth: profile.bandwidth * 1000.0 / us,
            launch: profile.launch_us * us,
        }
    }

    /// Blocks of all instances, where the sum has so many parts.
    fn blocks(&self, shape: &ProductShape, parts: u32) -> i64 {
        let (down, across) =
            (blocks_of(self.product.m, shape.rows), blocks_of(self.product.n, shape.columns));
        down.saturating_mul(across).saturating_mul(self.members).saturating_mul(parts.into())
    }

    /// Those that a multiprocessor computes one after another.
    fn rounds(&self, shape: &ProductShape, parts: u32) -> i64 {
        blocks_of(self.blocks(shape, parts), self.processors)
    }

    /// The least of what the product takes in some blocks, its sum in some parts.
    fn least(&self, time: impl Fn(&ProductShape, u32) -> f64) -> f64 {
        all(self.product, self.units)
            .into_iter()
            .map(|(shape, parts)| time(shape, parts))
            .fold(f64::INFINITY, f64::min)
    }

    /// Steps of the sum.
    fn steps(&self, parts: u32) -> f64 {
        (self.product.k / i64::from(parts)) as f64
    }

    /// What blocks of ours take.
    fn products(&self, shape: &ProductShape, parts: u32) -> f64 {
        let rate = if self.product.windows.is_some() { WINDOWS_RATE } else { 1.0 };
        self.of_rounds(shape, self.rounds(shape, parts), parts) / rate
    }

    /// What so many of them take of each multiprocessor.
    fn of_rounds(&self, shape: &ProductShape, rounds: i64, parts: u32) -> f64 {
        let latency = 4.0 * self.units.latency / f64::from(shape.stages);
        let step = |rounds: i64| (rounds as f64 * shape.elements() / shape.rate).max(latency);
        let (steps, filling) = (self.steps(parts), shape.filling as f64);
        let of_group = step(blocks_of(rounds, shape.groups)) * (steps + filling);
        if shape.groups == 1 {
            return of_group;
        }
        // One group multiplies at a time, and the last one stores behind that.
        let in_turn = step(rounds) * (steps + OVERLAPPED_FILLING) + step(1) * (filling - OVERLAPPED_FILLING);
        of_group.max(in_turn)
    }

    /// What they take, and a second kernel that adds up parts.
    fn ours(&self, shape: &ProductShape, parts: u32) -> f64 {
        let launch = if parts == 1 { 0.0 } else { self.launch };
        self.products(shape, parts) + self.moved(parts) + launch
    }

    /// What libtorch's product takes in such blocks.
    fn library(&self, shape: &ProductShape, parts: u32) -> f64 {
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
