//! Room for what follows operations from result to operands by recursion: a long chain of them takes a deep stack.

use tilefuse_block::Program;

use crate::error::{Error, Result};
use crate::timing;

/// Operations that any stack has room for.
const MAX_SHALLOW_OPS: usize = 256;
/// Bytes of stack for each operation: several functions that call one another, this crate's or LLVM's.
const BYTES: usize = 16 << 10;

/// Does work on a program with a stack that is deep enough for it.
pub(crate) fn with_room<T: Send>(program: &Program, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let mut ops = 0;
    program.walk(&mut |_| ops += 1);
    if ops <= MAX_SHALLOW_OPS {
        return work();
    }
    let failed =
        |message: &str| Error::Invalid { program: program.name.clone(), message: message.to_owned() };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size((8 << 20) + ops * BYTES);
        let thread = thread.spawn_scoped(scope, || timing::collect(work));
        let thread = thread.map_err(|e| failed(&format!("no thread with room for {ops} operations: {e}")))?;
        let (result, times) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        timing::spent(times);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_large_program_takes_counts_for_the_thread_that_asked() {
        let ops: String = (0..=MAX_SHALLOW_OPS).map(|i| format!("%a{i} = const 1 : i32 ")).collect();
        let text = format!("kernel @f() {{ {ops} }}");
        let program: Program = text.parse().unwrap();
        let asked = std::thread::current().id();
        let work = || {
            assert_ne!(std::thread::current().id(), asked);
            timing::timed(timing::Stage::Llvm, || std::thread::sleep(std::time::Duration::from_millis(2)));
            Ok(())
        };
        let (result, times) = timing::collect(|| with_room(&program, work));
        result.unwrap();
        assert!(times.llvm.as_millis() >= 2);
    }
}
