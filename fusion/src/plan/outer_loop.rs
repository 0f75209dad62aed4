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
//! Where a kernel reads windows of rows, as pooling does, two blocks need the rows between them. What is held a block at a
//! time may overlap: each block computes all that it reads of it, and no instance of another block would write there.
//!
//! ```text
//! kernel 0: %x[1,3,224,224] -> %h[1,64,112,112]    block 0: rows  0 to 15 of %h, rows 0 to  7 of %y
//! kernel 1: %h -> %y[1,64,56,56]             ->    block 1: rows 15 to 31 of %h, rows 8 to 15 of %y
//! ```

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::Program;
use tilefuse_block::bounds::{Accesses, Given, Reach};
use tilefuse_block::passes::cse;

use super::liveness::{self, last_uses};
use super::memory::{ALIGNMENT, Life, place};
use super::reinplace::direct;
use super::{KernelStep, Place, Plan, Profile, StepKind};
use crate::graph::ValueRef;
use crate::rewrites::Rewrites;
use crate::schedule::Machine;

/// Consecutive kernels that run over blocks of rows, each block through all of them on one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterLoop {
    /// Positions of the kernels in [`Plan::steps`].
    pub steps: Range<usize>,
    /// For each kernel the instances of each block.
    pub parts: Vec<Vec<Range<u64>>>,
    /// What is held a block at a time.
    pub local_buffers: Vec<LocalBuffer>,
    /// Bytes in which a thread holds these.
    pub thread_bytes: u64,
    /// How many threads that is for.
    pub threads: u64,
    /// Where the first thread's bytes begin in the arena; those of the others follow.
    pub at: u64,
    /// Predicted microseconds that it takes less.
    pub saved_us: f64,
}

/// A value of which each thread holds a block at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalBuffer {
    /// The value.
    pub value: ValueRef,
    /// Where it begins in a thread's memory, in bytes.
    pub offset: u64,
    /// For each block the byte of the value that is the first to be there.
    pub firsts: Vec<u64>,
}

/// Why kernels of which one reads much of what the other writes are no outer loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OuterLoopRefusal {
    /// Blocks of rows of one need rows of other blocks of the other.
    Rows,
    /// No block of rows is small enough for a thread's cache.
    Large {
        /// Bytes of what is held of the smallest block.
        bytes: u64,
    },
    /// It would hold more memory at a time than the graph may.
    Memory,
    /// Threads would wait for each other longer than the outer loop saves.
    Few {
        /// What would be saved, in microseconds.
        saved_us: f64,
        /// What threads would wait, in microseconds.
        lost_us: f64,
    },
    /// As many rewrites were made as may be.
    Limit,
}

impl std::fmt::Display for OuterLoopRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OuterLoopRefusal::Rows => f.write_str("the next kernel needs other rows"),
            OuterLoopRefusal::Large { bytes } => write!(f, "the smallest block of rows has {bytes} bytes"),
            OuterLoopRefusal::Memory => f.write_str("more memory would be held at a time"),
            OuterLoopRefusal::Limit => f.write_str("the number of rewrites is limited"),
            OuterLoopRefusal::Few { saved_us, lost_us } => write!(
                f,
                "predicted to save {saved_us:.0} us, while threads wait {lost_us:.0} us, with so few blocks"
            ),
        }
    }
}

impl LocalBuffer {
    /// For each block what is added to the address of a thread's memory for that from which its instances address the value,
    /// modulo 2^64: each byte lies to lines of the cache as it would in the whole.
    pub fn shifts(&self) -> Vec<u64> {
        self.firsts.iter().map(|first| (self.offset + first % LINE).wrapping_sub(*first)).collect()
    }
}

impl OuterLoop {
    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.parts.first().map_or(0, Vec::len)
    }

    /// Bytes in the arena.
    pub fn bytes(&self) -> u64 {
        self.thread_bytes * self.threads
    }
}

/// Bytes of a line of the cache: a block lies in a thread's memory as it would in the whole value.
const LINE: u64 = 64;

/// The most blocks of an outer loop.
const MOST_BLOCKS: u64 = 256;

/// Blocks of each thread that even out differences between threads.
const SHARES: u64 = 4;

/// Among so many kernels one reads what an earlier one has written: queries, keys and values are made before they are read.
const SOON: usize = 3;

/// So many instances and fewer write what follows each other, if they do not divide the grid: filters of some pixels.
const FEW: u64 = 16;

/// How long threads wait at the end for the one that is last, in blocks of all threads.
const WAITING: f64 = 0.25;

/// What moving a byte to or from the caches of other threads takes, in the time of one of memory.
const CACHED: f64 = 0.25;

/// What part of the caches of all threads a value takes that is worth an outer loop.
const WORTH: u64 = 4;

/// Gives a plan its outer loops and its memory; no outer loops where it would hold more than so many bytes with them and not without.
pub(super) fn finish(mut plan: Plan, profile: &Profile, most_bytes: u64, rewrites: &Rewrites) -> Plan {
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

/// Whether the blocks of an outer loop are all of its kernels' instances, reach nothing of each other's, and fit where they are
/// held.
pub(super) fn is_legal(plan: &Plan, outer_loop: &OuterLoop) -> bool {
    let mut finder = Finder::bare(plan);
    let kernels = outer_loop.steps.clone().map(|at| finder.kernel(at)).collect::<Option<Vec<_>>>();
    let Some(kernels) = kernels.filter(|k| k.len() == outer_loop.parts.len()) else { return false };
    let mut parts: Vec<Vec<Range<u64>>> = Vec::new();
    for (kernel, instances) in kernels.iter().zip(&outer_loop.parts) {
        let inside = |part: &Range<u64>| part.start <= part.end && part.end <= kernel.units * kernel.inner;
        let even = |part: &Range<u64>| {
            part.start.is_multiple_of(kernel.inner) && part.end.is_multiple_of(kernel.inner)
        };
        if instances.len() != outer_loop.blocks() || !instances.iter().all(|part| inside(part) && even(part))
        {
            return false;
        }
        let in_units = |part: &Range<u64>| part.start / kernel.inner..part.end / kernel.inner;
        parts.push(instances.iter().map(in_units).collect());
    }
    let held: Vec<ValueRef> = outer_loop.local_buffers.iter().map(|own| own.value).collect();
    let Some(reached) = finder.reached(&kernels, &parts, &held) else { return false };
    outer_loop.local_buffers.iter().all(|own| {
        let Some(blocks) = reached.get(&finder.class(own.value)) else { return false };
        let fits = |(block, &first): (&Range<u64>, &u64)| {
            let end = own.offset + first % LINE + block.end.saturating_sub(first);
            first <= block.start && end <= outer_loop.thread_bytes
        };
        own.firsts.len() == blocks.len() && blocks.iter().zip(&own.firsts).all(fits)
    })
}

/// A kernel and how its instances are divided.
#[derive(Clone, Copy)]
struct Divided<'p> {
    at: usize,
    step: &'p KernelStep,
    program: &'p Program,
    grid: [u32; 3],
    /// The axis along which they are divided.
    axis: usize,
    /// Instances along it.
    units: u64,
    /// Instances of each of them along the other axes.
    inner: u64,
}

/// How the kernels of an outer loop are divided at the finest.
struct Division {
    /// For each kernel the units of a block.
    units: Vec<u64>,
    /// How many blocks there are.
    blocks: u64,
    /// What the first of two kernels writes, where the second reads windows of it.
    windows: Option<Windows>,
}

/// A value that is written by one kernel and read in windows by the next.
#[derive(Clone, Copy, Debug)]
struct Windows {
    /// Which buffer of either kernel it is.
    written: usize,
    read: usize,
    /// So many units write these bytes, the next ones those that follow.
    group: u64,
    bytes: u64,
    /// Units that two neighbours both need.
    repeated: u64,
}

impl Division {
    /// Of how many of the finest a block consists at least.
    fn least_factor(&self) -> u64 {
        self.blocks.div_ceil(MOST_BLOCKS)
    }
}

/// For each value that an outer loop writes, or one that shares its memory, the bytes that each block reaches.
type Reached = FxHashMap<ValueRef, Vec<Range<u64>>>;

/// Program, grid, units, and which parameters are asked for.
type Question = (usize, [u32; 3], Range<u64>, Vec<bool>);

struct Finder<'p> {
    plan: &'p Plan,
    threads: u64,
    /// Bytes of a thread's own cache.
    cache: u64,
    /// Bytes that are moved in a microsecond.
    bytes_per_us: f64,
    launch_us: f64,
    last_uses: FxHashMap<ValueRef, usize>,
    /// For values that may share memory with others, one of these.
    classes: FxHashMap<ValueRef, ValueRef>,
    /// The plan's programs, each value of which is computed once.
    programs: FxHashMap<usize, Program>,
    /// What of these decides about accesses through the parameters that are asked for.
    accesses: FxHashMap<(usize, Vec<bool>), Accesses>,
    /// What units of a kernel reach of its buffers, in bytes, by program and grid.
    known: FxHashMap<Question, Vec<Reach>>,
}

impl<'p> Finder<'p> {
    fn new(plan: &'p Plan, profile: &Profile, threads: u64) -> Finder<'p> {
        let returned: FxHashSet<ValueRef> = plan.outputs.iter().map(Place::base).collect();
        Finder {
            threads: threads.max(1),
            cache: profile.cache,
            bytes_per_us: profile.bandwidth * 1000.0,
            launch_us: profile.launch_us,
            last_uses: last_uses(plan, &returned),
            ..Finder::bare(plan)
        }
    }

    fn bare(plan: &'p Plan) -> Finder<'p> {
        let mut finder = Finder {
            plan,
            threads: 1,
            cache: 0,
            bytes_per_us: 1.0,
            launch_us: 0.0,
            last_uses: FxHashMap::default(),
            classes: FxHashMap::default(),
            programs: FxHashMap::default(),
            accesses: FxHashMap::default(),
            known: FxHashMap::default(),
        };
        let in_place = plan.steps.iter().flat_map(|step| match &step.kind {
            StepKind::Kernel(kernel) => kernel.in_place.as_slice(),
            StepKind::Extern(_) => &[],
        });
        for (a, b) in in_place.copied().chain(direct(plan)) {
            let (a, b) = (finder.class(a), finder.class(b));
            if a != b {
                finder.classes.insert(a, b);
            }
        }
        finder
    }

    /// The one value for all that may share memory with this one.
    fn class(&self, mut value: ValueRef) -> ValueRef {
        while let Some(&next) = self.classes.get(&value) {
            value = next;
        }
        value
    }

    /// The bytes of a thread's cache in which it holds a block; beside them lies what else its kernels read.
    fn room(&self) -> u64 {
        self.cache / 4 * 3
    }

    fn bytes(&self, value: ValueRef) -> u64 {
        self.plan.graph.ty(value).bytes()
    }

    fn kernel(&self, at: usize) -> Option<Divided<'p>> {
        let StepKind::Kernel(step) = &self.plan.steps.get(at)?.kind else { return None };
        let program = self.plan.programs.get(step.program)?;
        let mut grid = [0; 3];
        for (extent, &n) in grid.iter_mut().zip(&step.grid) {
            *extent = u32::try_from(n).ok().filter(|&n| n > 0)?;
        }
        let axis = (0..3).rev().find(|&axis| grid[axis] > 1).unwrap_or(0);
        let inner = grid[..axis].iter().map(|&n| u64::from(n)).product();
        Some(Divided { at, step, program, grid, axis, units: grid[axis].into(), inner })
    }

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

    /// The finest blocks that consist of whole units of every kernel.
    fn division(&mut self, kernels: &[Divided<'p>]) -> Option<Division> {
        let even = self.even_division(kernels).filter(|division| {
            let parts = self.parts(kernels, division, division.least_factor());
            parts.is_some_and(|parts| self.reached(kernels, &parts, &[]).is_some())
        });
        match (even, kernels) {
            (Some(even), _) => Some(even),
            (None, [first, second]) => self.windows(first, second),
            _ => None,
        }
    }

    /// Whether kernels write much of something that a step reads, or one of the kernels soon after it.
    fn feeds(&self, kernels: &[Divided<'_>], to: usize) -> bool {
        let much = |value| self.bytes(value) >= self.threads * self.cache / WORTH;
        let written = |value| kernels.iter().any(|k| k.step.buffers.contains(&(value, true)));
        let next = (to..to + SOON).map_while(|at| self.kernel(at));
        next.flat_map(|k| &k.step.buffers)
            .any(|&(value, is_written)| !is_written && much(value) && written(value))
    }

    /// Blocks in which units of kernels are to each other as the parts that they write of what these write in all.
    fn even_division(&mut self, kernels: &[Divided<'p>]) -> Option<Division> {
        let mut written: Vec<(u128, u128)> = Vec::with_capacity(kernels.len());
        let mut groups = Vec::with_capacity(kernels.len());
        for kernel in kernels {
            let position = kernel.step.buffers.iter().position(|b| b.1)?;
            let (group, end) = self.first_group(kernel, position)?;
            written.push((end, self.bytes(kernel.step.buffers.get(position)?.0).into()));
            groups.push(group);
        }
        let all = written.iter().try_fold(1, |all, &(_, bytes)| lcm(all, bytes))?;
        let sizes = written.iter().map(|&(unit, bytes)| unit.checked_mul(all / bytes));
        let sizes = sizes.collect::<Option<Vec<u128>>>()?;
        let block = sizes.iter().try_fold(1, |block, &size| lcm(block, size))?;
        let units = sizes
            .iter()
            .zip(groups)
            .map(|(&size, group)| group.checked_mul(u64::try_from(block / size).ok()?));
        let units = units.collect::<Option<Vec<u64>>>()?;
        let mut counts = kernels.iter().zip(&units).map(|(k, &units)| k.units.div_ceil(units));
        let blocks = counts.next()?;
        (blocks > 1 && counts.all(|count| count == blocks)).then_some(Division {
            units,
            blocks,
            windows: None,
        })
    }

    /// The fewest units that write a part of a value on their own, and its end in bytes: the first of a member of a batch
    /// may write some columns, and those of all heads its rows.
    fn first_group(&mut self, kernel: &Divided<'p>, buffer: usize) -> Option<(u64, u128)> {
        let asked: Vec<bool> = (0..=buffer).map(|at| at == buffer).collect();
        let first = *self.reach(kernel, 0..1, &asked).get(buffer)?;
        let value = kernel.step.buffers.get(buffer)?.0;
        let Reach::Between(0, end) = first else { return None };
        // As many as the first one's part of the whole: it spans the columns of its neighbours.
        let spanned =
            u64::try_from((end as u128 * u128::from(kernel.units)).div_ceil(self.bytes(value).into()))
                .ok()?;
        for group in [1, spanned].into_iter().filter(|group| 2 * group <= kernel.units) {
            let first = *self.reach(kernel, 0..group, &asked).get(buffer)?;
            let second = *self.reach(kernel, group..2 * group, &asked).get(buffer)?;
            match (first, second) {
                (Reach::Between(0, end), Reach::Between(next, _)) if next == end => {
                    return Some((group, end as u128));
                }
                _ => {}
            }
        }
        None
    }

    /// Blocks of two kernels of which the second reads windows of what the first writes, where nothing else needs that.
    fn windows(&mut self, first: &Divided<'p>, second: &Divided<'p>) -> Option<Division> {
        let mut outputs = first.step.buffers.iter().enumerate().filter(|(_, b)| b.1);
        let (written, &(value, _)) = outputs.next().filter(|_| outputs.next().is_none())?;
        let read = second.step.buffers.iter().position(|&b| b == (value, false))?;
        // To compute rows twice takes as long as to bring them from another thread's cache.
        let cached = self.bytes(value) <= self.threads * self.cache;
        if cached || self.last_uses.get(&value) != Some(&second.at) {
            return None;
        }
        let result = second.step.buffers.iter().position(|b| b.1)?;
        let (units, _) = self.first_group(second, result)?;
        let blocks = second.units.div_ceil(units);
        // The fewest of the first kernel's units that write as many bytes each time but the last, what is before them before
        // and what is behind them behind.
        let asked: Vec<bool> = (0..=written).map(|at| at == written).collect();
        let all = i128::from(self.bytes(value));
        let likely = |&group: &u64| group <= FEW || first.units.is_multiple_of(group);
        let (group, bytes) = (1..=first.units / 2).filter(likely).find_map(|group| {
            let Reach::Between(0, bytes) = self.reach_of(first, 0..group, &asked) else { return None };
            let count = first.units.div_ceil(group);
            let is_even = bytes * i128::from(count - 1) < all && all <= bytes * i128::from(count);
            let mut bounds =
                [1, count / 2, count - 1].into_iter().map(|at| (at * group, bytes * i128::from(at)));
            let apart = is_even.then(|| {
                bounds.all(|(unit, begin)| {
                    let before = self.reach_of(first, 0..unit, &asked);
                    let behind = self.reach_of(first, unit..first.units, &asked);
                    before == Reach::Between(0, begin) && behind == Reach::Between(begin, all)
                })
            })?;
            apart.then_some((group, u64::try_from(bytes).ok()?))
        })?;
        let windows = Windows { written, read, group, bytes, repeated: 0 };
        // A few blocks show what others are like.
        let readers: Vec<Range<u64>> =
            (0..blocks.min(3)).map(|at| at * units..((at + 1) * units).min(second.units)).collect();
        let writers = readers.iter().map(|units| self.needed(first, second, windows, units.clone()));
        let writers = writers.collect::<Option<Vec<_>>>()?;
        let repeated = writers.windows(2).map(|two| two[0].end.saturating_sub(two[1].start)).max()?;
        let windows = Some(Windows { repeated, ..windows });
        let computed = self.is_computed(value, &[*first, *second], &[writers, readers]);
        computed.then_some(Division { units: vec![group, units], blocks, windows })
    }

    /// The units of a kernel that write what units of the next one read.
    fn needed(
        &mut self,
        first: &Divided<'p>,
        second: &Divided<'p>,
        windows: Windows,
        units: Range<u64>,
    ) -> Option<Range<u64>> {
        let asked: Vec<bool> = (0..=windows.read).map(|at| at == windows.read).collect();
        let Reach::Between(lo, hi) = self.reach_of(second, units, &asked) else { return None };
        let (lo, hi) = (u64::try_from(lo).ok()?, u64::try_from(hi).ok()?);
        let end = hi.div_ceil(windows.bytes) * windows.group;
        Some(lo / windows.bytes * windows.group..end.min(first.units))
    }

    /// The units of each kernel in blocks of so many of the finest.
    fn parts(
        &mut self,
        kernels: &[Divided<'p>],
        division: &Division,
        factor: u64,
    ) -> Option<Vec<Vec<Range<u64>>>> {
        let blocks = division.blocks.div_ceil(factor);
        let part = |(kernel, &units): (&Divided<'_>, &u64)| -> Vec<Range<u64>> {
            let bound = |block: u64| (block * factor * units).min(kernel.units);
            (0..blocks).map(|block| bound(block)..bound(block + 1)).collect()
        };
        let mut parts: Vec<Vec<Range<u64>>> = kernels.iter().zip(&division.units).map(part).collect();
        if let (Some(windows), [first, second], [writers, readers]) =
            (division.windows, kernels, parts.as_mut_slice())
        {
            for (writer, reader) in writers.iter_mut().zip(readers) {
                *writer = self.needed(first, second, windows, reader.clone())?;
            }
        }
        Some(parts)
    }

    /// What units of a kernel reach of the parameters that are asked for, in bytes; the end is that of the last element.
    fn reach(&mut self, kernel: &Divided<'_>, units: Range<u64>, asked: &[bool]) -> &[Reach] {
        let last = asked.iter().rposition(|&asked| asked);
        let asked = asked.get(..last.map_or(0, |last| last + 1)).unwrap_or_default();
        let (accesses, programs) = (&mut self.accesses, &mut self.programs);
        self.known.entry((kernel.step.program, kernel.grid, units.clone(), asked.to_vec())).or_insert_with(
            || {
                let params = &kernel.program.params;
                if units.is_empty() {
                    return vec![Reach::Nothing; params.len()];
                }
                let accesses = accesses.entry((kernel.step.program, asked.to_vec())).or_insert_with(|| {
                    let simple = programs.entry(kernel.step.program).or_insert_with(|| {
                        let mut simple = kernel.program.clone();
                        cse(&mut simple);
                        simple
                    });
                    Accesses::of(simple, asked.to_vec())
                });
                let mut part = kernel.grid.map(|extent| 0..extent);
                part[kernel.axis] = units.start as u32..units.end as u32;
                let given: Vec<Given> =
                    params.iter().map(|param| Given::Elements(param.len.unwrap_or(u64::MAX))).collect();
                let reached = accesses.reach(kernel.grid, part, &given);
                let in_bytes = |(param, reach): (&tilefuse_block::Param, Reach)| {
                    let elem = kernel.program.ty(param.value).pointee();
                    match (reach, elem.map(|e| i128::from(e.bytes()))) {
                        (Reach::Nothing, _) => Reach::Nothing,
                        (Reach::Between(lo, hi), Some(bytes)) if lo >= 0 => {
                            Reach::Between(lo * bytes, (hi + 1) * bytes)
                        }
                        _ => Reach::Anything,
                    }
                };
                params.iter().zip(reached).map(in_bytes).collect()
            },
        )
    }

    /// What units of a kernel reach of all that is asked for.
    fn reach_of(&mut self, kernel: &Divided<'_>, units: Range<u64>, asked: &[bool]) -> Reach {
        let reached = self.reach(kernel, units, asked).iter().zip(asked).filter(|(_, asked)| **asked);
        reached.fold(Reach::Nothing, |all, (&reach, _)| all.hull(reach))
    }

    /// What each block reaches of what the kernels write; nothing where one may reach what another does, of anything but
    /// values that are held a block at a time and that each block computes as far as it reads them. Each instance that
    /// writes anything else is of exactly one block.
    fn reached(
        &mut self,
        kernels: &[Divided<'p>],
        parts: &[Vec<Range<u64>>],
        held: &[ValueRef],
    ) -> Option<Reached> {
        let blocks = parts.first()?.len();
        let mut found = Reached::default();
        for (value, _) in kernels.iter().flat_map(|k| &k.step.buffers).filter(|b| b.1) {
            found.insert(self.class(*value), Vec::with_capacity(blocks));
        }
        let mut apart: FxHashSet<ValueRef> = FxHashSet::default();
        for (kernel, parts) in kernels.iter().zip(parts) {
            let follow = parts.windows(2).all(|two| two[0].end == two[1].start);
            let ends = (parts.first().map(|p| p.start), parts.last().map(|p| p.end));
            if !follow || ends != (Some(0), Some(kernel.units)) {
                let written = kernel.step.buffers.iter().filter(|b| b.1);
                apart.extend(written.map(|b| b.0));
            }
        }
        for &value in &apart {
            if !held.contains(&value) || !self.is_computed(value, kernels, parts) {
                return None;
            }
        }
        let apart: FxHashSet<ValueRef> = apart.into_iter().map(|value| self.class(value)).collect();
        for block in 0..blocks {
            let mut hulls: FxHashMap<ValueRef, Reach> = FxHashMap::default();
            for (kernel, parts) in kernels.iter().zip(parts) {
                let classes: Vec<ValueRef> = kernel.step.buffers.iter().map(|b| self.class(b.0)).collect();
                let asked: Vec<bool> = classes.iter().map(|class| found.contains_key(class)).collect();
                let reached = self.reach(kernel, parts.get(block)?.clone(), &asked);
                for ((class, &reach), asked) in classes.iter().zip(reached).zip(asked) {
                    if asked {
                        let hull = hulls.entry(*class).or_insert(Reach::Nothing);
                        *hull = hull.hull(reach);
                    }
                }
            }
            for (class, ranges) in &mut found {
                let end = ranges.last().map_or(0, |range| range.end);
                match hulls.get(class) {
                    None | Some(Reach::Nothing) => ranges.push(end..end),
                    Some(&Reach::Between(lo, hi)) if lo >= i128::from(end) || apart.contains(class) => {
                        ranges.push(lo as u64..u64::try_from(hi).ok()?);
                    }
                    Some(_) => return None,
                }
            }
        }
        Some(found)
    }

    /// Whether one kernel writes a value, which shares its memory with none that these kernels use, and the instances of
    /// no other block would write what a block reads of it.
    fn is_computed(&mut self, value: ValueRef, kernels: &[Divided<'p>], parts: &[Vec<Range<u64>>]) -> bool {
        let class = self.class(value);
        let shares =
            |k: &Divided<'_>| k.step.buffers.iter().any(|b| b.0 != value && self.class(b.0) == class);
        let mut writers = kernels.iter().enumerate().filter(|(_, k)| k.step.buffers.contains(&(value, true)));
        let (Some((at, writer)), None) = (writers.next(), writers.next()) else { return false };
        if kernels.iter().any(shares) {
            return false;
        }
        // Its own part of what it reads is not what it writes.
        if writer.step.buffers.contains(&(value, false)) {
            return false;
        }
        let through = |k: &Divided<'_>, written| -> Vec<bool> {
            k.step.buffers.iter().map(|&b| b == (value, written)).collect()
        };
        let Some(computed) = parts.get(at) else { return false };
        for (block, own) in computed.iter().enumerate() {
            let mut read = Reach::Nothing;
            for (kernel, parts) in kernels.iter().zip(parts) {
                let asked = through(kernel, false);
                let Some(part) = parts.get(block).filter(|_| asked.contains(&true)) else { continue };
                read = read.hull(self.reach_of(kernel, part.clone(), &asked));
            }
            let (lo, hi) = match read {
                Reach::Nothing => continue,
                Reach::Between(lo, hi) => (lo, hi),
                Reach::Anything => return false,
            };
            for others in [0..own.start, own.end..writer.units] {
                let apart = match self.reach_of(writer, others, &through(writer, true)) {
                    Reach::Nothing => true,
                    Reach::Between(first, end) => end <= lo || first >= hi,
                    Reach::Anything => false,
                };
                if !apart {
                    return false;
                }
            }
        }
        true
    }

    /// The outer loop in blocks as even and as large as fit a thread's cache.
    fn priced(
        &mut self,
        kernels: &[Divided<'p>],
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
        let taken_us = |k: &Divided<'_>| k.step.predicted_us;
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
        let shared = |factor: u64| division.blocks.div_ceil(factor) >= SHARES * self.threads;
        let factors = (least..=most).filter(|&factor| factor == least || shared(factor));
        let factor = factors.min_by(|&a, &b| time(a).total_cmp(&time(b)).then(b.cmp(&a)))?;
        let reads = |value| {
            let read = |k: &&Divided<'_>| k.step.buffers.contains(&(value, false));
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
        let lost_us = all_us * (time(factor) - 1.0 + WAITING / blocks);
        if lost_us > saved_us {
            return Some(Err(OuterLoopRefusal::Few { saved_us, lost_us }));
        }
        let outer_loop = self.outer_loop(kernels, division, factor)?;
        Some(Ok(OuterLoop { saved_us: saved_us - lost_us, ..outer_loop }))
    }

    /// The outer loop in blocks that consist of so many of the finest.
    fn outer_loop(&mut self, kernels: &[Divided<'p>], division: &Division, factor: u64) -> Option<OuterLoop> {
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
        let instances = |(kernel, parts): (&Divided<'_>, Vec<Range<u64>>)| {
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

fn lcm(a: u128, b: u128) -> Option<u128> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a.checked_div(x)?.checked_mul(b)
}
