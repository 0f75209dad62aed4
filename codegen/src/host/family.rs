//! The families of processors that there is code for.

use std::sync::Once;

#[cfg(any(test, target_arch = "x86_64"))]
use inkwell::targets::{InitializationConfig, Target as LlvmTarget};

use crate::{Error, Result};

/// A family of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// 64-bit x86.
    X86,
    /// 64-bit Arm, all of which have NEON.
    Aarch64,
}

impl Family {
    /// This machine's, if there is code for it.
    pub(super) const NATIVE: Option<Family> = match (
        cfg!(unix),
        cfg!(target_arch = "x86_64"),
        cfg!(all(target_arch = "aarch64", target_os = "linux")),
    ) {
        (true, true, _) => Some(Family::X86),
        (true, _, true) => Some(Family::Aarch64),
        _ => None,
    };

    /// LLVM's name of a machine with such a processor.
    pub(super) const fn triple(self) -> &'static str {
        match self {
            Family::X86 => "x86_64-unknown-linux-gnu",
            Family::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Gets the part of LLVM for the family ready.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where this program does not contain it: a program contains its own machine's, and tests
    /// contain all.
    pub(super) fn start(self) -> Result<()> {
        static START: Once = Once::new();
        START.call_once(|| {
            crate::llvm::start();
            #[cfg(any(test, target_arch = "x86_64"))]
            LlvmTarget::initialize_x86(&InitializationConfig::default());
            #[cfg(any(test, target_arch = "aarch64"))]
            start_aarch64();
        });
        if cfg!(test) || Family::NATIVE == Some(self) {
            return Ok(());
        }
        Err(Error::Unsupported { target: "host".to_owned(), message: format!("code for {}", self.triple()) })
    }
}

/// As inkwell does for a family of its features: LLVM's own names take none, so that only programs that call them contain
/// that part of LLVM.
#[cfg(any(test, target_arch = "aarch64"))]
fn start_aarch64() {
    use inkwell::llvm_sys::target::{
        LLVMInitializeAArch64AsmParser, LLVMInitializeAArch64AsmPrinter, LLVMInitializeAArch64Target,
        LLVMInitializeAArch64TargetInfo, LLVMInitializeAArch64TargetMC,
    };
    // SAFETY: the functions take nothing and enter the target into LLVM's own tables; the caller is the only one.
    unsafe {
        LLVMInitializeAArch64Target();
        LLVMInitializeAArch64TargetInfo();
        LLVMInitializeAArch64AsmPrinter();
        LLVMInitializeAArch64AsmParser();
        LLVMInitializeAArch64TargetMC();
    }
}
