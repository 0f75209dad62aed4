//! Tensor maps: loads of a pipelined loop that one thread starts as a whole, by the tensor memory accelerator (TMA) of Hopper.
//!
//! A load whose offsets are linear in the indices of its tile and in scalars reads a box of a tensor:
//!
//! ```text
//! offset = 2048 (first + row) + k + column, where first + row < 8000     tensor [8000, *] in rows of 2048, box [128, 64],
//!                                                                        at (first, k); further rows are zeros
//! ```
//!
//! Conditions of the mask are sizes of the tensor, and rows or columns without one have no end. Sizes, and the distance of rows, are
//! numbers or parameters. What is left of the offset is
//! a dimension for each scalar, or a part of a row's or column's index where that has no condition. The map is encoded on
//! the host at each launch, for the address that a pointer has then.
//!
//! Rows may also be pixels of images under a tap of a filter (`windows.rs`).

mod linear;
mod windows;

use std::fmt;
use std::str::FromStr;

use smallvec::SmallVec;
use tilefuse_block::{Op, Value};

use self::linear::{Analysis, Bound, Condition, Linear, Pitch, Place, Rows, Sum};
use super::assign::{Assignment, mask_of};
use super::dot::{Runs, Staged};
use super::ir::Val;
use super::lower::Lower;
use crate::error::Result;

/// The most dimensions of a tensor.
const MAX_RANK: usize = 5;
/// The most elements of a box along a dimension.
const MAX_BOX: u32 = 256;
/// What addresses and strides are multiples of, in bytes.
const ALIGN: i64 = 16;
/// The most bytes between neighbours that maps take.
const MAX_STRIDE: u64 = (1 << 40) - 16;

/// The size of a dimension whose indices have no condition.
const NO_END: u64 = 1 << 31;

/// A size or a stride of a tensor: a number, or what a parameter of the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What it is in each launch.
    Number(u64),
    /// A parameter, an `i64`, times a factor.
    Param {
        /// The parameter's position.
        param: usize,
        /// What it is multiplied by.
        factor: u64,
    },
}

impl Extent {
    /// What it is in a launch with these arguments; `None` where the parameter is missing or none that maps take.
    pub fn of(self, args: &[u64]) -> Option<u64> {
        match self {
            Extent::Number(number) => Some(number),
            Extent::Param { param, factor } => {
                let value = args.get(param).filter(|value| (1..=NO_END).contains(value))?;
                // No memory is as far as this from what a map begins with.
                Some(value.checked_mul(factor)?.min(MAX_STRIDE))
            }
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Number(number) => write!(f, "{number}"),
            Extent::Param { param, factor } => write!(f, "p{param}x{factor}"),
        }
    }
}

impl FromStr for Extent {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Extent, ()> {
        let Some(of) = text.strip_prefix('p') else {
            return text.parse().map(Extent::Number).map_err(drop);
        };
        let (param, factor) = of.split_once('x').ok_or(())?;
        Ok(Extent::Param { param: param.parse().map_err(drop)?, factor: factor.parse().map_err(drop)? })
    }
}

/// A tensor of 16-bit elements, boxes of which are copied to shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The pointer among the kernel's parameters.
    pub param: usize,
    /// Bytes from what it points to.
    pub offset: i64,
    /// Elements along each dimension, the contiguous one first.
    pub sizes: Vec<Extent>,
    /// Bytes between neighbours along each dimension but the first.
    pub strides: Vec<Extent>,
    /// Elements of a box along each dimension.
    pub tile: Vec<u32>,
    /// Bytes of a row of a box, within which parts of 16 bytes change places in shared memory: 32, 64 or 128.
    pub swizzle: u32,
    /// Of images: how rows of a box go through their pixels, which are the dimensions between the first and the last one.
    pub im2col: Option<Im2Col>,
}

/// How pixels of images follow each other: along each axis, innermost first, and from one image to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Im2Col {
    /// The first pixel along each axis.
    pub lower: Vec<i32>,
    /// The last one, counted from the image's last one.
    pub upper: Vec<i32>,
    /// From one to the next.
    pub steps: Vec<u32>,
}

impl fmt::Display for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: ToString>(values: &[T]) -> String {
            values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        let TensorMap { param, offset, sizes, strides, tile, swizzle, im2col } = self;
        write!(f, "{param}:{offset}:{}:{}:{}:{swizzle}", list(sizes), list(strides), list(tile))?;
        let Some(Im2Col { lower, upper, steps }) = im2col else { return Ok(()) };
        write!(f, ":{}:{}:{}", list(lower), list(upper), list(steps))
    }
}

impl FromStr for TensorMap {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<TensorMap, ()> {
        fn number<T: FromStr>(text: &str) -> std::result::Result<T, ()> {
            text.parse().map_err(|_: T::Err| ())
        }
        fn list<T: FromStr>(text: &str) -> std::result::Result<Vec<T>, ()> {
            text.split(',').map(number).collect()
        }
        let parts: Vec<&str> = text.split(':').collect();
        let (parts, im2col) = match parts[..] {
            [ref parts @ .., lower, upper, steps] if parts.len() == 6 => {
                (parts, Some(Im2Col { lower: list(lower)?, upper: list(upper)?, steps: list(steps)? }))
            }
            _ => (&parts[..], None),
        };
        let &[param, offset, sizes, strides, tile, swizzle] = parts else { return Err(()) };
        let map = TensorMap {
            param: number(param)?,
            offset: number(offset)?,
            sizes: list(sizes)?,
            strides: list(strides)?,
            tile: list(tile)?,
            swizzle: number(swizzle)?,
            im2col,
        };
        let rank = map.sizes.len();
        let of_axes = |im2col: &Im2Col| {
            let Im2Col { lower, upper, steps } = im2col;
            rank >= 3 && [lower.len(), upper.len(), steps.len()] == [rank - 2; 3]
        };
        let fits = map.strides.len() + 1 == rank && map.tile.len() == rank && map.im2col.iter().all(of_axes);
        if rank <= MAX_RANK && fits { Ok(map) } else { Err(()) }
    }
}

/// Several maps as one word, and back.
pub fn encode(maps: &[TensorMap]) -> String {
    let maps: Vec<String> = maps.iter().map(TensorMap::to_string).collect();
    if maps.is_empty() { "-".to_owned() } else { maps.join(";") }
}

/// What [`encode`] wrote.
pub fn decode(text: &str) -> Option<Vec<TensorMap>> {
    if text == "-" {
        return Some(Vec::new());
    }
    text.split(';').map(|map| map.parse().ok()).collect()
}

/// A load as copies of boxes.
pub(crate) struct Boxes {
    pub(crate) map: TensorMap,
    /// Of the first box, along each dimension.
    coordinates: SmallVec<[Coordinate; 5]>,
    /// How far from there what is copied of images lies, along each of their axes.
    offsets: SmallVec<[Sum; 3]>,
    /// Bytes of a box, which lie one after another in shared memory.
    bytes: u64,
    /// How many there are along the contiguous dimension.
    count: u64,
}

impl Boxes {
    /// All bytes.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.bytes * self.count
    }

    /// The scalars that the coordinates are sums of.
    pub(crate) fn scalars(&self) -> impl Iterator<Item = Value> {
        let places =
            self.coordinates.iter().filter_map(|at| at.place.as_ref()).map(|(place, _)| &place.first);
        let sums = self.coordinates.iter().map(|at| &at.sum);
        sums.chain(places).chain(&self.offsets).flat_map(Sum::scalars)
    }
}

/// A coordinate of a box: a place of the first row's number, times a factor, and a sum of scalars.
struct Coordinate {
    place: Option<(Place, i64)>,
    sum: Sum,
}

/// The matrix that a load reads, as it lies in shared memory.
struct Matrix {
    /// Its pointer among the parameters.
    param: usize,
    /// The axis of the load along which neighbours are adjacent there, and elements along the other one.
    inner: usize,
    height: u32,
    panels: Runs,
}

/// A dimension of a tensor that is being made.
struct Dimension {
    at: Sum,
    bound: Option<Bound>,
    /// In elements.
    stride: Stride,
}

/// Elements between neighbours: a number, or a parameter times a factor.
#[derive(Clone, Copy, PartialEq)]
enum Stride {
    Number(i64),
    Param(Pitch),
}

impl Stride {
    /// It in bytes, where these are known to be aligned.
    fn bytes(self) -> Option<Extent> {
        match self {
            Stride::Number(elements) => {
                let bytes = elements.checked_mul(2).filter(|&bytes| bytes % ALIGN == 0)?;
                Some(Extent::Number(bytes.unsigned_abs()))
            }
            Stride::Param(Pitch { param, factor, divisor }) => {
                let factor = factor.checked_mul(2)?.unsigned_abs();
                let is_aligned = factor.checked_mul(divisor)?.is_multiple_of(ALIGN.unsigned_abs());
                is_aligned.then_some(Extent::Param { param, factor })
            }
        }
    }
}

/// The boxes that a load of a matrix reads, which lies in shared memory as `staged`: `inner` is the axis of the load along which
/// neighbours are adjacent there.
pub(crate) fn boxes(plan: &Assignment, load: &Op, staged: &Staged, inner: usize) -> Option<Boxes> {
    let [pointer, offsets, ..] = load.args[..] else { return None };
    let ty = plan.program.ty(offsets);
    let elem = plan.program.ty(pointer).pointee()?;
    let (&[a, b], 2) = (&ty.shape[..], elem.bytes()) else { return None };
    let (width, height) = if inner == 1 { (b, a) } else { (a, b) };
    let panels = staged.panels_of(width)?;
    let param = plan.program.params.iter().position(|param| param.value == pointer)?;
    let aligned = |bytes: i64| bytes % ALIGN == 0;
    if height > MAX_BOX || !aligned(plan.align(pointer) as i64) {
        return None;
    }
    let mut analysis = Analysis::new(plan);
    let offset = analysis.linear(offsets)?;
    let mut all = Vec::new();
    mask_of(load).map_or(Some(()), |mask| analysis.conditions(mask, &mut all))?;
    let matrix = Matrix { param, inner, height, panels };
    match offset.places.is_empty() {
        true => of_matrix(&analysis, &matrix, offset, all),
        false => windows::boxes(&analysis, &matrix, offset, all),
    }
}

/// Boxes of a matrix, given what the offsets of its elements are and where its mask holds.
fn of_matrix(
    analysis: &Analysis<'_, '_>,
    &Matrix { param, inner, height, panels }: &Matrix,
    offset: Linear,
    conditions: Vec<Condition>,
) -> Option<Boxes> {
    let outer = 1 - inner;
    let (mut of_rows, of_scalars): (SmallVec<[Rows; 1]>, SmallVec<[Rows; 1]>) =
        offset.rows.into_iter().partition(|rows| rows.slopes.iter().any(|&slope| slope != 0));
    let (pitch, mut rows) = match (of_rows.pop(), of_rows.is_empty()) {
        (None, _) => (Stride::Number(offset.slopes[outer]), Sum::default()),
        (Some(rows), true) => {
            let is_row = (rows.slopes[outer], rows.slopes[inner], offset.slopes[outer]) == (1, 0, 0);
            (Stride::Param(rows.pitch), Some(rows.start).filter(|_| is_row)?)
        }
        (Some(_), false) => return None,
    };
    if offset.slopes[inner] != 1 || matches!(pitch, Stride::Number(..=0)) {
        return None;
    }
    let mut dims =
        [Stride::Number(1), pitch].map(|stride| Dimension { at: Sum::default(), bound: None, stride });
    let mut left = offset.start;
    let (lower, upper): (Vec<Condition>, Vec<Condition>) =
        conditions.into_iter().partition(|condition| condition.bound.is_none());
    // Zeros are before the first of what has an end.
    let from_zero = |index: &Linear| lower.iter().any(|condition| condition.index == *index);
    if lower.iter().any(|low| !low.positive && !upper.iter().any(|condition| condition.index == low.index)) {
        return None;
    }
    for Condition { index, bound, positive } in &upper {
        let flat = index.places.is_empty() && index.rows.is_empty();
        let bound = bound.filter(|_| flat && (*positive || from_zero(index)))?;
        let at = match (index.slopes[inner], index.slopes[outer]) {
            (1, 0) => 0,
            (0, 1) => 1,
            _ => return None,
        };
        let dim = &mut dims[at];
        if dim.bound.replace(bound).is_some() {
            return None;
        }
        match dim.stride {
            Stride::Number(stride) => left.add(&index.start, -stride)?,
            Stride::Param(_) => rows.add(&index.start, -1)?,
        }
        dim.at = index.start.clone();
    }
    if rows != Sum::default() {
        let dim = dims.get_mut(1).filter(|dim| dim.bound.is_none())?;
        dim.at.add(&rows, 1)?;
    }
    let mut dims: SmallVec<[Dimension; 5]> = dims.into_iter().collect();
    let scalars = of_scalars.into_iter().filter(|rows| rows.start != Sum::default());
    dims.extend(scalars.map(|Rows { pitch, start, .. }| Dimension {
        at: start,
        bound: None,
        stride: Stride::Param(pitch),
    }));
    for (value, by) in left.terms {
        let free = |dim: &&mut Dimension| dim.bound.is_none();
        let one = |factor| Sum { terms: SmallVec::from_slice(&[(value, factor)]), constant: 0 };
        if let Stride::Number(pitch) = pitch
            && by % pitch == 0
            && let Some(dim) = dims.get_mut(1).filter(free)
        {
            dim.at.add(&one(by / pitch), 1)?;
        } else if by == 1
            && let Some(dim) = dims.get_mut(0).filter(free)
        {
            dim.at.add(&one(1), 1)?;
        } else if by > 0 {
            dims.push(Dimension { at: one(1), bound: None, stride: Stride::Number(by) });
        } else {
            return None;
        }
    }
    // What is before a dimension without a condition would be zeros.
    if dims.iter().any(|dim| dim.bound.is_none() && !analysis.is_nonnegative(&dim.at)) {
        return None;
    }
    let size = |dim: &Dimension| match dim.bound {
        None => Some(Extent::Number(NO_END)),
        Some(Bound::Number(below)) => {
            Some(below.unsigned_abs()).filter(|&size| size <= NO_END).map(Extent::Number)
        }
        Some(Bound::Param(param)) => Some(Extent::Param { param, factor: 1 }),
    };
    let map = TensorMap {
        param,
        offset: left.constant.checked_mul(2).filter(|bytes| bytes % ALIGN == 0)?,
        sizes: dims.iter().map(size).collect::<Option<Vec<Extent>>>()?,
        strides: dims.iter().skip(1).map(|dim| dim.stride.bytes()).collect::<Option<Vec<Extent>>>()?,
        tile: [panels.width, height].into_iter().chain(dims.iter().skip(2).map(|_| 1)).collect(),
        swizzle: panels.width * 2,
        im2col: None,
    };
    let coordinates = dims.into_iter().map(|dim| Coordinate { place: None, sum: dim.at }).collect();
    let (bytes, count, offsets) = (panels.bytes, panels.count, SmallVec::new());
    (map.sizes.len() <= MAX_RANK).then_some(Boxes { map, coordinates, offsets, bytes, count })
}

/// Where a load's first box begins, and how far from there what is copied of images lies.
struct Start {
    at: Vec<Val>,
    offsets: Vec<Val>,
}

impl Lower<'_> {
    /// One thread, for which `first` holds, makes mbarriers ready: from each byte on so many, for so many arrivals in a phase.
    pub(crate) fn init_mbarriers(&mut self, first: &Val, all: &[(u64, u64, u32)]) {
        self.behind_branch(first, |lower| {
            for &(barriers, count, arrivals) in all {
                for at in 0..count {
                    let barrier = lower.mbarrier(&(barriers + 8 * at).to_string().into());
                    lower.ir.raw(format_args!(
                        "call void asm sideeffect \"mbarrier.init.shared.b64 [$0], {arrivals};\", \"l,~{{memory}}\"\
                         (ptr addrspace(3) {barrier}) nounwind"
                    ));
                }
            }
            lower.ir.raw(
                "call void asm sideeffect \"fence.mbarrier_init.release.cluster;\", \"~{memory}\"() nounwind",
            );
        });
        self.fence_async_proxy();
    }

    /// Orders this thread's writes of global memory before copies of boxes.
    pub(crate) fn fence_global_writes(&mut self) {
        self.ir.raw("call void asm sideeffect \"fence.proxy.async.global;\", \"~{memory}\"() nounwind");
    }

    /// Waits until the phase of a parity of an mbarrier has ended.
    pub(crate) fn wait_for_phase(&mut self, barrier: &Val, parity: &Val) {
        let barrier = self.mbarrier(barrier);
        self.ir.raw(format_args!(
            "call void asm sideeffect \"{{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [$0], $1; \
             @!p bra again; }}\", \"l,r,~{{memory}}\"(ptr addrspace(3) {barrier}, i32 {parity}) nounwind convergent"
        ));
    }

    /// Arrives at an mbarrier where a condition holds.
    pub(crate) fn arrive(&mut self, barrier: &Val, condition: &Val) {
        let barrier = self.mbarrier(barrier);
        self.ir.raw(format_args!(
            "call void asm sideeffect \"@$1 mbarrier.arrive.shared.b64 _, [$0];\", \"l,b,~{{memory}}\"(ptr \
             addrspace(3) {barrier}, i1 {condition}) nounwind"
        ));
    }

    /// Starts the copies of loads, each with its place in shared memory, by the first thread where `runs` holds; an mbarrier
    /// counts their bytes.
    pub(crate) fn copy_boxes_if(&mut self, loads: &[(&Boxes, Val)], barrier: &Val, runs: &Val) -> Result<()> {
        let starts = self.starts(loads)?;
        let first = self.first_thread();
        let issues = self.ir.def(format_args!("and i1 {first}, {runs}"));
        self.behind_branch(&issues, |lower| lower.start_copies(loads, &starts, barrier));
        Ok(())
    }

    /// Starts the copies of loads by the one thread that the code is for.
    pub(crate) fn copy_boxes(&mut self, loads: &[(&Boxes, Val)], barrier: &Val) -> Result<()> {
        let starts = self.starts(loads)?;
        self.start_copies(loads, &starts, barrier);
        Ok(())
    }

    /// Where each load's first box is.
    fn starts(&mut self, loads: &[(&Boxes, Val)]) -> Result<Vec<Start>> {
        let of = |(boxes, _): &(&Boxes, Val)| -> Result<Start> {
            let at = boxes.coordinates.iter().map(|at| self.coordinate(at)).collect::<Result<_>>()?;
            let offsets = boxes.offsets.iter().map(|sum| {
                let offset = self.sum(sum)?;
                Ok(self.ir.def(format_args!("trunc i32 {offset} to i16")))
            });
            Ok(Start { at, offsets: offsets.collect::<Result<_>>()? })
        };
        loads.iter().map(of).collect()
    }

    fn start_copies(&mut self, loads: &[(&Boxes, Val)], starts: &[Start], barrier: &Val) {
        let bytes: u64 = loads.iter().map(|(boxes, _)| boxes.all_bytes()).sum();
        let barrier = self.mbarrier(barrier);
        self.ir.raw(format_args!(
            "call void asm sideeffect \"mbarrier.arrive.expect_tx.shared.b64 _, [$0], {bytes};\", \
             \"l,~{{memory}}\"(ptr addrspace(3) {barrier}) nounwind"
        ));
        for ((boxes, place), at) in loads.iter().zip(starts) {
            (0..boxes.count).for_each(|number| self.copy_box((boxes, place), at, &barrier, number));
        }
    }

    fn copy_box(&mut self, (boxes, place): (&Boxes, &Val), start: &Start, barrier: &Val, number: u64) {
        let (map, rank) = (self.tensor_map(&boxes.map), start.at.len());
        let place = self.shared_at(place, number * boxes.bytes);
        let across = number * u64::from(boxes.map.tile[0]);
        let mut at = start.at.clone();
        if across > 0 {
            at[0] = self.ir.def(format_args!("add i32 {}, {across}", at[0]));
        }
        let names = |from: usize, count: usize| {
            let names: Vec<String> = (from..from + count).map(|i| format!("${i}")).collect();
            names.join(", ")
        };
        let (mode, offsets) = match start.offsets.len() {
            0 => ("", String::new()),
            count => (".im2col", format!(", {{{}}}", names(3 + rank, count))),
        };
        let operands: String = at.iter().map(|at| format!(", i32 {at}")).collect();
        let further: String = start.offsets.iter().map(|offset| format!(", i16 {offset}")).collect();
        self.ir.raw(format_args!(
            "call void asm sideeffect \"cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes \
             [$0], [$1, {{{}}}], [$2]{offsets};\", \"l,l,l{}{},~{{memory}}\"(ptr addrspace(3) {place}, ptr {map}, ptr \
             addrspace(3) {barrier}{operands}{further}) nounwind",
            names(3, rank),
            ",r".repeat(rank),
            ",h".repeat(start.offsets.len()),
        ));
    }

    /// The parameter that holds a map.
    fn tensor_map(&mut self, map: &TensorMap) -> Val {
        let known = self.tensor_maps.iter().position(|known| known == map);
        let index = known.unwrap_or_else(|| {
            self.tensor_maps.push(map.clone());
            self.tensor_maps.len() - 1
        });
        format!("%map{index}").into()
    }

    fn coordinate(&mut self, at: &Coordinate) -> Result<Val> {
        let Some((place, factor)) = &at.place else { return self.sum(&at.sum) };
        let mut value = self.sum(&place.first)?;
        if place.below > 1 {
            value = self.ir.def(format_args!("udiv i32 {value}, {}", place.below));
        }
        if let Some(count) = place.count {
            value = self.ir.def(format_args!("urem i32 {value}, {count}"));
        }
        if *factor != 1 {
            value = self.ir.def(format_args!("mul i32 {value}, {factor}"));
        }
        if at.sum == Sum::default() {
            return Ok(value);
        }
        let sum = self.sum(&at.sum)?;
        Ok(self.ir.def(format_args!("add i32 {value}, {sum}")))
    }

    fn sum(&mut self, sum: &Sum) -> Result<Val> {
        let mut all: Option<Val> =
            (sum.constant != 0 || sum.terms.is_empty()).then(|| sum.constant.to_string().into());
        for &(value, by) in &sum.terms {
            let mut part = self.scalar(value)?;
            if by != 1 {
                part = self.ir.def(format_args!("mul i32 {part}, {by}"));
            }
            all = Some(match all {
                Some(sum) => self.ir.def(format_args!("add i32 {sum}, {part}")),
                None => part,
            });
        }
        Ok(all.unwrap_or_else(|| "0".into()))
    }

    fn mbarrier(&mut self, byte: &Val) -> Val {
        self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) @tilefuse_mbarriers, i32 {byte}"))
    }

    /// Whether this is the first of the threads that compute.
    pub(crate) fn first_thread(&mut self) -> Val {
        self.ir.entry_def(format_args!("icmp eq i32 %tid, 0"))
    }

    /// Code that runs only where a condition holds.
    pub(super) fn behind_branch(&mut self, condition: &Val, body: impl FnOnce(&mut Self)) {
        let n = self.ir.label();
        let (inside, after) = (format!("one{n}"), format!("all{n}"));
        self.ir.raw(format_args!("br i1 {condition}, label %{inside}, label %{after}"));
        self.ir.begin(&inside);
        body(self);
        self.ir.raw(format_args!("br label %{after}"));
        self.ir.begin(&after);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::{Extent, Im2Col, TensorMap, decode, encode};
    use crate::ptx::{Ptx, PtxOptions, Target, compile_ptx};

    #[test]
    fn maps_are_read_as_they_are_written() {
        let map = TensorMap {
            param: 1,
            offset: -32,
            sizes: vec![Extent::Number(64), Extent::Param { param: 3, factor: 1 }, Extent::Number(7)],
            strides: vec![Extent::Param { param: 4, factor: 2 }, Extent::Number(128)],
            tile: vec![64, 128, 1],
            swizzle: 128,
            im2col: None,
        };
        let im2col = Im2Col { lower: vec![-1], upper: vec![-2], steps: vec![2] };
        let images = TensorMap { im2col: Some(im2col), ..map.clone() };
        let all = vec![map.clone(), images, TensorMap { param: 0, ..map }];
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(decode(&encode(&[])), Some(Vec::new()));
        for text in [
            "",
            "1",
            "1:0:64:4096:64:128",
            "1:0:64,x:4096:64,128:128",
            "1:0:1,2:3,4:5,6:128",
            "1:0:1,2,3:4,5:6,7,8:128:0:0,0:1",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    /// A product of blocks of 64 rows of 2048 numbers by 64 columns, of members of a batch: the left operand is read at `%at`,
    /// which `offsets` computes, where `%inside` holds, if `mask` computes that.
    fn product(offsets: &str, mask: &str) -> String {
        let load = if mask.is_empty() { "load %x, %at" } else { "load %x, %at, mask %inside" };
        format!(
            "kernel @product(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16)) warps(4) {{
               %none = const 0 : i32  %end = const 2048 : i32  %step = const 64 : i32
               %id = program_id 0  %member = program_id 1
               %first = map mul %id, %step
               %r = range 0 64  %firsts = splat %first [64]  %row = map add %firsts, %r
               %rows = expand_dims %row axis 1
               %pitch = const 2048 : tile<64x1xi32>  %down = map mul %rows, %pitch
               %j = range 0 4096  %columns = reshape %j [64, 64]
               %zero = const 0.0 : tile<64x64xf32>
               %sum = for %k in %none..%end step %step with (%acc = %zero) {{
                 %ks = splat %k [64]  %depth = map add %ks, %r  %depths = expand_dims %depth axis 0
                 %a = broadcast %down [64, 64]  %b = broadcast %depths [64, 64]
                 {offsets}
                 {mask}
                 %u = {load}
                 %pitch2 = const 2048 : tile<1x64xi32>  %across = expand_dims %row axis 0
                 %c = map mul %across, %pitch2  %d = broadcast %c [64, 64]
                 %e = expand_dims %depth axis 1  %f = broadcast %e [64, 64]
                 %g = map add %d, %f  %v = load %y, %g
                 %next = dot %u, %v, %acc
                 yield %next
               }}
               store %z, %columns, %sum
             }}"
        )
    }

    fn compiled(text: &str) -> Ptx {
        let program = tilefuse_block::parse_valid(text).unwrap();
        compile_ptx(&program, Target::Sm90a, &PtxOptions::default()).unwrap()
    }

    #[test]
    fn loads_are_boxes_of_tensors() {
        let below = |bound: i64, of: &str| {
            format!("%n = const {bound} : tile<64x64xi32>  %i = {of}  %inside = map lt %i, %n")
        };
        let rows = "broadcast %rows [64, 64]";
        let of_member = "%far = const 819200 : i32  %start = map mul %member, %far
                         %starts = splat %start [64, 64]  %m = map add %a, %starts  %at = map add %m, %b";
        let cases = [
            ("%at = map add %a, %b", String::new()),
            // Rows behind the last one are zeros.
            ("%at = map add %a, %b", below(1000, rows)),
            ("%at = map add %a, %b", below(2000, "broadcast %depths [64, 64]")),
            (of_member, String::new()),
            // Rows of the next member are not those that a mask excludes.
            (of_member, below(390, rows)),
        ];
        let maps = cases.map(|(offsets, mask)| {
            let ptx = compiled(&product(offsets, &mask));
            assert!(ptx.text.contains("cp.async.bulk.tensor") && !ptx.text.contains("cp.async.cg"));
            ptx.tensor_maps[0].to_string()
        });
        expect_test::expect![[r#"
            0:0:2147483648,2147483648:4096:64,64:128
            0:0:2147483648,1000:4096:64,64:128
            0:0:2000,2147483648:4096:64,64:128
            0:0:2147483648,2147483648:4096:64,64:128
            0:0:2147483648,390,2147483648:4096,1638400:64,64,1:128"#]]
        .assert_eq(&maps.join("\n"));
    }

    /// As descriptors have them: the number of rows, and the elements of one, of which 16 are a factor. Neither may be 0.
    #[test]
    fn sizes_and_the_distance_of_rows_may_be_parameters() {
        let one = "%w = cast %b i64  %at = map add %a, %w";
        let heads = "%h = cast %member i64  %length = assume between %m 1 4096  %rows_before = map mul %h, %length
                     %width = const 64 : i64  %before = map mul %rows_before, %width  %starts = splat %before [64, 64]
                     %w = cast %b i64  %in_head = map add %a, %w  %at = map add %in_head, %starts";
        let of = |offsets: &str, factor: u32, least: u32, mask: &str| {
            let text = product(offsets, mask)
                .replace("%z: ptr<f32> align(16)", "%z: ptr<f32> align(16), %m: i64, %n: i64")
                .replace(
                    "%pitch = const 2048 : tile<64x1xi32>  %down = map mul %rows, %pitch",
                    "%down = map mul %far, %pitch",
                );
            let text = text.replace(
                "%down = map mul",
                &format!("%eight = assume multiple_of %n {factor}  %known = assume between %eight {least} 4096  %pitch = splat %known [64, 1]  %far = cast %rows i64  %down = map mul"),
            );
            let ptx = compiled(&text);
            ptx.tensor_maps.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let below =
            "%size = assume between %m 1 4096  %i = broadcast %far [64, 64]  %ends = splat %size [64, 64]
                     %inside = map lt %i, %ends";
        let within = "%size = assume between %m 1 4096  %i = broadcast %far [64, 64]  %ends = splat %size [64, 64]  %below = map lt %i, %ends
                      %null = const 0 : tile<64x64xi64>  %from = map ge %i, %null  %inside = map and %from, %below";
        let from =
            "%i = broadcast %far [64, 64]  %null = const 0 : tile<64x64xi64>  %inside = map ge %i, %null";
        let unknown = below.replace("between %m 1", "between %m -1");
        let maps = [
            of(one, 16, 1, ""),
            of(one, 16, 1, below),
            of(one, 16, 1, within),
            of(one, 16, 1, from),
            of(heads, 16, 1, below),
        ];
        let narrow = heads.replace("const 64", "const 4");
        let none =
            [of(one, 4, 1, within), of(one, 16, 0, within), of(one, 16, 1, &unknown), of(&narrow, 16, 1, "")];
        assert!(none.iter().all(String::is_empty), "{none:?}");
        expect_test::expect![[r#"
            0:0:2147483648,2147483648:p4x2:64,64:128 1:0:2147483648,2147483648:4096:64,64:128
            0:0:2147483648,p3x1:p4x2:64,64:128 1:0:2147483648,2147483648:4096:64,64:128
            0:0:2147483648,p3x1:p4x2:64,64:128 1:0:2147483648,2147483648:4096:64,64:128
            0:0:2147483648,2147483648:p4x2:64,64:128 1:0:2147483648,2147483648:4096:64,64:128
            0:0:2147483648,p3x1,2147483648:p4x2,p3x128:64,64,1:128 1:0:2147483648,2147483648:4096:64,64:128"#]].assert_eq(&maps.join("\n"));
    }

    /// Blocks of rows that are numbered in groups, of which the last one has fewer.
    #[test]
    fn the_number_of_a_block_is_not_negative() {
        let groups = "%eight = const 8 : i32  %blocks = const 17 : i32  %wide = const 1408 : i32
                      %group = map div_trunc %id, %wide  %above = map mul %group, %eight
                      %rest = map rem_trunc %id, %wide  %left = map sub %blocks, %above
                      %most = map min %left, %eight  %height = assume between %most 1 8
                      %within = map rem_trunc %rest, %height  %number = map add %above, %within
                      %first = map mul %number, %step";
        let mask =
            "%n = const 1030 : tile<64x64xi32>  %i = broadcast %rows [64, 64]  %inside = map lt %i, %n";
        let text = product("%at = map add %a, %b", mask).replace("%first = map mul %id, %step", groups);
        let maps = compiled(&text).tensor_maps.iter().map(ToString::to_string).collect::<Vec<_>>();
        expect_test::expect![[r#"
            0:0:2147483648,1030:4096:64,64:128
            1:0:2147483648,2147483648:4096:64,64:128"#]]
        .assert_eq(&maps.join("\n"));
    }

    /// The accelerator takes its time to start.
    #[test]
    fn short_loops_of_few_instances_are_copied_by_threads() {
        let maps = |iterations: u32, early: bool| {
            let end = format!("%end = const {} : i32", 64 * iterations);
            let text = product("%at = map add %a, %b", "").replace("%end = const 2048 : i32", &end);
            let mut program = tilefuse_block::parse_valid(&text).unwrap();
            program.early = early;
            let ptx = compile_ptx(&program, Target::Sm90a, &PtxOptions::default()).unwrap();
            assert_ne!(ptx.tensor_maps.is_empty(), ptx.text.contains("cp.async.bulk"));
            ptx.tensor_maps.len()
        };
        assert_eq!([(8, true), (8, false), (16, true)].map(|(n, early)| maps(n, early)), [0, 2, 2]);
    }

    /// Zeros would be loaded for what is before the first row or column.
    #[test]
    fn what_may_begin_before_a_tensor_is_no_box() {
        let back = "%far = const 1984 : i32  %up = map sub %far, %k  %ups = splat %up [64, 64]
                    %cs = expand_dims %r axis 0  %cc = broadcast %cs [64, 64]
                    %m = map add %a, %ups  %at = map add %m, %cc";
        for text in [
            product("%at = map add %a, %b", "").replace("%none = const 0 : i32", "%none = const -64 : i32"),
            product(back, ""),
        ] {
            assert!(compiled(&text).tensor_maps.iter().all(|map| map.param == 1));
        }
        // Neither is what a 64-bit number says the place of.
        let wide = "%w = cast %member i64  %far = const 8589934592 : i64  %s = map mul %w, %far
                    %odd = map mul %s, %w  %starts = splat %odd [64, 64]  %ab = map add %a, %b  %abw = cast %ab i64
                    %at = map add %starts, %abw";
        assert!(compiled(&product(wide, "")).tensor_maps.iter().all(|map| map.param == 1));
    }

    #[test]
    fn what_was_written_is_ordered_before_it_is_copied() {
        let text = product("%at = map add %a, %b", "");
        assert!(!compiled(&text).text.contains("fence.proxy.async.global"));
        let stored = "%zeros = const 0.0 : tile<64xbf16>  store %x, %row, %zeros  %rows = expand_dims";
        let text = text.replacen("%rows = expand_dims", stored, 1);
        let ptx = compiled(&text).text;
        let at = |what: &str| ptx.find(what).unwrap();
        assert!(at("st.global") < at("fence.proxy.async.global"));
        assert!(at("fence.proxy.async.global") < at("cp.async.bulk"));
    }

    #[test]
    fn what_is_no_box_is_loaded_by_all_threads() {
        // A mask that compares something else, and rows at distances that are no multiple of 16 bytes.
        let other = "%n = const 9 : tile<64x64xi32>  %s = map add %a, %b  %inside = map lt %s, %n";
        for (offsets, mask) in [
            ("%at = map add %a, %b", other),
            ("%aa = map add %a, %b  %h = const 2 : tile<64x64xi32>  %at = map mul %aa, %h", ""),
        ] {
            let ptx = compiled(&product(offsets, mask));
            assert!(ptx.tensor_maps.iter().all(|map| map.param == 1), "{:?}", ptx.tensor_maps);
        }
    }
}
