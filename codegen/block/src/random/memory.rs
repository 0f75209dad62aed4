//! Drawing buffers, loads and stores that stay in bounds and do not race.

use super::generate::{Generator, Result};
use crate::builder::Builder;
use crate::interp::{Arg, Buffer};
use crate::program::{CacheHint, Value};
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal, Type};

/// Buffers that are stored to at the end.
#[derive(Default)]
pub(super) struct Outputs {
    /// Pointer, offsets and the type of the values.
    inout: Vec<(Value, Value, Type)>,
}

impl Generator<'_, '_> {
    fn instances(&self) -> usize {
        self.grid.iter().product::<u32>() as usize
    }

    fn hint(&mut self) -> CacheHint {
        self.choices.of([CacheHint::Default, CacheHint::Default, CacheHint::Streaming, CacheHint::Keep])
    }

    pub(super) fn buffer(&mut self, b: &mut Builder, name: &str, elem: Elem, len: usize) -> Value {
        let name = format!("{name}{}", self.args.len());
        let promised = self.choices.chance(50).then_some(len as u64);
        let align = self.choices.of([64, 16, elem.bytes()]).max(elem.bytes());
        let data = self.choices.data(elem, len);
        self.args.push(Arg::Buffer(Buffer::new(data)));
        b.ptr_param(&name, elem, align, promised)
    }

    /// A buffer that is only read, and a load from it.
    pub(super) fn input(&mut self, b: &mut Builder) -> Result<()> {
        let value = self.load(b)?;
        self.pool.push(value);
        Ok(())
    }

    /// A load from a buffer of its own: the simplest way to bounds that hold.
    pub(super) fn load(&mut self, b: &mut Builder) -> Result<Value> {
        let shape = self.familiar_shape(b);
        let elem = self.choices.elem();
        let lens = [1, 7, 64, 100, 255, 1000, 1025, 4097];
        let len = self.choices.of(lens);
        let pointer = self.buffer(b, "x", elem, len);
        let wide = self.choices.chance(20);
        let ty = Type::tile(if wide { Elem::I64 } else { Elem::I32 }, &shape);
        let (offsets, mut mask) = match self.choices.below(4) {
            0 => (self.wrapped(b, &ty, len)?, None),
            _ => {
                let offsets = self.affine(b, &ty)?;
                let mask = in_bounds(b, offsets, &ty, len)?;
                (offsets, Some(mask))
            }
        };
        if self.choices.chance(25) {
            let extra = self.get(b, &Type::tile(Elem::Bool, &shape))?;
            mask = Some(match mask {
                Some(mask) => b.map(ScalarFn::And, &[mask, extra])?,
                None => extra,
            });
        }
        let other = match mask.is_some() && self.choices.chance(40) {
            true => Some(self.get(b, &Type::tile(elem, &shape))?),
            false => None,
        };
        let hint = self.hint();
        b.load(pointer, offsets, mask, other, hint)
    }

    /// Any integers, brought into bounds by a remainder.
    pub(super) fn wrapped(&mut self, b: &mut Builder, ty: &Type, len: usize) -> Result<Value> {
        let any = self.get(b, ty)?;
        let elem = ty.elem().unwrap_or(Elem::I32);
        let len = b.constant(Literal::int(elem, len as i64), &ty.shape);
        b.map(ScalarFn::RemFloor, &[any, len])
    }

    /// `base + sum of stride * index` over the axes, in or out of bounds; along an axis there may be another number in the place of the
    /// index, as where rows are gathered, which other loads find.
    fn affine(&mut self, b: &mut Builder, ty: &Type) -> Result<Value> {
        let elem = ty.elem().unwrap_or(Elem::I32);
        let step = self.choices.of([0, 1, 3, 64]);
        let step = self.int(b, step);
        let start = self.choices.of([0, 5, -3]);
        let start = self.int(b, start);
        let mut base = match self.instance {
            Some(instance) => b.map(ScalarFn::Mul, &[instance, step])?,
            None => step,
        };
        base = b.map(ScalarFn::Add, &[base, start])?;
        let mut sum = if ty.rank() == 0 { base } else { b.splat(base, &ty.shape)? };
        let mut dense = 1;
        for axis in (0..ty.rank()).rev() {
            let stride = self.choices.of([dense, dense, dense, 0, 1, 3, -1, 100]);
            let index = match self.choices.chance(20) {
                true => self.place(b, ty.shape[axis])?,
                false => b.range(0, ty.shape[axis])?,
            };
            let stride = b.constant(Literal::int(Elem::I32, stride), &[ty.shape[axis]]);
            let term = along_axis(b, ty, axis, (index, stride))?;
            sum = b.map(ScalarFn::Add, &[sum, term])?;
            dense *= i64::from(ty.shape[axis]);
        }
        b.cast(sum, elem)
    }

    /// Small numbers, so many of them: digits of an index, or of what there is.
    fn place(&mut self, b: &mut Builder, extent: u32) -> Result<Value> {
        let ty = Type::tile(Elem::I32, &[extent]);
        let any = match self.choices.chance(50) {
            true => {
                let index = b.range(0, extent)?;
                let unit = self.choices.of([3, 2, 12]);
                let unit = b.constant(Literal::int(Elem::I32, unit), &ty.shape);
                b.map(ScalarFn::DivFloor, &[index, unit])?
            }
            false => self.get(b, &ty)?,
        };
        let end = self.choices.of([2, 5, 16, 100]);
        let end = b.constant(Literal::int(Elem::I32, end), &ty.shape);
        let place = b.map(ScalarFn::RemFloor, &[any, end])?;
        self.pool.push(place);
        Ok(place)
    }

    /// Buffers that are read at the start and written at the end, at the same places.
    pub(super) fn inout(&mut self, b: &mut Builder, outputs: &mut Outputs) -> Result<()> {
        for _ in 0..self.choices.of([0, 0, 0, 1, 2]) {
            let elem = self.choices.elem();
            let ty = Type::tile(elem, &self.shape());
            let (pointer, offsets) = self.output(b, &ty)?;
            let hint = self.hint();
            let value = b.load(pointer, offsets, None, None, hint)?;
            self.pool.push(value);
            outputs.inout.push((pointer, offsets, ty));
        }
        Ok(())
    }

    /// A buffer with a part for each instance, and offsets into that part, each once.
    pub(super) fn output(&mut self, b: &mut Builder, ty: &Type) -> Result<(Value, Value)> {
        let numel = ty.numel() as i64;
        let spread = self.choices.of([1, 1, 1, 2]);
        let gap = self.choices.of([0, 0, 1, 3]);
        let part = numel * spread + gap;
        let pointer = self.buffer(b, "y", ty.elem().unwrap_or(Elem::I32), part as usize * self.instances());
        let part = self.int(b, part);
        let base = match self.instance {
            Some(instance) => b.map(ScalarFn::Mul, &[instance, part])?,
            None => self.int(b, 0),
        };
        if ty.rank() == 0 {
            return Ok((pointer, base));
        }
        let mut offsets = b.splat(base, &ty.shape)?;
        for (axis, stride) in self.dense_strides(ty, spread).into_iter().enumerate() {
            let index = b.range(0, ty.shape[axis])?;
            let stride = b.constant(Literal::int(Elem::I32, stride), &[ty.shape[axis]]);
            let term = along_axis(b, ty, axis, (index, stride))?;
            offsets = b.map(ScalarFn::Add, &[offsets, term])?;
        }
        if self.choices.chance(20) {
            offsets = b.cast(offsets, Elem::I64)?;
        }
        Ok((pointer, offsets))
    }

    /// Strides that give every element a place of its own, row-major or column-major.
    fn dense_strides(&mut self, ty: &Type, spread: i64) -> Vec<i64> {
        let mut strides = vec![0; ty.rank()];
        let mut axes: Vec<usize> = (0..ty.rank()).collect();
        if !self.choices.chance(25) {
            axes.reverse();
        }
        let mut stride = spread;
        for axis in axes {
            strides[axis] = stride;
            stride *= i64::from(ty.shape[axis]);
        }
        strides
    }

    /// Stores the last values, some others, and to the buffers that were read at the start.
    pub(super) fn finish(&mut self, b: &mut Builder, outputs: Outputs) -> Result<()> {
        for (pointer, offsets, ty) in outputs.inout {
            let value = self.get(b, &ty)?;
            self.store(b, pointer, offsets, value)?;
        }
        for index in 0..2 + self.choices.below(3) {
            let last = self.pool.len().checked_sub(index + 1).and_then(|i| self.pool.get(i)).copied();
            let Some(value) = (if index < 2 { last } else { self.recent() }) else { continue };
            let ty = b.ty(value).clone();
            let (pointer, offsets) = self.output(b, &ty)?;
            self.store(b, pointer, offsets, value)?;
            if self.options.reread && self.choices.chance(15) {
                self.reread(b, pointer, offsets, &ty)?;
            }
        }
        Ok(())
    }

    fn store(&mut self, b: &mut Builder, pointer: Value, offsets: Value, value: Value) -> Result<()> {
        let mask = match self.choices.chance(40) {
            true => Some(self.get(b, &b.ty(value).with_elem(Elem::Bool))?),
            false => None,
        };
        let hint = self.hint();
        b.store(pointer, offsets, value, mask, hint)
    }

    /// Loads what was stored, in another order of the elements, and stores that elsewhere.
    fn reread(&mut self, b: &mut Builder, pointer: Value, offsets: Value, ty: &Type) -> Result<()> {
        let mut at = offsets;
        if ty.rank() > 1 {
            let reversed: Vec<u8> = (0..ty.rank() as u8).rev().collect();
            at = b.permute(at, &reversed)?;
            at = b.reshape(at, &ty.shape)?;
        }
        let value = b.load(pointer, at, None, None, CacheHint::Default)?;
        let (pointer, offsets) = self.output(b, ty)?;
        self.store(b, pointer, offsets, value)
    }
}

/// `stride * index` along an axis for every element of a tile of the shape of `ty`.
pub(super) fn along_axis(
    b: &mut Builder,
    ty: &Type,
    axis: usize,
    (index, stride): (Value, Value),
) -> Result<Value> {
    let mut term = b.map(ScalarFn::Mul, &[index, stride])?;
    for other in 0..ty.rank() {
        if other != axis {
            term = b.expand_dims(term, other as u8)?;
        }
    }
    if ty.rank() > 1 { b.broadcast(term, &ty.shape) } else { Ok(term) }
}

pub(super) fn in_bounds(b: &mut Builder, offsets: Value, ty: &Type, len: usize) -> Result<Value> {
    let elem = ty.elem().unwrap_or(Elem::I32);
    let len = b.constant(Literal::int(elem, len as i64), &ty.shape);
    let zero = b.constant(Literal::int(elem, 0), &ty.shape);
    let below = b.map(ScalarFn::Lt, &[offsets, len])?;
    let above = b.map(ScalarFn::Ge, &[offsets, zero])?;
    b.map(ScalarFn::And, &[below, above])
}
