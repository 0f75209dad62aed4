//! Combining elements along an axis.

use super::float::{Float, maximum, minimum};
use super::int::Int;
use crate::data::{Data, Element};
use crate::scalar_fn::ReduceFn;

/// Combines along the middle one of three extents: `data` is `[outer, extent, inner]` in row-major order, the
/// result `[outer, inner]`. Masked-off elements take no part; where none is left, the result is the neutral
/// element. Floats are combined in `f64` from the neutral element on, in order, and rounded once. `None` where the
/// combiner does not take the kind or the lengths do not fit.
pub fn reduce(combine: ReduceFn, data: &Data, mask: Option<&[bool]>, dims: [usize; 3]) -> Option<Data> {
    let fits = data.len() == dims.iter().product() && mask.is_none_or(|m| m.len() == data.len());
    if !fits || !combine.accepts(data.elem()) {
        return None;
    }
    let axis = Axis { mask, dims };
    match data {
        Data::Bool(v) => axis.logic(combine, v),
        Data::I8(v) => axis.int(combine, v),
        Data::I16(v) => axis.int(combine, v),
        Data::I32(v) => axis.int(combine, v),
        Data::I64(v) => axis.int(combine, v),
        Data::U8(v) => axis.int(combine, v),
        Data::U16(v) => axis.int(combine, v),
        Data::U32(v) => axis.int(combine, v),
        Data::U64(v) => axis.int(combine, v),
        Data::F8E4M3(_) | Data::F8E5M2(_) => None,
        Data::F16(v) => axis.float(combine, v),
        Data::Bf16(v) => axis.float(combine, v),
        Data::F32(v) => axis.float(combine, v),
        Data::F64(v) => axis.float(combine, v),
    }
}

struct Axis<'a> {
    mask: Option<&'a [bool]>,
    dims: [usize; 3],
}

impl Axis<'_> {
    fn fold<T: Copy, A: Copy>(&self, v: &[T], init: A, combine: impl Fn(A, T) -> A) -> Vec<A> {
        let [outer, extent, inner] = self.dims;
        let mut out = vec![init; outer * inner];
        for (index, &x) in v.iter().enumerate() {
            if self.mask.is_none_or(|m| m[index]) {
                let slot = &mut out[index / (extent * inner) * inner + index % inner];
                *slot = combine(*slot, x);
            }
        }
        out
    }

    fn logic(&self, combine: ReduceFn, v: &[bool]) -> Option<Data> {
        let init = combine.neutral(bool::ELEM).bits != 0;
        Some(Data::Bool(match combine {
            ReduceFn::And => self.fold(v, init, |a, x| a & x),
            ReduceFn::Or => self.fold(v, init, |a, x| a | x),
            ReduceFn::Xor => self.fold(v, init, |a, x| a ^ x),
            ReduceFn::Sum | ReduceFn::Prod | ReduceFn::Max | ReduceFn::Min => return None,
        }))
    }

    fn int<T: Int>(&self, combine: ReduceFn, v: &[T]) -> Option<Data> {
        let init = T::from_literal(combine.neutral(T::ELEM));
        Some(T::wrap(match combine {
            ReduceFn::Sum => self.fold(v, init, T::add),
            ReduceFn::Prod => self.fold(v, init, T::mul),
            ReduceFn::Max => self.fold(v, init, T::max),
            ReduceFn::Min => self.fold(v, init, T::min),
            ReduceFn::And => self.fold(v, init, T::and),
            ReduceFn::Or => self.fold(v, init, T::or),
            ReduceFn::Xor => self.fold(v, init, T::xor),
        }))
    }

    fn float<T: Float>(&self, combine: ReduceFn, v: &[T]) -> Option<Data> {
        let init = f64::from_bits(combine.neutral(T::ELEM).bits);
        let wide = match combine {
            ReduceFn::Sum => self.fold(v, init, |a, x| a + x.widen()),
            ReduceFn::Prod => self.fold(v, init, |a, x| a * x.widen()),
            ReduceFn::Max => self.fold(v, init, |a, x| maximum(a, x.widen())),
            ReduceFn::Min => self.fold(v, init, |a, x| minimum(a, x.widen())),
            ReduceFn::And | ReduceFn::Or | ReduceFn::Xor => return None,
        };
        Some(T::wrap(wide.into_iter().map(T::narrow).collect()))
    }
}
