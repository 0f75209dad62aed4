//! Loads and stores of global memory, as wide as addresses and masks allow.

use tilefuse_block::{Elem, Literal, Op, OpKind, Value};

use super::assign::mask_of;
use super::ir::{Val, literal, memory_ty, ty};
use super::lower::Lower;
use super::vectorize::Move;
use crate::error::Result;
use crate::layout::Layout;

/// How a vector of elements is moved: in so many words of one type.
struct Words {
    count: usize,
    ty: &'static str,
    /// The suffix of the instruction.
    suffix: String,
    /// The constraint of a register in inline assembly.
    constraint: char,
}

impl Words {
    /// For `bytes` bytes, a power of two up to 16, of elements of `elem` bytes.
    fn new(bytes: u32, elem: u32) -> Words {
        let (size, ty, constraint) = match bytes {
            1 => (1, "i32", 'r'),
            2 => (2, "i16", 'h'),
            _ if elem == 8 => (8, "i64", 'l'),
            _ => (4, "i32", 'r'),
        };
        let count = (bytes / size) as usize;
        let suffix = if count == 1 { format!("b{}", size * 8) } else { format!("v{count}.b{}", size * 8) };
        Words { count, ty, suffix, constraint }
    }
}

impl<'a> Lower<'a> {
    pub(crate) fn load(&mut self, op: &'a Op) -> Result<()> {
        let layout = self.plan.access(op);
        if let Some(why) = self.hazards.before_read(self.plan, op, &layout) {
            self.barrier(why);
        }
        let Move { group, uniform, shifted } = self.plan.moves(op);
        let elem = self.pointee(op)?;
        let mask = self.mask(op, &layout)?;
        let fallback = match &op.kind {
            OpKind::Load { other: true, .. } => op.args.last().map(|&o| self.get(o, &layout)).transpose()?,
            _ => None,
        };
        let addresses = self.addresses(op, &layout, group)?;
        if shifted {
            let other = fallback.as_deref().map(Vec::as_slice);
            let regs =
                self.load_shifted(op, &layout, &addresses, mask.as_deref().map(Vec::as_slice), other)?;
            self.hazards.read(op, &layout);
            self.hold(op.results[0], layout, regs);
            return Ok(());
        }
        let wanted = match &mask {
            Some(mask) if !uniform => self.wanted(op, &layout, mask, group)?,
            _ => Vec::new(),
        };
        let mut regs = Vec::with_capacity(layout.num_regs());
        for (i, address) in addresses.iter().enumerate() {
            let start = i * group;
            match &mask {
                None => regs.extend(self.plain_load(address, elem, group)),
                Some(mask) => {
                    let zero = literal(Literal::of(elem, 0.0));
                    let fallback: Vec<Val> = match &fallback {
                        Some(f) => f[start..start + group].to_vec(),
                        None => vec![zero; group],
                    };
                    let masks = &mask[start..start + group];
                    let any = if uniform { masks[0].clone() } else { wanted[i].any.clone() };
                    let loaded = self.masked_load(address, elem, &any, &fallback);
                    match uniform {
                        true => regs.extend(loaded),
                        false => regs.extend(self.merge(elem, masks, &loaded, &fallback)),
                    }
                }
            }
        }
        self.hazards.read(op, &layout);
        self.hold(op.results[0], layout, regs);
        Ok(())
    }

    pub(crate) fn store(&mut self, op: &'a Op) -> Result<()> {
        let layout = self.plan.access(op);
        let values = self.get(op.args[2], &layout)?;
        let mask = self.mask(op, &layout)?;
        let Move { group, uniform, .. } = self.plan.moves(op);
        let addresses = self.addresses(op, &layout, group)?;
        if let Some(why) = self.hazards.before_write(self.plan, op, &layout) {
            self.barrier(why);
        }
        let elem = self.pointee(op)?;
        let copies = layout.replicated_threads();
        let first = (copies != 0).then(|| self.threads_zero(copies));
        match &mask {
            Some(mask) if !uniform => {
                let wanted = self.wanted(op, &layout, mask, group)?;
                self.store_partly((&addresses, elem), &values, mask, &wanted, first.as_ref());
            }
            mask => {
                for (i, (address, values)) in addresses.iter().zip(values.chunks(group)).enumerate() {
                    let predicate = self.both(mask.as_ref().map(|m| &m[i * group]), first.as_ref());
                    self.store_group(address, elem, values, predicate);
                }
            }
        }
        self.hazards.write(op, &layout);
        Ok(())
    }

    pub(crate) fn pointee(&self, op: &Op) -> Result<Elem> {
        self.program().ty(op.args[0]).pointee().ok_or_else(|| self.invalid("an access through no pointer"))
    }

    pub(super) fn both(&mut self, a: Option<&Val>, b: Option<&Val>) -> Option<Val> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.ir.def(format_args!("and i1 {a}, {b}"))),
            (a, b) => a.or(b).cloned(),
        }
    }

    /// What was loaded where the mask holds, else the fallback.
    pub(super) fn merge(&mut self, elem: Elem, masks: &[Val], loaded: &[Val], fallback: &[Val]) -> Vec<Val> {
        let t = ty(elem);
        let triples = masks.iter().zip(loaded).zip(fallback);
        triples.map(|((m, a), b)| self.ir.def(format_args!("select i1 {m}, {t} {a}, {t} {b}"))).collect()
    }

    /// The mask, unless it is known to be true.
    pub(crate) fn mask(&mut self, op: &Op, layout: &Layout) -> Result<Option<std::rc::Rc<Vec<Val>>>> {
        match mask_of(op) {
            Some(mask) if self.plan.facts[mask.index()].constant != Some(1) => {
                self.get(mask, layout).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The address of each group's first element.
    pub(crate) fn addresses(&mut self, op: &Op, layout: &Layout, group: usize) -> Result<Vec<Val>> {
        let base = self.scalar(op.args[0])?;
        let elem = self.pointee(op)?;
        let t = memory_ty(elem);
        let deltas = self.deltas(op.args[1], layout);
        let offsets = self.get(op.args[1], layout)?;
        let wide = self.elem(op.args[1])? == Elem::I64;
        let address = |lower: &mut Self, r: usize| {
            let offset = match wide {
                true => offsets[r].clone(),
                false => lower.ir.def(format_args!("sext i32 {} to i64", offsets[r])),
            };
            lower.ir.def(format_args!("getelementptr {t}, ptr addrspace(1) {base}, i64 {offset}"))
        };
        let starts = (0..layout.num_regs()).step_by(group);
        let Some(deltas) = deltas else { return Ok(starts.map(|r| address(self, r)).collect()) };
        let first = address(self, 0);
        Ok(starts
            .map(|r| match deltas[r] {
                0 => first.clone(),
                d => self.ir.def(format_args!("getelementptr {t}, ptr addrspace(1) {first}, i64 {d}")),
            })
            .collect())
    }

    /// How far the offset in each register lies from that in the first, where that is one number for all threads.
    fn deltas(&self, offsets: Value, layout: &Layout) -> Option<Vec<i64>> {
        let slopes = &self.plan.facts[offsets.index()].slope;
        let slope = |basis: u32| {
            (0..slopes.len()).find(|&a| layout.axis_mask(a) & basis != 0).map(|a| (a, slopes[a]))
        };
        let mut steps = Vec::new();
        for &basis in layout.regs() {
            let (axis, slope) = slope(basis)?;
            let along = basis >> layout.axis_mask(axis).trailing_zeros();
            steps.push(slope?.checked_mul(i64::from(along))?);
        }
        let delta =
            |r: usize| steps.iter().enumerate().filter(|(i, _)| r >> i & 1 == 1).map(|(_, s)| s).sum();
        Some((0..layout.num_regs()).map(delta).collect())
    }

    pub(super) fn plain_load(&mut self, address: &Val, elem: Elem, count: usize) -> Vec<Val> {
        let words = Words::new(count as u32 * elem.bytes(), elem.bytes());
        let bytes = count as u32 * elem.bytes();
        if count == 1 {
            let t = memory_ty(elem);
            let value = self.ir.def(format_args!("load {t}, ptr addrspace(1) {address}, align {bytes}"));
            return vec![self.unpack_memory(elem, value)];
        }
        let t =
            if words.count == 1 { words.ty.to_owned() } else { format!("<{} x {}>", words.count, words.ty) };
        let vector = self.ir.def(format_args!("load {t}, ptr addrspace(1) {address}, align {bytes}"));
        self.split(&t, &vector, elem, count)
    }

    /// A load that happens only where `mask` holds; elsewhere the elements are `fallback`.
    pub(super) fn masked_load(
        &mut self,
        address: &Val,
        elem: Elem,
        mask: &Val,
        fallback: &[Val],
    ) -> Vec<Val> {
        let count = fallback.len();
        let words = Words::new(count as u32 * elem.bytes(), elem.bytes());
        let n = words.count;
        let initial = self.join(&words, elem, fallback);
        let outputs: Vec<String> = (0..n).map(|i| format!("${i}")).collect();
        let outputs = if n == 1 { "$0".to_owned() } else { format!("{{{}}}", outputs.join(", ")) };
        // The address is an operand in memory, which keeps LLVM's passes on instructions from moving the load past stores.
        let text = format!("@${} ld.global.{} {outputs}, ${n};", n + 1, words.suffix);
        let constraints: Vec<String> = (0..n)
            .map(|_| format!("={}", words.constraint))
            .chain(["*m".to_owned(), "b".to_owned()])
            .chain((0..n).map(|i| i.to_string()))
            .collect();
        let result =
            if n == 1 { words.ty.to_owned() } else { format!("{{ {} }}", vec![words.ty; n].join(", ")) };
        let initial: Vec<String> = initial.iter().map(|w| format!("{} {w}", words.ty)).collect();
        let call = self.ir.def(format_args!(
            "call {result} asm \"{text}\", \"{}\"(ptr addrspace(1) elementtype({}) {address}, i1 {mask}, {}) \
             nounwind memory(read)",
            constraints.join(","),
            words.ty,
            initial.join(", ")
        ));
        if n == 1 {
            return self.unpack_word(words.ty, call, elem, count);
        }
        let vector_ty = format!("<{n} x {}>", words.ty);
        let mut vector: Val = "poison".into();
        for i in 0..n {
            let word = self.ir.def(format_args!("extractvalue {result} {call}, {i}"));
            vector =
                self.ir.def(format_args!("insertelement {vector_ty} {vector}, {} {word}, i32 {i}", words.ty));
        }
        self.split(&vector_ty, &vector, elem, count)
    }

    pub(super) fn store_group(&mut self, address: &Val, elem: Elem, values: &[Val], predicate: Option<Val>) {
        let words = Words::new(values.len() as u32 * elem.bytes(), elem.bytes());
        let parts = self.join(&words, elem, values);
        let bytes = values.len() as u32 * elem.bytes();
        let Some(predicate) = predicate else {
            if bytes == 1 {
                let byte = self.pack_memory(elem, &values[0]);
                self.ir.raw(format_args!("store i8 {byte}, ptr addrspace(1) {address}, align 1"));
                return;
            }
            let (t, value) = self.vector_of(&words, &parts);
            self.ir.raw(format_args!("store {t} {value}, ptr addrspace(1) {address}, align {bytes}"));
            return;
        };
        let n = words.count;
        let names: Vec<String> = (0..n).map(|i| format!("${}", i + 1)).collect();
        let names = if n == 1 { "$1".to_owned() } else { format!("{{{}}}", names.join(", ")) };
        let text = format!("@${} st.global.{} [$0], {names};", n + 1, words.suffix);
        let constraints = vec![words.constraint.to_string(); n].join(",");
        let operands: Vec<String> = parts.iter().map(|w| format!("{} {w}", words.ty)).collect();
        self.ir.raw(format_args!(
            "call void asm sideeffect \"{text}\", \"l,{constraints},b,~{{memory}}\"(ptr addrspace(1) {address}, {}, \
             i1 {predicate}) nounwind",
            operands.join(", ")
        ));
    }

    /// Writes neighbours to shared memory, 16 bytes at most, whose address is a multiple of their size.
    pub(crate) fn shared_store_group(&mut self, address: &Val, elem: Elem, values: &[Val]) {
        let bytes = values.len() as u32 * elem.bytes();
        if let [value] = values {
            let (t, value) = (memory_ty(elem), self.pack_memory(elem, value));
            self.ir.raw(format_args!("store {t} {value}, ptr addrspace(3) {address}, align {bytes}"));
            return;
        }
        let words = Words::new(bytes, elem.bytes());
        let parts = self.join(&words, elem, values);
        let (t, value) = self.vector_of(&words, &parts);
        self.ir.raw(format_args!("store {t} {value}, ptr addrspace(3) {address}, align {bytes}"));
    }

    /// Reads neighbours from shared memory, as [`Lower::shared_store_group`] writes them.
    pub(crate) fn shared_load_group(&mut self, address: &Val, elem: Elem, count: usize) -> Vec<Val> {
        let bytes = count as u32 * elem.bytes();
        if count == 1 {
            return vec![self.shared_load(address, elem)];
        }
        let words = Words::new(bytes, elem.bytes());
        let t = match words.count {
            1 => words.ty.to_owned(),
            n => format!("<{n} x {}>", words.ty),
        };
        let vector = self.ir.def(format_args!("load {t}, ptr addrspace(3) {address}, align {bytes}"));
        self.split(&t, &vector, elem, count)
    }

    fn vector_of(&mut self, words: &Words, parts: &[Val]) -> (String, Val) {
        if let [only] = parts {
            return (words.ty.to_owned(), only.clone());
        }
        let t = format!("<{} x {}>", words.count, words.ty);
        let mut vector: Val = "poison".into();
        for (i, part) in parts.iter().enumerate() {
            vector = self.ir.def(format_args!("insertelement {t} {vector}, {} {part}, i32 {i}", words.ty));
        }
        (t, vector)
    }

    /// The elements of a vector of words.
    pub(super) fn split(&mut self, t: &str, vector: &Val, elem: Elem, count: usize) -> Vec<Val> {
        let e = memory_ty(elem);
        if elem == Elem::Bf16 && count.is_multiple_of(2) {
            return self.split_pairs(t, vector, count);
        }
        let elements = self.ir.def(format_args!("bitcast {t} {vector} to <{count} x {e}>"));
        (0..count)
            .map(|i| {
                let value = self.ir.def(format_args!("extractelement <{count} x {e}> {elements}, i32 {i}"));
                self.unpack_memory(elem, value)
            })
            .collect()
    }

    /// The 16-bit floats of a vector of words, as the halves of 32-bit integers.
    fn split_pairs(&mut self, t: &str, vector: &Val, count: usize) -> Vec<Val> {
        let words = self.ir.def(format_args!("bitcast {t} {vector} to <{} x i32>", count / 2));
        let mut out = Vec::with_capacity(count);
        for i in 0..count / 2 {
            let pair = self.ir.def(format_args!("extractelement <{} x i32> {words}, i32 {i}", count / 2));
            let high = self.ir.def(format_args!("lshr i32 {pair}, 16"));
            for (half, is_high) in [(pair.clone(), false), (high, true)] {
                let bits = self.ir.def(format_args!("trunc i32 {half} to i16"));
                let value = self.ir.def(format_args!("bitcast i16 {bits} to bfloat"));
                self.ir.note_half(&value, &pair, is_high);
                out.push(value);
            }
        }
        out
    }

    /// The elements in one word.
    fn unpack_word(&mut self, word: &str, value: Val, elem: Elem, count: usize) -> Vec<Val> {
        let e = memory_ty(elem);
        if count > 1 {
            return self.split(word, &value, elem, count);
        }
        let value = match (word, elem.bytes()) {
            ("i32", 1) => self.ir.def(format_args!("trunc i32 {value} to i8")),
            _ if word == e => value,
            _ => self.ir.def(format_args!("bitcast {word} {value} to {e}")),
        };
        vec![self.unpack_memory(elem, value)]
    }

    /// Elements packed into words.
    fn join(&mut self, words: &Words, elem: Elem, values: &[Val]) -> Vec<Val> {
        let (e, count) = (memory_ty(elem), values.len());
        let stored: Vec<Val> = values.iter().map(|v| self.pack_memory(elem, v)).collect();
        if count == 1 {
            return vec![match (words.ty, elem.bytes()) {
                ("i32", 1) => self.ir.def(format_args!("zext i8 {} to i32", stored[0])),
                (word, _) if word == e => stored[0].clone(),
                (word, _) => self.ir.def(format_args!("bitcast {e} {} to {word}", stored[0])),
            }];
        }
        let mut vector: Val = "poison".into();
        for (i, v) in stored.iter().enumerate() {
            vector = self.ir.def(format_args!("insertelement <{count} x {e}> {vector}, {e} {v}, i32 {i}"));
        }
        let word = words.ty;
        if words.count == 1 {
            return vec![self.ir.def(format_args!("bitcast <{count} x {e}> {vector} to {word}"))];
        }
        let n = words.count;
        let all = self.ir.def(format_args!("bitcast <{count} x {e}> {vector} to <{n} x {word}>"));
        (0..n).map(|i| self.ir.def(format_args!("extractelement <{n} x {word}> {all}, i32 {i}"))).collect()
    }

    /// An element from its form in memory.
    pub(crate) fn unpack_memory(&mut self, elem: Elem, value: Val) -> Val {
        if elem == Elem::Bool { self.ir.def(format_args!("icmp ne i8 {value}, 0")) } else { value }
    }

    /// An element in its form in memory.
    pub(crate) fn pack_memory(&mut self, elem: Elem, value: &Val) -> Val {
        if elem == Elem::Bool { self.ir.def(format_args!("zext i1 {value} to i8")) } else { value.clone() }
    }
}
