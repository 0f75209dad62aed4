//! Emission of block operations for a kernel and its tiles.
//!
//! Every value has the tile's rank, with an extent of 1 along axes that it does not depend on, or is a scalar where it
//! depends on no axis; operands are broadcast where they meet.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Builder, Elem, Literal, Loc, Program, ReduceFn, ScalarFn, Shape, Value};

use super::error::{Result, ScheduleError};
use super::swizzle;
use super::tiles::{Tiling, Walk};
use crate::index::{Expr, Linear, Var};
use crate::kernel::{Dynamic, Expressions, KExpr, KNode, Kernel};
use crate::machine::Machine;
use crate::taken::taken;

/// Emits the program of a kernel.
pub(super) fn emit(
    name: &str,
    kernel: &Kernel,
    tiling: &Tiling,
    machine: Machine,
    align: &[u32],
) -> Result<Program> {
    let mut builder = Builder::new(name);
    builder.set_warps(tiling.warps);
    if machine.starts_early(tiling.grid(kernel)) {
        builder.set_early();
    }
    let mut pointers = Vec::new();
    for (position, buffer) in kernel.buffers.iter().enumerate() {
        let least = buffer.elem.bytes();
        let align = align.get(position).copied().unwrap_or(least).max(least);
        let label = if buffer.written { "out" } else { "in" };
        pointers.push(builder.ptr_param(
            &format!("{label}{position}"),
            buffer.elem,
            align,
            Some(buffer.span as u64),
        ));
    }
    let status = kernel.checks().then(|| builder.ptr_param("status", Elem::I32, Elem::I32.bytes(), Some(1)));
    let mut emitter = Emitter {
        kernel,
        tiling,
        machine,
        b: builder,
        pointers,
        status,
        checked: FxHashSet::default(),
        bases: vec![None; kernel.reduced.len()],
        start: None,
        outer: Memo::default(),
        inner: Memo::default(),
        persistent: PersistentSteps::default(),
        in_loop: false,
        whole: false,
    };
    emitter.run()?;
    Ok(emitter.b.finish())
}

#[derive(Default)]
pub(super) struct Memo {
    pub(super) values: FxHashMap<KExpr, Value>,
    pub(super) indices: FxHashMap<(Expr, Elem), Value>,
    pub(super) masks: FxHashMap<usize, Value>,
}

/// Where an instance's row begins.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) var: Var,
    /// The address of the row's first element, without the variable's term.
    pub(super) row: Linear,
    /// The kind of the address.
    pub(super) elem: Elem,
    /// The multiple before it.
    pub(super) aligned: Value,
    /// Minus the elements from there to the row, `i32`.
    pub(super) first: Value,
}

/// What the steps of a row have computed, by the first index of each.
#[derive(Default)]
pub(super) struct PersistentSteps {
    pub(super) steps: FxHashMap<i64, Memo>,
    /// Sums and the like of nothing yet.
    pub(super) fresh: Vec<Value>,
}

pub(super) struct Emitter<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) tiling: &'a Tiling,
    pub(super) machine: Machine,
    pub(super) b: Builder,
    pub(super) pointers: Vec<Value>,
    /// Where 1 is written when an index is out of range.
    pub(super) status: Option<Value>,
    /// What was checked: where an index is inside, and the mask of the read.
    pub(super) checked: FxHashSet<(Value, Option<Value>)>,
    /// First index of each variable in this instance or iteration, an `i32` scalar; `None` is 0.
    pub(super) bases: Vec<Option<Value>>,
    /// Where this instance's row begins, if the tiling peels.
    pub(super) start: Option<Start>,
    /// What is valid in the whole program.
    pub(super) outer: Memo,
    /// What is valid in the loop body at hand.
    pub(super) inner: Memo,
    /// What the steps of a row have computed, where the reduction is persistent.
    pub(super) persistent: PersistentSteps,
    pub(super) in_loop: bool,
    /// Whether the reduced axis is inside its variable in the loop body at hand.
    pub(super) whole: bool,
}

impl Emitter<'_> {
    fn run(&mut self) -> Result<()> {
        self.place_instance()?;
        self.place_row()?;
        match self.tiling.walk {
            Walk::Spanned => {
                taken!("spanned");
                self.straight()
            }
            Walk::Rows => self.rows_walk(),
            Walk::Loops | Walk::Persistent => self.looped(),
        }
    }

    /// Splits the instance's number into the first index of each parallel variable.
    fn place_instance(&mut self) -> Result<()> {
        let counts = self.tiling.grid_extents(self.kernel);
        if counts.iter().all(|&(_, n)| n == 1) {
            return Ok(());
        }
        let mut left = self.b.program_id(0)?;
        let mut counts: Vec<(Var, i64)> = counts.into_iter().filter(|&(_, n)| n > 1).collect();
        if let Some(order) = swizzle::of(self.kernel, self.tiling, self.machine) {
            let [(rows, down), (columns, across)] = order.axes;
            counts.truncate(counts.len().saturating_sub(2));
            let mut within = left;
            if !counts.is_empty() {
                let all = self.b.constant(Literal::int(Elem::I32, down * across), &[]);
                within = self.b.map(ScalarFn::RemTrunc, &[left, all])?;
                left = self.b.map(ScalarFn::DivTrunc, &[left, all])?;
            }
            let [row, column] = swizzle::place(&mut self.b, within, order.rows, across)?;
            self.bases[rows.0 as usize] = Some(self.scaled_base(rows, row)?);
            self.bases[columns.0 as usize] = Some(self.scaled_base(columns, column)?);
        }
        let many = counts.len();
        let mut seen = 0;
        for &(var, count) in counts.iter().rev() {
            seen += 1;
            let mut position = left;
            if seen < many {
                let count = self.b.constant(Literal::int(Elem::I32, count), &[]);
                position = self.b.map(ScalarFn::RemTrunc, &[left, count])?;
                left = self.b.map(ScalarFn::DivTrunc, &[left, count])?;
            }
            self.bases[var.0 as usize] = Some(self.scaled_base(var, position)?);
        }
        Ok(())
    }

    fn scaled_base(&mut self, var: Var, position: Value) -> Result<Value> {
        match self.tiling.axis_of(var) {
            Some(axis) if self.tiling.axes[axis].extent > 1 => {
                let step = i64::from(self.tiling.axes[axis].extent);
                let step = self.b.constant(Literal::int(Elem::I32, step), &[]);
                Ok(self.b.map(ScalarFn::Mul, &[position, step])?)
            }
            _ => Ok(position),
        }
    }

    fn straight(&mut self) -> Result<()> {
        for store in 0..self.kernel.stores.len() {
            self.store(store)?;
        }
        Ok(())
    }

    pub(super) fn reduce_expr(&self, reduce: u32) -> Result<KExpr> {
        let at = self.kernel.exprs.iter().position(|n| *n == KNode::Reduce(reduce));
        at.map(|p| KExpr(p as u32)).ok_or(ScheduleError::Internal("a reduction has no expression"))
    }

    /// The axis of the tile that is reduced, the first of them where both are.
    pub(super) fn reduced_axis(&self) -> Option<usize> {
        self.tiling.axes.iter().position(|a| self.kernel.reduced[a.var.0 as usize])
    }

    /// The axis along which loops walk last.
    pub(super) fn walked_axis(&self) -> Option<usize> {
        let last = self.kernel.reduced.iter().rposition(|&reduced| reduced)?;
        self.tiling.axis_of(Var(last as u32))
    }

    /// Whether the tile has two axes, which are reduced both.
    fn reduces_both_axes(&self) -> bool {
        self.tiling.axes.len() == 2 && self.tiling.axes.iter().all(|a| self.kernel.reduced[a.var.0 as usize])
    }

    /// Whether loops carry whole tiles, to be combined once at the end, or one value per row.
    pub(super) fn carries_tiles(&self) -> bool {
        self.machine.is_gpu() && self.reduced_axis().is_some()
    }

    /// The shape of a reduction's operand: that of the value, spread along the reduced axis.
    fn operand_shape(&self, reduce: u32) -> Shape {
        self.spread_shape(self.kernel.info(self.kernel.reduces[reduce as usize].value).vars)
    }

    /// The shape of what depends on these variables, spread along the reduced axes.
    pub(super) fn spread_shape(&self, vars: u64) -> Shape {
        if self.reduces_both_axes() {
            return self.tiling.axes.iter().map(|a| a.extent).collect();
        }
        let mut shape = self.shape_of(vars);
        if let Some(axis) = self.reduced_axis() {
            if shape.is_empty() {
                shape = Shape::from_elem(1, self.tiling.axes.len());
            }
            shape[axis] = self.tiling.axes[axis].extent;
        }
        shape
    }

    pub(super) fn initial(&mut self, reduce: u32) -> Result<Value> {
        let reduction = &self.kernel.reduces[reduce as usize];
        let neutral = reduction.combine.neutral(self.kernel.info(reduction.value).elem);
        let mut shape = self.operand_shape(reduce);
        if !self.carries_tiles() {
            shape = self.without_reduced_axis(shape);
        }
        Ok(self.b.constant(neutral, &shape))
    }

    /// The shape of one value for each row.
    pub(super) fn without_reduced_axis(&self, mut shape: Shape) -> Shape {
        if let Some(axis) = self.reduced_axis() {
            shape[axis] = 1;
            if shape.len() == 1 {
                shape.clear();
            }
        }
        shape
    }

    pub(super) fn accumulate(&mut self, reduce: u32, acc: Value) -> Result<Value> {
        let (combine, operand) = {
            let reduction = &self.kernel.reduces[reduce as usize];
            (reduction.combine, reduction.value)
        };
        let shape = self.operand_shape(reduce);
        let value = self.value(operand)?;
        let value = self.lift(value, &shape)?;
        let Some(axis) = self.reduced_axis() else {
            return Ok(self.b.map(combine.combine(), &[acc, value])?);
        };
        let both = self.reduces_both_axes();
        let mask = if both { self.tail_mask(&shape)? } else { self.axis_mask(axis)? };
        if !self.carries_tiles() {
            let part = self.reduce_tile(combine, value, axis, mask)?;
            return Ok(self.b.map(combine.combine(), &[acc, part])?);
        }
        let first = self.tiling.walk == Walk::Persistent && self.persistent.fresh.contains(&acc);
        let next = if first { value } else { self.b.map(combine.combine(), &[acc, value])? };
        let Some(mask) = mask else { return Ok(next) };
        let mask = self.lift(mask, &shape)?;
        Ok(self.b.map(ScalarFn::Select, &[mask, next, acc])?)
    }

    pub(super) fn finish_reduction(&mut self, reduce: u32, acc: Value) -> Result<Value> {
        match self.reduced_axis() {
            Some(_) if self.reduces_both_axes() => {
                self.reduce_both_axes(self.kernel.reduces[reduce as usize].combine, acc)
            }
            Some(axis) if self.carries_tiles() => {
                let combine = self.kernel.reduces[reduce as usize].combine;
                self.reduce_tile(combine, acc, axis, None)
            }
            _ => Ok(acc),
        }
    }

    /// Reduces along an axis and keeps the rank.
    pub(super) fn reduce_tile(
        &mut self,
        combine: ReduceFn,
        value: Value,
        axis: usize,
        mask: Option<Value>,
    ) -> Result<Value> {
        let shape = self.b.ty(value).shape.clone();
        let mask = match mask {
            Some(mask) => Some(self.lift(mask, &shape)?),
            None => None,
        };
        let reduced = self.b.reduce(combine, value, axis as u8, mask)?;
        if self.b.ty(reduced).rank() == 0 {
            return Ok(reduced);
        }
        Ok(self.b.expand_dims(reduced, axis as u8)?)
    }

    /// A variable's index as a value, `i32`.
    pub(super) fn var_value(&mut self, var: Var) -> Result<Value> {
        let range = self.range_of(var)?;
        match (self.first(var)?, range) {
            (Some(base), Some(range)) => self.map(ScalarFn::Add, &[base, range]),
            (Some(one), None) | (None, Some(one)) => Ok(one),
            (None, None) => Ok(self.b.constant(Literal::int(Elem::I32, 0), &[])),
        }
    }

    /// `0..extent` along the variable's axis, if it has one of more than one element.
    pub(super) fn range_of(&mut self, var: Var) -> Result<Option<Value>> {
        let Some(axis) = self.tiling.axis_of(var).filter(|&a| self.tiling.axes[a].extent > 1) else {
            return Ok(None);
        };
        let mut range = self.b.range(0, self.tiling.axes[axis].extent)?;
        for other in 0..self.tiling.axes.len() {
            if other != axis {
                range = self.b.expand_dims(range, other as u8)?;
            }
        }
        Ok(Some(range))
    }

    /// The shape of a value that depends on these variables; empty for a scalar.
    fn shape_of(&self, vars: u64) -> Shape {
        let on = |axis: &super::Axis| vars & (1 << axis.var.0.min(63)) != 0 && axis.extent > 1;
        if !self.tiling.axes.iter().any(on) {
            return Shape::new();
        }
        self.tiling.axes.iter().map(|a| if on(a) { a.extent } else { 1 }).collect()
    }

    /// The least shape that all these values broadcast to.
    pub(super) fn union(&self, values: &[Value]) -> Shape {
        let mut shape = Shape::new();
        for &v in values {
            let other = &self.b.ty(v).shape;
            if shape.is_empty() {
                shape = other.clone();
            } else {
                shape.iter_mut().zip(other).for_each(|(a, &b)| *a = (*a).max(b));
            }
        }
        shape
    }

    pub(super) fn lift(&mut self, value: Value, shape: &[u32]) -> Result<Value> {
        let from = &self.b.ty(value).shape;
        if from[..] == *shape {
            return Ok(value);
        }
        Ok(if from.is_empty() { self.b.splat(value, shape)? } else { self.b.broadcast(value, shape)? })
    }

    /// A scalar function with operands broadcast to one shape.
    pub(super) fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value> {
        let shape = self.union(args);
        let mut lifted: SmallVec<[Value; 3]> = SmallVec::new();
        for &arg in args {
            lifted.push(self.lift(arg, &shape)?);
        }
        Ok(self.b.map(function, &lifted)?)
    }

    pub(super) fn value(&mut self, expr: KExpr) -> Result<Value> {
        if let Some(&known) = self.outer.values.get(&expr).or_else(|| self.inner.values.get(&expr)) {
            return Ok(known);
        }
        let value = self.at(self.kernel.info(expr).loc, |this| this.computed(expr))?;
        let memo = if self.in_loop { &mut self.inner } else { &mut self.outer };
        memo.values.insert(expr, value);
        Ok(value)
    }

    /// What `emit` emits comes from a location.
    pub(super) fn at<T>(&mut self, loc: Loc, emit: impl FnOnce(&mut Self) -> T) -> T {
        let around = self.b.set_loc(loc);
        let emitted = emit(self);
        self.b.set_loc(around);
        emitted
    }

    /// An expression, by its form as a whole where that is known.
    fn computed(&mut self, expr: KExpr) -> Result<Value> {
        match self.kernel.node(expr) {
            KNode::Map(_, args) if self.is_logistic(expr) => self.logistic(args),
            _ => self.compute(expr),
        }
    }

    /// A reduction within the tile.
    fn reduce(&mut self, position: u32) -> Result<Value> {
        if self.kernel.reduces[position as usize].mix_order {
            return self.reduce_mix_order(position);
        }
        if self.tiling.is_walked() {
            return Err(ScheduleError::Internal("a reduction is used before its loop"));
        }
        let reduction = &self.kernel.reduces[position as usize];
        let (combine, operand) = (reduction.combine, reduction.value);
        let value = self.value(operand)?;
        if self.reduces_both_axes() {
            let shape = self.operand_shape(position);
            let mut value = self.lift(value, &shape)?;
            if let Some(mask) = self.tail_mask(&shape)? {
                let neutral = combine.neutral(self.b.ty(value).elem().unwrap_or(Elem::F32));
                let (mask, neutral) = (self.lift(mask, &shape)?, self.b.constant(neutral, &shape));
                value = self.b.map(ScalarFn::Select, &[mask, value, neutral])?;
            }
            return self.reduce_both_axes(combine, value);
        }
        let Some(axis) = self.reduced_axis().filter(|&a| self.tiling.axes[a].extent > 1) else {
            return Ok(value);
        };
        let shape = self.operand_shape(position);
        let value = self.lift(value, &shape)?;
        let mask = self.axis_mask(axis)?;
        self.reduce_tile(combine, value, axis, mask)
    }

    /// Reduces a tile to one element.
    fn reduce_both_axes(&mut self, combine: ReduceFn, value: Value) -> Result<Value> {
        let rows = self.b.reduce(combine, value, 1, None)?;
        Ok(self.b.reduce(combine, rows, 0, None)?)
    }
}

impl<'k> Expressions<'k> for Emitter<'k> {
    type Error = ScheduleError;

    fn kernel(&self) -> &'k Kernel {
        self.kernel
    }

    fn value(&mut self, expr: KExpr) -> Result<Value> {
        Emitter::value(self, expr)
    }

    /// A scalar and a tile.
    fn variable(&mut self, var: Var, elem: Elem) -> Result<SmallVec<[Value; 2]>> {
        let range = self.range_of(var)?;
        let parts = self.first(var)?.into_iter().chain(range);
        parts.map(|part| Ok(self.b.cast(part, elem)?)).collect()
    }

    fn end(&self, var: Var) -> u64 {
        let step = self.tiling.axis_of(var).map_or(1, |a| u64::from(self.tiling.axes[a].extent));
        self.kernel.indices.extents()[var.0 as usize] as u64 + step
    }

    fn load(
        &mut self,
        buffer: u32,
        addr: Expr,
        dynamic: Option<Dynamic>,
        mask: Option<KExpr>,
    ) -> Result<Value> {
        Emitter::load(self, buffer, addr, dynamic, mask)
    }

    fn reduce(&mut self, position: u32) -> Result<Value> {
        Emitter::reduce(self, position)
    }

    fn literal(&mut self, literal: Literal) -> Value {
        self.b.constant(literal, &[])
    }

    fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value> {
        Emitter::map(self, function, args)
    }

    fn cast(&mut self, value: Value, elem: Elem) -> Result<Value> {
        Ok(self.b.cast(value, elem)?)
    }

    fn elem(&self, value: Value) -> Elem {
        self.b.ty(value).elem().unwrap_or(Elem::I32)
    }

    fn is_scalar(&self, value: Value) -> bool {
        self.b.ty(value).rank() == 0
    }

    fn known_index(&self, expr: Expr, elem: Elem) -> Option<Value> {
        let key = (expr, elem);
        self.outer.indices.get(&key).or_else(|| self.inner.indices.get(&key)).copied()
    }

    fn remember_index(&mut self, expr: Expr, elem: Elem, value: Value) {
        let memo = if self.in_loop { &mut self.inner } else { &mut self.outer };
        memo.indices.insert((expr, elem), value);
    }

    fn take_row(&mut self, linear: &mut Linear, elem: Elem) -> Result<Option<Value>> {
        Emitter::take_row(self, linear, elem)
    }
}

/// The expressions that one is made of where it is used.
pub(super) fn parts(kernel: &Kernel, expr: KExpr) -> SmallVec<[KExpr; 3]> {
    match kernel.node(expr) {
        KNode::Const(_) | KNode::Index(..) | KNode::InRange(..) => SmallVec::new(),
        KNode::Reduce(position) => {
            let reduction = &kernel.reduces[*position as usize];
            reduction.mix_order.then_some(reduction.value).into_iter().collect()
        }
        KNode::Load { dynamic, mask, .. } => dynamic.iter().map(|d| d.index).chain(*mask).collect(),
        KNode::Map(_, args) => args.clone(),
        KNode::Cast(inner, _) => SmallVec::from_slice(&[*inner]),
    }
}
