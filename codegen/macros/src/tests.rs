use quote::quote;

use crate::expand::{function, kernel};

/// What is wrong with a kernel, and the source that is marked.
fn refused(item: proc_macro2::TokenStream) -> String {
    kernel(quote!(), item).unwrap_err().to_string()
}

#[test]
fn signatures_that_no_kernel_has_are_refused() {
    let types =
        "a kernel takes `Ptr<..>`, `Option<Ptr<..>>`, numbers, and Rust values that are marked `#[constant]`";
    assert_eq!(
        refused(quote!(
            fn f(x: Tensor) {}
        )),
        types
    );
    assert_eq!(
        refused(quote!(
            fn f(x: &[f32]) {}
        )),
        types
    );
    assert_eq!(
        refused(quote!(
            fn f(x: Option<i32>) {}
        )),
        types
    );
    assert!(
        refused(quote!(
            fn f(n: usize) {}
        ))
        .contains("write `i64`, or mark it `#[constant]`")
    );
    assert_eq!(
        refused(quote!(
            fn f() -> f32 {
                0.0
            }
        )),
        "a kernel returns nothing; it stores its results"
    );
    assert_eq!(
        refused(quote!(
            fn f(&self) {}
        )),
        "a kernel has no receiver"
    );
    assert_eq!(
        refused(quote!(
            fn f((a, b): (i32, i32)) {}
        )),
        "a kernel's parameter is a name"
    );
    assert_eq!(
        refused(quote!(
            async fn f() {}
        )),
        "a kernel is no async function"
    );
    assert!(
        refused(quote!(
            unsafe fn f() {}
        ))
        .contains("safe function")
    );
    assert!(
        refused(quote!(
            fn f(#[hint] x: i32) {}
        ))
        .contains("no attribute but `#[constant]`")
    );
    assert!(
        refused(quote!(
            fn f<T>(x: Ptr<T>) {}
        ))
        .contains("bounded by `Float`, `Short`")
    );
    assert!(
        refused(quote!(
            fn f<T: Float>(x: Ptr<f32>) {}
        ))
        .contains("no parameter `Ptr<..>` tells this kind")
    );
    assert!(
        refused(quote!(
            fn f<'a>(x: Ptr<f32>) {}
        ))
        .contains("generic over element kinds alone")
    );
    assert!(
        kernel(
            quote!(depth = 3),
            quote!(
                fn f() {}
            )
        )
        .is_err()
    );
    assert!(
        kernel(
            quote!(),
            quote!(
                struct F;
            )
        )
        .is_err()
    );
    assert!(
        function(
            quote!(warps = 3),
            quote!(
                fn f() {}
            )
        )
        .is_err()
    );
}

/// The body of a function after the rewriting of its control flow.
fn body(item: proc_macro2::TokenStream) -> String {
    let text = function(quote!(), item).unwrap().to_string();
    plain(text.split_once('{').unwrap().1.trim_end_matches('}').trim())
}

/// Without trailing commas, which a formatter adds and takes away.
fn plain(text: &str) -> String {
    text.replace(" ,)", ")")
}

fn tokens(stream: proc_macro2::TokenStream) -> String {
    plain(&stream.to_string())
}

#[test]
fn what_is_sure_to_be_rust_stays() {
    for statement in [
        quote!(for i in 0..4 {
            x = x + i;
        }),
        quote!(for i in 0..N {
            x = x + i;
        }),
        quote!(for i in items {
            x = x + i;
        }),
        quote!(for i in (0..n).rev() {
            x = x + i;
        }),
        quote!(for i in 0..n {
            if y > 3 {
                break;
            }
        }),
        quote!('outer: for i in 0..n {
            continue 'outer;
        }),
        quote!(while x < 3 {
            x += 1;
        }),
        quote!(if BLOCK > 64 {
            x = 1;
        }),
        quote!(if let Some(y) = x {
            z = y;
        }),
        quote!(if a && b {
            x = 1;
        } else {
            x = 2;
        }),
        quote!(if n == 3 {
            return;
        }),
    ] {
        let item = quote!(fn f() { #statement });
        assert_eq!(body(item), tokens(statement));
    }
    let marked = quote!(
        fn f() {
            #[constant]
            for i in 0..n {
                x = x + i;
            }
        }
    );
    assert_eq!(
        body(marked),
        tokens(quote!(for i in 0..n {
            x = x + i;
        }))
    );
    let known = quote!(
        fn f(n: usize) {
            let m = n / 2;
            for i in m..n {
                x = x + i;
            }
        }
    );
    assert_eq!(body(known), tokens(quote!(let m = n / 2; for i in m..n { x = x + i; })));
}

#[test]
fn loops_and_branches_carry_what_they_assign() {
    assert_eq!(
        body(quote!(
            fn f() {
                for i in 0..n {
                    let t = i;
                    a += t;
                    (b, c[0]) = (t, t);
                    t = 3;
                }
            }
        )),
        tokens(quote!({
            (a, b, c) = ::tilefuse::lang::for_loop(0, n, 1usize, (a, b, c), |i, (mut a, mut b, mut c)| {
                {
                    let t = i;
                    a += t;
                    (b, c[0]) = (t, t);
                    t = 3;
                }
                (a, b, c)
            });
        }))
    );
    assert_eq!(
        body(quote!(
            fn f() {
                for i in (lo..hi).step_by(4) {}
            }
        )),
        tokens(quote!({
            () = ::tilefuse::lang::for_loop(lo, hi, 4, (), |i, ()| {
                {}
                ()
            });
        }))
    );
    assert_eq!(
        body(quote!(
            fn f() {
                while x.gt(1) {
                    x = x / 2;
                }
            }
        )),
        tokens(quote!({
            (x,) = ::tilefuse::lang::while_loop(
                (x,),
                |(x,)| (x.gt(1), (x,)),
                |(mut x,)| {
                    {
                        x = x / 2;
                    }
                    (x,)
                },
            );
        }))
    );
    assert_eq!(
        body(quote!(
            fn f() {
                let y = if c {
                    x = 1;
                    2
                } else {
                    3
                };
            }
        )),
        tokens(quote!(
            let y = {
                let (__carried, __value) = ::tilefuse::lang::branch(
                    c,
                    (x,),
                    |(mut x,)| { let __value = { x = 1; 2 }; ((x,), __value) },
                    |(mut x,)| { let __value = { 3 }; ((x,), __value) },
                );
                (x,) = __carried;
                __value
            };
        ))
    );
}

#[test]
fn floats_before_tiles_have_a_type() {
    assert_eq!(
        body(quote!(
            fn f() {
                y = 1.0 / (2.5 * x);
            }
        )),
        tokens(quote!(y = 1.0f64 / (2.5f64 * x);))
    );
    let rust = quote!(let a = 1.0 / SCALE; let b = 2.0 * a; let c = 1.0 / (n as f32).sqrt(););
    assert_eq!(body(quote!(fn f() { #rust })), tokens(rust));
}

#[test]
fn a_kernel_becomes_a_type_with_methods() {
    let item = quote! {
        /// Doubles.
        pub fn double<T: Float>(x: Ptr<T>, y: Option<Ptr<f32>>, n: i64, #[constant] BLOCK: usize) {}
    };
    let text = kernel(quote!(warps = BLOCK / 32, stages = 3), item).unwrap().to_string();
    let has = |part: proc_macro2::TokenStream| {
        assert!(plain(&text).contains(&tokens(part.clone())), "{part}\n{text}")
    };
    has(quote!(
        pub struct double;
    ));
    has(quote!(args: (& ::tilefuse::Tensor, ::core::option::Option<& ::tilefuse::Tensor>, i64, usize,)));
    has(
        quote!(fn __body<T: Float>(x: Ptr<T>, y: Option<Ptr<f32> >, n: ::tilefuse::lang::Tile<i64>, BLOCK: usize)),
    );
    has(quote!(::tilefuse::lang::num_warps(BLOCK / 32);));
    has(quote!(::tilefuse::lang::num_stages(3);));
    has(quote!(declare.scalar::<i64>(2usize, "n")));
    assert_eq!(text.matches("__body ::").count(), 4, "one for each float kind");
}

/// What is wrong with a type that derives `Values`.
fn no_values(item: proc_macro2::TokenStream) -> String {
    crate::values::derive(item).unwrap_err().to_string()
}

#[test]
fn values_are_structs_that_own_their_fields() {
    assert!(
        no_values(quote!(
            enum Either {
                A(Tensor),
                B,
            }
        ))
        .contains("an enum has no fixed structure")
    );
    assert_eq!(no_values(quote!(union Both { a: f32, b: i32 })), "`Values` is for structs");
    assert!(
        no_values(quote!(
            struct Borrowed<'a> {
                x: &'a Tensor,
            }
        ))
        .contains("a struct that borrows")
    );
    for item in [
        quote!(
            struct Unit;
        ),
        quote!(
            struct Pair(Tensor, Option<Tensor>);
        ),
        quote!(
            struct Many<T: Clone, const N: usize>
            where
                T: Send,
            {
                all: [T; N],
                r#type: bool,
            }
        ),
    ] {
        let expanded = crate::values::derive(item).unwrap();
        assert!(syn::parse2::<syn::ItemImpl>(expanded).is_ok());
    }
}
