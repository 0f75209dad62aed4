//! What calls, threads and functions cost on this machine's processor: figures for people, which nothing is priced with.

use std::time::Instant;

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::cli::Failure;
use crate::torch::TorchPool;
use crate::{Audit, Fused, Options, fuse_with};

/// Rounds of which the least counts.
const ROUNDS: usize = 15;
/// Elements of the tensors that functions are applied to: they fit in a core's own cache.
const ELEMENTS: i64 = 1 << 16;

/// A model of one input.
type Function = fn(&[Tensor]) -> Vec<Tensor>;

/// Functions with their names and the range of their operands.
const FUNCTIONS: [(&str, f64, f64, Function); 10] = [
    ("exp", -10.0, 10.0, |x| vec![x[0].exp()]),
    ("log", 0.01, 100.0, |x| vec![x[0].log()]),
    ("tanh", -5.0, 5.0, |x| vec![x[0].tanh()]),
    ("erf", -4.0, 4.0, |x| vec![x[0].erf()]),
    ("gelu", -5.0, 5.0, |x| vec![x[0].gelu("none")]),
    ("gelu by tanh", -5.0, 5.0, |x| vec![x[0].gelu("tanh")]),
    ("sigmoid", -10.0, 10.0, |x| vec![x[0].sigmoid()]),
    ("sin", -10.0, 10.0, |x| vec![x[0].sin()]),
    ("cos", -10.0, 10.0, |x| vec![x[0].cos()]),
    ("pow", 0.01, 10.0, |x| vec![x[0].pow_tensor_scalar(1.7)]),
];

/// Elements per nanosecond on one core.
#[derive(Debug, Serialize)]
pub(super) struct Rate {
    name: &'static str,
    ours: f64,
    libtorch: f64,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// Microseconds of a call whose one kernel has one element.
    call_us: f64,
    /// The same of libtorch's two operators.
    eager_us: f64,
    /// Microseconds of entering and leaving a parallel region of all threads.
    region_us: f64,
    threads: usize,
    /// How much faster all threads are than one, at a product of 1024 x 1024 x 1024.
    scaling: f64,
    functions: Vec<Rate>,
}

impl Figures {
    /// Lines for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let Figures { call_us, eager_us, region_us, threads, scaling, .. } = self;
        let mut out = vec![
            format!("calls         {call_us:.2} us a call of one small kernel, {eager_us:.2} in eager"),
            format!(
                "threads       {region_us:.2} us to enter and leave a parallel region of {threads}; {scaling:.2} times faster than one at products"
            ),
            String::from("functions     elements per nanosecond on one core, and libtorch's:"),
        ];
        let each = |rate: &Rate| format!("  {:<14}{:>6.2} {:>6.2}", rate.name, rate.ours, rate.libtorch);
        out.extend(self.functions.iter().map(each));
        out
    }
}

/// Measures the processor, with as many threads as libtorch has.
pub(super) fn measure() -> Result<Figures, Failure> {
    let _no_grad = tch::no_grad_guard();
    let threads = tch::get_num_threads().max(1);
    let team = threads as usize;
    let region_us = least(200, || {
        TorchPool::get().run(team, &|_, _| {});
        Ok(())
    })?;
    let (call_us, eager_us) = both(timed(relu), &[Tensor::ones([1], (Kind::Float, Device::Cpu))], 500)?;
    let many = product_us()?;
    tch::set_num_threads(1);
    let alone = alone();
    tch::set_num_threads(threads);
    let (one, functions) = alone?;
    Ok(Figures { call_us, eager_us, region_us, threads: team, scaling: one / many, functions })
}

/// What is measured with one thread: a product, and the functions.
fn alone() -> Result<(f64, Vec<Rate>), Failure> {
    let rate = |&(name, low, high, function): &(&'static str, f64, f64, Function)| {
        let x = Tensor::f_rand([ELEMENTS], (Kind::Float, Device::Cpu)).map_err(failed)? * (high - low) + low;
        let (ours, theirs) = both(timed(function), &[x], 4)?;
        let rate = |us: f64| ELEMENTS as f64 / (us * 1e3);
        Ok(Rate { name, ours: rate(ours), libtorch: rate(theirs) })
    };
    Ok((product_us()?, FUNCTIONS.iter().map(rate).collect::<Result<_, Failure>>()?))
}

/// A fused function whose calls are all alike after the first.
fn timed(function: Function) -> Fused<Function> {
    fuse_with(function, Options { audit: Audit::Never, ..Options::default() })
}

fn relu(x: &[Tensor]) -> Vec<Tensor> {
    vec![x[0].relu() * 2.0]
}

fn product_us() -> Result<f64, Failure> {
    let draw = || Tensor::f_randn([1024, 1024], (Kind::Float, Device::Cpu)).map_err(failed);
    let product: Function = |x| vec![x[0].linear::<Tensor>(&x[1], None)];
    Ok(both(timed(product), &[draw()?, draw()?], 1)?.0)
}

/// Microseconds of a call of a fused model, and of the model itself.
fn both(fused: Fused<Function>, inputs: &[Tensor], calls: u32) -> Result<(f64, f64), Failure> {
    fused.call(inputs).map_err(failed)?;
    let ours = least(calls, || fused.call(inputs).map(drop).map_err(failed))?;
    let theirs = least(calls, || {
        drop(fused.model()(inputs));
        Ok(())
    })?;
    Ok((ours, theirs))
}

/// The least microseconds of a call, of `calls` one after the other.
fn least(calls: u32, mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        least = least.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    }
    Ok(least)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::usage(crate::cli::one_line(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_a_line_each() {
        let functions = vec![Rate { name: "exp", ours: 1.5, libtorch: 0.25 }];
        let figures =
            Figures { call_us: 1.0, eager_us: 2.0, region_us: 0.5, threads: 2, scaling: 1.9, functions };
        let lines = figures.lines();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].contains("0.50 us to enter and leave a parallel region of 2; 1.90 times"));
        assert_eq!(lines[3], "  exp             1.50   0.25");
    }
}
