//! Whether blocks of rows are independent of each other: what their instances reach of what is written.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::bounds::{Accesses, Given, Reach};
use tilefuse_block::passes::cse;

use super::super::ir::{LINE, OuterLoop, Plan};
use super::finder::{Finder, KernelGrid};
use crate::graph::ValueRef;

/// For each value that an outer loop writes, or one that shares its memory, the bytes that each block reaches.
pub(super) type Reached = FxHashMap<ValueRef, Vec<Range<u64>>>;

/// Whether the blocks of an outer loop are all of its kernels' instances, reach nothing of each other's, and fit where they are
/// held.
pub(in super::super) fn is_legal(plan: &Plan, outer_loop: &OuterLoop) -> bool {
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

impl<'p> Finder<'p> {
    /// What units of a kernel reach of the parameters that are asked for, in bytes; the end is that of the last element.
    pub(super) fn reach(&mut self, kernel: &KernelGrid<'_>, units: Range<u64>, asked: &[bool]) -> &[Reach] {
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
    pub(super) fn reach_of(&mut self, kernel: &KernelGrid<'_>, units: Range<u64>, asked: &[bool]) -> Reach {
        let reached = self.reach(kernel, units, asked).iter().zip(asked).filter(|(_, asked)| **asked);
        reached.fold(Reach::Nothing, |all, (&reach, _)| all.hull(reach))
    }

    /// What each block reaches of what the kernels write; nothing where one may reach what another does, of anything but
    /// values that are held a block at a time and that each block computes as far as it reads them. Each instance that
    /// writes anything else is of exactly one block.
    pub(super) fn reached(
        &mut self,
        kernels: &[KernelGrid<'p>],
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
    pub(super) fn is_computed(
        &mut self,
        value: ValueRef,
        kernels: &[KernelGrid<'p>],
        parts: &[Vec<Range<u64>>],
    ) -> bool {
        let class = self.class(value);
        let shares =
            |k: &KernelGrid<'_>| k.step.buffers.iter().any(|b| b.0 != value && self.class(b.0) == class);
        let mut writers = kernels.iter().enumerate().filter(|(_, k)| k.step.buffers.contains(&(value, true)));
        let (Some((at, writer)), None) = (writers.next(), writers.next()) else { return false };
        if kernels.iter().any(shares) {
            return false;
        }
        // Its own part of what it reads is not what it writes.
        if writer.step.buffers.contains(&(value, false)) {
            return false;
        }
        let through = |k: &KernelGrid<'_>, written| -> Vec<bool> {
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
}
