//! Text that is no graph or recording gives an error with its place, and never a panic.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tilefuse_fusion::{functionalize, lower, parse_graph, parse_recording, simplify, verify};

const GRAPH: &str = r#"graph {
  origin 0 "aten::relu #4"
  %0 = input 0 : f32[2,3]{1,2}
  %1 = param 3 : f32[3]
  %2 = const 0 = 2.5 : f32[]
  %3 = aten::add.Tensor(self=%0, other=%1, alpha=1) !replay 7 : f32[2,3]
  %4, %5 = aten::foo(a=[%0, None], b=tensors[None], c=ints[], d=[1.5, -inf, nan], e="x\"\n", f=f16, g=cuda:1, h=other "complex") !random !writes[0] : f32[2,3], dtype-1[]@device7
  %6 = scalar 0.0 : f32[]
  %7 = view reshape(%6) : f32[1,1]
  %8 = view expand(%7) : f32[2,3]
  %9 = map max(%3, %8) : f32[2,3] @0
  %10 = iota 1 : i64[2,3]
  %11 = gather 0(%9, %10) : f32[2,3]
  %12 = reduce sum[0](%11) : f32[3]
  %13 = view pad[1]=nan(%12) : f32[5]
  %14 = view slice[0,1,2](%13) : f32[2]
  %15 = concat 0(%14, %14) : f32[4]
  %16 = view flip[0](%15) : f32[4]
  %17 = cast(%16) : bf16[4]
  %18 = aten::linear(input=%0, weight=%9, bias=%14) contracts sum[1]x[1](0, 1) alpha 0.5 adds 2 beta -2.0 !replay 1 : f32[2,2]
  %19 = view reshape(%9) : f32[2,3,1]
  %20 = aten::conv_transpose1d(input=%0, weight=%19) contracts window stride[2] padding[1]x[0] dilation[1] groups 2 transposed output_padding[0] batch[0]x[0] sum[1,3]x[1,3](0, 1) : f32[6,4]
  %21 = aten::attend(q=%11, k=%11, v=%11) attends(0, 1, 2) scale -0.5 : f32[2,3]
  %22 = aten::attend(q=%0, k=%9, v=%11, mask=%14) attends(0, 2, 1) scale 2.0 adds 3 : f32[2,3]
  %23 = kernel pack(%9) : f32[1,2,3]
  outputs %17, %4
  update %0 <- %9
  alias 1 = %0 + 0 : f32[2,3]{1,2}
}
"#;

const RECORDING: &str = r#"recording {
  %0 = input 0 : f32[4]
  %1 = param 0 "weight" : f32[4]
  %2 = const 0 = 3 : i64[]
  %3: f32[2] in %0+2 = aten::slice.Tensor(self=%0, dim=0, start=2, end=4, step=1)
  %3 = aten::relu_(self=%3!)
  %4: f32[4] opaque, _ = aten::foo(a=%1, b=%2, c=None) !random
  outputs %3
}
"#;

#[test]
fn graphs_and_recordings_print_as_they_parse() {
    assert_eq!(parse_graph(GRAPH).unwrap().to_string(), GRAPH);
    assert_eq!(parse_recording(RECORDING).unwrap().to_string(), RECORDING);
}

#[test]
fn errors_name_the_place() {
    for (text, message) in [
        ("graph {\n  %0 = inptu 0 : f32[2]\n}", "line 2, column 8: `inptu` is no operator"),
        ("graph {\n  %0 = input 0 : f33[2]\n}", "line 2, column 18: `f33` is no element type"),
        ("graph {\n  %0 = map exp(%1) : f32[2]\n}", "line 2, column 16: `%1` is not defined above"),
        (
            "graph {\n  %0 = input 0 : f32[-2]\n}",
            "line 2, column 24: a size is negative, or the sizes are too large",
        ),
        ("graph {\n  %0 = scalar 1 : f32[]\n}", "line 3, column 1: `1` is no literal of type f32"),
        ("graph {", "line 1, column 8: expected a value like `%0`, found the end of the text"),
        ("graph { outputs \"x }", "line 1, column 21: a string is not closed"),
    ] {
        let error = parse_graph(text).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
}

fn mangled(text: &'static str) -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "",
        "%",
        "-",
        "9223372036854775807",
        "[",
        "(",
        "\"",
        ",",
        "0",
        "f16",
        "é",
        "}",
        "= ",
    ]);
    (0..text.len(), 0usize..12, pieces).prop_map(|(at, length, piece)| {
        let end = (at + length).min(text.len());
        format!("{}{piece}{}", &text[..at], &text[end..])
    })
}

proptest! {
    #[test]
    fn mangled_graphs_do_not_panic(text in mangled(GRAPH)) {
        if let Ok(graph) = parse_graph(&text)
            && verify(&graph).is_ok()
            && let Ok(mut graph) = lower(&graph)
        {
            simplify(&mut graph);
        }
    }

    #[test]
    fn mangled_recordings_do_not_panic(text in mangled(RECORDING)) {
        if let Ok(recording) = parse_recording(&text) {
            let _ = functionalize(&recording);
        }
    }
}
