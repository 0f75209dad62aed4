//! Tiles of offsets that have no element in common, for they are runs of consecutive numbers from different starts.
//!
//! ```text
//! %first = map add %row, %c1024          1024 to 2047 elements after %row
//! %next = map add %row, %c2048           2048 to 3071 elements after it
//! ```

use tilefuse_block::{Elem, OpKind, ScalarFn, Value};

use super::assign::Assignment;

/// Consecutive numbers from a constant distance after a scalar, or after 0.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    from: Option<Value>,
    first: i64,
    count: i64,
}

/// Whether two tiles are known to have no element in common.
pub(super) fn are_apart(plan: &Assignment, a: Value, b: Value) -> bool {
    let (Some(a), Some(b)) = (run(plan, a), run(plan, b)) else { return false };
    let far = |x: &Run, y: &Run| x.first.checked_add(x.count).is_some_and(|end| end <= y.first);
    // Offsets of 32 bits wrap around: runs that are this close to each other do not meet again there.
    let near = a.first.abs().max(b.first.abs()) < i64::from(i32::MAX / 2);
    a.from == b.from && near && (far(&a, &b) || far(&b, &a))
}

fn run(plan: &Assignment, value: Value) -> Option<Run> {
    let op = plan.defs[value.index()]?;
    match op.kind {
        OpKind::Range { start, len } => {
            Some(Run { from: None, first: i64::from(start), count: i64::from(len) })
        }
        // The numbers of a range are the same in more bits.
        OpKind::Cast(Elem::I64) => run(plan, op.args[0]).filter(|r| r.from.is_none()),
        OpKind::Map(ScalarFn::Add) => {
            let &[x, y] = &op.args[..] else { return None };
            let (start, range) = splat(plan, x).map(|s| (s, y)).or_else(|| splat(plan, y).map(|s| (s, x)))?;
            let own = run(plan, range).filter(|r| r.from.is_none())?;
            let (from, first) = distance(plan, start);
            Some(Run { from, first: first.checked_add(own.first)?, count: own.count })
        }
        _ => None,
    }
}

/// The scalar that a tile repeats.
fn splat(plan: &Assignment, value: Value) -> Option<Value> {
    let op = plan.defs[value.index()].filter(|op| matches!(op.kind, OpKind::Splat(_)))?;
    op.args.first().copied()
}

/// A scalar as another one and a constant.
fn distance(plan: &Assignment, value: Value) -> (Option<Value>, i64) {
    let constant = |v: Value| plan.facts[v.index()].constant;
    if let Some(n) = constant(value) {
        return (None, n);
    }
    if let Some(op) = plan.defs[value.index()]
        && op.kind == OpKind::Map(ScalarFn::Add)
        && let &[x, y] = &op.args[..]
    {
        if let Some(n) = constant(y) {
            return (Some(x), n);
        }
        if let Some(n) = constant(x) {
            return (Some(y), n);
        }
    }
    (Some(value), 0)
}

#[cfg(test)]
mod tests {
    use crate::ptx::{PtxOptions, Target, compile_ptx};

    /// Barriers in a kernel that stores 256 elements twice, so many apart.
    fn barriers(distance: i32) -> usize {
        let text = format!(
            "kernel @twice(%x: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(2) {{
               %row = program_id 0
               %width = const 1024 : i32
               %start = map mul %row, %width
               %far = const {distance} : i32
               %next = map add %start, %far
               %lanes = range 0 256
               %a = splat %start [256]
               %b = splat %next [256]
               %i = map add %a, %lanes
               %j = map add %b, %lanes
               %v = load %x, %i
               %w = load %x, %j
               store %y, %i, %w
               store %y, %j, %v
             }}"
        );
        let program = tilefuse_block::parse_valid(&text).unwrap();
        let ptx = compile_ptx(&program, Target::Sm80, &PtxOptions::default()).unwrap();
        ptx.text.matches("bar.sync").count()
    }

    #[test]
    fn stores_wait_where_runs_meet() {
        assert_eq!([256, 512, -256, 255, 128, -255].map(barriers), [0, 0, 0, 1, 1, 1]);
    }
}
