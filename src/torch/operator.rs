//! Operators of libtorch whose meaning is a Rust function.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;

use super::ffi::{self, RawAnswer, check, raw};
use crate::Error;

/// What an operator computes of its inputs.
pub(crate) type Body = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>, Error> + Send + Sync>;

thread_local! {
    /// How many calls of such operators this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is in a call of an operator that was registered here.
pub(crate) fn in_operator() -> bool {
    DEPTH.get() > 0
}

/// Registers `NAME(Tensor[] inputs) -> Tensor[]`, for the rest of the process. A failure or a panic of the body becomes
/// an error of libtorch.
pub(crate) fn register(name: &str, body: Body) -> Result<(), Error> {
    let text = CString::new(name).map_err(|e| Error::Torch(format!("operator name: {e}")))?;
    let ctx: *mut Body = Box::into_raw(Box::new(body));
    // SAFETY: the text outlives the call, and the body is never freed once it is registered.
    let made = check(unsafe { ffi::tf_operator_new(text.as_ptr(), run, ctx.cast_const().cast()) });
    if made.is_err() {
        // SAFETY: what was not registered is ours still.
        drop(unsafe { Box::from_raw(ctx) });
    }
    made
}

/// Counts a call of an operator while it lives.
struct Within;

impl Within {
    fn new() -> Within {
        DEPTH.set(DEPTH.get() + 1);
        Within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

unsafe extern "C" fn run(ctx: *const c_void, inputs: *const *mut c_void, n: usize, answer: *mut RawAnswer) {
    let _within = Within::new();
    // SAFETY: `ctx` is what was registered.
    let body = unsafe { &*ctx.cast::<Body>() };
    // SAFETY: `inputs` holds `n` new handles, which are ours.
    let inputs: Vec<Tensor> = (0..n).map(|i| unsafe { Tensor::from_ptr((*inputs.add(i)).cast()) }).collect();
    let outputs = match catch_unwind(AssertUnwindSafe(|| body(&inputs))) {
        Ok(Ok(outputs)) => outputs,
        Ok(Err(error)) => return fail(answer, &error.to_string()),
        Err(_) => return fail(answer, "the operator panicked"),
    };
    for output in &outputs {
        // SAFETY: a live tensor, of which C++ makes a handle of its own.
        unsafe { ffi::tf_answer_tensor(answer, raw(output)) };
    }
}

fn fail(answer: *mut RawAnswer, text: &str) {
    // SAFETY: C++ copies the text.
    unsafe { ffi::tf_answer_error(answer, text.as_ptr().cast(), text.len()) };
}
