//! Drawing the operations that hand-written kernels have and the planner's do not.

use super::functions::{small_whole, without_nan};
use super::generate::{Generator, Result};
use crate::builder::Builder;
use crate::interp::{Arg, Buffer};
use crate::program::{Assumption, AtomicFn, DotPrecision, MemoryOrder, MemoryScope, OpKind, Value};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Shape, Type};

/// How elements are combined: each is associative bit by bit.
#[derive(Clone, Copy)]
enum Combiner {
    /// One operand, one function.
    Function(ScalarFn),
    /// The larger value and its index, the lower one of equals.
    ArgMax,
    /// Affine maps applied one after the other, which does not commute.
    Compose,
    /// The later one.
    Last,
}

impl Generator<'_, '_> {
    /// One operation or a few that belong together.
    pub(super) fn language(&mut self, b: &mut Builder) -> Result<()> {
        match self.choices.below(16) {
            0 => {
                let value = b.num_programs(self.choices.below(3) as u8)?;
                self.pool.push(value);
                Ok(())
            }
            1 => self.join_and_split(b),
            2 | 3 => self.gather(b),
            4 => self.reduce_with(b),
            5 | 6 => self.scan(b),
            7 => self.histogram(b),
            8 if self.choices.chance(40) => self.sum_of_products(b),
            8 | 9 => self.dot(b),
            10 => self.random_bits(b),
            11 => self.atomic(b),
            12 => self.shared_counter(b),
            13 => self.small_float(b),
            14 => self.promises(b),
            _ if self.depth < 2 => {
                if self.choices.chance(50) {
                    self.if_else(b)
                } else {
                    self.while_loop(b)
                }
            }
            _ => self.gather(b),
        }
    }

    fn any_tile(&mut self, b: &mut Builder) -> Result<Value> {
        let tiles: Vec<Value> = self.pool.iter().copied().filter(|&v| b.ty(v).rank() > 0).collect();
        match self.choices.pick(&tiles) {
            Some(tile) => Ok(tile),
            None => self.get(b, &Type::tile(Elem::I32, &[8])),
        }
    }

    fn join_and_split(&mut self, b: &mut Builder) -> Result<()> {
        let first = self.any_tile(b)?;
        let ty = b.ty(first).clone();
        if let Some((2, _)) = ty.shape.split_last() {
            let (x, y) = b.split(first)?;
            self.pool.extend([x, y]);
        }
        if ty.rank() < 3 && ty.numel() <= 256 {
            let second = self.get(b, &ty)?;
            let joined = b.join(first, second)?;
            self.pool.push(joined);
        }
        Ok(())
    }

    fn gather(&mut self, b: &mut Builder) -> Result<()> {
        let tile = self.any_tile(b)?;
        let mut shape = b.ty(tile).shape.clone();
        let axis = self.choices.below(shape.len());
        if self.choices.chance(50) {
            shape[axis] = 1 << self.choices.below(6);
        }
        let elem = self.choices.of([Elem::I32, Elem::I64]);
        let indices = self.get(b, &Type::tile(elem, &shape))?;
        let value = b.gather(tile, indices, axis as u8)?;
        self.pool.push(value);
        Ok(())
    }

    /// A tile of integers of at least 16 bits, of the shape of another.
    fn integers(&mut self, b: &mut Builder, shape: &Shape) -> Result<Value> {
        let elem = self.choices.of([Elem::I32, Elem::I64, Elem::U32, Elem::I16]);
        self.get(b, &Type::tile(elem, shape))
    }

    /// A combiner and operands that it takes.
    fn combiner(&mut self, b: &mut Builder, commutes: bool) -> Result<(Combiner, Vec<Value>)> {
        let tile = self.any_tile(b)?;
        let ty = b.ty(tile).clone();
        let elem = ty.elem().unwrap_or(Elem::I32);
        let functions: &[ScalarFn] = match elem {
            Elem::Bool => &[ScalarFn::And, ScalarFn::Or, ScalarFn::Xor],
            e if e.is_float() => &[ScalarFn::Max, ScalarFn::Min],
            _ => &[ScalarFn::Add, ScalarFn::Mul, ScalarFn::Max, ScalarFn::Min, ScalarFn::Xor],
        };
        let function = self.choices.pick(functions).unwrap_or(ScalarFn::Max);
        match self.choices.below(if commutes { 3 } else { 6 }) {
            0 | 1 => Ok((Combiner::Function(function), vec![tile])),
            2 => {
                let tile = if elem.is_float() { without_nan(b, tile)? } else { tile };
                let index = self.integers(b, &ty.shape)?;
                Ok((Combiner::ArgMax, vec![tile, index]))
            }
            3 => Ok((Combiner::Last, vec![tile])),
            _ => {
                let scale = self.integers(b, &ty.shape)?;
                let like = b.ty(scale).clone();
                let shift = self.get(b, &like)?;
                Ok((Combiner::Compose, vec![scale, shift]))
            }
        }
    }

    fn reduce_with(&mut self, b: &mut Builder) -> Result<()> {
        let (combiner, tiles) = self.combiner(b, true)?;
        let axis = self.choices.below(b.ty(tiles[0]).rank()) as u8;
        let results = b.reduce_with(&tiles, axis, |b, x, y| combine(b, combiner, x, y))?;
        self.pool.extend(results);
        Ok(())
    }

    fn scan(&mut self, b: &mut Builder) -> Result<()> {
        let (combiner, tiles) = self.combiner(b, false)?;
        let axis = self.choices.below(b.ty(tiles[0]).rank()) as u8;
        let reverse = self.choices.chance(30);
        let results = b.scan(&tiles, axis, reverse, |b, x, y| combine(b, combiner, x, y))?;
        self.pool.extend(results);
        Ok(())
    }

    fn histogram(&mut self, b: &mut Builder) -> Result<()> {
        let tile = self.any_tile(b)?;
        let shape = Shape::from_slice(&[b.ty(tile).numel() as u32]);
        let values = self.integers(b, &shape)?;
        let mask = match self.choices.chance(40) {
            true => Some(self.get(b, &Type::tile(Elem::Bool, &shape))?),
            false => None,
        };
        let counts = b.histogram(values, 1 << self.choices.below(9), mask)?;
        self.pool.push(counts);
        Ok(())
    }

    fn dot(&mut self, b: &mut Builder) -> Result<()> {
        let elem = self.choices.of([Elem::F16, Elem::Bf16, Elem::F32, Elem::F64, Elem::I8, Elem::U8]);
        let extent = |g: &mut Self| g.choices.of([16u32, 16, 32, 1, 2, 8]);
        let (m, k, n) = (extent(self), extent(self), extent(self));
        let batch = if self.choices.chance(20) { vec![1 << self.choices.below(3)] } else { Vec::new() };
        let shape = |rows, cols| [batch.as_slice(), &[rows, cols]].concat();
        let sum = match elem {
            Elem::I8 | Elem::U8 => Elem::I32,
            Elem::F64 => Elem::F64,
            _ => Elem::F32,
        };
        let mut operand = |b: &mut Builder, elem: Elem, shape: &[u32]| {
            let value = self.get(b, &Type::tile(elem, shape))?;
            // Sums of products of small whole numbers are exact in any order.
            if elem.is_float() { small_whole(b, value).and_then(|v| without_nan(b, v)) } else { Ok(value) }
        };
        let x = operand(b, elem, &shape(m, k))?;
        let y = operand(b, elem, &shape(k, n))?;
        let z = operand(b, sum, &shape(m, n))?;
        let precision = self.choices.of([DotPrecision::Tf32, DotPrecision::Tf32x3, DotPrecision::Ieee]);
        let mut product = b.dot(x, y, z, precision)?;
        if sum.is_float() {
            let zero = b.constant(Literal::float(sum, 0.0), &b.ty(product).shape.clone());
            product = b.map(ScalarFn::Add, &[product, zero])?;
        }
        self.pool.push(product);
        Ok(())
    }

    /// A matrix product as the sum of a tile of all products, of factors that may have been widened.
    fn sum_of_products(&mut self, b: &mut Builder) -> Result<()> {
        let elem = self.choices.of([Elem::F16, Elem::Bf16, Elem::F32, Elem::F64, Elem::I8, Elem::U8]);
        let wide = match elem {
            Elem::I8 | Elem::U8 => Elem::I32,
            Elem::F64 => Elem::F64,
            _ => Elem::F32,
        };
        let extents = [16u32, 16, self.choices.of([16, 32, 8])];
        let axis = self.choices.below(3);
        let (first, second) = ((axis + 1) % 3, (axis + 2) % 3);
        let factor = |g: &mut Self, b: &mut Builder, without: usize| {
            let shape: Vec<u32> = (0..3).filter(|&a| a != without).map(|a| extents[a]).collect();
            let value = g.get(b, &Type::tile(elem, &shape))?;
            let value =
                if elem.is_float() { small_whole(b, value).and_then(|v| without_nan(b, v))? } else { value };
            let value = b.cast(value, wide)?;
            let value = b.expand_dims(value, without as u8)?;
            b.broadcast(value, &extents)
        };
        let (x, y) = (factor(self, b, first)?, factor(self, b, second)?);
        let products = b.map(ScalarFn::Mul, &[x, y])?;
        let mut sum = b.reduce(ReduceFn::Sum, products, axis as u8, None)?;
        if wide.is_float() {
            let zero = b.constant(Literal::float(wide, 0.0), &b.ty(sum).shape.clone());
            sum = b.map(ScalarFn::Add, &[sum, zero])?;
        }
        self.pool.push(sum);
        Ok(())
    }

    fn random_bits(&mut self, b: &mut Builder) -> Result<()> {
        let seed = self.get(b, &Type::scalar(Elem::U64))?;
        let shape = self.familiar_shape(b);
        let elem = self.choices.of([Elem::I32, Elem::U32, Elem::I64, Elem::U64]);
        let offsets = self.get(b, &Type::tile(elem, &shape))?;
        let words = b.philox(seed, offsets, self.choices.of([10, 10, 7, 1]))?;
        self.pool.extend(words);
        Ok(())
    }

    pub(super) fn order(&mut self) -> (MemoryOrder, MemoryScope) {
        let orders = [MemoryOrder::Relaxed, MemoryOrder::AcqRel, MemoryOrder::Acquire, MemoryOrder::Release];
        (self.choices.of(orders), self.choices.of([MemoryScope::Device, MemoryScope::System]))
    }

    /// Atomic operations on places of which each belongs to one element of one instance.
    fn atomic(&mut self, b: &mut Builder) -> Result<()> {
        let function = self.choices.of(AtomicFn::ALL);
        let kinds: Vec<Elem> = Elem::ALL.into_iter().filter(|&e| function.accepts(e)).collect();
        let elem = self.choices.pick(&kinds).unwrap_or(Elem::I32);
        let ty = Type::tile(elem, &self.familiar_shape(b));
        let (pointer, offsets) = self.output(b, &ty)?;
        // Sums of whole numbers do not depend on what a target does with subnormal ones.
        self.make_whole();
        let mut value = self.get(b, &ty)?;
        if elem.is_float() {
            value = small_whole(b, value)?;
        }
        let order = self.order();
        let old = if self.choices.chance(70) || elem.bytes() < 4 {
            let mask = match self.choices.chance(40) {
                true => Some(self.get(b, &ty.with_elem(Elem::Bool))?),
                false => None,
            };
            b.atomic(function, (pointer, offsets, value), mask, order)?
        } else {
            let expected = match self.choices.chance(50) {
                true => b.load(pointer, offsets, None, None, Default::default())?,
                false => self.get(b, &ty)?,
            };
            let expected = if elem.is_float() { without_nan(b, expected)? } else { expected };
            b.atomic_cas((pointer, offsets), (expected, value), order)?
        };
        if self.depth == 0 {
            self.pool.push(old);
        }
        Ok(())
    }

    /// Makes the floats of the last buffer small and whole.
    fn make_whole(&mut self) {
        let Some(Arg::Buffer(buffer)) = self.args.last_mut() else { return };
        if buffer.elem.is_float() {
            let whole = |l: Literal| Literal::float(l.elem, (l.bits % 17) as f64 - 8.0);
            let data = crate::data::Data::from_literals(
                buffer.elem,
                buffer.data().literals().into_iter().map(whole),
            );
            *buffer = Buffer::new(data);
        }
    }

    /// Places that all instances change, in a way that does not depend on the order.
    fn shared_counter(&mut self, b: &mut Builder) -> Result<()> {
        let functions =
            [AtomicFn::Add, AtomicFn::Max, AtomicFn::Min, AtomicFn::And, AtomicFn::Or, AtomicFn::Xor];
        let function = self.choices.of(functions);
        let elem = self.choices.of([Elem::I32, Elem::U32, Elem::I64, Elem::U64]);
        let ty = Type::tile(elem, &self.familiar_shape(b));
        let len = self.choices.of([1usize, 3, 16]);
        let pointer = self.buffer(b, "c", elem, len);
        let offsets = self.wrapped(b, &ty.with_elem(Elem::I32), len)?;
        let value = self.get(b, &ty)?;
        let order = self.order();
        b.atomic(function, (pointer, offsets, value), None, order).map(drop)
    }

    /// A value rounded to 8 bits, and back.
    fn small_float(&mut self, b: &mut Builder) -> Result<()> {
        let Some(value) = self.recent() else { return Ok(()) };
        let elem = self.choices.of([Elem::F8E4M3, Elem::F8E5M2]);
        let small = b.cast(value, elem)?;
        let to = self.choices.of([Elem::F32, Elem::F16, Elem::Bf16, Elem::F64]);
        let back = b.cast(small, to)?;
        self.pool.push(back);
        Ok(())
    }

    /// Promises and assertions that hold.
    fn promises(&mut self, b: &mut Builder) -> Result<()> {
        let range = b.range(0, 64)?;
        let fact = self.choices.of([
            Assumption::MultipleOf(16),
            Assumption::Contiguous(8),
            Assumption::Contiguous(64),
            Assumption::Between(-1, 63),
        ]);
        let range = b.assume(range, fact)?;
        let same = b.map(ScalarFn::Eq, &[range, range])?;
        let mask = self.get(b, &Type::tile(Elem::Bool, &[64]))?;
        let mask = self.choices.chance(50).then_some(mask);
        b.assert(same, "a number equals itself", mask)?;
        self.pool.push(range);
        Ok(())
    }

    /// Draws some operations in a region of their own, then values of the given types.
    fn inner(&mut self, b: &mut Builder, extra: &[Value], types: &[Type]) -> Result<Vec<Value>> {
        let outside = self.pool.len();
        self.pool.extend(extra);
        self.depth += 1;
        let count = 1 + self.choices.below(4);
        let drawn = self.ops(b, count);
        let values = drawn.and_then(|()| types.iter().map(|ty| self.get(b, ty)).collect());
        self.depth -= 1;
        self.pool.truncate(outside);
        values
    }

    fn some_types(&mut self, b: &Builder) -> Vec<Type> {
        let count = self.choices.below(3);
        (0..count).filter_map(|_| self.recent()).map(|v| b.ty(v).clone()).collect()
    }

    fn if_else(&mut self, b: &mut Builder) -> Result<()> {
        let condition = self.get(b, &Type::scalar(Elem::Bool))?;
        let types = self.some_types(b);
        // Both regions are drawn by one generator, one after the other.
        let this = std::cell::RefCell::new(self);
        let results = b.if_else(
            condition,
            |b| this.borrow_mut().inner(b, &[], &types),
            |b| this.borrow_mut().inner(b, &[], &types),
        )?;
        this.into_inner().pool.extend(results);
        Ok(())
    }

    fn while_loop(&mut self, b: &mut Builder) -> Result<()> {
        let types = self.some_types(b);
        let start = self.int(b, 0);
        let mut init = vec![start];
        for ty in &types {
            init.push(self.get(b, ty)?);
        }
        let trips = self.choices.of([2, 1, 0, 5]);
        let limit = self.int(b, trips);
        let this = std::cell::RefCell::new(self);
        let results = b.while_loop(
            &init,
            |b, carried| {
                let extra = this.borrow_mut().inner(b, carried, &[Type::scalar(Elem::Bool)])?;
                let below = b.map(ScalarFn::Lt, &[carried[0], limit])?;
                b.map(ScalarFn::And, &[below, extra[0]])
            },
            |b, carried| {
                let next = this.borrow_mut().inner(b, carried, &types)?;
                let one = b.constant(Literal::int(Elem::I32, 1), &[]);
                let count = b.map(ScalarFn::Add, &[carried[0], one])?;
                Ok::<_, crate::infer::TypeError>([vec![count], next].concat())
            },
        )?;
        this.into_inner().pool.extend(results);
        Ok(())
    }
}

fn combine(b: &mut Builder, combiner: Combiner, x: &[Value], y: &[Value]) -> Result<Vec<Value>> {
    match combiner {
        Combiner::Function(function) => Ok(vec![b.map(function, &[x[0], y[0]])?]),
        Combiner::Last => {
            // An operation between, so that the region is not empty.
            let same = b.push(OpKind::Bitcast(b.ty(y[0]).elem().unwrap_or(Elem::I32)), &[y[0]])?;
            Ok(vec![same.unwrap_or(y[0])])
        }
        Combiner::ArgMax => {
            let larger = b.map(ScalarFn::Gt, &[x[0], y[0]])?;
            let equal = b.map(ScalarFn::Eq, &[x[0], y[0]])?;
            let lower = b.map(ScalarFn::Le, &[x[1], y[1]])?;
            let first = b.map(ScalarFn::And, &[equal, lower])?;
            let first = b.map(ScalarFn::Or, &[larger, first])?;
            (0..2).map(|i| b.map(ScalarFn::Select, &[first, x[i], y[i]])).collect()
        }
        Combiner::Compose => {
            let scale = b.map(ScalarFn::Mul, &[x[0], y[0]])?;
            let shift = b.map(ScalarFn::Mul, &[x[1], y[0]])?;
            Ok(vec![scale, b.map(ScalarFn::Add, &[shift, y[1]])?])
        }
    }
}
