//! The text form, read.
//!
//! ```text
//! program = "kernel" "@" name "(" [param {"," param}] ")" ["warps" "(" int ")"] ["stages" "(" int ")"] "{" {op} "}"
//! param   = value ":" type ["align" "(" int ")"] ["len" "(" int ")"]
//! op      = [value {"," value} "="] word operands
//! for     = "for" value "in" value ".." value "step" value ["with" "(" inits ")"] "{" {op} "}"
//! while   = "while" "(" [inits] ")" "{" {op} "}" "do" "(" [value {"," value}] ")" "{" {op} "}"
//! if      = "if" value "{" {op} "}" ["else" "{" {op} "}"]
//! inits   = value "=" value {"," value "=" value}
//! value   = "%" (name | digits)          type = elem | "ptr<" elem ">" | "tile<" {int "x"} elem ">"
//! ```
//!
//! White space and line ends separate tokens and mean nothing else; `//` starts a comment to the end of its line.
//! A name is defined once in a program. Types follow from operands; only constants and parameters carry them.
//! What is read is well typed except for what `verify` alone checks (pointers, alignment, loops' yields);
//! [`parse_valid`] checks that as well.

mod cursor;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::str::FromStr;
use thiserror::Error;

use crate::program::{
    Assumption, AtomicFn, CacheHint, DotPrecision, Loc, MemoryOrder, MemoryScope, Op, OpKind, Param, Program,
    Region, Value, ValueData,
};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Kind, Literal, Shape, Type};
use crate::verify::{MAX_DEPTH, MAX_OPS, Problem, VerifyError, verify};

use cursor::Cursor;

/// Why a text is not a program, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

type Result<T> = std::result::Result<T, ParseError>;

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Program> {
        Parser::new(text).program().map(|parser| parser.program)
    }
}

/// Reads a text and verifies the program. The error of an invalid one says where as well.
pub fn parse_valid(text: &str) -> Result<Program> {
    let parser = Parser::new(text).program()?;
    match verify(&parser.program) {
        Ok(()) => Ok(parser.program),
        Err(error) => parser.cursor.fail_at(parser.places.of(&error), error.to_string()),
    }
}

/// Where the parts of a program stand in its text.
#[derive(Default)]
struct Places {
    params: Vec<usize>,
    warps: usize,
    stages: usize,
    /// In program order, the owners of regions before their contents.
    ops: Vec<usize>,
}

impl Places {
    fn of(&self, error: &VerifyError) -> usize {
        let found = match error {
            VerifyError::Op { index, .. } => self.ops.get(*index),
            VerifyError::Program { problem: Problem::Param { index, .. }, .. } => self.params.get(*index),
            VerifyError::Program { problem: Problem::Warps(_), .. } => Some(&self.warps),
            VerifyError::Program { problem: Problem::Stages(_), .. } => Some(&self.stages),
            VerifyError::Program { .. } => None,
        };
        found.copied().unwrap_or(0)
    }
}

/// A name that has been defined, and its value until its region ends.
type Scoped = Option<Value>;

struct Parser<'a> {
    cursor: Cursor<'a>,
    program: Program,
    scope: FxHashMap<&'a str, Scoped>,
    depth: usize,
    places: Places,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        let program = Program {
            name: String::new(),
            params: Vec::new(),
            values: Vec::new(),
            body: Region::default(),
            warps: 4,
            stages: None,
            early: false,
        };
        let (cursor, scope) = (Cursor::new(text), FxHashMap::default());
        Parser { cursor, program, scope, depth: 0, places: Places::default() }
    }

    fn program(mut self) -> Result<Parser<'a>> {
        self.cursor.keyword("kernel")?;
        self.cursor.expect("@")?;
        self.program.name = self.cursor.name()?.to_owned();
        self.cursor.expect("(")?;
        while !self.cursor.accept(")") {
            self.param()?;
            if !self.cursor.accept(",") {
                self.cursor.expect(")")?;
                break;
            }
        }
        self.places.warps = self.cursor.position();
        if self.cursor.accept_keyword("warps") {
            self.program.warps = self.parenthesised()?;
        }
        self.places.stages = self.cursor.position();
        if self.cursor.accept_keyword("stages") {
            self.program.stages = Some(self.parenthesised()?);
        }
        self.program.early = self.cursor.accept_keyword("early");
        self.cursor.expect("{")?;
        self.program.body.ops = self.ops()?;
        self.cursor.end()?;
        Ok(self)
    }

    fn param(&mut self) -> Result<()> {
        let name = self.cursor.value()?;
        self.places.params.push(name.0);
        self.cursor.expect(":")?;
        let ty = self.ty()?;
        let (Kind::Elem(elem) | Kind::Ptr(elem)) = ty.kind;
        let pointer = ty.pointee().is_some();
        let value = self.define(name, ty)?;
        let mut param = Param { value, align: elem.bytes(), len: None };
        if pointer && self.cursor.accept_keyword("align") {
            param.align = self.parenthesised()?;
        }
        if pointer && self.cursor.accept_keyword("len") {
            param.len = Some(self.parenthesised()?);
        }
        self.program.params.push(param);
        Ok(())
    }

    fn parenthesised<T: FromStr>(&mut self) -> Result<T> {
        self.cursor.expect("(")?;
        let value = self.cursor.int()?;
        self.cursor.expect(")")?;
        Ok(value)
    }

    fn define(&mut self, (at, name): (usize, &'a str), ty: Type) -> Result<Value> {
        let Ok(index) = u32::try_from(self.program.values.len()) else {
            return self.cursor.fail_at(at, "too many values");
        };
        if self.scope.contains_key(name) {
            return self.cursor.fail_at(at, format!("%{name} is defined twice"));
        }
        let value = Value(index);
        let number = name.bytes().all(|c| c.is_ascii_digit());
        self.program.values.push(ValueData { ty, name: (!number).then(|| name.to_owned()) });
        self.scope.insert(name, Some(value));
        Ok(value)
    }

    fn operand(&mut self) -> Result<Value> {
        let (at, name) = self.cursor.value()?;
        match self.scope.get(name) {
            Some(&Some(value)) => Ok(value),
            Some(None) => self.cursor.fail_at(at, format!("%{name} is not visible outside of its region")),
            None => self.cursor.fail_at(at, format!("%{name} is not defined")),
        }
    }

    /// Operations up to and with the closing brace. What they define is out of scope afterwards.
    fn ops(&mut self) -> Result<Vec<Op>> {
        let mut ops = Vec::new();
        let mut defined = Vec::new();
        while !self.cursor.accept("}") {
            ops.push(self.op(&mut defined)?);
        }
        for name in defined {
            self.scope.insert(name, None);
        }
        Ok(ops)
    }

    fn op(&mut self, defined: &mut Vec<&'a str>) -> Result<Op> {
        let mut results = SmallVec::<[(usize, &'a str); 1]>::new();
        let first = self.cursor.position();
        if self.places.ops.len() >= MAX_OPS {
            return self.cursor.fail_at(first, Problem::TooLarge.to_string());
        }
        self.places.ops.push(first);
        if self.cursor.peek() == Some('%') {
            results.push(self.cursor.value()?);
            while self.cursor.accept(",") {
                results.push(self.cursor.value()?);
            }
            self.cursor.expect("=")?;
        }
        let at = self.cursor.position();
        let word = self.cursor.name()?;
        let (mut op, types) = match word {
            "for" => self.for_loop()?,
            "while" => self.while_loop()?,
            "if" => self.if_else()?,
            "reduce_with" => self.combined(at, false)?,
            "scan" => self.combined(at, true)?,
            _ => self.simple(at, word)?,
        };
        if types.len() != results.len() {
            let (expected, found) = (types.len(), results.len());
            return self.cursor.fail_at(at, format!("{word} has {expected} results, not {found}"));
        }
        for (name, ty) in results.into_iter().zip(types) {
            op.results.push(self.define(name, ty)?);
            defined.push(name.1);
        }
        Ok(op)
    }

    fn simple(&mut self, at: usize, word: &str) -> Result<(Op, Vec<Type>)> {
        let mut args = SmallVec::new();
        if word == "const" {
            let (literal, ty) = self.constant()?;
            return Ok((op(OpKind::Const(literal), args), vec![ty]));
        }
        let kind = self.kind(at, word, &mut args)?;
        let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.program.ty(a)).collect();
        match kind.infer(&types) {
            Ok(types) => Ok((op(kind, args), types.into_vec())),
            Err(error) => self.cursor.fail_at(at, error.to_string()),
        }
    }

    fn kind(&mut self, at: usize, word: &str, args: &mut SmallVec<[Value; 4]>) -> Result<OpKind> {
        Ok(match word {
            "program_id" => OpKind::ProgramId(self.cursor.int()?),
            "num_programs" => OpKind::NumPrograms(self.cursor.int()?),
            "range" => OpKind::Range { start: self.cursor.int()?, len: self.cursor.int()? },
            "splat" => OpKind::Splat(self.tile_and(args, Parser::shape)?),
            "expand_dims" => OpKind::ExpandDims(self.tile_and(args, |p| p.axis())?),
            "broadcast" => OpKind::Broadcast(self.tile_and(args, Parser::shape)?),
            "reshape" => OpKind::Reshape(self.tile_and(args, Parser::shape)?),
            "permute" => OpKind::Permute(self.tile_and(args, |p| p.list())?),
            "join" => self.operands(args).map(|()| OpKind::Join)?,
            "split" => self.operands(args).map(|()| OpKind::Split)?,
            "gather" => {
                self.operands(args)?;
                OpKind::Gather { axis: self.axis()? }
            }
            "map" => self.map(args)?,
            "cast" => OpKind::Cast(self.tile_and(args, |p| p.elem())?),
            "bitcast" => OpKind::Bitcast(self.tile_and(args, |p| p.elem())?),
            "load" => self.load(args)?,
            "store" => self.store(args)?,
            "reduce" => self.reduce(args)?,
            "histogram" => {
                let bins = self.tile_and(args, |p| p.number_of("bins"))?;
                OpKind::Histogram { bins, masked: self.mask(args)? }
            }
            "dot" => {
                self.operands(args)?;
                OpKind::Dot {
                    precision: self.option("precision", DotPrecision::from_name)?.unwrap_or_default(),
                }
            }
            "philox" => {
                self.operands(args)?;
                OpKind::Philox { rounds: self.number_of("rounds")? }
            }
            "atomic" => {
                let function = self
                    .named("atomic function", |name| AtomicFn::ALL.into_iter().find(|f| f.name() == name))?;
                self.operands(args)?;
                let masked = self.mask(args)?;
                let (order, scope) = self.order()?;
                OpKind::Atomic { function, masked, order, scope }
            }
            "atomic_cas" => {
                self.operands(args)?;
                let (order, scope) = self.order()?;
                OpKind::AtomicCas { order, scope }
            }
            "assume" => self.assume(args)?,
            "print" => {
                let prefix = self.cursor.string()?;
                // A value that is not defined yet is the result of what comes next.
                if self.cursor.peek_value().is_some_and(|name| self.scope.contains_key(name)) {
                    self.operands(args)?;
                }
                OpKind::Print { prefix, hex: self.cursor.accept_keyword("hex") }
            }
            "assert" => {
                let message = self.tile_and(args, |p| p.cursor.string())?;
                OpKind::Assert { message, masked: self.mask(args)? }
            }
            "yield" => {
                if self.cursor.peek() == Some('%') {
                    self.operands(args)?;
                }
                OpKind::Yield
            }
            _ => return self.cursor.fail_at(at, format!("there is no operation `{word}`")),
        })
    }

    fn operands(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<()> {
        args.push(self.operand()?);
        while self.cursor.accept(",") {
            args.push(self.operand()?);
        }
        Ok(())
    }

    fn tile_and<T>(
        &mut self,
        args: &mut SmallVec<[Value; 4]>,
        attribute: impl FnOnce(&mut Parser<'a>) -> Result<T>,
    ) -> Result<T> {
        args.push(self.operand()?);
        attribute(self)
    }

    fn axis(&mut self) -> Result<u8> {
        self.cursor.keyword("axis")?;
        self.cursor.int()
    }

    fn map(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<OpKind> {
        let function = self.named("scalar function", ScalarFn::from_name)?;
        self.operands(args)?;
        Ok(OpKind::Map(function))
    }

    fn reduce(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<OpKind> {
        let combine = self.named("combiner", ReduceFn::from_name)?;
        let axis = self.tile_and(args, |p| p.axis())?;
        Ok(OpKind::Reduce { combine, axis, masked: self.mask(args)? })
    }

    /// `mask %m`, if it is there.
    fn mask(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<bool> {
        let masked = self.cursor.accept_keyword("mask");
        if masked {
            args.push(self.operand()?);
        }
        Ok(masked)
    }

    /// One of the names of an attribute.
    fn named<T>(&mut self, what: &str, from_name: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let at = self.cursor.position();
        let name = self.cursor.name()?;
        match from_name(name) {
            Some(found) => Ok(found),
            None => self.cursor.fail_at(at, format!("there is no {what} `{name}`")),
        }
    }

    /// A word and one of the names of an attribute, if the word is there.
    fn option<T>(&mut self, word: &str, from_name: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        if self.cursor.accept_keyword(word) { self.named(word, from_name).map(Some) } else { Ok(None) }
    }

    fn number_of<T: FromStr>(&mut self, word: &str) -> Result<T> {
        self.cursor.keyword(word)?;
        self.cursor.int()
    }

    fn order(&mut self) -> Result<(MemoryOrder, MemoryScope)> {
        let order = self.option("order", MemoryOrder::from_name)?.unwrap_or_default();
        Ok((order, self.option("scope", MemoryScope::from_name)?.unwrap_or_default()))
    }

    fn assume(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<OpKind> {
        let at = self.cursor.position();
        let word = self.cursor.name()?;
        args.push(self.operand()?);
        Ok(OpKind::Assume(match word {
            "multiple_of" => Assumption::MultipleOf(self.cursor.int()?),
            "contiguous" => Assumption::Contiguous(self.cursor.int()?),
            "between" => Assumption::Between(self.cursor.int()?, self.cursor.int()?),
            _ => return self.cursor.fail_at(at, format!("there is no assumption `{word}`")),
        }))
    }

    fn load(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<OpKind> {
        args.push(self.operand()?);
        self.cursor.expect(",")?;
        args.push(self.operand()?);
        let (masked, other, hint) = self.memory_options(args, true)?;
        Ok(OpKind::Load { masked, other, hint })
    }

    fn store(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<OpKind> {
        args.push(self.operand()?);
        for _ in 0..2 {
            self.cursor.expect(",")?;
            args.push(self.operand()?);
        }
        let (masked, _, hint) = self.memory_options(args, false)?;
        Ok(OpKind::Store { masked, hint })
    }

    /// `, mask %m, other %o, hint streaming`, each optional, in this order.
    fn memory_options(
        &mut self,
        args: &mut SmallVec<[Value; 4]>,
        with_other: bool,
    ) -> Result<(bool, bool, CacheHint)> {
        let (mut masked, mut other, mut hint) = (false, false, CacheHint::Default);
        while self.cursor.accept(",") {
            let at = self.cursor.position();
            match self.cursor.name()? {
                "mask" if !masked && !other && hint == CacheHint::Default => {
                    args.push(self.operand()?);
                    masked = true;
                }
                "other" if with_other && !other && hint == CacheHint::Default => {
                    args.push(self.operand()?);
                    other = true;
                }
                "hint" if hint == CacheHint::Default => {
                    hint = self.named("cache hint", CacheHint::from_name)?
                }
                word => return self.cursor.fail_at(at, format!("`{word}` does not belong here")),
            }
        }
        Ok((masked, other, hint))
    }

    fn for_loop(&mut self) -> Result<(Op, Vec<Type>)> {
        let at = self.cursor.position();
        let mut names = vec![self.cursor.value()?];
        let mut args = SmallVec::<[Value; 4]>::new();
        for word in ["in", "..", "step"] {
            if word == ".." {
                self.cursor.expect(word)?
            } else {
                self.cursor.keyword(word)?
            }
            args.push(self.operand()?);
        }
        if self.cursor.accept_keyword("with") {
            names.extend(self.carried(&mut args)?);
        }
        let mut op = op(OpKind::For, args);
        self.region(at, &mut op, names)?;
        self.finish(at, op)
    }

    fn while_loop(&mut self) -> Result<(Op, Vec<Type>)> {
        let at = self.cursor.position();
        let mut args = SmallVec::<[Value; 4]>::new();
        let names = self.carried(&mut args)?;
        let mut op = op(OpKind::While, args);
        self.region(at, &mut op, names)?;
        self.cursor.keyword("do")?;
        let names = self.arguments()?;
        self.region(at, &mut op, names)?;
        self.finish(at, op)
    }

    fn if_else(&mut self) -> Result<(Op, Vec<Type>)> {
        let at = self.cursor.position();
        let mut op = op(OpKind::If, SmallVec::from_slice(&[self.operand()?]));
        self.region(at, &mut op, Vec::new())?;
        if self.cursor.accept_keyword("else") {
            self.region(at, &mut op, Vec::new())?;
        } else {
            let nothing = self::op(OpKind::Yield, SmallVec::new());
            op.regions.push(Region { args: Vec::new(), ops: vec![nothing] });
        }
        let last = op.regions.first().and_then(|r| r.ops.last()).filter(|last| last.kind == OpKind::Yield);
        let yielded = last.map(|last| last.args.clone());
        let types = yielded.unwrap_or_default().iter().map(|&v| self.program.ty(v).clone()).collect();
        self.finish(at, op).map(|(op, _)| (op, types))
    }

    fn combined(&mut self, at: usize, scan: bool) -> Result<(Op, Vec<Type>)> {
        let mut args = SmallVec::new();
        self.operands(&mut args)?;
        let axis = self.axis()?;
        let reverse = scan && self.cursor.accept_keyword("reverse");
        let names = self.arguments()?;
        let mut op =
            op(if scan { OpKind::Scan { axis, reverse } } else { OpKind::ReduceWith { axis } }, args);
        self.region(at, &mut op, names)?;
        self.finish(at, op)
    }

    /// The operation with the types of its results.
    fn finish(&self, at: usize, op: Op) -> Result<(Op, Vec<Type>)> {
        let types: SmallVec<[&Type; 4]> = op.args.iter().map(|&a| self.program.ty(a)).collect();
        match op.kind.infer(&types) {
            Ok(types) => Ok((op, types.into_vec())),
            Err(error) => self.cursor.fail_at(at, error.to_string()),
        }
    }

    /// `{ ... }`, the next region of an operation, whose arguments have these names.
    fn region(&mut self, at: usize, op: &mut Op, names: Vec<(usize, &'a str)>) -> Result<()> {
        if self.depth >= MAX_DEPTH {
            return self.cursor.fail_at(at, "regions are nested too deep");
        }
        let types = {
            let operands: SmallVec<[&Type; 4]> = op.args.iter().map(|&a| self.program.ty(a)).collect();
            op.kind.regions(&operands).into_iter().nth(op.regions.len()).map(|r| r.args).unwrap_or_default()
        };
        if types.len() != names.len() {
            let (expected, found) = (types.len(), names.len());
            return self.cursor.fail_at(at, format!("the region takes {expected} values, not {found}"));
        }
        let mut region = Region::default();
        for (&name, ty) in names.iter().zip(types) {
            region.args.push(self.define(name, ty)?);
        }
        self.cursor.expect("{")?;
        self.depth += 1;
        region.ops = self.ops()?;
        self.depth -= 1;
        for (_, name) in names {
            self.scope.insert(name, None);
        }
        op.regions.push(region);
        Ok(())
    }

    /// `(%a, %b)`
    fn arguments(&mut self) -> Result<Vec<(usize, &'a str)>> {
        let mut names = Vec::new();
        self.cursor.expect("(")?;
        while !self.cursor.accept(")") {
            names.push(self.cursor.value()?);
            if !self.cursor.accept(",") {
                self.cursor.expect(")")?;
                break;
            }
        }
        Ok(names)
    }

    /// `(%a = %init, ...)`: the names; the initial values go to `args`.
    fn carried(&mut self, args: &mut SmallVec<[Value; 4]>) -> Result<Vec<(usize, &'a str)>> {
        let mut names = Vec::new();
        self.cursor.expect("(")?;
        while !self.cursor.accept(")") {
            names.push(self.cursor.value()?);
            self.cursor.expect("=")?;
            args.push(self.operand()?);
            if !self.cursor.accept(",") {
                self.cursor.expect(")")?;
                break;
            }
        }
        Ok(names)
    }

    fn constant(&mut self) -> Result<(Literal, Type)> {
        let at = self.cursor.position();
        let text = self.cursor.number()?;
        self.cursor.expect(":")?;
        let type_at = self.cursor.position();
        let ty = self.ty()?;
        let Some(elem) = ty.elem() else {
            return self.cursor.fail_at(type_at, "a constant is not a pointer");
        };
        match literal(elem, text) {
            Some(literal) => Ok((literal, ty)),
            None => self.cursor.fail_at(at, format!("`{text}` is not a value of kind {elem}")),
        }
    }

    fn elem(&mut self) -> Result<Elem> {
        let at = self.cursor.position();
        let name = self.cursor.name()?;
        match Elem::from_name(name) {
            Some(elem) => Ok(elem),
            None => self.cursor.fail_at(at, format!("there is no element kind `{name}`")),
        }
    }

    fn ty(&mut self) -> Result<Type> {
        if self.cursor.accept_keyword("ptr") {
            self.cursor.expect("<")?;
            let elem = self.elem()?;
            self.cursor.expect(">")?;
            return Ok(Type::ptr(elem));
        }
        if !self.cursor.accept_keyword("tile") {
            return Ok(Type::scalar(self.elem()?));
        }
        self.cursor.expect("<")?;
        let mut shape = Shape::new();
        while self.cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
            shape.push(self.cursor.extent()?);
            self.cursor.expect("x")?;
        }
        let elem = self.elem()?;
        self.cursor.expect(">")?;
        self.checked_shape(&shape)?;
        Ok(Type::tile(elem, &shape))
    }

    fn shape(&mut self) -> Result<Shape> {
        let shape = self.list()?;
        self.checked_shape(&shape)?;
        Ok(shape)
    }

    fn checked_shape(&self, shape: &Shape) -> Result<()> {
        match crate::infer::check_shape("shape", shape) {
            Ok(()) => Ok(()),
            Err(error) => self.cursor.fail(error.to_string()),
        }
    }

    /// `[1, 2, 3]`
    fn list<T: FromStr, A: smallvec::Array<Item = T>>(&mut self) -> Result<SmallVec<A>> {
        let mut items = SmallVec::new();
        self.cursor.expect("[")?;
        while !self.cursor.accept("]") {
            items.push(self.cursor.int()?);
            if !self.cursor.accept(",") {
                self.cursor.expect("]")?;
                break;
            }
        }
        Ok(items)
    }
}

fn op(kind: OpKind, args: SmallVec<[Value; 4]>) -> Op {
    Op { kind, args, results: SmallVec::new(), regions: Vec::new(), loc: Loc::UNKNOWN }
}

/// The literal of a kind that `text` spells, if it spells one in range.
fn literal(elem: Elem, text: &str) -> Option<Literal> {
    match elem {
        Elem::Bool => text.parse::<bool>().ok().map(|b| Literal::int(elem, i64::from(b))),
        Elem::U64 => text.parse::<u64>().ok().map(|bits| Literal { elem, bits }),
        Elem::F64 => float(elem, text, text.parse::<f64>().ok()?),
        Elem::F8E4M3 | Elem::F8E5M2 | Elem::F16 | Elem::Bf16 | Elem::F32 => {
            float(elem, text, f64::from(text.parse::<f32>().ok()?))
        }
        _ => {
            let value = text.parse::<i64>().ok()?;
            let literal = Literal::int(elem, value);
            (literal.bits as i64 == value).then_some(literal)
        }
    }
}

fn float(elem: Elem, text: &str, value: f64) -> Option<Literal> {
    let special = matches!(text, "nan" | "inf" | "-inf");
    let digits = text.strip_prefix('-').unwrap_or(text).starts_with(|c: char| c.is_ascii_digit());
    let literal = Literal::float(elem, value);
    (special || (digits && literal.as_f64().is_finite())).then_some(literal)
}

#[cfg(test)]
mod tests;
