//! Where values lie: in place of others, in the arena, in tensors of their own.

use super::plan_within;
use crate::contract::{Products, choose_products};
use crate::machine::Profile;
use crate::pipeline::{self, Context, plan, primitive};
use crate::plan::{Plan, StepKind, Verdict, verify};
use crate::text::parse_graph;

/// A library call between kernels. The residual is added and normalised: the sum is returned as well.
const NORM: &str = "graph {
  %0 = input 0 : f32[64,256]
  %1 = input 1 : f32[64,256]
  %2 = aten::mm(self=%0, mat2=%1) : f32[64,256]
  %3 = map add(%2, %1) : f32[64,256]
  %4 = reduce max[1](%3) : f32[64]
  %5 = view reshape(%4) : f32[64,1]
  %6 = view expand(%5) : f32[64,256]
  %7 = map sub(%3, %6) : f32[64,256]
  %8 = aten::mm(self=%7, mat2=%1) : f32[64,256]
  outputs %3, %8
}
";

const CHAIN: &str = "graph {
  %0 = input 0 : f32[64,256]
  %1 = aten::relu(self=%0) : f32[64,256]
  %2 = map exp(%1) : f32[64,256]
  %3 = aten::relu(self=%2) : f32[64,256]
  %4 = map tanh(%3) : f32[64,256]
  %5 = aten::cumsum(self=%4) : f32[64,256]
  %6 = map add(%5, %1) : f32[64,256]
  outputs %6
}
";

/// Every result of a library call is read across, not element by element, by the kernel behind it.
const TRANSPOSED: &str = "graph {
  %0 = input 0 : f32[256,256]
  %1 = aten::relu(self=%0) : f32[256,256]
  %2 = view permute[1,0](%1) : f32[256,256]
  %3 = map exp(%2) : f32[256,256]
  %4 = aten::relu(self=%3) : f32[256,256]
  %5 = map tanh(%4) : f32[256,256]
  %6 = aten::cumsum(self=%5) : f32[256,256]
  outputs %6
}
";

const TILE: u64 = 64 * 256 * 4;

fn planned(text: &str) -> Vec<Plan> {
    let graph = parse_graph(text).unwrap();
    [Profile::host(2), Profile::gpu(132, 4200.0)].iter().map(|p| plan(&graph, p).unwrap()).collect()
}

#[test]
fn a_kernel_writes_over_what_it_is_the_last_to_read() {
    for mut plan in planned(CHAIN) {
        // `%1` is read by two kernels, of which only the last may write over it.
        assert_eq!(plan.memory.over.len(), 2, "{:?}", plan.memory);
        assert_eq!(plan.peak_bytes(), 4 * TILE);
        plan.limit_memory(3 * TILE);
        assert_eq!(plan.peak_bytes(), 3 * TILE);
    }
}

#[test]
fn nothing_is_written_over_what_a_later_store_of_the_kernel_reads() {
    for plan in planned(NORM) {
        let sum = plan.outputs[0].base();
        let product = plan.graph.ids().find(|id| id.index() == 2).unwrap().into();
        let pairs = plan.steps.iter().flat_map(|s| match &s.kind {
            crate::plan::StepKind::Kernel(k) => k.in_place.clone(),
            crate::plan::StepKind::Extern(_) => Vec::new(),
        });
        let pairs: Vec<_> = pairs.collect();
        assert!(!pairs.contains(&(product, sum)), "{pairs:?}");
    }
}

#[test]
fn nothing_is_written_over_what_is_read_across() {
    for plan in planned(TRANSPOSED) {
        assert_eq!(plan.memory.over.len(), 1, "{:?}", plan.memory);
    }
}

#[test]
fn a_limit_moves_intermediates_out_of_the_arena() {
    for mut plan in planned(TRANSPOSED) {
        let (most, before) = (2 * 256 * 256 * 4, plan.peak_bytes());
        plan.limit_memory(most);
        assert!(plan.peak_bytes() <= most && before > most, "{before} {}", plan.peak_bytes());
        assert_eq!(verify(&plan), Ok(()));
        let (moved, bytes) = (plan.memory.own.len(), plan.memory.bytes);
        plan.limit_memory(0);
        assert!(
            plan.memory.own.len() == moved && plan.memory.bytes == bytes,
            "it is as near to 0 as it can be"
        );
        assert_eq!(verify(&plan), Ok(()));
    }
}

/// Two large products, of each of which a few elements are picked: where both are picked in one kernel, both are kept.
pub(super) const PICKED: &str = "graph {
  %0 = input 0 : f32[64,64]
  %1 = input 1 : f32[64,4096]
  %2 = input 2 : i64[64,64]
  %3 = aten::mm(self=%0, mat2=%1) : f32[64,4096]
  %4 = gather 1(%3, %2) : f32[64,64]
  %5 = aten::mm(self=%4, mat2=%1) : f32[64,4096]
  %6 = gather 1(%5, %2) : f32[64,64]
  %7 = map add(%4, %6) : f32[64,64]
  %8 = aten::mm(self=%0, mat2=%1) : f32[64,4096]
  %9 = gather 1(%8, %2) : f32[64,64]
  %10 = map add(%7, %9) : f32[64,64]
  outputs %10
}
";

#[test]
fn what_is_read_early_need_not_be_kept() {
    let graph = parse_graph(PICKED).unwrap();
    let most = 4 * (64 * 4096 + 3 * 64 * 64);
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0)] {
        let kept = plan(&graph, &profile).unwrap();
        assert!(kept.peak_bytes() > most, "{}", kept.peak_bytes());
        let mut limited = plan_within(&graph, &profile, most);
        limited.limit_memory(most);
        assert!(limited.peak_bytes() <= most, "{} of {most}", limited.peak_bytes());
        assert!(limited.decisions.iter().any(|d| d.verdict == Verdict::Memory));
        assert_eq!(verify(&limited), Ok(()));
    }
}

/// What two products read is made of parameters alone, and recorded in front of both.
const MADE: &str = "graph {
  %0 = input 0 : f32[4,1024]
  %1 = param 0 : f32[1024,1024]
  %2 = param 1 : f32[1024,512]
  %3 = map exp(%1) : f32[1024,1024]
  %4 = map neg(%2) : f32[1024,512]
  %5 = aten::mm(self=%0, mat2=%3) : f32[4,1024]
  %6 = aten::mm(self=%5, mat2=%4) : f32[4,512]
  outputs %6
}
";

#[test]
fn what_is_made_of_parameters_is_made_late() {
    let graph = parse_graph(MADE).unwrap();
    let most = 4 * (1024 * 1024 + 2 * 4 * 1024);
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0)] {
        let kept = plan(&graph, &profile).unwrap();
        assert!(kept.peak_bytes() > most, "{}", kept.peak_bytes());
        let mut limited = plan_within(&graph, &profile, most);
        limited.limit_memory(most);
        assert!(limited.peak_bytes() <= most, "{} of {most}", limited.peak_bytes());
        assert_eq!(verify(&limited), Ok(()));
    }
}

/// Channels-last images whose sums, which are a result as well, are normalised in groups, and columns beside rows.
#[test]
fn what_is_widened_is_stored_as_it_was() {
    let images = "graph {
      %0 = input 0 : bf16[4,32,32,64]
      %1 = aten::permute(self=%0, dims=[0,3,1,2]) : bf16[4,64,32,32]{65536,1,2048,64}
      %2 = aten::add.Tensor(self=%1, other=%1, alpha=1) : bf16[4,64,32,32]{65536,1,2048,64}
      %3 = aten::group_norm(input=%2, num_groups=16, weight=None, bias=None, eps=1e-5, cudnn_enabled=true) : bf16[4,64,32,32]
      outputs %3, %2
    }";
    let columns = "graph {
      %0 = input 0 : bf16[512,1024]
      %1 = aten::add.Tensor(self=%0, other=%0, alpha=1) : bf16[512,1024]
      %2 = cast(%1) : f32[512,1024]
      %3 = reduce sum[0](%2) : f32[1024]
      %4 = view reshape(%3) : f32[1,1024]
      %5 = view expand(%4) : f32[512,1024]
      %6 = map sub(%2, %5) : f32[512,1024]
      %7 = reduce max[1](%6) : f32[512]
      outputs %7
    }";
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0).with_clusters()] {
        for text in [images, columns] {
            let plan = plan(&primitive(text, &profile), &profile).unwrap();
            let all = plan.steps.iter().filter_map(|step| match &step.kind {
                StepKind::Kernel(kernel) => Some(&kernel.buffers),
                StepKind::Extern(_) => None,
            });
            let wide =
                all.flatten().filter(|(value, written)| *written && plan.graph.ty(*value).bytes() > 1 << 20);
            assert_eq!(wide.count(), 0, "{plan}");
        }
    }
}

/// A product of a single number, which is widened as a result and read again behind it.
#[test]
fn a_widened_result_of_a_product_is_read_again() {
    let text = "graph {
      %0 = input 0 : bf16[2,1,2,1]
      %1 = input 1 : bf16[2,1,1,1]
      %2 = aten::matmul(self=%0, other=%1) : bf16[2,1,2,1]
      %3 = aten::to.dtype(self=%2, dtype=f32, non_blocking=false, copy=false, memory_format=None) : f32[2,1,2,1]
      %4 = aten::mean.dim(self=%3, dim=[-1], keepdim=true, dtype=None) : f32[2,1,2,1]
      outputs %3, %4
    }";
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0).with_clusters()] {
        for most_bytes in (0..64).step_by(4).chain([u64::MAX]) {
            let mut graph = primitive(text, &profile);
            choose_products(&mut graph, &profile, Products::Generated, Some(0), most_bytes, &mut |_| None);
            let plan =
                pipeline::planned(graph, &mut Context { most_bytes, ..Context::new(&profile) }).unwrap();
            assert_eq!(verify(&plan), Ok(()));
        }
    }
}
