//! Products that are added up along a loop.

use tilefuse_block::{Data, Elem, Literal};

use super::{Arg, check_text};
use crate::host::target::Target;
use crate::host::{HostOptions, Pass, after};

/// Small numbers.
fn data(elem: Elem, len: usize, step: usize) -> Arg {
    let value = |i: usize| Literal::of(elem, ((i * step) % 23) as f64 / 8.0 - 1.0);
    Arg::buffer(Data::from_literals(elem, (0..len).map(value)))
}

/// `y[rows, columns] = sum over k of a[rows, k] b[columns, k]`, of `depth` at a time, where `a` has these strides.
fn product(
    [rows, columns, depth]: [u32; 3],
    k: u32,
    [down, along]: [u32; 2],
    masked: bool,
    body: &str,
    kind: Elem,
) -> String {
    let (inside, mask) = match masked {
        true => (
            format!("%end = const {} : tile<{depth}xi32>\n    %low = map lt %ks, %end", k - 1),
            [", mask %left_in", ", mask %right_in"],
        ),
        false => (format!("%end = const {k} : tile<{depth}xi32>\n    %low = map lt %ks, %end"), ["", ""]),
    };
    format!(
        "kernel @product(%a: ptr<{kind}>, %b: ptr<{kind}>, %y: ptr<{kind}>, %z: ptr<{kind}>) warps(4) {{
  %rows = range 0 {rows}
  %down = const {down} : tile<{rows}xi32>
  %rs = map mul %rows, %down
  %re = expand_dims %rs axis 1
  %ra = broadcast %re [{rows}, {depth}]
  %columns = range 0 {columns}
  %across = const {k} : tile<{columns}xi32>
  %cs = map mul %columns, %across
  %ce = expand_dims %cs axis 1
  %ca = broadcast %ce [{columns}, {depth}]
  %none = const 0.0 : tile<{rows}x{columns}x{kind}>
  %zero = const 0 : i32
  %last = const {k} : i32
  %step = const {depth} : i32
  %width = const {columns} : tile<{rows}xi32>
  %yr = map mul %rows, %width
  %ye = expand_dims %yr axis 1
  %yb = broadcast %ye [{rows}, {columns}]
  %yc = expand_dims %columns axis 0
  %yd = broadcast %yc [{rows}, {columns}]
  %to = map add %yb, %yd
  %sum = for %k in %zero..%last step %step with (%acc = %none) {{
    %lanes = range 0 {depth}
    %first = splat %k [{depth}]
    %ks = map add %first, %lanes
    {inside}
    %le = expand_dims %low axis 0
    %left_in = broadcast %le [{rows}, {depth}]
    %right_in = broadcast %le [{columns}, {depth}]
    %factor = const {along} : tile<{depth}xi32>
    %kl = map mul %ks, %factor
    %ke = expand_dims %kl axis 0
    %kb = broadcast %ke [{rows}, {depth}]
    %at = map add %ra, %kb
    %left = load %a, %at{}
    %kr = expand_dims %ks axis 0
    %kc = broadcast %kr [{columns}, {depth}]
    %bt = map add %ca, %kc
    %tile = load %b, %bt{}
    %right = permute %tile [1, 0]
    %next = dot %left, %right, %acc precision ieee
    {body}
    yield %next
  }}
  store %y, %to, %sum
}}",
        mask[0], mask[1]
    )
}

fn run(shape: [u32; 3], k: u32, strides: [u32; 2], masked: bool, body: &str, kind: Elem) {
    let [rows, columns, _] = shape;
    let reach = (rows - 1) * strides[0] + (k - 1) * strides[1] + 1;
    let result = || data(kind, (rows * columns) as usize, 0);
    let args: [Arg; 4] =
        [data(kind, reach as usize, 7), data(kind, (columns * k) as usize, 5), result(), result()];
    let text = product(shape, k, strides, masked, body, kind);
    let tolerance = if kind == Elem::F64 { 1e-12 } else { 1e-4 };
    check_text(&text, &args, [1, 1, 1], tolerance);
}

#[test]
fn left_operands_are_read_at_any_strides() {
    for kind in [Elem::F32, Elem::F64] {
        run([16, 32, 16], 64, [64, 1], false, "", kind);
        run([8, 16, 32], 64, [1, 8], false, "", kind);
        run([4, 64, 8], 16, [37, 2], false, "", kind);
        run([1, 16, 8], 16, [0, 1], false, "", kind);
        run([2, 1, 1], 3, [3, 1], false, "", kind);
    }
}

/// Every number of rows and vectors, divided into blocks of registers in all ways.
#[test]
fn blocks_of_registers_cover_all_rows_and_columns() {
    for rows in [1, 2, 4, 8, 16, 32, 64] {
        for columns in [16, 32, 64, 128] {
            run([rows, columns, 8], 16, [17, 1], false, "", Elem::F32);
        }
        run([rows, 32, 2], 6, [7, 1], true, "", Elem::F64);
    }
    for depth in [1, 2, 4] {
        run([16, 64, depth], 3 * depth, [1, 16], false, "", Elem::F32);
    }
}

#[test]
fn masked_operands_count_as_zero() {
    run([16, 32, 16], 64, [64, 1], true, "", Elem::F32);
    run([32, 64, 64], 128, [128, 1], true, "", Elem::F32);
}

#[test]
fn a_sum_that_something_else_reads_is_kept() {
    run([16, 32, 16], 64, [64, 1], false, "store %z, %to, %acc", Elem::F32);
    run([16, 32, 16], 64, [64, 1], false, "store %z, %to, %next", Elem::F32);
}

/// `y = sum over k of a[rows, k] b[k, columns]`, where `b` lies row by row, so that it is read where it lies.
#[test]
fn right_operands_that_lie_row_by_row_are_read_there() {
    for kind in [Elem::F32, Elem::F64, Elem::F16] {
        let sum = if kind == Elem::F64 { Elem::F64 } else { Elem::F32 };
        for [rows, columns, depth, k] in [[16, 32, 16, 64], [8, 64, 8, 8], [4, 16, 32, 96], [2, 1, 4, 8]] {
            let text = format!(
                "kernel @product(%a: ptr<{kind}>, %b: ptr<{kind}>, %y: ptr<{sum}>) warps(4) {{
  %rows = range 0 {rows}
  %columns = range 0 {columns}
  %down = const {k} : tile<{rows}xi32>
  %width = const {columns} : tile<{rows}xi32>
  %across = const {columns} : tile<{depth}xi32>
  %ra = map mul %rows, %down
  %rb = expand_dims %ra axis 1
  %rc = broadcast %rb [{rows}, {depth}]
  %ce = expand_dims %columns axis 0
  %cb = broadcast %ce [{depth}, {columns}]
  %cy = broadcast %ce [{rows}, {columns}]
  %ya = map mul %rows, %width
  %yb = expand_dims %ya axis 1
  %yc = broadcast %yb [{rows}, {columns}]
  %to = map add %yc, %cy
  %none = const 0.0 : tile<{rows}x{columns}x{sum}>
  %zero = const 0 : i32
  %last = const {k} : i32
  %step = const {depth} : i32
  %sum = for %k in %zero..%last step %step with (%acc = %none) {{
    %lanes = range 0 {depth}
    %first = splat %k [{depth}]
    %ks = map add %first, %lanes
    %ke = expand_dims %ks axis 0
    %kb = broadcast %ke [{rows}, {depth}]
    %at = map add %rc, %kb
    %left = load %a, %at
    %ka = map mul %ks, %across
    %kc = expand_dims %ka axis 1
    %kd = broadcast %kc [{depth}, {columns}]
    %bt = map add %kd, %cb
    %right = load %b, %bt
    %next = dot %left, %right, %acc precision ieee
    yield %next
  }}
  store %y, %to, %sum
}}"
            );
            let args = [(kind, rows * k, 7), (kind, k * columns, 5), (sum, rows * columns, 0)];
            let args = args.map(|(elem, len, step)| data(elem, len as usize, step));
            check_text(&text, &args, [1, 1, 1], if kind == Elem::F64 { 1e-12 } else { 1e-4 });
        }
    }
}

/// As `run`, with what the product starts from made of what the loop carries.
fn run_scaled(shape: [u32; 3], masked: bool, start: &str, body: &str, kind: Elem) {
    let (k, [rows, columns, _]) = (64, shape);
    let half = format!("%half = const 0.5 : tile<{rows}x{columns}x{kind}>\n    ");
    let text = product(shape, k, [k, 1], masked, body, kind);
    let made = "%next = dot %left, %right, %kept";
    let text = text.replace("%next = dot %left, %right, %acc", &format!("{half}{start}\n    {made}"));
    let result = || data(kind, (rows * columns) as usize, 0);
    let args: [Arg; 4] =
        [data(kind, (rows * k) as usize, 7), data(kind, (columns * k) as usize, 5), result(), result()];
    check_text(&text, &args, [1, 1, 1], if kind == Elem::F64 { 1e-12 } else { 1e-4 });
}

#[test]
fn a_sum_that_is_scaled_before_the_next_product() {
    for kind in [Elem::F32, Elem::F64] {
        for shape in [[16, 32, 16], [64, 64, 32], [4, 16, 8], [1, 1, 1]] {
            run_scaled(shape, false, "%kept = map mul %acc, %half", "", kind);
            run_scaled(shape, true, "%kept = map fma %half, %acc, %half", "", kind);
        }
    }
    for start in ["%kept = map mul %acc, %acc", "%less = map mul %acc, %half %kept = map sub %acc, %less"] {
        run_scaled([16, 32, 16], false, start, "", Elem::F32);
    }
    for body in ["store %z, %to, %acc", "store %z, %to, %kept", "store %z, %to, %next"] {
        run_scaled([16, 32, 16], false, "%kept = map mul %acc, %half", body, Elem::F32);
    }
}

/// `y[r, c] = sum over k of x[r, k] w[c, k]` as rows of products, of which `end` columns are stored.
fn row_sums([rows, columns]: [u32; 2], k: u32, end: u32, elem: Elem) -> String {
    let deep = k.next_power_of_two();
    format!(
        "kernel @sums(%x: ptr<{elem}>, %w: ptr<{elem}>, %y: ptr<{elem}>) {{
  %r = range 0 {rows}
  %c = range 0 {columns}
  %d = range 0 {deep}
  %last = const {k} : tile<{deep}xi32>
  %low = map lt %d, %last
  %end = const {end} : tile<{columns}xi32>
  %in = map lt %c, %end
  %rk = const {k} : tile<{rows}xi32>
  %ck = const {k} : tile<{columns}xi32>
  %ra = map mul %r, %rk
  %ca = map mul %c, %ck
  %r1 = expand_dims %ra axis 1
  %r2 = broadcast %r1 [{rows}, {deep}]
  %c1 = expand_dims %ca axis 1
  %c2 = broadcast %c1 [{columns}, {deep}]
  %d1 = expand_dims %d axis 0
  %dr = broadcast %d1 [{rows}, {deep}]
  %dc = broadcast %d1 [{columns}, {deep}]
  %l1 = expand_dims %low axis 0
  %lr = broadcast %l1 [{rows}, {deep}]
  %lc = broadcast %l1 [{columns}, {deep}]
  %i1 = expand_dims %in axis 1
  %ic = broadcast %i1 [{columns}, {deep}]
  %both = map and %ic, %lc
  %xa = map add %r2, %dr
  %wa = map add %c2, %dc
  %xv = load %x, %xa, mask %lr
  %wv = load %w, %wa, mask %both
  %x3 = expand_dims %xv axis 1
  %w3 = expand_dims %wv axis 0
  %xb = broadcast %x3 [{rows}, {columns}, {deep}]
  %wb = broadcast %w3 [{rows}, {columns}, {deep}]
  %p = map mul %xb, %wb
  %l2 = expand_dims %lr axis 1
  %l3 = broadcast %l2 [{rows}, {columns}, {deep}]
  %sum = reduce sum %p axis 2 mask %l3
  %ry = const {columns} : tile<{rows}xi32>
  %ya = map mul %r, %ry
  %y1 = expand_dims %ya axis 1
  %y2 = broadcast %y1 [{rows}, {columns}]
  %e1 = expand_dims %c axis 0
  %e2 = broadcast %e1 [{rows}, {columns}]
  %to = map add %y2, %e2
  %m1 = expand_dims %in axis 0
  %m2 = broadcast %m1 [{rows}, {columns}]
  store %y, %to, %sum, mask %m2
}}"
    )
}

/// Several rows of the right operand are read side by side; those behind the last one are not read.
#[test]
fn sums_of_rows_that_are_read_side_by_side() {
    for (shape, k, end) in [
        ([1, 64], 256, 64),
        ([1, 64], 200, 37),
        ([2, 64], 129, 63),
        ([2, 16], 300, 9),
        ([1, 4], 128, 3),
        ([1, 1], 500, 1),
        ([2, 2], 131, 1),
    ] {
        for elem in [Elem::F32, Elem::F64, Elem::Bf16] {
            let args = [data(elem, (shape[0] * k) as usize, 7), data(elem, (end * k) as usize, 5)];
            let result = data(elem, (shape[0] * shape[1]) as usize, 0);
            let args: Vec<Arg> = args.into_iter().chain([result]).collect();
            let tolerance = if elem == Elem::Bf16 { 2e-2 } else { 1e-4 };
            check_text(&row_sums(shape, k, end, elem), &args, [1, 1, 1], tolerance);
        }
    }
}

/// Rows that are far apart are read side by side, and what several results share once.
#[test]
fn as_many_rows_side_by_side_as_registers_allow() {
    let unrolled = |shape: [u32; 2], width: u32| {
        let text = row_sums(shape, 1024, shape[1], Elem::F32);
        let program = crate::host::prepared(&text.trim().parse().unwrap(), &Target::neon()).unwrap();
        let plan = crate::host::plan::Plan::new(&program, width).unwrap();
        plan.regions.iter().map(|r| r.forced.len()).max().unwrap()
    };
    assert_eq!([unrolled([1, 64], 4), unrolled([2, 64], 4), unrolled([1, 2], 4)], [3, 3, 1]);
    assert_eq!([unrolled([1, 64], 3), unrolled([2, 64], 2)], [2, 2]);
}

/// A product is made of the sum that it is added to, unless something else needs it, or operands are written before the addition.
#[test]
fn products_start_from_the_sum_that_they_are_added_to() {
    for (body, starts) in [
        ("%all = map add %sum, %part", true),
        ("%all = map add %part, %sum", true),
        ("%all = map add %part, %part", false),
        ("%one = map add %sum, %part\n%all = map mul %one, %part", false),
        ("store %a, %at, %zero\n%all = map add %sum, %part", false),
        ("%all = map sub %sum, %part", false),
    ] {
        let text = format!(
            "kernel @accumulated(%a: ptr<f32>, %b: ptr<f32>, %y: ptr<f32>) warps(4) {{
  %i = range 0 64
  %at = reshape %i [8, 8]
  %x = load %a, %at
  %w = load %b, %at
  %sum = load %y, %at
  %zero = const 0.0 : tile<8x8xf32>
  %part = dot %x, %w, %zero precision ieee
  {body}
  store %y, %at, %all
}}"
        );
        let shown = after(&text.parse().unwrap(), &HostOptions::default(), Pass::Accumulate).unwrap();
        assert_eq!(!shown.contains("%w, %zero"), starts, "{shown}");
        let args = [1, 3, 7].map(|step| data(Elem::F32, 64, step));
        check_text(&text, &args, [1, 1, 1], 1e-5);
    }
}
