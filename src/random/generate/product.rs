//! Products of matrices and tensors.

use tch::Kind;

use super::reduce::has_squares;
use super::{Fact, Generator, t};
use crate::torch::Arg;

/// A product of a value and other operands.
pub(super) fn product(g: &mut Generator) -> Option<()> {
    let floats = g.rng.chance(0.9);
    let x = g.value(|g, id| fits(g, id) && g.is_float(id) == floats)?;
    product_of(g, x)
}

fn fits(g: &Generator, id: u32) -> bool {
    g.kind(id) != Kind::Bool && g.rank(id) > 0 && g.tensor(id).numel() < g.traits.most_operand
}

/// The same of this value.
pub(super) fn product_of(g: &mut Generator, x: u32) -> Option<()> {
    if !fits(g, x) || !has_squares(g, x) {
        return None;
    }
    let (size, kind) = (g.size(x).to_vec(), g.kind(x));
    let last = *size.last()?;
    let other = g.extent();
    let fact = Fact::ROUNDED;
    match (size.len(), g.rng.below(15)) {
        (_, 0..=1) => {
            let weight = g.operand(&[other, last], kind)?;
            let bias = if g.rng.chance(0.5) { t(g.operand(&[other], kind)?) } else { Arg::None };
            g.emit("linear", vec![t(x), t(weight), bias], fact)?;
        }
        (..=3, 2..=3) => einsum(g, x, &size)?,
        (_, 4) => {
            let at = g.rng.below(size.len());
            let rhs = g.operand(&[other, size[at]], kind)?;
            g.emit("tensordot", vec![t(x), t(rhs), Arg::Ints(vec![at as i64]), Arg::Ints(vec![1])], fact)?;
        }
        (_, 10) => labels_of_many(g, x, &size)?,
        (_, 11) => {
            let shapes = [vec![], size.clone(), vec![other, last], vec![last]];
            let shape = g.rng.pick(&shapes);
            let rhs = g.operand(shape, kind)?;
            g.emit("inner", vec![t(x), t(rhs)], fact)?;
        }
        // Two products, one of the other's result: which of their sums leave the range of the type is seen by no run.
        (_, 12) if !g.traits.special => {
            let many = g.extent();
            let right: Vec<i64> = size[..size.len() - 1].iter().copied().chain([other]).collect();
            let (right, weight) = (g.operand(&right, kind)?, g.operand(&[many, last, other], kind)?);
            let bias = if g.rng.chance(0.5) { t(g.operand(&[many], kind)?) } else { Arg::None };
            g.emit("bilinear", vec![t(x), t(right), t(weight), bias], fact)?;
        }
        (..=2, 13) => {
            let mut factors = vec![Some(x)];
            let mut rows = last;
            let more = 1 + g.rng.below(4);
            for at in 0..more {
                let columns = g.extent();
                let column = at + 1 == more && g.rng.chance(0.2);
                let shape = if column { vec![rows] } else { vec![rows, columns] };
                factors.push(Some(g.operand(&shape, kind)?));
                rows = columns;
            }
            let matrices = size.len() == 2 && g.rng.chance(0.3);
            let name = if matrices { "chain_matmul" } else { "linalg_multi_dot" };
            g.emit(name, vec![Arg::Tensors(factors)], fact)?;
        }
        (_, 14) => {
            // libtorch's kernels leave results unwritten where operands are strided, or transposed and have a size of 1.
            let mut extent = || g.extent().max(2);
            let (lhs, rhs) = ([extent(), extent()], extent());
            let (lhs, rhs) = match (kind, &size[..]) {
                (Kind::Int8, &[rows, depth]) if rows.min(depth) > 1 => (x, [depth, rhs]),
                _ => (g.input(&lhs, Kind::Int8)?, [lhs[1], rhs]),
            };
            let rhs = g.input(&rhs, Kind::Int8)?;
            if ![lhs, rhs].iter().all(|&operand| g.tensor(operand).is_contiguous()) {
                return None;
            }
            g.emit("_int_mm", vec![t(lhs), t(rhs)], fact)?;
        }
        (1, 5..=6) => {
            let rhs = g.operand(&[last], kind)?;
            let name = *g.rng.pick(&["dot", "vdot"]);
            g.emit(name, vec![t(x), t(rhs)], fact)?;
        }
        (1, 7) => {
            let rhs = g.operand(&[other], kind)?;
            let name = *g.rng.pick(&["outer", "ger"]);
            g.emit(name, vec![t(x), t(rhs)], fact)?;
        }
        (1, _) => {
            if g.rng.chance(0.3) {
                let mat = g.operand(&[other, last], kind)?;
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
            let rhs = g.operand(&[last, other], kind)?;
            g.emit("mm", vec![t(x), t(rhs)], fact)?;
        }
        (2, _) => {
            with_factors(g, "addmm", &[size[0], other], |g, alpha| {
                Some(vec![t(x), t(g.operand_of_factor(&[last, other], kind, alpha)?)])
            })?;
        }
        (3, 5) => {
            let rhs = g.operand(&[size[0], last, other], kind)?;
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
            let rhs = g.operand(&shape, kind)?;
            g.emit("matmul", vec![t(x), t(rhs)], fact)?;
        }
    }
    Some(())
}

/// Something that broadcasts to a shape, beside a factor.
fn addend(g: &mut Generator, shape: &[i64], kind: Kind, beta: f64) -> Option<u32> {
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
    let rhs = g.operand(&shape, g.kind(x))?;
    let right: String = right.iter().map(|r| r.0).collect();
    let equation = Arg::Str(format!("{left},{right}->{output}"));
    g.emit("einsum", vec![equation, Arg::Tensors(vec![Some(x), Some(rhs)])], Fact::ROUNDED)?;
    Some(())
}

/// Most products that an Einstein sum of many operands may take.
const MAX_PRODUCTS: i64 = 1 << 18;

/// Labels of one to four operands: dimensions of `...`, of diagonals and of size 1 among them, a result that is said or not, and
/// perhaps the order of products.
fn labels_of_many(g: &mut Generator, x: u32, size: &[i64]) -> Option<()> {
    let mut sizes: Vec<(char, i64)> = Vec::new();
    let ellipsis = if g.rng.chance(0.3) { g.rng.below(size.len() + 1) } else { 0 };
    let mut text = String::from(if ellipsis > 0 { "..." } else { "" });
    for &n in &size[ellipsis..] {
        let same: Vec<char> =
            sizes.iter().filter(|(_, other)| *other == n).map(|&(label, _)| label).collect();
        let label = match same.len() {
            count if count > 0 && g.rng.chance(0.2) => same[g.rng.below(count)],
            _ => *g.rng.pick(&['a', 'B', 'c', 'D', 'e', 'f', 'g', 'h', 'i', 'j']),
        };
        if sizes.iter().any(|&(known, other)| known == label && other != n) {
            return None;
        }
        text.push(label);
        sizes.push((label, n));
    }
    let (mut inputs, mut operands) = (vec![text], vec![Some(x)]);
    for _ in 0..g.rng.below(4) {
        let (mut text, mut shape) = (String::new(), Vec::new());
        if ellipsis > 0 && g.rng.chance(0.5) {
            let from = g.rng.below(ellipsis + 1);
            text.push_str("...");
            shape.extend_from_slice(&size[from..ellipsis]);
        }
        for at in g.rng.permutation(sizes.len()) {
            let (label, n) = sizes[at];
            if g.rng.chance(0.5) && !text.contains(label) {
                text.push(label);
                shape.push(if g.rng.chance(0.1) { 1 } else { n });
            }
        }
        if g.rng.chance(0.5) {
            let label = *g.rng.pick(&['k', 'L', 'm', 'N']);
            let known = sizes.iter().find(|(known, _)| *known == label).map(|&(_, n)| n);
            let n = known.unwrap_or_else(|| g.extent());
            if known.is_none() {
                sizes.push((label, n));
            }
            if !text.contains(label) {
                text.push(label);
                shape.push(n);
            }
        }
        operands.push(Some(g.operand(&shape, g.kind(x))?));
        inputs.push(text);
    }
    let mut distinct = sizes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let all = distinct.iter().map(|&(_, n)| n).chain(size[..ellipsis].iter().copied());
    all.map(|n| n.max(1)).try_fold(1i64, i64::checked_mul).filter(|&n| n <= MAX_PRODUCTS)?;
    let mut equation = inputs.join(",");
    if g.rng.chance(0.75) {
        equation.push_str("->");
        if ellipsis > 0 && g.rng.chance(0.8) {
            equation.push_str("...");
        }
        for at in g.rng.permutation(distinct.len()) {
            if g.rng.chance(0.6) {
                equation.push(distinct[at].0);
            }
        }
    }
    let count = operands.len();
    let mut args = vec![Arg::Str(equation), Arg::Tensors(operands)];
    if count > 1 && g.rng.chance(0.2) {
        let mut path = Vec::new();
        for left in (2..=count).rev() {
            path.extend(g.rng.permutation(left).into_iter().take(2).map(|at| at as i64));
        }
        args.push(Arg::Ints(path));
    }
    g.emit("einsum", args, Fact::ROUNDED)?;
    Some(())
}
