//! Non-temporal stores: where they are made, and that they change no result.

use tilefuse_block::Elem;

use super::*;

/// Twice the elements of a tensor, 1024 each instance, stored through a pointer with such promises.
fn twice(elem: &str, promise: &str, hint: &str) -> String {
    format!(
        "
kernel @twice(%x: ptr<{elem}>, %y: ptr<{elem}> {promise}) {{
  %id = program_id 0
  %n = const 1024 : i32
  %first = map mul %id, %n
  %start = splat %first [1024]
  %lanes = range 0 1024
  %at = map add %start, %lanes
  %v = load %x, %at
  %w = map add %v, %v
  store %y, %at, %w{hint}
}}"
    )
}

/// Rows of so many elements in tiles of 1024, without their means.
fn rows(cols: u32) -> String {
    format!(
        "
kernel @rows(%x: ptr<f32> len(1048576), %y: ptr<f32> align(64) len(1048576)) {{
  %row = program_id 0
  %n = const {cols} : i32
  %first = map mul %row, %n
  %start = splat %first [1024]
  %cols = range 0 1024
  %end = const {cols} : tile<1024xi32>
  %in = map lt %cols, %end
  %at = map add %start, %cols
  %v = load %x, %at, mask %in
  %sum = reduce sum %v axis 0 mask %in
  %s = splat %sum [1024]
  %out = map sub %v, %s
  store %y, %at, %out, mask %in, hint streaming
}}"
    )
}

/// Non-temporal stores, and the instructions that wait for such stores, in a listing.
fn counts(text: &str, target: &Target) -> (usize, usize) {
    let program: Program = text.trim().parse().unwrap();
    let (listing, _) = super::super::generate(&program, target, super::super::FileType::Assembly).unwrap();
    let listing = String::from_utf8(listing).unwrap();
    let count = |names: &[&str]| {
        let own = |line: &&str| line.split_whitespace().next().is_some_and(|word| names.contains(&word));
        listing.lines().filter(own).count()
    };
    let stores = ["movntps", "vmovntps", "movntpd", "vmovntpd", "movntdq", "vmovntdq"];
    assert_eq!(count(&["movnti", "movntil", "movntiq", "stnp"]), 0, "{listing}");
    (count(&stores), count(&["sfence"]))
}

/// The same for vectors of 256 and 128 bits, whose stores are plain.
fn plain(text: &str) {
    for target in [Target::new(Isa::Avx2), Target::new(Isa::Baseline), Target::neon()] {
        assert_eq!(counts(text, &target), (0, 0), "{target:?}");
    }
}

const HINT: &str = ", hint streaming";

#[test]
fn whole_lines_are_stored_past_the_caches_where_the_program_says_so() {
    for elem in ["f32", "f64", "bf16", "f16", "i16", "i8", "i64"] {
        let text = twice(elem, "align(64)", HINT);
        let (stores, waits) = counts(&text, &Target::wide());
        assert!(stores > 0 && waits == 1, "{elem}: {stores} {waits}");
        plain(&text);
        assert_eq!(counts(&twice(elem, "align(64)", ""), &Target::wide()), (0, 0), "{elem}");
        assert_eq!(counts(&twice(elem, "align(32)", HINT), &Target::wide()), (0, 0), "{elem}");
    }
}

#[test]
fn rows_that_begin_anywhere_and_what_is_masked_are_stored_plainly() {
    // 3072 bytes are 48 lines.
    let (stores, waits) = counts(&rows(768), &Target::wide());
    assert!(stores > 0 && waits == 1);
    assert_eq!(counts(&rows(1000), &Target::wide()), (0, 0));
    assert_eq!(counts(&rows(999), &Target::wide()), (0, 0));
    let every_second = twice("f32", "align(64)", ", mask %m, hint streaming").replace(
        "  store",
        "  %one = const 1 : tile<1024xi32>\n  %odd = map and %lanes, %one\n  %m = map eq %odd, %one\n  store",
    );
    assert_eq!(counts(&every_second, &Target::wide()), (0, 0));
}

#[test]
fn programs_with_atomic_operations_store_plainly() {
    let text = twice("i32", "align(64)", HINT).replace("  store", "  %old = atomic add %x, %at, %v\n  store");
    assert_eq!(counts(&text, &Target::wide()), (0, 0));
}

/// Beside non-temporal stores lines are fetched for what is read, else for what is written.
#[test]
fn lines_are_fetched_for_what_is_read_beside_stores_past_the_caches() {
    let fetches = |text: &str| {
        let program = super::super::prepared(&text.trim().parse().unwrap(), &Target::wide()).unwrap();
        let plan = super::super::plan::Plan::new(&program, Target::wide().registers()).unwrap();
        let cx = inkwell::context::Context::create();
        let ir = super::super::emit::emit(&cx, &plan, &Target::wide(), false)
            .unwrap()
            .print_to_string()
            .to_string();
        let count = |kind: &str| {
            let own = |line: &&str| line.contains("call void @llvm.prefetch") && line.contains(kind);
            ir.lines().filter(own).count()
        };
        (count("i32 1, i32 3") > 0, count("i32 0, i32 3") > 0)
    };
    let large =
        twice("f32", "align(64) len(1048576)", HINT).replace("%x: ptr<f32>", "%x: ptr<f32> len(1048576)");
    assert_eq!(fetches(&large), (false, true));
    assert_eq!(fetches(&large.replace(HINT, "")), (true, false));
    // Beside the reduction, for the next row.
    assert_eq!(fetches(&rows(768)), (false, true));
    assert_eq!(fetches(&rows(999)), (true, true));
}

#[test]
fn stores_past_the_caches_change_no_result() {
    for promise in ["align(64)", "align(16)", ""] {
        check_text(&twice("f32", promise, HINT), &[f32s(8192), f32s(8192)], [8, 1, 1], 0.0);
    }
    let halves: Vec<u8> = (0..8192u16).flat_map(|i| (0x3f80 + i % 100).to_le_bytes()).collect();
    let small: Vec<u8> = (0..8192u16).map(|i| (i % 50) as u8).collect();
    for (elem, bytes) in [(Elem::Bf16, halves), (Elem::I8, small)] {
        let zeros = Arg::buffer(Data::from_bytes(elem, &vec![0; bytes.len()]));
        let args = [Arg::buffer(Data::from_bytes(elem, &bytes)), zeros];
        check_text(&twice(elem.name(), "align(64)", HINT), &args, [8, 1, 1], 0.0);
    }
    for cols in [768, 1000, 999] {
        let len = 1 << 20;
        check_text(&rows(cols), &[f32s(len), f32s(len)], [64, 1, 1], 1e-4);
    }
}
