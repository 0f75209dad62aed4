//! Functions by instructions for exponents give the bits that they have elsewhere.

use tilefuse_block::math::{eval_with_exponents, testing};
use tilefuse_block::{Elem, Literal, ScalarFn};

use super::*;

/// Edges with their neighbours, and numbers of every exponent and sign; `sin` and `cos` take large ones another way.
fn values(function: ScalarFn, elem: Elem, len: usize) -> Arg {
    let near = |v: f32, d: i32| f32::from_bits(v.to_bits().wrapping_add_signed(d));
    let edges = testing::edges_f32(function).into_iter().flat_map(|[x, _]| (-2..=2).map(move |d| near(x, d)));
    let spread = (0..1u32 << 13).map(|i| f32::from_bits(i << 19 | i.wrapping_mul(0x9e37_79b9) >> 13));
    let all: Vec<f32> = edges.chain(spread).collect();
    // Few of them are spread as well.
    let step = (all.len() / len).max(1);
    let chosen = (0..len).map(|i| Literal::float(elem, all[i * step % all.len()].into()));
    Arg::buffer(Data::from_literals(elem, chosen))
}

/// Compares each kind of processor with the interpreter's result of the program in base functions, bit by bit.
fn check_bits(text: &str, args: &[Arg], grid: [u32; 3]) {
    let program: Program = text.parse().unwrap();
    let mut expected = args.to_vec();
    interp::run(&crate::host::prepared(&program, &Target::neon()).unwrap(), &mut expected, grid).unwrap();
    for isa in ISAS {
        let kernel = HostKernel::compile(&program, &HostOptions { isa }).unwrap();
        let found = run_kernel(&kernel, args, grid, &Serial);
        for (a, b) in expected.iter().filter_map(Arg::data).zip(&found) {
            agree(&a, b, 0.0).unwrap_or_else(|e| panic!("{isa:?}, {e}\n{program}"));
        }
    }
}

fn functions() -> impl Iterator<Item = ScalarFn> {
    ScalarFn::ALL.iter().copied().filter(|&f| eval_with_exponents(f, 1.0).is_some())
}

#[test]
fn formulas_with_exponents_have_the_bits_that_the_interpreter_has() {
    for function in functions() {
        for (elem, len) in
            [(Elem::F32, 1 << 14), (Elem::F32, 64), (Elem::F32, 4), (Elem::F16, 64), (Elem::Bf16, 256)]
        {
            let text = format!(
                "kernel @f(%x: ptr<{0}>, %z: ptr<{0}>) {{\n  %at = range 0 {len}\n  %a = load %x, %at\n  %c = map {1} %a\n  \
                 store %z, %at, %c\n}}",
                elem.name(),
                function.name()
            );
            check_bits(&text, &[values(function, elem, len), values(function, elem, len)], [1, 1, 1]);
        }
    }
}

/// One element at a time, and where the results of a row are added up.
#[test]
fn formulas_with_exponents_stand_anywhere() {
    for function in functions() {
        let text = format!(
            "kernel @f(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {{
  %id = program_id 0
  %one = load %x, %id
  %r = map {0} %one
  store %y, %id, %r
  %many = const 16 : i32
  %first = map mul %id, %many
  %start = splat %first [16]
  %lanes = range 0 16
  %at = map add %start, %lanes
  %a = load %x, %at
  %b = map {0} %a
  %top = reduce max %b axis 0
  %all = splat %top [16]
  %c = map sub %b, %all
  %d = map {0} %c
  store %z, %at, %d
}}",
            function.name()
        );
        let args = [256, 256, 256].map(|len| values(function, Elem::F32, len));
        check_bits(&text, &args, [16, 1, 1]);
    }
}
