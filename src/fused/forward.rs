//! What a fused model calls: modules, functions, and models of a user's own with any inputs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Tensor, nn};

use super::Fused;
use crate::{Error, Explanation, Values};

/// A model with inputs of type `I`, for [`Fused::call`] and [`Fused::explain`].
///
/// Modules are one of a tensor, functions and closures `Fn(&I) -> O` one of their argument. A struct with several inputs
/// implements it:
///
/// ```
/// use tch::Tensor;
///
/// #[derive(tilefuse::Values)]
/// struct Pair {
///     query: Tensor,
///     keys: Vec<Tensor>,
/// }
///
/// struct Scores {
///     scale: f64,
/// }
///
/// impl tilefuse::Forward<Pair> for Scores {
///     type Output = Vec<Tensor>;
///
///     fn run(&self, inputs: &Pair) -> Vec<Tensor> {
///         inputs.keys.iter().map(|key| (&inputs.query * key).sigmoid() * self.scale).collect()
///     }
/// }
///
/// let fused = tilefuse::fuse(Scores { scale: 0.5 });
/// let one = || Tensor::from_slice(&[1.0f32]);
/// let scores = fused.call(&Pair { query: one(), keys: vec![one(), one()] })?;
/// assert_eq!(scores.len(), 2);
/// # Ok::<(), tilefuse::Error>(())
/// ```
///
/// `K` tells these implementations apart, and is `()` for a user's own.
pub trait Forward<I: ?Sized, K: Kind = ()> {
    /// What it returns.
    type Output: Values;

    /// Runs the model itself.
    fn run(&self, inputs: &I) -> Self::Output;
}

/// Which implementation of [`Forward`] a model has.
pub trait Kind: sealed::Sealed + 'static {
    /// Whether a model can have several, which signatures then tell apart.
    #[doc(hidden)]
    const IN_SIGNATURE: bool = false;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for super::OfModule {}
    impl<O> Sealed for super::OfFunction<O> {}
    impl<K> Sealed for super::OfLocked<K> {}
}

impl Kind for () {
    const IN_SIGNATURE: bool = true;
}

/// [`Forward`] of an [`nn::Module`].
#[derive(Debug)]
pub struct OfModule(());

impl Kind for OfModule {}

impl<M: nn::Module> Forward<Tensor, OfModule> for M {
    type Output = Tensor;

    fn run(&self, inputs: &Tensor) -> Tensor {
        self.forward(inputs)
    }
}

/// [`Forward`] of a function that returns `O`.
#[derive(Debug)]
pub struct OfFunction<O>(std::marker::PhantomData<O>);

impl<O: 'static> Kind for OfFunction<O> {}

impl<M: Fn(&I) -> O, I: ?Sized, O: Values> Forward<I, OfFunction<O>> for M {
    type Output = O;

    fn run(&self, inputs: &I) -> O {
        self(inputs)
    }
}

/// A model that several threads call: each waits while another runs the model itself. Calls that run a plan do not wait.
///
/// A [`Fused`] model is `Sync` where its model is. A tch model seldom is: a [`Tensor`] may go to another thread and may not
/// be used by two. Here the model is, one thread at a time, which is sound for whatever may go to another thread, and needs
/// no `unsafe`. A plan has handles of its own to the weights, and what it does with them libtorch allows from several
/// threads at a time: it reads them. As in libtorch itself, a write to a weight (an optimiser's step, a load, running
/// statistics in training) while another thread computes with it is a race for its elements, and so is it where the model
/// writes its own buffers; write while no call runs.
///
/// ```
/// use tch::{Device, Kind, Tensor, nn, nn::Module};
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(vs.root(), 8, 8, Default::default());
/// let fused = tilefuse::fuse(tilefuse::Locked::new(net)).named(&vs);
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| {
///             let _no_grad = tch::no_grad_guard();
///             fused.forward(&Tensor::zeros([4, 8], (Kind::Float, Device::Cpu)))
///         });
///     }
/// });
/// ```
#[derive(Debug, Default)]
pub struct Locked<M>(Mutex<M>);

impl<M> Locked<M> {
    /// The model, behind a lock.
    pub fn new(model: M) -> Locked<M> {
        Locked(Mutex::new(model))
    }

    /// The model, for this thread alone while the guard lives. Calls that run the model itself wait for that, also those of
    /// this thread.
    pub fn lock(&self) -> MutexGuard<'_, M> {
        // A model that panicked is as usable as one without a lock would be.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model itself.
    pub fn into_inner(self) -> M {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: nn::Module> nn::Module for Locked<M> {
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.lock().forward(xs)
    }
}

/// [`Forward`] of a [`Locked`] model that is no [`nn::Module`].
#[derive(Debug)]
pub struct OfLocked<K>(std::marker::PhantomData<K>);

impl<K: Kind> Kind for OfLocked<K> {
    const IN_SIGNATURE: bool = K::IN_SIGNATURE;
}

impl<M: Forward<I, K>, I: ?Sized, K: Kind> Forward<I, OfLocked<K>> for Locked<M> {
    type Output = M::Output;

    fn run(&self, inputs: &I) -> M::Output {
        self.lock().run(inputs)
    }
}

/// A fused [`nn::ModuleT`], which is one too: what is called with `train` runs the model itself. Of
/// [`Fused::into_module_t`].
///
/// It has a type of its own because every [`nn::Module`] is an [`nn::ModuleT`] already, a fused one too.
#[derive(Debug)]
pub struct FusedT<M>(Fused<M>);

impl<M: nn::ModuleT> Fused<M> {
    /// Makes an [`nn::ModuleT`] of it.
    pub fn into_module_t(self) -> FusedT<M> {
        FusedT(self)
    }
}

impl<M: nn::ModuleT> FusedT<M> {
    /// The plan for this input without training, compiled now if it is not yet: that runs the model once, with what it writes and draws.
    pub fn explain(&self, xs: &Tensor) -> Result<Explanation, Error> {
        self.0.explain_with(std::slice::from_ref(xs), |model, inputs| {
            inputs.iter().map(|x| model.forward_t(x, false)).collect()
        })
    }
}

impl<M> std::ops::Deref for FusedT<M> {
    type Target = Fused<M>;

    fn deref(&self) -> &Fused<M> {
        &self.0
    }
}

impl<M> std::ops::DerefMut for FusedT<M> {
    fn deref_mut(&mut self) -> &mut Fused<M> {
        &mut self.0
    }
}

impl<M: nn::ModuleT> nn::ModuleT for FusedT<M> {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.0.forward_t(xs, train)
    }
}
