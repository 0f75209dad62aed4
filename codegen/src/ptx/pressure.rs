//! An estimate of the registers that a thread needs.

use rustc_hash::FxHashMap;
use tilefuse_block::{Op, OpKind, Program, Region, Value};

use super::assign::Assignment;
use super::dot;

/// Registers for addresses.
const OVERHEAD: u64 = 16;

/// Registers for the values of the element that is being computed.
const TEMPORARIES: u64 = 16;

/// The most 32-bit registers that tiles occupy at one time, values that each use computes apart.
pub(crate) fn registers(plan: &Assignment) -> u64 {
    let mut order = Order { by_constants: !has_product(plan.program), ..Order::default() };
    order.region(plan, &plan.program.body);
    let mut changes: FxHashMap<u32, i64> = FxHashMap::default();
    for (value, &(start, end)) in &order.spans {
        let size = size(plan, *value) as i64;
        *changes.entry(start).or_default() += size;
        *changes.entry(end).or_default() -= size;
    }
    for &(time, size) in &order.moments {
        *changes.entry(time).or_default() += size as i64;
        *changes.entry(time + 1).or_default() -= size as i64;
    }
    let mut points: Vec<(u32, i64)> = changes.into_iter().collect();
    points.sort_unstable();
    let sums = points.iter().scan(0i64, |sum, (_, change)| {
        *sum += change;
        Some(*sum)
    });
    sums.max().unwrap_or(0).unsigned_abs() + TEMPORARIES
}

/// The most that tiles may occupy before more warps are better.
pub(crate) fn comfortable(warps: u32) -> u64 {
    (limit(warps) * 2 / 3).min(128)
}

/// The most that tiles may occupy.
pub(crate) fn limit(warps: u32) -> u64 {
    (65536 / (32u64 << warps)).min(255) - OVERHEAD
}

fn size(plan: &Assignment, value: Value) -> u64 {
    let bytes = plan.program.ty(value).elem().map_or(8, |e| u64::from(e.bytes()));
    (plan.home(value).num_regs() as u64 * bytes).div_ceil(4)
}

/// When each value is first and last needed.
///
/// A step is an operation that holds threads up or moves memory. Between two of them the assembler computes element
/// by element, so that what is made and used up there occupies few registers, whatever the size of the tile.
#[derive(Default)]
struct Order {
    now: u32,
    /// Whether a constant is a step. Beside products it is not, as it holds nothing up; elsewhere this keeps expressions of many
    /// constants to more warps, for which the comfortable number of registers was measured.
    by_constants: bool,
    spans: FxHashMap<Value, (u32, u32)>,
    /// Values that take the place of others, whose registers they have.
    places: FxHashMap<Value, Value>,
    /// When an operation needs registers of its own, and how many.
    moments: Vec<(u32, u64)>,
}

impl Order {
    fn region(&mut self, plan: &Assignment, region: &Region) {
        for op in &region.ops {
            self.op(plan, op);
        }
    }

    fn op(&mut self, plan: &Assignment, op: &Op) {
        let computes = match op.kind {
            OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_) => true,
            OpKind::Const(_) => !self.by_constants,
            _ => is_view(op),
        };
        if !computes {
            self.now += 1;
        }
        self.uses(plan, op);
        let start = self.now;
        for inner in &op.regions {
            if op.kind == OpKind::For {
                self.carried(plan, inner);
            }
            inner.args.iter().for_each(|&arg| self.define(plan, arg));
            self.region(plan, inner);
            self.now += 1;
            // What a loop reads, and what it carries, lives through all of it.
            let now = self.now;
            for span in self.spans.values_mut().filter(|s| s.0 <= start && s.1 > start) {
                span.1 = now;
            }
            for arg in &inner.args {
                if let Some(span) = self.spans.get_mut(arg) {
                    span.1 = now;
                }
            }
        }
        if let OpKind::Dot { .. } = op.kind {
            self.product(plan, op);
        }
        op.results.iter().for_each(|&result| self.define(plan, result));
    }

    /// A product is added to its sums in place, and needs the parts of its operands that it multiplies.
    fn product(&mut self, plan: &Assignment, op: &Op) {
        let (result, sums) = (op.results[0], op.args[2]);
        if let Some(unit) = dot::unit(plan.program, op).filter(|_| !plan.is_grouped(op)) {
            let fragments = dot::fragment_registers(unit, &plan.accumulator(op, unit));
            self.moments.push((self.now, fragments));
        }
        let place = self.places.get(&sums).copied().unwrap_or(sums);
        if self.spans.contains_key(&place) {
            self.places.insert(result, place);
        }
    }

    /// What a loop carries on element by element takes the place of what it carried, where nothing else needs that. Products that
    /// are added to it then are added there.
    fn carried(&mut self, plan: &Assignment, region: &Region) {
        let Some(last) = region.ops.last().filter(|op| op.kind == OpKind::Yield) else { return };
        // The first argument is the counter.
        for (&arg, &next) in region.args.iter().skip(1).zip(&last.args) {
            let mut changed = next;
            while let Some(op) = plan.defs[changed.index()].filter(|op| matches!(op.kind, OpKind::Dot { .. }))
            {
                changed = op.args[2];
            }
            let map = plan.defs[changed.index()].filter(|op| matches!(op.kind, OpKind::Map(_)));
            let takes = map.is_some_and(|op| op.args.contains(&arg))
                && plan.program.ty(arg) == plan.program.ty(changed);
            let others = last.args.iter().filter(|&&value| value == next).count() > 1;
            let alone = uses_of(region, arg) == 1 && (changed == next || uses_of(region, changed) == 1);
            if takes && !others && alone {
                self.places.insert(changed, arg);
            }
        }
    }

    fn define(&mut self, plan: &Assignment, value: Value) {
        if self.places.contains_key(&value) || plan.ahead.contains(&value) {
            return;
        }
        let view = plan.defs[value.index()].is_some_and(is_view);
        if !view && !plan.free[value.index()] && plan.program.ty(value).rank() > 0 {
            self.spans.entry(value).or_insert((self.now, self.now));
        }
    }

    /// Extends the lives of an operation's operands, through the views that they are of other values.
    fn uses(&mut self, plan: &Assignment, op: &Op) {
        for arg in &op.args {
            let place = self.places.get(arg).unwrap_or(arg);
            if let Some(span) = self.spans.get_mut(place) {
                span.1 = self.now;
            }
            if let Some(def) = plan.defs[arg.index()]
                && is_view(def)
            {
                self.uses(plan, def);
            }
        }
    }
}

pub(super) fn has_product(program: &Program) -> bool {
    let mut found = false;
    program.walk(&mut |op| found |= matches!(op.kind, OpKind::Dot { .. }));
    found
}

/// How often operations of a region take a value, within loops too.
fn uses_of(region: &Region, value: Value) -> usize {
    let of = |op: &Op| {
        let inner: usize = op.regions.iter().map(|inner| uses_of(inner, value)).sum();
        inner + op.args.iter().filter(|&&arg| arg == value).count()
    };
    region.ops.iter().map(of).sum()
}

/// Whether the operation's result is held where its operand is.
fn is_view(op: &Op) -> bool {
    use OpKind::*;
    matches!(
        op.kind,
        Splat(_) | ExpandDims(_) | Broadcast(_) | Reshape(_) | Permute(_) | Join | Split | Assume(_)
    )
}
