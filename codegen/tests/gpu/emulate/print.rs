//! Printing and failing assertions.

use std::ffi::{CStr, c_char};

use super::block;

/// `vprintf`: every number has 64 bits.
pub(super) extern "C" fn print(format: *const c_char, numbers: *const u64) -> i32 {
    // SAFETY: generated code gives a text that ends in 0.
    let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    let mut parts = format.split('%');
    let mut line = parts.next().unwrap_or_default().to_owned();
    let mut used = 0;
    while let Some(part) = parts.next() {
        if part.is_empty() {
            line += "%";
            line += parts.next().unwrap_or_default();
            continue;
        }
        // SAFETY: there is a number for each place in the text.
        let number = unsafe { numbers.add(used).read() };
        used += 1;
        let end = part.find(['d', 'u', 'x', 'g', 's']).unwrap() + 1;
        line += &match &part[..end] {
            "lld" => (number as i64).to_string(),
            "llu" => number.to_string(),
            "llx" => format!("{number:x}"),
            // SAFETY: a text that ends in 0, as above.
            "s" => unsafe { CStr::from_ptr(number as *const c_char) }.to_string_lossy().into_owned(),
            _ => format!("{:?}", f64::from_bits(number)),
        };
        line += &part[end..];
    }
    block().lines.lock().unwrap().push(line.trim_end_matches('\n').to_owned());
    0
}

pub(super) extern "C" fn fail(message: *const c_char, _: *const c_char, _: u32, _: *const c_char, _: u64) {
    // SAFETY: as above.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    *block().failed.lock().unwrap() = Some(message);
}
