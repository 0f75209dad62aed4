//! Arguments that a kernel does not take.

#[tilefuse::kernel]
fn fill(x: Ptr<f32>, value: f32, n: i64, #[constant] BLOCK: usize) {
    let at = program_id(0) * BLOCK + range(0, BLOCK);
    store(x + at, value, at.lt(n));
}

pub fn number_for_a_tensor() {
    fill.launch(
        1i64,
        (
            1.0f32, //~ mismatched types
            2.0f32,
            8i64,
            8,
        ),
    )
    .unwrap();
}

#[tilefuse::kernel]
fn sized(
    x: Ptr<f32>,
    n: usize, //~ a number of a kernel has a kind of a fixed width
) {
    store(x + range(0, 8), 1.0, true);
}

#[tilefuse::kernel]
fn named(x: Ptr<f32>, name: &str) { //~ a kernel takes `Ptr<..>`
    store(x + range(0, 8), 1.0, true);
}
