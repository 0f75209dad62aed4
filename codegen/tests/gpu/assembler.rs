//! What an assembler that reasons about ranges and folds operands may get wrong: comparisons of values that lie in a known
//! range unless they are NaN, and negations in front of the larger and the smaller of several.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, Elem, Literal, ReduceFn, ScalarFn, TypeError, Value};

use crate::functions::pointwise;
use crate::run::{Case, Tolerance};
use crate::shapes::{finish, load, out_of, store};
use crate::values::{moderate, operand};

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for elem in [Elem::F32, Elem::F16, Elem::Bf16, Elem::F64] {
        for bounded in Bounded::ALL {
            out.push(compared(elem, bounded));
        }
    }
    for elem in [Elem::I8, Elem::I16, Elem::I32, Elem::I64, Elem::U8] {
        for function in [ScalarFn::Min, ScalarFn::Max] {
            for negated in 0..8 {
                out.push(three(elem, function, negated));
            }
        }
        for combine in [ReduceFn::Min, ReduceFn::Max] {
            for factor in [-1, -2, -4, -3] {
                out.push(scaled_reduction(elem, combine, factor));
            }
        }
    }
    for elem in [Elem::I8, Elem::U8, Elem::I16, Elem::I32] {
        out.extend([ScalarFn::Min, ScalarFn::Max].map(|function| bounded(elem, function)));
    }
    out.extend([rematerialized(), beside_a_function()]);
    out
}

/// A transposed tile that is chosen from by booleans of the other order, beside a sum: a part of the thread's index is
/// used far behind the index itself.
fn rematerialized() -> Case {
    let program = include_str!("rematerialized.tile").parse().unwrap();
    let n = 3 * 17_391;
    let zeros = |n| Arg::Buffer(Buffer::zeros(Elem::F32, n));
    let data = |elem, seed| Arg::buffer(moderate(elem, n, seed));
    let input = data(Elem::F32, 1);
    let args = vec![input.clone(), zeros(n), data(Elem::Bool, 2), zeros(n), input, zeros(3)];
    Case {
        name: "assembler rematerialized".to_owned(),
        program,
        args,
        grid: [30, 1, 1],
        // The sums are in another order.
        tolerance: Tolerance::Close { absolute: 1e-2, relative: 1e-4 },
        is_function: false,
    }
}

/// The remainder, a function of its own with fewer registers, of a tile and a transposed one: the thread's index is used once
/// more at the end of the kernel.
fn beside_a_function() -> Case {
    let n = 129 * 127;
    let zeros = || Arg::Buffer(Buffer::zeros(Elem::F32, n));
    let data = |seed| Arg::buffer(moderate(Elem::F32, n, seed));
    Case {
        name: "assembler rematerialized beside a function".to_owned(),
        program: include_str!("remainder.tile").parse().unwrap(),
        args: vec![data(1), zeros(), zeros(), data(2), zeros()],
        grid: [6, 1, 1],
        tolerance: Tolerance::Exact,
        is_function: false,
    }
}

/// A value of known range.
#[derive(Clone, Copy, Debug)]
enum Bounded {
    Abs,
    NegatedAbs,
    Square,
    SquarePlusOne,
    Sum,
    Relu,
    Exp,
    Sin,
    Tanh,
    Sqrt,
}

impl Bounded {
    const ALL: [Bounded; 10] = [
        Bounded::Abs,
        Bounded::NegatedAbs,
        Bounded::Square,
        Bounded::SquarePlusOne,
        Bounded::Sum,
        Bounded::Relu,
        Bounded::Exp,
        Bounded::Sin,
        Bounded::Tanh,
        Bounded::Sqrt,
    ];

    fn build(self, b: &mut Builder, elem: Elem, x: Value, y: Value) -> Result<Value, TypeError> {
        let shape = b.ty(x).shape.to_vec();
        match self {
            Bounded::Abs => b.map(ScalarFn::Abs, &[x]),
            Bounded::NegatedAbs => {
                let v = b.map(ScalarFn::Abs, &[x])?;
                b.map(ScalarFn::Neg, &[v])
            }
            Bounded::Square => b.map(ScalarFn::Mul, &[x, x]),
            Bounded::SquarePlusOne => {
                let v = b.map(ScalarFn::Mul, &[x, x])?;
                let one = b.constant(Literal::of(elem, 1.0), &shape);
                b.map(ScalarFn::Add, &[v, one])
            }
            Bounded::Sum => {
                let v = b.map(ScalarFn::Abs, &[x])?;
                let w = b.map(ScalarFn::Abs, &[y])?;
                b.map(ScalarFn::Add, &[v, w])
            }
            Bounded::Relu => {
                let zero = b.constant(Literal::of(elem, 0.0), &shape);
                b.map(ScalarFn::Max, &[x, zero])
            }
            Bounded::Exp => b.map(ScalarFn::Exp, &[x]),
            Bounded::Sin => b.map(ScalarFn::Sin, &[x]),
            Bounded::Tanh => b.map(ScalarFn::Tanh, &[x]),
            Bounded::Sqrt => b.map(ScalarFn::Sqrt, &[x]),
        }
    }
}

/// How the value compares with each of a few constants and with the negated value of another, as bits of an integer.
fn compared(elem: Elem, bounded: Bounded) -> Case {
    let name = format!("assembler compares {bounded:?} {elem}");
    pointwise(&name, &[elem, elem], |b, v| {
        let shape = b.ty(v[0]).shape.to_vec();
        let x = bounded.build(b, elem, v[0], v[1])?;
        let other = bounded.build(b, elem, v[1], v[0])?;
        let mut right: Vec<Value> =
            [-2.0, -1.0, 0.0, 1.0, 2.0].map(|c| b.constant(Literal::of(elem, c), &shape)).to_vec();
        right.push(b.map(ScalarFn::Neg, &[other])?);
        let mut bits = b.constant(Literal::int(Elem::I32, 0), &shape);
        let functions = [ScalarFn::Lt, ScalarFn::Le, ScalarFn::Gt, ScalarFn::Ge, ScalarFn::Eq, ScalarFn::Ne];
        for (n, (function, y)) in functions.iter().flat_map(|f| right.iter().map(move |y| (f, y))).enumerate()
        {
            let holds = b.map(*function, &[x, *y])?;
            let bit = b.constant(Literal::int(Elem::I32, 1i64 << (n % 31)), &shape);
            let turned = b.map(ScalarFn::Xor, &[bits, bit])?;
            bits = b.map(ScalarFn::Select, &[holds, turned, bits])?;
        }
        Ok(bits)
    })
}

/// The smaller or the larger of three of which some are negated.
fn three(elem: Elem, function: ScalarFn, negated: u32) -> Case {
    let name = format!("assembler {} of three {negated:03b} {elem}", function.name());
    pointwise(&name, &[elem; 3], |b, v| {
        let mut args = v.to_vec();
        for (n, arg) in args.iter_mut().enumerate() {
            if negated >> n & 1 == 1 {
                *arg = b.map(ScalarFn::Neg, &[*arg])?;
            }
        }
        let two = b.map(function, &args[..2])?;
        b.map(function, &[two, args[2]])
    })
}

/// Powers of bounded even numbers: one of 1 is told by comparison, which LLVM leaves as one with the bound.
fn bounded(elem: Elem, function: ScalarFn) -> Case {
    let name = format!("assembler power of {} with 1 {elem}", function.name());
    let case = pointwise(&name, &[elem, Elem::F32], |b, v| {
        let shape = b.ty(v[0]).shape.to_vec();
        let [one, two] = [1, 2].map(|n| b.constant(Literal::int(elem, n), &shape));
        let x = b.map(ScalarFn::Mul, &[v[0], two])?;
        let x = b.map(function, &[x, one])?;
        let x = b.cast(x, Elem::F32)?;
        b.map(ScalarFn::Pow, &[x, v[1]])
    });
    Case { tolerance: Tolerance::Close { absolute: 0.0, relative: 1e-5 }, is_function: false, ..case }
}

/// The smallest or the largest of 16 multiples, which lie in one thread, in 32 columns.
fn scaled_reduction(elem: Elem, combine: ReduceFn, factor: i64) -> Case {
    let shape = [16u32, 32];
    let mut b = Builder::new("scaled_reduction");
    b.set_warps(1);
    let [x, y] = ["x", "y"].map(|name| b.ptr_param(name, elem, 16, None));
    let range = b.range(0, 512).unwrap();
    let at = b.reshape(range, &shape).unwrap();
    let v = load(&mut b, x, at);
    let factor_value = b.constant(Literal::int(elem, factor), &shape);
    let v = b.map(ScalarFn::Mul, &[v, factor_value]).unwrap();
    let r = b.reduce(combine, v, 0, None).unwrap();
    let at = b.range(0, 32).unwrap();
    store(&mut b, y, at, r);
    let args = vec![tilefuse_block::interp::Arg::buffer(operand(elem, 512, 3)), out_of(elem, 32)];
    let case = finish(format!("assembler {combine:?} of multiples by {factor} {elem}"), b, args);
    Case { tolerance: Tolerance::Exact, ..case }
}
