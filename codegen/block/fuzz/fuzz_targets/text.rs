//! Any bytes as the text of a program.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tilefuse_block::random::any_text(bytes));
