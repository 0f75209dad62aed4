//! The walk of an instance through the keys: whole blocks, then what is left.
//!
//! ```text
//! state = nothing
//! for %j in 0..WHOLE step BLOCK: step(state, %j, BLOCK keys)
//! step(state, WHOLE, REST keys, of which those below KEYS count)
//! ```
//!
//! One block alone is no loop. An instance of a range of keys goes through those of its own. Where a query sees only keys up to
//! its own number, blocks beyond the instance's last query are left out, and those from its first query on are masked.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Carried, Tile, for_range, scalar};

/// What an instance goes through.
pub(super) struct Walk {
    /// The kind of indices.
    pub(super) index: Elem,
    /// Keys that are seen, by all instances together.
    pub(super) keys: i64,
    /// Keys of a step.
    pub(super) block: u32,
    /// Keys of the tile of what whole steps leave.
    pub(super) rest: u32,
    /// The first key of an instance and the one behind its last, where it has not all keys.
    pub(super) range: Option<[Tile; 2]>,
    /// The instance's queries, where each sees only keys up to its own number.
    pub(super) causal: Option<Queries>,
}

/// The queries of an instance.
pub(super) struct Queries {
    /// The number of the first one.
    pub(super) first: Tile,
    /// Whether that is the first key of a block.
    pub(super) is_aligned: bool,
    /// How many there are.
    pub(super) count: i64,
    /// How many all instances have.
    pub(super) all: i64,
}

/// Some keys that are taken together.
#[derive(Clone, Copy)]
pub(super) struct KeyStep {
    /// The first key.
    pub(super) first: Tile,
    /// How many keys a tile has.
    pub(super) extent: u32,
    /// Whether some lie beyond the last one.
    pub(super) ragged: bool,
    /// Whether some come after a query.
    pub(super) diagonal: bool,
}

impl Walk {
    /// What `step` makes of all keys, some at a time, with what it made of those before them, if there were any. `nothing` is what
    /// loops begin with.
    pub(super) fn through<S: Carried>(
        &self,
        nothing: impl Fn() -> S,
        step: impl Fn(Option<&S>, KeyStep) -> S,
    ) -> S {
        let int = |value: i64| scalar(self.index, value);
        let steps = |state: S, (start, end): (Tile, Tile), of: KeyStep| {
            for_range(start, end, of.extent, state, |first, state| {
                step(Some(&state), KeyStep { first, ..of })
            })
        };
        let (keys, block) = (self.keys, i64::from(self.block));
        let whole = keys - keys % block;
        let start = int(0);
        let plain = KeyStep { first: start, extent: self.block, ragged: false, diagonal: false };
        let rest = |first: Tile| KeyStep { first, extent: self.rest, ragged: true, diagonal: false };
        if let Some([first, end]) = self.range {
            let state = steps(nothing(), (first, end.minimum(whole)), plain);
            let behind = || (first.maximum(whole), end.minimum(keys));
            return if whole == keys { state } else { steps(state, behind(), rest(start)) };
        }
        if let Some(queries) = &self.causal {
            let masked = KeyStep { diagonal: true, ragged: whole != keys, ..plain };
            if queries.all <= queries.count {
                // One block of queries, on the diagonal.
                return steps(nothing(), (start, int(keys.min(queries.all))), masked);
            }
            let before = if queries.is_aligned { queries.first } else { queries.first / block * block };
            let before = before.minimum(whole);
            let state = steps(nothing(), (start, before), plain);
            return steps(state, (before, (queries.first + queries.count).minimum(keys)), masked);
        }
        let state = match whole {
            0 => None,
            _ if whole == block => Some(step(None, plain)),
            _ => Some(steps(nothing(), (start, int(whole)), plain)),
        };
        if whole < keys { step(state.as_ref(), rest(int(whole))) } else { state.unwrap_or_else(nothing) }
    }
}
