//! How a contraction is computed: how instances find operands, what each of them computes, and whether parts of what is added up have
//! instances of their own.
//!
//! ```text
//! [197,768] x [768,3072], a weight, on a host      0.92  rows as pixels of a convolution over prepacked panels, 198 of them
//!                                                  1.00  blocks over prepacked panels, 224 rows
//! [1,64,56,56] * [256,64,1,1], on a host           1.00  vectors of pixels, over operands where they lie
//!                                                  1.95  vectors of filters, over prepacked panels: each sum is stored alone
//! 12 heads of 4 tokens over 1024 keys, on a host   1.00  each query by itself, 128 keys at a time
//!                                                  1.09  queries as lanes, blocks of 4 x 128 keys
//! ```
//!
//! `search_space.rs` lists those that are valid, `price.rs` says what they are expected to take, and `pruning.rs` has programs written of
//! the first and of those that come near it.

use super::attention::{self, QueryBlocks};
use super::blocks::{Blocks, Form, Grid, LINE_DEPTH};
use super::call_kernels::Template;
use super::conv::{self, FilterVectors, Phases, UnalignedGemm};
use super::prepack::{self, Panels};
use super::problem::{Problem, Task};
use super::product::Product;
use super::template::{self, Operands};
use super::{pack, split_k};
use crate::graph::{Graph, NodeId};
use crate::machine::ProductShape;
use crate::taken::taken;

/// How a contraction is computed.
#[derive(Debug)]
pub(super) struct Schedule {
    /// How instances find operands.
    pub(super) reading: Reading,
    /// What an instance computes.
    pub(super) blocking: Blocking,
    /// Parts of what is added up that have instances of their own; `None` where an instance adds up all.
    pub(super) splits: Option<Splits>,
}

/// How instances find operands.
#[derive(Debug)]
pub(super) enum Reading {
    /// Where they lie.
    InPlace,
    /// The right one, or filters, in panels that a constant holds, of a VNNI layout perhaps.
    Prepacked(Panels),
    /// The right one, or filters, in such panels, which a kernel fills before each call; another one may pack the left one.
    Packed(Panels),
    /// Keys and values in VNNI-2 layout, which kernels write before each call.
    PackedKv,
}

/// What an instance computes.
#[derive(Debug)]
pub(super) enum Blocking {
    /// Rows and columns of a product, on a host.
    Product(Blocks),
    /// The same by warpgroups of a GPU.
    Warpgroups(&'static ProductShape),
    /// Rows of a product as pixels of a convolution of one tap, whose filters are columns.
    UnalignedGemm(Box<UnalignedGemm>),
    /// Pixels of a convolution at some filters, by vectors of pixels.
    PixelVectors(conv::Block),
    /// The same by vectors of filters.
    FilterVectors(Box<FilterVectors>),
    /// Pixels of a phase of a transposed convolution, by vectors of these.
    Phases(Box<Phases>),
    /// Queries, which go through some keys at a time.
    Queries(QueryBlocks),
}

/// Parts of what a contraction adds up: of the sum of a product (split-K), or of the keys of attention (split-KV).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splits {
    /// Elements of the sum, or keys, of a part; the last one may have fewer keys.
    pub(super) length: i64,
    /// How many there are.
    pub(super) count: u32,
}

impl ProductShape {
    /// Blocks of rows that instances at work take together, so that they read few blocks of either operand.
    const GROUP: u32 = 8;

    /// The blocks of a product.
    fn blocks(&self) -> Blocks {
        let grid = Grid { warps: self.warps, stages: self.stages, group: ProductShape::GROUP };
        let (rows, columns) = (self.rows, self.columns);
        Blocks { form: Form::Dots, rows, columns, depth: LINE_DEPTH, grid: Some(grid) }
    }
}

impl Schedule {
    /// One whose instances add up all.
    pub(super) fn whole(reading: Reading, blocking: Blocking) -> Schedule {
        Schedule { reading, blocking, splits: None }
    }

    /// How many parts there are of what is added up.
    pub(super) fn parts(&self) -> u32 {
        self.splits.map_or(1, |splits| splits.count)
    }

    /// Its kernels; `None` where there is no program for a task's problem.
    pub(super) fn template(self, task: &Task<'_>) -> Option<Template> {
        let (graph, node) = (task.graph, task.node);
        let Schedule { reading, blocking, splits } = self;
        match (&task.problem, blocking) {
            (Problem::Product(product), Blocking::Product(blocks)) => {
                product_template(graph, node, product, blocks, (reading, splits))
            }
            (Problem::Product(product), Blocking::Warpgroups(shape)) => {
                product_template(graph, node, product, shape.blocks(), (reading, splits))
            }
            (Problem::Product(product), Blocking::UnalignedGemm(rows)) => {
                let Reading::Prepacked(panels) = reading else { return None };
                taken!("unaligned GEMM");
                rows.template(graph, node, product, panels)
            }
            (Problem::Convolution(call), Blocking::PixelVectors(block)) => block.template(call),
            (Problem::Convolution(call), Blocking::FilterVectors(vectors)) => {
                vectors.template(graph, node, call, reading)
            }
            (Problem::Convolution(call), Blocking::Phases(phases)) => phases.template(&call.conv),
            (Problem::Attention(attention), Blocking::Queries(blocks)) => {
                let packs = matches!(reading, Reading::PackedKv);
                attention::template(graph, node, attention, &blocks, (splits, packs))
            }
            // One of another problem.
            _ => None,
        }
    }
}

/// The kernels of a product in these blocks.
fn product_template(
    graph: &Graph,
    node: NodeId,
    product: &Product,
    blocks: Blocks,
    (reading, splits): (Reading, Option<Splits>),
) -> Option<Template> {
    match (reading, splits) {
        (Reading::InPlace, Some(splits)) => split_k::template(graph, node, product, (blocks, splits.count)),
        (Reading::InPlace, None) => template::with(product, blocks, Operands::of(product)),
        (Reading::Prepacked(panels), None) => {
            taken!("prepacked panels");
            in_panels(graph, node, product.clone(), (blocks, panels))
        }
        (Reading::Packed(panels), None) => pack::template(graph, node, product.clone(), (blocks, panels)),
        // Parts have no program over panels.
        (Reading::Prepacked(_) | Reading::Packed(_), Some(_)) | (Reading::PackedKv, _) => None,
    }
}

/// The kernel of a product whose right operand lies in prepacked panels, which are an operand behind those of the call.
fn in_panels(
    graph: &Graph,
    node: NodeId,
    mut product: Product,
    (blocks, panels): (Blocks, Panels),
) -> Option<Template> {
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    let weight = std::mem::replace(&mut product.b, prepack::access(&panels, position)).source;
    let operands = Operands { panels: Some(&panels), ..Operands::of(&product) };
    let mut template = template::with(&product, blocks, operands)?;
    template.kernel.schedule.push_str(", prepacked");
    // The kernel does not read it: it stays where it lies.
    template.kernel.layouts.push((weight.position, weight.layout));
    Some(Template { panels: Some(panels), ..template })
}
