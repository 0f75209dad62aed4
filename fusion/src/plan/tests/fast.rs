//! Approximate exponentials, where nothing wider than 16 bits is read or written.

use tilefuse_block::{Elem, ScalarFn};

use super::{G, Plan, check};
use crate::graph::Op;

fn programs(plan: &Plan) -> String {
    plan.programs.iter().map(ToString::to_string).collect()
}

/// Softmax of rows in a kind, on the host and on a GPU.
fn softmax(elem: Elem) -> Vec<Plan> {
    let mut g = G::new();
    let x = g.0.add(Op::Input(0), &[], [G::ty(&[6, 40], elem)], None).into();
    let wide = match elem {
        Elem::F32 => x,
        _ => g.0.add(Op::Cast, &[x], [G::ty(&[6, 40], Elem::F32)], None).into(),
    };
    let y = g.softmax(wide, 1);
    let gate = g.map(ScalarFn::Sigmoid, &[y]);
    let y = match elem {
        Elem::F32 => gate,
        _ => g.0.add(Op::Cast, &[gate], [G::ty(&[6, 40], elem)], None).into(),
    };
    g.plans(&[y])
}

#[test]
fn halves_on_a_gpu_are_approximate_and_all_else_is_exact() {
    for elem in [Elem::F32, Elem::F16, Elem::Bf16] {
        for (plan, gpu) in softmax(elem).iter().zip([false, true]) {
            let text = programs(plan);
            let fast = gpu && elem != Elem::F32;
            assert_eq!(text.contains("exp2_approx") && text.contains("recip_approx"), fast, "{text}");
            assert_eq!(text.contains("map exp ") || text.contains("map sigmoid "), !fast, "{text}");
            // The check is for f32.
            if elem == Elem::F32 {
                check(plan);
            }
        }
    }
}
