//! What a graph computes, without what nothing reads and without the order and the names of its nodes.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tilefuse_fusion::{AliasTarget, Graph, NodeId, Op, ValueRef};

/// Equal for two graphs only if they compute the same of the same nodes: hashes of the expressions of outputs and
/// write-backs, and the memory that outputs share.
pub(super) fn meaning(graph: &Graph) -> Vec<u64> {
    let nodes = hashes(graph);
    let of = |value: &ValueRef| hash((nodes.get(&value.node), value.out));
    let aliases = graph.aliases.iter().enumerate().filter_map(|(at, alias)| Some((at, alias.as_ref()?)));
    let aliases = aliases.filter(|(_, alias)| alias.ty.numel() > 0);
    let alias = |(at, alias): (usize, &tilefuse_fusion::OutputAlias)| {
        let target = match alias.target {
            AliasTarget::Node(node) => (0, nodes.get(&node).copied().unwrap_or(0)),
            AliasTarget::Output(output) => (1, u64::from(output)),
        };
        hash((at, target, format!("{:?}", alias.ty), alias.offset))
    };
    let update = |u: &tilefuse_fusion::Update| hash((nodes.get(&u.target), of(&u.value)));
    // An output that shares memory is made of that, not of its value.
    let own = |at: &usize| graph.aliases.get(*at).is_none_or(Option::is_none);
    let outputs = (0..graph.outputs.len()).filter(own).map(|at| of(&graph.outputs[at]));
    outputs.chain(graph.updates.iter().map(update)).chain(aliases.map(alias)).collect()
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn hashes(graph: &Graph) -> HashMap<NodeId, u64> {
    let mut nodes: HashMap<NodeId, u64> = HashMap::new();
    for id in graph.topological().unwrap_or_default() {
        let node = graph.node(id);
        let skipped = usize::from(overwrites(&node.op));
        let operands = graph.operands(id);
        let operands = operands.iter().skip(skipped).map(|v| (nodes.get(&v.node).copied(), v.out));
        let types = format!("{:?}", node.outs);
        let has_elements = node.outs.iter().any(|ty| ty.numel() > 0);
        let own = if has_elements {
            hash((operation(&node.op), types, operands.collect::<Vec<_>>()))
        } else {
            hash(types)
        };
        nodes.insert(id, own);
    }
    nodes
}

/// Whether a call reads nothing of its first operand, a copy of which it writes.
fn overwrites(op: &Op) -> bool {
    const RANDOM: [&str; 5] =
        ["aten::normal_", "aten::uniform_", "aten::random_", "aten::exponential_", "aten::bernoulli_"];
    matches!(op, Op::Aten(call) if RANDOM.contains(&call.op.as_str()))
}

/// The recorded calls that libtorch makes again.
pub(super) fn recorded(graph: &Graph) -> HashSet<u32> {
    let replay = |id| match &graph.node(id).op {
        Op::Aten(call) => call.replay,
        _ => None,
    };
    graph.ids().filter_map(replay).collect()
}

/// The operator. A recorded call runs with the numbers that it was recorded with, whatever the graph says of them.
fn operation(op: &Op) -> String {
    match op {
        Op::Aten(call) if call.replay.is_some() => {
            let mut call = call.clone();
            call.args.retain(|(_, arg)| arg.tensors().next().is_some());
            format!("{call:?}")
        }
        op => format!("{op:?}"),
    }
}
