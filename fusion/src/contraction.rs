//! What a contraction and a window say of dimensions, whatever operands they have.

use smallvec::SmallVec;
use tilefuse_block::Elem;

use crate::types::Dims;

/// The dimensions of an [`Op::Contract`](crate::Op::Contract), as pairs of one of the left and one of the right operand. Each
/// dimension of an operand is in one pair at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contraction {
    /// Those that the result has, too.
    pub batch: SmallVec<[(u8, u8); 2]>,
    /// Those along which products are added.
    pub sum: SmallVec<[(u8, u8); 2]>,
}

impl Contraction {
    /// The dimensions of an operand of this rank (0 the left one, 1 the right one) that are in no pair.
    pub fn others(&self, operand: usize, rank: usize) -> SmallVec<[u8; 4]> {
        let paired = self.batch.iter().chain(&self.sum).map(|&(l, r)| [l, r][operand]);
        let paired: SmallVec<[u8; 4]> = paired.collect();
        (0..rank as u8).filter(|d| !paired.contains(d)).collect()
    }

    /// The dimensions of an operand: batch, others, summed.
    pub fn parts(&self, operand: usize, rank: usize) -> [SmallVec<[u8; 4]>; 3] {
        let of = |pairs: &[(u8, u8)]| pairs.iter().map(|&(l, r)| [l, r][operand]).collect();
        [of(&self.batch), self.others(operand, rank), of(&self.sum)]
    }

    /// The dimensions of an operand in the order batch, others, summed.
    pub fn order(&self, operand: usize, rank: usize) -> SmallVec<[u8; 6]> {
        self.parts(operand, rank).into_iter().flatten().collect()
    }

    /// The shape of the result; `None` where dimensions are missing, paired twice or of other sizes than their partners.
    pub fn shape(&self, lhs: &[i64], rhs: &[i64]) -> Option<Dims> {
        let pairs = || self.batch.iter().chain(&self.sum);
        let fit = |&(l, r): &(u8, u8)| {
            let sizes = (lhs.get(usize::from(l)), rhs.get(usize::from(r)));
            sizes.0.is_some() && sizes.0 == sizes.1
        };
        let (left, right) = (self.others(0, lhs.len()), self.others(1, rhs.len()));
        let paired = pairs().count();
        if !pairs().all(fit) || left.len() + paired != lhs.len() || right.len() + paired != rhs.len() {
            return None;
        }
        let batch = self.batch.iter().map(|&(l, _)| lhs[usize::from(l)]);
        let left = left.into_iter().map(|d| lhs[usize::from(d)]);
        Some(batch.chain(left).chain(right.into_iter().map(|d| rhs[usize::from(d)])).collect())
    }
}

/// The type that sums of products of two elements of a type are held in: `f32` for shorter ones, 32 bits for 8-bit integers,
/// which libtorch multiplies in no other way; `None` for truth values.
pub fn accumulator(elem: Elem) -> Option<Elem> {
    match elem {
        Elem::F16 | Elem::Bf16 => Some(Elem::F32),
        Elem::I8 => Some(Elem::I32),
        Elem::F32 | Elem::F64 | Elem::I16 | Elem::I32 | Elem::I64 | Elem::U8 => Some(elem),
        _ => None,
    }
}

/// A window over a dimension: at position `i` its element `k` is the operand's `i * stride + k * dilation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The dimension.
    pub dim: u8,
    /// Elements of a window, 1 or more.
    pub kernel: i64,
    /// Elements of the operand between neighbouring windows, 1 or more.
    pub stride: i64,
    /// Elements of the operand between neighbours of a window, 1 or more.
    pub dilation: i64,
}

impl Window {
    /// How many windows a dimension of this size has; `None` where it has none, or the window is none.
    pub fn positions(&self, size: i64) -> Option<i64> {
        let reach = self.dilation.checked_mul(self.kernel.checked_sub(1)?)?;
        let valid = self.kernel >= 1 && self.stride >= 1 && self.dilation >= 1 && size > reach;
        valid.then(|| (size - reach - 1) / self.stride + 1)
    }

    /// The shape of windows over a shape; `None` where a dimension is missing, not in order or smaller than its window.
    pub fn shape(windows: &[Window], from: &[i64]) -> Option<Dims> {
        let mut shape = Dims::from_slice(from);
        for window in windows {
            let size = shape.get_mut(usize::from(window.dim))?;
            *size = window.positions(*size)?;
        }
        shape.extend(windows.iter().map(|window| window.kernel));
        windows.windows(2).all(|pair| pair[0].dim < pair[1].dim).then_some(shape)
    }
}
