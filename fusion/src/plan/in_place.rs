//! Which values a kernel may write where it reads others.
//!
//! An element may be written in place if every read of it is the instance's that writes it, and comes before. Stores stand
//! in an order in which as many updates as possible come after what needs the old value:
//!
//! ```text
//! m2 = m * 0.9 + g            store m2, over m; store p2, which reads m again
//! p2 = p - m2 * 0.1      ->   store p2, over p; store m2, over m
//! ```

use crate::graph::{Graph, ValueRef};
use crate::kernel::{KExpr, KNode, Kernel, Reduction, Store};
use crate::schedule::Tiling;

/// Pairs of a value that is read and a value that is written, each of which may be the same memory.
pub(super) fn pairs(graph: &Graph, kernel: &Kernel, tiling: &Tiling) -> Vec<(ValueRef, ValueRef)> {
    let mut found = Vec::new();
    for (written, target) in kernel.buffers.iter().enumerate().filter(|(_, b)| b.written) {
        let mut stores = (0..kernel.stores.len()).filter(|&s| kernel.stores[s].buffer as usize == written);
        let (Some(store), None) = (stores.next(), stores.next()) else { continue };
        let numel = graph.ty(target.value).numel();
        if numel != target.span || kernel.points_of(u64::MAX) != numel as u64 {
            continue;
        }
        for (read, source) in kernel.buffers.iter().enumerate().filter(|(_, b)| !b.written) {
            // Of what repeats elements, memory of the value's size has no place for each.
            let alike = graph.ty(source.value).dtype == graph.ty(target.value).dtype
                && graph.ty(source.value).numel() == source.span
                && source.elem == target.elem
                && source.span == target.span;
            if alike && is_read_before(kernel, tiling, read as u32, store) {
                found.push((source.value, target.value));
            }
        }
    }
    found
}

/// Puts stores of new values of tensors that the kernel reads after the other stores that need the old ones, and leaves
/// the order as it is else.
pub(super) fn order_stores(graph: &Graph, kernel: &mut Kernel) {
    let count = kernel.stores.len();
    if count < 2 || graph.updates.is_empty() {
        return;
    }
    // By store: those that come before it.
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); count];
    let reached: Vec<Vec<bool>> = kernel.stores.iter().map(|s| reach(kernel, s.value, true)).collect();
    for update in &graph.updates {
        let buffer = |value: ValueRef| kernel.buffers.iter().position(|b| b.value == value);
        let (Some(written), Some(read)) = (buffer(update.value), buffer(update.target.into())) else {
            continue;
        };
        let Some(store) = kernel.stores.iter().position(|s| s.buffer as usize == written) else { continue };
        let loads =
            |at: usize| matches!(&kernel.exprs[at], KNode::Load { buffer, .. } if *buffer as usize == read);
        let needs = |other: &usize| (0..kernel.exprs.len()).any(|at| reached[*other][at] && loads(at));
        before[store].extend((0..count).filter(|&other| other != store).filter(needs));
    }
    let mut order: Vec<usize> = Vec::with_capacity(count);
    while order.len() < count {
        let open = |at: &usize| !order.contains(at);
        let ready = |at: &usize| open(at) && before[*at].iter().all(|b| order.contains(b));
        // In a circle one value is copied; the first takes the blame.
        let next = (0..count).find(ready).or_else(|| (0..count).find(open));
        order.extend(next);
    }
    kernel.stores = order.iter().map(|&at| kernel.stores[at].clone()).collect();
}

/// Whether every element of a buffer is read for the last time before the store at this position writes at its
/// address. Targets may compute an expression again for every store and reduction that needs it, in the order in which
/// these stand in the program.
fn is_read_before(kernel: &Kernel, tiling: &Tiling, buffer: u32, position: usize) -> bool {
    let store = &kernel.stores[position];
    let is_load = |node: &KNode| matches!(node, KNode::Load { buffer: b, .. } if *b == buffer);
    let at_address =
        |node: &&KNode| matches!(node, KNode::Load { addr, dynamic: None, .. } if *addr == store.addr);
    let loads: Vec<&KNode> = kernel.exprs.iter().filter(|node| is_load(node)).collect();
    if loads.is_empty() || !loads.iter().all(at_address) {
        return false;
    }
    // In loops, reductions have their results before what needs them begins.
    let loads_for = |value: KExpr| {
        let reached = reach(kernel, value, !tiling.is_walked());
        (0..kernel.exprs.len()).filter(|&at| reached[at] && is_load(&kernel.exprs[at])).count()
    };
    if loads_for(store.value) != loads.len() {
        return false;
    }
    let level = |value: KExpr| if tiling.is_walked() { kernel.info(value).level + 1 } else { 0 };
    let own = level(store.value);
    let store_after = |(at, other): (usize, &Store)| {
        let after = (level(other.value), at) > (own, position);
        after && loads_for(other.value) > 0
    };
    let reduce_after = |r: &Reduction| tiling.is_walked() && r.level >= own && loads_for(r.value) > 0;
    let reduced =
        (0..kernel.reduced.len()).filter(|&v| kernel.reduced[v]).fold(0, |set, v| set | 1 << v.min(63));
    let in_loops = !tiling.is_walked() || kernel.indices.vars(store.addr) & reduced != 0;
    in_loops && !kernel.stores.iter().enumerate().any(store_after) && !kernel.reduces.iter().any(reduce_after)
}

/// Which expressions one is computed of, itself among them; those of reductions' operands where these are followed, and of mix-order
/// ones, which are made where they are used.
fn reach(kernel: &Kernel, value: KExpr, through_reductions: bool) -> Vec<bool> {
    let mut reached = vec![false; kernel.exprs.len()];
    let mut stack = vec![value];
    while let Some(expr) = stack.pop() {
        if std::mem::replace(&mut reached[expr.index()], true) {
            continue;
        }
        match kernel.node(expr) {
            KNode::Const(_) | KNode::Index(..) | KNode::InRange(..) => {}
            KNode::Load { dynamic, mask, .. } => stack.extend(dynamic.iter().map(|d| d.index).chain(*mask)),
            KNode::Map(_, args) => stack.extend(args.iter().copied()),
            KNode::Cast(inner, _) => stack.push(*inner),
            KNode::Reduce(position) => {
                let reduction = &kernel.reduces[*position as usize];
                stack.extend((through_reductions || reduction.mix_order).then_some(reduction.value));
            }
        }
    }
    reached
}
