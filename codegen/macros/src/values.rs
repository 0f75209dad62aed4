//! `#[derive(Values)]`: a struct taken apart and made again, field by field.

use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{Error, Fields, GenericParam, Generics, Item, ItemStruct, Member, Result, parse_quote};

/// The implementation of `tilefuse::Values` for a struct.
pub(crate) fn derive(item: TokenStream) -> Result<TokenStream> {
    match syn::parse2(item)? {
        Item::Struct(item) => structure(&item),
        Item::Enum(item) => Err(Error::new(
            item.enum_token.span,
            "`Values` is for structs: an enum has no fixed structure; use an `Option` for what may be absent, or \
             implement `Values` with the variant's number as a `count`",
        )),
        other => Err(Error::new_spanned(other, "`Values` is for structs")),
    }
}

fn structure(item: &ItemStruct) -> Result<TokenStream> {
    let generics = bounded(&item.generics)?;
    let (parameters, arguments, conditions) = generics.split_for_impl();
    let name = &item.ident;
    let members: Vec<(Member, &syn::Type)> =
        item.fields.members().zip(item.fields.iter().map(|field| &field.ty)).collect();
    // At the field's type, so that an error of the compiler stands there.
    let flatten = members.iter().map(|(member, ty)| {
        quote_spanned!(ty.span()=> <#ty as ::tilefuse::Values>::flatten_into(&self.#member, parts);)
    });
    let unflatten = members.iter().map(
        |(member, ty)| quote_spanned!(ty.span()=> #member: <#ty as ::tilefuse::Values>::unflatten_from(parts)?,),
    );
    let unused = matches!(item.fields, Fields::Unit) || members.is_empty();
    let unused = unused.then(|| quote_spanned!(name.span()=> let _ = parts;));
    Ok(quote_spanned! {name.span()=>
        #[automatically_derived]
        #[allow(clippy::init_numbered_fields)]
        impl #parameters ::tilefuse::Values for #name #arguments #conditions {
            fn flatten_into(&self, parts: &mut ::tilefuse::values::Flattener) {
                #unused
                #(#flatten)*
            }

            fn unflatten_from(
                parts: &mut ::tilefuse::values::Unflattener<'_>,
            ) -> ::core::result::Result<Self, ::tilefuse::Error> {
                #unused
                ::core::result::Result::Ok(Self { #(#unflatten)* })
            }
        }
    })
}

/// The generics, with the bound `Values` on every type parameter.
fn bounded(generics: &Generics) -> Result<Generics> {
    let mut generics = generics.clone();
    for parameter in &mut generics.params {
        match parameter {
            GenericParam::Type(ty) => ty.bounds.push(parse_quote!(::tilefuse::Values)),
            GenericParam::Lifetime(lifetime) => {
                return Err(Error::new_spanned(
                    lifetime,
                    "`Values` own their tensors: a struct that borrows cannot be made of results",
                ));
            }
            GenericParam::Const(_) => {}
        }
    }
    Ok(generics)
}
