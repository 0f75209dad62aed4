//! Which steps of a plan need which, and how deep each lies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::super::ir::{Plan, StepKind};
use crate::graph::ValueRef;

/// The steps that each step needs directly, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Depends(Vec<Vec<usize>>);

impl Depends {
    /// What the steps of a plan need: the makers of what they read, the call before that draws random numbers, and the
    /// last call with an effect besides its results; such a call needs every step before it.
    pub(super) fn of(plan: &Plan) -> Depends {
        let graph = &plan.graph;
        let mut maker: FxHashMap<ValueRef, usize> = FxHashMap::default();
        let (mut effect, mut random) = (None, None);
        let mut needs = Vec::with_capacity(plan.steps.len());
        for (at, step) in plan.steps.iter().enumerate() {
            let mut found: Vec<usize> = effect.into_iter().collect();
            match &step.kind {
                StepKind::Kernel(kernel) => {
                    let read = kernel.buffers.iter().filter(|b| !b.1);
                    found.extend(read.filter_map(|b| maker.get(&b.0)));
                    maker.extend(kernel.buffers.iter().filter(|b| b.1).map(|b| (b.0, at)));
                }
                StepKind::Extern(call) => {
                    found.extend(call.operands.iter().filter_map(|p| maker.get(&p.base())));
                    maker.extend(graph.results(call.node).map(|value| (value, at)));
                    if graph.is_random(call.node) {
                        found.extend(random.replace(at));
                    }
                    if graph.node(call.node).outs.is_empty() {
                        found.extend(effect.map_or(0, |e| e + 1)..at);
                        effect = Some(at);
                    }
                }
            }
            found.sort_unstable();
            found.dedup();
            needs.push(found);
        }
        Depends(needs)
    }
}

/// Sets of steps that run as one; the sets need each other as their steps do, and never in a circle.
#[derive(Clone, Debug)]
pub(super) struct Units {
    /// The steps of each unit, ascending; empty where the unit was joined to another.
    pub(super) members: Vec<Vec<usize>>,
    /// The units that each unit needs, ascending.
    needs: Vec<Vec<usize>>,
}

impl Units {
    /// Every step alone.
    pub(super) fn new(depends: &Depends) -> Units {
        Units { members: (0..depends.0.len()).map(|at| vec![at]).collect(), needs: depends.0.clone() }
    }

    /// The units of several steps.
    pub(super) fn joined(&self) -> Vec<Vec<usize>> {
        self.members.iter().filter(|members| members.len() > 1).cloned().collect()
    }

    /// The most steps in a row, each of which needs the one before, that come before each unit, or with `from_end` after
    /// it. Units of one level need each other neither directly nor through others, also once some levels' units are
    /// joined.
    pub(super) fn levels(&self, from_end: bool) -> Vec<usize> {
        let users = self.users();
        let (before, after) = if from_end { (&users, &self.needs) } else { (&self.needs, &users) };
        let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
        let mut levels = vec![0; missing.len()];
        let mut ready: Vec<usize> = (0..missing.len()).filter(|&u| missing[u] == 0).collect();
        while let Some(unit) = ready.pop() {
            for &next in &after[unit] {
                levels[next] = levels[next].max(levels[unit] + 1);
                missing[next] -= 1;
                if missing[next] == 0 {
                    ready.push(next);
                }
            }
        }
        levels
    }

    /// Makes one unit of each of these lists of units of one level.
    pub(super) fn join(&mut self, lists: &[Vec<usize>]) {
        let mut of: Vec<usize> = (0..self.members.len()).collect();
        for list in lists {
            let Some((&first, others)) = list.split_first() else { continue };
            for &other in others {
                of[other] = first;
                let (members, needs) =
                    (std::mem::take(&mut self.members[other]), std::mem::take(&mut self.needs[other]));
                self.members[first].extend(members);
                self.needs[first].extend(needs);
            }
            self.members[first].sort_unstable();
        }
        for needs in &mut self.needs {
            needs.iter_mut().for_each(|unit| *unit = of[*unit]);
            needs.sort_unstable();
            needs.dedup();
        }
    }

    /// Units in an order in which they can run: each as soon as the first of its steps was due and all that they need
    /// has run.
    pub(super) fn order(&self) -> Vec<&[usize]> {
        let users = self.users();
        let mut missing: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let key = |unit: usize| self.members[unit].first().map(|&first| Reverse((first, unit)));
        let mut ready: BinaryHeap<_> =
            (0..missing.len()).filter(|&u| missing[u] == 0).filter_map(key).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(Reverse((_, unit))) = ready.pop() {
            order.push(self.members[unit].as_slice());
            for &user in &users[unit] {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.extend(key(user));
                }
            }
        }
        order
    }

    fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.needs.len()];
        for (unit, needs) in self.needs.iter().enumerate() {
            needs.iter().for_each(|&needed| users[needed].push(unit));
        }
        users
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEPS: usize = 14;

    proptest! {
        #[test]
        fn horizontal_levels_keep_every_step_behind_what_it_needs(
            edges in proptest::collection::vec((0..STEPS, 0..STEPS), 0..30),
            chosen in proptest::collection::vec(any::<bool>(), STEPS),
        ) {
            let mut needs = vec![Vec::new(); STEPS];
            for (a, b) in edges.into_iter().filter(|(a, b)| a != b) {
                needs[a.max(b)].push(a.min(b));
            }
            needs.iter_mut().for_each(|n| { n.sort_unstable(); n.dedup(); });
            let depends = Depends(needs.clone());
            let mut units = Units::new(&depends);
            for from_end in [false, true] {
                let levels = units.levels(from_end);
                let mut lists: Vec<Vec<usize>> = vec![Vec::new(); STEPS];
                let alive = |u: &usize| !units.members[*u].is_empty() && chosen[*u];
                (0..STEPS).filter(alive).for_each(|u| lists[levels[u]].push(u));
                units.join(&lists);
            }
            let order = units.order();
            let mut place = [usize::MAX; STEPS];
            for (at, steps) in order.iter().enumerate() {
                for &step in *steps {
                    prop_assert_eq!(place[step], usize::MAX);
                    place[step] = at;
                }
            }
            for (step, needs) in needs.iter().enumerate() {
                prop_assert!(place[step] != usize::MAX);
                for &needed in needs {
                    prop_assert!(place[needed] < place[step]);
                }
            }
        }
    }
}
