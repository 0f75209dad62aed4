//! Work on the thread team that libtorch's own operators use, so that fused kernels and libtorch's never compete
//! for cores.

use std::any::Any;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock};

type Parallel = unsafe extern "C" fn(
    body: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
    threads: c_uint,
    flags: c_uint,
);
type Query = unsafe extern "C" fn() -> c_int;

/// The OpenMP runtime that libtorch brought into the process, if it did.
#[derive(Clone, Copy, Debug)]
pub struct TorchPool {
    team: Option<Team>,
}

#[derive(Clone, Copy, Debug)]
struct Team {
    parallel: Parallel,
    index: Query,
    size: Query,
}

/// What a parallel region is given.
struct Job<'a> {
    team: Team,
    work: &'a (dyn Fn(usize, usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl TorchPool {
    /// The pool of this process.
    pub fn get() -> Self {
        static POOL: OnceLock<TorchPool> = OnceLock::new();
        *POOL.get_or_init(|| Self { team: find_team() })
    }

    /// Whether work runs on more than the calling thread.
    pub fn is_parallel(&self) -> bool {
        self.team.is_some()
    }

    /// Calls `work(index, size)` once on each of `size` threads at the same time and waits for all. `size` is
    /// `threads` or fewer (within another parallel region it is 1), so the work must be divided by `size`. A team
    /// other than [`super::GlobalState::threads`] is dearer, as the runtime has to regroup. A panic in `work` goes
    /// on in the caller after all threads are done.
    pub fn run(&self, threads: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let (Some(team), 2..) = (self.team, threads) else { return work(0, 1) };
        let job = Job { team, work, panic: Mutex::new(None) };
        let data = (&raw const job).cast_mut().cast();
        // SAFETY: the region ends before this function does, so `job` outlives it; `enter` does not unwind.
        unsafe { (team.parallel)(enter, data, c_uint::try_from(threads).unwrap_or(c_uint::MAX), 0) };
        let panic = job.panic.into_inner().unwrap_or_else(|e| e.into_inner());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

unsafe extern "C" fn enter(data: *mut c_void) {
    // SAFETY: `data` is the job of the region that this thread belongs to.
    let job = unsafe { &*data.cast_const().cast::<Job<'_>>() };
    // SAFETY: queries without arguments.
    let (index, size) = unsafe { ((job.team.index)(), (job.team.size)()) };
    let (index, size) = (usize::try_from(index).unwrap_or(0), usize::try_from(size).unwrap_or(1));
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.work)(index, size))) {
        let mut first = job.panic.lock().unwrap_or_else(|e| e.into_inner());
        first.get_or_insert(panic);
    }
}

fn find_team() -> Option<Team> {
    let find = |name: &CStr| {
        // SAFETY: a query by name.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    };
    let parallel = find(c"GOMP_parallel")?;
    let (index, size) = (find(c"omp_get_thread_num")?, find(c"omp_get_num_threads")?);
    // SAFETY: these are the signatures that the OpenMP runtimes of GCC and LLVM give these names.
    unsafe {
        Some(Team {
            parallel: std::mem::transmute::<*mut c_void, Parallel>(parallel),
            index: std::mem::transmute::<*mut c_void, Query>(index),
            size: std::mem::transmute::<*mut c_void, Query>(size),
        })
    }
}
