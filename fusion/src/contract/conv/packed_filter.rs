//! Filters of a transposed convolution that are no weights, packed as panels by a kernel before each call.
//!
//! An instance takes some channels of a tap and a vector of filters. It reads them where they lie, puts zeros after the last
//! filters, and writes rows of a panel.

use smallvec::smallvec;
use tilefuse_block::dynamic::{
    BuildError, arange, axis, both, div_rem, full, load, program as write, program_id, store,
};
use tilefuse_block::{Elem, Program};

use super::ops::wide;
use crate::block_kernel::{BlockKernel, BlockKernelKind, Tied};
use crate::contract::call_kernels::OperandKernel;
use crate::contract::operand::Source;
use crate::contract::prepack::Panels;
use crate::taken::taken;
use crate::types::{DType, Device, TensorType, fits_i32};

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
    if !fits_i32(ty.numel()) || !fits_i32(filters.span) {
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
        neighbours_do_not_fit: false,
        coordinates: Vec::new(),
        layouts: vec![(0, filters.layout.clone())],
        schedule: String::new(),
        note: None,
        expected_us: 0.0,
    };
    let positions = smallvec![filters.position];
    Some(OperandKernel { kernel, ty, positions, group: 1, computes: false })
}

fn program(filters: &Source, panels: &Panels, elem: Elem, tile: [u32; 2]) -> Result<Program, BuildError> {
    let natural = |n: i64| n.unsigned_abs();
    let [channels, lanes] = tile;
    let [runs, down, across, blocks] = panels.strides.map(natural);
    let (run, columns, width) = (natural(panels.run), natural(panels.columns), natural(panels.width));
    let size = panels.shape().map(natural);
    taken!("filters packed in each call");
    write("laid_filters", |kernel| {
        let x = kernel.ptr("x", elem, natural(filters.span));
        let y = kernel.ptr("y", elem, size.iter().product());
        let (tap, part, vector) = (program_id(0), program_id(1), program_id(2));
        let channel = axis(part * channels, channels);
        let channel = if run.is_multiple_of(channels.into()) { channel } else { channel.below(run) };
        let column = axis(vector * lanes, lanes);
        let column = if columns.is_multiple_of(lanes.into()) { column } else { column.below(columns) };
        let is_channel = channel.mask.map(|mask| mask.along(0, tile));
        let is_filter = column.mask.map(|mask| mask.along(1, tile));

        // Where they lie.
        let (block, within) = div_rem(column.index, natural(panels.block));
        let filter = block * blocks + within * across;
        let at = (channel.index * down).along(0, tile) + filter.along(1, tile);
        let at = wide((tap * runs + filters.offset) + at);
        let mask = both(is_channel, is_filter);
        let loaded = load(x + at, mask, mask.map(|_| full(elem, tile, 0)));

        // Destinations: vectors are adjacent in the rows of a panel.
        let (panel, beside) = div_rem(vector, width / u64::from(lanes));
        let start = panel * (size[1] * width) + beside * lanes + tap * (run * width);
        let lane = arange(0, lanes.into());
        let to = (channel.index * width).along(0, tile) + lane.along(1, tile);
        store(y + wide(start + to), loaded, is_channel);
    })
}
