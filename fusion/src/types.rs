//! Types of tensors: element type, shape, strides, device.

use std::fmt;

use smallvec::SmallVec;
use tilefuse_block::Elem;

/// Sizes or strides of a tensor, outermost dimension first.
pub type Dims = SmallVec<[i64; 6]>;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// One that kernels can be generated for.
    Elem(Elem),
    /// One that only libtorch handles (complex, quantised, ...), by its `c10::ScalarType` number.
    Other(i8),
}

impl DType {
    /// The element kind, where kernels can be generated for it.
    pub fn elem(self) -> Option<Elem> {
        match self {
            DType::Elem(e) => Some(e),
            DType::Other(_) => None,
        }
    }

    /// Bytes of an element; 0 for a type whose elements are not whole bytes of their own (quantised) or that is not known.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Elem(elem) => u64::from(elem.bytes()),
            // What is no plain strided memory keeps its number.
            DType::Other(0 | 1 | 11 | 23..=26 | 44) => 1,
            DType::Other(2 | 5 | 15 | 27) => 2,
            DType::Other(3 | 6 | 8 | 28) => 4,
            DType::Other(4 | 7 | 9 | 29) => 8,
            DType::Other(10) => 16,
            DType::Other(_) => 0,
        }
    }

    /// Whether this is `f16`, `bf16`, `f32` or `f64`.
    pub fn is_float(self) -> bool {
        self.elem().is_some_and(Elem::is_float)
    }

    /// From the number of a `c10::ScalarType`.
    pub fn from_scalar_type(number: i8) -> DType {
        match number {
            0 => DType::Elem(Elem::U8),
            1 => DType::Elem(Elem::I8),
            2 => DType::Elem(Elem::I16),
            3 => DType::Elem(Elem::I32),
            4 => DType::Elem(Elem::I64),
            5 => DType::Elem(Elem::F16),
            6 => DType::Elem(Elem::F32),
            7 => DType::Elem(Elem::F64),
            11 => DType::Elem(Elem::Bool),
            15 => DType::Elem(Elem::Bf16),
            27 => DType::Elem(Elem::U16),
            28 => DType::Elem(Elem::U32),
            29 => DType::Elem(Elem::U64),
            other => DType::Other(other),
        }
    }

    /// The number of the `c10::ScalarType`.
    pub fn scalar_type(self) -> i8 {
        match self {
            DType::Elem(Elem::U8) => 0,
            DType::Elem(Elem::I8) => 1,
            DType::Elem(Elem::I16) => 2,
            DType::Elem(Elem::I32) => 3,
            DType::Elem(Elem::I64) => 4,
            DType::Elem(Elem::F16) => 5,
            DType::Elem(Elem::F32) => 6,
            DType::Elem(Elem::F64) => 7,
            DType::Elem(Elem::Bool) => 11,
            DType::Elem(Elem::Bf16) => 15,
            DType::Elem(Elem::F8E5M2) => 23,
            DType::Elem(Elem::F8E4M3) => 24,
            DType::Elem(Elem::U16) => 27,
            DType::Elem(Elem::U32) => 28,
            DType::Elem(Elem::U64) => 29,
            DType::Other(number) => number,
        }
    }
}

impl From<Elem> for DType {
    fn from(elem: Elem) -> DType {
        DType::Elem(elem)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::Elem(e) => write!(f, "{e}"),
            DType::Other(n) => write!(f, "dtype{n}"),
        }
    }
}

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(u32),
    /// A device that only libtorch handles, by its `c10::DeviceType` number.
    Other(i8),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
            Device::Other(n) => write!(f, "device{n}"),
        }
    }
}

/// The type of a tensor value.
///
/// Printed as `f32[2,3]`; with strides where they are not row-major, `f32[2,3]{1,2}`; with the device where it is
/// not the CPU, `f32[2,3]@cuda:0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Dims,
    /// Strides in elements.
    pub strides: Dims,
    /// Device.
    pub device: Device,
}

impl TensorType {
    /// A row-major tensor.
    pub fn contiguous(dtype: DType, shape: &[i64], device: Device) -> TensorType {
        TensorType { dtype, shape: Dims::from_slice(shape), strides: row_major(shape), device }
    }

    /// Number of elements; 1 for rank 0.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Bytes of the elements; 0 where [`DType::bytes`] does not know.
    pub fn bytes(&self) -> u64 {
        self.numel() as u64 * self.dtype.bytes()
    }

    /// Whether the strides are row-major (dimensions of size 1 and empty tensors do not count).
    pub fn is_contiguous(&self) -> bool {
        if self.numel() == 0 {
            return true;
        }
        let expected = row_major(&self.shape);
        (0..self.rank()).all(|d| self.shape[d] == 1 || self.strides[d] == expected[d])
    }
}

/// The shape that shapes broadcast to.
pub(crate) fn broadcast_shape(shapes: &[&[i64]]) -> Option<Dims> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut result = Dims::from_elem(1, rank);
    for shape in shapes {
        for (d, &n) in shape.iter().enumerate() {
            let at = &mut result[rank - shape.len() + d];
            match (*at, n) {
                (_, 1) => {}
                (1, n) => *at = n,
                (a, b) if a == b => {}
                _ => return None,
            }
        }
    }
    Some(result)
}

/// Whether a number of elements or instances, or an offset, fits the 32 bits in which programs count.
pub(crate) fn fits_i32(n: impl TryInto<i32>) -> bool {
    n.try_into().is_ok()
}

/// The most points of a loop variable, whose positions programs count in 32 bits, those of steps and blocks of steps past its end among
/// them.
pub(crate) const MAX_POINTS: i64 = (1 << 31) - (1 << 25);

/// The kind of the positions along a dimension of so many elements, and of the number past the last one.
pub(crate) fn index_elem(length: i64) -> Elem {
    if fits_i32(length.saturating_add(1)) { Elem::I32 } else { Elem::I64 }
}

/// Row-major strides of a shape, as libtorch computes them (an extent of 0 counts as 1).
pub fn row_major(shape: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(1, shape.len());
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1].max(1);
    }
    strides
}

/// Dense strides of a shape with its dimensions in the order of some strides, as libtorch lays out what it computes of a
/// tensor with these (`at::infer_dense_strides`): a stride of 0 fits everywhere, and of dimensions of one stride the
/// larger lies further out.
pub(crate) fn dense(shape: &[i64], strides: &[i64]) -> Dims {
    // From the innermost dimension to the outermost.
    let mut order: Dims = (0..shape.len()).rev().map(|d| d as i64).collect();
    let is_outside = |a: i64, b: i64| {
        let (a, b) = (a as usize, b as usize);
        match (strides[a], strides[b]) {
            (0, _) | (_, 0) => None,
            (x, y) if x == y => (shape[a] > shape[b]).then_some(true),
            (x, y) => Some(x > y),
        }
    };
    for next in 1..order.len() {
        let mut at = next;
        for before in (0..next).rev() {
            match is_outside(order[before], order[at]) {
                Some(true) => {
                    order.swap(before, at);
                    at = before;
                }
                Some(false) => break,
                None => {}
            }
        }
    }
    let mut dense = Dims::from_elem(1, shape.len());
    let mut distance = 1;
    for dim in order {
        dense[dim as usize] = distance;
        distance *= shape[dim as usize].max(1);
    }
    dense
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.dtype, join(&self.shape))?;
        if self.strides != row_major(&self.shape) {
            write!(f, "{{{}}}", join(&self.strides))?;
        }
        if self.device != Device::Cpu {
            write!(f, "@{}", self.device)?;
        }
        Ok(())
    }
}

/// Numbers separated by commas.
pub(crate) fn join(numbers: &[i64]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::dense;

    #[test]
    fn dense_strides_keep_the_order_of_dimensions() {
        let cases: [(&[i64], &[i64], &[i64]); 6] = [
            (&[13, 4, 16], &[1, 8, 1], &[1, 208, 13]),
            (&[2, 3], &[1, 4], &[1, 2]),
            (&[4, 5], &[0, 1], &[5, 1]),
            (&[5, 4], &[1, 0], &[4, 1]),
            (&[2, 3, 4], &[0, 8, 2], &[12, 4, 1]),
            (&[], &[], &[]),
        ];
        for (shape, strides, expected) in cases {
            assert_eq!(dense(shape, strides)[..], *expected, "{shape:?} {strides:?}");
        }
    }
}
