//! Text of LLVM IR, instruction by instruction.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::rc::Rc;

use rustc_hash::FxHashMap;
use tilefuse_block::{Elem, Literal, Loc};

use crate::listing;

/// An operand: a name or a constant.
pub(crate) type Val = Rc<str>;

/// A function body that grows, and what it needs declared.
#[derive(Default)]
pub(crate) struct Ir {
    /// Instructions that come before all others that depend on the thread.
    entry: String,
    /// Where they go.
    entry_at: usize,
    text: String,
    declarations: BTreeSet<String>,
    functions: BTreeSet<String>,
    constants: Vec<String>,
    next: u32,
    block: String,
    /// The line of what instructions come from, where code is written for a listing.
    line: Option<u32>,
    lines: BTreeSet<u32>,
    /// Which 16-bit floats are halves of which 32-bit integers; true for the high half.
    halves: FxHashMap<Val, (Val, bool)>,
}

impl Ir {
    /// Without a function; instructions have locations where it is for a listing.
    pub(crate) fn new(listing: bool) -> Ir {
        Ir { block: "entry".to_owned(), line: listing.then_some(0), ..Ir::default() }
    }

    /// Sets where instructions come from; returns what it was before.
    pub(crate) fn set_loc(&mut self, loc: Loc) -> Loc {
        let Some(line) = self.line else { return Loc::UNKNOWN };
        self.line = Some(listing::line_of(loc));
        listing::loc_of(line)
    }

    /// Appends an instruction that has a result.
    pub(crate) fn def(&mut self, instruction: impl Display) -> Val {
        let name = self.fresh();
        self.raw(format_args!("{name} = {instruction}"));
        name
    }

    /// Appends an instruction that has a result to the beginning of the function, or to where [`Ir::enter`] put that.
    pub(crate) fn entry_def(&mut self, instruction: impl Display) -> Val {
        let name = self.fresh();
        let _ = writeln!(self.entry, "  {name} = {instruction}");
        name
    }

    /// From here on the code is what [`Ir::entry_def`] precedes.
    pub(crate) fn enter(&mut self) {
        self.entry_at = self.text.len();
    }

    /// A place that [`Ir::insert`] can add instructions at.
    pub(crate) fn mark(&self) -> usize {
        self.text.len()
    }

    /// Adds instructions at a mark; marks taken before stay valid.
    pub(crate) fn insert(&mut self, mark: usize, instructions: &[String]) {
        let lines: String = instructions.iter().map(|line| format!("  {line}\n")).collect();
        self.text.insert_str(mark, &lines);
        if mark < self.entry_at {
            self.entry_at += lines.len();
        }
    }

    /// Appends an instruction without a result.
    pub(crate) fn raw(&mut self, instruction: impl Display) {
        // Writing to a string does not fail.
        let _ = match self.line {
            None => writeln!(self.text, "  {instruction}"),
            Some(line) => {
                self.lines.insert(line);
                writeln!(self.text, "  {instruction}, !dbg !{}", listing::node_of(line))
            }
        };
    }

    /// A name that no instruction has yet.
    pub(crate) fn fresh(&mut self) -> Val {
        self.next += 1;
        format!("%v{}", self.next).into()
    }

    /// Notes that a 16-bit float is a half of a 32-bit integer.
    pub(crate) fn note_half(&mut self, value: &Val, word: &Val, high: bool) {
        self.halves.insert(value.clone(), (word.clone(), high));
    }

    /// The 32-bit integer of which a 16-bit float is a half, and whether it is the high one.
    pub(crate) fn half_of(&self, value: &Val) -> Option<(Val, bool)> {
        self.halves.get(value).cloned()
    }

    /// A number that no label has yet.
    pub(crate) fn label(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Begins a block.
    pub(crate) fn begin(&mut self, label: &str) {
        let _ = writeln!(self.text, "{label}:");
        self.block = label.to_owned();
    }

    /// The label of the block that instructions go to.
    pub(crate) fn block(&self) -> &str {
        &self.block
    }

    /// Declares a function, given as `<result> @<name>(<types>)`.
    pub(crate) fn declare(&mut self, signature: &str) {
        self.declarations.insert(format!("declare {signature}"));
    }

    /// Adds a function of its own to the module, once.
    pub(crate) fn define(&mut self, function: String) {
        self.functions.insert(function);
    }

    /// The name of a constant in global memory, given by its type and value.
    pub(crate) fn constant(&mut self, value: &str) -> Val {
        let known = self.constants.iter().position(|c| c == value);
        let index = known.unwrap_or_else(|| {
            self.constants.push(value.to_owned());
            self.constants.len() - 1
        });
        format!("@tilefuse_constant{index}").into()
    }

    /// Calls an intrinsic on operands of one type, which is the result's.
    pub(crate) fn intrinsic(&mut self, name: &str, ty: &str, args: &[&Val]) -> Val {
        let types = vec![ty; args.len()].join(", ");
        self.declare(&format!("{ty} @{name}({types})"));
        let args: Vec<String> = args.iter().map(|a| format!("{ty} {a}")).collect();
        self.def(format_args!("call {ty} @{name}({})", args.join(", ")))
    }

    /// The body, what belongs outside the function, and the lines that instructions name.
    pub(crate) fn finish(mut self) -> (String, String, BTreeSet<u32>) {
        let lines = self.declarations.iter().chain(&self.functions);
        let constants = self.constants.iter().enumerate();
        let constants = constants
            .map(|(i, c)| format!("@tilefuse_constant{i} = internal addrspace(1) constant {c}, align 1"));
        let outside: Vec<String> = lines.cloned().chain(constants).collect();
        self.text.insert_str(self.entry_at, &self.entry);
        (self.text, outside.join("\n"), self.lines)
    }
}

/// The type of an element in a register.
pub(crate) fn ty(elem: Elem) -> &'static str {
    match elem {
        Elem::Bool => "i1",
        Elem::I8 | Elem::U8 | Elem::F8E4M3 | Elem::F8E5M2 => "i8",
        Elem::I16 | Elem::U16 => "i16",
        Elem::I32 | Elem::U32 => "i32",
        Elem::I64 | Elem::U64 => "i64",
        Elem::F16 => "half",
        Elem::Bf16 => "bfloat",
        Elem::F32 => "float",
        Elem::F64 => "double",
    }
}

/// The type of an element in memory.
pub(crate) fn memory_ty(elem: Elem) -> &'static str {
    if elem == Elem::Bool { "i8" } else { ty(elem) }
}

/// A constant.
pub(crate) fn literal(value: Literal) -> Val {
    let float = value.as_f64();
    match value.elem {
        Elem::Bool => if value.bits == 0 { "false" } else { "true" }.into(),
        Elem::F16 => format!("0xH{:04X}", half::f16::from_f64(float).to_bits()).into(),
        Elem::Bf16 => format!("0xR{:04X}", half::bf16::from_f64(float).to_bits()).into(),
        // LLVM writes `float` constants with the bits of the double of the same value.
        Elem::F32 | Elem::F64 => format!("0x{:016X}", canonical(float).to_bits()).into(),
        Elem::U64 => value.bits.to_string().into(),
        _ => (value.bits as i64).to_string().into(),
    }
}

fn canonical(x: f64) -> f64 {
    if x.is_nan() { f64::NAN } else { x }
}
