//! LLVM: from text of its IR to PTX.

use std::sync::Once;

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, TargetMachine, TargetTriple};

use super::{PtxVersion, Target};
use crate::error::{Error, Result};

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// Optimises a module and writes it as PTX; for a listing the module too.
pub(crate) fn compile(
    text: &str,
    target: Target,
    version: PtxVersion,
    listing: bool,
) -> Result<(String, String)> {
    static START: Once = Once::new();
    crate::llvm::start();
    START.call_once(|| inkwell::targets::Target::initialize_nvptx(&InitializationConfig::default()));
    let machine = machine(target, version)?;
    let context = Context::create();
    let buffer = MemoryBuffer::create_from_memory_range_copy(text.as_bytes(), "kernel");
    let module = context.create_module_from_ir(buffer).map_err(|e| failed(e.to_string()))?;
    module.set_triple(&TargetTriple::create(TRIPLE));
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    module.verify().map_err(|e| failed(e.to_string()))?;
    let options = PassBuilderOptions::create();
    module.run_passes(PASSES, &machine, options).map_err(|e| failed(e.to_string()))?;
    let buffer =
        machine.write_to_memory_buffer(&module, FileType::Assembly).map_err(|e| failed(e.to_string()))?;
    let bytes = buffer.as_slice();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let ir = if listing { module.print_to_string().to_string() } else { String::new() };
    Ok((ir, String::from_utf8_lossy(&bytes[..end]).into_owned()))
}

/// The code comes from a generator that knows what is wide and what is unrolled: what is left to do is arithmetic on
/// addresses, common subexpressions, and what loops leave unchanged.
const PASSES: &str = "function(early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,\
                      loop-mssa(loop-rotate,licm),gvn,instcombine<no-verify-fixpoint>,adce)";

fn machine(target: Target, version: PtxVersion) -> Result<TargetMachine> {
    let triple = TargetTriple::create(TRIPLE);
    let llvm = inkwell::targets::Target::from_triple(&triple).map_err(|e| failed(e.to_string()))?;
    let features = format!("+ptx{}{}", version.major, version.minor);
    let level = OptimizationLevel::Default;
    llvm.create_target_machine(
        &triple,
        target.name(),
        &features,
        level,
        RelocMode::Default,
        CodeModel::Default,
    )
    .ok_or_else(|| failed(format!("no target machine for {}", target.name())))
}

fn failed(message: String) -> Error {
    Error::Llvm(message)
}
