//! The error type of this crate.

/// What can go wrong in capturing, compiling or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch refused an operation; its message.
    #[error("libtorch: {0}")]
    Torch(String),
    /// A capture was started on a thread that captures already.
    #[error("this thread is capturing a model already")]
    NestedCapture,
    /// CUDA cannot be used; what is missing.
    #[error("CUDA is not available: {0}")]
    NoCuda(String),
    /// There is no plan, because calls like this run the model itself.
    #[error("runs eager: {0}")]
    RunsEager(String),
    /// The plan leaves operators to libtorch that [`Options::strict`](crate::Options::strict) asks kernels for.
    #[error("left to libtorch:{}", lines(operators))]
    Unfused {
        /// The operators, with their modules and the reason, those that have the same reason in one text.
        operators: Vec<String>,
        /// The plan.
        plan: Box<crate::Explanation>,
    },
    /// A plan that was read back from data has no kernels that code could be shown of.
    #[error("the plan was read back: there are no kernels whose code could be shown")]
    NoCode,
    /// A report of a plan that cannot be read.
    #[error("the report cannot be read: {0}")]
    Report(String),
    /// Something that plans do not do.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// An embedding, gather or selection read at an index that its source does not have, or the kernel of an operator of
    /// one's own at one outside of its tensors.
    #[error("index out of range in self")]
    IndexOutOfRange,
    /// The recording could not be made functional.
    #[error(transparent)]
    Functionalize(#[from] tilefuse_fusion::FunctionalizeError),
    /// The graph could not be lowered to a plan.
    #[error(transparent)]
    Pipeline(#[from] tilefuse_fusion::pipeline::PipelineError),
    /// The graph could not be planned.
    #[error(transparent)]
    Plan(#[from] tilefuse_fusion::plan::PlanError),
    /// The text of a block program is wrong; where, and what.
    #[error(transparent)]
    Parse(#[from] tilefuse_block::ParseError),
    /// An expression over tiles does not fit its operands; where it stands in the source.
    #[error(transparent)]
    Build(Box<tilefuse_block::tiles::BuildError>),
    /// A block program breaks an invariant.
    #[error(transparent)]
    Invalid(Box<tilefuse_block::VerifyError>),
    /// A kernel was launched with a grid or arguments that do not fit its parameters.
    #[error("kernel @{kernel}: {problem}")]
    Launch {
        /// The kernel's name.
        kernel: String,
        /// What does not fit.
        problem: Box<crate::LaunchError>,
    },
    /// An operator of one's own could not be registered or called.
    #[error("operator {name}: {problem}")]
    Operator {
        /// The operator's name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A kernel went wrong in the interpreter.
    #[error(transparent)]
    Interpret(Box<tilefuse_block::interp::InterpError>),
    /// No configuration of a kernel is left; what became of each.
    #[error("no configuration computes it: {0}")]
    Tuning(String),
    /// Code generation or a kernel launch failed.
    #[error(transparent)]
    Codegen(#[from] tilefuse_codegen::Error),
    /// A structure that cannot be made again of its parts; what is wrong with it.
    #[error("values: {0}")]
    Values(String),
    /// A libtorch call of a plan gave a result of another shape or type than the recorded one: it depends on more than the
    /// signature.
    #[error(
        "an operator's result has another shape or type than when it was captured: compute shapes from the inputs' shapes alone"
    )]
    OtherResult,
    /// Results are not within the tolerance of a [`Hint::tolerance`](crate::Hint::tolerance) even where libtorch computes them and all
    /// that they are computed from.
    #[error(
        "the hint `tolerance` for {of}: {part} differs from eager by {difference:.1e} in libtorch too, more than {relative:.1e}"
    )]
    Tolerance {
        /// The hint's pattern.
        of: String,
        /// The module or operator.
        part: String,
        /// Relative to the largest element.
        difference: f64,
        /// What was asked for.
        relative: f64,
    },
    /// No place of the plan is one where the fault of the options would change anything.
    #[doc(hidden)]
    #[error("no place for the fault")]
    NotPlanted,
    /// A defect of Tilefuse.
    #[error("internal: {0}")]
    Internal(String),
}

/// Texts on lines of their own.
fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| format!("\n  {text}")).collect()
}

impl Error {
    /// The error as a reason for running a model itself, with what to change in the model.
    pub(crate) fn reason(&self) -> String {
        let advice = match self {
            Error::Functionalize(error) => advice(error),
            Error::Unsupported(_) => "call that part outside the fused model",
            Error::Pipeline(_)
            | Error::Plan(_)
            | Error::Invalid(_)
            | Error::Codegen(_)
            | Error::Internal(_) => DEFECT,
            _ => return self.to_string(),
        };
        format!("{self}: {advice}")
    }
}

/// What to do about what is not the model's doing.
pub(crate) const DEFECT: &str = "report it as a defect of Tilefuse";

/// What to change in a model whose writes are not made functional.
fn advice(error: &tilefuse_fusion::FunctionalizeError) -> &'static str {
    use tilefuse_fusion::FunctionalizeError as E;
    match error {
        E::Malformed { .. } => DEFECT,
        E::Metadata { call } if call.contains("set_data") => {
            "write the tensor's elements (`copy_`), or use the other tensor itself"
        }
        E::Metadata { .. } => "use the operator that returns a new tensor (`unsqueeze` for `unsqueeze_`)",
        E::OverlappingWrite { .. } => "write a copy of the tensor",
        E::ReadsWritten { .. } => "pass a copy of what is read",
        E::StridedStatistics { .. } => "pass contiguous statistics",
        E::OpaqueView { .. } => "write the tensor itself, or a view of the same type",
        E::Opaque { .. } => {
            "write a dense copy of it (`to_dense`, `resolve_conj`), or use the operator that returns a new tensor"
        }
        E::SharedMemory { .. } => "pass copies of the inputs, or write a copy",
        E::OutOfBounds { .. } => "take the view of the tensor that owns the memory",
        E::OutputAliasesInput { .. } => "return a copy",
    }
}

impl From<tilefuse_block::VerifyError> for Error {
    fn from(error: tilefuse_block::VerifyError) -> Error {
        Error::Invalid(Box::new(error))
    }
}

impl From<tilefuse_block::interp::InterpError> for Error {
    fn from(error: tilefuse_block::interp::InterpError) -> Error {
        Error::Interpret(Box::new(error))
    }
}

impl From<tilefuse_block::tiles::BuildError> for Error {
    fn from(error: tilefuse_block::tiles::BuildError) -> Error {
        Error::Build(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use tilefuse_fusion::FunctionalizeError as E;

    use super::*;

    #[test]
    fn reasons_of_writes_say_what_to_change() {
        let call = || String::from("aten::add_ #3");
        let errors = [
            E::Malformed { place: call(), what: "no storage" },
            E::Metadata { call: call() },
            E::Metadata { call: String::from("aten::set_data #3") },
            E::OverlappingWrite { call: call() },
            E::ReadsWritten { call: call() },
            E::StridedStatistics { call: call() },
            E::OpaqueView { call: call() },
            E::Opaque { call: call() },
            E::SharedMemory { call: call() },
            E::OutOfBounds { call: call() },
            E::OutputAliasesInput { index: 1 },
        ];
        let reasons: Vec<String> = errors.map(|error| Error::from(error).reason()).into();
        expect_test::expect![[r#"
            the recording is inconsistent at aten::add_ #3: no storage: report it as a defect of Tilefuse
            aten::add_ #3: changes metadata in place: use the operator that returns a new tensor (`unsqueeze` for `unsqueeze_`)
            aten::set_data #3: changes metadata in place: write the tensor's elements (`copy_`), or use the other tensor itself
            aten::add_ #3: writes a tensor whose elements overlap: write a copy of the tensor
            aten::add_ #3: reads elements that it writes as another argument: pass a copy of what is read
            aten::add_ #3: writes running statistics on a GPU that are not contiguous, which libtorch may leave as they are: pass contiguous statistics
            aten::add_ #3: writes through a view that repeats elements or reads them as another type: write the tensor itself, or a view of the same type
            aten::add_ #3: writes a tensor that is not plain strided memory, or may be a part of one: write a dense copy of it (`to_dense`, `resolve_conj`), or use the operator that returns a new tensor
            aten::add_ #3: writes memory that another input or parameter shares: pass copies of the inputs, or write a copy
            aten::add_ #3: addresses memory outside its tensor: take the view of the tensor that owns the memory
            output 1 shares memory with another tensor in a way that strides do not express: return a copy"#]].assert_eq(&reasons.join("\n"));
    }
}
