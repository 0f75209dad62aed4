//! Iteration bits.
//!
//! Every extent is a power of two, so the position of an element in a tile is a string of bits, and every view
//! operation renames, drops or repeats bits. A *map* says for each bit of a value's row-major position, lowest
//! first, which bit of the surrounding iteration it follows.

use smallvec::SmallVec;
use tilefuse_block::{Op, OpKind, Program, Shape, Value};

/// A bit of an iteration.
pub(crate) type Bit = u16;

/// A bit that is always 0.
pub(crate) const ZERO: Bit = 0;

/// A bit that is always 1.
pub(crate) const ONE: Bit = 1;

/// For each bit of a row-major position, lowest first, the iteration bit that it follows.
pub(crate) type Map = SmallVec<[Bit; 12]>;

/// Number of position bits of an extent.
pub(crate) fn extent_bits(extent: u32) -> usize {
    extent.trailing_zeros() as usize
}

/// Number of position bits of a tile.
pub(crate) fn shape_bits(shape: &Shape) -> usize {
    shape.iter().map(|&d| extent_bits(d)).sum()
}

/// The range of position bits of each axis, outermost axis first.
pub(crate) fn axis_ranges(shape: &Shape) -> SmallVec<[std::ops::Range<usize>; 4]> {
    let mut end = shape_bits(shape);
    let mut out = SmallVec::new();
    for &extent in shape {
        let start = end - extent_bits(extent);
        out.push(start..end);
        end = start;
    }
    out
}

/// The operands that are computed element by element with a result, and the map of each, where that result, `value`,
/// is wanted at `map`. Pointers, and operands of operations that are not element by element, are left out.
pub(crate) fn operands(program: &Program, op: &Op, value: Value, map: &[Bit]) -> SmallVec<[(Value, Map); 3]> {
    let same = || Map::from_slice(map);
    match &op.kind {
        OpKind::Splat(_) => one(op, Map::new()),
        OpKind::ExpandDims(_)
        | OpKind::Reshape(_)
        | OpKind::Cast(_)
        | OpKind::Bitcast(_)
        | OpKind::Assume(_) => one(op, same()),
        OpKind::Map(_) | OpKind::Reduce { .. } => op.args.iter().map(|&a| (a, same())).collect(),
        OpKind::Load { .. } => op.args.iter().skip(1).map(|&a| (a, same())).collect(),
        OpKind::Broadcast(shape) => {
            let from = op.args.first().map(|&a| program.ty(a).shape.clone()).unwrap_or_default();
            one(op, broadcast_map(&from, shape, map))
        }
        OpKind::Permute(perm) => {
            let from = op.args.first().map(|&a| program.ty(a).shape.clone()).unwrap_or_default();
            one(op, permute_map(&from, perm, map))
        }
        OpKind::Join => {
            let rest = Map::from_slice(map.get(1..).unwrap_or_default());
            op.args.iter().map(|&a| (a, rest.clone())).collect()
        }
        OpKind::Split => {
            let half = if op.results.first() == Some(&value) { ZERO } else { ONE };
            one(op, std::iter::once(half).chain(map.iter().copied()).collect())
        }
        OpKind::Gather { .. } => op.args.iter().skip(1).map(|&a| (a, same())).collect(),
        _ => SmallVec::new(),
    }
}

fn one(op: &Op, map: Map) -> SmallVec<[(Value, Map); 3]> {
    op.args.first().map(|&a| (a, map)).into_iter().collect()
}

fn broadcast_map(from: &Shape, to: &Shape, map: &[Bit]) -> Map {
    let kept = axis_ranges(to).into_iter().zip(from.iter().zip(to)).rev();
    kept.filter(|(_, (a, b))| a == b).flat_map(|(range, _)| map[range].iter().copied()).collect()
}

fn permute_map(from: &Shape, perm: &[u8], map: &[Bit]) -> Map {
    let to: Shape = perm.iter().map(|&axis| from[usize::from(axis)]).collect();
    let ranges = axis_ranges(&to);
    let mut out = Map::new();
    for axis in (0..from.len()).rev() {
        if let Some(place) = perm.iter().position(|&p| usize::from(p) == axis) {
            out.extend_from_slice(&map[ranges[place].clone()]);
        }
    }
    out
}

/// Classes of iteration bits that run together.
#[derive(Default)]
pub(crate) struct Classes {
    parent: Vec<Bit>,
}

impl Classes {
    /// No bits but [`ZERO`] and [`ONE`].
    pub(crate) fn new() -> Classes {
        Classes { parent: vec![ZERO, ONE] }
    }

    /// A new bit in a class of its own.
    pub(crate) fn fresh(&mut self) -> Bit {
        let bit = self.parent.len() as Bit;
        self.parent.push(bit);
        bit
    }

    /// `count` new bits.
    pub(crate) fn fresh_map(&mut self, count: usize) -> Map {
        (0..count).map(|_| self.fresh()).collect()
    }

    /// Number of bits.
    pub(crate) fn len(&self) -> usize {
        self.parent.len()
    }

    /// The representative of a bit's class.
    pub(crate) fn find(&self, mut bit: Bit) -> Bit {
        while self.parent[usize::from(bit)] != bit {
            bit = self.parent[usize::from(bit)];
        }
        bit
    }

    /// Joins the classes of two bits.
    pub(crate) fn join(&mut self, a: Bit, b: Bit) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[usize::from(a.max(b))] = a.min(b);
    }

    /// A map with every bit replaced by its representative.
    pub(crate) fn canonical(&self, map: &[Bit]) -> Map {
        map.iter().map(|&b| self.find(b)).collect()
    }
}
