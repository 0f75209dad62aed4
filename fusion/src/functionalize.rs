//! From a recording to a functional graph.
//!
//! Tensors that share a storage form a tree: a *root* (an input, a parameter, the result of an ordinary call) and
//! views of it, each with its relation to its parent. A write through any of them makes a new value of the root;
//! every view is regenerated from the root's value when it is read later:
//!
//! ```text
//! %1 in %0 = aten::slice(%0)           ->   %1 = aten::slice(%0)
//! aten::relu_(%1!)                     ->   %2 = aten::relu(%1)
//!                                           %3 = aten::slice_scatter(%0, %2)
//! %4 = aten::sum(%0)                   ->   %4 = aten::sum(%3)
//!                                           update %0 <- %3         (where %0 is an input or a parameter)
//! ```

mod calls;
mod error;
mod inplace;
mod overlap;
mod state;
mod strided;
#[cfg(test)]
mod tests;
mod views;
mod writes;

use std::collections::HashMap;

use crate::graph::{AliasTarget, Graph, Op, OutputAlias, Update};
use crate::recording::Recording;
use state::State;

pub use error::FunctionalizeError;

/// Turns a recording into a functional graph: [`Op::Aten`] calls that neither write nor alias, write-backs in
/// [`Graph::updates`], and in [`Graph::aliases`] which outputs share memory with inputs or other outputs.
///
/// # Errors
/// Where a call changes memory in a way that values cannot express; see [`FunctionalizeError`].
pub fn functionalize(recording: &Recording) -> Result<Graph, FunctionalizeError> {
    let mut state = State::new(recording)?;
    for (index, call) in recording.calls.iter().enumerate() {
        state.call(index, call)?;
    }
    finish(state, recording)
}

fn finish(mut state: State<'_>, recording: &Recording) -> Result<Graph, FunctionalizeError> {
    let mut returned = Vec::new();
    for (index, &id) in recording.outputs.iter().enumerate() {
        let tensor = state.tensor(id, &|| format!("output {index}"))?;
        let value = state.read(tensor)?;
        state.graph.outputs.push(value);
        returned.push(tensor);
    }
    for (target, root) in state.written_targets() {
        let value = state.read(root)?;
        if value.node != target {
            state.graph.updates.push(Update { target, value });
        }
    }
    let mut aliases = output_aliases(&mut state, &returned)?;
    if aliases.iter().any(Option::is_some) {
        aliases.resize(state.graph.outputs.len(), None);
        state.graph.aliases = aliases;
    }
    state.graph.remove_unused();
    Ok(state.graph)
}

/// Which storage each output shares. Of several views of one intermediate, those beside the first that covers it are
/// aliases of that one; where none does, all are aliases of the intermediate, which becomes a buffer.
fn output_aliases(
    state: &mut State<'_>,
    returned: &[usize],
) -> Result<Vec<Option<OutputAlias>>, FunctionalizeError> {
    // By root: which output owns the memory, and the tensor that it is.
    let mut owners: HashMap<usize, (u32, usize)> = HashMap::new();
    let mut aliases = Vec::new();
    for (index, &tensor) in returned.iter().enumerate() {
        let root = state.root(tensor);
        let (target, base) = match state.target(root) {
            Some(node) => (Some(AliasTarget::Node(node)), root),
            None => {
                let (owner, base) = match owners.get(&root) {
                    Some(&owner) => owner,
                    None => *owners.entry(root).or_insert(owner(state, returned, index)?),
                };
                ((owner as usize != index).then_some(AliasTarget::Output(owner)), base)
            }
        };
        if target.is_some() && !state.lies_in(tensor, base) {
            return Err(FunctionalizeError::OutputAliasesInput { index });
        }
        aliases.push(target.map(|target| OutputAlias {
            target,
            ty: state.ty(tensor).clone(),
            offset: state.offset(tensor).saturating_sub(state.offset(base)),
        }));
    }
    Ok(aliases)
}

/// Which output owns the memory of the intermediate that output `index` is a view of, and the tensor that it is.
fn owner(
    state: &mut State<'_>,
    returned: &[usize],
    index: usize,
) -> Result<(u32, usize), FunctionalizeError> {
    let root = state.root(returned[index]);
    let views: Vec<usize> = (0..returned.len()).filter(|&i| state.root(returned[i]) == root).collect();
    if let Some(&cover) = views.iter().find(|&&i| state.covers_root(returned[i])) {
        return Ok((cover as u32, returned[cover]));
    }
    if views.len() == 1 {
        return Ok((index as u32, returned[index]));
    }
    if !state.is_buffer(root) {
        return Err(FunctionalizeError::OutputAliasesInput { index });
    }
    let value = state.read(root)?;
    let ty = state.ty(root).clone();
    state.graph.outputs.push(value);
    state.graph.buffers.push(ty);
    Ok((state.graph.outputs.len() as u32 - 1, root))
}

impl Graph {
    /// Whether the node is an input, a live tensor of the model, or a constant.
    pub fn is_source(&self, id: crate::NodeId) -> bool {
        matches!(self.node(id).op, Op::Input(_) | Op::Param(_) | Op::Const(_))
    }
}
