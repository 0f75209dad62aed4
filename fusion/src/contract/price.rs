//! What schedules of contractions, their kernels and libtorch's calls are expected to take, by typical figures.
//!
//! ```text
//! us = max(flops / (share of the rate) + operations / their rate, bytes / bandwidth) / parts + packing + partial sums
//! ```
//!
//! The share of the machine's rates that a schedule reaches is what makes the difference: `rates.rs` has that of threads, which compute
//! blocks by vectors, and `rounds.rs` that of multiprocessors, which compute them in rounds. Products by warpgroups are compared by their
//! rounds and partial sums alone: operands and result are the same. `forms.rs` prices the equivalent forms of a contraction, of which one
//! becomes the call.

mod forms;
mod rates;
mod rounds;

pub(crate) use self::forms::Prices;
pub(super) use self::forms::{BLOCK_COLUMNS, ComputedBy, FormWork};
use super::attention;
use super::call_kernels::Template;
use super::candidates::Times;
use super::problem::{Problem, Task};
use super::product::Product;
use super::schedule::{Blocking, Reading, Schedule};
use super::{pack, vnni};
use crate::machine::Profile;

/// The rate of products over operands that were packed, in that over those as they lie.
const PACKED_RATE: f64 = 1.4;

/// The same in groups, in the rate over packed weights.
const PACKED_VNNI_RATE: f64 = 0.45;

/// What libtorch's call takes beside what it computes, in starts of a kernel.
const CALL_LAUNCHES: f64 = 2.0;

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
        copying_us(&self.packed, profile)
    }

    /// What writing, reading and combining what is left for the call's own kernel takes.
    pub(super) fn left_us(&self, profile: &Profile) -> f64 {
        if self.left > 0.0 { moving_us(2.0 * self.left, profile) + profile.launch_us } else { 0.0 }
    }
}

/// A schedule, and what it is expected to take.
#[derive(Debug)]
pub(super) struct Priced {
    /// How the call is computed.
    pub(super) schedule: Schedule,
    /// What that takes in microseconds, or in any unit that all schedules of the call have.
    pub(super) us: f64,
    /// How much of that if memory were not waited for.
    pub(super) arithmetic_us: f64,
    /// Bytes of packed operands and partial sums in each call.
    pub(super) bytes: f64,
    /// The shares of the machine's rates that the kernel and libtorch's call reach in what they compute.
    shares: [f64; 2],
    /// The part of the time that is left where the kernel shares its launch with those of other products; 1 alone.
    shared_launch: f64,
}

/// Schedules of a task with what they are expected to take, by the machine's formula; one without a price is left out. Of those of a product that had better share its launch with other products
/// there is one, whose blocks are best for all of them.
pub(super) fn priced(all: Vec<Schedule>, task: &Task<'_>) -> Vec<Priced> {
    match task.target.warpgroups {
        None => all.into_iter().filter_map(|schedule| rates::priced(schedule, task)).collect(),
        Some(units) => rounds::priced(all, task, units),
    }
}

impl Priced {
    /// A schedule by the share of the machine's rate that it reaches in what counts, and the shares in what is computed.
    fn by_rate(schedule: Schedule, task: &Task<'_>, (share, shares): (f64, [f64; 2])) -> Priced {
        let profile = task.target.profile;
        let (packed, left) = (schedule.packed(task), schedule.left(task));
        let group = match &schedule.reading {
            Reading::Prepacked(panels) | Reading::Packed(panels) => panels.group,
            Reading::PackedKv => vnni::VNNI2,
            Reading::InPlace => 1,
        };
        let ops = rates::ops(&schedule, task);
        let work = Work { shares: [share, 1.0], ops, group, packed, left, ..task.problem.work() };
        let packing = if schedule.packs_for_many(task) { 0.0 } else { work.packing_us(profile) };
        // What parts of the keys bring is in the share.
        let parts = if matches!(task.problem, Problem::Product(_)) { schedule.parts() } else { 1 };
        Priced {
            us: work.generated_us(profile) / f64::from(parts) + packing + work.left_us(profile),
            arithmetic_us: work.arithmetic_us(profile),
            bytes: schedule.packed_bytes(task) + left,
            shares,
            shared_launch: 1.0,
            schedule,
        }
    }

    /// Its kernels.
    pub(super) fn template(self, task: &Task<'_>) -> Option<Template> {
        let template = self.schedule.template(task)?;
        Some(Template { shares: self.shares, shared_launch: self.shared_launch, ..template })
    }
}

/// Rows of a product that are many beside what packing the right operand takes, and of one in groups, if that has so many elements.
const MANY_ROWS: i64 = 512;
const MANY_ROWS_GROUPED: i64 = 128;
const MANY_ELEMENTS: i64 = 1 << 16;

impl Schedule {
    /// Bytes of each operand that is packed in each call, where the time of that counts: for filters, keys and values it does not. What
    /// fills up blocks is left out: how high these are depends on the threads.
    fn packed(&self, task: &Task<'_>) -> Vec<f64> {
        match (&task.problem, &self.reading, &self.blocking) {
            (Problem::Product(product), Reading::Packed(panels), Blocking::Product(blocks)) => {
                pack::bytes(product, panels, blocks, [product.m, product.k])
            }
            _ => Vec::new(),
        }
    }

    /// Bytes of all operands that are packed in each call.
    fn packed_bytes(&self, task: &Task<'_>) -> f64 {
        match (&task.problem, &self.reading, &self.blocking) {
            (Problem::Product(product), Reading::Packed(panels), Blocking::Product(blocks)) => {
                pack::bytes(product, panels, blocks, pack::filled(product, blocks)).iter().sum()
            }
            (Problem::Convolution(call), Reading::Packed(panels), _) => {
                let elements: i64 = panels.shape().iter().product();
                elements as f64 * f64::from(call.conv.elem.bytes())
            }
            (Problem::Attention(attention), Reading::PackedKv, Blocking::Queries(blocks)) => {
                attention::packed_bytes(attention, blocks)
            }
            _ => 0.0,
        }
    }

    /// Whether so many rows read what is packed that packing it is a small part of the work, on a machine of any bandwidth: the order of
    /// large sums does not depend on one that was measured.
    fn packs_for_many(&self, task: &Task<'_>) -> bool {
        let (Problem::Product(product), Reading::Packed(panels)) = (&task.problem, &self.reading) else {
            return false;
        };
        let rows = if panels.group > 1 { MANY_ROWS_GROUPED } else { MANY_ROWS };
        product.m >= rows && product.n.saturating_mul(product.k) >= MANY_ELEMENTS
    }

    /// Bytes of what parts leave.
    fn left(&self, task: &Task<'_>) -> f64 {
        match (&task.problem, self.splits) {
            (Problem::Product(product), Some(splits)) => product.partial_bytes(splits.count),
            (Problem::Attention(attention), Some(splits)) => attention::written_bytes(attention, splits),
            _ => 0.0,
        }
    }
}

/// What copying operands of so many bytes each takes, in a kernel each.
fn copying_us(operands: &[f64], profile: &Profile) -> f64 {
    operands.iter().map(|&bytes| moving_us(2.0 * bytes, profile) + profile.launch_us).sum()
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
        library_us: work.library_us(profile) + CALL_LAUNCHES * profile.launch_us,
        measured: false,
    }
}
