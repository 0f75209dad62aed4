//! Which forms of contractions are taken, and what is said of it.

use expect_test::{Expect, expect};

use super::{Prices, contraction_forms};
use crate::contract::Products;
use crate::contract::warpgroup_tests::gpu;
use crate::parse_graph;
use crate::rewrite_limit::Rewrites;

fn check(text: &str, limit: Option<u64>, expected: Expect) {
    let mut graph = parse_graph(text).unwrap();
    let rewrites = Rewrites::at_most(limit);
    rewrites.begin("contraction-forms");
    let (profile, products) = (&gpu(), Products::Predicted);
    let compared = contraction_forms(&mut graph, Prices { profile, products, prepacks: false }, &rewrites);
    let mut found: Vec<String> = compared.iter().map(ToString::to_string).collect();
    found.extend(rewrites.last());
    expected.assert_eq(&found.join("\n"));
}

/// A convolution without padding of 64 images of 224 x 224.
fn images(channels: i64, filters: i64, [taps, stride]: [i64; 2]) -> String {
    let positions = (224 - taps) / stride + 1;
    format!(
        "graph {{
          %0 = input 0 : bf16[64,{channels},224,224]
          %1 = param 0 : bf16[{filters},{channels},{taps},{taps}]
          %2 = view window[2,3] kernel[{taps},{taps}] stride[{stride},{stride}] dilation[1,1](%0) : bf16[64,{channels},{positions},{positions},{taps},{taps}]
          %3 = contract sum[1,4,5]x[1,2,3](%2, %1) : f32[64,{positions},{positions},{filters}]
          %4 = view permute[0,3,1,2](%3) : f32[64,{filters},{positions},{positions}]
          %5 = cast(%4) : bf16[64,{filters},{positions},{positions}]
          outputs %5
        }}"
    )
}

#[test]
fn the_form_that_takes_least_is_taken() {
    // The first convolutions of a ViT, and of a ResNet.
    check(
        &images(3, 768, [16, 16]),
        None,
        expect![[r#"
        a contraction: space-to-depth, predicted: as it is 536.2 us, space-to-depth 44.7 us
        contraction-forms/space-to-depth"#]],
    );
    check(
        &images(3, 64, [7, 2]),
        None,
        expect![[r#"
        a contraction: pad-channels, predicted: as it is 518.2 us, pad-channels 120.4 us
        contraction-forms/pad-channels"#]],
    );
    // Patches, and channels that are filled up.
    check(
        &images(3, 96, [4, 4]),
        None,
        expect![[r#"
        a contraction: space-to-depth, predicted: as it is 119.5 us, space-to-depth 28.9 us, pad-channels 59.7 us
        contraction-forms/space-to-depth"#]],
    );
    // Rows of patches that are padded in turn.
    check(
        &images(3, 768, [14, 14]),
        None,
        expect![[r#"
        a contraction: space-to-depth, predicted: as it is 535.8 us, space-to-depth 205.0 us
        a contraction: align-sums, predicted: as it is 192.8 us, align-sums 48.4 us
        contraction-forms/align-sums"#]],
    );
}

#[test]
fn a_form_beyond_the_limit_of_rewrites_is_not_taken() {
    let forms = expect!["a contraction: as it is, predicted: as it is 518.2 us, pad-channels 120.4 us"];
    check(&images(3, 64, [7, 2]), Some(0), forms);
    check(
        &images(3, 768, [14, 14]),
        Some(1),
        expect![[r#"
        a contraction: space-to-depth, predicted: as it is 535.8 us, space-to-depth 205.0 us
        a contraction: as it is, predicted: as it is 192.8 us, align-sums 48.4 us
        contraction-forms/space-to-depth"#]],
    );
}
