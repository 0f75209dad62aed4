//! What must be in memory, and what is computed where it is used.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use tilefuse_block::Elem;

use super::built_block::BuiltBlock;
use super::groups::{Groups, Rules};
use crate::graph::{NodeId, Op, ValueRef};
use crate::kernel::Layouts;
use crate::place::{Place, Strides, strided};
use crate::rewrite_limit::Rewrites;
use crate::types::TensorType;

impl Groups {
    /// Finds what must be in memory.
    pub(super) fn demand(&mut self, rules: Rules<'_>) {
        self.find_transparent(rules.rewrites);
        self.find_block_kernels(rules);
        let mut values: Vec<ValueRef> = Vec::new();
        // Block kernels read these at strides that are known, whatever else comes to be in memory. What other kernels compute is
        // stored for them as for any user, unless it becomes their prologue.
        let kernels = self.order.iter().filter_map(|id| self.block_kernels.get(id));
        let strided = kernels.flat_map(BuiltBlock::strided);
        let views: Vec<NodeId> =
            strided.map(|value| value.node).filter(|node| self.transparent.contains(node)).collect();
        Arc::make_mut(&mut self.materialized).extend(views);
        for &id in &self.order {
            if self.is_extern(id) {
                values.extend(self.graph.operands(id));
            }
        }
        values.extend(self.graph.outputs.iter().copied());
        values.extend(self.graph.updates.iter().map(|u| u.value));
        // What is in memory ends the views of others, which then may lie there at other strides than are recorded for them.
        let mut more = true;
        while more {
            let before = self.materialized.len();
            for &value in &values {
                self.demand_of(value);
            }
            more = self.materialized.len() > before;
        }
    }

    /// Finds what must be in memory for a value.
    fn demand_of(&mut self, value: ValueRef) {
        let base = match self.place(value) {
            Some(place) => place.base(),
            None => value,
        };
        self.demand_base(base);
    }

    /// Demands a value in memory of its own.
    fn demand_base(&mut self, base: ValueRef) {
        match self.graph.node(base.node).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) => {}
            Op::Aten(_) | Op::Kernel(_) if self.is_extern(base.node) => {}
            _ if self.transparent.contains(&base.node) => {
                Arc::make_mut(&mut self.materialized).insert(base.node);
            }
            _ => {
                self.demanded.insert(base);
            }
        }
    }

    /// Whether a node has no kernel, and is none of the operators that kernels are made of: it runs through libtorch.
    pub(super) fn is_extern(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, Op::Aten(_) | Op::Kernel(_)) && !self.block_kernels.contains_key(&id)
    }

    pub(super) fn place(&self, value: ValueRef) -> Option<Place> {
        strided(&self.graph, value, &self.materialized, &|base| Strides(&self.graph).strides(base).0)
    }

    fn find_transparent(&mut self, rewrites: &Rewrites) {
        let gathered = super::gather::bases(&self.graph);
        for &id in &self.order {
            let transparent = match &self.graph.node(id).op {
                Op::View(_) | Op::Scalar(_) | Op::Iota { .. } => true,
                Op::Map(_) | Op::Cast => {
                    let cheap = self.widens(id) || self.is_cheap(id);
                    !gathered.contains(&id) && cheap && rewrites.allow("inline")
                }
                _ => false,
            };
            if transparent {
                Arc::make_mut(&mut self.transparent).insert(id);
            }
        }
    }

    /// A conversion of floats to a wider type, where whoever reads it computes element by element: a kernel that reads the narrow value
    /// instead reads fewer bytes, and no kernel stores the wide one. Further members of a tuple are stored by whoever converts them.
    fn widens(&self, id: NodeId) -> bool {
        let bytes = |value: ValueRef| {
            self.graph.ty(value).dtype.elem().filter(|elem| elem.is_float()).map(Elem::bytes)
        };
        let from = self.graph.operands(id).first().copied().filter(|operand| operand.out == 0);
        let wider = from.and_then(bytes).zip(bytes(id.into())).is_some_and(|(from, to)| from < to);
        self.graph.node(id).op == Op::Cast && wider && !self.is_read_by_call(id)
    }

    /// Whether a call reads a value, or a view of it.
    fn is_read_by_call(&self, id: NodeId) -> bool {
        let mut stack = vec![id];
        while let Some(at) = stack.pop() {
            for (user, _) in self.graph.users(at) {
                match self.graph.node(user).op {
                    Op::View(_) => stack.push(user),
                    Op::Aten(_) | Op::Kernel(_) => return true,
                    _ => {}
                }
            }
        }
        false
    }

    /// A few operations on operands that are much smaller than the result, or than what it is spread to; none of the
    /// operands computed by a kernel.
    fn is_cheap(&self, id: NodeId) -> bool {
        let mut stack = vec![id];
        let (mut bytes, mut cost) = (0, 0);
        let mut seen = FxHashSet::default();
        while let Some(at) = stack.pop() {
            if !seen.insert(at) {
                continue;
            }
            let node = self.graph.node(at);
            match &node.op {
                Op::Map(function) => cost += function.cost(),
                Op::Cast => cost += 1,
                Op::View(_) => {}
                Op::Scalar(_) | Op::Iota { .. } => continue,
                Op::Input(_) | Op::Param(_) | Op::Const(_) => {
                    bytes += node.outs.first().map_or(0, |t| t.bytes());
                    continue;
                }
                _ => return false,
            }
            if at != id && matches!(node.op, Op::Map(_) | Op::Cast) && !self.transparent.contains(&at) {
                return false;
            }
            stack.extend(self.graph.operands(at).iter().map(|v| v.node));
        }
        let own = self.graph.node(id).outs.first().map_or(0, |t| t.bytes());
        let small = cost <= 24 && bytes * 2 <= own.max(256);
        small || (cost <= 96 && self.spread(id) >= 16 * self.numel(id))
    }

    fn numel(&self, id: NodeId) -> i64 {
        self.graph.node(id).outs.first().map_or(0, TensorType::numel)
    }

    /// The least number of elements of what an element-by-element value is spread to before anything else uses it:
    /// a kernel computes it once for all elements that share it. Its own number where it is not spread.
    fn spread(&self, id: NodeId) -> i64 {
        let own = self.numel(id);
        let mut least = i64::MAX;
        let mut stack = vec![id];
        let mut seen = FxHashSet::from_iter([id]);
        while let Some(at) = stack.pop() {
            let named = |v: &ValueRef| v.node == at;
            if self.graph.outputs.iter().any(named) || self.graph.updates.iter().any(|u| named(&u.value)) {
                return own;
            }
            for (user, _) in self.graph.users(at) {
                match self.graph.node(user).op {
                    Op::View(_) => {}
                    Op::Map(_) | Op::Cast if self.numel(user) <= own => {}
                    Op::Map(_) | Op::Cast => {
                        least = least.min(self.numel(user));
                        continue;
                    }
                    _ => return own,
                }
                if seen.insert(user) {
                    stack.push(user);
                }
            }
        }
        if least == i64::MAX { own } else { least }
    }

    pub(super) fn is_compute(&self, id: NodeId) -> bool {
        match self.graph.node(id).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) => false,
            _ => !self.transparent.contains(&id) || self.materialized.contains(&id),
        }
    }

    /// Has no elements and is no libtorch call: it needs an address, but no step.
    pub(super) fn is_hollow(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        !matches!(node.op, Op::Aten(_) | Op::Kernel(_)) && node.outs.iter().all(|t| t.numel() == 0)
    }

    /// Whether a result of a unit's node must be in memory.
    pub(super) fn is_stored(&self, value: ValueRef, inside: &FxHashSet<NodeId>) -> bool {
        let ValueRef { node, .. } = value;
        let used = match self.graph.node(node).outs.len() {
            1 => self.users.get(&node).is_some_and(|u| u.iter().any(|n| !inside.contains(n))),
            _ => self.readers(value).any(|reader| !inside.contains(&reader)),
        };
        used || self.demanded.contains(&value) || self.materialized.contains(&node)
    }

    /// What reads a value, itself or through what is computed where it is used. Kernels compute that even where it is in memory as
    /// well, and calls read it there.
    pub(super) fn readers(&self, value: ValueRef) -> impl Iterator<Item = NodeId> {
        let direct = self.graph.users(value.node).into_iter().filter(move |(_, edge)| edge.out == value.out);
        let mut stack: Vec<(NodeId, bool)> = direct.map(|(user, _)| (user, false)).collect();
        std::iter::from_fn(move || {
            while let Some((at, in_memory)) = stack.pop() {
                if !self.transparent.contains(&at) {
                    if in_memory && self.is_extern(at) {
                        continue;
                    }
                    return Some(at);
                }
                let stored = self.materialized.contains(&at);
                stack.extend(self.graph.users(at).iter().map(|(user, _)| (*user, in_memory || stored)));
                if stored {
                    return Some(at);
                }
            }
            None
        })
    }
}
