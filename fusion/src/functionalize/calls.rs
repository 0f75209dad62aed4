//! What becomes of a call of the recording: a node, views, or a write.

use std::rc::Rc;

use smallvec::SmallVec;

use super::error::FunctionalizeError;
use super::inplace::{self, Write};
use super::overlap::{collide, repeats, same_view};
use super::state::{Arguments, Parent, Result, State, View, map_arg, no_tensor, without_args};
use super::views::{self, Relation, ViewCall};
use crate::args::Args;
use crate::graph::{AtenCall, ValueRef};
use crate::recording::{Arg, Call, TensorId, TensorInfo};
use crate::types::{Device, TensorType};

impl State<'_> {
    /// Takes one call of the recording.
    pub(super) fn call(&mut self, index: usize, call: &Call) -> Result<()> {
        let name = || format!("{} #{index}", call.op);
        let mut args = Vec::new();
        for (arg_name, arg) in &call.args {
            args.push((arg_name.clone(), map_arg(arg, &mut |&id: &TensorId| self.tensor(id, &name))?));
        }
        let mut writes = call.writes.clone();
        writes.sort_unstable();
        writes.dedup();
        if writes.iter().any(|&at| self.is_strided_statistics(call, at)) {
            return Err(FunctionalizeError::StridedStatistics { call: name() });
        }
        if writes.is_empty() {
            if call.op == "aten::set" {
                return Err(FunctionalizeError::OutOfBounds { call: name() });
            }
            if self.writes_a_copy_with_overlaps(call, &args) {
                return Err(FunctionalizeError::OverlappingWrite { call: name() });
            }
            return self.pure_call(index, call, args);
        }
        if self.reads_what_it_writes(call, &writes) {
            return Err(FunctionalizeError::ReadsWritten { call: name() });
        }
        if reads_around_its_operand(call) {
            return Err(FunctionalizeError::OutOfBounds { call: name() });
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

    /// Whether a call writes a part of a copy whose elements share memory: libtorch's has the strides of the tensor, unless one of them is
    /// 0, and other elements of it are written over.
    fn writes_a_copy_with_overlaps(&self, call: &Call, args: &Arguments) -> bool {
        const OPERATORS: [&str; 4] = [
            "aten::select_scatter",
            "aten::slice_scatter",
            "aten::diagonal_scatter",
            "aten::as_strided_scatter",
        ];
        let Some((_, Arg::Tensor(tensor))) = args.first().filter(|_| OPERATORS.contains(&call.op.as_str()))
        else {
            return false;
        };
        let ty = &self.tensors[*tensor].ty;
        let expanded = ty.shape.iter().zip(&ty.strides).any(|(&n, &stride)| n > 1 && stride == 0);
        !expanded && repeats(ty)
    }

    /// Whether an argument shares elements with one that is written: what libtorch reads then depends on the order in which it writes,
    /// but where each element is computed of the same element alone.
    fn reads_what_it_writes(&self, call: &Call, writes: &[usize]) -> bool {
        let info = |id: TensorId| self.recording.tensors.get(id.0 as usize);
        let of = |position: usize| {
            let found = call.args.get(position).into_iter().flat_map(|(_, arg)| arg.tensors());
            found.filter_map(info).collect::<Vec<_>>()
        };
        let written: Vec<&TensorInfo> = writes.iter().flat_map(|&w| of(w)).collect();
        let mut read = (0..call.args.len()).filter(|p| !writes.contains(p)).flat_map(of);
        let elementwise = inplace::is_elementwise(&call.op);
        let disturbs = |w: &TensorInfo, r: &TensorInfo| match same_view(w, r) {
            true => !elementwise && w.ty.numel() > 0,
            false => collide(w, r),
        };
        read.any(|r| written.iter().any(|w| w.storage == r.storage && disturbs(w, r)))
    }

    /// Whether the argument is running statistics of a batch norm in training that libtorch may leave as they are, where it gives
    /// cuDNN a contiguous copy of them.
    fn is_strided_statistics(&self, call: &Call, at: usize) -> bool {
        let Some((name, Arg::Tensor(id))) = call.args.get(at) else { return false };
        let Some(info) = self.recording.tensors.get(id.0 as usize) else { return false };
        call.op.contains("batch_norm")
            && name.starts_with("running_")
            && info.ty.device != Device::Cpu
            && !info.ty.is_contiguous()
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
                    let (parent, relation) = match relation {
                        Relation::Strided if !self.is_within_root(id, parent) => (parent, Relation::Opaque),
                        Relation::Strided => (root, Relation::Strided),
                        relation => (parent, relation),
                    };
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

    pub(super) fn result_types(&self, call: &Call) -> SmallVec<[TensorType; 1]> {
        let ty = |id: &Option<TensorId>| id.and_then(|id| self.recording.tensors.get(id.0 as usize));
        call.results.iter().map(|id| ty(id).map_or_else(no_tensor, |info| info.ty.clone())).collect()
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

    pub(super) fn is_new(&self, id: TensorId) -> bool {
        self.current.get(id.0 as usize).is_some_and(Option::is_none)
    }

    pub(super) fn bind_results(
        &mut self,
        call: &Call,
        parent: usize,
        name: &dyn Fn() -> String,
    ) -> Result<()> {
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
}

/// Whether a call copies elements that lie around its operand in memory, at strides of its own.
fn reads_around_its_operand(call: &Call) -> bool {
    matches!(call.op.as_str(), "aten::as_strided_copy" | "aten::_reshape_alias_copy")
}
