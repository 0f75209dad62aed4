//! Products by the matrix unit of four warps together (`wgmma`), on Hopper.
//!
//! Both operands are read from shared memory, where they lie in panels. An instruction runs while the threads go on;
//! where a loop only adds to the sums, it runs into the next iteration, and the loop's end waits for it. Of two products of an
//! iteration, the second one may run beside the next iteration's first (`rotate.rs`).

use tilefuse_block::{Elem, Op, OpKind, Program, Region, Value};

use super::mma::{InShared, Unit, result_axes, unit};
use super::stage::{Side, Staged};
use super::{Extents, operands};
use crate::error::Result;
use crate::layout::{Accumulator, Layout};
use crate::ptx::Target;
use crate::ptx::assign::Assignment;
use crate::ptx::ir::{Val, ty};
use crate::ptx::lower::Lower;

/// Rows of one instruction's result.
const ROWS: u64 = 64;
/// The most columns.
const MAX_COLS: u64 = 256;
/// Elements along the common axis that one instruction takes.
const STEP: u64 = 16;

/// Whether four warps compute a product together, of `1 << warps`.
pub(crate) fn is_grouped(program: &Program, op: &Op, target: Target, warps: u32) -> bool {
    let Some(extents) = Extents::of(program, op).filter(|e| e.batch == 0) else { return false };
    let short = unit(program, op).is_some_and(Unit::is_short);
    let large = extents.rows >= 6 && extents.cols >= 4 && extents.common >= 4;
    target.has_warpgroups() && warps >= 2 && short && large
}

/// How an operand lies in shared memory.
pub(super) fn in_panels(
    program: &Program,
    op: &Op,
    side: Side,
    layout: &Layout,
    base: u64,
) -> Option<Staged> {
    let (elem, _) = operands(program, op)?;
    let extents = Extents::of(program, op)?;
    Some(Staged::in_panels(base, &extents, side, elem.bytes(), side.is_by_lines(layout)))
}

/// Whether a loop's body only adds products to the sums of `op`, so that nothing reads them before the loop's end.
pub(crate) fn only_adds(program: &Program, body: &Region, op: &Op) -> bool {
    let (Some(&result), Some(&sums)) = (op.results.first(), op.args.get(2)) else { return false };
    let carried = body.args.iter().skip(1).position(|&arg| arg == sums);
    let yielded = |index: usize| {
        let last = body.ops.last().filter(|o| o.kind == OpKind::Yield);
        last.is_some_and(|last| last.args.get(index) == Some(&result))
    };
    let uses = program.uses();
    carried.is_some_and(yielded) && uses[result.index()] == 1 && uses[sums.index()] == 1
}

/// An operand as instructions describe it.
struct Described {
    place: InShared,
    /// The descriptor of its beginning.
    start: Val,
}

/// Where the left operand is.
enum Left {
    Shared(Described),
    Registers(Vec<Val>),
}

/// What of it one instruction takes.
enum LeftPart<'a> {
    /// A descriptor, and whether neighbours along the rows' axis are adjacent.
    Shared(Val, u32),
    Registers(&'a [Val]),
}

/// Whether the registers of a left operand are those that a product with sums in the layout `result` takes: a matrix in
/// the form of sums, each of whose warps has the rows of its sums.
fn is_fragment(home: &Layout, result: &Layout) -> bool {
    let [_, rows, common] = result_axes(home);
    let [_, result_rows, _] = result_axes(result);
    let warps = home.warps().len() as u32;
    if rows.len() < 6 || common.len() < 4 || warps < 2 {
        return false;
    }
    let form =
        Layout::accumulator(home.shape(), &Accumulator { rows: 4, warps, by_rows: true, grouped: true });
    let same = home.warps().iter().zip(result.warps()).all(|(a, b)| {
        a >> rows.start != 0 && b >> result_rows.start != 0 && a >> rows.start == b >> result_rows.start
    });
    *home == form && same
}

/// Whether a product finds its left operand in the registers that hold it.
pub(crate) fn takes_registers(plan: &Assignment, op: &Op) -> bool {
    let fits = |unit| is_fragment(&plan.home(op.args[0]), &plan.accumulator(op, unit));
    unit(plan.program, op).is_some_and(fits)
}

/// A product whose instructions can start: its operands are where they read them.
pub(crate) struct Prepared<'a> {
    op: &'a Op,
    unit: Unit,
    extents: Extents,
    pub(crate) layout: Layout,
    left: Left,
    right: Described,
    /// What is added to, and what becomes of it.
    pub(crate) sums: Vec<Val>,
}

impl Described {
    /// What a descriptor adds for the place of an element.
    fn at(&self, line: u64, common: u64) -> u64 {
        self.place.staged.unexchanged(0, line, common) >> 4
    }

    /// 1 where neighbours along the lines' axis are adjacent.
    fn turned(&self) -> u32 {
        u32::from(self.place.staged.is_by_lines())
    }
}

impl<'a> Lower<'a> {
    pub(super) fn dot_of_warpgroups(&mut self, op: &'a Op) -> Result<()> {
        let held = self.left_in_registers(op)?;
        let mut product = self.prepared(op, held, None)?;
        let overlaps = self.in_flight.contains(&op.results[0]);
        // Nothing that makes the sums may come after the fence.
        if !overlaps && !self.is_zero(op.args[2]) {
            product.sums = self.pinned(&product.sums);
        }
        self.start_product(&mut product);
        if !overlaps {
            self.wait_for_products(0);
            product.sums = self.pinned(&product.sums);
        }
        self.hold(op.results[0], product.layout, product.sums);
        Ok(())
    }

    /// A product with its operands in shared memory, but for a left one that is held in words, and its sums as given or as they are.
    pub(crate) fn prepared(
        &mut self,
        op: &'a Op,
        held: Option<Vec<Val>>,
        sums: Option<Vec<Val>>,
    ) -> Result<Prepared<'a>> {
        let (unit, extents) = unit(self.program(), op)
            .zip(Extents::of(self.program(), op))
            .ok_or_else(|| self.invalid("a product without extents"))?;
        let layout = self.plan.accumulator(op, unit);
        let sums = sums.map_or_else(|| self.get(op.args[2], &layout).map(|regs| regs.to_vec()), Ok)?;
        let program = self.program();
        let place = |base: u64, side: Side, layout: &Layout| in_panels(program, op, side, layout, base);
        let sides: &[Side] = if held.is_some() { &[Side::Right] } else { &[Side::Left, Side::Right] };
        let mut described = Vec::new();
        for (place, &side) in self.in_shared(op, sides, unit, &place)?.into_iter().zip(sides) {
            described.push(self.describe(place, side, &layout));
        }
        let right = described.pop().ok_or_else(|| self.invalid("a product of two operands"))?;
        let left = match (held, described.pop()) {
            (Some(words), _) => Left::Registers(words),
            (None, Some(described)) => Left::Shared(described),
            (None, None) => return Err(self.invalid("a product of two operands")),
        };
        Ok(Prepared { op, unit, extents, layout, left, right, sums })
    }

    /// Starts the instructions of a product, as one group.
    pub(crate) fn start_product(&mut self, product: &mut Prepared<'_>) {
        self.wgmma_control("fence");
        self.multiply_groups(product);
        self.wgmma_control("commit_group");
    }

    /// Whether a value is zero everywhere.
    fn is_zero(&self, value: Value) -> bool {
        self.plan.defs[value.index()].is_some_and(|op| matches!(op.kind, OpKind::Const(l) if l.bits == 0))
    }

    fn multiply_groups(&mut self, product: &mut Prepared<'_>) {
        let Prepared { op, unit, extents, layout, left, right, sums } = product;
        let [_, rows, cols] = result_axes(layout);
        let own = |bits: std::ops::Range<u32>| -> u64 {
            let field = ((1u64 << bits.len()) - 1) << bits.start;
            layout.regs().iter().filter(|r| field & u64::from(**r) != 0).count() as u64
        };
        // A thread's registers: 4 of each 8 columns, then the columns, then the rows beyond 64.
        let wide = 1u64 << (own(cols.start..cols.end) + 2);
        let cols_each = wide.min(MAX_COLS);
        let blocks: Vec<u64> = layout
            .regs()
            .iter()
            .filter(|r| **r >= 1 << (rows.start + 6))
            .map(|r| u64::from(r >> rows.start))
            .collect();
        let down: Vec<u64> = (0..1usize << blocks.len())
            .map(|set| blocks.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, b)| b).sum())
            .collect();
        let each = (cols_each / 2) as usize;
        let from_zero = self.is_zero(op.args[2]);
        if from_zero {
            // The first instructions do not read them.
            sums.fill("poison".into());
        }
        let steps = 1usize << (extents.common - STEP.trailing_zeros());
        for step in 0..steps {
            let k = step as u64 * STEP;
            let mut rest = &mut sums[..];
            for (block, &row) in down.iter().enumerate() {
                let a = match left {
                    Left::Shared(a) => LeftPart::Shared(self.descriptor(&a.start, a.at(row, k)), a.turned()),
                    Left::Registers(words) => LeftPart::Registers(&words[(block * steps + step) * 4..][..4]),
                };
                for col in (0..wide).step_by(cols_each as usize) {
                    let (part, after) = rest.split_at_mut(each);
                    let b = self.descriptor(&right.start, right.at(col, k));
                    let adds = k > 0 || !from_zero;
                    self.wgmma(*unit, cols_each, &a, (&b, right.turned()), (adds, part));
                    rest = after;
                }
            }
        }
    }

    fn wgmma(
        &mut self,
        unit: Unit,
        cols: u64,
        a: &LeftPart,
        b: (&Val, u32),
        (adds, sums): (bool, &mut [Val]),
    ) {
        let n = sums.len();
        let names = |from: usize, count: usize| {
            (from..from + count).map(|i| format!("${i}")).collect::<Vec<String>>().join(", ")
        };
        let of = unit.operand_name();
        let (operand, count, turned, constraint, inputs) = match a {
            LeftPart::Shared(a, turned) => {
                (names(2 * n, 1), 1, format!(", {turned}"), ",l", format!("i64 {a}"))
            }
            LeftPart::Registers(words) => {
                let inputs: Vec<String> = words.iter().map(|w| format!("i32 {w}")).collect();
                (format!("{{{}}}", names(2 * n, 4)), 4, String::new(), ",r,r,r,r", inputs.join(", "))
            }
        };
        let text = format!(
            "wgmma.mma_async.sync.aligned.m{ROWS}n{cols}k{STEP}.f32.{of}.{of} {{{}}}, {operand}, {}, {}, 1, 1{turned}, {};",
            names(0, n),
            names(2 * n + count, 1),
            names(2 * n + count + 1, 1),
            b.1
        );
        let inputs = format!("{inputs}, i64 {}, i1 {adds}", b.0);
        let new = self.tied(&text, sums, "float", &format!("{constraint},l,b,~{{memory}}"), &inputs);
        sums.clone_from_slice(&new);
    }

    /// The left operand's registers, if the product finds there what it wants: four words for each step of each 64 rows.
    pub(crate) fn left_in_registers(&mut self, op: &'a Op) -> Result<Option<Vec<Val>>> {
        let placed = self.placed.contains_key(&(std::ptr::from_ref(op), Side::Left.index()));
        if placed || !takes_registers(self.plan, op) {
            return Ok(None);
        }
        let words = self.left_words(op)?;
        Ok(Some(self.pinned_words(&words)))
    }

    /// Eight numbers of a thread make four words: of each pair of columns in two rows, 8 columns further again.
    pub(crate) fn left_words(&mut self, op: &'a Op) -> Result<Vec<Val>> {
        let value = op.args[0];
        let elem = self.elem(value)?;
        let regs = self.get(value, &self.plan.home(value))?;
        Ok(regs.chunks(2).map(|pair| self.pair_of(elem, [&pair[0], &pair[1]])).collect())
    }

    /// Two 16-bit numbers in a word.
    fn pair_of(&mut self, elem: Elem, pair: [&Val; 2]) -> Val {
        let t = ty(elem);
        let one = self.ir.def(format_args!("insertelement <2 x {t}> poison, {t} {}, i32 0", pair[0]));
        let two = self.ir.def(format_args!("insertelement <2 x {t}> {one}, {t} {}, i32 1", pair[1]));
        self.ir.def(format_args!("bitcast <2 x {t}> {two} to i32"))
    }

    /// Inline assembly that changes values of one type in place.
    fn tied(&mut self, text: &str, values: &[Val], t: &str, more: &str, inputs: &str) -> Vec<Val> {
        let n = values.len();
        let outputs = vec![if t == "float" { "=f" } else { "=r" }; n].join(",");
        let ties = (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let result = format!("{{ {} }}", vec![t; n].join(", "));
        let mut args: Vec<String> = values.iter().map(|s| format!("{t} {s}")).collect();
        args.extend(Some(inputs).filter(|i| !i.is_empty()).map(str::to_owned));
        let call = self.ir.def(format_args!(
            "call {result} asm sideeffect \"{text}\", \"{outputs},{ties}{more}\"({}) nounwind convergent",
            args.join(", ")
        ));
        (0..n).map(|i| self.ir.def(format_args!("extractvalue {result} {call}, {i}"))).collect()
    }

    /// Numbers that nothing reads before this place.
    pub(crate) fn pinned(&mut self, values: &[Val]) -> Vec<Val> {
        self.tied("", values, "float", "", "")
    }

    /// The same of words.
    pub(crate) fn pinned_words(&mut self, words: &[Val]) -> Vec<Val> {
        self.tied("", words, "i32", "", "")
    }

    fn wgmma_control(&mut self, what: &str) {
        self.ir.declare(&format!("void @llvm.nvvm.wgmma.{what}.sync.aligned() convergent nounwind"));
        self.ir.raw(format_args!("call void @llvm.nvvm.wgmma.{what}.sync.aligned()"));
    }

    /// Waits until all but so many of the latest groups of instructions have ended.
    pub(crate) fn wait_for_products(&mut self, groups: u64) {
        self.ir.declare("void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64) convergent nounwind");
        self.ir.raw(format_args!("call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 {groups})"));
    }

    /// Orders this thread's accesses of shared memory before later ones by the async proxy: of the matrix unit and of the tensor
    /// memory accelerator.
    pub(crate) fn fence_async_proxy(&mut self) {
        self.ir.raw("call void asm sideeffect \"fence.proxy.async.shared::cta;\", \"~{memory}\"() nounwind");
    }

    /// The descriptor of the part of an operand that this thread's four warps read.
    fn describe(&mut self, place: InShared, side: Side, layout: &Layout) -> Described {
        let staged = place.staged;
        let [_, rows, cols] = result_axes(layout);
        let own = if side == Side::Left { rows } else { cols };
        let first = layout
            .warps()
            .iter()
            .enumerate()
            .skip(2)
            .filter(|(_, b)| own.contains(&b.checked_ilog2().unwrap_or(0)) && **b != 0);
        let mut byte: Val = staged.base.to_string().into();
        for (bit, basis) in first {
            let weight = staged.unexchanged(0, u64::from(basis >> own.start), 0);
            let bit = self.group_bit(bit);
            let part = self.ir.def(format_args!("mul nuw nsw i32 {bit}, {weight}"));
            byte = self.ir.def(format_args!("add nuw nsw i32 {byte}, {part}"));
        }
        let address = match &place.stage {
            Some(stage) => {
                let byte = self.ir.def(format_args!("add i32 {byte}, {stage}"));
                self.shared_at(&byte, 0)
            }
            None => self.scratch_at(&byte, 0),
        };
        let narrow = self.ir.def(format_args!("ptrtoint ptr addrspace(3) {address} to i32"));
        let low = self.ir.def(format_args!("and i32 {narrow}, {}", 0x3ffff));
        let low = self.ir.def(format_args!("lshr i32 {low}, 4"));
        let low = self.ir.def(format_args!("zext i32 {low} to i64"));
        let start = self.ir.def(format_args!("or i64 {low}, {}", fixed_bits(&staged) as i64));
        Described { place, start }
    }

    /// A bit of the warp's number, which the compiler is told is the same in all of the warp's lanes.
    fn group_bit(&mut self, bit: usize) -> Val {
        let warp = self.ir.entry_def(format_args!("lshr i32 %tid, {}", 5 + bit));
        let own = self.ir.entry_def(format_args!("and i32 {warp}, 1"));
        self.ir.declare("i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32) convergent nounwind");
        self.ir.entry_def(format_args!(
            "call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {own}, i32 0, i32 31)"
        ))
    }

    fn descriptor(&mut self, start: &Val, distance: u64) -> Val {
        match distance {
            0 => start.clone(),
            _ => self.ir.def(format_args!("add i64 {start}, {distance}")),
        }
    }
}

/// What a descriptor says beside the place: the distances between panels and between eights of pieces, in 16 bytes, and
/// the exchange of parts.
fn fixed_bits(staged: &Staged) -> u64 {
    let Some(panels) = staged.panels else { return 0 };
    let exchange: u64 = match panels.width {
        128 => 1,
        64 => 2,
        _ => 3,
    };
    // Along a run that is the common axis an instruction stays within one panel.
    let leading = if staged.is_by_lines() { panels.size >> 4 } else { 1 };
    let stride = (8 * panels.width) >> 4;
    (leading & 0x3fff) << 16 | (stride & 0x3fff) << 32 | exchange << 62
}
