//! Threads of libtorch's team on processors of their own.

use crate::Error;

/// Threads of libtorch's team that are bound to one processor each. They may run on those of before when this is dropped.
#[derive(Debug)]
#[must_use = "threads are bound for as long as this lives"]
pub struct PinnedThreads {
    /// The threads, with the processors on which they could run before.
    #[cfg(target_os = "linux")]
    before: Vec<(libc::pid_t, libc::cpu_set_t)>,
}

/// Binds each thread of libtorch's team but the calling one, which belongs to it, to a processor of its own, among those on
/// which the calling thread may run. The operating system then moves no thread away from what it has in its caches. Fused
/// kernels and libtorch's operators run on this team when they are called from the same thread; the calling thread stays
/// free, for the threads that it starts take over its processors.
///
/// # Errors
/// [`Error::Unsupported`] where there are fewer processors than threads, or no such binding; nothing is bound then.
pub fn pin_threads() -> Result<PinnedThreads, Error> {
    #[cfg(target_os = "linux")]
    return linux::pin();
    #[cfg(not(target_os = "linux"))]
    Err(Error::Unsupported(String::from("threads are bound to processors on Linux only")))
}

impl PinnedThreads {
    /// How many threads are bound.
    pub fn count(&self) -> usize {
        #[cfg(target_os = "linux")]
        return self.before.len();
        #[cfg(not(target_os = "linux"))]
        0
    }
}

#[cfg(target_os = "linux")]
impl Drop for PinnedThreads {
    fn drop(&mut self) {
        for (thread, processors) in &self.before {
            // A thread that has ended meanwhile needs nothing.
            let _ = linux::set(*thread, processors);
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::{size_of, zeroed};
    use std::sync::Mutex;

    use libc::{cpu_set_t, pid_t};

    use super::PinnedThreads;
    use crate::Error;
    use crate::torch::TorchPool;

    pub(super) fn pin() -> Result<PinnedThreads, Error> {
        let threads = tch::get_num_threads().max(1) as usize;
        let free = get(0)?;
        // SAFETY: the number is below that of a set's bits.
        let is_free = |&processor: &usize| unsafe { libc::CPU_ISSET(processor, &free) };
        let processors: Vec<usize> = (0..8 * size_of::<cpu_set_t>()).filter(is_free).collect();
        if processors.len() < threads {
            let counts = format!("{threads} threads of libtorch's on {} processors", processors.len());
            return Err(Error::Unsupported(counts));
        }
        let team = Mutex::new(Vec::new());
        TorchPool::get().run(threads, &|index, _| {
            // SAFETY: a query without arguments.
            let thread = unsafe { libc::gettid() };
            team.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, thread));
        });
        let team = team.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut pinned = PinnedThreads { before: Vec::new() };
        for (index, thread) in team.into_iter().filter(|(index, _)| *index > 0) {
            let before = get(thread)?;
            // SAFETY: a set of bits, for which zeros are valid; the number is below that of its bits.
            let own = unsafe {
                let mut own: cpu_set_t = zeroed();
                libc::CPU_SET(processors.get(index).copied().unwrap_or_default(), &mut own);
                own
            };
            set(thread, &own)?;
            pinned.before.push((thread, before));
        }
        Ok(pinned)
    }

    /// The processors on which a thread may run; 0 is the calling one.
    pub(super) fn get(thread: pid_t) -> Result<cpu_set_t, Error> {
        // SAFETY: a set of bits, for which zeros are valid; the call writes no more than its size.
        let (code, set) = unsafe {
            let mut set: cpu_set_t = zeroed();
            (libc::sched_getaffinity(thread, size_of::<cpu_set_t>(), &mut set), set)
        };
        if code == 0 { Ok(set) } else { Err(failed()) }
    }

    pub(super) fn set(thread: pid_t, processors: &cpu_set_t) -> Result<(), Error> {
        // SAFETY: the call reads no more than the set.
        let code = unsafe { libc::sched_setaffinity(thread, size_of::<cpu_set_t>(), processors) };
        if code == 0 { Ok(()) } else { Err(failed()) }
    }

    fn failed() -> Error {
        let why = std::io::Error::last_os_error();
        Error::Unsupported(format!("threads cannot be bound to processors: {why}"))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn processors(thread: pid_t) -> Vec<usize> {
            let set = get(thread).unwrap();
            // SAFETY: the numbers are below that of a set's bits.
            (0..1024).filter(|&at| unsafe { libc::CPU_ISSET(at, &set) }).collect()
        }

        #[test]
        fn each_thread_has_a_processor_of_its_own() {
            let threads = tch::get_num_threads() as usize;
            let before = processors(0);
            match super::pin() {
                Ok(pinned) => {
                    assert_eq!(pinned.count(), threads - 1);
                    let bound: Vec<pid_t> = pinned.before.iter().map(|(thread, _)| *thread).collect();
                    let mut on: Vec<Vec<usize>> = bound.iter().map(|&thread| processors(thread)).collect();
                    assert!(on.iter().all(|on| on.len() == 1 && before.contains(&on[0])));
                    on.sort();
                    on.dedup();
                    assert_eq!(on.len(), threads - 1);
                    assert_eq!(processors(0), before);
                    drop(pinned);
                    assert!(bound.iter().all(|&thread| processors(thread) == before));
                }
                Err(error) => assert!(before.len() < threads, "{error}"),
            }
        }
    }
}
