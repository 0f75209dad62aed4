//! Windows of images: loads whose rows are the pixels of a convolution's result, each with the channels under one tap of a filter, by the
//! accelerator's im2col mode.
//!
//! ```text
//! n, y, x = places of the row's number among images of 28 x 28      tensor [64, 28, 28, *] in pixels of 64, rows of 1792 and images of
//! offset = 50176 n + 1792 (y + i - 1) + 64 (x + j - 1) + c          50176; at channel c of pixel (x - 1, y - 1) of image n, (j, i) on:
//! where 0 <= y + i - 1 < 28, 0 <= x + j - 1 < 28                    as many pixels as rows, along corners from -1 to 26 in each axis
//! ```
//!
//! Pixels under a tap that are not in the image are zeros, as are those of images behind the last one.

use smallvec::SmallVec;

use super::linear::{Analysis, Bound, Condition, Linear, Place, Sum};
use super::{ALIGN, Boxes, Coordinate, Extent, Im2Col, Matrix, NO_END, TensorMap};

/// The most axes of an image.
const MAX_AXES: usize = 3;
/// Bits of a corner with its sign, by the axes of an image, and of the distance of a tap.
const CORNER_BITS: [u32; MAX_AXES] = [16, 8, 5];
/// The most pixels between neighbours of the result.
const MAX_STEP: i64 = 8;

/// An axis of an image.
struct Axis {
    place: Place,
    /// Pixels of the result.
    count: i64,
    /// Elements for one further pixel of the result.
    pitch: i64,
    /// Pixels of the image for that.
    step: i64,
    /// The pixel of the image for the first one of the result, and how far a tap is from there.
    pixel: Sum,
    /// Pixels of the image, where taps may be behind the last one.
    bound: Option<i64>,
    /// Whether what is before the first one counts as zero.
    zero_before: bool,
}

/// The windows that a load reads, given what its offsets are and where its mask holds.
pub(super) fn boxes(
    analysis: &Analysis<'_, '_>,
    matrix: &Matrix,
    offset: Linear,
    conditions: Vec<Condition>,
) -> Option<Boxes> {
    let (inner, outer) = (matrix.inner, 1 - matrix.inner);
    if offset.slopes[inner] != 1 || offset.slopes[outer] != 0 || !offset.rows.is_empty() {
        return None;
    }
    let (mut axes, images) = axes(&offset, outer)?;
    let (mut channels, mut rows) = (None, None);
    for Condition { index, bound, positive } in conditions {
        let bound = match bound {
            Some(Bound::Param(_)) => return None,
            Some(Bound::Number(bound)) => Some(bound),
            None => None,
        };
        match (&index.places[..], index.slopes[inner], index.slopes[outer]) {
            ([(place, step)], 0, 0) => {
                axes.iter_mut().find(|axis| axis.place == *place)?.within(*step, index.start, bound)?
            }
            ([], 1, 0) if positive && channels.is_none() => channels = Some((index.start, bound?)),
            ([], 0, 1) if positive && rows.is_none() => rows = Some((index.start, bound?)),
            _ => return None,
        }
    }
    let number = axes.first()?.place.first.clone();
    let area = axes.iter().try_fold(1i64, |area, axis| area.checked_mul(axis.count))?;
    let images_end = match rows {
        Some((first, bound)) => (first == number && bound % area == 0).then_some(bound / area)?,
        None => NO_END as i64,
    };
    // Behind the only image, rows would go through it again.
    if images.is_none() && images_end != 1 {
        return None;
    }
    let mut left = offset.start;
    for axis in &axes {
        left.add(&axis.pixel, -axis.stride())?;
    }
    let (mut at, channels) = channels.unwrap_or((Sum::default(), NO_END as i64));
    left.add(&at, -1)?;
    for (value, by) in std::mem::take(&mut left.terms) {
        let one = |by| Sum { terms: SmallVec::from_slice(&[(value, by)]), constant: 0 };
        if by == 1 && channels == NO_END as i64 {
            at.add(&one(1), 1)?;
        } else {
            // A tap of images without zeros around them.
            let axis = axes.iter_mut().rev().find(|axis| axis.is_free() && by % axis.stride() == 0)?;
            axis.pixel.add(&one(by / axis.stride()), 1)?;
        }
    }
    let first = Place { axis: outer, first: number.clone(), below: area, count: None };
    let (last_stride, last_size) =
        axes.last().and_then(|axis| Some((axis.stride(), axis.size(analysis)?)))?;
    let image_stride = images.unwrap_or(last_stride.checked_mul(last_size)?);
    let mut coordinates: SmallVec<[Coordinate; 5]> =
        SmallVec::from_iter([Coordinate { place: None, sum: at }]);
    let (mut sizes, mut strides, mut im2col) = (vec![channels as u64], Vec::new(), Im2Col::default());
    let mut offsets: SmallVec<[Sum; 3]> = SmallVec::new();
    let bits = CORNER_BITS[axes.len() - 1];
    for axis in &axes {
        let tap = Sum { constant: 0, ..axis.pixel.clone() };
        let [lower, upper] = axis.corners(analysis)?;
        let range = -(1i64 << (bits - 1))..1i64 << (bits - 1);
        let near = analysis.most(&tap)? < 1 << bits && range.contains(&lower) && range.contains(&upper);
        if !near || axis.step > MAX_STEP {
            return None;
        }
        sizes.push(axis.size(analysis)?.unsigned_abs());
        strides.push(bytes(axis.stride())?);
        im2col.lower.push(lower as i32);
        im2col.upper.push(upper as i32);
        im2col.steps.push(axis.step as u32);
        let sum = Sum { constant: lower, ..Sum::default() };
        coordinates.push(Coordinate { place: Some((axis.place.clone(), axis.step)), sum });
        offsets.push(tap);
    }
    sizes.push(images_end.unsigned_abs());
    strides.push(bytes(image_stride)?);
    coordinates.push(Coordinate { place: Some((first, 1)), sum: Sum::default() });
    if !analysis.is_nonnegative(&coordinates[0].sum) || !analysis.is_nonnegative(&number) {
        return None;
    }
    let rest = std::iter::repeat_n(1, axes.len());
    let map = TensorMap {
        param: matrix.param,
        offset: left.constant.checked_mul(2).filter(|bytes| bytes % ALIGN == 0)?,
        sizes: sizes.into_iter().map(Extent::Number).collect(),
        strides: strides.into_iter().map(Extent::Number).collect(),
        tile: [matrix.panels.width, matrix.height].into_iter().chain(rest).collect(),
        swizzle: matrix.panels.width * 2,
        im2col: Some(im2col),
    };
    Some(Boxes { map, coordinates, offsets, bytes: matrix.panels.bytes, count: matrix.panels.count })
}

/// The axes of the images that a row's number goes through, innermost first, and the elements of an image, where there are several.
fn axes(offset: &Linear, outer: usize) -> Option<(SmallVec<[Axis; MAX_AXES]>, Option<i64>)> {
    let mut places: SmallVec<[(Place, i64); 4]> = offset.places.iter().cloned().collect();
    places.sort_by_key(|(place, _)| place.below);
    let (mut axes, mut images, mut below) = (SmallVec::new(), None, 1i64);
    for (place, pitch) in places {
        if place.axis != outer || place.below != below || images.is_some() || pitch <= 0 {
            return None;
        }
        let Some(count) = place.count else {
            images = Some(pitch);
            continue;
        };
        below = below.checked_mul(count)?;
        axes.push(Axis {
            place,
            count,
            pitch,
            step: 1,
            pixel: Sum::default(),
            bound: None,
            zero_before: false,
        });
    }
    let first = &axes.first().map(|axis: &Axis| axis.place.first.clone())?;
    let same = offset.places.iter().all(|(place, _)| place.first == *first);
    (same && axes.len() <= MAX_AXES).then_some((axes, images))
}

impl Axis {
    /// Notes a condition: `step` times the place and `pixel` is not negative, or below a bound.
    fn within(&mut self, step: i64, pixel: Sum, bound: Option<i64>) -> Option<()> {
        let known = !self.is_free();
        if step <= 0 || self.pitch % step != 0 || known && (self.step, &self.pixel) != (step, &pixel) {
            return None;
        }
        (self.step, self.pixel) = (step, pixel);
        self.bound = self.bound.or(bound);
        self.zero_before |= bound.is_none();
        (bound.is_none() || self.bound == bound).then_some(())
    }

    /// Whether it has no condition: what is read is in the image.
    fn is_free(&self) -> bool {
        self.bound.is_none() && !self.zero_before
    }

    /// Elements between neighbouring pixels of the image.
    fn stride(&self) -> i64 {
        self.pitch / self.step
    }

    /// The pixel after the last one that a first tap is at.
    fn end(&self) -> i64 {
        self.pixel.constant + (self.count - 1) * self.step + 1
    }

    /// Pixels of the image; as many as are read, where none is outside.
    fn size(&self, analysis: &Analysis<'_, '_>) -> Option<i64> {
        let tap = Sum { constant: 0, ..self.pixel.clone() };
        self.bound.or_else(|| self.end().checked_add(analysis.most(&tap)?)).filter(|&size| size > 0)
    }

    /// Where the pixels of first taps begin, and how far after the image's last one they end.
    fn corners(&self, analysis: &Analysis<'_, '_>) -> Option<[i64; 2]> {
        let first = Some(self.pixel.constant).filter(|&first| first >= 0 || self.zero_before)?;
        Some([first, self.end() - self.size(analysis)?])
    }
}

/// The bytes of a distance.
fn bytes(elements: i64) -> Option<u64> {
    elements.checked_mul(2).filter(|&bytes| bytes > 0 && bytes % ALIGN == 0).map(i64::unsigned_abs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::ptx::{PtxOptions, Target, compile_ptx};

    /// A product of blocks of 64 pixels of 14 x 14, under 3 x 3 taps of images of 64 channels, by 64 filters. Pixels lie at `step` times
    /// their place less `padding`, in images of `size` x `size`; `mask` names what the load's mask is.
    fn maps([step, padding, size]: [i32; 3], mask: &str) -> String {
        let load =
            if mask.is_empty() { "load %x, %at".to_owned() } else { format!("load %x, %at, mask {mask}") };
        let text = format!(
            "kernel @windows(%x: ptr<bf16> align(16), %w: ptr<bf16> align(16), %z: ptr<f32> align(16)) warps(4) {{
               %none = const 0 : i32  %end = const 576 : i32  %step = const 64 : i32  %three = const 3 : i32
               %id = program_id 0  %first = map mul %id, %step
               %r = range 0 64  %firsts = splat %first [64]  %row = map add %firsts, %r
               %n14 = const 14 : tile<64xi32>  %x0 = map rem_trunc %row, %n14  %above = map div_trunc %row, %n14
               %y0 = map rem_trunc %above, %n14  %image = map div_trunc %above, %n14
               %s = const {step} : tile<64xi32>  %p = const {padding} : tile<64xi32>
               %x1 = map mul %x0, %s  %x2 = map sub %x1, %p  %y1 = map mul %y0, %s  %y2 = map sub %y1, %p
               %pixel = const 64 : tile<64xi32>  %line = const {line} : tile<64xi32>  %all = const {all} : tile<64xi32>
               %ox = map mul %x2, %pixel  %oy = map mul %y2, %line  %on = map mul %image, %all
               %o1 = map add %ox, %oy  %o2 = map add %on, %o1  %base = expand_dims %o2 axis 1
               %bases = broadcast %base [64, 64]
               %j = range 0 4096  %columns = reshape %j [64, 64]
               %zero = const 0.0 : tile<64x64xf32>  %nil = const 0 : tile<64xi32>  %size = const {size} : tile<64xi32>
               %sum = for %k in %none..%end step %step with (%acc = %zero) {{
                 %tap = map div_trunc %k, %step  %c = map rem_trunc %k, %step
                 %ty = map div_trunc %tap, %three  %tx = map rem_trunc %tap, %three
                 %sline = const {line} : i32  %sy = map mul %ty, %sline  %sx = map mul %tx, %step
                 %s1 = map add %sy, %sx  %s2 = map add %s1, %c  %s3 = splat %s2 [64]  %lane = map add %s3, %r
                 %lanes = expand_dims %lane axis 0  %l = broadcast %lanes [64, 64]  %at = map add %bases, %l
                 %tys = splat %ty [64]  %py = map add %y2, %tys  %txs = splat %tx [64]  %px = map add %x2, %txs
                 %ya = map ge %py, %nil  %yb = map lt %py, %size  %xa = map ge %px, %nil  %xb = map lt %px, %size
                 %before = map and %ya, %xa  %behind = map and %yb, %xb  %both = map and %before, %behind
                 %be = expand_dims %before axis 1  %b = broadcast %be [64, 64]
                 %ne = expand_dims %behind axis 1  %n = broadcast %ne [64, 64]
                 %ie = expand_dims %both axis 1  %in = broadcast %ie [64, 64]
                 %u = {load}
                 %ks = splat %k [64]  %depth = map add %ks, %r  %d = expand_dims %depth axis 1  %e = broadcast %d [64, 64]
                 %f = expand_dims %r axis 0  %deep = const 576 : tile<1x64xi32>  %g = map mul %f, %deep
                 %h = broadcast %g [64, 64]  %at_w = map add %e, %h  %v = load %w, %at_w
                 %next = dot %u, %v, %acc
                 yield %next
               }}
               store %z, %columns, %sum
             }}",
            line = 64 * size,
            all = 64 * size * size,
        );
        let program = tilefuse_block::parse_valid(&text).unwrap();
        let ptx = compile_ptx(&program, Target::Sm90a, &PtxOptions::default()).unwrap();
        assert_eq!(ptx.text.contains(".4d.shared::cluster.global.im2col."), !ptx.tensor_maps.is_empty());
        ptx.tensor_maps.first().map_or_else(|| "copied by threads".to_owned(), ToString::to_string)
    }

    #[test]
    fn windows_are_boxes_of_images() {
        let found = [
            // Zeros around, one pixel further each, and two: the last tap is in the image.
            maps([1, 1, 14], "%in"),
            maps([2, 1, 28], "%b"),
            // None.
            maps([1, 0, 16], ""),
            // What is before an image would be zero without a condition, as what is behind it.
            maps([1, 1, 14], "%n"),
            maps([1, 1, 14], ""),
            maps([1, 1, 14], "%b"),
        ];
        expect_test::expect![[r#"
            0:0:2147483648,14,14,2147483648:128,1792,25088:64,64,1,1:128:-1,-1:-1,-1:1,1
            0:0:2147483648,28,28,2147483648:128,3584,100352:64,64,1,1:128:-1,-1:-2,-2:2,2
            0:0:2147483648,16,16,2147483648:128,2048,32768:64,64,1,1:128:0,0:-2,-2:1,1
            copied by threads
            0:-1920:2147483648,16,16,2147483648:128,1792,25088:64,64,1,1:128:0,0:-2,-2:1,1
            0:0:2147483648,15,15,2147483648:128,1792,25088:64,64,1,1:128:-1,-1:-2,-2:1,1"#]]
        .assert_eq(&found.join("\n"));
    }
}
