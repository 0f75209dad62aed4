//! Random numbers that a seed and an offset determine: the Philox 4x32 generator with ten rounds. The same pair gives the
//! same numbers on every target and in every order.

use super::{Int, Operand, Tile, cos, log, maximum, sqrt, typed};
use crate::dynamic;
use crate::types::Elem;

const ROUNDS: u8 = 10;

/// Four tiles of random bits for a seed and a tile of offsets. Triton's `randint4x`.
#[track_caller]
pub fn randint4x<T: Int>(seed: impl Operand<u64>, offset: Tile<T>) -> [Tile<u32>; 4] {
    let seed = seed.operand().tile(Elem::U64);
    let offset = if T::ELEM.bytes() < 4 { offset.tile.cast(Elem::U32) } else { offset.tile };
    dynamic::philox(seed, offset, ROUNDS).map(typed)
}

/// A tile of random bits.
#[track_caller]
pub fn randint<T: Int>(seed: impl Operand<u64>, offset: Tile<T>) -> Tile<u32> {
    let [bits, ..] = randint4x(seed, offset);
    bits
}

/// Four tiles of random numbers, evenly from 0 to below 1.
#[track_caller]
pub fn rand4x<T: Int>(seed: impl Operand<u64>, offset: Tile<T>) -> [Tile<f32>; 4] {
    let [a, b, c, d] = randint4x(seed, offset);
    [uniform(a), uniform(b), uniform(c), uniform(d)]
}

/// A tile of random numbers, evenly from 0 to below 1.
#[track_caller]
pub fn rand<T: Int>(seed: impl Operand<u64>, offset: Tile<T>) -> Tile<f32> {
    uniform(randint(seed, offset))
}

/// Four tiles of normally distributed random numbers.
#[track_caller]
pub fn randn4x<T: Int>(seed: impl Operand<u64>, offset: Tile<T>) -> [Tile<f32>; 4] {
    let [a, b, c, d] = randint4x(seed, offset);
    let ([a, b], [c, d]) = (normal(a, b), normal(c, d));
    [a, b, c, d]
}

/// A tile of normally distributed random numbers.
#[track_caller]
pub fn randn<T: Int>(seed: impl Operand<u64>, offset: Tile<T>) -> Tile<f32> {
    let [a, b, ..] = randint4x(seed, offset);
    let [normal, _] = normal(a, b);
    normal
}

/// As a signed number without its sign, scaled to below 1: Triton's numbers.
#[track_caller]
fn uniform(bits: Tile<u32>) -> Tile<f32> {
    let signed = bits.cast::<i32>();
    let positive = signed ^ (signed >> 31);
    positive.cast::<f32>() * 4.656_612_734_2e-10
}

/// Two normally distributed numbers of two that are evenly distributed (G. Box and M. Muller, 1958).
#[track_caller]
fn normal(a: Tile<u32>, b: Tile<u32>) -> [Tile<f32>; 2] {
    let radius = sqrt(log(maximum(uniform(a), 1e-7)) * -2.0);
    let angle = uniform(b) * std::f32::consts::TAU;
    [radius * cos(angle), radius * angle.sin()]
}
