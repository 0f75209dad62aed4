//! Reasons for which neighbours of block kernels have kernels of their own.

use super::*;

pub(super) fn products_and_their_neighbours(seen: &mut Seen) {
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[32,32]
          %1 = param 0 : f32[32,32]
          %2 = aten::linear(input=%0, weight=%1) : f32[32,32]
          %3 = aten::relu(self=%2) : f32[32,32]
          %4 = aten::linear(input=%3, weight=%1) : f32[32,32]
          %5 = aten::sum(self=%4, dim=[0]) : f32[32]
          outputs %3, %5
        }",
        expect![[r#"
            cut: both are products, convolutions, attention or operators with kernels of their own, of which a kernel computes one
            cut: it reduces other dimensions than the rows, or parts of rows, that the block program stores
            fused
            fused as an epilogue"#]],
    );
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[128,768]
          %1 = param 0 : f32[768,768]
          %2 = aten::linear(input=%0, weight=%1) : f32[128,768]
          %3 = aten::layer_norm(input=%2, normalized_shape=[768], eps=1e-05) : f32[128,768]
          outputs %3
        }",
        expect![[r#"
            cut: its rows of 768 elements are wider than the 64 columns that the block program stores at once
            fused"#]],
    );
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[32,32]
          %1 = param 0 : f32[32]
          %2 = param 1 : f32[32,32]
          %3 = aten::rms_norm(input=%0, normalized_shape=[32], weight=%1, eps=1e-05) : f32[32,32]
          %4 = aten::linear(input=%3, weight=%2) : f32[32,32]
          outputs %4
        }",
        expect![[r#"
            cut: a reduction is no prologue of a block program
            fused
            fused as a prologue"#]],
    );
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[512,64]
          %1 = param 0 : f32[64]
          %2 = param 1 : f32[2048,64]
          %3 = aten::rms_norm(input=%0, normalized_shape=[64], weight=%1, eps=1e-05) : f32[512,64]
          %4 = aten::linear(input=%3, weight=%2) : f32[512,2048]
          outputs %4
        }",
        expect![[r#"
            cut: predicted 892.1 us with the reductions in one kernel and a prologue behind them in the other, 853.8 us without the prologue
            fused"#]],
    );
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[1,2,64,16]
          %1 = aten::scaled_dot_product_attention(query=%0, key=%0, value=%0) : f32[1,2,64,16]
          %2 = aten::relu(self=%1) : f32[1,2,64,16]
          outputs %2
        }",
        expect![[r#"
            fused
            fused as an epilogue"#]],
    );
    seen.said_on_gpu(
        "graph {
          %0 = input 0 : bf16[1,2,64,16]@cuda:0
          %1 = aten::scaled_dot_product_attention(query=%0, key=%0, value=%0) : bf16[1,2,64,16]@cuda:0
          %2 = aten::relu(self=%1) : bf16[1,2,64,16]@cuda:0
          outputs %2
        }",
        expect!["fused as an epilogue"],
    );
}

pub(super) fn kernels_that_do_not_fit_with_their_neighbours(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.custom(BlockKernel { neighbours_do_not_fit: true, ..kernel(SQUARE, 4) }, x);
    let z = g.map(ScalarFn::Exp, &[y]);
    seen.said_of(g, &[z], expect!["cut: together their tiles are too large for the device"]);
}

pub(super) fn neighbours_of_other_elements(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.square(x);
    let part = g.view(View::Slice { dim: 0, start: 0, step: 1 }, y, &[100]);
    let z = g.map(ScalarFn::Exp, &[part]);
    seen.said_of(g, &[y, z], expect!["cut: it reads 100 of the result's 200 elements"]);
    // As a pool does: the larger one of two neighbours.
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.square(x);
    let [even, odd] = [0, 1].map(|start| g.view(View::Slice { dim: 0, start, step: 2 }, y, &[100]));
    let z = g.map(ScalarFn::Max, &[even, odd]);
    seen.said_of(
        g,
        &[z],
        expect!["cut: each of its 100 elements is computed of several of the result's 200"],
    );
    let mut g = G::new();
    let (x, other) = (g.input(0, &[200]), g.input(1, &[200, 3]));
    let y = g.square(x);
    let column = g.view(View::Reshape, y, &[200, 1]);
    let repeated = g.view(View::Expand, column, &[200, 3]);
    let z = g.map(ScalarFn::Add, &[repeated, other]);
    seen.said_of(g, &[z], expect!["cut: its 600 elements repeat those of the result of 200 elements"]);
    let mut g = G::new();
    let (x, other) = (g.input(0, &[200]), g.input(1, &[202]));
    let y = g.square(x);
    let (low, interior) = (Dims::from_slice(&[1]), Dims::from_slice(&[0]));
    let fill = Literal::float(Elem::F32, 7.0);
    let padded = g.view(View::Pad { low, interior, fill }, y, &[202]);
    let z = g.map(ScalarFn::Add, &[padded, other]);
    seen.said_of(
        g,
        &[z],
        expect!["cut: its 202 elements are those of the result of 200 elements and others beside them"],
    );
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.square(x);
    let joined: ValueRef = g.0.add(Op::Concat { dim: 0 }, &[y, x], [G::ty(&[400], Elem::F32)], None).into();
    seen.said_of(
        g,
        &[joined],
        expect!["cut: its 400 elements are those of the result of 200 elements and others beside them"],
    );
}

pub(super) fn neighbours_of_unaligned_products(seen: &mut Seen) {
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[197,768]
          %1 = param 0 : f32[3072,768]
          %2 = aten::relu(self=%0) : f32[197,768]
          %3 = aten::linear(input=%2, weight=%1) : f32[197,3072]
          %4 = aten::sum(self=%3, dim=[1]) : f32[197]
          outputs %4
        }",
        expect![[r#"
            cut: its 197 elements match neither the 605184 points of the loop nor its 9456 rows
            cut: the block program reads the operand in place, by loads whose rows and columns the planner does not know
            fused
            fused as an epilogue"#]],
    );
}

pub(super) fn neighbours_of_products_of_one_row(seen: &mut Seen) {
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[1,768]
          %1 = param 0 : f32[3072,768]
          %2 = aten::linear(input=%0, weight=%1) : f32[1,3072]
          %3 = aten::amax(self=%2, dim=[1]) : f32[1]
          outputs %3
        }",
        expect!["cut: the planner does not know which rows the block program stores at once, as a reduction of them needs"],
    );
}

pub(super) fn operands_at_strides(seen: &mut Seen) {
    let strided = |stride: i64| {
        let layout = Layout::Strided { strides: Dims::from_slice(&[stride]), offset: 0 };
        let mut g = G::new();
        let x = g.input(0, &[200]);
        let h = g.map(ScalarFn::Exp, &[x]);
        let y = g.custom(BlockKernel { layouts: vec![(0, layout)], ..kernel(SQUARE, 4) }, h);
        (g, y)
    };
    let (g, y) = strided(1);
    seen.said_of(
        g,
        &[y],
        expect![
            "cut: the block program reads the operand in place, by loads whose rows and columns the planner does not know"
        ],
    );
    let (g, y) = strided(2);
    seen.said_of(
        g,
        &[y],
        expect![
            "cut: my::kernel runs through libtorch: the operand does not have the strides that the block program was written for"
        ],
    );
}

pub(super) fn accesses_that_are_no_loads_and_no_stores(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let h = g.map(ScalarFn::Exp, &[x]);
    let atomic = ATOMIC.replace(
        "  store %y, %id, %zero\n  %old = atomic add %y, %id, %v\n",
        "  %old = atomic add %x, %id, %v\n  store %y, %id, %old\n",
    );
    let y = g.custom(kernel(&atomic, 200), h);
    seen.said_of(
        g,
        &[y],
        expect!["cut: the block program does more than load the operand, which a prologue would compute"],
    );
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let y = g.custom(kernel(ATOMIC, 200), x);
    let z = g.map(ScalarFn::Exp, &[y]);
    seen.said_of(
        g,
        &[z],
        expect!["cut: the block program does more than store the result once, which an epilogue would read"],
    );
}

/// Writes its operand to two results, to the second one backwards.
const TWICE: &str =
    "kernel @twice(%x: ptr<f32> len(200), %y: ptr<f32> len(200), %z: ptr<f32> len(200)) warps(4) {
  %id = program_id 0
  %last = const 199 : i32
  %back = map sub %last, %id
  %v = load %x, %id
  store %y, %id, %v
  store %z, %back, %v
}";

pub(super) fn epilogues_of_several_results(seen: &mut Seen) {
    for (twice, said) in [
        (TWICE.to_owned(), expect!["cut: the epilogue needs several results of the block program at once"]),
        (TWICE.replace("store %z, %back", "store %z, %id"), expect!["fused as an epilogue"]),
    ] {
        let mut g = G::new();
        let x = g.input(0, &[200]);
        let call = AtenCall::new("my::twice", "", [("inputs", Arg::Tensors(vec![Some(0)]))]);
        let ty = G::ty(&[200], Elem::F32);
        let node = g.0.add(Op::Aten(Box::new(call)), &[x], [ty.clone(), ty], None);
        let tied = vec![Tied::Operand(0), Tied::Result(0), Tied::Result(1)];
        let program = tilefuse_block::parse_valid(&twice).unwrap();
        let twice = BlockKernel { program, tied, ..kernel(SQUARE, 200) };
        g.0.node_mut(node).kernel = Some(Ok(std::sync::Arc::new(twice)));
        let z = g.map(ScalarFn::Add, &[ValueRef { node, out: 0 }, ValueRef { node, out: 1 }]);
        seen.said_of(g, &[z], said);
    }
}

pub(super) fn products_in_other_blocks(seen: &mut Seen) {
    seen.said_of_products(
        "graph {
          %0 = input 0 : f32[32,32]
          %1 = input 1 : f32[256,32]
          %2 = param 0 : f32[512,32]
          %3 = param 1 : f32[64,32]
          %4 = aten::linear(input=%0, weight=%2) : f32[32,512]
          %5 = aten::linear(input=%1, weight=%3) : f32[256,64]
          %6 = aten::reshape(self=%5, shape=[32, 512]) : f32[32,512]
          %7 = aten::add.Tensor(self=%4, other=%6, alpha=1) : f32[32,512]
          outputs %7
        }",
        expect![[r#"
            cut: the block programs divide what they compute into other blocks
            fused as an epilogue"#]],
    );
}

pub(super) fn products_whose_loads_run_ahead(seen: &mut Seen) {
    let text = "graph {
      %0 = input 0 : f16[64,64]@cuda:0
      %1 = param 0 : f16[64,64]@cuda:0
      %2 = param 1 : f16[64,64]@cuda:0
      %3 = aten::linear(input=%0, weight=%1) : f16[64,64]@cuda:0
      %4 = aten::silu(self=%3) : f16[64,64]@cuda:0
      %5 = aten::linear(input=%0, weight=%2) : f16[64,64]@cuda:0
      %6 = aten::mul.Tensor(self=%4, other=%5) : f16[64,64]@cuda:0
      outputs %6
    }";
    seen.said_on_gpu(
        text,
        expect![[r#"
            cut: a block program pipelines the loads of one product, not those of two
            fused
            fused as an epilogue"#]],
    );
    seen.said_on_gpu(
        "graph {
          %0 = input 0 : bf16[64,64]@cuda:0
          %1 = param 0 : bf16[64,64]@cuda:0
          %2 = aten::relu(self=%0) : bf16[64,64]@cuda:0
          %3 = aten::linear(input=%2, weight=%1) : bf16[64,64]@cuda:0
          outputs %3
        }",
        expect![
            "cut: the block program copies the operand from memory to shared memory, and a prologue leaves nothing in memory"
        ],
    );
}

pub(super) fn prologues_that_are_stored(seen: &mut Seen) {
    for (stored, said) in [
        (true, expect!["cut: the prologue's value is needed in memory as well"]),
        (false, expect!["fused as a prologue"]),
    ] {
        let mut g = G::new();
        let x = g.input(0, &[200]);
        let h = g.map(ScalarFn::Exp, &[x]);
        let y = g.square(h);
        let outputs = [h, y];
        seen.said_of(g, &outputs[usize::from(!stored)..], said);
    }
}

pub(super) fn gathers_behind_block_kernels(seen: &mut Seen) {
    let mut g = G::new();
    let (x, table) = (g.input(0, &[200]), g.input(1, &[50]));
    let ids: ValueRef = g.0.add(Op::Input(2), &[], [G::ty(&[200], Elem::I64)], None).into();
    let read: ValueRef =
        g.0.add(Op::Gather { dim: 0 }, &[table, ids], [G::ty(&[200], Elem::F32)], None).into();
    let y = g.square(x);
    let z = g.map(ScalarFn::Add, &[y, read]);
    seen.said_of(
        g,
        &[z],
        expect![[r#"
        cut: a gather is no prologue or epilogue of a block program
        fused"#]],
    );
    // Of fewer elements than are picked from.
    let mut g = G::new();
    let x = g.input(0, &[200]);
    let ids: ValueRef = g.0.add(Op::Input(1), &[], [G::ty(&[100], Elem::I64)], None).into();
    let y = g.square(x);
    let picked = g.0.add(Op::Gather { dim: 0 }, &[y, ids], [G::ty(&[100], Elem::F32)], None);
    seen.said_of(g, &[picked.into()], expect!["cut: a gather is no prologue or epilogue of a block program"]);
}

pub(super) fn other_orders_of_elements(seen: &mut Seen) {
    let mut g = G::new();
    let x = g.input(0, &[50, 4]);
    let y = g.square(x);
    let back = g.view(View::Permute(SmallVec::from_slice(&[1, 0])), y, &[4, 50]);
    let z = g.map(ScalarFn::Exp, &[back]);
    seen.said_of(
        g,
        &[z],
        expect!["cut: the epilogue reads the result in another order than it is stored in"],
    );
    let mut g = G::new();
    let x = g.input(0, &[50, 4]);
    let y = g.square(x);
    let ty = TensorType { strides: Dims::from_slice(&[1, 50]), ..G::ty(&[50, 4], Elem::F32) };
    let z = g.0.add(Op::Map(ScalarFn::Exp), &[y], [ty], None).into();
    seen.said_of(
        g,
        &[z],
        expect!["cut: its value has another order than the loads or stores of the block program"],
    );
}

pub(super) fn kernels_that_do_not_match_their_calls(seen: &mut Seen) {
    let refused = |tied: [Tied; 2]| {
        let mut g = G::new();
        let x = g.input(0, &[200]);
        let h = g.map(ScalarFn::Exp, &[x]);
        let y = g.custom(BlockKernel { tied: tied.to_vec(), ..kernel(SQUARE, 4) }, h);
        (g, y)
    };
    let (g, y) = refused([Tied::Result(0), Tied::Operand(0)]);
    seen.said_of(g, &[y], expect!["cut: my::kernel runs through libtorch: its kernel writes an operand"]);
    let (g, y) = refused([Tied::Operand(7), Tied::Result(0)]);
    seen.said_of(
        g,
        &[y],
        expect!["cut: my::kernel runs through libtorch: the parameters of its kernel do not match the call"],
    );
}
