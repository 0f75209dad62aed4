use expect_test::{Expect, expect};

use super::gather_products;
use crate::machine::Profile;
use crate::parse_graph;
use crate::rewrite_limit::Rewrites;

/// A machine far from its memory.
fn far() -> Profile {
    Profile { bandwidth: 1e-9, ..Profile::host(2) }
}

fn check(text: &str, expected: Expect) {
    let mut graph = parse_graph(text).unwrap();
    let rewrites = Rewrites::default();
    let made = gather_products(&mut graph, &far(), &rewrites);
    crate::verify(&graph).unwrap();
    assert_eq!(made as u64, rewrites.made());
    expected.assert_eq(&format!("{made}: {graph}"));
}

#[test]
fn columns_that_are_picked_are_multiplied_alone() {
    check(
        "graph {
          %0 = input 0 : f32[2,3,8]
          %1 = input 1 : i64[6,1]
          %2 = param 0 : f32[50,8]
          %3 = param 1 : f32[1,50]
          %4 = contract sum[2]x[1](%0, %2) : f32[2,3,50]
          %5 = view reshape(%4) : f32[6,50]
          %6 = view expand(%3) : f32[6,50]
          %7 = map add(%5, %6) : f32[6,50]
          %8 = reduce max[1](%7) : f32[6]
          %9 = view reshape(%8) : f32[6,1]
          %10 = view expand(%9) : f32[6,50]
          %11 = map sub(%7, %10) : f32[6,50]
          %12 = gather 1(%11, %1) : f32[6,1]
          outputs %12
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : f32[2,3,8]
              %1 = input 1 : i64[6,1]
              %2 = param 0 : f32[50,8]
              %3 = param 1 : f32[1,50]
              %4 = contract sum[2]x[1](%0, %2) : f32[2,3,50]
              %5 = view reshape(%4) : f32[6,50]
              %6 = view expand(%3) : f32[6,50]
              %7 = map add(%5, %6) : f32[6,50]
              %8 = reduce max[1](%7) : f32[6]
              %9 = view reshape(%8) : f32[6,1]
              %10 = view reshape(%1) : i64[2,3,1]
              %11 = view reshape(%10) : i64[6,1]
              %12 = view expand(%11) : i64[6,8]
              %13 = gather 0(%2, %12) : f32[6,8]
              %14 = view reshape(%0) : f32[6,1,8]
              %15 = view expand(%14) : f32[6,1,8]
              %16 = view reshape(%15) : f32[6,8]
              %17 = map mul(%16, %13) : f32[6,8]
              %18 = reduce sum[1](%17) : f32[6]
              %19 = view reshape(%18) : f32[2,3,1]
              %20 = view reshape(%19) : f32[6,1]
              %21 = gather 1(%6, %1) : f32[6,1]
              %22 = map add(%20, %21) : f32[6,1]
              %23 = view expand(%9) : f32[6,1]
              %24 = map sub(%22, %23) : f32[6,1]
              outputs %24
            }
        "#]],
    );
}

#[test]
fn products_that_are_needed_are_gathered_from() {
    let text = |more: &str, outputs: &str| {
        format!(
            "graph {{
              %0 = input 0 : f32[6,8]
              %1 = input 1 : i64[6,1]
              %2 = param 0 : f32[50,8]
              %3 = contract sum[1]x[1](%0, %2) : f32[6,50]
              %4 = gather 1(%3, %1) : f32[6,1]
              {more}
              outputs {outputs}
            }}"
        )
    };
    for (more, outputs) in [
        ("", "%4, %3"),
        ("%5 = reduce sum[0](%3) : f32[50]", "%4, %5"),
        ("%5 = map exp(%3) : f32[6,50]", "%4, %5"),
        ("%5 = view permute[1,0](%3) : f32[50,6]\n %6 = reduce sum[1](%5) : f32[50]", "%4, %6"),
    ] {
        let mut graph = parse_graph(&text(more, outputs)).unwrap();
        assert_eq!(gather_products(&mut graph, &far(), &Rewrites::default()), 0, "{more}");
    }
    let mut graph = parse_graph(&text("%5 = reduce sum[1](%3) : f32[6]", "%4, %5")).unwrap();
    assert_eq!(gather_products(&mut graph, &far(), &Rewrites::default()), 1);
}

#[test]
fn many_columns_are_gathered_from_the_product() {
    let text = |picked: i64| {
        format!(
            "graph {{
              %0 = input 0 : f32[6,8]
              %1 = input 1 : i64[6,{picked}]
              %2 = param 0 : f32[50,8]
              %3 = contract sum[1]x[1](%0, %2) : f32[6,50]
              %4 = gather 1(%3, %1) : f32[6,{picked}]
              outputs %4
            }}"
        )
    };
    for (picked, made) in [(1, 1), (3, 1), (4, 0)] {
        let mut graph = parse_graph(&text(picked)).unwrap();
        assert_eq!(gather_products(&mut graph, &far(), &Rewrites::default()), made, "{picked}");
    }
}

/// As it would be in the product: rounded once.
#[test]
fn picked_columns_of_short_floats_are_summed_in_longer_ones() {
    check(
        "graph {
          %0 = input 0 : bf16[6,8]
          %1 = input 1 : i64[6,1]
          %2 = param 0 : bf16[50,8]
          %3 = contract sum[1]x[1](%0, %2) : bf16[6,50]
          %4 = gather 1(%3, %1) : bf16[6,1]
          outputs %4
        }",
        expect![[r#"
            1: graph {
              %0 = input 0 : bf16[6,8]
              %1 = input 1 : i64[6,1]
              %2 = param 0 : bf16[50,8]
              %3 = view reshape(%1) : i64[6,1]
              %4 = view expand(%3) : i64[6,8]
              %5 = gather 0(%2, %4) : bf16[6,8]
              %6 = view reshape(%0) : bf16[6,1,8]
              %7 = view expand(%6) : bf16[6,1,8]
              %8 = view reshape(%7) : bf16[6,8]
              %9 = cast(%5) : f32[6,8]
              %10 = cast(%8) : f32[6,8]
              %11 = map mul(%10, %9) : f32[6,8]
              %12 = reduce sum[1](%11) : f32[6]
              %13 = cast(%12) : bf16[6]
              %14 = view reshape(%13) : bf16[6,1]
              outputs %14
            }
        "#]],
    );
}

#[test]
fn products_that_take_no_longer_to_store_than_a_launch_are_gathered_from() {
    let text = "graph {
      %0 = input 0 : f32[6,8]
      %1 = input 1 : i64[6,1]
      %2 = param 0 : f32[50,8]
      %3 = contract sum[1]x[1](%0, %2) : f32[6,50]
      %4 = gather 1(%3, %1) : f32[6,1]
      outputs %4
    }";
    let made =
        |profile: &Profile| gather_products(&mut parse_graph(text).unwrap(), profile, &Rewrites::default());
    assert_eq!([made(&far()), made(&Profile::host(2))], [1, 0]);
}
