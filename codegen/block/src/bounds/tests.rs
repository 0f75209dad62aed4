use super::{Accesses, Given, Proof, Reach, decisive, prove};
use crate::interp::{Arg, Buffer, Fault, InterpError, Options, run_part, run_with};
use crate::passes::{guard, optimize};
use crate::program::Program;
use crate::random::{Case, Choices, Options as RandomOptions, case, index_case};
use crate::tiles::*;
use crate::types::{Elem, Kind, Literal};

fn reach(program: &Program, grid: [u32; 3], part: [std::ops::Range<u32>; 3], args: &[Given]) -> Vec<Reach> {
    Accesses::of(program, vec![true; program.params.len()]).reach(grid, part, args)
}

fn build(body: impl FnOnce(&Scope)) -> Program {
    let mut program = program("f", body).unwrap();
    optimize(&mut program).unwrap();
    program
}

fn vector_add() -> Program {
    build(|k| {
        let (x, z, n) = (k.ptr::<f32>("x"), k.ptr::<f32>("z"), k.scalar::<i64>("n"));
        let at = program_id(0) * 16 + range(0, 16);
        let inside = at.lt(n);
        store(z + at, load(x + at, inside, 0) + 1, inside);
    })
}

/// Rows of `n` elements, `stride` apart, and the columns of one row more.
fn rows() -> Program {
    build(|k| {
        let (x, w, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("w"), k.ptr::<f32>("y"));
        let (stride, n) = (k.scalar::<i64>("stride"), k.scalar::<i64>("n"));
        let (row, cols) = (program_id(0), range(0, 16));
        let inside = cols.lt(n);
        let v = load(x + row * stride + cols, inside, 0) * load(w + cols, inside, 0);
        store(y + row * stride + cols, v, inside);
    })
}

fn product() -> Program {
    build(|k| {
        let (a, b, c) = (k.ptr::<f32>("a"), k.ptr::<f32>("b"), k.ptr::<f32>("c"));
        let (m, n, depth) = (k.scalar::<i64>("m"), k.scalar::<i64>("n"), k.scalar::<i64>("k"));
        let (i, j) = (program_id(0) * 4, program_id(1) * 8);
        let left = make_descriptor(a, (m, depth), (depth, 1), [4, 2]);
        let right = make_descriptor(b, (depth, n), (n, 1), [2, 8]);
        let sum = for_loop(0, depth, 2, zeros::<f32>([4, 8]), |at, sum| {
            dot(left.load((i, at)), right.load((at, j)), sum)
        });
        make_descriptor(c, (m, n), (n, 1), [4, 8]).store((i, j), sum);
    })
}

/// An instance takes every third row, as far as there are any.
fn every_third_row() -> Program {
    build(|k| {
        let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
        let (rows, n) = (k.scalar::<i64>("rows"), k.scalar::<i64>("n"));
        let (part, cols) = (program_id(0), range(0, 8));
        let inside = cols.lt(n);
        let sum = for_loop(part, rows, 3, zeros::<f32>([8]), |row, sum| {
            sum + load(x + row * n + cols, inside, 0) * load(y + row, true, 0)
        });
        store(y + part, sum.sum(0), true);
    })
}

/// Offsets that are carried from one iteration to the next.
fn walking() -> Program {
    build(|k| {
        let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
        let (n, step) = (k.scalar::<i32>("n"), k.scalar::<i64>("step"));
        let at = program_id(0).cast::<i64>() * step + range(0, 8);
        let (at, sum) = for_loop(0, n, 2, (at, zeros::<f32>([8])), |_, (at, sum)| {
            (at + step, sum + load(x + at, true, 0))
        });
        store(y + at, sum, true);
    })
}

const KERNELS: [fn() -> Program; 5] = [vector_add, rows, product, every_third_row, walking];

fn given(args: &[Arg]) -> Vec<Given> {
    let given = |arg: &Arg| match arg {
        Arg::Scalar(literal) => Given::Number(*literal),
        Arg::Buffer(buffer) => Given::Elements(buffer.len() as u64),
    };
    args.iter().map(given).collect()
}

/// Runs a program with what is not proven guarded: nothing may be out of bounds, and no promise broken. How much of it
/// was proven.
fn run_guarded(program: &Program, args: &[Arg], grid: [u32; 3]) -> Proof {
    let proof = prove(program, grid, &given(args));
    let mut guarded = program.clone();
    let guards = guard(&mut guarded, &proof);
    let mut args = args.to_vec();
    for &param in &guards.lengths {
        let len = args[param].data().unwrap().len();
        args.push(Arg::int(Elem::I64, len as i64));
    }
    if !guards.lengths.is_empty() {
        args.push(Arg::buffer(vec![0i32]));
    }
    let options = Options { races: false, fuel: Some(100_000), print: |_| () };
    match run_with(&guarded, &mut args, grid, &options) {
        Ok(()) | Err(InterpError::Fault { fault: Fault::Fuel | Fault::Step(_), .. }) => {}
        Err(InterpError::Fault { fault: Fault::Assertion { .. } | Fault::Uninitialized { .. }, .. }) => {}
        Err(error) => panic!("{error}\n{program}\n{guarded}"),
    }
    assert!(!proof.is_complete() || guards.lengths.is_empty());
    proof
}

fn floats(len: usize) -> Arg {
    Arg::buffer(vec![1f32; len])
}

fn wide(n: i64) -> Arg {
    Arg::int(Elem::I64, n)
}

#[test]
fn kernels_within_their_tensors_need_no_guards() {
    let complete = |program: &Program, args: &[Arg], grid| run_guarded(program, args, grid).is_complete();
    let add = vector_add();
    assert!(complete(&add, &[floats(100), floats(100), wide(100)], [7, 1, 1]));
    assert!(!complete(&add, &[floats(99), floats(100), wide(100)], [7, 1, 1]));
    assert!(complete(&add, &[floats(99), floats(96), wide(i64::MAX)], [6, 1, 1]));
    assert!(!complete(&add, &[floats(99), floats(95), wide(i64::MAX)], [6, 1, 1]));

    let rows = rows();
    assert!(complete(&rows, &[floats(52), floats(12), floats(52), wide(20), wide(12)], [3, 1, 1]));
    assert!(!complete(&rows, &[floats(51), floats(12), floats(52), wide(20), wide(12)], [3, 1, 1]));
    assert!(!complete(&rows, &[floats(52), floats(12), floats(52), wide(-20), wide(12)], [3, 1, 1]));

    let product = product();
    let sizes = |m: usize, n: usize, k: usize| [floats(m * k), floats(k * n), floats(m * n)];
    let numbers = [6, 13, 5].map(wide);
    assert!(complete(&product, &[sizes(6, 13, 5), numbers.clone()].concat(), [2, 2, 1]));
    assert!(!complete(&product, &[sizes(6, 13, 4), numbers].concat(), [2, 2, 1]));

    let third = every_third_row();
    assert!(complete(&third, &[floats(70), floats(10), wide(10), wide(7)], [3, 1, 1]));
    assert!(!complete(&third, &[floats(69), floats(10), wide(10), wide(7)], [3, 1, 1]));

    let walking = walking();
    let args = |x: usize, y: usize| [floats(x), floats(y), Arg::int(Elem::I32, 7), wide(10)];
    assert!(complete(&walking, &args(48, 58), [2, 1, 1]));
    assert!(!complete(&walking, &args(47, 58), [2, 1, 1]));
    assert!(!complete(&walking, &args(48, 57), [2, 1, 1]));
}

#[test]
fn numbers_that_lead_nowhere_do_not_count() {
    let program = build(|k| {
        let (x, n, scale) = (k.ptr::<f32>("x"), k.scalar::<i32>("n"), k.scalar::<f32>("scale"));
        let (count, unused) = (k.scalar::<i32>("count"), k.scalar::<i32>("added"));
        let at = for_loop(0, count, 1, range(0, 8), |_, at| at + n);
        store(x + at, full::<f32>([8], 1) * scale + unused.cast::<f32>(), true);
    });
    assert_eq!(decisive(&program), [false, true, false, true, false]);
}

#[test]
fn no_arguments_lead_out_of_bounds() {
    let numbers = [
        i64::MIN,
        i64::MIN / 3,
        -(1 << 32),
        -33,
        -1,
        0,
        1,
        5,
        8,
        17,
        1 << 31,
        (1 << 32) - 3,
        1 << 61,
        i64::MAX / 2,
        i64::MAX - 7,
        i64::MAX,
    ];
    let mut complete = 0;
    for seed in 0..400 {
        let mut choices = Choices::from_seed(seed);
        for kernel in KERNELS {
            let program = kernel();
            let args: Vec<Arg> = program
                .params
                .iter()
                .map(|param| match program.ty(param.value).kind {
                    Kind::Ptr(_) => floats(choices.below(400)),
                    Kind::Elem(elem) if choices.chance(50) => {
                        Arg::Scalar(Literal::int(elem, choices.below(24) as i64))
                    }
                    Kind::Elem(elem) => Arg::Scalar(Literal::int(elem, choices.of(numbers))),
                })
                .collect();
            let grid = [1 + choices.below(4) as u32, 1 + choices.below(2) as u32, 1];
            complete += usize::from(run_guarded(&program, &args, grid).is_complete());
        }
    }
    assert!(complete > 100, "{complete}");
}

/// Shortens what a program promises no length for.
fn cut(case: &mut Case, choices: &mut Choices<'_>) {
    for (arg, param) in case.args.iter_mut().zip(&case.program.params) {
        if let (Arg::Buffer(buffer), None, true) = (arg, param.len, choices.chance(50)) {
            let len = choices.below(buffer.len() + 1);
            buffer.bytes.truncate(len * buffer.elem.bytes() as usize);
            if let Some(written) = &mut buffer.written {
                written.truncate(len);
            }
        }
    }
}

#[test]
fn random_programs_stay_in_bounds() {
    let language = RandomOptions { math: false, language: true, max_tile: 1024, ..RandomOptions::default() };
    let (mut complete, mut partly) = (0, 0);
    for seed in 0..400 {
        let mut choices = Choices::from_seed(seed);
        let cases = [case(&mut choices, &language), index_case(&mut choices)];
        for mut case in cases {
            optimize(&mut case.program).unwrap();
            cut(&mut case, &mut choices);
            let proof = run_guarded(&case.program, &case.args, case.grid);
            complete += usize::from(proof.is_complete());
            partly += usize::from(proof.accesses.contains(&true));
        }
    }
    assert!(complete > 50 && partly > 200, "{complete} {partly}");
}

#[test]
fn instances_reach_their_rows() {
    let of = |program: &Program, args: &[Arg], grid, part| reach(program, grid, part, &given(args));
    let args = [floats(100), floats(100), wide(100)];
    let between = Reach::Between;
    let parts = |x| [x, 0..1, 0..1];
    assert_eq!(of(&vector_add(), &args, [7, 1, 1], parts(2..4))[..2], [between(32, 63), between(32, 63)]);
    assert_eq!(of(&vector_add(), &args, [7, 1, 1], parts(6..7))[0], between(96, 99));
    assert_eq!(of(&vector_add(), &args, [9, 1, 1], parts(7..8))[0], Reach::Nothing);
    let args = [floats(200), floats(12), floats(200), wide(20), wide(12)];
    let rows_1_to_3 = [between(20, 71), between(0, 11), between(20, 71), Reach::Nothing, Reach::Nothing];
    assert_eq!(of(&rows(), &args, [10, 1, 1], parts(1..4)), rows_1_to_3);
    // Rows 8 to 15 of a product read those of the left operand and all of the right one.
    let args = [floats(32 * 6), floats(6 * 24), floats(32 * 24), wide(32), wide(24), wide(6)];
    let reached = of(&product(), &args, [8, 3, 1], [2..4, 0..3, 0..1]);
    assert_eq!(reached[..3], [between(48, 95), between(0, 143), between(192, 383)]);
    let product = Accesses::of(&product(), vec![false, false, true]);
    let reached = product.reach([8, 3, 1], [2..4, 0..3, 0..1], &given(&args));
    assert_eq!(reached[..3], [Reach::Anything, Reach::Anything, between(192, 383)]);
    // Rows 1, 4 and 7.
    let args = [floats(80), floats(10), wide(10), wide(8)];
    let reached = of(&every_third_row(), &args, [3, 1, 1], parts(1..2));
    assert_eq!(reached[..2], [between(8, 63), between(1, 7)]);
}

/// Runs some instances with tensors that have no values where these are said to reach nothing, and looks whether
/// anything is read or written there.
fn run_within_reach(case: &Case, part: [std::ops::Range<u32>; 3]) -> usize {
    let reached = reach(&case.program, case.grid, part.clone(), &given(&case.args));
    let whole = super::examine(&case.program, case.grid, part.clone(), &given(&case.args)).1;
    for (param, &reach) in reached.iter().enumerate().filter(|(param, _)| case.args[*param].data().is_some())
    {
        match (reach, whole[param]) {
            (Reach::Between(lo, hi), Reach::Between(first, last)) => assert!(first <= lo && hi <= last),
            (Reach::Nothing, _) => {}
            (reach, whole) => assert_eq!(reach, whole, "{}", case.program),
        }
        let asked = (0..=param).map(|at| at == param).collect();
        let alone = Accesses::of(&case.program, asked);
        assert_eq!(
            alone.reach(case.grid, part.clone(), &given(&case.args))[param],
            reach,
            "{}",
            case.program
        );
    }
    let inside = |reach: Reach, at: usize| match reach {
        Reach::Nothing => false,
        Reach::Between(lo, hi) => (lo..=hi).contains(&(at as i128)),
        Reach::Anything => true,
    };
    let mut args = case.args.clone();
    for (arg, &reach) in args.iter_mut().zip(&reached) {
        let Arg::Buffer(buffer) = arg else { continue };
        buffer.written = Some((0..buffer.len()).map(|at| inside(reach, at)).collect());
    }
    let options = Options { races: false, fuel: Some(100_000), print: |_| () };
    let ran = run_part(&case.program, &mut args, case.grid, part, &options);
    let missed = matches!(ran, Err(InterpError::Fault { fault: Fault::Uninitialized { .. }, .. }));
    assert!(!missed, "{}", case.program);
    let mut narrow = 0;
    for (arg, &reach) in args.iter().zip(&reached) {
        let Arg::Buffer(Buffer { written: Some(written), .. }) = arg else { continue };
        let outside = |&at: &usize| !inside(reach, at);
        assert!((0..written.len()).filter(outside).all(|at| !written[at]), "{}", case.program);
        narrow += usize::from((0..written.len()).any(|at| outside(&at)));
    }
    narrow
}

#[test]
fn instances_reach_nothing_else() {
    let language = RandomOptions { math: false, language: true, max_tile: 1024, ..RandomOptions::default() };
    let mut narrow = 0;
    for seed in 0..300 {
        let mut choices = Choices::from_seed(seed);
        for mut case in [case(&mut choices, &language), index_case(&mut choices)] {
            for arg in &mut case.args {
                // All elements have values, so that one without is one that was said not to be reached.
                if let Arg::Buffer(buffer) = arg {
                    buffer.written = None;
                }
            }
            let part = case.grid.map(|extent| {
                let first = choices.below(extent as usize) as u32;
                first..first + 1 + choices.below((extent - first) as usize) as u32
            });
            narrow += run_within_reach(&case, part);
        }
    }
    assert!(narrow > 200, "{narrow}");
}

#[test]
fn loops_end_with_their_last_step() {
    let rows = build(|k| {
        let (x, y) = (k.ptr::<f32>("x"), k.ptr::<f32>("y"));
        let row = program_id(0);
        let sum = for_loop(0, 24, 8, zeros::<f32>([8]), |at, sum| {
            sum + load(x + row * 24 + at + range(0, 8), true, 0)
        });
        store(y + row, sum.sum(0), true);
    });
    let reached = reach(&rows, [10, 1, 1], [2..4, 0..1, 0..1], &[Given::Elements(240), Given::Elements(10)]);
    assert_eq!(reached, [Reach::Between(48, 95), Reach::Between(2, 3)]);
}

#[test]
fn quotients_and_remainders_are_one_number() {
    let rows = build(|k| {
        let x = k.ptr::<f32>("x");
        let id = program_id(0);
        let (row, part) = (id / 6, id % 6);
        store(x + (row / 5 * 480 + row % 5 * 96 + part * 16 + range(0, 16)), zeros::<f32>([16]), true);
    });
    let reached = |part| reach(&rows, [60, 1, 1], [part, 0..1, 0..1], &[Given::Elements(960)]);
    assert_eq!(reached(13..14), [Reach::Between(208, 223)]);
    assert_eq!(reached(4..8), [Reach::Between(64, 127)]);
    assert_eq!(reached(29..31), [Reach::Between(464, 495)]);
    // Rows that lie apart.
    let apart = build(|k| {
        let x = k.ptr::<f32>("x");
        let id = program_id(0);
        store(x + (id / 6 * 100 + id % 6 * 16 + range(0, 16)), zeros::<f32>([16]), true);
    });
    let reached = reach(&apart, [60, 1, 1], [4..8, 0..1, 0..1], &[Given::Elements(1000)]);
    assert_eq!(reached, [Reach::Between(0, 195)]);
}

#[test]
fn what_is_read_from_memory_leads_anywhere() {
    let gather = build(|k| {
        let (at, x, y) = (k.ptr::<i32>("at"), k.ptr::<f32>("x"), k.ptr::<f32>("y"));
        let lanes = program_id(0) * 8 + range(0, 8);
        store(y + lanes, load(x + load(at + lanes, true, 0).cast::<i64>(), true, 0), true);
    });
    let args = [Given::Elements(80), Given::Elements(80), Given::Elements(80)];
    let reached = reach(&gather, [10, 1, 1], [3..4, 0..1, 0..1], &args);
    assert_eq!((reached[0], reached[2]), (Reach::Between(24, 31), Reach::Between(24, 31)));
    assert_eq!(reached[1], Reach::Between(0, 79));
}
