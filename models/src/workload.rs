//! The single kernels at the sizes and in the kinds at which they are measured beside their peers.

use tch::Kind;

/// One input: its sizes, and the range of its values where they are integers.
pub type WorkloadInput = (Vec<i64>, Option<(i64, i64)>);

/// A kernel of the zoo at one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The entry of the zoo, such as `kernel:softmax`.
    pub kernel: &'static str,
    /// The shape, such as `8192x16384`.
    pub shape: String,
    /// What varies between the rows of one kernel: the length of a row, or the number of elements.
    pub size: i64,
    /// The kinds in which it is measured.
    pub kinds: &'static [Kind],
    /// The inputs, in order.
    pub inputs: Vec<WorkloadInput>,
}

const ALL: &[Kind] = &[Kind::BFloat16, Kind::Half, Kind::Float];

/// Lengths of rows: powers of two, and others whose rows begin at odd addresses.
const ROWS: [i64; 8] = [256, 1000, 1024, 4096, 5003, 16384, 50257, 65536];

/// What is measured on a GPU, or scaled down to a CPU.
pub fn workloads(gpu: bool) -> Vec<Workload> {
    let (total, wide): (i64, [i64; 2]) = if gpu { (1 << 27, [16384, 4096]) } else { (1 << 21, [1024, 2048]) };
    let [m, n] = wide;
    let (p, q) = if gpu { (16384, 8192) } else { (2048, 1024) };
    let mut list = Vec::new();
    for shift in [0, 2, 4, 7] {
        let elements = total >> (7 - shift);
        list.push(plain("kernel:vector_add", elements, &[Kind::Float], &[&[elements], &[elements]]));
    }
    list.push(plain("kernel:bias_gelu_residual", m * n, ALL, &[&[m, n], &[m, n], &[n]]));
    list.push(plain("kernel:swiglu_act", m * n, ALL, &[&[m, n], &[m, n]]));
    let rope: [i64; 4] = if gpu { [8, 32, 4096, 128] } else { [1, 32, 512, 128] };
    list.push(plain("kernel:rope", rope.iter().product(), ALL, &[&rope, &rope[2..], &rope[2..]]));
    let images: [i64; 4] = if gpu { [64, 256, 56, 56] } else { [4, 256, 56, 56] };
    list.push(plain("kernel:batch_norm_relu", images.iter().product(), ALL, &[&images]));
    for cols in [1024, 4096, 16384] {
        let rows = [total / cols, cols];
        list.push(plain("kernel:add_rms_norm_residual", cols, ALL, &[&rows, &rows, &[cols]]));
    }
    if !gpu {
        list.extend(host_only());
    }
    for cols in ROWS.into_iter().chain((!gpu).then_some(2048)) {
        let rows = [total / cols, cols];
        list.push(plain("kernel:softmax", cols, ALL, &[&rows]));
        list.push(plain("kernel:layer_norm", cols, ALL, &[&rows, &[cols], &[cols]]));
    }
    let classes = 50257;
    let rows = if gpu { 8192 } else { 128 };
    let mut loss = plain("kernel:cross_entropy", classes, ALL, &[&[rows, classes], &[rows]]);
    if let Some(target) = loss.inputs.last_mut() {
        target.1 = Some((0, classes));
    }
    list.push(loss);
    list.push(plain("kernel:sum", total, ALL, &[&[total]]));
    list.push(plain("kernel:sum_dim0", p * q, ALL, &[&[p, q]]));
    list.push(plain("kernel:row_column_sums", p * q, ALL, &[&[p, q]]));
    for cols in [1024, 4096] {
        let rows = [total / 2 / cols, cols];
        list.push(plain("kernel:layer_norm_backward", cols, ALL, &[&rows, &rows, &[cols]]));
    }
    list.push(plain("kernel:transpose_add", p * q, ALL, &[&[p, q], &[q, p]]));
    if gpu {
        // Launching is what takes the time of the first, and reading a matrix that of the others.
        list.push(plain("kernel:chain12", 4096, &[Kind::Float], &[&[4096]]));
        list.push(product(ALL, [1, 4096, 4096]));
    }
    list
}

/// What is measured on a CPU alone: products, and functions that libraries there compute slowly.
fn host_only() -> Vec<Workload> {
    let f32 = &[Kind::Float];
    let mut list = vec![
        plain("kernel:gelu_erf", 1 << 21, f32, &[&[1024, 2048]]),
        plain("kernel:chain12", 1 << 21, f32, &[&[1024, 2048]]),
        plain("kernel:add_rms_norm", 2048, f32, &[&[1024, 2048], &[1024, 2048], &[2048]]),
        plain("kernel:sum", 1 << 22, f32, &[&[1 << 22]]),
        plain("kernel:conv_bn_relu", 1 << 17, f32, &[&[1, 64, 56, 56]]),
        plain("kernel:conv_transpose_relu", 1 << 17, f32, &[&[1, 64, 28, 28]]),
    ];
    for [m, n, k] in [[512, 3072, 768], [1024, 1024, 1024], [1, 4096, 4096], [32, 4096, 4096]] {
        list.push(product(&[Kind::Float, Kind::BFloat16], [m, n, k]));
    }
    let heads: &[i64] = &[1, 12, 512, 64];
    list.push(plain("kernel:attention", heads.iter().product(), f32, &[heads; 3]));
    // One query beside many keys.
    for [heads, keys] in [[12, 1024], [2, 8192]] {
        let (query, rows): ([i64; 4], [i64; 4]) = ([1, heads, 1, 64], [1, heads, keys, 64]);
        let decode = plain("kernel:attention", heads * keys, f32, &[&query, &rows, &rows]);
        list.push(Workload { shape: format!("{heads}x1x{keys}x64"), ..decode });
    }
    for queries in [1, 512] {
        let (query, rows): ([i64; 4], [i64; 4]) = ([1, 32, queries, 64], [1, 8, 1024, 64]);
        let grouped = plain("kernel:grouped_attention", 32 * queries, f32, &[&query, &rows, &rows]);
        list.push(Workload { shape: format!("32(8)x{queries}x1024x64"), ..grouped });
    }
    list
}

fn product(kinds: &'static [Kind], [m, n, k]: [i64; 3]) -> Workload {
    let product = plain("kernel:linear_bias_gelu", m * n, kinds, &[&[m, k], &[n, k], &[n]]);
    Workload { shape: format!("{m}x{n}x{k}"), ..product }
}

fn plain(kernel: &'static str, size: i64, kinds: &'static [Kind], shapes: &[&[i64]]) -> Workload {
    let text = |shape: &&[i64]| shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    let shape = shapes.first().map(text).unwrap_or_default();
    Workload { kernel, shape, size, kinds, inputs: shapes.iter().map(|s| (s.to_vec(), None)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_a_kernel_of_the_zoo_with_its_number_of_inputs() {
        for workload in [true, false].into_iter().flat_map(workloads) {
            let entry = crate::find(workload.kernel).unwrap();
            assert!(entry.check_inputs(workload.inputs.len()).is_ok(), "{workload:?}");
            assert!(!entry.f32_only || workload.kinds == [Kind::Float]);
        }
    }
}
