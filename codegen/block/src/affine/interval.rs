//! Ranges of integers, and divisibility.

use crate::types::Elem;

/// The integers from `lo` to `hi`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The smallest.
    pub lo: i128,
    /// The largest.
    pub hi: i128,
}

impl Interval {
    /// One number.
    pub fn point(value: i128) -> Interval {
        Interval { lo: value, hi: value }
    }

    /// Every value of an integer kind or of the truth values.
    pub fn of(elem: Elem) -> Interval {
        let bits = elem.bits();
        match elem.is_signed_int() {
            true => Interval { lo: -(1 << (bits - 1)), hi: (1 << (bits - 1)) - 1 },
            false => Interval { lo: 0, hi: (1 << bits) - 1 },
        }
    }

    /// The only number in it.
    pub fn single(self) -> Option<i128> {
        (self.lo == self.hi).then_some(self.lo)
    }

    /// Whether it holds a number.
    pub fn contains(self, value: i128) -> bool {
        (self.lo..=self.hi).contains(&value)
    }

    /// Whether all of `other` lies in it.
    pub fn covers(self, other: Interval) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }

    pub(crate) fn hull(self, other: Interval) -> Interval {
        Interval { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    pub(crate) fn add(self, other: Interval) -> Interval {
        Interval { lo: self.lo + other.lo, hi: self.hi + other.hi }
    }

    pub(crate) fn neg(self) -> Interval {
        Interval { lo: -self.hi, hi: -self.lo }
    }

    /// Operands are at most 64 bits wide, so that products fit; the saturation is never reached.
    pub(crate) fn mul(self, other: Interval) -> Interval {
        let corner = |a: i128, b: i128| a.saturating_mul(b);
        let corners = [
            corner(self.lo, other.lo),
            corner(self.lo, other.hi),
            corner(self.hi, other.lo),
            corner(self.hi, other.hi),
        ];
        let fold = |f: fn(i128, i128) -> i128| corners.into_iter().reduce(f).unwrap_or(0);
        Interval { lo: fold(i128::min), hi: fold(i128::max) }
    }

    pub(crate) fn abs(self) -> Interval {
        let (lo, hi) = (self.lo.abs(), self.hi.abs());
        let low = if self.contains(0) { 0 } else { lo.min(hi) };
        Interval { lo: low, hi: lo.max(hi) }
    }

    pub(crate) fn max(self, other: Interval) -> Interval {
        Interval { lo: self.lo.max(other.lo), hi: self.hi.max(other.hi) }
    }

    pub(crate) fn min(self, other: Interval) -> Interval {
        Interval { lo: self.lo.min(other.lo), hi: self.hi.min(other.hi) }
    }

    /// Both ends mapped by a function that grows.
    pub(crate) fn map(self, f: impl Fn(i128) -> i128) -> Interval {
        Interval { lo: f(self.lo), hi: f(self.hi) }
    }

    /// The values of a loop from somewhere in `self` to below somewhere in `end`.
    pub(crate) fn up_to(self, end: &Interval) -> Interval {
        Interval { lo: self.lo, hi: (end.hi - 1).max(self.lo) }
    }
}

/// The largest power of two that divides; 0 stays.
pub(crate) fn power_of_two_part(x: u64) -> u64 {
    x & x.wrapping_neg()
}
