//! A kernel's program with the expressions of its neighbours in its loads and stores.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{
    CacheHint, Elem, Kind, Literal, Op, OpKind, Param, Program, Region, ScalarFn, Shape, Type, Value,
    ValueData, verify,
};

use super::Uses;
use super::splice::{Site, Splice, Variable, is_element, is_sum};
use crate::block_kernel::{BlockKernel, BlockKernelKind, Layout, Tied};
use crate::graph::ValueRef;
use crate::index::{Expr, Var};
use crate::kernel::{BlockRefusal, Expressions, KExpr, KNode, Kernel, Refusal, Store};

/// What becomes of a tensor of the call: a kernel whose stores are what is wanted of it. Of an operand that is one store, of the
/// operand itself.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The expressions.
    pub(crate) kernel: Kernel,
    /// Of each variable, the axis of the tensor's accesses that it is; none where the only variable is the element.
    pub(crate) along: SmallVec<[LoopAxis; 4]>,
    /// What each store of the kernel is.
    pub(crate) roots: Vec<ValueRef>,
}

/// An axis that a variable of a part is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoopAxis {
    /// Its position among the axes of an access.
    pub(crate) axis: usize,
    /// What a neighbour along it adds to the offsets of the access; 0 where these are not those of the elements alone.
    pub(crate) pitch: i64,
}

impl Part {
    /// What nothing is computed of.
    pub(crate) fn none() -> Part {
        Part { kernel: Kernel::default(), along: SmallVec::new(), roots: Vec::new() }
    }

    /// Whether an index is the number of the element that is accessed.
    fn is_element(&self, index: Expr) -> bool {
        if self.along.is_empty() {
            return is_element(&self.kernel, index);
        }
        let pitches: SmallVec<[i64; 4]> = self.along.iter().map(|along| along.pitch).collect();
        is_sum(&self.kernel, index, &pitches)
    }

    /// Whether it reads of these values the elements that are accessed, and stores neighbours of these next to each other.
    pub(crate) fn is_in_order(&self, results: &[ValueRef]) -> bool {
        let kernel = &self.kernel;
        let is_result = |buffer: u32| {
            kernel.buffers.get(buffer as usize).is_some_and(|buffer| results.contains(&buffer.value))
        };
        let mut loads = kernel.exprs.iter().filter_map(|node| match node {
            KNode::Load { buffer, addr, .. } if is_result(*buffer) => Some(*addr),
            _ => None,
        });
        loads.all(|addr| self.is_element(addr)) && kernel.stores.iter().all(|store| self.is_row(store.addr))
    }

    /// Whether what is stored at an address lies as the elements that are accessed do, or in other rows of these: vectors of them are
    /// vectors there.
    fn is_row(&self, addr: Expr) -> bool {
        let along_row = self.along.iter().position(|along| along.pitch == 1);
        let coefficient =
            |var: usize| u32::try_from(var).map_or(0, |var| self.kernel.indices.coefficient(addr, Var(var)));
        self.is_element(addr) || along_row.is_some_and(|var| coefficient(var) == 1)
    }
}

/// A kernel and what is to become of its operands and results.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    /// The kernel.
    pub(crate) kernel: Arc<BlockKernel>,
    /// How its program uses its parameters.
    pub(crate) uses: Arc<[Uses]>,
    /// By operand: how it is computed.
    pub(crate) operands: Vec<Part>,
    /// By operand: the value whose memory is read at strides instead.
    pub(crate) bases: Vec<Option<ValueRef>>,
    /// By result: what is computed of it, and of results that are stored before it at the same elements.
    pub(crate) results: Vec<Part>,
    /// What is computed of the rows of the result at a position, by a kernel over the rows, the blocks and the columns of its
    /// [`Block`](crate::block_kernel::Block).
    pub(crate) rows: Option<(usize, Part)>,
    /// By result: the value, and whether it is materialized.
    pub(crate) materialized: Vec<(ValueRef, bool)>,
}

/// The buffer that an operand is in as it is, if nothing has to be computed for it.
fn identity(part: &Part) -> Option<ValueRef> {
    let kernel = &part.kernel;
    let mut value = kernel.stores.first()?.value;
    // What memory holds is widened when it is read and narrowed when it is stored: together, nothing.
    while let KNode::Cast(inner, _) = kernel.node(value) {
        value = *inner;
    }
    let KNode::Load { buffer, addr, dynamic: None, mask: None } = kernel.node(value) else { return None };
    let (read, stored) = (kernel.info(value).elem, kernel.info(kernel.stores.first()?.value).elem);
    let exact = read == stored && casts(kernel, kernel.stores.first()?.value).iter().all(|&e| holds(e, read));
    let buffer = kernel.buffers.get(*buffer as usize)?;
    (exact && is_element(kernel, *addr)).then_some(buffer.value)
}

/// The kinds that a value is cast to, down to what is no cast.
fn casts(kernel: &Kernel, mut value: KExpr) -> Vec<Elem> {
    let mut found = Vec::new();
    while let KNode::Cast(inner, elem) = kernel.node(value) {
        found.push(*elem);
        value = *inner;
    }
    found
}

/// Whether `wide` holds every value of `narrow`.
fn holds(wide: Elem, narrow: Elem) -> bool {
    wide == narrow || (narrow.is_float() && wide == Elem::F32 && narrow.bytes() < 4)
}

impl Rewrite {
    /// The buffers of the rewritten program in the order of its parameters, with whether each is written, or why there is no such
    /// program: all that is rewritten is, but nothing is made of it.
    pub(crate) fn check(&self) -> Result<Vec<(ValueRef, bool)>, Refusal> {
        let mut cx = Cx::new(self);
        cx.parameters()?;
        cx.check(&self.kernel.program.body)?;
        Ok(cx.buffers.into_iter().map(|b| (b.value, b.written)).collect())
    }

    /// The rewritten program, which no pass has seen.
    pub(crate) fn program(&self, name: String, align: &dyn Fn(ValueRef) -> u32) -> Result<Program, Refusal> {
        let mut cx = Cx::new(self);
        let status = cx.parameters()?;
        let body = cx.region(&self.kernel.program.body)?;
        let Cx { mut program, buffers, .. } = cx;
        program.name = name;
        program.body = body;
        program.params = buffers
            .into_iter()
            .map(|b| Param { align: align(b.value).max(b.elem.bytes()), ..b.param })
            .chain(status)
            .collect();
        debug_assert!(verify(&program).is_ok(), "{:?}", verify(&program));
        Ok(program)
    }
}

/// A buffer of the rewritten program.
#[derive(Clone, Debug)]
struct Buffer {
    value: ValueRef,
    written: bool,
    elem: Elem,
    param: Param,
}

/// What becomes of the accesses through a parameter.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Loads compute the operand at this position.
    Operand(usize),
    /// Stores go on to what is computed of the result at this position.
    Result(usize),
}

/// Elements of a result that a program stores, and does not store again.
#[derive(Clone, Copy, Debug)]
struct Stored {
    position: usize,
    offsets: Value,
    mask: Option<Value>,
    value: Value,
}

struct Cx<'a> {
    rewrite: &'a Rewrite,
    /// Without a body.
    program: Program,
    buffers: Vec<Buffer>,
    plans: FxHashMap<Value, Plan>,
    /// What has been stored in this region and those around it.
    stored: Vec<Stored>,
}

impl<'a> Cx<'a> {
    fn new(rewrite: &'a Rewrite) -> Cx<'a> {
        let Program { params, values, warps, stages, early, .. } = &rewrite.kernel.program;
        let program = Program {
            name: String::new(),
            params: params.clone(),
            values: values.clone(),
            body: Region::default(),
            warps: *warps,
            stages: *stages,
            early: *early,
        };
        Cx { rewrite, program, buffers: Vec::new(), plans: FxHashMap::default(), stored: Vec::new() }
    }

    /// Decides about every parameter, and gives the status word.
    fn parameters(&mut self) -> Result<Option<Param>, Refusal> {
        let kernel = &self.rewrite.kernel;
        let mut params = std::mem::take(&mut self.program.params);
        let status = if kernel.checks { params.pop() } else { None };
        for ((param, tied), &uses) in params.into_iter().zip(&kernel.tied).zip(&*self.rewrite.uses) {
            match *tied {
                Tied::Operand(position) => {
                    let part = self.rewrite.operands.get(usize::from(position));
                    let part = part.ok_or(BlockRefusal::Parameters)?;
                    if uses.stored > 0 {
                        return Err(BlockRefusal::WritesOperand.into());
                    }
                    let base = self.rewrite.bases.get(usize::from(position)).copied().flatten();
                    // Offsets in an operand at strides are not the elements' numbers.
                    let is_row_major = *kernel.layout(position) == Layout::Elements;
                    match base.or_else(|| identity(part).filter(|_| is_row_major)) {
                        Some(value) => self.retain_parameter(param, value, false)?,
                        None if uses.only_loads() => {
                            self.plans.insert(param.value, Plan::Operand(usize::from(position)));
                        }
                        None => {
                            return Err(BlockRefusal::NoLoads.into());
                        }
                    }
                }
                Tied::Result(position) => self.result(param, usize::from(position), uses)?,
            }
        }
        let taken = |at: usize| kernel.tied.contains(&Tied::Operand(at as u16));
        let operands = self.rewrite.operands.iter().enumerate().filter(|&(at, _)| taken(at));
        let rows = self.rewrite.rows.as_ref().map(|(_, part)| part);
        let parts = operands.map(|(_, part)| part).chain(&self.rewrite.results).chain(rows);
        for part in parts {
            self.reads(part)?;
        }
        self.writes()?;
        Ok(status)
    }

    fn result(&mut self, param: Param, position: usize, uses: Uses) -> Result<(), Refusal> {
        let missing = Refusal::Block(BlockRefusal::Parameters);
        let part = self.rewrite.results.get(position).ok_or(missing.clone())?;
        let &(value, materialized) = self.rewrite.materialized.get(position).ok_or(missing)?;
        let tied = self.rewrite.kernel.tied.iter().filter(|t| **t == Tied::Result(position as u16));
        let parts = self.rewrite.results.iter().chain(self.rewrite.rows.as_ref().map(|(_, part)| part));
        let mut buffers = parts.flat_map(|part| &part.kernel.buffers);
        let is_read = buffers.any(|buffer| buffer.value == value);
        if !part.roots.is_empty() || !materialized || is_read {
            if !uses.only_stores() || tied.count() > 1 {
                return Err(BlockRefusal::NoStores.into());
            }
            self.plans.insert(param.value, Plan::Result(position));
        }
        if materialized { self.retain_parameter(param, value, true) } else { Ok(()) }
    }

    /// Leaves a parameter of the kernel as it is.
    fn retain_parameter(&mut self, param: Param, value: ValueRef, written: bool) -> Result<(), Refusal> {
        let elem = pointee(&self.program, param.value)?;
        self.buffers.push(Buffer { value, written, elem, param });
        Ok(())
    }

    /// Adds parameters for what expressions read and the kernel does not.
    fn reads(&mut self, part: &Part) -> Result<(), Refusal> {
        for buffer in needed(&part.kernel) {
            let buffer = &part.kernel.buffers[buffer as usize];
            let own = self.rewrite.materialized.iter().any(|&(value, _)| value == buffer.value);
            if !own && !self.buffers.iter().any(|b| b.value == buffer.value && !b.written) {
                let label = format!("in{}", self.buffers.len());
                let param = self.parameter(label, buffer.elem, buffer.span);
                self.buffers.push(Buffer { value: buffer.value, written: false, elem: buffer.elem, param });
            }
        }
        Ok(())
    }

    /// Adds parameters for what expressions store.
    fn writes(&mut self) -> Result<(), Refusal> {
        for part in &self.rewrite.results {
            for (&root, store) in part.roots.iter().zip(&part.kernel.stores) {
                if !part.is_row(store.addr) {
                    return Err(BlockRefusal::Order.into());
                }
                self.write(part, root, store)?;
            }
        }
        if let Some((_, part)) = &self.rewrite.rows {
            for (&root, store) in part.roots.iter().zip(&part.kernel.stores) {
                self.write(part, root, store)?;
            }
        }
        Ok(())
    }

    /// Adds a parameter for what an expression stores.
    fn write(&mut self, part: &Part, root: ValueRef, store: &Store) -> Result<(), Refusal> {
        let buffer = part.kernel.buffers.get(store.buffer as usize).ok_or(Refusal::ElementType)?;
        let label = format!("out{}", self.buffers.len());
        let param = self.parameter(label, buffer.elem, buffer.span);
        self.buffers.push(Buffer { value: root, written: true, elem: buffer.elem, param });
        Ok(())
    }

    fn parameter(&mut self, name: String, elem: Elem, span: i64) -> Param {
        let value = Value(self.program.values.len() as u32);
        let ty = Type { kind: Kind::Ptr(elem), shape: Shape::new() };
        self.program.values.push(ValueData { ty, name: Some(name) });
        Param { value, align: elem.bytes(), len: Some(span.unsigned_abs()) }
    }

    /// A region with what becomes of its operations.
    fn region(&mut self, region: &Region) -> Result<Region, Refusal> {
        let mut ops = Vec::with_capacity(region.ops.len());
        let stored = self.stored.len();
        for op in &region.ops {
            let regions = op.regions.iter().map(|inner| self.region(inner)).collect::<Result<_, _>>()?;
            if !self.access(op, &mut ops)? {
                let (kind, args, results) = (op.kind.clone(), op.args.clone(), op.results.clone());
                ops.push(Op { kind, args, results, regions, loc: op.loc });
            }
        }
        self.stored.truncate(stored);
        Ok(Region { args: region.args.clone(), ops })
    }

    /// Whether all operations of a region can be rewritten.
    fn check(&mut self, region: &Region) -> Result<(), Refusal> {
        let mut ops = Vec::new();
        let stored = self.stored.len();
        for op in &region.ops {
            op.regions.iter().try_for_each(|inner| self.check(inner))?;
            self.access(op, &mut ops)?;
            ops.clear();
        }
        self.stored.truncate(stored);
        Ok(())
    }

    /// Adds what takes the place of an operation, if anything does.
    fn access(&mut self, op: &Op, ops: &mut Vec<Op>) -> Result<bool, Refusal> {
        let plan = op.args.first().and_then(|pointer| self.plans.get(pointer)).copied();
        match (plan, &op.kind) {
            (Some(Plan::Operand(position)), OpKind::Load { .. }) => self.load(op, position, ops)?,
            (Some(Plan::Result(position)), OpKind::Store { .. }) => self.store(op, position, ops)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The pointers to the buffers of a part.
    fn pointers(&self, part: &Part) -> Vec<Option<Value>> {
        let pointer =
            |value| self.buffers.iter().find(|b| b.value == value && !b.written).map(|b| b.param.value);
        part.kernel.buffers.iter().map(|b| pointer(b.value)).collect()
    }

    /// What the variables of a part are at an access.
    fn variables(&self, part: &Part, offsets: Value) -> Result<SmallVec<[Variable; 4]>, Refusal> {
        if part.along.is_empty() {
            return Ok(SmallVec::from_slice(&[Variable::element(offsets)]));
        }
        let known = self.rewrite.kernel.coordinates_at(offsets).ok_or(BlockRefusal::Order)?;
        let along = |along: &LoopAxis| {
            let axis = known.axes.get(along.axis).ok_or(BlockRefusal::Order)?;
            Ok(Variable::along(axis, along.pitch))
        };
        part.along.iter().map(along).collect()
    }

    /// Computes an operand instead of loading it.
    fn load(&mut self, op: &Op, position: usize, out: &mut Vec<Op>) -> Result<(), Refusal> {
        let OpKind::Load { masked, other, .. } = op.kind else { return Ok(()) };
        let part = self.rewrite.operands.get(position).ok_or(BlockRefusal::Parameters)?;
        let (offsets, result) = (op.args[1], op.results[0]);
        let mask = masked.then(|| op.args[2]);
        let site = Site::new(offsets, mask, self.variables(part, offsets)?);
        let pointers = self.pointers(part);
        let shape = self.program.ty(result).shape.clone();
        let elem = self.program.ty(result).elem().ok_or(Refusal::ElementType)?;
        let mut splice = Splice::new(&mut self.program, out, &part.kernel, &pointers, site);
        let store = part.kernel.stores.first().ok_or(BlockRefusal::Parameters)?;
        if part.along.is_empty() && !is_element(&part.kernel, store.addr) {
            return Err(BlockRefusal::Order.into());
        }
        let mut value = splice.value(store.value)?;
        if let Some(mask) = mask {
            let fallback = op.args.get(3).copied().filter(|_| other);
            let fallback = fallback.unwrap_or_else(|| splice.literal(Literal::of(elem, 0.0)));
            value = splice.map(ScalarFn::Select, &[mask, value, fallback])?;
        }
        // The same elements under the name that the load's result had.
        out.push(Op {
            kind: OpKind::Reshape(shape),
            args: SmallVec::from_slice(&[value]),
            results: SmallVec::from_slice(&[result]),
            regions: Vec::new(),
            loc: op.loc,
        });
        Ok(())
    }

    /// Stores what is computed of a result, and the result itself if it is materialized.
    fn store(&mut self, op: &Op, position: usize, out: &mut Vec<Op>) -> Result<(), Refusal> {
        let OpKind::Store { masked, .. } = op.kind else { return Ok(()) };
        let missing = Refusal::Block(BlockRefusal::Parameters);
        let part = self.rewrite.results.get(position).ok_or(missing.clone())?;
        let &(_, materialized) = self.rewrite.materialized.get(position).ok_or(missing)?;
        let offsets = op.args[1];
        let known = self.rewrite.kernel.coordinates_at(offsets);
        let mask = masked.then(|| op.args[3]);
        let own = Stored { position, offsets, mask, value: op.args[2] };
        self.stores(part, own, Site::new(offsets, mask, self.variables(part, offsets)?), out)?;
        if let Some((_, rows)) = self.rewrite.rows.as_ref().filter(|rows| rows.0 == position) {
            let block = known.and_then(|c| c.block).ok_or(BlockRefusal::UnknownStores)?;
            let variables = Variable::of_rows(&rows.kernel, &block);
            self.stores(rows, own, Site { block: Some(block), ..Site::new(offsets, mask, variables) }, out)?;
        }
        if self.is_final(op.args[0]) {
            self.stored.push(own);
        }
        if materialized {
            out.push(op.clone());
        }
        Ok(())
    }

    /// Whether what an instance stores through a pointer stays there: templates store no element twice, and other programs do not
    /// where they have one store.
    fn is_final(&self, pointer: Value) -> bool {
        let kernel = &self.rewrite.kernel;
        if kernel.kind != BlockKernelKind::Custom {
            return true;
        }
        let mut stores = 0;
        kernel.program.walk(&mut |op| {
            stores += u32::from(op.kind.writes() && op.args.first() == Some(&pointer));
        });
        stores == 1
    }

    /// Stores what a part computes of a result, and of others that were stored at the same elements, where that is stored.
    fn stores(&mut self, part: &Part, own: Stored, site: Site, out: &mut Vec<Op>) -> Result<(), Refusal> {
        let results = &self.rewrite.materialized;
        let here = |s: &&Stored| s.position != own.position && (s.offsets, s.mask) == (own.offsets, own.mask);
        let held = self.stored.iter().filter(here).chain([&own]);
        let buffer = |value: ValueRef| part.kernel.buffers.iter().position(|b| b.value == value);
        let held = held.filter_map(|s| Some((buffer(results.get(s.position)?.0)? as u32, s.value)));
        let site = Site { stored: held.collect(), ..site };
        let pointers = self.pointers(part);
        let mut splice = Splice::new(&mut self.program, out, &part.kernel, &pointers, site);
        let mut stores = Vec::new();
        let loc_of = |store: &Store| part.kernel.info(store.value).loc;
        for (&root, store) in part.roots.iter().zip(&part.kernel.stores) {
            stores.push((root, loc_of(store), splice.stored(store)?));
        }
        for (root, loc, (offsets, value, mask)) in stores {
            let pointer = self.buffers.iter().find(|b| b.value == root && b.written).map(|b| b.param.value);
            let pointer = pointer.ok_or(BlockRefusal::Parameters)?;
            let args = [pointer, offsets, value].into_iter().chain(mask).collect();
            let kind = OpKind::Store { masked: mask.is_some(), hint: CacheHint::Default };
            out.push(Op { kind, args, results: SmallVec::new(), regions: Vec::new(), loc });
        }
        Ok(())
    }
}

fn pointee(program: &Program, pointer: Value) -> Result<Elem, Refusal> {
    match program.ty(pointer).kind {
        Kind::Ptr(elem) => Ok(elem),
        _ => Err(Refusal::ElementType),
    }
}

/// The buffers that the stored expressions of a kernel read.
fn needed(kernel: &Kernel) -> Vec<u32> {
    let mut found = Vec::new();
    let mut seen = vec![false; kernel.exprs.len()];
    let mut stack: Vec<KExpr> = kernel.stores.iter().map(|s| s.value).collect();
    while let Some(expr) = stack.pop() {
        if std::mem::replace(&mut seen[expr.index()], true) {
            continue;
        }
        match kernel.node(expr) {
            KNode::Load { buffer, dynamic, mask, .. } => {
                found.push(*buffer);
                stack.extend(dynamic.iter().map(|d| d.index).chain(*mask));
            }
            KNode::Map(_, args) => stack.extend(args),
            KNode::Cast(inner, _) => stack.push(*inner),
            KNode::Reduce(position) => {
                stack.extend(kernel.reduces.get(*position as usize).map(|reduction| reduction.value));
            }
            KNode::Const(_) | KNode::Index(..) | KNode::InRange(..) => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
