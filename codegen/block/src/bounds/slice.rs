//! The part of a program that decides where accesses lie.

use std::mem::take;

use smallvec::SmallVec;

use crate::program::{Loc, Op, OpKind, Program, Region, Value, ValueData};
use crate::types::{Elem, Type};

/// Where a value comes from.
#[derive(Clone, Copy)]
enum Source<'a> {
    Nothing,
    Of(&'a [Value]),
    /// Operands of an operation with regions, and what these yield.
    All(&'a [Value], &'a [Region]),
    /// What a loop carries: before it, and from one iteration to the next.
    Carried(Value, Option<Value>),
}

/// What stands for values that decide nothing, a number of which nothing is known.
const ANY: Value = Value(0);

/// A valid program without the accesses that are not wanted, and with what decides where the others lie and whether they
/// happen: their offsets and masks, the bounds of loops and conditions, and what these are made of. It is not to be run.
pub(super) fn cut(program: &Program, wanted: &dyn Fn(&Op) -> bool) -> Program {
    let decisive = decisive(program, wanted);
    let any = Type::scalar(Elem::F32);
    let mut cut = Cut {
        wanted,
        numbers: vec![ANY; program.values.len()],
        values: vec![ValueData { ty: any, name: None }],
    };
    let kept = program.values.iter().zip(&decisive).enumerate();
    let params = program.params.iter().map(|param| param.value);
    for value in kept.filter(|(_, (_, decisive))| **decisive).map(|(at, _)| Value(at as u32)).chain(params) {
        if cut.numbers[value.index()] == ANY {
            cut.numbers[value.index()] = Value(cut.values.len() as u32);
            cut.values.push(ValueData { ty: program.ty(value).clone(), name: None });
        }
    }
    let mut params = program.params.clone();
    params.iter_mut().for_each(|param| param.value = cut.number(param.value));
    let body = cut.region(&program.body, &[]);
    Program { name: program.name.clone(), params, values: take(&mut cut.values), body, ..*program }
}

struct Cut<'a> {
    wanted: &'a dyn Fn(&Op) -> bool,
    /// For each value its number in what is left.
    numbers: Vec<Value>,
    values: Vec<ValueData>,
}

impl Cut<'_> {
    fn number(&self, value: Value) -> Value {
        self.numbers[value.index()]
    }

    /// A region without what decides nothing; `dropped` are the places of what it yields that are not needed.
    fn region(&self, region: &Region, dropped: &[usize]) -> Region {
        let mut ops = Vec::new();
        for op in &region.ops {
            let kept = match op.kind {
                OpKind::Yield => {
                    let args = op.args.iter().enumerate().filter(|(at, _)| !dropped.contains(at));
                    let args = args.map(|(_, &value)| self.number(value)).collect();
                    Some(Op {
                        kind: OpKind::Yield,
                        args,
                        results: SmallVec::new(),
                        regions: Vec::new(),
                        loc: Loc::UNKNOWN,
                    })
                }
                OpKind::For => self.counted(op),
                _ => self.other(op),
            };
            ops.extend(kept);
        }
        Region { args: region.args.iter().map(|&value| self.number(value)).collect(), ops }
    }

    /// A loop with those of its carried values that decide something.
    fn counted(&self, op: &Op) -> Option<Op> {
        let body = op.regions.first()?;
        let decides = |value: Option<&Value>| value.is_some_and(|&value| self.number(value) != ANY);
        let dropped: SmallVec<[usize; 32]> = (0..op.results.len())
            .filter(|&at| !decides(op.results.get(at)) && !decides(body.args.get(at + 1)))
            .collect();
        let keep = |values: &[Value], before: usize| -> Vec<Value> {
            let kept = values.iter().enumerate();
            let kept = kept.filter(|(at, _)| at.checked_sub(before).is_none_or(|at| !dropped.contains(&at)));
            kept.map(|(_, &value)| self.number(value)).collect()
        };
        let inner = Region { args: keep(&body.args, 1), ..self.region(body, &dropped) };
        let results: SmallVec<_> = keep(&op.results, 0).into();
        let empty = results.is_empty() && inner.ops.iter().all(|op| op.kind == OpKind::Yield);
        (!empty).then(|| Op {
            kind: OpKind::For,
            args: keep(&op.args, 3).into(),
            results,
            regions: vec![inner],
            loc: op.loc,
        })
    }

    fn other(&self, op: &Op) -> Option<Op> {
        let regions: Vec<Region> = op.regions.iter().map(|region| self.region(region, &[])).collect();
        let effects = |region: &Region| region.ops.iter().any(|op| op.kind != OpKind::Yield);
        let decides = op.results.iter().any(|&result| self.number(result) != ANY);
        let is_kept = decides || regions.iter().any(effects) || op.kind.is_access() && (self.wanted)(op);
        is_kept.then(|| Op {
            kind: op.kind.clone(),
            args: op.args.iter().map(|&value| self.number(value)).collect(),
            results: op.results.iter().map(|&value| self.number(value)).collect(),
            regions,
            loc: op.loc,
        })
    }
}

/// For each value whether it decides about accesses that are wanted.
fn decisive(program: &Program, wanted: &dyn Fn(&Op) -> bool) -> Vec<bool> {
    let mut sources = vec![Source::Nothing; program.values.len()];
    let mut open: Vec<Value> = Vec::new();
    program.walk(&mut |op| {
        let mut set = |value: Value, source| {
            if let Some(slot) = sources.get_mut(value.index()) {
                *slot = source;
            }
        };
        match (&op.kind, op.regions.as_slice()) {
            (_, []) => op.results.iter().for_each(|&result| set(result, Source::Of(&op.args))),
            (OpKind::For, [body]) => {
                let (bounds, first) = op.args.split_at(op.args.len().min(3));
                open.extend(bounds);
                if let Some(&induction) = body.args.first() {
                    set(induction, Source::Of(bounds));
                    open.push(induction);
                }
                let next = body.ops.last().map_or(&[][..], |last| last.args.as_slice());
                for (at, &first) in first.iter().enumerate() {
                    let source = Source::Carried(first, next.get(at).copied());
                    op.results.get(at).into_iter().for_each(|&result| set(result, source));
                    body.args.get(at + 1).into_iter().for_each(|&inside| set(inside, source));
                }
            }
            (_, regions) => {
                if op.kind == OpKind::If {
                    open.extend(op.args.first());
                }
                let source = Source::All(&op.args, regions);
                let inside = regions.iter().flat_map(|region| &region.args);
                op.results.iter().chain(inside).for_each(|&value| set(value, source));
            }
        }
        if op.kind.is_access() && wanted(op) {
            let mask = match op.kind {
                OpKind::Load { masked: true, .. } => op.args.get(2),
                OpKind::Store { masked: true, .. } | OpKind::Atomic { masked: true, .. } => op.args.get(3),
                _ => None,
            };
            open.extend(op.args.get(1).into_iter().chain(mask));
        }
    });
    let mut decisive = vec![false; program.values.len()];
    while let Some(value) = open.pop() {
        match decisive.get_mut(value.index()) {
            Some(known) if !*known => *known = true,
            _ => continue,
        }
        match sources[value.index()] {
            Source::Nothing => {}
            Source::Of(args) => open.extend(args),
            Source::Carried(first, next) => open.extend(std::iter::once(first).chain(next)),
            Source::All(args, regions) => {
                open.extend(args);
                open.extend(regions.iter().filter_map(|r| r.ops.last()).flat_map(|last| &last.args));
            }
        }
    }
    decisive
}
