//! Folds constants, applies identities, and brings equal computations into one form: constants to the right,
//! arithmetic on the smallest shape (scalars before splats, splats and broadcasts last), masks that are always set
//! dropped.
//!
//! ```text
//! before                                after
//!   %two = const 2 : i32                  %two = const 2 : i32
//!   %zero = const 0 : tile<8xi32>         %a = map mul %n, %two
//!   %u = splat %two [8]                   %b = splat %a [8]
//!   %s = splat %n [8]                     store %x, %r, %b
//!   %a = map mul %u, %s
//!   %b = map add %a, %zero
//!   store %x, %r, %b
//! ```
//!
//! A rule gets an operation whose operands are in canonical form, may emit operations, and gives the value that
//! replaces the result. It holds for every value of its operands, NaN, infinities and -0 included; what rounds
//! differently is no rule. Every rule makes the program smaller or moves it toward the form above, so that
//! rewriting ends.

mod casts;
mod comparisons;
mod constants;
mod floats;
mod integers;
mod loops;
mod masks;
mod movement;
mod selects;

use smallvec::SmallVec;

use crate::program::{Loc, Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::ScalarFn;
use crate::types::{Literal, Shape, Type};

/// A rule and its name.
type Rule = (&'static str, fn(&mut Cx<'_>, &Op) -> Option<Value>);

/// Every rule, in the order in which they are tried.
const RULES: &[Rule] = &[
    ("fold-scalar-function", constants::scalar_function),
    ("fold-movement", constants::movement),
    ("fold-reduction", constants::reduction),
    ("promise-of-constant", constants::promise),
    ("constant-to-the-right", constants::to_the_right),
    ("integer-identity", integers::identity),
    ("integer-same-operands", integers::same_operands),
    ("integer-reassociate", integers::reassociate),
    ("exclusive-comparisons", comparisons::exclusive),
    ("comparison-of-widened", comparisons::of_widened),
    ("float-identity", floats::identity),
    ("float-signs", floats::signs),
    ("float-extremes", floats::extremes),
    ("float-power", floats::power),
    ("float-fma", floats::fma),
    ("select", selects::select),
    ("not", selects::not),
    ("cast-of-cast", casts::cast_of_cast),
    ("trivial-movement", movement::trivial),
    ("movement-of-splat", movement::of_splat),
    ("movement-of-movement", movement::composed),
    ("function-of-splats", movement::function_of_splats),
    ("function-of-broadcasts", movement::function_of_broadcasts),
    ("constant-mask", masks::constant),
];

/// What applies to GPUs besides, where a repeated element takes a register of each thread that has it; a processor repeats what it
/// has loaded for nothing, and loads elements where it needs them.
const GPU_RULES: &[Rule] = &[("load-of-broadcast", movement::load_of_broadcast)];

/// Brings a program into canonical form.
pub fn canonicalize(program: &mut Program) {
    rewrite(program, &[RULES]);
}

/// Brings a program for a GPU into canonical form, in which what differs only from column to column is loaded, and computed, once
/// for all rows. Triton's pass of this name.
pub fn reorder_broadcast(program: &mut Program) {
    rewrite(program, &[RULES, GPU_RULES]);
}

fn rewrite(program: &mut Program, rules: &'static [&'static [Rule]]) {
    let mut body = std::mem::take(&mut program.body);
    let count = program.values.len();
    let forward = (0..count as u32).map(Value).collect();
    let (definitions, out) = (vec![None; count], Vec::new());
    let mut cx = Cx { values: &mut program.values, definitions, forward, out, depth: 0, rules };
    cx.region(&mut body);
    program.body = body;
}

/// How deep rewriting of what rules emit may go.
const MAX_DEPTH: usize = 16;

/// What rules work on.
struct Cx<'a> {
    values: &'a mut Vec<ValueData>,
    /// The defining operation of each value, where that has no regions.
    definitions: Vec<Option<Op>>,
    /// What replaces each value: itself where nothing does.
    forward: Vec<Value>,
    /// The operations of the region so far.
    out: Vec<Op>,
    depth: usize,
    rules: &'static [&'static [Rule]],
}

impl Cx<'_> {
    fn region(&mut self, region: &mut Region) {
        let ops = std::mem::take(&mut region.ops);
        let around = std::mem::take(&mut self.out);
        ops.into_iter().for_each(|op| self.op(op));
        region.ops = std::mem::replace(&mut self.out, around);
    }

    fn op(&mut self, mut op: Op) {
        for arg in &mut op.args {
            *arg = self.forward[arg.index()];
        }
        let Some(mut op) = loops::unroll(self, op) else { return };
        op.regions.iter_mut().for_each(|r| self.region(r));
        let (from, loc) = (self.out.len(), op.loc);
        self.simplified(op);
        locate(&mut self.out[from..], loc);
    }

    fn simplified(&mut self, op: Op) {
        let Some(op) = masks::store(self, op) else { return };
        let before = self.values.len();
        match self.rewrite(&op) {
            Some(value) => self.replace(&op, value, before),
            None => self.push(op),
        }
    }

    /// Lets `value` stand for the result of `op`, and take its name if it is younger than `before`.
    fn replace(&mut self, op: &Op, value: Value, before: usize) {
        let Some(&result) = op.results.first() else { return };
        self.forward[result.index()] = value;
        if value.index() >= before {
            self.values[value.index()].name = self.values[result.index()].name.clone();
        }
    }

    /// Applies the first rule that fits.
    fn rewrite(&mut self, op: &Op) -> Option<Value> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let value = self.rules.iter().copied().flatten().find_map(|(_, rule)| rule(self, op));
        self.depth -= 1;
        value
    }

    fn push(&mut self, op: Op) {
        if let (true, &[result]) = (op.regions.is_empty(), op.results.as_slice()) {
            self.definitions[result.index()] = Some(op.clone());
        }
        self.out.push(op);
    }

    fn value(&mut self, ty: Type) -> Value {
        let value = Value(self.values.len() as u32);
        self.values.push(ValueData { ty, name: None });
        self.definitions.push(None);
        self.forward.push(value);
        value
    }

    /// The result of an operation, in canonical form; `None` where it does not take the operands.
    fn emit(&mut self, kind: OpKind, args: &[Value]) -> Option<Value> {
        let ty = {
            let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.ty(a)).collect();
            kind.infer(&types).ok()?.into_iter().next()?
        };
        Some(self.emit_typed(kind, args, ty))
    }

    fn emit_typed(&mut self, kind: OpKind, args: &[Value], ty: Type) -> Value {
        let result = self.value(ty);
        let results = SmallVec::from_slice(&[result]);
        let op =
            Op { kind, args: SmallVec::from_slice(args), results, regions: Vec::new(), loc: Loc::UNKNOWN };
        match self.rewrite(&op) {
            Some(value) => value,
            None => {
                self.push(op);
                result
            }
        }
    }

    fn emit_map(&mut self, function: ScalarFn, args: &[Value]) -> Option<Value> {
        self.emit(OpKind::Map(function), args)
    }

    fn emit_constant(&mut self, literal: Literal, shape: &Shape) -> Value {
        self.emit_typed(OpKind::Const(literal), &[], Type::tile(literal.elem, shape))
    }

    fn ty(&self, value: Value) -> &Type {
        &self.values[value.index()].ty
    }

    fn definition(&self, value: Value) -> Option<&Op> {
        self.definitions[value.index()].as_ref()
    }

    /// The literal that every element of the value is.
    fn constant(&self, value: Value) -> Option<Literal> {
        match self.definition(value)?.kind {
            OpKind::Const(literal) => Some(literal),
            _ => None,
        }
    }

    /// The operands of the function that defines a value, where it is this one.
    fn operands_of(&self, value: Value, function: ScalarFn) -> Option<SmallVec<[Value; 4]>> {
        let op = self.definition(value)?;
        (op.kind == OpKind::Map(function)).then(|| op.args.clone())
    }
}

/// The function of a `map` and its operands.
fn as_map(op: &Op) -> Option<(ScalarFn, &[Value])> {
    match op.kind {
        OpKind::Map(function) => Some((function, &op.args)),
        _ => None,
    }
}

/// The function and operands of a `map` of two.
fn as_binary(op: &Op) -> Option<(ScalarFn, Value, Value)> {
    match (as_map(op)?, op.args.as_slice()) {
        ((function, _), &[a, b]) => Some((function, a, b)),
        _ => None,
    }
}
