//! What happens to a model between its calls: its parameters are exchanged, it is given one of them as an input, what it returned is
//! written, its plans are dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::Tensor;

use super::program::{Input, Layout, Mode, Program, Values, copies};
use crate::Error;
use crate::rng::Rng;
use crate::torch::Meta;

/// What seeds of events differ in from those of programs.
const EVENTS: u64 = 0x65_76_65_6e_74;

/// What happens around the calls of one model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Events {
    /// The capturing call gets a parameter for an input that is like it.
    pub(super) gives: bool,
    /// Before the third call the parameters are other tensors.
    pub(super) exchanges: bool,
    /// The caller writes what a call returned before it makes the next one.
    pub(super) writes: bool,
    /// Before the last call all plans are dropped.
    pub(super) clears: bool,
}

impl Events {
    /// Those of a seed; a third have none.
    pub(super) fn of(seed: u64) -> Events {
        let mut rng = Rng::new(seed ^ EVENTS);
        let mut chance = |part| rng.chance(part);
        Events { gives: chance(0.3), exchanges: chance(0.2), writes: chance(0.3), clears: chance(0.1) }
    }
}

/// What a model holds.
pub(super) struct Held {
    /// The memory of all inputs and parameters.
    pub(super) storages: Vec<Tensor>,
    /// By input: the tensor that the model reads where it is a parameter.
    views: Arc<Mutex<Vec<Tensor>>>,
}

impl Held {
    /// Copies of a draw.
    pub(super) fn new(program: &Program, draw: &[Tensor]) -> Result<Held, Error> {
        let storages = copies(draw, Mode::Native);
        let views = Arc::new(Mutex::new(program.views(&storages)?));
        Ok(Held { storages, views })
    }

    /// The tensors that the model reads, for the model itself.
    pub(super) fn shared(&self) -> Arc<Mutex<Vec<Tensor>>> {
        Arc::clone(&self.views)
    }

    /// Gives the model other tensors for its parameters, with the values of a draw; nothing holds the old ones.
    pub(super) fn exchange(&mut self, program: &Program, draw: &[Tensor]) -> Result<(), Error> {
        self.storages = copies(draw, Mode::Native);
        *lock(&self.views) = program.views(&self.storages)?;
        Ok(())
    }

    /// The parameter that an input is.
    pub(super) fn parameter(&self, program: &Program, input: &Input) -> Option<Tensor> {
        let at = program.parameter(input)?;
        lock(&self.views).get(at).map(Tensor::shallow_clone)
    }
}

pub(super) fn lock(views: &Mutex<Vec<Tensor>>) -> MutexGuard<'_, Vec<Tensor>> {
    views.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// Whether an input is a parameter: no recording tells then which of the two the next parameter is, if it is an input again.
    pub(super) fn is_given_parameters(&self) -> bool {
        self.inputs.iter().any(|input| !input.param && self.parameter(input).is_some())
    }

    /// Where among the inputs the parameter is that an input is, too.
    fn parameter(&self, input: &Input) -> Option<usize> {
        let same = |other: &Input| Input { id: input.id, param: input.param, ..other.clone() } == *input;
        self.inputs.iter().position(|other| other.param && same(other))
    }

    /// The program where an input is a parameter of like values, layout and type; `None` where there are none such.
    pub(super) fn with_given_parameter(&self) -> Option<Program> {
        if self.ops.iter().any(|op| op.name == "set_data") {
            return None;
        }
        let alone = |input: &Input| {
            let plain = input.layout == Layout::Strided && !input.conj && !input.neg;
            plain && self.inputs.iter().filter(|i| i.storage == input.storage).count() == 1
        };
        let alike = |a: &Input, b: &Input| {
            let (Some(one), Some(other)) = (self.storages.get(a.storage), self.storages.get(b.storage))
            else {
                return false;
            };
            let layouts = (&a.sizes, &a.strides, a.offset) == (&b.sizes, &b.strides, b.offset);
            layouts && one == other && !matches!(one.values, Values::Data(_))
        };
        let pairs = self.inputs.iter().enumerate().filter(|(_, input)| !input.param && alone(input));
        let mut pairs = pairs.filter_map(|(at, input)| {
            let param =
                self.inputs.iter().find(|param| param.param && alone(param) && alike(input, param))?;
            Some((at, param.storage))
        });
        let (at, storage) = pairs.next()?;
        let mut given = self.clone();
        given.inputs.get_mut(at)?.storage = storage;
        Some(given)
    }
}

/// What a call returned that has memory of its own, and what was in it.
#[derive(Default)]
pub(super) struct Returned(Vec<(Tensor, Tensor)>);

impl Returned {
    /// Of results, those that share no memory with the arguments.
    pub(super) fn new(results: &[Tensor], arguments: &[Tensor]) -> Returned {
        let memory = |t: &Tensor| Meta::of(t).map_or(0, |meta| meta.storage_data);
        let taken: Vec<usize> = arguments.iter().map(memory).collect();
        let own = |t: &&Tensor| t.defined() && memory(t) != 0 && !taken.contains(&memory(t));
        Returned(results.iter().filter(own).map(|t| (t.shallow_clone(), t.copy())).collect())
    }

    /// Writes what can be written.
    pub(super) fn write(&self) {
        self.0.iter().for_each(|(result, _)| drop(result.shallow_clone().f_zero_()));
    }

    /// Copies of the tensors as they were returned, and as they are now.
    pub(super) fn then_and_now(self) -> [Vec<Tensor>; 2] {
        let now = self.0.iter().map(|(result, _)| result.copy()).collect();
        [self.0.into_iter().map(|(_, copy)| copy).collect(), now]
    }
}
