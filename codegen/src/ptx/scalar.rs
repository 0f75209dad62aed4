//! Scalar functions and conversions on one element.

use tilefuse_block::{Elem, Literal, ScalarFn};

use super::fmod;
use super::ir::{Ir, Val, literal, ty};

/// `function` of operands of kind `elem` (for `select`, the kind of the second and third).
/// `None` where the function must have been rewritten before.
pub(crate) fn map(ir: &mut Ir, function: ScalarFn, elem: Elem, args: &[Val]) -> Option<Val> {
    if function == ScalarFn::Select {
        let t = ty(elem);
        return Some(ir.def(format_args!("select i1 {}, {t} {}, {t} {}", args[0], args[1], args[2])));
    }
    match elem {
        Elem::F16 | Elem::Bf16 => half(ir, function, elem, args),
        Elem::F32 | Elem::F64 => float(ir, function, elem, args),
        _ => int(ir, function, elem, args),
    }
}

/// Functions on 16-bit floats: sign and selection as they are, the rest in `f32`, rounded once.
fn half(ir: &mut Ir, function: ScalarFn, elem: Elem, args: &[Val]) -> Option<Val> {
    use ScalarFn::*;
    if matches!(function, Neg | Abs | CopySign | Max | Min) {
        return float(ir, function, elem, args);
    }
    let wide: Vec<Val> =
        args.iter().map(|a| ir.def(format_args!("fpext {} {a} to float", ty(elem)))).collect();
    let result = float(ir, function, Elem::F32, &wide)?;
    if matches!(function, Eq | Ne | Lt | Le | Gt | Ge | IsNan | IsInf) {
        return Some(result);
    }
    Some(ir.def(format_args!("fptrunc float {result} to {}", ty(elem))))
}

/// The suffix of an intrinsic's name for a kind.
fn suffix(elem: Elem) -> &'static str {
    match elem {
        Elem::F16 => "f16",
        Elem::Bf16 => "bf16",
        Elem::F32 => "f32",
        Elem::F64 => "f64",
        _ => ty(elem),
    }
}

fn float(ir: &mut Ir, function: ScalarFn, elem: Elem, args: &[Val]) -> Option<Val> {
    use ScalarFn::*;
    let t = ty(elem);
    let a = &args[0];
    let b = args.get(1).unwrap_or(a);
    let call = |ir: &mut Ir, name: &str, args: &[&Val]| {
        ir.intrinsic(&format!("llvm.{name}.{}", suffix(elem)), t, args)
    };
    Some(match function {
        Add => ir.def(format_args!("fadd {t} {a}, {b}")),
        Sub => ir.def(format_args!("fsub {t} {a}, {b}")),
        Mul => ir.def(format_args!("fmul {t} {a}, {b}")),
        Div => ir.def(format_args!("fdiv {t} {a}, {b}")),
        Neg => ir.def(format_args!("fneg {t} {a}")),
        Fma => call(ir, "fma", &[a, b, args.get(2)?]),
        Abs => call(ir, "fabs", &[a]),
        RemTrunc => fmod::call(ir, elem, a, b),
        RemFloor => rem_floor(ir, elem, a, b),
        Max => call(ir, "maximum", &[a, b]),
        Min => call(ir, "minimum", &[a, b]),
        FMax => call(ir, "maximumnum", &[a, b]),
        FMin => call(ir, "minimumnum", &[a, b]),
        CopySign => call(ir, "copysign", &[a, b]),
        Floor => call(ir, "floor", &[a]),
        Ceil => call(ir, "ceil", &[a]),
        Trunc => call(ir, "trunc", &[a]),
        RoundEven => call(ir, "roundeven", &[a]),
        Sqrt => call(ir, "sqrt", &[a]),
        Exp2Approx => ir.intrinsic("llvm.nvvm.ex2.approx.f", t, &[a]),
        Exp2ApproxFtz => ir.intrinsic("llvm.nvvm.ex2.approx.ftz.f", t, &[a]),
        RecipApprox => ir.intrinsic("llvm.nvvm.rcp.approx.ftz.f", t, &[a]),
        Eq => ir.def(format_args!("fcmp oeq {t} {a}, {b}")),
        Ne => ir.def(format_args!("fcmp une {t} {a}, {b}")),
        Lt => ir.def(format_args!("fcmp olt {t} {a}, {b}")),
        Le => ir.def(format_args!("fcmp ole {t} {a}, {b}")),
        Gt => ir.def(format_args!("fcmp ogt {t} {a}, {b}")),
        Ge => ir.def(format_args!("fcmp oge {t} {a}, {b}")),
        IsNan => ir.def(format_args!("fcmp uno {t} {a}, {a}")),
        IsInf => {
            let magnitude = call(ir, "fabs", &[a]);
            let infinity = literal(Literal::float(elem, f64::INFINITY));
            ir.def(format_args!("fcmp oeq {t} {magnitude}, {infinity}"))
        }
        _ => return None,
    })
}

/// Python's remainder: C's, moved by the divisor where the signs differ.
fn rem_floor(ir: &mut Ir, elem: Elem, a: &Val, b: &Val) -> Val {
    let t = ty(elem);
    let zero = literal(Literal::float(elem, 0.0));
    let r = fmod::call(ir, elem, a, b);
    let moved = ir.def(format_args!("fadd {t} {r}, {b}"));
    let nonzero = ir.def(format_args!("fcmp une {t} {r}, {zero}"));
    let negative = ir.def(format_args!("fcmp olt {t} {r}, {zero}"));
    let divisor_negative = ir.def(format_args!("fcmp olt {t} {b}, {zero}"));
    let differ = ir.def(format_args!("xor i1 {negative}, {divisor_negative}"));
    let moves = ir.def(format_args!("and i1 {nonzero}, {differ}"));
    ir.def(format_args!("select i1 {moves}, {t} {moved}, {t} {r}"))
}

fn int(ir: &mut Ir, function: ScalarFn, elem: Elem, args: &[Val]) -> Option<Val> {
    use ScalarFn::*;
    let t = ty(elem);
    let a = &args[0];
    let b = args.get(1).unwrap_or(a);
    let signed = elem.is_signed_int();
    let s = if signed { 's' } else { 'u' };
    let compare = |ir: &mut Ir, what: &str| ir.def(format_args!("icmp {s}{what} {t} {a}, {b}"));
    Some(match function {
        Add => ir.def(format_args!("add {t} {a}, {b}")),
        Sub => ir.def(format_args!("sub {t} {a}, {b}")),
        Mul => ir.def(format_args!("mul {t} {a}, {b}")),
        Neg => ir.def(format_args!("sub {t} 0, {a}")),
        Abs if signed => {
            ir.declare(&format!("{t} @llvm.abs.{t}({t}, i1)"));
            ir.def(format_args!("call {t} @llvm.abs.{t}({t} {a}, i1 false)"))
        }
        Abs => a.clone(),
        MulHi => {
            let (wide, bits) = (format!("i{}", 2 * elem.bits()), elem.bits());
            let x = ir.def(format_args!("{}ext {t} {a} to {wide}", if signed { 's' } else { 'z' }));
            let y = ir.def(format_args!("{}ext {t} {b} to {wide}", if signed { 's' } else { 'z' }));
            let product = ir.def(format_args!("mul {wide} {x}, {y}"));
            let upper = ir.def(format_args!("lshr {wide} {product}, {bits}"));
            ir.def(format_args!("trunc {wide} {upper} to {t}"))
        }
        DivTrunc => divide(ir, elem, a, b).0,
        RemTrunc => divide(ir, elem, a, b).1,
        DivFloor => floor_divide(ir, elem, a, b).0,
        RemFloor => floor_divide(ir, elem, a, b).1,
        Max => ir.intrinsic(&format!("llvm.{s}max.{t}"), t, &[a, b]),
        Min => ir.intrinsic(&format!("llvm.{s}min.{t}"), t, &[a, b]),
        And => ir.def(format_args!("and {t} {a}, {b}")),
        Or => ir.def(format_args!("or {t} {a}, {b}")),
        Xor => ir.def(format_args!("xor {t} {a}, {b}")),
        Not => ir.def(format_args!("xor {t} {a}, -1")),
        Shl => shift(ir, elem, "shl", a, b),
        Shr => shift(ir, elem, if signed { "ashr" } else { "lshr" }, a, b),
        Eq => ir.def(format_args!("icmp eq {t} {a}, {b}")),
        Ne => ir.def(format_args!("icmp ne {t} {a}, {b}")),
        Lt => compare(ir, "lt"),
        Le => compare(ir, "le"),
        Gt => compare(ir, "gt"),
        Ge => compare(ir, "ge"),
        _ => return None,
    })
}

/// Quotient and remainder rounded toward zero; both 0 for a zero divisor. LLVM's own are undefined for a zero
/// divisor and for the smallest integer by -1, so the division is done by 1 there.
fn divide(ir: &mut Ir, elem: Elem, a: &Val, b: &Val) -> (Val, Val) {
    let t = ty(elem);
    let signed = elem.is_signed_int();
    let s = if signed { 's' } else { 'u' };
    let zero = ir.def(format_args!("icmp eq {t} {b}, 0"));
    let minus = signed.then(|| ir.def(format_args!("icmp eq {t} {b}, -1")));
    let special = match &minus {
        Some(minus) => ir.def(format_args!("or i1 {zero}, {minus}")),
        None => zero.clone(),
    };
    let divisor = ir.def(format_args!("select i1 {special}, {t} 1, {t} {b}"));
    let mut q = ir.def(format_args!("{s}div {t} {a}, {divisor}"));
    let r = ir.def(format_args!("{s}rem {t} {a}, {divisor}"));
    if let Some(minus) = minus {
        let negated = ir.def(format_args!("sub {t} 0, {a}"));
        q = ir.def(format_args!("select i1 {minus}, {t} {negated}, {t} {q}"));
    }
    (ir.def(format_args!("select i1 {zero}, {t} 0, {t} {q}")), r)
}

/// Quotient and remainder rounded toward minus infinity; both 0 for a zero divisor.
fn floor_divide(ir: &mut Ir, elem: Elem, a: &Val, b: &Val) -> (Val, Val) {
    let (q, r) = divide(ir, elem, a, b);
    if !elem.is_signed_int() {
        return (q, r);
    }
    let t = ty(elem);
    let nonzero = ir.def(format_args!("icmp ne {t} {r}, 0"));
    let mixed = ir.def(format_args!("xor {t} {r}, {b}"));
    let differ = ir.def(format_args!("icmp slt {t} {mixed}, 0"));
    let moves = ir.def(format_args!("and i1 {nonzero}, {differ}"));
    let lower = ir.def(format_args!("sub {t} {q}, 1"));
    let higher = ir.def(format_args!("add {t} {r}, {b}"));
    let q = ir.def(format_args!("select i1 {moves}, {t} {lower}, {t} {q}"));
    (q, ir.def(format_args!("select i1 {moves}, {t} {higher}, {t} {r}")))
}

/// A shift; amounts that are negative or not below the width shift everything out.
fn shift(ir: &mut Ir, elem: Elem, instruction: &str, a: &Val, b: &Val) -> Val {
    let t = ty(elem);
    // The NVPTX backend looks at the low 32 bits of an amount alone, so it must fit in them.
    let small = ir.def(format_args!("icmp ult {t} {b}, {}", elem.bits()));
    let b = ir.def(format_args!("select i1 {small}, {t} {b}, {t} {}", elem.bits()));
    let inside = ir.def(format_args!("icmp ult {t} {b}, {}", elem.bits()));
    if instruction == "ashr" {
        let amount = ir.def(format_args!("select i1 {inside}, {t} {b}, {t} {}", elem.bits() - 1));
        return ir.def(format_args!("ashr {t} {a}, {amount}"));
    }
    let amount = ir.def(format_args!("select i1 {inside}, {t} {b}, {t} 0"));
    let shifted = ir.def(format_args!("{instruction} {t} {a}, {amount}"));
    ir.def(format_args!("select i1 {inside}, {t} {shifted}, {t} 0"))
}

/// Conversion of a number to another kind.
pub(crate) fn cast(ir: &mut Ir, from: Elem, to: Elem, a: &Val) -> Val {
    let (f, t) = (ty(from), ty(to));
    if from == to {
        return a.clone();
    }
    if to == Elem::Bool {
        return if from.is_float() {
            ir.def(format_args!("fcmp une {f} {a}, {}", literal(Literal::float(from, 0.0))))
        } else {
            ir.def(format_args!("icmp ne {f} {a}, 0"))
        };
    }
    match (from.is_float(), to.is_float()) {
        (true, true) => float_to_float(ir, from, to, a),
        (true, false) => float_to_int(ir, from, to, a),
        (false, true) => int_to_float(ir, from, to, a),
        (false, false) if from.bits() > to.bits() => ir.def(format_args!("trunc {f} {a} to {t}")),
        (false, false) if from.bits() == to.bits() => a.clone(),
        (false, false) => {
            let s = if from.is_signed_int() { 's' } else { 'z' };
            ir.def(format_args!("{s}ext {f} {a} to {t}"))
        }
    }
}

fn float_to_float(ir: &mut Ir, from: Elem, to: Elem, a: &Val) -> Val {
    let (f, t) = (ty(from), ty(to));
    if (from, to) == (Elem::Bf16, Elem::F32) {
        // The bits of the wide one, the low half zero.
        let bits = match ir.half_of(a) {
            Some((word, true)) => ir.def(format_args!("and i32 {word}, -65536")),
            Some((word, false)) => ir.def(format_args!("shl i32 {word}, 16")),
            None => {
                let bits = ir.def(format_args!("bitcast bfloat {a} to i16"));
                let wide = ir.def(format_args!("zext i16 {bits} to i32"));
                ir.def(format_args!("shl i32 {wide}, 16"))
            }
        };
        return ir.def(format_args!("bitcast i32 {bits} to float"));
    }
    if from.bits() == 16 && to.bits() == 16 {
        let wide = ir.def(format_args!("fpext {f} {a} to float"));
        return ir.def(format_args!("fptrunc float {wide} to {t}"));
    }
    if from == Elem::F64 && to.bits() == 16 {
        let single = ir.def(format_args!("fptrunc double {a} to float"));
        return ir.def(format_args!("fptrunc float {single} to {t}"));
    }
    let instruction = if from.bits() < to.bits() { "fpext" } else { "fptrunc" };
    ir.def(format_args!("{instruction} {f} {a} to {t}"))
}

/// Truncation; what does not fit in 32 (or, for wide kinds, 64) bits is the smallest integer of that width, and
/// narrower kinds keep its low bits. For `u64`, 2^63 is taken off values that are not below it, and put back.
fn float_to_int(ir: &mut Ir, from: Elem, to: Elem, a: &Val) -> Val {
    let (kind, a) = match from {
        Elem::F64 => (Elem::F64, a.clone()),
        Elem::F32 => (Elem::F32, a.clone()),
        _ => (Elem::F32, ir.def(format_args!("fpext {} {a} to float", ty(from)))),
    };
    let bits = if to.bits() == 64 || to == Elem::U32 { 64 } else { 32 };
    if to == Elem::U64 {
        return float_to_u64(ir, kind, &a);
    }
    let value = truncate(ir, kind, &a, bits);
    if to.bits() < bits { ir.def(format_args!("trunc i{bits} {value} to {}", ty(to))) } else { value }
}

fn float_to_u64(ir: &mut Ir, kind: Elem, a: &Val) -> Val {
    let t = ty(kind);
    let half = literal(Literal::float(kind, 2f64.powi(63)));
    let large = ir.def(format_args!("fcmp oge {t} {a}, {half}"));
    let less = ir.def(format_args!("fsub {t} {a}, {half}"));
    let rest = ir.def(format_args!("select i1 {large}, {t} {less}, {t} {a}"));
    let value = truncate(ir, kind, &rest, 64);
    let back = ir.def(format_args!("add i64 {value}, {}", i64::MIN));
    ir.def(format_args!("select i1 {large}, i64 {back}, i64 {value}"))
}

fn truncate(ir: &mut Ir, kind: Elem, a: &Val, bits: u32) -> Val {
    let t = ty(kind);
    let limit = 2f64.powi(bits as i32 - 1);
    // A double holds numbers between the smallest 32-bit integer and the one below, which truncate to the former.
    let low = if kind == Elem::F64 && bits == 32 {
        ir.def(format_args!("fcmp ogt {t} {a}, {}", literal(Literal::float(kind, -limit - 1.0))))
    } else {
        ir.def(format_args!("fcmp oge {t} {a}, {}", literal(Literal::float(kind, -limit))))
    };
    let high = ir.def(format_args!("fcmp olt {t} {a}, {}", literal(Literal::float(kind, limit))));
    let inside = ir.def(format_args!("and i1 {low}, {high}"));
    let zero = literal(Literal::float(kind, 0.0));
    let safe = ir.def(format_args!("select i1 {inside}, {t} {a}, {t} {zero}"));
    let converted = ir.def(format_args!("fptosi {t} {safe} to i{bits}"));
    let smallest = i64::MIN >> (64 - bits);
    ir.def(format_args!("select i1 {inside}, i{bits} {converted}, i{bits} {smallest}"))
}

fn int_to_float(ir: &mut Ir, from: Elem, to: Elem, a: &Val) -> Val {
    let s = if from.is_signed_int() { 's' } else { 'u' };
    if to.bits() == 16 {
        let wide = ir.def(format_args!("{s}itofp {} {a} to float", ty(from)));
        return ir.def(format_args!("fptrunc float {wide} to {}", ty(to)));
    }
    ir.def(format_args!("{s}itofp {} {a} to {}", ty(from), ty(to)))
}
