//! Products over weights in panels as convolutions of one tap (unaligned GEMM): a row is a pixel, what is summed over are its channels, and
//! a column is a filter.
//!
//! ```text
//! 197 rows as blocks of 32      7 blocks: 224 rows are computed, and what is read is masked
//! 197 pixels, 6 at a time      33 tiles, the last of which begins one pixel earlier: 198
//! ```
//!
//! That pays where blocks of a power of two would compute more rows for nothing.

use tilefuse_block::Elem;

use super::geometry::Image;
use super::geometry::{Conv, whole};
use super::packed;
use super::tile::Extents;
use crate::block_kernel::{BlockKernel, BlockKernelKind, Layout, Tied};
use crate::contract::blocks;
use crate::contract::call_kernels::Template;
use crate::contract::operand::in_memory;
use crate::contract::prepack::Panels;
use crate::contract::product::Product;
use crate::contract::target::Vectors;
use crate::contract::window_axis::WindowAxis;
use crate::graph::{Graph, NodeId};

/// The fewest rows: fewer wait for their weights, which products of blocks ask for early. What is asked for early is not in the price.
const MIN_ROWS: i64 = 17;

/// The most vectors of a panel: more leave no registers for pixels.
const MAX_VECTORS: u32 = 4;

/// A product as a convolution.
#[derive(Debug)]
pub(in crate::contract) struct UnalignedGemm {
    conv: Conv,
    image: Image,
    tile: Extents,
}

impl UnalignedGemm {
    /// A product as a convolution, if it is one.
    pub(in crate::contract) fn of(product: &Product, processor: Vectors) -> Option<UnalignedGemm> {
        let natural = |n: i64| u64::try_from(n).ok();
        if product.m < MIN_ROWS
            || product.elem == Elem::I8
            || !product.batch.is_empty()
            || product.alpha != 1.0
            || !has_plain_bias(product)
        {
            return None;
        }
        let m = natural(product.m)?;
        let conv = Conv {
            elem: product.elem,
            batch: 1,
            channels: natural(product.k)?,
            filters: natural(product.n)?,
            groups: 1,
            axes: vec![WindowAxis::alone(m)],
            bias: product.c.is_some(),
        };
        let a = &product.a;
        let image = Image {
            batch: 0,
            channel: a.matrix[1],
            axes: vec![a.matrix[0]],
            offset: a.source.offset,
            span: a.source.span,
        };
        conv.check().ok()?;
        // Panels as wide as those of blocks, which other signatures of a model may share.
        let vectors = blocks::columns(product) / processor.lanes(&conv);
        if !(1..=MAX_VECTORS).contains(&vectors) {
            return None;
        }
        let tile = Extents::among(&conv, vectors..=vectors, processor);
        packed::check(&conv, &image, &tile).ok()?;
        Some(UnalignedGemm { conv, image, tile })
    }

    /// Rows that are computed, those of the last tile that others computed too.
    pub(in crate::contract) fn rows_computed(&self) -> u64 {
        self.tile.parts(&self.conv) * u64::from(self.tile.pixels)
    }

    /// Columns of a panel.
    pub(in crate::contract) fn width(&self) -> i64 {
        self.tile.width() as i64
    }

    /// The template, which takes the panels as an operand behind those of the call.
    pub(in crate::contract) fn template(
        &self,
        graph: &Graph,
        node: NodeId,
        product: &Product,
        panels: Panels,
    ) -> Option<Template> {
        let operands = graph.operands(node);
        let located = |position: u16| Some(in_memory(graph, *operands.get(usize::from(position))?, position));
        let (left, weight) = (product.a.source.position, product.b.source.position);
        if left == weight {
            return None;
        }
        let layouts = vec![(left, located(left)?.layout), (weight, located(weight)?.layout)];
        let made = packed::program(&self.conv, &self.image, &self.tile, true).ok()?;
        let position = u16::try_from(operands.len()).ok()?;
        let bias = product.c.as_ref().map(|c| Tied::Operand(c.source.position));
        let tied = [Tied::Operand(left), Tied::Operand(position)].into_iter();
        let tied = tied.chain(bias).chain([Tied::Result(0)]).collect();
        let [rows, columns] = [self.tile.pixels.into(), self.tile.width()];
        let schedule =
            format!("unaligned GEMM, blocks of {rows} x {columns}, right operand in panels, prepacked");
        let template = whole(&self.conv, made, tied, layouts, schedule);
        let kernel = BlockKernel { kind: BlockKernelKind::Contraction, ..template.kernel };
        Some(Template { kernel, panels: Some(panels), ..template })
    }
}

/// Whether what is added is a number for each column, or nothing.
fn has_plain_bias(product: &Product) -> bool {
    product.c.as_ref().is_none_or(|c| {
        let plain = c.source.layout == Layout::Elements && c.source.span == product.n;
        plain && c.matrix == [0, 1] && product.beta == 1.0
    })
}
