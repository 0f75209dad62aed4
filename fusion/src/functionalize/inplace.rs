//! Writing operators and the functional ones that compute the same values.

use crate::args::Args;
use crate::promote::{Category, promote};
use crate::recording::{Arg, Call};
use crate::types::{DType, TensorType};
use tilefuse_block::Elem;

/// What a writing operator does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    /// It changes sizes or strides of the tensor itself, to those of a view.
    View,
    /// It changes the tensor in a way that no value expresses (`resize_`, `set_`).
    Metadata,
    /// It changes no value that a model reads (`requires_grad_`).
    Nothing,
    /// `copy_`: the destination takes the values of `src`.
    Copy,
    /// The destination takes the value of this operator and overload, cast and broadcast.
    Functional { op: String, overload: String, result: DType },
    /// No functional operator is known.
    Original,
}

const METADATA: &[&str] = &[
    "resize_",
    "resize_as_",
    "resize_as_sparse_",
    "set_",
    "as_strided_",
    "set_data",
    "rename_",
    "sparse_resize_",
    "sparse_resize_and_clear_",
];

const VIEWS: &[&str] = &["transpose_", "t_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"];

const NOTHING: &[&str] = &["requires_grad_", "detach_", "retain_grad", "record_stream"];

/// In-place operators whose name without the underscore is no operator with the same arguments.
const NO_COUNTERPART: &[&str] = &[
    "_sobol_engine_ff_",
    "_sobol_engine_scramble_",
    "_sobol_engine_initialize_state_",
    "fill_diagonal_",
    "ldexp_",
    "polygamma_",
    "float_power_",
    "normal_",
    "bernoulli_",
    "uniform_",
    "random_",
    "cauchy_",
    "log_normal_",
    "exponential_",
    "geometric_",
    "rrelu_",
    "rrelu_with_noise_",
    "_fill_mem_eff_dropout_mask_",
];

/// Operators that promote the types of their operands.
const PROMOTING: &[&str] = &[
    "add",
    "sub",
    "subtract",
    "mul",
    "multiply",
    "div",
    "divide",
    "true_divide",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "atan2",
    "arctan2",
    "copysign",
    "hypot",
    "nextafter",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "addcmul",
    "addcdiv",
    "lerp",
    "clamp",
    "clip",
    "clamp_min",
    "clamp_max",
    "__and__",
    "__or__",
    "__xor__",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "__lshift__",
    "__rshift__",
    "addr",
    "gcd",
    "lcm",
    "igamma",
    "igammac",
    "xlogy",
];

/// Operators whose result is of 64 bits where their operand is of integers and no type is asked for.
const WIDENING: &[&str] = &["cumsum", "cumprod"];

/// Operators whose result is boolean.
const BOOLEAN: &[&str] = &[
    "eq",
    "ne",
    "not_equal",
    "lt",
    "less",
    "le",
    "less_equal",
    "gt",
    "greater",
    "ge",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "isnan",
    "isinf",
    "isfinite",
];

/// Further operators of several tensors that compute each element of the same elements of these.
const ELEMENTWISE: &[&str] = &[
    "copy",
    "fill",
    "masked_fill",
    "where",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "rsub",
    "float_power",
    "heaviside",
    "logaddexp",
    "logaddexp2",
    "ldexp",
    "sigmoid_backward",
    "tanh_backward",
    "threshold_backward",
];

/// Likewise of one tensor.
const ELEMENTWISE_OF_ONE: &[&str] = &[
    "abs",
    "absolute",
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "elu",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "fix",
    "floor",
    "frac",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "i0",
    "leaky_relu",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logit",
    "mish",
    "nan_to_num",
    "neg",
    "negative",
    "rad2deg",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "threshold",
    "trunc",
    "zero",
];

/// Whether a call computes each element of what it writes of the same elements of its operands alone, as far as is known.
pub(super) fn is_elementwise(op: &str) -> bool {
    let name = op.strip_prefix("aten::").unwrap_or(op);
    let middle = name.strip_prefix("__i").and_then(|name| name.strip_suffix("__"));
    let base = name.strip_suffix('_').unwrap_or(name);
    middle.is_some()
        || [PROMOTING, BOOLEAN, ELEMENTWISE, ELEMENTWISE_OF_ONE].iter().any(|known| known.contains(&base))
}

/// What the call does to the tensors that it writes. `ty` gives types of tensors.
pub(super) fn classify<T: Copy>(
    call: &Call,
    args: Args<'_, T>,
    writes: &[usize],
    ty: &dyn Fn(T) -> TensorType,
) -> Write {
    let Some(name) = call.op.strip_prefix("aten::") else { return Write::Original };
    if METADATA.contains(&name) {
        return Write::Metadata;
    }
    if VIEWS.contains(&name) {
        return Write::View;
    }
    let eval_dropout = name.ends_with("dropout_") && args.bool("train") == Some(false);
    if NOTHING.contains(&name) || eval_dropout {
        return Write::Nothing;
    }
    if name == "copy_" {
        return Write::Copy;
    }
    functional(call, name, args, writes, ty).unwrap_or(Write::Original)
}

fn functional<T: Copy>(
    call: &Call,
    name: &str,
    args: Args<'_, T>,
    writes: &[usize],
    ty: &dyn Fn(T) -> TensorType,
) -> Option<Write> {
    let unnamed = args.0.iter().any(|(_, arg)| matches!(arg, Arg::Other(_)));
    if call.random || unnamed || writes != [0] || NO_COUNTERPART.contains(&name) || name.ends_with("dropout_")
    {
        return None;
    }
    let base = match name.strip_prefix("__i").and_then(|n| n.strip_suffix("__")) {
        Some(middle) => format!("__{middle}__"),
        None => name.strip_suffix('_').filter(|n| !n.ends_with('_'))?.to_string(),
    };
    let overload = match (base.as_str(), call.overload.as_str()) {
        ("pow", "Tensor") => "Tensor_Tensor",
        ("pow", "Scalar") => "Tensor_Scalar",
        ("floor_divide", "Tensor") => "",
        (_, other) => other,
    };
    let (_, Arg::Tensor(destination)) = args.0.first()? else { return None };
    let destination = ty(*destination);
    let result = if BOOLEAN.contains(&base.as_str()) {
        DType::Elem(Elem::Bool)
    } else if PROMOTING.contains(&base.as_str()) {
        promoted(args, ty, &destination)?
    } else if WIDENING.contains(&base.as_str()) {
        widened(args, &destination)
    } else {
        destination.dtype
    };
    Some(Write::Functional { op: format!("aten::{base}"), overload: overload.to_string(), result })
}

/// The type of an operator that widens integers.
fn widened<T: Copy>(args: Args<'_, T>, destination: &TensorType) -> DType {
    let asked = args.0.iter().find_map(|(_, arg)| match arg {
        Arg::DType(dtype) => Some(*dtype),
        _ => None,
    });
    let is_narrow = destination.dtype.elem().is_some_and(|elem| !elem.is_float());
    asked.unwrap_or(if is_narrow { DType::Elem(Elem::I64) } else { destination.dtype })
}

/// The type in which operands meet. Of types that are only libtorch's it is known where they are the destination's.
fn promoted<T: Copy>(
    args: Args<'_, T>,
    ty: &dyn Fn(T) -> TensorType,
    destination: &TensorType,
) -> Option<DType> {
    let mut tensors = args.0.iter().flat_map(|(_, arg)| arg.tensors()).map(|t| ty(t).dtype);
    if destination.dtype.elem().is_none() && tensors.all(|dtype| dtype == destination.dtype) {
        return Some(destination.dtype);
    }
    let factors = ["alpha", "beta", "value", "rounding_mode"];
    let operands = args.0.iter().filter(|(name, _)| !factors.contains(&name.as_str()));
    let operands = operands.filter_map(|(_, arg)| match arg {
        Arg::Tensor(t) => {
            let ty = ty(*t);
            Some((ty.dtype.elem(), if ty.rank() == 0 { Category::ZeroDim } else { Category::Dim }))
        }
        Arg::Int(_) => Some((Some(Elem::I64), Category::Number)),
        Arg::Float(_) => Some((Some(Elem::F64), Category::Number)),
        Arg::Bool(_) => Some((Some(Elem::Bool), Category::Number)),
        _ => None,
    });
    let operands: Option<Vec<_>> = operands.map(|(elem, category)| Some((elem?, category))).collect();
    promote(&operands?).map(DType::Elem)
}
