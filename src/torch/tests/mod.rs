mod calls;
mod capture;
mod tensors;
mod zoo;

use tch::{Kind, Tensor};

use super::*;

/// Values 0, 1, 2, … in f32.
fn iota(sizes: &[i64]) -> Tensor {
    let n: i64 = sizes.iter().product();
    Tensor::arange(n, (Kind::Float, tch::Device::Cpu)).reshape(sizes)
}

/// Captures a function of tensors without gradients.
fn record(inputs: &[Tensor], f: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> (Vec<Tensor>, Trace) {
    record_with(inputs, &[], f)
}

fn record_with(
    inputs: &[Tensor],
    named: &[(String, Tensor)],
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> (Vec<Tensor>, Trace) {
    let copy = |outs: &Vec<Tensor>| outs.iter().map(Tensor::shallow_clone).collect();
    tch::no_grad(|| capture(inputs, named, || f(inputs), copy).unwrap())
}

/// The operators of the calls that are not constant.
fn live_ops(trace: &Trace) -> Vec<String> {
    let live = trace.events.iter().filter(|e| !e.constant);
    live.map(|e| e.op.trim_start_matches("aten::").to_owned()).collect()
}

/// Runs the calls that are not constant again, on other inputs.
fn replay(trace: &Trace, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut env = std::collections::HashMap::new();
    for (id, t) in trace.inputs.iter().zip(inputs) {
        env.insert(*id, t.shallow_clone());
    }
    let value = |env: &std::collections::HashMap<TensorId, Tensor>, t: TensorId, event: usize| {
        let constant = trace.constant(t, event).unwrap();
        constant.or_else(|| env.get(&t).map(Tensor::shallow_clone)).unwrap_or_else(|| {
            assert_eq!(trace.info(t).unwrap().origin, Origin::Param);
            trace.tensor(t).unwrap().shallow_clone()
        })
    };
    for (i, event) in trace.events.iter().enumerate().filter(|(_, e)| !e.constant) {
        let args: Vec<_> = event.args.iter().flat_map(Arg::tensors).map(|t| value(&env, t, i)).collect();
        let outs = trace.calls[event.call.0 as usize].run(&args.iter().collect::<Vec<_>>()).unwrap();
        let names = event.outs.iter().flat_map(Arg::tensors);
        env.extend(names.zip(outs));
    }
    trace.outputs.iter().map(|t| value(&env, *t, trace.events.len())).collect()
}
