//! Block programs: SSA values of tile type, operations, and regions.
//!
//! A program describes one *instance* of a grid. Values are tiles; a scalar is a tile of rank 0. There are no
//! threads, no shared memory and no barriers. Text form:
//!
//! ```text
//! kernel @softmax(%x: ptr<f32>, %y: ptr<f32>) warps(4) {
//!   %row = program_id 0
//!   %cols = range 0 1024
//!   %n = const 1000 : tile<1024xi32>
//!   %m = map lt %cols, %n
//!   %stride = const 1000 : i32
//!   %base = map mul %row, %stride
//!   %b = splat %base [1024]
//!   %offs = map add %b, %cols
//!   %v = load %x, %offs, mask %m
//!   %max = reduce max %v axis 0 mask %m
//!   ...
//!   store %y, %offs, %e, mask %m
//! }
//! ```

use smallvec::SmallVec;

use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Shape, Type};

/// A value: the result of an operation, a parameter or a block argument. An index into [`Program::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

impl Value {
    /// The position in [`Program::values`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is known of a value besides its operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueData {
    /// The type.
    pub ty: Type,
    /// A name for the text form; unique names are made by the printer where this is absent or taken.
    pub name: Option<String>,
}

/// A parameter of the program: a scalar number or a scalar pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// The value that it defines.
    pub value: Value,
    /// For pointers: the alignment in bytes that the caller promises; a power of two, at least the element's size.
    pub align: u32,
    /// For pointers: number of elements that may be addressed, if the caller promises one. The interpreter checks it.
    pub len: Option<u64>,
}

/// How a load or store treats caches; hints that never change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CacheHint {
    /// No preference.
    #[default]
    Default,
    /// The data is used once: evict first, or non-temporal.
    Streaming,
    /// The data is used again by other instances: evict last.
    Keep,
}

/// The operation, without operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// A literal, repeated over the result's shape. No operands.
    Const(Literal),
    /// The instance's index along a grid axis (0, 1 or 2), an `i32` scalar. No operands.
    ProgramId(u8),
    /// `start, start + 1, ...` as `tile<Nxi32>` with `N` a power of two. No operands.
    Range {
        /// First value.
        start: i32,
        /// Number of values.
        len: u32,
    },
    /// A scalar repeated over a shape. Operand: scalar (number).
    Splat(Shape),
    /// Inserts an extent of 1 at an axis.
    ExpandDims(u8),
    /// Repeats extents of 1 to the given shape of the same rank.
    Broadcast(Shape),
    /// The same elements in row-major order in another shape.
    Reshape(Shape),
    /// Permutes axes: result axis `i` is operand axis `perm[i]`.
    Permute(SmallVec<[u8; 4]>),
    /// A scalar function on corresponding elements; operands have one shape.
    Map(ScalarFn),
    /// Conversion of a number to another kind, as in libtorch on x86. Anything to bool is `!= 0`; integers wrap to
    /// narrower ones; what becomes a float rounds to nearest even, `f16` and `bf16` through `f32` (so `f64` rounds
    /// twice). Floats truncate to integers: NaN and what is out of range of `i32` (of `i64` for `u32`, `i64` and
    /// `u64`) become the smallest `i32` (`i64`), and narrower or unsigned kinds wrap that; from a float of 2^63 or
    /// more, `u64` takes 2^63 before that and adds it again after it.
    Cast(Elem),
    /// The same bits as another kind of the same width.
    Bitcast(Elem),
    /// Reads elements. Operands: scalar pointer, integer offsets in elements (scalar or tile), then, where
    /// `masked`, a boolean tile of the offsets' shape, then, where `other`, a tile of fallback values. A masked-off
    /// element reads nothing and is the fallback value, or 0 without one.
    Load {
        /// Whether there is a mask operand.
        masked: bool,
        /// Whether there is an operand of fallback values.
        other: bool,
        /// Cache hint.
        hint: CacheHint,
    },
    /// Writes elements. Operands: scalar pointer, offsets, values, then, where `masked`, the mask. No results.
    Store {
        /// Whether there is a mask operand.
        masked: bool,
        /// Cache hint.
        hint: CacheHint,
    },
    /// Combines elements along an axis, which disappears. Operands: tile, then, where `masked`, a boolean tile of
    /// its shape; masked-off elements take no part. The order of combination is the target's choice; `f16` and
    /// `bf16` are combined in `f32` or wider and rounded once.
    Reduce {
        /// The combiner.
        combine: ReduceFn,
        /// The axis.
        axis: u8,
        /// Whether there is a mask operand.
        masked: bool,
    },
    /// A counted loop `for i in (lo..hi).step_by(step)`. Operands: `lo`, `hi`, `step` (`i32` scalars, step > 0), then
    /// initial values of the carried values. One region, whose arguments are `i` and the carried values and which
    /// ends in `yield` of their next values. Results: the carried values after the last iteration.
    For,
    /// Ends a region, handing values to the operation that owns it.
    Yield,
}

impl OpKind {
    /// Whether the operation only computes its results: it touches no memory and ends no region.
    pub fn is_pure(&self) -> bool {
        !matches!(self, OpKind::Load { .. } | OpKind::Store { .. } | OpKind::For | OpKind::Yield)
    }
}

impl Op {
    /// Whether the operation or one in its regions writes memory.
    pub fn has_store(&self) -> bool {
        let inner = |region: &Region| region.ops.iter().any(Op::has_store);
        matches!(self.kind, OpKind::Store { .. }) || self.regions.iter().any(inner)
    }
}

/// An operation with operands, results and regions.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Which operation.
    pub kind: OpKind,
    /// Operands.
    pub args: SmallVec<[Value; 4]>,
    /// Results.
    pub results: SmallVec<[Value; 1]>,
    /// Regions; [`OpKind::For`] has one, every other operation none.
    pub regions: Vec<Region>,
}

/// A list of operations with arguments; a single basic block.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Region {
    /// Values that the owner hands in.
    pub args: Vec<Value>,
    /// The operations in order.
    pub ops: Vec<Op>,
}

/// A block program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The name, an identifier.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// All values.
    pub values: Vec<ValueData>,
    /// The operations.
    pub body: Region,
    /// Warps (32 threads each) of one instance on a GPU; a power of two from 1 to 32. Ignored on the host.
    pub warps: u32,
}

impl Program {
    /// The type of a value.
    ///
    /// # Panics
    /// If `value` is not one of this program's.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    /// Visits every operation in program order, the owners of regions before their contents.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Op)) {
        walk_region(&self.body, visit);
    }
}

fn walk_region<'a>(region: &'a Region, visit: &mut dyn FnMut(&'a Op)) {
    for op in &region.ops {
        visit(op);
        for inner in &op.regions {
            walk_region(inner, visit);
        }
    }
}
