//! The modules and lines of a TorchScript file that run.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;

use super::Meta;
use super::ffi::{self, check};
use crate::Error;

/// The modules that TorchScript's interpreter is in on this thread, from the outermost on, by the names that they have in those that
/// call them, joined by dots: `transformer.0.mlp`. Empty where it runs nothing, or the file's own module.
pub(super) fn modules() -> Result<String, Error> {
    Ok(path(&said(ffi::tf_script_stack)?))
}

/// The line of source at which TorchScript's interpreter is on this thread, `file:line`: the innermost one that is not of PyTorch
/// itself, else the innermost one of a file.
pub(super) fn line() -> Result<Option<String>, Error> {
    Ok(own_line(said(ffi::tf_script_lines)?))
}

fn own_line(said: Vec<String>) -> Option<String> {
    let mut lines: Vec<String> = said.iter().flat_map(|text| text.lines().map(of_stack)).collect();
    // What TorchScript made itself is of no file.
    lines.retain(|line| !line.starts_with(':'));
    let is_torch = |line: &String| ["-packages/torch/", "/torch/nn/"].iter().any(|part| line.contains(part));
    let own = lines.iter().position(|line| !is_torch(line)).unwrap_or(0);
    (own < lines.len()).then(|| lines.swap_remove(own))
}

/// A line of a stack of Python's calls, `file(line): function`, as `file:line`; any other as it is.
fn of_stack(line: &str) -> String {
    let place = line.split_once("): ").and_then(|(place, _)| place.rsplit_once('('));
    let place = place.filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
    place.map_or_else(|| line.to_owned(), |(file, number)| format!("{file}:{number}"))
}

/// What a function of the shim says of the interpreter's frames.
fn said(function: unsafe extern "C" fn(*mut c_void, ffi::Sink) -> *mut c_char) -> Result<Vec<String>, Error> {
    // SAFETY: the function calls the sink with the context before it returns.
    let said = collected(|ctx, sink| unsafe { function(ctx, sink) })?;
    Ok(said.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
}

/// What is given to a sink, part by part.
fn collected(call: impl FnOnce(*mut c_void, ffi::Sink) -> *mut c_char) -> Result<Vec<Vec<u8>>, Error> {
    unsafe extern "C" fn sink(ctx: *mut c_void, bytes: *const u8, len: usize) {
        // SAFETY: `ctx` is the list below, and the bytes live for this call.
        let (said, bytes) =
            unsafe { (&mut *ctx.cast::<Vec<Vec<u8>>>(), std::slice::from_raw_parts(bytes, len)) };
        said.push(bytes.to_vec());
    }
    let mut said: Vec<Vec<u8>> = Vec::new();
    check(call((&raw mut said).cast(), sink))?;
    Ok(said)
}

/// The bytes of a TorchScript file with the floating-point tensors of its module converted, and no others: masks and indices stay what
/// they are, as with Python's `Module.to`.
pub(crate) fn script_converted(path: &Path, kind: tch::Kind) -> Result<Vec<u8>, Error> {
    let dtype = Meta::of(&tch::Tensor::zeros([0], (kind, tch::Device::Cpu)))?.dtype;
    let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| Error::Torch(e.to_string()))?;
    // SAFETY: the path is a string that lives for the call, which calls the sink with the context before it returns.
    let parts = collected(|ctx, sink| unsafe { ffi::tf_script_converted(path.as_ptr(), dtype, ctx, sink) })?;
    Ok(parts.concat())
}

/// The modules of these frames, without the one that the file is of.
fn path(frames: &[String]) -> String {
    let names = frames.iter().filter_map(|frame| Some(frame.split_once('(')?.0));
    // A function has no module, a module's own method no other one.
    let is_module = |name: &&str| !matches!(*name, "" | "TOP" | "SELF") && !name.ends_with("_UNKNOWN");
    names.filter(is_module).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::{modules, own_line, path};

    #[test]
    fn lines_are_those_of_the_model() {
        let of = |lines: &[&str]| own_line(lines.iter().map(|line| String::from(*line)).collect());
        let torch =
            ["/v/site-packages/torch/nn/modules/linear.py:134", "/v/site-packages/torch/_tensor.py:47"];
        assert_eq!(
            of(&[":0", torch[0], torch[1], "/m/net.py:7", "/m/run.py:1"]).as_deref(),
            Some("/m/net.py:7")
        );
        assert_eq!(of(&[":0", torch[1], torch[0]]).as_deref(), Some(torch[1]));
        assert_eq!(of(&[":0"]), None);
        let stack = "/v/site-packages/torch/_tensor.py(47): wrapped\n/m/net (1).py(9): forward\n/m/run.py(1): <module>";
        assert_eq!(of(&[stack, torch[1]]).as_deref(), Some("/m/net (1).py:9"));
    }

    #[test]
    fn frames_are_the_path_of_a_module() {
        let frames =
            ["TOP(Net)::forward", "h(Layers)::forward", "SELF(Layers)::mix", "relu", "0(Act)::forward"];
        assert_eq!(path(&frames.map(String::from)), "h.0");
        assert_eq!(path(&[String::from("TOP(Net)::forward")]), "");
        assert_eq!(modules().unwrap(), "");
    }
}
