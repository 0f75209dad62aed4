//! Building a random program: values of all shapes and kinds, each made from earlier ones.

use super::memory::Outputs;
use super::{Case, Choices, Options};
use crate::builder::Builder;
use crate::infer::TypeError;
use crate::interp::Arg;
use crate::program::Value;
use crate::scalar_fn::ScalarFn;
use crate::types::{Elem, Literal, Shape, Type};

pub(super) type Result<T> = std::result::Result<T, TypeError>;

/// The state of building: the program so far and the values that operands are drawn from.
pub(super) struct Generator<'c, 'b> {
    pub(super) choices: &'c mut Choices<'b>,
    pub(super) options: &'c Options,
    /// The arguments, in the order of the parameters.
    pub(super) args: Vec<Arg>,
    pub(super) grid: [u32; 3],
    /// Numbers (no pointers) that are defined here.
    pub(super) pool: Vec<Value>,
    /// The instance's number, an `i32` scalar.
    pub(super) instance: Option<Value>,
    pub(super) depth: usize,
}

pub(super) fn case(choices: &mut Choices<'_>, options: &Options) -> Result<Case> {
    let mut b = Builder::new("random");
    b.set_warps(choices.of([4, 1, 2, 8]));
    let grid = [1 + choices.below(4), 1 + choices.below(2), 1 + choices.below(2)].map(|n| n as u32);
    let mut g =
        Generator { choices, options, args: Vec::new(), grid, pool: Vec::new(), instance: None, depth: 0 };
    g.start(&mut b)?;
    let mut outputs = Outputs::default();
    g.inout(&mut b, &mut outputs)?;
    let count = 2 + g.choices.below(options.max_ops.max(1));
    g.ops(&mut b, count)?;
    g.finish(&mut b, outputs)?;
    if g.choices.chance(20) {
        b.set_stages(g.choices.of([2, 1, 3, 8]));
    }
    if g.choices.chance(20) {
        b.set_early();
    }
    Ok(Case { args: g.args, program: b.finish(), grid })
}

impl Generator<'_, '_> {
    /// Scalar parameters, grid indices, inputs.
    fn start(&mut self, b: &mut Builder) -> Result<()> {
        for index in 0..self.choices.below(4) {
            let elem = self.choices.elem();
            let value = b.scalar_param(&format!("s{index}"), elem);
            let literal = self.choices.literal(elem);
            self.args.push(Arg::Scalar(literal));
            self.pool.push(value);
        }
        let mut instance = b.program_id(2)?;
        self.pool.push(instance);
        for axis in [1, 0] {
            let id = b.program_id(axis)?;
            self.pool.push(id);
            let extent = self.int(b, i64::from(self.grid[usize::from(axis)]));
            let scaled = b.map(ScalarFn::Mul, &[instance, extent])?;
            instance = b.map(ScalarFn::Add, &[scaled, id])?;
        }
        self.pool.push(instance);
        self.instance = Some(instance);
        for _ in 0..1 + self.choices.below(3) {
            self.input(b)?;
        }
        Ok(())
    }

    /// Draws `count` operations.
    pub(super) fn ops(&mut self, b: &mut Builder, count: usize) -> Result<()> {
        for _ in 0..count {
            if self.choices.is_exhausted() {
                return Ok(());
            }
            if self.options.overlap && self.depth < 2 && self.choices.chance(15) {
                self.overlap(b)?;
                continue;
            }
            if self.options.language && self.choices.chance(40) {
                self.language(b)?;
                continue;
            }
            let value = match self.choices.below(20) {
                0..=8 => self.function(b)?,
                9 => self.conversion(b)?,
                10..=12 => self.movement(b)?,
                13..=14 => self.reduction(b)?,
                15..=16 => self.load(b)?,
                17 => self.range(b)?,
                _ if self.depth < 2 => {
                    self.for_loop(b)?;
                    continue;
                }
                _ => self.function(b)?,
            };
            self.pool.push(value);
        }
        Ok(())
    }

    pub(super) fn int(&self, b: &mut Builder, value: i64) -> Value {
        b.constant(Literal::int(Elem::I32, value), &[])
    }

    /// A shape of rank 0 to 3, rarely with many elements.
    pub(super) fn shape(&mut self) -> Shape {
        let mut room =
            if self.choices.chance(15) { self.options.max_tile } else { self.options.max_tile.min(256) };
        let rank = self.choices.below(4);
        let mut shape = Shape::new();
        for _ in 0..rank {
            let extent = 1 << self.choices.below(room.max(1).ilog2() as usize + 1);
            shape.push(extent);
            room /= extent;
        }
        shape
    }

    /// A shape that a value has, or another one.
    pub(super) fn familiar_shape(&mut self, b: &Builder) -> Shape {
        match self.recent() {
            Some(value) if self.choices.chance(85) => b.ty(value).shape.clone(),
            _ => self.shape(),
        }
    }

    /// A value, more often one of the last.
    pub(super) fn recent(&mut self) -> Option<Value> {
        let len = self.pool.len();
        let back =
            if self.choices.chance(60) { self.choices.below(len.min(6)) } else { self.choices.below(len) };
        self.pool.get(len.checked_sub(back + 1)?).copied()
    }

    /// A value of a type: one that there is, or one made by a constant, a cast or a splat.
    pub(super) fn get(&mut self, b: &mut Builder, ty: &Type) -> Result<Value> {
        let elem = ty.elem().unwrap_or(Elem::I32);
        let fitting: Vec<Value> = self.pool.iter().copied().filter(|&v| b.ty(v) == ty).collect();
        if self.choices.chance(75)
            && let Some(value) = self.choices.pick(&fitting)
        {
            return Ok(value);
        }
        let same_shape: Vec<Value> =
            self.pool.iter().copied().filter(|&v| b.ty(v).shape == ty.shape).collect();
        let scalars: Vec<Value> = self.pool.iter().copied().filter(|&v| b.ty(v).rank() == 0).collect();
        let value = match (self.choices.below(3), self.choices.pick(&same_shape), self.choices.pick(&scalars))
        {
            (0, Some(value), _) => b.cast(value, elem)?,
            (1, _, Some(scalar)) => {
                let scalar = b.cast(scalar, elem)?;
                if ty.rank() == 0 { scalar } else { b.splat(scalar, &ty.shape)? }
            }
            _ => {
                let literal = self.choices.literal(elem);
                b.constant(literal, &ty.shape)
            }
        };
        self.pool.push(value);
        Ok(value)
    }

    fn range(&mut self, b: &mut Builder) -> Result<Value> {
        let len = 1 << self.choices.below(self.options.max_tile.max(1).ilog2() as usize + 1).min(9);
        let start = self.choices.of([0, 1, -3, i32::MAX - 2]);
        b.range(start, len)
    }

    /// A loop of few iterations with carried values and a body of its own.
    fn for_loop(&mut self, b: &mut Builder) -> Result<()> {
        let scalar = Type::scalar(Elem::I32);
        let lo = self.choices.of([0, -2, 1, 5]);
        let trips = self.choices.of([2, 1, 3, 0]);
        let step = 1 + self.choices.below(3) as i64;
        let lo_value = self.int(b, lo);
        let mut hi_value = self.int(b, lo + trips * step - (trips.min(1)));
        if let (true, Some(instance)) = (self.choices.chance(25), self.instance) {
            hi_value = b.map(ScalarFn::Sub, &[hi_value, instance])?;
        }
        let step_value = self.int(b, step);
        let mut init = Vec::new();
        for _ in 0..self.choices.below(4) {
            let ty = self.recent().map_or(scalar.clone(), |v| b.ty(v).clone());
            init.push(self.get(b, &ty)?);
        }
        let results = b.for_loop((lo_value, hi_value, step_value), &init, |b, i, carried| {
            let outside = self.pool.len();
            self.pool.extend(carried);
            self.pool.push(i);
            self.depth += 1;
            let count = 1 + self.choices.below(5);
            self.ops(b, count)?;
            let types: Vec<Type> = carried.iter().map(|&v| b.ty(v).clone()).collect();
            let next: Result<Vec<Value>> = types.iter().map(|ty| self.get(b, ty)).collect();
            self.depth -= 1;
            self.pool.truncate(outside);
            next
        })?;
        self.pool.extend(results);
        Ok(())
    }
}
