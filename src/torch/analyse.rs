//! From what was recorded to a [`Trace`]: which tensors belong to the model, which calls are constant, and why the
//! trace must not be compiled.

use std::collections::{BTreeSet, HashMap, HashSet};

use tch::Tensor;

use super::ffi::{self, check, raw};
use super::handle::Handle;
use super::ops::{ShapeFrom, is_metadata_query, reads_only_metadata, shape_from};
use super::record::{Level, LiveStorage, Recorder, Seen};
use super::trace::snapshot;
use super::{
    Arg, Event, Flags, GlobalState, Meta, Origin, Refusal, RefusalKind, Schema, StorageId, StorageInfo,
    TensorId, TensorInfo, Trace, dtype,
};

/// Turns a finished recording, of a call that returned `outputs`, into a trace.
pub(super) fn finish(recorder: Option<Box<Recorder>>, outputs: &[Tensor]) -> Trace {
    let Some(mut r) = recorder else { return empty() };
    let mut ids = Vec::new();
    for t in outputs {
        match r.see(t, None) {
            Ok(id) => ids.push(id),
            Err(_) if !t.defined() => refuse(&mut r, usize::MAX, "", RefusalKind::Undefined),
            Err(_) => refuse(&mut r, usize::MAX, "", RefusalKind::Internal),
        }
    }
    if r.check_versions().is_err() {
        refuse(&mut r, usize::MAX, "", RefusalKind::Internal);
    }
    // SAFETY: reads a counter.
    if unsafe { ffi::tf_foreign_calls() } != r.foreign_calls {
        refuse(&mut r, usize::MAX, "", RefusalKind::OtherThread);
    }
    find_gradient_flags(&mut r, &ids);
    let others = Others::of(&r, &ids);
    let held: Vec<bool> = others.handles.iter().map(|&n| n > 0).collect();
    name_origins(&mut r, &held, &ids);
    let facts = replay(&mut r);
    let keeps_unknown = records_gradients(&r);
    let cached = if keeps_unknown { Vec::new() } else { find_kept(&mut r, &held, &facts) };
    if !keeps_unknown {
        find_kept_inputs(&mut r, &others);
        find_kept_memory(&mut r, &others, &facts);
    }
    find_dead_host_copies(&mut r, &ids);
    keep_returned_constants(&mut r, &ids, &facts);
    Trace { keeps_unknown, ..into_trace(*r, ids, cached, facts) }
}

fn empty() -> Trace {
    Trace {
        tensors: Vec::new(),
        storages: Vec::new(),
        events: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        params: Vec::new(),
        assumed: Vec::new(),
        cached: Vec::new(),
        keeps_unknown: false,
        refusals: vec![Refusal {
            event: 0,
            op: String::new(),
            tensor: String::new(),
            kind: RefusalKind::Internal,
        }],
        schemas: Vec::new(),
        calls: Vec::new(),
        kept: Vec::new(),
    }
}

fn refuse(r: &mut Recorder, event: usize, op: &str, kind: RefusalKind) {
    let event = event.min(r.events.len());
    r.refusals.push(Refusal { event, op: op.into(), tensor: String::new(), kind });
}

/// Refuses the trace for a tensor, at the first event that takes it.
fn refuse_tensor(r: &mut Recorder, tensor: TensorId, kind: RefusalKind) {
    let takes = |e: &Event| e.args.iter().flat_map(Arg::tensors).any(|t| t == tensor);
    let event = r.events.iter().position(takes);
    let op = event.and_then(|at| r.events.get(at)).map_or(String::new(), |e| e.op.clone());
    let tensor = r.seen.get(tensor.0 as usize).map_or_else(String::new, |s| s.meta.to_string());
    r.refusals.push(Refusal { event: event.unwrap_or(r.events.len()), op, tensor, kind });
}

/// The identities of the gradients that inputs have.
fn gradients_of_inputs(r: &Recorder) -> HashSet<usize> {
    let gradient = |input: &TensorId| {
        let input = r.tensor(*input).filter(Tensor::is_leaf)?;
        Meta::of(&input.f_grad().ok().filter(Tensor::defined)?).ok()
    };
    r.inputs.iter().filter_map(gradient).map(|meta| meta.tensor_impl).collect()
}

/// Refuses a model that sets or clears `requires_grad` of a tensor that is there before or after the call, or that records gradients
/// itself. Where they are recorded for it, operators do so, too.
fn find_gradient_flags(r: &mut Recorder, outputs: &[TensorId]) {
    if records_gradients(r) {
        return;
    }
    let ids = (0..).map(TensorId).zip(r.seen.iter().zip(&r.handles));
    let lasts =
        ids.filter(|(id, (seen, _))| !matches!(seen.origin, Some(Origin::Event(_))) || outputs.contains(id));
    let requires = |meta: &Meta| meta.flags.contains(Flags::REQUIRES_GRAD);
    let changed = |(_, (seen, handle)): &(TensorId, (&Seen, &Handle))| {
        let now = handle.get().and_then(|t| Meta::of(&t).ok());
        let was = !matches!(seen.origin, Some(Origin::Event(_))) && requires(&seen.meta);
        now.is_some_and(|now| requires(&now) != was)
    };
    if lasts.into_iter().any(|of| changed(&of)) {
        refuse(r, usize::MAX, "", RefusalKind::RequiresGrad);
    }
}

/// Who holds tensors and memory besides the recorder, views and the returned results.
pub(super) struct Others {
    /// Of each tensor: handles.
    handles: Vec<i64>,
    /// Of each storage: tensors that no operator returned or took, and that none of those is a view of.
    tensors: Vec<i64>,
}

impl Others {
    pub(super) fn of(r: &Recorder, outputs: &[TensorId]) -> Self {
        let alive: Vec<_> = r.handles.iter().map(Handle::get).collect();
        let metas: Vec<_> = alive.iter().map(|t| Meta::of(t.as_ref()?).ok()).collect();
        let seen: HashSet<usize> = metas.iter().flatten().map(|m| m.tensor_impl).collect();
        let mut tensors: Vec<i64> = r.storages.iter().map(|s| s.weak.storage_holders()).collect();
        let mut views: HashMap<usize, i64> = HashMap::new();
        let mut parents: HashMap<usize, i64> = HashMap::new();
        for ((i, t), own) in alive.iter().enumerate().zip(&r.seen) {
            let Some(t) = t else { continue };
            let Some(tensors) = tensors.get_mut(own.storage.0 as usize) else { continue };
            *tensors -= 1;
            let mut base = std::ptr::null_mut();
            // SAFETY: a live tensor, and `base` has room for the answer.
            if check(unsafe { ffi::tf_base(raw(t), &raw mut base) }).is_ok() && !base.is_null() {
                let of = views.entry(base as usize).or_default();
                *tensors -= i64::from(*of == 0 && !seen.contains(&(base as usize)));
                *of += 1;
                for parent in held_parents(r, i) {
                    *parents.entry(parent).or_default() += 1;
                }
            }
        }
        let handles = metas.iter().zip(&r.handles).enumerate().map(|(i, (m, handle))| {
            let Some(m) = m else { return i64::from(alive.get(i).is_some_and(Option::is_some)) };
            // A returned tensor is held by the result and once more by the list of outputs.
            let returned = outputs.iter().filter(|o| o.0 as usize == i).count() as i64;
            m.use_count
                - handle.own_references()
                - views.get(&m.tensor_impl).copied().unwrap_or(0)
                - parents.get(&i).copied().unwrap_or(0)
                - 2 * returned
        });
        Self { handles: handles.collect(), tensors }
    }

    /// Of a tensor, and of its storage.
    fn of_tensor(&self, r: &Recorder, t: TensorId) -> Option<[i64; 2]> {
        let storage = r.seen.get(t.0 as usize)?.storage;
        Some([*self.handles.get(t.0 as usize)?, *self.tensors.get(storage.0 as usize)?])
    }
}

/// The tensors that a view holds besides its base: what it or a parent of its is a view of in another dtype, conjugated or negated.
/// libtorch keeps them for the inverse of such a view.
fn held_parents(r: &Recorder, view: usize) -> Vec<usize> {
    let parent = |seen: &Seen| -> Option<usize> {
        let Some(Origin::Event(event)) = seen.origin else { return None };
        let mut args = r.events.get(event)?.args.iter().flat_map(Arg::tensors);
        args.find(|t| storage_of(&r.seen, *t) == Some(seen.storage)).map(|t| t.0 as usize)
    };
    let kind = |seen: &Seen| [Flags::CONJ, Flags::NEG].map(|flag| seen.meta.flags.contains(flag));
    let mut held = Vec::new();
    let mut at = view;
    while let Some(seen) = r.seen.get(at)
        && let Some(before) = parent(seen).filter(|before| *before < at)
        && let Some(of) = r.seen.get(before)
    {
        if of.meta.dtype != seen.meta.dtype || kind(of) != kind(seen) {
            held.push(before);
        }
        at = before;
    }
    held
}

/// Decides where the tensors that no operator returned come from.
fn name_origins(r: &mut Recorder, held: &[bool], outputs: &[TensorId]) {
    let gradients = gradients_of_inputs(r);
    for i in 0..r.seen.len() {
        let Some(seen) = r.seen.get(i) else { continue };
        if seen.origin.is_some() {
            continue;
        }
        let storage = r.storages.get(seen.storage.0 as usize);
        let alias = storage.map(|s| s.root).filter(|root| root.0 as usize != i);
        let maker = storage.filter(|s| s.level > Level::Constant).and_then(|s| s.created_by);
        let number = seen.meta.numel == 1 && seen.meta.sizes().is_empty() && seen.meta.device.is_cpu();
        let returned = outputs.contains(&TensorId(i as u32));
        let held = held.get(i) == Some(&true);
        let origin = match alias {
            // What the call computes is not the model's before it.
            Some(root) if maker.is_some() => {
                if let Some(maker) = maker.filter(|_| held && !records_gradients(r)) {
                    refuse_kept(r, maker);
                }
                Origin::Alias(root)
            }
            _ if gradients.contains(&seen.meta.tensor_impl) => {
                refuse_tensor(r, TensorId(i as u32), RefusalKind::InputGradient);
                Origin::Param
            }
            _ if held => Origin::Param,
            Some(root) => Origin::Alias(root),
            None if number && !returned => Origin::Transient,
            None => {
                refuse_tensor(r, TensorId(i as u32), RefusalKind::UnknownOrigin);
                Origin::Param
            }
        };
        if let Some(seen) = r.seen.get_mut(i) {
            seen.origin = Some(origin);
        }
    }
}

/// What contents depend on, besides constants and sizes.
#[derive(Clone, Debug, PartialEq)]
enum Depends {
    Nothing,
    /// These tensors of the model, which the call does not write.
    Model(BTreeSet<TensorId>),
    /// Inputs, random numbers, or tensors of the model that the call writes.
    Call,
}

impl Depends {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Depends::Nothing, d) | (d, Depends::Nothing) => d,
            (Depends::Model(mut a), Depends::Model(b)) => {
                a.extend(b);
                Depends::Model(a)
            }
            _ => Depends::Call,
        }
    }
}

/// What the replay finds out about a storage.
struct Contents {
    depends: Depends,
    constant_until: Option<usize>,
}

/// What the replay finds out.
struct Facts {
    /// By storage.
    contents: Vec<Contents>,
    /// Tensors of the model whose present values went into the trace.
    assumed: BTreeSet<TensorId>,
}

impl Facts {
    fn of(r: &Recorder) -> Self {
        let nothing = |s: &LiveStorage| {
            if s.dense {
                Contents { depends: Depends::Nothing, constant_until: Some(usize::MAX) }
            } else {
                Contents { depends: Depends::Call, constant_until: None }
            }
        };
        let mut facts = Self { contents: r.storages.iter().map(nothing).collect(), assumed: BTreeSet::new() };
        for (id, seen) in (0..).map(TensorId).zip(&r.seen) {
            let Some(storage) = r.storages.get(seen.storage.0 as usize) else { continue };
            // An operator may hand out what somebody held before; its contents are still the operator's.
            if storage.created_by.is_some() {
                continue;
            }
            let written = !storage.writes.is_empty() || seen.meta.version < 0;
            match seen.origin {
                Some(Origin::Input(_)) => facts.taint(seen.storage, &Depends::Call, None),
                Some(Origin::Param) if written => facts.taint(seen.storage, &Depends::Call, None),
                Some(Origin::Param) if is_foreign_number(r, id, seen) => {
                    facts.assumed.insert(id);
                }
                Some(Origin::Param) => {
                    facts.taint(seen.storage, &Depends::Model(BTreeSet::from([id])), None);
                }
                _ => {}
            }
        }
        facts
    }

    fn is_constant(&self, id: StorageId) -> bool {
        self.contents.get(id.0 as usize).is_some_and(|c| c.depends == Depends::Nothing)
    }

    /// Adds to what the contents of a storage depend on, from event `by` on.
    fn taint(&mut self, id: StorageId, depends: &Depends, by: Option<usize>) {
        let Some(c) = self.contents.get_mut(id.0 as usize).filter(|_| *depends != Depends::Nothing) else {
            return;
        };
        if c.depends == Depends::Nothing {
            c.constant_until = by;
        }
        c.depends = std::mem::replace(&mut c.depends, Depends::Nothing).join(depends.clone());
    }

    /// What the data of these tensors depends on.
    fn depends<'a>(&self, r: &Recorder, args: impl Iterator<Item = &'a Arg>) -> Depends {
        let of = |t: TensorId| {
            let storage = storage_of(&r.seen, t).and_then(|s| self.contents.get(s.0 as usize));
            storage.map_or(Depends::Call, |c| c.depends.clone())
        };
        args.flat_map(Arg::tensors).map(of).fold(Depends::Nothing, Depends::join)
    }
}

/// Follows constant contents through the events in order: marks constant events, and refuses reads of data.
fn replay(r: &mut Recorder) -> Facts {
    let mut facts = Facts::of(r);
    let mut events = std::mem::take(&mut r.events);
    for (index, event) in events.iter_mut().enumerate() {
        let Some(schema) = r.schemas.get(event.schema) else { continue };
        let data = (0..event.args.len()).filter(|&i| !reads_only_metadata(schema, i));
        let depends = facts.depends(r, data.filter_map(|i| event.args.get(i)));
        let depends = if event.random { Depends::Call } else { depends };
        if let Some((kind, read)) = data_read(event, schema, r, &facts) {
            match read {
                Depends::Nothing => {}
                Depends::Model(tensors) => facts.assumed.extend(tensors),
                Depends::Call => {
                    let op = event.op.clone();
                    r.refusals.push(Refusal { event: index, op, tensor: String::new(), kind });
                }
            }
        }
        let host_only = event.writes.is_empty() && event.outs.iter().all(is_host);
        // A constant is kept by its bytes, which a result of another layout does not have.
        let is_kept = |t: TensorId| {
            storage_of(&r.seen, t).and_then(|s| r.storages.get(s.0 as usize)).is_none_or(|s| s.dense)
        };
        event.constant = match depends {
            Depends::Nothing => event.outs.iter().flat_map(Arg::tensors).all(is_kept),
            Depends::Model(_) => host_only,
            Depends::Call => false,
        };
        for t in event.outs.iter().flat_map(Arg::tensors) {
            let Some(id) = storage_of(&r.seen, t) else { continue };
            if r.storages.get(id.0 as usize).is_some_and(|s| s.created_by == Some(index)) {
                facts.taint(id, &depends, None);
            }
        }
        for id in r.written_storages(event) {
            facts.taint(id, &depends, Some(index));
        }
    }
    unmark_views(&mut events, r, &facts);
    r.events = events;
    facts
}

/// Whether a tensor is a single number on the host that calls take on another device. Kernels there cannot read it, and a
/// model holds few that change, so its value is compiled in.
fn is_foreign_number(r: &Recorder, id: TensorId, seen: &Seen) -> bool {
    let is_foreign = |t: TensorId| r.seen.get(t.0 as usize).is_some_and(|s| !s.meta.device.is_cpu());
    let takes = |e: &&Event| e.args.iter().flat_map(Arg::tensors).any(|t| t == id);
    let lone = seen.name.is_none() && seen.meta.sizes().is_empty() && seen.meta.device.is_cpu();
    lone && r.events.iter().filter(takes).flat_map(|e| &e.args).flat_map(Arg::tensors).any(is_foreign)
}

fn storage_of(seen: &[Seen], t: TensorId) -> Option<StorageId> {
    seen.get(t.0 as usize).map(|s| s.storage)
}

/// A value that left the tensors.
fn is_host(arg: &Arg) -> bool {
    !matches!(arg, Arg::None | Arg::Tensor(_) | Arg::Tensors(_))
}

/// A constant view of something that is written later with computed data has to be followed.
fn unmark_views(events: &mut [Event], r: &Recorder, facts: &Facts) {
    for event in events.iter_mut().filter(|e| e.constant && e.writes.is_empty()) {
        let storages = |args: &[Arg]| -> HashSet<StorageId> {
            args.iter().flat_map(Arg::tensors).filter_map(|t| storage_of(&r.seen, t)).collect()
        };
        let inputs = storages(&event.args);
        event.constant = !storages(&event.outs).iter().any(|s| inputs.contains(s) && !facts.is_constant(*s));
    }
}

/// The data that a call lets out of the tensors, as host values or as a shape: how, and what it depends on.
fn data_read(event: &Event, schema: &Schema, r: &Recorder, facts: &Facts) -> Option<(RefusalKind, Depends)> {
    if (schema.data_dependent || event.outs.iter().any(is_host)) && !is_metadata_query(schema) {
        return Some((RefusalKind::DataRead, facts.depends(r, event.args.iter())));
    }
    let named = |name: &str| schema.args.iter().position(|a| a.name == name).and_then(|i| event.args.get(i));
    let is_mask = |t: &TensorId| {
        r.seen.get(t.0 as usize).is_none_or(|s| matches!(s.meta.dtype, dtype::BOOL | dtype::UINT8))
    };
    let read = match shape_from(schema, &event.args) {
        ShapeFrom::Nothing => return None,
        ShapeFrom::Any => facts.depends(r, event.args.iter()),
        ShapeFrom::Arg(name) => facts.depends(r, named(name).into_iter()),
        ShapeFrom::Masks => {
            let masks = named("indices").into_iter().flat_map(Arg::tensors).filter(is_mask);
            facts.depends(r, masks.map(Arg::Tensor).collect::<Vec<_>>().iter())
        }
    };
    Some((RefusalKind::DataShape, read))
}

/// Whether gradients were recorded, for which libtorch keeps tensors.
fn records_gradients(r: &Recorder) -> bool {
    let needed = || r.seen.iter().any(|s| s.meta.flags.contains(Flags::REQUIRES_GRAD));
    GlobalState::now().is_ok_and(|s| s.grad()) && needed()
}

/// Computed tensors that the model put away would be missing in it after a compiled call. Returns the constants that it
/// put away.
fn find_kept(r: &mut Recorder, held: &[bool], facts: &Facts) -> Vec<TensorId> {
    let mut cached = Vec::new();
    for (i, _) in held.iter().enumerate().filter(|(_, held)| **held) {
        let Some(seen) = r.seen.get(i) else { continue };
        let Some(Origin::Event(e)) = seen.origin else { continue };
        if facts.is_constant(seen.storage) {
            cached.push(TensorId(i as u32));
        } else {
            refuse_kept(r, e);
        }
    }
    cached
}

/// Refuses the trace for what an event made and the model keeps.
fn refuse_kept(r: &mut Recorder, event: usize) {
    let op = r.events.get(event).map_or(String::new(), |e| e.op.clone());
    refuse(r, event, &op, RefusalKind::Escapes);
}

/// An input that the model put away would still be that of the recorded call after a compiled one.
fn find_kept_inputs(r: &mut Recorder, others: &Others) {
    let is_kept = |t: &TensorId| {
        let (before, now) = (r.held_before.as_ref()?.of_tensor(r, *t)?, others.of_tensor(r, *t)?);
        Some(now.iter().zip(before).any(|(now, before)| *now > before))
    };
    let kept: Vec<TensorId> = r.inputs.iter().copied().filter(|t| is_kept(t) == Some(true)).collect();
    kept.into_iter().for_each(|t| refuse_tensor(r, t, RefusalKind::KeepsInput));
}

/// Memory of computed tensors that the model put away by a tensor that no operator returned or took.
fn find_kept_memory(r: &mut Recorder, others: &Others, facts: &Facts) {
    let ids = (0..).map(StorageId).zip(&r.storages).zip(&others.tensors);
    let computed = ids.filter(|((id, s), unseen)| s.dense && **unseen > 0 && !facts.is_constant(*id));
    let makers: Vec<usize> = computed.filter_map(|((_, s), _)| s.created_by).collect();
    makers.into_iter().for_each(|maker| refuse_kept(r, maker));
}

/// Whether a call copies its argument to the host for somebody to look at, if nobody uses the copy: from another device, or
/// to `f64` as for printing. Whoever asks for the memory of a copy is seen doing so.
fn may_be_read(event: &Event, r: &Recorder) -> bool {
    let on_host = |t: TensorId| r.seen.get(t.0 as usize).is_none_or(|s| s.meta.device.is_cpu());
    let from_device = !event.args.first().into_iter().flat_map(Arg::tensors).all(on_host);
    match (event.op.as_str(), event.overload.as_str()) {
        ("aten::to", "device") => true,
        ("aten::to" | "aten::_to_copy", _) => from_device,
        _ => false,
    }
}

/// Whether a call only makes views: a copy of which there are but views is not used.
fn makes_views(event: &Event, r: &Recorder) -> bool {
    let storages = |args: &[Arg]| -> HashSet<StorageId> {
        args.iter().flat_map(Arg::tensors).filter_map(|t| storage_of(&r.seen, t)).collect()
    };
    let made = storages(&event.outs);
    event.writes.is_empty() && !made.is_empty() && made.is_subset(&storages(&event.args))
}

/// A copy to the host that nobody uses was made for somebody to look at.
fn find_dead_host_copies(r: &mut Recorder, outputs: &[TensorId]) {
    let all = r
        .events
        .iter()
        .filter(|e| !makes_views(e, r))
        .flat_map(|e| &e.args)
        .flat_map(Arg::tensors)
        .chain(outputs.iter().copied());
    let used: HashSet<StorageId> = all.filter_map(|t| storage_of(&r.seen, t)).collect();
    let mut found = Vec::new();
    for (index, event) in r.events.iter().enumerate().filter(|(_, e)| !e.constant) {
        if !may_be_read(event, r) {
            continue;
        }
        let outs = event.outs.iter().flat_map(Arg::tensors).filter_map(|t| r.seen.get(t.0 as usize));
        let outs: Vec<_> = outs.collect();
        if outs.iter().any(|s| s.meta.device.is_cpu()) && outs.iter().all(|s| !used.contains(&s.storage)) {
            found.push((index, event.op.clone()));
        }
    }
    for (index, op) in found {
        refuse(r, index, &op, RefusalKind::DataRead);
    }
}

/// Whoever receives a constant may write it.
fn keep_returned_constants(r: &mut Recorder, outputs: &[TensorId], facts: &Facts) {
    for t in outputs {
        let Some(handle) = r.tensor(*t) else { continue };
        let Some((id, storage)) = r.storage(*t) else { continue };
        let version = storage.writes.len();
        if !facts.is_constant(id) || storage.snapshots.last().is_some_and(|(v, _)| *v == version) {
            continue;
        }
        match snapshot(&handle) {
            Ok(copy) => storage.snapshots.push((version, copy)),
            Err(_) => refuse(r, usize::MAX, "", RefusalKind::Internal),
        }
    }
}

fn into_trace(r: Recorder, outputs: Vec<TensorId>, cached: Vec<TensorId>, facts: Facts) -> Trace {
    let is_param = |s: &&Seen| s.origin == Some(Origin::Param);
    let ids = (0..).map(TensorId).zip(&r.seen);
    let params = ids.filter(|(_, s)| is_param(s)).map(|(id, s)| (id, s.name.clone())).collect();
    let version = |t: &TensorId| r.seen.get(t.0 as usize).map_or(-1, |s| s.meta.version);
    let assumed = facts.assumed.iter().map(|t| (*t, version(t))).collect();
    let tensors = r.seen.into_iter().map(|s| TensorInfo {
        origin: s.origin.unwrap_or(Origin::Param),
        storage: s.storage,
        meta: s.meta,
    });
    let storages = r.storages.into_iter().zip(facts.contents).map(|(s, c)| StorageInfo {
        writes: s.writes,
        constant_until: c.constant_until,
        snapshots: s.snapshots,
    });
    Trace {
        tensors: tensors.collect(),
        storages: storages.collect(),
        events: r.events,
        inputs: r.inputs,
        outputs,
        params,
        assumed,
        cached,
        keeps_unknown: false,
        refusals: r.refusals,
        schemas: r.schemas,
        calls: r.calls,
        kept: r.handles.into_iter().map(Handle::into_strong).collect(),
    }
}
