//! What is known of integer tiles along each axis: runs of consecutive values, runs of equal values, divisibility.
//!
//! The facts decide how wide memory accesses are. They hold modulo the width of the kind; values that are built from
//! non-negative parts by `add`, and by `mul` with what may be a stride, are taken not to wrap, as the offsets of a program must not.
//!
//! ```text
//! kernel @facts(%x: ptr<f32> align(16), %n: i32) {
//!   %step = const 64 : i32
//!   %id = program_id 0
//!   %start = map mul %id, %step
//!   %begin = splat %start [64]
//!   %lane = range 0 64
//!   %at = map add %begin, %lane
//!   %four = const 4 : tile<64xi32>
//!   %end = const 4096 : tile<64xi32>
//!   %in = map lt %at, %end
//!   %part = map div_floor %at, %four
//!   %v = load %x, %part, mask %in
//!   store %x, %at, %v, mask %in
//! }
//! ```
//!
//! ```text
//! // sm_80: 4 warps, about 17 registers a thread
//! kernel @facts(%x: ptr<f32> align(16), %n: i32) warps(4) {
//!   %step = const 64 : i32            // facts: = 64
//!   %id = program_id 0                // facts: not negative
//!   %start = map mul %id, %step       // facts: multiple of 64, not negative
//!   %begin = splat %start [64]        // facts: equal, multiple of 64, not negative
//!   %lane = range 0 64                // facts: consecutive, from 0 on, not negative
//!   %at = map add %begin, %lane       // facts: consecutive, from a multiple of 64 on, not negative
//!   %four = const 4 : tile<64xi32>    // facts: = 4
//!   %end = const 4096 : tile<64xi32>  // facts: = 4096
//!   %in = map lt %at, %end            // facts: equal
//!   %part = map div_floor %at, %four  // facts: equal by 4, not negative
//!   %v = load %x, %part, mask %in
//!   store %x, %at, %v, mask %in
//! }
//! ```

use smallvec::SmallVec;
use tilefuse_block::{Assumption, Elem, Op, OpKind, Program, Region, ScalarFn, Shape, Type, Value};

use super::passes::{Seen, unique};

/// The largest divisibility that is tracked.
const MAX_DIV: u64 = 1 << 32;

/// Factors from here on are no strides but make products that are to wrap, as those of a hash.
const LARGEST_STRIDE: i64 = 1 << 26;

/// Facts of one tile.
///
/// Along axis `a`, the aligned groups of `run[a]` elements hold consecutive values, and the aligned groups of
/// `same[a]` hold equal ones. Every element whose coordinates are all multiples of `run` is divisible by `div`.
/// All three are powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) run: SmallVec<[u64; 4]>,
    pub(crate) same: SmallVec<[u64; 4]>,
    /// Where the value is linear in the coordinate along an axis, its slope.
    pub(crate) slope: SmallVec<[Option<i64>; 4]>,
    pub(crate) div: u64,
    pub(crate) constant: Option<i64>,
    /// Whether no element is negative, nor stands for a negative one as unsigned numbers from 2^31 on do.
    nonneg: bool,
}

impl Axis {
    fn unknown(shape: &[u32]) -> Axis {
        let ones = SmallVec::from_elem(1, shape.len());
        let slope = shape.iter().map(|&d| (d == 1).then_some(0)).collect();
        Axis { run: ones.clone(), same: ones, slope, div: 1, constant: None, nonneg: false }
    }

    fn literal(value: i64, shape: &[u32]) -> Axis {
        Axis {
            run: SmallVec::from_elem(1, shape.len()),
            same: shape.iter().map(|&d| u64::from(d)).collect(),
            slope: SmallVec::from_elem(Some(0), shape.len()),
            div: low_bit(value),
            constant: Some(value),
            nonneg: (0..1 << 31).contains(&value),
        }
    }

    /// Whether no element is negative.
    pub(crate) fn is_nonnegative(&self) -> bool {
        self.nonneg
    }

    /// The divisibility where runs are cut to `run`, which divides the present ones.
    pub(crate) fn div_at(&self, run: &[u64]) -> u64 {
        let cut = self.run.iter().zip(run).filter(|(have, want)| want < have);
        cut.fold(self.div, |div, (_, &want)| div.min(want))
    }

    /// What divides every element.
    fn div_all(&self) -> u64 {
        self.div_at(&vec![1; self.run.len()])
    }
}

/// The facts of every value of a program, by index.
pub(crate) fn analyze(program: &Program) -> Vec<Axis> {
    analyze_promised(program, &[], 1)
}

/// The same where some integers are multiples of `divisor`, a power of two.
pub(super) fn analyze_promised(program: &Program, multiples: &[Value], divisor: u64) -> Vec<Axis> {
    let mut facts: Vec<Axis> = program.values.iter().map(|v| Axis::unknown(&v.ty.shape)).collect();
    region(program, &program.body, (multiples, divisor), &mut facts);
    facts
}

fn region(program: &Program, body: &Region, promised: (&[Value], u64), facts: &mut Vec<Axis>) {
    for op in &body.ops {
        for inner in &op.regions {
            if let (OpKind::For, Some(&i), Some(&lo), Some(&step)) =
                (&op.kind, inner.args.first(), op.args.first(), op.args.get(2))
            {
                let (lo, step) = (&facts[lo.index()], &facts[step.index()]);
                let induction = Axis { div: lo.div.min(step.div), nonneg: lo.nonneg, ..Axis::unknown(&[]) };
                facts[i.index()] = induction;
            }
            region(program, inner, promised, facts);
        }
        if let [result] = op.results[..]
            && op.regions.is_empty()
        {
            let mut known = transfer(program, op, result, facts);
            if promised.0.contains(&result) {
                known.div = known.div.max(promised.1);
            }
            facts[result.index()] = known;
        }
    }
}

fn transfer(program: &Program, op: &Op, result: Value, facts: &[Axis]) -> Axis {
    let shape = &program.ty(result).shape;
    let arg = |i: usize| &facts[op.args[i].index()];
    match &op.kind {
        OpKind::Const(l) => l.as_i64().map_or_else(|| uniform(shape), |v| Axis::literal(v, shape)),
        OpKind::ProgramId(_) | OpKind::NumPrograms(_) => Axis { nonneg: true, ..Axis::unknown(shape) },
        OpKind::Range { start, len } => Axis {
            run: SmallVec::from_slice(&[u64::from(*len)]),
            slope: SmallVec::from_slice(&[Some(1)]),
            div: low_bit(i64::from(*start)),
            nonneg: *start >= 0,
            constant: (*len == 1).then_some(i64::from(*start)),
            ..Axis::unknown(shape)
        },
        OpKind::Splat(_) => Axis {
            same: shape.iter().map(|&d| u64::from(d)).collect(),
            run: SmallVec::from_elem(1, shape.len()),
            slope: SmallVec::from_elem(Some(0), shape.len()),
            ..arg(0).clone()
        },
        OpKind::ExpandDims(axis) => insert(arg(0), usize::from(*axis)),
        OpKind::Broadcast(_) => broadcast(arg(0), &program.ty(op.args[0]).shape, shape),
        OpKind::Permute(perm) => {
            let pick = |from: &[u64]| perm.iter().map(|&p| from[usize::from(p)]).collect();
            let slope = perm.iter().map(|&p| arg(0).slope[usize::from(p)]).collect();
            Axis { run: pick(&arg(0).run), same: pick(&arg(0).same), slope, ..arg(0).clone() }
        }
        OpKind::Reshape(_) => reshape(arg(0), &program.ty(op.args[0]).shape, shape),
        OpKind::Map(function) => {
            let signed = program.ty(op.args[0]).elem().is_none_or(|e| !e.is_unsigned_int());
            let args: SmallVec<[&Axis; 3]> = op.args.iter().map(|a| &facts[a.index()]).collect();
            let known = map(*function, &args, signed);
            Axis { slope: fitting(&known.slope, program.ty(result)), ..known }
        }
        OpKind::Assume(assumption) => assume(*assumption, arg(0), shape),
        OpKind::Cast(to) => cast(arg(0), program.ty(op.args[0]).elem(), *to),
        OpKind::Load { .. } => {
            let operands = op.args[1..].iter().map(|a| &facts[a.index()]);
            Axis { same: all_same(operands, shape.len()), ..Axis::unknown(shape) }
        }
        _ => Axis::unknown(shape),
    }
}

/// What a promise adds to what is known.
fn assume(assumption: Assumption, known: &Axis, shape: &[u32]) -> Axis {
    let mut out = known.clone();
    match assumption {
        Assumption::MultipleOf(n) => {
            // Runs that span rows begin where rows do.
            if out.run.last().copied().unwrap_or(1) >= shape.last().map_or(1, |&d| u64::from(d)) {
                out.div = out.div.max(low_bit(i64::from(n)));
            }
        }
        Assumption::Contiguous(n) => {
            if let (Some(run), Some(&extent)) = (out.run.last_mut(), shape.last()) {
                *run = (*run).max(low_bit(i64::from(n)).min(u64::from(extent)));
            }
        }
        Assumption::Between(low, _) => out.nonneg |= low >= 0,
    }
    out
}

fn uniform(shape: &[u32]) -> Axis {
    let slope = SmallVec::from_elem(Some(0), shape.len());
    Axis { same: shape.iter().map(|&d| u64::from(d)).collect(), slope, ..Axis::unknown(shape) }
}

fn low_bit(value: i64) -> u64 {
    if value == 0 { MAX_DIV } else { (1u64 << value.trailing_zeros()).min(MAX_DIV) }
}

fn all_same<'a>(args: impl Iterator<Item = &'a Axis>, rank: usize) -> SmallVec<[u64; 4]> {
    args.fold(SmallVec::from_elem(MAX_DIV, rank), |acc: SmallVec<[u64; 4]>, a| {
        acc.iter().zip(&a.same).map(|(&x, &y)| x.min(y)).collect()
    })
}

fn insert(from: &Axis, axis: usize) -> Axis {
    let mut out = from.clone();
    out.run.insert(axis, 1);
    out.same.insert(axis, 1);
    out.slope.insert(axis, Some(0));
    out
}

fn broadcast(from: &Axis, old: &Shape, new: &Shape) -> Axis {
    let mut out = from.clone();
    for a in (0..new.len()).filter(|&a| old[a] != new[a]) {
        out.same[a] = u64::from(new[a]);
        out.slope[a] = Some(0);
    }
    out
}

/// Keeps what is known along the last axes that the two shapes share, counted from the last, unit axes apart.
fn reshape(from: &Axis, old: &Shape, new: &Shape) -> Axis {
    if let Some(value) = from.constant {
        return Axis::literal(value, new);
    }
    let mut out = Axis { nonneg: from.nonneg, ..Axis::unknown(new) };
    let olds = (0..old.len()).rev().filter(|&a| old[a] != 1);
    let news = (0..new.len()).rev().filter(|&a| new[a] != 1);
    for (a, b) in olds.zip(news) {
        let extent = u64::from(old[a].min(new[b]));
        out.run[b] = from.run[a].min(extent);
        out.same[b] = from.same[a].min(extent);
        // A part of the old axis is as linear; more than it need not be.
        out.slope[b] = if new[b] <= old[a] { from.slope[a] } else { None };
        if old[a] != new[b] {
            break;
        }
    }
    // The runs of axes that were not kept are cut to 1, those of the others to the common extent.
    let mut cut: SmallVec<[u64; 4]> = SmallVec::from_elem(1, old.len());
    let olds = (0..old.len()).rev().filter(|&a| old[a] != 1);
    let news = (0..new.len()).rev().filter(|&a| new[a] != 1);
    for (a, b) in olds.zip(news) {
        cut[a] = out.run[b];
    }
    out.div = from.div_at(&cut);
    out
}

fn cast(from: &Axis, old: Option<Elem>, to: Elem) -> Axis {
    if let Some(old) = old.filter(|e| e.is_int() && to.is_int() && e.bytes() <= to.bytes()) {
        let (bits, unsigned) = (8 * old.bytes().min(8), old.is_unsigned_int());
        let fits = |c: &i64| *c >= 0 && (bits > 32 || *c < 1 << (bits - 1));
        let mut out = from.clone();
        if unsigned != to.is_unsigned_int() {
            out.constant = from.constant.filter(fits);
            out.nonneg &= from.constant.as_ref().is_none_or(fits);
        }
        if unsigned && old.bytes() < to.bytes() && !from.nonneg {
            // It may have wrapped: what is below 0 ends up far behind the rest. Aligned groups lie on one side.
            out.run.iter_mut().for_each(|run| *run = (*run).min(from.div));
            out.slope.iter_mut().for_each(|slope| *slope = slope.filter(|&s| s == 0));
        }
        return out;
    }
    let rank = from.run.len();
    let slope = from.slope.iter().map(|s| s.filter(|&s| s == 0)).collect();
    Axis { run: SmallVec::from_elem(1, rank), slope, div: 1, constant: None, nonneg: false, ..from.clone() }
}

fn map(function: ScalarFn, args: &[&Axis], signed: bool) -> Axis {
    use ScalarFn::*;
    let rank = args[0].run.len();
    let base = Axis {
        run: SmallVec::from_elem(1, rank),
        same: all_same(args.iter().copied(), rank),
        slope: (0..rank).map(|a| args.iter().all(|x| x.slope[a] == Some(0)).then_some(0)).collect(),
        div: 1,
        constant: None,
        nonneg: false,
    };
    match function {
        Add | Sub => sum(function, args[0], args[1], base),
        Mul => product(args[0], args[1], base),
        DivTrunc | DivFloor | RemTrunc | RemFloor => {
            let floors = matches!(function, DivFloor | RemFloor) || !signed || args[0].nonneg;
            match args[1].constant {
                Some(d) if d > 0 && floors && matches!(function, DivTrunc | DivFloor) => {
                    quotient(args[0], d, base)
                }
                Some(d) if d > 0 && floors => remainder(args[0], d, base),
                // A remainder of truncating division has the sign of what is divided.
                _ => Axis { nonneg: args[0].nonneg && (args[1].nonneg || function == RemTrunc), ..base },
            }
        }
        Shr => match args[1].constant {
            Some(k @ 0..=30) => quotient(args[0], 1 << k, base),
            _ => base,
        },
        Shl => match args[1].constant {
            Some(k @ 0..=30) => {
                product(args[0], &Axis { constant: Some(1 << k), div: 1 << k, ..args[1].clone() }, base)
            }
            _ => base,
        },
        And => match args[1].constant {
            Some(m) if m >= 0 && (m as u64 + 1).is_power_of_two() && rank > 0 => {
                remainder(args[0], m + 1, base)
            }
            _ => base,
        },
        Lt | Ge => comparison(args[0], args[1], 0, base),
        Le | Gt => comparison(args[0], args[1], 1, base),
        Select => select(args, base),
        Min | Max => Axis { nonneg: args.iter().all(|a| a.nonneg), div: both_div(args), ..base },
        _ => base,
    }
}

/// Slopes as numbers of the width of a tile's kind; only those of 0 where all together may be further than the kind holds, so that
/// elements wrap around.
fn fitting(slopes: &[Option<i64>], ty: &Type) -> SmallVec<[Option<i64>; 4]> {
    let bits = ty.elem().map_or(64, Elem::bits).min(64);
    let signed = |slope: i64| slope << (64 - bits) >> (64 - bits);
    let slopes = slopes.iter().map(|s| s.map(signed));
    let far = |(slope, &extent): (Option<i64>, &u32)| {
        u128::from(slope.unwrap_or(0).unsigned_abs()) * u128::from(extent.saturating_sub(1))
    };
    let fits = slopes.clone().zip(&ty.shape).map(far).sum::<u128>() < 1 << (bits.max(2) - 2);
    slopes.map(|s| s.filter(|&s| fits || s == 0)).collect()
}

fn both_div(args: &[&Axis]) -> u64 {
    args.iter().map(|a| a.div_all()).min().unwrap_or(1)
}

fn sum(function: ScalarFn, a: &Axis, b: &Axis, base: Axis) -> Axis {
    let adds = function == ScalarFn::Add;
    let run: SmallVec<[u64; 4]> = (0..a.run.len())
        .map(|i| {
            let left = a.run[i].min(b.same[i]);
            let right = if adds { a.same[i].min(b.run[i]) } else { 1 };
            left.max(right)
        })
        .collect();
    let constant = match (a.constant, b.constant) {
        (Some(x), Some(y)) => Some(if adds { x.wrapping_add(y) } else { x.wrapping_sub(y) }),
        _ => None,
    };
    let div = a.div_at(&run).min(b.div_at(&run));
    let slopes = a.slope.iter().zip(&b.slope);
    let slope = slopes.map(|(x, y)| if adds { (*x)?.checked_add((*y)?) } else { (*x)?.checked_sub((*y)?) });
    Axis { run, div, constant, slope: slope.collect(), nonneg: adds && a.nonneg && b.nonneg, ..base }
}

fn product(a: &Axis, b: &Axis, base: Axis) -> Axis {
    if b.constant == Some(1) {
        return Axis { same: base.same, ..a.clone() };
    }
    if a.constant == Some(1) {
        return Axis { same: base.same, ..b.clone() };
    }
    let constant = match (a.constant, b.constant) {
        (Some(x), Some(y)) => Some(x.wrapping_mul(y)),
        _ => None,
    };
    let div = a.div_all().saturating_mul(b.div_all()).min(MAX_DIV);
    let scaled = |of: &Axis, by: i64| of.slope.iter().map(|s| s.and_then(|s| s.checked_mul(by))).collect();
    let base = match (a.constant, b.constant) {
        (_, Some(by)) => Axis { slope: scaled(a, by), ..base },
        (Some(by), _) => Axis { slope: scaled(b, by), ..base },
        _ => base,
    };
    let strides = [a, b].iter().all(|x| x.constant.is_none_or(|c| c < LARGEST_STRIDE));
    Axis { div, constant, nonneg: a.nonneg && b.nonneg && strides, ..base }
}

/// The part of the runs that starts at multiples of itself, for a divisor `d`.
fn aligned_runs(a: &Axis, d: i64) -> SmallVec<[u64; 4]> {
    let limit = low_bit(d).min(a.div);
    a.run.iter().map(|&r| r.min(limit)).collect()
}

fn quotient(a: &Axis, d: i64, base: Axis) -> Axis {
    if d == 1 {
        return Axis { same: base.same, ..a.clone() };
    }
    let runs = aligned_runs(a, d);
    // Only one axis may change within a group, else the group's elements need not lie between two multiples.
    let mut same = base.same.clone();
    for (s, &r) in same.iter_mut().zip(&runs) {
        *s = (*s).max(if a.div_at_single(r) { r } else { 1 });
    }
    let all = a.div_all();
    let div = if (d as u64).is_power_of_two() && all >= d as u64 { all / d as u64 } else { 1 };
    Axis { same, div, nonneg: a.nonneg, constant: a.constant.map(|x| x.div_euclid(d)), ..base }
}

impl Axis {
    /// Whether groups of `run` along one axis start at multiples of `run`, whatever the other coordinates are.
    fn div_at_single(&self, run: u64) -> bool {
        let long = self.run.iter().filter(|&&r| r > 1).count();
        long <= 1 && self.div >= run
    }
}

fn remainder(a: &Axis, d: i64, base: Axis) -> Axis {
    let runs = aligned_runs(a, d);
    let single = a.run.iter().filter(|&&r| r > 1).count() <= 1;
    let run: SmallVec<[u64; 4]> = if single { runs } else { SmallVec::from_elem(1, a.run.len()) };
    let div = a.div_at(&run).min(low_bit(d));
    let constant = a.constant.map(|x| x.rem_euclid(d));
    Axis { run, div, nonneg: true, constant, ..base }
}

/// `a < b` and the like: within a run that starts at a multiple of its length, the answer changes only at a
/// multiple; `shift` is 1 where the bound that counts is `b + 1`.
fn comparison(a: &Axis, b: &Axis, shift: i64, base: Axis) -> Axis {
    let bound = match b.constant {
        Some(value) => low_bit(value.wrapping_add(shift)),
        None if shift == 0 => b.div_all(),
        None => 1,
    };
    let single = a.run.iter().filter(|&&r| r > 1).count() <= 1;
    let same = (0..a.run.len())
        .map(|i| {
            let group = a.run[i].min(a.div).min(bound).min(b.same[i]);
            base.same[i].max(if single { group } else { 1 })
        })
        .collect();
    Axis { same, ..base }
}

fn select(args: &[&Axis], base: Axis) -> Axis {
    let (c, a, b) = (args[0], args[1], args[2]);
    let run: SmallVec<[u64; 4]> = (0..a.run.len()).map(|i| c.same[i].min(a.run[i]).min(b.run[i])).collect();
    let div = a.div_at(&run).min(b.div_at(&run));
    Axis { run, div, nonneg: a.nonneg && b.nonneg, ..base }
}

/// What is known of the integers and truth values that an operation defines.
pub(super) fn notes(seen: &Seen<'_>, op: &Op) -> Vec<String> {
    let inside = op.regions.iter().flat_map(|region| &region.args);
    let facts = |&value: &Value| {
        let text = seen.plan.facts[value.index()].text(&seen.plan.program.ty(value).shape);
        (!text.is_empty()).then_some((value, text))
    };
    let is_number = |v: &&Value| seen.plan.program.ty(**v).elem().is_some_and(|e| !e.is_float());
    let all = op.results.iter().chain(inside).filter(is_number).filter_map(facts).collect();
    unique(seen, all, op.results.len() == 1 && op.regions.is_empty())
}

impl Axis {
    /// What is known, in words; nothing where nothing is.
    fn text(&self, shape: &Shape) -> String {
        if let Some(value) = self.constant {
            return format!("= {value}");
        }
        let mut out: Vec<String> = Vec::new();
        for (axis, extent) in shape.iter().enumerate().filter(|(_, extent)| **extent > 1) {
            let along = self.along(axis, u64::from(*extent));
            if !along.is_empty() {
                let axis = if shape.len() > 1 { format!("axis {axis} ") } else { String::new() };
                out.push(format!("{axis}{}", along.join(" and ")));
            }
        }
        match (self.div, self.run.iter().any(|&run| run > 1)) {
            (0..=1, _) => {}
            (MAX_DIV.., true) => out.push("from 0 on".to_owned()),
            (div, true) => out.push(format!("from a multiple of {div} on")),
            (div, false) => out.push(format!("multiple of {div}")),
        }
        if self.nonneg {
            out.push("not negative".to_owned());
        }
        out.join(", ")
    }

    /// What is known along one axis.
    fn along(&self, axis: usize, extent: u64) -> Vec<String> {
        let part = |of: u64| if of < extent { format!(" by {of}") } else { String::new() };
        let (run, same, slope) = (self.run[axis], self.same[axis], self.slope[axis]);
        let mut out = Vec::new();
        if run > 1 {
            out.push(format!("consecutive{}", part(run)));
        }
        if same > 1 {
            out.push(format!("equal{}", part(same.min(extent))));
        }
        match slope {
            Some(0) if same >= extent => {}
            Some(1) if run >= extent => {}
            Some(slope) => out.push(format!("in steps of {slope}")),
            None => {}
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilefuse_block::{Builder, Literal};

    /// Every element of an index tile that is built from constants and ranges alone.
    fn brute(program: &Program) -> Vec<Option<Vec<i64>>> {
        let mut values: Vec<Option<Vec<i64>>> = vec![None; program.values.len()];
        for op in &program.body.ops {
            let Some(&result) = op.results.first() else { continue };
            let shape: Vec<usize> = program.ty(result).shape.iter().map(|&d| d as usize).collect();
            let n: usize = shape.iter().product();
            let args: Option<Vec<&Vec<i64>>> = op.args.iter().map(|a| values[a.index()].as_ref()).collect();
            let Some(args) = args else { continue };
            let out = match &op.kind {
                OpKind::Const(l) => vec![l.as_i64().unwrap(); n],
                OpKind::Range { start, len } => (0..i64::from(*len)).map(|i| i64::from(*start) + i).collect(),
                OpKind::ExpandDims(_) | OpKind::Reshape(_) => args[0].clone(),
                OpKind::Broadcast(_) => {
                    let from: Vec<usize> = program.ty(op.args[0]).shape.iter().map(|&d| d as usize).collect();
                    (0..n).map(|i| args[0][broadcast_index(i, &from, &shape)]).collect()
                }
                OpKind::Map(f) => {
                    (0..n).map(|i| scalar(*f, &args.iter().map(|a| a[i]).collect::<Vec<_>>())).collect()
                }
                _ => continue,
            };
            values[result.index()] = Some(out);
        }
        values
    }

    fn broadcast_index(mut i: usize, from: &[usize], to: &[usize]) -> usize {
        let (mut index, mut stride) = (0, 1);
        for a in (0..to.len()).rev() {
            if from[a] != 1 {
                index += i % to[a] * stride;
            }
            stride *= from[a];
            i /= to[a];
        }
        index
    }

    fn scalar(f: ScalarFn, x: &[i64]) -> i64 {
        match f {
            ScalarFn::Add => x[0] + x[1],
            ScalarFn::Sub => x[0] - x[1],
            ScalarFn::Mul => x[0] * x[1],
            ScalarFn::DivFloor => x[0].div_euclid(x[1]),
            ScalarFn::RemFloor => x[0].rem_euclid(x[1]),
            ScalarFn::DivTrunc => x[0] / x[1],
            ScalarFn::RemTrunc => x[0] % x[1],
            ScalarFn::Lt => i64::from(x[0] < x[1]),
            ScalarFn::Le => i64::from(x[0] <= x[1]),
            ScalarFn::Ge => i64::from(x[0] >= x[1]),
            ScalarFn::Gt => i64::from(x[0] > x[1]),
            ScalarFn::Min => x[0].min(x[1]),
            ScalarFn::Max => x[0].max(x[1]),
            ScalarFn::Select => {
                if x[0] != 0 {
                    x[1]
                } else {
                    x[2]
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn check(program: &Program) {
        let facts = analyze(program);
        for (index, values) in brute(program).into_iter().enumerate() {
            let Some(values) = values else { continue };
            let shape = &program.values[index].ty.shape;
            let fact = &facts[index];
            for (i, &v) in values.iter().enumerate() {
                let coords: Vec<u64> = (0..shape.len())
                    .map(|a| {
                        let stride: usize = shape[a + 1..].iter().map(|&d| d as usize).product();
                        (i / stride % shape[a] as usize) as u64
                    })
                    .collect();
                if coords.iter().zip(&fact.run).all(|(c, r)| c % r == 0) {
                    assert_eq!(v.rem_euclid(fact.div as i64), 0, "div of value {index}: {fact:?}");
                }
                for a in 0..shape.len() {
                    let stride: usize = shape[a + 1..].iter().map(|&d| d as usize).product();
                    if coords[a] + 1 < u64::from(shape[a]) {
                        let next = values[i + stride];
                        if !(coords[a] + 1).is_multiple_of(fact.run[a]) {
                            assert_eq!(next, v + 1, "run of value {index}: {fact:?}");
                        }
                        if let Some(slope) = fact.slope[a] {
                            assert_eq!(next - v, slope, "slope of value {index}: {fact:?}");
                        }
                        if !(coords[a] + 1).is_multiple_of(fact.same[a]) {
                            assert_eq!(next, v, "equal values of {index}: {fact:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn facts_hold_on_random_index_programs() {
        let mut state = 0x9e3779b97f4a7c15u64;
        let mut next = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let numbers = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 64, 100, 128, -4, -7];
        for _ in 0..2000 {
            let mut b = Builder::new("index");
            let (rows, cols) = (8, 32);
            let int = |v: i64| Literal::int(Elem::I32, v);
            let row = b.range(numbers[next(13) as usize] as i32, rows).unwrap();
            let col = b.range(numbers[next(15) as usize] as i32, cols).unwrap();
            let row = b.expand_dims(row, 1).unwrap();
            let col = b.expand_dims(col, 0).unwrap();
            let mut pool = vec![
                b.broadcast(row, &[rows, cols]).unwrap(),
                b.broadcast(col, &[rows, cols]).unwrap(),
                b.constant(int(numbers[next(15) as usize]), &[rows, cols]),
            ];
            for _ in 0..6 {
                let x = pool[next(pool.len() as u64) as usize];
                let y = pool[next(pool.len() as u64) as usize];
                let c = b.constant(int(numbers[1 + next(12) as usize]), &[rows, cols]);
                let divides = [
                    ScalarFn::DivFloor,
                    ScalarFn::RemFloor,
                    ScalarFn::DivTrunc,
                    ScalarFn::RemTrunc,
                    ScalarFn::Mul,
                ];
                let plain = [ScalarFn::Add, ScalarFn::Sub, ScalarFn::Min, ScalarFn::Max];
                let compare = [ScalarFn::Lt, ScalarFn::Le, ScalarFn::Gt, ScalarFn::Ge];
                let new = match next(4) {
                    0 => b.map(divides[next(5) as usize], &[x, c]).unwrap(),
                    1 => b.map(plain[next(4) as usize], &[x, y]).unwrap(),
                    2 => b.map(plain[next(4) as usize], &[x, c]).unwrap(),
                    _ => {
                        let m = b.map(compare[next(4) as usize], &[x, c]).unwrap();
                        b.map(ScalarFn::Select, &[m, x, y]).unwrap()
                    }
                };
                pool.push(new);
            }
            let last = pool[pool.len() - 1];
            for shape in [&[4u32, 2, 32][..], &[8, 8, 4], &[256], &[1, 8, 32], &[4, 64]] {
                b.reshape(last, shape).unwrap();
            }
            check(&b.finish());
        }
    }

    /// The facts of the last value before the store of a program.
    fn last(text: &str) -> Axis {
        let program = tilefuse_block::parse_valid(text).unwrap();
        let store = program.body.ops.iter().find(|op| matches!(op.kind, OpKind::Store { .. })).unwrap();
        analyze(&program)[store.args[1].index()].clone()
    }

    /// What wrapped around below 0 is far behind the rest in more bits.
    #[test]
    fn unsigned_numbers_in_more_bits() {
        let offsets = |two: u32| {
            last(&format!(
                "kernel @u32(%y: ptr<f32>) {{
                   %i = range 0 256
                   %u = cast %i u32
                   %two = const {two} : tile<256xu32>
                   %d = map add %u, %two
                   %at = cast %d i64
                   %v = const 1.0 : tile<256xf32>
                   store %y, %at, %v
                 }}"
            ))
        };
        let (plus, minus) = (offsets(2), offsets(u32::MAX - 1));
        assert_eq!((plus.slope[0], plus.run[0], plus.is_nonnegative()), (Some(1), 256, true));
        assert_eq!((minus.slope[0], minus.run[0], minus.is_nonnegative()), (None, 2, false));
    }

    /// A product by more than a stride may be negative, so that its truncated quotients are no floors.
    #[test]
    fn products_that_wrap() {
        let quotient = |factor: i32| {
            last(&format!(
                "kernel @wrap(%y: ptr<f32>) {{
                   %i = range 0 256
                   %pid = program_id 0
                   %k = const {factor} : i32
                   %h = map mul %pid, %k
                   %hs = splat %h [256]
                   %hh = map add %hs, %i
                   %four = const 4 : tile<256xi32>
                   %q = map div_trunc %hh, %four
                   %v = const 1.0 : tile<256xf32>
                   store %y, %q, %v
                 }}"
            ))
        };
        let (stride, hash) = (quotient(1024), quotient(2_147_483_632));
        assert_eq!((stride.same[0], stride.is_nonnegative()), (4, true));
        assert_eq!((hash.same[0], hash.is_nonnegative()), (1, false));
    }

    /// Multiples in 32 bits whose offsets are not as far apart as the factors say.
    #[test]
    fn slopes_of_what_wraps() {
        let slope = |kind: &str, factor: &str| {
            last(&format!(
                "kernel @far(%y: ptr<f32>) {{
                   %i = range 0 32
                   %u = cast %i {kind}
                   %k = const {factor} : tile<32x{kind}>
                   %m = map mul %u, %k
                   %at = cast %m i32
                   %v = const 1.0 : tile<32xf32>
                   store %y, %at, %v
                 }}"
            ))
            .slope[0]
        };
        assert_eq!(
            [("i32", "1024"), ("u32", "4294967292")].map(|(k, f)| slope(k, f)),
            [Some(1024), Some(-4)]
        );
        assert_eq!([("i32", "268435457"), ("i16", "2000")].map(|(k, f)| slope(k, f)), [None, None]);
    }
}
