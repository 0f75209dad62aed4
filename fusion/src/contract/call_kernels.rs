//! The kernels of a call: its own, and those that make operands for it.

use smallvec::SmallVec;

use super::prepack::Panels;
use super::repeated_heads::RepeatedHeads;
use crate::block_kernel::BlockKernel;
use crate::rewrite::channels_last::ResultLayout;
use crate::types::TensorType;

/// A kernel for a call, and what it is expected to take.
#[derive(Clone, Debug)]
pub struct Template {
    /// The kernel, without neighbours.
    pub kernel: BlockKernel,
    /// Multiplications and additions of the call.
    pub flops: f64,
    /// Bytes that it must move.
    pub bytes: f64,
    /// The shares of the machine's rates that the kernel and libtorch's call reach.
    pub shares: [f64; 2],
    /// What a further operand of the call, which the kernel takes, holds.
    pub panels: Option<Panels>,
    /// What makes further operands before each call.
    pub operand_kernels: Vec<OperandKernel>,
    /// The order in which the kernel writes the result, where that is not row-major.
    pub result_layout: Option<ResultLayout>,
    /// Heads of keys and values that the kernel reads as they were before views repeated them.
    pub repeated_heads: Option<RepeatedHeads>,
    /// The part of the kernel's time that is left where it shares its launch with those of products of the same operand; 1 alone.
    pub shared_launch: f64,
}

impl Template {
    /// Bytes of what other kernels make for the call's in each call.
    pub(super) fn operand_bytes(&self) -> u64 {
        self.operand_kernels.iter().map(|own| own.ty.bytes()).sum()
    }

    /// Whether operands are packed first.
    pub(super) fn packs_operands(&self) -> bool {
        self.operand_kernels.iter().any(|own| !own.computes)
    }

    /// Rows of the right operand that are interleaved: the factor of a VNNI layout, else 1.
    pub(super) fn group(&self) -> i64 {
        let packed = self.operand_kernels.iter().map(|own| own.group).max().unwrap_or(1);
        self.panels.as_ref().map_or(packed, |panels| panels.group)
    }
}

/// What a kernel makes of operands of a call before it: an operand of a product that is packed.
#[derive(Clone, Debug)]
pub struct OperandKernel {
    /// The kernel.
    pub kernel: BlockKernel,
    /// The type of what it makes, of an operand that is packed `[members, outer blocks, inner blocks, elements]`.
    pub ty: TensorType,
    /// The positions of its operands among those of the call.
    pub(super) positions: SmallVec<[u16; 4]>,
    /// Rows of a group of the VNNI layout.
    pub(super) group: i64,
    /// Whether the kernel does most of the call's work, and the call's own kernel little.
    pub(super) computes: bool,
}
