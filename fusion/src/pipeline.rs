//! The passes from a functional graph to a plan, in order.
//!
//! ```text
//! functional graph
//!   lower                      calls                             -> primitive operators
//! primitive graph
//!   simplify                   what simplify::PASSES lists       -> until nothing changes
//!   slice-products             slices of products                -> products of slices
//!   gather-products            columns of products, picked       -> products of these
//!   tuple-reductions           reductions that need each other   -> one of tuples
//!   select-attention           contraction, softmax, contraction -> scaled_dot_product_attention
//!   contraction-forms          contractions                      -> of patches or padded operands, where that pays, on a GPU
//!   select-library             contractions                      -> calls of libtorch, or products and their sums
//!   simplify-selected          as simplify
//!   channels-last              convolutions of halves, on a GPU  -> in channels-last, where that pays
//!   select-kernels             calls                             -> kernels where they take less time
//!   prepack-filters            filters copied in each call      -> constants, on a GPU
//!   drop-aliased-outputs  *    outputs in memory of others       -> these
//!   drop-empty            *    what is empty, and what reads it  -> allocated only, and without it
//!   store-gathered        *    sources of gathers                -> stored, where they are in no memory
//!   rematerialize              deviations of a norm's rows        -> once for reductions, once for a product's operand
//!   divide-reductions          of columns beside rows, in blocks -> in two steps, where that pays
//!   split-reductions           long reductions                   -> reductions of parts, and of these
//! groups
//!   group                      primitives                        -> a kernel or a libtorch call each, cheap ones where used
//!   vertical-fusion            producers and consumers           -> one kernel, also as a prologue or an epilogue
//!   retry-epilogues            those of block kernels            -> once more, now that more kernels are one
//!   sibling-fusion             kernels that read the same        -> one kernel, also of rows and columns (mix-order)
//!   tune                       tiles that are predicted          -> those that were measured, where asked for
//! plan
//!   schedule                   groups                            -> block programs and libtorch calls in order
//!   sink                       packed weights, short of memory   -> right before their first use
//!   limit-memory               plans that hold too much          -> in another order, with kernels that end early
//!   horizontal-fusion          small independent kernels         -> one launch
//!   reinplace                  updates of the caller's tensors   -> written there by their kernels
//!   outer-loop-fusion          kernels over the same rows        -> one loop over blocks of rows, on a processor
//!   non-temporal-stores        large results                     -> by non-temporal stores, on a processor
//! ```
//!
//! What a pass makes is verified after it in debug builds, and the plan at the end. Rewrites are counted and can be limited,
//! see [`Rewrites`]. Those of the passes with a star are made without a limit, since those after them need them all, and are named
//! beside the rewrite behind which they come first.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use indexmap::IndexMap;

use crate::contract::{
    self, Candidate, ComparedForms, Prices, Times, call_layouts, choose_counted, contraction_forms,
    prepack_filters,
};
use crate::graph::Graph;
use crate::hints::Hints;
use crate::lower::{LowerError, lower_counted};
use crate::machine::Profile;
use crate::place::Alignments;
use crate::plan::{self, Early, Groups, Plan, PlanError, Rules, Schedules, Tuner};
use crate::rewrite::gathered_products::gather_products;
use crate::rewrite::select_attention::{Facts, NoFacts, select_attention};
use crate::rewrite::select_library::select_library;
use crate::rewrite::simplify::simplify_counted;
use crate::rewrite::sliced_products::slice_products;
use crate::rewrite::tuple_reductions::tuple_reductions;
use crate::rewrite_limit::Rewrites;
use crate::{Prepacked, Products};

/// What passes know beside the program that they rewrite.
pub struct Context<'a> {
    /// The machine.
    pub profile: Profile,
    /// The tensors of the model.
    pub facts: Box<dyn Facts + 'a>,
    /// Which products, convolutions and attention become kernels.
    pub selection: Selection<'a>,
    /// The forms of contractions and calls that were compared: a result of the passes `contraction-forms` and `channels-last`.
    pub forms: Vec<ComparedForms>,
    /// Where the tensors of the model and the caller lie.
    pub alignments: Alignments,
    /// Bytes that a call may hold at a time: a form that holds more is not taken for its speed.
    pub most_bytes: u64,
    /// Chooses among schedules, if anything does: the same choices give the same plan.
    pub tuner: Option<Box<Tuner<'a>>>,
    /// The rewrites that were made, and how many may be.
    pub rewrites: Rewrites,
    /// What the user asks for.
    pub hints: Hints,
    /// The time that each pass took, in all of its runs, in the order of the first ones.
    pub times: IndexMap<&'static str, Duration>,
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
///
/// Those that can be foreseen are shown first, all of them, so that whoever measures may spend its time on what is worth it and judge
/// others by that. What is chosen by measurements may give a further call another layout: that candidate was not foreseen.
pub trait Measure {
    /// Whether candidates of a graph are to be shown first: not where what there is to measure of it was measured.
    fn foresees(&mut self, graph: &Graph, profile: &Profile) -> bool {
        let _ = (graph, profile);
        false
    }

    /// A candidate that is about to be asked for, unless what is measured changes what is chosen before it.
    fn foresee(&mut self, candidate: &Candidate<'_>, profile: &Profile) {
        let _ = (candidate, profile);
    }

    /// All that can be foreseen of a graph was: its candidates are asked for from here on.
    fn begin(&mut self, profile: &Profile) {
        let _ = profile;
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
            forms: Vec::new(),
            alignments: Alignments::default(),
            most_bytes: u64::MAX,
            tuner: None,
            rewrites: Rewrites::default(),
            hints: Hints::default(),
            times: IndexMap::new(),
        }
    }

    fn prices(&self) -> Prices<'_> {
        let Selection { products, constants, .. } = &self.selection;
        Prices { profile: &self.profile, products: *products, prepacks: constants.is_some() }
    }

    fn rules(&self) -> Rules<'_> {
        let Context { profile, alignments, rewrites, hints, .. } = self;
        Rules { profile, alignments, rewrites, hints }
    }
}

/// A program between two passes.
#[derive(Debug)]
pub enum Form {
    /// Before groups are made.
    Graph(Graph),
    /// While they grow.
    Groups(Groups),
    /// From there on.
    Plan(Plan),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Graph(graph) => graph.fmt(f),
            Form::Groups(groups) => groups.fmt(f),
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
    Group(fn(Graph, &mut Context<'_>) -> Result<Groups, PlanError>),
    Fuse(fn(&mut Groups, Rules<'_>)),
    Tune(fn(&mut Groups, &mut Context<'_>) -> Result<(), PlanError>),
    Schedule(fn(Groups, &mut Context<'_>) -> Result<Plan, PlanError>),
    Plan(fn(Plan, &mut Context<'_>) -> Result<Plan, PipelineError>),
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
    /// A pass got a form of a program that it does not take.
    #[error("internal: {pass} is not run on this form of a program")]
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

const fn planning(name: &'static str, run: Run) -> Pass {
    Pass { name, stage: Stage::Plan, run }
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
        if cx.selection.products != Products::Library {
            gather_products(graph, &cx.profile, &cx.rewrites);
        }
        Ok(())
    }),
    graph("tuple-reductions", Stage::Primitive, |graph, cx| {
        tuple_reductions(graph, &cx.rewrites);
        Ok(())
    }),
    graph("select-attention", Stage::Primitive, |graph, cx| {
        let Context { profile, facts, selection, alignments, most_bytes, rewrites, hints, .. } = cx;
        let limits = (selection.constants, *most_bytes);
        let products = selection.products;
        let may_replace = |graph: &Graph, node, ours: bool| match products {
            Products::Library => !ours,
            _ => contract::has_kernel(graph, node, profile, limits),
        };
        select_attention(graph, alignments, (&mut **facts, &may_replace), rewrites, hints);
        Ok(())
    }),
    graph("contraction-forms", Stage::Primitive, |graph, cx| {
        let compared = contraction_forms(graph, cx.prices(), &cx.rewrites);
        cx.forms.extend(compared);
        Ok(())
    }),
    graph("select-library", Stage::Primitive, |graph, cx| {
        select_library(graph, &cx.rewrites);
        Ok(())
    }),
    graph("simplify-selected", Stage::Primitive, simplified),
    graph("channels-last", Stage::Kernels, |graph, cx| {
        let compared = call_layouts(graph, cx.prices(), &cx.rewrites);
        cx.forms.extend(compared);
        Ok(())
    }),
    graph("select-kernels", Stage::Kernels, select_kernels),
    graph("prepack-filters", Stage::Kernels, |graph, cx| {
        let Selection { constants, packed, .. } = &mut cx.selection;
        if let Some(first) = constants.filter(|_| cx.profile.machine.is_gpu()) {
            prepack_filters(graph, first, packed, &cx.rewrites);
        }
        Ok(())
    }),
    graph("drop-aliased-outputs", Stage::Plan, |graph, cx| {
        plan::drop_aliased_outputs(graph, &cx.rewrites);
        Ok(())
    }),
    graph("drop-empty", Stage::Plan, |graph, cx| {
        plan::drop_empty(graph, &cx.rewrites);
        Ok(())
    }),
    graph("store-gathered", Stage::Plan, |graph, cx| {
        plan::store_sources(graph, &cx.rewrites);
        Ok(())
    }),
    graph("rematerialize", Stage::Plan, |graph, cx| {
        plan::rematerialize(graph, &cx.rewrites);
        Ok(())
    }),
    graph("divide-reductions", Stage::Plan, divide_reductions),
    graph("split-reductions", Stage::Plan, |graph, cx| {
        plan::split_counted(graph, &cx.profile, &cx.rewrites);
        Ok(())
    }),
    planning("group", Run::Group(|graph, cx| plan::group(graph, Early::default(), cx.rules()))),
    planning("vertical-fusion", Run::Fuse(plan::vertical_fusion)),
    planning("retry-epilogues", Run::Fuse(plan::retry_epilogues)),
    planning("sibling-fusion", Run::Fuse(plan::sibling_fusion)),
    planning("tune", Run::Tune(tune)),
    planning("schedule", Run::Schedule(|groups, cx| plan::schedule(groups, cx.rules()))),
    planning("sink", Run::Plan(|plan, cx| Ok(plan::sink(plan, cx.most_bytes, &cx.rewrites)))),
    planning("limit-memory", Run::Plan(limit_memory)),
    planning(
        "horizontal-fusion",
        Run::Plan(|plan, cx| Ok(plan::join(plan, &cx.profile, cx.most_bytes, (&cx.rewrites, &cx.hints)))),
    ),
    planning("reinplace", Run::Plan(|plan, cx| Ok(plan::reinplace(plan, &cx.alignments, &cx.rewrites)))),
    planning(
        "outer-loop-fusion",
        Run::Plan(|plan, cx| Ok(plan::fuse_outer_loops(plan, &cx.profile, cx.most_bytes, &cx.rewrites))),
    ),
    planning(
        "non-temporal-stores",
        Run::Plan(|plan, cx| Ok(plan::mark_non_temporal(plan, cx.profile.machine, &cx.rewrites))),
    ),
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
        let start = Instant::now();
        form = pass.apply(form, cx)?;
        *cx.times.entry(pass.name).or_default() += start.elapsed();
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
        let form = match (&self.run, form) {
            (Run::Graph(run), Form::Graph(mut graph)) => {
                run(&mut graph, cx)?;
                Form::Graph(graph)
            }
            (Run::Group(run), Form::Graph(graph)) => Form::Groups(run(graph, cx)?),
            (Run::Fuse(run), Form::Groups(mut groups)) => {
                run(&mut groups, cx.rules());
                Form::Groups(groups)
            }
            (Run::Tune(run), Form::Groups(mut groups)) => {
                run(&mut groups, cx)?;
                Form::Groups(groups)
            }
            (Run::Schedule(run), Form::Groups(groups)) => Form::Plan(run(groups, cx)?),
            (Run::Plan(run), Form::Plan(plan)) => Form::Plan(run(plan, cx)?),
            _ => return Err(PipelineError::Form { pass: self.name }),
        };
        if cfg!(debug_assertions) {
            let place = || format!("after {}", self.name);
            form.verified().map_err(|what| PlanError::Invalid { place: place(), what })?;
        }
        Ok(form)
    }

    /// Whether it takes the groups of a graph, and makes groups or a plan of them.
    fn takes_groups(&self) -> bool {
        matches!(self.run, Run::Fuse(_) | Run::Tune(_) | Run::Schedule(_))
    }
}

impl Form {
    /// Whether its invariants hold, and if not, the first that does not.
    fn verified(&self) -> Result<(), String> {
        match self {
            Form::Graph(graph) => crate::verify(graph).map_err(|error| error.to_string()),
            Form::Groups(groups) => plan::verify_groups(groups).map_err(|error| error.to_string()),
            Form::Plan(plan) => plan::verify(plan).map_err(|error| error.to_string()),
        }
    }
}

/// A graph after these stages, which do not make a plan.
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
        _ => Err(PipelineError::Form { pass: "select-kernels" }),
    }
}

/// The plan of a graph after [`Stage::Kernels`].
///
/// # Errors
/// Where a kernel cannot be built.
pub fn planned(graph: Graph, cx: &mut Context<'_>) -> Result<Plan, PipelineError> {
    match run(Form::Graph(graph), Stage::Plan..=Stage::Plan, cx, &mut |_, _| true)? {
        Form::Plan(plan) => Ok(plan),
        _ => Err(PipelineError::Form { pass: "schedule" }),
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
    let Context { profile, selection, most_bytes, rewrites, .. } = cx;
    let Selection { products, constants, measure, packed } = selection;
    let limits = (*constants, *most_bytes);
    if *products == Products::Measured && measure.foresees(graph, profile) {
        let mut foresee = |candidate: &Candidate<'_>| {
            measure.foresee(candidate, profile);
            None
        };
        choose_counted(&mut graph.clone(), profile, *products, limits, &Rewrites::default(), &mut foresee);
        measure.begin(profile);
    }
    let mut times = |candidate: &Candidate<'_>| measure.measure(candidate, profile);
    *packed = choose_counted(graph, profile, *products, limits, rewrites, &mut times);
    Ok(())
}

fn divide_reductions(graph: &mut Graph, cx: &mut Context<'_>) -> Result<(), PipelineError> {
    let (profile, most_bytes, rewrites) = (cx.profile, cx.most_bytes, std::mem::take(&mut cx.rewrites));
    let mut plan = |graph| scheduled(graph, Early::default(), Schedules::Predicted, cx);
    let divided = plan::divide_reductions(graph, &profile, most_bytes, &rewrites, &mut plan);
    cx.rewrites = rewrites;
    divided
}

fn tune(groups: &mut Groups, cx: &mut Context<'_>) -> Result<(), PlanError> {
    let Context { profile, alignments, tuner, rewrites, hints, .. } = cx;
    let Some(tuner) = tuner else { return Ok(()) };
    plan::tune(groups, Rules { profile, alignments, rewrites, hints }, &mut **tuner)
}

fn limit_memory(plan: Plan, cx: &mut Context<'_>) -> Result<Plan, PipelineError> {
    let (most_bytes, rewrites) = (cx.most_bytes, std::mem::take(&mut cx.rewrites));
    let mut replan = |graph, early, schedules| scheduled(graph, early, schedules, cx);
    let limited = plan::limit_memory(plan, most_bytes, &rewrites, &mut replan);
    cx.rewrites = rewrites;
    limited
}

/// The plan that the passes from `group` to `schedule` make of a graph: one of several that a pass tries.
pub(crate) fn scheduled(
    graph: Graph,
    early: Early,
    schedules: Schedules,
    cx: &mut Context<'_>,
) -> Result<Plan, PipelineError> {
    let tuner = if schedules == Schedules::Predicted { cx.tuner.take() } else { None };
    let mut form = plan::group(graph, early, cx.rules()).map(Form::Groups).map_err(PipelineError::from);
    for pass in PASSES.iter().filter(|pass| pass.takes_groups()) {
        form = form.and_then(|form| pass.apply(form, cx));
    }
    cx.tuner = cx.tuner.take().or(tuner);
    match form? {
        Form::Plan(plan) => Ok(plan),
        _ => Err(PipelineError::Form { pass: "schedule" }),
    }
}

/// The primitive graph of a functional one in text form.
#[cfg(test)]
pub(crate) fn primitive(text: &str, profile: &Profile) -> Graph {
    #![allow(clippy::unwrap_used, reason = "tests")]
    let graph = crate::parse_graph(text).unwrap();
    lowered(graph, Stage::Primitive..=Stage::Primitive, &mut Context::new(profile)).unwrap()
}

#[cfg(test)]
mod tests;
