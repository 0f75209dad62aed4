//! Plans of small graphs, run in the block interpreter and compared with a direct evaluation.

mod block_kernels;
mod cascade;
mod groups;
mod kinds;
mod large;
mod memory;
mod mix_order;
mod non_temporal;
mod order;
mod prices;
mod ragged;
mod reasons;
mod rows;
mod run;
mod taken;
mod transposed;
mod tuned;
mod updates;
mod windows;

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use super::{Plan, StepKind, Verdict};
use crate::graph::{Graph, Op, ValueRef, View};
use crate::machine::Profile;
use crate::pipeline::{self, Context, plan};
use crate::place::Alignments;
use crate::rewrite::tuple_reductions::tuple_reductions;
use crate::rewrite_limit::Rewrites;
use crate::types::{DType, Device, Dims, TensorType};
pub(super) use run::check;

/// A plan that holds at most so many bytes, where there is one.
fn plan_within(graph: &Graph, profile: &Profile, most_bytes: u64) -> Plan {
    pipeline::planned(graph.clone(), &mut Context { most_bytes, ..Context::new(profile) }).unwrap()
}

/// A graph under construction with `f32` shorthands.
struct G(Graph);

impl G {
    fn new() -> G {
        G(Graph::new())
    }

    fn ty(shape: &[i64], elem: Elem) -> TensorType {
        TensorType::contiguous(DType::Elem(elem), shape, Device::Cpu)
    }

    fn input(&mut self, index: u32, shape: &[i64]) -> ValueRef {
        self.0.add(Op::Input(index), &[], [G::ty(shape, Elem::F32)], None).into()
    }

    fn shape(&self, v: ValueRef) -> Dims {
        self.0.ty(v).shape.clone()
    }

    fn map(&mut self, f: ScalarFn, args: &[ValueRef]) -> ValueRef {
        let shape = self.shape(args[0]);
        let elems: Vec<Elem> = args.iter().map(|&a| self.0.ty(a).dtype.elem().unwrap()).collect();
        let out = G::ty(&shape, f.result(&elems).unwrap());
        self.0.add(Op::Map(f), args, [out], None).into()
    }

    fn view(&mut self, view: View, v: ValueRef, shape: &[i64]) -> ValueRef {
        let elem = self.0.ty(v).dtype.elem().unwrap();
        self.0.add(Op::View(view), &[v], [G::ty(shape, elem)], None).into()
    }

    fn literal(&mut self, value: f64, like: ValueRef) -> ValueRef {
        let s = self
            .0
            .add(Op::Scalar(Literal::float(Elem::F32, value)), &[], [G::ty(&[], Elem::F32)], None)
            .into();
        let shape = self.shape(like);
        let ones = vec![1; shape.len()];
        let s = self.view(View::Reshape, s, &ones);
        self.view(View::Expand, s, &shape)
    }

    /// Reduces `dims` and spreads the result over the operand's shape again.
    fn reduce_keep(&mut self, combine: ReduceFn, v: ValueRef, dims: &[u8]) -> ValueRef {
        let shape = self.shape(v);
        let r = self.reduce(combine, v, dims);
        let kept: Vec<i64> =
            (0..shape.len()).map(|d| if dims.contains(&(d as u8)) { 1 } else { shape[d] }).collect();
        let r = self.view(View::Reshape, r, &kept);
        self.view(View::Expand, r, &shape)
    }

    fn reduce(&mut self, combine: ReduceFn, v: ValueRef, dims: &[u8]) -> ValueRef {
        let shape = self.shape(v);
        let elem = self.0.ty(v).dtype.elem().unwrap();
        let out: Vec<i64> =
            (0..shape.len()).filter(|d| !dims.contains(&(*d as u8))).map(|d| shape[d]).collect();
        let op = Op::Reduce { combine: combine.into(), dims: SmallVec::from_slice(dims) };
        self.0.add(op, &[v], [G::ty(&out, elem)], None).into()
    }

    fn softmax(&mut self, x: ValueRef, dim: u8) -> ValueRef {
        let m = self.reduce_keep(ReduceFn::Max, x, &[dim]);
        let d = self.map(ScalarFn::Sub, &[x, m]);
        let e = self.map(ScalarFn::Exp, &[d]);
        let s = self.reduce_keep(ReduceFn::Sum, e, &[dim]);
        self.map(ScalarFn::Div, &[e, s])
    }

    fn layer_norm(&mut self, x: ValueRef) -> ValueRef {
        let dim = self.shape(x).len() as u8 - 1;
        let n = self.shape(x)[usize::from(dim)] as f64;
        let inv = self.literal(1.0 / n, x);
        let sum = self.reduce_keep(ReduceFn::Sum, x, &[dim]);
        let mean = self.map(ScalarFn::Mul, &[sum, inv]);
        let centred = self.map(ScalarFn::Sub, &[x, mean]);
        let square = self.map(ScalarFn::Mul, &[centred, centred]);
        let var = self.reduce_keep(ReduceFn::Sum, square, &[dim]);
        let var = self.map(ScalarFn::Mul, &[var, inv]);
        let eps = self.literal(1e-5, x);
        let var = self.map(ScalarFn::Add, &[var, eps]);
        let scale = self.map(ScalarFn::Rsqrt, &[var]);
        self.map(ScalarFn::Mul, &[centred, scale])
    }

    fn plans(mut self, outputs: &[ValueRef]) -> Vec<Plan> {
        self.0.outputs = outputs.to_vec();
        tuple_reductions(&mut self.0, &Rewrites::default());
        [Profile::host(2), Profile::gpu(132, 4200.0)].iter().map(|p| plan(&self.0, p).unwrap()).collect()
    }

    /// Plans for both machines, checks values and returns the numbers of kernels.
    fn kernels(self, outputs: &[ValueRef]) -> Vec<usize> {
        let plans = self.plans(outputs);
        plans.iter().for_each(check);
        plans.iter().map(Plan::kernel_count).collect()
    }
}

#[test]
fn a_pointwise_chain_is_one_kernel() {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[7, 33]), g.input(1, &[7, 33]));
    let a = g.map(ScalarFn::Add, &[x, y]);
    let b = g.map(ScalarFn::Tanh, &[a]);
    let c = g.map(ScalarFn::Mul, &[b, x]);
    assert_eq!(g.kernels(&[c, a]), [1, 1]);
}

#[test]
fn bias_and_residual_are_one_kernel() {
    let mut g = G::new();
    let (x, y, b) = (g.input(0, &[40, 96]), g.input(1, &[40, 96]), g.input(2, &[96]));
    let b = g.view(View::Reshape, b, &[1, 96]);
    let b = g.view(View::Expand, b, &[40, 96]);
    let s = g.map(ScalarFn::Add, &[x, b]);
    let e = g.map(ScalarFn::Erf, &[s]);
    let r = g.map(ScalarFn::Add, &[e, y]);
    assert_eq!(g.kernels(&[r]), [1, 1]);
}

#[test]
fn softmax_is_one_kernel_along_any_dimension() {
    for (shape, dim) in [(vec![5, 40], 1), (vec![3, 4, 1000], 2), (vec![40, 70], 0), (vec![3, 17, 6], 1)] {
        let mut g = G::new();
        let x = g.input(0, &shape);
        let s = g.softmax(x, dim);
        assert_eq!(g.kernels(&[s]), [1, 1], "{shape:?} along {dim}");
    }
}

#[test]
fn rows_longer_than_a_tile_are_walked_in_loops() {
    for n in [70000, 20011] {
        let mut g = G::new();
        let x = g.input(0, &[1, n]);
        let s = g.softmax(x, 1);
        let plans = g.plans(&[s]);
        plans.iter().for_each(check);
    }
}

#[test]
fn long_rows_are_walked_once_for_their_maximum_and_their_sum() {
    for cols in [20_480, 20_011, 65_536] {
        let mut g = G::new();
        let x = g.input(0, &[5, cols]);
        // Minus infinity where `x` is not small.
        let huge = g.literal(1e38, x);
        let [y, zero] = [g.map(ScalarFn::Mul, &[x, huge]), g.literal(0.0, x)];
        let y = g.map(ScalarFn::Mul, &[y, huge]);
        let y = g.map(ScalarFn::Max, &[y, zero]);
        let y = g.map(ScalarFn::Neg, &[y]);
        let softmax = g.softmax(y, 1);
        g.0.outputs = vec![softmax];
        let plan = plan(&g.0, &Profile::gpu(1, 4200.0)).unwrap();
        check(&plan);
        // One walk for both, and one that stores; each may have a loop for its ends.
        let text = plan.programs.last().unwrap().to_string();
        let loops = text.matches(" for %").count();
        assert!(loops == 2 || cols % 4 != 0 && loops <= 4, "{text}");
    }
}

#[test]
fn long_rows_that_begin_anywhere_are_read_in_aligned_groups() {
    for cols in [36_865, 33_003, 20_485, 36_864] {
        let mut g = G::new();
        let x = g.input(0, &[5, cols]);
        let s = g.softmax(x, 1);
        let m = g.reduce(ReduceFn::Max, x, &[1]);
        g.0.outputs = vec![s, m];
        // One multiprocessor, which five rows keep busy.
        let plan = plan(&g.0, &Profile::gpu(1, 4200.0)).unwrap();
        check(&plan);
        let StepKind::Kernel(step) = &plan.steps[0].kind else { unreachable!() };
        assert_eq!(step.tiling.as_ref().unwrap().peel.is_some(), cols % 4 != 0);
        // Only the ends of a walk are masked.
        let text = plan.programs[step.program].to_string();
        let unmasked = text.lines().any(|l| l.contains("= load") && !l.contains("mask"));
        assert!(unmasked, "{text}");
    }
}

#[test]
fn residual_and_layer_norm_are_one_kernel_with_two_results() {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[2, 50, 48]), g.input(1, &[2, 50, 48]));
    let r = g.map(ScalarFn::Add, &[x, y]);
    let n = g.layer_norm(r);
    assert_eq!(g.kernels(&[r, n]), [1, 1]);
}

#[test]
fn group_norm_reduces_a_reshaped_tensor_in_one_kernel() {
    let mut g = G::new();
    let x = g.input(0, &[2, 6, 5, 5]);
    let grouped = g.view(View::Reshape, x, &[2, 3, 50]);
    let n = g.layer_norm(grouped);
    let back = g.view(View::Reshape, n, &[2, 6, 5, 5]);
    let b = g.input(1, &[6]);
    let b = g.view(View::Reshape, b, &[1, 6, 1, 1]);
    let b = g.view(View::Expand, b, &[2, 6, 5, 5]);
    let out = g.map(ScalarFn::Mul, &[back, b]);
    assert_eq!(g.kernels(&[out]), [1, 1]);
}

#[test]
fn transposed_operands_need_no_copy() {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[70, 45]), g.input(1, &[45, 70]));
    let t = g.view(View::Permute(SmallVec::from_slice(&[1, 0])), x, &[45, 70]);
    let s = g.map(ScalarFn::Add, &[t, y]);
    assert_eq!(g.kernels(&[s]), [1, 1]);
}

#[test]
fn concat_pad_flip_and_slice_fold_into_addresses() {
    let mut g = G::new();
    let x = g.input(0, &[4, 10]);
    let left = g.view(View::Slice { dim: 1, start: 0, step: 1 }, x, &[4, 5]);
    let right = g.view(View::Slice { dim: 1, start: 5, step: 1 }, x, &[4, 5]);
    let negative = g.map(ScalarFn::Neg, &[right]);
    let joined = g.0.add(Op::Concat { dim: 1 }, &[negative, left], [G::ty(&[4, 10], Elem::F32)], None).into();
    let flipped = g.view(View::Flip(SmallVec::from_slice(&[0])), joined, &[4, 10]);
    let fill = Literal::float(Elem::F32, 7.0);
    let padded = g.view(
        View::Pad { low: Dims::from_slice(&[1, 2]), interior: Dims::from_slice(&[0, 0]), fill },
        flipped,
        &[6, 13],
    );
    let out = g.map(ScalarFn::Exp, &[padded]);
    assert_eq!(g.kernels(&[out]), [1, 1]);
}

#[test]
fn a_sum_of_everything_is_split() {
    let mut g = G::new();
    let x = g.input(0, &[1 << 17]);
    let s = g.reduce(ReduceFn::Sum, x, &[0]);
    let counts = g.kernels(&[s]);
    assert!(counts.iter().all(|&c| c == 2), "{counts:?}");
    for n in [50021, 1 << 19] {
        let mut g = G::new();
        let x = g.input(0, &[n]);
        let s = g.reduce(ReduceFn::Max, x, &[0]);
        g.kernels(&[s]);
    }
}

#[test]
fn column_sums_and_siblings() {
    let mut g = G::new();
    let x = g.input(0, &[300, 40]);
    let s = g.reduce(ReduceFn::Sum, x, &[0]);
    let m = g.reduce(ReduceFn::Max, x, &[0]);
    assert_eq!(g.kernels(&[s, m])[0], 1);
}

#[test]
fn reductions_over_other_dimensions_stay_apart_with_the_reason() {
    let mut g = G::new();
    let x = g.input(0, &[30, 40]);
    let e = g.map(ScalarFn::Exp, &[x]);
    let s = g.reduce_keep(ReduceFn::Sum, e, &[0]);
    let d = g.map(ScalarFn::Div, &[e, s]);
    let r = g.reduce(ReduceFn::Max, d, &[1]);
    let plans = g.plans(&[r]);
    plans.iter().for_each(check);
    assert!(plans[0].decisions.iter().any(|d| matches!(d.verdict, Verdict::Illegal(_))));
}

#[test]
fn gather_reads_by_index() {
    let mut g = G::new();
    let table = g.input(0, &[50, 24]);
    let ids: ValueRef = g.0.add(Op::Input(1), &[], [G::ty(&[9], Elem::I64)], None).into();
    let column = g.view(View::Reshape, ids, &[9, 1]);
    let spread = g.view(View::Expand, column, &[9, 24]);
    let rows: ValueRef =
        g.0.add(Op::Gather { dim: 0 }, &[table, spread], [G::ty(&[9, 24], Elem::F32)], None).into();
    let n = g.layer_norm(rows);
    assert_eq!(g.kernels(&[n]), [1, 1]);
}

#[test]
fn cross_entropy_picks_from_a_softmax_that_is_never_stored() {
    let mut g = G::new();
    let x = g.input(0, &[6, 50]);
    let ids: ValueRef = g.0.add(Op::Input(1), &[], [G::ty(&[6], Elem::I64)], None).into();
    let p = g.softmax(x, 1);
    let column = g.view(View::Reshape, ids, &[6, 1]);
    let picked = g.0.add(Op::Gather { dim: 1 }, &[p, column], [G::ty(&[6, 1], Elem::F32)], None);
    let plans = g.plans(&[picked.into()]);
    plans.iter().for_each(check);
    assert!(plans.iter().all(|p| p.kernel_count() == 1 && p.memory.bytes == 0));
}

#[test]
fn scalars_and_rank_zero() {
    let mut g = G::new();
    let (x, y) = (g.input(0, &[]), g.input(1, &[]));
    let s = g.map(ScalarFn::Add, &[x, y]);
    assert_eq!(g.kernels(&[s]), [1, 1]);
}

#[test]
fn a_kernel_assumes_no_more_alignment_than_its_tensors_have() {
    let mut g = G::new();
    let x = g.input(0, &[64]);
    let y = g.input(1, &[64]);
    let sum = g.map(ScalarFn::Add, &[x, y]);
    g.0.outputs = vec![sum];
    let alignments = Alignments { inputs: vec![16, 8], ..Default::default() };
    let profile = Profile::gpu(132, 4200.0);
    let mut cx = Context { alignments, ..Context::new(&profile) };
    let plan = pipeline::planned(g.0, &mut cx).unwrap();
    let aligns: Vec<u32> = plan.programs[0].params.iter().map(|p| p.align).collect();
    assert_eq!(aligns, [16, 8, 16]);
}
