//! The operations that functions are expanded to.

use super::math_functions;
use crate::builder::Builder;
use crate::math::expand_math;
use crate::program::{CacheHint, Op, OpKind, Program};
use crate::scalar_fn::{Level, ScalarFn};
use crate::types::{Elem, Type};

/// Loads a tile, applies `function` to it (twice, where it takes two operands) and stores the result.
fn program(function: ScalarFn, elem: Elem) -> Program {
    let mut b = Builder::new("apply");
    let from = b.ptr_param("x", elem, 16, None);
    let to = b.ptr_param("y", elem, 16, None);
    let offsets = b.range(0, 64).unwrap();
    let x = b.load(from, offsets, None, None, CacheHint::Default).unwrap();
    let y = b.map(function, &[x, x][..function.arity()]).unwrap();
    b.store(to, offsets, y, None, CacheHint::Default).unwrap();
    b.finish()
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

/// Every operand is defined before, every result has the type that follows, and no function is left.
fn verify(program: &Program) {
    let mut defined = vec![false; program.values.len()];
    for param in &program.params {
        defined[param.value.index()] = true;
    }
    program.walk(&mut |op: &Op| {
        assert!(op.args.iter().all(|v| defined[v.index()]), "{op:?} uses an undefined value");
        let types: Vec<&Type> = op.args.iter().map(|&v| program.ty(v)).collect();
        if let (Some(ty), [result]) = (op.kind.infer(&types).unwrap(), &op.results[..]) {
            assert!(matches!(op.kind, OpKind::Const(_)) || *program.ty(*result) == ty, "{op:?}");
        }
        for result in &op.results {
            assert!(!std::mem::replace(&mut defined[result.index()], true), "{op:?} defines a value twice");
        }
        assert!(!matches!(op.kind, OpKind::Map(f) if f.level() == Level::Math), "{op:?} is left");
    });
    assert!(defined.iter().all(|&d| d), "a value without definition is left");
}

#[test]
fn expansions_are_well_formed_for_every_float_kind() {
    for function in math_functions() {
        for elem in [Elem::F32, Elem::F16, Elem::Bf16] {
            let mut program = program(function, elem);
            expand_math(&mut program).unwrap();
            verify(&program);
        }
    }
}

#[test]
fn costs_are_those_of_the_table() {
    let mut wrong = Vec::new();
    for function in math_functions() {
        let mut program = program(function, Elem::F32);
        expand_math(&mut program).unwrap();
        if cost(&program) != function.cost() {
            wrong.push(format!("{} costs {}, not {}", function.name(), cost(&program), function.cost()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
