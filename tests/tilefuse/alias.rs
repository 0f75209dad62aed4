//! What shares memory after a call, and calls that address memory by strides: as in eager.

use tch::{Device, Kind, Tensor};
use tilefuse::Stats;
use tilefuse::torch::{Arg, Call, Meta};

use crate::common::{devices, setup};

type Model = dyn Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>;

fn iota(sizes: &[i64], device: Device) -> Tensor {
    let count = sizes.iter().product::<i64>();
    Tensor::arange(count, (Kind::Float, device)).reshape(sizes) * 0.25 - 1.0
}

/// A copy of the tensor's storage, and the same view of it.
fn like(tensor: &Tensor) -> Tensor {
    let meta = Meta::of(tensor).unwrap();
    let count = meta.nbytes / tilefuse::torch::element_size(meta.dtype) as i64;
    let copy = tensor.as_strided([count], [1], 0).copy();
    copy.as_strided(meta.sizes(), meta.strides(), meta.offset)
}

/// For each pair of tensors with elements that share a storage, the bytes from one to the other.
fn sharing(tensors: &[&Tensor]) -> Vec<(usize, usize, i64)> {
    let metas: Vec<Meta> = tensors.iter().map(|t| Meta::of(t).unwrap()).collect();
    let shared = |i: usize, j: usize| {
        let (a, b) = (&metas[i], &metas[j]);
        let alike = a.numel > 0 && b.numel > 0 && a.storage_data == b.storage_data;
        alike.then(|| (i, j, b.data as i64 - a.data as i64))
    };
    (0..metas.len()).flat_map(|i| (0..i).filter_map(move |j| shared(i, j)).collect::<Vec<_>>()).collect()
}

/// Whether two tensors are equal, or floating-point numbers that are near each other.
fn same(a: &Tensor, b: &Tensor) -> bool {
    let rounded = a.is_floating_point() || a.is_complex();
    if rounded { a.allclose(b, 1e-5, 1e-6, true) } else { a.equal(b) }
}

/// Runs a model of tensors of its own and inputs, eager and fused, and compares results, what it writes, and which tensors
/// share memory. Inputs of each call are those of the list in turn.
fn beside_eager(own: &[Tensor], calls: &[Vec<Tensor>], model: &Model) -> Stats {
    setup();
    let _no_grad = tch::no_grad_guard();
    let theirs: Vec<Tensor> = own.iter().map(like).collect();
    let fused = tilefuse::fuse(|x: &[Tensor]| model(own, x));
    for (call, inputs) in calls.iter().enumerate() {
        let (a, b): (Vec<_>, Vec<_>) = inputs.iter().map(|t| (like(t), like(t))).unzip();
        let (ours, eager) = (fused.call(&a).unwrap(), model(&theirs, &b));
        let all = |outputs: &'_ [Tensor], inputs: &'_ [Tensor], own: &'_ [Tensor]| -> Vec<Tensor> {
            outputs.iter().chain(inputs).chain(own).map(Tensor::shallow_clone).collect()
        };
        let (ours, eager) = (all(&ours, &a, own), all(&eager, &b, &theirs));
        assert_eq!(ours.len(), eager.len());
        for (at, (a, b)) in ours.iter().zip(&eager).enumerate() {
            assert_eq!((a.size(), a.kind()), (b.size(), b.kind()), "call {call}, tensor {at}");
            assert_eq!((a.is_conj(), a.is_neg()), (b.is_conj(), b.is_neg()), "call {call}, tensor {at}");
            assert!(same(a, b), "call {call}, tensor {at}: {a} instead of {b}");
        }
        let refs = |list: &'_ [Tensor]| sharing(&list.iter().collect::<Vec<_>>());
        assert_eq!(refs(&ours), refs(&eager), "call {call}: memory that tensors share");
    }
    fused.stats()
}

/// As `beside_eager` with three calls of the same inputs, the last two of which are fused.
fn is_fused(own: &[Tensor], inputs: &[Tensor], model: &Model) {
    let calls = [copies(inputs), copies(inputs), copies(inputs)];
    let stats = beside_eager(own, &calls, model);
    assert_eq!(stats.fused_calls, 2, "{stats:?}");
}

fn copies(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(like).collect()
}

#[test]
fn strides_over_a_storage() {
    for device in devices() {
        let at = |offset: i64| iota(&[20], device).narrow(0, offset, 8);
        for offset in [None, Some(3), Some(4)] {
            for (size, stride) in
                [(&[4][..], &[1][..]), (&[2, 2], &[3, 1]), (&[3, 2], &[1, 1]), (&[2, 2], &[0, 1])]
            {
                let view = move |x: &Tensor| x.as_strided(size, stride, offset);
                let read = move |_: &[Tensor], x: &[Tensor]| vec![view(&x[0]) + 0.0, view(&x[0])];
                is_fused(&[], &[at(3)], &read);
                let own = [at(3)];
                let of_own = move |own: &[Tensor], x: &[Tensor]| vec![view(&own[0]) + &x[0].narrow(0, 0, 1)];
                is_fused(&own, &[at(3)], &of_own);
                // Elsewhere in another storage; the second time with a plan of its own.
                let calls = [vec![at(3)], vec![at(3)], vec![at(2)], vec![at(2)], vec![at(3)]];
                let stats = beside_eager(&[], &calls, &read);
                assert_eq!(stats.captures, if offset.is_none() { 1 } else { 2 }, "{offset:?}: {stats:?}");
                let of_values = move |_: &[Tensor], x: &[Tensor]| {
                    let y = (Tensor::cat(&[&x[0], &x[0]], 0) * 2.0).reshape([4, 4]).tr().contiguous();
                    let t = y.tr() + 1.0;
                    vec![y.as_strided(size, stride, offset) + 1.0, t.as_strided(size, stride, offset) * 2.0]
                };
                is_fused(&[], &[at(3)], &of_values);
            }
        }
    }
}

#[test]
fn writes_through_strides() {
    for device in devices() {
        let at = |offset: i64| iota(&[20], device).narrow(0, offset, 8);
        for offset in [None, Some(3), Some(4)] {
            let write = move |_: &[Tensor], x: &[Tensor]| {
                let _ = x[0].as_strided([2, 2], [1, 2], offset).fill_(100.0);
                let _ = x[0].as_strided([2], [3], offset).f_add_scalar_(1.0).unwrap();
                vec![x[0].sum(Kind::Float)]
            };
            is_fused(&[], &[at(3)], &write);
            let calls = [vec![at(3)], vec![at(3)], vec![at(2)], vec![at(2)], vec![at(3)]];
            beside_eager(&[], &calls, &write);
            let own = [at(3)];
            is_fused(&own, &[at(1)], &move |own, x| {
                own[0].as_strided([2, 2], [4, 1], offset).copy_(&x[0].narrow(0, 0, 4).reshape([2, 2]));
                vec![&own[0] + 0.0]
            });
            is_fused(&[], &[at(3)], &move |_, x| {
                let mut y = (&x[0] * 2.0).reshape([2, 4]);
                y.copy_(&x[0].reshape([4, 2]).tr());
                let _ = y.as_strided([2], [2], offset).fill_(7.0);
                vec![y.as_strided([3, 2], [1, 1], offset), y]
            });
        }
    }
}

#[test]
fn strides_that_leave_the_tensor_run_eager() {
    for device in devices() {
        let x = || iota(&[20], device).narrow(0, 3, 8);
        let outside = |_: &[Tensor], x: &[Tensor]| vec![x[0].as_strided([4], [1], 0) + 0.0];
        let stats = beside_eager(&[], &[vec![x()], vec![x()]], &outside);
        assert_eq!(stats.fused_calls, 0, "{stats:?}");
    }
}

#[test]
fn results_are_apart_where_a_copy_is_left_out() {
    for device in devices() {
        let (x, w) = (iota(&[8], device), iota(&[8], device) + 3.0);
        let own = [w.shallow_clone()];
        is_fused(&own, &[x.shallow_clone()], &|own, x| {
            let (x, w) = (&x[0], &own[0]);
            let mask = x.gt(0.0);
            vec![
                x.copy().unfold(0, 2, 1),
                (x * 1.0).unfold(0, 2, 1),
                x.where_self(&mask, x).unfold(0, 3, 1),
                w.copy().unfold(0, 2, 2),
                w.copy().unfold(0, 2, 1).unfold(0, 2, 1),
                x.copy().unfold(0, 2, 1),
            ]
        });
        let whole = x.to_kind(Kind::Int64);
        is_fused(&[], &[whole], &|_, x| vec![x[0].floor().unfold(0, 2, 1), x[0].unfold(0, 2, 1)]);
        // The copy keeps the old values.
        is_fused(&own, &[x.shallow_clone()], &|own, x| {
            let (a, b) = (x[0].copy().unfold(0, 2, 1), own[0].copy().unfold(0, 2, 1));
            let (_, _) = (x[0].shallow_clone().f_add_scalar_(1.0).unwrap(), own[0].shallow_clone().zero_());
            let later = (&a.cumsum(0, Kind::Float), &b.cumsum(0, Kind::Float));
            vec![later.0 + 0.0, later.1 + 0.0, a, b]
        });
        // An intermediate that a later kernel writes over.
        is_fused(&[], &[x.shallow_clone()], &|_, x| {
            let y = x[0].exp();
            let windows = (&y * 1.0).unfold(0, 2, 1);
            let z = &y + 1.0;
            vec![z, windows.cumsum(0, Kind::Float), windows]
        });
    }
}

/// One call makes a view of a constant and one of an input; the constant is written behind it or not.
#[test]
fn a_view_of_a_constant_beside_one_of_an_input() {
    for device in devices() {
        let x = iota(&[3], device);
        for writes in [false, true] {
            is_fused(&[], &[x.shallow_clone()], &move |_, inputs| {
                let constant = Tensor::full([2], -2.0, (Kind::Float, inputs[0].device()));
                let mut grids = Tensor::meshgrid_indexing(&[&constant, &inputs[0]], "ij");
                if writes {
                    let _ = grids[0].fill_(3.0);
                }
                let sum = &grids[0] + &grids[1];
                grids.push(sum);
                grids.push(constant);
                grids
            });
        }
    }
}

#[test]
fn results_share_memory_as_in_eager() {
    for device in devices() {
        let x = iota(&[3, 4], device);
        let one = std::slice::from_ref(&x);
        is_fused(&[], one, &|_, x| {
            let t = Tensor::ones([4], (Kind::Float, x[0].device()));
            vec![t.view([2, 2]), t.shallow_clone(), &x[0] + &t, t.narrow(0, 1, 2)]
        });
        is_fused(&[], one, &|_, x| {
            let t = Tensor::ones([4], (Kind::Float, x[0].device()));
            vec![t.narrow(0, 2, 2), t.narrow(0, 1, 2), &x[0] + 1.0]
        });
        is_fused(&[], one, &|_, x| {
            let s = x[0].exp().narrow(1, 1, 2);
            let s = s.shallow_clone().f_add_scalar_(1.0).unwrap();
            vec![s.shallow_clone(), s.select(0, 0)]
        });
        is_fused(&[], one, &|_, x| {
            let y = &x[0] * 2.0;
            vec![y.select(0, 2), y.select(1, 1), y.narrow(0, 0, 2), &x[0] * 2.0]
        });
        is_fused(&[], one, &|_, x| {
            let y = x[0].cumsum(0, Kind::Float);
            vec![y.select(0, 2), y.select(0, 2), x[0].select(1, 0), x[0].tr()]
        });
        is_fused(&[], one, &|_, x| {
            let y = &x[0] * 2.0;
            vec![y.shallow_clone(), y]
        });
        let own = [Tensor::from(2.0f32).to_device(device), iota(&[4], device)];
        is_fused(&own, one, &|own, x| vec![own[0].view([1]), own[0].shallow_clone(), &x[0] * &own[0]]);
        is_fused(&own, one, &|own, x| vec![own[0].view([1]), &x[0] * &own[0], own[1].view([2, 2])]);
    }
}

#[test]
fn conjugates_that_are_not_carried_out_stay_so() {
    for device in devices() {
        let x = Tensor::complex(&iota(&[6], device), &iota(&[6], device));
        let calls = [vec![x.copy()], vec![x.copy()], vec![x.copy()]];
        fn constant(x: &[Tensor]) -> Tensor {
            let parts = iota(&[6], x[0].device());
            Tensor::complex(&parts, &parts).conj()
        }
        let models: [&Model; 10] = [
            &|_, x| vec![constant(x)],
            &|_, x| vec![constant(x).imag()],
            &|_, x| vec![constant(x) * &x[0], constant(x).imag() + 1.0],
            &|_, x| {
                let constant = constant(x);
                vec![constant.shallow_clone(), constant.select(0, 1)]
            },
            &|_, x| vec![x[0].conj()],
            &|_, x| vec![(&x[0] * &x[0]).conj()],
            &|_, x| vec![x[0].conj() * &x[0]],
            &|_, x| vec![x[0].copy().conj(), &x[0] + 1.0],
            &|_, x| vec![x[0].conj().imag(), x[0].real()],
            &|_, x| vec![(x[0].view_as_real() * 2.0).view_as_complex(), (x[0].view_as_real() * 2.0).exp()],
        ];
        for model in models {
            beside_eager(&[], &calls, model);
        }
    }
}

/// libtorch keeps what a view is of in another dtype, conjugated or negated, which is not the model keeping it.
#[test]
fn views_in_another_dtype_are_returned_fused() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let pairs = [iota(&[4, 6], device), iota(&[4, 6], device) + 1.0];
        let models: [&Model; 6] = [
            &|_, x| vec![Tensor::complex(&x[0], &x[1]).real(), &x[0] + 1.0],
            &|_, x| {
                let z = Tensor::complex(&(&x[0] * 2.0), &x[1]);
                vec![z.imag().select(0, 1), &x[0] + 1.0]
            },
            &|_, x| {
                let z = Tensor::view_as_complex(&(&x[0] * 2.0).reshape([4, 3, 2]));
                vec![z.view_as_real().flatten(1, 2).view([2, 12]), &x[0] + 1.0]
            },
            &|_, x| {
                let rows = (&x[0] * 2.0).reshape([4, 3, 2]);
                vec![Tensor::view_as_complex(&rows).select(0, 1), &x[0] + 1.0]
            },
            &|_, x| vec![Tensor::complex(&x[0], &x[1]).conj().narrow(0, 0, 2), &x[0] + 1.0],
            &|_, x| {
                let rotation = Tensor::polar(&x[0], &x[1]).view_as_real().select(2, 0);
                vec![rotation, &x[0] + 1.0]
            },
        ];
        for model in models {
            is_fused(&[], &pairs, model);
        }
        let kept = std::sync::Mutex::new(Vec::new());
        let fused = tilefuse::fuse(|x: &[Tensor]| {
            let z = Tensor::complex(&x[0], &x[1]);
            kept.lock().unwrap().push(z.shallow_clone());
            vec![z.real(), &x[0] + 1.0]
        });
        for _ in 0..3 {
            let _ = fused.call(&pairs).unwrap();
        }
        assert_eq!(kept.lock().unwrap().len(), 3, "a model that keeps a tensor runs each time");
    }
}

/// A call of an operator with a tensor and integers.
fn call(name: &str, x: &Tensor, numbers: &[Arg]) -> Option<Vec<Tensor>> {
    let (op, overload) = name.split_once('.').unwrap_or((name, ""));
    let mut args = vec![Arg::Tensor(tilefuse::torch::TensorId(0))];
    args.extend(numbers.iter().cloned());
    let results = Call::new(&format!("aten::{op}"), overload, &args).unwrap().run(&[x]);
    results.ok().map(|all| all.into_vec())
}

/// Operators that take dimensions or sizes, and how many.
const TAKING_DIMS: &[(&str, usize)] = &[
    ("flip", 1),
    ("squeeze.dim", 1),
    ("unsqueeze", 1),
    ("transpose.int", 2),
    ("swapdims", 2),
    ("movedim.int", 2),
    ("select.int", 2),
    ("narrow", 3),
    ("diagonal", 3),
    ("unfold", 3),
    ("unbind.int", 1),
    ("split.Tensor", 2),
    ("chunk", 2),
    ("flatten.using_ints", 2),
    ("roll", 2),
    ("tril", 1),
    ("diag_embed", 3),
    ("cumsum", 1),
    ("softmax.int", 1),
    ("sum.dim_IntList", 1),
    ("amax", 1),
    ("argmax", 1),
    ("any.dim", 1),
    ("cummax", 1),
    ("sort", 1),
    ("logsumexp", 1),
    ("repeat_interleave.self_int", 2),
];

/// The arguments of an operator with these numbers.
fn numbers(name: &str, list: &[i64]) -> Vec<Arg> {
    let ints = matches!(name, "flip" | "roll" | "sum.dim_IntList" | "amax" | "logsumexp");
    list.iter().map(|&n| if ints { Arg::Ints(vec![n]) } else { Arg::Int(n) }).collect()
}

#[test]
fn dimensions_of_every_rank() {
    let shapes: [&[i64]; 7] = [&[], &[3], &[0], &[2, 3], &[0, 3], &[2, 1], &[2, 3, 2]];
    for device in devices() {
        for (name, count) in TAKING_DIMS.iter().copied() {
            shapes.into_iter().for_each(|shape| dimensions_of(name, count, &iota(shape, device)));
        }
    }
}

/// An operator with the dimensions, in and out of range, that eager takes for a tensor of this shape.
fn dimensions_of(name: &'static str, count: usize, x: &Tensor) {
    let every = (0..7i64.pow(count as u32))
        .map(|mut n| (0..count).map(|_| (n % 7 - 3, n /= 7).0).collect::<Vec<i64>>());
    let valid: Vec<Vec<Arg>> = every
        .map(|list| numbers(name, &list))
        .filter(|args| call(name, x, args).is_some())
        .step_by(1 + count * count / 4)
        .collect();
    if valid.is_empty() {
        return;
    }
    let calls = [vec![x.copy()], vec![x.copy()], vec![x.copy()]];
    let model = move |_: &[Tensor], x: &[Tensor]| -> Vec<Tensor> {
        let y = &x[0] * 2.0;
        let of = |x: &Tensor| valid.iter().flat_map(|args| call(name, x, args).unwrap()).collect::<Vec<_>>();
        let added = of(&y).into_iter().map(|t| t + 1);
        of(&x[0]).into_iter().chain(of(&y)).chain(added).collect()
    };
    beside_eager(&[], &calls, &model);
}

#[test]
fn copies_onto_themselves_and_strides_that_repeat() {
    for device in devices() {
        let x = iota(&[2, 100], device);
        let calls = [vec![x.copy()], vec![x.copy()], vec![x.copy()]];
        let models: [&Model; 8] = [
            &|_, x| vec![x[0].eq(1.0).as_strided([2, 3], [0, 1], None)],
            &|_, x| {
                vec![x[0].as_strided([2, 3], [0, 1], None), (&x[0] + 1.0).as_strided([2, 3], [0, 1], None)]
            },
            &|_, x| vec![x[0].cumsum(0, Kind::Float).as_strided([2, 3], [0, 1], None)],
            &|_, x| vec![x[0].diagonal(-1, 0, 1), x[0].relu().diagonal(-1, 0, 1)],
            &|_, x| {
                let y = &x[0] * 1.0;
                y.shallow_clone().copy_(&y);
                x[0].shallow_clone().copy_(&x[0]);
                vec![y]
            },
            &|_, x| {
                x[0].narrow(1, 3, 5).copy_(&x[0].narrow(1, 3, 5));
                x[0].tr().copy_(&x[0].tr());
                vec![&x[0] + 1.0]
            },
            &|_, x| {
                vec![
                    x[0].select(1, 3).expand([4, 2], false).tr() * 2.0,
                    x[0].eq(2.0).expand([3, 2, 100], false),
                ]
            },
            &|_, x| {
                vec![
                    x[0].to_kind(Kind::Half).as_strided([3, 4], [2, 1], 5),
                    x[0].tr().as_strided([2], [1], 7),
                ]
            },
        ];
        for model in models {
            beside_eager(&[], &calls, model);
        }
    }
}

#[test]
fn an_unused_conversion_stays_fused() {
    for device in devices() {
        let x = iota(&[3, 4], device);
        is_fused(&[], &[x.shallow_clone()], &|_, x| {
            let _ = x[0].to_kind(Kind::Half);
            let _ = (&x[0] + 1.0).to_kind(Kind::Double);
            let _ = x[0].tr().contiguous();
            vec![x[0].relu()]
        });
        let reads: [&Model; 5] = [
            &|_, x| vec![&x[0] * x[0].double_value(&[0, 1])],
            &|_, x| vec![&x[0] * f64::from(Vec::<f32>::try_from(x[0].relu().flatten(0, -1)).unwrap()[1])],
            &|_, x| vec![&x[0] * f64::from(Vec::<f32>::try_from(x[0].tr().flatten(0, -1)).unwrap()[1])],
            &|_, x| {
                let mut all = [0f64; 12];
                x[0].to_kind(Kind::Double).copy_data(&mut all, 12);
                vec![&x[0] * all[5]]
            },
            &|_, x| vec![&x[0] * x[0].relu().to_string(80).unwrap().len() as f64],
        ];
        for model in reads {
            let stats = beside_eager(&[], &[vec![x.copy()], vec![x.copy()]], model);
            assert_eq!(stats.fused_calls, 0, "{stats:?}");
        }
    }
}

#[test]
fn calls_of_elements_that_overlap_keep_the_order_of_dimensions() {
    for device in devices() {
        // libtorch lays out what it computes by the strides of what it reads.
        let complex = |_: &[Tensor], x: &[Tensor]| {
            let windows = x[0].as_strided([13, 4, 16], [1, 8, 1], 1);
            vec![Tensor::complex(&windows, &windows)]
        };
        let inputs = [0, 1].map(|_| vec![iota(&[54], device)]);
        beside_eager(&[], &inputs, &complex);
        let fused = tilefuse::fuse(|x: &[Tensor]| complex(&[], x));
        for call in &inputs {
            let ours = tch::no_grad(|| fused.call(call)).unwrap();
            assert_eq!(ours[0].stride(), [1, 208, 13]);
        }
    }
}

/// What an operator reads of memory that it writes as another argument depends on the order in which libtorch writes, unless each element
/// is computed of the same elements alone: such calls run eager. On a GPU they have no order.
#[test]
fn what_is_written_is_read_as_another_argument() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let device = Device::Cpu;
    let x = || -> Vec<Vec<Tensor>> { (1..5).map(|factor| vec![iota(&[6, 4], device) * factor]).collect() };
    let eager = |own: &[Tensor], model: &Model| {
        let stats = beside_eager(own, &x(), model);
        assert!(stats.fused_calls == 0 && stats.eager_calls.len() == 1, "{stats:?}");
        let reason = stats.eager_calls.keys().next().cloned().unwrap_or_default();
        assert!(
            reason.contains("reads elements that it writes as another argument: pass a copy"),
            "{reason}"
        );
    };
    eager(&[], &|_, x| {
        let mut y = &x[0] * 2.0;
        let (mask, source) = (x[0].gt(0.0), y.shallow_clone());
        vec![y.masked_scatter_(&mask, &source) * 1.5]
    });
    eager(&[], &|_, x| {
        let rows = Tensor::from_slice(&[1i64, 2, 0, 3, 5, 4]);
        let mut column = x[0].select(1, 0);
        let values = column.slice(0, 0, 6, 1);
        vec![column.index_put_(&[Some(&rows)], &values, false) + 1.0]
    });
    let statistics = [iota(&[4], device).abs() + 0.5, iota(&[4], device).abs() + 1.0];
    eager(&statistics, &|own, x| {
        vec![x[0].batch_norm(
            Some(&own[0]),
            None::<&Tensor>,
            Some(&own[0]),
            Some(&own[1]),
            true,
            0.5,
            1e-5,
            false,
        )]
    });
    // Of a type that libtorch alone computes.
    eager(&[], &|_, x| {
        let y = Tensor::complex(&x[0].narrow(0, 0, 4), &x[0].narrow(0, 1, 4));
        let _ = (&y * 2.0).mm_out(&y, &y.tr());
        vec![y.view_as_real() * 1.0]
    });
    // Element by element.
    is_fused(&[], &x()[0], &|_, x| {
        let mut y = &x[0] * 2.0;
        let same = y.shallow_clone();
        let _ = y.g_add_(&same);
        let _ = Tensor::exp_out(&y, &same);
        vec![y * 1.5]
    });
}

/// A tensor whose memory is exchanged outside of operators is not followed.
#[test]
fn the_memory_of_a_tensor_is_exchanged() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let x =
            || -> Vec<Vec<Tensor>> { (1..5).map(|factor| vec![iota(&[2, 3], device) * factor]).collect() };
        let own = [iota(&[2, 3], device)];
        let computed: &Model = &|_, x| {
            let (mut y, z) = (&x[0] * 2.0, &x[0] * 3.0);
            y.set_data(&z);
            vec![y * 1.0]
        };
        let weight: &Model = &|own, x| {
            let mut y = &x[0] * 2.0;
            y.set_data(&own[0]);
            vec![y * 1.0]
        };
        let own_view: &Model = &|_, x| {
            let mut y = &x[0] * 2.0;
            y.set_data(&y.tr());
            vec![y * 1.0]
        };
        for model in [computed, weight, own_view] {
            let stats = beside_eager(&own, &x(), model);
            assert_eq!(stats.fused_calls, 0, "{stats:?}");
        }
    }
}

/// Copies of elements around an operand, into a tensor that is there.
#[test]
fn strides_over_a_storage_into_another_tensor() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let model: &Model = &|_, x| {
            let y = Tensor::zeros([4, 6], (Kind::Float, x[0].device()));
            let _ = Tensor::as_strided_copy_out(&y, &x[0], [4, 6], [1, 4], 0);
            vec![y + 1.0]
        };
        let stats = beside_eager(&[], &[1, 2, 3].map(|factor| vec![iota(&[6, 4], device) * factor]), model);
        assert_eq!(stats.fused_calls, 0, "{stats:?}");
    }
}

/// `data()` gives a tensor of the same memory past libtorch's dispatcher: it is a view by its strides.
#[test]
fn memory_under_another_tensor() {
    for device in devices() {
        let x = || [iota(&[4, 6], device)];
        let own = || [iota(&[4, 6], device) + 0.5];
        is_fused(&[], &x(), &|_, x| {
            let y = &x[0] * 2.0;
            let mut under = y.tr().data();
            let _ = under.f_add_scalar_(1.0).unwrap();
            vec![&y * 3.0, under.narrow(0, 1, 2) + 1.0]
        });
        is_fused(&[], &x(), &|_, x| vec![x[0].data() + 1.0, x[0].narrow(1, 2, 3).data() * 2.0]);
        is_fused(&[], &x(), &|_, x| {
            let _ = x[0].data().f_mul_scalar_(3.0).unwrap();
            vec![&x[0] + 1.0]
        });
        is_fused(&own(), &x(), &|own, x| vec![&own[0] * 2.0, own[0].data() * &x[0]]);
        is_fused(&own(), &x(), &|own, x| {
            let _ = own[0].narrow(0, 1, 2).data().f_mul_(&x[0].narrow(0, 0, 2)).unwrap();
            vec![&own[0] + 1.0]
        });
        is_fused(&[], &x(), &|_, x| {
            let y = &x[0] * 2.0;
            vec![y.data(), y.narrow(0, 2, 1).data(), y]
        });
        let constant: &Model = &|_, x| {
            let mut ones = Tensor::ones([4, 6], (Kind::Float, x[0].device()));
            let under = ones.data();
            let _ = ones.f_add_(&x[0]).unwrap();
            vec![&under * 2.0, ones * 3.0]
        };
        beside_eager(&[], &[x().into(), vec![&x()[0] + 1.0], vec![&x()[0] + 2.0]], constant);
    }
}

/// Views by operators that are no rearrangement of their own: a write through them goes where their strides say.
#[test]
fn writes_through_views_of_any_operator() {
    for device in devices() {
        let x = || [iota(&[4, 6], device)];
        is_fused(&[], &x(), &|_, x| {
            let y = &x[0] * 2.0;
            let turned = Tensor::einsum("ij->ji", &[&y], None::<&[i64]>);
            let _ = turned.narrow(0, 1, 2).f_add_scalar_(1.0).unwrap();
            vec![y.relu(), turned * 1.0]
        });
        is_fused(&[], &x(), &|_, x| {
            let mut windows = x[0].unfold(1, 2, 3);
            let _ = windows.f_mul_scalar_(2.0).unwrap();
            vec![&x[0] + 1.0, windows.narrow(0, 0, 1) + 1.0]
        });
        // Windows that overlap are written by nobody, and read what was written.
        is_fused(&[], &x(), &|_, x| {
            let mut y = &x[0] * 2.0;
            let windows = y.unfold(1, 3, 1);
            let before = &windows + 1.0;
            let _ = y.f_add_scalar_(1.0).unwrap();
            vec![before * windows]
        });
    }
}

/// What stands for a copy that a plan leaves out may begin where elements of a wider type may not.
#[test]
fn elements_are_read_as_those_of_a_wider_type() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let bits: &Model = &|_, x| vec![x[0].copy().view_dtype(Kind::Double)];
        let complex: &Model = &|_, x| vec![Tensor::view_as_complex(&x[0].copy()).view_as_real() * 2.0];
        let computed: &Model = &|_, x| {
            let y = x[0].exp().flatten(0, 1).narrow(0, 1, 4);
            vec![Tensor::view_as_complex(&y.copy().view([2, 2])).abs()]
        };
        for model in [bits, complex, computed] {
            for offset in [3, 2, 1] {
                let inputs = [iota(&[20], device).narrow(0, offset, 8).view([4, 2])];
                is_fused(&[], &inputs, model);
            }
            let at = |offset| vec![iota(&[20], device).narrow(0, offset, 8).view([4, 2])];
            let _ = beside_eager(&[], &[at(2), at(2), at(3), at(4), at(5)], model);
        }
    }
}

/// What writing operators compute of complex numbers has the strides of what is written.
#[test]
fn writes_of_complex_numbers_keep_strides() {
    setup();
    let _no_grad = tch::no_grad_guard();
    for device in devices() {
        let x = || [iota(&[4, 4], device), iota(&[4, 4], device).gt(0.0)];
        is_fused(&[], &x(), &|_, x| {
            let mut y = Tensor::complex(&x[0].tr(), &x[0].tr());
            let _ = y.masked_fill_(&x[1], 3.0);
            vec![y.tr().view([16]).view_as_real() * 1.0, y.view_as_real() * 1.0]
        });
        is_fused(&[], &x(), &|_, x| {
            let mut y = Tensor::complex(&x[0].tr(), &x[0].tr());
            let _ = y.tril_(1);
            vec![y.neg().view_as_real() * 1.0]
        });
    }
}
