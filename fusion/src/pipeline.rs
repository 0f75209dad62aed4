//! The passes from a functional graph to a plan, in order.
//!
//! ```text
//! functional graph
//!   lower                      calls                             -> primitive operators
//! primitive graph
//!   simplify                   what simplify::PASSES lists       -> until nothing changes
//!   slice-products             slices of products                -> products of slices
//!   gather-products            columns of products, picked       -> products of these, on a processor
//!   tuple-reductions           reductions that need each other   -> one of tuples
//!   select-attention           contraction, softmax, contraction -> scaled_dot_product_attention
//!   select-library             contractions                      -> calls of libtorch, or products and their sums
//!   simplify-selected          as simplify
//!   channels-last              convolutions of halves, on a GPU  -> in channels-last, where less is copied so
//!   select-kernels             calls                             -> kernels where they take less time
//!   drop-aliased-outputs  *    outputs in memory of others       -> these
//!   drop-empty            *    what is empty, and what reads it  -> allocated only, and without it
//!   store-gathered        *    sources of gathers                -> stored, where they are in no memory
//!   split-reductions           long or crossing reductions       -> reductions of parts, and of these
//! plan
//!   group                      primitives                        -> kernels and libtorch calls in order
//!   horizontal-fusion          small independent kernels         -> one launch
//!   reinplace                  updates of the caller's tensors   -> written there by their kernels
//!   outer-loop-fusion          kernels over the same rows        -> one loop over blocks of rows, on a processor
//!   non-temporal-stores        large results                     -> by non-temporal stores, on a processor
//! ```
//!
//! The graph is verified behind each pass in debug builds, and the plan at the end. Rewrites are counted and can be limited,
//! see [`Rewrites`], but those of the passes with a star: grouping needs them all.

use std::fmt;
use std::ops::RangeInclusive;

use crate::channels_last::library::channels_last;
use crate::contract::{Candidate, Times, choose_counted};
use crate::gathered_products::gather_products;
use crate::graph::Graph;
use crate::hints::Hints;
use crate::lower::{LowerError, lower_counted};
use crate::machine::Profile;
use crate::place::Alignments;
use crate::plan::{self, Plan, PlanError, Tuner};
use crate::rewrites::Rewrites;
use crate::select_attention::{Facts, NoFacts, select_attention};
use crate::select_library::select_library;
use crate::simplify::simplify_counted;
use crate::sliced_products::slice_products;
use crate::tuple_reductions::tuple_reductions;
use crate::{Prepacked, Products};

/// What passes know beside the program that they rewrite.
pub struct Context<'a> {
    /// The machine.
    pub profile: Profile,
    /// The tensors of the model.
    pub facts: Box<dyn Facts + 'a>,
    /// Which products, convolutions and attention become kernels.
    pub selection: Selection<'a>,
    /// Where the tensors of the model and the caller lie.
    pub alignments: Alignments,
    /// Bytes that a call may hold at a time: a form that holds more is not taken for its speed.
    pub most_bytes: u64,
    /// Chooses among schedules: the same choices give the same plan.
    pub tuner: Box<Tuner<'a>>,
    /// The rewrites that were made, and how many may be.
    pub rewrites: Rewrites,
    /// What the user asks for.
    pub hints: Hints,
}

/// How the pass `select-kernels` chooses.
pub struct Selection<'a> {
    /// By what.
    pub products: Products,
    /// How many constants there are, where weights may be prepacked into further ones.
    pub constants: Option<u32>,
    /// Measures candidates.
    pub measure: Box<dyn Measure + 'a>,
    /// The constants that hold prepacked weights: a result of the pass.
    pub packed: Vec<Prepacked>,
}

/// Measures the candidates of [`choose_products`](crate::choose_products).
pub trait Measure {
    /// All candidates of a graph are about to be asked for. `constants` and `most_bytes` are those of the choice.
    fn begin(&mut self, graph: &Graph, profile: &Profile, constants: Option<u32>, most_bytes: u64) {
        let _ = (graph, profile, constants, most_bytes);
    }

    /// What a candidate and the call that it replaces take; `None` where that is not known, and is predicted.
    fn measure(&mut self, candidate: &Candidate<'_>, profile: &Profile) -> Option<Times>;
}

/// Measures nothing.
#[derive(Clone, Copy, Debug)]
struct NoMeasure;

impl Measure for NoMeasure {
    fn measure(&mut self, _: &Candidate<'_>, _: &Profile) -> Option<Times> {
        None
    }
}

impl<'a> Context<'a> {
    /// For a machine, with nothing known of tensors, no limit of memory, and all choices predicted.
    pub fn new(profile: &Profile) -> Context<'a> {
        Context {
            profile: *profile,
            facts: Box::new(NoFacts),
            selection: Selection {
                products: Products::Predicted,
                constants: None,
                measure: Box::new(NoMeasure),
                packed: Vec::new(),
            },
            alignments: Alignments::default(),
            most_bytes: u64::MAX,
            tuner: Box::new(|_| None),
            rewrites: Rewrites::default(),
            hints: Hints::default(),
        }
    }
}

/// A program between two passes.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Form {
    /// Before groups are made.
    Graph(Graph),
    /// From there on.
    Plan(Plan),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Graph(graph) => graph.fmt(f),
            Form::Plan(plan) => plan.fmt(f),
        }
    }
}

/// Parts of the pipeline that can be run by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// From a functional graph to the primitive one with libtorch's calls.
    Primitive,
    /// Kernels in the place of calls.
    Kernels,
    /// From there to a plan.
    Plan,
}

/// A pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// The part of the pipeline that it belongs to.
    pub stage: Stage,
    run: Run,
}

/// What a pass rewrites.
enum Run {
    Graph(fn(&mut Graph, &mut Context<'_>) -> Result<(), PipelineError>),
    Group(fn(Graph, &mut Context<'_>) -> Result<Plan, PlanError>),
    Plan(fn(Plan, &mut Context<'_>) -> Plan),
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// The functional graph is not well-formed.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The primitive graph cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A pass got a graph where it takes a plan, or the other way round.
    #[error("{pass} is not run on this form of a program")]
    Form {
        /// The pass.
        pass: &'static str,
    },
}

const fn graph(
    name: &'static str,
    stage: Stage,
    run: fn(&mut Graph, &mut Context<'_>) -> Result<(), PipelineError>,
) -> Pass {
    Pass { name, stage, run: Run::Graph(run) }
}

const fn steps(name: &'static str, run: fn(Plan, &mut Context<'_>) -> Plan) -> Pass {
    Pass { name, stage: Stage::Plan, run: Run::Plan(run) }
}

/// The passes, in order.
pub const PASSES: &[Pass] = &[
    graph("lower", Stage::Primitive, |graph, cx| {
        *graph = lower_counted(graph, &cx.rewrites)?;
        Ok(())
    }),
    graph("simplify", Stage::Primitive, simplified),
    graph("slice-products", Stage::Primitive, |graph, cx| {
        slice_products(graph, &cx.rewrites);
        Ok(())
    }),
    graph("gather-products", Stage::Primitive, |graph, cx| {
        // A library call has no epilogue.
        if !cx.profile.machine.is_gpu() && cx.selection.products != Products::Library {
            gather_products(graph, &cx.rewrites);
        }
        Ok(())
    }),
    graph("tuple-reductions", Stage::Primitive, |graph, cx| {
        tuple_reductions(graph, &cx.rewrites);
        Ok(())
    }),
    graph("select-attention", Stage::Primitive, |graph, cx| {
        select_attention(graph, &cx.alignments, &mut *cx.facts, &cx.rewrites);
        Ok(())
    }),
    graph("select-library", Stage::Primitive, |graph, cx| {
        select_library(graph, &cx.rewrites);
        Ok(())
    }),
    graph("simplify-selected", Stage::Primitive, simplified),
    graph("channels-last", Stage::Kernels, |graph, cx| {
        channels_last(graph, &cx.profile, &cx.rewrites);
        Ok(())
    }),
    graph("select-kernels", Stage::Kernels, select_kernels),
    graph("drop-aliased-outputs", Stage::Plan, |graph, _| {
        plan::drop_aliased_outputs(graph);
        Ok(())
    }),
    graph("drop-empty", Stage::Plan, |graph, _| {
        plan::drop_empty(graph);
        Ok(())
    }),
    graph("store-gathered", Stage::Plan, |graph, _| {
        plan::store_sources(graph);
        Ok(())
    }),
    graph("split-reductions", Stage::Plan, divide_reductions),
    Pass { name: "group", stage: Stage::Plan, run: Run::Group(group) },
    steps("horizontal-fusion", |plan, cx| plan::join(plan, &cx.profile, cx.most_bytes, &cx.rewrites)),
    steps("reinplace", |plan, cx| plan::reinplace(plan, &cx.alignments, &cx.rewrites)),
    steps("outer-loop-fusion", |plan, cx| {
        plan::fuse_outer_loops(plan, &cx.profile, cx.most_bytes, &cx.rewrites)
    }),
    steps("non-temporal-stores", |plan, cx| plan::mark_non_temporal(plan, cx.profile.machine, &cx.rewrites)),
];

/// Sees a program after each pass, and says whether to go on.
pub type Watch<'w> = dyn FnMut(&'static str, &Form) -> bool + 'w;

/// Runs the passes of these stages, in order; `after` sees the program after each of them, and ends the run where it says so.
///
/// # Errors
/// Where the program is not well-formed, or a kernel cannot be built.
pub fn run(
    mut form: Form,
    stages: RangeInclusive<Stage>,
    cx: &mut Context<'_>,
    after: &mut Watch<'_>,
) -> Result<Form, PipelineError> {
    for pass in PASSES.iter().filter(|pass| stages.contains(&pass.stage)) {
        form = pass.apply(form, cx)?;
        if !after(pass.name, &form) {
            return Ok(form);
        }
    }
    if let Form::Plan(plan) = &form {
        plan::verify(plan)?;
    }
    Ok(form)
}

impl Pass {
    fn apply(&self, form: Form, cx: &mut Context<'_>) -> Result<Form, PipelineError> {
        cx.rewrites.begin(self.name);
        match (&self.run, form) {
            (Run::Graph(run), Form::Graph(mut graph)) => {
                run(&mut graph, cx)?;
                debug_assert_eq!(crate::verify(&graph), Ok(()), "after {}", self.name);
                Ok(Form::Graph(graph))
            }
            (Run::Group(run), Form::Graph(graph)) => Ok(Form::Plan(run(graph, cx)?)),
            (Run::Plan(run), Form::Plan(plan)) => Ok(Form::Plan(run(plan, cx))),
            _ => Err(PipelineError::Form { pass: self.name }),
        }
    }
}

/// A graph behind these stages, which do not make a plan.
///
/// # Errors
/// Where the graph is not well-formed.
pub fn lowered(
    graph: Graph,
    stages: RangeInclusive<Stage>,
    cx: &mut Context<'_>,
) -> Result<Graph, PipelineError> {
    match run(Form::Graph(graph), stages, cx, &mut |_, _| true)? {
        Form::Graph(graph) => Ok(graph),
        Form::Plan(_) => Err(PipelineError::Form { pass: "select-kernels" }),
    }
}

/// The plan of a graph behind [`Stage::Kernels`].
///
/// # Errors
/// Where a kernel cannot be built.
pub fn planned(graph: Graph, cx: &mut Context<'_>) -> Result<Plan, PipelineError> {
    match run(Form::Graph(graph), Stage::Plan..=Stage::Plan, cx, &mut |_, _| true)? {
        Form::Plan(plan) => Ok(plan),
        Form::Graph(_) => Err(PipelineError::Form { pass: "group" }),
    }
}

/// Plans a primitive graph for a machine. All tensors lie at multiples of 16 bytes.
///
/// # Errors
/// Where a kernel cannot be built.
pub fn plan(graph: &Graph, profile: &Profile) -> Result<Plan, PipelineError> {
    planned(graph.clone(), &mut Context::new(profile))
}

fn simplified(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), PipelineError> {
    simplify_counted(graph, &cx.rewrites);
    Ok(())
}

fn select_kernels(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), PipelineError> {
    let Selection { products, constants, measure, packed } = &mut cx.selection;
    if *products == Products::Measured {
        measure.begin(graph, &cx.profile, *constants, cx.most_bytes);
    }
    let mut times = |candidate: &Candidate<'_>| measure.measure(candidate, &cx.profile);
    let limits = (*constants, cx.most_bytes);
    *packed = choose_counted(graph, &cx.profile, *products, limits, &cx.rewrites, &mut times);
    Ok(())
}

fn divide_reductions(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), PipelineError> {
    let Context { profile, alignments, most_bytes, rewrites, hints, .. } = cx;
    Ok(plan::divide_reductions(graph, profile, alignments, *most_bytes, (rewrites, hints))?)
}

fn group(graph: Graph, cx: &mut Context<'_>) -> Result<Plan, PlanError> {
    let Context { profile, alignments, most_bytes, tuner, rewrites, hints, .. } = cx;
    plan::group_within(graph, profile, alignments, *most_bytes, &mut **tuner, (rewrites, hints))
}

/// The primitive graph of a functional one in text form.
#[cfg(test)]
pub(crate) fn primitive(text: &str, profile: &Profile) -> Graph {
    #![allow(clippy::unwrap_used, reason = "tests")]
    let graph = crate::parse_graph(text).unwrap();
    lowered(graph, Stage::Primitive..=Stage::Primitive, &mut Context::new(profile)).unwrap()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::{Context, Form, PASSES, Stage, run};
    use crate::eval::{Precision, Sources, eval};
    use crate::machine::Profile;
    use crate::parse_graph;
    use crate::rewrites::Rewrites;
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
        let profile = Profile::host(2);
        let mut cx = Context::new(&profile);
        cx.rewrites = Rewrites::at_most(limit);
        let form = Form::Graph(parse_graph(MODEL).unwrap());
        let form = run(form, Stage::Primitive..=Stage::Plan, &mut cx, &mut |name, _| name != pass).unwrap();
        (form, cx.rewrites)
    }

    #[test]
    fn names_are_distinct_and_each_pass_can_be_the_last() {
        for (at, pass) in PASSES.iter().enumerate() {
            assert!(PASSES[..at].iter().all(|other| other.name != pass.name && other.stage <= pass.stage));
            let (form, _) = stopped(pass.name, None);
            let is_plan = matches!(form, Form::Plan(_));
            assert_eq!(is_plan, PASSES[..=at].iter().any(|pass| pass.name == "group"), "{}", pass.name);
            assert!(!form.to_string().is_empty());
        }
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
        for name in ["lower", "simplify/fold-views", "select-library", "group"] {
            assert!(last.iter().any(|last| last == name), "{name}: {last:?}");
        }
    }

    #[test]
    fn kernels_that_are_not_merged_say_that_rewrites_are_limited() {
        let (form, rewrites) = stopped("", None);
        let Form::Plan(whole) = form else { unreachable!() };
        let merges = rewrites.made() - stopped("split-reductions", None).1.made();
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
        assert_eq!(error.to_string(), "lower is not run on this form of a program");
    }
}
