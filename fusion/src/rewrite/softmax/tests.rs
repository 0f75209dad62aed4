use super::softmax;
use crate::graph::Op;
use crate::rewrite::tuple_reductions::tuple_reductions;
use crate::rewrite_limit::Rewrites;
use crate::{parse_graph, verify};

/// What is found of the last of `lines`, behind those that make exponentials `%5` of `%0` and their sums `%7`, `%8` of rows.
fn found(lines: &[&str]) -> String {
    let mut text = String::from(
        "graph {
          %0 = input 0 : f32[2,5]
          %1 = reduce max[1](%0) : f32[2]
          %2 = view reshape(%1) : f32[2,1]
          %3 = view expand(%2) : f32[2,5]
          %4 = map sub(%0, %3) : f32[2,5]
          %5 = map exp(%4) : f32[2,5]
          %6 = reduce sum[1](%5) : f32[2]
          %7 = view reshape(%6) : f32[2,1]
          %8 = view expand(%7) : f32[2,5]\n",
    );
    for (number, line) in (9..).zip(lines) {
        text.push_str(&format!("%{number} = {line}\n"));
    }
    text.push_str(&format!("outputs %{}\n}}", 8 + lines.len()));
    let mut graph = parse_graph(&text).unwrap();
    tuple_reductions(&mut graph, &Rewrites::default());
    verify(&graph).unwrap();
    let Some(found) = softmax(&graph, graph.outputs[0]) else { return "none".to_owned() };
    let of = &graph.node(found.scores.node).op;
    assert!(matches!(of, Op::Input(0)) && found.dims[..] == [1], "{graph}");
    format!("{}softmax, {} nodes", if found.safe { "safe " } else { "" }, found.inner.len())
}

const INVERSE: [&str; 7] = [
    "scalar 1.0 : f32[]",
    "view reshape(%9) : f32[1,1]",
    "view expand(%10) : f32[2,1]",
    "map div(%11, %7) : f32[2,1]",
    "view expand(%12) : f32[2,5]",
    "map mul(%5, %13) : f32[2,5]",
    "map mul(%13, %5) : f32[2,5]",
];

#[test]
fn quotients_and_products_with_an_inverse() {
    assert_eq!(found(&["map div(%5, %8) : f32[2,5]"]), "softmax, 8 nodes");
    assert_eq!(found(&INVERSE[..6]), "softmax, 9 nodes");
    assert_eq!(found(&INVERSE), "softmax, 9 nodes");
    // Each of these divides something else, or by something else.
    assert_eq!(found(&["map div(%4, %8) : f32[2,5]"]), "none");
    assert_eq!(found(&["map div(%5, %3) : f32[2,5]"]), "none");
    assert_eq!(found(&["map div(%8, %5) : f32[2,5]"]), "none");
}

#[test]
fn rows_of_nothing_but_minus_infinity() {
    let guarded = |test: &str, number: &str, select: &str| {
        let lowest = format!("scalar {number} : f32[]");
        let all = [
            "map div(%5, %8) : f32[2,5]",
            &lowest,
            "view reshape(%10) : f32[1,1]",
            "view expand(%11) : f32[2,1]",
            test,
            "view expand(%13) : bool[2,5]",
            "scalar 0.0 : f32[]",
            "view reshape(%15) : f32[1,1]",
            "view expand(%16) : f32[2,5]",
            select,
        ];
        found(&all)
    };
    let (is_lowest, zero_there) = ("map eq(%2, %12) : bool[2,1]", "map select(%14, %17, %9) : f32[2,5]");
    assert_eq!(guarded(is_lowest, "-inf", zero_there), "safe softmax, 11 nodes");
    assert_eq!(guarded("map eq(%12, %2) : bool[2,1]", "-inf", zero_there), "safe softmax, 11 nodes");
    // The sum is none of -inf, another number is tested for, and 0 is chosen elsewhere.
    assert_eq!(guarded("map eq(%7, %12) : bool[2,1]", "-inf", zero_there), "none");
    assert_eq!(guarded(is_lowest, "-1.0", zero_there), "none");
    assert_eq!(guarded(is_lowest, "-inf", "map select(%14, %9, %17) : f32[2,5]"), "none");
}
