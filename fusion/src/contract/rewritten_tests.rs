//! Products that passes make of convolutions, and of operands that they pad: plans, and values in the interpreter.

use super::row_tests::{check_within, on_gpu, planned};
use crate::machine::Profile;

fn gpu() -> Profile {
    Profile::gpu(132, 4200.0).with_clusters().with_warpgroups()
}

/// The embeddings of patches of images, as vision transformers begin with.
fn patches(batch: i64, side: i64, patch: i64, width: i64) -> String {
    let each = side / patch;
    let count = each * each;
    on_gpu(&format!(
        "graph {{
           %0 = input 0 : f32[{batch},3,{side},{side}]
           %1 = param 0 : f32[{width},3,{patch},{patch}]
           %2 = param 1 : f32[{width}]
           %3 = aten::conv2d(input=%0, weight=%1, bias=%2, stride=[{patch},{patch}], padding=[0,0], dilation=[1,1], groups=1) : f32[{batch},{width},{each},{each}]
           %4 = aten::flatten.using_ints(self=%3, start_dim=2, end_dim=-1) : f32[{batch},{width},{count}]
           %5 = aten::transpose.int(self=%4, dim0=1, dim1=2) : f32[{batch},{count},{width}]
           %6 = aten::relu(self=%5) : f32[{batch},{count},{width}]
           outputs %6
         }}"
    ))
}

#[test]
fn convolutions_of_patches_are_a_copy_and_a_product_on_a_gpu() {
    // What follows is of the product's rows in their order: an epilogue.
    let (plan, _) = planned(&patches(64, 224, 16, 768), &gpu());
    assert_eq!((plan.kernel_count(), plan.extern_count()), (2, 0), "{plan}");
    for (batch, side, patch, width) in [(2, 16, 4, 24), (1, 27, 8, 64), (3, 8, 8, 16)] {
        check_within(&patches(batch, side, patch, width), &gpu(), 2e-2);
    }
}

/// A layer over the tokens of images, as MLP-Mixer has: 196 of them begin at no multiples of 16 bytes.
fn over_tokens(batch: i64, width: i64, tokens: i64, hidden: i64) -> String {
    on_gpu(&format!(
        "graph {{
           %0 = input 0 : f32[{batch},{tokens},{width}]
           %1 = param 0 : f32[{hidden},{tokens}]
           %2 = param 1 : f32[{hidden}]
           %3 = aten::transpose.int(self=%0, dim0=1, dim1=2) : f32[{batch},{width},{tokens}]
           %4 = aten::linear(input=%3, weight=%1, bias=%2) : f32[{batch},{width},{hidden}]
           %5 = aten::relu(self=%4) : f32[{batch},{width},{hidden}]
           outputs %5
         }}"
    ))
}

#[test]
fn rows_are_padded_for_products_on_a_gpu() {
    // The kernel that transposes the activations pads them, another one the weight.
    let (plan, _) = planned(&over_tokens(64, 768, 196, 384), &gpu());
    assert_eq!((plan.kernel_count(), plan.extern_count()), (3, 0), "{plan}");
    let near = Profile { bandwidth: 1e9, launch_us: 0.0, ..gpu() };
    for (batch, width, tokens, hidden) in [(2, 24, 20, 32), (1, 64, 9, 24), (3, 40, 33, 64)] {
        let text = over_tokens(batch, width, tokens, hidden);
        let padded = tokens / 8 * 8 + 8;
        assert!(planned(&text, &near).0.to_string().contains(&format!(",{padded}]@cuda:0")), "{tokens}");
        check_within(&text, &near, 2e-2);
    }
}
