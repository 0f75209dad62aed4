//! The operations.

use std::ops::Range;
use std::rc::Rc;

use super::memory::{Access, Memory};
use super::{Fault, InterpError, Observer, Options, ops};
use crate::data::{Data, Element};
use crate::eval;
use crate::print::op_text;
use crate::program::{AtomicFn, MemoryOrder, Op, OpKind, Program, Region, Value};
use crate::scalar_fn::ReduceFn;
use crate::types::{Literal, Type};

/// The contents of a value.
#[derive(Clone)]
pub(super) enum Content {
    /// A pointer to the buffer at this position among the arguments.
    Pointer(usize),
    Tile(Rc<Data>),
}

pub(super) struct Machine<'p, 'm> {
    pub(super) program: &'p Program,
    memory: Memory<'m>,
    values: Vec<Option<Content>>,
    pub(super) instance: [u32; 3],
    grid: [u32; 3],
    /// The instance counted from 1.
    number: u32,
    fuel: u64,
    pub(super) print: fn(&str),
    observe: Option<Observer<'m>>,
}

type Result<T> = std::result::Result<T, InterpError>;

impl<'p, 'm> Machine<'p, 'm> {
    pub(super) fn new(
        program: &'p Program,
        memory: Memory<'m>,
        options: &Options,
        observe: Option<Observer<'m>>,
    ) -> Machine<'p, 'm> {
        let values = vec![None; program.values.len()];
        let (fuel, print) = (options.fuel.unwrap_or(u64::MAX), options.print);
        Machine { program, memory, values, instance: [0; 3], grid: [0; 3], number: 0, fuel, print, observe }
    }

    pub(super) fn run(mut self, grid: [u32; 3], part: [Range<u32>; 3]) -> Result<()> {
        for (index, param) in self.program.params.iter().enumerate() {
            let content = match self.memory.scalar(index) {
                Some(literal) => Content::Tile(Rc::new(Data::repeat(literal, 1))),
                None => Content::Pointer(index),
            };
            self.set(param.value, content);
        }
        self.grid = grid;
        let [xs, ys, zs] = part;
        for z in zs {
            for y in ys.clone() {
                for x in xs.clone() {
                    self.instance = [x, y, z];
                    self.number += 1;
                    self.memory.next_instance();
                    self.region(&self.program.body)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a region and returns what it yields.
    pub(super) fn region(&mut self, region: &'p Region) -> Result<Vec<Content>> {
        for op in &region.ops {
            if op.kind == OpKind::Yield {
                return op
                    .args
                    .iter()
                    .map(|&v| self.get(v))
                    .collect::<Option<_>>()
                    .ok_or_else(|| self.fault(op, Fault::Malformed));
            }
            self.op(op)?;
        }
        Ok(Vec::new())
    }

    fn op(&mut self, op: &'p Op) -> Result<()> {
        let cost = 1 + op.results.iter().map(|&r| self.program.ty(r).numel()).sum::<u64>();
        match self.fuel.checked_sub(cost) {
            Some(rest) => self.fuel = rest,
            None => return Err(self.fault(op, Fault::Fuel)),
        }
        match op.kind {
            OpKind::For => return self.for_loop(op),
            OpKind::While => return self.while_loop(op),
            OpKind::If => return self.branch(op),
            OpKind::ReduceWith { axis } => return self.combined(op, axis, None),
            OpKind::Scan { axis, reverse } => return self.combined(op, axis, Some(reverse)),
            _ => {}
        }
        let contents = self.simple(op).map_err(|fault| self.fault(op, fault))?;
        for (&result, data) in op.results.iter().zip(contents) {
            self.set(result, Content::Tile(Rc::new(data)));
        }
        Ok(())
    }

    fn simple(&mut self, op: &Op) -> std::result::Result<Vec<Data>, Fault> {
        let one = |data: Data| vec![data];
        match &op.kind {
            OpKind::Load { masked, other, .. } => self.load(op, *masked, *other).map(one),
            OpKind::Store { masked, .. } => self.store(op, *masked).map(|()| Vec::new()),
            OpKind::Atomic { function, masked, order, .. } => {
                self.atomic(op, Some(*function), *order, *masked).map(one)
            }
            OpKind::AtomicCas { order, .. } => self.atomic(op, None, *order, false).map(one),
            OpKind::Print { prefix, hex } => self.print(op, prefix, *hex).map(|()| Vec::new()),
            OpKind::Assert { message, masked } => self.assert(op, message, *masked).map(|()| Vec::new()),
            OpKind::Assume(assumption) => self.assume(op, *assumption).map(one),
            OpKind::Split => self.split(op).ok_or(Fault::Malformed),
            OpKind::Philox { rounds } => self.philox(op, *rounds).ok_or(Fault::Malformed),
            _ => self.pure(op).ok_or(Fault::Malformed).map(|data| one(Rc::unwrap_or_clone(data))),
        }
    }

    fn pure(&self, op: &Op) -> Option<Rc<Data>> {
        let first = || self.data(*op.args.first()?);
        let to = self.program.ty(*op.results.first()?);
        Some(match &op.kind {
            OpKind::Const(literal) => Rc::new(Data::repeat(*literal, numel(to))),
            OpKind::ProgramId(axis) => {
                Rc::new(Data::I32(vec![*self.instance.get(usize::from(*axis))? as i32]))
            }
            OpKind::NumPrograms(axis) => Rc::new(Data::I32(vec![*self.grid.get(usize::from(*axis))? as i32])),
            OpKind::Join => Rc::new(self.join(op)?),
            OpKind::Gather { axis } => Rc::new(self.gather(op, *axis)?),
            OpKind::Histogram { bins, masked } => Rc::new(self.histogram(op, *bins, *masked)?),
            OpKind::Dot { .. } => Rc::new(self.dot(op)?),
            OpKind::Range { start, len } => {
                Rc::new(Data::I32((0..*len).map(|i| start.wrapping_add(i as i32)).collect()))
            }
            OpKind::Splat(_) => Rc::new(Data::repeat_first(&*first()?, numel(to))?),
            OpKind::ExpandDims(_) | OpKind::Reshape(_) => first()?,
            OpKind::Broadcast(_) => Rc::new(first()?.pick(&broadcast(self.arg_type(op)?, to))?),
            OpKind::Permute(perm) => Rc::new(first()?.pick(&permute(self.arg_type(op)?, to, perm)?)?),
            OpKind::Map(function) => {
                let args = op.args.iter().map(|&a| self.data(a)).collect::<Option<Vec<_>>>()?;
                let refs: Vec<&Data> = args.iter().map(Rc::as_ref).collect();
                Rc::new(eval::map(*function, &refs)?)
            }
            OpKind::Cast(elem) => Rc::new(eval::cast(&*first()?, *elem)),
            OpKind::Bitcast(elem) => Rc::new(eval::bitcast(&*first()?, *elem)?),
            OpKind::Reduce { combine, axis, masked } => Rc::new(self.reduce(op, *combine, *axis, *masked)?),
            _ => return None,
        })
    }

    fn reduce(&self, op: &Op, combine: ReduceFn, axis: u8, masked: bool) -> Option<Data> {
        let data = self.data(*op.args.first()?)?;
        let mask = if masked { Some(self.data(*op.args.get(1)?)?) } else { None };
        let mask = match &mask {
            Some(m) => Some(bool::slice(m)?),
            None => None,
        };
        let shape = &self.arg_type(op)?.shape;
        let axis = usize::from(axis);
        let extent = |dims: &[u32]| dims.iter().map(|&d| d as usize).product();
        let dims = [extent(shape.get(..axis)?), *shape.get(axis)? as usize, extent(shape.get(axis + 1..)?)];
        eval::reduce(combine, &data, mask, dims)
    }

    fn load(&mut self, op: &Op, masked: bool, other: bool) -> std::result::Result<Data, Fault> {
        let malformed = Fault::Malformed;
        let result = op.results.first().ok_or(malformed.clone())?;
        let ty = self.program.ty(*result);
        let fallback = match (other, op.args.last()) {
            (true, Some(&value)) => self.data(value).ok_or(malformed)?.as_ref().clone(),
            _ => Data::repeat(Literal { elem: ty.elem().ok_or(malformed)?, bits: 0 }, numel(ty)),
        };
        self.access(op, masked.then_some(2), |memory, access| memory.load(access, fallback))
    }

    fn store(&mut self, op: &Op, masked: bool) -> std::result::Result<(), Fault> {
        let values = op.args.get(2).and_then(|&v| self.data(v)).ok_or(Fault::Malformed)?;
        self.access(op, masked.then_some(3), |memory, access| memory.store(access, &values))
    }

    fn atomic(
        &mut self,
        op: &Op,
        function: Option<AtomicFn>,
        order: MemoryOrder,
        masked: bool,
    ) -> std::result::Result<Data, Fault> {
        let operand = |index: usize| op.args.get(index).and_then(|&v| self.data(v)).ok_or(Fault::Malformed);
        let first = operand(2)?;
        let desired = if function.is_none() { operand(3)? } else { first.clone() };
        self.access(op, masked.then_some(3), |memory, access| {
            memory.atomic(access, order, |old, element| match function {
                Some(function) => {
                    let new = first.pick(&[element])?;
                    match function.combine() {
                        Some(combine) => eval::map(combine, &[old, &new]).map(Some),
                        None => Some(Some(new)),
                    }
                }
                None => {
                    let same = old.to_bytes() == first.pick(&[element])?.to_bytes();
                    Some(if same { Some(desired.pick(&[element])?) } else { None })
                }
            })
        })
    }

    fn access<T>(
        &mut self,
        op: &Op,
        mask: Option<usize>,
        go: impl FnOnce(&mut Memory<'m>, &Access<'_>) -> std::result::Result<T, Fault>,
    ) -> std::result::Result<T, Fault> {
        let buffer = match op.args.first().and_then(|&p| self.get(p)) {
            Some(Content::Pointer(index)) => index,
            _ => return Err(Fault::Malformed),
        };
        let data = |index: usize| op.args.get(index).and_then(|&v| self.data(v)).ok_or(Fault::Malformed);
        let offsets = data(1)?.to_i64().ok_or(Fault::Malformed)?;
        let mask = mask.map(data).transpose()?;
        let mask = mask.as_deref().map(|m| bool::slice(m).ok_or(Fault::Malformed)).transpose()?;
        let access = Access { buffer, offsets: &offsets, mask, instance: self.number };
        go(&mut self.memory, &access)
    }

    fn for_loop(&mut self, op: &'p Op) -> Result<()> {
        let malformed = || self.fault(op, Fault::Malformed);
        let bound = |index: usize| op.args.get(index).and_then(|&v| self.int(v));
        let (Some(lo), Some(hi), Some(step)) = (bound(0), bound(1), bound(2)) else {
            return Err(malformed());
        };
        let (Some(region), Some((&induction, carried))) =
            (op.regions.first(), op.regions.first().and_then(|r| r.args.split_first()))
        else {
            return Err(malformed());
        };
        let initial = op.args.iter().skip(3).map(|&v| self.get(v)).collect::<Option<Vec<_>>>();
        let mut state = initial.ok_or_else(malformed)?;
        if step <= 0 {
            return Err(self.fault(op, Fault::Step(step)));
        }
        let mut i = i64::from(lo);
        while i < i64::from(hi) {
            self.set(induction, Content::Tile(Rc::new(Data::I32(vec![i as i32]))));
            for (&value, content) in carried.iter().zip(state) {
                self.set(value, content);
            }
            state = self.region(region)?;
            self.fuel = self.fuel.checked_sub(1).ok_or_else(|| self.fault(op, Fault::Fuel))?;
            i += i64::from(step);
        }
        for (&value, content) in op.results.iter().zip(state) {
            self.set(value, content);
        }
        Ok(())
    }

    fn while_loop(&mut self, op: &'p Op) -> Result<()> {
        let malformed = || self.fault(op, Fault::Malformed);
        let [test, body] = op.regions.as_slice() else { return Err(malformed()) };
        let initial = op.args.iter().map(|&v| self.get(v)).collect::<Option<Vec<_>>>();
        let mut state = initial.ok_or_else(malformed)?;
        loop {
            self.set_all(&test.args, &state);
            let holds = self.region(test)?;
            match holds.first() {
                Some(Content::Tile(data)) if **data == Data::Bool(vec![false]) => break,
                Some(Content::Tile(_)) => {}
                _ => return Err(self.fault(op, Fault::Malformed)),
            }
            self.set_all(&body.args, &state);
            state = self.region(body)?;
            self.fuel = self.fuel.checked_sub(1).ok_or_else(|| self.fault(op, Fault::Fuel))?;
        }
        self.set_all(&op.results, &state);
        Ok(())
    }

    fn branch(&mut self, op: &'p Op) -> Result<()> {
        let malformed = || self.fault(op, Fault::Malformed);
        let condition = op.args.first().and_then(|&v| self.data(v)).ok_or_else(malformed)?;
        let taken = usize::from(*condition != Data::Bool(vec![true]));
        let region = op.regions.get(taken).ok_or_else(malformed)?;
        let results = self.region(region)?;
        self.set_all(&op.results, &results);
        Ok(())
    }

    /// A reduction, or a scan in a direction, with a combiner of its own.
    fn combined(&mut self, op: &'p Op, axis: u8, scan: Option<bool>) -> Result<()> {
        let malformed = self.fault(op, Fault::Malformed);
        let operands = op.args.iter().map(|&v| self.data(v)).collect::<Option<Vec<_>>>();
        let operands = operands.ok_or_else(|| malformed.clone())?;
        let shape = self.arg_type(op).map(|ty| ty.shape.clone()).unwrap_or_default();
        let region = op.regions.first().ok_or_else(|| malformed.clone())?;
        let lines = ops::lines(&shape, usize::from(axis)).ok_or_else(|| malformed.clone())?;
        let mut out: Vec<Vec<u8>> = Vec::new();
        for (operand, &result) in operands.iter().zip(&op.results) {
            out.push(vec![0; numel(self.program.ty(result)) * operand.elem().bytes() as usize]);
        }
        for (number, mut line) in lines.into_iter().enumerate() {
            if scan == Some(true) {
                line.reverse();
            }
            let mut so_far: Vec<Content> = Vec::new();
            for &position in &line {
                let next =
                    operands.iter().map(|o| o.pick(&[position]).and_then(tile)).collect::<Option<Vec<_>>>();
                let next = next.ok_or_else(|| malformed.clone())?;
                so_far = if so_far.is_empty() { next } else { self.combine(region, so_far, next)? };
                if scan.is_some() {
                    ops::place(&mut out, position, &so_far);
                }
            }
            if scan.is_none() {
                ops::place(&mut out, number, &so_far);
            }
        }
        for ((&result, operand), bytes) in op.results.iter().zip(&operands).zip(&out) {
            self.set(result, Content::Tile(Rc::new(Data::from_bytes(operand.elem(), bytes))));
        }
        Ok(())
    }

    fn combine(
        &mut self,
        region: &'p Region,
        first: Vec<Content>,
        second: Vec<Content>,
    ) -> Result<Vec<Content>> {
        let args: Vec<Content> = first.into_iter().chain(second).collect();
        self.set_all(&region.args, &args);
        self.region(region)
    }

    fn set_all(&mut self, values: &[Value], contents: &[Content]) {
        for (&value, content) in values.iter().zip(contents) {
            self.set(value, content.clone());
        }
    }

    pub(super) fn arg_type(&self, op: &Op) -> Option<&'p Type> {
        op.args.first().map(|&v| self.program.ty(v))
    }

    fn set(&mut self, value: Value, content: Content) {
        if let (Some(observe), Content::Tile(data)) = (&mut self.observe, &content) {
            observe(value, data);
        }
        if let Some(slot) = self.values.get_mut(value.index()) {
            *slot = Some(content);
        }
    }

    fn get(&self, value: Value) -> Option<Content> {
        self.values.get(value.index()).cloned().flatten()
    }

    pub(super) fn data(&self, value: Value) -> Option<Rc<Data>> {
        match self.values.get(value.index()) {
            Some(Some(Content::Tile(data))) => Some(data.clone()),
            _ => None,
        }
    }

    fn int(&self, value: Value) -> Option<i32> {
        match self.data(value)?.as_ref() {
            Data::I32(v) => v.first().copied(),
            _ => None,
        }
    }

    fn fault(&self, op: &Op, fault: Fault) -> InterpError {
        InterpError::Fault { op: op_text(self.program, op), instance: self.instance, fault }
    }
}

fn tile(data: Data) -> Option<Content> {
    Some(Content::Tile(Rc::new(data)))
}

fn numel(ty: &Type) -> usize {
    ty.numel() as usize
}

/// Row-major strides.
fn strides(ty: &Type) -> Vec<usize> {
    let mut strides = vec![1; ty.rank()];
    for axis in (1..ty.rank()).rev() {
        strides[axis - 1] = strides[axis] * ty.shape[axis] as usize;
    }
    strides
}

/// The position in the operand of each element of the result.
fn broadcast(from: &Type, to: &Type) -> Vec<usize> {
    let strides: Vec<usize> =
        strides(from).into_iter().zip(&from.shape).map(|(s, &d)| if d == 1 { 0 } else { s }).collect();
    positions(to, &strides)
}

fn permute(from: &Type, to: &Type, perm: &[u8]) -> Option<Vec<usize>> {
    let from = strides(from);
    let strides: Option<Vec<usize>> = perm.iter().map(|&axis| from.get(usize::from(axis)).copied()).collect();
    Some(positions(to, &strides?))
}

/// `sum of index[a] * strides[a]` for every index of `ty` in row-major order.
fn positions(ty: &Type, strides: &[usize]) -> Vec<usize> {
    let mut out = vec![0];
    for (&extent, &stride) in ty.shape.iter().zip(strides) {
        out = out.iter().flat_map(|&p| (0..extent as usize).map(move |i| p + i * stride)).collect();
    }
    out
}
