//! Loops, branches and combiners.

use std::panic::Location;

use super::operand::promote;
use super::ops::axis_of;
use super::{Operand, Ptr, Result, Tile, with};
use crate::builder::Builder;
use crate::infer::TypeError;
use crate::program::Value;
use crate::types::Elem;

/// What a loop or branch of the program hands on: tiles, pointers into one parameter, and tuples, arrays and lists of
/// them. Kinds and shapes stay the same.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be assigned in a loop or branch that depends on a tile",
    label = "only tiles and pointers can; make it a tile, as with `zeros`, `full` or `scalar`"
)]
pub trait Carried: Clone {
    /// Adds the tiles that it is made of.
    #[track_caller]
    fn tiles(&self, out: &mut Vec<Tile>);

    /// The same of other tiles.
    fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> Self;
}

impl Carried for Tile {
    fn tiles(&self, out: &mut Vec<Tile>) {
        out.push(*self);
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> Tile {
        next.next().unwrap_or(*self)
    }
}

impl Carried for Ptr {
    #[track_caller]
    fn tiles(&self, out: &mut Vec<Tile>) {
        out.push(self.wide_offset());
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> Ptr {
        next.next().map_or(*self, |offsets| self.at(offsets))
    }
}

impl Carried for () {
    fn tiles(&self, _: &mut Vec<Tile>) {}

    fn rebuilt(&self, _: &mut dyn Iterator<Item = Tile>) -> Self {}
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Carried),*> Carried for ($($name,)*) {
            #[track_caller]
            #[allow(non_snake_case)]
            fn tiles(&self, out: &mut Vec<Tile>) {
                let ($($name,)*) = self;
                $($name.tiles(out);)*
            }

            #[allow(non_snake_case)]
            fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> Self {
                let ($($name,)*) = self;
                ($($name.rebuilt(next),)*)
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

impl<C: Carried, const N: usize> Carried for [C; N] {
    #[track_caller]
    fn tiles(&self, out: &mut Vec<Tile>) {
        for item in self {
            item.tiles(out);
        }
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> Self {
        self.each_ref().map(|item| item.rebuilt(next))
    }
}

impl<C: Carried> Carried for Vec<C> {
    #[track_caller]
    fn tiles(&self, out: &mut Vec<Tile>) {
        for item in self {
            item.tiles(out);
        }
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = Tile>) -> Self {
        self.iter().map(|item| item.rebuilt(next)).collect()
    }
}

fn parts<C: Carried>(carried: &C) -> Vec<Tile> {
    let mut out = Vec::new();
    carried.tiles(&mut out);
    out
}

/// The values that an operation with regions takes and yields.
type Values = Result<Vec<Value>>;

/// Appends an operation that `build` makes of the program's builder, and returns its results.
fn operation(
    args: &[Tile],
    place: &'static Location<'static>,
    build: impl FnOnce(&mut Builder, &[Value]) -> Values,
) -> Option<Vec<Tile>> {
    let (mut builder, args) = with(|state| match state.all(args) {
        Ok(args) => Some((std::mem::replace(&mut state.builder, Builder::new("")), args)),
        Err(error) => {
            state.fail(place, error);
            None
        }
    })
    .flatten()?;
    let results = build(&mut builder, &args);
    with(|state| {
        state.builder = builder;
        match results {
            Ok(values) => Some(values.into_iter().map(|value| state.tile(value)).collect()),
            Err(error) => {
                state.fail(place, error);
                None
            }
        }
    })
    .flatten()
}

/// Appends an operation without results.
#[track_caller]
pub(super) fn append(args: &[Tile], build: impl FnOnce(&mut Builder, &[Value]) -> Result<()>) {
    operation(args, Location::caller(), |b, args| build(b, args).map(|()| Vec::new()));
}

/// Writes a region down, which sees no values of others where it is closed: `body` gets its arguments.
fn region(b: &mut Builder, args: &[Value], closed: bool, body: impl FnOnce(Vec<Tile>) -> Values) -> Values {
    let opened = with(|state| {
        std::mem::swap(&mut state.builder, b);
        state.regions += 1;
        let outside = if closed { std::mem::take(&mut state.open) } else { state.open.clone() };
        state.open.push(state.regions);
        (args.iter().map(|&v| state.tile(v)).collect(), outside)
    });
    let Some((args, outside)) = opened else { return Ok(Vec::new()) };
    let made = body(args);
    with(|state| {
        state.open = outside;
        std::mem::swap(&mut state.builder, b);
    });
    made
}

/// What a region yields: the values of what is carried, which must be usable at its end.
fn yielded<C: Carried>(next: &C) -> Values {
    let tiles = parts(next);
    with(|state| state.all(&tiles)).unwrap_or(Ok(Vec::new()))
}

/// A loop of the program for `lo`, `lo + step`, ... below `hi`, with what its body hands on to the next round. It counts in
/// the kind of the bounds, which is `i32` where all are numbers.
#[track_caller]
pub fn for_range<C: Carried>(
    lo: impl Into<Operand>,
    hi: impl Into<Operand>,
    step: impl Into<Operand>,
    carried: C,
    body: impl FnOnce(Tile, C) -> C,
) -> C {
    let place = Location::caller();
    let bounds = [lo.into(), hi.into(), step.into()];
    let kinds = bounds.iter().filter_map(|bound| match bound {
        Operand::Tile(tile) => tile.elem(),
        Operand::Number(_) => None,
    });
    let elem = kinds.reduce(|a, b| promote(a, b).unwrap_or(a)).unwrap_or(Elem::I32);
    let bounds = bounds.map(|bound| bound.tile(elem));
    let args: Vec<Tile> = bounds.into_iter().chain(parts(&carried)).collect();
    let results = operation(&args, place, |b, values| {
        let [lo, hi, step, init @ ..] = values else { return Ok(Vec::new()) };
        b.for_loop((*lo, *hi, *step), init, |b, index, args| {
            let args: Vec<Value> = std::iter::once(index).chain(args.iter().copied()).collect();
            region(b, &args, false, |args| {
                let mut args = args.into_iter();
                let index = args.next().unwrap_or(bounds[0]);
                yielded(&body(index, carried.rebuilt(&mut args)))
            })
        })
    });
    results.map_or(carried.clone(), |results| carried.rebuilt(&mut results.into_iter()))
}

/// One of two branches of the program, by a scalar truth value, with what both of them hand on.
#[track_caller]
pub fn branch<C: Carried>(condition: Tile, yes: impl FnOnce() -> C, no: impl FnOnce() -> C) -> Option<C> {
    let mut kept = None;
    let results = operation(&[condition], Location::caller(), |b, values| {
        let &[condition] = values else { return Ok(Vec::new()) };
        let then = |b: &mut Builder| {
            region(b, &[], false, |_| {
                let made = yes();
                let values = yielded(&made);
                kept = Some(made);
                values
            })
        };
        b.if_else(condition, then, |b| region(b, &[], false, |_| yielded(&no())))
    });
    let kept = kept?;
    Some(results.map_or(kept.clone(), |results| kept.rebuilt(&mut results.into_iter())))
}

/// A loop of the program while a condition on what it carries holds.
#[track_caller]
pub fn while_loop<C: Carried>(carried: C, condition: impl FnOnce(C) -> Tile, body: impl FnOnce(C) -> C) -> C {
    let missing = || TypeError::Attribute { op: "while", message: String::from("a condition is missing") };
    let results = operation(&parts(&carried), Location::caller(), |b, init| {
        let test = |b: &mut Builder, args: &[Value]| {
            let holds =
                region(b, args, false, |args| yielded(&condition(carried.rebuilt(&mut args.into_iter()))))?;
            holds.first().copied().ok_or_else(missing)
        };
        b.while_loop(init, test, |b, args| {
            region(b, args, false, |args| yielded(&body(carried.rebuilt(&mut args.into_iter()))))
        })
    });
    results.map_or(carried.clone(), |results| carried.rebuilt(&mut results.into_iter()))
}

/// Combines elements along an axis, which disappears, of a tile or of a tuple of tiles of one shape. `combine` takes the
/// elements of two positions as scalars, and must be associative and commutative; it uses no other tile. Triton's
/// `reduce`.
#[track_caller]
pub fn reduce_with<C: Carried>(tiles: C, axis: usize, combine: impl FnOnce(C, C) -> C) -> C {
    combined(tiles, combine, |b, values, body| b.reduce_with(values, axis_of("reduce", axis)?, body))
}

/// For every position along an axis, all elements up to and with it combined, as [`reduce_with`] combines them; from the
/// last element to the first where `reverse` is set. The combiner need not be commutative.
#[track_caller]
pub fn associative_scan<C: Carried>(
    tiles: C,
    axis: usize,
    reverse: bool,
    combine: impl FnOnce(C, C) -> C,
) -> C {
    combined(tiles, combine, |b, values, body| b.scan(values, axis_of("scan", axis)?, reverse, body))
}

/// Writes down the combiner that the builder asks for.
type Body<'a> = &'a mut dyn FnMut(&mut Builder, &[Value], &[Value]) -> Values;

#[track_caller]
fn combined<C: Carried>(
    tiles: C,
    combine: impl FnOnce(C, C) -> C,
    build: impl FnOnce(&mut Builder, &[Value], Body<'_>) -> Values,
) -> C {
    let mut combine = Some(combine);
    let mut body = |b: &mut Builder, first: &[Value], second: &[Value]| {
        let Some(combine) = combine.take() else { return Ok(Vec::new()) };
        region(b, &[first, second].concat(), true, |args| {
            let mut args = args.into_iter();
            let first = tiles.rebuilt(&mut args);
            yielded(&combine(first, tiles.rebuilt(&mut args)))
        })
    };
    let results = operation(&parts(&tiles), Location::caller(), |b, values| build(b, values, &mut body));
    results.map_or(tiles.clone(), |results| tiles.rebuilt(&mut results.into_iter()))
}
