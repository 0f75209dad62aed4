//! Faults planted into what one stage of the compiler hands to the next, to measure what random programs find.

use std::fmt;

use tilefuse_fusion::plan::{Place, Plan, StepKind};
use tilefuse_fusion::{Arg, Graph, Recording, Source};

/// A defect that a stage could have: it is planted in every program, wherever it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Capture: a call is not known to write its argument.
    WriteMissed,
    /// Capture: the first two operands of a call are swapped.
    OperandsSwapped,
    /// Capture: a number among the arguments of a call is another.
    NumberChanged,
    /// Capture: a view is taken for memory of its own.
    ViewMissed,
    /// Capture: a result is taken for a view of the call's operand.
    ViewInvented,
    /// Capture: a result of the model is another tensor of the same type.
    OutputMistaken,
    /// Functionalization: the last write-back is lost.
    UpdateMissed,
    /// Functionalization: the write-back has the value from before the last write.
    UpdateStale,
    /// Functionalization: an output shares no memory where eager's does.
    AliasMissed,
    /// Functionalization: an output begins an element late in the memory that it shares.
    AliasShifted,
    /// Functionalization: a use reads the value from before a write.
    UseStale,
    /// Memory planning: two values of the arena lie at one place.
    ArenaOverlap,
    /// Memory planning: all values of the arena that are as large lie at one place.
    ArenaOverlaps,
    /// Memory planning: memory is freed a step early.
    FreedEarly,
    /// Memory planning: two results of one type are found in each other's place.
    OutputsSwapped,
    /// Planning: two kernels run in the wrong order.
    StepsSwapped,
}

impl Fault {
    /// All faults.
    pub const ALL: &[Fault] = &[
        Fault::WriteMissed,
        Fault::OperandsSwapped,
        Fault::NumberChanged,
        Fault::ViewMissed,
        Fault::ViewInvented,
        Fault::OutputMistaken,
        Fault::UpdateMissed,
        Fault::UpdateStale,
        Fault::AliasMissed,
        Fault::AliasShifted,
        Fault::UseStale,
        Fault::ArenaOverlap,
        Fault::ArenaOverlaps,
        Fault::FreedEarly,
        Fault::OutputsSwapped,
        Fault::StepsSwapped,
    ];

    /// Plants a fault of capture; `None` where it cannot be.
    pub(crate) fn in_recording(self, recording: &mut Recording) -> Option<()> {
        let Recording { tensors, calls, outputs, .. } = recording;
        match self {
            Fault::WriteMissed => calls.iter_mut().find(|c| !c.writes.is_empty())?.writes.clear(),
            Fault::OperandsSwapped => {
                let two = |c: &&mut tilefuse_fusion::Call| matches!(c.args.as_slice(), [(_, Arg::Tensor(a)), (_, Arg::Tensor(b)), ..] if a != b);
                let args = &mut calls.iter_mut().find(two)?.args;
                let (first, rest) = args.split_first_mut()?;
                std::mem::swap(&mut first.1, &mut rest.first_mut()?.1);
            }
            Fault::NumberChanged => {
                let args = calls.iter_mut().flat_map(|c| &mut c.args);
                let is_number = |arg: &&mut Arg<_>| matches!(arg, Arg::Int(_) | Arg::Float(_));
                match args.map(|(_, arg)| arg).find(is_number)? {
                    Arg::Int(n) => *n += 1,
                    Arg::Float(x) => *x += 0.5,
                    _ => {}
                }
            }
            Fault::ViewMissed => {
                let storages: Vec<u64> = tensors.iter().map(|t| t.storage).collect();
                let shares = |at: &usize| storages[..*at].contains(&storages[*at]);
                let views = (0..tensors.len()).filter(|&at| matches!(tensors[at].source, Source::Call(_)));
                let at = views.clone().find(shares)?;
                tensors[at].storage = u64::MAX;
            }
            Fault::ViewInvented => {
                let call = calls.iter().find(|c| {
                    let (Some((_, Arg::Tensor(from))), Some(Some(to))) = (c.args.first(), c.results.first())
                    else {
                        return false;
                    };
                    let (from, to) = (&tensors[from.0 as usize], &tensors[to.0 as usize]);
                    from.storage != to.storage && from.ty == to.ty
                })?;
                let (Some((_, Arg::Tensor(from))), Some(Some(to))) =
                    (call.args.first(), call.results.first())
                else {
                    return None;
                };
                tensors[to.0 as usize].storage = tensors[from.0 as usize].storage;
            }
            Fault::OutputMistaken => {
                let output = outputs.first_mut()?;
                let ty = tensors[output.0 as usize].ty.clone();
                let other = (0..output.0).rev().find(|&at| tensors[at as usize].ty == ty)?;
                output.0 = other;
            }
            _ => return None,
        }
        Some(())
    }

    /// Plants a fault of functionalization; `None` where it cannot be.
    pub(crate) fn in_graph(self, graph: &mut Graph) -> Option<()> {
        match self {
            Fault::UpdateMissed => drop(graph.updates.pop()?),
            Fault::UpdateStale => {
                let value = graph.updates.last()?.value;
                let before = *graph.operands(value.node).first()?;
                if graph.ty(before) != graph.ty(value) {
                    return None;
                }
                graph.updates.last_mut()?.value = before;
            }
            Fault::AliasMissed => drop(graph.aliases.iter_mut().find(|a| a.is_some())?.take()),
            Fault::AliasShifted => {
                let alias = graph.aliases.iter_mut().flatten().find(|a| a.offset > 0)?;
                alias.offset -= 1;
            }
            Fault::UseStale => {
                let at = (0..graph.outputs.len()).find(|&at| {
                    let value = graph.outputs[at];
                    graph.operands(value.node).first().is_some_and(|&v| graph.ty(v) == graph.ty(value))
                })?;
                graph.outputs[at] = *graph.operands(graph.outputs[at].node).first()?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Plants a fault of planning; `None` where it cannot be.
    pub(crate) fn in_plan(self, plan: &mut Plan) -> Option<()> {
        match self {
            Fault::ArenaOverlap | Fault::ArenaOverlaps => {
                let bytes = |v| plan.graph.ty(v).bytes();
                let places: Vec<_> = plan.memory.offsets.iter().map(|(&v, &at)| (v, at, bytes(v))).collect();
                let found = places.iter().find_map(|a| {
                    let equal = |b: &&(_, u64, u64)| b.2 == a.2 && b.1 != a.1;
                    let others: Vec<_> = places.iter().filter(equal).map(|b| b.0).collect();
                    (!others.is_empty()).then_some((a.1, others))
                });
                let (offset, mut values) = found?;
                if self == Fault::ArenaOverlap {
                    values.truncate(1);
                }
                for value in values {
                    plan.memory.offsets.insert(value, offset);
                }
            }
            Fault::FreedEarly => {
                let at = (1..plan.steps.len()).find(|&at| !plan.steps[at].frees.is_empty())?;
                let frees = std::mem::take(&mut plan.steps[at].frees);
                plan.steps[at - 1].frees.extend(frees);
            }
            Fault::OutputsSwapped => {
                let ty = |p: &Place| plan.graph.ty(p.base()).clone();
                let n = plan.outputs.len();
                let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
                let differ = |a: usize, b: usize| plan.outputs[a] != plan.outputs[b];
                let same = |a: usize, b: usize| ty(&plan.outputs[a]) == ty(&plan.outputs[b]);
                let (a, b) = pairs.into_iter().find(|&(a, b)| differ(a, b) && same(a, b))?;
                plan.outputs.swap(a, b);
            }
            Fault::StepsSwapped => {
                let kernel = |at: usize| matches!(plan.steps[at].kind, StepKind::Kernel(_));
                let pair = (1..plan.steps.len()).find(|&at| kernel(at - 1) && kernel(at));
                let at = pair.filter(|_| plan.chains.is_empty())?;
                let (before, after) = plan.steps.split_at_mut(at);
                std::mem::swap(&mut before.last_mut()?.kind, &mut after.first_mut()?.kind);
            }
            _ => return None,
        }
        Some(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
