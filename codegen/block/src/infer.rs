//! Types of results, from the operation and the types of its operands.

use smallvec::{SmallVec, smallvec};

use thiserror::Error;

use crate::program::{Assumption, AtomicFn, OpKind};
use crate::scalar_fn::ReduceFn;
use crate::types::{Elem, Kind, Shape, Type};

/// Why an operation does not take its operands.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TypeError {
    /// Wrong number of operands.
    #[error("{op} takes {expected} operands, not {found}")]
    Arity {
        /// The operation.
        op: &'static str,
        /// How many it takes.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// An operand has a type that the operation does not take.
    #[error("{op}: operand {index} is {found}, expected {expected}")]
    Operand {
        /// The operation.
        op: &'static str,
        /// Position of the operand.
        index: usize,
        /// Its type.
        found: Type,
        /// What is expected, in words.
        expected: String,
    },
    /// An attribute (axis, shape, ...) does not fit.
    #[error("{op}: {message}")]
    Attribute {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        message: String,
    },
}

type Result<T> = std::result::Result<T, TypeError>;

/// Largest number of elements of one tile.
pub const MAX_TILE: u64 = 1 << 20;

impl OpKind {
    /// The types of the results for operands of these types. Those of [`OpKind::If`] follow from what its regions
    /// yield, and are not given here; [`OpKind::Const`] gives a scalar, and a tile of any shape is as good.
    pub fn infer(&self, args: &[&Type]) -> Result<Types> {
        let cx = Cx { op: self.name(), args };
        let one = |result: Result<Type>| result.map(|ty| smallvec![ty]);
        match self {
            OpKind::Const(literal) => cx.arity(0).map(|()| smallvec![Type::scalar(literal.elem)]),
            OpKind::ProgramId(axis) | OpKind::NumPrograms(axis) => one(cx.program_id(*axis)),
            OpKind::Range { len, .. } => one(cx.range(*len)),
            OpKind::Splat(shape) => one(cx.splat(shape)),
            OpKind::ExpandDims(axis) => one(cx.expand_dims(*axis)),
            OpKind::Broadcast(shape) => one(cx.broadcast(shape)),
            OpKind::Reshape(shape) => one(cx.reshape(shape)),
            OpKind::Permute(perm) => one(cx.permute(perm)),
            OpKind::Join => one(cx.join()),
            OpKind::Split => cx.split(),
            OpKind::Gather { axis } => one(cx.gather(*axis)),
            OpKind::Map(function) => one(cx.map(*function)),
            OpKind::Cast(to) => one(cx.cast(*to)),
            OpKind::Bitcast(to) => one(cx.bitcast(*to)),
            OpKind::Load { masked, other, .. } => one(cx.load(*masked, *other)),
            OpKind::Store { masked, .. } => cx.store(*masked),
            OpKind::Reduce { combine, axis, masked } => one(cx.reduce(*combine, *axis, *masked)),
            OpKind::ReduceWith { axis } => cx.combined(*axis, true),
            OpKind::Scan { axis, .. } => cx.combined(*axis, false),
            OpKind::Histogram { bins, masked } => one(cx.histogram(*bins, *masked)),
            OpKind::Dot { .. } => one(cx.dot()),
            OpKind::Philox { .. } => cx.philox(),
            OpKind::Atomic { function, masked, .. } => one(cx.atomic(*function, *masked)),
            OpKind::AtomicCas { .. } => one(cx.atomic_cas()),
            OpKind::Assume(assumption) => one(cx.assume(*assumption)),
            OpKind::Print { .. } => cx.print(),
            OpKind::Assert { masked, .. } => cx.assert(*masked),
            OpKind::If => cx.condition(),
            OpKind::While => cx.carried(0),
            OpKind::For => cx.for_loop(),
            OpKind::Yield => Ok(Types::new()),
        }
    }

    /// What each region takes and yields, for operands that [`OpKind::infer`] takes. What the regions of an
    /// [`OpKind::If`] yield is up to them, so that it is not given.
    pub fn regions(&self, args: &[&Type]) -> SmallVec<[RegionTypes; 2]> {
        let owned = |types: &[&Type]| types.iter().map(|&t| t.clone()).collect::<Types>();
        let region = |args: Types, yields: Types| RegionTypes { args, yields: Some(yields) };
        match self {
            OpKind::ReduceWith { .. } | OpKind::Scan { .. } => {
                let one: Types = args.iter().map(|t| t.with_shape(&[])).collect();
                smallvec![region(one.iter().chain(&one).cloned().collect(), one)]
            }
            OpKind::If => {
                let free = RegionTypes { args: Types::new(), yields: None };
                smallvec![free.clone(), free]
            }
            OpKind::While => {
                let carried = owned(args);
                smallvec![
                    region(carried.clone(), smallvec![Type::scalar(Elem::Bool)]),
                    region(carried.clone(), carried)
                ]
            }
            OpKind::For => {
                let carried = owned(args.get(3..).unwrap_or_default());
                let induction = std::iter::once(Type::scalar(Elem::I32));
                smallvec![region(induction.chain(carried.iter().cloned()).collect(), carried)]
            }
            _ => SmallVec::new(),
        }
    }
}

/// Types of several values.
pub type Types = SmallVec<[Type; 1]>;

/// What a region takes and yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionTypes {
    /// Its arguments.
    pub args: Types,
    /// What it yields, where that does not depend on the region itself.
    pub yields: Option<Types>,
}

/// Refuses shapes that no tile may have.
pub(crate) fn check_shape(op: &'static str, shape: &Shape) -> Result<()> {
    let refuse = |message| Err(TypeError::Attribute { op, message });
    if shape.len() > 5 || shape.iter().any(|d| !d.is_power_of_two()) {
        return refuse(format!("extents {shape:?} must be at most five powers of two"));
    }
    let numel = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::from(d)));
    match numel {
        Some(n) if n <= MAX_TILE => Ok(()),
        _ => refuse(format!("a tile of {shape:?} has more than {MAX_TILE} elements")),
    }
}

/// Operand types of one operation, with the checks that they share.
struct Cx<'a> {
    op: &'static str,
    args: &'a [&'a Type],
}

impl Cx<'_> {
    fn arity(&self, expected: usize) -> Result<()> {
        let found = self.args.len();
        if found == expected { Ok(()) } else { Err(TypeError::Arity { op: self.op, expected, found }) }
    }

    fn operand<T>(&self, index: usize, expected: impl Into<String>) -> Result<T> {
        let found = self.args[index].clone();
        Err(TypeError::Operand { op: self.op, index, found, expected: expected.into() })
    }

    fn attribute<T>(&self, message: String) -> Result<T> {
        Err(TypeError::Attribute { op: self.op, message })
    }

    fn elem(&self, index: usize) -> Result<Elem> {
        match self.args[index].elem() {
            Some(e) => Ok(e),
            None => self.operand(index, "a number"),
        }
    }

    fn shape(&self, shape: &Shape) -> Result<()> {
        check_shape(self.op, shape)
    }

    fn program_id(&self, axis: u8) -> Result<Type> {
        self.arity(0)?;
        if axis > 2 {
            return self.attribute(format!("axis {axis} is not 0, 1 or 2"));
        }
        Ok(Type::scalar(Elem::I32))
    }

    fn range(&self, len: u32) -> Result<Type> {
        self.arity(0)?;
        let shape = Shape::from_slice(&[len]);
        self.shape(&shape)?;
        Ok(Type { kind: Kind::Elem(Elem::I32), shape })
    }

    fn splat(&self, shape: &Shape) -> Result<Type> {
        self.arity(1)?;
        self.elem(0)?;
        if self.args[0].rank() != 0 {
            return self.operand(0, "a scalar");
        }
        self.shape(shape)?;
        Ok(self.args[0].with_shape(shape))
    }

    fn expand_dims(&self, axis: u8) -> Result<Type> {
        self.arity(1)?;
        self.elem(0)?;
        let mut shape = self.args[0].shape.clone();
        if usize::from(axis) > shape.len() {
            return self.attribute(format!("axis {axis} is out of range for {}", self.args[0]));
        }
        shape.insert(usize::from(axis), 1);
        self.shape(&shape)?;
        Ok(self.args[0].with_shape(&shape))
    }

    fn broadcast(&self, shape: &Shape) -> Result<Type> {
        self.arity(1)?;
        self.elem(0)?;
        self.shape(shape)?;
        let from = &self.args[0].shape;
        if from.len() != shape.len() || from.iter().zip(shape).any(|(&a, &b)| a != b && a != 1) {
            return self.operand(0, format!("extents of 1 where they differ from {shape:?}"));
        }
        Ok(self.args[0].with_shape(shape))
    }

    fn reshape(&self, shape: &Shape) -> Result<Type> {
        self.arity(1)?;
        self.elem(0)?;
        self.shape(shape)?;
        let to = self.args[0].with_shape(shape);
        if to.numel() != self.args[0].numel() {
            return self.operand(0, format!("{} elements", to.numel()));
        }
        Ok(to)
    }

    fn permute(&self, perm: &[u8]) -> Result<Type> {
        self.arity(1)?;
        self.elem(0)?;
        let from = &self.args[0].shape;
        let mut seen = vec![false; from.len()];
        let mut shape = Shape::new();
        for &axis in perm {
            match seen.get_mut(usize::from(axis)) {
                Some(s) if !*s => *s = true,
                _ => return self.attribute(format!("{perm:?} is not a permutation of the axes")),
            }
            shape.push(from[usize::from(axis)]);
        }
        if shape.len() != from.len() {
            return self.attribute(format!("{perm:?} is not a permutation of {} axes", from.len()));
        }
        Ok(self.args[0].with_shape(&shape))
    }

    fn map(&self, function: crate::scalar_fn::ScalarFn) -> Result<Type> {
        self.arity(function.arity())?;
        let mut elems = smallvec::SmallVec::<[Elem; 3]>::new();
        for (index, arg) in self.args.iter().enumerate() {
            elems.push(self.elem(index)?);
            if arg.shape != self.args[0].shape {
                return self.operand(index, format!("the shape of operand 0, {}", self.args[0]));
            }
        }
        match function.result(&elems) {
            Some(out) => Ok(self.args[0].with_elem(out)),
            None => {
                let kinds: Vec<&str> = elems.iter().map(|e| e.name()).collect();
                self.attribute(format!("{} does not take {}", function.name(), kinds.join(", ")))
            }
        }
    }

    fn cast(&self, to: Elem) -> Result<Type> {
        self.arity(1)?;
        self.elem(0)?;
        Ok(self.args[0].with_elem(to))
    }

    fn bitcast(&self, to: Elem) -> Result<Type> {
        self.arity(1)?;
        if self.elem(0)?.bits() != to.bits() {
            return self.operand(0, format!("a kind of {} bits", to.bits()));
        }
        Ok(self.args[0].with_elem(to))
    }

    fn address(&self) -> Result<Elem> {
        let pointee = match self.args[0].pointee() {
            Some(e) if self.args[0].rank() == 0 => e,
            _ => return self.operand(0, "a scalar pointer"),
        };
        match self.elem(1)? {
            Elem::I32 | Elem::I64 => Ok(pointee),
            _ => self.operand(1, "offsets of kind i32 or i64"),
        }
    }

    fn mask(&self, index: usize, shape: &Shape) -> Result<()> {
        if self.args[index].elem() != Some(Elem::Bool) || self.args[index].shape != *shape {
            return self.operand(index, format!("a boolean mask of shape {shape:?}"));
        }
        Ok(())
    }

    fn load(&self, masked: bool, other: bool) -> Result<Type> {
        self.arity(2 + usize::from(masked) + usize::from(other))?;
        let out = self.args[1].with_elem(self.address()?);
        if masked {
            self.mask(2, &out.shape)?;
        }
        let last = self.args.len() - 1;
        if other && *self.args[last] != out {
            return self.operand(last, format!("fallback values of type {out}"));
        }
        Ok(out)
    }

    fn store(&self, masked: bool) -> Result<Types> {
        self.arity(3 + usize::from(masked))?;
        let value = self.args[1].with_elem(self.address()?);
        if *self.args[2] != value {
            return self.operand(2, format!("values of type {value}"));
        }
        if masked {
            self.mask(3, &value.shape)?;
        }
        Ok(Types::new())
    }

    fn reduce(&self, combine: ReduceFn, axis: u8, masked: bool) -> Result<Type> {
        self.arity(1 + usize::from(masked))?;
        let elem = self.elem(0)?;
        if !combine.accepts(elem) {
            return self.attribute(format!("{} does not take {elem}", combine.name()));
        }
        let mut shape = self.args[0].shape.clone();
        if usize::from(axis) >= shape.len() {
            return self.attribute(format!("axis {axis} is out of range for {}", self.args[0]));
        }
        if masked {
            self.mask(1, &shape)?;
        }
        shape.remove(usize::from(axis));
        Ok(self.args[0].with_shape(&shape))
    }

    fn axis(&self, axis: u8) -> Result<usize> {
        match usize::from(axis) {
            found if found < self.args[0].rank() => Ok(found),
            _ => self.attribute(format!("axis {axis} is out of range for {}", self.args[0])),
        }
    }

    fn like_first(&self, index: usize) -> Result<()> {
        if self.args[index] == self.args[0] { Ok(()) } else { self.operand(index, self.args[0].to_string()) }
    }

    fn join(&self) -> Result<Type> {
        self.arity(2)?;
        self.elem(0)?;
        self.like_first(1)?;
        let mut shape = self.args[0].shape.clone();
        shape.push(2);
        self.shape(&shape)?;
        Ok(self.args[0].with_shape(&shape))
    }

    fn split(&self) -> Result<Types> {
        self.arity(1)?;
        self.elem(0)?;
        match self.args[0].shape.split_last() {
            Some((2, rest)) => Ok(smallvec![self.args[0].with_shape(rest); 2]),
            _ => self.operand(0, "a tile whose last extent is 2"),
        }
    }

    fn gather(&self, axis: u8) -> Result<Type> {
        self.arity(2)?;
        self.elem(0)?;
        let axis = self.axis(axis)?;
        if !matches!(self.elem(1)?, Elem::I32 | Elem::I64) {
            return self.operand(1, "indices of kind i32 or i64");
        }
        let (from, to) = (&self.args[0].shape, &self.args[1].shape);
        let fits =
            from.len() == to.len() && from.iter().zip(to).enumerate().all(|(a, (f, t))| a == axis || f == t);
        if !fits {
            return self.operand(1, format!("the extents of {} but for axis {axis}", self.args[0]));
        }
        Ok(self.args[0].with_shape(to))
    }

    /// Operands of one shape, and a result for each, without the axis where `removed`.
    fn combined(&self, axis: u8, removed: bool) -> Result<Types> {
        if self.args.is_empty() {
            return Err(TypeError::Arity { op: self.op, expected: 1, found: 0 });
        }
        let mut shape = self.args[0].shape.clone();
        for (index, arg) in self.args.iter().enumerate() {
            self.elem(index)?;
            if arg.shape != shape {
                return self.operand(index, format!("the shape of operand 0, {}", self.args[0]));
            }
        }
        let axis = self.axis(axis)?;
        if removed {
            shape.remove(axis);
        }
        Ok(self.args.iter().map(|arg| arg.with_shape(&shape)).collect())
    }

    fn histogram(&self, bins: u32, masked: bool) -> Result<Type> {
        self.arity(1 + usize::from(masked))?;
        if !self.elem(0)?.is_int() || self.args[0].rank() != 1 {
            return self.operand(0, "a tile of integers of rank 1");
        }
        if masked {
            self.mask(1, &self.args[0].shape)?;
        }
        let shape = Shape::from_slice(&[bins]);
        self.shape(&shape)?;
        Ok(Type::tile(Elem::I32, &shape))
    }

    fn dot(&self) -> Result<Type> {
        self.arity(3)?;
        let elem = self.elem(0)?;
        let Some(sum) = accumulator(elem) else {
            return self.operand(0, "a kind that dot takes: i8, u8, f8e4m3, f8e5m2, f16, bf16, f32, f64");
        };
        let shape = &self.args[0].shape;
        let (batch, &[m, k]) = match shape.len() {
            2 => (&shape[..0], &[shape[0], shape[1]]),
            3 => (&shape[..1], &[shape[1], shape[2]]),
            _ => return self.operand(0, "a tile of rank 2, or of rank 3 with a batch first"),
        };
        let right = &self.args[1].shape;
        let fits = right.len() == shape.len() && right[..batch.len()] == *batch && right[batch.len()] == k;
        if self.elem(1)? != elem || !fits {
            return self.operand(1, format!("{elem}, with the first operand's columns as rows"));
        }
        let mut result = Shape::from_slice(batch);
        result.extend([m, right[right.len() - 1]]);
        self.shape(&result)?;
        let result = Type::tile(sum, &result);
        if *self.args[2] == result { Ok(result) } else { self.operand(2, format!("an accumulator {result}")) }
    }

    fn philox(&self) -> Result<Types> {
        self.arity(2)?;
        if *self.args[0] != Type::scalar(Elem::U64) {
            return self.operand(0, "a seed, u64");
        }
        if !matches!(self.elem(1)?, Elem::I32 | Elem::U32 | Elem::I64 | Elem::U64) {
            return self.operand(1, "offsets, integers of 32 or 64 bits");
        }
        Ok(smallvec![self.args[1].with_elem(Elem::U32); 4])
    }

    /// The type of the value that an atomic operation reads.
    fn atomic(&self, function: AtomicFn, masked: bool) -> Result<Type> {
        self.arity(3 + usize::from(masked))?;
        let out = self.args[1].with_elem(self.address()?);
        if *self.args[2] != out {
            return self.operand(2, format!("values of type {out}"));
        }
        if masked {
            self.mask(3, &out.shape)?;
        }
        match out.elem() {
            Some(elem) if function.accepts(elem) => Ok(out),
            _ => self.attribute(format!("{} does not take {}", function.name(), out.kind)),
        }
    }

    fn atomic_cas(&self) -> Result<Type> {
        self.arity(4)?;
        let out = self.args[1].with_elem(self.address()?);
        for index in [2, 3] {
            if *self.args[index] != out {
                return self.operand(index, format!("values of type {out}"));
            }
        }
        match out.elem() {
            Some(elem) if AtomicFn::Exchange.accepts(elem) => Ok(out),
            _ => self.operand(0, "a pointer to elements of 32 or 64 bits"),
        }
    }

    fn assume(&self, assumption: Assumption) -> Result<Type> {
        self.arity(1)?;
        if !self.elem(0)?.is_int() {
            return self.operand(0, "integers");
        }
        match assumption {
            Assumption::MultipleOf(0) | Assumption::Contiguous(0) => {
                self.attribute("0 divides nothing".into())
            }
            Assumption::Contiguous(n) if !n.is_power_of_two() => {
                self.attribute(format!("{n} elements are not a power of two"))
            }
            Assumption::Between(low, high) if low > high => {
                self.attribute(format!("nothing lies between {low} and {high}"))
            }
            _ => Ok(self.args[0].clone()),
        }
    }

    fn print(&self) -> Result<Types> {
        (0..self.args.len()).try_for_each(|index| self.elem(index).map(drop))?;
        Ok(Types::new())
    }

    fn assert(&self, masked: bool) -> Result<Types> {
        self.arity(1 + usize::from(masked))?;
        for index in 0..self.args.len() {
            self.mask(index, &self.args[0].shape)?;
        }
        Ok(Types::new())
    }

    fn condition(&self) -> Result<Types> {
        self.arity(1)?;
        match *self.args[0] == Type::scalar(Elem::Bool) {
            true => Ok(Types::new()),
            false => self.operand(0, "a boolean scalar"),
        }
    }

    fn carried(&self, from: usize) -> Result<Types> {
        let types = self.args.iter().enumerate().skip(from);
        types.map(|(index, arg)| self.elem(index).map(|_| (*arg).clone())).collect()
    }

    fn for_loop(&self) -> Result<Types> {
        if self.args.len() < 3 {
            return Err(TypeError::Arity { op: self.op, expected: 3, found: self.args.len() });
        }
        for (index, bound) in self.args.iter().take(3).enumerate() {
            if **bound != Type::scalar(Elem::I32) {
                return self.operand(index, "i32");
            }
        }
        self.carried(3)
    }
}

/// The kind in which `dot` sums products of a kind.
fn accumulator(elem: Elem) -> Option<Elem> {
    match elem {
        Elem::I8 | Elem::U8 => Some(Elem::I32),
        Elem::F8E4M3 | Elem::F8E5M2 | Elem::F16 | Elem::Bf16 | Elem::F32 => Some(Elem::F32),
        Elem::F64 => Some(Elem::F64),
        _ => None,
    }
}

impl AtomicFn {
    /// Every function.
    pub const ALL: [AtomicFn; 7] = [
        AtomicFn::Add,
        AtomicFn::Max,
        AtomicFn::Min,
        AtomicFn::And,
        AtomicFn::Or,
        AtomicFn::Xor,
        AtomicFn::Exchange,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            AtomicFn::Add => "add",
            AtomicFn::Max => "max",
            AtomicFn::Min => "min",
            AtomicFn::And => "and",
            AtomicFn::Or => "or",
            AtomicFn::Xor => "xor",
            AtomicFn::Exchange => "exchange",
        }
    }

    /// Whether it takes elements of this kind.
    pub fn accepts(self, elem: Elem) -> bool {
        let wide = elem.bytes() >= 4;
        match self {
            AtomicFn::Add => wide || matches!(elem, Elem::F16 | Elem::Bf16),
            AtomicFn::Max | AtomicFn::Min | AtomicFn::Exchange => wide,
            AtomicFn::And | AtomicFn::Or | AtomicFn::Xor => wide && elem.is_int(),
        }
    }
}
