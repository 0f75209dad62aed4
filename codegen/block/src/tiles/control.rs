//! Loops and branches, over Rust values or over tiles.
//!
//! `#[tilefuse::kernel]` writes `for`, `while` and `if` in terms of these functions; the types of bounds and conditions
//! decide. With Rust values they run while the kernel is built. With scalar tiles they become a loop or a branch of the
//! program, into which the variables go that the body assigns, and out of which they come.

use std::panic::Location;

use super::kinds::number;
use super::ops::missing;
use super::shape::cdiv;
use super::{Extent, Handle, Int, Num, Ptr, Tile, clamp, maximum, tile, with};
use crate::builder::Builder;
use crate::data::Element;
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
    /// Adds the values that it is made of.
    #[track_caller]
    fn handles(&self, out: &mut Vec<ValueOf>);

    /// The same of other values.
    fn rebuilt(&self, next: &mut dyn Iterator<Item = ValueOf>) -> Self;
}

/// A value of a program.
#[derive(Clone, Copy, Debug)]
pub struct ValueOf(Handle);

impl<T: Element> Carried for Tile<T> {
    fn handles(&self, out: &mut Vec<ValueOf>) {
        out.push(ValueOf(self.handle));
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = ValueOf>) -> Self {
        next.next().map_or(*self, |value| tile(value.0))
    }
}

impl<T: Element> Carried for Ptr<T> {
    #[track_caller]
    fn handles(&self, out: &mut Vec<ValueOf>) {
        out.push(ValueOf(self.wide_offset()));
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = ValueOf>) -> Self {
        next.next().map_or(*self, |value| self.at(value.0))
    }
}

impl Carried for () {
    fn handles(&self, _: &mut Vec<ValueOf>) {}

    fn rebuilt(&self, _: &mut dyn Iterator<Item = ValueOf>) -> Self {}
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Carried),*> Carried for ($($name,)*) {
            #[track_caller]
            #[allow(non_snake_case)]
            fn handles(&self, out: &mut Vec<ValueOf>) {
                let ($($name,)*) = self;
                $($name.handles(out);)*
            }

            #[allow(non_snake_case)]
            fn rebuilt(&self, next: &mut dyn Iterator<Item = ValueOf>) -> Self {
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
    fn handles(&self, out: &mut Vec<ValueOf>) {
        for item in self {
            item.handles(out);
        }
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = ValueOf>) -> Self {
        self.each_ref().map(|item| item.rebuilt(next))
    }
}

impl<C: Carried> Carried for Vec<C> {
    #[track_caller]
    fn handles(&self, out: &mut Vec<ValueOf>) {
        for item in self {
            item.handles(out);
        }
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = ValueOf>) -> Self {
        self.iter().map(|item| item.rebuilt(next)).collect()
    }
}

/// The end of a range that `for` runs over, which begins at an `L`. A range of Rust numbers runs while the kernel is
/// built; one with a scalar tile on either side becomes a loop of the program, of at most 2^31 - 1 iterations.
#[diagnostic::on_unimplemented(message = "`for` does not run from `{L}` to `{Self}` over these variables")]
pub trait ForLoop<L, C> {
    /// What the loop counts in.
    type Index;

    /// Runs `body` for `lo`, `lo + step`, ... below `self`.
    #[track_caller]
    fn run(self, lo: L, step: i64, carried: C, body: impl FnMut(Self::Index, C) -> C) -> C;
}

/// `for i in (lo..hi).step_by(step)`, with the variables that the body assigns.
#[track_caller]
pub fn for_loop<L, H: ForLoop<L, C>, C>(
    lo: L,
    hi: H,
    step: impl Extent,
    carried: C,
    body: impl FnMut(H::Index, C) -> C,
) -> C {
    hi.run(lo, step.get(), carried, body)
}

macro_rules! rust_loops {
    ($($t:ty)*) => {$(
        impl<C> ForLoop<$t, C> for $t {
            type Index = $t;

            fn run(self, lo: $t, step: i64, mut carried: C, mut body: impl FnMut($t, C) -> C) -> C {
                let step = usize::try_from(step).unwrap_or(0).max(1);
                for index in (lo..self).step_by(step) {
                    carried = body(index, carried);
                }
                carried
            }
        }

        impl<T: Int + super::Accepts<$t>, C: Carried> ForLoop<Tile<T>, C> for $t {
            type Index = Tile<T>;

            #[track_caller]
            fn run(self, lo: Tile<T>, step: i64, carried: C, body: impl FnMut(Tile<T>, C) -> C) -> C {
                counted(lo, number(self), step, carried, body)
            }
        }
    )*};
}

rust_loops!(i32 i64 u32 usize);

impl<T: Int + super::Accepts<L>, L: Num, C: Carried> ForLoop<L, C> for Tile<T> {
    type Index = Tile<T>;

    #[track_caller]
    fn run(self, lo: L, step: i64, carried: C, body: impl FnMut(Tile<T>, C) -> C) -> C {
        counted(number(lo), self, step, carried, body)
    }
}

impl<T, U, C: Carried> ForLoop<Tile<U>, C> for Tile<T>
where
    U: Element,
    T: super::Promote<U, Out: Int>,
{
    type Index = Tile<T::Out>;

    #[track_caller]
    fn run(self, lo: Tile<U>, step: i64, carried: C, body: impl FnMut(Tile<T::Out>, C) -> C) -> C {
        counted(lo.cast(), self.cast(), step, carried, body)
    }
}

/// A loop of the program. Those over other kinds than `i32` count their iterations in it.
#[track_caller]
fn counted<T: Int, C: Carried>(
    lo: Tile<T>,
    hi: Tile<T>,
    step: i64,
    carried: C,
    mut body: impl FnMut(Tile<T>, C) -> C,
) -> C {
    if step < 1 {
        lo.refuse("for", format!("a step of {step} is not positive"));
        return carried;
    }
    if T::ELEM == Elem::I32 {
        let bounds = [lo.cast::<i32>(), hi.cast::<i32>(), number::<i32>(step)];
        return emit_for(bounds, carried, |index, carried| body(index.cast(), carried));
    }
    let (first, step) = (lo.cast::<i64>(), number::<i64>(step));
    let count = cdiv(maximum(hi.cast::<i64>() - first, 0), step);
    let count = clamp(count, 0, i32::MAX).cast::<i32>();
    let bounds = [number::<i32>(0), count, number::<i32>(1)];
    emit_for(bounds, carried, |index, carried| body((first + index * step).cast(), carried))
}

/// The program's builder, taken out of the thread's state with the values of handles.
pub(super) fn take_builder(
    handles: &[Handle],
    place: &'static Location<'static>,
) -> Option<(Builder, Vec<Value>)> {
    with(|state| match state.values(handles) {
        Ok(values) => Some((std::mem::replace(&mut state.builder, Builder::new("")), values)),
        Err(error) => {
            state.fail(place, error);
            None
        }
    })
    .flatten()
}

/// Gives the builder back; the results become handles.
pub(super) fn give_back(
    builder: Builder,
    results: Result<Vec<Value>, TypeError>,
    place: &'static Location<'static>,
) -> Option<Vec<ValueOf>> {
    with(|state| {
        state.builder = builder;
        match results {
            Ok(values) => Some(values.into_iter().map(|v| ValueOf(state.handle(v))).collect()),
            Err(error) => {
                state.fail(place, error);
                None
            }
        }
    })
    .flatten()
}

/// Writes a region down, which sees no values of others where it is closed: `body` gets its arguments as handles.
pub(super) fn region<R>(
    b: &mut Builder,
    args: &[Value],
    closed: bool,
    body: impl FnOnce(Vec<ValueOf>) -> R,
) -> Option<R> {
    let (args, outside) = with(|state| {
        std::mem::swap(&mut state.builder, b);
        state.regions += 1;
        let outside = if closed { std::mem::take(&mut state.open) } else { state.open.clone() };
        state.open.push(state.regions);
        (args.iter().map(|&v| ValueOf(state.handle(v))).collect(), outside)
    })?;
    let made = body(args);
    with(|state| {
        state.open = outside;
        std::mem::swap(&mut state.builder, b);
    });
    Some(made)
}

/// What a region yields: the values of what is carried, which must be usable at its end.
pub(super) fn yielded<C: Carried>(next: &C) -> Result<Vec<Value>, TypeError> {
    let handles = parts(next);
    with(|state| state.values(&handles)).unwrap_or(Ok(Vec::new()))
}

pub(super) fn parts<C: Carried>(carried: &C) -> Vec<Handle> {
    let mut out = Vec::new();
    carried.handles(&mut out);
    out.into_iter().map(|v| v.0).collect()
}

#[track_caller]
fn emit_for<C: Carried>(bounds: [Tile<i32>; 3], carried: C, body: impl FnOnce(Tile<i32>, C) -> C) -> C {
    let place = Location::caller();
    let handles: Vec<Handle> = bounds.iter().map(|b| b.handle).chain(parts(&carried)).collect();
    let Some((mut builder, values)) = take_builder(&handles, place) else { return carried };
    let [lo, hi, step, init @ ..] = values.as_slice() else { return carried };
    let made = builder.for_loop((*lo, *hi, *step), init, |b, index, args| {
        let args: Vec<Value> = std::iter::once(index).chain(args.iter().copied()).collect();
        region(b, &args, false, |args| {
            let mut args = args.into_iter();
            let index = args.next().map_or(bounds[0], |v| tile(v.0));
            yielded(&body(index, carried.rebuilt(&mut args)))
        })
        .unwrap_or(Ok(Vec::new()))
    });
    match give_back(builder, made, place) {
        Some(results) => carried.rebuilt(&mut results.into_iter()),
        None => carried,
    }
}

/// What `if` and `while` decide by: a Rust truth value, or a scalar tile of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no condition for these variables",
    label = "a condition is a `bool` or a scalar tile of truth values"
)]
pub trait Condition<C, V> {
    /// Runs one of two branches.
    #[track_caller]
    fn branch(self, carried: C, yes: impl FnMut(C) -> (C, V), no: impl FnMut(C) -> (C, V)) -> (C, V);
}

impl<C, V> Condition<C, V> for bool {
    fn branch(self, carried: C, mut yes: impl FnMut(C) -> (C, V), mut no: impl FnMut(C) -> (C, V)) -> (C, V) {
        if self { yes(carried) } else { no(carried) }
    }
}

impl<C: Carried, V: Carried> Condition<C, V> for Tile<bool> {
    #[track_caller]
    fn branch(self, carried: C, mut yes: impl FnMut(C) -> (C, V), mut no: impl FnMut(C) -> (C, V)) -> (C, V) {
        let place = Location::caller();
        let taken = take_builder(&[self.handle], place);
        let Some((mut builder, Some(condition))) = taken.map(|(b, values)| (b, values.first().copied()))
        else {
            return yes(carried);
        };
        let mut kept = None;
        let then = |b: &mut Builder| {
            region(b, &[], false, |_| {
                let made = yes(carried.clone());
                let values = yielded(&made);
                kept = Some(made);
                values
            })
            .unwrap_or(Ok(Vec::new()))
        };
        let otherwise = |b: &mut Builder| {
            region(b, &[], false, |_| yielded(&no(carried.clone()))).unwrap_or(Ok(Vec::new()))
        };
        let made = builder.if_else(condition, then, otherwise);
        match (kept, give_back(builder, made, place)) {
            (Some(kept), Some(results)) => kept.rebuilt(&mut results.into_iter()),
            (Some(kept), None) => kept,
            (None, _) => yes(carried),
        }
    }
}

/// `if condition { yes } else { no }`, with the variables that the branches assign and the value of the branch.
#[track_caller]
pub fn branch<B: Condition<C, V>, C, V>(
    condition: B,
    carried: C,
    yes: impl FnMut(C) -> (C, V),
    no: impl FnMut(C) -> (C, V),
) -> (C, V) {
    condition.branch(carried, yes, no)
}

/// A condition of `while`, with the variables that its body assigns.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no condition for these variables",
    label = "a condition is a `bool` or a scalar tile of truth values"
)]
pub trait WhileCondition<C>: Sized {
    /// Runs `body` while a condition holds.
    #[track_caller]
    fn run(carried: C, condition: impl FnMut(C) -> (Self, C), body: impl FnMut(C) -> C) -> C;
}

impl<C> WhileCondition<C> for bool {
    fn run(mut carried: C, mut condition: impl FnMut(C) -> (bool, C), mut body: impl FnMut(C) -> C) -> C {
        loop {
            let (holds, same) = condition(carried);
            carried = same;
            if !holds {
                return carried;
            }
            carried = body(carried);
        }
    }
}

impl<C: Carried> WhileCondition<C> for Tile<bool> {
    #[track_caller]
    fn run(carried: C, mut condition: impl FnMut(C) -> (Tile<bool>, C), mut body: impl FnMut(C) -> C) -> C {
        let place = Location::caller();
        let Some((mut builder, init)) = take_builder(&parts(&carried), place) else { return carried };
        let test = |b: &mut Builder, args: &[Value]| {
            region(b, args, false, |args| {
                let (holds, _) = condition(carried.rebuilt(&mut args.into_iter()));
                yielded(&holds)?.first().copied().ok_or_else(|| missing("while"))
            })
            .unwrap_or_else(|| Err(missing("while")))
        };
        let next = |b: &mut Builder, args: &[Value]| {
            region(b, args, false, |args| yielded(&body(carried.rebuilt(&mut args.into_iter()))))
                .unwrap_or(Ok(Vec::new()))
        };
        let made = builder.while_loop(&init, test, next);
        match give_back(builder, made, place) {
            Some(results) => carried.rebuilt(&mut results.into_iter()),
            None => carried,
        }
    }
}

/// `while condition { body }`, with the variables that the body assigns.
#[track_caller]
pub fn while_loop<B: WhileCondition<C>, C>(
    carried: C,
    condition: impl FnMut(C) -> (B, C),
    body: impl FnMut(C) -> C,
) -> C {
    B::run(carried, condition, body)
}
