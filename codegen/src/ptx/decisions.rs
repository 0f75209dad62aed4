//! What is decided while code is written, by the operation that the code is for.

use tilefuse_block::Op;

use super::barrier::BarrierReason;
use super::convert_layout::Conversion;
use super::shared::Allocation;

/// Entries by operation, in the order in which they were made.
pub(crate) struct Table<T>(Vec<(*const Op, T)>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    /// The entries of an operation.
    pub(crate) fn of(&self, op: &Op) -> impl Iterator<Item = &T> {
        let op = std::ptr::from_ref(op);
        self.0.iter().filter(move |(key, _)| *key == op).map(|(_, entry)| entry)
    }

    /// How many entries there are of some kind.
    pub(crate) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.0.iter().filter(|(_, entry)| is(entry)).count()
    }
}

/// The tables of the passes that decide while code is written.
pub(crate) struct Decisions {
    now: *const Op,
    pub(crate) conversions: Table<Conversion>,
    pub(crate) allocations: Table<Allocation>,
    pub(crate) barriers: Table<BarrierReason>,
}

impl Default for Decisions {
    fn default() -> Self {
        Decisions {
            now: std::ptr::null(),
            conversions: Table::default(),
            allocations: Table::default(),
            barriers: Table::default(),
        }
    }
}

impl Decisions {
    /// From here on, code is written for `op`; what it was written for before.
    pub(crate) fn enter(&mut self, op: *const Op) -> *const Op {
        std::mem::replace(&mut self.now, op)
    }

    pub(crate) fn convert(&mut self, conversion: Conversion) {
        self.conversions.0.push((self.now, conversion));
    }

    pub(crate) fn allocate(&mut self, allocation: Allocation) {
        self.allocations.0.push((self.now, allocation));
    }

    pub(crate) fn wait(&mut self, why: BarrierReason) {
        self.barriers.0.push((self.now, why));
    }
}

/// Notes, each once, with the number of times where that is more than one.
pub(super) fn counted(notes: impl Iterator<Item = String>) -> Vec<String> {
    let mut out: Vec<(String, u32)> = Vec::new();
    for note in notes {
        match out.iter_mut().find(|(other, _)| *other == note) {
            Some((_, count)) => *count += 1,
            None => out.push((note, 1)),
        }
    }
    let times = |(note, count)| if count == 1 { note } else { format!("{note}, {count} times") };
    out.into_iter().map(times).collect()
}
