#![allow(clippy::unwrap_used, reason = "tests")]
use tilefuse_block::parse_valid;

use crate::ptx::{Pass, Ptx, PtxOptions, Target, after, compile_ptx};

/// A product of blocks of rows, to which a vector of the columns is added.
const PRODUCT: &str = "\
kernel @product(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %b: ptr<f32> align(16), %z: ptr<f32> align(16), %n: ptr<i32> align(16)) warps(4) stages(8) {
  %none = const 0 : i32  %end = const 2048 : i32  %step = const 64 : i32
  %id = program_id 0  %first = map mul %id, %step
  %r = range 0 64  %firsts = splat %first [64]  %row = map add %firsts, %r  %rows = expand_dims %row axis 1
  %pitch = const 2048 : tile<64x1xi32>  %down = map mul %rows, %pitch  %a = broadcast %down [64, 64]
  %cols = expand_dims %r axis 0  %pitch2 = const 2048 : tile<1x64xi32>  %c = map mul %cols, %pitch2
  %d = broadcast %c [64, 64]  %zero = const 0.0 : tile<64x64xf32>
  %sum = for %k in %none..%end step %step with (%acc = %zero) {
    %ks = splat %k [64]  %depth = map add %ks, %r
    %depths = expand_dims %depth axis 0  %e = broadcast %depths [64, 64]
    %at_x = map add %a, %e  %u = load %x, %at_x
    %down2 = expand_dims %depth axis 1  %f = broadcast %down2 [64, 64]
    %at_y = map add %d, %f  %v = load %y, %at_y
    %next = dot %u, %v, %acc
    yield %next
  }
  %bias = load %b, %r  %bs = expand_dims %bias axis 0  %bb = broadcast %bs [64, 64]  %out = map add %sum, %bb
  %wide = const 64 : tile<64x1xi32>  %start = map mul %rows, %wide  %g = broadcast %start [64, 64]
  %h = broadcast %cols [64, 64]  %at = map add %g, %h
  store %z, %at, %out
}
";

/// A product of blocks of this size, with one change of its text.
fn product(
    rows: u32,
    columns: u32,
    warps: u32,
    stages: Option<u32>,
    change: (&str, &str),
) -> tilefuse_block::Program {
    let stages = stages.map_or(String::new(), |stages| format!(" stages({stages})"));
    let text = format!(
        "kernel @product(%x: ptr<bf16> align(16), %y: ptr<bf16> align(16), %z: ptr<f32> align(16)) warps({warps}){stages} {{
           %none = const 0 : i32  %end = const 2048 : i32  %step = const 64 : i32  %height = const {rows} : i32
           %id = program_id 0  %first = map mul %id, %height
           %i = range 0 {rows}  %firsts = splat %first [{rows}]  %row = map add %firsts, %i  %rows = expand_dims %row axis 1
           %pitch = const 2048 : tile<{rows}x1xi32>  %down = map mul %rows, %pitch  %a = broadcast %down [{rows}, 64]
           %j = range 0 {columns}  %cols = expand_dims %j axis 0
           %pitch2 = const 2048 : tile<1x{columns}xi32>  %c = map mul %cols, %pitch2  %b = broadcast %c [64, {columns}]
           %d = range 0 64  %zero = const 0.0 : tile<{rows}x{columns}xf32>
           %sum = for %k in %none..%end step %step with (%acc = %zero) {{
             %ks = splat %k [64]  %depth = map add %ks, %d
             %left = expand_dims %depth axis 0  %l = broadcast %left [{rows}, 64]  %at_x = map add %a, %l  %u = load %x, %at_x
             %right = expand_dims %depth axis 1  %m = broadcast %right [64, {columns}]  %at_y = map add %b, %m
             %v = load %y, %at_y
             %next = dot %u, %v, %acc
             yield %next
           }}
           %wide = const {columns} : tile<{rows}x1xi32>  %start = map mul %rows, %wide
           %e = broadcast %start [{rows}, {columns}]  %f = broadcast %cols [{rows}, {columns}]  %at = map add %e, %f
           store %z, %at, %sum
         }}"
    );
    assert!(text.contains(change.0));
    parse_valid(&text.replacen(change.0, change.1, 1)).unwrap()
}

fn changed(changes: &[(&str, &str)]) -> tilefuse_block::Program {
    let text = changes.iter().fold(PRODUCT.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    parse_valid(&text).unwrap()
}

fn compiled(changes: &[(&str, &str)]) -> Ptx {
    compile_ptx(&changed(changes), Target::Sm90a, &PtxOptions::default()).unwrap()
}

/// Why the copies of a product's loop have no producer warpgroup.
fn reason(changes: &[(&str, &str)]) -> String {
    assert!(!compiled(changes).persistent);
    let shown = after(&changed(changes), Target::Sm90a, Pass::Pipeline).unwrap();
    let notes = shown.lines().filter_map(|line| line.split_once("no producer warpgroup starts the copies: "));
    notes.map(|(_, why)| why.to_owned()).collect::<Vec<_>>().join("; ")
}

#[test]
fn one_thread_copies_for_all_instances_of_a_block() {
    let ptx = compiled(&[]);
    assert!(ptx.persistent && ptx.threads == 384 && ptx.text.contains(".minnctapersm 1"), "{}", ptx.text);
    // Each role waits for the other, once an iteration, and a group that computes for its turn, once an instance.
    assert_eq!(ptx.text.matches("mbarrier.try_wait").count(), 3);
    assert_eq!(ptx.text.matches("cp.async.bulk.tensor").count(), 2);
    assert_eq!(ptx.text.matches("bar.sync").count(), 1);
    // Vectors are there before the loop.
    let at = |what: &str| ptx.text.rfind(what).unwrap();
    assert!(at("ld.global") < at("wgmma.mma_async"));
    assert!(!ptx.text.contains("setmaxnreg"));
}

/// The producer copies what the kernel before has written.
#[test]
fn both_roles_of_a_kernel_that_starts_early_wait_for_the_one_before() {
    let ptx = compiled(&[("stages(8)", "stages(8) early")]);
    assert!(ptx.persistent && ptx.waits_for_predecessor());
    let at = |what: &str| ptx.text.find(what).unwrap();
    assert!(
        at("bar.sync") < at("griddepcontrol.wait") && at("griddepcontrol.wait") < at("cp.async.bulk.tensor")
    );
    assert_eq!(ptx.text.matches("griddepcontrol.wait").count(), 1);
}

/// Two groups take the place of two blocks of a multiprocessor, or of one that is alone there.
#[test]
fn two_groups_take_turns_where_both_fit() {
    let block = |rows: u32, columns: u32, warps: u32, stages: Option<u32>, change: (&str, &str)| {
        let ptx = compile_ptx(
            &product(rows, columns, warps, stages, change),
            Target::Sm90a,
            &PtxOptions::default(),
        );
        let ptx = ptx.unwrap();
        let changes = ptx.text.contains("setmaxnreg");
        (ptx.persistent, ptx.threads, changes)
    };
    let same = ("", "");
    // Of 64 x 64 there is room for three blocks.
    assert_eq!(block(64, 64, 4, None, same), (false, 128, false));
    assert_eq!(block(64, 128, 4, None, same), (true, 384, false));
    assert_eq!(block(128, 128, 4, None, same), (true, 384, true));
    assert_eq!(block(64, 256, 4, Some(6), same), (true, 384, true));
    // Eight warps multiply one block together.
    assert_eq!(block(128, 256, 8, None, same), (true, 384, true));
    // Sums that change places need all of 64 KiB of scratch memory.
    let gathered = (
        "store %z, %at, %sum",
        "%last = const 255 : tile<64x256xi32>  %back = map sub %last, %f  %g = gather %sum, %back axis 1
         store %z, %at, %g",
    );
    assert_eq!(block(64, 256, 4, Some(6), gathered), (true, 256, false));
}

/// A second loop over the same rows and columns, so much of them at a time, before the vector is loaded.
fn twice(depth: u32) -> String {
    format!(
        "%by = const {depth} : i32  %t = range 0 {depth}
         %more = for %m in %none..%end step %by with (%all = %sum) {{
           %ms = splat %m [{depth}]  %deep = map add %ms, %t  %deeps = expand_dims %deep axis 0
           %a2 = broadcast %down [64, {depth}]  %e2 = broadcast %deeps [64, {depth}]
           %at_x2 = map add %a2, %e2  %u2 = load %x, %at_x2
           %d2 = broadcast %c [{depth}, 64]  %down3 = expand_dims %deep axis 1
           %f2 = broadcast %down3 [{depth}, 64]  %at_y2 = map add %d2, %f2
           %v2 = load %y, %at_y2  %next2 = dot %u2, %v2, %all
           yield %next2
         }}
         %bias = load %b, %r"
    )
}

#[test]
fn loops_share_stages() {
    let more = twice(64);
    let ptx = compiled(&[("%bias = load %b, %r", &more), ("add %sum, %bb", "add %more, %bb")]);
    assert!(ptx.persistent);
    assert_eq!(ptx.text.matches("mbarrier.try_wait").count(), 4);
    assert_eq!(ptx.text.matches("mbarrier.init").count(), 2 * 8);
}

#[test]
fn instances_along_several_axes_are_numbered_as_one() {
    let ptx = compiled(&[("%id = program_id 0", "%id = program_id 1")]);
    assert!(ptx.persistent);
    assert!(ptx.text.contains("nctaid.x") && !ptx.text.contains("ctaid.y"), "{}", ptx.text);
}

/// An iteration of a large block takes long.
#[test]
fn copies_of_few_iterations_have_a_producer_where_blocks_are_large() {
    let persistent = |[rows, columns]: [u32; 2], iterations: u32| {
        let end = format!("%end = const {} : i32", 64 * iterations);
        let mut program = product(rows, columns, 4, Some(8), ("%end = const 2048 : i32", &end));
        program.early = true;
        compile_ptx(&program, Target::Sm90a, &PtxOptions::default()).unwrap().persistent
    };
    assert_eq!([8, 12, 16].map(|n| persistent([64, 64], n)), [false, false, true]);
    assert_eq!([4, 7, 8, 12].map(|n| persistent([128, 128], n)), [false, false, true, true]);
}

#[test]
fn some_programs_start_the_copies_where_they_compute() {
    let in_memory = ("%end = const 2048 : i32", "%end = load %n, %none");
    let other = twice(32);
    let chosen = (
        "%wide = const",
        "%one = load %n, %none  %some = map lt %none, %one
         %w = if %some { yield %step } else { yield %none }
         store %n, %none, %w  %wide = const",
    );
    let in_branch = [
        ("%sum = for", "%few = map lt %id, %step  %sum = if %few { %part = for"),
        ("yield %next\n  }", "yield %next\n  }\n  yield %part } else { yield %zero }"),
    ];
    let reasons = [
        reason(&in_branch),
        reason(&[("%bias = load", "print \"id\" %id  %bias = load")]),
        reason(&[("%bias = load %b, %r", &other), ("add %sum, %bb", "add %more, %bb")]),
        reason(&[("%sum = for", "store %n, %none, %id  %sum = for")]),
        reason(&[in_memory]),
        reason(&[("for %k in %none..", "for %k in %first..")]),
        reason(&[chosen]),
        reason(&[("warps(4)", "warps(16)")]),
        reason(&[("stages(8)", "stages(4)")]),
    ];
    expect_test::expect![[r#"
        the loop runs in some instances alone
        instances meet in memory, or print
        another loop loads other operands ahead; another loop loads other operands ahead
        memory is written before the loop
        what is loaded follows from memory
        some instances take longer than others, and are spread evenly as they come
        a condition follows from memory
        neither four nor eight warps compute
        a multiprocessor has room for several instances"#]]
    .assert_eq(&reasons.join("\n"));
}
