//! The table of operations: one row each, of which the spelling, the reference page and the tests are made.
//!
//! A row is checked by the tests of this module: its example is read, verified, printed back and interpreted, and
//! random programs hold the operation.

use crate::program::OpKind;

/// What operations have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Values from nothing.
    Creation,
    /// The same elements elsewhere.
    Shape,
    /// Functions of corresponding elements.
    Elementwise,
    /// Combining elements along an axis.
    Reduction,
    /// Matrix products.
    Linear,
    /// Reading and writing memory.
    Memory,
    /// Random bits.
    Random,
    /// Which operations run.
    Control,
    /// Facts for the compiler.
    Hint,
    /// Finding mistakes.
    Debug,
}

impl Family {
    /// Every family, in the order of the reference page.
    pub const ALL: [Family; 10] = [
        Family::Creation,
        Family::Shape,
        Family::Elementwise,
        Family::Reduction,
        Family::Linear,
        Family::Memory,
        Family::Random,
        Family::Control,
        Family::Hint,
        Family::Debug,
    ];

    /// A heading.
    pub const fn title(self) -> &'static str {
        match self {
            Family::Creation => "Creation",
            Family::Shape => "Shape",
            Family::Elementwise => "Elementwise",
            Family::Reduction => "Reductions, scans and histograms",
            Family::Linear => "Matrix products",
            Family::Memory => "Memory",
            Family::Random => "Random numbers",
            Family::Control => "Control flow",
            Family::Hint => "Hints",
            Family::Debug => "Debugging",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The spelling in text forms.
    pub name: &'static str,
    /// What it belongs to.
    pub family: Family,
    /// The text form; capitals stand for numbers, brackets for what may be left out.
    pub syntax: &'static str,
    /// Operands and their types.
    pub operands: &'static str,
    /// Results and their types.
    pub results: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// The body of a program with `%x: ptr<f32>`, `%y: ptr<f32>`, `%p: ptr<i32>` and `%n: i32` as parameters.
    pub example: &'static str,
}

macro_rules! operations {
    ($($variant:ident $name:literal $family:ident {
        syntax: $syntax:literal, operands: $operands:literal, results: $results:literal, doc: $doc:literal,
        example: $example:literal
    })*) => {
        /// Every operation, by family.
        pub const OPERATIONS: &[Operation] = &[$(Operation {
            name: $name,
            family: Family::$family,
            syntax: $syntax,
            operands: $operands,
            results: $results,
            doc: $doc,
            example: $example,
        },)*];

        impl OpKind {
            /// The spelling in text forms.
            pub const fn name(&self) -> &'static str {
                match self { $(OpKind::$variant { .. } => $name,)* }
            }
        }
    };
}

operations! {
    Const "const" Creation {
        syntax: "%r = const V : TYPE", operands: "none", results: "the type",
        doc: "The number `V` in every element. Floats may be `nan`, `inf` and `-inf`, truth values `true` and `false`.",
        example: "%r = const 1.5 : tile<4xf32> %i = range 0 4 store %y, %i, %r"
    }
    ProgramId "program_id" Creation {
        syntax: "%r = program_id A", operands: "none", results: "i32",
        doc: "The instance's index along the grid's axis `A`, 0 to 2.",
        example: "%r = program_id 0 store %p, %r, %r"
    }
    NumPrograms "num_programs" Creation {
        syntax: "%r = num_programs A", operands: "none", results: "i32",
        doc: "The number of instances along the grid's axis `A`.",
        example: "%r = num_programs 0 %i = program_id 0 store %p, %i, %r"
    }
    Range "range" Creation {
        syntax: "%r = range S N", operands: "none", results: "tile<Nxi32>",
        doc: "`S`, `S + 1`, ..., `N` of them, a power of two.",
        example: "%r = range 0 16 store %p, %r, %r"
    }
    Splat "splat" Creation {
        syntax: "%r = splat %a [D, ...]", operands: "a scalar", results: "a tile of the extents",
        doc: "The scalar in every element.",
        example: "%r = splat %n [8] %i = range 0 8 store %p, %i, %r"
    }
    ExpandDims "expand_dims" Shape {
        syntax: "%r = expand_dims %a axis A", operands: "a tile", results: "the tile with an extent of 1 at `A`",
        doc: "Inserts an axis of extent 1.",
        example: "%i = range 0 8 %r = expand_dims %i axis 0 store %p, %r, %r"
    }
    Broadcast "broadcast" Shape {
        syntax: "%r = broadcast %a [D, ...]", operands: "a tile of the same rank", results: "a tile of the extents",
        doc: "Repeats along axes of extent 1.",
        example: "%i = range 0 8 %c = expand_dims %i axis 0 %r = broadcast %c [4, 8] %v = load %p, %r"
    }
    Reshape "reshape" Shape {
        syntax: "%r = reshape %a [D, ...]", operands: "a tile", results: "a tile of the extents",
        doc: "The same elements, in row-major order, in another shape.",
        example: "%i = range 0 8 %r = reshape %i [2, 4] store %p, %r, %r"
    }
    Permute "permute" Shape {
        syntax: "%r = permute %a [A, ...]", operands: "a tile", results: "the tile with axes in another order",
        doc: "Axis `i` of the result is the operand's axis at position `i` of the list.",
        example: "%i = range 0 8 %c = reshape %i [2, 4] %r = permute %c [1, 0] store %p, %r, %r"
    }
    Join "join" Shape {
        syntax: "%r = join %a, %b", operands: "two tiles of one type", results: "a tile with a new last extent of 2",
        doc: "Element `[..., 0]` is the first operand's, `[..., 1]` the second's.",
        example: "%a = range 0 8 %b = range 8 8 %r = join %a, %b store %p, %r, %r"
    }
    Split "split" Shape {
        syntax: "%r, %s = split %a", operands: "a tile whose last extent is 2", results: "two tiles without it",
        doc: "The inverse of `join`.",
        example: "%i = range 0 8 %c = reshape %i [4, 2] %r, %s = split %c store %p, %r, %s"
    }
    Gather "gather" Shape {
        syntax: "%r = gather %a, %i axis A",
        operands: "a tile, and indices (i32 or i64) of its extents but for axis `A`",
        results: "a tile of the indices' extents",
        doc: "Picks elements along an axis. An index counts modulo the tile's extent along the axis.",
        example: "%a = range 0 8 %i = const 3 : tile<4xi32> %r = gather %a, %i axis 0 %j = range 0 4 store %p, %j, %r"
    }
    Map "map" Elementwise {
        syntax: "%r = map FUNCTION %a, ...", operands: "as many as the function takes, of one shape",
        results: "a tile of that shape", doc: "A scalar function of corresponding elements; see the table of functions.",
        example: "%i = range 0 8 %a = load %x, %i %r = map exp %a store %y, %i, %r"
    }
    Cast "cast" Elementwise {
        syntax: "%r = cast %a KIND", operands: "a tile", results: "the tile with elements of the kind",
        doc: "Conversion as in libtorch: anything to bool is `!= 0`, integers wrap, what becomes a float rounds to \
              nearest even (16-bit and 8-bit floats through f32), floats become integers by truncation.",
        example: "%i = range 0 8 %r = cast %i f32 store %y, %i, %r"
    }
    Bitcast "bitcast" Elementwise {
        syntax: "%r = bitcast %a KIND", operands: "a tile", results: "the tile with elements of the kind, as wide",
        doc: "The same bits as another kind.",
        example: "%i = range 0 8 %r = bitcast %i f32 store %y, %i, %r"
    }
    Reduce "reduce" Reduction {
        syntax: "%r = reduce COMBINER %a axis A [mask %m]", operands: "a tile, and a mask of its shape",
        results: "the tile without axis `A`",
        doc: "Combines elements along an axis by `sum`, `prod`, `max`, `min`, `and`, `or` or `xor`. Masked-off \
              elements take no part; of none, the result is the neutral element. 16-bit floats are combined in f32 \
              and rounded once. The order of combination is the target's choice.",
        example: "%i = range 0 8 %a = load %x, %i %r = reduce max %a axis 0 %z = const 0 : i32 store %y, %z, %r"
    }
    ReduceWith "reduce_with" Reduction {
        syntax: "%r, ... = reduce_with %a, ... axis A (%p, ..., %q, ...) { ... yield %c, ... }",
        operands: "tiles of one shape", results: "each tile without axis `A`",
        doc: "Combines with a combiner of one's own: it takes the elements of one position, then those of another, \
              and yields the combined ones. It must be associative and commutative, uses nothing from outside, and \
              computes scalars by constants, maps and casts.",
        example: "%i = range 0 8 %a = load %x, %i
            %v, %j = reduce_with %a, %i axis 0 (%v1, %i1, %v2, %i2) {
              %first = map ge %v1, %v2
              %vr = map select %first, %v1, %v2
              %ir = map select %first, %i1, %i2
              yield %vr, %ir
            }
            %z = const 0 : i32 store %p, %z, %j"
    }
    Scan "scan" Reduction {
        syntax: "%r, ... = scan %a, ... axis A [reverse] (%p, ..., %q, ...) { ... yield %c, ... }",
        operands: "tiles of one shape", results: "tiles of the same types",
        doc: "All elements up to and with each position combined, in order: the combiner is as in `reduce_with`, but \
              need not be commutative.",
        example: "%i = range 0 8 %r = scan %i axis 0 (%a, %b) { %c = map add %a, %b yield %c } store %p, %i, %r"
    }
    Histogram "histogram" Reduction {
        syntax: "%r = histogram %a bins N [mask %m]", operands: "integers of rank 1, and a mask of their shape",
        results: "tile<Nxi32>", doc: "How often each number from 0 to `N - 1` occurs; other numbers count nowhere.",
        example: "%i = range 0 8 %r = histogram %i bins 4 %j = range 0 4 store %p, %j, %r"
    }
    Dot "dot" Linear {
        syntax: "%r = dot %a, %b, %c [precision tf32|tf32x3|ieee]",
        operands: "`[M, K]` and `[K, N]` of one kind, and the accumulator `[M, N]`; or each with a batch axis first",
        results: "the accumulator's type",
        doc: "`a b + c`. The accumulator is f32 for f8e4m3, f8e5m2, f16, bf16 and f32, f64 for f64, i32 for i8 and \
              u8. `precision` says how f32 operands are multiplied; products of every other kind are exact. The order \
              of summation is the target's choice.",
        example: "%i = range 0 256 %j = reshape %i [16, 16] %a = load %x, %j %z = const 0.0 : tile<16x16xf32>
            %r = dot %a, %a, %z precision ieee store %y, %j, %r"
    }
    Load "load" Memory {
        syntax: "%r = load %ptr, %offsets[, mask %m][, other %o][, hint streaming|keep|ahead]",
        operands: "a pointer, offsets in elements (i32 or i64), a mask and fallback values of the offsets' shape",
        results: "a tile of the offsets' shape",
        doc: "Reads elements. A masked-off element reads nothing and is the fallback value, or 0 without one.",
        example: "%i = range 0 8 %r = load %x, %i, hint streaming store %y, %i, %r"
    }
    Store "store" Memory {
        syntax: "store %ptr, %offsets, %a[, mask %m][, hint streaming|keep]",
        operands: "a pointer, offsets in elements (i32 or i64), values and a mask of the offsets' shape",
        results: "none",
        doc: "Writes elements. Where one store has an element at several positions of its tile, or at other positions in other \
              iterations of a loop, it is not defined which of the values is left.",
        example: "%i = range 0 8 store %p, %i, %i"
    }
    Atomic "atomic" Memory {
        syntax: "%r = atomic FUNCTION %ptr, %offsets, %a [mask %m] [order O] [scope S]",
        operands: "a pointer, offsets, values, and a mask of the offsets' shape", results: "the values' type",
        doc: "Changes elements of memory, each at once, by `add`, `max`, `min`, `and`, `or`, `xor` or `exchange`, and \
              gives what they were (0 where masked off). `O` is `relaxed`, `acquire`, `release` or `acq_rel`, which \
              it is by itself; `S` is `block`, `device`, which it is by itself, or `system`.",
        example: "%i = range 0 8 %z = const 0 : tile<8xi32> %r = atomic add %p, %z, %i order relaxed"
    }
    AtomicCas "atomic_cas" Memory {
        syntax: "%r = atomic_cas %ptr, %offsets, %expected, %a [order O] [scope S]",
        operands: "a pointer, offsets, expected values and new values", results: "the values' type",
        doc: "Writes an element where it has the expected value, bit by bit, and gives what it was. Kinds of 32 and \
              64 bits.",
        example: "%i = range 0 8 %z = const 0 : tile<8xi32> %r = atomic_cas %p, %i, %z, %i"
    }
    Philox "philox" Random {
        syntax: "%r, %s, %t, %u = philox %seed, %offsets rounds N",
        operands: "a seed (u64) and offsets (integers of 32 or 64 bits)", results: "four tiles of u32",
        doc: "The words that the Philox 4x32 generator gives for the seed as key and the offset as counter \
              (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011). 10 rounds are usual.",
        example: "%seed = const 7 : u64 %i = range 0 8 %r, %s, %t, %u = philox %seed, %i rounds 10
            %v = bitcast %r i32 store %p, %i, %v"
    }
    If "if" Control {
        syntax: "[%r, ... =] if %c { ... yield %a, ... } [else { ... yield %b, ... }]",
        operands: "a boolean scalar", results: "what the regions yield, of the same types",
        doc: "Runs one of two regions. Without results, `else` may be left out.",
        example: "%z = const 4 : i32 %c = map lt %n, %z
            %r = if %c { yield %n } else { %m = map sub %n, %z yield %m }
            %i = const 0 : i32 store %p, %i, %r"
    }
    While "while" Control {
        syntax: "[%r, ... =] while (%a = %init, ...) { ... yield %c } do (%b, ...) { ... yield %next, ... }",
        operands: "initial values", results: "the values when the condition is false",
        doc: "A loop that carries values: the first region yields a boolean scalar; while that is true, the second \
              yields the next values.",
        example: "%one = const 1 : i32 %z = const 0 : i32
            %r = while (%a = %n) { %c = map gt %a, %one yield %c } do (%b) { %h = map shr %b, %one yield %h }
            store %p, %z, %r"
    }
    For "for" Control {
        syntax: "[%r, ... =] for %i in %lo..%hi step %s [with (%a = %init, ...)] { ... yield %next, ... }",
        operands: "bounds and step (i32, step above 0), initial values", results: "the values after the last iteration",
        doc: "A counted loop that carries values.",
        example: "%z = const 0 : i32 %one = const 1 : i32
            %r = for %i in %z..%n step %one with (%a = %z) { %b = map add %a, %i yield %b }
            store %p, %z, %r"
    }
    Yield "yield" Control {
        syntax: "yield [%a, ...]", operands: "what the region hands out", results: "none",
        doc: "Ends a region.",
        example: "%z = const 0 : i32 %one = const 1 : i32 for %i in %z..%n step %one { store %p, %i, %i yield }"
    }
    Assume "assume" Hint {
        syntax: "%r = assume multiple_of %a N | contiguous %a N | between %a L H", operands: "integers",
        results: "the same",
        doc: "A promise, on which targets may rely and which the interpreter checks: the first element of each row \
              along the last axis is a multiple of `N`; each aligned group of `N` elements along the last axis \
              counts up by one; every element lies from `L` to `H`.",
        example: "%i = range 0 8 %r = assume contiguous %i 8 store %p, %r, %i"
    }
    Print "print" Debug {
        syntax: "print \"PREFIX\" [%a, ...] [hex]", operands: "any", results: "none",
        doc: "Prints a line for each element: `pid (x, y, z) idx (i, j) PREFIX: value`.",
        example: "%i = range 0 2 print \"offset\" %i hex store %p, %i, %i"
    }
    Assert "assert" Debug {
        syntax: "assert %c \"MESSAGE\" [mask %m]", operands: "booleans, and a mask of their shape", results: "none",
        doc: "Ends the launch with an error where an element is false.",
        example: "%i = range 0 2 %c = map ge %i, %i assert %c \"a message\" store %p, %i, %i"
    }
}

#[cfg(test)]
mod tests;
