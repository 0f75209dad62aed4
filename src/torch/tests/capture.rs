use tch::nn::{self, Module};
use tch::{CModule, Device, IndexOp, Kind, Tensor};

use super::*;

fn kinds(trace: &Trace) -> Vec<RefusalKind> {
    trace.refusals.iter().map(|r| r.kind).collect()
}

fn refused_for(f: impl FnOnce(&Tensor) -> Tensor) -> Vec<RefusalKind> {
    let x = iota(&[4, 4]);
    kinds(&record(&[x], |x| vec![f(&x[0])]).1)
}

#[test]
fn mlp_has_its_operators_parameters_and_names() {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let net = nn::seq()
        .add(nn::linear(&root / "a", 4, 8, Default::default()))
        .add_fn(|x| x.gelu("none"))
        .add(nn::linear(&root / "b", 8, 2, Default::default()));
    let named: Vec<_> = vs.variables().into_iter().collect();
    let x = iota(&[3, 4]);
    let (outs, trace) = record_with(&[x.shallow_clone()], &named, |x| vec![net.forward(&x[0])]);
    assert_eq!(live_ops(&trace), ["linear", "gelu", "linear"]);
    let mut names: Vec<_> = trace.params.iter().map(|(_, n)| n.clone().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["a.bias", "a.weight", "b.bias", "b.weight"]);
    assert_eq!(trace.refusals, []);
    assert_eq!(trace.arg(&trace.events[1], "approximate"), Some(&Arg::Str("none".into())));
    let expected = tch::no_grad(|| net.forward(&x));
    assert_eq!(outs[0], expected);
    assert_eq!(replay(&trace, &[&x + 1.0])[0], tch::no_grad(|| net.forward(&(&x + 1.0))));
    assert_eq!(trace.outputs.len(), 1);
    assert_eq!(trace.info(trace.outputs[0]).unwrap().origin, Origin::Event(2));
}

#[test]
fn the_end_of_another_capture_hides_no_access() {
    let x = iota(&[4]);
    let other = x.shallow_clone();
    let (_, trace) = record(&[x], |x| {
        // A call behind the other capture's end would watch the input anew.
        let y = &x[0] * 2.0;
        let ends = std::thread::spawn(move || {
            let (_, trace) = record(&[other], |x| vec![&x[0] + 1.0]);
            kinds(&trace)
        });
        assert_eq!(ends.join().unwrap(), []);
        let _ = x[0].data_ptr();
        vec![y]
    });
    assert_eq!(kinds(&trace), [RefusalKind::MemoryAccess]);
}

#[test]
fn an_unnamed_parameter_is_read_live() {
    let w = iota(&[4]);
    let (_, trace) = record(&[iota(&[4])], |x| vec![&x[0] * &w]);
    assert_eq!(trace.params.len(), 1);
    assert_eq!(trace.params[0].1, None);
    let _ = w.shallow_clone().fill_(2.0);
    assert_eq!(replay(&trace, &[iota(&[4])])[0], iota(&[4]) * 2.0);
}

#[test]
fn a_write_through_a_view_is_seen() {
    let (_, trace) = record(&[iota(&[4, 4])], |x| {
        let y = x[0].relu();
        let _ = y.narrow(0, 1, 2).g_add_(&x[0].narrow(0, 0, 2));
        vec![y]
    });
    assert_eq!(live_ops(&trace), ["relu", "narrow", "narrow", "add_"]);
    let add = &trace.events[3];
    assert_eq!(add.writes, [0]);
    assert_eq!(add.outs[0], add.args[0]);
    let storage = |a: &Arg| trace.info(a.tensors().next().unwrap()).unwrap().storage;
    assert_eq!(storage(&add.args[0]), storage(&trace.events[0].outs[0]));
    assert_eq!(trace.storages[storage(&add.args[0]).0 as usize].writes, [3]);
    assert_eq!(trace.schema(add).unwrap().alias_of, [Some(0)]);
    assert_eq!(trace.refusals, []);
}

#[test]
fn constants_carry_the_value_that_each_call_saw() {
    let model = |x: &Tensor| {
        let mask = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu));
        let _ = mask.i(1..3).fill_(5.0);
        let y = x + &mask;
        let _ = mask.i(0..1).fill_(7.0);
        let n = Tensor::from_slice(&[3i64]).sum(Kind::Int64).int64_value(&[]);
        (y * &mask).narrow(0, 0, n)
    };
    let (outs, trace) = record(&[iota(&[4, 4])], |x| vec![model(&x[0])]);
    assert_eq!(trace.refusals, []);
    assert_eq!(live_ops(&trace), ["add", "mul", "narrow"]);
    assert_eq!(outs[0], model(&iota(&[4, 4])));
    let other = iota(&[4, 4]).cos();
    assert_eq!(replay(&trace, &[other.shallow_clone()])[0], model(&other));
}

#[test]
fn a_constant_buffer_written_with_computed_data_is_followed() {
    let model = |x: &Tensor| {
        let buffer = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
        let row = buffer.select(0, 2);
        row.shallow_clone().copy_(&x.select(0, 1));
        buffer + 1.0
    };
    let (_, trace) = record(&[iota(&[4, 4])], |x| vec![model(&x[0])]);
    assert_eq!(trace.refusals, []);
    assert_eq!(live_ops(&trace), ["select", "select", "copy_", "add"]);
    let buffer = trace.events[1].args[0].tensors().next().unwrap();
    let before = trace.constant(buffer, 1).unwrap().unwrap();
    assert_eq!(before, Tensor::ones([4, 4], (Kind::Float, Device::Cpu)));
    assert!(trace.constant(buffer, trace.events.len()).unwrap().is_none());
}

#[test]
fn a_returned_constant_is_a_copy() {
    let (outs, trace) = record(&[iota(&[2])], |_| vec![Tensor::ones([3], (Kind::Float, Device::Cpu))]);
    let _ = outs[0].shallow_clone().fill_(9.0);
    let value = trace.constant(trace.outputs[0], trace.events.len()).unwrap().unwrap();
    assert_eq!(value, Tensor::ones([3], (Kind::Float, Device::Cpu)));
}

#[test]
fn data_that_leaves_the_tensors_is_refused() {
    assert_eq!(refused_for(|x| x * x.sum(Kind::Float).double_value(&[])), [RefusalKind::DataRead]);
    assert_eq!(refused_for(|x| if x.equal(&x.relu()) { x + 1.0 } else { x.neg() }), [RefusalKind::DataRead]);
    assert_eq!(refused_for(|x| x.nonzero()), [RefusalKind::DataShape]);
    assert_eq!(refused_for(|x| x.masked_select(&x.gt(3.0))), [RefusalKind::DataShape]);
    assert_eq!(refused_for(|x| x.index(&[Some(x.gt(3.0))])), [RefusalKind::DataShape]);
    assert_eq!(refused_for(|x| x.index(&[Some(x.to_kind(Kind::Int64).select(0, 0))])), []);
    assert_eq!(refused_for(|x| x.zeros_like() * x.ones_like().sum(Kind::Float).double_value(&[])), []);
}

#[test]
fn what_guards_do_not_compare_is_refused() {
    let read = |x: Tensor, f: fn(&Tensor) -> Tensor| kinds(&record(&[x], |x| vec![f(&x[0])]).1);
    let quantised = || iota(&[4]).quantize_per_tensor(0.5, 3, Kind::QInt8);
    let scaled = |x: &Tensor| x.int_repr().to_kind(Kind::Float) * x.q_scale();
    assert_eq!(read(quantised(), scaled), [RefusalKind::DataRead]);
    let moved = |x: &Tensor| x.int_repr() - x.q_zero_point();
    assert_eq!(read(quantised(), moved), [RefusalKind::DataRead]);
    assert_eq!(read(quantised(), |x| x.dequantize() * 2.0), []);
    let sparse = || iota(&[4, 4]).to_sparse(None, None::<&[i64]>, None);
    let ordered =
        |x: &Tensor| if x.is_coalesced() { x.to_dense(None, false) } else { x.to_dense(None, false) + 1.0 };
    assert_eq!(read(sparse(), ordered), [RefusalKind::DataRead]);
    let hybrid = |x: &Tensor| x.to_dense(None, false) * x.sparse_dim() as f64;
    assert_eq!(read(sparse(), hybrid), [RefusalKind::DataRead]);
}

#[test]
fn data_copied_out_by_tch_is_refused() {
    let vec_of = |t: &Tensor| Vec::<f32>::try_from(t.flatten(0, -1)).unwrap();
    assert_eq!(refused_for(|x| x * f64::from(vec_of(x)[1])), [RefusalKind::MemoryAccess]);
    assert_eq!(refused_for(|x| x * f64::from(vec_of(&x.relu())[1])), [RefusalKind::MemoryAccess]);
    assert_eq!(refused_for(|x| x * f64::from(vec_of(&x.tr())[1])), [RefusalKind::MemoryAccess]);
    let mut row = [0f32; 4];
    assert_eq!(
        refused_for(|x| {
            x.select(0, 0).copy_data(&mut row, 4);
            x.relu()
        }),
        [RefusalKind::MemoryAccess]
    );
    assert_eq!(refused_for(|x| x.to_kind(Kind::Float).relu()), []);
    let constant = |x: &Tensor| x * f64::from(vec_of(&Tensor::ones([2], (Kind::Float, Device::Cpu)))[1]);
    assert_eq!(refused_for(constant), []);
    let w = iota(&[4]);
    assert_eq!(refused_for(|x| x * f64::from(vec_of(&w)[1])), [RefusalKind::MemoryAccess]);
    assert_eq!(
        refused_for(|x| x * f64::from(Vec::<f32>::try_from(&w).unwrap()[1])),
        [RefusalKind::MemoryAccess]
    );
    assert_eq!(refused_for(|x| x * w.to_kind(Kind::Float)), []);
}

#[test]
fn reading_after_a_capture_is_nobodys_business() {
    let x = iota(&[4]);
    let (outs, _) = record(&[x.shallow_clone()], |x| vec![x[0].relu()]);
    assert_eq!(Vec::<f32>::try_from(&outs[0]).unwrap(), Vec::<f32>::try_from(&x).unwrap());
}

#[test]
fn metadata_changes_and_kept_tensors_are_refused() {
    assert!(
        refused_for(|x| {
            let y = x.relu();
            let _ = y.shallow_clone().t_();
            y
        })
        .contains(&RefusalKind::MetadataChange)
    );
    let mut kept = Tensor::new();
    assert_eq!(
        refused_for(|x| {
            kept = x.relu();
            &kept + 1.0
        }),
        [RefusalKind::Escapes]
    );
    let mut mask = Tensor::new();
    assert_eq!(
        refused_for(|x| {
            mask = x.ones_like();
            x * &mask
        }),
        []
    );
}

#[test]
fn inputs_and_memory_that_the_model_keeps_are_refused() {
    let kept = std::cell::RefCell::new(Tensor::new());
    let keep = |t: Tensor| *kept.borrow_mut() = t;
    let input = [RefusalKind::KeepsInput];
    assert_eq!(
        refused_for(|x| {
            keep(x.shallow_clone());
            x.relu()
        }),
        input
    );
    // Aliases that no operator makes.
    assert_eq!(
        refused_for(|x| {
            keep(x.data());
            x.relu()
        }),
        input
    );
    assert_eq!(
        refused_for(|x| {
            let y = x.relu();
            keep(y.data());
            y + 1.0
        }),
        [RefusalKind::Escapes]
    );
    assert_eq!(
        refused_for(|x| {
            let y = x.relu().data();
            keep(y.shallow_clone());
            y + 1.0
        }),
        [RefusalKind::Escapes]
    );
    // What is kept no longer, was kept before, is returned, or is a part of an input is nobody's loss.
    keep(Tensor::new());
    let passed = |x: &Tensor| {
        let _ = x.data();
        let (row, y) = (x.select(0, 0), x.relu());
        let _ = y.data();
        row + y
    };
    assert_eq!(refused_for(passed), []);
    assert_eq!(refused_for(Tensor::shallow_clone), []);
    assert_eq!(refused_for(|x| x.select(0, 0)), []);
    let x = iota(&[4, 4]);
    let inputs = [x.shallow_clone(), x.shallow_clone(), x.select(0, 0), x.data()];
    let (_, trace) = record(&inputs, |x| vec![&x[0] + &x[2], x[1].shallow_clone(), x[3].select(0, 1)]);
    assert_eq!(kinds(&trace), []);
}

#[test]
fn random_calls_are_marked_unless_switched_off() {
    let (_, trace) = record(&[iota(&[4])], |x| {
        vec![
            x[0].dropout(0.5, true).dropout(0.5, false)
                + x[0].rand_like()
                + Tensor::rand([4], (Kind::Float, Device::Cpu)),
        ]
    });
    let random: Vec<_> = trace.events.iter().filter(|e| e.random).map(|e| e.op.as_str()).collect();
    assert_eq!(random, ["aten::dropout", "aten::rand_like", "aten::rand"]);
    assert!(trace.events.iter().all(|e| !e.constant));
    assert_eq!(trace.refusals, []);
}

#[test]
fn running_statistics_are_written_in_training() {
    let vs = nn::VarStore::new(Device::Cpu);
    let bn = nn::batch_norm1d(vs.root(), 4, Default::default());
    for train in [false, true] {
        let (_, trace) = record(&[iota(&[3, 4])], |x| vec![nn::ModuleT::forward_t(&bn, &x[0], train)]);
        let event = trace.events.iter().find(|e| e.op == "aten::batch_norm").unwrap();
        assert_eq!(event.writes, if train { vec![3, 4] } else { vec![] });
    }
}

#[test]
fn panics_and_nesting_leave_the_thread_usable() {
    let x = [iota(&[4])];
    let run = || record(&x, |_| panic!("no model"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    assert!(!is_capturing());
    let (_, trace) = record(&x, |x| {
        assert!(is_capturing());
        let inner = capture(x, &[], || (), |()| Vec::new());
        assert!(matches!(inner, Err(crate::Error::NestedCapture)));
        assert!(x[0].f_matmul(&iota(&[3, 3])).is_err());
        vec![x[0].relu()]
    });
    assert_eq!(live_ops(&trace), ["relu"]);
    // With other data a call may not fail.
    assert_eq!(trace.refusals.iter().map(|refusal| refusal.kind).collect::<Vec<_>>(), [RefusalKind::Failed]);
}

#[test]
fn autograd_goes_on_during_a_capture() {
    let x = iota(&[4]).set_requires_grad(true);
    let (y, trace) =
        capture(&[x.shallow_clone()], &[], || (&x * &x).sum(Kind::Float), |y| vec![y.shallow_clone()])
            .unwrap();
    y.backward();
    assert_eq!(x.grad(), iota(&[4]) * 2.0);
    assert_eq!(trace.refusals, []);
}

#[test]
fn a_torchscript_file_is_traced_through() {
    let x = iota(&[2, 6]);
    let mut body = |x: &[Tensor]| {
        let n = x[0].size()[1];
        let half = x[0].narrow(1, 0, n / 2);
        let order = x[0].select(1, 0).argsort(0, false);
        vec![(half.index(&[Some(order)]).reshape([-1, 3]) + 1.0).softmax(-1, Kind::Float)]
    };
    let module = CModule::create_by_tracing("M", "forward", &[x.shallow_clone()], &mut body).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pt");
    module.save(&file).unwrap();
    let module = CModule::load(&file).unwrap();
    for _ in 0..3 {
        let (outs, trace) = record(&[x.shallow_clone()], |x| vec![module.forward_ts(x).unwrap()]);
        assert_eq!(trace.refusals, []);
        assert_eq!(*live_ops(&trace).last().unwrap(), "softmax");
        let unread = |e: &Event| e.args.iter().any(|a| matches!(a, Arg::Other(_)));
        assert!(!trace.events.iter().any(unread));
        assert_eq!(outs[0], body(&[x.shallow_clone()])[0]);
        let other = x.cos();
        assert_eq!(replay(&trace, &[other.shallow_clone()])[0], body(&[other])[0]);
    }
}

#[test]
fn computed_tensors_are_freed_and_their_identities_not_used_again() {
    let (outs, trace) = record(&[iota(&[1000])], |x| {
        let mut y = x[0].relu();
        for _ in 0..50 {
            y = y.neg();
        }
        vec![y]
    });
    assert_eq!(trace.tensors.len(), 52);
    assert_eq!(trace.storages.len(), 52);
    assert!(trace.tensor(trace.outputs[0]).is_none());
    assert_eq!(replay(&trace, &[iota(&[1000])])[0], outs[0]);
}

#[test]
fn values_read_out_of_the_model_are_assumed() {
    let scale = Tensor::from(2.0f32).set_requires_grad(false);
    let named = [("scale".to_owned(), scale.shallow_clone())];
    let model = |x: &[Tensor]| vec![&x[0] * scale.exp().double_value(&[])];
    for named in [&named[..], &[]] {
        let (_, trace) = record_with(&[iota(&[4])], named, model);
        assert_eq!(trace.refusals, []);
        let (t, version) = trace.assumed[0];
        let still = || check_versions([trace.tensor(t).unwrap()], &[version]);
        assert!(still());
        scale.shallow_clone().copy_(&Tensor::from(3.0f32));
        assert!(!still());
    }
    let counter = Tensor::from(0i64);
    let (_, trace) =
        record(&[iota(&[4])], |x| vec![&x[0] * counter.shallow_clone().g_add_scalar_(1).int64_value(&[])]);
    assert_eq!(kinds(&trace), [RefusalKind::DataRead]);
}
