//! Compiled programs against the interpreter.

use tilefuse_block::interp::{self, Arg};
use tilefuse_block::{Data, Element, Program};

use super::target::Target;
use super::{HostKernel, HostOptions, Isa, Pool, Rayon, Serial};

mod accuracy;
mod atomics;
mod control;
mod emulator;
mod exponents;
mod extremum;
mod functions;
mod half;
mod masks;
mod materialized;
mod neon;
mod non_temporal;
mod operations;
mod prefetch;
mod products;
mod programs;
mod random;
mod registers;
mod vnni;

const ISAS: [Isa; 4] = [Isa::Native, Isa::Vectors, Isa::Avx2, Isa::Baseline];

/// A buffer at a multiple of 64 bytes.
struct Aligned {
    bytes: Vec<u8>,
    place: std::ops::Range<usize>,
}

impl Aligned {
    /// A copy of each buffer of some arguments.
    fn all(args: &[Arg]) -> Vec<Aligned> {
        let buffers = args.iter().filter_map(|a| if let Arg::Buffer(b) = a { Some(b) } else { None });
        buffers
            .map(|buffer| {
                let mut bytes = vec![0; buffer.bytes.len() + 64];
                let start = bytes.as_ptr().align_offset(64);
                let place = start..start + buffer.bytes.len();
                bytes[place.clone()].copy_from_slice(&buffer.bytes);
                Aligned { bytes, place }
            })
            .collect()
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.place.clone()]
    }
}

/// The 64-bit word of an argument whose buffers are `bytes`.
fn words(args: &[Arg], bytes: &mut [Aligned]) -> Vec<u64> {
    let mut bytes = bytes.iter_mut();
    args.iter()
        .map(|arg| match arg {
            Arg::Buffer(_) => {
                let buffer = bytes.next().unwrap();
                buffer.bytes[buffer.place.clone()].as_mut_ptr() as u64
            }
            Arg::Scalar(l) => {
                let raw = Data::repeat(*l, 1).to_bytes();
                let mut word = [0u8; 8];
                word[..raw.len()].copy_from_slice(&raw);
                u64::from_le_bytes(word)
            }
        })
        .collect()
}

/// The buffers after running a kernel.
fn run_kernel(kernel: &HostKernel, args: &[Arg], grid: [u32; 3], pool: &dyn Pool) -> Vec<Data> {
    let buffers: Vec<_> =
        args.iter().filter_map(|a| if let Arg::Buffer(b) = a { Some(b) } else { None }).collect();
    let mut bytes = Aligned::all(args);
    let words = words(args, &mut bytes);
    // SAFETY: the words match the parameters; the interpreter has found every access inside the buffers.
    unsafe { kernel.run(&words, grid, pool) }.unwrap();
    buffers.iter().zip(&bytes).map(|(b, bytes)| Data::from_bytes(b.elem, bytes.get())).collect()
}

/// Whether two buffers agree: floats within `tolerance` relative to the largest element, NaN where the other has NaN.
fn agree(a: &Data, b: &Data, tolerance: f64) -> Result<(), String> {
    for i in 0..a.len() {
        let (x, y) = (a.get(i).unwrap(), b.get(i).unwrap());
        let (p, q) = (x.as_f64(), y.as_f64());
        let close = (p - q).abs() <= tolerance * (1.0 + p.abs().max(q.abs()));
        if x != y && !(p.is_nan() && q.is_nan()) && !(a.elem().is_float() && tolerance > 0.0 && close) {
            return Err(format!("element {i}: expected {p} ({:#x}), found {q} ({:#x})", x.bits, y.bits));
        }
    }
    Ok(())
}

/// Runs a program everywhere, on an emulated processor of another family where there is one, and compares with the
/// interpreter.
fn check(program: &Program, args: &[Arg], grid: [u32; 3], tolerance: f64) {
    let mut expected = args.to_vec();
    interp::run(program, &mut expected, grid).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let expected: Vec<Data> = expected.iter().filter_map(Arg::data).collect();
    if let Some(found) = emulator::run(program, args, grid) {
        for (k, (a, b)) in expected.iter().zip(&found).enumerate() {
            agree(a, b, tolerance).unwrap_or_else(|e| panic!("emulated, buffer {k}, {e}\n{program}"));
        }
    }
    for isa in ISAS {
        let options = HostOptions { isa };
        let kernel = HostKernel::compile(program, &options).unwrap_or_else(|e| panic!("{e}\n{program}"));
        let found = run_kernel(&kernel, args, grid, &Serial);
        for (k, (a, b)) in expected.iter().zip(&found).enumerate() {
            agree(a, b, tolerance).unwrap_or_else(|e| panic!("{isa:?}, buffer {k}, {e}\n{program}"));
        }
        let loaded = HostKernel::load(kernel.object(), &options).unwrap();
        let again = run_kernel(&loaded, args, grid, &Rayon);
        for (k, (a, b)) in found.iter().zip(&again).enumerate() {
            assert_eq!(a.to_bytes(), b.to_bytes(), "{isa:?}, buffer {k} on threads\n{program}");
        }
    }
}

fn check_text(text: &str, args: &[Arg], grid: [u32; 3], tolerance: f64) {
    check(&text.trim().parse::<Program>().unwrap(), args, grid, tolerance);
}

/// Numbers between -4 and 4 that differ.
fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i as f32 * 0.7391).fract() - 0.5) * 8.0).collect()
}

fn f32s(len: usize) -> Arg {
    Arg::buffer(f32::wrap(floats(len)))
}

/// In either direction every part is taken once, and a thread's tasks stay on its stretch.
#[test]
fn parts_stay_with_their_thread_in_both_directions() {
    let forwards: Vec<u64> = (0..8).map(|task| super::placed(task, 4, false)).collect();
    let backwards: Vec<u64> = (0..8).map(|task| super::placed(task, 4, true)).collect();
    assert_eq!(forwards, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(backwards, [3, 2, 1, 0, 7, 6, 5, 4]);
}

/// Formulas are computed for several vectors at once; what computes in 64 bits is not.
#[test]
fn long_formulas_take_several_vectors() {
    let lanes = |function: &str| {
        let text = format!(
            "
kernel @k(%x: ptr<f32>, %y: ptr<f32>) {{
  %o = range 0 1024
  %v = load %x, %o
  %w = map {function} %v
  store %y, %o, %w
}}"
        );
        let program = super::prepared(&text.trim().parse().unwrap(), &Target::neon()).unwrap();
        let wide = super::plan::Plan::new(&program, 4).unwrap().regions[0].nest.lanes.len();
        let short = super::plan::Plan::new(&program, 3).unwrap().regions[0].nest.lanes.len();
        (wide, short)
    };
    assert_eq!([lanes("neg"), lanes("tanh"), lanes("sin")], [(4, 3), (6, 4), (4, 3)]);
}
