//! The schedules of a call that may be the quickest: programs are written of these only.
//!
//! ```text
//! 1.00  blocks over prepacked panels, 224 rows
//! 1.02  rows as pixels of a convolution         within its slowdown: also a candidate where candidates are measured
//! 1.40  operands where they lie
//! ```

use std::cmp::Ordering;

use super::blocks::Form;
use super::call_kernels::Template;
use super::match_failure::MatchFailure;
use super::price::Priced;
use super::schedule::{Blocking, Reading, Schedule};

/// The most programs that are written of one call.
const MAX_CANDIDATES: usize = 2;

/// How many times as long as the best schedule others may be expected to take and yet be the quickest. Of products over operands where
/// they lie, over those that are packed in each call, and others: how strides slow down who reads operands in place is not in the model.
const IN_PLACE: f64 = 1.25;
const PACKED: f64 = 2.0;
const PREPACKED: f64 = 1.03;

/// Of convolutions by vectors: what images at strides take is not in the model.
const CONVOLUTIONS: f64 = 2.5;

/// Of attention by vectors over keys and values where they lie, and over those that are packed.
const KEYS_IN_PLACE: f64 = 3.0;
const PACKED_KEYS: f64 = 1.1;

/// Of products and of attention by warpgroups. Where the model expects nothing of parts of the keys, a second kernel is not tried.
const WARPGROUPS: f64 = 1.25;
const KEYS_OF_WARPGROUPS: f64 = 1.3;
const KEYS_IN_PARTS: f64 = 1.0;

/// Schedules of which only the likeliest is tried.
#[derive(PartialEq, Eq)]
enum Alike {
    /// In parts, by warpgroups: those in other numbers of parts take about as long. Of those that take as long it is the first.
    InParts,
    /// Queries by vectors, over operands where they lie or packed ones: other blocks differ by less than a measurement tells.
    Queries { packed: bool },
}

impl Schedule {
    /// Which others take about as long.
    fn alike(&self) -> Option<Alike> {
        match &self.blocking {
            Blocking::Warpgroups(_) => self.splits.map(|_| Alike::InParts),
            Blocking::Queries(blocks) if blocks.warps.is_some() => self.splits.map(|_| Alike::InParts),
            Blocking::Queries(_) => {
                Some(Alike::Queries { packed: matches!(self.reading, Reading::PackedKv) })
            }
            _ => None,
        }
    }

    /// How many times as long as the best it may be expected to take and yet be the quickest.
    fn slowdown(&self) -> f64 {
        match (&self.blocking, &self.reading) {
            (Blocking::Product(blocks), Reading::InPlace) if blocks.form == Form::Dots => IN_PLACE,
            (Blocking::Product(_), Reading::Packed(_)) => PACKED,
            (Blocking::Product(_) | Blocking::UnalignedGemm(_), _) => PREPACKED,
            (Blocking::Warpgroups(_), _) => WARPGROUPS,
            (Blocking::PixelVectors(_) | Blocking::FilterVectors(_) | Blocking::Phases(_), _) => CONVOLUTIONS,
            (Blocking::Queries(_), Reading::PackedKv) => PACKED_KEYS,
            (Blocking::Queries(blocks), _) if blocks.warps.is_none() => KEYS_IN_PLACE,
            (Blocking::Queries(_), _) if self.splits.is_some() => KEYS_IN_PARTS,
            (Blocking::Queries(_), _) => KEYS_OF_WARPGROUPS,
        }
    }
}

impl Priced {
    /// Whether it is likelier to be the quickest than another one: of those that wait for memory, the one that computes less.
    fn order(&self, other: &Priced) -> Ordering {
        self.us.total_cmp(&other.us).then(self.arithmetic_us.total_cmp(&other.arithmetic_us))
    }
}

/// All schedules, but of those that are alike the likeliest alone.
fn likeliest_of_alike(all: Vec<Priced>) -> Vec<Priced> {
    let mut left: Vec<Priced> = Vec::new();
    for priced in all {
        let alike = priced.schedule.alike();
        let known = left.iter_mut().find(|known| alike.is_some() && known.schedule.alike() == alike);
        match known {
            None => left.push(priced),
            Some(known) => {
                let order = match alike {
                    Some(Alike::InParts) => priced.us.total_cmp(&known.us),
                    _ => priced.order(known),
                };
                if order == Ordering::Less {
                    *known = priced;
                }
            }
        }
    }
    left
}

/// The kernels of the likeliest schedules that take at most so many bytes, the best one first; that one alone unless they are `measured`.
///
/// # Errors
/// Where there is no schedule of which a program is written, or all take more bytes.
pub(super) fn prune(
    all: Vec<Priced>,
    (measured, most_bytes): (bool, u64),
    build: impl Fn(Priced) -> Option<Template>,
) -> Result<Vec<Template>, MatchFailure> {
    let mut all = likeliest_of_alike(all);
    let least = all.iter().map(|priced| priced.bytes).reduce(f64::min).unwrap_or(0.0);
    if least > most_bytes as f64 {
        return Err(MatchFailure::Memory { least: least as u64, most: most_bytes });
    }
    all.retain(|priced| priced.bytes <= most_bytes as f64);
    all.sort_by(Priced::order);
    let least_us = all.first().map_or(0.0, |priced| priced.us);
    let most = if measured { MAX_CANDIDATES } else { 1 };
    let mut templates = Vec::new();
    for priced in all {
        let near = priced.us <= least_us * priced.schedule.slowdown();
        if templates.len() < most && (near || templates.is_empty()) {
            templates.extend(build(priced));
        }
    }
    if templates.is_empty() { Err(MatchFailure::NoTemplate) } else { Ok(templates) }
}
