use expect_test::{Expect, expect};

use crate::contract::Products;
use crate::contract::forms::rewritten;
use crate::machine::Profile;

/// The graph with each contraction in its best form, on a GPU without kernels of ours, and the rewrites that were made.
fn on_gpu(text: &str) -> (usize, crate::Graph) {
    rewritten(text, &Profile::gpu(132, 4200.0), Products::Library)
}

fn check(text: &str, expected: Expect) {
    let (made, graph) = on_gpu(text);
    expected.assert_eq(&format!("{made}: {graph}"));
}

#[test]
fn convolutions_of_patches_are_products() {
    check(
        "graph {
          %0 = input 0 : bf16[2,3,32,34]
          %1 = param 0 : bf16[5,3,8,8]
          %2 = view window[2,3] kernel[8,8] stride[8,8] dilation[1,1](%0) : bf16[2,3,4,4,8,8]
          %3 = contract sum[1,4,5]x[1,2,3](%2, %1) : f32[2,4,4,5]
          %4 = view permute[0,3,1,2](%3) : f32[2,5,4,4]
          %5 = cast(%4) : bf16[2,5,4,4]
          outputs %5
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : bf16[2,3,32,34]
              %1 = param 0 : bf16[5,3,8,8]
              %2 = view slice[3,0,1](%0) : bf16[2,3,32,32]
              %3 = view reshape(%2) : bf16[2,3,4,8,4,8]
              %4 = view permute[0,1,2,4,3,5](%3) : bf16[2,3,4,4,8,8]
              %5 = view permute[0,2,3,1,4,5](%4) : bf16[2,4,4,3,8,8]
              %6 = view reshape(%5) : bf16[2,4,4,192]
              %7 = view reshape(%1) : bf16[5,192]
              %8 = contract sum[3]x[1](%6, %7) : f32[2,4,4,5]
              %9 = cast(%8) : bf16[2,4,4,5]
              %10 = view permute[0,3,1,2](%9) : bf16[2,5,4,4]
              outputs %10
            }
        "#]],
    );
}

#[test]
fn other_windows_are_left() {
    let text = |channels: i64, window: &str, positions: i64| {
        format!(
            "graph {{
              %0 = input 0 : bf16[2,{channels},32]
              %1 = param 0 : bf16[5,{channels},4]
              %2 = view window[2] kernel[4] {window}(%0) : bf16[2,{channels},{positions},4]
              %3 = contract sum[1,3]x[1,2](%2, %1) : f32[2,{positions},5]
              %4 = view permute[0,2,1](%3) : f32[2,5,{positions}]
              %5 = cast(%4) : bf16[2,5,{positions}]
              outputs %5
            }}"
        )
    };
    for (channels, window, positions, made) in [
        (3, "stride[4] dilation[1]", 8, 1),
        (8, "stride[4] dilation[1]", 8, 0),
        (3, "stride[2] dilation[1]", 15, 0),
        (3, "stride[4] dilation[2]", 7, 0),
    ] {
        assert_eq!(on_gpu(&text(channels, window, positions)).0, made, "{channels} {window}");
    }
}

#[test]
fn bias_and_rounding_come_before_the_permutation() {
    check(
        "graph {
          %0 = input 0 : bf16[2,3,32]
          %1 = param 0 : bf16[5,3,4]
          %2 = param 1 : bf16[5]
          %3 = view window[2] kernel[4] stride[4] dilation[1](%0) : bf16[2,3,8,4]
          %4 = contract sum[1,3]x[1,2](%3, %1) : f32[2,8,5]
          %5 = view permute[0,2,1](%4) : f32[2,5,8]
          %6 = view reshape(%2) : bf16[5,1]
          %7 = cast(%6) : f32[5,1]
          %8 = view reshape(%7) : f32[1,5,1]
          %9 = view expand(%8) : f32[2,5,8]
          %10 = map add(%5, %9) : f32[2,5,8]
          %11 = cast(%10) : bf16[2,5,8]
          outputs %11
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : bf16[2,3,32]
              %1 = param 0 : bf16[5,3,4]
              %2 = param 1 : bf16[5]
              %3 = view reshape(%0) : bf16[2,3,8,4]
              %4 = view permute[0,1,2,3](%3) : bf16[2,3,8,4]
              %5 = view permute[0,2,1,3](%4) : bf16[2,8,3,4]
              %6 = view reshape(%5) : bf16[2,8,12]
              %7 = view reshape(%1) : bf16[5,12]
              %8 = contract sum[2]x[1](%6, %7) : f32[2,8,5]
              %9 = view reshape(%2) : bf16[5]
              %10 = cast(%9) : f32[5]
              %11 = view reshape(%10) : f32[1,1,5]
              %12 = view expand(%11) : f32[2,8,5]
              %13 = map add(%8, %12) : f32[2,8,5]
              %14 = cast(%13) : bf16[2,8,5]
              %15 = view permute[0,2,1](%14) : bf16[2,5,8]
              outputs %15
            }
        "#]],
    );
    // What is added is another than a vector of the channels: one of the positions, of which there are as many.
    let text = "graph {
      %0 = input 0 : bf16[2,3,20]
      %1 = param 0 : bf16[5,3,4]
      %2 = param 1 : bf16[5]
      %3 = view window[2] kernel[4] stride[4] dilation[1](%0) : bf16[2,3,5,4]
      %4 = contract sum[1,3]x[1,2](%3, %1) : f32[2,5,5]
      %5 = view permute[0,2,1](%4) : f32[2,5,5]
      %6 = cast(%2) : f32[5]
      %7 = view reshape(%6) : f32[1,1,5]
      %8 = view expand(%7) : f32[2,5,5]
      %9 = map add(%5, %8) : f32[2,5,5]
      %10 = cast(%9) : bf16[2,5,5]
      outputs %10
    }";
    assert_eq!(on_gpu(text).0, 0);
    // A tensor.
    let text = "graph {
      %0 = input 0 : bf16[2,3,32]
      %1 = param 0 : bf16[5,3,4]
      %2 = param 1 : f32[2,5,8]
      %3 = view window[2] kernel[4] stride[4] dilation[1](%0) : bf16[2,3,8,4]
      %4 = contract sum[1,3]x[1,2](%3, %1) : f32[2,8,5]
      %5 = view permute[0,2,1](%4) : f32[2,5,8]
      %6 = map add(%5, %2) : f32[2,5,8]
      %7 = cast(%6) : bf16[2,5,8]
      outputs %7
    }";
    assert_eq!(on_gpu(text).0, 0);
}
