//! Which lowered operators the tables of edge values and the generator of random programs have, and which they leave out, and why.
//! A list that is not up to date fails.

use std::collections::BTreeSet;

use tilefuse::random::generate;
use tilefuse_fusion::lowered_operators;

/// Other names that are lowered as an operator is, or as one form of it.
const ALIASES: &[(&str, &[&str])] = &[
    ("sub", &["subtract"]),
    ("mul", &["multiply"]),
    ("div", &["divide", "true_divide"]),
    ("atan2", &["arctan2"]),
    ("clamp", &["clip"]),
    ("outer", &["ger"]),
    ("xlogy", &["special_xlogy"]),
    ("neg", &["negative"]),
    ("exp2", &["special_exp2"]),
    ("expm1", &["special_expm1"]),
    ("log1p", &["special_log1p"]),
    ("asin", &["arcsin"]),
    ("acos", &["arccos"]),
    ("atan", &["arctan"]),
    ("asinh", &["arcsinh"]),
    ("acosh", &["arccosh"]),
    ("atanh", &["arctanh"]),
    ("erf", &["special_erf"]),
    ("erfc", &["special_erfc"]),
    ("sigmoid", &["special_expit"]),
    ("abs", &["absolute"]),
    ("trunc", &["fix"]),
    ("round", &["special_round"]),
    ("logit", &["special_logit"]),
    ("ne", &["not_equal"]),
    ("lt", &["less"]),
    ("le", &["less_equal"]),
    ("gt", &["greater"]),
    ("ge", &["greater_equal"]),
    ("bitwise_and", &["__and__"]),
    ("bitwise_or", &["__or__"]),
    ("bitwise_xor", &["__xor__"]),
    ("bitwise_left_shift", &["__lshift__"]),
    ("bitwise_right_shift", &["__rshift__"]),
    ("norm", &["frobenius_norm"]),
    ("logsumexp", &["special_logsumexp"]),
    ("softmax", &["_softmax", "special_softmax"]),
    ("log_softmax", &["_log_softmax", "special_log_softmax"]),
    ("layer_norm", &["native_layer_norm"]),
    ("group_norm", &["native_group_norm"]),
    ("batch_norm", &["native_batch_norm", "_native_batch_norm_legit_no_training"]),
    ("prelu", &["_prelu_kernel"]),
    ("to", &["_to_copy", "type_as"]),
    ("clone", &["alias", "detach", "lift_fresh"]),
    (
        "reshape",
        &["_unsafe_view", "_reshape_alias", "reshape_as", "ravel", "atleast_1d", "atleast_2d", "atleast_3d"],
    ),
    ("expand", &["broadcast_to"]),
    ("transpose", &["swapdims", "swapaxes"]),
    ("t", &["numpy_T"]),
    ("mT", &["mH", "matrix_H", "adjoint"]),
    ("movedim", &["moveaxis"]),
    ("split", &["unsafe_split"]),
    ("chunk", &["unsafe_chunk"]),
    ("split_with_sizes", &["unsafe_split_with_sizes"]),
    ("cat", &["concat", "concatenate"]),
    ("constant_pad_nd", &["pad"]),
    ("conv2d", &["convolution", "_convolution"]),
];

/// Operators that are left out, by the reason.
type LeftOut = &'static [(&'static str, &'static [&'static str])];

/// What random programs do not call.
const NOT_GENERATED: LeftOut = &[
    ("training makes it draw", &["rrelu", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"]),
    ("no operand to choose", &["zeros", "ones", "full", "scalar_tensor", "arange", "eye"]),
    ("writes through `as_strided` become it", &["as_strided_scatter"]),
];

/// Families without functions or reductions of elements.
const NO_FUNCTIONS: &[&str] =
    &["cast", "create", "pooling", "loss", "view", "strided", "index", "contract", "conv", "attention"];

/// What the tables of edge values do not have, of the other families.
const NO_EDGE_VALUES: LeftOut = &[
    ("products of two vectors, whose elements `mul` computes", &["outer"]),
    (
        "the identity, or random numbers",
        &["rrelu", "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"],
    ),
    ("weights or statistics of channels", &["prelu", "batch_norm"]),
    ("halves of a tensor: a product with `sigmoid`", &["glu"]),
    ("means of whole images, which `mean` is", &["adaptive_avg_pool1d", "adaptive_avg_pool2d"]),
];

/// Fails where a lowered operator of the families is neither in `found`, nor left out, nor another name of one that is; or where
/// one is left out that need not be.
fn check(families: impl Fn(&str) -> bool, found: &BTreeSet<String>, left_out: LeftOut) {
    let lowered = lowered_operators().into_iter().filter(|(family, _)| families(family));
    let lowered: BTreeSet<&str> = lowered.flat_map(|(_, operators)| operators).collect();
    let left_out: BTreeSet<&str> =
        left_out.iter().flat_map(|(_, operators)| operators.iter().copied()).collect();
    let has = |operator: &str| found.contains(operator) || left_out.contains(operator);
    let aliases: BTreeSet<&str> =
        ALIASES.iter().filter(|(of, _)| has(of)).flat_map(|(_, names)| names.iter().copied()).collect();
    let missing: Vec<&&str> = lowered.iter().filter(|op| !has(op) && !aliases.contains(**op)).collect();
    assert!(missing.is_empty(), "neither there nor left out for a reason: {missing:?}");
    let stale: Vec<&&str> =
        left_out.iter().filter(|op| found.contains(**op) || !lowered.contains(**op)).collect();
    assert!(stale.is_empty(), "left out, but there or not lowered: {stale:?}");
}

#[test]
fn aliases_are_lowered() {
    let lowered: BTreeSet<&str> =
        lowered_operators().into_iter().flat_map(|(_, operators)| operators).collect();
    let names = ALIASES.iter().flat_map(|(of, names)| names.iter().chain([of]));
    let unknown: Vec<&&str> = names.filter(|name| !lowered.contains(**name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn every_lowered_function_is_tried_on_edge_values() {
    let families: BTreeSet<&str> = lowered_operators().into_iter().map(|(family, _)| family).collect();
    let unknown: Vec<&&str> = NO_FUNCTIONS.iter().filter(|family| !families.contains(**family)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    check(|family| !NO_FUNCTIONS.contains(&family), &crate::edge::operators(), NO_EDGE_VALUES);
}

#[test]
fn every_lowered_operator_is_in_random_programs() {
    // What is written in place is lowered as its functional form.
    let name = |call: &str| call.split('.').next().unwrap_or_default().trim_end_matches('_').to_owned();
    let programs = (0..3000).map(generate);
    let found = programs.flat_map(|program| program.ops.iter().map(|op| name(&op.name)).collect::<Vec<_>>());
    check(|_| true, &found.collect(), NOT_GENERATED);
}
