//! Convolutions over filters that lie in panels: pixels are scalars, and vectors of filters are multiplied by them.
//!
//! ```text
//! for each tap of the outer axes that lies in the image, for each tap along a row, for each channel:
//!   w = the next vectors of the panel
//!   for each pixel:  sum[pixel] += x[pixel] w
//! ```
//!
//! Images lie at any strides. The result has its filters innermost where `last` says so, so that sums are stored as they
//! are; else it is row-major. Taps outside of the image are left out, by a mask where only some instances have
//! pixels there.

use tilefuse_block::{Builder, Literal, ScalarFn as F, Value};

use super::make::{
    LONGEST_PART, Made, PART, add, below, both, in_parts, int, multiply_add, plus, read, shift, split, times,
    wide, write,
};
use super::tile::Tile;
use super::{Axis, Conv, ConvProgram, phase};
use crate::block_kernel::{Coordinate, Coordinates};

/// Where images lie.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Image {
    /// Elements between images.
    pub(super) batch: i64,
    /// Elements between channels.
    pub(super) channel: i64,
    /// Elements between pixels along each axis.
    pub(super) axes: Vec<i64>,
    /// The first element.
    pub(super) offset: i64,
    /// Elements that the pointer reaches.
    pub(super) span: i64,
}

/// The most taps along a row: each is code of its own.
const MOST_TAPS: u64 = 8;

/// The most where several are taken at once.
const MOST_PHASED: u64 = 32;

/// Elements between channels from which on they lie far apart, and the most taps of a row that are then taken together.
const FAR: i64 = 1024;
const FEW_TAPS: u64 = 3;

/// Why there is no such program, if there is none.
///
/// # Errors
/// A sentence.
pub(super) fn check(conv: &Conv, image: &Image, tile: &Tile) -> Result<(), &'static str> {
    let row = conv.axes.last().map_or(1, |a| a.kernel);
    let contiguous = image.channel == 1 || conv.channels == 1;
    let whole = conv.filters_of_group().is_multiple_of(tile.width());
    let strides = [image.batch, image.channel, image.offset].into_iter().chain(image.axes.iter().copied());
    let reach = |axis: &Axis| (axis.padding + axis.kernel * axis.dilation) as i64;
    let overhang: i64 = conv.axes.iter().zip(&image.axes).map(|(a, &s)| reach(a) * s).sum();
    match () {
        () if row.div_ceil(conv.taps_at_once()) > MOST_TAPS || row > MOST_PHASED => {
            Err("its kernel has too many taps along a row")
        }
        () if !u64::from(tile.pixels).is_multiple_of(conv.phases()) => Err("its stride is too large"),
        () if strides.into_iter().any(|s| s < 0) => Err("its images lie backwards"),
        () if image.span.saturating_add(2 * overhang) >= 1 << 31 => Err("its images have too many elements"),
        () if conv.depth() > 1 && conv.groups > 1 && !whole => Err("its groups are no whole vectors"),
        () if is_depthwise(conv) && conv.filters != conv.channels => Err("a channel has several filters"),
        () if is_depthwise(conv) && !contiguous => Err("its channels do not follow each other"),
        () => Ok(()),
    }
}

/// Whether each filter reads a channel of its own.
pub(super) fn is_depthwise(conv: &Conv) -> bool {
    conv.depth() == 1 && conv.groups > 1
}

/// Rows of the matrix of filters, taps by channels, and its columns.
pub(super) fn matrix(conv: &Conv) -> [u64; 2] {
    [conv.taps() * conv.depth(), conv.filters]
}

/// Elements of the panels.
fn panel_len(conv: &Conv, tile: &Tile) -> u64 {
    let [rows, columns] = matrix(conv);
    rows * columns.next_multiple_of(tile.width())
}

/// The same convolution with the pixels of an image in one row, where every pixel is made of its own alone.
pub(super) fn flat(conv: &Conv, image: &Image) -> (Conv, Image) {
    let alone = |a: &Axis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.out == a.image;
    let dense = (1..image.axes.len()).all(|d| {
        conv.axes[d - 1].image == 1 || image.axes[d - 1] == image.axes[d] * conv.axes[d].image as i64
    });
    let Some(&step) = image.axes.last().filter(|_| dense && conv.axes.iter().all(alone)) else {
        return (conv.clone(), image.clone());
    };
    let pixels = conv.pixels();
    let axis = Axis { image: pixels, kernel: 1, stride: 1, padding: 0, dilation: 1, out: pixels };
    (Conv { axes: vec![axis], ..conv.clone() }, Image { axes: vec![step], ..image.clone() })
}

/// The program, whose parameters are the images, the panels, the bias if there is one, and the result.
pub(super) fn program(conv: &Conv, image: &Image, tile: &Tile, last: bool) -> Made<ConvProgram> {
    let mut b = Builder::new(if is_depthwise(conv) { "conv_depthwise" } else { "conv_packed" });
    let align = conv.elem.bytes();
    let lengths = conv.lengths();
    let images = b.ptr_param("images", conv.elem, align, Some(image.span.unsigned_abs()));
    let panels = b.ptr_param("panels", conv.elem, align, Some(panel_len(conv, tile)));
    let bias = conv.bias.then(|| b.ptr_param("bias", conv.elem, align, Some(lengths[2])));
    let result = b.ptr_param("result", conv.elem, align, Some(lengths[3]));
    let spot = Spot::of(&mut b, conv, tile)?;
    let body = Body { conv, image, tile, images, panels, spot };
    let mut sums = body.sums(&mut b)?;
    if let Some(bias) = bias {
        for v in 0..tile.vectors {
            let (filter, mask) = body.filters(&mut b, v)?;
            let bias = read(&mut b, bias, filter, mask, conv.sum())?;
            for p in 0..tile.pixels {
                let sum = &mut sums[(p * tile.vectors + v) as usize];
                *sum = add(&mut b, *sum, bias)?;
            }
        }
    }
    let mut coordinates = Vec::new();
    for p in 0..tile.pixels {
        for v in 0..tile.vectors {
            let sum = sums[(p * tile.vectors + v) as usize];
            coordinates.push(body.store(&mut b, result, (p, v), sum, last)?);
        }
    }
    let instances = body.spots() * body.strips();
    Ok(ConvProgram { program: b.finish(), instances: instances as u32, coordinates })
}

/// Where an instance is.
struct Spot {
    /// The strip of filters, counted through all groups.
    strip: Value,
    group: Value,
    n: Value,
    /// The number of the row, and its place along the outer axes.
    row: Value,
    outer: Vec<Value>,
    /// Where its pixels begin in the row, and the same in pixels of a phase.
    start: Value,
    at: Value,
    /// Which pixel of the row is the first that no instance before it has, where that is not the first.
    own: Option<Value>,
}

impl Spot {
    fn of(b: &mut Builder, conv: &Conv, tile: &Tile) -> Made<Spot> {
        let id = b.program_id(0)?;
        let per_group =
            if is_depthwise(conv) { conv.filters.div_ceil(tile.width()) } else { tile.strips(conv) };
        let groups = if is_depthwise(conv) { 1 } else { conv.groups };
        let parts = tile.parts(conv);
        let width = conv.axes.last().map_or(1, |a| a.out);
        let rows = conv.pixels() / width;
        let (strip, spot) = if tile.filters_first {
            let (spot, strip) = split(b, id, per_group * groups)?;
            (strip, spot)
        } else {
            split(b, id, conv.batch * rows * parts)?
        };
        let (group, _) = split(b, strip, per_group)?;
        let group = if groups == 1 { int(b, 0) } else { group };
        let (rest, part) = split(b, spot, parts)?;
        let (n, row) = split(b, rest, rows)?;
        let mut outer = Vec::new();
        let mut number = row;
        let outs = conv.axes.split_last().map_or(&[][..], |(_, outer)| outer);
        for (at, axis) in outs.iter().enumerate().rev() {
            if at == 0 {
                outer.push(number);
            } else {
                let (high, low) = split(b, number, axis.out)?;
                outer.push(low);
                number = high;
            }
        }
        outer.reverse();
        let phases = conv.phases();
        let first = times(b, part, u64::from(tile.pixels) / phases)?;
        let (at, own) = if width.is_multiple_of(tile.pixels.into()) {
            (first, None)
        } else {
            // The last instance of a row begins earlier, and stores those of its pixels that are its own.
            let most = int(b, tile.last_start(conv) / phases);
            (b.map(F::Min, &[first, most])?, Some(times(b, first, phases)?))
        };
        let start = times(b, at, phases)?;
        Ok(Spot { strip, group, n, row, outer, start, at, own })
    }
}

/// What a pixel is read from at a tap.
enum Pixel {
    /// Nothing: it lies outside of the image always.
    Outside,
    /// An element so far behind the first one of the instance's row.
    At(i64),
    /// The element at an offset, or none where the mask does not hold.
    Masked(Value, Value),
}

/// A tap along a row: where its weights begin in the panel, and what each pixel is read from.
type Tap = (Value, Vec<Pixel>);

/// A vector of an image, and where it counts, if not everywhere.
type Inside = (Value, Option<Value>);

struct Body<'a> {
    conv: &'a Conv,
    image: &'a Image,
    tile: &'a Tile,
    images: Value,
    panels: Value,
    spot: Spot,
}

impl Body<'_> {
    /// Strips of filters of all groups.
    fn strips(&self) -> u64 {
        match is_depthwise(self.conv) {
            true => self.conv.filters.div_ceil(self.tile.width()),
            false => self.tile.strips(self.conv) * self.conv.groups,
        }
    }

    /// Instances along the pixels of all images.
    fn spots(&self) -> u64 {
        let width = self.conv.axes.last().map_or(1, |a| a.out);
        self.conv.batch * (self.conv.pixels() / width) * self.tile.parts(self.conv)
    }

    /// The axis of rows and the elements between its pixels.
    fn row(&self) -> (Axis, i64) {
        let one = Axis { image: 1, kernel: 1, stride: 1, padding: 0, dilation: 1, out: 1 };
        (self.conv.axes.last().copied().unwrap_or(one), self.image.axes.last().copied().unwrap_or(0))
    }

    /// Pixels of the image between neighbours of the result, of the same phase if there are several.
    fn pitch(&self) -> u64 {
        if self.conv.transposed { 1 } else { self.row().0.stride }
    }

    /// Where the pixel `p` of an instance is read from at a tap along the row, counted from the image's pixel in which its
    /// first one begins; `None` where the tap does not reach it.
    fn ahead(&self, p: u64, tap: u64) -> Option<i64> {
        let (a, _) = self.row();
        match self.conv.transposed {
            true => a.reached(p, tap),
            false => Some((p * a.stride + tap * a.dilation) as i64 - a.padding as i64),
        }
    }

    /// The numbers of a vector of filters, and which of them there are.
    fn filters(&self, b: &mut Builder, v: u32) -> Made<(Value, Option<Value>)> {
        let range = b.range((v * self.tile.lanes) as i32, self.tile.lanes)?;
        let first = times(b, self.spot.strip, self.tile.width())?;
        let filter = shift(b, range, first)?;
        let whole = self.conv.filters.is_multiple_of(self.tile.width());
        let mask = if whole { None } else { Some(below(b, filter, self.conv.filters)?) };
        Ok((filter, mask))
    }

    /// The sums of all pixels and vectors, pixel by pixel.
    fn sums(&self, b: &mut Builder) -> Made<Vec<Value>> {
        let zero = b.constant(Literal::float(self.conv.sum(), 0.0), &[self.tile.lanes]);
        let zeros = vec![zero; (self.tile.pixels * self.tile.vectors) as usize];
        let image = times(b, self.spot.n, self.image.batch as u64)?;
        let first = int(b, self.image.offset as u64);
        let mut base = add(b, first, image)?;
        if !is_depthwise(self.conv) {
            let group = times(b, self.spot.group, self.conv.depth() * self.image.channel as u64)?;
            base = add(b, base, group)?;
        }
        let tap = int(b, 0);
        self.outer(b, 0, base, tap, zeros)
    }

    /// The loops over taps along the outer axes from `axis` on.
    fn outer(
        &self,
        b: &mut Builder,
        axis: usize,
        base: Value,
        tap: Value,
        sums: Vec<Value>,
    ) -> Made<Vec<Value>> {
        if axis + 1 >= self.conv.axes.len() {
            return self.taps(b, base, tap, sums);
        }
        let (a, stride) = (self.conv.axes[axis], self.image.axes[axis]);
        if self.conv.transposed {
            let o = self.spot.outer[axis];
            let tap = times(b, tap, a.kernel)?;
            let taps = phase::taps(b, &a, o)?;
            return b.for_loop(taps, &sums, |b, k, sums| {
                let at = phase::origin(b, &a, o, k)?;
                let at = times(b, at, stride as u64)?;
                let (base, tap) = (add(b, base, at)?, add(b, tap, k)?);
                self.outer(b, axis + 1, base, tap, sums.to_vec())
            });
        }
        let place = times(b, self.spot.outer[axis], a.stride)?;
        let place = plus(b, place, -(a.padding as i64))?;
        let (before, behind) = a.overhangs();
        let tap = times(b, tap, a.kernel)?;
        if a.kernel == 1 && !before && !behind {
            let place = times(b, place, stride as u64)?;
            let base = add(b, base, place)?;
            return self.outer(b, axis + 1, base, tap, sums);
        }
        let (mut low, mut high) = (int(b, 0), int(b, a.kernel));
        let taps_up_to = |b: &mut Builder, distance: Value| -> Made<Value> {
            let rounded = plus(b, distance, a.dilation as i64 - 1)?;
            Ok(split(b, rounded, a.dilation)?.0)
        };
        if before {
            let distance = b.map(F::Neg, &[place])?;
            let first = taps_up_to(b, distance)?;
            low = b.map(F::Max, &[low, first])?;
        }
        if behind {
            let end = int(b, a.image);
            let distance = b.map(F::Sub, &[end, place])?;
            let end = taps_up_to(b, distance)?;
            high = b.map(F::Min, &[high, end])?;
        }
        let one = int(b, 1);
        b.for_loop((low, high, one), &sums, |b, k, sums| {
            let at = times(b, k, a.dilation)?;
            let at = add(b, place, at)?;
            let at = times(b, at, stride as u64)?;
            let base = add(b, base, at)?;
            let tap = add(b, tap, k)?;
            self.outer(b, axis + 1, base, tap, sums.to_vec())
        })
    }

    /// The taps along a row.
    fn taps(&self, b: &mut Builder, base: Value, tap: Value, mut sums: Vec<Value>) -> Made<Vec<Value>> {
        let (a, stride) = self.row();
        let tap = times(b, tap, a.kernel)?;
        let first = times(b, self.spot.at, self.pitch() * stride as u64)?;
        let first = add(b, base, first)?;
        let from = wide(b, first)?;
        if is_depthwise(self.conv) {
            return self.depthwise(b, base, from, tap, sums);
        }
        let taps: Vec<u64> = (0..a.kernel).collect();
        for together in taps.chunks(self.taps_at_once() as usize) {
            let mut all: Vec<Tap> = Vec::new();
            for &k in together {
                let pixels = (0..u64::from(self.tile.pixels))
                    .map(|p| self.ahead(p, k).map_or(Ok(Pixel::Outside), |low| self.pixel(b, base, low)))
                    .collect::<Made<Vec<Pixel>>>()?;
                let number = plus(b, tap, k as i64)?;
                all.push((times(b, number, self.conv.depth())?, pixels));
            }
            sums = self.channels(b, from, &all, sums)?;
        }
        Ok(sums)
    }

    /// Taps along a row that are taken for a channel before the next one: where channels lie far apart, each is a page of its
    /// own, and the processor looks up few.
    fn taps_at_once(&self) -> u64 {
        let apart = self.image.channel > FAR && self.row().0.kernel <= FEW_TAPS;
        if apart && !self.conv.transposed { self.row().0.kernel } else { self.conv.taps_at_once() }
    }

    /// What lies `low` pixels ahead of the image's pixel in which an instance begins, in the row that begins at `base`.
    fn pixel(&self, b: &mut Builder, base: Value, low: i64) -> Made<Pixel> {
        let (a, stride) = self.row();
        let last = self.tile.last_start(self.conv) / self.conv.phases() * self.pitch();
        let image = a.image as i64;
        let high = low + last as i64;
        if high < 0 || low >= image {
            return Ok(Pixel::Outside);
        }
        if low >= 0 && high < image {
            return Ok(Pixel::At(low * stride));
        }
        let place = times(b, self.spot.at, self.pitch())?;
        let place = plus(b, place, low)?;
        let mut mask = None;
        let mut at = place;
        let (zero, end) = (int(b, 0), int(b, a.image));
        if low < 0 {
            mask = Some(b.map(F::Ge, &[place, zero])?);
            at = b.map(F::Max, &[at, zero])?;
        }
        if high >= image {
            let inside = b.map(F::Lt, &[place, end])?;
            mask = both(b, mask, Some(inside))?;
            let most = int(b, a.image - 1);
            at = b.map(F::Min, &[at, most])?;
        }
        let at = times(b, at, stride as u64)?;
        let at = add(b, base, at)?;
        let at = wide(b, at)?;
        Ok(mask.map_or(Pixel::At(low * stride), |mask| Pixel::Masked(at, mask)))
    }

    /// All lanes where a condition holds, else none: as a comparison of lanes, since what is chosen by one condition
    /// becomes a branch.
    fn lanes_where(&self, b: &mut Builder, condition: Value) -> Made<Value> {
        let (none, all) = (int(b, 0), int(b, self.tile.lanes.into()));
        let count = b.map(F::Select, &[condition, all, none])?;
        let count = b.splat(count, &[self.tile.lanes])?;
        let lane = b.range(0, self.tile.lanes)?;
        b.map(F::Lt, &[lane, count])
    }

    /// Where the weights of a row of the panel begin, for each vector.
    fn panel(&self, b: &mut Builder, row: Value) -> Made<Vec<Value>> {
        let [rows, _] = matrix(self.conv);
        let start = times(b, self.spot.strip, rows * self.tile.width())?;
        let row = times(b, row, self.tile.width())?;
        let start = add(b, start, row)?;
        let vector = |b: &mut Builder, v: u32| -> Made<Value> {
            let range = b.range((v * self.tile.lanes) as i32, self.tile.lanes)?;
            let at = shift(b, range, start)?;
            wide(b, at)
        };
        (0..self.tile.vectors).map(|v| vector(b, v)).collect()
    }

    /// The loop over channels at taps that reach different pixels.
    fn channels(&self, b: &mut Builder, from: Value, taps: &[Tap], sums: Vec<Value>) -> Made<Vec<Value>> {
        let mut parts = Vec::new();
        for (row, pixels) in taps {
            let panel = self.panel(b, *row)?;
            let mut masks = Vec::new();
            for pixel in pixels {
                masks.push(match pixel {
                    Pixel::Masked(_, mask) => Some(self.lanes_where(b, *mask)?),
                    _ => None,
                });
            }
            parts.push((panel, pixels, masks));
        }
        let step = |b: &mut Builder, first: Value, mut sums: Vec<Value>| -> Made<Vec<Value>> {
            for c in 0..self.tile.unroll {
                let channel = plus(b, first, c.into())?;
                for (panel, pixels, masks) in &parts {
                    self.step(b, channel, panel, from, (pixels, masks), &mut sums)?;
                }
            }
            Ok(sums)
        };
        let (depth, unroll) = (self.conv.depth(), self.tile.unroll.into());
        let zero = int(b, 0);
        if depth == unroll {
            return step(b, zero, sums);
        }
        let by = int(b, unroll);
        if !self.conv.transposed || depth < PART {
            let end = int(b, depth);
            return b.for_loop((zero, end, by), &sums, |b, channel, sums| step(b, channel, sums.to_vec()));
        }
        in_parts(b, (depth, LONGEST_PART / unroll * unroll), &sums, |b, range| {
            let none = b.constant(Literal::float(self.conv.sum(), 0.0), &[self.tile.lanes]);
            let bounds = (range.0, range.1, by);
            b.for_loop(bounds, &vec![none; sums.len()], |b, channel, sums| step(b, channel, sums.to_vec()))
        })
    }

    /// A channel at a tap.
    fn step(
        &self,
        b: &mut Builder,
        channel: Value,
        panel: &[Value],
        from: Value,
        (pixels, masks): (&[Pixel], &[Option<Value>]),
        sums: &mut [Value],
    ) -> Made<()> {
        let lanes = self.tile.lanes;
        let channel = wide(b, channel)?;
        let row = times(b, channel, self.tile.width())?;
        let mut weights = Vec::new();
        for &start in panel {
            let at = shift(b, start, row)?;
            weights.push(read(b, self.panels, at, None, self.conv.sum())?);
        }
        let plane = times(b, channel, self.image.channel as u64)?;
        let first = add(b, from, plane)?;
        for (p, (pixel, mask)) in pixels.iter().zip(masks).enumerate() {
            let at = match pixel {
                Pixel::Outside => continue,
                Pixel::At(ahead) => plus(b, first, *ahead)?,
                Pixel::Masked(at, _) => add(b, *at, plane)?,
            };
            let x = read(b, self.images, at, None, self.conv.sum())?;
            let x = b.splat(x, &[lanes])?;
            for (v, &w) in weights.iter().enumerate() {
                let sum = &mut sums[p * weights.len() + v];
                *sum = multiply_add(b, x, w, *sum, *mask)?;
            }
        }
        Ok(())
    }

    /// The taps along a row of a convolution whose filters read a channel each: vectors of pixels by vectors of weights.
    fn depthwise(
        &self,
        b: &mut Builder,
        base: Value,
        from: Value,
        tap: Value,
        mut sums: Vec<Value>,
    ) -> Made<Vec<Value>> {
        let (a, _) = self.row();
        let vectors = self.tile.vectors;
        let panel = self.panel(b, tap)?;
        let mut weights = Vec::new();
        for k in 0..a.kernel {
            for &start in &panel {
                let at = plus(b, start, (k * self.tile.width()) as i64)?;
                weights.push(read(b, self.panels, at, None, self.conv.sum())?);
            }
        }
        for v in 0..vectors {
            let (filter, mask) = self.filters(b, v)?;
            let channel = wide(b, filter)?;
            // What lies at a place, and whether it does, where that is not known.
            let mut read_before: Vec<(i64, Option<Inside>)> = Vec::new();
            for p in 0..u64::from(self.tile.pixels) {
                for k in 0..a.kernel {
                    let Some(ahead) = self.ahead(p, k) else { continue };
                    let known = read_before.iter().find(|(at, _)| *at == ahead).map(|(_, x)| *x);
                    let x = match known {
                        Some(x) => x,
                        None => {
                            let (at, inside) = match self.pixel(b, base, ahead)? {
                                Pixel::Outside => (None, None),
                                Pixel::At(ahead) => (Some(plus(b, from, ahead)?), None),
                                Pixel::Masked(at, mask) => (Some(at), Some(self.lanes_where(b, mask)?)),
                            };
                            let x = match at {
                                Some(at) => {
                                    let at = shift(b, channel, at)?;
                                    let mask = both(b, mask, inside)?;
                                    Some((read(b, self.images, at, mask, self.conv.sum())?, inside))
                                }
                                None => None,
                            };
                            read_before.push((ahead, x));
                            x
                        }
                    };
                    if let Some((x, inside)) = x {
                        let sum = &mut sums[(p * u64::from(vectors) + u64::from(v)) as usize];
                        let w = weights[(k * u64::from(vectors) + u64::from(v)) as usize];
                        *sum = multiply_add(b, x, w, *sum, inside)?;
                    }
                }
            }
        }
        Ok(sums)
    }

    /// Stores a vector of sums of a pixel, and says which elements these are.
    fn store(
        &self,
        b: &mut Builder,
        result: Value,
        (p, v): (u32, u32),
        sum: Value,
        last: bool,
    ) -> Made<Coordinates> {
        let conv = self.conv;
        let lanes = [self.tile.lanes];
        let (filter, mut mask) = self.filters(b, v)?;
        let inside = mask.is_none();
        let place = plus(b, self.spot.start, p.into())?;
        if let Some(own) = self.spot.own {
            let own = b.map(F::Ge, &[place, own])?;
            let own = b.splat(own, &lanes)?;
            mask = both(b, mask, Some(own))?;
        }
        let width = conv.axes.last().map_or(1, |a| a.out);
        // Of the last instance of a row, pixels of the last phases may lie behind it.
        let ends = self.tile.last_start(conv) + u64::from(p) < width;
        if !ends {
            let end = below(b, place, width)?;
            let end = b.splat(end, &lanes)?;
            mask = both(b, mask, Some(end))?;
        }
        let row = times(b, self.spot.row, width)?;
        let pixel = add(b, row, place)?;
        let filters = Coordinate { index: filter, extent: conv.filters, inside };
        let (offsets, axes) = if last {
            let image = times(b, self.spot.n, conv.pixels())?;
            let pixel = add(b, image, pixel)?;
            let first = times(b, pixel, conv.filters)?;
            let pixels = Coordinate {
                index: b.splat(pixel, &lanes)?,
                extent: conv.batch * conv.pixels(),
                inside: ends,
            };
            (shift(b, filter, first)?, vec![pixels, filters])
        } else {
            let image = times(b, self.spot.n, conv.filters)?;
            let plane = shift(b, filter, image)?;
            let plane = times(b, plane, conv.pixels())?;
            let image = Coordinate { index: b.splat(self.spot.n, &lanes)?, extent: conv.batch, inside: true };
            let pixels = Coordinate { index: b.splat(pixel, &lanes)?, extent: conv.pixels(), inside: ends };
            (shift(b, plane, pixel)?, vec![image, filters, pixels])
        };
        write(b, result, offsets, sum, mask, conv.elem)?;
        Ok(Coordinates { offsets, axes })
    }
}
