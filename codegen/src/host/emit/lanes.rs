//! Formulas of [`tilefuse_block::math`] recorded as LLVM's instructions.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use inkwell::types::BasicTypeEnum;
use inkwell::values::{FunctionValue, InstructionOpcode as Op};
use inkwell::{FloatPredicate, IntPredicate};
use tilefuse_block::math::emit::{Double, Exponents, Float, Int, Mask, Num, Single};

use super::formula;
use super::ir::{Ir, V, lane_type, lanes_of, llvm};
use crate::{Error, Result};

/// Lanes of the instructions for exponents.
const WIDTH: u32 = 16;
/// "Rounding as set" of such an instruction.
pub(super) const ROUNDING: i64 = 4;
/// The least power of two by which a number of at most 4 is scaled to another one than 0.
const MIN_SCALE: i16 = -151;
/// "Significands in [1, 2), NaN for negative numbers".
const SIGNIFICAND: i64 = 8;

/// Where a formula is built.
pub(super) struct Site<'e, 'c> {
    pub(super) ir: &'e Ir<'c>,
    pub(super) function: FunctionValue<'c>,
    /// The first error.
    pub(super) failed: RefCell<Option<Error>>,
}

/// Floats where `L` is `f64`, integers where it is `i64`, truth values where it is `bool`.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'e, 'c, L> {
    site: &'e Site<'e, 'c>,
    pub(super) v: V<'c>,
    written: PhantomData<L>,
}

/// What a literal is written as.
pub(super) trait Written: Copy {
    const FLOAT: bool;
    fn like<'c>(self, ir: &Ir<'c>, v: V<'c>) -> V<'c>;
}

impl Written for f64 {
    const FLOAT: bool = true;
    fn like<'c>(self, ir: &Ir<'c>, v: V<'c>) -> V<'c> {
        // A literal of a formula for `f32` is rounded to that.
        let narrow = lane_type(v) == BasicTypeEnum::FloatType(ir.cx.f32_type());
        ir.float_like(v, if narrow { f64::from(self as f32) } else { self })
    }
}

impl Written for i64 {
    const FLOAT: bool = false;
    fn like<'c>(self, ir: &Ir<'c>, v: V<'c>) -> V<'c> {
        ir.int_like(v, self)
    }
}

impl Written for bool {
    const FLOAT: bool = false;
    fn like<'c>(self, ir: &Ir<'c>, v: V<'c>) -> V<'c> {
        ir.int_like(v, i64::from(self))
    }
}

impl<'e, 'c, L: Written> Lanes<'e, 'c, L> {
    pub(super) fn new(site: &'e Site<'e, 'c>, v: V<'c>) -> Lanes<'e, 'c, L> {
        Lanes { site, v, written: PhantomData }
    }

    /// What was built; this value, and a note, where it was not.
    fn built<M: Written>(self, result: Result<V<'c>>) -> Lanes<'e, 'c, M> {
        let v = result.unwrap_or_else(|error| {
            self.site.failed.borrow_mut().get_or_insert(error);
            self.v
        });
        Lanes::new(self.site, v)
    }

    fn bin(self, op: Op, other: Self) -> Self {
        self.built(self.site.ir.bin(op, self.v, other.v))
    }

    fn call(self, name: &str, others: &[V<'c>]) -> Self {
        let args: Vec<V<'c>> = std::iter::once(self.v).chain(others.iter().copied()).collect();
        self.built(self.site.ir.call_same(name, &args))
    }

    fn cast<M: Written>(self, op: Op, to: BasicTypeEnum<'c>) -> Lanes<'e, 'c, M> {
        self.built(self.site.ir.cast(op, self.v, to))
    }

    fn bits_of_lane(self) -> u32 {
        match lane_type(self.v) {
            BasicTypeEnum::IntType(t) => t.get_bit_width(),
            ty => {
                if ty == BasicTypeEnum::FloatType(self.site.ir.cx.f64_type()) {
                    64
                } else {
                    32
                }
            }
        }
    }

    fn compare(self, float: FloatPredicate, int: IntPredicate, other: Self) -> Lanes<'e, 'c, bool> {
        let ir = self.site.ir;
        self.built(if L::FLOAT { ir.fcmp(float, self.v, other.v) } else { ir.icmp(int, self.v, other.v) })
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident $float:ident $int:ident;)*) => { $(
        impl<L: Written> $trait for Lanes<'_, '_, L> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.bin(if L::FLOAT { Op::$float } else { Op::$int }, other)
            }
        }
    )* };
}

binary! {
    Add add FAdd Add;
    Sub sub FSub Sub;
    Mul mul FMul Mul;
    Div div FDiv SDiv;
    BitAnd bitand And And;
    BitOr bitor Or Or;
    BitXor bitxor Xor Xor;
}

impl<L: Written> Neg for Lanes<'_, '_, L> {
    type Output = Self;
    fn neg(self) -> Self {
        let ir = self.site.ir;
        self.built(if L::FLOAT { ir.fneg(self.v) } else { ir.bin(Op::Sub, ir.int_like(self.v, 0), self.v) })
    }
}

impl<L: Written> Not for Lanes<'_, '_, L> {
    type Output = Self;
    fn not(self) -> Self {
        self.built(self.site.ir.not(self.v))
    }
}

impl Shl<u32> for Lanes<'_, '_, i64> {
    type Output = Self;
    fn shl(self, by: u32) -> Self {
        self.bin(Op::Shl, self.lit(by.into()))
    }
}

impl Shr<u32> for Lanes<'_, '_, i64> {
    type Output = Self;
    fn shr(self, by: u32) -> Self {
        self.bin(Op::AShr, self.lit(by.into()))
    }
}

impl Mask for Lanes<'_, '_, bool> {}

impl<'e, 'c, L: Written> Num for Lanes<'e, 'c, L> {
    type B = Lanes<'e, 'c, bool>;
    type Lit = L;

    fn lit(self, value: L) -> Self {
        Lanes::new(self.site, value.like(self.site.ir, self.v))
    }
    fn lt(self, other: Self) -> Self::B {
        self.compare(FloatPredicate::OLT, IntPredicate::SLT, other)
    }
    fn gt(self, other: Self) -> Self::B {
        self.compare(FloatPredicate::OGT, IntPredicate::SGT, other)
    }
    fn eq(self, other: Self) -> Self::B {
        self.compare(FloatPredicate::OEQ, IntPredicate::EQ, other)
    }
    fn ne(self, other: Self) -> Self::B {
        self.compare(FloatPredicate::UNE, IntPredicate::NE, other)
    }
    fn select(cond: Self::B, a: Self, b: Self) -> Self {
        a.built(a.site.ir.select(cond.v, a.v, b.v))
    }
}

impl Int for Lanes<'_, '_, i64> {}

impl<'e, 'c> Float for Lanes<'e, 'c, f64> {
    type I = Lanes<'e, 'c, i64>;

    fn fma(self, b: Self, c: Self) -> Self {
        self.call("llvm.fma", &[b.v, c.v])
    }
    fn sqrt(self) -> Self {
        self.call("llvm.sqrt", &[])
    }
    fn abs(self) -> Self {
        self.call("llvm.fabs", &[])
    }
    fn round_even(self) -> Self {
        self.call("llvm.roundeven", &[])
    }
    fn trunc(self) -> Self {
        self.call("llvm.trunc", &[])
    }
    fn copysign(self, sign: Self) -> Self {
        self.call("llvm.copysign", &[sign.v])
    }
    fn at_least(self, value: f64) -> Self {
        self.call("llvm.maximum", &[self.lit(value).v])
    }
    fn at_most(self, value: f64) -> Self {
        self.call("llvm.minimum", &[self.lit(value).v])
    }
    fn from_exponent(exponent: Self::I) -> Self {
        let ty = exponent.float_type();
        exponent.cast(Op::SIToFP, ty)
    }
    fn bits(self) -> Self::I {
        let ty = self.site.ir.int_type(self.bits_of_lane()).into();
        self.cast(Op::BitCast, ty)
    }
    fn from_bits(bits: Self::I) -> Self {
        let ty = bits.float_type();
        bits.cast(Op::BitCast, ty)
    }
}

impl<'c> Lanes<'_, 'c, i64> {
    /// The float of this width.
    fn float_type(self) -> BasicTypeEnum<'c> {
        let cx = self.site.ir.cx;
        if self.bits_of_lane() == 64 { cx.f64_type().into() } else { cx.f32_type().into() }
    }
}

impl<'e, 'c> Single for Lanes<'e, 'c, f64> {
    type D = Self;

    fn widen(self) -> Self {
        self.cast(Op::FPExt, self.site.ir.cx.f64_type().into())
    }
}

impl<'e, 'c> Double for Lanes<'e, 'c, f64> {
    type S = Self;

    fn narrow(self) -> Self {
        self.cast(Op::FPTrunc, self.site.ir.cx.f32_type().into())
    }
}

impl<'e, 'c> Exponents for Lanes<'e, 'c, f64> {
    /// Lanes whose result is 0 are masked off: the processor takes a hundred times as long for a number that rounds to 0.
    fn scale(self, n: Self) -> Self {
        let ir = self.site.ir;
        self.built(ir.in_registers(&[self.v, n.v], |v| {
            let least = ir.float_like(v[1], f64::from(MIN_SCALE));
            let counts = ir.fcmp(FloatPredicate::UGE, v[1], least)?;
            let counts = ir.b.build_bit_cast(counts, ir.int_type(16), "").map_err(llvm)?;
            let zero = ir.float_like(v[0], 0.0);
            let args = [v[0], v[1], zero, counts, ir.int_of(ir.int_type(32).into(), 0, ROUNDING)];
            ir.call("llvm.x86.avx512.mask.scalef.ps.512", &[], &args)
        }))
    }
    fn exponent(self) -> Self {
        let ir = self.site.ir;
        self.built(ir.in_registers(&[self.v], |v| {
            let args = [
                v[0],
                v[0],
                ir.int_of(ir.int_type(16).into(), 0, -1),
                ir.int_of(ir.int_type(32).into(), 0, ROUNDING),
            ];
            ir.call("llvm.x86.avx512.mask.getexp.ps.512", &[], &args)
        }))
    }
    fn significand(self) -> Self {
        let ir = self.site.ir;
        self.built(ir.in_registers(&[self.v], |v| {
            let word = |value| ir.int_of(ir.int_type(32).into(), 0, value);
            let args =
                [v[0], word(SIGNIFICAND), v[0], ir.int_of(ir.int_type(16).into(), 0, -1), word(ROUNDING)];
            ir.call("llvm.x86.avx512.mask.getmant.ps.512", &[], &args)
        }))
    }
    /// Of every second lane, which is one instruction for two registers.
    fn low_half(wide: Lanes<'e, 'c, i64>) -> Lanes<'e, 'c, i64> {
        let (ir, n) = (wide.site.ir, lanes_of(wide.v));
        let word = ir.int_type(32);
        if n < WIDTH {
            return wide.cast(Op::Trunc, word.into());
        }
        let halves = ir.b.build_bit_cast(wide.v, word.vec_type(2 * n), "").map_err(llvm);
        let lanes: Vec<i64> = (0..i64::from(n)).map(|lane| 2 * lane).collect();
        wide.built(halves.and_then(|halves| ir.shuffle(halves, halves, &lanes)))
    }
    fn unless(rare: Self::B, usual: impl FnOnce() -> Self, other: impl FnOnce() -> Self) -> Self {
        let built = formula::unless(rare.site, rare.v, || usual().v, || other().v);
        rare.built(built)
    }
}

impl<'c> Ir<'c> {
    /// What `build` makes of operands of [`WIDTH`] lanes, for operands of any number of lanes.
    pub(super) fn in_registers(
        &self,
        args: &[V<'c>],
        build: impl Fn(&[V<'c>]) -> Result<V<'c>>,
    ) -> Result<V<'c>> {
        let mut args = args.to_vec();
        self.match_lanes(&mut args);
        let n = args.first().map_or(0, |&v| lanes_of(v));
        match n {
            WIDTH => build(&args),
            0 => {
                let args: Vec<V<'c>> = args.iter().map(|&v| self.splat(v, WIDTH)).collect();
                self.extract(build(&args)?, 0)
            }
            _ if n < WIDTH => {
                let lanes: Vec<i64> = (0..i64::from(WIDTH)).map(|lane| lane % i64::from(n)).collect();
                let wide: Result<Vec<V<'c>>> = args.iter().map(|&v| self.shuffle(v, v, &lanes)).collect();
                let (result, first) = (build(&wide?)?, &lanes[..n as usize]);
                self.shuffle(result, result, first)
            }
            _ => {
                let part = |first: u32| {
                    let lanes: Vec<i64> = (first..first + WIDTH).map(i64::from).collect();
                    let args: Result<Vec<V<'c>>> = args.iter().map(|&v| self.shuffle(v, v, &lanes)).collect();
                    build(&args?)
                };
                self.joined((0..n).step_by(WIDTH as usize).map(part).collect::<Result<_>>()?)
            }
        }
    }

    /// Vectors of as many lanes each, a power of two of them, one after the other.
    pub(super) fn joined(&self, mut parts: Vec<V<'c>>) -> Result<V<'c>> {
        while parts.len() > 1 {
            let pair = |pair: &[V<'c>]| match *pair {
                [a, b] => self.shuffle(a, b, &(0..2 * i64::from(lanes_of(a))).collect::<Vec<i64>>()),
                _ => Err(llvm("an odd number of vectors")),
            };
            parts = parts.chunks(2).map(pair).collect::<Result<_>>()?;
        }
        parts.pop().ok_or_else(|| llvm("no vectors"))
    }
}
