//! Loops and branches, over Rust values or over tiles.
//!
//! `#[tilefuse::kernel]` writes `for`, `while` and `if` in terms of these functions; the types of bounds and conditions
//! decide. With Rust values they run while the kernel is built. With scalar tiles they become a loop or a branch of the
//! program, into which the variables go that the body assigns, and out of which they come.

use super::kinds::number;
use super::{Extent, Int, Num, Ptr, Tile, typed};
use crate::data::Element;
use crate::dynamic::{self, Carried};
use crate::types::Elem;

impl<T: Element> Carried for Tile<T> {
    fn tiles(&self, out: &mut Vec<dynamic::Tile>) {
        out.push(self.tile);
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = dynamic::Tile>) -> Self {
        typed(self.tile.rebuilt(next))
    }
}

impl<T: Element> Carried for Ptr<T> {
    #[track_caller]
    fn tiles(&self, out: &mut Vec<dynamic::Tile>) {
        self.ptr.tiles(out);
    }

    fn rebuilt(&self, next: &mut dyn Iterator<Item = dynamic::Tile>) -> Self {
        Ptr::of(self.ptr.rebuilt(next))
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
        let body = |index, carried| body(typed(index), carried);
        return dynamic::for_range(lo.tile, hi.tile, step, carried, body);
    }
    let (first, end) = (lo.tile.cast(Elem::I64), hi.tile.cast(Elem::I64));
    let length: Tile<i64> = typed((end - first).maximum(0));
    let count = super::cdiv(length, number::<i64>(step)).tile.maximum(0).minimum(i32::MAX);
    dynamic::for_range(0, count.cast(Elem::I32), 1, carried, |index, carried| {
        body(typed((first + index * dynamic::scalar(Elem::I64, step)).cast(T::ELEM)), carried)
    })
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
        let made = dynamic::branch(self.tile, || yes(carried.clone()), || no(carried.clone()));
        made.unwrap_or_else(|| yes(carried))
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
    fn run(carried: C, mut condition: impl FnMut(C) -> (Tile<bool>, C), body: impl FnMut(C) -> C) -> C {
        dynamic::while_loop(carried, |carried| condition(carried).0.tile, body)
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
