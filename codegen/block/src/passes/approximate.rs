//! Lets exponentials be approximate in programs that read and write no float wider than 16 bits. A pass for GPUs alone,
//! whose unit for special functions gives `2^x` and `1 / x` to about 22 bits in a few instructions, where the exact
//! formulas take sixteen and thirty: what is rounded to the 11 or 8 bits of `f16` or `bf16` in the end cannot tell.
//!
//! ```text
//! before                     after
//!   %e = map exp %v            %c = const 1.442695 : f32
//!                              %s = map mul %v, %c
//!                              %e = map exp2_approx %s
//! ```

use smallvec::SmallVec;

use crate::program::{Op, OpKind, Program, Region, Value, ValueData};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal, Type};

/// Rewrites exponentials and sigmoids of `f32` where every float that the program can load or store has 16 bits.
pub fn approximate(program: &mut Program) {
    let pointees = program.params.iter().filter_map(|p| program.ty(p.value).pointee());
    let floats: Vec<Elem> = pointees.filter(|e| e.is_float()).collect();
    if floats.is_empty() || floats.iter().any(|e| e.bits() != 16) {
        return;
    }
    let Program { values, body, .. } = program;
    rewrite(values, body);
}

fn rewrite(values: &mut Vec<ValueData>, region: &mut Region) {
    let mut out = Vec::with_capacity(region.ops.len());
    for mut op in std::mem::take(&mut region.ops) {
        op.regions.iter_mut().for_each(|inner| rewrite(values, inner));
        match (&op.kind, op.args.as_slice(), op.results.as_slice()) {
            (&OpKind::Map(function), &[x], &[result]) if values[x.index()].ty.elem() == Some(Elem::F32) => {
                Out { values, ops: &mut out, like: x }.function(function, op, result);
            }
            _ => out.push(op),
        }
    }
    region.ops = out;
}

/// Where operations go, and a value of their shape.
struct Out<'a> {
    values: &'a mut Vec<ValueData>,
    ops: &'a mut Vec<Op>,
    like: Value,
}

impl Out<'_> {
    fn function(&mut self, function: ScalarFn, op: Op, result: Value) {
        let x = self.like;
        match function {
            ScalarFn::Exp2 => self.map_to(ScalarFn::Exp2Approx, &[x], result),
            ScalarFn::Exp => {
                let scaled = self.scaled(x, std::f64::consts::LOG2_E);
                self.map_to(ScalarFn::Exp2Approx, &[scaled], result);
            }
            ScalarFn::Sigmoid => {
                let scaled = self.scaled(x, -std::f64::consts::LOG2_E);
                let power = self.map(ScalarFn::Exp2Approx, &[scaled]);
                let one = self.constant(1.0);
                let sum = self.map(ScalarFn::Add, &[power, one]);
                self.map_to(ScalarFn::RecipApprox, &[sum], result);
            }
            _ => self.ops.push(op),
        }
    }

    fn scaled(&mut self, x: Value, factor: f64) -> Value {
        let factor = self.constant(factor);
        self.map(ScalarFn::Mul, &[x, factor])
    }

    fn value(&mut self) -> Value {
        let ty: Type = self.values[self.like.index()].ty.clone();
        self.values.push(ValueData { ty, name: None });
        Value(self.values.len() as u32 - 1)
    }

    fn push(&mut self, kind: OpKind, args: &[Value], result: Value) {
        let (args, results) = (SmallVec::from_slice(args), SmallVec::from_slice(&[result]));
        self.ops.push(Op { kind, args, results, regions: Vec::new() });
    }

    fn constant(&mut self, value: f64) -> Value {
        let result = self.value();
        self.push(OpKind::Const(Literal::float(Elem::F32, value)), &[], result);
        result
    }

    fn map(&mut self, function: ScalarFn, args: &[Value]) -> Value {
        let result = self.value();
        self.map_to(function, args, result);
        result
    }

    fn map_to(&mut self, function: ScalarFn, args: &[Value], result: Value) {
        self.push(OpKind::Map(function), args, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::verify;

    fn functions(pointee: &str) -> Vec<&'static str> {
        let text = format!(
            "kernel @f(%x: ptr<{pointee}>, %n: f32, %p: ptr<i32>) {{ %i = range 0 8 %v = load %x, %i %w = CAST
             %e = map exp %w %s = map sigmoid %e %t = map exp2 %s %h = cast %t {pointee} store %x, %i, %h }}"
        );
        // A cast to the kind that a value has is none.
        let text = match pointee {
            "f32" => text
                .replace("%w = CAST", "")
                .replace("%w", "%v")
                .replace("%h = cast %t f32", "")
                .replace("%h", "%t"),
            _ => text.replace("CAST", "cast %v f32"),
        };
        let mut program = crate::parse_valid(&text).unwrap();
        approximate(&mut program);
        verify(&program).unwrap();
        let mut out = Vec::new();
        program.walk(&mut |op| {
            if let OpKind::Map(function) = op.kind {
                out.push(function.name());
            }
        });
        out
    }

    #[test]
    fn exponentials_of_16_bit_programs_are_approximate() {
        let expected = ["mul", "exp2_approx", "mul", "exp2_approx", "add", "recip_approx", "exp2_approx"];
        assert_eq!(functions("bf16"), expected);
        assert_eq!(functions("f16"), expected);
        assert_eq!(functions("f32"), ["exp", "sigmoid", "exp2"]);
        assert_eq!(functions("f64"), ["exp", "sigmoid", "exp2"]);
    }
}
