//! Quotients by `1 + exp(y)`, which is what gelu and silu are made of.
//!
//! A GPU divides in some twenty instructions, a processor in one: there the quotient by `1 + exp(y)` becomes the
//! product with `sigmoid(-y)`, which needs no division.

use tilefuse_block::{Elem, Literal, ScalarFn, Value};

use super::emit::Emitter;
use super::error::{Result, ScheduleError};
use crate::kernel::{KExpr, KNode};
use crate::taken::taken;

impl Emitter<'_> {
    /// Whether an expression is a quotient by `1 + exp(y)` that is better computed as a product.
    pub(super) fn is_logistic(&self, expr: KExpr) -> bool {
        let KNode::Map(ScalarFn::Div, args) = self.kernel.node(expr) else { return false };
        self.machine.is_gpu() && self.kernel.info(expr).elem == Elem::F32 && self.exponent(args).is_some()
    }

    /// The `y` of a quotient by `1 + exp(y)`.
    fn exponent(&self, args: &[KExpr]) -> Option<KExpr> {
        let &[_, divisor] = args else { return None };
        let KNode::Map(ScalarFn::Add, terms) = self.kernel.node(divisor) else { return None };
        let &[a, b] = &terms[..] else { return None };
        let one = |e: KExpr| matches!(self.kernel.node(e), KNode::Const(l) if l.as_f64() == 1.0);
        let power = |e: KExpr| match self.kernel.node(e) {
            KNode::Map(ScalarFn::Exp, args) => args.first().copied(),
            _ => None,
        };
        if one(b) { power(a) } else { power(b).filter(|_| one(a)) }
    }

    /// `x / (1 + exp(y))` as `x sigmoid(-y)`.
    pub(super) fn logistic(&mut self, args: &[KExpr]) -> Result<Value> {
        let missing = ScheduleError::Internal("a quotient without an exponent");
        let (Some(&x), Some(y)) = (args.first(), self.exponent(args)) else { return Err(missing) };
        taken!("logistic");
        let minus = self.negative(y)?;
        let share = self.map(ScalarFn::Sigmoid, &[minus])?;
        let x = self.value(x)?;
        self.map(ScalarFn::Mul, &[x, share])
    }

    /// `-y`, without an operation where `y` is a negative or a multiple itself.
    fn negative(&mut self, y: KExpr) -> Result<Value> {
        let kernel = self.kernel;
        match kernel.node(y) {
            KNode::Map(ScalarFn::Neg, args) if args.len() == 1 => return self.value(args[0]),
            KNode::Map(ScalarFn::Mul, args) => {
                if let &[v, factor] = &args[..]
                    && let KNode::Const(literal) = kernel.node(factor)
                {
                    let v = self.value(v)?;
                    let factor = Literal::float(literal.elem, -literal.as_f64());
                    let factor = self.b.constant(factor, &[]);
                    return self.map(ScalarFn::Mul, &[v, factor]);
                }
            }
            _ => {}
        }
        let y = self.value(y)?;
        self.map(ScalarFn::Neg, &[y])
    }
}
