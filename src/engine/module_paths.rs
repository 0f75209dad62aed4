//! The modules of a model that captured operators, and the steps of a plan, belong to: from scopes that the model names, from
//! TorchScript's interpreter, and from the names of the parameters that operators read.

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_fusion::plan::{Plan, Step, StepKind};
use tilefuse_fusion::{NodeId, Op, Recording, Source};

use super::convert::Converted;
use super::script_modules::ScriptModules;

/// By captured call: the module that it belongs to, `h.3.mlp.c_fc`; empty where nothing says so.
///
/// A call that reads a parameter, or what is made of one parameter alone, belongs to the module of that one, or to the innermost module
/// within it that surrounds a call whose result it reads and one that reads its result: a mask of the whole model is read in each layer.
/// A call that reads none is of that innermost module, or of what surrounds the calls before and behind it. Where the model named a
/// [`crate::scope`], or TorchScript's interpreter says which module it is in, that is where the call belongs, and its parameter may say
/// where within it.
pub(crate) fn module_paths(converted: &Converted) -> Vec<String> {
    let Converted { recording, scopes, scripts, .. } = converted;
    let read = owners(recording);
    let mut modules = ScriptModules::of(read.iter().copied().flatten());
    let mut before = None;
    let path = |at: usize| {
        let scope = scopes.get(at).map_or("", String::as_str);
        let around = match scripts.get(at).map_or("", String::as_str) {
            "" => String::from(scope),
            script => {
                let behind = || read[at + 1..].iter().copied().flatten().next();
                let near: Vec<&str> = read[at].into_iter().chain(before).chain(behind()).collect();
                modules.path(scope, script, &near)
            }
        };
        before = read[at].or(before);
        match read[at] {
            Some(module) if is_within(module, &around) => module.to_owned(),
            _ => around,
        }
    };
    let mut found: Vec<String> = (0..recording.calls.len()).map(path).collect();
    let between = between(recording, &found);
    let is_said = |at: usize| {
        let said = [scopes, scripts].into_iter().filter_map(|said| said.get(at));
        said.filter(|said| !said.is_empty()).count() > 0
    };
    let own = found.clone();
    fill(&mut found);
    for (at, between) in between.into_iter().enumerate() {
        let is_open = own[at].is_empty() || (is_within(&between, &own[at]) && !is_said(at));
        if is_open && between.len() > found[at].len() {
            found[at] = between;
        }
    }
    found
}

/// Modules that values of a recording come from, or go to, that are followed.
const MAX_NEAR: usize = 4;

/// By captured call: the innermost module that both one which its operands come from and one which its results go to are in.
fn between(recording: &Recording, modules: &[String]) -> Vec<String> {
    // By tensor: the modules of calls that it comes from and that it goes to, the nearest ones first.
    let mut makers: Vec<Vec<&str>> = vec![Vec::new(); recording.tensors.len()];
    let mut readers = makers.clone();
    // By call: those that its results come from.
    let mut before: Vec<Vec<&str>> = Vec::with_capacity(recording.calls.len());
    for (call, module) in recording.calls.iter().zip(modules) {
        let operands = call.args.iter().flat_map(|(_, arg)| arg.tensors());
        let near = nearest(module, operands.map(|tensor| tensor.0 as usize), &makers);
        for &result in call.results.iter().flatten() {
            if let Some(makers) = makers.get_mut(result.0 as usize) {
                makers.clone_from(&near);
            }
        }
        before.push(near);
    }
    let mut found = vec![String::new(); modules.len()];
    for (at, (call, module)) in recording.calls.iter().zip(modules).enumerate().rev() {
        let results = call.results.iter().flatten().map(|tensor| tensor.0 as usize);
        let near = nearest(module, results, &readers);
        for operand in call.args.iter().flat_map(|(_, arg)| arg.tensors()) {
            let Some(readers) = readers.get_mut(operand.0 as usize) else { continue };
            readers.retain(|module| !near.contains(module));
            readers.splice(..0, near.iter().copied());
            readers.truncate(MAX_NEAR);
        }
        // What is on both sides, as its own module is, is used in several places, and is around none.
        let makers = before[at].iter().filter(|maker| !near.contains(maker));
        let users: Vec<&str> = near.iter().filter(|user| !before[at].contains(user)).copied().collect();
        let pairs = makers.flat_map(|a| users.iter().map(move |b| common_path(a, b)));
        found[at] = pairs.max_by_key(String::len).unwrap_or_default();
    }
    found
}

/// A call's module, if it has one, and behind it those of these tensors.
fn nearest<'m>(module: &'m str, tensors: impl Iterator<Item = usize>, of: &[Vec<&'m str>]) -> Vec<&'m str> {
    let own = (!module.is_empty()).then_some(module);
    let mut near: Vec<&str> = Vec::new();
    for module in own.into_iter().chain(tensors.filter_map(|tensor| of.get(tensor)).flatten().copied()) {
        if near.len() < MAX_NEAR && !near.contains(&module) {
            near.push(module);
        }
    }
    near
}

/// By captured call: the module of a parameter that it reads, or of what is made of one alone.
fn owners(recording: &Recording) -> Vec<Option<&str>> {
    let mut owner: Vec<Option<&str>> = recording
        .tensors
        .iter()
        .map(|tensor| match &tensor.source {
            Source::Param(_, name) => Some(name.rsplit_once('.').map_or("", |(module, _)| module)),
            _ => None,
        })
        .collect();
    let mut found = Vec::with_capacity(recording.calls.len());
    for call in &recording.calls {
        let tensors = || call.args.iter().flat_map(|(_, arg)| arg.tensors());
        let owners = || tensors().map(|tensor| owner.get(tensor.0 as usize).copied().flatten());
        let read = owners().flatten().find(|module| !module.is_empty());
        found.push(read);
        // What is made of parameters alone is as they are.
        if read.is_some() && owners().all(|owner| owner.is_some()) {
            for &result in call.results.iter().flatten() {
                if let Some(owner) = owner.get_mut(result.0 as usize) {
                    *owner = read;
                }
            }
        }
    }
    found
}

/// The nodes that a step computes.
pub(crate) fn nodes_of(step: &Step) -> &[NodeId] {
    match &step.kind {
        StepKind::Kernel(kernel) => &kernel.nodes,
        StepKind::Extern(call) => std::slice::from_ref(&call.node),
    }
}

/// The numbers of the captured operators that a name has: `aten::linear #23` has one, `attention (aten::matmul #3 .. aten::matmul #9)` two.
pub(crate) fn numbers(name: &str) -> impl Iterator<Item = usize> + '_ {
    name.split(' ').filter_map(|word| word.strip_prefix('#')?.trim_end_matches(')').parse().ok())
}

/// The module of what has a name, which of several operators is the one that all of them are in, with the modules of captured operators by
/// their numbers; empty where nothing says so.
pub(crate) fn module_of<'m>(name: &str, module: impl Fn(usize) -> Option<&'m str>) -> String {
    let mut modules = numbers(name).filter_map(module);
    let first = modules.next().unwrap_or_default().to_owned();
    modules.fold(first, |common, module| common_path(&common, module))
}

/// The names of a model's parameters, by their positions.
pub(super) fn param_names(recording: &Recording) -> FxHashMap<u32, &str> {
    let named = recording.tensors.iter().filter_map(|tensor| match &tensor.source {
        Source::Param(position, name) => Some((*position, name.as_str())),
        _ => None,
    });
    named.collect()
}

/// The parameters that a step reads, and constants, where it reads nothing else.
fn params_of(plan: &Plan, step: &Step) -> Vec<NodeId> {
    let mut found = Vec::new();
    let mut stack = nodes_of(step).to_vec();
    let mut seen: FxHashSet<NodeId> = stack.iter().copied().collect();
    while let Some(node) = stack.pop() {
        match plan.graph.node(node).op {
            Op::Input(_) => return Vec::new(),
            Op::Param(_) | Op::Const(_) => found.push(node),
            _ => {
                let operands = plan.graph.operands(node).into_iter().map(|operand| operand.node);
                stack.extend(operands.filter(|&operand| seen.insert(operand)));
            }
        }
    }
    found
}

/// By step: the modules of the operators that it computes, in order, without those that others of them are in. What passes make of
/// parameters alone, as copies of them, is of their modules.
pub(crate) fn step_modules<'n>(
    plan: &Plan,
    of_calls: &[String],
    param_name: impl Fn(NodeId) -> Option<&'n str>,
) -> Vec<Vec<String>> {
    let of_call = |number: usize| of_calls.get(number).map(String::as_str);
    // Passes name what they make of several calls after the first and the last.
    let of_name = |origin: u32| Some(module_of(plan.graph.origins.get(origin as usize)?, of_call));
    let of_origin = |origin: u32| of_call(origin as usize).map(str::to_owned).or_else(|| of_name(origin));
    let of_step = |step: &Step| {
        let origins = nodes_of(step).iter().filter_map(|&node| plan.graph.node(node).origin);
        let found = innermost(origins.filter_map(of_origin).filter(|module| !module.is_empty()));
        if !found.is_empty() {
            return found;
        }
        let names = params_of(plan, step).into_iter().filter_map(&param_name);
        innermost(names.filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned())))
    };
    let mut found: Vec<Vec<String>> = plan.steps.iter().map(of_step).collect();
    // Where they have no name, it is of what surrounds it.
    let mut around: Vec<String> =
        found.iter().map(|modules| modules.last().cloned().unwrap_or_default()).collect();
    fill(&mut around);
    for (modules, around) in found.iter_mut().zip(around) {
        if modules.is_empty() && !around.is_empty() {
            modules.push(around);
        }
    }
    found
}

/// These modules without repetitions, and without those that others are in.
fn innermost(modules: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for module in modules {
        if !found.iter().any(|known| is_within(known, &module)) {
            found.retain(|known| !is_within(&module, known));
            found.push(module);
        }
    }
    found
}

/// Gives what has no module the innermost one that surrounds what is before and behind it.
fn fill(modules: &mut [String]) {
    let known: Vec<usize> = (0..modules.len()).filter(|&at| !modules[at].is_empty()).collect();
    for at in 0..modules.len() {
        let behind = known.partition_point(|&known| known < at);
        if let Some(&before) = behind.checked_sub(1).and_then(|i| known.get(i))
            && let Some(&next) = known.get(behind)
            && next != at
        {
            modules[at] = common_path(&modules[before], &modules[next]);
        }
    }
}

/// Whether a path is that of a module or of one within it.
fn is_within(path: &str, module: &str) -> bool {
    module.is_empty()
        || path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The path that two paths begin with.
pub(crate) fn common_path(a: &str, b: &str) -> String {
    let parts = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b);
    parts.map(|(part, _)| part).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_part_by_part() {
        assert_eq!(common_path("h.0.attn.c_attn", "h.0.attn.c_proj"), "h.0.attn");
        assert_eq!(common_path("h.1", "h.10"), "h");
        assert_eq!(common_path("a", "b"), "");
        assert!(is_within("h.1.mlp", "h.1") && is_within("h.1", "h.1") && is_within("h.1", ""));
        assert!(!is_within("h.10", "h.1") && !is_within("h", "h.1"));
        let paths = ["h.0", "h.0.ln", "h.0.mlp", "h.0.ln", "h"].map(String::from);
        assert_eq!(innermost(paths.into_iter()), ["h.0.ln", "h.0.mlp"]);
    }

    /// A table that belongs to no layer is read in each: what is made of it is still of the layer of the weights around it.
    #[test]
    fn what_reads_no_parameter_is_of_the_layer_that_its_operands_and_users_are_in() {
        let text = r#"recording {
          %0 = input 0 : f32[4,4]
          %1 = param 0 "h.1.attn.q.weight" : f32[4,4]
          %2 = param 1 "rotary.cos" : f32[4,4]
          %3 = param 2 "h.1.attn.o.weight" : f32[4,4]
          %4: f32[4,4] = aten::linear(input=%0, weight=%1, bias=None)
          %5: f32[4,4] = aten::mul.Tensor(self=%4, other=%2)
          %6: f32[4,4] = aten::exp(self=%5)
          %7: f32[4,4] = aten::linear(input=%6, weight=%3, bias=None)
          %8: f32[4,4] = aten::add.Tensor(self=%7, other=%0, alpha=1)
          %9: f32[4,4] = aten::mul.Tensor(self=%8, other=%2)
          outputs %9
        }"#;
        let recording = tilefuse_fusion::parse_recording(text).unwrap();
        let modules = ["h.1.attn.q", "rotary", "", "h.1.attn.o", "", "rotary"].map(String::from);
        assert_eq!(between(&recording, &modules), ["", "h.1.attn", "h.1.attn", "", "", ""]);
    }

    /// A mask of the whole model is read in each layer, whose own it is unless the model names a scope.
    #[test]
    fn what_reads_a_parameter_of_a_module_around_is_of_the_layer_that_its_operands_and_users_are_in() {
        let text = r#"recording {
          %0 = input 0 : f32[4,4]
          %1 = param 0 "m.h.1.attn.q.weight" : f32[4,4]
          %2 = param 1 "m.mask" : bool[4,4]
          %3 = param 2 "m.h.1.attn.o.weight" : f32[4,4]
          %4: f32[4,4] = aten::linear(input=%0, weight=%1, bias=None)
          %5: f32[4,4] = aten::masked_fill.Scalar(self=%4, mask=%2, value=0)
          %6: f32[4,4] = aten::linear(input=%5, weight=%3, bias=None)
          %7: f32[4,4] = aten::masked_fill.Scalar(self=%6, mask=%2, value=0)
          outputs %7
        }"#;
        let recording = tilefuse_fusion::parse_recording(text).unwrap();
        let (params, consts, sites) = (Vec::new(), Vec::new(), Vec::new());
        let (scopes, scripts) = (Vec::new(), Vec::new());
        let mut converted = Converted { recording, params, consts, scopes, scripts, sites };
        assert_eq!(module_paths(&converted), ["m.h.1.attn.q", "m.h.1.attn", "m.h.1.attn.o", "m"]);
        converted.scopes = ["", "m", "", ""].map(String::from).to_vec();
        assert_eq!(module_paths(&converted)[1], "m");
    }

    #[test]
    fn what_passes_make_of_several_operators_is_of_the_module_around_them() {
        let modules = ["h.0.attn.q", "h.0.attn.o", ""];
        let of = |name: &str| module_of(name, |number| modules.get(number).copied());
        assert_eq!(of("aten::linear #1"), "h.0.attn.o");
        assert_eq!(of("attention (aten::matmul #0 .. aten::matmul #1)"), "h.0.attn");
        assert_eq!(of("aten::add #2") + &of("input 0"), "");
    }

    #[test]
    fn copies_of_parameters_are_of_their_modules() {
        let modules = |source: &str| {
            let text = format!(
                "graph {{
                  %0 = {source} 0 : f32[64,96]
                  %1 = cast(%0) : bf16[64,96]
                  outputs %1
                }}"
            );
            let graph = tilefuse_fusion::parse_graph(&text).unwrap();
            let plan = tilefuse_fusion::pipeline::plan(&graph, &tilefuse_fusion::Profile::host(2)).unwrap();
            let name = |node| matches!(plan.graph.node(node).op, Op::Param(0)).then_some("h.0.attn.q.weight");
            step_modules(&plan, &[], name)
        };
        assert_eq!(modules("param"), [["h.0.attn.q"]]);
        assert_eq!(modules("input"), [[""; 0]]);
    }

    #[test]
    fn what_reads_no_parameter_is_of_what_surrounds_it() {
        let mut modules = ["", "h.0.ln", "", "h.0.mlp", "", "", "h.1.ln", ""].map(String::from);
        fill(&mut modules);
        assert_eq!(modules, ["", "h.0.ln", "h.0", "h.0.mlp", "h", "h", "h.1.ln", ""]);
    }
}
