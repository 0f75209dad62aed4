//! Code for 64-bit Arm processors: what it consists of, and what it computes on an emulated one. Every other test of this
//! folder compares its programs there too.

use tilefuse_block::random::compare_args;
use tilefuse_block::{Elem, ScalarFn, math};

use super::*;
use crate::host::target::Target;
use crate::host::{FileType, generate};

fn listing(text: &str) -> String {
    let program: Program = text.trim().parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let (text, _) = generate(&program, &Target::neon(), FileType::Assembly).unwrap();
    String::from_utf8(text).unwrap()
}

/// The instructions of the loops without another one inside: from a label to the jump back there.
fn inner_loops(listing: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = listing.lines().map(str::trim).collect();
    let mut out = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(label) = line.split("//").next().map(str::trim).and_then(|l| l.strip_suffix(':')) else {
            continue;
        };
        let rest = &lines[at + 1..];
        let block = rest.iter().position(|l| l.starts_with(".LBB")).unwrap_or(rest.len());
        let back =
            rest[..block].iter().position(|l| l.starts_with('b') && l.ends_with(&format!("\t{label}")));
        out.extend(back.map(|back| rest[..back].to_vec()));
    }
    out
}

fn count(lines: &[&str], what: impl Fn(&str) -> bool) -> usize {
    lines.iter().filter(|line| what(line)).count()
}

/// `y = gelu(a b + bias)` of a block, over a loop.
const PRODUCT: &str = "
kernel @product(%a: ptr<f32>, %b: ptr<f32>, %bias: ptr<f32>, %y: ptr<f32>) {
  %rows = range 0 32
  %columns = range 0 64
  %down = const 96 : tile<32xi32>
  %rs = map mul %rows, %down
  %re = expand_dims %rs axis 1
  %none = const 0.0 : tile<32x64xf32>
  %zero = const 0 : i32
  %last = const 96 : i32
  %step = const 8 : i32
  %sum = for %k in %zero..%last step %step with (%acc = %none) {
    %lanes = range 0 8
    %first = splat %k [8]
    %ks = map add %first, %lanes
    %ra = broadcast %re [32, 8]
    %ke = expand_dims %ks axis 0
    %kb = broadcast %ke [32, 8]
    %at = map add %ra, %kb
    %left = load %a, %at
    %wide = const 64 : tile<8xi32>
    %kr = map mul %ks, %wide
    %kx = expand_dims %kr axis 1
    %ky = broadcast %kx [8, 64]
    %ce = expand_dims %columns axis 0
    %cb = broadcast %ce [8, 64]
    %bt = map add %ky, %cb
    %right = load %b, %bt
    %next = dot %left, %right, %acc precision ieee
    yield %next
  }
  %bv = load %bias, %columns
  %be = expand_dims %bv axis 0
  %bb = broadcast %be [32, 64]
  %biased = map add %sum, %bb
  %root = const 0.70710678 : tile<32x64xf32>
  %scaled = map mul %biased, %root
  %erf = map erf %scaled
  %one = const 1.0 : tile<32x64xf32>
  %more = map add %erf, %one
  %half = const 0.5 : tile<32x64xf32>
  %part = map mul %biased, %half
  %out = map mul %part, %more
  %width = const 64 : tile<32xi32>
  %yr = map mul %rows, %width
  %ye = expand_dims %yr axis 1
  %yb = broadcast %ye [32, 64]
  %yc = expand_dims %columns axis 0
  %yd = broadcast %yc [32, 64]
  %to = map add %yb, %yd
  store %y, %to, %out
}";

/// The inner loop multiplies and adds whole vectors and keeps its sums in registers.
#[test]
fn products_add_up_whole_vectors() {
    let text = listing(PRODUCT);
    let whole = |line: &str| line.starts_with("fmla\tv") && line.contains(".4s, v");
    let loops = inner_loops(&text);
    let best = loops.iter().max_by_key(|lines| count(lines, whole)).unwrap();
    // Four steps of six rows by four vectors.
    assert_eq!(count(best, whole), 4 * 6 * 4, "{text}");
    assert_eq!(count(best, |line| line.starts_with("fmadd") || line.contains("[sp")), 0, "{best:#?}");
    assert!(count(best, |line| line.starts_with("ld")) <= 4 * (6 + 4), "{best:#?}");
}

#[test]
fn products_with_an_epilogue_are_right() {
    check_text(PRODUCT, &[f32s(32 * 96), f32s(96 * 64), f32s(64), f32s(32 * 64)], [1, 1, 1], 1e-5);
}

/// Rows of 1000 elements of a kind, of which the first `%n` count.
fn of_rows(elem: &str, body: &str) -> String {
    format!(
        "
kernel @rows(%x: ptr<{elem}>, %y: ptr<{elem}>) {{
  %row = program_id 0
  %cols = range 0 1024
  %n = const 1000 : tile<1024xi32>
  %m = map lt %cols, %n
  %stride = const 1000 : i32
  %base = map mul %row, %stride
  %b = splat %base [1024]
  %o = map add %b, %cols
  %v = load %x, %o, mask %m
  %w = cast %v f32
  {body}
  %r = cast %z {elem}
  store %y, %o, %r, mask %m
}}"
    )
}

const SOFTMAX: &str = "
  %max = reduce max %w axis 0 mask %m
  %mb = splat %max [1024]
  %d = map sub %w, %mb
  %e = map exp %d
  %sum = reduce sum %e axis 0 mask %m
  %sb = splat %sum [1024]
  %z = map div %e, %sb";

const LAYER_NORM: &str = "
  %sum = reduce sum %w axis 0 mask %m
  %count = const 1000.0 : f32
  %mean = map div %sum, %count
  %mb = splat %mean [1024]
  %d = map sub %w, %mb
  %q = map mul %d, %d
  %sq = reduce sum %q axis 0 mask %m
  %var = map div %sq, %count
  %eps = const 0.00001 : f32
  %with = map add %var, %eps
  %inv = map rsqrt %with
  %ib = splat %inv [1024]
  %z = map mul %d, %ib";

const CHAIN: &str = "
  %a = map exp %w
  %c = map tanh %a
  %d = map erf %c
  %e = map log1p %d
  %f = map sin %e
  %g = map floor %f
  %h = map sqrt %e
  %i = map round_even %h
  %j = map add %g, %i
  %z = map sigmoid %j";

const GATHER: &str = "
  %seven = const 7 : tile<1024xi32>
  %wide = map mul %cols, %seven
  %end = const 1000 : tile<1024xi32>
  %at = map rem_trunc %wide, %end
  %far = map add %at, %b
  %g = load %x, %far, mask %m
  %z = cast %g f32";

/// No function of a library is left, and what computes is vectors.
#[test]
fn nothing_is_left_to_a_library() {
    for elem in ["f32", "f16", "bf16"] {
        for (name, body) in
            [("softmax", SOFTMAX), ("layer norm", LAYER_NORM), ("functions", CHAIN), ("gather", GATHER)]
        {
            let text = listing(&of_rows(elem, body));
            let calls: Vec<&str> = text.lines().filter(|l| l.trim().starts_with("bl")).collect();
            assert_eq!(calls, Vec::<&str>::new(), "{name} of {elem}");
            assert!(text.contains("v0."), "{name} of {elem} has no vectors");
            if elem == "f16" && name != "gather" {
                assert!(text.contains("fcvtl") && text.contains("fcvtn"), "{name}: {text}");
            }
        }
    }
}

#[test]
fn rows_of_each_kind_are_right() {
    for (elem, tolerance) in [(Elem::F32, 1e-5), (Elem::F16, 2e-3), (Elem::Bf16, 2e-2)] {
        let values = floats(3000).into_iter().map(|v| tilefuse_block::Literal::float(elem, v.into()));
        let x = Arg::buffer(Data::from_literals(elem, values));
        for body in [SOFTMAX, LAYER_NORM, CHAIN, GATHER] {
            check_text(&of_rows(elem.name(), body), &[x.clone(), x.clone()], [3, 1, 1], tolerance);
        }
    }
}

fn takes_f32(function: ScalarFn) -> bool {
    function.result(&vec![Elem::F32; function.arity()]).is_some()
}

/// Mathematical functions expand to arithmetic that gives the same bits wherever it runs.
#[test]
fn functions_have_the_bits_that_the_interpreter_has() {
    if !emulator::is_there() {
        return;
    }
    let near = |v: f32, d: i32| f32::from_bits(v.to_bits().wrapping_add_signed(d));
    for &function in ScalarFn::ALL.iter().filter(|f| f.is_math() && takes_f32(**f)) {
        let edges = math::testing::edges_f32(function);
        let mut values: Vec<[f32; 2]> =
            edges.iter().flat_map(|&[x, y]| (-2..=2).map(move |d| [near(x, d), near(y, d)])).collect();
        values.extend((0..512u32).map(|high| {
            let bits = high << 23 | high.wrapping_mul(0x9e37_79b9) >> 9;
            [f32::from_bits(bits), f32::from_bits(bits.rotate_left(7))]
        }));
        values.resize(values.len().next_power_of_two(), [1.0, 1.0]);
        let len = values.len();
        let operands = if function.arity() == 1 { "%a" } else { "%a, %b" };
        let text = format!(
            "kernel @f(%x: ptr<f32>, %y: ptr<f32>, %z: ptr<f32>) {{\n  %at = range 0 {len}\n  %a = load %x, %at\n  \
             %b = load %y, %at\n  %c = map {} {operands}\n  store %z, %at, %c\n}}",
            function.name()
        );
        let program = crate::host::prepared(&text.parse().unwrap(), &Target::neon()).unwrap();
        let buffer = |which: usize| Arg::buffer(f32::wrap(values.iter().map(|v| v[which]).collect()));
        let args = [buffer(0), buffer(1), buffer(0)];
        let mut expected = args.to_vec();
        interp::run(&program, &mut expected, [1, 1, 1]).unwrap();
        let found = emulator::run(&program, &args, [1, 1, 1]).unwrap();
        let found: Vec<Arg> = found.into_iter().map(Arg::buffer).collect();
        compare_args(&expected, &found, 0.0).unwrap_or_else(|e| panic!("{}: {e}", function.name()));
    }
}

/// A processor is made for what the system says that it has, and LLVM orders instructions by its name.
#[test]
fn native_processors_have_what_the_system_says() {
    let found = Target::native_arm("neoverse-n1".to_owned(), "+neon,+fullfp16,-sve,+lse");
    assert_eq!(found.describe(), "armv8-a 128 +fp-armv8,+neon,+fullfp16,+lse neoverse-n1 None None");
    let program: Program = PRODUCT.trim().parse().unwrap();
    let (text, _) = generate(&program, &found, FileType::Assembly).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("fmla\tv") && !text.contains("ptrue"), "{text}");
}
