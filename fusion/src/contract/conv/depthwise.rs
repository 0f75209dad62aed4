//! Convolutions in which a filter reads one channel.

use tilefuse_block::dynamic::{BuildError, Tile, div_rem, for_range, program_and, program_id, zeros};

use super::block::{Block, Pixels};
use super::geometry::{Conv, ConvProgram};
use super::ops::{Params, int, multiply_add, read, write};
use crate::block_kernel::Coordinates;
use crate::taken::taken;

pub(super) fn program(conv: &Conv, block: &Block) -> Result<ConvProgram, BuildError> {
    let wanted = u64::from(block.filters).clamp(1, conv.filters);
    let each = (1..=wanted).rev().find(|n| conv.filters.is_multiple_of(*n)).unwrap_or(1);
    let filter_blocks = conv.filters / each;
    let parts = block.parts(conv);
    taken!("vectors of pixels of a channel");
    let (program, coordinates) = program_and("conv_depthwise", |kernel| {
        let [images, weights, ..] = conv.lengths();
        let params = Params::of(kernel, conv, [("images", images), ("weights", weights)]);
        let (rest, part) = div_rem(program_id(0), parts);
        let (n, filter_block) = div_rem(rest, filter_blocks);
        let pixels = Pixels::of(conv, block, part);
        let taps = taps(conv, &pixels);
        let body = DepthwiseWriter { conv, block, params, n, pixels, taps };
        let low = filter_block * each;
        let mut coordinates = Vec::new();
        for_range(0, each, 1, (), |number, ()| coordinates.push(body.filter(low + number)));
        coordinates
    })?;
    let instances = (parts * filter_blocks * conv.batch) as u32;
    Ok(ConvProgram { program, instances, coordinates })
}

/// What the loop over filters needs.
struct DepthwiseWriter<'a> {
    conv: &'a Conv,
    block: &'a Block,
    params: Params,
    /// The number of the image.
    n: Tile,
    pixels: Pixels<'a>,
    taps: Vec<(Tile, Option<Tile>)>,
}

impl DepthwiseWriter<'_> {
    /// The pixels of a filter; says which elements of the result they are.
    fn filter(&self, filter: Tile) -> Coordinates {
        let (conv, area) = (self.conv, [self.block.area()]);
        let Params { images, weights, bias, result } = self.params;
        let channel = self.n * conv.channels + div_rem(filter, conv.filters_of_group()).0;
        let image = channel * conv.image();
        let row = filter * conv.taps();
        let mut sum = zeros(conv.sum(), area);
        for (k, &(at, mask)) in self.taps.iter().enumerate() {
            let x = read(images, image + at, mask, conv.sum());
            let w = read(weights, row + k, None, conv.sum()).broadcast_to(area);
            sum = multiply_add(x, w, sum, mask);
        }
        if let Some(bias) = bias {
            sum = read(bias, filter, None, conv.sum()) + sum;
        }
        let offsets = (self.n * conv.filters + filter) * conv.pixels() + self.pixels.number;
        let [image, filter] = [self.n, filter].map(|scalar| scalar.broadcast_to(area).value());
        let (number, inside) = (self.pixels.number.value(), self.pixels.mask.is_none());
        let axes = [(image, conv.batch, true), (filter, conv.filters, true), (number, conv.pixels(), inside)];
        write(result, offsets, sum, self.pixels.mask);
        Coordinates::of_result(offsets.value(), &axes)
    }
}

/// Every tap's offsets in a channel and its mask.
fn taps(conv: &Conv, pixels: &Pixels<'_>) -> Vec<(Tile, Option<Tile>)> {
    let tap = |number: u64| {
        let mut rest = number;
        let mut tap = Vec::new();
        for axis in conv.axes.iter().rev() {
            tap.push(int(rest % axis.kernel));
            rest /= axis.kernel;
        }
        tap.reverse();
        pixels.tap(&tap)
    };
    (0..conv.taps()).map(tap).collect()
}
