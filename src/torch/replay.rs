//! A recorded run made again in `f64`: the reference for a model that cannot be converted, because it has constants or
//! casts of other types, or draws random numbers.

use std::collections::HashMap;

use tch::{Kind, Tensor};

use super::{Arg, Call, Event, Meta, Origin, RefusalKind, TensorId, Trace};
use crate::Error;

/// The `c10::ScalarType`s narrower than `f64` and than complex numbers of two of them.
fn kind_of(dtype: i8) -> Option<Kind> {
    Some(match dtype {
        5 => Kind::Half,
        6 => Kind::Float,
        8 => Kind::ComplexHalf,
        9 => Kind::ComplexFloat,
        15 => Kind::BFloat16,
        _ => return None,
    })
}

/// `f64`, or `complex128`, in the place of a narrower type.
fn wider(dtype: i8) -> Option<(i8, Kind)> {
    match kind_of(dtype)? {
        Kind::ComplexHalf | Kind::ComplexFloat => Some((10, Kind::ComplexDouble)),
        _ => Some((7, Kind::Double)),
    }
}

/// Whether a trace has floating-point values of another type than `f64` that the model computed, or random numbers.
pub(crate) fn leaves_f64(trace: &Trace) -> bool {
    let computed =
        |e: &Event| !e.constant && e.outs.iter().flat_map(Arg::tensors).any(|t| is_narrow(trace, t));
    trace.events.iter().any(|e| e.random || computed(e))
}

fn is_narrow(trace: &Trace, id: TensorId) -> bool {
    trace.info(id).is_some_and(|info| wider(info.meta.dtype).is_some())
}

/// Makes the recorded calls again, on inputs like those of the recording, with `f64` for every floating-point type. The
/// calls that draw random numbers do so in the types in which they did, so that a seed gives the same numbers.
///
/// # Errors
/// Where libtorch has no such call in `f64`, or a model does something outside of operators or writes its own tensors.
pub fn run_in_f64(trace: &Trace, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let outside = |kind| {
        use RefusalKind as Kind;
        !matches!(kind, Kind::DataRead | Kind::DataShape | Kind::Escapes | Kind::KeepsInput)
    };
    if let Some(refusal) = trace.refusals.iter().find(|r| outside(r.kind)) {
        return Err(unsupported(refusal.to_string()));
    }
    let mut replay = Replay { trace, values: HashMap::new() };
    for (id, input) in trace.inputs.iter().zip(inputs) {
        replay.values.insert(*id, copied(&widened(input)?)?);
    }
    let last = last_uses(trace);
    for (index, event) in trace.events.iter().enumerate() {
        replay.event(event)?;
        replay.values.retain(|id, _| last.get(id).is_none_or(|&last| last > index));
    }
    trace.outputs.iter().map(|id| replay.value(*id)).collect()
}

/// Of each tensor the last event that has it; none for results of the model.
fn last_uses(trace: &Trace) -> HashMap<TensorId, usize> {
    let mut last = HashMap::new();
    for (index, event) in trace.events.iter().enumerate() {
        for id in event.args.iter().chain(&event.outs).flat_map(Arg::tensors) {
            last.insert(id, index);
        }
    }
    for id in &trace.outputs {
        last.remove(id);
    }
    last
}

fn unsupported(why: String) -> Error {
    Error::Unsupported(format!("a run in f64: {why}"))
}

fn torch(error: &tch::TchError) -> Error {
    Error::Torch(error.to_string())
}

/// A tensor in `f64`, itself where it has no narrower type.
fn widened(tensor: &Tensor) -> Result<Tensor, Error> {
    match wider(Meta::of(tensor)?.dtype) {
        Some((_, kind)) => tensor.f_to_kind(kind).map_err(|e| torch(&e)),
        None => Ok(tensor.shallow_clone()),
    }
}

/// A copy with memory of its own.
fn copied(tensor: &Tensor) -> Result<Tensor, Error> {
    let mut copy = tensor.f_empty_like().map_err(|e| torch(&e))?;
    copy.f_copy_(tensor).map_err(|e| torch(&e))?;
    Ok(copy)
}

struct Replay<'a> {
    trace: &'a Trace,
    values: HashMap<TensorId, Tensor>,
}

impl Replay<'_> {
    fn value(&mut self, id: TensorId) -> Result<Tensor, Error> {
        if let Some(value) = self.values.get(&id) {
            return Ok(value.shallow_clone());
        }
        let unknown = || unsupported(String::from("a tensor of the recording is not known any more"));
        let info = self.trace.info(id).ok_or_else(unknown)?;
        let written = self.trace.storages.get(info.storage.0 as usize).is_none_or(|s| !s.writes.is_empty());
        if written || !matches!(info.origin, Origin::Param | Origin::Transient) {
            return Err(unsupported(String::from("the model writes tensors of its own")));
        }
        let value = widened(self.trace.tensor(id).ok_or_else(unknown)?)?;
        self.values.insert(id, value.shallow_clone());
        Ok(value)
    }

    fn event(&mut self, event: &Event) -> Result<(), Error> {
        if event.op == "aten::view" && event.overload == "dtype" {
            return Err(unsupported(String::from("the model takes bits of numbers for other numbers")));
        }
        let ids: Vec<TensorId> = event.args.iter().flat_map(Arg::tensors).collect();
        let wide = ids.iter().map(|id| self.value(*id)).collect::<Result<Vec<_>, _>>()?;
        let mut given = if event.random { self.narrowed(&ids, &wide)? } else { wide };
        let results = match self.call(event, &given) {
            // libtorch has not every operator in `f64`: it quantises `f32`, for one.
            Err(error) if event.writes.is_empty() => {
                given = self.narrowed(&ids, &given)?;
                self.recorded(event, &given).map_err(|_| error)?
            }
            results => results?,
        };
        let defined: Vec<Tensor> = results.into_iter().filter(Tensor::defined).collect();
        let outs: Vec<TensorId> = event.outs.iter().flat_map(Arg::tensors).collect();
        if outs.len() != defined.len() {
            return Err(unsupported(format!("{} has {} results", event.op, defined.len())));
        }
        for (id, result) in outs.into_iter().zip(defined) {
            if !self.values.contains_key(&id) {
                let result = self.result(id, &ids, &given, result)?;
                self.values.insert(id, result);
            }
        }
        if event.random { self.write_back(event, &ids, &given) } else { Ok(()) }
    }

    /// The call with `f64` for narrower types among its arguments.
    fn call(&self, event: &Event, given: &[Tensor]) -> Result<super::Results, Error> {
        let dtype = |arg: &Arg| if let Arg::DType(dtype) = arg { wider(*dtype) } else { None };
        if !event.random && event.args.iter().any(|arg| dtype(arg).is_some()) {
            let wide = |arg: &Arg| dtype(arg).map_or_else(|| arg.clone(), |(code, _)| Arg::DType(code));
            let args: Vec<Arg> = event.args.iter().map(wide).collect();
            return Call::new(&event.op, &event.overload, &args)?.run(&given.iter().collect::<Vec<_>>());
        }
        self.recorded(event, given)
    }

    /// The call as it was recorded.
    fn recorded(&self, event: &Event, given: &[Tensor]) -> Result<super::Results, Error> {
        let given: Vec<&Tensor> = given.iter().collect();
        let call = self.trace.calls.get(event.call.0 as usize);
        call.ok_or_else(|| unsupported(format!("{} was not stored", event.op)))?.run(&given)
    }

    /// Tensors in the types of the recording.
    fn narrowed(&self, ids: &[TensorId], wide: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let narrow = |(id, wide): (&TensorId, &Tensor)| {
            let kind = self.trace.info(*id).and_then(|info| kind_of(info.meta.dtype));
            kind.map_or(Ok(wide.shallow_clone()), |kind| wide.f_to_kind(kind).map_err(|e| torch(&e)))
        };
        ids.iter().zip(wide).map(narrow).collect()
    }

    /// A new result in `f64`, with memory of its own where the recorded one has.
    fn result(
        &self,
        id: TensorId,
        args: &[TensorId],
        given: &[Tensor],
        result: Tensor,
    ) -> Result<Tensor, Error> {
        let unknown = || unsupported(String::from("a result is not known"));
        let info = self.trace.info(id).ok_or_else(unknown)?;
        let result = widened(&result)?;
        let meta = Meta::of(&result)?;
        if meta.sizes() != info.meta.sizes() {
            return Err(unsupported(String::from("a result has another shape")));
        }
        for (arg, tensor) in args.iter().zip(given) {
            let alias = self.trace.info(*arg).is_some_and(|arg| arg.storage == info.storage);
            if !alias && Meta::of(tensor)?.storage == meta.storage {
                return copied(&result);
            }
        }
        Ok(result)
    }

    /// Takes over what a call wrote to narrow copies of its arguments.
    fn write_back(&self, event: &Event, ids: &[TensorId], given: &[Tensor]) -> Result<(), Error> {
        let written = event.writes.iter().filter_map(|&at| event.args.get(at)).flat_map(Arg::tensors);
        for id in written {
            let narrow = ids.iter().position(|one| *one == id).and_then(|at| given.get(at));
            if let (Some(narrow), Some(value)) = (narrow, self.values.get(&id)) {
                value.shallow_clone().f_copy_(narrow).map_err(|e| torch(&e))?;
            }
        }
        Ok(())
    }
}
