//! `tilefuse compare --save-repro DIR`: a case in a folder of its own, to be run elsewhere.

use std::path::Path;

use serde_json::{Value, json};
use tch::Tensor;

use super::{Case, Outcome};
use crate::cli::Failure;
use crate::cli::inputs::kind_name;
use crate::cli::model::{Loaded, Which, quietly};
use crate::{Options, Strict};

/// What is in the folder.
const README: &str = "A comparison of Tilefuse, fused and eager. In this folder:

    tilefuse compare --manifest case.jsonl

case.jsonl      the model, its inputs and its type, with its hints, tuning, choice of products, strictness and limit of rewrites; a
                model of the zoo has the weights that a fixed seed gives
model.pt        the model, where it was a file
inputs.safetensors  the inputs that were judged
outcome.json    what was found
options.txt     all options it was compiled with
machine.txt     the device and the versions it was found with
graph.txt       the model's graph, as captured and lowered
plan.txt        the plan, with its block programs
";

/// Writes a case and what was found.
pub(crate) fn save(folder: &Path, case: &Case, inputs: &[Tensor], outcome: &Outcome) -> Result<(), Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::usage(format!("cannot write {} of {}: {error}", what, folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(|e| failed("the folder", &e))?;
    let write =
        |name: &str, text: &str| std::fs::write(folder.join(name), text).map_err(|e| failed(name, &e));
    let model = match &case.which {
        Which::Zoo(entry) => entry.name.to_owned(),
        Which::File(path) => {
            std::fs::copy(path, folder.join("model.pt")).map_err(|e| failed("model.pt", &e))?;
            String::from("model.pt")
        }
    };
    let named: Vec<(String, Tensor)> = inputs
        .iter()
        .enumerate()
        .map(|(at, input)| (at.to_string(), input.to_device(tch::Device::Cpu).contiguous()))
        .collect();
    let path = folder.join("inputs.safetensors");
    Tensor::write_safetensors(&named, &path).map_err(|e| failed("inputs.safetensors", &e))?;
    let strides: Vec<Option<Vec<i64>>> =
        inputs.iter().map(|input| (!input.is_contiguous()).then(|| input.stride())).collect();
    let mut line = json!({ "name": case.name, "model": model, "inputs": "inputs.safetensors" });
    if strides.iter().any(Option::is_some) {
        line["strides"] = json!(strides);
    }
    if let Some(dtype) = case.dtype {
        line["dtype"] = json!(kind_name(dtype));
    }
    if case.device.is_cuda() {
        line["device"] = json!("cuda");
    }
    keep_options(&mut line, &case.options);
    write("case.jsonl", &format!("{line}\n"))?;
    write("README", README)?;
    let found = serde_json::to_string_pretty(outcome).map_err(|e| failed("outcome.json", &e))?;
    write("outcome.json", &found)?;
    write("options.txt", &format!("{:#?}\n", case.options))?;
    write("machine.txt", &crate::cli::report::machine(case.device))?;
    let (graph, plan) = forms(case, inputs)?;
    write("graph.txt", &graph)?;
    write("plan.txt", &plan)
}

/// Adds to a line of a manifest how the model is compiled, where that is not how models are by default.
fn keep_options(line: &mut Value, options: &Options) {
    if options.tune {
        line["tune"] = json!(true);
    }
    if options.products != crate::Products::default() {
        line["products"] = json!(options.products);
    }
    if options.workspace_bytes != 0 {
        line["workspace_bytes"] = json!(options.workspace_bytes);
    }
    if !options.hints.is_empty() {
        line["hints"] = options.hints.iter().map(ToString::to_string).collect();
    }
    if let Strict::Kernels(patterns) = &options.strict {
        line["strict"] = json!(patterns);
    }
    if let Some(limit) = options.max_rewrites {
        line["max_rewrites"] = json!(limit);
    }
}

/// The lowered graph of a case, and its plan; the reason where there is none.
fn forms(case: &Case, inputs: &[Tensor]) -> Result<(String, String), Failure> {
    let model = Loaded::load(&case.which, case.device, case.dtype)?;
    let forward = |inputs: &[Tensor]| model.forward(inputs);
    let passes = [String::from("lower")];
    let graph =
        quietly(|| Ok(crate::engine::forms_after(inputs, &forward, &passes, Some("lower"), &case.options)?));
    let graph = graph.unwrap_or_else(|failure| failure.message);
    let fused = crate::fuse_with(model, case.options.clone());
    let plan = quietly(|| Ok(fused.explain_with(inputs, |model, inputs| model.forward(inputs))?));
    Ok((graph, plan.map_or_else(|failure| failure.message, |plan| plan.text(true))))
}
