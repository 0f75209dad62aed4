//! What walks carry for reductions: one value, or the members of a tuple.
//!
//! A walk for each level of reductions reads a row once for each. Where a level's reductions are members of tuples that begin in the
//! level below, the walk of that one combines tuples and makes both: online softmax (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", 2018), Welford's moments, the maximum with its position. On a GPU each lane of a tile carries a tuple, and
//! takes a few elements of each step together, so that the base changes once for these:
//!
//! ```text
//! %top = reduce max of the step's elements, four for each of the carried tuples
//! %m' = max(%m, %top)
//! %s' = %s * exp(%m - %m') + the sum of exp(%x - %m')
//! ```
//!
//! What a tuple's members are, and how these are combined, is the [`combiner`](crate::combiner)'s.

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Loc, ReduceFn, ScalarFn, Shape, Value};

use super::emit::Emitter;
use super::error::{Result, ScheduleError};
use super::tiles::Walk;
use crate::combiner::{Arithmetic, Combiner, Members};
use crate::kernel::{KExpr, KNode, Kernel, TupleReduction};
use crate::machine::Machine;
use crate::taken::taken;

/// Elements of a step that are combined before they meet a carried tuple, as far as a tile has them.
const MAX_COMBINED: u32 = 4;

/// A reduction that a walk makes, by its position in [`Kernel::reduces`] or [`Kernel::tuples`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accumulator {
    One(u32),
    Tuple(u32),
}

/// Whether the walk for a level of reductions can make those of the next level, too: they are members of tuples.
pub(super) fn merges(kernel: &Kernel, level: u32) -> bool {
    let begins = |tuple: &&TupleReduction| level_of(kernel, tuple) == Some(level);
    let tuples: SmallVec<[&TupleReduction; 2]> = kernel.tuples.iter().filter(begins).collect();
    let mut next =
        (0..kernel.reduces.len() as u32).filter(|&r| kernel.reduces[r as usize].level == level + 1);
    let member = |r: u32| tuples.iter().any(|tuple| tuple.reduces.contains(&r));
    !tuples.is_empty() && tuples.iter().all(|tuple| is_exact(kernel, tuple)) && next.all(member)
}

/// The level of the reduction that a tuple begins with; `None` for a mix-order one.
fn level_of(kernel: &Kernel, tuple: &TupleReduction) -> Option<u32> {
    let first = &kernel.reduces[tuple.reduces.start as usize];
    (!first.mix_order).then_some(first.level)
}

/// Whether combining parts of a row is as good as what is made of the whole: where all that is read has 16 bits, sums of 32 bits
/// see nothing of the rounding of parts' means.
fn is_exact(kernel: &Kernel, tuple: &TupleReduction) -> bool {
    let short = tuple.combine != Combiner::Moments || reads_16_bits(kernel);
    short && tuple.elements.iter().all(|&e| kernel.info(e).elem.bits() <= 32)
}

/// Whether a kernel reads floats, all of them of 16 bits: what is made of integers has the precision of the kind that it is in.
fn reads_16_bits(kernel: &Kernel) -> bool {
    let mut floats = kernel.buffers.iter().filter(|b| !b.written && b.elem.is_float()).peekable();
    floats.peek().is_some() && floats.all(|b| b.elem.bits() == 16)
}

/// A value, and the literal that it is everywhere, or where the mask is true, where it is one.
#[derive(Clone, Copy)]
struct Operand {
    value: Value,
    literal: Option<Literal>,
    mask: Option<Value>,
}

impl From<Value> for Operand {
    fn from(value: Value) -> Operand {
        Operand { value, literal: None, mask: None }
    }
}

/// Elements along an axis of values of a block program, or single ones; what is the same for all elements lacks the axis, or
/// has one element along it where it is kept.
struct Elements<'e, 'k> {
    emitter: &'e mut Emitter<'k>,
    axis: Option<u8>,
    keep: bool,
    extent: i64,
}

impl Arithmetic for Elements<'_, '_> {
    type Value = Operand;
    type Error = ScheduleError;

    fn map(&mut self, function: ScalarFn, args: &[&Operand]) -> Result<Operand> {
        let b = &mut self.emitter.b;
        let rank = args.iter().map(|arg| b.ty(arg.value).rank()).max().unwrap_or(0);
        let mut values: SmallVec<[Value; 3]> = SmallVec::new();
        for arg in args {
            let own = b.ty(arg.value).rank();
            values.push(match self.axis {
                Some(axis) if 0 < own && own < rank => b.expand_dims(arg.value, axis)?,
                _ => arg.value,
            });
        }
        let value = match function {
            ScalarFn::Exp => self.emitter.power(values[0])?,
            _ => self.emitter.map(function, &values)?,
        };
        Ok(value.into())
    }

    fn number(&mut self, literal: Literal) -> Operand {
        Operand { value: self.emitter.b.constant(literal, &[]), literal: Some(literal), mask: None }
    }

    fn known(&self, operand: &Operand) -> Option<Literal> {
        operand.literal.filter(|_| operand.mask.is_none())
    }

    fn condition(&self, operand: &Operand) -> Option<Operand> {
        let ones = operand.literal.is_some_and(|literal| literal.as_f64() == 1.0);
        operand.mask.filter(|_| ones).map(Operand::from)
    }

    fn elem(&self, operand: &Operand) -> Elem {
        self.emitter.b.ty(operand.value).elem().unwrap_or(Elem::F32)
    }

    fn reduce(&mut self, function: ReduceFn, operand: &Operand) -> Result<Operand> {
        let value = operand.value;
        Ok(match self.axis {
            None => *operand,
            Some(axis) if self.keep => {
                self.emitter.reduce_tile(function, value, usize::from(axis), None)?.into()
            }
            Some(axis) => self.emitter.b.reduce(function, value, axis, None)?.into(),
        })
    }

    fn extent(&self) -> i64 {
        self.extent
    }
}

impl Emitter<'_> {
    /// The reductions of a level's walk, in order, and the level after the one that they are all of.
    pub(super) fn accumulators(&self, level: u32, reduced: u64) -> (Vec<Accumulator>, u32) {
        let kernel = self.kernel;
        let merged = self.merges_here(level, reduced);
        let tuple_of = |r: u32| {
            let own = |tuple: &&TupleReduction| tuple.reduces.contains(&r);
            kernel.tuples.iter().position(|tuple| own(&tuple)).filter(|_| merged)
        };
        let mut found = Vec::new();
        for r in 0..kernel.reduces.len() as u32 {
            let reduction = &kernel.reduces[r as usize];
            match tuple_of(r) {
                _ if reduction.level != level || reduction.mix_order => {}
                Some(tuple) if kernel.tuples[tuple].reduces.start == r => {
                    found.push(Accumulator::Tuple(tuple as u32));
                }
                Some(_) => {}
                None => found.push(Accumulator::One(r)),
            }
        }
        (found, level + if merged { 2 } else { 1 })
    }

    fn merges_here(&self, level: u32, reduced: u64) -> bool {
        let kernel = self.kernel;
        let one = self.tiling.axes.len() == 1
            && kernel.reduced[self.tiling.axes[0].var.0 as usize]
            && kernel.reduced.iter().filter(|&&r| r).count() == 1;
        let stores = (0..kernel.stores.len()).any(|s| self.stage_of(s, reduced) == Some(level + 1));
        let fits = one || !self.machine.is_gpu();
        fits && self.tiling.walk == Walk::Loops && !stores && merges(kernel, level)
    }

    /// Mix-order reductions, in order.
    pub(super) fn mix_order_accumulators(&self) -> Vec<Accumulator> {
        let kernel = self.kernel;
        let mix_order = (0..kernel.reduces.len() as u32).filter(|&r| kernel.reduces[r as usize].mix_order);
        let mut found: Vec<Accumulator> = Vec::new();
        for r in mix_order {
            match kernel.tuples.iter().position(|tuple| tuple.reduces.contains(&r)) {
                Some(tuple) if kernel.tuples[tuple].reduces.start != r => {}
                Some(tuple) => found.push(Accumulator::Tuple(tuple as u32)),
                None => found.push(Accumulator::One(r)),
            }
        }
        found
    }

    /// Where a reduction comes from.
    pub(super) fn loc_of(&self, accumulator: Accumulator) -> Loc {
        let first = match accumulator {
            Accumulator::One(r) => r,
            Accumulator::Tuple(t) => self.kernel.tuples[t as usize].reduces.start,
        };
        self.reduce_expr(first).map_or(Loc::UNKNOWN, |expr| self.kernel.info(expr).loc)
    }

    /// The members of what a reduction combines.
    pub(super) fn elements_of(&self, accumulator: Accumulator) -> Members<KExpr> {
        match accumulator {
            Accumulator::One(r) => Members::from_slice(&[self.kernel.reduces[r as usize].value]),
            Accumulator::Tuple(t) => self.kernel.tuples[t as usize].elements.clone(),
        }
    }

    /// What is carried for each of these reductions.
    pub(super) fn parts_of<'c>(
        &self,
        accumulators: &[Accumulator],
        mut carried: &'c [Value],
    ) -> Vec<(Accumulator, &'c [Value])> {
        let mut found = Vec::with_capacity(accumulators.len());
        for &accumulator in accumulators {
            let (own, rest) = carried.split_at(self.elements_of(accumulator).len().min(carried.len()));
            found.push((accumulator, own));
            carried = rest;
        }
        found
    }

    /// What loops begin with: nothing combined yet.
    pub(super) fn fresh(&mut self, accumulators: &[Accumulator]) -> Result<Vec<Value>> {
        let mut carried = Vec::new();
        for &accumulator in accumulators {
            match accumulator {
                Accumulator::One(r) => carried.push(self.initial(r)?),
                Accumulator::Tuple(t) => {
                    for (member, literal) in self.neutral(accumulator).into_iter().enumerate() {
                        let shape =
                            if self.is_uniform(t, member) { Shape::new() } else { self.carried_shape(t) };
                        carried.push(self.b.constant(literal, &shape));
                    }
                }
            }
        }
        if !self.machine.is_gpu() && self.reduced_axis().is_some_and(|axis| self.may_mask(axis)) {
            return self.widened(accumulators, &carried);
        }
        Ok(carried)
    }

    /// What changes nothing when combined.
    pub(super) fn neutral(&self, accumulator: Accumulator) -> Members<Literal> {
        let combine = match accumulator {
            Accumulator::One(r) => self.kernel.reduces[r as usize].combine.into(),
            Accumulator::Tuple(t) => self.kernel.tuples[t as usize].combine,
        };
        let elements = self.elements_of(accumulator);
        let elems: Members<Elem> = elements.iter().map(|&e| self.kernel.info(e).elem).collect();
        combine.identity(&elems)
    }

    /// Whether a member is the same in all lanes as long as nothing is masked: the number of elements.
    fn is_uniform(&self, tuple: u32, member: usize) -> bool {
        let tuple = &self.kernel.tuples[tuple as usize];
        tuple.combine == Combiner::Moments && member == 0 && self.literal(tuple.elements[0]).is_some()
    }

    fn literal(&self, expr: KExpr) -> Option<Literal> {
        match self.kernel.node(expr) {
            KNode::Const(literal) => Some(*literal),
            _ => None,
        }
    }

    /// The shape of a tuple's members: one for each lane on a GPU, one for each row on a processor.
    fn carried_shape(&self, tuple: u32) -> Shape {
        if self.carries_tiles() {
            return Shape::from_slice(&[self.tiling.axes[0].extent / self.together()]);
        }
        let elements = &self.kernel.tuples[tuple as usize].elements;
        let vars = elements.iter().fold(0, |vars, &e| vars | self.kernel.info(e).vars);
        self.without_reduced_axis(self.spread_shape(vars))
    }

    /// What is carried where members differ by lanes.
    pub(super) fn widened(&mut self, accumulators: &[Accumulator], carried: &[Value]) -> Result<Vec<Value>> {
        let mut wide = Vec::with_capacity(carried.len());
        for (accumulator, parts) in self.parts_of(accumulators, carried) {
            match accumulator {
                Accumulator::Tuple(t) => {
                    let shape = self.carried_shape(t);
                    for &part in parts {
                        wide.push(self.lift(part, &shape)?);
                    }
                }
                Accumulator::One(_) => wide.extend(parts),
            }
        }
        Ok(wide)
    }

    /// One step of a walk: its elements, combined with what is carried.
    pub(super) fn accumulate_tuple(&mut self, tuple: u32, carried: &[Value]) -> Result<Vec<Value>> {
        taken!("walk that combines tuples");
        let combine = self.kernel.tuples[tuple as usize].combine;
        let lanes = self.carries_tiles();
        let axis = self.reduced_axis();
        let elements = self.elements(tuple, axis)?;
        let mut over = match axis {
            Some(_) if lanes => {
                let (axis, extent) = (self.grouped_axis(), i64::from(self.together()));
                Elements { emitter: self, axis: Some(axis), keep: false, extent }
            }
            Some(axis) => {
                let extent = i64::from(self.tiling.axes[axis].extent);
                Elements { emitter: self, axis: Some(axis as u8), keep: true, extent }
            }
            None => Elements { emitter: self, axis: None, keep: true, extent: 1 },
        };
        let so_far: Members<Operand> = carried.iter().copied().map(Operand::from).collect();
        let next = combine.accumulate(&mut over, &so_far, &elements)?;
        self.as_carried(&next, carried)
    }

    /// The elements of a step; those outside of the row change nothing.
    fn elements(&mut self, tuple: u32, axis: Option<usize>) -> Result<Members<Operand>> {
        let TupleReduction { combine, elements, .. } = self.kernel.tuples[tuple as usize].clone();
        let mask = match axis {
            Some(axis) => self.axis_mask(axis)?,
            None => None,
        };
        let mut found = Members::new();
        for ((member, &expr), identity) in
            elements.iter().enumerate().zip(self.neutral(Accumulator::Tuple(tuple)))
        {
            let mut value = self.value(expr)?;
            let literal = self.literal(expr).filter(|_| member != combine.value());
            let counts = literal.is_none_or(|literal| literal != identity && !combine.ignores(member));
            if literal.is_none() {
                let shape = self.spread_shape(self.kernel.info(expr).vars);
                value = self.lift(value, &shape)?;
            }
            let mask = mask.filter(|_| counts);
            if let Some(mask) = mask {
                let identity = self.b.constant(identity, &[]);
                value = self.map(ScalarFn::Select, &[mask, value, identity])?;
            }
            let mut mask = mask.filter(|_| literal.is_some());
            if self.carries_tiles() && (literal.is_none() || mask.is_some()) {
                value = self.grouped(value)?;
                mask = mask.map(|mask| self.grouped(mask)).transpose()?;
            }
            found.push(Operand { value, literal, mask });
        }
        Ok(found)
    }

    /// What is carried, combined with another part.
    pub(super) fn combined(
        &mut self,
        accumulator: Accumulator,
        carried: &[Value],
        part: &[Value],
    ) -> Result<Vec<Value>> {
        match accumulator {
            Accumulator::One(r) => {
                let function = self.kernel.reduces[r as usize].combine.combine();
                Ok(vec![self.b.map(function, &[carried[0], part[0]])?])
            }
            Accumulator::Tuple(t) => {
                let combine = self.kernel.tuples[t as usize].combine;
                let [so_far, part] = [carried, part]
                    .map(|values| values.iter().copied().map(Operand::from).collect::<Members<Operand>>());
                let mut single = Elements { emitter: self, axis: None, keep: true, extent: 1 };
                let next = combine.accumulate(&mut single, &so_far, &part)?;
                self.as_carried(&next, carried)
            }
        }
    }

    fn as_carried(&mut self, next: &[Operand], carried: &[Value]) -> Result<Vec<Value>> {
        let mut values = Vec::with_capacity(next.len());
        for (operand, &like) in next.iter().zip(carried) {
            let shape = self.b.ty(like).shape.clone();
            values.push(self.lift(operand.value, &shape)?);
        }
        Ok(values)
    }

    /// The results of a reduction, from what its walk carried.
    pub(super) fn finish_walk(&mut self, accumulator: Accumulator, carried: &[Value]) -> Result<()> {
        self.at(self.loc_of(accumulator), |this| match accumulator {
            Accumulator::One(r) => {
                let value = this.finish_reduction(r, carried[0])?;
                let expr = this.reduce_expr(r)?;
                this.outer.values.insert(expr, value);
                Ok(())
            }
            Accumulator::Tuple(t) => {
                let axis = this.carries_tiles().then_some(0);
                let lanes = axis.map_or(1, |_| this.tiling.axes[0].extent / this.together());
                this.finish_tuple(t, carried, axis, i64::from(lanes), this.kernel.reduced_points())
            }
        })
    }

    /// The results of a reduction over an axis of what was carried, of so many elements in all.
    pub(super) fn finish_tuple(
        &mut self,
        tuple: u32,
        carried: &[Value],
        axis: Option<u8>,
        extent: i64,
        all: i64,
    ) -> Result<()> {
        let TupleReduction { combine, elements, results, .. } = self.kernel.tuples[tuple as usize].clone();
        let parts: Members<Operand> = carried.iter().copied().map(Operand::from).collect();
        let all = self.literal(elements[0]).map(|_| all);
        let keep = self.tiling.axes.len() > 1;
        let mut over = Elements { emitter: self, axis, keep, extent };
        let values = combine.finish(&mut over, &parts, all)?;
        for (expr, operand) in results.into_iter().zip(values) {
            if self.literal(expr).is_none() {
                self.outer.values.insert(expr, operand.value);
            }
        }
        Ok(())
    }

    /// Elements of a step that meet a carried tuple together.
    fn together(&self) -> u32 {
        MAX_COMBINED.min(self.tiling.axes[0].extent)
    }

    /// A step's elements in groups that meet a carried tuple each.
    fn grouped(&mut self, value: Value) -> Result<Value> {
        let (extent, together) = (self.tiling.axes[0].extent, self.together());
        let shape = match self.grouped_axis() {
            0 => [together, extent / together],
            _ => [extent / together, together],
        };
        Ok(self.b.reshape(value, &shape)?)
    }

    /// The axis of [`Emitter::grouped`] along which a group lies. A group is within a thread: neighbours where a thread
    /// has few elements, which are adjacent, else elements that are far apart.
    fn grouped_axis(&self) -> u8 {
        u8::from(self.tiling.axes[0].extent < self.tiling.warps * 1024)
    }

    /// `exp` of numbers that are not positive, to be summed. On a GPU, where all floats that are read have 16 bits, by its own
    /// unit, whose relative error of `2^-22` is that of the sum, to which less than `2^-126` adds nothing.
    fn power(&mut self, below: Value) -> Result<Value> {
        let narrow = self.b.ty(below).elem() == Some(Elem::F32) && reads_16_bits(self.kernel);
        if !matches!(self.machine, Machine::Gpu { .. }) || !narrow {
            return self.map(ScalarFn::Exp, &[below]);
        }
        let scale = self.b.constant(Literal::float(Elem::F32, std::f64::consts::LOG2_E), &[]);
        let scaled = self.map(ScalarFn::Mul, &[below, scale])?;
        self.map(ScalarFn::Exp2ApproxFtz, &[scaled])
    }
}
