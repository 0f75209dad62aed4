//! The recorder: listens to the dispatcher while a model runs once.
//!
//! What it must decide while the model runs is which contents will be overwritten before anyone can ask for them;
//! everything else is decided afterwards, in `analyse.rs`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use smallvec::SmallVec;
use tch::Tensor;

use super::analyse::Others;
use super::ffi::{self, Hooks, RawCall, check, make_tensor, raw};
use super::handle::{Handle, Weak};
use super::ops::{draws_random_numbers, hidden_writes, is_uninitialized, reads_only_metadata};
use super::trace::snapshot;
use super::wire::Reader;
use super::{
    Arg, Call, CallId, DeviceId, Event, Flags, GeneratorState, Meta, Origin, Refusal, RefusalKind, Schema,
    StorageId, TensorId, Trace,
};
use crate::Error;

/// Whether this thread is capturing. Compiled plans must not run then: the capture cannot see their kernels.
pub fn is_capturing() -> bool {
    // SAFETY: reads a flag of this thread.
    unsafe { ffi::tf_recording() }
}

thread_local! {
    /// Whether a kernel was launched by hand since the last capture on this thread began.
    static LAUNCHED: Cell<bool> = const { Cell::new(false) };
}

/// Tells a capture on this thread of a launch: what the kernel writes is in no recorded call.
///
/// Within an operator of the Rust side the launch is part of a recorded call.
pub(crate) fn note_launch() {
    if !super::in_operator() {
        LAUNCHED.set(true);
    }
}

/// Someone who times the calls of a capture.
pub(crate) trait CallClock {
    /// An operator is about to run.
    fn begin(&mut self) -> Result<(), Error>;
    /// It has run.
    fn end(&mut self) -> Result<(), Error>;
    /// It has failed, and is in no trace.
    fn forget(&mut self);
}

/// Runs `f` once, eagerly, and records every operator that it calls on this thread above autograd.
///
/// `inputs` are the example inputs and `named` the model's parameters and buffers, recognised by identity;
/// `outputs_of` names the result tensors. What makes the trace unfit for compiling is in [`Trace::refusals`]. An
/// error means that `f` did not run. A panic in `f` ends the capture and goes on.
///
/// Values that reach tensors from outside libtorch (numbers, `Tensor::from_slice`) are taken as constants.
pub fn capture<R>(
    inputs: &[Tensor],
    named: &[(String, Tensor)],
    f: impl FnOnce() -> R,
    outputs_of: impl Fn(&R) -> Vec<Tensor>,
) -> Result<(R, Trace), Error> {
    capture_timed(inputs, named, None, f, outputs_of)
}

/// The same, with someone who times each call.
pub(crate) fn capture_timed<R>(
    inputs: &[Tensor],
    named: &[(String, Tensor)],
    clock: Option<Rc<RefCell<dyn CallClock>>>,
    f: impl FnOnce() -> R,
    outputs_of: impl Fn(&R) -> Vec<Tensor>,
) -> Result<(R, Trace), Error> {
    let session = Session::start(Recorder { clock, ..Recorder::new(inputs, named)? })?;
    LAUNCHED.set(false);
    let result = f();
    let mut recorder = session.stop();
    if let Some(recorder) = recorder.as_mut().filter(|_| LAUNCHED.get()) {
        recorder.refuse("", RefusalKind::Kernel);
    }
    if let Some(recorder) = recorder.as_mut().filter(|r| r.events.iter().any(|e| e.random)) {
        recorder.check_generators("")?;
    }
    let outputs = outputs_of(&result);
    let trace = super::analyse::finish(recorder, &outputs);
    Ok((result, trace))
}

/// How far the contents of a storage are known to be constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Depends on constants and sizes.
    Constant,
    /// Depends on tensors that may turn out to be constants.
    Unknown,
    /// Depends on inputs or parameters, or is random.
    Computed,
}

/// A tensor, while recording.
pub(super) struct Seen {
    /// `None` where nobody we know made it.
    pub(super) origin: Option<Origin>,
    pub(super) name: Option<String>,
    pub(super) storage: StorageId,
    pub(super) meta: Meta,
    /// Its version behind the last call that it was an argument or a result of, and [`LiveStorage::bumps`] then.
    version: (i64, i64),
}

/// A storage, while recording.
pub(super) struct LiveStorage {
    /// The tensor by which it was first seen.
    pub(super) root: TensorId,
    pub(super) created_by: Option<usize>,
    pub(super) level: Level,
    pub(super) writes: Vec<usize>,
    /// By how much recorded calls have raised versions of its tensors.
    bumps: i64,
    pub(super) snapshots: Vec<(usize, Tensor)>,
    /// Memory that can be addressed.
    pub(super) dense: bool,
    pub(super) weak: Weak,
    /// Somebody may ask for the present contents.
    used: bool,
    watched: bool,
}

/// A call that has begun.
struct Pending {
    event: Event,
    level: Level,
    /// The argument tensors as they were before.
    before: Vec<(TensorId, Meta)>,
}

/// All that was recorded so far.
pub(super) struct Recorder {
    pub(super) seen: Vec<Seen>,
    pub(super) handles: Vec<Handle>,
    pub(super) storages: Vec<LiveStorage>,
    pub(super) events: Vec<Event>,
    pub(super) calls: Vec<Call>,
    pub(super) schemas: Vec<Schema>,
    pub(super) inputs: Vec<TensorId>,
    /// Who held the inputs when the call began.
    pub(super) held_before: Option<Others>,
    /// The generators of random numbers as the last call that drew some left them.
    generators: Vec<GeneratorState>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) foreign_calls: u64,
    by_impl: HashMap<usize, TensorId>,
    by_storage: HashMap<usize, StorageId>,
    by_op: HashMap<u64, usize>,
    names: HashMap<usize, String>,
    pending: Option<Pending>,
    /// A storage watched until the next call only.
    window: Option<StorageId>,
    clock: Option<Rc<RefCell<dyn CallClock>>>,
}

impl Recorder {
    fn new(inputs: &[Tensor], named: &[(String, Tensor)]) -> Result<Self, Error> {
        let mut names = HashMap::new();
        for (name, t) in named {
            names.entry(Meta::of(t)?.tensor_impl).or_insert_with(|| name.clone());
        }
        let mut new = Self {
            seen: Vec::new(),
            handles: Vec::new(),
            storages: Vec::new(),
            events: Vec::new(),
            calls: Vec::new(),
            schemas: Vec::new(),
            inputs: Vec::new(),
            held_before: None,
            generators: Vec::new(),
            refusals: Vec::new(),
            // SAFETY: reads a counter.
            foreign_calls: unsafe { ffi::tf_foreign_calls() },
            by_impl: HashMap::new(),
            by_storage: HashMap::new(),
            by_op: HashMap::new(),
            names,
            pending: None,
            window: None,
            clock: None,
        };
        for (i, t) in inputs.iter().enumerate() {
            let id = new.see(t, Some(Origin::Input(i)))?;
            new.inputs.push(id);
        }
        new.held_before = Some(Others::of(&new, &[]));
        let mut devices = vec![DeviceId::CPU];
        for t in inputs.iter().chain(named.iter().map(|(_, t)| t)) {
            let device = Meta::of(t)?.device;
            if device.is_cuda() && !devices.contains(&device) {
                devices.push(device);
            }
        }
        new.generators = devices.into_iter().map(GeneratorState::of).collect::<Result<_, _>>()?;
        Ok(new)
    }

    /// The number of a tensor; an unseen one is entered with `origin`.
    pub(super) fn see(&mut self, t: &Tensor, origin: Option<Origin>) -> Result<TensorId, Error> {
        let meta = Meta::of(t)?;
        if let Some(&id) = self.by_impl.get(&meta.tensor_impl) {
            self.check_storage(id, &meta, "");
            return Ok(id);
        }
        let id = TensorId(self.seen.len() as u32);
        let name = self.names.get(&meta.tensor_impl).cloned();
        let origin = if name.is_some() && origin.is_none() { Some(Origin::Param) } else { origin };
        let storage = self.storage_of(t, &meta, id, origin)?;
        self.by_impl.insert(meta.tensor_impl, id);
        let version = (meta.version, self.storages.get(storage.0 as usize).map_or(0, |s| s.bumps));
        self.seen.push(Seen { origin, name, storage, meta, version });
        self.handles.push(Handle::Strong(t.shallow_clone()));
        Ok(id)
    }

    fn storage_of(
        &mut self,
        t: &Tensor,
        meta: &Meta,
        root: TensorId,
        origin: Option<Origin>,
    ) -> Result<StorageId, Error> {
        let dense = meta.flags.contains(Flags::HAS_STORAGE | Flags::STRIDED);
        if let Some(&known) = self.by_storage.get(&meta.storage).filter(|_| dense) {
            return Ok(known);
        }
        let id = StorageId(self.storages.len() as u32);
        if dense {
            self.by_storage.insert(meta.storage, id);
        }
        let level = match origin {
            _ if !dense => Level::Computed,
            // The level of the event follows when it is over.
            Some(Origin::Event(_)) => Level::Constant,
            None => Level::Unknown,
            Some(_) => Level::Computed,
        };
        let created_by = if let Some(Origin::Event(e)) = origin { Some(e) } else { None };
        self.storages.push(LiveStorage {
            root,
            created_by,
            level,
            writes: Vec::new(),
            bumps: 0,
            snapshots: Vec::new(),
            dense,
            weak: Weak::new(t)?,
            used: false,
            watched: false,
        });
        Ok(id)
    }

    fn see_impl(&mut self, tensor_impl: u64, origin: Option<Origin>) -> Result<TensorId, Error> {
        if let Some(&id) = self.by_impl.get(&(tensor_impl as usize)) {
            return Ok(id);
        }
        // SAFETY: the dispatcher's stack holds the tensor while a hook runs.
        let t = make_tensor(|out| unsafe { ffi::tf_tensor_of_impl(tensor_impl, out) })?;
        self.see(&t, origin)
    }

    fn see_args(&mut self, bytes: &[u8], origin: Option<Origin>) -> Result<Vec<Arg>, Error> {
        let mut first_error = Ok(());
        let args = Reader(bytes).args();
        let named = args.iter().map(|arg| {
            arg.map(|t| {
                self.see_impl(t, origin).unwrap_or_else(|e| {
                    first_error = Err(e);
                    TensorId(u32::MAX)
                })
            })
        });
        let named = named.collect();
        first_error.map(|()| named)
    }

    /// The tensor, while somebody holds it.
    pub(super) fn tensor(&self, t: TensorId) -> Option<Tensor> {
        self.handles.get(t.0 as usize)?.get()
    }

    pub(super) fn storage(&mut self, t: TensorId) -> Option<(StorageId, &mut LiveStorage)> {
        let id = self.seen.get(t.0 as usize)?.storage;
        Some((id, self.storages.get_mut(id.0 as usize)?))
    }

    /// `set_data` gives a tensor the memory of another one outside of operators, and another thread may write it by calls that are
    /// not recorded.
    fn check_storage(&mut self, id: TensorId, now: &Meta, op: &str) {
        let Some(seen) = self.seen.get(id.0 as usize) else { return };
        let bumps = self.storages.get(seen.storage.0 as usize).map_or(0, |s| s.bumps);
        // Of tensors of one storage some count their writes together, and some each its own.
        let unseen = now.version - seen.version.0 > bumps - seen.version.1;
        if seen.meta.storage != now.storage {
            self.refuse(op, RefusalKind::MetadataChange);
        } else if unseen {
            self.refuse(op, RefusalKind::OtherThread);
        }
    }

    /// The version of a tensor behind a call.
    fn note_version(&mut self, id: TensorId) -> Result<(), Error> {
        let Some(handle) = self.tensor(id) else { return Ok(()) };
        let version = Meta::of(&handle)?.version;
        if let Some(seen) = self.seen.get_mut(id.0 as usize) {
            seen.version = (version, self.storages.get(seen.storage.0 as usize).map_or(0, |s| s.bumps));
        }
        Ok(())
    }

    /// Looks at everything that is still held for writes that no call has shown.
    pub(super) fn check_versions(&mut self) -> Result<(), Error> {
        for id in (0..self.seen.len() as u32).map(TensorId) {
            if let Some(handle) = self.tensor(id) {
                let now = Meta::of(&handle)?;
                self.check_storage(id, &now, "");
            }
        }
        Ok(())
    }

    fn refuse(&mut self, op: &str, kind: RefusalKind) {
        let event = self.events.len();
        if self.refusals.last().is_none_or(|r| r.event != event || r.kind != kind) {
            self.refusals.push(Refusal { event, op: op.into(), tensor: String::new(), kind });
        }
    }

    fn schema_of(&mut self, op: u64, call: &Call) -> Result<usize, Error> {
        if let Some(&known) = self.by_op.get(&op) {
            return Ok(known);
        }
        self.schemas.push(call.schema()?);
        self.by_op.insert(op, self.schemas.len() - 1);
        Ok(self.schemas.len() - 1)
    }

    fn before(&mut self, op: u64, call: Call, bytes: &[u8]) -> Result<(), Error> {
        self.close_window();
        let schema = self.schema_of(op, &call)?;
        let args = self.see_args(bytes, None)?;
        let Some(s) = self.schemas.get(schema).cloned() else { return Ok(()) };
        if call.is_opaque() {
            self.refuse(&s.op, RefusalKind::Internal);
        }
        if s.op == "aten::_lazy_clone" {
            // The first write gives a storage other memory than kernels know of.
            self.refuse(&s.op, RefusalKind::CopyOnWrite);
        }
        let random = draws_random_numbers(&s, &args);
        if random {
            self.check_generators(&s.op)?;
        }
        let level = if random { Level::Computed } else { self.level_of(&s, &args) };
        let writes = hidden_writes(&s, &args);
        args.iter().flat_map(Arg::tensors).for_each(|t| self.watch(t, false));
        self.keep_contents(&args, &writes, level)?;
        let mut before = Vec::new();
        for t in args.iter().flat_map(Arg::tensors) {
            if let Some(handle) = self.tensor(t) {
                let now = Meta::of(&handle)?;
                self.check_storage(t, &now, &s.op);
                before.push((t, now));
            }
        }
        let event = Event {
            op: s.op,
            overload: s.overload,
            args,
            outs: Vec::new(),
            writes,
            random,
            constant: false,
            scope: crate::scope::current(),
            script: super::script::modules()?,
            site: super::source_lines::call_site()?,
            call: CallId(self.calls.len() as u32),
            schema,
        };
        self.calls.push(call);
        self.pending = Some(Pending { event, level, before });
        self.clock.as_ref().map_or(Ok(()), |clock| clock.borrow_mut().begin())
    }

    /// Refuses the trace where a generator was seeded since the last call that drew numbers: a plan draws some, and seeds nothing.
    fn check_generators(&mut self, op: &str) -> Result<(), Error> {
        for at in 0..self.generators.len() {
            if self.generators[at].is_reseeded()? {
                self.refuse(op, RefusalKind::Seeds);
            }
        }
        Ok(())
    }

    /// The level of what a call computes from `args`.
    fn level_of(&mut self, schema: &Schema, args: &[Arg]) -> Level {
        let mut level = Level::Constant;
        for (i, arg) in args.iter().enumerate() {
            if !reads_only_metadata(schema, i) {
                for t in arg.tensors() {
                    level = level.max(self.storage(t).map_or(Level::Computed, |(_, s)| s.level));
                }
            }
        }
        level
    }

    /// Copies contents that the coming call overwrites and that may be asked for later.
    fn keep_contents(&mut self, args: &[Arg], writes: &[usize], level: Level) -> Result<(), Error> {
        if level > Level::Constant {
            for t in args.iter().flat_map(Arg::tensors) {
                if let Some((_, storage)) = self.storage(t) {
                    storage.used = true;
                }
            }
        }
        for t in writes.iter().filter_map(|&w| args.get(w)).flat_map(Arg::tensors) {
            let Some(handle) = self.tensor(t) else { continue };
            let Some((_, s)) = self.storage(t) else { continue };
            let version = s.writes.len();
            let kept = s.snapshots.last().is_some_and(|(v, _)| *v == version);
            if s.used && s.level < Level::Computed && s.dense && !kept {
                let copy = snapshot(&handle)?;
                s.snapshots.push((version, copy));
            }
        }
        Ok(())
    }

    fn after(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(mut p) = self.pending.take() else { return Ok(()) };
        self.clock.as_ref().map_or(Ok(()), |clock| clock.borrow_mut().end())?;
        let index = self.events.len();
        let (known, seen) = (self.storages.len(), self.seen.len());
        p.event.outs = self.see_args(bytes, Some(Origin::Event(index)))?;
        for created in self.storages.iter_mut().skip(known) {
            created.level = created.level.max(p.level);
        }
        if p.event.random {
            self.generators.iter_mut().try_for_each(GeneratorState::renew)?;
        }
        if is_uninitialized(&p.event.op) {
            self.zero_new(known)?;
        }
        // What has no strided memory holds the memory of others, of a model's own, too: kept, it would seem that the model keeps that.
        // A view of a constant is one, whatever else its call computes.
        let is_computed = |seen: &Seen| {
            let storage = self.storages.get(seen.storage.0 as usize);
            storage.is_some_and(|s| !s.dense)
                || p.level == Level::Computed && storage.is_none_or(|s| s.level == Level::Computed)
        };
        let made = self.handles.iter_mut().zip(&self.seen).skip(seen);
        made.filter(|(_, seen)| is_computed(seen)).try_for_each(|(handle, _)| handle.forget())?;
        self.check_args(&mut p)?;
        self.note_writes(&p, index);
        for t in p.event.args.iter().chain(&p.event.outs).flat_map(Arg::tensors) {
            self.watch(t, true);
        }
        self.open_window(&p.event);
        self.events.push(p.event);
        Ok(())
    }

    /// Zeroes the storages from this number on: what is left of uninitialised memory in a constant is the same in each
    /// recording of a model.
    fn zero_new(&self, known: usize) -> Result<(), Error> {
        let is_dense = |s: &&LiveStorage| s.dense;
        for storage in self.storages.iter().skip(known).filter(is_dense) {
            if let Some(t) = self.tensor(storage.root) {
                // SAFETY: `t` is live.
                check(unsafe { ffi::tf_zero(raw(&t)) })?;
            }
        }
        Ok(())
    }

    /// Looks for changes that the schema did not announce.
    fn check_args(&mut self, p: &mut Pending) -> Result<(), Error> {
        let written: Vec<_> = self.written_storages(&p.event);
        let mut raised: SmallVec<[(StorageId, i64); 4]> = SmallVec::new();
        for (t, old) in &p.before {
            let Some(handle) = self.tensor(*t) else { continue };
            let new = Meta::of(&handle)?;
            if let Some(storage) = self.seen.get(t.0 as usize).map(|s| s.storage) {
                let by = new.version - old.version;
                match raised.iter_mut().find(|known| known.0 == storage) {
                    Some(known) => known.1 = known.1.max(by),
                    None => raised.push((storage, by)),
                }
            }
            let same_shape = new.sizes() == old.sizes() && new.strides() == old.strides();
            if !same_shape || new.offset != old.offset || new.storage != old.storage {
                self.refuse(&p.event.op, RefusalKind::MetadataChange);
            }
            let Some(storage) = self.seen.get(t.0 as usize).map(|s| s.storage) else { continue };
            if new.version != old.version && !written.contains(&storage) {
                let at = p.event.args.iter().position(|a| a.tensors().any(|x| x == *t));
                p.event.writes.extend(at);
                if self.storages.get(storage.0 as usize).is_some_and(|s| s.level < Level::Computed) {
                    self.refuse(&p.event.op, RefusalKind::Internal);
                }
            }
        }
        p.event.writes.sort_unstable();
        p.event.writes.dedup();
        for (storage, by) in raised {
            if let Some(s) = self.storages.get_mut(storage.0 as usize) {
                s.bumps += by;
            }
        }
        let tensors: SmallVec<[TensorId; 8]> =
            p.event.args.iter().chain(&p.event.outs).flat_map(Arg::tensors).collect();
        tensors.into_iter().try_for_each(|t| self.note_version(t))
    }

    pub(super) fn written_storages(&self, event: &Event) -> Vec<StorageId> {
        let args = event.writes.iter().filter_map(|&w| event.args.get(w)).flat_map(Arg::tensors);
        args.filter_map(|t| self.seen.get(t.0 as usize)).map(|s| s.storage).collect()
    }

    fn note_writes(&mut self, p: &Pending, index: usize) {
        for id in self.written_storages(&p.event) {
            let Some(s) = self.storages.get_mut(id.0 as usize) else { continue };
            if s.writes.last() != Some(&index) {
                s.writes.push(index);
            }
            s.level = s.level.max(p.level);
            s.used = false;
        }
    }

    /// A call failed. Where the model goes on, it may be for the data that it failed: a plan makes the calls that did not.
    fn failed(&mut self) {
        let Some(p) = self.pending.take() else { return };
        self.refuse(&p.event.op, RefusalKind::Failed);
        self.calls.pop();
        if let Some(clock) = &self.clock {
            clock.borrow_mut().forget();
        }
        for (t, _) in p.before {
            self.watch(t, true);
        }
    }

    /// Turns on or off the report of memory accesses to the storage of `t`, where it holds an input or something
    /// computed from one or from the model's. The model's own tensors are left alone: other threads may be using them.
    fn watch(&mut self, t: TensorId, on: bool) {
        let Some(id) = self.seen.get(t.0 as usize).map(|s| s.storage) else { return };
        let Some(s) = self.storages.get(id.0 as usize) else { return };
        let root = self.seen.get(s.root.0 as usize).and_then(|s| s.origin);
        let ours = s.dense
            && match root {
                Some(Origin::Input(_)) => s.level == Level::Computed,
                Some(Origin::Event(_)) => s.level > Level::Constant,
                _ => false,
            };
        if s.watched != on && (ours || !on) {
            self.set_watch(id, on);
        }
    }

    fn set_watch(&mut self, id: StorageId, on: bool) {
        if let Some(s) = self.storages.get_mut(id.0 as usize).filter(|s| s.watched != on) {
            s.watched = s.weak.watch(on).is_ok() && on;
        }
    }

    /// A call that hands back its own argument (`to` with nothing to do) is how tch begins to read data: watch the
    /// memory until the next call, whoever it belongs to.
    fn open_window(&mut self, event: &Event) {
        let unchanged = |t: &TensorId| event.args.contains(&Arg::Tensor(*t));
        let Some(t) = event.outs.iter().flat_map(Arg::tensors).find(unchanged) else { return };
        let Some((id, s)) = self.storage(t) else { return };
        if event.writes.is_empty() && !s.watched && s.dense && s.level > Level::Constant {
            self.set_watch(id, true);
            self.window = Some(id);
        }
    }

    fn close_window(&mut self) {
        if let Some(id) = self.window.take() {
            self.set_watch(id, false);
        }
    }

    fn unwatch_all(&mut self) {
        for s in self.storages.iter_mut().filter(|s| s.watched) {
            let _ = s.weak.watch(false);
        }
    }
}

/// A recording that goes on; dropping it ends it.
struct Session(*mut Recorder);

impl Session {
    fn start(recorder: Recorder) -> Result<Self, Error> {
        if is_capturing() {
            return Err(Error::NestedCapture);
        }
        let mut recorder = Box::new(recorder);
        for t in recorder.inputs.clone() {
            recorder.watch(t, true);
        }
        let session = Self(Box::into_raw(recorder));
        let hooks = Hooks { ctx: session.0.cast(), before, after, failed, broken, touched };
        // SAFETY: the recorder stays where it is until the session has ended.
        check(unsafe { ffi::tf_record_start(&raw const hooks) })?;
        Ok(session)
    }

    fn end(&mut self) -> Option<Box<Recorder>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: no hook is called after this, so the pointer from `Box::into_raw` is ours again, once.
        let mut recorder = unsafe {
            ffi::tf_record_stop();
            Box::from_raw(std::mem::replace(&mut self.0, std::ptr::null_mut()))
        };
        recorder.unwatch_all();
        Some(recorder)
    }

    fn stop(mut self) -> Option<Box<Recorder>> {
        self.end()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a hook on the recorder behind `ctx`; a failure becomes a refusal.
fn hook(ctx: *mut c_void, body: impl FnOnce(&mut Recorder) -> Result<(), Error>) {
    // SAFETY: `ctx` is the recorder of this thread's session, and hooks do not nest.
    let recorder = unsafe { &mut *ctx.cast::<Recorder>() };
    let done = catch_unwind(AssertUnwindSafe(|| body(recorder)));
    if !matches!(done, Ok(Ok(()))) {
        recorder.refuse("", RefusalKind::Internal);
    }
}

unsafe extern "C" fn before(ctx: *mut c_void, op: u64, call: *mut RawCall, args: *const u8, len: usize) {
    let call = Call::from_raw(call);
    // SAFETY: the bytes live for this call.
    let bytes = unsafe { std::slice::from_raw_parts(args, len) };
    hook(ctx, |r| r.before(op, call, bytes));
}

unsafe extern "C" fn after(ctx: *mut c_void, results: *const u8, len: usize) {
    // SAFETY: the bytes live for this call.
    let bytes = unsafe { std::slice::from_raw_parts(results, len) };
    hook(ctx, |r| r.after(bytes));
}

unsafe extern "C" fn failed(ctx: *mut c_void) {
    hook(ctx, |r| {
        r.failed();
        Ok(())
    });
}

unsafe extern "C" fn broken(ctx: *mut c_void) {
    hook(ctx, |r| {
        r.refuse("", RefusalKind::Internal);
        Ok(())
    });
}

unsafe extern "C" fn touched(ctx: *mut c_void) {
    hook(ctx, |r| {
        r.refuse("", RefusalKind::MemoryAccess);
        Ok(())
    });
}
