//! Atomic operations of many instances on several threads.

use super::*;

/// A pool of several threads even where the machine has one.
struct Threads(rayon::ThreadPool);

impl Pool for Threads {
    fn threads(&self) -> usize {
        8
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.0.install(|| Rayon.run(tasks, task));
    }
}

fn threads() -> Threads {
    Threads(rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap())
}

/// Runs on one thread and on several, some times, and compares with the interpreter.
fn check_shared(text: &str, args: &[Arg], grid: [u32; 3]) {
    let program: Program = text.trim().parse().unwrap();
    let mut expected = args.to_vec();
    let options = interp::Options { races: false, ..interp::Options::default() };
    interp::run_with(&program, &mut expected, grid, &options).unwrap();
    let expected: Vec<Data> = expected.iter().filter_map(Arg::data).collect();
    let pool = threads();
    for isa in ISAS {
        let kernel = HostKernel::compile(&program, &HostOptions { isa }).unwrap();
        assert_eq!(run_kernel(&kernel, args, grid, &Serial), expected, "{isa:?}");
        for _ in 0..20 {
            assert_eq!(run_kernel(&kernel, args, grid, &pool), expected, "{isa:?}");
        }
    }
}

fn zeros(elem: tilefuse_block::Elem, len: usize) -> Arg {
    Arg::Buffer(interp::Buffer::zeros(elem, len))
}

#[test]
fn adds_up_from_every_instance() {
    for kind in ["i32", "u32", "i64", "u64", "f32", "f64"] {
        let elem = tilefuse_block::Elem::ALL.into_iter().find(|e| e.name() == kind).unwrap();
        let text = format!(
            "
kernel @count(%x: ptr<{kind}>) {{
  %p = program_id 0
  %v = cast %p {kind}
  %t = splat %v [64]
  %r = range 0 64
  %n = const 10 : tile<64xi32>
  %o = map rem_floor %r, %n
  %old = atomic add %x, %o, %t order relaxed
}}"
        );
        check_shared(&text, &[zeros(elem, 10)], [500, 1, 1]);
    }
}

/// Each instance takes a ticket; all tickets are different.
#[test]
fn gives_out_tickets() {
    let text = "
kernel @tickets(%n: ptr<i32>, %taken: ptr<i32>) {
  %zero = const 0 : i32
  %one = const 1 : i32
  %t = atomic add %n, %zero, %one
  %old = atomic add %taken, %t, %one
}";
    check_shared(
        text,
        &[zeros(tilefuse_block::Elem::I32, 1), zeros(tilefuse_block::Elem::I32, 700)],
        [700, 1, 1],
    );
}

/// A lock around a sum that is no atomic operation.
#[test]
fn locks() {
    let text = "
kernel @lock(%lock: ptr<i32>, %sum: ptr<f32>) {
  %zero = const 0 : i32
  %one = const 1 : i32
  %p = program_id 0
  %start = const 1 : i32
  %held = while (%seen = %start) {
    %busy = map ne %seen, %zero
    yield %busy
  } do (%seen2) {
    %old = atomic_cas %lock, %zero, %zero, %one order acquire
    yield %old
  }
  %v = load %sum, %zero
  %add = cast %p f32
  %w = map add %v, %add
  store %sum, %zero, %w
  %free = atomic exchange %lock, %zero, %zero order release
}";
    check_shared(
        text,
        &[zeros(tilefuse_block::Elem::I32, 1), zeros(tilefuse_block::Elem::F32, 1)],
        [300, 1, 1],
    );
}

#[test]
fn takes_the_largest_of_all() {
    let text = "
kernel @largest(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f16>) {
  %p = program_id 0
  %w = const 32 : i32
  %b = map mul %p, %w
  %bs = splat %b [32]
  %r = range 0 32
  %o = map add %bs, %r
  %v = load %x, %o
  %zero = const 0 : tile<32xi32>
  %max = atomic max %y, %zero, %v
  %one = const 1 : tile<32xi32>
  %min = atomic min %y, %one, %v
  %q = const 0.25 : tile<32xf16>
  %few = const 3 : i32
  %m = map lt %p, %few
  %ms = splat %m [32]
  %added = atomic add %z, %zero, %q mask %ms
}";
    let args = [f32s(32 * 64), zeros(tilefuse_block::Elem::F32, 2), zeros(tilefuse_block::Elem::F16, 1)];
    check_shared(text, &args, [64, 1, 1]);
}
