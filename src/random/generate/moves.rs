//! Operators that move elements and are more than one view: repetitions, diagonals, parts of a value and writes to them; and
//! tensors of one number.

use super::write::overlaps;
use super::{Fact, Generator, t};
use crate::random::program::is_float;
use crate::torch::Arg;

pub(super) fn moves(g: &mut Generator) -> Option<()> {
    let x = g.value(|g, id| g.rank(id) > 0)?;
    let (size, fact) = (g.size(x), g.fact(x));
    let dim = g.dim(x)?;
    let n = size[dim as usize];
    match g.rng.below(14) {
        0 => {
            let mut counts: Vec<i64> = size.iter().map(|_| g.rng.range(1, 4)).collect();
            if g.rng.chance(0.3) {
                counts.insert(0, 2);
            }
            let name = *g.rng.pick(&["repeat", "tile"]);
            g.emit(name, vec![t(x), Arg::Ints(counts)], fact)?;
        }
        1 => {
            let times = Arg::Int(g.rng.range(1, 4));
            g.emit("repeat_interleave.self_int", vec![t(x), times, Arg::Int(dim)], fact)?;
        }
        2 if (1..=6).contains(&n) => {
            g.emit_all("unbind.int", vec![t(x), Arg::Int(dim)], &vec![fact; n as usize])?;
        }
        3 => {
            let first = g.rng.range(0, n + 1);
            let parts = Arg::Ints(vec![first, n - first]);
            g.emit_all("split_with_sizes", vec![t(x), parts, Arg::Int(dim)], &[fact, fact])?;
        }
        4 => {
            let parts = 1 + g.rng.below(3);
            let args = vec![t(x), Arg::Int(parts as i64), Arg::Int(dim)];
            g.emit_all("tensor_split.sections", args, &vec![fact; parts])?;
        }
        5 => {
            let start = g.rng.range(0, n + 1);
            let length = g.rng.range(0, n - start + 1);
            g.emit("narrow", vec![t(x), Arg::Int(dim), Arg::Int(start), Arg::Int(length)], fact)?;
        }
        6 => {
            let other = g.partner(x)?;
            g.emit("expand_as", vec![t(x), t(other)], fact)?;
        }
        7 => {
            let factor = *g.rng.pick(&[1, 2, 3]);
            let parts = Arg::Ints(vec![factor, -1]);
            g.emit("unflatten.int", vec![t(x), Arg::Int(dim), parts], fact)?;
        }
        8 => pixels(g, x)?,
        9 => scatter(g, x)?,
        _ => return turned(g, x),
    }
    Some(())
}

/// Views of other order, by operators that have names of their own.
fn turned(g: &mut Generator, x: u32) -> Option<()> {
    let fact = g.fact(x);
    let (dim, other) = (g.dim(x)?, g.dim(x)?);
    let (name, args) = match g.rng.below(6) {
        0 => ("diagonal", vec![t(x), Arg::Int(g.rng.range(-2, 3)), Arg::Int(dim), Arg::Int(other)]),
        1 => ("mT", vec![t(x)]),
        2 => ("flipud", vec![t(x)]),
        3 => ("fliplr", vec![t(x)]),
        4 => ("movedim.int", vec![t(x), Arg::Int(dim), Arg::Int(other)]),
        _ => ("view_as", vec![t(x), t(g.partner(x)?)]),
    };
    g.emit(name, args, fact)?;
    Some(())
}

/// Channels to blocks of pixels, and back.
fn pixels(g: &mut Generator, x: u32) -> Option<()> {
    let size = g.size(x);
    let &[channels, height, width] = size.last_chunk::<3>()?;
    let fact = g.fact(x);
    let name = match (channels % 4, height % 2 + width % 2) {
        (0, 0) => *g.rng.pick(&["pixel_shuffle", "pixel_unshuffle"]),
        (0, _) => "pixel_shuffle",
        (_, 0) => "pixel_unshuffle",
        _ => return None,
    };
    g.emit(name, vec![t(x), Arg::Int(2)], fact)?;
    Some(())
}

/// A copy of a value in which a part is another's.
fn scatter(g: &mut Generator, x: u32) -> Option<()> {
    // The copy's elements overlap as the value's do, and are written in no certain order.
    if overlaps(g, x) {
        return None;
    }
    let (mut size, kind) = (g.size(x), g.kind(x));
    let dim = g.dim(x)?;
    let n = size[dim as usize];
    let (name, place) = match g.rng.below(3) {
        0 if n > 0 => {
            size.remove(dim as usize);
            ("select_scatter", vec![Arg::Int(dim), Arg::Int(g.rng.range(-n, n))])
        }
        1 if size.len() == 2 => {
            size = vec![size[0].min(size[1])];
            ("diagonal_scatter", vec![Arg::Int(0)])
        }
        _ => {
            let start = g.rng.range(0, n + 1);
            let end = g.rng.range(start, n + 1);
            size[dim as usize] = end - start;
            ("slice_scatter", vec![Arg::Int(dim), Arg::Int(start), Arg::Int(end)])
        }
    };
    let part = g.input(&size, kind)?;
    let fact = g.joined(&[x, part]);
    g.emit(name, [vec![t(x), t(part)], place].concat(), fact)?;
    Some(())
}

/// A tensor of one number, of the shape of a value or of its own.
pub(super) fn filled(g: &mut Generator) -> Option<()> {
    let x = g.any()?;
    let size = Arg::Ints(g.size(x));
    let number = if is_float(g.kind(x)) { Arg::Float(*g.rng.pick(&[0.5, -2.0])) } else { Arg::Int(1) };
    let (name, args) = match g.rng.below(5) {
        0 => ("zeros_like", vec![t(x)]),
        1 => ("ones_like", vec![t(x)]),
        2 => ("full_like", vec![t(x), number]),
        3 => ("new_zeros", vec![t(x), size]),
        _ => ("new_full", vec![t(x), size, number]),
    };
    g.emit(name, args, Fact { exact: true, bound: None })?;
    Some(())
}
