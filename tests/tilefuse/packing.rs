//! Prepacked weights of products on the host.

use tch::{Device, Kind, Tensor};
use tilefuse::{Fused, Options, Prepack, Products};

use crate::common::{THREADS, setup};

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Two layers over weights that the model has.
struct Model {
    weights: [Tensor; 3],
}

impl Model {
    fn new([wide, narrow]: [i64; 2]) -> Model {
        let draw = |shape: [i64; 2]| Tensor::randn(shape, F32) * 0.2;
        Model { weights: [draw([wide, narrow]), Tensor::randn([wide], F32), draw([wide, narrow])] }
    }

    fn forward(&self, x: &[Tensor]) -> Vec<Tensor> {
        let [first, bias, second] = &self.weights;
        vec![x[0].linear(first, Some(bias)).relu().matmul(second) + &x[0]]
    }
}

fn fused(shape: [i64; 2], prepack_weights: Prepack) -> Fused<Model> {
    let options = Options { products: Products::Generated, prepack_weights, ..Options::default() };
    tilefuse::fuse_with(Model::new(shape), options)
}

fn call(fused: &Fused<Model>, x: &Tensor) -> Tensor {
    fused.run_with(&[x.shallow_clone()], |model, x| model.forward(x)).unwrap().remove(0)
}

/// Whether a call gives what the model's weights as they are give.
#[track_caller]
fn check(fused: &Fused<Model>, x: &Tensor) {
    let exact = &fused.model().forward(&[x.shallow_clone()])[0];
    let apart = (call(fused, x) - exact).abs().max().double_value(&[]);
    assert!(apart < 1e-4, "{apart}");
}

fn packed_bytes(fused: &Fused<Model>, x: &Tensor) -> u64 {
    fused.explain_with(&[x.shallow_clone()], |model, x| model.forward(x)).unwrap().packed_bytes
}

#[test]
fn results_are_those_of_the_weights_as_they_lie() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for shape in [[65, 33], [64, 32], [7, 5], [100, 130]] {
        for rows in [3, 8, 40] {
            let x = Tensor::randn([rows, shape[1]], F32);
            let packing = fused(shape, Prepack::Always);
            check(&packing, &x);
            check(&packing, &x);
            assert_eq!(packing.stats().fused_calls, 1);
            // As wide as covers the columns with the fewest zeros: here 32, or the next power of two where there are fewer.
            let padded = |n: i64| n.div_euclid(32) * 32 + (n % 32 > 0) as i64 * 32;
            let panels =
                |n: i64| if n < 32 { n.unsigned_abs().next_power_of_two() as i64 } else { padded(n) };
            let elements = panels(shape[0]) * shape[1] + panels(shape[1]) * shape[0];
            assert_eq!(packed_bytes(&packing, &x), 4 * elements as u64, "{shape:?}");
            let plain = fused(shape, Prepack::Never);
            check(&plain, &x);
            check(&plain, &x);
            assert_eq!(packed_bytes(&plain, &x), 0);
        }
    }
}

/// A write that nothing counts, of one element, shows in the next call: weights are prepacked only where it is seen.
#[test]
fn writes_that_nothing_counts_show_in_the_next_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    for products in [Products::Library, Products::Generated, Products::Predicted, Products::Measured] {
        // Compared with a copy, and of pages that are watched.
        for [wide, narrow] in [[65, 33], [300, 130]] {
            let options = Options { products, ..Options::default() };
            let fused = tilefuse::fuse_with(Model::new([wide, narrow]), options);
            let x = Tensor::randn([9, narrow], F32);
            check(&fused, &x);
            check(&fused, &x);
            if products == Products::Generated {
                assert_eq!(packed_bytes(&fused, &x) > 0, Prepack::Tracked.is_possible());
            }
            let (first, second) = (&fused.model().weights[0], &fused.model().weights[2]);
            let _ = first.data().narrow(0, 41, 1).narrow(1, 7, 1).fill_(3.0);
            check(&fused, &x);
            let elements = second.data_ptr().cast::<f32>();
            // SAFETY: the element is one of the tensor's, and no other thread uses it.
            unsafe { *elements.add((narrow * wide / 2) as usize) = -2.0 };
            check(&fused, &x);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), 4.5_f32.to_ne_bytes().repeat(100)).unwrap();
            let mut file = std::fs::File::open(file.path()).unwrap();
            // SAFETY: the elements are the tensor's, and no other thread uses them.
            let row = unsafe { std::slice::from_raw_parts_mut(elements.add(900).cast::<u8>(), 400) };
            std::io::Read::read_exact(&mut file, row).unwrap();
            check(&fused, &x);
            let stats = fused.stats();
            assert_eq!((stats.captures, stats.fused_calls), (1, 4), "{stats:?}");
        }
    }
}

/// Others can write the pages of a file, unseen.
#[test]
fn weights_that_a_file_has_are_not_prepacked() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let shape = [300, 130];
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut model = Model::new(shape);
    let mut bytes = vec![0; 4 * 300 * 130];
    model.weights[0].contiguous().view([-1]).copy_data_u8(&mut bytes, 300 * 130);
    std::fs::write(file.path(), &bytes).unwrap();
    let name = file.path().to_str().unwrap();
    model.weights[0] = Tensor::from_file(name, true, 300 * 130, F32).view(shape);
    let fused = tilefuse::fuse_with(model, Options { products: Products::Generated, ..Options::default() });
    let x = Tensor::randn([9, 130], F32);
    check(&fused, &x);
    check(&fused, &x);
    assert_eq!(packed_bytes(&fused, &x), 0);
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::File::options().write(true).open(file.path()).unwrap(),
        &5.0_f32.to_ne_bytes(),
        4 * 20_000,
    )
    .unwrap();
    check(&fused, &x);
    assert_eq!(fused.stats().fused_calls, 2);
}

#[test]
fn a_write_shows_in_the_next_call() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let x = Tensor::randn([9, 33], F32);
    let fused = fused([65, 33], Prepack::Always);
    check(&fused, &x);
    check(&fused, &x);
    let mut weight = fused.model().weights[0].shallow_clone();
    let _ = weight.neg_();
    check(&fused, &x);
    weight.copy_(&Tensor::randn([65, 33], F32));
    check(&fused, &x);
    // One element, which the version counts.
    let _ = weight.narrow(0, 40, 1).narrow(1, 20, 1).fill_(3.0);
    check(&fused, &x);
    // All of it, which nothing counts.
    let _ = fused.model().weights[2].data().f_mul_scalar_(2.0).unwrap();
    check(&fused, &x);
    assert_eq!(fused.stats().captures, 1);
}

#[test]
fn all_plans_of_a_model_read_the_same_copies() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let fused = fused([65, 33], Prepack::Always);
    let inputs: Vec<Tensor> = (3..9).map(|rows| Tensor::randn([rows, 33], F32)).collect();
    for x in &inputs {
        check(&fused, x);
        check(&fused, x);
    }
    let bytes = packed_bytes(&fused, &inputs[0]);
    assert!(bytes > 0 && inputs.iter().all(|x| packed_bytes(&fused, x) == bytes));
    // A plan whose call comes after another one's call that packed a weight anew finds it so.
    for x in &inputs {
        let mut weight = fused.model().weights[0].shallow_clone();
        let _ = weight.f_neg_().unwrap();
        for other in &inputs {
            check(&fused, other);
        }
        check(&fused, x);
    }
    assert_eq!(fused.stats().captures, 6);
}

#[test]
fn weights_that_are_written_at_every_call_are_not_packed_for_long() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.read();
    let x = Tensor::randn([9, 33], F32);
    let fused = fused([65, 33], Prepack::Always);
    for _ in 0..12 {
        check(&fused, &x);
        let mut weight = fused.model().weights[0].shallow_clone();
        let _ = weight.f_mul_scalar_(0.9).unwrap();
    }
    assert_eq!(packed_bytes(&fused, &x), 0);
    assert_eq!(fused.stats().captures, 2);
}

#[test]
fn threads_do_not_change_the_bits() {
    setup();
    let _no_grad = tch::no_grad_guard();
    let _threads = THREADS.write();
    let before = tch::get_num_threads();
    let (x, fused) = (Tensor::randn([70, 33], F32), fused([300, 33], Prepack::Always));
    let _ = call(&fused, &x);
    let with = |threads: i32| {
        tch::set_num_threads(threads);
        let _ = call(&fused, &x);
        call(&fused, &x)
    };
    let (one, two, three) = (with(1), with(2), with(3));
    tch::set_num_threads(before);
    assert!(one.equal(&two) && one.equal(&three));
}
