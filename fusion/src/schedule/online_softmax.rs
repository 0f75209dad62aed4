//! The largest element of a row, and the sum of exponentials below it, in one walk along the row.
//!
//! Softmax and cross-entropy need `m = max(x)` and `s = sum(exp(x - m))`. Each thread keeps both for the elements that
//! it has seen, and shrinks its sum when a larger element turns up (Milakov and Gimelshein, "Online normalizer calculation
//! for softmax", 2018), once for several elements:
//!
//! ```text
//! %top = reduce max of the step's elements, four for each of the carried ones
//! %m' = max(%m, %top)
//! %s' = %s * exp(%m - %m') + the sum of exp(%x - %m')
//! ```

use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn, Value};

use super::ScheduleError;
use super::emit::{Emitter, Result};
use crate::index::Var;
use crate::kernel::{KExpr, KNode, Kernel};

/// Elements of a step that are combined before they meet a carried one, as far as a tile has them.
const TOGETHER: u32 = 4;

/// The two reductions of a kernel that one walk can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Online {
    /// The position of the maximum in [`Kernel::reduces`].
    pub(super) most: u32,
    /// The position of the sum.
    pub(super) sum: u32,
    /// What the maximum is of.
    value: KExpr,
}

/// The maximum and the sum of exponentials below it, where these are all of a kernel's reductions of the first two
/// levels, over one variable.
pub(super) fn online(kernel: &Kernel) -> Option<Online> {
    let at = |level: u32| {
        let mut found = (0..kernel.reduces.len()).filter(move |&r| kernel.reduces[r].level == level);
        let one = found.next();
        one.filter(|_| found.next().is_none())
    };
    let (most, sum) = (at(1)?, at(2)?);
    let (top, total) = (&kernel.reduces[most], &kernel.reduces[sum]);
    let one_variable = kernel.reduced.iter().filter(|&&r| r).count() == 1;
    let f32s = [top.value, total.value].iter().all(|&e| kernel.info(e).elem == Elem::F32);
    let combines = top.combine == ReduceFn::Max && total.combine == ReduceFn::Sum;
    if !(one_variable && f32s && combines) {
        return None;
    }
    let KNode::Map(ScalarFn::Exp, args) = kernel.node(total.value) else { return None };
    let KNode::Map(ScalarFn::Sub, terms) = kernel.node(*args.first()?) else { return None };
    let below = terms.first() == Some(&top.value)
        && terms.get(1).is_some_and(|&m| *kernel.node(m) == KNode::Reduce(most as u32));
    below.then_some(Online { most: most as u32, sum: sum as u32, value: top.value })
}

impl Emitter<'_> {
    /// Makes both reductions in one walk.
    pub(super) fn stage_online(&mut self, online: Online) -> Result<()> {
        let [axis] = self.tiling.axes[..] else {
            return Err(ScheduleError::Internal("a walk along a tile of several axes"));
        };
        let lanes = [axis.extent / self.together()];
        let least = self.b.constant(Literal::float(Elem::F32, f64::NEG_INFINITY), &lanes);
        let none = self.b.constant(Literal::float(Elem::F32, 0.0), &lanes);
        self.online = Some(online);
        let carried = self.nest(&[axis.var], &[online.most], &[], &[least, none]);
        self.online = None;
        let &[tops, sums] = &carried?[..] else {
            return Err(ScheduleError::Internal("a walk that carries two values"));
        };
        let most = self.b.reduce(ReduceFn::Max, tops, 0, None)?;
        let below = self.map(ScalarFn::Sub, &[tops, most])?;
        let shrink = self.power(below)?;
        let shrunk = self.map(ScalarFn::Mul, &[sums, shrink])?;
        let sum = self.b.reduce(ReduceFn::Sum, shrunk, 0, None)?;
        for (reduce, value) in [(online.most, most), (online.sum, sum)] {
            let expr = self.reduce_expr(reduce)?;
            self.outer.values.insert(expr, value);
        }
        Ok(())
    }

    /// Elements of a step that meet a carried one together.
    pub(super) fn together(&self) -> u32 {
        TOGETHER.min(self.tiling.axes[0].extent)
    }

    /// A step's elements in groups that meet a carried one each.
    pub(super) fn grouped(&mut self, value: Value) -> Result<Value> {
        let (extent, together) = (self.tiling.axes[0].extent, self.together());
        let shape = match self.grouped_axis() {
            0 => [together, extent / together],
            _ => [extent / together, together],
        };
        Ok(self.b.reshape(value, &shape)?)
    }

    /// The axis of [`Emitter::grouped`] along which a group lies. A group is within a thread: neighbours where a thread
    /// has few elements, which lie side by side, else elements that are far apart.
    pub(super) fn grouped_axis(&self) -> u8 {
        u8::from(self.tiling.axes[0].extent < self.tiling.warps * 1024)
    }

    /// One step of the walk.
    pub(super) fn accumulate_online(&mut self, online: Online, carried: &[Value]) -> Result<Vec<Value>> {
        let &[top, sum] = carried else {
            return Err(ScheduleError::Internal("a walk that carries two values"));
        };
        let extent = self.tiling.axes[0].extent;
        let value = self.value(online.value)?;
        let mut value = self.lift(value, &[extent])?;
        let infinity = self.b.constant(Literal::float(Elem::F32, f64::NEG_INFINITY), &[]);
        if let Some(mask) = self.axis_mask(0)? {
            value = self.map(ScalarFn::Select, &[mask, value, infinity])?;
        }
        let value = self.grouped(value)?;
        let highest = self.b.reduce(ReduceFn::Max, value, self.grouped_axis(), None)?;
        let next = self.b.map(ScalarFn::Max, &[top, highest])?;
        let base = self.base(next)?;
        let wide = self.b.expand_dims(base, self.grouped_axis())?;
        let below = self.map(ScalarFn::Sub, &[value, wide])?;
        let powers = self.power(below)?;
        let part = self.b.reduce(ReduceFn::Sum, powers, self.grouped_axis(), None)?;
        let kept = self.shrunk([top, sum], base)?;
        Ok(vec![next, self.map(ScalarFn::Add, &[kept, part])?])
    }

    /// The maximum of what is carried and of a block, and the sum below it.
    pub(super) fn merge_online(&mut self, carried: &[Value], parts: &[Value]) -> Result<Vec<Value>> {
        let (&[top, sum], &[highest, part]) = (carried, parts) else {
            return Err(ScheduleError::Internal("a walk that carries two values"));
        };
        let next = self.b.map(ScalarFn::Max, &[top, highest])?;
        let base = self.base(next)?;
        let kept = self.shrunk([top, sum], base)?;
        let more = self.shrunk([highest, part], base)?;
        Ok(vec![next, self.map(ScalarFn::Add, &[kept, more])?])
    }

    /// What exponentials are taken below, where this is the maximum. Of nothing but minus infinity they are 0.
    fn base(&mut self, most: Value) -> Result<Value> {
        let infinity = self.b.constant(Literal::float(Elem::F32, f64::NEG_INFINITY), &[]);
        let zero = self.b.constant(Literal::float(Elem::F32, 0.0), &[]);
        let nothing = self.map(ScalarFn::Eq, &[most, infinity])?;
        self.map(ScalarFn::Select, &[nothing, zero, most])
    }

    /// A sum of exponentials below `top`, below `base`.
    fn shrunk(&mut self, [top, sum]: [Value; 2], base: Value) -> Result<Value> {
        let down = self.map(ScalarFn::Sub, &[top, base])?;
        let shrink = self.power(down)?;
        self.map(ScalarFn::Mul, &[sum, shrink])
    }

    /// `exp` of numbers that are not positive, to be summed. Where all floats that are read have 16 bits, by the GPU's own
    /// unit, whose relative error of `2^-22` is that of the sum, to which less than `2^-126` adds nothing.
    fn power(&mut self, below: Value) -> Result<Value> {
        let read = self.kernel.buffers.iter().filter(|b| !b.written && b.elem.is_float());
        if !read.clone().all(|b| b.elem.bits() == 16) {
            return self.map(ScalarFn::Exp, &[below]);
        }
        let scale = self.b.constant(Literal::float(Elem::F32, std::f64::consts::LOG2_E), &[]);
        let scaled = self.map(ScalarFn::Mul, &[below, scale])?;
        self.map(ScalarFn::Exp2ApproxFtz, &[scaled])
    }

    /// The reductions that this kernel's first walk makes at once, if it is looped along one axis.
    pub(super) fn online_stage(&self, reduced: u64) -> Option<Online> {
        let one = self.tiling.axes.len() == 1 && self.kernel.reduced[self.tiling.axes[0].var.0 as usize];
        let stores = (0..self.kernel.stores.len()).any(|s| matches!(self.stage_of(s, reduced), Some(1 | 2)));
        online(self.kernel).filter(|_| self.machine.is_gpu() && one && !stores)
    }

    /// Prepares what the walk needs and does not change.
    pub(super) fn begin_online(&mut self, online: Online, reduced: u64) -> Result<()> {
        self.hoist(&[online.value], reduced)
    }
}

/// Whether rows along a variable are walked once for both reductions, which a kernel's other stages do not need again.
pub(super) fn reads_once(kernel: &Kernel, cols: Var) -> bool {
    let bit = 1u64 << cols.0.min(63);
    kernel.stores.iter().all(|s| (kernel.info(s.value).vars | kernel.indices.vars(s.addr)) & bit == 0)
}
