//! Which tensors share memory after a call: the same as in eager.
//!
//! The graph says which outputs share memory with an input, a parameter or each other. All others are apart from
//! everything: those that lie elsewhere only because a copy was left out are copied here.

use tch::Tensor;
use tilefuse_fusion::{AliasTarget, Dims, TensorType};

use super::exec::Frame;
use super::slots::{Slot, TensorSource};
use super::steps::LibraryResult;
use crate::Error;
use crate::torch::{self, Flags, Meta, TensorId, Trace, empty_strided};

impl Frame<'_> {
    /// Whether a result of a libtorch call, which looks like `meta`, lies in the memory of an operand that is written over
    /// later. One that lies in that of another operand is remembered.
    pub(super) fn find_shared(
        &mut self,
        meta: &Meta,
        operands: &[Tensor],
        reused: &[usize],
        result: &LibraryResult,
    ) -> Result<bool, Error> {
        if !meta.flags.contains(Flags::HAS_STORAGE) || (meta.use_count == 1 && meta.storage_use_count == 1) {
            return Ok(false);
        }
        for (at, operand) in operands.iter().enumerate() {
            if operand.defined() && Meta::of(operand)?.storage == meta.storage {
                if reused.contains(&at) {
                    return Ok(true);
                }
                self.views.push(result.position);
            }
        }
        Ok(false)
    }

    /// Copies the outputs that lie in the memory of an operand of the call that made them where eager's lie in no other
    /// tensor's.
    pub(super) fn separate(&self, outputs: &mut [Tensor]) -> Result<(), Error> {
        if self.views.is_empty() {
            return Ok(());
        }
        let aliases = &self.compiled.plan.graph.aliases;
        let alone: Vec<usize> =
            (0..outputs.len()).filter(|&at| aliases.get(at).is_none_or(Option::is_none)).collect();
        for &at in &alone {
            let (source, copied) = (&self.compiled.outputs[at], &self.compiled.copied[at]);
            let is_view = matches!(source.slot, Slot::Extern(position) if self.views.contains(&position));
            if !is_view || copied.is_some() {
                continue;
            }
            let own = Meta::of(&outputs[at])?;
            let of_caller = self.inputs.iter().chain(self.compiled.params.iter());
            let others = alone.iter().filter(|&&other| other != at).map(|&other| &outputs[other]);
            let mut all = of_caller.chain(self.compiled.consts.iter()).chain(others);
            if all.any(|other| Meta::of(other).is_ok_and(|other| other.storage == own.storage)) {
                outputs[at] = copy_as(&outputs[at], &super::exec::type_of(source))?;
            }
        }
        Ok(())
    }

    /// Makes outputs share memory with inputs, parameters and each other as eager's do.
    pub(super) fn alias(&self, outputs: &mut [Tensor]) -> Result<(), Error> {
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
            let alike = meta.sizes() == &alias.ty.shape[..] && meta.strides() == &alias.ty.strides[..];
            outputs[at] = match self.compiled.same.get(at).copied().flatten() {
                Some(Same::Output(first)) => outputs[first].shallow_clone(),
                Some(Same::Owner) if alike && alias.offset == 0 => owner.shallow_clone(),
                _ => torch::as_strided_of(
                    owner,
                    &alias.ty.shape,
                    &alias.ty.strides,
                    meta.offset + alias.offset,
                )?,
            };
        }
        Ok(())
    }
}

/// What an output is, where it is a tensor that is there already and no view of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Same {
    /// The output of this position, which is an earlier one.
    Output(usize),
    /// The input or the tensor of the model whose memory it has.
    Owner,
}

/// By output: what it is of what is there already.
pub(super) fn same(trace: &Trace) -> Vec<Option<Same>> {
    let is_owner =
        |t: &TensorId| trace.inputs.contains(t) || trace.params.iter().any(|(param, _)| param == t);
    let same = |(at, t): (usize, &TensorId)| {
        let first = trace.outputs[..at].iter().position(|other| other == t).map(Same::Output);
        first.or_else(|| is_owner(t).then_some(Same::Owner))
    };
    trace.outputs.iter().enumerate().map(same).collect()
}

/// Which outputs are whole tensors that the steps of a call made, and that no other output, no update and no copy reads: the
/// call gives these away rather than handles of them. Inputs, parameters and constants, with them prepacked weights, are
/// never among them.
pub(super) fn handed(
    outputs: &[TensorSource],
    copied: &[Option<TensorType>],
    updates: &[(Slot, TensorSource)],
) -> Vec<bool> {
    let all = || outputs.iter().chain(updates.iter().map(|(_, source)| source));
    let is_handed = |(source, copied): (&TensorSource, &Option<TensorType>)| {
        let made = matches!(source.slot, Slot::Own(_) | Slot::Extern(_));
        let users = all().filter(|other| other.slot == source.slot).count();
        made && users == 1 && source.view.is_none() && copied.is_none()
    };
    outputs.iter().zip(copied).map(is_handed).collect()
}

/// A copy of a tensor in memory of its own, with the strides of a type: what repeats along an expanded dimension is
/// copied once. Of a view whose elements overlap otherwise, a dense copy. A conjugate that is not carried out stays one.
pub(super) fn copy_as(tensor: &Tensor, ty: &TensorType) -> Result<Tensor, Error> {
    let flags = Meta::of(tensor)?.flags;
    if flags.contains(Flags::CONJ) {
        return failed(copy_as(&failed(tensor.f_conj())?, ty)?.f_conj());
    }
    if flags.contains(Flags::NEG) {
        let negated = failed(tensor.f_internal_neg_view())?;
        return failed(copy_as(&negated, ty)?.f_internal_neg_view());
    }
    if !flags.contains(Flags::HIGH_RANK) {
        return copy_of(tensor, &ty.shape, &ty.strides);
    }
    // Its type has not all of its dimensions.
    if flags.contains(Flags::STRIDED) {
        return copy_of(tensor, &tensor.size(), &tensor.stride());
    }
    let mut copy = failed(tensor.f_empty_like())?;
    failed(tch::no_grad(|| copy.f_copy_(tensor)))?;
    Ok(copy)
}

/// A copy of a tensor of this shape with these strides, as [`copy_as`] makes it.
pub(super) fn copy_of(tensor: &Tensor, shape: &[i64], strides: &[i64]) -> Result<Tensor, Error> {
    let meta = Meta::of(tensor)?;
    let (scalar, device) = (meta.dtype, meta.device);
    let mut once = Dims::from_slice(shape);
    let mut source = tensor.shallow_clone();
    let repeated = |d: usize| strides[d] == 0 && shape[d] > 1;
    for d in (0..once.len()).filter(|&d| repeated(d)) {
        once[d] = 1;
        source = failed(source.f_narrow(d as i64, 0, 1))?;
    }
    let mut copy = empty_strided(&once, strides, scalar, device)?;
    if tch::no_grad(|| copy.f_copy_(&source)).is_err() {
        copy = empty_strided(&once, &tilefuse_fusion::row_major(&once), scalar, device)?;
        failed(tch::no_grad(|| copy.f_copy_(&source)))?;
        return failed(copy.f_expand(shape, false));
    }
    torch::as_strided_of(&copy, shape, strides, 0)
}

/// A failure of libtorch as an error.
pub(super) fn failed<T>(result: Result<T, tch::TchError>) -> Result<T, Error> {
    result.map_err(|error| Error::Torch(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tilefuse_block::Elem;
    use tilefuse_fusion::{DType, Device};

    use super::*;

    #[test]
    fn only_tensors_that_nothing_else_reads_are_given_away() {
        let ty = TensorType::contiguous(DType::Elem(Elem::F32), &[4], Device::Cpu);
        let whole = |slot| TensorSource { slot, ty: ty.clone(), view: None };
        let part =
            |slot| TensorSource { view: Some((ty.shape.clone(), ty.strides.clone(), 0)), ..whole(slot) };
        let outputs = [
            whole(Slot::Own(0)),
            whole(Slot::Extern(0)),
            // Returned twice.
            whole(Slot::Own(1)),
            whole(Slot::Own(1)),
            // A whole and a part of it.
            whole(Slot::Extern(1)),
            part(Slot::Extern(1)),
            // A part alone.
            part(Slot::Own(2)),
            // Copied.
            whole(Slot::Own(3)),
            // Written to an input as well.
            whole(Slot::Own(4)),
            // Of the caller, of the model and of the plan.
            whole(Slot::Input(0)),
            whole(Slot::Param(0)),
            whole(Slot::Const(0)),
            whole(Slot::Arena(0)),
        ];
        let mut copied = vec![None; outputs.len()];
        copied[7] = Some(ty.clone());
        let updates = [(Slot::Input(0), whole(Slot::Own(4)))];
        let given = handed(&outputs, &copied, &updates);
        assert_eq!((0..outputs.len()).filter(|&at| given[at]).collect::<Vec<_>>(), [0, 1]);
    }
}
