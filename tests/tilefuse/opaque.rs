//! Tensors that are no plain strided memory: kernels never get their addresses, and calls on them run as they are.

use tch::{Device, Kind, Tensor};
use tilefuse::{Audit, CudaGraphs, Options, fuse, fuse_with};

use crate::common::device;

type Function = fn(&[Tensor]) -> Vec<Tensor>;

fn sparse(device: Device) -> Tensor {
    let indices = Tensor::from_slice2(&[[0i64, 1, 3], [2, 0, 1]]).to_device(device);
    let values = Tensor::from_slice(&[3.0f32, 4.0, 5.0]).to_device(device);
    let made =
        Tensor::sparse_coo_tensor_indices_size(&indices, &values, [4, 5], (Kind::Float, device), false);
    made.coalesce()
}

fn dense(size: &[i64], device: Device) -> Tensor {
    let count = size.iter().product::<i64>();
    (Tensor::arange(count, (Kind::Float, device)) * 0.37).sin().reshape(size)
}

/// Values of a tensor of any layout.
fn values(t: &Tensor) -> Tensor {
    if t.is_sparse() || t.is_mkldnn() { t.to_dense(None, false) } else { t.shallow_clone() }
}

/// Calls the fused function several times with inputs made anew, and compares with eager; on a GPU as a CUDA graph where it
/// can be one, too.
fn check(name: &str, inputs: &dyn Fn() -> Vec<Tensor>, function: Function) {
    check_with(CudaGraphs::Auto, name, inputs, function);
    if device() != Device::Cpu {
        check_with(CudaGraphs::Always, name, inputs, function);
    }
}

fn check_with(cuda_graphs: CudaGraphs, name: &str, inputs: &dyn Fn() -> Vec<Tensor>, function: Function) {
    let _no_grad = tch::no_grad_guard();
    let fused = fuse_with(function, Options { cuda_graphs, audit: Audit::Never, ..Options::default() });
    for call in 0..6 {
        let given = inputs();
        let eager = function(&inputs());
        let ours = fused.call(&given).unwrap_or_else(|error| panic!("{name}, call {call}: {error}"));
        assert_eq!(ours.len(), eager.len(), "{name}");
        for (o, e) in ours.iter().zip(&eager) {
            assert_eq!((o.is_sparse(), o.is_mkldnn()), (e.is_sparse(), e.is_mkldnn()), "{name}, call {call}");
            assert!(values(o).allclose(&values(e), 1e-5, 1e-6, true), "{name}, call {call}: {o} for {e}");
        }
    }
    let stats = fused.stats();
    assert!(stats.fused_calls > 0 || !stats.eager_calls.is_empty(), "{name}: {stats:?}");
    let reasons: Vec<_> = stats.eager_calls.keys().collect();
    assert!(reasons.iter().all(|r| !r.contains("internal")), "{name}: {stats:?}");
}

#[test]
fn sparse_tensors_are_operands_of_libtorch_alone() {
    let device = device();
    let one = || vec![sparse(device)];
    let with_dense = || vec![sparse(device), dense(&[5, 3], device)];
    check("a multiple of a sparse input", &one, |x| vec![&x[0] * 2.0]);
    check("made dense", &one, |x| vec![x[0].to_dense(None, false).exp() + 1.0]);
    check("made dense beside a product", &with_dense, |x| {
        vec![(x[0].to_dense(None, false) * 2.0).exp().matmul(&x[1]).relu() + 1.0]
    });
    check("a product with a sparse matrix", &with_dense, |x| vec![x[0].matmul(&x[1]).relu() + 1.0]);
    check("made sparse on the way", &|| vec![dense(&[4, 5], device)], |x| {
        let indices = Tensor::from_slice2(&[[0i64, 1], [2, 0]]).to_device(x[0].device());
        let values = x[0].flatten(0, -1).narrow(0, 0, 2) * 3.0;
        let options = (Kind::Float, x[0].device());
        let made = Tensor::sparse_coo_tensor_indices_size(&indices, &values, [4, 5], options, false);
        vec![made.to_dense(None, false) + &x[0]]
    });
    check("values written behind a sparse tensor's back", &one, |x| {
        let copy = x[0].g_mul_scalar(1.0);
        let _ = copy.internal_values().g_mul_scalar_(2.0);
        vec![copy.to_dense(None, false) + 1.0]
    });
    check("written in place", &one, |x| {
        let mut copy = x[0].g_mul_scalar(1.0);
        let _ = copy.g_mul_scalar_(2.0);
        vec![copy.to_dense(None, false) + 1.0]
    });
    check("an input written in place", &one, |x| {
        let _ = x[0].shallow_clone().g_mul_scalar_(2.0);
        vec![x[0].to_dense(None, false) + 1.0]
    });
}

#[test]
fn sparse_weights_are_operands_of_libtorch_alone() {
    let _no_grad = tch::no_grad_guard();
    let device = device();
    let weight = sparse(device);
    let model = |x: &[Tensor], w: &Tensor| vec![w.matmul(&x[0]).relu() * 2.0];
    let held = weight.shallow_clone();
    let fused = fuse(move |x: &[Tensor]| model(x, &held));
    for _ in 0..3 {
        let x = [dense(&[5, 3], device)];
        let (ours, eager) = (fused.call(&x).unwrap(), model(&x, &weight));
        assert!(ours[0].allclose(&eager[0], 1e-5, 1e-6, false));
    }
    assert!(fused.stats().fused_calls > 0, "{:?}", fused.stats());
}

/// What a sparse tensor holds of a model's parameters is nothing that the model keeps after the call, which recorded it.
#[test]
fn sparse_tensors_of_weights_are_made_in_each_call() {
    let _no_grad = tch::no_grad_guard();
    let device = device();
    let weight = dense(&[1, 3], device);
    let indices = Tensor::from_slice2(&[[0i64, 1, 3], [2, 0, 1]]).to_device(device);
    let model = |x: &[Tensor], w: &Tensor, indices: &Tensor| {
        let values = (w / 3.0).view([3]);
        let options = (Kind::Float, w.device());
        let made = Tensor::sparse_coo_tensor_indices_size(indices, &values, [4, 5], options, false);
        vec![made.to_dense(None, false) + &x[0]]
    };
    let (held, at) = (weight.shallow_clone(), indices.shallow_clone());
    let options = Options { audit: Audit::Every(2), ..Options::default() };
    let fused = fuse_with(move |x: &[Tensor]| model(x, &held, &at), options);
    for factor in [1.0, 2.0, 3.0, 4.0] {
        let _ = weight.shallow_clone().g_mul_scalar_(factor);
        let x = [dense(&[4, 5], device)];
        let (ours, eager) = (fused.call(&x).unwrap(), model(&x, &weight, &indices));
        assert!(ours[0].allclose(&eager[0], 1e-5, 1e-6, false));
    }
    let stats = fused.stats();
    assert!(stats.fused_calls > 0 && stats.audits > 0 && stats.eager_calls.is_empty(), "{stats:?}");
}

#[test]
fn compressed_sparse_and_other_layouts_are_operands_of_libtorch_alone() {
    let device = device();
    let one = || vec![dense(&[4, 6], device)];
    check("compressed rows", &|| vec![dense(&[4, 6], device).relu().to_sparse_csr(None)], |x| {
        vec![x[0].to_dense(None, false) * 2.0]
    });
    check("compressed blocks", &|| vec![dense(&[4, 6], device).relu().to_sparse_bsr([2, 2], None)], |x| {
        vec![x[0].to_dense(None, false) * 2.0]
    });
    check("compressed blocks of columns on the way", &one, |x| {
        vec![(x[0].relu() + 1.0).to_sparse_bsc([2, 3], None).to_dense(None, false) * 2.0]
    });
    check("compressed columns on the way", &one, |x| {
        vec![(x[0].relu() + 1.0).to_sparse_csc(None).to_dense(None, false) * 2.0]
    });
    check("lazily conjugated", &one, |x| {
        let z = Tensor::complex(&x[0], &(&x[0] + 1.0)).conj();
        vec![z.resolve_conj().view_as_real_copy().sum_dim_intlist(-1, false, Kind::Float) + &x[0]]
    });
    check("lazily negated", &one, |x| {
        let z = Tensor::complex(&x[0], &(&x[0] + 1.0)).conj();
        vec![z.imag() * 2.0 + &x[0]]
    });
    let complex = move || Tensor::complex(&dense(&[4, 6], device), &(dense(&[4, 6], device) + 1.0)).conj();
    check("a lazily negated input", &|| vec![complex().imag(), dense(&[4, 6], device)], |x| {
        vec![(&x[0] + &x[1]).exp().matmul(&x[1].tr()).relu(), &x[0] * 2.0]
    });
    check("a lazily conjugated input", &|| vec![complex(), dense(&[4, 6], device)], |x| {
        let plain = x[0].resolve_conj().view_as_real_copy().sum_dim_intlist(-1, false, Kind::Float);
        vec![(plain + &x[1]).exp().matmul(&x[1].tr()).relu()]
    });
    check("more dimensions than kernels know", &one, |x| {
        let high = x[0].reshape([1, 2, 2, 1, 1, 2, 3, 1, 1, 1]);
        vec![(high.exp() + 1.0).sum_dim_intlist(&[1i64, 5][..], false, Kind::Float), high.relu()]
    });
    let one = || vec![dense(&[4, 6], Device::Cpu)];
    check("mkldnn", &one, |x| vec![x[0].g_to_mkldnn(None).relu().to_dense(None, false) * 2.0]);
    check("an mkldnn input", &|| vec![dense(&[4, 6], Device::Cpu).g_to_mkldnn(None)], |x| {
        vec![x[0].relu().to_dense(None, false) * 2.0, &x[0] + &x[0]]
    });
    check("mkldnn of a constant", &one, |x| {
        let made = Tensor::ones_like(&x[0]).rsqrt().g_to_mkldnn(None);
        vec![made.to_dense(None, false) + &x[0], made]
    });
    check("quantised", &one, |x| vec![x[0].quantize_per_tensor(0.1, 10, Kind::QUInt8).dequantize() * 2.0]);
    check(
        "a quantised input",
        &|| vec![dense(&[4], Device::Cpu).quantize_per_tensor(0.1, 10, Kind::QUInt8)],
        |x| vec![x[0].dequantize() * 2.0],
    );
}

#[test]
fn nested_and_zero_tensors_are_operands_of_libtorch_alone() {
    let device = device();
    let one = || vec![dense(&[2, 3, 4], device)];
    check("nested on the way", &one, |x| {
        let lengths = Tensor::from_slice2(&[[2i64, 4], [3, 4]]);
        let nested = Tensor::internal_nested_from_padded(&(&x[0] + 1.0), &lengths, false);
        vec![nested.relu().nested_to_padded_tensor(0.0, &[2i64, 3, 4][..]) * 2.0, x[0].exp() + 1.0]
    });
    let zeros = || Tensor::internal_efficientzerotensor([3i64, 4], (Kind::Float, device));
    check("an input of zeros without memory", &|| vec![zeros(), dense(&[3, 4], device)], |x| {
        vec![(&x[0] + &x[1]).exp() * 2.0, &x[0] * 3.0 + 1.0]
    });
    check("zeros without memory on the way", &one, |x| {
        let zeros = Tensor::internal_efficientzerotensor(x[0].size(), (Kind::Float, x[0].device()));
        vec![(&x[0] * &zeros + 1.0).exp(), (zeros + &x[0]).relu() * 2.0]
    });
}
