//! Along which axes the programs of templates access tensors.

use std::cell::RefCell;
use std::cmp::Reverse;

use tilefuse_block::dynamic::{Axis, Block, Ptr, Tile};

use crate::block_kernel::{self, Coordinate, Coordinates};

/// An index along an axis of a tensor: how many there are, and elements between neighbours.
type AxisIndex<I> = (I, i64, i64);

/// What is known of the accesses of a program that is being written.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    known: RefCell<Vec<Coordinates>>,
}

impl Accesses {
    /// Says which rows a block that is stored has, where these are of one matrix.
    pub(super) fn in_rows(&self, stored: Block, rows: Option<block_kernel::Block>) {
        let offsets = stored.ptr.offset().value();
        let mut known = self.known.borrow_mut();
        known.iter_mut().filter(|access| access.offsets == offsets).for_each(|access| access.block = rows);
    }

    /// What is known of all accesses.
    pub(super) fn take(self) -> Vec<Coordinates> {
        self.known.into_inner()
    }

    /// A block whose elements have these indices along axes of a tensor: some the same for all of them, others along the block's own axes.
    /// What the tensor repeats along an axis is the same for all its indices.
    #[track_caller]
    fn block(&self, block: Block, same: &[AxisIndex<Tile>], own: &[AxisIndex<Axis>]) {
        let shape: Vec<u32> = own.iter().map(|(axis, ..)| axis.extent).collect();
        let is_axis = |extent: i64, stride: i64| extent > 1 && stride != 0;
        let mut axes: Vec<Coordinate> = Vec::new();
        let mut push = |index: Tile, extent: i64, stride: i64, inside: bool| {
            let (extent, stride) = (extent.unsigned_abs(), stride.unsigned_abs());
            axes.push(Coordinate { index: index.value(), extent, stride, inside });
        };
        for &(index, extent, stride) in same.iter().filter(|(_, extent, stride)| is_axis(*extent, *stride)) {
            push(index.broadcast_to(&shape), extent, stride, true);
        }
        for (position, &(axis, extent, stride)) in own.iter().enumerate() {
            if is_axis(extent, stride) {
                push(axis.index.along(position, &shape), extent, stride, axis.mask.is_none());
            }
        }
        let last =
            own.last().filter(|(_, extent, stride)| is_axis(*extent, *stride)).and(axes.last()).copied();
        axes.sort_by_key(|axis| Reverse(axis.stride));
        let lanes = last.and_then(|last| axes.iter().position(|axis| axis.index == last.index));
        let known = Coordinates { offsets: block.ptr.offset().value(), axes, lanes, block: None };
        self.known.borrow_mut().push(known);
    }
}

/// A matrix of an operand or a result in a program.
#[derive(Clone, Debug)]
pub(super) struct Matrix<'m> {
    /// Its first element.
    pub(super) ptr: Ptr,
    /// Elements between neighbours along rows and columns.
    strides: [i64; 2],
    /// Rows and columns.
    extents: [i64; 2],
    /// Which of the tensor's matrices it is.
    member: Vec<AxisIndex<Tile>>,
    /// Where what is known of accesses is kept; nothing where the matrix lies otherwise than the tensor.
    accesses: Option<&'m Accesses>,
}

impl<'m> Matrix<'m> {
    /// A matrix that begins at a pointer, of this many rows and columns.
    pub(super) fn new(ptr: Ptr, strides: [i64; 2], extents: [i64; 2]) -> Matrix<'m> {
        Matrix { ptr, strides, extents, member: Vec::new(), accesses: None }
    }

    /// The same as one of the matrices of a tensor, at these indices along the dimensions of a batch.
    pub(super) fn of_batch(
        self,
        accesses: &'m Accesses,
        indices: &[Tile],
        batch: &[i64],
        strides: &[i64],
    ) -> Matrix<'m> {
        let member = indices.iter().zip(batch.iter().zip(strides));
        let member = member.map(|(&index, (&extent, &stride))| (index, extent, stride)).collect();
        Matrix { member, accesses: Some(accesses), ..self }
    }

    /// A block of the matrix.
    #[track_caller]
    pub(super) fn block(&self, rows: Axis, cols: Axis) -> Block {
        self.access(self.ptr, &[], [self.along(rows, 0), self.along(cols, 1)])
    }

    /// A block of the matrix as it lies, its columns as rows.
    #[track_caller]
    pub(super) fn block_transposed(&self, rows: Axis, cols: Axis) -> Block {
        self.access(self.ptr, &[], [self.along(cols, 1), self.along(rows, 0)])
    }

    /// Some columns of rows that are all the same.
    #[track_caller]
    pub(super) fn columns(&self, cols: Axis) -> Block {
        self.access(self.ptr, &[], [self.along(cols, 1)])
    }

    /// Some columns of a row, which begins so many elements on.
    #[track_caller]
    pub(super) fn row(&self, row: Tile, start: Tile, cols: Axis) -> Block {
        let row = (row, self.extents[0], self.strides[0]);
        self.access(self.ptr + start, &[row], [self.along(cols, 1)])
    }

    /// The same from so many elements on, which is not where the tensor has it.
    pub(super) fn elsewhere(&self, elements: Tile) -> Matrix<'m> {
        Matrix { ptr: self.ptr + elements, accesses: None, ..self.clone() }
    }

    /// The matrix's stride along rows, and that along columns.
    pub(super) fn strides(&self) -> [i64; 2] {
        self.strides
    }

    fn along<I>(&self, index: I, axis: usize) -> AxisIndex<I> {
        (index, self.extents[axis], self.strides[axis])
    }

    #[track_caller]
    fn access<const N: usize>(
        &self,
        ptr: Ptr,
        rows: &[AxisIndex<Tile>],
        axes: [AxisIndex<Axis>; N],
    ) -> Block {
        let block = ptr.block(&axes.map(|(index, _, stride)| (index, stride)));
        if let Some(accesses) = self.accesses {
            let same: Vec<AxisIndex<Tile>> = self.member.iter().chain(rows).copied().collect();
            accesses.block(block, &same, &axes);
        }
        block
    }
}
