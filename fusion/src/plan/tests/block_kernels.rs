//! Block kernels, with pointwise neighbours.

use std::sync::Arc;

use super::*;
use crate::block_kernel::{BlockKernel, BlockKernelKind, Tied};
use crate::graph::AtenCall;
use crate::plan::{KernelKind, Step};
use crate::recording::Arg;

/// `y = x * x` in blocks of 64, through a mask, with a fallback value where the mask is not.
pub(super) const SQUARE: &str = "kernel @square(%x: ptr<f32> len(200), %y: ptr<f32> len(200)) warps(4) {
  %id = program_id 0
  %block = const 64 : i32
  %first = map mul %id, %block
  %start = splat %first [64]
  %lanes = range 0 64
  %at = map add %start, %lanes
  %end = const 200 : tile<64xi32>
  %inside = map lt %at, %end
  %seven = const 7.0 : tile<64xf32>
  %v = load %x, %at, mask %inside, other %seven
  %w = map mul %v, %v
  store %y, %at, %w, mask %inside
}";

/// Sums of rows of 50, spread over the row again: elements of a row meet, and it is read in a loop.
const SPREAD: &str = "kernel @spread(%x: ptr<f32> len(200), %y: ptr<f32> len(200)) warps(4) {
  %row = program_id 0
  %n = const 50 : i32
  %first = map mul %row, %n
  %zero = const 0 : i32
  %one = const 1 : i32
  %nothing = const 0.0 : f32
  %total = for %i in %zero..%n step %one with (%sum = %nothing) {
    %at = map add %first, %i
    %v = load %x, %at
    %next = map add %sum, %v
    yield %next
  }
  for %j in %zero..%n step %one {
    %to = map add %first, %j
    store %y, %to, %total
    yield
  }
}";

/// Adds atomically, after it has stored 0.
pub(super) const ATOMIC: &str = "kernel @atomic(%x: ptr<f32> len(200), %y: ptr<f32> len(200)) warps(4) {
  %id = program_id 0
  %v = load %x, %id
  %zero = const 0.0 : f32
  store %y, %id, %zero
  %old = atomic add %y, %id, %v
}";

pub(super) fn kernel(text: &str, grid: u32) -> BlockKernel {
    let program = tilefuse_block::parse_valid(text).unwrap();
    let tied = vec![Tied::Operand(0), Tied::Result(0)];
    BlockKernel {
        kind: BlockKernelKind::Custom,
        program,
        grid: [grid, 1, 1],
        tied,
        checks: false,
        neighbours_do_not_fit: false,
        coordinates: Vec::new(),
        layouts: Vec::new(),
        schedule: String::new(),
        note: None,
        expected_us: 0.0,
    }
}

impl G {
    /// A call whose kernel this is, of a tensor of 200 elements.
    pub(super) fn custom(&mut self, kernel: BlockKernel, x: ValueRef) -> ValueRef {
        let call = AtenCall::new("my::kernel", "", [("inputs", Arg::Tensors(vec![Some(0)]))]);
        let shape = self.shape(x);
        let node = self.0.add(Op::Aten(Box::new(call)), &[x], [G::ty(&shape, Elem::F32)], None);
        self.0.node_mut(node).kernel = Some(Ok(Arc::new(kernel)));
        node.into()
    }

    pub(super) fn square(&mut self, x: ValueRef) -> ValueRef {
        self.custom(kernel(SQUARE, 4), x)
    }
}

#[test]
fn loads_and_stores_take_pointwise_neighbours() {
    let mut g = G::new();
    let (x, b) = (g.input(0, &[4, 50]), g.input(1, &[50]));
    let two = g.literal(2.0, x);
    let h = g.map(ScalarFn::Add, &[x, two]);
    let y = g.square(h);
    let b = g.view(View::Reshape, b, &[1, 50]);
    let b = g.view(View::Expand, b, &[4, 50]);
    let z = g.map(ScalarFn::Add, &[y, b]);
    let z = g.map(ScalarFn::Tanh, &[z]);
    for plan in g.plans(&[z]) {
        check(&plan);
        let [Step { kind: StepKind::Kernel(kernel), .. }] = plan.steps.as_slice() else { panic!("{plan}") };
        assert_eq!(kernel.kind, KernelKind::Block(BlockKernelKind::Custom));
    }
}

#[test]
fn a_result_is_stored_where_something_else_needs_it() {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.square(x);
    let (a, b) = (g.map(ScalarFn::Exp, &[y]), g.map(ScalarFn::Neg, &[y]));
    let s = g.reduce(ReduceFn::Sum, y, &[0]);
    assert_eq!(g.kernels(&[a, b, y, s]), [2, 2]);
}

#[test]
fn chains_of_kernels_keep_their_order() {
    let mut g = G::new();
    let x = g.input(0, &[4, 50]);
    let mut h = x;
    for _ in 0..3 {
        let scaled = g.map(ScalarFn::Tanh, &[h]);
        let y = if h == x { g.custom(kernel(SPREAD, 4), scaled) } else { g.square(scaled) };
        h = g.map(ScalarFn::Add, &[y, scaled]);
    }
    assert_eq!(g.kernels(&[h]), [3, 3]);
}

#[test]
fn other_orders_of_elements_are_loaded_but_not_stored() {
    let mut g = G::new();
    let x = g.input(0, &[50, 4]);
    let t = g.view(View::Permute(SmallVec::from_slice(&[1, 0])), x, &[4, 50]);
    let y = g.square(t);
    let back = g.view(View::Permute(SmallVec::from_slice(&[1, 0])), y, &[50, 4]);
    let z = g.map(ScalarFn::Add, &[back, x]);
    let plans = g.plans(&[z]);
    plans.iter().for_each(check);
    assert!(plans.iter().all(|p| p.kernel_count() == 2));
}

#[test]
fn a_reduction_and_an_atomic_stay_apart_with_the_reason() {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.custom(kernel(ATOMIC, 200), x);
    let z = g.map(ScalarFn::Exp, &[y]);
    let plans = g.plans(&[z]);
    plans.iter().for_each(check);
    for plan in plans {
        let said: Vec<String> = plan.decisions.iter().map(|d| d.verdict.to_string()).collect();
        assert_eq!(
            said,
            ["cut: the block program does more than store the result once, which an epilogue would read"]
        );
    }
}

#[test]
fn a_kernel_that_writes_its_operand_runs_through_libtorch() {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let mut wrong = kernel(SQUARE, 4);
    wrong.tied.reverse();
    let y = g.custom(wrong, x);
    for plan in g.plans(&[y]) {
        let StepKind::Extern(step) = &plan.steps[0].kind else { panic!("a kernel") };
        assert_eq!(step.reason.as_deref(), Some("its kernel writes an operand"));
    }
}
