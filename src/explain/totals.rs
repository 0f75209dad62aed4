//! Sums over a plan, and its parts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EdgeReport, Explanation, StepReport};

/// What a call of a plan does in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Operators that the capture saw.
    pub operators: usize,
    /// Generated kernels.
    pub kernels: usize,
    /// What the host starts, see [`Explanation::launches_fused`].
    pub launches: usize,
    /// Distinct kernels.
    pub distinct_kernels: usize,
    /// libtorch calls.
    pub extern_calls: usize,
    /// Bytes that kernels read.
    pub bytes_read: u64,
    /// Bytes that kernels write.
    pub bytes_written: u64,
    /// Arithmetic operations, a multiplication and an addition being two.
    pub flops: u64,
    /// Predicted microseconds of the kernels.
    pub predicted_us: f64,
    /// Microseconds of all steps of which a time is known, see [`StepReport::time`].
    pub us: f64,
    /// libtorch calls of which none is.
    pub untimed_calls: usize,
    /// Measured microseconds of all steps, where the plan was profiled.
    pub measured_us: Option<f64>,
    /// Bytes of intermediates and results at most at a time.
    pub peak_bytes: u64,
    /// Edges within kernels.
    pub fused_edges: usize,
    /// Edges that were not fused.
    pub cuts: usize,
}

impl Explanation {
    /// The kernels, in order, with their positions among the steps.
    ///
    /// ```
    /// # use tch::{Kind, Tensor};
    /// # let _no_grad = tch::no_grad_guard();
    /// let fused = tilefuse::fuse(|x: &Tensor| x.exp().sin());
    /// let plan = fused.explain(&Tensor::ones([8], (Kind::Float, tch::Device::Cpu)))?;
    /// assert_eq!(plan.kernels().count(), 1);
    /// assert_eq!(plan.cuts().count(), 0);
    /// assert_eq!(plan.totals().bytes_read, 32);
    /// # Ok::<(), tilefuse::Error>(())
    /// ```
    pub fn kernels(&self) -> impl Iterator<Item = (usize, &StepReport)> {
        self.steps.iter().enumerate().filter(|(_, step)| matches!(step, StepReport::Kernel { .. }))
    }

    /// The edges that were not fused.
    pub fn cuts(&self) -> impl Iterator<Item = &EdgeReport> {
        self.edges.iter().filter(|edge| !edge.fused)
    }

    /// Sums over the steps and edges.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            operators: self.ops_captured,
            kernels: self.kernels_fused,
            launches: self.launches_fused,
            distinct_kernels: self.distinct_kernels,
            extern_calls: self.extern_ops,
            us: self.known_us(),
            untimed_calls: self.unknown(),
            peak_bytes: self.peak_bytes_fused,
            cuts: self.cuts().count(),
            fused_edges: self.edges.len() - self.cuts().count(),
            measured_us: self
                .is_measured()
                .then(|| self.steps.iter().filter_map(StepReport::measured_us).sum()),
            ..Totals::default()
        };
        for step in &self.steps {
            match step {
                StepReport::Kernel { flops, bytes_read, bytes_written, predicted_us, .. } => {
                    totals.flops = totals.flops.saturating_add(*flops);
                    totals.bytes_read = totals.bytes_read.saturating_add(*bytes_read);
                    totals.bytes_written = totals.bytes_written.saturating_add(*bytes_written);
                    totals.predicted_us += predicted_us;
                }
                StepReport::Extern { flops, .. } => totals.flops = totals.flops.saturating_add(*flops),
            }
        }
        totals
    }
}
