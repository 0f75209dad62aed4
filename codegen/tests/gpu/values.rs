//! Values to compute with: edges of each kind first, then random ones.

use tilefuse_block::{Data, Elem, Literal};

/// A small generator of numbers (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Evenly in [-1, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Values where functions change their behaviour.
pub(crate) fn edges(elem: Elem) -> Vec<Literal> {
    if elem == Elem::Bool {
        return vec![Literal::int(elem, 0), Literal::int(elem, 1)];
    }
    if elem.is_float() {
        let floats = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -2.5,
            2.0,
            3.0,
            -3.7,
            0.1,
            100.25,
            88.8,
            -104.0,
            65504.0,
            16_777_217.0,
            1e-40,
            -1e-40,
            1e-310,
            1.17549435e-38,
            3.4e38,
            -3.4e38,
            1e300,
            2_147_483_648.0,
            -2_147_483_648.0,
            -2_147_483_648.5,
            9.3e18,
            255.5,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        return floats.into_iter().map(|x| Literal::float(elem, x)).collect();
    }
    let (low, high) = if elem.is_signed_int() {
        (i64::MIN >> (64 - elem.bits()), i64::MAX >> (64 - elem.bits()))
    } else {
        (0, -1)
    };
    let small = [0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 100, -1, -2, -3, -8, -100];
    small.into_iter().chain([low, low + 1, high, high - 1, 1 << 20]).map(|x| Literal::int(elem, x)).collect()
}

/// `n` values of a kind; operand `which` of several meets every edge of the others.
pub(crate) fn operand(elem: Elem, n: usize, which: usize) -> Data {
    let edges = edges(elem);
    let mut random = Random::new(which as u64 * 77 + elem.bits() as u64 + 1);
    let step = edges.len().pow(which as u32);
    let value = |i: usize| {
        if i < edges.len() * edges.len() {
            return edges[i / step % edges.len()];
        }
        match (elem.is_float(), i % 3) {
            (true, 0) => Literal::float(elem, random.unit() * 4.0),
            (true, 1) => Literal::float(elem, random.unit() * 200.0),
            (true, _) => Literal::float(elem, f64::from(f32::from_bits(random.next() as u32))),
            (false, 0) => Literal::int(elem, random.next() as i64 % 100),
            (false, _) => Literal::int(elem, random.next() as i64),
        }
    };
    Data::from_literals(elem, (0..n).map(value))
}

/// `n` moderate values of a kind.
pub(crate) fn moderate(elem: Elem, n: usize, seed: u64) -> Data {
    let mut random = Random::new(seed);
    let value = |_| match elem {
        Elem::Bool => Literal::int(elem, (random.next() >> 40) as i64 & 1),
        e if e.is_float() => Literal::float(e, random.unit() * 2.0),
        e => Literal::int(e, (random.next() >> 40) as i64 % 100 - if e.is_signed_int() { 50 } else { 0 }),
    };
    Data::from_literals(elem, (0..n).map(value))
}
