//! Attention of few instances: ranges of keys have instances of their own, and a second kernel combines what these found.
//!
//! ```text
//! %6 = kernel attention(%0, %1, %2) : f32[members,ranges,queries (depth + 2)]
//! %7 = aten::scaled_dot_product_attention(..), whose kernel reads %6
//! ```
//!
//! A range leaves the sum of values that its scores weigh, their maximum and the sum of exponentials below it. The weighted
//! sums, and those of exponentials, are scaled down to the maximum of all ranges and added up (Dao et al., "Flash-Decoding for
//! long-context inference", 2023). A range without a key that counts has the maximum -inf, and adds 0.

use tilefuse_block::dynamic::{BuildError, Tile, axis, offset, program, program_id, scalar, unravel};
use tilefuse_block::{Elem, Program};

use super::blocks::{QueryBlocks, fits};
use super::call::Attention;
use super::kv_splits::{behind, left_by_split, written};
use super::online::{factors, inverse};
use crate::block_kernel::{BlockKernel, BlockKernelKind, Coordinates, Layout, Tied};
use crate::contract::accesses::{Accesses, Matrix};
use crate::contract::call_kernels::OperandKernel;
use crate::contract::operand::Source;
use crate::contract::schedule::Splits;
use crate::taken::taken;
use crate::types::{DType, Device, TensorType};

/// What the first kernel makes of a call's operands, by its program and its grid.
pub(super) fn parts(
    attention: &Attention,
    splits: Splits,
    ((program, coordinates), grid): ((Program, Vec<Coordinates>), [u32; 3]),
    device: Device,
    schedule: String,
) -> Option<OperandKernel> {
    let shape = [attention.members()?, splits.count.into(), left_by_split(attention)?];
    let ty = TensorType::contiguous(DType::Elem(attention.sum()), &shape, device);
    let sources: Vec<&Source> = attention.positions().collect();
    let numbered = || (0..).zip(&sources);
    let kernel = BlockKernel {
        kind: BlockKernelKind::Attention,
        program,
        grid,
        tied: numbered().map(|(at, _)| Tied::Operand(at)).chain([Tied::Result(0)]).collect(),
        checks: false,
        neighbours_do_not_fit: false,
        coordinates,
        layouts: numbered().map(|(at, source)| (at, source.layout.clone())).collect(),
        schedule,
        note: None,
        expected_us: 0.0,
    };
    let positions = sources.iter().map(|source| source.position).collect();
    Some(OperandKernel { kernel, ty, positions, group: 1, computes: true })
}

/// The kernel of the call, which combines what the operand at this position holds.
pub(super) fn combining(
    attention: &Attention,
    blocks: &QueryBlocks,
    splits: Splits,
    position: u16,
) -> Option<BlockKernel> {
    let (program, coordinates) = combine(attention, blocks, splits).ok()?;
    let unread = attention.positions().map(|source| (source.position, source.layout.clone()));
    Some(BlockKernel {
        kind: BlockKernelKind::Attention,
        program,
        grid: [u32::try_from(attention.queries).ok()?, u32::try_from(attention.members()?).ok()?, 1],
        tied: vec![Tied::Operand(position), Tied::Result(0)],
        checks: false,
        neighbours_do_not_fit: false,
        coordinates,
        // What the first kernel read stays where it lies.
        layouts: unread.chain([(position, Layout::Elements)]).collect(),
        schedule: format!("split-KV: combines {} parts", splits.count),
        note: None,
        expected_us: 0.0,
    })
}

/// The program of the second kernel; instances are numbered by query and by member of the batch.
fn combine(
    attention: &Attention,
    blocks: &QueryBlocks,
    splits: Splits,
) -> Result<(Program, Vec<Coordinates>), BuildError> {
    let index = if fits(attention, blocks, Some(splits)) { Elem::I32 } else { Elem::I64 };
    let each = left_by_split(attention).unwrap_or(i64::MAX);
    let members = attention.members().unwrap_or(1);
    let count = i64::from(splits.count);
    taken!("split-KV");
    let accesses = Accesses::default();
    let program = program("combined", |kernel| {
        let pointer =
            |name: &str, elem: Elem, len: i64| kernel.ptr(name, elem, len.unsigned_abs()).indexed(index);
        let parts = pointer("parts", attention.sum(), written(attention, splits));
        let y = pointer("y", attention.elem, members * attention.queries * attention.depth);
        let (query, member) = (program_id(0).cast(index), program_id(1).cast(index));
        let parts = parts + member * (count * each);
        let extent = splits.count.next_power_of_two();
        let range = axis(scalar(index, 0), extent);
        let range = if extent == splits.count { range } else { range.below(count) };
        let of_query =
            |first: i64, other: f64| (parts + first + query).block(&[(range, each)]).load_or(other);
        let [maxima, sums] = behind(attention);
        let (most, sum) = (of_query(maxima, f64::NEG_INFINITY), of_query(sums, 0.0));
        let factor: Tile = factors(most, 0);
        let inverse = inverse((sum * factor).sum(0), attention);
        let batch = unravel(member, &attention.batch);
        let [down, _] = attention.out;
        let y = y.skip(offset(index, 0, &batch, &attention.out_batch));
        let y = Matrix::new(y, attention.out, [attention.queries, attention.depth]);
        let y = y.of_batch(&accesses, &batch, &attention.batch, &attention.out_batch);
        let parts = parts + query * attention.depth;
        for &span in &blocks.depth {
            let elements = axis(scalar(index, span.first), span.extent);
            let beyond = i64::from(span.first + span.extent) > attention.depth;
            let elements = if beyond { elements.below(attention.depth) } else { elements };
            let tile = parts.block(&[(range, each), (elements, 1)]).load_or(0.0);
            let tile = (tile * factor.col()).sum(0) * inverse;
            y.row(query, query * down, elements).store(tile.cast(attention.elem));
        }
    })?;
    Ok((program, accesses.take()))
}
