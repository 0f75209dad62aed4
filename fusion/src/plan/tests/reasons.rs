//! Every text by which a plan says why an edge was fused or cut, and a graph for which it does.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use rustc_hash::FxHashSet;

mod neighbours;

use neighbours::{
    accesses_that_are_no_loads_and_no_stores, epilogues_of_several_results, gathers_behind_block_kernels,
    kernels_that_do_not_fit_with_their_neighbours, kernels_that_do_not_match_their_calls,
    neighbours_of_other_elements, neighbours_of_products_of_one_row, neighbours_of_unaligned_products,
    operands_at_strides, other_orders_of_elements, products_and_their_neighbours, products_in_other_blocks,
    products_whose_loads_run_ahead, prologues_that_are_stored,
};

use super::block_kernels::{ATOMIC, SQUARE, kernel};
use super::memory::PICKED;
use super::*;
use crate::block_kernel::{BlockKernel, Layout, Tied};
use crate::contract::{MatchFailure, Products, choose_products};
use crate::enum_variants::{Variants, variants};
use crate::graph::AtenCall;
use crate::kernel::{BlockRefusal, Refusal};
use crate::lower::NotLowered;
use crate::pipeline::PipelineError;
use crate::plan::{Decision, PlanError, Step};
use crate::recording::Arg;
use crate::text::parse_graph;

variants!(Verdict: Fused, Epilogue, Prologue, Together, Illegal, Cycle, Library, Operator, Slower, SlowerPrologue, Memory, Limit, Hint);
variants!(
    Refusal: Extent, OtherReduction, OtherRow, GatherSource, TooLarge, TooLong, TooManyBuffers, ElementType, Extern,
    Empty, Devices, Block
);
variants!(
    BlockRefusal: Reduction, UnknownStores, WideRows, PrologueReduction, Both, Blocks, RunsAhead, Tiles, Elements, Windows, Repeated, Joined,
    SharedMemory, UnknownLoads, OtherStrides, NoLoads, NoStores, SeveralResults, PrologueStored, Gather, ResultOrder, Order, WritesOperand, Parameters
);

variants!(MatchFailure: ElementTypes, HalfTypes, Vector, Strides, ImageStrides, Sizes, NoTemplate, Small, Memory, Device, Library);
variants!(NotLowered: Operator, Random, Writes, Tensors, Device, Arguments);

/// Graphs, and by what each is planned.
const CASES: &[fn(&mut Seen)] = &[
    a_cycle_and_calls,
    a_kernel_that_would_be_slower,
    operators_that_a_hint_keeps_together,
    a_limit_of_rewrites,
    operators_that_hints_keep_separate,
    other_elements,
    other_reductions_and_other_rows,
    gathers_of_computed_tables,
    long_kernels,
    many_buffers,
    large_nodes,
    contractions_that_no_kernel_computes,
    products_and_their_neighbours,
    kernels_that_do_not_fit_with_their_neighbours,
    neighbours_of_other_elements,
    operands_at_strides,
    neighbours_of_unaligned_products,
    neighbours_of_products_of_one_row,
    accesses_that_are_no_loads_and_no_stores,
    epilogues_of_several_results,
    products_in_other_blocks,
    products_whose_loads_run_ahead,
    prologues_that_are_stored,
    gathers_behind_block_kernels,
    other_orders_of_elements,
    kernels_that_do_not_match_their_calls,
    tensors_that_kernels_do_not_take,
    readers_that_would_hold_memory,
    contractions_that_kernels_decline,
    calls_that_are_not_lowered,
];

#[test]
fn every_reason_appears() {
    let mut seen = Seen::default();
    CASES.iter().for_each(|case| case(&mut seen));
    let all = [Verdict::NAMES, Refusal::NAMES, BlockRefusal::NAMES, MatchFailure::NAMES, NotLowered::NAMES]
        .concat();
    let unseen: Vec<&str> = all.into_iter().filter(|name| !seen.names.contains(name)).collect();
    assert_eq!(unseen, [""; 0], "a graph is missing for which a plan says this");
    let remedies: Vec<String> = seen.remedies.iter().map(|(name, said)| format!("{name}: {said}")).collect();
    expect![[r#"
        BlockRefusal::Blocks: products of the same sizes, over operands that lie alike
        BlockRefusal::Both: nothing today: one product of another's result is a kernel of its own, but in attention, whose scores stay in registers
        BlockRefusal::Elements: a slice behind what is computed of it, or slices of the product's operands in its place
        BlockRefusal::Gather: nothing today of a gather itself; elements picked behind what is computed of them, and rows of an operand picked of the product's result
        BlockRefusal::Joined: nothing today of padding and concatenations; what is computed of the result alone, in front of them
        BlockRefusal::NoLoads: a kernel that only loads that operand
        BlockRefusal::NoStores: a kernel that stores its result once
        BlockRefusal::Order: a neighbour in the order of the product's rows: what transposes moved away from it
        BlockRefusal::OtherStrides: an operand that lies contiguous: `contiguous`, or a layout that the product reads as it is
        BlockRefusal::Parameters: a kernel with one parameter for each operand and result of its operator
        BlockRefusal::PrologueReduction: nothing: a reduction of rows ends before a product's loads of them begin; what is computed of it for each element may be the prologue
        BlockRefusal::PrologueStored: nothing else that reads the value: computed in the product's loads, it is nowhere in memory
        BlockRefusal::Reduction: a reduction along the rows that the product stores, its last dimension
        BlockRefusal::Repeated: nothing today of what repeats elements, as a broadcast or upsampling; what is computed of the result alone, in front of it
        BlockRefusal::ResultOrder: an epilogue that reads each element where it is stored: what transposes or rolls behind it
        BlockRefusal::RunsAhead: nothing today: on a GPU two products are two kernels
        BlockRefusal::SeveralResults: an epilogue of one of the results
        BlockRefusal::SharedMemory: nothing today: a prologue is computed in loads to registers, and on a GPU products and attention copy operands to shared memory
        BlockRefusal::Tiles: fewer operands in the neighbour, or a device with more shared memory
        BlockRefusal::UnknownLoads: nothing today: products in blocks and attention compute a prologue in their loads; convolutions, unaligned GEMM and kernels that pack operands do not
        BlockRefusal::UnknownStores: nothing today: products, and convolutions whose result has its channels innermost, reduce rows as an epilogue; GEMV, attention and other convolutions do not
        BlockRefusal::WideRows: nothing today: a row is reduced in the kernel that stores it where one block holds all of it
        BlockRefusal::Windows: nothing today of windows, as those of pooling; where parts of the result are combined, as halves in a GLU, a product for each part
        BlockRefusal::WritesOperand: a kernel that writes results alone
        MatchFailure::Device: a CPU, or on a GPU with `wgmma` (compute capability 9.0) an operator other than a convolution of groups or a transposed one
        MatchFailure::ElementTypes: operands and results of one floating-point type
        MatchFailure::HalfTypes: operands and results of f16 or bf16: a model of one of these, as `--dtype bf16` makes it
        MatchFailure::ImageStrides: on a GPU images, filters and result in channels-last, of a multiple of 8 channels; on a CPU contiguous ones
        MatchFailure::Library: another choice of products than `library` (`Options::products`, `--products`)
        MatchFailure::Memory: a larger `Options::workspace_bytes` (`--workspace-bytes`), or fewer rows at a time
        MatchFailure::NoTemplate: contiguous tensors, of other sizes or with other arguments
        MatchFailure::Sizes: smaller tensors, or a product of several parts
        MatchFailure::Small: nothing: kernels take at least 8 columns and 8 elements to a sum on a GPU, and no empty tensors
        MatchFailure::Strides: operands whose rows or columns are contiguous, on a GPU a multiple of 8 elements apart
        MatchFailure::Vector: a matrix of one row or column in the place of the vector
        Refusal::Devices: tensors on one device
        Refusal::ElementType: another element type: floating-point numbers, integers or truth values
        Refusal::Empty: nothing: a tensor without elements takes no time
        Refusal::Extent: operators over as many elements: what is sliced, joined or broadcast in between moved to before the first or behind the last; nothing today where windows overlap, as those of pooling do
        Refusal::Extern: operators that have a lowering
        Refusal::GatherSource: the computation behind the gather: what is picked, computed, in the place of picking from what is computed
        Refusal::OtherReduction: reductions along the same dimensions: a transposed operand, or one reduction over both
        Refusal::OtherRow: each row used where it is reduced: what moves rows (flip, roll, transpose) in front of the reduction
        Refusal::TooLarge: a smaller operator, such as fewer tensors joined at a time
        Refusal::TooLong: nothing: a load and a store cost little beside so many instructions, and compiling takes longer the more there are
        Refusal::TooManyBuffers: fewer tensors: parameters joined into one, or views of one
        Verdict::Cycle: %3 would have to be in the kernel as well: see why its own edges were cut
        Verdict::Hint: without the hint `separate` for sin they may be fused
        Verdict::Library: a kernel for aten::cumsum: an operator of one's own that launches one, registered with `Operator`, or operators that have a lowering in its place
        Verdict::Limit: no `Options::max_rewrites`, or a larger one
        Verdict::Memory: a larger `Options::workspace_bytes` (`--workspace-bytes`), up to which a call may hold more than eager does
        Verdict::Slower: nothing that the cost model knows: one kernel would take 34950.3 us more; the hint `together` (`Hint::together`, `--hint together=`) makes it nevertheless
        Verdict::SlowerPrologue: nothing that the cost model knows: each block of columns would compute the prologue again, which takes 38.3 us more; the hint `together` (`Hint::together`, `--hint together=`) makes it nevertheless"#]].assert_eq(&remedies.join("\n"));
    let calls: Vec<String> = seen.calls.iter().map(|(name, said)| format!("{name}: {said}")).collect();
    expect![[r#"
        MatchFailure::Device: no kernel for it is generated for its device
        MatchFailure::ElementTypes: no kernel takes its element types
        MatchFailure::HalfTypes: on a GPU kernels for it are generated of f16 and bf16 alone
        MatchFailure::ImageStrides: no kernel takes the strides at which its images and filters lie
        MatchFailure::Library: the option for products leaves it to libtorch
        MatchFailure::Memory: its packed operands and partial sums would take 2097152 bytes, of at most 1048576
        MatchFailure::NoTemplate: no template of a kernel fits its sizes, strides and arguments
        MatchFailure::Sizes: no kernel takes so large sizes
        MatchFailure::Small: no kernel takes so small sizes
        MatchFailure::Strides: no kernel takes the strides at which its tensors lie
        MatchFailure::Vector: no kernel computes products of a vector
        NotLowered::Arguments: the operator's lowering does not take this overload, these arguments or element types
        NotLowered::Device: it has a tensor on another device than the one that the plan's kernels run on
        NotLowered::Operator: the operator has no lowering
        NotLowered::Random: it draws random numbers, whose sequence is libtorch's
        NotLowered::Tensors: kernels hold no tensors of its kinds
        NotLowered::Writes: it writes its operands, and is no operator with results alone"#]]
    .assert_eq(&calls.join("\n"));
}

/// The variants of reasons that plans gave.
#[derive(Default)]
struct Seen {
    names: FxHashSet<&'static str>,
    /// What would have to change, of the first that has each name.
    remedies: BTreeMap<&'static str, String>,
    /// Why calls are left to libtorch, of the first that has each name.
    calls: BTreeMap<&'static str, String>,
}

impl Seen {
    /// What a plan says of its edges, each text once.
    fn texts(&mut self, plan: &Plan) -> String {
        let mut all: Vec<String> = Vec::new();
        for Decision { verdict, .. } in &plan.decisions {
            self.verdict(verdict);
            all.push(verdict.to_string());
        }
        all.sort();
        all.dedup();
        all.join("\n")
    }

    fn verdict(&mut self, verdict: &Verdict) {
        self.names.insert(verdict.name());
        let remedy = verdict.remedy();
        assert_eq!(remedy.is_none(), verdict.is_fused());
        if let Some(remedy) =
            remedy.filter(|_| !matches!(verdict, Verdict::Illegal(_) | Verdict::Operator(..)))
        {
            self.remedy(verdict.name(), &remedy);
        }
        match verdict {
            Verdict::Illegal(refusal) => self.refusal(refusal),
            Verdict::Operator(_, reason) => refusals_of_calls()
                .iter()
                .filter(|refusal| refusal.to_string() == reason.reason)
                .for_each(|refusal| self.refusal(refusal)),
            _ => {}
        }
    }

    fn refusal(&mut self, refusal: &Refusal) {
        self.names.insert(refusal.name());
        let name = match refusal {
            Refusal::Block(refusal) => {
                self.names.insert(refusal.name());
                refusal.name()
            }
            _ => refusal.name(),
        };
        self.remedy(name, &refusal.remedy());
    }

    fn remedy(&mut self, name: &'static str, remedy: &str) {
        self.remedies.entry(name).or_insert_with(|| remedy.to_owned());
    }

    /// A call without kernel, of which a plan said why.
    fn declined(&mut self, why: &MatchFailure) {
        self.call(why.name(), why.to_string());
        self.remedy(why.name(), why.remedy());
    }

    fn call(&mut self, name: &'static str, said: String) {
        self.names.insert(name);
        self.calls.entry(name).or_insert(said);
    }

    /// What is said of the edges of a graph on the host.
    #[track_caller]
    fn said(&mut self, text: &str, expected: Expect) {
        let graph = parse_graph(text).unwrap();
        expected.assert_eq(&self.texts(&plan(&graph, &Profile::host(2)).unwrap()));
    }

    /// The same where all products are generated.
    #[track_caller]
    fn said_of_products(&mut self, text: &str, expected: Expect) {
        self.said_on(text, &Profile::host(2), expected);
    }

    /// The same on a GPU.
    #[track_caller]
    fn said_on_gpu(&mut self, text: &str, expected: Expect) {
        self.said_on(text, &Profile::gpu(132, 4200.0).with_clusters().with_warpgroups(), expected);
    }

    #[track_caller]
    fn said_on(&mut self, text: &str, profile: &Profile, expected: Expect) {
        let mut graph = pipeline::primitive(text, profile);
        choose_products(&mut graph, profile, Products::Generated, Some(0), u64::MAX, &mut |_| None);
        expected.assert_eq(&self.texts(&plan(&graph, profile).unwrap()));
    }

    /// The same for a graph around block kernels.
    #[track_caller]
    fn said_of(&mut self, mut g: G, outputs: &[ValueRef], expected: Expect) {
        g.0.outputs = outputs.to_vec();
        expected.assert_eq(&self.texts(&plan(&g.0, &Profile::host(2)).unwrap()));
    }

    /// Why a graph has no plan.
    #[track_caller]
    fn said_of_no_plan(&mut self, text: &str, expected: Expect) {
        let error = plan(&parse_graph(text).unwrap(), &Profile::host(2)).unwrap_err();
        expected.assert_eq(&error.to_string());
        if let PipelineError::Plan(PlanError::Alone { refusal, .. }) = error {
            self.refusal(&refusal);
        }
    }
}

/// Why calls run through libtorch although they have kernels, of which plans have the text alone.
fn refusals_of_calls() -> [Refusal; 5] {
    [
        Refusal::Devices,
        Refusal::ElementType,
        BlockRefusal::OtherStrides.into(),
        BlockRefusal::WritesOperand.into(),
        BlockRefusal::Parameters.into(),
    ]
}

fn a_cycle_and_calls(seen: &mut Seen) {
    seen.said(
        "graph {
          %0 = input 0 : f32[300]
          %1 = map exp(%0) : f32[300]
          %2 = map tanh(%1) : f32[300]
          %3 = aten::cumsum(self=%2) : f32[300]
          %4 = map add(%2, %3) : f32[300]
          outputs %4
        }",
        expect![[r#"
            cut: %3, a step between them, needs the first and feeds the second
            cut: aten::cumsum runs through libtorch
            fused"#]],
    );
}

/// Each of many instances loads the same elements, which a prologue would compute each time.
fn a_kernel_that_would_be_slower(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let h = g.map(ScalarFn::Tanh, &[x]);
    let y = g.custom(kernel(SQUARE, 1 << 20), h);
    seen.said_of(g, &[y], expect!["cut: predicted 34954.5 us in one kernel, 4.2 us in two"]);
}

/// What the cost model keeps apart, a hint merges, and is the reason.
fn operators_that_a_hint_keeps_together(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let h = g.map(ScalarFn::Tanh, &[x]);
    let y = g.custom(kernel(SQUARE, 1 << 20), h);
    g.0.outputs = vec![y];
    for (origin, node) in [h, y].into_iter().enumerate() {
        g.0.node_mut(node.node).origin = Some(origin as u32);
        g.0.origins.push(format!("operator #{origin}"));
    }
    let profile = Profile::host(2);
    let mut planned = |regions: [u32; 2]| {
        let mut cx = Context::new(&profile);
        (0..2).for_each(|origin| cx.hints.keep_together(origin, regions[origin as usize]));
        let plan = pipeline::planned(g.0.clone(), &mut cx).unwrap();
        (plan.kernel_count(), seen.texts(&plan))
    };
    let (kernels, text) = planned([0, 1]);
    assert_eq!(kernels, 2);
    expect!["cut: predicted 34954.5 us in one kernel, 4.2 us in two"].assert_eq(&text);
    let (kernels, text) = planned([0, 0]);
    assert_eq!(kernels, 1);
    expect![
        "fused as a prologue: a hint keeps them together, predicted 34954.5 us so, 4.2 us in separate kernels"
    ]
    .assert_eq(&text);
}

fn operators_that_hints_keep_separate(seen: &mut Seen) {
    let profile = Profile::host(2);
    let mut graph = parse_graph(
        "graph {
          %0 = input 0 : f32[64]
          %1 = map exp(%0) : f32[64]
          %2 = map sin(%1) : f32[64]
          outputs %2
        }",
    )
    .unwrap();
    let sin = graph.outputs[0].node;
    graph.node_mut(sin).origin = Some(0);
    graph.origins.push(String::from("sin"));
    let mut cx = Context::new(&profile);
    cx.hints.keep_separate(0, 0, "sin");
    expect!["cut: the hint `separate` for sin keeps them in separate kernels"]
        .assert_eq(&seen.texts(&pipeline::planned(graph, &mut cx).unwrap()));
}

fn a_limit_of_rewrites(seen: &mut Seen) {
    let text = "graph {
      %0 = param 0 : f32[300]
      %1 = map exp(%0) : f32[300]
      %2 = map tanh(%1) : f32[300]
      outputs %1
      update %0 <- %2
    }";
    let profile = Profile::host(2);
    let mut cx = Context { rewrites: Rewrites::at_most(Some(0)), ..Context::new(&profile) };
    let plan = pipeline::planned(parse_graph(text).unwrap(), &mut cx).unwrap();
    expect!["cut: the number of rewrites is limited"].assert_eq(&seen.texts(&plan));
    let copied: Vec<_> = plan.copied.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(copied, ["the number of rewrites is limited"]);
}

fn other_elements(seen: &mut Seen) {
    seen.said(
        "graph {
          %0 = input 0 : f32[4,10]
          %1 = map exp(%0) : f32[4,10]
          %2 = view slice[1,0,1](%1) : f32[4,5]
          %3 = map tanh(%2) : f32[4,5]
          outputs %1, %3
        }",
        expect!["cut: its 40 elements match neither the 20 points of the loop nor its 20 rows"],
    );
}

fn other_reductions_and_other_rows(seen: &mut Seen) {
    seen.said(
        "graph {
          %0 = input 0 : f32[30,40]
          %1 = reduce sum [0](%0) : f32[40]
          %2 = view reshape(%1) : f32[1,40]
          %3 = view expand(%2) : f32[30,40]
          %4 = map div(%0, %3) : f32[30,40]
          %5 = reduce max [1](%4) : f32[30]
          outputs %5
        }",
        expect![[r#"
            cut: it reduces other dimensions than the kernel it would join
            fused"#]],
    );
    seen.said(
        "graph {
          %0 = input 0 : f32[30,40]
          %1 = reduce sum [1](%0) : f32[30]
          %2 = view flip[0](%1) : f32[30]
          %3 = view reshape(%2) : f32[30,1]
          %4 = view expand(%3) : f32[30,40]
          %5 = map div(%0, %4) : f32[30,40]
          outputs %5
        }",
        expect!["cut: the reduction's result is used at other rows than the one that is reduced"],
    );
}

fn gathers_of_computed_tables(seen: &mut Seen) {
    seen.said(
        "graph {
          %0 = input 0 : f32[50,8]
          %1 = input 1 : i64[50]
          %2 = reduce sum[1](%0) : f32[50]
          %3 = gather 0(%2, %1) : f32[50]
          outputs %3
        }",
        expect!["cut: the source of a gather must be in memory"],
    );
}

/// A chain of functions, of which merged kernels would become too long.
fn long_kernels(seen: &mut Seen) {
    let mut text = String::from("graph {\n  %0 = input 0 : f32[300]\n");
    for at in 1..200 {
        text.push_str(&format!("  %{at} = map tanh(%{}) : f32[300]\n", at - 1));
    }
    text.push_str("  outputs %199\n}\n");
    seen.said(
        &text,
        expect![[r#"
        cut: the kernel would have about 2058 instructions, over the 2048 up to which merging pays
        fused"#]],
    );
}

fn many_buffers(seen: &mut Seen) {
    let mut text = String::from("graph {\n");
    (0..60).for_each(|at| text.push_str(&format!("  %{at} = input {at} : f32[300]\n")));
    text.push_str("  %60 = map add(%0, %1) : f32[300]\n");
    (2..60).for_each(|at| {
        text.push_str(&format!("  %{} = map add(%{}, %{at}) : f32[300]\n", at + 59, at + 58));
    });
    text.push_str("  outputs %118\n}\n");
    seen.said(
        &text,
        expect![[r#"
        cut: the kernel would have more than 48 buffers
        fused"#]],
    );
}

/// Joins so many parts of a tensor in one node.
fn large_nodes(seen: &mut Seen) {
    let mut text = String::from("graph {\n  %0 = input 0 : f32[4000]\n");
    let parts: Vec<String> = (1..700).map(|at| format!("%{at}")).collect();
    for at in 1..700 {
        text.push_str(&format!("  %{at} = view slice[0,{},1](%0) : f32[2]\n", 5 * at));
    }
    text.push_str(&format!("  %700 = concat 0({}) : f32[1398]\n  outputs %700\n}}\n", parts.join(", ")));
    seen.said_of_no_plan(&text, expect!["%700: the kernel would have more than 2000 operations"]);
}

fn contractions_that_no_kernel_computes(seen: &mut Seen) {
    seen.said_of_no_plan(
        "graph {
          %0 = input 0 : f32[4,5]
          %1 = input 1 : f32[5,6]
          %2 = contract sum[1]x[0](%0, %1) : f32[4,6]
          outputs %2
        }",
        expect!["%2: no kernel computes contract"],
    );
}

fn tensors_that_kernels_do_not_take(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[0]);
    let h = g.map(ScalarFn::Exp, &[x]);
    let y = g.square(h);
    seen.said_of(g, &[y], expect!["cut: a tensor is empty"]);
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let h = g.map(ScalarFn::Exp, &[x]);
    let y = g.square(h);
    g.0.node_mut(y.node).outs[0].dtype = DType::Other(9);
    seen.said_of(
        g,
        &[y],
        expect![
            "cut: my::kernel runs through libtorch: an operand has an element type that kernels do not handle"
        ],
    );
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let h = g.map(ScalarFn::Exp, &[x]);
    let y = g.square(h);
    g.0.node_mut(y.node).outs[0].device = Device::Cuda(0);
    seen.said_of(
        g,
        &[y],
        expect!["cut: my::kernel runs through libtorch: operands live on different devices"],
    );
}

/// Where the second product's result is picked in the kernel of the first's, both products are in memory.
fn readers_that_would_hold_memory(seen: &mut Seen) {
    let graph = parse_graph(PICKED).unwrap();
    let plan = plan_within(&graph, &Profile::host(2), 4 * (64 * 4096 + 3 * 64 * 64));
    expect![[r#"
        cut: %6, a step between them, needs the first and feeds the second
        cut: aten::mm runs through libtorch
        cut: what the producer reads would stay live for longer
        fused"#]]
    .assert_eq(&seen.texts(&plan));
}

/// Every contraction and attention that is left to libtorch says why.
fn contractions_that_kernels_decline(seen: &mut Seen) {
    let conv = "stride=[1], padding=[0], dilation=[1], groups=1)";
    let sdpa = "aten::scaled_dot_product_attention(query=%0, key=%0, value=%0";
    for (types, line, why) in [
        ("i64[4,7] i64[7,5]", "aten::mm(self=%0, mat2=%1) : i64[4,5]".to_owned(), MatchFailure::ElementTypes),
        (
            "i32[1,2,9] i32[3,2,3]",
            format!("aten::conv1d(input=%0, weight=%1, bias=None, {conv} : i32[1,3,7]"),
            MatchFailure::ElementTypes,
        ),
        ("f32[4,7] f32[7]", "aten::matmul(self=%0, other=%1) : f32[4]".to_owned(), MatchFailure::Vector),
        ("f32[7] f32[3,7,5]", "aten::matmul(self=%0, other=%1) : f32[3,5]".to_owned(), MatchFailure::Vector),
        (
            "f32[64] f32[48,64] f32[48]",
            "aten::linear(input=%0, weight=%1, bias=%2) : f32[48]".to_owned(),
            MatchFailure::Vector,
        ),
        (
            "f32[1,2,9]{18,1,2} f32[3,2,3]",
            format!("aten::conv1d(input=%0, weight=%1, bias=None, {conv} : f32[1,3,7]"),
            MatchFailure::ImageStrides,
        ),
        (
            "f32[1,2,3] f32[2,3,3]",
            "aten::conv_transpose1d(input=%0, weight=%1, bias=None, stride=[40000], padding=[0], output_padding=[0], groups=1, \
             dilation=[1]) : f32[1,3,80003]"
                .to_owned(),
            MatchFailure::NoTemplate,
        ),
        ("f32[1,2,64,1024]", format!("{sdpa}) : f32[1,2,64,1024]"), MatchFailure::Sizes),
    ] {
        let mut text = String::from("graph {\n");
        for (slot, ty) in types.split(' ').enumerate() {
            text.push_str(&format!("%{slot} = input {slot} : {ty}\n"));
        }
        let text = format!("{text}%3 = {line}\noutputs %3\n}}");
        let left = left_to_libtorch(&text, &Profile::host(2), Products::Generated);
        assert_eq!(left, [why.to_string()], "{text}");
        seen.declined(&why);
    }
    let text = "graph {
      %0 = input 0 : f32[1,128,4,4]
      %1 = input 1 : f32[128,256,4,4]
      %2 = aten::conv_transpose2d.input(input=%0, weight=%1, bias=None, stride=[2, 2], padding=[1, 1], \
        output_padding=[0, 0], groups=1, dilation=[1, 1]) : f32[1,256,8,8]
      outputs %2
    }";
    let mut graph = pipeline::primitive(text, &Profile::host(2));
    choose_products(&mut graph, &Profile::host(2), Products::Generated, Some(0), 0, &mut |_| None);
    let why = MatchFailure::Memory { least: 1 << 21, most: 1 << 20 };
    assert_eq!(left_of(&graph, &Profile::host(2)), [why.to_string()]);
    seen.declined(&why);
    let text = "graph {
      %0 = input 0 : f32[8,9]
      %1 = input 1 : f32[9,7]
      %2 = aten::mm(self=%0, mat2=%1) : f32[8,7]
      %3 = aten::relu(self=%2) : f32[8,7]
      outputs %3
    }";
    let on_gpu = text.replace("]\n", "]@cuda:0\n");
    let warpgroups = Profile::gpu(132, 4200.0).with_warpgroups();
    let columns = |n: i64| on_gpu.replace("f32", "bf16").replace(",7]", &format!(",{n}]"));
    let (narrow, odd) = (columns(4), columns(16));
    let images = "graph {
      %0 = input 0 : f32[1,16,8,8]@cuda:0
      %1 = input 1 : f32[16,16,3,3]@cuda:0
      %2 = aten::conv2d(input=%0, weight=%1, bias=None, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1) \
        : f32[1,16,8,8]@cuda:0
      outputs %2
    }";
    for (text, profile, products, why) in [
        (&*on_gpu, Profile::gpu(132, 4200.0), Products::Measured, MatchFailure::Device),
        (&*on_gpu, warpgroups, Products::Generated, MatchFailure::HalfTypes),
        (images, warpgroups, Products::Generated, MatchFailure::HalfTypes),
        (&*narrow, warpgroups, Products::Generated, MatchFailure::Small),
        (&*odd, warpgroups, Products::Generated, MatchFailure::Strides),
        (text, Profile::host(2), Products::Library, MatchFailure::Library),
    ] {
        assert_eq!(left_to_libtorch(text, &profile, products), [why.to_string()], "{text}");
        seen.declined(&why);
    }
}

/// Every other call that is left to libtorch says why it was not lowered.
fn calls_that_are_not_lowered(seen: &mut Seen) {
    for (line, why) in [
        ("aten::nonzero_static(self=%0, size=3) : i64[3,2]", NotLowered::Operator),
        ("my::kernel(self=%0) : f32[4,5]", NotLowered::Operator),
        ("aten::dropout(input=%0, p=0.5, train=true) !random : f32[4,5]", NotLowered::Random),
        ("aten::relu(self=%0) !writes[0] : f32[4,5]", NotLowered::Writes),
        ("aten::relu(self=%0) : dtype9[4,5]", NotLowered::Tensors),
        ("aten::relu(self=%0) : f32[4,5]@cuda:0", NotLowered::Device),
        ("aten::add.Unknown(self=%0) : f32[4,5]", NotLowered::Arguments),
    ] {
        let text = format!("graph {{\n%0 = input 0 : f32[4,5]\n%1 = {line}\noutputs %1\n}}");
        let left = left_to_libtorch(&text, &Profile::host(2), Products::Generated);
        assert_eq!(left, [why.to_string()], "{text}");
        seen.call(why.name(), why.to_string());
    }
}

/// Why calls of a graph are left to libtorch.
fn left_to_libtorch(text: &str, profile: &Profile, products: Products) -> Vec<String> {
    let mut graph = pipeline::primitive(text, profile);
    choose_products(&mut graph, profile, products, None, u64::MAX, &mut |_| None);
    left_of(&graph, profile)
}

/// Why those without kernels are.
fn left_of(graph: &Graph, profile: &Profile) -> Vec<String> {
    let plan = plan(graph, profile).unwrap();
    let reason = |step: &Step| match &step.kind {
        StepKind::Extern(call) => Some(call.reason.clone().unwrap_or_default()),
        StepKind::Kernel(_) => None,
    };
    plan.steps.iter().filter_map(reason).collect()
}
