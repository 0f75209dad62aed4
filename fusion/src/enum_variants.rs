//! Names of the variants of enums, for tests that go through all of them.

/// An enum whose variants are listed.
pub(crate) trait Variants {
    /// All of them.
    const NAMES: &'static [&'static str];

    /// Which one it is.
    fn name(&self) -> &'static str;
}

/// Lists the variants of an enum. One that is forgotten does not compile.
macro_rules! variants {
    ($enum:ident: $($variant:ident),+ $(,)?) => {
        impl crate::enum_variants::Variants for $enum {
            const NAMES: &'static [&'static str] = &[$(concat!(stringify!($enum), "::", stringify!($variant))),+];

            fn name(&self) -> &'static str {
                match self {
                    $($enum::$variant { .. } => concat!(stringify!($enum), "::", stringify!($variant))),+
                }
            }
        }
    };
}
pub(crate) use variants;
