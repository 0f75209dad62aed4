//! Cheap values that are computed again: of what a norm makes of its rows, deviations are read by its reduction of their squares, and by
//! what a product reads. Where each has its own, kernels that are divided between the two store none; in one kernel they are one
//! expression.
//!
//! ```text
//! %2 = map sub(%0, %1)                               %2 = map sub(%0, %1)
//! %3 = reduce sum of map mul(%2, %2)                 %3 = reduce sum of map mul(%2, %2)
//! %4 = contract of map mul(%2, ..)            ->     %5 = map sub(%0, %1)
//!                                                    %4 = contract of map mul(%5, ..)
//! ```

use rustc_hash::FxHashMap;

use crate::graph::{Graph, NodeId, Op};
use crate::rewrite_limit::Rewrites;

/// The most that a value which is computed again may cost, in simple operations.
const MAX_COST: u32 = 2;

/// The pass `rematerialize`: what is computed of each row's numbers, and what both a reduction and a block program are computed of
/// through pointwise operators alone, is computed for each of them.
pub(crate) fn rematerialize(graph: &mut Graph, rewrites: &Rewrites) {
    let Some(order) = graph.topological() else { return };
    let mut reached: FxHashMap<NodeId, Reached> = FxHashMap::default();
    for &id in order.iter().rev() {
        let found = reached_from(graph, id, &reached);
        reached.insert(id, found);
    }
    let reaches = |id: NodeId| reached.get(&id).copied().unwrap_or_default();
    for id in order {
        let is_cheap = matches!(graph.node(id).op, Op::Map(function) if function.cost() <= MAX_COST);
        let found = reaches(id);
        if !is_cheap || !found.reduction || !found.block_program || !is_of_rows(graph, id) {
            continue;
        }
        let users = graph.users(id).into_iter();
        let read: Vec<_> = users.filter(|&(user, _)| !reaches(user).reduction).collect();
        if !read.iter().any(|&(user, _)| reaches(user).block_program) || !rewrites.allow("recompute") {
            continue;
        }
        let node = graph.node(id).clone();
        let again = graph.add(node.op, &graph.operands(id), node.outs, node.origin);
        for (user, edge) in read {
            graph.set_operand(user, edge.operand, again.into());
        }
    }
}

/// Whether an operand is a smaller value that operators compute, spread over the elements.
fn is_of_rows(graph: &Graph, id: NodeId) -> bool {
    let numel = graph.ty(id.into()).numel();
    graph.operands(id).into_iter().any(|mut operand| {
        while let (Op::View(_), Some(&of)) =
            (&graph.node(operand.node).op, graph.operands(operand.node).first())
        {
            operand = of;
        }
        let is_computed = matches!(graph.node(operand.node).op, Op::Reduce { .. } | Op::Map(_) | Op::Cast);
        is_computed && graph.ty(operand).numel() < numel
    })
}

/// What is computed of a value through pointwise operators and views alone, or is computed by its node.
#[derive(Clone, Copy, Default)]
struct Reached {
    /// A reduction.
    reduction: bool,
    /// A call with a block program.
    block_program: bool,
}

/// What a node reaches, where that is known of its users.
fn reached_from(graph: &Graph, id: NodeId, reached: &FxHashMap<NodeId, Reached>) -> Reached {
    let node = graph.node(id);
    match node.op {
        Op::Reduce { .. } => Reached { reduction: true, block_program: false },
        Op::Map(_) | Op::Cast | Op::View(_) => {
            graph.users(id).into_iter().fold(Reached::default(), |all, (user, _)| {
                let of = reached.get(&user).copied().unwrap_or_default();
                Reached {
                    reduction: all.reduction || of.reduction,
                    block_program: all.block_program || of.block_program,
                }
            })
        }
        _ => Reached { reduction: false, block_program: matches!(node.kernel, Some(Ok(_))) },
    }
}

#[cfg(test)]
mod tests {
    use super::rematerialize;
    use crate::graph::Graph;
    use crate::machine::Profile;
    use crate::pipeline::{self, Context, Stage};
    use crate::rewrite_limit::Rewrites;
    use crate::{Products, parse_graph};

    /// Subtractions of a layer norm, of which something else is computed, before and after; and how many rewrites were made.
    fn subtractions(behind: &str) -> (String, u64) {
        let text = format!(
            "graph {{
               %0 = input 0 : f32[32,16]
               %1 = param 0 : f32[8,16]
               %2 = aten::layer_norm(input=%0, normalized_shape=[16], eps=1e-05, cudnn_enable=true) : f32[32,16]
               {behind}
               outputs %3
             }}"
        );
        let profile = Profile::host(2);
        let mut cx = Context::new(&profile);
        cx.selection.products = Products::Generated;
        let graph = parse_graph(&text).unwrap();
        let mut graph = pipeline::lowered(graph, Stage::Primitive..=Stage::Kernels, &mut cx).unwrap();
        let of = |graph: &Graph| {
            let text = graph.to_string();
            let lines = text.lines().filter(|line| line.contains("map sub"));
            lines.map(|line| format!("{}\n", line.trim())).collect::<String>()
        };
        let before = of(&graph);
        let rewrites = Rewrites::default();
        rematerialize(&mut graph, &rewrites);
        crate::verify(&graph).unwrap();
        (format!("{before}->\n{}", of(&graph)), rewrites.made())
    }

    #[test]
    fn deviations_are_computed_for_a_product_too() {
        let (text, made) = subtractions("%3 = aten::linear(input=%2, weight=%1) : f32[32,8]");
        expect_test::expect![[r#"
            %28 = map sub(%0, %27) : f32[32,16]
            %34 = map sub(%28, %33) : f32[32,16]
            %37 = map sub(%24, %36) : f32[32,1]
            ->
            %28 = map sub(%0, %27) : f32[32,16]
            %36 = map sub(%24, %35) : f32[32,1]
            %38 = map sub(%0, %27) : f32[32,16]
            %39 = map sub(%38, %33) : f32[32,16]
        "#]]
        .assert_eq(&text);
        assert_eq!(made, 1);
    }

    #[test]
    fn what_no_block_program_reads_is_computed_once() {
        assert_eq!(subtractions("%3 = aten::relu(self=%2) : f32[32,16]").1, 0);
    }
}
