//! Whether an outer loop pays, and in how large blocks.

use super::super::ir::{LocalBuffer, OuterLoop};
use super::super::reasons::OuterLoopRefusal;
use super::division::Division;
use super::finder::{Finder, KernelGrid};
use crate::machine::CACHED;

/// Blocks of each thread that even out differences between threads.
const MIN_BLOCKS_PER_THREAD: u64 = 4;

/// How long threads wait at the end for the one that is last, in blocks of all threads.
const IDLE_BLOCKS: f64 = 0.25;

impl<'p> Finder<'p> {
    /// The outer loop in blocks as even and as large as fit a thread's cache.
    pub(super) fn priced(
        &mut self,
        kernels: &[KernelGrid<'p>],
        division: &Division,
    ) -> Option<Result<OuterLoop, OuterLoopRefusal>> {
        let least = division.least_factor();
        let smallest = self.outer_loop(kernels, division, least)?;
        if smallest.local_buffers.is_empty() {
            return None;
        }
        if smallest.thread_bytes > self.room() {
            return Some(Err(OuterLoopRefusal::Large { bytes: smallest.thread_bytes }));
        }
        // Neighbours need rows of each other's whatever the size of blocks.
        let twice = self
            .outer_loop(kernels, division, 2 * least)
            .map_or(u64::MAX, |outer_loop| outer_loop.thread_bytes);
        let more = twice.saturating_sub(smallest.thread_bytes).max(1);
        let most = least + least * (self.cache / 4).saturating_sub(smallest.thread_bytes) / more;
        let most = most.min(division.blocks);
        let taken_us = |k: &KernelGrid<'_>| k.step.predicted_us;
        let all_us: f64 = kernels.iter().map(taken_us).sum();
        // What blocks compute of each other's, as a part of all.
        let repeated = |factor: u64| {
            let (Some(windows), Some(first)) = (division.windows, kernels.first()) else { return 0.0 };
            let units = (division.blocks.div_ceil(factor) - 1) * windows.repeated;
            units as f64 / first.units as f64 * taken_us(first) / all_us
        };
        // The time of blocks that consist of so many of the finest, where 1 is that of threads that all work to the end.
        let time = |factor: u64| {
            let rounds = division.blocks.div_ceil(factor).div_ceil(self.threads);
            (rounds * self.threads * factor) as f64 / division.blocks as f64 + repeated(factor)
        };
        let shared = |factor: u64| division.blocks.div_ceil(factor) >= MIN_BLOCKS_PER_THREAD * self.threads;
        let factors = (least..=most).filter(|&factor| factor == least || shared(factor));
        let factor = factors.min_by(|&a, &b| time(a).total_cmp(&time(b)).then(b.cmp(&a)))?;
        let reads = |value| {
            let read = |k: &&KernelGrid<'_>| k.step.buffers.contains(&(value, false));
            kernels.iter().filter(read).count() as u64
        };
        // What is written is read before.
        let moved = |own: &LocalBuffer| {
            let bytes = self.bytes(own.value);
            let part = if bytes > self.threads * self.cache { 1.0 } else { CACHED };
            (bytes * (2 + reads(own.value))) as f64 * part
        };
        let moved: f64 = smallest.local_buffers.iter().map(moved).sum();
        let saved_us = moved / self.bytes_per_us + self.launch_us * (kernels.len() - 1) as f64;
        let blocks = division.blocks.div_ceil(factor) as f64;
        let lost_us = all_us * (time(factor) - 1.0 + IDLE_BLOCKS / blocks);
        if lost_us > saved_us {
            return Some(Err(OuterLoopRefusal::Few { saved_us, lost_us }));
        }
        let outer_loop = self.outer_loop(kernels, division, factor)?;
        Some(Ok(OuterLoop { saved_us: saved_us - lost_us, ..outer_loop }))
    }
}
