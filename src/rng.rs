//! A deterministic source of random numbers that gives the same programs on every machine.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream that depends on the seed alone.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Another stream, which depends on this one's state.
    pub fn fork(&mut self) -> Rng {
        Rng(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for an `n` of 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.bits() % n as u64) as usize }
    }

    /// An integer of `low..end`.
    pub fn range(&mut self, low: i64, end: i64) -> i64 {
        low.wrapping_add(self.below(end.saturating_sub(low).max(1) as usize) as i64)
    }

    /// A number of `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of a list, which must not be empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// A position, each with a probability proportional to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().sum::<u32>() as usize) as u32;
        for (at, &weight) in weights.iter().enumerate() {
            if left < weight {
                return at;
            }
            left -= weight;
        }
        0
    }

    /// The numbers below `n` in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
