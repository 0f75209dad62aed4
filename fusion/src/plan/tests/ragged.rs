//! Rows of 16-bit elements that begin at any address, in one tile and in loops.

use tilefuse_block::{Elem, ReduceFn, ScalarFn};

use super::run::check;
use super::{G, Plan, Profile, StepKind, View, plan};
use crate::graph::{Op, ValueRef};
use crate::rewrite::tuple_reductions::tuple_reductions;
use crate::rewrite_limit::Rewrites;
use crate::schedule::Walk;
use crate::types::Dims;

impl G {
    /// An input of 16 bits, widened.
    fn short(&mut self, index: u32, shape: &[i64]) -> ValueRef {
        let x = self.0.add(Op::Input(index), &[], [G::ty(shape, Elem::Bf16)], None).into();
        self.cast(x, Elem::F32)
    }

    fn cast(&mut self, x: ValueRef, elem: Elem) -> ValueRef {
        let shape = self.shape(x);
        self.0.add(Op::Cast, &[x], [G::ty(&shape, elem)], None).into()
    }

    /// Row by row: `x` times a vector plus a vector.
    fn affine(&mut self, x: ValueRef, first: u32) -> ValueRef {
        let shape = self.shape(x);
        let mut vector = |index: u32| {
            let v = self.short(index, &shape[1..]);
            let v = self.view(View::Reshape, v, &[1, shape[1]]);
            self.view(View::Expand, v, &shape)
        };
        let (weight, bias) = (vector(first), vector(first + 1));
        let scaled = self.map(ScalarFn::Mul, &[x, weight]);
        self.map(ScalarFn::Add, &[scaled, bias])
    }

    /// One kernel for a GPU with few multiprocessors, checked.
    fn checked(mut self, outputs: &[ValueRef]) -> Plan {
        self.0.outputs = outputs.to_vec();
        tuple_reductions(&mut self.0, &Rewrites::default());
        let plan = plan(&self.0, &Profile::gpu(1, 4200.0).with_clusters()).unwrap();
        check(&plan);
        assert_eq!(plan.kernel_count(), 1);
        plan
    }
}

fn is_peeled(plan: &Plan) -> bool {
    let StepKind::Kernel(step) = &plan.steps[0].kind else { unreachable!() };
    step.tiling.as_ref().unwrap().peel.is_some()
}

fn walk(plan: &Plan) -> Walk {
    let StepKind::Kernel(step) = &plan.steps[0].kind else { unreachable!() };
    step.tiling.as_ref().unwrap().walk
}

#[test]
fn rows_that_fit_a_tile_are_masked_where_they_begin() {
    for cols in [1017, 1018, 1023, 1016, 513] {
        let mut g = G::new();
        let x = g.short(0, &[3, cols]);
        let s = g.softmax(x, 1);
        let plan = g.checked(&[s]);
        assert!(!is_peeled(&plan) && walk(&plan) == Walk::Spanned, "softmax {cols}");
        let mut g = G::new();
        let x = g.short(0, &[3, cols]);
        let n = g.layer_norm(x);
        let out = g.affine(n, 1);
        let plan = g.checked(&[out]);
        assert!(!is_peeled(&plan) && walk(&plan) == Walk::Spanned, "layer norm {cols}");
    }
}

#[test]
fn rows_of_a_few_steps_are_read_once_and_stay_in_registers() {
    // Elements of a row, of a step, steps, and warps for 16 bits.
    for (cols, step, steps, warps) in
        [(1201, 512, 3, 2), (1536, 512, 3, 2), (5003, 1024, 5, 4), (8192, 4096, 2, 8), (11_008, 1024, 11, 4)]
    {
        let mut g = G::new();
        let x = g.short(0, &[3, cols]);
        let s = g.softmax(x, 1);
        let s = g.cast(s, Elem::Bf16);
        let plan = g.checked(&[s]);
        let StepKind::Kernel(kernel) = &plan.steps[0].kind else { unreachable!() };
        let tiling = kernel.tiling.as_ref().unwrap();
        let found = (tiling.axes[0].extent, tiling.walk, tiling.warps, tiling.peel.is_some());
        assert_eq!(found, (step, Walk::Persistent, warps, cols % 8 != 0), "softmax {cols}");
        let text = plan.programs[0].to_string();
        let reads = text.matches(" = load ").count();
        assert_eq!((reads, text.matches(" for %").count()), (steps, 0), "{text}");
        let mut g = G::new();
        let x = g.short(0, &[3, cols]);
        let n = g.layer_norm(x);
        let out = g.affine(n, 1);
        let plan = g.checked(&[out]);
        assert_eq!(walk(&plan), Walk::Persistent, "layer norm {cols}");
        // The row, the weight and the bias, each once.
        let text = plan.programs[0].to_string();
        assert_eq!(text.matches(" = load ").count(), 3 * steps, "{text}");
    }
}

#[test]
fn long_rows_are_walked_once_for_their_mean_and_variance() {
    for cols in [16_387, 24_577, 20_008, 33_003] {
        let mut g = G::new();
        let x = g.short(0, &[2, cols]);
        let n = g.layer_norm(x);
        let out = g.affine(n, 1);
        let plan = g.checked(&[out]);
        assert_eq!((is_peeled(&plan), walk(&plan)), (cols % 8 != 0, Walk::Loops));
        let text = plan.programs[0].to_string();
        // One walk for both, and one that stores; each may have a loop for its ends.
        assert!(text.matches(" for %").count() <= 4, "{text}");
    }
}

#[test]
fn long_rows_of_32_bits_stay_in_the_registers_of_two_blocks() {
    let mut g = G::new();
    let x = g.input(0, &[2, 20_003]);
    let s = g.softmax(x, 1);
    let plan = g.checked(&[s]);
    assert_eq!((is_peeled(&plan), walk(&plan)), (true, Walk::Persistent));
    let text = plan.programs[0].to_string();
    assert_eq!((text.matches(" = load ").count(), text.matches(" for %").count()), (10, 0), "{text}");
}

#[test]
fn a_large_mean_costs_no_digits_of_the_variance() {
    for cols in [24_577, 20_008] {
        let mut g = G::new();
        let x = g.short(0, &[2, cols]);
        let thousand = g.literal(1000.0, x);
        let x = g.map(ScalarFn::Add, &[x, thousand]);
        let count = g.literal(cols as f64, x);
        let sum = g.reduce_keep(ReduceFn::Sum, x, &[1]);
        let mean = g.map(ScalarFn::Div, &[sum, count]);
        let off = g.map(ScalarFn::Sub, &[x, mean]);
        let square = g.map(ScalarFn::Mul, &[off, off]);
        let squares = g.reduce(ReduceFn::Sum, square, &[1]);
        let one = g.view(View::Slice { dim: 1, start: 0, step: 1 }, mean, &[2, 1]);
        let text = g.checked(&[squares, one]).programs[0].to_string();
        assert!(text.matches(" for %").count() <= 2, "{text}");
    }
}

#[test]
fn products_with_a_vector_take_rows_together_where_there_are_many() {
    for (rows, together) in [(50_257, 4), (3072, 1)] {
        let mut g = G::new();
        let (x, w) = (g.short(0, &[1, 768]), g.short(1, &[rows, 768]));
        let x = g.view(View::Expand, x, &[rows, 768]);
        let products = g.map(ScalarFn::Mul, &[x, w]);
        let sums = g.reduce(ReduceFn::Sum, products, &[1]);
        g.0.outputs = vec![sums];
        let plan = plan(&g.0, &Profile::gpu(132, 4200.0).with_clusters()).unwrap();
        let StepKind::Kernel(step) = &plan.steps[0].kind else { unreachable!() };
        let tiling = step.tiling.as_ref().unwrap();
        let extents: Vec<u32> = tiling.axes.iter().map(|axis| axis.extent).collect();
        let expected = if together > 1 { vec![together, 1024] } else { vec![1024] };
        assert_eq!((extents, tiling.walk), (expected, Walk::Spanned));
    }
}

#[test]
fn rows_that_begin_with_padding_start_before_their_memory() {
    for (cols, before) in [(1023, 2), (1201, 5), (5003, 1), (20_003, 3)] {
        let mut g = G::new();
        let x = g.input(0, &[1, cols]);
        let padding = View::Pad {
            low: Dims::from_slice(&[0, before]),
            interior: Dims::from_slice(&[0, 0]),
            fill: tilefuse_block::Literal::of(Elem::F32, -2.0),
        };
        let x = g.view(padding, x, &[1, cols + before]);
        let sum = g.reduce_keep(ReduceFn::Sum, x, &[1]);
        let centred = g.map(ScalarFn::Sub, &[x, sum]);
        let square = g.map(ScalarFn::Mul, &[centred, centred]);
        let sum = g.reduce(ReduceFn::Sum, square, &[1]);
        let plan = g.checked(&[sum]);
        let text = plan.programs[0].to_string();
        assert!(is_peeled(&plan) && text.contains("div_floor"), "{text}");
    }
}
