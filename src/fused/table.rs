//! The plans of a model by signature.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tch::Tensor;

use super::Unfused;
use crate::engine::{Addresses, Audits, Call, Compiled, Signature, Tensors};
use crate::torch::GlobalState;

/// What a signature compiled to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A plan.
    Plan(Box<Compiled>, Audits),
    /// It runs eager, for this reason.
    Eager(String),
    /// A plan that leaves more to libtorch than it may.
    Unfused(Box<Unfused>),
}

/// A signature.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signature: Signature,
    pub(crate) outcome: Outcome,
    /// By the table's clock.
    last_used: AtomicU64,
    /// Calls that its plan answered, up to [`Entry::WORTHWHILE`].
    answered: AtomicU64,
    /// Plans before it in turn that stood for the model for fewer calls than that.
    short_lived: u64,
}

impl Entry {
    /// Calls after which a plan was worth compiling.
    const WORTHWHILE: u64 = 8;

    /// Plans in turn that were not, after which a signature runs eager.
    pub(crate) const MAX_SHORT_LIVED: u64 = 8;

    pub(crate) fn new(signature: Signature, outcome: Outcome, short_lived: u64) -> Arc<Entry> {
        let zero = || AtomicU64::new(0);
        Arc::new(Entry { signature, outcome, last_used: zero(), answered: zero(), short_lived })
    }

    /// Notes that its plan answered a call.
    pub(crate) fn count_call(&self) {
        if self.answered.load(Ordering::Relaxed) < Self::WORTHWHILE {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The plans in turn that stood for the model for few calls, where this one does no more.
    pub(crate) fn short_lived(&self) -> u64 {
        if self.answered.load(Ordering::Relaxed) < Self::WORTHWHILE { self.short_lived + 1 } else { 0 }
    }

    fn plan(&self) -> Option<&Compiled> {
        match &self.outcome {
            Outcome::Plan(compiled, _) => Some(compiled),
            Outcome::Eager(_) | Outcome::Unfused(_) => None,
        }
    }
}

/// The signatures of a model that were called.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: RwLock<Vec<Arc<Entry>>>,
    /// How often another signature than the one before was used.
    clock: AtomicU64,
    /// Plans that were dropped for others before they were worth compiling, less those that were dropped after; no more than
    /// [`Table::MAX_CROWDED`].
    crowded: AtomicU64,
    /// Calls of new signatures that were turned away since one was compiled.
    turned_away: AtomicU64,
}

impl Table {
    /// For so many plans that were dropped too early, half as many calls of new signatures are compiled.
    const HALVING: u64 = 8;

    /// From here on, one of 32 is: others may come from now on.
    const MAX_CROWDED: u64 = 5 * Self::HALVING;

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Entry>>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Entry>>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a call's signature; `data` then holds the addresses of the inputs.
    pub(crate) fn find(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        call: &Call<'_>,
        data: &mut Addresses,
    ) -> Option<Arc<Entry>> {
        let entries = self.read();
        let entry = entries.iter().find(|e| e.signature.matches(inputs, state, call, data))?;
        // The one that was used last stays that.
        if entry.last_used.load(Ordering::Relaxed) != self.clock.load(Ordering::Relaxed) {
            entry.last_used.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        Some(Arc::clone(entry))
    }

    /// Whether a call of a signature that is not there is to be compiled, where `most` are kept. Where more of them come in turn, each would
    /// drop the one that is needed next: those that are there stay, and few are exchanged.
    pub(crate) fn admits(&self, most: usize) -> bool {
        let one_of = 1 << (self.crowded.load(Ordering::Relaxed) / Self::HALVING);
        if one_of == 1 || self.read().len() < most {
            return true;
        }
        let is_next = self.turned_away.fetch_add(1, Ordering::Relaxed) + 1 >= one_of;
        if is_next {
            self.turned_away.store(0, Ordering::Relaxed);
        }
        is_next
    }

    /// The guard of the plan that was used last that a call does not pass; `None` where there is no plan.
    pub(crate) fn missed(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        call: &Call<'_>,
    ) -> Option<(String, String, String)> {
        let entries = self.read();
        let last = entries.iter().max_by_key(|entry| entry.last_used.load(Ordering::Relaxed))?;
        last.signature.difference(inputs, state, call)
    }

    /// Adds an entry, in place of `old` where that is still there, and drops those that were not used for longest where
    /// there are more than `most`; how many. The plans' handles of parameters and `named` are counted again.
    pub(crate) fn insert(
        &self,
        entry: Arc<Entry>,
        old: Option<&Arc<Entry>>,
        most: usize,
        named: &Tensors,
    ) -> usize {
        entry.last_used.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut evicted = Vec::new();
        let mut entries = self.write();
        // Another entry may match the same calls: the new one is asked where the old one was.
        match entries.iter().position(|e| old.is_some_and(|old| Arc::ptr_eq(e, old))) {
            Some(at) => entries[at] = entry,
            None => entries.push(entry),
        }
        while entries.len() > most.max(1) {
            let used = entries.iter().map(|e| e.last_used.load(Ordering::Relaxed)).enumerate();
            let Some((oldest, _)) = used.min_by_key(|&(_, used)| used) else { break };
            let entry = entries.remove(oldest);
            if entry.plan().is_some() {
                let crowded = self.crowded.load(Ordering::Relaxed);
                let is_early = entry.short_lived() > 0;
                let crowded = if is_early { crowded + 1 } else { crowded.saturating_sub(1) };
                self.crowded.store(crowded.min(Self::MAX_CROWDED), Ordering::Relaxed);
            }
            evicted.push(entry);
        }
        count_handles(&entries, named);
        evicted.len()
    }

    /// Drops an entry, with the handles that it has: another plan would take these for the model's. Waits for calls that run its plan now,
    /// though not for long, since one of them may be around this one.
    pub(crate) fn forget(&self, entry: Arc<Entry>, named: &Tensors) {
        self.write().retain(|e| !Arc::ptr_eq(e, &entry));
        let left = Arc::downgrade(&entry);
        drop(entry);
        for _ in 0..100 {
            if left.strong_count() == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        count_handles(&self.write(), named);
    }

    /// Has every plan audited in its next call: what one signature has shown of the model holds for the others, too.
    pub(crate) fn audit_all(&self) {
        for entry in self.read().iter() {
            if let Outcome::Plan(_, audits) = &entry.outcome {
                audits.set_done(false);
            }
        }
    }

    /// Whether an entry is still there.
    pub(crate) fn has(&self, entry: &Arc<Entry>) -> bool {
        self.read().iter().any(|e| Arc::ptr_eq(e, entry))
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *self.write());
        self.crowded.store(0, Ordering::Relaxed);
        self.turned_away.store(0, Ordering::Relaxed);
        drop(dropped);
    }
}

fn count_handles(entries: &[Arc<Entry>], named: &Tensors) {
    Compiled::count_handles(entries.iter().filter_map(|entry| entry.plan()), named);
}
