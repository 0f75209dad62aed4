//! Several block programs as one, whose grid is theirs one after the other along axis 0.
//!
//! Which part an instance belongs to is found by halving: branches on the instance's number, nested as deep as the
//! logarithm of the number of parts. Each leaf is the whole body of a part, with the instance's number counted from the
//! part's first.
//!
//! ```text
//! kernel @a(...) { %p = program_id 0 ... }   2 instances     kernel @joined(...) {
//! kernel @b(...) { %p = program_id 0 ... }   3 instances       %instance = program_id 0
//!                                                              %first = const 2 : i32
//!                                                              %before = map lt %instance, %first
//!                                                              if %before {
//!                                                                %p = assume between %instance 0 1
//!                                                                ...
//!                                                              } else {
//!                                                                %q = map sub %instance, %first
//!                                                                %p = assume between %q 0 2
//!                                                                ...
//!                                                              }
//!                                                            }
//! ```

use smallvec::SmallVec;
use tilefuse_block::{
    Assumption, Elem, Literal, Loc, Op, OpKind, Param, Program, Region, ScalarFn, Type, Value, ValueData,
};

/// A program that becomes part of another.
#[derive(Clone, Debug)]
pub(super) struct PartProgram<'a> {
    pub(super) program: &'a Program,
    /// Instances along axis 0; there is one along the others.
    pub(super) instances: u64,
    /// For each of its parameters, the joined program's.
    pub(super) params: Vec<usize>,
}

/// Joins programs, of which there is one at least, under a name.
pub(super) fn join(name: String, parts: &[PartProgram<'_>]) -> Program {
    let warps = parts.iter().map(|p| p.program.warps).max().unwrap_or(1);
    let stages = parts.iter().find_map(|p| p.program.stages);
    let early = parts.iter().all(|p| p.program.early);
    let (params, values, body) = (Vec::new(), Vec::new(), Region::default());
    let program = Program { name, params, values, body, warps, stages, early };
    let mut joiner = Joiner { program, instance: Value(0) };
    joiner.params(parts);
    let mut ops = Vec::new();
    joiner.instance = joiner.push(&mut ops, OpKind::ProgramId(0), &[], Type::scalar(Elem::I32));
    joiner.branch(parts, 0, &mut ops);
    joiner.program.body.ops = ops;
    joiner.program
}

struct Joiner {
    program: Program,
    /// The instance's number in the whole grid.
    instance: Value,
}

impl Joiner {
    /// The parameters, each that of the first part that has it.
    fn params(&mut self, parts: &[PartProgram<'_>]) {
        let mut found: Vec<(usize, ValueData, Param)> = Vec::new();
        for part in parts {
            for (param, &at) in part.program.params.iter().zip(&part.params) {
                found.push((at, part.program.values[param.value.index()].clone(), param.clone()));
            }
        }
        found.sort_by_key(|f| f.0);
        found.dedup_by_key(|f| f.0);
        for (_, data, param) in found {
            let value = self.value(data);
            self.program.params.push(Param { value, ..param });
        }
    }

    fn value(&mut self, data: ValueData) -> Value {
        self.program.values.push(data);
        Value(self.program.values.len() as u32 - 1)
    }

    /// An operation with one result.
    fn push(&mut self, ops: &mut Vec<Op>, kind: OpKind, args: &[Value], ty: Type) -> Value {
        let result = self.value(ValueData { ty, name: None });
        let (args, results) = (SmallVec::from_slice(args), SmallVec::from_slice(&[result]));
        ops.push(Op { kind, args, results, regions: Vec::new(), loc: Loc::UNKNOWN });
        result
    }

    fn number(&mut self, ops: &mut Vec<Op>, number: u64) -> Value {
        let literal = Literal::int(Elem::I32, number as i64);
        self.push(ops, OpKind::Const(literal), &[], Type::scalar(Elem::I32))
    }

    /// Pieces of which the first begins at instance `first`.
    fn branch(&mut self, parts: &[PartProgram<'_>], first: u64, ops: &mut Vec<Op>) {
        if let [part] = parts {
            return self.leaf(part, first, ops);
        }
        let (before, after) = parts.split_at(parts.len() / 2);
        let middle = first + before.iter().map(|p| p.instances).sum::<u64>();
        let bound = self.number(ops, middle);
        let bool_ty = Type::scalar(Elem::Bool);
        let is_before = self.push(ops, OpKind::Map(ScalarFn::Lt), &[self.instance, bound], bool_ty);
        let regions = [(before, first), (after, middle)].map(|(parts, first)| {
            let mut inner = Vec::new();
            self.branch(parts, first, &mut inner);
            let (args, results) = (SmallVec::new(), SmallVec::new());
            inner.push(Op { kind: OpKind::Yield, args, results, regions: Vec::new(), loc: Loc::UNKNOWN });
            Region { args: Vec::new(), ops: inner }
        });
        let (args, results) = (SmallVec::from_slice(&[is_before]), SmallVec::new());
        ops.push(Op { kind: OpKind::If, args, results, regions: regions.into(), loc: Loc::UNKNOWN });
    }

    /// The body of a part.
    fn leaf(&mut self, part: &PartProgram<'_>, first: u64, ops: &mut Vec<Op>) {
        let own = part.program;
        let mut names: Vec<Option<Value>> = vec![None; own.values.len()];
        for (param, &at) in own.params.iter().zip(&part.params) {
            names[param.value.index()] = self.program.params.get(at).map(|p| p.value);
        }
        let mut asks = false;
        own.walk(&mut |op| asks |= op.kind == OpKind::ProgramId(0));
        let number = if asks { self.own_number(part.instances, first, ops) } else { self.instance };
        let mut copy = Copy { joiner: self, from: own, names, number };
        copy.ops(&own.body.ops, ops);
    }

    /// The number of an instance among those of its part.
    fn own_number(&mut self, instances: u64, first: u64, ops: &mut Vec<Op>) -> Value {
        let mut number = self.instance;
        if first > 0 {
            let first = self.number(ops, first);
            number = self.push(ops, OpKind::Map(ScalarFn::Sub), &[number, first], Type::scalar(Elem::I32));
        }
        let range = Assumption::Between(0, instances as i64 - 1);
        self.push(ops, OpKind::Assume(range), &[number], Type::scalar(Elem::I32))
    }
}

/// Copies operations of one program into another.
struct Copy<'a> {
    joiner: &'a mut Joiner,
    from: &'a Program,
    /// By value of the one program: the other's.
    names: Vec<Option<Value>>,
    /// What its instances count as theirs.
    number: Value,
}

impl Copy<'_> {
    fn ops(&mut self, ops: &[Op], out: &mut Vec<Op>) {
        for op in ops {
            match (&op.kind, op.results.first()) {
                (OpKind::ProgramId(0), Some(result)) => self.names[result.index()] = Some(self.number),
                _ => {
                    let op = self.op(op);
                    out.push(op);
                }
            }
        }
    }

    fn op(&mut self, op: &Op) -> Op {
        let args = op.args.iter().map(|&arg| self.name(arg)).collect();
        let regions = op.regions.iter().map(|region| self.region(region)).collect();
        let results = op.results.iter().map(|&result| self.name(result)).collect();
        Op { kind: op.kind.clone(), args, results, regions, loc: op.loc }
    }

    fn region(&mut self, region: &Region) -> Region {
        let args = region.args.iter().map(|&arg| self.name(arg)).collect();
        let mut ops = Vec::new();
        self.ops(&region.ops, &mut ops);
        Region { args, ops }
    }

    fn name(&mut self, value: Value) -> Value {
        if let Some(known) = self.names[value.index()] {
            return known;
        }
        let new = self.joiner.value(self.from.values[value.index()].clone());
        self.names[value.index()] = Some(new);
        new
    }
}
