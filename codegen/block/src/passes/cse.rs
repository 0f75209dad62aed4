//! Computes nothing twice: an operation with the kind and operands of an earlier one, in the same region or in one
//! around it, is replaced by it. A load is replaced only where nothing was stored in between, to any pointer, for
//! pointers may point to the same memory.
//!
//! ```text
//! before                     after
//!   %a = map add %x, %y        %a = map add %x, %y
//!   %b = map add %y, %x        %c = map mul %a, %a
//!   %c = map mul %a, %b
//! ```

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::program::{Op, OpKind, Program, Region, Value};
use crate::types::Type;

/// Removes common subexpressions.
pub fn cse(program: &mut Program) {
    let forward = (0..program.values.len() as u32).map(Value).collect();
    let types = program.values.iter().map(|v| v.ty.clone()).collect();
    let mut cx = Cx { forward, types, seen: FxHashMap::default(), epoch: 0 };
    cx.region(&mut program.body);
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    kind: OpKind,
    args: SmallVec<[Value; 4]>,
    ty: Type,
    /// For loads, how many stores came before.
    epoch: u32,
}

struct Cx {
    forward: Vec<Value>,
    types: Vec<Type>,
    seen: FxHashMap<Key, Value>,
    epoch: u32,
}

impl Cx {
    fn region(&mut self, region: &mut Region) {
        let mut added = Vec::new();
        region.ops.retain_mut(|op| self.keep(op, &mut added));
        for key in added {
            self.seen.remove(&key);
        }
    }

    /// Visits an operation; whether it stays.
    fn keep(&mut self, op: &mut Op, added: &mut Vec<Key>) -> bool {
        for arg in &mut op.args {
            *arg = self.forward[arg.index()];
        }
        let stores = op.has_store();
        self.epoch += u32::from(stores);
        // A combiner sees nothing from outside, so that there is nothing to share with it.
        if !op.kind.has_combiner() {
            op.regions.iter_mut().for_each(|r| self.region(r));
        }
        self.epoch += u32::from(stores);
        let Some((key, result)) = self.key(op) else { return true };
        match self.seen.get(&key) {
            Some(&earlier) => {
                self.forward[result.index()] = earlier;
                false
            }
            None => {
                self.seen.insert(key.clone(), result);
                added.push(key);
                true
            }
        }
    }

    fn key(&self, op: &Op) -> Option<(Key, Value)> {
        let load = matches!(op.kind, OpKind::Load { .. });
        if !load && !op.kind.is_pure() {
            return None;
        }
        let &result = op.results.first()?;
        let mut args = op.args.clone();
        if matches!(op.kind, OpKind::Map(function) if function.is_commutative()) {
            args.sort_unstable();
        }
        let ty = self.types[result.index()].clone();
        Some((Key { kind: op.kind.clone(), args, ty, epoch: if load { self.epoch } else { 0 } }, result))
    }
}
