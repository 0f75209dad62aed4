//! The state of functionalisation: tensors, their trees of views, and their current values.

use std::collections::HashSet;
use std::rc::Rc;

use smallvec::SmallVec;

use super::FunctionalizeError;
use super::inplace::{self, Write};
use super::views::{self, Relation, ViewCall};
use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::recording::{Arg, Call, Recording, Source, TensorId, TensorInfo};
use crate::types::{DType, Device, Dims, TensorType, row_major};

type Result<T> = std::result::Result<T, FunctionalizeError>;

/// Arguments that name tensors of the state.
type Arguments = Vec<(String, Arg<usize>)>;

/// A tensor of the recording as it is at some time; a change of metadata in place makes another one of it.
pub(super) struct Tensor {
    pub(super) ty: TensorType,
    storage: u64,
    pub(super) offset: i64,
    pub(super) plain: bool,
    root: usize,
    parent: Option<Parent>,
    /// Its value, and the generation of the root that it was read at.
    value: Option<(u32, ValueRef)>,
    /// Of a root: how often it was written.
    generation: u32,
    /// Of a root: the input or parameter that it is.
    target: Option<NodeId>,
    /// It is no plain strided memory, or a call made it of a tensor that is not: what shares its memory is not known.
    opaque: bool,
}

#[derive(Clone)]
struct Parent {
    tensor: usize,
    relation: Relation,
    /// The call that makes the view; views that are the parent itself have none.
    view: Option<Rc<View>>,
}

/// A call that makes views, kept to make them again.
struct View {
    call: AtenCall,
    args: Arguments,
    origin: u32,
    outs: SmallVec<[TensorType; 1]>,
    results: Vec<Option<usize>>,
}

/// The state.
pub(super) struct State<'r> {
    recording: &'r Recording,
    pub(super) graph: Graph,
    pub(super) tensors: Vec<Tensor>,
    /// The tensor that each recorded identity is now.
    current: Vec<Option<usize>>,
}

/// The type of a result that is no tensor.
fn no_tensor() -> TensorType {
    TensorType { dtype: DType::Other(-1), shape: Dims::new(), strides: Dims::new(), device: Device::Cpu }
}

/// Offset of the last element from the first.
pub(super) fn span(ty: &TensorType) -> i64 {
    let steps = ty.shape.iter().zip(&ty.strides).map(|(&n, &s)| (n - 1).saturating_mul(s));
    steps.fold(0, i64::saturating_add)
}

/// Whether the elements fill their memory without gaps and none is addressed twice.
pub(super) fn is_dense(ty: &TensorType) -> bool {
    let mut dims: SmallVec<[(i64, i64); 6]> =
        ty.strides.iter().copied().zip(ty.shape.iter().copied()).filter(|&(_, n)| n != 1).collect();
    dims.sort_unstable();
    let mut expected = 1;
    for (stride, n) in dims {
        if stride != expected {
            return false;
        }
        expected *= n;
    }
    true
}

/// The type of a computed value in place of a tensor of type `ty`: its strides where they are dense.
fn computed(ty: &TensorType) -> TensorType {
    if ty.numel() == 0 || is_dense(ty) {
        return ty.clone();
    }
    TensorType { strides: row_major(&ty.shape), ..ty.clone() }
}

/// Whether one element may be addressed twice: some dimension's elements are no further apart than the extent of the
/// dimensions of smaller stride.
fn repeats(ty: &TensorType) -> bool {
    let dims = ty.shape.iter().zip(&ty.strides).filter(|&(&n, _)| n > 1);
    let mut dims: Vec<(i64, i64)> = dims.map(|(&n, &s)| (s, n)).collect();
    dims.sort_unstable();
    let mut extent = 0;
    let apart = dims.iter().all(|&(stride, n)| {
        let fits = stride > extent;
        extent += (n - 1) * stride;
        fits
    });
    ty.numel() > 0 && !apart
}

/// Elements up to which views are compared one by one.
const COMPARED: i64 = 1 << 20;

/// Whether two views of one storage share elements without being the same view. Large ones whose extents meet are
/// taken to.
fn collide(a: &TensorInfo, b: &TensorInfo) -> bool {
    let dims = |t: &TensorInfo| -> Vec<(i64, i64)> {
        let all = t.ty.shape.iter().copied().zip(t.ty.strides.iter().copied());
        all.filter(|&(n, _)| n != 1).collect()
    };
    let (x, y) = (dims(a), dims(b));
    let extent = |d: &[(i64, i64)]| d.iter().map(|&(n, s)| (n - 1) * s).sum::<i64>();
    let apart =
        a.storage_offset + extent(&x) < b.storage_offset || b.storage_offset + extent(&y) < a.storage_offset;
    if apart || a.ty.numel() == 0 || b.ty.numel() == 0 || (x == y && a.storage_offset == b.storage_offset) {
        return false;
    }
    if a.ty.numel().max(b.ty.numel()) > COMPARED {
        return true;
    }
    let addresses = |dims: &[(i64, i64)], start: i64| {
        let mut all = vec![start];
        for &(n, stride) in dims {
            all = all.iter().flat_map(|&at| (0..n).map(move |i| at + i * stride)).collect();
        }
        all
    };
    let written: HashSet<i64> = addresses(&x, a.storage_offset).into_iter().collect();
    addresses(&y, b.storage_offset).iter().any(|at| written.contains(at))
}

/// A call whose arguments are named when it is made.
fn without_args(op: &str, overload: &str) -> AtenCall {
    AtenCall::new::<String>(op, overload, [])
}

impl<'r> State<'r> {
    pub(super) fn new(recording: &'r Recording) -> Result<State<'r>> {
        let current = vec![None; recording.tensors.len()];
        let mut state = State { recording, graph: Graph::new(), tensors: Vec::new(), current };
        state.graph.literals = recording.literals.clone();
        for &id in &recording.inputs {
            state.tensor(id, &|| "the inputs".to_string())?;
        }
        let names = recording.calls.iter().enumerate();
        state.graph.origins = names.map(|(i, call)| format!("{} #{i}", call.op)).collect();
        Ok(state)
    }

    pub(super) fn ty(&self, tensor: usize) -> &TensorType {
        &self.tensors[tensor].ty
    }

    pub(super) fn offset(&self, tensor: usize) -> i64 {
        self.tensors[tensor].offset
    }

    pub(super) fn root(&self, tensor: usize) -> usize {
        self.tensors[tensor].root
    }

    /// Whether sizes, strides and an offset say all of where the tensor's elements are in another one's memory.
    pub(super) fn lies_in(&self, tensor: usize, base: usize) -> bool {
        let (own, of) = (&self.tensors[tensor], &self.tensors[base]);
        tensor == base || (own.ty.dtype == of.ty.dtype && own.plain && of.plain)
    }

    /// Whether the tensor has elements, and fills their memory without gaps.
    pub(super) fn is_buffer(&self, tensor: usize) -> bool {
        is_dense(self.ty(tensor)) && self.ty(tensor).numel() > 0
    }

    pub(super) fn target(&self, root: usize) -> Option<NodeId> {
        self.tensors[root].target
    }

    /// Whether the tensor has all elements of its root.
    pub(super) fn covers_root(&self, tensor: usize) -> bool {
        let root = self.root(tensor);
        tensor == root || (self.ty(tensor).numel() == self.ty(root).numel() && is_dense(self.ty(tensor)))
    }

    /// Inputs and parameters that were written, with their roots.
    pub(super) fn written_targets(&self) -> Vec<(NodeId, usize)> {
        let roots = self.tensors.iter().enumerate().filter(|(_, t)| t.generation > 0);
        roots.filter_map(|(i, t)| t.target.map(|target| (target, i))).collect()
    }

    /// The tensor that an identity is now. Inputs, parameters and constants get their nodes when first asked for.
    pub(super) fn tensor(&mut self, id: TensorId, place: &dyn Fn() -> String) -> Result<usize> {
        let malformed = |what| FunctionalizeError::Malformed { place: place(), what };
        let index = id.0 as usize;
        if let Some(found) = *self.current.get(index).ok_or_else(|| malformed("a tensor is not listed"))? {
            return Ok(found);
        }
        let (op, live) = match &self.recording.tensors[index].source {
            Source::Input(n) => (Op::Input(*n), true),
            Source::Param(n, _) => (Op::Param(*n), true),
            Source::Const(n) => (Op::Const(*n), false),
            Source::Call(_) => return Err(malformed("a tensor is used before the call that makes it")),
        };
        let node = self.graph.add(op, &[], [self.recording.tensors[index].ty.clone()], None);
        let tensor = self.add_root(id, node.into());
        self.tensors[tensor].target = live.then_some(node);
        Ok(tensor)
    }

    fn add_root(&mut self, id: TensorId, value: ValueRef) -> usize {
        let tensor = self.tensors.len();
        self.add(id, tensor, None, value)
    }

    fn add(&mut self, id: TensorId, root: usize, parent: Option<Parent>, value: ValueRef) -> usize {
        let info = &self.recording.tensors[id.0 as usize];
        let tensor = self.tensors.len();
        let generation = self.tensors.get(root).map_or(0, |r| r.generation);
        self.tensors.push(Tensor {
            ty: info.ty.clone(),
            storage: info.storage,
            offset: info.storage_offset,
            root,
            parent,
            value: Some((generation, value)),
            generation: 0,
            target: None,
            plain: info.plain,
            opaque: !info.plain || self.made_of_opaque(info),
        });
        self.current[id.0 as usize] = Some(tensor);
        tensor
    }

    /// Whether the call that makes a tensor takes one that is no plain strided memory.
    fn made_of_opaque(&self, info: &TensorInfo) -> bool {
        let Source::Call(call) = info.source else { return false };
        let call = self.recording.calls.get(call as usize);
        let mut args = call.iter().flat_map(|c| &c.args).flat_map(|(_, arg)| arg.tensors());
        args.any(|id| self.recording.tensors.get(id.0 as usize).is_some_and(|t| !t.plain))
    }

    fn current_value(&self, tensor: usize) -> Option<ValueRef> {
        let t = &self.tensors[tensor];
        t.value
            .filter(|&(generation, _)| generation == self.tensors[t.root].generation)
            .map(|(_, value)| value)
    }

    /// The value of a tensor, regenerated from its root where the root was written since.
    pub(super) fn read(&mut self, tensor: usize) -> Result<ValueRef> {
        let mut stale = Vec::new();
        let mut at = tensor;
        while self.current_value(at).is_none() {
            stale.push(at);
            at = match &self.tensors[at].parent {
                Some(parent) => parent.tensor,
                None => return Err(self.malformed_root()),
            };
        }
        for &t in stale.iter().rev() {
            if self.current_value(t).is_none() {
                self.regenerate(t)?;
            }
        }
        self.current_value(tensor).ok_or_else(|| self.malformed_root())
    }

    fn malformed_root(&self) -> FunctionalizeError {
        FunctionalizeError::Malformed { place: "a view".into(), what: "a storage has no value" }
    }

    fn regenerate(&mut self, tensor: usize) -> Result<()> {
        let Some(parent) = self.tensors[tensor].parent.clone() else { return Err(self.malformed_root()) };
        match parent.view {
            None => {
                let value = self.read(parent.tensor)?;
                self.set_value(tensor, value);
            }
            Some(view) => {
                let node = self.emit(&view.call, &view.args, view.outs.clone(), view.origin)?;
                let root = self.root(tensor);
                for (out, result) in view.results.iter().enumerate() {
                    if let Some(t) = result.filter(|&t| self.root(t) == root) {
                        self.set_value(t, ValueRef { node, out: out as u16 });
                    }
                }
            }
        }
        Ok(())
    }

    fn set_value(&mut self, tensor: usize, value: ValueRef) {
        let generation = self.tensors[self.tensors[tensor].root].generation;
        self.tensors[tensor].value = Some((generation, value));
    }

    /// Adds a node for a call with these arguments.
    fn emit(
        &mut self,
        call: &AtenCall,
        args: &[(String, Arg<usize>)],
        outs: SmallVec<[TensorType; 1]>,
        origin: u32,
    ) -> Result<NodeId> {
        let mut operands = Vec::new();
        let mut mapped = Vec::new();
        for (name, arg) in args {
            let arg = map_arg(arg, &mut |&t: &usize| {
                operands.push(self.read(t)?);
                Ok((operands.len() - 1) as u16)
            })?;
            mapped.push((name.clone(), arg));
        }
        let call = AtenCall { args: mapped, ..call.clone() };
        let (Some(_), Some((_, Arg::Tensor(root)))) = (views::strided(&call.op, Args(args)), args.first())
        else {
            let kernel = call.replay.and_then(|replay| self.recording.kernels.get(&replay)).cloned();
            let node = self.graph.add(Op::Aten(Box::new(call)), &operands, outs, Some(origin));
            self.graph.node_mut(node).kernel = kernel;
            return Ok(node);
        };
        let root = self.ty(*root).clone();
        Ok(self.strided(call, operands, &root, outs, Some(origin)).node)
    }

    /// Whether an argument shares elements with one that is written and is not the same view of them: what libtorch reads
    /// then depends on the order in which it writes.
    fn reads_what_it_writes(&self, call: &Call, writes: &[usize]) -> bool {
        let info = |id: TensorId| self.recording.tensors.get(id.0 as usize);
        let of = |position: usize| {
            let found = call.args.get(position).into_iter().flat_map(|(_, arg)| arg.tensors());
            found.filter_map(info).collect::<Vec<_>>()
        };
        let written: Vec<&TensorInfo> = writes.iter().flat_map(|&w| of(w)).collect();
        let read = (0..call.args.len()).filter(|p| !writes.contains(p)).flat_map(of);
        read.into_iter().any(|r| written.iter().any(|w| w.storage == r.storage && collide(w, r)))
    }

    /// Whether the argument is running statistics of a batch norm in training that libtorch leaves as they are: on CUDA
    /// it writes to a contiguous copy of them, which it drops.
    fn drops_statistics(&self, call: &Call, at: usize) -> bool {
        let Some((name, Arg::Tensor(id))) = call.args.get(at) else { return false };
        let Some(info) = self.recording.tensors.get(id.0 as usize) else { return false };
        call.op.contains("batch_norm")
            && name.starts_with("running_")
            && info.ty.device != Device::Cpu
            && !info.ty.is_contiguous()
    }

    /// Takes one call of the recording.
    pub(super) fn call(&mut self, index: usize, call: &Call) -> Result<()> {
        let name = || format!("{} #{index}", call.op);
        let mut args = Vec::new();
        for (arg_name, arg) in &call.args {
            args.push((arg_name.clone(), map_arg(arg, &mut |&id: &TensorId| self.tensor(id, &name))?));
        }
        let mut writes = call.writes.clone();
        writes.extend(inplace::hidden_writes(call));
        writes.sort_unstable();
        writes.dedup();
        writes.retain(|&at| !self.drops_statistics(call, at));
        if writes.is_empty() {
            return self.pure_call(index, call, args);
        }
        if self.reads_what_it_writes(call, &writes) {
            return Err(FunctionalizeError::OverlappingWrite { call: name() });
        }
        let types = |t: usize| self.tensors[t].ty.clone();
        match inplace::classify(call, Args(&args), &writes, &types) {
            Write::Nothing => self.bind_same(call, &args, &name),
            Write::Metadata => Err(FunctionalizeError::Metadata { call: name() }),
            Write::View => self.metadata_view(index, call, args),
            Write::Copy => self.copy(index, call, &args, &name),
            Write::Functional { op, overload, result } => {
                if matches!(op.as_str(), "aten::fill" | "aten::zero") {
                    self.fill_once(&mut args);
                }
                let functional = without_args(&op, &overload);
                self.functional_write(index, call, functional, args, result)
            }
            Write::Original => self.original_write(index, call, args, &writes),
        }
    }

    fn result_types(&self, call: &Call) -> SmallVec<[TensorType; 1]> {
        let ty = |id: &Option<TensorId>| id.and_then(|id| self.recording.tensors.get(id.0 as usize));
        call.results.iter().map(|id| ty(id).map_or_else(no_tensor, |info| info.ty.clone())).collect()
    }

    fn is_new(&self, id: TensorId) -> bool {
        self.current.get(id.0 as usize).is_some_and(Option::is_none)
    }

    /// A call that writes nothing: views of arguments, or new tensors.
    fn pure_call(&mut self, index: usize, call: &Call, args: Arguments) -> Result<()> {
        let new: Vec<(usize, TensorId)> =
            (0..).zip(&call.results).filter_map(|(i, r)| Some((i, (*r)?))).collect();
        let new: Vec<_> = new.into_iter().filter(|&(_, id)| self.is_new(id)).collect();
        if new.is_empty() && !call.random {
            return Ok(());
        }
        let parent = new.iter().find_map(|&(_, id)| self.aliased(id, &args));
        let (template, args) = self.template(index, call, args, parent)?;
        let outs = self.result_types(call);
        let node = self.emit(&template, &args, outs.clone(), index as u32)?;
        let mut results = vec![None; call.results.len()];
        let mut views = Vec::new();
        for (out, id) in new {
            let value = ValueRef { node, out: out as u16 };
            let tensor = match self.aliased(id, &args) {
                None => self.add_root(id, value),
                Some(parent) => {
                    // No relation says that elements are conjugated or negated.
                    let plain = self.tensors[parent].plain && self.recording.tensors[id.0 as usize].plain;
                    let relation = match plain {
                        true => self.relation(call, &args, parent, &outs, out),
                        false => Relation::Opaque,
                    };
                    let root = self.root(parent);
                    let value = if relation == Relation::Identity { self.read(parent)? } else { value };
                    let link = Parent { tensor: parent, relation, view: None };
                    views.push(self.add(id, root, Some(link), value));
                    self.tensors.len() - 1
                }
            };
            results[out] = Some(tensor);
        }
        self.link_views(&views, View { call: template, args, origin: index as u32, outs, results });
        Ok(())
    }

    fn link_views(&mut self, views: &[usize], view: View) {
        let view = Rc::new(view);
        for &tensor in views {
            if let Some(parent) = &mut self.tensors[tensor].parent
                && parent.relation != Relation::Identity
            {
                parent.view = Some(view.clone());
            }
        }
    }

    /// The argument whose storage a new result shares. Empty tensors share nothing.
    fn aliased(&self, id: TensorId, args: &[(String, Arg<usize>)]) -> Option<usize> {
        let info = self.recording.tensors.get(id.0 as usize)?;
        if info.ty.numel() == 0 {
            return None;
        }
        let mut found = None;
        for (_, arg) in args {
            let _ = map_arg(arg, &mut |&t: &usize| {
                if found.is_none() && self.tensors[t].storage == info.storage {
                    found = Some(t);
                }
                Ok(0u16)
            });
        }
        found
    }

    /// The call to emit. Operators that address the storage take the root instead of a view of it, and an offset from the
    /// root's first element.
    fn template(
        &mut self,
        index: usize,
        call: &Call,
        mut args: Arguments,
        parent: Option<usize>,
    ) -> Result<(AtenCall, Arguments)> {
        let mut template = without_args(&call.op, &call.overload);
        (template.replay, template.random) = (Some(call.replay), call.random);
        if let Some(strided) = views::strided(&call.op, Args(&args)) {
            let parent = parent.unwrap_or(strided.tensor);
            let offset = strided.offset.unwrap_or(self.offset(strided.tensor));
            let refused = || FunctionalizeError::OutOfBounds { call: format!("{} #{index}", call.op) };
            let offset = self.within_root(parent, &strided, offset).ok_or_else(refused)?;
            let root = self.root(parent);
            if let (Some(_), Some(target)) = (strided.offset, self.target(root))
                && !self.graph.offsets.contains(&target)
            {
                self.graph.offsets.push(target);
            }
            (template, args) = (without_args(strided.op, ""), strided.args_of(root, offset));
        }
        Ok((template, args))
    }

    fn relation(
        &self,
        call: &Call,
        args: &[(String, Arg<usize>)],
        parent: usize,
        outs: &[TensorType],
        out: usize,
    ) -> Relation {
        let results: Vec<&TensorType> = outs.iter().collect();
        let name = call.op.strip_prefix("aten::").unwrap_or("");
        let view = ViewCall {
            name,
            overload: &call.overload,
            args: Args(args),
            parent: &self.tensors[parent].ty,
            results: &results,
        };
        views::relation(&view, out)
    }

    /// Results of a call that changes nothing: its first argument under new names.
    fn bind_same(
        &mut self,
        call: &Call,
        args: &[(String, Arg<usize>)],
        name: &dyn Fn() -> String,
    ) -> Result<()> {
        let Some((_, Arg::Tensor(parent))) = args.first() else { return Ok(()) };
        self.bind_results(call, *parent, name)
    }

    fn bind_results(&mut self, call: &Call, parent: usize, name: &dyn Fn() -> String) -> Result<()> {
        for id in call.results.iter().flatten().copied() {
            if !self.is_new(id) {
                continue;
            }
            let info = &self.recording.tensors[id.0 as usize];
            if info.ty.shape != self.tensors[parent].ty.shape
                || info.ty.dtype != self.tensors[parent].ty.dtype
            {
                let what = "a writing operator returns something other than what it writes";
                return Err(FunctionalizeError::Malformed { place: name(), what });
            }
            let (root, value) = (self.root(parent), self.read(parent)?);
            self.add(
                id,
                root,
                Some(Parent { tensor: parent, relation: Relation::Identity, view: None }),
                value,
            );
        }
        Ok(())
    }

    /// `transpose_` and the like: the identity becomes a view of what it was.
    fn metadata_view(&mut self, index: usize, call: &Call, args: Arguments) -> Result<()> {
        let refused = || FunctionalizeError::Metadata { call: format!("{} #{index}", call.op) };
        let (Some((_, Arg::Tensor(old))), Some((_, Arg::Tensor(id)))) = (args.first(), call.args.first())
        else {
            return Err(refused());
        };
        let (old, id) = (*old, *id);
        if self.target(self.root(old)).is_some() && self.root(old) == old {
            return Err(refused());
        }
        let name = call.op.trim_start_matches("aten::").trim_end_matches('_');
        let before = self.tensors[old].ty.clone();
        let ty = views::metadata_type(name, Args(&args), &before).ok_or_else(refused)?;
        let outs: SmallVec<[TensorType; 1]> = SmallVec::from_elem(ty.clone(), 1);
        let relation = self.relation(call, &args, old, &outs, 0);
        let overload = if name == "transpose" { "int" } else { call.overload.as_str() };
        let template = without_args(&format!("aten::{name}"), overload);
        let node = self.emit(&template, &args, outs.clone(), index as u32)?;
        let root = self.root(old);
        let parent = Parent { tensor: old, relation, view: None };
        let tensor = self.add(id, root, Some(parent), node.into());
        self.tensors[tensor].ty = ty;
        self.tensors[tensor].offset = self.tensors[old].offset;
        let view = View { call: template, args, origin: index as u32, outs, results: vec![Some(tensor)] };
        self.link_views(&[tensor], view);
        Ok(())
    }

    /// `copy_`.
    fn copy(
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
    fn fill_once(&self, args: &mut Arguments) {
        let Some((_, Arg::Tensor(to))) = args.first_mut() else { return };
        while let Some(parent) = &self.tensors[*to].parent
            && repeats(&self.tensors[*to].ty)
            && matches!(parent.relation, Relation::Expand | Relation::Identity)
        {
            *to = parent.tensor;
        }
    }

    fn functional_write(
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
    fn original_write(&mut self, index: usize, call: &Call, args: Arguments, writes: &[usize]) -> Result<()> {
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

/// The same argument with its tensors renamed.
fn map_arg<T, U>(arg: &Arg<T>, rename: &mut dyn FnMut(&T) -> Result<U>) -> Result<Arg<U>> {
    Ok(match arg {
        Arg::None => Arg::None,
        Arg::Tensor(t) => Arg::Tensor(rename(t)?),
        Arg::Tensors(list) => {
            let mut renamed = Vec::new();
            for item in list {
                renamed.push(item.as_ref().map(&mut *rename).transpose()?);
            }
            Arg::Tensors(renamed)
        }
        Arg::Bool(b) => Arg::Bool(*b),
        Arg::Int(n) => Arg::Int(*n),
        Arg::Float(x) => Arg::Float(*x),
        Arg::Str(s) => Arg::Str(s.clone()),
        Arg::Ints(list) => Arg::Ints(list.clone()),
        Arg::Floats(list) => Arg::Floats(list.clone()),
        Arg::Bools(list) => Arg::Bools(list.clone()),
        Arg::DType(dtype) => Arg::DType(*dtype),
        Arg::Device(device) => Arg::Device(*device),
        Arg::Other(words) => Arg::Other(words.clone()),
    })
}
