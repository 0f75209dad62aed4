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
use std::time::Instant;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tilefuse_block::interp;
use tilefuse_codegen::cache::{self, Key};

use super::{Arg, Grid, Kernel};
use crate::Error;
use crate::engine;

/// Rounds in which every candidate is measured once, in turn.
const ROUNDS: usize = 5;
/// Seconds that one measurement takes at least.
const MIN_SECONDS: f64 = 2e-3;
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
        let tuning = match self.read(&place, key) {
            Some(tuning) => tuning,
            None => {
                let tuning = self.measure(device, &place, key, candidate)?;
                self.write(&tuning);
                tuning
            }
        };
        Ok(Arc::clone(lock().entry(id).or_insert_with(|| Arc::new(tuning))))
    }

    fn names(&self) -> Vec<String> {
        self.configs.iter().map(|config| format!("{config:?}")).collect()
    }

    fn entry(&self, place: &str, key: &str) -> Key {
        let how = if self.unchecked { "unchecked" } else { "checked" };
        Key::new(&format!("{} {how}\n{}", self.name, self.names().join("\n")), place, key)
    }

    fn read(&self, place: &str, key: &str) -> Option<Tuning> {
        let bytes = engine::cache().get(cache::Kind::Tuning, self.entry(place, key))?;
        let tuning: Tuning = serde_json::from_slice(&bytes).ok()?;
        let same = tuning.trials.iter().map(|trial| &trial.config).eq(self.names().iter());
        (same && tuning.best().is_some()).then_some(tuning)
    }

    fn write(&self, tuning: &Tuning) {
        if tuning.best().is_some()
            && let Ok(bytes) = serde_json::to_vec(tuning)
        {
            engine::cache().put(cache::Kind::Tuning, self.entry(&tuning.device, &tuning.key), &bytes);
        }
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
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); running.len()];
        for _ in 0..ROUNDS {
            for (run, times) in running.iter_mut().zip(&mut times) {
                if let Ok(ready) = run {
                    match ready.time(device, self.unchecked) {
                        Ok(micros) => times.push(micros),
                        Err(error) => *run = Err(Outcome::Failed(error.to_string())),
                    }
                }
            }
        }
        let outcome = |(run, mut times): (Result<Run<'a>, Outcome>, Vec<f64>)| match run {
            Ok(_) => {
                times.sort_by(f64::total_cmp);
                // Whole picoseconds are read back from text as they were written.
                Outcome::Micros((times[times.len() / 2] * 1e6).round() / 1e6)
            }
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
        Ok(Run { candidate, own })
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

    /// Microseconds of a launch, of as many as fill the least span.
    fn time(&self, device: Device, unchecked: bool) -> Result<f64, Error> {
        let args = self.args();
        let (kernel, grid) = (&self.candidate.kernel, self.candidate.grid);
        let launch = || match unchecked {
            // SAFETY: these arguments were launched with checks before, and what the kernel writes since then changes no
            // address, as whoever made the tuner vouches.
            true => unsafe { kernel.launch_unchecked(grid, &args) },
            false => kernel.launch(grid, &args),
        };
        let wait = || {
            if let Device::Cuda(index) = device {
                tch::Cuda::synchronize(index as i64);
            }
        };
        let batch = |launches: u32| -> Result<f64, Error> {
            wait();
            let start = Instant::now();
            for _ in 0..launches {
                launch()?;
            }
            wait();
            Ok(start.elapsed().as_secs_f64() / f64::from(launches))
        };
        let once = batch(1)?.max(1e-7);
        let launches = (MIN_SECONDS / once).ceil().clamp(1.0, 1000.0) as u32;
        Ok(batch(launches)? * 1e6)
    }
}
