//! The schedules of a call that may be the quickest: programs are written of these only.
//!
//! ```text
//! 1.00  blocks over prepacked panels, 224 rows
//! 1.02  rows as pixels of a convolution         within its slowdown: also a candidate where candidates are measured
//! 1.40  operands where they lie
//! ```

use super::call_kernels::Template;
use super::match_failure::MatchFailure;

/// The most programs that are written of one call.
const MAX_CANDIDATES: usize = 2;

/// A schedule, and what it is expected to take.
#[derive(Debug)]
pub(super) struct Priced<S> {
    /// How the call is computed.
    pub(super) schedule: S,
    /// What that takes in microseconds, or in any unit that all schedules of the call have.
    pub(super) us: f64,
    /// How much of that if memory were not waited for.
    pub(super) arithmetic_us: f64,
    /// How many times as long as the best it may be expected to take and yet be the quickest.
    pub(super) slowdown: f64,
    /// Bytes of packed operands and partial sums in each call.
    pub(super) bytes: f64,
}

/// The kernels of the likeliest schedules that take at most so many bytes, the best one first; that one alone unless they are `measured`.
///
/// # Errors
/// Where there is no schedule of which a program is written, or all take more bytes.
pub(super) fn prune<S>(
    mut all: Vec<Priced<S>>,
    (measured, most_bytes): (bool, u64),
    build: impl Fn(S) -> Option<Template>,
) -> Result<Vec<Template>, MatchFailure> {
    let least = all.iter().map(|priced| priced.bytes).reduce(f64::min).unwrap_or(0.0);
    if least > most_bytes as f64 {
        return Err(MatchFailure::Memory { least: least as u64, most: most_bytes });
    }
    all.retain(|priced| priced.bytes <= most_bytes as f64);
    // Of those that wait for memory, the one that computes less.
    all.sort_by(|a, b| a.us.total_cmp(&b.us).then(a.arithmetic_us.total_cmp(&b.arithmetic_us)));
    let least_us = all.first().map_or(0.0, |priced| priced.us);
    let most = if measured { MAX_CANDIDATES } else { 1 };
    let mut templates = Vec::new();
    for Priced { schedule, us, slowdown, .. } in all {
        let near = us <= least_us * slowdown;
        if templates.len() < most && (near || templates.is_empty()) {
            templates.extend(build(schedule));
        }
    }
    if templates.is_empty() { Err(MatchFailure::NoTemplate) } else { Ok(templates) }
}
