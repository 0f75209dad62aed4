//! Products of tiles that need less memory traffic than others: sums that are added to where they lie, and operands that
//! are read where they lie.

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{Elem, Op, OpKind, Program, Region, Value};

use super::build::Builder;
use super::{Bit, Def, axis_ranges, shape_bits};

/// Sums of 32 bits in a vector of the processors that multiply groups.
const LANES: i64 = 16;

/// A tile that is read from memory element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direct {
    /// The pointer.
    pub(crate) pointer: Value,
    /// The offsets of its elements.
    pub(crate) offsets: Value,
    /// Elements of memory between neighbours along rows and columns; of groups of rows, between these.
    pub(crate) strides: [i64; 2],
    /// Rows of a group in VNNI layout: 1 where each row lies by itself.
    pub(crate) group: u32,
}

/// Products that are added to what a loop carries.
#[derive(Default)]
pub(super) struct Sums {
    /// Results of products that a loop carries, by themselves or as the start of the next one, and as nothing else.
    pub(super) results: FxHashSet<Value>,
    /// What such a product starts from, where that is computed of what the loop carries element by element, and of that.
    /// It may take its place.
    pub(super) starts: FxHashMap<Value, Value>,
}

/// The sums that can be added to where they lie.
pub(super) fn running_sums(program: &Program) -> Sums {
    let uses = program.uses();
    let once = |value: Value| uses[value.index()] == 1;
    let mut found = Sums::default();
    program.walk(&mut |op| {
        let (OpKind::For, Some(body)) = (&op.kind, op.regions.first()) else { return };
        for (carried, start, result) in carried_sums(body) {
            if ![carried, start, result].into_iter().all(once) {
                continue;
            }
            if start != carried {
                found.starts.insert(start, carried);
            }
            found.results.insert(result);
        }
    });
    found
}

/// What a loop's body carries in, what a product starts from that is made of it, and the product, which is carried on.
fn carried_sums(body: &Region) -> impl Iterator<Item = (Value, Value, Value)> + '_ {
    let yielded = body.ops.last().filter(|op| op.kind == OpKind::Yield).map_or(&[][..], |op| &op.args);
    let pairs = body.args.iter().skip(1).copied().zip(yielded.iter().copied());
    let made_by = |value: Value| body.ops.iter().find(move |op| op.results.first() == Some(&value));
    pairs.filter_map(move |(carried, result)| {
        let &start = made_by(result).filter(|op| matches!(op.kind, OpKind::Dot { .. }))?.args.get(2)?;
        let made = |op: &Op| matches!(op.kind, OpKind::Map(_)) && op.args.contains(&carried);
        (start == carried || made_by(start).is_some_and(made)).then_some((carried, start, result))
    })
}

/// A side of a product: the position of an operand.
const LEFT: usize = 0;
const RIGHT: usize = 1;

/// Loads that are operands of products in the same list of operations and nothing else, left ones and right ones, with no
/// write between the load and a product.
pub(super) fn loaded_operands(program: &Program) -> [FxHashSet<Value>; 2] {
    [LEFT, RIGHT].map(|side| {
        let mut other = FxHashSet::default();
        program.walk(&mut |op| {
            let own = matches!(op.kind, OpKind::Dot { .. }).then_some(side);
            let rest = op.args.iter().enumerate().filter(|&(at, _)| Some(at) != own);
            other.extend(rest.map(|(_, &value)| value));
        });
        let mut found = FxHashSet::default();
        loads_of(&program.body, side, &mut found, &mut other);
        found.retain(|value| !other.contains(value));
        found
    })
}

/// Values that are left operands of products.
pub(super) fn left_operands(program: &Program) -> FxHashSet<Value> {
    let mut found = FxHashSet::default();
    program.walk(&mut |op| {
        if let OpKind::Dot { .. } = op.kind {
            found.extend(op.args.first().copied());
        }
    });
    found
}

/// Adds the loads of a list of operations, and those that a product takes when they may be stale.
fn loads_of(region: &Region, side: usize, found: &mut FxHashSet<Value>, other: &mut FxHashSet<Value>) {
    let mut fresh: FxHashSet<Value> = FxHashSet::default();
    for op in &region.ops {
        match op.kind {
            OpKind::Load { masked: false, .. } => fresh.extend(op.results.first().copied()),
            OpKind::Dot { .. } => other.extend(op.args.get(side).filter(|v| !fresh.contains(v)).copied()),
            _ => {}
        }
        found.extend(fresh.iter().copied());
        op.regions.iter().for_each(|inner| loads_of(inner, side, found, other));
        if writes(op) {
            fresh.clear();
        }
    }
}

fn writes(op: &Op) -> bool {
    op.kind.writes() || op.regions.iter().flat_map(|region| &region.ops).any(writes)
}

impl Builder<'_> {
    /// How an operand of a product can be read where it lies: a left one whose elements do at fixed strides, and a right
    /// one that lies there as it would in a slot.
    pub(super) fn direct(&mut self, value: Value) -> Option<Direct> {
        let [left, right] = [LEFT, RIGHT].map(|side| self.loaded[side].contains(&value));
        if !(left || right) || self.in_order.loads.contains(&value) {
            return None;
        }
        let Def::Op(Op { kind: OpKind::Load { .. }, args, .. }) = self.plan.defs[value.index()] else {
            return None;
        };
        let (&pointer, &offsets) = (args.first()?, args.get(1)?);
        let ty = self.plan.program.ty(value);
        let elem = ty.elem()?;
        let group = self.group(elem);
        if matches!(elem, Elem::Bool | Elem::F16) || (elem == Elem::Bf16 && group == 1) {
            // They are wider in slots than in memory.
            return None;
        }
        let shape = &ty.shape;
        let &[_, _] = &shape[..] else { return None };
        let map = self.plan.classes.fresh_map(shape_bits(shape));
        let mut plain = true;
        self.plan.walk(offsets, &map, &mut |value, _| plain &= self.is_plain(value));
        let affine = self.plan.affine(offsets, &map);
        let stride = |axis: usize| {
            let bits = map.get(axis_ranges(shape)[axis].clone())?;
            let first = bits.first().map_or(Some(0), |&bit| affine.stride(bit))?;
            let even =
                bits.iter().enumerate().all(|(i, &bit)| affine.stride(bit) == first.checked_shl(i as u32));
            even.then_some(first)
        };
        let strides = || Some([stride(0)?, stride(1)?]);
        // Of a left operand, neighbours along the common axis are read together.
        let fits = |strides: &[i64; 2]| match left {
            true => group == 1 || strides[1] == 1,
            false => elem != Elem::Bf16 && *strides == [i64::from(shape[1]), 1],
        };
        if let Some(strides) = strides().filter(fits) {
            return plain.then_some(Direct { pointer, offsets, strides, group: 1 });
        }
        let width = i64::from(shape[1]);
        let inside = group.trailing_zeros() as usize;
        let in_groups = || {
            let mut rows = map.get(axis_ranges(shape)[0].clone())?.iter().enumerate();
            let mut columns = map.get(axis_ranges(shape)[1].clone())?.iter().enumerate();
            let step = |&bit: &Bit| affine.stride(bit);
            let wanted = |i: usize| if i < inside { 1i64 << i } else { width << i };
            let rows_fit = rows.all(|(i, bit)| step(bit) == Some(wanted(i)));
            (rows_fit && columns.all(|(i, bit)| step(bit) == Some(i64::from(group) << i))).then_some(())
        };
        let wide = width >= LANES && shape[0] >= group;
        let direct = Direct { pointer, offsets, strides: [width * i64::from(group), 1], group };
        (plain && !left && group > 1 && wide && in_groups().is_some()).then_some(direct)
    }

    /// Elements along the common axis that instructions of this processor multiply and add up together.
    fn group(&self, elem: Elem) -> u32 {
        match elem {
            Elem::Bf16 if self.plan.registers.vnni2 => 2,
            Elem::I8 if self.plan.registers.vnni4 => 4,
            _ => 1,
        }
    }

    /// Whether a value that lies row by row is kept as narrow as in memory, for products that read neighbours together.
    pub(super) fn is_narrow(&self, value: Value) -> bool {
        let elem = self.plan.program.ty(value).elem();
        elem == Some(Elem::Bf16) && self.group(Elem::Bf16) > 1 && self.lefts.contains(&value)
    }

    /// Whether a value needs nothing from memory.
    fn is_plain(&self, value: Value) -> bool {
        match self.plan.defs[value.index()] {
            Def::Param(_) | Def::Induction(_) => true,
            Def::None | Def::Carried => false,
            Def::Op(op) => matches!(
                op.kind,
                OpKind::Const(_)
                    | OpKind::ProgramId(_)
                    | OpKind::NumPrograms(_)
                    | OpKind::Range { .. }
                    | OpKind::Splat(_)
                    | OpKind::ExpandDims(_)
                    | OpKind::Broadcast(_)
                    | OpKind::Reshape(_)
                    | OpKind::Permute(_)
                    | OpKind::Map(_)
                    | OpKind::Cast(_)
            ),
        }
    }
}
