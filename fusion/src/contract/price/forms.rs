//! What a contraction takes in one of its equivalent forms, before schedules are made for it.
//!
//! ```text
//! us = min(libtorch's call, a kernel of ours) + for each copy in each call (2 bytes / bandwidth + a launch)
//! ```
//!
//! Forms are compared by the rates of halves, whatever the type is: others take longer in each of them.

use super::{CALL_LAUNCHES, Work, copying_us};
use crate::contract::backend::Products;
use crate::machine::Profile;
use crate::types::TensorType;

/// The fewest columns that an instance computes of a product of windows, in libtorch's kernels as in ours.
pub(in crate::contract) const BLOCK_COLUMNS: u32 = 64;

/// How many times as long libtorch's own kernels of depthwise convolutions take as cuDNN's over channels-last: 273 and 64 us of an H100 for
/// 144 filters of 3 x 3 over 64 images of 56 x 56.
const NATIVE_DEPTHWISE: f64 = 4.0;

/// What forms are priced by.
#[derive(Clone, Copy)]
pub(crate) struct Prices<'p> {
    /// The machine.
    pub(crate) profile: &'p Profile,
    /// Which products become kernels.
    pub(crate) products: Products,
    /// Whether weights may be prepacked.
    pub(crate) prepacks: bool,
}

/// What computes a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::contract) enum ComputedBy {
    /// libtorch's call, or a kernel of ours where one may be: rows begin at multiples of 16 bytes.
    CallOrKernel,
    /// libtorch's call over such rows alone.
    Call,
    /// libtorch's call over rows or pixels that do not.
    UnalignedCall,
    /// libtorch's own kernels of depthwise convolutions, over images as they lie.
    NativeDepthwise,
    /// A kernel of ours alone.
    Kernel,
}

/// What a contraction computes, moves and copies in one of its forms.
#[derive(Debug)]
pub(in crate::contract) struct FormWork {
    /// By what.
    pub(in crate::contract) by: ComputedBy,
    /// Multiplications and additions, those of what is filled in among them.
    pub(in crate::contract) flops: f64,
    /// Bytes that must be moved.
    pub(in crate::contract) bytes: f64,
    /// Bytes of each operand that is copied for it in each call.
    pub(in crate::contract) copies: Vec<f64>,
    /// Bytes of each weight that is copied for it: in each call, unless weights are prepacked.
    pub(in crate::contract) prepackable: Vec<f64>,
}

impl FormWork {
    /// That of a product with sums of so many products, which libtorch's call computes over unaligned rows.
    pub(in crate::contract) fn of_call(out: &TensorType, operands: [&TensorType; 2], depth: i64) -> FormWork {
        let moved: u64 = operands.iter().map(|ty| ty.bytes()).sum();
        // Sums are rounded to the type of the operands before they are stored.
        let written = out.numel() as f64 * operands[0].dtype.bytes() as f64;
        FormWork {
            by: ComputedBy::UnalignedCall,
            flops: 2.0 * out.numel() as f64 * depth as f64,
            bytes: moved as f64 + written,
            copies: Vec::new(),
            prepackable: Vec::new(),
        }
    }

    /// What it takes in microseconds; `None` where nothing computes it.
    pub(in crate::contract) fn us(&self, prices: Prices<'_>) -> Option<f64> {
        let Prices { profile, products, prepacks } = prices;
        let rates = profile.products;
        let share = if self.by == ComputedBy::UnalignedCall { rates.unaligned / rates.aligned } else { 1.0 };
        let work = Work { shares: [1.0, share], ..Work::new(self.flops, self.bytes) };
        let has_kernel = products != Products::Library && rates.generated > 0.0;
        let launches_us = CALL_LAUNCHES * profile.launch_us;
        let library = || work.library_us(profile) + launches_us;
        let kernel = || work.generated_us(profile) + profile.launch_us;
        let us = match self.by {
            ComputedBy::CallOrKernel if has_kernel => library().min(kernel()),
            ComputedBy::CallOrKernel | ComputedBy::Call | ComputedBy::UnalignedCall => library(),
            ComputedBy::NativeDepthwise => NATIVE_DEPTHWISE * work.library_us(profile) + launches_us,
            ComputedBy::Kernel if has_kernel => kernel(),
            ComputedBy::Kernel => return None,
        };
        let prepackable = self.prepackable.iter().filter(|_| !prepacks);
        let copies: Vec<f64> = self.copies.iter().chain(prepackable).copied().collect();
        Some(us + copying_us(&copies, profile))
    }
}
