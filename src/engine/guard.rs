//! What must hold for a compiled plan to stand for the model.

use std::ffi::c_void;
use std::sync::Arc;

use smallvec::SmallVec;
use tch::Tensor;

use super::call::{Call, Structure};
use super::compile::Tensors;
use crate::Error;
use crate::torch::{Expect, Flags, GUARDED_OF_INPUTS, GlobalState, Meta, check_metas};
use crate::values::Part;

/// Alignment in bytes that kernels assume of every buffer.
pub(crate) const ALIGN: usize = 16;

/// The addresses of a call's inputs.
pub(crate) type Addresses = SmallVec<[*mut c_void; 8]>;

/// Inputs and libtorch's state, as far as a plan depends on them.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    inputs: Vec<Expect>,
    /// Inputs that are one tensor, each with the first of these: a recording does not tell them apart.
    same: Vec<(usize, usize)>,
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
        let (structure, same) = (call.structure().clone(), same(&metas));
        Ok(Signature { inputs: expects, same, state: state.without_grad(), structure, outputs: None })
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

    /// What of a call's outputs that is no tensor is not as in the captured call.
    pub(crate) fn output_difference(&self, call: &Call<'_>) -> Option<String> {
        if let Some(refusal) = call.refusal() {
            return Some(refusal);
        }
        let (old, new) = (self.outputs.as_deref().unwrap_or_default(), call.parts());
        let new = new.as_deref().unwrap_or_default();
        let text = |parts: &[Part], at: usize| {
            parts.get(at).map_or_else(|| String::from("nothing"), ToString::to_string)
        };
        let at = (0..old.len().max(new.len())).find(|&at| old.get(at) != new.get(at))?;
        Some(format!("part {at} of the outputs was {}, and is {}", text(old, at), text(new, at)))
    }

    /// Asks that the input of this index lie as far into its storage as this one.
    pub(crate) fn set_offset_of(&mut self, index: usize, input: &Tensor) -> Result<(), Error> {
        if let Some(expect) = self.inputs.get_mut(index) {
            *expect = expect.at_offset(Meta::of(input)?.offset);
        }
        Ok(())
    }

    /// The first input that no signature describes.
    pub(crate) fn indescribable(inputs: &[Tensor]) -> Option<String> {
        inputs.iter().enumerate().find_map(|(at, input)| {
            let flags = Meta::of(input).ok()?.flags;
            let what = if flags.contains(Flags::NESTED) {
                "is a nested tensor: pass a padded one with a mask"
            } else if flags.contains(Flags::HIGH_RANK) {
                "has more than 8 dimensions: flatten some of them"
            } else if flags.contains(Flags::COPY_ON_WRITE) {
                "is copied on write: pass a copy"
            } else {
                return None;
            };
            Some(format!("input {at} {what}"))
        })
    }

    /// Whether a call has this signature; on success `data` holds the addresses of its inputs.
    pub(crate) fn matches(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        call: &Call<'_>,
        data: &mut Addresses,
    ) -> bool {
        if self.inputs.len() != inputs.len() || self.state != state.without_grad() {
            return false;
        }
        if self.structure != *call.structure() {
            return false;
        }
        data.clear();
        data.resize(inputs.len(), std::ptr::null_mut());
        check_metas(inputs, &self.inputs, GUARDED_OF_INPUTS, data).is_ok() && self.has_same(inputs, data)
    }

    /// Whether the same of these inputs, which lie at these addresses, are one tensor as in the recorded call.
    fn has_same(&self, inputs: &[Tensor], data: &[*mut c_void]) -> bool {
        // What is one tensor lies at one address.
        let mut sorted: SmallVec<[*mut c_void; 8]> = SmallVec::from_slice(data);
        sorted.sort_unstable();
        let all_apart = sorted.windows(2).all(|pair| pair[0] != pair[1]);
        let metas = || inputs.iter().map(Meta::of).collect::<Result<Vec<_>, _>>();
        (all_apart && self.same.is_empty()) || metas().is_ok_and(|metas| same(&metas) == self.same)
    }
}

/// A guard that a call did not pass, so that none of the plans could run it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GuardMiss {
    /// Calls that did not pass it.
    pub calls: u64,
    /// What the plan that was used last expects.
    pub expected: String,
    /// What the last of these calls had.
    pub found: String,
}

impl Signature {
    /// The first guard of this signature that a call does not pass: what it looks at, what it expects, and what it finds.
    pub(crate) fn difference(
        &self,
        inputs: &[Tensor],
        state: GlobalState,
        call: &Call<'_>,
    ) -> Option<(String, String, String)> {
        let differs = |what: &str, expected: String, found: String| Some((what.to_owned(), expected, found));
        if let Some(difference) = self.structure.difference(call.structure()) {
            return Some(difference);
        }
        if self.inputs.len() != inputs.len() {
            return differs("number of inputs", self.inputs.len().to_string(), inputs.len().to_string());
        }
        if let Some((what, expected, found)) = self.state.difference(state.without_grad()) {
            return differs(what, expected, found);
        }
        let metas = inputs.iter().map(Meta::of).collect::<Result<Vec<_>, _>>().ok()?;
        let input = |(at, (expect, meta)): (usize, (&Expect, &Meta))| {
            let (what, expected, found) = expect.difference(meta)?;
            Some((format!("{what} of input {at}"), expected, found))
        };
        self.inputs.iter().zip(&metas).enumerate().find_map(input).or_else(|| {
            let found = same(&metas);
            let missing = self
                .same
                .iter()
                .find(|pair| !found.contains(pair))
                .map(|pair| (pair, ["one tensor", "two tensors"]));
            let more = || {
                found
                    .iter()
                    .find(|pair| !self.same.contains(pair))
                    .map(|pair| (pair, ["two tensors", "one tensor"]))
            };
            let (&(a, b), [expected, found]) = missing.or_else(more)?;
            differs(&format!("inputs {a} and {b}"), expected.to_owned(), found.to_owned())
        })
    }
}

/// The inputs that are the same tensor as an earlier one, each with the first such.
fn same(metas: &[Meta]) -> Vec<(usize, usize)> {
    let first = |at: usize| (0..at).find(|&i| metas[i].tensor_impl == metas[at].tensor_impl);
    (0..metas.len()).filter_map(|at| Some((first(at)?, at))).collect()
}

/// The largest power of two up to [`ALIGN`] that divides an address.
pub(crate) fn alignment(address: usize) -> usize {
    if address == 0 { ALIGN } else { ALIGN.min(1 << address.trailing_zeros().min(16)) }
}

/// The bytes between the first and the last element of a strided tensor on the host; nothing for any other tensor.
pub(crate) fn host_contents(tensor: &Tensor) -> &[u8] {
    let Ok(meta) = Meta::of(tensor) else { return &[] };
    let plain = meta.flags.is_plain() && meta.device.is_cpu() && meta.strides().iter().all(|&n| n >= 0);
    if !plain || meta.numel == 0 || meta.data == 0 {
        return &[];
    }
    let last: i64 = meta.sizes().iter().zip(meta.strides()).map(|(n, stride)| (n - 1) * stride).sum();
    let bytes = (last + 1) as usize * crate::torch::element_size(meta.dtype);
    // SAFETY: the tensor is alive and on the host, and its storage holds its elements, the last of which ends there.
    unsafe { std::slice::from_raw_parts(meta.data as *const u8, bytes) }
}

/// What a tensor of the model held when its value was compiled in.
#[derive(Debug)]
pub(crate) enum Contents {
    /// Its bytes on the host; none where it lies elsewhere, and its version alone tells of writes.
    Host(Vec<u8>),
    /// The bits of a tensor on a GPU, there.
    Device(Tensors),
}

impl Contents {
    /// Of a tensor on the host.
    pub(crate) fn on_host(tensor: &Tensor) -> Contents {
        Contents::Host(host_contents(tensor).to_vec())
    }

    /// Of a tensor on any device. Comparing those on a GPU waits for it, as a model does that reads a number out of them.
    pub(crate) fn of(tensor: &Tensor) -> Contents {
        let on_gpu = Meta::of(tensor).is_ok_and(|meta| meta.flags.is_plain() && !meta.device.is_cpu());
        let copy = || bits(tensor).and_then(|bits| bits.f_detach_copy()).ok();
        let copy = if on_gpu { copy() } else { None };
        copy.map_or_else(|| Contents::on_host(tensor), |copy| Contents::Device(Tensors(vec![copy])))
    }

    /// Whether a tensor holds the same.
    pub(crate) fn is_of(&self, tensor: &Tensor) -> bool {
        match self {
            Contents::Host(bytes) => host_contents(tensor) == &bytes[..],
            Contents::Device(copy) => {
                let equal = |copy: &Tensor| bits(tensor).and_then(|bits| copy.f_equal(&bits));
                copy.iter().all(|copy| equal(copy).is_ok_and(|is_equal| is_equal))
            }
        }
    }
}

/// The bits of a plain tensor's elements as integers: a NaN is equal to itself.
fn bits(tensor: &Tensor) -> Result<Tensor, tch::TchError> {
    let kind = match tensor.kind().elt_size_in_bytes() {
        1 => tch::Kind::Uint8,
        2 => tch::Kind::Int16,
        4 => tch::Kind::Int,
        _ => tch::Kind::Int64,
    };
    tensor.f_detach()?.f_reshape([-1])?.f_contiguous()?.f_view_dtype(kind)
}

/// Whether gradients are recorded and something here needs them.
pub(crate) fn grad_needed(state: GlobalState, tensors: &[Tensor]) -> bool {
    state.grad() && tensors.iter().any(|t| Meta::of(t).is_ok_and(|m| m.flags.contains(Flags::REQUIRES_GRAD)))
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    /// As on a GPU, on tensors of the host.
    #[test]
    fn contents_are_compared_bit_by_bit_in_every_type() {
        let all = Tensor::arange(24, (Kind::Float, tch::Device::Cpu)).reshape([4, 6]);
        let kinds = [
            Kind::Bool,
            Kind::Uint8,
            Kind::Int64,
            Kind::Half,
            Kind::BFloat16,
            Kind::Float,
            Kind::Double,
            Kind::ComplexFloat,
            Kind::ComplexDouble,
        ];
        for kind in kinds {
            let whole = all.to_kind(kind);
            for tensor in [
                whole.copy(),
                whole.tr(),
                whole.narrow(1, 1, 3),
                whole.select(0, 1),
                whole.select(0, 1).select(0, 2),
            ] {
                let copy = bits(&tensor).unwrap().f_detach_copy().unwrap();
                let contents = Contents::Device(Tensors(vec![copy]));
                assert!(
                    contents.is_of(&tensor) && contents.is_of(&tensor.copy()),
                    "{kind:?} {:?}",
                    tensor.size()
                );
                let mut other = tensor.copy();
                let _ = other.fill_(0.0);
                assert!(!contents.is_of(&other), "{kind:?} {:?}", tensor.size());
            }
        }
        let nan = Tensor::from_slice(&[f32::NAN, -0.0]);
        let contents = Contents::Device(Tensors(vec![bits(&nan).unwrap().copy()]));
        assert!(contents.is_of(&nan.copy()) && !contents.is_of(&nan.abs()));
        let empty = Tensor::empty([0, 3], (Kind::Float, tch::Device::Cpu));
        assert!(Contents::Device(Tensors(vec![bits(&empty).unwrap().copy()])).is_of(&empty));
    }
}
