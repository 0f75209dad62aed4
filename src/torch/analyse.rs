//! From what was recorded to a [`Trace`]: which tensors belong to the model, which calls are constant, and why the
//! trace must not be compiled.

use std::collections::{HashMap, HashSet};

use tch::Tensor;

use super::ffi::{self, check, raw};
use super::handle::Handle;
use super::ops::{ShapeFrom, is_metadata_query, reads_only_metadata, shape_from};
use super::record::{LiveStorage, Recorder, Seen};
use super::trace::snapshot;
use super::{
    Arg, Event, Flags, GlobalState, Meta, Origin, Refusal, RefusalKind, Schema, StorageId, StorageInfo,
    TensorId, TensorInfo, Trace,
};

/// Turns a finished recording, of a call that returned `outputs`, into a trace.
pub(super) fn finish(recorder: Option<Box<Recorder>>, outputs: &[Tensor]) -> Trace {
    let Some(mut r) = recorder else { return empty() };
    let mut ids = Vec::new();
    for t in outputs {
        match r.see(t, None) {
            Ok(id) => ids.push(id),
            Err(_) => refuse(&mut r, usize::MAX, "", RefusalKind::Internal),
        }
    }
    // SAFETY: reads a counter.
    if unsafe { ffi::tf_foreign_calls() } != r.foreign_calls {
        refuse(&mut r, usize::MAX, "", RefusalKind::OtherThread);
    }
    let held = held_by_others(&r, &ids);
    name_origins(&mut r, &held, &ids);
    let constants = replay(&mut r);
    find_kept(&mut r, &held, &constants);
    find_dead_host_copies(&mut r, &ids);
    keep_returned_constants(&mut r, &ids, &constants);
    into_trace(*r, ids, constants)
}

fn empty() -> Trace {
    Trace {
        tensors: Vec::new(),
        storages: Vec::new(),
        events: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        params: Vec::new(),
        refusals: vec![Refusal { event: 0, op: String::new(), kind: RefusalKind::Internal }],
        schemas: Vec::new(),
        calls: Vec::new(),
        kept: Vec::new(),
    }
}

fn refuse(r: &mut Recorder, event: usize, op: &str, kind: RefusalKind) {
    let event = event.min(r.events.len());
    r.refusals.push(Refusal { event, op: op.into(), kind });
}

/// Of each tensor: whether somebody holds it besides the recorder, views of it and the returned results.
fn held_by_others(r: &Recorder, outputs: &[TensorId]) -> Vec<bool> {
    let alive: Vec<_> = r.handles.iter().map(Handle::get).collect();
    let mut explained: HashMap<usize, i64> = HashMap::new();
    for t in alive.iter().flatten() {
        let mut base = std::ptr::null_mut();
        // SAFETY: a live tensor, and `base` has room for the answer.
        if check(unsafe { ffi::tf_base(raw(t), &raw mut base) }).is_ok() && !base.is_null() {
            *explained.entry(base as usize).or_default() += 1;
        }
    }
    let held = |i: usize, t: &Tensor, handle: &Handle| {
        let Ok(m) = Meta::of(t) else { return true };
        let views = explained.get(&m.tensor_impl).copied().unwrap_or(0);
        // A returned tensor is held by the result and once more by the list of outputs.
        let returned = outputs.iter().filter(|o| o.0 as usize == i).count() as i64;
        m.use_count > handle.own_references() + views + 2 * returned
    };
    let of = |(i, (t, handle)): (usize, (&Option<Tensor>, &Handle))| {
        t.as_ref().is_some_and(|t| held(i, t, handle))
    };
    alive.iter().zip(&r.handles).enumerate().map(of).collect()
}

/// Decides where the tensors that no operator returned come from.
fn name_origins(r: &mut Recorder, held: &[bool], outputs: &[TensorId]) {
    for i in 0..r.seen.len() {
        let Some(seen) = r.seen.get(i) else { continue };
        if seen.origin.is_some() {
            continue;
        }
        let root = r.storages.get(seen.storage.0 as usize).map(|s| s.root);
        let alias = root.filter(|root| root.0 as usize != i);
        let number = seen.meta.numel == 1 && seen.meta.sizes().is_empty() && seen.meta.device.is_cpu();
        let returned = outputs.contains(&TensorId(i as u32));
        let origin = match alias {
            _ if held.get(i) == Some(&true) => Origin::Param,
            Some(root) => Origin::Alias(root),
            None if number && !returned => Origin::Transient,
            None => {
                refuse(r, usize::MAX, "", RefusalKind::UnknownOrigin);
                Origin::Param
            }
        };
        if let Some(seen) = r.seen.get_mut(i) {
            seen.origin = Some(origin);
        }
    }
}

/// What the replay finds out about a storage.
struct Contents {
    computed: bool,
    constant_until: Option<usize>,
}

/// Follows constant contents through the events in order: marks constant events, and refuses reads of data.
fn replay(r: &mut Recorder) -> Vec<Contents> {
    let mut contents: Vec<Contents> = r.storages.iter().map(start).collect();
    for seen in &r.seen {
        if matches!(seen.origin, Some(Origin::Input(_) | Origin::Param)) {
            // An operator may hand out what somebody held before; its contents are still the operator's.
            let storage = seen.storage.0 as usize;
            if r.storages.get(storage).is_some_and(|s| s.created_by.is_none()) {
                mark_computed(&mut contents, seen.storage, None);
            }
        }
    }
    let mut events = std::mem::take(&mut r.events);
    for (index, event) in events.iter_mut().enumerate() {
        let Some(schema) = r.schemas.get(event.schema) else { continue };
        let is_computed = |t: TensorId| storage_of(&r.seen, t).is_none_or(|s| computed(&contents, s));
        let data = (0..event.args.len()).filter(|&i| !reads_only_metadata(schema, i));
        let mut read = data.filter_map(|i| event.args.get(i)).flat_map(Arg::tensors);
        let depends = event.random || read.any(is_computed);
        event.constant = !depends;
        if depends {
            if let Some(kind) = reads_data(event, schema, &r.seen, &is_computed) {
                r.refusals.push(Refusal { event: index, op: event.op.clone(), kind });
            }
            for t in event.outs.iter().flat_map(Arg::tensors) {
                let Some(id) = storage_of(&r.seen, t) else { continue };
                if r.storages.get(id.0 as usize).is_some_and(|s| s.created_by == Some(index)) {
                    mark_computed(&mut contents, id, None);
                }
            }
            for id in r.written_storages(event) {
                mark_computed(&mut contents, id, Some(index));
            }
        }
    }
    unmark_views(&mut events, r, &contents);
    r.events = events;
    contents
}

fn start(storage: &LiveStorage) -> Contents {
    let constant_until = storage.dense.then_some(usize::MAX);
    Contents { computed: !storage.dense, constant_until }
}

fn storage_of(seen: &[Seen], t: TensorId) -> Option<StorageId> {
    seen.get(t.0 as usize).map(|s| s.storage)
}

fn computed(contents: &[Contents], id: StorageId) -> bool {
    contents.get(id.0 as usize).is_none_or(|c| c.computed)
}

fn mark_computed(contents: &mut [Contents], id: StorageId, by: Option<usize>) {
    if let Some(c) = contents.get_mut(id.0 as usize).filter(|c| !c.computed) {
        c.computed = true;
        c.constant_until = by;
    }
}

/// A constant view of something that is written later with computed data has to be followed.
fn unmark_views(events: &mut [Event], r: &Recorder, contents: &[Contents]) {
    for event in events.iter_mut().filter(|e| e.constant && e.writes.is_empty()) {
        let storages = |args: &[Arg]| -> HashSet<StorageId> {
            args.iter().flat_map(Arg::tensors).filter_map(|t| storage_of(&r.seen, t)).collect()
        };
        let inputs = storages(&event.args);
        event.constant = !storages(&event.outs).iter().any(|s| inputs.contains(s) && computed(contents, *s));
    }
}

/// Whether a call lets data of inputs or parameters out of the tensors.
fn reads_data(
    event: &Event,
    schema: &Schema,
    seen: &[Seen],
    is_computed: &dyn Fn(TensorId) -> bool,
) -> Option<RefusalKind> {
    let is_host = |a: &Arg| !matches!(a, Arg::None | Arg::Tensor(_) | Arg::Tensors(_));
    if (schema.data_dependent || event.outs.iter().any(is_host)) && !is_metadata_query(schema) {
        return Some(RefusalKind::DataRead);
    }
    let named = |name: &str| schema.args.iter().position(|a| a.name == name).and_then(|i| event.args.get(i));
    let is_mask =
        |t: &TensorId| seen.get(t.0 as usize).is_none_or(|s| s.meta.dtype == 11 || s.meta.dtype == 0);
    let depends = match shape_from(schema, &event.args) {
        ShapeFrom::Nothing => false,
        ShapeFrom::Any => true,
        ShapeFrom::Arg(name) => named(name).is_some_and(|a| a.tensors().any(is_computed)),
        ShapeFrom::Masks => named("indices").is_some_and(|a| a.tensors().filter(is_mask).any(is_computed)),
    };
    depends.then_some(RefusalKind::DataShape)
}

/// Computed tensors that the model put away would be missing in it after a compiled call.
fn find_kept(r: &mut Recorder, held: &[bool], contents: &[Contents]) {
    let grad = GlobalState::now().is_ok_and(|s| s.grad());
    if grad && r.seen.iter().any(|s| s.meta.flags.contains(Flags::REQUIRES_GRAD)) {
        return;
    }
    for (i, _) in held.iter().enumerate().filter(|(_, held)| **held) {
        let Some(seen) = r.seen.get(i) else { continue };
        if let Some(Origin::Event(e)) = seen.origin
            && computed(contents, seen.storage)
        {
            let op = r.events.get(e).map_or(String::new(), |e| e.op.clone());
            refuse(r, e, &op, RefusalKind::Kept);
        }
    }
}

/// A copy to the host that nobody uses was made for somebody to look at.
fn find_dead_host_copies(r: &mut Recorder, outputs: &[TensorId]) {
    let all = r.events.iter().flat_map(|e| &e.args).flat_map(Arg::tensors).chain(outputs.iter().copied());
    let used: HashSet<StorageId> = all.filter_map(|t| storage_of(&r.seen, t)).collect();
    let mut found = Vec::new();
    for (index, event) in r.events.iter().enumerate().filter(|(_, e)| !e.constant) {
        if !matches!(event.op.as_str(), "aten::to" | "aten::_to_copy" | "aten::contiguous") {
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
fn keep_returned_constants(r: &mut Recorder, outputs: &[TensorId], contents: &[Contents]) {
    for t in outputs {
        let Some(handle) = r.tensor(*t) else { continue };
        let Some((id, storage)) = r.storage(*t) else { continue };
        let version = storage.writes.len();
        if computed(contents, id) || storage.snapshots.last().is_some_and(|(v, _)| *v == version) {
            continue;
        }
        match snapshot(&handle) {
            Ok(copy) => storage.snapshots.push((version, copy)),
            Err(_) => refuse(r, usize::MAX, "", RefusalKind::Internal),
        }
    }
}

fn into_trace(r: Recorder, outputs: Vec<TensorId>, contents: Vec<Contents>) -> Trace {
    let is_param = |s: &&Seen| s.origin == Some(Origin::Param);
    let ids = (0..).map(TensorId).zip(&r.seen);
    let params = ids.filter(|(_, s)| is_param(s)).map(|(id, s)| (id, s.name.clone())).collect();
    let tensors = r.seen.into_iter().map(|s| TensorInfo {
        origin: s.origin.unwrap_or(Origin::Param),
        storage: s.storage,
        meta: s.meta,
    });
    let storages = r.storages.into_iter().zip(contents).map(|(s, c)| StorageInfo {
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
        refusals: r.refusals,
        schemas: r.schemas,
        calls: r.calls,
        kept: r.handles.into_iter().map(Handle::into_kept).collect(),
    }
}
