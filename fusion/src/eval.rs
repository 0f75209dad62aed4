//! The meaning of primitive graphs, slow and obvious, on row-major data.
//!
//! In [`Precision::Typed`] every node computes in its own element type, as [`tilefuse_block::eval`] defines it, and
//! `f16` and `bf16` values round after every node. In [`Precision::Exact`] floating-point values are kept in `f64`
//! and round only where the graph casts; what comes in and goes out has the graph's types either way.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};
use tilefuse_block::eval as block;
use tilefuse_block::{Data, Elem, Literal, ReduceFn, ScalarFn};

use crate::combiner::{Arithmetic, Combiner, Members};
use crate::contraction::Contraction;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::types::{Dims, row_major};

/// How floating-point values are kept between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// In the element type of the node.
    Typed,
    /// In `f64`; casts round.
    Exact,
}

/// The tensors that a graph reads, by the numbers of its [`Op::Input`], [`Op::Param`] and [`Op::Const`] nodes, in
/// row-major order whatever the strides of their types.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// Inputs.
    pub inputs: &'a [Data],
    /// Live tensors of the model.
    pub params: &'a [Data],
    /// Constants.
    pub consts: &'a [Data],
}

/// What a graph computes, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The outputs.
    pub outputs: Vec<Data>,
    /// The values of the write-backs.
    pub updates: Vec<Data>,
}

/// Why a graph cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A source is missing, or has another type or number of elements than its node.
    #[error("the data of {0} is missing or does not fit its type")]
    Source(String),
    /// A libtorch call.
    #[error("{0} runs in libtorch")]
    Extern(String),
    /// A node that [`verify`](crate::verify()) refuses.
    #[error("the graph is not well-formed at {0}")]
    Malformed(String),
}

type Values = HashMap<ValueRef, Data>;

/// Evaluates a primitive graph.
///
/// # Errors
/// Where sources are missing or a node has no meaning here.
pub fn eval(graph: &Graph, sources: Sources<'_>, precision: Precision) -> Result<Evaluated, EvalError> {
    let malformed = |what: &str| EvalError::Malformed(what.to_string());
    let mut values = Values::new();
    let order = graph.topological().ok_or_else(|| malformed("a cycle"))?;
    for id in order {
        let results = node(graph, id, sources, &values, precision)?;
        for (out, data) in results.into_iter().enumerate() {
            values.insert(ValueRef { node: id, out: out as u16 }, data);
        }
    }
    let take = |value: &ValueRef| {
        let data = values.get(value).ok_or_else(|| malformed("an output"))?;
        let elem = graph.ty(*value).dtype.elem().ok_or_else(|| malformed("an output"))?;
        Ok(if data.elem() == elem { data.clone() } else { block::cast(data, elem) })
    };
    Ok(Evaluated {
        outputs: graph.outputs.iter().map(take).collect::<Result<_, _>>()?,
        updates: graph.updates.iter().map(|u| take(&u.value)).collect::<Result<_, _>>()?,
    })
}

/// The type in which a value of this type is kept.
fn kept(elem: Elem, precision: Precision) -> Elem {
    if precision == Precision::Exact && elem.is_float() { Elem::F64 } else { elem }
}

fn keep(data: Data, precision: Precision) -> Data {
    let elem = kept(data.elem(), precision);
    if elem == data.elem() { data } else { block::cast(&data, elem) }
}

fn node(
    graph: &Graph,
    id: NodeId,
    sources: Sources<'_>,
    values: &Values,
    precision: Precision,
) -> Result<Members<Data>, EvalError> {
    let node = graph.node(id);
    let place = || format!("node {}", id.index());
    let source = |list: &[Data], kind: &str, n: u32| {
        let name = || EvalError::Source(format!("{kind} {n}"));
        let data = list.get(n as usize).ok_or_else(name)?;
        let fits = node
            .outs
            .first()
            .is_some_and(|ty| ty.dtype.elem() == Some(data.elem()) && ty.numel() == data.len() as i64);
        if fits { Ok(smallvec![keep(data.clone(), precision)]) } else { Err(name()) }
    };
    match &node.op {
        Op::Input(n) => return source(sources.inputs, "input", *n),
        Op::Param(n) => return source(sources.params, "param", *n),
        Op::Const(n) => return source(sources.consts, "const", *n),
        Op::Aten(call) => return Err(EvalError::Extern(call.full_name())),
        Op::Kernel(kind) => return Err(EvalError::Extern(format!("kernel {}", kind.name()))),
        _ => {}
    }
    let operands = graph.operands(id);
    let data = operands.iter().map(|v| values.get(v)).collect::<Option<SmallVec<[&Data; 4]>>>();
    let shapes: SmallVec<[&[i64]; 4]> = operands.iter().map(|&v| graph.ty(v).shape.as_slice()).collect();
    let computed = data.and_then(|data| match &node.op {
        Op::Reduce { combine, dims } => reduce(*combine, dims, &data, shapes.first()?),
        _ => Some(smallvec![compute(graph, id, &data, &shapes, precision)?]),
    });
    computed.ok_or_else(|| EvalError::Malformed(place()))
}

fn compute(
    graph: &Graph,
    id: NodeId,
    data: &[&Data],
    shapes: &[&[i64]],
    precision: Precision,
) -> Option<Data> {
    let ty = graph.ty(id.into());
    let (elem, shape) = (ty.dtype.elem()?, ty.shape.as_slice());
    let len = usize::try_from(ty.numel()).ok()?;
    match &graph.node(id).op {
        Op::Scalar(literal) => Some(keep(Data::repeat(*literal, len), precision)),
        Op::Map(function) => block::map(*function, data),
        Op::Cast => Some(keep(block::cast(data.first()?, elem), precision)),
        Op::Iota { dim } => {
            let positions =
                (0..len).map(|i| Literal::of(elem, coordinate(shape, i, usize::from(*dim)) as f64));
            Some(keep(Data::from_literals(elem, positions), precision))
        }
        Op::View(view) => rearranged(view, data.first()?, shapes.first()?, shape),
        Op::Concat { dim } => concat(data, shapes, usize::from(*dim)),
        Op::Contract(pairs) => contract(pairs, data, shapes, elem, precision),
        Op::Gather { dim } => {
            let &[source, index] = data else { return None };
            let (from, dim, index) = (*shapes.first()?, usize::from(*dim), index.to_i64()?);
            let at = |i: usize| {
                let found = *index.get(i)?;
                let mut position = coordinates(shape, i);
                *position.get_mut(dim)? = found;
                (0..*from.get(dim)?).contains(&found).then(|| linear(from, &position))
            };
            source.pick(&(0..len).map(at).collect::<Option<Vec<_>>>()?)
        }
        Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) | Op::Kernel(_) | Op::Reduce { .. } => None,
    }
}

/// The elements of the rows that are reduced, in order.
struct Rows {
    count: usize,
    extent: usize,
}

impl Rows {
    /// What there is one of in each row, for each of its elements.
    fn spread(&self, data: &Data) -> Option<Data> {
        let places = match data.len() {
            n if n == self.count => (0..self.count * self.extent).map(|i| i / self.extent).collect(),
            1 => vec![0; self.count * self.extent],
            _ => return Some(data.clone()),
        };
        data.pick(&places)
    }
}

impl Arithmetic for Rows {
    type Value = Data;
    type Error = ();

    fn map(&mut self, function: ScalarFn, args: &[&Data]) -> Result<Data, ()> {
        let len = args.iter().map(|data| data.len()).max().unwrap_or(0);
        let alike = |data: &&Data| if data.len() == len { Some((*data).clone()) } else { self.spread(data) };
        let args = args.iter().map(alike).collect::<Option<Vec<Data>>>().ok_or(())?;
        block::map(function, &args.iter().collect::<Vec<_>>()).ok_or(())
    }

    fn number(&mut self, literal: Literal) -> Data {
        Data::repeat(literal, self.count)
    }

    fn known(&self, _: &Data) -> Option<Literal> {
        None
    }

    fn elem(&self, data: &Data) -> Elem {
        data.elem()
    }

    fn reduce(&mut self, function: ReduceFn, data: &Data) -> Result<Data, ()> {
        block::reduce(function, data, None, [self.count, self.extent, 1]).ok_or(())
    }

    fn extent(&self) -> i64 {
        self.extent as i64
    }
}

fn reduce(combine: Combiner, dims: &[u8], data: &[&Data], from: &[i64]) -> Option<Members<Data>> {
    let dims: Vec<usize> = dims.iter().map(|&d| usize::from(d)).collect();
    let others = (0..from.len()).filter(|d| !dims.contains(d));
    let count = others.clone().map(|d| from[d] as usize).product();
    let order: Vec<usize> = others.chain(dims.iter().copied()).collect();
    let extent = dims.iter().map(|&d| from.get(d).map(|&n| n as usize)).product::<Option<usize>>()?;
    let places = permuted(from, &order);
    let operands = data.iter().map(|data| data.pick(&places)).collect::<Option<Members<Data>>>()?;
    let mut rows = Rows { count, extent };
    let elements = combine.elements(&mut rows, &operands).ok()?;
    combine.reduce(&mut rows, &elements).ok()
}

/// All products, as a tensor with the dimensions batch, left, right, summed, and their sums.
fn contract(
    pairs: &Contraction,
    data: &[&Data],
    shapes: &[&[i64]],
    elem: Elem,
    precision: Precision,
) -> Option<Data> {
    let (&[lhs, rhs], &[left, right]) = (data, shapes) else { return None };
    let shape = pairs.shape(left, right)?;
    let summed = pairs.sum.iter().map(|&(l, _)| left[usize::from(l)]).product::<i64>() as usize;
    let others = |operand: usize, shape: &[i64]| {
        let others = pairs.others(operand, shape.len());
        others.iter().map(|&d| shape[usize::from(d)]).product::<i64>() as usize
    };
    let (rows, columns) = (others(0, left), others(1, right));
    let order = |operand: usize, shape: &[i64]| {
        let order = pairs.order(operand, shape.len());
        permuted(shape, &order.into_iter().map(usize::from).collect::<Vec<_>>())
    };
    let (lhs, rhs) = (lhs.pick(&order(0, left))?, rhs.pick(&order(1, right))?);
    let len = shape.iter().product::<i64>() as usize;
    let at = |place: &dyn Fn(usize, usize, usize) -> usize| -> Vec<usize> {
        (0..len)
            .flat_map(|i| {
                let (b, m, n) = (i / (rows * columns), i / columns % rows, i % columns);
                let first = place(b, m, n) * summed;
                first..first + summed
            })
            .collect()
    };
    let lhs = lhs.pick(&at(&|b, m, _| b * rows + m))?;
    let rhs = rhs.pick(&at(&|b, _, n| b * columns + n))?;
    let to = kept(elem, precision);
    let products = block::map(ScalarFn::Mul, &[&block::cast(&lhs, to), &block::cast(&rhs, to)])?;
    block::reduce(ReduceFn::Sum, &products, None, [len, summed, 1])
}

/// The coordinates of the element at a row-major position.
fn coordinates(shape: &[i64], position: usize) -> Dims {
    let mut rest = position as i64;
    let mut found = Dims::from_elem(0, shape.len());
    for d in (0..shape.len()).rev() {
        found[d] = rest % shape[d].max(1);
        rest /= shape[d].max(1);
    }
    found
}

fn coordinate(shape: &[i64], position: usize, dim: usize) -> i64 {
    coordinates(shape, position).get(dim).copied().unwrap_or(0)
}

/// The row-major position of coordinates.
fn linear(shape: &[i64], coordinates: &[i64]) -> usize {
    let strides = row_major(shape);
    strides.iter().zip(coordinates).map(|(s, c)| s * c).sum::<i64>() as usize
}

/// For each element of the permuted tensor its position in the operand.
fn permuted(from: &[i64], perm: &[usize]) -> Vec<usize> {
    let to: Dims = perm.iter().map(|&d| from[d]).collect();
    let len = to.iter().product::<i64>() as usize;
    (0..len)
        .map(|i| {
            let mut position = Dims::from_elem(0, from.len());
            for (&d, &c) in perm.iter().zip(&coordinates(&to, i)) {
                position[d] = c;
            }
            linear(from, &position)
        })
        .collect()
}

fn rearranged(view: &View, data: &Data, from: &[i64], to: &[i64]) -> Option<Data> {
    let len = to.iter().product::<i64>() as usize;
    let mapped = |map: &dyn Fn(&mut Dims)| {
        let indices = (0..len).map(|i| {
            let mut position = coordinates(to, i);
            map(&mut position);
            linear(from, &position)
        });
        data.pick(&indices.collect::<Vec<_>>())
    };
    match view {
        View::Reshape => (data.len() == len).then(|| data.clone()),
        View::Permute(perm) => {
            data.pick(&permuted(from, &perm.iter().map(|&d| usize::from(d)).collect::<Vec<_>>()))
        }
        View::Expand => mapped(&|position| {
            for (c, &n) in position.iter_mut().zip(from) {
                *c = if n == 1 { 0 } else { *c };
            }
        }),
        View::Slice { dim, start, step } => mapped(&|position| {
            if let Some(c) = position.get_mut(usize::from(*dim)) {
                *c = start + *c * step;
            }
        }),
        View::Flip(dims) => mapped(&|position| {
            for d in dims.iter().map(|&d| usize::from(d)) {
                position[d] = from[d] - 1 - position[d];
            }
        }),
        View::Window(windows) => mapped(&|position| {
            let elements: Dims = position.drain(from.len()..).collect();
            for (window, k) in windows.iter().zip(elements) {
                let c = &mut position[usize::from(window.dim)];
                *c = *c * window.stride + k * window.dilation;
            }
        }),
        View::Pad { low, interior, fill } => {
            let fill = block::cast(&Data::repeat(*fill, len), data.elem());
            if data.is_empty() {
                return Some(fill);
            }
            let inside = |i: usize| {
                let position: Dims = coordinates(to, i).iter().zip(low).map(|(c, l)| c - l).collect();
                let on = position.iter().zip(interior).all(|(&c, &n)| c.rem_euclid(n + 1) == 0);
                let position: Dims =
                    position.iter().zip(interior).map(|(c, n)| c.div_euclid(n + 1)).collect();
                let within = position.iter().zip(from).all(|(&c, &n)| (0..n).contains(&c));
                (on && within).then(|| linear(from, &position))
            };
            let places: Vec<Option<usize>> = (0..len).map(inside).collect();
            let picked = data.pick(&places.iter().map(|p| p.unwrap_or(0)).collect::<Vec<_>>())?;
            let mask = Data::Bool(places.iter().map(Option::is_some).collect());
            block::map(ScalarFn::Select, &[&mask, &picked, &fill])
        }
    }
}

fn concat(data: &[&Data], shapes: &[&[i64]], dim: usize) -> Option<Data> {
    let outer: i64 = shapes.first()?.get(..dim)?.iter().product();
    let mut literals = Vec::new();
    for row in 0..outer as usize {
        for (part, shape) in data.iter().zip(shapes) {
            let inner = shape.get(dim..)?.iter().product::<i64>() as usize;
            literals
                .extend((row * inner..(row + 1) * inner).map(|i| part.get(i)).collect::<Option<Vec<_>>>()?);
        }
    }
    Some(Data::from_literals(data.first()?.elem(), literals))
}
