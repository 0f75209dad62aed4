//! The invariants of graphs, checked after each pass in debug builds.
//!
//! Of every graph:
//! - no cycle; operands are numbered 0, 1, ... without gaps; every value named is a result of a node of the graph;
//! - as many strides as sizes; no size is negative;
//! - inputs, parameters and constants have one result and no operands; at most one node for each of them;
//! - a write-back's target is an input or a parameter, written once, and its value has the target's element type,
//!   shape and device;
//! - aliases are none, or as many as outputs; their targets are inputs, parameters or other outputs; there are no more
//!   buffers than outputs, and offsets are those of inputs and parameters;
//! - tensors in arguments of a call name its operands; origins are in the list;
//! - what a library call computes names operands of the call, of types and shapes that give its result, but where a kernel computes
//!   it, which may write the result in another order.
//!
//! Of primitive nodes, which all have one result but reductions of tuples:
//! - operands and result are of element types that kernels know, on one device;
//! - *scalar*: rank 0, the literal's type. *map*: as many operands as the function takes, of the result's shape and
//!   of types that give the result's. *cast*: the operand's shape. *iota*: an integer type, a dimension of the shape;
//! - *view*: the operand's type. *reshape* as many elements; *permute* a permutation; *expand* the same rank,
//!   sizes equal or 1; *slice* within the operand, step at least 1; *flip* dimensions ascending; *pad* the operand
//!   within the result, the fill of its type; *window* dimensions ascending, windows within them, behind all dimensions
//!   one for each window;
//! - *concat*: operands of the result's type, whose sizes along the dimension add up and are equal elsewhere;
//! - *reduce*: dimensions ascending and missing from the results; as many operands of one shape as the combiner takes, of types
//!   that it takes, and as many results of the same types and of one shape;
//! - *contract*: operands of one type, each dimension in at most one pair, paired sizes equal; the type that sums are held
//!   in;
//! - *gather*: source and index of one rank, the index of the result's shape and of `i32` or `i64`, the source's sizes
//!   equal to the result's but along the dimension.

use crate::combiner::Combiner;
use crate::contraction::{Contraction, Window, accumulator};
use crate::graph::{AliasTarget, Graph, NodeId, Op, ValueRef, View, padded_size};
use crate::recording::Arg;
use crate::types::{Dims, TensorType};
use tilefuse_block::{Elem, ScalarFn};

/// A graph that is not well-formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct VerifyError {
    /// The node, output or write-back.
    pub place: String,
    /// The invariant that does not hold.
    pub what: &'static str,
}

type Check = Result<(), &'static str>;

fn ensure(holds: bool, what: &'static str) -> Check {
    if holds { Ok(()) } else { Err(what) }
}

/// Checks a graph of either level.
///
/// # Errors
/// The first invariant that does not hold.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    let at = |place: String| move |what| VerifyError { place, what };
    ensure(graph.topological().is_some(), "there is a cycle").map_err(at("the graph".into()))?;
    let mut sources = std::collections::HashSet::new();
    for id in graph.ids() {
        node(graph, id, &mut sources).map_err(at(format!(
            "node {} ({})",
            id.index(),
            name(&graph.node(id).op)
        )))?;
    }
    for (i, &value) in graph.outputs.iter().enumerate() {
        exists(graph, value).map_err(at(format!("output {i}")))?;
    }
    let mut written = std::collections::HashSet::new();
    for (i, update) in graph.updates.iter().enumerate() {
        let place = at(format!("write-back {i}"));
        exists(graph, update.value)
            .and_then(|()| write_back(graph, update.target, update.value))
            .map_err(place)?;
        ensure(written.insert(update.target), "the target is written twice")
            .map_err(at(format!("write-back {i}")))?;
    }
    aliases(graph).map_err(at("the aliases".into()))
}

fn name(op: &Op) -> String {
    match op {
        Op::Aten(call) => call.full_name(),
        Op::Kernel(kind) => format!("kernel {}", kind.name()),
        Op::Map(function) => format!("map {}", function.name()),
        Op::View(View::Reshape) => "view reshape".into(),
        Op::View(View::Permute(_)) => "view permute".into(),
        Op::View(View::Expand) => "view expand".into(),
        Op::View(View::Slice { .. }) => "view slice".into(),
        Op::View(View::Flip(_)) => "view flip".into(),
        Op::View(View::Pad { .. }) => "view pad".into(),
        Op::View(View::Window(_)) => "view window".into(),
        Op::Input(_) => "input".into(),
        Op::Param(_) => "param".into(),
        Op::Const(_) => "const".into(),
        Op::Scalar(_) => "scalar".into(),
        Op::Cast => "cast".into(),
        Op::Iota { .. } => "iota".into(),
        Op::Concat { .. } => "concat".into(),
        Op::Reduce { combine, .. } => format!("reduce {}", combine.name()),
        Op::Contract(_) => "contract".into(),
        Op::Gather { .. } => "gather".into(),
    }
}

fn exists(graph: &Graph, value: ValueRef) -> Check {
    let found = graph.contains(value.node) && graph.node(value.node).outs.len() > usize::from(value.out);
    ensure(found, "names a value that does not exist")
}

fn write_back(graph: &Graph, target: NodeId, value: ValueRef) -> Check {
    exists(graph, target.into())?;
    ensure(
        matches!(graph.node(target).op, Op::Input(_) | Op::Param(_)),
        "the target is no input or parameter",
    )?;
    let (to, from) = (graph.ty(target.into()), graph.ty(value));
    ensure(
        to.dtype == from.dtype && to.shape == from.shape && to.device == from.device,
        "the value is not of the target's type",
    )
}

fn aliases(graph: &Graph) -> Check {
    let count = graph.aliases.len();
    ensure(graph.buffers.len() <= graph.outputs.len(), "there are more buffers than outputs")?;
    for &node in &graph.offsets {
        exists(graph, node.into())?;
        let source = matches!(graph.node(node).op, Op::Input(_) | Op::Param(_));
        ensure(source, "the offset of something else than an input or parameter")?;
    }
    ensure(count == 0 || count == graph.outputs.len(), "there are not as many as outputs")?;
    for (i, alias) in graph.aliases.iter().enumerate() {
        match alias.as_ref().map(|a| a.target) {
            None => {}
            Some(AliasTarget::Node(node)) => {
                exists(graph, node.into())?;
                let source = matches!(graph.node(node).op, Op::Input(_) | Op::Param(_));
                ensure(source, "a target is no input or parameter")?;
            }
            Some(AliasTarget::Output(n)) => {
                ensure((n as usize) < graph.outputs.len() && n as usize != i, "a target is no other output")?;
            }
        }
    }
    Ok(())
}

fn node(graph: &Graph, id: NodeId, sources: &mut std::collections::HashSet<(u8, u32)>) -> Check {
    let node = graph.node(id);
    let operands = graph.operands(id);
    let mut positions: Vec<u16> = graph.operand_positions(id);
    positions.sort_unstable();
    ensure(
        positions.iter().enumerate().all(|(i, &p)| usize::from(p) == i),
        "operands are not numbered 0, 1, ...",
    )?;
    for &operand in &operands {
        ensure(
            graph.node(operand.node).outs.len() > usize::from(operand.out),
            "an operand names a result that does not exist",
        )?;
    }
    for ty in &node.outs {
        ensure(ty.shape.len() == ty.strides.len(), "not as many strides as sizes")?;
        ensure(ty.shape.iter().all(|&n| n >= 0), "a size is negative")?;
    }
    ensure(node.origin.is_none_or(|o| (o as usize) < graph.origins.len()), "the origin is not in the list")?;
    match &node.op {
        Op::Input(n) => source(graph, id, sources.insert((0, *n))),
        Op::Param(n) => source(graph, id, sources.insert((1, *n))),
        Op::Const(n) => source(graph, id, sources.insert((2, *n))),
        Op::Aten(call) => {
            call_args(&call.args, operands.len())?;
            let types: Vec<&TensorType> = operands.iter().map(|&v| graph.ty(v)).collect();
            // A kernel may write the result in another order.
            let form = call.form.as_ref().filter(|_| !matches!(node.kernel, Some(Ok(_))));
            form.map_or(Ok(()), |form| form.check(&types, &node.outs))
        }
        Op::Kernel(_) => ensure(node.outs.len() == 1, "not one result"),
        op => {
            let types: Vec<&TensorType> = operands.iter().map(|&v| graph.ty(v)).collect();
            let results = if let Op::Reduce { combine, .. } = op { combine.arity() } else { 1 };
            ensure(node.outs.len() == results, "not as many results as the operator has")?;
            primitive(op, &types, &node.outs[0])?;
            match op {
                Op::Reduce { combine, dims } => reduce(*combine, dims, &types, &node.outs),
                _ => Ok(()),
            }
        }
    }
}

fn source(graph: &Graph, id: NodeId, first: bool) -> Check {
    ensure(first, "the same input, parameter or constant twice")?;
    ensure(graph.node(id).outs.len() == 1 && graph.operands(id).is_empty(), "not one result and no operands")
}

fn call_args(args: &[(String, Arg<u16>)], operands: usize) -> Check {
    let within = |t: &u16| usize::from(*t) < operands;
    let all = args.iter().all(|(_, arg)| match arg {
        Arg::Tensor(t) => within(t),
        Arg::Tensors(list) => list.iter().flatten().all(within),
        _ => true,
    });
    ensure(all, "an argument names an operand that does not exist")
}

/// Number of operands.
fn arity(op: &Op) -> Option<usize> {
    match op {
        Op::Map(function) => Some(function.arity()),
        Op::Cast | Op::View(_) => Some(1),
        Op::Reduce { combine, .. } => Some(combine.arity()),
        Op::Contract(_) | Op::Gather { .. } => Some(2),
        Op::Concat { .. } => None,
        _ => Some(0),
    }
}

fn primitive(op: &Op, operands: &[&TensorType], out: &TensorType) -> Check {
    ensure(arity(op).is_none_or(|n| n == operands.len()), "wrong number of operands")?;
    let elem = out.dtype.elem().ok_or("an element type that kernels do not know")?;
    let elems = operands.iter().map(|ty| ty.dtype.elem()).collect::<Option<Vec<Elem>>>();
    let elems = elems.ok_or("an element type that kernels do not know")?;
    ensure(
        operands.iter().all(|ty| ty.device == out.device),
        "operands and result are on different devices",
    )?;
    match op {
        Op::Scalar(literal) => {
            let fits = out.rank() == 0 || out.numel() == 0;
            ensure(fits && literal.elem == elem, "the literal is not of the result's type")
        }
        Op::Map(function) => map(*function, operands, &elems, out, elem),
        Op::Cast => ensure(operands[0].shape == out.shape, "the shape changes"),
        Op::Iota { dim } => {
            ensure(elem.is_int() && usize::from(*dim) < out.rank(), "no integer type, or no such dimension")
        }
        Op::View(view) => {
            ensure(elems[0] == elem, "the element type changes")?;
            arrangement(view, &operands[0].shape, &out.shape, elem)
        }
        Op::Concat { dim } => concat(usize::from(*dim), operands, out),
        Op::Contract(pairs) => contract(pairs, operands, &elems, out),
        Op::Gather { dim } => gather(usize::from(*dim), operands, &elems, out),
        Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) | Op::Kernel(_) | Op::Reduce { .. } => {
            Ok(())
        }
    }
}

fn map(function: ScalarFn, operands: &[&TensorType], elems: &[Elem], out: &TensorType, elem: Elem) -> Check {
    ensure(function.result(elems) == Some(elem), "the function does not give this type for these operands")?;
    ensure(operands.iter().all(|ty| ty.shape == out.shape), "an operand has another shape than the result")
}

fn arrangement(view: &View, from: &[i64], to: &[i64], elem: Elem) -> Check {
    let same_rank = ensure(from.len() == to.len(), "the rank changes");
    match view {
        View::Reshape => {
            ensure(from.iter().product::<i64>() == to.iter().product(), "the number of elements changes")
        }
        View::Permute(perm) => {
            let mut sorted = perm.to_vec();
            sorted.sort_unstable();
            let is_permutation = sorted.iter().map(|&d| usize::from(d)).eq(0..from.len());
            ensure(is_permutation, "no permutation of the dimensions")?;
            let sizes = perm.iter().map(|&d| from[usize::from(d)]);
            ensure(to.iter().copied().eq(sizes), "the sizes are not the permuted ones")
        }
        View::Expand => {
            same_rank?;
            ensure(from.iter().zip(to).all(|(&a, &b)| a == b || a == 1), "a size other than 1 changes")
        }
        View::Slice { dim, start, step } => {
            same_rank?;
            let dim = usize::from(*dim);
            ensure(dim < from.len() && *start >= 0 && *step >= 1, "no such dimension, start or step")?;
            let others = (0..from.len()).all(|d| d == dim || from[d] == to[d]);
            let last =
                start.checked_add((to[dim] - 1).max(0).checked_mul(*step).ok_or("the step is too large")?);
            let within = to[dim] == 0 || last.is_some_and(|last| last < from[dim]);
            ensure(others && within, "not within the operand")
        }
        View::Flip(dims) => {
            let ascending = dims.windows(2).all(|w| w[0] < w[1]);
            let known = dims.iter().all(|&d| usize::from(d) < from.len());
            ensure(ascending && known && from == to, "no ascending dimensions of the operand's shape")
        }
        View::Pad { low, interior, fill } => {
            same_rank?;
            let per_dimension = low.len() == to.len() && interior.len() == to.len();
            ensure(fill.elem == elem && per_dimension, "the fill or the offsets do not fit")?;
            let all =
                (0..to.len()).all(|d| padded_size(low[d], from[d], interior[d]).is_some_and(|n| n <= to[d]));
            ensure(all, "the operand is not within the result")
        }
        View::Window(windows) => {
            let shape = Window::shape(windows, from);
            ensure(shape.as_deref() == Some(to), "the windows do not give the result's shape")
        }
    }
}

fn concat(dim: usize, operands: &[&TensorType], out: &TensorType) -> Check {
    ensure(!operands.is_empty() && dim < out.rank(), "no operands, or no such dimension")?;
    let fits = |ty: &&TensorType| {
        ty.dtype == out.dtype
            && ty.rank() == out.rank()
            && (0..out.rank()).all(|d| d == dim || ty.shape[d] == out.shape[d])
    };
    ensure(operands.iter().all(fits), "an operand does not fit the result")?;
    let sum = operands.iter().try_fold(0i64, |sum, ty| sum.checked_add(ty.shape[dim]));
    ensure(sum == Some(out.shape[dim]), "the sizes do not add up")
}

fn reduce(combine: Combiner, dims: &[u8], operands: &[&TensorType], outs: &[TensorType]) -> Check {
    let from = operands[0];
    let ascending = dims.windows(2).all(|w| w[0] < w[1]);
    ensure(ascending && dims.iter().all(|&d| usize::from(d) < from.rank()), "no ascending dimensions")?;
    ensure(operands.iter().all(|ty| ty.shape == from.shape), "the operands have different shapes")?;
    let rest: Dims =
        (0..from.rank()).filter(|&d| !dims.contains(&(d as u8))).map(|d| from.shape[d]).collect();
    ensure(outs.iter().all(|out| out.shape == rest), "the result's shape is not what is left")?;
    let elems = operands.iter().map(|ty| ty.dtype.elem()).collect::<Option<Vec<Elem>>>();
    let same =
        operands.iter().zip(outs).all(|(from, out)| from.dtype == out.dtype && from.device == out.device);
    ensure(elems.is_some_and(|e| combine.accepts(&e)) && same, "the combiner does not take this type")
}

fn contract(pairs: &Contraction, operands: &[&TensorType], elems: &[Elem], out: &TensorType) -> Check {
    ensure(elems[0] == elems[1], "the operands have different types")?;
    ensure(out.dtype.elem() == accumulator(elems[0]), "the result has not the type that sums are held in")?;
    let shape = pairs.shape(&operands[0].shape, &operands[1].shape);
    ensure(shape.as_ref() == Some(&out.shape), "the pairs of dimensions do not give the result's shape")
}

fn gather(dim: usize, operands: &[&TensorType], elems: &[Elem], out: &TensorType) -> Check {
    let (source, index) = (operands[0], operands[1]);
    ensure(matches!(elems[1], Elem::I32 | Elem::I64), "the index is not i32 or i64")?;
    ensure(source.dtype == out.dtype, "the element type changes")?;
    ensure(
        index.shape == out.shape && source.rank() == out.rank() && dim < out.rank(),
        "the ranks do not fit",
    )?;
    let others = (0..out.rank()).all(|d| d == dim || source.shape[d] == out.shape[d]);
    ensure(others, "a size other than the dimension's changes")
}
