//! Whole programs.

use super::*;

#[test]
fn adds_vectors() {
    let text = "
kernel @add(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {
  %p = program_id 0
  %b = const 256 : i32
  %s = map mul %p, %b
  %r = range 0 256
  %t = splat %s [256]
  %o = map add %t, %r
  %n = const 1000 : tile<256xi32>
  %m = map lt %o, %n
  %a = load %x, %o, mask %m
  %c = load %y, %o, mask %m
  %d = map add %a, %c
  store %z, %o, %d, mask %m
}";
    check_text(text, &[f32s(1000), f32s(1000), f32s(1000)], [4, 1, 1], 0.0);
}

#[test]
fn takes_softmax_of_rows() {
    let text = "
kernel @softmax(%x: ptr<f32>, %y: ptr<f32>) {
  %row = program_id 0
  %cols = range 0 1024
  %n = const 1000 : tile<1024xi32>
  %m = map lt %cols, %n
  %stride = const 1000 : i32
  %base = map mul %row, %stride
  %b = splat %base [1024]
  %o = map add %b, %cols
  %v = load %x, %o, mask %m
  %max = reduce max %v axis 0 mask %m
  %mb = splat %max [1024]
  %d = map sub %v, %mb
  %e = map exp %d
  %sum = reduce sum %e axis 0 mask %m
  %sb = splat %sum [1024]
  %q = map div %e, %sb
  store %y, %o, %q, mask %m
}";
    check_text(text, &[f32s(5000), f32s(5000)], [5, 1, 1], 1e-6);
}

#[test]
fn sums_columns_in_a_loop() {
    let text = "
kernel @sum0(%x: ptr<f32>, %y: ptr<f32>) {
  %p = program_id 0
  %w = const 64 : i32
  %base = map mul %p, %w
  %r = range 0 64
  %bs = splat %base [64]
  %cols = map add %bs, %r
  %nc = const 100 : tile<64xi32>
  %cm = map lt %cols, %nc
  %zero = const 0.0 : tile<64xf32>
  %lo = const 0 : i32
  %hi = const 50 : i32
  %step = const 8 : i32
  %acc = for %i in %lo..%hi step %step with (%a = %zero) {
    %rows = range 0 8
    %is = splat %i [8]
    %row = map add %is, %rows
    %nr = const 50 : tile<8xi32>
    %rm = map lt %row, %nr
    %stride = const 100 : tile<8xi32>
    %ro = map mul %row, %stride
    %re = expand_dims %ro axis 1
    %rb = broadcast %re [8, 64]
    %ce = expand_dims %cols axis 0
    %cb = broadcast %ce [8, 64]
    %o = map add %rb, %cb
    %rme = expand_dims %rm axis 1
    %rmb = broadcast %rme [8, 64]
    %cme = expand_dims %cm axis 0
    %cmb = broadcast %cme [8, 64]
    %m = map and %rmb, %cmb
    %v = load %x, %o, mask %m
    %s = reduce sum %v axis 0 mask %m
    %next = map add %a, %s
    yield %next
  }
  store %y, %cols, %acc, mask %cm
}";
    check_text(text, &[f32s(5000), f32s(100)], [2, 1, 1], 1e-5);
}

#[test]
fn transposes() {
    let text = "
kernel @transpose(%x: ptr<f32>, %y: ptr<f32>) {
  %r = range 0 32
  %c = range 0 32
  %re = expand_dims %r axis 1
  %rb = broadcast %re [32, 32]
  %ce = expand_dims %c axis 0
  %cb = broadcast %ce [32, 32]
  %s = const 32 : tile<32x32xi32>
  %rs = map mul %rb, %s
  %from = map add %rs, %cb
  %cs = map mul %cb, %s
  %to = map add %cs, %rb
  %v = load %x, %from
  %w = load %x, %to
  %d = map sub %v, %w
  store %y, %from, %d
}";
    check_text(text, &[f32s(1024), Arg::buffer(f32::wrap(vec![0.0; 1024]))], [1, 1, 1], 0.0);
}

#[test]
fn reverses_in_place() {
    let text = "
kernel @reverse(%x: ptr<i32>) {
  %r = range 0 64
  %l = const 63 : tile<64xi32>
  %o = map sub %l, %r
  %v = load %x, %r
  store %x, %o, %v
}";
    let data = Arg::buffer(i32::wrap((0..64).collect()));
    check_text(text, &[data], [1, 1, 1], 0.0);
}

/// `y = xᵀ + z` in tiles of 32 by 64 with masks, for a matrix that they do not divide.
#[test]
fn transposes_with_masks() {
    let text = "
kernel @transpose_add(%x: ptr<f32>, %z: ptr<f32>, %y: ptr<f32>) {
  %p = program_id 0
  %two = const 2 : i32
  %pr = map div_trunc %p, %two
  %pc = map rem_trunc %p, %two
  %er = const 32 : i32
  %ec = const 64 : i32
  %r0 = map mul %pr, %er
  %c0 = map mul %pc, %ec
  %r = range 0 32
  %c = range 0 64
  %r0s = splat %r0 [32]
  %c0s = splat %c0 [64]
  %rows = map add %r0s, %r
  %cols = map add %c0s, %c
  %m = const 50 : tile<32xi32>
  %n = const 101 : tile<64xi32>
  %rm = map lt %rows, %m
  %cm = map lt %cols, %n
  %rme = expand_dims %rm axis 1
  %rmb = broadcast %rme [32, 64]
  %cme = expand_dims %cm axis 0
  %cmb = broadcast %cme [32, 64]
  %mask = map and %rmb, %cmb
  %re = expand_dims %rows axis 1
  %rb = broadcast %re [32, 64]
  %ce = expand_dims %cols axis 0
  %cb = broadcast %ce [32, 64]
  %ns = const 101 : tile<32x64xi32>
  %ms = const 50 : tile<32x64xi32>
  %ro = map mul %rb, %ns
  %to = map add %ro, %cb
  %co = map mul %cb, %ms
  %from = map add %co, %rb
  %v = load %x, %from, mask %mask
  %w = load %z, %to, mask %mask
  %d = map add %v, %w
  store %y, %to, %d, mask %mask
}";
    check_text(text, &[f32s(5050), f32s(5050), f32s(5050)], [4, 1, 1], 0.0);
}

#[test]
fn takes_softmax_in_place() {
    let text = "
kernel @softmax(%x: ptr<f32>) {
  %row = program_id 0
  %o0 = range 0 128
  %stride = const 100 : i32
  %base = map mul %row, %stride
  %b = splat %base [128]
  %o = map add %b, %o0
  %n = const 100 : tile<128xi32>
  %m = map lt %o0, %n
  %v = load %x, %o, mask %m
  %max = reduce max %v axis 0 mask %m
  %mb = splat %max [128]
  %d = map sub %v, %mb
  %e = map exp %d
  %sum = reduce sum %e axis 0 mask %m
  %sb = splat %sum [128]
  %q = map div %e, %sb
  store %x, %o, %q, mask %m
}";
    check_text(text, &[f32s(300)], [3, 1, 1], 1e-6);
}

/// Carried tiles that change places, one of them transposed: they cannot be written where they are read.
#[test]
fn exchanges_carried_tiles() {
    let text = "
kernel @exchange(%x: ptr<i32>, %y: ptr<i32>, %z: ptr<i32>) {
  %r = range 0 256
  %o = reshape %r [16, 16]
  %a0 = load %x, %o
  %b0 = load %y, %o
  %lo = const 0 : i32
  %hi = const 3 : i32
  %step = const 1 : i32
  %one = const 1 : tile<16x16xi32>
  %a, %b = for %i in %lo..%hi step %step with (%p = %a0, %q = %b0) {
    %t = permute %p [1, 0]
    %u = map add %t, %one
    yield %q, %u
  }
  store %z, %o, %a
  %w = map sub %a, %b
  store %y, %o, %w
}";
    let numbers = |k: i32| Arg::buffer(i32::wrap((0..256).map(|i| i * k).collect()));
    check_text(text, &[numbers(1), numbers(-7), numbers(0)], [1, 1, 1], 0.0);
}

/// Memory of which the next page cannot be touched.
struct Edge {
    start: *mut u8,
    page: usize,
}

impl Edge {
    fn new() -> Edge {
        let page = 4096;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: two new pages, of which the second loses all rights.
        unsafe {
            let start: *mut u8 = libc::mmap(std::ptr::null_mut(), 2 * page, rights, flags, -1, 0).cast();
            assert_eq!(libc::mprotect(start.add(page).cast(), page, libc::PROT_NONE), 0);
            Edge { start, page }
        }
    }

    /// The address `bytes` before the forbidden page.
    fn last(&self, bytes: usize) -> u64 {
        self.start as u64 + (self.page - bytes) as u64
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: the pages are ours.
        unsafe { libc::munmap(self.start.cast(), 2 * self.page) };
    }
}

#[test]
fn leaves_masked_off_memory_alone() {
    for elem in ["f32", "f64", "bf16", "f16", "u8", "bool", "i64"] {
        for offsets in ["%r", "%twice"] {
            let text = format!(
                "
kernel @copy(%x: ptr<{elem}>, %y: ptr<{elem}>, %n: i32) {{
  %r = range 0 64
  %twice = map add %r, %r
  %s = splat %n [64]
  %m = map lt {offsets}, %s
  %v = load %x, {offsets}, mask %m
  store %y, {offsets}, %v, mask %m
}}"
            );
            let program: Program = text.trim().parse().unwrap();
            let size = program.ty(program.params[0].value).pointee().unwrap().bytes() as usize;
            for isa in ISAS {
                let kernel = HostKernel::compile(&program, &HostOptions { isa }).unwrap();
                let (x, y) = (Edge::new(), Edge::new());
                for n in [0usize, 1, 15, 17, 41] {
                    // SAFETY: the first `n` elements from these addresses are ours, and the program takes no others.
                    unsafe {
                        kernel.run(&[x.last(n * size), y.last(n * size), n as u64], [1, 1, 1], &Serial)
                    }
                    .unwrap();
                }
            }
        }
    }
}

#[test]
fn refuses_damaged_objects() {
    let text = "kernel @f(%x: ptr<f32>) {\n  %o = const 0 : i32\n  %v = load %x, %o\n  store %x, %o, %v\n}";
    let kernel = HostKernel::compile(&text.parse().unwrap(), &HostOptions::default()).unwrap();
    let options = HostOptions::default();
    let bytes = kernel.object();
    for len in 0..bytes.len().min(600) {
        assert!(HostKernel::load(&bytes[..len], &options).is_err(), "{len} bytes");
    }
    assert!(HostKernel::load(bytes, &HostOptions { isa: Isa::Baseline }).is_err());
    assert!(HostKernel::load(bytes, &options).is_ok());
}

#[test]
fn names_what_it_refuses() {
    let text = "kernel @f(%x: ptr<f32>) {\n  %o = const 0 : i32\n  %v = load %x, %o\n  store %x, %o, %v\n}";
    let mut program: Program = text.parse().unwrap();
    program.body.ops.remove(0);
    let error = HostKernel::compile(&program, &HostOptions::default()).unwrap_err();
    assert!(matches!(error, crate::Error::Invalid { .. }), "{error}");
}

#[test]
fn compiles_on_many_threads() {
    let text = "kernel @f(%x: ptr<f32>) {\n  %o = range 0 64\n  %v = load %x, %o\n  %w = map exp %v\n  store %x, %o, %w\n}";
    let program: Program = text.parse().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| check(&program, &[f32s(64)], [1, 1, 1], 1e-6));
        }
    });
}

/// A mask along parallel bits that depends on the loop inside them cannot guard what is around the loop.
#[test]
fn masks_stores_of_a_loop_by_its_counter() {
    let text = "
kernel @masked(%x: ptr<f32>, %y: ptr<f32>) {
  %lo = const 0 : i32
  %hi = const 256 : i32
  %step = const 64 : i32
  for %i in %lo..%hi step %step {
    %r = range 0 64
    %is = splat %i [64]
    %o = map add %is, %r
    %n = const 200 : tile<64xi32>
    %m = map lt %o, %n
    %v = load %x, %o, mask %m
    store %y, %o, %v, mask %m
    yield
  }
}";
    check_text(text, &[f32s(200), f32s(200)], [1, 1, 1], 0.0);
}

/// The error of a sum of many numbers of one sign stays that of a few additions, along rows and columns.
#[test]
fn sums_many_elements_accurately() {
    let text = |axis: u8, shape: &str, kept: &str| {
        format!(
            "
kernel @sum(%x: ptr<f32>, %y: ptr<f32>) {{
  %r = range 0 65536
  %o = reshape %r {shape}
  %v = load %x, %o
  %s = reduce sum %v axis {axis}
  %k = range 0 {kept}
  %t = reshape %k [{kept}]
  store %y, %t, %s
}}"
        )
    };
    let values: Vec<f32> = (0..65536).map(|i| 1.0 + (i as f32 * 0.7391).fract()).collect();
    for (axis, shape, kept) in [(1, "[2, 32768]", 2usize), (0, "[32768, 2]", 2), (0, "[4096, 16]", 16)] {
        let program: Program = text(axis, shape, &kept.to_string()).trim().parse().unwrap();
        let mut exact = vec![0f64; kept];
        for (i, &v) in values.iter().enumerate() {
            let to = if axis == 1 { i / 32768 } else { i % kept };
            exact[to] += f64::from(v);
        }
        for isa in ISAS {
            let kernel = HostKernel::compile(&program, &HostOptions { isa }).unwrap();
            let args = [Arg::buffer(f32::wrap(values.clone())), f32s(kept)];
            let found = run_kernel(&kernel, &args, [1, 1, 1], &Serial);
            for (k, &e) in exact.iter().enumerate() {
                let error = (found[1].get(k).unwrap().as_f64() - e).abs() / e;
                assert!(error < 4e-7, "{isa:?} {shape} {k}: {error:e}");
            }
        }
    }
}

/// Rows that are shorter than a vector begin where a value says that the loop at hand keeps for later loops, and has not kept yet.
#[test]
fn rows_begin_where_kept_values_say() {
    let text = "
kernel @rows(%x: ptr<f32>, %b: ptr<f32>, %z: ptr<f32>) warps(4) {
  %r = range 0 256
  %twelve = const 12 : tile<256xi32>
  %six = const 6 : tile<256xi32>
  %block = map div_trunc %r, %twelve
  %sixth = map rem_trunc %block, %six
  %first = map mul %block, %sixth
  %column = expand_dims %first axis 1
  %k = range 0 8
  %row = expand_dims %k axis 0
  %wide = broadcast %column [256, 8]
  %along = broadcast %row [256, 8]
  %o = map add %wide, %along
  %v = load %x, %o
  %n = range 0 4
  %down = expand_dims %k axis 1
  %ob = broadcast %down [8, 4]
  %across = expand_dims %n axis 0
  %ab = broadcast %across [8, 4]
  %eight = const 8 : tile<8x4xi32>
  %an = map mul %ab, %eight
  %bo = map add %an, %ob
  %w = load %b, %bo
  %zero = const 0.0 : tile<256x4xf32>
  %d = dot %v, %w, %zero precision ieee
  %wide2 = broadcast %column [256, 4]
  %along2 = broadcast %across [256, 4]
  %o2 = map add %wide2, %along2
  %v2 = load %x, %o2
  %sum = map add %d, %v2
  %four = const 4 : tile<256xi32>
  %to = map mul %r, %four
  %to1 = expand_dims %to axis 1
  %to2 = broadcast %to1 [256, 4]
  %place = map add %to2, %along2
  store %z, %place, %sum
}";
    check_text(text, &[f32s(128), f32s(32), f32s(1024)], [1, 1, 1], 1e-5);
}

/// Tiles that are stored along one axis and combined along one of several.
#[test]
fn stores_and_combines_the_same_elements() {
    for (shape, axis, rest) in
        [("16, 16", 1, 16), ("16, 16", 0, 16), ("4, 8, 8", 1, 32), ("8, 4, 8", 2, 32), ("2, 2, 64", 2, 4)]
    {
        let quarter = rest / 4;
        let text = format!(
            "
kernel @scanned(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {{
  %i = range 0 256
  %v = load %x, %i
  %s = scan %v axis 0 (%p, %q) {{
    %m = map add %p, %q
    yield %m
  }}
  store %y, %i, %s
  %s2 = reshape %s [{shape}]
  %most = reduce max %s2 axis {axis}
  %red = reshape %most [{rest}]
  %r = range 0 {rest}
  %q4 = reshape %red [{quarter}, 2, 2]
  %p4 = permute %q4 [0, 2, 1]
  %f4 = reshape %p4 [{rest}]
  %o = map add %f4, %red
  store %z, %r, %o
}}"
        );
        check_text(&text, &[f32s(256), f32s(256), f32s(rest)], [1, 1, 1], 1e-5);
    }
}
