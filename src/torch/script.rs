//! The modules and lines of a TorchScript file that run.

use std::ffi::{c_char, c_void};

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
    unsafe extern "C" fn sink(ctx: *mut c_void, bytes: *const u8, len: usize) {
        // SAFETY: `ctx` is the list below, and the bytes live for this call.
        let (said, bytes) =
            unsafe { (&mut *ctx.cast::<Vec<String>>(), std::slice::from_raw_parts(bytes, len)) };
        said.push(String::from_utf8_lossy(bytes).into_owned());
    }
    let mut said: Vec<String> = Vec::new();
    // SAFETY: the sink is called with `said` before the function returns.
    check(unsafe { function((&raw mut said).cast(), sink) })?;
    Ok(said)
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
