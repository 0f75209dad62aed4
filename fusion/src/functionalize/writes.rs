//! What becomes of a write: a new value of the root, and of every view between.

use smallvec::SmallVec;

use super::error::FunctionalizeError;
use super::overlap::{computed, repeats, span};
use super::state::{Arguments, Parent, Result, State, map_arg, without_args};
use super::views::Relation;
use crate::args::Args;
use crate::graph::{AtenCall, NodeId, Op, ValueRef};
use crate::recording::{Arg, Call, Source, TensorInfo};
use crate::types::{DType, TensorType};

impl State<'_> {
    /// `copy_`.
    pub(super) fn copy(
        &mut self,
        index: usize,
        call: &Call,
        args: &[(String, Arg<usize>)],
        name: &dyn Fn() -> String,
    ) -> Result<()> {
        let named = Args(args);
        let (Some(to), Some(from)) = (named.tensor("self"), named.tensor("src")) else {
            return Err(FunctionalizeError::Malformed { place: name(), what: "no source or destination" });
        };
        let (destination, source) = (self.ty(to).clone(), self.ty(from).clone());
        let mut value = self.read(from)?;
        if source.device != destination.device {
            let args = vec![("self".into(), Arg::Tensor(to)), ("src".into(), Arg::Tensor(from))];
            let template = without_args("aten::copy", "");
            let node =
                self.emit(&template, &args, SmallVec::from_elem(computed(&destination), 1), index as u32)?;
            value = node.into();
        } else {
            value = self.converted(value, &destination, index as u32);
        }
        self.write(to, value, name)?;
        self.bind_results(call, to, name)
    }

    /// The value cast to the type and broadcast to the shape of a destination.
    fn converted(&mut self, mut value: ValueRef, destination: &TensorType, origin: u32) -> ValueRef {
        let unary = |op: &str, overload: &str, extra: (&str, Arg<u16>)| {
            Op::Aten(Box::new(AtenCall::new(op, overload, [("self", Arg::Tensor(0)), extra])))
        };
        let from = self.graph.ty(value).clone();
        if from.dtype != destination.dtype {
            let ty = TensorType { dtype: destination.dtype, ..computed(&from) };
            let op = unary("aten::_to_copy", "", ("dtype", Arg::DType(destination.dtype)));
            value = self.graph.add(op, &[value], [ty], Some(origin)).into();
        }
        if from.shape != destination.shape {
            let op = unary("aten::expand", "", ("size", Arg::Ints(destination.shape.to_vec())));
            value = self.graph.add(op, &[value], [computed(destination)], Some(origin)).into();
        }
        value
    }

    /// Filling a tensor whose elements are repeated fills what they are repeated from.
    pub(super) fn fill_once(&self, args: &mut Arguments) {
        let Some((_, Arg::Tensor(to))) = args.first_mut() else { return };
        while let Some(parent) = &self.tensors[*to].parent
            && repeats(&self.tensors[*to].ty)
            && matches!(parent.relation, Relation::Expand | Relation::Identity)
        {
            *to = parent.tensor;
        }
    }

    pub(super) fn functional_write(
        &mut self,
        index: usize,
        call: &Call,
        functional: AtenCall,
        args: Arguments,
        result: DType,
    ) -> Result<()> {
        let name = || format!("{} #{index}", call.op);
        let Some((_, Arg::Tensor(to))) = args.first() else {
            return Err(FunctionalizeError::Malformed { place: name(), what: "no destination" });
        };
        let to = *to;
        let destination = self.ty(to).clone();
        let ty = TensorType { dtype: result, ..computed(&destination) };
        let node = self.emit(&functional, &args, SmallVec::from_elem(ty, 1), index as u32)?;
        let value = self.converted(node.into(), &destination, index as u32);
        self.write(to, value, &name)?;
        self.bind_results(call, to, &name)
    }

    /// A writing operator that has no functional counterpart: its written arguments are copied first, and the copies
    /// are results.
    pub(super) fn original_write(
        &mut self,
        index: usize,
        call: &Call,
        args: Arguments,
        writes: &[usize],
    ) -> Result<()> {
        let name = || format!("{} #{index}", call.op);
        let mut written = Vec::new();
        for &position in writes {
            let Some((_, arg)) = args.get(position) else {
                return Err(FunctionalizeError::Malformed {
                    place: name(),
                    what: "no such argument is written",
                });
            };
            map_arg(arg, &mut |&t: &usize| {
                written.push(t);
                Ok(0u16)
            })?;
        }
        let mut roots: Vec<usize> = written.iter().map(|&t| self.root(t)).collect();
        roots.sort_unstable();
        if roots.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(FunctionalizeError::SharedMemory { call: name() });
        }
        let mut template = without_args(&call.op, &call.overload);
        (template.replay, template.random) = (Some(call.replay), call.random);
        template.writes = writes.iter().map(|&w| w as u16).collect();
        let mut outs = self.result_types(call);
        let first_copy = outs.len();
        // Which element gets which random number depends on where the elements lie.
        let copy = |ty: &TensorType| if call.random { ty.clone() } else { computed(ty) };
        outs.extend(written.iter().map(|&t| copy(&self.tensors[t].ty)));
        let node = self.emit(&template, &args, outs, index as u32)?;
        for (k, &tensor) in written.iter().enumerate() {
            self.write(tensor, ValueRef { node, out: (first_copy + k) as u16 }, &name)?;
        }
        self.bind_written(call, &written, node, &name)
    }

    /// Results of a writing operator that are new: views of what it wrote, or tensors of their own.
    fn bind_written(
        &mut self,
        call: &Call,
        written: &[usize],
        node: NodeId,
        name: &dyn Fn() -> String,
    ) -> Result<()> {
        for (out, id) in call.results.iter().enumerate().filter_map(|(i, r)| Some((i, (*r)?))) {
            if !self.is_new(id) {
                continue;
            }
            let storage = self.recording.tensors[id.0 as usize].storage;
            if self.recording.tensors[id.0 as usize].ty.numel() > 0
                && written.iter().any(|&t| self.tensors[t].storage == storage)
            {
                return Err(FunctionalizeError::Malformed {
                    place: name(),
                    what: "a result is a view of a written tensor",
                });
            }
            self.add_root(id, ValueRef { node, out: out as u16 });
        }
        Ok(())
    }

    /// Gives a tensor a new value, and with it its root and every tensor between them.
    fn write(&mut self, tensor: usize, value: ValueRef, name: &dyn Fn() -> String) -> Result<()> {
        if self.ty(tensor).numel() == 0 {
            return Ok(());
        }
        if repeats(self.ty(tensor)) {
            return Err(FunctionalizeError::OverlappingWrite { call: name() });
        }
        let root = self.root(tensor);
        if self.tensors[tensor].opaque || self.tensors[root].opaque || self.writes_beside_opaque(root) {
            return Err(FunctionalizeError::Opaque { call: name() });
        }
        if repeats(self.ty(root)) {
            return Err(FunctionalizeError::OverlappingWrite { call: name() });
        }
        self.check_unshared(root, name)?;
        let mut chain = vec![(tensor, value)];
        let (mut at, mut value) = (tensor, value);
        while let Some(parent) = self.tensors[at].parent.clone() {
            // An element that is written may be another one there as well.
            if repeats(self.ty(parent.tensor)) {
                return Err(FunctionalizeError::OpaqueView { call: name() });
            }
            value = self.scatter(&parent, at, value, name)?;
            at = parent.tensor;
            chain.push((at, value));
        }
        self.tensors[root].generation += 1;
        for (t, v) in chain {
            self.set_value(t, v);
        }
        Ok(())
    }

    /// Whether an input or parameter is written where another is no plain strided memory, of which it may be a part.
    fn writes_beside_opaque(&self, root: usize) -> bool {
        let given = |info: &TensorInfo| matches!(info.source, Source::Input(_) | Source::Param(..));
        self.tensors[root].target.is_some() && self.recording.tensors.iter().any(|t| given(t) && !t.plain)
    }

    /// A written storage must not be known under another root.
    fn check_unshared(&self, root: usize, name: &dyn Fn() -> String) -> Result<()> {
        let written = &self.tensors[root];
        let (from, to) = (written.offset, written.offset.saturating_add(span(&written.ty)));
        let shared = self.recording.tensors.iter().enumerate().any(|(i, other)| {
            let same_root = match self.current[i] {
                Some(t) => self.tensors[t].root == root,
                None => matches!(other.source, Source::Call(_)),
            };
            other.storage == written.storage
                && !same_root
                && other.ty.numel() > 0
                && other.storage_offset <= to
                && from <= other.storage_offset.saturating_add(span(&other.ty))
        });
        if shared { Err(FunctionalizeError::SharedMemory { call: name() }) } else { Ok(()) }
    }

    /// The parent's value after its view took `value`.
    fn scatter(
        &mut self,
        parent: &Parent,
        child: usize,
        value: ValueRef,
        name: &dyn Fn() -> String,
    ) -> Result<ValueRef> {
        let ty = self.ty(parent.tensor).clone();
        let refused = || FunctionalizeError::OpaqueView { call: name() };
        let ints = |list: &[i64]| Arg::Ints(list.to_vec());
        let child_shape = self.ty(child).shape.clone();
        let (op, args): (&str, Vec<(&str, Arg<u16>)>) = match &parent.relation {
            Relation::Identity => return Ok(value),
            Relation::Opaque | Relation::Expand => return Err(refused()),
            Relation::Reshape => ("reshape", vec![("shape", ints(&ty.shape))]),
            Relation::Permute(perm) => {
                let mut inverse = vec![0i64; perm.len()];
                for (i, &d) in perm.iter().enumerate() {
                    *inverse.get_mut(d).ok_or_else(refused)? = i as i64;
                }
                ("permute", vec![("dims", Arg::Ints(inverse))])
            }
            Relation::Slice { dim, start, step } => {
                let size = child_shape.get(*dim).copied().ok_or_else(refused)?;
                if size == ty.shape[*dim] {
                    return Ok(value);
                }
                let last = (size - 1).checked_mul(*step).and_then(|n| n.checked_add(*start));
                let end = last.and_then(|n| n.checked_add(1)).ok_or_else(refused)?;
                let int = |n: i64| Arg::Int(n);
                let args = vec![
                    ("dim", int(*dim as i64)),
                    ("start", int(*start)),
                    ("end", int(end)),
                    ("step", int(*step)),
                ];
                ("slice_scatter", args)
            }
            Relation::Select { dim, index } => {
                ("select_scatter", vec![("dim", Arg::Int(*dim as i64)), ("index", Arg::Int(*index))])
            }
            Relation::Diagonal { offset, dim1, dim2 } => {
                let args = [("offset", offset), ("dim1", dim1), ("dim2", dim2)];
                ("diagonal_scatter", args.into_iter().map(|(n, &v)| (n, Arg::Int(v))).collect())
            }
            Relation::Strided => {
                let (view, base) = (&self.tensors[child], &self.tensors[parent.tensor]);
                let offset = Arg::Int(view.offset.saturating_sub(base.offset));
                let (size, stride) = (ints(&view.ty.shape), ints(&view.ty.strides));
                ("as_strided_scatter", vec![("size", size), ("stride", stride), ("storage_offset", offset)])
            }
        };
        let mut operands = vec![value];
        let mut all = vec![("self", Arg::Tensor(0u16))];
        if op.ends_with("_scatter") {
            operands = vec![self.read(parent.tensor)?, value];
            all.push(("src", Arg::Tensor(1)));
        }
        all.extend(args);
        let call = AtenCall::new(&format!("aten::{op}"), "", all);
        let origin = self.graph.node(value.node).origin;
        if parent.relation == Relation::Strided {
            let outs = SmallVec::from_elem(computed(&ty), 1);
            return Ok(self.strided(call, operands, &ty, outs, origin));
        }
        Ok(self.graph.add(Op::Aten(Box::new(call)), &operands, [computed(&ty)], origin).into())
    }
}
