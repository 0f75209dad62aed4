//! How long threads wait for a processor, which others have: of Linux's `schedstat`, `Documentation/scheduler/sched-stats.rst`.

use std::time::{Duration, Instant};

/// How long threads wait while something runs.
pub(crate) struct Waiting {
    before: Option<Duration>,
    start: Instant,
}

impl Waiting {
    /// From now on.
    pub(crate) fn begin() -> Waiting {
        Waiting { before: run_delay(), start: Instant::now() }
    }

    /// How long they have waited since, all together, in the time that has passed.
    pub(crate) fn part(&self) -> Option<f64> {
        let passed = self.start.elapsed();
        let waited = run_delay()?.saturating_sub(self.before?);
        Some(waited.as_secs_f64() / passed.as_secs_f64().max(1e-9))
    }
}

/// How long the threads of this process have been ready to run and had no processor, all together; none where the system does not tell.
fn run_delay() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut sum = None;
    for thread in threads.flatten() {
        // A thread may have ended in between.
        let waited = std::fs::read_to_string(thread.path().join("schedstat")).ok();
        if let Some(waited) = waited.as_deref().and_then(parsed) {
            *sum.get_or_insert(Duration::ZERO) += waited;
        }
    }
    sum
}

/// Of nanoseconds on a processor, nanoseconds that a thread waited for one, and slices that it ran.
fn parsed(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn threads_that_share_processors_wait() {
        assert_eq!(parsed("330816766 232217046 986\n"), Some(Duration::from_nanos(232_217_046)));
        assert_eq!(parsed(""), None);
        let Some(before) = run_delay() else {
            return eprintln!("skipped: this system does not tell how long threads wait");
        };
        let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let spin = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(60) {
                std::hint::spin_loop();
            }
            run_delay().unwrap_or_default()
        };
        // Each looks while all of them are there.
        let longest = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(spin)).collect();
            all.into_iter().filter_map(|thread| thread.join().ok()).max()
        });
        let waited = longest.unwrap_or_default().saturating_sub(before);
        assert!(waited > Duration::from_millis(20), "{waited:?}");
    }
}
