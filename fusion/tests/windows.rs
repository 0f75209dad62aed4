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

/// A convolution by its definition: each element of an image is brought to the result by each of the kernel, forwards or back.
#[test]
fn convolutions_are_sums_of_products() {
    for (size, kernel, stride, padding, dilation, further, groups, transposed) in [
        (5, 3, 1, 1, 1, 0, 1, false),
        (8, 2, 3, 0, 2, 0, 2, false),
        (4, 4, 2, 3, 1, 0, 4, false),
        (5, 3, 1, 1, 1, 0, 1, true),
        (4, 2, 3, 0, 1, 2, 2, true),
        (3, 3, 2, 4, 2, 1, 1, true),
        (6, 2, 1, 3, 2, 1, 4, true),
        (5, 1, 3, 1, 1, 2, 2, true),
    ] {
        let (channels, filters) = (4, 8);
        let reach = dilation * (kernel - 1);
        let out = match transposed {
            false => (size + 2 * padding - reach - 1) / stride + 1,
            true => (size - 1) * stride - 2 * padding + reach + further + 1,
        };
        let (per_group, of_group) = (channels / groups, filters / groups);
        let (weight, name) = match transposed {
            false => (format!("{filters},{per_group}"), "conv1d"),
            true => (format!("{channels},{of_group}"), "conv_transpose1d"),
        };
        let more = if transposed { format!(", output_padding=[{further}]") } else { String::new() };
        let text = format!(
            "graph {{
              %0 = input 0 : f64[2,{channels},{size}]
              %1 = input 1 : f64[{weight},{kernel}]
              %2 = aten::{name}(input=%0, weight=%1, bias=None, stride=[{stride}], padding=[{padding}]{more}, groups={groups}, dilation=[{dilation}]) : f64[2,{filters},{out}]
              outputs %2
            }}"
        );
        let (x, w) = (sample(2 * channels * size), sample(channels * filters / groups * kernel));
        let mut direct = vec![0.0; (2 * filters * out) as usize];
        for (n, f, c) in (0..2 * filters * per_group)
            .map(|i| (i / per_group / filters, i / per_group % filters, i % per_group))
        {
            let g = f / of_group;
            for (i, k) in (0..size * kernel).map(|i| (i / kernel, i % kernel)) {
                let (at, weight) = match transposed {
                    false => {
                        let at = i + padding - k * dilation;
                        if at < 0 || at % stride != 0 {
                            continue;
                        };
                        (at / stride, (f * per_group + c) * kernel + k)
                    }
                    true => (
                        i * stride - padding + k * dilation,
                        ((g * per_group + c) * of_group + f % of_group) * kernel + k,
                    ),
                };
                if (0..out).contains(&at) {
                    let image = x[((n * channels + g * per_group + c) * size + i) as usize];
                    direct[((n * filters + f) * out + at) as usize] += image * w[weight as usize];
                }
            }
        }
        assert_eq!(evaluated(&text), direct, "{text}");
    }
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
