//! Pads products whose rows libtorch's library cannot read or write in units of 16 bytes.
//!
//! ```text
//! %2 = aten::linear(input=%x, weight=%w)        ->   %3 = aten::constant_pad_nd(self=%w, pad=[0, 0, 0, 7])
//!      : bf16[8192,50257]@cuda:0                     %4 = aten::linear(input=%x, weight=%3) : bf16[8192,50264]
//!                                                    %5 = aten::slice(self=%4, dim=-1, start=0, end=50257)
//! ```
//!
//! On a GPU, a product of halves with an odd number of columns takes a kernel several times slower than the one for
//! the next multiple of eight. The padded weight and the padded result are further memory; the rewrite is made where
//! what it saves is more than what moving them costs.

use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef};
use crate::plan::Profile;
use crate::recording::Arg;
use crate::types::{Device, TensorType};
use tilefuse_block::Elem;

/// Columns are padded to a multiple of this many, which is 16 bytes of halves.
const UNIT: i64 = 8;

/// Pads the products of a functional graph for which it pays on this machine; returns how many there were.
pub fn pad_products(graph: &mut Graph, profile: &Profile) -> usize {
    let ids: Vec<NodeId> = graph.ids().collect();
    let mut count = 0;
    for id in ids {
        if let Some(product) = find(graph, id, profile) {
            replace(graph, &product);
            count += 1;
        }
    }
    if count > 0 {
        graph.remove_unused();
    }
    count
}

struct Product {
    node: NodeId,
    input: ValueRef,
    weight: ValueRef,
    bias: Option<ValueRef>,
    /// Columns to add.
    more: i64,
}

fn find(graph: &Graph, node: NodeId, profile: &Profile) -> Option<Product> {
    let Op::Aten(call) = &graph.node(node).op else { return None };
    if call.op != "aten::linear" || !call.writes.is_empty() {
        return None;
    }
    let (args, operands) = (Args(&call.args), graph.operands(node));
    let operand = |name| operands.get(usize::from(args.tensor(name)?)).copied();
    let (input, weight) = (operand("input")?, operand("weight")?);
    let bias = if args.absent("bias") { None } else { Some(operand("bias")?) };
    let (ty, x, w) = (graph.ty(node.into()), graph.ty(input), graph.ty(weight));
    let half = matches!(ty.dtype.elem(), Some(Elem::F16 | Elem::Bf16));
    let same = [x, w].iter().all(|t| t.dtype == ty.dtype && t.device == ty.device);
    let &[columns, depth] = &w.shape[..] else { return None };
    let more = (UNIT - columns % UNIT) % UNIT;
    let rows = x.numel().checked_div(depth)?;
    let fits = matches!(ty.device, Device::Cuda(_)) && half && same && more > 0 && depth % UNIT == 0;
    (fits && pays(rows, columns, depth, profile)).then_some(Product { node, input, weight, bias, more })
}

/// Whether a padded product and the copies of its weight and result take less time than the product as it is.
fn pays(rows: i64, columns: i64, depth: i64, profile: &Profile) -> bool {
    let [rows, columns, depth] = [rows, columns, depth].map(|n| n as f64);
    let operations = 2.0 * rows * columns * depth;
    let copied = 4.0 * (columns * depth + rows * columns);
    // Of the kernels that copy the weight, the bias and the result.
    let launches_us = 3.0 * profile.launch_us;
    let spent_us =
        (operations / profile.products.aligned + copied / profile.bandwidth) / 1000.0 + launches_us;
    spent_us < operations / profile.products.unaligned / 1000.0
}

fn replace(graph: &mut Graph, product: &Product) {
    let origin = graph.node(product.node).origin;
    let mut operands = vec![product.input, padded(graph, product.weight, product.more, origin)];
    let mut args = vec![("input", Arg::Tensor(0)), ("weight", Arg::Tensor(1)), ("bias", Arg::None)];
    if let Some(bias) = product.bias {
        args[2].1 = Arg::Tensor(2);
        operands.push(padded(graph, bias, product.more, origin));
    }
    let ty = graph.ty(product.node.into()).clone();
    let mut wide = ty.shape.clone();
    let (last, columns) = (wide.len() - 1, wide[wide.len() - 1]);
    wide[last] += product.more;
    let wide = TensorType::contiguous(ty.dtype, &wide, ty.device);
    let strides = wide.strides.clone();
    let name =
        graph.origin(product.node).map(|name| format!("{name} padded to {} columns", columns + product.more));
    let origin = name.map(|name| graph.add_origin(name));
    let call = AtenCall::new("aten::linear", "", args);
    let result = graph.add(Op::Aten(Box::new(call)), &operands, [wide], origin);
    let args = [
        ("self", Arg::Tensor(0)),
        ("dim", Arg::Int(-1)),
        ("start", Arg::Int(0)),
        ("end", Arg::Int(columns)),
        ("step", Arg::Int(1)),
    ];
    let slice = Op::Aten(Box::new(AtenCall::new("aten::slice", "Tensor", args)));
    let slice = graph.add(slice, &[result.into()], [TensorType { strides, ..ty }], origin);
    graph.replace_uses(product.node.into(), slice.into());
}

/// A value with zeros after its first dimension.
fn padded(graph: &mut Graph, value: ValueRef, more: i64, origin: Option<u32>) -> ValueRef {
    let ty = graph.ty(value);
    let mut shape = ty.shape.clone();
    shape[0] += more;
    let mut pad = vec![0; 2 * shape.len()];
    pad[2 * shape.len() - 1] = more;
    let ty = TensorType::contiguous(ty.dtype, &shape, ty.device);
    let args = [("self", Arg::Tensor(0)), ("pad", Arg::Ints(pad)), ("value", Arg::Float(0.0))];
    let call = AtenCall::new("aten::constant_pad_nd", "", args);
    graph.add(Op::Aten(Box::new(call)), &[value], [ty], origin).into()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::pad_products;
    use crate::plan::Profile;
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
    fn an_odd_number_of_columns_is_padded() {
        let mut graph = parse_graph(&linear(8192, 50257, "bf16", "@cuda:0")).unwrap();
        assert_eq!(pad_products(&mut graph, &Profile::gpu(132, 4200.0)), 1);
        verify(&graph).unwrap();
        verify(&lower(&graph).unwrap()).unwrap();
        expect![[r#"
            graph {
              %0 = input 0 : bf16[8192,768]@cuda:0
              %1 = param 0 : bf16[50257,768]@cuda:0
              %2 = aten::constant_pad_nd(self=%1, pad=[0, 0, 0, 7], value=0.0) : bf16[50264,768]@cuda:0
              %3 = aten::linear(input=%0, weight=%2, bias=None) : bf16[8192,50264]@cuda:0
              %4 = aten::slice.Tensor(self=%3, dim=-1, start=0, end=50257, step=1) : bf16[8192,50257]{50264,1}@cuda:0
              outputs %4
            }
        "#]].assert_eq(&graph.to_string());
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
                pad_products(&mut graph, &Profile::gpu(132, 4200.0)),
                0,
                "{rows} {columns} {dtype} {device}"
            );
        }
    }
}
