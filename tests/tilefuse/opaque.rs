//! Tensors that are no plain strided memory: kernels never get their addresses, and calls on them run as they are.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{Device, Kind, Tensor};
use tilefuse::torch::{Arg, Call, Flags, Meta};
use tilefuse::{Audit, CudaGraphs, Options, Stats, fuse, fuse_with};

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
    let _ = check_with(CudaGraphs::Auto, name, inputs, function);
    if device() != Device::Cpu {
        let _ = check_with(CudaGraphs::Always, name, inputs, function);
    }
}

/// The same of what runs eager, with this reason alone.
fn check_eager(name: &str, inputs: &dyn Fn() -> Vec<Tensor>, reason: &str, function: Function) {
    let stats = check_with(CudaGraphs::Auto, name, inputs, function);
    let only = stats.eager_calls.keys().all(|found| found.contains(reason));
    assert!(only && stats.fused_calls == 0, "{name}: {stats:?}");
}

fn check_with(
    cuda_graphs: CudaGraphs,
    name: &str,
    inputs: &dyn Fn() -> Vec<Tensor>,
    function: Function,
) -> Stats {
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
    stats
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
    let by_channel = || {
        let scales = Tensor::from_slice(&[0.1f32, 0.2, 0.05, 0.3]);
        let zeros = Tensor::from_slice(&[0i64, 3, -2, 1]);
        let x = dense(&[4, 6], Device::Cpu);
        vec![x.quantize_per_channel(&scales, &zeros, 0, Kind::QInt8), x]
    };
    check("an input quantised by channel", &by_channel, |x| {
        vec![x[0].dequantize() * 2.0, (x[0].dequantize() + &x[1]).exp()]
    });
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

#[test]
fn a_nested_input_runs_eager_with_a_reason() {
    let device = device();
    let nested = || {
        let lengths = Tensor::from_slice2(&[[2i64, 4], [3, 4]]);
        vec![Tensor::internal_nested_from_padded(&dense(&[2, 3, 4], device), &lengths, false)]
    };
    let stats = check_with(CudaGraphs::Auto, "a nested input", &nested, |x| {
        vec![x[0].relu().nested_to_padded_tensor(0.0, &[2i64, 3, 4][..]) * 2.0]
    });
    let reason = "input 0 is a nested tensor: pass a padded one with a mask";
    assert_eq!(stats.eager_calls.get(reason), Some(&6), "{stats:?}");
    assert_eq!((stats.captures, stats.eager_calls.len()), (0, 1), "{stats:?}");
}

/// An input that is made with another number of elements in some calls: a plan is one of the first call's number.
fn changing(made: impl Fn(i64) -> Tensor) -> impl Fn() -> Vec<Tensor> {
    let made_so_far = Cell::new(0);
    move || {
        // The inputs of each call are made twice.
        let call = made_so_far.replace(made_so_far.get() + 1) / 2;
        vec![made([3, 3, 5, 3, 2, 3][call % 6])]
    }
}

/// Indices of so many elements, at most 20, of a matrix of 4 rows and 5 columns.
fn places(count: i64, device: Device) -> Tensor {
    let at = Tensor::arange(count, (Kind::Int64, device));
    Tensor::stack(&[at.remainder(4), at.remainder(5)], 0)
}

fn with_elements(count: i64, device: Device) -> Tensor {
    let values = dense(&[count], device) + 1.0;
    let options = (Kind::Float, device);
    Tensor::sparse_coo_tensor_indices_size(&places(count, device), &values, [4, 5], options, false).coalesce()
}

#[test]
fn sparse_inputs_have_another_number_of_elements_in_some_calls() {
    let device = device();
    let some = || changing(move |count| with_elements(count, device));
    check("made dense", &some(), |x| vec![x[0].to_dense(None, false).exp() + 1.0]);
    check("a multiple", &some(), |x| vec![&x[0] * 2.0]);
    check("values and indices", &some(), |x| vec![x[0].values(), x[0].indices()]);
    check("computed of values and indices", &some(), |x| {
        vec![(x[0].values() * 2.0).exp(), x[0].indices() + 1, x[0].to_dense(None, false) + 1.0]
    });
    check("sums of values", &some(), |x| {
        vec![x[0].values().exp().sum(Kind::Float) + 1.0, x[0].values().square().mean(Kind::Float)]
    });
    // Each place but the first twice.
    let uncoalesced = || {
        changing(move |count| {
            let places = places(count, device);
            let places = Tensor::cat(&[&places, &places.narrow(1, 1, count - 1)], 1);
            let values = dense(&[2 * count - 1], device) + 1.0;
            let options = (Kind::Float, device);
            Tensor::sparse_coo_tensor_indices_size(&places, &values, [4, 5], options, false)
        })
    };
    check("uncoalesced, made dense", &uncoalesced(), |x| vec![x[0].to_dense(None, false).exp() * 2.0]);
    check("uncoalesced, a multiple", &uncoalesced(), |x| vec![&x[0] * 2.0]);
    check("coalesced on the way", &uncoalesced(), |x| {
        let coalesced = x[0].coalesce();
        vec![coalesced.values() * 2.0 + 1.0, coalesced.indices() + 1]
    });
    check("values as they were given", &uncoalesced(), |x| {
        vec![x[0].internal_values() * 2.0 + 1.0, x[0].to_dense(None, false) + 1.0]
    });
    // Elements that are rows.
    let hybrid = || {
        changing(move |count| {
            let rows = Tensor::arange(count, (Kind::Int64, device)).unsqueeze(0);
            let values = dense(&[count, 4], device) + 1.0;
            let options = (Kind::Float, device);
            let made = Tensor::sparse_coo_tensor_indices_size(&rows, &values, [6, 4], options, false);
            made.coalesce()
        })
    };
    check("rows, made dense", &hybrid(), |x| vec![x[0].to_dense(None, false).exp() * 2.0]);
    check("values that are rows", &hybrid(), |x| {
        vec![x[0].values().softmax(-1, Kind::Float) + 1.0, x[0].indices() + 1, &x[0] * 2.0]
    });
}

#[test]
fn compressed_inputs_have_another_number_of_elements_in_some_calls() {
    let device = device();
    let dense_of = move |count: i64| with_elements(count, device).to_dense(None, false);
    let rows = || changing(move |count| dense_of(count).to_sparse_csr(None));
    check("rows, made dense", &rows(), |x| vec![x[0].to_dense(None, false).exp() * 2.0]);
    check("of rows", &rows(), |x| {
        vec![x[0].values() * 2.0 + 1.0, x[0].crow_indices() + 1, x[0].col_indices() + 1]
    });
    let columns = || changing(move |count| dense_of(count).to_sparse_csc(None));
    check("columns, made dense", &columns(), |x| vec![x[0].to_dense(None, false).exp() * 2.0]);
    check("of columns", &columns(), |x| {
        vec![x[0].values() * 2.0 + 1.0, x[0].ccol_indices() + 1, x[0].row_indices() + 1]
    });
    let blocks = || changing(move |count| dense_of(count).narrow(1, 0, 4).to_sparse_bsr([2, 2], None));
    check("blocks, made dense", &blocks(), |x| vec![x[0].to_dense(None, false).exp() * 2.0]);
    check("of blocks", &blocks(), |x| vec![x[0].values() * 2.0 + 1.0, x[0].crow_indices() + 1]);
    let blocks = || changing(move |count| dense_of(count).narrow(1, 0, 4).to_sparse_bsc([2, 2], None));
    check("blocks of columns, made dense", &blocks(), |x| vec![x[0].to_dense(None, false).exp() * 2.0]);
    check("of blocks of columns", &blocks(), |x| vec![x[0].values() * 2.0 + 1.0, x[0].ccol_indices() + 1]);
}

/// Two tensors share memory until one of them is written.
#[test]
fn copies_that_the_first_write_makes_are_as_in_eager() {
    const INPUT: &str = "is copied on write: pass a copy";
    const MADE: &str = "shares memory until the first write to it";
    let device = device();
    let one = || vec![dense(&[4, 6], device)];
    let alone = || vec![dense(&[4, 6], device).internal_lazy_clone(), dense(&[4, 6], device)];
    let pair = || {
        let source = dense(&[4, 6], device);
        vec![source.internal_lazy_clone(), source]
    };
    let cases: [(&str, &dyn Fn() -> Vec<Tensor>); 2] = [("alone", &alone), ("a copy and its source", &pair)];
    for (name, inputs) in cases {
        check_eager(&format!("{name}, read"), inputs, INPUT, |x| {
            vec![(&x[0] * 2.0 + &x[1]).exp(), x[0].matmul(&x[1].tr()).relu()]
        });
        check_eager(&format!("{name}, the first one is written"), inputs, INPUT, |x| {
            let _ = x[0].shallow_clone().g_add_scalar_(1.0);
            vec![(&x[0] * 2.0).exp(), &x[1] * 2.0, x[0].shallow_clone(), x[1].shallow_clone()]
        });
        check_eager(&format!("{name}, the second one is written"), inputs, INPUT, |x| {
            let _ = x[1].shallow_clone().g_add_(&(&x[0] * 2.0));
            vec![(&x[0] * 2.0).exp(), &x[1] * 2.0, x[0].shallow_clone(), x[1].shallow_clone()]
        });
        check_eager(&format!("{name}, a part is written"), inputs, INPUT, |x| {
            let _ = x[0].narrow(1, 2, 3).fill_(7.0);
            vec![(&x[0] * 2.0).exp(), &x[1] * 2.0, x[0].shallow_clone(), x[1].shallow_clone()]
        });
        check_eager(&format!("{name}, written by libtorch"), inputs, INPUT, |x| {
            let _ = x[0].cumsum_out(&x[1], 1, Kind::Float);
            vec![&x[0] * 2.0, x[1].exp(), x[0].shallow_clone(), x[1].shallow_clone()]
        });
    }
    check_eager("on the way", &one, MADE, |x| {
        let copy = x[0].internal_lazy_clone();
        vec![copy.exp() + 1.0, &x[0] * 2.0]
    });
    check_eager("a result", &one, MADE, |x| vec![x[0].internal_lazy_clone(), &x[0] + 1.0]);
    check_eager("written on the way", &one, MADE, |x| {
        let mut copy = x[0].internal_lazy_clone();
        let _ = copy.g_add_scalar_(1.0);
        vec![&copy * 2.0, &x[0] * 2.0, copy, x[0].shallow_clone()]
    });
    check_eager("whose source is written", &one, MADE, |x| {
        let copy = x[0].internal_lazy_clone();
        let _ = x[0].shallow_clone().g_add_scalar_(1.0);
        vec![&copy * 2.0, &x[0] * 2.0, copy, x[0].shallow_clone()]
    });
    check_eager("of an intermediate that is written", &one, MADE, |x| {
        let y = &x[0] * 2.0;
        let copy = y.internal_lazy_clone();
        let _ = y.shallow_clone().g_mul_scalar_(3.0);
        vec![copy.exp() + 1.0, y.exp(), copy, y]
    });
    check_eager("of an intermediate, written", &one, MADE, |x| {
        let y = (&x[0] * 2.0).matmul(&x[0].tr());
        let mut copy = y.internal_lazy_clone();
        let _ = copy.g_mul_scalar_(3.0);
        vec![copy.relu() + 1.0, y.relu(), copy, y]
    });
}

#[test]
fn copies_of_weights_that_the_first_write_makes_leave_them_as_they_are() {
    let _no_grad = tch::no_grad_guard();
    let device = device();
    let weight = dense(&[4, 6], device);
    let model = |x: &[Tensor], weight: &Tensor| {
        let mut copy = weight.internal_lazy_clone();
        let _ = copy.g_add_(&x[0]);
        vec![(&copy * 2.0).exp(), weight * &x[0], copy]
    };
    let held = weight.shallow_clone();
    let options = Options { audit: Audit::Never, ..Options::default() };
    let fused = fuse_with(move |x: &[Tensor]| model(x, &held), options);
    for call in 0..6 {
        let x = [dense(&[4, 6], device)];
        let before = weight.copy();
        let ours = fused.call(&x).unwrap();
        assert!(weight.equal(&before), "call {call}");
        for (o, e) in ours.iter().zip(&model(&x, &before)) {
            assert!(o.allclose(e, 1e-5, 1e-6, false), "call {call}: {o} for {e}");
        }
        let _ = weight.shallow_clone().g_mul_scalar_(1.5);
    }
    let stats = fused.stats();
    let reasons: Vec<_> = stats.eager_calls.keys().collect();
    assert!(stats.fused_calls == 0 && reasons[0].contains("shares memory until"), "{stats:?}");
}

/// A tensor of the device that has types and sizes alone.
fn on_meta(t: &Tensor) -> Tensor {
    let meta = Arg::Device { kind: 14, index: -1 };
    let call = Call::new("aten::to", "device", &[Arg::Tensor(()), meta, Arg::DType(6)]).unwrap();
    call.run(&[t]).unwrap()[0].shallow_clone()
}

#[test]
fn tensors_without_data_give_tensors_without_data() {
    let _no_grad = tch::no_grad_guard();
    let models: [Function; 3] = [
        |x| vec![&x[0] * 2.0 + 1.0],
        |x| vec![x[0].matmul(&x[0].tr()).softmax(-1, Kind::Float), x[0].tr() + 1.0],
        |x| vec![x[0].shallow_clone().g_add_scalar_(1.0).sum_dim_intlist(1i64, false, Kind::Float)],
    ];
    let without_data = |t: &Tensor| Meta::of(t).unwrap().flags.contains(Flags::META);
    let inputs = || [on_meta(&dense(&[4, 6], Device::Cpu))];
    for (at, model) in models.into_iter().enumerate() {
        let fused = fuse_with(model, Options { audit: Audit::Never, ..Options::default() });
        for call in 0..4 {
            let (ours, eager) = (fused.call(&inputs()).unwrap(), model(&inputs()));
            assert_eq!(ours.len(), eager.len());
            for (o, e) in ours.iter().zip(&eager) {
                assert_eq!((o.size(), o.stride(), o.kind()), (e.size(), e.stride(), e.kind()), "{at}");
                assert!(without_data(o) && without_data(e), "model {at}, call {call}");
            }
        }
        let stats = fused.stats();
        assert!(stats.fused_calls > 0 || !stats.eager_calls.is_empty(), "model {at}: {stats:?}");
        assert!(stats.eager_calls.keys().all(|reason| !reason.contains("internal")), "{stats:?}");
    }
    // Where eager fails, so does the call.
    let read: Function = |x| vec![&x[0] * x[0].sum(Kind::Float).double_value(&[])];
    let fused = fuse(read);
    for _ in 0..3 {
        assert!(catch_unwind(|| read(&inputs())).is_err());
        let ours = catch_unwind(AssertUnwindSafe(|| fused.call(&inputs())));
        assert!(!matches!(ours, Ok(Ok(_))));
    }
}
