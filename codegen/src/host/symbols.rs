//! What generated code may call on processors that lack an instruction, and the memory functions.

use super::launch;

macro_rules! unary {
    ($($name:ident $ty:ident $method:ident;)*) => {
        $(extern "C" fn $name(x: $ty) -> $ty { x.$method() })*

        fn unary_address(name: &str) -> Option<usize> {
            match name {
                $(stringify!($name) => Some($name as extern "C" fn($ty) -> $ty as usize),)*
                _ => None,
            }
        }
    };
}

unary! {
    floorf f32 floor;
    floor f64 floor;
    ceilf f32 ceil;
    ceil f64 ceil;
    truncf f32 trunc;
    trunc f64 trunc;
    roundevenf f32 round_ties_even;
    roundeven f64 round_ties_even;
}

extern "C" fn fmodf(x: f32, y: f32) -> f32 {
    x % y
}

extern "C" fn fmod(x: f64, y: f64) -> f64 {
    x % y
}

extern "C" fn fmaf(x: f32, y: f32, z: f32) -> f32 {
    x.mul_add(y, z)
}

extern "C" fn fma(x: f64, y: f64, z: f64) -> f64 {
    x.mul_add(y, z)
}

/// The address of a function that generated code calls by name.
pub(super) fn address(name: &str) -> Option<usize> {
    match name {
        "fmodf" => Some(fmodf as extern "C" fn(f32, f32) -> f32 as usize),
        "fmod" => Some(fmod as extern "C" fn(f64, f64) -> f64 as usize),
        "fmaf" => Some(fmaf as extern "C" fn(f32, f32, f32) -> f32 as usize),
        "fma" => Some(fma as extern "C" fn(f64, f64, f64) -> f64 as usize),
        "memcpy" => Some(libc::memcpy as *const () as usize),
        "memset" => Some(libc::memset as *const () as usize),
        launch::PRINT => Some(launch::tilefuse_print as *const () as usize),
        launch::ASSERT => Some(launch::tilefuse_assert as *const () as usize),
        "memmove" => Some(libc::memmove as *const () as usize),
        _ => unary_address(name),
    }
}
