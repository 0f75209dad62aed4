//! What a kernel takes.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Attribute, Error, FnArg, GenericArgument, GenericParam, Ident, ItemFn, Pat, PathArguments, PathSegment,
    ReturnType, Type, TypeParamBound,
};

use crate::assigned::bound;

/// A kernel's signature.
pub(crate) struct Signature {
    pub(crate) params: Vec<Param>,
    pub(crate) kinds: Vec<Generic>,
}

/// A parameter.
pub(crate) struct Param {
    /// The name, or one that stands for a constant's pattern.
    pub(crate) name: Ident,
    pub(crate) pattern: Pat,
    /// The type as it was written.
    pub(crate) ty: Type,
    pub(crate) role: Role,
}

/// What a parameter is for the kernel and for whoever launches it.
pub(crate) enum Role {
    /// A tensor of elements of this kind.
    Tensor { elem: Box<Type>, optional: bool },
    /// A number.
    Scalar,
    /// A Rust value that the kernel is specialised for.
    Constant,
}

/// A type parameter: an element kind.
pub(crate) struct Generic {
    pub(crate) name: Ident,
    /// Kinds that it stands for: the variant of `Elem`, and the type.
    pub(crate) kinds: Vec<(Ident, TokenStream)>,
    /// The first tensor of this kind.
    pub(crate) param: usize,
}

const SCALARS: [&str; 13] =
    ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"];

const TYPES: &str =
    "a kernel takes `Ptr<..>`, `Option<Ptr<..>>`, numbers, and Rust values that are marked `#[constant]`";

impl Signature {
    /// The signature of a function; what it may not be is an error at its place.
    pub(crate) fn of(function: &mut ItemFn) -> syn::Result<Signature> {
        let sig = &mut function.sig;
        if let ReturnType::Type(_, ty) = &sig.output {
            return Err(Error::new_spanned(ty, "a kernel returns nothing; it stores its results"));
        }
        if let Some(token) = &sig.asyncness {
            return Err(Error::new_spanned(token, "a kernel is no async function"));
        }
        if let Some(token) = &sig.unsafety {
            return Err(Error::new_spanned(
                token,
                "a kernel is a safe function; `launch_unchecked` is the unsafe part",
            ));
        }
        let params = sig.inputs.iter_mut().enumerate().map(param).collect::<syn::Result<Vec<_>>>()?;
        let kinds =
            sig.generics.params.iter().map(|g| generic(g, &params)).collect::<syn::Result<Vec<_>>>()?;
        Ok(Signature { params, kinds })
    }

    /// Names of the Rust values.
    pub(crate) fn constants(&self) -> impl Iterator<Item = Ident> + '_ {
        self.params.iter().filter(|p| matches!(p.role, Role::Constant)).map(|p| p.name.clone())
    }

    /// Names of Rust values in the body.
    pub(crate) fn constant_names(&self) -> Vec<Ident> {
        let constants = self.params.iter().filter(|p| matches!(p.role, Role::Constant));
        constants.flat_map(|p| bound(&p.pattern)).collect()
    }

    /// Whether a type is one of the type parameters, and which.
    pub(crate) fn kind_of(&self, elem: &Type) -> Option<usize> {
        self.kinds.iter().position(|kind| is_ident(elem, &kind.name))
    }
}

fn param((index, input): (usize, &mut FnArg)) -> syn::Result<Param> {
    let FnArg::Typed(typed) = input else {
        return Err(Error::new_spanned(input, "a kernel has no receiver"));
    };
    let constant = take(&mut typed.attrs, "constant");
    let name = match &*typed.pat {
        Pat::Ident(pattern) => pattern.ident.clone(),
        _ if constant => format_ident!("__constant{index}"),
        other => return Err(Error::new_spanned(other, "a kernel's parameter is a name")),
    };
    if let Some(other) = typed.attrs.first() {
        return Err(Error::new_spanned(other, "a kernel's parameter has no attribute but `#[constant]`"));
    }
    let role = if constant { Role::Constant } else { role(&typed.ty)? };
    Ok(Param { name, pattern: (*typed.pat).clone(), ty: (*typed.ty).clone(), role })
}

fn take(attributes: &mut Vec<Attribute>, name: &str) -> bool {
    let before = attributes.len();
    attributes.retain(|a| !a.path().is_ident(name));
    attributes.len() < before
}

fn role(ty: &Type) -> syn::Result<Role> {
    let Some(segment) = last(ty) else { return Err(Error::new_spanned(ty, TYPES)) };
    let name = segment.ident.to_string();
    match (name.as_str(), argument(segment)) {
        ("Ptr", Some(elem)) => Ok(Role::Tensor { elem: Box::new(elem.clone()), optional: false }),
        ("Option", Some(inner)) => match last(inner).filter(|s| s.ident == "Ptr").and_then(argument) {
            Some(elem) => Ok(Role::Tensor { elem: Box::new(elem.clone()), optional: true }),
            None => Err(Error::new_spanned(ty, TYPES)),
        },
        (scalar, None) if SCALARS.contains(&scalar) => Ok(Role::Scalar),
        ("usize" | "isize", None) => Err(Error::new_spanned(
            ty,
            "a number of a kernel has a kind of a fixed width; write `i64`, or mark it `#[constant]`",
        )),
        _ => Err(Error::new_spanned(ty, TYPES)),
    }
}

fn last(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        Type::Group(group) => last(&group.elem),
        Type::Paren(paren) => last(&paren.elem),
        _ => None,
    }
}

fn argument(segment: &PathSegment) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(ty)) if arguments.args.len() == 1 => Some(ty),
        _ => None,
    }
}

fn is_ident(ty: &Type, name: &Ident) -> bool {
    matches!(ty, Type::Path(path) if path.path.is_ident(name))
}

fn generic(param: &GenericParam, params: &[Param]) -> syn::Result<Generic> {
    let GenericParam::Type(ty) = param else {
        return Err(Error::new_spanned(param, "a kernel is generic over element kinds alone"));
    };
    let bound = ty.bounds.iter().find_map(|b| match b {
        TypeParamBound::Trait(bound) => bound.path.segments.last().map(|s| s.ident.to_string()),
        _ => None,
    });
    let Some(kinds) = bound.as_deref().and_then(family) else {
        let message = "an element kind is bounded by `Float`, `Short`, `Int`, `Number`, `Bits` or `Element`";
        return Err(Error::new_spanned(ty, message));
    };
    let holds =
        |p: &Param| matches!(&p.role, Role::Tensor { elem, optional: false } if is_ident(elem, &ty.ident));
    match params.iter().position(holds) {
        Some(param) => Ok(Generic { name: ty.ident.clone(), kinds, param }),
        None => Err(Error::new_spanned(ty, "no parameter `Ptr<..>` tells this kind")),
    }
}

/// The kinds of a trait of the language.
fn family(name: &str) -> Option<Vec<(Ident, TokenStream)>> {
    let ints = ["I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"];
    let floats = ["F16", "Bf16", "F32", "F64"];
    let names: Vec<&str> = match name {
        "Float" => floats.to_vec(),
        "Short" => ["F16", "Bf16", "F32"].to_vec(),
        "Int" => ints.to_vec(),
        "Number" => [ints.as_slice(), &floats].concat(),
        "Bits" => [&["Bool"], ints.as_slice()].concat(),
        "Element" => [&["Bool"], ints.as_slice(), &floats].concat(),
        _ => return None,
    };
    let kind = |name: &str| {
        let ty = Ident::new(&name.to_lowercase(), proc_macro2::Span::call_site());
        let path = match name {
            "F16" | "Bf16" => quote!(::tilefuse::lang::#ty),
            _ => quote!(::core::primitive::#ty),
        };
        (Ident::new(name, proc_macro2::Span::call_site()), path)
    };
    Some(names.into_iter().map(kind).collect())
}
