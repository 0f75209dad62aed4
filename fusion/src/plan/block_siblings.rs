//! Two block kernels of one grid as one: each instance computes the block of the one and that of the other.
//!
//! ```text
//! %s = for %k in 0..K step 64 with (%acc = 0) {               %s = for ...   over %x and %v
//!   yield dot (load %x), (load %v), %acc                      %t = for ...   over %x and %w
//! }                                                           store %y, %at, %s
//! store %y, %at, %s                                     ->    store %z, %at, %t
//!
//! the same over %x and %w, which stores %t to %z
//! ```
//!
//! What both compute alike is computed once, so that it can be seen where they store the same elements: an epilogue of both
//! results is one at the second store. The loops stay two, since the products of one would share the registers of a host.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Program, Region, Type, Value};

use crate::block_kernel::{Block, BlockKernel, BlockKernelKind, Coordinate, Coordinates, Tied};
use crate::epilogue::{Uses, uses};
use crate::graph::ValueRef;
use crate::kernel::BlockRefusal;

/// Two kernels as one, whose operands and results are those of the first and then those of the second. Neither may need what the
/// other computes; `operands` are the values that each reads.
pub(super) fn fuse_siblings(
    kernels: [&BlockKernel; 2],
    operands: [&[ValueRef]; 2],
    results: usize,
    launch_us: f64,
) -> Result<BlockKernel, BlockRefusal> {
    let [a, b] = kernels;
    if kernels.iter().any(|kernel| kernel.kind != BlockKernelKind::Contraction || !only_stores_last(kernel)) {
        return Err(BlockRefusal::Both);
    }
    if kernels.iter().any(|kernel| kernel.neighbours_do_not_fit) {
        return Err(BlockRefusal::Tiles);
    }
    if kernels.iter().any(|kernel| kernel.program.stages.is_some()) {
        return Err(BlockRefusal::RunsAhead);
    }
    if a.grid != b.grid {
        return Err(BlockRefusal::Blocks);
    }
    let behind = |position: u16, others: usize| {
        u16::try_from(usize::from(position) + others).map_err(|_| BlockRefusal::Parameters)
    };
    let shared = shared_parameters(kernels, operands);
    let mut tied = a.tied.clone();
    for (own, _) in b.tied.iter().zip(&shared).filter(|(_, shared)| shared.is_none()) {
        tied.push(match *own {
            Tied::Operand(at) => Tied::Operand(behind(at, operands[0].len())?),
            Tied::Result(at) => Tied::Result(behind(at, results)?),
        });
    }
    let mut layouts = a.layouts.clone();
    for (at, layout) in &b.layouts {
        layouts.push((behind(*at, operands[0].len())?, layout.clone()));
    }
    let mut joined = Joined::new(kernels, &shared);
    let body = joined.body()?;
    let coordinates = joined.coordinates();
    let program = Program { body, ..joined.program };
    let computing_us = |kernel: &BlockKernel| (kernel.expected_us - launch_us).max(0.0);
    Ok(BlockKernel {
        kind: a.kind,
        program,
        grid: a.grid,
        tied,
        checks: false,
        neighbours_do_not_fit: false,
        coordinates,
        layouts,
        schedule: schedule([&a.schedule, &b.schedule]),
        note: a.note.clone().or_else(|| b.note.clone()),
        expected_us: launch_us + computing_us(a) + computing_us(b),
    })
}

fn schedule([a, b]: [&str; 2]) -> String {
    if a == b { format!("two products: {a}") } else { format!("{a}; beside {b}") }
}

/// Whether a kernel has no effect but to store results, which it does not load, in its body.
fn only_stores_last(kernel: &BlockKernel) -> bool {
    let stores_result = |(tied, uses): (&Tied, Uses)| match tied {
        Tied::Operand(_) => uses.stored == 0,
        Tied::Result(_) => uses.only_stores(),
    };
    let is_store = |op: &&Op| matches!(op.kind, OpKind::Store { .. });
    let effects = kernel.program.body.ops.iter().filter(|op| op.has_effect());
    !kernel.checks
        && effects.clone().count() == effects.filter(is_store).count()
        && kernel.tied.iter().zip(uses(&kernel.program)).all(stores_result)
}

/// For each parameter of the second kernel the first one's through which the same operand is read in the same way.
fn shared_parameters([a, b]: [&BlockKernel; 2], operands: [&[ValueRef]; 2]) -> Vec<Option<usize>> {
    let read = |kernel: &BlockKernel, side: usize, at: usize| {
        let Tied::Operand(position) = *kernel.tied.get(at)? else { return None };
        let param = kernel.program.params.get(at)?;
        let value = *operands[side].get(usize::from(position))?;
        let ty = kernel.program.ty(param.value).clone();
        Some((value, kernel.layout(position).clone(), param.len, ty))
    };
    let same = |at: usize| {
        let own = read(b, 1, at)?;
        (0..a.tied.len()).find(|&other| read(a, 0, other).as_ref() == Some(&own))
    };
    (0..b.tied.len()).map(same).collect()
}

/// What an operation computes: where kind, operands and type are the same, so are the results.
type Key = (OpKind, SmallVec<[Value; 4]>, Type);

/// A program that is made of two.
struct Joined<'a> {
    kernels: [&'a BlockKernel; 2],
    program: Program,
    /// By value of each program: the joined one's.
    names: [Vec<Option<Value>>; 2],
    /// What has been computed where an operation is added.
    known: FxHashMap<Key, Value>,
}

impl<'a> Joined<'a> {
    fn new(kernels: [&'a BlockKernel; 2], shared: &[Option<usize>]) -> Joined<'a> {
        let of = |kernel: &BlockKernel| vec![None; kernel.program.values.len()];
        let (params, values, body) = (Vec::new(), Vec::new(), Region::default());
        let first = &kernels[0].program;
        let (warps, stages, early) = (first.warps, first.stages, first.early);
        let program = Program { name: first.name.clone(), params, values, body, warps, stages, early };
        let names = kernels.map(of);
        let mut joined = Joined { kernels, program, names, known: FxHashMap::default() };
        for (side, kernel) in kernels.into_iter().enumerate() {
            for (at, param) in kernel.program.params.iter().enumerate() {
                let known = shared.get(at).copied().flatten().filter(|_| side == 1);
                let value = match known {
                    Some(other) => joined.program.params[other].value,
                    None => {
                        let value = joined.value(side, param.value);
                        joined.program.params.push(tilefuse_block::Param { value, ..param.clone() });
                        value
                    }
                };
                joined.names[side][param.value.index()] = Some(value);
            }
        }
        joined
    }

    /// A new value for one of a program.
    fn value(&mut self, side: usize, of: Value) -> Value {
        let value = Value(self.program.values.len() as u32);
        self.program.values.push(self.kernels[side].program.values[of.index()].clone());
        self.names[side][of.index()] = Some(value);
        value
    }

    fn name(&self, side: usize, value: Value) -> Result<Value, BlockRefusal> {
        self.names[side].get(value.index()).copied().flatten().ok_or(BlockRefusal::Both)
    }

    /// What both compute, and then their stores.
    fn body(&mut self) -> Result<Region, BlockRefusal> {
        let mut ops = Vec::new();
        for stores in [false, true] {
            for (side, kernel) in self.kernels.into_iter().enumerate() {
                let body = kernel.program.body.ops.iter();
                let part = body.filter(|op| matches!(op.kind, OpKind::Store { .. }) == stores);
                self.ops(side, part, &mut ops)?;
            }
        }
        Ok(Region { args: Vec::new(), ops })
    }

    /// Adds operations of a program, but those that are known.
    fn ops<'o>(
        &mut self,
        side: usize,
        from: impl Iterator<Item = &'o Op>,
        ops: &mut Vec<Op>,
    ) -> Result<(), BlockRefusal> {
        for op in from {
            let args = self.args(side, op)?;
            let key = self.key(side, op, &args);
            if let (Some(&known), [result]) =
                (key.as_ref().and_then(|key| self.known.get(key)), &op.results[..])
            {
                self.names[side][result.index()] = Some(known);
                continue;
            }
            let regions = op.regions.iter().map(|region| self.region(side, op, region));
            let regions = regions.collect::<Result<_, _>>()?;
            let results: SmallVec<[Value; 1]> =
                op.results.iter().map(|&result| self.value(side, result)).collect();
            self.known.extend(key.zip(results.first().copied()));
            ops.push(Op { kind: op.kind.clone(), args, results, regions, loc: op.loc });
        }
        Ok(())
    }

    fn args(&self, side: usize, op: &Op) -> Result<SmallVec<[Value; 4]>, BlockRefusal> {
        op.args.iter().map(|&arg| self.name(side, arg)).collect()
    }

    /// What an operation computes where only its operands decide on it, or memory that nothing writes before the end.
    fn key(&self, side: usize, op: &Op, args: &SmallVec<[Value; 4]>) -> Option<Key> {
        let decided = op.kind.is_pure() || matches!(op.kind, OpKind::Load { .. } | OpKind::Assume(_));
        let &[result] = &op.results[..] else { return None };
        decided.then(|| (op.kind.clone(), args.clone(), self.kernels[side].program.ty(result).clone()))
    }

    fn region(&mut self, side: usize, owner: &Op, region: &Region) -> Result<Region, BlockRefusal> {
        let outside = self.known.clone();
        if owner.kind.has_combiner() {
            // It sees nothing from outside.
            self.known.clear();
        }
        let args = region.args.iter().map(|&arg| self.value(side, arg)).collect();
        let mut ops = Vec::new();
        self.ops(side, region.ops.iter(), &mut ops)?;
        self.known = outside;
        Ok(Region { args, ops })
    }

    /// Of the stores of both.
    fn coordinates(&self) -> Vec<Coordinates> {
        let each = self.kernels.iter().enumerate();
        let all = each.flat_map(|(side, kernel)| kernel.coordinates.iter().map(move |at| (side, at)));
        all.filter_map(|(side, at)| self.coordinates_of(side, at)).collect()
    }

    fn coordinates_of(&self, side: usize, at: &Coordinates) -> Option<Coordinates> {
        let name = |value: Value| self.name(side, value).ok();
        let axis = |axis: &Coordinate| Some(Coordinate { index: name(axis.index)?, ..*axis });
        let block = |block: Block| {
            let inside = match block.inside {
                Some(inside) => Some(name(inside)?),
                None => None,
            };
            Some(Block { rows: name(block.rows)?, number: name(block.number)?, inside, ..block })
        };
        Some(Coordinates {
            offsets: name(at.offsets)?,
            axes: at.axes.iter().map(axis).collect::<Option<_>>()?,
            lanes: at.lanes,
            block: at.block.and_then(block),
        })
    }
}
