//! Bodies that no kernel has.

#[tilefuse::kernel]
fn text_as_condition(x: Ptr<f32>) {
    let mut i = range(0, 8);
    while "true" { //~ mismatched types
        i = i + 1;
    }
    store(x + i, 1.0, true);
}

#[tilefuse::kernel]
fn kinds_that_do_not_meet(x: Ptr<f32>, n: i64) {
    let inside = range(0, 8).lt("n"); //~ does not go with a tile of `i32`
    store(x + range(0, 8), n, inside);
}

#[tilefuse::kernel]
fn result(x: Ptr<f32>) -> i32 { //~ a kernel returns nothing
    1
}
