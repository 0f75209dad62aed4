//! Models of the command line: from the zoo, or TorchScript files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tch::{CModule, Device, IValue, Kind, Tensor, nn};
use tilefuse_models::{Model, ZooEntry, find, zoo};

use super::inputs::{Inputs, Spec};
use super::{Failure, one_line};
use crate::torch::script_converted;

/// Which model.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// A model of the zoo.
    Zoo(&'static ZooEntry),
    /// A TorchScript file.
    File(PathBuf),
}

impl Which {
    /// The model of this name or path.
    pub(crate) fn find(name: &str) -> Result<Which, Failure> {
        if let Some(entry) = find(name) {
            return Ok(Which::Zoo(entry));
        }
        let path = Path::new(name);
        if path.is_file() {
            return Ok(Which::File(path.to_owned()));
        }
        Err(Failure::usage(missing(name)))
    }

    /// Inputs to use where none are given.
    pub(crate) fn default_inputs(&self, kind: Kind, gpu: bool) -> Result<Inputs, Failure> {
        let Which::Zoo(entry) = self else {
            let hint = "give the inputs of a TorchScript file with --input, such as --input f32[1,3,224,224]";
            return Err(Failure::usage(String::from(hint)));
        };
        let case = if gpu { entry.gpu.first() } else { None };
        let specs = case.map_or(entry.inputs(), |c| c.inputs);
        let spec = |s: &tilefuse_models::InputSpec| Spec {
            kind: if s.int_range.is_some() { s.kind } else { kind },
            shape: s.shape.to_vec(),
            strides: None,
            range: s.int_range,
        };
        Ok(Inputs::Drawn(specs.iter().map(spec).collect()))
    }

    /// Whether the model takes this number of inputs; a file is asked by calling it.
    pub(crate) fn check_inputs(&self, count: usize) -> Result<(), Failure> {
        match self {
            Which::Zoo(entry) => entry.check_inputs(count).map_err(|e| Failure::usage(e.to_string())),
            Which::File(_) => Ok(()),
        }
    }
}

/// The models of the zoo whose names start with this.
pub(crate) fn with_prefix(prefix: &str) -> Result<Vec<&'static ZooEntry>, Failure> {
    let found: Vec<_> = zoo().iter().filter(|entry| entry.name.starts_with(prefix)).collect();
    match found.is_empty() {
        true => Err(Failure::usage(format!("no model's name starts with {prefix:?}; {}", meant(prefix)))),
        false => Ok(found),
    }
}

/// What is said where there is no such model or file.
fn missing(name: &str) -> String {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    let is_file = extension.is_some_and(|extension| extension.bytes().all(|byte| byte.is_ascii_alphabetic()));
    match is_file || name.contains(std::path::is_separator) {
        true => format!("there is no file {name:?}"),
        false => format!("there is no model and no file {name:?}; {}", meant(name)),
    }
}

/// What is said of a name that no model has.
fn meant(name: &str) -> String {
    match alike(name, zoo().iter().map(|entry| entry.name)) {
        Some(meant) => format!("did you mean {meant:?}? `tilefuse models` lists all"),
        None => format!("known models: {}", known()),
    }
}

/// The name that was meant by one that is none, if one of them is close to it.
pub(crate) fn alike<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let close = names.map(|known| (strsim::jaro_winkler(name, known), known));
    close.filter(|(close, _)| *close > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

fn known() -> String {
    zoo().iter().map(|e| e.name).filter(|n| !n.ends_with("-tiny")).collect::<Vec<_>>().join(", ")
}

/// A model that was loaded.
pub(crate) struct Loaded {
    /// Parameters and buffers with their names.
    pub(crate) names: Vec<(String, Tensor)>,
    body: Body,
}

enum Body {
    Zoo(Box<dyn Model>),
    File(CModule),
}

impl Loaded {
    /// Loads a model in evaluation mode; floating-point weights take `kind` where it is given.
    pub(crate) fn load(which: &Which, device: Device, kind: Option<Kind>) -> Result<Loaded, Failure> {
        match which {
            Which::Zoo(entry) => quietly(|| load_zoo(entry, device, kind)),
            Which::File(path) => load_file(path, device, kind),
        }
    }

    /// The same model in `f64`, with the same weights.
    pub(crate) fn in_f64(&self, which: &Which, device: Device) -> Result<Loaded, Failure> {
        let double = Loaded::load(which, device, Some(Kind::Double))?;
        tch::no_grad(|| {
            for (name, mut target) in double.names.iter().map(|(n, t)| (n, t.shallow_clone())) {
                if let Some((_, source)) = self.names.iter().find(|(n, _)| n == name) {
                    target.copy_(source);
                }
            }
        });
        Ok(double)
    }

    /// The model as TorchScript, traced on these inputs, with its weights as constants.
    pub(crate) fn traced(&self, inputs: &[Tensor]) -> Result<Loaded, Failure> {
        for (_, weight) in &self.names {
            let _ = weight.shallow_clone().set_requires_grad(false);
        }
        let mut forward = |inputs: &[Tensor]| self.forward(inputs);
        let traced = quietly(|| {
            CModule::create_by_tracing("Traced", "forward", inputs, &mut forward)
                .map_err(|e| Failure::usage(one_line(&e.to_string())))
        })?;
        Ok(Loaded { names: Vec::new(), body: Body::File(traced) })
    }

    /// Calls the model.
    ///
    /// # Panics
    /// Where the model rejects the inputs.
    pub(crate) fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        match &self.body {
            Body::Zoo(model) => model.forward(inputs),
            Body::File(module) => {
                let inputs: Vec<IValue> = inputs.iter().map(|t| IValue::Tensor(t.shallow_clone())).collect();
                match module.forward_is(&inputs) {
                    Ok(value) => flatten(value),
                    Err(error) => std::panic::panic_any(error.to_string()),
                }
            }
        }
    }

    /// Calls the model; its refusal is a failure.
    pub(crate) fn try_forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        quietly(|| Ok(self.forward(inputs)))
    }
}

/// Runs something with TorchScript's own fuser on.
pub(crate) fn with_fuser<T>(f: impl FnOnce() -> T) -> T {
    tch::jit::set_tensor_expr_fuser_enabled(true);
    let result = f();
    tch::jit::set_tensor_expr_fuser_enabled(false);
    result
}

fn load_zoo(entry: &'static ZooEntry, device: Device, kind: Option<Kind>) -> Result<Loaded, Failure> {
    let mut vs = nn::VarStore::new(device);
    let model = entry.instantiate(&vs);
    match kind {
        Some(Kind::BFloat16) => vs.bfloat16(),
        Some(Kind::Half) => vs.half(),
        Some(Kind::Double) => vs.double(),
        _ => {}
    }
    let mut names: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Loaded { names, body: Body::Zoo(model) })
}

fn load_file(path: &Path, device: Device, kind: Option<Kind>) -> Result<Loaded, Failure> {
    let bad = |e: tch::TchError| {
        Failure::usage(format!("{} is not a TorchScript file: {}", path.display(), one_line(&e.to_string())))
    };
    let mut module = match kind {
        None => CModule::load_on_device(path, device).map_err(bad)?,
        Some(kind) => {
            let bytes =
                script_converted(path, kind).map_err(|e| bad(tch::TchError::FileFormat(e.to_string())))?;
            CModule::load_data_on_device(&mut &bytes[..], device).map_err(bad)?
        }
    };
    module.f_set_eval().map_err(bad)?;
    let names = module.named_parameters().unwrap_or_default();
    Ok(Loaded { names, body: Body::File(module) })
}

/// The tensors of a result, in order; what is no tensor is left out.
fn flatten(value: IValue) -> Vec<Tensor> {
    match value {
        IValue::Tensor(t) => vec![t],
        IValue::Tuple(list) | IValue::GenericList(list) => list.into_iter().flat_map(flatten).collect(),
        IValue::TensorList(list) => list,
        IValue::GenericDict(pairs) => pairs.into_iter().flat_map(|(_, v)| flatten(v)).collect(),
        _ => Vec::new(),
    }
}

/// Runs what may panic in a model's code; the panic becomes a failure and prints nothing.
pub(crate) fn quietly<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_else(|| String::from("it panicked"));
            Err(Failure::usage(format!("the model failed: {}", one_line(&text))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_file_is_one() {
        assert_eq!(missing("x.pt"), "there is no file \"x.pt\"");
        assert_eq!(missing("models/gpt2"), "there is no file \"models/gpt2\"");
        assert!(missing("gpt3").starts_with("there is no model and no file \"gpt3\"; did you mean \"gpt2"));
        assert!(missing("gpt2.5").starts_with("there is no model and no file \"gpt2.5\"; "));
    }
}
