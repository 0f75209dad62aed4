//! Whether an element is right.

use tch::{Kind, Tensor};

use super::table::{Accuracy, Row};

/// A row's results on operands: eager's, eager's on operands that lie apart in memory, and those in `f64`.
pub(super) struct Judge<'a> {
    pub(super) row: &'a Row,
    pub(super) what: &'a str,
    pub(super) operands: &'a [Tensor],
    pub(super) eager: Tensor,
    pub(super) scalar: Option<Tensor>,
    pub(super) double: Option<Tensor>,
}

fn flat(t: &Tensor) -> Vec<f64> {
    if t.numel() == 0 {
        return Vec::new();
    }
    t.to_kind(Kind::Double).contiguous().flatten(0, -1).try_into().unwrap()
}

/// Equal, with the sign of zeros; NaN equals NaN.
fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// The distance from `x` to the next number of the type.
fn ulp(kind: Kind, x: f64) -> f64 {
    let (digits, least) = match kind {
        Kind::Half => (10, -24),
        Kind::BFloat16 => (7, -133),
        Kind::Float => (23, -149),
        _ => (52, -1074),
    };
    let exponent =
        if x == 0.0 { least } else { x.abs().log2().floor().clamp(-1022.0, 1023.0) as i32 - digits };
    let exponent = exponent.max(least);
    if exponent < -1022 { f64::from_bits(1 << (exponent + 1074)) } else { 2f64.powi(exponent) }
}

impl Judge<'_> {
    /// One line for each element that is wrong, at most three.
    pub(super) fn differences(&self, ours: &Tensor) -> Vec<String> {
        if let Some(text) = tilefuse::judge::form(&self.eager, ours) {
            return vec![format!("{} {}: {text}", self.row.call, self.what)];
        }
        if !ours.is_floating_point() {
            return self.integers(ours);
        }
        let kind = ours.kind();
        let (o, e) = (flat(ours), flat(&self.eager));
        let s = self.scalar.as_ref().map(flat).filter(|s| s.len() == e.len());
        let d = self.double.as_ref().map(flat).filter(|d| d.len() == e.len());
        let (scales, level) = (self.scales(o.len()), self.level(o.len()));
        let wrong = |&i: &usize| {
            let scalar = s.as_ref().map_or(e[i], |s| s[i]);
            let near = if e[i].is_finite() { e[i] } else { scalar };
            // In `f64` eager itself is the reference, with an error of its own.
            let exact = if kind == Kind::Double { Some(near) } else { d.as_ref().map(|d| d[i]) };
            let exact = if level[i] { Some(0.0) } else { exact };
            let scalar = if level[i] { 0.0 } else { scalar };
            !self.right(kind, o[i], e[i], scalar, exact, scales[i])
        };
        let line = |i: usize| {
            let double = d.as_ref().map_or(String::from("?"), |d| format!("{:e}", d[i]));
            let scalar = s.as_ref().map_or(String::from("?"), |s| format!("{:e}", s[i]));
            format!(
                "{} {}({}): fused {:e}, eager {:e} (scalar {scalar}), f64 {double}",
                self.what,
                self.row.call,
                self.place(i, o.len()),
                o[i],
                e[i]
            )
        };
        (0..o.len()).filter(wrong).take(3).map(line).collect()
    }

    fn integers(&self, ours: &Tensor) -> Vec<String> {
        if ours.numel() == 0 {
            return Vec::new();
        }
        let whole = |t: &Tensor| -> Vec<i64> {
            t.to_kind(Kind::Int64).contiguous().flatten(0, -1).try_into().unwrap()
        };
        let (o, e) = (whole(ours), whole(&self.eager));
        let line = |i: usize| {
            let place = self.place(i, o.len());
            format!("{} {}({place}): fused {}, eager {}", self.what, self.row.call, o[i], e[i])
        };
        (0..o.len()).filter(|&i| o[i] != e[i]).take(3).map(line).collect()
    }

    /// The operands of an element, where there is one of each for it; of a reduction the row.
    fn place(&self, i: usize, n: usize) -> String {
        let of = |t: &Tensor| {
            let x = flat(t);
            match (x.len() == n, t.size().as_slice()) {
                (true, _) => format!("{:e}", x[i]),
                (_, &[rows, length]) if rows as usize == n => {
                    let row: Vec<String> = x[i * length as usize..]
                        .iter()
                        .take(4.min(length as usize))
                        .map(|v| format!("{v:e}"))
                        .collect();
                    format!("row {i} [{}, ..]", row.join(", "))
                }
                _ => format!("at {i}"),
            }
        };
        self.operands.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    /// The largest magnitude among the operands of each element; of a normalisation in its row.
    fn scales(&self, n: usize) -> Vec<f64> {
        let mut all = vec![0.0f64; n];
        for x in self.operands {
            let (values, row) = (flat(x), x.size().last().map_or(1, |&length| length as usize));
            let length =
                if self.row.accuracy == Accuracy::Norm { row } else { values.len() / n.max(1) }.max(1);
            let even = !values.is_empty() && values.len().is_multiple_of(n.max(1));
            let part = if even { length } else { values.len().max(1) };
            let most = |part: &[f64]| part.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let most: Vec<f64> = values.chunks(part).map(most).collect();
            let each = n.div_ceil(most.len().max(1)).max(1);
            all.iter_mut().enumerate().for_each(|(i, scale)| {
                *scale = scale.max(most.get(i / each).copied().unwrap_or(0.0));
            });
        }
        all
    }

    /// Of each element whether a normalisation makes 0 of it since its row is constant. Where eager computes `x * a + b`, that
    /// cancels in `f64`, too.
    fn level(&self, n: usize) -> Vec<bool> {
        let (Accuracy::Norm, [x]) = (self.row.accuracy, self.operands) else { return vec![false; n] };
        let length = x.size().last().map_or(1, |&length| length as usize).max(1);
        let centred = !self.row.call.starts_with("rms_norm");
        let level = |row: &[f64]| centred && row.iter().all(|v| v.is_finite() && *v == row[0]);
        flat(x).chunks(length).flat_map(|row| vec![level(row); row.len()]).collect()
    }

    /// Whether a result is eager's, that of eager's scalar path, or as near to the exact value as it may be.
    fn right(&self, kind: Kind, ours: f64, eager: f64, scalar: f64, exact: Option<f64>, scale: f64) -> bool {
        if same(ours, eager) || same(ours, scalar) {
            return true;
        }
        let (allowed, slack) = match self.row.accuracy {
            // The rounding of the exact value is right, too.
            Accuracy::Exact => return exact.is_some_and(|exact| same(ours, rounded(kind, exact))),
            Accuracy::Zeros => return ours == eager,
            Accuracy::Ulp(allowed) => (allowed, 0.0),
            Accuracy::Sum(allowed) => (allowed, 0.0),
            Accuracy::Operand(allowed) => (allowed, allowed * ulp(kind, scale)),
            Accuracy::Moments if eager.is_nan() && ours.is_infinite() => return true,
            // The rounding of a mean in `f32`, squared, leaves it; eager's on a GPU is that of a running mean.
            Accuracy::Moments if self.eager.device().is_cuda() && scale > 1e26 && ours.is_infinite() => {
                return true;
            }
            // The square leaves `f32`, in which both compute what has 16 bits, in different orders.
            Accuracy::Moments if matches!(kind, Kind::Half | Kind::BFloat16) && scale > 1e18 => return true,
            // Squares of deviations leave the type, above 1e26 even those that are the rounding of the mean.
            // On a GPU no wider type has them, and eager's NaN or 0 depends on the length of the row.
            Accuracy::Norm if scale > 1e18 && (ours.is_nan() || eager.is_nan()) => {
                let near = |x: f64| exact.is_some_and(|e| close(kind, x, e, 64.0));
                let squares_leave = if self.eager.device().is_cuda() { 1.8e19 } else { 1e26 };
                return if ours.is_nan() { scale > squares_leave || !near(eager) } else { near(ours) };
            }
            Accuracy::Norm => (64.0, 1024.0 * ulp(kind, 1.0)),
            // Of squares below the least normal number an error of some of the least is left, and of their root.
            Accuracy::Moments => {
                let error = 16.0 * ulp(kind, scale);
                let least = 4.0 * ulp(kind, 0.0) / exact.map_or(1.0, f64::abs).min(1.0);
                (16.0, error.max(error * error).max(least))
            }
        };
        let Some(exact) = exact else { return false };
        let rounded = rounded(kind, exact);
        if !eager.is_finite() || !ours.is_finite() || !exact.is_finite() {
            let finite = ours.is_finite() && exact.is_finite();
            return same(ours, rounded)
                || (kind == Kind::Double || finite) && close(kind, ours, exact, allowed);
        }
        if ours == 0.0 && eager == 0.0 {
            return same(ours, rounded) || !matches!(self.row.accuracy, Accuracy::Ulp(_));
        }
        let error = (ours - exact).abs();
        // The approximate division that results of 16 bits take on a GPU gives 0 for divisors above 2^126.
        let short = matches!(kind, Kind::Half | Kind::BFloat16) && self.eager.device().is_cuda();
        let slack = if short { slack.max(2f64.powi(-119)) } else { slack };
        close(kind, ours, exact, allowed) || error <= slack || error <= 2.0 * (eager - exact).abs()
    }
}

/// A number in a type.
fn rounded(kind: Kind, exact: f64) -> f64 {
    Tensor::from_slice(&[exact]).to_kind(kind).to_kind(Kind::Double).double_value(&[0])
}

/// In `f64` the reference has an error of its own.
fn close(kind: Kind, ours: f64, exact: f64, allowed: f64) -> bool {
    let own = if kind == Kind::Double { 16.0 } else { 1.0 };
    (ours - exact).abs() <= own * allowed * ulp(kind, exact)
}
