//! Row reductions at a store of blocks of rows: kernels over the row, the block of columns, and the column in it.

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Loc, Op, OpKind, ScalarFn, Shape, Type, Value, ValueData};

use super::splice::Splice;
use crate::block_kernel::Block;
use crate::kernel::{BlockRefusal, Domain, Expressions, KExpr, Refusal, Space};

/// The loop of a kernel with row reductions over the rows, the blocks and the columns of what instances store, where the rows of the
/// space are whole rows or those parts of rows that a block has.
pub(crate) fn domain(block: &Block, space: &Space) -> Result<Domain, BlockRefusal> {
    parts_or_rows(block, space).ok_or_else(|| {
        let (columns, width) = (block.matrix[1], i64::from(block.columns));
        let reduced: i64 = space
            .shape
            .iter()
            .zip(&space.reduced)
            .filter(|(_, reduced)| **reduced)
            .map(|(&n, _)| n)
            .product();
        let is_row = reduced == columns && space.reduced.last() == Some(&true);
        if is_row && columns > width {
            BlockRefusal::WideRows { columns, width }
        } else {
            BlockRefusal::Reduction
        }
    })
}

/// Likewise; nothing where they are neither.
fn parts_or_rows(block: &Block, space: &Space) -> Option<Domain> {
    let [rows, columns] = block.matrix;
    let width = i64::from(block.columns);
    let unreduced = space.reduced.iter().position(|&reduced| reduced)?;
    let trailing = space.reduced.get(unreduced..)?.iter().all(|&reduced| reduced);
    let (outer, reduced) = (space.shape.get(..unreduced)?, space.shape.get(unreduced..)?);
    let reduced: i64 = reduced.iter().product();
    let dims = |range: std::ops::Range<usize>| range.map(|d| d as u8).collect::<SmallVec<[u8; 4]>>();
    if !trailing || space.mix_order.is_some() {
        return None;
    }
    let all = space.shape.len();
    if reduced == columns && columns <= width && outer.iter().product::<i64>() == rows {
        let dims = vec![dims(0..unreduced), dims(unreduced..all)];
        return Some(Domain { extents: vec![rows, columns], reduced: vec![false, true], dims });
    }
    let (&parts, outer) = outer.split_last()?;
    let fits = parts == (columns + width - 1) / width.max(1) && outer.iter().product::<i64>() == rows;
    (reduced == width && fits).then(|| Domain {
        extents: vec![rows, parts, width],
        reduced: vec![false, false, true],
        dims: vec![dims(0..unreduced - 1), dims(unreduced - 1..unreduced), dims(unreduced..all)],
    })
}

impl Splice<'_> {
    /// The shape in which an expression is computed: once for each row where it does not depend on the column. Of one column nothing does,
    /// and what is stored is in the block's shape.
    pub(super) fn own_shape(&self, expr: KExpr) -> Shape {
        let whole = &self.program.ty(self.site.offsets).shape;
        match self.site.block {
            Some(_)
                if self.kernel.reduced_points() > 1 && self.kernel.info(expr).vars & self.columns() == 0 =>
            {
                whole.iter().take(1).copied().collect()
            }
            _ => whole.clone(),
        }
    }

    /// The variables of a kernel over rows that are columns.
    pub(super) fn columns(&self) -> u64 {
        let reduced = (0..self.kernel.reduced.len()).filter(|&v| self.kernel.reduced[v]);
        reduced.fold(0, |set, v| set | 1 << v.min(63))
    }

    /// A value in the shape at hand: what there is one of for each row, for each column.
    pub(super) fn spread(&mut self, value: Value) -> Value {
        if self.program.ty(value).shape == self.shape {
            return value;
        }
        let elem = self.elem(value);
        if self.program.ty(value).rank() == 0 {
            return self.push(OpKind::Splat(self.shape.clone()), &[value], elem);
        }
        let column: Shape = self.shape.iter().take(1).copied().chain([1]).collect();
        let value = self.push_shaped(OpKind::ExpandDims(1), &[value], elem, column);
        let shape = self.shape.clone();
        self.push_shaped(OpKind::Broadcast(shape.clone()), &[value], elem, shape)
    }

    /// A reduction of the columns of a block.
    pub(super) fn reduce_columns(&mut self, position: u32) -> Result<Value, Refusal> {
        let block = self.site.block.ok_or(BlockRefusal::UnknownStores)?;
        let reduction = self.kernel.reduces.get(position as usize).ok_or(BlockRefusal::Reduction)?;
        let outer = self.shape.clone();
        self.shape = self.program.ty(self.site.offsets).shape.clone();
        let value = self.value(reduction.value)?;
        let mask = match self.kernel.reduced_points() {
            points if points < i64::from(block.columns) => {
                let (lanes, end) = (self.lanes(block.columns), self.literal(Literal::int(Elem::I32, points)));
                Some(self.map(ScalarFn::Lt, &[lanes, end])?)
            }
            _ => None,
        };
        let kind = OpKind::Reduce { combine: reduction.combine, axis: 1, masked: mask.is_some() };
        let args: SmallVec<[Value; 2]> = [value].into_iter().chain(mask).collect();
        let (elem, rows) = (self.elem(value), self.shape.iter().take(1).copied().collect());
        let value = self.push_shaped(kind, &args, elem, rows);
        self.shape = outer;
        Ok(self.spread(value))
    }

    /// The columns of a block, counted from its first.
    pub(super) fn lanes(&mut self, columns: u32) -> Value {
        let range = OpKind::Range { start: 0, len: columns };
        let range = self.push_shaped(range, &[], Elem::I32, Shape::from_slice(&[columns]));
        let range =
            self.push_shaped(OpKind::ExpandDims(0), &[range], Elem::I32, Shape::from_slice(&[1, columns]));
        let shape = self.shape.clone();
        self.push_shaped(OpKind::Broadcast(shape.clone()), &[range], Elem::I32, shape)
    }

    /// An operation with a result of any shape.
    pub(super) fn push_shaped(&mut self, kind: OpKind, args: &[Value], elem: Elem, shape: Shape) -> Value {
        let result = Value(self.program.values.len() as u32);
        self.program.values.push(ValueData { ty: Type::tile(elem, &shape), name: None });
        self.out.push(Op {
            kind,
            args: SmallVec::from_slice(args),
            results: SmallVec::from_slice(&[result]),
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        result
    }
}
