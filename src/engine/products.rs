//! Chooses which products of a plan, that libtorch and kernels of ours both compute, are timed on a processor or a GPU, and judges others
//! by these.

use std::time::Duration;

use indexmap::IndexMap;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use tilefuse_block::Program;
use tilefuse_codegen::cache::Key;
use tilefuse_codegen::host::HostOptions;
use tilefuse_fusion::contract::{Candidate, Times};
use tilefuse_fusion::pipeline::Measure;
use tilefuse_fusion::{Arg, Graph, NodeId, Profile};

use super::benchmark::{COLD_TIME, MAX_GPU_ROUNDS, MAX_SIDE_TIME, Planned, Request, measure, target_of};
use super::kernels::{Kernel, Target, device_name};
use super::measure::{Remembered, median};

/// The time that the measurements of one plan may take, about, without compiling what is measured: at least
/// this,
const MIN_PLAN_TIME: Duration = Duration::from_millis(150);
/// in large models this many times what the plan's products are expected to take in libtorch,
const PLAN_TIME_IN_CALLS: f64 = 12.0;
/// and at most this.
const MAX_PLAN_TIME: Duration = Duration::from_secs(1);

/// How many times as long as predicted a side may take, and the least prediction that this is asked of, in microseconds: not every
/// system tells how long threads wait, and none what a host does with its guests' processors.
const MAX_MISPREDICTED: f64 = 10.0;
const MIN_JUDGED_US: f64 = 50.0;

/// How many times as long or as short as predicted a side may well take.
const MAX_DOUBT: f64 = 1.5;

/// How many processes measure a plan of which something could not be measured on a busy machine.
const MAX_ATTEMPTS: u32 = 2;

/// Measured products from which others of a plan with the same operator are judged.
const MIN_MEASURED: usize = 3;

/// What measuring a product may take where there are as many others to judge it from.
const MAX_JUDGED_TIME: Duration = Duration::from_millis(100);

/// Measures the candidates of a plan's calls, for the pass `select-kernels`: first those that are worth it, so that all others of an
/// operator are judged by the same ones.
#[derive(Default)]
pub(crate) struct Measuring {
    /// What candidates there are for a graph depends on whether weights may be prepacked, and on the bytes that a call may hold.
    limits: (bool, u64),
    /// What tells the plan from others.
    plan: String,
    /// How many processes tried to measure it.
    attempts: u32,
    foreseen: Foreseen,
    budget: Budget,
    measured: Measured,
}

/// What those of a plan that were measured say of others.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Measured {
    /// By operator and whether operands are packed before the model runs or in each call, how many times as long as the call
    /// those that were measured typically take.
    ratios: Vec<(String, [bool; 2], f64)>,
    /// By operator, how many times as long as predicted the calls that were measured typically take.
    scales: Vec<(String, f64)>,
}

impl Measured {
    fn of(all: &[Share]) -> Measured {
        let mut ratios: IndexMap<(&str, [bool; 2]), Vec<f64>> = IndexMap::new();
        let mut scales: IndexMap<&str, Vec<f64>> = IndexMap::new();
        for share in all {
            let Some(times) = known(&share.key) else { continue };
            let ratio = times.generated_us / times.library_us;
            let ratios = ratios.entry((&share.op, share.packs)).or_default();
            ratios.extend(std::iter::repeat_n(ratio, share.calls));
            let scale = times.library_us / share.times.library_us;
            scales.entry(&share.op).or_default().extend(std::iter::repeat_n(scale, share.calls));
        }
        let typical = |all: Vec<f64>| Some(all).filter(|all| all.len() >= MIN_MEASURED).map(median);
        let ratios = ratios.into_iter();
        let ratios = ratios.filter_map(|((op, packs), all)| Some((op.to_owned(), packs, typical(all)?)));
        let scales = scales.into_iter().filter_map(|(op, all)| Some((op.to_owned(), typical(all)?)));
        Measured { ratios: ratios.collect(), scales: scales.collect() }
    }

    /// A candidate as others with its operator and packing were measured; where these are few, as predicted, in the time that the
    /// operator's calls take on this machine.
    fn judge(&self, op: &str, packs: [bool; 2], predicted: Times) -> Option<Times> {
        let scale = self.scales.iter().find(|(own, _)| own == op)?.1;
        let library_us = scale * predicted.library_us;
        let ratio = self.ratios.iter().find(|(own, packed, _)| own == op && *packed == packs);
        let generated_us = ratio.map_or(scale * predicted.generated_us, |(_, _, ratio)| library_us * ratio);
        Some(Times { generated_us, library_us, measured: false })
    }
}

/// Whether operands are packed before the model runs, and in each call.
fn packs(candidate: &Candidate<'_>) -> [bool; 2] {
    [candidate.template.panels.is_some(), !candidate.template.operand_kernels.is_empty()]
}

impl Measuring {
    /// Where weights may be prepacked or not, and a call may hold at most so many bytes.
    pub(crate) fn within(prepacks: bool, most_bytes: u64) -> Measuring {
        Measuring { limits: (prepacks, most_bytes), ..Measuring::default() }
    }
}

impl Measure for Measuring {
    fn foresees(&mut self, graph: &Graph, profile: &Profile) -> bool {
        self.plan =
            PLANS.name(&format!("{:?} {} {:?}\n{graph}", profile.machine, device_of(graph), self.limits));
        (self.attempts, self.measured) = PLANS.get(&self.plan).unwrap_or_default();
        self.attempts < MAX_ATTEMPTS
    }

    fn foresee(&mut self, candidate: &Candidate<'_>, profile: &Profile) {
        if candidate.is_open(profile) {
            self.foreseen.add(candidate, profile);
        }
    }

    fn begin(&mut self, profile: &Profile) {
        let Foreseen { mut all, .. } = std::mem::take(&mut self.foreseen);
        let (budget, requests) = Budget::of(&mut all, profile);
        self.budget = budget;
        for (key, request) in requests {
            self.budget.measure(key, || request);
        }
        self.measured = Measured::of(&all);
        // Where no kernel of those that were chosen could be compiled, this was no attempt.
        let is_complete = self.budget.chosen.iter().all(|key| known(key).is_some());
        if is_complete || !self.budget.kernels.is_empty() {
            self.attempts = if is_complete { MAX_ATTEMPTS } else { self.attempts + 1 };
            PLANS.put(self.plan.clone(), &(self.attempts, self.measured.clone()));
        }
    }

    fn measure(&mut self, candidate: &Candidate<'_>, profile: &Profile) -> Option<Times> {
        if !candidate.is_open(profile) {
            return None;
        }
        let request = || Request::new(candidate, profile).planned(profile);
        self.budget.measure(describe(candidate, profile), request).or_else(|| {
            // On a GPU blocks fit some sizes and not others.
            let is_judged = !profile.machine.is_gpu();
            let (op, predicted) = (&candidate.call.op, candidate.predicted(profile));
            is_judged.then(|| self.measured.judge(op, packs(candidate), predicted)).flatten()
        })
    }
}

/// The candidates that a plan asks for where choices are those that are predicted.
#[derive(Default)]
struct Foreseen {
    all: Vec<Share>,
    /// The call of the latest one, and how many of its candidates came before that.
    latest: Option<(NodeId, usize)>,
}

impl Foreseen {
    fn add(&mut self, candidate: &Candidate<'_>, profile: &Profile) {
        let node = candidate.node;
        let before = self.latest.filter(|(latest, _)| *latest == node).map_or(0, |(_, before)| before + 1);
        self.latest = Some((node, before));
        let key = describe(candidate, profile);
        if let Some(share) = self.all.iter_mut().find(|share| share.key == key) {
            share.calls += 1;
            return;
        }
        let request = known(&key).is_none().then(|| Request::new(candidate, profile));
        let times = candidate.predicted(profile);
        let (op, packs) = (candidate.call.op.clone(), packs(candidate));
        self.all.push(Share { key, op, packs, calls: 1, before, times, request });
    }
}

/// Which products of a plan are measured: those of which a measurement may save most, each as often as it is called. What a choice
/// gives another layout was not foreseen, and is measured while there is time.
///
/// A plan is measured once: processes that start later judge by the same measurements, and make the same plan.
#[derive(Default)]
struct Budget {
    /// What describes those that were foreseen and are not measured.
    skipped: FxHashSet<String>,
    /// The same of those that are.
    chosen: FxHashSet<String>,
    left: Duration,
    /// Their kernels, so that each is there when its turn comes.
    kernels: Vec<Kernel>,
}

impl Budget {
    /// Of what was foreseen, and in its order those that are to be measured.
    fn of(all: &mut [Share], profile: &Profile) -> (Budget, Vec<(String, Planned)>) {
        let left = time_for(all);
        let chosen = chosen(all, left, profile.machine.is_gpu());
        let skipped = all.iter().map(|share| share.key.clone()).filter(|key| !chosen.contains(key)).collect();
        let requests = all.iter_mut().filter(|share| chosen.contains(&share.key));
        let requests: Vec<(String, Request)> =
            requests.filter_map(|share| Some((share.key.clone(), share.request.take()?))).collect();
        // Compiled side by side, which cannot be done between measurements. One that fails does so again in its turn.
        let compiled = requests.into_par_iter().map(|(key, request)| {
            let planned = request.planned(profile);
            let kernels = planned.kernels();
            ((key, planned), kernels)
        });
        let (requests, kernels): (Vec<_>, Vec<Vec<Kernel>>) = compiled.unzip();
        let kernels = kernels.into_iter().flatten().collect();
        (Budget { skipped, chosen, left, kernels }, requests)
    }

    /// What the candidate that a key describes takes, where that is known or there is time to measure it, and both sides agree.
    fn measure(&mut self, key: String, request: impl FnOnce() -> Planned) -> Option<Times> {
        if let Some(times) = known(&key) {
            return Some(times);
        }
        if !self.allows(&key) {
            return None;
        }
        let planned = request();
        match measure(&planned) {
            Ok((times, spent)) => {
                self.spend(spent);
                let predicted = planned.request.predicted;
                let Some(times) = times.filter(|times| is_plausible(times, &predicted)) else {
                    // It would not agree in the next moment either.
                    self.skipped.insert(key);
                    return None;
                };
                KNOWN.put(key, &(times.generated_us, times.library_us));
                Some(times)
            }
            Err(error) => {
                tracing::warn!("a product was not measured: {error}");
                self.skipped.insert(key);
                None
            }
        }
    }

    fn allows(&self, key: &str) -> bool {
        !self.left.is_zero() && !self.skipped.contains(key)
    }

    /// What takes more than was expected leaves less for others.
    fn spend(&mut self, spent: Duration) {
        self.left = self.left.saturating_sub(spent);
    }
}

/// Whether neither side took so much longer than predicted that its threads must have waited for a busy machine.
fn is_plausible(times: &Times, predicted: &Times) -> bool {
    let of = |us: f64, predicted_us: f64| us <= MAX_MISPREDICTED * predicted_us.max(MIN_JUDGED_US);
    of(times.generated_us, predicted.generated_us) && of(times.library_us, predicted.library_us)
}

/// Products of a plan that are alike.
struct Share {
    key: String,
    op: String,
    packs: [bool; 2],
    calls: usize,
    /// Likelier candidates of the same call.
    before: usize,
    times: Times,
    /// What would be measured; none where that is known.
    request: Option<Request>,
}

impl Share {
    /// What all of them take in libtorch.
    fn library_us(&self) -> f64 {
        self.calls as f64 * self.times.library_us
    }

    /// What a measurement may save: the chosen side takes longer than predicted, and the other one less. A call's other candidates
    /// save what its first one leaves.
    fn stake_us(&self) -> f64 {
        let Times { generated_us, library_us, .. } = self.times;
        let (chosen, other) = (generated_us.min(library_us), generated_us.max(library_us));
        self.calls as f64 * (chosen * MAX_DOUBT - other / MAX_DOUBT).max(0.0) / (1.0 + self.before as f64)
    }

    /// What measuring one takes: two runs of each side at least. On a GPU all rounds of short ones are over before a side's time is.
    fn cost(&self, on_gpu: bool) -> Duration {
        let runs = Duration::from_secs_f64(1e-6 * (self.times.library_us + self.times.generated_us));
        match on_gpu {
            true => {
                let round = runs + 2 * COLD_TIME;
                ((1 + MAX_GPU_ROUNDS) as u32 * round).min(round.max(2 * MAX_SIDE_TIME))
            }
            false => (2 * runs).max(2 * MAX_SIDE_TIME),
        }
    }
}

/// The time that measuring a plan's products may take.
fn time_for(all: &[Share]) -> Duration {
    let total: f64 = all.iter().map(Share::library_us).sum();
    Duration::from_secs_f64(PLAN_TIME_IN_CALLS * total * 1e-6).clamp(MIN_PLAN_TIME, MAX_PLAN_TIME)
}

/// Those that are measured in a time, the ones that may save most first, and of others those that take most; not those that take long and
/// have others like them.
fn chosen(all: &[Share], mut left: Duration, on_gpu: bool) -> FxHashSet<String> {
    let mut cheap: FxHashMap<String, usize> = FxHashMap::default();
    for share in all.iter().filter(|share| share.cost(on_gpu) <= MAX_JUDGED_TIME) {
        *cheap.entry(share.op.clone()).or_default() += 1;
    }
    let judged = |share: &Share| {
        share.cost(on_gpu) > MAX_JUDGED_TIME && cheap.get(&share.op).is_some_and(|&n| n >= MIN_MEASURED)
    };
    let mut all: Vec<&Share> =
        all.iter().filter(|share| !judged(share) && known(&share.key).is_none()).collect();
    all.sort_by(|a, b| b.stake_us().total_cmp(&a.stake_us()).then(b.library_us().total_cmp(&a.library_us())));
    let mut fits = |share: &&Share| {
        let cost = share.cost(on_gpu);
        let fits = cost <= left;
        left -= if fits { cost } else { Duration::ZERO };
        fits
    };
    all.into_iter().filter(|share| fits(share)).map(|share| share.key.clone()).collect()
}

/// The name of the GPU that a graph is computed on; nothing on a processor.
fn device_of(graph: &Graph) -> String {
    let Target::Cuda(ordinal) = target_of(graph) else { return String::new() };
    device_name(tch::Device::Cuda(ordinal as usize)).unwrap_or_default()
}

/// All that the times of a candidate depend on, but for the machine.
fn describe(candidate: &Candidate<'_>, profile: &Profile) -> String {
    let graph = candidate.graph;
    let call = candidate.call;
    let mut text = format!("{} {:?}{}", call.op, profile.machine, device_of(graph));
    for (name, arg) in &call.args {
        match arg {
            Arg::Tensor(position) => {
                let ty =
                    graph.operands(candidate.node).get(usize::from(*position)).map(|&v| graph.ty(v).clone());
                let ty = ty.map_or_else(String::new, |ty| format!("{ty}{:?}", ty.strides));
                text.push_str(&format!(" {name}={ty}"));
            }
            other => text.push_str(&format!(" {name}={other:?}")),
        }
    }
    let operand_kernels = candidate.template.operand_kernels.iter();
    let programs: Vec<&Program> = operand_kernels
        .map(|operand| &operand.kernel.program)
        .chain([&candidate.template.kernel.program])
        .collect();
    text.push_str(&format!(" {}", Key::of(&programs).to_hex()));
    text
}

/// What kernel and call of a product took, in microseconds.
static KNOWN: Remembered<(f64, f64)> =
    Remembered::new(|what| Key::new(what, &HostOptions::default().fingerprint(), "products 10"), |_| true);

/// How many processes tried to measure the products of a plan, [`MAX_ATTEMPTS`] where one of them measured all that it chose, and what
/// these say of others.
static PLANS: Remembered<(u32, Measured)> = Remembered::new(
    |what| Key::new(what, &HostOptions::default().fingerprint(), "plans of products 3"),
    |_| true,
);

fn known(what: &str) -> Option<Times> {
    let (generated_us, library_us) = KNOWN.get(what)?;
    Some(Times { generated_us, library_us, measured: true })
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::pipeline::{Context, Stage, lowered};
    use tilefuse_fusion::{Products, choose_products};

    use super::*;

    /// Asks for the candidates of a graph.
    fn choose(graph: &Graph, profile: &Profile, measure: &mut dyn FnMut(&Candidate<'_>) -> Option<Times>) {
        choose_products(&mut graph.clone(), profile, Products::Measured, Some(0), u64::MAX, measure);
    }

    /// What can be foreseen of these.
    fn foreseen(graph: &Graph, profile: &Profile) -> Measuring {
        let mut measuring = Measuring::default();
        if !measuring.foresees(graph, profile) {
            return measuring;
        }
        choose(graph, profile, &mut |candidate| {
            measuring.foresee(candidate, profile);
            None
        });
        measuring
    }

    #[test]
    fn what_is_measured_writes_in_the_order_of_the_candidate() {
        let text = "graph {
          %0 = input 0 : f32[1,32,8,8]
          %1 = param 0 : f32[32,32,1,1]
          %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1,1], padding=[0,0], dilation=[1,1], groups=1) : f32[1,32,8,8]
          %3 = aten::conv2d(input=%2, weight=%1, bias=None, stride=[1,1], padding=[0,0], dilation=[1,1], groups=1) : f32[1,32,8,8]
          outputs %3
        }";
        let profile = Profile::host(2);
        let graph = tilefuse_fusion::parse_graph(text).unwrap();
        let primitive = Stage::Primitive..=Stage::Primitive;
        let graph = lowered(graph, primitive, &mut Context::new(&profile)).unwrap();
        let mut orders = Vec::new();
        choose(&graph, &profile, &mut |candidate| {
            let wanted = candidate.template.result_layout.clone();
            let (own, node) = candidate.computed();
            let shape = own.ty(node.into()).shape.clone();
            let expected = wanted
                .as_ref()
                .map_or_else(|| candidate.graph.ty(candidate.node.into()).shape.clone(), |t| t.shape.clone());
            assert_eq!(shape, expected);
            orders.push(wanted.is_some());
            measure(&Request::new(candidate, &profile).planned(&profile)).unwrap();
            Some(Times { generated_us: 1.0, library_us: 2.0, measured: true })
        });
        assert_eq!(orders, [true, false]);
    }

    /// Products that are too long to be measured, between short ones that are: what is known of these, and what is measured.
    #[test]
    fn products_that_are_alike_are_judged_alike() {
        const LONG: i64 = 8192;
        // What is known is kept on disk: of a machine that there is not.
        for (is_known, threads, sizes) in [(true, 77, [33, 34, 35]), (false, 2, [65, 66, 67])] {
            let profile = Profile::host(threads);
            let sizes = |at: i64| if at % 4 == 3 { sizes[at as usize / 4] } else { LONG };
            let (mut inputs, mut products, mut outputs) = (String::new(), String::new(), Vec::new());
            for at in 0..12 {
                let (size, result) = (sizes(at), 24 + at);
                inputs.push_str(&format!("%{at} = input {at} : f32[{size},{size}]\n"));
                products.push_str(&format!("%{} = param {at} : f32[{size},{size}]\n", 12 + at));
                outputs.push(format!("%{result}"));
            }
            for at in 0..12 {
                let (size, weight, result) = (sizes(at), 12 + at, 24 + at);
                products.push_str(&format!(
                    "%{result} = aten::linear(input=%{at}, weight=%{weight}) : f32[{size},{size}]\n"
                ));
            }
            let text = format!("graph {{\n{inputs}{products}outputs {}\n}}", outputs.join(", "));
            let graph = tilefuse_fusion::parse_graph(&text).unwrap();
            let primitive = Stage::Primitive..=Stage::Primitive;
            let graph = lowered(graph, primitive, &mut Context::new(&profile)).unwrap();
            let is_long = |candidate: &Candidate<'_>| {
                candidate.graph.ty(candidate.node.into()).shape.first() == Some(&LONG)
            };
            if is_known {
                choose(&graph, &profile, &mut |candidate| {
                    if !is_long(candidate) {
                        let times = candidate.predicted(&profile);
                        let measured = (0.5 * times.generated_us, 2.0 * times.library_us);
                        KNOWN.put(describe(candidate, &profile), &measured);
                    }
                    None
                });
            }
            let mut measuring = foreseen(&graph, &profile);
            if measuring.attempts < MAX_ATTEMPTS {
                measuring.begin(&profile);
            }
            let mut judged: FxHashMap<String, Vec<Option<Times>>> = FxHashMap::default();
            choose(&graph, &profile, &mut |candidate| {
                let times = measuring.measure(candidate, &profile);
                if is_long(candidate) {
                    judged.entry(describe(candidate, &profile)).or_default().push(times);
                }
                times
            });
            assert!(!judged.is_empty());
            for times in judged.values() {
                assert!(times.len() >= 9, "{times:?}");
                assert!(times.iter().all(|other| *other == times[0]), "{times:?}");
                assert!(!is_known || times[0].is_some_and(|times| !times.measured), "{times:?}");
            }
        }
    }

    /// A second process has the measurements of the first, and neither foresees nor compiles what that one had no time for.
    #[test]
    fn a_plan_is_measured_once() {
        let profile = Profile::host(78);
        let text = "graph {
          %0 = input 0 : f32[129,257]
          %1 = param 0 : f32[65,257]
          %2 = aten::linear(input=%0, weight=%1) : f32[129,65]
          outputs %2
        }";
        let graph = tilefuse_fusion::parse_graph(text).unwrap();
        let primitive = Stage::Primitive..=Stage::Primitive;
        let graph = lowered(graph, primitive, &mut Context::new(&profile)).unwrap();
        let mut measuring = Measuring::default();
        measuring.foresees(&graph, &profile);
        let plan = measuring.plan.clone();
        let remember = |attempts: u32, measured: Measured| PLANS.put(plan.clone(), &(attempts, measured));
        let mut other = Measuring::within(true, 0);
        other.foresees(&graph, &profile);
        assert_ne!(other.plan, plan);
        remember(0, Measured::default());
        let mut all = foreseen(&graph, &profile).foreseen.all;
        let (budget, requests) = Budget::of(&mut all, &profile);
        assert!(!budget.chosen.is_empty() && !budget.kernels.is_empty());
        assert_eq!(requests.len(), budget.chosen.len());
        // Where nothing was measured, as on a busy machine, another process tries it.
        remember(1, Measured::default());
        assert!(Measuring::default().foresees(&graph, &profile));
        let scales = vec![(String::from("aten::linear"), 0.5)];
        remember(MAX_ATTEMPTS, Measured { ratios: Vec::new(), scales });
        let mut measuring = foreseen(&graph, &profile);
        assert!(measuring.foreseen.all.is_empty() && measuring.budget.left.is_zero());
        choose(&graph, &profile, &mut |candidate| {
            let predicted = candidate.predicted(&profile);
            let times = measuring.measure(candidate, &profile);
            assert_eq!(times.map(|times| times.library_us), Some(0.5 * predicted.library_us));
            times
        });
    }

    #[test]
    fn what_is_not_measured_takes_as_long_beside_others_as_predicted() {
        let predicted = Times { generated_us: 80.0, library_us: 100.0, measured: false };
        let (op, packs) = ("aten::linear", [true, false]);
        let of = |ratio: Option<f64>, scale: Option<f64>| {
            let ratios = ratio.map(|ratio| (op.to_owned(), packs, ratio)).into_iter().collect();
            let scales = scale.map(|scale| (op.to_owned(), scale)).into_iter().collect();
            let times = Measured { ratios, scales }.judge(op, packs, predicted)?;
            Some((times.generated_us, times.library_us))
        };
        // Calls take half as long on this machine.
        assert_eq!(of(Some(0.8), Some(0.5)), Some((40.0, 50.0)));
        assert_eq!(of(Some(1.2), Some(0.5)), Some((60.0, 50.0)));
        // No other one packs its operands so.
        assert_eq!(of(None, Some(0.5)), Some((40.0, 50.0)));
        assert_eq!(of(Some(0.9), None), None);
    }

    #[test]
    fn what_waited_for_other_work_is_not_believed() {
        let times = |generated_us: f64, library_us: f64| Times { generated_us, library_us, measured: true };
        assert!(is_plausible(&times(90.0, 60.0), &times(10.0, 12.0)));
        assert!(!is_plausible(&times(2073.8, 12.5), &times(10.0, 12.0)));
        assert!(!is_plausible(&times(900.0, 60_000.0), &times(800.0, 1200.0)));
        assert!(is_plausible(&times(900.0, 9000.0), &times(800.0, 1200.0)));
    }

    /// 20 runs each, with what makes the cache cold.
    #[test]
    fn many_short_products_are_measured_on_a_gpu() {
        let share = |at: usize| Share {
            key: format!("of no machine: short {at}"),
            op: String::from("aten::conv2d"),
            packs: [false; 2],
            calls: 1,
            before: 0,
            times: Times { generated_us: 40.0, library_us: 40.0, measured: false },
            request: None,
        };
        assert_eq!(share(0).cost(true), Duration::from_micros(2000));
        assert_eq!(chosen(&(0..100).map(share).collect::<Vec<_>>(), MIN_PLAN_TIME, true).len(), 75);
    }

    /// What is predicted to differ little is measured before what is not, and the likeliest candidate of each call before others.
    #[test]
    fn what_a_measurement_may_save_is_measured_first() {
        let share = |key: &str, [generated_us, library_us]: [f64; 2], before: usize| Share {
            key: format!("of no machine: {key}"),
            op: String::from("aten::conv2d"),
            packs: [false; 2],
            calls: 1,
            before,
            times: Times { generated_us, library_us, measured: false },
            request: None,
        };
        let all = || {
            vec![
                share("sure", [40.0, 100.0], 0),
                share("even", [60.0, 60.0], 0),
                share("other", [62.0, 60.0], 1),
                share("small", [40.0, 40.0], 0),
            ]
        };
        let of = |us: u64| {
            let mut keys: Vec<String> = chosen(&all(), Duration::from_micros(us), true).into_iter().collect();
            keys.sort();
            keys.iter().map(|key| key.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(2500), ["even"]);
        assert_eq!(of(5000), ["even", "small"]);
        assert_eq!(of(7000), ["even", "other", "small"]);
        assert_eq!(of(10_000), ["even", "other", "small", "sure"]);
    }

    #[test]
    fn what_takes_most_is_measured_first() {
        let share = |key: &str, calls: usize, us: f64| Share {
            key: format!("of no machine: {key}"),
            op: String::from("aten::linear"),
            packs: [false; 2],
            calls,
            before: 0,
            times: Times { generated_us: us, library_us: us, measured: false },
            request: None,
        };
        let all = || vec![share("one", 1, 90.0), share("many", 50, 80.0), share("large", 1, 30_000.0)];
        let of = |ms: u64| {
            let mut keys: Vec<String> =
                chosen(&all(), Duration::from_millis(ms), false).into_iter().collect();
            keys.sort();
            keys.iter().map(|key| key.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(160), ["large", "many", "one"]);
        assert_eq!(of(145), ["large", "many"]);
        assert_eq!(of(50), ["many", "one"]);
        assert_eq!(of(10), [""; 0]);
        assert_eq!(chosen(&all(), Duration::from_millis(145), true).len(), 3);
        // With enough others what takes long is judged from them.
        let mut more = all();
        more.push(share("other", 1, 70.0));
        let measured = chosen(&more, MAX_PLAN_TIME, false);
        assert_eq!((measured.len(), measured.iter().any(|key| key.ends_with("large"))), (3, false));
    }
}
