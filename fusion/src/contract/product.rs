//! Calls of products, read as one form: batches of `alpha a b + beta c`.

use smallvec::SmallVec;
use tilefuse_block::Elem;

use super::operand::{Source, source};
use crate::args::Args;
use crate::graph::{AtenCall, Graph, NodeId, ValueRef};
use crate::types::Dims;

/// Strides of an operand along the batch, and along its rows and columns in the product.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Access {
    /// The operand.
    pub(super) source: Source,
    /// Along each dimension of the batch.
    pub(super) batch: Dims,
    /// Along rows and columns of the matrix.
    pub(super) matrix: [i64; 2],
}

/// `alpha a[m, k] b[k, n] + beta c[m, n]` for each member of a batch; the result is row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Product {
    /// Sizes of the batch.
    pub(super) batch: Dims,
    /// Rows.
    pub(super) m: i64,
    /// Columns.
    pub(super) n: i64,
    /// What is summed over.
    pub(super) k: i64,
    /// The left operand.
    pub(super) a: Access,
    /// The right operand.
    pub(super) b: Access,
    /// What is added.
    pub(super) c: Option<Access>,
    /// The factor of the product.
    pub(super) alpha: f64,
    /// The factor of what is added.
    pub(super) beta: f64,
    /// Of operands.
    pub(super) elem: Elem,
    /// Of the result: the same, but for 8-bit integers 32 bits.
    pub(super) out: Elem,
}

/// The product that a call computes; `None` for calls and tensors that the templates do not know.
pub(super) fn of(graph: &Graph, node: NodeId, call: &AtenCall) -> Option<Product> {
    let args = Args(&call.args);
    let operands = graph.operands(node);
    let operand = |name: &str| {
        let position = args.tensor(name)?;
        source(graph, *operands.get(usize::from(position))?, position)
    };
    let optional = |name: &str| if args.absent(name) { Some(None) } else { operand(name).map(Some) };
    let factor = |name: &str| args.number(name).map_or(1.0, |n| n.as_f64());
    let [out] = &graph.node(node).outs[..] else { return None };
    let (a, mut b, c, alpha, beta) = match call.op.as_str() {
        "aten::linear" => (operand("input")?, operand("weight")?, optional("bias")?, 1.0, 1.0),
        "aten::mm" | "aten::bmm" | "aten::_int_mm" => (operand("self")?, operand("mat2")?, None, 1.0, 1.0),
        "aten::matmul" => (operand("self")?, operand("other")?, None, 1.0, 1.0),
        "aten::addmm" => {
            (operand("mat1")?, operand("mat2")?, optional("self")?, factor("alpha"), factor("beta"))
        }
        "aten::baddbmm" => {
            (operand("batch1")?, operand("batch2")?, optional("self")?, factor("alpha"), factor("beta"))
        }
        _ => return None,
    };
    if call.op == "aten::linear" {
        let &[_, _] = &b.shape[..] else { return None };
        b.shape.swap(0, 1);
        b.strides.swap(0, 1);
    }
    let result = out.dtype.elem()?;
    // Products of integers wrap around in their own kind, but for the one whose result is wider.
    let elem = match (call.op.as_str(), result) {
        ("aten::_int_mm", Elem::I32) => Elem::I8,
        ("aten::_int_mm", _) => return None,
        (_, Elem::F32 | Elem::F64 | Elem::Bf16 | Elem::F16) => result,
        _ => return None,
    };
    let of_kind = |v: ValueRef| graph.ty(v).dtype.elem() == Some(elem) && graph.ty(v).device == out.device;
    let same = operands.iter().all(|&v| of_kind(v));
    if !same || !out.is_contiguous() || a.shape.len() < 2 || b.shape.len() < 2 {
        return None;
    }
    let (batch, &[m, n]) = out.shape.split_last_chunk::<2>()?;
    let &k = a.shape.last()?;
    let product = Product {
        m,
        n,
        k,
        a: access(a, batch, [m, k])?,
        b: access(b, batch, [k, n])?,
        // A factor of 0 leaves out even what is not finite.
        c: match c.filter(|_| beta != 0.0) {
            Some(c) => Some(access(c, batch, [m, n])?),
            None => None,
        },
        batch: Dims::from_slice(batch),
        alpha,
        beta,
        elem,
        out: result,
    };
    let sizes = product.batch.iter().chain([&product.m, &product.n, &product.k]);
    (sizes.copied().all(|n| n > 0) && alpha != 0.0).then(|| product.folded())
}

/// An operand as a batch of matrices of these sizes.
pub(super) fn access(source: Source, batch: &[i64], matrix: [i64; 2]) -> Option<Access> {
    let shape: SmallVec<[i64; 6]> = batch.iter().copied().chain(matrix).collect();
    let strides = source.spread(&shape)?;
    let (batch, &matrix) = strides.split_last_chunk::<2>()?;
    Some(Access { batch: Dims::from_slice(batch), matrix, source })
}

impl Access {
    /// Whether neighbours along columns of the matrix lie side by side, and those along rows do not.
    pub(super) fn is_transposed(&self) -> bool {
        self.matrix[0] == 1 && self.matrix[1] != 1
    }
}

impl Product {
    /// The same with dimensions of the batch made rows where the right operand is the same for all of them.
    fn folded(mut self) -> Product {
        let keep: Vec<usize> = (0..self.batch.len()).filter(|&d| self.batch[d] != 1).collect();
        for access in [&mut self.a, &mut self.b].into_iter().chain(&mut self.c) {
            access.batch = keep.iter().map(|&d| access.batch[d]).collect();
        }
        self.batch = keep.iter().map(|&d| self.batch[d]).collect();
        while let Some(&count) = self.batch.last() {
            let m = self.m;
            let follows = |access: &Access| {
                m == 1 || access.batch.last().is_some_and(|&stride| stride == m * access.matrix[0])
            };
            let shared = self.b.batch.last() == Some(&0);
            if !shared || !follows(&self.a) || !self.c.iter().all(follows) {
                break;
            }
            self.b.batch.pop();
            for access in [&mut self.a].into_iter().chain(&mut self.c) {
                let stride = access.batch.pop().unwrap_or(0);
                if m == 1 {
                    access.matrix[0] = stride;
                }
            }
            self.batch.pop();
            self.m *= count;
        }
        self
    }
}
