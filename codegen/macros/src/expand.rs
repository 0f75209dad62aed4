//! What the attributes leave behind.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, FnArg, Ident, ItemFn, Pat, Token, Type};

use crate::flow::rewrite;
use crate::signature::{Generic, Param, Role, Signature};

/// `name = value` of an attribute.
struct Setting {
    name: Ident,
    value: Expr,
}

impl Parse for Setting {
    fn parse(input: ParseStream<'_>) -> syn::Result<Setting> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Setting { name, value: input.parse()? })
    }
}

struct Settings(Punctuated<Setting, Token![,]>);

impl Parse for Settings {
    fn parse(input: ParseStream<'_>) -> syn::Result<Settings> {
        Punctuated::parse_terminated(input).map(Settings)
    }
}

/// Statements at the beginning of a kernel's body that set its launch options.
fn settings(options: TokenStream) -> syn::Result<TokenStream> {
    let statement = |Setting { name, value }: Setting| match name.to_string().as_str() {
        "warps" => Ok(quote!(::tilefuse::lang::num_warps(#value);)),
        "stages" => Ok(quote!(::tilefuse::lang::num_stages(#value);)),
        _ => Err(Error::new(name.span(), "the options of a kernel are `warps = ..` and `stages = ..`")),
    };
    syn::parse2::<Settings>(options)?.0.into_iter().map(statement).collect()
}

/// A kernel: a unit type of the function's name with methods to launch it.
pub(crate) fn kernel(options: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let settings = settings(options)?;
    let mut function: ItemFn = syn::parse2(item)?;
    let signature = Signature::of(&mut function)?;
    rewrite(&mut function.block, signature.constant_names());
    let (docs, others): (Vec<_>, Vec<_>) = function.attrs.iter().partition(|a| a.path().is_ident("doc"));
    let (visibility, name) = (&function.vis, &function.sig.ident);
    let body = body(&function, &signature, &settings, &others);
    let methods = methods(&signature);
    let call = call(name, &signature);
    Ok(quote! {
        #(#docs)*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #name;

        const _: () = {
            #[allow(unused_imports)]
            use ::tilefuse::lang::*;

            #body

            impl #name {
                #methods
                #call
            }
        };
    })
}

/// The function as it was written, over tiles.
fn body(
    function: &ItemFn,
    signature: &Signature,
    settings: &TokenStream,
    attributes: &[&syn::Attribute],
) -> TokenStream {
    let (generics, block) = (&function.sig.generics, &function.block);
    let clause = &function.sig.generics.where_clause;
    let params = signature.params.iter().map(|Param { pattern, ty, role, .. }| match role {
        Role::Tensor { .. } | Role::Constant => quote!(#pattern: #ty),
        Role::Scalar => quote!(#pattern: ::tilefuse::lang::Tile<#ty>),
    });
    let statements = &block.stmts;
    quote! {
        #(#attributes)*
        #[allow(
            non_snake_case, unused_assignments, unused_braces, unused_mut, unused_parens,
            clippy::assign_op_pattern, clippy::let_unit_value, clippy::many_single_char_names,
            clippy::needless_pass_by_value, clippy::too_many_arguments, clippy::unit_arg, clippy::useless_conversion
        )]
        fn __body #generics (#(#params),*) #clause {
            #settings
            #(#statements)*
        }
    }
}

/// The methods that a user calls.
fn methods(signature: &Signature) -> TokenStream {
    let types = signature.params.iter().map(|p| argument_type(p, &quote!()));
    let args = quote!((#(#types,)*));
    let types = signature.params.iter().map(|p| argument_type(p, &quote!('__a)));
    let lasting = quote!((#(#types,)*));
    quote! {
        /// Runs the instances of a grid on the device of the tensors, each access checked against the tensor it goes
        /// to: on the CPU to the end, or queued on the current CUDA stream.
        ///
        /// # Errors
        /// As [`Kernel::launch`](::tilefuse::Kernel::launch); and [`Error::Build`](::tilefuse::Error::Build) where
        /// shapes do not fit, with file, line and column.
        #[allow(clippy::type_complexity)]
        pub fn launch(
            &self,
            grid: impl ::core::convert::Into<::tilefuse::Grid>,
            args: #args,
        ) -> ::core::result::Result<(), ::tilefuse::Error> {
            Self::__call(args, |call| call.launch(grid.into()))
        }

        /// [`launch`](Self::launch) without the checks of accesses.
        ///
        /// # Errors
        /// As [`launch`](Self::launch), but for accesses.
        ///
        /// # Safety
        /// What the kernel reads and writes lies within the tensors that it is given.
        #[allow(clippy::type_complexity)]
        pub unsafe fn launch_unchecked(
            &self,
            grid: impl ::core::convert::Into<::tilefuse::Grid>,
            args: #args,
        ) -> ::core::result::Result<(), ::tilefuse::Error> {
            // SAFETY: passed on to the caller.
            Self::__call(args, |call| unsafe { call.launch_unchecked(grid.into()) })
        }

        /// Runs the instances of a grid in the interpreter, which finds accesses out of bounds and races.
        ///
        /// # Errors
        /// As [`Kernel::interpret`](::tilefuse::Kernel::interpret).
        #[allow(clippy::type_complexity)]
        pub fn interpret(
            &self,
            grid: impl ::core::convert::Into<::tilefuse::Grid>,
            args: #args,
        ) -> ::core::result::Result<(), ::tilefuse::Error> {
            Self::__call(args, |call| call.interpret(grid.into()))
        }

        /// The kernel that these arguments are launched with, made if there is none yet.
        ///
        /// # Errors
        /// As [`launch`](Self::launch).
        #[allow(clippy::type_complexity)]
        pub fn specialize(
            &self,
            args: #args,
        ) -> ::core::result::Result<::std::sync::Arc<::tilefuse::Kernel>, ::tilefuse::Error> {
            Self::__call(args, |call| call.specialize())
        }

        /// The launch with these arguments, for a [`Tuner`](::tilefuse::tune::Tuner) to measure.
        ///
        /// # Errors
        /// As [`launch`](Self::launch).
        #[allow(clippy::type_complexity)]
        pub fn candidate<'__a>(
            &self,
            grid: impl ::core::convert::Into<::tilefuse::Grid>,
            args: #lasting,
        ) -> ::core::result::Result<::tilefuse::tune::Candidate<'__a>, ::tilefuse::Error> {
            Self::__call(args, |call| call.candidate(grid.into()))
        }
    }
}

/// What is given for a parameter.
fn argument_type(param: &Param, lifetime: &TokenStream) -> TokenStream {
    let ty = &param.ty;
    match param.role {
        Role::Tensor { optional: false, .. } => quote!(&#lifetime ::tilefuse::Tensor),
        Role::Tensor { optional: true, .. } => quote!(::core::option::Option<&#lifetime ::tilefuse::Tensor>),
        Role::Scalar | Role::Constant => quote!(#ty),
    }
}

/// The function that sorts arguments into tensors, numbers and constants, and knows how to build the program.
fn call(name: &Ident, signature: &Signature) -> TokenStream {
    let types = signature.params.iter().map(|p| argument_type(p, &quote!('__a)));
    let names = signature.params.iter().map(|p| &p.name);
    let given = signature.params.iter().filter(|p| !matches!(p.role, Role::Constant)).map(|p| {
        let name = &p.name;
        quote!(::tilefuse::jit::Given::from(#name))
    });
    let specs = signature.params.iter().filter(|p| !matches!(p.role, Role::Constant)).map(|p| {
        let name = p.name.to_string();
        quote!(#name)
    });
    let generics = signature.kinds.iter().map(|Generic { kinds, param, .. }| {
        let before =
            signature.params.iter().take(*param).filter(|p| !matches!(p.role, Role::Constant)).count();
        let kinds = kinds.iter().map(|(variant, _)| quote!(::tilefuse::block::Elem::#variant));
        quote!((#before, &[#(#kinds),*]))
    });
    let constants = signature.constants().map(|c| quote!(::tilefuse::jit::Constant::key(&#c, &mut key);));
    let (text, bodies) = (name.to_string(), bodies(signature, &mut Vec::new()));
    quote! {
        #[allow(clippy::type_complexity, non_snake_case, unused_mut, unused_variables)]
        fn __call<'__a, __R>(
            args: (#(#types,)*),
            then: impl ::core::ops::FnOnce(&::tilefuse::jit::Call<'_, '__a>) -> __R,
        ) -> __R {
            static TEMPLATE: ::tilefuse::jit::Template =
                ::tilefuse::jit::Template::new(#text, &[#(#specs),*], &[#(#generics),*]);
            let (#(#names,)*) = args;
            let build = |forms: &::tilefuse::jit::Forms| {
                ::tilefuse::lang::program(#text, |scope| {
                    let declare = ::tilefuse::jit::Declare::new(scope, forms);
                    #bodies
                })
            };
            let mut key = ::tilefuse::jit::Key::new();
            #(#constants)*
            then(&::tilefuse::jit::Call::new(&TEMPLATE, &[#(#given),*], key, &build))
        }
    }
}

/// Calls of the body for each kind that the type parameters stand for.
fn bodies(signature: &Signature, chosen: &mut Vec<TokenStream>) -> TokenStream {
    let Some(Generic { kinds, .. }) = signature.kinds.get(chosen.len()) else {
        return one_body(signature, chosen);
    };
    let index = chosen.len();
    let arms: Vec<TokenStream> = kinds
        .iter()
        .map(|(variant, ty)| {
            chosen.push(ty.clone());
            let inner = bodies(signature, chosen);
            chosen.pop();
            quote!(::core::option::Option::Some(::tilefuse::block::Elem::#variant) => { #inner })
        })
        .collect();
    quote!(match forms.kind(#index) { #(#arms)* _ => {} })
}

fn one_body(signature: &Signature, chosen: &[TokenStream]) -> TokenStream {
    let kind = |elem: &Type| {
        let own = signature.kind_of(elem).and_then(|index| chosen.get(index));
        own.cloned().unwrap_or_else(|| quote!(#elem))
    };
    let mut index = 0usize;
    let args = signature.params.iter().map(|Param { name, ty, role, .. }| {
        let text = name.to_string();
        let arg = match role {
            Role::Constant => return quote!(#name),
            Role::Scalar => quote!(declare.scalar::<#ty>(#index, #text)),
            Role::Tensor { elem, optional } => {
                let elem = kind(elem);
                let method = if *optional { quote!(optional) } else { quote!(ptr) };
                quote!(declare.#method::<#elem>(#index, #text))
            }
        };
        index += 1;
        arg
    });
    let args: Vec<TokenStream> = args.collect();
    if chosen.is_empty() { quote!(__body(#(#args),*)) } else { quote!(__body::<#(#chosen),*>(#(#args),*)) }
}

/// A function that kernels call, with loops and branches as in a kernel.
pub(crate) fn function(options: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new_spanned(options, "a function has no options"));
    }
    let mut function: ItemFn = syn::parse2(item)?;
    let constants: Vec<Ident> = function.sig.inputs.iter().filter_map(constant).collect();
    rewrite(&mut function.block, constants);
    Ok(quote! {
        #[allow(
            unused_assignments, unused_braces, unused_mut, unused_parens,
            clippy::let_unit_value, clippy::unit_arg
        )]
        #function
    })
}

/// The name of a parameter that is a Rust number or truth value.
fn constant(input: &FnArg) -> Option<Ident> {
    let FnArg::Typed(typed) = input else { return None };
    let (Pat::Ident(pattern), Type::Path(path)) = (&*typed.pat, &*typed.ty) else { return None };
    let name = path.path.get_ident()?.to_string();
    let primitive = ["usize", "u32", "i32", "i64", "u64", "f32", "f64", "bool"];
    primitive.contains(&name.as_str()).then(|| pattern.ident.clone())
}
