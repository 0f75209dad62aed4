//! Where values lie in memory: at which strides, as views of which others, and how aligned.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::graph::{Graph, NodeId, Op, ValueRef, View};
use crate::index::{Indices, Var};
use crate::kernel::{Layouts, view_index};
use crate::types::Dims;

/// Strides of values that kernels write: the recorded ones where they are dense, else dense ones in the same order, as
/// libtorch takes them for what it computes of such a value.
pub fn written_strides(graph: &Graph, value: ValueRef) -> Dims {
    let ty = graph.ty(value);
    if is_dense(&ty.shape, &ty.strides) {
        ty.strides.clone()
    } else {
        crate::types::dense(&ty.shape, &ty.strides)
    }
}

/// Whether strides address every element once without gaps.
pub(crate) fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut dims: SmallVec<[(i64, i64); 6]> =
        shape.iter().zip(strides).filter(|&(&n, _)| n != 1).map(|(&n, &s)| (s, n)).collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.iter().all(|&(stride, n)| {
        let fits = stride == expected;
        expected *= n;
        fits
    })
}

/// How values lie in memory.
pub(crate) struct Strides<'a>(pub(crate) &'a Graph);

impl Layouts for Strides<'_> {
    fn strides(&self, value: ValueRef) -> (Dims, i64) {
        let ty = self.0.ty(value);
        let strides = match self.0.node(value.node).op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Aten(_) | Op::Kernel(_) => ty.strides.clone(),
            _ => written_strides(self.0, value),
        };
        let span = 1 + ty.shape.iter().zip(&strides).map(|(&n, &s)| (n - 1).max(0) * s).sum::<i64>();
        (strides, span)
    }
}

/// Where a value is found.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In memory under its own name.
    Value(ValueRef),
    /// A strided view of a value in memory.
    Strided {
        /// The value in memory.
        base: ValueRef,
        /// Sizes.
        shape: Dims,
        /// Strides in elements.
        strides: Dims,
        /// Elements from the base's first one.
        offset: i64,
    },
}

impl Place {
    /// The value that must be in memory.
    pub fn base(&self) -> ValueRef {
        match self {
            Place::Value(value) => *value,
            Place::Strided { base, .. } => *base,
        }
    }
}

/// Finds the place of a value whose views are followed down to `base_strides`' values. `None` if its elements do not
/// lie in the base at fixed strides, or not at the strides that are recorded for it.
pub(crate) fn strided(
    graph: &Graph,
    value: ValueRef,
    materialized: &FxHashSet<NodeId>,
    base_strides: &dyn Fn(ValueRef) -> Dims,
) -> Option<Place> {
    let ty = graph.ty(value);
    let (base, strides, offset) = in_base(graph, value, materialized, base_strides)?;
    if base == value {
        return Some(Place::Value(value));
    }
    let usable = offset >= 0 && strides.iter().all(|&s| s >= 0) && strides == ty.strides;
    usable.then(|| Place::Strided { base, shape: ty.shape.clone(), strides, offset })
}

/// The value whose view, through any number of them, a value is, with the strides of the view's elements there and the first one's
/// offset. `None` if they lie at no fixed strides.
fn in_base(
    graph: &Graph,
    value: ValueRef,
    materialized: &FxHashSet<NodeId>,
    base_strides: &dyn Fn(ValueRef) -> Dims,
) -> Option<(ValueRef, Dims, i64)> {
    let ty = graph.ty(value);
    let mut indices = Indices::new(&ty.shape.iter().map(|&n| n.max(1)).collect::<Vec<_>>());
    let mut index: SmallVec<[_; 6]> = (0..ty.rank()).map(|d| indices.var(Var(d as u32))).collect();
    let mut at = value;
    while !materialized.contains(&at.node) {
        let Op::View(view) = &graph.node(at.node).op else { break };
        if matches!(view, View::Pad { .. }) {
            return None;
        }
        let operand = graph.operands(at.node)[0];
        index = view_index(&mut indices, view, &graph.ty(operand).shape, &graph.ty(at).shape, &index);
        at = operand;
    }
    let mut addr = indices.constant(0);
    for (&i, &s) in index.iter().zip(&base_strides(at)) {
        addr = indices.add_scaled(addr, i, s);
    }
    let (coefficients, offset) = indices.affine(addr)?;
    let mut strides = Dims::from_slice(&coefficients);
    for d in 0..ty.rank() {
        if ty.shape[d] == 1 {
            strides[d] = ty.strides[d];
        }
    }
    Some((at, strides, offset))
}

/// The strides at which a value's elements lie in what it is a view of, whichever are recorded for it; `None` where there are no
/// such.
pub(crate) fn strides_in_base(graph: &Graph, value: ValueRef) -> Option<Dims> {
    let layouts = Strides(graph);
    let found = in_base(graph, value, &FxHashSet::default(), &|base| layouts.strides(base).0);
    found.map(|(_, strides, _)| strides)
}

/// Where every `count`th element of a value along a dimension is found, where those between are the same element as the one
/// before them: what a view repeats.
pub(crate) fn repeated_place(graph: &Graph, value: ValueRef, dim: usize, count: i64) -> Option<OperandPlace> {
    let ty = graph.ty(value);
    let mut extents: Vec<i64> = ty.shape.iter().map(|&n| n.max(1)).collect();
    *extents.get_mut(dim)? = ty.shape[dim].checked_div(count)?.max(1);
    let mut indices = Indices::new(&extents);
    let mut index: SmallVec<[_; 6]> = (0..ty.rank()).map(|d| indices.var(Var(d as u32))).collect();
    let among = indices.add_var(count);
    let among = indices.var(among);
    index[dim] = indices.add_scaled(among, index[dim], count);
    let mut at = value;
    while let Op::View(view) = &graph.node(at.node).op {
        if matches!(view, View::Pad { .. }) {
            return None;
        }
        let operand = *graph.operands(at.node).first()?;
        index = view_index(&mut indices, view, &graph.ty(operand).shape, &graph.ty(at).shape, &index);
        at = operand;
    }
    let (base_strides, span) = Strides(graph).strides(at);
    let mut addr = indices.constant(0);
    for (&i, &s) in index.iter().zip(&base_strides) {
        addr = indices.add_scaled(addr, i, s);
    }
    let (mut coefficients, offset) = indices.affine(addr)?;
    let same = coefficients.pop() == Some(0) && offset >= 0 && coefficients.iter().all(|&s| s >= 0);
    same.then(|| OperandPlace { base: at, strides: Dims::from_vec(coefficients), offset, span })
}

/// Memory that a program reads at fixed strides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OperandPlace {
    /// The value in memory.
    pub(crate) base: ValueRef,
    /// Strides in elements.
    pub(crate) strides: Dims,
    /// Elements from the base's first one.
    pub(crate) offset: i64,
    /// Elements from the base's first to its last one.
    pub(crate) span: i64,
}

/// Where the elements of an operand are found: in what it is a view of, if they lie at fixed strides there, and else in memory
/// of its own, into which the view is materialized.
pub(crate) fn operand_place(graph: &Graph, value: ValueRef) -> OperandPlace {
    let layouts = Strides(graph);
    let none = FxHashSet::default();
    let place = strided(graph, value, &none, &|base| layouts.strides(base).0);
    let place = place.unwrap_or(Place::Value(value));
    let span = layouts.strides(place.base()).1;
    match place {
        Place::Value(base) => OperandPlace { base, strides: layouts.strides(base).0, offset: 0, span },
        Place::Strided { base, strides, offset, .. } => OperandPlace { base, strides, offset, span },
    }
}

impl OperandPlace {
    /// Whether it is a view that is materialized for this operand.
    pub(crate) fn is_materialized(&self, graph: &Graph) -> bool {
        matches!(graph.node(self.base.node).op, Op::View(_))
    }
}

/// Alignments in bytes of tensors that a plan finds, by slot: powers of two. A tensor beyond the lists lies at a
/// multiple of 16.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignments {
    /// Of the inputs.
    pub inputs: Vec<u32>,
    /// Of the model's own tensors.
    pub params: Vec<u32>,
    /// Of the constants.
    pub consts: Vec<u32>,
}

impl Alignments {
    /// The alignment of what a node stands for, at most 16.
    pub(crate) fn of(&self, op: &Op) -> u32 {
        let found = match op {
            Op::Input(slot) => self.inputs.get(*slot as usize),
            Op::Param(slot) => self.params.get(*slot as usize),
            Op::Const(slot) => self.consts.get(*slot as usize),
            _ => None,
        };
        found.map_or(16, |&align| align.clamp(1, 16))
    }

    /// The alignment of the first element of a value that is given as a view of memory, at most 16.
    pub(crate) fn of_view(&self, graph: &Graph, value: ValueRef) -> u32 {
        let node = graph.node(value.node);
        let Some(&operand) = graph.operands(value.node).first() else { return self.of(&node.op) };
        let below = match &node.op {
            Op::View(View::Slice { dim, start, .. }) => {
                let ty = graph.ty(operand);
                let size = ty.dtype.elem().map_or(1, |elem| i64::from(elem.bytes()));
                let bytes = start * ty.strides[usize::from(*dim)] * size;
                1 << bytes.trailing_zeros().min(4)
            }
            Op::View(View::Reshape | View::Permute(_) | View::Expand | View::Window(_)) => 16,
            _ => return 16,
        };
        self.of_view(graph, operand).min(below)
    }
}
