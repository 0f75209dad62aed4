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

use tilefuse_block::dynamic::{
    Axis, BuildError, Ptr, Scope, Tile, axis, blocked, dot, for_range, offset, program, program_id, scalar,
    unravel, zeros,
};
use tilefuse_block::{Assumption, Elem, Program, ReduceFn};

use super::accesses::{Accesses, Matrix};
use super::blocks::{Blocks, Form, Grid, blocks_of, grid};
use super::call_kernels::Template;
use super::partial_sums::{LONGEST_PART, LONGEST_SUM, SHORTEST_PART, in_parts, part_of};
use super::prepack::Panels;
use super::price::Work;
use super::product::{Access, Product};
use super::windows::Windows;
use crate::block_kernel::{self, BlockKernel, BlockKernelKind, Coordinates, Layout, Tied};
use crate::taken::taken;
use crate::types::{Dims, fits_i32, row_major};

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

/// The template of a product in these blocks.
pub(super) fn with(product: &Product, blocks: Blocks, form: Operands<'_>) -> Option<Template> {
    let written = Writer::new(product, blocks, form).program().ok()?;
    let operands = || [Some(&product.a), Some(&product.b), product.c.as_ref()].into_iter().flatten();
    let tied = operands().map(|a| Tied::Operand(a.source.position)).collect();
    let layouts = operands().map(|a| (a.source.position, a.source.layout.clone())).collect();
    let schedule = schedule(product, &blocks, form);
    Some(whole(product, kernel(product, &blocks, written, (tied, layouts), schedule)?))
}

/// The kernel of a program that stores the result of a product in these blocks, by what its parameters before that are given and how
/// operands are read.
pub(super) fn kernel(
    product: &Product,
    blocks: &Blocks,
    (mut program, coordinates): (Program, Vec<Coordinates>),
    (mut tied, layouts): (Vec<Tied>, Vec<(u16, Layout)>),
    schedule: String,
) -> Option<BlockKernel> {
    if let Some(grid) = blocks.grid {
        (program.warps, program.stages) = (grid.warps, Some(grid.stages));
    }
    tied.push(Tied::Result(0));
    Some(BlockKernel {
        kind: BlockKernelKind::Contraction,
        program,
        grid: grid(product, blocks)?,
        tied,
        checks: false,
        neighbours_do_not_fit: false,
        coordinates,
        layouts,
        schedule,
        note: None,
        expected_us: 0.0,
    })
}

/// The template of a kernel that stores the result of a product.
pub(super) fn whole(product: &Product, kernel: BlockKernel) -> Template {
    let Work { flops, bytes, .. } = Work::of_product(product);
    Template {
        kernel,
        flops,
        bytes,
        shares: [1.0; 2],
        panels: None,
        operand_kernels: Vec::new(),
        result_layout: product.result_layout.clone(),
        repeated_heads: None,
        shared_launch: 1.0,
    }
}

/// How the blocks of a product are computed.
pub(super) fn schedule(product: &Product, blocks: &Blocks, form: Operands<'_>) -> String {
    let Blocks { rows, columns, depth, .. } = *blocks;
    let mut text = match blocks.form {
        Form::Sums => format!("few rows (GEMV), {columns} columns at a time"),
        Form::Dots => format!("blocks of {rows} x {columns}, {depth} of the sum at a time"),
    };
    if product.windows.is_some() {
        text = format!("implicit GEMM, {text}");
    }
    match form.panels.map(|panels| panels.group) {
        Some(group) if group > 1 => text.push_str(&format!(", VNNI-{group} layout")),
        Some(_) => text.push_str(", right operand in panels"),
        None => {}
    }
    if let Some(Grid { warps, stages, .. }) = blocks.grid {
        text.push_str(&format!(", {warps} warps, {stages} stages"));
    }
    text
}

/// Marks which program of a product is written.
fn note(blocks: &Blocks, form: Operands<'_>) {
    match (blocks.grid, blocks.form, form.panels) {
        (Some(_), ..) => {
            taken!("warpgroups");
        }
        (None, Form::Sums, _) => {
            taken!("GEMV");
        }
        (None, Form::Dots, Some(panels)) if panels.group > 1 => {
            taken!("VNNI layout");
        }
        (None, Form::Dots, Some(_)) => {
            taken!("right operand in panels");
        }
        (None, Form::Dots, None) => {
            taken!("blocks in place");
        }
    }
}

/// What an instance computes.
pub(super) struct Instance {
    /// Its index along each dimension of the batch.
    member: Vec<Tile>,
    /// Its rows, as they are read.
    pub(super) rows: Axis,
    /// Its columns.
    pub(super) cols: Axis,
}

pub(super) struct Writer<'p> {
    pub(super) product: &'p Product,
    blocks: Blocks,
    form: Operands<'p>,
    /// Of offsets.
    index: Elem,
    /// Of sums.
    pub(super) sum: Elem,
    /// What is known of its accesses.
    accesses: Accesses,
}

impl<'p> Writer<'p> {
    pub(super) fn new(product: &'p Product, blocks: Blocks, form: Operands<'p>) -> Writer<'p> {
        let sum = product.sum();
        let index = if fits(product, blocks) { Elem::I32 } else { Elem::I64 };
        Writer { product, blocks, form, index, sum, accesses: Accesses::default() }
    }

    /// The same where it goes through so many elements.
    pub(super) fn reaching(self, elements: i64) -> Writer<'p> {
        let index = if fits_i32(elements) { self.index } else { Elem::I64 };
        Writer { index, ..self }
    }

    fn program(self) -> Result<(Program, Vec<Coordinates>), BuildError> {
        note(&self.blocks, self.form);
        let p = self.product;
        let program = program("product", |kernel| {
            let a = self.pointer(kernel, "a", self.form.left, p.a.source.span);
            let b = self.pointer(kernel, "b", self.form.right, p.b.source.span);
            self.store(kernel, |Instance { member, rows, cols, .. }| {
                let mut a = self.matrix(a, &p.a, member, [p.m, p.k]);
                let mut b = self.matrix(b, &p.b, member, [p.k, p.n]);
                // What a GPU copies to shared memory ahead of the loop is in memory.
                if p.windows.is_none() && self.blocks.grid.is_none() {
                    a = if self.form.blocked { a } else { self.known_of(a, &p.a, member) };
                    b = if self.form.panels.is_some() { b } else { self.known_of(b, &p.b, member) };
                }
                match self.blocks.form {
                    Form::Dots => self.dots(&a, &b, *rows, *cols),
                    Form::Sums => self.sums(&a, &b, *rows, *cols),
                }
            });
        })?;
        Ok((program, self.coordinates()))
    }

    /// What is known of its accesses.
    pub(super) fn coordinates(self) -> Vec<Coordinates> {
        self.accesses.take()
    }

    /// A further parameter, of so many elements.
    pub(super) fn pointer(&self, kernel: &Scope, name: &str, elem: Elem, len: i64) -> Ptr {
        kernel.ptr(name, elem, len.unsigned_abs()).indexed(self.index)
    }

    /// Stores `alpha sum + beta c` of the sums of an instance's block. What is added and the result are further parameters.
    pub(super) fn store(&self, kernel: &Scope, sum: impl FnOnce(&Instance) -> Tile) {
        let p = self.product;
        let members: i64 = p.batch.iter().product();
        let c = p.c.as_ref().map(|c| (c, self.pointer(kernel, "c", p.elem, c.source.span)));
        let y = self.pointer(kernel, "y", p.out, members * p.m * p.n);
        let [across, down] = self.place();
        let cols = blocked(across, self.blocks.columns, p.n);
        let (rows, own_rows) = self.rows(down);
        let member = self.members(&p.batch);
        let instance = Instance { member, rows, cols };
        let mut sum = sum(&instance);
        sum *= p.alpha;
        if let Some((access, c)) = c {
            let c = self.matrix(c, access, &instance.member, [p.m, p.n]);
            let c = self.known_of(c, access, &instance.member);
            sum += self.added(&c, rows, cols) * p.beta;
        }
        let value = sum.cast(p.out);
        let sizes: Dims = p.batch.iter().copied().chain([p.m, p.n]).collect();
        let y = Matrix::new(y.skip(self.first()), [p.n, 1], [p.m, p.n]);
        let y = y.of_batch(&self.accesses, &instance.member, &p.batch, &row_major(&sizes));
        let stored = y.block(own_rows, cols);
        self.accesses.in_rows(stored, self.stored_block(own_rows, across));
        stored.store(value);
    }

    /// The first element of the result's matrix that an instance stores, where that is not the first one.
    pub(super) fn first(&self) -> Option<Tile> {
        let Product { m, n, ref batch, .. } = *self.product;
        (!batch.is_empty()).then(|| self.member() * (m * n))
    }

    /// What an instance stores: `across` is the number of its columns' block, and rows are numbered through all members of a batch. How
    /// wide blocks of sums are depends on the number of threads, on which results must not.
    fn stored_block(&self, rows: Axis, across: Tile) -> Option<block_kernel::Block> {
        let Product { m, n, ref batch, .. } = *self.product;
        let all = batch.iter().product::<i64>() * m;
        let number = |row: Tile| if batch.is_empty() { row } else { row + self.member() * m };
        (self.blocks.form == Form::Dots).then(|| block_kernel::Block {
            number: across.value(),
            rows: number(rows.index).value(),
            inside: rows.mask.map(Tile::value),
            matrix: [all, n],
            columns: self.blocks.columns,
        })
    }

    /// The instance's index along an axis of the grid, of the kind of offsets.
    pub(super) fn id(&self, axis: u8) -> Tile {
        program_id(axis.into()).cast(self.index)
    }

    /// The instance's number among blocks of columns, and among blocks of rows. In groups, instances run down a group of rows
    /// before they go on to the next columns (the `swizzle2d` of Triton's tutorials).
    fn place(&self) -> [Tile; 2] {
        let Some(Grid { group, .. }) = self.blocks.grid else { return [self.id(0), self.id(1)] };
        let group = i64::from(group);
        let [columns, rows] = self.extents();
        let number = self.id(0);
        let number = if self.product.batch.is_empty() { number } else { number % (columns * rows) };
        let first = number / (columns * group) * group;
        let rest = number % (columns * group);
        let height = match rows % group {
            0 => scalar(self.index, group),
            _ => (-first + rows).minimum(group).assume(Assumption::Between(1, group)),
        };
        [rest / height, first + rest % height]
    }

    /// Blocks of columns and of rows.
    fn extents(&self) -> [i64; 2] {
        [blocks_of(self.product.n, self.blocks.columns), blocks_of(self.product.m, self.blocks.rows)]
    }

    /// The number of the instance's member of the batch.
    fn member(&self) -> Tile {
        let [columns, rows] = self.extents();
        if self.blocks.grid.is_some() { self.id(0) / (columns * rows) } else { self.id(2) }
    }

    /// The rows of a block, as they are read and as they are stored. In groups, the last block begins earlier where blocks
    /// do not divide the rows, so that none of what it reads is masked.
    fn rows(&self, down: Tile) -> (Axis, Axis) {
        let (extent, m) = (self.blocks.rows, self.product.m);
        let rows = i64::from(extent);
        if self.group() == 1 || self.form.blocked || m < rows || m % rows == 0 {
            let rows = blocked(down, extent, m);
            return (rows, rows);
        }
        let first = down * rows;
        let read = axis(first.minimum(m - rows), extent);
        (read, read.from(first))
    }

    /// Whether panels are filled up so that no block reads past them.
    fn is_filled(&self) -> bool {
        let whole = blocks_of(self.product.k, self.blocks.depth) * i64::from(self.blocks.depth);
        self.form.panels.is_some_and(|panels| panels.filled >= whole)
    }

    /// Rows of the right operand that are interleaved: the factor of a VNNI layout, else 1.
    fn group(&self) -> i64 {
        self.form.panels.map_or(1, |panels| panels.group)
    }

    /// The instance's index along each dimension of a batch of these sizes.
    pub(super) fn members(&self, sizes: &[i64]) -> Vec<Tile> {
        if sizes.is_empty() { Vec::new() } else { unravel(self.member(), sizes) }
    }

    /// The first element of an operand's matrix, where that is not the first one.
    pub(super) fn start(&self, access: &Access, member: &[Tile]) -> Option<Tile> {
        offset(self.index, access.source.offset, member, &access.batch)
    }

    fn matrix(&self, ptr: Ptr, access: &Access, member: &[Tile], extents: [i64; 2]) -> Matrix<'_> {
        Matrix::new(ptr.skip(self.start(access, member)), access.matrix, extents)
    }

    /// A matrix that lies as the operand does.
    fn known_of<'m>(&'m self, matrix: Matrix<'m>, access: &Access, member: &[Tile]) -> Matrix<'m> {
        matrix.of_batch(&self.accesses, member, &self.product.batch, &access.batch)
    }

    /// What is added to a block, which may be the same for each row.
    fn added(&self, c: &Matrix<'_>, rows: Axis, cols: Axis) -> Tile {
        let tile = match c.strides() {
            [0, _] => {
                let row = c.columns(cols).load();
                row.row().broadcast_to([self.blocks.rows, self.blocks.columns])
            }
            _ => c.block(rows, cols).load(),
        };
        tile.cast(self.sum)
    }

    /// The sum by products of blocks.
    fn dots(&self, a: &Matrix<'_>, b: &Matrix<'_>, rows: Axis, cols: Axis) -> Tile {
        let panel = self.form.panels.map(|panels| self.panel(b, panels));
        let (b, cols) = panel.as_ref().map_or((b, cols), |(panel, cols)| (panel, *cols));
        let windows = self.product.windows.as_ref().map(|windows| windows.of_rows(a.ptr, rows));
        self.over_depth(|k, sum| {
            let depth = match &self.product.windows {
                Some(windows) => windows.of_filter(k, self.blocks.depth),
                None => self.depth(k),
            };
            let left = match &windows {
                Some(windows) => windows.block(self.of_windows(k), self.blocks.depth),
                None if self.form.blocked => self.packed_left(a, k),
                None => a.block(rows, depth).load(),
            };
            if self.group() > 1 {
                return dot(left, self.packed_groups(b, k), sum);
            }
            let depth = if self.is_filled() { Axis { mask: None, ..depth } } else { depth };
            let right = if self.product.b.is_transposed() {
                b.block_transposed(depth, cols).load().trans()
            } else {
                b.block(depth, cols).load()
            };
            // Matrix units widen by themselves.
            if self.product.elem == Elem::I8 || self.blocks.grid.is_some() {
                return dot(left, right, sum);
            }
            dot(left.cast(self.sum), right.cast(self.sum), sum)
        })
    }

    /// The element of a window that the element `k` of an instance's sum is.
    fn of_windows(&self, k: Tile) -> Tile {
        match self.product.windows.as_ref().map_or(0, |windows| windows.part) {
            0 => k,
            part => k + self.member() * part,
        }
    }

    /// The instance's panel of the right operand, and its columns.
    fn panel<'m>(&self, b: &Matrix<'m>, panels: &Panels) -> (Matrix<'m>, Axis) {
        let columns = self.blocks.columns;
        let panel = self.id(0) * (panels.filled * i64::from(columns));
        (b.elsewhere(panel), axis(scalar(self.index, 0), columns))
    }

    /// What is summed over from `k` on.
    fn depth(&self, k: Tile) -> Axis {
        let depth = axis(k, self.blocks.depth);
        let is_whole = self.product.k % i64::from(self.blocks.depth) == 0;
        if is_whole { depth } else { depth.below(self.product.k) }
    }

    /// The block of the left operand from `k` on: `start + k ROWS + [ROWS, DEPTH] in order`, without those above.
    fn packed_left(&self, a: &Matrix<'_>, k: Tile) -> Tile {
        let (rows, depth) = (self.blocks.rows, self.blocks.depth);
        let across = blocks_of(self.product.k, depth) * i64::from(depth);
        let above = self.id(1) * (i64::from(rows) * across);
        let lane = |extent: u32| axis(scalar(self.index, 0), extent);
        let ptr = a.ptr + (k * i64::from(rows) + above);
        ptr.block(&[(lane(rows), i64::from(depth)), (lane(depth), 1)]).load()
    }

    /// The rows of a panel from `k` on, whose groups are contiguous.
    fn packed_groups(&self, b: &Matrix<'_>, k: Tile) -> Tile {
        let (columns, depth) = (self.blocks.columns, self.blocks.depth);
        load_groups(b.ptr + k * i64::from(columns), [depth, columns], self.group() as u32)
    }

    /// The sum of rows of products.
    fn sums(&self, a: &Matrix<'_>, b: &Matrix<'_>, rows: Axis, cols: Axis) -> Tile {
        let (m, n, d) = (self.blocks.rows, self.blocks.columns, self.blocks.depth);
        self.over_depth(|k, sum| {
            let depth = self.depth(k);
            let left = a.block(rows, depth).load().cast(self.sum);
            let (left, right, axis, shape) = if b.strides()[0] == 1 {
                let right = b.block_transposed(depth, cols).load();
                (left.expand_dims(1), right.expand_dims(0), 2, [m, n, d])
            } else {
                let right = b.block(depth, cols).load();
                (left.expand_dims(2), right.expand_dims(0), 1, [m, d, n])
            };
            let products = left * right.cast(self.sum);
            let inside = depth.mask.map(|inside| inside.along(axis, shape));
            let part = products.reduce(ReduceFn::Sum, axis, inside);
            if self.is_whole() { part } else { sum + part }
        })
    }

    /// Whether one step covers all that is summed over.
    fn is_whole(&self) -> bool {
        self.product.k <= i64::from(self.blocks.depth)
    }

    /// The sum of what `step` adds for each block of what is summed over.
    fn over_depth(&self, step: impl Fn(Tile, Tile) -> Tile) -> Tile {
        let zero = || zeros(self.sum, [self.blocks.rows, self.blocks.columns]);
        let (start, k, depth) = (scalar(self.index, 0), self.product.k, i64::from(self.blocks.depth));
        if self.is_whole() {
            return step(start, zero());
        }
        if !self.is_in_parts() {
            return for_range(start, k, depth, zero(), step);
        }
        // A product of blocks is a sum by itself.
        let longest = match depth as u64 {
            depth if depth >= SHORTEST_PART => depth,
            depth => part_of(k as u64, depth, LONGEST_PART),
        };
        let sums = in_parts(self.index, (k as u64, longest), vec![zero()], |first, count| {
            vec![for_range(start, count, depth, zero(), |k, sum| step(first + k, sum))]
        });
        sums.first().copied().unwrap_or_else(zero)
    }

    /// Whether the sum is one of parts. Of narrower types rounding the operands errs more than a long sum.
    fn is_in_parts(&self) -> bool {
        let is_f32 = [self.sum, self.product.elem].iter().all(|&elem| elem == Elem::F32);
        let is_long = self.product.k as u64 > LONGEST_SUM;
        is_f32 && is_long && self.blocks.grid.is_none() && matches!(self.blocks.form, Form::Dots)
    }
}

/// Rows of columns that lie in the VNNI layout from here on: `[rows / group, columns, group]`.
pub(super) fn load_groups(from: Ptr, [rows, columns]: [u32; 2], group: u32) -> Tile {
    let lie = axis(from.offset(), rows * columns).index;
    let at = lie.reshape([rows / group, columns, group]).permute([0, 2, 1]).reshape([rows, columns]);
    from.at(at).load()
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
        let overhang = product.windows.as_ref().map_or(Some(0), Windows::overhang)?;
        let a = reach(&product.a, m, k)?.max(product.a.source.span).checked_add(overhang)?;
        let b = reach(&product.b, k, n)?.max(product.b.source.span);
        Some([a, b, c, y])
    };
    all().is_some_and(|reached| reached.into_iter().all(fits_i32))
}
