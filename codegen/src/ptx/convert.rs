//! Changes of layout: within a thread where each has what it needs, else through shared memory.

use tilefuse_block::Elem;

use super::ir::{Val, memory_ty, ty};
use super::lower::Lower;
use crate::error::{Error, Result};
use crate::layout::Layout;

impl Lower<'_> {
    /// The elements that `from` holds in `regs`, in the layout `to`.
    pub(crate) fn convert(
        &mut self,
        from: &Layout,
        regs: &[Val],
        to: &Layout,
        elem: Elem,
    ) -> Result<Vec<Val>> {
        match self.in_thread(from, regs, to, elem) {
            Some(regs) => Ok(regs),
            None if self.plan.cluster > 0 => Err(Error::TileTooLarge {
                program: self.program().name.clone(),
                resource: "elements in the shared memory of one block",
                needed: 1 << from.shape().iter().sum::<u32>(),
                limit: 0,
            }),
            None => match self.by_pieces(from, regs, to, elem) {
                Some(regs) => Ok(regs),
                None => self.through_shared(from, regs, to, elem),
            },
        }
    }

    /// Each thread has what it needs where the thread's bits have the same bases in both layouts, or have none in
    /// `from`, which then holds the elements of both values of the bit in registers.
    fn in_thread(&mut self, from: &Layout, regs: &[Val], to: &Layout, elem: Elem) -> Option<Vec<Val>> {
        let (have, want) = (from.threads(), to.threads());
        let picks: Vec<(usize, u32)> =
            (0..have.len()).filter(|&i| have[i] != want[i]).map(|i| (i, want[i])).collect();
        if picks.len() > 3 || picks.iter().any(|&(i, basis)| have[i] != 0 || from.reg_at(basis).is_none()) {
            return None;
        }
        let mut out = Vec::with_capacity(to.num_regs());
        for r in 0..to.num_regs() {
            let choices: Option<Vec<Val>> = (0..1usize << picks.len())
                .map(|set| {
                    let chosen = picks.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
                    let offset = chosen.fold(to.reg_offset(r), |sum, (_, (_, basis))| sum ^ basis);
                    from.reg_at(offset).map(|r| regs[r].clone())
                })
                .collect();
            out.push(choices?);
        }
        let bits: Vec<u32> = picks.iter().map(|(bit, _)| 1 << bit).collect();
        Some(out.into_iter().map(|choices| self.choose(choices, &bits, elem)).collect())
    }

    /// Picks one of `2^n` values by `n` bits of the thread's number.
    fn choose(&mut self, mut choices: Vec<Val>, bits: &[u32], elem: Elem) -> Val {
        let t = ty(elem);
        for &bit in bits {
            let zero = self.threads_zero(bit);
            choices = choices
                .chunks_exact(2)
                .map(|pair| self.ir.def(format_args!("select i1 {zero}, {t} {}, {t} {}", pair[0], pair[1])))
                .collect();
        }
        choices.swap_remove(0)
    }

    /// Writes every element by its number, waits, and reads what is wanted.
    fn through_shared(&mut self, from: &Layout, regs: &[Val], to: &Layout, elem: Elem) -> Result<Vec<Val>> {
        self.publish(from, regs, elem);
        let mut out = Vec::with_capacity(to.num_regs());
        for r in 0..to.num_regs() {
            let address = self.slot(to, r, elem);
            out.push(self.shared_load(&address, elem));
        }
        Ok(out)
    }

    /// Writes every element of a tile by its number to shared memory, and waits.
    pub(crate) fn publish(&mut self, from: &Layout, regs: &[Val], elem: Elem) {
        let count = 1u64 << from.shape().iter().sum::<u32>();
        let bytes = u64::from(elem.bytes());
        if self.shared.for_convert(padded(count * bytes)) {
            self.barrier();
        }
        let copies = from.replicated_threads();
        let writes = self.threads_zero(copies);
        for (r, value) in regs.iter().enumerate() {
            let address = self.slot(from, r, elem);
            let value = self.pack_memory(elem, value);
            self.shared_store(&address, elem, &value, &writes);
        }
        self.barrier();
    }

    /// Reads one element of shared memory.
    pub(crate) fn shared_load(&mut self, address: &Val, elem: Elem) -> Val {
        let (e, bytes) = (memory_ty(elem), elem.bytes());
        let value = self.ir.def(format_args!("load {e}, ptr addrspace(3) {address}, align {bytes}"));
        self.unpack_memory(elem, value)
    }

    /// The address in shared memory of the element in register `r`. One word is left free after every 32, so that
    /// strides that are powers of two do not meet in one bank.
    pub(crate) fn slot(&mut self, layout: &Layout, r: usize, elem: Elem) -> Val {
        let thread = self.thread_part(layout);
        let number = match layout.reg_offset(r) {
            0 => thread,
            offset => self.ir.def(format_args!("or disjoint i32 {thread}, {offset}")),
        };
        self.slot_of(&number, elem)
    }

    /// [`Lower::slot`] of the element of number `number`.
    pub(crate) fn slot_of(&mut self, number: &Val, elem: Elem) -> Val {
        let byte = self.ir.def(format_args!("mul nuw nsw i32 {number}, {}", elem.bytes()));
        let row = self.ir.def(format_args!("lshr i32 {byte}, 7"));
        let pad = self.ir.def(format_args!("shl nuw nsw i32 {row}, {}", pad_bits(elem)));
        let place = self.ir.def(format_args!("add nuw nsw i32 {byte}, {pad}"));
        self.scratch(&place)
    }

    /// The address of a byte of the shared memory for changes of layout.
    pub(crate) fn scratch(&mut self, byte: &Val) -> Val {
        let wide = self.ir.def(format_args!("zext i32 {byte} to i64"));
        let start = match self.shared.stages {
            0 => "@tilefuse_convert".to_owned(),
            bytes => format!("getelementptr (i8, ptr addrspace(3) @tilefuse_convert, i64 {bytes})"),
        };
        self.ir.def(format_args!("getelementptr i8, ptr addrspace(3) {start}, i64 {wide}"))
    }
}

/// The free bytes after every 128, as a power of two; not less than an element, which must stay aligned.
fn pad_bits(elem: Elem) -> u32 {
    if elem.bytes() == 8 { 3 } else { 2 }
}

/// The bytes that `bytes` bytes of elements take.
fn padded(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(128) * 8
}
