//! Options that no kernel has.

#[tilefuse::kernel(warp = 4)] //~ the options of a kernel are `warps = ..` and `stages = ..`
fn misspelt(x: Ptr<f32>) {
    store(x + range(0, 8), 1.0, true);
}

#[tilefuse::kernel(warps = "four")] //~ Extent
fn text(x: Ptr<f32>) {
    store(x + range(0, 8), 1.0, true);
}

#[tilefuse::kernel]
fn hinted(#[aligned] x: Ptr<f32>) { //~ no attribute but `#[constant]`
    store(x + range(0, 8), 1.0, true);
}
