//! Results of kernels are the same, bit for bit, for any number of threads.

use tch::{Device, Kind, Tensor};
use tilefuse_models::{Model, ZooEntry, zoo};

use crate::common::{THREADS, setup};

/// What a model gives with so many threads.
fn results(name: &str, model: &dyn Model, inputs: &[Tensor], threads: i32) -> Vec<Tensor> {
    tch::set_num_threads(threads);
    let fused = tilefuse::fuse(model);
    let call = || fused.run_with(inputs, |model, inputs| model.forward(inputs)).unwrap();
    drop(call());
    let found = call();
    assert_eq!(fused.stats().fused_calls, 1, "{name}: {:?}", fused.stats());
    found
}

/// The names of those whose results differ with the number of threads.
fn different(entries: impl Iterator<Item = &'static ZooEntry>) -> Vec<&'static str> {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let mut names = Vec::new();
    for entry in entries {
        let vs = tch::nn::VarStore::new(Device::Cpu);
        let model = entry.instantiate(&vs);
        let inputs: Vec<Tensor> =
            entry.inputs().iter().map(|spec| spec.sample(Kind::Float, Device::Cpu)).collect();
        let one = results(entry.name, &*model, &inputs, 1);
        for threads in [2, 3, 8] {
            let more = results(entry.name, &*model, &inputs, threads);
            if one.len() != more.len() || !one.iter().zip(&more).all(|(a, b)| a.equal(b)) {
                names.push(entry.name);
                break;
            }
        }
    }
    tch::set_num_threads(before);
    names
}

/// Which program computes a product or a convolution is measured for each number of threads, and each adds in an order of its
/// own; tests of theirs compare one program.
#[test]
fn threads_do_not_change_the_bits_of_kernels() {
    let measured = [
        "kernel:linear_bias_gelu",
        "kernel:conv_bn_relu",
        "kernel:conv_transpose_relu",
        "kernel:attention",
        "kernel:grouped_attention",
    ];
    let counts = |entry: &&ZooEntry| entry.name.starts_with("kernel:") && !measured.contains(&entry.name);
    assert_eq!(different(zoo().iter().filter(counts)), Vec::<&str>::new());
}
