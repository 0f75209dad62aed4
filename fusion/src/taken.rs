//! Marks of schedules: `taken!("swizzle")` stands where a program gets one, and a test fails where no graph of the tests takes it.

#[cfg(test)]
use std::{cell::RefCell, collections::BTreeSet};

/// Notes that a schedule was taken. Only tests do.
macro_rules! taken {
    ($schedule:literal) => {
        #[cfg(test)]
        crate::taken::note($schedule);
    };
}
pub(crate) use taken;

#[cfg(test)]
thread_local! {
    /// What this thread has taken since it was last asked.
    static TAKEN: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

#[cfg(test)]
pub(crate) fn note(schedule: &'static str) {
    TAKEN.with_borrow_mut(|taken| taken.insert(schedule));
}

/// What this thread took since it was last asked.
#[cfg(test)]
pub(crate) fn since_asked() -> BTreeSet<&'static str> {
    TAKEN.take()
}
