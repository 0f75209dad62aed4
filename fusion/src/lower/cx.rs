//! What lowerings build with.

use std::collections::HashMap;

use tilefuse_block::eval::cast_literal;
use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use crate::args::{Args, Number};
use crate::contraction::{Contraction, Window, accumulator};
use crate::graph::{Graph, NodeId, Op, ValueRef, View, padded_size};
use crate::recording::Arg;
use crate::types::{DType, Device, Dims, TensorType, broadcast_shape};

/// A call that is being lowered.
pub(super) struct Call<'a> {
    /// Operator without namespace.
    pub(super) name: &'a str,
    /// Overload.
    pub(super) overload: &'a str,
    /// Arguments; tensors are positions among the operands.
    pub(super) args: Args<'a, u16>,
    /// Operands.
    pub(super) operands: &'a [ValueRef],
    /// Types of the results.
    pub(super) outs: &'a [TensorType],
}

impl<'a> Call<'a> {
    /// A tensor argument.
    pub(super) fn tensor(&self, name: &str) -> Option<ValueRef> {
        self.operands.get(usize::from(self.args.tensor(name)?)).copied()
    }

    /// A tensor argument that may be absent: `None` if it is something else.
    pub(super) fn optional(&self, name: &str) -> Option<Option<ValueRef>> {
        if self.args.absent(name) { Some(None) } else { self.tensor(name).map(Some) }
    }

    /// A list of tensors, all present.
    pub(super) fn tensors(&self, name: &str) -> Option<Vec<ValueRef>> {
        self.args.tensors(name)?.iter().map(|&t| self.operands.get(usize::from(t?)).copied()).collect()
    }

    /// The only or first operand.
    pub(super) fn first(&self) -> Option<ValueRef> {
        self.operands.first().copied()
    }

    /// The type of the first result.
    pub(super) fn out(&self) -> &'a TensorType {
        &self.outs[0]
    }

    /// The element type of the first result.
    pub(super) fn elem(&self) -> Option<Elem> {
        self.out().dtype.elem()
    }

    /// Whether an argument is absent, or a number or truth value equal to `value`.
    pub(super) fn is_default(&self, name: &str, value: f64) -> bool {
        match self.args.get(name) {
            None => true,
            Some(_) => self.args.float(name) == Some(value),
        }
    }
}

/// The element type in which an operator of several steps computes.
pub(super) fn wide(elem: Elem) -> Elem {
    if matches!(elem, Elem::F16 | Elem::Bf16) { Elem::F32 } else { elem }
}

/// The literal of a number in an element type; `None` for a float that an integer type does not hold.
pub(super) fn literal(elem: Elem, number: Number) -> Option<Literal> {
    match number {
        Number::Float(x) if !elem.is_float() => (elem == Elem::Bool || x.fract() == 0.0)
            .then(|| Literal::int(elem, if elem == Elem::Bool { i64::from(x != 0.0) } else { x as i64 })),
        Number::Int(n) if !elem.is_float() => Some(Literal::int(elem, n)),
        Number::Bool(b) if !elem.is_float() => Some(Literal::int(elem, i64::from(b))),
        number => Some(Literal::float(elem, number.as_f64())),
    }
}

/// The graph that is being built, with helpers that give the types of what they add.
///
/// Helpers return `None` where types or shapes do not allow the operation, and the lowering that called them
/// declines.
pub(super) struct Cx {
    /// The graph.
    pub(super) graph: Graph,
    /// Device of the tensors of the current call.
    pub(super) device: Device,
    origin: Option<u32>,
    /// First node of the current call.
    mark: usize,
    literals: HashMap<(Literal, Dims, Device), ValueRef>,
}

impl Cx {
    pub(super) fn new() -> Cx {
        Cx { graph: Graph::new(), device: Device::Cpu, origin: None, mark: 0, literals: HashMap::new() }
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, origin: Option<u32>) {
        self.origin = origin;
        self.mark = self.graph.len();
    }

    fn add(&mut self, op: Op, operands: &[ValueRef], elem: Elem, shape: &[i64]) -> ValueRef {
        let ty = TensorType::contiguous(DType::Elem(elem), shape, self.device);
        self.graph.add(op, operands, [ty], self.origin).into()
    }

    /// Element type of a value.
    pub(super) fn elem(&self, value: ValueRef) -> Option<Elem> {
        self.graph.ty(value).dtype.elem()
    }

    /// Shape of a value.
    pub(super) fn shape(&self, value: ValueRef) -> Dims {
        self.graph.ty(value).shape.clone()
    }

    /// Rank of a value.
    pub(super) fn rank(&self, value: ValueRef) -> usize {
        self.graph.ty(value).rank()
    }

    /// A literal of rank 0.
    pub(super) fn literal(&mut self, literal: Literal) -> ValueRef {
        let key = (literal, Dims::new(), self.device);
        if let Some(&found) = self.literals.get(&key) {
            return found;
        }
        let value = self.add(Op::Scalar(literal), &[], literal.elem, &[]);
        self.literals.insert(key, value);
        value
    }

    /// A value, or the literal on the call's device that a constant is known to be.
    pub(super) fn value_of(&mut self, value: ValueRef) -> ValueRef {
        let Op::Const(slot) = self.graph.node(value.node).op else { return value };
        let ty = self.graph.ty(value);
        let rank = ty.rank();
        match self.graph.literals.get(&slot).copied() {
            Some(literal) if rank == 0 && ty.dtype.elem() == Some(literal.elem) => self.literal(literal),
            _ => value,
        }
    }

    /// A number argument, or the known value of a tensor of rank 0.
    pub(super) fn number_of(&self, call: &Call<'_>, name: &str) -> Option<Number> {
        if let Some(number) = call.args.number(name) {
            return Some(number);
        }
        match self.graph.node(call.tensor(name)?.node).op {
            Op::Scalar(literal) => {
                literal.as_i64().map(Number::Int).or(Some(Number::Float(literal.as_f64())))
            }
            _ => None,
        }
    }

    /// A number of rank 0.
    pub(super) fn number(&mut self, elem: Elem, value: f64) -> ValueRef {
        self.literal(Literal::of(elem, value))
    }

    /// A tensor of one literal.
    pub(super) fn full(&mut self, literal: Literal, shape: &[i64]) -> Option<ValueRef> {
        let scalar = self.literal(literal);
        self.broadcast(scalar, shape)
    }

    /// The literal that every element of the value is.
    pub(super) fn known(&self, value: ValueRef) -> Option<Literal> {
        crate::rewrite::simplify::known(&self.graph, value)
    }

    /// A scalar function; operands are broadcast.
    pub(super) fn map(&mut self, function: ScalarFn, operands: &[ValueRef]) -> Option<ValueRef> {
        let elems = operands.iter().map(|&v| self.elem(v)).collect::<Option<Vec<_>>>()?;
        let elem = function.result(&elems)?;
        let shapes: Vec<Dims> = operands.iter().map(|&v| self.shape(v)).collect();
        let shape = broadcast_shape(&shapes.iter().map(|s| s.as_slice()).collect::<Vec<_>>())?;
        let operands = operands.iter().map(|&v| self.broadcast(v, &shape)).collect::<Option<Vec<_>>>()?;
        Some(self.add(Op::Map(function), &operands, elem, &shape))
    }

    /// A scalar function of a value and a number of its type.
    pub(super) fn map_number(
        &mut self,
        function: ScalarFn,
        value: ValueRef,
        number: f64,
    ) -> Option<ValueRef> {
        let elem = self.elem(value)?;
        let number = self.number(elem, number);
        self.map(function, &[value, number])
    }

    /// `if condition { a } else { b }`.
    pub(super) fn select(&mut self, condition: ValueRef, a: ValueRef, b: ValueRef) -> Option<ValueRef> {
        self.map(ScalarFn::Select, &[condition, a, b])
    }

    /// Conversion; to booleans it is "not zero".
    pub(super) fn cast(&mut self, value: ValueRef, elem: Elem) -> Option<ValueRef> {
        let from = self.elem(value)?;
        if from == elem {
            return Some(value);
        }
        if let Op::Scalar(literal) = self.graph.node(value.node).op {
            return Some(self.literal(cast_literal(literal, elem)));
        }
        if elem == Elem::Bool {
            return self.map_number(ScalarFn::Ne, value, 0.0);
        }
        let shape = self.shape(value);
        Some(self.add(Op::Cast, &[value], elem, &shape))
    }

    /// A value in the type in which an operator of several steps computes.
    pub(super) fn widen(&mut self, value: ValueRef) -> Option<ValueRef> {
        let elem = self.elem(value)?;
        self.cast(value, wide(elem))
    }

    fn view(&mut self, view: View, value: ValueRef, shape: &[i64]) -> Option<ValueRef> {
        let elem = self.elem(value)?;
        Some(self.add(Op::View(view), &[value], elem, shape))
    }

    /// The same elements in another shape.
    pub(super) fn reshape(&mut self, value: ValueRef, shape: &[i64]) -> Option<ValueRef> {
        let from = self.graph.ty(value);
        if from.shape.as_slice() == shape {
            return Some(value);
        }
        if from.numel() != shape.iter().product::<i64>() {
            return None;
        }
        self.view(View::Reshape, value, shape)
    }

    /// Broadcasting as libtorch does it.
    pub(super) fn broadcast(&mut self, value: ValueRef, shape: &[i64]) -> Option<ValueRef> {
        let from = self.shape(value);
        if from.as_slice() == shape {
            return Some(value);
        }
        if broadcast_shape(&[&from, shape])?.as_slice() != shape {
            return None;
        }
        let key = match self.graph.node(value.node).op {
            Op::Scalar(literal) => Some((literal, Dims::from_slice(shape), self.device)),
            _ => None,
        };
        if let Some(&found) = key.as_ref().and_then(|key| self.literals.get(key)) {
            return Some(found);
        }
        let mut padded = Dims::from_elem(1, shape.len() - from.len());
        padded.extend_from_slice(&from);
        let mut result = self.reshape(value, &padded)?;
        if padded.as_slice() != shape {
            result = self.view(View::Expand, result, shape)?;
        }
        if let Some(key) = key {
            self.literals.insert(key, result);
        }
        Some(result)
    }

    /// Result dimension `i` is operand dimension `perm[i]`.
    pub(super) fn permute(&mut self, value: ValueRef, perm: &[usize]) -> Option<ValueRef> {
        let shape = self.shape(value);
        if perm.iter().copied().eq(0..shape.len()) {
            return Some(value);
        }
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..shape.len()) {
            return None;
        }
        let permuted: Dims = perm.iter().map(|&d| shape[d]).collect();
        self.view(View::Permute(perm.iter().map(|&d| d as u8).collect()), value, &permuted)
    }

    /// `length` elements along a dimension from `start`, `step` apart.
    pub(super) fn slice(
        &mut self,
        value: ValueRef,
        dim: usize,
        start: i64,
        length: i64,
        step: i64,
    ) -> Option<ValueRef> {
        let mut shape = self.shape(value);
        let size = *shape.get(dim)?;
        if start == 0 && length == size && step == 1 {
            return Some(value);
        }
        let last = start.checked_add(length.checked_sub(1)?.checked_mul(step)?)?;
        if step < 1 || start < 0 || length < 0 || (length > 0 && last >= size) {
            return None;
        }
        shape[dim] = length;
        self.view(View::Slice { dim: dim as u8, start, step }, value, &shape)
    }

    /// One index along a dimension, which disappears.
    pub(super) fn select_index(&mut self, value: ValueRef, dim: usize, index: i64) -> Option<ValueRef> {
        let one = self.slice(value, dim, index, 1, 1)?;
        let mut shape = self.shape(one);
        shape.remove(dim);
        self.reshape(one, &shape)
    }

    /// Dimensions reversed.
    pub(super) fn flip(&mut self, value: ValueRef, mut dims: Vec<usize>) -> Option<ValueRef> {
        dims.sort_unstable();
        let shape = self.shape(value);
        if dims.is_empty() || shape.is_empty() {
            return Some(value);
        }
        if dims.last().is_some_and(|&d| d >= shape.len()) {
            return None;
        }
        self.view(View::Flip(dims.iter().map(|&d| d as u8).collect()), value, &shape)
    }

    /// The value at an offset in a larger shape, the rest a literal.
    pub(super) fn pad(
        &mut self,
        value: ValueRef,
        low: &[i64],
        shape: &[i64],
        fill: Literal,
    ) -> Option<ValueRef> {
        self.pad_apart(value, low, &Dims::from_elem(0, low.len()), shape, fill)
    }

    /// As [`Cx::pad`], with so many of the literal between the elements of each dimension.
    pub(super) fn pad_apart(
        &mut self,
        value: ValueRef,
        low: &[i64],
        interior: &[i64],
        shape: &[i64],
        fill: Literal,
    ) -> Option<ValueRef> {
        let from = self.shape(value);
        if [low.len(), interior.len(), shape.len()] != [from.len(); 3] {
            return None;
        }
        let end = |d: usize| padded_size(low[d], from[d], interior[d]);
        if !(0..from.len()).all(|d| end(d).is_some_and(|end| end <= shape[d])) {
            return None;
        }
        if from.as_slice() == shape {
            return Some(value);
        }
        let pad = View::Pad { low: Dims::from_slice(low), interior: Dims::from_slice(interior), fill };
        self.view(pad, value, shape)
    }

    /// Windows over dimensions.
    pub(super) fn windows(&mut self, value: ValueRef, windows: &[Window]) -> Option<ValueRef> {
        let shape = Window::shape(windows, &self.shape(value))?;
        self.view(View::Window(windows.iter().copied().collect()), value, &shape)
    }

    /// Values joined along a dimension.
    pub(super) fn concat(&mut self, values: &[ValueRef], dim: usize) -> Option<ValueRef> {
        let first = *values.first()?;
        if values.len() == 1 {
            return Some(first);
        }
        let mut shape = self.shape(first);
        shape[dim] = values.iter().try_fold(0i64, |sum, &v| sum.checked_add(*self.shape(v).get(dim)?))?;
        let elem = self.elem(first)?;
        Some(self.add(Op::Concat { dim: dim as u8 }, values, elem, &shape))
    }

    /// Position along a dimension.
    pub(super) fn iota(&mut self, elem: Elem, shape: &[i64], dim: usize) -> ValueRef {
        self.add(Op::Iota { dim: dim as u8 }, &[], elem, shape)
    }

    /// A reduction; the dimensions stay with size 1 where `keep` is set.
    pub(super) fn reduce(
        &mut self,
        combine: ReduceFn,
        value: ValueRef,
        dims: &[usize],
        keep: bool,
    ) -> Option<ValueRef> {
        let elem = self.elem(value)?;
        if !combine.accepts(elem) {
            return None;
        }
        let shape = self.shape(value);
        let mut sorted = dims.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let rest: Dims = (0..shape.len()).filter(|d| !sorted.contains(d)).map(|d| shape[d]).collect();
        let mut result = value;
        if !sorted.is_empty() {
            let dims = sorted.iter().map(|&d| d as u8).collect();
            result = self.add(Op::Reduce { combine: combine.into(), dims }, &[value], elem, &rest);
        }
        if keep {
            let kept: Dims =
                (0..shape.len()).map(|d| if sorted.contains(&d) { 1 } else { shape[d] }).collect();
            result = self.reshape(result, &kept)?;
        }
        Some(result)
    }

    /// A contraction of two values of one type; pairs of dimensions of the left and the right one.
    pub(super) fn contract(
        &mut self,
        lhs: ValueRef,
        rhs: ValueRef,
        batch: &[(usize, usize)],
        sum: &[(usize, usize)],
    ) -> Option<ValueRef> {
        let pairs = |pairs: &[(usize, usize)]| pairs.iter().map(|&(l, r)| (l as u8, r as u8)).collect();
        self.contract_pairs(lhs, rhs, Contraction { batch: pairs(batch), sum: pairs(sum) })
    }

    /// A contraction of two values of one type.
    pub(super) fn contract_pairs(
        &mut self,
        lhs: ValueRef,
        rhs: ValueRef,
        pairs: Contraction,
    ) -> Option<ValueRef> {
        let elem = self.elem(lhs).filter(|elem| self.elem(rhs) == Some(*elem))?;
        let shape = pairs.shape(&self.shape(lhs), &self.shape(rhs))?;
        Some(self.add(Op::Contract(pairs), &[lhs, rhs], accumulator(elem)?, &shape))
    }

    /// Elements of `source` at `index` along a dimension; `index` has the result's shape.
    pub(super) fn gather(&mut self, source: ValueRef, dim: usize, index: ValueRef) -> Option<ValueRef> {
        let (from, shape) = (self.shape(source), self.shape(index));
        let same = from.len() == shape.len() && (0..from.len()).all(|d| d == dim || from[d] == shape[d]);
        if !same || !matches!(self.elem(index)?, Elem::I32 | Elem::I64) {
            return None;
        }
        let elem = self.elem(source)?;
        Some(self.add(Op::Gather { dim: dim as u8 }, &[source, index], elem, &shape))
    }

    /// A tensor or number argument in an element type.
    pub(super) fn operand(&mut self, call: &Call<'_>, name: &str, elem: Elem) -> Option<ValueRef> {
        match call.args.get(name)? {
            Arg::Tensor(_) => self.cast(call.tensor(name)?, elem),
            _ => Some(self.literal(literal(elem, call.args.number(name)?)?)),
        }
    }

    /// The results of a call, with their recorded strides. Declines where a type is not the recorded one.
    pub(super) fn finish(&mut self, call: &Call<'_>, values: Vec<ValueRef>) -> Option<Vec<ValueRef>> {
        let mut results: Vec<ValueRef> = Vec::new();
        if values.len() != call.outs.len() {
            return mismatch(&format!("{}: {} results", call.name, values.len()));
        }
        for (value, ty) in values.into_iter().zip(call.outs) {
            let found = self.graph.ty(value);
            if found.dtype != ty.dtype || found.shape != ty.shape || found.device != ty.device {
                return mismatch(&format!("{}: {found} is not {ty}", call.name));
            }
            results.push(if found.strides == ty.strides {
                value
            } else {
                self.restride(value, ty, &results)
            });
        }
        Some(results)
    }

    fn restride(&mut self, value: ValueRef, ty: &TensorType, taken: &[ValueRef]) -> ValueRef {
        let shared = matches!(self.graph.node(value.node).op, Op::Scalar(_)) || self.known(value).is_some();
        if self.is_fresh(value.node) && !shared && !taken.contains(&value) {
            self.graph.node_mut(value.node).outs[usize::from(value.out)].strides = ty.strides.clone();
            return value;
        }
        self.graph.add(Op::View(View::Reshape), &[value], [ty.clone()], self.origin).into()
    }

    /// Whether the current call made the node.
    fn is_fresh(&self, node: NodeId) -> bool {
        node.index() >= self.mark
    }
}

/// A lowering that does not give the recorded types declines; in this crate's tests it is a failure.
fn mismatch<T>(what: &str) -> Option<T> {
    #[cfg(test)]
    panic!("{what}");
    #[cfg(not(test))]
    {
        let _ = what;
        None
    }
}
