//! Which operators of libtorch have lowerings, filled by the `register` function of each family.

use indexmap::IndexMap;

use super::cx::{Call, Cx};
use crate::graph::ValueRef;

pub(super) type One = fn(&mut Cx, &Call<'_>) -> Option<ValueRef>;
pub(super) type Many = fn(&mut Cx, &Call<'_>) -> Option<Vec<ValueRef>>;

/// How an operator is lowered.
#[derive(Clone, Copy)]
pub(super) enum Lowering {
    /// To its only result.
    One(One),
    /// To several results.
    Many(Many),
}

/// Lowerings by operator.
#[derive(Default)]
pub(super) struct Registry(IndexMap<&'static str, Lowering>);

impl Registry {
    /// An operator with one result; names are without namespace.
    pub(super) fn one(&mut self, names: &[&'static str], lowering: One) {
        self.0.extend(names.iter().map(|&n| (n, Lowering::One(lowering))));
    }

    /// An operator with several results.
    pub(super) fn many(&mut self, names: &[&'static str], lowering: Many) {
        self.0.extend(names.iter().map(|&n| (n, Lowering::Many(lowering))));
    }

    /// The lowering of an operator.
    pub(super) fn get(&self, name: &str) -> Option<Lowering> {
        self.0.get(name).copied()
    }

    /// The operators, in the order in which they were added.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}
