//! Strength reduction of the offsets that a loop computes: a tile that is a scalar of the iteration plus a tile that
//! stays is multiplied and added to outside of the loop, so that an iteration adds one scalar to it. Integers wrap, so
//! that both forms are the same modulo two to the width.
//!
//! ```text
//! before                                after
//!   for %i in %z..%n step %one {          %0 = map mul %rows, %strides
//!     %at = splat %i [32]                 for %i in %z..%n step %one {
//!     %row = map add %at, %rows             %1 = map mul %i, %stride
//!     %off = map mul %row, %strides         %2 = splat %1 [32]
//!     ...                                   %off = map add %2, %0
//! ```
//!
//! A sum that something else needs as well, a mask as a rule, stays as it is: nothing would be saved, and what the mask
//! says of the offset would be hidden.
//!
//! The scalar follows from the induction variable and is carried from no iteration to the next: loads whose addresses
//! follow from that variable alone can run ahead, and one scalar product costs an iteration nothing.

use smallvec::SmallVec;

use super::dce;
use crate::program::{Loc, Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Type};

/// Reduces the strength of offsets, innermost loops first.
pub fn strength(program: &mut Program) {
    dce(program);
    let (count, uses) = (program.values.len(), program.uses());
    let mut cx = Cx {
        values: &mut program.values,
        definitions: vec![None; count],
        uses,
        defined_in: vec![0; count],
        loops: 0,
    };
    cx.region(&mut program.body);
}

struct Cx<'a> {
    values: &'a mut Vec<ValueData>,
    /// The defining operation of each value, where that has no regions.
    definitions: Vec<Option<Op>>,
    uses: Vec<u32>,
    /// The last visited loop that defines a value; loops are counted from 1.
    defined_in: Vec<u32>,
    loops: u32,
}

/// A value of an iteration that is a scalar, repeated, plus what stays.
struct Sum {
    scalar: Value,
    stays: Value,
}

impl Cx<'_> {
    fn region(&mut self, region: &mut Region) {
        for mut op in std::mem::take(&mut region.ops) {
            op.regions.iter_mut().for_each(|inner| self.region(inner));
            if matches!(op.kind, OpKind::For | OpKind::While) {
                self.reduce(&mut op, &mut region.ops);
            }
            self.define(&op);
            region.ops.push(op);
        }
    }

    /// Moves parts of sums and products of the loop `op` to the end of `before`.
    fn reduce(&mut self, op: &mut Op, before: &mut Vec<Op>) {
        self.loops += 1;
        op.regions.iter().for_each(|region| self.varies(region));
        // What one rewriting leaves without other users, the next round may change.
        while op.regions.iter_mut().map(|region| self.round(region, before)).sum::<usize>() > 0 {}
    }

    /// Rewrites the operations of a region of the present loop; how many.
    fn round(&mut self, region: &mut Region, before: &mut Vec<Op>) -> usize {
        let mut changed = 0;
        for mut op in std::mem::take(&mut region.ops) {
            let made = [before.len(), region.ops.len()];
            changed += usize::from(self.rewrite(&mut op, before, &mut region.ops).is_some());
            locate(&mut before[made[0]..], op.loc);
            locate(&mut region.ops[made[1]..], op.loc);
            self.define(&op);
            region.ops.push(op);
        }
        changed
    }

    /// Notes what a region of the present loop defines.
    fn varies(&mut self, region: &Region) {
        let defined = region.args.iter().chain(region.ops.iter().flat_map(|op| &op.results));
        defined.for_each(|v| self.defined_in[v.index()] = self.loops);
    }

    fn define(&mut self, op: &Op) {
        if let (true, &[result]) = (op.regions.is_empty(), op.results.as_slice()) {
            self.definitions[result.index()] = Some(op.clone());
        }
    }

    fn rewrite(&mut self, op: &mut Op, before: &mut Vec<Op>, body: &mut Vec<Op>) -> Option<()> {
        let (OpKind::Map(function @ (ScalarFn::Add | ScalarFn::Mul)), &[x, y]) =
            (&op.kind, op.args.as_slice())
        else {
            return None;
        };
        let function = *function;
        let (changing, factor) = if self.stays(y) { (x, y) } else { (y, x) };
        if !self.stays(factor) || self.stays(changing) {
            return None;
        }
        if self.uses[changing.index()] != 1 {
            return None;
        }
        let ty = self.values[changing.index()].ty.clone();
        ty.elem().filter(|e| !e.is_float() && *e != Elem::Bool)?;
        let sum = self.sum(changing)?;
        let scalar = match function {
            ScalarFn::Mul if ty.rank() > 0 => {
                let by = self.repeated(factor, before)?;
                self.emit(OpKind::Map(ScalarFn::Mul), &[sum.scalar, by], ty.with_shape(&[]), body)
            }
            ScalarFn::Add => sum.scalar,
            _ => return None,
        };
        let stays = self.emit(OpKind::Map(function), &[sum.stays, factor], ty.clone(), before);
        let first = match ty.rank() {
            0 => scalar,
            _ => self.emit(OpKind::Splat(ty.shape.clone()), &[scalar], ty, body),
        };
        for value in [scalar, first] {
            self.defined_in[value.index()] = self.loops;
        }
        op.kind = OpKind::Map(ScalarFn::Add);
        op.args = SmallVec::from_slice(&[first, stays]);
        op.args.iter().for_each(|arg| self.uses[arg.index()] += 1);
        [changing, factor].into_iter().for_each(|arg| self.release(arg));
        Some(())
    }

    /// Takes one use from a value, and from the operands of one that is left without any.
    fn release(&mut self, value: Value) {
        let mut released = vec![value];
        while let Some(value) = released.pop() {
            let last = self.uses[value.index()] == 1;
            self.uses[value.index()] = self.uses[value.index()].saturating_sub(1);
            if let Some(op) = self.definitions[value.index()].as_ref().filter(|_| last) {
                released.extend(&op.args);
            }
        }
    }

    /// Whether a value is the same in every iteration of the present loop.
    fn stays(&self, value: Value) -> bool {
        self.defined_in[value.index()] != self.loops
    }

    /// The value as a scalar of the iteration plus what stays.
    fn sum(&self, value: Value) -> Option<Sum> {
        let definition = self.definitions[value.index()].as_ref()?;
        let (OpKind::Map(ScalarFn::Add), &[x, y]) = (&definition.kind, definition.args.as_slice()) else {
            return None;
        };
        let (changing, stays) = if self.stays(y) { (x, y) } else { (y, x) };
        if !self.stays(stays) || self.stays(changing) {
            return None;
        }
        if self.values[changing.index()].ty.rank() == 0 {
            return Some(Sum { scalar: changing, stays });
        }
        let definition = self.definitions[changing.index()].as_ref()?;
        let &[scalar] = definition.args.as_slice() else { return None };
        matches!(definition.kind, OpKind::Splat(_)).then_some(Sum { scalar, stays })
    }

    /// The scalar that every element of a value is.
    fn repeated(&mut self, value: Value, before: &mut Vec<Op>) -> Option<Value> {
        let definition = self.definitions[value.index()].as_ref()?;
        match (&definition.kind, definition.args.as_slice()) {
            (OpKind::Splat(_), &[scalar]) => Some(scalar),
            (OpKind::Const(literal), _) => {
                let kind = OpKind::Const(*literal);
                let ty = self.values[value.index()].ty.with_shape(&[]);
                Some(self.emit(kind, &[], ty, before))
            }
            _ => None,
        }
    }

    fn emit(&mut self, kind: OpKind, args: &[Value], ty: Type, out: &mut Vec<Op>) -> Value {
        let result = Value(self.values.len() as u32);
        self.values.push(ValueData { ty, name: None });
        let results = SmallVec::from_slice(&[result]);
        let op =
            Op { kind, args: SmallVec::from_slice(args), results, regions: Vec::new(), loc: Loc::UNKNOWN };
        args.iter().for_each(|arg| self.uses[arg.index()] += 1);
        self.definitions.push(Some(op.clone()));
        self.uses.push(0);
        self.defined_in.push(0);
        out.push(op);
        result
    }
}
