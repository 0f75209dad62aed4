//! The same program on arguments that lie elsewhere in memory, for calls in turn with other signatures.

use super::generate::layout;
use super::program::{Layout, Program, Values};
use crate::rng::Rng;

impl Program {
    /// The program with other strides and offsets of arguments that share their memory with nothing else; `None` where there are none,
    /// or none changed.
    pub(super) fn with_other_layouts(&self, seed: u64) -> Option<Program> {
        // libtorch's kernels leave results unwritten where operands are strided.
        if self.ops.iter().any(|op| op.name == "_int_mm") {
            return None;
        }
        let mut rng = Rng::new(seed);
        let mut other = self.clone();
        for (at, input) in self.inputs.iter().enumerate() {
            let alone = self.inputs.iter().filter(|i| i.storage == input.storage).count() == 1;
            let plain = input.layout == Layout::Strided && !input.conj && !input.neg;
            let given = matches!(self.storages.get(input.storage)?.values, Values::Data(_));
            if input.param || given || !alone || !plain || !rng.chance(0.7) {
                continue;
            }
            let placement = layout(&mut rng, &input.sizes, false);
            other.storages.get_mut(input.storage)?.len = placement.len;
            let input = other.inputs.get_mut(at)?;
            (input.strides, input.offset) = (placement.strides, placement.offset);
        }
        (other.inputs != self.inputs).then_some(other)
    }
}
