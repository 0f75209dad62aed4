//! Contractions as calls of products of matrices, or as products and their sums.
//!
//! What libtorch computes in the same call, it computes here: factors, an addend and the rounding behind a contraction, where
//! they come from the operator that the contraction comes from. Each form of call is an entry of [`FORMS`]; what is none of
//! them is brought into the order of batches of matrices. A call keeps the contraction that it computes, as a
//! [`ContractionForm`], from which [`crate::choose_products`] may make a kernel instead.

use smallvec::SmallVec;
use tilefuse_block::{Elem, ReduceFn, ScalarFn};

use crate::contraction::Contraction;
use crate::graph::{AtenCall, Graph, NodeId, Op, ValueRef, View};
use crate::library_form::{ContractionForm, LibraryForm};
use crate::recording::Arg;
use crate::rewrite::simplify::known;
use crate::rewrite_limit::Rewrites;
use crate::types::{DType, Device, Dims, TensorType};

/// A contraction of a graph.
#[derive(Clone)]
pub(super) struct Contract {
    pub(super) node: NodeId,
    pub(super) pairs: Contraction,
    /// Left and right operand.
    pub(super) operands: [ValueRef; 2],
    /// The operands' type.
    pub(super) elem: Elem,
    /// The result's.
    pub(super) ty: TensorType,
}

/// What libtorch computes in the call of a product.
#[derive(Clone, Debug)]
pub(super) struct Epilogue {
    /// The last node of it: the contraction, or a map or cast behind it.
    pub(super) root: NodeId,
    /// Factor of the products.
    pub(super) alpha: f64,
    /// What is added, and its factor.
    pub(super) addend: Option<(ValueRef, f64)>,
}

/// Whether calls with these epilogues may be made of a node. With none they must.
pub(super) fn allowed(epilogues: &[Epilogue], node: NodeId, rewrites: &Rewrites) -> bool {
    epilogues.iter().all(|epilogue| epilogue.root == node) || rewrites.allow("select-library")
}

/// A form of call; `None` where a contraction is not of it.
type Form = fn(&Contract, &Graph, &Epilogue) -> Option<Call>;

/// The forms of calls, the first one that fits is taken.
const FORMS: &[Form] = &[linear, matrices, batches, vector, matmul];

impl Contract {
    pub(super) fn of(graph: &Graph, node: NodeId) -> Option<Contract> {
        let Op::Contract(pairs) = &graph.node(node).op else { return None };
        let &[lhs, rhs] = &graph.operands(node)[..] else { return None };
        let elem = graph.ty(lhs).dtype.elem()?;
        Some(Contract {
            node,
            pairs: pairs.clone(),
            operands: [lhs, rhs],
            elem,
            ty: graph.ty(node.into()).clone(),
        })
    }

    /// Sizes of an operand's dimensions of the batch, of those that it has alone, and of those that are summed.
    fn sizes(&self, graph: &Graph, operand: usize) -> [Dims; 3] {
        let shape = &graph.ty(self.operands[operand]).shape;
        let of =
            |pairs: &[(u8, u8)]| pairs.iter().map(|&(l, r)| shape[usize::from([l, r][operand])]).collect();
        let others = self.pairs.others(operand, shape.len());
        [of(&self.pairs.batch), others.iter().map(|&d| shape[usize::from(d)]).collect(), of(&self.pairs.sum)]
    }

    /// Whether it does as little for each element that it reads as a reduction.
    pub(super) fn is_reduction(&self, graph: &Graph) -> bool {
        let count = |operand: usize, part: usize| self.sizes(graph, operand)[part].iter().product::<i64>();
        let (rows, columns, depth) = (count(0, 1), count(1, 1), count(0, 2));
        if [rows, columns, depth, count(0, 0)].contains(&0)
            || self.pairs.sum.is_empty()
            || (rows == 1 && columns == 1)
        {
            return true;
        }
        let matrix = match (rows, columns) {
            (1, _) => 1,
            (_, 1) => 0,
            _ => return false,
        };
        let ty = graph.ty(self.operands[matrix]);
        let &[(left, right)] = &self.pairs.sum[..] else { return false };
        let along = ty.strides[usize::from([left, right][matrix])] == 1;
        matches!(ty.device, Device::Cuda(_))
            && self.pairs.batch.is_empty()
            && self.elem.is_float()
            && along
            && depth > 1
    }

    /// Whether libtorch multiplies numbers of the type: on a GPU no integers but those of 8 bits, whose sums it does not round.
    /// Others come from operators whose sizes are 1 wherever they sum, and which multiply element by element then.
    pub(super) fn has_call(&self, graph: &Graph) -> bool {
        if self.elem.is_float() || !matches!(self.ty.device, Device::Cuda(_)) {
            return true;
        }
        let bare = Epilogue { root: self.node, alpha: 1.0, addend: None };
        let rounds = graph.users(self.node).iter().any(|&(user, _)| self.epilogue(graph, user).is_some());
        self.elem == Elem::I8 && !rounds && self.form(graph, &bare).is_some()
    }

    /// All products, and their sums.
    pub(super) fn as_sums(&self, graph: &mut Graph) -> ValueRef {
        let origin = graph.node(self.node).origin;
        let summed = self.sizes(graph, 0)[2].clone();
        let shape: Dims = self.ty.shape.iter().chain(&summed).copied().collect();
        let (left, right) = (self.sizes(graph, 0)[1].len(), self.sizes(graph, 1)[1].len());
        let dtype = self.ty.dtype;
        let form = |shape: &[i64]| TensorType::contiguous(dtype, shape, self.ty.device);
        let operands = [0, 1].map(|operand| {
            let mut value = self.operands[operand];
            let order = self.pairs.order(operand, graph.ty(value).rank());
            if graph.ty(value).dtype != dtype {
                let ty = TensorType { dtype, ..graph.ty(value).clone() };
                value = graph.add(Op::Cast, &[value], [ty], origin).into();
            }
            let permuted: Dims = order.iter().map(|&d| graph.ty(value).shape[usize::from(d)]).collect();
            let mut ones = permuted.clone();
            let batch = self.pairs.batch.len();
            let (at, count) = if operand == 0 { (batch + left, right) } else { (batch, left) };
            (0..count).for_each(|_| ones.insert(at, 1));
            for (view, shape) in
                [(View::Permute(order), &permuted), (View::Reshape, &ones), (View::Expand, &shape)]
            {
                value = graph.add(Op::View(view), &[value], [form(shape)], origin).into();
            }
            value
        });
        let products = graph.add(Op::Map(ScalarFn::Mul), &operands, [form(&shape)], origin);
        let dims: SmallVec<[u8; 6]> = (self.ty.rank() as u8..shape.len() as u8).collect();
        if dims.is_empty() {
            graph.node_mut(products).outs[0].strides = self.ty.strides.clone();
            return products.into();
        }
        graph
            .add(
                Op::Reduce { combine: ReduceFn::Sum.into(), dims },
                &[products.into()],
                [self.ty.clone()],
                origin,
            )
            .into()
    }

    /// Calls of libtorch for each of its uses that rounds, or one for all.
    pub(super) fn as_calls(&self, graph: &mut Graph, rewrites: &Rewrites) {
        let (epilogues, all) = self.epilogues(graph, &|graph, epilogue| self.form(graph, epilogue).is_some());
        let calls: Option<Vec<Call>> = epilogues.iter().map(|epilogue| self.call(graph, epilogue)).collect();
        match calls.filter(|_| all && allowed(&epilogues, self.node, rewrites)) {
            Some(calls) => {
                calls.into_iter().zip(&epilogues).for_each(|(call, e)| call.replace(graph, e.root))
            }
            None => self.bare(graph),
        }
    }

    /// A call for the contraction alone, in the type that sums are held in.
    fn bare(&self, graph: &mut Graph) {
        let dtype = self.ty.dtype;
        let mut wide =
            Contract { operands: self.operands, pairs: self.pairs.clone(), ty: self.ty.clone(), ..*self };
        let epilogue = Epilogue { root: self.node, alpha: 1.0, addend: None };
        if let Some(call) = self.form(graph, &epilogue) {
            return call.replace(graph, self.node);
        }
        if self.ty.dtype.elem() != Some(self.elem) {
            let origin = graph.node(self.node).origin;
            wide.operands = self.operands.map(|value| {
                let ty = TensorType { dtype, ..graph.ty(value).clone() };
                graph.add(Op::Cast, &[value], [ty], origin).into()
            });
            wide.elem = dtype.elem().unwrap_or(self.elem);
        }
        if let Some(call) = wide.call(graph, &epilogue) {
            call.replace(graph, self.node);
        }
    }

    /// What libtorch computes with the contraction, for each use that rounds the sums; and whether these are all uses. `fits`
    /// says whether a call computes an epilogue.
    pub(super) fn epilogues(
        &self,
        graph: &Graph,
        fits: &dyn Fn(&Graph, &Epilogue) -> bool,
    ) -> (Vec<Epilogue>, bool) {
        let own = ValueRef::from(self.node);
        let bare = Epilogue { root: self.node, alpha: 1.0, addend: None };
        let users = graph.users(self.node);
        let read_otherwise = graph.outputs.contains(&own) || graph.updates.iter().any(|u| u.value == own);
        if self.ty.dtype.elem() == Some(self.elem) {
            let single = users.len() == 1 && !read_otherwise;
            let found = users.first().filter(|_| single).and_then(|&(user, _)| self.epilogue(graph, user));
            // A form that has no addend leaves it to a kernel.
            let found = found.filter(|epilogue| fits(graph, epilogue));
            return (vec![found.unwrap_or(bare)], true);
        }
        // The products that libtorch does not round.
        if fits(graph, &bare) && !users.iter().any(|&(user, _)| self.epilogue(graph, user).is_some()) {
            return (vec![bare], true);
        }
        let found: Vec<Epilogue> = users.iter().filter_map(|&(user, _)| self.epilogue(graph, user)).collect();
        let all = found.len() == users.len() && !users.is_empty() && !read_otherwise;
        (found, all)
    }

    /// The epilogue that begins with a use of the contraction, up to the rounding where there is one.
    fn epilogue(&self, graph: &Graph, first: NodeId) -> Option<Epilogue> {
        let rounds = self.ty.dtype.elem() != Some(self.elem);
        let origin = graph.node(self.node).origin;
        let mut found = Epilogue { root: self.node, alpha: 1.0, addend: None };
        let mut next = Some(first);
        while let Some(user) = next {
            // What another operator does is its own, but for the rounding and what stands before it.
            let other = !rounds && graph.node(user).origin != origin;
            let value = ValueRef::from(found.root);
            let operands = graph.operands(user);
            match (&graph.node(user).op, &operands[..]) {
                _ if other => break,
                (Op::Map(ScalarFn::Mul), &[a, b]) if found.addend.is_none() && found.alpha == 1.0 => {
                    match factor(graph, if a == value { b } else { a }) {
                        Some(factor) => found.alpha = factor,
                        None => break,
                    }
                }
                (Op::Map(ScalarFn::Add), &[a, b]) if found.addend.is_none() && a != b => {
                    let added = if a == value { b } else { a };
                    match self.addend(graph, added) {
                        Some(addend) => found.addend = Some(addend),
                        None => break,
                    }
                }
                (Op::Cast, _) if rounds && graph.ty(user.into()).dtype.elem() == Some(self.elem) => {
                    return Some(Epilogue { root: user, ..found });
                }
                _ => break,
            }
            found.root = user;
            let value = ValueRef::from(user);
            let read = graph.outputs.contains(&value) || graph.updates.iter().any(|u| u.value == value);
            next = match &graph.users(user)[..] {
                &[(user, _)] if !read => Some(user),
                _ => None,
            };
        }
        (!rounds && found.root != self.node).then_some(found)
    }

    /// An addend of the operands' type, and its factor, before it was widened, multiplied and broadcast.
    fn addend(&self, graph: &Graph, value: ValueRef) -> Option<(ValueRef, f64)> {
        let operand = |value: ValueRef| graph.operands(value.node).first().copied();
        let mut value = value;
        if let Op::View(View::Expand) = graph.node(value.node).op {
            value = operand(value)?;
            // Dimensions of size 1 in front of it.
            if let (Op::View(View::Reshape), Some(of)) = (&graph.node(value.node).op, operand(value))
                && graph.ty(value).shape.ends_with(&graph.ty(of).shape)
            {
                value = of;
            }
        }
        let mut beta = 1.0;
        if let (Op::Map(ScalarFn::Mul), &[a, b]) =
            (&graph.node(value.node).op, &graph.operands(value.node)[..])
            && let Some((factor, other)) =
                factor(graph, b).map(|f| (f, a)).or_else(|| Some((factor(graph, a)?, b)))
        {
            (value, beta) = (other, factor);
        }
        if graph.ty(value).dtype.elem() != Some(self.elem) {
            let Op::Cast = graph.node(value.node).op else { return None };
            value = operand(value)?;
        }
        (graph.ty(value).dtype.elem() == Some(self.elem)).then_some((value, beta))
    }

    fn form(&self, graph: &Graph, epilogue: &Epilogue) -> Option<Call> {
        FORMS.iter().find_map(|form| form(self, graph, epilogue))
    }

    /// The call for an epilogue; of operands in the order of batches of matrices where the contraction is of no form.
    fn call(&self, graph: &mut Graph, epilogue: &Epilogue) -> Option<Call> {
        if let Some(call) = self.form(graph, epilogue) {
            return Some(call);
        }
        let count = |operand: usize, part: usize| self.sizes(graph, operand)[part].iter().product::<i64>();
        let (batch, rows, columns, depth) = (count(0, 0), count(0, 1), count(1, 1), count(0, 2));
        let all = [batch, rows, columns];
        let own: Dims = Dims::from_slice(if self.pairs.batch.is_empty() { &all[1..] } else { &all });
        let names = match (epilogue.addend, own.len()) {
            (None, _) if epilogue.alpha != 1.0 => return None,
            (Some(_), _) if own != self.ty.shape => return None,
            (Some(_), 2) => ADDMM,
            (Some(_), _) => BADDBMM,
            (None, 2) => MM,
            (None, _) => BMM,
        };
        let lhs = self.in_matrices(graph, 0, &[batch, rows, depth][3 - own.len()..]);
        let rhs = self.in_matrices(graph, 1, &[batch, depth, columns][3 - own.len()..]);
        let leading = own.len() as u8 - 2;
        let pairs = Contraction {
            batch: (0..leading).map(|d| (d, d)).collect(),
            sum: [(leading + 1, leading)].into_iter().collect(),
        };
        Some(Call { shape: Some(own), ..names.call(epilogue, &pairs, [lhs, rhs]) })
    }

    /// An operand in this shape, in the order batch, others, summed, or for the right one batch, summed, others.
    fn in_matrices(&self, graph: &mut Graph, operand: usize, shape: &[i64]) -> ValueRef {
        let origin = graph.node(self.node).origin;
        let mut value = self.operands[operand];
        let ty = graph.ty(value).clone();
        let mut parts = self.pairs.parts(operand, ty.rank());
        if operand == 1 {
            parts.swap(1, 2);
        }
        let parts = &parts[parts.len() - shape.len()..];
        let mut view = |view, value: ValueRef, ty: TensorType| -> ValueRef {
            graph.add(Op::View(view), &[value], [ty], origin).into()
        };
        let permuted = |ty: &TensorType, order: &[u8]| {
            let picked = |dims: &[i64]| order.iter().map(|&d| dims[usize::from(d)]).collect();
            TensorType { shape: picked(&ty.shape), strides: picked(&ty.strides), ..ty.clone() }
        };
        let contiguous = |shape: &[i64]| TensorType::contiguous(ty.dtype, shape, ty.device);
        let splits = parts.iter().any(|part| part.len() != 1);
        // Adjacent dimensions are merged before the permutation, which is then a view at strides and needs no copy.
        let follow = |part: &SmallVec<[u8; 4]>| part.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if splits && ty.is_contiguous() && parts.iter().all(follow) {
            let mut places: SmallVec<[u8; 3]> = (0..parts.len() as u8).collect();
            places.sort_by_key(|&part| parts[usize::from(part)].first().copied().unwrap_or(u8::MAX));
            let merged: Dims = places.iter().map(|&part| shape[usize::from(part)]).collect();
            let merged = contiguous(&merged);
            value = view(View::Reshape, value, merged.clone());
            let order: SmallVec<[u8; 6]> = (0..parts.len() as u8)
                .filter_map(|part| places.iter().position(|&place| place == part).map(|at| at as u8))
                .collect();
            let ty = permuted(&merged, &order);
            return view(View::Permute(order), value, ty);
        }
        let order: SmallVec<[u8; 6]> = parts.iter().flatten().copied().collect();
        let ty = permuted(&ty, &order);
        value = view(View::Permute(order), value, ty);
        if splits { view(View::Reshape, value, contiguous(shape)) } else { value }
    }

    /// Whether the result of an epilogue is of the operands' type.
    fn is_rounded(&self, graph: &Graph, epilogue: &Epilogue) -> bool {
        graph.ty(epilogue.root.into()).dtype.elem() == Some(self.elem)
    }

    /// Whether libtorch has calls whose result is the sums themselves: on a GPU, of 16-bit operands.
    fn may_be_wide(&self, graph: &Graph, epilogue: &Epilogue) -> bool {
        let sums = epilogue.root == self.node && self.ty.dtype == DType::Elem(Elem::F32);
        let halves = matches!(self.elem, Elem::F16 | Elem::Bf16);
        sums && halves && matches!(graph.ty(self.operands[0]).device, Device::Cuda(_))
    }

    fn ranks(&self, graph: &Graph) -> [usize; 2] {
        self.operands.map(|value| graph.ty(value).rank())
    }

    /// Whether the first dimensions of both operands are the batch, and dimensions of these numbers are summed.
    fn is(&self, batch: usize, sum: (usize, usize)) -> bool {
        let leading = self.pairs.batch.iter().copied().eq((0..batch as u8).map(|d| (d, d)));
        leading && self.pairs.sum[..] == [(sum.0 as u8, sum.1 as u8)]
    }
}

/// Names of an operator's arguments: the addend, if it takes one, then both factors.
struct Names {
    op: &'static str,
    /// The overload whose result is in the type of sums.
    wide: bool,
    addend: Option<&'static str>,
    factors: [&'static str; 2],
}

const MM: Names = Names { op: "aten::mm", wide: false, addend: None, factors: ["self", "mat2"] };
const INT_MM: Names = Names { op: "aten::_int_mm", ..MM };
const MM_WIDE: Names = Names { wide: true, ..MM };
const BMM: Names = Names { op: "aten::bmm", ..MM };
const BMM_WIDE: Names = Names { wide: true, ..BMM };
const MATMUL: Names = Names { op: "aten::matmul", factors: ["self", "other"], ..MM };
const ADDMM: Names = Names { op: "aten::addmm", addend: Some("self"), factors: ["mat1", "mat2"], ..MM };
const ADDMV: Names = Names { op: "aten::addmv", addend: Some("self"), factors: ["mat", "vec"], ..MM };
const BADDBMM: Names =
    Names { op: "aten::baddbmm", addend: Some("self"), factors: ["batch1", "batch2"], ..MM };

impl Names {
    /// The call for an epilogue of products of these factors, along these pairs of their dimensions.
    fn call(&self, epilogue: &Epilogue, pairs: &Contraction, factors: [ValueRef; 2]) -> Call {
        let number =
            |x: f64| if x.fract() == 0.0 && x.abs() < 1e9 { Arg::Int(x as i64) } else { Arg::Float(x) };
        let addend = self.addend.zip(epilogue.addend);
        let tensors = addend.map(|(name, _)| name).into_iter().chain(self.factors);
        let mut args: Vec<(&str, Arg<u16>)> = tensors.zip((0..).map(Arg::Tensor)).collect();
        if self.wide {
            args.push(("out_dtype", Arg::DType(DType::Elem(Elem::F32))));
        }
        if let Some((_, (_, beta))) = addend {
            args.extend([("beta", number(beta)), ("alpha", number(epilogue.alpha))]);
        }
        let operands = addend.map(|(_, (value, _))| value).into_iter().chain(factors).collect();
        let first = u16::from(addend.is_some());
        let contraction = ContractionForm {
            pairs: pairs.clone(),
            window: None,
            lhs: first,
            rhs: first + 1,
            alpha: epilogue.alpha,
            addend: addend.map(|(_, (_, beta))| (0, beta)),
        };
        let overload = if self.wide { "dtype" } else { "" };
        let call = AtenCall::new(self.op, overload, args).of(LibraryForm::Contraction(contraction));
        Call { call, operands, shape: None }
    }
}

/// `input weightᵀ + bias`.
fn linear(contract: &Contract, graph: &Graph, epilogue: &Epilogue) -> Option<Call> {
    let [left, right] = contract.ranks(graph);
    let bias = match epilogue.addend {
        Some((bias, beta)) if beta == 1.0 && graph.ty(bias).rank() == 1 => Some(bias),
        Some(_) => return None,
        None => None,
    };
    let fits = right == 2 && contract.is(0, (left.checked_sub(1)?, 1)) && epilogue.alpha == 1.0;
    if !fits
        || !contract.is_rounded(graph, epilogue)
        || bias.is_some_and(|b| graph.ty(b).shape.last() != contract.ty.shape.last())
    {
        return None;
    }
    let args = [("input", Arg::Tensor(0)), ("weight", Arg::Tensor(1))];
    let args = args.into_iter().chain([("bias", bias.map_or(Arg::None, |_| Arg::Tensor(2)))]);
    let operands = contract.operands.into_iter().chain(bias).collect();
    let contraction = ContractionForm {
        pairs: contract.pairs.clone(),
        window: None,
        lhs: 0,
        rhs: 1,
        alpha: 1.0,
        addend: bias.map(|_| (2, 1.0)),
    };
    let call = AtenCall::new("aten::linear", "", args).of(LibraryForm::Contraction(contraction));
    Some(Call { call, operands, shape: None })
}

/// Products of two matrices.
fn matrices(contract: &Contract, graph: &Graph, epilogue: &Epilogue) -> Option<Call> {
    let fits = contract.ranks(graph) == [2, 2] && contract.is(0, (1, 0));
    let names = match (epilogue.addend, contract.is_rounded(graph, epilogue)) {
        (Some(_), true) => ADDMM,
        (None, true) if epilogue.alpha == 1.0 => MM,
        (None, false) if contract.elem == Elem::I8 => INT_MM,
        (None, false) if contract.may_be_wide(graph, epilogue) => MM_WIDE,
        _ => return None,
    };
    fits.then(|| names.call(epilogue, &contract.pairs, contract.operands))
}

/// Products of the matrices of two batches, none of which is broadcast.
fn batches(contract: &Contract, graph: &Graph, epilogue: &Epilogue) -> Option<Call> {
    let fits = contract.ranks(graph) == [3, 3] && contract.is(1, (2, 1));
    let broadcast = contract.operands.iter().any(|&value| expanded(graph, value).is_some());
    let names = match (epilogue.addend, contract.is_rounded(graph, epilogue)) {
        (Some(_), true) => BADDBMM,
        (None, true) if epilogue.alpha == 1.0 && !broadcast => BMM,
        (None, false) if contract.may_be_wide(graph, epilogue) && !broadcast => BMM_WIDE,
        _ => return None,
    };
    fits.then(|| names.call(epilogue, &contract.pairs, contract.operands))
}

/// A matrix times a vector, and an addend.
fn vector(contract: &Contract, graph: &Graph, epilogue: &Epilogue) -> Option<Call> {
    let fits =
        contract.ranks(graph) == [2, 1] && contract.is(0, (1, 0)) && contract.is_rounded(graph, epilogue);
    (fits && epilogue.addend.is_some()).then(|| ADDMV.call(epilogue, &contract.pairs, contract.operands))
}

/// Any other product of matrices and vectors, batches of which are broadcast.
fn matmul(contract: &Contract, graph: &Graph, epilogue: &Epilogue) -> Option<Call> {
    let [left, right] = contract.ranks(graph);
    let batch = contract.pairs.batch.len();
    let fits = match batch {
        0 => right <= 2 || left == 1,
        _ => left == batch + 2 && right == batch + 2,
    };
    let sums = contract.is(batch, (left.checked_sub(1)?, right.saturating_sub(2)));
    let plain = epilogue.addend.is_none() && epilogue.alpha == 1.0 && contract.is_rounded(graph, epilogue);
    if !fits || !sums || !plain {
        return None;
    }
    let narrow = contract.operands.map(|value| expanded(graph, value).unwrap_or(value));
    let full = |d: usize| {
        let [l, r] = narrow.map(|value| graph.ty(value).shape[d]);
        l.max(r) == contract.ty.shape[d]
    };
    // libtorch repeats dimensions of the batch alone.
    let operands = if batch > 0 && (0..batch).all(full) { narrow } else { contract.operands };
    Some(MATMUL.call(epilogue, &contract.pairs, operands))
}

/// The value that a view repeats along dimensions in front of the last two.
fn expanded(graph: &Graph, value: ValueRef) -> Option<ValueRef> {
    let Op::View(View::Expand) = graph.node(value.node).op else { return None };
    let of = *graph.operands(value.node).first()?;
    let matrix = graph.ty(value).rank().checked_sub(2)?;
    (graph.ty(of).shape[matrix..] == graph.ty(value).shape[matrix..]).then_some(of)
}

/// The number that every element of a value is, if it may be a call's `alpha` or `beta`: libtorch does not read what it would
/// multiply by 0, and so forgets what is not finite there.
fn factor(graph: &Graph, value: ValueRef) -> Option<f64> {
    known(graph, value).map(|literal| literal.as_f64()).filter(|&factor| factor != 0.0)
}

/// A call of libtorch, and the shape of its result where that is not the epilogue's.
struct Call {
    call: AtenCall,
    operands: Vec<ValueRef>,
    shape: Option<Dims>,
}

impl Call {
    /// Makes uses of the last node of an epilogue uses of the call.
    fn replace(self, graph: &mut Graph, root: NodeId) {
        let (ty, origin) = (graph.ty(root.into()).clone(), graph.node(root).origin);
        let shape = self.shape.as_ref().unwrap_or(&ty.shape);
        let own = TensorType::contiguous(ty.dtype, shape, ty.device);
        let same = own == ty;
        let mut value: ValueRef =
            graph.add(Op::Aten(Box::new(self.call)), &self.operands, [own], origin).into();
        if !same {
            value = graph.add(Op::View(View::Reshape), &[value], [ty], origin).into();
        }
        graph.replace_uses(root.into(), value);
    }
}
