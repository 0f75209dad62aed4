//! Where the time of compiling a kernel goes.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A stage of making a kernel of a block program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Checks and passes over the block program.
    Passes,
    /// From the block program to LLVM IR: loops or layouts.
    Lowering,
    /// LLVM: passes, and to an object or to PTX.
    Llvm,
    /// Loading the object, or the driver's compilation of PTX.
    Load,
}

/// Time by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Of [`Stage::Passes`].
    pub passes: Duration,
    /// Of [`Stage::Lowering`].
    pub lowering: Duration,
    /// Of [`Stage::Llvm`].
    pub llvm: Duration,
    /// Of [`Stage::Load`].
    pub load: Duration,
}

impl std::ops::AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        self.passes += other.passes;
        self.lowering += other.lowering;
        self.llvm += other.llvm;
        self.load += other.load;
    }
}

thread_local! {
    static TIMES: Cell<Times> = Cell::new(Times::default());
}

/// Runs something, and says what this thread spent in which stages meanwhile.
pub fn collect<T>(work: impl FnOnce() -> T) -> (T, Times) {
    let outer = TIMES.take();
    let result = work();
    let times = TIMES.take();
    let mut all = outer;
    all += times;
    TIMES.set(all);
    (result, times)
}

/// Counts what another thread spent for this one.
pub(crate) fn spent(times: Times) {
    let mut all = TIMES.get();
    all += times;
    TIMES.set(all);
}

/// Runs a part of a stage.
pub(crate) fn timed<T>(stage: Stage, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let mut times = TIMES.get();
    let time = match stage {
        Stage::Passes => &mut times.passes,
        Stage::Lowering => &mut times.lowering,
        Stage::Llvm => &mut times.llvm,
        Stage::Load => &mut times.load,
    };
    *time += start.elapsed();
    TIMES.set(times);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_has_what_was_spent_within_it() {
        let wait = |stage| timed(stage, || std::thread::sleep(Duration::from_millis(2)));
        let ((inner, all), _) = collect(|| {
            collect(|| {
                wait(Stage::Passes);
                let ((), inner) = collect(|| wait(Stage::Llvm));
                inner
            })
        });
        assert!(inner.llvm >= Duration::from_millis(2) && inner.passes.is_zero());
        assert!(all.llvm == inner.llvm && all.passes >= Duration::from_millis(2));
    }
}
