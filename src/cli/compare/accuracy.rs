//! How far results lie from those of an `f64` run, output by output.

use serde::Serialize;
use tch::{Kind, Tensor};

use crate::cli::inputs::kind_name;
use crate::judge::{Difference, compare};

/// The upper ends of the classes of [`Accuracy::eager_ulp`] and [`Accuracy::fused_ulp`], in units in the last place; behind them is
/// one class more.
pub(crate) const ULP_CLASSES: [f64; 12] =
    [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// One output beside eager's and beside the exact one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Accuracy {
    /// Its type and shape, `f32[8,1000]`.
    pub(crate) output: String,
    /// Largest difference between fused and eager.
    pub(crate) max_abs: f64,
    /// Eager's largest error against `f64`; absent where there is no run in `f64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eager_err: Option<f64>,
    /// The fused model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fused_err: Option<f64>,
    /// How many elements of eager's result are within 0.5, 1, 2, 4 ... 1024 units in the last place of the exact one, and how many
    /// are beyond; empty where there is no run in `f64`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) eager_ulp: Vec<i64>,
    /// The same of the fused model's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) fused_ulp: Vec<i64>,
    /// Why it is not eager's; absent where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) difference: Option<String>,
}

/// The accuracy of each output.
pub(crate) fn accuracy(eager: &[Tensor], ours: &[Tensor], exact: Option<&[Tensor]>) -> Vec<Accuracy> {
    let of = |(at, (eager, ours)): (usize, (&Tensor, &Tensor))| {
        let exact = exact.and_then(|exact| exact.get(at)).filter(|exact| exact.size() == eager.size());
        let compared = compare(eager, ours, false, exact);
        let (measured, difference) = match compared {
            Ok(measured) => (Some(measured), None),
            Err(Difference::Numbers(measured)) => {
                let text = Difference::Numbers(measured.clone()).to_string();
                (Some(measured), Some(text))
            }
            Err(difference) => (None, Some(difference.to_string())),
        };
        let errors = measured.as_ref().and_then(|measured| measured.errors);
        let exact = exact.filter(|_| eager.is_floating_point() && eager.size() == ours.size());
        let classes = |result: &Tensor| exact.map_or_else(Vec::new, |exact| ulp_classes(result, exact));
        Accuracy {
            output: format!("{}{:?}", kind_name(eager.kind()), eager.size()),
            max_abs: measured.map_or(0.0, |measured| measured.max_abs),
            eager_err: errors.map(|errors| errors.eager),
            fused_err: errors.map(|errors| errors.ours),
            eager_ulp: classes(eager),
            fused_ulp: classes(ours),
            difference,
        }
    };
    eager.iter().zip(ours).enumerate().map(of).collect()
}

/// Explicit bits of the significand, and the least exponent of a normal number.
fn format_of(kind: Kind) -> (f64, f64) {
    match kind {
        Kind::Double => (52.0, -1022.0),
        Kind::Half => (10.0, -14.0),
        Kind::BFloat16 => (7.0, -126.0),
        _ => (23.0, -126.0),
    }
}

/// How many elements are how far from the exact ones, in units of the last place of these; elements that are not finite in either
/// do not count.
fn ulp_classes(result: &Tensor, exact: &Tensor) -> Vec<i64> {
    let (bits, least) = format_of(result.kind());
    let (result, exact) =
        (result.to_kind(Kind::Double).flatten(0, -1), exact.to_kind(Kind::Double).flatten(0, -1));
    let finite = result.isfinite().logical_and(&exact.isfinite());
    let (result, exact) = (result.masked_select(&finite), exact.masked_select(&finite));
    let exponent = exact.abs().log2().floor().clamp_min(least);
    let ulps = (result - exact).abs() * (-(exponent - bits)).exp2();
    let ends = Tensor::from_slice(&ULP_CLASSES).to_device(ulps.device());
    let classes = ulps.bucketize(&ends, false, false);
    let counts = classes.bincount::<Tensor>(None, ULP_CLASSES.len() as i64 + 1);
    Vec::<i64>::try_from(counts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_in_units_of_the_last_place() {
        let exact = Tensor::from_slice(&[1.0_f64, 1.0, 3.0, 1e-3, f64::INFINITY]);
        let ulp = f64::from(f32::EPSILON);
        let found = [1.0, 1.0 + 3.0 * ulp, 3.0 + 2.0 * ulp, 1e-3, f64::INFINITY].map(|x| x as f32);
        let counts = ulp_classes(&Tensor::from_slice(&found), &exact);
        assert_eq!(counts.len(), ULP_CLASSES.len() + 1);
        // Of 3, the unit is twice that of 1.
        assert_eq!(counts[..4], [2, 1, 0, 1]);
        assert_eq!(counts.iter().sum::<i64>(), 4);
    }
}
