//! What is set for LLVM as a whole, once in a process.

use std::ffi::c_char;
use std::sync::Once;

use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;

/// Hoisting constants out of loops at the level of machine code is off: formulas have more of them than there are
/// registers, and copies between those cost more than operands in memory. Everything else is hoisted before.
const OPTIONS: [&std::ffi::CStr; 2] = [c"tilefuse", c"-disable-machine-licm"];

/// Sets LLVM's options; to be called before any code generation.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let options: [*const c_char; 2] = OPTIONS.map(std::ffi::CStr::as_ptr);
        // SAFETY: the strings live for ever, and their number is that of the array.
        unsafe { LLVMParseCommandLineOptions(options.len() as i32, options.as_ptr(), std::ptr::null()) };
    });
}
