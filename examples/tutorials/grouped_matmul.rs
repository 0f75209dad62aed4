//! Several matrix products of different shapes in one launch.

use tch::{Device, Kind, Tensor};

/// `c_g = a_g b_g` for each group `g`. A row of `table` has `m`, `n`, `k` of a group and where its matrices begin in `a`,
/// `b` and `c`, row-major. `PROGRAMS` instances take the blocks of all groups in turn.
#[tilefuse::kernel(warps = WARPS, stages = STAGES)]
pub(crate) fn grouped_matmul<T: Short>(
    a: Ptr<T>,
    b: Ptr<T>,
    c: Ptr<T>,
    table: Ptr<i64>,
    groups: i64,
    #[constant] PROGRAMS: usize,
    #[constant] [BM, BN, BK, WARPS, STAGES]: [usize; 5],
) {
    let (mut block, mut before) = (program_id(0).cast::<i64>(), scalar::<i64>(0));
    for group in 0..groups {
        let [m, n, k, a_at, b_at, c_at] = [0, 1, 2, 3, 4, 5].map(|field| (table + group * 6 + field).load());
        let across = cdiv(n, BN);
        let last = before + cdiv(m, BM) * across;
        let a = make_descriptor(a + a_at, (m, k), (k, 1), [BM, BK]);
        let b = make_descriptor(b + b_at, (k, n), (n, 1), [BK, BN]);
        let c = make_descriptor(c + c_at, (m, n), (n, 1), [BM, BN]);
        for own in (block..last).step_by(PROGRAMS) {
            let (i, j) = ((own - before) / across * BM, (own - before) % across * BN);
            let mut sum = zeros::<f32>([BM, BN]);
            for at in (0..k).step_by(BK) {
                sum = dot(a.load((i, at)), b.load((at, j)), sum);
            }
            c.store((i, j), sum.cast::<T>());
            block = own + PROGRAMS;
        }
        before = last;
    }
}

pub(crate) fn check(device: Device, interpret: bool) -> anyhow::Result<(f64, f64)> {
    let shapes = [[70, 90, 33], [1, 64, 128], [130, 20, 64]];
    let size = |f: fn([i64; 3]) -> i64| shapes.iter().map(|&s| f(s)).sum::<i64>();
    let random = |n: i64| Tensor::randn([n], (Kind::Float, device)).to_kind(Kind::BFloat16);
    let (a, b, c) =
        (random(size(|[m, _, k]| m * k)), random(size(|[_, n, k]| k * n)), random(size(|[m, n, _]| m * n)));
    let (mut table, mut at) = (Vec::new(), [0i64; 3]);
    for [m, n, k] in shapes {
        table.extend([m, n, k].into_iter().chain(at));
        at = [at[0] + m * k, at[1] + k * n, at[2] + m * n];
    }
    let places = Tensor::from_slice(&table).to_device(device);
    let (grid, args) = (4, (&a, &b, &c, &places, shapes.len() as i64, 4, [32, 32, 32, 4, 3]));
    if interpret {
        grouped_matmul.interpret(grid, args)?
    } else {
        grouped_matmul.launch(grid, args)?
    };
    let mut worst = 0f64;
    for row in table.chunks(6) {
        let &[m, n, k, x, y, z] = row else { continue };
        let part =
            |t: &Tensor, at: i64, rows: i64, cols: i64| t.narrow(0, at, rows * cols).view([rows, cols]);
        let expected = part(&a, x, m, k).matmul(&part(&b, y, k, n));
        worst = worst.max(super::distance(&part(&c, z, m, n), &expected));
    }
    Ok((worst, 0.25))
}
