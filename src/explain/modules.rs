//! Names of a model's parameters and modules.

use tch::Tensor;
use tilefuse_fusion::{Graph, NodeId, Op};

use crate::engine::Compiled;
use crate::torch::Meta;

/// The names of a model's parameters, by their positions in a compiled plan.
pub(super) struct Parameters<'a> {
    graph: &'a Graph,
    names: Vec<Option<&'a str>>,
    consts: usize,
    /// Of constants that hold prepacked parameters, from the last ones of all: which.
    packed: Vec<u32>,
}

impl<'a> Parameters<'a> {
    pub(super) fn of(compiled: &'a Compiled, names: &'a [(String, Tensor)]) -> Parameters<'a> {
        let packed = (compiled.consts.len(), compiled.packs.params().collect());
        Parameters::new(&compiled.plan.graph, &compiled.params, names, packed)
    }

    /// Of a graph with these parameters, and so many constants, of which the last ones hold prepacked parameters.
    pub(super) fn new(
        graph: &'a Graph,
        params: &[Tensor],
        names: &'a [(String, Tensor)],
        (consts, packed): (usize, Vec<u32>),
    ) -> Parameters<'a> {
        let names = params.iter().map(|param| name_of(param, names)).collect();
        Parameters { graph, names, consts, packed }
    }

    /// The name of the parameter that a node is, or that lies in it prepacked.
    pub(super) fn name(&self, node: NodeId) -> Option<&'a str> {
        let position = match self.graph.node(node).op {
            Op::Param(position) => position,
            Op::Const(position) => {
                let first = self.consts.saturating_sub(self.packed.len());
                *self.packed.get((position as usize).checked_sub(first)?)?
            }
            _ => return None,
        };
        self.names.get(position as usize).copied().flatten()
    }
}

/// The name of a parameter.
fn name_of<'n>(param: &Tensor, names: &'n [(String, Tensor)]) -> Option<&'n str> {
    let identity = |t: &Tensor| Meta::of(t).ok().map(|meta| (meta.tensor_impl, meta.data));
    let own = identity(param)?;
    let named = |(_, t): &&(String, Tensor)| {
        identity(t).is_some_and(|n| n.0 == own.0 || (own.1 != 0 && n.1 == own.1))
    };
    names.iter().find(named).map(|(name, _)| name.as_str())
}
