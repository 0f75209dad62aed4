//! Products by multiplications and additions of single elements, for every kind and extent.

use tilefuse_block::{Elem, Op};

use super::Extents;
use super::stage::{Side, Staged};
use crate::error::Result;
use crate::layout::{Layout, axis_bits};
use crate::ptx::barrier::BarrierReason;
use crate::ptx::ir::{Val, ty};
use crate::ptx::lower::Lower;
use crate::scalar;

/// Steps along the common axis that one iteration of the loop makes.
const UNROLL: u64 = 4;

/// Which elements of an operand a thread needs: by the register of the accumulator, the one of `lines`.
struct Lines {
    staged: Staged,
    start: Val,
    /// Where each begins, from the thread's first.
    lines: Vec<u64>,
    of_register: Vec<usize>,
}

impl<'a> Lower<'a> {
    pub(super) fn dot_of_elements(&mut self, op: &'a Op, extents: Extents) -> Result<()> {
        let layout = self.plan.home(op.results[0]);
        let elem = self.elem(op.results[0])?;
        let (left, right) = (self.source(op, Side::Left)?, self.source(op, Side::Right)?);
        let sums = self.get(op.args[2], &layout)?.to_vec();
        let bytes = elem.bytes();
        let a = Staged::new(0, &extents, Side::Left, bytes, false);
        let b = Staged::new(a.size, &extents, Side::Right, bytes, true);
        self.reserve(a.size + b.size);
        for (source, staged) in [(&left, &a), (&right, &b)] {
            self.stage(source, (staged, None), elem, &mut |lower, from, value| {
                scalar::cast(&mut lower.ir, from, elem, value)
            })?;
        }
        self.barrier(BarrierReason::Filled);
        let a = self.lines(&layout, a, Side::Left);
        let b = self.lines(&layout, b, Side::Right);
        let sums = self.sum_products(elem, 1 << extents.common, [&a, &b], sums);
        self.hold(op.results[0], layout, sums);
        Ok(())
    }

    fn lines(&mut self, layout: &Layout, staged: Staged, side: Side) -> Lines {
        let shape = layout.shape();
        let (rows, cols) = (axis_bits(shape, shape.len() - 2), axis_bits(shape, shape.len() - 1));
        let batch = rows.end..shape.iter().sum();
        let own = if side == Side::Left { rows } else { cols };
        let thread = self.thread_part(layout);
        let start = self.weighted(&thread, &[(&batch, staged.batch), (&own, staged.line)]);
        let field = |number: u32, bits: &std::ops::Range<u32>| {
            u64::from(number >> bits.start) & ((1 << bits.len()) - 1)
        };
        let place = |r: usize| {
            let number = layout.reg_offset(r);
            staged.at(field(number, &batch), field(number, &own), 0)
        };
        let places: Vec<u64> = (0..layout.num_regs()).map(place).collect();
        let mut lines = places.clone();
        lines.sort_unstable();
        lines.dedup();
        let of_register = places.iter().map(|p| lines.partition_point(|line| line < p)).collect();
        Lines { staged, start, lines, of_register }
    }

    /// Adds all products along the common axis, in a loop.
    fn sum_products(&mut self, elem: Elem, common: u64, operands: [&Lines; 2], init: Vec<Val>) -> Vec<Val> {
        let t = ty(elem);
        let n = self.ir.label();
        let (head, exit) = (format!("head{n}"), format!("exit{n}"));
        let before = self.ir.block().to_owned();
        self.ir.raw(format_args!("br label %{head}"));
        self.ir.begin(&head);
        let marker = self.ir.mark();
        let step = self.ir.fresh();
        let carried: Vec<Val> = init.iter().map(|_| self.ir.fresh()).collect();
        let mut sums = carried.clone();
        let unroll = common.min(UNROLL);
        for k in 0..unroll {
            let [a, b] = operands.map(|lines| self.elements(elem, lines, &step, k));
            for (r, sum) in sums.iter_mut().enumerate() {
                let (x, y) = (&a[operands[0].of_register[r]], &b[operands[1].of_register[r]]);
                *sum = self.multiply_add(elem, x, y, sum);
            }
        }
        let next = self.ir.def(format_args!("add nuw nsw i32 {step}, {unroll}"));
        let goes_on = self.ir.def(format_args!("icmp ult i32 {next}, {common}"));
        self.ir.raw(format_args!("br i1 {goes_on}, label %{head}, label %{exit}, !llvm.loop !0"));
        let mut phis = vec![format!("{step} = phi i32 [ 0, %{before} ], [ {next}, %{head} ]")];
        for ((name, first), last) in carried.iter().zip(&init).zip(&sums) {
            phis.push(format!("{name} = phi {t} [ {first}, %{before} ], [ {last}, %{head} ]"));
        }
        self.ir.insert(marker, &phis);
        self.ir.begin(&exit);
        sums
    }

    /// The elements of a thread's lines at a step.
    fn elements(&mut self, elem: Elem, lines: &Lines, step: &Val, k: u64) -> Vec<Val> {
        let along = self.ir.def(format_args!("mul nuw nsw i32 {step}, {}", lines.staged.common));
        let start = self.ir.def(format_args!("add nuw nsw i32 {}, {along}", lines.start));
        let load = |lower: &mut Self, line: u64| {
            let address = lower.scratch_at(&start, line + k * lines.staged.common);
            lower.shared_load(&address, elem)
        };
        lines.lines.iter().map(|&line| load(self, line)).collect()
    }

    fn multiply_add(&mut self, elem: Elem, x: &Val, y: &Val, sum: &Val) -> Val {
        let t = ty(elem);
        if elem.is_float() {
            let bits = elem.bits();
            return self.ir.intrinsic(&format!("llvm.fma.f{bits}"), t, &[x, y, sum]);
        }
        let product = self.ir.def(format_args!("mul {t} {x}, {y}"));
        self.ir.def(format_args!("add {t} {sum}, {product}"))
    }
}
