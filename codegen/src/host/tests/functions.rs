//! Every scalar function, cast and combiner on every element kind, on tiles of ranks 0 to 3.

use tilefuse_block::{Builder, CacheHint, Elem, Literal, ReduceFn, ScalarFn, TypeError, TypeRule, Value};

use super::*;

pub(super) const SHAPES: [&[u32]; 3] = [&[], &[64], &[2, 4, 8]];

/// Edge values and some others of a kind.
fn edge_values(elem: Elem) -> Vec<Literal> {
    if elem.is_float() {
        let values = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            1.5,
            2.5,
            -2.5,
            3.1,
            -7.3,
            1e-3,
            65504.0,
            65520.0,
            1e20,
            -1e20,
            1e-40,
            6e-8,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            2_147_483_647.0,
            -2_147_483_648.0,
            9.3e18,
            1.9e19,
            -3e9,
            300.0,
            16_777_217.0,
        ];
        return values.iter().map(|&v| Literal::float(elem, v)).collect();
    }
    let values = [0, 1, -1, 2, 3, 5, -7, 31, 32, 40, 63, 64, 127, 128, -128, 255, i64::MIN, i64::MAX];
    let narrow = [i64::from(i32::MIN), i64::from(i32::MAX), i64::from(i16::MIN), 12345];
    values.iter().chain(&narrow).map(|&v| Literal::int(elem, v)).collect()
}

/// `len` values; `step` chooses the order.
pub(super) fn data(elem: Elem, len: usize, step: usize) -> Arg {
    let values = edge_values(elem);
    let mut out = Data::repeat(values[0], len).to_bytes();
    let size = elem.bytes() as usize;
    for i in 0..len {
        let value = values[(i * step + i / values.len()) % values.len()];
        out[i * size..(i + 1) * size].copy_from_slice(&Data::repeat(value, 1).to_bytes());
    }
    Arg::buffer(Data::from_bytes(elem, &out))
}

/// A program under construction with its buffers.
pub(super) struct Case {
    pub(super) b: Builder,
    pub(super) args: Vec<Arg>,
    len: usize,
    shape: Vec<u32>,
    offsets: Value,
}

impl Case {
    pub(super) fn new(shape: &[u32]) -> Case {
        let mut b = Builder::new("case");
        let count: u32 = shape.iter().product();
        let offsets = if shape.is_empty() {
            b.constant(Literal::int(Elem::I32, 5), &[])
        } else {
            let flat = b.range(0, count).unwrap();
            b.reshape(flat, shape).unwrap()
        };
        Case { b, args: Vec::new(), len: count.max(8) as usize, shape: shape.to_vec(), offsets }
    }

    pub(super) fn input(&mut self, elem: Elem, step: usize) -> Value {
        let ptr = self.b.ptr_param("x", elem, elem.bytes(), None);
        self.args.push(data(elem, self.len, step));
        self.b.load(ptr, self.offsets, None, None, CacheHint::Default).unwrap()
    }

    /// A tile of a shape, read from a buffer of its own.
    pub(super) fn tile(&mut self, arg: Arg, shape: &[u32]) -> Value {
        let Arg::Buffer(buffer) = &arg else { panic!("a buffer") };
        let ptr = self.b.ptr_param("x", buffer.elem, buffer.elem.bytes(), None);
        let count: u32 = shape.iter().product();
        let flat = self.b.range(0, count).unwrap();
        let offsets = self.b.reshape(flat, shape).unwrap();
        self.args.push(arg);
        self.b.load(ptr, offsets, None, None, CacheHint::Default).unwrap()
    }

    pub(super) fn output(&mut self, value: Value) {
        let ty = self.b.ty(value).clone();
        let elem = ty.elem().unwrap();
        let ptr = self.b.ptr_param("y", elem, elem.bytes(), None);
        let len = self.len.max(ty.numel() as usize);
        self.args.push(Arg::buffer(Data::repeat(Literal::of(elem, 0.0), len)));
        let offsets = match ty.rank() {
            0 => self.b.constant(Literal::int(Elem::I32, 3), &[]),
            _ => {
                let flat = self.b.range(0, ty.numel() as u32).unwrap();
                self.b.reshape(flat, &ty.shape).unwrap()
            }
        };
        self.b.store(ptr, offsets, value, None, CacheHint::Default).unwrap();
    }

    pub(super) fn check(self, tolerance: f64) {
        check(&self.b.finish(), &self.args, [1, 1, 1], tolerance);
    }
}

fn accepts(function: ScalarFn, elem: Elem) -> bool {
    let mut operands = vec![elem; function.arity()];
    if function.rule() == TypeRule::Select {
        operands[0] = Elem::Bool;
    }
    function.result(&operands).is_some()
}

fn base_functions(elem: Elem, shape: &[u32]) -> Result<(), TypeError> {
    let mut case = Case::new(shape);
    let inputs: Vec<Value> = [1, 5, 7].iter().map(|&step| case.input(elem, step)).collect();
    let truth = case.input(Elem::Bool, 3);
    let wanted = |f: &ScalarFn| !f.is_math() && accepts(*f, elem);
    for &function in ScalarFn::ALL.iter().filter(|f| wanted(f)) {
        let mut operands = inputs[..function.arity()].to_vec();
        if function.rule() == TypeRule::Select {
            operands[0] = truth;
        }
        let result = case.b.map(function, &operands)?;
        case.output(result);
    }
    case.check(0.0);
    Ok(())
}

#[test]
fn computes_every_base_function() {
    for elem in Elem::ALL {
        for shape in SHAPES {
            base_functions(elem, shape).unwrap();
        }
    }
}

#[test]
fn computes_every_math_function() {
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::Bf16] {
        let known = |f: ScalarFn| elem != Elem::F64 || tilefuse_block::math::eval_f64(f, 1.0, 1.0).is_some();
        let mut case = Case::new(&[64]);
        let (x, y) = (case.input(elem, 1), case.input(elem, 5));
        for &function in ScalarFn::ALL.iter().filter(|f| f.is_math() && known(**f)) {
            let result = case.b.map(function, &[x, y][..function.arity()]).unwrap();
            case.output(result);
        }
        case.check(1e-2);
    }
}

#[test]
fn converts_between_all_kinds() {
    for from in Elem::ALL {
        for shape in SHAPES {
            let mut case = Case::new(shape);
            let x = case.input(from, 1);
            for to in Elem::ALL {
                let y = case.b.cast(x, to).unwrap();
                case.output(y);
                if from.bits() == to.bits() {
                    let y = case.b.bitcast(x, to).unwrap();
                    case.output(y);
                }
            }
            case.check(0.0);
        }
    }
}

#[test]
fn combines_along_every_axis() {
    for elem in Elem::ALL.into_iter().filter(|e| !e.is_small_float()) {
        for shape in &SHAPES[1..] {
            let mut case = Case::new(shape);
            let x = case.input(elem, 1);
            // Infinite sums and products differ by order; the mask leaves small values.
            let limit = case.b.constant(Literal::of(elem, 3.0), shape);
            let mask = match elem {
                Elem::Bool => x,
                _ => case.b.map(ScalarFn::Le, &[x, limit]).unwrap(),
            };
            for combine in ReduceFn::ALL.into_iter().filter(|c| c.accepts(elem)) {
                for axis in 0..case.shape.len() as u8 {
                    let order_matters = elem.is_float() && matches!(combine, ReduceFn::Sum | ReduceFn::Prod);
                    if !order_matters {
                        let all = case.b.reduce(combine, x, axis, None).unwrap();
                        case.output(all);
                    }
                    let some = case.b.reduce(combine, x, axis, Some(mask)).unwrap();
                    case.output(some);
                }
            }
            case.check(if elem == Elem::F64 { 1e-12 } else { 1e-2 });
        }
    }
}
