//! The schedules of a product: how instances find operands, what each computes, and what that is expected to take.
//!
//! ```text
//! [197,768] x [768,3072], a weight, on a host      0.92  rows as pixels of a convolution over prepacked panels, 198 of them
//!                                                  1.00  blocks over prepacked panels, 224 rows
//! ```
//!
//! [`on_host`] lists those that are valid and what they are expected to take, and `warpgroup.rs` does so on a GPU; `pruning.rs` has
//! programs written of the first and of those that come near it.

use super::blocks::{self, Blocks};
use super::call_kernels::Template;
use super::conv::UnalignedGemm;
use super::host::Host;
use super::match_failure::MatchFailure;
use super::prepack::{self, Panels};
use super::price::Work;
use super::product::Product;
use super::pruning::{Priced, prune};
use super::template::{self, Operands};
use super::{pack, split_k, vnni};
use crate::graph::{Graph, NodeId};
use crate::machine::Profile;
use crate::taken::taken;

/// How a product is computed.
#[derive(Debug)]
pub(super) struct Schedule {
    /// How instances find operands.
    pub(super) reading: Reading,
    /// What an instance computes, and how many threads share the rows.
    pub(super) blocks: Blocks,
    /// Parts of the sum, which have instances of their own; one where it is not divided.
    pub(super) parts: u32,
    /// The shares of the machine's rates that this and libtorch's product reach.
    pub(super) shares: [f64; 2],
}

/// How instances find the operands of a product.
#[derive(Debug)]
pub(super) enum Reading {
    /// Where they lie.
    InPlace,
    /// The right one in panels, of a VNNI layout perhaps, which a constant holds.
    Prepacked(Panels),
    /// The right one in such panels, which a kernel fills before each call; another one may pack the left one.
    Packed(Panels),
    /// The left one as pixels of a convolution of one tap, whose filters lie in panels that a constant holds.
    Unaligned(UnalignedGemm, Panels),
}

/// The rate of sums of rows of products, in that of products of blocks, where they do not wait for the right operand.
const SUMS_RATE: f64 = 0.31;

/// The most rows that are summed: beyond, sums of rows take longer than reading the right operand.
const MAX_SUMMED_ROWS: i64 = 8;

/// What a row takes as a pixel of a convolution, in rows of blocks.
const PIXEL: f64 = 1.04;

/// Rows of a product that are many beside what packing the right operand takes, and of one in groups, if that has so many elements.
const MANY_ROWS: i64 = 512;
const MANY_ROWS_GROUPED: i64 = 128;
const MANY_ELEMENTS: i64 = 1 << 16;

/// The threads that parts of a sum are for, whatever the number of a host's: the order of sums does not depend on it. The most rows and
/// columns of a result that is in parts, beyond which whole sums keep threads busy as well, and the least that a part adds up.
const THREADS_OF_PARTS: i64 = 16;
const MAX_DIVIDED: i64 = 64;
const MIN_PART: i64 = 1024;

/// How many times as long as the best schedule may be expected to take for others that may be the quickest: over operands where they
/// lie, over those that are packed in each call, and others. How strides slow down who reads operands in place is not in the model.
const IN_PLACE_SLOWDOWN: f64 = 1.25;
const PACKED_SLOWDOWN: f64 = 2.0;
const SLOWDOWN: f64 = 1.03;

/// The kernels of a product on a host that pack operands in at most so many bytes, the likeliest first; that one alone unless they are
/// `measured`.
pub(super) fn on_host(
    graph: &Graph,
    node: NodeId,
    product: &Product,
    (profile, host): (&Profile, Host),
    limits: (bool, u64),
) -> Result<Vec<Template>, MatchFailure> {
    let all = valid(graph, node, product, host).into_iter();
    let all = all.map(|schedule| schedule.priced(product, profile)).collect();
    prune(all, limits, |schedule: Schedule| schedule.template(graph, node, product))
}

/// The schedules that a product may have on a host.
fn valid(graph: &Graph, node: NodeId, product: &Product, host: Host) -> Vec<Schedule> {
    let mut all = prepacked(graph, node, product, host);
    let is_weight = !all.is_empty();
    if product.m <= MAX_SUMMED_ROWS {
        let rate = if blocks::are_few(product.m) { 1.0 } else { SUMS_RATE };
        if !is_weight {
            let divided = in_parts(product, blocks::sums(product, 1));
            all.extend(divided.map(|schedule| Schedule { shares: [rate, 1.0], ..schedule }));
        }
        all.push(Schedule::of(Reading::InPlace, blocks::sums(product, host.threads), rate));
    }
    // Blocks of few rows compute as many more for nothing, and those over a weight where it lies bring what prepacking has in place into
    // place in each instance: neither is ever quicker.
    if !blocks::are_few(product.m) && !is_weight {
        let in_place = blocks::dots(product, host.threads, false);
        all.push(Schedule::of(Reading::InPlace, in_place, 1.0));
        all.extend(in_parts(product, blocks::dots(product, 1, false)));
        let packed = pack::panels(product, host);
        all.extend(packed.map(|(panels, blocks)| Schedule::of(Reading::Packed(panels), blocks, 1.0)));
    }
    all
}

/// That in as many parts of the sum as the threads have instances then, where the blocks are fewer.
fn in_parts(product: &Product, blocks: Blocks) -> Option<Schedule> {
    let grid = blocks::grid(product, &blocks)?;
    let instances = grid.iter().fold(1i64, |all, &n| all.saturating_mul(n.into()));
    let whole = |parts: &i64| product.k % parts == 0 && product.k / parts >= MIN_PART;
    if product.m.max(product.n) > MAX_DIVIDED {
        return None;
    }
    let parts = (2..=THREADS_OF_PARTS / instances.max(1)).rev().find(whole)?;
    let parts = u32::try_from(parts).ok()?;
    let depth = blocks.depth.min(blocks::covering(product.k / i64::from(parts)));
    Some(Schedule { parts, ..Schedule::of(Reading::InPlace, Blocks { depth, ..blocks }, 1.0) })
}

/// Those over a weight that may be prepacked.
fn prepacked(graph: &Graph, node: NodeId, product: &Product, host: Host) -> Vec<Schedule> {
    // Copies of weights take memory, and read by few rows they save no time.
    let Some(vectors) = host.packs.filter(|_| !blocks::are_few(product.m)) else { return Vec::new() };
    let panels = |width: i64| prepack::panels(graph, node, product, width);
    let grouped = vnni::group(product, host).and_then(|group| {
        let panels = panels(vnni::width(product))?.in_groups(group, vnni::depth(product).into());
        let blocks = vnni::choose(product, host.threads, &panels);
        Some(Schedule::of(Reading::Prepacked(panels), blocks, 1.0))
    });
    let in_blocks = || {
        let blocks = blocks::dots(product, host.threads, true);
        Some(Schedule::of(Reading::Prepacked(panels(blocks.columns.into())?), blocks, 1.0))
    };
    let as_pixels = || {
        let rows = UnalignedGemm::of(product, vectors)?;
        let panels = panels(rows.width())?;
        let blocks = rows.blocks();
        let rate = blocks::rows_computed(product) as f64 / (PIXEL * rows.rows_computed() as f64);
        Some(Schedule::of(Reading::Unaligned(rows, panels), blocks, rate))
    };
    grouped.into_iter().chain(as_pixels()).chain(in_blocks()).collect()
}

impl Schedule {
    /// A schedule that reaches a share of a host's rate.
    fn of(reading: Reading, blocks: Blocks, rate: f64) -> Schedule {
        Schedule { reading, blocks, parts: 1, shares: [rate, 1.0] }
    }

    /// It, with what it is expected to take on a host. The number of threads that have work is left out, since results must not depend on
    /// it, but for what parts of the sum bring to so many.
    fn priced(self, product: &Product, profile: &Profile) -> Priced<Schedule> {
        let group = match &self.reading {
            Reading::InPlace | Reading::Unaligned(..) => 1,
            Reading::Prepacked(panels) | Reading::Packed(panels) => panels.group,
        };
        let packed: f64 = self.packed(product, pack::filled(product, &self.blocks)).iter().sum();
        let bytes = packed + self.left(product);
        // What fills up blocks is not in the time: how high these are depends on the threads.
        let packed = self.packed(product, [product.m, product.k]);
        let left = self.left(product);
        let work = Work { shares: self.shares, packed, group, left, ..Work::of_product(product) };
        let packing = if self.packs_for_many(product) { 0.0 } else { work.packing_us(profile) };
        Priced {
            us: work.generated_us(profile) / f64::from(self.parts) + packing + work.left_us(profile),
            arithmetic_us: work.arithmetic_us(profile),
            slowdown: self.slowdown(),
            bytes,
            schedule: self,
        }
    }

    /// Whether so many rows read what is packed that packing it is a small part of the work, on a machine of any bandwidth: the order of
    /// large sums does not depend on one that was measured.
    fn packs_for_many(&self, product: &Product) -> bool {
        let Reading::Packed(panels) = &self.reading else { return false };
        let rows = if panels.group > 1 { MANY_ROWS_GROUPED } else { MANY_ROWS };
        product.m >= rows && product.n.saturating_mul(product.k) >= MANY_ELEMENTS
    }

    /// Bytes of each operand that is packed in each call, of a left one of these extents.
    fn packed(&self, product: &Product, left: [i64; 2]) -> Vec<f64> {
        match &self.reading {
            Reading::Packed(panels) => pack::bytes(product, panels, &self.blocks, left),
            Reading::InPlace | Reading::Prepacked(_) | Reading::Unaligned(..) => Vec::new(),
        }
    }

    /// Bytes of the sums of parts.
    fn left(&self, product: &Product) -> f64 {
        let sums = product.batch.iter().product::<i64>() as f64 * product.m as f64 * product.n as f64;
        let parts = if self.parts > 1 { f64::from(self.parts) } else { 0.0 };
        parts * sums * f64::from(product.sum().bytes())
    }

    /// How many times as long as the best it may be expected to take.
    fn slowdown(&self) -> f64 {
        match self.reading {
            Reading::InPlace if self.blocks.form == blocks::Form::Dots => IN_PLACE_SLOWDOWN,
            Reading::Packed(_) => PACKED_SLOWDOWN,
            _ => SLOWDOWN,
        }
    }

    /// Its kernels.
    pub(super) fn template(self, graph: &Graph, node: NodeId, product: &Product) -> Option<Template> {
        let (blocks, shares) = (self.blocks, self.shares);
        let template = match self.reading {
            Reading::InPlace if self.parts > 1 => {
                split_k::template(graph, node, product, (blocks, self.parts))
            }
            Reading::InPlace => template::with(product, blocks, Operands::of(product)),
            Reading::Prepacked(panels) => {
                taken!("prepacked panels");
                in_panels(graph, node, product.clone(), (blocks, panels))
            }
            Reading::Packed(panels) => pack::template(graph, node, product.clone(), (blocks, panels)),
            Reading::Unaligned(rows, panels) => {
                taken!("unaligned GEMM");
                rows.template(graph, node, product, panels)
            }
        };
        // That less is computed for nothing ranks schedules; the rate of what is computed is the same. That of windows is another one.
        let most = if product.windows.is_some() { f64::INFINITY } else { 1.0 };
        let shares = shares.map(|share| share.min(most));
        Some(Template { shares, ..template? })
    }
}

/// The kernel of a product whose right operand lies in prepacked panels, which are an operand behind those of the call.
fn in_panels(
    graph: &Graph,
    node: NodeId,
    mut product: Product,
    (blocks, panels): (Blocks, Panels),
) -> Option<Template> {
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    let weight = std::mem::replace(&mut product.b, prepack::access(&panels, position)).source;
    let operands = Operands { panels: Some(&panels), ..Operands::of(&product) };
    let mut template = template::with(&product, blocks, operands)?;
    template.kernel.schedule.push_str(", prepacked");
    // The kernel does not read it: it stays where it lies.
    template.kernel.layouts.push((weight.position, weight.layout));
    Some(Template { panels: Some(panels), ..template })
}
