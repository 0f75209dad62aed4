//! Building programs operation by operation.

use smallvec::SmallVec;

use crate::infer::{TypeError, Types};
use crate::program::{
    Assumption, AtomicFn, CacheHint, DotPrecision, Loc, MemoryOrder, MemoryScope, Op, OpKind, Param, Program,
    Region, Value, ValueData,
};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Shape, Type};

type Result<T> = std::result::Result<T, TypeError>;

/// Appends operations to a program, checking types as it goes.
pub struct Builder {
    program: Program,
    /// Open regions, the program's body excluded; operations go to the last.
    open: Vec<Region>,
    /// What operations get that have no location.
    loc: Loc,
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
                stages: None,
                early: false,
            },
            open: Vec::new(),
            loc: Loc::UNKNOWN,
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

    /// Sets the location of the operations that follow; returns the one before.
    pub fn set_loc(&mut self, loc: Loc) -> Loc {
        std::mem::replace(&mut self.loc, loc)
    }

    /// Sets the number of iterations of a loop that a GPU has under way together; see [`Program::stages`].
    pub fn set_stages(&mut self, stages: u32) {
        self.program.stages = Some(stages);
    }

    /// Lets a GPU start the kernel early; see [`Program::early`].
    pub fn set_early(&mut self) {
        self.program.early = true;
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
        Ok(self.push_all(kind, args)?.first().copied())
    }

    /// Appends an operation without regions, whose results' types follow from the operands.
    pub fn push_all(&mut self, kind: OpKind, args: &[Value]) -> Result<SmallVec<[Value; 1]>> {
        let results = self.results(&kind, args)?;
        self.append(Op {
            kind,
            args: args.into(),
            results: results.clone(),
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        Ok(results)
    }

    /// New values for the results of an operation.
    fn results(&mut self, kind: &OpKind, args: &[Value]) -> Result<SmallVec<[Value; 1]>> {
        let results = self.types_of(kind, args)?;
        Ok(results.into_iter().map(|ty| self.value(ty)).collect())
    }

    /// Appends an operation as it is, unchecked; the verifier checks it later.
    pub fn append(&mut self, mut op: Op) {
        op.loc = op.loc.or(self.loc);
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
            loc: Loc::UNKNOWN,
        });
        value
    }

    /// The instance's index along a grid axis, `i32`.
    pub fn program_id(&mut self, axis: u8) -> Result<Value> {
        self.one(OpKind::ProgramId(axis), &[])
    }

    /// The number of instances along a grid axis, `i32`.
    pub fn num_programs(&mut self, axis: u8) -> Result<Value> {
        self.one(OpKind::NumPrograms(axis), &[])
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

    /// Two tiles as one with a new last axis of extent 2.
    pub fn join(&mut self, first: Value, second: Value) -> Result<Value> {
        self.one(OpKind::Join, &[first, second])
    }

    /// The halves of a tile along its last axis, of extent 2.
    pub fn split(&mut self, tile: Value) -> Result<(Value, Value)> {
        let halves = self.push_all(OpKind::Split, &[tile])?;
        Ok((halves[0], halves[1]))
    }

    /// Picks elements along an axis.
    pub fn gather(&mut self, tile: Value, indices: Value, axis: u8) -> Result<Value> {
        self.one(OpKind::Gather { axis }, &[tile, indices])
    }

    /// How often each number below `bins` occurs.
    pub fn histogram(&mut self, tile: Value, bins: u32, mask: Option<Value>) -> Result<Value> {
        let args: SmallVec<[Value; 2]> = [tile].into_iter().chain(mask).collect();
        self.one(OpKind::Histogram { bins, masked: mask.is_some() }, &args)
    }

    /// The matrix product `a b + sum`.
    pub fn dot(&mut self, a: Value, b: Value, sum: Value, precision: DotPrecision) -> Result<Value> {
        self.one(OpKind::Dot { precision }, &[a, b, sum])
    }

    /// Four tiles of random bits for a seed and offsets.
    pub fn philox(&mut self, seed: Value, offsets: Value, rounds: u8) -> Result<[Value; 4]> {
        let bits = self.push_all(OpKind::Philox { rounds }, &[seed, offsets])?;
        Ok([bits[0], bits[1], bits[2], bits[3]])
    }

    /// Changes elements of memory atomically and gives what they were.
    pub fn atomic(
        &mut self,
        function: AtomicFn,
        (ptr, offsets, values): (Value, Value, Value),
        mask: Option<Value>,
        (order, scope): (MemoryOrder, MemoryScope),
    ) -> Result<Value> {
        let kind = OpKind::Atomic { function, masked: mask.is_some(), order, scope };
        let args: SmallVec<[Value; 4]> = [ptr, offsets, values].into_iter().chain(mask).collect();
        self.one(kind, &args)
    }

    /// Writes elements of memory that have the expected value, and gives what they were.
    pub fn atomic_cas(
        &mut self,
        (ptr, offsets): (Value, Value),
        (expected, desired): (Value, Value),
        (order, scope): (MemoryOrder, MemoryScope),
    ) -> Result<Value> {
        self.one(OpKind::AtomicCas { order, scope }, &[ptr, offsets, expected, desired])
    }

    /// The value, with a promise about it.
    pub fn assume(&mut self, value: Value, assumption: Assumption) -> Result<Value> {
        self.one(OpKind::Assume(assumption), &[value])
    }

    /// Prints elements.
    pub fn print(&mut self, prefix: &str, values: &[Value], hex: bool) -> Result<()> {
        self.push(OpKind::Print { prefix: prefix.to_owned(), hex }, values).map(drop)
    }

    /// Ends the launch where the condition is false.
    pub fn assert(&mut self, condition: Value, message: &str, mask: Option<Value>) -> Result<()> {
        let kind = OpKind::Assert { message: message.to_owned(), masked: mask.is_some() };
        let args: SmallVec<[Value; 2]> = [condition].into_iter().chain(mask).collect();
        self.push(kind, &args).map(drop)
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

    /// Combines elements along an axis with a combiner of one's own: `combine` is given the elements of one position
    /// of each tile, then those of another, as scalars, and returns the combined ones.
    pub fn reduce_with<E: From<TypeError>>(
        &mut self,
        tiles: &[Value],
        axis: u8,
        combine: impl FnOnce(&mut Builder, &[Value], &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        self.combined(OpKind::ReduceWith { axis }, tiles, combine)
    }

    /// All elements up to and with each position along an axis combined, as in [`Builder::reduce_with`].
    pub fn scan<E: From<TypeError>>(
        &mut self,
        tiles: &[Value],
        axis: u8,
        reverse: bool,
        combine: impl FnOnce(&mut Builder, &[Value], &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        self.combined(OpKind::Scan { axis, reverse }, tiles, combine)
    }

    fn combined<E: From<TypeError>>(
        &mut self,
        kind: OpKind,
        tiles: &[Value],
        combine: impl FnOnce(&mut Builder, &[Value], &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        self.types_of(&kind, tiles)?;
        let region = self.region(&kind, tiles, 0, |b, args| {
            let (first, second) = args.split_at(args.len() / 2);
            combine(b, first, second)
        })?;
        Ok(self.close(kind, tiles, vec![region])?)
    }

    /// One of two regions, by a boolean scalar. Both return values of the same types; so does this.
    pub fn if_else<E: From<TypeError>>(
        &mut self,
        condition: Value,
        then: impl FnOnce(&mut Builder) -> std::result::Result<Vec<Value>, E>,
        otherwise: impl FnOnce(&mut Builder) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        self.types_of(&OpKind::If, &[condition])?;
        let first = self.region(&OpKind::If, &[condition], 0, |b, _| then(b))?;
        let second = self.region(&OpKind::If, &[condition], 1, |b, _| otherwise(b))?;
        let yielded = |region: &Region| region.ops.last().map(|op| op.args.clone()).unwrap_or_default();
        let (ours, theirs) = (yielded(&first), yielded(&second));
        self.check_carried(&ours, &theirs)?;
        let types: Vec<Type> = ours.iter().map(|&v| self.ty(v).clone()).collect();
        let results: Vec<Value> = types.into_iter().map(|ty| self.value(ty)).collect();
        self.append(Op {
            kind: OpKind::If,
            args: SmallVec::from_slice(&[condition]),
            results: results.iter().copied().collect(),
            regions: vec![first, second],
            loc: Loc::UNKNOWN,
        });
        Ok(results)
    }

    /// A loop while `condition`, which is given the carried values, returns a boolean scalar that is true; `body` is
    /// given them too and returns the next ones. Returns those for which the condition is false.
    pub fn while_loop<E: From<TypeError>>(
        &mut self,
        init: &[Value],
        condition: impl FnOnce(&mut Builder, &[Value]) -> std::result::Result<Value, E>,
        body: impl FnOnce(&mut Builder, &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        self.types_of(&OpKind::While, init)?;
        let test = self.region(&OpKind::While, init, 0, |b, args| condition(b, args).map(|v| vec![v]))?;
        let body = self.region(&OpKind::While, init, 1, body)?;
        Ok(self.close(OpKind::While, init, vec![test, body])?)
    }

    /// A counted loop. `body` is given the builder, the induction variable and the carried values, and returns
    /// their next values. Returns the carried values after the last iteration.
    pub fn for_loop<E: From<TypeError>>(
        &mut self,
        bounds: (Value, Value, Value),
        init: &[Value],
        body: impl FnOnce(&mut Builder, Value, &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Vec<Value>, E> {
        let (lo, hi, step) = bounds;
        let args: Vec<Value> = [lo, hi, step].into_iter().chain(init.iter().copied()).collect();
        self.types_of(&OpKind::For, &args)?;
        let region = self.region(&OpKind::For, &args, 0, |b, args| match args.split_first() {
            Some((&induction, carried)) => body(b, induction, carried),
            None => Ok(Vec::new()),
        })?;
        Ok(self.close(OpKind::For, &args, vec![region])?)
    }

    fn types_of(&self, kind: &OpKind, args: &[Value]) -> Result<Types> {
        let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.program.ty(a)).collect();
        kind.infer(&types)
    }

    /// The region at a position of an operation, made by `body`, which is given its arguments and returns what it
    /// yields.
    fn region<E: From<TypeError>>(
        &mut self,
        kind: &OpKind,
        args: &[Value],
        index: usize,
        body: impl FnOnce(&mut Builder, &[Value]) -> std::result::Result<Vec<Value>, E>,
    ) -> std::result::Result<Region, E> {
        let types = {
            let types: SmallVec<[&Type; 4]> = args.iter().map(|&a| self.program.ty(a)).collect();
            kind.regions(&types).into_iter().nth(index)
        };
        let (taken, yields) = types.map_or((Types::new(), None), |t| (t.args, t.yields));
        let handed: Vec<Value> = taken.into_iter().map(|ty| self.value(ty)).collect();
        self.open.push(Region { args: handed.clone(), ops: Vec::new() });
        let yielded = body(self, &handed);
        let mut region = self.open.pop().unwrap_or_default();
        let yielded = yielded?;
        if let Some(expected) = yields {
            self.check_yield(&expected, &yielded)?;
        }
        region.ops.push(Op {
            kind: OpKind::Yield,
            args: SmallVec::from_slice(&yielded),
            results: SmallVec::new(),
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        Ok(region)
    }

    /// Appends an operation with regions.
    fn close(&mut self, kind: OpKind, args: &[Value], regions: Vec<Region>) -> Result<Vec<Value>> {
        let results = self.results(&kind, args)?;
        self.append(Op { kind, args: args.into(), results: results.clone(), regions, loc: Loc::UNKNOWN });
        Ok(results.to_vec())
    }

    fn check_carried(&self, first: &[Value], second: &[Value]) -> Result<()> {
        let expected: Types = first.iter().map(|&v| self.ty(v).clone()).collect();
        self.check_yield(&expected, second)
    }

    fn check_yield(&self, expected: &[Type], found: &[Value]) -> Result<()> {
        if expected.len() != found.len() {
            return Err(TypeError::Arity { op: "yield", expected: expected.len(), found: found.len() });
        }
        for (index, (expected, &value)) in expected.iter().zip(found).enumerate() {
            if expected != self.ty(value) {
                let (found, expected) = (self.ty(value).clone(), expected.to_string());
                return Err(TypeError::Operand { op: "yield", index, found, expected });
            }
        }
        Ok(())
    }
}
