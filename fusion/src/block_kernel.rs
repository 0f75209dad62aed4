//! Kernels that nodes of a graph have: block programs, and what their parameters stand for.
//!
//! A person wrote them, or a template did. The planner builds them into steps, with pointwise neighbours in their loads and
//! stores.

use serde::{Deserialize, Serialize};
use tilefuse_block::{OpKind, Program, Value};

use crate::types::{Dims, row_major};

/// What a pointer parameter of a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tied {
    /// The operand of the call at this position; it is not written.
    Operand(u16),
    /// The result of the call at this position.
    Result(u16),
}

/// How a kernel reads an operand of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Its elements in row-major order without gaps; neighbours may compute them instead.
    Elements,
    /// The memory in which it lies, from its start, with the strides and the offset that the program was written for. Neighbours may
    /// compute it instead where the axes of all its loads are known.
    Strided {
        /// Elements between neighbours along each dimension of the operand.
        strides: Dims,
        /// The operand's first element.
        offset: i64,
    },
}

/// An index along an axis of an operand or a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coordinate {
    /// The index of each element, a tile.
    pub index: Value,
    /// How many there are.
    pub extent: u64,
    /// Elements in memory between neighbours.
    pub stride: u64,
    /// Whether they are in range where elements are masked off, too.
    pub inside: bool,
}

/// Where a program loads elements of an operand or stores those of a result: their indices along axes, whose sum, each times its
/// stride, the offsets are, and of a strided operand behind the offset of its first element. What neighbours compute then needs neither
/// divisions of offsets, as a bias would, nor an operand in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinates {
    /// The offsets of the access.
    pub offsets: Value,
    /// The indices along the axes, larger strides first; a tile of the shape of the offsets each. Empty where they are not known.
    pub axes: Vec<Coordinate>,
    /// Along which of the axes neighbours in a vector lie, where that is known.
    pub lanes: Option<usize>,
    /// The rows that are stored, of a result that is stored in blocks of these.
    pub block: Option<Block>,
}

impl Coordinates {
    /// Those of a store to a result without gaps: by axis, outermost first, the index of each element, how many there are, and whether
    /// they are in range where elements are masked off, too.
    pub fn of_result(offsets: Value, axes: &[(Value, u64, bool)]) -> Coordinates {
        let extents: Vec<i64> = axes.iter().map(|&(_, extent, _)| extent as i64).collect();
        let strides = row_major(&extents);
        let coordinate = |(&(index, extent, inside), &stride): (&(Value, u64, bool), &i64)| Coordinate {
            index,
            extent,
            stride: stride.unsigned_abs(),
            inside,
        };
        let axes = axes.iter().zip(&strides).map(coordinate).collect();
        Coordinates { offsets, axes, lanes: None, block: None }
    }
}

/// What a store writes of a matrix, the result's innermost dimension in memory by all others: a tile of rows by columns. Blocks of columns
/// are numbered in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// The number of each row.
    pub rows: Value,
    /// Which of them count, where not all do.
    pub inside: Option<Value>,
    /// Rows and columns of the matrix.
    pub matrix: [i64; 2],
    /// Columns of a block.
    pub columns: u32,
    /// The number of the block of columns, a scalar.
    pub number: Value,
}

/// What a block kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockKernelKind {
    /// A product of matrices, or of batches of them.
    Contraction,
    /// A convolution or a transposed one.
    Convolution,
    /// Attention, or a part of it.
    Attention,
    /// Packed operands of one of these.
    Pack,
    /// What its author wrote it for. It may assert.
    Custom,
}

impl BlockKernelKind {
    /// All kinds.
    pub(crate) const ALL: [BlockKernelKind; 5] = [
        BlockKernelKind::Contraction,
        BlockKernelKind::Convolution,
        BlockKernelKind::Attention,
        BlockKernelKind::Pack,
        BlockKernelKind::Custom,
    ];

    /// The spelling in text forms.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BlockKernelKind::Contraction => "contraction",
            BlockKernelKind::Convolution => "convolution",
            BlockKernelKind::Attention => "attention",
            BlockKernelKind::Pack => "pack",
            BlockKernelKind::Custom => "custom",
        }
    }
}

/// The kernel that a call of an operator launches. All tensors are row-major without gaps, apart from operands that
/// `layouts` says otherwise of.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockKernel {
    /// What it computes.
    pub kind: BlockKernelKind,
    /// The program. Its parameters are pointers, each with the length of its tensor, then, where `checks`, the status word:
    /// an `i32` that is set where an access is out of bounds.
    pub program: Program,
    /// Program instances along each axis.
    pub grid: [u32; 3],
    /// What each pointer is given, the status word left out.
    pub tied: Vec<Tied>,
    /// Whether there is a status word.
    pub checks: bool,
    /// Whether its tiles are too large for the device with neighbours, so that it has neither prologue nor epilogue.
    pub neighbours_do_not_fit: bool,
    /// Of the elements of loads and stores of which they are known.
    pub coordinates: Vec<Coordinates>,
    /// How operands at these positions are read.
    pub layouts: Vec<(u16, Layout)>,
    /// How it computes its result: blocks, and what is done with them. Empty where its author says nothing.
    pub schedule: String,
    /// Why it is used rather than the call, where there was a choice.
    pub note: Option<String>,
    /// Microseconds that it is expected to take without neighbours, as measured or by its operations; 0 where that is not
    /// known.
    pub expected_us: f64,
}

impl BlockKernel {
    /// How the operand at a position is read.
    pub fn layout(&self, position: u16) -> &Layout {
        self.layouts.iter().find(|(at, _)| *at == position).map_or(&Layout::Elements, |(_, layout)| layout)
    }

    /// The axes along which an operand is loaded or a result is stored, an extent and a stride each, where all its accesses are known to
    /// be along the same ones.
    pub(crate) fn axes(&self, tied: Tied) -> Option<Vec<[i64; 2]>> {
        let axes = |at: &Coordinates| {
            at.axes.iter().map(|axis| [axis.extent as i64, axis.stride as i64]).collect::<Vec<_>>()
        };
        let accesses = self.accesses(tied);
        let first = accesses.first().copied().flatten().map(axes).filter(|axes| !axes.is_empty())?;
        accesses.iter().all(|&at| at.map(axes).as_ref() == Some(&first)).then_some(first)
    }

    /// Along which of the axes of an operand neighbours in a vector lie, where that is known.
    pub(crate) fn lanes(&self, operand: u16) -> Option<usize> {
        self.accesses(Tied::Operand(operand)).into_iter().flatten().find_map(|access| access.lanes)
    }

    /// What is known of the loads of an operand or the stores to a result.
    fn accesses(&self, tied: Tied) -> Vec<Option<&Coordinates>> {
        let params = self.program.params.iter().zip(&self.tied).filter(|(_, other)| **other == tied);
        let pointers: Vec<Value> = params.map(|(param, _)| param.value).collect();
        let mut accesses = Vec::new();
        self.program.walk(&mut |op| {
            let accesses_memory = matches!(op.kind, OpKind::Load { .. } | OpKind::Store { .. });
            if accesses_memory && op.args.first().is_some_and(|pointer| pointers.contains(pointer)) {
                accesses.push(op.args.get(1).and_then(|&offsets| self.coordinates_at(offsets)));
            }
        });
        accesses
    }

    /// What is known of the elements at these offsets.
    pub(crate) fn coordinates_at(&self, offsets: Value) -> Option<&Coordinates> {
        self.coordinates.iter().find(|at| at.offsets == offsets)
    }
}

/// A kernel for a call, or libtorch's call, as it was compared with the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// How the kernel computes its result; none of libtorch's call.
    pub schedule: Option<String>,
    /// Microseconds that it is expected to take, without what lies around it.
    pub predicted_us: f64,
    /// The same as measured, where it was.
    pub measured_us: Option<f64>,
    /// Whether it was chosen.
    pub chosen: bool,
}

/// Why a call has no kernel though it might, and what would have to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declined {
    /// Why.
    pub reason: String,
    /// What would have to change in the model, in its tensors or in the options.
    pub remedy: String,
}

impl Declined {
    /// For this reason, which is no longer one where that changes.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Declined {
        Declined { reason: reason.into(), remedy: remedy.into() }
    }
}

impl std::fmt::Display for Declined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The kernel of a call, or why it has none.
pub type MaybeKernel = Result<std::sync::Arc<BlockKernel>, Declined>;
