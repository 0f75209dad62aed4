//! The passes in order, and how many rewrites they make.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::{Context, Form, Measure, PASSES, Stage, lowered, run};
use crate::Products;
use crate::contract::{Candidate, Times};
use crate::eval::{Precision, Sources, eval};
use crate::graph::Graph;
use crate::machine::Profile;
use crate::parse_graph;
use crate::rewrite_limit::Rewrites;
use tilefuse_block::Data;

const MODEL: &str = "graph {
  %0 = input 0 : f32[8,16]
  %1 = param 0 : f32[4,16]
  %2 = param 1 : f32[4]
  %3 = aten::linear(input=%0, weight=%1, bias=%2) : f32[8,4]
  %4 = aten::gelu(self=%3) : f32[8,4]
  %5 = aten::softmax.int(self=%4, dim=1, dtype=None) : f32[8,4]
  %6 = aten::t(self=%5) : f32[4,8]{1,4}
  %7 = aten::t(self=%6) : f32[8,4]
  outputs %7
}";

/// The program after a pass, and how many rewrites were made.
fn stopped(pass: &str, limit: Option<u64>) -> (Form, Rewrites) {
    stopped_of(MODEL, pass, limit)
}

fn stopped_of(text: &str, pass: &str, limit: Option<u64>) -> (Form, Rewrites) {
    let profile = Profile::host(2);
    let mut cx = Context::new(&profile);
    cx.rewrites = Rewrites::at_most(limit);
    let form = Form::Graph(parse_graph(text).unwrap());
    let form = run(form, Stage::Primitive..=Stage::Plan, &mut cx, &mut |name, _| name != pass).unwrap();
    (form, cx.rewrites)
}

#[test]
fn names_are_distinct_and_each_pass_can_be_the_last() {
    for (at, pass) in PASSES.iter().enumerate() {
        assert!(PASSES[..at].iter().all(|other| other.name != pass.name && other.stage <= pass.stage));
        let (form, _) = stopped(pass.name, None);
        let ran = |name: &str| PASSES[..=at].iter().any(|pass| pass.name == name);
        let is_grouped = matches!(form, Form::Groups(_));
        assert_eq!(is_grouped, ran("group") && !ran("schedule"), "{}", pass.name);
        assert_eq!(matches!(form, Form::Plan(_)), ran("schedule"), "{}", pass.name);
        assert!(!form.to_string().is_empty());
    }
}

/// The passes that the documentation lists are those that run.
#[test]
fn the_list_is_that_of_the_passes() {
    let text = include_str!("../pipeline.rs");
    let listed = text.lines().filter_map(|line| line.strip_prefix("//!   ")?.split_whitespace().next());
    let passes: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    assert_eq!(listed.collect::<Vec<&str>>(), passes);
}

/// Every number of rewrites gives a program with the same meaning.
#[test]
fn rewrites_stop_at_a_limit() {
    let data = |n: usize| Data::F32((0..n).map(|i| ((i * 29) % 13) as f32 / 7.0 - 0.8).collect());
    let (inputs, params) = ([data(128)], [data(64), data(4)]);
    let sources = Sources { inputs: &inputs, params: &params, ..Sources::default() };
    let all = stopped("simplify", None);
    let count = all.1.made();
    assert!(count > 5, "{count}");
    let mut last = Vec::new();
    let mut lowered = 0;
    for limit in 0..=count {
        let (form, rewrites) = stopped("simplify", Some(limit));
        assert_eq!(rewrites.made(), limit);
        last.extend(rewrites.last());
        let Form::Graph(graph) = form else { unreachable!() };
        if graph.to_string().contains("aten::") {
            continue;
        }
        lowered += 1;
        let Form::Graph(whole) = &all.0 else { unreachable!() };
        let results = [&graph, whole].map(|g| eval(g, sources, Precision::Exact).unwrap().outputs);
        assert_eq!(results[0], results[1], "{limit}");
    }
    assert!(lowered > 1);
    last.dedup();
    assert_eq!(last[0], "lower");
    assert!(last.iter().any(|last| last == "simplify/fold-views"), "{last:?}");
}

/// So many rewrites are made as may be, of whatever passes, and there is a plan of any number.
#[test]
fn any_number_of_rewrites_gives_a_plan() {
    let (_, all) = stopped("", None);
    let mut last: Vec<String> = Vec::new();
    for limit in 0..=all.made() {
        let (form, rewrites) = stopped("", Some(limit));
        assert!(matches!(form, Form::Plan(_)));
        assert_eq!(rewrites.made(), limit);
        last.extend(rewrites.last());
    }
    for name in ["lower", "simplify/fold-views", "select-library", "vertical-fusion/epilogue"] {
        assert!(last.iter().any(|last| last == name), "{name}: {last:?}");
    }
}

#[test]
fn what_later_passes_need_is_named_beside_the_last_rewrite() {
    let text = "graph {
      %0 = input 0 : f32[4,8]
      %1 = input 1 : i64[2,8]
      %2 = input 2 : f32[0,8]
      %3 = aten::constant_pad_nd(self=%0, pad=[0,0,1,1], value=0.0) : f32[6,8]
      %4 = aten::gather(self=%3, dim=0, index=%1, sparse_grad=false) : f32[2,8]
      %5 = aten::exp(self=%2) : f32[0,8]
      %6 = aten::exp(self=%4) : f32[2,8]
      outputs %6, %5
    }";
    let (_, lowered) = stopped_of(text, "prepack-filters", None);
    assert!(!lowered.last().unwrap().contains("with"));
    let (_, limited) = stopped_of(text, "", Some(lowered.made()));
    assert_eq!(limited.made(), lowered.made());
    let expected = format!("{} with drop-empty with store-gathered", lowered.last().unwrap());
    assert_eq!(limited.last(), Some(expected));
    // A later one is made of what they left.
    let (_, next) = stopped_of(text, "", Some(lowered.made() + 1));
    assert_eq!(next.made(), lowered.made() + 1);
    assert!(!next.last().unwrap().contains("with"), "{:?}", next.last());
}

#[test]
fn kernels_that_are_not_merged_say_that_rewrites_are_limited() {
    let (form, rewrites) = stopped("", None);
    let Form::Plan(whole) = form else { unreachable!() };
    let merges = rewrites.made() - stopped("group", None).1.made();
    assert!(merges > 0);
    let before = rewrites.made() - merges;
    let Form::Plan(none) = stopped("", Some(before)).0 else { unreachable!() };
    assert!(none.kernel_count() > whole.kernel_count());
    let limited = |d: &&crate::plan::Decision| d.verdict == crate::plan::Verdict::Limit;
    assert!(none.decisions.iter().any(|d| limited(&d)));
    assert_eq!(crate::plan::Verdict::Limit.to_string(), "cut: the number of rewrites is limited");
}

/// A plan is no form that graphs are made of.
#[test]
fn a_pass_says_that_it_is_not_run_on_a_form() {
    let (profile, stages) = (Profile::host(2), Stage::Primitive..=Stage::Plan);
    let (plan, _) = stopped("", None);
    let error = run(plan, stages, &mut Context::new(&profile), &mut |_, _| true).unwrap_err();
    assert_eq!(error.to_string(), "internal: lower is not run on this form of a program");
}

/// Who measures knows all candidates before the first one is asked for.
#[test]
fn candidates_are_foreseen() {
    struct Log<'a>(&'a mut Vec<String>);

    impl Measure for Log<'_> {
        fn foresees(&mut self, _: &Graph, _: &Profile) -> bool {
            true
        }

        fn foresee(&mut self, candidate: &Candidate<'_>, _: &Profile) {
            self.0.push(format!("foresee {}", candidate.call.op));
        }

        fn begin(&mut self, _: &Profile) {
            self.0.push(String::from("begin"));
        }

        fn measure(&mut self, candidate: &Candidate<'_>, _: &Profile) -> Option<Times> {
            self.0.push(format!("measure {}", candidate.call.op));
            None
        }
    }

    let text = "graph {
      %0 = input 0 : f32[64,256]
      %1 = input 1 : f32[256,256]
      %2 = aten::mm(self=%0, mat2=%1) : f32[64,256]
      %3 = aten::linear(input=%2, weight=%1, bias=None) : f32[64,256]
      outputs %3
    }";
    let mut asked = Vec::new();
    let mut cx = Context::new(&Profile::host(2));
    cx.selection.products = Products::Measured;
    cx.selection.measure = Box::new(Log(&mut asked));
    lowered(parse_graph(text).unwrap(), Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
    drop(cx);
    let begin = asked.iter().position(|event| event == "begin").unwrap();
    let of = |events: &[String], what: &str| -> Vec<String> {
        events.iter().map(|event| event.strip_prefix(what).unwrap().to_owned()).collect()
    };
    let (foreseen, measured) = (of(&asked[..begin], "foresee "), of(&asked[begin + 1..], "measure "));
    assert!(foreseen.contains(&String::from("aten::mm")) && foreseen.contains(&String::from("aten::linear")));
    assert_eq!(foreseen, measured);
}
