//! Groups between the passes that make them, as text.

use expect_test::{Expect, expect};

use crate::machine::Profile;
use crate::parse_graph;
use crate::pipeline::{Context, Form, Stage, run};
use crate::plan::groups::Groups;
use crate::rewrites::Rewrites;

const TEXT: &str = "graph {
  %0 = input 0 : f32[8,16]
  %1 = input 1 : f32[8]
  %2 = aten::cumsum(self=%0) : f32[8,16]
  %3 = map exp(%2) : f32[8,16]
  %4 = reduce sum[1](%3) : f32[8]
  %5 = map add(%4, %1) : f32[8]
  %6 = view reshape(%5) : f32[2,4]
  %7 = reduce max[1](%2) : f32[8]
  outputs %6, %7
}
";

/// The groups of a graph after a pass.
fn after(text: &str, pass: &str, rewrites: Rewrites) -> Groups {
    let profile = Profile::host(2);
    let mut cx = Context { rewrites, ..Context::new(&profile) };
    let form = Form::Graph(parse_graph(text).unwrap());
    match run(form, Stage::Plan..=Stage::Plan, &mut cx, &mut |name, _| name != pass) {
        Ok(Form::Groups(groups)) => groups,
        other => panic!("{other:?}"),
    }
}

fn check(pass: &str, expected: &Expect) {
    let text = after(TEXT, pass, Rewrites::default()).to_string();
    expected.assert_eq(text.split("graph {").next().unwrap());
}

#[test]
fn groups_grow_pass_by_pass() {
    check(
        "group",
        &expect![[r#"
        groups {
          0: libtorch: %2
          1: kernel over [8, 16], tile 128, warps 1: %3; stores %3
          2: kernel over [8, 16], reduced [1], tile 2 x 16, warps 1: %4; stores %4
          3: kernel over [8], tile 8, warps 1: %5; stores %5
          4: kernel over [8, 16], reduced [1], tile 2 x 16, warps 1: %7; stores %7
          where used: %6
        }
    "#]],
    );
    check(
        "vertical-fusion",
        &expect![[r#"
        groups {
          0: libtorch: %2
          1: kernel over [8, 16], reduced [1], tile 2 x 16, warps 1: %3, %4, %5; stores %5
          2: kernel over [8, 16], reduced [1], tile 2 x 16, warps 1: %7; stores %7
          where used: %6
        }
    "#]],
    );
    check(
        "sibling-fusion",
        &expect![[r#"
        groups {
          0: libtorch: %2
          1: kernel over [8, 16], reduced [1], tile 2 x 16, warps 1: %3, %4, %5, %7; stores %5, %7
          where used: %6
        }
    "#]],
    );
}

/// Cheap expressions are computed where they are used, or in kernels of their own.
#[test]
fn what_is_computed_where_it_is_used_is_a_rewrite() {
    let text = "graph {
  %0 = input 0 : f32[16]
  %1 = map neg(%0) : f32[16]
  %2 = view reshape(%1) : f32[1,16]
  %3 = view expand(%2) : f32[64,16]
  %4 = input 1 : f32[64,16]
  %5 = map add(%3, %4) : f32[64,16]
  outputs %5
}
";
    let inlined = |limit| after(text, "group", Rewrites::at_most(limit)).in_sequence().count();
    assert_eq!([None, Some(1), Some(0)].map(inlined), [1, 1, 2]);
}
