//! A loop without a condition.

#[tilefuse::kernel]
fn forever(x: Ptr<f32>) {
    while {
        store(x, 1.0, true);
    }
} //~ expected
