//! PTX from block programs, through LLVM.
//!
//! Each thread of a block holds its part of every tile in registers; [`crate::layout`] says which. Loads and stores
//! are up to 16 bytes wide, reductions go through registers, shuffles and shared memory in that order, and what one
//! operation has in another layout than the next wants goes through shared memory. Products are the matrix unit's, with
//! operands that loops load ahead of their use, some by a producer warpgroup. Where a tile is too large for one
//! block, a cluster of blocks holds it, and reductions exchange their parts through each other's shared memory.

mod assign;
mod assign_layouts;
mod atomic;
mod axis;
mod barrier;
mod cluster;
mod coalesce;
mod combine;
mod control;
mod convert_layout;
mod debug;
mod decisions;
mod dependent_launch;
mod dot;
mod errata;
mod fmod;
mod instructions;
mod ir;
mod llvm;
mod lower;
mod memory;
mod pairs;
mod partial;
mod passes;
mod pressure;
mod propagate;
mod rearrange;
mod reduce;
mod rotate;
mod scan;
mod shared;
mod shuffle;
mod software_pipeline;
mod target;
pub mod tensor_map;
mod uniform;
mod vector_convert;
mod vectorize;
mod version_loops;
mod warp_specialize;

use tilefuse_block::passes::{approximate, cse, dce, narrow, optimize, reorder_broadcast};
use tilefuse_block::{Elem, Kind, OpKind, Program, ScalarFn, expand_math_except, expand_operations, verify};

use crate::error::{Error, Result};
use crate::listing::{self, Listing};
use crate::stack::with_room;
use crate::stages::{KernelStages, Stages};
use crate::timing::{Stage as Timed, timed};
use assign::Assignment;
#[cfg(test)]
pub(crate) use ir::Ir;
use lower::{Loading, Lowered};
pub use passes::{Pass, after};
pub use target::{PtxVersion, Target};
use tensor_map::TensorMap;
use warp_specialize::Specialized;

/// Shared memory that a block may have without asking for more at the launch.
const STATIC_SHARED: u64 = 48 * 1024;

/// How to compile to PTX.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PtxOptions {
    /// The newest PTX that the driver takes; `None` if unknown.
    pub driver: Option<PtxVersion>,
}

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// The PTX.
    pub text: String,
    /// The kernel's name in it.
    pub name: String,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster, which run one instance together.
    pub cluster: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Maps of tensors that are parameters behind those of the program: each is encoded at the launch.
    pub tensor_maps: Vec<TensorMap>,
    /// Whether a block computes one instance after another, so that a launch takes as many blocks along the first axis alone
    /// as run at the same time. The numbers of instances along the three axes are parameters behind all others.
    pub persistent: bool,
    /// What it was compiled for.
    pub target: Target,
}

impl Ptx {
    /// Whether the kernel itself waits for the work before it on its stream, so that it may be started earlier.
    pub fn waits_for_predecessor(&self) -> bool {
        self.text.contains("griddepcontrol.wait;")
    }

    /// Whether threads have different numbers of registers.
    pub fn changes_registers(&self) -> bool {
        self.text.contains("setmaxnreg")
    }
}

/// Compiles a block program. One cluster of blocks, or one block, of the grid is one instance, or several where it is
/// [`Ptx::persistent`]; parameters are passed in order, pointers as 64-bit addresses, and behind them the [`Ptx::tensor_maps`].
pub fn compile_ptx(program: &Program, target: Target, options: &PtxOptions) -> Result<Ptx> {
    let version = target.ptx_version(options.driver)?;
    let stages = Stages::get().of(program);
    let edited = stages.program(program)?;
    let program = edited.as_ref().unwrap_or(program);
    with_room(program, || compile_one(program, target, version, &stages))
}

fn compile_one(
    program: &Program,
    target: Target,
    version: PtxVersion,
    stages: &KernelStages<'_>,
) -> Result<Ptx> {
    let program = &timed(Timed::Passes, || prepare(program))?;
    let plan = timed(Timed::Lowering, || fitting_plan(program, target))?;
    let mut module = timed(Timed::Lowering, || module_text(&plan, target, false))?;
    let stage = |form: &str| format!("{}.{form}", target.name());
    module.text = stages.text(&stage("ll"), &module.text)?.unwrap_or(module.text);
    let text = timed(Timed::Llvm, || llvm::compile(&module.text, target, version, false))?.1;
    let text = errata::avoid(&text);
    let text = stages.text(&stage("ptx"), &text)?.unwrap_or(text);
    Ok(Ptx {
        text,
        name: kernel_name(program),
        threads: module.threads,
        cluster: 1 << plan.cluster,
        shared_bytes: module.dynamic_shared as u32,
        tensor_maps: module.tensor_maps,
        persistent: module.persistent,
        target,
    })
}

/// The LLVM IR that [`compile_ptx`] makes of a program, before it is optimised; for people to read.
pub fn emit_llvm(program: &Program, target: Target) -> Result<String> {
    with_room(program, || {
        let program = &prepare(program)?;
        Ok(module_text(&fitting_plan(program, target)?, target, false)?.text)
    })
}

/// The code of a program line by line, with the operation that each line is of.
pub fn listing(program: &Program, target: Target, options: &PtxOptions) -> Result<Listing> {
    let version = target.ptx_version(options.driver)?;
    with_room(program, || {
        let program = &prepare(program)?;
        let module = module_text(&fitting_plan(program, target)?, target, true)?;
        let (ir, ptx) = llvm::compile(&module.text, target, version, true)?;
        Ok(Listing::new(&ir, &errata::avoid(&ptx)))
    })
}

/// The program, checked, in base functions, simplified, its loops versioned.
fn prepare(program: &Program) -> Result<Program> {
    let invalid = |message: String| Error::Invalid { program: program.name.clone(), message };
    verify(program).map_err(|e| invalid(e.to_string()))?;
    let mut program = program.clone();
    expand_operations(&mut program).map_err(|e| invalid(e.to_string()))?;
    approximate(&mut program);
    expand_math_except(&mut program, &is_native).map_err(|e| invalid(e.to_string()))?;
    optimize(&mut program).map_err(|e| invalid(e.to_string()))?;
    narrow(&mut program);
    reorder_broadcast(&mut program);
    version_loops::version_loops(&mut program);
    cse(&mut program);
    dce(&mut program);
    dependent_launch::hoist(&mut program);
    Ok(program)
}

/// What the unit for special functions computes.
fn is_native(function: ScalarFn, elem: Option<Elem>) -> bool {
    function.is_approximate() && elem == Some(Elem::F32)
}

/// Layouts for the number of warps that the program names, or for more where its tiles need them, in a cluster of
/// blocks where one is too small.
fn fitting_plan(program: &Program, target: Target) -> Result<Assignment<'_>> {
    let first = program.warps.clamp(1, 32).next_power_of_two().trailing_zeros();
    let clusters = target.has_clusters() && !needs_one_block(program);
    let one: Vec<(u32, u32)> = (first..=5).map(|warps| (warps, 0)).collect();
    let several = if clusters { cluster::shapes() } else { Vec::new() };
    // The sums of a product are worth all registers: the larger a warp's part, the less is read for it.
    let products = pressure::has_product(program);
    let mut least = (u64::MAX, 0);
    // A block is better than a cluster, and in a cluster fewer blocks are.
    for (sizes, comfort) in [(&one, true), (&one, false), (&several, false)] {
        for &(warps, cluster) in sizes {
            let plan = Assignment::new(program, target, warps, cluster);
            let (needed, limit) = (pressure::registers(&plan), pressure::limit(warps - cluster));
            if needed <= if comfort && !products { pressure::comfortable(warps - cluster) } else { limit } {
                return Ok(plan);
            }
            least = least.min((needed, limit));
        }
    }
    Err(Error::TileTooLarge {
        program: program.name.clone(),
        resource: "registers a thread",
        needed: least.0,
        limit: least.1,
    })
}

/// Whether a program has operations that the blocks of a cluster do not do together.
fn needs_one_block(program: &Program) -> bool {
    use OpKind::*;
    let mut found = false;
    program.walk(&mut |op| {
        let control = matches!(op.kind, For | If | While | ReduceWith { .. } | Scan { .. });
        let moves = matches!(op.kind, Join | Split | Gather { .. } | Histogram { .. } | Dot { .. });
        let effects = matches!(op.kind, Atomic { .. } | AtomicCas { .. } | Print { .. } | Assert { .. });
        found |= control || moves || effects;
    });
    found
}

struct Module {
    text: String,
    threads: u32,
    dynamic_shared: u64,
    tensor_maps: Vec<TensorMap>,
    persistent: bool,
}

/// The code of a program, whose loops load operands ahead where there is shared memory for it.
fn lowered<'a>(plan: &'a Assignment<'a>, target: Target, listing: bool) -> Result<Lowered> {
    let limit = target.max_shared();
    let ahead = plan.program.stages != Some(1);
    if ahead && let Some(lowered) = specialized(plan, target, listing)? {
        return Ok(lowered);
    }
    let loading = if ahead { Loading::Ahead } else { Loading::InOrder };
    let mut lowered = lower::lower(plan, target, (loading, None), listing)?;
    if lowered.shared.stages > 0 && lowered.shared.total() > limit {
        lowered = lower::lower(plan, target, (Loading::InOrder, None), listing)?;
    }
    let needed = needed(plan, &lowered);
    if needed > limit || lowered.shared.fixed() > STATIC_SHARED {
        let resource = "bytes of shared memory";
        return Err(Error::TileTooLarge { program: plan.program.name.clone(), resource, needed, limit });
    }
    Ok(lowered)
}

/// The code of a program in which a producer warpgroup loads, if it can be specialised so and has room for enough stages.
fn specialized<'a>(plan: &'a Assignment<'a>, target: Target, listing: bool) -> Result<Option<Lowered>> {
    let Some(Ok(specialized)) = Specialized::of(plan) else { return Ok(None) };
    for &groups in specialized.groups {
        if let Some(lowered) = specialized_for(plan, target, (&specialized, groups), listing)? {
            return Ok(Some(lowered));
        }
    }
    Ok(None)
}

/// The same with so many groups of threads that compute.
fn specialized_for<'a>(
    plan: &'a Assignment<'a>,
    target: Target,
    (specialized, groups): (&Specialized<'a>, u32),
    listing: bool,
) -> Result<Option<Lowered>> {
    let lowered =
        |division| lower::lower(plan, target, (Loading::Specialized(division), Some(specialized)), listing);
    let Some(most) = specialized.division(target, groups, plan.shared_align()) else { return Ok(None) };
    let first = lowered(most)?;
    if first.shared.fixed() > STATIC_SHARED {
        return Ok(None);
    }
    let other = needed(plan, &first) - first.shared.stages;
    Ok(match specialized.division(target, groups, other) {
        Some(division) if division == most => Some(first),
        Some(division) => Some(lowered(division)?),
        None => None,
    })
}

/// Shared memory in bytes; what lies before panels may leave some free.
fn needed(plan: &Assignment, lowered: &Lowered) -> u64 {
    lowered.shared.total() + plan.shared_align()
}

fn module_text<'a>(plan: &'a Assignment<'a>, target: Target, listing: bool) -> Result<Module> {
    let program = plan.program;
    let lowered = lowered(plan, target, listing)?;
    let (of_function, locations) = if listing { listing::metadata(&lowered.lines) } else { <_>::default() };
    let needed = needed(plan, &lowered);
    let align = plan.shared_align();
    // Static memory is simplest for the launch; what does not fit there is passed at the launch.
    let dynamic = needed > STATIC_SHARED;
    let mut globals = String::new();
    if lowered.shared.reduce > 0 {
        let shared = &lowered.shared;
        let bytes = (shared.groups - 1) * shared.reduce_of_group() + shared.reduce;
        globals +=
            &format!("@tilefuse_reduce = internal addrspace(3) global [{bytes} x i8] undef, align 16\n");
    }
    if dynamic {
        globals += &format!("@tilefuse_convert = external addrspace(3) global [0 x i8], align {align}\n");
    } else if lowered.shared.dynamic() > 0 {
        let bytes = lowered.shared.dynamic();
        globals += &format!(
            "@tilefuse_convert = internal addrspace(3) global [{bytes} x i8] undef, align {align}\n"
        );
    }
    if lowered.shared.barriers > 0 {
        let count = lowered.shared.barriers / 8;
        globals +=
            &format!("@tilefuse_mbarriers = internal addrspace(3) global [{count} x i64] undef, align 8\n");
    }
    let maps = 0..lowered.tensor_maps.len();
    let maps = maps.map(|i| format!("ptr byval([128 x i8]) align 64 \"nvvm.grid_constant\" %map{i}"));
    let params = program.params.iter().enumerate().map(|(i, p)| param(program, i, p));
    let specialized = matches!(lowered.loading, Loading::Specialized(_));
    let persistent = lowered.persistent;
    let instances = warp_specialize::INSTANCES.iter().filter(|_| persistent);
    let params: Vec<String> = params.chain(maps).chain(instances.map(|name| format!("i32 {name}"))).collect();
    let computing = lowered.loading.groups() << plan.block_bits();
    let threads = computing + if specialized { warp_specialize::PRODUCERS } else { 0 };
    let text = format!(
        "{globals}{}\ndefine ptx_kernel void @{}({}) #0{of_function} {{\nentry:\n{}{}}}\n\
         attributes #0 = {{ nounwind \"nvvm.reqntid\"=\"{},1,1\"{}{} }}\n\
         !0 = distinct !{{!0, !1}}\n!1 = !{{!\"llvm.loop.unroll.disable\"}}\n{locations}",
        lowered.outside,
        kernel_name(program),
        params.join(", "),
        if specialized { String::new() } else { cluster::thread_number(plan) },
        lowered.body,
        threads,
        cluster::attribute(plan),
        if specialized { " \"nvvm.minctasm\"=\"1\"".to_owned() } else { register_attribute(plan) },
    );
    let dynamic_shared = if dynamic { lowered.shared.dynamic() } else { 0 };
    Ok(Module { text, threads, dynamic_shared, tensor_maps: lowered.tensor_maps, persistent })
}

/// Products of products hold several tiles together: all registers that a block can have are theirs, for the assembler
/// would rather spill a few than give up a second block.
fn register_attribute(plan: &Assignment) -> String {
    match plan.reduces_products() {
        true => format!(" \"nvvm.maxnreg\"=\"{}\"", (65536u32 >> plan.block_bits()).min(255)),
        false => String::new(),
    }
}

fn param(program: &Program, index: usize, param: &tilefuse_block::Param) -> String {
    let t = match program.ty(param.value).kind {
        Kind::Ptr(_) => return format!("ptr addrspace(1) align {} %p{index}", param.align.max(1)),
        Kind::Elem(Elem::Bool) => "i8",
        Kind::Elem(e) => ir::ty(e),
    };
    format!("{t} %p{index}")
}

/// The program's name as a PTX identifier.
fn kernel_name(program: &Program) -> String {
    let clean = program.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    format!("tf_{}", clean.collect::<String>())
}
