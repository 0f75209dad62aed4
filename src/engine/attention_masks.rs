//! What the engine knows of a model's attention masks, and of libtorch's attention operator.

use std::collections::{BTreeSet, HashMap};

use tch::{Kind, Tensor};
use tilefuse_codegen::cache::{Key, Kind as Stored};
use tilefuse_fusion::rewrite::select_attention::{Facts, MaskFacts, MaskKind, highest_excluded};
use tilefuse_fusion::{AtenCall, Device, Dims, Graph, TensorType, ValueRef};

use super::evaluate::Evaluator;
use super::exec::device_id;
use super::kernels::{cache, device_name};
use super::steps::new_call;
use crate::torch::{Meta, empty_strided};

/// Answers for a graph whose parameters and constants are these tensors.
pub(crate) struct Masks<'a> {
    params: &'a [Tensor],
    consts: &'a [Tensor],
    known: HashMap<(ValueRef, MaskKind), Option<Known>>,
    strides: HashMap<String, Option<Dims>>,
    /// Parameters whose values the answers that were relied on rest on.
    assumed: BTreeSet<u32>,
}

/// What a mask does, and the parameters that it is computed from.
struct Known {
    facts: MaskFacts,
    params: BTreeSet<u32>,
}

impl<'a> Masks<'a> {
    pub(crate) fn new(params: &'a [Tensor], consts: &'a [Tensor]) -> Masks<'a> {
        let (known, strides) = Default::default();
        Masks { params, consts, known, strides, assumed: BTreeSet::new() }
    }

    /// The parameters whose values were relied on.
    pub(crate) fn assumed(self, params: &[Tensor]) -> Vec<Tensor> {
        let assumed = self.assumed.into_iter().filter_map(|slot| params.get(slot as usize));
        assumed.map(Tensor::shallow_clone).collect()
    }

    fn look(&self, graph: &Graph, mask: ValueRef, kind: MaskKind) -> Option<Known> {
        let mut evaluator = Evaluator::new(graph, self.params, self.consts);
        let facts = tch::no_grad(|| facts_of(&evaluator.value(mask)?, kind, graph.ty(mask)))?;
        Some(Known { facts, params: evaluator.read })
    }
}

/// What a mask of known value does. All its rows are looked at: one batch of many counts.
fn facts_of(mask: &Tensor, kind: MaskKind, ty: &TensorType) -> Option<MaskFacts> {
    let elem = ty.dtype.elem()?;
    let shape = mask.size();
    let &[.., queries, keys] = &shape[..] else { return None };
    let (excluded, kept) = match kind {
        MaskKind::Excludes if mask.kind() == Kind::Bool => (mask.shallow_clone(), mask.f_logical_not().ok()?),
        MaskKind::Keeps if mask.kind() == Kind::Bool => (mask.f_logical_not().ok()?, mask.shallow_clone()),
        MaskKind::Added if mask.is_floating_point() => {
            (mask.f_le(highest_excluded(elem)).ok()?, mask.f_eq(0.0).ok()?)
        }
        _ => return None,
    };
    let later = Tensor::f_ones([queries, keys], (Kind::Bool, mask.device())).ok()?.f_triu(1).ok()?;
    let all = |t: Tensor| t.f_all().ok()?.f_int64_value(&[]).ok().map(|v| v != 0);
    let causal = all(excluded.f_eq_tensor(&later).ok()?)? && all(kept.f_ne_tensor(&later).ok()?)?;
    let open = match kind {
        MaskKind::Excludes | MaskKind::Keeps => kept,
        MaskKind::Added => mask.f_gt(f64::NEG_INFINITY).ok()?,
    };
    Some(MaskFacts { causal, rows_open: all(open.f_any_dim(-1, false).ok()?)? })
}

impl Facts for Masks<'_> {
    fn mask(&mut self, graph: &Graph, mask: ValueRef, kind: MaskKind) -> Option<MaskFacts> {
        let key = (mask, kind);
        if !self.known.contains_key(&key) {
            let known = self.look(graph, mask, kind);
            self.known.insert(key, known);
        }
        self.known.get(&key)?.as_ref().map(|known| known.facts)
    }

    fn rely(&mut self, mask: ValueRef, kind: MaskKind) {
        let known = self.known.get(&(mask, kind));
        self.assumed.extend(known.into_iter().flatten().flat_map(|known| &known.params));
    }

    fn result_strides(&mut self, call: &AtenCall, operands: &[TensorType]) -> Option<Dims> {
        let key = format!("{call:?} {operands:?}");
        if let Some(known) = self.strides.get(&key) {
            return known.clone();
        }
        let strides = kept_strides(&key, operands).or_else(|| {
            let strides = run_once(call, operands)?;
            keep_strides(&key, operands, &strides);
            Some(strides)
        });
        self.strides.insert(key, strides.clone());
        strides
    }
}

/// Under which the strides of a call's result are kept on disk: on another device libtorch may take another way. The first
/// call of libtorch's attention in a process takes some 80 ms on a GPU, which a plan from the cache need not wait for.
fn entry(call: &str, operands: &[TensorType]) -> Option<Key> {
    let device = match operands.first()?.device {
        Device::Cuda(ordinal) => device_name(tch::Device::Cuda(ordinal as usize)),
        _ => device_name(tch::Device::Cpu),
    };
    Some(Key::new(call, &device.ok()?, "strides of attention 1"))
}

fn kept_strides(call: &str, operands: &[TensorType]) -> Option<Dims> {
    let bytes = cache().get(Stored::Tuning, entry(call, operands)?)?;
    let strides: Vec<i64> = serde_json::from_slice(&bytes).ok()?;
    (Some(strides.len()) == operands.first().map(TensorType::rank)).then(|| Dims::from_slice(&strides))
}

fn keep_strides(call: &str, operands: &[TensorType], strides: &Dims) {
    if let (Some(entry), Ok(bytes)) = (entry(call, operands), serde_json::to_vec(&strides[..])) {
        cache().put(Stored::Tuning, entry, &bytes);
    }
}

/// The strides of what a call returns for tensors of these types.
fn run_once(call: &AtenCall, operands: &[TensorType]) -> Option<Dims> {
    let tensor = |ty: &TensorType| {
        let mut tensor =
            empty_strided(&ty.shape, &ty.strides, ty.dtype.scalar_type(), device_id(ty.device)).ok()?;
        let _ = tch::no_grad(|| tensor.f_zero_()).ok()?;
        Some(tensor)
    };
    let tensors = operands.iter().map(tensor).collect::<Option<Vec<_>>>()?;
    let results = new_call(call).and_then(|call| call.run(&tensors.iter().collect::<Vec<_>>())).ok()?;
    let meta = Meta::of(results.first()?).ok()?;
    Some(Dims::from_slice(meta.strides()))
}
