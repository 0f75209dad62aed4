//! What a call of libtorch computes, in terms of the node's operands: kernels that compute it instead are made from that and from
//! the operands' types, whatever the operator's name is.

#[cfg(test)]
pub(crate) mod tests;

use tilefuse_block::Elem;

use crate::contraction::{Contraction, accumulator};
use crate::convolution::{ConvArgs, ConvDims};
use crate::types::{Dims, TensorType, broadcast_shape};

/// What a call computes.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "calls are in boxes, and few")]
pub(crate) enum LibraryForm {
    /// A contraction, and the maps behind it.
    Contraction(ContractionForm),
    /// Attention.
    Attention(AttentionForm),
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

/// Rows `softmax(scale query keyᵀ + mask) value` for each member of a batch, which is broadcast, heads among them; 0 where no key
/// counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionForm {
    /// Position of the queries, `[.., queries, width]`.
    pub(crate) query: u16,
    /// Position of the keys, `[.., keys, width]`.
    pub(crate) key: u16,
    /// Position of the values, `[.., keys, depth]`.
    pub(crate) value: u16,
    /// The factor of products.
    pub(crate) scale: f64,
    /// Whether a query sees only the keys up to its own number.
    pub(crate) causal: bool,
    /// Position of the mask, broadcast to `[.., queries, keys]`, and what it does with scores.
    pub(crate) mask: Option<(u16, MaskForm)>,
    /// So many heads of queries in a row have the same keys and values, of which there is a head for all of them, or one for each
    /// with the same elements.
    pub(crate) shared: i64,
    /// Whether the result of a query whose scores are all -inf is 0, as libtorch's operator has it, and not NaN, as a softmax that a model
    /// writes out.
    pub(crate) safe: bool,
}

/// What a mask does with scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskForm {
    /// True keeps a score, whatever it is elsewhere, as a model writes it out.
    Keeps,
    /// True keeps a score, false adds -inf to it, as libtorch's operator does.
    Opens,
    /// A number is added.
    Added,
}

/// Whether attention of this scale is computed right by libtorch's kernels: these take the maximum of scores before they are
/// scaled, and hide keys by -inf before that, too, so that a factor of 0 or below makes NaN of what is hidden.
pub(crate) fn is_scale(scale: f64) -> bool {
    scale.is_finite() && scale > 0.0
}

/// Whether attention of this scale that a model calls means what it is lowered to: where keys are hidden, libtorch makes something
/// else of a factor of 0 or below.
pub(crate) fn is_factor(scale: f64, hides: bool) -> bool {
    scale.is_finite() && (!hides || is_scale(scale))
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
            LibraryForm::Attention(form) => form.check(operands, out),
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
        let factors = [Some(self.alpha), self.addend.map(|(_, beta)| beta)];
        // libtorch does not read what it would multiply by 0.
        ensure(factors.iter().flatten().all(|&factor| factor != 0.0), "a factor of 0")?;
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
        broadcasts(addend, &out.shape)
    }
}

impl AttentionForm {
    fn check(&self, operands: &[&TensorType], out: &TensorType) -> Check {
        let all = [self.query, self.key, self.value].map(|position| at(operands, position));
        let [query, key, value] = [all[0]?, all[1]?, all[2]?];
        let alike = |ty: &TensorType| ty.dtype == out.dtype && ty.device == out.device;
        let float = out.dtype.elem().is_some_and(Elem::is_float);
        ensure(float && [query, key, value].into_iter().all(alike), "the form's operands are not alike")?;
        let shape = self.shape([query, key, value].map(|ty| &ty.shape[..]));
        ensure(shape.as_ref() == Some(&out.shape), "the form does not give the result's shape")?;
        ensure(
            is_factor(self.scale, self.causal || self.mask.is_some()),
            "a factor of 0 or below beside hidden keys",
        )?;
        let Some((position, form)) = self.mask else { return Ok(()) };
        let mask = at(operands, position)?;
        let elem = mask.dtype.elem().is_some_and(|elem| match form {
            MaskForm::Keeps | MaskForm::Opens => elem == Elem::Bool,
            MaskForm::Added => elem.is_float(),
        });
        let keys = key.shape.iter().nth_back(1).copied();
        let scores: Dims = out.shape[..out.rank() - 1].iter().copied().chain(keys).collect();
        ensure(elem && broadcasts(&mask.shape, &scores), "the mask does not fit scores")
    }

    /// The shape of the result of queries, keys and values of these shapes.
    fn shape(&self, [query, key, value]: [&[i64]; 3]) -> Option<Dims> {
        let (many, &[queries, width]) = query.split_last_chunk::<2>()?;
        let (keys_of, &[keys, inner]) = key.split_last_chunk::<2>()?;
        let (values_of, &[rows, depth]) = value.split_last_chunk::<2>()?;
        let heads = many.last().copied();
        // Heads that are stored once count as often as they are shared.
        let own = |batch: &[i64]| -> Option<Dims> {
            let mut own = Dims::from_slice(batch);
            if self.shared != 1 {
                let few = own.last_mut()?;
                *few = if Some(*few) == heads { *few } else { few.checked_mul(self.shared)? };
            }
            (self.shared == 1 || own.last().copied() == heads).then_some(own)
        };
        let divided = self.shared == 1 || self.shared > 1 && heads.is_some_and(|n| n % self.shared == 0);
        let batch = broadcast_shape(&[many, &own(keys_of)?, &own(values_of)?]).filter(|_| divided)?;
        let fits = width == inner && keys == rows;
        fits.then(|| batch.iter().chain(&[queries, depth]).copied().collect())
    }
}

/// Whether a shape broadcasts to another.
fn broadcasts(from: &[i64], to: &[i64]) -> bool {
    broadcast_shape(&[from, to]).as_deref() == Some(to)
}
