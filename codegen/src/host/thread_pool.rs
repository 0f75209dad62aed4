//! Where instances of a program run.

/// Threads that share the instances of a program.
pub trait Pool: Sync {
    /// How many threads there are, at least 1.
    fn threads(&self) -> usize;

    /// Calls `task` once with every number below `tasks`, on any thread, and returns when all calls have. Numbers that
    /// follow each other should run on one thread, in order.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));

    /// [`Pool::run`] of tasks that take about so many nanoseconds each. Who knows that a task is short may leave it to the
    /// thread in whose caches its data is.
    fn run_timed(&self, tasks: usize, nanoseconds: u64, task: &(dyn Fn(usize) + Sync)) {
        let _ = nanoseconds;
        self.run(tasks, task);
    }
}

/// The caller's thread alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Pool for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }
}

/// Rayon's current thread pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rayon;

impl Pool for Rayon {
    fn threads(&self) -> usize {
        rayon::current_num_threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        use rayon::prelude::*;
        (0..tasks).into_par_iter().with_max_len(1).for_each(task);
    }
}
