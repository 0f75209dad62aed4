//! Which elements matter: masks that every use of an element agrees on.
//!
//! A store matters where its mask holds, a reduction where its mask holds and its result matters, a materialized value
//! where one of its uses does. What holds wherever a region or group matters becomes a loop bound or a branch, and
//! need not be tested inside.
//!
//! ```text
//! kernel @scale(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %n: i32) warps(4) {
//!   %i = range 0 256
//!   %end = splat %n [256]
//!   %in = map lt %i, %end
//!   %v = load %x, %i, mask %in
//!   %w = map add %v, %v
//!   store %y, %i, %w, mask %in
//! }
//! ```
//!
//! ```text
//! // host: vectors of 8 x 32 bits
//! kernel @scale(%x: ptr<f32> align(16), %y: ptr<f32> align(16), %n: i32) warps(4) {
//!   %i = range 0 256
//!   %end = splat %n [256]
//!   %in = map lt %i, %end
//!   %v = load %x, %i, mask %in
//!   %w = map add %v, %v
//!   store %y, %i, %w, mask %in  // guards: region 0 runs only where %in
//! }
//! ```

use tilefuse_block::{Elem, Op, OpKind, ScalarFn, Value};

use super::{Def, Group, Map, Part, Plan, RegionId, SinkId, SinkKind, SlotId, operands};
use crate::host::passes::{Seen, Site};

/// A boolean value at a map; one conjunct of a mask.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Atom {
    pub(crate) value: Value,
    pub(crate) map: Map,
}

/// Conjuncts; `None` is what never holds.
type Guard = Option<Vec<Atom>>;

/// Of each slot the sinks that read it, and at which maps.
type Uses = Vec<Vec<(SinkId, Map)>>;

/// Who needs the elements of slots.
struct Readers {
    uses: Uses,
    /// Of each slot the masks of the loads whose offsets are made of it, and at which maps. A load reads where its mask holds, also
    /// where nothing needs what it reads.
    loads: Vec<Vec<(Vec<Atom>, Map)>>,
    /// The slots that loop bounds and conditions read.
    pinned: Vec<SlotId>,
    /// Of each slot the positions of the bits that all values in it depend on: at others, one element stands for all.
    deps: Vec<u32>,
}

fn either(a: Guard, b: &Guard) -> Guard {
    match (a, b) {
        (None, b) => b.clone(),
        (a, None) => a,
        (Some(a), Some(b)) => Some(a.into_iter().filter(|atom| b.contains(atom)).collect()),
    }
}

fn both(a: Guard, b: &Guard) -> Guard {
    let (mut a, b) = (a?, b.as_ref()?);
    a.extend(b.iter().filter(|atom| !a.contains(atom)).cloned().collect::<Vec<_>>());
    Some(a)
}

impl Plan<'_> {
    /// The conjuncts of a boolean value.
    pub(crate) fn atoms(&self, value: Value, map: &[super::Bit], out: &mut Vec<Atom>) {
        let op = match self.pure_op(value) {
            Some(op) => op,
            None => return out.push(self.atom(value, map)),
        };
        match &op.kind {
            OpKind::Map(ScalarFn::And)
            | OpKind::Splat(_)
            | OpKind::ExpandDims(_)
            | OpKind::Broadcast(_)
            | OpKind::Reshape(_)
            | OpKind::Permute(_) => {
                for (arg, map) in operands(self.program, op, value, map) {
                    self.atoms(arg, &map, out);
                }
            }
            OpKind::Const(literal) if literal.elem == Elem::Bool && literal.bits != 0 => {}
            _ => out.push(self.atom(value, map)),
        }
    }

    fn atom(&self, value: Value, map: &[super::Bit]) -> Atom {
        let deps = self.deps[value.index()];
        let kept = map.iter().enumerate().map(|(i, &b)| if deps >> i & 1 == 1 { b } else { super::ZERO });
        Atom { value, map: kept.map(|b| self.classes.find(b)).collect() }
    }

    /// The guards of all sinks, regions and groups.
    pub(super) fn find_guards(&mut self) {
        let readers = self.readers();
        loop {
            let mut changed = false;
            for sink in (0..self.sinks.len()).rev() {
                let needed = self.needed(sink, &readers);
                let guard = self.sink_guard(sink, &needed);
                let old = &mut self.sinks[sink];
                changed |= old.guard != guard || old.needed != needed;
                (old.guard, old.needed) = (guard, needed);
            }
            if !changed {
                break;
            }
        }
        for region in 0..self.regions.len() {
            let sinks = self.regions[region].sinks.clone();
            let guard = sinks.iter().fold(None, |all, &s| either(all, &self.sinks[s].guard));
            self.regions[region].guard = self.known_before(guard.unwrap_or_default(), &sinks);
        }
        let mut body = std::mem::take(&mut self.body);
        self.guard_groups(&mut body, 0);
        self.body = body;
    }

    fn readers(&self) -> Readers {
        let mut uses: Uses = vec![Vec::new(); self.slots.len()];
        let mut loads = vec![Vec::new(); self.slots.len()];
        for sink in 0..self.sinks.len() {
            self.slot_uses(sink).into_iter().for_each(|(slot, map)| uses[slot].push((sink, map)));
            let own = self.own_op(&self.sinks[sink]).and(self.sinks[sink].roots.first());
            self.walk_sink(sink, &mut |value, map| {
                if own == Some(&value) || self.pure_op(value).is_some() {
                    self.add_load(value, map, &mut loads);
                }
            });
        }
        let mut deps = vec![u32::MAX; self.slots.len()];
        self.slot_of.iter().for_each(|(value, &slot)| deps[slot] &= self.deps[value.index()]);
        Readers { uses, loads, pinned: self.slots_of_bounds(), deps }
    }

    /// Adds the slots that the offsets of a load are made of.
    fn add_load(&self, value: Value, map: &Map, loads: &mut [Vec<(Vec<Atom>, Map)>]) {
        let Def::Op(op) = self.defs[value.index()] else { return };
        let (OpKind::Load { masked, .. }, Some(&offsets)) = (&op.kind, op.args.get(1)) else { return };
        let mut atoms = Vec::new();
        if let Some(&mask) = op.args.get(2).filter(|_| *masked) {
            self.atoms(mask, map, &mut atoms);
        }
        self.walk(offsets, map, &mut |value, map| {
            if let Some(&slot) = self.slot_of.get(&value) {
                loads[slot].push((atoms.clone(), self.classes.canonical(map)));
            }
        });
    }

    /// The slots that loop bounds and conditions read.
    fn slots_of_bounds(&self) -> Vec<SlotId> {
        let mut out = Vec::new();
        for l in &self.loops {
            for &bound in self.controls(l) {
                self.walk(bound, &[], &mut |v, _| out.extend(self.reads(v)));
            }
        }
        out
    }

    /// Where the elements that a sink writes matter.
    fn needed(&self, sink: SinkId, readers: &Readers) -> Guard {
        let Some(slot) = self.sinks[sink].slot else { return Some(Vec::new()) };
        if readers.pinned.contains(&slot) || matches!(self.sinks[sink].kind, SinkKind::Atomic(_)) {
            return Some(Vec::new());
        }
        let bits = &self.slots[slot].bits;
        let block = self.sinks[sink].block;
        let own = |bit: &super::Bit| {
            bits.iter().enumerate().any(|(at, own)| own == bit && readers.deps[slot] >> at & 1 == 1)
        };
        let inside = |atom: &Atom| {
            atom.map.iter().all(|b| *b <= super::ONE || own(b)) && self.is_known_from_start(atom, block)
        };
        let of_use = |guard: Option<&Vec<Atom>>, map: &Map| match guard {
            Some(_) if map != bits => Some(Vec::new()),
            guard => guard.map(|g| g.iter().filter(|a| inside(a)).cloned().collect()),
        };
        let mut needed = None;
        for (user, map) in &readers.uses[slot] {
            needed = either(needed, &of_use(self.sinks[*user].guard.as_ref(), map));
        }
        if needed.is_some() {
            for (mask, map) in &readers.loads[slot] {
                needed = either(needed, &of_use(Some(mask), map));
            }
        }
        needed
    }

    /// Whether a conjunct can be computed anywhere in a list of operations: it depends on nothing that other regions
    /// make, and on no loop that is not around the list.
    fn is_known_from_start(&self, atom: &Atom, block: super::BlockId) -> bool {
        let mut known = self.is_made_around(atom, block);
        self.walk(atom.value, &atom.map, &mut |value, _| known &= self.reads(value).next().is_none());
        known
    }

    /// Whether everything that a conjunct is made of is defined in a list of operations or around it.
    fn is_made_around(&self, atom: &Atom, block: super::BlockId) -> bool {
        let mut around = true;
        self.walk(atom.value, &atom.map, &mut |value, _| {
            around &= self.encloses(self.home[value.index()], block);
        });
        around
    }

    /// The conjuncts that do not depend on what these sinks make.
    fn known_before(&self, guard: Vec<Atom>, sinks: &[SinkId]) -> Vec<Atom> {
        let made: Vec<SlotId> = sinks.iter().flat_map(|&s| self.sinks[s].made()).collect();
        let free = |atom: &Atom| {
            let mut free = true;
            self.walk(atom.value, &atom.map, &mut |value, _| {
                free &= self.reads(value).all(|slot| !made.contains(&slot));
            });
            free
        };
        guard.into_iter().filter(free).collect()
    }

    fn sink_guard(&self, sink: SinkId, needed: &Guard) -> Guard {
        let sink = &self.sinks[sink];
        let mask = match sink.kind {
            SinkKind::Store(op) => op.args.get(3),
            SinkKind::Reduce(op) => op.args.get(1),
            SinkKind::Materialize | SinkKind::Copy(_) | SinkKind::Atomic(_) | SinkKind::Whole(_) => None,
        };
        let mut atoms = Vec::new();
        if let Some(&mask) = mask {
            self.atoms(mask, &sink.bits, &mut atoms);
        }
        both(needed.clone(), &Some(atoms))
    }

    /// Guards of the groups of list `block`. What depends on the loops inside a group cannot guard it.
    fn guard_groups(&mut self, groups: &mut [Group], block: super::BlockId) {
        for group in groups {
            let mut sinks: Vec<SinkId> = Vec::new();
            for part in &group.parts {
                match *part {
                    Part::Region(r) => sinks.extend(&self.regions[r].sinks),
                    Part::Loop(l) => {
                        sinks.extend(&self.loops[l].sinks);
                        let mut body = std::mem::take(&mut self.loops[l].body);
                        self.guard_groups(&mut body, l + 1);
                        self.loops[l].body = body;
                    }
                }
            }
            let parallel: Vec<super::Bit> = group.nest.loops.iter().flatten().copied().collect();
            let mut guard: Guard = None;
            for &sink in &sinks {
                let whole = &self.sinks[sink];
                let own = if whole.reduced.is_empty() { &whole.guard } else { &whole.needed };
                guard = either(guard, own);
            }
            let inside = |atom: &Atom| {
                atom.map.iter().any(|b| *b > super::ONE)
                    && atom.map.iter().all(|b| *b <= super::ONE || parallel.contains(b))
                    && self.is_made_around(atom, block)
            };
            let guard = guard.unwrap_or_default().into_iter().filter(inside).collect();
            group.guard = self.known_before(guard, &sinks);
        }
    }

    /// Whether nothing needs what a sink does.
    pub(crate) fn is_dead(&self, sink: SinkId) -> bool {
        self.sinks[sink].guard.is_none()
    }

    /// Reads an atom as `counter < bound`, where `counter` grows by one with each step along `axis` (its bits lowest
    /// first) and `bound` does not depend on them. Gives counter, bound, and what to add to their difference to
    /// have the number of leading steps that hold.
    pub(crate) fn as_prefix(&self, atom: &Atom, axis: &[super::Bit]) -> Option<Prefix> {
        let Def::Op(op) = self.defs[atom.value.index()] else { return None };
        let OpKind::Map(function) = op.kind else { return None };
        let [a, b] = op.args.as_slice() else { return None };
        let (counter, bound, extra) = match function {
            ScalarFn::Lt => (*a, *b, 0),
            ScalarFn::Le => (*a, *b, 1),
            ScalarFn::Gt => (*b, *a, 0),
            ScalarFn::Ge => (*b, *a, 1),
            _ => return None,
        };
        if !matches!(self.program.ty(counter).elem(), Some(Elem::I32 | Elem::I64)) {
            return None;
        }
        let (c, n) = (self.affine(counter, &atom.map), self.affine(bound, &atom.map));
        let steps = axis.iter().enumerate().all(|(i, &bit)| c.stride(bit) == Some(1i64 << i));
        let fixed = axis.iter().all(|&bit| n.stride(bit) == Some(0));
        (steps && fixed).then_some(Prefix { counter, bound, extra })
    }
}

/// A mask that holds for a leading part of an axis.
pub(crate) struct Prefix {
    pub(crate) counter: Value,
    pub(crate) bound: Value,
    pub(crate) extra: i64,
}

/// The masks that need not be tested for each element.
pub(in crate::host) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let names = |values: &mut dyn Iterator<Item = Value>| values.map(|v| seen.name(v)).collect::<Vec<_>>();
    let note = |(_, id, site): (SinkId, RegionId, &Site)| {
        let around = names(&mut site.guards.iter().copied());
        let own = names(&mut seen.plan.regions[id].guard.iter().map(|atom| atom.value));
        let of = |what: &str, masks: &[String]| {
            (!masks.is_empty()).then(|| format!("{what} only where {}", masks.join(" and ")))
        };
        [of(&format!("group {} runs", site.group), &around), of(&format!("region {id} runs"), &own)]
    };
    seen.sinks(op).into_iter().flat_map(note).flatten().collect()
}
