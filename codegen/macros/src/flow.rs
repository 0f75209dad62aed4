//! `for`, `while` and `if` in terms of functions whose arguments' types decide whether they run while the kernel is
//! built or become part of it.
//!
//! ```text
//! for k in 0..n {            acc = for_loop(0, n, 1usize, acc, |k, mut acc| {
//!     acc = acc + k;             acc = acc + k;
//! }                              acc
//!                            });
//! ```
//!
//! What is sure to be plain Rust stays as it is: loops over ranges of constants and over anything but ranges, conditions
//! that compare with Rust's operators, and code that jumps out of itself. An attribute `#[constant]` on a statement makes
//! it sure.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::visit_mut::{self, VisitMut};
use syn::{
    BinOp, Block, Expr, ExprForLoop, ExprIf, ExprWhile, Ident, Lit, Local, Pat, RangeLimits, UnOp,
    parse_quote,
};

use crate::assigned::{assigned, bound, jumps};

/// Rewrites the control flow of a function whose parameters of these names are Rust constants.
pub(crate) fn rewrite(body: &mut Block, constants: impl IntoIterator<Item = Ident>) {
    let constants = constants.into_iter().map(|c| c.to_string()).collect();
    Flow { constants: vec![constants], tiles: vec![HashSet::new()], closures: 0 }.visit_block_mut(body);
}

struct Flow {
    /// Names of Rust constants, by scope.
    constants: Vec<HashSet<String>>,
    /// Names that are no constants any more, by scope.
    tiles: Vec<HashSet<String>>,
    /// Closures around.
    closures: usize,
}

impl Flow {
    fn scoped(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constants.push(HashSet::new());
        self.tiles.push(HashSet::new());
        visit(self);
        self.constants.pop();
        self.tiles.pop();
    }

    fn declare(&mut self, pattern: &Pat, constant: bool) {
        let scopes = if constant {
            (&mut self.constants, &mut self.tiles)
        } else {
            (&mut self.tiles, &mut self.constants)
        };
        for name in bound(pattern) {
            let name = name.to_string();
            if let (Some(into), Some(from)) = (scopes.0.last_mut(), scopes.1.last_mut()) {
                from.remove(&name);
                into.insert(name);
            }
        }
    }

    fn is_constant_name(&self, name: &Ident) -> bool {
        let name = name.to_string();
        for (constants, tiles) in self.constants.iter().zip(&self.tiles).rev() {
            if constants.contains(&name) {
                return true;
            }
            if tiles.contains(&name) {
                return false;
            }
        }
        is_upper(&name)
    }

    /// Whether an expression is sure to be a Rust value.
    fn is_constant(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Lit(_) | Expr::Cast(_) | Expr::Macro(_) => true,
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) => self.is_constant_name(name),
                None => path.path.segments.last().is_some_and(|s| is_upper(&s.ident.to_string())),
            },
            Expr::Paren(inner) => self.is_constant(&inner.expr),
            Expr::Group(inner) => self.is_constant(&inner.expr),
            Expr::Unary(unary) => self.is_constant(&unary.expr),
            Expr::Reference(inner) => self.is_constant(&inner.expr),
            Expr::Binary(binary) => self.is_constant(&binary.left) && self.is_constant(&binary.right),
            Expr::MethodCall(call) => {
                self.is_constant(&call.receiver) && call.args.iter().all(|a| self.is_constant(a))
            }
            Expr::Field(field) => self.is_constant(&field.base),
            Expr::Index(index) => self.is_constant(&index.expr),
            _ => false,
        }
    }

    /// Whether a condition is sure to be a Rust truth value.
    fn is_truth(&self, condition: &Expr) -> bool {
        match condition {
            Expr::Let(_) => true,
            Expr::Paren(inner) => self.is_truth(&inner.expr),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => self.is_truth(&unary.expr),
            Expr::Binary(binary) => {
                matches!(
                    binary.op,
                    BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_)
                ) || matches!(binary.op, BinOp::And(_) | BinOp::Or(_))
                    || self.is_constant(condition)
            }
            _ => self.is_constant(condition),
        }
    }

    /// A `for` over a range that may depend on tiles.
    fn for_loop(&mut self, expr: &ExprForLoop) -> Option<Expr> {
        let (lo, hi, step) = range(&expr.expr)?;
        let certain = self.is_constant(lo) && self.is_constant(hi);
        if certain || expr.label.is_some() || jumps(&expr.body) {
            return None;
        }
        let carried = Carried(assigned(&[&expr.body]));
        let (mut lo, mut hi, mut body) = (lo.clone(), hi.clone(), expr.body.clone());
        self.visit_expr_mut(&mut lo);
        self.visit_expr_mut(&mut hi);
        self.scoped(|flow| {
            flow.declare(&expr.pat, false);
            flow.visit_block_mut(&mut body);
        });
        let (pattern, values, mutable) = (&expr.pat, carried.values(), carried.patterns());
        let step = step.map_or_else(|| quote!(1usize), |s| quote!(#s));
        let call = path(expr.for_token.span, "for_loop");
        Some(verbatim(quote_spanned! { expr.for_token.span =>
            { #values = #call(#lo, #hi, #step, #values, |#pattern, #mutable| { #body #values }); }
        }))
    }

    fn while_loop(&mut self, expr: &ExprWhile) -> Option<Expr> {
        if self.is_truth(&expr.cond) || expr.label.is_some() || jumps(&expr.body) {
            return None;
        }
        let carried = Carried(assigned(&[&expr.body]));
        let (mut condition, mut body) = ((*expr.cond).clone(), expr.body.clone());
        self.visit_expr_mut(&mut condition);
        self.scoped(|flow| flow.visit_block_mut(&mut body));
        let (values, mutable) = (carried.values(), carried.patterns());
        let call = path(expr.while_token.span, "while_loop");
        Some(verbatim(quote_spanned! { expr.while_token.span =>
            { #values = #call(#values, |#values| (#condition, #values), |#mutable| { #body #values }); }
        }))
    }

    fn branch(&mut self, expr: &ExprIf) -> Option<Expr> {
        let otherwise = expr.else_branch.as_ref().map(|(_, e)| &**e);
        let no: Block = match otherwise {
            None => parse_quote!({}),
            Some(Expr::Block(block)) => block.block.clone(),
            Some(other) => parse_quote!({ #other }),
        };
        if self.is_truth(&expr.cond) || jumps(&expr.then_branch) || jumps(&no) {
            return None;
        }
        let carried = Carried(assigned(&[&expr.then_branch, &no]));
        let (mut condition, mut yes, mut no) = ((*expr.cond).clone(), expr.then_branch.clone(), no);
        self.visit_expr_mut(&mut condition);
        self.scoped(|flow| flow.visit_block_mut(&mut yes));
        self.scoped(|flow| flow.visit_block_mut(&mut no));
        let (values, mutable) = (carried.values(), carried.patterns());
        let call = path(expr.if_token.span, "branch");
        Some(verbatim(quote_spanned! { expr.if_token.span =>
            {
                let (__carried, __value) = #call(
                    #condition,
                    #values,
                    |#mutable| { let __value = #yes; (#values, __value) },
                    |#mutable| { let __value = #no; (#values, __value) },
                );
                #values = __carried;
                __value
            }
        }))
    }

    /// A float before a tile: it gets the type that numbers before tiles have, so that the result's is known.
    fn number_before_tile(&self, expr: &mut Expr) {
        let Expr::Binary(binary) = expr else { return };
        let arithmetic = matches!(
            binary.op,
            BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::Div(_) | BinOp::Rem(_)
        );
        if !arithmetic || self.closures > 0 || self.is_constant(&binary.right) {
            return;
        }
        if let Some(Lit::Float(number)) = literal(&mut binary.left)
            && number.suffix().is_empty()
        {
            *number = syn::LitFloat::new(&format!("{}f64", number.base10_digits()), number.span());
        }
    }
}

impl VisitMut for Flow {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if take_constant(expr) {
            visit_mut::visit_expr_mut(self, expr);
            return;
        }
        let rewritten = match expr {
            Expr::ForLoop(inner) => self.for_loop(inner),
            Expr::While(inner) => self.while_loop(inner),
            Expr::If(inner) => self.branch(inner),
            _ => None,
        };
        match rewritten {
            Some(new) => *expr = new,
            None => {
                self.number_before_tile(expr);
                visit_mut::visit_expr_mut(self, expr);
            }
        }
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        self.scoped(|flow| visit_mut::visit_block_mut(flow, block));
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        let constant = local.init.as_ref().is_some_and(|init| self.is_constant(&init.expr));
        visit_mut::visit_local_mut(self, local);
        self.declare(&local.pat, constant);
    }

    fn visit_expr_for_loop_mut(&mut self, expr: &mut ExprForLoop) {
        let counts =
            range(&expr.expr).is_some_and(|(lo, hi, _)| self.is_constant(lo) && self.is_constant(hi));
        self.visit_expr_mut(&mut expr.expr);
        self.scoped(|flow| {
            flow.declare(&expr.pat, counts);
            flow.visit_block_mut(&mut expr.body);
        });
    }

    fn visit_expr_closure_mut(&mut self, expr: &mut syn::ExprClosure) {
        self.closures += 1;
        self.scoped(|flow| {
            for input in &expr.inputs {
                flow.declare(input, false);
            }
            visit_mut::visit_expr_closure_mut(flow, expr);
        });
        self.closures -= 1;
    }

    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

/// The variables that a loop or branch assigns.
struct Carried(Vec<Ident>);

impl Carried {
    fn tuple(&self, item: impl Fn(&Ident) -> TokenStream) -> TokenStream {
        let items: Vec<TokenStream> = self.0.iter().map(item).collect();
        let groups: Vec<TokenStream> = items.chunks(8).map(tuple).collect();
        match groups.as_slice() {
            [] => quote!(()),
            [group] => group.clone(),
            groups => tuple(groups),
        }
    }

    fn values(&self) -> TokenStream {
        self.tuple(|name| quote!(#name))
    }

    fn patterns(&self) -> TokenStream {
        self.tuple(|name| quote!(mut #name))
    }
}

fn tuple(items: &[TokenStream]) -> TokenStream {
    match items {
        [item] => quote!((#item,)),
        items => quote!((#(#items),*)),
    }
}

/// The bounds and the step of `lo..hi` and `(lo..hi).step_by(step)`.
fn range(expr: &Expr) -> Option<(&Expr, &Expr, Option<&Expr>)> {
    match expr {
        Expr::Range(range) if matches!(range.limits, RangeLimits::HalfOpen(_)) => {
            Some((range.start.as_deref()?, range.end.as_deref()?, None))
        }
        Expr::MethodCall(call) if call.method == "step_by" => {
            let Expr::Paren(inner) = &*call.receiver else { return None };
            let (lo, hi, None) = range(&inner.expr)? else { return None };
            let mut args = call.args.iter();
            Some((lo, hi, Some(args.next()?)))
        }
        _ => None,
    }
}

fn literal(expr: &mut Expr) -> Option<&mut Lit> {
    match expr {
        Expr::Lit(literal) => Some(&mut literal.lit),
        Expr::Paren(inner) => literal(&mut inner.expr),
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => literal(&mut unary.expr),
        _ => None,
    }
}

/// Takes the attribute `#[constant]` off a loop or branch.
fn take_constant(expr: &mut Expr) -> bool {
    let attributes = match expr {
        Expr::ForLoop(inner) => &mut inner.attrs,
        Expr::While(inner) => &mut inner.attrs,
        Expr::If(inner) => &mut inner.attrs,
        _ => return false,
    };
    let before = attributes.len();
    attributes.retain(|a| !a.path().is_ident("constant"));
    attributes.len() < before
}

fn is_upper(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') && name != "_"
}

/// A function of the language, named at a place of the source.
fn path(span: Span, name: &str) -> TokenStream {
    let name = Ident::new(name, span);
    quote_spanned!(span => ::tilefuse::lang::#name)
}

fn verbatim(tokens: TokenStream) -> Expr {
    Expr::Verbatim(tokens)
}
