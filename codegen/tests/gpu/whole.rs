//! The kernels of the benchmarks, at odd sizes and with several tilings.

use tilefuse_block::interp::{Arg, Buffer};
use tilefuse_block::{Elem, Program};

use crate::kernels;
use crate::run::{Case, Tolerance};
use crate::values::moderate;

pub(crate) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for elem in [Elem::F32, Elem::Bf16, Elem::F16] {
        for (n, block, warps) in
            [(4096, 1024, 4), (5000, 512, 1), (777, 2048, 8), (1, 64, 4), (65536, 4096, 2)]
        {
            let program = kernels::vector_add(elem, n, block, warps).unwrap();
            out.push(flat(program, elem, n as usize, block, 2));
            out.push(flat(kernels::copy(elem, n, block, warps).unwrap(), elem, n as usize, block, 1));
        }
        for (rows, cols, tile, warps) in [
            (6, 1024, 1, 4),
            (8, 768, 4, 4),
            (5, 100, 1, 1),
            (4, 4096, 2, 8),
            (16, 33, 8, 2),
            (3, 1, 1, 4),
            (2, 36_000, 1, 16),
        ] {
            let name = |program: &Program| {
                format!("{} {elem} {rows}x{cols} tile {tile} warps {warps}", program.name)
            };
            let wide = cols as usize;
            let mut push = |program: Program, whole: &[bool]| {
                let mut args: Vec<Arg> = whole
                    .iter()
                    .enumerate()
                    .map(|(i, &w)| {
                        Arg::buffer(moderate(elem, if w { rows * wide } else { wide }, i as u64 + 3))
                    })
                    .collect();
                args.push(Arg::Buffer(Buffer::uninit(elem, rows * wide)));
                let grid = [(rows as u32) / tile, 1, 1];
                let tolerance = close(elem);
                out.push(Case { name: name(&program), program, args, grid, tolerance, is_function: false });
            };
            push(kernels::softmax(elem, cols, tile, warps).unwrap(), &[true]);
            push(kernels::layer_norm(elem, cols, tile, warps).unwrap(), &[true, false, false]);
            push(kernels::bias_gelu_residual(elem, cols, tile, warps).unwrap(), &[true, false, true]);
        }
    }
    out
}

fn close(elem: Elem) -> Tolerance {
    match elem {
        Elem::F32 => Tolerance::Close { absolute: 1e-5, relative: 1e-5 },
        Elem::F16 => Tolerance::Close { absolute: 1e-3, relative: 2e-3 },
        _ => Tolerance::Close { absolute: 1e-2, relative: 1.6e-2 },
    }
}

fn flat(program: Program, elem: Elem, n: usize, block: u32, inputs: usize) -> Case {
    let mut args: Vec<Arg> = (0..inputs).map(|i| Arg::buffer(moderate(elem, n, i as u64 + 9))).collect();
    args.push(Arg::Buffer(Buffer::uninit(elem, n)));
    let name = format!("{} {elem} {n} block {block} warps {}", program.name, program.warps);
    Case {
        name,
        program,
        args,
        grid: [(n as u32).div_ceil(block), 1, 1],
        tolerance: Tolerance::Exact,
        is_function: false,
    }
}
