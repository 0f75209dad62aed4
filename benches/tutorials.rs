//! The tutorials' kernels beside libtorch on a CUDA device, one JSON object a line: name, tilefuse_us, eager_us (medians
//! of single launches with a cold cache), and how far both are apart. `benches/peers/triton_tutorials.py` is Triton's side.
//!
//! `cargo bench --bench tutorials -- [NAME_PREFIX]`

#[path = "../examples/tutorials/attention.rs"]
#[allow(dead_code)]
mod attention;
#[path = "../examples/tutorials/dropout.rs"]
#[allow(dead_code)]
mod dropout;
#[path = "../examples/tutorials/grouped_matmul.rs"]
#[allow(dead_code)]
mod grouped_matmul;
#[path = "../examples/tutorials/layer_norm.rs"]
#[allow(dead_code)]
mod layer_norm;
#[path = "../examples/tutorials/matmul.rs"]
#[allow(dead_code)]
mod matmul;
#[path = "../examples/tutorials/softmax.rs"]
#[allow(dead_code)]
mod softmax;
#[path = "../examples/tutorials/vector_add.rs"]
#[allow(dead_code)]
mod vector_add;

use std::time::Instant;

use anyhow::Result;
use tch::{Cuda, Device, Kind, Tensor};
use tilefuse::grid;
use tilefuse::lang::{Tile, cdiv};
use tilefuse::tune::Tuner;

const DEVICE: Device = Device::Cuda(0);
const HALF: (Kind, Device) = (Kind::Half, DEVICE);
const BF16: (Kind, Device) = (Kind::BFloat16, DEVICE);
const F32: (Kind, Device) = (Kind::Float, DEVICE);

fn distance(ours: &Tensor, theirs: &Tensor) -> f64 {
    (ours.to_kind(Kind::Double) - theirs.to_kind(Kind::Double)).abs().max().double_value(&[])
}

fn randn(shape: &[i64], options: (Kind, Device)) -> Tensor {
    Tensor::randn(shape, (Kind::Float, options.1)).to_kind(options.0)
}

/// Median microseconds between two events around a call, the cache emptied before.
fn median(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let device = tilefuse_codegen::cuda::Device::get(0)?;
    let event = || tilefuse_codegen::cuda::Event::new(&device);
    let mut cold = Tensor::empty([256 << 20], (Kind::Int8, DEVICE));
    call()?;
    Cuda::synchronize(0);
    let mut pairs = Vec::new();
    let start = Instant::now();
    while pairs.len() < 10 || (pairs.len() < 500 && start.elapsed().as_secs_f64() < 0.12) {
        let _ = cold.zero_();
        let (before, after) = (event()?, event()?);
        // SAFETY: libtorch's current stream is the default one, which lives as long as the context.
        unsafe { before.record_raw(std::ptr::null_mut())? };
        call()?;
        // SAFETY: as above.
        unsafe { after.record_raw(std::ptr::null_mut())? };
        pairs.push((before, after));
        if pairs.len().is_multiple_of(20) {
            Cuda::synchronize(0);
        }
    }
    Cuda::synchronize(0);
    let mut times = pairs.iter().map(|(a, b)| Ok(b.micros_since(a)?)).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Measures a kernel and libtorch, and prints a row.
fn row(
    name: &str,
    ours: impl FnMut() -> Result<()>,
    mut eager: impl FnMut() -> Tensor,
    result: &Tensor,
    more: serde_json::Value,
) -> Result<()> {
    let mut ours = ours;
    ours()?;
    let difference = distance(result, &eager());
    let mut line = serde_json::json!({
        "name": name,
        "tilefuse_us": median(ours)?,
        "eager_us": median(|| {
            drop(eager());
            Ok(())
        })?,
        "difference": difference,
    });
    if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
        line.extend(more.clone());
    }
    println!("{line}");
    Ok(())
}

fn vector_add() -> Result<()> {
    for n in [1i64 << 27, 98_432] {
        let (x, y) = (randn(&[n], F32), randn(&[n], F32));
        let z = x.empty_like();
        let block = if n > 1 << 20 { 2048 } else { 1024 };
        let run = || {
            // SAFETY: the mask keeps every access below `n`, which the three tensors have.
            Ok(unsafe {
                vector_add::vector_add.launch_unchecked(grid![cdiv(n, block as i64)], (&x, &y, &z, n, block))
            }?)
        };
        row(&format!("vector_add {n}"), run, || &x + &y, &z, serde_json::json!({ "bytes": 12 * n }))?;
        let checked =
            || Ok(vector_add::vector_add.launch(grid![cdiv(n, block as i64)], (&x, &y, &z, n, block))?);
        row(
            &format!("vector_add_checked {n}"),
            checked,
            || &x + &y,
            &z,
            serde_json::json!({ "bytes": 12 * n }),
        )?;
    }
    Ok(())
}

fn softmax() -> Result<()> {
    for (rows, cols) in [(4096i64, 4096i64), (4096, 1000), (16384, 1024), (1024, 16384)] {
        let x = randn(&[rows, cols], BF16);
        let (y, block) = (x.empty_like(), (cols as usize).next_power_of_two());
        // SAFETY: rows and columns are those of both tensors.
        let run =
            || Ok(unsafe { softmax::softmax.launch_unchecked(grid![rows], (&x, &y, cols, cols, block)) }?);
        let name = format!("softmax {rows}x{cols}");
        row(
            &name,
            run,
            || x.softmax(-1, Kind::BFloat16),
            &y,
            serde_json::json!({ "bytes": 4 * rows * cols }),
        )?;
    }
    Ok(())
}

fn layer_norm() -> Result<()> {
    let (rows, n) = (4096i64, 8192i64);
    let (x, w, b, dy) =
        (randn(&[rows, n], BF16), randn(&[n], BF16), randn(&[n], BF16), randn(&[rows, n], BF16));
    let (y, mean, deviation) = (x.empty_like(), randn(&[rows], F32), randn(&[rows], F32));
    let args = (&x, &w, &b, &y, &mean, &deviation, n, 1e-5, 8192);
    // SAFETY: rows and columns are those of the tensors.
    let run = || Ok(unsafe { layer_norm::layer_norm.launch_unchecked(grid![rows], args) }?);
    let eager = || x.layer_norm([n], Some(&w), Some(&b), 1e-5, true);
    row(&format!("layer_norm {rows}x{n}"), run, eager, &y, serde_json::json!({}))?;
    let dx = layer_norm::backward(&dy, &x, &w, (&mean, &deviation))?;
    let ours = || layer_norm::backward(&dy, &x, &w, (&mean, &deviation)).map(drop);
    let learned = x.copy().set_requires_grad(true);
    let loss = tch::with_grad(|| learned.layer_norm([n], Some(&w), Some(&b), 1e-5, true));
    let eager = || {
        tch::with_grad(|| {
            Tensor::run_backward(&[(&loss * &dy).sum(Kind::Float)], &[&learned], true, false).remove(0)
        })
    };
    row(
        &format!("layer_norm_backward {rows}x{n}"),
        ours,
        eager,
        &dx[0],
        serde_json::json!({ "eager": "with the product and sum of the loss" }),
    )
}

type Product = [usize; 6];

fn matmul() -> Result<()> {
    let configs: [Product; 9] = [
        [128, 128, 64, 8, 4, 3],
        [128, 128, 32, 8, 4, 4],
        [128, 256, 32, 8, 8, 4],
        [128, 256, 64, 8, 8, 2],
        [128, 256, 64, 8, 8, 4],
        [256, 128, 32, 8, 8, 4],
        [64, 128, 64, 8, 4, 4],
        [256, 128, 64, 8, 8, 2],
        [256, 128, 64, 8, 8, 4],
    ];
    // SAFETY: the kernel reads no address.
    let tuner = unsafe { Tuner::new("matmul of the tutorials", configs).unchecked() };
    let activation: fn(Tile<f32>) -> Tile<f32> = matmul::leaky_relu;
    for size in [1024i64, 4096, 8192] {
        let (a, b) = (randn(&[size, size], HALF), randn(&[size, size], HALF));
        let c = a.empty_like();
        let launch = |&[bm, bn, ..]: &Product| grid![cdiv(size, bm as i64) * cdiv(size, bn as i64)];
        let tuning = tuner.tuning(DEVICE, &size.to_string(), |config| {
            matmul::matmul
                .candidate(launch(config), (&a, &b, &c, size, size, size, activation, *config))
                .map(Some)
        })?;
        eprintln!("{tuning}");
        let Some(config) = tuning.best().and_then(|best| configs.get(best)) else { continue };
        let args = (&a, &b, &c, size, size, size, activation, *config);
        // SAFETY: the extents are those of the tensors.
        let run = || Ok(unsafe { matmul::matmul.launch_unchecked(launch(config), args) }?);
        let product = median(|| {
            drop(a.matmul(&b));
            Ok(())
        })?;
        let more =
            serde_json::json!({ "flops": 2 * size * size * size, "product_us": product, "config": config });
        row(&format!("matmul_leaky_relu {size}"), run, || a.matmul(&b).leaky_relu(), &c, more)?;
    }
    Ok(())
}

fn dropout() -> Result<()> {
    let n = 1i64 << 26;
    let x = randn(&[n], F32);
    let y = x.empty_like();
    let run = || {
        // SAFETY: the mask keeps every access below `n`.
        Ok(unsafe { dropout::dropout.launch_unchecked(grid![cdiv(n, 1024)], (&x, &y, n, 0.5, 123, 1024)) }?)
    };
    row(
        &format!("dropout {n}"),
        run,
        || x.dropout(0.5, true),
        &y,
        serde_json::json!({ "bytes": 8 * n, "difference": null }),
    )
}

fn attention() -> Result<()> {
    let configs: [[usize; 3]; 5] = [[64, 64, 4], [128, 64, 4], [128, 64, 8], [128, 128, 8], [64, 32, 4]];
    // SAFETY: the kernel reads no address.
    let tuner = unsafe { Tuner::new("attention of the tutorials", configs).unchecked() };
    let (batch, heads, len, d) = (4i64, 32i64, 4096i64, 64usize);
    let shape = [batch, heads, len, d as i64];
    let (q, k, v) = (randn(&shape, HALF), randn(&shape, HALF), randn(&shape, HALF));
    let o = q.empty_like();
    let scale = 1.0 / (d as f32).sqrt();
    for causal in [false, true] {
        let launch = |&[bm, ..]: &[usize; 3]| grid![cdiv(len, bm as i64), batch * heads];
        let tuning = tuner.tuning(DEVICE, &format!("{len} {causal}"), |config| {
            attention::attention
                .candidate(launch(config), (&q, &k, &v, &o, scale, len, causal, d, *config))
                .map(Some)
        })?;
        eprintln!("{tuning}");
        let Some(config) = tuning.best().and_then(|best| configs.get(best)) else { continue };
        let args = (&q, &k, &v, &o, scale, len, causal, d, *config);
        // SAFETY: the extents are those of the tensors.
        let run = || Ok(unsafe { attention::attention.launch_unchecked(launch(config), args) }?);
        let eager =
            || Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, causal, None, false);
        let flops = 4 * batch * heads * len * len * d as i64 / if causal { 2 } else { 1 };
        let name = format!("attention{} {batch}x{heads}x{len}x{d}", if causal { "_causal" } else { "" });
        row(&name, run, eager, &o, serde_json::json!({ "flops": flops, "config": config }))?;
    }
    Ok(())
}

fn grouped() -> Result<()> {
    let shapes = [[1024i64, 1024, 1024], [512, 2048, 1024], [256, 512, 2048], [2048, 256, 512]];
    let (mut table, mut at) = (Vec::new(), vec![0i64; 3]);
    let (mut sizes, mut flops) = ([0i64; 3], 0);
    let (mut lefts, mut rights) = (Vec::new(), Vec::new());
    for [m, n, k] in shapes {
        table.extend([m, n, k]);
        table.extend(&at);
        let parts = [m * k, k * n, m * n];
        at.iter_mut().zip(parts).for_each(|(at, part)| *at += part);
        sizes.iter_mut().zip(parts).for_each(|(size, part)| *size += part);
        flops += 2 * m * n * k;
        lefts.push(randn(&[m, k], HALF));
        rights.push(randn(&[k, n], HALF));
    }
    let flat =
        |tensors: &[Tensor]| Tensor::cat(&tensors.iter().map(|t| t.flatten(0, -1)).collect::<Vec<_>>(), 0);
    let (a, b, c) = (flat(&lefts), flat(&rights), Tensor::empty([sizes[2]], HALF));
    let places = Tensor::from_slice(&table).to_device(DEVICE);
    let args = (&a, &b, &c, &places, shapes.len() as i64, 132, [128, 128, 64, 8, 6]);
    // SAFETY: the table holds the extents and places of the matrices.
    let run = || Ok(unsafe { grouped_matmul::grouped_matmul.launch_unchecked(132, args) }?);
    let eager = || flat(&lefts.iter().zip(&rights).map(|(a, b)| a.matmul(b)).collect::<Vec<_>>());
    row(
        "grouped_matmul",
        run,
        eager,
        &c,
        serde_json::json!({ "flops": flops, "eager": "with a concatenation" }),
    )
}

/// Host nanoseconds of a launch, arguments to driver call.
fn launch() -> Result<()> {
    let [x, y, z] = [(); 3].map(|()| Tensor::zeros([16], F32));
    let each = |call: &dyn Fn() -> Result<()>| -> Result<f64> {
        (0..100).try_for_each(|_| call())?;
        Cuda::synchronize(0);
        let start = Instant::now();
        (0..2000).try_for_each(|_| call())?;
        let each = start.elapsed().as_secs_f64() / 2000.0 * 1e6;
        Cuda::synchronize(0);
        Ok(each)
    };
    let checked = each(&|| Ok(vector_add::vector_add.launch(1, (&x, &y, &z, 16, 1024))?))?;
    // SAFETY: the mask keeps every access below 16.
    let unchecked =
        each(&|| Ok(unsafe { vector_add::vector_add.launch_unchecked(1, (&x, &y, &z, 16, 1024)) }?))?;
    let empty = each(&|| Ok(vector_add::vector_add.launch(0, (&x, &y, &z, 16, 1024))?))?;
    println!(
        "{}",
        serde_json::json!({ "name": "launch", "checked_us": checked, "unchecked_us": unchecked, "before_the_driver_us": empty })
    );
    Ok(())
}

/// Milliseconds from a kernel's text to PTX for sm_90a, the median of seven, LLVM being started.
fn compile() -> Result<()> {
    let (bf16, f32) = ((Kind::BFloat16, Device::Cpu), (Kind::Float, Device::Cpu));
    let (t, w) = (Tensor::zeros([64], bf16), Tensor::zeros([64], f32));
    let (i, heads) = (Tensor::zeros([64], (Kind::Int64, Device::Cpu)), 1.0);
    let activation: fn(Tile<f32>) -> Tile<f32> = matmul::leaky_relu;
    let kernels = [
        vector_add::vector_add.specialize((&w, &w, &w, 64, 1024))?,
        softmax::softmax.specialize((&t, &t, 4096, 4096, 4096))?,
        layer_norm::layer_norm.specialize((&t, &t, &t, &t, &w, &w, 8192, 1e-5, 8192))?,
        layer_norm::layer_norm_backward.specialize((&t, &t, &t, &w, &w, &t, &w, &w, 64, 8192, 264, 8192))?,
        matmul::matmul.specialize((&t, &t, &t, 64, 64, 64, activation, [128, 256, 64, 8, 8, 4]))?,
        dropout::dropout.specialize((&w, &w, 64, 0.5, 1, 1024))?,
        attention::attention.specialize((&t, &t, &t, &t, heads, 64, true, 64, [128, 64, 4]))?,
        grouped_matmul::grouped_matmul.specialize((&t, &t, &t, &i, 4, 132, [128, 128, 64, 8, 6]))?,
    ];
    let options = tilefuse_codegen::ptx::PtxOptions::default();
    for kernel in kernels {
        let text = kernel.program().to_string();
        let mut times = Vec::new();
        for _ in 0..8 {
            let start = Instant::now();
            let mut program = tilefuse::block::parse_valid(&text)?;
            tilefuse::block::passes::optimize(&mut program)?;
            tilefuse_codegen::ptx::compile_ptx(&program, tilefuse_codegen::ptx::Target::Sm90a, &options)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.remove(0);
        times.sort_by(f64::total_cmp);
        let name = format!("compile {}", kernel.program().name);
        println!("{}", serde_json::json!({ "name": name, "text_to_ptx_ms": times[times.len() / 2] }));
    }
    Ok(())
}

type Measure = fn() -> Result<()>;

fn main() -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    compile()?;
    if let Err(why) = tilefuse::torch::cuda_available() {
        println!("skipped, no device: {why}");
        return Ok(());
    }
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let all: [(&str, Measure); 8] = [
        ("vector_add", vector_add),
        ("softmax", softmax),
        ("layer_norm", layer_norm),
        ("matmul", matmul),
        ("dropout", dropout),
        ("attention", attention),
        ("grouped", grouped),
        ("launch", launch),
    ];
    for (name, measure) in all.iter().filter(|(name, _)| name.starts_with(&wanted)) {
        if let Err(error) = measure() {
            println!("{}", serde_json::json!({ "name": name, "error": error.to_string() }));
        }
    }
    Ok(())
}
