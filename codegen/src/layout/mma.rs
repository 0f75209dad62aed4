//! How the matrix unit of a GPU holds the result of a product.

use smallvec::SmallVec;

use super::tile::{LANE_BITS, Layout, LogShape, axis_bits};

/// Which accumulators of a product a thread holds.
#[derive(Clone, Debug)]
pub struct Accumulator {
    /// Rows of one instruction's result, 8 or 16, as a power of two. It has 8 columns.
    pub rows: u32,
    /// Number of warps, as a power of two.
    pub warps: u32,
    /// Whether warps lie along rows as far as these reach, so that a row lies in one warp.
    pub by_rows: bool,
    /// Whether four warps compute 64 neighbouring rows together, 16 each.
    pub grouped: bool,
}

impl Accumulator {
    /// Columns of one instruction's result, as a power of two.
    pub const COLS: u32 = 3;
}

impl Layout {
    /// The layout of a matrix, or of a batch of matrices, whose parts of 8 columns and 8 or 16 rows are results of
    /// the matrix unit: lane `4 i + j` holds columns `2 j` and `2 j + 1` of row `i`, and of row `i + 8`.
    ///
    /// The last two extents are at least those of one instruction.
    pub fn accumulator(shape: &LogShape, how: &Accumulator) -> Layout {
        let rank = shape.len();
        let (rows, cols) = (axis_bits(shape, rank - 2), axis_bits(shape, rank - 1));
        let bits = |range: std::ops::Range<u32>| range.map(|b| 1u32 << b).collect::<Vec<u32>>();
        let mut lanes = [0; LANE_BITS];
        let inside = bits(cols.start + 1..cols.start + 3).into_iter().chain(bits(rows.start..rows.start + 3));
        lanes.iter_mut().zip(inside).for_each(|(lane, basis)| *lane = basis);
        let mut regs: SmallVec<[u32; 8]> = SmallVec::from_slice(&[1 << cols.start]);
        regs.extend(bits(rows.start + 3..rows.start + how.rows));
        let mut batch = bits(rows.end..shape.iter().sum());
        let mut down = bits(rows.start + how.rows..rows.end);
        let mut across = bits(cols.start + Accumulator::COLS..cols.end);
        let four = if how.grouped { 2 } else { 0 };
        let together: Vec<u32> = down.drain(..four.min(down.len())).collect();
        let rest = (together.len() as u32..how.warps).map(|_| {
            let tall = how.by_rows
                || how.grouped
                || down.len() as u32 + how.rows >= across.len() as u32 + Accumulator::COLS;
            let (first, second) = if tall { (&mut down, &mut across) } else { (&mut across, &mut down) };
            batch.pop().or_else(|| first.pop()).or_else(|| second.pop()).unwrap_or(0)
        });
        let warps = together.iter().copied().chain(rest).collect();
        regs.extend(across.into_iter().chain(down).chain(batch));
        Layout::of_bases(shape.clone(), regs, lanes, warps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulators_hold_every_element() {
        for shape in [&[4u32, 3][..], &[7, 6], &[2, 5, 3], &[5, 8]] {
            let shape = LogShape::from_slice(shape);
            for (rows, warps, by_rows) in [(4, 0, false), (4, 3, true), (3, 2, false), (4, 5, false)] {
                let grouped = by_rows && shape[shape.len() - 2] >= 6;
                let layout = Layout::accumulator(&shape, &Accumulator { rows, warps, by_rows, grouped });
                let count = 1u32 << shape.iter().sum::<u32>();
                let mut held = vec![0; count as usize];
                for thread in 0..32 << warps {
                    (0..layout.num_regs()).for_each(|r| held[layout.element(r, thread) as usize] += 1);
                }
                let copies = 1 << layout.replicated_threads().count_ones();
                assert!(held.iter().all(|&h| h == copies), "{shape:?} {rows} {warps} {by_rows}");
                // Lane 5 holds columns 2 and 3 of row 1.
                let row = 1 << axis_bits(&shape, shape.len() - 2).start;
                assert_eq!([layout.element(0, 5), layout.element(1, 5)], [row + 2, row + 3]);
            }
        }
    }

    #[test]
    fn rows_stay_in_a_warp() {
        let shape = LogShape::from_slice(&[7, 7]);
        let tall =
            Layout::accumulator(&shape, &Accumulator { rows: 4, warps: 3, by_rows: true, grouped: false });
        assert!(tall.warps().iter().all(|b| b & tall.axis_mask(1) == 0));
        let square =
            Layout::accumulator(&shape, &Accumulator { rows: 4, warps: 2, by_rows: false, grouped: false });
        assert_eq!(square.warps(), [1 << 13, 1 << 6]);
        let grouped =
            Layout::accumulator(&shape, &Accumulator { rows: 4, warps: 3, by_rows: false, grouped: true });
        assert_eq!(grouped.warps(), [1 << 11, 1 << 12, 1 << 13]);
    }
}
