//! Where in a model's source the calls of a capture are made.

use std::cell::Cell;
use std::ffi::c_void;
use std::path::Path;

use rustc_hash::FxHashMap;

use crate::Error;

/// Most frames of a call's stack that are kept: those between libtorch's dispatcher and the model are some thirty.
const MAX_FRAMES: usize = 100;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Captures of this thread keep where calls are made until it is dropped.
pub(crate) struct SourceLines {
    before: bool,
}

impl SourceLines {
    pub(crate) fn keep() -> SourceLines {
        SourceLines { before: IS_ON.replace(true) }
    }
}

impl Drop for SourceLines {
    fn drop(&mut self) {
        IS_ON.set(self.before);
    }
}

/// Where a call was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallSite {
    /// Nobody asked.
    #[default]
    Unknown,
    /// In a TorchScript file, at this line of what that was made of.
    Script(String),
    /// In Rust: the return addresses on the stack, from the call on.
    Stack(Box<[usize]>),
}

/// The site of the call that is being recorded on this thread.
pub(super) fn call_site() -> Result<CallSite, Error> {
    if !IS_ON.get() {
        return Ok(CallSite::Unknown);
    }
    if let Some(line) = super::script::line()? {
        return Ok(CallSite::Script(short(&line).to_owned()));
    }
    let mut stack = Vec::new();
    backtrace::trace(|frame| {
        stack.push(frame.ip().addr());
        stack.len() < MAX_FRAMES
    });
    Ok(CallSite::Stack(stack.into()))
}

/// Finds the lines of stacks in the program's debug information.
#[derive(Default)]
pub(crate) struct Lines {
    /// By return address: the model's line of the innermost inlined function that is the model's.
    known: FxHashMap<usize, Option<String>>,
}

impl Lines {
    /// `src/model.rs:42`: the innermost line that is of no library below the model. `None` where nothing says so, as in a program
    /// without line tables.
    pub(crate) fn of(&mut self, site: &CallSite) -> Option<String> {
        match site {
            CallSite::Unknown => None,
            CallSite::Script(line) => Some(line.clone()),
            CallSite::Stack(stack) => stack.iter().find_map(|&address| self.line(address)),
        }
    }

    fn line(&mut self, address: usize) -> Option<String> {
        let find = || {
            let mut found = None;
            backtrace::resolve(address as *mut c_void, |symbol| {
                if found.is_none()
                    && let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno())
                    && is_of_model(file)
                {
                    found = Some(format!("{}:{line}", short(&relative(file))));
                }
            });
            found
        };
        self.known.entry(address).or_insert_with(find).clone()
    }
}

/// Whether a file is neither of `tch`, of the standard library, of C++, nor of this crate.
fn is_of_model(file: &Path) -> bool {
    const LIBRARIES: [&str; 4] = ["/tch-", "/torch-sys-", "/backtrace-", "/rustc/"];
    let text = file.to_string_lossy().replace('\\', "/");
    let is_own = file.starts_with(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    text.ends_with(".rs") && !is_own && !LIBRARIES.iter().any(|library| text.contains(library))
}

/// The path of a file from the present folder on, where it is below that.
fn relative(file: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    file.strip_prefix(here).unwrap_or(file).to_string_lossy().into_owned()
}

/// A path without the folder of installed packages.
fn short(path: &str) -> &str {
    let behind = |folder: &str| Some(path.split_once(folder)?.1);
    let in_registry = || Some(behind("/registry/src/")?.split_once('/')?.1);
    behind("/site-packages/").or_else(in_registry).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{CallSite, SourceLines, call_site, is_of_model, short};

    #[test]
    fn files_of_libraries_are_not_the_models() {
        let library = |file: &str| !is_of_model(Path::new(file));
        assert!(library("/home/a/.cargo/registry/src/index/tch-0.24.0/src/tensor.rs"));
        assert!(library("/rustc/59807616e1/library/core/src/ops/function.rs"));
        assert!(library(concat!(env!("CARGO_MANIFEST_DIR"), "/src/torch/record.rs")));
        assert!(library("/pytorch/aten/src/ATen/core/dispatch/Dispatcher.h"));
        assert!(is_of_model(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/src/gpt2.rs"))));
        assert!(is_of_model(Path::new("/home/a/net/src/main.rs")));
    }

    #[test]
    fn paths_are_without_the_folders_of_packages() {
        assert_eq!(short("/usr/lib/python3/site-packages/timm/models/vit.py:81"), "timm/models/vit.py:81");
        assert_eq!(short("/home/a/.cargo/registry/src/index-1/nets-0.1.0/src/a.rs"), "nets-0.1.0/src/a.rs");
        assert_eq!(short("src/main.rs"), "src/main.rs");
    }

    #[test]
    fn sites_are_kept_while_asked_for() {
        assert_eq!(call_site().unwrap(), CallSite::Unknown);
        let guard = SourceLines::keep();
        assert!(matches!(call_site().unwrap(), CallSite::Stack(stack) if stack.len() > 3));
        drop(guard);
        assert_eq!(call_site().unwrap(), CallSite::Unknown);
    }
}
