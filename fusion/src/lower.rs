//! From functional calls to primitive operators.
//!
//! ```text
//! %1 = aten::silu(self=%0)   ->   %1 = map neg(%0)
//!                                 %2 = map exp(%1)
//!                                 %3 = map add(1, %2)
//!                                 %4 = map div(%0, %3)
//! ```
//!
//! Each family of operators has a file with a `register` function; a lowering that does not know an overload, an
//! argument or an element type declines, and the call stays [`Op::Aten`] (*extern*). Rules of number formats:
//!
//! - One scalar function on `f16` or `bf16` stays in that type. An operator of several steps computes in `f32` and
//!   is cast to its result type at the end, as libtorch rounds there too.
//! - Operands are cast to the recorded result type for arithmetic, and to the promoted type for comparisons.
//! - A value that a call of the functional graph computes keeps the strides of its recorded type; values between
//!   are row-major.

mod activation;
mod arith;
mod attention;
mod cast;
mod compare;
mod contract;
mod conv;
mod create;
mod cx;
mod einsum;
mod index;
mod loss;
mod norm;
mod pooling;
mod reduce;
mod registry;
mod softmax;
mod strided;
#[cfg(test)]
mod tests;
mod unary;

mod view;

use std::collections::HashMap;
use std::fmt;

use crate::args::Args;
use crate::graph::{AliasTarget, AtenCall, Graph, NodeId, Op, OutputAlias, Update, ValueRef};
use crate::rewrite_limit::Rewrites;
use crate::types::{Device, TensorType};
use cx::{Call, Cx};
use registry::{Lowering, Registry};

/// Why a graph cannot be lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// Operands do not come before their users.
    #[error("internal: the graph has a cycle")]
    Cycle,
    /// An output, write-back or operand names a value that is not in the graph.
    #[error("internal: the graph refers to a value that it does not hold")]
    Dangling,
}

/// Adds the lowerings of a family.
type Register = fn(&mut Registry);

/// The families, by the names of their files.
const FAMILIES: [(&str, Register); 17] = [
    ("arith", arith::register),
    ("unary", unary::register),
    ("compare", compare::register),
    ("activation", activation::register),
    ("cast", cast::register),
    ("create", create::register),
    ("reduce", reduce::register),
    ("pooling", pooling::register),
    ("softmax", softmax::register),
    ("norm", norm::register),
    ("loss", loss::register),
    ("view", view::register),
    ("strided", strided::register),
    ("index", index::register),
    ("contract", contract::register),
    ("conv", conv::register),
    ("attention", attention::register),
];

/// The lowerings of all families.
fn registry() -> Registry {
    let mut registry = Registry::default();
    FAMILIES.iter().for_each(|(_, register)| register(&mut registry));
    registry
}

/// Names of the operators of libtorch that have a lowering, without `aten::`, by family: the file of `fusion/src/lower/` that
/// registers them.
pub fn lowered_operators() -> Vec<(&'static str, Vec<&'static str>)> {
    let names = |register: Register| {
        let mut registry = Registry::default();
        register(&mut registry);
        registry.names().collect()
    };
    FAMILIES.iter().map(|&(family, register)| (family, names(register))).collect()
}

/// Lowers a functional graph to primitive operators. Calls without a lowering stay, as do outputs, write-backs,
/// aliases and origins.
///
/// # Errors
/// Where the graph is not well-formed.
pub fn lower(graph: &Graph) -> Result<Graph, LowerError> {
    lower_counted(graph, &Rewrites::default())
}

/// [`lower`] with no more calls lowered than rewrites may be made.
pub(crate) fn lower_counted(graph: &Graph, rewrites: &Rewrites) -> Result<Graph, LowerError> {
    let registry = registry();
    let mut cx = Cx::new();
    cx.device = graph.kernel_device();
    let mut values: HashMap<ValueRef, ValueRef> = HashMap::new();
    cx.graph.origins = graph.origins.clone();
    cx.graph.literals = graph.literals.clone();
    for id in graph.topological().ok_or(LowerError::Cycle)? {
        let node = graph.node(id);
        let operands = graph.operands(id).iter().map(|v| values.get(v).copied()).collect::<Option<Vec<_>>>();
        let operands = operands.ok_or(LowerError::Dangling)?;
        cx.begin(node.origin);
        let lowered = match &node.op {
            Op::Aten(call) if node.kernel.is_none() && !rewrites.is_spent() => {
                lower_call(&registry, &mut cx, call, &operands, &node.outs)
            }
            _ => None,
        };
        let lowered = lowered.filter(|_| rewrites.allow("lower"));
        let results = lowered.unwrap_or_else(|| {
            let copy = cx.graph.add(node.op.clone(), &operands, node.outs.iter().cloned(), node.origin);
            // A kernel that a user wrote is not compiled for a device without the plan's kernels: the call is libtorch's.
            let is_here = is_on(cx.device, operands.iter().map(|&v| cx.graph.ty(v)).chain(&node.outs));
            if is_here || matches!(node.kernel, Some(Err(_))) {
                cx.graph.node_mut(copy).kernel.clone_from(&node.kernel);
            }
            (0..node.outs.len()).map(|out| ValueRef { node: copy, out: out as u16 }).collect()
        });
        for (out, value) in results.into_iter().enumerate() {
            values.insert(ValueRef { node: id, out: out as u16 }, value);
        }
    }
    finish(graph, cx.graph, &values)
}

fn finish(from: &Graph, mut to: Graph, values: &HashMap<ValueRef, ValueRef>) -> Result<Graph, LowerError> {
    let mapped = |v: ValueRef| values.get(&v).copied().ok_or(LowerError::Dangling);
    let node = |n: NodeId| mapped(n.into()).map(|v| v.node);
    to.outputs = from.outputs.iter().map(|&v| mapped(v)).collect::<Result<_, _>>()?;
    for update in &from.updates {
        to.updates.push(Update { target: node(update.target)?, value: mapped(update.value)? });
    }
    for alias in &from.aliases {
        let alias = alias.as_ref().map(|alias| {
            let target = match alias.target {
                AliasTarget::Node(target) => AliasTarget::Node(node(target)?),
                output => output,
            };
            Ok(OutputAlias { target, ..alias.clone() })
        });
        to.aliases.push(alias.transpose()?);
    }
    to.buffers = from.buffers.clone();
    to.offsets = from.offsets.iter().map(|&n| node(n)).collect::<Result<_, _>>()?;
    to.remove_unused();
    Ok(to)
}

/// Whether generated code can hold these tensors: their elements have known types.
fn supported<'t>(mut types: impl Iterator<Item = &'t TensorType>) -> bool {
    types.all(|ty| ty.dtype.elem().is_some() && !matches!(ty.device, Device::Other(_)))
}

/// Whether these tensors are where a plan's kernels run.
fn is_on<'t>(device: Device, mut types: impl Iterator<Item = &'t TensorType>) -> bool {
    types.all(|ty| ty.device == device)
}

/// Why a call stays a call of libtorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLowered {
    /// There is no lowering of its operator.
    Operator,
    /// It draws random numbers, whose sequence is libtorch's.
    Random,
    /// It writes tensors in a way that functionalization has no operator without for.
    Writes,
    /// It has a tensor that kernels cannot hold.
    Tensors,
    /// It has a tensor on another device than the one that the plan's kernels run on.
    Device,
    /// The lowering does not take its overload, its arguments, or elements of these types.
    Arguments,
}

impl fmt::Display for NotLowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotLowered::Operator => "the operator has no lowering",
            NotLowered::Random => "it draws random numbers, whose sequence is libtorch's",
            NotLowered::Writes => "it writes its operands, and is no operator with results alone",
            NotLowered::Tensors => "kernels hold no tensors of its kinds",
            NotLowered::Device => {
                "it has a tensor on another device than the one that the plan's kernels run on"
            }
            NotLowered::Arguments => {
                "the operator's lowering does not take this overload, these arguments or element types"
            }
        })
    }
}

/// Why a call of libtorch that a plan runs was not lowered; the lowering itself may still have declined it.
pub(crate) fn not_lowered<'t>(
    call: &AtenCall,
    operands: impl Iterator<Item = &'t TensorType> + Clone,
    outs: &'t [TensorType],
    kernels: Device,
) -> NotLowered {
    let types = operands.chain(outs);
    match lowering(&registry(), call, outs) {
        Err(reason) => reason,
        Ok(_) if !supported(types.clone()) => NotLowered::Tensors,
        Ok(_) if !is_on(kernels, types) => NotLowered::Device,
        Ok(_) => NotLowered::Arguments,
    }
}

/// The lowering of a call.
fn lowering(registry: &Registry, call: &AtenCall, outs: &[TensorType]) -> Result<Lowering, NotLowered> {
    let known = call.op.strip_prefix("aten::").and_then(|name| registry.get(name));
    let lowering = known.ok_or(NotLowered::Operator)?;
    if call.random && Args(&call.args).bool("train") != Some(false) {
        return Err(NotLowered::Random);
    }
    if !call.writes.is_empty() || outs.is_empty() {
        return Err(NotLowered::Writes);
    }
    Ok(lowering)
}

fn lower_call(
    registry: &Registry,
    cx: &mut Cx,
    call: &AtenCall,
    operands: &[ValueRef],
    outs: &[TensorType],
) -> Option<Vec<ValueRef>> {
    let name = call.op.strip_prefix("aten::")?;
    let lowering = lowering(registry, call, outs).ok()?;
    let operands = &operands.iter().map(|&v| cx.value_of(v)).collect::<Vec<_>>();
    let types = || operands.iter().map(|&v| cx.graph.ty(v)).chain(outs);
    if !supported(types()) || !is_on(cx.device, types()) {
        return None;
    }
    let call = Call { name, overload: &call.overload, args: Args(&call.args), operands, outs };
    let results = match lowering {
        Lowering::One(one) => vec![one(cx, &call)?],
        Lowering::Many(many) => many(cx, &call)?,
    };
    cx.finish(&call, results)
}
