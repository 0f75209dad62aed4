//! What a block kernel with its neighbours is expected to take.
//!
//! A host's kernels are measured one by one, over and over, with their weights in its caches. Between two calls of a model those of others
//! take their place: the first instances that read some wait for memory, and the others find them in a cache.
//!
//! ```text
//! [1,512,7,7] * [512,512,3,3]   1139 us  by itself, of which the first of 7 rows of pixels take 163 us
//!                             +  648 us  that these wait besides for 9.7 MB of weights, at 12 GB/s
//! ```

use rustc_hash::FxHashSet;

use super::cost::{Cost, operations};
use super::groups::Groups;
use crate::block_kernel::Tied;
use crate::epilogue::{Part, Rewrite};
use crate::graph::{NodeId, Op, ValueRef};
use crate::index::Var;
use crate::kernel::{KNode, Kernel};
use crate::machine::{CACHED, Profile};
use crate::place::operand_place;

/// What a load costs that gathers the lanes of a vector, in operations of an element: as many loads as there are lanes, each a quarter of an
/// operation of a vector of 16. (The rotary embedding in the loads of Llama's queries, which are transposed, takes 0.8 ns for an element
/// where six operations of a vector are computed of five loads.)
const GATHERED: u64 = 4;

/// The weights of a block kernel.
#[derive(Clone, Copy, Default)]
struct Weights {
    /// Their bytes.
    bytes: f64,
    /// Bytes that all instances load of them, each again.
    loaded: f64,
}

impl Weights {
    /// What waiting for them takes on a host besides `alone_us`, which the kernel takes with weights that are in the caches, where
    /// reading them from memory takes `read_us`.
    fn waiting_us(self, alone_us: f64, read_us: f64) -> f64 {
        let passes = (self.loaded / self.bytes.max(1.0)).max(1.0);
        (read_us - alone_us / passes).max(0.0)
    }
}

impl Groups {
    /// What the kernel of some calls costs with the parts that were merged into it.
    pub(super) fn block_cost(
        &self,
        calls: &[NodeId],
        parts: &Rewrite,
        buffers: &[(ValueRef, bool)],
        profile: &Profile,
    ) -> Cost {
        let (block, is_gpu) = (&parts.kernel, profile.machine.is_gpu());
        let bytes = |value: ValueRef| self.graph.ty(value).bytes();
        let buffers = |written: bool| buffers.iter().filter(move |b| b.1 == written).map(|b| b.0);
        let instances: u64 = block.grid.iter().map(|&n| u64::from(n)).product();
        let busy = (instances as f64 / profile.workers as f64).clamp(f64::MIN_POSITIVE, 1.0);
        let streamed_us = |bytes: f64| bytes / profile.bandwidth / 1000.0 / busy;
        let moved_us = |value: ValueRef| self.distance(value, profile) * streamed_us(bytes(value) as f64);
        let [in_loads, in_stores] = arithmetic(parts, is_gpu);
        // An instance stores when it has computed everything; what is expected without neighbours is with the results stored.
        let stored_us: f64 = self.results_of(calls).into_iter().map(moved_us).sum();
        let alone_us = (block.expected_us - profile.launch_us - stored_us).max(0.0);
        // Neighbours compute where the kernel does: on a host those of results with vectors in registers, as products do.
        let rate = profile.ops_per_ns;
        let in_registers = if is_gpu { rate } else { rate.max(profile.products.generated / 2.0) };
        let arithmetic_us = (in_loads as f64 / rate + in_stores as f64 / in_registers) / 1000.0 / busy;
        let mut computing_us = arithmetic_us + alone_us;
        if !is_gpu {
            let weights = self.weights(&self.operands_of(calls), parts);
            computing_us += weights.waiting_us(alone_us, streamed_us(weights.bytes));
            // What is read beside the results, while sums of others are computed.
            let behind: u64 = buffers(false).filter(|&value| is_read_behind(parts, value)).map(bytes).sum();
            computing_us += CACHED * streamed_us(behind as f64);
        }
        let read_us: f64 = buffers(false).map(moved_us).sum();
        let written_us: f64 = buffers(true).map(moved_us).sum();
        Cost {
            // What is read as several operands, as queries, keys and values of one product, is one tensor.
            bytes_read: buffers(false).collect::<FxHashSet<ValueRef>>().into_iter().map(bytes).sum(),
            bytes_written: buffers(true).map(bytes).sum(),
            flops: in_loads.saturating_add(in_stores),
            us: read_us.max(computing_us) + written_us + profile.launch_us,
        }
    }

    /// What moving a byte of a value takes, in the time of one of memory.
    fn distance(&self, value: ValueRef, profile: &Profile) -> f64 {
        let is_left = !matches!(self.graph.node(value.node).op, Op::Input(_) | Op::Param(_) | Op::Const(_));
        if is_left { profile.left_distance(self.graph.ty(value).bytes()) } else { 1.0 }
    }

    /// The operands of a kernel's calls that no other kernel computes.
    fn weights(&self, operands: &[ValueRef], parts: &Rewrite) -> Weights {
        let instances: f64 = parts.kernel.grid.iter().map(|&n| f64::from(n)).product();
        let mut weights = Weights::default();
        for (tied, uses) in parts.kernel.tied.iter().zip(&*parts.uses) {
            let Tied::Operand(position) = *tied else { continue };
            let Some(&value) = operands.get(usize::from(position)) else { continue };
            let place = operand_place(&self.graph, value);
            if matches!(self.graph.node(place.base.node).op, Op::Param(_) | Op::Const(_)) {
                let ty = self.graph.ty(value);
                weights.bytes += ty.bytes() as f64;
                weights.loaded +=
                    uses.loaded as f64 * instances * ty.bytes() as f64 / ty.numel().max(1) as f64;
            }
        }
        weights
    }
}

/// Whether neighbours that follow a kernel's results read a value.
fn is_read_behind(parts: &Rewrite, value: ValueRef) -> bool {
    let rows = parts.rows.as_ref().map(|(_, part)| part);
    let mut behind = parts.results.iter().chain(rows);
    behind.any(|part| part.kernel.buffers.iter().any(|buffer| buffer.value == value && !buffer.written))
}

/// Operations that the expressions of a block kernel's neighbours cost in all, where it loads and where it stores.
fn arithmetic(parts: &Rewrite, is_gpu: bool) -> [u64; 2] {
    let block = &parts.kernel;
    let instances: u64 = block.grid.iter().map(|&n| u64::from(n)).product();
    let accesses = |tied: Tied| -> u64 {
        let of = block.tied.iter().zip(&*parts.uses).filter(|(t, _)| **t == tied);
        of.map(|(_, u)| (u.loaded + u.stored).saturating_mul(instances)).sum()
    };
    let of = |parts: &[Part], tied: &dyn Fn(u16) -> Tied| -> u64 {
        let each = parts.iter().enumerate();
        each.map(|(i, p)| of_accesses(&p.kernel, accesses(tied(i as u16)), is_gpu))
            .fold(0, u64::saturating_add)
    };
    let gathered = parts.operands.iter().enumerate().map(|(at, part)| {
        let lanes = block.lanes(at as u16);
        let lanes = lanes.and_then(|lanes| part.along.iter().position(|along| along.axis == lanes));
        let gathers = lanes.map_or(0, |lanes| gathers(&part.kernel, Var(lanes as u32)));
        (GATHERED * gathers).saturating_mul(accesses(Tied::Operand(at as u16)))
    });
    let in_loads = gathered.fold(of(&parts.operands, &Tied::Operand), u64::saturating_add);
    let rows = parts.rows.as_ref().map_or(0, |(_, part)| operations(&part.kernel));
    [in_loads, of(&parts.results, &Tied::Result).saturating_add(rows)]
}

/// How many loads of expressions gather the lanes of a vector, along which this is the variable, beside one, as the program has it.
fn gathers(kernel: &Kernel, lanes: Var) -> u64 {
    let gathers = |node: &&KNode| match node {
        KNode::Load { addr, .. } => kernel.indices.coefficient(*addr, lanes).unsigned_abs() > 1,
        _ => false,
    };
    (kernel.exprs.iter().filter(gathers).count() as u64).saturating_sub(1)
}

/// Operations of expressions at so many accesses. On a host what depends on some of the axes alone, as the factors of a batch norm do, is
/// computed once for all that an instance accesses along the others.
fn of_accesses(kernel: &Kernel, accesses: u64, is_gpu: bool) -> u64 {
    let points = kernel.points_of(u64::MAX).max(1) as f64;
    let of = |(position, node): (usize, &KNode)| {
        let cost = match node {
            KNode::Map(function, _) => u64::from(function.cost()),
            KNode::Cast(..) | KNode::InRange(..) | KNode::Index(..) => 1,
            _ => 0,
        };
        let part = if is_gpu { 1.0 } else { kernel.points_of(kernel.info[position].vars) as f64 / points };
        cost.saturating_mul((accesses as f64 * part) as u64)
    };
    kernel.exprs.iter().enumerate().map(of).fold(0, u64::saturating_add)
}
