//! What reads a call's result and may become the epilogue of its kernel.

use super::call_kernels::Template;
use crate::block_kernel::{Block, BlockKernel};
use crate::combiner::Combiner;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::machine::Machine;
use tilefuse_block::ScalarFn;

/// The most operators that are looked through for an epilogue.
const MAX_EPILOGUE: usize = 64;

/// The most that one of them may cost on a GPU, in simple operations: an instance multiplies nothing while it computes its epilogue, and
/// a division or an exponential of a block takes longer than a kernel that reads memory meanwhile. Measured on an H100: with the gelu of
/// GPT-2 a product of 8192 x 3072 x 768 takes 17 us longer than with a kernel behind it. A thread of a processor computes it in either
/// place.
const MAX_COST: u32 = 4;

/// What an epilogue may be on a machine.
struct Limits {
    /// The most that one of its operators may cost, in simple operations.
    cost: u32,
    /// The most elements of a block that a thread may have where its rows are reduced.
    reduced: u64,
}

impl Limits {
    fn of(machine: Machine) -> Limits {
        match machine {
            Machine::Gpu { .. } => Limits { cost: MAX_COST, reduced: MAX_REDUCED },
            Machine::Host { .. } => Limits { cost: u32::MAX, reduced: u64::MAX },
        }
    }
}

/// Whether pointwise operators, or reductions of rows that a block of its kernel has, read a call's result and nothing else does,
/// and no kernel behind them would compute them as well: another reduction's, or one of pointwise operators that need what a later
/// call computes.
pub(super) fn has_epilogue(graph: &Graph, node: NodeId, template: &Template, machine: Machine) -> bool {
    let limits = Limits::of(machine);
    let block = template.kernel.coordinates.iter().find_map(|c| c.block);
    let block = block.filter(|block| elements_of_thread(&template.kernel, block) <= limits.reduced);
    let of_rows = |reduce: NodeId| block.is_some_and(|block| reduces_rows(graph, reduce, &block));
    let numel = graph.ty(node.into()).numel();
    if graph.outputs.iter().any(|output| output.node == node) {
        return false;
    }
    // A kernel writes what a permutation brings into channels-last behind a convolution.
    let is_conv = matches!(&graph.node(node).op, Op::Aten(call)
        if call.contraction().is_some_and(|form| form.window.is_some()));
    let mut inside = vec![node];
    let mut computes = false;
    let mut at = 0;
    while let Some(&value) = inside.get(at) {
        at += 1;
        for (user, _) in graph.users(value) {
            let same = graph.ty(user.into()).numel() == numel;
            match graph.node(user).op {
                _ if inside.contains(&user) => {}
                Op::View(View::Reshape) if same => inside.push(user),
                Op::View(View::Permute(_)) if is_conv && value == node => inside.push(user),
                Op::Map(function) if function.cost() > limits.cost => return false,
                Op::Map(_) | Op::Cast if same => {
                    let outside = |v: &ValueRef| !inside.contains(&v.node);
                    let operands = graph.operands(user);
                    let cheap = operands
                        .iter()
                        .filter(|v| outside(v))
                        .all(|v| is_cheap(graph, v.node, numel, &limits));
                    if inside.len() >= MAX_EPILOGUE || !cheap {
                        return false;
                    }
                    inside.push(user);
                    computes = true;
                }
                Op::Reduce { combine: Combiner::MaxSumExp, .. } if ScalarFn::Exp.cost() > limits.cost => {
                    return false;
                }
                Op::Reduce { .. } if of_rows(user) => computes = true,
                Op::Map(_) | Op::Cast | Op::Reduce { .. } => return false,
                _ if value == node => return false,
                _ => {}
            }
        }
    }
    computes
}

/// The most elements of a block that a thread may have where its rows are reduced: they stay in registers until all are, beside what
/// is computed of them.
const MAX_REDUCED: u64 = 64;

/// Elements of a block that each thread of a GPU has.
fn elements_of_thread(kernel: &BlockKernel, block: &Block) -> u64 {
    let elements = kernel.program.ty(block.rows).numel() * u64::from(block.columns);
    elements / u64::from(32 * kernel.program.warps).max(1)
}

/// Whether a reduction is one of whole rows that a block has.
fn reduces_rows(graph: &Graph, reduce: NodeId, block: &Block) -> bool {
    let Op::Reduce { dims, .. } = &graph.node(reduce).op else { return false };
    let operand = graph.operands(reduce).first().map(|&operand| graph.ty(operand).shape.clone());
    let Some((&columns, rows)) = operand.as_ref().and_then(|shape| shape.split_last()) else { return false };
    dims[..] == [rows.len() as u8] && columns == block.matrix[1] && columns <= i64::from(block.columns)
}

/// Whether an operand of an epilogue of so many elements is neither what a call computes, which may run later, nor made by expensive
/// operators, which would become part of the epilogue: but of what is spread over a block a number of elements is computed.
fn is_cheap(graph: &Graph, node: NodeId, numel: i64, limits: &Limits) -> bool {
    let mut seen = vec![node];
    let mut at = 0;
    while let Some(&node) = seen.get(at) {
        at += 1;
        match graph.node(node).op {
            Op::Map(function) if function.cost() > limits.cost && !is_spread(graph, node, numel) => {
                return false;
            }
            Op::Map(_) | Op::View(_) | Op::Cast => {
                if seen.len() >= MAX_EPILOGUE {
                    return false;
                }
                for operand in graph.operands(node) {
                    if !seen.contains(&operand.node) {
                        seen.push(operand.node);
                    }
                }
            }
            // The first one is the operand itself or a view of it; further ones ran before the operators that read them.
            Op::Aten(_) if seen[..at].iter().all(|&n| !matches!(graph.node(n).op, Op::Map(_))) => {
                return false;
            }
            _ => {}
        }
    }
    true
}

/// How many vectors of so many elements, one for each column of a result, a call and the pointwise operators behind it read.
pub(super) fn column_vectors(graph: &Graph, node: NodeId, columns: i64) -> u32 {
    let numel = graph.ty(node.into()).numel();
    let pointwise = |op: &Op| matches!(op, Op::Map(_) | Op::Cast | Op::View(_));
    let mut inside = vec![node];
    let mut at = 0;
    while let Some(&value) = inside.get(at) {
        at += 1;
        for (user, _) in graph.users(value) {
            let same = pointwise(&graph.node(user).op) && graph.ty(user.into()).numel() == numel;
            if same && !inside.contains(&user) && inside.len() < MAX_EPILOGUE {
                inside.push(user);
            }
        }
    }
    let mut seen = inside.clone();
    let mut stack = inside;
    let mut count = 0;
    while let Some(value) = stack.pop() {
        for operand in graph.operands(value) {
            if seen.contains(&operand.node) || seen.len() >= 4 * MAX_EPILOGUE {
                continue;
            }
            seen.push(operand.node);
            let op = &graph.node(operand.node).op;
            // A residual is read once, element by element.
            let spread = matches!(op, Op::View(_)) || graph.ty(operand).numel() < numel;
            match pointwise(op) {
                true if spread => stack.push(operand.node),
                true => {}
                false => count += u32::from(graph.ty(operand).numel() == columns && columns > 1),
            }
        }
    }
    count
}

/// Whether a value is of so few elements that an epilogue of so many computes each for several of its own.
fn is_spread(graph: &Graph, node: NodeId, numel: i64) -> bool {
    graph.ty(node.into()).numel().saturating_mul(MIN_SPREAD) <= numel
}

/// For how many elements of an epilogue one is computed at least.
const MIN_SPREAD: i64 = 16;
