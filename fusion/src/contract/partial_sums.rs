//! Long sums of products, added up in parts.

use tilefuse_block::Elem;
use tilefuse_block::dynamic::{Tile, for_range, scalar};

/// The most products that are one sum of f32. A long one errs more than libtorch, whose library adds up parts as well.
pub(super) const LONGEST_SUM: u64 = 512;

/// The most products of a part of a longer one.
pub(super) const LONGEST_PART: u64 = 128;

/// The same where registers hold the part alone, so that adding it loads and stores each sum.
pub(super) const LONGEST_PART_IN_REGISTERS: u64 = 256;

/// The fewest products that are worth being a part: adding it costs what one more of them does.
pub(super) const SHORTEST_PART: u64 = 32;

/// How many of so many products are a part, a multiple of a step: all parts are alike where there is a divisor for that.
pub(super) fn part_of(all: u64, step: u64, longest: u64) -> u64 {
    let most = (longest / step).max(1);
    let even = (1..=most).rev().find(|steps| all.is_multiple_of(steps * step) && steps * 2 > most);
    even.unwrap_or(most) * step
}

/// Sums with those that `part` makes of each stretch of so many products, of at most `longest`, given where it begins and how many it
/// has, as numbers of type `index`.
pub(super) fn in_parts(
    index: Elem,
    (all, longest): (u64, u64),
    sums: Vec<Tile>,
    part: impl Fn(Tile, Tile) -> Vec<Tile>,
) -> Vec<Tile> {
    let int = |value: u64| scalar(index, value as i64);
    if all <= longest {
        return added(&sums, &part(int(0), int(all)));
    }
    for_range(int(0), all as i64, longest as i64, sums, |first, sums| {
        let is_even = all.is_multiple_of(longest);
        let count = if is_even { int(longest) } else { (int(all) - first).minimum(int(longest)) };
        added(&sums, &part(first, count))
    })
}

/// Sums with what further products add up to.
pub(super) fn added(sums: &[Tile], parts: &[Tile]) -> Vec<Tile> {
    sums.iter().zip(parts).map(|(&sum, &part)| sum + part).collect()
}
