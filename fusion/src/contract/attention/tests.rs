//! Plans with generated attention, run in the interpreter and compared with sums in `f64`.

use crate::contract::row_tests::exact;
use crate::contract::tests::{memory, run};
use crate::contract::{Products, Times};
use crate::machine::Profile;
use crate::pipeline::{plan, primitive};
use crate::plan::{Plan, StepKind};
use crate::types::{Dims, TensorType, row_major};
use crate::{Graph, choose_products, parse_graph, verify};

/// A mask of scores.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mask {
    None,
    /// True where a number of this shape is at least the threshold.
    Kept(&'static [i64], f64),
    /// The logarithm of what is positive, which is -inf elsewhere.
    Added(&'static [i64]),
}

/// A call of attention.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) dtype: &'static str,
    /// Batch, heads of queries, heads of keys.
    pub(super) batch: [i64; 3],
    pub(super) queries: i64,
    pub(super) keys: i64,
    pub(super) width: i64,
    pub(super) depth: i64,
    /// Whether tensors lie as `[batch, sequence, heads, elements]`.
    pub(super) sequence_first: bool,
    pub(super) causal: bool,
    pub(super) scale: Option<f64>,
    pub(super) mask: Mask,
    /// Whether the graph repeats keys and values for the heads that share them.
    pub(super) repeated: bool,
    /// Whether ranges of keys have instances of their own.
    pub(super) ranged: bool,
    /// Whether members of the batch share keys and values.
    pub(super) broadcast: bool,
    /// Whether the queries, of as many elements as values, multiply the result.
    pub(super) gated: bool,
    /// Of all tensors: nothing on a processor.
    pub(super) device: &'static str,
}

pub(super) const PLAIN: Case = Case {
    dtype: "f32",
    batch: [2, 3, 3],
    queries: 9,
    keys: 11,
    width: 8,
    depth: 8,
    sequence_first: false,
    causal: false,
    scale: None,
    mask: Mask::None,
    repeated: false,
    ranged: false,
    broadcast: false,
    device: "",
    gated: false,
};

fn joined(numbers: &[i64]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Case {
    fn strides(&self, heads: i64, rows: i64, elements: i64) -> Dims {
        match self.sequence_first {
            true => Dims::from_slice(&[rows * heads * elements, elements, heads * elements, 1]),
            false => row_major(&[self.batch[0], heads, rows, elements]),
        }
    }

    fn ty(&self, heads: i64, rows: i64, elements: i64) -> String {
        let shape = [self.batch[0], heads, rows, elements];
        let strides = self.strides(heads, rows, elements);
        let strides = if self.sequence_first { format!("{{{}}}", joined(&strides)) } else { String::new() };
        format!("{}[{}]{strides}{}", self.dtype, joined(&shape), self.device)
    }

    pub(super) fn text(&self) -> String {
        let [_, heads, few] = self.batch;
        let (mask, name) = match self.mask {
            Mask::None => (String::new(), "None"),
            Mask::Kept(shape, least) => {
                let shape = format!("[{}]{}", joined(shape), self.device);
                let input = format!("%3 = input 3 : f32{shape}");
                (format!("{input}\n%4 = aten::ge.Scalar(self=%3, other={least:?}) : bool{shape}"), "%4")
            }
            Mask::Added(shape) => {
                let ty = format!("{}[{}]{}", self.dtype, joined(shape), self.device);
                let input = format!("%3 = input 3 : {ty}\n%5 = aten::relu(self=%3) : {ty}");
                (format!("{input}\n%4 = aten::log(self=%5) : {ty}"), "%4")
            }
        };
        let scale = self.scale.map_or("None".to_owned(), |scale| format!("{scale:?}"));
        let (causal, shared) = (self.causal, heads != few && !self.repeated);
        let ([key, value], repeats) = if self.repeated { self.repeats() } else { Default::default() };
        let (key, value) = if self.repeated { (key, value) } else { ("%1".to_owned(), "%2".to_owned()) };
        let shared_keys =
            Case { batch: [if self.broadcast { 1 } else { self.batch[0] }, heads, few], ..*self };
        let (q, k) = (self.ty(heads, self.queries, self.width), shared_keys.ty(few, self.keys, self.width));
        let (v, y) = (shared_keys.ty(few, self.keys, self.depth), self.ty(heads, self.queries, self.depth));
        let gate = match self.gated {
            true => format!("%7 = aten::mul.Tensor(self=%6, other=%0) : {y}\noutputs %7"),
            false => String::from("outputs %6"),
        };
        format!(
            "graph {{
               %0 = input 0 : {q}
               %1 = input 1 : {k}
               %2 = input 2 : {v}
               {mask}
               {repeats}
               %6 = aten::scaled_dot_product_attention(query=%0, key={key}, value={value}, attn_mask={name}, \
                 dropout_p=0, is_causal={causal}, scale={scale}, enable_gqa={shared}) : {y}
               {gate}
             }}"
        )
    }

    /// The names of keys and values with a head for each of the queries', and what makes these.
    fn repeats(&self) -> ([String; 2], String) {
        let [batch, heads, few] = self.batch;
        let batch = if self.broadcast { 1 } else { batch };
        let shared = heads / few;
        let mut text = String::new();
        let names = [(1, self.width), (2, self.depth)].map(|(number, elements)| {
            let mut ty = |name: String, call: String, shape: &[i64], strides: &[i64]| {
                let strides = format!("{{{}}}", joined(strides));
                let ty = format!("{}[{}]{strides}{}", self.dtype, joined(shape), self.device);
                text.push_str(&format!("{name} = {call} : {ty}\n"));
                name
            };
            let own = self.strides(few, self.keys, elements);
            let [n, h, j, e] = [own[0], own[1], own[2], own[3]];
            let one = [batch, few, 1, self.keys, elements];
            let unsqueezed = format!("aten::unsqueeze(self=%{number}, dim=2)");
            let unsqueezed = ty(format!("%1{number}"), unsqueezed, &one, &[n, h, h, j, e]);
            let all = [batch, few, shared, self.keys, elements];
            let expanded =
                format!("aten::expand(self={unsqueezed}, size=[{}], implicit=false)", joined(&all));
            let expanded = ty(format!("%2{number}"), expanded, &all, &[n, h, 0, j, e]);
            let whole = [batch, heads, self.keys, elements];
            let call = format!("aten::reshape(self={expanded}, shape=[{}])", joined(&whole));
            ty(format!("%3{number}"), call, &whole, &row_major(&whole))
        });
        (names, text)
    }

    /// The result in `f64`, in the order of indices.
    fn exact(&self, graph: &Graph) -> Vec<f64> {
        let [batch, heads, few] = self.batch;
        let input = |slot: u32| {
            let id = graph.ids().find(|&id| graph.node(id).op == crate::graph::Op::Input(slot)).unwrap();
            let ty: TensorType = graph.ty(id.into()).clone();
            let data = memory(slot, &ty);
            move |index: &[i64]| {
                let lead = index.len() - ty.shape.len();
                let at = index[lead..].iter().zip(&ty.shape).zip(&ty.strides);
                data[at.map(|((&i, &n), &s)| if n == 1 { 0 } else { i * s }).sum::<i64>() as usize]
            }
        };
        let (q, k, v) = (input(0), input(1), input(2));
        let mask = (self.mask != Mask::None).then(|| input(3));
        let scale = self.scale.unwrap_or(1.0 / (self.width as f64).sqrt());
        let mut out = Vec::new();
        for (n, h, i) in (0..batch)
            .flat_map(|n| (0..heads).map(move |h| (n, h)))
            .flat_map(|(n, h)| (0..self.queries).map(move |i| (n, h, i)))
        {
            let of = h / (heads / few);
            let score = |j: i64| {
                let product = |e: i64| q(&[n, h, i, e]) * k(&[n, of, j, e]);
                let score = scale * (0..self.width).map(product).sum::<f64>();
                match (self.mask, &mask) {
                    (Mask::Kept(_, least), Some(mask)) if mask(&[n, h, i, j]) < least => f64::NEG_INFINITY,
                    (Mask::Added(_), Some(mask)) => score + mask(&[n, h, i, j]).max(0.0).ln(),
                    _ if self.causal && j > i => f64::NEG_INFINITY,
                    _ => score,
                }
            };
            let scores: Vec<f64> = (0..self.keys).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> =
                scores.iter().map(|s| if most.is_finite() { (s - most).exp() } else { 0.0 }).collect();
            let sum: f64 = weights.iter().sum();
            for e in 0..self.depth {
                let total: f64 = (0..self.keys).map(|j| weights[j as usize] * v(&[n, of, j, e])).sum();
                let gate = if self.gated { q(&[n, h, i, e]) } else { 1.0 };
                out.push(if sum == 0.0 { 0.0 } else { total / sum * gate });
            }
        }
        out
    }

    /// Compares the kernel with sums in `f64`. A mask is a part of it, or has a kernel of its own where the cost model says so.
    fn check(&self) {
        self.check_on(Profile::host, 1 + usize::from(self.ranged));
    }

    /// The same on a machine, where so many kernels compute it.
    pub(super) fn check_on(&self, profile: fn(u32) -> Profile, kernels: usize) {
        let text = self.text();
        let exact = self.exact(&parse_graph(&text).unwrap());
        let [_, heads, _] = self.batch;
        let strides = self.strides(heads, self.queries, self.depth);
        let tolerance = match self.dtype {
            "f64" => 1e-13,
            "f32" => 1e-5,
            _ => 1e-2,
        };
        let mut before: Option<Vec<f64>> = None;
        for threads in [1, 2, 16] {
            let plan = with_packed_operands(&text, &profile(threads));
            assert_eq!(plan.extern_count(), 0, "{text}");
            let masked = usize::from(self.mask != Mask::None);
            let least = if self.device.is_empty() { kernels } else { kernels + masked };
            assert!((least..=kernels + masked).contains(&plan.kernel_count()), "{text}\n{plan}");
            let found = run(&plan).remove(0);
            assert!(before.as_ref().is_none_or(|before| *before == found), "{threads} threads\n{text}");
            assert_eq!(found.len(), exact.len());
            let shape = [self.batch[0], heads, self.queries, self.depth];
            for (number, e) in exact.iter().enumerate() {
                let place = row_major(&shape);
                let at: i64 = (0..4).map(|d| number as i64 / place[d] % shape[d] * strides[d]).sum();
                let f = found[at as usize];
                let close = (f - e).abs() <= tolerance * e.abs().max(1.0);
                assert!(close, "element {number}: {f} instead of {e}\n{text}");
            }
            before = Some(found);
        }
    }
}

/// A plan of kernels, before which operands are packed wherever that can be done.
fn with_packed_operands(text: &str, profile: &Profile) -> Plan {
    let mut graph = primitive(text, profile);
    choose_products(&mut graph, profile, Products::Measured, None, u64::MAX, &mut |candidate| {
        let generated_us = if candidate.template.operand_kernels.is_empty() { 1.5 } else { 1.0 };
        Some(Times { generated_us, library_us: 2.0, measured: true })
    });
    plan(&graph, profile).unwrap()
}

#[test]
fn odd_sizes_are_one_kernel() {
    for (queries, keys, width, depth) in
        [(1, 1, 1, 1), (1, 40, 8, 8), (2, 7, 3, 5), (17, 33, 8, 16), (40, 9, 33, 8), (5, 70, 40, 12)]
    {
        Case { queries, keys, width, depth, batch: [1, 2, 2], ..PLAIN }.check();
    }
}

#[test]
fn many_blocks_of_queries_and_keys() {
    Case { queries: 70, keys: 150, batch: [1, 1, 1], ..PLAIN }.check();
    Case { queries: 130, keys: 256, batch: [1, 1, 1], width: 4, depth: 4, ..PLAIN }.check();
}

#[test]
fn other_types_are_summed_in_theirs_or_f32() {
    for dtype in ["f64", "bf16", "f16"] {
        Case { dtype, keys: 40, ..PLAIN }.check();
        Case { dtype, causal: true, queries: 20, keys: 20, batch: [1, 2, 2], ..PLAIN }.check();
    }
}

#[test]
fn heads_between_rows_are_read_where_they_lie() {
    Case { sequence_first: true, ..PLAIN }.check();
    Case { sequence_first: true, queries: 33, keys: 33, causal: true, ..PLAIN }.check();
}

#[test]
fn a_query_sees_keys_up_to_its_own() {
    for (queries, keys) in [(1, 1), (9, 9), (9, 30), (30, 9), (70, 70), (130, 40), (40, 130), (128, 128)] {
        Case { queries, keys, causal: true, batch: [1, 2, 2], width: 4, depth: 4, ..PLAIN }.check();
    }
}

#[test]
fn members_of_a_batch_share_keys() {
    let shared = Case { broadcast: true, batch: [3, 2, 2], ..PLAIN };
    shared.check();
    Case { sequence_first: true, mask: Mask::Kept(&[9, 11], 0.25), ..shared }.check();
    Case { queries: 1, ..shared }.check();
    Case { repeated: true, batch: [3, 6, 2], ..shared }.check();
}

#[test]
fn heads_share_keys() {
    Case { batch: [2, 6, 2], ..PLAIN }.check();
    Case { batch: [2, 4, 1], sequence_first: true, mask: Mask::Kept(&[1, 4, 9, 11], 0.0), ..PLAIN }.check();
    Case { batch: [1, 6, 3], queries: 1, mask: Mask::Kept(&[1, 11], 0.0), ..PLAIN }.check();
    // One for all queries.
    Case { mask: Mask::Kept(&[11], 0.25), ..PLAIN }.check();
    Case { mask: Mask::Added(&[11]), ..PLAIN }.check();
}

/// Few queries are taken each by itself, and those of heads that share keys together.
#[test]
fn few_queries() {
    for queries in [1, 2, 3, 4] {
        Case { queries, keys: 150, width: 5, ..PLAIN }.check();
        let mask = Mask::Added(if queries == 1 { &[2, 3, 1, 40] } else { &[1, 40] });
        Case { queries, keys: 40, sequence_first: true, mask, ..PLAIN }.check();
    }
    for [heads, few] in [[6, 2], [8, 1], [32, 2], [5, 5]] {
        let one = Case { queries: 1, keys: 70, batch: [2, heads, few], ..PLAIN };
        one.check();
        Case { sequence_first: true, causal: true, ..one }.check();
    }
    let masked = Case { queries: 1, keys: 40, batch: [2, 6, 2], ..PLAIN };
    for shape in [&[2, 6, 1, 40][..], &[2, 1, 1, 40], &[1, 6, 1, 40]] {
        Case { mask: Mask::Kept(shape, 0.25), ..masked }.check();
        Case { mask: Mask::Added(shape), ..masked }.check();
    }
}

/// Keys and values that a model repeats are read as they were before: nothing repeats them.
#[test]
fn what_repeats_keys_is_not_computed() {
    for [heads, few] in [[6, 2], [4, 1], [32, 2], [12, 6]] {
        for queries in [1, 9] {
            let repeated = Case { repeated: true, batch: [2, heads, few], queries, ..PLAIN };
            repeated.check();
            Case { sequence_first: true, keys: 9, causal: true, ..repeated }.check();
        }
    }
    Case { repeated: true, batch: [2, 6, 2], mask: Mask::Kept(&[2, 6, 9, 11], 0.25), ..PLAIN }.check();
}

/// Where libtorch's call is used, it gets what it would have got.
#[test]
fn a_call_that_stays_gets_repeated_keys() {
    let text = Case { repeated: true, batch: [2, 6, 2], ..PLAIN }.text();
    let mut graph = primitive(&text, &Profile::host(2));
    let before = graph.to_string();
    let mut repeats = Vec::new();
    choose_products(&mut graph, &Profile::host(2), Products::Measured, None, u64::MAX, &mut |candidate| {
        repeats.push(candidate.template.repeated_heads.as_ref().map(|heads| heads.shared));
        Some(Times { generated_us: 1e9, library_us: 1.0, measured: true })
    });
    // It has a number under which the reason is found.
    let after = graph.to_string().replace(&format!(" !replay {}", 1 << 30), "");
    assert_eq!((after, repeats), (before, vec![Some(3)]));
}

/// What is measured alone is the kernel that is chosen, over heads that are not repeated.
#[test]
fn a_candidate_alone_is_the_same_kernel() {
    for sequence_first in [false, true] {
        let text = Case { repeated: true, sequence_first, batch: [2, 6, 2], ..PLAIN }.text();
        let (profile, mut found) = (Profile::host(2), 0);
        choose_products(
            &mut primitive(&text, &profile),
            &profile,
            Products::Measured,
            None,
            u64::MAX,
            &mut |candidate| {
                let (graph, node) = candidate.alone();
                verify(&graph).unwrap();
                let types = |graph: &Graph, node| {
                    graph.operands(node).iter().map(|&v| graph.ty(v).clone()).collect::<Vec<_>>()
                };
                assert_eq!(types(&graph, node), types(candidate.graph, candidate.node));
                let (graph, node) = candidate.computed();
                verify(&graph).unwrap();
                let Some(Ok(kernel)) = &graph.node(node).kernel else { panic!("{graph}") };
                assert_eq!(kernel.program, candidate.template.kernel.program);
                assert_eq!(kernel.layouts, candidate.template.kernel.layouts);
                found += 1;
                None
            },
        );
        assert_eq!(found, 1);
    }
}

#[test]
fn what_the_call_would_move_is_in_the_reason() {
    let profile = Profile::host(2);
    let mut graph = primitive(&Case { repeated: true, batch: [2, 6, 2], ..PLAIN }.text(), &profile);
    choose_products(&mut graph, &profile, Products::Measured, None, u64::MAX, &mut |_| {
        Some(Times { generated_us: 1.0, library_us: 1e9, measured: true })
    });
    let plan = plan(&graph, &profile).unwrap();
    let StepKind::Kernel(kernel) = &plan.steps[0].kind else { panic!("{plan}") };
    let note = kernel.note.as_deref().unwrap();
    assert!(
        note.starts_with("measured: 1.0 us generated") && note.ends_with(" us for layout conversions"),
        "{note}"
    );
}

#[test]
fn the_factor_is_given() {
    for scale in [0.0, 0.3, -2.0] {
        Case { scale: Some(scale), ..PLAIN }.check();
    }
}

#[test]
fn masks_are_repeated() {
    for shape in [&[9, 11][..], &[2, 3, 9, 11], &[2, 1, 1, 11], &[1, 3, 9, 1], &[1, 1, 9, 11]] {
        Case { mask: Mask::Kept(shape, 0.25), ..PLAIN }.check();
        Case { mask: Mask::Added(shape), ..PLAIN }.check();
    }
}

#[test]
fn a_query_without_keys_gives_zero() {
    let narrow = Case { keys: 2, ..PLAIN };
    Case { mask: Mask::Kept(&[2, 3, 9, 2], 0.75), ..narrow }.check();
    Case { mask: Mask::Added(&[2, 3, 9, 2]), ..narrow }.check();
    Case { mask: Mask::Kept(&[2, 3, 9, 40], 2.0), keys: 40, ..PLAIN }.check();
}

/// Splits of keys follow from shapes, and give the same bits on any number of threads.
#[test]
fn ranges_of_keys_have_instances_of_their_own() {
    let long = Case { batch: [1, 1, 1], queries: 1, keys: 1100, width: 64, depth: 60, ranged: true, ..PLAIN };
    for keys in [1100, 1600] {
        Case { keys, ..long }.check();
    }
    for queries in [2, 9] {
        Case { queries, keys: 2700, width: 12, depth: 13, ..long }.check();
    }
    for dtype in ["f64", "bf16"] {
        Case { dtype, ..long }.check();
    }
    Case { batch: [1, 3, 1], sequence_first: true, ..long }.check();
    Case { batch: [1, 5, 1], repeated: true, ..long }.check();
    for shape in [&[1, 1, 1, 1100][..], &[1, 1]] {
        Case { mask: Mask::Kept(shape, 0.25), ..long }.check();
        Case { mask: Mask::Added(shape), ..long }.check();
    }
    // Whole ranges are closed, and rows.
    Case { mask: Mask::Kept(&[1, 1, 1, 1100], 1.0), ..long }.check();
    Case { mask: Mask::Kept(&[1, 1, 9, 1], 0.25), queries: 9, width: 12, depth: 13, ..long }.check();
}

/// A plan says how its kernels compute attention.
#[test]
fn schedules_have_names() {
    let of = |case: Case| -> Vec<String> {
        let plan = with_packed_operands(&case.text(), &Profile::host(2));
        let kernels = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Kernel(kernel) => Some(kernel.schedule.clone()),
            StepKind::Extern(_) => None,
        });
        kernels.filter(|schedule| !schedule.is_empty()).collect()
    };
    let shared = Case { repeated: true, batch: [2, 6, 2], ..PLAIN };
    let long = Case { batch: [1, 1, 1], queries: 1, keys: 1600, width: 64, depth: 64, ranged: true, ..PLAIN };
    let all = [PLAIN, shared, long].map(of).concat();
    expect_test::expect![[r#"
        online softmax, blocks of 16 x 128 keys
        online softmax, blocks of 16 x 128 keys, 3 heads share keys and values (GQA)
        split-KV in 3 parts, online softmax, blocks of 1 x 128 keys
        split-KV: combines 3 parts"#]]
    .assert_eq(&all.join("\n"));
}

/// Where there are enough instances, little to do, or keys that some queries do not see, an instance goes through all.
#[test]
fn few_keys_and_many_instances_have_no_ranges() {
    let long = Case { batch: [1, 1, 1], queries: 1, keys: 1100, width: 64, depth: 60, ..PLAIN };
    let splits = |case: &Case| {
        let mut graph = primitive(&case.text(), &Profile::host(2));
        choose_products(&mut graph, &Profile::host(2), Products::Generated, None, u64::MAX, &mut |_| None);
        let text = graph.to_string();
        let made = text.find("kernel attention").map(|at| text[at..].split_once("f32").unwrap().1);
        made.map(|ty| ty.split(']').next().unwrap().to_owned())
    };
    let of = |text: &str| Some(format!("[{text}"));
    assert_eq!(splits(&long), of("1,2,62"));
    assert_eq!(splits(&Case { keys: 32768, ..long }), of("1,16,62"));
    assert_eq!(splits(&Case { keys: 32768, batch: [2, 3, 3], ..long }), of("6,3,62"));
    assert_eq!(splits(&Case { keys: 32768, batch: [1, 8, 2], ..long }), of("2,8,248"));
    assert_eq!(splits(&Case { keys: 1023, ..long }), None);
    assert_eq!(splits(&Case { width: 32, ..long }), None);
    assert_eq!(splits(&Case { batch: [1, 2, 2], ..long }), None);
    assert_eq!(splits(&Case { keys: 32768, batch: [2, 8, 8], ..long }), None);
    assert_eq!(splits(&Case { queries: 600, keys: 32768, ..long }), None);
    // What ranges leave would not be small beside keys.
    assert_eq!(splits(&Case { queries: 200, keys: 2048, ..long }), None);
    assert_eq!(splits(&Case { queries: 400, keys: 1100, causal: true, ..long }), None);
}

/// Of `bf16`, keys and values lie in pairs where there are instructions for these.
#[test]
fn keys_and_values_are_packed_in_pairs() {
    let pairs = |threads| Profile::host(threads).with_vnni([800.0, 0.0]);
    let wide =
        Case { dtype: "bf16", batch: [1, 1, 1], queries: 64, keys: 128, width: 200, depth: 56, ..PLAIN };
    wide.check_on(pairs, 3);
    for (queries, keys, width, depth) in [(70, 150, 128, 128), (90, 131, 33, 240), (100, 200, 270, 1)] {
        Case { queries, keys, width, depth, ..wide }.check_on(pairs, 3);
    }
    for (queries, keys) in [(130, 130), (140, 250), (200, 130)] {
        Case { queries, keys, causal: true, ..wide }.check_on(pairs, 3);
    }
    Case { sequence_first: true, batch: [2, 2, 2], ..wide }.check_on(pairs, 3);
    Case { sequence_first: true, batch: [1, 4, 2], keys: 140, ..wide }.check_on(pairs, 3);
    Case { repeated: true, batch: [1, 4, 2], scale: Some(-0.5), ..wide }.check_on(pairs, 3);
    let masked = Case { batch: [1, 2, 2], keys: 140, ..wide };
    for shape in [&[64, 140][..], &[1, 2, 64, 140], &[1, 1, 1, 140], &[1, 2, 64, 1]] {
        Case { mask: Mask::Kept(shape, 0.25), ..masked }.check_on(pairs, 3);
        Case { mask: Mask::Added(shape), ..masked }.check_on(pairs, 3);
    }
    // Fewer queries, keys and elements, and other types.
    for other in [
        Case { queries: 63, ..wide },
        Case { keys: 127, ..wide },
        Case { width: 40, ..wide },
        Case { dtype: "f16", ..wide },
    ] {
        other.check_on(pairs, 1);
    }
}

#[test]
fn a_mask_of_many_blocks() {
    let wide = Case { batch: [1, 1, 1], queries: 40, keys: 150, width: 4, depth: 4, ..PLAIN };
    Case { mask: Mask::Kept(&[40, 150], 0.25), ..wide }.check();
    Case { mask: Mask::Added(&[1, 1, 1, 150]), ..wide }.check();
}

/// How many kernels are chosen for a graph.
fn chosen(text: &str) -> usize {
    let mut graph = primitive(text, &Profile::host(2));
    choose_products(&mut graph, &Profile::host(2), Products::Generated, None, u64::MAX, &mut |_| None);
    graph.ids().filter(|&id| matches!(graph.node(id).kernel, Some(Ok(_)))).count()
}

#[test]
fn what_the_template_does_not_know_stays_a_call() {
    let text = PLAIN.text();
    assert_eq!(chosen(&text), 1);
    assert_eq!(chosen(&text.replace("dropout_p=0", "dropout_p=0.5")), 0);
    assert_eq!(chosen(&Case { keys: 0, ..PLAIN }.text()), 0);
    assert_eq!(chosen(&Case { width: 1024, ..PLAIN }.text()), 0);
    assert_eq!(chosen(&Case { batch: [1, 3, 2], ..PLAIN }.text()), 0);
    assert_eq!(chosen(&Case { dtype: "i32", ..PLAIN }.text()), 0);
}

/// Queries, keys, values and a mask that pointwise operators compute become parts of attention where it loads them, at whatever strides,
/// and what they compute of its result where it stores it.
#[test]
fn neighbours_are_parts_of_attention() {
    let plan = |text: &str| with_packed_operands(text, &Profile { launch_us: 50.0, ..Profile::host(2) });
    let agree = |text: &str, kernels: usize| {
        let plan = plan(text);
        assert_eq!((plan.kernel_count(), plan.extern_count()), (kernels, 0), "{plan}");
        for (found, exact) in run(&plan).iter().zip(&exact(text, &Profile::host(2))) {
            assert_eq!(found.len(), exact.len());
            for (at, (f, e)) in found.iter().zip(exact).enumerate() {
                assert!((f - e).abs() <= 1e-5 * e.abs().max(1.0), "element {at}: {f} instead of {e}\n{plan}");
            }
        }
    };
    // Heads lie between rows; a mask is spread over heads; the result is gated where the heads are joined again.
    let around = "graph {
       %0 = input 0 : f32[2,9,24]
       %1 = input 1 : f32[2,11,24]
       %2 = input 2 : f32[2,11,24]
       %3 = input 3 : f32[2,1,9,11]
       %4 = input 4 : f32[2,9,24]
       %5 = aten::tanh(self=%0) : f32[2,9,24]
       %6 = aten::view(self=%5, size=[2,9,3,8]) : f32[2,9,3,8]
       %7 = aten::transpose.int(self=%6, dim0=1, dim1=2) : f32[2,3,9,8]{216,8,24,1}
       %8 = aten::mul.Tensor(self=%1, other=%1) : f32[2,11,24]
       %9 = aten::view(self=%8, size=[2,11,3,8]) : f32[2,11,3,8]
       %10 = aten::transpose.int(self=%9, dim0=1, dim1=2) : f32[2,3,11,8]{264,8,24,1}
       %11 = aten::relu(self=%2) : f32[2,11,24]
       %12 = aten::view(self=%11, size=[2,11,3,8]) : f32[2,11,3,8]
       %13 = aten::transpose.int(self=%12, dim0=1, dim1=2) : f32[2,3,11,8]{264,8,24,1}
       %14 = aten::mul.Tensor(self=%3, other=%3) : f32[2,1,9,11]
       %15 = aten::scaled_dot_product_attention(query=%7, key=%10, value=%13, attn_mask=%14, dropout_p=0, is_causal=false, scale=None, enable_gqa=false) : f32[2,3,9,8]{216,8,24,1}
       %16 = aten::transpose.int(self=%15, dim0=1, dim1=2) : f32[2,9,3,8]
       %17 = aten::view(self=%16, size=[2,9,24]) : f32[2,9,24]
       %18 = aten::sigmoid(self=%4) : f32[2,9,24]
       %19 = aten::mul.Tensor(self=%17, other=%18) : f32[2,9,24]
       outputs %19
     }";
    agree(around, 1);
    // In the order of the result's dimensions, which is not that of memory.
    let alike = "graph {
       %0 = input 0 : f32[2,9,3,8]
       %1 = input 1 : f32[2,3,11,8]
       %2 = input 2 : f32[3,1,8]
       %3 = aten::transpose.int(self=%0, dim0=1, dim1=2) : f32[2,3,9,8]{216,8,24,1}
       %4 = aten::scaled_dot_product_attention(query=%3, key=%1, value=%1, attn_mask=None, dropout_p=0, is_causal=true, scale=None, enable_gqa=false) : f32[2,3,9,8]{216,8,24,1}
       %5 = aten::mul.Tensor(self=%4, other=%2) : f32[2,3,9,8]{216,8,24,1}
       %6 = aten::transpose.int(self=%5, dim0=1, dim1=2) : f32[2,9,3,8]
       %7 = aten::transpose.int(self=%4, dim0=1, dim1=2) : f32[2,9,3,8]
       outputs %6, %7
     }";
    agree(alike, 1);
    // One query of heads that share keys.
    let one = "graph {
       %0 = input 0 : f32[2,6,1,8]
       %1 = input 1 : f32[2,2,40,8]
       %2 = aten::tanh(self=%0) : f32[2,6,1,8]
       %3 = aten::scaled_dot_product_attention(query=%2, key=%1, value=%1, attn_mask=None, dropout_p=0, is_causal=false, scale=None, enable_gqa=true) : f32[2,6,1,8]
       %4 = aten::neg(self=%3) : f32[2,6,1,8]
       outputs %4
     }";
    agree(one, 1);
    // As a Swin transformer writes it out: a bias for positions, and a mask for windows, of which an image has four.
    let windows = "graph {
       %0 = input 0 : f32[12,5,3,24]
       %1 = input 1 : f32[3,5,5]
       %2 = input 2 : f32[4,5,5]
       %3 = aten::permute(self=%0, dims=[2,0,1,3]) : f32[3,12,5,24]{24,360,72,1}
       %4 = aten::select.int(self=%3, dim=0, index=0) : f32[12,5,24]{360,72,1}
       %5 = aten::view(self=%4, size=[12,5,3,8]) : f32[12,5,3,8]{360,72,8,1}
       %6 = aten::transpose.int(self=%5, dim0=1, dim1=2) : f32[12,3,5,8]{360,8,72,1}
       %7 = aten::mul.Scalar(self=%6, other=0.5) : f32[12,3,5,8]{120,8,24,1}
       %8 = aten::select.int(self=%3, dim=0, index=1) : f32[12,5,24]{360,72,1}
       %9 = aten::view(self=%8, size=[12,5,3,8]) : f32[12,5,3,8]{360,72,8,1}
       %10 = aten::permute(self=%9, dims=[0,2,3,1]) : f32[12,3,8,5]{360,8,1,72}
       %11 = aten::matmul(self=%7, other=%10) : f32[12,3,5,5]
       %12 = aten::unsqueeze(self=%1, dim=0) : f32[1,3,5,5]
       %13 = aten::add.Tensor(self=%11, other=%12, alpha=1) : f32[12,3,5,5]
       %14 = aten::view(self=%13, size=[3,4,3,5,5]) : f32[3,4,3,5,5]
       %15 = aten::unsqueeze(self=%2, dim=1) : f32[4,1,5,5]
       %16 = aten::unsqueeze(self=%15, dim=0) : f32[1,4,1,5,5]
       %17 = aten::add.Tensor(self=%14, other=%16, alpha=1) : f32[3,4,3,5,5]
       %18 = aten::view(self=%17, size=[12,3,5,5]) : f32[12,3,5,5]
       %19 = aten::softmax.int(self=%18, dim=-1, dtype=None) : f32[12,3,5,5]
       %20 = aten::select.int(self=%3, dim=0, index=2) : f32[12,5,24]{360,72,1}
       %21 = aten::view(self=%20, size=[12,5,3,8]) : f32[12,5,3,8]{360,72,8,1}
       %22 = aten::transpose.int(self=%21, dim0=1, dim1=2) : f32[12,3,5,8]{360,8,72,1}
       %23 = aten::matmul(self=%19, other=%22) : f32[12,3,5,8]
       %24 = aten::neg(self=%23) : f32[12,3,5,8]
       outputs %24
     }";
    agree(windows, 1);
    // Heads with a factor each, as of cosine attention, and a batch of three dimensions.
    let factors = "graph {
       %0 = input 0 : f32[2,3,4,9,8]
       %1 = input 1 : f32[2,3,4,11,8]
       %2 = input 2 : f32[2,3,4,11,8]
       %3 = input 3 : f32[4,1,1]
       %4 = input 4 : f32[9,11]
       %10 = aten::transpose.int(self=%1, dim0=-2, dim1=-1) : f32[2,3,4,8,11]{1056,352,88,1,8}
       %5 = aten::matmul(self=%0, other=%10) : f32[2,3,4,9,11]
       %6 = aten::mul.Tensor(self=%5, other=%3) : f32[2,3,4,9,11]
       %7 = aten::add.Tensor(self=%6, other=%4, alpha=1) : f32[2,3,4,9,11]
       %8 = aten::softmax.int(self=%7, dim=-1, dtype=None) : f32[2,3,4,9,11]
       %9 = aten::matmul(self=%8, other=%2) : f32[2,3,4,9,8]
       outputs %9
     }";
    agree(factors, 1);
    let masked = factors.replace("other=%3)", "other=%4)").replace("self=%6, other=%4", "self=%6, other=%3");
    let calls = |text: &str| plan(text).graph.to_string().matches("scaled_dot_product_attention").count();
    assert_eq!((calls(factors), calls(&masked)), (1, 0), "a factor of each score");
}
