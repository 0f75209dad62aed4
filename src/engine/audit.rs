//! Audits: whether a later call of a model records what its first call did.
//!
//! A trace stands for a model as long as nothing but inputs and parameters decides what the model calls. A model may read
//! anything else (a flag, a counter, the clock), which no guard sees. So some calls are recorded again, and the recordings
//! are compared: operators, arguments, constants by their contents, parameters by identity, and results. Addresses of
//! intermediates are not compared.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use tch::Tensor;

use crate::Error;
use crate::options::Audit;
use crate::torch::{Arg, Event, Meta, Origin, TensorId, Trace, Weak, element_size};

/// Whether a call of a signature is recorded, by its number.
fn is_due(policy: Audit, call: u64) -> bool {
    match policy {
        Audit::Never | Audit::Every(0) => false,
        Audit::Exponential => call >= 2 && call.is_power_of_two(),
        Audit::Every(n) => call.is_multiple_of(n),
    }
}

/// What audits of one plan need.
#[derive(Debug)]
pub(crate) struct Audits {
    policy: Audit,
    recorded: Recorded,
    /// Calls of the signature, the recorded one among them.
    calls: AtomicU64,
    /// Whether an audit could not be made when it was due.
    is_overdue: AtomicBool,
    /// Whether the recorded call does not say what the model keeps, so that none may run the plan before an audit.
    is_unchecked: AtomicBool,
    /// The inputs of the recorded call.
    inputs: Vec<Recalled>,
    /// Whether some of these may be tensors of the model itself.
    is_unconfirmed: AtomicBool,
}

/// An input of the recorded call. A recording takes one that the model holds as well for an input wherever the model reads it: the plan
/// stands for another tensor in its place as soon as a call with another one was found to be alike.
#[derive(Debug)]
struct Recalled {
    /// Which tensor it was.
    identity: usize,
    /// As long as this is here, no other tensor is at its place.
    _weak: Weak,
    is_confirmed: AtomicBool,
}

impl Recalled {
    fn of(input: &Tensor) -> Result<Recalled, Error> {
        let (identity, weak) = (Meta::of(input)?.tensor_impl, Weak::new(input)?);
        Ok(Recalled { identity, _weak: weak, is_confirmed: AtomicBool::new(false) })
    }

    fn is_another(&self, input: &Tensor) -> bool {
        Meta::of(input).is_ok_and(|meta| meta.tensor_impl != self.identity)
    }
}

impl Audits {
    /// For a plan of this trace.
    pub(crate) fn new(policy: Audit, trace: &Trace) -> Result<Audits, Error> {
        // Every 0th call is none.
        let policy = if policy == Audit::Every(0) { Audit::Never } else { policy };
        let is_compared = policy != Audit::Never || trace.keeps_unknown;
        let recorded = if is_compared { Recorded::of(trace)? } else { Recorded::default() };
        let inputs = trace.inputs.iter().filter(|_| policy != Audit::Never).filter_map(|&t| trace.tensor(t));
        let inputs = inputs.map(Recalled::of).collect::<Result<Vec<_>, _>>()?;
        let [is_overdue, is_unchecked, is_unconfirmed] =
            [false, trace.keeps_unknown, !inputs.is_empty()].map(AtomicBool::new);
        let calls = AtomicU64::new(1);
        Ok(Audits { policy, recorded, calls, is_overdue, is_unchecked, inputs, is_unconfirmed })
    }

    /// Whether an input is another tensor than in the calls that were found to be alike, so that the plan may not run before an audit.
    pub(crate) fn has_new_input(&self, inputs: &[Tensor]) -> bool {
        let is_new = |(recalled, input): (&Recalled, &Tensor)| {
            !recalled.is_confirmed.load(Ordering::Relaxed) && recalled.is_another(input)
        };
        self.is_unconfirmed.load(Ordering::Relaxed) && self.inputs.iter().zip(inputs).any(is_new)
    }

    /// Notes that a call of these inputs was found to be alike.
    pub(crate) fn confirm(&self, inputs: &[Tensor]) {
        if !self.is_unconfirmed.load(Ordering::Relaxed) {
            return;
        }
        for (recalled, input) in self.inputs.iter().zip(inputs) {
            recalled.is_confirmed.fetch_or(recalled.is_another(input), Ordering::Relaxed);
        }
        let all = self.inputs.iter().all(|recalled| recalled.is_confirmed.load(Ordering::Relaxed));
        self.is_unconfirmed.store(!all, Ordering::Relaxed);
    }

    /// Whether a trace takes an input of the recorded call for a tensor of the model, or for another input.
    pub(crate) fn had_as_input(&self, trace: &Trace) -> bool {
        let identity = |t: &TensorId| trace.info(*t).map_or(0, |info| info.meta.tensor_impl);
        let is_at = |identity: usize, at: Option<usize>| {
            let mut inputs = self.inputs.iter().enumerate();
            inputs.any(|(own, input)| Some(own) != at && input.identity == identity)
        };
        trace.params.iter().any(|(t, _)| is_at(identity(t), None))
            || trace.inputs.iter().enumerate().any(|(at, t)| is_at(identity(t), Some(at)))
    }

    /// Counts a call; whether it is to be recorded.
    pub(crate) fn is_due(&self) -> bool {
        if self.policy == Audit::Never {
            return self.is_unchecked();
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        is_due(self.policy, call) || self.is_overdue.load(Ordering::Relaxed) || self.is_unchecked()
    }

    /// Whether the plan may not run before an audit.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.is_unchecked.load(Ordering::Relaxed)
    }

    /// Notes whether the call that was due was recorded; if not, the next one is due.
    pub(crate) fn set_done(&self, done: bool) {
        self.is_overdue.store(!done, Ordering::Relaxed);
    }

    /// How a trace differs from the recorded one. `own` are the inputs of its call, each with its position, as a recording would name them
    /// if the model held them.
    pub(crate) fn difference(&self, trace: &Trace, own: &[(usize, OwnTensor<'_>)]) -> Option<String> {
        if !trace.keeps_unknown {
            self.is_unchecked.store(false, Ordering::Relaxed);
        }
        if let Some(refusal) = trace.refusals.first() {
            return Some(refusal.to_string());
        }
        match Recorded::of(trace) {
            Ok(recorded) => self.recorded.with_inputs(own).difference(&recorded),
            Err(error) => Some(format!("a recording cannot be compared: {error}")),
        }
    }
}

/// The reason for which a signature runs eager after an audit.
pub(crate) fn reason(difference: &str) -> String {
    format!(
        "the model does not make the same calls each time: {difference}. What changes must be an input or a parameter; \
         if it changes seldom, call `Fused::clear` after each change and set `Options::audit`"
    )
}

/// A tensor of the model, as recordings name it.
pub(crate) struct OwnTensor<'a> {
    /// Its name, if it has one.
    pub(crate) name: Option<&'a str>,
    /// What it is.
    pub(crate) meta: &'a Meta,
}

impl OwnTensor<'_> {
    fn text(&self) -> String {
        match self.name {
            Some(name) => format!("parameter {name:?}"),
            None => format!("parameter {} ({:#x})", self.meta, self.meta.tensor_impl),
        }
    }
}

/// Stands between the parts of a line.
const SEPARATOR: char = '\u{1f}';

/// What a plan depends on in a trace: a line of text for each call that is not constant, and one for the results. A line is
/// the operator and its arguments, with separators between.
#[derive(Clone, Debug, Default)]
struct Recorded {
    text: String,
}

impl Recorded {
    fn of(trace: &Trace) -> Result<Recorded, Error> {
        let mut writer = Writer { trace, text: String::new(), numbers: FxHashMap::default() };
        let mut contents = FxHashMap::default();
        for (at, event) in trace.events.iter().enumerate().filter(|(_, event)| !event.constant) {
            writer.event(at, event, &mut contents)?;
        }
        writer.text.push_str("return");
        for &output in &trace.outputs {
            writer.text.push(SEPARATOR);
            writer.tensor(output, trace.events.len(), &mut contents)?;
        }
        Ok(Recorded { text: writer.text })
    }

    /// The same for a call of which some inputs are tensors of the model: there they are inputs wherever the model reads them.
    fn with_inputs(&self, own: &[(usize, OwnTensor<'_>)]) -> Cow<'_, Recorded> {
        let mut text = Cow::Borrowed(self.text.as_str());
        for (input, tensor) in own {
            let (name, input) = (tensor.text(), format!("input {input}"));
            if text.contains(&name) {
                text = Cow::Owned(text.replace(&name, &input));
            }
        }
        match text {
            Cow::Borrowed(_) => Cow::Borrowed(self),
            Cow::Owned(text) => Cow::Owned(Recorded { text }),
        }
    }

    /// The first line in which `other`, which is of a later call, differs.
    fn difference(&self, other: &Recorded) -> Option<String> {
        if self.text == other.text {
            return None;
        }
        let (mut then, mut now) = (self.text.split('\n'), other.text.split('\n'));
        let mut call = 0;
        loop {
            call += 1;
            match (then.next(), now.next()) {
                (Some(then), Some(now)) if then == now => {}
                (Some(then), Some(now)) => return Some(line_difference(call, then, now)),
                (None, None) => return None,
                (then, now) => {
                    let shown =
                        |line: Option<&str>| line.map_or(String::from("nothing"), |l| show(l, |_| true));
                    return Some(format!("call {call}: {} was {}", shown(now), shown(then)));
                }
            }
        }
    }
}

/// A line for people: arguments that are alike in both are left out where the operator is the same.
fn line_difference(call: usize, then: &str, now: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) =
        (then.split(SEPARATOR).collect(), now.split(SEPARATOR).collect());
    let alike = old.len() == new.len() && old.first() == new.first();
    let differs = |at: usize| !alike || old.get(at) != new.get(at);
    format!("call {call}: {} was {}", show(now, differs), show(then, differs))
}

fn show(line: &str, whole: impl Fn(usize) -> bool) -> String {
    let mut parts = line.split(SEPARATOR);
    let operator = parts.next().unwrap_or_default();
    let arguments: Vec<&str> =
        parts.enumerate().map(|(at, part)| if whole(at + 1) { part } else { ".." }).collect();
    format!("{operator}({})", arguments.join(", "))
}

type Contents = FxHashMap<(TensorId, usize), String>;

struct Writer<'a> {
    trace: &'a Trace,
    text: String,
    /// Numbers of computed tensors, in the order in which the text names them.
    numbers: FxHashMap<TensorId, usize>,
}

impl Writer<'_> {
    fn event(&mut self, at: usize, event: &Event, contents: &mut Contents) -> Result<(), Error> {
        self.text.push_str(&event.op);
        if !event.overload.is_empty() {
            let _ = write!(self.text, ".{}", event.overload);
        }
        for arg in &event.args {
            self.text.push(SEPARATOR);
            self.arg(arg, at, contents)?;
        }
        self.text.push('\n');
        for out in event.outs.iter().flat_map(Arg::tensors) {
            self.number(out);
        }
        Ok(())
    }

    fn arg(&mut self, arg: &Arg, at: usize, contents: &mut Contents) -> Result<(), Error> {
        match arg {
            Arg::Tensor(t) => return self.tensor(*t, at, contents),
            Arg::Tensors(list) => {
                self.text.push('[');
                for (position, t) in list.iter().enumerate() {
                    if position > 0 {
                        self.text.push_str(", ");
                    }
                    match t {
                        Some(t) => self.tensor(*t, at, contents)?,
                        None => self.text.push_str("None"),
                    }
                }
                self.text.push(']');
            }
            Arg::None => self.text.push_str("None"),
            Arg::Bool(b) => self.show(b),
            Arg::Int(i) => self.show(i),
            Arg::Float(x) => self.show(format_args!("{x:?}")),
            Arg::Complex(re, im) => self.show(format_args!("{re:?}+{im:?}i")),
            Arg::Str(s) => self.show(format_args!("{s:?}")),
            Arg::Ints(list) => self.show(format_args!("{list:?}")),
            Arg::Floats(list) => self.show(format_args!("{list:?}")),
            Arg::Bools(list) => self.show(format_args!("{list:?}")),
            Arg::DType(d) => self.show(tilefuse_fusion::DType::from_scalar_type(*d)),
            Arg::Layout(l) => self.show(format_args!("layout {l}")),
            Arg::MemoryFormat(m) => self.show(format_args!("memory format {m}")),
            Arg::Device { kind, index } => self.show(format_args!("device {kind}:{index}")),
            Arg::Generator => self.text.push_str("a generator"),
            Arg::Other(what) => self.show(format_args!("{what:?}")),
        }
        Ok(())
    }

    fn show(&mut self, value: impl Display) {
        let _ = write!(self.text, "{value}");
    }

    /// Names a tensor as an argument of the event `at` has it.
    fn tensor(&mut self, t: TensorId, at: usize, contents: &mut Contents) -> Result<(), Error> {
        let Some(info) = self.trace.info(t) else {
            self.text.push('?');
            return Ok(());
        };
        let version = self.trace.constant_version(t, at);
        let storage = self.trace.storages.get(info.storage.0 as usize);
        let always = storage.is_some_and(|s| s.constant_until == Some(usize::MAX));
        match info.origin {
            Origin::Input(index) => self.show(format_args!("input {index}")),
            // Contents that later become computed belong to one buffer among others.
            _ if version.is_some() && !always => {
                let number = self.number(t);
                self.show(format_args!("%{number} = "));
            }
            _ if version.is_some() => {}
            Origin::Param => self.param(t, &info.meta),
            Origin::Alias(root) => {
                let (sizes, strides, offset) = (info.meta.sizes(), info.meta.strides(), info.meta.offset);
                self.show(format_args!("{sizes:?} by {strides:?} at {offset} of "));
                return self.tensor(root, at, contents);
            }
            Origin::Event(_) | Origin::Transient => {
                let number = self.number(t);
                self.show(format_args!("%{number}"));
            }
        }
        if let Some(version) = version {
            if let Entry::Vacant(vacant) = contents.entry((t, version)) {
                vacant.insert(self.contents(t, at)?);
            }
            self.text.push_str(contents.get(&(t, version)).map_or("", String::as_str));
        }
        Ok(())
    }

    fn number(&mut self, t: TensorId) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(t).or_insert(next)
    }

    /// A parameter by its name, or by its identity: a plan keeps its tensor alive, so that no other has the same.
    fn param(&mut self, t: TensorId, meta: &Meta) {
        let known = self.trace.params.iter().find(|(param, _)| *param == t);
        let name = known.and_then(|(_, name)| name.as_deref());
        self.text.push_str(&OwnTensor { name, meta }.text());
    }

    fn contents(&self, t: TensorId, at: usize) -> Result<String, Error> {
        match self.trace.constant(t, at)? {
            Some(tensor) => digest(&tensor),
            None => Ok(String::from("a constant")),
        }
    }
}

/// The contents of a constant: the value of a single element, or a digest of several.
fn digest(tensor: &Tensor) -> Result<String, Error> {
    let meta = Meta::of(tensor)?;
    let size = element_size(meta.dtype);
    if !meta.flags.is_plain() || size == 0 {
        return Ok(format!("{meta}"));
    }
    let failed = |error: tch::TchError| Error::Torch(error.to_string());
    let host = tch::no_grad(|| tensor.f_to_device(tch::Device::Cpu)?.f_contiguous()).map_err(failed)?;
    let at = Meta::of(&host)?;
    let bytes = if at.numel == 0 || at.data == 0 {
        &[]
    } else {
        // SAFETY: the tensor is alive, on the host and row-major, so this many bytes lie at its address.
        unsafe { std::slice::from_raw_parts(at.data as *const u8, at.numel as usize * size) }
    };
    if at.numel == 1 && size <= 8 {
        let value = host.f_reshape([1i64]).and_then(|t| t.f_double_value(&[0])).map_err(failed)?;
        let bits = bytes.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        // Numbers that `f64` does not tell apart, NaN among them, differ in their bits.
        let exact =
            if value.is_finite() && value.abs() < 1e15 { String::new() } else { format!(" {bits:#x}") };
        return Ok(format!("{meta} = {value:?}{exact}"));
    }
    let hash = blake3::hash(bytes).to_hex();
    Ok(format!("{meta} with contents {}", &hash[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(lines: &[&[&str]]) -> Recorded {
        let separator = SEPARATOR.to_string();
        let lines: Vec<String> = lines.iter().map(|parts| parts.join(&separator)).collect();
        Recorded { text: lines.join("\n") }
    }

    #[test]
    fn the_first_difference_is_shown_without_what_is_alike() {
        let base =
            recorded(&[&["aten::relu", "input 0"], &["aten::mul.Scalar", "%0", "2.0"], &["return", "%1"]]);
        let other =
            recorded(&[&["aten::relu", "input 0"], &["aten::mul.Scalar", "%0", "3.0"], &["return", "%1"]]);
        let shorter = recorded(&[&["aten::relu", "input 0"], &["return", "%0"]]);
        let said = |other: &Recorded| base.difference(other);
        assert_eq!(said(&base), None);
        let scalar = "call 2: aten::mul.Scalar(.., 3.0) was aten::mul.Scalar(.., 2.0)";
        assert_eq!(said(&other).as_deref(), Some(scalar));
        assert_eq!(said(&shorter).as_deref(), Some("call 2: return(%0) was aten::mul.Scalar(%0, 2.0)"));
    }

    #[test]
    fn calls_are_due_by_the_policy() {
        let due = |policy: Audit| (1..20).filter(|&call| is_due(policy, call)).collect::<Vec<u64>>();
        assert_eq!(due(Audit::Never), Vec::<u64>::new());
        assert_eq!(due(Audit::Every(0)), Vec::<u64>::new());
        assert_eq!(due(Audit::Exponential), [2, 4, 8, 16]);
        assert_eq!(due(Audit::Every(6)), [6, 12, 18]);
        assert_eq!("7".parse(), Ok(Audit::Every(7)));
        assert!("often".parse::<Audit>().is_err());
    }
}
