//! Measurements of candidates: timed in turn, so that whatever else a machine does meets all of them alike, and remembered on
//! disk, so that each is made once on a machine.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tilefuse_codegen::cache::{Key, Kind};
use tilefuse_codegen::cuda;

use super::kernels::{Stream, Target, cache};
use crate::Error;
use crate::torch::cuda_stream;

/// How far rounds of measurements are.
pub(crate) struct Progress {
    /// How many there were.
    pub(crate) rounds: usize,
    /// What they took.
    pub(crate) elapsed: Duration,
    /// What the shortest of them took, or the warm-up.
    pub(crate) shortest: Duration,
}

/// Times so many candidates in turn, once to warm up and then in rounds, while there are to be `more`. Returns for each
/// candidate the microseconds of each round; `time` gives those of one candidate.
pub(crate) fn in_turns(
    candidates: usize,
    mut time: impl FnMut(usize) -> Result<f64, Error>,
    more: impl Fn(&Progress) -> bool,
) -> Result<Vec<Vec<f64>>, Error> {
    let mut round = || (0..candidates).map(&mut time).collect::<Result<Vec<f64>, Error>>();
    let length = |times: &[f64]| Duration::from_secs_f64(times.iter().sum::<f64>() * 1e-6);
    // The first runs find their memory and start their threads.
    let warm_up = round()?;
    let mut progress = Progress { rounds: 0, elapsed: Duration::ZERO, shortest: length(&warm_up) };
    let mut all = vec![Vec::new(); candidates];
    let start = Instant::now();
    while more(&progress) {
        let times = round()?;
        all.iter_mut().zip(&times).for_each(|(all, &us)| all.push(us));
        progress = Progress {
            rounds: progress.rounds + 1,
            elapsed: start.elapsed(),
            shortest: progress.shortest.min(length(&times)),
        };
    }
    Ok(all)
}

/// Times what runs on a device, from the stream on which libtorch of this thread queues there.
pub(crate) struct Timer {
    stream: Stream,
    /// On a GPU: what marks the beginning of a run on the stream, and its end.
    events: Option<[cuda::Event; 2]>,
}

impl Timer {
    pub(crate) fn new(target: Target) -> Result<Timer, Error> {
        let Target::Cuda(ordinal) = target else {
            let threads = tch::get_num_threads().max(1) as usize;
            return Ok(Timer { stream: Stream { raw: std::ptr::null_mut(), threads }, events: None });
        };
        let device = cuda::Device::get(ordinal as usize)?;
        let events = [cuda::Event::new(&device)?, cuda::Event::new(&device)?];
        Ok(Timer { stream: Stream { raw: cuda_stream(ordinal as i8)?, threads: 1 }, events: Some(events) })
    }

    /// Where kernels that are timed are launched.
    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    /// How long a run takes; on a GPU, from its beginning on the stream to its end.
    pub(crate) fn time(&self, run: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
        let Some([begin, end]) = &self.events else {
            let begin = Instant::now();
            run()?;
            return Ok(begin.elapsed());
        };
        // SAFETY: the stream is the one that libtorch uses on the thread and device that this was made for.
        unsafe { begin.record_raw(self.stream.raw) }?;
        run()?;
        // SAFETY: as above.
        unsafe { end.record_raw(self.stream.raw) }?;
        Ok(Duration::from_secs_f64(end.micros_since(begin)? * 1e-6))
    }
}

/// Microseconds of a call on a device, of so many that are queued one after the other and timed as one.
pub(crate) fn per_call(
    device: tch::Device,
    calls: u32,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let wait = || {
        if let tch::Device::Cuda(ordinal) = device {
            tch::Cuda::synchronize(ordinal as i64);
        }
    };
    wait();
    let start = Instant::now();
    (0..calls).try_for_each(|_| call())?;
    wait();
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

/// How many calls are timed as one, to take so many microseconds, where one takes `once`.
pub(crate) fn calls_in(span_us: f64, once: f64) -> u32 {
    (span_us / once.max(0.1)).ceil().clamp(1.0, 1000.0) as u32
}

/// The median of samples; 0 where there are none.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// Measurements of one kind, in memory and on disk.
pub(crate) struct Remembered<T> {
    /// Where one is on disk, by all that it depends on.
    key: fn(&str) -> Key,
    /// Whether one that was read can be true.
    is_plausible: fn(&T) -> bool,
    /// Those of this process; `None` for one that was looked for once and is not there.
    known: Mutex<FxHashMap<String, Option<T>>>,
}

impl<T: Clone + Serialize + DeserializeOwned> Remembered<T> {
    pub(crate) const fn new(key: fn(&str) -> Key, is_plausible: fn(&T) -> bool) -> Remembered<T> {
        Remembered { key, is_plausible, known: Mutex::new(FxHashMap::with_hasher(FxBuildHasher)) }
    }

    /// A short name of this.
    pub(crate) fn name(&self, what: &str) -> String {
        (self.key)(what).to_hex()
    }

    /// What was measured of this, if anything was.
    pub(crate) fn get(&self, what: &str) -> Option<T> {
        let mut known = self.known();
        if let Some(Some(found)) = known.get(what) {
            return Some(found.clone());
        }
        let found = self.read(what)?;
        known.insert(what.to_owned(), Some(found.clone()));
        Some(found)
    }

    /// The same, as it was when this process asked for the first time.
    pub(crate) fn get_first(&self, what: &str) -> Option<T> {
        let mut known = self.known();
        known.entry(what.to_owned()).or_insert_with_key(|what| self.read(what)).clone()
    }

    /// Remembers a measurement, here and for processes that start from now on.
    pub(crate) fn put(&self, what: String, measured: &T) {
        self.put_on_disk(&what, measured);
        self.known().insert(what, Some(measured.clone()));
    }

    /// Remembers a measurement for processes that start from now on alone.
    pub(crate) fn put_on_disk(&self, what: &str, measured: &T) {
        if let Ok(bytes) = serde_json::to_vec(measured) {
            cache().put(Kind::Tuning, (self.key)(what), &bytes);
        }
    }

    fn read(&self, what: &str) -> Option<T> {
        let bytes = cache().get(Kind::Tuning, (self.key)(what))?;
        serde_json::from_slice(&bytes).ok().filter(self.is_plausible)
    }

    fn known(&self) -> MutexGuard<'_, FxHashMap<String, Option<T>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_timed_in_turn_behind_a_warm_up() {
        let mut order = Vec::new();
        let time = |candidate: usize| {
            order.push(candidate);
            Ok(if order.len() <= 2 { 100.0 } else { order.len() as f64 })
        };
        let times = in_turns(2, time, |progress| {
            assert!(progress.shortest <= Duration::from_micros(200));
            progress.rounds < 3
        });
        assert_eq!(times.unwrap(), [[3.0, 5.0, 7.0], [4.0, 6.0, 8.0]]);
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
        let failed = in_turns(1, |_| Err(Error::Internal(String::from("no kernel"))), |_| true);
        assert!(failed.is_err());
    }

    #[test]
    fn what_was_looked_for_first_stays_so() {
        static KNOWN: Remembered<(f64, u64)> =
            Remembered::new(|what| Key::new(what, "of a test", "1"), |measured| measured.0 > 0.0);
        let unique = format!("{:?} {}", Instant::now(), std::process::id());
        assert_eq!((KNOWN.get(&unique), KNOWN.get_first(&unique)), (None, None));
        KNOWN.put_on_disk(&unique, &(1.0, 2));
        assert_eq!(KNOWN.get_first(&unique), None);
        KNOWN.put(unique.clone(), &(3.0, 4));
        assert_eq!((KNOWN.get(&unique), KNOWN.get_first(&unique)), (Some((3.0, 4)), Some((3.0, 4))));
        let wrong = format!("{unique}, beyond all machines");
        KNOWN.put_on_disk(&wrong, &(0.0, 1));
        assert_eq!(KNOWN.get(&wrong), None);
    }
}
