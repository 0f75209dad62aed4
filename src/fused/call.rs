//! One call of a fused model: its structure, the model itself, and what came out.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use tch::{CModule, IValue, Tensor};

use super::Fused;
use super::forward::{Forward, Kind};
use crate::engine::Signature;
use crate::values::{Flattener, Part, Unflattener, mismatch};
use crate::{Error, Explanation, Values};

/// What of a call is no tensor: part of the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Structure {
    inputs: TypeId,
    outputs: TypeId,
    /// Of the inputs.
    parts: Vec<Part>,
}

impl Structure {
    /// Of inputs with these parts, for outputs of a type. Tensors in a row are the same in whatever they lie; a model that
    /// may do something else for another type (`many`) has plans of its own for each.
    fn of<I: Values + ?Sized, O: Values>(many: bool, parts: Vec<Part>) -> Structure {
        let row = TypeId::of::<[Tensor]>();
        Structure {
            inputs: if many || !parts.is_empty() { TypeId::of::<I>() } else { row },
            outputs: if O::IS_TENSORS { row } else { TypeId::of::<O>() },
            parts,
        }
    }
}

impl Structure {
    /// The first thing in which the structure of another call differs: what it is, and both.
    pub(crate) fn difference(&self, other: &Structure) -> Option<(String, String, String)> {
        if (self.inputs, self.outputs) != (other.inputs, other.outputs) {
            return Some((
                String::from("types of inputs and outputs"),
                String::from("as captured"),
                String::from("others"),
            ));
        }
        let at = |parts: &[Part], at: usize| {
            parts.get(at).map_or_else(|| String::from("nothing"), ToString::to_string)
        };
        let most = self.parts.len().max(other.parts.len());
        let (position, old, new) =
            (0..most).map(|i| (i, at(&self.parts, i), at(&other.parts, i))).find(|(_, a, b)| a != b)?;
        Some((format!("part {position} of the inputs"), old, new))
    }
}

/// A model that is called once, as the engine sees it; it is called like a function.
pub(crate) struct Call<'a> {
    forward: &'a dyn Fn(&[Tensor]) -> Vec<Tensor>,
    structure: &'a Structure,
    outcome: &'a Outcome,
}

/// What the model itself, or the plan that stood for it, returned beside tensors.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Nothing where tensors in a row are all there is.
    parts: RefCell<Option<Arc<[Part]>>>,
    refusal: RefCell<Option<String>>,
    failed: Cell<bool>,
}

impl<'a> std::ops::Deref for Call<'a> {
    type Target = dyn Fn(&[Tensor]) -> Vec<Tensor> + 'a;

    fn deref(&self) -> &Self::Target {
        self.forward
    }
}

impl Call<'_> {
    /// What of the call is no tensor.
    pub(crate) fn structure(&self) -> &Structure {
        self.structure
    }

    /// What of the outputs of the model's last run is no tensor.
    pub(crate) fn parts(&self) -> Option<Arc<[Part]>> {
        self.outcome.parts.borrow().clone()
    }

    /// Why the outputs of the model's last run cannot come from a plan.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.outcome.refusal.borrow().clone()
    }

    /// Whether the model returned an error; there are no outputs then.
    pub(crate) fn failed(&self) -> bool {
        self.outcome.failed.get()
    }

    /// Says that a plan with this signature stood for the model.
    pub(crate) fn ran_plan(&self, signature: &Signature) {
        self.outcome.parts.replace(signature.outputs());
    }
}

impl<M> Fused<M> {
    /// Runs the model: a module, a function, or what implements [`Forward`], on inputs of any [`Values`].
    pub fn call<I: Values + ?Sized, K: Kind>(&self, inputs: &I) -> Result<M::Output, Error>
    where
        M: Forward<I, K>,
    {
        self.call_with(inputs, K::MANY, |model, inputs| Ok(model.run(inputs)))
    }

    /// The plan for these inputs of [`Fused::call`], compiled now if it is not yet.
    pub fn explain<I: Values + ?Sized, K: Kind>(&self, inputs: &I) -> Result<Explanation, Error>
    where
        M: Forward<I, K>,
    {
        self.explain_call(inputs, (K::MANY, false), |model, inputs| Ok(model.run(inputs)))
    }

    /// The same with measured times: of each step, on the host and on CUDA, and on the host of each operator in eager. The plan runs
    /// some times for that, one step after the other, and writes what calls write; so does the model on the host.
    pub fn profile<I: Values + ?Sized, K: Kind>(&self, inputs: &I) -> Result<Explanation, Error>
    where
        M: Forward<I, K>,
    {
        self.explain_call(inputs, (K::MANY, true), |model, inputs| Ok(model.run(inputs)))
    }

    /// `many` where the model may do something else for inputs of another type.
    pub(super) fn call_with<I: Values + ?Sized, O: Values>(
        &self,
        inputs: &I,
        many: bool,
        forward: impl Fn(&M, &I) -> Result<O, Error>,
    ) -> Result<O, Error> {
        let flat = Flattener::of_inputs(inputs);
        if let Some(reason) = flat.refusal {
            self.engine.refuses_eager(&reason)?;
            self.engine.count(reason);
            return forward(&self.model, inputs);
        }
        let structure = Structure::of::<I, O>(many, flat.parts);
        let tensors = inputs.as_tensors().unwrap_or(&flat.tensors);
        let (returned, outcome) = (Cell::new(None), Outcome::default());
        let forward = |_: &[Tensor]| {
            let output = forward(&self.model, inputs);
            let tensors = outcome.flatten(&output);
            // Only what is not made again of the tensors: a handle beside theirs would be one that the model keeps.
            returned.set(Some(output).filter(|_| outcome.is_whole()));
            tensors
        };
        let call = Call { forward: &forward, structure: &structure, outcome: &outcome };
        let tensors = self.engine.run(tensors, &call)?;
        if let Some(output) = returned.take() {
            return output;
        }
        match call.parts() {
            Some(parts) => unflatten(&parts, tensors),
            None => O::from_tensors(tensors).ok_or_else(|| mismatch("other tensors")),
        }
    }

    pub(super) fn explain_call<I: Values + ?Sized, O: Values>(
        &self,
        inputs: &I,
        (many, measured): (bool, bool),
        forward: impl Fn(&M, &I) -> Result<O, Error>,
    ) -> Result<Explanation, Error> {
        let flat = Flattener::of_inputs(inputs);
        if let Some(reason) = flat.refusal {
            return Err(Error::RunsEager(reason));
        }
        let structure = Structure::of::<I, O>(many, flat.parts);
        let tensors = inputs.as_tensors().unwrap_or(&flat.tensors);
        let (failure, outcome) = (Cell::new(None), Outcome::default());
        let forward = |_: &[Tensor]| {
            let output = forward(&self.model, inputs);
            let tensors = outcome.flatten(&output);
            failure.set(output.err());
            tensors
        };
        let call = Call { forward: &forward, structure: &structure, outcome: &outcome };
        let explanation = match measured {
            true => self.engine.profile(tensors, &call),
            false => self.engine.explain(tensors, &call),
        };
        failure.take().map_or(explanation, Err)
    }
}

fn unflatten<O: Values>(parts: &[Part], tensors: Vec<Tensor>) -> Result<O, Error> {
    let mut parts = Unflattener::new(parts, tensors);
    let output = O::unflatten_from(&mut parts)?;
    if parts.is_empty() { Ok(output) } else { Err(mismatch("nothing more")) }
}

impl Flattener {
    /// The parts of inputs; nothing where these are tensors in a row.
    fn of_inputs<I: Values + ?Sized>(inputs: &I) -> Flattener {
        if inputs.as_tensors().is_some() { Flattener::default() } else { Flattener::of(inputs) }
    }
}

impl Outcome {
    /// Whether what the model returned is not made again of tensors.
    fn is_whole(&self) -> bool {
        self.failed.get() || self.refusal.borrow().is_some()
    }

    /// Takes apart what the model returned, and keeps the structure.
    fn flatten<O: Values>(&self, output: &Result<O, Error>) -> Vec<Tensor> {
        let Ok(output) = output else {
            self.failed.set(true);
            return Vec::new();
        };
        let flat = Flattener::of(output);
        self.parts.replace((!O::IS_TENSORS).then(|| flat.parts.into()));
        self.refusal.replace(flat.refusal);
        flat.tensors
    }
}

impl Fused<CModule> {
    /// As [`CModule::forward_ts`], through plans.
    pub fn forward_ts(&self, inputs: &[Tensor]) -> Result<Tensor, Error> {
        self.call_with(inputs, false, |model, inputs| model.forward_ts(inputs).map_err(torch))
    }

    /// As [`CModule::forward_is`], through plans: with tensors, tuples, lists and dictionaries of them. Numbers, texts and
    /// keys are part of the signature.
    pub fn forward_is(&self, inputs: &[IValue]) -> Result<IValue, Error> {
        self.call_with(inputs, false, |model, inputs| model.forward_is(inputs).map_err(torch))
    }

    /// The plan for these inputs of [`Fused::forward_is`], compiled now if it is not yet.
    pub fn explain_is(&self, inputs: &[IValue]) -> Result<Explanation, Error> {
        self.explain_call(inputs, (false, false), |model, inputs| model.forward_is(inputs).map_err(torch))
    }
}

fn torch(error: tch::TchError) -> Error {
    Error::Torch(error.to_string())
}
