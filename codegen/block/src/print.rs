//! The text form, printed. `parse` reads it back.
//!
//! Values are printed under their names, made unique where a name is taken; values without a name are numbered in
//! the order of their definitions. Floats have the fewest digits that read back as the same value; a NaN's payload
//! is not printed.

use std::fmt::{self, Write as _};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::program::{
    Assumption, CacheHint, DotPrecision, MemoryOrder, MemoryScope, Op, OpKind, Program, Region, Value,
};
use crate::types::{Elem, Kind, Literal};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printer = Printer::new(self);
        printer.program().map_err(|_| fmt::Error)?;
        f.write_str(&printer.out)
    }
}

/// One operation as text, without the contents of its regions.
pub(crate) fn op_text(program: &Program, op: &Op) -> String {
    let mut printer = Printer::new(program);
    match printer.op_head(op) {
        Ok(()) => printer.out,
        Err(fmt::Error) => op.kind.name().to_owned(),
    }
}

/// The name of a value in the text form, without the `%`.
pub(crate) fn value_name(program: &Program, value: Value) -> String {
    Names::new(program).names.into_iter().nth(value.index()).flatten().unwrap_or_default()
}

/// The names of all values, without the `%`; empty where nothing defines a value.
pub(crate) fn value_names(program: &Program) -> Vec<String> {
    Names::new(program).names.into_iter().map(Option::unwrap_or_default).collect()
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.elem {
            Elem::Bool => write!(f, "{}", self.bits != 0),
            Elem::U64 => write!(f, "{}", self.bits),
            Elem::F8E4M3 | Elem::F8E5M2 | Elem::F16 | Elem::Bf16 | Elem::F32 => {
                write!(f, "{}", float_text(self.as_f64() as f32))
            }
            Elem::F64 => write!(f, "{}", float_text(self.as_f64())),
            _ => write!(f, "{}", self.bits as i64),
        }
    }
}

fn float_text<T: fmt::Debug>(x: T) -> String {
    let text = format!("{x:?}");
    if text == "NaN" { "nan".to_owned() } else { text }
}

/// Spellings of the variants of an attribute.
macro_rules! names {
    ($($ty:ident { $($variant:ident $name:literal;)* })*) => { $(
        impl $ty {
            /// The spelling in text forms.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$variant => $name,)* }
            }

            /// What is spelled `name`.
            pub fn from_name(name: &str) -> Option<$ty> {
                match name { $($name => Some($ty::$variant),)* _ => None }
            }
        }
    )* };
}

names! {
    MemoryOrder { Relaxed "relaxed"; Acquire "acquire"; Release "release"; AcqRel "acq_rel"; }
    MemoryScope { Block "block"; Device "device"; System "system"; }
    DotPrecision { Tf32 "tf32"; Tf32x3 "tf32x3"; Ieee "ieee"; }
}

impl Assumption {
    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Assumption::MultipleOf(_) => "multiple_of",
            Assumption::Contiguous(_) => "contiguous",
            Assumption::Between(..) => "between",
        }
    }
}

impl CacheHint {
    /// The spelling in text forms; [`CacheHint::Default`] is not written.
    pub const fn name(self) -> &'static str {
        match self {
            CacheHint::Default => "default",
            CacheHint::Streaming => "streaming",
            CacheHint::Keep => "keep",
            CacheHint::Ahead => "ahead",
        }
    }

    /// The hint that is spelled `name`.
    pub fn from_name(name: &str) -> Option<CacheHint> {
        use CacheHint::*;
        [Default, Streaming, Keep, Ahead].into_iter().find(|h| h.name() == name)
    }
}

/// Whether a text is a name: a letter or `_`, then letters, digits and `_`; ASCII only.
pub(crate) fn is_name(text: &str) -> bool {
    let first = text.as_bytes().first();
    first.is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_') && text.bytes().all(is_name_byte)
}

pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The unique name of each value.
struct Names {
    names: Vec<Option<String>>,
    taken: FxHashSet<String>,
    /// For each name that several values want, the last number that was appended to it.
    suffix: FxHashMap<String, usize>,
    unnamed: usize,
}

impl Names {
    fn new(program: &Program) -> Names {
        let mut names = Names {
            names: vec![None; program.values.len()],
            taken: FxHashSet::default(),
            suffix: FxHashMap::default(),
            unnamed: 0,
        };
        program.params.iter().for_each(|p| names.define(program, p.value));
        names.region(program, &program.body);
        names
    }

    fn region(&mut self, program: &Program, region: &Region) {
        region.args.iter().for_each(|&v| self.define(program, v));
        for op in &region.ops {
            op.results.iter().for_each(|&v| self.define(program, v));
            op.regions.iter().for_each(|r| self.region(program, r));
        }
    }

    fn define(&mut self, program: &Program, value: Value) {
        let wanted = program.values.get(value.index()).and_then(|v| v.name.as_deref()).map(sanitised);
        let name = match wanted.filter(|n| !n.is_empty()) {
            Some(wanted) => self.unique(wanted),
            None => {
                self.unnamed += 1;
                (self.unnamed - 1).to_string()
            }
        };
        if let Some(slot) = self.names.get_mut(value.index()) {
            *slot = Some(name);
        }
    }

    fn unique(&mut self, wanted: String) -> String {
        if self.taken.insert(wanted.clone()) {
            return wanted;
        }
        let suffix = self.suffix.entry(wanted.clone()).or_default();
        loop {
            *suffix += 1;
            let name = format!("{wanted}_{suffix}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The name with `_` in place of what a name may not hold.
fn sanitised(name: &str) -> String {
    let mut out: String = name.bytes().map(|c| if is_name_byte(c) { char::from(c) } else { '_' }).collect();
    if !out.is_empty() && !is_name(&out) {
        out.insert(0, '_');
    }
    out
}

/// A function from operations to the notes about them.
pub(crate) type Notes<'a> = &'a dyn Fn(&Op) -> Vec<String>;

pub(crate) struct Printer<'a> {
    program: &'a Program,
    names: Names,
    notes: Option<Notes<'a>>,
    /// The notes so far, each operation's with the end of its line in `out`.
    noted: Vec<(usize, Vec<String>)>,
    out: String,
}

impl<'a> Printer<'a> {
    fn new(program: &'a Program) -> Printer<'a> {
        Printer { program, names: Names::new(program), notes: None, noted: Vec::new(), out: String::new() }
    }

    /// The program's text, and the notes about each operation with the end of its first line.
    pub(crate) fn noted(program: &'a Program, notes: Notes<'a>) -> (String, Vec<(usize, Vec<String>)>) {
        let mut printer = Printer { notes: Some(notes), ..Printer::new(program) };
        // Strings take all that is written to them.
        let _ = printer.program();
        (printer.out, printer.noted)
    }

    /// Notes what there is to say about an operation at the end of the line so far.
    fn note(&mut self, op: &Op) {
        let notes = self.notes.map_or_else(Vec::new, |notes| notes(op));
        if !notes.is_empty() {
            self.noted.push((self.out.len(), notes));
        }
    }

    fn program(&mut self) -> fmt::Result {
        let program = self.program;
        write!(self.out, "kernel @{}(", sanitised(&program.name))?;
        for (index, param) in program.params.iter().enumerate() {
            self.comma(index)?;
            self.value(param.value)?;
            let Some(data) = program.values.get(param.value.index()) else { continue };
            write!(self.out, ": {}", data.ty)?;
            if let Kind::Ptr(_) = data.ty.kind {
                write!(self.out, " align({})", param.align)?;
                if let Some(len) = param.len {
                    write!(self.out, " len({len})")?;
                }
            }
        }
        write!(self.out, ") warps({})", program.warps)?;
        if let Some(stages) = program.stages {
            write!(self.out, " stages({stages})")?;
        }
        if program.early {
            self.out.push_str(" early");
        }
        self.out.push_str(" {\n");
        self.ops(&program.body, 1)?;
        self.out.push_str("}\n");
        Ok(())
    }

    fn ops(&mut self, region: &Region, depth: usize) -> fmt::Result {
        for op in &region.ops {
            self.indent(depth);
            self.op_head(op)?;
            for (index, inner) in op.regions.iter().enumerate() {
                if index > 0 && is_absent(op, inner) {
                    break;
                }
                self.region_head(op, index, inner)?;
                self.out.push_str(" {");
                if index == 0 {
                    self.note(op);
                }
                self.out.push('\n');
                self.ops(inner, depth + 1)?;
                self.indent(depth);
                self.out.push('}');
            }
            if op.regions.is_empty() {
                self.note(op);
            }
            self.out.push('\n');
        }
        Ok(())
    }

    fn indent(&mut self, depth: usize) {
        self.out.extend(std::iter::repeat_n("  ", depth));
    }

    fn comma(&mut self, index: usize) -> fmt::Result {
        self.out.write_str(if index == 0 { "" } else { ", " })
    }

    fn value(&mut self, value: Value) -> fmt::Result {
        match self.names.names.get(value.index()).and_then(Option::as_ref) {
            Some(name) => write!(self.out, "%{name}"),
            None => write!(self.out, "%?{}", value.0),
        }
    }

    fn values(&mut self, values: &[Value]) -> fmt::Result {
        for (index, &value) in values.iter().enumerate() {
            self.comma(index)?;
            self.value(value)?;
        }
        Ok(())
    }

    fn op_head(&mut self, op: &Op) -> fmt::Result {
        if !op.results.is_empty() {
            self.values(&op.results)?;
            self.out.push_str(" = ");
        }
        self.out.push_str(op.kind.name());
        match (&op.kind, op.regions.first()) {
            (OpKind::For, Some(region)) if op.args.len() >= 3 => self.for_head(op, region),
            (OpKind::While, Some(region)) => {
                self.out.push_str(" (");
                self.carried(&region.args, &op.args)?;
                self.out.push(')');
                Ok(())
            }
            _ => self.simple(op),
        }
    }

    /// What stands between an operation, or the region before, and the region at a position.
    fn region_head(&mut self, op: &Op, index: usize, region: &Region) -> fmt::Result {
        match (&op.kind, index) {
            (OpKind::If, 1) => self.out.push_str(" else"),
            (OpKind::While, 1) => {
                self.out.push_str(" do");
                return self.arguments(region);
            }
            (OpKind::ReduceWith { .. } | OpKind::Scan { .. }, _) => return self.arguments(region),
            _ => {}
        }
        Ok(())
    }

    fn arguments(&mut self, region: &Region) -> fmt::Result {
        self.out.push_str(" (");
        self.values(&region.args)?;
        self.out.push(')');
        Ok(())
    }

    /// `%a = %init, ...`
    fn carried(&mut self, args: &[Value], init: &[Value]) -> fmt::Result {
        for (index, (&arg, &init)) in args.iter().zip(init).enumerate() {
            self.comma(index)?;
            self.value(arg)?;
            self.out.push_str(" = ");
            self.value(init)?;
        }
        Ok(())
    }

    fn simple(&mut self, op: &Op) -> fmt::Result {
        match &op.kind {
            OpKind::Const(literal) => return self.constant(op, literal),
            OpKind::ProgramId(axis) | OpKind::NumPrograms(axis) => write!(self.out, " {axis}")?,
            OpKind::Range { start, len } => write!(self.out, " {start} {len}")?,
            OpKind::Map(function) => write!(self.out, " {}", function.name())?,
            OpKind::Reduce { combine, .. } => write!(self.out, " {}", combine.name())?,
            OpKind::Atomic { function, .. } => write!(self.out, " {}", function.name())?,
            OpKind::Assume(assumption) => write!(self.out, " {}", assumption.name())?,
            OpKind::Print { prefix, .. } => self.string(prefix),
            OpKind::Load { masked, other, hint } => return self.memory(op, 2, *masked, *other, *hint),
            OpKind::Store { masked, hint } => return self.memory(op, 3, *masked, false, *hint),
            _ => {}
        }
        let masked = match op.kind {
            OpKind::Reduce { masked, .. }
            | OpKind::Histogram { masked, .. }
            | OpKind::Atomic { masked, .. }
            | OpKind::Assert { masked, .. } => masked,
            _ => false,
        };
        let (plain, mask) = op.args.split_at(op.args.len() - usize::from(masked && !op.args.is_empty()));
        self.out.push_str(if plain.is_empty() { "" } else { " " });
        self.values(plain)?;
        self.attributes(&op.kind)?;
        self.out.push_str(if mask.is_empty() { "" } else { " mask " });
        self.values(mask)?;
        match &op.kind {
            OpKind::Atomic { order, scope, .. } | OpKind::AtomicCas { order, scope } => {
                self.order(*order, *scope)
            }
            _ => Ok(()),
        }
    }

    /// What stands between operands and mask.
    fn attributes(&mut self, kind: &OpKind) -> fmt::Result {
        match kind {
            OpKind::Splat(shape) | OpKind::Broadcast(shape) | OpKind::Reshape(shape) => {
                write!(self.out, " {:?}", shape.as_slice())
            }
            OpKind::Permute(perm) => write!(self.out, " {perm:?}"),
            OpKind::ExpandDims(axis)
            | OpKind::Gather { axis }
            | OpKind::Reduce { axis, .. }
            | OpKind::ReduceWith { axis } => write!(self.out, " axis {axis}"),
            OpKind::Scan { axis, reverse } => {
                write!(self.out, " axis {axis}{}", if *reverse { " reverse" } else { "" })
            }
            OpKind::Cast(elem) | OpKind::Bitcast(elem) => write!(self.out, " {elem}"),
            OpKind::Histogram { bins, .. } => write!(self.out, " bins {bins}"),
            OpKind::Dot { precision } if *precision != DotPrecision::default() => {
                write!(self.out, " precision {}", precision.name())
            }
            OpKind::Philox { rounds } => write!(self.out, " rounds {rounds}"),
            OpKind::Assume(Assumption::MultipleOf(n) | Assumption::Contiguous(n)) => write!(self.out, " {n}"),
            OpKind::Assume(Assumption::Between(low, high)) => write!(self.out, " {low} {high}"),
            OpKind::Print { hex: true, .. } => self.out.write_str(" hex"),
            OpKind::Assert { message, .. } => {
                self.string(message);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// ` "text"`, with `\"`, `\\`, `\n` and `\t`.
    fn string(&mut self, text: &str) {
        self.out.push_str(" \"");
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\t' => self.out.push_str("\\t"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn order(&mut self, order: MemoryOrder, scope: MemoryScope) -> fmt::Result {
        if order != MemoryOrder::default() {
            write!(self.out, " order {}", order.name())?;
        }
        if scope != MemoryScope::default() {
            write!(self.out, " scope {}", scope.name())?;
        }
        Ok(())
    }

    fn constant(&mut self, op: &Op, literal: &Literal) -> fmt::Result {
        write!(self.out, " {literal}")?;
        match op.results.first().and_then(|r| self.program.values.get(r.index())) {
            Some(data) => write!(self.out, " : {}", data.ty),
            None => Ok(()),
        }
    }

    fn memory(&mut self, op: &Op, plain: usize, masked: bool, other: bool, hint: CacheHint) -> fmt::Result {
        for (index, &value) in op.args.iter().enumerate() {
            self.out.push_str(if index == 0 { " " } else { ", " });
            match (index.checked_sub(plain), masked, other) {
                (Some(0), true, _) => self.out.push_str("mask "),
                (Some(0), false, true) | (Some(1), true, true) => self.out.push_str("other "),
                _ => {}
            }
            self.value(value)?;
        }
        if hint == CacheHint::Default { Ok(()) } else { write!(self.out, ", hint {}", hint.name()) }
    }

    fn for_head(&mut self, op: &Op, region: &Region) -> fmt::Result {
        let (bounds, init) = op.args.split_at(3);
        self.out.push(' ');
        self.values(&region.args[..region.args.len().min(1)])?;
        for (word, &bound) in [" in ", "..", " step "].into_iter().zip(bounds) {
            self.out.push_str(word);
            self.value(bound)?;
        }
        if init.is_empty() {
            return Ok(());
        }
        self.out.push_str(" with (");
        self.carried(region.args.get(1..).unwrap_or_default(), init)?;
        self.out.push(')');
        Ok(())
    }
}

/// Whether the second region of an operation needs no text: that of an `if` that does nothing.
fn is_absent(op: &Op, region: &Region) -> bool {
    op.kind == OpKind::If && op.results.is_empty() && region.ops.len() == 1
}
