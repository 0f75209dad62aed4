//! Groups between the passes that make them: as text, and what their verifier refuses.

use expect_test::{Expect, expect};

use crate::graph::NodeId;
use crate::machine::Profile;
use crate::parse_graph;
use crate::pipeline::{Context, Form, Stage, run};
use crate::plan::PlanError;
use crate::plan::groups::{Groups, UnitKernel};
use crate::plan::verify_groups;
use crate::rewrite_limit::Rewrites;

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

#[test]
fn groups_that_do_not_fit_together_are_refused() {
    let good = after(TEXT, "sibling-fusion", Rewrites::default());
    assert_eq!(verify_groups(&good), Ok(()));
    let refused = |change: &dyn Fn(&mut Groups)| {
        let mut groups = good.clone();
        change(&mut groups);
        match verify_groups(&groups) {
            Err(PlanError::Invalid { place, what }) => format!("{place} {what}"),
            other => format!("{other:?}"),
        }
    };
    let id = |index: usize| good.order.iter().copied().find(|id| id.index() == index).unwrap();
    let unit = |index: usize| good.unit_of[&id(index)];
    let at = |groups: &mut Groups, index: usize| -> Vec<NodeId> {
        groups.units[unit(index)].iter().flat_map(|unit| unit.nodes.clone()).collect()
    };
    let mut texts = vec![
        refused(&|groups| {
            groups.unit_of.remove(&id(4));
        }),
        refused(&|groups| groups.units[unit(2)].as_mut().unwrap().nodes.push(id(4))),
        refused(&|groups| {
            let nodes = at(groups, 4);
            groups.units[unit(4)] = None;
            groups.unit_of.retain(|node, _| !nodes.contains(node));
        }),
        refused(&|groups| groups.units[unit(4)].as_mut().unwrap().kernel = None),
        refused(&|groups| {
            let kernel = groups.units[unit(4)].as_ref().unwrap().kernel.clone();
            groups.units[unit(2)].as_mut().unwrap().kernel = kernel;
        }),
        refused(&|groups| {
            groups.demanded.insert(id(3).into());
        }),
        refused(&|groups| {
            if let Some(UnitKernel::Generated(built)) = &mut groups.units[unit(4)].as_mut().unwrap().kernel {
                built.kernel.buffers.retain(|buffer| !buffer.written);
            }
        }),
        refused(&|groups| {
            if let Some(UnitKernel::Generated(built)) = &mut groups.units[unit(4)].as_mut().unwrap().kernel {
                built.kernel.buffers[0].value = id(3).into();
            }
        }),
        refused(&|groups| groups.graph.outputs[0] = id(3).into()),
    ];
    // The call after the kernel that needs its result.
    texts.push(refused(&|groups| {
        let (call, kernel) = (unit(2), unit(4));
        groups.units.swap(call, kernel);
        let units = groups.units.iter().enumerate();
        groups.unit_of =
            units.flat_map(|(at, u)| u.iter().flat_map(|u| u.nodes.clone()).map(move |n| (n, at))).collect();
    }));
    expect![[r#"
        the groups are not those of their nodes
        %4.0 is in two groups
        %3.0 is in no group, or needs none
        group 1 has no kernel, and is not one call that runs through libtorch
        group 0 has a kernel, and a call that runs through libtorch
        group 1 does not store %3.0
        group 1 does not store %5.0
        group 1 reads %3.0, which is not in memory
        the results need %3.0, which is not in memory
        group 0 reads %2.0, which is not in memory"#]]
    .assert_eq(&texts.join("\n"));
}
