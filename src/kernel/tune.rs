//! Choosing between kernels that compute the same: measured once, remembered on disk.
//!
//! ```no_run
//! # use tch::{Device, Kind, Tensor};
//! use tilefuse::grid;
//! use tilefuse::lang::cdiv;
//! use tilefuse::tune::Tuner;
//!
//! #[tilefuse::kernel(warps = WARPS, stages = STAGES)]
//! fn product(a: Ptr<f32>, b: Ptr<f32>, c: Ptr<f32>, n: i64, #[constant] [BLOCK, WARPS, STAGES]: [usize; 3]) {
//!     let matrix = |x: Ptr<f32>| make_descriptor(x, (n, n), (n, 1), [BLOCK, BLOCK]);
//!     let (i, j) = (program_id(0) * BLOCK, program_id(1) * BLOCK);
//!     let mut sum = zeros::<f32>([BLOCK, BLOCK]);
//!     for k in (0..n).step_by(BLOCK) {
//!         sum = dot(matrix(a).load((i, k)), matrix(b).load((k, j)), sum);
//!     }
//!     matrix(c).store((i, j), sum);
//! }
//!
//! let n = 1024i64;
//! let matrix = || Tensor::rand([n, n], (Kind::Float, Device::Cpu));
//! let (a, b, c) = (matrix(), matrix(), matrix());
//! let tuner = Tuner::new("product", [[32usize, 4, 2], [64, 4, 2], [64, 4, 4], [64, 8, 3]]);
//! let config = *tuner.best(a.device(), &n.to_string(), |&config| {
//!     let blocks = cdiv(n, config[0] as i64);
//!     // Nothing for a configuration that is not worth trying.
//!     let enough = blocks >= 4;
//!     enough.then(|| product.candidate(grid![blocks, blocks], (&a, &b, &c, n, config))).transpose()
//! })?;
//! # Ok::<(), tilefuse::Error>(())
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tilefuse_block::interp;
use tilefuse_codegen::cache::Key;

use super::{Arg, Grid, Kernel};
use crate::Error;
use crate::engine::{self, Remembered};

/// Rounds in which every candidate is measured once, in turn.
const ROUNDS: usize = 5;
/// Microseconds that launches take together which are timed as one.
const SPAN_US: f64 = 2e3;
/// The most work of the interpreter in a check, in elements.
const MAX_INTERPRETED: u64 = 400_000_000;

/// A kernel with a grid and arguments.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    kernel: Arc<Kernel>,
    grid: Grid,
    args: Vec<Arg<'a>>,
}

impl<'a> Candidate<'a> {
    /// A launch of a kernel.
    pub fn new(kernel: impl Into<Arc<Kernel>>, grid: impl Into<Grid>, args: &[Arg<'a>]) -> Candidate<'a> {
        Candidate { kernel: kernel.into(), grid: grid.into(), args: args.to_vec() }
    }
}

/// What became of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was not worth trying.
    Pruned,
    /// It could not be built, compiled or run.
    Failed(String),
    /// It does not compute what the interpreter computes, or not what the first candidate does.
    Differs(String),
    /// The median time of a launch, in microseconds.
    Micros(f64),
}

/// A configuration and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The configuration, as text.
    pub config: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// The trials for one key on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// The tuner's name.
    pub name: String,
    /// The key.
    pub key: String,
    /// The device.
    pub device: String,
    /// Every configuration, in order.
    pub trials: Vec<Trial>,
}

impl Tuning {
    /// The position of the quickest configuration.
    pub fn best(&self) -> Option<usize> {
        let micros = |trial: &Trial| match trial.outcome {
            Outcome::Micros(micros) => Some(micros),
            _ => None,
        };
        let timed = self.trials.iter().enumerate().filter_map(|(index, trial)| Some((index, micros(trial)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} for {} on {}", self.name, self.key, self.device)?;
        for (index, Trial { config, outcome }) in self.trials.iter().enumerate() {
            let mark = if self.best() == Some(index) { '*' } else { ' ' };
            match outcome {
                Outcome::Pruned => writeln!(f, "{mark} {config}: pruned")?,
                Outcome::Failed(why) => writeln!(f, "{mark} {config}: {why}")?,
                Outcome::Differs(how) => writeln!(f, "{mark} {config}: wrong: {how}")?,
                Outcome::Micros(micros) => writeln!(f, "{mark} {config}: {micros:.1} us")?,
            }
        }
        Ok(())
    }
}

static KNOWN: Remembered<Tuning> =
    Remembered::new(|what| Key::new(what, "kernels", "1"), |tuning| tuning.best().is_some());

/// Configurations of a kernel, and which of them is best for what.
#[derive(Debug)]
pub struct Tuner<C> {
    name: String,
    configs: Vec<C>,
    tolerance: f64,
    unchecked: bool,
    known: Mutex<FxHashMap<(String, String), Arc<Tuning>>>,
}

impl<C: fmt::Debug> Tuner<C> {
    /// A tuner that tries these configurations. The name tells kernels apart on disk.
    pub fn new(name: &str, configs: impl IntoIterator<Item = C>) -> Tuner<C> {
        let configs = configs.into_iter().collect();
        Tuner { name: name.to_owned(), configs, tolerance: 5e-3, unchecked: false, known: Mutex::default() }
    }

    /// The largest difference between results, relative to the largest magnitude in a tensor, that is one of rounding;
    /// 0.005 by itself. Integers are always compared exactly.
    pub fn tolerance(mut self, tolerance: f64) -> Tuner<C> {
        self.tolerance = tolerance;
        self
    }

    /// Measures launches without checks of accesses, for kernels that are launched so; each candidate runs with them first.
    ///
    /// # Safety
    /// No address that a candidate reads or writes depends on what it writes itself.
    pub unsafe fn unchecked(mut self) -> Tuner<C> {
        self.unchecked = true;
        self
    }

    /// The quickest configuration for what `key` names: from earlier calls, from disk, or measured now. `candidate`
    /// gives the launch of a configuration, or nothing for one that is not worth trying; the tensors are copied where
    /// a launch would write them.
    ///
    /// Before it is measured, a candidate runs some instances beside the interpreter, which also finds accesses out of
    /// bounds, and all of them beside the first candidate.
    ///
    /// # Errors
    /// [`Error::Tuning`] with every outcome where no candidate is left; [`Error::Launch`] for a device without kernels.
    pub fn best<'a>(
        &self,
        device: Device,
        key: &str,
        candidate: impl Fn(&C) -> Result<Option<Candidate<'a>>, Error>,
    ) -> Result<&C, Error> {
        let tuning = self.tuning(device, key, candidate)?;
        let best = tuning.best().and_then(|index| self.configs.get(index));
        best.ok_or_else(|| Error::Tuning(tuning.to_string()))
    }

    /// The trials that [`Tuner::best`] chooses by.
    ///
    /// # Errors
    /// [`Error::Launch`] for a device without kernels.
    pub fn tuning<'a>(
        &self,
        device: Device,
        key: &str,
        candidate: impl Fn(&C) -> Result<Option<Candidate<'a>>, Error>,
    ) -> Result<Arc<Tuning>, Error> {
        let place = engine::device_name(device)?;
        let id = (place.clone(), key.to_owned());
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tuning) = lock().get(&id) {
            return Ok(Arc::clone(tuning));
        }
        let what = self.what(&place, key);
        let tuning = match KNOWN.get(&what) {
            Some(tuning) => tuning,
            None => {
                let tuning = self.measure(device, &place, key, candidate)?;
                if tuning.best().is_some() {
                    KNOWN.put(what, &tuning);
                }
                tuning
            }
        };
        Ok(Arc::clone(lock().entry(id).or_insert_with(|| Arc::new(tuning))))
    }

    fn names(&self) -> Vec<String> {
        self.configs.iter().map(|config| format!("{config:?}")).collect()
    }

    /// All that trials depend on.
    fn what(&self, place: &str, key: &str) -> String {
        let how = if self.unchecked { "unchecked" } else { "checked" };
        format!("{:?}", (&self.name, how, self.names(), place, key))
    }

    fn measure<'a>(
        &self,
        device: Device,
        place: &str,
        key: &str,
        candidate: impl Fn(&C) -> Result<Option<Candidate<'a>>, Error>,
    ) -> Result<Tuning, Error> {
        let _no_grad = tch::no_grad_guard();
        let mut first: Option<Vec<Tensor>> = None;
        let mut running: Vec<Result<Run<'a>, Outcome>> = Vec::new();
        for config in &self.configs {
            running.push(self.prepared(device, candidate(config), &mut first));
        }
        let time = |at: usize| {
            let timed = running[at].as_mut().map_or(Ok(0.0), |run| run.time(device, self.unchecked));
            // One that fails is left out; the others go on.
            Ok(timed.unwrap_or_else(|error| {
                running[at] = Err(Outcome::Failed(error.to_string()));
                0.0
            }))
        };
        let times = engine::in_turns(self.configs.len(), time, |progress| progress.rounds < ROUNDS)?;
        let outcome = |(run, times): (Result<Run<'a>, Outcome>, Vec<f64>)| match run {
            // Whole picoseconds are read back from text as they were written.
            Ok(_) => Outcome::Micros((engine::median(times) * 1e6).round() / 1e6),
            Err(outcome) => outcome,
        };
        let outcomes = running.into_iter().zip(times).map(outcome);
        let trials =
            self.names().into_iter().zip(outcomes).map(|(config, outcome)| Trial { config, outcome });
        let (name, key, device) = (self.name.clone(), key.to_owned(), place.to_owned());
        Ok(Tuning { name, key, device, trials: trials.collect() })
    }

    /// A candidate that was checked, ready to be measured.
    fn prepared<'a>(
        &self,
        device: Device,
        candidate: Result<Option<Candidate<'a>>, Error>,
        first: &mut Option<Vec<Tensor>>,
    ) -> Result<Run<'a>, Outcome> {
        let failed = |error: Error| Outcome::Failed(error.to_string());
        let candidate = candidate.map_err(failed)?.ok_or(Outcome::Pruned)?;
        self.check(device, &candidate).map_err(failed)?.map_or(Ok(()), |how| Err(Outcome::Differs(how)))?;
        let run = Run::new(candidate, device).map_err(failed)?;
        run.launch().map_err(failed)?;
        let written = run.written();
        match first {
            None => *first = Some(written.iter().map(Tensor::copy).collect()),
            Some(first) => {
                if let Some(how) = self.difference(first, &written) {
                    return Err(Outcome::Differs(format!("from the first candidate: {how}")));
                }
            }
        }
        Ok(run)
    }

    /// How some instances differ from the interpreter's.
    fn check(&self, device: Device, candidate: &Candidate<'_>) -> Result<Option<String>, Error> {
        let grid = candidate.grid.corner();
        let interpreted = Run::new(Candidate { grid, ..candidate.clone() }, Device::Cpu)?;
        let options = interp::Options { races: false, fuel: Some(MAX_INTERPRETED), print: |_| () };
        interpreted.candidate.kernel.interpret_with(grid, &interpreted.args(), &options)?;
        let launched = Run::new(Candidate { grid, ..candidate.clone() }, device)?;
        launched.launch()?;
        Ok(self.difference(&interpreted.written(), &launched.written()))
    }

    /// How tensors differ by more than rounding.
    fn difference(&self, expected: &[Tensor], found: &[Tensor]) -> Option<String> {
        expected.iter().zip(found).enumerate().find_map(|(index, (expected, found))| {
            let wide = |t: &Tensor| t.to_device(Device::Cpu).to_kind(Kind::Double);
            let (x, y) = (wide(expected), wide(found));
            let finite = x.isfinite();
            let same_places = finite.equal(&y.isfinite());
            let masked = |t: &Tensor| t.masked_fill(&finite.logical_not(), 0.0);
            let largest = |t: Tensor| if t.numel() == 0 { 0.0 } else { t.abs().max().double_value(&[]) };
            let (scale, apart) = (largest(masked(&x)), largest(masked(&x) - masked(&y)));
            let allowed = if expected.is_floating_point() { self.tolerance * scale } else { 0.0 };
            (!same_places || apart > allowed)
                .then(|| format!("output {index}: {apart:.3e} apart, largest value {scale:.3e}"))
        })
    }
}

fn torch(error: tch::TchError) -> Error {
    Error::Torch(error.to_string())
}

/// A candidate with tensors of its own where it writes.
struct Run<'a> {
    candidate: Candidate<'a>,
    /// For each argument the tensor in its place.
    own: Vec<Option<Tensor>>,
    /// Launches that are timed as one; not known before the first was.
    launches: Option<u32>,
}

impl<'a> Run<'a> {
    fn new(candidate: Candidate<'a>, device: Device) -> Result<Run<'a>, Error> {
        let mut own = Vec::with_capacity(candidate.args.len());
        for (index, arg) in candidate.args.iter().enumerate() {
            own.push(match arg {
                Arg::Tensor(tensor) if candidate.kernel.writes(index) || tensor.device() != device => {
                    let empty =
                        Tensor::f_empty_strided(tensor.size(), tensor.stride(), (tensor.kind(), device));
                    let mut copy = empty.map_err(torch)?;
                    copy.f_copy_(tensor).map_err(torch)?;
                    Some(copy)
                }
                _ => None,
            });
        }
        Ok(Run { candidate, own, launches: None })
    }

    fn args(&self) -> Vec<Arg<'_>> {
        let own = self.own.iter().zip(&self.candidate.args);
        own.map(|(own, arg)| own.as_ref().map_or(*arg, Arg::Tensor)).collect()
    }

    fn written(&self) -> Vec<Tensor> {
        let written = self.own.iter().enumerate().filter(|(index, _)| self.candidate.kernel.writes(*index));
        written.filter_map(|(_, own)| own.as_ref().map(Tensor::shallow_clone)).collect()
    }

    fn launch(&self) -> Result<(), Error> {
        self.candidate.kernel.launch(self.candidate.grid, &self.args())
    }

    /// Microseconds of a launch: the first time of one, then of as many as fill the span.
    fn time(&mut self, device: Device, unchecked: bool) -> Result<f64, Error> {
        let args = self.args();
        let (kernel, grid) = (&self.candidate.kernel, self.candidate.grid);
        let launch = || match unchecked {
            // SAFETY: these arguments were launched with checks before, and what the kernel writes since then changes no
            // address, as whoever made the tuner vouches.
            true => unsafe { kernel.launch_unchecked(grid, &args) },
            false => kernel.launch(grid, &args),
        };
        let us = engine::per_call(device, self.launches.unwrap_or(1), launch)?;
        self.launches.get_or_insert(engine::calls_in(SPAN_US, us));
        Ok(us)
    }
}
