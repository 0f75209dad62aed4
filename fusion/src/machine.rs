//! The machines that programs are made for: what they are, and how fast.

mod warpgroups;

use serde::Serialize;

pub(crate) use self::warpgroups::{AttentionShape, ProductShape, Warpgroups};

/// Instances that there should be on a processor. Not by its threads: sums of other parts are rounded otherwise, and a result
/// must not depend on how many threads there are.
pub(crate) const HOST_PARTS: i64 = 16;

/// What moving a byte to or from the caches takes on a host, in the time of one of memory.
pub(crate) const CACHED: f64 = 0.25;

/// What a schedule is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A processor with this many worker threads.
    Host {
        /// Threads that run program instances.
        threads: u32,
    },
    /// A CUDA device with this many multiprocessors.
    Gpu {
        /// Streaming multiprocessors.
        processors: u32,
        /// How often the largest tiles are halved, because larger ones did not fit in the registers.
        shrink: u32,
        /// Whether several blocks can hold a tile together.
        clusters: bool,
    },
}

impl Machine {
    /// Whether this is a CUDA device.
    pub fn is_gpu(self) -> bool {
        matches!(self, Machine::Gpu { .. })
    }

    /// Whether a kernel of this many instances had better start before its predecessor has ended; see
    /// [`Program::early`](tilefuse_block::Program::early). Measured on an H200, chains of small kernels gain and rows in
    /// 100,000 instances lose a fifth.
    pub(crate) fn starts_early(self, instances: u64) -> bool {
        matches!(self, Machine::Gpu { processors, .. } if instances <= 8 * u64::from(processors))
    }
}

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
    /// Of libtorch's, with other rows, and of its convolutions of images whose pixels begin at no such multiples: these fill up the channels,
    /// and what is filled in counts. Of 64 images of 3 x 224 x 224 in bf16, cuDNN's call with patches of 16 x 16 takes 690 us of an H100,
    /// where copying and multiplying takes 50, and with 64 filters of 7 x 7 440 us of an H200, where writing the result takes 12.
    pub unaligned: f64,
    /// Of kernels of ours, with the largest blocks; 0 on GPUs whose multiprocessors do not multiply by warpgroups.
    pub generated: f64,
    /// Of kernels of ours on the host over `bf16` weights in VNNI-2 layout; 0 where the processor has no instructions for these.
    pub vnni2: f64,
    /// The same over 8-bit integers in VNNI-4 layout.
    pub vnni4: f64,
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
                vnni2: 0.0,
                vnni4: 0.0,
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
    pub fn with_vnni(mut self, [vnni2, vnni4]: [f64; 2]) -> Profile {
        if let Machine::Host { threads } = self.machine {
            let n = f64::from(threads);
            (self.products.vnni2, self.products.vnni4) = (vnni2 * n, vnni4 * n);
        }
        self
    }

    /// What moving a byte of what a kernel leaves for others takes, of so many bytes, in the time of one of memory: on a host it lies
    /// in the caches as far as it fits there.
    pub(crate) fn left_distance(&self, bytes: u64) -> f64 {
        if !self.machine.is_gpu() && bytes <= self.cache * self.workers { CACHED } else { 1.0 }
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
                vnni2: 0.0,
                vnni4: 0.0,
            },
            cache: 1 << 20,
            vector_bits: 512,
            vector_registers: 32,
        }
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
