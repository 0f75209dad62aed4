//! Bytes as the choices that lead to a program with something wrong in it.

#![no_main]

use tilefuse_block::random::{Choices, almost_program, any_program};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| any_program(&almost_program(&mut Choices::from_bytes(bytes))));
