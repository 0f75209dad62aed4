//! How integer values depend on iteration bits.

use smallvec::SmallVec;
use tilefuse_block::{Elem, OpKind, ScalarFn, Value};

use super::{Bit, Def, Map, ONE, Plan, ZERO, operands};

/// Bits with their factors.
type Terms = SmallVec<[(Bit, i64); 12]>;

/// A value as a base plus a multiple of each iteration bit. Integers are taken not to wrap around.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitAffine {
    /// The base, if it is a known number.
    pub(crate) constant: Option<i64>,
    /// A power of two, as its logarithm, that divides the base and the part that depends on `unknown` bits.
    align: u32,
    /// Bits with their factors; bits of factor 0 are left out.
    terms: Terms,
    /// Bits on which the value depends otherwise.
    unknown: SmallVec<[Bit; 4]>,
    /// Whether the value is known not to be negative.
    natural: bool,
}

/// Divisibility of 0.
const ANY: u32 = 62;

fn divisibility(value: i64) -> u32 {
    value.trailing_zeros().min(ANY)
}

impl BitAffine {
    fn constant(value: i64) -> BitAffine {
        BitAffine {
            constant: Some(value),
            align: divisibility(value),
            natural: value >= 0,
            ..BitAffine::default()
        }
    }

    fn unknown(map: &[Bit], deps: u32) -> BitAffine {
        let bits = map.iter().enumerate().filter(|(i, b)| deps >> i & 1 == 1 && **b > ONE).map(|(_, &b)| b);
        BitAffine { unknown: bits.collect(), ..BitAffine::default() }
    }

    /// What the value grows by where `bit` is set; `None` where that depends on more.
    pub(crate) fn stride(&self, bit: Bit) -> Option<i64> {
        if self.unknown.contains(&bit) {
            return None;
        }
        Some(self.terms.iter().find(|t| t.0 == bit).map_or(0, |t| t.1))
    }

    /// A power of two that divides the value whatever its bits are.
    pub(crate) fn divisor(&self) -> u64 {
        let factors = self.terms.iter().map(|t| divisibility(t.1));
        1 << factors.fold(self.align, u32::min)
    }

    fn add_term(&mut self, bit: Bit, factor: i64) {
        match self.terms.iter_mut().find(|t| t.0 == bit) {
            Some(term) => term.1 = term.1.wrapping_add(factor),
            None => self.terms.push((bit, factor)),
        }
        self.terms.retain(|t| t.1 != 0);
    }

    fn add_unknown(&mut self, bit: Bit) {
        if !self.unknown.contains(&bit) {
            self.unknown.push(bit);
        }
    }

    fn plus(mut self, other: &BitAffine, sign: i64) -> BitAffine {
        self.constant = self.constant.zip(other.constant).map(|(a, b)| a.wrapping_add(b.wrapping_mul(sign)));
        self.align = self.align.min(other.align);
        self.natural &= other.natural && sign > 0;
        for &(bit, factor) in &other.terms {
            self.add_term(bit, factor.wrapping_mul(sign));
        }
        for &bit in &other.unknown {
            self.add_unknown(bit);
        }
        self
    }

    fn scaled(mut self, factor: i64) -> BitAffine {
        if factor == 0 {
            return BitAffine::constant(0);
        }
        self.constant = self.constant.map(|c| c.wrapping_mul(factor));
        self.align = (self.align + divisibility(factor)).min(ANY);
        self.natural &= factor > 0;
        self.terms.iter_mut().for_each(|t| t.1 = t.1.wrapping_mul(factor));
        self
    }

    fn is_constant(&self) -> Option<i64> {
        self.constant.filter(|_| self.terms.is_empty() && self.unknown.is_empty())
    }

    fn is_uniform(&self) -> bool {
        self.terms.is_empty() && self.unknown.is_empty()
    }

    /// Splits off the bits whose sum stays below `2^k`, where `2^k` divides the divisor and everything else: they
    /// pass through a remainder unchanged and vanish in a quotient. Returns them and the other bits.
    fn split_low(&self, divisor: i64) -> (Terms, SmallVec<[Bit; 12]>) {
        let limit = divisibility(divisor).min(self.align);
        let low = |k: u32| self.terms.iter().copied().filter(move |t| divisibility(t.1) < k);
        let fits = |k: &u32| low(*k).all(|t| t.1 > 0) && low(*k).map(|t| t.1).sum::<i64>() < 1i64 << *k;
        let k = (0..=limit).rev().find(fits).unwrap_or(0);
        let high = self.terms.iter().filter(|t| divisibility(t.1) >= k).map(|t| t.0);
        (low(k).collect(), high.chain(self.unknown.iter().copied()).collect())
    }

    fn quotient(&self, divisor: i64) -> BitAffine {
        let (_, high) = self.split_low(divisor);
        BitAffine { unknown: high.into_iter().collect(), natural: self.natural, ..BitAffine::default() }
    }

    fn remainder(&self, divisor: i64) -> BitAffine {
        let (low, high) = self.split_low(divisor);
        let shared = |t: &(Bit, i64)| if high.contains(&t.0) { divisibility(t.1) } else { ANY };
        let terms = self.terms.iter().map(shared).min().unwrap_or(ANY);
        let align = divisibility(divisor).min(self.align).min(terms);
        BitAffine { constant: None, align, terms: low, unknown: high.into_iter().collect(), natural: true }
    }
}

impl Plan<'_> {
    /// How a value depends on the bits of `map`.
    pub(crate) fn affine(&self, value: Value, map: &[Bit]) -> BitAffine {
        let mut memo = rustc_hash::FxHashMap::default();
        self.affine_in(value, map, &mut memo)
    }

    fn affine_in(
        &self,
        value: Value,
        map: &[Bit],
        memo: &mut rustc_hash::FxHashMap<(Value, Map), BitAffine>,
    ) -> BitAffine {
        let key = (value, Map::from_slice(map));
        if let Some(known) = memo.get(&key) {
            return known.clone();
        }
        let result = self.affine_of(value, map, memo);
        memo.insert(key, result.clone());
        result
    }

    fn affine_of(
        &self,
        value: Value,
        map: &[Bit],
        memo: &mut rustc_hash::FxHashMap<(Value, Map), BitAffine>,
    ) -> BitAffine {
        let other = || BitAffine::unknown(map, self.deps[value.index()]);
        let Some(op) = self.pure_op(value) else {
            return match self.defs[value.index()] {
                Def::Op(_) | Def::Carried => BitAffine::unknown(map, u32::MAX),
                _ => other(),
            };
        };
        let integer = self.program.ty(value).elem().is_some_and(Elem::is_int);
        match &op.kind {
            OpKind::ProgramId(_) | OpKind::NumPrograms(_) => {
                BitAffine { natural: true, ..BitAffine::default() }
            }
            OpKind::Const(literal) if integer => BitAffine::constant(literal.bits as i64),
            OpKind::Range { start, len } if start.checked_add_unsigned(*len).is_some() => range(*start, map),
            OpKind::Splat(_)
            | OpKind::ExpandDims(_)
            | OpKind::Broadcast(_)
            | OpKind::Reshape(_)
            | OpKind::Permute(_)
            | OpKind::Assume(_) => match operands(self.program, op, value, map).pop() {
                Some((arg, map)) => self.affine_in(arg, &map, memo),
                None => other(),
            },
            OpKind::Cast(to) if widens(self.program.ty(op.args[0]).elem(), *to) => {
                self.affine_in(op.args[0], map, memo)
            }
            OpKind::Map(function) if integer && op.args.len() == 2 => {
                let a = self.affine_in(op.args[0], map, memo);
                let b = self.affine_in(op.args[1], map, memo);
                combine(*function, a, b).unwrap_or_else(other)
            }
            _ => other(),
        }
    }
}

fn widens(from: Option<Elem>, to: Elem) -> bool {
    matches!((from, to), (Some(Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64), Elem::I32 | Elem::I64))
}

fn range(start: i32, map: &[Bit]) -> BitAffine {
    let mut out = BitAffine::constant(i64::from(start));
    for (position, &bit) in map.iter().enumerate() {
        match bit {
            ZERO => {}
            ONE => out = out.plus(&BitAffine::constant(1 << position), 1),
            bit => out.add_term(bit, 1 << position),
        }
    }
    out
}

fn combine(function: ScalarFn, a: BitAffine, b: BitAffine) -> Option<BitAffine> {
    let divisor = || b.is_constant().filter(|&d| d > 0);
    match function {
        ScalarFn::Add => Some(a.plus(&b, 1)),
        ScalarFn::Sub => Some(a.plus(&b, -1)),
        ScalarFn::Mul => match (a.is_constant(), b.is_constant()) {
            (_, Some(c)) => Some(a.scaled(c)),
            (Some(c), _) => Some(b.scaled(c)),
            _ if a.is_uniform() && b.is_uniform() => {
                let align = (a.align + b.align).min(ANY);
                Some(BitAffine { align, natural: a.natural && b.natural, ..BitAffine::default() })
            }
            _ => None,
        },
        ScalarFn::Shl => b.is_constant().filter(|c| (0..31).contains(c)).map(|c| a.scaled(1 << c)),
        // A truncating division of a negative number rounds the other way; the low part is 0 or positive, so
        // only the floor forms keep it apart from the rest.
        ScalarFn::DivFloor => divisor().map(|d| a.quotient(d)),
        ScalarFn::RemFloor => divisor().map(|d| a.remainder(d)),
        ScalarFn::DivTrunc if a.natural => divisor().map(|d| a.quotient(d)),
        ScalarFn::RemTrunc if a.natural => divisor().map(|d| a.remainder(d)),
        _ => None,
    }
}
