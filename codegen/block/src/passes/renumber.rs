//! Numbers values in the order of their definitions and drops those that nothing defines.

use crate::program::{Op, Program, Region, Value, ValueData};

/// Renumbers the values of a program.
pub fn renumber(program: &mut Program) {
    let old = std::mem::take(&mut program.values);
    let mut cx = Cx { new: vec![None; old.len()], values: Vec::new(), old };
    for param in &mut program.params {
        param.value = cx.define(param.value);
    }
    cx.region(&mut program.body);
    program.values = cx.values;
}

struct Cx {
    old: Vec<ValueData>,
    new: Vec<Option<Value>>,
    values: Vec<ValueData>,
}

impl Cx {
    fn define(&mut self, value: Value) -> Value {
        let new = Value(self.values.len() as u32);
        self.values.push(self.old[value.index()].clone());
        self.new[value.index()] = Some(new);
        new
    }

    fn region(&mut self, region: &mut Region) {
        region.args.iter_mut().for_each(|v| *v = self.define(*v));
        region.ops.iter_mut().for_each(|op| self.op(op));
    }

    fn op(&mut self, op: &mut Op) {
        for arg in &mut op.args {
            *arg = self.new[arg.index()].unwrap_or(*arg);
        }
        op.regions.iter_mut().for_each(|r| self.region(r));
        op.results.iter_mut().for_each(|v| *v = self.define(*v));
    }
}
