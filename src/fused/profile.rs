//! Plans with the times that their steps take.

use std::cell::RefCell;
use std::rc::Rc;

use tch::Tensor;

use super::table::{Entry, Outcome};
use super::{Engine, Forward};
use crate::engine::{Addresses, CallTimes, Compiled, Stop, Target, Waiting, median};
use crate::torch::{GeneratorState, GlobalState, Trace};
use crate::{Error, Explanation};

/// Eager calls of which the median counts.
const ROUNDS: usize = 5;

impl Engine {
    /// The plan of a call, compiled now if it is not yet, with measured times.
    pub(super) fn profile(&self, inputs: &[Tensor], forward: Forward<'_>) -> Result<Explanation, Error> {
        let plan = self.explain(inputs, forward)?;
        let state = GlobalState::now()?;
        let mut data = Addresses::new();
        if let Some(entry) = self.table.find(inputs, state, forward, &mut data)
            && let Outcome::Plan(_, audits) = &entry.outcome
            && audits.has_new_input(inputs)
        {
            drop(self.run(inputs, forward)?);
        }
        let entry = self.table.find(inputs, state, forward, &mut data);
        let Some(Entry { outcome: Outcome::Plan(compiled, _), .. }) = entry.as_deref() else {
            return Err(Error::RunsEager(String::from("there is no plan that could be measured")));
        };
        // On a GPU, times are those of its own clock.
        let waiting = (compiled.target() == Target::Host).then(Waiting::begin);
        let span = tracing::info_span!("profile", steps = compiled.plan.steps.len()).entered();
        let steps = compiled.profile(inputs, &data, state.threads()).map_err(|stop| match stop {
            Stop::Failed(error) => error,
            Stop::Stale(reason) | Stop::Unfit(reason) => Error::RunsEager(reason.into_owned()),
        })?;
        drop(span);
        let _span = tracing::info_span!("profile eager's operators").entered();
        let eager = self.eager_times(compiled, inputs, forward)?;
        let mut plan = plan.with_profile(&steps, &eager);
        plan.waiting = waiting.and_then(|waiting| waiting.part());
        Ok(plan)
    }

    /// Microseconds of each operator that the model calls, by its number.
    fn eager_times(
        &self,
        compiled: &Compiled,
        inputs: &[Tensor],
        forward: Forward<'_>,
    ) -> Result<Vec<f64>, Error> {
        // The model draws random numbers as calls do, which are not to be missed afterwards.
        let generators = compiled
            .draws_on
            .iter()
            .map(|&device| GeneratorState::of(device))
            .collect::<Result<Vec<_>, _>>()?;
        let times = self.times_of_calls(compiled, inputs, forward);
        generators.iter().try_for_each(GeneratorState::restore)?;
        times
    }

    fn times_of_calls(
        &self,
        compiled: &Compiled,
        inputs: &[Tensor],
        forward: Forward<'_>,
    ) -> Result<Vec<f64>, Error> {
        let mut samples: Vec<Vec<f64>> = Vec::new();
        for _ in 0..ROUNDS {
            let clock = Rc::new(RefCell::new(CallTimes::new(compiled.target())?));
            let (_, trace, _) = self.record_timed(inputs, forward, Some(clock.clone()))?;
            let times = times(&trace, &clock.borrow().us()?);
            if times.len() != compiled.ops_captured {
                return Ok(Vec::new());
            }
            samples.resize_with(times.len(), Vec::new);
            samples.iter_mut().zip(times).for_each(|(list, us)| list.push(us));
        }
        Ok(samples.into_iter().map(median).collect())
    }
}

/// Of the times of all calls, those of the operators that plans are made of.
fn times(trace: &Trace, all: &[f64]) -> Vec<f64> {
    let timed = trace.events.iter().zip(all);
    timed.filter(|(event, _)| !event.constant).map(|(_, &us)| us).collect()
}
