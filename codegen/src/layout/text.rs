//! Layouts as text.

use std::fmt;

use super::tile::{Layout, axis_bits};

/// What a bit of an element's coordinate is a bit of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Regs,
    Lanes,
    Warps,
}

impl Owner {
    fn name(self) -> &'static str {
        match self {
            Owner::Regs => "regs",
            Owner::Lanes => "lanes",
            Owner::Warps => "warps",
        }
    }
}

/// What makes up each axis, neighbours first: `[8 lanes, 4 warps] x [2 regs, 4 lanes]`; then how many lanes and warps
/// hold each element, if several do.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape().is_empty() {
            return f.write_str("every thread");
        }
        for axis in 0..self.shape().len() {
            f.write_str(if axis == 0 { "[" } else { " x [" })?;
            let parts: Vec<String> = self.parts(axis).iter().map(part).collect();
            f.write_str(if parts.is_empty() { "1".to_owned() } else { parts.join(", ") }.as_str())?;
            f.write_str("]")?;
        }
        let copies = |bases: &[u32]| 1u32 << bases.iter().filter(|b| **b == 0).count();
        match (copies(self.lanes()), copies(self.warps())) {
            (1, 1) => Ok(()),
            (lanes, 1) => write!(f, " in {lanes} lanes"),
            (1, warps) => write!(f, " in {warps} warps"),
            (lanes, warps) => write!(f, " in {lanes} lanes of {warps} warps"),
        }
    }
}

fn part(&(owner, bits): &(Owner, u32)) -> String {
    format!("{} {}", 1u32 << bits, owner.name())
}

impl Layout {
    /// Who holds the bits of an axis' coordinate, the lowest first, and how many of them in a row.
    fn parts(&self, axis: usize) -> Vec<(Owner, u32)> {
        let owner = |bit: u32| match 1u32 << bit {
            basis if self.lanes().contains(&basis) => Owner::Lanes,
            basis if self.warps().contains(&basis) => Owner::Warps,
            _ => Owner::Regs,
        };
        let mut out: Vec<(Owner, u32)> = Vec::new();
        for bit in axis_bits(self.shape(), axis) {
            match out.last_mut() {
                Some((last, bits)) if *last == owner(bit) => *bits += 1,
                _ => out.push((owner(bit), 1)),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accumulator, Blocked, LogShape};
    use super::*;

    #[test]
    fn layouts_read_neighbours_first() {
        let blocked = |shape: &[u32], vector, warps| {
            let shape = LogShape::from_slice(shape);
            Layout::blocked(&shape, &Blocked { fast: shape.len() - 1, vector, reduced: 0, warps })
        };
        assert_eq!(blocked(&[10], 2, 2).to_string(), "[4 regs, 32 lanes, 4 warps, 2 regs]");
        assert_eq!(blocked(&[6, 5], 3, 2).to_string(), "[8 lanes, 4 warps, 2 regs] x [8 regs, 4 lanes]");
        assert_eq!(blocked(&[0, 4], 0, 1).to_string(), "[1] x [16 lanes] in 2 lanes of 2 warps");
        assert_eq!(blocked(&[6, 5], 3, 2).slice(0).to_string(), "[8 regs, 4 lanes] in 8 lanes of 4 warps");
        assert_eq!(Layout::scalar(2).to_string(), "every thread");
        let how = Accumulator { rows: 4, warps: 2, by_rows: false, grouped: false };
        let sums = Layout::accumulator(&LogShape::from_slice(&[7, 7]), &how);
        assert_eq!(sums.to_string(), "[8 lanes, 8 regs, 2 warps] x [2 regs, 4 lanes, 8 regs, 2 warps]");
    }
}
