//! Running a compiled plan.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI32, Ordering};

use smallvec::SmallVec;
use tch::Tensor;
use tilefuse_fusion::{AliasTarget, Device};

use super::compile::{Compiled, LibraryResult, Run};
use super::guard::ALIGN;
use super::kernels::{Stream, Target};
use super::slots::{Slot, TensorSource};
use crate::Error;
use crate::torch::{
    self, DeviceId, GUARDED, Meta, check_held, check_metas, check_versions, empty_strided, view_of,
};

/// The memory that one call at a time works in; kept for the next call.
#[derive(Debug)]
pub(crate) struct Workspace {
    stream: usize,
    arena: Option<Tensor>,
    base: usize,
}

/// What a call has at hand.
struct Frame<'a> {
    compiled: &'a Compiled,
    inputs: &'a [Tensor],
    input_data: &'a [*mut c_void],
    param_data: SmallVec<[*mut c_void; 32]>,
    const_data: SmallVec<[*mut c_void; 8]>,
    own: SmallVec<[Option<Tensor>; 2]>,
    own_data: SmallVec<[*mut c_void; 2]>,
    externs: Vec<Option<Tensor>>,
    workspace: Workspace,
    stream: Stream,
    /// Where kernels on the host report an index that is out of range.
    status: AtomicI32,
}

/// Why a plan did not run.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A tensor of the model changed its type, shape or place: the plan is of no use any more.
    Stale(&'static str),
    /// The plan does not stand for the model in this call.
    Unfit(&'static str),
    /// An operator failed, as it would have in eager.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Compiled {
    /// Runs the plan on inputs of its signature, whose data addresses are `data`.
    pub(crate) fn run(
        &self,
        inputs: &[Tensor],
        data: &[*mut c_void],
        threads: usize,
    ) -> Result<Vec<Tensor>, Stop> {
        let mut param_data = SmallVec::from_elem(std::ptr::null_mut(), self.params.len());
        check_metas(self.params.iter(), &self.param_expects, GUARDED, &mut param_data)
            .map_err(|_| Stop::Stale("a parameter was replaced, moved or reshaped"))?;
        if !self.params.is_empty() {
            let own = self.own_handles.read().unwrap_or_else(PoisonError::into_inner);
            if !check_held(self.params.iter(), &own) {
                return Err(Stop::Stale("the model let go of a parameter"));
            }
        }
        let unchanged = |(t, bytes): (&Tensor, &Vec<u8>)| super::guard::small_contents(t) == &bytes[..];
        if !check_versions(self.assumed.iter(), &self.assumed_versions)
            || !self.assumed.iter().zip(&self.assumed_bytes).all(unchanged)
        {
            return Err(Stop::Stale("a tensor whose value was compiled in was written"));
        }
        if self.writes_shared(inputs)? {
            return Err(Stop::Unfit(
                "an input that is written shares memory with another input or a parameter",
            ));
        }
        let raw = match self.target {
            Target::Host => std::ptr::null_mut(),
            Target::Cuda(ordinal) => torch::cuda_stream(ordinal as i8)?,
        };
        let mut frame = Frame {
            compiled: self,
            inputs,
            input_data: data,
            param_data,
            const_data: self.const_addresses()?,
            own: self.slots.own.iter().map(|_| None).collect(),
            own_data: SmallVec::from_elem(std::ptr::null_mut(), self.slots.own.len()),
            externs: (0..self.slots.externs).map(|_| None).collect(),
            workspace: self.workspace(raw as usize)?,
            stream: Stream { raw, threads },
            status: AtomicI32::new(0),
        };
        frame.allocate(&self.slots.hollow)?;
        let result = frame.steps().and_then(|()| frame.check()).and_then(|()| frame.results());
        let workspace = frame.workspace;
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        result.map_err(Stop::Failed)
    }

    /// Whether a tensor that the plan writes lies in the memory of another one. A capture with such tensors makes no
    /// plan, so the plan was made for separate ones.
    fn writes_shared(&self, inputs: &[Tensor]) -> Result<bool, Error> {
        if self.updates.is_empty() {
            return Ok(false);
        }
        let slots = (0..inputs.len()).map(Slot::Input).chain((0..self.params.len()).map(Slot::Param));
        let extents = inputs.iter().chain(self.params.iter()).map(|t| Ok(Meta::of(t)?.extent()));
        let all: Vec<_> = slots.zip(extents.collect::<Result<Vec<_>, Error>>()?).collect();
        let overlap = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
        let shared = |(target, own): &(Slot, Range<usize>)| {
            self.updates.iter().any(|(t, _)| t == target)
                && all.iter().any(|(slot, other)| slot != target && overlap(own, other))
        };
        Ok(all.iter().any(shared))
    }

    fn const_addresses(&self) -> Result<SmallVec<[*mut c_void; 8]>, Error> {
        self.consts.iter().map(|t| Ok(Meta::of(t)?.data as *mut c_void)).collect()
    }

    fn workspace(&self, stream: usize) -> Result<Workspace, Error> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = pool.iter().position(|w| w.stream == stream) {
            return Ok(pool.swap_remove(at));
        }
        drop(pool);
        let bytes = self.plan.memory.bytes as i64;
        if bytes == 0 {
            return Ok(Workspace { stream, arena: None, base: 0 });
        }
        let arena = empty_strided(&[bytes], &[1], 0, self.device())?;
        let base = Meta::of(&arena)?.data;
        Ok(Workspace { stream, arena: Some(arena), base })
    }

    fn device(&self) -> DeviceId {
        match self.target {
            Target::Host => DeviceId::CPU,
            Target::Cuda(ordinal) => DeviceId::cuda(ordinal as i8),
        }
    }
}

impl Frame<'_> {
    fn allocate(&mut self, positions: &[usize]) -> Result<(), Error> {
        for &at in positions {
            let ty = &self.compiled.slots.own[at];
            let tensor = empty_strided(&ty.shape, &ty.strides, ty.dtype.scalar_type(), device_id(ty.device))?;
            self.own_data[at] = Meta::of(&tensor)?.data as *mut c_void;
            self.own[at] = Some(tensor);
        }
        Ok(())
    }

    fn free(&mut self, slots: &[Slot]) {
        for slot in slots {
            match *slot {
                Slot::Own(at) => {
                    self.own[at] = None;
                    self.own_data[at] = std::ptr::null_mut();
                }
                Slot::Extern(at) => self.externs[at] = None,
                _ => {}
            }
        }
    }

    fn steps(&mut self) -> Result<(), Error> {
        for run in &self.compiled.runs {
            match run {
                Run::Kernel { kernel, grid, args } => self.kernel(*kernel, *grid, args)?,
                Run::Extern { call, operands, clones, results, name } => {
                    self.call(call, operands, clones, results, name)?;
                }
                Run::Take(positions) => self.allocate(positions)?,
                Run::Free(slots) => self.free(slots),
            }
        }
        Ok(())
    }

    /// Whether all indices were in range. Nothing of the caller has been written yet.
    fn check(&self) -> Result<(), Error> {
        if self.status.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Error::IndexOutOfRange) }
    }

    fn kernel(&mut self, kernel: usize, grid: [u64; 3], args: &[Slot]) -> Result<(), Error> {
        let mut addresses: SmallVec<[u64; 16]> = SmallVec::new();
        for &slot in args {
            addresses.push(self.address(slot)? as u64);
        }
        // SAFETY: every address is that of a live tensor whose type the guards have checked, or lies in the arena
        // within the static memory plan; the program addresses nothing outside the span of its buffers.
        unsafe { self.compiled.kernels[kernel].launch(&addresses, grid, self.stream) }
    }

    fn address(&self, slot: Slot) -> Result<usize, Error> {
        let found = match slot {
            Slot::Input(i) => self.input_data.get(i).map(|&p| p as usize),
            Slot::Param(i) => self.param_data.get(i).map(|&p| p as usize),
            Slot::Const(i) => self.const_data.get(i).map(|&p| p as usize),
            Slot::Arena(offset) => Some(self.workspace.base + offset as usize),
            Slot::Own(i) if self.own.get(i).is_some_and(Option::is_some) => Some(self.own_data[i] as usize),
            Slot::Own(_) => None,
            Slot::Extern(i) => match self.externs.get(i).and_then(Option::as_ref) {
                Some(tensor) => Some(Meta::of(tensor)?.data),
                None => None,
            },
            // No device memory has address 0: an index that is out of range ends the kernel with an error that the
            // next synchronisation reports, as the assertion of eager's kernel does.
            Slot::Status if matches!(self.compiled.target, Target::Cuda(_)) => Some(0),
            Slot::Status => Some(self.status.as_ptr() as usize),
        };
        found.ok_or_else(|| Error::Internal(format!("{slot:?} has no memory")))
    }

    fn call(
        &mut self,
        call: &torch::Call,
        operands: &[TensorSource],
        clones: &[usize],
        results: &[LibraryResult],
        name: &str,
    ) -> Result<(), Error> {
        let mut tensors: SmallVec<[Tensor; 8]> = SmallVec::new();
        for operand in operands {
            tensors.push(self.tensor(operand)?);
        }
        let refs: SmallVec<[&Tensor; 8]> = tensors.iter().collect();
        let outs = call.run_cloning(&refs, clones)?;
        if outs.len() != results.len() {
            let message = format!("{name} returned {} tensors instead of {}", outs.len(), results.len());
            return Err(Error::Internal(message));
        }
        for (tensor, result) in outs.into_iter().zip(results).filter(|(t, _)| t.defined()) {
            self.externs[result.position] = Some(self.as_recorded(tensor, result)?);
        }
        Ok(())
    }

    /// A result as the plan expects it: with the recorded strides, with memory that outlives the arena's use, and
    /// with memory that nothing else refers to where a kernel writes over it.
    fn as_recorded(&self, tensor: Tensor, result: &LibraryResult) -> Result<Tensor, Error> {
        let meta = Meta::of(&tensor)?;
        let ty = &result.ty;
        if meta.sizes() != &ty.shape[..] || meta.dtype != ty.dtype.scalar_type() {
            return Err(Error::Internal(String::from(
                "an operator's result has another shape or type than recorded",
            )));
        }
        let in_arena = self.workspace.arena.is_some() && meta.storage_data == self.workspace.base;
        let ordinary = meta.flags.is_plain() && ty.dtype.elem().is_some();
        let shared = result.overwritten && (meta.use_count > 1 || meta.storage_use_count > 1);
        let moved = in_arena || !same_strides(&meta, &ty.strides) || meta.data % ALIGN != 0;
        if shared || (ordinary && moved) {
            let mut copy = empty_strided(&ty.shape, &ty.strides, meta.dtype, meta.device)?;
            tch::no_grad(|| copy.copy_(&tensor));
            return Ok(copy);
        }
        Ok(tensor)
    }

    /// The tensor of a source, as a new handle.
    fn tensor(&self, source: &TensorSource) -> Result<Tensor, Error> {
        let missing = || Error::Internal(format!("{:?} has no tensor", source.slot));
        let element = i64::from(source.ty.dtype.elem().map_or(0, |e| e.bytes()));
        if let Slot::Arena(offset) = source.slot {
            let arena = self.workspace.arena.as_ref().ok_or_else(missing)?;
            let (shape, strides, inner) = match &source.view {
                Some((shape, strides, inner)) => (shape, strides, *inner),
                None => (&source.ty.shape, &source.ty.strides, 0),
            };
            let at = offset as i64 + inner * element;
            return view_of(arena, at, source.ty.dtype.scalar_type(), shape, strides);
        }
        let base = match source.slot {
            Slot::Input(i) => self.inputs.get(i),
            Slot::Param(i) => self.compiled.params.get(i),
            Slot::Const(i) => self.compiled.consts.get(i),
            Slot::Own(i) => self.own.get(i).and_then(Option::as_ref),
            Slot::Extern(i) => self.externs.get(i).and_then(Option::as_ref),
            Slot::Arena(_) | Slot::Status => None,
        };
        let base = base.ok_or_else(missing)?;
        match &source.view {
            None => Ok(base.shallow_clone()),
            Some((shape, strides, offset)) => {
                let start = Meta::of(base)?.offset + offset;
                torch::as_strided_of(base, shape, strides, start)
            }
        }
    }

    fn results(&mut self) -> Result<Vec<Tensor>, Error> {
        let mut outputs = Vec::with_capacity(self.compiled.outputs.len());
        for (source, copied) in self.compiled.outputs.iter().zip(&self.compiled.copied) {
            let tensor = self.tensor(source)?;
            outputs.push(match copied {
                Some(ty) => copy_as(&tensor, ty)?,
                None => tensor,
            });
        }
        self.write_back()?;
        self.alias(&mut outputs)?;
        Ok(outputs)
    }

    /// Gives inputs and parameters the values that eager leaves in them. A value that lies in one of them is copied before
    /// any is written, unless it is the tensor itself.
    fn write_back(&self) -> Result<(), Error> {
        let mut values: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
        for (target, source) in &self.compiled.updates {
            let itself = source.slot == *target && source.view.is_none();
            let value = self.tensor(source)?;
            let foreign = matches!(source.slot, Slot::Input(_) | Slot::Param(_));
            values.push((!itself).then(|| if foreign { value.copy() } else { value }));
        }
        for ((target, _), value) in self.compiled.updates.iter().zip(&values) {
            if let Some(value) = value {
                let mut target = self.owner(*target)?.shallow_clone();
                tch::no_grad(|| target.copy_(value));
            }
        }
        Ok(())
    }

    fn owner(&self, slot: Slot) -> Result<&Tensor, Error> {
        let found = match slot {
            Slot::Input(i) => self.inputs.get(i),
            Slot::Param(i) => self.compiled.params.get(i),
            _ => None,
        };
        found.ok_or_else(|| Error::Internal(format!("{slot:?} is no tensor of the caller")))
    }

    /// Makes outputs share memory with inputs, parameters and each other as eager's do.
    fn alias(&self, outputs: &mut [Tensor]) -> Result<(), Error> {
        let aliases = &self.compiled.plan.graph.aliases;
        for at in 0..outputs.len().min(aliases.len()) {
            let Some(alias) = &aliases[at] else { continue };
            let owner = match alias.target {
                AliasTarget::Node(node) => self.owner(self.compiled.slots.get(node.into())?)?,
                AliasTarget::Output(other) => match outputs.get(other as usize) {
                    Some(owner) => owner,
                    None => {
                        return Err(Error::Internal(String::from("an output aliases one that is not there")));
                    }
                },
            };
            let meta = Meta::of(owner)?;
            let same = meta.sizes() == &alias.ty.shape[..] && meta.strides() == &alias.ty.strides[..];
            outputs[at] = if same && alias.offset == 0 {
                owner.shallow_clone()
            } else {
                torch::as_strided_of(owner, &alias.ty.shape, &alias.ty.strides, meta.offset + alias.offset)?
            };
        }
        Ok(())
    }
}

/// A copy of a tensor in memory of its own, with the strides of a type: what repeats along an expanded dimension is
/// copied once. Of a view whose elements overlap otherwise, a dense copy.
fn copy_as(tensor: &Tensor, ty: &tilefuse_fusion::TensorType) -> Result<Tensor, Error> {
    let (scalar, device) = (ty.dtype.scalar_type(), device_id(ty.device));
    let mut once = ty.shape.clone();
    let mut source = tensor.shallow_clone();
    let repeated = |d: usize| ty.strides[d] == 0 && ty.shape[d] > 1;
    for d in (0..once.len()).filter(|&d| repeated(d)) {
        once[d] = 1;
        source = source.narrow(d as i64, 0, 1);
    }
    let mut copy = empty_strided(&once, &ty.strides, scalar, device)?;
    if tch::no_grad(|| copy.f_copy_(&source)).is_err() {
        copy = empty_strided(&once, &tilefuse_fusion::row_major(&once), scalar, device)?;
        tch::no_grad(|| copy.copy_(&source));
        return Ok(copy.expand(&*ty.shape, false));
    }
    torch::as_strided_of(&copy, &ty.shape, &ty.strides, 0)
}

fn same_strides(meta: &Meta, strides: &[i64]) -> bool {
    let sizes = meta.sizes();
    meta.numel == 0 || (0..sizes.len()).all(|d| sizes[d] == 1 || meta.strides()[d] == strides[d])
}

pub(crate) fn device_id(device: Device) -> DeviceId {
    match device {
        Device::Cuda(ordinal) => DeviceId::cuda(ordinal as i8),
        _ => DeviceId::CPU,
    }
}
