//! Block programs as code for this machine's processor.
//!
//! [`HostKernel::compile`] plans the loops of a program (`plan`), builds them with LLVM (`emit`) and loads the
//! object (`object`); [`HostKernel::load`] takes the bytes of [`HostKernel::object`] and starts without LLVM.

mod accumulate;
mod emit;
mod family;
mod launch;
mod object;
mod passes;
mod plan;
mod symbols;
mod target;
#[cfg(test)]
mod tests;
mod thread_pool;

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use inkwell::targets::FileType;
use smallvec::SmallVec;
use tilefuse_block::{Elem, Program, expand_math_except, expand_operations};

pub use passes::{Pass, after};
pub use target::Isa;
pub use thread_pool::{Pool, Rayon, Serial};

use crate::stack::with_room;
use crate::stages::{KernelStages, Stages};
use crate::timing::{Stage, timed};
use crate::{Error, Listing, Result};
use family::Family;
use launch::Launch;
use object::Code;
use target::{Target, Unit};

/// How to compile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostOptions {
    /// Which instructions may be used.
    pub isa: Isa,
}

impl HostOptions {
    /// What compiled code depends on besides the program, in one line: for the key of a cache.
    pub fn fingerprint(&self) -> String {
        format!("host {} {}", env!("CARGO_PKG_VERSION"), Target::new(self.isa).describe())
    }

    /// The processor for a reader: its name, the bits of its vectors, and the instructions that decide how quick kernels are.
    pub fn processor(&self) -> String {
        Target::new(self.isa).summary()
    }

    /// Bits of a vector of the processor that code is made for.
    pub fn vector_bits(&self) -> u32 {
        Target::new(self.isa).vector
    }

    /// How many registers hold vectors on that processor.
    pub fn vector_registers(&self) -> u32 {
        Target::new(self.isa).count
    }

    /// How quick products are whose right operand is in VNNI layout, with groups of neighbours along the common axis that
    /// fill 32 bits: operations per nanosecond of a thread, about. 0 where the processor has no instructions for them.
    pub fn grouped_products(&self, elem: Elem) -> f64 {
        match Target::new(self.isa).unit(elem) {
            Some(Unit::Tiles) => 1000.0,
            Some(Unit::Vectors) => 80.0,
            None => 0.0,
        }
    }
}

/// A compiled block program.
pub struct HostKernel {
    /// Keeps the entry's memory mapped.
    code: Code,
    entry: Entry,
    head: Head,
    blob: Vec<u8>,
}

/// Runs the instances `begin..end`. The words are the arguments, the extents of the grid and the launch's address.
type Entry = unsafe extern "C" fn(args: *const u64, begin: i64, end: i64, scratch: *mut u8);

/// What is known of a kernel besides its code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    /// Bytes of scratch memory of a thread.
    scratch: u64,
    /// Number of parameters.
    params: u64,
    /// Approximate nanoseconds of one instance.
    nanoseconds: u64,
    /// Whether instances are told apart by the first axis of the grid alone.
    one_axis: bool,
    /// The processor it was made for.
    target: String,
}

/// Instances that take less than this together are not worth other threads.
const INLINE_NANOSECONDS: u64 = 6_000;

/// Parts of the grid for each thread. Every other run takes a thread's parts from the last to the first: what the run
/// before it touched last is still in the thread's own cache.
const PARTS_PER_THREAD: u64 = 16;

/// Whether the last run on several threads went forwards.
static RUNS: AtomicBool = AtomicBool::new(false);

impl HostKernel {
    /// Compiles a program for this machine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what this target does not have, [`Error::Invalid`] for a program that is not well
    /// formed, [`Error::Llvm`] and [`Error::Object`] for defects of this crate.
    pub fn compile(program: &Program, options: &HostOptions) -> Result<HostKernel> {
        let target = Target::new(options.isa);
        let (elf, head) = generate(program, &target, FileType::Object)?;
        HostKernel::start(head.write(&elf), head, &elf)
    }

    /// The LLVM back end's listing of a program, for people to read.
    ///
    /// # Errors
    /// As [`HostKernel::compile`].
    pub fn assembly(program: &Program, options: &HostOptions) -> Result<String> {
        let (text, _) = generate(program, &Target::new(options.isa), FileType::Assembly)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The LLVM IR of a program before LLVM's passes, for people to read.
    ///
    /// # Errors
    /// As [`HostKernel::compile`].
    pub fn llvm_ir(program: &Program, options: &HostOptions) -> Result<String> {
        let target = Target::new(options.isa);
        with_room(program, || {
            let program = prepared(program, &target)?;
            let plan = plan::Plan::new(&program, target.registers())?;
            let cx = inkwell::context::Context::create();
            Ok(emit::emit(&cx, &plan, &target, false)?.print_to_string().to_string())
        })
    }

    /// The code of a program line by line, with the operation that each line is of.
    ///
    /// # Errors
    /// As [`HostKernel::compile`].
    pub fn listing(program: &Program, options: &HostOptions) -> Result<Listing> {
        let target = Target::new(options.isa);
        with_room(program, || {
            let program = prepared(program, &target)?;
            let plan = plan::Plan::new(&program, target.registers())?;
            let cx = inkwell::context::Context::create();
            let module = emit::emit(&cx, &plan, &target, true)?;
            let assembly = target.finish(&module, FileType::Assembly)?;
            let ir = module.print_to_string().to_string();
            Ok(Listing::new(&ir, &String::from_utf8_lossy(&assembly)))
        })
    }

    /// The compiled kernel as bytes for a cache; empty after [`HostKernel::drop_object`].
    pub fn object(&self) -> &[u8] {
        &self.blob
    }

    /// The addresses of its code, for profilers.
    pub fn code_range(&self) -> std::ops::Range<usize> {
        self.code.range()
    }

    /// Frees the bytes of [`HostKernel::object`], which running the kernel does not need.
    pub fn drop_object(&mut self) {
        self.blob = Vec::new();
    }

    /// A kernel from the bytes of [`HostKernel::object`], made on a machine with the same processor. The bytes must
    /// come from a trusted place: they are code.
    ///
    /// # Errors
    /// [`Error::Object`] where the bytes are not a kernel for `options` on this machine.
    pub fn load(bytes: &[u8], options: &HostOptions) -> Result<HostKernel> {
        let (head, elf) = Head::read(bytes).ok_or_else(|| Error::Object("its head is damaged".to_owned()))?;
        if head.target != Target::new(options.isa).describe() {
            return Err(Error::Object("it was made for another processor".to_owned()));
        }
        HostKernel::start(bytes.to_vec(), head, elf)
    }

    fn start(blob: Vec<u8>, head: Head, elf: &[u8]) -> Result<HostKernel> {
        if Family::NATIVE.is_none() {
            return Err(Error::Unsupported {
                target: "host".to_owned(),
                message: "this processor or system".to_owned(),
            });
        }
        let code = timed(Stage::Load, || Code::load(elf))?;
        let address = code.symbol(emit::ENTRY)?;
        // SAFETY: the symbol is the function that `emit` built with exactly this signature.
        let entry: Entry = unsafe { std::mem::transmute::<*const u8, Entry>(address) };
        Ok(HostKernel { code, entry, head, blob })
    }

    /// Runs all instances of a grid on the threads of `pool`, or on the caller's where they are quick.
    ///
    /// Arguments are 64-bit words: an address, or a number in the lowest bytes.
    ///
    /// # Safety
    /// `args` must match the program's parameters in number and kind, and every address that an instance reads or
    /// writes must be valid for that until the call returns. Memory that is written must not be used by anybody else
    /// meanwhile; parameters may share memory that is written only where every instance reads each element before
    /// it writes it, at the same offset.
    ///
    /// # Errors
    /// [`Error::Assertion`] where an assertion of the program does not hold; some of the other instances have run
    /// then.
    pub unsafe fn run(&self, args: &[u64], grid: [u32; 3], pool: &dyn Pool) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.run_with(args, grid, pool, launch::to_stdout) }
    }

    /// As [`HostKernel::run`]; each line that the program prints goes to `print`, on any thread.
    ///
    /// # Safety
    /// As [`HostKernel::run`].
    ///
    /// # Errors
    /// As [`HostKernel::run`].
    pub unsafe fn run_with(
        &self,
        args: &[u64],
        grid: [u32; 3],
        pool: &dyn Pool,
        print: fn(&str),
    ) -> Result<()> {
        let launch = Launch::new(grid, print);
        let words = self.words(args, grid, &launch);
        let total: u64 = grid.iter().map(|&n| u64::from(n)).product();
        // SAFETY: the caller vouches for the arguments.
        let span = |begin, end| unsafe { self.instances(&words, grid, begin..end, &launch) };
        let threads = pool.threads();
        if total <= 1 || threads <= 1 || total.saturating_mul(self.head.nanoseconds) < INLINE_NANOSECONDS {
            span(0, total);
            return launch.result();
        }
        let threads = threads as u64;
        let each = total.div_ceil(threads).min(PARTS_PER_THREAD);
        let parts = threads * each;
        let backwards = RUNS.fetch_xor(true, Ordering::Relaxed);
        let bound = |part: u64| (u128::from(part) * u128::from(total) / u128::from(parts)) as u64;
        let nanoseconds = (total / parts).saturating_mul(self.head.nanoseconds);
        pool.run_timed(parts as usize, nanoseconds, &|task| {
            let part = placed(task as u64, each, backwards);
            let (begin, end) = (bound(part), bound(part + 1));
            if begin < end {
                span(begin, end);
            }
        });
        launch.result()
    }

    /// Runs some of the instances of a grid on the caller's thread, in the order of their numbers.
    ///
    /// # Safety
    /// As [`HostKernel::run`], of these instances; others may run at the same time where all of them might.
    ///
    /// # Errors
    /// As [`HostKernel::run`].
    pub unsafe fn run_part(&self, args: &[u64], grid: [u32; 3], instances: Range<u64>) -> Result<()> {
        let launch = Launch::new(grid, launch::to_stdout);
        let words = self.words(args, grid, &launch);
        // SAFETY: passed on to the caller.
        unsafe { self.instances(&words, grid, instances, &launch) };
        launch.result()
    }

    /// What compiled code is given.
    fn words(&self, args: &[u64], grid: [u32; 3], launch: &Launch) -> SmallVec<[u64; 16]> {
        debug_assert_eq!(args.len() as u64, self.head.params, "arguments of a kernel");
        let mut words = SmallVec::from_slice(args);
        words.extend(grid.map(u64::from));
        words.push(std::ptr::from_ref(launch).expose_provenance() as u64);
        words
    }

    /// # Safety
    /// As [`HostKernel::run_part`].
    unsafe fn instances(&self, words: &[u64], grid: [u32; 3], instances: Range<u64>, launch: &Launch) {
        // Code that knows one axis of the grid runs a row of it after the other.
        let row = if self.head.one_axis { u64::from(grid[0]) } else { u64::MAX };
        with_scratch(self.head.scratch as usize, |scratch| {
            let mut at = instances.start;
            while at < instances.end && !launch.has_failed() {
                let first = at % row;
                let last = row.min(first + (instances.end - at));
                // SAFETY: the caller vouches for the arguments; scratch is as large as the kernel asks.
                unsafe { (self.entry)(words.as_ptr(), first as i64, last as i64, scratch) };
                at += last - first;
            }
        });
    }
}

impl std::fmt::Debug for HostKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostKernel").field("head", &self.head).field("bytes", &self.blob.len()).finish()
    }
}

/// The part that a task computes: `each` tasks in a row stay on the same stretch of the grid.
fn placed(task: u64, each: u64, backwards: bool) -> u64 {
    let (thread, step) = (task / each, task % each);
    thread * each + if backwards { each - 1 - step } else { step }
}

/// The program as its loops are planned.
fn prepared(program: &Program, target: &Target) -> Result<Program> {
    rewritten(program, target, Pass::Accumulate)
}

/// The program in functions that the target has, checked, rewritten by the passes up to one.
fn rewritten(program: &Program, target: &Target, last: Pass) -> Result<Program> {
    let invalid = |message: String| Error::Invalid { program: program.name.clone(), message };
    let mut program = program.clone();
    expand_operations(&mut program).map_err(|e| invalid(e.to_string()))?;
    expand_math_except(&mut program, &|function, elem| target.computes(function, elem))
        .map_err(|e| invalid(e.to_string()))?;
    if last >= Pass::Accumulate {
        accumulate::accumulate(&mut program);
    }
    tilefuse_block::verify(&program).map_err(|e| invalid(e.to_string()))?;
    Ok(program)
}

fn generate(program: &Program, target: &Target, kind: FileType) -> Result<(Vec<u8>, Head)> {
    let stages = Stages::get().of(program);
    let edited = stages.program(program)?;
    let program = edited.as_ref().unwrap_or(program);
    with_room(program, || generate_one(program, target, kind, &stages))
}

fn generate_one(
    program: &Program,
    target: &Target,
    kind: FileType,
    stages: &KernelStages<'_>,
) -> Result<(Vec<u8>, Head)> {
    let program = timed(Stage::Passes, || prepared(program, target))?;
    let plan = timed(Stage::Lowering, || plan::Plan::new(&program, target.registers()))?;
    let cx = inkwell::context::Context::create();
    let mut module = timed(Stage::Lowering, || emit::emit(&cx, &plan, target, false))?;
    if stages.is_active()
        && let Some(text) = stages.text("host.ll", &module.print_to_string().to_string())?
    {
        module = target::parse(&cx, &text)?;
    }
    // LLVM rewrites the module that it compiles.
    stages.last("host.s", || target.finish(&module.clone(), FileType::Assembly))?;
    let bytes = timed(Stage::Llvm, || target.finish(&module, kind))?;
    let head = Head {
        scratch: plan.scratch,
        params: program.params.len() as u64,
        nanoseconds: plan.nanoseconds(),
        one_axis: !plan.uses_outer_axes(),
        target: target.describe(),
    };
    Ok((bytes, head))
}

/// First bytes of a compiled kernel.
const MAGIC: &[u8; 8] = b"TFHOST02";

impl Head {
    fn write(&self, elf: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let length = self.target.len() as u64;
        for number in [self.scratch, self.params, self.nanoseconds, u64::from(self.one_axis), length] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.target.as_bytes());
        out.extend(elf);
        out
    }

    fn read(bytes: &[u8]) -> Option<(Head, &[u8])> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (numbers, rest) = rest.split_at_checked(40)?;
        let number = |k: usize| numbers.get(8 * k..8 * k + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (target, elf) = rest.split_at_checked(usize::try_from(number(4)?).ok()?)?;
        let target = std::str::from_utf8(target).ok()?.to_owned();
        let (scratch, params, nanoseconds, one_axis) = (number(0)?, number(1)?, number(2)?, number(3)? != 0);
        Some((Head { scratch, params, nanoseconds, one_axis, target }, elf))
    }
}

/// A cache line, so that scratch memory is aligned to one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its size and place matter")] [u8; 64]);

thread_local! {
    /// Memory that kernels on this thread use one after the other.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

fn with_scratch(bytes: usize, run: impl FnOnce(*mut u8)) {
    let mut lines = SCRATCH.take();
    if lines.len() * 64 < bytes {
        lines.resize(bytes.div_ceil(64), Line([0; 64]));
    }
    run(lines.as_mut_ptr().cast());
    SCRATCH.set(lines);
}
