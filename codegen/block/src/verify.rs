//! What holds for every valid program.
//!
//! Program:
//! - its name is a letter or `_`, then letters, digits and `_`, all ASCII;
//! - the number of warps is a power of two from 1 to 32, that of stages from 1 to 8;
//! - parameters are scalars; a pointer's alignment is a power of two and at least its element's size, its length
//!   in bytes is below 2^63;
//! - regions are nested at most [`MAX_DEPTH`] deep, and there are at most [`MAX_OPS`] operations.
//!
//! Values:
//! - every operand is defined before it is used, in the same region or in one around it;
//! - a value is defined once: as a parameter, as an argument of a region or as a result;
//! - a pointer is a parameter and is used by loads, stores and atomic operations alone;
//! - tiles have at most five extents, each a power of two, and at most [`MAX_TILE`](crate::MAX_TILE) elements.
//!
//! Operations:
//! - operands and attributes are such that [`OpKind::infer`] takes them, and the results have the types it gives;
//!   a constant's result is a tile of any shape of its literal's kind;
//! - a literal is a value of its kind: integers in range, floats representable;
//! - regions take and yield what [`OpKind::regions`] says; the regions of an `if` yield values of the types of its
//!   results;
//! - `yield` is the last operation of every region but the program's body, and is nowhere else;
//! - the region of a `reduce_with` or `scan` uses nothing from outside of it, and computes scalars by constants,
//!   maps and casts.

use smallvec::SmallVec;
use thiserror::Error;

use crate::infer::{TypeError, check_shape};
use crate::print::{is_name, op_text};
use crate::program::{Op, OpKind, Param, Program, Region, Value};
use crate::types::{Kind, Literal, Type};

/// How deep regions may be nested.
pub const MAX_DEPTH: usize = 64;

/// Most operations of a program, those in regions included.
pub const MAX_OPS: usize = 1 << 15;

/// Why a program is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// The program as a whole.
    #[error("kernel @{name}: {problem}")]
    Program {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: Problem,
    },
    /// One operation.
    #[error("{problem}, at `{op}`")]
    Op {
        /// Its place in program order, owners of regions before their contents; the loop's for a loop's `yield`.
        index: usize,
        /// The operation, as text.
        op: String,
        /// What is wrong.
        problem: Problem,
    },
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The program's name is not an identifier.
    #[error("the name is not an identifier")]
    Name,
    /// The number of warps.
    #[error("{0} warps are not a power of two from 1 to 32")]
    Warps(u32),
    /// The number of stages.
    #[error("{0} stages are not from 1 to 8")]
    Stages(u32),
    /// A parameter's type, alignment or length.
    #[error("parameter {index}: {message}")]
    Param {
        /// Its position.
        index: usize,
        /// What is wrong.
        message: &'static str,
    },
    /// The operand at this position is not defined here.
    #[error("operand {0} is not defined here")]
    Undefined(usize),
    /// A value is defined twice, or is not among the program's values.
    #[error("%{0} is defined twice or does not exist")]
    Redefined(u32),
    /// Operands or attributes.
    #[error("{0}")]
    Type(#[from] TypeError),
    /// The number of results, of a region's carried arguments or of yielded values.
    #[error("{found} values where {expected} are needed")]
    Count {
        /// How many there have to be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// The type of a result, of an operand or of a region's argument.
    #[error("{what} {index} is {found}, expected {expected}")]
    Mismatch {
        /// `result`, `operand` or `region argument`.
        what: &'static str,
        /// Its position.
        index: usize,
        /// Its type.
        found: Type,
        /// The type that it has to have.
        expected: Type,
    },
    /// A pointer that is not the first operand of an access to memory.
    #[error("operand {0} is a pointer, which only loads, stores and atomic operations take")]
    Pointer(usize),
    /// There are more operations than a program may have.
    #[error("the program has more than {MAX_OPS} operations")]
    TooLarge,
    /// A literal that is not a value of its kind.
    #[error("the literal is not a value of its kind")]
    Literal,
    /// The number of regions or of a region's arguments, or nesting that is too deep.
    #[error("{0}")]
    Region(&'static str),
    /// A `yield` that is missing, not last, or in the program's body.
    #[error("{0}")]
    Yield(&'static str),
}

/// Checks every invariant of the module's list; the first that does not hold is the error.
pub fn verify(program: &Program) -> Result<(), VerifyError> {
    let whole = |problem| VerifyError::Program { name: program.name.clone(), problem };
    let values = program.values.len();
    let mut cx = Cx { program, defined: vec![false; values], seen: vec![false; values], visited: 0 };
    header(program).map_err(whole)?;
    for (index, param) in program.params.iter().enumerate() {
        cx.define(param.value).map_err(whole)?;
        check_param(index, param, program.ty(param.value)).map_err(whole)?;
    }
    if !program.body.args.is_empty() {
        return Err(whole(Problem::Region("the body takes no arguments")));
    }
    cx.region(&program.body, 0)
}

fn header(program: &Program) -> Result<(), Problem> {
    if !is_name(&program.name) {
        return Err(Problem::Name);
    }
    let warps = program.warps;
    if !warps.is_power_of_two() || warps > 32 {
        return Err(Problem::Warps(warps));
    }
    match program.stages {
        Some(stages) if !(1..=8).contains(&stages) => Err(Problem::Stages(stages)),
        _ => Ok(()),
    }
}

fn check_param(index: usize, param: &Param, ty: &Type) -> Result<(), Problem> {
    let refuse = |message| Err(Problem::Param { index, message });
    if ty.rank() != 0 {
        return refuse("not a scalar");
    }
    let Kind::Ptr(elem) = ty.kind else { return Ok(()) };
    if !param.align.is_power_of_two() || param.align < elem.bytes() {
        return refuse("the alignment is not a power of two, or below the element's size");
    }
    match param.len.unwrap_or(0).checked_mul(u64::from(elem.bytes())) {
        Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
        _ => refuse("the length is 2^63 bytes or more"),
    }
}

struct Cx<'a> {
    program: &'a Program,
    /// Values that may be used here.
    defined: Vec<bool>,
    /// Values that have been defined, here or elsewhere.
    seen: Vec<bool>,
    /// Operations that were looked at.
    visited: usize,
}

impl<'a> Cx<'a> {
    fn define(&mut self, value: Value) -> Result<(), Problem> {
        match (self.seen.get_mut(value.index()), self.defined.get_mut(value.index())) {
            (Some(seen), Some(defined)) if !*seen => {
                *seen = true;
                *defined = true;
                Ok(())
            }
            _ => Err(Problem::Redefined(value.0)),
        }
    }

    /// Checks a region whose arguments are defined, and ends the scope of what it defines.
    fn region(&mut self, region: &'a Region, depth: usize) -> Result<(), VerifyError> {
        for (index, op) in region.ops.iter().enumerate() {
            let (program, number) = (self.program, self.visited);
            self.visited += 1;
            let at = |problem| VerifyError::Op { index: number, op: op_text(program, op), problem };
            if number >= MAX_OPS {
                return Err(at(Problem::TooLarge));
            }
            let last = index + 1 == region.ops.len();
            if op.kind == OpKind::Yield && (depth == 0 || !last) {
                return Err(at(Problem::Yield("a yield is not the last operation of a region")));
            }
            self.operands(op).map_err(at)?;
            self.types(op).map_err(at)?;
            self.regions(op, number, depth)?;
            for &result in &op.results {
                self.define(result).map_err(at)?;
            }
        }
        let results = region.ops.iter().flat_map(|op| &op.results);
        for value in region.args.iter().chain(results) {
            self.defined[value.index()] = false;
        }
        Ok(())
    }

    fn operands(&self, op: &Op) -> Result<(), Problem> {
        for (index, arg) in op.args.iter().enumerate() {
            if self.defined.get(arg.index()) != Some(&true) {
                return Err(Problem::Undefined(index));
            }
            if self.program.ty(*arg).pointee().is_some() && !(op.kind.is_access() && index == 0) {
                return Err(Problem::Pointer(index));
            }
        }
        for result in &op.results {
            if result.index() >= self.program.values.len() {
                return Err(Problem::Redefined(result.0));
            }
        }
        Ok(())
    }

    fn types_of(&self, values: &[Value]) -> SmallVec<[&'a Type; 4]> {
        values.iter().map(|&v| self.program.ty(v)).collect()
    }

    /// Operands, attributes and results.
    fn types(&self, op: &Op) -> Result<(), Problem> {
        let expected = op.kind.infer(&self.types_of(&op.args))?;
        if op.kind == OpKind::If {
            return Ok(());
        }
        count(expected.len(), op.results.len())?;
        if let (OpKind::Const(literal), Some(&result)) = (&op.kind, op.results.first()) {
            return constant(literal, self.program.ty(result));
        }
        self.same("result", &expected, &op.results)
    }

    fn regions(&mut self, op: &'a Op, index: usize, depth: usize) -> Result<(), VerifyError> {
        let program = self.program;
        let at = |problem| VerifyError::Op { index, op: op_text(program, op), problem };
        let types = op.kind.regions(&self.types_of(&op.args));
        if types.len() != op.regions.len() {
            return Err(at(Problem::Region("the operation has more or fewer regions than it takes")));
        }
        if !types.is_empty() && depth >= MAX_DEPTH {
            return Err(at(Problem::Region("regions are nested too deep")));
        }
        for (region, types) in op.regions.iter().zip(types) {
            for &arg in &region.args {
                self.define(arg).map_err(at)?;
            }
            self.same("region argument", &types.args, &region.args).map_err(at)?;
            let last = region.ops.last().filter(|last| last.kind == OpKind::Yield);
            let last = last.ok_or_else(|| at(Problem::Yield("a region does not end in a yield")))?;
            let at_yield = |problem| VerifyError::Op { index, op: op_text(program, last), problem };
            if let Some(bad) = last.args.iter().position(|v| v.index() >= program.values.len()) {
                return Err(at_yield(Problem::Undefined(bad)));
            }
            let results = || self.types_of(&op.results).into_iter().cloned().collect();
            self.same("operand", &types.yields.unwrap_or_else(results), &last.args).map_err(at_yield)?;
            if op.kind.has_combiner() {
                self.combiner(region, index, depth)?;
            } else {
                self.region(region, depth + 1)?;
            }
        }
        Ok(())
    }

    /// A region that sees nothing but its arguments.
    fn combiner(&mut self, region: &'a Region, index: usize, depth: usize) -> Result<(), VerifyError> {
        let program = self.program;
        for op in &region.ops {
            let at = |problem| VerifyError::Op { index, op: op_text(program, op), problem };
            let allowed = matches!(
                op.kind,
                OpKind::Const(_) | OpKind::Map(_) | OpKind::Cast(_) | OpKind::Bitcast(_) | OpKind::Yield
            );
            let scalar =
                op.results.iter().all(|r| program.values.get(r.index()).is_none_or(|v| v.ty.rank() == 0));
            if !allowed || !scalar {
                return Err(at(Problem::Region("a combiner computes scalars by constants, maps and casts")));
            }
        }
        let outside = std::mem::replace(&mut self.defined, vec![false; program.values.len()]);
        for &arg in &region.args {
            self.defined[arg.index()] = true;
        }
        let result = self.region(region, depth + 1);
        self.defined = outside;
        for &arg in &region.args {
            self.defined[arg.index()] = false;
        }
        result
    }

    fn same(&self, what: &'static str, expected: &[Type], values: &[Value]) -> Result<(), Problem> {
        count(expected.len(), values.len())?;
        for (index, (expected, &value)) in expected.iter().zip(values).enumerate() {
            same(what, index, self.program.ty(value), expected)?;
        }
        Ok(())
    }
}

fn count(expected: usize, found: usize) -> Result<(), Problem> {
    if expected == found { Ok(()) } else { Err(Problem::Count { expected, found }) }
}

fn same(what: &'static str, index: usize, found: &Type, expected: &Type) -> Result<(), Problem> {
    if found == expected {
        return Ok(());
    }
    Err(Problem::Mismatch { what, index, found: found.clone(), expected: expected.clone() })
}

fn constant(literal: &Literal, found: &Type) -> Result<(), Problem> {
    let canonical = match literal.elem.is_float() {
        true => {
            Literal::float(literal.elem, literal.as_f64()).as_f64().to_bits() == literal.bits
                || literal.as_f64().is_nan()
        }
        false => Literal::int(literal.elem, literal.bits as i64) == *literal,
    };
    if !canonical {
        return Err(Problem::Literal);
    }
    check_shape("const", &found.shape)?;
    same("result", 0, found, &Type::tile(literal.elem, &found.shape))
}

#[cfg(test)]
mod tests;
