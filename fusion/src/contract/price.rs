//! What kernels of contractions and libtorch's calls are expected to take, by typical figures.

use super::call_kernels::Template;
use super::candidates::Times;
use super::product::Product;
use super::vnni;
use crate::machine::Profile;

/// The rate of products over operands that were packed, in that over those as they lie.
const PACKED_RATE: f64 = 1.4;

/// The same in groups, in the rate over packed weights.
const PACKED_VNNI_RATE: f64 = 0.45;

/// What a contraction or attention computes and moves.
pub(super) struct Work {
    /// Multiplications and additions.
    pub(super) flops: f64,
    /// Operations beside these: exponentials, maxima and sums of scores.
    pub(super) ops: f64,
    /// Bytes that must be moved.
    pub(super) bytes: f64,
    /// The shares of the machine's rates that the kernel and libtorch's call reach.
    pub(super) shares: [f64; 2],
    /// Rows of a group of the VNNI layout.
    pub(super) group: i64,
    /// Bytes of each operand that is packed in each call.
    pub(super) packed: Vec<f64>,
    /// Bytes of what a kernel that computes leaves for the call's own: partial sums.
    pub(super) left: f64,
}

impl Work {
    /// So many multiplications and additions, and bytes, at the machine's full rates.
    pub(super) fn new(flops: f64, bytes: f64) -> Work {
        Work { flops, ops: 0.0, bytes, shares: [1.0; 2], group: 1, packed: Vec::new(), left: 0.0 }
    }

    /// That of a product whose operands are read as they lie.
    pub(super) fn of_product(product: &Product) -> Work {
        let batch: i64 = product.batch.iter().product();
        let (m, n, k) = (product.m as f64, product.n as f64, product.k as f64);
        // Windows overlap.
        let left = product.windows.as_ref().map_or(m * k, |_| product.a.source.span as f64);
        let bytes = batch as f64 * (left + k * n + m * n) * f64::from(product.elem.bytes());
        let flops = 2.0 * batch as f64 * m * n * k;
        Work::new(flops, bytes)
    }

    /// That of a template.
    fn of(template: &Template) -> Work {
        let bytes = |computes: bool| {
            let own = template.operand_kernels.iter().filter(move |own| own.computes == computes);
            own.map(|own| own.ty.bytes() as f64)
        };
        Work {
            shares: template.shares,
            group: template.group(),
            packed: bytes(false).collect(),
            left: bytes(true).sum(),
            ..Work::new(template.flops, template.bytes)
        }
    }

    /// The rates of the kernel and of libtorch's call.
    fn rates(&self, profile: &Profile) -> [f64; 2] {
        let (rates, packed) = (profile.products, !self.packed.is_empty());
        // libtorch's library has the same instructions, and packs weights at every call.
        let in_groups = |rate: f64| [if packed { PACKED_VNNI_RATE * rate } else { rate }, 0.5 * rate];
        let [ours, theirs] = match self.group {
            vnni::VNNI2 => in_groups(rates.vnni2),
            vnni::VNNI4 => in_groups(rates.vnni4),
            _ if packed => [PACKED_RATE * rates.generated, rates.aligned],
            _ => [rates.generated, rates.aligned],
        };
        [self.shares[0] * ours, self.shares[1] * theirs]
    }

    /// What the kernel computes takes where memory is not waited for, in microseconds.
    pub(super) fn arithmetic_us(&self, profile: &Profile) -> f64 {
        (self.flops / self.rates(profile)[0] + self.ops / profile.ops_per_ns) / 1000.0
    }

    /// What the kernel takes with all threads at work, without what starts it.
    pub(super) fn generated_us(&self, profile: &Profile) -> f64 {
        self.arithmetic_us(profile).max(moving_us(self.bytes, profile))
    }

    /// The same of libtorch's call.
    fn library_us(&self, profile: &Profile) -> f64 {
        (self.flops / self.rates(profile)[1] / 1000.0).max(moving_us(self.bytes, profile))
    }

    /// What packing operands takes.
    pub(super) fn packing_us(&self, profile: &Profile) -> f64 {
        self.packed.iter().map(|&bytes| moving_us(2.0 * bytes, profile) + profile.launch_us).sum()
    }

    /// What writing, reading and combining what is left for the call's own kernel takes.
    pub(super) fn left_us(&self, profile: &Profile) -> f64 {
        if self.left > 0.0 { moving_us(2.0 * self.left, profile) + profile.launch_us } else { 0.0 }
    }
}

/// What moving so many bytes takes.
fn moving_us(bytes: f64, profile: &Profile) -> f64 {
    bytes / profile.bandwidth / 1000.0
}

/// What a kernel and its call take by typical figures.
pub(super) fn predict(template: &Template, profile: &Profile) -> Times {
    let work = Work::of(template);
    let computing = template.operand_kernels.iter().find(|own| own.computes);
    let kernel = computing.map_or(&template.kernel, |own| &own.kernel);
    let instances: f64 = kernel.grid.iter().map(|&n| f64::from(n)).product();
    let busy = if profile.machine.is_gpu() { 1.0 } else { (instances / profile.workers as f64).min(1.0) };
    let others = work.packing_us(profile) + work.left_us(profile);
    Times {
        generated_us: work.generated_us(profile) / busy + others + profile.launch_us,
        library_us: work.library_us(profile) + 2.0 * profile.launch_us,
        measured: false,
    }
}
