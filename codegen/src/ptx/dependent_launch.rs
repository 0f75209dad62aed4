//! Reading ahead: a kernel that may start before the work before it has ended loads what nobody writes meanwhile first,
//! and waits then.
//!
//! ```text
//! %x = load %in0, %k                      %w = load %in1, %nk, hint ahead
//! %w = load %in1, %nk, hint ahead   ->    (wait for the kernels before)
//!                                         %x = load %in0, %k
//! ```
//!
//! In a chain of small kernels, weights so come from memory while the kernel before is still at work.

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{CacheHint, Op, OpKind, Program, Region, Value};

use super::lower::Lower;

/// Bytes that a thread may hold of what was read ahead.
const MAX_BYTES: u64 = 128;

/// Moves loads that may be made ahead, and what they are computed from, to the beginning of a program that may start
/// early; other loads lose the hint.
pub(super) fn hoist(program: &mut Program) {
    let first = if program.early { chosen(program) } else { Vec::new() };
    clear(&mut program.body, &first);
    let ops = std::mem::take(&mut program.body.ops);
    let (ahead, rest): (Vec<_>, Vec<_>) =
        ops.into_iter().enumerate().partition(|(at, _)| first.get(*at) == Some(&true));
    program.body.ops = ahead.into_iter().chain(rest).map(|(_, op)| op).collect();
}

/// Whether an operation may come before the wait.
fn may_precede(op: &Op) -> bool {
    op.kind.is_pure() || is_ahead(op)
}

fn is_ahead(op: &Op) -> bool {
    matches!(op.kind, OpKind::Load { hint: CacheHint::Ahead, .. })
}

/// By operation of the body: whether it comes first.
fn chosen(program: &Program) -> Vec<bool> {
    let ops = &program.body.ops;
    let written = written(program);
    let mut makers: FxHashMap<Value, usize> = FxHashMap::default();
    for (at, op) in ops.iter().enumerate() {
        makers.extend(op.results.iter().map(|&result| (result, at)));
    }
    let threads = u64::from(program.warps.max(1)) * 32;
    let (mut first, mut left) = (vec![false; ops.len()], MAX_BYTES * threads);
    for at in 0..ops.len() {
        let size = |at: &usize| if is_ahead(&ops[*at]) { bytes(program, &ops[*at]) } else { 0 };
        let Some(needed) = needed(ops, &makers, &written, at).filter(|_| is_ahead(&ops[at])) else {
            continue;
        };
        let more: u64 = needed.iter().filter(|&&n| !first[n]).map(size).sum();
        if more <= left {
            left -= more;
            needed.iter().for_each(|&n| first[n] = true);
        }
    }
    first
}

/// An operation and those that it needs, if all may precede the wait.
fn needed(
    ops: &[Op],
    makers: &FxHashMap<Value, usize>,
    written: &FxHashSet<Value>,
    at: usize,
) -> Option<FxHashSet<usize>> {
    let (mut found, mut open) = (FxHashSet::default(), vec![at]);
    while let Some(at) = open.pop() {
        let op = &ops[at];
        if !may_precede(op) || is_ahead(op) && written.contains(&op.args[0]) {
            return None;
        }
        if found.insert(at) {
            open.extend(op.args.iter().filter_map(|arg| makers.get(arg).copied()));
        }
    }
    Some(found)
}

/// The pointers through which a program writes.
fn written(program: &Program) -> FxHashSet<Value> {
    let mut written = FxHashSet::default();
    program.walk(&mut |op| {
        if matches!(op.kind, OpKind::Store { .. } | OpKind::Atomic { .. } | OpKind::AtomicCas { .. }) {
            written.extend(op.args.first().copied());
        }
    });
    written
}

/// Bytes of what an operation loads.
fn bytes(program: &Program, op: &Op) -> u64 {
    let ty = program.ty(op.results[0]);
    let elements: u64 = ty.shape.iter().map(|&n| u64::from(n)).product();
    elements * ty.elem().map_or(8, |e| u64::from(e.bytes()))
}

/// Takes the hint from all loads but the chosen ones.
fn clear(region: &mut Region, chosen: &[bool]) {
    for (at, op) in region.ops.iter_mut().enumerate() {
        if let OpKind::Load { hint, .. } = &mut op.kind
            && *hint == CacheHint::Ahead
            && chosen.get(at) != Some(&true)
        {
            *hint = CacheHint::Default;
        }
        op.regions.iter_mut().for_each(|inner| clear(inner, &[]));
    }
}

impl Lower<'_> {
    /// Before the first operation that may not precede it: waits for the work before on the stream, and lets the next
    /// kernel start. A launch allows the early start where this is in the text.
    pub(super) fn wait_before(&mut self, op: Option<&Op>) {
        if self.waited || op.is_some_and(may_precede) {
            return;
        }
        self.waited = true;
        self.ir.raw("call void asm sideeffect \"griddepcontrol.wait;\", \"~{memory}\"() nounwind");
        self.ir
            .raw("call void asm sideeffect \"griddepcontrol.launch_dependents;\", \"~{memory}\"() nounwind");
    }
}

#[cfg(test)]
mod tests {
    use tilefuse_block::parse_valid as parse;

    use super::hoist;

    fn hoisted(text: &str) -> String {
        let mut program = parse(text).unwrap();
        hoist(&mut program);
        tilefuse_block::verify(&program).unwrap();
        program.to_string()
    }

    const PRODUCT: &str = "\
kernel @k(%i: ptr<i32> align(4), %x: ptr<f32> align(16), %w: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(1) early {
  %0 = program_id 0
  %1 = const 64 : i32
  %2 = map mul %0, %1
  %3 = range 0 64
  %4 = load %x, %3
  %5 = splat %2 [64]
  %6 = map add %5, %3
  %7 = load %w, %6, hint ahead
  %8 = map mul %4, %7
  %9 = reduce sum %8 axis 0
  store %y, %0, %9
}
";

    #[test]
    fn what_nobody_writes_is_read_first() {
        expect_test::expect![[r#"
            kernel @k(%i: ptr<i32> align(4), %x: ptr<f32> align(16), %w: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(1) early {
              %0 = program_id 0
              %1 = const 64 : i32
              %2 = map mul %0, %1
              %3 = range 0 64
              %4 = splat %2 [64]
              %5 = map add %4, %3
              %6 = load %w, %5, hint ahead
              %7 = load %x, %3
              %8 = map mul %7, %6
              %9 = reduce sum %8 axis 0
              store %y, %0, %9
            }
        "#]].assert_eq(&hoisted(PRODUCT));
    }

    #[test]
    fn what_may_not_be_read_ahead_stays() {
        for (from, to) in [
            (" early", ""),
            ("store %y", "store %w"),
            ("%2 = map mul %0, %1", "%2 = load %i, %0"),
            ("hint ahead", "hint keep"),
        ] {
            let text = PRODUCT.replace(from, to);
            assert_ne!(text, PRODUCT);
            let text = parse(&text).unwrap().to_string();
            assert_eq!(hoisted(&text), text.replace(", hint ahead", ""), "{from}");
        }
    }
}
