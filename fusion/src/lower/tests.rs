use expect_test::{Expect, expect};

use crate::{lower, parse_graph};

fn check(graph: &str, expect: Expect) {
    let lowered = lower(&parse_graph(graph).unwrap()).unwrap().to_string();
    assert_eq!(parse_graph(&lowered).unwrap().to_string(), lowered);
    expect.assert_eq(&lowered);
}

#[test]
fn softmax() {
    check(
        "graph {
          %0 = input 0 : bf16[2,3]
          %1 = aten::softmax.int(self=%0, dim=-1, dtype=None) : bf16[2,3]
          outputs %1
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[2,3]
              %1 = cast(%0) : f32[2,3]
              %2 = reduce max[1](%1) : f32[2]
              %3 = view reshape(%2) : f32[2,1]
              %4 = view expand(%3) : f32[2,3]
              %5 = map sub(%1, %4) : f32[2,3]
              %6 = map exp(%5) : f32[2,3]
              %7 = reduce sum[1](%6) : f32[2]
              %8 = view reshape(%7) : f32[2,1]
              %9 = scalar 1.0 : f32[]
              %10 = view reshape(%9) : f32[1,1]
              %11 = view expand(%10) : f32[2,1]
              %12 = map div(%11, %8) : f32[2,1]
              %13 = view expand(%12) : f32[2,3]
              %14 = map mul(%6, %13) : f32[2,3]
              %15 = cast(%14) : bf16[2,3]
              outputs %15
            }
        "#]],
    );
}

#[test]
fn layer_norm() {
    check(
        "graph {
          %0 = input 0 : f32[2,3]
          %1 = param 0 : f32[3]
          %2 = param 1 : f32[3]
          %3 = aten::layer_norm(input=%0, normalized_shape=[3], weight=%1, bias=%2, eps=0.00001, cudnn_enable=true) : f32[2,3]
          outputs %3
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,3]
              %1 = param 0 : f32[3]
              %2 = param 1 : f32[3]
              %3 = reduce sum[1](%0) : f32[2]
              %4 = view reshape(%3) : f32[2,1]
              %5 = scalar 3.0 : f32[]
              %6 = view reshape(%5) : f32[1,1]
              %7 = view expand(%6) : f32[2,1]
              %8 = map div(%4, %7) : f32[2,1]
              %9 = view expand(%8) : f32[2,3]
              %10 = map sub(%0, %9) : f32[2,3]
              %11 = map mul(%10, %10) : f32[2,3]
              %12 = reduce sum[1](%11) : f32[2]
              %13 = view reshape(%12) : f32[2,1]
              %14 = reduce sum[1](%10) : f32[2]
              %15 = view reshape(%14) : f32[2,1]
              %16 = map div(%15, %7) : f32[2,1]
              %17 = scalar inf : f32[]
              %18 = view reshape(%17) : f32[1,1]
              %19 = view expand(%18) : f32[2,1]
              %20 = map lt(%13, %19) : bool[2,1]
              %21 = scalar 0.0 : f32[]
              %22 = view reshape(%21) : f32[1,1]
              %23 = view expand(%22) : f32[2,1]
              %24 = map select(%20, %16, %23) : f32[2,1]
              %25 = view expand(%24) : f32[2,3]
              %26 = map sub(%10, %25) : f32[2,3]
              %27 = map mul(%24, %24) : f32[2,1]
              %28 = map mul(%27, %7) : f32[2,1]
              %29 = map sub(%13, %28) : f32[2,1]
              %30 = map max(%29, %23) : f32[2,1]
              %31 = map div(%30, %7) : f32[2,1]
              %32 = map mul(%31, %23) : f32[2,1]
              %33 = map add(%31, %32) : f32[2,1]
              %34 = scalar 9.999999747378752e-6 : f32[]
              %35 = view reshape(%34) : f32[1,1]
              %36 = view expand(%35) : f32[2,1]
              %37 = map add(%33, %36) : f32[2,1]
              %38 = map rsqrt(%37) : f32[2,1]
              %39 = view expand(%38) : f32[2,3]
              %40 = map mul(%26, %39) : f32[2,3]
              %41 = view reshape(%1) : f32[1,3]
              %42 = view expand(%41) : f32[2,3]
              %43 = map mul(%40, %42) : f32[2,3]
              %44 = view reshape(%2) : f32[1,3]
              %45 = view expand(%44) : f32[2,3]
              %46 = map add(%43, %45) : f32[2,3]
              outputs %46
            }
        "#]],
    );
}

#[test]
fn embedding_and_index() {
    check(
        "graph {
          %0 = param 0 : f32[10,4]
          %1 = input 0 : i64[2,3]
          %2 = aten::embedding(weight=%0, indices=%1, padding_idx=-1, scale_grad_by_freq=false, sparse=false) : f32[2,3,4]
          %3 = aten::index.Tensor(self=%0, indices=tensors[None, %1]) : f32[10,2,3]
          outputs %2
        }",
        expect![[r#"
            graph {
              %0 = param 0 : f32[10,4]
              %1 = input 0 : i64[2,3]
              %2 = view reshape(%1) : i64[6,1]
              %3 = view expand(%2) : i64[6,4]
              %4 = gather 0(%0, %3) : f32[6,4]
              %5 = view reshape(%4) : f32[2,3,4]
              outputs %5
            }
        "#]],
    );
}

#[test]
fn operators_that_stay() {
    check(
        "graph {
          %0 = input 0 : i64[4]
          %1 = input 1 : i64[4]
          %2 = aten::floor_divide(self=%0, other=%1) : i64[4]
          %3 = aten::floor_divide.Scalar(self=%0, other=3) : i64[4]
          %4 = aten::add.Tensor(self=%2, other=%3, alpha=1) : i64[4]
          %5 = input 2 : dtype9[4]
          %6 = aten::exp(self=%5) : dtype9[4]
          %7 = aten::foo(self=%4) : i64[4]
          outputs %7, %6
        }",
        expect![[r#"
            graph {
              %0 = input 0 : i64[4]
              %1 = input 1 : i64[4]
              %2 = aten::floor_divide(self=%0, other=%1) : i64[4]
              %3 = scalar 3 : i64[]
              %4 = view reshape(%3) : i64[1]
              %5 = view expand(%4) : i64[4]
              %6 = map div_floor(%0, %5) : i64[4]
              %7 = map add(%2, %6) : i64[4]
              %8 = input 2 : dtype9[4]
              %9 = aten::exp(self=%8) : dtype9[4]
              %10 = aten::foo(self=%7) : i64[4]
              outputs %10, %9
            }
        "#]],
    );
}

#[test]
fn results_keep_the_strides_of_eager() {
    check(
        "graph {
          %0 = input 0 : f32[2,3]{1,2}
          %1 = aten::exp(self=%0) : f32[2,3]{1,2}
          %2 = aten::contiguous(self=%0, memory_format=0) : f32[2,3]
          %3 = aten::add.Tensor(self=%1, other=%2, alpha=2) : f32[2,3]{1,2}
          outputs %3, %2
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,3]{1,2}
              %1 = map exp(%0) : f32[2,3]{1,2}
              %2 = view reshape(%0) : f32[2,3]
              %3 = scalar 2.0 : f32[]
              %4 = view reshape(%3) : f32[1,1]
              %5 = view expand(%4) : f32[2,3]
              %6 = map fma(%2, %5, %1) : f32[2,3]{1,2}
              outputs %6, %2
            }
        "#]],
    );
}

/// Kernels run on the GPU: what is on the host beside it is libtorch's.
#[test]
fn calls_on_the_host_in_a_graph_of_a_gpu() {
    check(
        "graph {
          %0 = input 0 : f32[2]@cuda:0
          %1 = input 1 : f32[2]
          %2 = aten::relu(self=%0) : f32[2]@cuda:0
          %3 = aten::relu(self=%1) : f32[2]
          %4 = aten::view(self=%3, size=[2, 1]) : f32[2,1]
          outputs %2, %4
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2]@cuda:0
              %1 = input 1 : f32[2]
              %2 = scalar 0.0 : f32[]@cuda:0
              %3 = view reshape(%2) : f32[1]@cuda:0
              %4 = view expand(%3) : f32[2]@cuda:0
              %5 = map max(%0, %4) : f32[2]@cuda:0
              %6 = aten::relu(self=%1) : f32[2]
              %7 = aten::view(self=%6, size=[2, 1]) : f32[2,1]
              outputs %5, %7
            }
        "#]],
    );
}

#[test]
fn known_constants_of_another_device() {
    check(
        "graph {
          %0 = input 0 : f32[2]@cuda:0
          %1 = const 0 = 8.0 : f64[]
          %2 = const 1 : f64[]
          %3 = aten::div.Tensor(self=%0, other=%1) : f32[2]@cuda:0
          %4 = aten::pow.Tensor_Tensor(self=%3, exponent=%1) : f32[2]@cuda:0
          %5 = aten::div.Tensor(self=%4, other=%2) : f32[2]@cuda:0
          outputs %5
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[2]@cuda:0
              %1 = const 1 : f64[]
              %2 = scalar 8.0 : f32[]@cuda:0
              %3 = scalar 0.125 : f32[]@cuda:0
              %4 = view reshape(%3) : f32[1]@cuda:0
              %5 = view expand(%4) : f32[2]@cuda:0
              %6 = map mul(%0, %5) : f32[2]@cuda:0
              %7 = view reshape(%2) : f32[1]@cuda:0
              %8 = view expand(%7) : f32[2]@cuda:0
              %9 = map pow(%6, %8) : f32[2]@cuda:0
              %10 = aten::div.Tensor(self=%9, other=%1) : f32[2]@cuda:0
              outputs %10
            }
        "#]],
    );
}

/// The contraction that a product is, with what stands before and behind it.
#[test]
fn products_are_contractions() {
    check(
        "graph {
          %0 = input 0 : bf16[2,8,64]
          %1 = param 0 : bf16[48,64]
          %2 = param 1 : bf16[48]
          %3 = aten::linear(input=%0, weight=%1, bias=%2) : bf16[2,8,48]
          outputs %3
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[2,8,64]
              %1 = param 0 : bf16[48,64]
              %2 = param 1 : bf16[48]
              %3 = contract sum[2]x[1](%0, %1) : f32[2,8,48]
              %4 = cast(%2) : f32[48]
              %5 = view reshape(%4) : f32[1,1,48]
              %6 = view expand(%5) : f32[2,8,48]
              %7 = map add(%3, %6) : f32[2,8,48]
              %8 = cast(%7) : bf16[2,8,48]
              outputs %8
            }
        "#]],
    );
    check(
        "graph {
          %0 = input 0 : f32[1,5]
          %1 = input 1 : f32[4,7]
          %2 = input 2 : f32[7,5]
          %3 = aten::addmm(self=%0, mat1=%1, mat2=%2, beta=0.5, alpha=2) : f32[4,5]
          outputs %3
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[1,5]
              %1 = input 1 : f32[4,7]
              %2 = input 2 : f32[7,5]
              %3 = contract sum[1]x[0](%1, %2) : f32[4,5]
              %4 = scalar 2.0 : f32[]
              %5 = view reshape(%4) : f32[1,1]
              %6 = view expand(%5) : f32[4,5]
              %7 = map mul(%3, %6) : f32[4,5]
              %8 = scalar 0.5 : f32[]
              %9 = view reshape(%8) : f32[1,1]
              %10 = view expand(%9) : f32[1,5]
              %11 = map mul(%0, %10) : f32[1,5]
              %12 = view expand(%11) : f32[4,5]
              %13 = map add(%7, %12) : f32[4,5]
              outputs %13
            }
        "#]],
    );
    check(
        "graph {
          %0 = input 0 : f32[6,1,4,8]
          %1 = input 1 : f32[3,8,5]
          %2 = aten::matmul(self=%0, other=%1) : f32[6,3,4,5]
          outputs %2
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[6,1,4,8]
              %1 = input 1 : f32[3,8,5]
              %2 = view expand(%0) : f32[6,3,4,8]
              %3 = view reshape(%1) : f32[1,3,8,5]
              %4 = view expand(%3) : f32[6,3,8,5]
              %5 = contract batch[0,1]x[0,1] sum[3]x[2](%2, %4) : f32[6,3,4,5]
              outputs %5
            }
        "#]],
    );
    check(
        r#"graph {
          %0 = input 0 : f32[6,4,8]
          %1 = input 1 : f32[8,6,5]
          %2 = aten::einsum(equation="bik,kbj->ijb", tensors=[%0, %1], path=None) : f32[4,5,6]
          %3 = aten::tensordot(self=%0, other=%1, dims_self=[0,2], dims_other=[1,0]) : f32[4,5]
          outputs %2, %3
        }"#,
        expect![[r#"
            graph {
              %0 = input 0 : f32[6,4,8]
              %1 = input 1 : f32[8,6,5]
              %2 = contract batch[0]x[1] sum[2]x[0](%0, %1) : f32[6,4,5]
              %3 = view permute[1,2,0](%2) : f32[4,5,6]
              %4 = contract sum[0,2]x[1,0](%0, %1) : f32[4,5]
              outputs %3, %4
            }
        "#]],
    );
    check(
        "graph {
          %0 = input 0 : i8[20,16]
          %1 = input 1 : i8[16,8]
          %2 = aten::_int_mm(self=%0, mat2=%1) : i32[20,8]
          %3 = aten::mm(self=%0, mat2=%1) : i8[20,8]
          outputs %2, %3
        }",
        expect![[r#"
            graph {
              %0 = input 0 : i8[20,16]
              %1 = input 1 : i8[16,8]
              %2 = contract sum[1]x[0](%0, %1) : i32[20,8]
              %3 = contract sum[1]x[0](%0, %1) : i32[20,8]
              %4 = cast(%3) : i8[20,8]
              outputs %2, %4
            }
        "#]],
    );
}

#[test]
fn einstein_sums() {
    // Of three operands, with dimensions of an ellipsis of which one is repeated.
    check(
        r#"graph {
          %0 = input 0 : f32[2,6,4,8]
          %1 = input 1 : f32[1,8,5]
          %2 = input 2 : f32[6]
          %3 = aten::einsum(equation="...ik,...kj,...->ij", tensors=[%0, %1, %2], path=None) : f32[4,5]
          outputs %3
        }"#,
        expect![[r#"
            graph {
              %0 = input 0 : f32[2,6,4,8]
              %1 = input 1 : f32[1,8,5]
              %2 = input 2 : f32[6]
              %3 = view reshape(%1) : f32[8,5]
              %4 = reduce sum[0](%0) : f32[6,4,8]
              %5 = contract sum[2]x[0](%4, %3) : f32[6,4,5]
              %6 = contract sum[0]x[0](%5, %2) : f32[4,5]
              outputs %6
            }
        "#]],
    );
    // In the order of a path, with a result whose labels are not said.
    check(
        r#"graph {
          %0 = input 0 : bf16[4,8]
          %1 = input 1 : bf16[8,5]
          %2 = input 2 : bf16[5,7]
          %3 = aten::einsum(equation="dk,kb,bA", tensors=[%0, %1, %2], path=[1,2,0,1]) : bf16[7,4]
          outputs %3
        }"#,
        expect![[r#"
            graph {
              %0 = input 0 : bf16[4,8]
              %1 = input 1 : bf16[8,5]
              %2 = input 2 : bf16[5,7]
              %3 = contract sum[1]x[0](%1, %2) : f32[8,7]
              %4 = cast(%3) : bf16[8,7]
              %5 = contract sum[1]x[0](%0, %4) : f32[4,7]
              %6 = cast(%5) : bf16[4,7]
              %7 = view permute[1,0](%6) : bf16[7,4]
              outputs %7
            }
        "#]],
    );
    // A diagonal, a label of one operand alone, and one operand.
    check(
        r#"graph {
          %0 = input 0 : f32[4,3,4]
          %1 = input 1 : f32[4,9]
          %2 = aten::einsum(equation="iji,ik->ij", tensors=[%0, %1], path=None) : f32[4,3]
          %3 = aten::einsum(equation="iji->j", tensors=[%0], path=None) : f32[3]
          outputs %2, %3
        }"#,
        expect![[r#"
            graph {
              %0 = input 0 : f32[4,3,4]
              %1 = input 1 : f32[4,9]
              %2 = view permute[1,0,2](%0) : f32[3,4,4]
              %3 = view reshape(%2) : f32[3,16]
              %4 = view slice[1,0,5](%3) : f32[3,4]
              %5 = reduce sum[1](%1) : f32[4]
              %6 = contract batch[1]x[0](%4, %5) : f32[4,3]
              %7 = view permute[1,0,2](%0) : f32[3,4,4]
              %8 = view reshape(%7) : f32[3,16]
              %9 = view slice[1,0,5](%8) : f32[3,4]
              %10 = reduce sum[1](%9) : f32[3]
              outputs %6, %10
            }
        "#]],
    );
}

#[test]
fn einstein_sums_that_libtorch_computes() {
    for (equation, out) in [
        // Views.
        ("ij->ji", "f32[5,4]"),
        ("ii->i", "f32[4]"),
        // Of no label, and twice the same.
        ("ij->ik", "f32[4,5]"),
        ("ij->ii", "f32[4,4]"),
        ("ij...->i....", "f32[4]"),
    ] {
        let of = if equation.starts_with("ii") { "4,4" } else { "4,5" };
        let text = format!(
            r#"graph {{
              %0 = input 0 : f32[{of}]
              %1 = aten::einsum(equation="{equation}", tensors=[%0], path=None) : {out}
              outputs %1
            }}"#
        );
        let graph = parse_graph(&text).unwrap();
        assert_eq!(lower(&graph).unwrap().to_string(), graph.to_string());
    }
}

#[test]
fn products_of_several_factors() {
    check(
        "graph {
          %0 = input 0 : f32[10,100]
          %1 = input 1 : f32[100,5]
          %2 = input 2 : f32[5,50]
          %3 = input 3 : f32[50]
          %4 = aten::linalg_multi_dot(tensors=[%0, %1, %2, %3]) : f32[10]
          %5 = aten::chain_matmul(matrices=[%0, %1, %2]) : f32[10,50]
          outputs %4, %5
        }",
        expect![[r#"
            graph {
              %0 = input 0 : f32[10,100]
              %1 = input 1 : f32[100,5]
              %2 = input 2 : f32[5,50]
              %3 = input 3 : f32[50]
              %4 = contract sum[1]x[0](%2, %3) : f32[5]
              %5 = contract sum[1]x[0](%1, %4) : f32[100]
              %6 = contract sum[1]x[0](%0, %5) : f32[10]
              %7 = contract sum[1]x[0](%0, %1) : f32[10,5]
              %8 = contract sum[1]x[0](%7, %2) : f32[10,50]
              outputs %6, %8
            }
        "#]],
    );
    check(
        "graph {
          %0 = input 0 : bf16[3,2,8]
          %1 = input 1 : bf16[3,2,7]
          %2 = input 2 : bf16[5,8,7]
          %3 = input 3 : bf16[5]
          %4 = aten::bilinear(input1=%0, input2=%1, weight=%2, bias=%3) : bf16[3,2,5]
          %5 = aten::inner(self=%0, other=%0) : bf16[3,2,3,2]
          outputs %4, %5
        }",
        expect![[r#"
            graph {
              %0 = input 0 : bf16[3,2,8]
              %1 = input 1 : bf16[3,2,7]
              %2 = input 2 : bf16[5,8,7]
              %3 = input 3 : bf16[5]
              %4 = contract sum[2]x[1](%0, %2) : f32[3,2,5,7]
              %5 = cast(%4) : bf16[3,2,5,7]
              %6 = contract batch[0,1]x[0,1] sum[3]x[2](%5, %1) : f32[3,2,5]
              %7 = cast(%3) : f32[5]
              %8 = view reshape(%7) : f32[1,1,5]
              %9 = view expand(%8) : f32[3,2,5]
              %10 = map add(%6, %9) : f32[3,2,5]
              %11 = cast(%10) : bf16[3,2,5]
              %12 = contract sum[2]x[2](%0, %0) : f32[3,2,3,2]
              %13 = cast(%12) : bf16[3,2,3,2]
              outputs %11, %13
            }
        "#]],
    );
}
