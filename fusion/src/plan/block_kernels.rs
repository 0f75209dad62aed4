//! Calls that have a block kernel, a user's or one of the compiler's: steps of their own, alone or with a pointwise prologue
//! and epilogue.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tilefuse_block::Program;

use super::axes::row_major_order;
use super::block_siblings::fuse_siblings;
use super::built_block::BuiltBlock;
use super::groups::{Groups, Rules};
use super::ir::PlanError;
use crate::block_kernel::{BlockKernel, Declined, Layout, Tied};
use crate::epilogue::{LoopAxis, Part, Rewrite, Uses, domain, uses};
use crate::graph::{NodeId, Op, ValueRef};
use crate::kernel::{BlockRefusal, Domain, Group, Kernel, Refusal, Space, build};
use crate::place::{Alignments, Strides, operand_place};
use crate::types::{Device, Dims, row_major};

impl Groups {
    /// Builds every block kernel alone; a call whose kernel is refused runs through libtorch.
    pub(super) fn find_block_kernels(&mut self, rules: Rules<'_>) {
        for id in self.order.clone() {
            match &self.graph.node(id).kernel {
                None => {}
                Some(Err(reason)) => {
                    self.refused.insert(id, reason.clone());
                }
                Some(Ok(block)) => {
                    match self.build_block(&[id], (block, &uses(&block.program).into()), &[id], rules) {
                        Ok(built) => {
                            self.block_kernels.insert(id, built);
                        }
                        Err(refusal) => {
                            let why = Declined::new(refusal.to_string(), refusal.remedy());
                            self.refused.insert(id, why);
                        }
                    }
                }
            }
        }
    }

    /// The block kernel of calls with these nodes, themselves among them, in its loads and stores.
    fn build_block(
        &self,
        calls: &[NodeId],
        (block, uses): (&Arc<BlockKernel>, &Arc<[Uses]>),
        nodes: &[NodeId],
        rules: Rules<'_>,
    ) -> Result<BuiltBlock, Refusal> {
        let inside: FxHashSet<NodeId> = nodes.iter().copied().collect();
        let (operands, outs) = (self.operands_of(calls), self.results_of(calls));
        let device = outs.first().map(|&out| self.graph.ty(out).device);
        let own = nodes.iter().map(|&n| ValueRef::from(n));
        for ty in operands.iter().chain(&outs).copied().chain(own).map(|v| self.graph.ty(v)) {
            match () {
                () if ty.numel() == 0 => return Err(Refusal::Empty),
                () if Some(ty.device) != device => return Err(Refusal::Devices),
                () if ty.dtype.elem().is_none() => return Err(Refusal::ElementType),
                () => {}
            }
        }
        let mut bases = Vec::with_capacity(operands.len());
        let mut parts = Vec::with_capacity(operands.len());
        for (position, &value) in operands.iter().enumerate() {
            let (base, part) = self.operand(calls, block, &inside, (position as u16, value))?;
            parts.push(part);
            bases.push(base);
        }
        let operands = parts;
        let mut roots: Vec<Vec<ValueRef>> = vec![Vec::new(); outs.len()];
        let mut of_rows: (usize, Vec<ValueRef>) = (0, Vec::new());
        let others = nodes.iter().filter(|n| !calls.contains(n));
        for root in
            others.flat_map(|&node| self.graph.results(node)).filter(|&value| self.is_stored(value, &inside))
        {
            let last = self.last_result(calls, &outs, root, &inside).ok_or(BlockRefusal::PrologueStored)?;
            let roots = roots.get_mut(last).ok_or(BlockRefusal::Parameters)?;
            if self.reduces(root.node, &inside) {
                of_rows.0 = of_rows.0.max(last);
                of_rows.1.push(root);
            } else {
                roots.push(root);
            }
        }
        let (stored_at, of_rows) = of_rows;
        let rows = self.rows(calls, block, &inside, of_rows)?;
        let mut results = Vec::new();
        let mut materialized = Vec::new();
        for (position, (&value, roots)) in outs.iter().zip(roots).enumerate() {
            let part = match roots.is_empty() {
                true => Part::none(),
                false => self.result(calls, block, &inside, (position as u16, value), &roots)?,
            };
            results.push(part);
            materialized.push((value, self.is_materialized(value, &inside)));
        }
        let parts = Rewrite {
            kernel: Arc::clone(block),
            uses: Arc::clone(uses),
            operands,
            bases,
            results,
            rows: rows.map(|part| (stored_at, part)),
            materialized,
        };
        let buffers = parts.check()?;
        let cost = self.block_cost(calls, &parts, &buffers, rules.profile);
        Ok(BuiltBlock { calls: SmallVec::from_slice(calls), parts: Arc::new(parts), buffers, cost })
    }

    /// The program of a block kernel with its neighbours under a name, which no pass has seen.
    pub(super) fn block_program(
        &self,
        block: &BuiltBlock,
        name: String,
        alignments: &Alignments,
    ) -> Result<Program, PlanError> {
        let align = |v: ValueRef| alignments.of(&self.graph.node(v.node).op);
        let program = block.parts.program(name, &align);
        let mut program = program.map_err(|refusal| self.alone(block.calls[0], refusal))?;
        if let &[id] = &block.calls[..] {
            program.locate(self.graph.loc(id));
        }
        Ok(program)
    }

    /// The operands of calls, one call's after the other's.
    pub(super) fn operands_of(&self, calls: &[NodeId]) -> Vec<ValueRef> {
        calls.iter().flat_map(|&call| self.graph.operands(call)).collect()
    }

    /// The results of calls, likewise.
    pub(super) fn results_of(&self, calls: &[NodeId]) -> Vec<ValueRef> {
        calls.iter().flat_map(|&call| self.graph.results(call)).collect()
    }

    /// The value whose memory an operand is read from at strides, or how it is computed where it is loaded. That at strides is computed
    /// where the unit computes it, or any kernel for itself.
    fn operand(
        &self,
        calls: &[NodeId],
        block: &BlockKernel,
        inside: &FxHashSet<NodeId>,
        (position, value): (u16, ValueRef),
    ) -> Result<(Option<ValueRef>, Part), Refusal> {
        let Layout::Strided { strides, offset } = block.layout(position) else {
            let strides = row_major(&self.graph.ty(value).shape);
            let part = match self.along_loads(calls, block, inside, (position, value), &strides) {
                Ok(part) => part,
                Err(_) => self.by_element(calls, inside, value, &[value])?,
            };
            return Ok((None, part));
        };
        let place = operand_place(&self.graph, value);
        let node = place.base.node;
        let is_inlined =
            self.transparent.contains(&node) && matches!(self.graph.node(node).op, Op::Map(_) | Op::Cast);
        if inside.contains(&node) || is_inlined && !block.neighbours_do_not_fit {
            match self.along_loads(calls, block, inside, (position, value), strides) {
                Ok(mut part) => {
                    // Offsets begin at that of the operand's first element.
                    part.along.iter_mut().for_each(|along| along.pitch = 0);
                    return Ok((None, part));
                }
                Err(refusal) if inside.contains(&node) => return Err(refusal),
                Err(_) => {}
            }
        }
        match place.strides == *strides && place.offset == *offset {
            true => Ok((Some(place.base), Part::none())),
            false => Err(BlockRefusal::OtherStrides.into()),
        }
    }

    /// How an operand that lies at these strides is computed along the axes of its loads.
    fn along_loads(
        &self,
        calls: &[NodeId],
        block: &BlockKernel,
        inside: &FxHashSet<NodeId>,
        (position, value): (u16, ValueRef),
        strides: &[i64],
    ) -> Result<Part, Refusal> {
        let ty = self.graph.ty(value);
        let axes = block.axes(Tied::Operand(position)).ok_or(match ty.device {
            Device::Cuda(_) => BlockRefusal::SharedMemory,
            Device::Cpu | Device::Other(_) => BlockRefusal::UnknownLoads,
        })?;
        let order = row_major_order(&ty.shape, strides, &axes).filter(|order| !order.is_empty());
        self.along(calls, inside, &[value], &axes, &order.ok_or(BlockRefusal::Order)?)
    }

    /// What is computed of a result of the call's: these roots, along the axes of its stores if these are known, else by the element's
    /// number.
    fn result(
        &self,
        calls: &[NodeId],
        block: &BlockKernel,
        inside: &FxHashSet<NodeId>,
        (position, value): (u16, ValueRef),
        roots: &[ValueRef],
    ) -> Result<Part, Refusal> {
        let ty = self.graph.ty(value);
        if let Some(&root) = roots.iter().find(|&&r| self.graph.ty(r).numel() != ty.numel()) {
            return Err(self.other_elements(calls, inside, value, root).into());
        }
        let axes = block.axes(Tied::Result(position)).unwrap_or_default();
        // What is computed has its rows in the order of the memory, in that of the result's dimensions, or in that of a view of it.
        let in_memory = axes.iter().map(|axis| axis[0]).product::<i64>() == ty.numel() && !axes.is_empty();
        let orders = in_memory.then(|| (0..axes.len()).collect());
        let of_view = |operand: ValueRef| {
            let place = operand_place(&self.graph, operand);
            let is_other = place.base == value && operand != value && place.offset == 0;
            is_other.then(|| row_major_order(&self.graph.ty(operand).shape, &place.strides, &axes)).flatten()
        };
        let views = || {
            let readers = inside.iter().filter(|node| !calls.contains(node));
            let views = readers.flat_map(|&node| self.graph.operands(node)).filter_map(of_view);
            let mut views: Vec<SmallVec<[usize; 4]>> = views.collect();
            views.sort_unstable();
            views.dedup();
            views
        };
        let own = row_major_order(&ty.shape, &ty.strides, &axes);
        let orders = orders.into_iter().chain(own).chain(std::iter::once_with(views).flatten());
        for order in orders {
            // An address in a shape across axes may not be seen to be the element's.
            match self.along(calls, inside, roots, &axes, &order) {
                Ok(part) if part.is_in_order(&self.results_of(calls)) => return Ok(part),
                _ => {}
            }
        }
        self.by_element(calls, inside, value, roots)
    }

    /// Roots as a kernel over axes in an order.
    fn along(
        &self,
        calls: &[NodeId],
        inside: &FxHashSet<NodeId>,
        roots: &[ValueRef],
        axes: &[[i64; 2]],
        order: &[usize],
    ) -> Result<Part, Refusal> {
        let along: SmallVec<[LoopAxis; 4]> =
            order.iter().map(|&axis| LoopAxis { axis, pitch: axes[axis][1] }).collect();
        let extents: Dims = order.iter().map(|&axis| axes[axis][0]).collect();
        let kernel = self.neighbours(calls, inside, roots, Space::parallel(extents), None)?;
        Ok(Part { kernel, along, roots: roots.to_vec() })
    }

    /// Roots as a kernel over the elements of a value.
    fn by_element(
        &self,
        calls: &[NodeId],
        inside: &FxHashSet<NodeId>,
        value: ValueRef,
        roots: &[ValueRef],
    ) -> Result<Part, Refusal> {
        let space = Space::parallel(Dims::from_slice(&[self.graph.ty(value).numel()]));
        let kernel = self.neighbours(calls, inside, roots, space, None)?;
        Ok(Part { kernel, along: SmallVec::new(), roots: roots.to_vec() })
    }

    /// Whether a node of a unit is computed of a reduction in it.
    fn reduces(&self, node: NodeId, inside: &FxHashSet<NodeId>) -> bool {
        let mut seen = FxHashSet::default();
        let mut stack = vec![node];
        while let Some(at) = stack.pop() {
            if !seen.insert(at) || !(inside.contains(&at) || self.transparent.contains(&at)) {
                continue;
            }
            if matches!(self.graph.node(at).op, Op::Reduce { .. }) {
                return true;
            }
            stack.extend(self.graph.operands(at).iter().map(|operand| operand.node));
        }
        false
    }

    /// What is computed of rows of a block kernel's results.
    fn rows(
        &self,
        calls: &[NodeId],
        kernel: &BlockKernel,
        inside: &FxHashSet<NodeId>,
        roots: Vec<ValueRef>,
    ) -> Result<Option<Part>, Refusal> {
        let reduction = inside.iter().copied().find(|&n| matches!(self.graph.node(n).op, Op::Reduce { .. }));
        let Some(reduction) = reduction else { return Ok(None) };
        let block = kernel.coordinates.iter().find_map(|c| c.block).ok_or(BlockRefusal::UnknownStores)?;
        let space = self.space_of(reduction);
        let domain = domain(&block, &space)?;
        let kernel = self.neighbours(calls, inside, &roots, space, Some(&domain))?;
        Ok(Some(Part { kernel, along: SmallVec::new(), roots }))
    }

    /// The expressions of roots in a unit, but for its calls.
    fn neighbours(
        &self,
        calls: &[NodeId],
        inside: &FxHashSet<NodeId>,
        roots: &[ValueRef],
        space: Space,
        domain: Option<&Domain>,
    ) -> Result<Kernel, Refusal> {
        let nodes: FxHashSet<NodeId> = inside.iter().copied().filter(|n| !calls.contains(n)).collect();
        let group = Group {
            stored: nodes
                .iter()
                .flat_map(|&node| self.graph.results(node))
                .filter(|&value| self.is_stored(value, inside))
                .collect(),
            nodes,
            transparent: Arc::clone(&self.transparent),
            materialized: Arc::clone(&self.materialized),
            roots: roots.to_vec(),
            space,
        };
        let make = || build(&self.graph, &group, &Strides(&self.graph), domain);
        self.neighbours.get((&self.classes, &self.graph), &group, domain, make)
    }

    /// Whether a result of a block kernel must be in memory.
    fn is_materialized(&self, value: ValueRef, inside: &FxHashSet<NodeId>) -> bool {
        let mut used = false;
        for reader in self.readers(value) {
            if !inside.contains(&reader) {
                return true;
            }
            used = true;
        }
        !used || self.demanded.contains(&value)
    }

    /// The last one of the results of calls that a value of their unit is computed of.
    fn last_result(
        &self,
        calls: &[NodeId],
        results: &[ValueRef],
        value: ValueRef,
        inside: &FxHashSet<NodeId>,
    ) -> Option<usize> {
        let mut last = None;
        let mut seen = FxHashSet::default();
        let mut stack = vec![value];
        while let Some(at) = stack.pop() {
            if calls.contains(&at.node) {
                last = last.max(results.iter().position(|&result| result == at));
            } else if (inside.contains(&at.node) || self.transparent.contains(&at.node))
                && seen.insert(at.node)
            {
                stack.extend(self.graph.operands(at.node));
            }
        }
        last
    }

    /// A block kernel with more nodes in its loads and stores.
    pub(super) fn build_around(
        &self,
        block: &BuiltBlock,
        nodes: &[NodeId],
        rules: Rules<'_>,
    ) -> Result<BuiltBlock, Refusal> {
        if block.kernel().neighbours_do_not_fit {
            return Err(BlockRefusal::Tiles.into());
        }
        self.build_block(&block.calls, (&block.parts.kernel, &block.parts.uses), nodes, rules)
    }

    /// Two block kernels as one, with these nodes in its loads and stores.
    pub(super) fn build_siblings(
        &self,
        blocks: [&BuiltBlock; 2],
        nodes: &[NodeId],
        rules: Rules<'_>,
    ) -> Result<BuiltBlock, Refusal> {
        let inside: FxHashSet<NodeId> = nodes.iter().copied().collect();
        let [first, second] = blocks.map(|block| &block.calls[..]);
        let calls = [first, second].concat();
        let results = self.results_of(&calls);
        let is_fed = |&operand: &ValueRef| self.last_result(&calls, &results, operand, &inside).is_some();
        if self.operands_of(&calls).iter().any(is_fed) {
            return Err(BlockRefusal::Both.into());
        }
        // Later ones are of the operator that each comes from.
        let located = blocks.map(|block| {
            let mut kernel = block.kernel().clone();
            if let &[id] = &block.calls[..] {
                kernel.program.locate(self.graph.loc(id));
            }
            kernel
        });
        let operands = [first, second].map(|calls| self.operands_of(calls));
        let kernel = fuse_siblings(
            [&located[0], &located[1]],
            [&operands[0], &operands[1]],
            self.results_of(first).len(),
            rules.profile.launch_us,
        )?;
        let uses = uses(&kernel.program).into();
        self.build_block(&calls, (&Arc::new(kernel), &uses), nodes, rules)
    }
}
