mod calls;
mod capture;
mod tensors;
mod zoo;

use std::collections::HashMap;

use tch::{Kind, Tensor};

use super::*;

/// Loads libtorch's CUDA part before anything else: libtorch looks for CUDA once.
extern "C" fn load_cuda() {
    let _ = cuda_devices();
}

// SAFETY: the loader calls the functions of this section before `main`, when the libraries that the program is linked
// with are ready.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD_CUDA: extern "C" fn() = load_cuda;

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
    let mut state = Replay { trace, values: HashMap::new(), written: HashMap::new() };
    state.values.extend(trace.inputs.iter().copied().zip(inputs.iter().map(Tensor::shallow_clone)));
    for (i, event) in trace.events.iter().enumerate().filter(|(_, e)| !e.constant) {
        state.copy_written_constants(i, event);
        let args: Vec<_> = event.args.iter().flat_map(Arg::tensors).map(|t| state.value(t, i)).collect();
        let outs = trace.calls[event.call.0 as usize].run(&args.iter().collect::<Vec<_>>()).unwrap();
        let names = event.outs.iter().flat_map(Arg::tensors);
        state.values.extend(names.zip(outs));
    }
    trace.outputs.iter().map(|t| state.value(*t, trace.events.len())).collect()
}

struct Replay<'a> {
    trace: &'a Trace,
    values: HashMap<TensorId, Tensor>,
    /// Copies of the storages that were constant until a call wrote them.
    written: HashMap<StorageId, Tensor>,
}

impl Replay<'_> {
    fn copy_written_constants(&mut self, index: usize, event: &Event) {
        for t in event.writes.iter().flat_map(|&w| event.args[w].tensors()) {
            if let Some(value) = self.trace.constant(t, index).unwrap() {
                let storage = self.trace.info(t).unwrap().storage;
                self.written.insert(storage, super::trace::snapshot(&value).unwrap());
            }
        }
    }

    fn value(&self, t: TensorId, event: usize) -> Tensor {
        let info = self.trace.info(t).unwrap();
        if let Some(bytes) = self.written.get(&info.storage) {
            let m = &info.meta;
            let offset = m.offset * element_size(m.dtype) as i64;
            return view_of(bytes, offset, m.dtype, m.sizes(), m.strides()).unwrap();
        }
        let constant = self.trace.constant(t, event).unwrap();
        constant.or_else(|| self.values.get(&t).map(Tensor::shallow_clone)).unwrap_or_else(|| {
            assert_eq!(info.origin, Origin::Param);
            self.trace.tensor(t).unwrap().shallow_clone()
        })
    }
}
