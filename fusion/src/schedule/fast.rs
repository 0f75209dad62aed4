//! Exponentials of kernels that read and write nothing wider than 16 bits, on a GPU.
//!
//! The unit for special functions gives `2^x` and `1 / x` to about 22 bits in a few instructions, where the exact
//! formulas take sixteen and thirty. What is rounded to the 11 or 8 bits of `f16` or `bf16` in the end cannot tell.

use tilefuse_block::{Elem, Literal, ScalarFn, Value};

use super::emit::{Emitter, Result};
use crate::kernel::{KExpr, KNode, Kernel};

/// Whether all floats that a kernel reads and writes have 16 bits.
pub(super) fn is_narrow(kernel: &Kernel) -> bool {
    let mut floats = kernel.buffers.iter().map(|b| b.elem).filter(|e| e.is_float()).peekable();
    floats.peek().is_some() && floats.all(|e| e.bits() == 16)
}

impl Emitter<'_> {
    /// Whether an expression is an exponential or sigmoid that may be approximate.
    pub(super) fn is_fast(&self, expr: KExpr) -> bool {
        let function = match self.kernel.node(expr) {
            KNode::Map(function, _) => *function,
            _ => return false,
        };
        let known = matches!(function, ScalarFn::Exp | ScalarFn::Exp2 | ScalarFn::Sigmoid);
        known && self.narrow && self.kernel.info(expr).elem == Elem::F32
    }

    /// The value of an expression that [`Emitter::is_fast`].
    pub(super) fn fast(&mut self, function: ScalarFn, x: KExpr) -> Result<Value> {
        let x = self.value(x)?;
        match function {
            ScalarFn::Exp2 => self.map(ScalarFn::Exp2Approx, &[x]),
            ScalarFn::Sigmoid => self.fast_sigmoid(x, -1.0),
            _ => self.fast_exp(x, 1.0),
        }
    }

    /// `exp(sign x)`.
    fn fast_exp(&mut self, x: Value, sign: f64) -> Result<Value> {
        let factor = self.single(sign * std::f64::consts::LOG2_E);
        let scaled = self.map(ScalarFn::Mul, &[x, factor])?;
        self.map(ScalarFn::Exp2Approx, &[scaled])
    }

    /// `1 / (1 + exp(sign x))`.
    pub(super) fn fast_sigmoid(&mut self, x: Value, sign: f64) -> Result<Value> {
        let power = self.fast_exp(x, sign)?;
        let one = self.single(1.0);
        let sum = self.map(ScalarFn::Add, &[power, one])?;
        self.map(ScalarFn::RecipApprox, &[sum])
    }

    fn single(&mut self, value: f64) -> Value {
        self.b.constant(Literal::float(Elem::F32, value), &[])
    }
}
