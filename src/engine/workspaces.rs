//! Memory for the intermediates of calls. All plans of a model share it: signatures take turns, so that the largest one says
//! how much is held.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::Tensor;

use crate::Error;
use crate::torch::{DeviceId, Meta, empty_strided};

/// The memory that one call at a time works in.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(super) arena: Option<Tensor>,
    /// The address of the arena.
    pub(super) base: usize,
    bytes: u64,
    /// Where its calls are queued.
    stream: usize,
    device: DeviceId,
}

impl Workspace {
    pub(super) fn none() -> Workspace {
        Workspace { arena: None, base: 0, bytes: 0, stream: 0, device: DeviceId::CPU }
    }

    /// New memory.
    pub(super) fn new(bytes: u64, device: DeviceId, stream: usize) -> Result<Workspace, Error> {
        if bytes == 0 {
            return Ok(Workspace::none());
        }
        let arena = empty_strided(&[bytes as i64], &[1], 0, device)?;
        let base = Meta::of(&arena)?.data;
        Ok(Workspace { arena: Some(arena), base, bytes, stream, device })
    }

    /// Another handle of the same memory.
    pub(super) fn share(&self) -> Workspace {
        Workspace { arena: self.arena.as_ref().map(Tensor::shallow_clone), ..*self }
    }
}

/// The memory that no call works in now.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Workspace>>,
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least that much memory for calls on a stream: the least that is enough, or in place of what is too small.
    pub(super) fn take(&self, bytes: u64, device: DeviceId, stream: usize) -> Result<Workspace, Error> {
        if bytes == 0 {
            return Ok(Workspace::none());
        }
        let mut idle = self.idle();
        let here = idle.iter().enumerate().filter(|(_, w)| w.stream == stream && w.device == device);
        let best = here.min_by_key(|(_, w)| (w.bytes < bytes, w.bytes.abs_diff(bytes)));
        let found = best.map(|(at, _)| at).map(|at| idle.swap_remove(at));
        drop(idle);
        match found.filter(|w| w.bytes >= bytes) {
            Some(workspace) => Ok(workspace),
            None => Workspace::new(bytes, device, stream),
        }
    }

    /// Memory of just that size, to be kept by a CUDA graph.
    pub(super) fn take_exactly(
        &self,
        bytes: u64,
        device: DeviceId,
        stream: usize,
    ) -> Result<Workspace, Error> {
        let mut idle = self.idle();
        let fits = |w: &Workspace| w.bytes == bytes && w.stream == stream && w.device == device;
        let found = idle.iter().position(fits).map(|at| idle.swap_remove(at));
        drop(idle);
        found.map_or_else(|| Workspace::new(bytes, device, stream), Ok)
    }

    /// Takes memory back.
    pub(super) fn give(&self, workspace: Workspace) {
        if workspace.arena.is_some() {
            self.idle().push(workspace);
        }
    }

    /// Frees what is idle.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle());
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_serves_smaller_calls_and_goes_for_larger_ones() {
        let pool = Pool::default();
        let take = |bytes| pool.take(bytes, DeviceId::CPU, 0).unwrap();
        let first = take(1 << 12);
        let base = first.base;
        pool.give(first);
        let smaller = take(100);
        assert_eq!(smaller.base, base);
        // Two calls at once.
        let second = take(100);
        assert_ne!(second.base, base);
        pool.give(smaller);
        pool.give(second);
        assert_eq!(take(100).bytes, 100);
        assert_eq!(pool.take_exactly(99, DeviceId::CPU, 0).unwrap().bytes, 99);
        let larger = take(1 << 13);
        assert!(larger.bytes == 1 << 13 && pool.idle().is_empty());
        pool.give(larger);
        assert_eq!(pool.take(1, DeviceId::CPU, 7).unwrap().bytes, 1);
        pool.clear();
        assert!(pool.idle().is_empty());
    }
}
