//! Kernels as expressions over a loop domain: what a fused group computes, before tiles are chosen.
//!
//! The domain is a list of variables, each *parallel* or *reduced*. Every value is an expression at one point of the
//! domain; loads and stores have addresses in [`crate::index`] form. Building a kernel from graph nodes folds view
//! operators into those addresses, and fails with a [`Refusal`] where a value would be needed at an index at which the
//! kernel does not have it: this is the legality test of fusion.

mod build;
mod collapse;
mod expressions;
mod memo;
mod reduce;

use std::sync::Arc;

use smallvec::SmallVec;
use tilefuse_block::{Elem, Literal, Loc, ReduceFn, ScalarFn};

use crate::combiner::{Combiner, Members};
use crate::graph::{NodeId, ValueRef};
use crate::index::{Expr, Indices, Var};
use crate::types::Dims;

pub(crate) use build::view_index;
pub use build::{Domain, Group, Space, build};
pub use collapse::collapse;
pub(crate) use expressions::Expressions;
pub(crate) use memo::{Classes, Memo, Named};

/// What a reduction weighs beside its operand: a loop of its own.
const REDUCE_WEIGHT: usize = 16;

/// An interned expression of a [`Kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KExpr(pub u32);

impl KExpr {
    /// The position in [`Kernel::exprs`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The part of an address that is read from data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dynamic {
    /// An integer index; out of `0..bound` nothing is read and the value is 0.
    pub index: KExpr,
    /// Elements between consecutive indices.
    pub stride: i64,
    /// Number of valid indices.
    pub bound: i64,
}

/// A value at one point of the domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KNode {
    /// A literal.
    Const(Literal),
    /// An index expression as a number.
    Index(Expr, Elem),
    /// Whether `low <= expr < high`.
    InRange(Expr, i64, i64),
    /// The element of a buffer at an address; 0 where `mask` is false.
    Load {
        /// Position in [`Kernel::buffers`].
        buffer: u32,
        /// Address in elements.
        addr: Expr,
        /// A further, data-dependent part of the address.
        dynamic: Option<Dynamic>,
        /// Where the address is meaningful.
        mask: Option<KExpr>,
    },
    /// A scalar function.
    Map(ScalarFn, SmallVec<[KExpr; 3]>),
    /// A conversion, with rounding.
    Cast(KExpr, Elem),
    /// The result of [`Kernel::reduces`] at this position.
    Reduce(u32),
}

/// A reduction over all reduced variables, or a mix-order one.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduction {
    /// The combiner.
    pub combine: ReduceFn,
    /// What is combined.
    pub value: KExpr,
    /// 1 for one whose operand contains no reduction, else one more than the highest that it contains. Of a mix-order
    /// reduction, the highest that its operand contains: it needs no walk of its own.
    pub level: u32,
    /// Whether it runs over [`Kernel::mix_order`], and has a result for each element of the reduced variables.
    pub mix_order: bool,
}

/// A reduction of tuples. Each of its members is a reduction of its own: those that depend on others have higher levels, and a
/// walk for each level makes them all. A walk that combines tuples makes them at once.
#[derive(Clone, Debug, PartialEq)]
pub struct TupleReduction {
    /// The combiner.
    pub combine: Combiner,
    /// The members of an element.
    pub elements: Members<KExpr>,
    /// Those of the result.
    pub results: Members<KExpr>,
    /// Positions in [`Kernel::reduces`] of what makes the results, lower levels first.
    pub reduces: std::ops::Range<u32>,
}

/// A store of a value at every point of the domain, or of its parallel part.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Position in [`Kernel::buffers`].
    pub buffer: u32,
    /// Address in elements.
    pub addr: Expr,
    /// The value, of the buffer's element kind.
    pub value: KExpr,
}

/// A buffer that a kernel reads or writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The graph value.
    pub value: ValueRef,
    /// Its element kind in memory.
    pub elem: Elem,
    /// Elements spanned from the first address, for bounds.
    pub span: i64,
    /// Whether the kernel writes it.
    pub written: bool,
    /// Whether nothing writes it while the plan runs, as is so of parameters that the plan does not update.
    pub fixed: bool,
}

/// Facts of an expression that schedules ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KInfo {
    /// Element kind of the value; `f16` and `bf16` only right after the cast that rounds.
    pub elem: Elem,
    /// Variables that it depends on, as a bit set; a reduction depends on parallel ones only.
    pub vars: u64,
    /// Highest level of a reduction that it depends on; 0 without.
    pub level: u32,
    /// What the node comes from that it is a part of, see [`crate::Graph::loc`]; of several that share it, the first.
    pub loc: Loc,
}

/// A kernel over a domain.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// The domain's variables and all index expressions.
    pub indices: Arc<Indices>,
    /// For each domain variable, whether it is reduced. Variables past this list stand for data-dependent indices and
    /// occur in no expression.
    pub reduced: Vec<bool>,
    /// A parallel variable whose elements all belong to one instance, so that reductions over it end within a tile. Rows
    /// and columns of one tensor are reduced in one kernel in this way: the rows over the reduced variables, the columns
    /// over as many rows as a tile has.
    pub mix_order: Option<Var>,
    /// Values, operands before users.
    pub exprs: Vec<KNode>,
    /// Facts of each.
    pub info: Vec<KInfo>,
    /// What the expressions weigh together: about the instructions that its code has.
    pub size: usize,
    /// Reductions, operands before users.
    pub reduces: Vec<Reduction>,
    /// Those that are of tuples.
    pub tuples: Vec<TupleReduction>,
    /// Stores.
    pub stores: Vec<Store>,
    /// Buffers, in order of first use.
    pub buffers: Vec<Buffer>,
}

impl Kernel {
    /// Whether it reads at indices that are data, which may be out of range.
    pub fn checks(&self) -> bool {
        self.exprs.iter().any(|node| matches!(node, KNode::Load { dynamic: Some(_), .. }))
    }

    /// Facts of an expression.
    pub fn info(&self, expr: KExpr) -> KInfo {
        self.info[expr.index()]
    }

    /// The node of an expression.
    pub fn node(&self, expr: KExpr) -> &KNode {
        &self.exprs[expr.index()]
    }

    /// Product of the extents of the parallel variables.
    pub fn parallel_points(&self) -> i64 {
        self.points(false)
    }

    /// Product of the extents of the reduced variables.
    pub fn reduced_points(&self) -> i64 {
        self.points(true)
    }

    fn points(&self, reduced: bool) -> i64 {
        let extents = self.indices.extents();
        self.reduced.iter().zip(extents).filter(|&(&r, _)| r == reduced).map(|(_, &n)| n).product()
    }

    /// Product of the extents of these variables, a bit set.
    pub fn points_of(&self, vars: u64) -> u64 {
        let extents = self.indices.extents();
        let chosen = (0..self.reduced.len()).filter(|&v| vars & (1 << v.min(63)) != 0);
        chosen.map(|v| extents[v] as u64).product()
    }

    /// Addresses and index values, each with a weight in bytes per point.
    pub fn accesses(&self) -> Vec<(Expr, u32)> {
        let mut found = Vec::new();
        for node in &self.exprs {
            match node {
                KNode::Load { buffer, addr, .. } => {
                    found.push((*addr, self.buffers[*buffer as usize].elem.bytes()));
                }
                KNode::Index(e, _) | KNode::InRange(e, ..) => found.push((*e, 0)),
                _ => {}
            }
        }
        found.extend(self.stores.iter().map(|s| (s.addr, self.buffers[s.buffer as usize].elem.bytes())));
        found
    }
}

/// About how many instructions an expression is in code.
fn weight(node: &KNode) -> usize {
    match node {
        KNode::Const(_) => 0,
        KNode::Map(function, _) => 1 + function.cost() as usize,
        KNode::Reduce(_) => REDUCE_WEIGHT,
        KNode::Index(..) | KNode::InRange(..) | KNode::Load { .. } | KNode::Cast(..) => 2,
    }
}

/// Why an operator is neither prologue nor epilogue of a block program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockRefusal {
    /// It reduces other than the rows, or the parts of rows, that the block program stores.
    #[error("it reduces other dimensions than the rows, or parts of rows, that the block program stores")]
    Reduction,
    /// It reduces, and the rows that the block program stores are not known.
    #[error(
        "the planner does not know which rows the block program stores at once, as a reduction of them needs"
    )]
    UnknownStores,
    /// It reduces rows of which a block has a part.
    #[error(
        "its rows of {columns} elements are wider than the {width} columns that the block program stores at once"
    )]
    WideRows {
        /// Elements of a row.
        columns: i64,
        /// Columns of a block.
        width: i64,
    },
    /// It reduces in front of the block program.
    #[error("a reduction is no prologue of a block program")]
    PrologueReduction,
    /// It is a block program itself.
    #[error(
        "both are products, convolutions, attention or operators with kernels of their own, of which a kernel computes one"
    )]
    Both,
    /// It is a block program, of another grid or other tiles.
    #[error("the block programs divide what they compute into other blocks")]
    Blocks,
    /// It is a block program, and the loads of both are pipelined.
    #[error("a block program pipelines the loads of one product, not those of two")]
    RunsAhead,
    /// Together they were compiled, and did not fit.
    #[error("together their tiles are too large for the device")]
    Tiles,
    /// It reads a slice of the result.
    #[error("it reads {numel} of the result's {of} elements")]
    Elements {
        /// Elements of the neighbour.
        numel: i64,
        /// Elements of the result.
        of: i64,
    },
    /// It reads the result at several places for each of its elements, as pooling does.
    #[error("each of its {numel} elements is computed of several of the result's {of}")]
    Windows {
        /// Elements of the neighbour.
        numel: i64,
        /// Elements of the result.
        of: i64,
    },
    /// It repeats elements of the result, as a broadcast or upsampling does.
    #[error("its {numel} elements repeat those of the result of {of} elements")]
    Repeated {
        /// Elements of the neighbour.
        numel: i64,
        /// Elements of the result.
        of: i64,
    },
    /// It has other elements beside those of the result, as padding and a concatenation do.
    #[error("its {numel} elements are those of the result of {of} elements and others beside them")]
    Joined {
        /// Elements of the neighbour.
        numel: i64,
        /// Elements of the result.
        of: i64,
    },
    /// A GPU copies the operand to shared memory.
    #[error(
        "the block program copies the operand from memory to shared memory, and a prologue leaves nothing in memory"
    )]
    SharedMemory,
    /// The operand is read in place, by loads of which the axes are not known.
    #[error(
        "the block program reads the operand in place, by loads whose rows and columns the planner does not know"
    )]
    UnknownLoads,
    /// The operand has other strides than the program was written for.
    #[error("the operand does not have the strides that the block program was written for")]
    OtherStrides,
    /// The operand is read otherwise than by loads.
    #[error("the block program does more than load the operand, which a prologue would compute")]
    NoLoads,
    /// The result is written otherwise than by stores.
    #[error("the block program does more than store the result once, which an epilogue would read")]
    NoStores,
    /// The epilogue is computed of several results.
    #[error("the epilogue needs several results of the block program at once")]
    SeveralResults,
    /// What a prologue would compute in loads is needed by others.
    #[error("the prologue's value is needed in memory as well")]
    PrologueStored,
    /// It reads at indices that are data.
    #[error("a gather is no prologue or epilogue of a block program")]
    Gather,
    /// The epilogue reads elements that other instances store.
    #[error("the epilogue reads the result in another order than it is stored in")]
    ResultOrder,
    /// A prologue or epilogue has its value in another order than the block program's loads or stores.
    #[error("its value has another order than the loads or stores of the block program")]
    Order,
    /// The block program stores to an operand.
    #[error("its kernel writes an operand")]
    WritesOperand,
    /// The parameters of the block program are not the operands and results of its call.
    #[error("the parameters of its kernel do not match the call")]
    Parameters,
}

/// Why nodes cannot be one kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A result has neither the domain's number of elements nor that of its parallel part.
    #[error("its {numel} elements match neither the {points} points of the loop nor its {rows} rows")]
    Extent {
        /// Elements of the value.
        numel: i64,
        /// Points of the domain.
        points: i64,
        /// Points of the parallel part.
        rows: i64,
    },
    /// A reduction runs over other dimensions than the kernel's.
    #[error("it reduces other dimensions than the kernel it would join")]
    OtherReduction,
    /// A reduction's result is used in another order than rows are produced.
    #[error("the reduction's result is used at other rows than the one that is reduced")]
    OtherRow,
    /// The source of a gather is computed, not stored.
    #[error("the source of a gather must be in memory")]
    GatherSource,
    /// A single node needs more than a kernel may have.
    #[error("the kernel would have more than {limit} operations")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// Merging would save less than the larger kernel takes to compile: storing and loading a value costs little beside
    /// so many instructions.
    #[error("the kernel would have about {size} instructions, over the {limit} up to which merging pays")]
    TooLong {
        /// About how many instructions the code would have.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many buffers for one kernel.
    #[error("the kernel would have more than {limit} buffers")]
    TooManyBuffers {
        /// The limit.
        limit: usize,
    },
    /// An element type that kernels do not handle.
    #[error("an operand has an element type that kernels do not handle")]
    ElementType,
    /// A node that no kernel computes.
    #[error("no kernel computes {0}")]
    Extern(String),
    /// Sizes of 0.
    #[error("a tensor is empty")]
    Empty,
    /// Tensors on different devices.
    #[error("operands live on different devices")]
    Devices,
    /// Something that stands in the way of a prologue or epilogue of a block program.
    #[error(transparent)]
    Block(#[from] BlockRefusal),
}

/// How realised values are laid out in memory.
pub trait Layouts {
    /// Strides in elements of a value that is in memory, and the elements it spans.
    fn strides(&self, value: ValueRef) -> (Dims, i64);
}

/// The result of a graph node, as part of an error.
pub fn name_of(node: NodeId) -> String {
    format!("%{}", node.index())
}
