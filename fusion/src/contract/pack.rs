//! Operands of products that are no weights, packed by kernels before each product.
//!
//! ```text
//! %1 = input 1 : f32[1024,1000]            %3 = kernel pack(%1) : f32[1,16,8,8192]
//! %2 = aten::mm(self=%0, mat2=%1)          %2 = aten::mm(self=%0, mat2=%1), whose kernel reads %3
//! ```
//!
//! The right operand becomes panels, as weights do in `prepack.rs`, one set for each member of the batch that has a matrix of its
//! own. The left one becomes blocks as high as those of the product and as wide as what is summed over at a time, where its
//! rows lie so far apart that their lines share places in the caches, or would be masked, transposed or converted whenever they
//! are read:
//!
//! ```text
//! right    [members, panels, blocks of k, k x columns]        left    [members, blocks of rows, blocks of k, rows x k]
//! ```
//!
//! An instance reads a tile where it lies, puts zeros behind the last rows and columns, and writes a run of memory. Where no
//! instructions multiply 16-bit numbers in groups, what is packed are `f32`, which products would make of them first.
//!
//! A product then multiplies at full speed, whatever the strides of its operands are. Packing them takes as long as reading
//! and writing them, which pays where enough rows are multiplied (`price.rs`).

use smallvec::smallvec;
use tilefuse_block::dynamic::{BuildError, Tile, axis, blocked, program};
use tilefuse_block::{Elem, Program};

use super::blocks::{self, Blocks, blocks_of};
use super::call_kernels::{OperandKernel, Template};
use super::operand::Source;
use super::prepack::Panels;
use super::product::{Access, Product};
use super::target::Target;
use super::template::{self, Operands, Writer};
use super::vnni;
use crate::block_kernel::{BlockKernel, BlockKernelKind, Layout, Tied};
use crate::graph::{Graph, NodeId};
use crate::taken::taken;
use crate::types::{DType, Device, Dims, TensorType, row_major};

/// The fewest rows and panels of a product whose left operand is packed.
const LEFT_ROWS: i64 = 32;
const LEFT_PANELS: i64 = 4;

/// Bytes between rows whose lines share places in the first cache.
const ALIASED: i64 = 4096;

/// The most rows of a tile of the right operand, where so many are enough.
const ROWS: u32 = 64;

/// How an operand is divided into tiles.
pub(super) struct Tiling {
    /// Rows and columns of the operand's matrix.
    pub(super) extents: [i64; 2],
    /// Those of a tile.
    pub(super) tile: [u32; 2],
    /// Whether tiles below each other follow each other, or those beside each other.
    pub(super) down: bool,
    /// Rows of a group of the VNNI layout.
    pub(super) group: u32,
    /// The kind of elements that is written.
    pub(super) elem: Elem,
}

/// The panels of a product's right operand that is packed first, and the blocks that read them; `None` where there are no programs for
/// its elements.
pub(super) fn panels(product: &Product, target: &Target<'_>) -> Option<(Panels, Blocks)> {
    match vnni::group(product, target) {
        Some(group) => {
            let panels = Panels::of(product, vnni::width(product));
            let panels = panels.in_groups(group, vnni::depth(product).into());
            let blocks = vnni::choose(product, target.processors, &panels);
            Some((panels, blocks))
        }
        None if product.elem == Elem::I8 => None,
        None => {
            let blocks = blocks::dots(product, target.processors, true);
            let panels = Panels::of(product, blocks.columns.into()).in_groups(1, blocks.depth.into());
            Some((panels, blocks))
        }
    }
}

/// The kind of elements that are packed.
fn packed_elem(product: &Product, panels: &Panels) -> Elem {
    match product.elem {
        Elem::F16 | Elem::Bf16 if panels.group == 1 => Elem::F32,
        elem => elem,
    }
}

/// Rows and columns of a left operand that is packed, with those that fill up its tiles.
pub(super) fn filled(product: &Product, blocks: &Blocks) -> [i64; 2] {
    [(product.m, blocks.rows), (product.k, blocks.depth)]
        .map(|(extent, block)| blocks_of(extent, block) * i64::from(block))
}

/// Bytes of each operand that is packed, of a left one of these extents.
pub(super) fn bytes(product: &Product, panels: &Panels, blocks: &Blocks, left: [i64; 2]) -> Vec<f64> {
    let elem = packed_elem(product, panels);
    let size = |access: &Access, matrix: f64| {
        let members = members(access, product).iter().map(|&n| n as f64).product::<f64>();
        members * matrix * f64::from(elem.bytes())
    };
    let right = panels.shape().iter().map(|&n| n as f64).product();
    let [rows, columns] = left.map(|n| n as f64);
    let left = packs_left(product, blocks, elem).then(|| size(&product.a, rows * columns));
    [size(&product.b, right)].into_iter().chain(left).collect()
}

/// The kernels of a product whose operands are packed first.
pub(super) fn template(
    graph: &Graph,
    node: NodeId,
    mut product: Product,
    (blocks, panels): (Blocks, Panels),
) -> Option<Template> {
    let elem = packed_elem(&product, &panels);
    let right = Tiling {
        extents: [product.k, product.n],
        tile: [rows_of_tile(product.k, blocks.depth), blocks.columns],
        down: true,
        group: u32::try_from(panels.group).ok()?,
        elem,
    };
    let device = graph.ty(node.into()).device;
    let packed = OperandKernel::of(&product, &product.b, &right, device)?;
    let first = u16::try_from(graph.operands(node).len()).ok()?;
    let mut unread = Vec::new();
    let mut all = Vec::new();
    let access = packed.access(first, &product.b, [panels.width, 1], &product);
    unread.push(std::mem::replace(&mut product.b, access).source);
    all.push(packed);
    let mut operands = Operands { panels: Some(&panels), right: elem, left: product.elem, blocked: false };
    if packs_left(&product, &blocks, elem) {
        let left = Tiling {
            extents: [product.m, product.k],
            tile: [blocks.rows, blocks.depth],
            down: false,
            group: 1,
            elem,
        };
        let packed = OperandKernel::of(&product, &product.a, &left, device)?;
        let access = packed.access(first + 1, &product.a, [blocks.depth.into(), 1], &product);
        unread.push(std::mem::replace(&mut product.a, access).source);
        all.push(packed);
        operands = Operands { left: elem, blocked: true, ..operands };
    }
    let mut template = template::with(&product, blocks, operands)?;
    // The kernel does not read them: they stay where they lie.
    template.kernel.layouts.extend(unread.into_iter().map(|source| (source.position, source.layout)));
    Some(Template { operand_kernels: all, ..template })
}

/// Rows of a tile of the right operand, of which so many are read at a time: fewer, where tiles fill up as many with zeros as
/// are read.
fn rows_of_tile(rows: i64, depth: u32) -> u32 {
    let filled = |extent: u32| blocks_of(rows, extent) * i64::from(extent);
    let few = depth.min(ROWS);
    if filled(few) == filled(depth) { few } else { depth }
}

/// Whether the left operand is packed as well, in elements of this kind.
fn packs_left(product: &Product, blocks: &Blocks, elem: Elem) -> bool {
    let a = &product.a;
    let apart = a.matrix[0].saturating_mul(product.elem.bytes().into());
    let shared = apart % ALIASED == 0 || a.is_transposed();
    let masked = product.k % i64::from(blocks.depth) != 0;
    let often = blocks_of(product.n, blocks.columns) >= LEFT_PANELS && product.m >= LEFT_ROWS;
    often && (shared || masked || elem != product.elem)
}

/// Whether a member of the batch has a matrix of its own along a dimension.
fn own(access: &Access) -> impl Iterator<Item = usize> + '_ {
    (0..access.batch.len()).filter(|&d| access.batch[d] != 0)
}

/// The members of the batch that have matrices of their own.
fn members(access: &Access, product: &Product) -> Dims {
    own(access).map(|d| product.batch[d]).collect()
}

impl Tiling {
    /// Blocks of rows and of columns.
    fn blocks(&self) -> [i64; 2] {
        [0, 1].map(|axis| blocks_of(self.extents[axis], self.tile[axis]))
    }

    /// Elements of a tile.
    fn size(&self) -> i64 {
        self.tile.iter().copied().map(i64::from).product()
    }
}

impl OperandKernel {
    /// An operand of a product that is divided into tiles.
    pub(super) fn of(
        product: &Product,
        access: &Access,
        tiling: &Tiling,
        device: Device,
    ) -> Option<OperandKernel> {
        let source = &access.source;
        let members = members(access, product).iter().try_fold(1i64, |all, &n| all.checked_mul(n))?;
        let [down, across] = tiling.blocks();
        let [outer, inner] = if tiling.down { [across, down] } else { [down, across] };
        let shape = [members, outer, inner, tiling.size()];
        shape.iter().try_fold(1i64, |all, &n| all.checked_mul(n))?;
        let ty = TensorType::contiguous(DType::Elem(tiling.elem), &shape, device);
        // Neighbours in the grid read neighbours in memory.
        let axes = if access.is_transposed() { [0, 1] } else { [1, 0] };
        let mut grid = [1; 3];
        grid[axes[0]] = u32::try_from(down).ok()?;
        grid[axes[1]] = u32::try_from(across).ok()?;
        grid[2] = u32::try_from(members).ok()?;
        let [rows, columns] = tiling.tile;
        let blocks = Blocks { form: blocks::Form::Dots, rows, columns, depth: rows, grid: None };
        let writer = Writer::new(product, blocks, Operands::of(product)).reaching(ty.numel());
        let program = writer.packing(access, tiling, axes.map(|axis| axis as u8)).ok()?;
        let kernel = BlockKernel {
            kind: BlockKernelKind::Pack,
            program,
            grid,
            tied: vec![Tied::Operand(0), Tied::Result(0)],
            checks: false,
            neighbours_do_not_fit: false,
            coordinates: Vec::new(),
            layouts: vec![(0, source.layout.clone())],
            schedule: String::new(),
            note: None,
            expected_us: 0.0,
        };
        let positions = smallvec![source.position];
        Some(OperandKernel { kernel, ty, positions, group: tiling.group.into(), computes: false })
    }

    /// What was packed as the operand at a position, with these strides in a block.
    pub(super) fn access(
        &self,
        position: u16,
        before: &Access,
        matrix: [i64; 2],
        product: &Product,
    ) -> Access {
        let [_, outer, inner, size] = <[i64; 4]>::try_from(&self.ty.shape[..]).unwrap_or_default();
        let shape: Dims = members(before, product).iter().copied().chain([outer * inner * size]).collect();
        let strides = row_major(&shape);
        let mut batch: Dims = before.batch.iter().map(|_| 0).collect();
        for (d, &stride) in own(before).zip(&strides) {
            batch[d] = stride;
        }
        let source = Source {
            position,
            span: self.ty.numel(),
            strides: row_major(&self.ty.shape),
            shape: self.ty.shape.clone(),
            offset: 0,
            layout: Layout::Elements,
        };
        Access { source, batch, matrix }
    }
}

impl Writer<'_> {
    /// The program that packs an operand; an instance's block of rows and block of columns are its indices along these
    /// axes.
    fn packing(&self, at: &Access, tiling: &Tiling, axes: [u8; 2]) -> Result<Program, BuildError> {
        let elem = self.product.elem;
        let [rows, columns] = tiling.tile;
        let own = members(at, self.product);
        let [down, across] = tiling.blocks();
        let size = i64::from(rows * columns);
        let whole = own.iter().product::<i64>() * down * across * size;
        taken!("packed operands");
        program("pack", |kernel| {
            let x = kernel.ptr("x", elem, at.source.span as u64);
            let y = kernel.ptr("y", tiling.elem, whole as u64);
            let row = blocked(self.id(axes[0]), rows, tiling.extents[0]);
            let column = blocked(self.id(axes[1]), columns, tiling.extents[1]);
            let batch = at.batch.iter().copied().filter(|&stride| stride != 0).collect();
            let start = self.start(&Access { batch, ..at.clone() }, &self.members(&own));
            let mut sides = [(row, at.matrix[0]), (column, at.matrix[1])];
            if at.is_transposed() {
                sides.reverse();
            }
            let tile = x.skip(start).block(&sides).load_or(0).cast(tiling.elem);
            let tile = tiling.in_order(tile, at.is_transposed()).reshape([rows * columns]);
            let tiles = if tiling.down { [1, down] } else { [across, 1] };
            let mut first = self.id(2) * (down * across * size);
            for (axis, tiles) in axes.into_iter().zip(tiles) {
                first += self.id(axis) * (tiles * size);
            }
            (y + axis(first, rows * columns).index).store(tile);
        })
    }
}

impl Tiling {
    /// A tile in the order in which it is written; it was read with its rows as columns where it is transposed.
    fn in_order(&self, tile: Tile, transposed: bool) -> Tile {
        let ([rows, columns], group) = (self.tile, self.group);
        match (transposed, group) {
            (false, 1) => tile,
            (true, 1) => tile.trans(),
            (true, _) => tile.reshape([columns, rows / group, group]).permute([1, 0, 2]),
            (false, _) => tile.reshape([rows / group, group, columns]).permute([0, 2, 1]),
        }
    }
}
