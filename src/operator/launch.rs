//! What an operator would launch: its function runs once more, and launches are noted instead of run.

use std::cell::RefCell;

use tch::Tensor;
use tilefuse_block::{Literal, Program};

use crate::Error;
use crate::torch::{self, Meta};

/// What a parameter of a launched kernel is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Given {
    /// The tensor whose data begin here.
    Data(usize),
    /// A number.
    Scalar(Literal),
    /// The input of this index.
    Input(u16),
    /// The output of this index.
    Output(u16),
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    pub(crate) program: Program,
    pub(crate) grid: [u32; 3],
    /// By parameter.
    pub(crate) args: Vec<Given>,
    /// Whether accesses are checked.
    pub(crate) checked: bool,
}

thread_local! {
    static NOTED: RefCell<Option<Vec<Launched>>> = const { RefCell::new(None) };
}

/// Whether launches on this thread are noted and not run.
pub(crate) fn collecting() -> bool {
    NOTED.with_borrow(Option::is_some)
}

/// Notes a launch.
pub(crate) fn note(launch: Launched) {
    NOTED.with_borrow_mut(|noted| noted.iter_mut().for_each(|list| list.push(launch.clone())));
}

/// Ends the noting of launches, also where the function panics.
struct Noting;

impl Drop for Noting {
    fn drop(&mut self) {
        NOTED.set(None);
    }
}

/// Runs `launch`, which gets these inputs and outputs, and gives the one launch that it makes; or says why it is no one
/// launch on them alone.
pub(crate) fn observe(
    inputs: &[Tensor],
    outputs: &[Tensor],
    launch: impl FnOnce() -> Result<(), Error>,
) -> Result<Launched, String> {
    let all: Vec<Tensor> = inputs.iter().chain(outputs).map(Tensor::shallow_clone).collect();
    NOTED.set(Some(Vec::new()));
    let noting = Noting;
    let (result, trace) = torch::capture(&all, &[], launch, |_| Vec::new()).map_err(|e| e.to_string())?;
    let noted = NOTED.take().unwrap_or_default();
    drop(noting);
    result.map_err(|e| e.to_string())?;
    if let Some(event) = trace.events.first() {
        return Err(format!("its launch also calls {}", event.op));
    }
    if let Some(refusal) = trace.refusals.first() {
        return Err(format!("its launch {refusal}"));
    }
    let count = noted.len();
    let Ok([mut launched]) = <[Launched; 1]>::try_from(noted) else {
        return Err(format!("it launches {count} kernels, not one"));
    };
    for given in &mut launched.args {
        if let Given::Data(address) = *given {
            *given = named(address, inputs, outputs)?;
        }
    }
    Ok(launched)
}

/// Which input or output begins at an address.
fn named(address: usize, inputs: &[Tensor], outputs: &[Tensor]) -> Result<Given, String> {
    let at = |list: &[Tensor]| list.iter().position(|t| Meta::of(t).is_ok_and(|m| m.data == address));
    match (at(outputs), at(inputs)) {
        (Some(output), _) => Ok(Given::Output(output as u16)),
        (None, Some(input)) => Ok(Given::Input(input as u16)),
        (None, None) => Err(String::from("its kernel takes a tensor that is no input or output")),
    }
}
