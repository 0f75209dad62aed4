//! Where each value of a plan is found while the plan runs.

use rustc_hash::FxHashMap;
use tilefuse_fusion::plan::{Plan, StepKind};
use tilefuse_fusion::{Dims, Graph, NodeId, Op, Place, TensorType, ValueRef, written_strides};

use crate::Error;

/// Where a value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    /// The input of this index.
    Input(usize),
    /// The live tensor of the model in this slot.
    Param(usize),
    /// The constant in this slot.
    Const(usize),
    /// In the arena, at this offset in bytes.
    Arena(u64),
    /// In the tensor of its own that a call allocates at this position.
    Own(usize),
    /// In the memory of the result of a libtorch call that is kept at this position.
    Extern(usize),
    /// The word in which kernels report an index that is out of range.
    Status,
}

/// A tensor to be handed to libtorch or to the caller.
#[derive(Clone, Debug)]
pub(crate) struct TensorSource {
    pub(crate) slot: Slot,
    /// The value's own type.
    pub(crate) ty: TensorType,
    /// Sizes, strides and offset (in elements) of a view of the value; `None` for the value itself.
    pub(crate) view: Option<(Dims, Dims, i64)>,
}

/// The slots of a plan's values.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: FxHashMap<ValueRef, Slot>,
    /// Types of the tensors that a call allocates for itself.
    pub(crate) own: Vec<TensorType>,
    /// Which of them no step is the first to write: they have no elements.
    pub(crate) hollow: Vec<usize>,
    /// Number of kept libtorch results.
    pub(crate) externs: usize,
}

impl Slots {
    /// Assigns a slot to every value that steps, outputs and write-backs of the plan name.
    pub(crate) fn of(plan: &Plan) -> Slots {
        let mut slots = Slots::default();
        for id in plan.graph.ids() {
            let slot = match plan.graph.node(id).op {
                Op::Input(i) => Slot::Input(i as usize),
                Op::Param(i) => Slot::Param(i as usize),
                Op::Const(i) => Slot::Const(i as usize),
                _ => continue,
            };
            slots.slots.insert(id.into(), slot);
        }
        for (&value, &offset) in &plan.memory.offsets {
            slots.slots.insert(value, Slot::Arena(offset));
        }
        for &value in &plan.memory.own {
            slots.slots.insert(value, Slot::Own(slots.own.len()));
            if plan.graph.ty(value).numel() == 0 {
                slots.hollow.push(slots.own.len());
            }
            slots.own.push(written_type(&plan.graph, value));
        }
        for step in &plan.steps {
            if let StepKind::Extern(step) = &step.kind {
                slots.add_results(&plan.graph, step.node);
            }
        }
        for (&value, root) in &plan.memory.over {
            if let Some(&slot) = slots.slots.get(root) {
                slots.slots.insert(value, slot);
            }
        }
        slots
    }

    fn add_results(&mut self, graph: &Graph, node: NodeId) {
        for value in graph.results(node) {
            self.slots.insert(value, Slot::Extern(self.externs));
            self.externs += 1;
        }
    }

    /// The slot of a value in memory.
    pub(crate) fn get(&self, value: ValueRef) -> Result<Slot, Error> {
        let missing =
            || Error::Internal(format!("value %{}.{} is not in memory", value.node.index(), value.out));
        self.slots.get(&value).copied().ok_or_else(missing)
    }

    /// How to find the tensor of a place.
    pub(crate) fn source(&self, plan: &Plan, place: &Place) -> Result<TensorSource, Error> {
        let (base, root) = (place.base(), plan.memory.root(place.base()));
        let slot = self.get(base)?;
        let lies_as = |value: ValueRef| match slot {
            Slot::Arena(_) | Slot::Own(_) => written_type(&plan.graph, value),
            Slot::Extern(_) | Slot::Input(_) | Slot::Param(_) if value != root => {
                written_type(&plan.graph, value)
            }
            _ => plan.graph.ty(value).clone(),
        };
        let ty = lies_as(base);
        let view = match place {
            Place::Strided { shape, strides, offset, .. } => Some((shape.clone(), strides.clone(), *offset)),
            // In place of a value that has other sizes.
            Place::Value(_) if base != root => {
                let first = lies_as(root);
                let same = first.shape == ty.shape && first.strides == ty.strides;
                (!same).then(|| (ty.shape.clone(), ty.strides.clone(), 0))
            }
            Place::Value(_) => None,
        };
        Ok(TensorSource { slot, ty, view })
    }
}

/// The type of a value that a kernel writes, with the strides that it is written with.
fn written_type(graph: &Graph, value: ValueRef) -> TensorType {
    let mut ty = graph.ty(value).clone();
    ty.strides = written_strides(graph, value);
    ty
}
