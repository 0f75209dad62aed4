//! The attributes `#[tilefuse::kernel]` and `#[tilefuse::function]`, and `#[derive(tilefuse::Values)]`; the crate `tilefuse` documents them.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assigned;
mod expand;
mod flow;
mod signature;
#[cfg(test)]
mod tests;
mod values;

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

/// Makes a structure of tensors of a struct.
#[proc_macro_derive(Values)]
pub fn values(item: TokenStream) -> TokenStream {
    values::derive(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
