//! Why what is computed of a block kernel's result has another number of elements than the result, and is no epilogue.
//!
//! ```text
//! %2 = view slice[0,0,2](%1) : f32[100]        with %1 : f32[200], a block kernel's
//! %3 = view slice[0,1,2](%1) : f32[100]
//! %4 = map max(%2, %3) : f32[100]              each of its elements is computed of several of %1
//! ```

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::groups::Groups;
use crate::graph::{NodeId, Op, ValueRef, View};
use crate::kernel::BlockRefusal;

/// An operator that gives elements of its operand at other places.
#[derive(Clone, Debug, PartialEq)]
enum Hop {
    View(View),
    /// Of a concatenation, the operand of this position.
    Concat(usize),
    Gather,
}

/// The most values that are looked at on all paths.
const MAX_VALUES: usize = 64;

/// The hops between a value and what it is computed of, the last one first.
type Path = SmallVec<[Hop; 4]>;

impl Groups {
    /// Why a root of a unit with other elements than the calls' result that it is computed of is no epilogue.
    pub(super) fn other_elements(
        &self,
        calls: &[NodeId],
        inside: &FxHashSet<NodeId>,
        result: ValueRef,
        root: ValueRef,
    ) -> BlockRefusal {
        let [numel, of] = [root, result].map(|value| self.graph.ty(value).numel());
        let paths = self.paths(calls, inside, result, root);
        let has = |is: fn(&Hop) -> bool| paths.iter().flatten().any(is);
        if has(|hop| matches!(hop, Hop::Gather)) {
            BlockRefusal::Gather
        } else if paths.len() > 1 || has(|hop| matches!(hop, Hop::View(View::Window(_)))) {
            BlockRefusal::Windows { numel, of }
        } else if has(|hop| matches!(hop, Hop::Concat(_) | Hop::View(View::Pad { .. }))) {
            BlockRefusal::Joined { numel, of }
        } else if has(|hop| matches!(hop, Hop::View(View::Expand))) {
            BlockRefusal::Repeated { numel, of }
        } else {
            BlockRefusal::Elements { numel, of }
        }
    }

    /// The first two different paths from a root to a result.
    fn paths(
        &self,
        calls: &[NodeId],
        inside: &FxHashSet<NodeId>,
        result: ValueRef,
        root: ValueRef,
    ) -> Vec<Path> {
        let mut found: Vec<Path> = Vec::new();
        let mut seen = vec![(root, Path::new())];
        let mut next = 0;
        while found.len() < 2
            && next < MAX_VALUES
            && let Some((value, path)) = seen.get(next).cloned()
        {
            next += 1;
            for (position, operand) in self.graph.operands(value.node).into_iter().enumerate() {
                let mut path = path.clone();
                path.extend(match &self.graph.node(value.node).op {
                    Op::View(View::Reshape) => None,
                    Op::View(view) => Some(Hop::View(view.clone())),
                    Op::Concat { .. } => Some(Hop::Concat(position)),
                    Op::Gather { .. } => Some(Hop::Gather),
                    _ => None,
                });
                let is_inside = inside.contains(&operand.node) || self.transparent.contains(&operand.node);
                if operand == result {
                    if !found.contains(&path) {
                        found.push(path);
                    }
                } else if is_inside && !calls.contains(&operand.node) {
                    let state = (operand, path);
                    if !seen.contains(&state) {
                        seen.push(state);
                    }
                }
            }
        }
        found
    }
}
