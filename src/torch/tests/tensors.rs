use std::sync::atomic::{AtomicUsize, Ordering};

use tch::{Device, Kind};

use super::*;

#[test]
fn meta_tells_what_a_tensor_looks_like() {
    let x = iota(&[4, 6]);
    let v = x.narrow(1, 2, 3).tr();
    let (m, whole) = (Meta::of(&v).unwrap(), Meta::of(&x).unwrap());
    assert_eq!((m.sizes(), m.strides(), m.offset), (&[3i64, 4][..], &[1i64, 6][..], 2));
    assert_eq!((m.dtype, m.device, m.numel, m.nbytes), (6, DeviceId::CPU, 12, 96));
    assert_eq!(m.storage, whole.storage);
    assert_eq!(m.data, whole.data + 8);
    assert_eq!(m.extent(), whole.data + 8..whole.data + 8 + 4 * 21);
    assert!(m.flags.is_plain() && !m.flags.contains(Flags::CONTIGUOUS) && m.flags.contains(Flags::VIEW));
    assert!(whole.flags.contains(Flags::CONTIGUOUS));
}

/// A tensor of the device that has types and sizes alone.
fn on_meta(t: &Tensor) -> Tensor {
    let meta = Arg::Device { kind: 14, index: -1 };
    let call = Call::new("aten::to", "device", &[Arg::Tensor(()), meta, Arg::DType(6)]).unwrap();
    call.run(&[t]).unwrap()[0].shallow_clone()
}

#[test]
fn tensors_that_are_not_plain_memory_are_told_apart() {
    let plain = |t: &Tensor| Meta::of(t).unwrap().flags.is_plain();
    assert!(plain(&iota(&[3])) && plain(&iota(&[])) && plain(&iota(&[0, 3])));
    assert!(plain(&iota(&[3]).set_requires_grad(true)));
    assert!(!plain(&iota(&[3]).to_sparse(None, None::<&[i64]>, None)));
    assert!(!plain(&Tensor::zeros([2], (Kind::ComplexFloat, Device::Cpu)).conj()));
    assert!(!plain(&iota(&[1, 1, 1, 1, 1, 1, 1, 1, 1])));
    assert!(!plain(&iota(&[4]).quantize_per_tensor(0.1, 0, Kind::QInt8)));
    assert!(!plain(&on_meta(&iota(&[4]))));
    assert!(!plain(&iota(&[4, 3]).internal_add_batch_dim(0, 1)));
    assert!(Meta::of(&Tensor::new()).is_err());
}

#[test]
fn addresses_are_those_of_plain_tensors_alone() {
    let sparse = iota(&[3]).to_sparse(None, None::<&[i64]>, None);
    let conjugate = Tensor::zeros([2], (Kind::ComplexFloat, Device::Cpu)).conj();
    let tensors = [
        iota(&[3]),
        sparse,
        conjugate.shallow_clone(),
        conjugate.imag(),
        iota(&[4]).quantize_per_tensor(0.1, 0, Kind::QInt8),
        iota(&[4]).to_mkldnn(),
        iota(&[2]).narrow(0, 1, 1),
        iota(&[1, 1, 1, 1, 1, 1, 1, 1, 1]),
        iota(&[0, 3]),
        on_meta(&iota(&[4])),
        iota(&[4, 3]).internal_add_batch_dim(0, 1),
    ];
    let found = addresses_of(&tensors).unwrap();
    for (tensor, found) in tensors.iter().zip(found) {
        let (meta, one) = (Meta::of(tensor).unwrap(), address_of(tensor));
        assert_eq!(meta.address().ok(), one.as_ref().ok().copied());
        assert_eq!(found as usize, one.unwrap_or(0));
    }
    let has = tensors.each_ref().map(|t| address_of(t).is_ok());
    assert_eq!(has, [true, false, false, false, false, false, true, false, true, false, false]);
    assert!(addresses_of(&[Tensor::new()]).is_err() && address_of(&Tensor::new()).is_err());
    assert!(addresses_of(&[]).unwrap().is_empty());
}

#[test]
fn states_are_versions_and_addresses() {
    let written = iota(&[3]);
    let _ = written.shallow_clone().neg_();
    let tensors = [iota(&[3]), written, iota(&[3]).tr(), iota(&[0])];
    let like = |t: &Tensor| Meta::of(t).map(|m| (m.version, m.data)).unwrap();
    assert_eq!(states_of(&tensors).unwrap().to_vec(), tensors.each_ref().map(like));
    assert!(states_of(&[]).unwrap().is_empty() && states_of(&[Tensor::new()]).is_err());
}

#[test]
fn checks_notice_each_difference() {
    let x = iota(&[4, 6]);
    let like = |t: &Tensor| Expect::like(&Meta::of(t).unwrap(), 4);
    let mut data = [std::ptr::null_mut(); 2];
    let expected = [like(&x), like(&x)];
    assert_eq!(check_metas([&x, &x.shallow_clone()], &expected, GUARDED, &mut data), Ok(()));
    assert_eq!(data[1] as usize, Meta::of(&x).unwrap().data);
    let others = [
        iota(&[4, 5]),
        iota(&[24]),
        iota(&[6, 4]).tr(),
        x.to_kind(Kind::Int),
        x.to_sparse(None, None::<&[i64]>, None),
        Tensor::new(),
    ];
    for other in &others {
        assert_eq!(check_metas([&x, other], &expected, GUARDED, &mut data), Err(1));
    }
    let aligned = [Expect::like(&Meta::of(&iota(&[3])).unwrap(), 16)];
    assert_eq!(check_metas([&iota(&[4]).narrow(0, 1, 3)], &aligned, GUARDED, &mut data[..1]), Err(0));
    let grad = x.copy().set_requires_grad(true);
    assert_eq!(check_metas([&grad], &expected[..1], GUARDED, &mut data[..1]), Ok(()));
    let strict = GUARDED | Flags::REQUIRES_GRAD;
    assert_eq!(check_metas([&grad], &expected[..1], strict, &mut data[..1]), Err(0));
    assert!(check_metas([&x], &expected, GUARDED, &mut data).is_err());
}

#[test]
fn views_share_memory_and_stay_in_bounds() {
    let arena = empty_strided(&[256], &[1], 0, DeviceId::CPU).unwrap();
    let v = view_of(&arena, 64, 6, &[2, 4], &[4, 1]).unwrap();
    v.shallow_clone().copy_(&iota(&[2, 4]));
    assert_eq!(v.kind(), Kind::Float);
    assert_eq!(Meta::of(&v).unwrap().data, Meta::of(&arena).unwrap().data + 64);
    assert_eq!(view_of(&arena, 80, 6, &[4], &[1]).unwrap(), iota(&[4]) + 4.0);
    assert_eq!(as_strided_of(&v, &[2], &[4], 17).unwrap(), Tensor::from_slice(&[1f32, 5.0]));
    assert!(view_of(&arena, 64, 6, &[64], &[1]).is_err());
    assert!(view_of(&arena, 2, 6, &[1], &[1]).is_err());
    assert!(view_of(&arena, -4, 6, &[1], &[1]).is_err());
    assert!(view_of(&arena, 0, 6, &[2], &[i64::MAX / 2]).is_err());
    assert!(view_of(&arena, 0, 6, &[1], &[]).is_err());
    drop(arena);
    assert_eq!(v, iota(&[2, 4]));
}

#[test]
fn new_tensors_are_as_asked_for() {
    let t = empty_strided(&[2, 3], &[1, 2], 15, DeviceId::CPU).unwrap();
    assert_eq!((t.size(), t.stride(), t.kind()), (vec![2, 3], vec![1, 2], Kind::BFloat16));
    assert!(empty_strided(&[-1], &[1], 6, DeviceId::CPU).is_err());
    assert!(empty_strided(&[1], &[1], 6, DeviceId { kind: 1, index: 99 }).is_err());
}

#[test]
fn global_state_follows_the_modes() {
    let now = || GlobalState::now().unwrap();
    let usual = now();
    assert!(usual.grad() && !usual.inference() && !usual.autocast());
    assert_eq!(usual.default_dtype(), 6);
    assert!(!tch::no_grad(now).grad());
    assert_eq!(tch::no_grad(now), usual.without_grad());
    assert_eq!(now(), usual);
}

#[test]
fn cuda_is_there_or_one_line_says_why() {
    match cuda_devices() {
        Ok(n) => {
            assert!(n > 0 && cuda_stream(0).unwrap().is_null());
            drop(tch::Tensor::zeros([1], (tch::Kind::Float, Device::Cuda(0))));
            let t = empty_strided(&[2, 3], &[1, 2], 6, DeviceId::cuda(0)).unwrap();
            assert_eq!((t.device(), t.stride()), (Device::Cuda(0), vec![1, 2]));
        }
        Err(e) => {
            println!("{e}");
            assert!(!e.to_string().contains('\n'));
            assert!(cuda_available().is_err() && cuda_stream(0).is_err());
        }
    }
}

#[test]
fn the_team_of_libtorch_does_our_work() {
    let (mask, size) = (AtomicUsize::new(0), AtomicUsize::new(0));
    TorchPool::get().run(2, &|i, n| {
        mask.fetch_or(1 << i, Ordering::Relaxed);
        size.store(n, Ordering::Relaxed);
    });
    assert_eq!(mask.into_inner() + 1, 1 << size.into_inner());
    assert!(TorchPool::get().is_parallel());
    let boom = || TorchPool::get().run(2, &|i, n| assert!(i + 1 < n, "boom"));
    assert!(std::panic::catch_unwind(boom).is_err());
}
