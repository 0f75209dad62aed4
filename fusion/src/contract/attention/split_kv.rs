//! Attention of few instances: ranges of keys have instances of their own, and a second kernel combines what these found.
//!
//! ```text
//! %6 = tilefuse::attended(query=%0, key=%1, value=%2) : f32[members,ranges,queries (depth + 2)]
//! %7 = aten::scaled_dot_product_attention(..), whose kernel reads %6
//! ```
//!
//! A range leaves the sum of values that its scores weigh, their maximum and the sum of exponentials below it. The weighted
//! sums, and those of exponentials, are scaled down to the maximum of all ranges and added up (Dao et al., "Flash-Decoding for
//! long-context inference", 2023). A range without a key that counts has the maximum -inf, and adds 0.
//!
//! Ranges follow from shapes alone: a result must not depend on how many threads there are.

use tilefuse_block::{Builder, CacheHint, Elem, Literal, Program, ReduceFn, ScalarFn as F, Value};

use super::blocks::{Blocks, blocks_of};
use super::call::Attention;
use super::make::{Kinds, Made, Place, along};
use super::program::fits;
use crate::block_kernel::{Alone, BlockKernel, BlockKernelKind, Layout, Tied};
use crate::contract::operand::Source;
use crate::contract::pack::OperandKernel;
use crate::plan::HOST_PARTS;
use crate::types::{DType, Device, TensorType};

/// The operator of the first kernel.
const ATTENDED: &str = "tilefuse::attended";

/// Queries of an instance that is large enough.
const QUERIES: u32 = 32;

/// The fewest keys of a range.
const LEAST_KEYS: i64 = 512;

/// The fewest multiplications where there is one instance, and where there are several, which keep few threads busy as they
/// are: a second kernel takes about ten microseconds.
const LEAST_WORK: i64 = 1 << 17;
const LEAST_WORK_OF_SEVERAL: i64 = 1 << 22;

/// How many times larger keys and values are than what ranges leave, at least.
const SHARE: i64 = 16;

/// The ranges of keys of one member of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    /// Keys of a range; the last one may have fewer.
    pub(super) length: i64,
    /// How many there are.
    pub(super) count: u32,
}

impl Ranges {
    /// The ranges of a call whose steps have so many keys; `None` where all keys of a query stay together.
    pub(super) fn of(attention: &Attention, alone: bool, keys: u32) -> Option<Ranges> {
        if attention.causal {
            return None;
        }
        let members = attention.members()?;
        let down = if alone { 1 } else { blocks_of(attention.queries, QUERIES) };
        let instances = members.checked_mul(down)?;
        let elements = attention.keys.checked_mul(attention.width.checked_add(attention.depth)?)?;
        let work = members.checked_mul(elements)?.checked_mul(attention.queries)?;
        let least = if instances == 1 { LEAST_WORK } else { LEAST_WORK_OF_SEVERAL };
        if instances >= HOST_PARTS || work < least {
            return None;
        }
        let wanted = (HOST_PARTS + instances - 1) / instances;
        let left = left_by_range(attention)?.checked_mul(attention.sum().bytes().into())?;
        let small = elements.checked_mul(attention.elem.bytes().into())? / left.checked_mul(SHARE)?;
        let count = wanted.min(attention.keys / LEAST_KEYS).min(small);
        if count < 2 {
            return None;
        }
        let block = i64::from(keys);
        let length = blocks_of((attention.keys + count - 1) / count, keys) * block;
        let count = u32::try_from((attention.keys + length - 1) / length).ok()?;
        (count > 1).then_some(Ranges { length, count })
    }
}

/// Elements that a range leaves of one member: for each query its weighted sum, then of all queries the maxima, then the
/// sums of exponentials.
pub(super) fn left_by_range(attention: &Attention) -> Option<i64> {
    attention.queries.checked_mul(attention.depth.checked_add(2)?)
}

/// The first of a member's maxima and of its sums of exponentials, behind what a range begins with.
pub(super) fn behind(attention: &Attention) -> [i64; 2] {
    let sums = attention.queries * attention.depth;
    [sums, sums + attention.queries]
}

/// What the first kernel makes of a call's operands, by its program and its grid.
pub(super) fn parts(
    attention: &Attention,
    ranges: Ranges,
    (program, grid): (Program, [u32; 3]),
    device: Device,
) -> Option<OperandKernel> {
    let shape = [attention.members()?, ranges.count.into(), left_by_range(attention)?];
    let ty = TensorType::contiguous(DType::Elem(attention.sum()), &shape, device);
    let sources: Vec<&Source> = attention.positions().collect();
    let numbered = || (0..).zip(&sources);
    let kernel = BlockKernel {
        kind: BlockKernelKind::Attention,
        program,
        grid,
        tied: numbered().map(|(at, _)| Tied::Operand(at)).chain([Tied::Result(0)]).collect(),
        checks: false,
        alone: Some(Alone::Attention),
        coordinates: Vec::new(),
        layouts: numbered().map(|(at, source)| (at, source.layout.clone())).collect(),
        note: None,
        expected_us: 0.0,
    };
    let positions = sources.iter().map(|source| source.position).collect();
    Some(OperandKernel { op: ATTENDED, kernel, ty, positions, group: 1, computes: true })
}

/// The kernel of the call, which combines what the operand at this position holds.
pub(super) fn combining(
    attention: &Attention,
    blocks: &Blocks,
    ranges: Ranges,
    position: u16,
) -> Option<BlockKernel> {
    let program = combine(attention, blocks, ranges).ok()?;
    let unread = attention.positions().map(|source| (source.position, source.layout.clone()));
    Some(BlockKernel {
        kind: BlockKernelKind::Attention,
        program,
        grid: [u32::try_from(attention.queries).ok()?, u32::try_from(attention.members()?).ok()?, 1],
        tied: vec![Tied::Operand(position), Tied::Result(0)],
        checks: false,
        alone: Some(Alone::Attention),
        coordinates: Vec::new(),
        // What the first kernel read stays where it lies.
        layouts: unread.chain([(position, Layout::Elements)]).collect(),
        note: None,
        expected_us: 0.0,
    })
}

/// The program of the second kernel; instances are numbered by query and by member of the batch.
fn combine(attention: &Attention, blocks: &Blocks, ranges: Ranges) -> Made<Program> {
    let mut builder = Builder::new("combined");
    let b = &mut builder;
    let index = if fits(attention, blocks) { Elem::I32 } else { Elem::I64 };
    let kinds = Kinds { index, sum: attention.sum() };
    let each = left_by_range(attention).unwrap_or(i64::MAX);
    let members = attention.members().unwrap_or(1);
    let count = i64::from(ranges.count);
    let pointer = |b: &mut Builder, name: &str, elem: Elem, len: i64| {
        b.ptr_param(name, elem, elem.bytes(), Some(len.unsigned_abs()))
    };
    let parts = pointer(b, "parts", kinds.sum, written(attention, ranges));
    let y = pointer(b, "y", attention.elem, members * attention.queries * attention.depth);
    let id = |b: &mut Builder, axis: u8| -> Made<Value> {
        let id = b.program_id(axis)?;
        b.cast(id, kinds.index)
    };
    let (query, member) = (id(b, 0)?, id(b, 1)?);
    let start = kinds.times(b, member, count * each)?;
    let extent = ranges.count.next_power_of_two();
    let zero = kinds.int(b, 0);
    let range = kinds.axis(b, zero, extent, (extent != ranges.count).then_some(count))?;
    let lanes = |b: &mut Builder, first: i64, other: f64| -> Made<Value> {
        let first = kinds.int(b, first);
        let first = b.map(F::Add, &[start, first])?;
        let first = b.map(F::Add, &[first, query])?;
        let offsets = kinds.row(b, range, each, first)?;
        let other = range.inside.map(|_| kinds.float(b, other, &[extent]));
        b.load(parts, offsets, range.inside, other, CacheHint::Default)
    };
    let [maxima, sums] = behind(attention);
    let most = lanes(b, maxima, f64::NEG_INFINITY)?;
    let sum = lanes(b, sums, 0.0)?;
    let all = b.reduce(ReduceFn::Max, most, 0, None)?;
    let (none, zero) = (kinds.float(b, f64::NEG_INFINITY, &[]), kinds.float(b, 0.0, &[]));
    // Where no key counts, the difference from -inf would be NaN.
    let closed = b.map(F::Eq, &[all, none])?;
    let below = b.map(F::Select, &[closed, zero, all])?;
    let below = b.splat(below, &[extent])?;
    let factor = b.map(F::Sub, &[most, below])?;
    let factor = b.map(F::Exp, &[factor])?;
    let sum = b.map(F::Mul, &[sum, factor])?;
    let sum = b.reduce(ReduceFn::Sum, sum, 0, None)?;
    let one = kinds.float(b, 1.0, &[]);
    let inverse = b.map(F::Div, &[one, sum])?;
    let closed = b.map(F::Eq, &[sum, zero])?;
    let inverse = b.map(F::Select, &[closed, zero, inverse])?;
    let batch = kinds.members(b, member, &attention.batch)?;
    let [down, right] = attention.out;
    let out = kinds.base(b, 0, &batch, &attention.out_batch)?;
    let row = kinds.times(b, query, down)?;
    let out = Place { ptr: y, start: b.map(F::Add, &[out, row])? };
    let row = kinds.times(b, query, attention.depth)?;
    let from = b.map(F::Add, &[start, row])?;
    for &span in &blocks.depth {
        let shape = [extent, span.extent];
        let first = kinds.int(b, span.first.into());
        let beyond = i64::from(span.first + span.extent) > attention.depth;
        let axis = kinds.axis(b, first, span.extent, beyond.then_some(attention.depth))?;
        let (offsets, mask) = kinds.offsets(b, [(range, each), (axis, 1)], from)?;
        let other = mask.map(|_| b.constant(Literal::float(kinds.sum, 0.0), &shape));
        let tile = b.load(parts, offsets, mask, other, CacheHint::Default)?;
        let factor = along(b, factor, 0, &shape)?;
        let tile = b.map(F::Mul, &[tile, factor])?;
        let tile = b.reduce(ReduceFn::Sum, tile, 0, None)?;
        let inverse = b.splat(inverse, &[span.extent])?;
        let tile = b.map(F::Mul, &[tile, inverse])?;
        let tile = b.cast(tile, attention.elem)?;
        let offsets = kinds.row(b, axis, right, out.start)?;
        b.store(out.ptr, offsets, tile, axis.inside, CacheHint::Default)?;
    }
    Ok(builder.finish())
}

/// Elements that all ranges leave; `i64::MAX` where these are too many.
pub(super) fn written(attention: &Attention, ranges: Ranges) -> i64 {
    let all =
        || left_by_range(attention)?.checked_mul(attention.members()?)?.checked_mul(ranges.count.into());
    all().unwrap_or(i64::MAX)
}
