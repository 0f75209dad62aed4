//! The state of functionalisation: tensors, their trees of views, and their current values.

use std::rc::Rc;

use smallvec::SmallVec;

use super::error::FunctionalizeError;
use super::overlap::is_dense;
use super::views::{self, Relation};
use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::recording::{Arg, Recording, Source, TensorId, TensorInfo};
use crate::types::{DType, Device, Dims, TensorType};

pub(super) type Result<T> = std::result::Result<T, FunctionalizeError>;

/// Arguments that name tensors of the state.
pub(super) type Arguments = Vec<(String, Arg<usize>)>;

/// A tensor of the recording as it is at some time; a change of metadata in place makes another one of it.
pub(super) struct Tensor {
    pub(super) ty: TensorType,
    pub(super) storage: u64,
    pub(super) offset: i64,
    pub(super) plain: bool,
    pub(super) root: usize,
    pub(super) parent: Option<Parent>,
    /// Its value, and the generation of the root that it was read at.
    value: Option<(u32, ValueRef)>,
    /// Of a root: how often it was written.
    pub(super) generation: u32,
    /// Of a root: the input or parameter that it is.
    pub(super) target: Option<NodeId>,
    /// It is no plain strided memory, or a call made it of a tensor that is not: what shares its memory is not known.
    pub(super) opaque: bool,
}

#[derive(Clone)]
pub(super) struct Parent {
    pub(super) tensor: usize,
    pub(super) relation: Relation,
    /// The call that makes the view; views that are the parent itself have none.
    pub(super) view: Option<Rc<View>>,
}

/// A call that makes views, kept to make them again.
pub(super) struct View {
    pub(super) call: AtenCall,
    pub(super) args: Arguments,
    pub(super) origin: u32,
    pub(super) outs: SmallVec<[TensorType; 1]>,
    pub(super) results: Vec<Option<usize>>,
}

/// The state.
pub(super) struct State<'r> {
    pub(super) recording: &'r Recording,
    pub(super) graph: Graph,
    pub(super) tensors: Vec<Tensor>,
    /// The tensor that each recorded identity is now.
    pub(super) current: Vec<Option<usize>>,
}

/// The type of a result that is no tensor.
pub(super) fn no_tensor() -> TensorType {
    TensorType { dtype: DType::Other(-1), shape: Dims::new(), strides: Dims::new(), device: Device::Cpu }
}

/// A call whose arguments are named when it is made.
pub(super) fn without_args(op: &str, overload: &str) -> AtenCall {
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

    pub(super) fn add_root(&mut self, id: TensorId, value: ValueRef) -> usize {
        let tensor = self.tensors.len();
        self.add(id, tensor, None, value)
    }

    pub(super) fn add(
        &mut self,
        id: TensorId,
        root: usize,
        parent: Option<Parent>,
        value: ValueRef,
    ) -> usize {
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

    pub(super) fn set_value(&mut self, tensor: usize, value: ValueRef) {
        let generation = self.tensors[self.tensors[tensor].root].generation;
        self.tensors[tensor].value = Some((generation, value));
    }

    /// Adds a node for a call with these arguments.
    pub(super) fn emit(
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
}

/// The same argument with its tensors renamed.
pub(super) fn map_arg<T, U>(arg: &Arg<T>, rename: &mut dyn FnMut(&T) -> Result<U>) -> Result<Arg<U>> {
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
