//! Right operands of products that are weights, packed once in the order in which products read them.
//!
//! ```text
//! a matrix of k rows and n columns      panels of w columns: [n / w, k, w], the last one filled up with zeros
//! ```
//!
//! Panels may have the VNNI layout, for instructions that multiply neighbours along the common axis:
//!
//! ```text
//! groups of 2 rows      [n / w, k / 2, w, 2], the last rows filled up with zeros
//! ```
//!
//! A panel is read from its beginning to its end, whatever the strides of the weight are, and needs no mask. The kernel
//! takes it as one more operand of its call, a constant of the plan, which whoever runs the plan fills. The filters of a
//! convolution are such a matrix, too: a column is a filter, a row a channel at a tap.

use smallvec::smallvec;

use super::operand::Source;
use super::product::{Access, Product};
use crate::block_kernel::Layout;
use crate::graph::{Graph, NodeId, Op, ValueRef};
use crate::place::operand_place;
use crate::types::{TensorType, row_major};

/// A matrix, most often within a parameter, as panels of its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panels {
    /// The parameter's slot.
    pub param: u32,
    /// Rows of the matrix: what products sum over.
    pub rows: i64,
    /// Rows of a run; the rows are runs that follow each other.
    pub run: i64,
    /// Columns of the matrix.
    pub columns: i64,
    /// Columns of a block; the columns are blocks that follow each other, a multiple of the width each where there are several.
    pub block: i64,
    /// Columns of a panel.
    pub width: i64,
    /// Rows of a group of the VNNI layout, column by column.
    pub group: i64,
    /// Rows of a panel, with those that fill it up: a multiple of `group`.
    pub filled: i64,
    /// Elements of the parameter between runs of rows, between rows of a run, between columns of a block, and between
    /// blocks.
    pub strides: [i64; 4],
    /// The first element.
    pub offset: i64,
}

/// A constant of a plan that holds the panels of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepacked {
    /// The constant's slot.
    pub constant: u32,
    /// Its type: `[panels, filled rows, width]`, or another shape of as many elements in the same order.
    pub ty: TensorType,
    /// What it holds.
    pub panels: Panels,
}

impl Panels {
    /// Sizes of the constant.
    pub fn shape(&self) -> [i64; 3] {
        [
            self.columns.div_euclid(self.width) + i64::from(self.columns % self.width != 0),
            self.filled,
            self.width,
        ]
    }

    /// The row and column of the matrix that an element of a panel is, counted from the panel's beginning and column.
    pub fn place(&self, element: i64) -> [i64; 2] {
        let (size, group) = ((self.group * self.width).max(1), self.group.max(1));
        let (run, rest) = (element.div_euclid(size), element.rem_euclid(size));
        [run * group + rest.rem_euclid(group), rest.div_euclid(group)]
    }

    /// The element of the parameter that an element of the matrix is.
    pub fn element(&self, row: i64, column: i64) -> i64 {
        let [runs, down, across, blocks] = self.strides;
        let (run, block) = (self.run.max(1), self.block.max(1));
        let row = row.div_euclid(run) * runs + row.rem_euclid(run) * down;
        self.offset + row + column.rem_euclid(block) * across + column.div_euclid(block) * blocks
    }

    /// The type of the constant.
    pub(super) fn ty(&self, like: &TensorType) -> TensorType {
        let shape = self.shape();
        TensorType { shape: shape.iter().copied().collect(), strides: row_major(&shape), ..like.clone() }
    }
}

/// The panels of a product's right operand, if that is a matrix of a parameter that the graph does not write.
pub(super) fn panels(graph: &Graph, node: NodeId, product: &Product, width: i64) -> Option<Panels> {
    let b = &product.b;
    let value = *graph.operands(node).get(usize::from(b.source.position))?;
    let (param, offset) = unwritten_param(graph, value)?;
    let at_strides = |layout: &Layout| match layout {
        Layout::Elements => offset == 0,
        Layout::Strided { offset: own, .. } => *own == offset,
    };
    let whole = b.batch.is_empty() && at_strides(&b.source.layout);
    whole.then(|| Panels { param, ..Panels::of(product, width) })
}

impl Panels {
    /// The right operand of a product, which lies in no parameter.
    pub(super) fn of(product: &Product, width: i64) -> Panels {
        let [down, across] = product.b.matrix;
        Panels {
            param: 0,
            rows: product.k,
            run: product.k,
            columns: product.n,
            block: product.n,
            width,
            group: 1,
            filled: product.k,
            strides: [0, down, across, 0],
            offset: product.b.source.offset,
        }
    }

    /// The same with so many rows interleaved, filled up to a multiple of a block of rows.
    pub(super) fn in_groups(self, group: i64, block: i64) -> Panels {
        let block = block.max(1);
        let blocks = self.rows.div_euclid(block) + i64::from(self.rows.rem_euclid(block) != 0);
        Panels { group, filled: blocks * block, ..self }
    }
}

/// The slot of the parameter in which a value lies, and where it begins there, if the graph does not write it.
pub(super) fn unwritten_param(graph: &Graph, value: ValueRef) -> Option<(u32, i64)> {
    let place = operand_place(graph, value);
    let Op::Param(param) = graph.node(place.base.node).op else { return None };
    let written = graph.updates.iter().any(|update| update.target == place.base.node);
    (!written).then_some((param, place.offset))
}

/// The right operand of a product as panels that are the operand at this position.
pub(super) fn access(panels: &Panels, position: u16) -> Access {
    let shape = panels.shape();
    let source = Source {
        position,
        shape: shape.iter().copied().collect(),
        strides: row_major(&shape),
        offset: 0,
        span: shape.iter().product(),
        layout: Layout::Elements,
    };
    Access { source, batch: smallvec![], matrix: [panels.width, 1] }
}
