//! Functions that no kernel has.

#[tilefuse::kernel]
fn unknown_function(x: Ptr<f32>) {
    let v = load_twice(x); //~ cannot find function `load_twice`
    store(x, v, true);
}
