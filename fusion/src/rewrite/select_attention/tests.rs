use expect_test::{Expect, expect};

use super::{Facts, MaskFacts, MaskKind, NoFacts};
use crate::graph::{AtenCall, Graph, Node, Op, ValueRef};
use crate::library_form::tests::calls_alone;
use crate::machine::Profile;
use crate::pipeline::{Context, Stage, lowered, primitive};
use crate::types::{Dims, TensorType};
use crate::{Products, lower, parse_graph, verify};

/// Knows one thing of every mask; results have heads and positions swapped in memory. Counts the masks relied on.
struct Known(MaskFacts, usize);

const CAUSAL: MaskFacts = MaskFacts { causal: true, rows_open: true };
const OPEN: MaskFacts = MaskFacts { causal: false, rows_open: true };

impl Facts for Known {
    fn mask(&mut self, _: &Graph, _: ValueRef, _: MaskKind) -> Option<MaskFacts> {
        Some(self.0)
    }

    fn rely(&mut self, _: ValueRef, _: MaskKind) {
        self.1 += 1;
    }

    fn result_strides(&mut self, _: &AtenCall, operands: &[TensorType]) -> Option<Dims> {
        let &[_, heads, queries, width] = &operands[0].shape[..] else { return None };
        Some(Dims::from_slice(&[heads * queries * width, width, heads * width, 1]))
    }
}

fn selected(text: &str, facts: &mut dyn Facts) -> Graph {
    let mut cx = Context { facts: Box::new(facts), ..Context::new(&Profile::host(2)) };
    let graph = parse_graph(text).unwrap();
    let graph = lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap();
    verify(&graph).unwrap();
    let text = graph.to_string();
    assert_eq!(parse_graph(&text).unwrap().to_string(), text);
    graph
}

fn check(text: &str, facts: &mut dyn Facts, expect: Expect) {
    expect.assert_eq(&selected(text, facts).to_string());
}

/// The names of libtorch's operators.
fn calls(graph: &Graph) -> Vec<String> {
    let call = |id| match &graph.node(id).op {
        Op::Aten(call) => Some(call.op.replace("aten::", "")),
        _ => None,
    };
    graph.ids().filter_map(call).collect()
}

/// A graph of these inputs, and of lines that begin with the number behind them.
fn graph(inputs: &str, lines: &[&str]) -> String {
    let mut text = String::from("graph {\n");
    let inputs: Vec<&str> = inputs.split(' ').collect();
    for (slot, ty) in inputs.iter().enumerate() {
        text.push_str(&format!("  %{slot} = input {slot} : {ty}\n"));
    }
    let first = inputs.len();
    for (number, line) in lines.iter().enumerate() {
        text.push_str(&format!("  %{} = {line}\n", first + number));
    }
    format!("{text}  outputs %{}\n}}\n", first + lines.len() - 1)
}

/// Each of these is the same call behind the contractions that it is lowered to.
#[test]
fn captured_calls_are_these_calls_again() {
    for (operands, args, result) in [
        ("f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8]", "None false None false", "f32[2,3,5,8]{120,8,24,1}"),
        ("bf16[2,3,5,8] bf16[2,3,7,8] bf16[2,3,7,8]", "None false None false", "bf16[2,3,5,8]{120,8,24,1}"),
        ("f64[2,3,5,8] f64[2,3,7,8] f64[2,3,7,9]", "None false 0.3 false", "f64[2,3,5,9]"),
        ("f16[2,3,5,8] f16[2,3,7,8] f16[2,3,7,8]", "None true 0.2 false", "f16[2,3,5,8]{120,8,24,1}"),
        ("f32[2,3,5,8] f32[2,3,5,8] f32[2,3,5,8]", "None true None false", "f32[2,3,5,8]"),
        ("f32[2,3,1,8] f32[2,3,1,8] f32[2,3,1,8]", "None true 1.0 false", "f32[2,3,1,8]"),
        ("f32[2,3,1,1] f32[2,3,1,1] f32[2,3,1,1]", "None true None false", "f32[2,3,1,1]"),
        ("f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8] bool[5,7]", "%3 false None false", "f32[2,3,5,8]"),
        ("f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8] bool[2,1,1,7]", "%3 false 0.1 false", "f32[2,3,5,8]"),
        ("bf16[2,3,5,8] bf16[2,3,7,8] bf16[2,3,7,8] bool[2,3,5,7]", "%3 false None false", "bf16[2,3,5,8]"),
        ("f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8] f32[5,7]", "%3 false None false", "f32[2,3,5,8]"),
        ("bf16[2,3,5,8] bf16[2,3,7,8] bf16[2,3,7,8] bf16[1,3,5,7]", "%3 false None false", "bf16[2,3,5,8]"),
        ("f16[2,3,5,8] f16[2,3,7,8] f16[2,3,7,8] f32[3,5,7]", "%3 false None false", "f16[2,3,5,8]"),
        ("f32[2,6,5,8] f32[2,2,7,8] f32[2,2,7,8]", "None false None true", "f32[2,6,5,8]{240,8,48,1}"),
        ("bf16[2,6,5,8] bf16[2,2,7,8] bf16[2,2,7,8] bool[5,7]", "%3 false None true", "bf16[2,6,5,8]"),
        ("f32[2,6,5,8] f32[2,6,5,8] f32[2,6,5,8]", "None true None true", "f32[2,6,5,8]"),
        ("f32[6,5,8] f32[1,7,8] f32[1,7,4] f32[6,5,7]", "%3 false None true", "f32[6,5,4]"),
        ("f32[3,5,8] f32[3,7,8] f32[3,7,8]", "None true None false", "f32[3,5,8]"),
        ("bf16[3,5,8] bf16[3,7,8] bf16[3,7,8] bool[3,1,7]", "%3 false None false", "bf16[3,5,8]"),
        ("f32[5,8] f32[7,8] f32[7,12] f32[7]", "%3 false None false", "f32[5,12]"),
        ("f32[4,2,3,5,8] f32[4,2,3,7,8] f32[4,2,3,7,8]", "None false None false", "f32[4,2,3,5,8]"),
        (
            "f32[2,3,5,8]{120,8,24,1} f32[2,3,7,8]{1,2,48,6} f32[2,3,7,8]",
            "None false None false",
            "f32[2,3,5,8]",
        ),
        ("f64[2,3,5,8] f64[2,3,7,8] f64[2,3,7,8]", "None false None false", "f64[2,3,5,8]"),
        // Nothing is hidden.
        ("f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8]", "None false -0.5 false", "f32[2,3,5,8]"),
        ("bf16[2,3,5,8] bf16[2,3,7,8] bf16[2,3,7,8]", "None false 0.0 false", "bf16[2,3,5,8]"),
        // Batches that are broadcast.
        ("f32[2,3,5,8] f32[1,3,7,8] f32[2,3,7,8]", "None true None false", "f32[2,3,5,8]"),
        ("bf16[1,3,5,8] bf16[3,7,8] bf16[2,1,7,4] bool[5,7]", "%3 false 0.3 false", "bf16[2,3,5,4]"),
        ("f32[5,8] f32[2,3,7,8] f32[7,8]", "None false None false", "f32[2,3,5,8]"),
        ("f32[2,3,5,8] f32[2,3,7,8] f32[1,1,7,8]", "None false None false", "f32[2,3,5,8]"),
    ] {
        for device in ["", "@cuda:0"] {
            let placed = |types: &str| {
                types.split(' ').map(|ty| format!("{ty}{device}")).collect::<Vec<_>>().join(" ")
            };
            let args: Vec<&str> = args.split(' ').collect();
            let call = format!(
                "aten::scaled_dot_product_attention(query=%0, key=%1, value=%2, attn_mask={}, dropout_p=0.0, \
                 is_causal={}, scale={}, enable_gqa={}) : {}",
                args[0],
                args[1],
                args[2],
                args[3],
                placed(result)
            );
            let text = parse_graph(&graph(&placed(operands), &[&call])).unwrap().to_string();
            let lowered = lower(&parse_graph(&text).unwrap()).unwrap().to_string();
            assert!(lowered.contains("contract") && !lowered.contains("aten"), "{lowered}");
            assert_eq!(calls_alone(&primitive(&text, &Profile::host(2))), text);
        }
    }
}

/// libtorch's kernels for a GPU read rows of whole vectors by vectors, wherever the first element lies.
#[test]
fn operands_that_are_not_aligned_are_no_operands_of_a_call() {
    let call = |key: &str| {
        format!(
            "aten::scaled_dot_product_attention(query=%0, key={key}, value=%2, attn_mask=None, dropout_p=0.0, \
             is_causal=false, scale=None, enable_gqa=false) : f32[2,3,7,8]@cuda:0"
        )
    };
    let types = "f32[2,3,7,8]@cuda:0 f32[2,3,7,8]@cuda:0 f32[2,3,7,8]@cuda:0 f32[2,3,7,24]@cuda:0";
    let slice = |start: i64| {
        format!(
            "aten::slice.Tensor(self=%3, dim=3, start={start}, end={}, step=1) : f32[2,3,7,8]{{504,168,24,1}}@cuda:0",
            start + 8
        )
    };
    let calls_of = |lines: &[&str], input: u32| {
        let mut cx = Context::new(&Profile::gpu(132, 4200.0));
        cx.alignments.inputs = vec![16, input, 16, 16];
        let graph = parse_graph(&graph(types, lines)).unwrap();
        calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap())
    };
    let attention = ["scaled_dot_product_attention"];
    assert_eq!(calls_of(&[&call("%1")], 16), attention);
    assert_ne!(calls_of(&[&call("%1")], 4), attention);
    // A copy is not made again.
    let copy = "aten::clone(self=%1, memory_format=None) : f32[2,3,7,8]@cuda:0";
    assert_ne!(calls_of(&[copy, &call("%4")], 4), attention);
    for (start, aligned) in [(0, true), (8, true), (4, true), (5, false)] {
        assert_eq!(calls_of(&[&slice(start), &call("%4")], 4) == attention, aligned, "{start}");
    }
    // The first row is aligned, the second is not.
    let odd = slice(8).replace("{504,168,24,1}", "{525,175,25,1}");
    let odd = [odd.as_str(), &call("%4")];
    let types = types.replace("24]", "25]");
    let mut cx = Context::new(&Profile::gpu(132, 4200.0));
    cx.alignments.inputs = vec![16; 4];
    let graph = parse_graph(&graph(&types, &odd)).unwrap();
    assert_ne!(calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap()), attention);
}

/// A view whose recorded strides are others hides no rows that are not aligned: the call gets what it is a view of.
#[test]
fn a_view_hides_no_rows_that_are_not_aligned() {
    for (strides, aligned) in [("2048,32,8,1", true), ("1024,16,4,1", false)] {
        let text = format!(
            "graph {{
               %0 = input 0 : f16[1,64,4,8]{{{strides}}}@cuda:0
               %1 = input 1 : f16[1,1,128,8]@cuda:0
               %2 = input 2 : f16[1,1,128,8]@cuda:0
               %3 = input 3 : bool[4,128]@cuda:0
               %4 = aten::clone(self=%0, memory_format=None) : f16[1,64,4,8]@cuda:0
               %5 = aten::scaled_dot_product_attention(query=%4, key=%1, value=%2, attn_mask=%3, dropout_p=0.0, \
                 is_causal=false, scale=1.0, enable_gqa=true) : f16[1,64,4,8]@cuda:0
               outputs %5
             }}"
        );
        let mut cx = Context::new(&Profile::gpu(132, 4200.0));
        cx.alignments.inputs = vec![16; 4];
        let graph = parse_graph(&text).unwrap();
        let found = calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap());
        assert_eq!(found == ["scaled_dot_product_attention"], aligned, "{found:?}");
    }
}

/// The call gets what lies before a factor of the keys, which is its own.
#[test]
fn a_factor_hides_no_operand_that_is_not_aligned() {
    let text = "graph {
      %0 = input 0 : f32[5,8]@cuda:0
      %1 = input 1 : f32[7,8]@cuda:0
      %2 = input 2 : f32[7,8]@cuda:0
      %3 = aten::mul.Scalar(self=%1, other=0.3) : f32[7,8]@cuda:0
      %4 = aten::t(self=%3) : f32[8,7]{1,8}@cuda:0
      %5 = aten::mm(self=%0, mat2=%4) : f32[5,7]@cuda:0
      %6 = aten::softmax.int(self=%5, dim=-1, dtype=None) : f32[5,7]@cuda:0
      %7 = aten::mm(self=%6, mat2=%2) : f32[5,8]@cuda:0
      outputs %7
    }";
    for (alignment, selected) in [(16, true), (8, false)] {
        let mut cx = Context::new(&Profile::gpu(132, 4200.0));
        cx.selection.products = Products::Library;
        cx.alignments.inputs = vec![16, alignment, 16];
        let graph = parse_graph(text).unwrap();
        let found = calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap());
        assert_eq!(found == ["scaled_dot_product_attention"], selected, "{found:?}");
    }
}

/// libtorch's operator gives 0 where no score of a row is finite, what a model writes out NaN.
#[test]
fn what_a_model_writes_out_is_a_kernel_or_stays() {
    let calls_of = |elem: &str, device: &str, cx: &mut Context<'_>| {
        let text = "graph {
          %0 = input 0 : f32[2,64,64]
          %1 = input 1 : f32[2,128,64]
          %2 = input 2 : f32[2,128,64]
          %3 = aten::transpose.int(self=%1, dim0=1, dim1=2) : f32[2,64,128]{8192,1,64}
          %4 = aten::bmm(self=%0, mat2=%3) : f32[2,64,128]
          %5 = aten::softmax.int(self=%4, dim=-1, dtype=None) : f32[2,64,128]
          %6 = aten::bmm(self=%5, mat2=%2) : f32[2,64,64]
          outputs %6
        }";
        let text = text
            .replace("f32", elem)
            .replace("]\n", &format!("]{device}\n"))
            .replace("}\n", &format!("}}{device}\n"));
        cx.alignments.inputs = vec![16; 3];
        let graph = lowered(parse_graph(&text).unwrap(), Stage::Primitive..=Stage::Kernels, cx).unwrap();
        let kernels = graph.ids().map(|id| graph.node(id)).filter(|node| matches!(node.kernel, Some(Ok(_))));
        let library = |node: &Node| node.compared.iter().any(|compared| compared.schedule.is_none());
        let kernels: Vec<bool> = kernels.map(library).collect();
        (calls(&graph), kernels)
    };
    let call = || vec![String::from("scaled_dot_product_attention")];
    let gpu = || Context::new(&Profile::gpu(132, 4200.0).with_warpgroups());
    assert_eq!(calls_of("f32", "", &mut Context::new(&Profile::host(2))), (call(), vec![false]));
    assert_eq!(calls_of("bf16", "@cuda:0", &mut gpu()), (call(), vec![false]));
    let (written_out, _) = calls_of("f32", "@cuda:0", &mut gpu());
    assert!(!written_out.contains(&call()[0]), "{written_out:?}");
    let mut library = gpu();
    library.selection.products = Products::Library;
    assert_eq!(calls_of("f32", "@cuda:0", &mut library), (call(), Vec::new()));
}

/// A mask of one column for all keys is broadcast by libtorch, on a GPU to strides that its kernels do not take.
#[test]
fn a_mask_of_one_column_is_no_operand_on_a_gpu() {
    let calls_with = |mask: &str, device: &str, profile: Profile| {
        let text = format!(
            "graph {{
              %0 = input 0 : f32[5,8]
              %1 = input 1 : f32[7,8]
              %2 = input 2 : f32[7,8]
              %3 = param 0 : f32{mask}
              %4 = aten::t(self=%1) : f32[8,7]{{1,8}}
              %5 = aten::mm(self=%0, mat2=%4) : f32[5,7]
              %6 = aten::add.Tensor(self=%5, other=%3, alpha=1) : f32[5,7]
              %7 = aten::softmax.int(self=%6, dim=-1, dtype=None) : f32[5,7]
              %8 = aten::mm(self=%7, mat2=%2) : f32[5,8]
              outputs %8
            }}"
        );
        let placed = text.replace("]\n", &format!("]{device}\n")).replace("}\n", &format!("}}{device}\n"));
        let placed = placed.strip_suffix(device).unwrap_or(&placed).to_owned();
        let mut cx = Context::new(&profile);
        cx.selection.products = Products::Library;
        cx.facts = Box::new(Known(OPEN, 0));
        (cx.alignments.inputs, cx.alignments.params) = (vec![16; 3], vec![16]);
        let graph = parse_graph(&placed).unwrap();
        calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap())
    };
    let gpu = || Profile::gpu(132, 4200.0);
    for (mask, fast) in [("[5,7]", true), ("[1,7]", true), ("[7]", true), ("[5,1]", false), ("[1]", false)] {
        let attention = ["scaled_dot_product_attention"];
        assert_eq!(calls_with(mask, "@cuda:0", gpu()) == attention, fast, "{mask}");
        assert_eq!(calls_with(mask, "", Profile::host(2)), attention, "{mask}");
    }
}

/// What a model repeats is said, and repeated for libtorch as before; what libtorch broadcasts is not repeated.
#[test]
fn heads_that_a_model_repeats_share_keys() {
    let sdpa = "aten::scaled_dot_product_attention(query=%0, key=";
    let rest = "attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false)";
    let repeated = format!(
        "graph {{
          origin 0 \"repeat\"
          origin 1 \"attention\"
          %0 = input 0 : f32[2,6,5,8]
          %1 = input 1 : f32[2,2,7,8]
          %2 = view reshape(%1) : f32[2,2,1,7,8] @0
          %3 = view expand(%2) : f32[2,2,3,7,8]{{112,56,0,8,1}} @0
          %4 = view reshape(%3) : f32[2,6,7,8] @0
          %5 = {sdpa}%4, value=%4, {rest} : f32[2,6,5,8] @1
          outputs %5
        }}"
    );
    let expanded = format!(
        "graph {{
          origin 0 \"repeat\"
          origin 1 \"attention\"
          %0 = input 0 : f32[2,6,5,8]
          %1 = input 1 : f32[2,1,7,8]
          %2 = view expand(%1) : f32[2,6,7,8]{{56,0,8,1}} @0
          %3 = {sdpa}%2, value=%2, {rest} : f32[2,6,5,8] @1
          outputs %3
        }}"
    );
    let broadcast = format!(
        "graph {{
          origin 0 \"attention\"
          %0 = input 0 : f32[2,6,5,8]
          %1 = input 1 : f32[2,1,7,8]
          %2 = {sdpa}%1, value=%1, {rest} : f32[2,6,5,8] @0
          outputs %2
        }}"
    );
    for (text, form) in [
        (repeated, "attends(0, 1, 2) scale 1.0 shared 3"),
        (expanded, "attends(0, 1, 2) scale 1.0 shared 6"),
        (broadcast, "attends(0, 1, 2) scale 1.0 :"),
    ] {
        let graph = primitive(&text, &Profile::host(2));
        assert_eq!(calls_alone(&graph), parse_graph(&text).unwrap().to_string());
        assert!(graph.to_string().contains(form), "{graph}");
    }
}

/// Of several calls of one origin each, which share what they can.
#[test]
fn calls_that_share_scores_or_a_mask_come_back() {
    let call = |value: &str, causal: bool| {
        format!(
            "aten::scaled_dot_product_attention(query=%0, key=%1, value={value}, attn_mask=None, dropout_p=0.0, \
             is_causal={causal}, scale=None, enable_gqa=false) : bf16[2,3,7,8]"
        )
    };
    let types = "bf16[2,3,7,8] bf16[2,3,7,8] bf16[2,3,7,8] bf16[2,3,7,8]";
    let calls = [call("%2", true), call("%3", true), call("%4", false)];
    let lines =
        [&calls[0][..], &calls[1], &calls[2], "aten::add.Tensor(self=%5, other=%6, alpha=1) : bf16[2,3,7,8]"];
    let text = graph(types, &lines);
    let found = selected(&text, &mut NoFacts).to_string();
    assert_eq!(found.matches("aten::scaled_dot_product_attention").count(), 3, "{found}");
    assert!(!found.contains("contract") && !found.contains("reduce"), "{found}");
}

/// What a captured call is given stays what it is given.
#[test]
fn operands_of_a_captured_call_keep_their_factors() {
    let text = graph(
        "f32[2,3,7,8] f32[2,3,7,8]",
        &[
            "aten::mul.Scalar(self=%0, other=0.5) : f32[2,3,7,8]",
            "aten::scaled_dot_product_attention(query=%2, key=%1, value=%0, attn_mask=None, dropout_p=0.0, \
         is_causal=true, scale=0.3, enable_gqa=false) : f32[2,3,7,8]",
        ],
    );
    let found = selected(&text, &mut NoFacts).to_string();
    assert!(found.contains("map mul") && found.contains("scale=0.3"), "{found}");
}

/// Weights that something else reads, too, are computed for that alone.
#[test]
fn a_captured_call_comes_back_beside_what_reads_its_scores() {
    let text = graph(
        "f32[2,3,7,8] f32[2,3,7,8]",
        &[
            "aten::scaled_dot_product_attention(query=%0, key=%1, value=%0, attn_mask=None, dropout_p=0.0, \
         is_causal=false, scale=0.3, enable_gqa=false) : f32[2,3,7,8]",
            r#"aten::einsum(equation="bhqd,bhkd->bhqk", tensors=[%0, %1], path=None) : f32[2,3,7,7]"#,
            "aten::mul.Scalar(self=%3, other=0.3) : f32[2,3,7,7]",
            "aten::softmax.int(self=%4, dim=-1, dtype=None) : f32[2,3,7,7]",
        ],
    );
    let text = text.replace("outputs %5", "outputs %2, %5");
    let found = selected(&text, &mut NoFacts);
    assert_eq!(calls(&found), ["scaled_dot_product_attention", "bmm"], "{found}");
}

#[test]
fn what_the_operator_is_not_lowered_for_stays_a_call() {
    for (types, args) in [
        (
            "f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8]",
            "attn_mask=None, dropout_p=0.5, is_causal=false, scale=None",
        ),
        (
            "f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8]",
            "attn_mask=None, dropout_p=0.0, is_causal=false, scale=1e300",
        ),
        (
            "f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8]",
            "attn_mask=None, dropout_p=0.0, is_causal=true, scale=-0.5",
        ),
        (
            "f32[2,3,5,8] f32[2,3,0,8] f32[2,3,0,8]",
            "attn_mask=None, dropout_p=0.0, is_causal=false, scale=None",
        ),
        (
            "f32[2,3,5,8] f32[4,3,7,8] f32[2,3,7,8]",
            "attn_mask=None, dropout_p=0.0, is_causal=false, scale=None",
        ),
    ] {
        let call = format!(
            "aten::scaled_dot_product_attention(query=%0, key=%1, value=%2, {args}, enable_gqa=false) : f32[2,3,5,8]"
        );
        let text = graph(types, &[&call]);
        assert_eq!(lower(&parse_graph(&text).unwrap()).unwrap().to_string(), text);
    }
}

const MASKED: &str = "graph {
  origin 0 \"aten::matmul #0\"
  origin 1 \"aten::matmul #4\"
  %0 = input 0 : f32[2,3,5,8]
  %1 = input 1 : f32[2,3,8,5]{120,40,1,8}
  %2 = input 2 : f32[2,3,5,8]
  %3 = param 0 : bool[5,5]
  %4 = aten::matmul(self=%0, other=%1) : f32[2,3,5,5] @0
  %5 = aten::div.Scalar(self=%4, other=4.0) : f32[2,3,5,5]
  %6 = aten::masked_fill.Scalar(self=%5, mask=%3, value=-inf) : f32[2,3,5,5]
  %7 = aten::softmax.int(self=%6, dim=-1, dtype=None) : f32[2,3,5,5]
  %8 = aten::matmul(self=%7, other=%2) : f32[2,3,5,8] @1
  outputs %8
}";

#[test]
fn causal_attention_becomes_one_call() {
    check(
        MASKED,
        &mut Known(CAUSAL, 0),
        expect![[r#"
            graph {
              origin 0 "aten::matmul #0"
              origin 1 "aten::matmul #4"
              origin 2 "attention (aten::matmul #0 .. aten::matmul #4)"
              %0 = input 0 : f32[2,3,5,8]
              %1 = input 1 : f32[2,3,8,5]{120,40,1,8}
              %2 = input 2 : f32[2,3,5,8]
              %3 = view permute[0,1,3,2](%1) : f32[2,3,5,8] @1
              %4 = aten::scaled_dot_product_attention(query=%0, key=%3, value=%2, attn_mask=None, dropout_p=0.0, is_causal=true, scale=0.25, enable_gqa=false) attends(0, 1, 2) scale 0.25 causal unsafe : f32[2,3,5,8]{120,8,24,1} @2
              outputs %4
            }
        "#]],
    );
}

#[test]
fn a_mask_that_keeps_something_of_each_row_is_given() {
    check(
        MASKED,
        &mut Known(OPEN, 0),
        expect![[r#"
            graph {
              origin 0 "aten::matmul #0"
              origin 1 "aten::matmul #4"
              origin 2 "attention (aten::matmul #0 .. aten::matmul #4)"
              %0 = input 0 : f32[2,3,5,8]
              %1 = input 1 : f32[2,3,8,5]{120,40,1,8}
              %2 = input 2 : f32[2,3,5,8]
              %3 = param 0 : bool[5,5]
              %4 = map not(%3) : bool[5,5] @1
              %5 = view permute[0,1,3,2](%1) : f32[2,3,5,8] @1
              %6 = aten::scaled_dot_product_attention(query=%0, key=%5, value=%2, attn_mask=%4, dropout_p=0.0, is_causal=false, scale=0.25, enable_gqa=false) attends(0, 1, 2) scale 0.25 keeps 3 unsafe : f32[2,3,5,8]{120,8,24,1} @2
              outputs %6
            }
        "#]],
    );
}

#[test]
fn a_mask_that_nobody_knows_stays() {
    assert_eq!(calls(&selected(MASKED, &mut NoFacts)), ["matmul", "matmul"]);
}

/// Numbers that are added to scores hide nothing but what they make -inf: a kernel of ours gives NaN for a row of these, as what the model
/// wrote does. Libtorch's operator gives 0.
#[test]
fn a_mask_that_is_added_need_not_be_known() {
    let text = graph(
        "f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8] f32[2,1,1,7]",
        &[
            "aten::transpose.int(self=%1, dim0=2, dim1=3) : f32[2,3,8,7]{168,56,1,8}",
            "aten::matmul(self=%0, other=%4) : f32[2,3,5,7]",
            "aten::div.Scalar(self=%5, other=2.0) : f32[2,3,5,7]",
            "aten::add.Tensor(self=%6, other=%3, alpha=1) : f32[2,3,5,7]",
            "aten::softmax.int(self=%7, dim=-1, dtype=None) : f32[2,3,5,7]",
            "aten::matmul(self=%8, other=%2) : f32[2,3,5,8]",
        ],
    );
    let of = |products: Products| {
        let mut cx = Context::new(&Profile::host(2));
        cx.selection.products = products;
        let graph = parse_graph(&text).unwrap();
        calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap())
    };
    assert_eq!(of(Products::Generated), ["scaled_dot_product_attention"]);
    assert_eq!(of(Products::Library), ["matmul", "matmul"]);
}

/// A Swin transformer adds a bias for positions in a window, and for windows at the edge of an image a mask, before which it splits the
/// batch into images and windows.
#[test]
fn masks_that_are_added_one_after_the_other_are_added_together() {
    let text = graph(
        "f32[12,3,5,8] f32[12,3,5,8] f32[12,3,5,8] f32[3,5,5] f32[4,5,5]",
        &[
            "aten::transpose.int(self=%1, dim0=2, dim1=3) : f32[12,3,8,5]{120,40,1,8}",
            "aten::matmul(self=%0, other=%5) : f32[12,3,5,5]",
            "aten::unsqueeze(self=%3, dim=0) : f32[1,3,5,5]",
            "aten::add.Tensor(self=%6, other=%7, alpha=1) : f32[12,3,5,5]",
            "aten::view(self=%8, size=[3,4,3,5,5]) : f32[3,4,3,5,5]",
            "aten::unsqueeze(self=%4, dim=1) : f32[4,1,5,5]",
            "aten::unsqueeze(self=%10, dim=0) : f32[1,4,1,5,5]",
            "aten::add.Tensor(self=%9, other=%11, alpha=1) : f32[3,4,3,5,5]",
            "aten::view(self=%12, size=[12,3,5,5]) : f32[12,3,5,5]",
            "aten::softmax.int(self=%13, dim=-1, dtype=None) : f32[12,3,5,5]",
            "aten::matmul(self=%14, other=%2) : f32[12,3,5,8]",
        ],
    );
    check(
        &text,
        &mut NoFacts,
        expect![[r#"
        graph {
          %0 = input 0 : f32[12,3,5,8]
          %1 = input 1 : f32[12,3,5,8]
          %2 = input 2 : f32[12,3,5,8]
          %3 = input 3 : f32[3,5,5]
          %4 = input 4 : f32[4,5,5]
          %5 = view reshape(%3) : f32[1,3,5,5]
          %6 = view reshape(%4) : f32[1,4,1,5,5]
          %7 = view expand(%6) : f32[3,4,1,5,5]{0,25,25,5,1}
          %8 = view reshape(%7) : f32[12,1,5,5]
          %9 = view expand(%5) : f32[12,3,5,5]{0,25,5,1}
          %10 = view expand(%8) : f32[12,3,5,5]{25,0,5,1}
          %11 = map add(%9, %10) : f32[12,3,5,5]
          %12 = aten::scaled_dot_product_attention(query=%0, key=%1, value=%2, attn_mask=%11, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 adds 3 unsafe : f32[12,3,5,8]
          outputs %12
        }
    "#]],
    );
}

#[test]
fn only_a_mask_that_was_used_is_relied_on() {
    let mut facts = Known(CAUSAL, 0);
    selected(MASKED, &mut facts);
    assert_eq!(facts.1, 1);
    // Keys that lie in another order have no fast operator.
    let mut facts = Known(CAUSAL, 0);
    assert_eq!(calls(&selected(&MASKED.replace("{120,40,1,8}", ""), &mut facts)), ["matmul", "matmul"]);
    assert_eq!(facts.1, 0);
    let of_one = selected(&MASKED.replace("bool[5,5]", "bool[1,1]"), &mut Known(CAUSAL, 0)).to_string();
    assert!(!of_one.contains("is_causal=true"), "{of_one}");
}

#[test]
fn what_else_reads_scores_or_weights_keeps_them() {
    for outputs in ["%8, %7", "%5, %8", "%8, %6"] {
        let text = MASKED.replace("outputs %8", &format!("outputs {outputs}"));
        assert_eq!(calls(&selected(&text, &mut Known(CAUSAL, 0))), ["matmul", "matmul"], "{outputs}");
    }
}

/// Layers that share a mask, and the first of which makes the keys of the second.
#[test]
fn layers_share_a_mask() {
    let text = MASKED.replace(
        "outputs %8",
        "%9 = aten::transpose.int(self=%8, dim0=2, dim1=3) : f32[2,3,8,5]{120,40,1,8}
  %10 = aten::matmul(self=%0, other=%9) : f32[2,3,5,5] @0
  %11 = aten::div.Scalar(self=%10, other=4.0) : f32[2,3,5,5]
  %12 = aten::masked_fill.Scalar(self=%11, mask=%3, value=-inf) : f32[2,3,5,5]
  %13 = aten::softmax.int(self=%12, dim=-1, dtype=None) : f32[2,3,5,5]
  %14 = aten::matmul(self=%13, other=%8) : f32[2,3,5,8] @1
  outputs %14",
    );
    let sdpa = "scaled_dot_product_attention";
    for facts in [CAUSAL, OPEN] {
        let mut facts = Known(facts, 0);
        assert_eq!(calls(&selected(&text, &mut facts)), [sdpa, sdpa]);
        assert_eq!(facts.1, 2);
    }
}

/// Spellings of attention of two members with three heads.
const SPELLINGS: &[(&str, &str, &[&str])] = &[
    (
        "division by what is no power of two",
        "f32[2,3,5,8] f32[2,3,8,7]{168,56,1,8} f32[2,3,7,8]",
        &[
            "aten::matmul(self=%0, other=%1) : f32[2,3,5,7]",
            "aten::div.Scalar(self=%3, other=3.3) : f32[2,3,5,7]",
            "aten::softmax.int(self=%4, dim=3, dtype=None) : f32[2,3,5,7]",
            "aten::matmul(self=%5, other=%2) : f32[2,3,5,8]",
        ],
    ),
    (
        "factors of queries, keys and scores",
        "f32[2,3,5,8] f32[2,3,7,8] f32[2,3,7,8]",
        &[
            "aten::mul.Scalar(self=%0, other=0.5) : f32[2,3,5,8]",
            "aten::mul.Scalar(self=%1, other=0.3) : f32[2,3,7,8]",
            "aten::transpose.int(self=%4, dim0=2, dim1=3) : f32[2,3,8,7]{168,56,1,8}",
            "aten::matmul(self=%3, other=%5) : f32[2,3,5,7]",
            "aten::mul.Scalar(self=%6, other=3) : f32[2,3,5,7]",
            "aten::softmax.int(self=%7, dim=-1, dtype=None) : f32[2,3,5,7]",
            "aten::matmul(self=%8, other=%2) : f32[2,3,5,8]",
        ],
    ),
    (
        "bmm",
        "bf16[6,5,8] bf16[6,7,8] bf16[6,7,8]",
        &[
            "aten::transpose.int(self=%1, dim0=1, dim1=2) : bf16[6,8,7]{56,1,8}",
            "aten::bmm(self=%0, mat2=%3) : bf16[6,5,7]",
            "aten::softmax.int(self=%4, dim=-1, dtype=None) : bf16[6,5,7]",
            "aten::bmm(self=%5, mat2=%2) : bf16[6,5,8]",
        ],
    ),
    (
        "mm",
        "f32[5,8] f32[7,8] f32[7,8]",
        &[
            "aten::t(self=%1) : f32[8,7]{1,8}",
            "aten::mm(self=%0, mat2=%3) : f32[5,7]",
            "aten::softmax.int(self=%4, dim=1, dtype=None) : f32[5,7]",
            "aten::mm(self=%5, mat2=%2) : f32[5,8]",
        ],
    ),
    (
        "baddbmm",
        "f32[6,5,8] f32[6,7,8] f32[6,7,8] f32[5,7]",
        &[
            "aten::transpose.int(self=%1, dim0=1, dim1=2) : f32[6,8,7]{56,1,8}",
            "aten::baddbmm(self=%3, batch1=%0, batch2=%4, beta=1, alpha=0.3) : f32[6,5,7]",
            "aten::softmax.int(self=%5, dim=-1, dtype=None) : f32[6,5,7]",
            "aten::bmm(self=%6, mat2=%2) : f32[6,5,8]",
        ],
    ),
    (
        "a mask between reshapes",
        "f32[6,5,8] f32[6,7,8] f32[6,7,8] f32[2,1,1,7]",
        &[
            "aten::transpose.int(self=%1, dim0=1, dim1=2) : f32[6,8,7]{56,1,8}",
            "aten::bmm(self=%0, mat2=%4) : f32[6,5,7]",
            "aten::view(self=%5, size=[2,3,5,7]) : f32[2,3,5,7]",
            "aten::add.Tensor(self=%6, other=%3, alpha=1) : f32[2,3,5,7]",
            "aten::view(self=%7, size=[6,5,7]) : f32[6,5,7]",
            "aten::softmax.int(self=%8, dim=-1, dtype=None) : f32[6,5,7]",
            "aten::bmm(self=%9, mat2=%2) : f32[6,5,8]",
            "aten::view(self=%10, size=[2,3,5,8]) : f32[2,3,5,8]",
        ],
    ),
    (
        "einsum",
        "f16[2,5,3,8] f16[2,7,3,8] f16[2,7,3,8]",
        &[
            r#"aten::einsum(equation="bqhd,bkhd->bhqk", tensors=[%0, %1], path=None) : f16[2,3,5,7]"#,
            "aten::softmax.int(self=%3, dim=-1, dtype=None) : f16[2,3,5,7]",
            r#"aten::einsum(equation="bhqk,bkhd->bqhd", tensors=[%4, %2], path=None) : f16[2,5,3,8]"#,
        ],
    ),
    (
        "einsum with values first",
        "f32[2,5,3,8] f32[2,7,3,8] f32[2,7,3,8]",
        &[
            r#"aten::einsum(equation="bkhd,bqhd->bqhk", tensors=[%1, %0], path=None) : f32[2,5,3,7]"#,
            "aten::softmax.int(self=%3, dim=-1, dtype=None) : f32[2,5,3,7]",
            r#"aten::einsum(equation="bkhd,bqhk->bqhd", tensors=[%2, %4], path=None) : f32[2,5,3,8]"#,
        ],
    ),
    (
        "heads that share keys",
        "f32[2,3,2,5,8] f32[2,3,7,8] f32[2,3,7,8]",
        &[
            r#"aten::einsum(equation="bhgqd,bhkd->bhgqk", tensors=[%0, %1], path=None) : f32[2,3,2,5,7]"#,
            "aten::softmax.int(self=%3, dim=-1, dtype=None) : f32[2,3,2,5,7]",
            r#"aten::einsum(equation="bhgqk,bhkd->bhgqd", tensors=[%4, %2], path=None) : f32[2,3,2,5,8]"#,
        ],
    ),
    (
        "softmax in f32",
        "bf16[2,3,5,8] bf16[2,3,8,7]{168,56,1,8} bf16[2,3,7,8] bf16[2,1,1,7]",
        &[
            "aten::matmul(self=%0, other=%1) : bf16[2,3,5,7]",
            "aten::mul.Scalar(self=%4, other=0.3) : bf16[2,3,5,7]",
            "aten::add.Tensor(self=%5, other=%3, alpha=1) : bf16[2,3,5,7]",
            "aten::softmax.int(self=%6, dim=-1, dtype=f32) : f32[2,3,5,7]",
            "aten::to.dtype(self=%7, dtype=bf16, non_blocking=false, copy=false, memory_format=None) : bf16[2,3,5,7]",
            "aten::matmul(self=%8, other=%2) : bf16[2,3,5,8]",
        ],
    ),
    (
        "where",
        "f32[2,3,5,8] f32[2,3,8,7]{168,56,1,8} f32[2,3,7,8] bool[5,7]",
        &[
            "aten::matmul(self=%0, other=%1) : f32[2,3,5,7]",
            "aten::where.ScalarOther(condition=%3, self=%4, other=-3.4e38) : f32[2,3,5,7]",
            "aten::softmax.int(self=%5, dim=-1, dtype=None) : f32[2,3,5,7]",
            "aten::matmul(self=%6, other=%2) : f32[2,3,5,8]",
        ],
    ),
    (
        "softmax by hand",
        "f32[2,3,5,8] f32[2,3,8,7]{168,56,1,8} f32[2,3,7,8]",
        &[
            "aten::matmul(self=%0, other=%1) : f32[2,3,5,7]",
            "aten::amax(self=%3, dim=[-1], keepdim=true) : f32[2,3,5,1]",
            "aten::sub.Tensor(self=%3, other=%4, alpha=1) : f32[2,3,5,7]",
            "aten::exp(self=%5) : f32[2,3,5,7]",
            "aten::sum.dim_IntList(self=%6, dim=[-1], keepdim=true, dtype=None) : f32[2,3,5,1]",
            "aten::div.Tensor(self=%6, other=%7) : f32[2,3,5,7]",
            "aten::matmul(self=%8, other=%2) : f32[2,3,5,8]",
        ],
    ),
];

#[test]
fn every_spelling_is_the_same_call() {
    let mut found = String::new();
    for (name, types, lines) in SPELLINGS {
        let graph = selected(&graph(types, lines), &mut Known(OPEN, 0));
        let text = graph.to_string();
        let kept = text.lines().filter(|l| l.contains(" = ") && !l.contains(" input "));
        found.push_str(&format!("{name}\n{}\n", kept.collect::<Vec<_>>().join("\n")));
        assert_eq!(calls(&graph), ["scaled_dot_product_attention"], "{name}: {text}");
    }
    expect![[r#"
        division by what is no power of two
          %3 = view permute[0,1,3,2](%1) : f32[2,3,7,8]
          %4 = aten::scaled_dot_product_attention(query=%0, key=%3, value=%2, attn_mask=None, dropout_p=0.0, is_causal=false, scale=0.30303030303030304, enable_gqa=false) attends(0, 1, 2) scale 0.30303030303030304 unsafe : f32[2,3,5,8]{120,8,24,1}
        factors of queries, keys and scores
          %3 = aten::scaled_dot_product_attention(query=%0, key=%1, value=%2, attn_mask=None, dropout_p=0.0, is_causal=false, scale=0.44999999999999996, enable_gqa=false) attends(0, 1, 2) scale 0.44999999999999996 unsafe : f32[2,3,5,8]{120,8,24,1}
        bmm
          %3 = view reshape(%0) : bf16[1,6,5,8]
          %4 = view reshape(%1) : bf16[1,6,7,8]
          %5 = view reshape(%2) : bf16[1,6,7,8]
          %6 = aten::scaled_dot_product_attention(query=%3, key=%4, value=%5, attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 unsafe : bf16[1,6,5,8]{240,8,48,1}
          %7 = view reshape(%6) : bf16[6,5,8]{8,48,1}
        mm
          %3 = view reshape(%0) : f32[1,1,5,8]
          %4 = view reshape(%1) : f32[1,1,7,8]
          %5 = view reshape(%2) : f32[1,1,7,8]
          %6 = aten::scaled_dot_product_attention(query=%3, key=%4, value=%5, attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 unsafe : f32[1,1,5,8]{40,8,8,1}
          %7 = view reshape(%6) : f32[5,8]
        baddbmm
          %4 = view reshape(%0) : f32[1,6,5,8]
          %5 = view reshape(%1) : f32[1,6,7,8]
          %6 = view reshape(%2) : f32[1,6,7,8]
          %7 = aten::scaled_dot_product_attention(query=%4, key=%5, value=%6, attn_mask=%3, dropout_p=0.0, is_causal=false, scale=0.3, enable_gqa=false) attends(0, 1, 2) scale 0.3 adds 3 unsafe : f32[1,6,5,8]{240,8,48,1}
          %8 = view reshape(%7) : f32[6,5,8]{8,48,1}
        a mask between reshapes
          %4 = view reshape(%0) : f32[2,3,5,8]
          %5 = view reshape(%1) : f32[2,3,7,8]
          %6 = view reshape(%2) : f32[2,3,7,8]
          %7 = aten::scaled_dot_product_attention(query=%4, key=%5, value=%6, attn_mask=%3, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 adds 3 unsafe : f32[2,3,5,8]{120,8,24,1}
        einsum
          %3 = view permute[0,2,1,3](%1) : f16[2,3,7,8]{168,8,24,1}
          %4 = view permute[0,2,1,3](%0) : f16[2,3,5,8]{120,8,24,1}
          %5 = view permute[0,2,1,3](%2) : f16[2,3,7,8]{168,8,24,1}
          %6 = aten::scaled_dot_product_attention(query=%4, key=%3, value=%5, attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 unsafe : f16[2,3,5,8]{120,8,24,1}
          %7 = view permute[0,2,1,3](%6) : f16[2,5,3,8]
        einsum with values first
          %3 = view permute[0,2,1,3](%1) : f32[2,3,7,8]{168,8,24,1}
          %4 = view permute[0,2,1,3](%0) : f32[2,3,5,8]{120,8,24,1}
          %5 = view permute[0,2,1,3](%2) : f32[2,3,7,8]{168,8,24,1}
          %6 = aten::scaled_dot_product_attention(query=%4, key=%3, value=%5, attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 unsafe : f32[2,3,5,8]{120,8,24,1}
          %7 = view permute[0,2,1,3](%6) : f32[2,5,3,8]
        heads that share keys
          %3 = view reshape(%0) : f32[2,6,5,8]
          %4 = aten::scaled_dot_product_attention(query=%3, key=%1, value=%2, attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=true) attends(0, 1, 2) scale 1.0 shared 2 unsafe : f32[2,6,5,8]{240,8,48,1}
          %5 = view reshape(%4) : f32[2,3,2,5,8]{240,16,8,48,1}
        softmax in f32
          %4 = view permute[0,1,3,2](%1) : bf16[2,3,7,8]
          %5 = aten::scaled_dot_product_attention(query=%0, key=%4, value=%2, attn_mask=%3, dropout_p=0.0, is_causal=false, scale=0.3, enable_gqa=false) attends(0, 1, 2) scale 0.3 adds 3 unsafe : bf16[2,3,5,8]{120,8,24,1}
        where
          %4 = view permute[0,1,3,2](%1) : f32[2,3,7,8]
          %5 = aten::scaled_dot_product_attention(query=%0, key=%4, value=%2, attn_mask=%3, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 keeps 3 unsafe : f32[2,3,5,8]{120,8,24,1}
        softmax by hand
          %3 = view permute[0,1,3,2](%1) : f32[2,3,7,8]
          %4 = aten::scaled_dot_product_attention(query=%0, key=%3, value=%2, attn_mask=None, dropout_p=0.0, is_causal=false, scale=1.0, enable_gqa=false) attends(0, 1, 2) scale 1.0 unsafe : f32[2,3,5,8]{120,8,24,1}
    "#]].assert_eq(&found);
}

#[test]
fn what_is_no_attention_stays() {
    let types = "f32[2,3,5,8] f32[2,3,8,7]{168,56,1,8} f32[2,3,7,8]";
    for (before, after) in [
        // Softmax along queries.
        ("dim=3", "dim=2"),
        // Negative numbers do not hide.
        ("aten::div.Scalar(self=%3, other=3.3)", "aten::exp(self=%3)"),
        ("aten::div.Scalar(self=%3, other=3.3)", "aten::div.Scalar(self=%3, other=0)"),
    ] {
        let (_, _, lines) = SPELLINGS[0];
        let text = graph(types, lines).replace(before, after);
        assert_eq!(calls(&selected(&text, &mut Known(OPEN, 0))).len(), 2, "{text}");
    }
    let (_, types, lines) = SPELLINGS[10];
    let text = graph(types, lines).replace("-3.4e38", "-100.0");
    assert_eq!(calls(&selected(&text, &mut Known(OPEN, 0))).len(), 2, "{text}");
}

/// A copy that eager makes is left out, and with it the alignment that libtorch's kernels need of rows of whole vectors.
#[test]
fn keys_that_are_not_aligned_are_no_operands_of_libtorch() {
    for (width, alignment, selected) in
        [(4, 16, true), (4, 4, false), (8, 16, true), (8, 4, false), (3, 4, true)]
    {
        let text = format!(
            "graph {{
              %0 = input 0 : f32[17,1,3,{width}]@cuda:0
              %1 = input 1 : f32[17,1,8,{width}]@cuda:0
              %2 = input 2 : f32[17,1,8,{width}]@cuda:0
              %3 = aten::clone(self=%1, memory_format=None) : f32[17,1,8,{width}]@cuda:0
              %4 = aten::scaled_dot_product_attention(query=%0, key=%3, value=%2, attn_mask=None, dropout_p=0.0, is_causal=false, scale=None, enable_gqa=false) : f32[17,1,3,{width}]@cuda:0
              outputs %4
            }}"
        );
        let mut cx = Context::new(&Profile::gpu(132, 4200.0));
        cx.alignments.inputs = vec![16, alignment, 16];
        let graph = parse_graph(&text).unwrap();
        let found = calls(&lowered(graph, Stage::Primitive..=Stage::Primitive, &mut cx).unwrap());
        assert_eq!(found == ["scaled_dot_product_attention"], selected, "{width} {alignment}: {found:?}");
    }
}
