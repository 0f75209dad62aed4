//! Products whose right operand is in VNNI layout.

use tilefuse_block::{Data, Elem, Literal};

use super::{Arg, HostKernel, HostOptions, Isa, check_text};
use crate::host::target::{Target, Unit};

/// Small numbers, of which sums are exact.
fn data(elem: Elem, len: u32, step: u32) -> Arg {
    let number = |i: u32| f64::from(i * step % 23);
    let value = |i: u32| match elem {
        Elem::I8 => Literal::int(elem, (number(i) as i64 - 11) * 11 - i64::from(i % 17 == 3) * 7),
        _ => Literal::of(elem, number(i) / 8.0 - 1.0),
    };
    Arg::buffer(Data::from_literals(elem, (0..len).map(value)))
}

/// A product and how its operands are read.
#[derive(Clone, Copy)]
struct Case {
    elem: Elem,
    rows: u32,
    columns: u32,
    depth: u32,
    /// What is summed over.
    k: u32,
    /// Elements between rows and columns of the left operand.
    strides: [u32; 2],
    /// Whether the left operand is masked behind its last column but one.
    masked: bool,
}

impl Case {
    fn of(elem: Elem, [rows, columns, depth]: [u32; 3], k: u32) -> Case {
        Case { elem, rows, columns, depth, k, strides: [k, 1], masked: false }
    }

    fn group(self) -> u32 {
        4 / self.elem.bytes()
    }

    /// `y[rows, columns] = sum over k of a[rows, k] b[k, columns]`, of `depth` at a time.
    fn text(self) -> String {
        let Case { elem, rows, columns, depth, k, strides: [down, along], masked } = self;
        let (group, sum) = (self.group(), if elem == Elem::I8 { "i32" } else { "f32" });
        let none = if elem == Elem::I8 { "3" } else { "0.5" };
        let (groups, wide) = (depth / group, group * columns);
        let mask = if masked { ", mask %inside" } else { "" };
        let end = k - u32::from(masked);
        format!(
            "kernel @product(%a: ptr<{elem}>, %b: ptr<{elem}>, %y: ptr<{sum}>) warps(4) {{
  %rows = range 0 {rows}
  %down = const {down} : tile<{rows}xi32>
  %rs = map mul %rows, %down
  %re = expand_dims %rs axis 1
  %ra = broadcast %re [{rows}, {depth}]
  %columns = range 0 {columns}
  %size = const {group} : tile<{columns}xi32>
  %cg = map mul %columns, %size
  %cz = expand_dims %cg axis 0
  %cy = expand_dims %cz axis 2
  %ca = broadcast %cy [{groups}, {columns}, {group}]
  %member = range 0 {group}
  %ma = expand_dims %member axis 0
  %mb = expand_dims %ma axis 0
  %mc = broadcast %mb [{groups}, {columns}, {group}]
  %group = range 0 {groups}
  %wide = const {wide} : tile<{groups}xi32>
  %ga = map mul %group, %wide
  %gb = expand_dims %ga axis 1
  %gc = expand_dims %gb axis 2
  %gd = broadcast %gc [{groups}, {columns}, {group}]
  %start = const {none} : tile<{rows}x{columns}x{sum}>
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
  %sum = for %k in %zero..%last step %step with (%acc = %start) {{
    %lanes = range 0 {depth}
    %first = splat %k [{depth}]
    %ks = map add %first, %lanes
    %end = const {end} : tile<{depth}xi32>
    %low = map lt %ks, %end
    %le = expand_dims %low axis 0
    %inside = broadcast %le [{rows}, {depth}]
    %factor = const {along} : tile<{depth}xi32>
    %kl = map mul %ks, %factor
    %ke = expand_dims %kl axis 0
    %kb = broadcast %ke [{rows}, {depth}]
    %at = map add %ra, %kb
    %left = load %a, %at{mask}
    %pitch = const {columns} : i32
    %panel = map mul %k, %pitch
    %ps = splat %panel [{groups}, {columns}, {group}]
    %ba = map add %ps, %gd
    %bb = map add %ba, %ca
    %bc = map add %bb, %mc
    %bd = permute %bc [0, 2, 1]
    %bt = reshape %bd [{depth}, {columns}]
    %right = load %b, %bt
    %next = dot %left, %right, %acc precision ieee
    yield %next
  }}
  store %y, %to, %sum
}}"
        )
    }

    fn check(self) {
        let reach = (self.rows - 1) * self.strides[0] + (self.k - 1) * self.strides[1] + 1;
        let sum = if self.elem == Elem::I8 { Elem::I32 } else { Elem::F32 };
        let args = [
            (self.elem, reach, 7),
            (self.elem, self.columns * self.k, 5),
            (sum, self.rows * self.columns, 0),
        ];
        check_text(&self.text(), &args.map(|(elem, len, step)| data(elem, len, step)), [1, 1, 1], 0.0);
    }
}

const ELEMS: [Elem; 2] = [Elem::Bf16, Elem::I8];

#[test]
fn groups_are_multiplied_exactly_in_all_blocks() {
    for elem in ELEMS {
        for rows in [1, 2, 4, 8, 16, 32, 64] {
            for columns in [8, 16, 32, 64] {
                Case::of(elem, [rows, columns, 64], 192).check();
            }
        }
        for depth in [4, 8, 16, 32, 128] {
            Case::of(elem, [16, 32, depth], 3 * depth).check();
            Case::of(elem, [4, 16, depth], depth).check();
        }
    }
}

#[test]
fn left_operands_lie_at_any_strides_or_are_masked() {
    for elem in ELEMS {
        for strides in [[1, 64], [131, 2], [0, 1], [130, 1]] {
            Case { strides, ..Case::of(elem, [32, 32, 64], 64) }.check();
        }
        for shape in [[32, 32, 64], [2, 64, 64], [16, 16, 8]] {
            Case { masked: true, ..Case::of(elem, shape, 128) }.check();
        }
    }
}

/// Which instructions multiply, by the listing.
#[test]
fn the_processor_decides_which_instructions_multiply() {
    let names = |elem: Elem| match elem {
        Elem::I8 => ["tdpbssd", "vpdpbusd"],
        _ => ["tdpbf16ps", "vdpbf16ps"],
    };
    for elem in ELEMS {
        let used = |shape: [u32; 3], isa: Isa| {
            let program = Case::of(elem, shape, 128).text().parse().unwrap();
            let text = HostKernel::assembly(&program, &HostOptions { isa }).unwrap();
            names(elem).map(|name| text.contains(&format!("\t{name}\t")))
        };
        for isa in [Isa::Native, Isa::Vectors, Isa::Avx512, Isa::Avx2, Isa::Baseline] {
            let unit = Target::new(isa).unit(elem);
            let expected = [unit == Some(Unit::Tiles), unit == Some(Unit::Vectors)];
            assert_eq!(used([32, 32, 64], isa), expected, "{elem} {isa:?}");
            // No whole tiles of this depth, and no whole vectors of these columns.
            assert_eq!(used([32, 32, 16], isa), [false, unit.is_some()], "{elem} {isa:?}");
            assert_eq!(used([32, 8, 64], isa), [false, false], "{elem} {isa:?}");
        }
        let named = [Isa::Avx512, Isa::Avx2, Isa::Baseline];
        assert_eq!(named.map(|isa| Target::new(isa).unit(elem)), [None, None, None]);
        assert_ne!(Target::new(Isa::Vectors).unit(elem), Some(Unit::Tiles));
    }
}

/// The largest sums of products of 8-bit integers, and those that do not fit 32 bits, which wrap around.
#[test]
fn the_least_integers_are_multiplied_exactly() {
    let case = Case::of(Elem::I8, [16, 32, 64], 64);
    let full = |len: usize, value: i64| {
        Arg::buffer(Data::from_literals(Elem::I8, (0..len).map(|_| Literal::int(Elem::I8, value))))
    };
    for (a, b) in [(-128, -128), (127, -128), (-128, 127), (127, 127)] {
        let result = data(Elem::I32, 16 * 32, 0);
        check_text(&case.text(), &[full(16 * 64, a), full(32 * 64, b), result], [1, 1, 1], 0.0);
    }
}
