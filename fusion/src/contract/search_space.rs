//! The schedules of a task that are valid: of one search space for all machines, whose units say which parts of it they have.
//!
//! ```text
//! products        in place, prepacked, packed in each call      sums of rows (GEMV), blocks, unaligned GEMM      split-K
//! convolutions    in place, prepacked, packed in each call      vectors of pixels, of filters, of a phase
//! attention       in place, packed in VNNI-2 layout             each query, queries as lanes and as rows         split-KV
//! ```

use super::attention::{self, Attention, QueryBlocks, QueryMapping, Span};
use super::blocks::{self, Blocks, LINE_DEPTH, blocks_of};
use super::conv::{self, ConvCall, FilterVectors, Phases, UnalignedGemm, may_be_channels_last};
use super::epilogue::column_vectors;
use super::match_failure::MatchFailure;
use super::prepack;
use super::problem::{Problem, Task};
use super::product::{COPIED, Product};
use super::schedule::{Blocking, Reading, Schedule, Splits};
use super::{pack, vnni};
use crate::machine::{AttentionShape, ProductShape, Warpgroups};

/// The most rows that are summed: beyond, sums of rows take longer than reading the right operand.
const MAX_SUMMED_ROWS: i64 = 8;

/// The threads that parts of a sum are for, whatever the number of a host's: the order of sums does not depend on it. The most rows and
/// columns of a result that is in parts, beyond which whole sums keep threads busy as well, and the least that a part adds up.
const THREADS_OF_PARTS: i64 = 16;
const MAX_DIVIDED: i64 = 64;
const MIN_PART: i64 = 1024;

/// The least columns and depth of a product on a GPU: what one copy moves.
const MIN_EXTENT: i64 = COPIED;

/// The most parts of a sum on a GPU: the kernel that adds them reads all in one go.
const MAX_PARTS: u32 = 16;

/// The same of the keys of attention, and the most instances along the second and third axis of a GPU's grid.
pub(super) const MAX_KV_PARTS: u32 = 64;
const MAX_INSTANCES: i64 = 65_535;

/// The most queries that are taken each by itself: a program has the code of each.
const MAX_EACH: i64 = 8;

/// The most elements of a query or a value on a GPU, and the least extent of what is multiplied at a time: the step of an instruction.
const MAX_ELEMENTS: i64 = 128;
const MIN_SPAN: u32 = 16;

/// The valid schedules of a task, those in parts with sums of parts of at most so many bytes.
///
/// # Errors
/// Where there is none, whatever its programs are.
pub(super) fn valid(task: &Task<'_>, most_bytes: u64) -> Result<Vec<Schedule>, MatchFailure> {
    match (&task.problem, task.target.warpgroups) {
        (Problem::Product(product), None) => Ok(products(task, product)),
        (Problem::Product(product), Some(units)) => products_of_warpgroups(task, product, units, most_bytes),
        (Problem::Convolution(call), _) => Ok(convolutions(task, call)),
        (Problem::Attention(attention), None) => attention_of_vectors(task, attention, most_bytes),
        (Problem::Attention(attention), Some(units)) => attention_of_warpgroups(attention, units, most_bytes),
    }
}

/// Those of a product by vectors.
fn products(task: &Task<'_>, product: &Product) -> Vec<Schedule> {
    let threads = task.target.processors;
    let in_place = |blocks: Blocks| Schedule::whole(Reading::InPlace, Blocking::Product(blocks));
    let mut all = prepacked(task, product);
    let is_weight = !all.is_empty();
    if product.m <= MAX_SUMMED_ROWS {
        if !is_weight {
            all.extend(split_k(product, blocks::sums(product, 1)));
        }
        all.push(in_place(blocks::sums(product, threads)));
    }
    // Blocks of few rows compute as many more for nothing, and those over a weight where it lies bring what prepacking has in place into
    // place in each instance: neither is ever quicker.
    if !blocks::are_few(product.m) && !is_weight {
        all.push(in_place(blocks::dots(product, threads, false)));
        all.extend(split_k(product, blocks::dots(product, 1, false)));
        let packed = pack::panels(product, &task.target);
        let packed = packed
            .map(|(panels, blocks)| Schedule::whole(Reading::Packed(panels), Blocking::Product(blocks)));
        all.extend(packed);
    }
    all
}

/// That in as many parts of the sum as the threads have instances then, where the blocks are fewer.
fn split_k(product: &Product, blocks: Blocks) -> Option<Schedule> {
    let grid = blocks::grid(product, &blocks)?;
    let instances = grid.iter().fold(1i64, |all, &n| all.saturating_mul(n.into()));
    let whole = |parts: &i64| product.k % parts == 0 && product.k / parts >= MIN_PART;
    if product.m.max(product.n) > MAX_DIVIDED {
        return None;
    }
    let parts = (2..=THREADS_OF_PARTS / instances.max(1)).rev().find(whole)?;
    let splits = Splits { length: product.k / parts, count: u32::try_from(parts).ok()? };
    let depth = blocks.depth.min(blocks::covering(splits.length));
    let blocking = Blocking::Product(Blocks { depth, ..blocks });
    Some(Schedule { splits: Some(splits), ..Schedule::whole(Reading::InPlace, blocking) })
}

/// Those over a weight that may be prepacked.
fn prepacked(task: &Task<'_>, product: &Product) -> Vec<Schedule> {
    let target = &task.target;
    // Copies of weights take memory, and read by few rows they save no time.
    let Some(vectors) = target.prepacks.filter(|_| !blocks::are_few(product.m)) else { return Vec::new() };
    let panels = |width: i64| prepack::panels(task.graph, task.node, product, width);
    let in_groups = vnni::group(product, target).and_then(|group| {
        let panels = panels(vnni::width(product))?.in_groups(group, vnni::depth(product).into());
        let blocks = vnni::choose(product, target.processors, &panels);
        Some(Schedule::whole(Reading::Prepacked(panels), Blocking::Product(blocks)))
    });
    let in_blocks = || {
        let blocks = blocks::dots(product, target.processors, true);
        let panels = panels(blocks.columns.into())?;
        Some(Schedule::whole(Reading::Prepacked(panels), Blocking::Product(blocks)))
    };
    let as_pixels = || {
        let rows = UnalignedGemm::of(product, vectors)?;
        let panels = panels(rows.width())?;
        Some(Schedule::whole(Reading::Prepacked(panels), Blocking::UnalignedGemm(Box::new(rows))))
    };
    in_groups.into_iter().chain(as_pixels()).chain(in_blocks()).collect()
}

/// Those of a product of halves by warpgroups. Of the vectors that the epilogue reads, each instance holds its columns' elements.
fn products_of_warpgroups(
    task: &Task<'_>,
    product: &Product,
    units: &'static Warpgroups,
    most_bytes: u64,
) -> Result<Vec<Schedule>, MatchFailure> {
    if product.n.min(product.k) < MIN_EXTENT {
        return Err(MatchFailure::Small);
    }
    if !product.a.is_copied(product.windows.as_ref()) || !product.b.is_copied(None) {
        let is_conv = product.result_layout.is_some();
        return Err(if is_conv { MatchFailure::ImageStrides } else { MatchFailure::Strides });
    }
    let vectors = column_vectors(task.graph, task.node, product.n);
    let all = shapes_and_parts(product, units).into_iter().filter_map(|(shape, parts)| {
        let splits = (parts > 1).then(|| Splits { length: product.k / i64::from(parts), count: parts });
        let fits = match splits {
            None => shape.registers(vectors) <= units.product_registers,
            // The sums of parts are stored as they are.
            Some(splits) => {
                let bytes = product.partial_bytes(splits.count);
                shape.registers(0) <= units.product_registers && bytes <= most_bytes as f64
            }
        };
        let schedule = Schedule::whole(Reading::InPlace, Blocking::Warpgroups(shape));
        fits.then_some(Schedule { splits, ..schedule })
    });
    Ok(all.collect())
}

/// The blocks that a product may be computed in by warpgroups, and the numbers of parts of one length into which its sum may be divided.
pub(super) fn shapes_and_parts(
    product: &Product,
    units: &'static Warpgroups,
) -> Vec<(&'static ProductShape, u32)> {
    // A part of a filter does not begin where a part of the sum does.
    let is_filled = product.windows.as_ref().is_some_and(|windows| windows.channels < windows.filled);
    let whole = |parts: &u32| *parts == 1 || (product.k % i64::from(parts * LINE_DEPTH) == 0 && !is_filled);
    let parts: Vec<u32> = (1..=MAX_PARTS).filter(whole).collect();
    units.products.iter().flat_map(|shape| parts.iter().map(move |&parts| (shape, parts))).collect()
}

impl ProductShape {
    /// Registers of a thread: its sums, and of the vectors along the columns, of which it has a quarter of the elements, what is
    /// computed before it is used.
    fn registers(&self, vectors: u32) -> u32 {
        self.rows * self.columns / (32 * self.warps) + vectors * self.columns / 4 * 3 / 4
    }
}

/// Those of a convolution by vectors.
fn convolutions(task: &Task<'_>, call: &ConvCall) -> Vec<Schedule> {
    let (graph, node, threads) = (task.graph, task.node, task.target.processors);
    let by_filters = task.target.prepacks.and_then(|vectors| {
        let turn = may_be_channels_last(graph, node, vectors);
        FilterVectors::of(graph, node, call, turn, vectors)
    });
    let only_filters = by_filters.as_ref().is_some_and(|(_, vectors)| {
        // What readers that take filters innermost lose over another order is not in the model. Nor is what makes transposed convolutions
        // of many filters up to 20 times slower by pixels: how few of a row are of one phase.
        vectors.last || call.conv.is_transposed() && vectors.fills_vectors()
    });
    let by_pixels = || match call.conv.is_transposed() {
        true => Some(Blocking::Phases(Box::new(Phases::of(graph, node, call, threads)?))),
        false => call.row_major.then(|| Blocking::PixelVectors(conv::Block::of(&call.conv, threads))),
    };
    let by_pixels = if only_filters { None } else { by_pixels() };
    let by_filters =
        by_filters.map(|(reading, vectors)| (reading, Blocking::FilterVectors(Box::new(vectors))));
    let all = by_filters.into_iter().chain(by_pixels.map(|blocking| (Reading::InPlace, blocking)));
    all.map(|(reading, blocking)| Schedule::whole(reading, blocking)).collect()
}

/// Those of attention by vectors.
fn attention_of_vectors(
    task: &Task<'_>,
    attention: &Attention,
    most_bytes: u64,
) -> Result<Vec<Schedule>, MatchFailure> {
    let mut all = Vec::new();
    // The program of single queries masks no keys that come after one.
    if !attention.causal && attention.queries <= MAX_EACH {
        all.extend(queries(attention, QueryMapping::Each, most_bytes));
    }
    all.extend(queries(attention, QueryMapping::Lanes, most_bytes));
    // Parts have no program over what is packed.
    let in_parts = all.iter().any(|schedule| schedule.splits.is_some());
    if task.target.vnni2 && !in_parts && attention::packs_kv(attention) {
        all.extend(queries(attention, QueryMapping::Rows, most_bytes));
    }
    // Of queries and values that are not too wide there is one.
    if all.is_empty() { Err(MatchFailure::Sizes) } else { Ok(all) }
}

/// Those of all blocks of queries and keys on a host.
fn queries(attention: &Attention, mapping: QueryMapping, most_bytes: u64) -> Vec<Schedule> {
    let Some([width, depth]) = mapping.spans(attention) else { return Vec::new() };
    let steps = mapping.keys(attention);
    let all = mapping
        .queries(attention)
        .into_iter()
        .flat_map(|queries| steps.iter().map(move |&keys| (queries, keys)));
    all.map(|(queries, keys)| {
        let (width, depth) = (width.clone(), depth.clone());
        let blocks = QueryBlocks { mapping, queries, keys, width, depth, warps: None };
        let (reading, splits) = match mapping {
            QueryMapping::Rows => (Reading::PackedKv, None),
            // A rule, not a price: how many threads there are, which parts keep at work, is not in the model.
            QueryMapping::Each | QueryMapping::Lanes => {
                (Reading::InPlace, Splits::of_keys_on_host(attention, mapping, keys))
            }
        };
        let fits = |splits: &Splits| attention::written_bytes(attention, *splits) <= most_bytes as f64;
        Schedule { reading, blocking: Blocking::Queries(blocks), splits: splits.filter(fits) }
    })
    .collect()
}

/// Those of attention over halves by warpgroups. An instance holds the scores of a step and the sums of its queries in the registers of its
/// warps; keys and values are copied to shared memory some steps ahead, queries once.
fn attention_of_warpgroups(
    attention: &Attention,
    units: &'static Warpgroups,
    most_bytes: u64,
) -> Result<Vec<Schedule>, MatchFailure> {
    let few_members = attention.members().is_some_and(|members| members <= MAX_INSTANCES);
    if !few_members || attention.width.max(attention.depth) > MAX_ELEMENTS {
        return Err(MatchFailure::Sizes);
    }
    if ![&attention.q, &attention.k, &attention.v].into_iter().all(|access| access.is_copied(None)) {
        return Err(MatchFailure::Strides);
    }
    let of = |extent: i64| attention::spans(extent, [MIN_SPAN, 128]).ok_or(MatchFailure::Sizes);
    let (width, depth) = (of(attention.width)?, of(attention.depth)?);
    let shapes = units.attention.iter().filter(|shape| holds(units, shape, [&width, &depth]));
    let all = shapes.flat_map(|shape| {
        let splits = kv_splits(attention, shape, most_bytes).into_iter();
        splits.map(move |splits| (shape, splits))
    });
    let all = all.map(|(&AttentionShape { queries, keys, warps }, splits)| {
        let (mapping, width, depth) = (QueryMapping::Rows, width.clone(), depth.clone());
        let blocks = QueryBlocks { mapping, queries, keys, width, depth, warps: Some(warps) };
        Schedule { splits, ..Schedule::whole(Reading::InPlace, Blocking::Queries(blocks)) }
    });
    Ok(all.collect())
}

/// Whether registers and shared memory hold a block of queries and keys, and of values, of these elements.
fn holds(units: &Warpgroups, shape: &AttentionShape, [width, depth]: [&[Span]; 2]) -> bool {
    let elements = |spans: &[Span]| spans.iter().map(|span| span.extent).sum::<u32>();
    let (wide, deep) = (elements(width), elements(depth));
    let registers = shape.queries * (shape.keys * 3 / 2 + deep) / (32 * shape.warps);
    let shared = 2 * (shape.queries * wide + 2 * shape.keys * (wide + deep));
    registers <= units.attention_registers && shared <= units.shared_bytes
}

/// How the keys may be divided by warpgroups.
fn kv_splits(attention: &Attention, shape: &AttentionShape, most_bytes: u64) -> Vec<Option<Splits>> {
    let all = (1..=MAX_KV_PARTS.ilog2()).filter_map(|log| Splits::of_keys(attention, 1 << log, shape.keys));
    let mut all: Vec<Splits> = all.collect();
    all.dedup();
    all.retain(|&splits| attention::written_bytes(attention, splits) <= most_bytes as f64);
    // Blocks of queries are numbered along the second axis then.
    if blocks_of(attention.queries, shape.queries) > MAX_INSTANCES {
        all.clear();
    }
    [None].into_iter().chain(all.into_iter().map(Some)).collect()
}
