//! Windows and zeros between elements, in the addresses of kernels.

use super::{Plan, Profile, check, plan};
use crate::plan::StepKind;
use crate::{parse_graph, verify};

/// Plans a graph for both machines, runs the plans, and returns how many kernels they have.
fn kernels(text: &str) -> [usize; 2] {
    let graph = parse_graph(text).unwrap();
    verify(&graph).unwrap();
    [Profile::host(2), Profile::gpu(132, 4200.0)].map(|profile| {
        let plan: Plan = plan(&graph, &profile).unwrap();
        check(&plan);
        plan.kernel_count()
    })
}

#[test]
fn pooling_is_a_reduction_of_windows() {
    for (combine, fill) in [("sum", "0.0"), ("max", "-inf")] {
        let text = format!(
            "graph {{
              %0 = input 0 : f32[3,9,8]
              %1 = view pad[0,1,0]={fill}(%0) : f32[3,11,10]
              %2 = view window[1,2] kernel[3,2] stride[2,3] dilation[1,2](%1) : f32[3,5,3,3,2]
              %3 = reduce {combine}[3,4](%2) : f32[3,5,3]
              %4 = map exp(%3) : f32[3,5,3]
              outputs %4
            }}"
        );
        assert_eq!(kernels(&text), [1, 1]);
    }
}

/// A window of four positions beside each other, of which each reads a quarter of the image: together they read all of it, and two
/// readers of the same elements do not read them twice.
#[test]
fn the_positions_of_a_window_read_the_image_once() {
    let text = "graph {
      %0 = input 0 : bf16[64,64,64]
      %1 = aten::max_pool2d(self=%0, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], dilation=[1, 1], ceil_mode=false) : bf16[64,32,32]
      %2 = aten::max_pool2d(self=%0, kernel_size=[1, 1], stride=[2, 2], padding=[0, 0], dilation=[1, 1], ceil_mode=false) : bf16[64,32,32]
      %3 = aten::add.Tensor(self=%1, other=%2, alpha=1) : bf16[64,32,32]
      outputs %3
    }";
    for profile in [Profile::host(2), Profile::gpu(132, 4200.0)] {
        let plan = crate::pipeline::plan(&crate::pipeline::primitive(text, &profile), &profile).unwrap();
        let [step] = plan.steps.as_slice() else { panic!("{plan}") };
        let StepKind::Kernel(kernel) = &step.kind else { panic!("{plan}") };
        assert_eq!(kernel.bytes_read, 64 * 64 * 64 * 2, "{plan}");
    }
}

#[test]
fn what_is_computed_is_computed_in_windows() {
    let text = "graph {
      %0 = input 0 : f32[4,20]
      %1 = map neg(%0) : f32[4,20]
      %2 = view window[1] kernel[5] stride[3] dilation[1](%1) : f32[4,6,5]
      %3 = map tanh(%2) : f32[4,6,5]
      outputs %3
    }";
    assert_eq!(kernels(text), [1, 1]);
}

#[test]
fn zeros_between_elements_are_masked() {
    let text = "graph {
      %0 = input 0 : f32[5,7]
      %1 = view pad[2,0] interior[1,2]=-3.0(%0) : f32[12,21]
      %2 = map exp(%1) : f32[12,21]
      %3 = view permute[1,0](%1) : f32[21,12]
      %4 = map neg(%3) : f32[21,12]
      outputs %2, %4
    }";
    assert_eq!(kernels(text), [2, 1]);
}

/// What a transposed convolution is: the kernel's dimensions are reduced, elements between them are masked.
#[test]
fn windows_of_padded_elements_are_reduced_with_weights() {
    let text = "graph {
      %0 = input 0 : f32[2,4,5]
      %1 = input 1 : f32[3,2]
      %2 = view pad[0,1,0] interior[0,1,2]=0.0(%0) : f32[2,10,14]
      %3 = view slice[1,1,1](%2) : f32[2,8,14]
      %4 = view window[1,2] kernel[3,2] stride[1,1] dilation[1,2](%3) : f32[2,6,12,3,2]
      %5 = view flip[0,1](%1) : f32[3,2]
      %6 = view reshape(%5) : f32[1,1,1,3,2]
      %7 = view expand(%6) : f32[2,6,12,3,2]
      %8 = map mul(%4, %7) : f32[2,6,12,3,2]
      %9 = reduce sum[3,4](%8) : f32[2,6,12]
      outputs %9
    }";
    assert_eq!(kernels(text), [1, 1]);
}

/// Groups and channels: a reshape of windows is folded too.
#[test]
fn windows_in_groups_are_reduced_with_weights() {
    let text = "graph {
      %0 = input 0 : f32[2,6,8]
      %1 = input 1 : f32[4,3,3]
      %2 = view pad[0,0,1]=0.0(%0) : f32[2,6,10]
      %3 = view window[2] kernel[3] stride[2] dilation[1](%2) : f32[2,6,4,3]
      %4 = view reshape(%3) : f32[2,2,1,3,4,3]
      %5 = view expand(%4) : f32[2,2,2,3,4,3]
      %6 = view reshape(%1) : f32[1,2,2,3,1,3]
      %7 = view expand(%6) : f32[2,2,2,3,4,3]
      %8 = map mul(%5, %7) : f32[2,2,2,3,4,3]
      %9 = reduce sum[3,5](%8) : f32[2,2,2,4]
      %10 = view reshape(%9) : f32[2,4,4]
      outputs %10
    }";
    assert_eq!(kernels(text), [1, 1]);
}
