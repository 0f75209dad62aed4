//! Formulas recorded as operations of a block program.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::emit::{Double, Float, Int, Mask, Num, Single};
use crate::infer::TypeError;
use crate::program::{Loc, Op, OpKind, Value, ValueData};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal, Type};

/// Operations in the making.
pub(super) struct Recorder<'p> {
    values: &'p mut Vec<ValueData>,
    ops: Vec<Op>,
    literals: FxHashMap<(Literal, Type), Value>,
    /// The first operation that did not take its operands.
    error: Option<TypeError>,
}

impl<'p> Recorder<'p> {
    /// Records operations over `values`, to which their results are added.
    pub(super) fn new(values: &'p mut Vec<ValueData>) -> Recorder<'p> {
        Recorder { values, ops: Vec::new(), literals: FxHashMap::default(), error: None }
    }

    /// The element kind of a value, unless it is a pointer.
    pub(super) fn elem(&self, value: Value) -> Option<Elem> {
        self.ty(value).elem()
    }

    fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    fn append(&mut self, kind: OpKind, args: &[Value], ty: Type) -> Value {
        let value = Value(self.values.len() as u32);
        self.values.push(ValueData { ty, name: None });
        self.ops.push(Op {
            kind,
            args: SmallVec::from_slice(args),
            results: SmallVec::from_slice(&[value]),
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        value
    }

    /// The result of an operation on `args`; its first operand where it does not take them.
    fn push(&mut self, kind: OpKind, args: &[Value]) -> Value {
        let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.ty(a)).collect();
        let ty = kind.infer(&types);
        drop(types);
        match ty {
            Ok(types) => types.into_iter().next().map_or(args[0], |ty| self.append(kind, args, ty)),
            Err(error) => {
                self.error.get_or_insert(error);
                args[0]
            }
        }
    }

    fn literal(&mut self, literal: Literal, like: Value) -> Value {
        let ty = self.ty(like).with_elem(literal.elem);
        let key = (literal, ty.clone());
        if let Some(&value) = self.literals.get(&key) {
            return value;
        }
        let value = self.append(OpKind::Const(literal), &[], ty);
        self.literals.insert(key, value);
        value
    }

    /// The recorded operations, which define `result` with the value of `value`.
    pub(super) fn finish(mut self, value: Value, result: Value) -> Result<Vec<Op>, TypeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        match self.ops.last_mut().and_then(|op| op.results.first_mut()) {
            Some(last) if *last == value => *last = result,
            _ => {
                // No result of the last operation: the same bits under the other name.
                let elem = self.elem(value).unwrap_or(Elem::F32);
                let copy = self.push(OpKind::Bitcast(elem), &[value]);
                return self.finish(copy, result);
            }
        }
        if value.index() + 1 == self.values.len() {
            self.values.pop();
        }
        Ok(self.ops)
    }
}

/// What a literal is written as: tells floats, integers and truth values apart.
pub(super) trait Written: Copy {
    /// The literal of an element kind.
    fn literal(self, elem: Elem) -> Literal;
}

impl Written for f64 {
    fn literal(self, elem: Elem) -> Literal {
        Literal::float(elem, self)
    }
}

impl Written for i64 {
    fn literal(self, elem: Elem) -> Literal {
        Literal::int(elem, self)
    }
}

impl Written for bool {
    fn literal(self, elem: Elem) -> Literal {
        Literal::int(elem, i64::from(self))
    }
}

/// A value of the program, with the operations of [`super::emit`]: a float where `L` is `f64`, an integer where it
/// is `i64`, a truth value where it is `bool`, of whatever width.
#[derive(Clone, Copy)]
pub(super) struct Tile<'r, 'p, L> {
    recorder: &'r RefCell<Recorder<'p>>,
    pub(super) value: Value,
    written: PhantomData<L>,
}

impl<'r, 'p, L: Written> Tile<'r, 'p, L> {
    pub(super) fn new(recorder: &'r RefCell<Recorder<'p>>, value: Value) -> Tile<'r, 'p, L> {
        Tile { recorder, value, written: PhantomData }
    }

    fn push<M: Written>(self, kind: OpKind, args: &[Value]) -> Tile<'r, 'p, M> {
        let value = self.recorder.borrow_mut().push(kind, args);
        Tile::new(self.recorder, value)
    }

    pub(super) fn map1(self, function: ScalarFn) -> Self {
        self.push(OpKind::Map(function), &[self.value])
    }

    fn map2<M: Written>(self, function: ScalarFn, other: Self) -> Tile<'r, 'p, M> {
        self.push(OpKind::Map(function), &[self.value, other.value])
    }

    fn literal(self, literal: L) -> Self {
        let literal = literal.literal(self.elem());
        let value = self.recorder.borrow_mut().literal(literal, self.value);
        Tile { value, ..self }
    }

    fn elem(self) -> Elem {
        self.recorder.borrow().ty(self.value).elem().unwrap_or(Elem::F32)
    }

    /// Conversion to another kind; the value itself where it has that kind.
    pub(super) fn cast<M: Written>(self, to: Elem) -> Tile<'r, 'p, M> {
        if self.elem() == to {
            return Tile::new(self.recorder, self.value);
        }
        self.push(OpKind::Cast(to), &[self.value])
    }

    fn bitcast<M: Written>(self, to: Elem) -> Tile<'r, 'p, M> {
        self.push(OpKind::Bitcast(to), &[self.value])
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident $function:ident;)*) => { $(
        impl<L: Written> $trait for Tile<'_, '_, L> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.map2(ScalarFn::$function, other)
            }
        }
    )* };
}

binary! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
}

impl<L: Written> Neg for Tile<'_, '_, L> {
    type Output = Self;
    fn neg(self) -> Self {
        self.map1(ScalarFn::Neg)
    }
}

impl<L: Written> Not for Tile<'_, '_, L> {
    type Output = Self;
    fn not(self) -> Self {
        self.map1(ScalarFn::Not)
    }
}

impl Shl<u32> for Tile<'_, '_, i64> {
    type Output = Self;
    fn shl(self, by: u32) -> Self {
        self.map2(ScalarFn::Shl, self.literal(i64::from(by)))
    }
}

impl Shr<u32> for Tile<'_, '_, i64> {
    type Output = Self;
    fn shr(self, by: u32) -> Self {
        self.map2(ScalarFn::Shr, self.literal(i64::from(by)))
    }
}

impl Mask for Tile<'_, '_, bool> {}

impl<'r, 'p, L: Written> Num for Tile<'r, 'p, L> {
    type B = Tile<'r, 'p, bool>;
    type Lit = L;

    fn lit(self, value: L) -> Self {
        self.literal(value)
    }
    fn lt(self, other: Self) -> Self::B {
        self.map2(ScalarFn::Lt, other)
    }
    fn gt(self, other: Self) -> Self::B {
        self.map2(ScalarFn::Gt, other)
    }
    fn eq(self, other: Self) -> Self::B {
        self.map2(ScalarFn::Eq, other)
    }
    fn ne(self, other: Self) -> Self::B {
        self.map2(ScalarFn::Ne, other)
    }
    fn select(cond: Self::B, a: Self, b: Self) -> Self {
        a.push(OpKind::Map(ScalarFn::Select), &[cond.value, a.value, b.value])
    }
}

impl Int for Tile<'_, '_, i64> {}

impl<'r, 'p> Float for Tile<'r, 'p, f64> {
    type I = Tile<'r, 'p, i64>;

    fn fma(self, b: Self, c: Self) -> Self {
        self.push(OpKind::Map(ScalarFn::Fma), &[self.value, b.value, c.value])
    }
    fn sqrt(self) -> Self {
        self.map1(ScalarFn::Sqrt)
    }
    fn abs(self) -> Self {
        self.map1(ScalarFn::Abs)
    }
    fn round_even(self) -> Self {
        self.map1(ScalarFn::RoundEven)
    }
    fn trunc(self) -> Self {
        self.map1(ScalarFn::Trunc)
    }
    fn copysign(self, sign: Self) -> Self {
        self.map2(ScalarFn::CopySign, sign)
    }
    fn at_least(self, value: f64) -> Self {
        self.map2(ScalarFn::Max, self.literal(value))
    }
    fn at_most(self, value: f64) -> Self {
        self.map2(ScalarFn::Min, self.literal(value))
    }
    /// As `f64` by adding 1.5 · 2^52 on the bits, since few machines convert vectors of `i64`.
    fn from_exponent(exponent: Self::I) -> Self {
        if exponent.elem() != Elem::I64 {
            return exponent.cast(Elem::F32);
        }
        let magic = 6_755_399_441_055_744.0_f64;
        Self::from_bits(exponent.plus(magic.to_bits() as i64)).plus(-magic)
    }
    fn bits(self) -> Self::I {
        self.bitcast(if self.elem() == Elem::F64 { Elem::I64 } else { Elem::I32 })
    }
    fn from_bits(bits: Self::I) -> Self {
        bits.bitcast(if bits.elem() == Elem::I64 { Elem::F64 } else { Elem::F32 })
    }
}

impl<'r, 'p> Single for Tile<'r, 'p, f64> {
    type D = Tile<'r, 'p, f64>;

    fn widen(self) -> Self::D {
        self.cast(Elem::F64)
    }
}

impl<'r, 'p> Double for Tile<'r, 'p, f64> {
    type S = Tile<'r, 'p, f64>;

    fn narrow(self) -> Self::S {
        self.cast(Elem::F32)
    }
}
