//! Smaller programs that fail as a large one did.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

use super::check::hold_generators;
use super::program::{Input, Layout, Mode, Named, OpCall, Program, Storage, Values};
use crate::torch::Arg;

/// No further program is tried after so long: one of millions of elements takes seconds.
const MAX_TIME: Duration = Duration::from_secs(20);

/// The smallest program found for which `fails` holds, starting from one for which it does. Tries fewer results, fewer
/// operators, plain layouts, small dimensions and simple values, until none helps or `tries` or 20 seconds are spent.
pub fn shrink(program: &Program, tries: usize, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut best = tidy(program.clone());
    if !fails(&best) {
        return program.clone();
    }
    let (mut left, start) = (tries, Instant::now());
    let mut is_over = || {
        let over = left == 0 || start.elapsed() >= MAX_TIME;
        left = left.saturating_sub(1);
        over
    };
    while let Some(better) = step(&best, &mut is_over, fails) {
        best = better;
    }
    best
}

fn step(
    program: &Program,
    is_over: &mut dyn FnMut() -> bool,
    fails: &mut dyn FnMut(&Program) -> bool,
) -> Option<Program> {
    let candidates = fewer_outputs(program)
        .chain(fewer_ops(program))
        .chain(plain_inputs(program))
        .chain(smaller_dims(program))
        .chain(simpler_values(program));
    for candidate in candidates {
        if is_over() {
            return None;
        }
        if cost(&candidate) < cost(program) && fails(&candidate) {
            return Some(candidate);
        }
    }
    None
}

/// What shrinking makes smaller.
fn cost(p: &Program) -> f64 {
    let layout = |i: &Input| {
        let dense = dense(&i.sizes);
        f64::from(u8::from(i.offset != 0))
            + f64::from(u8::from(i.strides != dense))
            + f64::from(u8::from(i.param))
    };
    let elements: f64 =
        p.inputs.iter().map(|i| i.sizes.iter().map(|&n| (n as f64 + 1.0).ln()).sum::<f64>()).sum();
    let values: f64 = p
        .storages
        .iter()
        .map(|s| match s.values {
            Values::Fill(_) => 0.0,
            Values::Ints(low, end) => 1.0 + (end - low) as f64 / 100.0,
            Values::Normal => 2.0,
            Values::Special => 3.0,
            Values::Data(_) => 4.0,
        })
        .sum();
    let kinds: f64 = p.storages.iter().map(|s| f64::from(u8::from(s.kind != Kind::Float))).sum();
    let numbers: f64 = p
        .ops
        .iter()
        .flat_map(|o| &o.args)
        .map(|a| match a {
            Arg::Ints(list) => list.iter().map(|n| (n.abs() as f64 + 1.0).ln() * 0.1).sum(),
            _ => 0.0,
        })
        .sum();
    100.0 * p.ops.len() as f64
        + 50.0 * p.outputs.len() as f64
        + 10.0 * f64::from(u8::from(p.other.is_some()))
        + 20.0 * p.inputs.len() as f64
        + elements
        + numbers
        + 3.0 * p.inputs.iter().map(layout).sum::<f64>()
        + 0.5 * (values + kinds)
}

/// Programs with one of the results, with one half of them, or without one.
fn fewer_outputs(p: &Program) -> impl Iterator<Item = Program> + '_ {
    let n = p.outputs.len();
    let with = move |keep: &dyn Fn(usize) -> bool| {
        let outputs = (0..n).filter(|&at| keep(at)).map(|at| p.outputs[at]).collect();
        tidy(Program { outputs, ..p.clone() })
    };
    let mut found = Vec::new();
    if n > 1 {
        found.extend((0..n).map(|at| with(&|o| o == at)));
        found.extend([with(&|o| o < n / 2), with(&|o| o >= n / 2)]);
        found.extend((0..n).map(|at| with(&|o| o != at)));
    }
    found.into_iter()
}

/// Programs in which an operator's results are inputs, or are replaced by an operand of the same form.
fn fewer_ops(p: &Program) -> impl Iterator<Item = Program> + '_ {
    let env = values(p);
    let ops = (0..p.ops.len()).rev();
    ops.flat_map(move |at| {
        let mut found = Vec::new();
        found.extend(bypassed(p, at, &env));
        found.extend(as_input(p, at, &env));
        if p.ops[at].writes() {
            found.extend(bypassed_any(p, at));
        }
        found.extend(cut_after(p, at));
        found.into_iter().map(tidy)
    })
}

fn values(p: &Program) -> HashMap<u32, Tensor> {
    let storages = p.draw(1, Device::Cpu);
    let views = p.views(&storages).unwrap_or_default();
    let _generators = hold_generators(p);
    tch::no_grad(|| p.run_all(&views, Mode::Native)).unwrap_or_default()
}

/// The program that ends with the results of one call.
fn cut_after(p: &Program, at: usize) -> Option<Program> {
    let ops = p.ops[..=at].to_vec();
    let outputs = ops.last()?.results.iter().take(1).copied().collect();
    (at + 1 < p.ops.len()).then(|| Program { ops, outputs, ..p.clone() })
}

fn renamed(p: &Program, at: usize, from: u32, to: Named) -> Program {
    let mut p = p.clone();
    p.ops.remove(at);
    let rename = |id: &u32| if *id == from { to.id } else { *id };
    for op in &mut p.ops {
        op.args = op.args.iter().map(|a| a.map(|id| rename(&id))).collect();
    }
    for o in p.outputs.iter_mut().filter(|o| o.id == from) {
        o.id = to.id;
        o.exact &= to.exact;
    }
    p
}

/// Whether a value is exact: what is computed of an exact result is marked by that.
fn is_exact(p: &Program, id: u32) -> bool {
    p.ops.iter().flat_map(|op| &op.results).find(|result| result.id == id).is_none_or(|result| result.exact)
}

fn bypassed(p: &Program, at: usize, env: &HashMap<u32, Tensor>) -> Vec<Program> {
    let op = &p.ops[at];
    let [result] = op.results.as_slice() else { return Vec::new() };
    let form = |id: &u32| env.get(id).map(|t| (t.kind(), t.size()));
    let same = op.reads().into_iter().filter(|id| form(id).is_some() && form(id) == form(&result.id));
    let same = same.filter(|&id| !result.exact || is_exact(p, id));
    same.map(|id| renamed(p, at, result.id, Named { id, exact: result.exact })).collect()
}

/// An operator that writes is left out; what it returned is what it would have written.
fn bypassed_any(p: &Program, at: usize) -> Option<Program> {
    let op = &p.ops[at];
    let (result, target) = (op.results.first()?, *op.reads().first()?);
    if result.exact && !is_exact(p, target) {
        return None;
    }
    Some(renamed(p, at, result.id, Named { id: target, exact: false }))
}

fn as_input(p: &Program, at: usize, env: &HashMap<u32, Tensor>) -> Option<Program> {
    let mut q = p.clone();
    let op = q.ops.remove(at);
    for result in &op.results {
        let tensor = env.get(&result.id)?;
        let (sizes, kind) = (tensor.size(), tensor.kind());
        let values = match kind {
            Kind::Bool => Values::Ints(0, 2),
            Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double => Values::Normal,
            _ => Values::Ints(0, 1),
        };
        let len = sizes.iter().product::<i64>().max(1);
        q.storages.push(Storage { kind, len, values });
        let strides = dense(&sizes);
        q.inputs.push(Input {
            id: result.id,
            storage: q.storages.len() - 1,
            param: false,
            sizes,
            strides,
            offset: 0,
            conj: false,
            neg: false,
            layout: Layout::Strided,
        });
    }
    Some(q)
}

fn dense(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    strides
}

/// Programs with one input dense in memory of its own.
fn plain_inputs(p: &Program) -> impl Iterator<Item = Program> + '_ {
    (0..p.inputs.len()).flat_map(move |at| [laid_out(p, at), passed(p, at)])
}

fn laid_out(p: &Program, at: usize) -> Program {
    let mut q = p.clone();
    let storage = Storage {
        len: p.inputs[at].sizes.iter().product::<i64>().max(1),
        ..p.storages[p.inputs[at].storage].clone()
    };
    q.storages.push(storage);
    let input = &mut q.inputs[at];
    (input.strides, input.offset, input.storage) = (dense(&input.sizes), 0, q.storages.len() - 1);
    tidy(q)
}

fn passed(p: &Program, at: usize) -> Program {
    let storage = p.inputs[at].storage;
    let mut q = p.clone();
    q.inputs.iter_mut().filter(|i| i.storage == storage).for_each(|i| i.param = false);
    q
}

/// Programs in which every occurrence of a dimension's size is smaller.
fn smaller_dims(p: &Program) -> impl Iterator<Item = Program> + '_ {
    let mut sizes: Vec<i64> = p.inputs.iter().flat_map(|i| i.sizes.clone()).filter(|&n| n > 1).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    sizes.into_iter().flat_map(move |n| {
        let smaller = [1, 2, 3, n / 4, n / 2, n - n / 4, n - 8, n - 1];
        smaller.into_iter().filter(move |&m| m > 0 && m < n).map(move |m| resized(p, n, m))
    })
}

fn resized(p: &Program, from: i64, to: i64) -> Program {
    let mut q = p.clone();
    let swap = |n: &mut i64| {
        if *n == from {
            *n = to;
        }
    };
    for input in &mut q.inputs {
        if input.sizes.contains(&from) {
            // Strides keep the order and the gaps of the dimensions.
            input.strides = rescaled(&input.sizes, &input.strides, from, to);
            input.sizes.iter_mut().for_each(swap);
        }
    }
    for arg in q.ops.iter_mut().flat_map(|o| &mut o.args) {
        if let Arg::Ints(list) = arg {
            list.iter_mut().for_each(swap);
        }
    }
    for at in 0..q.storages.len() {
        let span = |i: &Input| {
            i.offset + i.sizes.iter().zip(&i.strides).map(|(&n, &s)| (n - 1).max(0) * s).sum::<i64>() + 1
        };
        let views = q.inputs.iter().filter(|i| i.storage == at).map(span);
        q.storages[at].len = views.max().unwrap_or(1);
    }
    for storage in &mut q.storages {
        if let Values::Ints(0, end) = &mut storage.values {
            swap(end);
        }
    }
    tidy(q)
}

fn rescaled(sizes: &[i64], strides: &[i64], from: i64, to: i64) -> Vec<i64> {
    let scale = |d: usize| {
        let inner = (0..sizes.len())
            .filter(|&e| e != d && sizes[e] == from && strides[e] < strides[d] && strides[e] > 0);
        inner.fold(strides[d], |s, _| if s % from == 0 { s / from * to } else { s })
    };
    (0..sizes.len()).map(scale).collect()
}

fn simpler_values(p: &Program) -> impl Iterator<Item = Program> + '_ {
    (0..p.storages.len()).flat_map(move |at| {
        let simple = [Values::Fill(1.0), Values::Ints(-2, 3), Values::Normal];
        let with = |values| {
            let mut q = p.clone();
            q.storages[at].values = values;
            q
        };
        let index = matches!(p.storages[at].kind, Kind::Int64 | Kind::Int);
        let values = simple.into_iter().filter(move |_| !index).map(with);
        let mut float = p.clone();
        float.storages[at].kind = Kind::Float;
        values.chain([float]).collect::<Vec<_>>()
    })
}

/// The program without calls, inputs and storages that nothing needs, its names counted from 0.
fn tidy(mut p: Program) -> Program {
    let mut needed: Vec<u32> = p.outputs.iter().map(|o| o.id).collect();
    let mut keep = vec![false; p.ops.len()];
    let writes: Vec<bool> = p.ops.iter().map(OpCall::writes).collect();
    for at in (0..p.ops.len()).rev() {
        keep[at] = writes[at] || p.ops[at].results.iter().any(|r| needed.contains(&r.id));
        if keep[at] {
            needed.extend(p.ops[at].reads());
        }
    }
    let mut kept = keep.iter();
    p.ops.retain(|_| kept.next() == Some(&true));
    let replaces =
        |other: &OpCall| p.ops.iter().any(|op| op.results == other.results && op.reads() == other.reads());
    p.other = p.other.take().filter(replaces);
    p.inputs.retain(|i| needed.contains(&i.id));
    let mut storages = Vec::new();
    for input in &mut p.inputs {
        let storage = input.storage;
        let at = storages.iter().position(|&s| s == storage).unwrap_or_else(|| {
            storages.push(storage);
            storages.len() - 1
        });
        input.storage = at;
    }
    p.storages = storages.iter().map(|&s| p.storages[s].clone()).collect();
    p
}
