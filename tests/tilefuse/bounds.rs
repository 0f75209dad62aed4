//! Indices out of range: an error as eager's, never a wrong result.

use tch::{Device, Kind, Tensor};
use tilefuse::Error;

type Reads = fn(&[Tensor]) -> Vec<Tensor>;

/// Reads along the first dimension of a table of 5 rows, by 6 × 3 indices.
const READS: &[(&str, Reads)] = &[
    ("embedding", |x| vec![Tensor::embedding(&x[0], &x[1], -1, false, false)]),
    ("index_select", |x| vec![x[0].index_select(0, &x[1].flatten(0, -1)).exp()]),
    ("gather", |x| vec![x[0].gather(0, &x[1], false) * 2.0]),
    ("gather, then reduced", |x| {
        vec![x[0].gather(0, &x[1], false).sum_dim_intlist(1i64, false, Kind::Float)]
    }),
    ("index", |x| vec![x[0].index(&[Some(&x[1])]) + 1.0]),
    ("a computed index", |x| vec![x[0].index_select(0, &(x[1].flatten(0, -1) * 2 - &x[1].flatten(0, -1)))]),
    ("computed rows", |x| vec![Tensor::embedding(&x[0].exp(), &x[1], -1, false, false).tanh()]),
    ("written back", |x| {
        let rows = x[0].index_select(0, &x[1].flatten(0, -1));
        let _ = x[0].shallow_clone().g_add_(&rows.mean(Kind::Float));
        vec![rows]
    }),
];

fn table() -> Tensor {
    Tensor::arange(15, (Kind::Float, Device::Cpu)).view([5, 3]) / 8.0
}

fn indices(wrong: Option<(i64, i64)>) -> Tensor {
    let all = Tensor::arange(18, (Kind::Int64, Device::Cpu)).remainder(5).view([6, 3]).contiguous();
    if let Some((at, value)) = wrong {
        let _ = all.view(-1).narrow(0, at, 1).fill_(value);
    }
    all
}

#[test]
fn an_index_out_of_range_is_an_error_and_the_next_call_is_right() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    for (name, reads) in READS {
        let fused = tilefuse::fuse(reads);
        fused.call(&[table(), indices(None)]).unwrap();
        for wrong in
            [None, Some((0, 5)), Some((17, 5)), Some((8, -6)), Some((3, i64::MAX)), Some((4, i64::MIN)), None]
        {
            let (ours, eager) = ([table(), indices(wrong)], [table(), indices(wrong)]);
            let result = fused.call(&ours);
            if wrong.is_some() {
                let what = format!("{name} {wrong:?}: {result:?}");
                assert!(matches!(result, Err(Error::IndexOutOfRange | Error::Torch(_))), "{what}");
                assert_eq!(ours[0], table(), "{what}: an input was written");
            } else {
                assert!(result.unwrap()[0].allclose(&reads(&eager)[0], 1e-5, 1e-6, false), "{name}");
                assert!(ours[0].allclose(&eager[0], 1e-5, 1e-6, false), "{name}");
            }
        }
        let stats = fused.stats();
        assert!(stats.eager_calls.is_empty() && stats.captures == 1, "{name}: {stats:?}");
    }
}

/// One wrong index among many, at each place of a vector, in several instances and threads.
#[test]
fn one_wrong_index_among_many_is_found_wherever_it_is() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let source = Tensor::randn([1000, 24], (Kind::Float, Device::Cpu));
    for length in [1, 31, 4097] {
        let fused = tilefuse::fuse(|x: &[Tensor]| vec![x[0].index_select(0, &x[1]).sigmoid()]);
        let good = Tensor::arange(length, (Kind::Int64, Device::Cpu)).remainder(1000);
        fused.call(&[source.shallow_clone(), good.copy()]).unwrap();
        for at in (0..length).step_by(1 + length as usize / 40) {
            let bad = good.copy();
            let _ = bad.narrow(0, at, 1).fill_(if at % 2 == 0 { 1000 } else { -1 });
            let result = fused.call(&[source.shallow_clone(), bad]);
            assert!(matches!(result, Err(Error::IndexOutOfRange)), "at {at} of {length}");
        }
        let x = [source.shallow_clone(), good];
        let (ours, eager) = (fused.call(&x).unwrap(), (fused.model())(&x));
        assert!(ours[0].allclose(&eager[0], 1e-5, 1e-6, false));
    }
}

/// What eager does not read is not checked: a masked target of a loss, and reads of nothing.
#[test]
fn indices_that_eager_does_not_read_may_be_anything() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let fused = tilefuse::fuse(|x: &[Tensor]| {
        vec![x[0].cross_entropy_loss::<Tensor>(&x[1], None, tch::Reduction::Mean, -100, 0.0)]
    });
    let scores = Tensor::randn([4, 7], (Kind::Float, Device::Cpu));
    for targets in [[0i64, 6, 3, 2], [0, -100, 3, -100], [1, 2, -100, 6]] {
        let x = [scores.shallow_clone(), Tensor::from_slice(&targets)];
        assert!(fused.call(&x).unwrap()[0].allclose(&(fused.model())(&x)[0], 1e-5, 1e-6, false));
    }
    let x = [scores.shallow_clone(), Tensor::from_slice(&[0i64, 7, 3, 2])];
    assert!(fused.call(&x).is_err());
    let fused = tilefuse::fuse(|x: &[Tensor]| vec![x[0].index_select(0, &x[1])]);
    let nothing = Tensor::zeros([0], (Kind::Int64, Device::Cpu));
    for _ in 0..2 {
        assert_eq!(fused.call(&[scores.shallow_clone(), nothing.shallow_clone()]).unwrap()[0].size(), [0, 7]);
    }
}

/// Eager raises for these; so must a plan that was made for good ones.
#[test]
fn integer_division_by_zero_is_an_error() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let divisions: [Reads; 4] = [
        |x| vec![x[0].floor_divide(&x[1])],
        |x| vec![x[0].remainder_tensor(&x[1])],
        |x| vec![x[0].fmod_tensor(&x[1])],
        |x| vec![x[0].divide_tensor_mode(&x[1], "trunc")],
    ];
    for divide in divisions {
        let fused = tilefuse::fuse(divide);
        let (a, b) = (Tensor::from_slice(&[7i32, -7, 5]), Tensor::from_slice(&[2i32, 3, 4]));
        for _ in 0..2 {
            assert_eq!(fused.call(&[a.copy(), b.copy()]).unwrap(), divide(&[a.copy(), b.copy()]));
        }
        assert!(fused.call(&[a.copy(), Tensor::from_slice(&[2i32, 0, 4])]).is_err());
        assert!(fused.call(&[a.copy(), b.copy()]).is_ok());
    }
}

/// A source that has one element along the dimension, or the same one many times, reads alike at every index.
#[test]
fn an_index_out_of_range_is_an_error_where_all_elements_are_one() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let reads: &[Reads] = &[
        |x| vec![x[0].narrow(0, 0, 1).index_select(0, &x[1])],
        |x| vec![x[0].narrow(0, 0, 1).view([-1]).unsqueeze(0).index_select(0, &x[1]).exp()],
        |x| vec![x[0].narrow(0, 0, 1).expand([5, 3], false).index_select(0, &x[1])],
        |x| vec![(x[0].narrow(0, 0, 1) * 2.0).index_select(0, &x[1]) + 1.0],
        |x| vec![(x[0].narrow(0, 0, 1) * 2.0).expand([5, 3], false).index_select(0, &x[1]) + 1.0],
    ];
    for (at, reads) in reads.iter().enumerate() {
        let fused = tilefuse::fuse(reads);
        let index = |i: i64| Tensor::from_slice(&[0, i, 0]);
        fused.call(&[table(), index(0)]).unwrap();
        for wrong in [0, 5, -1, 0] {
            let result = fused.call(&[table(), index(wrong)]);
            match wrong {
                0 => assert_eq!(result.unwrap(), reads(&[table(), index(0)]), "{at}"),
                _ => assert!(result.is_err(), "{at}: {wrong}: {result:?}"),
            }
        }
        assert!(fused.stats().eager_calls.is_empty(), "{at}: {:?}", fused.stats());
    }
}

/// Every index counts modulo the length.
#[test]
fn take_along_dim_has_no_index_out_of_range() {
    crate::common::setup();
    let _no_grad = tch::no_grad_guard();
    let reads: Reads = |x| vec![x[0].take_along_dim(&x[1], 0)];
    let fused = tilefuse::fuse(reads);
    for value in [0, 4, 5, 12, -1, -7, i64::MAX, i64::MIN] {
        let wrong = indices(Some((4, value)));
        let result = fused.call(&[table(), wrong.copy()]).unwrap();
        assert_eq!(result, reads(&[table(), wrong]), "{value}");
    }
    assert!(fused.stats().eager_calls.is_empty() && fused.stats().fused_calls == 7, "{:?}", fused.stats());
}
