//! GPUs whose multiprocessors multiply by warpgroups (`wgmma`): what blocks they compute, and how fast, by compute capability.

use super::{Machine, Profile};

/// What multiprocessors that multiply by warpgroups hold, and how fast they are.
#[derive(Debug)]
pub(crate) struct Warpgroups {
    /// Blocks of products that are tried.
    pub(crate) products: &'static [ProductShape],
    /// The most registers of a thread that the sums of a product and vectors along its columns may take.
    pub(crate) product_registers: u32,
    /// What a step of the sum takes at least where four of them are under way, until its operands are there, in elements of a block at
    /// the full rate; less where more are.
    pub(crate) latency: f64,
    /// Blocks of attention that are tried.
    pub(crate) attention: &'static [AttentionShape],
    /// The most registers of a thread for scores, their exponentials and sums.
    pub(crate) attention_registers: u32,
    /// The share of the rate of large products that attention reaches with all multiprocessors at work.
    pub(crate) attention_rate: f64,
    /// The most bytes of shared memory that queries and two steps' keys and values may take.
    pub(crate) shared_bytes: u32,
    /// Warps that a multiprocessor has at a time, about.
    pub(crate) warps: u32,
}

/// A block of a product, and who computes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductShape {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) warps: u32,
    pub(crate) stages: u32,
    /// Groups of so many warps of which one multiplies while the other one stores.
    pub(crate) groups: u32,
    /// Share of the rate of libtorch's products that multiprocessors full of such blocks reach.
    pub(crate) rate: f64,
    /// What filling the stages and storing the sums takes, in steps of the sum.
    pub(crate) filling: i64,
}

/// A block of queries and keys, and who computes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) queries: u32,
    pub(crate) keys: u32,
    pub(crate) warps: u32,
}

/// Compute capability 9.0. What is measured is of an H100.
const SM_90: Warpgroups = Warpgroups {
    products: &[
        ProductShape { rows: 128, columns: 256, warps: 8, stages: 4, groups: 1, rate: 1.0, filling: 320 },
        ProductShape { rows: 128, columns: 128, warps: 8, stages: 6, groups: 1, rate: 0.88, filling: 400 },
        ProductShape { rows: 128, columns: 128, warps: 4, stages: 6, groups: 2, rate: 0.95, filling: 560 },
        ProductShape { rows: 128, columns: 64, warps: 8, stages: 4, groups: 1, rate: 0.5, filling: 240 },
        ProductShape { rows: 256, columns: 64, warps: 4, stages: 4, groups: 2, rate: 0.6, filling: 300 },
        ProductShape { rows: 64, columns: 64, warps: 4, stages: 4, groups: 1, rate: 0.4, filling: 160 },
        // So deep that one instance has a multiprocessor for itself.
        ProductShape { rows: 64, columns: 128, warps: 4, stages: 8, groups: 2, rate: 0.6, filling: 240 },
        ProductShape { rows: 64, columns: 64, warps: 4, stages: 8, groups: 2, rate: 0.41, filling: 500 },
    ],
    product_registers: 239,
    latency: 20_000.0,
    attention: &[
        AttentionShape { queries: 128, keys: 128, warps: 8 },
        AttentionShape { queries: 128, keys: 64, warps: 8 },
        AttentionShape { queries: 64, keys: 64, warps: 4 },
        AttentionShape { queries: 64, keys: 32, warps: 4 },
    ],
    attention_registers: 180,
    attention_rate: 0.55,
    shared_bytes: 200 << 10,
    warps: 16,
};

impl Profile {
    /// What its multiprocessors are, if it is a GPU whose multiprocessors multiply by warpgroups. There is one such compute
    /// capability.
    pub(crate) fn warpgroups(&self) -> Option<&'static Warpgroups> {
        let multiplies = matches!(self.machine, Machine::Gpu { .. }) && self.products.generated > 0.0;
        multiplies.then_some(&SM_90)
    }
}
