//! Rewrites operations that no target implements into ones that all do: random bits into integer arithmetic, and
//! 8-bit floats into their bits.
//!
//! ```text
//! before                          after
//!   %x = load %p, %i                %x = load %p, %i             // %p: ptr<u8>
//!   %y = cast %x f32                ...                          // integer arithmetic on %x
//! ```

use smallvec::SmallVec;

use crate::float8::{F8E4M3, F8E5M2};
use crate::infer::TypeError;
use crate::program::{Loc, Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Kind, Literal, Type};

mod float8;

type Result<T> = std::result::Result<T, TypeError>;

/// Expands every operation of a valid program that targets leave to this pass.
///
/// # Errors
/// Where an expansion is not well typed: a defect of this pass.
pub fn expand_operations(program: &mut Program) -> Result<()> {
    let mut needed = program.values.iter().any(|v| is_small(&v.ty));
    program.walk(&mut |op| needed |= matches!(op.kind, OpKind::Philox { .. }));
    if !needed {
        return Ok(());
    }
    let mut body = std::mem::take(&mut program.body);
    let kinds = program.values.iter().map(|v| v.ty.kind).collect();
    for value in program.values.iter_mut().filter(|v| is_small(&v.ty)) {
        value.ty.kind = match value.ty.kind {
            Kind::Elem(_) => Kind::Elem(Elem::U8),
            Kind::Ptr(_) => Kind::Ptr(Elem::U8),
        };
    }
    let forward = (0..program.values.len() as u32).map(Value).collect();
    let mut cx = Cx { values: &mut program.values, kinds, forward, out: Vec::new() };
    let result = cx.region(&mut body);
    program.body = body;
    result
}

fn is_small(ty: &Type) -> bool {
    matches!(ty.kind, Kind::Elem(e) | Kind::Ptr(e) if e.is_small_float())
}

struct Cx<'a> {
    values: &'a mut Vec<ValueData>,
    /// What values were before.
    kinds: Vec<Kind>,
    /// What replaces each value.
    forward: Vec<Value>,
    /// The operations of the region so far.
    out: Vec<Op>,
}

impl Cx<'_> {
    fn region(&mut self, region: &mut Region) -> Result<()> {
        let ops = std::mem::take(&mut region.ops);
        let around = std::mem::take(&mut self.out);
        let result = ops.into_iter().try_for_each(|op| {
            let (from, loc) = (self.out.len(), op.loc);
            self.op(op)?;
            locate(&mut self.out[from..], loc);
            Ok(())
        });
        region.ops = std::mem::replace(&mut self.out, around);
        result
    }

    fn op(&mut self, mut op: Op) -> Result<()> {
        let old: SmallVec<[Kind; 4]> = op.args.iter().map(|a| self.kinds[a.index()]).collect();
        for arg in &mut op.args {
            *arg = self.forward[arg.index()];
        }
        for region in &mut op.regions {
            self.region(region)?;
        }
        let from = match old.first() {
            Some(Kind::Elem(elem)) => Some(*elem),
            _ => None,
        };
        match (&op.kind, from) {
            (OpKind::Philox { rounds }, _) => {
                let words = self.philox(op.args[0], op.args[1], *rounds)?;
                self.replace(&op.results, &words);
            }
            (OpKind::Const(literal), _) if literal.elem.is_small_float() => {
                op.kind = OpKind::Const(bits(*literal));
                self.out.push(op);
            }
            (OpKind::Cast(to), Some(from)) if from.is_small_float() || to.is_small_float() => {
                let wide = if from.is_small_float() { self.decode(from, op.args[0])? } else { op.args[0] };
                let result = match to.is_small_float() {
                    true => {
                        let wide = self.cast(wide, Elem::F32)?;
                        self.encode(*to, wide)?
                    }
                    false => self.cast(wide, *to)?,
                };
                self.replace(&op.results, &[result]);
            }
            (OpKind::Bitcast(to), Some(_)) if to.is_small_float() => {
                let result = self.emit(OpKind::Bitcast(Elem::U8), &[op.args[0]])?;
                self.replace(&op.results, &[result]);
            }
            (OpKind::Dot { .. }, Some(from)) if from.is_small_float() => {
                for index in 0..2 {
                    let wide = self.decode(from, op.args[index])?;
                    op.args[index] = self.cast(wide, Elem::F16)?;
                }
                self.out.push(op);
            }
            (OpKind::Print { .. }, _) => {
                for (index, kind) in old.iter().enumerate() {
                    if let Kind::Elem(elem) = kind
                        && elem.is_small_float()
                    {
                        op.args[index] = self.decode(*elem, op.args[index])?;
                    }
                }
                self.out.push(op);
            }
            _ => self.out.push(op),
        }
        Ok(())
    }

    fn replace(&mut self, results: &[Value], by: &[Value]) {
        for (result, &value) in results.iter().zip(by) {
            self.forward[result.index()] = value;
        }
    }

    fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    fn push(&mut self, kind: OpKind, args: &[Value], ty: Type) -> Value {
        let result = Value(self.values.len() as u32);
        self.kinds.push(ty.kind);
        self.values.push(ValueData { ty, name: None });
        self.forward.push(result);
        let results = SmallVec::from_slice(&[result]);
        self.out.push(Op {
            kind,
            args: SmallVec::from_slice(args),
            results,
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        result
    }

    fn emit(&mut self, kind: OpKind, args: &[Value]) -> Result<Value> {
        let op = kind.name();
        let missing = || TypeError::Attribute { op, message: "has no result".to_owned() };
        let results = {
            let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.ty(a)).collect();
            kind.infer(&types)?
        };
        let ty = results.into_iter().next().ok_or_else(missing)?;
        Ok(self.push(kind, args, ty))
    }

    fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value> {
        self.emit(OpKind::Map(function), args)
    }

    fn cast(&mut self, value: Value, to: Elem) -> Result<Value> {
        if self.ty(value).elem() == Some(to) { Ok(value) } else { self.emit(OpKind::Cast(to), &[value]) }
    }

    /// A constant of the shape of a value.
    fn literal(&mut self, literal: Literal, like: Value) -> Value {
        let ty = self.ty(like).with_elem(literal.elem);
        self.push(OpKind::Const(literal), &[], ty)
    }

    fn word(&mut self, value: u32, like: Value) -> Value {
        self.literal(Literal::int(Elem::U32, i64::from(value)), like)
    }

    /// The upper 32 bits of an integer of 64.
    fn upper(&mut self, value: Value) -> Result<Value> {
        let elem = self.ty(value).elem().unwrap_or(Elem::U64);
        let amount = self.literal(Literal::int(elem, 32), value);
        let shifted = self.map(ScalarFn::Shr, &[value, amount])?;
        self.cast(shifted, Elem::U32)
    }

    fn philox(&mut self, seed: Value, offsets: Value, rounds: u8) -> Result<[Value; 4]> {
        let shape = self.ty(offsets).shape.clone();
        let wide = self.ty(offsets).elem().is_some_and(|e| e.bits() == 64);
        let zero = self.word(0, offsets);
        let high = if wide { self.upper(offsets)? } else { zero };
        let mut counter = [self.cast(offsets, Elem::U32)?, high, zero, zero];
        let mut key = [self.cast(seed, Elem::U32)?, self.upper(seed)?];
        // Both halves of one product: targets have an instruction for it.
        let factors =
            [0xD251_1F53, 0xCD9E_8D57].map(|word| self.literal(Literal::int(Elem::U64, word), offsets));
        let steps = [self.word(0x9E37_79B9, seed), self.word(0xBB67_AE85, seed)];
        for _ in 0..rounds {
            let [c0, c1, c2, c3] = counter;
            let mixed = |cx: &mut Self, from: Value, factor: Value, with: Value, key: Value| {
                let from = cx.cast(from, Elem::U64)?;
                let product = cx.map(ScalarFn::Mul, &[from, factor])?;
                let upper = cx.upper(product)?;
                let mixed = cx.map(ScalarFn::Xor, &[upper, with])?;
                let key = if shape.is_empty() { key } else { cx.emit(OpKind::Splat(shape.clone()), &[key])? };
                Ok::<_, TypeError>([cx.map(ScalarFn::Xor, &[mixed, key])?, cx.cast(product, Elem::U32)?])
            };
            let [first, second] = mixed(self, c2, factors[1], c1, key[0])?;
            let [third, fourth] = mixed(self, c0, factors[0], c3, key[1])?;
            counter = [first, second, third, fourth];
            for (key, step) in key.iter_mut().zip(steps) {
                *key = self.map(ScalarFn::Add, &[*key, step])?;
            }
        }
        Ok(counter)
    }
}

/// The bits of a literal that is an 8-bit float.
fn bits(literal: Literal) -> Literal {
    let value = literal.as_f64() as f32;
    let bits = match literal.elem {
        Elem::F8E4M3 => F8E4M3::from_f32(value).to_bits(),
        _ => F8E5M2::from_f32(value).to_bits(),
    };
    Literal::int(Elem::U8, i64::from(bits))
}

#[cfg(test)]
mod tests;
