//! How a program uses its pointer parameters.

use rustc_hash::FxHashMap;
use tilefuse_block::{Op, OpKind, Program, Region, ScalarFn, Value};

/// How a program uses a pointer parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Uses {
    /// Elements that one instance loads through it at most, masked-off ones included, as far as trip counts are bounded.
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
        bounds: FxHashMap::default(),
        uses: vec![Uses::default(); program.params.len()],
    };
    found.region(&program.body, 1);
    found.uses
}

struct Finder<'a> {
    program: &'a Program,
    params: FxHashMap<Value, usize>,
    /// The least and the most that an integer may be, where it is known.
    bounds: FxHashMap<Value, [Option<i64>; 2]>,
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
        if let Some(&result) = op.results.first() {
            self.bounds.extend(self.bounds_of(op).map(|bounds| (result, bounds)));
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

    /// The bounds of an integer: of a constant, and of the larger or smaller one of two.
    fn bounds_of(&self, op: &Op) -> Option<[Option<i64>; 2]> {
        let of = |at: usize| op.args.get(at).and_then(|v| self.bounds.get(v)).copied().unwrap_or_default();
        let ([a_low, a_high], [b_low, b_high]) = (of(0), of(1));
        match op.kind {
            OpKind::Const(literal) => Some([Some(literal.as_f64() as i64); 2]),
            OpKind::Map(ScalarFn::Max) => Some([a_low.max(b_low), a_high.zip(b_high).map(|(a, b)| a.max(b))]),
            OpKind::Map(ScalarFn::Min) => {
                let least = a_high.into_iter().chain(b_high).min();
                Some([a_low.zip(b_low).map(|(a, b)| a.min(b)), least])
            }
            _ => None,
        }
    }

    /// How often a counted loop runs at most; 1 where that is not known.
    fn trips(&self, op: &Op) -> u64 {
        let bounds =
            |at: usize| op.args.get(at).and_then(|v| self.bounds.get(v)).copied().unwrap_or_default();
        let ([lo, _], [_, hi], [step, _]) = (bounds(0), bounds(1), bounds(2));
        let (Some(lo), Some(hi), Some(step)) = (lo, hi, step) else { return 1 };
        if step <= 0 { 1 } else { (hi.saturating_sub(lo).max(0) as u64).div_ceil(step as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::uses;

    /// As many elements as there are at most in the loops of a window that reaches over the border of an image.
    #[test]
    fn loops_between_clamped_bounds_run_at_most_between_the_constants() {
        let text = "kernel @taps(%x: ptr<f32>, %y: ptr<f32>) warps(4) {
          %row = program_id 0
          %zero = const 0 : i32
          %one = const 1 : i32
          %three = const 3 : i32
          %channels = const 8 : i32
          %none = const 0.0 : f32
          %before = map sub %one, %row
          %first = map max %before, %zero
          %end = map min %three, %row
          %sum = for %tap in %first..%end step %one with (%a = %none) {
            %inner = for %c in %zero..%channels step %one with (%b = %a) {
              %v = load %x, %c
              %next = map add %b, %v
              yield %next
            }
            yield %inner
          }
          for %j in %row..%end step %one {
            store %y, %j, %sum
            yield
          }
        }";
        let uses = uses(&tilefuse_block::parse_valid(text).unwrap());
        assert_eq!((uses[0].loaded, uses[1].stored), (24, 1));
    }
}
