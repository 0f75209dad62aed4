//! Times of a call, eager and fused, measured in turns, and what they are in the model's own unit.

use std::time::{Duration, Instant};

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::cli::times::{Time, digits};

/// What a call goes through, by the shapes of its inputs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Throughput {
    /// "tokens", "images" or "samples".
    pub(crate) unit: &'static str,
    /// Of these in a call.
    pub(crate) per_call: i64,
    /// Eager's, per second.
    pub(crate) eager: f64,
    /// The fused model's.
    pub(crate) fused: f64,
}

impl Throughput {
    /// Of calls with these inputs; `None` where nothing was timed or counted. Integers of two dimensions are tokens of sequences, images
    /// have four dimensions, and all else is counted in samples along the first dimension.
    pub(crate) fn of(inputs: &[Tensor], eager: Time, fused: Time) -> Option<Throughput> {
        let first = inputs.first()?;
        let (shape, integers) = (first.size(), matches!(first.kind(), Kind::Int64 | Kind::Int));
        let (unit, per_call) = match shape[..] {
            [batch, length] if integers => ("tokens", batch * length),
            [batch, ..] if shape.len() == 4 && !integers => ("images", batch),
            [batch, ..] => ("samples", batch),
            [] => return None,
        };
        let timed = eager.us > 0.0 && fused.us > 0.0 && per_call > 0;
        let [eager, fused] = [eager, fused].map(|time| per_second(per_call, time));
        timed.then_some(Throughput { unit, per_call, eager, fused })
    }

    /// The fused model's, as it is said.
    pub(crate) fn of_fused(&self) -> String {
        self.said(self.fused)
    }

    /// Eager's, as it is said.
    pub(crate) fn of_eager(&self) -> String {
        self.said(self.eager)
    }

    /// So many per second, as it is said.
    pub(crate) fn said(&self, per_second: f64) -> String {
        format!("{} {}/s", digits(per_second), self.unit)
    }

    /// That of a peer which takes so long for a call, as it is said.
    pub(crate) fn said_of(&self, time: &Time) -> String {
        self.said(self.of_peer(*time))
    }

    /// Of a peer that takes so long for a call.
    pub(crate) fn of_peer(&self, time: Time) -> f64 {
        per_second(self.per_call, time)
    }
}

fn per_second(per_call: i64, time: Time) -> f64 {
    per_call as f64 * 1e6 / time.us
}

/// Times of several ways to call a model, in turns, for so many seconds; none in no time.
pub(super) fn in_turns(device: Device, seconds: f64, ways: &[&dyn Fn()]) -> Vec<Time> {
    let Some(first) = ways.first().filter(|_| seconds > 0.0) else { return Vec::new() };
    let sync = || {
        if let Device::Cuda(ordinal) = device {
            tch::Cuda::synchronize(ordinal as i64);
        }
    };
    for _ in 0..2 {
        ways.iter().for_each(|way| way());
    }
    sync();
    let per_turn = turn_size(first, &sync);
    let mut times = vec![Vec::new(); ways.len()];
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end || times[0].len() < 5 {
        for (list, way) in times.iter_mut().zip(ways) {
            let start = Instant::now();
            (0..per_turn).for_each(|_| way());
            sync();
            list.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(per_turn));
        }
    }
    times.into_iter().map(Time::of).collect()
}

/// Calls of one turn, so that it takes about 5 ms.
fn turn_size(f: &dyn Fn(), sync: &dyn Fn()) -> u32 {
    let start = Instant::now();
    f();
    sync();
    (0.005 / start.elapsed().as_secs_f64().max(1e-6)).clamp(1.0, 200.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_in_the_unit_of_the_inputs() {
        let time = |us: f64| Time { us, ..Time::default() };
        let of = |input: Tensor| Throughput::of(&[input], time(1000.0), time(500.0)).unwrap();
        let float = (Kind::Float, Device::Cpu);
        let tokens = of(Tensor::zeros([4, 128], (Kind::Int64, Device::Cpu)));
        assert_eq!(
            (tokens.unit, tokens.per_call, tokens.eager, tokens.fused),
            ("tokens", 512, 512e3, 1024e3)
        );
        assert_eq!(of(Tensor::zeros([8, 3, 2, 2], float)).unit, "images");
        let slow = Throughput { eager: 0.0432, ..tokens };
        assert_eq!((slow.of_eager(), slow.of_fused()), ("0.0432 tokens/s".into(), "1024000 tokens/s".into()));
        assert_eq!(of(Tensor::zeros([8, 16], float)).unit, "samples");
        assert_eq!(Throughput::of(&[], time(1.0), time(1.0)), None);
    }
}
