//! Graph nodes to kernel expressions.

use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Loc, ScalarFn};

use super::{Buffer, Dynamic, KExpr, KInfo, KNode, Kernel, Layouts, Refusal, Store, weight};
use crate::combiner::Members;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::index::{Expr, Indices, Var};
use crate::types::Dims;

/// Most expressions of one kernel.
const MAX_EXPRS: usize = 2000;
/// Most buffers of one kernel: a GPU passes them all as parameters.
const MAX_BUFFERS: usize = 48;

pub(super) type Index = SmallVec<[Expr; 6]>;

/// Which nodes become one kernel.
#[derive(Clone, Debug)]
pub struct Group {
    /// Compute nodes of the group; views, literals and iotas need not be listed.
    pub nodes: FxHashSet<NodeId>,
    /// Nodes that any kernel computes for itself.
    pub transparent: Arc<FxHashSet<NodeId>>,
    /// Values that must be in memory afterwards.
    pub roots: Vec<ValueRef>,
    /// Values that are in memory afterwards, of this kernel or of the program that it becomes a part of.
    pub stored: FxHashSet<ValueRef>,
    /// Nodes of `transparent` that are in memory as well.
    pub materialized: Arc<FxHashSet<NodeId>>,
    /// What it runs over.
    pub space: Space,
}

impl Group {
    /// Whether the kernel computes a node.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains(&node) || self.transparent.contains(&node)
    }

    /// Whether a value is in memory, where its users elsewhere find it in its own type.
    pub(super) fn is_stored(&self, value: ValueRef) -> bool {
        self.stored.contains(&value) || self.materialized.contains(&value.node)
    }
}

/// The dimensions that a group runs over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Space {
    /// The reference shape: the result's of a pointwise group, a reduction's operand's else.
    pub shape: Dims,
    /// Which dimensions of `shape` are reduced.
    pub reduced: SmallVec<[bool; 6]>,
    /// A dimension that is not reduced, of which each instance holds all elements: see [`Kernel::mix_order`].
    pub mix_order: Option<u8>,
}

impl Space {
    /// All points of a shape, of which none are reduced.
    pub(crate) fn parallel(shape: Dims) -> Space {
        let reduced = SmallVec::from_elem(false, shape.len());
        Space { shape, reduced, mix_order: None }
    }
}

/// Builds the kernel of a group over the given variables.
///
/// `domain` gives, for every dimension of the group's shape, which variables make it up: extents and whether they are
/// reduced; see [`super::collapse()`]. `None` makes one variable of each dimension.
pub fn build(
    graph: &Graph,
    group: &Group,
    layouts: &dyn Layouts,
    domain: Option<&Domain>,
) -> Result<Kernel, Refusal> {
    let own;
    let domain = match domain {
        Some(d) => d,
        None => {
            own = Domain::of(group);
            &own
        }
    };
    let mut indices = Indices::new(&domain.extents);
    let reference = domain.reference(&mut indices, &group.space.shape);
    let mut kernel = Kernel { reduced: domain.reduced.clone(), ..Kernel::default() };
    kernel.mix_order = domain.mix_order(group)?;
    // Each node has an expression, and what it reads another.
    let capacity = 2 * group.nodes.len();
    let mut builder = Builder {
        graph,
        group,
        layouts,
        kernel,
        indices,
        reference,
        interned: FxHashMap::with_capacity_and_hasher(capacity, FxBuildHasher),
        loc: Loc::UNKNOWN,
        memo: FxHashMap::with_capacity_and_hasher(capacity, FxBuildHasher),
        reduces: FxHashMap::default(),
        buffers: FxHashMap::default(),
    };
    for &root in &group.roots {
        builder.store(root)?;
    }
    Ok(Kernel { indices: Arc::new(builder.indices), ..builder.kernel })
}

/// The loop variables of a kernel, and how dimensions of the reference shape follow from them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Domain {
    /// Extents.
    pub extents: Vec<i64>,
    /// Which are reduced.
    pub reduced: Vec<bool>,
    /// For each variable, the reference dimensions that it runs over, outermost first.
    pub dims: Vec<SmallVec<[u8; 4]>>,
}

impl Domain {
    /// One variable for each dimension.
    pub fn of(group: &Group) -> Domain {
        Domain {
            extents: group.space.shape.to_vec(),
            reduced: group.space.reduced.to_vec(),
            dims: (0..group.space.shape.len()).map(|d| SmallVec::from_slice(&[d as u8])).collect(),
        }
    }

    /// The variable of a group's mix-order dimension, if it has one.
    pub(super) fn mix_order(&self, group: &Group) -> Result<Option<Var>, Refusal> {
        let Some(dim) = group.space.mix_order else { return Ok(None) };
        let var = self.dims.iter().position(|dims| dims[..] == [dim]).ok_or(Refusal::OtherReduction)?;
        Ok(Some(Var(var as u32)))
    }

    /// Size and index of each dimension of the reference shape.
    pub(super) fn reference(&self, indices: &mut Indices, shape: &[i64]) -> Vec<(i64, Expr)> {
        let zero = indices.constant(0);
        let mut reference: Vec<(i64, Expr)> = shape.iter().map(|&n| (n, zero)).collect();
        for (v, dims) in self.dims.iter().enumerate() {
            let var = indices.var(crate::index::Var(v as u32));
            let sizes: Dims = dims.iter().map(|&d| shape[usize::from(d)]).collect();
            let parts = indices.delinearize(var, &sizes);
            for (&d, part) in dims.iter().zip(parts) {
                reference[usize::from(d)].1 = part;
            }
        }
        reference
    }
}

pub(super) struct Builder<'a> {
    pub(super) graph: &'a Graph,
    group: &'a Group,
    layouts: &'a dyn Layouts,
    pub(super) kernel: Kernel,
    pub(super) indices: Indices,
    /// For each dimension of the reference shape: its size and, in terms of the kernel's variables, its index.
    reference: Vec<(i64, Expr)>,
    interned: FxHashMap<KNode, KExpr>,
    /// The location of expressions that are added.
    loc: Loc,
    memo: FxHashMap<(ValueRef, Index, Option<KExpr>), KExpr>,
    /// Row index and results of each reduction.
    pub(super) reduces: FxHashMap<NodeId, (Index, Members<KExpr>)>,
    buffers: FxHashMap<ValueRef, u32>,
}

impl Builder<'_> {
    fn store(&mut self, root: ValueRef) -> Result<(), Refusal> {
        let ty = self.graph.ty(root);
        let elem = ty.dtype.elem().ok_or(Refusal::ElementType)?;
        let shape = ty.shape.clone();
        let index = match self.is_mix_order(root) {
            true => self.index_over(self.beside_mix_order(), &shape),
            false => self.aligned_index(&shape)?,
        };
        let value = self.value(root, &index, None)?;
        let value = self.cast(value, elem);
        let (strides, _) = self.layouts.strides(root);
        let addr = self.address(&index, &strides);
        let buffer = self.buffer(root, elem, true)?;
        self.kernel.stores.push(Store { buffer, addr, value });
        Ok(())
    }

    /// The index in `shape` of the point at hand, or of its row.
    pub(super) fn aligned_index(&mut self, shape: &[i64]) -> Result<Index, Refusal> {
        let numel: i64 = shape.iter().product();
        let reference = self.reference.clone();
        let points: i64 = reference.iter().map(|r| r.0).product();
        let reduced = &self.group.space.reduced;
        let kept: Vec<(i64, Expr)> =
            reference.iter().zip(reduced).filter(|(_, r)| !**r).map(|(r, _)| *r).collect();
        let rows: i64 = kept.iter().map(|r| r.0).product();
        let parts = if numel == points {
            reference
        } else if numel == rows {
            kept
        } else {
            return Err(Refusal::Extent { numel, points, rows });
        };
        Ok(self.index_over(parts, shape))
    }

    /// The index in `shape` of what these parts count, outermost first.
    fn index_over(&mut self, parts: Vec<(i64, Expr)>, shape: &[i64]) -> Index {
        let sizes: Dims = parts.iter().map(|p| p.0).collect();
        let exprs: Index = parts.iter().map(|p| p.1).collect();
        if sizes[..] == *shape {
            return exprs;
        }
        let position = self.indices.linearize(&exprs, &sizes);
        self.indices.delinearize(position, shape)
    }

    /// The reference dimensions beside the mix-order one.
    fn beside_mix_order(&self) -> Vec<(i64, Expr)> {
        let reference = self.reference.iter().enumerate();
        let beside = reference.filter(|&(d, _)| self.group.space.mix_order != Some(d as u8));
        beside.map(|(_, &part)| part).collect()
    }

    /// Whether a value is a reduction of exactly the mix-order dimension.
    pub(super) fn is_mix_order(&self, value: ValueRef) -> bool {
        let Op::Reduce { dims, .. } = &self.graph.node(value.node).op else { return false };
        let over = |operand: &ValueRef| self.graph.ty(*operand).shape == self.group.space.shape;
        self.group.contains(value.node)
            && self.group.space.mix_order.is_some_and(|dim| dims[..] == [dim])
            && self.graph.operands(value.node).first().is_some_and(over)
    }

    pub(super) fn value(
        &mut self,
        value: ValueRef,
        index: &[Expr],
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let key = (value, Index::from_slice(index), valid);
        if let Some(&known) = self.memo.get(&key) {
            return Ok(known);
        }
        if self.kernel.exprs.len() > MAX_EXPRS {
            return Err(Refusal::TooLarge { limit: MAX_EXPRS });
        }
        // What a kernel reads is a part of whoever needs it, and so is what any kernel computes for itself.
        let around = self.loc;
        if self.group.nodes.contains(&value.node) {
            self.loc = self.graph.loc(value.node);
        }
        let expr = self.compute(value, index, valid).map(|expr| self.as_stored(value, expr));
        self.loc = around;
        let expr = expr?;
        self.memo.insert(key, expr);
        Ok(expr)
    }

    /// A value as all of its users see it: where memory holds it in a narrow type, what is computed of it here and there must be of one
    /// number, or differences that are 0 (`x - max(x)`) are not.
    fn as_stored(&mut self, value: ValueRef, expr: KExpr) -> KExpr {
        match self.graph.ty(value).dtype.elem() {
            Some(elem) if self.group.is_stored(value) => self.round_to(expr, elem),
            _ => expr,
        }
    }

    fn compute(&mut self, value: ValueRef, index: &[Expr], valid: Option<KExpr>) -> Result<KExpr, Refusal> {
        let graph = self.graph;
        let node = graph.node(value.node);
        let operands = || graph.operands(value.node);
        match &node.op {
            Op::Scalar(literal) => Ok(self.constant(*literal)),
            Op::Iota { dim } => {
                let elem = graph.ty(value).dtype.elem().ok_or(Refusal::ElementType)?;
                Ok(self.intern(KNode::Index(index[usize::from(*dim)], elem)))
            }
            Op::View(view) => self.view(view, value, operands()[0], index, valid),
            _ if !self.group.contains(value.node) => self.load(value, index, valid, None),
            Op::Map(function) => self.map(*function, value, &operands(), index, valid),
            Op::Cast => self.convert(value, operands()[0], index, valid),
            Op::Concat { dim } => self.concat(usize::from(*dim), &operands(), index, valid),
            Op::Gather { dim } => self.gather(usize::from(*dim), &operands(), index, valid),
            Op::Reduce { combine, dims } => self.reduce(value, *combine, dims, index),
            Op::Input(_) | Op::Param(_) | Op::Const(_) => self.load(value, index, valid, None),
            Op::Contract(_) => Err(Refusal::Extern(String::from("contract"))),
            Op::Aten(call) => Err(Refusal::Extern(call.full_name())),
            Op::Kernel(kind) => Err(Refusal::Extern(format!("kernel {}", kind.name()))),
        }
    }

    /// Adds an expression, or finds it.
    pub(super) fn intern(&mut self, node: KNode) -> KExpr {
        if let Some(&known) = self.interned.get(&node) {
            return known;
        }
        let info = KInfo { loc: self.loc, ..self.info_of(&node) };
        let expr = KExpr(self.kernel.exprs.len() as u32);
        self.kernel.size += weight(&node);
        self.kernel.exprs.push(node.clone());
        self.kernel.info.push(info);
        self.interned.insert(node, expr);
        expr
    }

    fn info_of(&self, node: &KNode) -> KInfo {
        let join = |elem, parts: &[KExpr], vars: u64| {
            let none = KInfo { elem, vars, level: 0, loc: Loc::UNKNOWN };
            parts.iter().map(|&p| self.kernel.info(p)).fold(none, |a, b| KInfo {
                vars: a.vars | b.vars,
                level: a.level.max(b.level),
                ..a
            })
        };
        match node {
            KNode::Const(literal) => join(literal.elem, &[], 0),
            KNode::Index(e, elem) => join(*elem, &[], self.indices.vars(*e)),
            KNode::InRange(e, ..) => join(Elem::Bool, &[], self.indices.vars(*e)),
            KNode::Load { buffer, addr, dynamic, mask } => {
                let parts: SmallVec<[KExpr; 2]> = dynamic.iter().map(|d| d.index).chain(*mask).collect();
                join(self.kernel.buffers[*buffer as usize].elem, &parts, self.indices.vars(*addr))
            }
            KNode::Map(function, args) => {
                let elems: SmallVec<[Elem; 3]> = args.iter().map(|&a| self.kernel.info(a).elem).collect();
                let elem = function.result(&elems).or(elems.last().copied()).unwrap_or(Elem::F32);
                join(elem, args, 0)
            }
            KNode::Cast(value, elem) => join(*elem, &[*value], 0),
            KNode::Reduce(position) => {
                let reduction = &self.kernel.reduces[*position as usize];
                let inner = self.kernel.info(reduction.value);
                if let Some(var) = self.kernel.mix_order.filter(|_| reduction.mix_order) {
                    return KInfo {
                        vars: inner.vars & !(1 << var.0.min(63)),
                        level: reduction.level,
                        ..inner
                    };
                }
                let parallel = (0..self.kernel.reduced.len()).filter(|&v| !self.kernel.reduced[v]);
                let mask = parallel.fold(0, |set, v| set | 1 << v.min(63));
                KInfo { vars: inner.vars & mask, level: reduction.level, ..inner }
            }
        }
    }
    pub(super) fn constant(&mut self, literal: Literal) -> KExpr {
        let compute = compute_elem(literal.elem);
        self.intern(KNode::Const(Literal::of_literal(compute, literal)))
    }

    /// An element of a value in memory, widened to the kind that it is computed in.
    fn load(
        &mut self,
        value: ValueRef,
        index: &[Expr],
        mask: Option<KExpr>,
        dynamic: Option<Dynamic>,
    ) -> Result<KExpr, Refusal> {
        let elem = self.graph.ty(value).dtype.elem().ok_or(Refusal::ElementType)?;
        let (strides, _) = self.layouts.strides(value);
        let addr = self.address(index, &strides);
        self.load_at(value, elem, addr, mask, dynamic)
    }

    fn load_at(
        &mut self,
        value: ValueRef,
        elem: Elem,
        addr: Expr,
        mask: Option<KExpr>,
        dynamic: Option<Dynamic>,
    ) -> Result<KExpr, Refusal> {
        let buffer = self.buffer(value, elem, false)?;
        let loaded = self.intern(KNode::Load { buffer, addr, dynamic, mask });
        Ok(self.cast(loaded, compute_elem(elem)))
    }

    fn buffer(&mut self, value: ValueRef, elem: Elem, written: bool) -> Result<u32, Refusal> {
        if let Some(&known) = self.buffers.get(&value) {
            self.kernel.buffers[known as usize].written |= written;
            return Ok(known);
        }
        if self.kernel.buffers.len() >= MAX_BUFFERS {
            return Err(Refusal::TooManyBuffers { limit: MAX_BUFFERS });
        }
        let (_, span) = self.layouts.strides(value);
        let position = self.kernel.buffers.len() as u32;
        let parameter = matches!(self.graph.node(value.node).op, Op::Param(_));
        let fixed = parameter && !self.graph.updates.iter().any(|update| update.target == value.node);
        self.kernel.buffers.push(Buffer { value, elem, span, written, fixed });
        self.buffers.insert(value, position);
        Ok(position)
    }

    fn address(&mut self, index: &[Expr], strides: &[i64]) -> Expr {
        self.indices.weighted_sum(index, strides)
    }

    fn cast(&mut self, value: KExpr, to: Elem) -> KExpr {
        if self.kernel.info(value).elem == to {
            return value;
        }
        if let KNode::Const(literal) = *self.kernel.node(value)
            && (to.is_float() || !literal.elem.is_float())
        {
            return self.intern(KNode::Const(Literal::of_literal(to, literal)));
        }
        // Back to the type that it was widened from.
        if let KNode::Cast(narrow, wide) = *self.kernel.node(value)
            && self.kernel.info(narrow).elem == to
            && to.is_float()
            && wide == compute_elem(to)
        {
            return narrow;
        }
        self.intern(KNode::Cast(value, to))
    }

    /// Rounds a value that stands for one of a narrower kind, unless it is one exactly; it keeps its own kind.
    pub(super) fn round_to(&mut self, value: KExpr, narrow: Elem) -> KExpr {
        if compute_elem(narrow) == narrow {
            return value;
        }
        match *self.kernel.node(value) {
            KNode::Const(_) => return value,
            KNode::Cast(inner, _) if self.kernel.info(inner).elem == narrow => return value,
            _ => {}
        }
        let elem = self.kernel.info(value).elem;
        let rounded = self.cast(value, narrow);
        self.cast(rounded, elem)
    }

    fn map(
        &mut self,
        function: ScalarFn,
        value: ValueRef,
        operands: &[ValueRef],
        index: &[Expr],
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let mut args: SmallVec<[KExpr; 3]> = SmallVec::new();
        for &operand in operands {
            let arg = self.value(operand, index, valid)?;
            let elem = self.unwidened(operand).ok_or(Refusal::ElementType)?;
            args.push(if jumps(function) { self.round_to(arg, elem) } else { arg });
        }
        self.graph.ty(value).dtype.elem().ok_or(Refusal::ElementType)?;
        Ok(self.intern(KNode::Map(function, args)))
    }

    /// The element type of a value, or of what it was converted from where that is a narrower float.
    fn unwidened(&self, value: ValueRef) -> Option<Elem> {
        let elem = self.graph.ty(value).dtype.elem()?;
        let from = match self.graph.node(value.node).op {
            Op::Cast => self.graph.operands(value.node).first().copied(),
            _ => None,
        };
        let narrow = from.and_then(|from| self.graph.ty(from).dtype.elem());
        Some(narrow.filter(|n| elem.is_float() && n.is_float() && n.bytes() < elem.bytes()).unwrap_or(elem))
    }

    fn convert(
        &mut self,
        value: ValueRef,
        operand: ValueRef,
        index: &[Expr],
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let to = self.graph.ty(value).dtype.elem().ok_or(Refusal::ElementType)?;
        let from = self.graph.ty(operand).dtype.elem().ok_or(Refusal::ElementType)?;
        let arg = self.value(operand, index, valid)?;
        let arg = if to.is_float() { arg } else { self.round_to(arg, from) };
        let converted = if from == to { arg } else { self.cast(arg, to) };
        Ok(self.cast(converted, compute_elem(to)))
    }

    fn view(
        &mut self,
        view: &View,
        value: ValueRef,
        operand: ValueRef,
        index: &[Expr],
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let to = self.graph.ty(value).shape.clone();
        let from = self.graph.ty(operand).shape.clone();
        let inner = view_index(&mut self.indices, view, &from, &to, index);
        let View::Pad { low, interior, fill } = view else {
            return self.value(operand, &inner, valid);
        };
        let mut inside = self.all_inside(&inner, &from);
        for (d, &between) in interior.iter().enumerate() {
            let apart = self.indices.add_const(index[d], -low[d]);
            let apart = self.indices.rem(apart, between + 1);
            let on = self.in_range(apart, 0, 1);
            inside = self.and(inside, on);
        }
        let fill = self.constant(*fill);
        let Some(inside) = inside else {
            return self.value(operand, &inner, valid);
        };
        let both = self.and(valid, Some(inside));
        let padded = self.value(operand, &inner, both)?;
        Ok(self.select(inside, padded, fill))
    }

    /// Where an index is inside a shape; `None` where it always is.
    fn all_inside(&mut self, index: &[Expr], shape: &[i64]) -> Option<KExpr> {
        let mut inside = None;
        for (&i, &n) in index.iter().zip(shape) {
            let test = self.in_range(i, 0, n);
            inside = self.and(inside, test);
        }
        inside
    }

    /// `low <= expr < high`; `None` where it always holds.
    fn in_range(&mut self, expr: Expr, low: i64, high: i64) -> Option<KExpr> {
        let (least, most) = self.indices.range(expr);
        let always = low <= least && most < high;
        (!always).then(|| self.intern(KNode::InRange(expr, low, high)))
    }

    fn and(&mut self, a: Option<KExpr>, b: Option<KExpr>) -> Option<KExpr> {
        match (a, b) {
            (Some(a), Some(b)) if a == b => Some(a),
            (Some(a), Some(b)) => Some(self.intern(KNode::Map(ScalarFn::And, SmallVec::from_slice(&[a, b])))),
            (one, other) => one.or(other),
        }
    }

    fn select(&mut self, condition: KExpr, yes: KExpr, no: KExpr) -> KExpr {
        if yes == no {
            return yes;
        }
        self.intern(KNode::Map(ScalarFn::Select, SmallVec::from_slice(&[condition, yes, no])))
    }

    fn concat(
        &mut self,
        dim: usize,
        operands: &[ValueRef],
        index: &[Expr],
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let mut starts = Vec::with_capacity(operands.len());
        let mut end = 0;
        for &operand in operands {
            starts.push(end);
            end += self.graph.ty(operand).shape[dim];
        }
        let mut result = None;
        for (&operand, &start) in operands.iter().zip(&starts).rev() {
            let size = self.graph.ty(operand).shape[dim];
            let (least, most) = self.indices.range(index[dim]);
            if size == 0 || most < start || least >= start + size {
                continue;
            }
            let test = self.in_range(index[dim], start, start + size);
            let mut inner = Index::from_slice(index);
            inner[dim] = self.indices.add_const(index[dim], -start);
            let both = self.and(valid, test);
            let part = self.value(operand, &inner, both)?;
            result = Some(match (test, result) {
                (Some(test), Some(rest)) => self.select(test, part, rest),
                _ => part,
            });
        }
        result.ok_or(Refusal::Empty)
    }

    fn gather(
        &mut self,
        dim: usize,
        operands: &[ValueRef],
        index: &[Expr],
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let position = self.value(operands[1], index, valid)?;
        let bound = self.graph.ty(operands[0]).shape[dim];
        let var = self.indices.add_var(bound);
        let mut at = Index::from_slice(index);
        at[dim] = self.indices.var(var);
        let dynamic = Dynamic { index: position, stride: 0, bound };
        let found = self.gathered(operands[0], at.clone(), var, dynamic, valid)?;
        let checks = |node: &KNode| match node {
            KNode::Load { dynamic: Some(d), mask, .. } => {
                d.index == position && d.bound == bound && (mask.is_none() || *mask == valid)
            }
            _ => false,
        };
        if self.kernel.exprs.iter().any(checks) {
            return Ok(found);
        }
        // All elements along the dimension are one; an index out of range is an error all the same.
        self.memory_of(operands[0], at, dynamic, valid)
    }

    /// A value at an index that contains a data-dependent variable: loads take the data into their address, and what
    /// is computed is computed there.
    fn gathered(
        &mut self,
        value: ValueRef,
        index: Index,
        var: Var,
        dynamic: Dynamic,
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let depends = index.iter().any(|&e| self.indices.vars(e) & (1 << var.0.min(63)) != 0);
        if !depends {
            return self.value(value, &index, valid);
        }
        let graph = self.graph;
        let operands = graph.operands(value.node);
        match &graph.node(value.node).op {
            Op::View(view) if !matches!(view, View::Pad { .. }) => {
                let (from, to) = (&graph.ty(operands[0]).shape, &graph.ty(value).shape);
                let inner = view_index(&mut self.indices, view, from, to, &index);
                self.gathered(operands[0], inner, var, dynamic, valid)
            }
            Op::Scalar(literal) => Ok(self.constant(*literal)),
            Op::View(_) | Op::Iota { .. } => Err(Refusal::GatherSource),
            _ if !self.group.contains(value.node) => self.load_gathered(value, &index, var, dynamic, valid),
            Op::Map(function) if !jumps(*function) => {
                let mut args: SmallVec<[KExpr; 3]> = SmallVec::new();
                for &operand in &operands {
                    args.push(self.gathered(operand, index.clone(), var, dynamic, valid)?);
                }
                Ok(self.intern(KNode::Map(*function, args)))
            }
            Op::Cast if graph.ty(value).dtype.is_float() => {
                let to = graph.ty(value).dtype.elem().ok_or(Refusal::ElementType)?;
                let inner = self.gathered(operands[0], index, var, dynamic, valid)?;
                let converted = self.cast(inner, to);
                Ok(self.cast(converted, compute_elem(to)))
            }
            _ => Err(Refusal::GatherSource),
        }
    }

    /// The element that a source has at every data-dependent index, read where the index is in range.
    fn memory_of(
        &mut self,
        value: ValueRef,
        index: Index,
        dynamic: Dynamic,
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let graph = self.graph;
        match &graph.node(value.node).op {
            Op::View(view) if !matches!(view, View::Pad { .. }) => {
                let from = graph.operands(value.node)[0];
                let (inner, outer) = (&graph.ty(from).shape, &graph.ty(value).shape);
                let inner = view_index(&mut self.indices, view, inner, outer, &index);
                self.memory_of(from, inner, dynamic, valid)
            }
            _ if !self.group.contains(value.node) => self.load(value, &index, valid, Some(dynamic)),
            _ => Err(Refusal::GatherSource),
        }
    }

    fn load_gathered(
        &mut self,
        value: ValueRef,
        index: &[Expr],
        var: Var,
        dynamic: Dynamic,
        valid: Option<KExpr>,
    ) -> Result<KExpr, Refusal> {
        let elem = self.graph.ty(value).dtype.elem().ok_or(Refusal::ElementType)?;
        let (strides, _) = self.layouts.strides(value);
        let addr = self.address(index, &strides);
        let (stride, rest) = self.indices.split_var(addr, var).ok_or(Refusal::GatherSource)?;
        self.load_at(value, elem, rest, valid, Some(Dynamic { stride, ..dynamic }))
    }
}

/// The kind that values of `elem` are computed in.
pub(crate) fn compute_elem(elem: Elem) -> Elem {
    match elem {
        Elem::F16 | Elem::Bf16 => Elem::F32,
        other => other,
    }
}

/// Whether a small change of an operand can change the result by a jump, or to NaN beyond an edge that is no 0.
fn jumps(function: ScalarFn) -> bool {
    use ScalarFn::*;
    matches!(
        function,
        Eq | Ne
            | Lt
            | Le
            | Gt
            | Ge
            | IsInf
            | Floor
            | Ceil
            | Trunc
            | RoundEven
            | RemTrunc
            | RemFloor
            | Pow
            | Acos
            | Asin
            | Acosh
            | Atanh
            | Log1p
    )
}

/// The operand's index for an index of a view's result.
pub(crate) fn view_index(
    indices: &mut Indices,
    view: &View,
    from: &[i64],
    to: &[i64],
    index: &[Expr],
) -> Index {
    match view {
        View::Reshape => {
            let position = indices.linearize(index, to);
            indices.delinearize(position, from)
        }
        View::Permute(perm) => {
            let mut inner = Index::from_slice(index);
            for (i, &axis) in perm.iter().enumerate() {
                inner[usize::from(axis)] = index[i];
            }
            inner
        }
        View::Expand => {
            let zero = indices.constant(0);
            index.iter().zip(from).map(|(&i, &n)| if n == 1 { zero } else { i }).collect()
        }
        View::Slice { dim, start, step } => {
            let mut inner = Index::from_slice(index);
            let scaled = indices.scale(index[usize::from(*dim)], *step);
            inner[usize::from(*dim)] = indices.add_const(scaled, *start);
            inner
        }
        View::Flip(dims) => {
            let mut inner = Index::from_slice(index);
            for &d in dims {
                let negative = indices.scale(index[usize::from(d)], -1);
                inner[usize::from(d)] = indices.add_const(negative, from[usize::from(d)] - 1);
            }
            inner
        }
        View::Pad { low, interior, .. } => (0..index.len())
            .map(|d| {
                let inner = indices.add_const(index[d], -low[d]);
                indices.div(inner, interior[d] + 1)
            })
            .collect(),
        View::Window(windows) => {
            let (position, elements) = index.split_at(from.len());
            let mut inner = Index::from_slice(position);
            for (window, &k) in windows.iter().zip(elements) {
                let at = &mut inner[usize::from(window.dim)];
                let first = indices.scale(*at, window.stride);
                *at = indices.add_scaled(first, k, window.dilation);
            }
            inner
        }
    }
}
