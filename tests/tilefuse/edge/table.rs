//! The tables: calls, how near to the exact value their results must be, and in which types they are not asked for.

use tch::Kind;

/// How near a result must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Accuracy {
    /// Equal to eager's to the bit, zeros with their sign.
    Exact,
    /// As `Exact`, but a zero may have either sign: which of two equal zeros is the larger is nowhere defined.
    Zeros,
    /// Equal, or of at most this error in units in the last place, or of twice eager's own error.
    Ulp(f64),
    /// As `Ulp`, and a zero may have either sign: what a sum of zeros is depends on where it starts.
    Sum(f64),
    /// As `Ulp`, or of at most this error in units of the operand: eager cancels where fused code does not.
    Operand(f64),
    /// As eager, or as near to the exact value as results that are about 1 may be. Where a square leaves the type, NaN as
    /// well: what eager gives then depends on the order of its sums.
    Norm,
    /// A mean or variance from all deviations: eager updates both element by element, which is exact where all elements
    /// are equal, and NaN where one is infinite.
    Moments,
}

/// A call with operands `%0`, `%1`, `%2`.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The call in the text of programs.
    pub(super) call: String,
    pub(super) accuracy: Accuracy,
    /// Number of tensors that it returns.
    pub(super) results: usize,
    /// Only in these types; in all that eager takes where empty.
    only: &'static [Kind],
    target: Option<Kind>,
}

const FLOAT: &[Kind] = &[Kind::Half, Kind::BFloat16, Kind::Float, Kind::Double];
const INT: &[Kind] = &[Kind::Int64, Kind::Int, Kind::Int16, Kind::Int8, Kind::Uint8];

impl Row {
    fn new(call: &str, accuracy: Accuracy) -> Row {
        let call = if call.contains('(') { call.to_owned() } else { format!("{call}(%0)") };
        Row { call, accuracy, results: 1, only: &[], target: None }
    }

    fn binary(call: &str, accuracy: Accuracy) -> Row {
        let call = if call.contains('(') { call.to_owned() } else { format!("{call}(%0, %1)") };
        Row { call, ..Row::new("", accuracy) }
    }

    fn only(mut self, kinds: &'static [Kind]) -> Row {
        self.only = kinds;
        self
    }

    fn several(mut self, results: usize) -> Row {
        self.results = results;
        self
    }

    /// The conversion to a type.
    pub(super) fn cast(name: &str, kind: Kind) -> Row {
        Row { target: Some(kind), ..Row::new(&format!("to.dtype(%0, {name}, false, false)"), EXACT) }
    }

    /// The type that a conversion goes to.
    pub(super) fn target(&self) -> Kind {
        self.target.unwrap_or(Kind::Float)
    }

    /// Whether it is asked for in this type.
    pub(super) fn takes(&self, kind: Kind) -> bool {
        self.only.is_empty() || self.only.contains(&kind)
    }
}

const EXACT: Accuracy = Accuracy::Exact;
const NEAR: Accuracy = Accuracy::Ulp(4.0);
/// Several rounded steps, as in eager.
const STEPS: Accuracy = Accuracy::Ulp(8.0);

const ONE_EXACT: &[&str] = &[
    "neg",
    "abs",
    "floor",
    "ceil",
    "trunc",
    "round",
    "round.decimals(%0, 2)",
    "round.decimals(%0, -1)",
    "frac",
    "sign",
    "sgn",
    "square",
    "reciprocal",
    "nan_to_num(%0, none, none, none)",
    "nan_to_num(%0, 1.5, 3.0, -3.0)",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "signbit",
    "logical_not",
    "bitwise_not",
    "positive",
    "clone",
    "relu",
    "relu6",
    "hardtanh(%0, -1.0, 1.0)",
    "hardshrink(%0, 0.5)",
    "softshrink(%0, 0.5)",
    "threshold(%0, 0.5, -2.0)",
    "leaky_relu(%0, 0.01)",
    "leaky_relu(%0, -0.5)",
    "clamp(%0, -1.5, 2.5)",
    "clamp(%0, 2, 5)",
    "clamp(%0, 5, 2)",
    "clamp(%0, none, 1)",
    "clamp(%0, 1, none)",
    "clamp_min(%0, 0)",
    "clamp_max(%0, 0)",
    "clamp_min(%0, 0.5)",
    "add.Scalar(%0, 1, 1)",
    "add.Scalar(%0, 0.5, 1)",
    "sub.Scalar(%0, 3, 1)",
    "rsub.Scalar(%0, 1, 1)",
    "mul.Scalar(%0, -2)",
    "mul.Scalar(%0, 0)",
    "mul.Scalar(%0, 0.5)",
    "div.Scalar(%0, 2)",
    "div.Scalar(%0, 3)",
    "add.Scalar(%0, 1000000, 1)",
    "add.Scalar(%0, 0.1, 1)",
    "sub.Scalar(%0, 0.1, 1)",
    "rsub.Scalar(%0, 0.1, 1)",
    "mul.Scalar(%0, 0.1)",
    "div.Scalar(%0, 0.1)",
    "add.Scalar(%0, 0.1, 2)",
    "mul.Scalar(%0, 300)",
    "pow.Tensor_Scalar(%0, 0)",
    "pow.Tensor_Scalar(%0, 1)",
    "pow.Tensor_Scalar(%0, 2)",
    "eq.Scalar(%0, 0)",
    "ne.Scalar(%0, 0)",
    "lt.Scalar(%0, 0)",
    "le.Scalar(%0, 0)",
    "gt.Scalar(%0, 0)",
    "ge.Scalar(%0, 0)",
    "eq.Scalar(%0, 2.5)",
    "lt.Scalar(%0, 2.5)",
    "gt.Scalar(%0, 300)",
    "le.Scalar(%0, -129)",
    "bitwise_and.Scalar(%0, 6)",
    "bitwise_or.Scalar(%0, 9)",
    "bitwise_xor.Scalar(%0, -1)",
    "bitwise_left_shift.Tensor_Scalar(%0, 3)",
    "bitwise_right_shift.Tensor_Scalar(%0, 3)",
    "bitwise_left_shift.Tensor_Scalar(%0, 40)",
    "bitwise_right_shift.Tensor_Scalar(%0, 40)",
    "bitwise_left_shift.Tensor_Scalar(%0, -1)",
    "bitwise_right_shift.Tensor_Scalar(%0, -1)",
    "bitwise_left_shift.Tensor_Scalar(%0, 64)",
    "bitwise_right_shift.Tensor_Scalar(%0, 64)",
    "fmod.Scalar(%0, 3)",
    "fmod.Scalar(%0, -3)",
    "remainder.Scalar(%0, 3)",
    "remainder.Scalar(%0, -3)",
    "fmod.Scalar(%0, 2.5)",
    "remainder.Scalar(%0, 2.5)",
    "remainder.Scalar(%0, -2.5)",
    "fmod.Scalar(%0, inf)",
    "floor_divide.Scalar(%0, 3)",
    "floor_divide.Scalar(%0, -3)",
    "floor_divide.Scalar(%0, 0.7)",
    "div.Scalar_mode(%0, 3, \"floor\")",
    "div.Scalar_mode(%0, 3, \"trunc\")",
    "div.Scalar_mode(%0, -3, \"floor\")",
    "div.Scalar_mode(%0, -3, \"trunc\")",
    "div.Scalar_mode(%0, 0.7, \"floor\")",
    "div.Scalar_mode(%0, 0.7, \"trunc\")",
    "masked_fill.Scalar(%0, %0, 7)",
];

const ONE_NEAR: &[&str] = &[
    "sqrt",
    "pow.Tensor_Scalar(%0, 0.5)",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
    "log_sigmoid",
    "deg2rad",
    "rad2deg",
    "hardsigmoid",
    "pow.Tensor_Scalar(%0, 3)",
    "pow.Tensor_Scalar(%0, -1)",
    "pow.Tensor_Scalar(%0, -2)",
    "pow.Tensor_Scalar(%0, -0.5)",
    "pow.Tensor_Scalar(%0, 2.5)",
    "pow.Tensor_Scalar(%0, -3)",
    "pow.Tensor_Scalar(%0, 5)",
    "pow.Tensor_Scalar(%0, 4)",
    "pow.Tensor_Scalar(%0, inf)",
    "pow.Scalar(2, %0)",
    "pow.Scalar(0.5, %0)",
    "pow.Scalar(-2.0, %0)",
    "pow.Scalar(0, %0)",
    "pow.Scalar(1, %0)",
];

const ONE_STEPS: &[&str] = &[
    "gelu(%0, \"none\")",
    "silu",
    "mish",
    "hardswish",
    "elu(%0, 0.75)",
    "elu(%0, -1.0)",
    "celu(%0, 0.75)",
    "selu",
    "softplus(%0, 1.0, 20.0)",
    "softplus(%0, 2.5, 3.0)",
    "logit(%0, none)",
    "logit(%0, 0.1)",
    "sinc",
];

/// Functions of one value.
pub(super) fn one() -> impl Iterator<Item = &'static Row> {
    rows(|| {
        let make = |list: &[&str], accuracy| list.iter().map(|c| Row::new(c, accuracy)).collect::<Vec<_>>();
        [
            make(ONE_EXACT, EXACT),
            make(ONE_NEAR, NEAR),
            make(ONE_STEPS, STEPS),
            make(&["gelu(%0, \"tanh\")"], Accuracy::Operand(4.0)),
        ]
        .concat()
    })
}

const TWO_EXACT: &[&str] = &[
    "add.Tensor",
    "sub.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "copysign.Tensor",
    "eq.Tensor",
    "ne.Tensor",
    "lt.Tensor",
    "le.Tensor",
    "gt.Tensor",
    "ge.Tensor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and.Tensor",
    "bitwise_or.Tensor",
    "bitwise_xor.Tensor",
    "bitwise_left_shift.Tensor",
    "bitwise_right_shift.Tensor",
    "heaviside",
    "where.self(%0, %0, %1)",
    "fmod.Tensor",
    "remainder.Tensor",
    "div.Tensor_mode(%0, %1, \"trunc\")",
    "div.Tensor_mode(%0, %1, \"floor\")",
    "floor_divide",
    "clamp.Tensor(%0, %1, none)",
    "clamp.Tensor(%0, none, %1)",
    "masked_fill.Tensor(%0, %1, %0)",
    "add.Tensor(%0, %1, 2)",
    "sub.Tensor(%0, %1, -3)",
];

/// Where the second value is 0, eager raises for integers on the CPU, and `INT_MIN / -1` is undefined: integer division
/// is asked for with constants only.
const NOT_OF_INTEGERS: &[&str] = &["fmod.Tensor", "remainder.Tensor", "div.Tensor_mode", "floor_divide"];

const TWO_ZEROS: &[&str] = &["maximum", "minimum", "fmax", "fmin"];
const TWO_NEAR: &[&str] = &["pow.Tensor_Tensor", "atan2", "hypot"];
const TWO_STEPS: &[&str] =
    &["logaddexp", "xlogy.Tensor", "lerp.Scalar(%0, %1, 0.3)", "lerp.Scalar(%0, %1, 0.7)"];

/// Functions of two values.
pub(super) fn two() -> impl Iterator<Item = &'static Row> {
    rows(|| {
        let make =
            |list: &[&str], accuracy| list.iter().map(|c| Row::binary(c, accuracy)).collect::<Vec<_>>();
        let mut all = [
            make(TWO_EXACT, EXACT),
            make(TWO_ZEROS, Accuracy::Zeros),
            make(TWO_NEAR, NEAR),
            make(TWO_STEPS, STEPS),
        ]
        .concat();
        for row in &mut all {
            if NOT_OF_INTEGERS.iter().any(|n| row.call.starts_with(n)) {
                row.only = FLOAT;
            }
        }
        all
    })
}

/// Functions of three values.
pub(super) fn three() -> impl Iterator<Item = &'static Row> {
    rows(|| {
        vec![
            Row::new("where.self(%0, %1, %2)", EXACT),
            Row::new("clamp.Tensor(%0, %1, %2)", EXACT),
            Row::new("lerp.Tensor(%0, %1, %2)", STEPS).only(FLOAT),
            Row::new("addcmul(%0, %1, %2, 0.5)", STEPS).only(FLOAT),
            Row::new("addcmul(%0, %1, %2, 1)", STEPS),
            Row::new("addcmul(%0, %1, %2, 3)", EXACT).only(INT),
            Row::new("addcdiv(%0, %1, %2, 0.5)", STEPS).only(FLOAT),
        ]
    })
}

const REDUCE_EXACT: &[&str] = &[
    "max",
    "min",
    "amax(%0, [1], false)",
    "amin(%0, [1], false)",
    "amax(%0, [], false)",
    "amax(%0, [0], true)",
    "argmax(%0, 1, false)",
    "argmin(%0, 1, false)",
    "argmax(%0, none, false)",
    "argmin(%0, none, false)",
    "argmax(%0, 0, true)",
    "any",
    "all",
    "any.dim(%0, 1, false)",
    "all.dim(%0, 1, false)",
    "any.dim(%0, 0, true)",
    "count_nonzero.dim_IntList(%0, [1])",
    "count_nonzero(%0)",
];

const REDUCE_NEAR: &[&str] = &[
    "sum(%0)",
    "sum.dim_IntList(%0, [1], false)",
    "sum.dim_IntList(%0, [0], true)",
    "mean(%0)",
    "mean.dim(%0, [1], false)",
    "mean.dim(%0, [0], false)",
    "prod(%0)",
    "prod.dim_int(%0, 1, false)",
    "prod.dim_int(%0, 0, true)",
    "nansum(%0, [1], false)",
    "sum.dim_IntList(%0, [1], false, f64)",
    "sum.dim_IntList(%0, [1], false, f32)",
    "mean.dim(%0, [1], false, f32)",
    "norm.ScalarOpt_dim(%0, 2, [1], false)",
    "norm.ScalarOpt_dim(%0, 1, [1], false)",
    "norm.ScalarOpt_dim(%0, 0, [1], false)",
    "norm.ScalarOpt_dim(%0, 3, [1], true)",
    "norm.ScalarOpt_dim(%0, inf, [1], false)",
    "norm.ScalarOpt_dim(%0, -inf, [1], false)",
    "norm.ScalarOpt_dim(%0, 0.5, [1], false)",
    "norm.ScalarOpt_dim(%0, -1, [1], false)",
    "linalg_vector_norm(%0, 2, [1], false)",
    "linalg_vector_norm(%0, 4, none, false)",
    "norm.Scalar(%0, 2)",
    "logsumexp(%0, [1], false)",
    "logsumexp(%0, [0], true)",
    "softmax.int(%0, 1)",
    "softmax.int(%0, 0)",
    "log_softmax.int(%0, 1)",
    "log_softmax.int(%0, 0)",
    "cumsum(%0, 1)",
    "cumprod(%0, 1)",
    "logcumsumexp(%0, 1)",
];

const MOMENTS: &[&str] = &[
    "var.correction(%0, [1])",
    "var.correction(%0, [1], 0, true)",
    "var.correction(%0, [1], 2, false)",
    "std.correction(%0, [1])",
    "std.correction(%0, [0], 0, true)",
    "var(%0, true)",
    "std(%0, false)",
];

/// Reductions of a matrix.
pub(super) fn reductions() -> impl Iterator<Item = &'static Row> {
    rows(|| {
        let make = |list: &[&str], accuracy| list.iter().map(|c| Row::new(c, accuracy)).collect::<Vec<_>>();
        let pairs = [
            "max.dim(%0, 1, false)",
            "min.dim(%0, 1, false)",
            "max.dim(%0, 0, true)",
            "min.dim(%0, 0, true)",
            "aminmax(%0, 1, false)",
            "cummax(%0, 1)",
        ];
        let moments = ["var_mean.correction(%0, [1])", "std_mean.correction(%0, [1], 0, true)"];
        [
            make(REDUCE_EXACT, Accuracy::Zeros),
            make(REDUCE_NEAR, Accuracy::Sum(20.0)),
            pairs.iter().map(|c| Row::new(c, Accuracy::Zeros).several(2)).collect(),
            make(MOMENTS, Accuracy::Moments),
            moments.iter().map(|c| Row::new(c, Accuracy::Moments).several(2)).collect(),
        ]
        .concat()
    })
}

/// Normalisations along rows of this length: of a matrix, and of its rows as the one channel of an image each.
pub(super) fn norms(length: i64) -> [Vec<Row>; 2] {
    let make = |calls: &[String]| calls.iter().map(|c| Row::new(c, Accuracy::Norm).only(FLOAT)).collect();
    [
        make(&[
            format!("layer_norm(%0, [{length}], none, none, 1e-05, true)"),
            format!("layer_norm(%0, [{length}], none, none, 1e-12, true)"),
            String::from("group_norm(%0, 1, none, none, 1e-05, true)"),
            format!("rms_norm(%0, [{length}], none, 1e-06)"),
        ]),
        make(&[String::from("instance_norm(%0, none, none, none, none, true, 0.1, 1e-05, true)")]),
    ]
}

/// Reductions of very many elements.
pub(super) fn large() -> impl Iterator<Item = &'static Row> {
    rows(|| {
        [
            "sum(%0)",
            "mean(%0)",
            "sum.dim_IntList(%0, [1], false)",
            "mean.dim(%0, [1], false)",
            "prod(%0)",
            "argmax(%0)",
        ]
        .iter()
        .map(|c| Row::new(c, NEAR))
        .collect()
    })
}

/// A table that lives as long as the tests.
fn rows(make: impl FnOnce() -> Vec<Row>) -> impl Iterator<Item = &'static Row> {
    let all: &'static [Row] = Box::leak(make().into_boxed_slice());
    all.iter()
}
