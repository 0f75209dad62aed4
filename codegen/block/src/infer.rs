//! Types of results, from the operation and the types of its operands.

use thiserror::Error;

use crate::program::OpKind;
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
    /// The spelling in text forms.
    pub fn name(&self) -> &'static str {
        match self {
            OpKind::Const(_) => "const",
            OpKind::ProgramId(_) => "program_id",
            OpKind::Range { .. } => "range",
            OpKind::Splat(_) => "splat",
            OpKind::ExpandDims(_) => "expand_dims",
            OpKind::Broadcast(_) => "broadcast",
            OpKind::Reshape(_) => "reshape",
            OpKind::Permute(_) => "permute",
            OpKind::Map(_) => "map",
            OpKind::Cast(_) => "cast",
            OpKind::Bitcast(_) => "bitcast",
            OpKind::Load { .. } => "load",
            OpKind::Store { .. } => "store",
            OpKind::Reduce { .. } => "reduce",
            OpKind::For => "for",
            OpKind::Yield => "yield",
        }
    }

    /// The type of the single result for operands of these types; `None` where the operation has no result.
    /// [`OpKind::For`] has as many results as carried values and is checked by the builder and the verifier;
    /// [`OpKind::Const`] gives a scalar here, and a tile of any shape is as good.
    pub fn infer(&self, args: &[&Type]) -> Result<Option<Type>> {
        let cx = Cx { op: self.name(), args };
        match self {
            OpKind::Const(literal) => cx.arity(0).map(|()| Some(Type::scalar(literal.elem))),
            OpKind::ProgramId(axis) => cx.program_id(*axis),
            OpKind::Range { len, .. } => cx.range(*len),
            OpKind::Splat(shape) => cx.splat(shape),
            OpKind::ExpandDims(axis) => cx.expand_dims(*axis),
            OpKind::Broadcast(shape) => cx.broadcast(shape),
            OpKind::Reshape(shape) => cx.reshape(shape),
            OpKind::Permute(perm) => cx.permute(perm),
            OpKind::Map(function) => cx.map(*function),
            OpKind::Cast(to) => cx.cast(*to),
            OpKind::Bitcast(to) => cx.bitcast(*to),
            OpKind::Load { masked, other, .. } => cx.load(*masked, *other),
            OpKind::Store { masked, .. } => cx.store(*masked),
            OpKind::Reduce { combine, axis, masked } => cx.reduce(*combine, *axis, *masked),
            OpKind::For | OpKind::Yield => Ok(None),
        }
    }
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

    fn program_id(&self, axis: u8) -> Result<Option<Type>> {
        self.arity(0)?;
        if axis > 2 {
            return self.attribute(format!("axis {axis} is not 0, 1 or 2"));
        }
        Ok(Some(Type::scalar(Elem::I32)))
    }

    fn range(&self, len: u32) -> Result<Option<Type>> {
        self.arity(0)?;
        let shape = Shape::from_slice(&[len]);
        self.shape(&shape)?;
        Ok(Some(Type { kind: Kind::Elem(Elem::I32), shape }))
    }

    fn splat(&self, shape: &Shape) -> Result<Option<Type>> {
        self.arity(1)?;
        self.elem(0)?;
        if self.args[0].rank() != 0 {
            return self.operand(0, "a scalar");
        }
        self.shape(shape)?;
        Ok(Some(self.args[0].with_shape(shape)))
    }

    fn expand_dims(&self, axis: u8) -> Result<Option<Type>> {
        self.arity(1)?;
        self.elem(0)?;
        let mut shape = self.args[0].shape.clone();
        if usize::from(axis) > shape.len() {
            return self.attribute(format!("axis {axis} is out of range for {}", self.args[0]));
        }
        shape.insert(usize::from(axis), 1);
        self.shape(&shape)?;
        Ok(Some(self.args[0].with_shape(&shape)))
    }

    fn broadcast(&self, shape: &Shape) -> Result<Option<Type>> {
        self.arity(1)?;
        self.elem(0)?;
        self.shape(shape)?;
        let from = &self.args[0].shape;
        if from.len() != shape.len() || from.iter().zip(shape).any(|(&a, &b)| a != b && a != 1) {
            return self.operand(0, format!("extents of 1 where they differ from {shape:?}"));
        }
        Ok(Some(self.args[0].with_shape(shape)))
    }

    fn reshape(&self, shape: &Shape) -> Result<Option<Type>> {
        self.arity(1)?;
        self.elem(0)?;
        self.shape(shape)?;
        let to = self.args[0].with_shape(shape);
        if to.numel() != self.args[0].numel() {
            return self.operand(0, format!("{} elements", to.numel()));
        }
        Ok(Some(to))
    }

    fn permute(&self, perm: &[u8]) -> Result<Option<Type>> {
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
        Ok(Some(self.args[0].with_shape(&shape)))
    }

    fn map(&self, function: crate::scalar_fn::ScalarFn) -> Result<Option<Type>> {
        self.arity(function.arity())?;
        let mut elems = smallvec::SmallVec::<[Elem; 3]>::new();
        for (index, arg) in self.args.iter().enumerate() {
            elems.push(self.elem(index)?);
            if arg.shape != self.args[0].shape {
                return self.operand(index, format!("the shape of operand 0, {}", self.args[0]));
            }
        }
        match function.result(&elems) {
            Some(out) => Ok(Some(self.args[0].with_elem(out))),
            None => {
                let kinds: Vec<&str> = elems.iter().map(|e| e.name()).collect();
                self.attribute(format!("{} does not take {}", function.name(), kinds.join(", ")))
            }
        }
    }

    fn cast(&self, to: Elem) -> Result<Option<Type>> {
        self.arity(1)?;
        self.elem(0)?;
        Ok(Some(self.args[0].with_elem(to)))
    }

    fn bitcast(&self, to: Elem) -> Result<Option<Type>> {
        self.arity(1)?;
        if self.elem(0)?.bits() != to.bits() {
            return self.operand(0, format!("a kind of {} bits", to.bits()));
        }
        Ok(Some(self.args[0].with_elem(to)))
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

    fn load(&self, masked: bool, other: bool) -> Result<Option<Type>> {
        self.arity(2 + usize::from(masked) + usize::from(other))?;
        let out = self.args[1].with_elem(self.address()?);
        if masked {
            self.mask(2, &out.shape)?;
        }
        let last = self.args.len() - 1;
        if other && *self.args[last] != out {
            return self.operand(last, format!("fallback values of type {out}"));
        }
        Ok(Some(out))
    }

    fn store(&self, masked: bool) -> Result<Option<Type>> {
        self.arity(3 + usize::from(masked))?;
        let value = self.args[1].with_elem(self.address()?);
        if *self.args[2] != value {
            return self.operand(2, format!("values of type {value}"));
        }
        if masked {
            self.mask(3, &value.shape)?;
        }
        Ok(None)
    }

    fn reduce(&self, combine: ReduceFn, axis: u8, masked: bool) -> Result<Option<Type>> {
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
        Ok(Some(self.args[0].with_shape(&shape)))
    }
}
