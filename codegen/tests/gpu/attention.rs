//! Attention of several members of a batch, a block of queries an instance, whose keys and values a producer warpgroup loads.

use tilefuse_block::interp::Arg;
use tilefuse_block::{Elem, parse_valid};

use crate::run::{Case, Tolerance};
use crate::shapes::out_of;
use crate::values::moderate;

#[derive(Clone, Copy)]
struct Attention {
    elem: Elem,
    /// Queries of a block and keys of a step, and the block's warps and stages.
    block: [u32; 2],
    warps: u32,
    stages: Option<u32>,
    /// Elements of queries, keys and values.
    width: u32,
    queries: u32,
    keys: u32,
    members: u32,
    /// Whether a query sees keys up to its own number alone.
    causal: bool,
    /// Whether the sums of exponentials need those of values, by nothing, so that no product runs into the next iteration.
    in_order: bool,
}

const WIDE: Attention = Attention {
    elem: Elem::F16,
    block: [128, 128],
    warps: 8,
    stages: None,
    width: 64,
    queries: 200,
    keys: 300,
    members: 2,
    causal: false,
    in_order: false,
};

pub(crate) fn cases() -> Vec<Case> {
    let bf16 = Elem::Bf16;
    let all = [
        // More instances than blocks run at the same time, and one step, and less.
        WIDE,
        Attention { keys: 1, ..WIDE },
        Attention { queries: 1, keys: 7, members: 1, ..WIDE },
        Attention { elem: bf16, keys: 129, ..WIDE },
        Attention { keys: 128, members: 1, ..WIDE },
        Attention { keys: 256, queries: 128, members: 3, ..WIDE },
        // Many rounds through the stages, which end within one.
        Attention { keys: 1100, queries: 70, members: 1, stages: Some(3), ..WIDE },
        Attention { keys: 650, queries: 129, members: 1, stages: Some(2), ..WIDE },
        Attention { causal: true, queries: 300, ..WIDE },
        Attention { causal: true, elem: bf16, queries: 129, keys: 129, ..WIDE },
        Attention { causal: true, queries: 7, keys: 7, ..WIDE },
        Attention { causal: true, queries: 300, keys: 40, members: 1, ..WIDE },
        Attention { in_order: true, ..WIDE },
        Attention { in_order: true, causal: true, keys: 400, queries: 300, stages: Some(2), ..WIDE },
        Attention { block: [128, 64], stages: Some(4), elem: bf16, width: 128, ..WIDE },
        Attention { block: [128, 64], width: 128, causal: true, queries: 260, keys: 260, members: 1, ..WIDE },
        Attention { block: [128, 128], width: 128, members: 1, queries: 128, ..WIDE },
        Attention { block: [128, 128], width: 128, causal: true, queries: 260, keys: 260, ..WIDE },
        Attention { block: [256, 64], queries: 260, ..WIDE },
        Attention { block: [256, 64], queries: 260, keys: 260, causal: true, members: 1, ..WIDE },
        Attention { block: [64, 64], warps: 4, stages: Some(8), queries: 70, ..WIDE },
        Attention { block: [64, 64], warps: 4, width: 256, queries: 70, keys: 129, members: 1, ..WIDE },
    ];
    all.into_iter().map(case).collect()
}

fn case(attention: Attention) -> Case {
    let Attention { elem, block, warps, stages, width, queries, keys, members, .. } = attention;
    let program = parse_valid(&text(&attention)).unwrap();
    let data = |count: u32, seed| Arg::buffer(moderate(elem, (members * count * width) as usize, seed));
    let args = vec![data(queries, 1), data(keys, 2), data(keys, 3), out_of(elem, members * queries * width)];
    let how = |is: bool, how: &'static str| if is { how } else { "" };
    let how = [how(attention.causal, " causal"), how(attention.in_order, " in order")].concat();
    let stages = stages.map_or_else(String::new, |stages| format!(" stages {stages}"));
    let name = format!(
        "persistent attention {elem} {block:?} of {members}x{queries}x{keys}x{width}{how} warps {warps}{stages}"
    );
    let tolerance = Tolerance::Close { absolute: 2e-2, relative: 2e-2 };
    Case {
        name,
        program,
        args,
        grid: [queries.div_ceil(block[0]), members, 1],
        tolerance,
        is_function: false,
    }
}

/// Loads rows of a member from a first one on.
fn rows(name: &str, of: &str, index: &str, count: u32, [block, width]: [u32; 2]) -> String {
    let size = count * width;
    format!(
        "%{name}r = expand_dims {index} axis 1  %{name}w = const {width} : tile<{block}x1xi32>
         %{name}d = map mul %{name}r, %{name}w  %{name}b = broadcast %{name}d [{block}, {width}]
         %{name}c = broadcast %cols [{block}, {width}]  %{name}o = map add %{name}b, %{name}c
         %{name}z = const {size} : i32  %{name}y = map mul %member, %{name}z  %{name}s = splat %{name}y [{block}, {width}]
         %{name}at = map add %{name}o, %{name}s
         %{name}e = const {count} : tile<{block}x1xi32>  %{name}g = map lt %{name}r, %{name}e
         %{name}in = broadcast %{name}g [{block}, {width}]
         %{name} = load {of}, %{name}at, mask %{name}in"
    )
}

/// A loop over keys, from three carried values to three others.
fn steps(of: &Attention, p: &str, [lo, hi]: [&str; 2], before: [&str; 3], diagonal: bool) -> String {
    let &Attention { elem, block: [rows_of, block], width, keys, .. } = of;
    let key = rows(&format!("{p}k"), "%k", &format!("%{p}i"), keys, [block, width]);
    let value = rows(&format!("{p}v"), "%v", &format!("%{p}i"), keys, [block, width]);
    let seen = if diagonal {
        format!(
            "%{p}q = broadcast %rows [{rows_of}, {block}]  %{p}le = map le %{p}x, %{p}q
             %{p}seen = map and %{p}lt, %{p}le"
        )
    } else {
        format!("%{p}seen = map and %{p}lt, %{p}lt")
    };
    let [m, l, o] = before;
    let next = if of.in_order {
        format!(
            "%{p}all = reduce sum %{p}o axis 1  %{p}naught = map mul %{p}all, %zero
             %{p}next = map add %{p}next0, %{p}naught"
        )
    } else {
        format!("%{p}next = map add %{p}next0, %zero")
    };
    format!(
        "%{p}most, %{p}sum, %{p}out = for %{p}j in {lo}..{hi} step %step with (%{p}m = {m}, %{p}l = {l}, %{p}o = {o}) {{
           %{p}f = splat %{p}j [{block}]  %{p}i = map add %{p}f, %below
           {key}
           %{p}t = permute %{p}k [1, 0]
           %{p}none = const 0.0 : tile<{rows_of}x{block}xf32>
           %{p}dot = dot %queries, %{p}t, %{p}none
           %{p}by = const 0.125 : tile<{rows_of}x{block}xf32>  %{p}scaled = map mul %{p}dot, %{p}by
           %{p}y = expand_dims %{p}i axis 0  %{p}x = broadcast %{p}y [{rows_of}, {block}]
           %{p}n = const {keys} : tile<{rows_of}x{block}xi32>  %{p}lt = map lt %{p}x, %{p}n
           {seen}
           %{p}inf = const -inf : tile<{rows_of}x{block}xf32>  %{p}scores = map select %{p}seen, %{p}scaled, %{p}inf
           %{p}here = reduce max %{p}scores axis 1  %{p}top = map max %{p}m, %{p}here
           %{p}nothing = map eq %{p}top, %inf  %{p}base = map select %{p}nothing, %zero, %{p}top
           %{p}bases = expand_dims %{p}base axis 1  %{p}baseb = broadcast %{p}bases [{rows_of}, {block}]
           %{p}less = map sub %{p}scores, %{p}baseb  %{p}weights = map exp %{p}less
           %{p}down = map sub %{p}m, %{p}base  %{p}factor = map exp %{p}down
           %{p}total = reduce sum %{p}weights axis 1  %{p}next0 = map fma %{p}l, %{p}factor, %{p}total
           {next}
           %{p}p = cast %{p}weights {elem}
           %{p}factors = expand_dims %{p}factor axis 1  %{p}factorb = broadcast %{p}factors [{rows_of}, {width}]
           %{p}old = map mul %{p}o, %{p}factorb
           {value}
           %{p}new = dot %{p}p, %{p}v, %{p}old
           yield %{p}top, %{p}next, %{p}new
         }}",
        elem = elem.name()
    )
}

fn text(of: &Attention) -> String {
    let &Attention { elem, block: [rows_of, block], warps, stages, width, queries, keys, causal, .. } = of;
    let stages = stages.map_or_else(String::new, |stages| format!(" stages({stages})"));
    let init = ["%inf", "%zero", "%zeros"];
    let walk = if causal {
        // Whole steps before the block's first query, then those on the diagonal.
        format!(
            "%many = map div_trunc %first, %step  %whole0 = map mul %many, %step  %whole = map min %whole0, %end
             %behind0 = map add %first, %height  %behind = map min %behind0, %end
             {}
             {}",
            steps(of, "a", ["%none", "%whole"], init, false),
            steps(of, "b", ["%whole", "%behind"], ["%amost", "%asum", "%aout"], true)
        )
    } else {
        steps(of, "b", ["%none", "%end"], init, false)
    };
    format!(
        "kernel @attention(%q: ptr<{elem}> align(16), %k: ptr<{elem}> align(16), %v: ptr<{elem}> align(16), %z: ptr<{elem}> align(16)) warps({warps}){stages} {{
           %none = const 0 : i32  %step = const {block} : i32  %end = const {keys} : i32  %height = const {rows_of} : i32
           %id = program_id 0  %member = program_id 1
           %first = map mul %id, %height
           %i = range 0 {rows_of}  %is = splat %first [{rows_of}]  %row = map add %i, %is  %rows = expand_dims %row axis 1
           %below = range 0 {block}
           %d = range 0 {width}  %cols = expand_dims %d axis 0
           {query}
           %inf = const -inf : tile<{rows_of}xf32>  %zero = const 0.0 : tile<{rows_of}xf32>
           %zeros = const 0.0 : tile<{rows_of}x{width}xf32>
           {walk}
           %empty = map eq %bsum, %zero  %one = const 1.0 : tile<{rows_of}xf32>  %inverse0 = map div %one, %bsum
           %inverse = map select %empty, %zero, %inverse0
           %inverses = expand_dims %inverse axis 1  %inverseb = broadcast %inverses [{rows_of}, {width}]
           %result = map mul %bout, %inverseb  %rounded = cast %result {elem}
           store %z, %queriesat, %rounded, mask %queriesin
         }}",
        elem = elem.name(),
        query = rows("queries", "%q", "%row", queries, [rows_of, width]),
    )
}
