//! The code of one thread, run on this machine by as many threads as a block has.
//!
//! What is tested is the code before LLVM turns it into PTX: layouts, shuffles, shared memory, barriers, masks. The
//! instructions that only a GPU has become functions: accesses in inline assembly become branches around plain ones,
//! shuffles and barriers wait for the other threads.

mod atomic;
mod boxes;
mod matrix;
mod mbarrier;
mod print;
mod warpgroup;

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, Once};

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::execution_engine::ExecutionEngine;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{CodeModel, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine};
use mbarrier::Mbarriers;
use tilefuse_block::{Kind, Program};
use tilefuse_codegen::ptx::Ptx;

/// The threads of a cluster of blocks.
struct Block {
    /// Of the cluster.
    all: Barrier,
    /// Of each block.
    blocks: Vec<Barrier>,
    /// Of some threads of each block, by the block and the barrier's number.
    named: Mutex<HashMap<(u32, u32), Arc<NamedBarrier>>>,
    mbarriers: Mbarriers,
    warps: Vec<Warp>,
    instance: [u32; 3],
    grid: [u32; 3],
    /// What was printed.
    lines: Mutex<Vec<String>>,
    /// What an assertion said that failed.
    failed: Mutex<Option<String>>,
    /// What the threads of each block vote for.
    votes: Vec<AtomicU32>,
    /// Threads of one block.
    threads: u32,
    /// Where each block's shared memory for reductions is.
    shared: Vec<u64>,
}

/// A barrier of some threads, of which some may only arrive.
struct NamedBarrier {
    threads: u32,
    /// Arrivals of the present phase, and its number.
    state: Mutex<(u32, u64)>,
    changed: Condvar,
}

impl NamedBarrier {
    /// Arrives; the phase that this was in.
    fn arrive(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
        let phase = state.1;
        state.0 += 1;
        if state.0 == self.threads {
            *state = (0, phase + 1);
            self.changed.notify_all();
        }
        phase
    }

    fn wait(&self) {
        let phase = self.arrive();
        let mut state = self.state.lock().unwrap();
        while state.1 == phase {
            let (next, timeout) = self.changed.wait_timeout(state, mbarrier::PATIENCE).unwrap();
            assert!(!timeout.timed_out(), "threads wait at a barrier for each other");
            state = next;
        }
    }
}

struct Warp {
    together: Barrier,
    values: [AtomicU32; 32],
    /// What each lane gives of the operands of a product, or the address that it reads at.
    parts: [[AtomicU64; 10]; 32],
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
    static BLOCK: Cell<*const Block> = const { Cell::new(std::ptr::null()) };
}

fn block() -> &'static Block {
    // SAFETY: set before the kernel's code runs on this thread, and alive until all threads have ended.
    unsafe { &*BLOCK.get() }
}

extern "C" fn thread_index() -> u32 {
    THREAD.get() % block().threads
}

extern "C" fn rank() -> u32 {
    THREAD.get() / block().threads
}

/// The address in another block's shared memory that corresponds to one in this block's.
extern "C" fn remote(address: u64, other: u32) -> u64 {
    let shared = &block().shared;
    address - shared[rank() as usize] + shared[other as usize]
}

extern "C" fn block_x() -> u32 {
    block().instance[0]
}

extern "C" fn block_y() -> u32 {
    block().instance[1]
}

extern "C" fn block_z() -> u32 {
    block().instance[2]
}

extern "C" fn barrier(_: u32) {
    block().blocks[rank() as usize].wait();
}

/// A barrier of so many threads of the block.
fn named(number: u32, threads: u32) -> Arc<NamedBarrier> {
    let make = || Arc::new(NamedBarrier { threads, state: Mutex::default(), changed: Condvar::new() });
    let barrier = block().named.lock().unwrap().entry((rank(), number)).or_insert_with(make).clone();
    assert_eq!(barrier.threads, threads, "threads of barrier {number}");
    barrier
}

/// Waits for so many threads of the block at a barrier of their own.
extern "C" fn named_barrier(number: u32, threads: u32) {
    named(number, threads).wait();
}

/// Arrives there.
extern "C" fn named_arrival(number: u32, threads: u32) {
    named(number, threads).arrive();
}

/// Whether one thread of the block says so.
extern "C" fn vote(yes: u32) -> u32 {
    let (barrier, votes) = (&block().blocks[rank() as usize], &block().votes[rank() as usize]);
    votes.fetch_or(yes, Ordering::SeqCst);
    barrier.wait();
    let result = votes.load(Ordering::SeqCst);
    if barrier.wait().is_leader() {
        votes.store(0, Ordering::SeqCst);
    }
    barrier.wait();
    result
}

extern "C" fn grid_x() -> u32 {
    block().grid[0]
}

extern "C" fn grid_y() -> u32 {
    block().grid[1]
}

extern "C" fn grid_z() -> u32 {
    block().grid[2]
}

extern "C" fn cluster_arrive() {}

extern "C" fn cluster_wait() {
    block().all.wait();
}

/// What all lanes of the warp give.
fn together(mine: &[u64]) -> Vec<[u64; 10]> {
    let warp = &block().warps[(THREAD.get() / 32) as usize];
    for (slot, &word) in warp.parts[(THREAD.get() % 32) as usize].iter().zip(mine) {
        slot.store(word, Ordering::SeqCst);
    }
    warp.together.wait();
    let all = warp.parts.iter().map(|lane| std::array::from_fn(|i| lane[i].load(Ordering::SeqCst))).collect();
    warp.together.wait();
    all
}

fn value_of_lane(value: u32, from: u32) -> u32 {
    let lane = THREAD.get() % 32;
    let warp = &block().warps[(THREAD.get() / 32) as usize];
    warp.values[lane as usize].store(value, Ordering::SeqCst);
    warp.together.wait();
    let other = warp.values[(from % 32) as usize].load(Ordering::SeqCst);
    warp.together.wait();
    other
}

extern "C" fn shuffle(_: u32, value: u32, lanes: u32, _: u32) -> u32 {
    value_of_lane(value, (THREAD.get() % 32) ^ lanes)
}

extern "C" fn shuffle_from(_: u32, value: u32, lane: u32, _: u32) -> u32 {
    value_of_lane(value, lane)
}

extern "C" fn exp2(x: f32) -> f32 {
    x.exp2()
}

extern "C" fn reciprocal(x: f32) -> f32 {
    1.0 / x
}

/// The functions of this program that the code calls.
fn functions() -> Vec<(&'static str, usize)> {
    vec![
        ("emulated_nx", grid_x as *const () as usize),
        ("emulated_ny", grid_y as *const () as usize),
        ("emulated_nz", grid_z as *const () as usize),
        ("emulated_print", print::print as *const () as usize),
        ("emulated_fail", print::fail as *const () as usize),
        ("emulated_product", matrix::multiply as *const () as usize),
        ("emulated_matrices", matrix::load as *const () as usize),
        ("emulated_tf32", matrix::tf32 as *const () as usize),
        ("emulated_warpgroups", warpgroup::multiply as *const () as usize),
        ("emulated_products", warpgroup::wait as *const () as usize),
        ("emulated_box", boxes::copy as *const () as usize),
        ("emulated_vote", vote as *const () as usize),
        ("emulated_shuffle_from", shuffle_from as *const () as usize),
        ("emulated_tid", thread_index as *const () as usize),
        ("emulated_x", block_x as *const () as usize),
        ("emulated_y", block_y as *const () as usize),
        ("emulated_z", block_z as *const () as usize),
        ("emulated_barrier", barrier as *const () as usize),
        ("emulated_named_barrier", named_barrier as *const () as usize),
        ("emulated_named_arrival", named_arrival as *const () as usize),
        ("emulated_mbarrier_init", mbarrier::init as *const () as usize),
        ("emulated_mbarrier_arrive", mbarrier::arrive as *const () as usize),
        ("emulated_mbarrier_wait", mbarrier::wait as *const () as usize),
        ("emulated_rank", rank as *const () as usize),
        ("emulated_remote", remote as *const () as usize),
        ("emulated_cluster_arrive", cluster_arrive as *const () as usize),
        ("emulated_cluster_begin", cluster_arrive as *const () as usize),
        ("emulated_cluster_wait", cluster_wait as *const () as usize),
        ("emulated_shuffle", shuffle as *const () as usize),
        ("emulated_exp2", exp2 as *const () as usize),
        ("emulated_exp2_ftz", exp2 as *const () as usize),
        ("emulated_reciprocal", reciprocal as *const () as usize),
    ]
}

/// Rounding to `bfloat`, under the name by which generated code calls it.
const BF16: &str = "define bfloat @__truncsfbf2(float %x) {
  %b = bitcast float %x to i32
  %s = lshr i32 %b, 16
  %odd = and i32 %s, 1
  %bias = add i32 %odd, 32767
  %sum = add i32 %b, %bias
  %r = lshr i32 %sum, 16
  %nan = fcmp uno float %x, 0.0
  %bits = select i1 %nan, i32 32704, i32 %r
  %h = trunc i32 %bits to i16
  %y = bitcast i16 %h to bfloat
  ret bfloat %y
}
";

/// Adds one to an element of shared memory.
const COUNT: &str = "define internal void @emulated_count(ptr addrspace(3) %p, i1 %m) {
  br i1 %m, label %go, label %end
go:
  %old = atomicrmw add ptr addrspace(3) %p, i32 1 seq_cst
  br label %end
end:
  ret void
}
";

/// Asynchronous copies have happened when others wait for them.
const COPIES: &str = "declare void @llvm.memset.p3.i64(ptr addrspace(3), i8, i64, i1)
declare void @llvm.memcpy.p3.p1.i32(ptr addrspace(3), ptr addrspace(1), i32, i1)
define internal void @emulated_copies_commit.group() {
  ret void
}
define internal void @emulated_copies_wait.group(i32 %n) {
  ret void
}
";

/// A barrier that tells whether one thread says so.
const VOTE: &str = "declare i32 @emulated_vote(i32)
define internal i1 @emulated_any(i32 %barrier, i1 %yes) {
  %word = zext i1 %yes to i32
  %all = call i32 @emulated_vote(i32 %word)
  %any = icmp ne i32 %all, 0
  ret i1 %any
}
";

type Entry = extern "C" fn(*const u64);

/// Blocks of a kernel that compute one instance after another.
const PERSISTENT_BLOCKS: u32 = 2;

/// Runs a kernel, given as the LLVM IR of one thread, with arguments as a launch has them.
pub(crate) fn run(
    program: &Program,
    ir: &str,
    ptx: &Ptx,
    grid: [u32; 3],
    args: &[u64],
) -> Result<Vec<String>, String> {
    let Ptx { threads, cluster, tensor_maps, persistent, .. } = ptx;
    let (threads, cluster) = (*threads, *cluster);
    let maps: Vec<boxes::Map> = tensor_maps.iter().map(|map| boxes::Map::new(map, args)).collect();
    let maps = maps.iter().map(|map| std::ptr::from_ref(map) as u64);
    let extents = grid.into_iter().filter(|_| *persistent).map(u64::from);
    let args: Vec<u64> = args.iter().copied().chain(maps).chain(extents).collect();
    let grid = if *persistent { [grid.iter().product::<u32>().min(PERSISTENT_BLOCKS), 1, 1] } else { grid };
    static START: Once = Once::new();
    START.call_once(|| LlvmTarget::initialize_x86(&InitializationConfig::default()));
    let contexts: Vec<Context> = (0..cluster).map(|_| Context::create()).collect();
    let engines = contexts.iter().map(|c| compile(program, ir, c)).collect::<Result<Vec<_>, _>>()?;
    let address = |name: &str| -> Result<Vec<usize>, String> {
        engines.iter().map(|e| e.get_function_address(name).map_err(|e| e.to_string())).collect()
    };
    // SAFETY: the wrappers have these signatures.
    let entries: Vec<Entry> =
        address("emulated_entry")?.into_iter().map(|a| unsafe { std::mem::transmute(a) }).collect();
    let shared = address("emulated_shared")?.into_iter().map(|a| {
        // SAFETY: as above.
        let shared: extern "C" fn() -> u64 = unsafe { std::mem::transmute(a) };
        shared()
    });
    let shared: Vec<u64> = shared.collect();
    let mut lines = Vec::new();
    for instance in
        (0..grid[2]).flat_map(|z| (0..grid[1]).flat_map(move |y| (0..grid[0]).map(move |x| [x, y, z])))
    {
        lines.extend(run_block(&entries, &shared, threads, [instance, grid], &args)?);
    }
    Ok(lines)
}

/// The code of one block: each has shared memory of its own.
fn compile<'c>(program: &Program, ir: &str, context: &'c Context) -> Result<ExecutionEngine<'c>, String> {
    let text = rewrite(program, ir);
    let buffer = MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "emulated");
    let module = context.create_module_from_ir(buffer).map_err(|e| format!("{e}\n{text}"))?;
    let triple = TargetMachine::get_default_triple();
    let target = LlvmTarget::from_triple(&triple).map_err(|e| e.to_string())?;
    // This extension rounds denormals to zero.
    let features = TargetMachine::get_host_cpu_features().to_string().replace("+avx512bf16", "-avx512bf16");
    let cpu = TargetMachine::get_host_cpu_name();
    let machine = target
        .create_target_machine(
            &triple,
            &cpu.to_string(),
            &features,
            OptimizationLevel::Less,
            RelocMode::PIC,
            CodeModel::JITDefault,
        )
        .ok_or("no target machine")?;
    module.set_triple(&triple);
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    let features = [("target-cpu", cpu.to_string()), ("target-features", features)];
    for function in module.get_functions() {
        for (key, value) in &features {
            let attribute = context.create_string_attribute(key, value);
            function.add_attribute(inkwell::attributes::AttributeLoc::Function, attribute);
        }
    }
    let engine = module.create_jit_execution_engine(OptimizationLevel::None).map_err(|e| e.to_string())?;
    for (name, address) in functions() {
        if let Some(function) = module.get_function(name) {
            engine.add_global_mapping(&function, address);
        }
    }
    Ok(engine)
}

/// Runs one instance and returns what it prints.
fn run_block(
    entries: &[Entry],
    shared: &[u64],
    threads: u32,
    [instance, grid]: [[u32; 3]; 2],
    args: &[u64],
) -> Result<Vec<String>, String> {
    let warp = || Warp {
        together: Barrier::new(32),
        values: [const { AtomicU32::new(0) }; 32],
        parts: [const { [const { AtomicU64::new(0) }; 10] }; 32],
    };
    let all = threads * entries.len() as u32;
    let block = Block {
        all: Barrier::new(all as usize),
        blocks: entries.iter().map(|_| Barrier::new(threads as usize)).collect(),
        named: Mutex::default(),
        mbarriers: Mbarriers::default(),
        warps: (0..all / 32).map(|_| warp()).collect(),
        instance,
        grid,
        lines: Mutex::default(),
        failed: Mutex::default(),
        votes: entries.iter().map(|_| AtomicU32::new(0)).collect(),
        threads,
        shared: shared.to_vec(),
    };
    let running = &block;
    std::thread::scope(|scope| {
        for thread in 0..all {
            let entry = entries[(thread / threads) as usize];
            let run = move || {
                THREAD.set(thread);
                BLOCK.set(running);
                entry(args.as_ptr());
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, run).unwrap();
        }
    });
    match block.failed.into_inner().unwrap() {
        Some(message) => Err(format!("assertion failed: {message}")),
        None => Ok(block.lines.into_inner().unwrap()),
    }
}

/// Puts functions in the place of what only a GPU has, and adds a wrapper that unpacks the arguments.
fn rewrite(program: &Program, ir: &str) -> String {
    let mut out = String::new();
    let mut helpers = std::collections::BTreeSet::new();
    for line in ir.lines() {
        // The replacements below declare what they need.
        if line.starts_with("declare")
            && ["imum", ".red.or.", "ldmatrix", "cp.async"].iter().any(|name| line.contains(name))
        {
            continue;
        }
        // Products of warpgroups happen at once, and nothing ran before.
        let absent = [
            "@llvm.nvvm.wgmma.fence",
            "@llvm.nvvm.wgmma.commit",
            "fence.proxy.async",
            "fence.mbarrier_init",
            "griddepcontrol.",
            "@llvm.nvvm.setmaxnreg.",
        ];
        if absent.iter().any(|name| line.contains(name)) {
            continue;
        }
        let line = line
            .replace("@llvm.maximumnum.", "@emulated_maximum_")
            .replace("@llvm.minimumnum.", "@emulated_minimum_")
            .replace("@llvm.nvvm.read.ptx.sreg.tid.x", "@emulated_tid")
            .replace("@llvm.nvvm.read.ptx.sreg.ctaid.", "@emulated_")
            .replace("@llvm.nvvm.read.ptx.sreg.clusterid.", "@emulated_")
            .replace("@llvm.nvvm.read.ptx.sreg.nctaid.", "@emulated_n")
            .replace("@llvm.nvvm.read.ptx.sreg.nclusterid.", "@emulated_n")
            .replace("@llvm.nvvm.shfl.sync.idx.i32", "@emulated_shuffle_from")
            .replace("@llvm.nvvm.cp.async.", "@emulated_copies_")
            .replace("@vprintf", "@emulated_print")
            .replace("@__assertfail", "@emulated_fail")
            .replace("@llvm.nvvm.f2tf32.rna", "@emulated_tf32")
            .replace("@llvm.nvvm.ldmatrix.sync.aligned.m8n8.", "@emulated_ldmatrix_")
            .replace("@llvm.nvvm.barrier.cta.red.or.aligned.all", "@emulated_any")
            .replace("@llvm.nvvm.read.ptx.sreg.cluster.ctarank", "@emulated_rank")
            .replace("@llvm.nvvm.barrier.cluster.arrive.relaxed.aligned", "@emulated_cluster_begin")
            .replace("@llvm.nvvm.barrier.cluster.arrive.aligned", "@emulated_cluster_arrive")
            .replace("@llvm.nvvm.barrier.cluster.wait.aligned", "@emulated_cluster_wait")
            .replace("@llvm.nvvm.barrier.cta.sync.aligned.all", "@emulated_barrier")
            .replace("@llvm.nvvm.barrier.cta.sync.aligned.count", "@emulated_named_barrier")
            .replace("@llvm.nvvm.barrier.cta.arrive.aligned.count", "@emulated_named_arrival")
            .replace("@llvm.nvvm.wgmma.wait_group.sync.aligned", "@emulated_products")
            .replace("@llvm.nvvm.shfl.sync.bfly.i32", "@emulated_shuffle")
            .replace("@llvm.nvvm.ex2.approx.ftz.f", "@emulated_exp2_ftz")
            .replace("@llvm.nvvm.ex2.approx.f", "@emulated_exp2")
            .replace("@llvm.nvvm.rcp.approx.ftz.f", "@emulated_reciprocal")
            .replace("define ptx_kernel void", "define void")
            .replace(
                "external addrspace(3) global [0 x i8]",
                "internal addrspace(3) global [262144 x i8] undef",
            );
        match line.split_once(" asm ") {
            Some((call, rest)) => {
                let (name, helper) = access(rest);
                helpers.insert(helper);
                let operands = rest.split_once("\"(").map_or("", |(_, o)| o);
                let operands = operands.split(") nounwind").next().unwrap_or("");
                let _ = writeln!(out, "{call} @{name}({})", without_element_types(operands));
            }
            None => {
                out.push_str(&line);
                out.push('\n');
            }
        }
    }
    out.push_str(BF16);
    out.push_str(VOTE);
    out.push_str(&matrix::helpers());
    out.push_str("declare void @emulated_warpgroups(i64, i64, i64, i32, i32, ptr, ptr)\n");
    out.push_str("declare void @emulated_box(i64, ptr, ptr, i64)\n");
    for name in ["init", "arrive", "wait"] {
        let _ = writeln!(out, "declare void @emulated_mbarrier_{name}(i64, i32)");
    }
    for name in ["maximum", "minimum"] {
        out.push_str(&number_of(name, "float", "f32"));
        out.push_str(&number_of(name, "double", "f64"));
    }
    helpers.iter().for_each(|helper| out.push_str(helper));
    out.push_str(&wrapper(program, ir));
    out.push_str(COPIES);
    let shared = if out.contains("@tilefuse_reduce =") { "@tilefuse_reduce" } else { "null" };
    let _ = writeln!(
        out,
        "declare i64 @emulated_remote(i64, i32)\ndefine i64 @emulated_shared() {{\n  \
         ret i64 ptrtoint (ptr addrspace(3) {shared} to i64)\n}}"
    );
    out
}

/// The operands of inline assembly as those of a function.
fn without_element_types(operands: &str) -> String {
    let Some((before, after)) = operands.split_once("elementtype(") else { return operands.to_owned() };
    let rest = after.split_once(") ").map_or("", |(_, rest)| rest);
    format!("{before}{}", without_element_types(rest))
}

/// `llvm.maximumnum` and `llvm.minimumnum`, which LLVM 22 gets wrong on hosts with AVX-512 where it can tell that one
/// operand is not NaN.
fn number_of(name: &str, ty: &str, suffix: &str) -> String {
    format!(
        "declare {ty} @llvm.{name}.{suffix}({ty}, {ty})
define internal {ty} @emulated_{name}_{suffix}({ty} %a, {ty} %b) {{
  %both = call {ty} @llvm.{name}.{suffix}({ty} %a, {ty} %b)
  %nan_a = fcmp uno {ty} %a, 0.0
  %nan_b = fcmp uno {ty} %b, 0.0
  %no_b = select i1 %nan_b, {ty} %a, {ty} %both
  %r = select i1 %nan_a, {ty} %b, {ty} %no_b
  ret {ty} %r
}}
"
    )
}

/// The function that stands for an access in inline assembly.
fn access(rest: &str) -> (String, String) {
    let text = rest.split('"').nth(1).unwrap_or_default();
    if text.starts_with("mov.b16") {
        let same = "define internal i16 @emulated_same(i16 %a) {\n  ret i16 %a\n}\n";
        return ("emulated_same".to_owned(), same.to_owned());
    }
    if text.contains("mapa") {
        return remote_access(text);
    }
    if let Some(helper) = warpgroup::product(text).or_else(|| warpgroup::identity(rest)) {
        return helper;
    }
    if let Some(helper) = matrix::product(text).or_else(|| atomic::helper(text)) {
        return helper;
    }
    if let Some(helper) = mbarrier::helper(text).or_else(|| boxes::helper(text)).or_else(|| copy(text)) {
        return helper;
    }
    if text.contains("red.shared.add.u32") {
        return ("emulated_count".to_owned(), COUNT.to_owned());
    }
    let instruction = text.split(' ').nth(1).unwrap_or_default();
    let parts: Vec<&str> = instruction.split('.').collect();
    let space = if parts[1] == "global" { 1 } else { 3 };
    let count: usize = parts[2].strip_prefix('v').map_or(1, |n| n.parse().unwrap());
    let bits: u32 = parts[parts.len() - 1][1..].parse().unwrap();
    let word = format!("i{}", if bits == 8 { 32 } else { bits });
    let name = format!("emulated_{}", instruction.replace('.', "_"));
    let mut body = String::new();
    let pointer = format!("ptr addrspace({space})");
    let at = |body: &mut String, i: usize| {
        let _ = writeln!(body, "  %a{i} = getelementptr i{bits}, {pointer} %p, i64 {i}");
    };
    let align = bits / 8 * count as u32;
    let words =
        |prefix: &str| (0..count).map(|i| format!("{word} %{prefix}{i}")).collect::<Vec<_>>().join(", ");
    if parts[0] == "st" {
        for i in 0..count {
            at(&mut body, i);
            let _ = match bits {
                8 => writeln!(body, "  %b = trunc i32 %w0 to i8\n  store i8 %b, {pointer} %a0, align 1"),
                _ => writeln!(body, "  store {word} %w{i}, {pointer} %a{i}, align {}", bits / 8),
            };
        }
        let check = aligned(&pointer, align);
        let words = words("w");
        let function = format!(
            "define internal void @{name}({pointer} %p, {words}, i1 %m) {{\n  br i1 %m, label %go, label %end\ngo:\n\
             {check}{body}  br label %end\nend:\n  ret void\n}}\n"
        );
        return (name, function);
    }
    let result =
        if count == 1 { word.clone() } else { format!("{{ {} }}", vec![word.clone(); count].join(", ")) };
    let gather = |prefix: &str| {
        if count == 1 {
            return format!("  ret {word} %{prefix}0\n");
        }
        let mut text = String::new();
        let mut last = "poison".to_owned();
        for i in 0..count {
            let _ = writeln!(text, "  %{prefix}s{i} = insertvalue {result} {last}, {word} %{prefix}{i}, {i}");
            last = format!("%{prefix}s{i}");
        }
        text + &format!("  ret {result} {last}\n")
    };
    for i in 0..count {
        at(&mut body, i);
        let _ = match bits {
            8 => writeln!(body, "  %b = load i8, {pointer} %a0, align 1\n  %l0 = zext i8 %b to i32"),
            _ => writeln!(body, "  %l{i} = load {word}, {pointer} %a{i}, align {}", bits / 8),
        };
    }
    let function = format!(
        "define internal {result} @{name}({pointer} %p, i1 %m, {}) {{\n  br i1 %m, label %go, label %not\ngo:\n\
         {}{body}{}not:\n{}}}\n",
        words("w"),
        aligned(&pointer, align),
        gather("l"),
        gather("w")
    );
    (name, function)
}

/// The function that stands for an asynchronous copy, which happens at once.
fn copy(text: &str) -> Option<(String, String)> {
    let bytes = text.strip_prefix("cp.async.")?.split(", ").nth(2)?;
    let name = format!("emulated_copy_{bytes}");
    let pointers = "ptr addrspace(3) %to, ptr addrspace(1) %from";
    let check = aligned("ptr addrspace(1)", bytes.parse().ok()?).replace("%p", "%from");
    let function = format!(
        "define internal void @{name}({pointers}, i32 %size) {{\n{check}  \
         call void @llvm.memset.p3.i64(ptr addrspace(3) %to, i8 0, i64 {bytes}, i1 false)\n  \
         call void @llvm.memcpy.p3.p1.i32(ptr addrspace(3) %to, ptr addrspace(1) %from, i32 %size, i1 false)\n  \
         ret void\n}}\n"
    );
    Some((name, function))
}

/// The function that stands for a store to another block's shared memory.
fn remote_access(text: &str) -> (String, String) {
    let block = text.split("at, at, ").nth(1).and_then(|t| t.split(';').next()).unwrap_or_default();
    let bits =
        text.split("st.shared::cluster.b").nth(1).and_then(|t| t.split(' ').next()).unwrap_or_default();
    let word = format!("i{}", if bits == "8" { "32" } else { bits });
    let name = format!("emulated_remote_b{bits}_{block}");
    let narrow = if bits == "8" { "%n = trunc i32 %w to i8" } else { "" };
    let stored = if bits == "8" { "i8 %n".to_owned() } else { format!("{word} %w") };
    let function = format!(
        "define internal void @{name}(ptr addrspace(3) %p, {word} %w, i1 %m) {{\n  br i1 %m, label %go, label %end\ngo:\n  \
         %a = ptrtoint ptr addrspace(3) %p to i64\n  %t = call i64 @emulated_remote(i64 %a, i32 {block})\n  \
         %q = inttoptr i64 %t to ptr\n  {narrow}\n  store {stored}, ptr %q\n  br label %end\nend:\n  ret void\n}}\n"
    );
    (name, function)
}

/// Stops the program where an address is not a multiple of `align`, as a GPU would.
fn aligned(pointer: &str, align: u32) -> String {
    format!(
        "  %n = ptrtoint {pointer} %p to i64\n  %low = and i64 %n, {}\n  %good = icmp eq i64 %low, 0\n  \
         br i1 %good, label %do, label %bad\nbad:\n  call void @llvm.trap()\n  unreachable\ndo:\n",
        align - 1
    )
}

/// `emulated_entry(args)`, which calls the kernel with the arguments that `args` points to.
fn wrapper(program: &Program, ir: &str) -> String {
    let name = ir.split("define ptx_kernel void @").nth(1).and_then(|rest| rest.split('(').next()).unwrap();
    let mut body = String::new();
    let mut params = Vec::new();
    for (i, param) in program.params.iter().enumerate() {
        let ty = match program.ty(param.value).kind {
            Kind::Ptr(_) => "ptr addrspace(1)".to_owned(),
            Kind::Elem(e) => match e.name() {
                "bool" | "u8" | "i8" => "i8".to_owned(),
                "f16" => "half".to_owned(),
                "bf16" => "bfloat".to_owned(),
                "f32" => "float".to_owned(),
                "f64" => "double".to_owned(),
                _ => format!("i{}", e.bits()),
            },
        };
        let _ =
            writeln!(body, "  %a{i} = getelementptr i64, ptr %args, i64 {i}\n  %p{i} = load {ty}, ptr %a{i}");
        params.push(format!("{ty} %p{i}"));
    }
    let head = ir.lines().find(|line| line.starts_with("define ptx_kernel")).unwrap_or_default();
    let maps = head.matches("byval").count();
    for j in 0..maps {
        let at = program.params.len() + j;
        let _ =
            writeln!(body, "  %b{j} = getelementptr i64, ptr %args, i64 {at}\n  %m{j} = load ptr, ptr %b{j}");
        params.push(format!("ptr byval([128 x i8]) align 64 %m{j}"));
    }
    let extents = head.split("i32 ").filter(|part| part.starts_with("%instances"));
    for (at, name) in (program.params.len() + maps..).zip(extents) {
        let name = name.split([',', ')']).next().unwrap_or_default();
        let _ = writeln!(
            body,
            "  {name}_at = getelementptr i64, ptr %args, i64 {at}\n  {name} = load i32, ptr {name}_at"
        );
        params.push(format!("i32 {name}"));
    }
    format!(
        "declare void @llvm.trap()\ndefine void @emulated_entry(ptr %args) {{\n{body}  call void @{name}({})\n  ret void\n}}\n",
        params.join(", ")
    )
}
