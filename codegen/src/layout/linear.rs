//! Linear maps over GF(2): bit vectors of up to 32 bits, addition is exclusive or.

/// A linear map, kept as the images of the input's unit vectors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Linear {
    bases: Vec<u32>,
}

impl Linear {
    /// The map that sends input bit `i` to `bases[i]`. At most 32 bases.
    pub fn new(bases: Vec<u32>) -> Linear {
        debug_assert!(bases.len() <= 32);
        Linear { bases }
    }

    /// The identity on `bits` bits.
    pub fn identity(bits: u32) -> Linear {
        Linear::new((0..bits).map(|b| 1 << b).collect())
    }

    /// The images of the unit vectors.
    pub fn bases(&self) -> &[u32] {
        &self.bases
    }

    /// Number of input bits.
    pub fn inputs(&self) -> usize {
        self.bases.len()
    }

    /// The image of `x`; bits of `x` beyond the inputs count for nothing.
    pub fn apply(&self, x: u32) -> u32 {
        self.bases.iter().enumerate().filter(|(bit, _)| x >> bit & 1 == 1).fold(0, |sum, (_, b)| sum ^ b)
    }

    /// The map `x -> self(inner(x))`.
    pub fn compose(&self, inner: &Linear) -> Linear {
        Linear::new(inner.bases.iter().map(|&b| self.apply(b)).collect())
    }

    /// The dimension of the image.
    pub fn rank(&self) -> usize {
        self.echelon().len()
    }

    /// Whether different inputs have different images.
    pub fn is_injective(&self) -> bool {
        self.rank() == self.bases.len()
    }

    /// An input whose image is `y`, if there is one: the one that leaves dependent inputs at zero.
    pub fn solve(&self, y: u32) -> Option<u32> {
        let mut rest = y;
        let mut x = 0;
        for row in self.echelon() {
            if rest >> row.pivot & 1 == 1 {
                rest ^= row.image;
                x ^= row.input;
            }
        }
        (rest == 0).then_some(x)
    }

    /// The inverse on `outputs` bits; `None` unless the map is one to one onto them.
    pub fn inverse(&self, outputs: u32) -> Option<Linear> {
        let onto = self.bases.iter().all(|&b| u64::from(b) < 1u64 << outputs);
        if !onto || self.bases.len() != outputs as usize || !self.is_injective() {
            return None;
        }
        (0..outputs).map(|bit| self.solve(1 << bit)).collect::<Option<Vec<_>>>().map(Linear::new)
    }

    /// Rows with distinct leading bits that span the image, each with the input that it comes from.
    fn echelon(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (bit, &base) in self.bases.iter().enumerate() {
            let (mut image, mut input) = (base, 1u32 << bit);
            for row in &rows {
                if image >> row.pivot & 1 == 1 {
                    image ^= row.image;
                    input ^= row.input;
                }
            }
            if image != 0 {
                rows.push(Row { pivot: image.ilog2(), image, input });
            }
        }
        rows
    }
}

struct Row {
    pivot: u32,
    image: u32,
    input: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seed: u32, inputs: u32, outputs: u32) -> Linear {
        let mut state = seed.wrapping_mul(2654435761).wrapping_add(12345);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state & ((1 << outputs) - 1)
        };
        Linear::new((0..inputs).map(|_| next()).collect())
    }

    #[test]
    fn maps_are_linear_and_compose() {
        for seed in 1..200 {
            let f = sample(seed, 6, 5);
            let g = sample(seed + 1000, 4, 6);
            let h = f.compose(&g);
            for x in 0..16 {
                assert_eq!(h.apply(x), f.apply(g.apply(x)));
                for y in 0..16 {
                    assert_eq!(g.apply(x ^ y), g.apply(x) ^ g.apply(y));
                }
            }
        }
    }

    #[test]
    fn rank_and_solutions_agree_with_brute_force() {
        for seed in 1..300 {
            let f = sample(seed, 5, 6);
            let image: std::collections::BTreeSet<u32> = (0..32).map(|x| f.apply(x)).collect();
            assert_eq!(image.len(), 1 << f.rank());
            for y in 0..64 {
                match f.solve(y) {
                    Some(x) => assert_eq!(f.apply(x), y),
                    None => assert!(!image.contains(&y)),
                }
            }
        }
    }

    #[test]
    fn inverses_undo() {
        let mut found = 0;
        for seed in 1..400 {
            let f = sample(seed, 5, 5);
            let Some(inverse) = f.inverse(5) else {
                assert!(f.rank() < 5);
                continue;
            };
            found += 1;
            assert_eq!(f.compose(&inverse), Linear::identity(5));
            assert_eq!(inverse.compose(&f), Linear::identity(5));
        }
        assert!(found > 50);
    }
}
