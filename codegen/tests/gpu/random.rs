//! Random programs, each from a seed.

use tilefuse_block::expand_math;
use tilefuse_block::passes::approximate;
use tilefuse_block::random::{self, Choices, Options};

use crate::run::{Case, Tolerance};

/// The cases of `seeds`: half of them with mathematical functions, with all numbers of warps.
pub(crate) fn cases(seeds: std::ops::Range<u64>) -> Vec<Case> {
    seeds.map(one).collect()
}

/// The cases of `seeds` with the operations of hand-written kernels.
pub(crate) fn language_cases(seeds: std::ops::Range<u64>) -> Vec<Case> {
    let one = |seed| {
        let options = Options { language: true, max_tile: 1024, ..Options::default() };
        let random = random::case(&mut Choices::from_seed(seed), &options);
        let name = format!("language {seed}");
        let (program, args, grid) = (random.program, random.args, random.grid);
        Case { name, program, args, grid, tolerance: Tolerance::Exact, is_function: false }
    };
    seeds.map(one).collect()
}

fn one(seed: u64) -> Case {
    let with_math = draw(seed, seed % 2 == 1);
    // Not every function has a formula for every kind.
    let expands = expand_math(&mut with_math.program.clone()).is_ok() && !is_approximate(&with_math.program);
    let mut random = if expands { with_math } else { draw(seed, false) };
    // What is compared or cast to an integer tells approximate quotients from exact ones: another program instead.
    let mut other = seed;
    while is_approximate(&random.program) {
        other = other.wrapping_add(1 << 40);
        random = draw(other, false);
    }
    random.program.warps = 1 << (seed % 4);
    Case {
        name: format!("random {seed}"),
        program: random.program,
        args: random.args,
        grid: random.grid,
        tolerance: Tolerance::Exact,
        is_function: false,
    }
}

fn draw(seed: u64, math: bool) -> random::Case {
    let max_tile = if seed.is_multiple_of(8) { 16384 } else { 2048 };
    random::case(&mut Choices::from_seed(seed), &Options { math, max_tile, ..Options::default() })
}

/// Whether a target may compute the program's exponentials with errors of its own.
pub(crate) fn is_approximate(program: &tilefuse_block::Program) -> bool {
    let mut changed = program.clone();
    approximate(&mut changed);
    changed != *program
}
