//! Windows and zeros between elements, as they are evaluated and as a loop over their elements.

#![allow(clippy::unwrap_used)]

use tilefuse_block::Data;
use tilefuse_fusion::eval::{Precision, Sources, eval};
use tilefuse_fusion::{lower, parse_graph, verify};

fn sample(len: i64) -> Vec<f64> {
    (0..len).map(|i| ((i * 37) % 19) as f64 * 0.25 - 2.0).collect()
}

/// What the graph of a text computes of two samples.
fn evaluated(text: &str) -> Vec<f64> {
    let graph = parse_graph(text).unwrap();
    verify(&graph).unwrap();
    assert_eq!(parse_graph(&graph.to_string()).unwrap().to_string(), graph.to_string());
    let graph = lower(&graph).unwrap();
    verify(&graph).unwrap();
    let inputs = graph.ids().filter(|&id| matches!(graph.node(id).op, tilefuse_fusion::Op::Input(_)));
    let inputs: Vec<Data> = inputs.map(|id| Data::F64(sample(graph.node(id).outs[0].numel()))).collect();
    let sources = Sources { inputs: &inputs, ..Sources::default() };
    eval(&graph, sources, Precision::Exact).unwrap().outputs[0].to_f64()
}

#[test]
fn a_window_is_a_loop_over_its_elements() {
    for (size, kernel, stride, dilation) in [
        ([5, 6], [3, 2], [1, 1], [1, 1]),
        ([7, 5], [2, 3], [2, 1], [3, 2]),
        ([4, 4], [4, 1], [3, 3], [1, 5]),
        ([1, 9], [1, 2], [1, 4], [1, 4]),
    ] {
        let count = |d: usize| (size[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
        let (rows, columns) = (count(0), count(1));
        let text = format!(
            "graph {{
              %0 = input 0 : f64[{},{}]
              %1 = view window[0,1] kernel{kernel:?} stride{stride:?} dilation{dilation:?}(%0) : f64[{rows},{columns},{},{}]
              outputs %1
            }}",
            size[0], size[1], kernel[0], kernel[1]
        );
        let mut direct = Vec::new();
        let data = sample(size[0] * size[1]);
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            for (r, s) in (0..kernel[0]).flat_map(|r| (0..kernel[1]).map(move |s| (r, s))) {
                let at = [i * stride[0] + r * dilation[0], j * stride[1] + s * dilation[1]];
                direct.push(data[(at[0] * size[1] + at[1]) as usize]);
            }
        }
        assert_eq!(evaluated(&text), direct, "{text}");
    }
}

#[test]
fn a_window_may_leave_out_dimensions() {
    let text = "graph {
      %0 = input 0 : f64[2,5,3]
      %1 = view window[1] kernel[2] stride[2] dilation[1](%0) : f64[2,2,3,2]
      outputs %1
    }";
    let data = sample(30);
    let found = evaluated(text);
    for (at, &value) in found.iter().enumerate() {
        let (b, i, c, k) = (at / 12, at / 6 % 2, at / 2 % 3, at % 2);
        assert_eq!(value, data[b * 15 + (i * 2 + k) * 3 + c]);
    }
    assert_eq!(found.len(), 24);
}

#[test]
fn elements_are_padded_apart() {
    let text = "graph {
      %0 = input 0 : f64[3,2]
      %1 = view pad[1,0] interior[2,0]=-7.0(%0) : f64[10,3]
      outputs %1
    }";
    let data = sample(6);
    let mut direct = vec![-7.0; 30];
    for (i, j) in (0..3).flat_map(|i| (0..2).map(move |j| (i, j))) {
        direct[(1 + 3 * i) * 3 + j] = data[i * 2 + j];
    }
    assert_eq!(evaluated(text), direct);
}

#[test]
fn views_that_are_not_well_formed_are_refused() {
    for view in [
        "view window[0,1] kernel[2,2] stride[1,1] dilation[1,1](%0) : f32[4,3,2]",
        "view window[0,1] kernel[2,2] stride[1,1] dilation[1,1](%0) : f32[4,4,2,2]",
        "view window[1,0] kernel[2,2] stride[1,1] dilation[1,1](%0) : f32[4,3,2,2]",
        "view window[0,0] kernel[2,2] stride[1,1] dilation[1,1](%0) : f32[3,4,2,2]",
        "view window[2] kernel[2] stride[1] dilation[1](%0) : f32[5,4,2]",
        "view window[1] kernel[5] stride[1] dilation[1](%0) : f32[5,0,5]",
        "view window[1] kernel[2] stride[0] dilation[1](%0) : f32[5,3,2]",
        "view window[1] kernel[0] stride[1] dilation[1](%0) : f32[5,5,0]",
        "view window[1] kernel[2] stride[1] dilation[-1](%0) : f32[5,6,2]",
        "view window[1] kernel[9223372036854775807] stride[1] dilation[9](%0) : f32[5,1,1]",
        "view pad[0,0] interior[0,1]=0.0(%0) : f32[5,6]",
        "view pad[0,0] interior[0]=0.0(%0) : f32[5,4]",
        "view pad[0,0] interior[0,-1]=0.0(%0) : f32[5,4]",
        "view pad[0,1] interior[0,9223372036854775807]=0.0(%0) : f32[5,9]",
    ] {
        let text = format!("graph {{\n  %0 = input 0 : f32[5,4]\n  %1 = {view}\n  outputs %1\n}}");
        assert!(verify(&parse_graph(&text).unwrap()).is_err(), "{view}");
    }
    let text = "graph {\n  %0 = input 0 : f32[5]\n  %1 = view window[0] kernel[1,2] stride[1] dilation[1](%0) : f32[5,1]\n}";
    assert!(parse_graph(text).is_err());
}
