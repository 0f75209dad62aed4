//! What must hold for a compiled plan to stand for the model.

use tch::Tensor;

use crate::Error;
use crate::torch::{Expect, Flags, GUARDED, GlobalState, Meta, check_metas};

/// Alignment in bytes that kernels assume of every buffer.
pub(crate) const ALIGN: usize = 16;

/// Inputs and libtorch's state, as far as a plan depends on them.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    inputs: Vec<Expect>,
    state: GlobalState,
}

impl Signature {
    /// The signature of a call.
    pub(crate) fn of(inputs: &[Tensor], state: GlobalState) -> Result<Signature, Error> {
        let metas = inputs.iter().map(Meta::of).collect::<Result<Vec<_>, _>>()?;
        let expects = metas.iter().map(|m| Expect::like(m, alignment(m.data))).collect();
        Ok(Signature { inputs: expects, state: state.without_grad() })
    }

    /// Whether a call has this signature; on success `data` holds the addresses of its inputs.
    pub(crate) fn matches(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        data: &mut Vec<*mut std::ffi::c_void>,
    ) -> bool {
        if self.inputs.len() != inputs.len() || self.state != state.without_grad() {
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

/// Whether gradients are recorded and something here needs them.
pub(crate) fn grad_needed(state: GlobalState, tensors: &[Tensor]) -> bool {
    state.grad() && tensors.iter().any(|t| Meta::of(t).is_ok_and(|m| m.flags.contains(Flags::REQUIRES_GRAD)))
}
