//! Products by the matrix unit.

use tilefuse_block::{DotPrecision, Elem, Op, Program};

use super::stage::{Side, Staged};
use super::{Extents, operands, warpgroup};
use crate::error::Result;
use crate::layout::{Accumulator, Layout, axis_bits};
use crate::ptx::assign::Assignment;
use crate::ptx::barrier::BarrierReason;
use crate::ptx::ir::{Val, ty};
use crate::ptx::lower::Lower;
use crate::ptx::software_pipeline::Placed;

/// What the matrix unit multiplies, and how much of it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    kind: Kind,
    /// Whether an instruction takes 32 bytes along the common axis, else 16.
    whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F16,
    Bf16,
    Tf32,
    /// Three products of parts.
    Tf32x3,
    S8,
    U8,
    F64,
}

/// The instruction for a product, if one fits.
pub(crate) fn unit(program: &Program, op: &Op) -> Option<Unit> {
    let (elem, precision) = operands(program, op)?;
    let kind = match (elem, precision) {
        (Elem::F16, _) => Kind::F16,
        (Elem::Bf16, _) => Kind::Bf16,
        (Elem::F32, DotPrecision::Tf32) => Kind::Tf32,
        (Elem::F32, DotPrecision::Tf32x3) => Kind::Tf32x3,
        (Elem::I8, _) => Kind::S8,
        (Elem::U8, _) => Kind::U8,
        (Elem::F64, _) => Kind::F64,
        _ => return None,
    };
    let extents = Extents::of(program, op)?;
    let along = u64::from(elem.bytes()) << extents.common;
    let unit = Unit { kind, whole: along >= 32 };
    let least = if kind == Kind::F64 { 32 } else { 16 };
    let fits = extents.rows >= unit.rows() && extents.cols >= Accumulator::COLS && along >= least;
    fits.then_some(unit)
}

/// 32-bit registers for the fragments of one step of a product whose result has a layout.
pub(crate) fn fragment_registers(unit: Unit, result: &Layout) -> u64 {
    let tiles = Tiles::new(unit, result);
    let scale = if unit.kind == Kind::Tf32x3 { 2 } else { 1 };
    scale * (tiles.rows.len() as u64 * 4 + tiles.cols.len() as u64 * 2)
}

/// How an operand of a product lies in shared memory that is loaded there in a layout; none where it would have to be
/// rearranged on the way.
pub(crate) fn staged(plan: &Assignment, op: &Op, side: Side, layout: &Layout) -> Option<Staged> {
    let program = plan.program;
    let unit = unit(program, op)?;
    if plan.is_grouped(op) {
        return warpgroup::in_panels(program, op, side, layout, 0);
    }
    let turns = unit.turns(side, layout);
    let fits = turns == side.is_by_lines(layout);
    fits.then(|| Extents::of(program, op))
        .flatten()
        .map(|e| Staged::new(0, &e, side, unit.elem().bytes(), turns))
}

impl Unit {
    /// Rows of one instruction's result, as a power of two.
    pub(crate) fn rows(self) -> u32 {
        if self.kind == Kind::F64 { 3 } else { 4 }
    }

    /// Whether operands are 16-bit floats.
    pub(super) fn is_short(self) -> bool {
        matches!(self.kind, Kind::F16 | Kind::Bf16)
    }

    /// The operands' kind in the names of instructions.
    pub(super) fn operand_name(self) -> &'static str {
        match self.kind {
            Kind::F16 => "f16",
            Kind::Bf16 => "bf16",
            Kind::Tf32 | Kind::Tf32x3 => "tf32",
            Kind::S8 => "s8",
            Kind::U8 => "u8",
            Kind::F64 => "f64",
        }
    }

    fn elem(self) -> Elem {
        match self.kind {
            Kind::F16 => Elem::F16,
            Kind::Bf16 => Elem::Bf16,
            Kind::Tf32 | Kind::Tf32x3 => Elem::F32,
            Kind::S8 => Elem::I8,
            Kind::U8 => Elem::U8,
            Kind::F64 => Elem::F64,
        }
    }

    /// Elements along the common axis that one instruction takes.
    fn step(self) -> u64 {
        (if self.whole { 32 } else { 16 }) / u64::from(self.elem().bytes())
    }

    /// Registers of a left and of a right fragment.
    fn registers(self) -> [usize; 2] {
        match (self.kind, self.whole) {
            (Kind::F64, _) => [1, 1],
            (_, true) => [4, 2],
            (_, false) => [2, 1],
        }
    }

    /// Whether an operand that is held in a layout is written with neighbours along its lines' axis adjacent. Single
    /// bytes are not: four along the common axis make a register.
    fn turns(self, side: Side, layout: &Layout) -> bool {
        self.elem().bytes() > 1 && side.is_by_lines(layout)
    }

    /// Whether single elements are read: the instruction that reads matrices transposes pairs of bytes alone.
    fn reads_elements(self, staged: Staged) -> bool {
        self.kind == Kind::F64 || self.elem().bytes() == 4 && staged.is_by_lines()
    }

    fn instruction(self) -> String {
        let sum = match self.kind {
            Kind::S8 | Kind::U8 => "s32",
            Kind::F64 => "f64",
            _ => "f32",
        };
        let (rows, of) = (1 << self.rows(), self.operand_name());
        format!("mma.sync.aligned.m{rows}n8k{}.row.col.{sum}.{of}.{of}.{sum}", self.step())
    }

    /// The constraint of a register of the sums in inline assembly.
    fn constraint(self) -> char {
        match self.kind {
            Kind::F64 => 'd',
            Kind::S8 | Kind::U8 => 'r',
            _ => 'f',
        }
    }
}

/// The parts of a thread's accumulators that are results of one instruction each, by the offsets of their elements.
struct Tiles {
    rows: Vec<u32>,
    cols: Vec<u32>,
    batches: Vec<u32>,
    /// Within a tile.
    inside: Vec<u32>,
}

impl Tiles {
    fn new(unit: Unit, layout: &Layout) -> Tiles {
        let [batch, rows, cols] = result_axes(layout);
        let all = |bits: std::ops::Range<u32>| {
            let bases: Vec<u32> =
                layout.regs().iter().copied().filter(|b| bits.contains(&b.ilog2())).collect();
            let sum = |set: usize| {
                bases.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, b)| b).sum::<u32>()
            };
            (0..1usize << bases.len()).map(sum).collect::<Vec<u32>>()
        };
        let below = if unit.rows() == 4 { vec![0, 8 << rows.start] } else { vec![0] };
        Tiles {
            rows: all(rows.start + unit.rows()..rows.end),
            cols: all(cols.start + Accumulator::COLS..cols.end),
            batches: all(batch),
            inside: below.iter().flat_map(|row| [*row, row + (1 << cols.start)]).collect(),
        }
    }
}

pub(super) fn result_axes(layout: &Layout) -> [std::ops::Range<u32>; 3] {
    let shape = layout.shape();
    let (rows, cols) = (axis_bits(shape, shape.len() - 2), axis_bits(shape, shape.len() - 1));
    [rows.end..shape.iter().sum(), rows, cols]
}

/// Where an operand is: in the stage of a loop that begins at a byte, or in the shared memory for changes of layout.
pub(super) struct InShared {
    pub(super) staged: Staged,
    pub(super) stage: Option<Val>,
}

/// How an operand that is held in a layout is written to shared memory from a byte on.
pub(super) type Place<'a> = &'a dyn Fn(u64, Side, &Layout) -> Option<Staged>;

/// An operand in shared memory, as its fragments are read.
struct Fragments {
    side: Side,
    place: InShared,
    /// The place of what this lane reads, from the beginning of shared memory, in bytes.
    lane: Val,
}

/// One fragment, a register each; two for products of parts: the large ones, and what these leave.
type Fragment = Vec<Vec<Val>>;

impl<'a> Lower<'a> {
    pub(super) fn dot_of_fragments(&mut self, op: &'a Op, extents: Extents, unit: Unit) -> Result<()> {
        let layout = self.plan.accumulator(op, unit);
        let mut sums = self.get(op.args[2], &layout)?.to_vec();
        let place = |base: u64, side: Side, layout: &Layout| {
            Some(Staged::new(base, &extents, side, unit.elem().bytes(), unit.turns(side, layout)))
        };
        let both = self.in_shared(op, &[Side::Left, Side::Right], unit, &place)?;
        let [a, b] =
            <[InShared; 2]>::try_from(both).map_err(|_| self.invalid("a product of two operands"))?;
        let a = self.fragments(&layout, unit, a, Side::Left);
        let b = self.fragments(&layout, unit, b, Side::Right);
        self.multiply(unit, &layout, extents, [&a, &b], &mut sums);
        self.hold(op.results[0], layout, sums);
        Ok(())
    }

    /// Operands in shared memory: written there now, unless they are there.
    pub(super) fn in_shared(
        &mut self,
        op: &'a Op,
        sides: &[Side],
        unit: Unit,
        place: Place,
    ) -> Result<Vec<InShared>> {
        let elem = unit.elem();
        let mut found: Vec<InShared> = Vec::new();
        let mut sources = Vec::new();
        let mut size = 0;
        for &side in sides {
            let placed = self.placed.get(&(std::ptr::from_ref(op), side.index())).cloned();
            if let Some(Placed { staged, stage }) = placed {
                found.push(InShared { staged, stage: Some(stage) });
                continue;
            }
            let source = self.source(op, side)?;
            let staged =
                place(size, side, &source.layout).ok_or_else(|| self.invalid("a product without extents"))?;
            size += staged.size;
            found.push(InShared { staged, stage: None });
            sources.push((source, staged));
        }
        if !sources.is_empty() {
            self.reserve(size);
            for (source, staged) in &sources {
                self.stage(source, (staged, None), elem, &mut |_, _, value| Ok(value.clone()))?;
            }
            if sources.iter().any(|(_, staged)| staged.has_panels()) {
                self.fence_async_proxy();
            }
            self.barrier(BarrierReason::Filled);
        }
        Ok(found)
    }

    fn multiply(
        &mut self,
        unit: Unit,
        layout: &Layout,
        extents: Extents,
        [a, b]: [&Fragments; 2],
        sums: &mut [Val],
    ) {
        let tiles = Tiles::new(unit, layout);
        let [batch, rows, cols] = result_axes(layout);
        for &base in &tiles.batches {
            let number = u64::from(base >> batch.start);
            for k in (0..1u64 << extents.common).step_by(unit.step() as usize) {
                let lines = |offsets: &[u32], start: u32| -> Vec<u64> {
                    offsets.iter().map(|o| u64::from(o >> start)).collect()
                };
                let left = self.read(unit, a, number, &lines(&tiles.rows, rows.start), k);
                let right = self.read(unit, b, number, &lines(&tiles.cols, cols.start), k);
                for (&row, x) in tiles.rows.iter().zip(&left) {
                    for (&col, y) in tiles.cols.iter().zip(&right) {
                        let at = tiles.inside.iter().filter_map(|i| layout.reg_at(base + row + col + i));
                        let at: Vec<usize> = at.collect();
                        self.multiply_tile(unit, x, y, &at, sums);
                    }
                }
            }
        }
    }

    fn multiply_tile(&mut self, unit: Unit, x: &Fragment, y: &Fragment, at: &[usize], sums: &mut [Val]) {
        let pairs: &[(usize, usize)] =
            if unit.kind == Kind::Tf32x3 { &[(1, 0), (0, 1), (0, 0)] } else { &[(0, 0)] };
        for &(i, j) in pairs {
            let old: Vec<Val> = at.iter().map(|&r| sums[r].clone()).collect();
            let new = self.mma(unit, &x[i], &y[j], &old);
            for (&r, value) in at.iter().zip(new) {
                sums[r] = value;
            }
        }
    }

    fn mma(&mut self, unit: Unit, a: &[Val], b: &[Val], sums: &[Val]) -> Vec<Val> {
        let n = sums.len();
        let names =
            |range: std::ops::Range<usize>| range.map(|i| format!("${i}")).collect::<Vec<_>>().join(", ");
        let (left, right) = (n..n + a.len(), n + a.len()..n + a.len() + b.len());
        let text = format!(
            "{} {{{}}}, {{{}}}, {{{}}}, {{{}}};",
            unit.instruction(),
            names(0..n),
            names(left),
            names(right),
            names(0..n)
        );
        let constraint = unit.constraint();
        let (t, word) = match constraint {
            'f' => ("float", 'r'),
            'd' => ("double", 'd'),
            _ => ("i32", 'r'),
        };
        let operand = if word == 'd' { "double" } else { "i32" };
        let outputs = vec![format!("={constraint}"); n].join(",");
        let inputs = vec![word.to_string(); a.len() + b.len()].join(",");
        let ties = (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let words = a.iter().chain(b).map(|w| format!("{operand} {w}"));
        let args: Vec<String> = words.chain(sums.iter().map(|s| format!("{t} {s}"))).collect();
        let result = format!("{{ {} }}", vec![t; n].join(", "));
        let call = self.ir.def(format_args!(
            "call {result} asm \"{text}\", \"{outputs},{inputs},{ties}\"({}) nounwind convergent memory(none)",
            args.join(", ")
        ));
        (0..n).map(|i| self.ir.def(format_args!("extractvalue {result} {call}, {i}"))).collect()
    }

    /// Where this lane reads an operand's fragments.
    fn fragments(&mut self, layout: &Layout, unit: Unit, place: InShared, side: Side) -> Fragments {
        let staged = place.staged;
        let [batch, rows, cols] = result_axes(layout);
        let own = if side == Side::Left { rows } else { cols };
        // What the lane gives of an accumulator's number is not what it reads.
        let lanes = layout.lanes().iter().fold(0, |m, b| m | b);
        let thread = self.thread_part(layout);
        let warp = self.ir.def(format_args!("and i32 {thread}, {}", !lanes));
        let warp = self.weighted(&warp, &[(&batch, staged.batch), (&own, staged.line)]);
        let (line, common) = lane_bits(unit, side, staged.is_by_lines());
        let lane = "%tid".into();
        let mut sum = warp;
        for (bits, weight) in [(line, staged.line), (common, staged.common)] {
            for (bit, value) in bits {
                let part = self.weighted(&lane, &[(&(bit..bit + 1), weight * value)]);
                sum = self.ir.def(format_args!("add nuw nsw i32 {sum}, {part}"));
            }
        }
        if let Some(stage) = &place.stage {
            sum = self.ir.def(format_args!("add i32 {sum}, {stage}"));
        }
        Fragments { side, place, lane: sum }
    }

    /// The fragments of some lines at a step along the common axis.
    fn read(&mut self, unit: Unit, from: &Fragments, batch: u64, lines: &[u64], k: u64) -> Vec<Fragment> {
        let count = unit.registers()[usize::from(from.side == Side::Right)];
        // Two neighbouring fragments of the right operand come at once.
        let pairs = from.side == Side::Right && unit.whole && !unit.reads_elements(from.place.staged);
        let mut out = Vec::new();
        let mut rest = lines;
        while let Some((&line, after)) = rest.split_first() {
            let at = from.place.staged.at(batch, line, k);
            match after.split_first() {
                Some((&next, after)) if pairs && next == line + 8 => {
                    let mut words = self.read_words(unit, from, at, 2 * count);
                    let second = words.split_off(count);
                    out.extend([words, second]);
                    rest = after;
                }
                _ => {
                    out.push(self.read_words(unit, from, at, count));
                    rest = after;
                }
            }
        }
        out.into_iter().map(|words| self.parts_of(unit, words)).collect()
    }

    fn read_words(&mut self, unit: Unit, from: &Fragments, at: u64, count: usize) -> Vec<Val> {
        let staged = from.place.staged;
        if unit.reads_elements(staged) {
            return self.read_elements(unit, from, at, count);
        }
        let address = self.fragment_at(from, at);
        let turn = if staged.is_by_lines() { ".trans" } else { "" };
        let name = format!("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{turn}.b16.p3");
        let result = match count {
            1 => "i32".to_owned(),
            n => format!("{{ {} }}", vec!["i32"; n].join(", ")),
        };
        self.ir.declare(&format!("{result} @{name}(ptr addrspace(3)) convergent nounwind memory(read)"));
        let call = self.ir.def(format_args!("call {result} @{name}(ptr addrspace(3) {address})"));
        if count == 1 {
            return vec![call];
        }
        (0..count).map(|i| self.ir.def(format_args!("extractvalue {result} {call}, {i}"))).collect()
    }

    fn fragment_at(&mut self, from: &Fragments, at: u64) -> Val {
        match from.place.stage {
            Some(_) => self.shared_at(&from.lane, at),
            None => self.scratch_at(&from.lane, at),
        }
    }

    /// Reads a fragment element by element: the line 8 further, then 16 bytes along the common axis.
    fn read_elements(&mut self, unit: Unit, from: &Fragments, at: u64, count: usize) -> Vec<Val> {
        let (elem, staged) = (unit.elem(), from.place.staged);
        let tall = if from.side == Side::Left && unit.rows() == 4 { 2 } else { 1 };
        let half = 16 / u64::from(elem.bytes());
        let read = |lower: &mut Self, i: usize| {
            let (line, common) = (8 * (i % tall) as u64, half * (i / tall) as u64);
            let address = lower.fragment_at(from, at + line * staged.line + common * staged.common);
            let value = lower.shared_load(&address, elem);
            if unit.kind == Kind::F64 { value } else { lower.word_of(elem, &value) }
        };
        (0..count).map(|i| read(self, i)).collect()
    }

    /// The parts that are multiplied.
    fn parts_of(&mut self, unit: Unit, words: Vec<Val>) -> Fragment {
        if !matches!(unit.kind, Kind::Tf32 | Kind::Tf32x3) {
            return vec![words];
        }
        let (mut large, mut small) = (Vec::new(), Vec::new());
        for word in &words {
            let value = self.ir.def(format_args!("bitcast i32 {word} to float"));
            let first = self.tf32(&value);
            if unit.kind == Kind::Tf32 {
                large.push(self.ir.def(format_args!("bitcast float {first} to i32")));
                continue;
            }
            let rest = self.ir.def(format_args!("fsub float {value}, {first}"));
            let second = self.tf32(&rest);
            for (part, out) in [(first, &mut large), (second, &mut small)] {
                out.push(self.ir.def(format_args!("bitcast float {part} to i32")));
            }
        }
        if unit.kind == Kind::Tf32 { vec![large] } else { vec![large, small] }
    }

    /// The number with 10 bits of mantissa that is nearest.
    fn tf32(&mut self, value: &Val) -> Val {
        self.ir.declare("i32 @llvm.nvvm.f2tf32.rna(float)");
        let bits = self.ir.def(format_args!("call i32 @llvm.nvvm.f2tf32.rna(float {value})"));
        self.ir.def(format_args!("bitcast i32 {bits} to {}", ty(Elem::F32)))
    }
}

/// Bits of a lane's number, each with the number of lines, or of elements along the common axis, that it is worth.
type LaneBits = Vec<(u32, u64)>;

/// Which line, and which element along the common axis, a lane gives the address of. Every 8 lanes give the rows of
/// one 8 by 8 matrix of pairs of bytes; they come in the order of an instruction's registers.
fn lane_bits(unit: Unit, side: Side, turned: bool) -> (LaneBits, LaneBits) {
    let half = 16 / u64::from(unit.elem().bytes());
    let eight = vec![(0, 1), (1, 2), (2, 4)];
    let with = |bits: &LaneBits, more: (u32, u64)| bits.iter().copied().chain([more]).collect::<LaneBits>();
    match (unit.kind, side, turned) {
        // One element a lane.
        (Kind::F64, _, _) => (vec![(2, 1), (3, 2), (4, 4)], vec![(0, 1), (1, 2)]),
        (Kind::Tf32 | Kind::Tf32x3, _, true) => (vec![(2, 1), (3, 2), (4, 4)], vec![(0, 1), (1, 2)]),
        (_, Side::Left, false) => (with(&eight, (3, 8)), vec![(4, half)]),
        (_, Side::Left, true) => (vec![(3, 8)], with(&eight, (4, half))),
        (_, Side::Right, false) => (with(&eight, (4, 8)), vec![(3, half)]),
        (_, Side::Right, true) => (vec![(4, 8)], with(&eight, (3, half))),
    }
}
