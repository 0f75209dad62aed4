//! The operations that functions are expanded to.

use super::math_functions;
use crate::builder::Builder;
use crate::data::{Data, Element};
use crate::interp::{self, Arg, Buffer};
use crate::math::{eval_f32, eval_f64, expand_math, testing};
use crate::program::{CacheHint, Op, OpKind, Program};
use crate::scalar_fn::ScalarFn;
use crate::types::Elem;
use crate::verify::verify;

/// Applies `function` to `len` elements of `x` (and of `y`, where it takes two operands), expanded.
fn program(function: ScalarFn, elem: Elem, len: u32) -> Program {
    let mut b = Builder::new("apply");
    let from = [b.ptr_param("x", elem, 16, None), b.ptr_param("y", elem, 16, None)];
    let to = b.ptr_param("z", elem, 16, None);
    let offsets = b.range(0, len).unwrap();
    let args: Vec<_> = from[..function.arity()]
        .iter()
        .map(|&ptr| b.load(ptr, offsets, None, None, CacheHint::Default).unwrap())
        .collect();
    let result = b.map(function, &args).unwrap();
    b.store(to, offsets, result, None, CacheHint::Default).unwrap();
    let mut program = b.finish();
    expand_math(&mut program).unwrap();
    verify(&program).unwrap();
    program
}

/// Vector instructions of `f32` that an expansion comes to: literals and bitcasts are free, `f64` counts twice.
fn cost(program: &Program) -> u32 {
    let mut sum = 0;
    program.walk(&mut |op: &Op| {
        let wide =
            op.args.iter().chain(&op.results).any(|&v| program.ty(v).elem().is_some_and(|e| e.bits() == 64));
        let one = match op.kind {
            OpKind::Map(ScalarFn::Shl | ScalarFn::Shr | ScalarFn::CopySign) => 1,
            OpKind::Map(f) => f.cost(),
            OpKind::Cast(_) => 1,
            _ => 0,
        };
        sum += if wide { 2 * one } else { one };
    });
    sum
}

#[test]
fn expansions_are_base_functions_for_every_float_kind() {
    for function in math_functions() {
        for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::Bf16] {
            program(function, elem, 64).walk(&mut |op: &Op| {
                assert!(!matches!(op.kind, OpKind::Map(f) if f.is_math()), "{op:?} is left");
            });
        }
    }
}

#[test]
fn costs_are_those_of_the_table() {
    let costs = math_functions().map(|f| (f, cost(&program(f, Elem::F32, 64))));
    let wrong: Vec<String> = costs
        .filter(|(f, cost)| *cost != f.cost())
        .map(|(f, cost)| format!("{} costs {cost}, not {}", f.name(), f.cost()))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn functions_in_loops_are_expanded_in_place() {
    let mut program: Program = "kernel @f(%x: ptr<f32>) {
           %zero = const 0 : i32
           %three = const 3 : i32
           %one = const 1 : i32
           %a = load %x, %zero
           %r = for %i in %zero..%three step %one with (%c = %a) {
             %e = map neg %c
             %s = map exp %e
             yield %s
           }
           store %x, %zero, %r
         }"
    .parse()
    .unwrap();
    expand_math(&mut program).unwrap();
    verify(&program).unwrap();
    let mut args = [Arg::buffer(vec![0.5f32])];
    interp::run(&program, &mut args, [1, 1, 1]).unwrap();
    let step = |x: f32| eval_f32(ScalarFn::Exp, -x, 0.0).unwrap();
    assert_eq!(args[0].data(), Some(Data::F32(vec![step(step(step(0.5)))])));
}

/// What the interpreter makes of the expansion.
fn interpret<T: Element>(function: ScalarFn, elem: Elem, args: &[[T; 2]]) -> Data
where
    Data: From<Vec<T>>,
{
    let column = |i: usize| Arg::buffer(args.iter().map(|pair| pair[i]).collect::<Vec<T>>());
    let mut args_and_result = [column(0), column(1), Arg::Buffer(Buffer::zeros(elem, args.len()))];
    let program = program(function, elem, args.len() as u32);
    interp::run(&program, &mut args_and_result, [1, 1, 1]).unwrap();
    args_and_result[2].data().unwrap()
}

/// The first `2^n` of the pairs, repeated as often as it takes.
fn tile_of<T: Copy>(pairs: Vec<[T; 2]>) -> Vec<[T; 2]> {
    let len = pairs.len().next_power_of_two();
    pairs.into_iter().cycle().take(len).collect()
}

#[test]
fn the_interpreter_computes_the_same_bits_in_f32() {
    for function in math_functions() {
        let args = tile_of(testing::edges_f32(function));
        let Data::F32(values) = interpret(function, Elem::F32, &args) else { panic!("not f32") };
        for (&[x, y], value) in args.iter().zip(values) {
            let direct = eval_f32(function, x, y).unwrap();
            let same = value.to_bits() == direct.to_bits() || (value.is_nan() && direct.is_nan());
            assert!(same, "{} of {x:e}, {y:e}: {value:e}, directly {direct:e}", function.name());
        }
    }
}

#[test]
fn the_interpreter_computes_the_same_bits_in_f64() {
    for function in math_functions() {
        let args = tile_of(testing::edges_f64(function));
        let Data::F64(values) = interpret(function, Elem::F64, &args) else { panic!("not f64") };
        for (&[x, y], value) in args.iter().zip(values) {
            let direct = eval_f64(function, x, y).unwrap();
            let same = value.to_bits() == direct.to_bits() || (value.is_nan() && direct.is_nan());
            assert!(same, "{} of {x:e}, {y:e}: {value:e}, directly {direct:e}", function.name());
        }
    }
}
