//! Attention of `bf16` where processors multiply pairs of numbers. Keys and values are packed first, as right operands of
//! products are: keys in panels of one step's, whose elements lie in pairs, values in panels of their elements with two
//! rows interleaved.
//!
//! ```text
//! %k = kernel pack(%1) : bf16[members,steps,blocks of width,width x KEYS]
//! %v = kernel pack(%2) : bf16[members,panels,steps,KEYS x COLUMNS]
//! ```

use tilefuse_block::{Elem, Program};

use super::blocks::{self, QueryBlocks, Span};
use super::call::Attention;
use super::{kernel, rows};
use crate::block_kernel::{BlockKernel, Coordinates};
use crate::contract::blocks::blocks_of;
use crate::contract::call_kernels::OperandKernel;
use crate::contract::pack::Tiling;
use crate::contract::product::{Access, Product};
use crate::taken::taken;
use crate::types::Device;

/// Queries and keys that are many beside what packing takes, on a machine of any bandwidth.
const MIN_QUERIES: i64 = 64;
const MIN_KEYS: i64 = 128;
/// Elements of queries and keys that are multiplied at a time, at least.
const STEP: u32 = 32;
/// The most elements of a span.
const MAX_SPAN: u32 = 512;
/// What a panel of values takes beside its columns, in columns.
const STARTING: f64 = 8.0;

/// Attention over keys and values that are packed.
pub(super) struct Packed {
    program: (Program, Vec<Coordinates>),
    /// The attention whose keys and values are the further operands.
    attention: Attention,
    /// What makes these.
    operand_kernels: [OperandKernel; 2],
}

/// Whether keys and values may be packed in pairs.
pub(in crate::contract) fn is_valid(attention: &Attention) -> bool {
    attention.elem == Elem::Bf16 && attention.queries >= MIN_QUERIES && attention.keys >= MIN_KEYS
}

/// The elements of queries and keys that are multiplied at a time, and panels of values.
pub(super) fn spans(attention: &Attention) -> Option<[Vec<Span>; 2]> {
    let width = blocks::spans(attention.width, [STEP, MAX_SPAN])?;
    // Of too many elements there are none.
    blocks::spans(attention.depth, [STEP, MAX_SPAN])?;
    let time = |columns: u32| blocks_of(attention.depth, columns) as f64 * (f64::from(columns) + STARTING);
    let columns = [128, 64, 32, 16].into_iter().min_by(|&a, &b| time(a).total_cmp(&time(b)))?;
    let panels = u32::try_from(blocks_of(attention.depth, columns)).ok()?;
    let panel = |number: u32| Span { first: number * columns, extent: columns };
    Some([width, (0..panels).map(panel).collect()])
}

/// Elements of all spans.
fn filled(spans: &[Span]) -> u32 {
    spans.iter().map(|span| span.extent).sum()
}

/// Bytes of packed keys and values.
pub(in crate::contract) fn bytes(attention: &Attention, blocks: &QueryBlocks) -> f64 {
    let keys = blocks_of(attention.keys, blocks.keys) as f64 * f64::from(blocks.keys);
    let of = |access: &Access, spans: &[Span]| {
        let own = access.batch.iter().zip(&attention.batch).filter(|(stride, _)| **stride != 0);
        own.map(|(_, &n)| n as f64).product::<f64>() * keys * f64::from(filled(spans))
    };
    let elements = of(&attention.k, &blocks.width) + of(&attention.v, &blocks.depth);
    elements * f64::from(attention.elem.bytes())
}

/// The program over packed keys and values, the operands of these positions from one on.
pub(super) fn pack(
    attention: &Attention,
    blocks: &QueryBlocks,
    position: u16,
    device: Device,
) -> Option<Packed> {
    let (wide, deep) = (filled(&blocks.width), filled(&blocks.depth));
    let columns = blocks.depth.first()?.extent;
    let [down, right] = attention.k.matrix;
    let keys = Access { matrix: [right, down], ..attention.k.clone() };
    let tall = if wide.is_multiple_of(64) { 64 } else { STEP };
    let pack = |access: &Access, extents: [i64; 2], tile: [u32; 2]| {
        let product = product(attention, access, extents);
        let tiling = Tiling { extents, tile, down: true, group: 2, elem: Elem::Bf16 };
        OperandKernel::of(&product, access, &tiling, device).map(|packed| (packed, product))
    };
    let (k, of_keys) = pack(&keys, [attention.width, attention.keys], [tall, blocks.keys])?;
    let (v, of_values) = pack(&attention.v, [attention.keys, attention.depth], [blocks.keys, columns])?;
    let own = Attention {
        k: k.access(position, &attention.k, [wide.into(), 0], &of_keys),
        v: v.access(position + 1, &attention.v, [deep.into(), 0], &of_values),
        ..attention.clone()
    };
    taken!("keys and values in VNNI layout");
    let program = rows::write(&own, (blocks, None), Some(wide)).ok()?;
    Some(Packed { program, attention: own, operand_kernels: [k, v] })
}

impl Packed {
    /// The kernel of the call.
    pub(super) fn kernel(
        self,
        attention: &Attention,
        grid: [u32; 3],
        schedule: String,
    ) -> (BlockKernel, Vec<OperandKernel>) {
        let mut kernel = kernel(&self.attention, self.program, grid, schedule);
        // What was packed stays where it lies.
        let unread = [&attention.k.source, &attention.v.source];
        kernel.layouts.extend(unread.map(|source| (source.position, source.layout.clone())));
        (kernel, Vec::from(self.operand_kernels))
    }
}

/// A product whose right operand is a matrix of attention.
fn product(attention: &Attention, right: &Access, [k, n]: [i64; 2]) -> Product {
    Product {
        windows: None,
        batch: attention.batch.clone(),
        m: attention.queries,
        n,
        k,
        a: Access { matrix: [attention.q.matrix[0], 0], ..attention.q.clone() },
        b: right.clone(),
        c: None,
        alpha: 1.0,
        beta: 0.0,
        elem: attention.elem,
        out: attention.elem,
        result_layout: None,
    }
}
