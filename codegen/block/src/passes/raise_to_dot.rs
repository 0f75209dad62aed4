//! Recognises matrix products: the sum of products of two matrices that meet along the summed axis alone. The tile of
//! all products, which nothing else needs, disappears.
//!
//! ```text
//! before                                        after
//!   %x = expand_dims %a axis 1                    %zero = const 0.0 : tile<32x64xf32>
//!   %xs = broadcast %x [32, 64, 16]               %t = permute %b [1, 0]
//!   %y = expand_dims %b axis 0                    %sum = dot %a, %t, %zero ieee
//!   %ys = broadcast %y [32, 64, 16]
//!   %products = map mul %xs, %ys
//!   %sum = reduce sum %products axis 2
//! ```
//!
//! Products of `f32` are then not rounded before they are added; those of `f64` and of integers are the same. Factors
//! that were widened from 16-bit floats to `f32`, or from 8-bit integers to `i32`, are multiplied as they were before
//! that, which is exact.

use smallvec::SmallVec;

use crate::program::{DotPrecision, Loc, Op, OpKind, Program, Region, Value, ValueData, locate};
use crate::scalar_fn::{ReduceFn, ScalarFn};
use crate::types::{Elem, Literal, Type};

/// Extents that are worth a product.
const MIN_EXTENT: u32 = 16;

/// Movements between a conversion and the product that are looked through.
const MAX_MOVES: usize = 8;

/// Makes products of sums of products.
pub fn raise_to_dot(program: &mut Program) {
    let (count, uses) = (program.values.len(), program.uses());
    let mut cx = Cx { values: &mut program.values, definitions: vec![None; count], uses, out: Vec::new() };
    cx.region(&mut program.body);
}

struct Cx<'a> {
    values: &'a mut Vec<ValueData>,
    /// The defining operation of each value, where that has no regions.
    definitions: Vec<Option<Op>>,
    uses: Vec<u32>,
    /// The operations of the region so far.
    out: Vec<Op>,
}

/// A matrix that is repeated along one axis of three.
struct Factor {
    tile: Value,
    /// The axis that it is repeated along.
    repeated: usize,
}

impl Cx<'_> {
    fn region(&mut self, region: &mut Region) {
        let ops = std::mem::take(&mut region.ops);
        let around = std::mem::take(&mut self.out);
        for mut op in ops {
            op.regions.iter_mut().for_each(|inner| self.region(inner));
            let (from, loc) = (self.out.len(), op.loc);
            if let OpKind::Reduce { combine: ReduceFn::Sum, axis, masked: false } = op.kind {
                self.product(&mut op, axis.into());
            }
            self.push(op);
            locate(&mut self.out[from..], loc);
        }
        region.ops = std::mem::replace(&mut self.out, around);
    }

    fn push(&mut self, op: Op) {
        if let (true, &[result]) = (op.regions.is_empty(), op.results.as_slice()) {
            self.definitions[result.index()] = Some(op.clone());
        }
        self.out.push(op);
    }

    /// Makes a product of a sum along an axis, if it is one.
    fn product(&mut self, op: &mut Op, axis: usize) -> Option<()> {
        let (&[products], &[result]) = (op.args.as_slice(), op.results.as_slice()) else { return None };
        let shape = self.values[products.index()].ty.shape.clone();
        let definition = self.definitions[products.index()].as_ref()?;
        let (OpKind::Map(ScalarFn::Mul), &[x, y]) = (&definition.kind, definition.args.as_slice()) else {
            return None;
        };
        if shape.len() != 3 || shape.iter().any(|&d| d < MIN_EXTENT) || self.uses[products.index()] != 1 {
            return None;
        }
        let (x, y) = (self.factor(x)?, self.factor(y)?);
        let (rows, cols) = if x.repeated > y.repeated { (x, y) } else { (y, x) };
        if rows.repeated == cols.repeated || rows.repeated == axis || cols.repeated == axis {
            return None;
        }
        let ty = self.values[result.index()].ty.clone();
        let [left, right] = self.operands(&rows, &cols, ty.elem()?)?;
        let left = self.matrix(left, &shape, [cols.repeated, axis]);
        let right = self.matrix(right, &shape, [axis, rows.repeated]);
        let zero = self.emit(OpKind::Const(Literal::of(ty.elem()?, 0.0)), &[], ty);
        op.kind = OpKind::Dot { precision: DotPrecision::Ieee };
        op.args = SmallVec::from_slice(&[left, right, zero]);
        Some(())
    }

    /// The matrix that a value of rank 3 repeats along one axis.
    fn factor(&self, value: Value) -> Option<Factor> {
        let (OpKind::Broadcast(to), tile) = self.defined(value)? else { return None };
        let from = &self.values[tile.index()].ty.shape;
        let mut repeated = from.iter().zip(to).enumerate().filter(|(_, (a, b))| a != b).map(|(axis, _)| axis);
        let (axis, None) = (repeated.next()?, repeated.next()) else { return None };
        Some(Factor { tile, repeated: axis })
    }

    /// The kind that a tile was widened from, before it got its shape or after that.
    fn narrow(&self, mut tile: Value) -> Option<Elem> {
        for _ in 0..MAX_MOVES {
            match self.defined(tile)? {
                (OpKind::Cast(_), from) => return self.values[from.index()].ty.elem(),
                (OpKind::Reshape(_) | OpKind::ExpandDims(_) | OpKind::Permute(_), from) => tile = from,
                _ => return None,
            }
        }
        None
    }

    /// The tile as it would be without having been widened.
    fn narrowed(&mut self, tile: Value) -> Option<Value> {
        let (kind, from) = self.defined(tile)?;
        if let OpKind::Cast(_) = kind {
            return Some(from);
        }
        let kind = kind.clone();
        let from = self.narrowed(from)?;
        let elem = self.values[from.index()].ty.elem()?;
        let ty = self.values[tile.index()].ty.with_elem(elem);
        Some(self.emit(kind, &[from], ty))
    }

    /// The operation that defines a value, and its one operand.
    fn defined(&self, value: Value) -> Option<(&OpKind, Value)> {
        let definition = self.definitions[value.index()].as_ref()?;
        match definition.args.as_slice() {
            &[arg] => Some((&definition.kind, arg)),
            _ => None,
        }
    }

    /// The factors in a kind of which products are exact in the kind of the sum.
    fn operands(&mut self, rows: &Factor, cols: &Factor, sum: Elem) -> Option<[Value; 2]> {
        let exact = |from: Elem| match sum {
            Elem::F32 => matches!(from, Elem::F16 | Elem::Bf16),
            Elem::I32 => matches!(from, Elem::I8 | Elem::U8),
            _ => false,
        };
        match (self.narrow(rows.tile), self.narrow(cols.tile)) {
            (Some(a), Some(b)) if a == b && exact(a) => {
                Some([self.narrowed(rows.tile)?, self.narrowed(cols.tile)?])
            }
            _ => matches!(sum, Elem::F32 | Elem::F64).then_some([rows.tile, cols.tile]),
        }
    }

    /// A factor as a matrix of these two of three axes.
    fn matrix(&mut self, tile: Value, shape: &[u32], [first, second]: [usize; 2]) -> Value {
        let ty = self.values[tile.index()].ty.clone();
        let lies = if first < second { [first, second] } else { [second, first] };
        let ty = ty.with_shape(&lies.map(|axis| shape[axis]));
        let flat = self.emit(OpKind::Reshape(ty.shape.clone()), &[tile], ty.clone());
        if first < second {
            return flat;
        }
        let turned = ty.with_shape(&[shape[first], shape[second]]);
        self.emit(OpKind::Permute(SmallVec::from_slice(&[1, 0])), &[flat], turned)
    }

    fn emit(&mut self, kind: OpKind, args: &[Value], ty: Type) -> Value {
        let result = Value(self.values.len() as u32);
        self.values.push(ValueData { ty, name: None });
        self.definitions.push(None);
        self.uses.push(1);
        let results = SmallVec::from_slice(&[result]);
        self.push(Op {
            kind,
            args: SmallVec::from_slice(args),
            results,
            regions: Vec::new(),
            loc: Loc::UNKNOWN,
        });
        result
    }
}
