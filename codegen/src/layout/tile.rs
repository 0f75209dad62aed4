//! Which thread and register hold which element of a tile.

use smallvec::SmallVec;

use super::Linear;

/// Extents of a tile as powers of two, outermost axis first.
pub type LogShape = SmallVec<[u32; 5]>;

/// Lanes of a warp, as a power of two.
pub const LANE_BITS: usize = 5;

/// Distribution of a tile over registers, lanes and warps.
///
/// Elements are numbered in row-major order; extents are powers of two, so the bits of an element's number are the
/// bits of its coordinates, the last axis lowest. Each bit of (register, lane, warp) adds its basis to the number,
/// by exclusive or. A lane or warp basis of 0 means that the element is held once more there. Register bases are
/// never 0, and the bases that are not 0 are distinct unit vectors that together reach every element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: LogShape,
    regs: SmallVec<[u32; 8]>,
    lanes: [u32; LANE_BITS],
    warps: SmallVec<[u32; 5]>,
}

/// What to distribute first in a blocked layout.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// The axis along which memory is contiguous.
    pub fast: usize,
    /// Neighbours along `fast` in one thread, as a power of two.
    pub vector: u32,
    /// Bit `a` set: axis `a` is reduced.
    pub reduced: u32,
    /// Number of warps, as a power of two.
    pub warps: u32,
}

impl Layout {
    /// A layout with thread-contiguous vectors along the fast axis, then lanes along it and the other axes, then
    /// warps (along axes that are not reduced, as far as these reach), the rest in registers.
    pub fn blocked(shape: &LogShape, how: &Blocked) -> Layout {
        let mut free: Vec<Vec<u32>> =
            (0..shape.len()).map(|a| axis_bits(shape, a).map(|b| 1 << b).collect()).collect();
        let lane_order = order(shape.len(), how.fast, |_| true);
        let mut regs: SmallVec<[u32; 8]> = SmallVec::new();
        if let Some(fast) = free.get_mut(how.fast) {
            regs.extend(fast.drain(..fast.len().min(how.vector as usize)));
        }
        let mut lanes = [0; LANE_BITS];
        fill(&mut lanes, &mut free, &lane_order);
        let kept = |a: usize| how.reduced >> a & 1 == 0;
        let mut warp_order = order(shape.len(), how.fast, kept);
        if !kept(how.fast) {
            warp_order.reverse();
        }
        warp_order.extend(order(shape.len(), how.fast, |a| !kept(a)));
        let mut warps: SmallVec<[u32; 5]> = SmallVec::from_elem(0, how.warps as usize);
        fill(&mut warps, &mut free, &warp_order);
        regs.extend(lane_order.iter().flat_map(|&a| std::mem::take(&mut free[a])));
        Layout { shape: shape.clone(), regs, lanes, warps }
    }

    /// The layout of a scalar: every thread holds it.
    pub fn scalar(warps: u32) -> Layout {
        Layout {
            shape: LogShape::new(),
            regs: SmallVec::new(),
            lanes: [0; LANE_BITS],
            warps: SmallVec::from_elem(0, warps as usize),
        }
    }

    /// The layout of these bases, which are as the type says.
    pub(super) fn of_bases(
        shape: LogShape,
        regs: SmallVec<[u32; 8]>,
        lanes: [u32; LANE_BITS],
        warps: SmallVec<[u32; 5]>,
    ) -> Layout {
        Layout { shape, regs, lanes, warps }
    }

    /// The extents as powers of two.
    pub fn shape(&self) -> &LogShape {
        &self.shape
    }

    /// Bases of the register bits.
    pub fn regs(&self) -> &[u32] {
        &self.regs
    }

    /// Bases of the lane bits followed by those of the warp bits: the bits of the thread's number.
    pub fn threads(&self) -> SmallVec<[u32; 10]> {
        self.lanes.iter().chain(&self.warps).copied().collect()
    }

    /// Bases of the lane bits.
    pub fn lanes(&self) -> &[u32; LANE_BITS] {
        &self.lanes
    }

    /// Bases of the warp bits.
    pub fn warps(&self) -> &[u32] {
        &self.warps
    }

    /// Registers that each thread holds.
    pub fn num_regs(&self) -> usize {
        1 << self.regs.len()
    }

    /// The part of an element's number that register `r` gives.
    pub fn reg_offset(&self, r: usize) -> u32 {
        combine(self.regs.iter(), r as u32)
    }

    /// The number of the element that `thread` holds in register `r`.
    pub fn element(&self, r: usize, thread: u32) -> u32 {
        combine(self.lanes.iter().chain(&self.warps), thread) ^ self.reg_offset(r)
    }

    /// The register whose offset is `offset`, if one register bit or more give it.
    pub fn reg_at(&self, offset: u32) -> Option<usize> {
        Linear::new(self.regs.to_vec()).solve(offset).map(|r| r as usize)
    }

    /// Bits of an element's number that are coordinates along `axis`.
    pub fn axis_mask(&self, axis: usize) -> u32 {
        axis_bits(&self.shape, axis).fold(0, |m, b| m | 1 << b)
    }

    /// Bits of the thread's number that change no element: the same elements are held for both values.
    pub fn replicated_threads(&self) -> u32 {
        self.threads().iter().enumerate().filter(|(_, b)| **b == 0).fold(0, |m, (bit, _)| m | 1 << bit)
    }

    /// How many neighbours along `axis` lie in consecutive registers, as a power of two.
    pub fn vector(&self, axis: usize) -> u32 {
        let mut bits = axis_bits(&self.shape, axis);
        self.regs.iter().take_while(|&&b| bits.next().is_some_and(|bit| 1 << bit == b)).count() as u32
    }

    /// The layout in which threads hold this many neighbours along an axis (a power of two), for which lanes take elements that
    /// lie further along it and in registers; none where there are none, or where warps hold the neighbours.
    pub fn widened(&self, axis: usize, vector: u32) -> Option<Layout> {
        let bits = axis_bits(&self.shape, axis);
        let mut out = self.clone();
        let mut further = (bits.start + vector..bits.end).map(|bit| 1u32 << bit);
        for basis in (bits.start..bits.start + vector).map(|bit| 1u32 << bit) {
            if out.regs.contains(&basis) {
                continue;
            }
            let lane = out.lanes.iter().position(|&b| b == basis)?;
            let reg = further.find_map(|other| out.regs.iter().position(|&b| b == other))?;
            (out.lanes[lane], out.regs[reg]) = (out.regs[reg], basis);
        }
        let near = (1u32 << (bits.start + vector)) - (1 << bits.start);
        out.regs.sort_by_key(|&basis| if basis & near != 0 { basis } else { u32::MAX });
        Some(out)
    }

    /// How lanes come to hold what `to` says, where each of them has in its warp what it needs: bits of the lane's number that
    /// change places with bits of the register's, one after the other, and the layout that this leaves, whose registers are those
    /// of `to` in another order.
    pub fn exchanges(&self, to: &Layout) -> Option<(Vec<(usize, usize)>, Layout)> {
        let mut out = self.clone();
        let mut steps = Vec::new();
        for lane in 0..LANE_BITS {
            if out.lanes[lane] != to.lanes[lane] {
                let reg = out.regs.iter().position(|&b| b == to.lanes[lane])?;
                (out.lanes[lane], out.regs[reg]) = (out.regs[reg], out.lanes[lane]);
                steps.push((lane, reg));
            }
        }
        let whole = out.lanes.iter().zip(&self.lanes).all(|(after, before)| (*after == 0) == (*before == 0));
        (whole && out.warps == to.warps && out.regs.len() == to.regs.len()).then_some((steps, out))
    }

    /// The same distribution of the same row-major elements in another shape.
    pub fn reshape(&self, shape: &LogShape) -> Layout {
        debug_assert_eq!(shape.iter().sum::<u32>(), self.shape.iter().sum::<u32>());
        Layout { shape: shape.clone(), ..self.clone() }
    }

    /// The layout of a permutation's operand, this being its result's: result axis `i` is operand axis `perm[i]`.
    pub fn unpermute(&self, perm: &[u8]) -> Layout {
        let mut shape = self.shape.clone();
        for (i, &p) in perm.iter().enumerate() {
            shape[usize::from(p)] = self.shape[i];
        }
        let target = shape.clone();
        self.map_bits(shape, |axis, bit| Some(axis_bits(&target, usize::from(perm[axis])).start + bit))
    }

    /// The layout of a permutation's result, this being its operand's.
    pub fn permute(&self, perm: &[u8]) -> Layout {
        let mut inverse: SmallVec<[u8; 5]> = SmallVec::from_elem(0, perm.len());
        for (i, &p) in perm.iter().enumerate() {
            inverse[usize::from(p)] = i as u8;
        }
        self.unpermute(&inverse)
    }

    /// The layout without an axis: threads that differ only along it hold the same elements.
    pub fn slice(&self, axis: usize) -> Layout {
        let mut shape = self.shape.clone();
        shape.remove(axis);
        let target = shape.clone();
        self.map_bits(shape, |a, bit| {
            (a != axis).then(|| axis_bits(&target, if a > axis { a - 1 } else { a }).start + bit)
        })
    }

    /// The layout with a new last axis of extent 2, which lies in the lowest bit of the registers.
    pub fn join(&self) -> Layout {
        let mut shape = self.shape.clone();
        shape.push(1);
        let target = shape.clone();
        let mut out = self.map_bits(shape, |axis, bit| Some(axis_bits(&target, axis).start + bit));
        out.regs.insert(0, 1);
        out
    }

    /// The layout of a broadcast's operand of extents `shape`, this being its result's.
    pub fn unbroadcast(&self, shape: &LogShape) -> Layout {
        self.map_bits(shape.clone(), |a, bit| {
            (shape[a] == self.shape[a]).then(|| axis_bits(shape, a).start + bit)
        })
    }

    /// A layout of the larger shape `shape` whose [`Layout::unbroadcast`] is this one: new elements lie in registers.
    pub fn broadcast(&self, shape: &LogShape) -> Layout {
        let mut out = self.map_bits(shape.clone(), |a, bit| Some(axis_bits(shape, a).start + bit));
        for a in (0..shape.len()).rev().filter(|&a| shape[a] != self.shape[a]) {
            out.regs.extend(axis_bits(shape, a).map(|b| 1u32 << b));
        }
        out
    }

    /// Moves each basis, given as (axis, bit of the coordinate), to a bit of the new number; `None` drops it.
    fn map_bits(&self, shape: LogShape, place: impl Fn(usize, u32) -> Option<u32>) -> Layout {
        let old = |basis: u32| {
            let bit = basis.trailing_zeros();
            let axis = (0..self.shape.len()).find(|&a| axis_bits(&self.shape, a).contains(&bit))?;
            place(axis, bit - axis_bits(&self.shape, axis).start)
        };
        let map = |basis: &u32| old(*basis).map_or(0, |bit| 1u32 << bit);
        let mut lanes = [0; LANE_BITS];
        for (to, from) in lanes.iter_mut().zip(&self.lanes) {
            *to = map(from);
        }
        Layout {
            shape,
            regs: self.regs.iter().map(map).filter(|&b| b != 0).collect(),
            lanes,
            warps: self.warps.iter().map(map).collect(),
        }
    }
}

/// Bits of an element's number that are coordinates along `axis`.
pub fn axis_bits(shape: &LogShape, axis: usize) -> std::ops::Range<u32> {
    let start: u32 = shape[axis + 1..].iter().sum();
    start..start + shape[axis]
}

fn combine<'a>(bases: impl Iterator<Item = &'a u32>, x: u32) -> u32 {
    bases.enumerate().filter(|(bit, _)| x >> bit & 1 == 1).fold(0, |sum, (_, b)| sum ^ b)
}

/// The axes that `keep` accepts: `fast` first, then from the last to the first.
fn order(rank: usize, fast: usize, keep: impl Fn(usize) -> bool) -> Vec<usize> {
    let rest = (0..rank).rev().filter(|&a| a != fast);
    (fast..(fast + 1).min(rank)).chain(rest).filter(|&a| keep(a)).collect()
}

fn fill(slots: &mut [u32], free: &mut [Vec<u32>], order: &[usize]) {
    let mut slots = slots.iter_mut();
    for &axis in order {
        while !free[axis].is_empty() {
            let Some(slot) = slots.next() else { return };
            *slot = free[axis].remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> Vec<LogShape> {
        let mut out = vec![LogShape::new()];
        for a in [0, 1, 3, 9] {
            out.push(LogShape::from_slice(&[a]));
            for b in [0, 2, 6] {
                out.push(LogShape::from_slice(&[a, b]));
                out.push(LogShape::from_slice(&[b, 1, a.min(6)]));
            }
        }
        out
    }

    fn layouts() -> Vec<Layout> {
        let mut out = Vec::new();
        for shape in shapes() {
            for fast in 0..shape.len().max(1) {
                for (vector, reduced, warps) in [(0, 0, 2), (2, 1, 0), (3, 2, 3), (1, 3, 5)] {
                    let how = Blocked { fast, vector, reduced, warps };
                    out.push(Layout::blocked(&shape, &how));
                }
            }
        }
        out
    }

    fn coords(shape: &LogShape, n: u32) -> Vec<u32> {
        (0..shape.len()).map(|a| n >> axis_bits(shape, a).start & ((1 << shape[a]) - 1)).collect()
    }

    fn number(shape: &LogShape, coords: &[u32]) -> u32 {
        coords.iter().enumerate().map(|(a, c)| c << axis_bits(shape, a).start).sum()
    }

    #[test]
    fn blocked_layouts_hold_every_element() {
        for layout in layouts() {
            let threads = 1u32 << layout.threads().len();
            let mut held = vec![0; 1 << layout.shape().iter().sum::<u32>()];
            for t in 0..threads {
                for r in 0..layout.num_regs() {
                    held[layout.element(r, t) as usize] += 1;
                }
            }
            let copies = 1 << layout.replicated_threads().count_ones();
            assert!(held.iter().all(|&h| h == copies), "{layout:?}");
        }
    }

    #[test]
    fn vectors_are_neighbours() {
        for layout in layouts() {
            for axis in 0..layout.shape().len() {
                let width = 1 << layout.vector(axis);
                let start = coords(layout.shape(), layout.element(0, 0));
                for r in 0..width {
                    let mut expected = start.clone();
                    expected[axis] += r as u32;
                    assert_eq!(coords(layout.shape(), layout.element(r, 0)), expected);
                }
            }
        }
    }

    #[test]
    fn lanes_take_what_lies_further() {
        let shape = LogShape::from_slice(&[6, 6]);
        let how = crate::layout::Accumulator { rows: 4, warps: 2, by_rows: false, grouped: true };
        let sums = Layout::accumulator(&shape, &how);
        let wide = sums.widened(1, 3).unwrap();
        assert_eq!((sums.vector(1), wide.vector(1)), (1, 3));
        assert_eq!((&sums.lanes()[..2], &wide.lanes()[..2]), (&[2, 4][..], &[8, 16][..]));
        let (steps, left) = sums.exchanges(&wide).unwrap();
        assert_eq!(steps.len(), 2);
        assert!((0..wide.num_regs()).all(|r| left.reg_at(wide.reg_offset(r)).is_some()));
        assert_eq!((left.lanes(), left.warps()), (wide.lanes(), wide.warps()));
        // Nothing lies further along rows of 8, and a warp's rows are not another's.
        let narrow = Layout::accumulator(&LogShape::from_slice(&[6, 3]), &how);
        assert_eq!(narrow.widened(1, 3), None);
        let turned = Layout::blocked(&shape, &Blocked { fast: 0, vector: 1, reduced: 0, warps: 2 });
        assert_eq!(sums.exchanges(&turned), None);
    }

    #[test]
    fn slices_drop_the_axis() {
        for layout in layouts() {
            for axis in 0..layout.shape().len() {
                let slice = layout.slice(axis);
                for t in (0..1 << layout.threads().len()).step_by(7) {
                    for r in 0..layout.num_regs() {
                        let mut expected = coords(layout.shape(), layout.element(r, t));
                        expected.remove(axis);
                        let expected = number(slice.shape(), &expected);
                        let found = (0..slice.num_regs()).any(|s| slice.element(s, t) == expected);
                        assert!(found, "{layout:?} axis {axis}");
                    }
                }
            }
        }
    }

    #[test]
    fn permutations_and_broadcasts_are_undone() {
        for layout in layouts() {
            let rank = layout.shape().len();
            let perm: Vec<u8> = (0..rank as u8).map(|a| (a + 1) % rank.max(1) as u8).collect();
            assert_eq!(layout.permute(&perm).unpermute(&perm), layout);
            let result = layout.permute(&perm);
            for r in 0..layout.num_regs() {
                let from = coords(layout.shape(), layout.element(r, 5));
                let to: Vec<u32> = perm.iter().map(|&p| from[usize::from(p)]).collect();
                assert_eq!(coords(result.shape(), result.element(r, 5)), to);
            }
            let larger: LogShape = layout.shape().iter().map(|&d| if d == 0 { 2 } else { d }).collect();
            assert_eq!(layout.broadcast(&larger).unbroadcast(layout.shape()), layout);
        }
    }
}
