//! What multiprocessors that multiply by warpgroups (`wgmma`) take: rounds of instances, which leave some of them without work at the end.
//!
//! An instance of a product holds the sums of a block in the registers of its warps, and copies both operands to shared memory some steps
//! ahead. Larger blocks read less for each product; smaller ones leave fewer multiprocessors without work.
//!
//! Where four warps compute an instance, one group of them multiplies while another one stores its results (ping-pong): of an instance
//! the loop or the rest is hidden, whichever is shorter.
//!
//! ```text
//! [8192,768] x [768,3072]     1536 blocks of 128 x 128 on 132 multiprocessors: 12 rounds, of which 97 % are work
//! [1024,3072] x [3072,768]    24 of these would be one round with work for 18 %: 96 of 64 x 128
//! [64,3072] x [3072,768]      6 blocks of 64 x 128: 96 of 16 parts of the sum
//! ```
//!
//! There are two formulas: instances of products wait for operands step by step and take turns in multiplying, while several of attention
//! share a multiprocessor.

use super::Priced;
use crate::contract::attention::{Attention, QueryBlocks};
use crate::contract::blocks::blocks_of;
use crate::contract::problem::{Problem, Task};
use crate::contract::product::Product;
use crate::contract::schedule::{Blocking, Schedule, Splits};
use crate::contract::search_space::{MAX_KV_PARTS, shapes_and_parts};
use crate::contract::shared_launch;
use crate::contract::windows::Windows;
use crate::machine::{ProductShape, Profile, Warpgroups};
use crate::taken::taken;

/// What filling and storing takes of each block where one is stored while the next one is multiplied for, as in libtorch's products.
const OVERLAPPED_FILLING: f64 = 160.0;

/// The rate of libtorch's convolutions that take steps of several pixels, in that of others: measured on an H200, the convolutions of
/// ResNet-18 at 64 images take 1.2 to 2 times as long for what they compute, and those of one tap seven times.
const STRIDED_RATE: f64 = 0.75;

/// The rate of products of windows, in that of libtorch's products of halves by typical figures: measured on an H200, those of a U-Net and
/// of ResNet-50 take 0.54 to 0.65 of what others are priced at, which read more for what they compute.
const WINDOWS_RATE: f64 = 1.7;

/// Shares of the rate of large products that libtorch's attention reaches without and with a mask, whose instances have so many queries,
/// and so many where it divides the keys. Measured on an H100.
const LIBRARY_RATE: f64 = 0.6;
const MASKED_RATE: f64 = 0.25;
const LIBRARY_QUERIES: u32 = 128;
const LIBRARY_QUERIES_IN_PARTS: u32 = 64;

/// What an instance of attention takes where it has a multiprocessor for itself, in the time of several that share one.
const ALONE: f64 = 1.5;

/// What an instance of attention takes beside its keys, in keys.
const INSTANCE: f64 = 96.0;

/// What a step of attention takes beside its keys, in keys.
const STEP: f64 = 32.0;

/// Schedules with what they are expected to take.
pub(super) fn priced(all: Vec<Schedule>, task: &Task<'_>, units: &'static Warpgroups) -> Vec<Priced> {
    match &task.problem {
        Problem::Product(product) => of_product(all, task, (product, units)),
        Problem::Attention(attention) => {
            let rounds = Rounds::of(&attention.batch, task, units);
            let library = rounds.attention_of_library(attention);
            let all = all.into_iter();
            all.filter_map(|schedule| rounds.priced_attention(schedule, task, (attention, library))).collect()
        }
        // They are products here.
        Problem::Convolution(_) => Vec::new(),
    }
}

/// Those of a product.
fn of_product(
    all: Vec<Schedule>,
    task: &Task<'_>,
    (product, units): (&Product, &'static Warpgroups),
) -> Vec<Priced> {
    let rounds = Rounds::of(&product.batch, task, units);
    let strided = |windows: &Windows| windows.axes.iter().any(|axis| axis.stride > 1);
    let library_rate = if product.windows.as_ref().is_some_and(strided) { STRIDED_RATE } else { 1.0 };
    let library = rounds.least(product, |shape, parts| rounds.product_of_library(product, shape, parts));
    let library = library / library_rate;
    let rates = task.target.profile.products;
    let unaligned = task.has_unaligned_rows();
    let priced = |schedule: Schedule| {
        let (shape, parts) = (schedule.shape()?, schedule.parts());
        let products = rounds.products(product, shape, parts);
        let work = rounds.product_work(product);
        let mut shares = [work / products, work / library];
        if unaligned {
            shares[1] = shares[1].min(rates.unaligned / rates.aligned);
        }
        // The rate of what is computed is that of large products at most; that of windows is another one.
        let most = if product.windows.is_some() { f64::INFINITY } else { 1.0 };
        Some(Priced {
            us: rounds.product(product, shape, parts),
            arithmetic_us: products,
            bytes: if parts == 1 { 0.0 } else { product.partial_bytes(parts) },
            shares: shares.map(|share| share.min(most)),
            shared_launch: 1.0,
            schedule,
        })
    };
    let columns = if unaligned { Vec::new() } else { shared_launch::columns(task.graph, task.node, product) };
    let shared = rounds.shared_launch(&all, product, &columns);
    let Some((at, left)) = shared else { return all.into_iter().filter_map(priced).collect() };
    taken!("shared launch");
    // The same blocks for all of them, whichever is measured to be quicker alone.
    let alone = all.into_iter().nth(at).and_then(priced);
    alone.into_iter().map(|priced| Priced { shared_launch: left, ..priced }).collect()
}

impl Schedule {
    /// The blocks of a product by warpgroups.
    fn shape(&self) -> Option<&'static ProductShape> {
        match self.blocking {
            Blocking::Warpgroups(shape) => Some(shape),
            _ => None,
        }
    }
}

impl ProductShape {
    /// Elements of a block.
    fn elements(&self) -> f64 {
        f64::from(self.rows * self.columns)
    }
}

/// The multiprocessors that compute the members of a batch.
struct Rounds<'t> {
    profile: &'t Profile,
    units: &'static Warpgroups,
    processors: u32,
    members: i64,
}

impl Rounds<'_> {
    fn of<'t>(batch: &[i64], task: &Task<'t>, units: &'static Warpgroups) -> Rounds<'t> {
        let members = batch.iter().product();
        let target = task.target;
        Rounds { profile: target.profile, units, processors: target.processors, members }
    }

    /// How many instances of so many a multiprocessor computes one after another, so many of which it has at a time.
    fn count(&self, instances: i64, together: u32) -> i64 {
        blocks_of(instances, self.processors.saturating_mul(together))
    }
}

/// What they take for products, in elements of a block at the full rate by steps of the sum.
impl Rounds<'_> {
    /// What the whole product takes at the full rate.
    fn product_work(&self, product: &Product) -> f64 {
        let elements = self.members as f64 * product.m as f64 * product.n as f64;
        elements * product.k as f64 / f64::from(self.processors)
    }

    /// How much of that they do in a microsecond.
    fn per_us(&self) -> f64 {
        self.profile.products.generated / 2.0 / f64::from(self.processors) * 1000.0
    }

    /// What a kernel's start takes.
    fn launch(&self) -> f64 {
        self.profile.launch_us * self.per_us()
    }

    /// Blocks of all instances, where the sum has so many parts.
    fn blocks(&self, product: &Product, shape: &ProductShape, parts: u32) -> i64 {
        let (down, across) = (blocks_of(product.m, shape.rows), blocks_of(product.n, shape.columns));
        down.saturating_mul(across).saturating_mul(self.members).saturating_mul(parts.into())
    }

    /// The least of what the product takes in some blocks, its sum in some parts.
    fn least(&self, product: &Product, time: impl Fn(&ProductShape, u32) -> f64) -> f64 {
        shapes_and_parts(product, self.units)
            .into_iter()
            .map(|(shape, parts)| time(shape, parts))
            .fold(f64::INFINITY, f64::min)
    }

    /// What blocks of ours take.
    fn products(&self, product: &Product, shape: &ProductShape, parts: u32) -> f64 {
        let rate = if product.windows.is_some() { WINDOWS_RATE } else { 1.0 };
        let count = self.count(self.blocks(product, shape, parts), 1);
        self.of_count(product, shape, (count, parts)) / rate
    }

    /// What so many of them take of each multiprocessor.
    fn of_count(&self, product: &Product, shape: &ProductShape, (count, parts): (i64, u32)) -> f64 {
        let latency = 4.0 * self.units.latency / f64::from(shape.stages);
        let step = |count: i64| (count as f64 * shape.elements() / shape.rate).max(latency);
        let (steps, filling) = (steps(product, parts), shape.filling as f64);
        let of_group = step(blocks_of(count, shape.groups)) * (steps + filling);
        if shape.groups == 1 {
            return of_group;
        }
        // One group multiplies at a time, and the last one stores behind that.
        let in_turn = step(count) * (steps + OVERLAPPED_FILLING) + step(1) * (filling - OVERLAPPED_FILLING);
        of_group.max(in_turn)
    }

    /// What they take, and a second kernel that adds up parts.
    fn product(&self, product: &Product, shape: &ProductShape, parts: u32) -> f64 {
        let launch = if parts == 1 { 0.0 } else { self.launch() };
        self.products(product, shape, parts) + self.moved(product, parts) + launch
    }

    /// What libtorch's product takes in such blocks.
    fn product_of_library(&self, product: &Product, shape: &ProductShape, parts: u32) -> f64 {
        let count = self.count(self.blocks(product, shape, parts), 1);
        let elements = count as f64 * shape.elements();
        elements * (steps(product, parts) + OVERLAPPED_FILLING) + self.moved(product, parts)
    }

    /// What writing and reading the sums of parts takes.
    fn moved(&self, product: &Product, parts: u32) -> f64 {
        let bytes = if parts == 1 { 0.0 } else { product.partial_bytes(parts) };
        2.0 * bytes / (self.profile.bandwidth * 1000.0 / self.per_us())
    }

    /// Which schedule's kernel shares its launch with those of products of so many columns each, and the part of its time that is left so.
    /// `None` where some fill the multiprocessors alone, or where each by itself takes no longer.
    fn shared_launch(&self, all: &[Schedule], product: &Product, columns: &[i64]) -> Option<(usize, f64)> {
        if columns.is_empty() {
            return None;
        }
        let others: Vec<Product> = columns.iter().map(|&n| Product { n, ..product.clone() }).collect();
        let priced = |shape: &ProductShape| {
            // In branches, no other group multiplies meanwhile.
            let shape = &ProductShape { groups: 1, ..*shape };
            let separate: f64 =
                others.iter().map(|other| self.products(other, shape, 1) + self.launch()).sum();
            let blocks = others.iter().map(|other| self.blocks(other, shape, 1));
            let small = blocks.clone().all(|blocks| blocks < i64::from(self.processors));
            let count = self.count(blocks.sum(), 1);
            let together = self.of_count(product, shape, (count, 1)) + self.launch();
            small.then_some((together, together / separate))
        };
        let whole = all.iter().enumerate().filter(|(_, schedule)| schedule.splits.is_none());
        let whole = whole.filter_map(|(at, schedule)| Some((at, priced(schedule.shape()?)?)));
        let (at, (together, left)) = whole.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0))?;
        let alone = |other: &Product| {
            self.least(other, |shape, parts| self.product(other, shape, parts)) + self.launch()
        };
        (together < others.iter().map(alone).sum()).then_some((at, left))
    }
}

/// Steps of the sum of a product.
fn steps(product: &Product, parts: u32) -> f64 {
    (product.k / i64::from(parts)) as f64
}

/// What they take for attention, in pairs of a query and a key.
impl Rounds<'_> {
    fn priced_attention(
        &self,
        schedule: Schedule,
        task: &Task<'_>,
        (attention, library): (&Attention, f64),
    ) -> Option<Priced> {
        let Blocking::Queries(blocks) = &schedule.blocking else { return None };
        let Attention { queries, keys, .. } = *attention;
        let work = self.members as f64 * queries as f64 * keys as f64 / f64::from(self.processors);
        let shares = [
            self.units.attention_rate * work / self.attention(attention, blocks, schedule.splits)?,
            library_rate(attention) * work / library,
        ];
        Some(Priced::by_rate(schedule, task, (shares[0], shares)))
    }

    /// What blocks of so many queries take, of which a multiprocessor has at `most` so many at a time, each with its keys in so many
    /// parts. One instance alone leaves it idle at times.
    fn of_queries(&self, attention: &Attention, queries: u32, (most, parts): (u32, u32), keys: f64) -> f64 {
        let instances = blocks_of(attention.queries, queries).saturating_mul(self.members);
        let instances = instances.saturating_mul(parts.into());
        let together = self.count(instances, 1).clamp(1, most.into());
        let count = self.count(instances, together as u32);
        count as f64 * f64::from(queries) * (together as f64).max(ALONE) * (keys + INSTANCE)
    }

    /// What blocks of ours take.
    fn attention(&self, attention: &Attention, blocks: &QueryBlocks, splits: Option<Splits>) -> Option<f64> {
        let (parts, keys) = splits.map_or((1, attention.keys), |splits| (splits.count, splits.length));
        let steps = blocks_of(keys, blocks.keys) as f64;
        let most = self.units.warps / blocks.warps?;
        let keys = steps * (f64::from(blocks.keys) + STEP);
        Some(self.of_queries(attention, blocks.queries, (most, parts), keys))
    }

    /// What libtorch's call takes, which divides the keys among instances where there are few and no mask.
    fn attention_of_library(&self, attention: &Attention) -> f64 {
        let keys = attention.keys as f64;
        let whole = self.of_queries(attention, LIBRARY_QUERIES, (1, 1), keys);
        if attention.mask.is_some() || attention.causal {
            return whole;
        }
        let elements = attention.width as f64 + attention.depth as f64;
        let rate = library_rate(attention) * self.profile.products.aligned / f64::from(self.processors);
        let launch = self.profile.launch_us * 1000.0 * rate / (2.0 * elements);
        let in_parts = |log: u32| {
            let parts = 1 << log;
            let keys = keys / f64::from(parts);
            self.of_queries(attention, LIBRARY_QUERIES_IN_PARTS, (1, parts), keys) + launch
        };
        (1..=MAX_KV_PARTS.ilog2()).map(in_parts).fold(whole, f64::min)
    }
}

/// The share of the rate of large products that libtorch's call reaches.
fn library_rate(attention: &Attention) -> f64 {
    if attention.mask.is_some() { MASKED_RATE } else { LIBRARY_RATE }
}
