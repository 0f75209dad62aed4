//! Branches and loops that go on while a condition holds.

use inkwell::values::IntValue;

use super::ir::{V, llvm};
use super::{Emitter, Level, Open};
use crate::Result;
use crate::host::plan::LoopId;

impl<'c> Emitter<'c, '_> {
    /// A branch; `first` is its first region.
    pub(super) fn branch(&mut self, first: LoopId, second: LoopId) -> Result<()> {
        let plan = self.plan;
        let Some(&cond) = plan.loops[first].op.args.first() else { return Ok(()) };
        let cond = self.value(cond, &[])?;
        self.at(cond.level);
        let otherwise = self.ir.not(cond.v)?;
        for (id, cond) in [(first, cond.v), (second, otherwise)] {
            let depth = self.levels.len();
            self.open_branch(truth(cond)?);
            self.block_levels[id + 1] = self.top();
            self.groups(&plan.loops[id].body)?;
            self.close_to(depth)?;
        }
        Ok(())
    }

    /// A loop whose first region is a test.
    pub(super) fn while_loop(&mut self, test: LoopId, body: LoopId) -> Result<()> {
        let plan = self.plan;
        let op = plan.loops[test].op;
        let depth = self.levels.len();
        self.open_while();
        let top = self.top();
        self.block_levels[test + 1] = top;
        for region in &op.regions {
            self.carried_start(&region.args, top);
        }
        self.groups(&plan.loops[test].body)?;
        let &cond = plan.condition(op).first().ok_or_else(|| llvm("a loop without a condition"))?;
        let holds = truth(self.value(cond, &[])?.v)?;
        if let Open::While { cond, .. } = &mut self.levels[top].open {
            *cond = Some(holds);
        }
        self.open_branch(holds);
        self.block_levels[body + 1] = self.top();
        self.groups(&plan.loops[body].body)?;
        self.close_to(depth)
    }

    fn open_while(&mut self) {
        let body = self.ir.cx.append_basic_block(self.function, "");
        let open = Open::While { cond: None, body };
        self.levels.push(Level { open, block: body, counter: None, bits: 0, keys: Vec::new() });
    }
}

fn truth(v: V<'_>) -> Result<IntValue<'_>> {
    if let V::IntValue(v) = v { Ok(v) } else { Err(llvm("a condition with lanes")) }
}
