//! Lets exponentials, quotients and reciprocal roots be approximate in programs that read and write no float wider than 16 bits. A pass for
//! GPUs alone, whose unit for special functions gives `2^x`, `1 / x` and `1 / sqrt x` to about 22 bits in a few instructions, where the
//! exact formulas take sixteen and thirty: what is rounded to the 11 or 8 bits of `f16` or `bf16` in the end cannot tell.
//! Quotients by one number become products with its reciprocal, both sides scaled where that would overflow.
//!
//! ```text
//! before                     after
//!   %e = map exp %v            %c = const 1.442695 : f32
//!                              %s = map mul %v, %c
//!                              %e = map exp2_approx %s
//!
//!   %t = splat %s [64]         %k = 2^64 where %s is below 2^-64, else 1
//!   %q = map div %x, %t        %m = map mul %s, %k
//!                              %r = map div 1, %m
//!                              %q = (%x * %k) * %r
//! ```

use smallvec::SmallVec;

use crate::program::{Loc, Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Kind, Literal, Type};

/// Rewrites exponentials, sigmoids, reciprocal roots and quotients by one number, of `f32`, where every float that the program can load or store has 16 bits.
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
        let (from, loc) = (out.len(), op.loc);
        match (&op.kind, op.args.as_slice(), op.results.as_slice()) {
            (&OpKind::Map(function), &[x], &[result]) if values[x.index()].ty.elem() == Some(Elem::F32) => {
                Out { values, ops: &mut out, like: x }.function(function, op, result);
            }
            (OpKind::Map(ScalarFn::Div), &[x, y], &[result])
                if values[x.index()].ty.elem() == Some(Elem::F32) =>
            {
                let spread = out.iter().rev().find(|op| op.results.first() == Some(&y)).and_then(Spread::of);
                match spread.filter(|s| 2 * values[s.of.index()].ty.numel() <= values[y.index()].ty.numel()) {
                    Some(spread) => Out { values, ops: &mut out, like: x }.quotient(x, &spread, result),
                    None => out.push(op),
                }
            }
            _ => out.push(op),
        }
        locate(&mut out[from..], loc);
    }
    region.ops = out;
}

/// A value of which another repeats the elements.
struct Spread {
    of: Value,
    kind: OpKind,
}

impl Spread {
    fn of(op: &Op) -> Option<Spread> {
        let repeats = matches!(op.kind, OpKind::Splat(_) | OpKind::Broadcast(_));
        repeats.then(|| Some(Spread { of: *op.args.first()?, kind: op.kind.clone() })).flatten()
    }
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
            ScalarFn::Rsqrt => self.map_to(ScalarFn::RsqrtApprox, &[x], result),
            ScalarFn::Exp => {
                let scaled = self.scaled(x, std::f64::consts::LOG2_E);
                self.map_to(ScalarFn::Exp2Approx, &[scaled], result);
            }
            ScalarFn::Sigmoid => {
                let scaled = self.scaled(x, -std::f64::consts::LOG2_E);
                let power = self.map(ScalarFn::Exp2ApproxFtz, &[scaled]);
                let one = self.constant(1.0);
                let sum = self.map(ScalarFn::Add, &[power, one]);
                self.map_to(ScalarFn::RecipApprox, &[sum], result);
            }
            _ => self.ops.push(op),
        }
    }

    /// `x` over a value that is repeated, by its reciprocal. Below `2^-64` both sides are multiplied by `2^64`, so that the
    /// reciprocal is finite; above `2^126` it loses at most three of its 24 bits.
    fn quotient(&mut self, x: Value, divisor: &Spread, result: Value) {
        let s = divisor.of;
        let (scale, reciprocal) = {
            let mut small = Out { values: self.values, ops: self.ops, like: s };
            let size = small.map(ScalarFn::Abs, &[s]);
            let [least, large, one] = [2f64.powi(-64), 2f64.powi(64), 1.0].map(|v| small.constant(v));
            let is_small = small.truth(ScalarFn::Lt, &[size, least]);
            let scale = small.map(ScalarFn::Select, &[is_small, large, one]);
            let scaled = small.map(ScalarFn::Mul, &[s, scale]);
            (scale, small.map(ScalarFn::Div, &[one, scaled]))
        };
        let [scale, reciprocal] = [scale, reciprocal].map(|value| {
            let repeated = self.value();
            self.push(divisor.kind.clone(), &[value], repeated);
            repeated
        });
        let dividend = self.map(ScalarFn::Mul, &[x, scale]);
        self.map_to(ScalarFn::Mul, &[dividend, reciprocal], result);
    }

    /// A comparison.
    fn truth(&mut self, function: ScalarFn, args: &[Value]) -> Value {
        let result = self.value();
        self.values[result.index()].ty.kind = Kind::Elem(Elem::Bool);
        self.map_to(function, args, result);
        result
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
        self.ops.push(Op { kind, args, results, regions: Vec::new(), loc: Loc::UNKNOWN });
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
    use crate::data::Data;
    use crate::interp::Arg;
    use crate::verify::verify;

    fn functions(pointee: &str) -> Vec<&'static str> {
        let text = format!(
            "kernel @f(%x: ptr<{pointee}>, %n: f32, %p: ptr<i32>) {{ %i = range 0 8 %v = load %x, %i %w = CAST
             %e = map exp %w %s = map sigmoid %e %t = map exp2 %s %q = map rsqrt %t %h = cast %q {pointee} store %x, %i, %h }}"
        );
        // A cast to the kind that a value has is none.
        let text = match pointee {
            "f32" => text
                .replace("%w = CAST", "")
                .replace("%w", "%v")
                .replace("%h = cast %q f32", "")
                .replace("%h", "%q"),
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
        let expected = [
            "mul",
            "exp2_approx",
            "mul",
            "exp2_approx_ftz",
            "add",
            "recip_approx",
            "exp2_approx",
            "rsqrt_approx",
        ];
        assert_eq!(functions("bf16"), expected);
        assert_eq!(functions("f16"), expected);
        assert_eq!(functions("f32"), ["exp", "sigmoid", "exp2", "rsqrt"]);
        assert_eq!(functions("f64"), ["exp", "sigmoid", "exp2", "rsqrt"]);
    }

    /// `x / s` of numbers of all sizes, computed by the program's interpreter.
    fn quotients(changed: bool, x: f32, s: f32) -> f32 {
        let text = "kernel @q(%x: f32, %s: f32, %h: ptr<f16>, %y: ptr<f32>) {
            %a = splat %x [2]  %b = splat %s [2]  %q = map div %a, %b  %i = range 0 2  store %y, %i, %q
        }";
        let mut program = crate::parse_valid(text).unwrap();
        if changed {
            let Program { values, body, .. } = &mut program;
            rewrite(values, body);
            verify(&program).unwrap();
            let mut quotients = 0;
            program.walk(&mut |op| quotients += u32::from(op.kind == OpKind::Map(ScalarFn::Div)));
            assert_eq!(quotients, 1);
        }
        let scalar = |v: f32| Arg::Scalar(Literal::float(Elem::F32, v.into()));
        let zeros = |elem| Arg::buffer(Data::repeat(Literal::float(elem, 0.0), 2));
        let mut args = vec![scalar(x), scalar(s), zeros(Elem::F16), zeros(Elem::F32)];
        crate::interp::run(&program, &mut args, [1; 3]).unwrap();
        args[3].data().and_then(|d| d.get(0)).unwrap().as_f64() as f32
    }

    #[test]
    fn quotients_by_one_number_are_close() {
        let values = [0.0, -0.0, 1.0, -3.5, 1e-45, -1e-40, 1e-30, 7e-20, 6e19, 1e30, 2e38, f32::MAX];
        let values = values.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        for x in values.clone() {
            for s in values.clone() {
                let (exact, found) = (quotients(false, x, s), quotients(true, x, s));
                let close = (found - exact).abs() <= exact.abs() * 4e-7 + 1e-44;
                let both = exact.is_nan() && found.is_nan() || exact == found;
                assert!(close || both, "{x} / {s}: {exact} expected, {found} found");
            }
        }
    }
}
