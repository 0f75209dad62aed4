//! Plans of graphs with small kernels that do not need each other, and what keeps kernels apart.

mod rules;

use expect_test::{Expect, expect};

use super::super::tests::check;
use crate::machine::Profile;
use crate::pipeline::plan;
use crate::plan::{KernelStep, Plan, StepKind, verify};
use crate::text::parse_graph;

fn gpu() -> Profile {
    Profile::gpu(132, 4200.0).with_clusters()
}

fn planned(text: &str, profile: &Profile) -> Plan {
    let plan = plan(&parse_graph(text).unwrap(), profile).unwrap();
    assert_eq!(verify(&plan), Ok(()));
    plan.programs.iter().for_each(|program| tilefuse_block::verify(program).unwrap());
    plan
}

fn kernels(plan: &Plan) -> Vec<&KernelStep> {
    let kernel = |step| match step {
        &crate::plan::Step { kind: StepKind::Kernel(ref kernel), .. } => Some(kernel),
        _ => None,
    };
    plan.steps.iter().filter_map(kernel).collect()
}

/// A line for each step: what runs, with parts, instances and pairs that may lie in one place.
fn steps(plan: &Plan) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        match &step.kind {
            StepKind::Extern(call) => text.push_str(&format!("libtorch %{}\n", call.node.index())),
            StepKind::Kernel(k) => {
                let nodes: Vec<String> = match k.parts.as_slice() {
                    [] => vec![format!("{:?}", k.nodes.iter().map(|n| n.index()).collect::<Vec<_>>())],
                    parts => parts
                        .iter()
                        .map(|p| {
                            let nodes: Vec<usize> = p.nodes.iter().map(|n| n.index()).collect();
                            format!("{nodes:?} from {}", p.first)
                        })
                        .collect(),
                };
                let name = &plan.programs[k.program].name;
                let why = k.horizontal_refusal.as_ref().map_or_else(String::new, |a| format!("; alone: {a}"));
                text.push_str(&format!(
                    "{name} {}, {} instances, {} in place{why}\n",
                    nodes.join(", "),
                    k.grid[0],
                    k.in_place.len()
                ));
            }
        }
    }
    text
}

fn expected(plan: &Plan, expect: &Expect) {
    expect.assert_eq(&steps(plan));
}

/// Biases of three products of one input.
pub(super) const BIASES: &str = "graph {
  %0 = input 0 : f32[64,256]
  %1 = input 1 : f32[256,256]
  %2 = input 2 : f32[256]
  %3 = input 3 : f32[256]
  %4 = input 4 : f32[256]
  %5 = aten::mm(self=%0, mat2=%1) : f32[64,256]
  %6 = view reshape(%2) : f32[1,256]
  %7 = view expand(%6) : f32[64,256]
  %8 = map add(%5, %7) : f32[64,256]
  %9 = aten::mm(self=%1, mat2=%1) : f32[64,256]
  %10 = view reshape(%3) : f32[1,256]
  %11 = view expand(%10) : f32[64,256]
  %12 = map add(%9, %11) : f32[64,256]
  %13 = aten::mm(self=%0, mat2=%0) : f32[64,256]
  %14 = view reshape(%4) : f32[1,256]
  %15 = view expand(%14) : f32[64,256]
  %16 = map add(%13, %15) : f32[64,256]
  %17 = aten::attention(q=%8, k=%12, v=%16) : f32[64,256]
  outputs %17
}
";

#[test]
fn biases_of_query_key_and_value_share_a_launch() {
    let plan = planned(BIASES, &gpu());
    expected(
        &plan,
        &expect![[r#"
        libtorch %5
        libtorch %9
        libtorch %13
        horizontal_3_fused_copy [8] from 0, [12] from 128, [16] from 256, 384 instances, 3 in place
        libtorch %17
    "#]],
    );
    let [kernel] = kernels(&plan)[..] else { panic!("{}", steps(&plan)) };
    assert_eq!((kernel.parts.len(), plan.kernel_count(), plan.extern_count()), (3, 1, 4));
    // Each is written over the product that it is added to, as without the others.
    assert_eq!((kernel.in_place.len(), plan.memory.over.len()), (3, 3));
    expect![[r#"
        kernel @horizontal_3_fused_copy(%in0: ptr<f32> align(16) len(16384), %in1: ptr<f32> align(16) len(256), %out2: ptr<f32> align(16) len(16384), %in0_1: ptr<f32> align(16) len(16384), %in1_1: ptr<f32> align(16) len(256), %out2_1: ptr<f32> align(16) len(16384), %in0_2: ptr<f32> align(16) len(16384), %in1_2: ptr<f32> align(16) len(256), %out2_2: ptr<f32> align(16) len(16384)) warps(4) early {
          %0 = program_id 0
          %1 = const 128 : i32
          %2 = map lt %0, %1
          if %2 {
            %3 = assume between %0 0 127
            %4 = const 2 : i32
            %5 = map rem_trunc %3, %4
            %6 = map div_trunc %3, %4
            %7 = const 128 : i32
            %8 = map mul %5, %7
            %9 = const 256 : i32
            %10 = map mul %6, %9
            %11 = range 0 128
            %12 = map add %10, %8
            %13 = splat %12 [128]
            %14 = map add %13, %11
            %15 = load %in0, %14
            %16 = range 0 128
            %17 = splat %8 [128]
            %18 = map add %17, %16
            %19 = load %in1, %18
            %20 = map add %15, %19
            store %out2, %14, %20
            yield
          } else {
            %21 = const 256 : i32
            %22 = map lt %0, %21
            if %22 {
              %23 = const 128 : i32
              %24 = map sub %0, %23
              %25 = assume between %24 0 127
              %26 = const 2 : i32
              %27 = map rem_trunc %25, %26
              %28 = map div_trunc %25, %26
              %29 = const 128 : i32
              %30 = map mul %27, %29
              %31 = const 256 : i32
              %32 = map mul %28, %31
              %33 = range 0 128
              %34 = map add %32, %30
              %35 = splat %34 [128]
              %36 = map add %35, %33
              %37 = load %in0_1, %36
              %38 = range 0 128
              %39 = splat %30 [128]
              %40 = map add %39, %38
              %41 = load %in1_1, %40
              %42 = map add %37, %41
              store %out2_1, %36, %42
              yield
            } else {
              %43 = const 256 : i32
              %44 = map sub %0, %43
              %45 = assume between %44 0 127
              %46 = const 2 : i32
              %47 = map rem_trunc %45, %46
              %48 = map div_trunc %45, %46
              %49 = const 128 : i32
              %50 = map mul %47, %49
              %51 = const 256 : i32
              %52 = map mul %48, %51
              %53 = range 0 128
              %54 = map add %52, %50
              %55 = splat %54 [128]
              %56 = map add %55, %53
              %57 = load %in0_2, %56
              %58 = range 0 128
              %59 = splat %50 [128]
              %60 = map add %59, %58
              %61 = load %in1_2, %60
              %62 = map add %57, %61
              store %out2_2, %56, %62
              yield
            }
            yield
          }
        }
    "#]].assert_eq(&plan.programs[kernel.program].to_string());
}

/// The lines of an update and its results, from its operands, the number of its first value and its size.
type Body = fn(&[usize], usize, i64) -> (String, Vec<usize>);

/// The update of parameters of these sizes by an optimiser, written with pointwise operators on operands `state` at a
/// time; `body` is given their names and the number of the next value, and returns lines and results.
fn optimiser(sizes: &[i64], state: usize, body: Body) -> String {
    let mut text = String::from("graph {\n");
    let mut next = 0;
    let mut inputs = Vec::new();
    for &n in sizes {
        let own: Vec<usize> = (next..next + state).collect();
        for &at in &own {
            text.push_str(&format!("  %{at} = input {at} : f32[{n}]\n"));
        }
        next += state;
        inputs.push((own, n));
    }
    let (mut updates, mut outputs) = (String::new(), Vec::new());
    for (own, n) in inputs {
        let (lines, results) = body(&own, next, n);
        next += lines.lines().count();
        text.push_str(&lines);
        for (target, value) in own.iter().zip(results) {
            updates.push_str(&format!("  update %{target} <- %{value}\n"));
            outputs.push(format!("%{value}"));
        }
    }
    format!("{text}  outputs {}\n{updates}}}\n", outputs.join(", "))
}

/// `v = 0.9 v + g; p = p - 0.01 v` for operands `p`, `v`, `g`.
fn momentum(own: &[usize], next: usize, n: i64) -> (String, Vec<usize>) {
    let (p, v, g) = (own[0], own[1], own[2]);
    let at = |i: usize| next + i;
    let mut lines = String::new();
    for (i, number) in [(0, 0.9), (3, -0.01)] {
        lines.push_str(&format!("  %{} = scalar {number:?} : f32[]\n", at(i)));
        lines.push_str(&format!("  %{} = view reshape(%{}) : f32[1]\n", at(i + 1), at(i)));
        lines.push_str(&format!("  %{} = view expand(%{}) : f32[{n}]\n", at(i + 2), at(i + 1)));
    }
    lines.push_str(&format!("  %{} = map mul(%{v}, %{}) : f32[{n}]\n", at(6), at(2)));
    lines.push_str(&format!("  %{} = map add(%{}, %{g}) : f32[{n}]\n", at(7), at(6)));
    lines.push_str(&format!("  %{} = map mul(%{}, %{}) : f32[{n}]\n", at(8), at(7), at(5)));
    lines.push_str(&format!("  %{} = map add(%{p}, %{}) : f32[{n}]\n", at(9), at(8)));
    (lines, vec![at(9), at(7)])
}

/// AdamW for operands `p`, `m`, `v`, `g`, its corrections of bias left out.
fn adamw(own: &[usize], next: usize, n: i64) -> (String, Vec<usize>) {
    let (p, m, v, g) = (own[0], own[1], own[2], own[3]);
    let mut lines = String::new();
    let mut at = next;
    let mut line = |text: String, shape: &str| {
        lines.push_str(&format!("  %{at} = {text} : f32[{shape}]\n"));
        at += 1;
        at - 1
    };
    let size = n.to_string();
    let number = |line: &mut dyn FnMut(String, &str) -> usize, x: f64| {
        let s = line(format!("scalar {x:?}"), "");
        let s = line(format!("view reshape(%{s})"), "1");
        line(format!("view expand(%{s})"), &size)
    };
    let map = |line: &mut dyn FnMut(String, &str) -> usize, f: &str, a: usize, b: usize| {
        line(format!("map {f}(%{a}, %{b})"), &size)
    };
    let [b1, c1, b2, c2, eps, rate, decay] =
        [0.9, 0.1, 0.999, 0.001, 1e-8, -0.001, 0.9999].map(|x| number(&mut line, x));
    let (old, new) = (map(&mut line, "mul", m, b1), map(&mut line, "mul", g, c1));
    let m = map(&mut line, "add", old, new);
    let square = map(&mut line, "mul", g, g);
    let (old, new) = (map(&mut line, "mul", v, b2), map(&mut line, "mul", square, c2));
    let v = map(&mut line, "add", old, new);
    let root = line(format!("map sqrt(%{v})"), &size);
    let root = map(&mut line, "add", root, eps);
    let step = map(&mut line, "div", m, root);
    let step = map(&mut line, "mul", step, rate);
    let p = map(&mut line, "mul", p, decay);
    let p = map(&mut line, "add", p, step);
    (lines, vec![p, m, v])
}

fn sizes(count: i64) -> Vec<i64> {
    (0..count).map(|i| 40 + 3 * i * i).collect()
}

#[test]
fn momentum_of_twenty_parameters_is_one_launch() {
    let plan = planned(&optimiser(&sizes(20), 3, momentum), &gpu());
    let [kernel] = kernels(&plan)[..] else { panic!("{}", steps(&plan)) };
    assert_eq!((kernel.parts.len(), plan.programs.len()), (20, 1));
    check(&plan);
}

#[test]
fn on_the_host_what_is_handed_to_threads_is_joined() {
    let text = |elements: i64| optimiser(&[elements; 5], 3, momentum);
    let parts = |elements: i64, threads: u32| -> Vec<usize> {
        let plan = planned(&text(elements), &Profile::host(threads));
        kernels(&plan).iter().map(|k| k.parts.len().max(1)).collect()
    };
    assert_eq!(parts(20_000, 2), [5]);
    assert_eq!(parts(20_000, 1), [1; 5]);
    assert_eq!(parts(2_000, 2), [1; 5]);
    assert_eq!(parts(200_000, 2), [1; 5]);
    // The interpreter is slow: one that is small enough for it.
    check(&planned(&text(8_000), &Profile::host(2)));
}

#[test]
fn updates_in_one_launch_are_written_over_their_targets() {
    // Without the new values as results.
    let text = optimiser(&sizes(20), 4, adamw);
    let (graph, updates) = text.split_once("  outputs").unwrap();
    let updates = updates.split_once('\n').unwrap().1;
    let cuda = format!("{graph}  outputs %3\n{updates}").replace('\n', "@cuda:0\n");
    let on_gpu = cuda.lines().map(|line| match line.contains(" : ") {
        true => line.replace("= input", "= param"),
        false => line.replace("@cuda:0", ""),
    });
    let plan = planned(&on_gpu.collect::<Vec<_>>().join("\n"), &gpu());
    let [kernel] = kernels(&plan)[..] else { panic!("{}", steps(&plan)) };
    assert_eq!((kernel.parts.len(), plan.updates.len()), (20, 60));
    assert!(plan.copied.iter().all(Option::is_none), "{:?}", plan.copied);
    assert_eq!(plan.peak_bytes(), 0);
}

#[test]
fn adamw_of_many_parameters_is_a_few_launches() {
    let text = optimiser(&sizes(20), 4, adamw);
    assert_eq!(planned(&text, &gpu()).kernel_count(), 1);
    // Seven pointers each: 36 parts are below the limit.
    let text = optimiser(&[1000; 100], 4, adamw);
    let plan = planned(&text, &gpu());
    let parts: Vec<usize> = kernels(&plan).iter().map(|k| k.parts.len()).collect();
    assert_eq!(parts, [36, 36, 28]);
    assert!(kernels(&plan).iter().all(|k| k.buffers.len() <= super::legal::MAX_POINTERS));
    // Launches of equal parts have one program.
    assert_eq!(plan.programs.len(), 2);
}

#[test]
fn the_same_graph_gives_the_same_plan() {
    let text = optimiser(&sizes(30), 4, adamw);
    let (a, b) = (planned(&text, &gpu()), planned(&text, &gpu()));
    assert_eq!(steps(&a), steps(&b));
    assert_eq!(a.programs, b.programs);
    assert_eq!(a.memory, b.memory);
}

/// A second layer whose steps are due in another order has the launch of the first.
#[test]
fn launches_of_the_same_kernels_are_one_program() {
    let text = "graph {
  %0 = input 0 : f32[64,64]
  %1 = input 1 : f32[64,128]
  %2 = aten::mm(self=%0, mat2=%0) : f32[64,64]
  %3 = map exp(%2) : f32[64,64]
  %4 = aten::mm(self=%0, mat2=%1) : f32[64,128]
  %5 = map neg(%4) : f32[64,128]
  %6 = aten::attention(q=%3, k=%5, v=%3) : f32[64,64]
  %7 = aten::mm(self=%6, mat2=%1) : f32[64,128]
  %8 = map neg(%7) : f32[64,128]
  %9 = aten::mm(self=%6, mat2=%0) : f32[64,64]
  %10 = map exp(%9) : f32[64,64]
  %11 = aten::attention(q=%10, k=%8, v=%10) : f32[64,64]
  outputs %11
}
";
    let plan = planned(text, &gpu());
    let kernels = kernels(&plan);
    let parts: Vec<usize> = kernels.iter().map(|kernel| kernel.parts.len()).collect();
    assert_eq!((parts, plan.programs.len()), (vec![2, 2], 1), "{}", steps(&plan));
}

#[test]
fn updates_that_become_ready_one_after_the_other_meet_at_the_end() {
    let text = "graph {
  %0 = input 0 : f32[64,64]
  %1 = input 1 : f32[64,64]
  %8 = input 2 : f32[64,64]
  %9 = input 3 : f32[64,64]
  %2 = aten::mm(self=%0, mat2=%0) : f32[64,64]
  %3 = map add(%2, %1) : f32[64,64]
  %4 = aten::mm(self=%2, mat2=%0) : f32[64,64]
  %5 = map mul(%4, %8) : f32[64,64]
  %6 = aten::mm(self=%4, mat2=%0) : f32[64,64]
  %7 = map sub(%6, %9) : f32[64,64]
  outputs %3, %5, %7
}
";
    expected(
        &planned(text, &gpu()),
        &expect![[r#"
        libtorch %4
        libtorch %6
        libtorch %8
        horizontal_3_fused_copy [5] from 0, [7] from 32, [9] from 64, 96 instances, 6 in place
    "#]],
    );
}

#[test]
fn horizontal_reductions_and_walks_compute_what_they_do_apart() {
    let text = "graph {
  %0 = input 0 : f32[7,33]
  %1 = input 1 : f32[5,40]
  %2 = input 2 : f32[20,9]
  %3 = input 3 : f32[3]
  %4 = reduce sum[1](%0) : f32[7]
  %5 = reduce max[1](%1) : f32[5]
  %6 = view reshape(%5) : f32[5,1]
  %7 = view expand(%6) : f32[5,40]
  %8 = map sub(%1, %7) : f32[5,40]
  %9 = map exp(%8) : f32[5,40]
  %10 = reduce sum[0](%2) : f32[9]
  %11 = map tanh(%3) : f32[3]
  outputs %4, %9, %10, %11
}
";
    let plan = planned(text, &gpu());
    check(&plan);
    assert_eq!(plan.kernel_count(), 1, "{}", steps(&plan));
}
