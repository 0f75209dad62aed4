//! The schedules of a convolution on a host, and what each is expected to take.
//!
//! ```text
//! [1,64,56,56] * [256,64,1,1]        1.00  vectors of pixels, over operands where they lie
//!                                    1.95  vectors of filters, over prepacked panels: each sum is stored alone
//! [1,128,56,56] * [128,128,3,3] / 2  1.00  vectors of filters, over prepacked panels
//!                                    1.44  vectors of pixels, over operands where they lie
//! ```

use super::block::Block;
use super::call::{self, Read};
use super::filter_panels::FilterPanels;
use super::geometry::{Conv, whole};
use super::may_be_channels_last;
use super::transposed::Phases;
use crate::block_kernel::Tied;
use crate::contract::call_kernels::Template;
use crate::contract::host::Host;
use crate::contract::match_failure::MatchFailure;
use crate::contract::price::Work;
use crate::contract::pruning::{Priced, prune};
use crate::graph::{Graph, NodeId};
use crate::library_form::ContractionForm;
use crate::machine::Profile;

/// How a convolution is computed on a host.
pub(super) enum Schedule {
    /// By vectors of filters, over panels of these.
    FilterPanels(Box<FilterPanels>),
    /// By vectors of pixels, over images and filters in row-major order.
    InPlace(Block),
    /// A transposed one by vectors of pixels of a phase, over images and filters at any strides.
    Phases(Box<Phases>),
}

/// The rates of vectors of pixels that follow each other, in that of vectors of filters, and of those of a phase.
const IN_PLACE_RATE: f64 = 0.9;
const PHASES_RATE: f64 = 0.4;

/// The rate of vectors of pixels that do not follow each other, in that of those that do, times the elements between them.
const STRIDED_RATE: f64 = 1.3;

/// What storing a sum takes beside which none of the vector is stored, in multiplications and additions.
const STORED_ALONE: f64 = 150.0;

/// How many times as long as the best schedule one may be expected to take that may be the quickest: what images at strides take is not
/// in the model.
const SLOWDOWN: f64 = 2.5;

/// The kernels of a convolution on a host that pack filters in at most so many bytes, the likeliest first; that one alone unless they are
/// `measured`.
///
/// # Errors
/// Why there is none.
pub(in crate::contract) fn on_host(
    graph: &Graph,
    node: NodeId,
    form: &ContractionForm,
    (profile, host): (&Profile, Host),
    limits: (bool, u64),
) -> Result<Vec<Template>, MatchFailure> {
    let declined = || call::declined(graph, node, form);
    let read = call::read(graph, node, form).ok_or_else(declined)?;
    let all = valid(graph, node, &read, host).into_iter();
    let all = all.map(|schedule| schedule.priced(&read.conv, profile)).collect();
    let built = prune(all, limits, |schedule: Schedule| schedule.template(graph, node, &read));
    built.map_err(|why| if why == MatchFailure::NoTemplate { declined() } else { why })
}

/// The schedules that a convolution may have on a host.
fn valid(graph: &Graph, node: NodeId, read: &Read, host: Host) -> Vec<Schedule> {
    let filter_panels = host.packs.and_then(|vectors| {
        let turn = may_be_channels_last(graph, node, vectors);
        FilterPanels::of(graph, node, read, turn, vectors)
    });
    let only_panels = filter_panels.as_ref().is_some_and(|panels| {
        // What readers that take filters innermost lose over another order is not in the model. Nor is what makes transposed convolutions
        // of many filters up to 20 times slower by pixels: how few of a row are of one phase.
        panels.last || read.conv.is_transposed() && panels.fills_vectors()
    });
    let by_pixels = || match read.conv.is_transposed() {
        true => Some(Schedule::Phases(Box::new(Phases::of(graph, node, read, host.threads)?))),
        false => read.row_major.then(|| Schedule::InPlace(Block::of(&read.conv, host.threads))),
    };
    let by_pixels = if only_panels { None } else { by_pixels() };
    filter_panels
        .map(|panels| Schedule::FilterPanels(Box::new(panels)))
        .into_iter()
        .chain(by_pixels)
        .collect()
}

/// The rate of vectors of pixels so many elements apart, in that of those that follow each other.
fn of_pixels(stride: u64) -> f64 {
    if stride <= 1 { 1.0 } else { STRIDED_RATE / stride as f64 }
}

impl Schedule {
    /// It, with what it is expected to take. The number of threads that have work is left out: results must not depend on it.
    fn priced(self, conv: &Conv, profile: &Profile) -> Priced<Schedule> {
        let work = conv.work();
        let [.., result] = conv.lengths();
        // The rate of what is computed, how much of that is in the result, and whether its elements are stored one by one.
        let (rate, useful, alone) = match &self {
            Schedule::FilterPanels(panels) => (1.0, panels.useful(), !panels.last),
            Schedule::InPlace(block) => {
                let stride = conv.axes.last().map_or(1, |axis| axis.stride);
                (IN_PLACE_RATE * of_pixels(stride), block.useful(conv), false)
            }
            Schedule::Phases(phases) => (PHASES_RATE * of_pixels(phases.stride()), phases.useful(conv), true),
        };
        let storing = if alone { STORED_ALONE * result as f64 } else { 0.0 };
        let share = work.flops / (work.flops / (rate * useful) + storing);
        let bytes = match &self {
            Schedule::FilterPanels(panels) => panels.packed_bytes(),
            Schedule::InPlace(_) | Schedule::Phases(_) => 0.0,
        };
        // Packing filters is left out, too: what starting a kernel takes in the time of the sums depends on the threads.
        let work = Work { shares: [share, 1.0], ..work };
        Priced {
            us: work.generated_us(profile),
            arithmetic_us: work.arithmetic_us(profile),
            slowdown: SLOWDOWN,
            bytes,
            schedule: self,
        }
    }

    /// Its kernels.
    fn template(self, graph: &Graph, node: NodeId, read: &Read) -> Option<Template> {
        match self {
            Schedule::FilterPanels(panels) => panels.template(graph, node, read),
            Schedule::Phases(phases) => phases.template(&read.conv),
            Schedule::InPlace(block) => {
                let made = read.conv.program(&block).ok()?;
                let tied = read.operands.iter().map(|&at| Tied::Operand(at)).chain([Tied::Result(0)]);
                let schedule = read.conv.schedule([block.area().into(), block.filters.into()]);
                Some(whole(&read.conv, made, tied.collect(), Vec::new(), schedule))
            }
        }
    }
}
