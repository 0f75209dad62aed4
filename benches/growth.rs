//! How the time of compiling grows with the number of operators.
//!
//! Arguments are numbers of operators, 100 to 10,000 without any, and names of models, all without any. The kernels come from LLVM, not from the cache on disk.

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use tilefuse_models::{Growth, growing};

fn row(kind: Growth, operators: usize) -> Result<String, tilefuse::Error> {
    let x = [Tensor::randn([64, 128], (Kind::Float, Device::Cpu))];
    let fused = tilefuse::fuse(move |x: &[Tensor]| vec![growing(kind, operators, &x[0])]);
    let start = Instant::now();
    drop(fused.model()(&x));
    let eager = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    fused.call(&x)?;
    let total = start.elapsed().as_secs_f64() * 1e3;
    let plan = fused.explain_with(&x, |m, x| m(x))?;
    let t = &plan.compile;
    let each = (total - eager) * 1e3 / plan.ops_captured.max(1) as f64;
    Ok(format!(
        "{:>10} {:>6} {:>8} {eager:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {total:>9.1} {each:>7.0}",
        format!("{kind:?}"),
        plan.ops_captured,
        plan.kernels_fused,
        t.capture_ms,
        t.lower_ms,
        t.plan_ms,
        t.schedule_ms,
        t.codegen_ms,
        t.passes_ms,
        t.lowering_ms,
        t.llvm_ms,
    ))
}

fn main() -> Result<(), tilefuse::Error> {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("TILEFUSE_CACHE", "off") };
    let _no_grad = tch::no_grad_guard();
    let mut counts: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    if counts.is_empty() {
        counts = vec![100, 300, 1000, 3000, 10_000];
    }
    println!(
        "{:>10} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7}",
        "milliseconds",
        "ops",
        "kernels",
        "eager",
        "capture",
        "lower",
        "plan",
        "schedule",
        "codegen",
        "passes",
        "to llvm",
        "llvm",
        "call",
        "us/op"
    );
    let named: Vec<Growth> = Growth::ALL
        .into_iter()
        .filter(|kind| std::env::args().any(|arg| arg == format!("{kind:?}")))
        .collect();
    for &kind in if named.is_empty() { &Growth::ALL[..] } else { &named[..] } {
        for &operators in &counts {
            println!("{}", row(kind, operators)?);
        }
    }
    Ok(())
}
