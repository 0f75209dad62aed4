//! Loops and branches. Their conditions are the same in every thread of the block, so that barriers inside are
//! reached by all.

use rustc_hash::FxHashMap;
use tilefuse_block::{Op, OpKind, Region, Value};

use super::barrier::BarrierReason;
use super::ir::Val;
use super::lower::{Lower, Regs};
use crate::error::Result;
use crate::layout::Layout;

impl<'a> Lower<'a> {
    pub(crate) fn for_loop(&mut self, op: &'a Op) -> Result<()> {
        let region = op.regions.first().ok_or_else(|| self.invalid("a loop without a body"))?;
        let [lo, hi, step] = [self.scalar(op.args[0])?, self.scalar(op.args[1])?, self.scalar(op.args[2])?];
        // 64 bits, so that the last step does not overflow.
        let [lo, hi, step] = [lo, hi, step].map(|v| self.ir.def(format_args!("sext i32 {v} to i64")));
        let layouts: Vec<Layout> = region.args[1..].iter().map(|&a| self.plan.home(a)).collect();
        let init = self.all(&op.args[3..], &layouts)?;
        let ahead = self.start_pipeline(op, [&lo, &hi, &step])?;
        if let Some(ahead) = &ahead
            && let Some(rotation) = self.rotation(op, ahead)
        {
            let left = self.rotated_loop(op, (ahead, &rotation), (&layouts, &init))?;
            self.hold_all(&op.results, &layouts, &left);
            return Ok(());
        }
        let n = self.ir.label();
        let (head, body, exit) = (format!("head{n}"), format!("body{n}"), format!("exit{n}"));
        let before = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}"));
        self.ir.begin(&head);
        let mut carried = self.phis(&region.args[1..], &layouts);
        let index = self.ir.fresh();
        let marker = self.ir.mark();
        self.ir.raw(format_args!("br i1 %c{n}, label %{body}, label %{exit}"));
        self.ir.begin(&body);
        let unopened = self.hazards.clone();
        self.open_loop(std::slice::from_ref(region));
        if let Some(ahead) = &ahead {
            self.advance_pipeline(ahead, &index)?;
        }
        let i32_index = self.ir.def(format_args!("trunc i64 {index} to i32"));
        self.hold(region.args[0], Layout::scalar(self.plan.warps), vec![i32_index]);
        for op in &region.ops {
            if self.is_ahead(ahead.as_ref(), op) {
                continue;
            }
            if let Some(ahead) = &ahead {
                self.await_operands(ahead, op);
            }
            self.op(op)?;
            if let Some(ahead) = &ahead {
                self.release_operands(ahead, op);
            }
        }
        let next = self.all(&self.yielded(region)?.args, &layouts)?;
        if let Some(ahead) = &ahead {
            self.finish_iteration(ahead, &index)?;
        }
        // The body may not run at all.
        self.hazards.join(unopened);
        let next_index = self.ir.def(format_args!("add nsw i64 {index}, {step}"));
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}, !llvm.loop !0"));
        self.copies.pop();
        let mut phis = vec![format!("{index} = phi i64 [ {lo}, %{before} ], [ {next_index}, %{last} ]")];
        phis.extend(ahead.iter().flat_map(|ahead| self.pipeline_phis(ahead, &before, &last)));
        phis.extend(self.carry(&region.args[1..], &carried, (&init, &before), (&next, &last)));
        phis.push(format!("%c{n} = icmp slt i64 {index}, {hi}"));
        self.ir.insert(marker, &phis);
        self.ir.begin(&exit);
        if let Some(ahead) = &ahead {
            self.end_pipeline(op, ahead, &mut carried);
        }
        self.hold_all(&op.results, &layouts, &carried);
        Ok(())
    }

    pub(crate) fn while_loop(&mut self, op: &'a Op) -> Result<()> {
        let [test, body] = op.regions.as_slice() else {
            return Err(self.invalid("a while loop without its two regions"));
        };
        let layouts: Vec<Layout> = test.args.iter().map(|&a| self.plan.home(a)).collect();
        let init = self.all(&op.args, &layouts)?;
        let n = self.ir.label();
        let (head, inside, exit) = (format!("head{n}"), format!("body{n}"), format!("exit{n}"));
        let before = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}"));
        self.ir.begin(&head);
        let carried = self.phis(&test.args, &layouts);
        let marker = self.ir.mark();
        self.open_loop(&op.regions);
        self.region(test)?;
        let condition = self.yielded(test)?.args[0];
        let holds = self.condition(condition)?;
        self.copies.pop();
        self.ir.raw(format_args!("br i1 {holds}, label %{inside}, label %{exit}"));
        self.ir.begin(&inside);
        self.copies.push(FxHashMap::default());
        self.hold_all(&body.args, &layouts, &carried);
        let at_test = self.hazards.clone();
        self.region(body)?;
        let next = self.all(&self.yielded(body)?.args, &layouts)?;
        self.copies.pop();
        self.hazards.join(at_test);
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}, !llvm.loop !0"));
        let phis = self.carry(&test.args, &carried, (&init, &before), (&next, &last));
        self.ir.insert(marker, &phis);
        self.ir.begin(&exit);
        self.hold_all(&op.results, &layouts, &carried);
        Ok(())
    }

    pub(crate) fn branch(&mut self, op: &'a Op) -> Result<()> {
        let [yes, no] = op.regions.as_slice() else {
            return Err(self.invalid("an if without its two regions"));
        };
        let layouts: Vec<Layout> = op.results.iter().map(|&r| self.plan.home(r)).collect();
        let holds = self.condition(op.args[0])?;
        let n = self.ir.label();
        let (first, second, exit) = (format!("then{n}"), format!("else{n}"), format!("exit{n}"));
        self.ir.raw(format_args!("br i1 {holds}, label %{first}, label %{second}"));
        let before = self.hazards.clone();
        let (yes, from_yes) = self.arm(yes, &first, &exit, &layouts)?;
        let after = std::mem::replace(&mut self.hazards, before);
        let (no, from_no) = self.arm(no, &second, &exit, &layouts)?;
        self.hazards.join(after);
        self.ir.begin(&exit);
        for (index, (&result, layout)) in op.results.iter().zip(&layouts).enumerate() {
            let t = self.register_ty(result);
            let pairs = yes[index].iter().zip(no[index].iter());
            let regs = pairs
                .map(|(a, b)| self.ir.def(format_args!("phi {t} [ {a}, %{from_yes} ], [ {b}, %{from_no} ]")))
                .collect();
            self.hold(result, layout.clone(), regs);
        }
        Ok(())
    }

    /// One region of a branch: what it yields, and the block that it ends in.
    fn arm(
        &mut self,
        region: &'a Region,
        label: &str,
        exit: &str,
        layouts: &[Layout],
    ) -> Result<(Vec<Regs>, String)> {
        self.ir.begin(label);
        self.copies.push(FxHashMap::default());
        self.region(region)?;
        let values = self.all(&self.yielded(region)?.args, layouts)?;
        self.copies.pop();
        let last = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{exit}"));
        Ok((values, last))
    }

    /// A boolean scalar that all threads agree about: where they may have read different things, it is true when one
    /// thread says so.
    fn condition(&mut self, value: Value) -> Result<Val> {
        let own = self.scalar(value)?;
        if !self.plan.loaded[value.index()] {
            return Ok(own);
        }
        self.ir.declare("i1 @llvm.nvvm.barrier.cta.red.or.aligned.all(i32, i1) convergent nounwind");
        let common =
            self.ir.def(format_args!("call i1 @llvm.nvvm.barrier.cta.red.or.aligned.all(i32 0, i1 {own})"));
        self.decisions.wait(BarrierReason::Condition);
        self.hazards.clear();
        Ok(common)
    }

    fn yielded(&self, region: &'a Region) -> Result<&'a Op> {
        let last = region.ops.last().filter(|o| o.kind == OpKind::Yield);
        last.ok_or_else(|| self.invalid("a region without yield"))
    }

    /// Several values, each in its layout.
    fn all(&mut self, values: &[Value], layouts: &[Layout]) -> Result<Vec<Regs>> {
        values.iter().zip(layouts).map(|(&value, layout)| self.get(value, layout)).collect()
    }

    fn hold_all(&mut self, values: &[Value], layouts: &[Layout], regs: &[Vec<Val>]) {
        for ((&value, layout), regs) in values.iter().zip(layouts).zip(regs) {
            self.hold(value, layout.clone(), regs.clone());
        }
    }

    /// Names for the carried values of a loop, which the body reads.
    fn phis(&mut self, args: &[Value], layouts: &[Layout]) -> Vec<Vec<Val>> {
        let mut carried = Vec::new();
        for (&arg, layout) in args.iter().zip(layouts) {
            let names: Vec<Val> = (0..layout.num_regs()).map(|_| self.ir.fresh()).collect();
            self.hold(arg, layout.clone(), names.clone());
            carried.push(names);
        }
        carried
    }

    /// What makes the carried values of a loop: the initial ones, and the next ones, with the blocks they come from.
    fn carry(
        &self,
        args: &[Value],
        carried: &[Vec<Val>],
        (init, before): (&[Regs], &str),
        (next, last): (&[Regs], &str),
    ) -> Vec<String> {
        let mut phis = Vec::new();
        for (i, names) in carried.iter().enumerate() {
            let t = self.register_ty(args[i]);
            for (r, name) in names.iter().enumerate() {
                let (first, then) = (&init[i][r], &next[i][r]);
                phis.push(format!("{name} = phi {t} [ {first}, %{before} ], [ {then}, %{last} ]"));
            }
        }
        phis
    }

    /// Begins an iteration: what earlier ones left in memory must be visible where it matters.
    fn open_loop(&mut self, regions: &'a [Region]) {
        self.copies.push(FxHashMap::default());
        self.shared.enter_loop();
        if self.hazards.loop_needs_barrier(regions) {
            self.barrier(BarrierReason::Iterations);
        }
    }
}
