//! Which values may differ between threads that hold the same element of them: those that were read from memory, which
//! another instance may have changed between the threads' reads, and what is computed from these.

use tilefuse_block::{Op, OpKind, Program, Value};

/// By value: whether it comes from a load.
pub(crate) fn loaded(program: &Program) -> Vec<bool> {
    let mut out = vec![false; program.values.len()];
    loop {
        let before = out.iter().filter(|l| **l).count();
        program.walk(&mut |op| visit(op, &mut out));
        if out.iter().filter(|l| **l).count() == before {
            return out;
        }
    }
}

fn visit(op: &Op, out: &mut [bool]) {
    let yields = |index: usize| {
        let last = op.regions.get(index).and_then(|r| r.ops.last());
        last.map(|last| last.args.as_slice()).unwrap_or_default()
    };
    match op.kind {
        OpKind::For => carry(out, &op.args[3..], yields(0), &[&op.regions[0].args[1..], &op.results]),
        OpKind::While => {
            carry(out, &op.args, yields(1), &[&op.regions[0].args, &op.regions[1].args, &op.results]);
        }
        OpKind::If => carry(out, yields(0), yields(1), &[&op.results]),
        // Whoever changes an element tells the others what it was.
        OpKind::Atomic { .. } | OpKind::AtomicCas { .. } => {}
        OpKind::Load { .. } => op.results.iter().for_each(|r| out[r.index()] = true),
        _ => {
            let any = op.args.iter().any(|a| out[a.index()]);
            op.results.iter().for_each(|r| out[r.index()] |= any);
        }
    }
}

/// Every position of `to` gets what is known of that position of either source.
fn carry(out: &mut [bool], first: &[Value], second: &[Value], to: &[&[Value]]) {
    for (i, (a, b)) in first.iter().zip(second).enumerate() {
        let any = out[a.index()] || out[b.index()];
        for value in to.iter().filter_map(|values| values.get(i)) {
            out[value.index()] |= any;
        }
    }
}
