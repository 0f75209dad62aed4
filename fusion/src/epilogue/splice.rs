//! Expressions of a fused group as operations at an access of a program that exists.

use std::ops::Range;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{CacheHint, Elem, Literal, Op, OpKind, Program, ScalarFn, Shape, Value};

use crate::block_kernel::{Block, Coordinate};
use crate::index::{Atom, Expr};
use crate::kernel::{BlockRefusal, KExpr, KNode, Kernel, Refusal, Store};
use crate::types::fits_i32;

/// The access at which expressions are computed.
#[derive(Clone, Debug)]
pub(super) struct Site<'a> {
    /// Elements of the tensor that is accessed.
    pub(super) offsets: Value,
    /// Which of them count.
    pub(super) mask: Option<Value>,
    /// The indices that make up the offsets, outermost first, where these are known.
    pub(super) axes: &'a [Coordinate],
    /// What is stored there, and the buffers of the expressions' kernel that it stands for.
    pub(super) stored: SmallVec<[(u32, Value); 2]>,
    /// What is stored, where the expressions are of a kernel over its rows.
    pub(super) block: Option<Block>,
}

/// Writes operations that compute expressions of a kernel at a site: over one variable, the element, or over the rows of a block.
pub(super) struct Splice<'a> {
    pub(super) program: &'a mut Program,
    pub(super) out: &'a mut Vec<Op>,
    pub(super) kernel: &'a Kernel,
    /// The pointer to each buffer of the kernel.
    pointers: &'a [Option<Value>],
    pub(super) site: Site<'a>,
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
        site: Site<'a>,
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
            return match (self.site.block, mask) {
                (None, None) if self.is_element(addr) => Ok(stored),
                (Some(block), mask) if self.is_block_element(block, addr) => self.masked(stored, mask),
                _ => Err(BlockRefusal::ResultOrder.into()),
            };
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

    /// Whether an index is that of the element itself.
    fn is_element(&self, index: Expr) -> bool {
        is_element(self.kernel, index)
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
        if self.site.block.is_none() && self.is_element(expr) {
            return Ok(self.site.offsets);
        }
        let elem = if self.fits_i32(expr) { Elem::I32 } else { Elem::I64 };
        self.index_as(expr, elem)
    }

    fn fits_i32(&self, expr: Expr) -> bool {
        let indices = &self.kernel.indices;
        let linear = indices.linear(expr);
        let sum = linear.terms.iter().try_fold(linear.constant.unsigned_abs(), |sum, &(atom, factor)| {
            let most = match atom {
                Atom::Var(v) => indices.extents().get(v.0 as usize).map(|&n| n.unsigned_abs())?,
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
        if let Some(axes) = self.axes_of(atom).filter(|_| !matches!(atom, Atom::Var(_))) {
            return self.number(axes, elem);
        }
        let (inner, divisor, functions) = match atom {
            Atom::Var(var) => {
                return Ok(match self.site.block {
                    Some(block) => self.row_variable(block, var, elem),
                    None => self.cast(self.site.offsets, elem),
                });
            }
            Atom::Div(inner, d) => (inner, d, [ScalarFn::DivTrunc, ScalarFn::DivFloor]),
            Atom::Mod(inner, d) => (inner, d, [ScalarFn::RemTrunc, ScalarFn::RemFloor]),
        };
        let negative = self.kernel.indices.range(inner).0 < 0;
        let value = self.index_as(inner, elem)?;
        let divisor = self.constant(Literal::int(elem, divisor));
        self.map(functions[usize::from(negative)], &[value, divisor])
    }

    /// The row-major number of indices along axes.
    fn number(&mut self, axes: Range<usize>, elem: Elem) -> Result<Value, Refusal> {
        let site = self.site.axes;
        let mut sum = None;
        let mut pitch = 1;
        for axis in site.get(axes).unwrap_or_default().iter().rev() {
            if axis.extent > 1 {
                let mut part = self.cast(axis.index, elem);
                if pitch != 1 {
                    let factor = self.constant(Literal::int(elem, pitch));
                    part = self.map(ScalarFn::Mul, &[part, factor])?;
                }
                sum = Some(self.plus(sum, part)?);
            }
            pitch *= axis.extent as i64;
        }
        match sum {
            Some(sum) => Ok(sum),
            None => Ok(self.constant(Literal::int(elem, 0))),
        }
    }

    /// The axes along which an atom is the row-major number of the site's elements, if there are such.
    fn axes_of(&self, atom: Atom) -> Option<Range<usize>> {
        let axes = self.site.axes;
        // `(number / below) % count`.
        let (inner, count) = match atom {
            Atom::Mod(inner, count) => (inner, Some(count)),
            Atom::Div(..) | Atom::Var(_) => return self.quotient(atom).map(|end| 0..end),
        };
        let linear = self.kernel.indices.linear(inner);
        let &[(only, 1)] = &linear.terms[..] else { return None };
        if linear.constant != 0 {
            return None;
        }
        let end = self.quotient(only)?;
        let extent = |start: usize| axes[start..end].iter().map(|a| a.extent as i64).product::<i64>();
        let start = (0..end).rev().find(|&start| Some(extent(start)) == count)?;
        Some(start..end)
    }

    /// The end of the axes along which an atom, the element or a quotient of it, is the row-major number.
    fn quotient(&self, atom: Atom) -> Option<usize> {
        let axes = self.site.axes;
        let below = match atom {
            Atom::Var(_) => 1,
            Atom::Div(inner, divisor) => {
                let linear = self.kernel.indices.linear(inner);
                let plain = linear.constant == 0 && matches!(linear.terms[..], [(Atom::Var(_), 1)]);
                if !plain {
                    return None;
                }
                divisor
            }
            Atom::Mod(..) => return None,
        };
        let extent = |end: &usize| axes[*end..].iter().map(|a| a.extent as i64).product::<i64>();
        (1..=axes.len()).rev().find(|end| extent(end) == below)
    }

    /// Whether an index is in range where the site's elements are masked off, too.
    fn is_inside(&self, index: Expr) -> bool {
        let linear = self.kernel.indices.linear(index);
        let inside = |atom: Atom| {
            // The element itself is read at the site's offsets.
            let axes = self.axes_of(atom).filter(|_| !matches!(atom, Atom::Var(_)));
            let axes = axes.and_then(|axes| self.site.axes.get(axes));
            axes.is_some_and(|axes| axes.iter().all(|a| a.inside || a.extent == 1))
        };
        !self.site.axes.is_empty() && linear.terms.iter().all(|&(atom, _)| inside(atom))
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

/// Whether an index of a kernel over one variable is that variable.
pub(super) fn is_element(kernel: &Kernel, index: Expr) -> bool {
    let linear = kernel.indices.linear(index);
    match linear.terms[..] {
        [(Atom::Var(_), 1)] => linear.constant == 0,
        [] => linear.constant == 0 && kernel.indices.extents().first() == Some(&1),
        _ => false,
    }
}
