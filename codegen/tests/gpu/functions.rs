//! Every scalar function, cast and bitcast on every kind, edges included.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Builder, CacheHint, Elem, Literal, ScalarFn, TypeError, Value};

use crate::run::{Case, Tolerance};
use crate::values::operand;

const BLOCK: u32 = 512;
const N: usize = 1500;

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for &function in ScalarFn::ALL {
        for elem in Elem::ALL {
            let mut kinds = vec![elem; function.arity()];
            if function == ScalarFn::Select {
                kinds[0] = Elem::Bool;
            }
            if function.result(&kinds).is_some() {
                let name = format!("{} {elem}", function.name());
                let mut case = pointwise(&name, &kinds, |b, v| b.map(function, v));
                if function.is_approximate() && elem == Elem::F32 {
                    case.tolerance = Tolerance::Close { absolute: 1e-37, relative: 5e-7 };
                }
                out.push(case);
            }
        }
    }
    for from in Elem::ALL {
        for to in Elem::ALL {
            out.push(pointwise(&format!("cast {from} {to}"), &[from], |b, v| b.cast(v[0], to)));
            if from.bits() == to.bits() && from != to {
                out.push(pointwise(&format!("bitcast {from} {to}"), &[from], |b, v| b.bitcast(v[0], to)));
            }
        }
    }
    out
}

pub(crate) fn pointwise(
    name: &str,
    kinds: &[Elem],
    f: impl Fn(&mut Builder, &[Value]) -> Result<Value, TypeError>,
) -> Case {
    // Lengths that allow vectors, pairs and single elements at the end.
    let n = N - [0, 2, 1][name.len() % 3];
    let mut b = Builder::new("pointwise");
    let inputs: Vec<Value> = kinds
        .iter()
        .enumerate()
        .map(|(i, &e)| b.ptr_param(&format!("x{i}"), e, 16, Some(n as u64)))
        .collect();
    let id = b.program_id(0).unwrap();
    let size = b.constant(Literal::int(Elem::I32, i64::from(BLOCK)), &[]);
    let start = b.map(ScalarFn::Mul, &[id, size]).unwrap();
    let start = b.splat(start, &[BLOCK]).unwrap();
    let range = b.range(0, BLOCK).unwrap();
    let at = b.map(ScalarFn::Add, &[start, range]).unwrap();
    let bound = b.constant(Literal::int(Elem::I32, n as i64), &[BLOCK]);
    let mask = b.map(ScalarFn::Lt, &[at, bound]).unwrap();
    let loads: Vec<Value> =
        inputs.iter().map(|&x| b.load(x, at, Some(mask), None, CacheHint::Default).unwrap()).collect();
    let result = f(&mut b, &loads).unwrap();
    let out = b.ty(result).elem().unwrap();
    let y = b.ptr_param("y", out, 16, Some(n as u64));
    b.store(y, at, result, Some(mask), CacheHint::Default).unwrap();
    let mut args: Vec<Arg> = kinds.iter().enumerate().map(|(i, &e)| Arg::buffer(operand(e, n, i))).collect();
    args.push(Arg::Buffer(Buffer::uninit(out, n)));
    let grid = [(n as u32).div_ceil(BLOCK), 1, 1];
    Case {
        name: name.to_owned(),
        program: b.finish(),
        args,
        grid,
        tolerance: Tolerance::Exact,
        is_function: true,
    }
}
