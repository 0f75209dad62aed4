//! From a trace of libtorch calls to the planner's recording.

use rustc_hash::FxHashMap;
use tch::Tensor;
use tilefuse_block::Literal;
use tilefuse_fusion as fusion;

use crate::Error;
use crate::torch::{self, CallSite, Event, Origin, Trace};

/// A recording, and the tensors that its parameters and constants stand for.
pub(crate) struct Converted {
    pub(crate) recording: fusion::Recording,
    /// Live tensors of the model, by slot.
    pub(crate) params: Vec<Tensor>,
    /// Values, by slot.
    pub(crate) consts: Vec<Tensor>,
    /// The [`scope`](crate::scope) of each call.
    pub(crate) scopes: Vec<String>,
    /// The modules of a TorchScript file that it was called in, see [`Event::script`].
    pub(crate) scripts: Vec<String>,
    /// Where each call was made, if that was asked for.
    pub(crate) sites: Vec<CallSite>,
}

/// Converts a trace that has no refusals.
pub(crate) fn convert(trace: &Trace) -> Result<Converted, Error> {
    let mut converter = Converter {
        trace,
        out: Converted {
            recording: fusion::Recording::default(),
            params: Vec::new(),
            consts: Vec::new(),
            scopes: Vec::new(),
            scripts: Vec::new(),
            sites: Vec::new(),
        },
        known: FxHashMap::default(),
        bases: FxHashMap::default(),
        parts: FxHashMap::default(),
    };
    converter.run()?;
    Ok(converter.out)
}

/// The value of a tensor of rank 0, of an element type that kernels know.
fn literal(tensor: &Tensor) -> Option<Literal> {
    let meta = torch::Meta::of(tensor).ok()?;
    let elem = fusion::DType::from_scalar_type(meta.dtype).elem()?;
    if !meta.sizes().is_empty() || !meta.flags.is_plain() {
        return None;
    }
    Some(match elem.is_float() {
        true => Literal::float(elem, tensor.f_double_value(&[]).ok()?),
        false => Literal::int(elem, tensor.f_int64_value(&[]).ok()?),
    })
}

struct Converter<'a> {
    trace: &'a Trace,
    out: Converted,
    /// Tensors that have a place in the recording, by tensor and, for constants, version.
    known: FxHashMap<(torch::TensorId, Option<usize>), fusion::TensorId>,
    /// Storages of constants that several results share, as flat tensors.
    bases: FxHashMap<torch::StorageId, fusion::TensorId>,
    /// Tensors that no operator made and that are views of those, of the model's own tensors, or of computed ones.
    parts: FxHashMap<torch::TensorId, fusion::TensorId>,
}

impl Converter<'_> {
    fn run(&mut self) -> Result<(), Error> {
        for &input in &self.trace.inputs {
            let id = self.tensor(input, 0)?;
            self.out.recording.inputs.push(id);
        }
        for (position, event) in self.trace.events.iter().enumerate() {
            if !event.constant {
                self.call(position, event)?;
            }
        }
        for &output in &self.trace.outputs {
            let id = self.output(output)?;
            self.out.recording.outputs.push(id);
        }
        Ok(())
    }

    /// The event by which the contents of a constant tensor become computed, if they do and `event` has a part in
    /// it: it writes the tensor or makes a view of it.
    fn becomes_computed(&self, tensor: torch::TensorId, event: usize) -> Option<usize> {
        let storage = |t: torch::TensorId| self.trace.info(t).map(|i| i.storage);
        let of = storage(tensor)?;
        let until =
            self.trace.storages.get(of.0 as usize)?.constant_until.filter(|&until| until != usize::MAX)?;
        let event = self.trace.events.get(event)?;
        let written = event.writes.iter().filter_map(|&w| event.args.get(w));
        let mut touched = event.outs.iter().chain(written).flat_map(torch::Arg::tensors);
        touched.any(|t| storage(t) == Some(of)).then_some(until)
    }

    fn call(&mut self, position: usize, event: &Event) -> Result<(), Error> {
        let schema = self.trace.schema(event);
        let mut args = Vec::with_capacity(event.args.len());
        for (at, arg) in event.args.iter().enumerate() {
            let name = schema.and_then(|s| s.args.get(at)).map_or_else(String::new, |a| a.name.clone());
            args.push((name, self.arg(arg, position)?));
        }
        let index = self.out.recording.calls.len() as u32;
        let mut results = Vec::new();
        for out in &event.outs {
            match out {
                torch::Arg::Tensor(t) => results.push(Some(self.result(*t, index)?)),
                torch::Arg::Tensors(list) => {
                    for t in list {
                        results.push(match t {
                            Some(t) => Some(self.result(*t, index)?),
                            None => None,
                        });
                    }
                }
                _ => results.push(None),
            }
        }
        if let Some(kernel) = self.custom(event) {
            self.out.recording.kernels.insert(event.call.0, kernel);
        }
        self.out.scopes.push(event.scope.clone());
        self.out.scripts.push(event.script.clone());
        self.out.sites.push(event.site.clone());
        self.out.recording.calls.push(fusion::Call {
            op: event.op.clone(),
            overload: event.overload.clone(),
            args,
            results,
            writes: event.writes.clone(),
            random: event.random,
            replay: event.call.0,
        });
        Ok(())
    }

    /// The kernel of a call of an operator that a user registered.
    fn custom(&self, event: &Event) -> Option<fusion::MaybeKernel> {
        let definition = crate::operator::definition(&event.op)?;
        let metas = |args: &[torch::Arg]| -> Option<Vec<torch::Meta>> {
            args.iter().flat_map(torch::Arg::tensors).map(|t| Some(self.trace.info(t)?.meta)).collect()
        };
        let (inputs, outputs) = (metas(&event.args)?, metas(&event.outs)?);
        let kernel = crate::operator::custom_kernel(&definition, &inputs, &outputs);
        let remedy = "a launch of a kernel that plans can make themselves: see `Operator`";
        Some(kernel.map(std::sync::Arc::new).map_err(|reason| fusion::Declined::new(reason, remedy)))
    }

    fn arg(&mut self, arg: &torch::Arg, event: usize) -> Result<fusion::Arg<fusion::TensorId>, Error> {
        use torch::Arg as From;
        Ok(match arg {
            From::None => fusion::Arg::None,
            From::Tensor(t) => fusion::Arg::Tensor(self.tensor(*t, event)?),
            From::Tensors(list) => {
                let tensors = list.iter().map(|t| t.map(|t| self.tensor(t, event)).transpose());
                fusion::Arg::Tensors(tensors.collect::<Result<_, _>>()?)
            }
            From::Bool(b) => fusion::Arg::Bool(*b),
            From::Int(i) => fusion::Arg::Int(*i),
            From::Float(x) => fusion::Arg::Float(*x),
            From::Str(s) => fusion::Arg::Str(s.clone()),
            From::Ints(list) => fusion::Arg::Ints(list.clone()),
            From::Floats(list) => fusion::Arg::Floats(list.clone()),
            From::Bools(list) => fusion::Arg::Bools(list.clone()),
            From::DType(d) => fusion::Arg::DType(fusion::DType::from_scalar_type(*d)),
            From::Layout(n) | From::MemoryFormat(n) => fusion::Arg::Int(i64::from(*n)),
            From::Device { kind, index } => fusion::Arg::Device(device(*kind, *index)),
            From::Complex(re, im) => fusion::Arg::Other(format!("{re}+{im}i")),
            From::Generator => fusion::Arg::Other(String::from("a generator")),
            From::Other(what) => fusion::Arg::Other(what.clone()),
        })
    }

    /// The recording's tensor for a result of the model: one of the model's own is returned itself, though its value may
    /// be compiled in elsewhere.
    fn output(&mut self, tensor: torch::TensorId) -> Result<fusion::TensorId, Error> {
        let info = self.trace.info(tensor).ok_or_else(|| missing(tensor))?;
        let written = self.trace.storages.get(info.storage.0 as usize).is_none_or(|s| !s.writes.is_empty());
        if info.origin == Origin::Param && !written && !self.known.contains_key(&(tensor, None)) {
            return self.param(tensor);
        }
        let end = self.trace.events.len();
        if self.trace.constant_version(tensor, end).is_some() && info.meta.numel > 0 {
            if let Some(&known) = self.parts.get(&tensor) {
                return Ok(known);
            }
            if let Some(base) = self.base(tensor, end)? {
                return self.part(tensor, base, end);
            }
        }
        self.tensor(tensor, end)
    }

    /// What a constant result shares its memory with: a tensor of the model's own, or other results.
    fn base(&mut self, tensor: torch::TensorId, end: usize) -> Result<Option<fusion::TensorId>, Error> {
        let info = self.trace.info(tensor).ok_or_else(|| missing(tensor))?;
        let storage = info.storage;
        let shares = |t: &torch::TensorId| self.trace.info(*t).is_some_and(|other| other.storage == storage);
        let mut all = (0..self.trace.tensors.len() as u32).map(torch::TensorId).filter(shares);
        let is_own = |t: &torch::TensorId| self.trace.info(*t).is_some_and(|i| i.origin == Origin::Param);
        if let Some(own) = all.find(is_own) {
            let known = self.known.get(&(own, None)).copied();
            return known.map_or_else(|| self.param(own), Ok).map(Some);
        }
        if self.trace.outputs.iter().filter(|t| shares(t)).count() < 2 {
            return Ok(None);
        }
        if let Some(&known) = self.bases.get(&storage) {
            return Ok(Some(known));
        }
        let value = self.trace.constant(tensor, end)?.ok_or_else(|| missing(tensor))?;
        let meta = torch::Meta::of(&value)?;
        let count = meta.nbytes / torch::element_size(meta.dtype).max(1) as i64;
        let flat = torch::as_strided_of(&value, &[count], &[1], 0)?;
        let slot = self.out.consts.len() as u32;
        let id = self.entry(&torch::Meta::of(&flat)?, fusion::Source::Const(slot), u64::from(storage.0));
        self.out.consts.push(flat);
        self.bases.insert(storage, id);
        Ok(Some(id))
    }

    /// A view of a base that lies where the tensor does.
    fn part(
        &mut self,
        tensor: torch::TensorId,
        base: fusion::TensorId,
        event: usize,
    ) -> Result<fusion::TensorId, Error> {
        let info = self.trace.info(tensor).ok_or_else(|| missing(tensor))?;
        let of = &self.out.recording.tensors[base.0 as usize];
        let (ty, storage) = (tensor_type(&info.meta), of.storage);
        let lazy =
            info.meta.flags.contains(torch::Flags::CONJ) || info.meta.flags.contains(torch::Flags::NEG);
        if of.ty.dtype != ty.dtype || lazy {
            return Err(Error::Unsupported(String::from("tensors that share memory as different types")));
        }
        let call = self.out.recording.calls.len() as u32;
        let id = self.entry(&info.meta, fusion::Source::Call(call), storage);
        let event = self.trace.events.get(event);
        self.out.scopes.push(event.map_or_else(Default::default, |e| e.scope.clone()));
        self.out.scripts.push(event.map_or_else(Default::default, |e| e.script.clone()));
        self.out.sites.push(event.map_or_else(Default::default, |e| e.site.clone()));
        self.out.recording.calls.push(fusion::Call {
            op: String::from("aten::as_strided"),
            overload: String::new(),
            args: vec![
                (String::from("self"), fusion::Arg::Tensor(base)),
                (String::from("size"), fusion::Arg::Ints(ty.shape.to_vec())),
                (String::from("stride"), fusion::Arg::Ints(ty.strides.to_vec())),
                (String::from("storage_offset"), fusion::Arg::Int(info.meta.offset)),
            ],
            results: vec![Some(id)],
            writes: Vec::new(),
            random: false,
            replay: u32::MAX,
        });
        self.parts.insert(tensor, id);
        Ok(id)
    }

    /// The recording's tensor for one that a call returns.
    fn result(&mut self, tensor: torch::TensorId, call: u32) -> Result<fusion::TensorId, Error> {
        if let Some(&known) = self.known.get(&(tensor, None)) {
            return Ok(known);
        }
        self.add(tensor, None, fusion::Source::Call(call))
    }

    /// The recording's tensor for one that `event` reads.
    fn tensor(&mut self, tensor: torch::TensorId, event: usize) -> Result<fusion::TensorId, Error> {
        let version = self.trace.constant_version(tensor, event);
        let becomes = self.becomes_computed(tensor, event);
        if let (Some(version), None) = (version, becomes) {
            return self.constant(tensor, event, version);
        }
        if let Some(&known) = self.known.get(&(tensor, None)) {
            return Ok(known);
        }
        let info = self.trace.info(tensor).ok_or_else(|| missing(tensor))?;
        if let Origin::Input(index) = info.origin {
            return self.add(tensor, None, fusion::Source::Input(index as u32));
        }
        if let (Origin::Alias(root), None) = (info.origin, version) {
            if let Some(&known) = self.parts.get(&tensor) {
                return Ok(known);
            }
            let base = self.tensor(root, event)?;
            return self.part(tensor, base, event);
        }
        match (version, becomes) {
            (Some(_), Some(until)) => {
                let slot = self.value(tensor, until)?;
                self.add(tensor, None, fusion::Source::Const(slot))
            }
            _ => self.param(tensor),
        }
    }

    /// The slot of the value that a constant tensor has for `event`.
    fn value(&mut self, tensor: torch::TensorId, event: usize) -> Result<u32, Error> {
        let value = self.trace.constant(tensor, event)?.ok_or_else(|| missing(tensor))?;
        let slot = self.out.consts.len() as u32;
        self.out.recording.literals.extend(literal(&value).map(|literal| (slot, literal)));
        self.out.consts.push(value);
        Ok(slot)
    }

    fn constant(
        &mut self,
        tensor: torch::TensorId,
        event: usize,
        version: usize,
    ) -> Result<fusion::TensorId, Error> {
        if let Some(&known) = self.known.get(&(tensor, Some(version))) {
            return Ok(known);
        }
        let slot = self.value(tensor, event)?;
        self.add(tensor, Some(version), fusion::Source::Const(slot))
    }

    fn param(&mut self, tensor: torch::TensorId) -> Result<fusion::TensorId, Error> {
        let live = self.trace.info(tensor).is_some_and(|i| i.origin == Origin::Param);
        let handle = self.trace.tensor(tensor).filter(|_| live).ok_or_else(|| missing(tensor))?;
        let slot = self.out.params.len() as u32;
        let named = self.trace.params.iter().find(|(t, _)| *t == tensor).and_then(|(_, name)| name.clone());
        self.out.params.push(handle.shallow_clone());
        let name = named.unwrap_or_else(|| format!("param{slot}"));
        self.add(tensor, None, fusion::Source::Param(slot, name))
    }

    fn add(
        &mut self,
        tensor: torch::TensorId,
        version: Option<usize>,
        source: fusion::Source,
    ) -> Result<fusion::TensorId, Error> {
        let info = self.trace.info(tensor).ok_or_else(|| missing(tensor))?;
        let storage = match version {
            // Constants of different versions are different values; none of them is written.
            Some(_) => u64::from(u32::MAX) + 1 + self.out.recording.tensors.len() as u64,
            None => u64::from(info.storage.0),
        };
        let id = self.entry(&info.meta, source, storage);
        self.known.insert((tensor, version), id);
        Ok(id)
    }

    /// A new tensor of the recording.
    fn entry(&mut self, meta: &torch::Meta, source: fusion::Source, storage: u64) -> fusion::TensorId {
        let id = fusion::TensorId(self.out.recording.tensors.len() as u32);
        let (ty, storage_offset, plain) = (tensor_type(meta), meta.offset, meta.flags.is_plain());
        self.out.recording.tensors.push(fusion::TensorInfo { ty, source, storage, storage_offset, plain });
        id
    }
}

fn missing(tensor: torch::TensorId) -> Error {
    Error::Internal(format!("the trace has no value for tensor {}", tensor.0))
}

/// The type of a tensor as the planner names it. The elements of a tensor that is no plain strided memory (sparse,
/// quantised, lazily conjugated, ...) are of a type that libtorch alone handles, so that no kernel addresses them.
pub(crate) fn tensor_type(meta: &torch::Meta) -> fusion::TensorType {
    let plain = meta.flags.is_plain();
    fusion::TensorType {
        dtype: match plain {
            true => fusion::DType::from_scalar_type(meta.dtype),
            false => fusion::DType::Other(meta.dtype),
        },
        shape: fusion::Dims::from_slice(meta.sizes()),
        strides: fusion::Dims::from_slice(meta.strides()),
        device: device(meta.device.kind, meta.device.index),
    }
}

fn device(kind: i8, index: i8) -> fusion::Device {
    match kind {
        0 => fusion::Device::Cpu,
        1 => fusion::Device::Cuda(u32::try_from(index).unwrap_or(0)),
        other => fusion::Device::Other(other),
    }
}
