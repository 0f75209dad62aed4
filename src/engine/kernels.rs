//! Kernels for a target: compiled once for each program, in parallel, through the cache on disk.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tilefuse_block::{OpKind, Program};
use tilefuse_codegen::cache::{Cache, CacheOptions, Key, Kind};
use tilefuse_codegen::host::{HostKernel, HostOptions, Pool};
use tilefuse_codegen::ptx::{self, Ptx, Target as PtxTarget, compile_ptx, tensor_map};
use tilefuse_codegen::stages::Stages;
use tilefuse_codegen::timing::{Times, collect};
use tilefuse_codegen::{Listing, cuda};

use crate::Error;
use crate::torch::TorchPool;

/// What kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// This machine's processor.
    Host,
    /// The CUDA device of this ordinal.
    Cuda(u32),
}

/// Time and counts of compiling one plan.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct CompileReport {
    /// Capturing the run, the eager run included, in milliseconds.
    pub capture_ms: f64,
    /// Making it functional, lowering and simplifying, in milliseconds.
    pub lower_ms: f64,
    /// Choosing kernels and libtorch's calls of products, convolutions and attention, with measuring them, in milliseconds.
    #[serde(default)]
    pub select_ms: f64,
    /// Prepacking weights, in milliseconds.
    #[serde(default)]
    pub prepack_ms: f64,
    /// Planning, in milliseconds.
    pub plan_ms: f64,
    /// From groups to block programs, in milliseconds.
    pub schedule_ms: f64,
    /// Measuring schedules of kernels, in milliseconds.
    pub tune_ms: f64,
    /// Generating and loading kernels, several at a time, in milliseconds.
    pub codegen_ms: f64,
    /// Of the threads that generate kernels, in milliseconds together: checks and passes over block programs.
    pub passes_ms: f64,
    /// The same: from block programs to LLVM IR.
    pub lowering_ms: f64,
    /// The same: LLVM, to an object or to PTX.
    pub llvm_ms: f64,
    /// The same: loading objects, or the driver's compilation of PTX.
    pub load_ms: f64,
    /// From the begin of the capture to a plan that can run, in milliseconds: the stages above but for those of the threads, and
    /// [`other_ms`](CompileReport::other_ms).
    #[serde(default)]
    pub total_ms: f64,
    /// Distinct kernels.
    pub kernels: usize,
    /// Kernels found in the cache on disk, or held by another plan.
    pub cached: usize,
}

impl std::fmt::Display for CompileReport {
    /// Where the time went.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CompileReport { total_ms, kernels, cached, .. } = self;
        let stages = self.stages().into_iter().filter(|(_, ms)| *ms >= 0.05);
        let stages: Vec<String> = stages.map(|(name, ms)| format!("{name} {ms:.1}")).collect();
        let stages = stages.join(", ");
        writeln!(
            f,
            "capture and compilation {total_ms:.1} ms: {stages}; {kernels} kernels, of which {cached} were cached"
        )?;
        let CompileReport { passes_ms, lowering_ms, llvm_ms, load_ms, .. } = self;
        write!(
            f,
            "generating kernels, of all threads: passes {passes_ms:.1} ms, to LLVM {lowering_ms:.1}, LLVM {llvm_ms:.1}, load {load_ms:.1}"
        )
    }
}

impl CompileReport {
    /// The stages one after the other, which take the whole time together, and their milliseconds.
    fn stages(&self) -> [(&'static str, f64); 9] {
        [
            ("capture with a call of eager's", self.capture_ms),
            ("lower", self.lower_ms),
            ("select kernels", self.select_ms),
            ("prepack weights", self.prepack_ms),
            ("plan", self.plan_ms),
            ("schedule", self.schedule_ms),
            ("measure schedules", self.tune_ms),
            ("generate kernels", self.codegen_ms),
            ("other", self.other_ms()),
        ]
    }

    /// What is in no stage: guards, memory of intermediates, and what tolerances ask for.
    pub fn other_ms(&self) -> f64 {
        let stages = self.capture_ms + self.lower_ms + self.select_ms + self.prepack_ms + self.plan_ms;
        (self.total_ms - stages - self.schedule_ms - self.tune_ms - self.codegen_ms).max(0.0)
    }

    /// Adds so many milliseconds of planning, of which these were scheduling, with measuring schedules, and measuring them.
    pub(super) fn add_planning(&mut self, planning_ms: f64, scheduling: Duration, tuning: Duration) {
        let tune_ms = millis(tuning).min(planning_ms);
        let schedule_ms = (millis(scheduling) - tune_ms).clamp(0.0, planning_ms - tune_ms);
        self.tune_ms += tune_ms;
        self.schedule_ms += schedule_ms;
        self.plan_ms += planning_ms - tune_ms - schedule_ms;
    }

    /// Adds what the threads spent on kernels.
    fn add(&mut self, times: &Times) {
        self.passes_ms += millis(times.passes);
        self.lowering_ms += millis(times.lowering);
        self.llvm_ms += millis(times.llvm);
        self.load_ms += millis(times.load);
    }
}

/// A kernel that can be started.
#[derive(Clone)]
pub(crate) enum Kernel {
    /// Host code.
    Host(Arc<HostKernel>),
    /// A CUDA function.
    Cuda(Arc<cuda::Kernel>),
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kernel::Host(_) => "Kernel::Host",
            Kernel::Cuda(_) => "Kernel::Cuda",
        })
    }
}

impl Kernel {
    /// Runs or launches instances, so many along each axis.
    ///
    /// # Safety
    /// `args` are the addresses of the program's buffers, each as long and as aligned as the program says, and not
    /// in use elsewhere where they are written.
    pub(crate) unsafe fn launch(&self, args: &[u64], grid: [u64; 3], stream: Stream) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.launch_grid(args, extents(grid)?, stream) }
    }

    /// [`Kernel::launch`], on CUDA after all that was queued before has ended.
    ///
    /// # Safety
    /// As for [`Kernel::launch`].
    pub(crate) unsafe fn launch_in_order(
        &self,
        args: &[u64],
        grid: [u64; 3],
        stream: Stream,
    ) -> Result<(), Error> {
        match self {
            // SAFETY: passed on to the caller.
            Kernel::Host(_) => unsafe { self.launch(args, grid, stream) },
            Kernel::Cuda(kernel) => {
                // SAFETY: passed on to the caller.
                unsafe { kernel.launch_in_order(stream.raw, grid, args) }.map_err(Error::from)
            }
        }
    }

    /// [`Kernel::launch`] for a grid of three axes, of fewer than 2^63 instances.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; an argument for a scalar parameter is its value in the lowest bytes.
    pub(crate) unsafe fn launch_grid(
        &self,
        args: &[u64],
        grid: [u32; 3],
        stream: Stream,
    ) -> Result<(), Error> {
        match self {
            Kernel::Host(kernel) => {
                // SAFETY: passed on to the caller.
                unsafe { kernel.run(args, grid, &Team { threads: stream.threads }) }.map_err(Error::from)
            }
            Kernel::Cuda(kernel) => {
                // SAFETY: passed on to the caller.
                unsafe { kernel.launch_grid(stream.raw, grid.map(u64::from), args) }.map_err(Error::from)
            }
        }
    }
}

/// Where kernels run: the CUDA stream and the number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The `CUstream`; null on the host and for the default stream.
    pub(crate) raw: *mut std::ffi::c_void,
    /// Threads of libtorch's team.
    pub(crate) threads: usize,
}

/// Nanoseconds of a task below which the last one of a thread is left to it: a team's first thread starts sooner than the
/// others and ends sooner, and to bring the data of a short task to its caches, and back in the next run, takes longer than
/// to wait.
const MIN_PART_NANOSECONDS: u64 = 20_000;

/// Nanoseconds of a thread's whole share below which all of it is left to it.
const MIN_SHARE_NANOSECONDS: u64 = 12_000;

/// libtorch's own thread team: no second pool competes with it for cores.
struct Team {
    threads: usize,
}

impl Team {
    /// [`Pool::run_timed`] of tasks that are told which thread of the team they run on.
    fn run_on(&self, tasks: usize, nanoseconds: u64, work: &(dyn Fn(usize, usize) + Sync)) {
        let threads = self.threads.min(tasks);
        let left_alone = usize::from(nanoseconds < MIN_PART_NANOSECONDS);
        let share = |owner: usize, size: usize| owner * tasks / size..(owner + 1) * tasks / size;
        let each = tasks.div_ceil(threads.max(1)) as u64;
        if each == 1 || nanoseconds.saturating_mul(each) < MIN_SHARE_NANOSECONDS {
            // Nobody takes anything of another's: no counters, whose lines go from thread to thread.
            TorchPool::get()
                .run(threads, &|index, size| share(index, size).for_each(|task| work(index, task)));
            return;
        }
        let taken: SmallVec<[OwnLine; 16]> = (0..threads).map(|_| OwnLine::default()).collect();
        TorchPool::get().run(threads, &|index, size| {
            // Its own share first, from which others may have taken some, then what is left of the others'.
            for owner in (0..size).map(|step| (index + step) % size) {
                let Range { start, end } = share(owner, size);
                let Some(OwnLine(taken)) = taken.get(owner) else { break };
                let spared = if owner == index { 0 } else { left_alone };
                loop {
                    if start + taken.load(Ordering::Relaxed) + spared >= end {
                        break;
                    }
                    let task = start + taken.fetch_add(1, Ordering::Relaxed);
                    if task >= end {
                        break;
                    }
                    work(index, task);
                }
            }
        });
    }
}

/// A counter on a line of the caches that is nothing else's.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OwnLine(AtomicUsize);

impl Pool for Team {
    fn threads(&self) -> usize {
        self.threads
    }

    fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        self.run_timed(tasks, u64::MAX, work);
    }

    fn run_timed(&self, tasks: usize, nanoseconds: u64, work: &(dyn Fn(usize) + Sync)) {
        self.run_on(tasks, nanoseconds, &|_, task| work(task));
    }
}

/// Kernels that run over blocks of rows, a thread taking each block through all of them.
#[derive(Debug)]
pub(crate) struct OuterLoop {
    /// The kernels in order.
    pub(crate) kernels: Vec<LoopKernel>,
    /// How many blocks there are.
    pub(crate) blocks: usize,
    /// Bytes of each thread's memory.
    pub(crate) thread_bytes: usize,
    /// The most threads that there is memory for.
    pub(crate) threads: usize,
}

/// A kernel of an outer loop.
#[derive(Debug)]
pub(crate) struct LoopKernel {
    pub(crate) kernel: Kernel,
    pub(crate) grid: [u64; 3],
    /// The instances of each block.
    pub(crate) parts: Vec<Range<u64>>,
    /// Arguments that are held a block at a time: which, and for each block what is added to the address of the thread's
    /// memory for that of the whole.
    pub(crate) held: Vec<(usize, Vec<u64>)>,
}

impl OuterLoop {
    /// Runs all blocks; `args` are the arguments of each kernel, of which those that are held are not looked at, and
    /// `memory` is that of the threads.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; each block reaches nothing that another one writes, and of what is held no more than a
    /// thread's memory has room for.
    pub(crate) unsafe fn run(
        &self,
        args: &[SmallVec<[u64; 16]>],
        memory: u64,
        threads: usize,
    ) -> Result<(), Error> {
        let mut grids = Vec::with_capacity(self.kernels.len());
        for own in &self.kernels {
            let Kernel::Host(kernel) = &own.kernel else {
                return Err(Error::Internal(String::from(
                    "an outer loop of kernels that are not the host's",
                )));
            };
            grids.push((kernel, extents(own.grid)?));
        }
        let failure = OnceLock::new();
        let block = |thread: usize, block: usize| {
            let base = memory + (thread * self.thread_bytes) as u64;
            for ((own, (kernel, grid)), args) in self.kernels.iter().zip(&grids).zip(args) {
                let Some(part) = own.parts.get(block) else { return };
                let mut args = args.clone();
                for (position, shifts) in &own.held {
                    if let (Some(arg), Some(&shift)) = (args.get_mut(*position), shifts.get(block)) {
                        *arg = base.wrapping_add(shift);
                    }
                }
                if failure.get().is_some() {
                    return;
                }
                // SAFETY: passed on to the caller; what is held lies in this thread's memory, where the instances of the
                // block address it from where the whole would begin.
                if let Err(error) = unsafe { kernel.run_part(&args, *grid, part.clone()) } {
                    // Another one was first.
                    let _ = failure.set(error);
                }
            }
        };
        let team = Team { threads: threads.min(self.threads) };
        match team.threads {
            0 | 1 => (0..self.blocks).for_each(|at| block(0, at)),
            _ => team.run_on(self.blocks, u64::MAX, &block),
        }
        failure.into_inner().map_or(Ok(()), |error| Err(Error::from(error)))
    }
}

/// The extents of a grid.
fn extents(grid: [u64; 3]) -> Result<[u32; 3], Error> {
    let mut extents = [0; 3];
    for (extent, n) in extents.iter_mut().zip(grid) {
        *extent = u32::try_from(n).map_err(|_| Error::Internal(format!("a grid of {n} instances")))?;
    }
    Ok(extents)
}

/// A kernel that plans may still hold.
enum Held {
    Host(Weak<HostKernel>),
    Cuda(Weak<cuda::Kernel>),
}

impl Held {
    fn of(kernel: &Kernel) -> Held {
        match kernel {
            Kernel::Host(kernel) => Held::Host(Arc::downgrade(kernel)),
            Kernel::Cuda(kernel) => Held::Cuda(Arc::downgrade(kernel)),
        }
    }

    fn get(&self) -> Option<Kernel> {
        match self {
            Held::Host(kernel) => kernel.upgrade().map(Kernel::Host),
            Held::Cuda(kernel) => kernel.upgrade().map(Kernel::Cuda),
        }
    }
}

/// The kernels of the plans that live; dropped ones are forgotten when the table grows.
type Known = Mutex<FxHashMap<(String, Target), Held>>;

fn known() -> &'static Known {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    KNOWN.get_or_init(Known::default)
}

/// The cache on disk that kernels of this process go through.
pub(crate) fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(|| {
        // What is read from a folder of edited stages, or written to one, is compiled anew.
        let active = Stages::get().is_active();
        let cache = Cache::open(&if active { CacheOptions::off() } else { CacheOptions::from_env() });
        if let Some(warning) = cache.warning() {
            tracing::warn!("{warning}");
            eprintln!("tilefuse: {warning}");
        }
        cache
    })
}

/// What measurements on a device depend on, in one line.
pub(crate) fn device_name(device: tch::Device) -> Result<String, Error> {
    match device {
        tch::Device::Cpu => Ok(HostOptions::default().fingerprint()),
        tch::Device::Cuda(ordinal) => {
            let device = cuda::Device::get(ordinal)?;
            Ok(format!("{} {}", device.properties().name, device.target()?))
        }
        other => Err(Error::Unsupported(format!("kernels for {other:?}"))),
    }
}

/// Where the kernel cache is, and its state in words.
pub(crate) fn cache_state() -> (String, String) {
    let cache = Cache::open(&CacheOptions::from_env());
    let path = cache.path().map_or_else(|| String::from("none"), |p| p.display().to_string());
    (path, cache.warning().map_or_else(|| String::from("usable"), str::to_owned))
}

/// Compiles programs; each distinct text once as long as a plan holds its kernel.
pub(crate) fn kernels(
    programs: &[Program],
    target: Target,
    report: &mut CompileReport,
) -> Result<Vec<Kernel>, Error> {
    let start = Instant::now();
    let (firsts, of) = distinct(programs);
    let (made, times): (Vec<_>, Vec<_>) =
        firsts.par_iter().map(|&at| collect(|| kernel(&programs[at], target))).unzip();
    // Of a plan whose tiles did not fit as well.
    report.codegen_ms += millis(start.elapsed());
    times.iter().for_each(|times| report.add(times));
    let made: Vec<(Kernel, bool)> = made.into_iter().collect::<Result<_, Error>>()?;
    report.kernels = made.len();
    report.cached = made.iter().filter(|(_, cached)| *cached).count();
    Ok(of.into_iter().map(|at| made[at].0.clone()).collect())
}

/// The positions of programs that differ in more than their names, and for each program which of them it is.
fn distinct(programs: &[Program]) -> (Vec<usize>, Vec<usize>) {
    let mut known: FxHashMap<String, usize> = FxHashMap::default();
    let mut firsts = Vec::new();
    let of = programs.iter().enumerate().map(|(at, program)| {
        *known.entry(text_of(program)).or_insert_with(|| {
            firsts.push(at);
            firsts.len() - 1
        })
    });
    let of = of.collect();
    (firsts, of)
}

/// The text that a kernel is kept under: without the program's name, so that programs which differ in that alone share
/// it, unless what the kernel prints or the files of its stages bear that name.
fn text_of(program: &Program) -> String {
    let text = program.to_string();
    let mut named = Stages::get().is_active();
    program.walk(&mut |op| named |= matches!(op.kind, OpKind::Print { .. } | OpKind::Assert { .. }));
    match text.find('(') {
        Some(at) if !named => text[at..].to_owned(),
        _ => text,
    }
}

/// Tells stages of compiling apart, one after the other.
pub(super) struct StageClock(Instant);

impl StageClock {
    /// Before the first stage.
    pub(super) fn start() -> StageClock {
        StageClock(Instant::now())
    }

    /// Milliseconds of the stage that ends now.
    pub(super) fn lap(&mut self) -> f64 {
        let now = Instant::now();
        millis(now - std::mem::replace(&mut self.0, now))
    }
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The kernel of a program, and whether it was there already.
pub(crate) fn kernel(program: &Program, target: Target) -> Result<(Kernel, bool), Error> {
    let key = (text_of(program), target);
    let lock = || known().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(kernel) = lock().get(&key).and_then(Held::get) {
        return Ok((kernel, true));
    }
    let (kernel, cached) = match target {
        Target::Host => host_kernel(program, &key.0)?,
        Target::Cuda(ordinal) => cuda_kernel(program, &key.0, ordinal)?,
    };
    let mut known = lock();
    if known.len() == known.capacity() {
        known.retain(|_, held| held.get().is_some());
    }
    known.insert(key, Held::of(&kernel));
    Ok((kernel, cached))
}

/// Forgets the programs of kernels that no plan has any more.
pub(crate) fn forget_dropped() {
    let mut known = known().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    known.retain(|_, held| held.get().is_some());
    known.shrink_to_fit();
}

/// The code of a program for a target, for people to read.
pub(crate) fn listing(program: &Program, target: Target) -> Result<Listing, Error> {
    match target {
        Target::Host => Ok(HostKernel::listing(program, &HostOptions::default())?),
        Target::Cuda(ordinal) => {
            let device = cuda::Device::get(ordinal as usize)?;
            Ok(ptx::listing(program, device.target()?, &device.ptx_options())?)
        }
    }
}

fn host_kernel(program: &Program, text: &str) -> Result<(Kernel, bool), Error> {
    let options = HostOptions::default();
    let key = Key::new(text, "host", &options.fingerprint());
    if let Some(bytes) = cache().get(Kind::HostObject, key)
        && let Ok(mut kernel) = HostKernel::load(&bytes, &options)
    {
        kernel.drop_object();
        super::perf_map::note(&program.name, &kernel);
        return Ok((Kernel::Host(Arc::new(kernel)), true));
    }
    let mut kernel = HostKernel::compile(program, &options)?;
    cache().put(Kind::HostObject, key, kernel.object());
    kernel.drop_object();
    super::perf_map::note(&program.name, &kernel);
    Ok((Kernel::Host(Arc::new(kernel)), false))
}

/// A kernel for a device, from its machine code on disk, from its PTX there, or made anew.
fn cuda_kernel(program: &Program, text: &str, ordinal: u32) -> Result<(Kernel, bool), Error> {
    let device = cuda::Device::get(ordinal as usize)?;
    let (target, options) = (device.target()?, device.ptx_options());
    let properties = device.properties();
    let machine =
        format!("{:?} of {:?}, driver {}", target.name(), properties.capability, properties.driver_version);
    let code = Key::new(text, &machine, &format!("{options:?}"));
    if let Some(bytes) = cache().get(Kind::Cubin, code)
        && let Some(cubin) = cuda::Cubin::decode(&bytes)
        && let Ok(kernel) = cuda::Kernel::load_cubin(&device, &cubin)
    {
        return Ok((Kernel::Cuda(Arc::new(kernel)), true));
    }
    let key = Key::new(text, target.name(), &format!("{options:?}"));
    if let Some(bytes) = cache().get(Kind::Ptx, key)
        && let Some(ptx) = decode(&bytes, target)
        && let Ok(kernel) = load(&device, &ptx, code)
    {
        return Ok((kernel, true));
    }
    let ptx = compile_ptx(program, target, &options)?;
    let kernel = load(&device, &ptx, code)?;
    cache().put(Kind::Ptx, key, &encode(&ptx));
    Ok((kernel, false))
}

/// Makes machine code of PTX, keeps and loads it. Where that fails, the driver compiles PTX as it loads it, and says what is
/// wrong with it.
fn load(device: &Arc<cuda::Device>, ptx: &Ptx, key: Key) -> Result<Kernel, Error> {
    if let Ok(cubin) = cuda::Cubin::compile(device, ptx)
        && let Ok(kernel) = cuda::Kernel::load_cubin(device, &cubin)
    {
        cache().put(Kind::Cubin, key, &cubin.encode());
        return Ok(Kernel::Cuda(Arc::new(kernel)));
    }
    Ok(Kernel::Cuda(Arc::new(cuda::Kernel::load(device, ptx)?)))
}

/// Threads, blocks of a cluster, shared memory, whether it is persistent, maps of tensors and name in the first line, then the text.
fn encode(ptx: &Ptx) -> Vec<u8> {
    let Ptx { threads, cluster, shared_bytes, persistent, name, text, .. } = ptx;
    let maps = tensor_map::encode(&ptx.tensor_maps);
    format!("{threads} {cluster} {shared_bytes} {persistent} {maps} {name}\n{text}").into_bytes()
}

fn decode(bytes: &[u8], target: PtxTarget) -> Option<Ptx> {
    let (head, text) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    let mut head = head.splitn(6, ' ');
    let mut number = || head.next()?.parse().ok();
    let (threads, cluster, shared_bytes) = (number()?, number()?, number()?);
    let persistent = head.next()?.parse().ok()?;
    let tensor_maps = tensor_map::decode(head.next()?)?;
    let name = head.next()?.to_owned();
    Some(Ptx { text: text.to_owned(), name, threads, cluster, shared_bytes, tensor_maps, persistent, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_differ_in_their_names_alone_are_compiled_once() {
        let program = |name: &str, n: u32| {
            let text = format!(
                "kernel @{name}(%x: ptr<f32>) warps(1) {{\n  %i = range 0 {n}\n  %v = load %x, %i\n}}\n"
            );
            tilefuse_block::parse_valid(&text).unwrap()
        };
        let programs = [program("a", 8), program("b", 8), program("c", 16), program("a", 16)];
        assert_eq!(distinct(&programs), (vec![0, 2], vec![0, 0, 1, 1]));
        let mut report = CompileReport::default();
        let kernels = kernels(&programs, Target::Host, &mut report).unwrap();
        assert_eq!((kernels.len(), report.kernels), (4, 2));
        let [Kernel::Host(first), Kernel::Host(second), Kernel::Host(third), _] = &kernels[..] else {
            panic!("not on the host")
        };
        assert!(Arc::ptr_eq(first, second) && !Arc::ptr_eq(first, third));
        // What is printed bears the name.
        let printing = |name: &str| {
            let text =
                format!("kernel @{name}(%x: ptr<f32>) warps(1) {{\n  %i = range 0 8\n  print \"i\" %i\n}}\n");
            tilefuse_block::parse_valid(&text).unwrap()
        };
        assert_eq!(distinct(&[printing("a"), printing("b")]).0, vec![0, 1]);
    }
}
