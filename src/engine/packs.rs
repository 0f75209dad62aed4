//! Weights in the order in which products on the host read them: constants of a plan that are filled when it first runs,
//! and again when a weight has been written since.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tch::Tensor;
use tilefuse_fusion::{Packed, Panels};

use super::compile::Tensors;
use super::exec::device_id;
use crate::Error;
use crate::torch::{Meta, as_strided_of, element_size, empty_strided};

/// Elements of a weight that are compared at every call: a write that no version counts shows in them most likely.
const SAMPLES: usize = 4;

/// Times that weights may have been written before it matters how often that happens.
const WRITES: u32 = 4;

/// Times that a call packs what others write meanwhile.
const TRIES: usize = 64;

/// Calls for each time that weights were written at least; with fewer, packing takes longer than it saves.
const CALLS: u32 = 4;

/// The packed weights of a plan.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    packs: Vec<Pack>,
    /// The weights.
    weights: Tensors,
    /// What the packed weights were made of. Calls hold it while they read.
    made: RwLock<Vec<Made>>,
    calls: AtomicU32,
    writes: AtomicU32,
}

#[derive(Debug)]
struct Pack {
    panels: Panels,
    /// Where the constant is among those of the plan.
    constant: usize,
    /// Bytes from the weight's first element to the samples.
    samples: [usize; SAMPLES],
    /// Bytes of an element.
    size: usize,
}

/// The state of a weight when it was packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Made {
    version: i64,
    samples: [u64; SAMPLES],
    done: bool,
}

/// While it lives, packed weights are not made anew.
pub(crate) struct Held<'a> {
    _made: Option<RwLockReadGuard<'a, Vec<Made>>>,
}

impl Packs {
    /// The packed weights of a plan whose constants begin at `first`, and the constants, not filled yet.
    pub(crate) fn new(packed: &[Packed], params: &[Tensor]) -> Result<(Packs, Vec<Tensor>), Error> {
        let missing = || Error::Internal(String::from("a weight that is packed is not there"));
        let (mut packs, mut weights, mut constants) = (Vec::new(), Vec::new(), Vec::new());
        for Packed { constant, ty, panels } in packed {
            let weight = params.get(panels.param as usize).ok_or_else(missing)?;
            let size = element_size(Meta::of(weight)?.dtype);
            let (k, n) = (panels.rows - 1, panels.columns - 1);
            let places = [(0, 0), (k / 3, n / 2), (k / 2, n / 3), (k, n)].map(|(k, n)| panels.element(k, n));
            let samples = places.map(|at| at as usize * size);
            packs.push(Pack { panels: panels.clone(), constant: *constant as usize, samples, size });
            weights.push(weight.shallow_clone());
            let (dtype, device) = (ty.dtype.scalar_type(), device_id(ty.device));
            constants.push(empty_strided(&ty.shape, &ty.strides, dtype, device)?);
        }
        let made = RwLock::new(vec![Made::default(); packs.len()]);
        let weights = Tensors(weights);
        Ok((Packs { packs, weights, made, calls: AtomicU32::new(0), writes: AtomicU32::new(0) }, constants))
    }

    /// The tensors of the model that it holds handles of.
    pub(crate) fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    /// Bytes of the packed weights.
    pub(crate) fn bytes(&self) -> u64 {
        let numel = |p: &Pack| p.panels.shape().iter().product::<i64>() as u64;
        self.packs.iter().map(|p| numel(p) * p.size as u64).sum()
    }

    /// Whether the weights are written so often that packing them does not pay.
    pub(crate) fn are_written_often(&self) -> bool {
        let (calls, writes) = (self.calls.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed));
        writes >= WRITES && calls < writes.saturating_mul(CALLS)
    }

    /// Packs weights that are not packed yet or were written since, and keeps them so while the result lives. `None`
    /// where others write them all the while.
    pub(crate) fn hold(&self, constants: &[Tensor]) -> Result<Option<Held<'_>>, Error> {
        if self.packs.is_empty() {
            return Ok(Some(Held { _made: None }));
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        for _ in 0..TRIES {
            let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
            if self.fits(&made)? {
                return Ok(Some(Held { _made: Some(made) }));
            }
            drop(made);
            self.pack(constants)?;
        }
        Ok(None)
    }

    fn fits(&self, made: &[Made]) -> Result<bool, Error> {
        for ((pack, weight), made) in self.packs.iter().zip(self.weights.deref()).zip(made) {
            if pack.now(weight)? != *made {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Packs what does not fit.
    fn pack(&self, constants: &[Tensor]) -> Result<(), Error> {
        let missing = || Error::Internal(String::from("a constant for a weight is not there"));
        let mut all = self.made.write().unwrap_or_else(PoisonError::into_inner);
        let mut written = false;
        for ((pack, weight), made) in self.packs.iter().zip(self.weights.deref()).zip(all.iter_mut()) {
            let now = pack.now(weight)?;
            if *made == now {
                continue;
            }
            written |= made.done;
            *made = Made::default();
            pack.fill(weight, constants.get(pack.constant).ok_or_else(missing)?)?;
            *made = now;
        }
        if written {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Pack {
    /// The state of a weight. A tensor of inference mode has the same version always.
    fn now(&self, weight: &Tensor) -> Result<Made, Error> {
        let meta = Meta::of(weight)?;
        let data = meta.data as *const u8;
        let samples = self.samples.map(|at| {
            let mut bytes = [0; 8];
            let size = self.size.min(8);
            // SAFETY: the guards have found the weight to be of the type that the places were computed for, and it is alive.
            unsafe { std::ptr::copy_nonoverlapping(data.add(at), bytes.as_mut_ptr(), size) };
            u64::from_le_bytes(bytes)
        });
        Ok(Made { version: meta.version, samples, done: true })
    }

    /// Copies a weight into the panels of a constant.
    fn fill(&self, weight: &Tensor, constant: &Tensor) -> Result<(), Error> {
        let &Panels { rows, run, columns, width, strides: [runs, down, across], offset, .. } = &self.panels;
        let start = Meta::of(weight)?.offset + offset;
        let (whole, rest) = (columns.div_euclid(width), columns % width);
        let count = rows.div_euclid(run.max(1));
        let source = |shape: &[i64], strides: &[i64], from: i64| as_strided_of(weight, shape, strides, from);
        let failed = |error: tch::TchError| Error::Torch(error.to_string());
        tch::no_grad(|| {
            let panels = constant.f_view([-1, count, run, width]).map_err(failed)?;
            if whole > 0 {
                let source =
                    source(&[whole, count, run, width], &[width * across, runs, down, across], start)?;
                panels.f_narrow(0, 0, whole).and_then(|mut t| t.f_copy_(&source)).map_err(failed)?;
            }
            if rest > 0 {
                let source =
                    source(&[count, run, rest], &[runs, down, across], start + whole * width * across)?;
                let mut last = panels.f_select(0, whole).map_err(failed)?;
                let _ = last.f_zero_().map_err(failed)?;
                last.f_narrow(2, 0, rest).and_then(|mut t| t.f_copy_(&source)).map_err(failed)?;
            }
            Ok(())
        })
    }
}
