//! Drawing scalar functions, conversions, movements and reductions.

use super::generate::{Generator, Result};
use crate::builder::Builder;
use crate::program::{OpKind, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn, TypeRule};
use crate::types::{Elem, Literal, Type};

impl Generator<'_, '_> {
    pub(super) fn function(&mut self, b: &mut Builder) -> Result<Value> {
        let function = self.scalar_fn();
        let shape = self.familiar_shape(b);
        let elem = self.elem_for(function, b);
        let mut args = Vec::new();
        for index in 0..function.arity() {
            let elem = if function.rule() == TypeRule::Select && index == 0 { Elem::Bool } else { elem };
            args.push(self.get(b, &Type::tile(elem, &shape))?);
        }
        if let (ScalarFn::CopySign, Some(sign)) = (function, args.last_mut()) {
            *sign = without_nan(b, *sign)?;
        }
        b.map(function, &args)
    }

    fn scalar_fn(&mut self) -> ScalarFn {
        let math = self.options.math;
        loop {
            let function = ScalarFn::ALL[self.choices.below(ScalarFn::ALL.len())];
            if (math && !function.is_approximate()) || !function.is_math() {
                return function;
            }
            if self.choices.is_exhausted() {
                return ScalarFn::Add;
            }
        }
    }

    /// A kind that the function takes, more often one that a value has.
    fn elem_for(&mut self, function: ScalarFn, b: &Builder) -> Elem {
        let takes = |elem: &Elem| {
            let first = if function.rule() == TypeRule::Select { Elem::Bool } else { *elem };
            let kinds: Vec<Elem> =
                (0..function.arity()).map(|i| if i == 0 { first } else { *elem }).collect();
            function.result(&kinds).is_some()
        };
        let known: Vec<Elem> = self.pool.iter().filter_map(|&v| b.ty(v).elem()).filter(takes).collect();
        let all: Vec<Elem> = Elem::ALL.into_iter().filter(|e| takes(e) && !e.is_small_float()).collect();
        let known = if self.choices.chance(80) { self.choices.pick(&known) } else { None };
        known.or_else(|| self.choices.pick(&all)).unwrap_or(Elem::F32)
    }

    pub(super) fn conversion(&mut self, b: &mut Builder) -> Result<Value> {
        let Some(value) = self.recent() else { return self.function(b) };
        let from = b.ty(value).elem().unwrap_or(Elem::I32);
        if self.choices.chance(60) {
            let to = self.choices.elem();
            return b.push(OpKind::Cast(to), &[value]).map(|v| v.unwrap_or(value));
        }
        let fits = |e: &Elem| e.bits() == from.bits() && !e.is_small_float();
        let same_width: Vec<Elem> = Elem::ALL.into_iter().filter(fits).collect();
        let to = self.choices.pick(&same_width).unwrap_or(from);
        let value = if from.is_float() { without_nan(b, value)? } else { value };
        b.bitcast(value, to)
    }

    pub(super) fn movement(&mut self, b: &mut Builder) -> Result<Value> {
        let Some(value) = self.recent() else { return self.function(b) };
        let ty = b.ty(value).clone();
        let (rank, numel) = (ty.rank(), ty.numel() as u32);
        match self.choices.below(6) {
            0 if rank == 0 => {
                let shape = self.familiar_shape(b);
                b.splat(value, &shape)
            }
            1 | 2 if ty.shape.contains(&1) => {
                let mut shape = ty.shape.clone();
                let mut room = self.options.max_tile.min(256) / numel.max(1);
                for extent in shape.iter_mut().filter(|d| **d == 1) {
                    *extent = 1 << self.choices.below(room.max(1).ilog2() as usize + 1);
                    room /= *extent;
                }
                b.broadcast(value, &shape)
            }
            3 if rank > 1 => {
                let mut perm: Vec<u8> = (0..rank as u8).collect();
                for axis in 1..rank {
                    let other = self.choices.below(axis + 1);
                    perm.swap(axis, other);
                }
                b.permute(value, &perm)
            }
            4 => {
                let bits = numel.ilog2();
                let outer = self.choices.below(bits as usize + 1) as u32;
                let shape: &[u32] = if rank == 1 { &[1 << outer, 1 << (bits - outer)] } else { &[numel] };
                b.reshape(value, shape)
            }
            _ if rank < 3 => b.expand_dims(value, self.choices.below(rank + 1) as u8),
            _ => b.reshape(value, &[numel]),
        }
    }

    pub(super) fn reduction(&mut self, b: &mut Builder) -> Result<Value> {
        let tiles: Vec<Value> = self.pool.iter().copied().filter(|&v| b.ty(v).rank() > 0).collect();
        let Some(tile) = self.choices.pick(&tiles) else { return self.function(b) };
        let ty = b.ty(tile).clone();
        let elem = ty.elem().unwrap_or(Elem::I32);
        let fitting: Vec<ReduceFn> = ReduceFn::ALL.into_iter().filter(|f| f.accepts(elem)).collect();
        let Some(combine) = self.choices.pick(&fitting) else { return self.function(b) };
        let axis = self.choices.below(ty.rank()) as u8;
        let mask = match self.choices.chance(40) {
            true => Some(self.get(b, &ty.with_elem(Elem::Bool))?),
            false => None,
        };
        match (elem.is_float(), combine) {
            (true, ReduceFn::Sum) => {
                let tile = small_whole(b, tile)?;
                let sum = b.reduce(combine, tile, axis, mask)?;
                let zero = b.constant(Literal::float(elem, 0.0), &b.ty(sum).shape.clone());
                b.map(ScalarFn::Add, &[sum, zero])
            }
            (true, ReduceFn::Prod) => {
                let tile = powers_of_two(b, tile)?;
                b.reduce(combine, tile, axis, mask)
            }
            _ => b.reduce(combine, tile, axis, mask),
        }
    }
}

fn like(b: &mut Builder, value: Value, x: f64) -> Value {
    let ty = b.ty(value).clone();
    b.constant(Literal::float(ty.elem().unwrap_or(Elem::F32), x), &ty.shape)
}

/// 1 in place of NaN, whose sign and payload targets may choose.
pub(super) fn without_nan(b: &mut Builder, value: Value) -> Result<Value> {
    let nan = b.map(ScalarFn::IsNan, &[value])?;
    let one = like(b, value, 1.0);
    b.map(ScalarFn::Select, &[nan, one, value])
}

/// Whole numbers from -8 to 8, and NaN: sums of them are exact in any order.
pub(super) fn small_whole(b: &mut Builder, value: Value) -> Result<Value> {
    let (low, high) = (like(b, value, -8.0), like(b, value, 8.0));
    let value = b.map(ScalarFn::Max, &[value, low])?;
    let value = b.map(ScalarFn::Min, &[value, high])?;
    b.map(ScalarFn::RoundEven, &[value])
}

/// 2, 1, -1 and NaN: products of them are exact, or infinite, in any order.
fn powers_of_two(b: &mut Builder, value: Value) -> Result<Value> {
    let (one, two, minus) = (like(b, value, 1.0), like(b, value, 2.0), like(b, value, -1.0));
    let large = b.map(ScalarFn::Gt, &[value, one])?;
    let small = b.map(ScalarFn::Lt, &[value, minus])?;
    let nan = b.map(ScalarFn::IsNan, &[value])?;
    let factor = b.map(ScalarFn::Select, &[small, minus, one])?;
    let factor = b.map(ScalarFn::Select, &[large, two, factor])?;
    b.map(ScalarFn::Select, &[nan, value, factor])
}
