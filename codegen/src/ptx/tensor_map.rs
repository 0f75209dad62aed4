//! Tensor maps: loads of a pipelined loop that one thread starts as a whole, by the tensor memory accelerator (TMA) of Hopper.
//!
//! A load whose offsets are linear in the indices of its tile and in scalars reads a box of a tensor:
//!
//! ```text
//! offset = 2048 (first + row) + k + column, where first + row < 8000     tensor [8000, *] in rows of 2048, box [128, 64],
//!                                                                        at (first, k); further rows are zeros
//! ```
//!
//! Conditions of the mask are sizes of the tensor, and rows or columns without one have no end. What is left of the offset is
//! a dimension for each scalar, or a part of a row's or column's index where that has no condition. The map is encoded on
//! the host at each launch, for the address that a pointer has then.

use std::fmt;
use std::str::FromStr;

use smallvec::SmallVec;
use tilefuse_block::{Elem, Op, OpKind, ScalarFn, Value};

use super::assign::{Assignment, mask_of};
use super::dot::Staged;
use super::ir::Val;
use super::lower::Lower;
use crate::error::Result;

/// The most dimensions of a tensor.
const MAX_RANK: usize = 5;
/// The most elements of a box along a dimension.
const MAX_BOX: u32 = 256;
/// What addresses and strides are multiples of, in bytes.
const ALIGN: i64 = 16;
/// The size of a dimension whose indices have no condition.
const NO_END: u64 = 1 << 31;

/// A tensor of 16-bit elements, boxes of which are copied to shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The pointer among the kernel's parameters.
    pub param: usize,
    /// Bytes from what it points to.
    pub offset: i64,
    /// Elements along each dimension, the contiguous one first.
    pub sizes: Vec<u64>,
    /// Bytes between neighbours along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a box along each dimension.
    pub tile: Vec<u32>,
    /// Bytes of a row of a box, within which parts of 16 bytes change places in shared memory: 32, 64 or 128.
    pub swizzle: u32,
}

impl fmt::Display for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: ToString>(values: &[T]) -> String {
            values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        let TensorMap { param, offset, sizes, strides, tile, swizzle } = self;
        write!(f, "{param}:{offset}:{}:{}:{}:{swizzle}", list(sizes), list(strides), list(tile))
    }
}

impl FromStr for TensorMap {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<TensorMap, ()> {
        fn number<T: FromStr>(text: &str) -> std::result::Result<T, ()> {
            text.parse().map_err(drop)
        }
        fn list<T: FromStr>(text: &str) -> std::result::Result<Vec<T>, ()> {
            text.split(',').map(number).collect()
        }
        let parts: Vec<&str> = text.split(':').collect();
        let [param, offset, sizes, strides, tile, swizzle] = parts[..] else { return Err(()) };
        let map = TensorMap {
            param: number(param)?,
            offset: number(offset)?,
            sizes: list(sizes)?,
            strides: list(strides)?,
            tile: list(tile)?,
            swizzle: number(swizzle)?,
        };
        let rank = map.sizes.len();
        if rank > MAX_RANK || map.strides.len() + 1 != rank || map.tile.len() != rank {
            return Err(());
        }
        Ok(map)
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

/// A sum of scalars, each times a factor, and a constant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sum {
    terms: SmallVec<[(Value, i64); 4]>,
    constant: i64,
}

impl Sum {
    fn add(&mut self, other: &Sum, factor: i64) -> Option<()> {
        for &(value, by) in &other.terms {
            let by = by.checked_mul(factor)?;
            match self.terms.iter_mut().find(|term| term.0 == value) {
                Some(term) => term.1 = term.1.checked_add(by)?,
                None => self.terms.push((value, by)),
            }
        }
        self.terms.retain(|term| term.1 != 0);
        self.constant = self.constant.checked_add(other.constant.checked_mul(factor)?)?;
        Some(())
    }
}

/// An integer tile that is linear in its indices.
#[derive(Clone, Debug)]
struct Linear {
    /// What an index along each axis adds.
    slopes: SmallVec<[i64; 4]>,
    start: Sum,
}

impl Linear {
    fn add(mut self, other: &Linear, factor: i64) -> Option<Linear> {
        for (slope, other) in self.slopes.iter_mut().zip(&other.slopes) {
            *slope = slope.checked_add(other.checked_mul(factor)?)?;
        }
        self.start.add(&other.start, factor)?;
        Some(self)
    }

    fn constant(&self) -> Option<i64> {
        let alone = self.start.terms.is_empty() && self.slopes.iter().all(|&slope| slope == 0);
        alone.then_some(self.start.constant)
    }

    fn expanded(mut self, axis: usize) -> Linear {
        self.slopes.insert(axis, 0);
        self
    }
}

/// An index that must be below a bound.
struct Condition {
    index: Linear,
    bound: i64,
}

/// The linear form of an integer.
fn linear(plan: &Assignment, value: Value) -> Option<Linear> {
    let ty = plan.program.ty(value);
    if !matches!(ty.elem()?, Elem::I32 | Elem::I64 | Elem::U32) {
        return None;
    }
    let flat = |start: Sum| Linear { slopes: SmallVec::from_elem(0, ty.rank()), start };
    if let Some(constant) = plan.facts[value.index()].constant {
        return Some(flat(Sum { constant, ..Sum::default() }));
    }
    let Some(op) = plan.defs[value.index()] else { return scalar(plan, value) };
    let operand = |at: usize| linear(plan, *op.args.get(at)?);
    match &op.kind {
        OpKind::Range { start, .. } => {
            let start = Sum { constant: i64::from(*start), ..Sum::default() };
            Some(Linear { slopes: SmallVec::from_slice(&[1]), start })
        }
        OpKind::Splat(_) => Some(flat(operand(0)?.start)),
        OpKind::ExpandDims(axis) => Some(operand(0)?.expanded(usize::from(*axis))),
        OpKind::Broadcast(_) => {
            let from = plan.program.ty(*op.args.first()?);
            let mut out = operand(0)?;
            let sizes = from.shape.iter().zip(&ty.shape);
            out.slopes.iter_mut().zip(sizes).filter(|(_, (a, b))| a != b).for_each(|(slope, _)| *slope = 0);
            Some(out)
        }
        OpKind::Map(ScalarFn::Add) => operand(0)?.add(&operand(1)?, 1),
        OpKind::Map(ScalarFn::Sub) => operand(0)?.add(&operand(1)?, -1),
        OpKind::Map(ScalarFn::Mul) => {
            let (a, b) = (operand(0)?, operand(1)?);
            let (of, factor) = match (a.constant(), b.constant()) {
                (_, Some(factor)) => (a, factor),
                (Some(factor), None) => (b, factor),
                (None, None) => return scalar(plan, value),
            };
            flat(Sum::default()).add(&of, factor)
        }
        OpKind::Cast(_) if plan.program.ty(*op.args.first()?).elem() == Some(Elem::I32) => operand(0),
        _ => scalar(plan, value),
    }
}

/// A scalar as itself.
fn scalar(plan: &Assignment, value: Value) -> Option<Linear> {
    let start = Sum { terms: SmallVec::from_slice(&[(value, 1)]), constant: 0 };
    (plan.program.ty(value).rank() == 0).then_some(Linear { slopes: SmallVec::new(), start })
}

/// The conditions that a mask is the conjunction of.
fn conditions(plan: &Assignment, mask: Value, out: &mut Vec<Condition>) -> Option<()> {
    if plan.facts[mask.index()].constant == Some(1) {
        return Some(());
    }
    let op = plan.defs[mask.index()]?;
    match &op.kind {
        OpKind::Map(ScalarFn::And) => op.args.iter().try_for_each(|&arg| conditions(plan, arg, out)),
        OpKind::Map(ScalarFn::Lt) => {
            let [index, bound] = op.args[..] else { return None };
            let unsigned = plan.program.ty(index).elem() == Some(Elem::U32);
            let bound = linear(plan, bound)?.constant().filter(|bound| *bound > 0)?;
            let positive = unsigned || plan.facts[index.index()].is_nonnegative();
            out.push(Condition { index: linear(plan, index).filter(|_| positive)?, bound });
            Some(())
        }
        OpKind::ExpandDims(_) | OpKind::Broadcast(_) => {
            let first = out.len();
            conditions(plan, *op.args.first()?, out)?;
            let (from, to) = (&plan.program.ty(*op.args.first()?).shape, &plan.program.ty(mask).shape);
            for condition in &mut out[first..] {
                match &op.kind {
                    OpKind::ExpandDims(axis) => condition.index.slopes.insert(usize::from(*axis), 0),
                    _ => {
                        let slopes = condition.index.slopes.iter_mut().zip(from.iter().zip(to));
                        slopes.filter(|(_, (a, b))| a != b).for_each(|(slope, _)| *slope = 0);
                    }
                }
            }
            Some(())
        }
        _ => None,
    }
}

/// A load as copies of boxes.
pub(crate) struct Boxes {
    pub(crate) map: TensorMap,
    /// Of the first box, along each dimension.
    coordinates: SmallVec<[Sum; 5]>,
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
}

/// A dimension of a tensor that is being made.
struct Dimension {
    at: Sum,
    bound: Option<i64>,
    stride: i64,
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
    let offset = linear(plan, offsets)?;
    let pitch = offset.slopes[1 - inner];
    if offset.slopes[inner] != 1 || pitch <= 0 {
        return None;
    }
    let mut dims = [1, pitch].map(|stride| Dimension { at: Sum::default(), bound: None, stride });
    let mut left = offset.start;
    let mut all = Vec::new();
    mask_of(load).map_or(Some(()), |mask| conditions(plan, mask, &mut all))?;
    for Condition { index, bound } in all {
        let at = match (index.slopes[inner], index.slopes[1 - inner]) {
            (1, 0) => 0,
            (0, 1) => 1,
            _ => return None,
        };
        let dim = &mut dims[at];
        if dim.bound.replace(bound).is_some() {
            return None;
        }
        left.add(&index.start, -dim.stride)?;
        dim.at = index.start;
    }
    let mut dims: SmallVec<[Dimension; 5]> = dims.into_iter().collect();
    for (value, by) in left.terms {
        let free = |dim: &&mut Dimension| dim.bound.is_none();
        let one = |factor| Sum { terms: SmallVec::from_slice(&[(value, factor)]), constant: 0 };
        if by % pitch == 0
            && let Some(dim) = dims.get_mut(1).filter(free)
        {
            dim.at.add(&one(by / pitch), 1)?;
        } else if by == 1
            && let Some(dim) = dims.get_mut(0).filter(free)
        {
            dim.at.add(&one(1), 1)?;
        } else if by > 0 {
            dims.push(Dimension { at: one(1), bound: None, stride: by });
        } else {
            return None;
        }
    }
    let bytes = |elements: i64| elements.checked_mul(2).filter(|&bytes| aligned(bytes));
    let strides = dims.iter().skip(1).map(|dim| Some(bytes(dim.stride)?.unsigned_abs()));
    let map = TensorMap {
        param,
        offset: bytes(left.constant)?,
        sizes: dims.iter().map(|dim| dim.bound.map_or(NO_END, i64::unsigned_abs)).collect(),
        strides: strides.collect::<Option<Vec<u64>>>()?,
        tile: [panels.width, height].into_iter().chain(dims.iter().skip(2).map(|_| 1)).collect(),
        swizzle: panels.width * 2,
    };
    let coordinates = dims.into_iter().map(|dim| dim.at).collect();
    let fits = map.sizes.len() <= MAX_RANK && map.sizes.iter().all(|&size| size <= NO_END);
    fits.then_some(Boxes { map, coordinates, bytes: panels.bytes, count: panels.count })
}

impl Lower<'_> {
    /// Makes the barriers at `barriers` ready for one arrival and the bytes of a stage each.
    pub(crate) fn init_copy_barriers(&mut self, barriers: u64, count: u64) {
        let first = self.first_thread();
        self.behind_branch(&first, |lower| {
            for at in 0..count {
                let barrier = lower.copy_barrier(&(barriers + 8 * at).to_string().into());
                lower.ir.raw(format_args!(
                    "call void asm sideeffect \"mbarrier.init.shared.b64 [$0], 1;\", \"l,~{{memory}}\"(ptr \
                     addrspace(3) {barrier}) nounwind"
                ));
            }
            lower.ir.raw(
                "call void asm sideeffect \"fence.mbarrier_init.release.cluster;\", \"~{memory}\"() nounwind",
            );
        });
        self.show_to_matrix_unit();
    }

    /// Waits for the copies that a barrier counts.
    pub(crate) fn wait_for_boxes(&mut self, barrier: &Val, parity: &Val) {
        let barrier = self.copy_barrier(barrier);
        self.ir.raw(format_args!(
            "call void asm sideeffect \"{{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [$0], $1; \
             @!p bra again; }}\", \"l,r,~{{memory}}\"(ptr addrspace(3) {barrier}, i32 {parity}) nounwind convergent"
        ));
    }

    /// Starts the copies of loads, each with its place in shared memory, where `runs` holds; a barrier counts their bytes.
    pub(crate) fn copy_boxes(&mut self, loads: &[(&Boxes, Val)], barrier: &Val, runs: &Val) -> Result<()> {
        let mut starts = Vec::new();
        for (boxes, _) in loads {
            let at = boxes.coordinates.iter().map(|sum| self.coordinate(sum));
            starts.push(at.collect::<Result<Vec<Val>>>()?);
        }
        let first = self.first_thread();
        let issues = self.ir.def(format_args!("and i1 {first}, {runs}"));
        let bytes: u64 = loads.iter().map(|(boxes, _)| boxes.all_bytes()).sum();
        let barrier = self.copy_barrier(barrier);
        self.behind_branch(&issues, |lower| {
            lower.ir.raw(format_args!(
                "call void asm sideeffect \"mbarrier.arrive.expect_tx.shared.b64 _, [$0], {bytes};\", \
                 \"l,~{{memory}}\"(ptr addrspace(3) {barrier}) nounwind"
            ));
            for ((boxes, place), at) in loads.iter().zip(&starts) {
                (0..boxes.count).for_each(|number| lower.copy_box((boxes, place), at, &barrier, number));
            }
        });
        Ok(())
    }

    fn copy_box(&mut self, (boxes, place): (&Boxes, &Val), at: &[Val], barrier: &Val, number: u64) {
        let (map, rank) = (self.tensor_map(&boxes.map), at.len());
        let place = self.shared_at(place, number * boxes.bytes);
        let across = number * u64::from(boxes.map.tile[0]);
        let mut at = at.to_vec();
        if across > 0 {
            at[0] = self.ir.def(format_args!("add i32 {}, {across}", at[0]));
        }
        let names: Vec<String> = (3..3 + rank).map(|i| format!("${i}")).collect();
        let operands: String = at.iter().map(|at| format!(", i32 {at}")).collect();
        self.ir.raw(format_args!(
            "call void asm sideeffect \"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes \
             [$0], [$1, {{{}}}], [$2];\", \"l,l,l{},~{{memory}}\"(ptr addrspace(3) {place}, ptr {map}, ptr addrspace(3) \
             {barrier}{operands}) nounwind",
            names.join(", "),
            ",r".repeat(rank),
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

    fn coordinate(&mut self, sum: &Sum) -> Result<Val> {
        let mut all: Option<Val> =
            (sum.constant != 0 || sum.terms.is_empty()).then(|| sum.constant.to_string().into());
        for &(value, by) in &sum.terms {
            let mut part = self.scalar(value)?;
            if self.elem(value)? == Elem::I64 {
                part = self.ir.def(format_args!("trunc i64 {part} to i32"));
            }
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

    fn copy_barrier(&mut self, byte: &Val) -> Val {
        self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) @tilefuse_copied, i32 {byte}"))
    }

    fn first_thread(&mut self) -> Val {
        self.ir.entry_def(format_args!("icmp eq i32 %tid, 0"))
    }

    /// Code that runs only where a condition holds.
    fn behind_branch(&mut self, condition: &Val, body: impl FnOnce(&mut Self)) {
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
    use super::{TensorMap, decode, encode};
    use crate::ptx::{Ptx, PtxOptions, Target, compile_ptx};

    #[test]
    fn maps_are_read_as_they_are_written() {
        let map = TensorMap {
            param: 1,
            offset: -32,
            sizes: vec![64, 1 << 31, 7],
            strides: vec![4096, 128],
            tile: vec![64, 128, 1],
            swizzle: 128,
        };
        let all = vec![map.clone(), TensorMap { param: 0, ..map }];
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(decode(&encode(&[])), Some(Vec::new()));
        for text in ["", "1", "1:0:64:4096:64:128", "1:0:64,x:4096:64,128:128", "1:0:1,2:3,4:5,6:128"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    /// A product of blocks of 64 rows of 2048 numbers by 64 columns, of members of a batch. `rows` and `depth` are what the left
    /// operand's offsets and mask are made of, beside `%row`, `%k` and `%member`.
    fn product(offsets: &str, mask: &str) -> Ptx {
        let load = if mask.is_empty() { "load %x, %at" } else { "load %x, %at, mask %inside" };
        let text = format!(
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
        );
        let program = tilefuse_block::parse_valid(&text).unwrap();
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
            let ptx = product(offsets, &mask);
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

    #[test]
    fn what_is_no_box_is_loaded_by_all_threads() {
        // A mask that compares something else, and rows at distances that are no multiple of 16 bytes.
        let other = "%n = const 9 : tile<64x64xi32>  %s = map add %a, %b  %inside = map lt %s, %n";
        for (offsets, mask) in [
            ("%at = map add %a, %b", other),
            ("%aa = map add %a, %b  %h = const 2 : tile<64x64xi32>  %at = map mul %aa, %h", ""),
        ] {
            let ptx = product(offsets, mask);
            assert!(ptx.tensor_maps.iter().all(|map| map.param == 1), "{:?}", ptx.tensor_maps);
        }
    }
}
