//! How the kernels of an outer loop are divided into blocks.

use std::ops::Range;

use tilefuse_block::bounds::Reach;

use super::finder::{Finder, KernelGrid};

/// So many instances and fewer write what follows each other, if they do not divide the grid: filters of some pixels.
const MAX_UNEVEN_GROUP: u64 = 16;

/// The most blocks of an outer loop.
const MAX_BLOCKS: u64 = 256;

/// How the kernels of an outer loop are divided at the finest.
pub(super) struct Division {
    /// For each kernel the units of a block.
    pub(super) units: Vec<u64>,
    /// How many blocks there are.
    pub(super) blocks: u64,
    /// What the first of two kernels writes, where the second reads windows of it.
    pub(super) windows: Option<Windows>,
}

/// A value that is written by one kernel and read in windows by the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// Which buffer of either kernel it is.
    pub(super) written: usize,
    read: usize,
    /// So many units write these bytes, the next ones those that follow.
    group: u64,
    bytes: u64,
    /// Units that two neighbours both need.
    pub(super) repeated: u64,
}

impl Division {
    /// Of how many of the finest a block consists at least.
    pub(super) fn least_factor(&self) -> u64 {
        self.blocks.div_ceil(MAX_BLOCKS)
    }
}

impl<'p> Finder<'p> {
    /// The finest blocks that consist of whole units of every kernel.
    pub(super) fn division(&mut self, kernels: &[KernelGrid<'p>]) -> Option<Division> {
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

    /// Blocks in which units of kernels are to each other as the parts that they write of what these write in all.
    fn even_division(&mut self, kernels: &[KernelGrid<'p>]) -> Option<Division> {
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
    fn first_group(&mut self, kernel: &KernelGrid<'p>, buffer: usize) -> Option<(u64, u128)> {
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
    fn windows(&mut self, first: &KernelGrid<'p>, second: &KernelGrid<'p>) -> Option<Division> {
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
        // and what is after them after.
        let asked: Vec<bool> = (0..=written).map(|at| at == written).collect();
        let all = i128::from(self.bytes(value));
        let likely = |&group: &u64| group <= MAX_UNEVEN_GROUP || first.units.is_multiple_of(group);
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
        first: &KernelGrid<'p>,
        second: &KernelGrid<'p>,
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
    pub(super) fn parts(
        &mut self,
        kernels: &[KernelGrid<'p>],
        division: &Division,
        factor: u64,
    ) -> Option<Vec<Vec<Range<u64>>>> {
        let blocks = division.blocks.div_ceil(factor);
        let part = |(kernel, &units): (&KernelGrid<'_>, &u64)| -> Vec<Range<u64>> {
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
}

fn lcm(a: u128, b: u128) -> Option<u128> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a.checked_div(x)?.checked_mul(b)
}
