use crate::machine::Profile;
use crate::pipeline::{Context, Stage, lowered, planned, primitive};
use crate::rewrite_limit::Rewrites;
use crate::{Graph, Op, Products, parse_graph, verify};

/// A graph that was printed, read again, as calls that do not say what they compute.
pub(crate) fn calls_alone(graph: &Graph) -> String {
    let text = graph.to_string();
    let mut read = parse_graph(&text).unwrap();
    assert_eq!(read.to_string(), text);
    verify(&read).unwrap();
    for id in read.ids().collect::<Vec<_>>() {
        if let Op::Aten(call) = &mut read.node_mut(id).op {
            call.form = None;
        }
    }
    read.to_string()
}

/// Kernels are made of what the text says, as they are of the graph.
#[test]
fn what_was_printed_behind_select_library_gets_the_same_kernels() {
    let text = "graph {
      %0 = input 0 : f32[2,3,40,40]
      %1 = param 0 : f32[8,3,3,3]
      %2 = param 1 : f32[8]
      %3 = aten::conv2d(input=%0, weight=%1, bias=%2, stride=[2,2], padding=[1,1], dilation=[1,1], groups=1) : f32[2,8,20,20]
      %4 = aten::flatten.using_ints(self=%3, start_dim=1, end_dim=-1) : f32[2,3200]
      %5 = param 2 : f32[3200,16]
      %6 = param 3 : f32[2,16]
      %7 = aten::addmm(self=%6, mat1=%4, mat2=%5, beta=0.5, alpha=2) : f32[2,16]
      outputs %7
    }";
    let profile = Profile::host(2);
    let graph = primitive(text, &profile);
    let text = graph.to_string();
    assert_eq!(text.matches(" contracts ").count(), 2, "{text}");
    let plans = [graph, parse_graph(&text).unwrap()].map(|graph| {
        let mut cx = Context::new(&profile);
        cx.selection.products = Products::Generated;
        let kernels = lowered(graph, Stage::Kernels..=Stage::Kernels, &mut cx).unwrap();
        let plan = planned(kernels, &mut cx).unwrap();
        assert_eq!(plan.extern_count(), 0, "{plan}");
        plan.programs.iter().map(ToString::to_string).collect::<Vec<_>>()
    });
    // The convolution, the parts of the sum and what adds them.
    assert!(plans[0].len() == 3 && plans[0] == plans[1]);
}

/// Each kernel in the place of a call is a rewrite.
#[test]
fn kernels_stop_at_a_limit() {
    let text = "graph {
      %0 = input 0 : f32[4,16]
      %1 = param 0 : f32[16,16]
      %2 = aten::linear(input=%0, weight=%1, bias=None) contracts sum[1]x[1](0, 1) : f32[4,16]
      %3 = aten::linear(input=%2, weight=%1, bias=None) contracts sum[1]x[1](0, 1) : f32[4,16]
      outputs %3
    }";
    for limit in 0..=2 {
        let profile = Profile::host(2);
        let mut cx = Context::new(&profile);
        cx.selection.products = Products::Generated;
        cx.rewrites = Rewrites::at_most(Some(limit));
        let graph = parse_graph(text).unwrap();
        let graph = lowered(graph, Stage::Kernels..=Stage::Kernels, &mut cx).unwrap();
        let kernels = graph.ids().filter_map(|id| graph.node(id).kernel.as_ref());
        let (made, not): (Vec<_>, Vec<_>) = kernels.partition(|kernel| kernel.is_ok());
        assert_eq!((made.len() as u64, made.len() + not.len()), (limit, 2));
        assert_eq!(
            (cx.rewrites.made(), cx.rewrites.last().as_deref()),
            (limit, (limit > 0).then_some("select-kernels"))
        );
        let limited = |kernel: &&crate::MaybeKernel| matches!(kernel, Err(why) if why.reason == "the number of rewrites is limited");
        assert!(not.iter().all(limited));
    }
}

#[test]
fn forms_of_other_operands_are_refused() {
    let operands =
        "%0 = input 0 : f32[2,3,8]\n%1 = input 1 : f32[5,8]\n%2 = input 2 : f32[5]\n%3 = input 3 : bf16[5,8]";
    let product = |form: &str, ty: &str| {
        format!("graph {{\n{operands}\n%4 = aten::x(a=%0, b=%1, c=%2, d=%3) contracts {form} : {ty}\n}}")
    };
    let images = "%0 = input 0 : f32[1,6,9]\n%1 = input 1 : f32[4,3,3]\n%2 = input 2 : f32[4]";
    let window = |form: &str, ty: &str| {
        format!("graph {{\n{images}\n%3 = aten::x(a=%0, b=%1, c=%2) contracts window {form} : {ty}\n}}")
    };
    let of = |text: &str| verify(&parse_graph(text).unwrap()).map_err(|error| error.what);
    assert_eq!(of(&product("sum[2]x[1](0, 1) alpha 0.5 adds 2 beta -2.0", "f32[2,3,5]")), Ok(()));
    let conv = "stride[2] padding[1]x[0] dilation[1] groups 2 batch[1]x[0] sum[2,4]x[2,3](0, 1)";
    assert_eq!(of(&window(&format!("{conv} adds 2"), "f32[1,4,4]")), Ok(()));
    let (position, shape, alike, adds) = (
        "the form names an operand that does not exist",
        "the form does not give the result's shape",
        "the form's operands are not alike",
        "what the form adds does not fit the result",
    );
    for (text, what) in [
        (product("sum[2]x[1](0, 4)", "f32[2,3,5]"), position),
        (product("sum[2]x[1](0, 1) adds 7", "f32[2,3,5]"), position),
        (product("sum[1]x[1](0, 1)", "f32[2,3,5]"), shape),
        (product("sum[2]x[1](0, 1)", "f32[2,5,3]"), shape),
        (product("sum[9]x[1](0, 1)", "f32[2,3,5]"), shape),
        (product("sum[2]x[1](0, 3)", "f32[2,3,5]"), alike),
        (product("sum[2]x[1](0, 1) adds 0", "f32[2,3,5]"), adds),
        (product("sum[2]x[1](0, 1) alpha 0.0", "f32[2,3,5]"), "a factor of 0"),
        (product("sum[2]x[1](0, 1) adds 2 beta -0.0", "f32[2,3,5]"), "a factor of 0"),
        (
            product("sum[2]x[1](0, 1)", "f64[2,3,5]"),
            "the result is neither of the operands' type nor of the one that sums are held in",
        ),
        (
            product("sum[2]x[1](0, 1)", "f32[2,3,5], f32[1]").replace("%4 =", "%4, %5 ="),
            "a form of a call that has not one result",
        ),
        (window(&conv.replace("stride[2]", "stride[1]"), "f32[1,4,4]"), shape),
        (window(&conv.replace("groups 2", "groups 3"), "f32[1,4,4]"), shape),
        (window(&conv.replace("[2,4]x[2,3]", "[2,4]x[3,2]"), "f32[1,4,4]"), shape),
        (
            window(
                &conv.replace("[2] padding[1]x[0] dilation[1]", "[2,1] padding[1,1]x[0,0] dilation[1,1]"),
                "f32[1,4,4]",
            ),
            shape,
        ),
        (window(&format!("{conv} adds 0"), "f32[1,4,4]"), adds),
    ] {
        assert_eq!(of(&text), Err(what), "{text}");
    }
}

#[test]
fn forms_of_other_attention_are_refused() {
    let of = |types: &str, form: &str, ty: &str| {
        let mut text = String::from("graph {\n");
        for (slot, ty) in types.split(' ').enumerate() {
            text.push_str(&format!("%{slot} = input {slot} : {ty}\n"));
        }
        let text = format!("{text}%4 = aten::x(a=%0, b=%1, c=%2, d=%3) attends{form} : {ty}\n}}");
        let graph = parse_graph(&text).unwrap();
        verify(&graph).map_err(|error| error.what)
    };
    let plain = "f32[2,6,5,8] f32[2,6,7,8] f32[1,6,7,9] bool[5,7]";
    let shared = "f32[2,6,5,8] f32[2,2,7,8] f32[2,6,7,9] f32[2,1,5,7]";
    for (types, form) in [
        (plain, "(0, 1, 2) scale -0.5"),
        (plain, "(0, 1, 2) scale 0.5 causal"),
        (plain, "(0, 1, 2) scale 0.5 keeps 3"),
        (plain, "(0, 1, 2) scale 0.5 opens 3"),
        (shared, "(0, 1, 2) scale 0.5 adds 3 shared 3"),
        ("f32[2,6,5,8] f32[1,6,7,8] f32[2,7,9] f32[5,7]", "(0, 1, 2) scale 0.5 adds 3 shared 3"),
    ] {
        assert_eq!(of(types, form, "f32[2,6,5,9]"), Ok(()), "{form}");
    }
    let (shape, mask, alike) = (
        "the form does not give the result's shape",
        "the mask does not fit scores",
        "the form's operands are not alike",
    );
    let factor = "a factor of 0 or below beside hidden keys";
    for (types, form, ty, what) in [
        (plain, "(0, 4, 2) scale 0.5", "f32[2,6,5,9]", "the form names an operand that does not exist"),
        (
            plain,
            "(0, 1, 2) scale 0.5 opens 9",
            "f32[2,6,5,9]",
            "the form names an operand that does not exist",
        ),
        (plain, "(0, 2, 1) scale 0.5", "f32[2,6,5,9]", shape),
        (plain, "(0, 1, 2) scale 0.5", "f32[2,6,7,9]", shape),
        (shared, "(0, 1, 2) scale 0.5", "f32[2,6,5,9]", shape),
        (shared, "(0, 1, 2) scale 0.5 shared 2", "f32[2,6,5,9]", shape),
        (shared, "(0, 1, 2) scale 0.5 shared 0", "f32[2,6,5,9]", shape),
        (plain, "(0, 1, 2) scale 0.5 adds 3", "f32[2,6,5,9]", mask),
        (shared, "(0, 1, 2) scale 0.5 keeps 3 shared 3", "f32[2,6,5,9]", mask),
        ("f32[6,5,8] f32[6,7,8] f32[6,7,9] bool[2,6,5,7]", "(0, 1, 2) scale 0.5 keeps 3", "f32[6,5,9]", mask),
        (plain, "(0, 1, 2) scale 0.0 causal", "f32[2,6,5,9]", factor),
        (plain, "(0, 1, 2) scale -1.0 keeps 3", "f32[2,6,5,9]", factor),
        (plain, "(0, 1, 2) scale nan", "f32[2,6,5,9]", factor),
        (plain, "(0, 1, 2) scale 1.0", "bf16[2,6,5,9]", alike),
    ] {
        assert_eq!(of(types, form, ty), Err(what), "{form}");
    }
}
