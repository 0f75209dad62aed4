//! Where a random case comes from, and random elements.

use crate::data::Data;
use crate::types::{Elem, Literal};

/// A source of choices: bytes while there are any, then a generator or nothing but zeros.
pub struct Choices<'a> {
    bytes: &'a [u8],
    state: Option<u64>,
}

impl<'a> Choices<'a> {
    /// Choices without end from a seed.
    pub fn from_seed(seed: u64) -> Choices<'static> {
        Choices { bytes: &[], state: Some(seed) }
    }

    /// Choices from bytes, each used once; zeros after the last.
    pub fn from_bytes(bytes: &'a [u8]) -> Choices<'a> {
        Choices { bytes, state: None }
    }

    /// Whether all that is left is zeros.
    pub fn is_exhausted(&self) -> bool {
        self.bytes.is_empty() && self.state.is_none()
    }

    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&first, rest)) => {
                self.bytes = rest;
                first
            }
            None => self.mixed() as u8,
        }
    }

    /// SplitMix64.
    fn mixed(&mut self) -> u64 {
        let Some(state) = &mut self.state else { return 0 };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        if self.bytes.is_empty() {
            return self.mixed();
        }
        (0..8).fold(0, |bits, _| bits << 8 | u64::from(self.byte()))
    }

    /// A number below `n`, 0 for `n` = 0.
    pub fn below(&mut self, n: usize) -> usize {
        let bits = if n <= 256 && !self.bytes.is_empty() { u64::from(self.byte()) } else { self.bits() };
        (bits % n.max(1) as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        // The complement, so that zeros choose what is rare never.
        self.below(100) >= 100 - percent.min(100)
    }

    /// One of the items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len());
        items.get(index).copied()
    }

    /// One of an array's items.
    pub fn of<T: Copy, const N: usize>(&mut self, items: [T; N]) -> T {
        items[self.below(N)]
    }

    /// Any element kind.
    pub fn elem(&mut self) -> Elem {
        let elem = self.of(Elem::ALL);
        if elem.is_small_float() { Elem::F32 } else { elem }
    }

    /// A value of a kind: an edge value, a small one, or any bits.
    pub fn literal(&mut self, elem: Elem) -> Literal {
        match (elem.is_float(), self.below(4)) {
            (true, 0) => Literal::float(elem, self.of(FLOAT_EDGES)),
            (true, 1) => Literal::float(elem, self.below(17) as f64 - 8.0),
            (true, 2) => Literal::float(elem, (self.below(1 << 20) as f64 / f64::from(1 << 17)) - 4.0),
            (true, _) => self.any_float(elem),
            (false, 0) => Literal::int(elem, self.int_edge(elem)),
            (false, 3) => Literal::int(elem, self.bits() as i64),
            (false, _) => Literal::int(elem, self.below(41) as i64 - 20),
        }
    }

    fn any_float(&mut self, elem: Elem) -> Literal {
        let bits = self.bits().to_le_bytes();
        let bytes = bits.get(..elem.bytes() as usize).unwrap_or(&bits);
        Data::from_bytes(elem, bytes).get(0).unwrap_or(Literal::float(elem, 0.0))
    }

    fn int_edge(&mut self, elem: Elem) -> i64 {
        let bits = elem.bits().max(2);
        let low = i64::MIN >> (64 - bits);
        self.of([0, 1, -1, low, !low, low + 1, i64::from(bits), i64::from(bits) - 1, 2, 1 << (bits / 2)])
    }

    /// Elements of a kind.
    pub fn data(&mut self, elem: Elem, len: usize) -> Data {
        // A few drawn values and a generator of their own, so that a case does not eat its bytes for data.
        let mut own = Choices::from_seed(self.bits());
        Data::from_literals(elem, (0..len).map(|_| own.literal(elem)))
    }
}

/// Values where functions of floats change their course.
const FLOAT_EDGES: [f64; 28] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    65504.0,
    65520.0,
    16_777_217.0,
    -16_777_217.0,
    3.402_823_466_385_288_6e38,
    1.175_494_350_822_287_5e-38,
    1e-45,
    -1e-41,
    5.960_464_477_539_063e-8,
    6.103_515_625e-5,
    f64::MAX,
    f64::MIN_POSITIVE,
    5e-324,
    2_147_483_648.0,
    -2_147_483_648.0,
    9.3e18,
    255.5,
];
