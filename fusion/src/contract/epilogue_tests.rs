//! Expressions at the stores of products: what index arithmetic their operands take, and what they compute.

use super::row_tests::{check_within, planned};
use crate::machine::Profile;
use crate::plan::Plan;

/// A linear layer of rows `[2, 9]` and 21 columns, read in another shape and scaled by what is spread over it.
fn scaled(shape: &str, scale: &str) -> String {
    format!(
        "graph {{
           %0 = input 0 : f32[2,9,16]
           %1 = input 1 : f32[21,16]
           %2 = input 2 : f32[{scale}]
           %3 = aten::linear(input=%0, weight=%1, bias=None) : f32[2,9,21]
           %4 = aten::view(self=%3, size=[{shape}]) : f32[{shape}]
           %5 = aten::mul.Tensor(self=%4, other=%2) : f32[{shape}]
           outputs %5
         }}"
    )
}

/// The plan of a graph, of one kernel, whose values are those of the graph on any number of threads.
fn checked(text: &str) -> Plan {
    for threads in [1, 16] {
        check_within(text, &Profile::host(threads), 2e-5);
    }
    let (plan, _) = planned(text, &Profile::host(2));
    assert_eq!((plan.kernel_count(), plan.extern_count()), (1, 0), "{plan}");
    plan
}

/// A number for each image and head is that of the row divided by 9 and of the column divided by 7, without remainders of the
/// element's.
#[test]
fn operands_are_read_along_the_axes_of_the_store() {
    let plan = checked(&scaled("2,9,3,7", "2,1,3,1"));
    let program = plan.programs[0].to_string();
    let count = |function: &str| program.matches(function).count();
    assert_eq!([count("map div_trunc"), count("map rem_trunc")], [2, 0], "{program}");
}

#[test]
fn shapes_across_the_axes_of_the_store_are_counted_by_elements() {
    checked(&scaled("27,14", "14"));
    checked(&scaled("14,27", "14,1"));
}
