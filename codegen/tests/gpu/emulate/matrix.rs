//! The matrix unit: reads of 8 by 8 matrices from shared memory, and products of fragments.

use std::fmt::Write;

use super::{THREAD, together};

/// The nearest number with 10 bits of mantissa.
pub(super) extern "C" fn tf32(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_finite() { (bits + 0x1000) & !0x1fff } else { bits & !0x1fff }
}

/// Reads `count` matrices of pairs of bytes; every 8 lanes give the addresses of the rows of one.
pub(super) extern "C" fn load(address: u64, count: u32, turned: u32, out: *mut u32) {
    let rows = together(&[address]);
    let lane = THREAD.get() % 32;
    for matrix in 0..count {
        let at = |row: u32, col: u32| {
            let address = rows[(matrix * 8 + row) as usize][0];
            assert!(address.is_multiple_of(16), "a row of a matrix at {address:x}");
            // SAFETY: the row's 16 bytes lie in the block's shared memory, which other threads do not write between
            // two barriers.
            unsafe { (address as *const u16).add(col as usize).read() }
        };
        let (major, minor) = (lane / 4, lane % 4 * 2);
        let [low, high] =
            [0, 1].map(|i| if turned == 0 { at(major, minor + i) } else { at(minor + i, major) });
        // SAFETY: there is room for each matrix's word.
        unsafe { out.add(matrix as usize).write(u32::from(low) | u32::from(high) << 16) };
    }
}

/// The kinds of operands, by number.
const KINDS: [&str; 6] = ["f16", "bf16", "tf32", "s8", "u8", "f64"];

fn bits(kind: u32) -> u32 {
    [16, 16, 32, 8, 8, 64][kind as usize]
}

/// An element of a fragment's word.
fn element(kind: u32, word: u64, index: u32) -> f64 {
    let field = word >> (index * bits(kind)) & (u64::MAX >> (64 - bits(kind)));
    match KINDS[kind as usize] {
        "f16" => half::f16::from_bits(field as u16).to_f64(),
        "bf16" => half::bf16::from_bits(field as u16).to_f64(),
        // What has more bits of mantissa is cut.
        "tf32" => f32::from_bits(field as u32 & !0x1fff).into(),
        "s8" => f64::from(field as u8 as i8),
        "u8" => field as f64,
        _ => f64::from_bits(field),
    }
}

/// Adds to this lane's four (for `f64`, two) sums at `sums` the products of the fragments whose words are at `words`,
/// `left` of the left one and `right` of the right one.
pub(super) extern "C" fn multiply(kind: u32, left: u32, right: u32, words: *const u64, sums: *mut u64) {
    // SAFETY: the caller gives so many words.
    let mine: Vec<u64> = (0..left + right).map(|i| unsafe { words.add(i as usize).read() }).collect();
    let all = together(&mine);
    let lane = THREAD.get() % 32;
    let each = if kind == 5 { 1 } else { 32 / bits(kind) };
    // A word's lane holds a row (or column) of 8, and a part of four along the common axis.
    let (a, b) = (
        |row: u32, k: u32| {
            let (part, word) = (k / each % 4, row / 8 + k / (4 * each) * if left == 1 { 1 } else { 2 });
            element(kind, all[(row % 8 * 4 + part) as usize][word as usize], k % each)
        },
        |col: u32, k: u32| {
            let (part, word) = (k / each % 4, left + k / (4 * each));
            element(kind, all[(col * 4 + part) as usize][word as usize], k % each)
        },
    );
    let steps = 4 * each * right;
    for i in 0..if left == 1 { 2 } else { 4 } {
        let (row, col) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
        let product: f64 = (0..steps).map(|k| a(row, k) * b(col, k)).sum();
        // SAFETY: there are so many sums.
        unsafe {
            let at = sums.add(i as usize);
            at.write(match kind {
                5 => (f64::from_bits(at.read()) + product).to_bits(),
                3 | 4 => u64::from((at.read() as u32).wrapping_add(product as i64 as u32)),
                _ => ((f64::from(f32::from_bits(at.read() as u32)) + product) as f32).to_bits().into(),
            });
        }
    }
}

/// The function that stands for a product in inline assembly.
pub(super) fn product(text: &str) -> Option<(String, String)> {
    let instruction = text.strip_prefix("mma.sync.aligned.")?.split(' ').next()?;
    let kind = instruction.split('.').nth(4)?;
    let number = KINDS.iter().position(|k| *k == kind)?;
    let mut groups =
        text.split('{').skip(1).map(|group| group.split('}').next().unwrap_or("").split(", ").count());
    let (sums, left, right) = (groups.next()?, groups.next()?, groups.next()?);
    let sum = match kind {
        "f64" => "double",
        "s8" | "u8" => "i32",
        _ => "float",
    };
    let word = if kind == "f64" { "double" } else { "i32" };
    let name = format!("emulated_mma_{}", instruction.replace('.', "_"));
    let (mut params, mut body) = (Vec::new(), String::new());
    let _ = writeln!(body, "  %words = alloca [8 x i64]\n  %sums = alloca [4 x i64]");
    for i in 0..left + right {
        params.push(format!("{word} %w{i}"));
        let _ = writeln!(
            body,
            "  %pw{i} = getelementptr i64, ptr %words, i64 {i}\n  store {word} %w{i}, ptr %pw{i}"
        );
    }
    for i in 0..sums {
        params.push(format!("{sum} %s{i}"));
        let _ = writeln!(
            body,
            "  %ps{i} = getelementptr i64, ptr %sums, i64 {i}\n  store i64 0, ptr %ps{i}\n  store {sum} %s{i}, ptr %ps{i}"
        );
    }
    let _ = writeln!(
        body,
        "  call void @emulated_product(i32 {number}, i32 {left}, i32 {right}, ptr %words, ptr %sums)"
    );
    let result = format!("{{ {} }}", vec![sum; sums].join(", "));
    let mut last = "poison".to_owned();
    for i in 0..sums {
        let _ = writeln!(
            body,
            "  %n{i} = load {sum}, ptr %ps{i}\n  %r{i} = insertvalue {result} {last}, {sum} %n{i}, {i}"
        );
        last = format!("%r{i}");
    }
    let function = format!(
        "define internal {result} @{name}({}) {{\n{body}  ret {result} {last}\n}}\n",
        params.join(", ")
    );
    Some((name, function))
}

/// The functions that stand for reads of matrices.
pub(super) fn helpers() -> String {
    let mut out = "declare void @emulated_product(i32, i32, i32, ptr, ptr)\n\
                   declare void @emulated_matrices(i64, i32, i32, ptr)\n"
        .to_owned();
    for (count, turned) in [(1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1)] {
        let result =
            if count == 1 { "i32".to_owned() } else { format!("{{ {} }}", vec!["i32"; count].join(", ")) };
        let suffix = if turned == 1 { ".trans" } else { "" };
        let loads = if count == 1 {
            "  %r = load i32, ptr %out\n  ret i32 %r\n".to_owned()
        } else {
            format!("  %r = load {result}, ptr %out\n  ret {result} %r\n")
        };
        let _ = write!(
            out,
            "define internal {result} @emulated_ldmatrix_x{count}{suffix}.b16.p3(ptr addrspace(3) %p) {{\n  \
             %out = alloca [4 x i32]\n  %a = ptrtoint ptr addrspace(3) %p to i64\n  \
             call void @emulated_matrices(i64 %a, i32 {count}, i32 {turned}, ptr %out)\n{loads}}}\n"
        );
    }
    out
}
