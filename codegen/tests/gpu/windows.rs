//! Products whose rows are windows of images (implicit GEMM), which the accelerator copies in its im2col mode: images of all sizes beside
//! blocks of pixels, with zeros around them, steps, taps apart, and channels that do not fill a step.

use tilefuse_block::Elem;
use tilefuse_block::interp::Arg;

use crate::run::{Case, Tolerance};
use crate::shapes::out_of;
use crate::values::moderate;

#[derive(Clone, Copy)]
struct Windows {
    elem: Elem,
    /// Rows and columns of a block, and its warps and stages.
    block: [u32; 2],
    warps: u32,
    stages: u32,
    images: u32,
    /// Height and width of an image.
    size: [u32; 2],
    channels: u32,
    filters: u32,
    /// Taps along each axis.
    taps: [u32; 2],
    step: u32,
    padding: [u32; 2],
    apart: u32,
    /// Parts of the sum, of an instance each.
    parts: u32,
}

const SMALL: Windows = Windows {
    elem: Elem::Bf16,
    block: [64, 64],
    warps: 4,
    stages: 8,
    images: 3,
    size: [9, 7],
    channels: 64,
    filters: 64,
    taps: [3, 3],
    step: 1,
    padding: [1, 1],
    apart: 1,
    parts: 1,
};

pub(crate) fn cases() -> Vec<Case> {
    let f16 = Elem::F16;
    let all = [
        SMALL,
        // Rows of blocks end within images, and the last one behind them.
        Windows { images: 5, size: [14, 14], channels: 128, ..SMALL },
        Windows { elem: f16, block: [128, 128], warps: 8, stages: 6, images: 4, filters: 128, ..SMALL },
        Windows { block: [128, 128], stages: 6, images: 3, size: [16, 12], filters: 256, ..SMALL },
        Windows { block: [128, 256], warps: 8, stages: 4, images: 2, size: [8, 16], filters: 256, ..SMALL },
        // Every second pixel, where the last tap is in the image and where it is not.
        Windows { step: 2, size: [8, 8], ..SMALL },
        Windows { step: 2, size: [9, 7], block: [64, 128], filters: 128, ..SMALL },
        Windows { step: 2, size: [8, 10], taps: [1, 1], padding: [0, 0], images: 4, ..SMALL },
        // No zeros around, along one axis, and taps apart.
        Windows { padding: [0, 0], size: [8, 8], ..SMALL },
        Windows { padding: [0, 2], taps: [1, 5], ..SMALL },
        Windows { padding: [2, 2], apart: 2, size: [8, 8], ..SMALL },
        // The last step of a tap has channels that are not there.
        Windows { channels: 40, ..SMALL },
        Windows { channels: 96, elem: f16, size: [7, 7], ..SMALL },
        Windows { images: 1, size: [8, 8], ..SMALL },
        Windows { images: 1, size: [9, 9], ..SMALL },
        Windows { parts: 3, images: 2, size: [7, 7], ..SMALL },
    ];
    all.into_iter().map(case).collect()
}

impl Windows {
    /// Height and width of the result.
    fn result(&self) -> [u32; 2] {
        [0, 1].map(|d| {
            let span = (self.taps[d] - 1) * self.apart + 1;
            (self.size[d] + 2 * self.padding[d] - span) / self.step + 1
        })
    }

    /// Elements of the sum of a tap, in whole steps.
    fn filled(&self) -> u32 {
        self.channels.next_multiple_of(64)
    }
}

fn case(windows: Windows) -> Case {
    let Windows { elem, block: [rows, cols], images, size, channels, filters, taps, parts, .. } = windows;
    let program = tilefuse_block::parse_valid(&text(&windows)).unwrap();
    let pixels: u32 = windows.result().iter().product();
    let area: u32 = size.iter().product();
    let data = |count: u32, seed| Arg::buffer(moderate(elem, count as usize, seed));
    let args = vec![
        data(images * area * channels, 1),
        data(filters * taps[0] * taps[1] * channels, 2),
        out_of(Elem::F32, parts * images * pixels * filters),
    ];
    let Windows { warps, stages, step, padding, apart, .. } = windows;
    let name = format!(
        "windows dots {elem} {rows}x{cols} of {images}x{size:?}x{channels} by {filters} of {taps:?} step {step} padding {padding:?} \
         apart {apart} in {parts} warps {warps} stages {stages}"
    );
    let tolerance = Tolerance::Close { absolute: 1e-2, relative: 1e-3 };
    let grid = [parts * (images * pixels).div_ceil(rows) * filters.div_ceil(cols), 1, 1];
    Case { name, program, args, grid, tolerance, is_function: false }
}

/// The conditions under which a tap is in the image along an axis, as far as they may not hold, of pixels `at`.
fn inside(windows: &Windows, d: usize, at: &str) -> Vec<String> {
    let rows = windows.block[0];
    let last = (windows.result()[d] - 1) * windows.step + (windows.taps[d] - 1) * windows.apart;
    let behind = last >= windows.padding[d] + windows.size[d];
    let before = (windows.padding[d] > 0)
        .then(|| format!("%{at}z = const 0 : tile<{rows}xi32>  %{at}g = map ge %{at}, %{at}z  %{at}in = map and %{at}g, %{at}g"));
    let behind = behind.then(|| {
        let size = windows.size[d];
        format!("%{at}n = const {size} : tile<{rows}xi32>  %{at}out = map lt %{at}, %{at}n")
    });
    before.into_iter().chain(behind).collect()
}

fn text(windows: &Windows) -> String {
    let &Windows { elem, block: [rows, cols], warps, stages, images, size, channels, filters, taps, .. } =
        windows;
    let &Windows { step, padding, apart, parts, .. } = windows;
    let [height, width] = windows.result();
    let (m, k, filled) = (images * height * width, taps[0] * taps[1] * windows.filled(), windows.filled());
    let (row_pitch, image_pitch) = (size[1] * channels, size[0] * size[1] * channels);
    let mut masks: Vec<String> = Vec::new();
    let mut code = String::new();
    for (d, at) in [(0, "py"), (1, "px")] {
        for condition in inside(windows, d, at) {
            masks.push(if condition.contains("lt") { format!("%{at}out") } else { format!("%{at}in") });
            code += &format!("{condition}\n");
        }
    }
    if m % rows != 0 {
        masks.push("%own".to_owned());
    }
    let spread = |mask: &str, shape: &str, axis: u32| {
        format!("{mask}e = expand_dims {mask} axis {axis}  {mask}b = broadcast {mask}e [{shape}]\n")
    };
    for mask in &masks {
        code += &spread(mask, &format!("{rows}, 64"), 1);
    }
    if channels != filled {
        code += &format!("%chn = const {channels} : tile<64xi32>  %real = map lt %channel, %chn\n");
        code += &spread("%real", &format!("{rows}, 64"), 0);
        masks.push("%real".to_owned());
    }
    let mut load = "load %x, %at_x".to_owned();
    for (number, mask) in masks.iter().enumerate() {
        let so_far = if number == 0 { format!("{mask}b") } else { format!("%m{}", number - 1) };
        code += &format!("%m{number} = map and {so_far}, {mask}b\n");
        load = format!("load %x, %at_x, mask %m{number}");
    }
    let filter = if channels == filled {
        "load %w, %at_w".to_owned()
    } else {
        code += "%realw = expand_dims %real axis 1\n";
        code += &format!("%realwb = broadcast %realw [64, {cols}]\n");
        "load %w, %at_w, mask %realwb".to_owned()
    };
    let blocks = m.div_ceil(rows) * filters.div_ceil(cols);
    let part = k / parts;
    format!(
        "kernel @windows(%x: ptr<{elem}> align(16), %w: ptr<{elem}> align(16), %y: ptr<f32> align(16)) warps({warps}) stages({stages}) {{
           %none = const 0 : i32  %step = const 64 : i32  %end = const {part} : i32  %id0 = program_id 0
           %blocks = const {blocks} : i32  %part = map div_trunc %id0, %blocks  %id = map rem_trunc %id0, %blocks
           %partk = map mul %part, %end
           %across = const {across} : i32  %line = map div_trunc %id, %across  %column = map rem_trunc %id, %across
           %high = const {rows} : i32  %wide = const {cols} : i32
           %first = map mul %line, %high  %first_col = map mul %column, %wide
           %i = range 0 {rows}  %is = splat %first [{rows}]  %row = map add %is, %i
           %mn = const {m} : tile<{rows}xi32>  %own = map lt %row, %mn
           %cw = const {width} : tile<{rows}xi32>  %ch = const {height} : tile<{rows}xi32>
           %x0 = map rem_trunc %row, %cw  %above = map div_trunc %row, %cw
           %y0 = map rem_trunc %above, %ch  %n0 = map div_trunc %above, %ch
           %cs = const {step} : tile<{rows}xi32>
           %cpy = const {pad_y} : tile<{rows}xi32>  %cpx = const {pad_x} : tile<{rows}xi32>
           %x1 = map mul %x0, %cs  %x2 = map add %x1, %cpx  %y1 = map mul %y0, %cs  %y2 = map add %y1, %cpy
           %crow = const {row_pitch} : tile<{rows}xi32>  %cpix = const {channels} : tile<{rows}xi32>
           %cimg = const {image_pitch} : tile<{rows}xi32>
           %oy = map mul %y2, %crow  %ox = map mul %x2, %cpix  %on = map mul %n0, %cimg
           %o1 = map add %oy, %ox  %o2 = map add %on, %o1  %base = expand_dims %o2 axis 1
           %j = range 0 {cols}  %js = splat %first_col [{cols}]  %col = map add %js, %j  %cols = expand_dims %col axis 0
           %d = range 0 64  %zero = const 0.0 : tile<{rows}x{cols}xf32>
           %sum = for %k0 in %none..%end step %step with (%acc = %zero) {{
             %k = map add %k0, %partk
             %filled = const {filled} : i32  %tapsx = const {taps_x} : i32
             %tap = map div_trunc %k, %filled  %c0 = map rem_trunc %k, %filled
             %ty0 = map div_trunc %tap, %tapsx  %tx = map rem_trunc %tap, %tapsx
             %tapsy = const {taps_y} : i32  %ty = map rem_trunc %ty0, %tapsy
             %apart = const {apart} : i32  %dy = map mul %ty, %apart  %dx = map mul %tx, %apart
             %dys = splat %dy [{rows}]  %py = map add %y2, %dys  %dxs = splat %dx [{rows}]  %px = map add %x2, %dxs
             %srow = const {row_pitch} : i32  %spix = const {channels} : i32
             %sy = map mul %dy, %srow  %sx = map mul %dx, %spix  %sh = map add %sy, %sx
             %c0s = splat %c0 [64]  %channel = map add %c0s, %d
             %shs = splat %sh [64]  %lane = map add %channel, %shs  %lanes = expand_dims %lane axis 0
             %a = broadcast %base [{rows}, 64]  %b = broadcast %lanes [{rows}, 64]  %at_x = map add %a, %b
             %tapc = map mul %tap, %spix  %tapcs = splat %tapc [64]  %depth = map add %channel, %tapcs
             %depths = expand_dims %depth axis 1  %e = broadcast %depths [64, {cols}]
             %kw = const {length} : tile<1x{cols}xi32>  %f = map mul %cols, %kw  %g = broadcast %f [64, {cols}]
             %at_w = map add %e, %g
             {code}
             %u = {load}
             %v = {filter}
             %next = dot %u, %v, %acc
             yield %next
           }}
           %zp = const {filters} : tile<{rows}xi32>  %zr = map mul %row, %zp  %zre = expand_dims %zr axis 1
           %zra = broadcast %zre [{rows}, {cols}]  %zca = broadcast %cols [{rows}, {cols}]  %zat0 = map add %zra, %zca
           %all = const {all} : i32  %zpart = map mul %part, %all  %zparts = splat %zpart [{rows}, {cols}]
           %zat = map add %zat0, %zparts
           %owne0 = expand_dims %own axis 1  %ownb0 = broadcast %owne0 [{rows}, {cols}]
           store %y, %zat, %sum, mask %ownb0
         }}",
        across = filters.div_ceil(cols),
        pad_y = -i64::from(padding[0]),
        pad_x = -i64::from(padding[1]),
        taps_x = taps[1],
        taps_y = taps[0],
        length = taps[0] * taps[1] * channels,
        all = m * filters,
    )
}
