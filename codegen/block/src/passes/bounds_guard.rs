//! Guards accesses: what an instance touches through a pointer parameter lies within so many elements, whatever the
//! program computes. Elements outside are masked off and reported in a status word. Accesses that ranges prove to lie
//! within the length that the parameter promises stay as they are, and so does what holds for the launches that the
//! program is for. Assumptions go otherwise, for a target may rely on them.
//!
//! ```text
//! before                          after
//!   %v = load %x, %at, mask %m      %zero = const 0 : tile<8xi64>
//!                                   %above = map ge %at, %zero
//!                                   %end = splat %x_len [8]
//!                                   %below = map lt %at, %end
//!                                   %inside = map and %above, %below
//!                                   %outside = map not %inside
//!                                   %wrong = map and %m, %outside
//!                                   store %status, %first, %code, mask %wrong
//!                                   %safe = map and %m, %inside
//!                                   %v = load %x, %at, mask %safe
//! ```

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::affine::Affine;
use crate::bounds::Proof;
use crate::program::{CacheHint, Loc, Op, OpKind, Param, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Kind, Literal, Shape, Type};

/// The parameters that a guarded program takes beside its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    /// Positions of pointer parameters whose lengths in elements follow the program's own parameters, as `i64`, in this
    /// order. Where there is one, a pointer to an `i32` comes last: the status word, which is set to the position plus 1
    /// of a parameter through which an access was out of bounds.
    pub lengths: Vec<usize>,
}

/// Guards every access through a pointer parameter that neither ranges nor `proof` prove.
pub fn guard(program: &mut Program, proof: &Proof) -> Guards {
    let mut body = std::mem::take(&mut program.body);
    forget(program, &mut body, proof, &mut 0);
    program.body = body;
    let affine = Affine::new(program);
    let own = program.params.len();
    let mut cx = Cx {
        program,
        affine,
        proof,
        position: 0,
        lengths: FxHashMap::default(),
        order: Vec::new(),
        status: None,
        seen: Vec::new(),
    };
    let mut body = std::mem::take(&mut cx.program.body);
    cx.region(&mut body);
    cx.program.body = body;
    let (order, lengths, status) = (cx.order, cx.lengths, cx.status);
    for index in &order {
        let value = lengths.get(index).copied().into_iter();
        program.params.extend(value.map(|value| Param { value, align: 8, len: None }));
    }
    let word = status.map(|value| Param { value, align: 4, len: Some(1) });
    program.params.extend(word);
    debug_assert!(order.iter().all(|&i| i < own));
    Guards { lengths: order }
}

/// Promises of the author that are not proven become the values that they are about; `position` counts promises.
fn forget(program: &Program, region: &mut Region, proof: &Proof, position: &mut usize) {
    for op in &mut region.ops {
        op.regions.iter_mut().for_each(|inner| forget(program, inner, proof, position));
        if let (OpKind::Assume(_), Some(&result)) = (&op.kind, op.results.first()) {
            if !proof.has_promise(*position) {
                op.kind = OpKind::Reshape(program.ty(result).shape.clone());
            }
            *position += 1;
        }
    }
}

/// A region that yields a value.
fn region(mut ops: Vec<Op>, value: Value) -> Region {
    let args = SmallVec::from_slice(&[value]);
    ops.push(Op {
        kind: OpKind::Yield,
        args,
        results: SmallVec::new(),
        regions: Vec::new(),
        loc: Loc::UNKNOWN,
    });
    Region { args: Vec::new(), ops }
}

struct Cx<'a> {
    program: &'a mut Program,
    affine: Affine,
    proof: &'a Proof,
    /// The number of accesses so far.
    position: usize,
    /// The length of each guarded parameter.
    lengths: FxHashMap<usize, Value>,
    order: Vec<usize>,
    status: Option<Value>,
    /// Accesses that were checked in the open regions: parameter, offsets and mask.
    seen: Vec<(usize, Value, Option<Value>)>,
}

impl Cx<'_> {
    fn region(&mut self, region: &mut Region) {
        let seen = self.seen.len();
        for mut op in std::mem::take(&mut region.ops) {
            op.regions.iter_mut().for_each(|inner| self.region(inner));
            let (from, loc) = (region.ops.len(), op.loc);
            self.access(&mut op, &mut region.ops);
            region.ops.push(op);
            locate(&mut region.ops[from..], loc);
        }
        self.seen.truncate(seen);
    }

    /// Guards an operation if it is an access that nothing proves.
    fn access(&mut self, op: &mut Op, before: &mut Vec<Op>) {
        let (masked, at) = match op.kind {
            OpKind::Load { masked, .. } => (masked, 2),
            OpKind::Store { masked, .. } | OpKind::Atomic { masked, .. } => (masked, 3),
            OpKind::AtomicCas { .. } => (false, 4),
            _ => return,
        };
        self.position += 1;
        if self.proof.has_access(self.position - 1) {
            return;
        }
        let (Some(&pointer), Some(&offsets)) = (op.args.first(), op.args.get(1)) else { return };
        let Some(param) = self.program.params.iter().position(|p| p.value == pointer) else { return };
        if self.proven(param, offsets) {
            return;
        }
        let mask = if masked { op.args.get(at).copied() } else { None };
        let inside = self.inside(param, offsets, before);
        if !self.seen.contains(&(param, offsets, mask)) {
            self.seen.push((param, offsets, mask));
            self.report(param, inside, mask, before);
        }
        if matches!(op.kind, OpKind::AtomicCas { .. }) {
            self.unless_outside(op, inside, before);
            return;
        }
        let safe = self.and(mask, inside, before);
        match (masked, op.args.get_mut(at)) {
            (true, Some(mask)) => *mask = safe,
            _ => op.args.insert(at, safe),
        }
        match &mut op.kind {
            OpKind::Load { masked, .. } | OpKind::Store { masked, .. } | OpKind::Atomic { masked, .. } => {
                *masked = true;
            }
            _ => {}
        }
    }

    /// Puts an access that takes no mask into a branch for where all of it is inside; otherwise its result is 0.
    fn unless_outside(&mut self, op: &mut Op, inside: Value, out: &mut Vec<Op>) {
        let Some(&result) = op.results.first() else { return };
        let ty = self.program.ty(result).clone();
        let mut all = inside;
        while self.program.ty(all).rank() > 0 {
            let shape: Shape = self.program.ty(all).shape[1..].into();
            let kind = OpKind::Reduce { combine: ReduceFn::And, axis: 0, masked: false };
            all = self.push(kind, &[all], Type::tile(Elem::Bool, &shape), out);
        }
        let (done, mut otherwise) = (self.value(ty.clone(), None), Vec::new());
        let Some(elem) = ty.elem() else { return };
        let zero = self.constant(Literal::of(elem, 0.0), &ty.shape, &mut otherwise);
        let access = Op { results: SmallVec::from_slice(&[done]), ..op.clone() };
        *op = Op {
            kind: OpKind::If,
            args: SmallVec::from_slice(&[all]),
            results: SmallVec::from_slice(&[result]),
            regions: vec![region(vec![access], done), region(otherwise, zero)],
            loc: Loc::UNKNOWN,
        };
    }

    /// Whether ranges keep offsets within the length that a parameter promises.
    fn proven(&self, param: usize, offsets: Value) -> bool {
        let len = self.program.params.get(param).and_then(|p| p.len);
        let facts = self.affine.get(offsets);
        facts.zip(len).is_some_and(|(f, len)| f.interval.lo >= 0 && f.interval.hi < i128::from(len))
    }

    /// Where offsets lie within a parameter.
    fn inside(&mut self, param: usize, offsets: Value, out: &mut Vec<Op>) -> Value {
        let shape = self.program.ty(offsets).shape.clone();
        let natural = self.affine.get(offsets).is_some_and(|f| f.interval.lo >= 0);
        let wide = self.wide(offsets, out);
        let length = self.length(param);
        let end = if shape.is_empty() {
            length
        } else {
            self.push(OpKind::Splat(shape.clone()), &[length], Type::tile(Elem::I64, &shape), out)
        };
        let truth = Type::tile(Elem::Bool, &shape);
        let below = self.push(OpKind::Map(ScalarFn::Lt), &[wide, end], truth.clone(), out);
        if natural {
            return below;
        }
        let zero = self.constant(Literal::int(Elem::I64, 0), &shape, out);
        let above = self.push(OpKind::Map(ScalarFn::Ge), &[wide, zero], truth.clone(), out);
        self.push(OpKind::Map(ScalarFn::And), &[above, below], truth, out)
    }

    fn wide(&mut self, offsets: Value, out: &mut Vec<Op>) -> Value {
        let ty = self.program.ty(offsets).clone();
        if ty.elem() == Some(Elem::I64) {
            return offsets;
        }
        self.push(OpKind::Cast(Elem::I64), &[offsets], ty.with_elem(Elem::I64), out)
    }

    /// Writes the status word where an element that is not masked off is outside.
    fn report(&mut self, param: usize, inside: Value, mask: Option<Value>, out: &mut Vec<Op>) {
        let ty = self.program.ty(inside).clone();
        let outside = self.push(OpKind::Map(ScalarFn::Not), &[inside], ty.clone(), out);
        let wrong = self.and(mask, outside, out);
        let first = self.constant(Literal::int(Elem::I32, 0), &ty.shape, out);
        let code = self.constant(Literal::int(Elem::I32, param as i64 + 1), &ty.shape, out);
        let status = self.status();
        out.push(Op {
            kind: OpKind::Store { masked: true, hint: CacheHint::Default },
            args: SmallVec::from_slice(&[status, first, code, wrong]),
            results: SmallVec::new(),
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
    }

    fn and(&mut self, mask: Option<Value>, other: Value, out: &mut Vec<Op>) -> Value {
        let ty = self.program.ty(other).clone();
        match mask {
            Some(mask) => self.push(OpKind::Map(ScalarFn::And), &[mask, other], ty, out),
            None => other,
        }
    }

    fn length(&mut self, param: usize) -> Value {
        if let Some(&value) = self.lengths.get(&param) {
            return value;
        }
        let name = self.program.params.get(param).and_then(|p| self.program.values.get(p.value.index()));
        let name = name.and_then(|v| v.name.as_ref()).map(|name| format!("{name}_len"));
        let value = self.value(Type::scalar(Elem::I64), name);
        self.lengths.insert(param, value);
        self.order.push(param);
        value
    }

    fn status(&mut self) -> Value {
        if let Some(value) = self.status {
            return value;
        }
        let ty = Type { kind: Kind::Ptr(Elem::I32), shape: Shape::new() };
        let value = self.value(ty, Some(String::from("status")));
        self.status = Some(value);
        value
    }

    fn value(&mut self, ty: Type, name: Option<String>) -> Value {
        let value = Value(self.program.values.len() as u32);
        self.program.values.push(ValueData { ty, name });
        value
    }

    fn constant(&mut self, literal: Literal, shape: &[u32], out: &mut Vec<Op>) -> Value {
        self.push(OpKind::Const(literal), &[], Type::tile(literal.elem, shape), out)
    }

    fn push(&mut self, kind: OpKind, args: &[Value], ty: Type, out: &mut Vec<Op>) -> Value {
        let result = self.value(ty, None);
        out.push(Op {
            kind,
            args: SmallVec::from_slice(args),
            results: SmallVec::from_slice(&[result]),
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        result
    }
}
