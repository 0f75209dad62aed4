//! Operands of contractions beside the value that they are drawn for: new inputs, what operators make of them, and values that
//! are there, so that every side of a contraction has neighbours.

use tch::Kind;

use super::reduce::normalize_of;
use super::{Fact, Generator, is_float, t};
use crate::random::program::code_of;
use crate::torch::Arg;

/// The largest elements of a value that is taken for an operand: sums of products stay within the range of 16-bit floats.
const MAX_MAGNITUDE: f64 = 16.0;

/// Makes a new input of a shape and type.
type NewInput = fn(&mut Generator, &[i64], Kind) -> Option<u32>;

impl Generator {
    /// An operand of this shape and type.
    pub(super) fn operand(&mut self, shape: &[i64], kind: Kind) -> Option<u32> {
        self.operand_from(shape, kind, Generator::input)
    }

    /// A floating-point operand without special values.
    pub(super) fn plain_operand(&mut self, shape: &[i64], kind: Kind) -> Option<u32> {
        self.operand_from(shape, kind, Generator::plain_input)
    }

    fn operand_from(&mut self, shape: &[i64], kind: Kind, input: NewInput) -> Option<u32> {
        let made = match self.rng.below(20) {
            0..=3 => self.existing(shape, kind),
            4..=6 => self.rearranged(shape, kind, input),
            7..=10 => self.computed(shape, kind, input),
            11 => self.converted(shape, kind),
            12 => self.normalized(shape, kind, input),
            13 => self.reduced(shape, kind, input),
            _ => None,
        };
        made.or_else(|| input(self, shape, kind))
    }

    /// A value of this shape and type.
    fn existing(&mut self, shape: &[i64], kind: Kind) -> Option<u32> {
        self.value(|g, id| {
            g.kind(id) == kind && g.size(id) == shape && (!is_float(kind) || g.magnitude(id) < MAX_MAGNITUDE)
        })
    }

    /// A new input whose last two dimensions are transposed.
    fn rearranged(&mut self, shape: &[i64], kind: Kind, input: NewInput) -> Option<u32> {
        let (&[rows, columns], batch) = (shape.last_chunk::<2>()?, &shape[..shape.len() - 2]);
        let turned = input(self, &[batch, &[columns, rows]].concat(), kind)?;
        self.emit("transpose.int", vec![t(turned), Arg::Int(-2), Arg::Int(-1)], self.fact(turned))
    }

    /// What an elementwise operator makes of a new input, perhaps with a vector along its rows or columns.
    fn computed(&mut self, shape: &[i64], kind: Kind, input: NewInput) -> Option<u32> {
        if kind == Kind::Bool {
            return None;
        }
        let operand = input(self, shape, kind)?;
        let fact = Fact::ROUNDED;
        match self.rng.below(if is_float(kind) { 6 } else { 1 }) {
            0 => self.emit(if is_float(kind) { "neg" } else { "abs" }, vec![t(operand)], self.fact(operand)),
            1 => self.emit("mul.Scalar", vec![t(operand), Arg::Float(0.5)], fact),
            2 => self.emit("relu", vec![t(operand)], self.fact(operand)),
            3 => self.emit("sigmoid", vec![t(operand)], fact),
            row_or_column => {
                let mut vector = vec![1; shape.len()];
                let along = shape.len().checked_sub(if row_or_column == 4 { 1 } else { 2 })?;
                vector[along] = shape[along];
                let vector = self.plain_input(&vector, kind)?;
                let (name, more) = if self.rng.chance(0.5) {
                    ("mul.Tensor", None)
                } else {
                    ("add.Tensor", Some(Arg::Int(1)))
                };
                self.emit(name, [t(operand), t(vector)].into_iter().chain(more).collect(), fact)
            }
        }
    }

    /// What a norm or softmax makes of a new input.
    fn normalized(&mut self, shape: &[i64], kind: Kind, input: NewInput) -> Option<u32> {
        if !is_float(kind) || shape.is_empty() {
            return None;
        }
        let operand = input(self, shape, kind)?;
        let last = Arg::Int(shape.len() as i64 - 1);
        let made = match self.rng.chance(0.3) {
            true => self.emit("softmax.int", vec![t(operand), last], Fact::ROUNDED),
            false => self.made(|g| normalize_of(g, operand)),
        };
        // Norms may be of another type.
        made.filter(|&made| self.kind(made) == kind)
    }

    /// A sum, mean or maximum over a further dimension of a new input.
    fn reduced(&mut self, shape: &[i64], kind: Kind, input: NewInput) -> Option<u32> {
        if !is_float(kind) {
            return None;
        }
        let (at, count) = (self.rng.below(shape.len() + 1), self.rng.range(1, 6));
        let operand = input(self, &[&shape[..at], &[count], &shape[at..]].concat(), kind)?;
        let name = *self.rng.pick(&["sum.dim_IntList", "mean.dim", "amax"]);
        let fact = if name == "amax" { self.fact(operand) } else { Fact::ROUNDED };
        self.emit(name, vec![t(operand), Arg::Ints(vec![at as i64]), Arg::Bool(false)], fact)
    }

    /// A new input of another floating-point type, converted.
    fn converted(&mut self, shape: &[i64], kind: Kind) -> Option<u32> {
        let other = *self.rng.pick(&[Kind::Float, Kind::BFloat16, Kind::Half]);
        if !is_float(kind) || other == kind {
            return None;
        }
        let input = self.plain_input(shape, other)?;
        let args = vec![t(input), Arg::DType(code_of(kind)), Arg::Bool(false), Arg::Bool(false)];
        self.emit("to.dtype", args, Fact::ROUNDED)
    }
}
