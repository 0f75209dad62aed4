//! How the layouts of the values of an operation follow from one another.

use tilefuse_block::{Op, OpKind, Region, Value};

use super::assign::Assignment;

/// How a layout carries over to a neighbour.
#[derive(Clone)]
pub(crate) enum Link {
    /// The same elements in the same order, perhaps in another shape.
    Same,
    /// From a permutation's operand to its result.
    Permute(Vec<u8>),
    /// From a permutation's result to its operand.
    Unpermute(Vec<u8>),
    /// From a broadcast's result to its operand.
    Unbroadcast,
    /// From a reduction's operand to its result.
    Slice(usize),
    /// From an operand of a join to its result.
    Join,
}

impl<'a> Assignment<'a> {
    fn link(&mut self, a: Value, b: Value, forward: Link, back: Option<Link>) {
        self.links[a.index()].push((b, forward));
        if let Some(back) = back {
            self.links[b.index()].push((a, back));
        }
    }

    /// Links the values of a region of `owner`, or of the program's body.
    pub(crate) fn link_region(&mut self, region: &'a Region, owner: Option<&'a Op>) {
        for op in &region.ops {
            self.link_op(op);
            for inner in &op.regions {
                self.link_region(inner, Some(op));
            }
            if let (OpKind::Yield, Some(owner)) = (&op.kind, owner) {
                self.link_yield(op, region, owner);
            }
        }
    }

    fn link_yield(&mut self, op: &'a Op, region: &'a Region, owner: &'a Op) {
        for (i, &next) in op.args.iter().enumerate() {
            let others = match owner.kind {
                OpKind::For => vec![owner.args.get(i + 3), region.args.get(i + 1), owner.results.get(i)],
                OpKind::If => vec![owner.results.get(i)],
                // The first region of a loop yields its condition.
                OpKind::While if owner.regions.len() == 2 && std::ptr::eq(region, &owner.regions[1]) => {
                    let first = owner.regions[0].args.get(i);
                    vec![owner.args.get(i), first, region.args.get(i), owner.results.get(i)]
                }
                _ => Vec::new(),
            };
            for &other in others.into_iter().flatten() {
                self.link(next, other, Link::Same, Some(Link::Same));
            }
        }
    }

    fn link_op(&mut self, op: &'a Op) {
        let result = op.results.first().copied();
        match (&op.kind, result) {
            (OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_), Some(r)) => self.link_all(r, &op.args),
            (OpKind::ExpandDims(_) | OpKind::Reshape(_), Some(r)) => self.link_all(r, &op.args),
            (OpKind::Load { .. }, Some(r)) => self.link_all(r, &op.args[1..]),
            (OpKind::Store { .. }, _) => self.link_all(op.args[1], &op.args[2..]),
            (OpKind::Permute(perm), Some(r)) => {
                let perm = perm.to_vec();
                self.link(op.args[0], r, Link::Permute(perm.clone()), Some(Link::Unpermute(perm)));
            }
            (OpKind::ReduceWith { axis }, Some(r)) => {
                self.link_all(op.args[0], &op.args[1..]);
                self.link_all(r, &op.results[1..]);
                self.link(op.args[0], r, Link::Slice(usize::from(*axis)), None);
            }
            (OpKind::Scan { .. }, Some(r)) => {
                self.link_all(r, &op.args);
                self.link_all(r, &op.results[1..]);
            }
            (OpKind::Gather { .. }, Some(r)) => self.link_all(r, &op.args[1..]),
            (OpKind::Histogram { .. }, _) => self.link_all(op.args[0], &op.args[1..]),
            (OpKind::Atomic { .. } | OpKind::AtomicCas { .. }, Some(r)) => self.link_all(r, &op.args[1..]),
            (OpKind::Assert { .. }, _) => self.link_all(op.args[0], &op.args[1..]),
            (OpKind::Dot { .. }, Some(r)) => self.link_all(r, &op.args[2..]),
            (OpKind::Assume(_), Some(r)) => self.link_all(r, &op.args),
            (OpKind::Join, Some(r)) => {
                let axis = self.program.ty(r).rank() - 1;
                for &arg in &op.args {
                    self.link(r, arg, Link::Slice(axis), Some(Link::Join));
                }
            }
            (OpKind::Split, Some(_)) => {
                let axis = self.program.ty(op.args[0]).rank() - 1;
                for &half in &op.results {
                    self.link(op.args[0], half, Link::Slice(axis), Some(Link::Join));
                }
            }
            (OpKind::Broadcast(_), Some(r)) => self.link(r, op.args[0], Link::Unbroadcast, None),
            (OpKind::Reduce { axis, .. }, Some(r)) => {
                self.link_all(op.args[0], &op.args[1..]);
                self.link(op.args[0], r, Link::Slice(usize::from(*axis)), None);
            }
            _ => {}
        }
    }

    /// Finds what is linked to operands of products. What is computed where it is used links nothing.
    pub(super) fn find_operands(&mut self, ops: &[&'a Op]) {
        let products = ops.iter().filter(|op| matches!(op.kind, OpKind::Dot { .. }));
        let mut work: Vec<Value> = products.flat_map(|op| op.args.iter().take(2).copied()).collect();
        while let Some(value) = work.pop() {
            if !self.free[value.index()] && !std::mem::replace(&mut self.operands[value.index()], true) {
                work.extend(self.links[value.index()].iter().map(|&(other, _)| other));
            }
        }
    }

    fn link_all(&mut self, a: Value, others: &[Value]) {
        for &b in others {
            self.link(a, b, Link::Same, Some(Link::Same));
        }
    }
}
