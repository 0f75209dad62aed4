//! Counts the rewrites of a compilation, and refuses those beyond a limit.
//!
//! A rewrite that makes a wrong program is found by bisecting on the limit, as with LLVM's `-opt-bisect-limit`: with `n` of
//! them the result is right, with `n + 1` it is not, and [`Rewrites::last`] names the pass that made the last one. Rewrites
//! that a later pass needs are made beyond the limit, too: without them there would be no plan. They are named beside the last one
//! that is counted, of whose result they are.

use std::cell::{Cell, RefCell};

/// What would let a rewrite be made that the limit refuses.
pub(crate) const REMEDY: &str = "no `Options::max_rewrites`, or a larger one";

/// How many rewrites were made, and how many may be.
#[derive(Debug, Default)]
pub struct Rewrites {
    limit: Option<u64>,
    made: Cell<u64>,
    pass: Cell<Option<&'static str>>,
    last: Cell<Option<[&'static str; 2]>>,
    /// Passes that made what later ones need, since the last one that is counted.
    required: RefCell<Vec<&'static str>>,
}

impl Rewrites {
    /// At most so many rewrites; `None` where all are made.
    pub fn at_most(limit: Option<u64>) -> Rewrites {
        Rewrites { limit, ..Rewrites::default() }
    }

    /// A pass of the pipeline begins.
    pub(crate) fn begin(&self, pass: &'static str) {
        self.pass.set(Some(pass));
    }

    /// Whether one more rewrite of this name may be made, which counts as made.
    pub fn allow(&self, name: &'static str) -> bool {
        let allowed = !self.is_spent();
        if allowed {
            self.made.set(self.made.get() + 1);
            self.last.set(Some([self.pass.get().unwrap_or(name), name]));
            self.required.borrow_mut().clear();
        }
        allowed
    }

    /// A rewrite is made that later passes need. It is not counted.
    pub(crate) fn require(&self, name: &'static str) {
        let pass = self.pass.get().unwrap_or(name);
        let mut required = self.required.borrow_mut();
        if required.last() != Some(&pass) {
            required.push(pass);
        }
    }

    /// Whether no more rewrites may be made.
    pub fn is_spent(&self) -> bool {
        self.limit.is_some_and(|limit| self.made.get() >= limit)
    }

    /// How many more may be made.
    pub fn left(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.made.get()))
    }

    /// How many were made.
    pub fn made(&self) -> u64 {
        self.made.get()
    }

    /// The pass that made the last one, and after a slash its name, where the pass makes several: `simplify/fold-views`. Behind it,
    /// passes that had to rewrite what it made: `lower/gather with store-gathered`.
    pub fn last(&self) -> Option<String> {
        let [pass, name] = self.last.get()?;
        let mut text = if pass == name { pass.to_owned() } else { format!("{pass}/{name}") };
        for pass in self.required.borrow().iter() {
            text.push_str(" with ");
            text.push_str(pass);
        }
        Some(text)
    }
}
