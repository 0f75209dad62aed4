//! Convolutions over filters that lie in panels: pixels are scalars, and vectors of filters are multiplied by them.
//!
//! ```text
//! for each tap of the outer axes that lies in the image, for each tap along a row, for each channel:
//!   w = the next vectors of the panel
//!   for each pixel:  sum[pixel] += x[pixel] w
//! ```
//!
//! Images lie at any strides. The result has its filters innermost where `last` says so, so that sums are stored as they
//! are, all vectors of a pixel at once: then it is a matrix of pixels by filters, of which each store is a [`Block`] of one row, and row
//! reductions are epilogues. Else it is row-major. Taps outside of the image are left out, by a mask where only some instances have
//! pixels there.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{
    BuildError, Tile, arange, both, div_rem, for_range, join, program_and, program_id, select, unravel, zeros,
};

use super::geometry::{Conv, ConvProgram, Image};
use super::ops::{PART, Params, int, multiply_add, read, wide, write};
use super::tile::Extents;
use crate::block_kernel::{Block, Coordinates};
use crate::contract::partial_sums::{
    LONGEST_PART, LONGEST_PART_IN_REGISTERS, LONGEST_SUM, SHORTEST_PART, added, in_parts, part_of,
};
use crate::contract::window_axis::{WindowAxis, inside};
use crate::taken::taken;
use crate::types::fits_i32;

/// The most taps along a row: each is code of its own.
const MAX_TAPS: u64 = 8;

/// The most where several are taken at once.
const MAX_PHASED: u64 = 32;

/// Elements between channels from which on they lie far apart, and the most taps of a row that are then taken together.
const MIN_DISTANT_CHANNELS: i64 = 1024;
const MAX_DISTANT_TAPS: u64 = 3;

/// Why there is no such program, if there is none.
///
/// # Errors
/// A sentence.
pub(super) fn check(conv: &Conv, image: &Image, tile: &Extents) -> Result<(), &'static str> {
    let row = conv.axes.last().map_or(1, |a| a.kernel);
    let contiguous = image.channel == 1 || conv.channels == 1;
    let whole = conv.filters_of_group().is_multiple_of(tile.width());
    let strides = [image.batch, image.channel, image.offset].into_iter().chain(image.axes.iter().copied());
    let reach = |axis: &WindowAxis| (axis.padding + axis.kernel * axis.dilation) as i64;
    let overhang: i64 = conv.axes.iter().zip(&image.axes).map(|(a, &s)| reach(a) * s).sum();
    match () {
        () if row.div_ceil(conv.taps_at_once()) > MAX_TAPS || row > MAX_PHASED => {
            Err("its kernel has too many taps along a row")
        }
        () if !u64::from(tile.pixels).is_multiple_of(conv.phases()) => Err("its stride is too large"),
        () if strides.into_iter().any(|s| s < 0) => Err("its images lie backwards"),
        () if !fits_i32(image.span.saturating_add(2 * overhang)) => Err("its images have too many elements"),
        () if conv.depth() > 1 && conv.groups > 1 && !whole => Err("its groups are no whole vectors"),
        () if conv.is_depthwise() && conv.filters != conv.channels => Err("a channel has several filters"),
        () if conv.is_depthwise() && !contiguous => Err("its channels do not follow each other"),
        () => Ok(()),
    }
}

/// Rows of the matrix of filters, taps by channels, and its columns.
pub(super) fn matrix(conv: &Conv) -> [u64; 2] {
    [conv.taps() * conv.depth(), conv.filters]
}

/// Elements of the panels.
fn panel_len(conv: &Conv, tile: &Extents) -> u64 {
    let [rows, columns] = matrix(conv);
    rows * columns.next_multiple_of(tile.width())
}

/// The same convolution with the pixels of an image in one row, where every pixel is made of its own alone.
pub(super) fn flat(conv: &Conv, image: &Image) -> (Conv, Image) {
    let alone = |a: &WindowAxis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.out == a.image;
    let dense = (1..image.axes.len()).all(|d| {
        conv.axes[d - 1].image == 1 || image.axes[d - 1] == image.axes[d] * conv.axes[d].image as i64
    });
    let Some(&step) = image.axes.last().filter(|_| dense && conv.axes.iter().all(alone)) else {
        return (conv.clone(), image.clone());
    };
    let axes = vec![WindowAxis::alone(conv.pixels())];
    (Conv { axes, ..conv.clone() }, Image { axes: vec![step], ..image.clone() })
}

/// The program, whose parameters are the images, the panels, the bias if there is one, and the result.
pub(super) fn program(
    conv: &Conv,
    image: &Image,
    tile: &Extents,
    last: bool,
) -> Result<ConvProgram, BuildError> {
    let name = if conv.is_depthwise() {
        taken!("vectors of filters of a channel each");
        "conv_depthwise"
    } else {
        taken!("vectors of filters");
        "conv_packed"
    };
    let (program, coordinates) = program_and(name, |kernel| {
        let lengths = [("images", image.span.unsigned_abs()), ("panels", panel_len(conv, tile))];
        let params = Params::of(kernel, conv, lengths);
        let body = Body { conv, image, tile, params, spot: Spot::of(conv, tile) };
        let sums = body.sums();
        let stored = body.stored(last);
        let together = (stored / tile.lanes) as usize;
        let mut sums: Vec<Tile> = sums.chunks(together).map(side_by_side).collect();
        let parts = tile.vectors * tile.lanes / stored;
        if let Some(bias) = params.bias {
            for part in 0..parts {
                let (filter, mask) = body.filters(part, stored);
                let bias = read(bias, filter, mask, conv.sum());
                for p in 0..tile.pixels {
                    sums[(p * parts + part) as usize] += bias;
                }
            }
        }
        let places = (0..tile.pixels).flat_map(|p| (0..parts).map(move |part| (p, part)));
        places.zip(sums).map(|(place, sum)| body.store(place, sum, last)).collect()
    })?;
    Ok(ConvProgram { program, instances: instances(conv, tile) as u32, coordinates })
}

/// Vectors one behind the other, of which there are so many as a power of two.
fn side_by_side(vectors: &[Tile]) -> Tile {
    if let [vector] = *vectors {
        return vector;
    }
    let (first, second) = vectors.split_at(vectors.len() / 2);
    let (first, second) = (side_by_side(first), side_by_side(second));
    let elements = first.shape().iter().chain(&second.shape()).sum::<u32>();
    join(first, second).trans().reshape([elements])
}

/// Strips of filters of all groups, by pixels of all images.
fn instances(conv: &Conv, tile: &Extents) -> u64 {
    let (per_group, groups) = filter_blocks(conv, tile);
    let width = conv.axes.last().map_or(1, |a| a.out);
    per_group * groups * conv.batch * (conv.pixels() / width) * tile.parts(conv)
}

/// Strips of a group's filters, and how many groups there are.
fn filter_blocks(conv: &Conv, tile: &Extents) -> (u64, u64) {
    match conv.is_depthwise() {
        true => (conv.filters.div_ceil(tile.width()), 1),
        false => (tile.filter_blocks(conv), conv.groups),
    }
}

/// Where an instance is.
struct Spot {
    /// The block of filters, counted through all groups.
    filter_block: Tile,
    group: Tile,
    n: Tile,
    /// The number of the row, and its place along the outer axes.
    row: Tile,
    outer: Vec<Tile>,
    /// Where its pixels begin in the row, and the same in pixels of a phase.
    start: Tile,
    at: Tile,
    /// Which pixel of the row is the first that no instance before it has, where that is not the first.
    own: Option<Tile>,
}

impl Spot {
    fn of(conv: &Conv, tile: &Extents) -> Spot {
        let id = program_id(0);
        let (per_group, groups) = filter_blocks(conv, tile);
        let parts = tile.parts(conv);
        let width = conv.axes.last().map_or(1, |a| a.out);
        let rows = conv.pixels() / width;
        let (filter_block, spot) = if tile.filters_first {
            let (spot, filter_block) = div_rem(id, per_group * groups);
            (filter_block, spot)
        } else {
            div_rem(id, conv.batch * rows * parts)
        };
        let group = if groups == 1 { int(0) } else { filter_block / per_group };
        let (rest, part) = div_rem(spot, parts);
        let (n, row) = div_rem(rest, rows);
        let outs = conv.axes.split_last().map_or(&[][..], |(_, outer)| outer);
        let outer = unravel(row, &outs.iter().map(|a| a.out).collect::<Vec<_>>());
        let phases = conv.phases();
        let first = part * (u64::from(tile.pixels) / phases);
        let (at, own) = if width.is_multiple_of(tile.pixels.into()) {
            (first, None)
        } else {
            // The last instance of a row begins earlier, and stores those of its pixels that are its own.
            (first.minimum(tile.last_start(conv) / phases), Some(first * phases))
        };
        Spot { filter_block, group, n, row, outer, start: at * phases, at, own }
    }
}

/// What a pixel is read from at a tap.
enum Pixel {
    /// Nothing: it lies outside of the image always.
    Outside,
    /// An element so far after the first one of the instance's row.
    At(i64),
    /// The element at an offset, or none where the mask does not hold.
    Masked(Tile, Tile),
}

/// A tap along a row: where its weights begin in the panel, and what each pixel is read from.
type Tap = (Tile, Vec<Pixel>);

/// A vector of an image, and where it counts, if not everywhere.
type Inside = (Tile, Option<Tile>);

struct Body<'a> {
    conv: &'a Conv,
    image: &'a Image,
    tile: &'a Extents,
    params: Params,
    spot: Spot,
}

impl Body<'_> {
    /// The axis of rows and the elements between its pixels.
    fn row(&self) -> (WindowAxis, i64) {
        (
            self.conv.axes.last().copied().unwrap_or(WindowAxis::alone(1)),
            self.image.axes.last().copied().unwrap_or(0),
        )
    }

    /// Part `part` of what follows `first`, in parts of so many elements.
    fn part(part: u32, elements: u32, first: Tile) -> Tile {
        let elements = i64::from(elements);
        first + arange(i64::from(part) * elements, i64::from(part + 1) * elements)
    }

    /// Filters that are stored at once: all of the tile where they are innermost in the result and so many as a tile may have, else a
    /// vector.
    fn stored(&self, last: bool) -> u32 {
        let Extents { lanes, vectors, .. } = *self.tile;
        if last && vectors.is_power_of_two() { lanes * vectors } else { lanes }
    }

    /// The numbers of the filters of a part of the tile, and which of them there are.
    fn filters(&self, part: u32, elements: u32) -> (Tile, Option<Tile>) {
        let filter = Self::part(part, elements, self.spot.filter_block * self.tile.width());
        let whole = self.conv.filters.is_multiple_of(self.tile.width());
        (filter, (!whole).then(|| filter.lt(self.conv.filters)))
    }

    /// No sums yet, of a vector.
    fn nothing(&self) -> Tile {
        zeros(self.conv.sum(), [self.tile.lanes])
    }

    /// The sums of all pixels and vectors, pixel by pixel.
    fn sums(&self) -> Vec<Tile> {
        let mut base = self.spot.n * self.image.batch + self.image.offset;
        if !self.conv.is_depthwise() {
            base += self.spot.group * (self.conv.depth() as i64 * self.image.channel);
        }
        self.outer(0, base, int(0), self.none())
    }

    /// The loops over taps along the outer axes from `axis` on.
    fn outer(&self, axis: usize, base: Tile, tap: Tile, sums: Vec<Tile>) -> Vec<Tile> {
        if axis + 1 >= self.conv.axes.len() {
            return self.taps(base, tap, sums);
        }
        let (a, stride) = (self.conv.axes[axis], self.image.axes[axis]);
        let window = a.window(self.spot.outer[axis]);
        window.taps().each(sums, |k, sums| {
            let tap = if a.kernel == 1 { tap } else { tap * a.kernel + k };
            self.outer(axis + 1, base + window.pixel(k) * stride, tap, sums)
        })
    }

    /// The taps along a row.
    fn taps(&self, base: Tile, tap: Tile, mut sums: Vec<Tile>) -> Vec<Tile> {
        let (a, stride) = self.row();
        let tap = tap * a.kernel;
        let from = wide(base + self.spot.at * (a.pitch() as i64 * stride));
        if self.conv.is_depthwise() {
            return self.depthwise(base, from, tap, sums);
        }
        let taps: Vec<u64> = (0..a.kernel).collect();
        let before = self.is_row_a_part().then(|| std::mem::replace(&mut sums, self.none()));
        for together in taps.chunks(self.taps_at_once() as usize) {
            let pixel = |p: u64, k: u64| a.ahead(p, k).map_or(Pixel::Outside, |low| self.pixel(base, low));
            let tap = |&k: &u64| {
                let pixels = (0..u64::from(self.tile.pixels)).map(|p| pixel(p, k)).collect();
                ((tap + k) * self.conv.depth(), pixels)
            };
            let all: Vec<Tap> = together.iter().map(tap).collect();
            sums = self.channels(from, &all, sums);
        }
        match before {
            Some(before) => added(&before, &sums),
            None => sums,
        }
    }

    /// Whether the sum of all products is long. That of a transposed convolution is one of parts in any case.
    fn is_long(&self) -> bool {
        !self.conv.is_transposed() && self.conv.depth() * self.conv.taps() > LONGEST_SUM
    }

    /// Whether the products of the taps along a row are a part of a long sum.
    fn is_row_a_part(&self) -> bool {
        let products = self.conv.depth() * self.row().0.kernel;
        self.is_long() && (SHORTEST_PART..=LONGEST_SUM).contains(&products)
    }

    /// No sums yet, of all pixels and vectors.
    fn none(&self) -> Vec<Tile> {
        vec![self.nothing(); (self.tile.pixels * self.tile.vectors) as usize]
    }

    /// Taps along a row that are taken for a channel before the next one: where channels lie far apart, each is a page of its
    /// own, and the processor looks up few.
    fn taps_at_once(&self) -> u64 {
        let apart = self.image.channel > MIN_DISTANT_CHANNELS && self.row().0.kernel <= MAX_DISTANT_TAPS;
        if apart && !self.conv.is_transposed() { self.row().0.kernel } else { self.conv.taps_at_once() }
    }

    /// What lies `low` pixels ahead of the image's pixel in which an instance begins, in the row that begins at `base`.
    fn pixel(&self, base: Tile, low: i64) -> Pixel {
        let (a, stride) = self.row();
        let last = self.tile.last_start(self.conv) / a.phases() * a.pitch();
        let image = a.image as i64;
        let high = low + last as i64;
        if high < 0 || low >= image {
            return Pixel::Outside;
        }
        if low >= 0 && high < image {
            return Pixel::At(low * stride);
        }
        let place = self.spot.at * a.pitch() + low;
        let (before, behind) = (low < 0, high >= image);
        let mask = inside(place, (0, a.image), (before, behind), None);
        let mut at = place;
        if before {
            at = at.maximum(0);
        }
        if behind {
            at = at.minimum(image - 1);
        }
        let at = wide(base + at * stride);
        mask.map_or(Pixel::At(low * stride), |mask| Pixel::Masked(at, mask))
    }

    /// All lanes where a condition holds, else none: as a comparison of lanes, since what is chosen by one condition
    /// becomes a branch.
    fn lanes_where(&self, condition: Tile) -> Tile {
        let count = select(condition, int(self.tile.lanes.into()), 0);
        arange(0, self.tile.lanes.into()).lt(count)
    }

    /// Where the weights of a row of the panel begin, for each vector.
    fn panel(&self, row: Tile) -> Vec<Tile> {
        let [rows, _] = matrix(self.conv);
        let start = self.spot.filter_block * (rows * self.tile.width()) + row * self.tile.width();
        (0..self.tile.vectors).map(|v| wide(Self::part(v, self.tile.lanes, start))).collect()
    }

    /// The loop over channels at taps that reach different pixels.
    fn channels(&self, from: Tile, taps: &[Tap], sums: Vec<Tile>) -> Vec<Tile> {
        let mask = |pixel: &Pixel| match pixel {
            Pixel::Masked(_, mask) => Some(self.lanes_where(*mask)),
            _ => None,
        };
        let part = |(row, pixels): &Tap| (self.panel(*row), pixels.iter().map(mask).collect::<Vec<_>>());
        let parts: Vec<_> = taps.iter().map(part).collect();
        let step = |first: Tile, mut sums: Vec<Tile>| {
            for c in 0..self.tile.unroll {
                for ((panel, masks), (_, pixels)) in parts.iter().zip(taps) {
                    self.step(first + c, panel, from, (pixels, masks), &mut sums);
                }
            }
            sums
        };
        let (depth, unroll) = (self.conv.depth(), self.tile.unroll.into());
        if depth == unroll {
            return step(int(0), sums);
        }
        let together = taps.len() as u64;
        let are_parts = match self.conv.is_transposed() {
            true => depth >= PART,
            false => self.is_long() && !self.is_row_a_part() && depth * together >= SHORTEST_PART,
        };
        if !are_parts {
            return for_range(0, depth, unroll, sums, step);
        }
        let longest = if self.is_long() { LONGEST_PART_IN_REGISTERS } else { LONGEST_PART };
        in_parts(Elem::I32, (depth, part_of(depth, unroll, longest / together)), sums, |first, count| {
            for_range(0, count, unroll, self.none(), |channel, sums| step(first + channel, sums))
        })
    }

    /// A channel at a tap.
    fn step(
        &self,
        channel: Tile,
        panel: &[Tile],
        from: Tile,
        (pixels, masks): (&[Pixel], &[Option<Tile>]),
        sums: &mut [Tile],
    ) {
        let channel = wide(channel);
        let row = channel * self.tile.width();
        let weight = |&start: &Tile| read(self.params.weights, row + start, None, self.conv.sum());
        let weights: Vec<Tile> = panel.iter().map(weight).collect();
        let plane = channel * self.image.channel;
        let first = from + plane;
        for (p, (pixel, mask)) in pixels.iter().zip(masks).enumerate() {
            let at = match pixel {
                Pixel::Outside => continue,
                Pixel::At(ahead) => first + *ahead,
                Pixel::Masked(at, _) => *at + plane,
            };
            let x = read(self.params.images, at, None, self.conv.sum());
            let x = x.broadcast_to([self.tile.lanes]);
            for (v, &w) in weights.iter().enumerate() {
                let sum = &mut sums[p * weights.len() + v];
                *sum = multiply_add(x, w, *sum, *mask);
            }
        }
    }

    /// The taps along a row of a convolution whose filters read a channel each: vectors of pixels by vectors of weights.
    fn depthwise(&self, base: Tile, from: Tile, tap: Tile, mut sums: Vec<Tile>) -> Vec<Tile> {
        let (a, _) = self.row();
        let vectors = self.tile.vectors;
        let panel = self.panel(tap);
        let weight = |k: u64, start: Tile| {
            read(self.params.weights, start + k * self.tile.width(), None, self.conv.sum())
        };
        let weights: Vec<Tile> = (0..a.kernel)
            .flat_map(|k| panel.iter().map(move |&start| (k, start)))
            .map(|(k, s)| weight(k, s))
            .collect();
        for v in 0..vectors {
            let filters = self.filters(v, self.tile.lanes);
            // What lies at a place, and whether it does, where that is not known.
            let mut read_before: Vec<(i64, Option<Inside>)> = Vec::new();
            for p in 0..u64::from(self.tile.pixels) {
                for k in 0..a.kernel {
                    let Some(ahead) = a.ahead(p, k) else { continue };
                    let known = read_before.iter().find(|(at, _)| *at == ahead).map(|(_, x)| *x);
                    let x = known.unwrap_or_else(|| {
                        let x = self.pixels_of(filters, base, from, ahead);
                        read_before.push((ahead, x));
                        x
                    });
                    if let Some((x, inside)) = x {
                        let sum = &mut sums[(p * u64::from(vectors) + u64::from(v)) as usize];
                        let w = weights[(k * u64::from(vectors) + u64::from(v)) as usize];
                        *sum = multiply_add(x, w, *sum, inside);
                    }
                }
            }
        }
        sums
    }

    /// What some filters read so far ahead, and whether it lies in the image, where that is not known.
    fn pixels_of(
        &self,
        (filter, mask): (Tile, Option<Tile>),
        base: Tile,
        from: Tile,
        ahead: i64,
    ) -> Option<Inside> {
        let (at, inside) = match self.pixel(base, ahead) {
            Pixel::Outside => return None,
            Pixel::At(ahead) => (from + ahead, None),
            Pixel::Masked(at, mask) => (at, Some(self.lanes_where(mask))),
        };
        let x = read(self.params.images, at + wide(filter), both(mask, inside), self.conv.sum());
        Some((x, inside))
    }

    /// Stores the sums of a part of the tile's filters at a pixel, and says which elements these are.
    fn store(&self, (p, part): (u32, u32), sum: Tile, last: bool) -> Coordinates {
        let conv = self.conv;
        let stored = self.stored(last);
        let (filter, filters) = self.filters(part, stored);
        let place = self.spot.start + p;
        let own = self.spot.own.map(|own| place.ge(own));
        let width = conv.axes.last().map_or(1, |a| a.out);
        // Of the last instance of a row, pixels of the last phases may lie past it.
        let ends = self.tile.last_start(conv) + u64::from(p) < width;
        let inside = both(own, (!ends).then(|| place.lt(width)));
        let pixel = self.spot.row * width + place;
        let is_whole = filters.is_none();
        if !last {
            let of_lanes = |index: Tile, extent: u64, inside: bool| {
                (index.broadcast_to([stored]).value(), extent, inside)
            };
            let offsets = pixel + (self.spot.n * conv.filters + filter) * conv.pixels();
            let image = of_lanes(self.spot.n, conv.batch, true);
            let pixel = of_lanes(pixel, conv.pixels(), ends);
            write(self.params.result, offsets, sum, both(filters, inside));
            let axes = [image, (filter.value(), conv.filters, is_whole), pixel];
            return Coordinates::of_result(offsets.value(), &axes);
        }
        let (pixel, filter) = (self.spot.n * conv.pixels() + pixel, filter.row());
        let offsets = pixel * conv.filters + filter;
        let pixels = conv.batch * conv.pixels();
        let block = Block {
            rows: pixel.broadcast_to([1]).value(),
            inside: inside.map(|inside| inside.broadcast_to([1]).value()),
            matrix: [pixels as i64, conv.filters as i64],
            columns: stored,
            number: (self.spot.filter_block * (self.tile.width() / u64::from(stored)) + u64::from(part))
                .value(),
        };
        let pixel = (pixel.broadcast_to([1, stored]).value(), pixels, ends);
        write(self.params.result, offsets, sum.row(), both(filters.map(Tile::row), inside));
        let axes = [pixel, (filter.value(), conv.filters, is_whole)];
        Coordinates { block: Some(block), ..Coordinates::of_result(offsets.value(), &axes) }
    }
}
