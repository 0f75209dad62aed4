//! Products that are added to a sum start from it: the code of a product of floats sums from 0 in registers, and adds what it
//! starts from in the end, so that the same numbers come without a tile of their own.
//!
//! ```text
//! kernel @accumulated(%a: ptr<f32> align(16), %b: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %i = range 0 64
//!   %at = reshape %i [8, 8]
//!   %x = load %a, %at
//!   %w = load %b, %at
//!   %sum = load %y, %at
//!   %zero = const 0.0 : tile<8x8xf32>
//!   %part = dot %x, %w, %zero precision ieee
//!   %all = map add %sum, %part
//!   store %y, %at, %all
//! }
//! ```
//!
//! ```text
//! kernel @accumulated(%a: ptr<f32> align(16), %b: ptr<f32> align(16), %y: ptr<f32> align(16)) warps(4) {
//!   %i = range 0 64
//!   %at = reshape %i [8, 8]
//!   %x = load %a, %at
//!   %w = load %b, %at
//!   %sum = load %y, %at
//!   %zero = const 0.0 : tile<8x8xf32>
//!   %all = dot %x, %w, %sum precision ieee
//!   store %y, %at, %all
//! }
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use tilefuse_block::{Elem, Op, OpKind, Program, Region, ScalarFn, Value};

/// Makes products of what they are added to where nothing between the two writes memory, from which operands may be read in place.
pub(super) fn accumulate(program: &mut Program) {
    let uses = program.uses();
    let (mut zeros, mut from_zero) = (FxHashSet::default(), FxHashSet::default());
    program.walk(&mut |op| match (&op.kind, op.args.as_slice(), op.results.as_slice()) {
        (OpKind::Const(literal), _, &[value]) if literal.elem.is_float() && literal.bits == 0 => {
            zeros.insert(value);
        }
        (OpKind::Dot { .. }, [a, _, start], &[result]) => {
            let is_wide = matches!(program.ty(*a).elem(), Some(Elem::F32 | Elem::F64));
            if is_wide && zeros.contains(start) && uses[result.index()] == 1 {
                from_zero.insert(result);
            }
        }
        _ => {}
    });
    region(&mut program.body, &from_zero);
}

fn region(region: &mut Region, from_zero: &FxHashSet<Value>) {
    // Products that may still move, and where they are.
    let mut open: FxHashMap<Value, usize> = FxHashMap::default();
    let mut out: Vec<Option<Op>> = Vec::with_capacity(region.ops.len());
    for mut op in std::mem::take(&mut region.ops) {
        op.regions.iter_mut().for_each(|inner| self::region(inner, from_zero));
        if op.kind.writes() || !op.regions.is_empty() {
            open.clear();
        }
        if let (OpKind::Map(ScalarFn::Add), &[a, b]) = (&op.kind, op.args.as_slice())
            && let Some((product, sum)) =
                [(b, a), (a, b)].into_iter().find(|(product, _)| open.contains_key(product))
            && let Some(dot) = open.remove(&product).and_then(|at| out.get_mut(at)?.take())
        {
            op.kind = dot.kind;
            op.args = dot.args;
            op.loc = dot.loc;
            if let Some(start) = op.args.last_mut() {
                *start = sum;
            }
        }
        if let Some(&result) = op.results.first().filter(|result| from_zero.contains(result)) {
            open.insert(result, out.len());
        }
        out.push(Some(op));
    }
    region.ops = out.into_iter().flatten().collect();
}
