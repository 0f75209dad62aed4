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

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;

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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValueData {
    /// The type.
    pub ty: Type,
    /// A name for the text form; unique names are made by the printer where this is absent or taken.
    pub name: Option<String>,
}

/// A parameter of the program: a scalar number or a scalar pointer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// The value that it defines.
    pub value: Value,
    /// For pointers: the alignment in bytes that the caller promises; a power of two, at least the element's size.
    pub align: u32,
    /// For pointers: number of elements that may be addressed, if the caller promises one. The interpreter checks it.
    pub len: Option<u64>,
}

/// How a load or store treats caches. Hints never change a result, but for [`CacheHint::Ahead`] where what it promises is
/// not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CacheHint {
    /// No preference.
    #[default]
    Default,
    /// The data is used once: evict first, or non-temporal.
    Streaming,
    /// The data is used again by other instances: evict last.
    Keep,
    /// Of loads: nothing that may still run before the kernel on its stream writes the data, as weights are not written
    /// while a model runs. A kernel that starts [`early`](Program::early) reads it before it waits for the others.
    Ahead,
}

/// What an atomic operation does with the element in memory (`old`) and the operand (`new`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AtomicFn {
    /// `old + new`. Integers of 32 and 64 bits, which wrap, and floats.
    Add,
    /// The larger one, as [`ScalarFn::Max`]. Integers of 32 and 64 bits, `f32` and `f64`.
    Max,
    /// The smaller one, as [`ScalarFn::Min`]. Integers of 32 and 64 bits, `f32` and `f64`.
    Min,
    /// Bitwise and. Integers of 32 and 64 bits.
    And,
    /// Bitwise or. Integers of 32 and 64 bits.
    Or,
    /// Bitwise exclusive or. Integers of 32 and 64 bits.
    Xor,
    /// `new`. Kinds of 32 and 64 bits.
    Exchange,
}

impl AtomicFn {
    /// The scalar function that makes the new element of `old` and `new`; none where that is `new` itself.
    pub const fn combine(self) -> Option<ScalarFn> {
        match self {
            AtomicFn::Add => Some(ScalarFn::Add),
            AtomicFn::Max => Some(ScalarFn::Max),
            AtomicFn::Min => Some(ScalarFn::Min),
            AtomicFn::And => Some(ScalarFn::And),
            AtomicFn::Or => Some(ScalarFn::Or),
            AtomicFn::Xor => Some(ScalarFn::Xor),
            AtomicFn::Exchange => None,
        }
    }
}

/// What an atomic operation orders besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MemoryOrder {
    /// Nothing.
    Relaxed,
    /// Later accesses of this instance come after it.
    Acquire,
    /// Earlier accesses of this instance come before it.
    Release,
    /// Both.
    #[default]
    AcqRel,
}

/// Who sees an atomic operation as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MemoryScope {
    /// The instance.
    Block,
    /// Every instance on the device.
    #[default]
    Device,
    /// Every device and the host.
    System,
}

/// How exactly a product of `f32` tiles is computed; for every other kind the products are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DotPrecision {
    /// Operands are rounded to TF32 (10 explicit bits of mantissa) where the target's matrix unit takes that.
    #[default]
    Tf32,
    /// Three products of TF32 parts, close to `f32`.
    Tf32x3,
    /// `f32` throughout.
    Ieee,
}

/// A fact that the author of a program promises. The interpreter checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assumption {
    /// The first element of each row along the last axis is divisible by this; a scalar is one row.
    MultipleOf(u32),
    /// Along the last axis, each aligned group of this many elements counts up by one.
    Contiguous(u32),
    /// Every element lies between these, both included.
    Between(i64, i64),
}

/// The operation, without operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// A literal, repeated over the result's shape. No operands.
    Const(Literal),
    /// The instance's index along a grid axis (0, 1 or 2), an `i32` scalar. No operands.
    ProgramId(u8),
    /// The number of instances along a grid axis (0, 1 or 2), an `i32` scalar. No operands.
    NumPrograms(u8),
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
    /// Two tiles of one type as one with a new last axis of extent 2: element `[..., 0]` is the first operand's.
    Join,
    /// The two halves of a tile along its last axis, which has extent 2 and disappears. Two results.
    Split,
    /// Picks elements along an axis: result `[i, j, k]` for axis 1 is the first operand at `[i, index[i, j, k], k]`.
    /// Operands: tile, indices (`i32` or `i64`) of any extent along the axis and the tile's along the others. An
    /// index counts modulo the tile's extent along the axis.
    Gather {
        /// The axis.
        axis: u8,
    },
    /// A scalar function on corresponding elements; operands have one shape.
    Map(ScalarFn),
    /// Conversion of a number to another kind, as in libtorch on x86. Anything to bool is `!= 0`; integers wrap to
    /// narrower ones; what becomes a float rounds to nearest even, `f16` and `bf16` through `f32` (so `f64` rounds
    /// twice). Floats truncate to integers: NaN and what is out of range of `i32` (of `i64` for `u8`, `u32`, `i64`
    /// and `u64`) become the smallest `i32` (`i64`), and narrower or unsigned kinds wrap that; from a float of 2^63 or
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
    /// Combines elements of one or several tiles of one shape along an axis, which disappears, with a combiner of
    /// one's own: one region, closed over its arguments, that takes the elements of one position of each tile, then
    /// those of another, and yields the combined ones. It computes scalars alone. It must be associative and
    /// commutative, for the order of combination is the target's choice. As many results as operands.
    ReduceWith {
        /// The axis.
        axis: u8,
    },
    /// For every position along an axis, all elements up to and with it combined: [`OpKind::ReduceWith`] of every
    /// prefix, in order, so that the combiner need not be commutative. As many results, of the same types, as
    /// operands.
    Scan {
        /// The axis.
        axis: u8,
        /// From the last element to the first.
        reverse: bool,
    },
    /// Counts integers of a tile of rank 1: element `i` of the result, `tile<BINSxi32>`, is how often `i` occurs.
    /// What is not from 0 to `bins - 1` counts nowhere. Operands: tile, then, where `masked`, a mask of its shape.
    Histogram {
        /// Number of bins, a power of two.
        bins: u32,
        /// Whether there is a mask operand.
        masked: bool,
    },
    /// The matrix product `a b + c` of `a: [M, K]`, `b: [K, N]` and the accumulator `c: [M, N]`, or of batches of
    /// them along a first axis. `a` and `b` have one kind, for which the accumulator's is: `f32` for `f8e4m3`,
    /// `f8e5m2`, `f16`, `bf16` and `f32`, `f64` for `f64`, `i32` for `i8` and `u8`. The order of summation is the
    /// target's choice; integers wrap.
    Dot {
        /// For `f32`.
        precision: DotPrecision,
    },
    /// Random bits: four `u32` results of the second operand's shape, which are the Philox 4x32 generator's for the
    /// key `seed` and the counter `(low, high, 0, 0)`, `low` and `high` being the 32-bit halves of an offset.
    /// Operands: seed (`u64` scalar), offsets (integers of 32 or 64 bits). J. Salmon et al., "Parallel random
    /// numbers: as easy as 1, 2, 3", 2011.
    Philox {
        /// Rounds, 10 as a rule.
        rounds: u8,
    },
    /// Changes elements of memory, each at once, and gives what they were before. Operands: scalar pointer, offsets,
    /// values, then, where `masked`, the mask; the result is 0 where it is false. Elements of one operation that
    /// meet are changed one after the other in an order that is not defined.
    Atomic {
        /// How.
        function: AtomicFn,
        /// Whether there is a mask operand.
        masked: bool,
        /// Order.
        order: MemoryOrder,
        /// Scope.
        scope: MemoryScope,
    },
    /// Writes an element of memory where it has the expected value (in bits), and gives what it was before. Operands:
    /// scalar pointer, offsets, expected values, new values. Kinds of 32 and 64 bits.
    AtomicCas {
        /// Order.
        order: MemoryOrder,
        /// Scope.
        scope: MemoryScope,
    },
    /// The operand, an integer, of which a fact is promised.
    Assume(Assumption),
    /// Prints the elements of its operands, with the instance and the prefix, for debugging. No results.
    Print {
        /// What to print first.
        prefix: String,
        /// Integers in hexadecimal.
        hex: bool,
    },
    /// Ends the whole launch with an error where an element of the operand, a boolean, is false. Operands: condition,
    /// then, where `masked`, a mask of its shape. No results.
    Assert {
        /// What the error says.
        message: String,
        /// Whether there is a mask operand.
        masked: bool,
    },
    /// One of two regions, by the operand, a boolean scalar: the first where it is true. Neither takes arguments;
    /// each yields values of the same types, which are the results.
    If,
    /// A loop that goes on while a condition holds. Operands: initial values of the carried values. Two regions, each
    /// of which takes the carried values: the first yields a boolean scalar; where it is true, the second runs and
    /// yields the next values. Results: the carried values when the condition is false.
    While,
    /// A counted loop `for i in (lo..hi).step_by(step)`. Operands: `lo`, `hi`, `step` (`i32` scalars, step > 0), then
    /// initial values of the carried values. One region, whose arguments are `i` and the carried values and which
    /// ends in `yield` of their next values. Results: the carried values after the last iteration.
    For,
    /// Ends a region, handing values to the operation that owns it.
    Yield,
}

impl OpKind {
    /// Whether the operation only computes its one result from its operands: it has no regions, touches no memory,
    /// and does nothing else.
    pub fn is_pure(&self) -> bool {
        use OpKind::*;
        match self {
            Const(_)
            | ProgramId(_)
            | NumPrograms(_)
            | Range { .. }
            | Splat(_)
            | ExpandDims(_)
            | Broadcast(_)
            | Reshape(_)
            | Permute(_)
            | Join
            | Gather { .. }
            | Map(_)
            | Cast(_)
            | Bitcast(_)
            | Reduce { .. }
            | Histogram { .. }
            | Dot { .. } => true,
            Split
            | Philox { .. }
            | Assume(_)
            | ReduceWith { .. }
            | Scan { .. }
            | Load { .. }
            | Store { .. }
            | Atomic { .. }
            | AtomicCas { .. }
            | Print { .. }
            | Assert { .. }
            | If
            | While
            | For
            | Yield => false,
        }
    }

    /// Whether it writes memory.
    pub fn writes(&self) -> bool {
        matches!(self, OpKind::Store { .. } | OpKind::Atomic { .. } | OpKind::AtomicCas { .. })
    }

    /// Whether it does something that is needed even where no result is used.
    pub fn has_effect(&self) -> bool {
        self.writes() || matches!(self, OpKind::Print { .. } | OpKind::Assert { .. })
    }

    /// Whether the first operand is a pointer through which it reads or writes memory.
    pub fn is_access(&self) -> bool {
        self.writes() || matches!(self, OpKind::Load { .. })
    }

    /// Whether its region is a combiner, closed over its arguments.
    pub fn has_combiner(&self) -> bool {
        matches!(self, OpKind::ReduceWith { .. } | OpKind::Scan { .. })
    }
}

impl Op {
    /// Whether the operation or one in its regions writes memory.
    pub fn has_store(&self) -> bool {
        self.any(&OpKind::writes)
    }

    /// Whether the operation or one in its regions has an effect.
    pub fn has_effect(&self) -> bool {
        self.any(&OpKind::has_effect)
    }

    fn any(&self, holds: &dyn Fn(&OpKind) -> bool) -> bool {
        holds(&self.kind) || self.regions.iter().any(|r| r.ops.iter().any(|op| op.any(holds)))
    }
}

/// Where an operation comes from: a number whose meaning is its maker's, such as that of a node of a graph, for who reads
/// generated code. What a program computes does not depend on it, so that any two are equal; the text form leaves it out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loc(Option<NonZeroU32>);

impl Loc {
    /// Nowhere that is known.
    pub const UNKNOWN: Loc = Loc(None);

    /// The location of a number below 2³² - 1.
    pub fn new(number: u32) -> Loc {
        Loc(NonZeroU32::new(number.wrapping_add(1)))
    }

    /// The number that [`Loc::new`] was given.
    pub fn number(self) -> Option<u32> {
        self.0.map(|n| n.get() - 1)
    }

    /// This location, or another where it is unknown.
    pub fn or(self, other: Loc) -> Loc {
        Loc(self.0.or(other.0))
    }
}

impl PartialEq for Loc {
    fn eq(&self, _: &Loc) -> bool {
        true
    }
}

impl Eq for Loc {}

impl Hash for Loc {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Gives operations that a rewrite has made of one at `loc` that location, unless they have one.
pub(crate) fn locate(ops: &mut [Op], loc: Loc) {
    for op in ops {
        op.loc = op.loc.or(loc);
    }
}

/// An operation with operands, results and regions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// Which operation.
    pub kind: OpKind,
    /// Operands.
    pub args: SmallVec<[Value; 4]>,
    /// Results.
    pub results: SmallVec<[Value; 1]>,
    /// Regions; most operations have none.
    pub regions: Vec<Region>,
    /// Where it comes from.
    pub loc: Loc,
}

/// A list of operations with arguments; a single basic block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Region {
    /// Values that the owner hands in.
    pub args: Vec<Value>,
    /// The operations in order.
    pub ops: Vec<Op>,
}

/// A block program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// Iterations of a loop that a GPU has under way together, loading operands of products for later ones, from 1 (each
    /// after the other) to 8; fewer where that does not fit. The target's choice where nothing is said.
    pub stages: Option<u32>,
    /// Whether a GPU may start the kernel before the work before it on its stream has ended, for which it then waits
    /// itself. This hides the time that starting takes, at the price of a wait in each instance: it pays for few instances.
    pub early: bool,
}

impl Program {
    /// The type of a value.
    ///
    /// # Panics
    /// If `value` is not one of this program's.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    /// Gives every operation that has no location this one.
    pub fn locate(&mut self, loc: Loc) {
        locate_region(&mut self.body, loc);
    }

    /// Visits every operation in program order, the owners of regions before their contents.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Op)) {
        walk_region(&self.body, visit);
    }

    /// By value: how many operands of operations it is.
    pub fn uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.values.len()];
        self.walk(&mut |op| op.args.iter().for_each(|arg| uses[arg.index()] += 1));
        uses
    }
}

fn locate_region(region: &mut Region, loc: Loc) {
    locate(&mut region.ops, loc);
    region.ops.iter_mut().flat_map(|op| &mut op.regions).for_each(|inner| locate_region(inner, loc));
}

fn walk_region<'a>(region: &'a Region, visit: &mut dyn FnMut(&'a Op)) {
    for op in &region.ops {
        visit(op);
        for inner in &op.regions {
            walk_region(inner, visit);
        }
    }
}
