//! Times host kernels of the memory-bound rows of the CPU comparison, with two threads: `cargo run --release -p
//! tilefuse-codegen --example host_rows [ROW]`. With `--asm` or `--ir` after a row it shows the code instead.

use std::time::Instant;

use tilefuse_block::{Builder, CacheHint, Elem, Literal, Program, ReduceFn, ScalarFn as F, TypeError, Value};
use tilefuse_codegen::host::{HostKernel, HostOptions, Rayon, Serial};

type Made = Result<Program, TypeError>;

/// A row: its name, how its program is made, lengths of its buffers, and the grid.
struct Row {
    name: &'static str,
    make: fn() -> Made,
    buffers: &'static [usize],
    grid: u32,
}

const MEGA: usize = 1 << 20;

const ROWS: &[Row] = &[
    Row { name: "vector_add_2^21", make: vector_add, buffers: &[2 * MEGA; 3], grid: 256 },
    Row {
        name: "bias_gelu_residual_1024x2048",
        make: bias_gelu_residual,
        buffers: &[2 * MEGA, 2 * MEGA, 2048, 2 * MEGA],
        grid: 256,
    },
    Row { name: "gelu_erf_1024x2048", make: gelu_erf, buffers: &[2 * MEGA; 2], grid: 256 },
    Row { name: "chain12_1024x2048", make: chain12, buffers: &[2 * MEGA; 2], grid: 256 },
    Row { name: "softmax_1024x2048", make: softmax, buffers: &[2 * MEGA; 2], grid: 1024 },
    Row {
        name: "layer_norm_1024x2048",
        make: layer_norm,
        buffers: &[2 * MEGA, 2048, 2048, 2 * MEGA],
        grid: 1024,
    },
    Row {
        name: "add_rms_norm_1024x2048",
        make: add_rms_norm,
        buffers: &[2 * MEGA, 2 * MEGA, 2048, 2 * MEGA],
        grid: 1024,
    },
    Row { name: "sum_dim0_2048x1024", make: sum_dim0, buffers: &[2 * MEGA, 1024], grid: 4 },
    Row { name: "sum_rows_2048x1024", make: sum_rows, buffers: &[2 * MEGA, 2048], grid: 2048 },
    Row { name: "transpose_add_1024x2048", make: transpose_add, buffers: &[2 * MEGA; 3], grid: 1024 },
    Row { name: "log_sum_exp_128x50257", make: log_sum_exp, buffers: &[128 * 50257, 128], grid: 128 },
    Row { name: "softmax_16384x64", make: softmax_short, buffers: &[MEGA; 2], grid: 4096 },
];

/// A builder with shorthands for one tile shape.
struct Make {
    b: Builder,
    shape: Vec<u32>,
}

impl Make {
    fn new(name: &str, shape: &[u32]) -> Make {
        Make { b: Builder::new(name), shape: shape.to_vec() }
    }

    fn ptr(&mut self, name: &str) -> Value {
        self.b.ptr_param(name, Elem::F32, 64, None)
    }

    fn f(&mut self, value: f64) -> Value {
        let shape = self.shape.clone();
        self.b.constant(Literal::float(Elem::F32, value), &shape)
    }

    fn int(&mut self, value: i64) -> Value {
        self.b.constant(Literal::int(Elem::I32, value), &[])
    }

    fn map(&mut self, f: F, args: &[Value]) -> Result<Value, TypeError> {
        self.b.map(f, args)
    }

    fn splat(&mut self, scalar: Value) -> Result<Value, TypeError> {
        let shape = self.shape.clone();
        self.b.splat(scalar, &shape)
    }

    fn load(&mut self, ptr: Value, offsets: Value) -> Result<Value, TypeError> {
        self.b.load(ptr, offsets, None, None, CacheHint::Default)
    }

    fn store(&mut self, ptr: Value, offsets: Value, value: Value) -> Result<(), TypeError> {
        self.b.store(ptr, offsets, value, None, CacheHint::Default)
    }

    /// `program_id * extent`.
    fn first(&mut self, extent: i64) -> Result<Value, TypeError> {
        let p = self.b.program_id(0)?;
        let n = self.int(extent);
        self.map(F::Mul, &[p, n])
    }

    /// Offsets `base + 0, 1, ...` of a flat tile.
    fn flat(&mut self, base: Value) -> Result<Value, TypeError> {
        let n: u32 = self.shape.iter().product();
        let r = self.b.range(0, n)?;
        let shape = self.shape.clone();
        let r = self.b.reshape(r, &shape)?;
        let b = self.splat(base)?;
        self.map(F::Add, &[b, r])
    }

    /// The index along an axis, as a tile.
    fn index(&mut self, axis: usize, base: Option<Value>) -> Result<Value, TypeError> {
        let mut r = self.b.range(0, self.shape[axis])?;
        if let Some(base) = base {
            let s = self.b.splat(base, &[self.shape[axis]])?;
            r = self.b.map(F::Add, &[s, r])?;
        }
        if self.shape.len() == 2 {
            r = self.b.expand_dims(r, 1 - axis as u8)?;
        }
        let shape = self.shape.clone();
        self.b.broadcast(r, &shape)
    }

    /// `row * pitch + col`.
    fn at(&mut self, row: Value, col: Value, pitch: i64) -> Result<Value, TypeError> {
        let shape = self.shape.clone();
        let p = self.b.constant(Literal::int(Elem::I32, pitch), &shape);
        let r = self.map(F::Mul, &[row, p])?;
        self.map(F::Add, &[r, col])
    }
}

fn vector_add() -> Made {
    let mut m = Make::new("vector_add", &[8192]);
    let (x, y, z) = (m.ptr("x"), m.ptr("y"), m.ptr("z"));
    let base = m.first(8192)?;
    let o = m.flat(base)?;
    let (a, b) = (m.load(x, o)?, m.load(y, o)?);
    let c = m.map(F::Add, &[a, b])?;
    m.store(z, o, c)?;
    Ok(m.b.finish())
}

fn bias_gelu_residual() -> Made {
    let mut m = Make::new("bias_gelu_residual", &[4, 2048]);
    let (x, y, bias, z) = (m.ptr("x"), m.ptr("y"), m.ptr("bias"), m.ptr("z"));
    let base = m.first(4)?;
    let (row, col) = (m.index(0, Some(base))?, m.index(1, None)?);
    let o = m.at(row, col, 2048)?;
    let (a, r, b) = (m.load(x, o)?, m.load(y, o)?, m.load(bias, col)?);
    let v = m.map(F::Add, &[a, b])?;
    let v2 = m.map(F::Mul, &[v, v])?;
    let (k, s, half, one) = (m.f(0.044715), m.f(0.7978845608028654), m.f(0.5), m.f(1.0));
    let p = m.map(F::Mul, &[v2, k])?;
    let p = m.map(F::Add, &[p, one])?;
    let p = m.map(F::Mul, &[p, v])?;
    let p = m.map(F::Mul, &[p, s])?;
    let t = m.map(F::Tanh, &[p])?;
    let t = m.map(F::Add, &[t, one])?;
    let h = m.map(F::Mul, &[v, half])?;
    let g = m.map(F::Mul, &[h, t])?;
    let out = m.map(F::Add, &[g, r])?;
    m.store(z, o, out)?;
    Ok(m.b.finish())
}

fn gelu_erf() -> Made {
    let mut m = Make::new("gelu_erf", &[8192]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(8192)?;
    let o = m.flat(base)?;
    let v = m.load(x, o)?;
    let (s, half, one) = (m.f(std::f64::consts::FRAC_1_SQRT_2), m.f(0.5), m.f(1.0));
    let e = m.map(F::Mul, &[v, s])?;
    let e = m.map(F::Erf, &[e])?;
    let e = m.map(F::Add, &[e, one])?;
    let h = m.map(F::Mul, &[v, half])?;
    let out = m.map(F::Mul, &[h, e])?;
    m.store(z, o, out)?;
    Ok(m.b.finish())
}

fn chain12() -> Made {
    let mut m = Make::new("chain12", &[8192]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(8192)?;
    let o = m.flat(base)?;
    let v = m.load(x, o)?;
    let (one, two, low, high) = (m.f(1.0), m.f(2.0), m.f(-1.0), m.f(5.0));
    let a = m.map(F::Mul, &[v, two])?;
    let a = m.map(F::Add, &[a, one])?;
    let a = m.map(F::Sigmoid, &[a])?;
    let a = m.map(F::Mul, &[a, v])?;
    let a = m.map(F::Tanh, &[a])?;
    let s = m.map(F::Abs, &[v])?;
    let s = m.map(F::Sqrt, &[s])?;
    let a = m.map(F::Sub, &[a, s])?;
    let a = m.map(F::Exp, &[a])?;
    let a = m.map(F::Max, &[a, low])?;
    let a = m.map(F::Min, &[a, high])?;
    let d = m.map(F::Mul, &[v, v])?;
    let d = m.map(F::Add, &[d, one])?;
    let out = m.map(F::Div, &[a, d])?;
    m.store(z, o, out)?;
    Ok(m.b.finish())
}

fn softmax() -> Made {
    let mut m = Make::new("softmax", &[2048]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(2048)?;
    let o = m.flat(base)?;
    let v = m.load(x, o)?;
    let max = m.b.reduce(ReduceFn::Max, v, 0, None)?;
    let max = m.splat(max)?;
    let d = m.map(F::Sub, &[v, max])?;
    let e = m.map(F::Exp, &[d])?;
    let sum = m.b.reduce(ReduceFn::Sum, e, 0, None)?;
    let sum = m.splat(sum)?;
    let out = m.map(F::Div, &[e, sum])?;
    m.store(z, o, out)?;
    Ok(m.b.finish())
}

fn log_sum_exp() -> Made {
    let mut m = Make::new("log_sum_exp", &[65536]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(50257)?;
    let (o, col) = (m.flat(base)?, m.index(0, None)?);
    let width = m.b.constant(Literal::int(Elem::I32, 50257), &[65536]);
    let mask = m.map(F::Lt, &[col, width])?;
    let v = m.b.load(x, o, Some(mask), None, CacheHint::Default)?;
    let max = m.b.reduce(ReduceFn::Max, v, 0, Some(mask))?;
    let spread = m.splat(max)?;
    let d = m.map(F::Sub, &[v, spread])?;
    let e = m.map(F::Exp, &[d])?;
    let sum = m.b.reduce(ReduceFn::Sum, e, 0, Some(mask))?;
    let log = m.map(F::Log, &[sum])?;
    let out = m.map(F::Add, &[log, max])?;
    let p = m.b.program_id(0)?;
    m.store(z, p, out)?;
    Ok(m.b.finish())
}

fn softmax_short() -> Made {
    let mut m = Make::new("softmax_short", &[4, 64]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(256)?;
    let o = m.flat(base)?;
    let v = m.load(x, o)?;
    let max = m.b.reduce(ReduceFn::Max, v, 1, None)?;
    let max = m.b.expand_dims(max, 1)?;
    let max = m.b.broadcast(max, &[4, 64])?;
    let d = m.map(F::Sub, &[v, max])?;
    let e = m.map(F::Exp, &[d])?;
    let sum = m.b.reduce(ReduceFn::Sum, e, 1, None)?;
    let sum = m.b.expand_dims(sum, 1)?;
    let sum = m.b.broadcast(sum, &[4, 64])?;
    let out = m.map(F::Div, &[e, sum])?;
    m.store(z, o, out)?;
    Ok(m.b.finish())
}

fn layer_norm() -> Made {
    let mut m = Make::new("layer_norm", &[2048]);
    let (x, w, b, z) = (m.ptr("x"), m.ptr("w"), m.ptr("b"), m.ptr("z"));
    let base = m.first(2048)?;
    let (o, col) = (m.flat(base)?, m.index(0, None)?);
    let v = m.load(x, o)?;
    let n = m.b.constant(Literal::float(Elem::F32, 1.0 / 2048.0), &[]);
    let sum = m.b.reduce(ReduceFn::Sum, v, 0, None)?;
    let mean = m.map(F::Mul, &[sum, n])?;
    let mean = m.splat(mean)?;
    let d = m.map(F::Sub, &[v, mean])?;
    let d2 = m.map(F::Mul, &[d, d])?;
    let var = m.b.reduce(ReduceFn::Sum, d2, 0, None)?;
    let var = m.map(F::Mul, &[var, n])?;
    let eps = m.b.constant(Literal::float(Elem::F32, 1e-5), &[]);
    let var = m.map(F::Add, &[var, eps])?;
    let r = m.map(F::Rsqrt, &[var])?;
    let r = m.splat(r)?;
    let y = m.map(F::Mul, &[d, r])?;
    let (w, b) = (m.load(w, col)?, m.load(b, col)?);
    let y = m.map(F::Mul, &[y, w])?;
    let y = m.map(F::Add, &[y, b])?;
    m.store(z, o, y)?;
    Ok(m.b.finish())
}

fn add_rms_norm() -> Made {
    let mut m = Make::new("add_rms_norm", &[2048]);
    let (x, r, w, z) = (m.ptr("x"), m.ptr("r"), m.ptr("w"), m.ptr("z"));
    let base = m.first(2048)?;
    let (o, col) = (m.flat(base)?, m.index(0, None)?);
    let (a, b) = (m.load(x, o)?, m.load(r, o)?);
    let v = m.map(F::Add, &[a, b])?;
    let v2 = m.map(F::Mul, &[v, v])?;
    let sum = m.b.reduce(ReduceFn::Sum, v2, 0, None)?;
    let n = m.b.constant(Literal::float(Elem::F32, 1.0 / 2048.0), &[]);
    let eps = m.b.constant(Literal::float(Elem::F32, 1e-6), &[]);
    let mean = m.map(F::Mul, &[sum, n])?;
    let mean = m.map(F::Add, &[mean, eps])?;
    let scale = m.map(F::Rsqrt, &[mean])?;
    let scale = m.splat(scale)?;
    let y = m.map(F::Mul, &[v, scale])?;
    let w = m.load(w, col)?;
    let y = m.map(F::Mul, &[y, w])?;
    m.store(z, o, y)?;
    Ok(m.b.finish())
}

fn sum_dim0() -> Made {
    let mut m = Make::new("sum_dim0", &[64, 256]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(256)?;
    let zero = m.b.constant(Literal::float(Elem::F32, 0.0), &[256]);
    let (lo, hi, step) = (m.int(0), m.int(2048), m.int(64));
    let mut b = std::mem::replace(&mut m.b, Builder::new(""));
    let acc = b.for_loop((lo, hi, step), &[zero], |b, i, carried| {
        let mut inner = Make { b: std::mem::replace(b, Builder::new("")), shape: vec![64, 256] };
        let (row, col) = (inner.index(0, Some(i))?, inner.index(1, Some(base))?);
        let o = inner.at(row, col, 1024)?;
        let v = inner.load(x, o)?;
        let s = inner.b.reduce(ReduceFn::Sum, v, 0, None)?;
        let next = inner.map(F::Add, &[carried[0], s])?;
        *b = inner.b;
        Ok::<_, TypeError>(vec![next])
    })?;
    m = Make { b, shape: vec![256] };
    let o = m.index(0, Some(base))?;
    m.store(z, o, acc[0])?;
    Ok(m.b.finish())
}

fn sum_rows() -> Made {
    let mut m = Make::new("sum_rows", &[1024]);
    let (x, z) = (m.ptr("x"), m.ptr("z"));
    let base = m.first(1024)?;
    let o = m.flat(base)?;
    let v = m.load(x, o)?;
    let sum = m.b.reduce(ReduceFn::Sum, v, 0, None)?;
    let p = m.b.program_id(0)?;
    m.store(z, p, sum)?;
    Ok(m.b.finish())
}

fn transpose_add() -> Made {
    let mut m = Make::new("transpose_add", &[32, 64]);
    let (x, y, z) = (m.ptr("x"), m.ptr("y"), m.ptr("z"));
    let p = m.b.program_id(0)?;
    let n = m.int(32);
    let (pr, pc) = (m.map(F::DivTrunc, &[p, n])?, m.map(F::RemTrunc, &[p, n])?);
    let (er, ec) = (m.int(32), m.int(64));
    let (r0, c0) = (m.map(F::Mul, &[pr, er])?, m.map(F::Mul, &[pc, ec])?);
    let (row, col) = (m.index(0, Some(r0))?, m.index(1, Some(c0))?);
    let (o, t) = (m.at(row, col, 2048)?, m.at(col, row, 1024)?);
    let (a, b) = (m.load(x, t)?, m.load(y, o)?);
    let c = m.map(F::Add, &[a, b])?;
    m.store(z, o, c)?;
    Ok(m.b.finish())
}

/// Seconds that this thread has run.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn time(row: &Row) -> Result<(), Box<dyn std::error::Error>> {
    let program = (row.make)()?;
    let options = HostOptions::default();
    HostKernel::compile(&program, &options)?;
    let start = Instant::now();
    let kernel = HostKernel::compile(&program, &options)?;
    let compile = start.elapsed();
    let mut buffers: Vec<Vec<f32>> = Vec::new();
    for &len in row.buffers {
        buffers.push((0..len).map(|i| ((i as f32 * 0.618).fract() - 0.5) * 6.0).collect());
    }
    let args: Vec<u64> = buffers.iter_mut().map(|b| b.as_mut_ptr() as u64).collect();
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 20 || (begin.elapsed().as_millis() < 500 && times.len() < 5000) {
        let start = Instant::now();
        // SAFETY: the buffers have the lengths that the program's grid covers, and live on.
        unsafe { kernel.run(&args, [row.grid, 1, 1], &Rayon) }?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let mut alone = f64::INFINITY;
    for _ in 0..50 {
        let start = thread_seconds();
        // SAFETY: as above.
        unsafe { kernel.run(&args, [row.grid, 1, 1], &Serial) }?;
        alone = alone.min((thread_seconds() - start) * 1e6);
    }
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let bytes: usize = row.buffers.iter().map(|n| n * 4).sum();
    let middle = median(times);
    println!(
        "{:30} {middle:8.1} us  least {least:8.1} us  {:6.1} GB/s  one thread {alone:8.1} us  compile {:5.1} ms  {} bytes",
        row.name,
        bytes as f64 / least / 1e3,
        compile.as_secs_f64() * 1e3,
        kernel.object().len(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |row: &&Row| args.first().is_none_or(|name| row.name.starts_with(name.as_str()));
    for row in ROWS.iter().filter(wanted) {
        match args.get(1).map(String::as_str) {
            Some("--asm") => println!("{}", HostKernel::assembly(&(row.make)()?, &HostOptions::default())?),
            Some("--ir") => println!("{}", HostKernel::llvm_ir(&(row.make)()?, &HostOptions::default())?),
            _ => time(row)?,
        }
    }
    Ok(())
}
