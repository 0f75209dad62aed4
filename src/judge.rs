//! Whether results are eager's, as far as rounding allows.
//!
//! The same everywhere results are compared: type, shape and strides agree; integers and what only moves data agree in
//! their bits; NaN and infinities lie where eager has them, or where an `f64` run of the model has them. All other
//! numbers are within libtorch's default tolerance, or their largest error against the `f64` run is at most a few times
//! eager's own.

use tch::{Kind, Tensor};

#[cfg(test)]
mod tests;

/// How far results of one type may lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Allowed difference from eager, relative to eager's value: libtorch's default.
    pub relative: f64,
    /// Allowed difference from eager besides: libtorch's default.
    pub absolute: f64,
    /// How many times eager's own error against `f64` is allowed.
    pub factor: f64,
    /// The largest error against `f64`, relative to the exact value or to 1, that can still be one of rounding.
    pub rounding: f64,
}

impl Tolerance {
    /// The tolerance for results of a type.
    pub fn of(kind: Kind) -> Tolerance {
        let (relative, absolute, factor, rounding) = match kind {
            Kind::Double => (1e-7, 1e-7, 2.0, 1e-3 * 2f64.powi(-29)),
            Kind::Half => (1e-3, 1e-5, 3.0, 3e-2),
            Kind::BFloat16 => (1.6e-2, 1e-5, 3.0, 3e-2),
            _ => (1.3e-6, 1e-5, 2.0, 1e-3),
        };
        Tolerance { relative, absolute, factor, rounding }
    }
}

/// How a result differs from eager's.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// In type, shape, strides or bits that must agree.
    Plain(String),
    /// In places of NaN and infinities.
    Specials,
    /// In numbers, by more than is allowed.
    Numbers(Measured),
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Difference::Plain(text) => f.write_str(text),
            Difference::Specials => f.write_str("NaN or infinities in other places"),
            Difference::Numbers(m) => write!(f, "largest difference {:.3e} is over the tolerance", m.max_abs),
        }
    }
}

/// Compares a result with eager's. `bits` asks for equal bits; `exact` is the result of an `f64` run.
pub fn compare(
    eager: &Tensor,
    ours: &Tensor,
    bits: bool,
    exact: Option<&Tensor>,
) -> Result<Measured, Difference> {
    if let Some(text) = form(eager, ours) {
        return Err(Difference::Plain(text));
    }
    if bits || !eager.is_floating_point() {
        return unequal(eager, ours).map_or(Ok(Measured::same(eager.kind())), |d| Err(Difference::Plain(d)));
    }
    match measure(eager, ours, exact) {
        None => Err(Difference::Specials),
        Some(m) if m.equal() => Ok(m),
        Some(m) => Err(Difference::Numbers(m)),
    }
}

/// How type, shape or strides differ.
pub fn form(eager: &Tensor, ours: &Tensor) -> Option<String> {
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

/// How many elements differ, and the first of them. NaN equals NaN, and zeros of either sign are equal.
fn unequal(eager: &Tensor, ours: &Tensor) -> Option<String> {
    let mut differ = eager.ne_tensor(ours);
    if eager.is_floating_point() {
        differ = differ.logical_and(&eager.isnan().logical_and(&ours.isnan()).logical_not());
    }
    let count = differ.sum(Kind::Int64).int64_value(&[]);
    (count > 0).then(|| {
        let at = differ.flatten(0, -1).to_kind(Kind::Uint8).argmax(0, false).int64_value(&[]);
        let value = |t: &Tensor| double(&t.flatten(0, -1).select(0, at)).double_value(&[]);
        let (got, want) = (value(ours), value(eager));
        format!(
            "{count} of {} exact elements differ, the first at {at}: {got:?} instead of {want:?}",
            eager.numel()
        )
    })
}

/// How far two results of one floating-point type and shape lie apart, over the elements that are finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Largest difference relative to eager's value.
    pub max_rel: f64,
    /// Whether all elements are within libtorch's default tolerance.
    pub close: bool,
    /// Errors against `f64`, where a run in it is known.
    pub errors: Option<Errors>,
    tolerance: Tolerance,
}

/// Largest errors against an `f64` run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Eager's.
    pub eager: f64,
    /// Ours; infinite where we differ from eager in an element that `f64` has no finite value for.
    pub ours: f64,
    /// Ours, relative to the exact value or to 1, whichever is larger.
    pub relative: f64,
}

impl Measured {
    /// Of equal results.
    fn same(kind: Kind) -> Measured {
        Measured { max_abs: 0.0, max_rel: 0.0, close: true, errors: None, tolerance: Tolerance::of(kind) }
    }

    /// Whether the results are equal: close, or at most a few times as far from `f64` as eager.
    pub fn equal(&self) -> bool {
        self.close || self.errors.is_some_and(|e| e.ours <= self.tolerance.factor * e.eager)
    }

    /// Whether rounding to a type can be all that our error against `f64` consists of: it is small relative to the exact
    /// values.
    pub fn may_be_rounding(&self, kind: Kind) -> bool {
        self.errors.is_some_and(|e| e.relative <= Tolerance::of(kind).rounding)
    }
}

/// Measures two results of one floating-point type and shape. `None` if NaN and infinities are neither where eager has
/// them nor where `exact`, the result of an `f64` run, has them once it is rounded to the type.
pub fn measure(eager: &Tensor, ours: &Tensor, exact: Option<&Tensor>) -> Option<Measured> {
    let tolerance = Tolerance::of(eager.kind());
    let exact = exact.filter(|x| x.size() == eager.size());
    let (e, o) = (expected(eager, ours, exact)?, double(ours));
    let finite = e.isfinite().logical_and(&o.isfinite());
    let gap = (&e - &o).abs().masked_fill(&finite.logical_not(), 0.0);
    let far = gap.gt_tensor(&(e.abs() * tolerance.relative + tolerance.absolute));
    let relative = (&gap / e.abs().clamp_min(f64::from(f32::MIN_POSITIVE))).nan_to_num(0.0, 0.0, 0.0);
    Some(Measured {
        max_abs: largest(&gap),
        max_rel: largest(&relative),
        close: far.any().int64_value(&[]) == 0,
        errors: exact.map(|exact| errors(&e, &o, &double(exact), &finite, &far)),
        tolerance,
    })
}

/// Eager's result in `f64`. In an element where only the `f64` run has NaN or an infinity as we do, or is finite as we are,
/// its value stands in for eager's, so that ours is judged there too.
fn expected(eager: &Tensor, ours: &Tensor, exact: Option<&Tensor>) -> Option<Tensor> {
    let (e, o) = (double(eager), double(ours));
    let class = specials(&o);
    let differs = specials(&e).ne_tensor(&class);
    if differs.any().int64_value(&[]) == 0 {
        return Some(e);
    }
    let rounded = double(&exact?.to_kind(eager.kind()));
    let explained = specials(&rounded).eq_tensor(&class).logical_or(&differs.logical_not());
    (explained.all().int64_value(&[]) != 0).then(|| rounded.where_self(&differs, &e))
}

/// Where the `f64` run is not finite but eager is, eager's value stands in for it.
fn errors(eager: &Tensor, ours: &Tensor, exact: &Tensor, finite: &Tensor, far: &Tensor) -> Errors {
    let known = exact.isfinite();
    let judged = finite.logical_and(&known);
    let error = |t: &Tensor| (t - exact).abs().masked_fill(&judged.logical_not(), 0.0);
    let alone = far.logical_and(&known.logical_not());
    let ours = (ours - eager).abs().where_self(&alone, &error(ours));
    let scale = exact.nan_to_num(0.0, 0.0, 0.0).abs().clamp_min(1.0);
    Errors { eager: largest(&error(eager)), ours: largest(&ours), relative: largest(&(&ours / scale)) }
}

/// 2 for NaN, 1 and -1 for infinities, 0 for a finite element.
fn specials(t: &Tensor) -> Tensor {
    (t.sign() * t.isinf()).masked_fill(&t.isnan(), 2.0)
}

fn double(t: &Tensor) -> Tensor {
    t.to_kind(Kind::Double)
}

/// The largest element; 0 where there is none.
fn largest(t: &Tensor) -> f64 {
    if t.numel() == 0 { 0.0 } else { t.max().double_value(&[]) }
}

/// The largest difference of two results, relative to the largest element that is finite; infinite where they differ in NaN or
/// infinities, in shape or type, or in what is no floating-point number.
pub(crate) fn difference_to_largest(eager: &Tensor, ours: &Tensor) -> f64 {
    if eager.kind() != ours.kind() || eager.size() != ours.size() {
        return f64::INFINITY;
    }
    if !eager.is_floating_point() {
        return if eager.equal(ours) { 0.0 } else { f64::INFINITY };
    }
    let (e, o) = (double(eager), double(ours));
    if specials(&e).ne_tensor(&specials(&o)).any().int64_value(&[]) != 0 {
        return f64::INFINITY;
    }
    let special = e.isfinite().logical_not();
    let gap = largest(&(&e - &o).abs().masked_fill(&special, 0.0));
    if gap == 0.0 { 0.0 } else { gap / largest(&e.abs().masked_fill(&special, 0.0)) }
}

/// How two lists of tensors differ.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Largest absolute difference of an element.
    pub max_abs: f64,
    /// Largest difference relative to eager's value.
    pub max_rel: f64,
    /// Eager's largest error against `f64`.
    pub eager_err: f64,
    /// Our largest error against `f64`.
    pub fused_err: f64,
    /// The first difference; none where the lists are equal.
    pub difference: Option<String>,
}

/// Judges a list of results beside eager's, and those of the model in `f64` where they are known.
pub fn judge(eager: &[Tensor], ours: &[Tensor], exact: Option<&[Tensor]>) -> Verdict {
    let mut verdict = Verdict::default();
    if eager.len() != ours.len() {
        verdict.difference = Some(format!("{} outputs instead of {}", ours.len(), eager.len()));
        return verdict;
    }
    for (at, (e, o)) in eager.iter().zip(ours).enumerate() {
        let compared = compare(e, o, false, exact.and_then(|x| x.get(at)));
        if let Ok(measured) | Err(Difference::Numbers(measured)) = &compared {
            verdict.note(measured);
        }
        if let Err(difference) = compared {
            verdict.difference.get_or_insert(format!("output {at}: {difference}"));
        }
    }
    verdict
}

impl Verdict {
    fn note(&mut self, measured: &Measured) {
        self.max_abs = self.max_abs.max(measured.max_abs);
        self.max_rel = self.max_rel.max(measured.max_rel);
        if let Some(errors) = measured.errors {
            self.eager_err = self.eager_err.max(errors.eager);
            self.fused_err = self.fused_err.max(errors.ours);
        }
    }
}
