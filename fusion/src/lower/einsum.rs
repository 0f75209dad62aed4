//! Einstein sums: contractions of two operands at a time, from the left or in the order of a path.
//!
//! ```text
//! %3 = aten::einsum(equation="bik,bkj,b->ij",     ->   %3 = contract batch[0]x[0] sum[2]x[1](%0, %1) : f32[2,4,5]
//!      tensors=[%0, %1, %2]) : f32[4,5]                %4 = contract sum[0]x[0](%3, %2) : f32[4,5]
//! ```
//!
//! A label that is in an operand twice is its diagonal. One that is in neither the other operands nor the result is summed first.
//! The dimensions of `...` are labels of their own, counted from the last one. An operand has no dimension where it has size 1
//! and another one has more.

use tilefuse_block::ReduceFn;

use super::cx::{Call, Cx, wide};
use super::view::diagonal_of;
use crate::graph::ValueRef;

/// A letter, or a dimension of `...`, counted from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(std::cmp::Reverse<usize>),
    Letter(char),
}

/// A value, and the labels of its dimensions.
struct Labelled {
    value: ValueRef,
    labels: Vec<Label>,
}

pub(super) fn einsum(cx: &mut Cx, call: &Call<'_>) -> Option<ValueRef> {
    let equation: String = call.args.str("equation")?.chars().filter(|c| !c.is_whitespace()).collect();
    let values = call.tensors("tensors")?;
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    let inputs: Vec<&str> = inputs.split(',').collect();
    if inputs.len() != values.len() {
        return None;
    }
    let ranks: Vec<usize> = values.iter().map(|&value| cx.rank(value)).collect();
    let labels: Vec<Vec<Label>> =
        inputs.iter().zip(&ranks).map(|(text, &rank)| labels(text, rank)).collect::<Option<_>>()?;
    let output = output_labels(output, &labels)?;
    let mut operands = Vec::new();
    for (value, labels) in values.into_iter().zip(labels) {
        operands.push(with_diagonals(cx, value, labels)?);
    }
    without_broadcast(cx, &mut operands)?;
    let sole = operands.len() == 1;
    let path = if call.args.absent("path") { None } else { Some(call.args.ints("path")?) };
    let mut path = path.into_iter().flatten();
    while operands.len() > 1 {
        let at = |n: Option<i64>| usize::try_from(n.unwrap_or(0)).ok().filter(|&n| n < operands.len());
        let next = path.next();
        let first = at(next)?;
        let second = if next.is_some() { at(Some(path.next()?))? } else { 1 };
        let (low, high) = (first.min(second), first.max(second));
        if low == high {
            return None;
        }
        let rhs = operands.remove(high);
        let lhs = operands.remove(low);
        let kept = |label: &Label| {
            output.contains(label) || operands.iter().any(|operand| operand.labels.contains(label))
        };
        let pair = contracted(cx, call, lhs, rhs, &kept)?;
        // Results come behind the other operands of a path.
        operands.insert(if next.is_some() { operands.len() } else { 0 }, pair);
    }
    let last = operands.pop()?;
    let lone = |label: &Label| !output.contains(label);
    // Without a sum, the result of one operand is a view of it.
    if sole && !last.labels.iter().any(lone) {
        return None;
    }
    let last = summed(cx, call, last, &lone)?;
    let order = output.iter().map(|label| place(&last, label)).collect::<Option<Vec<_>>>()?;
    cx.permute(last.value, &order)
}

/// The labels of an operand of this rank.
fn labels(text: &str, rank: usize) -> Option<Vec<Label>> {
    let letters = |text: &str| -> Option<Vec<Label>> {
        let letter = |c: char| c.is_ascii_alphabetic().then_some(Label::Letter(c));
        text.chars().map(letter).collect()
    };
    let Some((before, behind)) = text.split_once("...") else {
        return letters(text).filter(|labels| labels.len() == rank);
    };
    let (before, behind) = (letters(before)?, letters(behind)?);
    let many = rank.checked_sub(before.len() + behind.len())?;
    let ellipsis = (0..many).rev().map(|d| Label::Ellipsis(std::cmp::Reverse(d)));
    Some(before.iter().copied().chain(ellipsis).chain(behind.iter().copied()).collect())
}

/// The labels of the result: those that are said, or the dimensions of `...`, and then the letters that are there once.
fn output_labels(said: Option<&str>, inputs: &[Vec<Label>]) -> Option<Vec<Label>> {
    let mut all: Vec<Label> = inputs.iter().flatten().copied().collect();
    all.sort_unstable();
    let count = |label: &Label| all.iter().filter(|other| *other == label).count();
    let is_ellipsis = |label: &Label| matches!(label, Label::Ellipsis(_));
    let mut distinct = all.clone();
    distinct.dedup();
    let output = match said {
        Some(text) => {
            let many =
                if text.contains("...") { distinct.iter().filter(|l| is_ellipsis(l)).count() } else { 0 };
            labels(text, text.replace("...", "").chars().count() + many)?
        }
        None => distinct.iter().filter(|l| is_ellipsis(l) || count(l) == 1).copied().collect(),
    };
    let once = (1..output.len()).all(|at| !output[..at].contains(&output[at]));
    (once && output.iter().all(|label| distinct.contains(label))).then_some(output)
}

fn place(operand: &Labelled, label: &Label) -> Option<usize> {
    operand.labels.iter().position(|own| own == label)
}

/// An operand whose labels are all different.
fn with_diagonals(cx: &mut Cx, mut value: ValueRef, mut labels: Vec<Label>) -> Option<Labelled> {
    while let Some((first, second)) = (0..labels.len()).find_map(|second| {
        let first = labels[..second].iter().position(|label| *label == labels[second])?;
        Some((first, second))
    }) {
        let shape = cx.shape(value);
        if shape[first] != shape[second] {
            return None;
        }
        value = diagonal_of(cx, value, [first, second], 0, shape[first])?;
        let label = labels.remove(second);
        labels.remove(first);
        labels.push(label);
    }
    Some(Labelled { value, labels })
}

/// Takes dimensions of size 1 from operands, where another one has more of the same label.
fn without_broadcast(cx: &mut Cx, operands: &mut [Labelled]) -> Option<()> {
    let mut wide_labels = Vec::new();
    for operand in operands.iter() {
        let shape = cx.shape(operand.value);
        wide_labels
            .extend(operand.labels.iter().zip(&shape).filter(|(_, n)| **n != 1).map(|(label, _)| *label));
    }
    for operand in operands {
        let shape = cx.shape(operand.value);
        let kept: Vec<bool> = operand
            .labels
            .iter()
            .zip(&shape)
            .map(|(label, &n)| n != 1 || !wide_labels.contains(label))
            .collect();
        if kept.iter().all(|&kept| kept) {
            continue;
        }
        let narrow: Vec<i64> = shape.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(&n, _)| n).collect();
        operand.value = cx.reshape(operand.value, &narrow)?;
        let mut kept = kept.into_iter();
        operand.labels.retain(|_| kept.next().unwrap_or(true));
    }
    Some(())
}

/// An operand without the labels that are summed, rounded as libtorch's sums are.
fn summed(
    cx: &mut Cx,
    call: &Call<'_>,
    operand: Labelled,
    lone: &dyn Fn(&Label) -> bool,
) -> Option<Labelled> {
    let dims: Vec<usize> = (0..operand.labels.len()).filter(|&d| lone(&operand.labels[d])).collect();
    if dims.is_empty() {
        return Some(operand);
    }
    let elem = call.elem()?;
    let value = cx.cast(operand.value, wide(elem))?;
    let value = cx.reduce(ReduceFn::Sum, value, &dims, false)?;
    let value = cx.cast(value, elem)?;
    let labels = operand.labels.into_iter().filter(|label| !lone(label)).collect();
    Some(Labelled { value, labels })
}

/// The contraction of two operands: the batch are the labels of both that are kept, what neither keeps is summed.
fn contracted(
    cx: &mut Cx,
    call: &Call<'_>,
    lhs: Labelled,
    rhs: Labelled,
    kept: &dyn Fn(&Label) -> bool,
) -> Option<Labelled> {
    let [left, right] = [lhs.labels.clone(), rhs.labels.clone()];
    let lhs = summed(cx, call, lhs, &|label| !right.contains(label) && !kept(label))?;
    let rhs = summed(cx, call, rhs, &|label| !left.contains(label) && !kept(label))?;
    let shared: Vec<(Label, (usize, usize))> = lhs
        .labels
        .iter()
        .enumerate()
        .filter_map(|(at, label)| Some((*label, (at, place(&rhs, label)?))))
        .collect();
    let (batch, sum): (Vec<_>, Vec<_>) = shared.into_iter().partition(|(label, _)| kept(label));
    let pairs = |list: &[(Label, (usize, usize))]| list.iter().map(|&(_, pair)| pair).collect::<Vec<_>>();
    let value = cx.contract(lhs.value, rhs.value, &pairs(&batch), &pairs(&sum))?;
    let value = cx.cast(value, call.elem()?)?;
    let alone = lhs.labels.iter().filter(|label| place(&rhs, label).is_none());
    let alone = alone.chain(rhs.labels.iter().filter(|label| place(&lhs, label).is_none()));
    let labels = batch.iter().map(|&(label, _)| label).chain(alone.copied()).collect();
    Some(Labelled { value, labels })
}
