//! The attributes `#[tilefuse::kernel]` and `#[tilefuse::function]`; the crate `tilefuse` documents them.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assigned;
mod expand;
mod flow;
mod signature;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Makes a kernel of a function over tiles.
#[proc_macro_attribute]
pub fn kernel(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::kernel(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes loops and branches of a function depend on tiles, as they do in a kernel.
#[proc_macro_attribute]
pub fn function(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::function(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
