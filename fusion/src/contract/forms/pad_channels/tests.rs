use expect_test::expect;

use crate::contract::Products;
use crate::contract::forms::rewritten;
use crate::contract::warpgroup_tests::gpu;
use crate::machine::Profile;

fn text(elem: &str, channels: i64, [taps, dilation]: [i64; 2]) -> String {
    let positions = (24 - dilation * (taps - 1) - 1) / 2 + 1;
    format!(
        "graph {{
          %0 = input 0 : {elem}[2,{channels},18,18]
          %1 = param 0 : {elem}[16,{channels},7,{taps}]
          %2 = view pad[0,0,3,3]=0.0(%0) : {elem}[2,{channels},24,24]
          %3 = view window[2,3] kernel[7,{taps}] stride[2,2] dilation[1,{dilation}](%2) : {elem}[2,{channels},9,{positions},7,{taps}]
          %4 = contract sum[1,4,5]x[1,2,3](%3, %1) : f32[2,9,{positions},16]
          outputs %4
        }}"
    )
}

#[test]
fn few_channels_are_filled_up() {
    let (made, graph) = rewritten(&text("bf16", 3, [7, 1]), &gpu(), Products::Predicted);
    assert_eq!(made, 1);
    expect![[r#"
        graph {
          %0 = input 0 : bf16[2,3,18,18]
          %1 = param 0 : bf16[16,3,7,7]
          %2 = view pad[0,0,3,3]=0.0(%0) : bf16[2,3,24,24]
          %3 = view permute[0,2,3,1](%2) : bf16[2,24,24,3]
          %4 = view pad[0,0,0,0]=0.0(%3) : bf16[2,24,24,8]
          %5 = view permute[0,3,1,2](%4) : bf16[2,8,24,24]{4608,1,192,8}
          %6 = view permute[0,2,3,1](%1) : bf16[16,7,7,3]
          %7 = view pad[0,0,0,0]=0.0(%6) : bf16[16,7,7,8]
          %8 = view permute[0,3,1,2](%7) : bf16[16,8,7,7]{392,1,56,8}
          %9 = view window[2,3] kernel[7,7] stride[2,2] dilation[1,1](%5) : bf16[2,8,9,9,7,7]
          %10 = contract sum[1,4,5]x[1,2,3](%9, %8) : f32[2,9,9,16]
          outputs %10
        }
    "#]]
    .assert_eq(&graph.to_string());
}

#[test]
fn others_are_left() {
    for (elem, channels, window, made) in [
        ("f16", 7, [3, 1], 1),
        ("f16", 1, [3, 1], 1),
        ("f32", 3, [7, 1], 0),
        ("f16", 8, [7, 1], 0),
        ("f16", 3, [1, 1], 0),
        ("f16", 3, [9, 1], 0),
        ("f16", 3, [7, 2], 0),
    ] {
        let found = rewritten(&text(elem, channels, window), &gpu(), Products::Predicted).0;
        assert_eq!(found, made, "{elem} {channels} {window:?}");
    }
    // libtorch's calls read no run of pixels, and there is no kernel on a GPU without warpgroups.
    let text = text("bf16", 3, [7, 1]);
    assert_eq!(rewritten(&text, &gpu(), Products::Library).0, 0);
    assert_eq!(rewritten(&text, &Profile::gpu(132, 4200.0), Products::Predicted).0, 0);
}
