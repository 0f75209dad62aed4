//! Programs of products.
//!
//! ```text
//! %sum = for %k in 0..K step DEPTH with (%acc = 0) {
//!   %a = load %x, rows m + columns k       [ROWS, DEPTH]
//!   %b = load %w, ...                      [DEPTH, COLUMNS], in the order in which it lies in memory
//!   yield dot %a, %b, %acc
//! }
//! store %y, rows n + columns, alpha %sum + beta %c
//! ```

use tilefuse_block::{
    Builder, CacheHint, DotPrecision, Elem, Literal, Program, ReduceFn, ScalarFn, TypeError, Value,
};

use super::Template;
use super::blocks::{Blocks, Form, blocks_of, choose, grid};
use super::prepack::Panels;
use super::product::{Access, Product};
use super::vnni;
use crate::block_kernel::{BlockKernel, BlockKernelKind, Tied};

pub(super) type Made<T> = Result<T, TypeError>;

/// In what form a program finds its operands.
#[derive(Clone, Copy)]
pub(super) struct Operands<'p> {
    /// Whether the right operand lies in panels as wide as a block.
    pub(super) panels: Option<&'p Panels>,
    /// Elements of the right operand.
    pub(super) right: Elem,
    /// Elements of the left operand.
    pub(super) left: Elem,
    /// Whether the left operand lies in blocks of rows, and these in blocks of what is summed over at a time.
    pub(super) blocked: bool,
}

impl Operands<'_> {
    /// Operands that are read as they lie.
    pub(super) fn of(product: &Product) -> Operands<'static> {
        Operands { panels: None, right: product.elem, left: product.elem, blocked: false }
    }
}

/// The blocks of a product on so many threads, whose right operand may lie in panels.
pub(super) fn blocks(product: &Product, threads: u32, panels: Option<&Panels>) -> Blocks {
    match panels {
        Some(panels) if panels.group > 1 => vnni::choose(product, threads, panels),
        _ => choose(product, threads, panels.is_some()),
    }
}

/// The template of a product on so many threads, whose right operand may lie in panels.
pub(super) fn of(product: &Product, threads: u32, panels: Option<&Panels>) -> Option<Template> {
    with(product, blocks(product, threads, panels), Operands { panels, ..Operands::of(product) })
}

/// The template of a product in these blocks.
pub(super) fn with(product: &Product, blocks: Blocks, form: Operands<'_>) -> Option<Template> {
    let grid = grid(product, &blocks)?;
    let operands = || [Some(&product.a), Some(&product.b), product.c.as_ref()].into_iter().flatten();
    let program = Writer::new(product, blocks, form).program().ok()?;
    let tied = operands().map(|a| Tied::Operand(a.source.position)).chain([Tied::Result(0)]).collect();
    let layouts = operands().map(|a| (a.source.position, a.source.layout.clone())).collect();
    let kernel = BlockKernel {
        kind: BlockKernelKind::Contraction,
        program,
        grid,
        tied,
        checks: false,
        alone: None,
        coordinates: Vec::new(),
        layouts,
        note: None,
        expected_us: 0.0,
    };
    let batch: i64 = product.batch.iter().product();
    let (m, n, k) = (product.m as f64, product.n as f64, product.k as f64);
    let bytes = batch as f64 * (m * k + k * n + m * n) * f64::from(product.elem.bytes());
    let flops = 2.0 * batch as f64 * m * n * k;
    Some(Template { kernel, flops, bytes, panels: None, operand_kernels: Vec::new(), result_layout: None })
}

/// An axis of a tile: the first of its indices, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    /// `[extent]`, of the index kind.
    at: Value,
    pub(super) extent: u32,
    /// Which of them count, where not all do.
    inside: Option<Value>,
}

pub(super) struct Writer<'p> {
    pub(super) product: &'p Product,
    blocks: Blocks,
    form: Operands<'p>,
    /// Of offsets.
    pub(super) index: Elem,
    /// Of sums.
    sum: Elem,
}

impl<'p> Writer<'p> {
    pub(super) fn new(product: &'p Product, blocks: Blocks, form: Operands<'p>) -> Writer<'p> {
        let sum = match product.elem {
            Elem::F64 => Elem::F64,
            Elem::I8 => Elem::I32,
            _ => Elem::F32,
        };
        let index = if fits(product, blocks) { Elem::I32 } else { Elem::I64 };
        Writer { product, blocks, form, index, sum }
    }

    /// The same where it goes through so many elements.
    pub(super) fn reaching(self, elements: i64) -> Writer<'p> {
        let index = if elements > i64::from(i32::MAX) { Elem::I64 } else { self.index };
        Writer { index, ..self }
    }

    fn program(&self) -> Made<Program> {
        let mut builder = Builder::new("product");
        let b = &mut builder;
        let p = self.product;
        let elem = p.elem;
        let batch: i64 = p.batch.iter().product();
        let len = |n: i64| Some(n.unsigned_abs());
        let align = elem.bytes();
        let x = b.ptr_param("a", self.form.left, self.form.left.bytes(), len(p.a.source.span));
        let w = b.ptr_param("b", self.form.right, self.form.right.bytes(), len(p.b.source.span));
        let c = p.c.as_ref().map(|c| (c, b.ptr_param("c", elem, align, len(c.source.span))));
        let y = b.ptr_param("y", p.out, p.out.bytes(), len(batch * p.m * p.n));
        let columns = self.block_axis(b, 0, self.blocks.columns, p.n)?;
        let (rows, own_rows) = self.row_axes(b)?;
        let members = self.members(b, &p.batch)?;
        let mut sum = match self.blocks.form {
            Form::Dots => self.dots(b, x, w, rows, columns, &members)?,
            Form::Sums => self.sums(b, x, w, rows, columns, &members)?,
        };
        let shape = [self.blocks.rows, self.blocks.columns];
        sum = self.scaled(b, sum, p.alpha, &shape)?;
        if let Some((access, c)) = c {
            let start = self.base(b, access, &members)?;
            let part = if access.matrix[0] == 0 {
                let row = self.load(b, c, &[(columns, access.matrix[1])], start)?;
                let row = b.expand_dims(row, 0)?;
                b.broadcast(row, &shape)?
            } else {
                self.load(b, c, &[(rows, access.matrix[0]), (columns, access.matrix[1])], start)?
            };
            let part = b.cast(part, self.sum)?;
            let part = self.scaled(b, part, p.beta, &shape)?;
            sum = b.map(ScalarFn::Add, &[sum, part])?;
        }
        let value = b.cast(sum, p.out)?;
        let start = match members.last() {
            Some(_) => {
                let member = b.program_id(2)?;
                let member = b.cast(member, self.index)?;
                Some(self.times(b, member, p.m * p.n)?)
            }
            None => None,
        };
        let (offsets, mask) = self.offsets(b, &[(own_rows, p.n), (columns, 1)], start)?;
        b.store(y, offsets, value, mask, CacheHint::Default)?;
        Ok(builder.finish())
    }

    fn int(&self, b: &mut Builder, value: i64) -> Value {
        b.constant(Literal::int(self.index, value), &[])
    }

    pub(super) fn times(&self, b: &mut Builder, scalar: Value, factor: i64) -> Made<Value> {
        if factor == 1 {
            return Ok(scalar);
        }
        let factor = self.int(b, factor);
        b.map(ScalarFn::Mul, &[scalar, factor])
    }

    fn scaled(&self, b: &mut Builder, tile: Value, factor: f64, shape: &[u32]) -> Made<Value> {
        if factor == 1.0 {
            return Ok(tile);
        }
        let factor = b.constant(Literal::float(self.sum, factor), shape);
        b.map(ScalarFn::Mul, &[tile, factor])
    }

    /// `start..start + extent`, of which those below `end` count.
    fn axis(&self, b: &mut Builder, start: Value, extent: u32, end: i64) -> Made<Axis> {
        let lanes = b.range(0, extent)?;
        let lanes = b.cast(lanes, self.index)?;
        let start = b.splat(start, &[extent])?;
        let at = b.map(ScalarFn::Add, &[start, lanes])?;
        let inside = if end % i64::from(extent) == 0 {
            None
        } else {
            let end = b.constant(Literal::int(self.index, end), &[extent]);
            Some(b.map(ScalarFn::Lt, &[at, end])?)
        };
        Ok(Axis { at, extent, inside })
    }

    pub(super) fn block_axis(&self, b: &mut Builder, axis: u8, extent: u32, end: i64) -> Made<Axis> {
        let id = b.program_id(axis)?;
        let id = b.cast(id, self.index)?;
        let start = self.times(b, id, i64::from(extent))?;
        self.axis(b, start, extent, end)
    }

    /// The rows of a block, as they are read and as they are stored. In groups, the last block begins earlier where blocks
    /// do not divide the rows, so that none of what it reads is masked.
    fn row_axes(&self, b: &mut Builder) -> Made<(Axis, Axis)> {
        let (extent, m) = (self.blocks.rows, self.product.m);
        let rows = i64::from(extent);
        if self.group() == 1 || self.form.blocked || m < rows || m % rows == 0 {
            let axis = self.block_axis(b, 1, extent, m)?;
            return Ok((axis, axis));
        }
        let id = b.program_id(1)?;
        let id = b.cast(id, self.index)?;
        let first = self.times(b, id, rows)?;
        let most = self.int(b, m - rows);
        let start = b.map(ScalarFn::Min, &[first, most])?;
        // All are inside.
        let read = self.axis(b, start, extent, rows)?;
        let first = b.splat(first, &[extent])?;
        let own = b.map(ScalarFn::Ge, &[read.at, first])?;
        Ok((read, Axis { inside: Some(own), ..read }))
    }

    /// Whether panels are filled up so that no block reads behind them.
    fn is_filled(&self) -> bool {
        let whole = blocks_of(self.product.k, self.blocks.depth) * i64::from(self.blocks.depth);
        self.form.panels.is_some_and(|panels| panels.filled >= whole)
    }

    /// Rows of the right operand that lie side by side.
    fn group(&self) -> i64 {
        self.form.panels.map_or(1, |panels| panels.group)
    }

    /// The instance's index along each dimension of a batch of these sizes.
    pub(super) fn members(&self, b: &mut Builder, sizes: &[i64]) -> Made<Vec<Value>> {
        let mut members = Vec::new();
        if sizes.is_empty() {
            return Ok(members);
        }
        let id = b.program_id(2)?;
        let mut rest = b.cast(id, self.index)?;
        for &size in sizes.iter().skip(1).rev() {
            let size = self.int(b, size);
            members.push(b.map(ScalarFn::RemTrunc, &[rest, size])?);
            rest = b.map(ScalarFn::DivTrunc, &[rest, size])?;
        }
        members.push(rest);
        members.reverse();
        Ok(members)
    }

    /// The first element of an operand's matrix.
    pub(super) fn base(&self, b: &mut Builder, access: &Access, members: &[Value]) -> Made<Option<Value>> {
        let mut sum = match access.source.offset {
            0 => None,
            offset => Some(self.int(b, offset)),
        };
        for (&member, &stride) in members.iter().zip(&access.batch).filter(|(_, s)| **s != 0) {
            let part = self.times(b, member, stride)?;
            sum = Some(match sum {
                Some(sum) => b.map(ScalarFn::Add, &[sum, part])?,
                None => part,
            });
        }
        Ok(sum)
    }

    /// The offsets of a tile over these axes at these strides, and which of them count.
    pub(super) fn offsets(
        &self,
        b: &mut Builder,
        axes: &[(Axis, i64)],
        start: Option<Value>,
    ) -> Made<(Value, Option<Value>)> {
        let shape: Vec<u32> = axes.iter().map(|(axis, _)| axis.extent).collect();
        let mut sum = match start {
            Some(start) => Some(b.splat(start, &shape)?),
            None => None,
        };
        let mut mask = None;
        for (position, &(axis, stride)) in axes.iter().enumerate() {
            let factor = b.constant(Literal::int(self.index, stride), &[axis.extent]);
            let scaled = if stride == 1 { axis.at } else { b.map(ScalarFn::Mul, &[axis.at, factor])? };
            let part = self.along(b, scaled, position, &shape)?;
            sum = Some(match sum {
                Some(sum) => b.map(ScalarFn::Add, &[sum, part])?,
                None => part,
            });
            if let Some(inside) = axis.inside {
                let inside = self.along(b, inside, position, &shape)?;
                mask = Some(match mask {
                    Some(mask) => b.map(ScalarFn::And, &[mask, inside])?,
                    None => inside,
                });
            }
        }
        let sum = match sum {
            Some(sum) => sum,
            None => self.int(b, 0),
        };
        Ok((sum, mask))
    }

    /// A tile of one axis, repeated along the others.
    fn along(&self, b: &mut Builder, tile: Value, position: usize, shape: &[u32]) -> Made<Value> {
        let mut tile = tile;
        for axis in (0..shape.len()).filter(|&axis| axis != position) {
            tile = b.expand_dims(tile, axis as u8)?;
        }
        if shape.len() == 1 { Ok(tile) } else { b.broadcast(tile, shape) }
    }

    fn load(&self, b: &mut Builder, ptr: Value, axes: &[(Axis, i64)], start: Option<Value>) -> Made<Value> {
        let (offsets, mask) = self.offsets(b, axes, start)?;
        b.load(ptr, offsets, mask, None, CacheHint::Default)
    }

    /// The sum by products of blocks.
    fn dots(
        &self,
        b: &mut Builder,
        x: Value,
        w: Value,
        rows: Axis,
        columns: Axis,
        members: &[Value],
    ) -> Made<Value> {
        let (x_at, w_at) = (&self.product.a, &self.product.b);
        let mut starts = (self.base(b, x_at, members)?, self.base(b, w_at, members)?);
        let mut columns = columns;
        if let Some(panels) = self.form.panels {
            let id = b.program_id(0)?;
            let id = b.cast(id, self.index)?;
            let panel = self.times(b, id, panels.filled * i64::from(columns.extent))?;
            starts.1 = Some(match starts.1 {
                Some(member) => b.map(ScalarFn::Add, &[member, panel])?,
                None => panel,
            });
            let zero = self.int(b, 0);
            columns = self.axis(b, zero, columns.extent, columns.extent.into())?;
        }
        let zero = b.constant(Literal::of(self.sum, 0.0), &[self.blocks.rows, self.blocks.columns]);
        let step = |b: &mut Builder, k: Value, sum: Value| {
            let depth = self.axis(b, k, self.blocks.depth, self.product.k)?;
            let left = if self.form.blocked {
                self.blocked(b, x, k, starts.0)?
            } else {
                self.load(b, x, &[(rows, x_at.matrix[0]), (depth, x_at.matrix[1])], starts.0)?
            };
            if self.group() > 1 {
                let right = self.grouped(b, w, k, starts.1)?;
                return b.dot(left, right, sum, DotPrecision::Ieee);
            }
            let depth = if self.is_filled() { Axis { inside: None, ..depth } } else { depth };
            let right = if w_at.is_transposed() {
                let tile = self.load(b, w, &[(columns, w_at.matrix[1]), (depth, 1)], starts.1)?;
                b.permute(tile, &[1, 0])?
            } else {
                self.load(b, w, &[(depth, w_at.matrix[0]), (columns, w_at.matrix[1])], starts.1)?
            };
            if self.product.elem == Elem::I8 {
                return b.dot(left, right, sum, DotPrecision::Ieee);
            }
            let (left, right) = (b.cast(left, self.sum)?, b.cast(right, self.sum)?);
            b.dot(left, right, sum, DotPrecision::Ieee)
        };
        self.over_depth(b, zero, step)
    }

    /// The block of the left operand from `k` on: `start + k ROWS + [ROWS, DEPTH] in order`, without those above.
    fn blocked(&self, b: &mut Builder, x: Value, k: Value, start: Option<Value>) -> Made<Value> {
        let (rows, depth) = (self.blocks.rows, self.blocks.depth);
        let across = blocks_of(self.product.k, depth) * i64::from(depth);
        let above = self.index_times(b, 1, i64::from(rows) * across)?;
        let mut first = self.times(b, k, rows.into())?;
        for part in [Some(above), start].into_iter().flatten() {
            first = b.map(ScalarFn::Add, &[first, part])?;
        }
        let zero = self.int(b, 0);
        let row = self.axis(b, zero, rows, rows.into())?;
        let column = self.axis(b, zero, depth, depth.into())?;
        self.load(b, x, &[(row, depth.into()), (column, 1)], Some(first))
    }

    /// The rows of a panel from `k` on, whose groups lie side by side:
    /// `start + k COLUMNS + [groups, COLUMNS, group] in order`, with the rows of a group beside those of the next.
    fn grouped(&self, b: &mut Builder, w: Value, k: Value, start: Option<Value>) -> Made<Value> {
        let (columns, depth) = (self.blocks.columns, self.blocks.depth);
        let group = self.group() as u32;
        let mut first = self.times(b, k, columns.into())?;
        if let Some(start) = start {
            first = b.map(ScalarFn::Add, &[start, first])?;
        }
        let all = depth * columns;
        let lanes = b.range(0, all)?;
        let lanes = b.cast(lanes, self.index)?;
        let first = b.splat(first, &[all])?;
        let at = b.map(ScalarFn::Add, &[first, lanes])?;
        let at = b.reshape(at, &[depth / group, columns, group])?;
        let at = b.permute(at, &[0, 2, 1])?;
        let at = b.reshape(at, &[depth, columns])?;
        b.load(w, at, None, None, CacheHint::Default)
    }

    /// The sum of rows of products.
    fn sums(
        &self,
        b: &mut Builder,
        x: Value,
        w: Value,
        rows: Axis,
        columns: Axis,
        members: &[Value],
    ) -> Made<Value> {
        let (x_at, w_at) = (&self.product.a, &self.product.b);
        let starts = (self.base(b, x_at, members)?, self.base(b, w_at, members)?);
        let shape = [self.blocks.rows, self.blocks.columns];
        let zero = b.constant(Literal::of(self.sum, 0.0), &shape);
        let along_depth = w_at.matrix[0] == 1;
        let step = |b: &mut Builder, k: Value, sum: Value| {
            let depth = self.axis(b, k, self.blocks.depth, self.product.k)?;
            let (m, n, d) = (self.blocks.rows, self.blocks.columns, self.blocks.depth);
            let left = self.load(b, x, &[(rows, x_at.matrix[0]), (depth, x_at.matrix[1])], starts.0)?;
            let left = b.cast(left, self.sum)?;
            let (left, right, whole, axis) = if along_depth {
                let right = self.load(b, w, &[(columns, w_at.matrix[1]), (depth, 1)], starts.1)?;
                (b.expand_dims(left, 1)?, b.expand_dims(right, 0)?, [m, n, d], 2)
            } else {
                let right =
                    self.load(b, w, &[(depth, w_at.matrix[0]), (columns, w_at.matrix[1])], starts.1)?;
                (b.expand_dims(left, 2)?, b.expand_dims(right, 0)?, [m, d, n], 1)
            };
            let right = b.cast(right, self.sum)?;
            let (left, right) = (b.broadcast(left, &whole)?, b.broadcast(right, &whole)?);
            let products = b.map(ScalarFn::Mul, &[left, right])?;
            let inside = match depth.inside {
                Some(inside) => Some(self.along(b, inside, axis, &whole)?),
                None => None,
            };
            let part = b.reduce(ReduceFn::Sum, products, axis as u8, inside)?;
            if self.is_whole() { Ok(part) } else { b.map(ScalarFn::Add, &[sum, part]) }
        };
        self.over_depth(b, zero, step)
    }

    /// Whether one step covers all that is summed over.
    fn is_whole(&self) -> bool {
        self.product.k <= i64::from(self.blocks.depth)
    }

    fn over_depth(
        &self,
        b: &mut Builder,
        zero: Value,
        step: impl Fn(&mut Builder, Value, Value) -> Made<Value>,
    ) -> Made<Value> {
        let start = self.int(b, 0);
        if self.is_whole() {
            return step(b, start, zero);
        }
        let (end, size) = (self.int(b, self.product.k), self.int(b, i64::from(self.blocks.depth)));
        let sums = b.for_loop((start, end, size), &[zero], |b, k, sums| {
            Ok::<_, TypeError>(vec![step(b, k, sums[0])?])
        })?;
        Ok(sums[0])
    }
}

/// Whether every offset that is computed fits 32 bits.
fn fits(product: &Product, blocks: Blocks) -> bool {
    let padded = |n: i64, block: u32| n.checked_add(i64::from(block));
    let extents = || {
        Some((
            padded(product.m, blocks.rows)?,
            padded(product.n, blocks.columns)?,
            padded(product.k, blocks.depth)?,
        ))
    };
    let reach = |access: &Access, rows: i64, columns: i64| -> Option<i64> {
        let batch = product.batch.iter().zip(&access.batch);
        let batch = batch.map(|(&n, &s)| (n, s));
        let parts = batch.chain([(rows, access.matrix[0]), (columns, access.matrix[1])]);
        parts.into_iter().try_fold(access.source.offset, |sum, (n, s)| sum.checked_add(n.checked_mul(s)?))
    };
    let all = || {
        let (m, n, k) = extents()?;
        let members: i64 = product.batch.iter().try_fold(1i64, |all, &n| all.checked_mul(n))?;
        let c = match &product.c {
            Some(c) => reach(c, m, n)?,
            None => 0,
        };
        let y = members.checked_add(1)?.checked_mul(m.checked_mul(n)?)?;
        let a = reach(&product.a, m, k)?.max(product.a.source.span);
        let b = reach(&product.b, k, n)?.max(product.b.source.span);
        Some([a, b, c, y])
    };
    all().is_some_and(|reached| reached.into_iter().all(|n| n <= i64::from(i32::MAX)))
}
