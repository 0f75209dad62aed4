//! Uses the ranges of integers: a value of which only one is possible becomes a constant, remainders and clamps that
//! change nothing go, and floor division of what is not negative becomes truncating division, which is cheaper.
//!
//! ```text
//! before                                      after
//!   %r = range 0 8                              %r = range 0 8
//!   %n = const 8 : tile<8xi32>                  %n = const 8 : tile<8xi32>
//!   %m = map lt %r, %n                          %m = const true : tile<8xbool>
//!   %i = map rem_floor %r, %n                   %j = map add %r, %r
//!   %j = map add %i, %r                         %q = map div_trunc %j, %n
//!   %q = map div_floor %j, %n
//! ```

use crate::affine::Affine;
use crate::program::{Op, OpKind, Program, Region, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal};

/// Rewrites what ranges decide for grids of at most these extents.
pub fn ranges(program: &mut Program, grid: [u32; 3]) {
    let affine = Affine::for_grid(program, grid);
    let elems: Vec<Option<Elem>> = program.values.iter().map(|v| v.ty.elem()).collect();
    let forward = (0..program.values.len() as u32).map(Value).collect();
    let mut cx = Cx { affine, elems, forward };
    cx.region(&mut program.body);
}

struct Cx {
    affine: Affine,
    elems: Vec<Option<Elem>>,
    forward: Vec<Value>,
}

impl Cx {
    fn region(&mut self, region: &mut Region) {
        region.ops.retain_mut(|op| self.keep(op));
    }

    /// Rewrites an operation; whether it stays.
    fn keep(&mut self, op: &mut Op) -> bool {
        for arg in &mut op.args {
            *arg = self.forward[arg.index()];
        }
        op.regions.iter_mut().for_each(|r| self.region(r));
        let (true, Some(&result)) = (op.kind.is_pure(), op.results.first()) else { return true };
        if let Some(literal) = self.constant(result).filter(|_| !matches!(op.kind, OpKind::Const(_))) {
            op.kind = OpKind::Const(literal);
            op.args.clear();
            return true;
        }
        let OpKind::Map(function) = op.kind else { return true };
        let &[a, b] = op.args.as_slice() else { return true };
        if let Some(value) = self.operand(function, a, b) {
            self.forward[result.index()] = value;
            return false;
        }
        op.kind = OpKind::Map(self.cheaper(function, a, b));
        true
    }

    fn constant(&self, value: Value) -> Option<Literal> {
        let constant = self.affine.get(value)?.constant()?;
        Some(Literal::int(self.elems[value.index()]?, constant))
    }

    /// The operand that the result always equals.
    fn operand(&self, function: ScalarFn, a: Value, b: Value) -> Option<Value> {
        let (x, y) = (self.affine.get(a)?.interval, self.affine.get(b)?.interval);
        match function {
            ScalarFn::Max if x.lo >= y.hi => Some(a),
            ScalarFn::Max if y.lo >= x.hi => Some(b),
            ScalarFn::Min if x.hi <= y.lo => Some(a),
            ScalarFn::Min if y.hi <= x.lo => Some(b),
            ScalarFn::RemFloor | ScalarFn::RemTrunc if x.lo >= 0 && x.hi < y.lo => Some(a),
            _ => None,
        }
    }

    fn cheaper(&self, function: ScalarFn, a: Value, b: Value) -> ScalarFn {
        let natural = |v| self.affine.get(v).is_some_and(|f| f.interval.lo >= 0);
        match function {
            ScalarFn::DivFloor if natural(a) && natural(b) => ScalarFn::DivTrunc,
            ScalarFn::RemFloor if natural(a) && natural(b) => ScalarFn::RemTrunc,
            function => function,
        }
    }
}
