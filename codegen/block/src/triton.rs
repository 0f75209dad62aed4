//! Triton's language reference beside ours.

/// What stands here for an operation of Triton's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counterpart {
    /// An operation, and how it differs.
    Operation(&'static str, &'static str),
    /// A scalar function, and how it differs.
    Function(&'static str, &'static str),
    /// A function in Rust over tiles, and how it differs.
    Composed(&'static str, &'static str),
    /// Rust itself.
    Rust(&'static str),
    /// Nothing, for this reason.
    LeftOut(&'static str),
}

use Counterpart::{Composed, Function, LeftOut, Operation, Rust};

/// Every operation of Triton's language reference, in its order.
pub(crate) const TRITON: &[(&str, Counterpart)] = &[
    // Programming model
    ("tensor", Rust("`Tile<T>`: the kind is a Rust type")),
    ("tensor_descriptor", Rust("`Descriptor<T>`")),
    ("program_id", Operation("program_id", "")),
    ("num_programs", Operation("num_programs", "")),
    // Creation
    ("arange", Operation("range", "start and length instead of start and end")),
    ("cat", Composed("cat", "keeps the order")),
    ("full", Composed("full", "")),
    ("zeros", Composed("zeros", "")),
    ("zeros_like", Composed("zeros_like", "")),
    ("cast", Operation("cast", "rounds to nearest even; `bitcast=True` is `bitcast`")),
    // Shape
    ("broadcast", Operation("broadcast", "operators bring operands to one shape by themselves")),
    ("broadcast_to", Operation("broadcast", "")),
    ("expand_dims", Operation("expand_dims", "")),
    ("interleave", Composed("interleave", "")),
    ("join", Operation("join", "")),
    ("permute", Operation("permute", "")),
    ("ravel", Composed("ravel", "")),
    ("reshape", Operation("reshape", "keeps the order")),
    ("split", Operation("split", "")),
    ("trans", Composed("trans", "")),
    ("view", Operation("reshape", "")),
    // Linear algebra
    ("dot", Operation("dot", "`input_precision` is `precision`; the accumulator is an operand")),
    (
        "dot_scaled",
        LeftOut("block scales need a matrix unit of sm_100; `dot` of scaled f16 gives the same numbers"),
    ),
    // Memory
    ("load", Operation("load", "`cache_modifier` and `eviction_policy` are `hint`")),
    ("store", Operation("store", "")),
    ("make_tensor_descriptor", Composed("make_descriptor", "")),
    ("load_tensor_descriptor", Composed("load", "method of a descriptor")),
    ("store_tensor_descriptor", Composed("store", "method of a descriptor")),
    ("make_block_ptr", Composed("make_descriptor", "a descriptor and offsets")),
    ("advance", Rust("offsets of a descriptor are added to")),
    // Indexing
    ("flip", Composed("flip", "")),
    ("where", Function("select", "")),
    ("swizzle2d", Composed("swizzle2d", "")),
    // Math
    ("abs", Function("abs", "")),
    ("cdiv", Composed("cdiv", "")),
    ("ceil", Function("ceil", "")),
    ("clamp", Composed("clamp", "NaN stays NaN")),
    ("cos", Function("cos", "")),
    ("div_rn", Function("div", "always correctly rounded")),
    ("erf", Function("erf", "")),
    ("exp", Function("exp", "")),
    ("exp2", Function("exp2", "")),
    ("fdiv", Function("div", "always correctly rounded")),
    ("floor", Function("floor", "")),
    ("fma", Function("fma", "")),
    ("log", Function("log", "")),
    ("log2", Function("log2", "")),
    ("maximum", Function("max", "NaN propagates; `fmax` takes the other operand")),
    ("minimum", Function("min", "NaN propagates; `fmin` takes the other operand")),
    ("rsqrt", Function("rsqrt", "")),
    ("sigmoid", Function("sigmoid", "")),
    ("sin", Function("sin", "")),
    ("softmax", Composed("softmax", "")),
    ("sqrt", Function("sqrt", "always correctly rounded")),
    ("sqrt_rn", Function("sqrt", "")),
    ("umulhi", Function("mul_hi", "of any integers")),
    // Reduction
    ("argmax", Composed("argmax", "the lowest index of equals")),
    ("argmin", Composed("argmin", "the lowest index of equals")),
    ("max", Operation("reduce", "`max`; with indices: `max_with_indices`")),
    ("min", Operation("reduce", "`min`; with indices: `min_with_indices`")),
    ("reduce", Operation("reduce_with", "")),
    ("sum", Operation("reduce", "`sum`")),
    ("xor_sum", Operation("reduce", "`xor`")),
    // Scan and sort
    ("associative_scan", Operation("scan", "")),
    ("cumprod", Composed("cumprod", "")),
    ("cumsum", Composed("cumsum", "")),
    ("histogram", Operation("histogram", "what is out of range counts nowhere")),
    ("sort", Composed("sort", "")),
    ("topk", Composed("topk", "")),
    ("gather", Operation("gather", "an index counts modulo the extent")),
    // Atomic
    ("atomic_add", Operation("atomic", "`add`")),
    ("atomic_and", Operation("atomic", "`and`")),
    ("atomic_cas", Operation("atomic_cas", "")),
    ("atomic_max", Operation("atomic", "`max`")),
    ("atomic_min", Operation("atomic", "`min`")),
    ("atomic_or", Operation("atomic", "`or`")),
    ("atomic_xchg", Operation("atomic", "`exchange`")),
    ("atomic_xor", Operation("atomic", "`xor`")),
    // Random
    ("randint4x", Operation("philox", "the same numbers")),
    ("randint", Composed("randint", "the same numbers")),
    ("rand", Composed("rand", "the same numbers")),
    ("randn", Composed("randn", "")),
    // Iterators
    ("range", Operation("for", "")),
    ("static_range", Rust("a loop over a range of Rust numbers")),
    // Inline assembly
    ("inline_asm_elementwise", LeftOut("a program runs on every target; assembly would run on one")),
    // Compiler hints
    ("assume", Operation("assume", "`between` for comparisons with constants")),
    ("debug_barrier", LeftOut("there are no threads in a program that a barrier could order")),
    ("max_constancy", LeftOut("equal neighbours are found by the analysis of values")),
    ("max_contiguous", Operation("assume", "`contiguous`")),
    ("multiple_of", Operation("assume", "`multiple_of`")),
    // Debugging
    ("static_print", Rust("`println!` while the program is made")),
    ("static_assert", Rust("`assert!` while the program is made")),
    ("device_print", Operation("print", "")),
    ("device_assert", Operation("assert", "")),
];
