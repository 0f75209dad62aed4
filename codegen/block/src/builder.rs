//! Building programs operation by operation.

use smallvec::SmallVec;

use crate::infer::TypeError;
use crate::program::{CacheHint, Op, OpKind, Param, Program, Region, Value, ValueData};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Shape, Type};

type Result<T> = std::result::Result<T, TypeError>;

/// Appends operations to a program, checking types as it goes.
pub struct Builder {
    program: Program,
    /// Open regions, the program's body excluded; operations go to the last.
    open: Vec<Region>,
}

impl Builder {
    /// An empty program with the given name and four warps.
    pub fn new(name: &str) -> Builder {
        Builder {
            program: Program {
                name: name.to_owned(),
                params: Vec::new(),
                values: Vec::new(),
                body: Region::default(),
                warps: 4,
            },
            open: Vec::new(),
        }
    }

    /// The finished program.
    pub fn finish(self) -> Program {
        self.program
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        self.program.ty(value)
    }

    /// Sets the number of warps of an instance on a GPU.
    pub fn set_warps(&mut self, warps: u32) {
        self.program.warps = warps;
    }

    /// Names a value for the text form.
    pub fn name(&mut self, value: Value, name: &str) -> Value {
        self.program.values[value.index()].name = Some(name.to_owned());
        value
    }

    /// A new value that no operation defines yet.
    pub fn value(&mut self, ty: Type) -> Value {
        let value = Value(self.program.values.len() as u32);
        self.program.values.push(ValueData { ty, name: None });
        value
    }

    /// A pointer parameter, aligned to `align` bytes, to `len` elements where that is known.
    pub fn ptr_param(&mut self, name: &str, elem: Elem, align: u32, len: Option<u64>) -> Value {
        self.param(name, Type::ptr(elem), align, len)
    }

    /// A scalar parameter.
    pub fn scalar_param(&mut self, name: &str, elem: Elem) -> Value {
        self.param(name, Type::scalar(elem), elem.bytes(), None)
    }

    fn param(&mut self, name: &str, ty: Type, align: u32, len: Option<u64>) -> Value {
        let value = self.value(ty);
        self.name(value, name);
        self.program.params.push(Param { value, align, len });
        value
    }

    /// Appends an operation with at most one result, whose type follows from the operands.
    pub fn push(&mut self, kind: OpKind, args: &[Value]) -> Result<Option<Value>> {
        let ty = {
            let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.program.ty(a)).collect();
            kind.infer(&types)?
        };
        let result = ty.map(|ty| self.value(ty));
        self.append(Op {
            kind,
            args: args.into(),
            results: result.into_iter().collect(),
            regions: Vec::new(),
        });
        Ok(result)
    }

    /// Appends an operation as it is, unchecked; the verifier checks it later.
    pub fn append(&mut self, op: Op) {
        self.open.last_mut().unwrap_or(&mut self.program.body).ops.push(op);
    }

    fn one(&mut self, kind: OpKind, args: &[Value]) -> Result<Value> {
        let op = kind.name();
        let missing = || TypeError::Attribute { op, message: "has no result".to_owned() };
        self.push(kind, args)?.ok_or_else(missing)
    }

    /// A literal repeated over `shape` (empty: a scalar).
    pub fn constant(&mut self, literal: Literal, shape: &[u32]) -> Value {
        let value = self.value(Type::tile(literal.elem, shape));
        self.append(Op {
            kind: OpKind::Const(literal),
            args: SmallVec::new(),
            results: SmallVec::from_slice(&[value]),
            regions: Vec::new(),
        });
        value
    }

    /// The instance's index along a grid axis, `i32`.
    pub fn program_id(&mut self, axis: u8) -> Result<Value> {
        self.one(OpKind::ProgramId(axis), &[])
    }

    /// `start..start + len` as a tile of `i32`; `len` is a power of two.
    pub fn range(&mut self, start: i32, len: u32) -> Result<Value> {
        self.one(OpKind::Range { start, len }, &[])
    }

    /// A scalar repeated over `shape`.
    pub fn splat(&mut self, scalar: Value, shape: &[u32]) -> Result<Value> {
        self.one(OpKind::Splat(Shape::from_slice(shape)), &[scalar])
    }

    /// Inserts an extent of 1.
    pub fn expand_dims(&mut self, tile: Value, axis: u8) -> Result<Value> {
        self.one(OpKind::ExpandDims(axis), &[tile])
    }

    /// Repeats extents of 1.
    pub fn broadcast(&mut self, tile: Value, shape: &[u32]) -> Result<Value> {
        self.one(OpKind::Broadcast(Shape::from_slice(shape)), &[tile])
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, tile: Value, shape: &[u32]) -> Result<Value> {
        self.one(OpKind::Reshape(Shape::from_slice(shape)), &[tile])
    }

    /// Permutes axes.
    pub fn permute(&mut self, tile: Value, perm: &[u8]) -> Result<Value> {
        self.one(OpKind::Permute(SmallVec::from_slice(perm)), &[tile])
    }

    /// A scalar function on corresponding elements.
    pub fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value> {
        self.one(OpKind::Map(function), args)
    }

    /// Conversion to another element kind; the value itself where it already has that kind.
    pub fn cast(&mut self, tile: Value, to: Elem) -> Result<Value> {
        if self.ty(tile).elem() == Some(to) {
            return Ok(tile);
        }
        self.one(OpKind::Cast(to), &[tile])
    }

    /// The same bits as another kind.
    pub fn bitcast(&mut self, tile: Value, to: Elem) -> Result<Value> {
        self.one(OpKind::Bitcast(to), &[tile])
    }

    /// Reads elements; masked-off ones are `other`, or 0.
    pub fn load(
        &mut self,
        ptr: Value,
        offsets: Value,
        mask: Option<Value>,
        other: Option<Value>,
        hint: CacheHint,
    ) -> Result<Value> {
        let kind = OpKind::Load { masked: mask.is_some(), other: other.is_some(), hint };
        let args: SmallVec<[Value; 4]> = [ptr, offsets].into_iter().chain(mask).chain(other).collect();
        self.one(kind, &args)
    }

    /// Writes elements.
    pub fn store(
        &mut self,
        ptr: Value,
        offsets: Value,
        value: Value,
        mask: Option<Value>,
        hint: CacheHint,
    ) -> Result<()> {
        let kind = OpKind::Store { masked: mask.is_some(), hint };
        let args: SmallVec<[Value; 4]> = [ptr, offsets, value].into_iter().chain(mask).collect();
        self.push(kind, &args).map(|_| ())
    }

    /// Combines elements along an axis.
    pub fn reduce(&mut self, combine: ReduceFn, tile: Value, axis: u8, mask: Option<Value>) -> Result<Value> {
        let kind = OpKind::Reduce { combine, axis, masked: mask.is_some() };
        let args: SmallVec<[Value; 2]> = [tile].into_iter().chain(mask).collect();
        self.one(kind, &args)
    }

    /// A counted loop. `body` is given the builder, the induction variable and the carried values, and returns
    /// their next values. Returns the carried values after the last iteration.
    pub fn for_loop<E: From<TypeError>>(
        &mut self,
        bounds: (Value, Value, Value),
        init: &[Value],
        body: impl FnOnce(&mut Builder, Value, &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        let induction = self.value(Type::scalar(Elem::I32));
        let carried: Vec<Value> = init.iter().map(|&v| self.value(self.ty(v).clone())).collect();
        let args = std::iter::once(induction).chain(carried.iter().copied()).collect();
        self.open.push(Region { args, ops: Vec::new() });
        let next = body(self, induction, &carried);
        let mut region = self.open.pop().unwrap_or_default();
        let next = next?;
        self.check_carried(init, &next)?;
        region.ops.push(Op {
            kind: OpKind::Yield,
            args: SmallVec::from_slice(&next),
            results: SmallVec::new(),
            regions: Vec::new(),
        });
        let results: Vec<Value> = init.iter().map(|&v| self.value(self.ty(v).clone())).collect();
        let (lo, hi, step) = bounds;
        self.append(Op {
            kind: OpKind::For,
            args: [lo, hi, step].into_iter().chain(init.iter().copied()).collect(),
            results: results.iter().copied().collect(),
            regions: vec![region],
        });
        Ok(results)
    }

    fn check_carried(&self, init: &[Value], next: &[Value]) -> Result<()> {
        if init.len() != next.len() {
            return Err(TypeError::Arity { op: "yield", expected: init.len(), found: next.len() });
        }
        for (index, (&a, &b)) in init.iter().zip(next).enumerate() {
            if self.ty(a) != self.ty(b) {
                let expected = self.ty(a).to_string();
                return Err(TypeError::Operand { op: "yield", index, found: self.ty(b).clone(), expected });
            }
        }
        Ok(())
    }
}
