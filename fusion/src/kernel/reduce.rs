//! Reductions of a graph as expressions: the results of a tuple one by one, in terms of its combiner.

use tilefuse_block::{Elem, Literal, ReduceFn, ScalarFn};

use super::build::{Builder, Index};
use super::{KExpr, KNode, Reduction, Refusal, TupleReduction};
use crate::combiner::{Arithmetic, Combiner, Members};
use crate::graph::ValueRef;
use crate::index::Expr;

impl Builder<'_> {
    /// A result of a reduction.
    pub(super) fn reduce(
        &mut self,
        value: ValueRef,
        combine: Combiner,
        dims: &[u8],
        index: &[Expr],
    ) -> Result<KExpr, Refusal> {
        if !self.reduces.contains_key(&value.node) {
            let made = self.reduction(value, combine, dims)?;
            self.reduces.insert(value.node, made);
        }
        let made = self.reduces.get(&value.node).filter(|(row, _)| row[..] == *index);
        let result = made.and_then(|(_, results)| results.get(usize::from(value.out)).copied());
        result.ok_or(Refusal::OtherRow)
    }

    /// The row that a reduction is made for, and its results.
    fn reduction(
        &mut self,
        value: ValueRef,
        combine: Combiner,
        dims: &[u8],
    ) -> Result<(Index, Members<KExpr>), Refusal> {
        let operands = self.graph.operands(value.node);
        let shape = self.graph.ty(operands[0]).shape.clone();
        let full = self.aligned_index(&shape)?;
        let mix_order = self.is_mix_order(value);
        if !mix_order {
            self.check_reduced(&full, &shape, dims)?;
        }
        let row: Index = (0..shape.len()).filter(|&d| !dims.contains(&(d as u8))).map(|d| full[d]).collect();
        let values = operands.iter().map(|&operand| self.value(operand, &full, None));
        let mut values = values.collect::<Result<Members<KExpr>, Refusal>>()?;
        // Which elements are as large as the largest, their own type says.
        if matches!(combine, Combiner::ArgMax | Combiner::ArgMin) {
            let elem = self.graph.ty(operands[0]).dtype.elem().ok_or(Refusal::ElementType)?;
            values[0] = self.round_to(values[0], elem);
        }
        let extent = dims.iter().map(|&d| shape[usize::from(d)]).product();
        let mut rows = Rows { builder: self, mix_order, extent };
        let Ok(elements) = combine.elements(&mut rows, &values);
        let first = rows.builder.kernel.reduces.len() as u32;
        let Ok(results) = combine.reduce(&mut rows, &elements);
        if combine.arity() > 1 {
            let reduces = first..self.kernel.reduces.len() as u32;
            let tuple = TupleReduction { combine, elements, results: results.clone(), reduces };
            self.kernel.tuples.push(tuple);
        }
        Ok((row, results))
    }

    /// Whether the dimensions that are reduced here are exactly the kernel's reduced variables.
    fn check_reduced(&self, full: &[Expr], shape: &[i64], dims: &[u8]) -> Result<(), Refusal> {
        let kernel = &self.kernel;
        let reduced_vars = (0..kernel.reduced.len())
            .filter(|&v| kernel.reduced[v])
            .fold(0u64, |set, v| set | 1 << v.min(63));
        let mut size = 1;
        for (d, (&expr, &n)) in full.iter().zip(shape).enumerate() {
            let vars = self.indices.vars(expr);
            let reduced = dims.contains(&(d as u8));
            let fits = if reduced { vars & !reduced_vars == 0 } else { vars & reduced_vars == 0 };
            if !fits {
                return Err(Refusal::OtherReduction);
            }
            size *= if reduced { n } else { 1 };
        }
        let extents = kernel.reduced.iter().zip(self.indices.extents());
        let points: i64 = extents.filter(|(reduced, _)| **reduced).map(|(_, &extent)| extent).product();
        if size == points { Ok(()) } else { Err(Refusal::OtherReduction) }
    }
}

/// Expressions for each element of the rows that are reduced.
struct Rows<'r, 'b> {
    builder: &'r mut Builder<'b>,
    mix_order: bool,
    extent: i64,
}

impl Arithmetic for Rows<'_, '_> {
    type Value = KExpr;
    type Error = std::convert::Infallible;

    fn map(&mut self, function: ScalarFn, args: &[&KExpr]) -> Result<KExpr, Self::Error> {
        Ok(self.builder.intern(KNode::Map(function, args.iter().map(|&&arg| arg).collect())))
    }

    fn number(&mut self, literal: Literal) -> KExpr {
        self.builder.constant(literal)
    }

    fn known(&self, value: &KExpr) -> Option<Literal> {
        match self.builder.kernel.node(*value) {
            KNode::Const(literal) => Some(*literal),
            _ => None,
        }
    }

    fn elem(&self, value: &KExpr) -> Elem {
        self.builder.kernel.info(*value).elem
    }

    fn reduce(&mut self, combine: ReduceFn, value: &KExpr) -> Result<KExpr, Self::Error> {
        let (value, mix_order) = (*value, self.mix_order);
        let kernel = &mut self.builder.kernel;
        let level = kernel.info(value).level + u32::from(!mix_order);
        let position = kernel.reduces.len() as u32;
        kernel.reduces.push(Reduction { combine, value, level, mix_order });
        Ok(self.builder.intern(KNode::Reduce(position)))
    }

    fn extent(&self) -> i64 {
        self.extent
    }
}
