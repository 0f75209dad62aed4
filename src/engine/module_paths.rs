//! The modules of a model that captured operators, and the steps of a plan, belong to: from scopes that the model names, from
//! TorchScript's interpreter, and from the names of the parameters that operators read.

use tilefuse_fusion::plan::{Plan, Step, StepKind};
use tilefuse_fusion::{NodeId, Recording, Source};

use super::convert::Converted;
use super::script_modules::ScriptModules;

/// By captured call: the module that it belongs to, `h.3.mlp.c_fc`; empty where nothing says so.
///
/// A call that reads a parameter, or what is made of one parameter alone, belongs to the module of that one. A call that reads none
/// is of the innermost module that surrounds the calls before and behind it. Where the model named a [`crate::scope`], or
/// TorchScript's interpreter says which module it is in, that is where the call belongs, and its parameter may say where within it.
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
    fill(&mut found);
    found
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

/// By step: the modules of the operators that it computes, in order, without those that others of them are in.
pub(crate) fn step_modules(plan: &Plan, of_calls: &[String]) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = plan
        .steps
        .iter()
        .map(|step| {
            let origins = nodes_of(step).iter().filter_map(|&node| plan.graph.node(node).origin);
            innermost(
                origins
                    .filter_map(|origin| of_calls.get(origin as usize))
                    .filter(|module| !module.is_empty()),
            )
        })
        .collect();
    // What passes made of several calls is of what surrounds it.
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
fn innermost<'m>(modules: impl Iterator<Item = &'m String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for module in modules {
        if !found.iter().any(|known| is_within(known, module)) {
            found.retain(|known| !is_within(module, known));
            found.push(module.clone());
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
pub(super) fn common_path(a: &str, b: &str) -> String {
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
        assert_eq!(innermost(paths.iter()), ["h.0.ln", "h.0.mlp"]);
    }

    #[test]
    fn what_reads_no_parameter_is_of_what_surrounds_it() {
        let mut modules = ["", "h.0.ln", "", "h.0.mlp", "", "", "h.1.ln", ""].map(String::from);
        fill(&mut modules);
        assert_eq!(modules, ["", "h.0.ln", "h.0", "h.0.mlp", "h", "h", "h.1.ln", ""]);
    }
}
