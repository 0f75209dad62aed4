//! Running a plan in the block interpreter, and a direct evaluation of the graph in `f64`.

use rustc_hash::FxHashMap;
use tilefuse_block::interp::{self, Arg};
use tilefuse_block::{Data, Elem, Literal, ReduceFn, ScalarFn};

use super::super::{Plan, StepKind};
use crate::combiner::Combiner;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::index::{Indices, Var};
use crate::kernel::view_index;
use crate::place::Place;

/// Runs the plan in the interpreter and compares its outputs with a direct evaluation.
pub(in crate::plan) fn check(plan: &Plan) {
    let exact = evaluate(&plan.graph);
    let results = outputs(plan, |input| exact[&input].clone());
    for (result, output) in results.iter().zip(&plan.graph.outputs) {
        let Some(found) = result else { continue };
        for (at, (f, e)) in found.iter().zip(&exact[output]).enumerate() {
            let close = (f - e).abs() <= 2e-5 * e.abs().max(1.0) || f == e || (f.is_nan() && e.is_nan());
            let programs: Vec<String> = plan.programs.iter().map(ToString::to_string).collect();
            assert!(close, "element {at}: {f} instead of {e}\n{}", programs.join("\n"));
        }
    }
}

/// Runs the plan in the interpreter, on inputs of these elements: the outputs that are values of their own.
pub(super) fn outputs(plan: &Plan, input: impl Fn(ValueRef) -> Vec<f64>) -> Vec<Option<Vec<f64>>> {
    let graph = &plan.graph;
    let mut buffers: FxHashMap<ValueRef, Data> = FxHashMap::default();
    for id in graph.ids() {
        if matches!(graph.node(id).op, Op::Input(_)) {
            let elem = graph.ty(id.into()).dtype.elem().unwrap();
            buffers.insert(id.into(), data(elem, &input(id.into())));
        }
    }
    for program in &plan.programs {
        tilefuse_block::verify(program).unwrap();
    }
    for step in &plan.steps {
        let StepKind::Kernel(kernel) = &step.kind else { panic!("no library calls here") };
        let mut args: Vec<Arg> = Vec::new();
        for &(value, _) in &kernel.buffers {
            let ty = graph.ty(value);
            let elem = ty.dtype.elem().unwrap();
            let zeros = || data(elem, &vec![0.0; ty.numel() as usize]);
            args.push(Arg::buffer(buffers.get(&value).cloned().unwrap_or_else(zeros)));
        }
        if kernel.checks {
            args.push(Arg::buffer(Data::from(vec![0i32])));
        }
        let program = &plan.programs[kernel.program];
        let grid = kernel.grid.map(|n| n as u32);
        interp::run(program, &mut args, grid).unwrap_or_else(|e| panic!("{e}\n{program}"));
        for (&(value, written), arg) in kernel.buffers.iter().zip(&args) {
            if written {
                buffers.insert(value, arg.data().unwrap());
            }
        }
        if kernel.checks {
            assert_eq!(args.last().unwrap().data().unwrap(), Data::from(vec![0i32]));
        }
    }
    let value = |place: &Place| match place {
        Place::Value(value) => Some(buffers[value].to_f64()),
        _ => None,
    };
    plan.outputs.iter().map(value).collect()
}

fn data(elem: Elem, values: &[f64]) -> Data {
    Data::from_literals(elem, values.iter().map(|&v| Literal::of(elem, v)))
}

fn evaluate(graph: &Graph) -> FxHashMap<ValueRef, Vec<f64>> {
    let mut values: FxHashMap<ValueRef, Vec<f64>> = FxHashMap::default();
    for id in graph.topological().unwrap() {
        if let Op::Reduce { combine, dims } = &graph.node(id).op {
            let operands = graph.operands(id);
            let from = graph.ty(operands[0]).shape.clone();
            let operands: Vec<&[f64]> = operands.iter().map(|v| &values[v][..]).collect();
            let results = reduce(*combine, dims, &operands, &from);
            for (out, result) in results.into_iter().enumerate() {
                values.insert(ValueRef { node: id, out: out as u16 }, result);
            }
            continue;
        }
        let result = node(graph, id, &values);
        values.insert(id.into(), result);
    }
    values
}

fn points(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|p| (0..n).map(move |i| [p.clone(), vec![i]].concat())).collect()
    })
}

fn position(index: &[i64], shape: &[i64]) -> usize {
    index.iter().zip(shape).fold(0, |p, (&i, &n)| p * n as usize + i as usize)
}

fn node(graph: &Graph, id: NodeId, values: &FxHashMap<ValueRef, Vec<f64>>) -> Vec<f64> {
    let operands = graph.operands(id);
    let ty = graph.ty(id.into());
    let operand = |i: usize| &values[&operands[i]];
    let from = |i: usize| graph.ty(operands[i]).shape.clone();
    match &graph.node(id).op {
        Op::Input(i) => (0..ty.numel()).map(|p| sample(*i, p, ty.dtype.elem().unwrap())).collect(),
        Op::Scalar(literal) => vec![literal.as_f64()],
        Op::Map(f) => (0..ty.numel() as usize)
            .map(|p| apply(*f, &(0..operands.len()).map(|i| operand(i)[p]).collect::<Vec<_>>()))
            .collect(),
        Op::Cast => operand(0).clone(),
        Op::View(view) => {
            points(&ty.shape).iter().map(|p| viewed(view, p, &from(0), &ty.shape, operand(0))).collect()
        }
        Op::Concat { dim } => points(&ty.shape)
            .iter()
            .map(|p| {
                let (mut at, mut which) = (p.clone(), 0);
                while at[usize::from(*dim)] >= from(which)[usize::from(*dim)] {
                    at[usize::from(*dim)] -= from(which)[usize::from(*dim)];
                    which += 1;
                }
                operand(which)[position(&at, &from(which))]
            })
            .collect(),
        Op::Gather { dim } => points(&ty.shape)
            .iter()
            .map(|p| {
                let mut at = p.clone();
                at[usize::from(*dim)] = operand(1)[position(p, &ty.shape)] as i64;
                operand(0)[position(&at, &from(0))]
            })
            .collect(),
        Op::Aten(_) => custom(graph.node(id), operand(0), ty.numel()),
        other => panic!("{other:?}"),
    }
}

/// What a block kernel makes of one operand.
fn custom(node: &crate::Node, operand: &[f64], numel: i64) -> Vec<f64> {
    let kernel = node.kernel.as_ref().unwrap().as_ref().unwrap();
    let buffers = [data(Elem::F32, operand), data(Elem::F32, &vec![0.0; numel as usize])];
    let mut args = buffers.map(Arg::buffer);
    interp::run(&kernel.program, &mut args, kernel.grid).unwrap();
    args[1].data().unwrap().to_f64()
}

fn viewed(view: &crate::graph::View, p: &[i64], from: &[i64], to: &[i64], operand: &[f64]) -> f64 {
    let mut ix = Indices::new(to);
    let index: Vec<_> = (0..to.len()).map(|d| ix.var(Var(d as u32))).collect();
    let inner = view_index(&mut ix, view, from, to, &index);
    let at: Vec<i64> = inner.iter().map(|&e| ix.eval(e, p)).collect();
    if let crate::graph::View::Pad { low, interior, fill } = view {
        let is_between = |d: usize| (p[d] - low[d]).rem_euclid(interior[d] + 1) != 0;
        if (0..from.len()).any(|d| is_between(d) || at[d] < 0 || at[d] >= from[d]) {
            return fill.as_f64();
        }
    }
    operand[position(&at, from)]
}

fn reduce(combine: Combiner, dims: &[u8], operands: &[&[f64]], from: &[i64]) -> Vec<Vec<f64>> {
    let kept: Vec<usize> = (0..from.len()).filter(|d| !dims.contains(&(*d as u8))).collect();
    let shape: Vec<i64> = kept.iter().map(|&d| from[d]).collect();
    let mut rows = vec![Vec::new(); shape.iter().product::<i64>() as usize];
    for p in points(from) {
        let row: Vec<i64> = kept.iter().map(|&d| p[d]).collect();
        let at = position(&p, from);
        rows[position(&row, &shape)].push(operands.iter().map(|o| o[at]).collect::<Vec<f64>>());
    }
    let rows: Vec<Vec<f64>> = rows.iter().map(|row| tuple(combine, row)).collect();
    (0..operands.len()).map(|member| rows.iter().map(|row| row[member]).collect()).collect()
}

fn tuple(combine: Combiner, row: &[Vec<f64>]) -> Vec<f64> {
    let fold = |f: ReduceFn| {
        row.iter().map(|x| x[0]).fold(f.neutral(Elem::F64).as_f64(), |a, x| apply(f.combine(), &[a, x]))
    };
    match combine {
        Combiner::Scalar(function) => vec![fold(function)],
        Combiner::MaxSumExp => {
            let most = fold(ReduceFn::Max);
            vec![most, row.iter().map(|x| x[1] * (x[0] - most).exp()).sum()]
        }
        Combiner::Moments => {
            let count: f64 = row.iter().map(|x| x[0]).sum();
            let mean = row.iter().map(|x| x[0] * x[1]).sum::<f64>() / count;
            vec![count, mean, row.iter().map(|x| x[2] + x[0] * (x[1] - mean).powi(2)).sum()]
        }
        Combiner::ArgMax | Combiner::ArgMin => {
            let f = if combine == Combiner::ArgMax { ReduceFn::Max } else { ReduceFn::Min };
            let best = fold(f);
            let first = row.iter().filter(|x| x[0] == best).map(|x| x[1]).fold(f64::INFINITY, f64::min);
            vec![best, first]
        }
    }
}

fn sample(input: u32, position: i64, elem: Elem) -> f64 {
    if elem == Elem::I64 {
        return ((position * 7 + 3) % 50) as f64;
    }
    let noise = (position as f64 * 12.9898 + f64::from(input) * 78.233).sin() * 43758.5453;
    let value = f64::from((noise - noise.floor()) as f32 * 4.0 - 2.0);
    if elem == Elem::Bf16 { Literal::float(elem, value).as_f64() } else { value }
}

fn apply(f: ScalarFn, args: &[f64]) -> f64 {
    match f {
        ScalarFn::Add => args[0] + args[1],
        ScalarFn::Sub => args[0] - args[1],
        ScalarFn::Mul => args[0] * args[1],
        ScalarFn::Div => args[0] / args[1],
        ScalarFn::Max => args[0].max(args[1]),
        ScalarFn::Min => args[0].min(args[1]),
        ScalarFn::Eq => f64::from(args[0] == args[1]),
        ScalarFn::Ne => f64::from(args[0] != args[1]),
        ScalarFn::Lt => f64::from(args[0] < args[1]),
        ScalarFn::Gt => f64::from(args[0] > args[1]),
        ScalarFn::Or => f64::from(args[0] != 0.0 || args[1] != 0.0),
        ScalarFn::Select => args[usize::from(args[0] == 0.0) + 1],
        ScalarFn::Log => args[0].ln(),
        ScalarFn::Neg => -args[0],
        ScalarFn::Exp => args[0].exp(),
        ScalarFn::Tanh => args[0].tanh(),
        ScalarFn::Rsqrt => 1.0 / args[0].sqrt(),
        ScalarFn::Erf => {
            let literal = Literal::float(Elem::F64, args[0]);
            tilefuse_block::eval::map_literals(ScalarFn::Erf, &[literal]).map_or(f64::NAN, |l| l.as_f64())
        }
        other => panic!("{other:?}"),
    }
}
