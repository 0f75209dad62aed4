//! Operators that read memory which they write, through the same view or another: what they compute may depend on the order in
//! which libtorch goes through the elements.

use tch::Kind;

use super::write::{store, store_all};
use super::{Fact, Generator, t};
use crate::random::program::is_float;
use crate::torch::Arg;

/// Writes `target` with an operator that reads its memory.
pub(super) fn overlap(g: &mut Generator, target: u32) -> Option<()> {
    let fact = g.fact(target);
    match g.rng.below(13) {
        0 | 1 => {
            let other = g.shared(target)?;
            store(g, target, "copy_", vec![t(target), t(other)], fact)
        }
        2 => {
            let other = g.shared(target)?;
            let name = *g.rng.pick(&["add_.Tensor", "mul_.Tensor"]);
            store(g, target, name, vec![t(target), t(other)], Fact::ROUNDED)
        }
        3 => {
            let mask = g.input(&g.size(target), Kind::Bool)?;
            store(g, target, "masked_scatter_", vec![t(target), t(mask), t(target)], fact)
        }
        4 | 5 => indexed(g, target),
        6 => {
            let (dim, name) = (g.dim(target)?, *g.rng.pick(&["cumsum.out", "flip.out", "roll.out"]));
            let along = Arg::Ints(vec![dim]);
            let args = match name {
                "cumsum.out" => vec![t(target), Arg::Int(dim), Arg::None, t(target)],
                "flip.out" => vec![t(target), along, t(target)],
                _ => vec![t(target), Arg::Ints(vec![1]), along, t(target)],
            };
            store(g, target, name, args, Fact::ROUNDED)
        }
        7 => product(g, target),
        8 | 12 => statistics(g, target),
        9 => lists(g, target),
        10 => copied_view(g, target),
        _ => replaced(g, target),
    }
}

impl Generator {
    /// A view of a value's memory, often the value itself.
    fn shared(&mut self, target: u32) -> Option<u32> {
        if self.rng.chance(0.4) {
            return Some(target);
        }
        let storage = self.storage_of(target);
        let base = self.value(|g, id| g.storage_of(id) == storage)?;
        if self.rng.chance(0.5) { super::write::view_of(self, base) } else { Some(base) }
    }
}

/// Elements of the value itself at places of one of its dimensions.
fn indexed(g: &mut Generator, target: u32) -> Option<()> {
    let dim = g.dim(target)?;
    let n = g.size(target)[dim as usize];
    let index = g.indices(&[n], n)?;
    let source = if g.rng.chance(0.7) { target } else { g.shared(target)? };
    let (name, args) = match g.rng.below(4) {
        0 => {
            let places = (0..=dim).map(|d| (d == dim).then_some(index)).collect();
            ("index_put_", vec![t(target), Arg::Tensors(places), t(source), Arg::Bool(g.rng.chance(0.5))])
        }
        1 => ("index_add_", vec![t(target), Arg::Int(dim), t(index), t(source)]),
        2 => ("index_copy_", vec![t(target), Arg::Int(dim), t(index), t(source)]),
        _ => {
            let places = g.indices(&g.size(target), n)?;
            ("scatter_.src", vec![t(target), Arg::Int(dim), t(places), t(source)])
        }
    };
    store(g, target, name, args, Fact::ROUNDED)
}

/// A product that is written over a factor, or added to one.
fn product(g: &mut Generator, target: u32) -> Option<()> {
    let (size, kind) = (g.size(target), g.kind(target));
    let &[rows, columns] = &size[..] else { return None };
    if rows.max(columns) > 256 {
        return None;
    }
    let weight = g.input(&[columns, columns], kind)?;
    match g.rng.below(3) {
        0 => store(g, target, "mm.out", vec![t(target), t(weight), t(target)], Fact::ROUNDED),
        1 => store(g, target, "addmm_", vec![t(target), t(target), t(weight)], Fact::ROUNDED),
        _ if rows == columns => {
            store(g, target, "addmm_", vec![t(target), t(weight), t(target)], Fact::ROUNDED)
        }
        _ => None,
    }
}

/// A batch norm in training whose weight or bias is one of the running statistics that it writes.
fn statistics(g: &mut Generator, target: u32) -> Option<()> {
    let &[channels] = &g.size(target)[..] else { return None };
    if !is_float(g.kind(target)) || channels == 0 {
        return None;
    }
    let (kind, rows) = (g.kind(target), g.rng.range(2, 9));
    let x = g.plain_input(&[rows, channels], kind)?;
    let other = g.plain_input(&[channels], kind)?;
    let (weight, bias) = if g.rng.chance(0.5) { (target, other) } else { (other, target) };
    let mut args: Vec<_> = [x, weight, bias, target, target].map(t).into();
    let own = g.plain_input(&[channels], kind)?;
    // Threads write what channels share in any order.
    if super::write::overlaps(g, own) {
        return None;
    }
    args[if g.rng.chance(0.5) { 3 } else { 4 }] = t(own);
    args.extend([Arg::Bool(true), Arg::Float(0.1), Arg::Float(1e-5), Arg::Bool(true)]);
    store(g, target, "batch_norm", args, Fact::ROUNDED)
}

/// Two values, each of which is added to the other.
fn lists(g: &mut Generator, target: u32) -> Option<()> {
    let (size, kind) = (g.size(target), g.kind(target));
    let other = g.value(|g, id| id != target && g.size(id) == size && g.kind(id) == kind)?;
    if super::write::overlaps(g, other) {
        return None;
    }
    let list = |ids: [u32; 2]| Arg::Tensors(ids.map(Some).into());
    let name = *g.rng.pick(&["_foreach_add_.List", "_foreach_mul_.List"]);
    let args = vec![list([target, other]), list([other, target])];
    store_all(g, &[target, other], name, args, Fact::ROUNDED, &[])
}

/// A copy of a view of a value that is written over another view of its memory.
fn copied_view(g: &mut Generator, target: u32) -> Option<()> {
    let (size, fact) = (g.size(target), g.fact(target));
    let source = if g.rng.chance(0.3) { g.shared(target)? } else { g.any()? };
    let (name, args) = match (g.rng.below(3), &size[..]) {
        (0, _) => {
            let strides = size.iter().map(|_| g.rng.range(0, 3)).collect();
            ("as_strided_copy.out", vec![t(source), Arg::Ints(size), Arg::Ints(strides), Arg::None])
        }
        // A parameter of another size is no longer what the next call is judged by.
        (1, &[rows, columns]) if g.size(source) == [columns, rows] || !is_of_param(g, target) => {
            ("permute_copy.out", vec![t(source), Arg::Ints(vec![1, 0])])
        }
        _ => ("expand_copy.out", vec![t(source), Arg::Ints(size), Arg::Bool(false)]),
    };
    let fact = if source == target { fact } else { g.joined(&[source, target]) };
    store(g, target, name, args.into_iter().chain([t(target)]).collect(), fact)
}

/// Whether a value lies in a parameter's memory.
fn is_of_param(g: &Generator, id: u32) -> bool {
    let storage = g.storage_of(id);
    g.program.inputs.iter().any(|input| input.param && g.storage_of(input.id) == storage)
}

/// Another memory for a value: `set_data`.
fn replaced(g: &mut Generator, target: u32) -> Option<()> {
    // A parameter that has another one's memory is no longer what the next call is judged by.
    // libtorch's fallback for lazily negated tensors writes into memory that it has freed, in eager.
    if is_of_param(g, target) || g.tensor(target).is_neg() {
        return None;
    }
    let (size, kind) = (g.size(target), g.kind(target));
    let other = g.value(|g, id| id != target && g.size(id) == size && g.kind(id) == kind)?;
    let fact = g.fact(other);
    g.emit_all("set_data", vec![t(target), t(other)], &[])?;
    g.facts.insert(target, fact);
    Some(())
}
