//! Finds the larger and the smaller of 16-bit floats in 16 bits, where a program widens them first: the result is one of the
//! two, so that nothing is rounded. A pass for GPUs alone, which take two such numbers in one instruction.
//!
//! ```text
//! before                          after
//!   %a = cast %x f32                %a = cast %x f32
//!   %m = map max %a, %zero          %n = map max %x, %none
//!                                   %m = cast %n f32
//!   %r = reduce max %m axis 1       %s = reduce max %n axis 1
//!                                   %r = cast %s f32
//!   %y = cast %m bf16               %y = %n
//! ```
//!
//! Reductions with masks stay: choosing between single elements takes the pairs apart. Sums and products stay as well, for in
//! 16 bits they would be rounded.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::program::{Loc, Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Kind, Literal};

/// Rewrites maxima and minima of widened 16-bit floats.
pub fn narrow(program: &mut Program) {
    let Program { values, body, .. } = program;
    Narrow { values, known: FxHashMap::default(), same: FxHashMap::default() }.region(body);
}

/// What an `f32` value is, where 16 bits hold it.
#[derive(Clone, Copy)]
enum Known {
    /// Another value, widened.
    Widened(Value),
    /// A number.
    Number(f64),
}

struct Narrow<'a> {
    values: &'a mut Vec<ValueData>,
    known: FxHashMap<Value, Known>,
    /// Values that have been replaced.
    same: FxHashMap<Value, Value>,
}

impl Narrow<'_> {
    fn region(&mut self, region: &mut Region) {
        let mut out = Vec::with_capacity(region.ops.len());
        for mut op in std::mem::take(&mut region.ops) {
            for arg in &mut op.args {
                *arg = self.same.get(arg).copied().unwrap_or(*arg);
            }
            op.regions.iter_mut().for_each(|inner| self.region(inner));
            let (from, loc) = (out.len(), op.loc);
            self.op(op, &mut out);
            locate(&mut out[from..], loc);
        }
        region.ops = out;
    }

    fn op(&mut self, op: Op, out: &mut Vec<Op>) {
        let &[result] = op.results.as_slice() else { return out.push(op) };
        let wide = self.elem(result) == Some(Elem::F32);
        match (&op.kind, op.args.as_slice()) {
            (OpKind::Const(literal), []) if wide => {
                self.known.insert(result, Known::Number(literal.as_f64()));
            }
            (OpKind::Splat(_) | OpKind::Broadcast(_), &[of]) if wide => {
                if let Some(&Known::Number(number)) = self.known.get(&of) {
                    self.known.insert(result, Known::Number(number));
                }
            }
            (OpKind::Cast(_), &[of]) if wide && self.elem(of).is_some_and(is_short) => {
                self.known.insert(result, Known::Widened(of));
            }
            (OpKind::Cast(_), &[of]) => {
                // What was widened and is narrowed again is what it was.
                if let Some(&Known::Widened(short)) = self.known.get(&of)
                    && self.elem(short) == self.elem(result)
                {
                    self.same.insert(result, short);
                    return;
                }
            }
            (&OpKind::Map(function @ (ScalarFn::Max | ScalarFn::Min)), &[a, b]) if wide => {
                if let Some(args) = self.both([a, b], out) {
                    return self.widen(OpKind::Map(function), &args, result, out);
                }
            }
            (OpKind::Reduce { combine: ReduceFn::Max | ReduceFn::Min, masked: false, .. }, &[of]) if wide => {
                if let Some(&Known::Widened(short)) = self.known.get(&of) {
                    return self.widen(op.kind, &[short], result, out);
                }
            }
            _ => {}
        }
        out.push(op);
    }

    fn elem(&self, value: Value) -> Option<Elem> {
        self.values[value.index()].ty.elem()
    }

    /// Both operands in one kind of 16 bits, at least one of them widened.
    fn both(&mut self, args: [Value; 2], out: &mut Vec<Op>) -> Option<[Value; 2]> {
        let known = [*self.known.get(&args[0])?, *self.known.get(&args[1])?];
        let elem = known.iter().find_map(|known| match known {
            Known::Widened(short) => self.elem(*short),
            Known::Number(_) => None,
        })?;
        let fits = |known: &Known| match *known {
            Known::Widened(short) => self.elem(short) == Some(elem),
            Known::Number(number) => Literal::float(elem, number).as_f64().to_bits() == number.to_bits(),
        };
        if !known.iter().all(fits) {
            return None;
        }
        let mut shorts = args;
        for (short, known) in shorts.iter_mut().zip(known) {
            *short = match known {
                Known::Widened(short) => short,
                Known::Number(number) => {
                    let constant = self.like(*short, elem);
                    push(out, OpKind::Const(Literal::float(elem, number)), &[], constant);
                    constant
                }
            };
        }
        Some(shorts)
    }

    /// Computes in 16 bits, and widens the result.
    fn widen(&mut self, kind: OpKind, args: &[Value], result: Value, out: &mut Vec<Op>) {
        let Some(elem) = args.first().and_then(|&arg| self.elem(arg)) else { return };
        let short = self.like(result, elem);
        push(out, kind, args, short);
        push(out, OpKind::Cast(Elem::F32), &[short], result);
        self.known.insert(result, Known::Widened(short));
    }

    /// A new value of the shape of another.
    fn like(&mut self, value: Value, elem: Elem) -> Value {
        let mut ty = self.values[value.index()].ty.clone();
        ty.kind = Kind::Elem(elem);
        self.values.push(ValueData { ty, name: None });
        Value(self.values.len() as u32 - 1)
    }
}

fn is_short(elem: Elem) -> bool {
    matches!(elem, Elem::F16 | Elem::Bf16)
}

fn push(out: &mut Vec<Op>, kind: OpKind, args: &[Value], result: Value) {
    let (args, results) = (SmallVec::from_slice(args), SmallVec::from_slice(&[result]));
    out.push(Op { kind, args, results, regions: Vec::new(), loc: Loc::UNKNOWN });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse_valid, verify};

    fn narrowed(text: &str) -> String {
        let mut program = parse_valid(text).unwrap();
        narrow(&mut program);
        crate::passes::dce(&mut program);
        crate::passes::renumber(&mut program);
        verify(&program).unwrap();
        program.to_string()
    }

    #[test]
    fn bounds_and_maxima_of_16_bits_stay_there() {
        let text = narrowed(
            "kernel @k(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16)) {
  %i = range 0 64
  %v = load %x, %i
  %a = cast %v f32
  %zero = const 0.0 : tile<64xf32>
  %six = const 6.0 : tile<64xf32>
  %m = map max %a, %zero
  %n = map min %m, %six
  %s = cast %n bf16
  store %y, %i, %s
  %top = reduce max %n axis 0
  %at = const 0 : i32
  store %z, %at, %top
}",
        );
        expect_test::expect![[r#"
            kernel @k(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16)) warps(4) {
              %i = range 0 64
              %v = load %x, %i
              %0 = const 0.0 : tile<64xbf16>
              %1 = map max %v, %0
              %2 = const 6.0 : tile<64xbf16>
              %3 = map min %1, %2
              store %y, %i, %3
              %4 = reduce max %3 axis 0
              %top = cast %4 f32
              %at = const 0 : i32
              store %z, %at, %top
            }
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn what_16_bits_do_not_hold_stays_wide() {
        // A number between two of `bf16`, two kinds, a sum, and a mask.
        let text = "kernel @k(%x: ptr<bf16> align(16), %h: ptr<f16> align(16), %z: ptr<f32> align(16)) {
  %i = range 0 64
  %v = load %x, %i
  %u = load %h, %i
  %a = cast %v f32
  %b = cast %u f32
  %tenth = const 0.1 : tile<64xf32>
  %m = map max %a, %tenth
  store %z, %i, %m
  %n = map max %a, %b
  store %z, %i, %n
  %s = map add %a, %a
  store %z, %i, %s
  %five = const 5 : tile<64xi32>
  %few = map lt %i, %five
  %top = reduce max %a axis 0 mask %few
  %at = const 0 : i32
  store %z, %at, %top
}";
        assert_eq!(narrowed(text), parse_valid(text).unwrap().to_string());
    }
}
