//! Weights in the order in which products on the host, and convolutions on a GPU, read them: constants that all plans of a model
//! share, and that are filled when one of them first runs, and again when a weight has been written since.
//!
//! On a GPU versions and addresses alone tell of writes: to read elements, a call would wait for the device.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;
use tch::Tensor;
use tilefuse_codegen::cuda;
use tilefuse_fusion::{DType, Panels, Prepacked};

use super::compile::Tensors;
use super::dirty::{self, Mappings, Watch};
use super::exec::device_id;
use super::kernels::Target;
use crate::Error;
use crate::options::Prepack;
use crate::torch::{Meta, as_strided_of, element_size, empty_strided, states_of};

/// Elements of a weight on the host whose pages are not watched that are compared at every call: a write that no version counts
/// shows in them most likely.
const SAMPLES: usize = 4;

/// Times that weights may have been written before it matters how often that happens.
const WRITES: u32 = 4;

/// Times that a call packs what others write meanwhile.
const TRIES: usize = 64;

/// Calls for each time that weights were written at least; with fewer, packing takes longer than it saves.
const MIN_CALLS_PER_WRITE: u32 = 4;

impl Prepack {
    /// Whether any weight may be prepacked on this machine.
    pub fn is_possible(self) -> bool {
        match self {
            Prepack::Tracked => dirty::is_available(),
            Prepack::Always => true,
            Prepack::Never => false,
        }
    }
}

/// The packed weights of all plans of a model.
#[derive(Debug, Default)]
pub(crate) struct PrepackCache {
    /// Each at the place that plans know; none where no plan has it any more. Calls hold it while they read.
    shared: RwLock<Vec<Option<Shared>>>,
    calls: AtomicU32,
    writes: AtomicU32,
    /// Whether a weight could not be watched that is to be.
    unwatched: AtomicBool,
}

/// A packed weight.
#[derive(Debug)]
struct Shared {
    key: SharedKey,
    constant: Tensors,
    /// What it was made of.
    made: Made,
    /// Sees writes to the weight that no version counts.
    watch: Option<Watch>,
    /// How many plans have it.
    users: usize,
}

/// A weight, as long as a plan holds it, and how it is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedKey {
    weight: usize,
    /// Of no slot: plans number their parameters each for itself.
    panels: Panels,
    dtype: DType,
}

/// The packed weights of a plan.
#[derive(Debug)]
pub(crate) struct PrepackedWeights {
    packs: Vec<Pack>,
    /// The weights.
    weights: Tensors,
    store: Arc<PrepackCache>,
    /// Whether weights are packed only while their pages are watched.
    tracked: bool,
}

#[derive(Debug)]
struct Pack {
    panels: Panels,
    /// Where it is in the store.
    place: usize,
    /// Bytes from the weight's first element to the samples, of a weight on the host.
    samples: Option<[usize; SAMPLES]>,
    /// Bytes of an element.
    size: usize,
}

/// The state of a weight when it was packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Made {
    version: i64,
    /// Where its elements are.
    data: usize,
    samples: [u64; SAMPLES],
    /// Writes that the watch had seen.
    writes: u64,
    done: bool,
}

/// While it lives, packed weights are not made anew.
pub(crate) struct Held<'a> {
    _made: Option<RwLockReadGuard<'a, Vec<Option<Shared>>>>,
}

impl PrepackCache {
    fn read(&self) -> RwLockReadGuard<'_, Vec<Option<Shared>>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Option<Shared>>> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a packed weight, which has one more user, and its tensor; `make` makes it where there is none yet.
    fn share(
        &self,
        key: SharedKey,
        make: impl FnOnce() -> Result<Tensor, Error>,
    ) -> Result<(usize, Tensor), Error> {
        let mut all = self.write();
        for (place, shared) in all.iter_mut().enumerate() {
            let Some(shared) = shared.as_mut().filter(|shared| shared.key == key) else { continue };
            if let Some(constant) = shared.constant.first() {
                shared.users += 1;
                return Ok((place, constant.shallow_clone()));
            }
        }
        let constant = make()?;
        let place = all.iter().position(Option::is_none).unwrap_or(all.len());
        if place == all.len() {
            all.push(None);
        }
        let own = Tensors(vec![constant.shallow_clone()]);
        all[place] = Some(Shared { key, constant: own, made: Made::default(), watch: None, users: 1 });
        Ok((place, constant))
    }
}

impl Drop for PrepackedWeights {
    fn drop(&mut self) {
        let mut all = self.store.write();
        for pack in &self.packs {
            let Some(entry) = all.get_mut(pack.place) else { continue };
            let Some(shared) = entry else { continue };
            shared.users -= 1;
            if shared.users == 0 {
                *entry = None;
            }
        }
    }
}

impl PrepackedWeights {
    /// The packed weights of a plan of the model that the store is of, and the constants, which may not be filled yet.
    pub(crate) fn new(
        packed: &[Prepacked],
        params: &[Tensor],
        store: &Arc<PrepackCache>,
        prepack: Prepack,
    ) -> Result<(PrepackedWeights, Vec<Tensor>), Error> {
        let missing = || Error::Internal(String::from("a weight that is packed is not there"));
        let store = Arc::clone(store);
        let tracked = prepack == Prepack::Tracked;
        let mut packs = PrepackedWeights { packs: Vec::new(), weights: Tensors::default(), store, tracked };
        let mut constants = Vec::new();
        for Prepacked { ty, panels, .. } in packed {
            let weight = params.get(panels.param as usize).ok_or_else(missing)?;
            let meta = Meta::of(weight)?;
            let size = element_size(meta.dtype);
            let (k, n) = (panels.rows - 1, panels.columns - 1);
            let places = [(0, 0), (k / 3, n / 2), (k / 2, n / 3), (k, n)].map(|(k, n)| panels.element(k, n));
            let samples = meta.device.is_cpu().then(|| places.map(|at| at as usize * size));
            let key = SharedKey {
                weight: meta.tensor_impl,
                panels: Panels { param: 0, ..panels.clone() },
                dtype: ty.dtype,
            };
            let (place, constant) = packs.store.share(key, || {
                empty_strided(&ty.shape, &ty.strides, ty.dtype.scalar_type(), device_id(ty.device))
            })?;
            packs.packs.push(Pack { panels: panels.clone(), place, samples, size });
            packs.weights.0.push(weight.shallow_clone());
            constants.push(constant);
        }
        Ok((packs, constants))
    }

    /// The tensors of the model that it holds handles of.
    pub(crate) fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    /// The parameters that hold the weights, by constant.
    pub(crate) fn params(&self) -> impl Iterator<Item = u32> + '_ {
        self.packs.iter().map(|pack| pack.panels.param)
    }

    /// Bytes of the packed weights.
    pub(crate) fn bytes(&self) -> u64 {
        let numel = |p: &Pack| p.panels.shape().iter().product::<i64>() as u64;
        self.packs.iter().map(|p| numel(p) * p.size as u64).sum()
    }

    /// Why the model's weights are not to be packed any more.
    pub(crate) fn given_up(&self) -> Option<&'static str> {
        let PrepackCache { calls, writes, unwatched, .. } = &*self.store;
        if self.packs.is_empty() {
            return None;
        }
        if self.tracked && unwatched.load(Ordering::Relaxed) {
            return Some("writes to the weights cannot be tracked, so they are not prepacked");
        }
        let (calls, writes) = (calls.load(Ordering::Relaxed), writes.load(Ordering::Relaxed));
        let often = writes >= WRITES && calls < writes.saturating_mul(MIN_CALLS_PER_WRITE);
        often.then_some("prepacked weights are written often")
    }

    /// Packs weights that are not packed yet or were written since, and keeps them so while the result lives. `None`
    /// where others write them all the while, and where they are given up.
    pub(crate) fn hold(&self) -> Result<Option<Held<'_>>, Error> {
        if self.packs.is_empty() {
            return Ok(Some(Held { _made: None }));
        }
        self.store.calls.fetch_add(1, Ordering::Relaxed);
        for _ in 0..TRIES {
            let made = self.store.read();
            if self.fits(&made)? {
                return Ok(Some(Held { _made: Some(made) }));
            }
            drop(made);
            if !self.pack()? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn fits(&self, all: &[Option<Shared>]) -> Result<bool, Error> {
        let (mut made, mut watches) = (SmallVec::<[_; 16]>::new(), SmallVec::<[_; 16]>::new());
        for pack in &self.packs {
            let Some(shared) = all.get(pack.place).and_then(Option::as_ref) else { return Ok(false) };
            made.push(shared.made);
            watches.push(shared.watch.as_ref());
        }
        let now = states_of(&self.weights)?.into_iter().zip(dirty::writes(&watches));
        let mut all = self.packs.iter().zip(made).zip(now);
        Ok(all.all(|((pack, made), (state, writes))| made == pack.now(state, writes)))
    }

    /// Packs what does not fit. `false` where a weight cannot be watched that is to be.
    fn pack(&self) -> Result<bool, Error> {
        let _span = tracing::info_span!("prepack", weights = self.packs.len()).entered();
        let missing = || Error::Internal(String::from("a constant for a weight is not there"));
        let mut all = self.store.write();
        let mut written = false;
        let mut mappings = None;
        for (pack, weight) in self.packs.iter().zip(self.weights.deref()) {
            let shared = all.get_mut(pack.place).and_then(Option::as_mut).ok_or_else(missing)?;
            if self.tracked {
                let range = Meta::of(weight)?.extent();
                if shared.watch.as_ref().is_none_or(|watch| *watch.range() != range) {
                    shared.made = Made::default();
                    shared.watch = Watch::new(range, mappings.get_or_insert_with(Mappings::now));
                    if shared.watch.is_none() {
                        self.store.unwatched.store(true, Ordering::Relaxed);
                        return Ok(false);
                    }
                }
            }
            // Before the weight is read: what is written meanwhile is a write since then.
            let Meta { version, data, .. } = Meta::of(weight)?;
            let now = pack.now((version, data), shared.watch.as_ref().map(Watch::writes));
            if shared.made == now {
                continue;
            }
            let device = gpu_of(weight)?;
            if shared.made.done {
                written = true;
                // Calls on other streams may read it still.
                device.iter().try_for_each(|device| device.synchronize())?;
            }
            shared.made = Made::default();
            pack.fill(weight, shared.constant.first().ok_or_else(missing)?)?;
            device.iter().try_for_each(|device| device.synchronize())?;
            shared.made = now;
        }
        if written {
            self.store.writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }
}

/// Whether weights are prepacked for a target in a model of these parameters: all of those on the host have pages that can be
/// watched, where they are to be, and those on a GPU have versions.
pub(super) fn may_pack(prepack: Prepack, params: &[Tensor], target: Target) -> Result<bool, Error> {
    if target != Target::Host {
        let counted = |param: &Tensor| Meta::of(param).map(|meta| meta.version >= 0);
        return Ok(prepack == Prepack::Always
            && params
                .iter()
                .map(counted)
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .all(|counted| counted));
    }
    if prepack != Prepack::Tracked {
        return Ok(prepack == Prepack::Always);
    }
    if !params.iter().any(|param| param.device() == tch::Device::Cpu) || !dirty::is_available() {
        return Ok(false);
    }
    let mappings = Mappings::now();
    for param in params {
        let meta = Meta::of(param)?;
        let range = meta.extent();
        if meta.device.is_cpu() && !range.is_empty() && !mappings.hold(&range) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The GPU that has a weight; none where the host has it.
fn gpu_of(weight: &Tensor) -> Result<Option<Arc<cuda::Device>>, Error> {
    match weight.device() {
        tch::Device::Cuda(ordinal) => Ok(Some(cuda::Device::get(ordinal)?)),
        _ => Ok(None),
    }
}

impl Pack {
    /// The state of a weight of this version and address, with the writes that its watch has seen, where it has one. A tensor
    /// of inference mode has the same version always.
    fn now(&self, (version, data): (i64, usize), writes: Option<u64>) -> Made {
        let made = Made { version, data, done: true, ..Made::default() };
        if let Some(writes) = writes {
            return Made { writes, ..made };
        }
        let data = data as *const u8;
        let Some(samples) = self.samples else { return made };
        let samples = samples.map(|at| {
            let mut bytes = [0; 8];
            let size = self.size.min(8);
            // SAFETY: the guards have found the weight to be of the type that the places were computed for, and it is alive.
            unsafe { std::ptr::copy_nonoverlapping(data.add(at), bytes.as_mut_ptr(), size) };
            u64::from_le_bytes(bytes)
        });
        Made { samples, ..made }
    }

    /// Copies a weight into the panels of a constant.
    fn fill(&self, weight: &Tensor, constant: &Tensor) -> Result<(), Error> {
        if self.panels.group > 1 {
            return self.fill_groups(weight, constant);
        }
        let &Panels { rows, run, columns, block, width, strides, offset, .. } = &self.panels;
        let [runs, down, across, blocks] = strides;
        let start = Meta::of(weight)?.offset + offset;
        let (whole, rest) = (block.div_euclid(width), block % width);
        let count = rows.div_euclid(run.max(1));
        let source = |shape: &[i64], strides: &[i64], from: i64| as_strided_of(weight, shape, strides, from);
        let failed = |error: tch::TchError| Error::Torch(error.to_string());
        tch::no_grad(|| {
            let panels = constant.f_view([-1, count, run, width]).map_err(failed)?;
            for number in (0..columns.div_euclid(block.max(1))).take_while(|_| whole > 0) {
                let strides = [width * across, runs, down, across];
                let source = source(&[whole, count, run, width], &strides, start + number * blocks)?;
                let own = panels.f_narrow(0, number * whole, whole);
                own.and_then(|mut t| t.f_copy_(&source)).map_err(failed)?;
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

    /// The same where panels are in VNNI layout: whole panels and the last one, whole groups and the last one.
    fn fill_groups(&self, weight: &Tensor, constant: &Tensor) -> Result<(), Error> {
        let &Panels { rows, columns, width, group, filled, strides: [_, down, across, _], offset, .. } =
            &self.panels;
        let start = Meta::of(weight)?.offset + offset;
        let (whole, groups) = (columns.div_euclid(width), rows.div_euclid(group));
        let (rest, left) = (columns.rem_euclid(width), rows.rem_euclid(group));
        let failed = |error: tch::TchError| Error::Torch(error.to_string());
        tch::no_grad(|| {
            let mut panels = constant.f_view([-1, filled / group, width, group]).map_err(failed)?;
            if rest > 0 || filled > rows {
                let _ = panels.f_zero_().map_err(failed)?;
            }
            for [panel, count, wide] in [[0, whole, width], [whole, 1, rest]] {
                for [first, many, side] in [[0, groups, group], [groups, 1, left]] {
                    let shape = [count, many, wide, side];
                    if shape.contains(&0) {
                        continue;
                    }
                    let from = start + panel * width * across + first * group * down;
                    let strides = [width * across, group * down, across, down];
                    let source = as_strided_of(weight, &shape, &strides, from)?;
                    let corner = [panel, first, 0, 0];
                    let part = (0..4).try_fold(panels.shallow_clone(), |part, axis| {
                        part.f_narrow(axis as i64, corner[axis], shape[axis])
                    });
                    part.and_then(|mut part| part.f_copy_(&source)).map_err(failed)?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::{Device, TensorType};

    use super::*;

    /// The weight with the number `param` in panels.
    fn packed(param: u32, width: i64) -> Prepacked {
        let panels = Panels {
            param,
            rows: 8,
            run: 8,
            columns: 40,
            block: 40,
            width,
            group: 1,
            filled: 8,
            strides: [0, 1, 8, 0],
            offset: 0,
        };
        Prepacked {
            constant: 0,
            ty: TensorType::contiguous(DType::Elem(tilefuse_block::Elem::F32), &panels.shape(), Device::Cpu),
            panels,
        }
    }

    #[test]
    fn plans_share_what_they_pack_alike() {
        let _no_grad = tch::no_grad_guard();
        let weights = [1, 2].map(|_| Tensor::randn([40, 8], (tch::Kind::Float, tch::Device::Cpu)));
        let store = Arc::default();
        let count = |store: &Arc<PrepackCache>| store.read().iter().flatten().count();
        let (first, ours) =
            PrepackedWeights::new(&[packed(0, 32), packed(1, 32)], &weights, &store, Prepack::Always)
                .unwrap();
        // The same weight in another slot, and in other panels.
        let (second, theirs) =
            PrepackedWeights::new(&[packed(0, 32), packed(0, 16)], &weights[1..], &store, Prepack::Always)
                .unwrap();
        assert_eq!(ours[1].data_ptr(), theirs[0].data_ptr());
        assert_ne!(ours[1].data_ptr(), theirs[1].data_ptr());
        assert_eq!(count(&store), 3);
        assert!(first.hold().unwrap().is_some());
        let panel = weights[1].narrow(0, 0, 32).transpose(0, 1);
        assert!(theirs[0].get(0).equal(&panel));
        drop(first);
        assert_eq!(count(&store), 2);
        let _ = weights[1].shallow_clone().neg_();
        assert!(second.hold().unwrap().is_some());
        assert!(
            theirs[0].get(0).equal(&panel) && theirs[1].get(2).narrow(1, 0, 8).equal(&panel_of(&weights[1]))
        );
        drop(second);
        assert_eq!(count(&store), 0);
    }

    #[test]
    fn rows_lie_side_by_side_and_are_filled_up() {
        let _no_grad = tch::no_grad_guard();
        for (rows, columns) in [(8, 32), (7, 40), (5, 3), (1, 16)] {
            let kind = (tch::Kind::BFloat16, tch::Device::Cpu);
            let weight = Tensor::randn([columns, rows + 1], kind).narrow(1, 1, rows);
            let panels = Panels {
                rows,
                run: rows,
                columns,
                block: columns,
                group: 2,
                filled: 8,
                strides: [0, 1, rows + 1, 0],
                ..packed(0, 16).panels
            };
            let ty =
                TensorType::contiguous(DType::Elem(tilefuse_block::Elem::Bf16), &panels.shape(), Device::Cpu);
            let all = [Prepacked { constant: 0, ty, panels: panels.clone() }];
            let (packs, constants) =
                PrepackedWeights::new(&all, &[weight.shallow_clone()], &Arc::default(), Prepack::Always)
                    .unwrap();
            assert!(packs.hold().unwrap().is_some());
            let found = Vec::<f32>::try_from(&constants[0].to_kind(tch::Kind::Float).flatten(0, -1)).unwrap();
            let size = (panels.filled * panels.width) as usize;
            for (at, &value) in found.iter().enumerate() {
                let [row, column] = panels.place((at % size) as i64);
                let column = column + (at / size) as i64 * panels.width;
                let inside = row < rows && column < columns;
                let wanted = if inside { weight.double_value(&[column, row]) } else { 0.0 };
                assert_eq!(f64::from(value), wanted, "row {row}, column {column}");
            }
        }
    }

    /// The last columns, which fill half a panel of 16.
    fn panel_of(weight: &Tensor) -> Tensor {
        weight.narrow(0, 32, 8).transpose(0, 1)
    }
}
