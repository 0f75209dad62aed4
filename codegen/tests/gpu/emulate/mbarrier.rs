//! Barriers in shared memory that count arrivals and bytes of copies. A thread that waits where nothing happens any more ends the
//! test: its threads wait for each other.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::block;

/// So long nothing arrives anywhere only where nothing will.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

struct State {
    /// Arrivals of a phase.
    arrivals: i64,
    /// What is missing of the present one.
    pending: i64,
    bytes: i64,
    /// Phases that have ended.
    phase: u32,
}

/// The barriers of a block, by address.
#[derive(Default)]
pub(super) struct Mbarriers {
    states: Mutex<HashMap<u64, State>>,
    changed: Condvar,
}

impl Mbarriers {
    fn change(&self, address: u64, change: impl Fn(&mut State)) {
        let mut states = self.states.lock().unwrap();
        let state = states.get_mut(&address).expect("an mbarrier is made ready before it is used");
        change(state);
        assert!(state.pending >= 0, "more arrivals at an mbarrier than it expects");
        if state.pending == 0 && state.bytes == 0 {
            state.phase += 1;
            state.pending = state.arrivals;
            self.changed.notify_all();
        }
    }
}

pub(super) extern "C" fn init(address: u64, arrivals: u32) {
    let arrivals = i64::from(arrivals);
    let state = State { arrivals, pending: arrivals, bytes: 0, phase: 0 };
    block().mbarriers.states.lock().unwrap().insert(address, state);
}

/// Arrives, and expects so many bytes more.
pub(super) extern "C" fn arrive(address: u64, bytes: u32) {
    block().mbarriers.change(address, |state| {
        state.bytes += i64::from(bytes);
        state.pending -= 1;
    });
}

/// Bytes have been copied.
pub(super) fn complete(address: u64, bytes: u64) {
    block().mbarriers.change(address, |state| state.bytes -= bytes as i64);
}

/// Waits until the phase of a parity has ended.
pub(super) extern "C" fn wait(address: u64, parity: u32) {
    let mbarriers = &block().mbarriers;
    let mut states = mbarriers.states.lock().unwrap();
    while states.get(&address).expect("an mbarrier is made ready before it is used").phase % 2 == parity {
        let (next, timeout) = mbarriers.changed.wait_timeout(states, PATIENCE).unwrap();
        assert!(!timeout.timed_out(), "threads wait at an mbarrier for each other");
        states = next;
    }
}

/// The function that stands for an instruction.
pub(super) fn helper(text: &str) -> Option<(String, String)> {
    let number =
        |from: &str| -> Option<u32> { text.split(from).nth(1)?.trim_start().split(';').next()?.parse().ok() };
    let place = "  %at = ptrtoint ptr addrspace(3) %b to i64\n";
    let (name, more, body) = if text.contains("mbarrier.try_wait") {
        let call = "  call void @emulated_mbarrier_wait(i64 %at, i32 %parity)\n";
        ("emulated_copied".to_owned(), ", i32 %parity", format!("{place}{call}"))
    } else if text.starts_with("mbarrier.init") {
        let count = number("],")?;
        let call = format!("  call void @emulated_mbarrier_init(i64 %at, i32 {count})\n");
        (format!("emulated_ready_{count}"), "", format!("{place}{call}"))
    } else if text.starts_with("mbarrier.arrive.expect_tx") {
        let bytes = number("],")?;
        let call = format!("  call void @emulated_mbarrier_arrive(i64 %at, i32 {bytes})\n");
        (format!("emulated_expect_{bytes}"), "", format!("{place}{call}"))
    } else if text.starts_with("@$1 mbarrier.arrive") {
        let call = "  call void @emulated_mbarrier_arrive(i64 %at, i32 0)\n";
        let branch = "  br i1 %m, label %go, label %end\ngo:\n";
        ("emulated_arrive".to_owned(), ", i1 %m", format!("{branch}{place}{call}  br label %end\nend:\n"))
    } else {
        return None;
    };
    let function =
        format!("define internal void @{name}(ptr addrspace(3) %b{more}) {{\n{body}  ret void\n}}\n");
    Some((name, function))
}
