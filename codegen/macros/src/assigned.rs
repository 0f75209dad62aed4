//! Which variables a piece of code assigns that it does not declare, and whether it jumps out of itself.

use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Block, Expr, ExprClosure, ExprForLoop, Ident, Local, Pat, PatIdent};

/// The variables that blocks assign and do not declare, each once, in the order of their first assignment.
pub(crate) fn assigned(blocks: &[&Block]) -> Vec<Ident> {
    let mut visitor = Assigned { scopes: Vec::new(), found: Vec::new() };
    for block in blocks {
        visitor.visit_block_mut(&mut (*block).clone());
    }
    visitor.found
}

/// The variables that a pattern binds.
pub(crate) fn bound(pattern: &Pat) -> Vec<Ident> {
    struct Bound(Vec<Ident>);
    impl VisitMut for Bound {
        fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
            self.0.push(pattern.ident.clone());
            visit_mut::visit_pat_ident_mut(self, pattern);
        }
    }
    let mut visitor = Bound(Vec::new());
    visitor.visit_pat_mut(&mut pattern.clone());
    visitor.0
}

struct Assigned {
    scopes: Vec<Vec<Ident>>,
    found: Vec<Ident>,
}

impl Assigned {
    fn declare(&mut self, pattern: &Pat) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.extend(bound(pattern));
        }
    }

    /// The variables that an assignment to `target` changes.
    fn assign(&mut self, target: &Expr) {
        match target {
            Expr::Path(path) => {
                if let Some(name) = path.path.get_ident() {
                    let own = self.scopes.iter().flatten().any(|n| n == name);
                    if !own && !self.found.contains(name) {
                        self.found.push(name.clone());
                    }
                }
            }
            Expr::Tuple(tuple) => tuple.elems.iter().for_each(|e| self.assign(e)),
            Expr::Array(array) => array.elems.iter().for_each(|e| self.assign(e)),
            Expr::Paren(paren) => self.assign(&paren.expr),
            Expr::Index(index) => self.assign(&index.expr),
            Expr::Field(field) => self.assign(&field.base),
            _ => {}
        }
    }
}

impl VisitMut for Assigned {
    fn visit_block_mut(&mut self, block: &mut Block) {
        self.scopes.push(Vec::new());
        visit_mut::visit_block_mut(self, block);
        self.scopes.pop();
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        visit_mut::visit_local_mut(self, local);
        self.declare(&local.pat);
    }

    fn visit_expr_for_loop_mut(&mut self, expr: &mut ExprForLoop) {
        self.scopes.push(bound(&expr.pat));
        visit_mut::visit_expr_for_loop_mut(self, expr);
        self.scopes.pop();
    }

    fn visit_expr_closure_mut(&mut self, expr: &mut ExprClosure) {
        self.scopes.push(expr.inputs.iter().flat_map(bound).collect());
        visit_mut::visit_expr_closure_mut(self, expr);
        self.scopes.pop();
    }

    fn visit_arm_mut(&mut self, arm: &mut syn::Arm) {
        self.scopes.push(bound(&arm.pat));
        visit_mut::visit_arm_mut(self, arm);
        self.scopes.pop();
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Assign(assign) => self.assign(&assign.left),
            Expr::Binary(binary) if is_assignment(&binary.op) => self.assign(&binary.left),
            _ => {}
        }
        visit_mut::visit_expr_mut(self, expr);
    }
}

fn is_assignment(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

/// Whether a block leaves itself by `break`, `continue`, `return` or `?`.
pub(crate) fn jumps(block: &Block) -> bool {
    let mut visitor = Jumps { loops: 0, found: false };
    visitor.visit_block_mut(&mut block.clone());
    visitor.found
}

struct Jumps {
    /// Loops around, within the block.
    loops: usize,
    found: bool,
}

impl Jumps {
    fn within(&mut self, visit: impl FnOnce(&mut Self)) {
        self.loops += 1;
        visit(self);
        self.loops -= 1;
    }
}

impl VisitMut for Jumps {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Break(jump) => self.found |= self.loops == 0 || jump.label.is_some(),
            Expr::Continue(jump) => self.found |= self.loops == 0 || jump.label.is_some(),
            Expr::Return(_) | Expr::Try(_) | Expr::Await(_) | Expr::Yield(_) => self.found = true,
            _ => {}
        }
        match expr {
            Expr::Closure(_) | Expr::Async(_) => {}
            Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_) => {
                self.within(|this| visit_mut::visit_expr_mut(this, expr));
            }
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }

    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}
