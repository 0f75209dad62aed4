//! The cost model: microseconds of a kernel from its bytes, its operations and how much of the machine it occupies.

use serde::Serialize;

use crate::index::Expr;
use crate::kernel::{KNode, Kernel};
use crate::schedule::{Machine, Tiling, Walk};

/// What a machine can do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// The machine that schedules are made for.
    #[serde(skip)]
    pub machine: Machine,
    /// Memory bandwidth with everything busy, in GB/s, read and written bytes together.
    pub bandwidth: f64,
    /// Simple operations per nanosecond with everything busy.
    pub ops_per_ns: f64,
    /// Cost of starting a kernel, in microseconds.
    pub launch_us: f64,
    /// Program instances that keep the machine busy.
    pub workers: u64,
    /// Operations per nanosecond of products.
    pub products: ProductRates,
    /// Bytes of the cache that each thread on the host has for itself.
    #[serde(skip)]
    pub cache: u64,
    /// Bits of a vector of the processor that programs on the host are compiled for.
    #[serde(skip)]
    pub vector_bits: u32,
    /// How many registers of that processor hold vectors.
    #[serde(skip)]
    pub vector_registers: u32,
}

/// Operations per nanosecond of products, a multiplication and an addition being two: on a GPU of halves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProductRates {
    /// Of libtorch's, with rows that begin at multiples of 16 bytes.
    pub aligned: f64,
    /// Of libtorch's, with other rows.
    pub unaligned: f64,
    /// Of kernels of ours, with the largest blocks; 0 on GPUs whose multiprocessors do not multiply by warpgroups.
    pub generated: f64,
    /// Of kernels of ours on the host over `bf16` weights in VNNI-2 layout; 0 where the processor has no instructions for these.
    pub pairs: f64,
    /// The same over 8-bit integers in VNNI-4 layout.
    pub quads: f64,
}

impl Profile {
    /// A processor with this many threads, by typical figures.
    pub fn host(threads: u32) -> Profile {
        let n = f64::from(threads.max(1));
        Profile {
            machine: Machine::Host { threads: threads.max(1) },
            bandwidth: 12.0 * n,
            ops_per_ns: 24.0 * n,
            launch_us: 2.0,
            workers: u64::from(threads.max(1)),
            products: ProductRates {
                aligned: 64.0 * n,
                unaligned: 64.0 * n,
                generated: 80.0 * n,
                pairs: 0.0,
                quads: 0.0,
            },
            cache: 1 << 20,
            vector_bits: 512,
            vector_registers: 32,
        }
    }

    /// The same for a processor with vectors of so many bits, and so many registers for them.
    #[must_use]
    pub fn with_vectors(mut self, bits: u32, registers: u32) -> Profile {
        (self.vector_bits, self.vector_registers) = (bits, registers);
        self
    }

    /// The same for a processor whose threads have caches of so many bytes for themselves.
    #[must_use]
    pub fn with_cache(mut self, bytes: u64) -> Profile {
        self.cache = bytes;
        self
    }

    /// The same with instructions for pairs of `bf16` and for four 8-bit integers, which make so many operations per
    /// nanosecond in each thread.
    #[must_use]
    pub fn with_groups(mut self, [pairs, quads]: [f64; 2]) -> Profile {
        if let Machine::Host { threads } = self.machine {
            let n = f64::from(threads);
            (self.products.pairs, self.products.quads) = (pairs * n, quads * n);
        }
        self
    }

    /// A CUDA device with this many multiprocessors and this bandwidth in GB/s.
    pub fn gpu(processors: u32, bandwidth: f64) -> Profile {
        let n = f64::from(processors.max(1));
        Profile {
            machine: Machine::Gpu { processors: processors.max(1), shrink: 0, clusters: false },
            bandwidth,
            ops_per_ns: 128.0 * 1.6 * n,
            launch_us: 3.0,
            workers: u64::from(processors.max(1)) * 2,
            products: ProductRates {
                aligned: 3800.0 * n,
                unaligned: 600.0 * n,
                generated: 0.0,
                pairs: 0.0,
                quads: 0.0,
            },
            cache: 1 << 20,
            vector_bits: 512,
            vector_registers: 32,
        }
    }
}

impl Profile {
    /// Whether what the instances at work read is still in the cache when they read it again.
    fn rereads_cached(&self, bytes_read: u64, instances: u64) -> bool {
        let working = bytes_read / instances.max(1) * instances.min(self.workers);
        working <= if self.machine.is_gpu() { 32 << 20 } else { 1 << 20 }
    }

    /// What reading from the cache costs beside reading from memory.
    fn reread_cost(&self) -> f64 {
        if self.machine.is_gpu() { 0.4 } else { 0.25 }
    }

    /// The same GPU, whose multiprocessors multiply by warpgroups.
    #[must_use]
    pub fn with_warpgroups(mut self) -> Profile {
        if self.machine.is_gpu() {
            self.products.generated = self.products.aligned;
        }
        self
    }

    /// The same machine with blocks that form clusters, if it is a GPU.
    pub fn with_clusters(mut self) -> Profile {
        if let Machine::Gpu { clusters, .. } = &mut self.machine {
            *clusters = true;
        }
        self
    }

    /// The same machine with smaller tiles, or `None` where they cannot be smaller.
    pub fn with_smaller_tiles(mut self) -> Option<Profile> {
        match &mut self.machine {
            Machine::Gpu { shrink, .. } if *shrink < 4 => *shrink += 1,
            _ => return None,
        }
        Some(self)
    }
}

/// What a kernel costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) flops: u64,
    pub(crate) us: f64,
}

/// Prices a kernel with its tiles.
pub(crate) fn price(kernel: &Kernel, tiling: &Tiling, profile: &Profile) -> Cost {
    let levels = kernel.reduces.iter().map(|r| u64::from(r.level)).max().unwrap_or(0);
    let passes = if tiling.walk == Walk::Loops { levels.max(1) } else { 1 };
    let mut read = vec![0u64; kernel.buffers.len()];
    let mut strided = 0;
    for (position, node) in kernel.exprs.iter().enumerate() {
        let points = kernel.points_of(kernel.info[position].vars);
        match node {
            KNode::Load { buffer, addr, dynamic, .. } => {
                let b = &kernel.buffers[*buffer as usize];
                let touched = kernel.points_of(kernel.indices.vars(*addr));
                let touched = if dynamic.is_some() { points } else { touched.min(b.span as u64) };
                let bytes = touched * u64::from(b.elem.bytes());
                strided += bytes * waste(kernel, tiling, *addr, b.elem.bytes(), profile);
                let so_far = &mut read[*buffer as usize];
                *so_far = (*so_far).max(bytes);
            }
            KNode::Map(..) | KNode::Cast(..) | KNode::InRange(..) | KNode::Index(..) => {}
            KNode::Const(_) | KNode::Reduce(_) => {}
        }
    }
    let flops = operations(kernel);
    let bytes_written: u64 = kernel
        .stores
        .iter()
        .map(|s| {
            kernel.points_of(kernel.indices.vars(s.addr))
                * u64::from(kernel.buffers[s.buffer as usize].elem.bytes())
        })
        .sum();
    let bytes_read: u64 = read.iter().sum();
    let busy = (tiling.grid(kernel) as f64 / profile.workers as f64).min(1.0);
    let passes_read = if profile.rereads_cached(bytes_read, tiling.grid(kernel)) {
        1.0 + profile.reread_cost() * (passes - 1) as f64
    } else {
        passes as f64
    };
    let traffic = (bytes_read + strided / 4) as f64 * passes_read + bytes_written as f64;
    let traffic = traffic / profile.bandwidth / 1000.0;
    let arithmetic = (flops * passes) as f64 / profile.ops_per_ns / 1000.0;
    Cost { bytes_read, bytes_written, flops, us: traffic.max(arithmetic) / busy + profile.launch_us }
}

/// Operations of a kernel that walks over its points once.
pub(super) fn operations(kernel: &Kernel) -> u64 {
    let of = |(position, node): (usize, &KNode)| {
        let points = kernel.points_of(kernel.info[position].vars);
        match node {
            KNode::Load { .. } => points / 4,
            KNode::Map(function, _) => points * u64::from(function.cost()),
            KNode::Cast(..) | KNode::InRange(..) => points,
            KNode::Index(e, _) => points * u64::from(1 + 8 * u32::from(kernel.indices.nested_vars(*e) != 0)),
            KNode::Const(_) | KNode::Reduce(_) => 0,
        }
    };
    let each: u64 = kernel.exprs.iter().enumerate().map(of).sum();
    each + kernel.reduces.len() as u64 * kernel.points_of(u64::MAX)
}

/// How many quarters of its bytes an access moves in vain because neighbours in the tile are not neighbours in memory.
fn waste(kernel: &Kernel, tiling: &Tiling, addr: Expr, bytes: u32, profile: &Profile) -> u64 {
    let step = |axis: usize| kernel.indices.coefficient(addr, tiling.axes[axis].var).unsigned_abs();
    let Some(last) = tiling.axes.len().checked_sub(1) else { return 0 };
    if step(last) <= 1 {
        return 0;
    }
    let across = (0..last).any(|axis| step(axis) == 1 && tiling.axes[axis].extent >= 8);
    let sector = if profile.machine.is_gpu() { 32 } else { 64 };
    if across { 1 } else { 4 * (step(last).min(u64::from(sector / bytes)) - 1).min(7) }
}
