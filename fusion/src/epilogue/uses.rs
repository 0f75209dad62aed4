//! How a program uses its pointer parameters.

use rustc_hash::FxHashMap;
use tilefuse_block::{Literal, Op, OpKind, Program, Region, Value};

/// How a program uses a pointer parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Uses {
    /// Elements that one instance loads through it, masked-off ones included, as far as trip counts are known.
    pub(crate) loaded: u64,
    /// Elements that one instance stores through it, likewise.
    pub(crate) stored: u64,
    /// Whether it is used for anything but loads and stores.
    pub(crate) other: bool,
}

impl Uses {
    /// Whether everything that is done with it is to load through it.
    pub(crate) fn only_loads(&self) -> bool {
        self.stored == 0 && !self.other
    }

    /// Whether everything that is done with it is to store through it.
    pub(crate) fn only_stores(&self) -> bool {
        self.loaded == 0 && !self.other
    }
}

/// The uses of each parameter.
pub(crate) fn uses(program: &Program) -> Vec<Uses> {
    let params = program.params.iter().enumerate().map(|(i, p)| (p.value, i)).collect();
    let mut found = Finder {
        program,
        params,
        constants: FxHashMap::default(),
        uses: vec![Uses::default(); program.params.len()],
    };
    found.region(&program.body, 1);
    found.uses
}

struct Finder<'a> {
    program: &'a Program,
    params: FxHashMap<Value, usize>,
    constants: FxHashMap<Value, Literal>,
    uses: Vec<Uses>,
}

impl Finder<'_> {
    fn region(&mut self, region: &Region, times: u64) {
        for op in &region.ops {
            self.op(op, times);
            let trips = if op.kind == OpKind::For { self.trips(op) } else { 1 };
            op.regions.iter().for_each(|inner| self.region(inner, times.saturating_mul(trips)));
        }
    }

    fn op(&mut self, op: &Op, times: u64) {
        if let (OpKind::Const(literal), Some(&result)) = (&op.kind, op.results.first()) {
            self.constants.insert(result, *literal);
        }
        let offsets =
            op.args.get(1).map_or(1, |&v| self.program.ty(v).shape.iter().map(|&n| u64::from(n)).product());
        let elements = times.saturating_mul(offsets);
        for (at, arg) in op.args.iter().enumerate() {
            let Some(uses) = self.params.get(arg).and_then(|&p| self.uses.get_mut(p)) else { continue };
            match op.kind {
                OpKind::Load { .. } if at == 0 => uses.loaded = uses.loaded.saturating_add(elements),
                OpKind::Store { .. } if at == 0 => uses.stored = uses.stored.saturating_add(elements),
                _ => uses.other = true,
            }
        }
    }

    /// How often a counted loop runs; 1 where that is not known.
    fn trips(&self, op: &Op) -> u64 {
        let bound =
            |at: usize| op.args.get(at).and_then(|v| self.constants.get(v)).map(|l| l.as_f64() as i64);
        let (Some(lo), Some(hi), Some(step)) = (bound(0), bound(1), bound(2)) else { return 1 };
        if step <= 0 { 1 } else { ((hi - lo).max(0) as u64).div_ceil(step as u64) }
    }
}
