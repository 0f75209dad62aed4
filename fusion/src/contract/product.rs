//! Contractions as products of matrices: batches of `alpha a b + beta c`.

use smallvec::SmallVec;
use tilefuse_block::Elem;

use super::match_failure::MatchFailure;
use super::operand::{self, Source, source};
use super::windows::Windows;
use crate::contraction::Contraction;
use crate::graph::{Graph, NodeId, ValueRef};
use crate::library_form::ContractionForm;
use crate::rewrite::channels_last::ResultLayout;
use crate::types::Dims;

/// Elements that one copy to a GPU's shared memory moves.
pub(super) const COPIED: i64 = 8;

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

/// `alpha a[m, k] b[k, n] + beta c[m, n]` for each member of a batch.
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
    /// How its rows lie where they are windows of images: not along `a.matrix`, and there is no batch but of parts of the sum.
    pub(super) windows: Option<Windows>,
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
    /// The order of the result of a convolution that is a product (implicit GEMM); row-major otherwise.
    pub(super) result_layout: Option<ResultLayout>,
}

/// The product of matrices that a node's contraction, of no windows, is.
pub(super) fn of(graph: &Graph, node: NodeId, form: &ContractionForm) -> Result<Product, MatchFailure> {
    let out = graph.ty(node.into());
    let (elem, result) = kinds(graph, node).ok_or(MatchFailure::ElementTypes)?;
    if !out.is_contiguous() {
        return Err(MatchFailure::Strides);
    }
    let operands = graph.operands(node);
    let operand = |at: u16| {
        let value = operands.get(usize::from(at)).copied();
        value.map(|value| source(graph, value, at)).ok_or(MatchFailure::Strides)
    };
    let (batch, &[m, n]) = out.shape.split_last_chunk::<2>().ok_or(MatchFailure::Vector)?;
    let factors = [operand(form.lhs)?, operand(form.rhs)?];
    let [left, right] = matrices(&form.pairs, factors, batch.len()).ok_or(MatchFailure::Vector)?;
    let k = left.shape.last().copied().ok_or(MatchFailure::Vector)?;
    let access = |source, matrix| access(source, batch, matrix).ok_or(MatchFailure::NoTemplate);
    let c = match form.addend {
        Some((at, _)) => Some(access(operand(at)?, [m, n])?),
        None => None,
    };
    let product = Product {
        m,
        n,
        k,
        a: access(left, [m, k])?,
        windows: None,
        b: access(right, [k, n])?,
        c,
        batch: Dims::from_slice(batch),
        alpha: form.alpha,
        beta: form.addend.map_or(0.0, |(_, beta)| beta),
        elem,
        out: result,
        result_layout: None,
    };
    let is_empty = product.batch.iter().chain([&m, &n, &k]).any(|&size| size <= 0);
    if is_empty { Err(MatchFailure::Small) } else { Ok(product.folded()) }
}

/// The kind of all operands of a node, and of its result.
fn kinds(graph: &Graph, node: NodeId) -> Option<(Elem, Elem)> {
    let out = graph.node(node).outs.first()?;
    let operands = graph.operands(node);
    let elem = graph.ty(*operands.first()?).dtype.elem()?;
    let result = out.dtype.elem()?;
    // Sums of 8-bit integers are stored in their own type alone, those of floats rounded to the operands'.
    let known = match elem {
        Elem::I8 => result == Elem::I32,
        Elem::F32 | Elem::F64 | Elem::Bf16 | Elem::F16 => result == elem,
        _ => false,
    };
    let alike = |&v: &ValueRef| graph.ty(v).dtype.elem() == Some(elem) && graph.ty(v).device == out.device;
    (known && operands.iter().all(alike)).then_some((elem, result))
}

/// Left and right operand with their dimensions in the order batch, rows, columns; the batch has so many dimensions, rows but
/// the last among them. `None` where several dimensions are summed, or are columns.
fn matrices(pairs: &Contraction, operands: [Source; 2], batch: usize) -> Option<[Source; 2]> {
    let [mut left, mut right] = operands;
    let own = pairs.batch.len();
    let rows = batch.checked_sub(own)?;
    if pairs.sum.len() != 1 || left.shape.len() != batch + 2 || right.shape.len() != own + 2 {
        return None;
    }
    left.reorder(&pairs.order(0, left.shape.len()));
    let mut order = pairs.order(1, right.shape.len());
    order.swap(own, own + 1);
    right.reorder(&order);
    for _ in 0..rows {
        right.shape.insert(own, 1);
        right.strides.insert(own, 0);
    }
    Some([left, right])
}

/// An operand as a batch of matrices of these sizes.
pub(super) fn access(source: Source, batch: &[i64], matrix: [i64; 2]) -> Option<Access> {
    let shape: SmallVec<[i64; 6]> = batch.iter().copied().chain(matrix).collect();
    let strides = source.spread(&shape)?;
    let (batch, &matrix) = strides.split_last_chunk::<2>()?;
    Some(Access { batch: Dims::from_slice(batch), matrix, source })
}

impl Access {
    /// Whether neighbours along columns of the matrix are adjacent, and those along rows do not.
    pub(super) fn is_transposed(&self) -> bool {
        self.matrix[0] == 1 && self.matrix[1] != 1
    }

    /// Whether its rows or columns, or `windows` where it has these, are copied to a GPU's shared memory in pieces of 16 bytes.
    pub(super) fn is_copied(&self, windows: Option<&Windows>) -> bool {
        let whole = |stride: &i64| stride % COPIED == 0;
        let lines = match (windows, self.matrix) {
            (Some(windows), _) => windows.is_multiple_of(COPIED),
            (None, [1, other] | [other, 1]) => whole(&other),
            _ => false,
        };
        lines && self.batch.iter().all(whole) && whole(&self.source.offset)
    }
}

/// Whether rows of a product begin at no multiples of 16 bytes: libtorch's library takes a kernel several times slower for them on
/// a GPU.
pub(super) fn has_unaligned_rows(graph: &Graph, node: NodeId, form: &ContractionForm) -> bool {
    let ty = graph.ty(node.into());
    let bytes = ty.dtype.elem().map_or(0, |elem| i64::from(elem.bytes()));
    form.window.is_none() && ty.shape.last().is_some_and(|columns| columns * bytes % 16 != 0)
}

impl Product {
    /// The same over operands that are read from memory: what neighbours compute could not be copied to shared memory ahead.
    pub(super) fn in_memory(mut self, graph: &Graph, node: NodeId) -> Product {
        let operands = graph.operands(node);
        for access in [&mut self.a, &mut self.b] {
            if let Some(&value) = operands.get(usize::from(access.source.position)) {
                let held = operand::in_memory(graph, value, access.source.position);
                (access.source.layout, access.source.span) = (held.layout, held.span);
            }
        }
        self
    }

    /// Bytes of the sums of so many parts.
    pub(super) fn partial_bytes(&self, parts: u32) -> f64 {
        let members: i64 = self.batch.iter().product();
        let elements = f64::from(parts) * members as f64 * self.m as f64 * self.n as f64;
        elements * f64::from(self.sum().bytes())
    }

    /// The kind of sums.
    pub(super) fn sum(&self) -> Elem {
        match self.elem {
            Elem::F64 => Elem::F64,
            Elem::I8 => Elem::I32,
            _ => Elem::F32,
        }
    }

    /// The same with dimensions of the batch made rows where the right operand is the same for all of them.
    pub(super) fn folded(mut self) -> Product {
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
