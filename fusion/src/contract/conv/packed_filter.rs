//! Filters of a transposed convolution that are no weights, packed as panels by a kernel before each call.
//!
//! An instance takes some channels of a tap and a vector of filters. It reads them where they lie, puts zeros behind the last
//! filters, and writes rows of a panel.

use smallvec::smallvec;
use tilefuse_block::{Builder, CacheHint, Elem, Literal, Program};

use super::make::{Made, add, along, below, both, mask_along, plus, split, times, wide};
use crate::block_kernel::{BlockKernel, BlockKernelKind, Tied};
use crate::contract::operand::Source;
use crate::contract::pack::{OperandKernel, PACK};
use crate::contract::prepack::Panels;
use crate::types::{DType, Device, TensorType};

/// The most channels of an instance.
const CHANNELS: i64 = 32;

/// The kernel that makes `panels` of filters, `lanes` of them a vector.
pub(super) fn of(
    filters: &Source,
    panels: &Panels,
    elem: Elem,
    lanes: u32,
    device: Device,
) -> Option<OperandKernel> {
    let ty = TensorType::contiguous(DType::Elem(elem), &panels.shape(), device);
    if ty.numel() >= 1 << 31 || filters.span >= 1 << 31 {
        return None;
    }
    let vectors = panels.width / i64::from(lanes);
    let channels = CHANNELS.min(panels.run).max(1) as u64;
    let channels = u32::try_from(channels.next_power_of_two()).ok()?;
    let extents = [
        panels.rows / panels.run,
        panels.run.unsigned_abs().div_ceil(channels.into()) as i64,
        panels.shape()[0] * vectors,
    ];
    let grid = extents.map(|n| u32::try_from(n).unwrap_or(0));
    let kernel = BlockKernel {
        kind: BlockKernelKind::Pack,
        program: program(filters, panels, elem, [channels, lanes]).ok()?,
        grid,
        tied: vec![Tied::Operand(0), Tied::Result(0)],
        checks: false,
        alone: None,
        coordinates: Vec::new(),
        layouts: vec![(0, filters.layout.clone())],
        note: None,
        expected_us: 0.0,
    };
    let positions = smallvec![filters.position];
    Some(OperandKernel { op: PACK, kernel, ty, positions, group: 1, computes: false })
}

fn program(filters: &Source, panels: &Panels, elem: Elem, tile: [u32; 2]) -> Made<Program> {
    let natural = |n: i64| n.unsigned_abs();
    let [channels, lanes] = tile;
    let [runs, down, across, blocks] = panels.strides.map(natural);
    let (run, columns, width) = (natural(panels.run), natural(panels.columns), natural(panels.width));
    let size = panels.shape().map(natural);
    let mut builder = Builder::new("laid_filters");
    let b = &mut builder;
    let x = b.ptr_param("x", elem, elem.bytes(), Some(natural(filters.span)));
    let y = b.ptr_param("y", elem, elem.bytes(), Some(size.iter().product()));
    let (tap, part, vector) = (b.program_id(0)?, b.program_id(1)?, b.program_id(2)?);

    let channel = b.range(0, channels)?;
    let first = times(b, part, channels.into())?;
    let first = b.splat(first, &[channels])?;
    let channel = add(b, first, channel)?;
    let there = if run.is_multiple_of(channels.into()) { None } else { Some(below(b, channel, run)?) };
    let there = mask_along(b, there, 0, &tile)?;

    let lane = b.range(0, lanes)?;
    let first = times(b, vector, lanes.into())?;
    let first = b.splat(first, &[lanes])?;
    let column = add(b, first, lane)?;
    let is_filter =
        if columns.is_multiple_of(lanes.into()) { None } else { Some(below(b, column, columns)?) };
    let is_filter = mask_along(b, is_filter, 1, &tile)?;

    // Where they lie.
    let (block, within) = split(b, column, natural(panels.block))?;
    let (block, within) = (times(b, block, blocks)?, times(b, within, across)?);
    let filter = add(b, block, within)?;
    let filter = along(b, filter, 1, &tile)?;
    let row = times(b, channel, down)?;
    let row = along(b, row, 0, &tile)?;
    let from = times(b, tap, runs)?;
    let from = plus(b, from, filters.offset)?;
    let from = b.splat(from, &tile)?;
    let at = add(b, row, filter)?;
    let at = add(b, from, at)?;
    let at = wide(b, at)?;
    let mask = both(b, there, is_filter)?;
    let other = mask.map(|_| b.constant(Literal::of(elem, 0.0), &tile));
    let loaded = b.load(x, at, mask, other, CacheHint::Default)?;

    // Where they go: vectors lie side by side in the rows of a panel.
    let (panel, beside) = split(b, vector, width / u64::from(lanes))?;
    let panel = times(b, panel, size[1] * width)?;
    let beside = times(b, beside, lanes.into())?;
    let tap = times(b, tap, run * width)?;
    let start = add(b, panel, beside)?;
    let start = add(b, start, tap)?;
    let start = b.splat(start, &tile)?;
    let row = times(b, channel, width)?;
    let row = along(b, row, 0, &tile)?;
    let lane = along(b, lane, 1, &tile)?;
    let to = add(b, row, lane)?;
    let to = add(b, start, to)?;
    let to = wide(b, to)?;
    b.store(y, to, loaded, there, CacheHint::Default)?;
    Ok(builder.finish())
}
