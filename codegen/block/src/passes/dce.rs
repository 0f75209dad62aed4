//! Removes what nothing needs: operations without a used result that do nothing else, and values that a loop
//! carries only for itself.
//!
//! ```text
//! before                                            after
//!   %unused = map exp %v                              for %i in %z..%n step %one {
//!   %s = for %i in %z..%n step %one with (%a = %z) {    store %x, %i, %i
//!     %b = map add %a, %i                               yield
//!     store %x, %i, %i                                }
//!     yield %b
//!   }
//! ```

use crate::program::{Op, OpKind, Program, Region, Value};

/// Removes dead operations and dead carried values.
pub fn dce(program: &mut Program) {
    let mut live = Live { live: vec![false; program.values.len()], changed: true };
    while live.changed {
        live.changed = false;
        live.region(&program.body);
    }
    sweep(&mut program.body, &live.live);
}

/// Values that an effect depends on.
struct Live {
    live: Vec<bool>,
    changed: bool,
}

impl Live {
    fn mark(&mut self, value: Value) {
        if let Some(live) = self.live.get_mut(value.index()).filter(|live| !**live) {
            *live = true;
            self.changed = true;
        }
    }

    fn any(&self, values: &[Value]) -> bool {
        values.iter().any(|v| self.live[v.index()])
    }

    fn region(&mut self, region: &Region) {
        for op in region.ops.iter().rev() {
            match op.kind {
                OpKind::Yield => {}
                OpKind::For => self.for_loop(op),
                _ if op.has_effect() || self.any(&op.results) => self.whole(op),
                _ => {}
            }
        }
    }

    /// An operation all of whose operands and yielded values are needed.
    fn whole(&mut self, op: &Op) {
        op.args.iter().for_each(|&a| self.mark(a));
        for region in &op.regions {
            let yielded = region.ops.last().map(|last| last.args.as_slice()).unwrap_or_default();
            yielded.iter().for_each(|&v| self.mark(v));
            self.region(region);
        }
    }

    fn for_loop(&mut self, op: &Op) {
        if !op.has_effect() && !self.any(&op.results) {
            return;
        }
        op.args.iter().take(3).for_each(|&a| self.mark(a));
        for region in &op.regions {
            let next = region.ops.last().map(|last| last.args.as_slice()).unwrap_or_default();
            let carried = op.args.iter().skip(3).zip(region.args.iter().skip(1)).zip(&op.results).zip(next);
            for (((&init, &arg), &result), &next) in carried {
                if self.any(&[arg, result]) {
                    [init, arg, next].into_iter().for_each(|v| self.mark(v));
                }
            }
            self.region(region);
        }
    }
}

fn sweep(region: &mut Region, live: &[bool]) {
    let is_live = |v: &Value| live[v.index()];
    region.ops.retain(|op| op.kind == OpKind::Yield || op.has_effect() || op.results.iter().any(is_live));
    for op in &mut region.ops {
        if op.kind == OpKind::For {
            sweep_loop(op, live);
        } else {
            op.regions.iter_mut().for_each(|inner| sweep(inner, live));
        }
    }
}

fn sweep_loop(op: &mut Op, live: &[bool]) {
    let Some(region) = op.regions.first_mut() else { return };
    let kept: Vec<bool> = region.args.iter().skip(1).map(|v| live[v.index()]).collect();
    let keep = |fixed: usize| {
        let mut index = 0;
        let kept = &kept;
        move |_: &mut Value| {
            index += 1;
            index <= fixed || kept[index - 1 - fixed]
        }
    };
    op.args.retain(keep(3));
    op.results.retain(keep(0));
    if let Some(last) = region.ops.last_mut() {
        last.args.retain(keep(0));
    }
    let mut keep_arg = keep(1);
    region.args.retain_mut(|v| keep_arg(v));
    sweep(region, live);
}
