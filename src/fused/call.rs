//! Calls of fused models, from inputs of any structure to outputs.

use std::cell::Cell;

use tch::{CModule, IValue, Tensor};

use super::Fused;
use super::forward::{Forward, Kind};
use crate::engine::{Call, Returned, Structure};
use crate::values::{Flattener, Part, Unflattener, mismatch};
use crate::{Error, Explanation, Values};

impl<M> Fused<M> {
    /// Runs the model: a module, a function, or what implements [`Forward`], on inputs of any [`Values`].
    pub fn call<I: Values + ?Sized, K: Kind>(&self, inputs: &I) -> Result<M::Output, Error>
    where
        M: Forward<I, K>,
    {
        self.call_with(inputs, K::IN_SIGNATURE, |model, inputs| Ok(model.run(inputs)))
    }

    /// The plan for these inputs of [`Fused::call`], compiled now if it is not yet: that runs the model once, with what it writes and draws.
    pub fn explain<I: Values + ?Sized, K: Kind>(&self, inputs: &I) -> Result<Explanation, Error>
    where
        M: Forward<I, K>,
    {
        self.explain_call(inputs, (K::IN_SIGNATURE, false), |model, inputs| Ok(model.run(inputs)))
    }

    /// The same with measured times, of each step and of each operator in eager. The plan runs some times for that, one step after the
    /// other, and so does the model; both write what calls write.
    pub fn profile<I: Values + ?Sized, K: Kind>(&self, inputs: &I) -> Result<Explanation, Error>
    where
        M: Forward<I, K>,
    {
        self.explain_call(inputs, (K::IN_SIGNATURE, true), |model, inputs| Ok(model.run(inputs)))
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
        let (whole, returned) = (Cell::new(None), Returned::default());
        let forward = |_: &[Tensor]| {
            let output = forward(&self.model, inputs);
            let tensors = returned.flatten(&output);
            // Only what is not made again of the tensors: a handle beside theirs would be one that the model keeps.
            whole.set(Some(output).filter(|_| returned.is_whole()));
            tensors
        };
        let call = Call::new(&forward, &structure, &returned);
        let tensors = self.engine.run(tensors, &call)?;
        if let Some(output) = whole.take() {
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
        let (failure, returned) = (Cell::new(None), Returned::default());
        let forward = |_: &[Tensor]| {
            let output = forward(&self.model, inputs);
            let tensors = returned.flatten(&output);
            failure.set(output.err());
            tensors
        };
        let call = Call::new(&forward, &structure, &returned);
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
