//! Whether results are those of eager, as far as rounding allows.

use tch::{Kind, Tensor};

/// How a result differs from eager's.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Difference {
    /// In type, shape, strides or bits that must agree.
    Plain(String),
    /// In places of NaN and infinities; eager may be the one that is wrong.
    Specials,
    /// In numbers, by more than libtorch's default tolerance; rounding may explain it.
    Rounding(String),
}

/// How `ours` differs from eager's result; `exact` asks for equal bits.
pub(super) fn difference(eager: &Tensor, ours: &Tensor, exact: bool) -> Option<Difference> {
    if let Some(text) = form(eager, ours) {
        return Some(Difference::Plain(text));
    }
    if eager.numel() == 0 {
        return None;
    }
    if exact || !eager.is_floating_point() {
        return unequal(eager, ours).map(Difference::Plain);
    }
    let (e, o) = (eager.to_kind(Kind::Double), ours.to_kind(Kind::Double));
    if !same_specials(&e, &o) {
        return Some(Difference::Specials);
    }
    let (e, o) = (finite(&e), finite(&o));
    let (relative, absolute, _) = tolerance(eager.kind());
    let gap = (&e - &o).abs();
    let excess = largest(&(&gap - (e.abs() * relative + absolute)));
    (excess > 0.0).then(|| Difference::Rounding(format!("largest difference {:.3e}", largest(&gap))))
}

fn form(eager: &Tensor, ours: &Tensor) -> Option<String> {
    if eager.kind() != ours.kind() {
        return Some(format!("{:?} instead of {:?}", ours.kind(), eager.kind()));
    }
    if eager.size() != ours.size() {
        return Some(format!("shape {:?} instead of {:?}", ours.size(), eager.size()));
    }
    let (sizes, x, y) = (eager.size(), eager.stride(), ours.stride());
    let same = eager.numel() == 0 || (0..sizes.len()).all(|d| sizes[d] == 1 || x[d] == y[d]);
    (!same).then(|| format!("strides {y:?} instead of {x:?}"))
}

/// NaN equals NaN, and zeros of either sign are equal.
fn unequal(eager: &Tensor, ours: &Tensor) -> Option<String> {
    let mut differ = eager.ne_tensor(ours);
    if eager.is_floating_point() {
        differ = differ.logical_and(&eager.isnan().logical_and(&ours.isnan()).logical_not());
    }
    let count = differ.sum(Kind::Int64).int64_value(&[]);
    (count > 0).then(|| {
        let at = differ.flatten(0, -1).to_kind(Kind::Uint8).argmax(0, false).int64_value(&[]);
        let value = |t: &Tensor| t.flatten(0, -1).select(0, at).to_kind(Kind::Double).double_value(&[]);
        let (got, want) = (value(ours), value(eager));
        format!(
            "{count} of {} exact elements differ, the first at {at}: {got:?} instead of {want:?}",
            eager.numel()
        )
    })
}

/// The errors of eager and of ours against `f64`, relative to the larger of what eager's tolerance allows.
pub(super) fn errors(eager: &Tensor, ours: &Tensor, exact: &Tensor) -> Option<(f64, f64)> {
    if exact.size() != eager.size() || eager.numel() == 0 {
        return None;
    }
    let exact = finite(&exact.to_kind(Kind::Double));
    let error = |t: &Tensor| largest(&(finite(&t.to_kind(Kind::Double)) - &exact).abs());
    Some((error(eager), error(ours)))
}

/// How many times eager's own error is allowed.
pub(super) fn factor(kind: Kind) -> f64 {
    tolerance(kind).2
}

/// Whether NaN and infinities are where an `f64` run has them, once its results are rounded to our type.
pub(super) fn specials_of(ours: &Tensor, exact: &Tensor) -> bool {
    let double = |t: &Tensor| t.to_kind(Kind::Double);
    ours.size() == exact.size() && same_specials(&double(ours), &double(&exact.to_kind(ours.kind())))
}

fn same_specials(a: &Tensor, b: &Tensor) -> bool {
    let same = |x: Tensor, y: Tensor| x.ne_tensor(&y).any().int64_value(&[]) == 0;
    let infinite = |t: &Tensor| (t.sign() * t.isinf()).nan_to_num(0.0, 0.0, 0.0);
    same(a.isnan(), b.isnan()) && same(infinite(a), infinite(b))
}

fn finite(t: &Tensor) -> Tensor {
    t.nan_to_num(0.0, 0.0, 0.0)
}

fn largest(t: &Tensor) -> f64 {
    t.max().double_value(&[])
}

/// libtorch's default relative and absolute tolerances, and how many times eager's own error is allowed.
fn tolerance(kind: Kind) -> (f64, f64, f64) {
    match kind {
        Kind::Double => (1e-7, 1e-7, 2.0),
        Kind::Half => (1e-3, 1e-5, 3.0),
        Kind::BFloat16 => (1.6e-2, 1e-5, 3.0),
        _ => (1.3e-6, 1e-5, 2.0),
    }
}
