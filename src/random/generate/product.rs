//! Products of matrices and tensors.

use super::{Fact, Generator, is_float, t};
use crate::torch::Arg;

/// A product of a value and a new input.
pub(super) fn product(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| {
        is_float(g.kind(id)) && g.rank(id) > 0 && g.tensor(id).numel() < g.traits.most_operand
    })?;
    let (size, kind) = (g.size(x).to_vec(), g.kind(x));
    let last = *size.last()?;
    let other = g.extent();
    let fact = Fact::ROUNDED;
    match (size.len(), g.rng.below(10)) {
        (_, 0..=1) => {
            let weight = g.input(&[other, last], kind)?;
            let bias = if g.rng.chance(0.5) { t(g.input(&[other], kind)?) } else { Arg::None };
            g.emit("linear", vec![t(x), t(weight), bias], fact)?;
        }
        (..=3, 2..=3) => einsum(g, x, &size)?,
        (_, 4) => {
            let at = g.rng.below(size.len());
            let rhs = g.input(&[other, size[at]], kind)?;
            g.emit("tensordot", vec![t(x), t(rhs), Arg::Ints(vec![at as i64]), Arg::Ints(vec![1])], fact)?;
        }
        (1, 5..=6) => {
            let rhs = g.input(&[last], kind)?;
            g.emit("dot", vec![t(x), t(rhs)], fact)?;
        }
        (1, _) => {
            if g.rng.chance(0.3) {
                let mat = g.input(&[other, last], kind)?;
                g.emit("mv", vec![t(mat), t(x)], fact)?;
            } else if g.rng.chance(0.5) {
                with_factors(g, "addmv", &[other], |g, alpha| {
                    Some(vec![t(g.operand_of_factor(&[other, last], kind, alpha)?), t(x)])
                })?;
            } else {
                with_factors(g, "addr", &[last, other], |g, alpha| {
                    Some(vec![t(x), t(g.operand_of_factor(&[other], kind, alpha)?)])
                })?;
            }
        }
        (2, 5..=6) => {
            let rhs = g.input(&[last, other], kind)?;
            g.emit("mm", vec![t(x), t(rhs)], fact)?;
        }
        (2, _) => {
            with_factors(g, "addmm", &[size[0], other], |g, alpha| {
                Some(vec![t(x), t(g.operand_of_factor(&[last, other], kind, alpha)?)])
            })?;
        }
        (3, 5) => {
            let rhs = g.input(&[size[0], last, other], kind)?;
            g.emit("bmm", vec![t(x), t(rhs)], fact)?;
        }
        (3, 6..=7) => {
            let sums = g.rng.chance(0.5);
            let shape = [size[0], size[1], other];
            let name = if sums { "addbmm" } else { "baddbmm" };
            with_factors(g, name, if sums { &shape[1..] } else { &shape }, |g, alpha| {
                Some(vec![t(x), t(g.operand_of_factor(&[size[0], last, other], kind, alpha)?)])
            })?;
        }
        _ => {
            // Dimensions of the batch that the other operand has not, or has with size 1.
            let mut shape: Vec<i64> = size[..size.len().saturating_sub(2)].to_vec();
            let cut = g.rng.below(shape.len() + 1);
            shape.drain(..cut);
            for n in &mut shape {
                if g.rng.chance(0.3) {
                    *n = 1;
                }
            }
            shape.push(last);
            if !g.rng.chance(0.15) || shape.len() > 1 {
                shape.push(other);
            }
            let rhs = g.input(&shape, kind)?;
            g.emit("matmul", vec![t(x), t(rhs)], fact)?;
        }
    }
    Some(())
}

/// Something that broadcasts to a shape, beside a factor.
fn addend(g: &mut Generator, shape: &[i64], kind: tch::Kind, beta: f64) -> Option<u32> {
    let cut = g.rng.below(shape.len());
    let kept = shape[cut..].iter().map(|&n| if g.rng.chance(0.2) { 1 } else { n }).collect::<Vec<_>>();
    // libtorch takes no scalar for a vector.
    g.operand_of_factor(if shape.len() == 1 { shape } else { &kept }, kind, beta)
}

/// A call with `beta` and `alpha` whose result has this shape; `operands` makes those of the product beside `alpha`.
fn with_factors(
    g: &mut Generator,
    name: &str,
    shape: &[i64],
    operands: impl FnOnce(&mut Generator, f64) -> Option<Vec<Arg<u32>>>,
) -> Option<()> {
    let mut factor = || *g.rng.pick(&[1.0, 1.0, 0.0, 0.0, 0.0, 0.5, -2.0, 0.3]);
    let (beta, alpha) = (factor(), factor());
    let operands = operands(g, alpha)?;
    let Some(Arg::Tensor(of)) = operands.first() else { return None };
    let addend = addend(g, shape, g.kind(*of), beta)?;
    let args = [t(addend)].into_iter().chain(operands).chain([beta, alpha].map(Arg::Float));
    g.emit(name, args.collect(), Fact::ROUNDED)?;
    Some(())
}

/// Labels in any order: of the value's dimensions some are of the batch, some are summed, and both operands have others.
fn einsum(g: &mut Generator, x: u32, size: &[i64]) -> Option<()> {
    let mut labels: Vec<(char, i64)> = ('a'..).zip(size.iter().copied()).collect();
    let left: String = labels.iter().map(|l| l.0).collect();
    let (mut right, mut output) = (Vec::new(), Vec::new());
    for &(label, n) in &labels {
        match g.rng.below(4) {
            0 => right.push((label, n)),
            1 => {
                right.push((label, n));
                output.push(label);
            }
            _ => output.push(label),
        }
    }
    for label in ['x', 'y'] {
        if g.rng.chance(0.5) {
            let n = g.extent();
            labels.push((label, n));
            right.push((label, n));
            output.push(label);
        }
    }
    let order = g.rng.permutation(right.len());
    let right: Vec<(char, i64)> = order.into_iter().map(|at| right[at]).collect();
    let order = g.rng.permutation(output.len());
    let output: String = order.into_iter().map(|at| output[at]).collect();
    let shape: Vec<i64> = right.iter().map(|r| r.1).collect();
    let rhs = g.input(&shape, g.kind(x))?;
    let right: String = right.iter().map(|r| r.0).collect();
    let equation = Arg::Str(format!("{left},{right}->{output}"));
    g.emit("einsum", vec![equation, Arg::Tensors(vec![Some(x), Some(rhs)])], Fact::ROUNDED)?;
    Some(())
}
