//! Accesses to groups of neighbours of which only some are wanted, or that begin between aligned addresses.
//!
//! A store writes a group at once where all its elements are wanted. What is left, at the ends of rows, it writes behind
//! one branch, element by element. A load at an unknown alignment reads the two aligned groups that its elements lie in,
//! which may be one, and moves them down by the distance:
//!
//! ```text
//! bytes     | 0 1 2 3 4 5 6 7 | 8 9 a b c d e f |
//! wanted          ^ ^ ^ ^ ^ ^   ^ ^
//! ```

use std::rc::Rc;

use tilefuse_block::{Elem, Literal, Op, OpKind, ScalarFn, Value};

use super::assign::mask_of;
use super::ir::{Val, literal, memory_ty, ty};
use super::lower::Lower;
use crate::error::Result;
use crate::layout::Layout;

/// Which elements of a group are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Whether one is.
    pub(super) any: Val,
    /// Whether all are.
    pub(super) all: Val,
}

impl<'a> Lower<'a> {
    /// Which elements of each group an access wants, whose mask is at hand.
    pub(super) fn wanted(
        &mut self,
        op: &Op,
        layout: &Layout,
        masks: &[Val],
        group: usize,
    ) -> Result<Vec<Wanted>> {
        let axis = layout.regs().first().and_then(|b| self.axis_of(layout, *b));
        if let (Some(mask), Some(axis)) = (mask_of(op), axis)
            && let Some(found) = self.wanted_of(mask, layout, axis, group)?
        {
            return Ok(found);
        }
        Ok(masks
            .chunks(group)
            .map(|m| Wanted { any: self.fold("or", m), all: self.fold("and", m) })
            .collect())
    }

    fn axis_of(&self, layout: &Layout, basis: u32) -> Option<usize> {
        (0..layout.shape().len()).find(|&a| layout.axis_mask(a) & basis != 0)
    }

    /// As [`Lower::wanted`], where a mask is the same for each group or compares consecutive numbers.
    fn wanted_of(
        &mut self,
        mask: Value,
        layout: &Layout,
        axis: usize,
        group: usize,
    ) -> Result<Option<Vec<Wanted>>> {
        let uniform = |this: &Self, v: Value| this.plan.facts[v.index()].same[axis] >= group as u64;
        if uniform(self, mask) {
            let each = self.get(mask, layout)?;
            let each = each.iter().step_by(group);
            return Ok(Some(each.map(|m| Wanted { any: m.clone(), all: m.clone() }).collect()));
        }
        let Some(op) = self.plan.defs[mask.index()] else { return Ok(None) };
        match op.kind {
            OpKind::Map(ScalarFn::And) if op.args.iter().any(|&a| uniform(self, a)) => {
                let first = self.wanted_of(op.args[0], layout, axis, group)?;
                let second = self.wanted_of(op.args[1], layout, axis, group)?;
                let (Some(first), Some(second)) = (first, second) else { return Ok(None) };
                let pairs = first.iter().zip(&second);
                let both = pairs.map(|(a, b)| Wanted {
                    any: self.ir.def(format_args!("and i1 {}, {}", a.any, b.any)),
                    all: self.ir.def(format_args!("and i1 {}, {}", a.all, b.all)),
                });
                Ok(Some(both.collect()))
            }
            OpKind::Map(ScalarFn::Lt) if self.elem(op.args[0])? == Elem::U32 => {
                self.below(op, layout, axis, group)
            }
            _ => Ok(None),
        }
    }

    /// Where one, and where all of each group of consecutive numbers are below a constant: of `i` to `i + last`, modulo
    /// 2^32, one is below `n` where `i + last` is below `n + last`, and all are where `i` is below `n - last`.
    fn below(&mut self, op: &Op, layout: &Layout, axis: usize, group: usize) -> Result<Option<Vec<Wanted>>> {
        let (numbers, bound) = (&self.plan.facts[op.args[0].index()], &self.plan.facts[op.args[1].index()]);
        let last = group as i64 - 1;
        let inside = |n: &i64| (last + 1..=i64::from(i32::MAX)).contains(n);
        let Some(n) = bound.constant.filter(inside).filter(|_| numbers.run[axis] >= group as u64) else {
            return Ok(None);
        };
        let numbers = self.get(op.args[0], layout)?;
        let wanted = numbers.iter().step_by(group).map(|first| {
            let end = self.ir.def(format_args!("add i32 {first}, {last}"));
            Wanted {
                any: self.ir.def(format_args!("icmp ult i32 {end}, {}", n + last)),
                all: self.ir.def(format_args!("icmp ult i32 {first}, {}", n - last)),
            }
        });
        Ok(Some(wanted.collect()))
    }

    fn fold(&mut self, function: &str, masks: &[Val]) -> Val {
        let mut all = masks[0].clone();
        for mask in &masks[1..] {
            all = self.ir.def(format_args!("{function} i1 {all}, {mask}"));
        }
        all
    }

    /// Which groups are wanted in part, and whether one is.
    fn cut(&mut self, wanted: &[Wanted], first: Option<&Val>) -> (Vec<Val>, Val) {
        let mut parts = Vec::with_capacity(wanted.len());
        for Wanted { any, all } in wanted {
            let some_not = self.ir.def(format_args!("xor i1 {all}, true"));
            let part = self.ir.def(format_args!("and i1 {any}, {some_not}"));
            parts.push(self.both(Some(&part), first).unwrap_or(part));
        }
        let one = self.fold("or", &parts);
        (parts, one)
    }

    /// Stores whole groups at once, and the elements that are wanted of others one by one, behind a branch; where
    /// `first` is given, only in threads where it holds.
    pub(super) fn store_partly(
        &mut self,
        (addresses, elem): (&[Val], Elem),
        values: &[Val],
        masks: &[Val],
        wanted: &[Wanted],
        first: Option<&Val>,
    ) {
        let group = values.len() / addresses.len().max(1);
        for ((address, values), wanted) in addresses.iter().zip(values.chunks(group)).zip(wanted) {
            let whole = self.both(Some(&wanted.all), first);
            self.store_group(address, elem, values, whole);
        }
        let (parts, one) = self.cut(wanted, first);
        let (inside, after, _) = self.begin_parts(&one);
        self.ir.begin(&inside);
        for (r, (value, mask)) in values.iter().zip(masks).enumerate() {
            let place = self.element(&addresses[r / group], elem, r % group);
            let wanted = self.both(Some(mask), Some(&parts[r / group]));
            self.store_group(&place, elem, std::slice::from_ref(value), wanted);
        }
        self.ir.raw(format_args!("br label %{after}"));
        self.ir.begin(&after);
    }

    /// Branches where a group is wanted in part: the labels of that block and of the one after it, and the block at hand.
    fn begin_parts(&mut self, one: &Val) -> (String, String, String) {
        let n = self.ir.label();
        let (inside, after) = (format!("parts{n}"), format!("whole{n}"));
        let before = self.ir.block().to_owned();
        self.ir.raw(format_args!("br i1 {one}, label %{inside}, label %{after}"));
        (inside, after, before)
    }

    fn element(&mut self, address: &Val, elem: Elem, index: usize) -> Val {
        let t = memory_ty(elem);
        self.ir.def(format_args!("getelementptr {t}, ptr addrspace(1) {address}, i64 {index}"))
    }

    /// Loads groups that begin anywhere.
    pub(super) fn load_shifted(
        &mut self,
        op: &'a Op,
        layout: &Layout,
        addresses: &[Val],
        masks: Option<&[Val]>,
        other: Option<&[Val]>,
    ) -> Result<Vec<Val>> {
        let elem = self.pointee(op)?;
        let group = layout.num_regs() / addresses.len().max(1);
        let Some(masks) = masks else {
            return Ok(addresses.iter().flat_map(|a| self.shifted(a, elem, group, None)).collect());
        };
        let wanted = self.wanted(op, layout, masks, group)?;
        let mut whole = Vec::with_capacity(layout.num_regs());
        for (i, (address, wanted)) in addresses.iter().zip(&wanted).enumerate() {
            let loaded = self.shifted(address, elem, group, Some(&wanted.all));
            match other {
                Some(other) => {
                    let all = vec![wanted.all.clone(); group];
                    whole.extend(self.merge(elem, &all, &loaded, &other[i * group..][..group]));
                }
                None => whole.extend(loaded),
            }
        }
        if self.plan.moves(op).uniform {
            return Ok(whole);
        }
        let (parts, one) = self.cut(&wanted, None);
        let (inside, after, before) = self.begin_parts(&one);
        self.ir.begin(&inside);
        let mut single = Vec::with_capacity(whole.len());
        for (r, (value, mask)) in whole.iter().zip(masks).enumerate() {
            let place = self.element(&addresses[r / group], elem, r % group);
            let wanted = self.ir.def(format_args!("and i1 {mask}, {}", parts[r / group]));
            single.extend(self.masked_load(&place, elem, &wanted, std::slice::from_ref(value)));
        }
        self.ir.raw(format_args!("br label %{after}"));
        self.ir.begin(&after);
        let t = ty(elem);
        let pairs = whole.iter().zip(&single);
        let phi = |(a, b): (&Val, &Val)| {
            self.ir.def(format_args!("phi {t} [ {a}, %{before} ], [ {b}, %{inside} ]"))
        };
        Ok(pairs.map(phi).collect())
    }

    /// The elements of one group that begins anywhere; zeros where the mask does not hold.
    fn shifted(&mut self, address: &Val, elem: Elem, group: usize, mask: Option<&Val>) -> Vec<Val> {
        let bytes = group as u32 * elem.bytes();
        let count = (bytes / 4) as usize;
        let number = self.ir.def(format_args!("ptrtoint ptr addrspace(1) {address} to i64"));
        let past = self.ir.def(format_args!("and i64 {number}, {}", bytes - 1));
        let back = self.ir.def(format_args!("sub i64 0, {past}"));
        let low = self.ir.def(format_args!("getelementptr i8, ptr addrspace(1) {address}, i64 {back}"));
        let aligned = self.ir.def(format_args!("icmp eq i64 {past}, 0"));
        // What lies wholly in one aligned group may end where memory does.
        let next = self.ir.def(format_args!("select i1 {aligned}, i64 0, i64 {bytes}"));
        let high = self.ir.def(format_args!("getelementptr i8, ptr addrspace(1) {low}, i64 {next}"));
        let zeros = vec![literal(Literal::int(Elem::I32, 0)); count];
        let mut words = Vec::with_capacity(2 * count);
        for address in [low, high] {
            words.extend(match mask {
                Some(mask) => self.masked_load(&address, Elem::I32, mask, &zeros),
                None => self.plain_load(&address, Elem::I32, count),
            });
        }
        let past = self.ir.def(format_args!("trunc i64 {past} to i32"));
        let words = self.moved_down(words, &past, elem.bytes());
        let t = if count == 1 { "i32".to_owned() } else { format!("<{count} x i32>") };
        let mut vector: Val = words[0].clone();
        for (i, word) in words.iter().enumerate().filter(|_| count > 1) {
            let into = if i == 0 { Rc::from("poison") } else { vector };
            vector = self.ir.def(format_args!("insertelement {t} {into}, i32 {word}, i32 {i}"));
        }
        self.split(&t, &vector, elem, group)
    }

    /// Half as many words, from those at a distance in bytes on, a multiple of `unit` below the size of the half.
    fn moved_down(&mut self, mut words: Vec<Val>, past: &Val, unit: u32) -> Vec<Val> {
        let count = words.len() / 2;
        let rest = usize::from(unit < 4);
        let mut step = count / 2;
        while step > 0 {
            let bit = self.ir.def(format_args!("and i32 {past}, {}", 4 * step));
            let far = self.ir.def(format_args!("icmp ne i32 {bit}, 0"));
            let left = count + step - 1 + rest;
            words = (0..left)
                .map(|i| {
                    let (near, next) = (&words[i], &words[i + step]);
                    self.ir.def(format_args!("select i1 {far}, i32 {next}, i32 {near}"))
                })
                .collect();
            step /= 2;
        }
        if rest == 0 {
            return words;
        }
        let bits = self.ir.def(format_args!("shl i32 {past}, 3"));
        let pairs: Vec<(Val, Val)> = words.windows(2).map(|w| (w[0].clone(), w[1].clone())).collect();
        pairs
            .iter()
            .map(|(low, high)| self.ir.intrinsic("llvm.fshr.i32", "i32", &[high, low, &bits]))
            .collect()
    }
}
