//! Expressions of a fused group as operations at an access of a program that exists.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{CacheHint, Elem, Literal, Op, OpKind, Program, ScalarFn, Shape, Value};

use crate::block_kernel::{Block, Coordinate};
use crate::index::{Atom, Expr, Var};
use crate::kernel::{BlockRefusal, KExpr, KNode, Kernel, Refusal, Store};
use crate::types::{fits_i32, row_major};

/// A variable of the kernel whose expressions are computed at an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    index: Index,
    /// Whether it is in range where elements are masked off, too.
    inside: bool,
    /// Elements of the tensor that is accessed between neighbours along it.
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

    /// The axes of an access, of a row-major tensor.
    pub(super) fn along(axes: &[Coordinate]) -> SmallVec<[Variable; 4]> {
        let extents: SmallVec<[i64; 4]> = axes.iter().map(|axis| axis.extent as i64).collect();
        let each = axes.iter().zip(row_major(&extents));
        each.map(|(axis, pitch)| Variable { index: Index::Of(axis.index), inside: axis.inside, pitch })
            .collect()
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

    /// The expression at the site.
    pub(super) fn value(&mut self, expr: KExpr) -> Result<Value, Refusal> {
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

    fn compute(&mut self, expr: KExpr) -> Result<Value, Refusal> {
        let kernel = self.kernel;
        match kernel.node(expr) {
            KNode::Const(literal) => Ok(self.constant(*literal)),
            KNode::Index(index, elem) => {
                let value = self.index(*index)?;
                Ok(self.cast(value, *elem))
            }
            KNode::InRange(index, low, high) => self.in_range(*index, *low, *high),
            KNode::Load { dynamic: Some(_), .. } => Err(BlockRefusal::Gather.into()),
            KNode::Load { buffer, addr, mask, .. } => self.load(*buffer, *addr, *mask),
            KNode::Map(function, args) => {
                let mut values: SmallVec<[Value; 4]> = SmallVec::new();
                for &arg in args {
                    values.push(self.value(arg)?);
                }
                self.map(*function, &values)
            }
            KNode::Cast(inner, elem) => {
                let value = self.value(*inner)?;
                Ok(self.cast(value, *elem))
            }
            KNode::Reduce(position) => self.reduce(*position),
        }
    }

    fn load(&mut self, buffer: u32, addr: Expr, mask: Option<KExpr>) -> Result<Value, Refusal> {
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

    /// A value, or 0 where a mask does not hold.
    fn masked(&mut self, value: Value, mask: Option<KExpr>) -> Result<Value, Refusal> {
        let Some(mask) = mask else { return Ok(value) };
        let (mask, zero) = (self.value(mask)?, self.constant(Literal::of(self.elem(value), 0.0)));
        self.map(ScalarFn::Select, &[mask, value, zero])
    }

    /// Whether an index is that of the element that is accessed.
    fn is_element(&self, index: Expr) -> bool {
        let pitches: SmallVec<[i64; 4]> = self.site.variables.iter().map(|variable| variable.pitch).collect();
        is_sum(self.kernel, index, &pitches)
    }

    fn in_range(&mut self, index: Expr, low: i64, high: i64) -> Result<Value, Refusal> {
        let value = self.index(index)?;
        let elem = self.elem(value);
        let (low, high) = (self.constant(Literal::int(elem, low)), self.constant(Literal::int(elem, high)));
        let above = self.map(ScalarFn::Ge, &[value, low])?;
        let below = self.map(ScalarFn::Lt, &[value, high])?;
        self.map(ScalarFn::And, &[above, below])
    }

    /// An index expression: of the kind of the offsets where partial results fit, else `i64`.
    fn index(&mut self, expr: Expr) -> Result<Value, Refusal> {
        if self.shape == self.program.ty(self.site.offsets).shape && self.is_element(expr) {
            return Ok(self.site.offsets);
        }
        let elem = if self.fits_i32(expr) { Elem::I32 } else { Elem::I64 };
        self.index_as(expr, elem)
    }

    /// Whether every partial result fits 32 bits, of elements that are masked off too.
    fn fits_i32(&self, expr: Expr) -> bool {
        let indices = &self.kernel.indices;
        let linear = indices.linear(expr);
        let behind = self.shape.iter().copied().max().map_or(0, u64::from);
        let sum = linear.terms.iter().try_fold(linear.constant.unsigned_abs(), |sum, &(atom, factor)| {
            let most = match atom {
                Atom::Var(v) => indices.extents().get(v.0 as usize).map(|&n| n.unsigned_abs() + behind)?,
                Atom::Div(inner, _) => self.fits_i32(inner).then(|| indices.range(inner).1.unsigned_abs())?,
                Atom::Mod(inner, d) => self.fits_i32(inner).then_some(d.unsigned_abs())?,
            };
            sum.checked_add(most.checked_mul(factor.unsigned_abs())?)
        });
        sum.is_some_and(fits_i32)
    }

    fn index_as(&mut self, expr: Expr, elem: Elem) -> Result<Value, Refusal> {
        if let Some(&known) = self.indices.get(&(expr, elem, self.shape.len())) {
            return Ok(known);
        }
        let linear = self.kernel.indices.linear(expr).clone();
        let mut sum = None;
        for &(atom, factor) in &linear.terms {
            let mut part = self.atom(atom, elem)?;
            if factor != 1 {
                let factor = self.constant(Literal::int(elem, factor));
                part = self.map(ScalarFn::Mul, &[part, factor])?;
            }
            sum = Some(self.plus(sum, part)?);
        }
        if linear.constant != 0 || sum.is_none() {
            let constant = self.constant(Literal::int(elem, linear.constant));
            sum = Some(self.plus(sum, constant)?);
        }
        let value = sum.ok_or(BlockRefusal::Parameters)?;
        self.indices.insert((expr, elem, self.shape.len()), value);
        Ok(value)
    }

    fn plus(&mut self, sum: Option<Value>, part: Value) -> Result<Value, Refusal> {
        match sum {
            Some(sum) => self.map(ScalarFn::Add, &[sum, part]),
            None => Ok(part),
        }
    }

    fn atom(&mut self, atom: Atom, elem: Elem) -> Result<Value, Refusal> {
        let (inner, divisor, functions) = match atom {
            Atom::Var(var) => return self.variable(var, elem),
            Atom::Div(inner, d) => (inner, d, [ScalarFn::DivTrunc, ScalarFn::DivFloor]),
            Atom::Mod(inner, d) => (inner, d, [ScalarFn::RemTrunc, ScalarFn::RemFloor]),
        };
        let negative = self.kernel.indices.range(inner).0 < 0;
        let value = self.index_as(inner, elem)?;
        let divisor = self.constant(Literal::int(elem, divisor));
        self.map(functions[usize::from(negative)], &[value, divisor])
    }

    /// The index of a variable, in the shape at hand.
    fn variable(&mut self, var: Var, elem: Elem) -> Result<Value, Refusal> {
        let variable = self.site.variables.get(var.0 as usize).ok_or(BlockRefusal::Gather)?;
        let value = match variable.index {
            Index::Of(index) => self.spread(index),
            Index::Column(columns) => self.lanes(columns),
        };
        Ok(self.cast(value, elem))
    }

    /// Whether an index is in range where the site's elements are masked off, too. That of the element is read at the site's offsets.
    fn is_inside(&self, index: Expr) -> bool {
        let vars = self.kernel.indices.vars(index);
        let mut variables = self.site.variables.iter().enumerate();
        !self.is_element(index)
            && variables.all(|(at, variable)| variable.inside || vars & (1 << at.min(63)) == 0)
    }

    pub(super) fn map(&mut self, function: ScalarFn, args: &[Value]) -> Result<Value, Refusal> {
        let kinds: SmallVec<[Elem; 4]> = args.iter().map(|&a| self.elem(a)).collect();
        let elem = function.result(&kinds).ok_or(Refusal::ElementType)?;
        Ok(self.push(OpKind::Map(function), args, elem))
    }

    pub(super) fn cast(&mut self, value: Value, elem: Elem) -> Value {
        if self.elem(value) == elem {
            return value;
        }
        self.push(OpKind::Cast(elem), &[value], elem)
    }

    pub(super) fn constant(&mut self, literal: Literal) -> Value {
        self.push(OpKind::Const(literal), &[], literal.elem)
    }

    pub(super) fn elem(&self, value: Value) -> Elem {
        self.program.ty(value).elem().unwrap_or(Elem::I32)
    }

    pub(super) fn push(&mut self, kind: OpKind, args: &[Value], elem: Elem) -> Value {
        self.push_shaped(kind, args, elem, self.shape.clone())
    }
}

/// Whether an index is the row-major number of a kernel's variables.
pub(super) fn is_element(kernel: &Kernel, index: Expr) -> bool {
    is_sum(kernel, index, &row_major(&kernel.indices.extents()[..kernel.reduced.len()]))
}

/// Whether an index is the sum of a kernel's variables, each times a factor.
fn is_sum(kernel: &Kernel, index: Expr, factors: &[i64]) -> bool {
    let linear = kernel.indices.linear(index);
    let variables = kernel.indices.extents().iter().take(kernel.reduced.len());
    let own =
        |&(atom, by): &(Atom, i64)| matches!(atom, Atom::Var(v) if factors.get(v.0 as usize) == Some(&by));
    linear.constant == 0
        && linear.terms.len() == variables.filter(|&&extent| extent > 1).count()
        && linear.terms.iter().all(own)
}
