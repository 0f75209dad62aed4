//! Loop versioning on alignment: a loop of products whose operands lie in rows of a length that is read from memory, as those of
//! grouped products do, is there twice, with what follows it in its region.
//!
//! Nothing is known of the addresses of such operands, so that they are loaded element by element and not ahead. One
//! version runs where the integers that the addresses are made of are multiples of 16 bytes, with a promise of that, from which
//! wide accesses follow; the other where they are not. The condition names no more integers than the wide accesses need: as a rule
//! where matrices begin and how far apart their rows are, but not how many rows there are.
//!
//! ```text
//! kernel @product(%x: ptr<f16> align(16), %y: ptr<f16> align(16), %z: ptr<f32> align(16), %sizes: ptr<i64>) warps(4) {
//!   %none = const 0 : i32
//!   %one = const 1 : i32
//!   %steps = const 4 : i32
//!   %width = load %sizes, %none
//!   %height = load %sizes, %one
//!   %r = range 0 64
//!   %long = cast %r i64
//!   %rows = expand_dims %long axis 1
//!   %pitch = splat %width [64, 1]
//!   %begins = map mul %rows, %pitch
//!   %down = broadcast %begins [64, 64]
//!   %columns = expand_dims %long axis 0
//!   %across = broadcast %columns [64, 64]
//!   %end = splat %height [64, 1]
//!   %there = map lt %rows, %end
//!   %inside = broadcast %there [64, 64]
//!   %zero = const 0.0 : tile<64x64xf32>
//!   %block = const 64 : i32
//!   %sum = for %k in %none..%steps step %one with (%acc = %zero) {
//!     %at = map mul %k, %block
//!     %first = cast %at i64
//!     %firsts = splat %first [64, 64]
//!     %along = map add %firsts, %across
//!     %from = map add %down, %along
//!     %u = load %x, %from, mask %inside
//!     %v = load %y, %from
//!     %next = dot %u, %v, %acc
//!     yield %next
//!   }
//!   %to = map add %down, %across
//!   store %z, %to, %sum, mask %inside
//! }
//! ```
//!
//! ```text
//! kernel @product(%x: ptr<f16> align(16), %y: ptr<f16> align(16), %z: ptr<f32> align(16), %sizes: ptr<i64> align(8)) warps(4) {
//!   %none = const 0 : i32
//!   %one = const 1 : i32
//!   %steps = const 4 : i32
//!   %width = load %sizes, %none
//!   %height = load %sizes, %one
//!   %r = range 0 64
//!   %long = cast %r i64
//!   %rows = expand_dims %long axis 1
//!   %pitch = splat %width [64, 1]
//!   %begins = map mul %rows, %pitch
//!   %down = broadcast %begins [64, 64]
//!   %columns = expand_dims %long axis 0
//!   %across = broadcast %columns [64, 64]
//!   %end = splat %height [64, 1]
//!   %there = map lt %rows, %end
//!   %inside = broadcast %there [64, 64]
//!   %zero = const 0.0 : tile<64x64xf32>
//!   %block = const 64 : i32
//!   %0 = const 7 : i64
//!   %1 = const 0 : i64
//!   %2 = map and %width, %0
//!   %3 = map eq %2, %1
//!   if %3 {
//!     %4 = assume multiple_of %width 8
//!     %pitch_1 = splat %4 [64, 1]
//!     %begins_1 = map mul %rows, %pitch_1
//!     %down_1 = broadcast %begins_1 [64, 64]
//!     %sum = for %k in %none..%steps step %one with (%acc = %zero) {
//!       %at = map mul %k, %block
//!       %first = cast %at i64
//!       %firsts = splat %first [64, 64]
//!       %along = map add %firsts, %across
//!       %from = map add %down_1, %along
//!       %u = load %x, %from, mask %inside
//!       %v = load %y, %from
//!       %next = dot %u, %v, %acc
//!       yield %next
//!     }
//!     %to = map add %down_1, %across
//!     store %z, %to, %sum, mask %inside
//!     yield
//!   } else {
//!     %sum_1 = for %k_1 in %none..%steps step %one with (%acc_1 = %zero) {
//!       %at_1 = map mul %k_1, %block
//!       %first_1 = cast %at_1 i64
//!       %firsts_1 = splat %first_1 [64, 64]
//!       %along_1 = map add %firsts_1, %across
//!       %from_1 = map add %down, %along_1
//!       %u_1 = load %x, %from_1, mask %inside
//!       %v_1 = load %y, %from_1
//!       %next_1 = dot %u_1, %v_1, %acc_1
//!       yield %next_1
//!     }
//!     %to_1 = map add %down, %across
//!     store %z, %to_1, %sum_1, mask %inside
//!     yield
//!   }
//! }
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tilefuse_block::{
    Assumption, Elem, Literal, Loc, Op, OpKind, Program, Region, ScalarFn, Type, Value, ValueData,
};

use super::assign::mask_of;
use super::axis::{self, Axis};
use super::{pressure, vectorize};

/// Bytes of the widest access.
const WIDEST: u64 = 16;

/// A region within others: the operation that has it, by its position in the region around, and which of its regions it is.
type Path = Vec<(usize, usize)>;

/// An operation and where it is.
struct Placed<'a> {
    op: &'a Op,
    /// The operation whose region it is in, if that is not the program's.
    owner: Option<&'a Op>,
    region: Path,
    at: usize,
}

/// Versions the first loop of products, and what follows it, for which that makes wide accesses of narrow ones.
pub(super) fn version_loops(program: &mut Program) {
    if let Some(versions) = Versions::of(program) {
        versions.apply(program);
    }
}

/// What the two versions of a part of a region differ in.
struct Versions {
    /// The region, and the operation with which the part begins.
    region: Path,
    at: usize,
    /// Integers that are multiples of `divisor` in one of them.
    integers: Vec<Value>,
    divisor: u32,
}

impl Versions {
    fn of(program: &Program) -> Option<Versions> {
        if !pressure::has_product(program) {
            return None;
        }
        let mut ops = Vec::new();
        place(&program.body, None, &mut Path::new(), &mut ops);
        let search = Search::new(program, &ops);
        search.operands().find_map(|operand| search.versions(operand))
    }

    /// Makes the versions.
    fn apply(&self, program: &mut Program) {
        let region = region(&mut program.body, &self.region, &mut |_| {});
        let mut rest = region.ops.split_off(self.at);
        let last = rest.pop_if(|op| op.kind == OpKind::Yield);
        let own: FxHashSet<Value> = rest.iter().flat_map(|op| op.results.iter().copied()).collect();
        let handed = last.iter().flat_map(|last| &last.args).filter(|value| own.contains(value));
        let handed: SmallVec<[Value; 4]> = handed.copied().collect();
        let loc = rest.first().map_or(Loc::UNKNOWN, |op| op.loc);
        rest.push(Op { args: handed.clone(), ..operation(OpKind::Yield, &[], loc) });

        let mut cx = Cx { values: &mut program.values, new: FxHashMap::default(), loc };
        let mut before = Vec::new();
        let holds = cx.condition(self, &mut before);
        let aligned = self.aligned(&mut program.body, &rest, &mut cx);
        let results: SmallVec<[Value; 1]> = handed.iter().map(|&value| cx.like(value)).collect();
        let regions = [aligned, rest].map(|ops| Region { args: Vec::new(), ops });
        let branch = operation(OpKind::If, &[holds], loc);
        before.push(Op { results: results.clone(), regions: regions.into(), ..branch });

        let region = self::region(&mut program.body, &self.region, &mut |_| {});
        region.ops.append(&mut before);
        region.ops.extend(last.map(|mut last| {
            let handed = last.args.iter_mut().filter(|value| own.contains(value));
            handed.zip(results).for_each(|(value, result)| *value = result);
            last
        }));
    }

    /// A copy of the part in which the integers are multiples, with what was derived from them before it.
    fn aligned(&self, body: &mut Region, part: &[Op], cx: &mut Cx<'_>) -> Vec<Op> {
        let mut out = Vec::new();
        for &integer in &self.integers {
            let (kind, ty) = (Assumption::MultipleOf(self.divisor), cx.values[integer.index()].ty.clone());
            let promised = cx.emit(OpKind::Assume(kind), &[integer], ty, &mut out);
            cx.new.insert(integer, promised);
        }
        let mut derive = |ops: &[Op]| {
            for op in ops.iter().filter(|op| derives(op)) {
                if op.args.iter().any(|arg| cx.new.contains_key(arg)) {
                    out.push(cx.copy(op));
                }
            }
        };
        let around = region(body, &self.region, &mut derive);
        derive(&around.ops);
        out.extend(part.iter().map(|op| cx.copy(op)));
        out
    }
}

/// Whether an operation only computes something of its operands.
fn derives(op: &Op) -> bool {
    op.kind.is_pure() || matches!(op.kind, OpKind::Assume(_))
}

/// The region at a path; `before` is told the operations before it in each region around it.
fn region<'a>(body: &'a mut Region, path: &Path, before: &mut dyn FnMut(&[Op])) -> &'a mut Region {
    path.iter().fold(body, |region, &(at, index)| {
        before(&region.ops[..at]);
        &mut region.ops[at].regions[index]
    })
}

fn place<'a>(region: &'a Region, owner: Option<&'a Op>, path: &mut Path, out: &mut Vec<Placed<'a>>) {
    for (at, op) in region.ops.iter().enumerate() {
        out.push(Placed { op, owner, region: path.clone(), at });
        for (index, inner) in op.regions.iter().enumerate() {
            path.push((at, index));
            place(inner, Some(op), path, out);
            path.pop();
        }
    }
}

/// What is looked for in a program.
struct Search<'a> {
    program: &'a Program,
    ops: &'a [Placed<'a>],
    /// The operation that defines each value, by its number among all.
    defs: Vec<Option<usize>>,
    facts: Vec<Axis>,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, ops: &'a [Placed<'a>]) -> Search<'a> {
        let mut defs = vec![None; program.values.len()];
        for (number, placed) in ops.iter().enumerate() {
            placed.op.results.iter().for_each(|result| defs[result.index()] = Some(number));
        }
        Search { program, ops, defs, facts: axis::analyze(program) }
    }

    fn def(&self, value: Value) -> Option<&'a Placed<'a>> {
        self.defs[value.index()].map(|number| &self.ops[number])
    }

    /// The loads of operands of products that are narrow, in loops.
    fn operands(&self) -> impl Iterator<Item = &'a Placed<'a>> {
        let products = self.ops.iter().filter(|placed| matches!(placed.op.kind, OpKind::Dot { .. }));
        let operands = products.flat_map(|placed| &placed.op.args[..2]).filter_map(|&operand| {
            let made = self.def(operand)?;
            if let OpKind::Permute(_) = made.op.kind { self.def(made.op.args[0]) } else { Some(made) }
        });
        operands.filter(|placed| {
            let in_loop = placed.owner.is_some_and(|owner| owner.kind == OpKind::For);
            let is_load = matches!(placed.op.kind, OpKind::Load { .. });
            in_loop && is_load && self.bytes(placed.op, &self.facts) < WIDEST
        })
    }

    /// The versions that make a load in a loop wide, and with it what else they can.
    fn versions(&self, operand: &Placed<'_>) -> Option<Versions> {
        let integers = self.integers(operand.op);
        let defs: Vec<&Placed<'_>> = integers.iter().filter_map(|&value| self.def(value)).collect();
        let depth = defs.iter().map(|def| def.region.len()).max()?;
        // What the loop reads differs between its iterations.
        let at = operand.region.get(depth)?.0;
        let region = operand.region[..depth].to_vec();
        let is_before = |def: &Placed<'_>| {
            let end = region.get(def.region.len()).map_or(at, |step| step.0);
            region.starts_with(&def.region) && def.at < end
        };
        if !defs.into_iter().all(is_before) {
            return None;
        }
        let accesses = self.accesses(&region, at);
        let all: FxHashSet<Value> = accesses.iter().flat_map(|access| self.integers(access)).collect();
        let all = all.into_iter().filter(|&value| self.def(value).is_some_and(is_before));
        let divisor = WIDEST / accesses.iter().map(|access| self.element(access)).min()?;
        let integers = self.fewest(all.collect(), divisor, &accesses);
        let facts = axis::analyze_promised(self.program, &integers, divisor);
        let divisor = u32::try_from(divisor).ok()?;
        (self.bytes(operand.op, &facts) == WIDEST).then_some(Versions { region, at, integers, divisor })
    }

    /// The loads of operands and the stores in a part of a region.
    fn accesses(&self, region: &Path, at: usize) -> Vec<&'a Op> {
        let stores = self.ops.iter().filter(|placed| {
            matches!(placed.op.kind, OpKind::Store { .. }) && self.program.ty(placed.op.args[1]).rank() > 0
        });
        let inside = |placed: &&Placed<'_>| {
            let own = placed.region.get(region.len()).map_or(placed.at, |step| step.0);
            placed.region.starts_with(region) && own >= at
        };
        self.operands().chain(stores).filter(inside).map(|placed| placed.op).collect()
    }

    /// Those of some integers that must be multiples for accesses to be as wide as if all were.
    fn fewest(&self, mut integers: Vec<Value>, divisor: u64, accesses: &[&Op]) -> Vec<Value> {
        let widths = |integers: &[Value]| {
            let facts = axis::analyze_promised(self.program, integers, divisor);
            accesses.iter().map(|access| self.bytes(access, &facts)).collect::<Vec<u64>>()
        };
        integers.sort_unstable();
        let best = widths(&integers);
        for value in integers.clone() {
            let fewer: Vec<Value> = integers.iter().copied().filter(|&other| other != value).collect();
            if widths(&fewer) == best {
                integers = fewer;
            }
        }
        integers
    }

    /// Bytes of an element of what is accessed.
    fn element(&self, access: &Op) -> u64 {
        self.program.ty(access.args[0]).pointee().map_or(1, |elem| elem.bytes().into())
    }

    /// How many bytes an access moves at a time, where its mask lets it.
    fn bytes(&self, access: &Op, facts: &[Axis]) -> u64 {
        let along = |axis: usize| {
            let same = mask_of(access).map_or(u64::MAX, |mask| facts[mask.index()].same[axis]);
            (1 << vectorize::width(self.program, facts, access, axis)).min(same)
        };
        let rank = self.program.ty(access.args[1]).rank();
        (0..rank).map(along).max().unwrap_or(1) * self.element(access)
    }

    /// The integers from memory that the offsets and the mask of an access are computed from.
    fn integers(&self, access: &Op) -> Vec<Value> {
        let mut open: Vec<Value> = [access.args[1]].into_iter().chain(mask_of(access)).collect();
        let (mut seen, mut out) = (FxHashSet::default(), Vec::new());
        while let Some(value) = open.pop() {
            let Some(def) = self.def(value).filter(|_| seen.insert(value)) else { continue };
            let ty = self.program.ty(value);
            match def.op.kind {
                OpKind::Load { .. } if ty.rank() == 0 && ty.elem().is_some_and(Elem::is_int) => {
                    out.push(value)
                }
                _ if derives(def.op) => open.extend(&def.op.args),
                _ => {}
            }
        }
        out
    }
}

/// Makes new operations, and copies of others.
struct Cx<'a> {
    values: &'a mut Vec<ValueData>,
    /// What stands for a value in a copy.
    new: FxHashMap<Value, Value>,
    loc: Loc,
}

impl Cx<'_> {
    /// Whether all integers are multiples.
    fn condition(&mut self, versions: &Versions, out: &mut Vec<Op>) -> Value {
        let number = Type::scalar(Elem::I64);
        let wide: Vec<Value> = (versions.integers.iter())
            .map(|&integer| match self.values[integer.index()].ty == number {
                true => integer,
                false => self.emit(OpKind::Cast(Elem::I64), &[integer], number.clone(), out),
            })
            .collect();
        let or = |a, b| self.emit(OpKind::Map(ScalarFn::Or), &[a, b], number.clone(), out);
        let bits = wide.into_iter().reduce(or);
        let constants = [i64::from(versions.divisor) - 1, 0].map(|n| Literal::int(Elem::I64, n));
        let [low, zero] = constants.map(|n| self.emit(OpKind::Const(n), &[], number.clone(), out));
        let rest = self.emit(OpKind::Map(ScalarFn::And), &[bits.unwrap_or(zero), low], number, out);
        self.emit(OpKind::Map(ScalarFn::Eq), &[rest, zero], Type::scalar(Elem::Bool), out)
    }

    fn emit(&mut self, kind: OpKind, args: &[Value], ty: Type, out: &mut Vec<Op>) -> Value {
        let result = self.value(ValueData { ty, name: None });
        out.push(Op { results: SmallVec::from_slice(&[result]), ..operation(kind, args, self.loc) });
        result
    }

    fn value(&mut self, data: ValueData) -> Value {
        self.values.push(data);
        Value(self.values.len() as u32 - 1)
    }

    /// A new value of the type of another.
    fn like(&mut self, value: Value) -> Value {
        let data = self.values[value.index()].clone();
        self.value(data)
    }

    fn define(&mut self, value: Value) -> Value {
        let new = self.like(value);
        self.new.insert(value, new);
        new
    }

    /// A copy of an operation, with values of its own.
    fn copy(&mut self, op: &Op) -> Op {
        let args = op.args.iter().map(|arg| self.new.get(arg).copied().unwrap_or(*arg)).collect();
        let regions = op.regions.iter().map(|region| self.copy_region(region)).collect();
        let results = op.results.iter().map(|&result| self.define(result)).collect();
        Op { kind: op.kind.clone(), args, results, regions, loc: op.loc }
    }

    fn copy_region(&mut self, region: &Region) -> Region {
        let args = region.args.iter().map(|&arg| self.define(arg)).collect();
        Region { args, ops: region.ops.iter().map(|op| self.copy(op)).collect() }
    }
}

fn operation(kind: OpKind, args: &[Value], loc: Loc) -> Op {
    Op { kind, args: SmallVec::from_slice(args), results: SmallVec::new(), regions: Vec::new(), loc }
}
