//! Products of several blocks of rows and columns, each of which fills a multiprocessor, so that blocks compute one after another
//! while a producer warpgroup loads.

use tilefuse_block::interp::Arg;
use tilefuse_block::{Elem, Literal};

use crate::run::{Case, Tolerance};
use crate::shapes::out_of;
use crate::values::moderate;

/// What becomes of the sums of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Epilogue {
    /// They are stored in the type of sums.
    Sums,
    /// A vector of the columns is added, and what is negative becomes zero, in the type of operands.
    BiasRelu,
    /// The largest of each row is stored beside them.
    Rows,
    /// The largest of each column is, which warps find together.
    Columns,
}

#[derive(Clone, Copy)]
struct Product {
    elem: Elem,
    /// Rows and columns of a block, and its warps and stages.
    block: [u32; 2],
    warps: u32,
    stages: u32,
    /// Whether it may start before the work before it has ended.
    early: bool,
    /// Rows, columns and the common extent of a member of the batch.
    sizes: [u32; 3],
    batch: u32,
    /// Operands that lie along the other axis.
    turned: [bool; 2],
    epilogue: Epilogue,
}

const SMALL: Product = Product {
    elem: Elem::Bf16,
    block: [64, 64],
    warps: 4,
    stages: 8,
    early: false,
    sizes: [150, 136, 200],
    batch: 1,
    turned: [false, true],
    epilogue: Epilogue::BiasRelu,
};

pub(crate) fn cases() -> Vec<Case> {
    use Epilogue::*;
    let f16 = Elem::F16;
    let products = [
        SMALL,
        Product { elem: f16, sizes: [64, 320, 64], ..SMALL },
        // Many rounds through the stages, which end within one.
        Product { sizes: [65, 72, 1608], ..SMALL },
        Product { sizes: [130, 72, 1096], early: true, ..SMALL },
        Product { block: [128, 256], warps: 8, stages: 4, early: true, sizes: [264, 264, 584], ..SMALL },
        Product { elem: f16, sizes: [152, 136, 72], turned: [true, false], ..SMALL },
        Product { sizes: [152, 136, 128], turned: [true, true], epilogue: Sums, ..SMALL },
        Product { elem: f16, sizes: [40, 64, 136], turned: [false, false], batch: 5, ..SMALL },
        // Rows that begin at odd elements change layout in scratch memory.
        Product { sizes: [130, 61, 192], ..SMALL },
        Product { sizes: [130, 72, 192], epilogue: Rows, ..SMALL },
        // Nothing to add.
        Product { sizes: [130, 72, 0], epilogue: Sums, ..SMALL },
        Product { block: [64, 128], sizes: [150, 264, 200], ..SMALL },
        Product { block: [128, 128], warps: 8, stages: 6, sizes: [264, 264, 456], ..SMALL },
        Product { block: [128, 128], warps: 8, stages: 6, sizes: [130, 264, 72], epilogue: Rows, ..SMALL },
        Product { block: [128, 256], warps: 8, stages: 4, sizes: [264, 264, 328], ..SMALL },
        Product { elem: f16, block: [128, 256], warps: 8, stages: 4, sizes: [264, 256, 64], ..SMALL },
        // A group of four warps each, in turn, as long as the block has instances; the last one alone, or none for the second.
        Product { block: [128, 128], stages: 6, sizes: [264, 520, 456], ..SMALL },
        Product { block: [128, 128], stages: 4, sizes: [264, 264, 72], epilogue: Rows, early: true, ..SMALL },
        Product { elem: f16, block: [64, 256], stages: 4, sizes: [150, 264, 328], ..SMALL },
        Product { block: [64, 256], stages: 4, sizes: [136, 261, 200], turned: [true, true], ..SMALL },
        Product { block: [128, 128], stages: 6, sizes: [100, 128, 640], batch: 7, epilogue: Sums, ..SMALL },
        Product { block: [128, 128], stages: 6, sizes: [100, 120, 200], ..SMALL },
        Product { sizes: [40, 40, 136], batch: 3, epilogue: Rows, ..SMALL },
        Product { sizes: [150, 136, 200], batch: 2, epilogue: Columns, ..SMALL },
        Product { block: [128, 128], stages: 6, sizes: [264, 264, 136], epilogue: Columns, ..SMALL },
        Product {
            block: [128, 256],
            warps: 8,
            stages: 4,
            sizes: [264, 264, 136],
            epilogue: Columns,
            ..SMALL
        },
        Product { block: [64, 128], stages: 4, sizes: [330, 264, 0], epilogue: Rows, ..SMALL },
        Product { block: [64, 128], stages: 4, sizes: [330, 261, 264], ..SMALL },
        // Scratch memory leaves room for three stages.
        Product { block: [128, 256], warps: 8, stages: 4, sizes: [130, 261, 328], ..SMALL },
    ];
    let branches = [72, 1096].map(in_branches);
    products.into_iter().map(case).chain(branches).collect()
}

/// Three products of one left operand of so many columns, of which instances compute one: 70 rows, and 40, 136 and 8 columns.
fn in_branches(k: usize) -> Case {
    let program = include_str!("branches.tile").replace("const 72 ", &format!("const {k} "));
    let data = |count: usize, seed| Arg::buffer(moderate(Elem::Bf16, count.max(64), seed));
    let mut args = vec![data(70 * k, 1)];
    for (n, seed) in [(40, 2), (136, 4), (8, 6)] {
        args.extend([data(n * k, seed), data(n, seed + 1), out_of(Elem::Bf16, 70 * n as u32)]);
    }
    Case {
        name: format!("persistent dots bf16 in branches of 70x{k}"),
        program: tilefuse_block::parse_valid(&program).unwrap(),
        args,
        grid: [8, 1, 1],
        tolerance: Tolerance::Close { absolute: 1e-2, relative: 1e-2 },
        is_function: false,
    }
}

fn case(product: Product) -> Case {
    let Product { elem, block: [rows, cols], sizes: [m, n, k], batch, epilogue, .. } = product;
    let program = tilefuse_block::parse_valid(&text(&product)).unwrap();
    let data = |elem, count: u32, seed| Arg::buffer(moderate(elem, count.max(64) as usize, seed));
    let out = if epilogue == Epilogue::BiasRelu { elem } else { Elem::F32 };
    let args = vec![
        data(elem, batch * m * k, 1),
        data(elem, batch * n * k, 2),
        data(elem, n, 3),
        out_of(out, batch * m * n),
        out_of(Elem::F32, batch * (m * n.div_ceil(cols)).max(n * m.div_ceil(rows))),
        Arg::Scalar(Literal::int(Elem::I32, k.into())),
    ];
    let Product { warps, stages, early, turned, .. } = product;
    let early = if early { " early" } else { "" };
    let name = format!(
        "persistent dots {elem} {rows}x{cols} {turned:?} of {batch}x{m}x{n}x{k} {epilogue:?} warps {warps} stages {stages}{early}"
    );
    let rounding = if out == elem { 1e-2 } else { 1e-3 };
    let tolerance = Tolerance::Close { absolute: rounding, relative: rounding };
    let grid = [batch * m.div_ceil(rows) * n.div_ceil(cols), 1, 1];
    Case { name, program, args, grid, tolerance, is_function: false }
}

/// The offsets of an operand's elements: its lines are rows of the left, columns of the right operand.
fn operand(
    names: [&str; 4],
    [lines, depth]: [&str; 2],
    shape: &str,
    [count, common]: [u32; 2],
    turned: bool,
) -> String {
    let [at, mask, of, member] = names;
    let (pitch, along, across) = if turned { (count, depth, lines) } else { (common, lines, depth) };
    let size = count * common;
    format!(
        "%{at}p = const {pitch} : tile<{shape}xi32>  %{at}a = broadcast {along} [{dims}]  %{at}b = broadcast {across} [{dims}]
         %{at}l = broadcast {lines} [{dims}]  %{at}d = broadcast {depth} [{dims}]
         %{at}s = map mul %{at}a, %{at}p  %{at}e = map add %{at}s, %{at}b
         %{at}z = const {size} : i32  %{at}m = map mul {member}, %{at}z  %{at}ms = splat %{at}m [{dims}]
         %{at}n = const {count} : tile<{shape}xi32>  %{at}k = const {common} : tile<{shape}xi32>
         %{at}i = map lt %{at}l, %{at}n  %{at}j = map lt %{at}d, %{at}k  %{mask} = map and %{at}i, %{at}j
         %{at} = map add %{at}e, %{at}ms
         %{at}v = load {of}, %{at}, mask %{mask}",
        dims = shape.replace('x', ", "),
    )
}

/// Blocks are numbered along one axis, columns first, then rows, then the members of the batch.
fn text(product: &Product) -> String {
    let early = if product.early { " early" } else { "" };
    let &Product { elem, block: [rows, cols], warps, stages, sizes: [m, n, k], turned, epilogue, .. } =
        product;
    let (down, across) = (m.div_ceil(rows), n.div_ceil(cols));
    // A map has no sizes of zero; the loop's end says that there is nothing.
    let k = k.max(8);
    let left =
        operand(["ax", "am", "%x", "%member"], ["%rows", "%left"], &format!("{rows}x64"), [m, k], turned[0]);
    let right = operand(
        ["bx", "bm", "%y", "%member"],
        ["%cols", "%right"],
        &format!("64x{cols}"),
        [n, k],
        !turned[1],
    );
    let (out, finish) = match epilogue {
        Epilogue::Sums => ("f32", "%out = map add %sum, %zero".to_owned()),
        Epilogue::Rows => (
            "f32",
            format!(
                "%largest = reduce max %sum axis 1
                 %per = const {across} : tile<{rows}xi32>  %w = map mul %row, %per  %co = splat %column [{rows}]
                 %w1 = map add %w, %co
                 %of = const {} : i32  %wm = map mul %member, %of  %wms = splat %wm [{rows}]  %w2 = map add %w1, %wms
                 %rn = const {m} : tile<{rows}xi32>  %rin = map lt %row, %rn
                 store %r, %w2, %largest, mask %rin
                 %out = map add %sum, %zero",
                m * across
            ),
        ),
        Epilogue::Columns => (
            "f32",
            format!(
                "%largest = reduce max %sum axis 0
                 %per = const {n} : i32  %w = map mul %line, %per
                 %of = const {} : i32  %wm = map mul %member, %of  %w1 = map add %w, %wm  %ws = splat %w1 [{cols}]
                 %w2 = map add %col, %ws
                 %cn = const {n} : tile<{cols}xi32>  %cin = map lt %col, %cn
                 store %r, %w2, %largest, mask %cin
                 %out = map add %sum, %zero",
                n * down
            ),
        ),
        Epilogue::BiasRelu => (
            elem.name(),
            format!(
                "%cn = const {n} : tile<{cols}xi32>  %cin = map lt %col, %cn  %bias = load %b, %col, mask %cin
                 %wide = cast %bias f32  %bias1 = expand_dims %wide axis 0
                 %bias2 = broadcast %bias1 [{rows}, {cols}]
                 %biased = map add %sum, %bias2  %relu = map max %biased, %zero  %out = cast %relu {elem}",
                elem = elem.name()
            ),
        ),
    };
    format!(
        "kernel @product(%x: ptr<{elem}> align(16), %y: ptr<{elem}> align(16), %b: ptr<{elem}> align(16), %z: ptr<{out}> align(16), %r: ptr<f32> align(16), %end: i32) warps({warps}) stages({stages}){early} {{
           %none = const 0 : i32  %step = const 64 : i32  %id = program_id 0
           %each = const {each} : i32  %member = map div_trunc %id, %each  %block = map rem_trunc %id, %each
           %per_row = const {across} : i32
           %line = map div_trunc %block, %per_row  %column = map rem_trunc %block, %per_row
           %height = const {rows} : i32  %width = const {cols} : i32
           %first_row = map mul %line, %height  %first_col = map mul %column, %width
           %i = range 0 {rows}  %is = splat %first_row [{rows}]  %row = map add %i, %is  %rows = expand_dims %row axis 1
           %j = range 0 {cols}  %js = splat %first_col [{cols}]  %col = map add %j, %js  %cols = expand_dims %col axis 0
           %d = range 0 64  %zero = const 0.0 : tile<{rows}x{cols}xf32>
           %sum = for %k in %none..%end step %step with (%acc = %zero) {{
             %ks = splat %k [64]  %depth = map add %ks, %d
             %left = expand_dims %depth axis 0  %right = expand_dims %depth axis 1
             {left}
             {right}
             %next = dot %axv, %bxv, %acc
             yield %next
           }}
           {finish}
           %zp = const {n} : tile<{rows}x1xi32>  %zr = map mul %rows, %zp
           %zra = broadcast %zr [{rows}, {cols}]  %zca = broadcast %cols [{rows}, {cols}]  %zat = map add %zra, %zca
           %zsize = const {size} : i32  %zm = map mul %member, %zsize  %zms = splat %zm [{rows}, {cols}]
           %zplace = map add %zat, %zms
           %m1 = const {m} : tile<{rows}x1xi32>  %m2 = map lt %rows, %m1  %m3 = broadcast %m2 [{rows}, {cols}]
           %n1 = const {n} : tile<1x{cols}xi32>  %n2 = map lt %cols, %n1  %n3 = broadcast %n2 [{rows}, {cols}]
           %inside = map and %m3, %n3
           store %z, %zplace, %out, mask %inside
         }}",
        elem = elem.name(),
        each = down * across,
        size = m * n,
    )
}
