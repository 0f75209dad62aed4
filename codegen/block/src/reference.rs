//! The reference page, made from the tables of operations and functions.

use std::fmt::Write as _;

use crate::program::AtomicFn;
use crate::scalar_fn::{ReduceFn, ScalarFn, TypeRule};
use crate::table::{Family, OPERATIONS};
use crate::triton::{Counterpart, TRITON};

/// `docs/reference.md`: every operation, function, combiner and kind, and Triton's language beside ours.
pub fn reference() -> String {
    let mut out = String::from(INTRODUCTION);
    for family in Family::ALL {
        let _ = writeln!(out, "\n## {}\n", family.title());
        for o in OPERATIONS.iter().filter(|o| o.family == family) {
            let example: Vec<&str> = o.example.lines().map(str::trim).collect();
            let _ = writeln!(out, "### `{}`\n\n```text\n{}\n```\n", o.name, o.syntax);
            let _ = writeln!(out, "{}\n\n- Operands: {}.\n- Results: {}.\n", o.doc, o.operands, o.results);
            let _ = writeln!(out, "```text\n{}\n```\n", example.join("\n"));
        }
    }
    functions(&mut out);
    combiners(&mut out);
    triton(&mut out);
    out
}

const INTRODUCTION: &str = "\
# Reference of the kernel language

This page is made from the tables in `codegen/block/src`; a test compares it with them
(`UPDATE_EXPECT=1 cargo test -p tilefuse-block reference` writes it).

A kernel is one instance of a grid of up to three axes. Its values are tiles of rank 0 (scalars) to 5 whose extents
are powers of two, with at most 2^20 elements. There are no threads in it, no shared memory and no barriers. The same
program runs in the interpreter, on the host and on GPUs. In Rust, kernels are written with `#[tilefuse::kernel]` or
`tilefuse::block::tiles`, over kinds that are known at run time with `tilefuse::block::dynamic`, operation by operation with
`tilefuse::block::Builder`, or as the text that is shown here.

## Kinds

| kind | bits | |
|---|---|---|
| `bool` | 8 in memory | 0 or 1 |
| `i8` `i16` `i32` `i64` | 8 to 64 | signed integers, which wrap |
| `u8` `u16` `u32` `u64` | 8 to 64 | unsigned integers, which wrap |
| `f8e4m3` `f8e5m2` | 8 | for storage and `dot`; no arithmetic |
| `f16` `bf16` | 16 | computed in `f32` and rounded once for each operation |
| `f32` `f64` | 32, 64 | |
| `ptr<KIND>` | 64 | a parameter; the first operand of loads, stores and atomic operations |

## Broadcasting and promotion

The text form converts nothing: operands of one operation have one shape, and kinds as its row says. Expressions in
Rust bring operands to one shape and kind first:

- Shapes: the shorter list of extents gets extents of 1 in front; an extent of 1 is repeated.
- Kinds, as in Triton: of two kinds of one sort (bool, integer, float) the wider one; of different sorts the one of
  the higher sort, floats above integers above bool; `f16` with `bf16` gives `f32`; of a signed and an unsigned
  integer of one width the unsigned one. A Rust number takes the kind of the tile beside it.
- `/` and `%` of integers round toward zero (`div_trunc`, `rem_trunc`); `div_floor` and `rem_floor` round down, as in
  Python and libtorch.
";

const fn kinds(rule: TypeRule) -> &'static str {
    match rule {
        TypeRule::Float => "floats",
        TypeRule::Int => "integers",
        TypeRule::Number => "integers and floats",
        TypeRule::Bits => "integers and bool",
        TypeRule::Compare => "any kind, to bool",
        TypeRule::FloatTest => "floats, to bool",
        TypeRule::Select => "bool and two of any kind",
    }
}

fn functions(out: &mut String) {
    out.push_str(
        "\n## Functions of `map`\n\nAccuracy is the largest error in units in the last place of `f32` over the whole \
         range; 0 is exact or correctly\nrounded. A function that is not *base* is expanded to base functions, the \
         same on every target.\n\n| function | operands | kinds | error | base | |\n|---|---|---|---|---|---|\n",
    );
    for f in ScalarFn::ALL {
        let base = if !f.is_math() { "yes" } else { "" };
        let row = [f.name(), kinds(f.rule()), base, f.doc()];
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} |",
            row[0],
            f.arity(),
            row[1],
            f.max_ulp(),
            row[2],
            row[3]
        );
    }
}

fn combiners(out: &mut String) {
    let names = |names: Vec<&str>| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    let reduce = names(ReduceFn::ALL.iter().map(|f| f.name()).collect());
    let atomic = names(AtomicFn::ALL.iter().map(|f| f.name()).collect());
    let _ =
        writeln!(out, "\n## Combiners and atomic functions\n\n- `reduce`: {reduce}.\n- `atomic`: {atomic}.");
}

fn triton(out: &mut String) {
    out.push_str(
        "\n## Triton's language, operation by operation\n\n`op` is an operation of this page, `map` a function of it; \
         `fn` is a function in Rust that is made of them.\n\n| Triton | here | |\n|---|---|---|\n",
    );
    for &(name, counterpart) in TRITON {
        let (here, note) = match counterpart {
            Counterpart::Operation(op, note) => (format!("op `{op}`"), note),
            Counterpart::Function(function, note) => (format!("map `{function}`"), note),
            Counterpart::Composed(function, note) => (format!("fn `{function}`"), note),
            Counterpart::Rust(what) => ("Rust".to_owned(), what),
            Counterpart::LeftOut(reason) => ("left out".to_owned(), reason),
        };
        let _ = writeln!(out, "| `{name}` | {here} | {note} |");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use expect_test::expect_file;

    use super::*;

    #[test]
    fn the_page_is_up_to_date() {
        expect_file!["../../../docs/reference.md"].assert_eq(&reference());
    }

    /// Every counterpart exists, and no more than five are left out, none of them essential.
    #[test]
    fn counterparts_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut sources = std::fs::read_to_string(folder.join("tiles.rs")).unwrap();
        for entry in std::fs::read_dir(folder.join("tiles")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "rs") {
                sources += &std::fs::read_to_string(path).unwrap();
            }
        }
        let mut missing = Vec::new();
        for &(name, counterpart) in TRITON {
            let found = match counterpart {
                Counterpart::Operation(op, _) => OPERATIONS.iter().any(|o| o.name == op),
                Counterpart::Function(function, _) => ScalarFn::from_name(function).is_some(),
                Counterpart::Composed(function, _) => {
                    let heads =
                        [format!("fn {function}("), format!("fn {function}<"), format!(" {function} ")];
                    heads.iter().any(|head| sources.contains(head))
                }
                Counterpart::Rust(what) | Counterpart::LeftOut(what) => !what.is_empty(),
            };
            if !found {
                missing.push(name);
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
        let left_out = TRITON.iter().filter(|(_, c)| matches!(c, Counterpart::LeftOut(_))).count();
        assert!(left_out <= 5, "{left_out}");
    }
}
