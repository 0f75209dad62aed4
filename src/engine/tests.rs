use tch::{Device, Kind, Tensor};

/// Calls a fused model on several draws, with `between` in between, and compares each call with eager.
fn follows_eager(model: impl Fn(&[Tensor]) -> Vec<Tensor>, between: impl Fn()) {
    let fused = crate::fuse(&model);
    let _no_grad = tch::no_grad_guard();
    for call in 0..3 {
        let x = [Tensor::randn([4], (Kind::Float, Device::Cpu))];
        let (eager, ours) = (model(&x), fused.call(&x).unwrap());
        for (a, b) in eager.iter().zip(&ours) {
            assert!(a.allclose(b, 1e-5, 1e-6, false), "call {call}: eager {a}, fused {b}");
        }
        between();
    }
    assert_eq!(fused.stats().fused_calls + fused.stats().captures, 3);
    assert!(fused.stats().eager_calls.is_empty(), "{:?}", fused.stats());
}

#[test]
fn a_buffer_is_filled_by_hand_then_by_constants_then_with_computed_data() {
    let model = |x: &[Tensor]| {
        let buffer = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]);
        let y = &x[0] + &buffer;
        let _ = buffer.narrow(0, 0, 1).fill_(9.0);
        let z = &x[0] * &buffer;
        buffer.narrow(0, 1, 2).copy_(&x[0].narrow(0, 0, 2));
        vec![y, z, buffer * 2.0]
    };
    follows_eager(model, || ());
}

#[test]
fn a_lone_number_of_the_model_is_compiled_in_until_it_changes() {
    let scale = Tensor::from(2f32);
    let model = |x: &[Tensor]| vec![&x[0] * &scale, &x[0] + scale.exp().double_value(&[])];
    follows_eager(model, || ());
    follows_eager(model, || scale.shallow_clone().copy_(&(&scale + 1.0)));
}
