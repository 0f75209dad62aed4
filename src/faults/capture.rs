//! Faults of capture: what a recording says of the calls of a model.

use tilefuse_fusion::{Arg, Call, Recording, Source, TensorId};

use super::Fault;

/// Positions of a call or a tensor, and of an argument or another tensor.
pub(super) type Place = (usize, usize);

/// Where a fault can be.
pub(super) fn places(fault: Fault, recording: &Recording) -> Vec<Place> {
    let calls = || recording.calls.iter().enumerate();
    let made = || {
        let tensors = recording.tensors.iter().enumerate();
        tensors.filter(|(_, t)| matches!(t.source, Source::Call(_))).map(|(at, _)| at)
    };
    match fault {
        // libtorch itself makes calls that draw random numbers, which write then.
        Fault::WriteMissed => calls()
            .filter(|(_, c)| !c.random)
            .flat_map(|(at, c)| c.writes.iter().map(move |&arg| (at, arg)))
            .collect(),
        Fault::OperandsSwapped => {
            calls().filter_map(|(at, c)| Some((at, swappable(recording, c)?))).collect()
        }
        Fault::NumberChanged => calls().flat_map(|(at, c)| numbers(c).map(move |arg| (at, arg))).collect(),
        Fault::ViewMissed => {
            let earlier = |&at: &usize| {
                recording.tensors[..at].iter().any(|t| t.storage == recording.tensors[at].storage)
            };
            made().filter(earlier).map(|at| (at, 0)).collect()
        }
        Fault::ViewInvented => calls().filter_map(|(_, c)| invented(recording, c)).collect(),
        Fault::OutputMistaken => {
            let outputs = recording.outputs.iter().enumerate();
            outputs.flat_map(|(at, &output)| alike(recording, output).map(move |other| (at, other))).collect()
        }
        _ => Vec::new(),
    }
}

/// The recording with a fault at a place.
pub(super) fn with_fault(fault: Fault, recording: &Recording, (at, other): Place) -> Option<Recording> {
    let mut changed = recording.clone();
    match fault {
        Fault::WriteMissed => changed.calls.get_mut(at)?.writes.retain(|&arg| arg != other),
        Fault::OperandsSwapped => {
            let (before, after) = changed.calls.get_mut(at)?.args.split_at_mut(other);
            std::mem::swap(&mut before.last_mut()?.1, &mut after.first_mut()?.1);
        }
        Fault::NumberChanged => match &mut changed.calls.get_mut(at)?.args.get_mut(other)?.1 {
            Arg::Int(n) => *n += 1,
            Arg::Float(x) => *x += 0.5,
            _ => return None,
        },
        Fault::ViewMissed => changed.tensors.get_mut(at)?.storage = u64::MAX,
        Fault::ViewInvented => changed.tensors[at].storage = changed.tensors.get(other)?.storage,
        Fault::OutputMistaken => *changed.outputs.get_mut(at)? = TensorId(other as u32),
        _ => return None,
    }
    Some(changed)
}

/// Operators whose first two operands may be swapped.
const COMMUTATIVE: &[&str] = &[
    "add",
    "add_",
    "mul",
    "mul_",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "eq",
    "ne",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "hypot",
    "dot",
    "mse_loss",
    "l1_loss",
];

/// The second of two neighbouring operands of one type that mean something else in each other's place.
fn swappable(recording: &Recording, call: &Call) -> Option<usize> {
    let name = call.op.strip_prefix("aten::").unwrap_or(&call.op);
    let ty = |t: &TensorId| &recording.tensors[t.0 as usize].ty;
    let differ = |pair: &[(String, Arg<TensorId>)]| matches!(pair, [(_, Arg::Tensor(a)), (_, Arg::Tensor(b))] if a != b && ty(a) == ty(b));
    let mut pairs = call.args.windows(2).enumerate();
    let found = |(at, pair): (usize, &[_])| {
        (differ(pair) && (at > 0 || !COMMUTATIVE.contains(&name)) && !call.writes.contains(&at))
            .then_some(at + 1)
    };
    pairs.find_map(found)
}

fn numbers(call: &Call) -> impl Iterator<Item = usize> {
    let args = call.args.iter().enumerate();
    args.filter(|(_, (_, arg))| matches!(arg, Arg::Int(_) | Arg::Float(_))).map(|(at, _)| at)
}

/// A result and an operand of its type in other memory.
fn invented(recording: &Recording, call: &Call) -> Option<Place> {
    let to = (*call.results.first()?)?.0 as usize;
    let operands = call.args.iter().flat_map(|(_, arg)| arg.tensors());
    let info = |at: usize| &recording.tensors[at];
    let fits = |from: usize| info(from).storage != info(to).storage && info(from).ty == info(to).ty;
    operands.map(|from| from.0 as usize).find(|&from| fits(from)).map(|from| (to, from))
}

/// Tensors of a type with an output.
fn alike(recording: &Recording, output: TensorId) -> impl Iterator<Item = usize> {
    let ty = &recording.tensors[output.0 as usize].ty;
    let tensors = recording.tensors.iter().enumerate();
    tensors.filter(move |&(at, t)| t.ty == *ty && at != output.0 as usize).map(|(at, _)| at)
}
