//! Samples of a time, in short.

use serde::Serialize;

/// Microseconds of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Time {
    /// The median.
    pub(crate) us: f64,
    /// The lower quartile.
    pub(crate) low: f64,
    /// The upper quartile.
    pub(crate) high: f64,
}

impl Time {
    /// The median of samples, and their quartiles. Zeros where there are none.
    pub(crate) fn of(mut samples: Vec<f64>) -> Time {
        samples.sort_by(f64::total_cmp);
        let at = |quarters: usize| samples.get(samples.len() * quarters / 4).copied().unwrap_or(0.0);
        Time { us: at(2), low: at(1), high: at(3) }
    }

    /// The time of this many times as much.
    pub(crate) fn scaled(self, factor: f64) -> Time {
        Time { us: self.us * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// A number with three significant digits at least: all those before the point, and as many behind it as there must be.
pub(crate) fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let behind = (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0);
    format!("{value:.*}", behind as usize)
}

#[cfg(test)]
mod tests {
    use super::{Time, digits};

    #[test]
    fn slow_rates_keep_their_digits() {
        let said = [12345.6, 123.4, 12.34, 1.0, 0.98765, 0.001234].map(digits);
        assert_eq!(said, ["12346", "123", "12.3", "1.00", "0.988", "0.00123"]);
        assert_eq!([0.0, f64::INFINITY].map(digits), ["0", "inf"]);
    }

    #[test]
    fn a_time_is_the_median_between_quartiles() {
        let time = Time::of((0..100).rev().map(f64::from).collect());
        assert_eq!(time, Time { us: 50.0, low: 25.0, high: 75.0 });
        assert_eq!(Time::of(vec![3.0]), Time { us: 3.0, low: 3.0, high: 3.0 });
        assert_eq!(Time::of(Vec::new()).us, 0.0);
    }
}
