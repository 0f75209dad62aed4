//! Measures hand-written block programs on the first CUDA device, in every tiling of a list: one line of JSON each.
//!
//! Arguments: words; a workload is measured whose name contains one of them, or all without one.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;
use serde_json::json;
use tilefuse_block::{Elem, Program, TypeError};
use tilefuse_codegen::Result;
use tilefuse_codegen::cuda::{Buffer, Device, Event, Kernel, Stream};
use tilefuse_codegen::ptx::compile_ptx;

#[path = "../tests/support/kernels.rs"]
mod kernels;

/// Launches between two events, and how often that is repeated.
const LAUNCHES: usize = 20;
const ROUNDS: usize = 7;

struct Workload {
    name: String,
    program: std::result::Result<Program, TypeError>,
    /// Elements of each parameter, the output last.
    lens: Vec<usize>,
    elem: Elem,
    grid: u64,
    tile: u32,
}

fn workloads() -> Vec<Workload> {
    let mut out = Vec::new();
    for elem in [Elem::F32, Elem::Bf16] {
        let n = if elem == Elem::F32 { 1usize << 27 } else { 1 << 28 };
        for (block, warps) in
            [(512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 8)]
        {
            let grid = (n as u64).div_ceil(u64::from(block));
            let flat = |name: &str, program, inputs: usize| Workload {
                name: format!("{name}_{elem}_2^{}", n.ilog2()),
                program,
                lens: vec![n; inputs + 1],
                elem,
                grid,
                tile: block,
            };
            out.push(flat("copy", kernels::copy(elem, n as i64, block, warps), 1));
            out.push(flat("vector_add", kernels::vector_add(elem, n as i64, block, warps), 2));
        }
        for (rows, cols) in [(131_072usize, 1024u32), (32_768, 4096), (8192, 16_384), (43_690, 3072)] {
            for (tile, warps) in tilings(cols) {
                rows_of(&mut out, elem, rows / tile as usize * tile as usize, cols, tile, warps);
            }
        }
    }
    out
}

/// Rows of an instance and warps, for rows of `cols` elements.
fn tilings(cols: u32) -> Vec<(u32, u32)> {
    match cols {
        ..=1024 => vec![(1, 1), (1, 2), (1, 4), (2, 2), (4, 4), (4, 8), (8, 8)],
        1025..=4096 => vec![(1, 2), (1, 4), (1, 8), (1, 16), (2, 8), (4, 8)],
        _ => vec![(1, 8), (1, 16), (1, 32)],
    }
}

fn rows_of(out: &mut Vec<Workload>, elem: Elem, rows: usize, cols: u32, tile: u32, warps: u32) {
    let whole = rows * cols as usize;
    let mut push = |name: &str, program, lens| {
        let name = format!("{name}_{elem}_{rows}x{cols}");
        out.push(Workload { name, program, lens, elem, grid: rows as u64 / u64::from(tile), tile });
    };
    let row = cols as usize;
    push("softmax", kernels::softmax(elem, cols, tile, warps), vec![whole, whole]);
    push("layer_norm", kernels::layer_norm(elem, cols, tile, warps), vec![whole, row, row, whole]);
    let program = kernels::bias_gelu_residual(elem, cols, tile, warps);
    push("bias_gelu_residual", program, vec![whole, row, whole, whole]);
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |w: &Workload| words.is_empty() || words.iter().any(|word| w.name.contains(word.as_str()));
    let workloads: Vec<Workload> = workloads().into_iter().filter(wanted).collect();
    match Device::get(0).and_then(|device| measure_all(&device, &workloads)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(device: &Arc<Device>, workloads: &[Workload]) -> Result<()> {
    let stream = Stream::new(device)?;
    let most = workloads.iter().flat_map(|w| &w.lens).max().copied().unwrap_or(0) * 4;
    let pattern = pattern(most);
    let buffers = (0..4).map(|_| Buffer::from_bytes(device, &pattern)).collect::<Result<Vec<Buffer>>>()?;
    let kernels: Vec<_> = workloads.par_iter().map(|w| compile(device, w)).collect();
    for (workload, kernel) in workloads.iter().zip(kernels) {
        let line = match kernel
            .and_then(|(k, micros)| Ok((measure(device, &stream, &buffers, workload, &k)?, k, micros)))
        {
            Ok((micros, kernel, compile_micros)) => {
                let moved: usize = workload.lens.iter().sum::<usize>() * workload.elem.bytes() as usize;
                json!({
                    "name": workload.name, "tile": workload.tile, "threads": kernel.threads(),
                    "registers": kernel.registers(), "local_bytes": kernel.local_bytes(),
                    "us": (micros * 100.0).round() / 100.0, "tb_per_s": (moved as f64 / micros / 1e4).round() / 100.0,
                    "compile_ms": (compile_micros / 100.0).round() / 10.0,
                })
            }
            Err(error) => json!({ "name": workload.name, "tile": workload.tile, "error": error.to_string() }),
        };
        println!("{line}");
    }
    launch_cost(device, &stream, &buffers)
}

fn compile(device: &Arc<Device>, workload: &Workload) -> Result<(Kernel, f64)> {
    let start = Instant::now();
    let invalid = |e: &TypeError| tilefuse_codegen::Error::Invalid {
        program: workload.name.clone(),
        message: e.to_string(),
    };
    let program = workload.program.as_ref().map_err(invalid)?;
    let ptx = compile_ptx(program, device.target()?, &device.ptx_options())?;
    let kernel = Kernel::load(device, &ptx)?;
    Ok((kernel, start.elapsed().as_secs_f64() * 1e6))
}

/// Microseconds of one launch, the median of several rounds.
fn measure(
    device: &Arc<Device>,
    stream: &Stream,
    buffers: &[Buffer],
    w: &Workload,
    kernel: &Kernel,
) -> Result<f64> {
    let args: Vec<u64> = buffers.iter().take(w.lens.len()).map(Buffer::address).collect();
    // SAFETY: each buffer has room for the largest parameter of all workloads.
    let launch = || unsafe { kernel.launch(stream.raw(), w.grid, &args) };
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        start.record(stream)?;
        (0..LAUNCHES).try_for_each(|_| launch())?;
        end.record(stream)?;
        times.push(end.micros_since(&start)? / LAUNCHES as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The time that queuing a kernel takes this thread.
fn launch_cost(device: &Arc<Device>, stream: &Stream, buffers: &[Buffer]) -> Result<()> {
    let Ok(program) = kernels::vector_add(Elem::F32, 1024, 1024, 4) else { return Ok(()) };
    let ptx = compile_ptx(&program, device.target()?, &device.ptx_options())?;
    let kernel = Kernel::load(device, &ptx)?;
    let args: Vec<u64> = buffers.iter().take(3).map(Buffer::address).collect();
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..200 {
            // SAFETY: three parameters, each buffer far larger than they need.
            unsafe { kernel.launch(stream.raw(), 1, &args) }?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / 200.0);
        stream.synchronize()?;
    }
    println!("{}", json!({ "name": "launch", "us": best }));
    Ok(())
}

/// Bytes that are moderate numbers as `f32` and as `bf16`.
fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Sign and mantissa at random, magnitudes from 1/8 to 2, in both halves of 32 bits.
        let exponent = |bits: u64| 124 + bits % 4;
        let half = |bits: u64| (bits >> 16 & 0x807f) | exponent(bits) << 7;
        (half(state) << 16 | half(state >> 32)) as u32
    };
    let block: Vec<u8> = (0..1 << 22).flat_map(|_| word().to_le_bytes()).collect();
    let mut out = block.repeat(bytes.div_ceil(block.len()));
    out.truncate(bytes);
    out
}
