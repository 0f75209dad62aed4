//! Plans with generated products, run in the interpreter and compared with sums in `f64`.

use std::collections::HashMap;
use std::ops::Range;

use tilefuse_block::interp::{self, Arg as Given, Buffer};
use tilefuse_block::{Data, Elem, Literal};

use super::{Panels, Prepacked, Products, Times, choose_products};
use crate::args::Args;
use crate::convolution::ConvArgs;
use crate::graph::{Graph, Op, ValueRef};
use crate::machine::Profile;
use crate::parse_graph;
use crate::pipeline::{plan, primitive};
use crate::plan::{OuterLoop, Plan, StepKind};
use crate::types::{TensorType, row_major};

/// A tensor's elements in the order of its indices.
#[derive(Clone)]
pub(super) struct Tensor {
    shape: Vec<i64>,
    pub(super) data: Vec<f64>,
}

pub(crate) fn points(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|p| (0..n).map(move |i| [p.clone(), vec![i]].concat())).collect()
    })
}

pub(crate) fn position(index: &[i64], strides: &[i64]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>() as usize
}

impl Tensor {
    pub(super) fn at(&self, index: &[i64]) -> f64 {
        // Missing dimensions and those of size 1 are repeated.
        let lead = index.len() - self.shape.len();
        let index: Vec<i64> =
            index[lead..].iter().zip(&self.shape).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
        self.data[position(&index, &row_major(&self.shape))]
    }

    fn of(shape: &[i64], value: impl Fn(&[i64]) -> f64) -> Tensor {
        Tensor { shape: shape.to_vec(), data: points(shape).iter().map(|p| value(p)).collect() }
    }

    fn transposed(&self) -> Tensor {
        let mut shape = self.shape.clone();
        let last = shape.len() - 1;
        shape.swap(last, last - 1);
        Tensor::of(&shape, |p| {
            let mut p = p.to_vec();
            p.swap(last, last - 1);
            self.at(&p)
        })
    }

    fn product(&self, other: &Tensor, out: &[i64]) -> Tensor {
        let (k, last) = (*self.shape.last().unwrap(), out.len() - 1);
        Tensor::of(out, |p| {
            let with = |axis: usize, i: i64| {
                let mut p = p.to_vec();
                p[axis] = i;
                p
            };
            (0..k).map(|i| self.at(&with(last, i)) * other.at(&with(last - 1, i))).sum()
        })
    }
}

/// What input `slot` holds in memory.
pub(crate) fn memory(slot: u32, ty: &TensorType) -> Vec<f64> {
    let span = 1 + ty.shape.iter().zip(&ty.strides).map(|(n, s)| (n - 1) * s).sum::<i64>();
    let unit = if ty.dtype.elem() == Some(Elem::I8) { 1.0 } else { 8.0 };
    if ty.dtype.elem() == Some(Elem::I64) {
        // Indices.
        return (0..span).map(|i| ((i * 37 + i64::from(slot) * 11) % 17) as f64).collect();
    }
    (0..span).map(|i| f64::from(((i * 37 + i64::from(slot) * 11) % 17) as i32 - 8) / unit).collect()
}

/// Images convolved with filters, and a number added for each of these.
fn convolved(operands: &[Tensor], window: &ConvArgs, out: &[i64]) -> Tensor {
    let [images, filters, ..] = operands else { panic!("no filters") };
    Tensor::of(out, |p| {
        let products = points(&filters.shape[1..]).into_iter().map(|tap| {
            let pixel = |d: usize| {
                p[d + 2] * window.stride[d] - window.padding[d][0] + tap[d + 1] * window.dilation[d]
            };
            let at = [p[0], tap[0], pixel(0), pixel(1)];
            let inside = (2..4).all(|d| (0..images.shape[d]).contains(&at[d]));
            if inside { images.at(&at) * filters.at(&[&p[1..2], &tap].concat()) } else { 0.0 }
        });
        products.sum::<f64>() + operands.get(2).map_or(0.0, |bias| bias.at(&p[1..2]))
    })
}

/// The results of a functional graph.
pub(super) fn evaluate(graph: &Graph) -> Vec<Tensor> {
    let mut values: HashMap<ValueRef, Tensor> = HashMap::new();
    for id in graph.topological().unwrap() {
        let ty = graph.ty(id.into()).clone();
        let operands: Vec<Tensor> = graph.operands(id).iter().map(|v| values[v].clone()).collect();
        let each = |f: &dyn Fn(f64) -> f64| Tensor::of(&ty.shape, |p| f(operands[0].at(p)));
        let value = match &graph.node(id).op {
            Op::Input(slot) | Op::Param(slot) => {
                let data = memory(*slot, &ty);
                Tensor::of(&ty.shape, |p| data[position(p, &ty.strides)])
            }
            Op::Aten(call) => match call.op.as_str() {
                "aten::transpose" => operands[0].transposed(),
                "aten::reshape" => Tensor { shape: ty.shape.to_vec(), ..operands[0].clone() },
                "aten::relu" => each(&|x| x.max(0.0)),
                "aten::neg" => each(&|x| -x),
                "aten::silu" => each(&|x| x / (1.0 + (-x).exp())),
                "aten::mul" => Tensor::of(&ty.shape, |p| operands[0].at(p) * operands[1].at(p)),
                "aten::add" => Tensor::of(&ty.shape, |p| operands[0].at(p) + operands[1].at(p)),
                "aten::linear" => {
                    let sum = operands[0].product(&operands[1].transposed(), &ty.shape);
                    let bias = |p: &[i64]| operands.get(2).map_or(0.0, |b| b.at(p));
                    Tensor::of(&ty.shape, |p| sum.at(p) + bias(p))
                }
                "aten::addmm" | "aten::baddbmm" => {
                    let factor = |name| Args(&call.args).number(name).map_or(1.0, |n| n.as_f64());
                    let (alpha, beta) = (factor("alpha"), factor("beta"));
                    let sum = operands[1].product(&operands[2], &ty.shape);
                    Tensor::of(&ty.shape, |p| alpha * sum.at(p) + beta * operands[0].at(p))
                }
                "aten::conv2d" => {
                    let window = ConvArgs::of(&call.op, Args(&call.args), &operands[1].shape[2..]).unwrap();
                    convolved(&operands, &window, &ty.shape)
                }
                _ => operands[0].product(&operands[1], &ty.shape),
            },
            other => panic!("{other:?}"),
        };
        values.insert(id.into(), value);
    }
    graph.outputs.iter().map(|v| values[v].clone()).collect()
}

pub(super) fn planned(text: &str, threads: u32, products: Products) -> Plan {
    packed(text, threads, products).0
}

/// A plan, and the constants that hold its weights.
pub(super) fn packed(text: &str, threads: u32, products: Products) -> (Plan, Vec<Prepacked>) {
    packed_for(text, &Profile::host(threads), products)
}

pub(super) fn packed_for(text: &str, profile: &Profile, products: Products) -> (Plan, Vec<Prepacked>) {
    let mut graph = primitive(text, profile);
    let packed = choose_products(&mut graph, profile, products, Some(0), u64::MAX, &mut |_| None);
    (plan(&graph, profile).unwrap(), packed)
}

/// What a constant with panels holds.
fn contents(packed: &Prepacked, weight: &[f64]) -> Vec<f64> {
    let panels = &packed.panels;
    let of = |p: &Vec<i64>| {
        let [row, column] = panels.place(p[1] * panels.width + p[2]);
        match p[0] * panels.width + column {
            column if column < panels.columns && row < panels.rows => {
                weight[panels.element(row, column) as usize]
            }
            _ => 0.0,
        }
    };
    points(&panels.shape()).iter().map(of).collect()
}

/// Runs a plan of kernels in the interpreter.
pub(super) fn run(plan: &Plan) -> Vec<Vec<f64>> {
    run_packed(plan, &[])
}

pub(crate) fn run_packed(plan: &Plan, packed: &[Prepacked]) -> Vec<Vec<f64>> {
    let graph = &plan.graph;
    let mut buffers: HashMap<ValueRef, Buffer> = HashMap::new();
    let data = |ty: &TensorType, values: &[f64]| {
        let elem = ty.dtype.elem().unwrap();
        Buffer::new(Data::from_literals(elem, values.iter().map(|&v| Literal::of(elem, v))))
    };
    for id in graph.ids() {
        let ty = graph.ty(id.into());
        if let Op::Input(slot) | Op::Param(slot) = graph.node(id).op {
            buffers.insert(id.into(), data(ty, &memory(slot, ty)));
        }
    }
    for constant in packed {
        let Panels { param, rows, columns, .. } = constant.panels;
        let find = |op: Op| graph.ids().find(|&id| graph.node(id).op == op);
        // A parameter that nothing else reads is contiguous.
        let whole = || TensorType::contiguous(constant.ty.dtype, &[columns, rows], constant.ty.device);
        let ty = find(Op::Param(param)).map_or_else(whole, |id| graph.ty(id.into()).clone());
        let values = contents(constant, &memory(param, &ty));
        let node = find(Op::Const(constant.constant)).unwrap();
        buffers.insert(node.into(), data(&constant.ty, &values));
    }
    for at in 0..plan.steps.len() {
        match plan.outer_loops.iter().find(|outer_loop| outer_loop.steps.contains(&at)) {
            Some(outer_loop) if outer_loop.steps.start == at => run_in_blocks(plan, outer_loop, &mut buffers),
            Some(_) => {}
            None => run_step(plan, at, None, &mut buffers),
        }
    }
    plan.outputs
        .iter()
        .map(|place| Given::Buffer(buffers[&place.base()].clone()).data().unwrap().to_f64())
        .collect()
}

/// Runs the blocks of an outer loop from the last to the first, each of which finds nothing in what is held a block at a time.
fn run_in_blocks(plan: &Plan, outer_loop: &OuterLoop, buffers: &mut HashMap<ValueRef, Buffer>) {
    for block in (0..outer_loop.blocks()).rev() {
        for (at, parts) in outer_loop.steps.clone().zip(&outer_loop.parts) {
            run_step(plan, at, Some(parts[block].clone()), buffers);
        }
        for kept in &outer_loop.local_buffers {
            let buffer = buffers.get_mut(&kept.value).unwrap();
            buffer.written = Some(vec![false; buffer.len()]);
        }
    }
}

/// Runs a kernel, or those of its instances.
fn run_step(plan: &Plan, at: usize, instances: Option<Range<u64>>, buffers: &mut HashMap<ValueRef, Buffer>) {
    let StepKind::Kernel(kernel) = &plan.steps[at].kind else { panic!("a library call") };
    let value = |value: &ValueRef| {
        let ty = plan.graph.ty(*value);
        let empty = || Buffer::uninit(ty.dtype.elem().unwrap(), ty.numel() as usize);
        Given::Buffer(buffers.get(value).cloned().unwrap_or_else(empty))
    };
    let mut args: Vec<Given> = kernel.buffers.iter().map(|(v, _)| value(v)).collect();
    if kernel.checks {
        args.push(Given::buffer(Data::from(vec![0i32])));
    }
    let program = &plan.programs[kernel.program];
    tilefuse_block::verify(program).unwrap();
    let grid = kernel.grid.map(|n| n as u32);
    let mut part = grid.map(|extent| 0..extent);
    if let Some(instances) = instances {
        let axis = (0..3).rev().find(|&axis| grid[axis] > 1).unwrap();
        let inner: u64 = kernel.grid[..axis].iter().product();
        part[axis] = (instances.start / inner) as u32..(instances.end / inner) as u32;
    }
    interp::run_part(program, &mut args, grid, part, &interp::Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{program}"));
    for (&(value, written), arg) in kernel.buffers.iter().zip(args) {
        if let (true, Given::Buffer(buffer)) = (written, arg) {
            buffers.insert(value, buffer);
        }
    }
}

/// Compares a graph with generated products with sums in `f64`; returns the number of kernels.
pub(super) fn check(text: &str) -> usize {
    check_on(text, Profile::host)
}

/// As `check`, on machines of so many threads.
fn check_on(text: &str, profile: fn(u32) -> Profile) -> usize {
    let exact = evaluate(&parse_graph(text).unwrap());
    let mut kernels = 0;
    for threads in [1, 2, 16] {
        let (plan, packed) = packed_for(text, &profile(threads), Products::Generated);
        assert_eq!(plan.extern_count(), 0, "{text}");
        for (found, exact) in run_packed(&plan, &packed).iter().zip(&exact) {
            let narrow = plan
                .graph
                .outputs
                .iter()
                .any(|&v| matches!(plan.graph.ty(v).dtype.elem(), Some(Elem::F16 | Elem::Bf16)));
            let tolerance = if narrow { 1e-2 } else { 1e-5 };
            assert_eq!(found.len(), exact.data.len());
            for (at, (f, e)) in found.iter().zip(&exact.data).enumerate() {
                let close = (f - e).abs() <= tolerance * e.abs().max(1.0);
                assert!(close, "element {at}: {f} instead of {e}\n{text}\n{}", plan.programs[0]);
            }
        }
        kernels = plan.kernel_count();
    }
    kernels
}

fn linear(dtype: &str, m: i64, n: i64, k: i64) -> String {
    format!(
        "graph {{
           %0 = input 0 : {dtype}[{m},{k}]
           %1 = input 1 : {dtype}[{n},{k}]
           %2 = input 2 : {dtype}[{n}]
           %3 = aten::linear(input=%0, weight=%1, bias=%2) : {dtype}[{m},{n}]
           outputs %3
         }}"
    )
}

#[test]
fn linear_layers_of_odd_sizes_are_one_kernel() {
    for (m, n, k) in [(1, 1, 1), (1, 17, 65), (2, 3, 5), (3, 65, 17), (5, 2, 64), (17, 65, 3), (65, 17, 130)]
    {
        assert_eq!(check(&linear("f32", m, n, k)), 1);
    }
    assert_eq!(check(&linear("f64", 5, 33, 65)), 1);
    assert_eq!(check(&linear("bf16", 5, 17, 33)), 1);
    assert_eq!(check(&linear("f16", 1, 17, 33)), 1);
}

#[test]
fn long_rows_are_summed_in_parts() {
    assert_eq!(check(&linear("f32", 1, 2, 33000)), 1);
}

#[test]
fn matrices_are_read_in_every_order() {
    for (m, n, k) in [(1, 17, 5), (3, 5, 33), (17, 33, 5), (65, 5, 17)] {
        for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
            let shape = |rows: i64, columns: i64, transposed: bool| match transposed {
                true => format!("f32[{rows},{columns}]{{1,{rows}}}"),
                false => format!("f32[{rows},{columns}]"),
            };
            let text = format!(
                "graph {{
                   %0 = input 0 : {}
                   %1 = input 1 : {}
                   %2 = aten::mm(self=%0, mat2=%1) : f32[{m},{n}]
                   outputs %2
                 }}",
                shape(m, k, left),
                shape(k, n, right)
            );
            assert_eq!(check(&text), 1);
        }
    }
}

#[test]
fn an_operand_that_is_a_view_is_read_where_it_lies() {
    let text = "graph {
      %0 = input 0 : f32[3,20,7]
      %1 = input 1 : f32[3,9,7]
      %2 = aten::transpose.int(self=%1, dim0=-2, dim1=-1) : f32[3,7,9]{63,1,7}
      %3 = aten::bmm(self=%0, mat2=%2) : f32[3,20,9]
      outputs %3
    }";
    assert_eq!(check(text), 1);
}

/// As a window's rows of an image are, when attention is among them.
#[test]
fn an_operand_whose_elements_lie_at_no_fixed_strides_is_materialized_first() {
    for (image, rows) in [("f32[9,4,7]{1,63,9}", "[4,63]"), ("f32[9,4,7]{28,7,1}", "[9,28]")] {
        let text = format!(
            "graph {{
              %0 = input 0 : {image}
              %1 = aten::transpose(self=%0, dim0=-1, dim1=-2) : f32[9,7,4]
              %2 = aten::reshape(self=%1, shape={rows}) : f32{rows}
              %3 = input 1 : f32[{},5]
              %4 = aten::matmul(self=%2, other=%3) : f32[{},5]
              outputs %4
            }}",
            if rows == "[4,63]" { 63 } else { 28 },
            if rows == "[4,63]" { 4 } else { 9 },
        );
        assert_eq!(check(&text), 2, "{text}");
    }
}

/// Strides of an operand are known before what else must be in memory: another view of the same padded values, for one.
#[test]
fn an_operand_lies_at_its_strides_whatever_else_is_in_memory() {
    let text = "graph {
      %0 = input 0 : f32[1,5]
      %1 = input 1 : f32[1,6]
      %2 = aten::constant_pad_nd(self=%0, pad=[0,3], value=1.0) : f32[1,8]
      %3 = aten::cumsum(self=%2, dim=1) : f32[1,8]
      %4 = aten::transpose.int(self=%2, dim0=0, dim1=1) : f32[8,1]{1,8}
      %5 = aten::mm(self=%4, mat2=%1) : f32[8,6]
      outputs %3, %5
    }";
    let plan = planned(text, 2, Products::Generated);
    assert_eq!((plan.kernel_count(), plan.extern_count()), (2, 1), "{plan}");
}

#[test]
fn a_computed_operand_is_a_prologue_where_it_is_read_at_strides() {
    let text = "graph {
      %0 = input 0 : f32[20,7]
      %1 = input 1 : f32[9,7]
      %2 = aten::neg(self=%1) : f32[9,7]
      %3 = aten::transpose.int(self=%2, dim0=0, dim1=1) : f32[7,9]{1,7}
      %4 = aten::mm(self=%0, mat2=%3) : f32[20,9]
      outputs %4
    }";
    assert_eq!(check(text), 1);
}

#[test]
fn batches_are_broadcast_and_factors_applied() {
    let matmul = "graph {
      %0 = input 0 : f32[2,1,9,5]
      %1 = input 1 : f32[3,5,7]
      %2 = aten::matmul(self=%0, other=%1) : f32[2,3,9,7]
      outputs %2
    }";
    assert_eq!(check(matmul), 1);
    let folded = "graph {
      %0 = input 0 : f32[2,3,9,5]
      %1 = input 1 : f32[5,7]
      %2 = aten::matmul(self=%0, other=%1) : f32[2,3,9,7]
      outputs %2
    }";
    assert_eq!(check(folded), 1);
    let baddbmm = "graph {
      %0 = input 0 : f32[3,1,7]
      %1 = input 1 : f32[3,9,5]
      %2 = input 2 : f32[3,5,7]
      %3 = aten::baddbmm(self=%0, batch1=%1, batch2=%2, beta=0.5, alpha=-2) : f32[3,9,7]
      outputs %3
    }";
    assert_eq!(check(baddbmm), 1);
    let addmm = "graph {
      %0 = input 0 : f32[7]
      %1 = input 1 : f32[9,5]
      %2 = input 2 : f32[5,7]
      %3 = aten::addmm(self=%0, mat1=%1, mat2=%2, beta=1, alpha=1) : f32[9,7]
      outputs %3
    }";
    assert_eq!(check(addmm), 1);
}

#[test]
fn activation_and_residual_are_stored_by_the_product() {
    let text = "graph {
      %0 = input 0 : f32[2,9,16]
      %1 = input 1 : f32[33,16]
      %2 = input 2 : f32[33]
      %3 = input 3 : f32[16,33]
      %4 = aten::linear(input=%0, weight=%1, bias=%2) : f32[2,9,33]
      %5 = aten::relu(self=%4) : f32[2,9,33]
      %6 = aten::linear(input=%5, weight=%3, bias=None) : f32[2,9,16]
      %7 = aten::add.Tensor(self=%6, other=%0, alpha=1) : f32[2,9,16]
      outputs %7
    }";
    assert_eq!(check(text), 2);
}

#[test]
fn what_has_no_elements_is_no_product() {
    // A sum of nothing is a bias alone.
    for ([m, n, k], kernels) in [([0, 3, 4], 0), ([3, 0, 4], 0), ([3, 4, 0], 1)] {
        let plan = planned(&linear("f32", m, n, k), 2, Products::Generated);
        assert_eq!((plan.steps.len(), plan.kernel_count()), (kernels, kernels));
    }
}

#[test]
fn the_slower_one_is_not_used_and_the_plan_says_so() {
    let profile = Profile::host(2);
    let chosen = |text: &str, generated_us: f64| {
        let mut graph = primitive(text, &profile);
        let mut measured =
            |_: &super::Candidate<'_>| Some(Times { generated_us, library_us: 8.0, measured: true });
        choose_products(&mut graph, &profile, Products::Measured, None, u64::MAX, &mut measured);
        let plan = plan(&graph, &profile).unwrap();
        match &plan.steps[0].kind {
            StepKind::Kernel(kernel) => (true, kernel.note.clone().unwrap()),
            StepKind::Extern(call) => (false, call.reason.clone().unwrap()),
        }
    };
    let text = linear("f32", 8, 8, 8);
    assert_eq!(chosen(&text, 7.0), (true, "measured: 7.0 us generated, 8.0 us in libtorch".to_owned()));
    // Within what a measurement misses, the one that is expected to be quicker.
    assert!(chosen(&text, 8.3).0);
    assert!(!chosen(&text, 8.5).0);
    assert_eq!(chosen(&text, 9.0), (false, "measured: 9.0 us generated, 8.0 us in libtorch".to_owned()));
    // A weight that is read once comes from memory in a model, and from the caches where it was measured.
    let row = |rows: i64, weight: &str| {
        linear("f32", rows, 8, 8).replace("bias=%2", "bias=None").replace("%1 = input 1", weight)
    };
    for rows in [1, 2] {
        assert!(chosen(&row(rows, "%1 = param 0"), 8.5).0);
        assert!(!chosen(&row(rows, "%1 = input 1"), 8.5).0);
    }
    assert!(!chosen(&row(3, "%1 = param 0"), 8.5).0);
    assert!(!chosen(&row(1, "%1 = param 0"), 9.0).0);
}

/// What runs behind libtorch's call reads its result, from memory where that is larger than the caches.
#[test]
fn a_kernel_behind_the_call_counts_on_a_host() {
    let text = "graph {
      %0 = input 0 : f32[64,16]
      %1 = input 1 : f32[64,16]
      %2 = aten::linear(input=%0, weight=%1, bias=None) : f32[64,64]
      %3 = aten::gelu(self=%2) : f32[64,64]
      outputs %3
    }";
    for (cache, us) in [(1 << 20, 2.3), (1 << 10, 3.4)] {
        let profile = Profile::host(2).with_cache(cache);
        let mut graph = primitive(text, &profile);
        let times = Times { generated_us: 9.0, library_us: 8.0, measured: true };
        choose_products(&mut graph, &profile, Products::Measured, None, u64::MAX, &mut |_| Some(times));
        let plan = plan(&graph, &profile).unwrap();
        let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("{plan}") };
        let why = format!(
            "measured: 9.0 us generated, 8.0 us in libtorch and {us} us for a kernel with what is an epilogue of ours"
        );
        assert_eq!((plan.steps.len(), kernel.note.as_deref()), (1, Some(&*why)));
    }
}

/// A product of an input and a weight, with a bias and a relu behind it.
fn with_weight(op: &str, [m, n, k]: [i64; 3], transposed: bool) -> String {
    let weight = match (op, transposed) {
        ("linear", _) => format!("f32[{n},{k}]"),
        (_, true) => format!("f32[{k},{n}]{{1,{k}}}"),
        (_, false) => format!("f32[{k},{n}]"),
    };
    let args = if op == "linear" {
        "input=%0, weight=%1, bias=%2"
    } else {
        "self=%2, mat1=%0, mat2=%1, beta=1, alpha=1"
    };
    format!(
        "graph {{
           %0 = input 0 : f32[{m},{k}]
           %1 = param 0 : {weight}
           %2 = input 1 : f32[{n}]
           %3 = aten::{op}({args}) : f32[{m},{n}]
           %4 = aten::relu(self=%3) : f32[{m},{n}]
           outputs %4
         }}"
    )
}

#[test]
fn weights_are_packed_and_their_products_read_nothing_else() {
    for shape in [[3, 5, 7], [8, 64, 16], [17, 100, 33], [65, 130, 40]] {
        for (op, transposed) in [("linear", false), ("addmm", false), ("addmm", true)] {
            let text = with_weight(op, shape, transposed);
            assert_eq!(check(&text), 1);
            let (plan, packed) = packed(&text, 2, Products::Generated);
            let [constant] = &packed[..] else { panic!("{packed:?}") };
            assert_eq!(constant.ty.shape[1], shape[2]);
            let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("a library call") };
            let reads = |op: Op| kernel.buffers.iter().any(|(v, _)| plan.graph.node(v.node).op == op);
            assert!(reads(Op::Const(0)) && !reads(Op::Param(0)), "{}", plan.programs[0]);
        }
    }
}

#[test]
fn rows_that_blocks_do_not_divide_are_computed_a_few_at_a_time() {
    for (rows, as_pixels) in [(197, true), (35, true), (64, false), (9, false)] {
        let text = with_weight("linear", [rows, 70, 16], false);
        assert_eq!(check(&text), 1);
        let (plan, _) = packed(&text, 2, Products::Generated);
        assert_eq!(plan.programs[0].to_string().contains("%panels"), as_pixels, "{rows}");
    }
    // What is added to each row is no bias.
    let text = "graph {
      %0 = input 0 : f32[197,16]
      %1 = param 0 : f32[16,70]
      %2 = input 1 : f32[197,70]
      %3 = aten::addmm(self=%2, mat1=%0, mat2=%1, beta=1, alpha=1) : f32[197,70]
      outputs %3
    }";
    assert_eq!(check(text), 1);
    assert!(!packed(text, 2, Products::Generated).0.programs[0].to_string().contains("%panels"));
}

#[test]
fn a_weight_is_packed_once_for_all_products_of_the_same_width() {
    let text = "graph {
      %0 = input 0 : f32[9,64]
      %1 = param 0 : f32[64,64]
      %2 = aten::linear(input=%0, weight=%1, bias=None) : f32[9,64]
      %3 = aten::linear(input=%2, weight=%1, bias=None) : f32[9,64]
      %4 = aten::mm(self=%3, mat2=%1) : f32[9,64]
      outputs %4
    }";
    assert_eq!(check(text), 3);
    assert_eq!(packed(text, 2, Products::Generated).1.len(), 2);
}

#[test]
fn products_of_few_rows_and_weights_that_are_written_are_not_packed() {
    assert!(packed(&with_weight("linear", [1, 64, 64], false), 2, Products::Generated).1.is_empty());
    let text = "graph {
      %0 = input 0 : f32[9,8]
      %1 = param 0 : f32[8,8]
      %2 = aten::mm(self=%0, mat2=%1) : f32[9,8]
      %3 = aten::neg(self=%1) : f32[8,8]
      outputs %2
      update %1 <- %3
    }";
    assert!(packed(text, 2, Products::Generated).1.is_empty());
}

/// Machines with instructions for pairs of `bf16`.
fn with_pairs(threads: u32) -> Profile {
    Profile::host(threads).with_vnni([1000.0, 1000.0])
}

#[test]
fn weights_of_bf16_lie_in_pairs_where_there_are_instructions_for_them() {
    for shape in [[3, 5, 7], [8, 64, 32], [17, 100, 33], [37, 130, 96], [5, 16, 800]] {
        for (op, transposed) in [("linear", false), ("addmm", false), ("addmm", true)] {
            let text = with_weight(op, shape, transposed).replace("f32", "bf16");
            assert_eq!(check_on(&text, with_pairs), 1);
            let (plan, packed) = packed_for(&text, &with_pairs(2), Products::Generated);
            let [constant] = &packed[..] else { panic!("{packed:?}") };
            assert_eq!((constant.panels.group, constant.panels.rows), (2, shape[2]));
            assert!(plan.programs[0].to_string().contains("permute"), "{}", plan.programs[0]);
        }
    }
    // Not of other kinds, other machines, or as few rows as are read from the weight as it lies.
    let groups = |text: &str, profile: &Profile| {
        let (_, packed) = packed_for(text, profile, Products::Generated);
        packed.iter().map(|constant| constant.panels.group).collect::<Vec<_>>()
    };
    let text = with_weight("linear", [8, 64, 32], false);
    assert_eq!(groups(&text, &with_pairs(2)), [1]);
    assert_eq!(groups(&text.replace("f32", "f16"), &with_pairs(2)), [1]);
    assert_eq!(groups(&text.replace("f32", "bf16"), &Profile::host(2)), [1]);
    let few = with_weight("linear", [2, 64, 32], false).replace("f32", "bf16");
    assert_eq!(groups(&few, &with_pairs(2)), []);
}

#[test]
fn blocks_of_pairs_are_the_same_for_any_number_of_threads_along_the_sum() {
    for k in [7, 64, 768, 800, 4096] {
        let text = with_weight("linear", [100, 64, k], false).replace("f32", "bf16");
        let steps = [1, 2, 16].map(|threads| {
            let (_, packed) = packed_for(&text, &with_pairs(threads), Products::Generated);
            packed[0].panels.filled
        });
        assert!(steps.iter().all(|&n| n == steps[0] && n >= k && n % 32 == 0), "{steps:?}");
    }
}

/// A product of 8-bit integers whose result is of 32 bits.
fn of_bytes(right: &str, [m, n, k]: [i64; 3], transposed: bool) -> String {
    let strides = if transposed { format!("{{1,{k}}}") } else { String::new() };
    format!(
        "graph {{
           %0 = input 0 : i8[{m},{k}]
           %1 = {right} 1 : i8[{k},{n}]{strides}
           %2 = aten::_int_mm(self=%0, mat2=%1) : i32[{m},{n}]
           outputs %2
         }}"
    )
}

#[test]
fn products_of_bytes_are_summed_in_words() {
    for shape in [[1, 5, 7], [3, 5, 7], [8, 64, 64], [17, 33, 70], [37, 20, 130]] {
        for (right, transposed) in [("param", false), ("param", true), ("input", false)] {
            let text = of_bytes(right, shape, transposed);
            assert_eq!(check(&text), 1);
            assert_eq!(check_on(&text, with_pairs), 1);
        }
    }
    let (_, packed) = packed_for(&of_bytes("param", [8, 64, 70], true), &with_pairs(2), Products::Generated);
    assert_eq!((packed[0].panels.group, packed[0].panels.filled % 64), (4, 0));
    // A product of bytes whose result is of bytes, too, wraps around in each sum: libtorch's.
    let narrow = of_bytes("param", [8, 64, 64], false).replace("_int_mm", "mm").replace("i32", "i8");
    assert_eq!(packed_for(&narrow, &with_pairs(2), Products::Generated).0.extern_count(), 1);
}
