//! TorchScript with its own fuser, a peer that needs nothing but libtorch.

use tch::Tensor;

use super::Case;
use crate::cli::Failure;
use crate::cli::inputs::copies;
use crate::cli::model::{Loaded, Which, with_fuser};

/// What its times are called.
pub(super) const NAME: &str = "torchscript";

/// Calls in which it profiles, and then optimises.
const WARM_CALLS: usize = 4;

/// A case's model as TorchScript runs it, once it is optimised: a model of the zoo traced on these inputs, a file as it is.
pub(super) fn optimised(model: &Loaded, case: &Case, inputs: &[Tensor]) -> Result<Loaded, Failure> {
    let script = match &case.which {
        Which::Zoo(_) => model.traced(inputs)?,
        // Its calls for a capture are optimised without the fuser.
        Which::File(_) => Loaded::load(&case.which, case.device, case.dtype)?,
    };
    for _ in 0..WARM_CALLS {
        with_fuser(|| script.try_forward(&copies(inputs)))?;
    }
    Ok(script)
}
