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

/// One path for several that have the same number of parts: `*` where these differ.
pub(super) fn pattern<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let mut paths = paths.into_iter().map(|path| path.split('.').collect::<Vec<_>>());
    let Some(mut all) = paths.next() else { return String::new() };
    for path in paths {
        if path.len() != all.len() {
            return String::from("*");
        }
        for (part, other) in all.iter_mut().zip(path) {
            if *part != other {
                *part = "*";
            }
        }
    }
    all.join(".")
}

/// The parts that paths begin with, all of them, with a dot behind each; something is left of each path.
pub(super) fn common_prefix<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let mut paths = paths.into_iter();
    let parents = |path: &'a str| path.rfind('.').map_or("", |end| &path[..=end]);
    let Some(mut common) = paths.next().map(parents) else { return String::new() };
    for path in paths {
        while !path.starts_with(common) {
            common = parents(common.strip_suffix('.').unwrap_or(common));
        }
    }
    common.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_part_by_part() {
        assert_eq!(pattern(["h.0.mlp", "h.1.mlp", "h.10.mlp"]), "h.*.mlp");
        assert_eq!(pattern(["a.b", "a"]), "*");
        assert_eq!(pattern(["ln_f"]), "ln_f");
    }

    #[test]
    fn what_paths_begin_with_is_no_whole_path() {
        assert_eq!(common_prefix(["a.h.0.mlp", "a.h.1", "a.wte"]), "a.");
        assert_eq!(common_prefix(["a.b.c", "a.b.d.e"]), "a.b.");
        assert_eq!(common_prefix(["a.b", "a.bc"]), "a.");
        assert_eq!(common_prefix(["a.b", "a"]), "");
        assert_eq!(common_prefix(["a.b", "c"]), "");
        assert_eq!(common_prefix([]), "");
    }
}
