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

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn a_time_is_the_median_between_quartiles() {
        let time = Time::of((0..100).rev().map(f64::from).collect());
        assert_eq!(time, Time { us: 50.0, low: 25.0, high: 75.0 });
        assert_eq!(Time::of(vec![3.0]), Time { us: 3.0, low: 3.0, high: 3.0 });
        assert_eq!(Time::of(Vec::new()).us, 0.0);
    }
}
