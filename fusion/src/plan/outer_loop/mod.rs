//! Outer loops of kernels that run over blocks of rows.
//!
//! ```text
//! kernel 0: %x[4096,768] -> %h[4096,3072]          block 0: rows    0 to  127 of %h, then of %y, then of %z
//! kernel 1: %h -> %y[4096,768]               ->    block 1: rows  128 to  255 of %h, then of %y, then of %z
//! kernel 2: %y -> %z[4096,768]                     ...
//! ```
//!
//! A thread takes a block through all kernels of an outer loop before it takes the next one, so that it finds in its own cache
//! what it wrote there. What only the outer loop needs is held a block at a time, in memory that a thread uses for all its
//! blocks.
//!
//! Each kernel's instances are divided along the outermost axis of its grid that has several. An outer loop is legal where no block
//! reaches what another one does of anything that the outer loop writes: [`Accesses::reach`] says what instances reach. Instances
//! compute what they do in any order, so that results do not depend on it.
//!
//! [`Accesses::reach`]: tilefuse_block::bounds::Accesses::reach
//!
//! Where a kernel reads windows of rows, as pooling does, two blocks need the rows between them. What is held a block at a
//! time may overlap: each block computes all that it reads of it, and no instance of another block would write there.
//!
//! ```text
//! kernel 0: %x[1,3,224,224] -> %h[1,64,112,112]    block 0: rows  0 to 15 of %h, rows 0 to  7 of %y
//! kernel 1: %h -> %y[1,64,56,56]             ->    block 1: rows 15 to 31 of %h, rows 8 to 15 of %y
//! ```

mod division;
mod finder;
mod legal;
mod profit;

use std::ops::Range;

use self::division::Division;
use self::finder::{Finder, KernelGrid};
pub(super) use self::legal::is_legal;
use super::ir::{LINE, LocalBuffer, OuterLoop, Plan};
use super::liveness;
use super::memory::{ALIGNMENT, Life, place};
use super::reasons::OuterLoopRefusal;
use crate::graph::ValueRef;
use crate::machine::{Machine, Profile};
use crate::rewrite_limit::Rewrites;

/// Among so many kernels one reads what an earlier one has written: queries, keys and values are made before they are read.
const MAX_READER_DISTANCE: usize = 3;

/// What part of the caches of all threads a value takes that is worth an outer loop.
const MIN_CACHE_SHARE: u64 = 4;

/// The pass `outer-loop-fusion`: gives a plan its outer loops and its memory; no outer loops where it would hold more than so many
/// bytes with them and not without.
pub(crate) fn fuse_outer_loops(
    mut plan: Plan,
    profile: &Profile,
    most_bytes: u64,
    rewrites: &Rewrites,
) -> Plan {
    find(&mut plan, profile, rewrites);
    let plan = liveness::finish(plan);
    if plan.outer_loops.is_empty() || plan.clone().holds_at_most(most_bytes) {
        return plan;
    }
    let mut apart = plan.clone();
    let begun =
        apart.outer_loops.drain(..).map(|outer_loop| (outer_loop.steps.start, OuterLoopRefusal::Memory));
    apart.outer_loop_refusals.extend(begun);
    apart.outer_loop_refusals.sort_by_key(|(at, _)| *at);
    let apart = liveness::finish(apart);
    let (mut a, mut b) = (plan.clone(), apart.clone());
    a.limit_memory(most_bytes);
    b.limit_memory(most_bytes);
    if b.peak_bytes() < a.peak_bytes() { apart } else { plan }
}

/// Finds the outer loops of a plan, and for each kernel that might have begun one why it did not.
fn find(plan: &mut Plan, profile: &Profile, rewrites: &Rewrites) {
    let Machine::Host { threads } = profile.machine else { return };
    let mut finder = Finder::new(plan, profile, threads.into());
    let (mut outer_loops, mut outer_loop_refusals) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < plan.steps.len() {
        match finder.outer_loop_from(at) {
            Some(Ok(outer_loop)) if rewrites.allow("outer-loop-fusion") => {
                at = outer_loop.steps.end;
                outer_loops.push(outer_loop);
                continue;
            }
            Some(Err(reason)) => outer_loop_refusals.push((at, reason)),
            Some(Ok(_)) => outer_loop_refusals.push((at, OuterLoopRefusal::Limit)),
            None => {}
        }
        at += 1;
    }
    (plan.outer_loops, plan.outer_loop_refusals) = (outer_loops, outer_loop_refusals);
}

impl<'p> Finder<'p> {
    /// The outer loop that begins with a step, or why it does not; nothing where there would be nothing to gain.
    fn outer_loop_from(&mut self, at: usize) -> Option<Result<OuterLoop, OuterLoopRefusal>> {
        let mut kernels = vec![self.kernel(at)?];
        if !self.feeds(&kernels, at + 1) {
            return None;
        }
        let mut best = None;
        while let Some(next) = self.kernel(at + kernels.len()).filter(|k| self.feeds(&kernels, k.at)) {
            kernels.push(next);
            let Some(division) = self.division(&kernels) else { break };
            let outer_loop = self.outer_loop(&kernels, &division, division.least_factor());
            let Some(outer_loop) = outer_loop.filter(|c| c.thread_bytes <= self.room() || best.is_none())
            else {
                break;
            };
            best = Some(division);
            // Windows are of two kernels.
            if outer_loop
                .parts
                .first()
                .is_some_and(|parts| parts.windows(2).any(|two| two[0].end > two[1].start))
            {
                break;
            }
        }
        let Some(division) = best else { return Some(Err(OuterLoopRefusal::Rows)) };
        kernels.truncate(division.units.len());
        self.priced(&kernels, &division)
    }

    /// Whether kernels write much of something that a step reads, or one of the kernels soon after it.
    fn feeds(&self, kernels: &[KernelGrid<'_>], to: usize) -> bool {
        let much = |value| self.bytes(value) >= self.threads * self.cache / MIN_CACHE_SHARE;
        let written = |value| kernels.iter().any(|k| k.step.buffers.contains(&(value, true)));
        let next = (to..to + MAX_READER_DISTANCE).map_while(|at| self.kernel(at));
        next.flat_map(|k| &k.step.buffers)
            .any(|&(value, is_written)| !is_written && much(value) && written(value))
    }

    /// The outer loop in blocks that consist of so many of the finest.
    fn outer_loop(
        &mut self,
        kernels: &[KernelGrid<'p>],
        division: &Division,
        factor: u64,
    ) -> Option<OuterLoop> {
        let parts = self.parts(kernels, division, factor)?;
        let (first, end) = (kernels.first()?.at, kernels.last()?.at + 1);
        let windows = division.windows.and_then(|w| kernels.first()?.step.buffers.get(w.written));
        let in_windows: Vec<ValueRef> = windows.iter().map(|b| b.0).collect();
        let reached = self.reached(kernels, &parts, &in_windows)?;
        let (mut local_buffers, mut lives) = (Vec::new(), Vec::new());
        for (position, kernel) in kernels.iter().enumerate() {
            for &(value, _) in kernel.step.buffers.iter().filter(|b| b.1) {
                let last = self.last_uses.get(&value).copied().unwrap_or(usize::MAX);
                let Some(blocks) = reached.get(&self.class(value)).filter(|_| last < end) else { continue };
                let bytes = blocks.iter().map(|block| block.end - block.start).max()? + LINE;
                lives.push(Life { bytes, first: position, last: last - first });
                let firsts = blocks.iter().map(|block| block.start).collect();
                local_buffers.push(LocalBuffer { value, offset: 0, firsts });
            }
        }
        let (thread_bytes, offsets) = place(&lives);
        local_buffers.iter_mut().zip(offsets).for_each(|(own, offset)| own.offset = offset);
        let instances = |(kernel, parts): (&KernelGrid<'_>, Vec<Range<u64>>)| {
            parts.iter().map(|units| units.start * kernel.inner..units.end * kernel.inner).collect()
        };
        Some(OuterLoop {
            steps: first..end,
            parts: kernels.iter().zip(parts).map(instances).collect(),
            local_buffers,
            thread_bytes: thread_bytes.next_multiple_of(ALIGNMENT),
            threads: self.threads,
            at: 0,
            saved_us: 0.0,
        })
    }
}
