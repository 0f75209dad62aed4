//! What a call of libtorch computes, in terms of the node's operands: kernels that compute it instead are made from that and from
//! the operands' types, whatever the operator's name is.

#[cfg(test)]
pub(crate) mod tests;

use crate::convolution::{ConvArgs, ConvDims};
use crate::graph::{Contraction, accumulator};
use crate::types::{Dims, TensorType};

/// What a call computes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LibraryForm {
    /// A contraction, and the maps behind it.
    Contraction(ContractionForm),
}

/// `alpha contract(window(lhs), rhs) + beta addend`, rounded to the result's type: a contraction of operands of a node, and the
/// maps behind it that a call of libtorch computes as well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContractionForm {
    /// The dimensions. Where one operand of a pair of the batch has size 1, it is repeated.
    pub(crate) pairs: Contraction,
    /// The windows of the left operand, with the zeros around it, where it is contracted by these. The result is in the order of
    /// images then.
    pub(crate) window: Option<ConvArgs>,
    /// Position of the left operand.
    pub(crate) lhs: u16,
    /// Position of the right operand.
    pub(crate) rhs: u16,
    /// Factor of the sums.
    pub(crate) alpha: f64,
    /// Position of what is added, and its factor: broadcast to the result, or one number for each filter.
    pub(crate) addend: Option<(u16, f64)>,
}

type Check = Result<(), &'static str>;

fn ensure(holds: bool, what: &'static str) -> Check {
    if holds { Ok(()) } else { Err(what) }
}

/// The operand at a position.
fn at<'t>(operands: &[&'t TensorType], position: u16) -> Result<&'t TensorType, &'static str> {
    operands.get(usize::from(position)).copied().ok_or("the form names an operand that does not exist")
}

impl LibraryForm {
    /// Whether operands and results of these types are those of the form.
    pub(crate) fn check(&self, operands: &[&TensorType], outs: &[TensorType]) -> Check {
        let [out] = outs else { return Err("a form of a call that has not one result") };
        match self {
            LibraryForm::Contraction(form) => form.check(operands, out),
        }
    }
}

impl ContractionForm {
    fn check(&self, operands: &[&TensorType], out: &TensorType) -> Check {
        let (lhs, rhs) = (at(operands, self.lhs)?, at(operands, self.rhs)?);
        let addend = self.addend.map(|(position, _)| at(operands, position)).transpose()?;
        let alike = |ty: &TensorType| ty.dtype == lhs.dtype && ty.device == out.device;
        ensure(alike(lhs) && alike(rhs) && addend.is_none_or(alike), "the form's operands are not alike")?;
        let sums = lhs.dtype.elem().and_then(accumulator);
        let typed = out.dtype == lhs.dtype || sums.is_some() && out.dtype.elem() == sums;
        ensure(typed, "the result is neither of the operands' type nor of the one that sums are held in")?;
        let shape = match &self.window {
            Some(args) => self.image(args, &lhs.shape, &rhs.shape),
            None => self.product(&lhs.shape, &rhs.shape),
        };
        ensure(shape.as_ref() == Some(&out.shape), "the form does not give the result's shape")?;
        ensure(
            addend.is_none_or(|ty| self.adds(&ty.shape, out)),
            "what the form adds does not fit the result",
        )
    }

    /// The shape of products of operands, whose batches are broadcast.
    fn product(&self, lhs: &[i64], rhs: &[i64]) -> Option<Dims> {
        let (mut lhs, mut rhs) = (Dims::from_slice(lhs), Dims::from_slice(rhs));
        for &(l, r) in &self.pairs.batch {
            match (lhs.get_mut(usize::from(l))?, rhs.get_mut(usize::from(r))?) {
                (left, right) if *left == 1 => *left = *right,
                (left, right) if *right == 1 => *right = *left,
                _ => {}
            }
        }
        self.pairs.shape(&lhs, &rhs)
    }

    /// The shape of a convolution's result.
    fn image(&self, args: &ConvArgs, images: &[i64], weight: &[i64]) -> Option<Dims> {
        let axes = weight.len().checked_sub(2)?;
        let dims = ConvDims {
            lead: images.len().checked_sub(axes + 1).filter(|&lead| lead <= 1)?,
            grouped: !self.pairs.batch.is_empty(),
            axes,
            transposed: args.transposed,
        };
        let fits = self.pairs == dims.pairs() && (dims.grouped || args.groups == 1);
        args.result(images, weight).filter(|_| fits)
    }

    fn adds(&self, addend: &[i64], out: &TensorType) -> bool {
        if self.window.is_some() {
            let axes = self.window.as_ref().map_or(0, |args| args.stride.len());
            return matches!(addend, &[n] if out.shape.iter().nth_back(axes) == Some(&n));
        }
        let broadcast = |(a, out): (&i64, &i64)| a == out || *a == 1;
        addend.len() <= out.rank() && addend.iter().rev().zip(out.shape.iter().rev()).all(broadcast)
    }
}
