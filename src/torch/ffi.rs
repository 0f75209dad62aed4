//! The C interface of `shim/`, and the conversions between its conventions and Rust's.

use std::ffi::{CStr, c_char, c_void};

use tch::Tensor;

use super::Meta;
use crate::Error;

/// The highest rank whose sizes and strides `Meta` and `Expect` hold.
pub const MAX_RANK: usize = 8;

/// A libtorch tensor handle: `at::Tensor *`, as tch holds it.
pub(super) type RawTensor = *const c_void;

/// A stored call, owned by C++.
#[repr(C)]
pub(super) struct RawCall {
    _opaque: [u8; 0],
}

/// The identity of a tensor and its storage, owned by C++.
#[repr(C)]
pub(super) struct RawWeak {
    _opaque: [u8; 0],
}

/// Memory for a CUDA graph, owned by C++.
#[repr(C)]
pub(super) struct RawPool {
    _opaque: [u8; 0],
}

/// The functions that a recorder receives calls through. None may unwind.
#[repr(C)]
pub(super) struct Hooks {
    pub(super) ctx: *mut c_void,
    pub(super) before:
        unsafe extern "C" fn(ctx: *mut c_void, op: u64, call: *mut RawCall, args: *const u8, len: usize),
    pub(super) after: unsafe extern "C" fn(ctx: *mut c_void, results: *const u8, len: usize),
    pub(super) failed: unsafe extern "C" fn(ctx: *mut c_void),
    pub(super) broken: unsafe extern "C" fn(ctx: *mut c_void),
    pub(super) touched: unsafe extern "C" fn(ctx: *mut c_void),
}

/// `TfExpect`: what a tensor must look like. See [`super::check_metas`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawExpect {
    pub(super) sizes: [i64; MAX_RANK],
    pub(super) strides: [i64; MAX_RANK],
    pub(super) offset: i64,
    pub(super) align: u64,
    pub(super) flags: u32,
    pub(super) dtype: i8,
    pub(super) device_type: i8,
    pub(super) device_index: i8,
    pub(super) rank: u8,
}

/// `TfGlobal`: libtorch's state that changes what operators do.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RawGlobal {
    pub(super) included: u64,
    pub(super) excluded: u64,
    pub(super) threads: i32,
    pub(super) grad: u8,
    pub(super) inference: u8,
    pub(super) autocast_cpu: u8,
    pub(super) autocast_cuda: u8,
    pub(super) autocast_cpu_dtype: u8,
    pub(super) autocast_cuda_dtype: u8,
    pub(super) deterministic: u8,
    pub(super) tf32_matmul: u8,
    pub(super) tf32_conv: u8,
    pub(super) default_dtype: u8,
    pub(super) fill_uninitialized: u8,
}

/// What an operator of the Rust side gives back, owned by C++.
#[repr(C)]
pub(super) struct RawAnswer {
    _opaque: [u8; 0],
}

/// What an operator of the Rust side does. It owns the handles of the inputs, and does not unwind.
pub(super) type Body =
    unsafe extern "C" fn(ctx: *const c_void, inputs: *const *mut c_void, n: usize, answer: *mut RawAnswer);

pub(super) type Sink = unsafe extern "C" fn(ctx: *mut c_void, bytes: *const u8, len: usize);

unsafe extern "C" {
    fn tf_free(message: *mut c_char);
    pub(super) fn tf_record_start(hooks: *const Hooks) -> *mut c_char;
    pub(super) fn tf_record_stop();
    pub(super) fn tf_script_stack(ctx: *mut c_void, sink: Sink) -> *mut c_char;
    pub(super) fn tf_script_lines(ctx: *mut c_void, sink: Sink) -> *mut c_char;
    pub(super) fn tf_recording() -> bool;
    pub(super) fn tf_script_converted(
        path: *const c_char,
        dtype: i8,
        ctx: *mut c_void,
        sink: Sink,
    ) -> *mut c_char;
    pub(super) fn tf_foreign_calls() -> u64;
    pub(super) fn tf_weak_new(t: RawTensor, out: *mut *mut RawWeak) -> *mut c_char;
    pub(super) fn tf_weak_drop(weak: *mut RawWeak);
    pub(super) fn tf_weak_lock(weak: *const RawWeak, out: *mut *mut c_void) -> *mut c_char;
    pub(super) fn tf_weak_storage_holders(weak: *const RawWeak) -> i64;
    pub(super) fn tf_watch(weak: *const RawWeak, on: bool) -> *mut c_char;
    pub(super) fn tf_tensor_of_impl(tensor_impl: u64, out: *mut *mut c_void) -> *mut c_char;
    pub(super) fn tf_base(t: RawTensor, out: *mut *mut c_void) -> *mut c_char;
    pub(super) fn tf_snapshot(t: RawTensor, out: *mut *mut c_void) -> *mut c_char;
    pub(super) fn tf_zero(t: RawTensor) -> *mut c_char;
    pub(super) fn tf_call_new(
        name: *const c_char,
        overload: *const c_char,
        bytes: *const u8,
        len: usize,
        out: *mut *mut RawCall,
    ) -> *mut c_char;
    pub(super) fn tf_call_opaque(call: *const RawCall) -> bool;
    pub(super) fn tf_call_drop(call: *mut RawCall);
    pub(super) fn tf_call_schema(call: *const RawCall, ctx: *mut c_void, sink: Sink) -> *mut c_char;
    pub(super) fn tf_call_functional(call: *const RawCall, out: *mut *mut RawCall) -> *mut c_char;
    pub(super) fn tf_call_run(
        call: *const RawCall,
        tensors: *const RawTensor,
        n: usize,
        out: *mut *mut *mut c_void,
        n_out: *mut usize,
    ) -> *mut c_char;
    pub(super) fn tf_operator_new(name: *const c_char, body: Body, ctx: *const c_void) -> *mut c_char;
    pub(super) fn tf_answer_tensor(answer: *mut RawAnswer, t: RawTensor);
    pub(super) fn tf_answer_error(answer: *mut RawAnswer, text: *const c_char, len: usize);
    pub(super) fn tf_meta(t: RawTensor, out: *mut Meta) -> *mut c_char;
    pub(super) fn tf_check(
        tensors: *const RawTensor,
        expect: *const RawExpect,
        n: usize,
        mask: u32,
        data: *mut *mut c_void,
        bad: *mut usize,
    ) -> *mut c_char;
    pub(super) fn tf_held(
        tensors: *const RawTensor,
        own: *const i64,
        n: usize,
        held: *mut bool,
    ) -> *mut c_char;
    pub(super) fn tf_versions(
        tensors: *const RawTensor,
        versions: *const i64,
        n: usize,
        same: *mut bool,
    ) -> *mut c_char;
    pub(super) fn tf_addresses(
        tensors: *const RawTensor,
        n: usize,
        data: *mut *mut c_void,
        all: *mut bool,
    ) -> *mut c_char;
    pub(super) fn tf_states(
        tensors: *const RawTensor,
        n: usize,
        versions: *mut i64,
        data: *mut *mut c_void,
    ) -> *mut c_char;
    pub(super) fn tf_bump_version(t: RawTensor) -> *mut c_char;
    pub(super) fn tf_empty_strided(
        sizes: *const i64,
        strides: *const i64,
        rank: usize,
        dtype: i8,
        device_type: i8,
        device_index: i8,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    pub(super) fn tf_empty_kept(
        sizes: *const i64,
        strides: *const i64,
        rank: usize,
        dtype: i8,
        take: extern "C" fn(usize) -> *mut c_void,
        give: extern "C" fn(*mut c_void),
        out: *mut *mut c_void,
    ) -> *mut c_char;
    pub(super) fn tf_view_of(
        base: RawTensor,
        byte_offset: i64,
        dtype: i8,
        sizes: *const i64,
        strides: *const i64,
        rank: usize,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    pub(super) fn tf_global(out: *mut RawGlobal) -> *mut c_char;
    pub(super) fn tf_generator_state(device_type: i8, device_index: i8, out: *mut *mut c_void)
    -> *mut c_char;
    pub(super) fn tf_set_generator_state(device_type: i8, device_index: i8, state: RawTensor) -> *mut c_char;
    pub(super) fn tf_cuda_devices(out: *mut i32) -> *mut c_char;
    pub(super) fn tf_cuda_stream(device: i8, out: *mut *mut c_void) -> *mut c_char;
    pub(super) fn tf_pool_open(device: i8, stream: *mut c_void, out: *mut *mut RawPool) -> *mut c_char;
    pub(super) fn tf_pool_close(pool: *mut RawPool) -> *mut c_char;
    pub(super) fn tf_pool_drop(pool: *mut RawPool);
    pub(super) fn tf_empty_cache() -> *mut c_char;
    pub(super) fn tf_cuda_memory(
        device: i8,
        restart: bool,
        allocated: *mut i64,
        peak: *mut i64,
        reserved: *mut i64,
    ) -> *mut c_char;
    pub(super) fn tf_ranges() -> bool;
    pub(super) fn tf_range_push(name: *const c_char) -> *mut c_char;
    pub(super) fn tf_range_pop() -> *mut c_char;
}

/// Turns the message that a function of the shim returned into a result.
pub(super) fn check(message: *mut c_char) -> Result<(), Error> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: the shim returns null or a NUL-terminated string from malloc, which `tf_free` frees.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().trim().to_owned();
        tf_free(message);
        text
    };
    Err(Error::Torch(text))
}

/// The handle that tch keeps of a tensor.
pub(super) fn raw(t: &Tensor) -> RawTensor {
    t.as_ptr().cast()
}

/// Runs a function of the shim that makes a tensor.
pub(super) fn make_tensor(make: impl FnOnce(*mut *mut c_void) -> *mut c_char) -> Result<Tensor, Error> {
    let mut out = std::ptr::null_mut();
    check(make(&raw mut out))?;
    // SAFETY: on success the shim has stored a new `at::Tensor` that nobody else owns.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}
