//! Kernels of groups that are alike, which are built once.
//!
//! ```text
//! %5 = map add(%3, %4) : f32[8,4]; %6 = map tanh(%5) : f32[8,4]          the kernel of %5, %6
//! %9 = map add(%7, %8) : f32[8,4]; %10 = map tanh(%9) : f32[8,4]   ->    that kernel, which loads %7, %8 and stores %10
//! ```
//!
//! Layers of a model repeat, and so do the groups that are tried in each. All that [`super::build()`] reads of a graph is in a [`Key`], where
//! nodes and locations are numbers in the order in which they are first met: kernels of equal keys differ in nothing but these.

use std::cell::RefCell;

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Loc, ScalarFn};

use super::build::{Domain, Group, Space};
use super::{Kernel, Refusal};
use crate::combiner::Combiner;
use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::types::TensorType;

/// What a kernel depends on of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Operator {
    /// One whose results are read from memory: whether these are a parameter, whether kernels write them, and the type that they were
    /// converted from.
    Memory {
        is_param: bool,
        is_written: bool,
        from: Option<Elem>,
    },
    /// One that has no expression.
    Call,
    Scalar(Literal),
    Map(ScalarFn),
    /// From a type.
    Cast(Option<Elem>),
    Iota(u8),
    View(View),
    Concat(u8),
    Reduce(Combiner, SmallVec<[u8; 6]>),
    Gather(u8),
    Contract,
}

impl Operator {
    fn of(graph: &Graph, id: NodeId, operands: &[ValueRef]) -> Operator {
        match &graph.node(id).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) => Operator::in_memory(graph, id, operands),
            Op::Aten(_) | Op::Kernel(_) => Operator::Call,
            Op::Scalar(literal) => Operator::Scalar(*literal),
            Op::Map(function) => Operator::Map(*function),
            Op::Cast => Operator::Cast(operands.first().and_then(|&from| graph.ty(from).dtype.elem())),
            Op::Iota { dim } => Operator::Iota(*dim),
            Op::View(view) => Operator::View(view.clone()),
            Op::Concat { dim } => Operator::Concat(*dim),
            Op::Reduce { combine, dims } => Operator::Reduce(*combine, dims.clone()),
            Op::Gather { dim } => Operator::Gather(*dim),
            Op::Contract(_) => Operator::Contract,
        }
    }

    /// What a kernel that reads its results depends on.
    fn in_memory(graph: &Graph, id: NodeId, operands: &[ValueRef]) -> Operator {
        let op = &graph.node(id).op;
        let is_recorded =
            matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) | Op::Kernel(_));
        let from = operands.first().filter(|_| matches!(op, Op::Cast));
        Operator::Memory {
            is_param: matches!(op, Op::Param(_)),
            is_written: !is_recorded,
            from: from.and_then(|&from| graph.ty(from).dtype.elem()),
        }
    }
}

/// What a kernel depends on of a node: nodes of one class differ in their operands alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Class {
    operator: Operator,
    operands: usize,
    outs: SmallVec<[TensorType; 1]>,
    /// The updates that it takes part in.
    updates: SmallVec<[usize; 1]>,
}

/// The classes and operands of a graph's nodes, by the nodes' numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    nodes: Vec<Option<Classified>>,
}

#[derive(Clone, Debug)]
struct Classified {
    /// Where its results are computed.
    class: u32,
    /// Where they are read from memory.
    in_memory: u32,
    is_call: bool,
    /// Whether any kernel computes it for itself.
    is_inlined: bool,
    operands: SmallVec<[ValueRef; 4]>,
}

impl Classes {
    /// Those of a graph.
    pub(crate) fn of(graph: &Graph) -> Classes {
        let mut updates: FxHashMap<NodeId, SmallVec<[usize; 1]>> = FxHashMap::default();
        for (position, update) in graph.updates.iter().enumerate() {
            for node in [update.target, update.value.node] {
                updates.entry(node).or_default().push(position);
            }
        }
        let mut known: FxHashMap<Class, u32> = FxHashMap::default();
        let mut nodes = Vec::new();
        for id in graph.ids() {
            let operands = graph.operands(id);
            let operator = Operator::of(graph, id, &operands);
            let is_call = operator == Operator::Call || operator == Operator::Contract;
            let is_inlined = matches!(operator, Operator::View(_) | Operator::Scalar(_) | Operator::Iota(_));
            let outs = graph.node(id).outs.clone();
            let updates = updates.remove(&id).unwrap_or_default();
            let in_memory = Operator::in_memory(graph, id, &operands);
            let in_memory =
                Class { operator: in_memory, operands: 0, outs: outs.clone(), updates: updates.clone() };
            let class = Class { operator, operands: operands.len(), outs, updates };
            let [class, in_memory] = [class, in_memory].map(|class| {
                let next = known.len() as u32;
                *known.entry(class).or_insert(next)
            });
            nodes.resize(nodes.len().max(id.index() + 1), None);
            nodes[id.index()] = Some(Classified { class, in_memory, is_call, is_inlined, operands });
        }
        Classes { nodes }
    }

    /// The key of a group's kernel over a domain, and what its numbers stand for. `None` where a call is among its nodes, or one of another
    /// graph.
    fn key(&self, graph: &Graph, group: &Group, domain: Option<&Domain>) -> Option<(Key, Names)> {
        // Each node of the group, and about as many that these read.
        let capacity = 2 * group.nodes.len();
        let mut walk = Walk {
            classes: self,
            graph,
            group,
            numbers: FxHashMap::with_capacity_and_hasher(capacity, FxBuildHasher),
            tokens: Vec::with_capacity(8 * capacity),
            names: Names::default(),
        };
        for &root in &group.roots {
            walk.value(root)?;
        }
        let Walk { tokens, names, .. } = walk;
        Some((Key { tokens, space: group.space.clone(), domain: domain.cloned() }, names))
    }
}

/// What the kernel of a group depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Of each root, and then of each operand of what the group computes: the node's number and the result's. Behind a number that is met
    /// for the first time follow the node's class, what the group does with it, and its operands.
    tokens: Vec<u32>,
    space: Space,
    domain: Option<Domain>,
}

/// What the numbers of a key stand for.
#[derive(Clone, Debug, Default)]
struct Names {
    nodes: Vec<NodeId>,
    locs: Vec<Loc>,
}

struct Walk<'a> {
    classes: &'a Classes,
    graph: &'a Graph,
    group: &'a Group,
    numbers: FxHashMap<NodeId, u32>,
    tokens: Vec<u32>,
    names: Names,
}

impl Walk<'_> {
    fn value(&mut self, value: ValueRef) -> Option<()> {
        let next = self.names.nodes.len() as u32;
        let number = *self.numbers.entry(value.node).or_insert(next);
        self.tokens.extend([number, u32::from(value.out)]);
        if number < next {
            return Some(());
        }
        self.names.nodes.push(value.node);
        let node = self.classes.nodes.get(value.node.index())?.as_ref()?;
        let is_inside = self.group.contains(value.node);
        if is_inside && node.is_call {
            return None;
        }
        let loc = self.group.nodes.contains(&value.node).then(|| self.loc(self.graph.loc(value.node)));
        let is_computed = is_inside || node.is_inlined;
        let class = if is_computed { node.class } else { node.in_memory };
        self.tokens.extend([class, u32::from(is_inside), loc.map_or(0, |number| 1 + number)]);
        let stored = self.graph.results(value.node).map(|result| u32::from(self.group.is_stored(result)));
        self.tokens.extend(stored);
        if is_computed {
            for &operand in &node.operands {
                self.value(operand)?;
            }
        }
        Some(())
    }

    /// The number of a location.
    fn loc(&mut self, loc: Loc) -> u32 {
        let locs = &mut self.names.locs;
        let known = locs.iter().position(|other| other.number() == loc.number());
        known.unwrap_or_else(|| {
            locs.push(loc);
            locs.len() - 1
        }) as u32
    }
}

/// What has the names of nodes in it.
pub(crate) trait Named: Clone {
    /// The kernel that has them.
    fn kernel(&mut self) -> &mut Kernel;
}

impl Named for Kernel {
    fn kernel(&mut self) -> &mut Kernel {
        self
    }
}

/// Puts the nodes and locations of one group in the place of those of another that is alike.
fn rename(kernel: &mut Kernel, from: &Names, to: &Names) {
    for buffer in &mut kernel.buffers {
        let at = from.nodes.iter().position(|&node| node == buffer.value.node);
        if let Some(&node) = at.and_then(|at| to.nodes.get(at)) {
            buffer.value.node = node;
        }
    }
    for info in &mut kernel.info {
        let at = from.locs.iter().position(|loc| loc.number() == info.loc.number());
        if let Some(&loc) = at.and_then(|at| to.locs.get(at)) {
            info.loc = loc;
        }
    }
}

/// What was made of the kernel of a group with such names.
type Made<T> = (Names, Result<T, Refusal>);

/// What was made of the kernels of groups, by their keys.
#[derive(Clone, Debug)]
pub(crate) struct Memo<T> {
    known: Box<RefCell<FxHashMap<Key, Made<T>>>>,
}

impl<T> Default for Memo<T> {
    fn default() -> Memo<T> {
        Memo { known: Box::default() }
    }
}

impl<T: Named> Memo<T> {
    /// What `make` makes of a group over a domain, or was made of one that is alike.
    pub(crate) fn get(
        &self,
        (classes, graph): (&Classes, &Graph),
        group: &Group,
        domain: Option<&Domain>,
        make: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Some((key, names)) = classes.key(graph, group, domain) else { return make() };
        if let Some((from, made)) = self.known.borrow().get(&key) {
            let mut made = made.clone();
            if let Ok(made) = &mut made {
                rename(made.kernel(), from, &names);
            }
            return made;
        }
        let made = make();
        self.known.borrow_mut().insert(key, (names, made.clone()));
        made
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::cell::Cell;
    use std::sync::Arc;

    use rustc_hash::FxHashSet;

    use super::*;
    use crate::kernel::{Layouts, collapse};
    use crate::parse_graph;
    use crate::types::Dims;

    const GRAPH: &str = r#"graph {
      origin 0 "aten::add #0"
      origin 1 "aten::tanh #1"
      origin 2 "aten::add #2"
      origin 3 "aten::tanh #3"
      %0 = input 0 : f32[4,8]
      %1 = input 1 : f32[4,8]
      %2 = map add(%0, %1) : f32[4,8] @0
      %3 = map tanh(%2) : f32[4,8] @1
      %4 = map add(%3, %1) : f32[4,8] @2
      %5 = map tanh(%4) : f32[4,8] @3
      %6 = map add(%5, %1) : f32[4,8] @0
      %7 = map tanh(%6) : f32[4,8] @1
      %8 = map add(%7, %7) : f32[4,8] @2
      %9 = map tanh(%8) : f32[4,8] @3
      outputs %9
    }"#;

    struct Recorded<'a>(&'a Graph);

    impl Layouts for Recorded<'_> {
        fn strides(&self, value: ValueRef) -> (Dims, i64) {
            let ty = self.0.ty(value);
            (ty.strides.clone(), ty.numel())
        }
    }

    /// The group of two nodes, of which the second is stored.
    fn group(graph: &Graph, nodes: [usize; 2]) -> Group {
        let nodes = nodes.map(NodeId::new);
        let root = ValueRef::from(nodes[1]);
        Group {
            nodes: nodes.into_iter().collect(),
            transparent: Arc::default(),
            roots: vec![root],
            stored: FxHashSet::from_iter([root]),
            materialized: Arc::default(),
            space: Space::parallel(graph.ty(root).shape.clone()),
        }
    }

    #[test]
    fn groups_that_are_alike_have_one_kernel_with_names_of_their_own() {
        let graph = parse_graph(GRAPH).unwrap();
        let (classes, memo) = (Classes::of(&graph), Memo::default());
        let made = Cell::new(0);
        for (nodes, so_far) in [([4, 5], 1), ([6, 7], 1), ([8, 9], 2)] {
            let group = group(&graph, nodes);
            let build = || collapse(&graph, &group, &Recorded(&graph));
            let make = || {
                made.set(made.get() + 1);
                build()
            };
            let kernel = memo.get((&classes, &graph), &group, None, make).unwrap();
            assert_eq!(format!("{kernel:?}"), format!("{:?}", build().unwrap()));
            assert_eq!(made.get(), so_far);
        }
    }

    #[test]
    fn what_is_stored_tells_groups_apart() {
        let graph = parse_graph(GRAPH).unwrap();
        let classes = Classes::of(&graph);
        let [mut a, b] = [[4, 5], [6, 7]].map(|nodes| group(&graph, nodes));
        let key = |group: &Group| classes.key(&graph, group, None).unwrap().0;
        assert_eq!(key(&a), key(&b));
        a.stored.insert(NodeId::new(4).into());
        assert_ne!(key(&a), key(&b));
    }
}
