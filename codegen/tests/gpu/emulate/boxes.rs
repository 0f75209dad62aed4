//! Copies of boxes of tensors, which happen at once: the thread that starts them does them, and completes their bytes.

use tilefuse_codegen::ptx::tensor_map::TensorMap;

use super::mbarrier;

/// What a kernel's parameter holds in the place of an encoded map.
#[repr(C, align(64))]
pub(super) struct Map {
    map: *const TensorMap,
    address: u64,
    rest: [u64; 14],
}

impl Map {
    pub(super) fn new(map: &TensorMap, args: &[u64]) -> Map {
        Map { map, address: args[map.param].wrapping_add_signed(map.offset), rest: [0; 14] }
    }
}

/// Copies the box at some coordinates to shared memory, for which an mbarrier waits.
pub(super) extern "C" fn copy(place: u64, map: *const Map, at: *const i32, barrier: u64) {
    // SAFETY: the wrapper passed one of these, which lives as long as the block runs.
    let (map, address) = unsafe { (&*(*map).map, (*map).address) };
    // SAFETY: there are as many coordinates as dimensions.
    let at = unsafe { std::slice::from_raw_parts(at, map.sizes.len()) };
    let strides = map.strides.iter().all(|stride| stride.is_multiple_of(16));
    assert!(place.is_multiple_of(128) && address.is_multiple_of(16) && strides, "{map}");
    let elements: u64 = map.tile.iter().map(|&n| u64::from(n)).product();
    for number in 0..elements {
        let (mut rest, mut from, mut inside) = (number, address, true);
        for (d, (&size, &extent)) in map.sizes.iter().zip(&map.tile).enumerate() {
            let index = i64::from(at[d]) + (rest % u64::from(extent)) as i64;
            rest /= u64::from(extent);
            inside &= (0..size as i64).contains(&index);
            let stride = if d == 0 { 2 } else { map.strides[d - 1] as i64 };
            from = from.wrapping_add_signed(index * stride);
        }
        let to = number * 2;
        let to = place + (to ^ (to >> 3 & u64::from(map.swizzle - 16)));
        // SAFETY: the element is in the tensor, as the interpreter found; the box has its place in shared memory.
        unsafe { (to as *mut u16).write(if inside { (from as *const u16).read() } else { 0 }) };
    }
    mbarrier::complete(barrier, 2 * elements);
}

/// The function that stands for an instruction of copies of boxes.
pub(super) fn helper(text: &str) -> Option<(String, String)> {
    let rank: usize = text.strip_prefix("cp.async.bulk.tensor.")?.split('d').next()?.parse().ok()?;
    let params: String = (0..rank).map(|d| format!(", i32 %c{d}")).collect();
    let stores: String = (0..rank)
        .map(|d| format!("  %p{d} = getelementptr i32, ptr %at, i64 {d}\n  store i32 %c{d}, ptr %p{d}\n"))
        .collect();
    let name = format!("emulated_boxes_{rank}");
    let function = format!(
        "define internal void @{name}(ptr addrspace(3) %to, ptr %map, ptr addrspace(3) %b{params}) {{\n  \
         %at = alloca [{rank} x i32]\n{stores}  %place = ptrtoint ptr addrspace(3) %to to i64\n  \
         %barrier = ptrtoint ptr addrspace(3) %b to i64\n  \
         call void @emulated_box(i64 %place, ptr %map, ptr %at, i64 %barrier)\n  ret void\n}}\n"
    );
    Some((name, function))
}
