//! The order of units while they merge: every unit stands after those that it needs.

use rustc_hash::FxHashSet;

/// Units in an order in which they can run. A unit that was merged away keeps a place that means nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    units: Vec<usize>,
    /// Position of each unit in `units`.
    position: Vec<usize>,
}

/// Two units that may become one.
#[derive(Debug)]
pub(super) struct UnitMerge {
    first: usize,
    second: usize,
    /// What stands between them and needs the first.
    after: FxHashSet<usize>,
}

impl Sequence {
    /// Units `0..count`, each after those that it needs.
    pub(super) fn new(count: usize) -> Sequence {
        Sequence { units: (0..count).collect(), position: (0..count).collect() }
    }

    /// All units that there have been, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.units.iter().copied()
    }

    /// How two units can become one, or a third that needs the one and feeds the other.
    ///
    /// `users` gives the units that directly need a unit; the unit itself may be among them.
    pub(super) fn merge_of(
        &self,
        a: usize,
        b: usize,
        users: impl Fn(usize) -> Vec<usize>,
    ) -> Result<UnitMerge, usize> {
        let (first, second) = if self.position[a] < self.position[b] { (a, b) } else { (b, a) };
        let end = self.position[second];
        let mut after = FxHashSet::default();
        // Neighbours have nothing between them.
        let mut stack = if self.position[first] + 1 < end { vec![first] } else { Vec::new() };
        while let Some(at) = stack.pop() {
            for user in users(at).into_iter().filter(|&user| user != first) {
                if user == second && at != first {
                    return Err(at);
                }
                // A path leads forward only: what stands after the second unit cannot come back to it.
                if self.position[user] < end && after.insert(user) {
                    stack.push(user);
                }
            }
        }
        Ok(UnitMerge { first, second, after })
    }

    /// Makes the two units neighbours, after what the second needs and before what needs the first.
    pub(super) fn merge(&mut self, merge: &UnitMerge) {
        let UnitMerge { first, second, after } = merge;
        let (start, end) = (self.position[*first], self.position[*second]);
        let between = self.units[start + 1..end].iter().copied();
        let (late, early): (Vec<usize>, Vec<usize>) = between.partition(|unit| after.contains(unit));
        let order = early.into_iter().chain([*first, *second]).chain(late);
        for (at, unit) in (start..=end).zip(order) {
            self.units[at] = unit;
            self.position[unit] = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNITS: usize = 12;

    fn users(edges: &[(usize, usize)], names: &[usize], unit: usize) -> Vec<usize> {
        edges.iter().filter(|e| names[e.0] == unit).map(|e| names[e.1]).collect()
    }

    /// Whether a path of two or more steps leads from `a` to `b`.
    fn path_around(edges: &[(usize, usize)], names: &[usize], a: usize, b: usize) -> bool {
        let mut seen = FxHashSet::from_iter([a, b]);
        let mut stack: Vec<usize> = users(edges, names, a);
        while let Some(at) = stack.pop() {
            if seen.insert(at) {
                let next = users(edges, names, at);
                if next.contains(&b) {
                    return true;
                }
                stack.extend(next);
            }
        }
        false
    }

    proptest! {
        #[test]
        fn merging_never_makes_a_cycle_and_refuses_nothing_else(
            edges in proptest::collection::vec((0..UNITS, 0..UNITS), 0..24),
            pairs in proptest::collection::vec((0..UNITS, 0..UNITS), 0..24),
        ) {
            let edges: Vec<_> =
                edges.into_iter().filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).collect();
            let mut names: Vec<usize> = (0..UNITS).collect();
            let mut sequence = Sequence::new(UNITS);
            for (a, b) in pairs {
                let (a, b) = (names[a], names[b]);
                if a == b {
                    continue;
                }
                let found = sequence.merge_of(a, b, |unit| users(&edges, &names, unit));
                let cyclic = path_around(&edges, &names, a, b) || path_around(&edges, &names, b, a);
                prop_assert_eq!(found.is_err(), cyclic);
                let found = match found {
                    Ok(found) => found,
                    Err(third) => {
                        prop_assert!(third != a && third != b && names.contains(&third));
                        continue;
                    }
                };
                sequence.merge(&found);
                names.iter_mut().filter(|name| **name == b).for_each(|name| *name = a);
                for &(from, to) in &edges {
                    let (from, to) = (names[from], names[to]);
                    prop_assert!(from == to || sequence.position[from] < sequence.position[to]);
                }
            }
        }
    }
}
