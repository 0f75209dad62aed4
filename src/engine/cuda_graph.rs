//! CUDA graphs of plans: what a call queues is captured once, and later calls launch it as one.
//!
//! A graph has addresses in it. It begins with copies of the inputs to memory of its own, but for large ones, to whose address
//! the graph is bound, and ends with copies of the results, which are the caller's; the callers' addresses in these are set
//! before each launch. A parameter that moved needs another graph. A graph is launched on the stream that it was captured for alone.
//! The steps of a plan are the graph; what follows them (results, write-backs) is queued after it as it always is.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use tch::Tensor;
use tilefuse_codegen::cuda::{self, Device, Event};
use tilefuse_fusion::plan::{Plan, StepKind};
use tilefuse_fusion::{Dims, Op};

use super::exec::Memory;
use super::kernels::{Kernel, Target, kernel};
use crate::Error;
use crate::options::CudaGraphs;
use crate::torch::{self, DeviceId, GraphPool, Meta, OpenPool, empty_strided, view_of};

/// Bytes of an input up to which it is copied.
const STAGED_BYTES: usize = 1 << 20;

/// Bytes of alignment of inputs that kernels make use of, which a signature keeps.
const INPUT_ALIGNMENT: usize = 16;

/// Bytes of results, which are copied, up to which a graph is made.
const RESULT_BYTES: u64 = 32 << 20;

/// Graphs of one plan: for streams, and for addresses of parameters and large inputs.
const MAX_GRAPHS: usize = 4;

/// Streams of callers that graphs are captured for.
const MAX_STREAMS: usize = 16;

/// The share of a call's time that launches take the host, from which on a graph is made.
const LAUNCH_OVERHEAD_SHARE: f64 = 0.5;

/// The graphs of a plan.
#[derive(Debug)]
pub(crate) struct Graphs {
    mode: CudaGraphs,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// No graph yet: so many calls ran the plan.
    Watching {
        calls: u32,
        timed: Option<Timed>,
    },
    Ready(Vec<PlanGraph>),
    /// None is made, for this reason.
    Without(String),
}

/// A call that was timed, perhaps not at its end yet.
#[derive(Debug)]
struct Timed {
    start: Event,
    end: Event,
    launch_us: f64,
}

/// A captured plan, and all that its addresses point to.
#[derive(Debug)]
pub(crate) struct PlanGraph {
    /// Before the memory, so that it is dropped first.
    captured: Captured,
    stream: usize,
    params: SmallVec<[usize; 32]>,
    staged: Vec<Staged>,
    results: Vec<ResultCopy>,
    /// Inputs, and the addresses at which the graph reads them.
    bound: Vec<(usize, usize)>,
    pub(crate) memory: Memory,
}

/// An input that the graph copies to memory of its own.
#[derive(Debug)]
struct Staged {
    input: usize,
    bytes: usize,
    /// Owned for its drop.
    _copy: Tensor,
    address: usize,
    /// Set by the capture.
    node: Option<CopyNode>,
}

/// A result that the graph copies to memory of the caller's.
#[derive(Debug)]
pub(crate) struct ResultCopy {
    output: usize,
    address: usize,
    dtype: i8,
    device: DeviceId,
    shape: Dims,
    strides: Dims,
    node: CopyNode,
}

/// How a call runs its steps.
pub(crate) enum Way<'a> {
    /// One by one.
    Steps,
    /// One by one, with the time taken.
    Timed(Event),
    /// By a graph of these, of which one may have to be captured first.
    Graph(Chosen<'a>),
}

/// The graphs of a plan, locked for a call.
pub(crate) struct Chosen<'a>(MutexGuard<'a, State>);

impl Graphs {
    /// None yet.
    pub(crate) fn new(mode: CudaGraphs, plan: &Plan, target: Target) -> Graphs {
        let state = match obstacle(mode, plan, target) {
            Some(reason) => State::Without(reason),
            None => State::Watching { calls: 0, timed: None },
        };
        Graphs { mode, state: Mutex::new(state) }
    }

    /// How many there are, or why there are none, in words.
    pub(crate) fn describe(&self) -> String {
        match &*self.lock() {
            State::Watching { .. } => String::from("none, for too few calls were made yet"),
            State::Ready(graphs) => format!("{} captured", graphs.len()),
            State::Without(reason) => format!("none, for {reason}"),
        }
    }

    /// Whether calls launch one.
    pub(crate) fn are_captured(&self) -> bool {
        matches!(&*self.lock(), State::Ready(graphs) if !graphs.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the next call on a stream of a device runs its steps.
    ///
    /// # Safety
    /// `stream` is a live `CUstream` of the device, or null for its default stream.
    pub(crate) unsafe fn way(&self, device: &Arc<Device>, stream: *mut c_void) -> Result<Way<'_>, Error> {
        let mut state = self.lock();
        match &mut *state {
            State::Without(_) => return Ok(Way::Steps),
            State::Ready(_) => {}
            // What is recorded while somebody else captures the stream becomes part of their graph.
            // SAFETY: passed on to the caller.
            State::Watching { .. } if unsafe { cuda::is_capturing(device, stream) }? => {
                return Ok(Way::Steps);
            }
            State::Watching { calls, timed } => {
                *calls += 1;
                match (self.mode, *calls, timed.take()) {
                    (_, 1, _) => return Ok(Way::Steps),
                    (CudaGraphs::Always, ..) => *state = State::Ready(Vec::new()),
                    (_, _, None) => return Ok(Way::Timed(Event::new(device)?)),
                    (_, _, Some(found)) if !found.end.has_passed()? => {
                        *timed = Some(found);
                        return Ok(Way::Steps);
                    }
                    (_, _, Some(found)) => *state = State::of_timing(found.verdict()),
                }
            }
        }
        // SAFETY: passed on to the caller.
        if matches!(*state, State::Without(_)) || unsafe { cuda::is_capturing(device, stream) }? {
            return Ok(Way::Steps);
        }
        Ok(Way::Graph(Chosen(state)))
    }

    /// Takes down what a timed call took.
    ///
    /// # Safety
    /// As for [`Graphs::way`].
    pub(crate) unsafe fn timed(
        &self,
        device: &Arc<Device>,
        start: Event,
        launching: Instant,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let launch_us = launching.elapsed().as_secs_f64() * 1e6;
        let end = Event::new(device)?;
        // SAFETY: passed on to the caller.
        unsafe { end.record_raw(stream) }?;
        if let State::Watching { timed, .. } = &mut *self.lock() {
            *timed = Some(Timed { start, end, launch_us });
        }
        Ok(())
    }
}

impl State {
    /// Graphs or none, by what a call took; none where this driver cannot say.
    fn of_timing(verdict: Result<State, Error>) -> State {
        verdict.unwrap_or_else(|error| State::Without(error.to_string()))
    }
}

impl Timed {
    fn verdict(&self) -> Result<State, Error> {
        let took = self.end.micros_since(&self.start)?;
        if self.launch_us >= took * LAUNCH_OVERHEAD_SHARE {
            return Ok(State::Ready(Vec::new()));
        }
        let overhead = self.launch_us;
        Ok(State::Without(format!("host launch overhead is {overhead:.0} us of a call's {took:.0} us")))
    }
}

impl Chosen<'_> {
    /// The graph for a call, if there is one.
    pub(crate) fn find(
        &mut self,
        stream: *mut c_void,
        params: &[*mut c_void],
        inputs: &[*mut c_void],
    ) -> Option<&mut PlanGraph> {
        let State::Ready(graphs) = &mut *self.0 else { return None };
        graphs.iter_mut().find(|graph| graph.fits(stream, params, inputs))
    }

    /// Whether another graph may be captured.
    pub(crate) fn has_room(&self) -> bool {
        matches!(&*self.0, State::Ready(graphs) if graphs.len() < MAX_GRAPHS)
    }

    pub(crate) fn add(&mut self, graph: PlanGraph) -> Option<&mut PlanGraph> {
        let State::Ready(graphs) = &mut *self.0 else { return None };
        graphs.push(graph);
        graphs.last_mut()
    }

    /// Makes no more graphs, and lets go of those there are.
    pub(crate) fn give_up(&mut self, reason: String) {
        tracing::info!("no CUDA graph: {reason}");
        *self.0 = State::Without(reason);
    }
}

impl PlanGraph {
    fn fits(&self, stream: *mut c_void, params: &[*mut c_void], inputs: &[*mut c_void]) -> bool {
        let bound =
            |&(input, address): &(usize, usize)| inputs.get(input).is_some_and(|&p| p as usize == address);
        // A signature keeps the least alignment, and a graph's copies and libtorch's kernels were chosen by that of one call.
        let aligned = |staged: &Staged| {
            let misaligned = |address: usize| address % INPUT_ALIGNMENT;
            let same = |p: &*mut c_void| misaligned(*p as usize) == misaligned(staged.address);
            inputs.get(staged.input).is_some_and(same)
        };
        self.stream == stream as usize
            && self.params.len() == params.len()
            && self.params.iter().zip(params).all(|(&a, &b)| a == b as usize)
            && self.bound.iter().all(bound)
            && self.staged.iter().all(aligned)
    }

    /// Queues the graph; gives the results that it copies, by their positions among the outputs.
    ///
    /// # Safety
    /// `stream` is the live stream that the graph was captured for, and `inputs` are the addresses of inputs of the
    /// plan's signature, in live memory, that the graph fits.
    pub(crate) unsafe fn launch(
        &self,
        inputs: &[*mut c_void],
        stream: *mut c_void,
    ) -> Result<Vec<(usize, Tensor)>, Error> {
        let exec = self.captured.graph.exec();
        for staged in &self.staged {
            let Some(node) = &staged.node else { continue };
            let from = inputs.get(staged.input).map_or(0, |&p| p as usize);
            // SAFETY: the signature says how many bytes an input spans, and the copy has as many.
            unsafe { node.set(exec, staged.address, from) }?;
        }
        let mut results = Vec::with_capacity(self.results.len());
        for kept in &self.results {
            let result = empty_strided(&kept.shape, &kept.strides, kept.dtype, kept.device)?;
            // SAFETY: the result is new on this stream, and spans as many bytes as what it is a copy of.
            unsafe { kept.node.set(exec, Meta::of(&result)?.data, kept.address) }?;
            results.push((kept.output, result));
        }
        // SAFETY: the graph's memory belongs to it, or to parameters and inputs that are found where they were when it
        // was captured; work on one stream is done in order, so that no earlier launch is still at it.
        unsafe { self.captured.graph.launch(stream) }?;
        Ok(results)
    }
}

/// Inputs as a graph reads them.
pub(crate) struct GraphInputs {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) data: Vec<*mut c_void>,
    staged: Vec<Staged>,
    bound: Vec<(usize, usize)>,
}

impl GraphInputs {
    /// Takes memory for small inputs; large ones are read where they are.
    pub(crate) fn of(inputs: &[Tensor]) -> Result<GraphInputs, Error> {
        let mut made =
            GraphInputs { tensors: Vec::new(), data: Vec::new(), staged: Vec::new(), bound: Vec::new() };
        for (input, tensor) in inputs.iter().enumerate() {
            let meta = Meta::of(tensor)?;
            let bytes = meta.extent().len();
            if bytes == 0 || bytes > STAGED_BYTES {
                made.bound.push((input, meta.data));
                made.data.push(meta.data as *mut c_void);
                made.tensors.push(tensor.shallow_clone());
                continue;
            }
            // As aligned as the input and no more: libtorch's kernels are chosen by it, and a launch has the bits of other calls.
            let skip = meta.data % INPUT_ALIGNMENT;
            let copy = empty_strided(&[(skip + bytes) as i64], &[1], 0, meta.device)?;
            let address = Meta::of(&copy)?.data + skip;
            made.tensors.push(view_of(&copy, skip as i64, meta.dtype, meta.sizes(), meta.strides())?);
            made.data.push(address as *mut c_void);
            made.staged.push(Staged { input, bytes, _copy: copy, address, node: None });
        }
        Ok(made)
    }

    /// Queues the copies, as the first part of a capture. `from` are the addresses of the inputs in this call.
    ///
    /// # Safety
    /// `stream` is a live stream of the device that is being captured by this thread.
    pub(crate) unsafe fn stage(
        &mut self,
        device: &Arc<Device>,
        from: &[*mut c_void],
        stream: *mut c_void,
    ) -> Result<(), Error> {
        for staged in &mut self.staged {
            let from = from.get(staged.input).map_or(0, |&p| p as usize);
            // SAFETY: passed on to the caller; nothing runs before the graph does, with addresses of that time.
            staged.node =
                Some(unsafe { CopyNode::queue(device, staged.address, from, staged.bytes, stream) }?);
        }
        Ok(())
    }

    /// The graph of a capture that read these.
    pub(crate) fn graph(
        self,
        captured: Captured,
        stream: *mut c_void,
        params: &[*mut c_void],
        memory: Memory,
        results: Vec<ResultCopy>,
    ) -> PlanGraph {
        PlanGraph {
            captured,
            results,
            stream: stream as usize,
            params: params.iter().map(|&p| p as usize).collect(),
            staged: self.staged,
            bound: self.bound,
            memory,
        }
    }
}

/// Held by the one thread that captures.
static CAPTURING: Mutex<()> = Mutex::new(());

/// Captures what `work` queues on the stream that it is given; `None` where no stream is left to capture on.
///
/// The stream is one of our own for each stream of callers, so that no scratch memory that libtorch keeps for each stream is
/// shared with work outside of graphs, or between streams of callers.
pub(crate) fn capture<T>(
    device: &Arc<Device>,
    caller: *mut c_void,
    work: impl FnOnce(*mut c_void) -> Result<T, Error>,
) -> Result<Option<(Captured, T)>, Error> {
    let _one_at_a_time = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(stream) = capture_stream(device, caller)? else { return Ok(None) };
    load_copies(device)?;
    // SAFETY: streams for captures are never destroyed, and used for captures alone, one at a time.
    let pool = unsafe { OpenPool::new(device.ordinal() as i8, stream.raw()) }?;
    let capture = cuda::Capture::begin(&stream)?;
    let made = work(stream.raw())?;
    let graph = capture.end()?;
    Ok(Some((Captured { graph, _pool: pool.close()? }, made)))
}

/// A graph and the memory that libtorch's operators took for it.
#[derive(Debug)]
pub(crate) struct Captured {
    graph: cuda::Graph,
    /// Owned for its drop, after the graph's.
    _pool: GraphPool,
}

fn capture_stream(device: &Arc<Device>, caller: *mut c_void) -> Result<Option<Arc<cuda::Stream>>, Error> {
    type Streams = Mutex<HashMap<(usize, usize), Arc<cuda::Stream>>>;
    static STREAMS: OnceLock<Streams> = OnceLock::new();
    let mut streams = STREAMS.get_or_init(Streams::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = (device.ordinal(), caller as usize);
    if let Some(stream) = streams.get(&key) {
        return Ok(Some(stream.clone()));
    }
    if streams.len() >= MAX_STREAMS {
        return Ok(None);
    }
    let stream = Arc::new(cuda::Stream::detached(device)?);
    streams.insert(key, stream.clone());
    Ok(Some(stream))
}

/// Why a plan can never be a graph.
fn obstacle(mode: CudaGraphs, plan: &Plan, target: Target) -> Option<String> {
    let Target::Cuda(ordinal) = target else { return Some(String::from("the plan runs on the host")) };
    if mode == CudaGraphs::Off {
        return Some(String::from("CUDA graphs are turned off"));
    }
    if plan.steps.len() < 2 {
        return Some(String::from("a single step is as quick without"));
    }
    let device = tilefuse_fusion::Device::Cuda(ordinal);
    for id in plan.graph.ids() {
        if plan.graph.node(id).outs.iter().any(|ty| ty.device != device) {
            return Some(String::from("a tensor is on the host"));
        }
    }
    let call = |step: &tilefuse_fusion::plan::Step| {
        let StepKind::Extern(step) = &step.kind else { return None };
        let Op::Aten(call) = &plan.graph.node(step.node).op else { return None };
        let name = call.full_name();
        if call.random {
            return Some(format!("{name} draws random numbers"));
        }
        let queues = call.op.starts_with("aten::");
        (!queues).then(|| format!("{name} may do more than queue work"))
    };
    if let Some(reason) = plan.steps.iter().find_map(call) {
        return Some(reason);
    }
    let results: u64 = plan.outputs.iter().map(|place| plan.graph.ty(place.base()).bytes()).sum();
    (results > RESULT_BYTES).then(|| format!("copying {} MB of results would be dear", results >> 20))
}

impl ResultCopy {
    /// Queues the copy of a result as a part of a capture; `None` of one that is not one small piece of memory.
    ///
    /// # Safety
    /// As for [`GraphInputs::stage`].
    pub(crate) unsafe fn queue(
        device: &Arc<Device>,
        output: usize,
        tensor: &Tensor,
        stream: *mut c_void,
    ) -> Result<Option<ResultCopy>, Error> {
        let meta = Meta::of(tensor)?;
        let (bytes, dense) = (meta.extent().len(), meta.numel as usize * torch::element_size(meta.dtype));
        if !meta.flags.is_plain() || bytes == 0 || bytes > 2 * dense {
            return Ok(None);
        }
        // SAFETY: passed on to the caller; nothing runs before the graph does, with addresses of that time.
        let node = unsafe { CopyNode::queue(device, meta.data, meta.data, bytes, stream) }?;
        Ok(Some(ResultCopy {
            output,
            address: meta.data,
            dtype: meta.dtype,
            device: meta.device,
            shape: meta.sizes().into(),
            strides: meta.strides().into(),
            node,
        }))
    }
}

/// A copy in a graph: a launch of a kernel whose addresses can be changed cheaply.
#[derive(Debug)]
struct CopyNode {
    kernel: Arc<cuda::Kernel>,
    node: cuda::Node,
    grid: u32,
    count: u64,
    /// The addresses that the next launch has, to and from, where they are known.
    now: Cell<Option<(usize, usize)>>,
}

/// Elements that an instance of a copy moves.
const COPY_BLOCK: usize = 1024;

impl CopyNode {
    /// Queues a copy of `bytes` bytes.
    ///
    /// # Safety
    /// As for [`GraphInputs::stage`].
    unsafe fn queue(
        device: &Arc<Device>,
        to: usize,
        from: usize,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<CopyNode, Error> {
        // What libtorch allocates lies at multiples of more than 16 bytes, and a signature keeps an input's alignment.
        let wide = (to | from | bytes).is_multiple_of(16);
        let kernel = copy_kernel(device.ordinal() as u32, wide)?;
        let count = if wide { bytes / 4 } else { bytes };
        let grid = count.div_ceil(COPY_BLOCK) as u32;
        // SAFETY: the caller vouches for the stream; nothing runs yet.
        unsafe { kernel.launch(stream, u64::from(grid), &[from as u64, to as u64, count as u64]) }?;
        // SAFETY: passed on to the caller.
        let node = unsafe { cuda::Node::last_on(device, stream) }?;
        Ok(CopyNode { kernel, node, grid, count: count as u64, now: Cell::new(Some((to, from))) })
    }

    /// Sets the addresses for launches from now on. Callers that allocate the same each time often pass the same ones, which
    /// costs nothing.
    ///
    /// # Safety
    /// `exec` is the live graph of the capture; both addresses are valid for the bytes that were captured, until the
    /// launches have ended, and as aligned.
    unsafe fn set(&self, exec: *mut c_void, to: usize, from: usize) -> Result<(), Error> {
        if self.now.replace(None) != Some((to, from)) {
            // SAFETY: passed on to the caller.
            unsafe {
                self.kernel.set_arguments(exec, self.node, self.grid, &[from as u64, to as u64, self.count])
            }?;
        }
        self.now.set(Some((to, from)));
        Ok(())
    }
}

/// Loads the kernels that copy, which cannot be done within a capture.
fn load_copies(device: &Device) -> Result<(), Error> {
    [true, false].into_iter().try_for_each(|wide| copy_kernel(device.ordinal() as u32, wide).map(drop))
}

/// The kernel that copies: 4 bytes an element, where the addresses and the size are multiples of 16, or 1.
fn copy_kernel(ordinal: u32, wide: bool) -> Result<Arc<cuda::Kernel>, Error> {
    type Loaded = Vec<((u32, bool), Arc<cuda::Kernel>)>;
    static LOADED: Mutex<Loaded> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, kernel)) = loaded.iter().find(|(key, _)| *key == (ordinal, wide)) {
        return Ok(kernel.clone());
    }
    let (name, elem, align) = if wide { ("copy_words", "i32", 16) } else { ("copy_bytes", "u8", 1) };
    let text = format!(
        "kernel @{name}(%from: ptr<{elem}> align({align}), %to: ptr<{elem}> align({align}), %n: i64) warps(8) early {{
           %instance = program_id 0
           %block = const {COPY_BLOCK}:i32
           %first = map mul %instance, %block
           %start = splat %first [{COPY_BLOCK}]
           %lanes = range 0 {COPY_BLOCK}
           %at = map add %start, %lanes
           %wide = cast %at i64
           %end = splat %n [{COPY_BLOCK}]
           %inside = map lt %wide, %end
           %v = load %from, %at, mask %inside
           store %to, %at, %v, mask %inside
         }}"
    );
    let program = tilefuse_block::parse_valid(&text).map_err(|e| Error::Internal(format!("{name}: {e}")))?;
    match kernel(&program, Target::Cuda(ordinal))?.0 {
        Kernel::Cuda(kernel) => {
            loaded.push(((ordinal, wide), kernel.clone()));
            Ok(kernel)
        }
        Kernel::Host(_) => Err(Error::Internal(format!("{name} was compiled for the host"))),
    }
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::pipeline::plan;
    use tilefuse_fusion::{Profile, parse_graph};

    use super::*;

    const SUM: &str = "%1 = aten::cumsum(self=%0) : f32[300]@cuda:0";
    const SECOND: &str = "%2 = aten::cumsum(self=%1) : f32[300]@cuda:0";

    /// Why the plan of calls has no graph.
    fn reason(mode: CudaGraphs, target: Target, calls: &[&str]) -> Option<String> {
        let (last, calls) = (calls.len(), calls.join("\n"));
        let text = format!("graph {{\n%0 = input 0 : f32[300]@cuda:0\n{calls}\noutputs %{last}\n}}");
        let plan = plan(&parse_graph(&text).unwrap(), &Profile::gpu(132, 4200.0)).unwrap();
        obstacle(mode, &plan, target)
    }

    #[test]
    fn plans_without_graphs_say_why() {
        let auto = |calls: &[&str]| reason(CudaGraphs::Auto, Target::Cuda(0), calls);
        assert_eq!(auto(&[SUM, SECOND]), None);
        let large = SECOND.replace("[300]", "[16777216]");
        let why = [
            reason(CudaGraphs::Auto, Target::Host, &[SUM, SECOND]),
            reason(CudaGraphs::Off, Target::Cuda(0), &[SUM, SECOND]),
            auto(&[SUM]),
            auto(&[SUM, "%2 = aten::cumsum(self=%1) : f32[300]"]),
            auto(&[SUM, "%2 = aten::bernoulli(self=%1) !random : f32[300]@cuda:0"]),
            auto(&[SUM, "%2 = my::kernel(self=%1) : f32[300]@cuda:0"]),
            auto(&[SUM, &large]),
        ];
        expect_test::expect![[r#"
            the plan runs on the host
            CUDA graphs are turned off
            a single step is as quick without
            a tensor is on the host
            aten::bernoulli draws random numbers
            my::kernel may do more than queue work
            copying 64 MB of results would be dear"#]]
        .assert_eq(&why.map(Option::unwrap_or_default).join("\n"));
    }
}
