use super::*;
use crate::builder::Builder;
use crate::data::Data;
use crate::interp::{Arg, Buffer, run};
use crate::program::CacheHint;
use crate::verify::verify;

fn outputs(program: &Program, mut args: Vec<Arg>) -> Vec<Data> {
    run(program, &mut args, [1, 1, 1]).unwrap();
    args.iter().filter_map(Arg::data).collect()
}

/// The program's results as it is and expanded are the same bits.
fn same(program: &Program, args: Vec<Arg>) {
    let mut expanded = program.clone();
    expand_operations(&mut expanded).unwrap();
    verify(&expanded).unwrap();
    let as_bits = |arg: &Arg| match arg {
        Arg::Buffer(b) if b.elem.is_small_float() => Arg::Buffer(Buffer { elem: Elem::U8, ..b.clone() }),
        other => other.clone(),
    };
    let changed = args.iter().map(as_bits).collect();
    let (before, after) = (outputs(program, args), outputs(&expanded, changed));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.to_bytes(), after.to_bytes(), "{program}");
    }
}

#[test]
fn conversions_of_every_8_bit_float() {
    for elem in [Elem::F8E4M3, Elem::F8E5M2] {
        let mut b = Builder::new("convert");
        let x = b.ptr_param("x", elem, 1, None);
        let at = b.range(0, 256).unwrap();
        let v = b.load(x, at, None, None, CacheHint::Default).unwrap();
        let nan_free = |b: &mut Builder, v: Value| {
            let wide = b.cast(v, Elem::F32).unwrap();
            let nan = b.map(ScalarFn::IsNan, &[wide]).unwrap();
            let zero = b.constant(Literal::float(Elem::F32, 0.0), &[256]);
            b.map(ScalarFn::Select, &[nan, zero, wide]).unwrap()
        };
        let wide = nan_free(&mut b, v);
        let mut args = vec![Arg::Buffer(Buffer { elem, bytes: (0..=255).collect(), written: None })];
        for to in [Elem::F32, Elem::F16, Elem::I32, Elem::Bool, Elem::F64, elem] {
            let y = b.cast(wide, to).unwrap();
            let out = b.ptr_param(to.name(), to, 8, None);
            b.store(out, at, y, None, CacheHint::Default).unwrap();
            args.push(Arg::Buffer(Buffer::uninit(to, 256)));
        }
        same(&b.finish(), args);
    }
}

#[test]
fn rounding_to_8_bits() {
    let mut values: Vec<f32> =
        vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40, 448.0, 464.0];
    for low in 0..=255u8 {
        for x in [F8E4M3::from_bits(low).to_f32(), F8E5M2::from_bits(low).to_f32()] {
            let near = [x, f32::from_bits(x.to_bits().wrapping_add(1)), x * 1.0625, x * 1.125, x * 1.03];
            values.extend(near.into_iter().filter(|x| !x.is_nan()));
        }
    }
    values.resize(4096, 1.5);
    for elem in [Elem::F8E4M3, Elem::F8E5M2] {
        let mut b = Builder::new("round");
        let (x, y) = (b.ptr_param("x", Elem::F32, 4, None), b.ptr_param("y", elem, 1, None));
        let at = b.range(0, 4096).unwrap();
        let v = b.load(x, at, None, None, CacheHint::Default).unwrap();
        let v = b.cast(v, elem).unwrap();
        b.store(y, at, v, None, CacheHint::Default).unwrap();
        same(&b.finish(), vec![Arg::buffer(values.clone()), Arg::Buffer(Buffer::uninit(elem, 4096))]);
    }
}

#[test]
fn random_bits_are_those_of_the_generator() {
    for offsets in [Elem::I32, Elem::U64] {
        let mut b = Builder::new("philox");
        let (seed, y) = (b.scalar_param("seed", Elem::U64), b.ptr_param("y", Elem::U32, 4, None));
        let at = b.range(0, 64).unwrap();
        let wide = b.cast(at, offsets).unwrap();
        let factor = b.constant(Literal::int(offsets, 0x1234_5678_9ABC), &[64]);
        let wide = b.map(ScalarFn::Mul, &[wide, factor]).unwrap();
        for (index, word) in b.philox(seed, wide, 10).unwrap().into_iter().enumerate() {
            let shift = b.constant(Literal::int(Elem::I32, 64 * index as i64), &[64]);
            let at = b.map(ScalarFn::Add, &[at, shift]).unwrap();
            b.store(y, at, word, None, CacheHint::Default).unwrap();
        }
        let args = vec![Arg::int(Elem::U64, -77), Arg::Buffer(Buffer::uninit(Elem::U32, 256))];
        same(&b.finish(), args);
    }
}

/// Known answers of Random123's `kat_vectors` for Philox 4x32-10.
#[test]
fn random_bits_have_known_answers() {
    let text = "kernel @f(%s: u64, %o: u64, %y: ptr<u32>) {
        %a, %b, %c, %d = philox %s, %o rounds 10
        %i = const 0 : i32   store %y, %i, %a
        %j = const 1 : i32   store %y, %j, %b
        %k = const 2 : i32   store %y, %k, %c
        %l = const 3 : i32   store %y, %l, %d
    }";
    let program = crate::parse_valid(text).unwrap();
    let args =
        vec![Arg::int(Elem::U64, 0), Arg::int(Elem::U64, 0), Arg::Buffer(Buffer::uninit(Elem::U32, 4))];
    let found = outputs(&program, args.clone());
    assert_eq!(found[0], Data::U32(vec![0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]));
    same(&program, args);
}
