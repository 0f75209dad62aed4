//! Plots of a plan: the steps of a call by time, kernels by their share, and a roofline.
//!
//! They are elements of the page's template rather than pictures of a plotting library such as `plotters`: their colours are the
//! page's, light and dark, and each mark opens the step that it stands for.

use indexmap::IndexMap;

use crate::explain::limits::class;
use crate::explain::{EagerReport, Explanation, MemoryReport, StepReport, bytes, summary};

/// Kernels whose share is shown.
const MAX_SHARES: usize = 20;

/// A step or an operator in the order of a call. Places are in parts of 1000 of the whole.
pub(super) struct Segment<'a> {
    /// The step, or the one that an operator of eager's is in.
    pub(super) at: Option<usize>,
    pub(super) class: &'static str,
    pub(super) name: &'a str,
    /// Of an operator: the module that it is of.
    pub(super) module: &'a str,
    /// Of an operator that is in no step: why.
    pub(super) left_out: &'a str,
    pub(super) us: f64,
    pub(super) x: f64,
    pub(super) width: f64,
}

impl<'a> Segment<'a> {
    fn of_step(plan: &'a Explanation, at: usize) -> Segment<'a> {
        let step = &plan.steps[at];
        let name = match step {
            StepReport::Kernel { name, .. } => name,
            StepReport::Extern { operator, .. } => operator,
        };
        let us = step.us().unwrap_or(0.0);
        Segment { at: Some(at), class: class(step), name, module: "", left_out: "", us, x: 0.0, width: 0.0 }
    }

    /// An operator as eager runs it, by its number.
    fn of_operator(plan: &'a Explanation, number: usize) -> Segment<'a> {
        let EagerReport { operator, module, us } = &plan.eager[number];
        let known = plan.operators.get(number);
        let at = known.and_then(|known| known.step);
        let class = at.and_then(|at| plan.steps.get(at)).map_or("left-out", class);
        let left_out = known.and_then(|known| known.left_out.as_deref()).unwrap_or_default();
        Segment { at, class, name: operator, module, left_out, us: *us, x: 0.0, width: 0.0 }
    }
}

/// The steps of a call one after the other; and where the plan was profiled, the operators of eager's, on the same scale, each in the
/// colour of the step that it is in.
pub(super) fn timelines(plan: &Explanation) -> [Vec<Segment<'_>>; 2] {
    let all = plan.known_us().max(eager_us(plan));
    let steps = (0..plan.steps.len()).map(|at| Segment::of_step(plan, at));
    let operators = (0..plan.eager.len()).map(|number| Segment::of_operator(plan, number));
    [in_a_row(steps, all), in_a_row(operators, all)]
}

/// Microseconds of eager's operators, where they were measured.
fn eager_us(plan: &Explanation) -> f64 {
    plan.eager.iter().map(|operator| operator.us).sum()
}

/// Parts one after the other, of so many microseconds in all.
fn in_a_row<'a>(parts: impl Iterator<Item = Segment<'a>>, all: f64) -> Vec<Segment<'a>> {
    let (mut x, mut row) = (0.0, Vec::new());
    for part in parts.filter(|part| part.us > 0.0) {
        let width = 1000.0 * part.us / all;
        row.push(Segment { x, width, ..part });
        x += width;
    }
    row
}

/// What a distinct kernel, or the calls of an operator, take in a call.
pub(super) struct Share<'a> {
    pub(super) name: &'a str,
    /// Those of the steps, as one path.
    pub(super) modules: String,
    pub(super) class: &'static str,
    /// The first step that launches it.
    pub(super) at: usize,
    pub(super) count: usize,
    pub(super) us: f64,
    /// What stands before it where it is of calls that were not profiled.
    pub(super) about: &'static str,
    /// Of all of them, in percent.
    pub(super) share: f64,
    /// Of the largest one, in percent.
    pub(super) width: f64,
}

/// What takes most time, all launches of a kernel and all calls of an operator together.
pub(super) fn shares(plan: &Explanation) -> Vec<Share<'_>> {
    let found = summary::shares(plan);
    let most = found.first().and_then(|share| share.us).unwrap_or(0.0);
    let timed = found.iter().filter_map(|share| Some((share, share.us?, share.part?)));
    let share = |(share, us, part): (&summary::Share, f64, f64)| {
        let at = share.steps[0];
        let (class, count) = (class(&plan.steps[at]), share.steps.len());
        let name = match &plan.steps[at] {
            StepReport::Kernel { name, .. } => name.as_str(),
            StepReport::Extern { operator, .. } => operator.as_str(),
        };
        let about = plan.steps[at].about();
        let modules = share.modules(plan);
        Share { name, modules, class, at, count, us, about, share: part, width: 100.0 * us / most }
    };
    timed.filter(|(_, us, _)| *us > 0.0).map(share).take(MAX_SHARES).collect()
}

/// Bytes that are held over the time of a call.
pub(super) struct Memory {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
    /// Points of the plan's line and of eager's.
    pub(super) fused: String,
    pub(super) eager: String,
    /// Horizontal lines with what they stand for.
    pub(super) lines: Vec<(f64, String)>,
    /// Labels below: place, where the text begins or ends there, and time.
    pub(super) columns: Vec<(f64, &'static str, String)>,
    /// What the axis below is.
    pub(super) axis: &'static str,
    /// What must be said of places on it.
    pub(super) note: String,
}

/// What is held over the time of a call, beside what eager holds; none where neither holds anything.
pub(super) fn memory(plan: &Explanation) -> Option<Memory> {
    let MemoryReport { fused, eager } = &plan.memory;
    let most = fused.iter().chain(eager).copied().max().filter(|&most| most > 0)?;
    let (ours, eagers) = (plan.known_us(), eager_us(plan));
    let is_eager_timed = eagers > 0.0 && plan.eager.len() == eager.len();
    let all = if is_eager_timed { ours.max(eagers) } else { ours };
    let ours_ends = end_times(plan.steps.iter().map(|step| step.us().unwrap_or(0.0)), fused.len(), ours);
    let eagers_ends = match is_eager_timed {
        true => end_times(plan.eager.iter().map(|operator| operator.us), eager.len(), eagers),
        false => end_times(std::iter::empty(), eager.len(), ours),
    };
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let y = |held: u64| bottom - (bottom - TOP) * held as f64 / most as f64;
    let x = |us: f64| LEFT + (right - LEFT) * if all > 0.0 { us / all } else { us };
    let points = |held: &[u64], ends: &[f64]| {
        let starts = std::iter::once(0.0).chain(ends.iter().copied());
        let step = |((&held, start), &end): ((&u64, f64), &f64)| {
            [start, end].map(|us| format!("{:.1},{:.1}", x(us), y(held))).join(" ")
        };
        held.iter().zip(starts).zip(ends).map(step).collect::<Vec<_>>().join(" ")
    };
    let line = |part: u64| (y(most * part / 4), bytes(most * part / 4));
    let column = |part: u32| {
        let us = all * f64::from(part) / 4.0;
        let anchor = match part {
            0 => "start",
            4 => "end",
            _ => "middle",
        };
        (x(us), anchor, summary::time(us))
    };
    Some(Memory {
        width: WIDTH,
        height: HEIGHT,
        left: LEFT,
        right,
        bottom,
        fused: points(fused, &ours_ends),
        eager: points(eager, &eagers_ends),
        lines: (0..=4).map(line).collect(),
        columns: if all > 0.0 { (0..=4).map(column).collect() } else { Vec::new() },
        axis: match (all > 0.0, plan.is_measured()) {
            (true, true) => "time within the call, as measured",
            (true, false) => "time within the call, as predicted",
            (false, _) => "from the first step to the last",
        },
        note: memory_note(plan.unknown(), is_eager_timed),
    })
}

/// Where each of `count` parts ends that take so long one after the other. Where their times are not known, they share `all` evenly, or 1
/// where that is not known either.
fn end_times(us: impl Iterator<Item = f64>, count: usize, all: f64) -> Vec<f64> {
    let mut end = 0.0;
    let ends: Vec<f64> = us
        .map(|us| {
            end += us;
            end
        })
        .collect();
    if ends.len() == count && end > 0.0 {
        return ends;
    }
    let all = if all > 0.0 { all } else { 1.0 };
    (1..=count).map(|at| all * at as f64 / count as f64).collect()
}

fn memory_note(untimed: usize, is_eager_timed: bool) -> String {
    let eager = match is_eager_timed {
        true => "Both are over their own time, on one scale.",
        false => {
            "Eager's operators were not timed (explain --profile does) and are spread evenly over the time of this plan."
        }
    };
    match untimed {
        0 => String::from(eager),
        1 => format!("{eager} A libtorch call of which no time is known has its place, without a width."),
        calls => format!(
            "{eager} {calls} libtorch calls of which no time is known have their places, without a width."
        ),
    }
}

pub(super) const WIDTH: f64 = 640.0;
pub(super) const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 44.0;

/// Operations per nanosecond against operations per byte, both on logarithmic scales.
pub(super) struct Roofline<'a> {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Lines of the limits, with what they are.
    pub(super) roofs: Vec<(String, &'static str)>,
    /// Labels below: place and number.
    pub(super) columns: Vec<(f64, String)>,
    /// Labels at the left: place and number.
    pub(super) lines: Vec<(f64, String)>,
    pub(super) points: Vec<Point<'a>>,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// A distinct kernel.
pub(super) struct Point<'a> {
    pub(super) at: usize,
    pub(super) class: &'static str,
    pub(super) name: &'a str,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) radius: f64,
    pub(super) intensity: f64,
    pub(super) rate: f64,
}

/// The roofline of a plan's kernels; none where the machine is not known or nothing computes.
pub(super) fn roofline(plan: &Explanation) -> Option<Roofline<'_>> {
    let machine = plan.machine.as_ref()?;
    let share: IndexMap<usize, f64> = shares(plan).into_iter().map(|share| (share.at, share.share)).collect();
    let mut seen = std::collections::BTreeSet::new();
    let mut points = Vec::new();
    for (at, step) in plan.steps.iter().enumerate() {
        let StepReport::Kernel { name, program, flops, bytes_read, bytes_written, .. } = step else {
            continue;
        };
        let us = step.us().unwrap_or(0.0);
        let moved = bytes_read + bytes_written;
        if *flops > 0 && moved > 0 && us > 0.0 && seen.insert(*program) {
            let (intensity, rate) = (*flops as f64 / moved as f64, *flops as f64 / us / 1e3);
            let radius = 4.0 + share.get(&at).copied().unwrap_or_default().sqrt();
            points.push(Point { at, class: class(step), name, x: 0.0, y: 0.0, radius, intensity, rate });
        }
    }
    let peaks = [machine.gigaops_per_s, machine.product_gigaops_per_s];
    let most = peaks.into_iter().fold(0.0, f64::max);
    let ridges = peaks.map(|peak| peak / machine.gigabytes_per_s);
    let across = powers(points.iter().map(|p| p.intensity).chain(ridges))?;
    let up = powers(points.iter().map(|p| p.rate).chain([most]))?;
    let x = |value: f64| scaled(value, across, LEFT, WIDTH - RIGHT);
    let y = |value: f64| scaled(value, up, HEIGHT - BOTTOM, TOP);
    points.iter_mut().for_each(|p| (p.x, p.y) = (x(p.intensity), y(p.rate)));
    let roof = |peak: f64| {
        let (first, last) = (10f64.powi(across.0), 10f64.powi(across.1));
        let start = first.max(10f64.powi(up.0) / machine.gigabytes_per_s);
        let ridge = (peak / machine.gigabytes_per_s).clamp(start, last);
        let at = |intensity: f64| {
            let rate = (intensity * machine.gigabytes_per_s).min(peak);
            format!("{:.1},{:.1}", x(intensity), y(rate))
        };
        format!("{} {} {}", at(start), at(ridge), at(last))
    };
    Some(Roofline {
        width: WIDTH,
        height: HEIGHT,
        roofs: vec![
            (roof(machine.gigaops_per_s), "simple operations"),
            (roof(machine.product_gigaops_per_s), "products"),
        ],
        columns: (across.0..=across.1).map(|p| (x(10f64.powi(p)), power(p))).collect(),
        lines: (up.0..=up.1).map(|p| (y(10f64.powi(p)), power(p))).collect(),
        points,
        left: LEFT,
        right: WIDTH - RIGHT,
        top: TOP,
        bottom: HEIGHT - BOTTOM,
    })
}

/// The powers of ten between which positive numbers lie.
fn powers(values: impl Iterator<Item = f64>) -> Option<(i32, i32)> {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|value| value.is_finite() && *value > 0.0) {
        (least, most) = (least.min(value), most.max(value));
    }
    (most > 0.0).then(|| {
        let low = least.log10().floor() as i32;
        (low, (most.log10().ceil() as i32).max(low + 1))
    })
}

fn scaled(value: f64, (low, high): (i32, i32), from: f64, to: f64) -> f64 {
    from + (value.log10() - f64::from(low)) / f64::from(high - low) * (to - from)
}

fn power(exponent: i32) -> String {
    match exponent {
        -3..=4 => format!("{}", 10f64.powi(exponent)),
        _ => format!("1e{exponent}"),
    }
}
