//! Calls of convolutions.

use expect_test::{Expect, expect};

use crate::library_form::tests::calls_alone;
use crate::machine::Profile;
use crate::pipeline::primitive;
use crate::{lower, parse_graph};

fn check(text: &str, expect: Expect) {
    expect.assert_eq(&primitive(text, &Profile::gpu(132, 4200.0)).to_string());
}

/// The graph behind the pass, without what calls compute.
fn selected(text: &str) -> String {
    calls_alone(&primitive(text, &Profile::gpu(132, 4200.0)))
}

/// The graph of a call of operands of these types.
fn call(operands: &str, call: &str) -> String {
    let mut text = String::from("graph {\n  origin 0 \"call\"\n");
    let types: Vec<&str> = operands.split(' ').collect();
    for (slot, ty) in types.iter().enumerate() {
        text.push_str(&format!("  %{slot} = input {slot} : {ty}\n"));
    }
    let result = types.len();
    format!("{text}  %{result} = aten::{call} @0\n  outputs %{result}\n}}\n")
}

/// Each of these is the same call behind the contraction that it is lowered to.
#[test]
fn captured_calls_are_these_calls_again() {
    let tensors = "input=%0, weight=%1, bias=";
    for (operands, name, args, result) in [
        (
            "f32[2,3,8,8] f32[4,3,3,3] f32[4]",
            "conv2d",
            "%2, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[2,4,8,8]",
        ),
        (
            "bf16[2,3,8,8] bf16[4,3,3,3] bf16[4]",
            "conv2d",
            "%2, stride=[2, 1], padding=[0, 1], dilation=[1, 2], groups=1",
            "bf16[2,4,3,6]",
        ),
        (
            "f16[2,3,8,8] f16[4,3,3,3]",
            "conv2d",
            "None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1",
            "f16[2,4,6,6]",
        ),
        (
            "f32[2,6,8,8] f32[4,3,3,3] f32[4]",
            "conv2d",
            "%2, stride=[1, 1], padding=[2, 2], dilation=[2, 2], groups=2",
            "f32[2,4,8,8]",
        ),
        (
            "bf16[2,6,8,8] bf16[12,1,5,5] bf16[12]",
            "conv2d",
            "%2, stride=[3, 3], padding=[2, 2], dilation=[1, 1], groups=6",
            "bf16[2,12,3,3]",
        ),
        (
            "f32[2,6,8,8] f32[6,1,3,3]",
            "conv2d",
            "None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=6",
            "f32[2,6,6,6]",
        ),
        (
            "f32[3,8,8] f32[4,3,3,3] f32[4]",
            "conv2d",
            "%2, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[4,8,8]",
        ),
        (
            "f32[2,3,8,8] f32[4,3,1,1] f32[4]",
            "conv2d",
            "%2, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1",
            "f32[2,4,8,8]",
        ),
        (
            "f32[1,3,3,3] f32[1,3,3,3] f32[1]",
            "conv2d",
            "%2, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1",
            "f32[1,1,1,1]",
        ),
        (
            "f32[2,3,8,8]{192,1,24,3} f32[4,3,3,3]{27,1,9,3} f32[4]",
            "conv2d",
            "%2, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[2,4,8,8]{256,1,32,4}",
        ),
        (
            "bf16[2,4,8,8]{256,1,32,4} bf16[4,2,3,3]",
            "conv2d",
            "None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=2",
            "bf16[2,4,8,8]{256,1,32,4}",
        ),
        (
            "f32[2,3,8,8] f32[4,3,2,3] f32[4]",
            "conv2d.padding",
            "%2, stride=[1, 1], padding=\"same\", dilation=[1, 1], groups=1",
            "f32[2,4,8,8]",
        ),
        (
            "bf16[2,3,9] bf16[4,3,4]",
            "conv1d.padding",
            "None, stride=[1], padding=\"same\", dilation=[3], groups=1",
            "bf16[2,4,9]",
        ),
        (
            "f64[3,9] f64[12,1,3] f64[12]",
            "conv1d",
            "%2, stride=[2], padding=[1], dilation=[1], groups=3",
            "f64[12,5]",
        ),
        (
            "f32[2,3,5,6,7] f32[4,3,3,2,1] f32[4]",
            "conv3d",
            "%2, stride=[1, 2, 3], padding=[1, 0, 0], dilation=[2, 1, 1], groups=1",
            "f32[2,4,3,3,3]",
        ),
        (
            "f32[2,3,4,4] f32[3,4,3,3] f32[4]",
            "conv_transpose2d.input",
            "%2, stride=[2, 2], padding=[1, 1], output_padding=[1, 1], groups=1, dilation=[1, 1]",
            "f32[2,4,8,8]",
        ),
        (
            "bf16[2,4,4,4] bf16[4,3,2,2] bf16[6]",
            "conv_transpose2d.input",
            "%2, stride=[2, 2], padding=[0, 0], output_padding=[0, 0], groups=2, dilation=[1, 1]",
            "bf16[2,6,8,8]",
        ),
        (
            "f32[4,4,4] f32[4,3,1,3]",
            "conv_transpose2d.input",
            "None, stride=[3, 1], padding=[1, 3], output_padding=[2, 1], groups=1, dilation=[1, 2]",
            "f32[3,10,3]",
        ),
        (
            "i64[2,4,8] i64[6,2,3] i64[6]",
            "conv1d",
            "%2, stride=[2], padding=[1], dilation=[1], groups=2",
            "i64[2,6,4]",
        ),
        (
            "i32[2,3,4,4] i32[3,4,3,3] i32[4]",
            "conv_transpose2d.input",
            "%2, stride=[2, 2], padding=[1, 1], output_padding=[1, 1], groups=1, dilation=[1, 1]",
            "i32[2,4,8,8]",
        ),
        (
            "f32[1,4,5] f32[4,3,1]",
            "conv_transpose1d",
            "None, stride=[1], padding=[0], output_padding=[0], groups=1, dilation=[1]",
            "f32[1,3,5]",
        ),
        (
            "f32[1,2,2,3,4] f32[2,2,2,1,3] f32[2]",
            "conv_transpose3d.input",
            "%2, stride=[1, 2, 2], padding=[1, 0, 0], output_padding=[0, 1, 0], groups=1, dilation=[1, 1, 1]",
            "f32[1,2,1,6,9]",
        ),
    ] {
        let args =
            if operands.split(' ').count() == 3 { args.to_owned() } else { args.replace("%2", "None") };
        for device in ["", "@cuda:0"] {
            let on = |ty: &str| format!("{ty}{device}");
            let operands: Vec<String> = operands.split(' ').map(on).collect();
            let text = call(&operands.join(" "), &format!("{name}({tensors}{args}) : {}", on(result)));
            let graph = parse_graph(&text).unwrap();
            let lowered = lower(&graph).unwrap().to_string();
            assert!(lowered.contains("contract") && !lowered.contains("aten"), "{lowered}");
            assert_eq!(selected(&text), graph.to_string());
        }
    }
}

/// `convolution`, and padding that is given by a word and may be given by numbers, are the operator of the axes.
#[test]
fn other_spellings_are_one_call() {
    for (name, args, result) in [
        (
            "convolution",
            "bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], transposed=false, output_padding=[0, 0], groups=1",
            "f32[2,4,8,8]",
        ),
        (
            "conv2d.padding",
            "bias=None, stride=[1, 1], padding=\"same\", dilation=[1, 1], groups=1",
            "f32[2,4,8,8]",
        ),
        ("conv2d", "bias=None, stride=[1], padding=[1], dilation=1, groups=1", "f32[2,4,8,8]"),
    ] {
        let operands = "f32[2,3,8,8] f32[4,3,3,3]";
        let text = call(operands, &format!("{name}(input=%0, weight=%1, {args}) : {result}"));
        let plain = "conv2d(input=%0, weight=%1, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1)";
        assert_eq!(selected(&text), call(operands, &format!("{plain} : {result}")));
    }
}

/// What libtorch treats by rules of its own, or raises, is a call all the way.
#[test]
fn other_calls_stay() {
    for (operands, args, result) in [
        (
            "f32[0,3,8,8] f32[4,3,3,3]",
            "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[0,4,8,8]",
        ),
        (
            "f32[2,0,8,8] f32[0,0,3,3]",
            "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[2,0,8,8]",
        ),
        (
            "f32[2,3,2,2] f32[4,3,3,3]",
            "stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1",
            "f32[2,4,1,1]",
        ),
        (
            "i8[2,3,8,8] i8[4,3,3,3]",
            "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "i8[2,4,8,8]",
        ),
        (
            "f32[2,3,8,8] bf16[4,3,3,3]",
            "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[2,4,8,8]",
        ),
        (
            "f32[2,3,8,8] f32[4,3,3,3]",
            "stride=[0, 1], padding=[1, 1], dilation=[1, 1], groups=1",
            "f32[2,4,8,8]",
        ),
        (
            "f32[2,3,8,8] f32[4,3,3,3]",
            "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=2",
            "f32[2,4,8,8]",
        ),
    ] {
        let text = call(operands, &format!("conv2d(input=%0, weight=%1, bias=None, {args}) : {result}"));
        assert_eq!(selected(&text), text);
    }
}

/// Convolutions of one image share its zeros; zeros that a model pads with are an image of their own.
#[test]
fn only_zeros_of_a_convolution_are_its_own() {
    let conv = "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1";
    check(
        &format!(
            "graph {{
              origin 0 \"a\"
              origin 1 \"b\"
              origin 2 \"c\"
              origin 3 \"d\"
              %0 = input 0 : f32[1,3,8,8]
              %1 = param 0 : f32[4,3,3,3]
              %2 = param 1 : f32[5,3,3,3]
              %3 = aten::conv2d(input=%0, weight=%1, bias=None, {conv}) : f32[1,4,8,8] @0
              %4 = aten::conv2d(input=%0, weight=%2, bias=None, {conv}) : f32[1,5,8,8] @1
              %5 = aten::constant_pad_nd(self=%0, pad=[2, 2, 2, 2], value=0.0) : f32[1,3,12,12] @2
              %6 = aten::conv2d(input=%5, weight=%1, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1) : f32[1,4,10,10] @3
              outputs %3, %4, %6
            }}"
        ),
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              origin 2 "c"
              origin 3 "d"
              %0 = input 0 : f32[1,3,8,8]
              %1 = param 0 : f32[4,3,3,3]
              %2 = param 1 : f32[5,3,3,3]
              %3 = aten::conv2d(input=%0, weight=%2, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1) contracts window stride[1,1] padding[1,1]x[1,1] dilation[1,1] groups 1 sum[1,4,5]x[1,2,3](0, 1) : f32[1,5,8,8] @1
              %4 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1) contracts window stride[1,1] padding[1,1]x[1,1] dilation[1,1] groups 1 sum[1,4,5]x[1,2,3](0, 1) : f32[1,4,8,8] @0
              %5 = view pad[0,0,2,2]=0.0(%0) : f32[1,3,12,12] @2
              %6 = aten::conv2d(input=%5, weight=%1, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1) contracts window stride[1,1] padding[0,0]x[0,0] dilation[1,1] groups 1 sum[1,4,5]x[1,2,3](0, 1) : f32[1,4,10,10] @3
              outputs %4, %3, %6
            }
        "#]],
    );
}

/// What two biases are added to is one convolution; where each rounds, there are two.
#[test]
fn what_is_shared_is_one_convolution() {
    let text = |elem: &str| {
        let conv = "stride=[1], padding=[1], dilation=[1], groups=2";
        format!(
            "graph {{
              origin 0 \"a\"
              origin 1 \"b\"
              %0 = input 0 : {elem}[1,4,8]
              %1 = param 0 : {elem}[6,2,3]
              %2 = param 1 : {elem}[6]
              %3 = param 2 : {elem}[6]
              %4 = aten::conv1d(input=%0, weight=%1, bias=%2, {conv}) : {elem}[1,6,8]{{48,1,6}} @0
              %5 = aten::conv1d(input=%0, weight=%1, bias=%3, {conv}) : {elem}[1,6,8]{{48,1,6}} @1
              outputs %4, %5
            }}"
        )
    };
    check(
        &text("f32"),
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              %0 = input 0 : f32[1,4,8]
              %1 = param 0 : f32[6,2,3]
              %2 = param 1 : f32[6]
              %3 = param 2 : f32[6]
              %4 = aten::conv1d(input=%0, weight=%1, bias=None, stride=[1], padding=[1], dilation=[1], groups=2) contracts window stride[1] padding[1]x[1] dilation[1] groups 2 batch[1]x[0] sum[2,4]x[2,3](0, 1) : f32[1,6,8]{48,1,6} @0
              %5 = view reshape(%2) : f32[1,6,1] @0
              %6 = view expand(%5) : f32[1,6,8] @0
              %7 = map add(%4, %6) : f32[1,6,8]{48,1,6} @0
              %8 = view reshape(%3) : f32[1,6,1] @1
              %9 = view expand(%8) : f32[1,6,8] @1
              %10 = map add(%4, %9) : f32[1,6,8]{48,1,6} @1
              outputs %7, %10
            }
        "#]],
    );
    check(
        &text("bf16"),
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              %0 = input 0 : bf16[1,4,8]
              %1 = param 0 : bf16[6,2,3]
              %2 = param 1 : bf16[6]
              %3 = param 2 : bf16[6]
              %4 = aten::conv1d(input=%0, weight=%1, bias=%3, stride=[1], padding=[1], dilation=[1], groups=2) contracts window stride[1] padding[1]x[1] dilation[1] groups 2 batch[1]x[0] sum[2,4]x[2,3](0, 1) adds 2 : bf16[1,6,8]{48,1,6} @1
              %5 = aten::conv1d(input=%0, weight=%1, bias=%2, stride=[1], padding=[1], dilation=[1], groups=2) contracts window stride[1] padding[1]x[1] dilation[1] groups 2 batch[1]x[0] sum[2,4]x[2,3](0, 1) adds 2 : bf16[1,6,8]{48,1,6} @0
              outputs %5, %4
            }
        "#]],
    );
}

/// A permutation behind the result takes the place of the one that the result is: it is put there again.
#[test]
fn results_in_another_order_are_permuted() {
    check(
        "graph {
          origin 0 \"a\"
          origin 1 \"b\"
          %0 = input 0 : f32[2,4,5,5]
          %1 = param 0 : f32[6,2,2,2]
          %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2) : f32[2,6,4,4] @0
          %3 = aten::permute(self=%2, dims=[0, 2, 3, 1]) : f32[2,4,4,6]{96,4,1,16} @1
          %4 = aten::relu(self=%3) : f32[2,4,4,6]{96,4,1,16} @1
          %5 = param 1 : f32[6,4,1,1]
          %6 = aten::conv2d(input=%0, weight=%5, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1) : f32[2,6,5,5] @0
          %7 = aten::permute(self=%6, dims=[0, 2, 3, 1]) : f32[2,5,5,6]{150,5,1,25} @1
          %8 = aten::relu(self=%7) : f32[2,5,5,6]{150,5,1,25} @1
          outputs %4, %8
        }",
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              %0 = input 0 : f32[2,4,5,5]
              %1 = param 0 : f32[6,2,2,2]
              %2 = scalar 0.0 : f32[] @1
              %3 = view reshape(%2) : f32[1,1,1,1] @1
              %4 = view expand(%3) : f32[2,4,4,6] @1
              %5 = param 1 : f32[6,4,1,1]
              %6 = view expand(%3) : f32[2,5,5,6] @1
              %7 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2) contracts window stride[1,1] padding[0,0]x[0,0] dilation[1,1] groups 2 batch[1]x[0] sum[2,5,6]x[2,3,4](0, 1) : f32[2,6,4,4] @0
              %8 = view permute[0,2,3,1](%7) : f32[2,4,4,6]{96,4,1,16} @1
              %9 = map lt(%8, %4) : bool[2,4,4,6] @1
              %10 = map select(%9, %4, %8) : f32[2,4,4,6]{96,4,1,16} @1
              %11 = aten::conv2d(input=%0, weight=%5, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1) contracts window stride[1,1] padding[0,0]x[0,0] dilation[1,1] groups 1 sum[1,4,5]x[1,2,3](0, 1) : f32[2,6,5,5] @0
              %12 = view permute[0,2,3,1](%11) : f32[2,5,5,6]{150,5,1,25} @0
              %13 = map lt(%12, %6) : bool[2,5,5,6] @1
              %14 = map select(%13, %6, %12) : f32[2,5,5,6]{150,5,1,25} @1
              outputs %10, %14
            }
        "#]],
    );
}

/// A model's copy to another layout is what its convolution reads.
#[test]
fn images_lie_as_they_did() {
    check(
        "graph {
          origin 0 \"a\"
          origin 1 \"b\"
          %0 = input 0 : bf16[2,4,5,5]
          %1 = param 0 : bf16[6,4,2,2]
          %2 = aten::clone(self=%0, memory_format=2) : bf16[2,4,5,5]{100,1,20,4} @0
          %3 = aten::conv2d(input=%2, weight=%1, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1) : bf16[2,6,6,6]{216,1,36,6} @1
          outputs %3
        }",
        expect![[r#"
            graph {
              origin 0 "a"
              origin 1 "b"
              %0 = input 0 : bf16[2,4,5,5]
              %1 = param 0 : bf16[6,4,2,2]
              %2 = view reshape(%0) : bf16[2,4,5,5]{100,1,20,4} @0
              %3 = aten::conv2d(input=%2, weight=%1, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1) contracts window stride[1,1] padding[1,1]x[1,1] dilation[1,1] groups 1 sum[1,4,5]x[1,2,3](0, 1) : bf16[2,6,6,6]{216,1,36,6} @1
              outputs %3
            }
        "#]],
    );
}

/// Contractions of windows that libtorch has no convolution for are convolutions of what is there, or products.
#[test]
fn other_windows_are_products() {
    check(
        "graph {
          %0 = input 0 : f32[2,3,8,8]
          %1 = param 0 : f32[4,3,2,3]
          %2 = view pad[0,0,1,0] interior[0,0,1,0]=0.0(%0) : f32[2,3,17,9]
          %3 = view window[2,3] kernel[2,3] stride[2,1] dilation[1,1](%2) : f32[2,3,8,7,2,3]
          %4 = contract sum[1,4,5]x[1,2,3](%3, %1) : f32[2,8,7,4]
          outputs %4
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,3,8,8]
              %1 = param 0 : f32[4,3,2,3]
              %2 = view pad[0,0,1,0] interior[0,0,1,0]=0.0(%0) : f32[2,3,17,9]
              %3 = aten::conv2d(input=%2, weight=%1, bias=None, stride=[2, 1], padding=[0, 0], dilation=[1, 1], groups=1) contracts window stride[2,1] padding[0,0]x[0,0] dilation[1,1] groups 1 sum[1,4,5]x[1,2,3](0, 1) : f32[2,4,8,7]{224,1,28,4}
              %4 = view permute[0,2,3,1](%3) : f32[2,8,7,4]
              outputs %4
            }
        "#]],
    );
    check(
        "graph {
          %0 = input 0 : bf16[2,5,3,8]
          %1 = param 0 : bf16[4,3,3]
          %2 = view window[3] kernel[3] stride[1] dilation[2](%0) : bf16[2,5,3,4,3]
          %3 = contract sum[2,4]x[1,2](%2, %1) : f32[2,5,4,4]
          %4 = cast(%3) : bf16[2,5,4,4]
          outputs %4
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[2,5,3,8]
              %1 = param 0 : bf16[4,3,3]
              %2 = view window[3] kernel[3] stride[1] dilation[2](%0) : bf16[2,5,3,4,3]
              %3 = view permute[0,1,3,2,4](%2) : bf16[2,5,4,3,3]{180,36,3,12,1}
              %4 = view reshape(%3) : bf16[40,9]
              %5 = view reshape(%1) : bf16[4,9]
              %6 = view permute[1,0](%5) : bf16[9,4]{1,9}
              %7 = aten::mm(self=%4, mat2=%6) contracts sum[1]x[0](0, 1) : bf16[40,4]
              %8 = view reshape(%7) : bf16[2,5,4,4]
              outputs %8
            }
        "#]],
    );
}

#[test]
fn sums_that_nothing_rounds_are_computed_in_their_type() {
    check(
        "graph {
          %0 = input 0 : bf16[2,3,8]
          %1 = param 0 : bf16[4,3,3]
          %2 = view window[2] kernel[3] stride[1] dilation[2](%0) : bf16[2,3,4,3]
          %3 = contract sum[1,3]x[1,2](%2, %1) : f32[2,4,4]
          %4 = view permute[0,2,1](%3) : f32[2,4,4]
          %5 = map exp(%4) : f32[2,4,4]
          outputs %5
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[2,3,8]
              %1 = param 0 : bf16[4,3,3]
              %2 = cast(%0) : f32[2,3,8]
              %3 = cast(%1) : f32[4,3,3]
              %4 = aten::conv1d(input=%2, weight=%3, bias=None, stride=[1], padding=[0], dilation=[2], groups=1) contracts window stride[1] padding[0]x[0] dilation[2] groups 1 sum[1,3]x[1,2](0, 1) : f32[2,4,4]{16,1,4}
              %5 = map exp(%4) : f32[2,4,4]
              outputs %5
            }
        "#]],
    );
}

/// The call of TorchScript's traces, which says how cuDNN is used: where that is not how libtorch uses it by itself, it stays.
#[test]
fn calls_of_traces_are_convolutions() {
    let numbers =
        "stride=[2, 2], padding=[1, 1], dilation=[1, 1], transposed=false, output_padding=[0, 0], groups=1";
    let traced = |dtype: &str, device: &str, [deterministic, enabled, tf32]: [bool; 3]| {
        let flags = format!(
            "benchmark=false, deterministic={deterministic}, cudnn_enabled={enabled}, allow_tf32={tf32}"
        );
        let ty = |shape: &str| format!("{dtype}{shape}{device}");
        selected(&call(
            &[ty("[2,3,8,8]"), ty("[4,3,3,3]"), ty("[4]")].join(" "),
            &format!("_convolution(input=%0, weight=%1, bias=%2, {numbers}, {flags}) : {}", ty("[2,4,4,4]")),
        ))
    };
    let plain = [false, true, true];
    for found in [
        traced("f32", "", plain),
        traced("f32", "", [true, false, false]),
        traced("f32", "@cuda:0", plain),
        traced("bf16", "@cuda:0", [false, true, false]),
    ] {
        assert!(found.contains("aten::conv2d(input=%0, weight=%1, bias=%2, stride=[2, 2]"), "{found}");
    }
    for flags in [[true, true, true], [false, false, true], [false, true, false]] {
        assert!(traced("f32", "@cuda:0", flags).contains("aten::_convolution("));
    }
}
