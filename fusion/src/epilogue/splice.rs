//! Expressions of a fused group as operations at an access of a program that exists.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{CacheHint, Elem, Literal, Op, OpKind, Program, ScalarFn, Shape, Value};

use crate::block_kernel::{Block, Coordinate};
use crate::index::{Atom, Expr, Var};
use crate::kernel::{BlockRefusal, Dynamic, Expressions, KExpr, Kernel, Refusal, Store};
use crate::types::row_major;

/// A variable of the kernel whose expressions are computed at an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    index: Index,
    /// Whether it is in range where elements are masked off, too.
    inside: bool,
    /// What a neighbour along it adds to the offsets; 0 where these are not those of the elements alone.
    pitch: i64,
}

/// The index of a variable at an access.
#[derive(Clone, Copy, Debug)]
pub(super) enum Index {
    /// Of each element, of each row of a block, or one for all of it.
    Of(Value),
    /// The column of a block of so many, counted from its first.
    Column(u32),
}

impl Variable {
    /// The row-major number of each element at these offsets.
    pub(super) fn element(offsets: Value) -> Variable {
        Variable { index: Index::Of(offsets), inside: false, pitch: 1 }
    }

    /// An axis of an access, along which a neighbour adds so many to its offsets.
    pub(super) fn along(axis: &Coordinate, pitch: i64) -> Variable {
        Variable { index: Index::Of(axis.index), inside: axis.inside, pitch }
    }

    /// Those of a kernel over the rows, the blocks and the columns of what is stored; see [`domain`](super::domain).
    pub(super) fn of_rows(kernel: &Kernel, block: &Block) -> SmallVec<[Variable; 4]> {
        let of = |(at, &reduced): (usize, &bool)| match reduced {
            true => Variable { index: Index::Column(block.columns), inside: false, pitch: 1 },
            false if at == 0 => {
                Variable { index: Index::Of(block.rows), inside: false, pitch: block.matrix[1] }
            }
            false => Variable { index: Index::Of(block.number), inside: true, pitch: block.columns.into() },
        };
        kernel.reduced.iter().enumerate().map(of).collect()
    }
}

/// The access at which expressions are computed.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// Elements of the tensor that is accessed.
    pub(super) offsets: Value,
    /// Which of them count.
    pub(super) mask: Option<Value>,
    /// What the variables of the expressions' kernel are.
    pub(super) variables: SmallVec<[Variable; 4]>,
    /// What is stored there, and the buffers of the expressions' kernel that it stands for.
    pub(super) stored: SmallVec<[(u32, Value); 2]>,
    /// What is stored, where the expressions are of a kernel over its rows.
    pub(super) block: Option<Block>,
}

impl Site {
    pub(super) fn new(
        offsets: Value,
        mask: Option<Value>,
        variables: impl IntoIterator<Item = Variable>,
    ) -> Site {
        let variables = variables.into_iter().collect();
        Site { offsets, mask, variables, stored: SmallVec::new(), block: None }
    }
}

/// Writes operations that compute expressions of a kernel at a site.
pub(super) struct Splice<'a> {
    pub(super) program: &'a mut Program,
    pub(super) out: &'a mut Vec<Op>,
    pub(super) kernel: &'a Kernel,
    /// The pointer to each buffer of the kernel.
    pointers: &'a [Option<Value>],
    pub(super) site: Site,
    /// The shape of what is being computed.
    pub(super) shape: Shape,
    values: FxHashMap<KExpr, Value>,
    /// By expression, kind and rank.
    indices: FxHashMap<(Expr, Elem, usize), Value>,
}

impl<'a> Splice<'a> {
    pub(super) fn new(
        program: &'a mut Program,
        out: &'a mut Vec<Op>,
        kernel: &'a Kernel,
        pointers: &'a [Option<Value>],
        site: Site,
    ) -> Splice<'a> {
        let shape = program.ty(site.offsets).shape.clone();
        Splice {
            program,
            out,
            kernel,
            pointers,
            site,
            shape,
            values: FxHashMap::default(),
            indices: FxHashMap::default(),
        }
    }

    /// The elements of a buffer at an address that is stored, the value, and which of them count.
    pub(super) fn stored(&mut self, store: &Store) -> Result<(Value, Value, Option<Value>), Refusal> {
        self.shape = self.own_shape(store.value);
        if self.site.block.is_some() && self.kernel.indices.vars(store.addr) & self.columns() != 0 {
            self.shape = self.program.ty(self.site.offsets).shape.clone();
        }
        let value = self.value(store.value)?;
        Ok((self.index(store.addr)?, value, self.mask()))
    }

    /// Which elements count of what is being computed.
    fn mask(&self) -> Option<Value> {
        match self.site.block {
            Some(block) if self.shape.len() == 1 => block.inside,
            _ => self.site.mask,
        }
    }

    /// A value, or 0 where a mask does not hold.
    fn masked(&mut self, value: Value, mask: Option<KExpr>) -> Result<Value, Refusal> {
        let Some(mask) = mask else { return Ok(value) };
        let (mask, zero) = (self.value(mask)?, self.literal(Literal::of(self.elem(value), 0.0)));
        self.map(ScalarFn::Select, &[mask, value, zero])
    }

    /// Whether an index is that of the element that is accessed.
    fn is_element(&self, index: Expr) -> bool {
        let pitches: SmallVec<[i64; 4]> = self.site.variables.iter().map(|variable| variable.pitch).collect();
        is_sum(self.kernel, index, &pitches)
    }

    /// Whether an index is in range where the site's elements are masked off, too. That of the element is read at the site's offsets.
    fn is_inside(&self, index: Expr) -> bool {
        let vars = self.kernel.indices.vars(index);
        let mut variables = self.site.variables.iter().enumerate();
        !self.is_element(index)
            && variables.all(|(at, variable)| variable.inside || vars & (1 << at.min(63)) == 0)
    }

    pub(super) fn convert(&mut self, value: Value, elem: Elem) -> Value {
        if self.elem(value) == elem {
            return value;
        }
        self.push(OpKind::Cast(elem), &[value], elem)
    }

    pub(super) fn push(&mut self, kind: OpKind, args: &[Value], elem: Elem) -> Value {
        self.push_shaped(kind, args, elem, self.shape.clone())
    }
}

impl<'k> Expressions<'k> for Splice<'k> {
    type Error = Refusal;

    fn kernel(&self) -> &'k Kernel {
        self.kernel
    }

    /// The expression at the site, in the shape at hand.
    fn value(&mut self, expr: KExpr) -> Result<Value, Refusal> {
        let known = self.values.get(&expr).copied();
        let value = match known {
            Some(value) => value,
            None => {
                let own = self.own_shape(expr);
                let outer = std::mem::replace(&mut self.shape, own);
                let from = self.out.len();
                let value = self.compute(expr);
                self.shape = outer;
                let loc = self.kernel.info(expr).loc;
                self.out[from..].iter_mut().for_each(|op| op.loc = op.loc.or(loc));
                value?
            }
        };
        self.values.insert(expr, value);
        Ok(self.spread(value))
    }

    fn variable(&mut self, var: Var, elem: Elem) -> Result<SmallVec<[Value; 2]>, Refusal> {
        let variable = self.site.variables.get(var.0 as usize).ok_or(BlockRefusal::Gather)?;
        let value = match variable.index {
            Index::Of(index) => self.spread(index),
            Index::Column(columns) => self.lanes(columns),
        };
        Ok(SmallVec::from_slice(&[self.convert(value, elem)]))
    }

    fn end(&self, var: Var) -> u64 {
        let extent =
            self.kernel.indices.extents().get(var.0 as usize).map_or(u64::MAX, |&n| n.unsigned_abs());
        let behind = self.shape.iter().copied().max().map_or(0, u64::from);
        extent.saturating_add(behind)
    }

    fn load(
        &mut self,
        buffer: u32,
        addr: Expr,
        dynamic: Option<Dynamic>,
        mask: Option<KExpr>,
    ) -> Result<Value, Refusal> {
        if dynamic.is_some() {
            return Err(BlockRefusal::Gather.into());
        }
        if let Some(&(_, stored)) = self.site.stored.iter().find(|s| s.0 == buffer) {
            if !self.is_element(addr) || (mask.is_some() && self.site.block.is_none()) {
                return Err(BlockRefusal::ResultOrder.into());
            }
            return self.masked(stored, mask);
        }
        let pointer = self.pointers.get(buffer as usize).copied().flatten();
        let pointer = pointer.ok_or(BlockRefusal::SeveralResults)?;
        let offsets = self.index(addr)?;
        let own = match mask {
            Some(mask) => Some(self.value(mask)?),
            None => None,
        };
        let everywhere = self.is_inside(addr);
        let mask = match (self.mask().filter(|_| !everywhere), own) {
            (Some(a), Some(b)) => Some(self.map(ScalarFn::And, &[a, b])?),
            (one, other) => one.or(other),
        };
        let elem = self.kernel.buffers.get(buffer as usize).map_or(Elem::F32, |b| b.elem);
        let kind = OpKind::Load { masked: mask.is_some(), other: false, hint: CacheHint::Default };
        let args: SmallVec<[Value; 4]> = [pointer, offsets].into_iter().chain(mask).collect();
        Ok(self.push(kind, &args, elem))
    }

    fn reduce(&mut self, position: u32) -> Result<Value, Refusal> {
        self.reduce_columns(position)
    }

    fn literal(&mut self, literal: Literal) -> Value {
        self.push(OpKind::Const(literal), &[], literal.elem)
    }

    fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value, Refusal> {
        let kinds: SmallVec<[Elem; 4]> = args.iter().map(|&a| self.elem(a)).collect();
        let elem = function.result(&kinds).ok_or(Refusal::ElementType)?;
        Ok(self.push(OpKind::Map(function), args, elem))
    }

    fn cast(&mut self, value: Value, elem: Elem) -> Result<Value, Refusal> {
        Ok(self.convert(value, elem))
    }

    fn elem(&self, value: Value) -> Elem {
        self.program.ty(value).elem().unwrap_or(Elem::I32)
    }

    fn is_scalar(&self, value: Value) -> bool {
        self.program.ty(value).rank() == 0
    }

    fn known_index(&self, expr: Expr, elem: Elem) -> Option<Value> {
        self.indices.get(&(expr, elem, self.shape.len())).copied()
    }

    fn remember_index(&mut self, expr: Expr, elem: Elem, value: Value) {
        self.indices.insert((expr, elem, self.shape.len()), value);
    }

    fn index(&mut self, expr: Expr) -> Result<Value, Refusal> {
        if self.shape == self.program.ty(self.site.offsets).shape && self.is_element(expr) {
            return Ok(self.site.offsets);
        }
        let elem = if self.fits_i32(expr) { Elem::I32 } else { Elem::I64 };
        self.index_as(expr, elem)
    }
}

/// Whether an index is the row-major number of a kernel's variables.
pub(super) fn is_element(kernel: &Kernel, index: Expr) -> bool {
    is_sum(kernel, index, &row_major(&kernel.indices.extents()[..kernel.reduced.len()]))
}

/// Whether an index is the sum of a kernel's variables, each times a factor.
pub(super) fn is_sum(kernel: &Kernel, index: Expr, factors: &[i64]) -> bool {
    let linear = kernel.indices.linear(index);
    let variables = kernel.indices.extents().iter().take(kernel.reduced.len());
    let own =
        |&(atom, by): &(Atom, i64)| matches!(atom, Atom::Var(v) if factors.get(v.0 as usize) == Some(&by));
    linear.constant == 0
        && linear.terms.len() == variables.filter(|&&extent| extent > 1).count()
        && linear.terms.iter().all(own)
}
