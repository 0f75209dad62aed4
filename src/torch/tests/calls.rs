use std::time::Instant;

use tch::Kind;

use super::*;

fn scalar_call(op: &str, overload: &str, args: &[Arg<()>]) -> Call {
    Call::new(op, overload, args).unwrap()
}

#[test]
fn calls_are_made_by_name() {
    let (x, y) = (iota(&[2, 3]), iota(&[2, 3]).sin());
    let add = scalar_call("aten::add", "Tensor", &[Arg::Tensor(()), Arg::Tensor(()), Arg::Int(2)]);
    assert_eq!(add.run(&[&x, &y]).unwrap()[0], &x + &y * 2);
    let cat = scalar_call("aten::cat", "", &[Arg::Tensors(vec![Some(()), Some(())]), Arg::Int(1)]);
    assert_eq!(cat.run(&[&x, &y]).unwrap()[0], Tensor::cat(&[&x, &y], 1));
    let split = scalar_call("aten::unbind", "int", &[Arg::Tensor(())]);
    assert_eq!(split.run(&[&x]).unwrap().len(), 2);
    let index = scalar_call("aten::index", "Tensor", &[Arg::Tensor(()), Arg::Tensors(vec![None, Some(())])]);
    let at = Tensor::from_slice(&[2i64, 0]);
    assert_eq!(index.run(&[&x, &at]).unwrap()[0], x.index_select(1, &at));
    let cast = scalar_call("aten::_to_copy", "", &[Arg::Tensor(()), Arg::DType(7)]);
    assert_eq!(cast.run(&[&x]).unwrap()[0].kind(), Kind::Double);
    let sum =
        scalar_call("aten::sum", "dim_IntList", &[Arg::Tensor(()), Arg::Ints(vec![1]), Arg::Bool(true)]);
    assert_eq!(sum.run(&[&x]).unwrap()[0].size(), [2, 1]);
    let linear = scalar_call("aten::linear", "", &[Arg::Tensor(()), Arg::Tensor(()), Arg::None]);
    assert_eq!(linear.run(&[&x, &y]).unwrap()[0], x.linear(&y, None::<&Tensor>));
}

#[test]
fn bad_calls_are_errors() {
    assert!(Call::new::<()>("aten::no_such_thing", "", &[]).is_err());
    assert!(Call::new::<()>("aten::relu", "", &[]).is_err());
    assert!(Call::new("aten::relu", "", &[Arg::Tensor(()), Arg::Int(1)]).is_err());
    assert!(Call::new("aten::relu", "", &[Arg::Tensors(vec![Some(())])]).is_err());
    let relu = scalar_call("aten::relu", "", &[Arg::Tensor(())]);
    assert!(relu.run(&[]).is_err());
    assert!(relu.run(&[&iota(&[2]), &iota(&[2])]).is_err());
    let wrong_type = scalar_call("aten::softmax", "int", &[Arg::Tensor(()), Arg::Str("x".into())]);
    assert!(wrong_type.run(&[&iota(&[2])]).is_err());
}

#[test]
fn in_place_calls_have_functional_variants() {
    let add = scalar_call("aten::add_", "Tensor", &[Arg::Tensor(()), Arg::Tensor(())]);
    let pure = add.functional_variant().unwrap();
    let (x, y) = (iota(&[3]).to_kind(Kind::Half), iota(&[3]));
    let sum = &pure.run(&[&x, &y]).unwrap()[0];
    assert_eq!(x, iota(&[3]).to_kind(Kind::Half));
    assert_eq!(*sum, x.shallow_clone().g_add_(&y));
    assert!(pure.functional_variant().is_none());
    for op in ["aten::zero_", "aten::relu_"] {
        assert!(scalar_call(op, "", &[Arg::Tensor(())]).functional_variant().is_some());
    }
}

#[test]
fn versions_count_what_calls_write() {
    let call = scalar_call("aten::add_", "Scalar", &[Arg::Tensor(()), Arg::Float(1.0)]);
    let x = iota(&[3]);
    let version = Meta::of(&x).unwrap().version;
    call.run(&[&x]).unwrap();
    assert_eq!(x, iota(&[3]) + 1.0);
    assert_eq!(Meta::of(&x).unwrap().version, version + 1);
}

#[test]
fn results_keep_their_places() {
    let pack = scalar_call(
        "aten::_batch_norm_impl_index",
        "",
        &[
            Arg::Tensor(()),
            Arg::None,
            Arg::None,
            Arg::None,
            Arg::None,
            Arg::Bool(true),
            Arg::Float(0.1),
            Arg::Float(1e-5),
            Arg::Bool(false),
        ],
    );
    let results = pack.run(&[&iota(&[2, 3])]).unwrap();
    assert!(results.len() == 5 && results[0].defined() && !results[4].defined());
}

#[test]
fn results_are_ordinary_tensors() {
    let relu = scalar_call("aten::relu", "", &[Arg::Tensor(())]);
    let x = iota(&[3]).set_requires_grad(true);
    let y = relu.run(&[&x]).unwrap().remove(0);
    assert!(!y.requires_grad());
    let w = iota(&[3]).set_requires_grad(true);
    (&y * &w).sum(Kind::Float).backward();
    assert_eq!(w.grad(), y);
}

/// A check of as many tensors as GPT-2 has, after something has pushed them out of the caches, as a model's own work does.
fn cold_check() {
    let tensors: Vec<Tensor> = (0..148).map(|at| iota(&[4 + at, 8])).collect();
    let expected: Vec<Expect> = tensors.iter().map(|t| Expect::like(&Meta::of(t).unwrap(), 16)).collect();
    let mut data = vec![std::ptr::null_mut(); tensors.len()];
    let mut other = vec![1u8; 64 << 20];
    let mut check = |cold: bool| {
        if cold {
            other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        }
        let start = Instant::now();
        check_metas(&tensors, &expected, GUARDED, &mut data).unwrap();
        start.elapsed().as_nanos()
    };
    for (name, cold) in [("in the caches", false), ("in memory", true)] {
        let mut times: Vec<u128> = (0..51).map(|_| check(cold)).collect();
        times.sort_unstable();
        println!("check of 148 {name}: {} ns", times[25]);
    }
}

#[test]
fn timings() {
    let (x, y) = (iota(&[4]), iota(&[4]));
    let add = scalar_call("aten::add", "Tensor", &[Arg::Tensor(()), Arg::Tensor(())]);
    let expected = [Expect::like(&Meta::of(&x).unwrap(), 16); 100];
    let many: Vec<_> = (0..100).map(|_| &x).collect();
    let mut data = [std::ptr::null_mut(); 100];
    let time = |name: &str, f: &mut dyn FnMut()| {
        let batch = |f: &mut dyn FnMut()| {
            let start = Instant::now();
            (0..200).for_each(|_| f());
            start.elapsed().as_nanos() / 200
        };
        println!("{name}: {} ns", (0..50).map(|_| batch(f)).min().unwrap());
    };
    let _no_grad = tch::no_grad_guard();
    time("eager add", &mut || drop(&x + &y));
    time("stored add", &mut || drop(add.run(&[&x, &y])));
    time("meta", &mut || drop(Meta::of(&x)));
    time("check of 1", &mut || check_metas([&x], &expected[..1], GUARDED, &mut data[..1]).unwrap());
    time("check of 100", &mut || {
        check_metas(many.iter().copied(), &expected, GUARDED, &mut data).unwrap();
    });
    cold_check();
    time("empty_strided", &mut || drop(empty_strided(&[4], &[1], 6, DeviceId::CPU)));
    time("view_of", &mut || drop(view_of(&x, 0, 6, &[4], &[1])));
    time("global state", &mut || drop(GlobalState::now()));
    let threads = GlobalState::now().unwrap().threads();
    time("parallel region", &mut || TorchPool::get().run(threads, &|_, _| {}));
}
