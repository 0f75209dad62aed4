"""Writes cases.txt: calls of libtorch operators with what eager computes on the CPU.

    python3 generate.py > cases.txt

Needs torch. Each case is a graph of one call, its inputs, and its results, in row-major order.
"""

import random
import sys

import torch

DTYPES = {
    torch.bool: "bool", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8", torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
}
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}
F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
I64, I32, I8, U8, BOOL = torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool
INF, NAN = float("inf"), float("nan")

seen = {}


def row_major(shape):
    strides, n = [], 1
    for size in reversed(shape):
        strides.insert(0, n)
        n *= max(size, 1)
    return strides


def type_text(t):
    text = f"{DTYPES[t.dtype]}[{','.join(map(str, t.shape))}]"
    if list(t.stride()) != row_major(t.shape):
        text += "{" + ",".join(map(str, t.stride())) + "}"
    return text


def value_text(x):
    if isinstance(x, bool):
        return "true" if x else "false"
    return repr(x)


DIGITS = {torch.float16: 6, torch.bfloat16: 6, torch.float32: 9, torch.float64: 17}


def data_text(t):
    digits = DIGITS.get(t.dtype)
    text = (lambda x: f"{x:.{digits}g}") if digits else value_text
    return " ".join([DTYPES[t.dtype]] + [text(x) for x in t.contiguous().flatten().tolist()])


def arg_text(value, kind, tensors):
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return f"%{len(tensors) - 1}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, torch.memory_format):
        return str(MEMORY_FORMATS[value])
    if isinstance(value, torch.device):
        return "cpu"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        if any(isinstance(v, torch.Tensor) for v in value):
            prefix = "" if isinstance(value[0], torch.Tensor) else "tensors"
            return prefix + "[" + ", ".join(arg_text(v, "", tensors) for v in value) + "]"
        if not value:
            return "ints[]"
        return "[" + ", ".join(arg_text(v, "", tensors) for v in value) + "]"
    if isinstance(value, float) or (isinstance(value, int) and kind == "float"):
        return repr(float(value))
    return repr(value)


def case(op, *args, **kwargs):
    """One call; `op` is `name` or `name.overload`."""
    name, _, overload = op.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    result = function(*args, **kwargs)
    results = result if isinstance(result, (list, tuple)) else [result]
    texts, tensors = [], []
    given = list(args)
    for i, spec in enumerate(function._schema.arguments):
        if i < len(given):
            value = given[i]
        elif spec.name in kwargs:
            value = kwargs[spec.name]
        else:
            value = spec.default_value if spec.has_default_value() else None
        texts.append(f"{spec.name}={arg_text(value, str(spec.type), tensors)}")
    base = f"{op}_{'_'.join(DTYPES[t.dtype] for t in tensors[:2])}"
    seen[base] = seen.get(base, 0) + 1
    print(f"case {base}_{seen[base]}")
    print("graph {")
    for i, t in enumerate(tensors):
        print(f"  %{i} = input {i} : {type_text(t)}")
    names = [f"%{len(tensors) + i}" for i in range(len(results))]
    types = ", ".join(type_text(t) for t in results)
    print(f"  {', '.join(names)} = aten::{op}({', '.join(texts)}) : {types}")
    print(f"  outputs {', '.join(names)}")
    print("}")
    for t in tensors:
        print("in", data_text(t))
    for t in results:
        print("out", data_text(t))


EDGES = [NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -1.0, 0.25, -0.75, 3.0, -3.0, 6.5,
         10.0, -20.5, 88.8, -104.0, 16777217.0, 65504.0, 1e20, -1e20]


def edges(dtype=F32):
    return torch.tensor(EDGES, dtype=F64).to(dtype)


def near(dtype=F32):
    return torch.tensor([-2.0, -1.0, -0.5, -0.0, 0.0, 0.1, 0.5, 0.9, 1.0, 2.0, 7.25, NAN], dtype=dtype)


def rand(*shape, dtype=F32, seed=0, scale=2.0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randn(shape, generator=g, dtype=F64) * scale
    return x.round(decimals=3).to(dtype)


def ints(*shape, dtype=I64, low=-5, high=6, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=g).to(dtype)


FLOATS = [F32, F16, BF16, F64]


def unary():
    for op in ["neg", "abs", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
               "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "floor",
               "ceil", "trunc", "round", "frac", "sign", "sgn", "square", "reciprocal", "deg2rad", "rad2deg", "isnan", "isinf",
               "isfinite", "isposinf", "isneginf", "nan_to_num", "relu", "relu6", "silu", "mish", "log_sigmoid", "hardswish",
               "hardsigmoid", "selu", "positive", "logical_not"]:
        wild = op in ("sin", "cos", "tan")
        for dtype in FLOATS:
            case(op, near(dtype) if wild else edges(dtype))
    for op in ["neg", "abs", "sign", "square", "floor", "ceil", "trunc", "round", "relu", "relu6", "sqrt", "exp", "sigmoid", "isnan",
               "isfinite", "logical_not", "bitwise_not", "positive", "reciprocal", "nan_to_num", "tanh"]:
        case(op, ints(6))
        if op not in ("neg",):
            case(op, torch.tensor([0, 1, 200, 255], dtype=U8))
    for op in ["abs", "logical_not", "bitwise_not", "sign", "sqrt", "isnan"]:
        case(op, torch.tensor([True, False])) if op not in ("abs",) else None
    for dtype in FLOATS:
        case("round.decimals", near(dtype), decimals=1)
        case("logit", torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, NAN], dtype=dtype))
        case("logit", torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, NAN], dtype=dtype), 0.1)
        case("nan_to_num", edges(dtype), 1.0, 2.0, -3.0)


def activations():
    for dtype in FLOATS:
        for mode in ["none", "tanh"]:
            case("gelu", torch.tensor([NAN, 0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 10.0, -10.0, 1e-3], dtype=dtype), approximate=mode)
        case("elu", edges(dtype))
        case("elu", near(dtype), 0.7, 1.3, 2.0)
        case("celu", near(dtype), 0.7)
        case("leaky_relu", edges(dtype), 0.2)
        case("hardtanh", edges(dtype), -0.7, 1.2)
        case("softplus", edges(dtype))
        case("softplus", near(dtype), 2.0, 3.0)
        case("threshold", edges(dtype), 0.4, -7.0)
        case("hardshrink", edges(dtype))
        case("softshrink", edges(dtype), 0.3)
        case("glu", rand(2, 6, dtype=dtype), -1)
        case("glu", rand(4, 3, dtype=dtype), 0)
        case("prelu", rand(2, 3, 2, dtype=dtype), torch.tensor([0.1, 0.2, 0.3], dtype=dtype))
        case("prelu", rand(4, dtype=dtype), torch.tensor([0.25], dtype=dtype))
        case("rrelu", near(dtype), 0.1, 0.4, False)
        case("dropout", near(dtype), 0.5, False)
    case("hardtanh", ints(6), -2, 3)
    case("leaky_relu", rand(2, 3).t(), 0.01)


def arithmetic():
    pairs = [(F32, F32), (F16, F16), (BF16, BF16), (F64, F64), (F32, I64), (I64, I64), (U8, I8), (BOOL, I64), (F16, BF16), (F16, F32),
             (BOOL, BOOL), (I32, U8), (F16, I64), (BOOL, F32)]
    for a, b in pairs:
        x, y = (ints(2, 3, seed=1).to(a), ints(3, seed=2).to(b))
        for op in ["add.Tensor", "mul.Tensor", "maximum", "minimum", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor",
                   "ge.Tensor", "div.Tensor", "logical_and", "logical_or", "logical_xor"]:
            case(op, x, y)
        if BOOL not in (a, b):
            case("sub.Tensor", x, y)
            case("sub.Tensor", x, y, alpha=2)
            case("rsub.Tensor", x, y)
        zero_dim = torch.tensor(3, dtype=b)
        case("add.Tensor", x, zero_dim)
        case("mul.Tensor", zero_dim, x)
        case("lt.Tensor", x, zero_dim)
    for dtype in FLOATS:
        x, y = edges(dtype), edges(dtype).flip(0)
        for op in ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "fmax", "fmin", "atan2",
                   "eq.Tensor", "ne.Tensor", "lt.Tensor", "ge.Tensor", "logaddexp", "xlogy.Tensor", "heaviside"]:
            case(op, x, y)
        case("copysign.Tensor", x[1:], x[1:].flip(0))
        a = torch.tensor([7.5, -7.5, 7.5, -7.5, 1.0, 0.0, -0.0, INF, 3.0, NAN, 1.0, -6.0], dtype=dtype)
        b = torch.tensor([2.0, 2.0, -2.0, -2.0, 0.0, 0.0, 3.0, 2.0, INF, 2.0, 0.3, 3.0], dtype=dtype)
        for op in ["remainder.Tensor", "fmod.Tensor", "floor_divide"]:
            case(op, a, b)
        for mode in ["floor", "trunc", None]:
            case("div.Tensor_mode", a, b, rounding_mode=mode)
        case("remainder.Scalar", a, 2.5)
        case("fmod.Scalar", a, 2.5)
        for exponent in [0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 2.0, 3.0]:
            case("pow.Tensor_Scalar", torch.tensor([0.25, 1.0, 2.0, -3.0, 0.0, INF, NAN], dtype=dtype), exponent)
        case("pow.Tensor_Tensor", a, b)
        case("pow.Scalar", 2, b)
        case("pow.Scalar", 1, b)
        case("pow.Scalar", 3.5, b)
        case("add.Scalar", near(dtype), 0.1)
        case("add.Scalar", near(dtype), 0.1, 3)
        case("mul.Scalar", near(dtype), 0.1)
        case("sub.Scalar", near(dtype), 0.3, 2)
        case("rsub.Scalar", near(dtype), 1.5)
        case("div.Scalar", near(dtype), 3)
        case("clamp", edges(dtype), -0.3, 2.7)
        case("clamp", edges(dtype), None, 1)
        case("clamp_min", edges(dtype), 0.1)
        case("clamp_max", edges(dtype), 0.1)
        case("clamp.Tensor", near(dtype), torch.tensor(0.2, dtype=dtype), None)
        case("lerp.Scalar", near(dtype), near(dtype).flip(0), 0.3)
        case("lerp.Scalar", near(dtype), near(dtype).flip(0), 0.7)
        case("lerp.Tensor", near(dtype), near(dtype).flip(0), near(dtype))
        case("addcmul", near(dtype), near(dtype).flip(0), near(dtype), value=0.3)
        case("addcdiv", near(dtype), near(dtype).flip(0), near(dtype), value=2)
    i = torch.tensor([7, -7, 0, -8, 9223372036854775807, -9223372036854775808])
    for divisor in [2, -3, 1, -1]:
        for op in ["remainder.Scalar", "fmod.Scalar"]:
            if divisor != -1:
                case(op, i, divisor)
        if divisor != -1:
            case("floor_divide.Scalar", i, divisor)
            case("div.Scalar_mode", i, divisor, rounding_mode="trunc")
            case("div.Scalar_mode", i, divisor, rounding_mode="floor")
    case("div.Scalar", i, 2)
    for exponent in [0, 1, 2, 5]:
        case("pow.Tensor_Scalar", ints(6), exponent)
    case("clamp", ints(6), -2, 3)
    case("add.Scalar", torch.tensor([True, False]), 2)
    case("mul.Scalar", ints(4), 2.5)
    case("add.Tensor", ints(4, dtype=I32), ints(4, dtype=I32), alpha=3)


def bits():
    for dtype in [I64, I32, I8, U8]:
        x, y = ints(8, dtype=I64).to(dtype), ints(8, seed=3, low=0, high=20).to(dtype)
        for op in ["bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor"]:
            case(op, x, y)
        case("bitwise_and.Scalar", x, 6)
        case("__lshift__.Scalar", x, 2)
    case("bitwise_left_shift.Tensor", torch.tensor([1, -1], dtype=I32), torch.tensor([40, 31], dtype=I32))
    case("bitwise_right_shift.Tensor", torch.tensor([-1, 7], dtype=I32), torch.tensor([40, 1], dtype=I32))
    for op in ["bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"]:
        case(op, torch.tensor([True, True, False]), torch.tensor([True, False, False]))
    mask = torch.tensor([[True, False, True]])
    for dtype in FLOATS + [I64]:
        x, y = rand(2, 3).to(dtype), rand(1, 3, seed=4).to(dtype)
        case("where.self", mask, x, y)
        case("masked_fill.Scalar", x, mask, -3)
        case("masked_fill.Tensor", x, mask, torch.tensor(7, dtype=dtype))
    case("where.self", mask, rand(2, 3), torch.tensor(2.0, dtype=F64))
    case("where.self", mask, rand(2, 3).to(F16), rand(2, 3))
    case("where.ScalarOther", mask, rand(2, 3), 4)
    case("where.ScalarSelf", mask, 0.5, rand(2, 3))
    case("masked_fill.Scalar", rand(2, 3).to(F16), mask, -INF)
    for value in [0, 0.5, True]:
        case("eq.Scalar", ints(6), value)
        case("gt.Scalar", rand(6), value)
        case("le.Scalar", ints(6), value)


def casts():
    x = torch.tensor([0.0, -0.0, 1.5, -1.5, 300.0, -1.0, 0.4, 100.0], dtype=F32)
    for to in DTYPES:
        case("_to_copy", x if to != U8 else x.abs(), dtype=to)
        case("to.dtype", ints(5), to)
        case("to.dtype", torch.tensor([True, False]), to)
    case("to.dtype", edges(F32), F16)
    case("to.dtype", edges(F64), BF16)
    case("to.dtype", torch.tensor([NAN, 0.0, 2.0]), BOOL)
    case("type_as", ints(3), rand(2))
    case("clone", rand(2, 3).t(), memory_format=torch.contiguous_format)
    case("contiguous", rand(2, 3).t())
    case("copy", rand(2, 3), ints(3))
    case("fill.Scalar", rand(2, 3), 2)
    case("fill.Tensor", ints(2, 3), torch.tensor(2.5))
    case("zero", rand(2, 0))
    case("zeros_like", ints(2))
    case("ones_like", rand(2), dtype=I64)
    case("full_like", rand(2).to(F16), 0.1)
    case("new_full", rand(2), [2, 1], 3)
    case("arange.start_step", 2, 11, 3)
    case("arange.start_step", 0, 1, 0.1)
    case("arange.start", -3, 4)
    case("arange.start_step", 0, 10, 1.5, dtype=I64)
    case("arange.start", -2.5, 3, dtype=I32)
    case("eye.m", 3, 4)
    for diagonal in [-1, 0, 2]:
        case("tril", rand(2, 3, 4), diagonal)
        case("triu", ints(3, 4), diagonal)


def reductions():
    x = rand(2, 3, 4)
    for dtype in FLOATS:
        y = x.to(dtype)
        for op in ["sum", "mean", "prod", "max", "min", "argmax", "argmin", "any", "all"]:
            case(op, y)
        for dims in [[1], [0, 2], [-1], [0, 1, 2]]:
            for keep in [False, True]:
                case("sum.dim_IntList", y, dims, keep)
                case("mean.dim", y, dims, keep)
                case("amax", y, dims, keep)
                case("amin", y, dims, keep)
                case("logsumexp", y, dims, keep)
        for dim in [0, -1]:
            for keep in [False, True]:
                case("max.dim", y, dim, keep)
                case("min.dim", y, dim, keep)
                case("argmax", y, dim, keep)
                case("argmin", y, dim, keep)
                case("any.dim", y, dim, keep)
                case("all.dim", y, dim, keep)
                case("prod.dim_int", y, dim, keep)
        for op in ["var", "std", "var_mean", "std_mean"]:
            case(op, y, True)
            case(f"{op}.correction", y, [1], correction=0, keepdim=True)
            case(f"{op}.correction", y, [1, 2])
            case(f"{op}.dim", y, [0], True)
        for p in [0, 1, 2, 3, INF, -INF, 0.5]:
            case("linalg_vector_norm", y, p, [1], True)
        case("norm.Scalar", y)
        case("norm.ScalarOpt_dim", y, 2, [1])
        case("count_nonzero.dim_IntList", y, [1])
        case("nansum", torch.tensor([NAN, 1.0, 2.0], dtype=dtype))
        case("aminmax", y, dim=1)
        case("sum.dim_IntList", torch.zeros(2, 0, 3, dtype=dtype), [1])
        case("mean.dim", torch.zeros(2, 0, dtype=dtype), [1])
        case("prod.dim_int", torch.zeros(2, 0, dtype=dtype), 1)
        case("var.correction", torch.ones(1, dtype=dtype), [0])
        case("sum", torch.tensor(2.5, dtype=dtype))
        case("max.dim", torch.tensor(2.5, dtype=dtype), 0)
        case("logsumexp", torch.tensor([[-INF, -INF], [INF, 1.0], [NAN, 0.0], [1e20 if dtype in (F32, F64) else 1e4, 0.0]], dtype=dtype), [1])
        case("amax", torch.tensor([[NAN, 1.0], [-INF, -INF]], dtype=dtype), [1])
        ties = torch.tensor([[1.0, 3.0, 3.0], [NAN, 2.0, NAN], [2.0, NAN, 5.0], [-INF, -INF, -INF]], dtype=dtype)
        for op in ["argmax", "argmin", "max.dim", "min.dim"]:
            case(op, ties, 1)
    for dtype in [I64, I32, I8, U8, BOOL]:
        y = ints(3, 4, low=0, high=5).to(dtype)
        for op in ["sum", "prod", "max", "min", "any", "all"]:
            case(op, y)
        case("sum.dim_IntList", y, [1])
        case("amax", y, [0])
        case("max.dim", y, 1)
        case("any.dim", y, 1)
        if dtype != BOOL:
            case("argmax", y, 1)
        case("count_nonzero.dim_IntList", y, [0])
    case("sum.dim_IntList", rand(2, 3).to(F16), [1], False, dtype=F32)
    case("sum", ints(4), dtype=F64)
    case("mean", ints(4), dtype=F32)
    case("mean", torch.full((70,), 2000.0, dtype=F16))
    case("any", torch.zeros(0))
    case("all", torch.zeros(0))


def normalisations():
    for dtype in FLOATS:
        x = rand(2, 4, 3, dtype=dtype)
        w, b = rand(4, dtype=dtype, seed=5), rand(4, dtype=dtype, seed=6)
        w3, b3 = rand(3, dtype=dtype, seed=7), rand(3, dtype=dtype, seed=8)
        for dim in [0, 1, -1]:
            case("softmax.int", x, dim)
            case("log_softmax.int", x, dim)
        case("_softmax", x, -1, False)
        case("_log_softmax", x, -1, False)
        case("softmax.int", torch.tensor([[-INF, -INF], [INF, 0.0], [NAN, 1.0], [-INF, 1.0], [1e4, -1e4]], dtype=dtype), 1)
        case("softmax.int", torch.tensor(1.5, dtype=dtype), 0)
        case("layer_norm", x, [3], w3, b3, 1e-5)
        case("layer_norm", x, [4, 3], None, None, 1e-3)
        case("layer_norm", torch.full((2, 3), 4.0, dtype=dtype), [3], None, None)
        case("native_layer_norm", x, [3], w3, b3, 1e-5)
        case("group_norm", x, 2, w, b, 1e-5)
        case("group_norm", x, 4, None, None)
        case("native_group_norm", x, w, b, 2, 4, 3, 2, 1e-5)
        if dtype in (F32, F64):
            case("instance_norm", x, w, b, None, None, True, 0.1, 1e-5, False)
        mean, var = rand(4, dtype=dtype, seed=9), rand(4, dtype=dtype, seed=10).abs() + 0.1
        case("batch_norm", x, w, b, mean, var, False, 0.1, 1e-5, False)
        case("batch_norm", rand(3, 4, dtype=dtype), None, None, mean, var, False, 0.1, 1e-3, False)
        case("native_batch_norm", x, w, b, mean, var, False, 0.1, 1e-5)
        case("_native_batch_norm_legit_no_training", x, w, b, mean, var, 0.1, 1e-5)
        case("rms_norm", x, [3], w3, 1e-5)
    case("rms_norm", rand(2, 3), [3])
    case("softmax.int", rand(2, 3).to(F16), -1, F32)
    case("batch_norm", rand(2, 4, 3).to(BF16), rand(4), rand(4), rand(4), rand(4).abs(), False, 0.1, 1e-5, False)


def losses():
    for dtype in FLOATS:
        x, y = rand(3, 5, dtype=dtype), rand(3, 5, dtype=dtype, seed=3)
        target = torch.tensor([1, -100, 4])
        for reduction in [0, 1, 2]:
            for op in ["mse_loss", "l1_loss", "smooth_l1_loss"]:
                case(op, x, y, reduction)
            case("huber_loss", x, y, reduction, 0.7)
            case("cross_entropy_loss", x, target, None, reduction)
            case("nll_loss_nd", x, target, None, reduction)
            case("binary_cross_entropy_with_logits", x, y.sigmoid(), None, None, reduction)
        case("binary_cross_entropy_with_logits", x, y.sigmoid(), y.abs(), y.abs() + 1, 1)
    case("cross_entropy_loss", rand(2, 4, 3), ints(2, 3, low=0, high=4))
    case("cross_entropy_loss", rand(4), torch.tensor(2))
    case("cross_entropy_loss", rand(2, 4), torch.tensor([-100, -100]))
    case("smooth_l1_loss", rand(4), rand(4, seed=1), 1, 0.5)


def views():
    x = torch.arange(24).reshape(2, 3, 4)
    for tensor in [x, x.float().permute(2, 0, 1)]:
        case("reshape", tensor, [-1, 3])
        case("flatten.using_ints", tensor, 1, -1)
        case("unsqueeze", tensor, -1)
        case("permute", tensor, [2, -3, 1])
        case("transpose.int", tensor, 0, -1)
        case("swapaxes", tensor, 0, 1)
        case("movedim.int", tensor, 0, -1)
        case("movedim.intlist", tensor, [0, 1], [2, 0])
        case("mT", tensor)
        case("numpy_T", tensor)
        case("slice.Tensor", tensor, 1, -2, 100, 1)
        case("slice.Tensor", tensor, 2, 1, None, 2)
        case("narrow", tensor, 0, -1, 1)
        case("select.int", tensor, 1, -1)
        case("split.Tensor", tensor, 2, 1)
        case("split_with_sizes", tensor, [1, 0, 2], 1) if tensor.shape[1] == 3 else None
        case("chunk", tensor, 2, 2)
        case("tensor_split.sections", tensor, 3, 2)
        case("unbind.int", tensor, 1)
        case("diagonal", tensor, 1, 0, 2)
        case("diagonal", tensor, -1)
        case("cat", [tensor, tensor[:, :1]], 1)
        case("stack", [tensor, tensor], -1)
        case("constant_pad_nd", tensor, [1, 2, -1, 3], 7)
        case("pad", tensor, [0, 1], "constant", None)
        case("flip", tensor, [0, -1])
        case("roll", tensor, [1, -2], [0, 2])
        case("roll", tensor, [5])
        case("repeat", tensor, [2, 1, 1, 3])
        case("tile", tensor, [2, 1])
        case("repeat_interleave.self_int", tensor, 2, 1)
        case("repeat_interleave.self_int", tensor, 3)
        case("expand", tensor.select(0, 0).unsqueeze(0), [5, -1, -1])
        case("slice_scatter", tensor, tensor[:, 1:3] * 10, 1, 1, 3)
        case("slice_scatter", tensor, tensor[:, :, :tensor.shape[2] // 2 + tensor.shape[2] % 2] * 10, 2, 0, None, 2)
        case("select_scatter", tensor, tensor.select(1, 0) * 10, 1, -1)
        case("select_scatter", tensor, tensor.select(0, 0) * 10, 0, 0)
        case("diagonal_scatter", tensor, tensor.diagonal(1, 0, 2) * 10, 1, 0, 2)
        case("diagonal_scatter", tensor, tensor.diagonal(-1) * 10, -1)
        case("squeeze.dim", tensor.narrow(1, 0, 1), 1)
        case("squeeze", tensor.narrow(0, 0, 1))
    case("slice_scatter", torch.arange(10), torch.arange(3) + 100, 0, 2, 9, 3)
    for tensor in [torch.arange(24), torch.arange(24).float()]:
        source = (torch.arange(6).reshape(2, 3) * 10 + 100).to(tensor.dtype)
        case("as_strided_scatter", tensor, source, (2, 3), (4, 1), 1)
    case("slice_scatter", torch.arange(9), torch.arange(3) + 100, 0, 1, None, 3)
    case("cat", [torch.zeros(0), rand(2, 3)], 0)
    case("cat", [ints(2), rand(2)], 0)
    case("t", rand(2, 3))
    case("pixel_shuffle", torch.arange(24).reshape(1, 8, 1, 3), 2)
    case("pixel_unshuffle", torch.arange(24).reshape(2, 2, 6), 2)
    case("unflatten.int", rand(2, 6), 1, [3, -1])
    case("pad", rand(2, 3), [0, 0, 1, 0], "constant", 0.5)


def indices():
    w = rand(5, 3)
    case("embedding", w, torch.tensor([[0, 4], [2, 2]]))
    case("embedding", w.to(BF16), torch.tensor([1, 3], dtype=I32))
    case("index_select", w, 1, torch.tensor([2, 0]))
    case("index_select", w, 0, torch.tensor(3))
    case("gather", w, 1, torch.tensor([[0, 2], [1, 1]]))
    case("gather", w, 0, torch.tensor([[4, 0, 2]]))
    case("take_along_dim", w, torch.tensor([[0], [1], [2], [0], [1]]), 1)
    case("index.Tensor", w, [None, torch.tensor([0, -1, 1])])
    case("index.Tensor", w, [torch.tensor([[0, -5], [4, 1]])])


def other_names():
    x, y, i = rand(2, 3), rand(2, 3, seed=9), ints(2, 3)
    for op in ["subtract.Tensor", "multiply.Tensor", "divide.Tensor", "true_divide.Tensor", "arctan2", "special_xlogy", "not_equal.Tensor",
               "less.Tensor", "less_equal.Tensor", "greater.Tensor", "greater_equal.Tensor"]:
        case(op, x, y)
    for op in ["__and__.Tensor", "__or__.Tensor", "__xor__.Tensor", "__rshift__.Tensor"]:
        case(op, i, i.abs())
    for op in ["negative", "special_exp2", "special_expm1", "special_log1p", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh",
               "special_erf", "special_erfc", "special_expit", "absolute", "fix", "special_round", "special_logit",
               "alias", "detach", "lift_fresh", "resolve_conj", "resolve_neg", "real", "ravel", "atleast_1d", "atleast_2d", "atleast_3d",
               "mH", "matrix_H", "adjoint", "fliplr", "flipud"]:
        case(op, x)
    for op in ["atleast_1d", "atleast_2d", "atleast_3d"]:
        case(op, torch.tensor(2.0))
    case("clip", x, -0.5, 0.5)
    case("_prelu_kernel", x, torch.tensor([[0.5], [0.25]]))
    for op in ["alpha_dropout", "feature_dropout", "feature_alpha_dropout"]:
        case(op, x, 0.5, False)
    for op in ["zeros", "ones"]:
        case(op, [2, 3], dtype=F32)
    for op in ["new_zeros", "new_ones"]:
        case(op, i, [2, 3])
    case("full", [2], 3)
    case("full", [], 1.5)
    case("scalar_tensor", 2)
    case("frobenius_norm.dim", x, [1])
    case("special_logsumexp", x, [1])
    case("special_softmax", x, 1)
    case("special_log_softmax", x, 1)
    case("nll_loss", x, torch.tensor([0, 2]))
    case("nll_loss2d", rand(2, 3, 2, 2), ints(2, 2, 2, low=0, high=3))
    case("view", x, [3, 2])
    case("_unsafe_view", x, [6])
    case("view_as", x, rand(3, 2))
    case("reshape_as", x, rand(3, 2))
    case("_reshape_alias", x, [3, 2], [2, 1])
    case("expand_as", torch.tensor([1.0, 2.0, 3.0]), x)
    case("broadcast_to", torch.tensor([[1.0], [2.0]]), [4, 2, 3])
    case("swapdims", x, 0, 1)
    case("moveaxis.int", x, 0, 1)
    case("concat", [x, y], 1)
    case("concatenate", [x, y], -2)
    case("flatten.using_ints", torch.tensor(1.0))


def pooling():
    for dtype in FLOATS:
        case("adaptive_avg_pool2d", rand(2, 3, 4, 2, dtype=dtype), [1, 1])
        case("upsample_nearest2d.vec", rand(1, 2, 2, 3, dtype=dtype), None, [2.0, 2.0])
    case("adaptive_avg_pool1d", rand(2, 3, 4), [1])
    case("upsample_nearest2d", rand(1, 2, 2, 3), [4, 12])
    case("upsample_nearest2d", rand(1, 2, 2, 3), [4, 6], 2.0, 2.0)
    case("upsample_nearest1d.vec", rand(1, 2, 3), None, [4.0])
    for op in ["unsafe_split.Tensor", "unsafe_chunk"]:
        case(op, rand(4, 3), 2)
    case("unsafe_split_with_sizes", rand(4, 3), [1, 3])
    case("meshgrid", [ints(2), ints(3)])
    case("meshgrid.indexing", [ints(2), ints(3), ints(4)], indexing="xy")
    case("outer", rand(2), ints(3))
    case("ger", rand(2), rand(3))


def windows():
    for dtype in FLOATS:
        case("max_pool2d", rand(1, 2, 5, 4, dtype=dtype), [3, 3], [2, 2], [1, 1], [1, 1], False)
    case("max_pool2d", rand(2, 5, 6), [2, 3], [], [0, 1], [2, 1], True)
    case("max_pool1d", rand(2, 1, 7), [2], [2], [0], [1], True)
    case("max_pool3d", rand(1, 1, 3, 4, 5), [2, 2, 2], [1, 2, 2], [0, 1, 1], [1, 1, 1], False)
    for dtype in FLOATS:
        case("avg_pool2d", rand(1, 2, 5, 4, dtype=dtype), [3, 3], [2, 2], [1, 1], True, False, None)
    case("avg_pool2d", rand(2, 5, 6), [2, 3], [], [0, 1], True, True, None)
    case("avg_pool2d", rand(1, 1, 5, 6), [2, 3], [2, 1], [1, 0], False, True, 5)
    case("avg_pool1d", rand(2, 1, 7), [2], [2], [0], True, True)
    case("avg_pool3d", rand(1, 1, 3, 4, 5), [2, 2, 2], [1, 2, 2], [0, 1, 1], True, False, None)


def contractions():
    for dtype in FLOATS:
        a, b, c = rand(2, 3, dtype=dtype), rand(3, 4, dtype=dtype, seed=1), rand(2, 4, dtype=dtype, seed=2)
        x, y = rand(3, dtype=dtype, seed=3), rand(3, dtype=dtype, seed=4)
        batches, others = rand(2, 2, 3, dtype=dtype, seed=5), rand(2, 3, 2, dtype=dtype, seed=6)
        case("linear", a, rand(4, 3, dtype=dtype), rand(4, dtype=dtype))
        case("linear", batches, rand(4, 3, dtype=dtype))
        case("mm", a, b)
        case("mm", a, rand(4, 3, dtype=dtype).t())
        case("addmm", c, a, b)
        case("addmm", rand(4, dtype=dtype), a, b, beta=0.5, alpha=2)
        case("bmm", batches, others)
        case("baddbmm", rand(2, 2, 2, dtype=dtype), batches, others, beta=2, alpha=0.5)
        case("addbmm", rand(2, 2, dtype=dtype), batches, others)
        case("mv", a, x)
        case("addmv", rand(2, dtype=dtype), a, x, beta=2)
        case("dot", x, y)
        case("vdot", x, y)
        case("matmul", a, b)
        case("matmul", x, y)
        case("matmul", a, x)
        case("matmul", x, b)
        case("matmul", batches, b)
        case("matmul", rand(2, 1, 2, 3, dtype=dtype), rand(3, 3, 2, dtype=dtype))
        case("tensordot", batches, others, [2], [1])
        case("tensordot", batches, others, [1, 2], [0, 1])
        case("einsum", "ij,kj->ik", [a, rand(4, 3, dtype=dtype)])
        case("einsum", "bij,bjk->bki", [batches, others])
        case("einsum", "i,i->", [x, y])
        case("einsum", "bij,bjk,b->ik", [batches, others, rand(2, dtype=dtype)])
        case("einsum", "...j,...kj", [batches, rand(1, 2, 3, dtype=dtype)])
        case("einsum", "iij,jk->ki", [batches, rand(3, 2, dtype=dtype)])
        case("einsum", "bij->jb", [batches])
        case("einsum", "ij,jk,lk->il", [a, b, c], path=[1, 2, 0, 1])
        case("inner", batches, rand(4, 3, dtype=dtype))
        case("inner", batches, rand(dtype=dtype))
        case("linalg_multi_dot", [x, b, rand(4, 2, dtype=dtype), rand(2, dtype=dtype)])
        case("chain_matmul", [a, b, rand(4, 2, dtype=dtype)])
        bilinear = rand(4, 3, 2, dtype=dtype)
        case("bilinear", batches, rand(2, 2, 2, dtype=dtype), bilinear, rand(4, dtype=dtype))
        case("bilinear", x, y[:2], bilinear)
    case("mm", torch.zeros(2, 0), torch.zeros(0, 3))
    case("addmm", torch.full((2, 3), NAN), rand(2, 2), rand(2, 3), beta=0)
    for op in ["mm", "matmul"]:
        case(op, ints(2, 3), ints(3, 2, seed=1))
    case("_int_mm", ints(32, 16, dtype=I8), ints(16, 8, dtype=I8, seed=1))


def quarters(*shape, dtype=F32, seed=0):
    """Numbers whose sums of products are exact."""
    return ints(*shape, dtype=F64, low=-4, high=5, seed=seed).div(4).to(dtype)


def convolutions():
    for dtype in FLOATS:
        x, b = quarters(1, 4, 4, 3, dtype=dtype), quarters(6, dtype=dtype, seed=1)
        case("conv2d", x, quarters(6, 4, 3, 2, dtype=dtype), b, [2, 1], [1, 1])
        case("conv2d", x, quarters(6, 2, 2, 3, dtype=dtype), None, [1, 1], [0, 1], [2, 1], 2)
        case("conv1d", quarters(2, 3, 7, dtype=dtype), quarters(4, 3, 3, dtype=dtype), quarters(4, dtype=dtype), [2], [1], [2])
        case("conv_transpose2d.input", x, quarters(4, 3, 3, 2, dtype=dtype), quarters(3, dtype=dtype), [2, 3], [1, 0], [1, 0])
    # One filter or several for each channel, and kernels of one element.
    case("conv2d", quarters(1, 3, 4, 4), quarters(3, 1, 3, 3), quarters(3), [1, 1], [1, 1], [1, 1], 3)
    case("conv2d", quarters(1, 3, 4, 4), quarters(6, 1, 2, 2), None, [2, 2], [0, 0], [1, 1], 3)
    case("conv2d", quarters(2, 3, 2, 3), quarters(4, 3, 1, 1), quarters(4))
    case("conv2d", quarters(3, 4, 4), quarters(2, 3, 3, 3), quarters(2))
    case("conv2d", quarters(1, 3, 4, 5).to(memory_format=torch.channels_last), quarters(2, 3, 2, 2), quarters(2))
    case("conv2d", quarters(1, 2, 3, 3), quarters(1, 2, 3, 3))
    for padding in ["same", "valid"]:
        case("conv2d.padding", quarters(1, 2, 5, 4), quarters(2, 2, 2, 3), quarters(2), [1, 1], padding, [1, 1])
    case("conv1d.padding", quarters(1, 2, 6), quarters(2, 1, 4), None, [1], "same", [1], 2)
    case("conv3d", quarters(1, 2, 3, 4, 3), quarters(2, 2, 2, 3, 2), quarters(2), [1, 2, 1], [0, 1, 1], [1, 1, 2])
    case("conv3d.padding", quarters(1, 1, 3, 2, 3), quarters(1, 1, 2, 2, 3), None, [1, 1, 1], "same")
    case("conv_transpose1d", quarters(2, 3, 4), quarters(3, 2, 3), quarters(2), [2], [1], [1], 1, [2])
    case("conv_transpose1d", quarters(4, 3), quarters(4, 2, 2), None, [1], [0], [0], 2)
    # All that a kernel reaches beyond the images is cut off, and more.
    case("conv_transpose2d.input", quarters(1, 2, 4, 3), quarters(2, 1, 2, 1), None, [2, 3], [2, 1], [1, 1], 2)
    case("conv_transpose2d.input", quarters(1, 2, 3, 3), quarters(2, 3, 1, 1), quarters(3))
    case("conv_transpose3d.input", quarters(1, 2, 2, 3, 2), quarters(2, 2, 2, 3, 2), quarters(2), [1, 2, 2], [0, 1, 0], [0, 1, 0])
    case("convolution", quarters(1, 2, 4, 4), quarters(2, 2, 3, 3), quarters(2), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    case("convolution", quarters(1, 2, 4, 4), quarters(2, 1, 3, 3), quarters(2), [2, 2], [1, 1], [1, 1], True, [1, 1], 2)
    case("_convolution", quarters(1, 2, 4, 4), quarters(2, 2, 3, 2), quarters(2), [2, 1], [1, 1], [1, 1], False, [0, 0], 1,
         False, False, True, True)
    whole = lambda *shape: (quarters(*shape) * 4).to(I64)
    case("conv1d", whole(2, 4, 5), whole(6, 2, 3), whole(6), [2], [1], [1], 2)
    case("conv2d", whole(1, 2, 4, 4), whole(3, 2, 3, 2), None, [1, 1], [1, 0])
    case("conv_transpose2d.input", whole(1, 2, 3, 3), whole(2, 3, 3, 2), whole(3), [2, 2], [1, 1], [1, 1])
    case("conv1d", whole(2, 4, 5).to(I32), whole(6, 2, 3).to(I32), whole(6).to(I32), [2], [1], [1], 2)


def attention():
    op = "scaled_dot_product_attention"
    for dtype in FLOATS:
        q, k, v = (rand(2, 2, n, 4, dtype=dtype, seed=n) for n in (3, 5, 5))
        case(op, q, k, v)
        case(op, q, k, v, is_causal=True, scale=0.3)
        case(op, k, q, q, is_causal=True)
        case(op, q, k, v, rand(3, 5, dtype=dtype))
        case(op, q, k, v, rand(2, 1, 3, 5) > 0)
        case(op, q, k, v, rand(2, 1, 1, 5, dtype=dtype, seed=7))
        case(op, q, k[:, :1], v[:, :1], enable_gqa=True)
        case(op, q[0], k[0], v[0], torch.tensor([True, False, True, False, True]))
        case(op, q[0, 0], k[0, 0], rand(5, 3, dtype=dtype))
        # Rows with nothing in them. What is NaN counts in some of libtorch's loops and not in others.
        closed = torch.ones(3, 5, dtype=BOOL).tril(-1)
        case(op, q, k, v, closed)
        case(op, q, k, v, torch.zeros(3, 5, dtype=dtype).masked_fill(closed, -INF))
    case(op, rand(2, 4, 3, 4), rand(2, 2, 5, 4), rand(2, 2, 5, 4), rand(3, 5) > 0, scale=0.25, enable_gqa=True)
    case(op, rand(1, 2, 3, 4, dtype=BF16), rand(1, 2, 5, 4, dtype=BF16), rand(1, 2, 5, 4, dtype=BF16), rand(3, 5))
    # Batches that are broadcast.
    for dtype in FLOATS:
        q, k, v = (rand(2, 2, n, 4, dtype=dtype, seed=n) for n in (3, 5, 5))
        case(op, q, k[:1], v[:1, :1], is_causal=True)
        case(op, q[:1], k[0], v, rand(3, 5) > 0)
        case(op, q[0, 0], k, v[0, 0], scale=0.3)
        # No key is hidden: any factor is one.
        case(op, q, k, v, scale=-0.5)
        case(op, q, k, v, scale=0.0)


if __name__ == "__main__":
    for family in [unary, activations, arithmetic, bits, casts, reductions, normalisations, losses, views, indices,
                   other_names, pooling, windows, contractions, convolutions, attention]:
        family()
