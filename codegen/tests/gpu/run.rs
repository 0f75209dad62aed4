//! One case: a program, its arguments, and how close the device must come to the interpreter.

use std::cell::RefCell;
use std::sync::Arc;

use tilefuse_block::interp::{self, Arg};
use tilefuse_block::{Data, Literal, Program, expand_math};
use tilefuse_codegen::cuda::{Buffer, Device, Kernel};
use tilefuse_codegen::ptx::{PtxOptions, Target, compile_ptx, emit_llvm};

/// Bytes after each buffer that no kernel may touch.
const GUARD: usize = 256;

/// What counts as equal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tolerance {
    /// Bit for bit; any NaN equals any other.
    Exact,
    /// Within an absolute and a relative error.
    Close { absolute: f64, relative: f64 },
    /// An assertion fails, which is not tried on the device, whose context it would end.
    Fails,
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) args: Vec<Arg>,
    pub(crate) grid: [u32; 3],
    pub(crate) tolerance: Tolerance,
    /// Whether this is a scalar function on a plain tile.
    pub(crate) is_function: bool,
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// What the buffers hold after the interpreter has run a case, and what it prints.
fn interpret(case: &Case) -> Result<(Vec<Arg>, Vec<String>), String> {
    let mut expected = case.args.clone();
    let mut program = case.program.clone();
    expand_math(&mut program).map_err(|e| e.to_string())?;
    LINES.with_borrow_mut(Vec::clear);
    let print = |line: &str| LINES.with_borrow_mut(|lines| lines.push(line.to_owned()));
    let options = interp::Options { print, ..interp::Options::default() };
    match (interp::run_with(&program, &mut expected, case.grid, &options), case.tolerance) {
        (Ok(()), Tolerance::Fails) => Err("no assertion failed in the interpreter".to_owned()),
        (Ok(()), _) => Ok((expected, LINES.take())),
        (Err(error), Tolerance::Fails) if error.to_string().contains("assert") => {
            Ok((expected, LINES.take()))
        }
        (Err(error), _) => Err(format!("interpreter: {error}\n{}", case.program)),
    }
}

/// Interprets a case, compiles it and assembles what comes out, for Hopper.
pub(crate) fn assemble(case: &Case) -> Result<(), String> {
    interpret(case)?;
    let target = Target::Sm90a;
    let ptx = compile_ptx(&case.program, target, &PtxOptions::default()).map_err(|e| {
        format!("{e}\n{}\n{}", case.program, emit_llvm(&case.program, target).unwrap_or_default())
    })?;
    match crate::ptxas::assemble(&ptx.text, target.name()) {
        Some(report) if report.spill_bytes > 0 => Err(format!("spills\n{}{}", report.log, case.program)),
        Some(_) => Ok(()),
        None => Err("no ptxas".to_owned()),
    }
}

/// Runs a case on the device and in the interpreter.
pub(crate) fn run(device: &Arc<Device>, case: &Case) -> Result<(), String> {
    let (expected, _) = interpret(case)?;
    match case.tolerance {
        Tolerance::Fails => Ok(()),
        _ => check(case, &expected, on_device(device, case)?),
    }
}

/// Runs a case on emulated threads and in the interpreter.
pub(crate) fn emulate(case: &Case) -> Result<(), String> {
    let (expected, mut lines) = interpret(case)?;
    let (found, mut printed) = match (on_emulated_threads(case), case.tolerance) {
        (Ok(_), Tolerance::Fails) => return Err("no assertion failed".to_owned()),
        (Err(error), Tolerance::Fails) if error.contains("assertion failed") => return Ok(()),
        (result, _) => result?,
    };
    lines.sort_unstable();
    printed.sort_unstable();
    if lines != printed {
        return Err(format!("printed {printed:#?}, not {lines:#?}\n{}", case.program));
    }
    check(case, &expected, found)
}

fn check(case: &Case, expected: &[Arg], found: Vec<Option<Vec<u8>>>) -> Result<(), String> {
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        let (Arg::Buffer(expected), Some(found)) = (expected, found) else { continue };
        let (bytes, guard) = found.split_at(expected.bytes.len());
        if guard.iter().any(|&b| b != 0xAA) {
            return Err(format!("argument {index} was written beyond its end\n{}", case.program));
        }
        compare(case, index, &expected.data(), &Data::from_bytes(expected.elem, bytes))?;
    }
    Ok(())
}

/// The words that a kernel of a case takes, and its buffers with [`GUARD`] bytes behind each; `place` puts contents
/// where the kernel can reach them, and gives their address.
fn arguments<B>(
    case: &Case,
    mut place: impl FnMut(Vec<u8>) -> Result<(u64, B), String>,
) -> Result<(Vec<u64>, Vec<Option<B>>), String> {
    let placed = case.args.iter().map(|arg| match arg {
        Arg::Scalar(literal) => Ok((bits(*literal), None)),
        Arg::Buffer(buffer) => {
            let mut contents = buffer.bytes.clone();
            contents.resize(contents.len() + GUARD, 0xAA);
            place(contents).map(|(address, buffer)| (address, Some(buffer)))
        }
    });
    Ok(placed.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
}

/// The bytes of the buffers, with what follows them.
type Contents = Vec<Option<Vec<u8>>>;

/// Runs a case on emulated threads and returns the contents of its buffers, and what it prints.
fn on_emulated_threads(case: &Case) -> Result<(Contents, Vec<String>), String> {
    let target = Target::Sm90a;
    let ptx = compile_ptx(&case.program, target, &PtxOptions::default()).map_err(|e| e.to_string())?;
    let ir = emit_llvm(&case.program, target).map_err(|e| e.to_string())?;
    let (words, buffers) = arguments(case, |mut contents| {
        contents.resize(contents.len().next_multiple_of(16), 0xAA);
        let chunk = |c: &[u8]| u128::from_le_bytes(c.try_into().unwrap());
        let aligned: Vec<u128> = contents.chunks_exact(16).map(chunk).collect();
        Ok((aligned.as_ptr() as u64, aligned))
    })?;
    let lines = crate::emulate::run(&case.program, &ir, &ptx, case.grid, &words)?;
    let bytes = |b: Vec<u128>| b.into_iter().flat_map(u128::to_le_bytes).collect();
    let contents = std::hint::black_box(buffers).into_iter().map(|b| b.map(bytes)).collect();
    Ok((contents, lines))
}

/// Runs a case on the device and returns the contents of its buffers with what follows them.
fn on_device(device: &Arc<Device>, case: &Case) -> Result<Vec<Option<Vec<u8>>>, String> {
    let text = |e: tilefuse_codegen::Error| format!("{e}\n{}", case.program);
    let target = device.target().map_err(text)?;
    let ptx = compile_ptx(&case.program, target, &device.ptx_options()).map_err(text)?;
    let kernel = Kernel::load(device, &ptx).map_err(|e| format!("{e}\n{}", ptx.text))?;
    let (words, buffers) = arguments(case, |contents| {
        let buffer = Buffer::from_bytes(device, &contents).map_err(text)?;
        Ok((buffer.address(), buffer))
    })?;
    // SAFETY: one argument for each parameter; the interpreter found every access inside its buffer.
    unsafe { kernel.launch_grid(std::ptr::null_mut(), case.grid.map(u64::from), &words) }.map_err(text)?;
    let read = |b: &Option<Buffer>| b.as_ref().map(|b| b.to_bytes()).transpose();
    buffers.iter().map(read).collect::<Result<_, _>>().map_err(text)
}

/// A scalar as the kernel takes it.
fn bits(literal: Literal) -> u64 {
    let mut word = [0; 8];
    let bytes = Data::repeat(literal, 1).to_bytes();
    word[..bytes.len()].copy_from_slice(&bytes);
    u64::from_le_bytes(word)
}

fn compare(case: &Case, index: usize, expected: &Data, found: &Data) -> Result<(), String> {
    let pairs = expected.literals().into_iter().zip(found.literals());
    // Results of 16 bits may fall on the other side of a rounding where the target's exponentials are its own.
    let tolerance = match case.tolerance {
        Tolerance::Exact if crate::random::is_approximate(&case.program) => {
            Tolerance::Close { absolute: 1e-30, relative: 8e-3 }
        }
        tolerance => tolerance,
    };
    let wrong: Vec<_> = pairs.enumerate().filter(|(_, (e, f))| !equal(tolerance, *e, *f)).collect();
    let Some((at, (e, f))) = wrong.first() else { return Ok(()) };
    let inputs: Vec<String> = case
        .args
        .iter()
        .filter_map(|a| a.data().and_then(|d| d.get(*at)))
        .map(|l| format!("{} ({:x})", l.as_f64(), l.bits))
        .collect();
    Err(format!(
        "argument {index}: {} elements differ, the first is {at}: {} ({:x}) expected, {} ({:x}) found; there: {}\n{}",
        wrong.len(),
        e.as_f64(),
        e.bits,
        f.as_f64(),
        f.bits,
        inputs.join(", "),
        case.program
    ))
}

fn equal(tolerance: Tolerance, e: Literal, f: Literal) -> bool {
    if e.bits == f.bits {
        return true;
    }
    match tolerance {
        Tolerance::Exact | Tolerance::Fails => false,
        Tolerance::Close { absolute, relative } => {
            let (e, f) = (e.as_f64(), f.as_f64());
            (e - f).abs() <= absolute + relative * e.abs()
        }
    }
}
