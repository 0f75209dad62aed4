//! Kernels that are written by hand: launched, interpreted, and refused.

use tch::{Device, Kind, Tensor};
use tilefuse::block::interp::{Fault, InterpError};
use tilefuse::{Arg, Error, Kernel, LaunchError, args};

use crate::common::{has_gpu, setup};

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

const VECTOR_ADD: &str = include_str!("../../kernels/vector_add.tile");
const SOFTMAX: &str = include_str!("../../kernels/softmax.tile");
const LAYER_NORM: &str = include_str!("../../kernels/layer_norm.tile");

fn kernel(text: &str) -> Kernel {
    setup();
    Kernel::parse(text).unwrap()
}

/// What a kernel leaves in `out`, launched and interpreted.
fn results(kernel: &Kernel, grid: i64, out: &Tensor, args: &[Arg<'_>]) -> [Tensor; 2] {
    let read = || {
        let result = out.copy();
        let _ = out.shallow_clone().fill_(f64::NAN);
        result
    };
    kernel.launch(grid, args).unwrap();
    let launched = read();
    kernel.interpret(grid, args).unwrap();
    [launched, read()]
}

/// What rounding may do apart from that of libtorch: a sum of 1024 numbers, one of which is most of it, in 16 lanes.
const ROUNDING: f64 = 1e-6;

/// Close to libtorch, and to f64 at most twice as far as libtorch.
fn check(what: &str, results: [Tensor; 2], eager: &Tensor, wide: &Tensor) {
    let error = |t: &Tensor| (t.to_kind(Kind::Double) - wide).abs().max().double_value(&[]);
    for (result, how) in results.iter().zip(["host", "interpreter"]) {
        assert!(result.allclose(eager, 1.3e-6, 1e-5, false), "{what}, {how}");
        assert!(error(result) <= 2.0 * error(eager) + ROUNDING, "{what}, {how}: {}", error(result));
    }
}

#[test]
fn vector_add() {
    let kernel = kernel(VECTOR_ADD);
    for n in [0, 1, 1023, 1024, 5000] {
        let (x, y) = (Tensor::randn([n], F32), Tensor::randn([n], F32));
        let z = x.empty_like();
        let results = results(&kernel, (n + 1023) / 1024, &z, &args![&x, &y, &z, n]);
        assert!(results.iter().all(|z| z.equal(&(&x + &y))), "{n}");
    }
}

#[test]
fn softmax_of_rows_with_a_stride() {
    let kernel = kernel(SOFTMAX);
    for (rows, cols) in [(1, 1), (7, 50), (33, 1000), (5, 1024)] {
        let wide = Tensor::randn([rows, cols + 3], F32) * 4.0;
        let x = wide.narrow(1, 0, cols);
        let y = wide.zeros_like().narrow(1, 0, cols);
        let results = results(&kernel, rows, &y, &args![&x, &y, cols + 3, cols as i32]);
        let double = x.to_kind(Kind::Double).softmax(-1, Kind::Double);
        check("softmax", results, &x.softmax(-1, Kind::Float), &double);
    }
}

#[test]
fn layer_norm() {
    let kernel = kernel(LAYER_NORM);
    for (rows, cols) in [(1, 2), (9, 100), (40, 768)] {
        let x = Tensor::randn([rows, cols], F32) * 3.0 + 1.0;
        let (w, b) = (Tensor::randn([cols], F32), Tensor::randn([cols], F32));
        let y = x.empty_like();
        let results = results(&kernel, rows, &y, &args![&x, &w, &b, &y, cols, cols as i32, 1e-5f32]);
        let norm = |x: &Tensor, w: &Tensor, b: &Tensor| x.layer_norm([cols], Some(w), Some(b), 1e-5, false);
        let double = |t: &Tensor| t.to_kind(Kind::Double);
        check("layer norm", results, &norm(&x, &w, &b), &norm(&double(&x), &double(&w), &double(&b)));
    }
}

/// Writes `100 z + 10 y + x`, scaled and shifted, at each instance's place.
const AXES: &str = "kernel @axes(%out: ptr<f64> len(24), %scale: f16, %shift: i8, %flip: bool, %big: u64) {
  %x = program_id 0
  %y = program_id 1
  %z = program_id 2
  %two = const 2 : i32
  %three = const 3 : i32
  %ten = const 10 : i32
  %0 = map mul %z, %three
  %1 = map add %0, %y
  %2 = map mul %1, %two
  %3 = map mul %2, %two
  %at = map add %3, %x
  %4 = map mul %z, %ten
  %5 = map add %4, %y
  %6 = map mul %5, %ten
  %7 = map add %6, %x
  %8 = cast %7 f64
  %9 = cast %scale f64
  %10 = cast %shift f64
  %11 = map fma %8, %9, %10
  %12 = map neg %11
  %13 = map select %flip, %12, %11
  %14 = cast %big f64
  %15 = map add %13, %14
  store %out, %at, %15
}";

#[test]
fn grids_of_three_axes_and_scalars_of_many_kinds() {
    setup();
    let kernel = Kernel::parse(AXES).unwrap();
    let out = Tensor::zeros([2, 3, 4], (Kind::Double, Device::Cpu));
    let line = |n: i64, by: i64| Tensor::arange(n, (Kind::Double, Device::Cpu)) * by;
    let index = line(2, 100).view([2, 1, 1]) + line(3, 10).view([1, 3, 1]) + line(4, 1);
    for flip in [false, true] {
        let scale = tilefuse::block::Literal::float(tilefuse::block::Elem::F16, 0.5);
        let args = args![&out, scale, -3i8, flip, 1u64 << 40];
        let expected = (&index * 0.5 - 3.0) * if flip { -1.0 } else { 1.0 } + (1i64 << 40) as f64;
        kernel.launch([4, 3, 2], &args).unwrap();
        assert_eq!(out, expected);
        let _ = out.shallow_clone().zero_();
        kernel.interpret([4, 3, 2], &args).unwrap();
        assert_eq!(out, expected);
    }
}

/// Copies the first 8 elements.
const COPY: &str = "kernel @copy(%x: ptr<f32> align(16) len(8), %y: ptr<f32>, %n: i32) {
  %at = range 0 8
  %v = load %x, %at
  store %y, %at, %v
}";

fn refusal(grid: impl Into<tilefuse::Grid>, args: &[Arg<'_>]) -> LaunchError {
    setup();
    let kernel = Kernel::parse(COPY).unwrap();
    match kernel.launch(grid, args).unwrap_err() {
        Error::Launch { kernel, problem } if kernel == "copy" => *problem,
        other => panic!("{other}"),
    }
}

#[test]
fn misuse_is_named() {
    let x = Tensor::randn([16], F32);
    let y = Tensor::zeros([8], F32);
    let said = |problem: LaunchError| problem.to_string();
    assert_eq!(refusal(1, &args![&x, &y]), LaunchError::Count { expected: 3, found: 2 });
    assert_eq!(said(refusal(1, &args![&x, &y, 1i64])), "%n is i32, the argument is 1 of kind i64");
    assert_eq!(said(refusal(1, &args![&x, &y, &y])), "%n is i32, the argument is a tensor of f32");
    assert_eq!(said(refusal(1, &args![&x, 2.5f32, 1])), "%y is ptr<f32>, the argument is 2.5 of kind f32");
    let half = y.to_kind(Kind::Half);
    assert_eq!(said(refusal(1, &args![&x, &half, 1])), "%y is ptr<f32>, the argument is a tensor of f16");
    let complex = Tensor::zeros([8], (Kind::ComplexFloat, Device::Cpu));
    assert!(said(refusal(1, &args![&x, &complex, 1])).contains("dtype 9"));
    let short = x.narrow(0, 0, 7);
    assert_eq!(
        refusal(1, &args![&short, &y, 1]),
        LaunchError::TooShort { param: "x".into(), needed: 8, found: 7 }
    );
    let spread = x.slice(0, 0, 15, 2);
    assert!(said(refusal(1, &args![&x, &spread, 1])).contains("overlaps"), "{spread:?}");
    let shifted = x.narrow(0, 1, 8);
    assert_eq!(
        refusal(1, &args![&shifted, &y, 1]),
        LaunchError::Misaligned { param: "x".into(), needed: 16, found: 4 }
    );
    let learned = Tensor::randn([8], F32).set_requires_grad(true);
    assert_eq!(refusal(1, &args![&learned, &y, 1]), LaunchError::RequiresGrad { param: "x".into() });
    let sparse = y.to_sparse_sparse_dim(1);
    assert_eq!(refusal(1, &args![&sparse, &y, 1]), LaunchError::NotPlain { param: "x".into() });
    assert!(matches!(refusal(-1, &args![&x, &y, 1]), LaunchError::Grid { .. }));
    assert!(matches!(refusal([1, 70_000], &args![&x, &y, 1]), LaunchError::Grid { .. }));
}

#[test]
fn a_launch_within_no_grad_counts_as_a_write() {
    setup();
    let kernel = Kernel::parse(COPY).unwrap();
    let x = Tensor::randn([8], F32).set_requires_grad(true);
    let y = Tensor::zeros([8], F32);
    let version = || tilefuse::torch::Meta::of(&y).unwrap().version;
    let before = version();
    tch::no_grad(|| kernel.launch(1, &args![&x, &y, 0])).unwrap();
    assert!(y.equal(&x) && version() == before + 1);
    kernel.launch([1, 0], &args![&y, &y, 0]).unwrap();
}

#[test]
fn cuda_launches_give_what_the_host_gives() {
    if !has_gpu() {
        return;
    }
    let cuda = Device::Cuda(0);
    let close = |a: &Tensor, b: &Tensor| a.to_device(cuda).allclose(b, 1.3e-6, 1e-5, false);
    let x = Tensor::randn([37, 1000], F32);
    let y = [x.empty_like(), x.empty_like().to_device(cuda)];
    let softmax = kernel(SOFTMAX);
    for (x, y) in [&x, &x.to_device(cuda)].into_iter().zip(&y) {
        softmax.launch(37, &args![x, y, 1000i64, 1000i32]).unwrap();
    }
    assert!(close(&y[0], &y[1]));
    let error = refusal(1, &args![&x, &y[1], 0]);
    assert_eq!(error.to_string(), "%y is on cuda:0, the tensors before it are on cpu");

    let axes = Kernel::parse(AXES).unwrap();
    let outs = [Device::Cpu, cuda].map(|device| Tensor::zeros([2, 3, 4], (Kind::Double, device)));
    for out in &outs {
        let scale = tilefuse::block::Literal::float(tilefuse::block::Elem::F16, 0.5);
        axes.launch([4, 3, 2], &args![out, scale, -3i8, true, 1u64 << 40]).unwrap();
    }
    assert_eq!(outs[0], outs[1].to_device(Device::Cpu));
}

#[test]
fn an_access_out_of_bounds_is_an_error_and_touches_nothing_else() {
    let copy = kernel(COPY);
    let memory = Tensor::ones([16], F32);
    let (x, y) = (Tensor::randn([8], F32), memory.narrow(0, 0, 5));
    let error = copy.launch(1, &args![&x, &y, 0]).unwrap_err();
    assert_eq!(error.to_string(), "kernel @copy: an access through %y is out of bounds of its tensor");
    assert!(memory.narrow(0, 5, 11).equal(&Tensor::ones([11], F32)), "{memory:?}");
    copy.launch(1, &args![&x, &memory, 0]).unwrap();
    assert!(memory.narrow(0, 0, 8).equal(&x));

    let add = kernel(VECTOR_ADD);
    let z = Tensor::zeros([1000], F32);
    for (n, grid) in [(1001, 1), (i64::MAX, 1), (5000, 4)] {
        let error = add.launch(grid, &args![&z, &z, &z, n]).unwrap_err();
        assert!(
            matches!(error, Error::Launch { problem, .. } if matches!(*problem, LaunchError::OutOfBounds { .. }))
        );
    }
    let softmax = kernel(SOFTMAX);
    let error = softmax.launch(2, &args![&x, &memory, i64::MIN / 2, 4]).unwrap_err();
    assert!(error.to_string().contains("out of bounds"), "{error}");
    let nothing = Tensor::zeros([0], F32);
    assert!(copy.launch(1, &args![&x, &nothing, 0]).is_err());
    add.launch(1, &args![&nothing, &nothing, &nothing, 0i64]).unwrap();
}

#[test]
fn a_launch_is_checked_unless_its_arguments_prove_it() {
    let add = kernel(VECTOR_ADD);
    let memory = Tensor::zeros([3000], F32);
    let (x, z) = (Tensor::ones([3000], F32), memory.narrow(0, 0, 2000));
    let launch = |n: i64, grid: i64| add.launch(grid, &args![&x, &x, &z, n]);
    for _ in 0..2 {
        launch(2000, 2).unwrap();
        assert!(launch(2001, 2).is_err());
        // More instances than there are elements for, and a mask that leaves nothing out.
        launch(2000, 65_000).unwrap();
        assert!(launch(i64::MAX, 2).is_err());
        launch(i64::MIN, 2).unwrap();
    }
    assert!(z.equal(&(Tensor::ones([2000], F32) * 2)));
    assert!(memory.narrow(0, 2000, 1000).equal(&Tensor::zeros([1000], F32)));
}

fn out_of_bounds(error: &InterpError) -> Option<i64> {
    match error {
        InterpError::Fault { fault: Fault::OutOfBounds { offset, .. }, .. } => Some(*offset),
        _ => None,
    }
}

#[test]
fn the_interpreter_finds_what_a_launch_must_not_do() {
    setup();
    let kernel = Kernel::parse(COPY).unwrap();
    let (x, y) = (Tensor::randn([8], F32), Tensor::ones([5], F32));
    let error = kernel.interpret(1, &args![&x, &y, 0]).unwrap_err();
    assert!(matches!(&error, Error::Interpret(fault) if out_of_bounds(fault) == Some(5)), "{error}");
    assert!(y.equal(&Tensor::ones([5], F32)), "what failed has written nothing");
    let same = kernel.interpret(1, &args![&x, &x, 0]).unwrap_err();
    let overlap = |problem: &LaunchError| matches!(problem, LaunchError::Overlap { .. });
    assert!(matches!(&same, Error::Launch { problem, .. } if overlap(problem)), "{same}");
}

#[test]
fn texts_and_programs_that_are_wrong_say_where() {
    let text = "kernel @f(%x: ptr<f32>) {\n  %v = load %x, %i\n}";
    assert_eq!(Kernel::parse(text).unwrap_err().to_string(), "line 2, column 17: %i is not defined");
    let text = "kernel @f() {\n  yield\n}";
    assert!(Kernel::parse(text).unwrap_err().to_string().starts_with("line 2, column 3: a yield"));
    let mut program: tilefuse::block::Program = COPY.parse().unwrap();
    program.warps = 3;
    assert!(matches!(Kernel::from_program(program).unwrap_err(), Error::Invalid(_)));
}

#[test]
fn a_model_that_launches_kernels_runs_eager() {
    setup();
    let kernel = Kernel::parse(COPY).unwrap();
    let model = move |x: &Tensor| {
        let y = x.zeros_like();
        tch::no_grad(|| kernel.launch(1, &args![x, &y, 0])).unwrap();
        y.exp() + 1.0
    };
    let fused = tilefuse::fuse(tch::nn::func(move |x| model(x)));
    for _ in 0..2 {
        let x = Tensor::randn([8], F32);
        let y = tch::no_grad(|| tch::nn::Module::forward(&fused, &x));
        assert!(y.allclose(&(x.exp() + 1.0), 1e-5, 1e-6, false));
    }
    let reasons = fused.stats().eager_calls;
    assert!(reasons.keys().any(|r| r.contains("launches a kernel of its own")), "{reasons:?}");
}
