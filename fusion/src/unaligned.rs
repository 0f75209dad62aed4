//! Products whose result has rows that begin at no multiples of 16 bytes.
//!
//! ```text
//! %2 = aten::linear(input=%x, weight=%w)   ->   %2 = tilefuse::linear_by_rows(inputs=[%x, %w])
//!      : bf16[8192,50257]@cuda:0                     : bf16[8192,50257]@cuda:0
//! ```
//!
//! On a GPU, libtorch's library takes a kernel several times slower for a product of halves with an odd number of
//! columns than for the next multiple of eight. The operator that takes its place makes the same result of several
//! products: of every eighth row, whose starts are as far apart as a multiple of 16 bytes. It is chosen where this takes
//! less time.

use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::plan::Profile;
use crate::recording::Arg;
use crate::rewrites::Rewrites;
use crate::types::Device;
use tilefuse_block::Elem;

/// The operator: `linear_by_rows(Tensor[] inputs) -> Tensor[]` takes input, weight and, where there is one, bias.
pub const LINEAR_BY_ROWS: &str = "tilefuse::linear_by_rows";

/// Columns of halves that are 16 bytes.
const COLUMN_UNIT: i64 = 8;

/// Columns at both ends of a row that are computed apart from the rest.
const END_COLUMNS: i64 = 24;

/// Replaces the products of a functional graph for which it pays on this machine; returns how many there were.
pub(crate) fn split_unaligned_products(graph: &mut Graph, profile: &Profile, rewrites: &Rewrites) -> usize {
    let ids: Vec<NodeId> = graph.ids().collect();
    let mut count = 0;
    for id in ids {
        if let Some(operands) = find(graph, id, profile)
            && rewrites.allow("split-unaligned-products")
        {
            replace(graph, id, &operands);
            count += 1;
        }
    }
    if count > 0 {
        graph.remove_unused();
    }
    count
}

/// Input, weight and bias of a product that is better made by rows.
fn find(graph: &Graph, node: NodeId, profile: &Profile) -> Option<Vec<ValueRef>> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    if call.op != "aten::linear" || !call.writes.is_empty() || graph.node(node).kernel.is_some() {
        return None;
    }
    let (args, operands) = (Args(&call.args), graph.operands(node));
    let operand = |name| operands.get(usize::from(args.tensor(name)?)).copied();
    let mut found = vec![operand("input")?, operand("weight")?];
    if !args.absent("bias") {
        found.push(operand("bias")?);
    }
    let (ty, w) = (graph.ty(node.into()), graph.ty(found[1]));
    let half = matches!(ty.dtype.elem(), Some(Elem::F16 | Elem::Bf16));
    let plain = |&v: &ValueRef| {
        let t = graph.ty(v);
        t.dtype == ty.dtype && t.device == ty.device && t.is_contiguous()
    };
    let &[columns, depth] = &w.shape[..] else { return None };
    let rows = graph.ty(found[0]).numel().checked_div(depth)?;
    let odd = columns % COLUMN_UNIT != 0 && columns >= 2 * END_COLUMNS && depth % COLUMN_UNIT == 0;
    let fits =
        matches!(ty.device, Device::Cuda(_)) && half && odd && found.iter().all(plain) && ty.is_contiguous();
    (fits && pays(rows, columns, depth, profile)).then_some(found)
}

/// Whether products by rows and of both ends take less time than the product as it is.
fn pays(rows: i64, columns: i64, depth: i64, profile: &Profile) -> bool {
    let operations = |columns: i64| 2.0 * rows as f64 * columns as f64 * depth as f64;
    // Every eighth row, at most, and both ends with their copies; each part ends with few blocks.
    let launches_us = (COLUMN_UNIT + 4) as f64 * 2.0 * profile.launch_us;
    let spent_us = operations(columns + END_COLUMNS) / profile.products.aligned / 1000.0 + launches_us;
    spent_us < operations(columns) / profile.products.unaligned / 1000.0
}

fn replace(graph: &mut Graph, node: NodeId, operands: &[ValueRef]) {
    let origin = graph.node(node).origin;
    let name = graph.origin(node).map(|name| format!("{name} by rows"));
    let origin = name.map(|name| graph.add_origin(name)).or(origin);
    let ty = graph.ty(node.into()).clone();
    let inputs = Arg::Tensors((0..operands.len() as u16).map(Some).collect());
    let call = AtenCall::new(LINEAR_BY_ROWS, "", [("inputs", inputs)]);
    let result = graph.add(Op::Aten(Box::new(call)), operands, [ty], origin);
    graph.replace_uses(node.into(), result.into());
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::split_unaligned_products;
    use crate::plan::Profile;
    use crate::rewrites::Rewrites;
    use crate::{lower, parse_graph, verify};

    fn linear(rows: i64, columns: i64, dtype: &str, device: &str) -> String {
        format!(
            "graph {{
               %0 = input 0 : {dtype}[{rows},768]{device}
               %1 = param 0 : {dtype}[{columns},768]{device}
               %2 = aten::linear(input=%0, weight=%1, bias=None) : {dtype}[{rows},{columns}]{device}
               outputs %2
             }}"
        )
    }

    #[test]
    fn an_odd_number_of_columns_is_made_by_rows() {
        let mut graph = parse_graph(&linear(8192, 50257, "bf16", "@cuda:0")).unwrap();
        assert_eq!(split_unaligned_products(&mut graph, &Profile::gpu(132, 4200.0), &Rewrites::default()), 1);
        verify(&graph).unwrap();
        verify(&lower(&graph).unwrap()).unwrap();
        expect![[r#"
            graph {
              %0 = input 0 : bf16[8192,768]@cuda:0
              %1 = param 0 : bf16[50257,768]@cuda:0
              %2 = tilefuse::linear_by_rows(inputs=[%0, %1]) : bf16[8192,50257]@cuda:0
              outputs %2
            }
        "#]]
        .assert_eq(&graph.to_string());
    }

    #[test]
    fn what_does_not_pay_stays() {
        for (rows, columns, dtype, device) in [
            (8192, 50264, "bf16", "@cuda:0"),
            (1, 50257, "bf16", "@cuda:0"),
            (8192, 50257, "f32", "@cuda:0"),
            (8192, 50257, "bf16", ""),
        ] {
            let mut graph = parse_graph(&linear(rows, columns, dtype, device)).unwrap();
            assert_eq!(
                split_unaligned_products(&mut graph, &Profile::gpu(132, 4200.0), &Rewrites::default()),
                0,
                "{rows} {columns} {dtype} {device}"
            );
        }
    }
}
