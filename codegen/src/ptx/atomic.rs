//! Atomic operations: one thread changes each element, and tells those that hold it as well what it was.

use tilefuse_block::{AtomicFn, Elem, Literal, MemoryOrder, MemoryScope, Op, OpKind};

use super::Target;
use super::barrier::BarrierReason;
use super::ir::{Val, literal, memory_ty, ty};
use super::lower::Lower;
use crate::error::Result;
use crate::layout::Layout;
use crate::scalar;

/// What the accesses of one operation have in common.
struct Access {
    elem: Elem,
    /// `.acq_rel.gpu` and the like.
    suffix: String,
}

impl<'a> Lower<'a> {
    pub(crate) fn atomic(
        &mut self,
        op: &'a Op,
        function: AtomicFn,
        (order, scope): (MemoryOrder, MemoryScope),
    ) -> Result<()> {
        let mask = if let OpKind::Atomic { masked: true, .. } = op.kind { op.args.get(3) } else { None };
        let layout = self.plan.home(op.results[0]);
        let mask = mask.map(|&mask| self.get(mask, &layout)).transpose()?;
        let values = self.get(op.args[2], &layout)?;
        self.accesses(op, &layout, (order, scope), |lower, access, r, address, owner| {
            let predicate = match &mask {
                Some(mask) => lower.ir.def(format_args!("and i1 {owner}, {}", mask[r])),
                None => owner.clone(),
            };
            lower.change(access, function, address, &values[r], &predicate)
        })
    }

    pub(crate) fn atomic_cas(&mut self, op: &'a Op, how: (MemoryOrder, MemoryScope)) -> Result<()> {
        let layout = self.plan.home(op.results[0]);
        let (expected, new) = (self.get(op.args[2], &layout)?, self.get(op.args[3], &layout)?);
        self.accesses(op, &layout, how, |lower, access, r, address, owner| {
            let elem = access.elem;
            let words = [lower.word_of(elem, &expected[r]), lower.word_of(elem, &new[r])];
            let what = format!("cas.b{}", elem.bits());
            let old = lower.atom(access, &what, address, &words, owner, None);
            Ok(lower.element_of(elem, &old))
        })
    }

    /// Changes every element once, by `change`, which is given the register, the address and whether this thread is
    /// the one that does it, and gives what was there before.
    fn accesses(
        &mut self,
        op: &'a Op,
        layout: &Layout,
        (order, scope): (MemoryOrder, MemoryScope),
        mut change: impl FnMut(&mut Self, &Access, usize, &Val, &Val) -> Result<Val>,
    ) -> Result<()> {
        let elem = self.pointee(op)?;
        let scope = match scope {
            MemoryScope::Block => "cta",
            MemoryScope::Device => "gpu",
            MemoryScope::System => "sys",
        };
        let access = Access { elem, suffix: format!(".{}.{scope}", order.name()) };
        let addresses = self.addresses(op, layout, 1)?;
        let releases = matches!(order, MemoryOrder::Release | MemoryOrder::AcqRel);
        let read = self.hazards.before_read(self.plan, op, layout);
        let met = read.or_else(|| self.hazards.before_write(self.plan, op, layout));
        if let Some(why) = met.or(releases.then_some(BarrierReason::Order)) {
            self.barrier(why);
        }
        let copies = layout.replicated_threads();
        let owner = self.threads_zero(copies);
        let old: Vec<Val> = addresses
            .iter()
            .enumerate()
            .map(|(r, address)| change(self, &access, r, address, &owner))
            .collect::<Result<_>>()?;
        self.hazards.write(op, layout);
        let old = match copies {
            0 => old,
            _ if !self.plan.used[op.results[0].index()] => old,
            _ => self.told(layout, &old, elem),
        };
        if matches!(order, MemoryOrder::Acquire | MemoryOrder::AcqRel) {
            self.barrier(BarrierReason::Order);
        }
        self.hold(op.results[0], layout.clone(), old);
        Ok(())
    }

    /// What the threads that own elements have, in every thread that holds them.
    fn told(&mut self, layout: &Layout, regs: &[Val], elem: Elem) -> Vec<Val> {
        self.publish(layout, regs, elem);
        let mut out = Vec::with_capacity(regs.len());
        for r in 0..regs.len() {
            let address = self.slot(layout, r, elem);
            out.push(self.shared_load(&address, elem));
        }
        out
    }

    /// One change where `predicate` holds; what was there before, 0 elsewhere.
    fn change(
        &mut self,
        access: &Access,
        function: AtomicFn,
        address: &Val,
        value: &Val,
        predicate: &Val,
    ) -> Result<Val> {
        let elem = access.elem;
        let bits = elem.bits();
        if elem.is_float() && matches!(function, AtomicFn::Max | AtomicFn::Min) {
            return Ok(self.extreme(access, function == AtomicFn::Max, address, value, predicate));
        }
        if elem == Elem::Bf16 && self.target == Target::Sm80 {
            return self.add_by_exchange(access, address, value, predicate);
        }
        let sign = if elem.is_signed_int() { 's' } else { 'u' };
        let what = match function {
            AtomicFn::Add if bits == 16 => format!("add.noftz.{}", elem.name()),
            AtomicFn::Add if elem.is_float() => format!("add.f{bits}"),
            AtomicFn::Add => format!("add.u{bits}"),
            AtomicFn::Max => format!("max.{sign}{bits}"),
            AtomicFn::Min => format!("min.{sign}{bits}"),
            AtomicFn::And => format!("and.b{bits}"),
            AtomicFn::Or => format!("or.b{bits}"),
            AtomicFn::Xor => format!("xor.b{bits}"),
            AtomicFn::Exchange => format!("exch.b{bits}"),
        };
        let word = self.word_of(elem, value);
        let old = self.atom(access, &what, address, &[word], predicate, None);
        Ok(self.element_of(elem, &old))
    }

    /// Maximum or minimum of floats, as integers: those of one sign are ordered as their bits are. NaN wins as the
    /// largest pattern of its sign, or the lowest number there is; one in memory that has the other sign is put back.
    fn extreme(&mut self, access: &Access, most: bool, address: &Val, value: &Val, predicate: &Val) -> Val {
        let elem = access.elem;
        let (t, bits) = (ty(elem), elem.bits());
        let nan = self.ir.def(format_args!("fcmp uno {t} {value}, {value}"));
        let own = self.word_of(elem, value);
        // The quiet NaN without a sign, or all ones.
        let winner: Val = if most {
            literal(Literal::int(if bits == 32 { Elem::I32 } else { Elem::I64 }, quiet(bits)))
        } else {
            "-1".into()
        };
        let word = self.ir.def(format_args!("select i1 {nan}, i{bits} {winner}, i{bits} {own}"));
        let negative = self.ir.def(format_args!("icmp slt i{bits} {word}, 0"));
        let above = self.ir.def(format_args!("xor i1 {negative}, true"));
        let (up, down) = if most { ("max", "min") } else { ("min", "max") };
        let first = self.ir.def(format_args!("and i1 {predicate}, {above}"));
        let second = self.ir.def(format_args!("and i1 {predicate}, {negative}"));
        let word = [word];
        let old = self.atom(access, &format!("{up}.s{bits}"), address, &word, &first, None);
        let old = self.atom(access, &format!("{down}.u{bits}"), address, &word, &second, Some(&old));
        let before = self.element_of(elem, &old);
        let was_nan = self.ir.def(format_args!("fcmp uno {t} {before}, {before}"));
        let lost = self.ir.def(format_args!("and i1 {predicate}, {was_nan}"));
        let again = if most { format!("max.s{bits}") } else { format!("max.u{bits}") };
        self.atom(access, &again, address, &[winner], &lost, None);
        before
    }

    /// Adds by comparing and exchanging until nobody came between.
    fn add_by_exchange(
        &mut self,
        access: &Access,
        address: &Val,
        value: &Val,
        predicate: &Val,
    ) -> Result<Val> {
        let n = self.ir.label();
        let (start, again, end) = (format!("start{n}"), format!("again{n}"), format!("end{n}"));
        let before = self.ir.block().to_owned();
        self.ir.raw(format_args!("br i1 {predicate}, label %{start}, label %{end}"));
        self.ir.begin(&start);
        let first =
            self.ir.def(format_args!("load atomic i16, ptr addrspace(1) {address} monotonic, align 2"));
        self.ir.raw(format_args!("br label %{again}"));
        self.ir.begin(&again);
        let found = self.ir.fresh();
        let old = self.ir.def(format_args!("phi i16 [ {first}, %{start} ], [ {found}, %{again} ]"));
        let a = self.element_of(Elem::Bf16, &old);
        let sum = scalar::atomic(&mut self.ir, AtomicFn::Add, Elem::Bf16, &a, value)?;
        let sum = self.word_of(Elem::Bf16, &sum);
        let seen = self.atom(access, "cas.b16", address, &[old.clone(), sum], &"true".into(), None);
        self.ir.raw(format_args!("{found} = freeze i16 {seen}"));
        let done = self.ir.def(format_args!("icmp eq i16 {found}, {old}"));
        self.ir.raw(format_args!("br i1 {done}, label %{end}, label %{again}"));
        self.ir.begin(&end);
        let result = self.ir.def(format_args!("phi i16 [ 0, %{before} ], [ {found}, %{again} ]"));
        Ok(self.element_of(Elem::Bf16, &result))
    }

    /// One instruction where `predicate` holds; what was there before, `otherwise` or 0 elsewhere.
    fn atom(
        &mut self,
        access: &Access,
        what: &str,
        address: &Val,
        words: &[Val],
        predicate: &Val,
        otherwise: Option<&Val>,
    ) -> Val {
        let bits = access.elem.bits();
        let constraint = match bits {
            16 => 'h',
            32 => 'r',
            _ => 'l',
        };
        let n = words.len();
        let names: Vec<String> = (0..n).map(|i| format!("${}", i + 2)).collect();
        let suffix = &access.suffix;
        let text = format!("@${} atom{suffix}.global.{what} $0, [$1], {};", n + 2, names.join(", "));
        let inputs = vec![constraint.to_string(); n].join(",");
        let operands: Vec<String> = words.iter().map(|w| format!("i{bits} {w}")).collect();
        let otherwise = otherwise.map_or("0", |v| v);
        self.ir.def(format_args!(
            "call i{bits} asm sideeffect \"{text}\", \"={constraint},l,{inputs},b,0,~{{memory}}\"\
             (ptr addrspace(1) {address}, {}, i1 {predicate}, i{bits} {otherwise}) nounwind",
            operands.join(", ")
        ))
    }

    /// An element's bits as an integer.
    pub(crate) fn word_of(&mut self, elem: Elem, value: &Val) -> Val {
        match elem.is_float() {
            true => self.ir.def(format_args!("bitcast {} {value} to i{}", memory_ty(elem), elem.bits())),
            false => value.clone(),
        }
    }

    /// The element whose bits an integer has.
    fn element_of(&mut self, elem: Elem, word: &Val) -> Val {
        match elem.is_float() {
            true => self.ir.def(format_args!("bitcast i{} {word} to {}", elem.bits(), memory_ty(elem))),
            false => word.clone(),
        }
    }
}

/// The bits of the quiet NaN of so many bits, without a sign.
fn quiet(bits: u32) -> i64 {
    if bits == 32 { 0x7fc0_0000 } else { 0x7ff8_0000_0000_0000 }
}
