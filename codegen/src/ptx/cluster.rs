//! Clusters: several blocks that hold one instance's tiles together.
//!
//! A thread's number counts through the blocks of its cluster, so that layouts see one large block. Blocks meet where
//! a reduction crosses them: each writes its part of every result into the shared memory of all.

use tilefuse_block::Elem;

use super::assign::Assignment;
use super::ir::{Val, memory_ty};
use super::lower::Lower;

/// Blocks of a cluster as a power of two; eight are what every device takes.
const MAX_BLOCKS_LOG: u32 = 3;

/// The warps of a cluster and its blocks, as powers of two, in the order of preference: blocks of few warps first, so that
/// a multiprocessor has several, of which some load while others wait for their cluster.
pub(super) fn shapes() -> Vec<(u32, u32)> {
    let small = (1..=MAX_BLOCKS_LOG).map(|blocks| (2 + blocks, blocks));
    let large = (3..=4).map(|warps| (warps + MAX_BLOCKS_LOG, MAX_BLOCKS_LOG));
    small.chain(large).collect()
}

/// Instructions that define `%tid`, the thread's number in its cluster.
pub(super) fn thread_number(plan: &Assignment) -> String {
    let threads = 1u32 << plan.block_bits();
    let read = format!("call range(i32 0, {threads}) i32 @llvm.nvvm.read.ptx.sreg.tid.x()");
    if plan.cluster == 0 {
        return format!("  %tid = {read}\n");
    }
    format!(
        "  %tid_in_block = {read}\n  \
         %rank = call range(i32 0, {}) i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()\n  \
         %rank_bits = shl nuw nsw i32 %rank, {}\n  %tid = or disjoint i32 %tid_in_block, %rank_bits\n  \
         call void @llvm.nvvm.barrier.cluster.arrive.relaxed.aligned()\n",
        1u32 << plan.cluster,
        plan.block_bits(),
    )
}

/// The function's attribute that makes clusters.
pub(super) fn attribute(plan: &Assignment) -> String {
    match plan.cluster {
        0 => String::new(),
        bits => format!(" \"nvvm.cluster_dim\"=\"{},1,1\"", 1u32 << bits),
    }
}

impl Lower<'_> {
    /// Declares what [`thread_number`] calls.
    pub(super) fn declare_thread_number(&mut self) {
        self.ir.declare("i32 @llvm.nvvm.read.ptx.sreg.tid.x()");
        if self.plan.cluster > 0 {
            self.ir.declare("i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()");
            self.ir.declare("void @llvm.nvvm.barrier.cluster.arrive.relaxed.aligned() convergent nounwind");
        }
    }

    /// Waits for all threads of the cluster, and makes their writes visible to each other.
    pub(super) fn cluster_barrier(&mut self) {
        self.cluster_started();
        self.ir.declare("void @llvm.nvvm.barrier.cluster.arrive.aligned() convergent nounwind");
        self.ir.raw("call void @llvm.nvvm.barrier.cluster.arrive.aligned()");
        self.ir.raw("call void @llvm.nvvm.barrier.cluster.wait.aligned()");
    }

    /// Waits until every block of the cluster runs, once: the shared memory of one that does not is not there.
    pub(super) fn cluster_started(&mut self) {
        self.ir.declare("void @llvm.nvvm.barrier.cluster.wait.aligned() convergent nounwind");
        if !std::mem::replace(&mut self.started, true) {
            self.ir.raw("call void @llvm.nvvm.barrier.cluster.wait.aligned()");
        }
    }

    /// Writes one element of every block's shared memory, given by its address in this block, where `predicate` holds.
    pub(super) fn store_to_all_blocks(&mut self, address: &Val, elem: Elem, value: &Val, predicate: &Val) {
        for block in 0..1u32 << self.plan.cluster {
            self.remote_store(address, elem, value, predicate, block);
        }
    }

    /// Writes one element of a block's shared memory, given by its address in this block, where `predicate` holds.
    fn remote_store(&mut self, address: &Val, elem: Elem, value: &Val, predicate: &Val, block: u32) {
        let (suffix, constraint, word, operand) = self.shared_word(memory_ty(elem), elem, value);
        self.ir.raw(format_args!(
            "call void asm sideeffect \"{{ .reg .b32 at; cvt.u32.u64 at, $0; mapa.shared::cluster.u32 at, at, {block}; \
             @$2 st.shared::cluster.{suffix} [at], $1; }}\", \"l,{constraint},b,~{{memory}}\"\
             (ptr addrspace(3) {address}, {word} {operand}, i1 {predicate}) nounwind"
        ));
    }
}
