//! Copies of boxes of tensors, which happen at once: the thread that starts them does them, and completes their bytes.

use tilefuse_codegen::ptx::tensor_map::{Extent, Im2Col, TensorMap};

use super::mbarrier;

/// What a kernel's parameter holds in the place of an encoded map.
#[repr(C, align(64))]
pub(super) struct Map {
    map: *const TensorMap,
    address: u64,
    sizes: [u64; 5],
    strides: [u64; 5],
    rest: [u64; 4],
}

impl Map {
    pub(super) fn new(map: &TensorMap, args: &[u64]) -> Map {
        let known = |extents: &[Extent]| {
            let mut all = [0; 5];
            all.iter_mut().zip(extents).for_each(|(known, extent)| *known = extent.of(args).unwrap());
            all
        };
        let address = args[map.param].wrapping_add_signed(map.offset);
        Map { map, address, sizes: known(&map.sizes), strides: known(&map.strides), rest: [0; 4] }
    }
}

/// Copies the box at some coordinates to shared memory, for which an mbarrier waits. Behind the coordinates are the offsets, of images.
pub(super) extern "C" fn copy(place: u64, map: *const Map, at: *const i32, barrier: u64) {
    // SAFETY: the wrapper passed one of these, which lives as long as the block runs.
    let Map { map, address, sizes, strides, .. } = unsafe { &*map };
    // SAFETY: as above.
    let (map, address) = (unsafe { &**map }, *address);
    let (rank, axes) = (map.sizes.len(), map.im2col.as_ref().map_or(0, |im2col| im2col.steps.len()));
    // SAFETY: there are as many coordinates as dimensions, and as many offsets as axes of images.
    let (at, offsets) = unsafe { std::slice::from_raw_parts(at, rank + axes) }.split_at(rank);
    let aligned = strides.iter().all(|stride| stride.is_multiple_of(16));
    assert!(place.is_multiple_of(128) && address.is_multiple_of(16) && aligned, "{map}");
    let elements: u64 = map.tile.iter().map(|&n| u64::from(n)).product();
    for number in 0..elements {
        let indices = match &map.im2col {
            Some(im2col) => pixel((map, sizes), im2col, (at, offsets), number),
            None => element(map, at, number),
        };
        let (mut from, mut inside) = (address, true);
        for (d, (&size, &index)) in sizes.iter().zip(&indices).enumerate() {
            inside &= (0..size as i64).contains(&index);
            let stride = if d == 0 { 2 } else { strides[d - 1] as i64 };
            from = from.wrapping_add_signed(index * stride);
        }
        let to = number * 2;
        let to = place + (to ^ (to >> 3 & u64::from(map.swizzle - 16)));
        // SAFETY: the element is in the tensor, as the interpreter found; the box has its place in shared memory.
        unsafe { (to as *mut u16).write(if inside { (from as *const u16).read() } else { 0 }) };
    }
    mbarrier::complete(barrier, 2 * elements);
}

/// Where an element of a box is along each dimension.
fn element(map: &TensorMap, at: &[i32], number: u64) -> Vec<i64> {
    let mut rest = number;
    let along = |(&at, &extent): (&i32, &u32)| {
        let index = i64::from(at) + (rest % u64::from(extent)) as i64;
        rest /= u64::from(extent);
        index
    };
    at.iter().zip(&map.tile).map(along).collect()
}

/// The same of a box whose rows are pixels, one after another within the corners, from one image to the next.
fn pixel(
    (map, sizes): (&TensorMap, &[u64]),
    im2col: &Im2Col,
    (at, offsets): (&[i32], &[i32]),
    number: u64,
) -> Vec<i64> {
    let width = u64::from(map.tile[0]);
    let mut indices: Vec<i64> = at.iter().map(|&at| i64::from(at)).collect();
    indices[0] += (number % width) as i64;
    let mut further = (number / width) as i64;
    for (axis, &step) in im2col.steps.iter().enumerate() {
        let (first, step) = (i64::from(im2col.lower[axis]), i64::from(step));
        let end = sizes[axis + 1] as i64 + i64::from(im2col.upper[axis]);
        let own = indices[axis + 1];
        assert!((first..end).contains(&own) && (own - first) % step == 0, "{map} at {at:?}");
        let count = (end - first - 1) / step + 1;
        let place = (own - first) / step + further;
        indices[axis + 1] = first + place % count * step + i64::from(offsets[axis]);
        further = place / count;
    }
    indices[map.sizes.len() - 1] += further;
    indices
}

/// The function that stands for an instruction of copies of boxes.
pub(super) fn helper(text: &str) -> Option<(String, String)> {
    let rank: usize = text.strip_prefix("cp.async.bulk.tensor.")?.split('d').next()?.parse().ok()?;
    let axes = if text.contains(".im2col.") { rank - 2 } else { 0 };
    let coordinates = (0..rank).map(|d| format!(", i32 %c{d}"));
    let params: String = coordinates.chain((0..axes).map(|d| format!(", i16 %o{d}"))).collect();
    let stored = |at: usize, value: &str| {
        format!("  %p{at} = getelementptr i32, ptr %at, i64 {at}\n  store i32 {value}, ptr %p{at}\n")
    };
    let widened = (0..axes)
        .map(|d| format!("  %w{d} = zext i16 %o{d} to i32\n{}", stored(rank + d, &format!("%w{d}"))));
    let stores: String = (0..rank).map(|d| stored(d, &format!("%c{d}"))).chain(widened).collect();
    let name = format!("emulated_boxes_{rank}_{axes}");
    let function = format!(
        "define internal void @{name}(ptr addrspace(3) %to, ptr %map, ptr addrspace(3) %b{params}) {{\n  \
         %at = alloca [{} x i32]\n{stores}  %place = ptrtoint ptr addrspace(3) %to to i64\n  \
         %barrier = ptrtoint ptr addrspace(3) %b to i64\n  \
         call void @emulated_box(i64 %place, ptr %map, ptr %at, i64 %barrier)\n  ret void\n}}\n",
        rank + axes
    );
    Some((name, function))
}
