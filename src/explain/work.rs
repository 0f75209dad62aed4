//! Additions and multiplications of products, convolutions and attention, from the types of their operands.

use tilefuse_fusion::plan::{Plan, StepKind};
use tilefuse_fusion::{Arg, AtenCall, Graph, NodeId, Op, TensorType};

/// The operations of a step: those of its expressions, and a multiplication and an addition for each product that it sums.
pub(super) fn flops(plan: &Plan, step: &StepKind) -> u64 {
    match step {
        StepKind::Kernel(kernel) => {
            let sums = kernel.nodes.iter().map(|&node| sums(&plan.graph, node));
            sums.fold(kernel.flops, u64::saturating_add)
        }
        StepKind::Extern(call) => sums(&plan.graph, call.node),
    }
}

fn elements(ty: &TensorType) -> u64 {
    ty.shape.iter().fold(1, |all, &n| all.saturating_mul(n.max(0) as u64))
}

fn sums(graph: &Graph, node: NodeId) -> u64 {
    let Some(result) = graph.node(node).outs.first() else { return 0 };
    let length = match &graph.node(node).op {
        Op::Contract(contraction) => {
            let left = graph.operands(node).first().map(|&left| graph.ty(left));
            let length = |dim: u8| left.and_then(|ty| ty.shape.get(usize::from(dim))).copied().unwrap_or(1);
            contraction.sum.iter().map(|&(dim, _)| length(dim).max(0) as u64).product()
        }
        Op::Aten(call) => summed(graph, node, call, result).unwrap_or(0),
        _ => 0,
    };
    elements(result).saturating_mul(length).saturating_mul(2)
}

/// How many products are summed for an element of a call's result.
fn summed(graph: &Graph, node: NodeId, call: &AtenCall, result: &TensorType) -> Option<u64> {
    let operands = graph.operands(node);
    let ty = |name: &str| {
        let (_, arg) = call.args.iter().find(|(n, _)| n == name)?;
        let Arg::Tensor(position) = arg else { return None };
        Some(graph.ty(*operands.get(usize::from(*position))?))
    };
    let last = |ty: &TensorType| ty.shape.last().map(|&n| n.max(0) as u64);
    match call.op.as_str() {
        "aten::linear" => last(ty("input")?),
        "aten::mm" | "aten::bmm" | "aten::matmul" | "aten::_int_mm" => last(ty("self")?),
        "aten::addmm" => last(ty("mat1")?),
        "aten::baddbmm" => last(ty("batch1")?),
        "aten::scaled_dot_product_attention" => {
            let (query, key) = (ty("query")?, ty("key")?);
            let keys = key.shape.iter().rev().nth(1).map(|&n| n.max(0) as u64)?;
            // Scores cost as many as there are elements of a row of queries; a row of results has as many as one of values.
            let width = last(query)? as f64 / last(result)?.max(1) as f64;
            Some((keys as f64 * (1.0 + width)) as u64)
        }
        op if op.starts_with("aten::conv") || op == "aten::_convolution" => {
            let (weight, input) = (ty("weight")?, ty("input")?);
            if op.contains("transpose") || call.args.contains(&(String::from("transposed"), Arg::Bool(true)))
            {
                // Each element of the input meets the weights of its channel.
                let channels = weight.shape.first().map(|&n| n.max(1) as u64)?;
                return Some(elements(input) * (elements(weight) / channels) / elements(result).max(1));
            }
            let filters = weight.shape.first().map(|&n| n.max(1) as u64)?;
            Some(elements(weight) / filters)
        }
        _ => None,
    }
}
