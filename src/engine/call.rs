//! One call of a fused model, as plans see it: its structure, the model itself, and what came out.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use tch::Tensor;

use super::guard::Signature;
use crate::values::{Flattener, Part};
use crate::{Error, Values};

/// What of a call is no tensor: part of the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Structure {
    inputs: TypeId,
    outputs: TypeId,
    /// Of the inputs.
    parts: Vec<Part>,
}

impl Structure {
    /// Of inputs with these parts, for outputs of a type. Tensors in a row are the same in whatever they lie; a model that
    /// may do something else for another type (`many`) has plans of its own for each.
    pub(crate) fn of<I: Values + ?Sized, O: Values>(many: bool, parts: Vec<Part>) -> Structure {
        let row = TypeId::of::<[Tensor]>();
        Structure {
            inputs: if many || !parts.is_empty() { TypeId::of::<I>() } else { row },
            outputs: if O::IS_TENSORS { row } else { TypeId::of::<O>() },
            parts,
        }
    }
}

impl Structure {
    /// The first thing in which the structure of another call differs: what it is, and both.
    pub(crate) fn difference(&self, other: &Structure) -> Option<(String, String, String)> {
        if (self.inputs, self.outputs) != (other.inputs, other.outputs) {
            return Some((
                String::from("types of inputs and outputs"),
                String::from("as captured"),
                String::from("others"),
            ));
        }
        let at = |parts: &[Part], at: usize| {
            parts.get(at).map_or_else(|| String::from("nothing"), ToString::to_string)
        };
        let most = self.parts.len().max(other.parts.len());
        let (position, old, new) =
            (0..most).map(|i| (i, at(&self.parts, i), at(&other.parts, i))).find(|(_, a, b)| a != b)?;
        Some((format!("part {position} of the inputs"), old, new))
    }
}

/// A model that is called once, as the engine sees it; it is called like a function.
pub(crate) struct Call<'a> {
    forward: &'a dyn Fn(&[Tensor]) -> Vec<Tensor>,
    structure: &'a Structure,
    returned: &'a Returned,
}

/// What the model itself, or the plan that stood for it, returned beside tensors.
#[derive(Default)]
pub(crate) struct Returned {
    /// Nothing where tensors in a row are all there is.
    parts: RefCell<Option<Arc<[Part]>>>,
    refusal: RefCell<Option<String>>,
    failed: Cell<bool>,
}

impl<'a> std::ops::Deref for Call<'a> {
    type Target = dyn Fn(&[Tensor]) -> Vec<Tensor> + 'a;

    fn deref(&self) -> &Self::Target {
        self.forward
    }
}

impl<'a> Call<'a> {
    /// A call of the model by `forward`, which tells `returned` what it returns.
    pub(crate) fn new(
        forward: &'a dyn Fn(&[Tensor]) -> Vec<Tensor>,
        structure: &'a Structure,
        returned: &'a Returned,
    ) -> Call<'a> {
        Call { forward, structure, returned }
    }

    /// What of the call is no tensor.
    pub(crate) fn structure(&self) -> &Structure {
        self.structure
    }

    /// What of the outputs of the model's last run is no tensor.
    pub(crate) fn parts(&self) -> Option<Arc<[Part]>> {
        self.returned.parts.borrow().clone()
    }

    /// Why the outputs of the model's last run cannot come from a plan.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.returned.refusal.borrow().clone()
    }

    /// Whether the model returned an error; there are no outputs then.
    pub(crate) fn failed(&self) -> bool {
        self.returned.failed.get()
    }

    /// Says that a plan with this signature stood for the model.
    pub(crate) fn ran_plan(&self, signature: &Signature) {
        self.returned.parts.replace(signature.outputs());
    }
}

impl Returned {
    /// Whether what the model returned is not made again of tensors.
    pub(crate) fn is_whole(&self) -> bool {
        self.failed.get() || self.refusal.borrow().is_some()
    }

    /// Takes apart what the model returned, and keeps the structure.
    pub(crate) fn flatten<O: Values>(&self, output: &Result<O, Error>) -> Vec<Tensor> {
        let Ok(output) = output else {
            self.failed.set(true);
            return Vec::new();
        };
        let flat = Flattener::of(output);
        self.parts.replace((!O::IS_TENSORS).then(|| flat.parts.into()));
        self.refusal.replace(flat.refusal);
        flat.tensors
    }
}
