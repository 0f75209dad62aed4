//! What must hold for a compiled plan to stand for the model.

use std::sync::Arc;

use tch::Tensor;

use crate::Error;
use crate::fused::{Call, Structure};
use crate::torch::{Expect, Flags, GUARDED, GlobalState, Meta, check_metas};
use crate::values::Part;

/// Alignment in bytes that kernels assume of every buffer.
pub(crate) const ALIGN: usize = 16;

/// Inputs and libtorch's state, as far as a plan depends on them.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    inputs: Vec<Expect>,
    state: GlobalState,
    /// What of the call is no tensor.
    structure: Structure,
    /// What of the outputs is no tensor; no condition, but a consequence.
    outputs: Option<Arc<[Part]>>,
}

impl Signature {
    /// The signature of a call.
    pub(crate) fn of(inputs: &[Tensor], state: GlobalState, call: &Call<'_>) -> Result<Signature, Error> {
        let metas = inputs.iter().map(Meta::of).collect::<Result<Vec<_>, _>>()?;
        let expects = metas.iter().map(|m| Expect::like(m, alignment(m.data))).collect();
        let structure = call.structure().clone();
        Ok(Signature { inputs: expects, state: state.without_grad(), structure, outputs: None })
    }

    /// With the structure of what the captured call returned.
    pub(crate) fn returning(mut self, call: &Call<'_>) -> Signature {
        self.outputs = call.parts();
        self
    }

    /// The structure of what the captured call returned.
    pub(crate) fn outputs(&self) -> Option<Arc<[Part]>> {
        self.outputs.clone()
    }

    /// The same signature, of calls whose input of this index lies as far into its storage as this one.
    pub(crate) fn with_offset_of(mut self, index: usize, input: &Tensor) -> Result<Signature, Error> {
        if let Some(expect) = self.inputs.get_mut(index) {
            *expect = expect.at_offset(Meta::of(input)?.offset);
        }
        Ok(self)
    }

    /// Whether a call has this signature; on success `data` holds the addresses of its inputs.
    pub(crate) fn matches(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        call: &Call<'_>,
        data: &mut Vec<*mut std::ffi::c_void>,
    ) -> bool {
        if self.inputs.len() != inputs.len() || self.state != state.without_grad() {
            return false;
        }
        if self.structure != *call.structure() {
            return false;
        }
        data.clear();
        data.resize(inputs.len(), std::ptr::null_mut());
        check_metas(inputs, &self.inputs, GUARDED, data).is_ok()
    }
}

/// The largest power of two up to [`ALIGN`] that divides an address.
pub(crate) fn alignment(address: usize) -> usize {
    if address == 0 { ALIGN } else { ALIGN.min(1 << address.trailing_zeros().min(16)) }
}

/// The bytes of a row-major tensor on the host of at most 4 KiB; nothing for any other tensor.
pub(crate) fn small_contents(tensor: &Tensor) -> &[u8] {
    let Ok(meta) = Meta::of(tensor) else { return &[] };
    let bytes = meta.numel as usize * crate::torch::element_size(meta.dtype);
    let plain = meta.flags.is_plain() && meta.flags.contains(Flags::CONTIGUOUS) && meta.device.is_cpu();
    if !plain || bytes == 0 || bytes > 4096 || meta.data == 0 {
        return &[];
    }
    // SAFETY: the tensor is alive, on the host and row-major, so this many bytes lie at its address.
    unsafe { std::slice::from_raw_parts(meta.data as *const u8, bytes) }
}

/// Whether gradients are recorded and something here needs them.
pub(crate) fn grad_needed(state: GlobalState, tensors: &[Tensor]) -> bool {
    state.grad() && tensors.iter().any(|t| Meta::of(t).is_ok_and(|m| m.flags.contains(Flags::REQUIRES_GRAD)))
}
