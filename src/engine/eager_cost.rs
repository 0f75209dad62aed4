//! Bytes of intermediates and results: what eager holds at most at a time.

use rustc_hash::FxHashMap;
use tilefuse_fusion::{Recording, Source, TensorId};

/// What eager does in the recorded run.
#[derive(Clone, Debug, Default)]
pub(crate) struct EagerCost {
    /// Calls that compute something.
    pub(crate) kernels: usize,
    /// Most bytes of computed tensors at a time.
    pub(crate) peak_bytes: u64,
    /// Bytes of computed tensors while each call runs.
    pub(crate) held_bytes: Vec<u64>,
}

/// Simulates the recorded run: a tensor's memory is taken when it is computed and given back after its last use.
pub(crate) fn eager_cost(recording: &Recording) -> EagerCost {
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    let info = |id: TensorId| &recording.tensors[id.0 as usize];
    for (at, call) in recording.calls.iter().enumerate() {
        let args = call.args.iter().flat_map(|(_, a)| a.tensors());
        for id in args.chain(call.results.iter().flatten().copied()) {
            last.insert(info(id).storage, at);
        }
    }
    for &id in &recording.outputs {
        last.insert(info(id).storage, recording.calls.len());
    }
    let mut alive: FxHashMap<u64, u64> = FxHashMap::default();
    let mut cost = EagerCost::default();
    let (mut now, mut ends) = (0, vec![Vec::new(); recording.calls.len() + 1]);
    for (at, call) in recording.calls.iter().enumerate() {
        let before = alive.len();
        for &id in call.results.iter().flatten() {
            let tensor = info(id);
            if matches!(tensor.source, Source::Call(_)) && !alive.contains_key(&tensor.storage) {
                alive.insert(tensor.storage, tensor.ty.bytes());
                now += tensor.ty.bytes();
                ends[last.get(&tensor.storage).copied().unwrap_or(at)].push(tensor.ty.bytes());
            }
        }
        cost.kernels += usize::from(alive.len() > before || !call.writes.is_empty());
        cost.peak_bytes = cost.peak_bytes.max(now);
        cost.held_bytes.push(now);
        now -= ends[at].iter().sum::<u64>();
    }
    cost
}
