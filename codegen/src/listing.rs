//! Generated code for people to read: LLVM IR and assembly or PTX, line by line, each with the operation that it is of.
//!
//! The way is that of debuggers. A [`Loc`] of a block program is a line of a file that does not exist, LLVM's passes and code
//! generators carry it along (`!dbg`, `.loc`), and it is read off what they print.

use std::collections::BTreeSet;
use std::fmt::Write;

use rustc_hash::FxHashMap;
use tilefuse_block::Loc;

/// The code of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// LLVM IR behind LLVM's passes: the body of the kernel.
    pub llvm: Vec<Line>,
    /// Assembly or PTX: the body of the kernel.
    pub code: Vec<Line>,
}

/// A line of generated code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it says.
    pub text: String,
    /// The number of the [`Loc`] that it comes from; none of what is of no operation alone.
    pub loc: Option<u32>,
}

/// The line of a location; 0 is of no operation.
pub(crate) fn line_of(loc: Loc) -> u32 {
    loc.number().map_or(0, |number| number.saturating_add(1))
}

/// The location of a line.
pub(crate) fn loc_of(line: u32) -> Loc {
    line.checked_sub(1).map_or(Loc::UNKNOWN, Loc::new)
}

/// Names of the file and the producer in debug information, which nobody sees.
pub(crate) const FILE: &str = "program";

/// The first of the metadata nodes that the functions here number; those of modules are before it.
const FIRST: u32 = 10;

/// The metadata node of a line.
pub(crate) fn node_of(line: u32) -> u64 {
    u64::from(line) + 20
}

/// What a function says of itself, and the metadata that the lines which its instructions name need.
pub(crate) fn metadata(lines: &BTreeSet<u32>) -> (String, String) {
    let [unit, flags, file, function] = [0, 1, 2, 3].map(|at| FIRST + at);
    let mut text = format!(
        "!llvm.dbg.cu = !{{!{unit}}}\n!llvm.module.flags = !{{!{flags}}}\n\
         !{unit} = distinct !DICompileUnit(language: DW_LANG_C, file: !{file}, isOptimized: true, emissionKind: DebugDirectivesOnly)\n\
         !{flags} = !{{i32 2, !\"Debug Info Version\", i32 3}}\n\
         !{file} = !DIFile(filename: \"{FILE}\", directory: \"\")\n\
         !{function} = distinct !DISubprogram(name: \"{FILE}\", file: !{file}, unit: !{unit}, spFlags: DISPFlagDefinition)\n"
    );
    for &line in lines {
        let node = node_of(line);
        // Writing to a string does not fail.
        let _ = writeln!(text, "!{node} = !DILocation(line: {line}, scope: !{function})");
    }
    (format!(" !dbg !{function}"), text)
}

impl Listing {
    /// The listing of what LLVM prints.
    pub(crate) fn new(ir: &str, code: &str) -> Listing {
        Listing { llvm: of_ir(ir), code: of_code(code) }
    }
}

/// The body of the first function of a module, with what its `!dbg` say.
fn of_ir(ir: &str) -> Vec<Line> {
    let locations: FxHashMap<&str, u32> = ir.lines().filter_map(location).collect();
    let body = ir.lines().skip_while(|line| !line.starts_with("define ")).skip(1);
    let line = |line: &str| {
        let (text, node) = line.split_once(", !dbg ").map_or((line, None), |(text, node)| (text, Some(node)));
        // Further metadata may follow.
        let node = node.map(|node| node.split([',', ' ']).next().unwrap_or(node));
        let number = node.and_then(|node| locations.get(node)).copied().unwrap_or(0);
        Line { text: text.trim_end().to_owned(), loc: loc_of(number).number() }
    };
    body.take_while(|line| *line != "}").filter(|line| !line.trim().is_empty()).map(line).collect()
}

/// The line that a metadata node is, where it is a location.
fn location(text: &str) -> Option<(&str, u32)> {
    let (name, rest) = text.split_once(" = !DILocation(line: ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((name, rest.get(..end)?.parse().ok()?))
}

/// The instructions and labels of a kernel, with what its `.loc` say.
fn of_code(code: &str) -> Vec<Line> {
    let mut now = 0;
    let mut lines = Vec::new();
    for text in code.lines() {
        let word = text.trim_start();
        if let Some(rest) = word.strip_prefix(".loc") {
            now = rest.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
            continue;
        }
        if is_shown(word) {
            let text = shown(text);
            // A label stands before instructions of its own.
            let is_label = !text.starts_with(char::is_whitespace) && text.ends_with(':');
            let loc = if is_label { None } else { loc_of(now).number() };
            lines.push(Line { text, loc });
        }
    }
    lines
}

/// Whether a line of assembly is an instruction, a label that is jumped to or a declaration of registers, and no directive.
fn is_shown(word: &str) -> bool {
    let label = ["$L__tmp", ".Ltmp", "$L__func", ".Lfunc"];
    let label = label.iter().any(|start| word.starts_with(start));
    let is_block = word.starts_with(".LBB");
    let comment = word.starts_with('#') || word.starts_with("//");
    !word.is_empty() && !label && !comment && (is_block || !word.starts_with('.'))
}

/// The line without the assembler's comment.
fn shown(text: &str) -> String {
    let text = text.replace('\t', "  ");
    let end = [" # ", " // "].iter().filter_map(|mark| text.find(mark)).min();
    text[..end.unwrap_or(text.len())].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use tilefuse_block::random::random_case;
    use tilefuse_block::{Loc, OpKind, Program, parse_valid};

    use super::{Line, Listing};
    use crate::host::{HostKernel, HostOptions};
    use crate::ptx::{self, PtxOptions, Target};

    /// Functions are of operator 1, loads and stores of operator 2, all else of none.
    fn program() -> Program {
        let text = "kernel @f(%x: ptr<f32> align(16) len(4096), %y: ptr<f32> align(16) len(4096)) warps(4) {
          %0 = program_id 0
          %1 = const 128 : i32
          %2 = map mul %0, %1
          %3 = range 0 128
          %4 = splat %2 [128]
          %5 = map add %4, %3
          %6 = load %x, %5
          %7 = map exp %6
          %8 = reduce sum %7 axis 0
          %9 = splat %8 [128]
          %10 = map div %7, %9
          store %y, %5, %10
        }";
        let mut program = parse_valid(text).unwrap();
        for (at, op) in program.body.ops.iter_mut().enumerate() {
            op.loc = match op.kind {
                OpKind::Map(_) | OpKind::Reduce { .. } if at > 6 => Loc::new(1),
                OpKind::Load { .. } | OpKind::Store { .. } => Loc::new(2),
                _ => Loc::UNKNOWN,
            };
        }
        program
    }

    /// How many lines are of operator 1, and which instructions of 2 are not.
    fn check(listing: &Listing, accesses: [&str; 2]) {
        for lines in [&listing.llvm, &listing.code] {
            let of = |loc| lines.iter().filter(|line| line.loc == loc).count();
            assert!(of(Some(1)) > 4 && of(Some(2)) > 1 && of(None) > 1, "{lines:#?}");
        }
        for access in accesses {
            let mut found = listing.code.iter().filter(|line| line.text.contains(access)).peekable();
            assert!(found.peek().is_some() && found.all(|line| line.loc == Some(2)), "{:#?}", listing.code);
        }
    }

    #[test]
    fn operators_are_followed_to_ptx() {
        for target in [Target::Sm80, Target::Sm90a] {
            let listing = ptx::listing(&program(), target, &PtxOptions::default()).unwrap();
            check(&listing, ["ld.global", "st.global"]);
            assert!(listing.llvm.iter().chain(&listing.code).all(|line| !line.text.contains("dbg")));
        }
    }

    #[test]
    fn operators_are_followed_to_assembly() {
        let listing = HostKernel::listing(&program(), &HostOptions::default()).unwrap();
        let of = |loc| listing.code.iter().filter(|line| line.loc == loc).count();
        assert!(of(Some(1)) > 20 && of(Some(2)) > 1 && of(None) > 1, "{:#?}", listing.code);
    }

    /// The instructions of PTX without labels, whose numbers count what debug information adds.
    fn instructions<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.filter(|line| line.ends_with(';') && !line.starts_with('.')).collect()
    }

    /// The instructions are those that are run, and every program has a listing that has code.
    #[test]
    fn locations_change_no_instruction() {
        let options = PtxOptions::default();
        let located = |mut program: Program| {
            for (at, op) in program.body.ops.iter_mut().enumerate() {
                op.loc = Loc::new(at as u32);
            }
            program
        };
        let random = (0..40).map(|seed| located(random_case(seed).program));
        for (at, program) in std::iter::once(program()).chain(random).enumerate() {
            for target in [Target::Sm80, Target::Sm90a] {
                let (Ok(plain), Ok(listing)) =
                    (ptx::compile_ptx(&program, target, &options), ptx::listing(&program, target, &options))
                else {
                    assert!(
                        ptx::compile_ptx(&program, target, &options).is_err(),
                        "{at}: no listing\n{program}"
                    );
                    continue;
                };
                let listed = instructions(listing.code.iter().map(|line| line.text.as_str()));
                assert_eq!(listed, instructions(plain.text.lines()), "{at}\n{program}");
            }
            let compiles = HostKernel::compile(&program, &HostOptions::default()).is_ok();
            let listing = HostKernel::listing(&program, &HostOptions::default());
            assert_eq!(listing.is_ok_and(|listing| !listing.code.is_empty()), compiles, "{at}\n{program}");
        }
    }

    #[test]
    fn lines_have_the_operation_that_they_are_of() {
        let ir = "source_filename = \"x\"\n\ndefine void @k(ptr %0) #0 !dbg !4 {\n  %2 = load float, ptr %0, align 4, !dbg !7\n\
                  \n1:\n  ret void, !dbg !8\n}\n\n!7 = !DILocation(line: 3, scope: !4)\n!8 = !DILocation(line: 0, scope: !4)\n";
        let code = "\t.text\nk:\n.Lfunc_begin0:\n\t.loc\t1 3 0 prologue_end\n\tvmovss\t(%rdi), %xmm0  # spill\n\
                    .LBB0_1:                  # loop\n\t.loc\t1 0 0\n\tretq\n";
        let line = |text: &str, loc| Line { text: text.to_owned(), loc };
        let found = Listing::new(ir, code);
        assert_eq!(
            found.llvm,
            [line("  %2 = load float, ptr %0, align 4", Some(2)), line("1:", None), line("  ret void", None)]
        );
        let code = [
            line("k:", None),
            line("  vmovss  (%rdi), %xmm0", Some(2)),
            line(".LBB0_1:", None),
            line("  retq", None),
        ];
        assert_eq!(found.code, code);
    }
}
