//! Values of a primitive graph that follow from tensors of the model alone, computed by libtorch.

use std::collections::{BTreeSet, HashMap};

use tch::Tensor;
use tilefuse_block::{Literal, ReduceFn, ScalarFn};
use tilefuse_fusion::combiner::Combiner;
use tilefuse_fusion::{Arg, AtenCall, Contraction, DType, Graph, Op, TensorType, ValueRef, View};

use super::steps::new_call;
use crate::torch::Meta;

/// Values of more elements are not computed.
const MAX_ELEMENTS: i64 = 1 << 26;

/// Operators between a value and the tensors of the model.
const MAX_DEPTH: u32 = 64;

/// What is known of a graph whose parameters and constants are these tensors.
pub(super) struct Evaluator<'a> {
    graph: &'a Graph,
    params: &'a [Tensor],
    consts: &'a [Tensor],
    values: HashMap<ValueRef, Option<Tensor>>,
    /// Parameters that were read.
    pub(super) read: BTreeSet<u32>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(graph: &'a Graph, params: &'a [Tensor], consts: &'a [Tensor]) -> Evaluator<'a> {
        Evaluator { graph, params, consts, values: HashMap::new(), read: BTreeSet::new() }
    }

    /// The value, where no input and no random number has a part in it.
    pub(super) fn value(&mut self, value: ValueRef) -> Option<Tensor> {
        self.at(value, MAX_DEPTH)
    }

    fn at(&mut self, value: ValueRef, depth: u32) -> Option<Tensor> {
        if let Some(found) = self.values.get(&value) {
            return found.as_ref().map(Tensor::shallow_clone);
        }
        let small = self.graph.node(value.node).outs.iter().all(|ty| ty.numel() <= MAX_ELEMENTS);
        let found = if small && depth > 0 { self.compute(value, depth - 1) } else { None };
        let found = found.filter(|tensor| is_of(tensor, self.graph.ty(value)));
        self.values.insert(value, found.as_ref().map(Tensor::shallow_clone));
        found
    }

    fn compute(&mut self, value: ValueRef, depth: u32) -> Option<Tensor> {
        let graph = self.graph;
        match &graph.node(value.node).op {
            Op::Input(_) => return None,
            Op::Param(slot) => {
                let written = graph.updates.iter().any(|u| u.target == value.node);
                self.read.insert(*slot);
                return self.params.get(*slot as usize).filter(|_| !written).map(Tensor::shallow_clone);
            }
            Op::Const(slot) => return self.consts.get(*slot as usize).map(Tensor::shallow_clone),
            Op::Aten(call) if call.random || !call.writes.is_empty() => return None,
            _ => {}
        }
        let operands =
            graph.operands(value.node).iter().map(|&v| self.at(v, depth)).collect::<Option<Vec<_>>>()?;
        apply(&graph.node(value.node).op, &operands, graph.ty(value), value.out)
    }
}

/// Whether a tensor has the element type and shape of a type.
fn is_of(tensor: &Tensor, ty: &TensorType) -> bool {
    let dtype = Meta::of(tensor).is_ok_and(|meta| DType::from_scalar_type(meta.dtype) == ty.dtype);
    dtype && tensor.size() == ty.shape[..]
}

/// The result of an operator, of this number.
pub(super) fn apply(op: &Op, operands: &[Tensor], ty: &TensorType, out: u16) -> Option<Tensor> {
    match op {
        Op::Aten(call) => run(call, operands, out),
        Op::Iota { dim } => {
            let size = *ty.shape.get(usize::from(*dim))?;
            let args = [Arg::Int(size), Arg::DType(ty.dtype), Arg::None, Arg::Device(ty.device)];
            let along: Vec<i64> =
                (0..ty.rank()).map(|d| if d == usize::from(*dim) { size } else { 1 }).collect();
            let row = run(&call("arange", args.into()), &[], 0)?;
            row.f_view(&along[..]).and_then(|row| row.f_expand(&ty.shape[..], false)).ok()
        }
        Op::Contract(pairs) => {
            let widen = call("to.dtype", vec![Arg::Tensor(0), Arg::DType(ty.dtype)]);
            let wide = |tensor: &Tensor| run(&widen, std::slice::from_ref(tensor), 0);
            let wide = operands.iter().map(wide).collect::<Option<Vec<_>>>()?;
            let ranks: Vec<usize> = wide.iter().map(Tensor::dim).collect();
            run(&call("einsum", vec![Arg::Str(equation(pairs, &ranks)?), list(wide.len())]), &wide, 0)
        }
        _ => {
            let (name, args) = primitive(op, operands, ty)?;
            run(&call(name, args), operands, 0)
        }
    }
}

fn run(call: &AtenCall, operands: &[Tensor], out: u16) -> Option<Tensor> {
    let results = new_call(call).and_then(|call| call.run(&operands.iter().collect::<Vec<_>>())).ok()?;
    results.into_iter().nth(usize::from(out))
}

/// A call of `name` or `name.overload`, with the leading arguments of its schema.
fn call(name: &str, args: Vec<Arg<u16>>) -> AtenCall {
    let (op, overload) = name.split_once('.').unwrap_or((name, ""));
    AtenCall::new(&format!("aten::{op}"), overload, args.into_iter().map(|arg| ("", arg)))
}

/// All operands, as a list.
fn list(operands: usize) -> Arg<u16> {
    Arg::Tensors((0..operands as u16).map(Some).collect())
}

/// The equation of a contraction of operands of these ranks.
fn equation(pairs: &Contraction, ranks: &[usize]) -> Option<String> {
    let &[left, right] = ranks else { return None };
    let letter = |operand: usize, dim: u8| {
        let paired = pairs.batch.iter().chain(&pairs.sum).position(|pair| [pair.0, pair.1][operand] == dim);
        // Those that are paired have small letters, the others capital ones.
        char::from(paired.map_or(b'A' + 13 * operand as u8 + dim, |at| b'a' + at as u8))
    };
    let labels = |operand: usize, dims: &[u8]| dims.iter().map(|&d| letter(operand, d)).collect::<String>();
    let all = |operand: usize, rank: usize| labels(operand, &(0..rank as u8).collect::<Vec<_>>());
    let batch: Vec<u8> = pairs.batch.iter().map(|pair| pair.0).collect();
    let result = [labels(0, &batch), labels(0, &pairs.others(0, left)), labels(1, &pairs.others(1, right))];
    Some(format!("{},{}->{}", all(0, left), all(1, right), result.concat()))
}

/// The call that a primitive is.
fn primitive(op: &Op, operands: &[Tensor], ty: &TensorType) -> Option<(&'static str, Vec<Arg<u16>>)> {
    let tensor = || Arg::Tensor(0);
    let ints = |dims: &[u8]| Arg::Ints(dims.iter().map(|&d| i64::from(d)).collect());
    let shape = || Arg::Ints(ty.shape.to_vec());
    Some(match op {
        Op::Scalar(literal) => {
            let placed = [Arg::DType(ty.dtype), Arg::None, Arg::Device(ty.device)];
            ("full", [Arg::Ints(Vec::new()), number(*literal)].into_iter().chain(placed).collect())
        }
        Op::Map(function) => (map(*function)?, (0..operands.len() as u16).map(Arg::Tensor).collect()),
        Op::Cast => ("to.dtype", vec![tensor(), Arg::DType(ty.dtype)]),
        Op::View(View::Reshape) => ("reshape", vec![tensor(), shape()]),
        Op::View(View::Permute(perm)) => ("permute", vec![tensor(), ints(perm)]),
        Op::View(View::Expand) => ("expand", vec![tensor(), shape()]),
        Op::View(View::Slice { dim, start, step }) => {
            let last = start + (ty.shape[usize::from(*dim)] - 1) * step;
            let numbers = [i64::from(*dim), *start, last + 1, *step].map(Arg::Int);
            ("slice.Tensor", [tensor()].into_iter().chain(numbers).collect())
        }
        Op::View(View::Flip(dims)) => ("flip", vec![tensor(), ints(dims)]),
        Op::View(View::Pad { low, interior, fill }) if interior.iter().all(|&n| n == 0) => {
            let sizes = operands.first()?.size();
            // From the last dimension on, what comes before and behind.
            let around = |d: usize| [low[d], ty.shape[d] - low[d] - sizes[d]];
            let around = (0..ty.rank()).rev().flat_map(around).collect();
            ("constant_pad_nd", vec![tensor(), Arg::Ints(around), number(*fill)])
        }
        Op::Concat { dim } => ("cat", vec![list(operands.len()), Arg::Int(i64::from(*dim))]),
        Op::Reduce { combine, dims } => (reduction(*combine)?, vec![tensor(), ints(dims)]),
        Op::Gather { dim } => ("gather", vec![tensor(), Arg::Int(i64::from(*dim)), Arg::Tensor(1)]),
        // What windows and elements apart are made for, no mask is made of.
        Op::View(View::Pad { .. } | View::Window(_)) => return None,
        Op::Input(_) | Op::Param(_) | Op::Const(_) => return None,
        Op::Aten(_) | Op::Kernel(_) | Op::Contract(_) | Op::Iota { .. } => return None,
    })
}

fn number(literal: Literal) -> Arg<u16> {
    literal.as_i64().map_or_else(|| Arg::Float(literal.as_f64()), Arg::Int)
}

fn reduction(combine: Combiner) -> Option<&'static str> {
    // No mask is made of a tuple.
    let Combiner::Scalar(function) = combine else { return None };
    Some(match function {
        ReduceFn::Sum => "sum.dim_IntList",
        ReduceFn::Max => "amax",
        ReduceFn::Min => "amin",
        ReduceFn::And => "all.dims",
        ReduceFn::Or => "any.dims",
        // Along one dimension at most, or in no operator.
        ReduceFn::Prod | ReduceFn::Xor => return None,
    })
}

/// libtorch's operator for a scalar function, where it has one with this meaning.
fn map(function: ScalarFn) -> Option<&'static str> {
    use ScalarFn as F;
    Some(match function {
        F::Add => "add.Tensor",
        F::Sub => "sub.Tensor",
        F::Mul => "mul.Tensor",
        F::Div => "div.Tensor",
        F::Neg => "neg",
        F::Abs => "abs",
        F::DivFloor => "floor_divide",
        F::RemTrunc => "fmod.Tensor",
        F::RemFloor => "remainder.Tensor",
        F::Max => "maximum",
        F::Min => "minimum",
        F::FMax => "fmax",
        F::FMin => "fmin",
        F::CopySign => "copysign.Tensor",
        F::Floor => "floor",
        F::Ceil => "ceil",
        F::Trunc => "trunc",
        F::RoundEven => "round",
        F::And => "bitwise_and.Tensor",
        F::Or => "bitwise_or.Tensor",
        F::Xor => "bitwise_xor.Tensor",
        F::Not => "bitwise_not",
        F::Eq => "eq.Tensor",
        F::Ne => "ne.Tensor",
        F::Lt => "lt.Tensor",
        F::Le => "le.Tensor",
        F::Gt => "gt.Tensor",
        F::Ge => "ge.Tensor",
        F::IsNan => "isnan",
        F::IsInf => "isinf",
        F::Select => "where.self",
        F::Sqrt => "sqrt",
        F::Rsqrt => "rsqrt",
        F::Pow => "pow.Tensor_Tensor",
        F::Exp => "exp",
        F::Exp2 => "exp2",
        F::Expm1 => "expm1",
        F::Log => "log",
        F::Log2 => "log2",
        F::Log10 => "log10",
        F::Log1p => "log1p",
        F::Sin => "sin",
        F::Cos => "cos",
        F::Tan => "tan",
        F::Asin => "asin",
        F::Acos => "acos",
        F::Atan => "atan",
        F::Atan2 => "atan2",
        F::Sinh => "sinh",
        F::Cosh => "cosh",
        F::Tanh => "tanh",
        F::Asinh => "asinh",
        F::Acosh => "acosh",
        F::Atanh => "atanh",
        F::Erf => "erf",
        F::Erfc => "erfc",
        F::Sigmoid => "sigmoid",
        F::Fma | F::MulHi | F::DivTrunc | F::Shl | F::Shr => return None,
        F::Exp2Approx | F::Exp2ApproxFtz | F::RecipApprox | F::RsqrtApprox => return None,
    })
}
