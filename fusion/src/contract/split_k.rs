//! Products of few blocks and long sums: parts of the sum have instances of their own, and a second kernel adds what these found.
//!
//! ```text
//! %3 = kernel contraction(%0, %1) : f32[parts,members,m,n]
//! %2 = aten::mm(self=%0, mat2=%1), whose kernel adds up %3, and has the epilogue
//! ```
//!
//! To the first kernel, parts are a further dimension of the batch. They have one length, and are added in their order, so that
//! results do not depend on which is ready first.

use tilefuse_block::Program;
use tilefuse_block::dynamic::{BuildError, program};

use super::blocks::{Blocks, Form, Grid, blocks_of, covering};
use super::call_kernels::{OperandKernel, Template};
use super::product::{Access, Product};
use super::template::{self, Instance, Operands, Writer};
use super::windows::Windows;
use crate::block_kernel::{BlockKernel, Coordinates, Layout, Tied};
use crate::graph::{Graph, NodeId};
use crate::taken::taken;
use crate::types::{DType, TensorType};

/// Elements of a block of the second kernel, and who adds them: each thread reads lines of 16 bytes.
const ADDED: u32 = 512;
const ADDING: Grid = Grid { warps: 4, stages: 1, group: 1 };

/// The template of a product in these blocks, whose sum is divided into so many parts.
pub(super) fn template(
    graph: &Graph,
    node: NodeId,
    product: &Product,
    (blocks, parts): (Blocks, u32),
) -> Option<Template> {
    taken!("split-K");
    let partial = partial(product, parts)?;
    let mut kernel = template::with(&partial, blocks, Operands::of(&partial))?.kernel;
    kernel.schedule = format!("split-K in {parts} parts, {}", kernel.schedule);
    let sources = [&product.a.source, &product.b.source];
    kernel.tied = vec![Tied::Operand(0), Tied::Operand(1), Tied::Result(0)];
    kernel.layouts = (0..).zip(sources).map(|(at, source)| (at, source.layout.clone())).collect();
    let members: i64 = product.batch.iter().product();
    let shape = [parts.into(), members, product.m, product.n];
    let ty = TensorType::contiguous(DType::Elem(partial.out), &shape, graph.ty(node.into()).device);
    let positions = sources.iter().map(|source| source.position).collect();
    let partial = OperandKernel { kernel, ty, positions, group: 1, computes: true };
    let position = u16::try_from(graph.operands(node).len()).ok()?;
    let grid = blocks.grid.map(|_| ADDING);
    let whole = template::whole(product, adding(product, (parts, grid), position)?);
    Some(Template { operand_kernels: vec![partial], ..whole })
}

/// The products of all parts of the sum, a further dimension of the batch; `None` where parts are not of one length.
pub(super) fn partial(product: &Product, parts: u32) -> Option<Product> {
    let parts = i64::from(parts);
    if product.k % parts != 0 {
        return None;
    }
    let k = product.k / parts;
    let windows = product.windows.as_ref().map(|windows| Windows { part: k, ..windows.clone() });
    // Windows of all parts begin at the same pixels.
    let left = if windows.is_some() { 0 } else { product.a.matrix[1] };
    let of = |access: &Access, along: i64| {
        let batch = [k.checked_mul(along)?].into_iter().chain(access.batch.iter().copied()).collect();
        Some(Access { batch, ..access.clone() })
    };
    Some(Product {
        batch: [parts].into_iter().chain(product.batch.iter().copied()).collect(),
        k,
        a: of(&product.a, left)?,
        windows,
        b: of(&product.b, product.b.matrix[0])?,
        c: None,
        alpha: 1.0,
        beta: 0.0,
        out: product.sum(),
        ..product.clone()
    })
}

/// The kernel of the call, which adds up the parts that the operand at this position holds.
fn adding(product: &Product, (parts, grid): (u32, Option<Grid>), position: u16) -> Option<BlockKernel> {
    // Whole rows, which an epilogue may reduce, or the widest that are filled best.
    let filled = |&columns: &u32| blocks_of(product.n, columns) * i64::from(columns);
    let columns = match covering(product.n) {
        all if all <= ADDED => all,
        _ => [ADDED, ADDED / 2, ADDED / 4].into_iter().min_by_key(filled).unwrap_or(ADDED),
    };
    let rows = (ADDED / columns).min(covering(product.m));
    let blocks = Blocks { form: Form::Dots, rows, columns, depth: 1, grid };
    let members: i64 = product.batch.iter().product();
    let each = members.checked_mul(product.m)?.checked_mul(product.n)?;
    let reach = each.checked_mul(i64::from(parts) + 1)?;
    let writer = Writer::new(product, blocks, Operands::of(product)).reaching(reach);
    let written = writer.adding(parts, each).ok()?;
    let c = product.c.as_ref().map(|c| &c.source);
    let tied = [Tied::Operand(position)].into_iter().chain(c.map(|c| Tied::Operand(c.position)));
    // What the first kernel reads stays where it lies.
    let unread = [&product.a.source, &product.b.source].into_iter().chain(c);
    let layouts = unread.map(|source| (source.position, source.layout.clone()));
    let layouts = layouts.chain([(position, Layout::Elements)]).collect();
    let schedule = format!("split-K: adds {parts} parts");
    template::kernel(product, &blocks, written, (tied.collect(), layouts), schedule)
}

impl Writer<'_> {
    /// The program that adds up so many parts of so many elements each.
    fn adding(self, parts: u32, each: i64) -> Result<(Program, Vec<Coordinates>), BuildError> {
        let program = program("added", |kernel| {
            let all = self.pointer(kernel, "parts", self.sum, each * i64::from(parts));
            self.store(kernel, |Instance { rows, cols, .. }| {
                let first = all.skip(self.first());
                let part = |number: i64| {
                    let ptr = if number == 0 { first } else { first + number * each };
                    ptr.block(&[(*rows, self.product.n), (*cols, 1)]).load()
                };
                (1..i64::from(parts)).fold(part(0), |sum, number| sum + part(number))
            });
        })?;
        Ok((program, self.coordinates()))
    }
}
